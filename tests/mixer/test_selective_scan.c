/* test_selective_scan.c - Mamba-1's scan: the formula, its gradients by difference quotients, laws for any numbers
 * (split = whole, packed = separate, the same bits for any number of threads), and errors. */
#include "tests/harness.h"

#include <krait/ssd.h>

enum { X, DT, A, B, C, D, Z, INITIAL, NIN };
static const char *const names[NIN] = { "x", "dt", "a", "b", "c", "d", "z", "initial" };

enum { WITH_D = 1, WITH_Z = 2, WITH_INITIAL = 4, PACKED = 8, ALL = 15 };

/* Numbers for one call; values[n] NULL: no such operand. */
typedef struct problem {
    int64_t nb, ns, ni, ng, nr, nq;
    kr_shape shapes[NIN];
    double *values[NIN];
    int32_t *marker; /* NULL: not packed */
} problem;

/* y, the final states, and the gradients of all operands for fixed random gradients of the two. */
typedef struct outcome {
    double *y, *final, *g[NIN];
} outcome;

static void *must_alloc(size_t bytes)
{
    void *p = calloc(bytes ? bytes : 1, 1);
    if (!p) exit(2);
    return p;
}

static int64_t count_of(kr_shape shape)
{
    int64_t count = 1;
    for (int axis = 0; axis < shape.rank; axis++) count *= shape.dims[axis];
    return count;
}

static double *random_values(kr_shape shape, double low, double high)
{
    const int64_t count = count_of(shape);
    double *v = must_alloc((size_t)count * sizeof *v);
    for (int64_t i = 0; i < count; i++) v[i] = (double)(float)kr_test_uniform(low, high);
    return v;
}

static problem problem_make(int64_t nb, int64_t ns, int64_t ni, int64_t ng, int64_t nr, int with)
{
    problem p = { .nb = nb, .ns = ns, .ni = ni, .ng = ng, .nr = nr, .nq = nb };
    if (with & PACKED) {
        p.marker = must_alloc((size_t)(nb * ns) * sizeof *p.marker);
        for (int64_t i = 0; i < nb * ns; i++) {
            p.marker[i] = kr_test_below(3) == 0 ? -7 : 0;
            p.nq += p.marker[i] && i % ns > 0;
        }
    }
    const kr_shape values = KR_SHAPE(nb, ns, ni), bc_shape = KR_SHAPE(nb, ns, ng, nr);
    const kr_shape shapes[NIN] = { values,   values,       KR_SHAPE(ni, nr), bc_shape,
                                   bc_shape, KR_SHAPE(ni), values,           KR_SHAPE(p.nq, ni, nr) };
    for (int n = 0; n < NIN; n++) {
        p.shapes[n] = shapes[n];
        if ((n == D && !(with & WITH_D)) || (n == Z && !(with & WITH_Z)) || (n == INITIAL && !(with & WITH_INITIAL)))
            continue;
        p.values[n] = random_values(shapes[n], n == DT ? 0.01 : n == A ? -3 : -1, n == DT ? 0.6 : n == A ? -0.1 : 1);
    }
    return p;
}

static void problem_free(problem *p)
{
    for (int n = 0; n < NIN; n++) free(p->values[n]);
    free(p->marker);
}

static void outcome_free(outcome *o)
{
    free(o->y);
    free(o->final);
    for (int n = 0; n < NIN; n++) free(o->g[n]);
}

static bool positive_seeds;

/* Fixed gradients of the outputs: the same number for the same index. */
static double gradient_at(int64_t i)
{
    const double x = sin(1.0 + 0.7 * (double)(i % 1009));
    return positive_seeds ? fabs(x) : x;
}

static kr_tensor *seeds_like(kr_tape *tape, const kr_tensor *y)
{
    const int64_t count = kr_tensor_count(y);
    double *v = must_alloc((size_t)count * sizeof *v);
    for (int64_t i = 0; i < count; i++) v[i] = gradient_at(i);
    kr_tensor *g = kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, kr_tensor_shape(y), v), kr_tensor_dtype(y));
    free(v);
    return g;
}

