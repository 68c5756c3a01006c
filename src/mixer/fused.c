/* fused.c - SerialRecalculated: the core as one node that saves only its inputs.
 *
 *   v, y [b s m h p]   b, c [b s m g r]   da, w, diag_weight [b s h]   d [h]   initial, final [q h p r]
 *   boundary [q h]   boundary_v [q m h p]   boundary_b [q m h r]   angle [b s h a]   bias_b, bias_c [h m r]   carry [b s h]
 * Formulas and their gradients: kernels/args/ssd_args.h. Saved: the inputs; the backward kernel recomputes the states.
 * v, b and c may be strided parts of wider rows; they are read in place. If the core rounds them to bf16 they may be
 * passed as bf16, and y and the gradients of all four may be bf16 too, if all their readers round them (ops/autocast.h).
 */
#include "mixer/core.h"

#include <string.h>

enum { V, B, C, DA, W, SAME, D, INITIAL, ANGLE, BIAS_B, BIAS_C, BOUNDARY, BOUNDARY_V, BOUNDARY_B, NIN };

/* Attributes of the node: sizes and sequences. */
typedef struct sizes {
    int64_t nb, ns, nm, nh, np, ng, nr, nl;
    kr_sequences sequences;
    bool split_pairs; /* rotary pairs are (i, i + nr/2) */
} sizes;

/* Of H + boundary sum_m boundary_v[m] (outer) boundary_b[m], with G the gradient of the state before the first token:
 *   g_boundary_v[m] = boundary G boundary_b[m];   g_boundary_b[m] = boundary boundary_v[m] G
 *   g_boundary = sum_m <boundary_v[m], G boundary_b[m]> */
static void boundary_backward(kr_back *back, kr_tensor *g_qhpr)
{
    kr_tape *tape = kr_back_tape(back);
    const kr_axes swap = KR_AXES(0, 2, 1, 3);
    kr_tensor *v_qhmp = kr_permute(tape, kr_back_in(back, BOUNDARY_V), swap);
    kr_tensor *b_qhmr = kr_permute(tape, kr_back_in(back, BOUNDARY_B), swap);
    kr_tensor *boundary = kr_back_in(back, BOUNDARY);
    kr_tensor *boundary_qh11 =
        kr_reshape(tape, boundary, KR_SHAPE(kr_dim_of(boundary, 0), kr_dim_of(boundary, 1), 1, 1));
    if (kr_back_wants(back, BOUNDARY) || kr_back_wants(back, BOUNDARY_V)) {
        kr_tensor *gb_qhmp = kr_matmul(tape, b_qhmr, kr_transpose(tape, g_qhpr));
        kr_back_accumulate(back, BOUNDARY, kr_sum(tape, kr_mul(tape, v_qhmp, gb_qhmp), KR_AXES(2, 3), false));
        kr_back_accumulate(back, BOUNDARY_V, kr_permute(tape, kr_mul(tape, gb_qhmp, boundary_qh11), swap));
    }
    if (kr_back_wants(back, BOUNDARY_B))
        kr_back_accumulate(back, BOUNDARY_B,
                           kr_permute(tape, kr_matmul(tape, kr_mul(tape, v_qhmp, boundary_qh11), g_qhpr), swap));
}

/* Gradients of v, b and c that are written to fused buffers. Those of b and c are both bf16, or neither; neither with
 * rotary. */
static void find_slabs(kr_back *back, int64_t nm, kr_tensor **slab)
{
    const kr_ctx *ctx = kr_back_tape(back)->ctx;
    const bool takes_bf16 = kr_accepts(ctx, ssd_bwd_g_b, KR_DTYPE_BF16) && kr_accepts(ctx, ssd_bwd_g_c, KR_DTYPE_BF16);
    const bool is_bf16_slab = takes_bf16 && !kr_back_in(back, ANGLE) && kr_back_has_slab(back, B) &&
                              kr_slab_of(kr_back_in(back, B))->is_own && kr_back_has_slab(back, C) &&
                              kr_slab_of(kr_back_in(back, C))->is_own;
    slab[V] = nm == 1 ? KR_BACK_SLAB(back, V, ssd_bwd_g_v) : NULL;
    slab[B] = is_bf16_slab ? kr_back_slab(back, B) : NULL;
    slab[C] = is_bf16_slab ? kr_back_slab(back, C) : NULL;
}

