/* core.c - the SSD core of Mamba-2: a whole sequence, the same sequence in two parts, and two sequences packed in a row. */
#include <krait/krait.h>
#include <stdio.h>

enum { B = 2, S = 200, H = 4, P = 32, G = 1, R = 64 };

/* Tokens from .. to - 1 of every operand with a token axis. */
static kr_mamba2_ssd_input slice_tokens(kr_tape *tape, kr_mamba2_ssd_input in, int64_t from, int64_t to)
{
    in.x_bshp = kr_slice(tape, in.x_bshp, 1, from, to);
    in.dt_bsh = kr_slice(tape, in.dt_bsh, 1, from, to);
    in.b_bsgr = kr_slice(tape, in.b_bsgr, 1, from, to);
    in.c_bsgr = kr_slice(tape, in.c_bsgr, 1, from, to);
    return in;
}

/* max |a - b| */
static double max_difference(kr_tape *tape, kr_tensor *a, kr_tensor *b)
{
    kr_tensor *d = kr_sub(tape, a, b);
    return kr_item(kr_max(tape, kr_maximum(tape, d, kr_neg(tape, d)), KR_ALL_AXES, false));
}

int main(void)
{
    kr_ctx *ctx = kr_ctx_create(NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_mamba2_ssd_input in = { .x_bshp = kr_input(tape, kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(B, S, H, P))),
                               .dt_bsh = kr_rand(tape, KR_DTYPE_F32, KR_SHAPE(B, S, H), 0.01, 0.1),
                               .a_decay_h = kr_rand(tape, KR_DTYPE_F32, KR_SHAPE(H), -4, -1),
                               .b_bsgr = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(B, S, G, R)),
                               .c_bsgr = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(B, S, G, R)) };
    const kr_ssd_path path = kr_ssd_path_default(); /* fused; the backward pass recomputes activations */
    const kr_ssd_out whole = kr_mamba2_ssd_run(tape, &in, path);
    printf("whole sequence on %s kernels, chunks of %lld\n", kr_ctx_kernel(ctx, "ssd"),
           (long long)kr_ssd_chunk_len_or_optimal(path, R, P));

    /* the first 77 tokens, then the rest from their final state */
    kr_mamba2_ssd_input first = slice_tokens(tape, in, 0, 77), second = slice_tokens(tape, in, 77, S);
    const kr_ssd_out head = kr_mamba2_ssd_run(tape, &first, path);
    second.initial_state_bhpr = head.final_state;
    const kr_ssd_out tail = kr_mamba2_ssd_run(tape, &second, path);
    const double difference = max_difference(tape, tail.final_state, whole.final_state);
    printf("final state in two parts: differs by %.1e\n", difference);

    /* a new sequence begins at token 77 of each row: its state starts from zero */
    static int32_t starts[B][S];
    for (int b = 0; b < B; b++) starts[b][77] = 1;
    in.seq_start_bs = kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(B, S), starts);
    const kr_ssd_out packed = kr_mamba2_ssd_run(tape, &in, path);
    printf("packed: %lld final states for %d rows\n", KR_DIM(packed.final_state, 0), B);

    kr_backward(tape, kr_mean(tape, kr_mul(tape, whole.y, whole.y), KR_ALL_AXES, false));
    if (kr_ctx_failed(ctx)) fprintf(stderr, "krait: %s\n", kr_ctx_message(ctx));
    const int failed =
        kr_ctx_failed(ctx) || !kr_grad(in.x_bshp) || !(difference < 1e-4) || KR_DIM(packed.final_state, 0) != 4;
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
    return failed;
}