/* Calls the scan with the operands of a problem. */
typedef kr_scan_out how(kr_tape *tape, const problem *p, const kr_selective_scan_input *in);

static kr_scan_out whole(kr_tape *tape, const problem *p, const kr_selective_scan_input *in)
{
    (void)p;
    return kr_selective_scan(tape, in);
}

static kr_selective_scan_input operands(kr_tape *tape, const problem *p, kr_dtype dtype, kr_tensor **in)
{
    for (int n = 0; n < NIN; n++)
        in[n] = p->values[n]
                    ? kr_input(tape, kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, p->shapes[n], p->values[n]), dtype))
                    : NULL;
    kr_tensor *marker = p->marker ? kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(p->nb, p->ns), p->marker) : NULL;
    return (kr_selective_scan_input){ .x_bsi = in[X],
                                      .dt_bsi = in[DT],
                                      .a_ir = in[A],
                                      .b_bsgr = in[B],
                                      .c_bsgr = in[C],
                                      .d_i = in[D],
                                      .z_bsi = in[Z],
                                      .initial_state_bir = in[INITIAL],
                                      .seq_start_bs = marker };
}

static outcome outcome_of(kr_ctx *ctx, const problem *p, kr_dtype dtype, how *call, bool gradients)
{
    outcome o = { 0 };
    kr_tensor *in[NIN];
    kr_tape *tape = kr_tape_create(ctx, gradients ? KR_TAPE_GRAD : KR_TAPE_NO_GRAD);
    const kr_selective_scan_input input = operands(tape, p, dtype, in);
    const kr_scan_out out = call(tape, p, &input);
    if (gradients) {
        kr_tensor *const y[2] = { out.y_bsi, out.final_state };
        kr_tensor *const g[2] = { seeds_like(tape, y[0]), seeds_like(tape, y[1]) };
        kr_backward_from(tape, 2, y, g);
    }
    if (CHECK_OK(ctx)) {
        o.y = kr_test_values(out.y_bsi);
        o.final = kr_test_values(out.final_state);
        for (int n = 0; n < NIN; n++)
            if (gradients && in[n]) o.g[n] = kr_test_values(kr_grad(in[n]));
    }
    kr_tape_destroy(tape);
    return o;
}

static void check_outcomes(const char *what, const problem *p, const outcome *got, const outcome *want,
                           double tolerance, double g_tolerance)
{
    if (!got->y || !want->y) return;
    char text[128];
    snprintf(text, sizeof text, "%s: y", what);
    CHECK_CLOSE(text, got->y, want->y, count_of(p->shapes[X]), &p->shapes[X], tolerance, 1e-3);
    snprintf(text, sizeof text, "%s: final state", what);
    CHECK_CLOSE(text, got->final, want->final, count_of(p->shapes[INITIAL]), &p->shapes[INITIAL], tolerance, 1e-3);
    for (int n = 0; n < NIN; n++) {
        if (!got->g[n] || !want->g[n]) continue;
        snprintf(text, sizeof text, "%s: g_%s", what, names[n]);
        CHECK_CLOSE(text, got->g[n], want->g[n], count_of(p->shapes[n]), &p->shapes[n], g_tolerance, 1e-3);
    }
}

/* ---- the formula ---- */

