/* test_network_loss.c - the loss of whole networks: what their forward and the loss by itself give, with every kind of
 * label, boundary and state; gradients by differences; failures midway. */
#include "tape/tape_impl.h"
#include "tests/train/loss_cases.h"

enum { NB = 2, NS = 6, NW = 11, NF = 3, NO = 4 };

/* A network of two layers, d_model 8; 11 ids in a table of 16 rows, or 3 features to 4. */
typedef struct setup {
    kr_family family;
    bool is_vocab, is_tied, recomputes, has_class_tokens;
    kr_dtype dtype;
} setup;

static kr_network *make(kr_ctx *ctx, const setup *s)
{
    kr_mamba1_config mamba1;
    kr_mamba2_config mamba2;
    kr_mamba3_config mamba3;
    kr_mamba1_config_init(&mamba1);
    kr_mamba2_config_init(&mamba2);
    kr_mamba3_config_init(&mamba3);
    mamba1.d_model = mamba2.d_model = mamba3.d_model = 8;
    mamba1.dtype = mamba2.dtype = mamba3.dtype = s->dtype;
    mamba1.state_rank = mamba2.state_rank = mamba3.state_rank = 4;
    mamba2.per_head_dim = mamba3.per_head_dim = 8;
    kr_layers_config layers;
    kr_layers_config_init(&layers);
    layers.block = s->family == KR_FAMILY_MAMBA1   ? kr_mamba1_block(&mamba1)
                   : s->family == KR_FAMILY_MAMBA2 ? kr_mamba2_block(&mamba2)
                                                   : kr_mamba3_block(&mamba3);
    layers.n_layers = 2;
    layers.recompute = s->recomputes ? KR_RECOMPUTE_ALL : KR_RECOMPUTE_NONE;
    const kr_class_token class_token = { .kind = KR_CLASS_TOKEN_START };
    layers.n_latents = s->has_class_tokens;
    layers.latents = &class_token;
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &layers;
    config.tie_embeddings = s->is_tied;
    if (s->is_vocab) {
        config.vocab_size = NW;
        config.pad_vocab_size_multiple = 16;
        config.embedding_std = 0.5;
    } else {
        config.input_size = NF;
        config.output_size = NO;
        config.has_final_norm = true;
    }
    kr_ctx_seed(ctx, 5);
    return kr_network_create(ctx, &config);
}

static kr_tensor *ids_of(kr_tape *t, kr_dtype dtype)
{
    int64_t id[NB * NS];
    for (int i = 0; i < NB * NS; i++) id[i] = (i * i + 3 * i + 1) % NW;
    return kr_cast(t, kr_from_data(t, KR_DTYPE_I64, KR_SHAPE(NB, NS), id), dtype);
}

static kr_tensor *integers(kr_tape *t, const int32_t *values)
{
    return kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(NB, NS), values);
}

static kr_loss_call new_call(void)
{
    kr_loss_call c;
    kr_loss_call_init(&c);
    return c;
}

/* ---- against forward and the loss by itself ---- */

/* The gradient of parameter i, as doubles; NULL where there is none. */
static double *gradient(const kr_network *net, int64_t i)
{
    const kr_tensor *g = kr_grad(kr_params_at(kr_network_params(net), i)->tensor);
    return g ? kr_test_values(g) : NULL;
}

typedef kr_tensor *loss_program(kr_tape *t, const kr_network *net, void *user);