/* The states before the first tokens, with the boundary added. */
static kr_tensor *initial_of(kr_back *back)
{
    kr_tensor *initial = kr_back_in(back, INITIAL), *boundary = kr_back_in(back, BOUNDARY);
    if (!boundary) return initial;
    return kr_boundary_state(kr_back_tape(back), initial, boundary, kr_back_in(back, BOUNDARY_V),
                             kr_back_in(back, BOUNDARY_B));
}

static void set_rotary(kr_ssd_bwd_args *args, kr_back *back, kr_tensor *const *g)
{
    args->angle = kr_tensor_data(kr_back_in(back, ANGLE));
    args->bias_b = kr_tensor_data(kr_back_in(back, BIAS_B));
    args->bias_c = kr_tensor_data(kr_back_in(back, BIAS_C));
    args->g_angle = kr_tensor_data(g[ANGLE]);
    args->g_bias_b = kr_tensor_data(g[BIAS_B]);
    args->g_bias_c = kr_tensor_data(g[BIAS_C]);
    args->na = kr_back_in(back, ANGLE)->dims[3];
    args->split_pairs = ((const sizes *)kr_back_attrs(back))->split_pairs;
}

static bool wants_boundary(kr_back *back)
{
    return kr_back_wants(back, BOUNDARY) || kr_back_wants(back, BOUNDARY_V) || kr_back_wants(back, BOUNDARY_B);
}

/* Tensors for the wanted gradients that are not written elsewhere: to a slab, or that of d to g_d. Those of the boundary
 * need that of the initial state. */
static void create_gradients(kr_back *back, kr_tensor *const *slab, const kr_tensor *g_d, kr_tensor **g)
{
    kr_tape *tape = kr_back_tape(back);
    const kr_dtype dtype = kr_grad_dtype(kr_back_in(back, V));
    for (int i = 0; i < BOUNDARY; i++)
        if (kr_back_wants(back, i) && !(g_d && i == D) && !slab[i])
            g[i] = kr_new(tape, dtype, kr_tensor_shape(kr_back_in(back, i)));
    if (wants_boundary(back) && !g[INITIAL]) g[INITIAL] = kr_new(tape, dtype, kr_tensor_shape(kr_back_out(back, 1)));
}