/* Token by token, as the header states it. */
static outcome by_formula(const problem *p)
{
    outcome o = { .y = must_alloc((size_t)count_of(p->shapes[X]) * sizeof(double)),
                  .final = must_alloc((size_t)count_of(p->shapes[INITIAL]) * sizeof(double)) };
    for (int64_t b = 0, q = -1; b < p->nb; b++) {
        for (int64_t s = 0; s < p->ns; s++) {
            const int64_t token = b * p->ns + s;
            const bool starts = s == 0 || (p->marker && p->marker[token]);
            q += starts;
            for (int64_t i = 0; i < p->ni; i++) {
                const int64_t at = token * p->ni + i, bc_shape = (token * p->ng + i / (p->ni / p->ng)) * p->nr;
                const double dt = p->values[DT][at], x = p->values[X][at];
                double sum = p->values[D] ? p->values[D][i] * x : 0;
                for (int64_t r = 0; r < p->nr; r++) {
                    double *h = &o.final[(q * p->ni + i) * p->nr + r];
                    if (starts) *h = p->values[INITIAL] ? p->values[INITIAL][(q * p->ni + i) * p->nr + r] : 0;
                    *h = exp(dt * p->values[A][i * p->nr + r]) * *h + dt * p->values[B][bc_shape + r] * x;
                    sum += p->values[C][bc_shape + r] * *h;
                }
                const double z = p->values[Z] ? p->values[Z][at] : 0;
                o.y[at] = p->values[Z] ? sum * z / (1 + exp(-z)) : sum;
            }
        }
    }
    return o;
}

/* Runs body on every instruction set, with f32 and f64. */
static void everywhere(void (*body)(kr_ctx *ctx, kr_dtype dtype))
{
    char list[128];
    kr_isa_choices(list, sizeof list);
    for (char *isa = strtok(list, ", "); isa; isa = strtok(NULL, ", ")) {
        kr_ctx *ctx = kr_test_ctx(2, isa);
        body(ctx, KR_DTYPE_F32);
        body(ctx, KR_DTYPE_F64);
        kr_ctx_destroy(ctx);
    }
}

static void check_formula(kr_ctx *ctx, kr_dtype dtype)
{
    for (int with = 0; with <= ALL; with++) {
        problem p = problem_make(2, 13, 12, 1 + with % 3, 1 + with % 6, with);
        outcome want = by_formula(&p), got = outcome_of(ctx, &p, dtype, whole, false);
        check_outcomes("formula", &p, &got, &want, dtype == KR_DTYPE_F32 ? 2e-6 : 1e-14, 0);
        outcome_free(&got);
        outcome_free(&want);
        problem_free(&p);
    }
}

TEST(scan_is_the_recurrence)
{
    everywhere(check_formula);
}

/* ---- gradients ---- */

static double loss_of(kr_ctx *ctx, const problem *p)
{
    outcome o = outcome_of(ctx, p, KR_DTYPE_F64, whole, false);
    double sum = 0;
    for (int64_t i = 0; o.y && i < count_of(p->shapes[X]); i++) sum += o.y[i] * gradient_at(i);
    for (int64_t i = 0; o.y && i < count_of(p->shapes[INITIAL]); i++) sum += o.final[i] * gradient_at(i);
    outcome_free(&o);
    return sum;
}

TEST(scan_gradients_are_difference_quotients)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int with = 0; with <= ALL; with += kr_test_quick() ? 5 : 1) {
        problem p = problem_make(2, 5, 6, 1 + with % 3, 2, with);
        outcome o = outcome_of(ctx, &p, KR_DTYPE_F64, whole, true);
        for (int n = 0; n < NIN; n++) {
            if (!p.values[n] || !o.g[n]) continue;
            double *want = must_alloc((size_t)count_of(p.shapes[n]) * sizeof *want);
            memcpy(want, o.g[n], (size_t)count_of(p.shapes[n]) * sizeof *want);
            for (int64_t i = 0; i < count_of(p.shapes[n]); i += kr_test_difference_step(ctx)) {
                double *v = &p.values[n][i];
                const double kept = *v, h = 1e-5;
                *v = kept + h;
                want[i] = loss_of(ctx, &p);
                *v = kept - h;
                want[i] = (want[i] - loss_of(ctx, &p)) / (2 * h);
                *v = kept;
            }
            CHECK_CLOSE(names[n], o.g[n], want, count_of(p.shapes[n]), &p.shapes[n], 1e-8, 1e-1);
            free(want);
        }
        outcome_free(&o);
        problem_free(&p);
    }
    kr_ctx_destroy(ctx);
}

