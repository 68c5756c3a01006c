/* own_kinds.h - families that a program could register, for tests: a gated moving average with and without packed rows, a
 * delay line whose caches change places, and a block without a cache.
 */
#ifndef KR_TESTS_NN_OWN_KINDS_H
#define KR_TESTS_NN_OWN_KINDS_H

#include "tests/harness.h"

#include <stdatomic.h>
#include <stddef.h>

typedef struct own_config {
    kr_config_head head;
    int64_t expand;
    double rate;
    bool is_gated;
    const char *label;
} own_config;

typedef struct own_block {
    int64_t ni, nd;
    bool is_gated;
    kr_dtype small;
    kr_tensor *in_proj, *in_bias, *rate_i, *out_proj;
} own_block;

/* What the functions of the families do wrong, set by a test; 0: nothing. And how often they were called. */
typedef enum own_fault {
    OWN_RIGHT,
    OWN_NULL_BLOCK,
    OWN_ERROR_IN_CREATE,
    OWN_NO_CACHE_SIZE,
    OWN_TWICE_THE_NAME,
    OWN_WRITES_A_PARAMETER,
    OWN_READS_A_PARAMETER,
    OWN_SHARES_A_PARAMETER,
    OWN_JOINS_A_TABLE,
    OWN_NULL_Y,
    OWN_SHORT_Y,
    OWN_NULL_CACHE,
    OWN_WRONG_CACHE,
    OWN_WRONG_TYPE,
    OWN_RESERVED,
    OWN_ERROR_IN_FORWARD
} own_fault;
static own_fault own_wrong;
static atomic_int own_live, own_calls; /* of all threads */

static const kr_config_field own_fields[] = {
    { .name = "expand",
      .kind = KR_FIELD_INTEGER,
      .offset = offsetof(own_config, expand),
      .value = 2,
      .least = 1,
      .most = 16 },
    { .name = "rate",
      .kind = KR_FIELD_NUMBER,
      .offset = offsetof(own_config, rate),
      .value = -0.5,
      .least = -8,
      .most = 8 },
    { .name = "is_gated", .kind = KR_FIELD_BOOL, .offset = offsetof(own_config, is_gated), .value = 1 },
    { .name = "label", .kind = KR_FIELD_TEXT, .offset = offsetof(own_config, label), .text = "plain" },
};

static inline void *own_misuse(kr_ctx *ctx, kr_params *params, own_block *m)
{
    switch (own_wrong) {
    case OWN_ERROR_IN_CREATE: kr_ctx_fail(ctx, KR_ERR_ARG, "own: no such average"); break;
    case OWN_TWICE_THE_NAME: kr_params_make(params, "rate", KR_DTYPE_F32, KR_SHAPE(1), NULL); break;
    case OWN_WRITES_A_PARAMETER: kr_param_fill(m->rate_i, 1); break;
    case OWN_READS_A_PARAMETER: (void)kr_tensor_at(m->rate_i, (int64_t[]){ 0 }); break;
    case OWN_SHARES_A_PARAMETER: kr_params_share(params, "other", m->rate_i, NULL); break;
    case OWN_JOINS_A_TABLE: {
        kr_params *other = kr_params_create(ctx);
        kr_params_join(params, "other.", other);
        kr_params_destroy(other);
        break;
    }
    default: break;
    }
    return m;
}

static inline void *own_create(void *user, kr_ctx *ctx, kr_params *params, const void *config, kr_block_spec *spec)
{
    const own_config *c = config;
    (void)user;
    if (own_wrong == OWN_NULL_BLOCK) return NULL;
    own_block *m = calloc(1, sizeof *m);
    if (!m) exit(2);
    own_live++;
    m->nd = c->head.d_model;
    m->ni = c->expand * m->nd;
    m->is_gated = c->is_gated;
    m->small = c->head.dtype == KR_DTYPE_F64 ? KR_DTYPE_F64 : KR_DTYPE_F32;
    kr_param_options rate, out;
    kr_param_options_init(&rate);
    rate.axes = "i";
    rate.init = (kr_init){ KR_INIT_RAMP, c->rate, 0.1, 0 };
    kr_param_options_init(&out);
    out.axes = "d i";
    out.init = (kr_init){ KR_INIT_NORMAL, 0, 0.2, 0 };
    out.has_decay = out.is_linear = out.is_residual_out = true;
    m->in_proj =
        kr_params_linear(params, "in_proj", c->head.dtype, m->is_gated ? 2 * m->ni : m->ni, m->nd, &m->in_bias);
    m->rate_i = kr_params_make(params, "rate", m->small, KR_SHAPE(m->ni), &rate);
    m->out_proj = kr_params_make(params, "out_proj.weight", c->head.dtype, KR_SHAPE(m->nd, m->ni), &out);
    if (own_wrong != OWN_NO_CACHE_SIZE) spec->cache_shape[0] = KR_SHAPE(m->ni, 1);
    else spec->cache_shape[0] = KR_SHAPE(0, 1);
    spec->token_elements = 4 * m->ni;
    return own_misuse(ctx, params, m);
}

