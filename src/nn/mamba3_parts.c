/* mamba3_parts.c - input and output side of a Mamba-3 block: projections, norms, step coefficients, gate.
 *
 *   [z x B C dt A lambda rotation] = u W_in        V[m] = x mimo_x[m]
 *   B = rms_norm(B) gain + bias, C likewise; step coefficients: kr_trapezoid
 *   o[m] = norm(y[m]) silu(z mimo_z[m]), norm over the channels of a head, or none;   out = sum_m mimo_o[m] o[m]  W_out
 */
#include "nn/mamba3_impl.h"

#include "nn/block_config.h"

/* A parameter [h m p] as rows [m i]. */
static kr_tensor *by_rank(kr_tape *tape, const kr_mamba3 *m, kr_tensor *x_hmp)
{
    return kr_reshape(tape, kr_permute(tape, x_hmp, KR_AXES(1, 0, 2)), KR_SHAPE(m->nm, m->ni));
}

/* x [b s i] times each of the rows [m i]: [b s m i]. */
static kr_tensor *times_rows(kr_tape *tape, const kr_mamba3 *m, kr_tensor *x, kr_tensor *rows_hmp, int64_t nb,
                             int64_t ns)
{
    return kr_mul(tape, kr_reshape(tape, x, KR_SHAPE(nb, ns, 1, m->ni)), by_rank(tape, m, rows_hmp));
}

kr_tensor *kr_mamba3_values(kr_tape *tape, const kr_mamba3 *m, kr_tensor *x, int64_t nb, int64_t ns)
{
    if (m->config.is_mimo) x = times_rows(tape, m, x, m->mimo_x_hmp, nb, ns);
    return kr_reshape(tape, x, KR_SHAPE(nb, ns, m->nm, m->nh, m->config.per_head_dim));
}

kr_tensor *kr_mamba3_maps(kr_tape *tape, const kr_mamba3 *m, kr_tensor *raw_bsmgr, kr_tensor *gain_r,
                          kr_tensor *bias_hmr)
{
    return kr_qk_norm(tape, raw_bsmgr, gain_r, bias_hmr, m->nh, m->config.norm_eps);
}

kr_mamba3_tokens kr_mamba3_project(kr_tape *tape, const kr_mamba3 *m, kr_tensor *u_bsd, int64_t nb, int64_t ns,
                                   bool autocasts)
{
    enum { Z, X, B, C, DT, A, LAMBDA, ROTATION, NPARTS };
    const kr_mamba3_config *c = &m->config;
    const int64_t nh = m->nh, nm = m->nm, ng = c->n_groups, nr = c->state_rank, nmgr = nm * ng * nr;
    const int64_t sizes[NPARTS] = { m->ni, m->ni, nmgr, nmgr, nh, nh, nh, m->nchannel };
    kr_tensor *part[NPARTS] = { NULL };
    if (!kr_linear_parts(tape, u_bsd, m->in_proj, m->in_proj_bias, NPARTS, sizes, autocasts ? X : -1, part))
        return (kr_mamba3_tokens){ .nb = nb, .ns = ns };
    if (c->rotation == KR_ROTATION_QUATERNION)
        part[ROTATION] = kr_reshape(tape, part[ROTATION], KR_SHAPE(nb, ns, nh, m->nrotations, 3));

    const kr_shape bc_shape = KR_SHAPE(nb, ns, nm, ng, nr);
    kr_tensor *x = part[X];
    if (!x->flags.grad_f32) x = kr_cast(tape, x, kr_config_small_dtype(kr_tensor_dtype(x)));
    return (kr_mamba3_tokens){
        .nb = nb,
        .ns = ns,
        .z_bsi = part[Z],
        .x_bsi = x,
        .v_bsmhp = kr_mamba3_values(tape, m, x, nb, ns),
        .b_bsmgr = kr_reshape(tape, part[B], bc_shape),
        .c_bsmgr = kr_reshape(tape, part[C], bc_shape),
        .rotation = part[ROTATION],
        .step = kr_trapezoid(tape, part[DT], m->dt_bias_h, part[A], part[LAMBDA], &m->steps),
    };
}

kr_tensor *kr_mamba3_add_skip(kr_tape *tape, const kr_mamba3 *m, kr_tensor *y_bsmhp, kr_tensor *v_bsmhp)
{
    return kr_add(tape, y_bsmhp, kr_mul(tape, v_bsmhp, kr_reshape(tape, m->d_h, KR_SHAPE(m->nh, 1))));
}

/* The gain of the output norm for each channel; a shared one is repeated for every head. */
static kr_tensor *norm_gain(kr_tape *tape, const kr_mamba3 *m)
{
    if (!m->config.has_shared_norm_gain) return m->norm_gain;
    kr_tensor *gain_hp = kr_expand(tape, m->norm_gain, KR_SHAPE(m->nh, m->config.per_head_dim));
    return kr_reshape(tape, gain_hp, KR_SHAPE(m->ni));
}

kr_tensor *kr_mamba3_finish(kr_tape *tape, const kr_mamba3 *m, kr_tensor *y_bsmhp, const kr_mamba3_tokens *tokens)
{
    const kr_mamba3_config *c = &m->config;
    const int64_t nb = tokens->nb, ns = tokens->ns;
    kr_tensor *z = c->is_mimo ? times_rows(tape, m, tokens->z_bsi, m->mimo_z_hmp, nb, ns) : tokens->z_bsi;
    kr_tensor *y = kr_reshape(tape, y_bsmhp, c->is_mimo ? KR_SHAPE(nb, ns, m->nm, m->ni) : KR_SHAPE(nb, ns, m->ni));
    if (!c->is_mimo) {
        y = c->has_outproj_norm ? kr_norm_operand(tape, y, z, norm_gain(tape, m), &m->norm)
                                : kr_gate_operand(tape, y, z);
        return kr_linear(tape, y, m->out_proj, m->out_proj_bias);
    }
    y = c->has_outproj_norm ? kr_gated_norm(tape, y, z, norm_gain(tape, m), &m->norm) : kr_gate(tape, y, z);
    y = kr_sum(tape, kr_mul(tape, y, by_rank(tape, m, m->mimo_o_hmp)), KR_AXES(2), false);
    return kr_linear(tape, y, m->out_proj, m->out_proj_bias);
}
