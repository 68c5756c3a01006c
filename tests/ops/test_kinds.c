/* test_kinds.c - functions that take a kind: numbers that programs were compiled with keep their meaning, and a kind that is
 * none is an error.
 */
#include "tests/harness.h"

/* f(x) for one x, by the number of the kind. */
static double unary(kr_tape *tape, int kind, double x, double alpha, double beta)
{
    kr_tensor *in = kr_full(tape, KR_DTYPE_F64, KR_SHAPE(1), x);
    return kr_item(kr_unary(tape, (kr_unary_kind)kind, in, alpha, beta));
}

TEST(numbers_of_unary_kinds)
{
    kr_ctx *ctx = kr_ctx_create(NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    const double x = 0.75, e = exp(-0.75), s = 1 / (1 + e), g = x + 0.044715 * x * x * x;
    const double want[] = { -x,
                            exp(x),
                            log(x),
                            sqrt(x),
                            1 / sqrt(x),
                            sin(x),
                            cos(x),
                            tanh(x),
                            s,
                            x * s,
                            log1p(exp(x)),
                            -log1p(e),
                            x,
                            x,
                            erf(x),
                            x / 2 * (1 + erf(x / sqrt(2))),
                            x / 2 * (1 + tanh(sqrt(2 / acos(-1)) * g)),
                            3 * x,
                            3 * x + 4,
                            3,
                            x * x * x };
    for (int kind = 0; kind < (int)(sizeof want / sizeof *want); kind++) {
        const double got = unary(tape, kind, x, 3, 4);
        CHECK(fabs(got - want[kind]) <= 1e-14 * fabs(want[kind]), "kind %d: %.17g, but %.17g", kind, got, want[kind]);
    }
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

TEST(numbers_of_other_kinds)
{
    kr_ctx *ctx = kr_ctx_create(NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    static const double both[] = { 3, 2 };
    const double results[] = { 5, 1, 6, 1.5, 3, 2, 9 };
    const int compared[] = { 0, 1, 0, 0, 1, 1 };
    kr_tensor *a = kr_full(tape, KR_DTYPE_F64, KR_SHAPE(1), 3), *b = kr_full(tape, KR_DTYPE_F64, KR_SHAPE(1), 2);
    kr_tensor *x = kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(2), both);
    for (int kind = 0; kind < 7; kind++)
        CHECK(kr_item(kr_binary(tape, (kr_binary_kind)kind, a, b)) == results[kind], "binary kind %d", kind);
    for (int kind = 0; kind < 6; kind++)
        CHECK(kr_item(kr_compare(tape, (kr_compare_kind)kind, a, b)) == compared[kind], "comparison %d", kind);
    CHECK(kr_item(kr_reduce(tape, (kr_reduce_kind)0, x, KR_ALL_AXES, false)) == 5 &&
              kr_item(kr_reduce(tape, (kr_reduce_kind)1, x, KR_ALL_AXES, false)) == 2.5 &&
              kr_item(kr_reduce(tape, (kr_reduce_kind)2, x, KR_ALL_AXES, false)) == 3,
          "reductions");
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

TEST(kinds_that_are_none)
{
    kr_ctx *ctx = kr_ctx_create(NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x = kr_full(tape, KR_DTYPE_F32, KR_SHAPE(2), 1);
#define NONE(call, text)                                                                                               \
    do {                                                                                                               \
        CHECK((call) == NULL, "a tensor");                                                                             \
        CHECK_ERROR(ctx, KR_ERR_ARG, text);                                                                            \
        kr_tape_reset(tape);                                                                                           \
        x = kr_full(tape, KR_DTYPE_F32, KR_SHAPE(2), 1);                                                               \
    } while (0)
    NONE(kr_unary(tape, (kr_unary_kind)99, x, 0, 0), "unary: 99 is not a kr_unary_kind");
    NONE(kr_unary(tape, (kr_unary_kind)(-1), x, 0, 0), "unary: -1 is not a kr_unary_kind");
    NONE(kr_binary(tape, (kr_binary_kind)7, x, x), "binary: 7 is not a kr_binary_kind");
    NONE(kr_compare(tape, (kr_compare_kind)6, x, x), "compare: 6 is not a kr_compare_kind");
    NONE(kr_reduce(tape, (kr_reduce_kind)3, x, KR_ALL_AXES, false), "reduce: 3 is not a kr_reduce_kind");
    NONE(kr_random(tape, KR_DTYPE_F32, KR_SHAPE(2), (kr_random_kind)2, 0, 1), "random: 2 is not a kr_random_kind");
    NONE(kr_ssd_core_run(tape, (kr_ssd_kind)3, x, kr_ssd_path_default()).y, "ssd_core_run: 3 is not a kr_ssd_kind");
    NONE(kr_ssd_core_run(tape, KR_SSD_MAMBA2, NULL, kr_ssd_path_default()).y, "ssd_core_run: in is NULL");
    NONE(kr_layers_call(tape, NULL, (kr_call_kind)9, x, NULL).y, "layers: 9 is not a kr_call_kind");
    NONE(kr_network_call(tape, NULL, (kr_call_kind)9, x, NULL).y, "network: 9 is not a kr_call_kind");
    CHECK(!kr_unary(NULL, KR_UNARY_EXP, NULL, 0, 0) && !kr_binary(NULL, KR_BINARY_ADD, NULL, NULL) &&
              !kr_compare(NULL, KR_COMPARE_EQ, NULL, NULL) && !kr_reduce(NULL, KR_REDUCE_SUM, NULL, KR_ALL_AXES, false),
          "a tensor without a tape");
    CHECK(strcmp(kr_enum_name((kr_enum_id)99, 0), "?") == 0 && strcmp(kr_enum_name(KR_ENUM_DTYPE, -1), "?") == 0 &&
              strcmp(kr_enum_name(KR_ENUM_FAMILY, 2), "mamba3") == 0 && kr_info_text((kr_info)99, NULL, 0) == 0,
          "names");
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}