static void check_gradients(kr_ctx *ctx, kr_dtype dtype)
{
    kr_ctx *ref = kr_test_ctx(1, "ref");
    for (int with = 0; with <= ALL; with++) {
        problem p = problem_make(2, 37, 72, 1 + with % 2, 3 + with % 3, with);
        outcome want = outcome_of(ref, &p, KR_DTYPE_F64, whole, true), got = outcome_of(ctx, &p, dtype, whole, true);
        check_outcomes("f64", &p, &got, &want, dtype == KR_DTYPE_F32 ? 2e-6 : 1e-14,
                       dtype == KR_DTYPE_F32 ? 4e-6 : 1e-13);
        outcome_free(&got);
        outcome_free(&want);
        problem_free(&p);
    }
    kr_ctx_destroy(ref);
}

TEST(scan_gradients_are_those_of_f64)
{
    everywhere(check_gradients);
}

/* Step sizes over six orders of magnitude in one sequence, e^(dt a) from e^-16 to 1; all others are above 0, so that no
 * two terms of g_a cancel and each element must be right on its own scale. */
static void check_step_sizes(kr_ctx *ctx, kr_dtype dtype)
{
    kr_ctx *ref = kr_test_ctx(1, "ref");
    problem p = problem_make(2, 150, 70, 2, 5, WITH_D | WITH_INITIAL);
    for (int n = 0; n < NIN; n++)
        for (int64_t i = 0; p.values[n] && i < count_of(p.shapes[n]); i++) {
            if (n == A) p.values[n][i] = -1 - 15 * (double)(i % 16) / 15;
            else if (n == DT) p.values[n][i] = (double)(float)pow(10, kr_test_uniform(-6, 0));
            else p.values[n][i] = fabs(p.values[n][i]);
        }
    positive_seeds = true;
    outcome want = outcome_of(ref, &p, KR_DTYPE_F64, whole, true), got = outcome_of(ctx, &p, dtype, whole, true);
    positive_seeds = false;
    for (int64_t i = 0; want.g[A] && got.g[A] && i < count_of(p.shapes[A]); i++)
        CHECK(fabs(got.g[A][i] - want.g[A][i]) <= (dtype == KR_DTYPE_F32 ? 1e-5 : 1e-12) * fabs(want.g[A][i]),
              "g_a[%lld] = %.9g, but expected %.9g", (long long)i, got.g[A][i], want.g[A][i]);
    outcome_free(&got);
    outcome_free(&want);
    problem_free(&p);
    kr_ctx_destroy(ref);
}

TEST(scan_gradients_over_step_sizes)
{
    everywhere(check_step_sizes);
}

/* A consumer of the state alone, and of y alone. */
TEST(scan_one_output_is_enough)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    problem p = problem_make(1, 4, 3, 1, 2, WITH_D | WITH_Z);
    double *g_x[2];
    for (int only = 0; only < 2; only++) {
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
        kr_tensor *in[NIN];
        const kr_selective_scan_input input = operands(tape, &p, KR_DTYPE_F64, in);
        const kr_scan_out out = kr_selective_scan(tape, &input);
        kr_tensor *const y = only ? out.final_state : out.y_bsi, *g = seeds_like(tape, y);
        kr_backward_from(tape, 1, &y, &g);
        CHECK_OK(ctx);
        g_x[only] = kr_test_values(kr_grad(in[X]));
        if (only) {
            double *g_c = kr_test_values(kr_grad(in[C]));
            for (int64_t i = 0; i < count_of(p.shapes[C]); i++) CHECK(g_c[i] == 0, "the state does not depend on c");
            free(g_c);
        }
        kr_tape_destroy(tape);
    }
    outcome both = outcome_of(ctx, &p, KR_DTYPE_F64, whole, true);
    for (int64_t i = 0; i < count_of(p.shapes[X]); i++) g_x[0][i] += g_x[1][i];
    CHECK_CLOSE("g_x of y and of the state", g_x[0], both.g[X], count_of(p.shapes[X]), &p.shapes[X], 1e-14, 1);
    free(g_x[0]);
    free(g_x[1]);
    outcome_free(&both);
    problem_free(&p);
    kr_ctx_destroy(ctx);
}

