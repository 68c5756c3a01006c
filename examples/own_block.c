/* own_block.c - a family of blocks that the library does not have: a gated moving average. Two layers of it learn a text,
 * are saved as a model folder, loaded again, and continue the text from a saved state.
 *
 *   u, z = in_proj(x);   h_t = a h_(t-1) + (1 - a) u_t;   y = out_proj(h silu(z))        a = exp(-softplus(rate))
 */
#include <krait/krait.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 200, BATCH = 8, LENGTH = 64 };

/* ---- the family ---- */

typedef struct average_config {
    kr_config_head head; /* size, dtype, d_model */
    int64_t expand;
    double rate; /* before softplus, at the beginning */
    bool is_gated;
} average_config;

static const kr_config_field fields[] = {
    { .name = "expand",
      .kind = KR_FIELD_INTEGER,
      .offset = offsetof(average_config, expand),
      .value = 2,
      .least = 1,
      .most = 64 },
    { .name = "rate", .kind = KR_FIELD_NUMBER, .offset = offsetof(average_config, rate), .value = -1 },
    { .name = "is_gated", .kind = KR_FIELD_BOOL, .offset = offsetof(average_config, is_gated), .value = 1 },
};
static const char *const cache_names[] = { "mean" };

typedef struct average {
    int64_t ni;
    bool is_gated;
    kr_dtype small; /* of rate and cache */
    kr_tensor *in_proj, *rate_i, *out_proj;
} average;

static void *average_create(void *user, kr_ctx *ctx, kr_params *params, const void *config, kr_block_spec *spec)
{
    const average_config *c = config;
    const int64_t nd = c->head.d_model, ni = c->expand * nd;
    average *m = calloc(1, sizeof *m);
    (void)user;
    if (!m) {
        kr_ctx_fail(ctx, KR_ERR_NOMEM, "average.create: no memory for a block");
        return NULL;
    }
    m->ni = ni;
    m->is_gated = c->is_gated;
    m->small = c->head.dtype == KR_DTYPE_F64 ? KR_DTYPE_F64 : KR_DTYPE_F32;
    kr_param_options rate, out;
    kr_param_options_init(&rate);
    rate.axes = "i";
    rate.init = (kr_init){ KR_INIT_RAMP, c->rate, 4 / (double)ni, 0 }; /* short memories and long ones */
    kr_param_options_init(&out);
    out.axes = "d i";
    out.init = (kr_init){ KR_INIT_NORMAL, 0, 0.02, 0 };
    out.has_decay = out.is_linear = out.is_residual_out = true;
    m->in_proj = kr_params_linear(params, "in_proj", c->head.dtype, m->is_gated ? 2 * ni : ni, nd, NULL);
    m->rate_i = kr_params_make(params, "rate", m->small, KR_SHAPE(ni), &rate);
    m->out_proj = kr_params_make(params, "out_proj.weight", c->head.dtype, KR_SHAPE(nd, ni), &out);
    spec->cache_shape[0] = KR_SHAPE(ni, 1);
    spec->token_elements = 4 * ni;
    return m; /* after an error the library calls average_destroy */
}

static void average_destroy(void *user, void *block)
{
    (void)user;
    free(block);
}

/* -softplus(rate): the logarithm of a. */
static kr_tensor *log_decay(kr_tape *tape, const average *m)
{
    return kr_neg(tape, kr_softplus(tape, m->rate_i));
}

/* u and z of x, whatever its leading axes. */
static void project(kr_tape *tape, const average *m, kr_tensor *x, kr_tensor *part[2])
{
    const int64_t sizes[2] = { m->ni, m->ni };
    kr_tensor *both = kr_cast(tape, kr_linear(tape, x, m->in_proj, NULL), m->small);
    part[0] = both;
    part[1] = NULL;
    if (m->is_gated) kr_split(tape, both, -1, 2, sizes, part);
}

/* The recurrence is a selective scan with dt, B and C of 1, for single rows and for packed ones. */
static kr_block_out average_forward(void *user, kr_tape *tape, const void *block, const kr_block_args *args)
{
    const average *m = block;
    const int64_t nb = kr_tensor_dim(args->x_bsd, 0), ns = kr_tensor_dim(args->x_bsd, 1);
    kr_tensor *part[2], *log_a_i = log_decay(tape, m);
    kr_tensor *weight_i = kr_affine(tape, kr_exp(tape, log_a_i), -1, 1); /* 1 - a */
    kr_tensor *one_bs11 = kr_full(tape, m->small, KR_SHAPE(nb, ns, 1, 1), 1);
    kr_block_out out = { .y = NULL };
    (void)user;
    project(tape, m, args->x_bsd, part);
    const kr_selective_scan_input in = { .x_bsi = kr_mul(tape, part[0], weight_i),
                                         .dt_bsi = kr_full(tape, m->small, KR_SHAPE(nb, ns, m->ni), 1),
                                         .a_ir = kr_reshape(tape, log_a_i, KR_SHAPE(m->ni, 1)),
                                         .b_bsgr = one_bs11,
                                         .c_bsgr = one_bs11,
                                         .z_bsi = part[1],
                                         .initial_state_bir = args->cache[0],
                                         .seq_start_bs = args->seq_start_bs };
    const kr_scan_out scan = kr_selective_scan(tape, &in);
    out.y = kr_linear(tape, scan.y_bsi, m->out_proj, NULL);
    out.cache.tensors[0] = scan.final_state;
    return out;
}

