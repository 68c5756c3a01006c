/* state_scan.c - what a piece of a row needs of the pieces before it: the last tokens, and the state after them.
 *
 *   halo   y = the last n tokens of x on the piece before; zeros on the first
 *   scan   S_0 = 0,  S_{p+1} = d_p S_p + H_p;  y = S_p on piece p
 *          backward, with G_p the gradient of y: A_p = G_p + d_p A_{p+1}, A of the last piece = G;
 *          g_H_p = A_{p+1},  g_d_p = <S_p, A_{p+1}>
 * (d1, H1) then (d2, H2) is (d1 d2, d2 H1 + H2). All pieces compute d_p and H_p at the same time; then S passes through them
 * with one product and one sum for each. The tape differentiates those, and the messages carry A back.
 */
#include "ops/seq_parallel_impl.h"

static bool is_usable(kr_tape *tape, const char *op, const kr_seq_parallel *seq)
{
    return kr_tape_ready(tape, op) && kr_require(tape->ctx, seq != NULL, KR_ERR_ARG, "%s: seq is NULL", op) &&
           kr_require(tape->ctx, seq->ctx == tape->ctx, KR_ERR_STATE, "%s: seq belongs to another context", op);
}

kr_tensor *kr_halo(kr_tape *tape, kr_seq_parallel *seq, kr_tensor *x, int64_t n)
{
    if (!is_usable(tape, "halo", seq) || !kr_bind_any(tape, "halo", x) ||
        !kr_require(tape->ctx, x->rank >= 2 && kr_dtype_is_float(x->dtype), KR_ERR_SHAPE,
                    "halo: x %s must have rows and tokens, [b s ..], of floats", KR_TEXT_OF(x)) ||
        !kr_require(tape->ctx, n >= 0, KR_ERR_ARG, "halo: n = %lld must not be negative", (long long)n) ||
        !kr_require(tape->ctx, kr_seq_is_last(seq) || x->dims[1] >= n, KR_ERR_SHAPE,
                    "halo: x %s has %lld tokens, but the next piece needs the last %lld; make piece %d longer",
                    KR_TEXT_OF(x), (long long)x->dims[1], (long long)n, seq->piece))
        return NULL;
    kr_shape shape = kr_tensor_shape(x);
    shape.dims[1] = n;
    kr_tensor *y = kr_zeros(tape, x->dtype, shape);
    if (n == 0 || !y) return y;
    if (!kr_seq_is_last(seq)) {
        kr_tensor *last = kr_slice(tape, x, 1, -n, x->dims[1]);
        if (!last || !kr_seq_give_state(tape, seq, "halo", tape->recording, 1, &last)) return NULL;
    }
    if (!kr_seq_is_first(seq) && !kr_seq_take_state(tape, seq, "halo", tape->recording, 1, &y)) return NULL;
    return y;
}

/* decay [o ..] with axes of one element behind, as many as state has. */
static kr_tensor *spread(kr_tape *tape, kr_tensor *decay, const kr_tensor *state)
{
    kr_shape shape = kr_tensor_shape(decay);
    for (; shape.rank < state->rank; shape.rank++) shape.dims[shape.rank] = 1;
    return kr_reshape(tape, decay, shape);
}

kr_tensor *kr_state_scan(kr_tape *tape, kr_seq_parallel *seq, kr_tensor *decay, kr_tensor *state)
{
    const char *op = "state_scan";
    if (!is_usable(tape, op, seq) || !kr_bind_any(tape, op, decay) || !kr_bind_any(tape, op, state)) return NULL;
    bool fits = decay->rank <= state->rank && decay->dtype == state->dtype &&
                (state->dtype == KR_DTYPE_F32 || state->dtype == KR_DTYPE_F64);
    for (int i = 0; fits && i < decay->rank; i++) fits = decay->dims[i] == state->dims[i];
    if (!kr_require(tape->ctx, fits, KR_ERR_SHAPE,
                    "state_scan: decay %s must have the first axes of state %s, and both be f32 or f64",
                    KR_TEXT_OF(decay), KR_TEXT_OF(state)))
        return NULL;
    kr_tensor *before = kr_zeros(tape, state->dtype, kr_tensor_shape(state));
    if (!before) return NULL;
    if (!kr_seq_is_first(seq) && !kr_seq_take_state(tape, seq, op, tape->recording, 1, &before)) return NULL;
    if (kr_seq_is_last(seq)) return before;
    kr_tensor *after = kr_add(tape, kr_mul(tape, spread(tape, decay, state), before), state);
    return after && kr_seq_give_state(tape, seq, op, tape->recording, 1, &after) ? before : NULL;
}
