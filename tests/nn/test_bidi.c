/* test_bidi.c - stacks that read in both directions: against the composition by hand, laws of time, gradients, types.
 */
#include "tests/nn/bidi_cases.h"
#include "tests/nn/differences.h"

#include "nn/block_impl.h"
#include "nn/multi_gate.h"

enum { NB = 2, NS = 5 };

static kr_tensor *param(const kr_params *params, const char *format, int64_t i, const char *rest)
{
    char name[100];
    snprintf(name, sizeof name, format, (long long)i, rest);
    const kr_param_row *row = kr_params_find(params, name);
    return row ? row->tensor : NULL;
}

/* ---- the same stack by hand: blocks that stand alone, one after another ---- */

/* The weights of one layer as a block of its own. */
typedef struct lone {
    kr_params *params;
    void *block;
} lone;

static lone lone_make(kr_ctx *ctx, const kr_bidi_config *c, const kr_params *params, int64_t layer)
{
    kr_block *block = kr_block_create(ctx, &c->block);
    const lone l = { block ? block->params : NULL, block };
    for (int64_t i = 0; i < kr_params_count(l.params); i++) {
        const kr_param_row *row = kr_params_at(l.params, i);
        kr_tensor *from = param(params, "layers.%lld.mixer.%s", layer, row->name);
        if (!CHECK(from != NULL, "no parameter %s in layer %lld", row->name, (long long)layer)) continue;
        kr_param_write(row->tensor, kr_tensor_dtype(from), kr_test_copy(from), kr_tensor_count(from));
    }
    return l;
}

static void lone_free(lone *l)
{
    kr_block_destroy(l->block);
}

typedef struct by_hand {
    const kr_bidi_config *config;
    const kr_params *params;
    const kr_cache *begin;
    kr_cache *end;
    lone *layers;
} by_hand;

static kr_tensor *one_way(kr_tape *tape, const by_hand *h, int64_t nvirtual, int64_t v, kr_tensor *x)
{
    const kr_bidi_config *c = h->config;
    const kr_block_kind *kind = kr_block_kind_of(c->block.family);
    const int64_t real = kr_bidi_schedule_at(c->schedule, c->custom_schedule, v, nvirtual, c->n_layers);
    kr_norm_options norm;
    kr_norm_options_init(&norm);
    norm.eps = c->norm_eps;
    if (v % 2) x = kr_flip(tape, x, 1);
    x = kr_rms_norm(tape, x, param(h->params, "layers.%lld.%s", real, "norm.weight"), &norm);
    const kr_block_input input = {
        .op = "by hand", .x_bsd = x, .cache = h->begin ? &h->begin[v] : NULL, .path = kind->path(h->layers[real].block)
    };
    const kr_block_result out = kind->forward(tape, h->layers[real].block, &input);
    h->end[v] = out.cache;
    return v % 2 ? kr_flip(tape, out.y_bsd, 1) : out.y_bsd;
}

static kr_tensor *delta(kr_tape *tape, const by_hand *h, int64_t nvirtual, int64_t pair, int64_t real_pair,
                        kr_tensor *x)
{
    kr_tensor *a = one_way(tape, h, nvirtual, 2 * pair, x), *b = one_way(tape, h, nvirtual, 2 * pair + 1, x);
    if (h->config->merge == KR_BIDI_MERGE_MEAN) return kr_scale(tape, kr_add(tape, a, b), 0.5);
    kr_tensor *w = param(h->params, "merge.%lld.%s", real_pair, "weight"), *wa = kr_slice(tape, w, 1, 0, BIDI_ND);
    kr_tensor *wb = kr_slice(tape, w, 1, BIDI_ND, 2 * BIDI_ND);
    return kr_add(tape, kr_linear(tape, a, wa, NULL),
                  kr_linear(tape, b, wb, param(h->params, "merge.%lld.%s", real_pair, "bias")));
}

/* Rows for START and END around x. */
static kr_tensor *with_ends(kr_tape *tape, const by_hand *h, kr_tensor *x)
{
    if (!h->config->n_latents) return x;
    kr_tensor *table = kr_params_find(h->params, "latents")->tensor;
    const kr_shape row = KR_SHAPE(NB, 1, BIDI_ND);
    return kr_concat(tape, 1, 3,
                     (kr_tensor *[]){ kr_expand(tape, kr_slice(tape, table, 0, 1, 2), row), x,
                                      kr_expand(tape, kr_slice(tape, table, 0, 0, 1), row) });
}

