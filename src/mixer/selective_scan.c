/* selective_scan.c - the scan of Mamba-1 as one node that saves only its inputs.
 *
 *   x, dt, z, y [b s i]   a [i r]   b, c [b s g r]   d [i]   initial, final [q i r]
 *   H_t = exp(dt_t a) H_{t-1} + dt_t B_t x_t;  y_t = <C_t, H_t> + D x_t, times silu(z_t) with a gate
 * Gradients: kernels/ref/scan_ref.c; the backward kernel recomputes the states. x, dt, z, b and c may be strided parts
 * of wider rows; they are read in place.
 */
#include "base/sized.h"
#include "ops/sequences.h"
#include "mixer/core.h"

enum { X, DT, A, B, C, D, Z, INITIAL, NIN };

/* Operands as the kernel takes them: those of tokens by their strides, the others row-major. */
static bool lay_out(kr_tape *tape, kr_tensor **in)
{
    for (int i = 0; i < NIN; i++) {
        const bool of_tokens = i == X || i == DT || i == B || i == C || i == Z;
        int64_t stride;
        if (in[i] && !(in[i] = of_tokens ? kr_with_token_stride(tape, in[i], &stride) : kr_contiguous(tape, in[i])))
            return false;
    }
    return true;
}

static void selective_scan_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const kr_sequences *sequences = kr_back_attrs(back);
    kr_tensor *in[NIN], *g[NIN] = { NULL };
    for (int i = 0; i < NIN; i++) in[i] = kr_back_in(back, i);
    for (int i = 0; i < NIN; i++)
        if (kr_back_wants(back, i)) g[i] = kr_new(tape, in[X]->dtype, kr_tensor_shape(in[i]));
    /* a consumer of the state alone leaves y without a gradient */
    kr_tensor *g_y = kr_back_grad(back, 0), *g_final = kr_back_grad(back, 1);
    g_y = g_y ? kr_contiguous(tape, g_y) : kr_zeros(tape, in[X]->dtype, kr_tensor_shape(in[X]));
    if (g_final) g_final = kr_contiguous(tape, g_final);
    if (kr_ctx_failed(tape->ctx) || !lay_out(tape, in)) return;
    kr_scan_bwd_args args = { .nb = in[X]->dims[0],
                              .ns = in[X]->dims[1],
                              .ni = in[X]->dims[2],
                              .ng = in[B]->dims[2],
                              .nr = in[B]->dims[3],
                              .nq = sequences->count,
                              .sequences = sequences->list,
                              .x = kr_token_operand(in[X]),
                              .dt = kr_token_operand(in[DT]),
                              .a = in[A]->data,
                              .b = kr_token_operand(in[B]),
                              .c = kr_token_operand(in[C]),
                              .d = kr_tensor_data(in[D]),
                              .z = kr_token_operand(in[Z]),
                              .initial = kr_tensor_data(in[INITIAL]),
                              .g_y = g_y->data,
                              .g_final = kr_tensor_data(g_final),
                              .g_x = kr_tensor_data(g[X]),
                              .g_dt = kr_tensor_data(g[DT]),
                              .g_a = kr_tensor_data(g[A]),
                              .g_b = kr_tensor_data(g[B]),
                              .g_c = kr_tensor_data(g[C]),
                              .g_d = kr_tensor_data(g[D]),
                              .g_z = kr_tensor_data(g[Z]),
                              .g_initial = kr_tensor_data(g[INITIAL]) };
    if (!KR_RUN(tape->ctx, scan_bwd[kr_real_of(in[X]->dtype)], &args)) return;
    for (int i = 0; i < NIN; i++) kr_back_accumulate(back, i, g[i]);
}

static const kr_rule selective_scan_rule = { .name = "selective_scan", .backward = selective_scan_backward };

static bool check_sizes(kr_tape *tape, const kr_dims *d, kr_tensor *const *in)
{
    kr_ctx *ctx = tape->ctx;
    return kr_require(ctx, d->s >= 1, KR_ERR_SHAPE, "selective_scan: x %s has no token; a sequence needs at least one",
                      KR_TEXT_OF(in[X])) &&
           kr_require(ctx, d->b >= 1 && d->i >= 1 && d->r >= 1, KR_ERR_SHAPE,
                      "selective_scan: x %s and a %s have an empty axis", KR_TEXT_OF(in[X]), KR_TEXT_OF(in[A])) &&
           kr_require(ctx, d->g >= 1 && d->i % d->g == 0, KR_ERR_SHAPE,
                      "selective_scan: g = %lld groups of b %s do not divide i = %lld channels", (long long)d->g,
                      KR_TEXT_OF(in[B]), (long long)d->i);
}

