/* fused.c - SerialRecalculated: the core as one node that keeps only its inputs.
 *
 *   v, y [b s m h p]   b, c [b s m g r]   da, w, same [b s h]   d [h]   initial, final [q h p r]
 *   seed [q h]   seed_v [q m h p]   seed_b [q m h r]
 * Formulas and their gradients: kernels/ssd_args.h. Saved: the inputs; the backward kernel recomputes the states. v, b
 * and c may be parts of wider rows; they are read where they are. Where the core rounds them they may come rounded.
 */
#include "ssd/core.h"

enum { V, B, C, DA, W, SAME, D, INITIAL, SEED, SEED_V, SEED_B, NIN };

/* What the node remembers of its core: sizes and sequences. */
typedef struct sizes {
    int64_t nb, ns, nm, nh, np, ng, nr, nl;
    kr_sequences sequences;
} sizes;

/* Of H + seed sum_m seed_v[m] (outer) seed_b[m], with G the gradient of the state that the first token meets:
 *   g_seed_v[m] = seed G seed_b[m];   g_seed_b[m] = seed seed_v[m] G;   g_seed = sum_m <seed_v[m], G seed_b[m]> */
static void give_seed(kr_back *back, kr_tensor *g_qhpr)
{
    kr_tape *tape = kr_back_tape(back);
    const kr_axes swap = KR_AXES(0, 2, 1, 3);
    kr_tensor *v_qhmp = kr_permute(tape, kr_back_in(back, SEED_V), swap);
    kr_tensor *b_qhmr = kr_permute(tape, kr_back_in(back, SEED_B), swap);
    kr_tensor *seed = kr_back_in(back, SEED);
    kr_tensor *seed_qh11 = kr_reshape(tape, seed, KR_SHAPE(kr_tensor_dim(seed, 0), kr_tensor_dim(seed, 1), 1, 1));
    if (kr_back_wants(back, SEED) || kr_back_wants(back, SEED_V)) {
        kr_tensor *gb_qhmp = kr_matmul(tape, b_qhmr, kr_transpose(tape, g_qhpr));
        kr_back_give(back, SEED, kr_sum(tape, kr_mul(tape, v_qhmp, gb_qhmp), KR_AXES(2, 3), false));
        kr_back_give(back, SEED_V, kr_permute(tape, kr_mul(tape, gb_qhmp, seed_qh11), swap));
    }
    if (kr_back_wants(back, SEED_B))
        kr_back_give(back, SEED_B, kr_permute(tape, kr_matmul(tape, kr_mul(tape, v_qhmp, seed_qh11), g_qhpr), swap));
}

static void fused_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const sizes *n = kr_back_attrs(back);
    const kr_dtype dtype = kr_grad_dtype(kr_back_in(back, V));
    kr_tensor *g[NIN] = { NULL };
    kr_tensor *g_d = kr_back_fresh(back, D);
    for (int i = 0; i < SEED; i++)
        if (kr_back_wants(back, i) && !(g_d && i == D))
            g[i] = kr_new(tape, dtype, kr_tensor_shape(kr_back_in(back, i)));
    kr_tensor *initial = kr_back_in(back, INITIAL);
    const bool wants_seed = kr_back_wants(back, SEED) || kr_back_wants(back, SEED_V) || kr_back_wants(back, SEED_B);
    if (wants_seed && !g[INITIAL]) g[INITIAL] = kr_new(tape, dtype, kr_tensor_shape(kr_back_out(back, 1)));
    if (kr_back_in(back, SEED))
        initial =
            kr_boundary_seed(tape, initial, kr_back_in(back, SEED), kr_back_in(back, SEED_V), kr_back_in(back, SEED_B));
    kr_tensor *g_y = kr_back_grad(back, 0), *g_final = kr_back_grad(back, 1);
    g_y = g_y ? kr_contiguous(tape, g_y) : kr_zeros(tape, dtype, kr_tensor_shape(kr_back_out(back, 0)));
    if (g_final) g_final = kr_contiguous(tape, g_final);
    int64_t stride[C + 1] = { 0 };
    for (int i = V; i <= C; i++) kr_with_token_stride(tape, kr_back_in(back, i), &stride[i]);
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
                             .v_stride = stride[V],
                             .b_stride = stride[B],
                             .c_stride = stride[C],
                             .sequences = n->sequences.list,
                             .v = kr_tensor_data(kr_back_in(back, V)),
                             .b = kr_tensor_data(kr_back_in(back, B)),
                             .c = kr_tensor_data(kr_back_in(back, C)),
                             .da = kr_tensor_data(kr_back_in(back, DA)),
                             .w = kr_tensor_data(kr_back_in(back, W)),
                             .same = kr_tensor_data(kr_back_in(back, SAME)),
                             .d = kr_tensor_data(kr_back_in(back, D)),
                             .initial = kr_tensor_data(initial),
                             .g_y = g_y->data,
                             .g_final = kr_tensor_data(g_final),
                             .g_v = kr_tensor_data(g[V]),
                             .g_b = kr_tensor_data(g[B]),
                             .g_c = kr_tensor_data(g[C]),
                             .g_da = kr_tensor_data(g[DA]),
                             .g_w = kr_tensor_data(g[W]),
                             .g_same = kr_tensor_data(g[SAME]),
                             .g_d = kr_tensor_data(g_d ? g_d : g[D]),
                             .g_initial = kr_tensor_data(g[INITIAL]),
                             .v_half = kr_half_of(kr_back_in(back, V)->dtype),
                             .b_half = kr_half_of(kr_back_in(back, B)->dtype),
                             .c_half = kr_half_of(kr_back_in(back, C)->dtype) };
    if (!KR_RUN(tape->ctx, ssd_bwd[kr_real_of(dtype)], &args)) return;
    for (int i = 0; i < SEED; i++) kr_back_give(back, i, g[i]);
    if (wants_seed) give_seed(back, g[INITIAL]);
}