/* Loss and gradients of two programs. The same logits, then sums in other orders: some units in the last place. */
static void compare(kr_ctx *ctx, const kr_network *net, const char *what, loss_program *got, loss_program *want,
                    void *user, double tolerance)
{
    enum { MOST = 64 };
    double *g[2][MOST], loss[2];
    const int64_t count = kr_params_count(kr_network_params(net));
    for (int i = 0; i < 2; i++) {
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
        kr_params_zero_grad(kr_network_params(net));
        kr_tensor *y = (i ? want : got)(t, net, user);
        kr_backward(t, y);
        CHECK(!kr_ctx_failed(ctx), "%s: %s", what, kr_ctx_message(ctx));
        loss[i] = kr_item(y);
        for (int64_t k = 0; k < count && k < MOST; k++) g[i][k] = gradient(net, k);
        kr_tape_destroy(t);
    }
    CHECK(loss[1] > 0 && fabs(loss[0] - loss[1]) <= tolerance * loss[1], "%s: loss %.9g, not %.9g", what, loss[0],
          loss[1]);
    for (int64_t k = 0; k < count && k < MOST; k++) {
        const kr_param_row *row = kr_params_at(kr_network_params(net), k);
        char text[160];
        snprintf(text, sizeof text, "%s, g of %s", what, row->name);
        if (CHECK(g[0][k] && g[1][k], "%s: none", text))
            CHECK_CLOSE(text, g[0][k], g[1][k], kr_tensor_count(row->tensor), NULL, 8 * tolerance, 1e-2);
        free(g[0][k]);
        free(g[1][k]);
    }
}

typedef struct scene {
    kr_dtype id_type;
    const int32_t *labels, *starts, *reset, *padding, *scored; /* [b s] or NULL */
    bool last_only, excludes, sums;
    double smoothing;
} scene;

static kr_tensor *optional(kr_tape *t, const int32_t *values)
{
    return values ? integers(t, values) : NULL;
}

static kr_tensor *fused(kr_tape *t, const kr_network *net, void *user)
{
    const scene *s = user;
    kr_loss_call c = new_call();
    kr_call how;
    kr_call_init(&how);
    c.call = &how;
    c.ids_bs = ids_of(t, s->id_type);
    c.labels = !s->last_only ? optional(t, s->labels)
               : s->labels   ? kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(NB), s->labels)
                             : NULL;
    c.scored = optional(t, s->scored);
    how.seq_start_bs = optional(t, s->starts);
    how.reset_bs = optional(t, s->reset);
    how.mask_bs = optional(t, s->padding);
    how.last_logits_only = s->last_only;
    c.exclude_padding = s->excludes;
    c.label_smoothing = s->smoothing;
    c.reduction = s->sums ? KR_REDUCTION_SUM : KR_REDUCTION_MEAN;
    return kr_network_loss(t, net, &c).loss;
}

/* Labels and mask by hand: the next token, if it is in the same sequence. */
static void next_tokens(kr_tape *t, const scene *s, int64_t *labels, int32_t *mask)
{
    int64_t id[NB * NS];
    kr_tensor_read(ids_of(t, KR_DTYPE_I64), KR_DTYPE_I64, id, NB * NS);
    for (int b = 0; b < NB; b++)
        for (int i = b * NS; i < (b + 1) * NS; i++) {
            const bool has_next = i + 1 < (b + 1) * NS;
            labels[i] = has_next ? id[i + 1] : 0;
            mask[i] = has_next && !(s->starts && s->starts[i + 1]) && !(s->reset && s->reset[i + 1]) &&
                      !(s->padding && !(s->padding[i] && s->padding[i + 1])) && !(s->scored && !s->scored[i]);
        }
}

static kr_tensor *by_hand(kr_tape *t, const kr_network *net, void *user)
{
    const scene *s = user;
    kr_call call;
    kr_call_init(&call);
    call.seq_start_bs = optional(t, s->starts);
    call.reset_bs = optional(t, s->reset);
    call.mask_bs = optional(t, s->padding);
    call.last_logits_only = s->last_only;
    kr_tensor *logits = kr_network_forward(t, net, ids_of(t, KR_DTYPE_I64), &call).y;
    kr_cross_entropy_options o;
    kr_cross_entropy_options_init(&o);
    o.n_classes = NW;
    o.exclude_padding = s->excludes;
    o.label_smoothing = s->smoothing;
    o.reduction = s->sums ? KR_REDUCTION_SUM : KR_REDUCTION_MEAN;
    if (s->last_only) return kr_cross_entropy(t, logits, kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(NB), s->labels), &o);
    int64_t labels[NB * NS];
    int32_t mask[NB * NS];
    next_tokens(t, s, labels, mask);
    o.mask = s->labels ? optional(t, s->scored) : integers(t, mask);
    return kr_cross_entropy(
        t, logits, s->labels ? integers(t, s->labels) : kr_from_data(t, KR_DTYPE_I64, KR_SHAPE(NB, NS), labels), &o);
}

