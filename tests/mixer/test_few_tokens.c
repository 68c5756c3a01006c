/* test_few_tokens.c - sequences of few tokens, which the CPU kernels process token by token: alone and in packed rows,
 * from a state and with the boundary term of the preceding token; and that boundary in all algorithms. */
#include "tests/harness.h"

#include <krait/ssd.h>

enum { M = 2, H = 3, P = 6, R = 21 };

static kr_tensor *uniform(kr_tape *tape, kr_dtype dtype, kr_shape shape, double low, double high)
{
    return kr_input(tape, kr_cast(tape, kr_rand(tape, KR_DTYPE_F64, shape, low, high), dtype));
}

/* Rows of ns tokens with nq sequences in all, each with a state and a boundary. */
static kr_mamba3_single_ssd_input make_input(kr_tape *tape, kr_dtype dtype, int64_t nb, int64_t ns, int64_t nq)
{
    return (kr_mamba3_single_ssd_input){ .v_bsmhp = uniform(tape, dtype, KR_SHAPE(nb, ns, M, H, P), -1, 1),
                                         .b_bsmhr = uniform(tape, dtype, KR_SHAPE(nb, ns, M, H, R), -1, 1),
                                         .c_bsmhr = uniform(tape, dtype, KR_SHAPE(nb, ns, M, H, R), -1, 1),
                                         .da_bsh = uniform(tape, dtype, KR_SHAPE(nb, ns, H), -1, 0),
                                         .gamma_bsh = uniform(tape, dtype, KR_SHAPE(nb, ns, H), 0, 1),
                                         .scale_bsh = uniform(tape, dtype, KR_SHAPE(nb, ns, H), 0, 1),
                                         .d_h = uniform(tape, dtype, KR_SHAPE(H), -1, 1),
                                         .initial_state_bhpr = uniform(tape, dtype, KR_SHAPE(nq, H, P, R), -1, 1),
                                         .carry0_bh = uniform(tape, dtype, KR_SHAPE(nq, H), 0, 1),
                                         .v_before_bmhp = uniform(tape, dtype, KR_SHAPE(nq, M, H, P), -1, 1),
                                         .k_before_bmhr = uniform(tape, dtype, KR_SHAPE(nq, M, H, R), -1, 1) };
}

/* ---- packed and alone ---- */

static const int64_t lengths[] = { 1, 7, 1, 2, 3, 4, 5 };
enum { NQ = (int)(sizeof lengths / sizeof *lengths), NS = 23 };

static kr_tensor *starts(kr_tape *tape)
{
    int32_t marker[NS] = { 0 };
    for (int64_t q = 0, at = 0; q < NQ; at += lengths[q++]) marker[at] = 1;
    return kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(1, NS), marker);
}

/* Tokens from .. to - 1, which are sequence q. */
static kr_mamba3_single_ssd_input alone(kr_tape *tape, const kr_mamba3_single_ssd_input *all, int64_t q, int64_t from,
                                        int64_t to)
{
    kr_mamba3_single_ssd_input one = *all;
    kr_tensor **const tokens[] = {
        &one.v_bsmhp, &one.b_bsmhr, &one.c_bsmhr, &one.da_bsh, &one.gamma_bsh, &one.scale_bsh
    };
    kr_tensor **const sequences[] = { &one.initial_state_bhpr, &one.carry0_bh, &one.v_before_bmhp, &one.k_before_bmhr };
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) *tokens[i] = kr_slice(tape, *tokens[i], 1, from, to);
    for (size_t i = 0; i < sizeof sequences / sizeof *sequences; i++)
        *sequences[i] = kr_slice(tape, *sequences[i], 0, q, q + 1);
    one.seq_start_bs = NULL;
    return one;
}