static kr_tensor *run_by_hand(kr_tape *tape, const by_hand *h, kr_tensor *x)
{
    const kr_bidi_config *c = h->config;
    const int64_t nvirtual = c->n_virtual ? c->n_virtual : c->n_layers, npairs = nvirtual / 2;
    kr_tensor *streams[16] = { x = with_ends(tape, h, x) };
    int64_t n = 1;
    for (int64_t pair = 0; pair < npairs; pair++) {
        const int64_t real = kr_bidi_schedule_at(c->schedule, c->custom_schedule, 2 * pair, nvirtual, c->n_layers) / 2;
        kr_tensor *f = delta(tape, h, nvirtual, pair, real, x);
        const bool first = pair == 0 && c->ignore_first_residual, last = pair == npairs - 1 && c->ignore_last_residual;
        if (c->residual.kind == KR_RESIDUAL_STANDARD) {
            x = first || last ? f : kr_add(tape, x, f);
            continue;
        }
        const int64_t at = c->residual.per_virtual_layer ? pair : real;
        const kr_multi_gate gate = { param(h->params, "gates.%lld.%s", at, "w_beta"),
                                     param(h->params, "gates.%lld.%s", at, "w_alpha"),
                                     param(h->params, "gates.%lld.%s", at, "b_beta"), c->norm_eps };
        if (first) streams[0] = f;
        else if (!last && n < c->residual.n_stream) streams[n++] = f;
        else if (!last) kr_multi_gate_mix(tape, &gate, n, streams, f);
        x = first || last ? f : kr_multi_gate_pool(tape, &gate, n, streams);
    }
    return x;
}

/* Caches that hold something. */
static void random_caches(kr_tape *tape, const kr_bidi_config *c, const lone *layers, int64_t nvirtual,
                          kr_cache *caches)
{
    const kr_block_kind *kind = kr_block_kind_of(c->block.family);
    for (int64_t v = 0; v < nvirtual; v++) {
        caches[v] = kind->initial_cache(tape, layers[0].block, NB);
        for (int i = 0; i < kind->ncache; i++) {
            kr_tensor *x = caches[v].tensors[i];
            caches[v].tensors[i] =
                kr_add(tape, x, kr_scale(tape, kr_randn(tape, kr_tensor_dtype(x), kr_tensor_shape(x)), 0.3));
        }
    }
}

/* f64, so that the order of a sum here and there leaves some 1e-14. */
static void check_by_hand(const char *what, const kr_bidi_config *c, bool with_caches)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_bidi *bidi = kr_bidi_create(ctx, c);
    const kr_params *params = kr_bidi_params(bidi);
    bidi_scatter(params);
    const int64_t nvirtual = c->n_virtual ? c->n_virtual : c->n_layers;
    lone layers[8];
    for (int64_t i = 0; i < c->n_layers; i++) layers[i] = lone_make(ctx, c, params, i);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_cache begin[16], end[16];
    random_caches(tape, c, layers, nvirtual, begin);
    kr_tensor *x = kr_randn(tape, KR_DTYPE_F64, KR_SHAPE(NB, NS, BIDI_ND));
    const by_hand h = { c, params, with_caches ? begin : NULL, end, layers };
    kr_tensor *want = run_by_hand(tape, &h, x);
    const kr_bidi_out got = bidi_forward_from(tape, bidi, x, h.begin);
    CHECK_TENSORS(what, got.y, want, 1e-13, 1);
    for (int64_t v = 0; got.caches && v < nvirtual; v++) {
        CHECK(got.caches[v].family == c->block.family, "%s: the cache's family", what);
        for (int i = 0; i < kr_cache_count(c->block.family); i++)
            CHECK_TENSORS(what, got.caches[v].tensors[i], end[v].tensors[i], 1e-13, 1);
    }
    /* unrecorded it is the same to the bit */
    kr_tape *other = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x2 = kr_from_data(other, KR_DTYPE_F64, kr_tensor_shape(x), kr_test_copy(x));
    if (!with_caches) {
        const kr_bidi_out plain = kr_bidi_forward(other, bidi, x2, NULL);
        CHECK_SAME_BITS(what, plain.y, got.y);
        for (int64_t v = 0; plain.caches && v < nvirtual; v++)
            for (int i = 0; i < kr_cache_count(c->block.family); i++)
                CHECK_SAME_BITS(what, plain.caches[v].tensors[i], got.caches[v].tensors[i]);
    }
    CHECK_OK(ctx);
    kr_tape_destroy(other);
    kr_tape_destroy(tape);
    for (int64_t i = 0; i < c->n_layers; i++) lone_free(&layers[i]);
    kr_bidi_destroy(bidi);
    kr_ctx_destroy(ctx);
}