static inline void own_destroy(void *user, void *block)
{
    (void)user;
    own_live--;
    free(block);
}

static inline void own_project(kr_tape *tape, const own_block *m, kr_tensor *x, kr_tensor *part[2])
{
    const int64_t sizes[2] = { m->ni, m->ni };
    part[0] = kr_cast(tape, kr_linear(tape, x, m->in_proj, m->in_bias), m->small);
    part[1] = NULL;
    if (m->is_gated) kr_split(tape, part[0], -1, 2, sizes, part);
}

static inline kr_block_out own_faulty(kr_tape *tape, kr_block_out out)
{
    kr_tensor *cache = out.cache.tensors[0];
    switch (own_wrong) {
    case OWN_NULL_Y: out.y = NULL; break;
    case OWN_SHORT_Y: out.y = kr_slice(tape, out.y, 1, 0, 1); break;
    case OWN_NULL_CACHE: out.cache.tensors[0] = NULL; break;
    case OWN_WRONG_CACHE: out.cache.tensors[0] = kr_reshape(tape, cache, KR_SHAPE(kr_tensor_dim(cache, 0), -1)); break;
    case OWN_WRONG_TYPE: out.cache.tensors[0] = kr_cast(tape, cache, KR_DTYPE_BF16); break;
    case OWN_RESERVED: out.reserved[1] = &out; break;
    case OWN_ERROR_IN_FORWARD: kr_ctx_fail(kr_tape_ctx(tape), KR_ERR_ARG, "own: no such token"); break;
    default: break;
    }
    return out;
}

/* h_t = a h_(t-1) + u_t;  y = out_proj(h silu(z)) */
static inline kr_block_out own_forward(void *user, kr_tape *tape, const void *block, const kr_block_args *args)
{
    const own_block *m = block;
    const int64_t nb = kr_tensor_dim(args->x_bsd, 0), ns = kr_tensor_dim(args->x_bsd, 1);
    kr_tensor *part[2], *one = kr_full(tape, m->small, KR_SHAPE(nb, ns, 1, 1), 1);
    kr_block_out out = { .y = NULL };
    (void)user;
    own_calls++;
    own_project(tape, m, args->x_bsd, part);
    const kr_selective_scan_input in = { .x_bsi = part[0],
                                         .dt_bsi = kr_full(tape, m->small, KR_SHAPE(nb, ns, m->ni), 1),
                                         .a_ir = kr_reshape(tape, kr_neg(tape, kr_softplus(tape, m->rate_i)),
                                                            KR_SHAPE(m->ni, 1)),
                                         .b_bsgr = one,
                                         .c_bsgr = one,
                                         .z_bsi = part[1],
                                         .initial_state_bir = args->cache[0],
                                         .seq_start_bs = args->seq_start_bs };
    const kr_scan_out scan = kr_selective_scan(tape, &in);
    out.y = kr_linear(tape, scan.y_bsi, m->out_proj, NULL);
    out.cache.tensors[0] = scan.final_state;
    return own_wrong ? own_faulty(tape, out) : out;
}

static inline kr_tensor *own_infinite(void *user, kr_tape *tape, const void *block, kr_tensor *x_bd)
{
    const own_block *m = block;
    kr_tensor *part[2];
    (void)user;
    own_project(tape, m, x_bd, part);
    kr_tensor *a_i = kr_exp(tape, kr_neg(tape, kr_softplus(tape, m->rate_i)));
    kr_tensor *h = kr_div(tape, part[0], kr_affine(tape, a_i, -1, 1));
    return kr_linear(tape, part[1] ? kr_gate(tape, h, part[1]) : h, m->out_proj, NULL);
}

/* ---- a delay line: y_t = W x_t + rate x_(t-2); after a step the older cache is a view of the younger one ---- */

static inline void *own_create_delay(void *user, kr_ctx *ctx, kr_params *params, const void *config,
                                     kr_block_spec *spec)
{
    const own_config *c = config;
    own_block *m = calloc(1, sizeof *m);
    (void)user, (void)ctx;
    if (!m) exit(2);
    own_live++;
    m->nd = c->head.d_model;
    m->small = c->head.dtype == KR_DTYPE_F64 ? KR_DTYPE_F64 : KR_DTYPE_F32;
    kr_param_options rate;
    kr_param_options_init(&rate);
    rate.init = (kr_init){ KR_INIT_FILL, c->rate, 0, 0 };
    m->in_proj = kr_params_linear(params, "in_proj", c->head.dtype, m->nd, m->nd, NULL);
    m->rate_i = kr_params_make(params, "rate", m->small, KR_SHAPE(m->nd), &rate);
    spec->cache_shape[0] = spec->cache_shape[1] = KR_SHAPE(m->nd);
    spec->cache_value[1] = 0.25;
    return m;
}