static void compute_gradients(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const sizes *n = kr_back_attrs(back);
    const kr_dtype dtype = kr_grad_dtype(kr_back_in(back, V));
    kr_tensor *g[NIN] = { NULL }, *slab[NIN] = { NULL };
    kr_tensor *g_d = kr_back_new(back, D);
    find_slabs(back, n->nm, slab);
    create_gradients(back, slab, g_d, g);
    const kr_tensor *initial = initial_of(back);
    kr_tensor *g_y = kr_back_grad(back, 0), *g_final = kr_back_grad(back, 1);
    g_y = g_y ? KR_AS_TAKEN(tape, ssd_bwd_g_y, kr_contiguous(tape, g_y))
              : kr_zeros(tape, dtype, kr_tensor_shape(kr_back_out(back, 0)));
    g_final = g_final ? kr_contiguous(tape, g_final) : NULL;
    const kr_tensor *v = KR_AS_TAKEN(tape, ssd_bwd_v, kr_back_in(back, V));
    const kr_tensor *b = KR_AS_TAKEN(tape, ssd_bwd_b, kr_back_in(back, B));
    const kr_tensor *c = KR_AS_TAKEN(tape, ssd_bwd_c, kr_back_in(back, C));
    if (kr_ctx_failed(tape->ctx)) return;
    kr_ssd_bwd_args args = { .nb = n->nb,
                             .ns = n->ns,
                             .nm = n->nm,
                             .nh = n->nh,
                             .np = n->np,
                             .ng = n->ng,
                             .nr = n->nr,
                             .nl = n->nl,
                             .nq = n->sequences.count,
                             .sequences = n->sequences.list,
                             .v = kr_token_operand(v),
                             .b = kr_token_operand(b),
                             .c = kr_token_operand(c),
                             .da = kr_tensor_data(kr_back_in(back, DA)),
                             .w = kr_tensor_data(kr_back_in(back, W)),
                             .diag_weight = kr_tensor_data(kr_back_in(back, SAME)),
                             .d = kr_tensor_data(kr_back_in(back, D)),
                             .initial = kr_tensor_data(initial),
                             .g_y = kr_token_operand(g_y),
                             .g_final = kr_tensor_data(g_final),
                             .g_v = kr_token_operand(slab[V] ? slab[V] : g[V]),
                             .g_b = kr_token_operand(slab[B] ? slab[B] : g[B]),
                             .g_c = kr_token_operand(slab[C] ? slab[C] : g[C]),
                             .g_da = kr_tensor_data(g[DA]),
                             .g_w = kr_tensor_data(g[W]),
                             .g_diag_weight = kr_tensor_data(g[SAME]),
                             .g_d = kr_tensor_data(g_d ? g_d : g[D]),
                             .g_initial = kr_tensor_data(g[INITIAL]) };
    if (kr_back_in(back, ANGLE)) set_rotary(&args, back, g);
    if (!KR_RUN(tape->ctx, ssd_bwd[kr_real_of(dtype)], &args)) return;
    for (int i = 0; i < BOUNDARY; i++) kr_back_accumulate(back, i, g[i]);
    if (wants_boundary(back)) boundary_backward(back, g[INITIAL]);
}

static void fused_backward(kr_back *back)
{
    compute_gradients(back);
    kr_slab_release(kr_back_tape(back), kr_slab_of(kr_back_out(back, 0)));
}

static const kr_rule fused_rule = { .name = "ssd", .backward = fused_backward };

/* Operands in the layout that the kernel reads; false after an error. Rotated operands are contiguous. */
static bool lay_out(kr_tape *tape, kr_tensor **in)
{
    for (int i = 0; i < NIN; i++) {
        const bool may_be_strided = i == V || (i <= C && !in[ANGLE]);
        if (in[i] && !may_be_strided) in[i] = kr_contiguous(tape, in[i]);
        int64_t stride;
        if (in[i] && i <= C) in[i] = kr_with_token_stride(tape, in[i], &stride);
    }
    return !kr_ctx_failed(tape->ctx);
}

kr_tensor *kr_final_states(kr_tape *tape, kr_dtype dtype, kr_shape shape, const kr_tensor *final)
{
    if (final && !tape->recording && final->dtype == dtype && kr_tensor_is_row_major(final)) {
        const kr_shape own_shape = kr_tensor_shape(final);
        if (kr_shape_equal(&own_shape, &shape)) return kr_view_of(tape, final, &shape, final->strides, 0);
    }
    return kr_new(tape, dtype, shape);
}

/* A core's operands, results and kernel arguments. */
typedef struct fused {
    kr_tensor *in[NIN], *out[2];
    kr_dtype dtype;
    kr_ssd_args args;
} fused;

/* The arguments of a core whose tensors are known. */
static kr_ssd_args args_of(const kr_ssd_core *core, const fused *f, const kr_tensor *carry)
{
    kr_tensor *const *in = f->in;
    return (kr_ssd_args){ .nb = core->nb,
                          .ns = core->ns,
                          .nm = core->nm,
                          .nh = core->nh,
                          .np = core->np,
                          .ng = core->ng,
                          .nr = core->nr,
                          .nl = core->nl,
                          .nq = core->sequences.count,
                          .sequences = core->sequences.list,
                          .v = kr_token_operand(in[V]),
                          .b = kr_token_operand(in[B]),
                          .c = kr_token_operand(in[C]),
                          .da = in[DA]->data,
                          .w = kr_tensor_data(in[W]),
                          .diag_weight = kr_tensor_data(in[SAME]),
                          .d = kr_tensor_data(in[D]),
                          .initial = kr_tensor_data(in[INITIAL]),
                          .boundary = kr_tensor_data(in[BOUNDARY]),
                          .boundary_v = kr_tensor_data(in[BOUNDARY_V]),
                          .boundary_b = kr_tensor_data(in[BOUNDARY_B]),
                          .carry = kr_tensor_data(carry),
                          .angle = kr_tensor_data(in[ANGLE]),
                          .bias_b = kr_tensor_data(in[BIAS_B]),
                          .bias_c = kr_tensor_data(in[BIAS_C]),
                          .na = in[ANGLE] ? in[ANGLE]->dims[3] : 0,
                          .split_pairs = core->rotary.pairing == KR_PAIRING_SPLIT,
                          .y = kr_token_operand(f->out[0]),
                          .final = f->out[1]->data };
}