static void check_packed(const char *isa, int threads)
{
    kr_ctx *ctx = kr_test_ctx(threads, isa);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_mamba3_single_ssd_input in = make_input(tape, KR_DTYPE_F32, 1, NS, NQ);
    in.seq_start_bs = starts(tape);
    const kr_ssd_out packed = kr_mamba3_single_ssd_run(tape, &in, kr_ssd_path_default());
    for (int64_t q = 0, at = 0; q < NQ; at += lengths[q++]) {
        const kr_mamba3_single_ssd_input one = alone(tape, &in, q, at, at + lengths[q]);
        const kr_ssd_out out = kr_mamba3_single_ssd_run(tape, &one, kr_ssd_path_default());
        /* f32, sums of 21 to 168 products in another order */
        CHECK_SAME(ctx, "y", kr_slice(tape, packed.y, 1, at, at + lengths[q]), out.y, 2e-6, 1);
        CHECK_SAME(ctx, "final state", kr_slice(tape, packed.final_state, 0, q, q + 1), out.final_state, 2e-6, 1);
    }
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

TEST(few_tokens_packed_are_those_alone_threads)
{
    char names[128];
    kr_isa_choices(names, sizeof names);
    for (char *isa = strtok(names, ", "); isa; isa = strtok(NULL, ", ")) {
        check_packed(isa, 1);
        check_packed(isa, 2);
    }
}

/* An infinite value in one row stays in it, and lanes beyond the last column do not count. */
TEST(few_tokens_infinite_values)
{
    char names[128];
    kr_isa_choices(names, sizeof names);
    for (char *isa = strtok(names, ", "); isa; isa = strtok(NULL, ", ")) {
        kr_ctx *ctx = kr_test_ctx(1, isa);
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        const double x[P] = { INFINITY, 1, 1, 1, 1, -INFINITY };
        const kr_mamba2_ssd_input in = {
            .x_bshp = kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(1, 1, 1, P), x), KR_DTYPE_F32),
            .dt_bsh = kr_full(tape, KR_DTYPE_F32, KR_SHAPE(1, 1, 1), 0.5),
            .a_decay_h = kr_full(tape, KR_DTYPE_F32, KR_SHAPE(1), -1),
            .b_bsgr = kr_full(tape, KR_DTYPE_F32, KR_SHAPE(1, 1, 1, R), 1),
            .c_bsgr = kr_full(tape, KR_DTYPE_F32, KR_SHAPE(1, 1, 1, R), 2),
        };
        const kr_ssd_out out = kr_mamba2_ssd_run(tape, &in, kr_ssd_path_default());
        double *y = kr_test_values(out.y);
        for (int p = 0; p < P; p++) {
            const double want = x[p] * R; /* R columns of 0.5 x times 2 */
            CHECK(y[p] == want, "%s: y[%d] = %g, not %g", isa, p, y[p], want);
        }
        free(y);
        CHECK_OK(ctx);
        kr_tape_destroy(tape);
        kr_ctx_destroy(ctx);
    }
}

/* ---- the boundary ---- */

enum { OPERANDS = 11 };

static void list_operands(const kr_mamba3_single_ssd_input *in, kr_tensor **list)
{
    kr_tensor *const all[OPERANDS] = { in->v_bsmhp,
                                       in->b_bsmhr,
                                       in->c_bsmhr,
                                       in->da_bsh,
                                       in->gamma_bsh,
                                       in->scale_bsh,
                                       in->initial_state_bhpr,
                                       in->d_h,
                                       in->carry0_bh,
                                       in->v_before_bmhp,
                                       in->k_before_bmhr };
    for (int i = 0; i < OPERANDS; i++) list[i] = all[i];
}

/* y, final state and all gradients of one input, with the core's boundary or with it added to the state. */
typedef struct outcome {
    double *values[OPERANDS + 2];
    int64_t counts[OPERANDS + 2];
} outcome;

static void keep(outcome *o, int i, const kr_tensor *x)
{
    o->values[i] = x ? kr_test_values(x) : NULL;
    o->counts[i] = x ? kr_tensor_count(x) : 0;
}

static outcome run_seeded(kr_ssd_path path, int64_t nb, int64_t ns, bool packed, bool from_zero, bool by_state)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_mamba3_single_ssd_input in = make_input(tape, KR_DTYPE_F64, nb, ns, packed ? NQ : nb);
    if (packed) in.seq_start_bs = starts(tape);
    if (from_zero) in.initial_state_bhpr = NULL;
    kr_tensor *operands[OPERANDS];
    list_operands(&in, operands);
    if (by_state) {
        in.initial_state_bhpr =
            kr_boundary_state(tape, in.initial_state_bhpr, in.carry0_bh, in.v_before_bmhp, in.k_before_bmhr);
        in.carry0_bh = in.v_before_bmhp = in.k_before_bmhr = NULL;
    }
    const kr_ssd_out out = kr_mamba3_single_ssd_run(tape, &in, path);
    kr_tensor *const y[2] = { out.y, out.final_state };
    kr_tensor *const g[2] = { kr_rand(tape, KR_DTYPE_F64, kr_tensor_shape(out.y), -1, 1),
                              kr_rand(tape, KR_DTYPE_F64, kr_tensor_shape(out.final_state), -1, 1) };
    kr_backward_from(tape, 2, y, g);
    CHECK_OK(ctx);
    outcome o;
    keep(&o, 0, out.y);
    keep(&o, 1, out.final_state);
    for (int i = 0; i < OPERANDS; i++) keep(&o, 2 + i, operands[i] ? kr_grad(operands[i]) : NULL);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
    return o;
}