/* The mean of a constant input is the input. */
static kr_tensor *average_infinite(void *user, kr_tape *tape, const void *block, kr_tensor *x_bd)
{
    const average *m = block;
    kr_tensor *part[2];
    (void)user;
    project(tape, m, x_bd, part);
    kr_tensor *h = part[1] ? kr_gate(tape, part[0], part[1]) : part[0];
    return kr_linear(tape, h, m->out_proj, NULL);
}

static kr_family register_average(kr_ctx *ctx)
{
    kr_family family = KR_FAMILY_NONE;
    kr_block_kind_info info;
    kr_block_kind_info_init(&info);
    info.name = "average";
    info.config_bytes = sizeof(average_config);
    info.n_fields = sizeof fields / sizeof *fields;
    info.fields = fields;
    info.n_cache = 1;
    info.cache_names = cache_names;
    info.has_packed_rows = true;
    info.has_fixed_steps = true;
    info.create = average_create;
    info.destroy = average_destroy;
    info.forward = average_forward;
    info.step_infinite = average_infinite;
    kr_block_kind_register(ctx, &info, &family);
    return family;
}

/* ---- a model of it ---- */

static const char text[] = "the quick brown fox jumps over the lazy dog; ";

static kr_model *make_model(kr_ctx *ctx, kr_family family)
{
    average_config own;
    kr_model_config *config = kr_model_config_create(ctx);
    if (!config || kr_block_config_init(ctx, family, &own, sizeof own) != KR_OK) {
        kr_model_config_destroy(config);
        return NULL;
    }
    config->family = family;
    config->registered = &own;
    kr_model_config_set_d_model(config, 48);
    config->layers->n_layers = 2;
    config->network->vocab_size = 256;
    kr_model *model = kr_model_create(ctx, config);
    kr_model_config_destroy(config);
    return model;
}

static bool train(kr_ctx *ctx, kr_model *model, const kr_tokenizer *tok)
{
    static char corpus[40 * sizeof text];
    size_t n = 0;
    for (int i = 0; i < 40; i++) n += (size_t)snprintf(corpus + n, sizeof corpus - n, "%s", text);
    kr_loader_options loading;
    kr_loader_options_init(&loading);
    loading.batch = BATCH;
    loading.length = LENGTH;
    kr_source *source = kr_source_string(ctx, corpus, n, tok, NULL);
    kr_loader *loader = kr_loader_create(source, &loading);
    kr_lr_schedule schedule;
    kr_lr_schedule_init(&schedule);
    schedule.max_lr = 1e-2;
    kr_train_options training;
    kr_train_options_init(&training);
    training.steps = STEPS;
    training.schedule = &schedule;
    kr_trainer *trainer = kr_trainer_create(ctx, model, loader, &training);
    const bool done = kr_trainer_run(trainer) == KR_OK;
    kr_trainer_destroy(trainer);
    kr_loader_destroy(loader);
    kr_source_destroy(source);
    return done;
}

/* ---- generation, from a state that was saved and loaded ---- */

static int32_t most_likely(const kr_tensor *logits_bw)
{
    float logits[256];
    int32_t best = 0;
    if (kr_tensor_read(logits_bw, KR_DTYPE_F32, logits, 256) != KR_OK) return 0;
    for (int32_t i = 1; i < 256; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* Reads one token and updates the state; the next one. */
static int32_t step(kr_tape *tape, const kr_network *net, kr_state *state, int32_t id)
{
    kr_call call;
    kr_call_init(&call);
    call.advance = state;
    const int32_t next =
        most_likely(kr_network_step(tape, net, kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(1), &id), &call).y);
    kr_tape_reset(tape);
    return next;
}

static void generate(kr_ctx *ctx, const kr_network *net)
{
    static const char prompt[] = "the quick brown";
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_state *state = kr_network_state(net, 1), *loaded = NULL;
    int32_t id = 0;
    for (const char *at = prompt; *at; at++) id = step(tape, net, state, (unsigned char)*at);
    if (kr_state_save(state, net, "average.state") == KR_OK) loaded = kr_state_load(ctx, net, "average.state");
    printf("%s|", prompt);
    for (int i = 0; loaded && i < 28; i++) {
        putchar(id);
        id = step(tape, net, loaded, id);
    }
    putchar('\n');
    kr_state_destroy(loaded);
    kr_state_destroy(state);
    kr_tape_destroy(tape);
}

int main(void)
{
    kr_ctx *ctx = kr_ctx_create(NULL);
    kr_ctx_seed(ctx, 1);
    kr_tokenizer *tok = kr_tokenizer_bytes(ctx);
    const kr_family family = register_average(ctx);
    kr_model *model = make_model(ctx, family), *loaded = NULL;
    if (model && train(ctx, model, tok) && kr_model_save(model, "average-model", NULL) == KR_OK)
        loaded = kr_model_load(ctx, "average-model", NULL); /* config.json has the name "average" */
    if (loaded) generate(ctx, kr_model_network(loaded));
    const bool failed = kr_ctx_failed(ctx);
    if (failed) fprintf(stderr, "krait: %s\n", kr_ctx_message(ctx));
    remove("average.state");
    remove("average-model/config.json");
    remove("average-model/model.safetensors");
    remove("average-model");
    kr_model_destroy(loaded);
    kr_model_destroy(model);
    kr_tokenizer_destroy(tok);
    kr_ctx_destroy(ctx);
    return failed;
}