/* ---- laws ---- */

/* Tokens from .. to-1 of all rows, or of one. */
static kr_selective_scan_input part_of(kr_tape *tape, const kr_selective_scan_input *in, int64_t row, int64_t from,
                                       int64_t to)
{
    kr_selective_scan_input part = *in;
    kr_tensor **const cut[] = {
        &part.x_bsi, &part.dt_bsi, &part.b_bsgr, &part.c_bsgr, &part.z_bsi, &part.seq_start_bs
    };
    for (size_t n = 0; n < sizeof cut / sizeof *cut; n++) {
        if (!*cut[n]) continue;
        *cut[n] = kr_slice(tape, *cut[n], 1, from, to);
        if (row >= 0) *cut[n] = kr_slice(tape, *cut[n], 0, row, row + 1);
    }
    return part;
}

static int64_t split_at;

static kr_scan_out split(kr_tape *tape, const problem *p, const kr_selective_scan_input *in)
{
    kr_selective_scan_input first = part_of(tape, in, -1, 0, split_at);
    kr_selective_scan_input rest = part_of(tape, in, -1, split_at, p->ns);
    kr_scan_out a = kr_selective_scan(tape, &first);
    rest.initial_state_bir = a.final_state;
    kr_scan_out b = kr_selective_scan(tape, &rest);
    return (kr_scan_out){ .y_bsi = kr_concat(tape, 1, 2, (kr_tensor *[]){ a.y_bsi, b.y_bsi }),
                          .final_state = b.final_state };
}

static void check_split(kr_ctx *ctx, kr_dtype dtype)
{
    problem p = problem_make(2, 36, 19, 1, 5, WITH_D | WITH_Z | WITH_INITIAL);
    outcome want = outcome_of(ctx, &p, dtype, whole, true);
    for (split_at = 1; split_at < p.ns; split_at += 5) {
        outcome got = outcome_of(ctx, &p, dtype, split, true);
        check_outcomes("split", &p, &got, &want, dtype == KR_DTYPE_F32 ? 1e-6 : 1e-14,
                       dtype == KR_DTYPE_F32 ? 2e-6 : 1e-13);
        outcome_free(&got);
    }
    outcome_free(&want);
    problem_free(&p);
}

TEST(scan_split_anywhere_is_whole)
{
    everywhere(check_split);
}

static kr_scan_out one_by_one(kr_tape *tape, const problem *p, const kr_selective_scan_input *in)
{
    kr_tensor *state = in->initial_state_bir, *y[64];
    for (int64_t s = 0; s < p->ns; s++) {
        kr_selective_scan_input token = part_of(tape, in, -1, s, s + 1);
        token.initial_state_bir = state;
        kr_scan_out out = kr_selective_scan(tape, &token);
        y[s] = out.y_bsi;
        state = out.final_state;
    }
    return (kr_scan_out){ .y_bsi = kr_concat(tape, 1, (int)p->ns, y), .final_state = state };
}

static void check_steps(kr_ctx *ctx, kr_dtype dtype)
{
    problem p = problem_make(2, 20, 35, 5, 4, WITH_D | WITH_Z);
    outcome want = outcome_of(ctx, &p, dtype, whole, true), got = outcome_of(ctx, &p, dtype, one_by_one, true);
    check_outcomes("steps", &p, &got, &want, dtype == KR_DTYPE_F32 ? 1e-6 : 1e-14,
                   dtype == KR_DTYPE_F32 ? 2e-6 : 1e-13);
    outcome_free(&got);
    outcome_free(&want);
    problem_free(&p);
}

TEST(scan_token_by_token_is_whole)
{
    everywhere(check_steps);
}