static const int32_t some_labels[NB * NS] = { 1, 4, -100, 10, 0, 2, 3, -100, 9, 9, 5, 6 };
static const int32_t some_starts[NB * NS] = { 0, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 0 };
static const int32_t left_padding[NB * NS] = { 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
static const int32_t some_scored[NB * NS] = { 1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1 };

static const scene scenes[] = {
    { .id_type = KR_DTYPE_I32 },
    { .id_type = KR_DTYPE_I64, .scored = some_scored, .sums = true },
    { .id_type = KR_DTYPE_I32, .starts = some_starts, .excludes = true },
    { .id_type = KR_DTYPE_I64, .reset = some_starts, .smoothing = 0.2 },
    { .id_type = KR_DTYPE_I32, .padding = left_padding },
    { .id_type = KR_DTYPE_I32, .labels = some_labels, .scored = some_scored },
    { .id_type = KR_DTYPE_I32, .labels = some_labels, .starts = some_starts, .smoothing = 0.1, .excludes = true },
    { .id_type = KR_DTYPE_I32, .labels = (const int32_t[]){ 7, 2 }, .last_only = true },
};
enum { NSCENES = (int)(sizeof scenes / sizeof *scenes) };

TEST(network_loss_is_forward_and_cross_entropy)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int family = KR_FAMILY_MAMBA1; family <= KR_FAMILY_MAMBA3; family++)
        for (int way = 0; way < 4; way++) {
            const setup s = { .family = (kr_family)family,
                              .is_vocab = true,
                              .is_tied = way & 1,
                              .recomputes = way & 2,
                              .dtype = way == 3 ? KR_DTYPE_F64 : KR_DTYPE_F32 };
            kr_network *net = make(ctx, &s);
            for (int i = 0; i < NSCENES; i++) {
                char what[64];
                snprintf(what, sizeof what, "%s, way %d, scene %d", kr_family_name(s.family), way, i);
                compare(ctx, net, what, fused, by_hand, (void *)&scenes[i], s.dtype == KR_DTYPE_F64 ? 1e-13 : 1e-6);
            }
            kr_network_destroy(net);
        }
    kr_ctx_destroy(ctx);
}

/* ---- latent networks ---- */

typedef struct latent_scene {
    kr_loss_kind kind;
    bool last_only, is_masked;
} latent_scene;

static kr_tensor *features(kr_tape *t)
{
    kr_ctx_seed(kr_tape_ctx(t), 9);
    return kr_randn(t, KR_DTYPE_F32, KR_SHAPE(NB, NS, NF));
}

static kr_tensor *targets_of(kr_tape *t, const latent_scene *s)
{
    kr_ctx_seed(kr_tape_ctx(t), 10);
    return kr_rand(t, KR_DTYPE_F32, s->last_only ? KR_SHAPE(NB, NO) : KR_SHAPE(NB, NS, NO), 0, 1);
}

static kr_tensor *latent_labels(kr_tape *t, const latent_scene *s)
{
    static const int32_t labels[NB * NS] = { 0, 3, 1, 2, 2, 1, 3, 0, 0, 1, 2, 3 };
    return kr_from_data(t, KR_DTYPE_I32, s->last_only ? KR_SHAPE(NB) : KR_SHAPE(NB, NS), labels);
}