static const kr_rule fused_rule = { .name = "ssd", .backward = fused_backward };

kr_ssd_out kr_ssd_fused(kr_tape *tape, const kr_ssd_core *core)
{
    const kr_ssd_out none = { NULL, NULL };
    kr_tensor *in[NIN] = { core->v_bsmhp, core->b_bsmgr,     core->c_bsmgr,    core->da_bsh,
                           core->w_bsh,   core->same_bsh,    core->d_h,        core->initial_qhpr,
                           core->seed_qh, core->seed_v_qmhp, core->seed_b_qmhr };
    int64_t stride[C + 1] = { 0 };
    for (int i = 0; i < NIN; i++)
        if (in[i] && !(in[i] = i <= C ? kr_with_token_stride(tape, in[i], &stride[i]) : kr_contiguous(tape, in[i])))
            return none;
    const kr_dtype dtype = kr_grad_dtype(in[V]);
    const kr_shape states = KR_SHAPE(core->sequences.count, core->nh, core->np, core->nr);
    kr_tensor *out[2] = { kr_new(tape, dtype, kr_tensor_shape(in[V])),
                          kr_final_states(tape, dtype, states, core->final_qhpr) };
    if (!out[0] || !out[1]) return none;
    kr_ssd_args args = { .nb = core->nb,
                         .ns = core->ns,
                         .nm = core->nm,
                         .nh = core->nh,
                         .np = core->np,
                         .ng = core->ng,
                         .nr = core->nr,
                         .nl = core->nl,
                         .nq = core->sequences.count,
                         .v_stride = stride[V],
                         .b_stride = stride[B],
                         .c_stride = stride[C],
                         .sequences = core->sequences.list,
                         .v = in[V]->data,
                         .b = in[B]->data,
                         .c = in[C]->data,
                         .da = in[DA]->data,
                         .w = kr_tensor_data(in[W]),
                         .same = kr_tensor_data(in[SAME]),
                         .d = kr_tensor_data(in[D]),
                         .initial = kr_tensor_data(in[INITIAL]),
                         .seed = kr_tensor_data(in[SEED]),
                         .seed_v = kr_tensor_data(in[SEED_V]),
                         .seed_b = kr_tensor_data(in[SEED_B]),
                         .y = out[0]->data,
                         .final = out[1]->data,
                         .v_half = kr_half_of(in[V]->dtype),
                         .b_half = kr_half_of(in[B]->dtype),
                         .c_half = kr_half_of(in[C]->dtype) };
    if (!KR_RUN(tape->ctx, ssd[kr_real_of(dtype)], &args)) return none;
    const sizes n = { core->nb, core->ns, core->nm, core->nh, core->np, core->ng, core->nr, core->nl, core->sequences };
    const kr_record_args record = {
        .rule = &fused_rule, .nin = NIN, .in = in, .nout = 2, .out = out, .attrs = &n, .attrs_bytes = sizeof n
    };
    return kr_record(tape, &record) ? (kr_ssd_out){ out[0], out[1] } : none;
}