/* Each sequence of packed rows separately. */
static kr_scan_out separately(kr_tape *tape, const problem *p, const kr_selective_scan_input *in)
{
    kr_tensor *y[64], *final[64], *rows[8];
    int nq = 0;
    for (int64_t b = 0; b < p->nb; b++) {
        const int before = nq;
        for (int64_t from = 0, to; from < p->ns; from = to, nq++) {
            for (to = from + 1; to < p->ns && !p->marker[b * p->ns + to];) to++;
            kr_selective_scan_input one = part_of(tape, in, b, from, to);
            one.seq_start_bs = NULL;
            if (in->initial_state_bir) one.initial_state_bir = kr_slice(tape, in->initial_state_bir, 0, nq, nq + 1);
            kr_scan_out out = kr_selective_scan(tape, &one);
            y[nq] = out.y_bsi;
            final[nq] = out.final_state;
        }
        rows[b] = kr_concat(tape, 1, nq - before, y + before);
    }
    return (kr_scan_out){ .y_bsi = kr_concat(tape, 0, (int)p->nb, rows), .final_state = kr_concat(tape, 0, nq, final) };
}

static void check_packed(kr_ctx *ctx, kr_dtype dtype)
{
    problem p = problem_make(2, 25, 21, 3, 6, ALL);
    outcome got = outcome_of(ctx, &p, dtype, whole, true), want = outcome_of(ctx, &p, dtype, separately, true);
    check_outcomes("packed", &p, &got, &want, 0, dtype == KR_DTYPE_F32 ? 2e-6 : 1e-13); /* the same bits forward */
    outcome_free(&got);
    outcome_free(&want);
    problem_free(&p);
}

TEST(scan_packed_is_separate)
{
    everywhere(check_packed);
}

typedef struct recomputed {
    const kr_selective_scan_input *in;
} recomputed;

static void scan_again(kr_tape *tape, void *user, kr_tensor *const *in, kr_tensor **out)
{
    (void)in;
    const kr_scan_out o = kr_selective_scan(tape, ((const recomputed *)user)->in);
    out[0] = o.y_bsi;
    out[1] = o.final_state;
}

static kr_scan_out in_checkpoint(kr_tape *tape, const problem *p, const kr_selective_scan_input *in)
{
    (void)p;
    static kr_selective_scan_input kept; /* until the backward pass */
    static recomputed user = { &kept };
    kept = *in;
    kr_tensor *out[2];
    kr_checkpoint(tape, scan_again, &user, 0, NULL, 2, out);
    return (kr_scan_out){ .y_bsi = out[0], .final_state = out[1] };
}

TEST(scan_in_a_checkpoint)
{
    kr_ctx *ctx = kr_test_ctx(2, NULL);
    problem p = problem_make(2, 25, 21, 3, 6, ALL);
    outcome got = outcome_of(ctx, &p, KR_DTYPE_F32, in_checkpoint, true),
            want = outcome_of(ctx, &p, KR_DTYPE_F32, whole, true);
    check_outcomes("checkpoint", &p, &got, &want, 0, 0);
    outcome_free(&got);
    outcome_free(&want);
    problem_free(&p);
    kr_ctx_destroy(ctx);
}

TEST(scan_has_the_same_bits_for_any_number_of_threads)
{
    problem p = problem_make(3, 150, 320, 2, 8, ALL);
    kr_ctx *one = kr_test_ctx(1, NULL);
    outcome want = outcome_of(one, &p, KR_DTYPE_F32, whole, true);
    for (int threads = 2; threads <= 4; threads++) {
        kr_ctx *ctx = kr_test_ctx(threads, NULL);
        outcome got = outcome_of(ctx, &p, KR_DTYPE_F32, whole, true);
        check_outcomes("threads", &p, &got, &want, 0, 0);
        outcome_free(&got);
        kr_ctx_destroy(ctx);
    }
    outcome_free(&want);
    kr_ctx_destroy(one);
    problem_free(&p);
}