TEST(composed_by_hand)
{
    const bidi_blocks blocks = bidi_blocks_of(KR_DTYPE_F64);
    for (int family = 0; family < BIDI_FAMILIES; family++)
        for (int merge = 0; merge < 2; merge++)
            for (int with_caches = 0; with_caches < 2; with_caches++) {
                kr_bidi_config c = bidi_small(&blocks, family);
                c.merge = (kr_bidi_merge)merge;
                c.norm_eps = 0.05;
                check_by_hand(merge ? "cat-linear" : "mean", &c, with_caches);
            }
}

TEST(all_schedules)
{
    const bidi_blocks blocks = bidi_blocks_of(KR_DTYPE_F64);
    const int64_t list[10] = { 3, 1, 0, 0, 2, 1, 1, 2, 3, 3 };
    for (int schedule = KR_BIDI_SCHEDULE_STRIDED_CYCLIC; schedule <= KR_BIDI_SCHEDULE_CUSTOM; schedule++) {
        kr_bidi_config c = bidi_small(&blocks, KR_FAMILY_MAMBA2);
        c.n_virtual = 10;
        c.schedule = (kr_bidi_schedule)schedule;
        c.custom_schedule = schedule == KR_BIDI_SCHEDULE_CUSTOM ? list : NULL;
        c.merge = KR_BIDI_MERGE_CAT_LINEAR;
        check_by_hand("schedule", &c, schedule == KR_BIDI_SCHEDULE_CUSTOM);
    }
}

/* One pair alone, where first and last are the same, and five. */
TEST(residuals)
{
    const bidi_blocks blocks = bidi_blocks_of(KR_DTYPE_F64);
    for (int flags = 0; flags < 4; flags++)
        for (int64_t nvirtual = 2; nvirtual <= 10; nvirtual += 8)
            for (int64_t n_stream = 0; n_stream <= 7; n_stream = n_stream ? 2 * n_stream + 1 : 1)
                for (int per_virtual = 0; per_virtual < (n_stream ? 2 : 1); per_virtual++) {
                    kr_bidi_config c = bidi_small(&blocks, (int)(n_stream % 3));
                    c.n_virtual = nvirtual;
                    c.norm_eps = 0.05;
                    c.ignore_first_residual = flags & 1;
                    c.ignore_last_residual = flags & 2;
                    if (n_stream)
                        c.residual = (kr_residual){ .kind = KR_RESIDUAL_MULTI_GATE,
                                                    .n_stream = n_stream,
                                                    .init_bias = -1,
                                                    .init_bias_step = 0.5,
                                                    .per_virtual_layer = per_virtual != 0 };
                    check_by_hand("residual", &c, false);
                }
}

static const kr_class_token ends[] = { { .kind = KR_CLASS_TOKEN_END },
                                       { .kind = KR_CLASS_TOKEN_START },
                                       { .kind = KR_CLASS_TOKEN_CUSTOM, .at = NS } };

TEST(class_tokens)
{
    const bidi_blocks blocks = bidi_blocks_of(KR_DTYPE_F64);
    for (int multi = 0; multi < 2; multi++) {
        kr_bidi_config c = bidi_small(&blocks, KR_FAMILY_MAMBA3);
        c.n_latents = 3; /* the last never finds its place */
        c.latents = ends;
        if (multi)
            c.residual = (kr_residual){ .kind = KR_RESIDUAL_MULTI_GATE,
                                        .n_stream = 2,
                                        .init_bias = 0,
                                        .init_bias_step = 0,
                                        .per_virtual_layer = false };
        check_by_hand("class tokens", &c, false);
    }
}