static inline kr_block_out own_forward_delay(void *user, kr_tape *tape, const void *block, const kr_block_args *args)
{
    const own_block *m = block;
    const int64_t nb = kr_tensor_dim(args->x_bsd, 0), ns = kr_tensor_dim(args->x_bsd, 1);
    const kr_shape one = KR_SHAPE(nb, 1, m->nd), row = KR_SHAPE(nb, m->nd);
    kr_tensor *x = kr_cast(tape, args->x_bsd, m->small);
    kr_tensor *all[3] = { kr_reshape(tape, args->cache[1], one), kr_reshape(tape, args->cache[0], one), x };
    kr_tensor *past = kr_concat(tape, 1, 3, all);
    kr_block_out out = { .y = NULL };
    (void)user;
    kr_tensor *y = kr_mul(tape, kr_slice(tape, past, 1, 0, ns), m->rate_i);
    out.y = kr_add(tape, y, kr_linear(tape, args->x_bsd, m->in_proj, NULL));
    out.cache.tensors[0] = kr_reshape(tape, kr_slice(tape, past, 1, ns + 1, ns + 2), row);
    out.cache.tensors[1] = ns == 1 ? args->cache[0] : kr_reshape(tape, kr_slice(tape, past, 1, ns, ns + 1), row);
    return out;
}

static inline bool own_initial_delay(void *user, kr_tape *tape, const void *block, int64_t batch, kr_tensor **cache)
{
    const own_block *m = block;
    (void)user;
    cache[0] = kr_zeros(tape, m->small, KR_SHAPE(batch, m->nd));
    cache[1] = kr_expand(tape, m->rate_i, KR_SHAPE(batch, m->nd)); /* learned */
    return true;
}

/* ---- a block without a cache ---- */

static inline kr_block_out own_forward_plain(void *user, kr_tape *tape, const void *block, const kr_block_args *args)
{
    const own_block *m = block;
    kr_block_out out = { .y = kr_linear(tape, args->x_bsd, m->in_proj, NULL) };
    (void)user;
    return out;
}

/* ---- registering them ---- */

static inline kr_block_kind_info own_info(void)
{
    static const char *const names[] = { "mean" };
    kr_block_kind_info info;
    kr_block_kind_info_init(&info);
    info.name = "own_average";
    info.config_bytes = sizeof(own_config);
    info.n_fields = sizeof own_fields / sizeof *own_fields;
    info.fields = own_fields;
    info.n_cache = 1;
    info.cache_names = names;
    info.create = own_create;
    info.destroy = own_destroy;
    info.forward = own_forward;
    info.step_infinite = own_infinite;
    return info;
}

static inline kr_block_kind_info own_delay_info(void)
{
    static const char *const names[] = { "last", "before" };
    kr_block_kind_info info = own_info();
    info.name = "own_delay";
    info.n_cache = 2;
    info.cache_names = names;
    info.create = own_create_delay;
    info.forward = own_forward_delay;
    info.initial_cache = own_initial_delay;
    info.step_infinite = NULL;
    return info;
}

static inline kr_family own_registered(kr_block_kind_info info)
{
    kr_family family = KR_FAMILY_NONE;
    kr_ctx *ctx = kr_ctx_create(NULL);
    CHECK(kr_block_kind_register(ctx, &info, &family) == KR_OK, "%s: %s", info.name, kr_ctx_message(ctx));
    kr_ctx_destroy(ctx);
    return family;
}

static inline kr_family own_average(void)
{
    return own_registered(own_info());
}

static inline kr_family own_packed(void)
{
    kr_block_kind_info info = own_info();
    info.name = "own_packed";
    info.has_packed_rows = info.has_fixed_steps = true;
    return own_registered(info);
}

static inline kr_family own_delay(void)
{
    return own_registered(own_delay_info());
}

static inline kr_family own_plain(void)
{
    kr_block_kind_info info = own_delay_info();
    info.name = "own_plain";
    info.n_cache = 0;
    info.cache_names = NULL;
    info.forward = own_forward_plain;
    info.initial_cache = NULL;
    return own_registered(info);
}

/* Its config, of a small width. */
static inline own_config own_small(kr_family family)
{
    own_config config;
    kr_ctx *ctx = kr_ctx_create(NULL);
    CHECK(kr_block_config_init(ctx, family, &config, sizeof config) == KR_OK, "%s", kr_ctx_message(ctx));
    kr_ctx_destroy(ctx);
    config.head.d_model = 8;
    return config;
}

#endif