static bool begin(kr_tape *tape, const kr_ssd_core *core, fused *f)
{
    const kr_ssd_rotary_args *rotary = &core->rotary;
    kr_tensor *const in[NIN] = { core->v_bsmhp,         core->b_bsmgr,         core->c_bsmgr,      core->da_bsh,
                                 core->w_bsh,           core->diag_weight_bsh, core->d_h,          core->initial_qhpr,
                                 rotary->angle_bsha,    rotary->bias_b_hmr,    rotary->bias_c_hmr, core->boundary_qh,
                                 core->boundary_v_qmhp, core->boundary_b_qmhr };
    memcpy(f->in, in, sizeof in);
    kr_tensor *carry = core->carry_bsh ? kr_contiguous(tape, core->carry_bsh) : NULL;
    if (!lay_out(tape, f->in)) return false;
    f->dtype = kr_grad_dtype(f->in[V]);
    const kr_shape states = KR_SHAPE(core->sequences.count, core->nh, core->np, core->nr);
    f->out[0] = kr_new_activation(tape, f->dtype, core->rounds_y, kr_tensor_shape(f->in[V]));
    f->out[1] = kr_final_states(tape, f->dtype, states, core->final_qhpr);
    if (!f->out[0] || !f->out[1] || (core->rounds_y && !kr_slab_create_own(tape, f->out[0]))) return false;
    f->args = args_of(core, f, carry);
    return true;
}

static kr_ssd_out record(kr_tape *tape, const kr_ssd_core *core, const fused *f)
{
    const sizes n = { core->nb, core->ns, core->nm, core->nh,        core->np,
                      core->ng, core->nr, core->nl, core->sequences, f->args.split_pairs };
    const kr_record_args args = {
        .rule = &fused_rule, .n_in = NIN, .in = f->in, .n_out = 2, .out = f->out, .attrs = &n, .attrs_bytes = sizeof n
    };
    if (!kr_record_node(tape, &args, false)) return (kr_ssd_out){ .y = NULL };
    return (kr_ssd_out){ .y = f->out[0], .final_state = f->out[1] };
}

kr_ssd_out kr_ssd_fused(kr_tape *tape, const kr_ssd_core *core)
{
    fused f;
    if (!begin(tape, core, &f) || !KR_RUN(tape->ctx, ssd[kr_real_of(f.dtype)], &f.args))
        return (kr_ssd_out){ .y = NULL };
    return record(tape, core, &f);
}

/* Two nodes, as of two runs: how the kernel divides the state among them has no part in the gradients, which recompute the
 * states of each. Only the sums of their results are those of two runs. */
kr_ssd_out kr_ssd_fused_pair(kr_tape *tape, const kr_ssd_core *now, const kr_ssd_core *then)
{
    const kr_ssd_out none = { .y = NULL };
    fused a, b;
    if (!begin(tape, now, &a) || !begin(tape, then, &b)) return none;
    a.args.pair = &b.args;
    if (!KR_RUN(tape->ctx, ssd[kr_real_of(a.dtype)], &a.args)) return none;
    const kr_ssd_out x = record(tape, now, &a), y = record(tape, then, &b);
    if (kr_ctx_failed(tape->ctx)) return none;
    return (kr_ssd_out){ .y = kr_add(tape, x.y, y.y), .final_state = kr_add(tape, x.final_state, y.final_state) };
}