/* A number for each output, or for each row where the loss has rows. */
static kr_tensor *latent_mask(kr_tape *t, const latent_scene *s)
{
    if (!s->is_masked) return NULL;
    kr_tensor *mask = kr_from_data(t, KR_DTYPE_I32, s->last_only ? KR_SHAPE(NB) : KR_SHAPE(NB, NS), some_scored + 1);
    if (s->kind == KR_LOSS_CROSS_ENTROPY || s->kind == KR_LOSS_SOFT_CROSS_ENTROPY) return mask;
    return kr_reshape(t, mask, s->last_only ? KR_SHAPE(NB, 1) : KR_SHAPE(NB, NS, 1));
}

#define HUBER_DELTA 0.4
#define QUANTILE 0.7

static kr_tensor *latent_fused(kr_tape *t, const kr_network *net, void *user)
{
    const latent_scene *s = user;
    kr_loss_call c = new_call();
    kr_call how;
    kr_call_init(&how);
    c.call = &how;
    c.kind = s->kind;
    c.x_bsf = features(t);
    if (s->kind == KR_LOSS_CROSS_ENTROPY) c.labels = latent_labels(t, s);
    else c.targets = targets_of(t, s);
    c.scored = latent_mask(t, s);
    c.huber_delta = HUBER_DELTA;
    c.quantile = QUANTILE;
    how.last_logits_only = s->last_only;
    how.drop_state = true;
    const kr_loss_out out = kr_network_loss(t, net, &c);
    CHECK(!out.state, "a dropped state is returned");
    CHECK((out.y == NULL) == (s->kind == KR_LOSS_CROSS_ENTROPY), "outputs");
    return out.loss;
}

static kr_tensor *latent_by_hand(kr_tape *t, const kr_network *net, void *user)
{
    const latent_scene *s = user;
    kr_call call;
    kr_call_init(&call);
    call.last_logits_only = s->last_only;
    kr_tensor *y = kr_network_forward(t, net, features(t), &call).y;
    kr_loss_options o;
    kr_loss_options_init(&o);
    o.mask = latent_mask(t, s);
    kr_cross_entropy_options labelled_options;
    kr_cross_entropy_options_init(&labelled_options);
    labelled_options.mask = o.mask;
    o.huber_delta = HUBER_DELTA;
    o.quantile = QUANTILE;
    switch (s->kind) {
    case KR_LOSS_CROSS_ENTROPY: return kr_cross_entropy(t, y, latent_labels(t, s), &labelled_options);
    case KR_LOSS_SOFT_CROSS_ENTROPY: return kr_soft_cross_entropy(t, y, targets_of(t, s), &o);
    case KR_LOSS_BCE: return kr_bce(t, y, targets_of(t, s), &o);
    case KR_LOSS_L1: return kr_l1_loss(t, y, targets_of(t, s), &o);
    case KR_LOSS_HUBER: return kr_huber_loss(t, y, targets_of(t, s), &o);
    case KR_LOSS_QUANTILE: return kr_quantile_loss(t, y, targets_of(t, s), &o);
    default: return kr_mse(t, y, targets_of(t, s), &o);
    }
}

TEST(latent_networks_have_every_kind_of_loss)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const setup s = { .family = KR_FAMILY_MAMBA2, .dtype = KR_DTYPE_F32 };
    kr_network *net = make(ctx, &s);
    for (int k = 0; k <= 4 * KR_LOSS_QUANTILE + 3; k++) {
        latent_scene at = { (kr_loss_kind)(k / 4), k & 1, k & 2 };
        char what[64];
        snprintf(what, sizeof what, "kind %d, way %d", k / 4, k % 4);
        compare(ctx, net, what, latent_fused, latent_by_hand, &at, 1e-6);
    }
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
}

/* ---- states, and what comes with the loss ---- */