/* ---- laws ---- */

static kr_bidi *seeded(kr_ctx *ctx, const kr_bidi_config *c)
{
    kr_ctx_seed(ctx, 7);
    kr_bidi *bidi = kr_bidi_create(ctx, c);
    bidi_scatter(kr_bidi_params(bidi));
    return bidi;
}

/* Exchanges the two halves of each merge. */
static void exchange_halves(const kr_bidi *bidi, int64_t npairs)
{
    for (int64_t p = 0; p < npairs; p++) {
        kr_tensor *w = param(kr_bidi_params(bidi), "merge.%lld.%s", p, "weight");
        if (!w) return;
        double *values = kr_test_values(w);
        for (int64_t row = 0; row < BIDI_ND; row++)
            for (int64_t i = 0; i < BIDI_ND; i++) {
                double *a = &values[row * 2 * BIDI_ND + i], *b = a + BIDI_ND, kept = *a;
                *a = *b;
                *b = kept;
            }
        kr_param_write(w, KR_DTYPE_F64, values, kr_tensor_count(w));
        free(values);
    }
}

/* The reversed input through the stack whose directions have changed roles is the reversed output. The mean does not
 * tell its operands apart, so it is the same to the bit; the sum of a matrix product has another order. */
TEST(time_reversed)
{
    const bidi_blocks blocks = bidi_blocks_of(KR_DTYPE_F64);
    const int64_t forwards[6] = { 0, 1, 2, 3, 0, 1 }, backwards[6] = { 1, 0, 3, 2, 1, 0 };
    for (int family = 0; family < BIDI_FAMILIES; family++)
        for (int merge = 0; merge < 2; merge++) {
            kr_ctx *ctx = kr_test_ctx(1, NULL);
            kr_bidi_config c = bidi_small(&blocks, family);
            c.n_virtual = 6;
            c.schedule = KR_BIDI_SCHEDULE_CUSTOM;
            c.merge = (kr_bidi_merge)merge;
            c.residual = (kr_residual){ .kind = KR_RESIDUAL_MULTI_GATE,
                                        .n_stream = 2,
                                        .init_bias = 0,
                                        .init_bias_step = 0,
                                        .per_virtual_layer = false };
            c.custom_schedule = forwards;
            kr_bidi *one = seeded(ctx, &c);
            c.custom_schedule = backwards;
            kr_bidi *other = seeded(ctx, &c);
            exchange_halves(other, 2);
            kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
            kr_tensor *x = kr_randn(tape, KR_DTYPE_F64, KR_SHAPE(NB, NS, BIDI_ND));
            kr_tensor *y = kr_bidi_forward(tape, one, x, NULL).y;
            kr_tensor *flipped = kr_bidi_forward(tape, other, kr_flip(tape, x, 1), NULL).y;
            if (merge) CHECK_TENSORS("reversed", kr_flip(tape, flipped, 1), y, 1e-13, 1);
            else CHECK_SAME_BITS("reversed", kr_flip(tape, flipped, 1), y);
            /* and the directions do differ: with the roles as they were it is another output */
            kr_tensor *same = kr_flip(tape, kr_bidi_forward(tape, one, kr_flip(tape, x, 1), NULL).y, 1);
            double *a = kr_test_values(same), *b = kr_test_values(y), most = 0;
            for (int64_t i = 0; i < kr_tensor_count(y); i++) most = fmax(most, fabs(a[i] - b[i]));
            CHECK(most > 1e-3, "the directions have weights of their own: %g", most);
            free(a);
            free(b);
            CHECK_OK(ctx);
            kr_tape_destroy(tape);
            kr_bidi_destroy(one);
            kr_bidi_destroy(other);
            kr_ctx_destroy(ctx);
        }
}

