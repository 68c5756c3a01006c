/* mamba3_variants.c - small Mamba-3 blocks, one for each thing that a config can ask for, and some of them together. */
#include "tests/nn/mamba3_reference.h"

static void base(kr_mamba3_config *c)
{
    kr_mamba3_config_init(c);
    c->d_model = 12;
    c->per_head_dim = 6;
    c->state_rank = 8;
    c->rope_fraction = 1;
    c->path.chunk_len = 4;
}

static void groups(kr_mamba3_config *c)
{
    c->n_groups = 2;
}
static void mimo(kr_mamba3_config *c)
{
    c->is_mimo = true;
    c->mimo_rank = 2;
}
static void mimo_groups(kr_mamba3_config *c)
{
    mimo(c);
    groups(c);
}
static void mimo_of_one(kr_mamba3_config *c)
{
    mimo(c);
    c->mimo_rank = 1;
}
static void still(kr_mamba3_config *c)
{
    c->rope_fraction = 0;
}
static void half(kr_mamba3_config *c)
{
    c->rope_fraction = 0.5;
}
static void mimo_still(kr_mamba3_config *c)
{
    mimo(c);
    still(c);
}
static void mimo_half(kr_mamba3_config *c)
{
    mimo(c);
    half(c);
}
static void norm(kr_mamba3_config *c)
{
    c->has_outproj_norm = true;
}
static void norm_shared(kr_mamba3_config *c)
{
    norm(c);
    c->has_shared_norm_gain = true;
}
static void mimo_norm(kr_mamba3_config *c)
{
    mimo(c);
    norm(c);
}
static void softplus_rates(kr_mamba3_config *c)
{
    c->a_activation = KR_A_ACTIVATION_SOFTPLUS;
}
static void biased(kr_mamba3_config *c)
{
    c->has_proj_bias = true;
}
static void limited(kr_mamba3_config *c)
{
    c->dt_limit_min = 0.5;
    c->dt_limit_max = 0.9;
}
static void far(kr_mamba3_config *c)
{
    c->rotation_range = 2;
}
static void quaternion(kr_mamba3_config *c)
{
    c->rotation = KR_ROTATION_QUATERNION;
}
static void quaternion_half(kr_mamba3_config *c)
{
    quaternion(c);
    half(c);
}
static void quaternion_still(kr_mamba3_config *c)
{
    quaternion(c);
    still(c);
}
static void quaternion_mimo(kr_mamba3_config *c)
{
    quaternion(c);
    mimo_groups(c);
    c->rotation_range = 1.4;
}
static void learned(kr_mamba3_config *c)
{
    c->has_learnable_init_state = true;
}
static void everything(kr_mamba3_config *c)
{
    mimo_groups(c);
    mimo_half(c);
    norm(c);
    softplus_rates(c);
    biased(c);
    learned(c);
    c->rotation_range = 1.4;
    c->norm_eps = 1e-3;
    c->a_floor = 0.4;
}

static const struct {
    const char *name;
    void (*set)(kr_mamba3_config *c);
} recipes[] = { { "base", NULL },
                { "ngroups 2", groups },
                { "mimo 2", mimo },
                { "mimo 2, n_groups 2", mimo_groups },
                { "is_mimo of rank 1", mimo_of_one },
                { "rope 0", still },
                { "rope 0.5", half },
                { "mimo, rope 0", mimo_still },
                { "mimo, rope 0.5", mimo_half },
                { "out-norm", norm },
                { "out-norm, shared gain", norm_shared },
                { "mimo, out-norm", mimo_norm },
                { "softplus rates", softplus_rates },
                { "projection bias", biased },
                { "limited steps", limited },
                { "range 2", far },
                { "quaternion", quaternion },
                { "quaternion, rope 0.5", quaternion_half },
                { "quaternion, rope 0", quaternion_still },
                { "quaternion, mimo, n_groups 2", quaternion_mimo },
                { "learned state", learned },
                { "everything", everything } };

const variant *variant_at(int i)
{
    static variant v;
    if (i < 0 || i >= (int)(sizeof recipes / sizeof *recipes)) return NULL;
    v.name = recipes[i].name;
    base(&v.config);
    if (recipes[i].set) recipes[i].set(&v.config);
    return &v;
}

kr_mamba3 *shaken_block(kr_ctx *ctx, const kr_mamba3_config *config, kr_dtype dtype)
{
    kr_mamba3_config own = *config;
    own.dtype = dtype;
    kr_mamba3 *block = kr_mamba3_create(ctx, &own);
    const kr_params *params = kr_mamba3_params(block);
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_param_row *row = kr_params_at(params, i);
        const int64_t count = kr_tensor_count(row->tensor);
        const bool is_matrix = strstr(row->name, "_proj.weight") != NULL, is_step = strcmp(row->name, "dt_bias") == 0;
        double *values = kr_test_values(row->tensor);
        for (int64_t k = 0; k < count; k++)
            values[k] = is_step     ? kr_test_uniform(-1, 1)
                        : is_matrix ? 0.4 * kr_test_normal()
                                    : values[k] + 0.4 * kr_test_normal();
        kr_param_write(row->tensor, KR_DTYPE_F64, values, count);
        free(values);
    }
    CHECK_OK(ctx);
    return block;
}