/* A row in two parts, the second from the state of the first: the same loss and gradients as in one. */
static kr_tensor *in_parts(kr_tape *t, const kr_network *net, void *user)
{
    const scene *s = user;
    kr_tensor *ids = ids_of(t, KR_DTYPE_I32), *labels = integers(t, s->labels), *sum = NULL;
    kr_loss_out out = { .state = NULL };
    for (int part = 0; part < 2; part++) {
        kr_loss_call c = new_call();
        kr_call how;
        kr_call_init(&how);
        c.call = &how;
        c.ids_bs = kr_slice(t, ids, 1, part ? 4 : 0, part ? NS : 4);
        c.labels = kr_slice(t, labels, 1, part ? 4 : 0, part ? NS : 4);
        how.state = out.state;
        c.reduction = KR_REDUCTION_SUM;
        out = kr_network_loss(t, net, &c);
        sum = sum ? kr_add(t, sum, out.loss) : out.loss;
    }
    return sum;
}

TEST(losses_go_on_from_a_state)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int family = KR_FAMILY_MAMBA1; family <= KR_FAMILY_MAMBA3; family++) {
        const setup s = { .family = (kr_family)family, .is_vocab = true, .is_tied = true, .dtype = KR_DTYPE_F64 };
        kr_network *net = make(ctx, &s);
        scene whole = { .id_type = KR_DTYPE_I32, .labels = some_labels, .sums = true };
        compare(ctx, net, kr_family_name(s.family), in_parts, fused, &whole, 1e-12);
        kr_network_destroy(net);
    }
    kr_ctx_destroy(ctx);
}

TEST(scores_come_with_the_loss)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const setup s = { .family = KR_FAMILY_MAMBA2, .is_vocab = true, .dtype = KR_DTYPE_F32 };
    kr_network *net = make(ctx, &s);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_loss_call c = new_call();
    c.ids_bs = ids_of(t, KR_DTYPE_I32);
    c.labels = integers(t, some_labels);
    const kr_loss_out out = kr_network_loss(t, net, &c);
    const kr_scores want = kr_accuracy(t, kr_network_forward(t, net, c.ids_bs, NULL).y, c.labels, NULL);
    CHECK_OK(ctx);
    CHECK(out.scores.scored == 10 && want.scored == 10 && out.scores.right == want.right, "%lld of %lld, not %lld",
          (long long)out.scores.right, (long long)out.scores.scored, (long long)want.right);
    CHECK(out.state && kr_state_batch(out.state) == NB && !out.y, "state and outputs");
    kr_tape_destroy(t);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
}

/* Forward and step without their head: the hidden states that the head would have been applied to. */
TEST(a_call_may_skip_the_head)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int is_vocab = 0; is_vocab < 2; is_vocab++) {
        const setup s = { .family = KR_FAMILY_MAMBA3, .is_vocab = is_vocab, .is_tied = true, .dtype = KR_DTYPE_F32 };
        kr_network *net = make(ctx, &s);
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        kr_tensor *x = is_vocab ? ids_of(t, KR_DTYPE_I32) : features(t);
        for (int last = 0; last < 2; last++) {
            kr_call call;
            kr_call_init(&call);
            call.last_logits_only = last;
            const kr_network_out with = kr_network_forward(t, net, x, &call);
            call.skip_head = true;
            const kr_network_out without = kr_network_forward(t, net, x, &call);
            CHECK_OK(ctx);
            CHECK(!without.y && without.state, "outputs of a skipped head");
            CHECK_SAME_BITS("hidden", without.hidden, with.hidden);
        }
        kr_tape_destroy(t);
        kr_network_destroy(net);
    }
    kr_ctx_destroy(ctx);
}

/* ---- gradients ---- */

static double loss_at(kr_ctx *ctx, const kr_network *net, const scene *s)
{
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    const double loss = kr_item(fused(t, net, (void *)s));
    kr_tape_destroy(t);
    return loss;
}