/* Every token sees every other: a change of any input moves every output. */
TEST(both_directions_are_read)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const bidi_blocks blocks = bidi_blocks_of(KR_DTYPE_F64);
    kr_bidi_config c = bidi_small(&blocks, KR_FAMILY_MAMBA2);
    c.n_layers = 2;
    kr_bidi *bidi = seeded(ctx, &c);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    for (int64_t s = 0; s < NS; s++) {
        kr_tape_reset(tape);
        kr_tensor *x = kr_input(tape, kr_randn(tape, KR_DTYPE_F64, KR_SHAPE(1, NS, BIDI_ND)));
        kr_tensor *y = kr_slice(tape, kr_bidi_forward(tape, bidi, x, NULL).y, 1, s, s + 1);
        kr_backward(tape, differences_weigh(tape, y, 0));
        double *g = kr_test_values(kr_grad(x));
        for (int64_t u = 0; u < NS; u++) CHECK(fabs(g[u * BIDI_ND]) > 0, "output %d, input %d", (int)s, (int)u);
        free(g);
    }
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    kr_bidi_destroy(bidi);
    kr_ctx_destroy(ctx);
}

TEST(ten_virtual_over_four_real)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const bidi_blocks blocks = bidi_blocks_of(KR_DTYPE_F32);
    for (int schedule = 0; schedule < 4; schedule++) {
        kr_bidi_config c = bidi_small(&blocks, KR_FAMILY_MAMBA2);
        c.n_virtual = 10;
        c.schedule = (kr_bidi_schedule)schedule;
        c.merge = KR_BIDI_MERGE_CAT_LINEAR;
        kr_bidi *bidi = seeded(ctx, &c);
        const kr_params *params = kr_bidi_params(bidi);
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
        kr_tensor *x = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(NB, NS, BIDI_ND));
        const kr_bidi_out out = kr_bidi_forward(tape, bidi, x, NULL), again = kr_bidi_forward(tape, bidi, x, NULL);
        CHECK_SAME_BITS("a second run", again.y, out.y);
        kr_backward(tape, differences_weigh(tape, out.y, 0));
        CHECK(param(params, "merge.%lld.%s", 1, "weight") && !param(params, "merge.%lld.%s", 2, "weight"),
              "one merge for each real pair");
        for (int64_t i = 0; i < kr_params_count(params); i++) {
            const kr_param_row *row = kr_params_at(params, i);
            double *g = kr_grad(row->tensor) ? kr_test_values(kr_grad(row->tensor)) : NULL, most = 0;
            for (int64_t e = 0; g && e < kr_tensor_count(row->tensor); e++) most = fmax(most, fabs(g[e]));
            CHECK(most > 0 && isfinite(most), "schedule %d: no gradient for %s", schedule, row->name);
            free(g);
        }
        CHECK_OK(ctx);
        kr_tape_destroy(tape);
        kr_bidi_destroy(bidi);
    }
    kr_ctx_destroy(ctx);
}

/* A cache for each virtual layer, also where weights are shared; an initial one is what NULL stands for. */
TEST(caches)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const bidi_blocks blocks = bidi_blocks_of(KR_DTYPE_F64);
    for (int family = 0; family < BIDI_FAMILIES; family++) {
        kr_bidi_config c = bidi_small(&blocks, family);
        c.n_virtual = 8;
        c.schedule = KR_BIDI_SCHEDULE_SYMMETRIC_CYCLIC;
        kr_bidi *bidi = seeded(ctx, &c);
        const lone l = lone_make(ctx, &c, kr_bidi_params(bidi), 0);
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        kr_tensor *x = kr_randn(tape, KR_DTYPE_F64, KR_SHAPE(NB, NS, BIDI_ND));
        kr_cache initial[8];
        for (int v = 0; v < 8; v++) initial[v] = kr_block_kind_of(c.block.family)->initial_cache(tape, l.block, NB);
        const kr_bidi_out plain = kr_bidi_forward(tape, bidi, x, NULL),
                          given = bidi_forward_from(tape, bidi, x, initial);
        CHECK_TENSORS("initial", given.y, plain.y, 1e-14, 1);
        const kr_bidi_out next = bidi_forward_from(tape, bidi, x, plain.caches);
        double *a = kr_test_values(next.y), *b = kr_test_values(plain.y), most = 0;
        for (int64_t i = 0; i < kr_tensor_count(next.y); i++) most = fmax(most, fabs(a[i] - b[i]));
        CHECK(most > 1e-3, "the caches are read: %g", most);
        free(a);
        free(b);
        /* rows do not meet: the second alone */
        for (int v = 0; v < 8; v++)
            for (int i = 0; i < kr_cache_count(c.block.family); i++)
                initial[v].tensors[i] = kr_slice(tape, plain.caches[v].tensors[i], 0, 1, 2);
        const kr_bidi_out row = bidi_forward_from(tape, bidi, kr_slice(tape, x, 0, 1, 2), initial);
        CHECK_SAME(ctx, "a row alone", row.y, kr_slice(tape, next.y, 0, 1, 2), 1e-13, 1);
        CHECK_OK(ctx);
        kr_tape_destroy(tape);
        kr_block_destroy(l.block);
        kr_bidi_destroy(bidi);
    }
    kr_ctx_destroy(ctx);
}