/* exp(dt a) from 1 to 0: nothing overflows, and a state decayed to 0 has no effect. */
static void check_extremes(kr_ctx *ctx, kr_dtype dtype)
{
    problem p = problem_make(1, 33, 17, 1, 6, WITH_D | WITH_INITIAL);
    for (int64_t i = 0; i < p.ni; i++)
        for (int64_t r = 0; r < p.nr; r++) p.values[A][i * p.nr + r] = r == 0 ? 0 : -(double)(float)pow(10, (double)r);
    outcome want = by_formula(&p), got = outcome_of(ctx, &p, dtype, whole, true);
    check_outcomes("extremes", &p, &got, &want, dtype == KR_DTYPE_F32 ? 2e-6 : 1e-14, 0);
    for (int n = 0; n < NIN; n++)
        for (int64_t i = 0; got.g[n] && i < count_of(p.shapes[n]); i++)
            CHECK(isfinite(got.g[n][i]), "g_%s is not finite", names[n]);
    outcome_free(&got);
    outcome_free(&want);
    problem_free(&p);
}

TEST(scan_extreme_decays)
{
    everywhere(check_extremes);
}

TEST(scan_stores_16bit)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    problem p = problem_make(2, 9, 18, 1, 3, ALL);
    kr_ctx *ref = kr_test_ctx(1, "ref");
    outcome want = outcome_of(ref, &p, KR_DTYPE_F64, whole, true),
            got = outcome_of(ctx, &p, KR_DTYPE_BF16, whole, true);
    check_outcomes("bf16", &p, &got, &want, 0x1p-6, 0x1p-5);
    outcome_free(&got);
    outcome_free(&want);
    problem_free(&p);
    kr_ctx_destroy(ref);
    kr_ctx_destroy(ctx);
}

/* The n-th allocation fails, for each n: an error, no crash, no leak. */
TEST(scan_starved)
{
    problem p = problem_make(2, 9, 18, 2, 3, ALL);
    for (size_t n = 1; n < 100; n++) {
        kr_ctx *ctx = kr_test_ctx(1, NULL);
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
        kr_ctx_fail_allocation(ctx, n);
        kr_tensor *in[NIN];
        const kr_selective_scan_input input = operands(tape, &p, KR_DTYPE_F32, in);
        const kr_scan_out out = kr_selective_scan(tape, &input);
        kr_tensor *const y[2] = { out.y_bsi, out.final_state };
        if (y[0] && y[1]) kr_backward_from(tape, 2, y, NULL);
        const bool failed = kr_ctx_failed(ctx);
        CHECK(!failed || kr_ctx_status(ctx) == KR_ERR_NOMEM, "%s", kr_ctx_message(ctx));
        kr_tape_destroy(tape);
        kr_ctx_destroy(ctx);
        if (!failed) break;
    }
    problem_free(&p);
}

/* ---- errors ---- */

/* The message when operand n has this shape and type instead (n = NIN: the marker). */
static void check_error(int n, kr_dtype dtype, kr_shape shape, kr_status status, const char *text)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    problem p = problem_make(2, 5, 6, 2, 3, WITH_D | WITH_Z | WITH_INITIAL);
    kr_tensor *in[NIN];
    kr_selective_scan_input input = operands(tape, &p, KR_DTYPE_F32, in);
    kr_tensor **const fields[NIN + 1] = { &input.x_bsi,       &input.dt_bsi, &input.a_ir,  &input.b_bsgr,
                                          &input.c_bsgr,      &input.d_i,    &input.z_bsi, &input.initial_state_bir,
                                          &input.seq_start_bs };
    *fields[n] = shape.rank < 0 ? NULL : kr_zeros(tape, dtype, shape);
    const kr_scan_out out = kr_selective_scan(tape, &input);
    CHECK(!out.y_bsi && !out.final_state, "refused, but not NULL");
    CHECK_ERROR(ctx, status, text);
    problem_free(&p);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