/* Of every parameter three elements, by central differences in f64: h^2 f''' and 1e-16 / h, both about 1e-10. */
TEST(gradients_of_a_network_by_differences)
{
    kr_ctx *ctx = kr_test_ctx(1, "ref");
    for (int family = KR_FAMILY_MAMBA1; family <= KR_FAMILY_MAMBA3; family++) {
        const setup s = { .family = (kr_family)family, .is_vocab = true, .is_tied = true, .dtype = KR_DTYPE_F64 };
        const scene packed = { .id_type = KR_DTYPE_I32, .starts = some_starts, .smoothing = 0.1 };
        kr_network *net = make(ctx, &s);
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
        kr_backward(t, fused(t, net, (void *)&packed));
        CHECK_OK(ctx);
        const kr_params *params = kr_network_params(net);
        for (int64_t i = 0; i < kr_params_count(params); i++) {
            kr_tensor *p = kr_params_at(params, i)->tensor;
            double *x = kr_test_copy(p), *g = gradient(net, i);
            if (!CHECK(kr_tensor_dtype(p) == KR_DTYPE_F64 && g, "%s has no gradient", kr_params_at(params, i)->name))
                continue;
            for (int k = 0; k < 3; k++) {
                const int64_t at = kr_test_below(kr_tensor_count(p));
                const double kept = x[at], h = 1e-5;
                kr_test_put(p, at, kept + h);
                const double up = loss_at(ctx, net, &packed);
                kr_test_put(p, at, kept - h);
                const double want = (up - loss_at(ctx, net, &packed)) / (2 * h);
                kr_test_put(p, at, kept);
                CHECK(fabs(g[at] - want) < 2e-9, "%s: g of %s[%lld] is %.9g, not %.9g", kr_family_name(s.family),
                      kr_params_at(params, i)->name, (long long)at, g[at], want);
            }
            free(g);
        }
        kr_tape_destroy(t);
        kr_network_destroy(net);
    }
    kr_ctx_destroy(ctx);
}

/* ---- failures ---- */

/* Each allocation refused in turn: an error of memory, no leak, and the next attempt succeeds. */
TEST(every_allocation_of_a_network_loss)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const setup s = { .family = KR_FAMILY_MAMBA2, .is_vocab = true, .is_tied = true, .dtype = KR_DTYPE_F32 };
    const scene at = { .id_type = KR_DTYPE_I32, .starts = some_starts };
    kr_network *net = make(ctx, &s);
    { /* the gradients' memory stays with the parameters */
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
        kr_backward(t, fused(t, net, (void *)&at));
        kr_tape_destroy(t);
        kr_arena_deinit(&ctx->scratch);
    }
    const size_t idle = kr_ctx_memory(ctx).live_blocks;
    bool passed = false;
    size_t n = 0;
    for (const size_t step = kr_test_quick() ? 17 : 1; !passed && n < 4000; n += step) {
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
        t->heads.block_bytes = t->data.block_bytes = t->heap.chunk_bytes = KR_ALIGN;
        t->shared.block_bytes = t->device_heap.chunk_bytes = 4 * KR_ALIGN;
        kr_ctx_fail_allocation(ctx, n + 1);
        kr_tensor *loss = fused(t, net, (void *)&at);
        if (loss) kr_backward(t, loss);
        kr_ctx_fail_allocation(ctx, 0);
        passed = !kr_ctx_failed(ctx);
        CHECK(passed || kr_ctx_status(ctx) == KR_ERR_NOMEM, "allocation %zu: %s", n + 1, kr_ctx_message(ctx));
        kr_ctx_clear(ctx);
        kr_tape_destroy(t);
        kr_arena_deinit(&ctx->scratch);
        CHECK(kr_ctx_memory(ctx).live_blocks == idle, "allocation %zu: %zu blocks are left", n + 1,
              kr_ctx_memory(ctx).live_blocks - idle);
    }
    CHECK(passed && n > 100, "%s after %zu", passed ? "passed" : "did not pass", n);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
}