/* ---- gradients ---- */

typedef struct task {
    kr_bidi *bidi;
    double dropout; /* of both calls */
    kr_tensor *x;
    int64_t nvirtual;
    int ncache;
} task;

/* The output and all that the caches hold; the second call begins from the caches of the first. */
static kr_tensor *loss(kr_tape *tape, void *user)
{
    const task *k = user;
    kr_bidi_call call;
    kr_bidi_call_init(&call);
    call.dropout = k->dropout;
    kr_ctx_seed(kr_tape_ctx(tape), 21); /* the same masks each time */
    const kr_bidi_out first = kr_bidi_forward(tape, k->bidi, k->x, &call);
    call.caches = first.caches;
    const kr_bidi_out out = kr_bidi_forward(tape, k->bidi, first.y, &call);
    kr_tensor *sum = differences_weigh(tape, out.y, 0);
    for (int64_t v = 0; out.caches && v < k->nvirtual; v++)
        for (int i = 0; i < k->ncache; i++)
            sum = kr_add(tape, sum, differences_weigh(tape, out.caches[v].tensors[i], (int)v * 4 + i));
    return sum;
}

/* Two calls over four layers make third derivatives of some hundreds, of which differences leave 1e-10 times. */
TEST(gradients)
{
    const bidi_blocks blocks = bidi_blocks_of(KR_DTYPE_F64);
    for (int family = 0; family < BIDI_FAMILIES; family++)
        for (int variant = 0; variant < 3; variant++) {
            kr_ctx *ctx = kr_test_ctx(1, NULL);
            kr_bidi_config c = bidi_small(&blocks, family);
            c.n_layers = 2;
            c.n_virtual = 4;
            c.merge = variant ? KR_BIDI_MERGE_CAT_LINEAR : KR_BIDI_MERGE_MEAN;
            c.n_latents = 2;
            c.latents = ends;
            if (variant)
                c.residual = (kr_residual){ .kind = KR_RESIDUAL_MULTI_GATE,
                                            .n_stream = 2,
                                            .init_bias = 0,
                                            .init_bias_step = 0.5,
                                            .per_virtual_layer = false };
            task k = { seeded(ctx, &c), variant == 2 ? 0.3 : 0,
                       kr_param_create(ctx, KR_DTYPE_F64, KR_SHAPE(NB, 3, BIDI_ND)), 4,
                       kr_cache_count(c.block.family) };
            kr_param_normal(k.x, 0, 1);
            const int64_t most = kr_test_quick() ? 2 : 6;
            differences_check_table(ctx, loss, &k, kr_bidi_params(k.bidi), most, 1e-6);
            differences_check(ctx, loss, &k, 1, &k.x, (const char *[]){ "x" }, 2 * most, 1e-6);
            kr_param_destroy(k.x);
            kr_bidi_destroy(k.bidi);
            kr_ctx_destroy(ctx);
        }
}

/* ---- threads and types ---- */

typedef struct result {
    int64_t count;
    double *values;
} result;