static void check_boundary(kr_ssd_path path, int64_t nb, int64_t ns, bool packed, bool from_zero)
{
    static const char *const names[OPERANDS + 2] = { "y",        "final state", "g_v",       "g_b",       "g_c",
                                                     "g_da",     "g_gamma",     "g_scale",   "g_initial", "g_d",
                                                     "g_carry0", "g_v_before",  "g_k_before" };
    outcome got = run_seeded(path, nb, ns, packed, from_zero, false);
    outcome want = run_seeded(path, nb, ns, packed, from_zero, true);
    for (int i = 0; i < OPERANDS + 2; i++) {
        CHECK(!got.values[i] == !want.values[i], "%s is missing", names[i]);
        if (got.values[i] && want.values[i])
            CHECK_CLOSE(names[i], got.values[i], want.values[i], got.counts[i], NULL, 1e-13, 0);
        free(got.values[i]);
        free(want.values[i]);
    }
}

TEST(a_boundary_is_an_addition_to_the_state)
{
    for (int a = KR_SSD_MINIMAL; a <= KR_SSD_SERIAL_RECALCULATED; a++) {
        const kr_ssd_path path = { (kr_ssd_algorithm)a, 5 };
        check_boundary(path, 2, 1, false, false);
        check_boundary(path, 2, 3, false, true);
        check_boundary(path, 3, 12, false, false);
        check_boundary(path, 1, NS, true, false);
    }
}

static void refuse(kr_ctx *ctx, kr_tape *tape, kr_mamba3_single_ssd_input in, kr_status status, const char *text)
{
    const kr_ssd_out out = kr_mamba3_single_ssd_run(tape, &in, kr_ssd_path_default());
    CHECK(!out.y && !out.final_state, "something came out");
    CHECK_ERROR(ctx, status, text);
    kr_tape_reset(tape);
}

TEST(boundary_errors)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_mamba3_single_ssd_input in = make_input(tape, KR_DTYPE_F64, 2, 3, 2);
    in.v_before_bmhp = NULL;
    refuse(ctx, tape, in, KR_ERR_ARG, "mamba3_single_ssd: operand v_before is NULL");
    in = make_input(tape, KR_DTYPE_F64, 2, 3, 2);
    in.carry0_bh = NULL;
    refuse(ctx, tape, in, KR_ERR_ARG, "mamba3_single_ssd: operand carry0 is NULL");
    in = make_input(tape, KR_DTYPE_F64, 2, 3, 3);
    in.initial_state_bhpr = NULL;
    refuse(ctx, tape, in, KR_ERR_SHAPE,
           "mamba3_single_ssd: carry0 [3, 3] must be [2, 3]: one for each sequence and head");
    in = make_input(tape, KR_DTYPE_F64, 2, 3, 2);
    in.v_before_bmhp = kr_zeros(tape, KR_DTYPE_F64, KR_SHAPE(2, M, H, P + 1));
    refuse(ctx, tape, in, KR_ERR_SHAPE,
           "mamba3_single_ssd: v_before [2, 2, 3, 7] must be [2, 2, 3, 6]: a token of v for each sequence");
    in = make_input(tape, KR_DTYPE_F64, 2, 3, 2);
    in.k_before_bmhr = kr_zeros(tape, KR_DTYPE_F64, KR_SHAPE(2, M, H, R - 1));
    refuse(ctx, tape, in, KR_ERR_SHAPE,
           "mamba3_single_ssd: k_before [2, 2, 3, 20] must be [2, 2, 3, 21]: a token for each sequence");
    in = make_input(tape, KR_DTYPE_F64, 2, 3, 2);
    in.k_before_bmhr = kr_zeros(tape, KR_DTYPE_F32, KR_SHAPE(2, M, H, R));
    refuse(
        ctx, tape, in, KR_ERR_DTYPE,
        "mamba3_single_ssd: k_before [2, 2, 3, 21] is f32, but v is f64; f64 mixes with no other type, kr_cast one of "
        "them");
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}