static bool check_initial(kr_tape *tape, const kr_dims *d, kr_tensor *initial, int64_t nq)
{
    kr_dims state_dims;
    if (!initial) return true;
    return kr_bind(tape, "selective_scan", &state_dims, "initial_state:qir", initial) &&
           kr_require(tape->ctx, state_dims.q == nq && state_dims.i == d->i && state_dims.r == d->r, KR_ERR_SHAPE,
                      "selective_scan: initial_state %s must be [%lld, %lld, %lld]: a state for each sequence",
                      KR_TEXT_OF(initial), (long long)nq, (long long)d->i, (long long)d->r);
}

static bool run(kr_tape *tape, const kr_dims *d, const kr_sequences *sequences, kr_tensor *const *in,
                kr_tensor *const *out)
{
    kr_scan_args args = { .nb = d->b,
                          .ns = d->s,
                          .ni = d->i,
                          .ng = d->g,
                          .nr = d->r,
                          .nq = sequences->count,
                          .sequences = sequences->list,
                          .x = kr_token_operand(in[X]),
                          .dt = kr_token_operand(in[DT]),
                          .a = in[A]->data,
                          .b = kr_token_operand(in[B]),
                          .c = kr_token_operand(in[C]),
                          .d = kr_tensor_data(in[D]),
                          .z = kr_token_operand(in[Z]),
                          .initial = kr_tensor_data(in[INITIAL]),
                          .y = out[0]->data,
                          .final = out[1]->data };
    return KR_RUN(tape->ctx, scan[kr_real_of(in[X]->dtype)], &args);
}

kr_scan_out kr_selective_scan(kr_tape *tape, const kr_selective_scan_input *input)
{
    const char *op = "selective_scan";
    if (!kr_tape_ready(tape, op) || !kr_require(tape->ctx, input, KR_ERR_ARG, "%s: the input is NULL", op) ||
        !KR_RESERVED(tape->ctx, op, "the input", input))
        return (kr_scan_out){ .y_bsi = NULL };
    return kr_selective_scan_into(tape, input, NULL);
}

kr_scan_out kr_selective_scan_into(kr_tape *tape, const kr_selective_scan_input *input, kr_tensor *final)
{
    const kr_scan_out none = { .y_bsi = NULL };
    kr_tensor *in[NIN] = { input->x_bsi,  input->dt_bsi, input->a_ir,  input->b_bsgr,
                           input->c_bsgr, input->d_i,    input->z_bsi, input->initial_state_bir };
    kr_dims d;
    kr_dtype result;
    kr_sequences sequences;
    kr_tensor *seq_start_bs = input->seq_start_bs;
    if (!kr_bind(tape, "selective_scan", &d, "x:bsi dt:bsi a:ir b:bsgr c:bsgr d:i? z:bsi?", in[X], in[DT], in[A], in[B],
                 in[C], in[D], in[Z]) ||
        !check_sizes(tape, &d, in) ||
        !kr_cu_seqlens_take(tape, "selective_scan", input->cu_seqlens, d.b, d.s, &seq_start_bs) ||
        !kr_sequences_from(tape, "selective_scan", seq_start_bs, d.b, d.s, &sequences) ||
        !check_initial(tape, &d, in[INITIAL], sequences.count) ||
        !KR_REALS(tape, "selective_scan", "x dt a b c d z initial_state", &result, &in[X], &in[DT], &in[A], &in[B],
                  &in[C], &in[D], &in[Z], &in[INITIAL]))
        return none;
    if (!lay_out(tape, in)) return none;
    kr_tensor *out[2] = { kr_new(tape, in[X]->dtype, KR_SHAPE(d.b, d.s, d.i)),
                          kr_final_states(tape, in[X]->dtype, KR_SHAPE(sequences.count, d.i, d.r), final) };
    if (!out[0] || !out[1] || !run(tape, &d, &sequences, in, out)) return none;
    const kr_record_args record = { .rule = &selective_scan_rule,
                                    .n_in = NIN,
                                    .in = in,
                                    .n_out = 2,
                                    .out = out,
                                    .attrs = &sequences,
                                    .attrs_bytes = sizeof sequences };
    if (!kr_record_node(tape, &record, false)) return none;
    return (kr_scan_out){ .y_bsi = kr_store_as(tape, out[0], result),
                          .final_state = kr_store_as(tape, out[1], result) };
}