/* y, caches and all gradients, one after another. */
static result run_with(int threads, kr_dtype dtype, int family, kr_dtype x_dtype, int64_t ns)
{
    kr_ctx *ctx = kr_test_ctx(threads, NULL);
    const bidi_blocks blocks = bidi_blocks_of(dtype);
    kr_bidi_config c = bidi_small(&blocks, family);
    c.n_virtual = 6;
    c.merge = KR_BIDI_MERGE_CAT_LINEAR;
    c.residual = (kr_residual){
        .kind = KR_RESIDUAL_MULTI_GATE, .n_stream = 3, .init_bias = -1, .init_bias_step = 0.5, .per_virtual_layer = true
    };
    c.n_latents = 2;
    c.latents = ends;
    kr_bidi *bidi = seeded(ctx, &c);
    const kr_params *params = kr_bidi_params(bidi);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    const int64_t nx = NB * ns * BIDI_ND;
    double *noise = malloc((size_t)nx * sizeof *noise);
    if (!noise) exit(2);
    for (int64_t i = 0; i < nx; i++) noise[i] = sin(2.1 * (double)i) + cos(0.37 * (double)(i * i % 101));
    kr_tensor *x = kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(NB, ns, BIDI_ND), noise);
    free(noise);
    const kr_bidi_out out = kr_bidi_forward(tape, bidi, kr_cast(tape, x, x_dtype), NULL);
    CHECK(kr_tensor_dtype(out.y) == (x_dtype == KR_DTYPE_F64 ? KR_DTYPE_F64 : KR_DTYPE_F32),
          "halves are added up in f32");
    kr_backward(tape, differences_weigh(tape, out.y, 0));
    kr_tensor *list[256];
    int n = 0;
    list[n++] = out.y;
    for (int v = 0; out.caches && v < 6; v++)
        for (int i = 0; i < kr_cache_count(c.block.family); i++) list[n++] = out.caches[v].tensors[i];
    for (int64_t i = 0; i < kr_params_count(params) && n < 256; i++)
        if (kr_grad(kr_params_at(params, i)->tensor)) list[n++] = kr_grad(kr_params_at(params, i)->tensor);
    result r = { 0, NULL };
    for (int i = 0; i < n; i++) r.count += kr_tensor_count(list[i]);
    r.values = malloc((size_t)(r.count + 1) * sizeof *r.values);
    if (!r.values) exit(2);
    double *at = r.values;
    for (int i = 0; i < n; i++) {
        kr_tensor_read(list[i], KR_DTYPE_F64, at, kr_tensor_count(list[i]));
        at += kr_tensor_count(list[i]);
    }
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    kr_bidi_destroy(bidi);
    kr_ctx_destroy(ctx);
    return r;
}

TEST(bidi_threads)
{
    const int64_t ns = kr_test_quick() ? 200 : 1000; /* so long that work is shared out */
    for (int family = 0; family < BIDI_FAMILIES; family++) {
        const result one = run_with(1, KR_DTYPE_F32, family, KR_DTYPE_F32, ns);
        for (int threads = 2; threads <= 5; threads += 3) {
            const result many = run_with(threads, KR_DTYPE_F32, family, KR_DTYPE_F32, ns);
            CHECK(many.count == one.count &&
                      memcmp(many.values, one.values, (size_t)one.count * sizeof *one.values) == 0,
                  "family %d: %d threads give other bits", family, threads);
            free(many.values);
        }
        free(one.values);
    }
}

/* f32 against f64: three pairs of some hundred roundings of 2^-24 each; halves keep 8 or 11 bits of each weight. Values
 * and gradients are compared by the largest of all. */
TEST(types)
{
    const struct {
        kr_dtype block, x;
        double tolerance;
    } cases[] = { { KR_DTYPE_F32, KR_DTYPE_F32, 2e-5 },
                  { KR_DTYPE_BF16, KR_DTYPE_BF16, 0.1 },
                  { KR_DTYPE_BF16, KR_DTYPE_F32, 0.1 },
                  { KR_DTYPE_F16, KR_DTYPE_F16, 0.01 },
                  { KR_DTYPE_F32, KR_DTYPE_BF16, 0.1 } };
    for (int family = 0; family < BIDI_FAMILIES; family++) {
        const result want = run_with(1, KR_DTYPE_F64, family, KR_DTYPE_F64, 40);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            const result got = run_with(1, cases[i].block, family, cases[i].x, 40);
            char what[64];
            snprintf(what, sizeof what, "family %d, %s block, %s x", family, kr_dtype_name(cases[i].block),
                     kr_dtype_name(cases[i].x));
            if (CHECK(got.count == want.count, "%s: %lld results", what, (long long)got.count))
                CHECK_CLOSE(what, got.values, want.values, want.count, NULL, cases[i].tolerance, 1);
            free(got.values);
        }
        free(want.values);
    }
}