TEST(scan_errors)
{
    check_error(X, KR_DTYPE_F32, (kr_shape){ .rank = -1 }, KR_ERR_ARG, "selective_scan: operand x is NULL");
    check_error(X, KR_DTYPE_F32, KR_SHAPE(2, 6), KR_ERR_SHAPE,
                "selective_scan: x [2, 6] has rank 2, but must have 3 (axes bsi)");
    check_error(DT, KR_DTYPE_F32, KR_SHAPE(2, 4, 6), KR_ERR_SHAPE,
                "selective_scan: axis s of dt [2, 4, 6] is 4, but x [2, 5, 6] says s = 5");
    check_error(A, KR_DTYPE_F32, KR_SHAPE(7, 3), KR_ERR_SHAPE,
                "selective_scan: axis i of a [7, 3] is 7, but x [2, 5, 6] says i = 6");
    check_error(C, KR_DTYPE_F32, KR_SHAPE(2, 5, 2, 4), KR_ERR_SHAPE,
                "selective_scan: axis r of c [2, 5, 2, 4] is 4, but a [6, 3] says r = 3");
    check_error(D, KR_DTYPE_I32, KR_SHAPE(6), KR_ERR_DTYPE,
                "selective_scan: d [6] is i32, but must be f32, f64, bf16 or f16; kr_cast converts");
    check_error(Z, KR_DTYPE_F64, KR_SHAPE(2, 5, 6), KR_ERR_DTYPE,
                "selective_scan: z [2, 5, 6] is f64, but x is f32; f64 mixes with no other type, kr_cast one of them");
    check_error(INITIAL, KR_DTYPE_F32, KR_SHAPE(3, 6, 3), KR_ERR_SHAPE,
                "selective_scan: initial_state [3, 6, 3] must be [2, 6, 3]: a state for each sequence");
    check_error(NIN, KR_DTYPE_I32, KR_SHAPE(2, 4), KR_ERR_SHAPE,
                "selective_scan: seq_start [2, 4] must be [2, 5]: a flag for each token");
    check_error(NIN, KR_DTYPE_F32, KR_SHAPE(2, 5), KR_ERR_DTYPE,
                "selective_scan: seq_start [2, 5] is f32, but must be i32 or i64");
}

TEST(scan_refuses_sizes)
{
    const struct {
        int64_t nb, ns, ni, ng, nr;
        const char *text;
    } cases[] = {
        { 2, 0, 6, 1, 3, "selective_scan: x [2, 0, 6] has no token; a sequence needs at least one" },
        { 0, 5, 6, 1, 3, "selective_scan: x [0, 5, 6] and a [6, 3] have an empty axis" },
        { 2, 5, 6, 1, 0, "selective_scan: x [2, 5, 6] and a [6, 0] have an empty axis" },
        { 2, 5, 6, 4, 3, "selective_scan: g = 4 groups of b [2, 5, 4, 3] do not divide i = 6 channels" },
        { 2, 5, 6, 0, 3, "selective_scan: g = 0 groups of b [2, 5, 0, 3] do not divide i = 6 channels" },
    };
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        kr_ctx *ctx = kr_test_ctx(1, NULL);
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
        const int64_t nb = cases[n].nb, ns = cases[n].ns, ni = cases[n].ni, ng = cases[n].ng, nr = cases[n].nr;
        kr_tensor *x = kr_zeros(tape, KR_DTYPE_F32, KR_SHAPE(nb, ns, ni)),
                  *b = kr_zeros(tape, KR_DTYPE_F32, KR_SHAPE(nb, ns, ng, nr));
        const kr_selective_scan_input in = {
            .x_bsi = x, .dt_bsi = x, .a_ir = kr_zeros(tape, KR_DTYPE_F32, KR_SHAPE(ni, nr)), .b_bsgr = b, .c_bsgr = b
        };
        CHECK(!kr_selective_scan(tape, &in).y_bsi, "refused, but not NULL");
        CHECK_ERROR(ctx, KR_ERR_SHAPE, cases[n].text);
        kr_tape_destroy(tape);
        kr_ctx_destroy(ctx);
    }
}
