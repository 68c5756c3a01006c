/* mamba2_variants.h - Mamba-2 blocks of small sizes, each with one thing that the others do not have. */
#ifndef KR_TESTS_NN_MAMBA2_VARIANTS_H
#define KR_TESTS_NN_MAMBA2_VARIANTS_H

#include <krait/block.h>

typedef struct mamba2_variant {
    const char *name;
    kr_mamba2_config config;
} mamba2_variant;

enum { MAMBA2_VARIANTS = 17 };

static inline kr_mamba2_config mamba2_small(void)
{
    kr_mamba2_config c;
    kr_mamba2_config_init(&c);
    c.d_model = 32;
    c.state_rank = 8;
    c.per_head_dim = 8;
    return c;
}

static inline mamba2_variant mamba2_variant_at(int i)
{
    mamba2_variant v = { "base", mamba2_small() };
    kr_mamba2_config *c = &v.config;
    switch (i) {
    case 1: v.name = "ngroups 2", c->n_groups = 2, c->per_head_dim = 16; break;
    case 2: v.name = "norm before gate", c->norm_before_gate = true; break;
    case 3: v.name = "no norm", c->has_norm = false; break;
    case 4: v.name = "norm of the whole width, n_groups 2", c->n_groups = 2, c->norm_per_group = false; break;
    case 5: v.name = "d_ssm 40", c->d_ssm = 40; break;
    case 6: v.name = "D per channel", c->has_d_per_dim = true; break;
    case 7: v.name = "conv_kernel 1", c->conv_kernel = 1; break;
    case 8: v.name = "conv_kernel 2", c->conv_kernel = 2; break;
    case 9: v.name = "no conv bias", c->has_conv_bias = false; break;
    case 10: v.name = "proj bias", c->has_proj_bias = true; break;
    case 11: v.name = "dt limits", c->dt_limit_min = 0.04, c->dt_limit_max = 0.12; break;
    case 12: v.name = "learned initial state", c->has_learnable_init_state = true; break;
    case 13: v.name = "expand 1", c->expand = 1; break;
    case 14: v.name = "one wide head, state 5", c->per_head_dim = 64, c->state_rank = 5; break;
    case 15: v.name = "norm before gate, n_groups 4", c->n_groups = 4, c->norm_before_gate = true; break;
    case 16:
        v.name = "all together";
        c->d_ssm = 48;
        c->n_groups = 2;
        c->has_d_per_dim = c->has_proj_bias = c->has_learnable_init_state = true;
        c->norm_eps = 0.1;
        break;
    default: break;
    }
    return v;
}

#endif
