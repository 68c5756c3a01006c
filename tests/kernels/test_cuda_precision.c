/* test_cuda_precision.c - the SSD core on a device with products in bf16, against the f64 reference.
 *
 * Errors are of whole tensors: |got - want| / |want|, in the Euclidean norm. v, b, c and g_y are values of bf16, as with
 * bf16 activations; what remains are the roundings of the products' operands along the variant, 2^-9 / 3^(1/2) = 1.1e-3 each.
 * BOUND allows a dozen of them, which bf16 training does not notice.
 */
#include "kernels/args/mamba3_args.h"
#include "tests/kernels/both.h"

static const double BOUND = 4e-3;

/* For f32 arithmetic: sums of some hundred terms lose a few units of 2^-24 = 6e-8 each. */
static const double EXACT_BOUND = 2e-5;

static void check_error(const char *what, const char *text, const buffer *b)
{
    double error = 0, norm = 0;
    for (int64_t i = 0; i < b->count; i++) {
        const double e = (double)b->single[i] - b->exact[i];
        error += e * e;
        norm += b->exact[i] * b->exact[i];
    }
    const double relative = sqrt(error / (norm > 0 ? norm : 1));
    const double bound = precision == KR_PRECISION_BF16 ? BOUND : EXACT_BOUND;
    if (getenv("KR_TEST_ERRORS")) printf("  %s%s, %s: %.2e\n", text, limit_names[taken_for], what, relative);
    CHECK(relative <= bound, "%s%s, %s: relative error %.3g", text, limit_names[taken_for], what, relative);
}

/* ---- the core ---- */

typedef struct shape {
    const char *text;
    int64_t nb, ns, nm, nh, np, ng, nr;
    bool strict, with_states;
    double decay; /* da is in -[0, decay) */
} shape;

/* Operands of the core and its results. */
typedef struct core {
    shape n;
    kr_sequence sequences[MOST_SEQUENCES];
    int64_t nq;
    buffer *v, *b, *c, *da, *w, *diag_weight, *d, *initial, *y, *final;
    buffer *g_y, *g_final, *g_v, *g_b, *g_c, *g_da, *g_w, *g_diag_weight, *g_d, *g_initial;
    buffer *angle, *bias_b, *bias_c, *g_angle, *g_bias_b, *g_bias_c; /* NULL: no rotary */
    int64_t na;
    bool half;
    bool casts_bc; /* g_b and g_c are bf16 too, where wanted */
} core;

static core core_of(shape n, bool packed)
{
    core k = { .n = n };
    k.nq = cut_rows(k.sequences, n.nb, n.ns, packed);
    const int64_t tokens = n.nb * n.ns, values = tokens * n.nm * n.nh * n.np, states = k.nq * n.nh * n.np * n.nr;
    k.v = drawn_bf16(values, 1);
    k.da = drawn(tokens * n.nh, -n.decay, 0);
    k.w = drawn(tokens * n.nh, 0.1, 1.1);
    if (n.strict) k.diag_weight = drawn(tokens * n.nh, 0.1, 1.1);
    k.d = drawn(n.nh, -1, 1);
    if (n.with_states) k.initial = drawn(states, -1, 1), k.g_final = drawn(states, -1, 1);
    k.g_y = drawn_bf16(values, 1);
    k.y = blank(values), k.g_v = blank(values);
    k.final = blank(states), k.g_initial = blank(states);
    k.g_b = blank(tokens * n.nm * n.ng * n.nr), k.g_c = blank(tokens * n.nm * n.ng * n.nr);
    k.g_da = blank(tokens * n.nh), k.g_w = blank(tokens * n.nh), k.g_d = blank(n.nh);
    if (n.strict) k.g_diag_weight = blank(tokens * n.nh);
    return k;
}

static void run_core(core *k)
{
    const shape n = k->n;
    const int64_t values = n.nm * n.nh * n.np, maps = n.nm * n.ng * n.nr;
    const kr_ssd_args a = { .nb = n.nb,
                            .ns = n.ns,
                            .nm = n.nm,
                            .nh = n.nh,
                            .np = n.np,
                            .ng = n.ng,
                            .nr = n.nr,
                            .nl = 64,
                            .nq = k->nq,
                            .sequences = k->sequences,
                            .na = k->na,
                            .split_pairs = k->half };
#define HALVES(count) .may_halve = true, .row = (count)
    const link forward[] = { IN_OPERAND(kr_ssd_args, v, k->v, HALVES(values)),
                             IN_OPERAND(kr_ssd_args, b, k->b, HALVES(maps)),
                             IN_OPERAND(kr_ssd_args, c, k->c, HALVES(maps)),
                             IN(kr_ssd_args, da, k->da),
                             IN(kr_ssd_args, w, k->w),
                             IN(kr_ssd_args, diag_weight, k->diag_weight),
                             IN(kr_ssd_args, d, k->d),
                             IN(kr_ssd_args, initial, k->initial),
                             IN(kr_ssd_args, angle, k->angle),
                             IN(kr_ssd_args, bias_b, k->bias_b),
                             IN(kr_ssd_args, bias_c, k->bias_c),
                             OUT_OPERAND(kr_ssd_args, y, k->y, HALVES(values)),
                             OUT(kr_ssd_args, final, k->final) };
    RUN("ssd", a, forward);
    const kr_ssd_bwd_args back = { .nb = n.nb,
                                   .ns = n.ns,
                                   .nm = n.nm,
                                   .nh = n.nh,
                                   .np = n.np,
                                   .ng = n.ng,
                                   .nr = n.nr,
                                   .nl = 64,
                                   .nq = k->nq,
                                   .sequences = k->sequences,
                                   .na = k->na,
                                   .split_pairs = k->half };
    const link backward[] = { IN_OPERAND(kr_ssd_bwd_args, v, k->v, HALVES(values)),
                              IN_OPERAND(kr_ssd_bwd_args, b, k->b, HALVES(maps)),
                              IN_OPERAND(kr_ssd_bwd_args, c, k->c, HALVES(maps)),
                              IN(kr_ssd_bwd_args, da, k->da),
                              IN(kr_ssd_bwd_args, w, k->w),
                              IN(kr_ssd_bwd_args, diag_weight, k->diag_weight),
                              IN(kr_ssd_bwd_args, d, k->d),
                              IN(kr_ssd_bwd_args, initial, k->initial),
                              IN_OPERAND(kr_ssd_bwd_args, g_y, k->g_y, HALVES(values)),
                              IN(kr_ssd_bwd_args, g_final, k->g_final),
                              OUT_OPERAND(kr_ssd_bwd_args, g_v, k->g_v, HALVES(values), .may_part = n.nm == 1),
                              OUT_OPERAND(kr_ssd_bwd_args, g_b, k->g_b, .may_halve = k->casts_bc, .row = maps),
                              OUT_OPERAND(kr_ssd_bwd_args, g_c, k->g_c, .may_halve = k->casts_bc, .row = maps),
                              OUT(kr_ssd_bwd_args, g_da, k->g_da),
                              OUT(kr_ssd_bwd_args, g_w, k->g_w),
                              OUT(kr_ssd_bwd_args, g_diag_weight, k->g_diag_weight),
                              OUT(kr_ssd_bwd_args, g_d, k->g_d),
                              IN(kr_ssd_bwd_args, angle, k->angle),
                              IN(kr_ssd_bwd_args, bias_b, k->bias_b),
                              IN(kr_ssd_bwd_args, bias_c, k->bias_c),
                              OUT(kr_ssd_bwd_args, g_angle, k->g_angle),
                              OUT(kr_ssd_bwd_args, g_bias_b, k->g_bias_b),
                              OUT(kr_ssd_bwd_args, g_bias_c, k->g_bias_c),
                              OUT(kr_ssd_bwd_args, g_initial, k->g_initial) };
#undef HALVES
    RUN("ssd_bwd", back, backward);
}

static void check_core(const core *k, const char *text)
{
    check_error("y", text, k->y);
    check_error("final", text, k->final);
    check_error("g_v", text, k->g_v);
    check_error("g_b", text, k->g_b);
    check_error("g_c", text, k->g_c);
    check_error("g_da", text, k->g_da);
    check_error("g_w", text, k->g_w);
    if (k->g_diag_weight) check_error("g_diag_weight", text, k->g_diag_weight);
    check_error("g_d", text, k->g_d);
    check_error("g_initial", text, k->g_initial);
    if (k->angle) {
        check_error("g_angle", text, k->g_angle);
        check_error("g_bias_b", text, k->g_bias_b);
        check_error("g_bias_c", text, k->g_bias_c);
    }
}

/* Tokens outside all sequences are not written: both are zeroed there. */
static void clear_gaps(buffer *b)
{
    for (int64_t i = 0; i < b->count; i++)
        if (isnan(b->exact[i]) && isnan((double)b->single[i])) b->exact[i] = 0, b->single[i] = 0;
}

TEST(core_in_bf16_is_close_to_f64)
{
    static const shape shapes[] = {
        { "mamba-2", 1, 700, 1, 6, 64, 1, 128, false, false, 0.2 },
        { "mamba-2, slow decay", 1, 700, 1, 4, 64, 1, 128, false, false, 0.01 },
        { "mamba-3", 1, 700, 1, 4, 64, 4, 128, true, false, 0.2 },
        { "mamba-3 of ranks", 1, 200, 4, 4, 64, 4, 128, true, true, 0.2 },
        { "many heads of a group", 1, 130, 1, 40, 64, 2, 128, false, true, 0.2 },
        { "many heads of many chunks", 1, 330, 1, 70, 32, 1, 64, false, true, 0.2 },
        { "wide heads and states", 1, 150, 1, 2, 256, 1, 256, true, true, 0.1 },
        { "odd sizes", 2, 150, 3, 3, 37, 3, 53, true, true, 0.1 },
        { "small states", 2, 150, 1, 4, 32, 2, 16, false, true, 0.1 },
    };
    if (!device_kernels()) SKIP(device_why_not());
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++)
        for (taken_for = ITSELF; taken_for < last_limits(); taken_for++) {
            const shape n = shapes[i];
            core k = core_of(n, i % 2);
            const int64_t maps = n.nb * n.ns * n.nm * n.ng * n.nr;
            k.b = drawn_bf16(maps, 1), k.c = drawn_bf16(maps, 1 / sqrt((double)n.nr));
            run_core(&k);
            clear_gaps(k.y);
            check_core(&k, n.text);
            free_buffers();
        }
    taken_for = ITSELF;
}

enum { RESULTS = 10 };
typedef struct result {
    const char *name;
    const buffer *made;
    bool is_16bit;
} result;

/* With one bf16 g_b and g_c per head, the bits differ from those of f32: the rounding errors of states are left out. */
static void check_rounded(const core *k, const result *results, float *const *expected)
{
    const shape n = k->n;
    const bool is_approximate = precision == KR_PRECISION_BF16 && k->casts_bc && n.ng == n.nh;
    for (int i = 0; i < RESULTS; i++) {
        if (!results[i].made) continue;
        if (is_approximate) {
            check_error(results[i].name, n.text, results[i].made);
            continue;
        }
        const int64_t different = count_different(expected[i], results[i].made, results[i].is_16bit);
        CHECK(different == 0, "%s, precision %d, row gap %lld, %s: %lld of %lld differ", n.text, (int)precision,
              (long long)row_padding, results[i].name, (long long)different, (long long)results[i].made->count);
    }
}

static void check_halves(shape n, bool casts_bc, int64_t gap)
{
    core k = core_of(n, n.nb > 1);
    const int64_t maps = n.nb * n.ns * n.nm * n.ng * n.nr;
    float *expected[RESULTS] = { NULL };
    k.b = drawn_bf16(maps, 1), k.c = drawn_bf16(maps, 1 / sqrt((double)n.nr));
    k.casts_bc = casts_bc;
    run_core(&k);
    const result results[RESULTS] = {
        { "y", k.y, true },         { "final", k.final, false },
        { "g_v", k.g_v, true },     { "g_b", k.g_b, casts_bc },
        { "g_c", k.g_c, casts_bc }, { "g_da", k.g_da, false },
        { "g_w", k.g_w, false },    { "g_diag_weight", k.g_diag_weight, false },
        { "g_d", k.g_d, false },    { "g_initial", k.g_initial, false },
    };
    for (int i = 0; i < RESULTS; i++) {
        if (!results[i].made) continue;
        const size_t bytes = (size_t)results[i].made->count * sizeof(float);
        expected[i] = must_have(malloc(bytes + 1));
        memcpy(expected[i], results[i].made->single, bytes);
    }
    in_halves = true, row_padding = gap;
    run_core(&k);
    in_halves = false, row_padding = 0;
    clear_gaps(k.y);
    for (int64_t i = 0; i < k.y->count; i++)
        if (isnan((double)expected[0][i])) expected[0][i] = 0;
    check_rounded(&k, results, expected);
    for (int i = 0; i < RESULTS; i++) free(expected[i]);
    free_buffers();
}

/* bf16 operands give the bits that the same values in f32 give, and bf16 results are those of f32 rounded; on tensor cores,
 * and on the code paths without them. */
TEST(halves_give_the_bits_of_floats)
{
    static const shape shapes[] = {
        { "mamba-2", 1, 150, 1, 6, 64, 1, 128, false, true, 0.2 },
        { "mamba-3", 1, 150, 1, 2, 64, 2, 128, true, true, 0.2 },
        { "many heads of a group", 1, 70, 1, 60, 32, 2, 64, false, false, 0.2 },
        { "odd sizes", 2, 70, 3, 3, 37, 1, 53, false, true, 0.1 },
        { "odd sizes of one rank", 2, 70, 1, 3, 37, 3, 53, true, true, 0.1 },
        { "a step", 3, 1, 1, 4, 64, 1, 128, false, true, 0.1 },
        { "many ranks", 1, 9, 70, 2, 5, 1, 7, false, true, 0.1 },
    };
    for (int n = 0; (judged = kr_judged_set(n)) != NULL; n++) {
        if (!(judged->accepts.ssd_v & KR_DTYPE_BIT(KR_DTYPE_BF16))) continue;
        const bool is_device = judged == device_kernels();
        for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++)
            for (taken_for = ITSELF; taken_for < (is_device ? last_limits() : NO_WARPGROUPS); taken_for++)
                for (int variant = is_device ? 0 : 2; variant < 4; variant++) {
                    precision = variant < 2 ? KR_PRECISION_BF16 : KR_PRECISION_EXACT;
                    check_halves(shapes[i], variant % 2, variant % 2 ? 8 : i % 4);
                }
    }
    judged = NULL;
    precision = KR_PRECISION_BF16;
    taken_for = ITSELF;
}

/* ---- angles ---- */

/* Angles that accumulate rotate B and C: a token's increment rotates all later tokens against all earlier ones, and its
 * gradient is the sum of nearly all of g_angle, most of which cancels. */
static void check_angles(shape n, bool half, int64_t na, bool packed)
{
    core k = core_of(n, packed);
    const int64_t tokens = n.nb * n.ns, maps = tokens * n.nm * n.ng * n.nr, bias = n.nh * n.nm * n.nr;
    kr_sequence rows[MOST_SEQUENCES]; /* angles have no gaps */
    const int64_t nrows = cut_rows(rows, n.nb, n.ns, false);
    const kr_angles_args angles = {
        .nb = n.nb, .ns = n.ns, .nh = n.nh, .na = na, .nq = nrows, .sequences = rows, .range = 1
    };
    buffer *theta = drawn(tokens * na, -1, 1), *dt = drawn(tokens * n.nh, 0.02, 0.5), *last = blank(nrows * n.nh * na);
    k.na = na, k.half = half;
    k.angle = blank(tokens * n.nh * na), k.g_angle = blank(tokens * n.nh * na);
    const link forward[] = { IN_OPERAND(kr_angles_args, theta, theta, .row = na), IN(kr_angles_args, dt, dt),
                             OUT(kr_angles_args, angle, k.angle), OUT(kr_angles_args, final, last) };
    RUN("angles", angles, forward);
    const double of_c = 1 / sqrt((double)n.nr);
    k.b = drawn_bf16(maps, 1), k.c = drawn_bf16(maps, of_c);
    k.bias_b = drawn(bias, -1, 1), k.bias_c = drawn(bias, -of_c, of_c);
    k.g_bias_b = blank(bias), k.g_bias_c = blank(bias);
    run_core(&k);
    clear_gaps(k.y);
    check_core(&k, n.text);
    const kr_angles_bwd_args back = {
        .nb = n.nb, .ns = n.ns, .nh = n.nh, .na = na, .nq = nrows, .sequences = rows, .range = 1
    };
    buffer *g_theta = blank(tokens * na), *g_dt = blank(tokens * n.nh);
    const link backward[] = { IN_OPERAND(kr_angles_bwd_args, theta, theta, .row = na), IN(kr_angles_bwd_args, dt, dt),
                              IN(kr_angles_bwd_args, g_angle, k.g_angle),
                              OUT_OPERAND(kr_angles_bwd_args, g_theta, g_theta, .row = na),
                              OUT(kr_angles_bwd_args, g_dt, g_dt) };
    RUN("angles_bwd", back, backward);
    check_error("gradient of the angles' theta", n.text, g_theta);
    check_error("gradient of the angles' dt", n.text, g_dt);
    free_buffers();
}

TEST(gradients_of_angles_in_bf16_are_close_to_f64)
{
    static const struct angles {
        shape n;
        int64_t na;
        bool half, packed;
    } cases[] = {
        { { "angles", 1, 1500, 1, 2, 64, 1, 128, true, false, 0.2 }, 64, false, false },
        { { "angles, slow decay", 1, 1500, 1, 2, 64, 1, 128, true, false, 0.01 }, 32, false, false },
        { { "angles, pairs of halves", 1, 700, 1, 2, 64, 1, 128, true, false, 0.01 }, 32, true, false },
        { { "angles of ranks", 1, 300, 4, 2, 64, 2, 64, true, true, 0.2 }, 32, true, false },
        { { "angles, packed rows", 3, 200, 1, 6, 40, 2, 64, true, true, 0.1 }, 28, false, true },
        { { "angles, odd sizes", 2, 150, 1, 3, 37, 1, 53, true, true, 0.1 }, 13, false, true },
        { { "angles, wide rows", 2, 150, 1, 3, 64, 1, 104, false, true, 0.1 }, 52, false, false },
        { { "angles of many heads", 1, 130, 1, 50, 64, 1, 128, true, false, 0.1 }, 64, false, false },
        { { "angles of many heads and chunks", 1, 330, 1, 70, 32, 1, 64, true, false, 0.1 }, 32, false, false },
        { { "angles, a short row", 2, 64, 1, 4, 64, 1, 128, true, true, 0.1 }, 64, false, false },
    };
    if (!device_kernels()) SKIP(device_why_not());
    if (!device_is_cuda()) SKIP("this device's core takes no angles");
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++)
        for (taken_for = ITSELF; taken_for < last_limits(); taken_for++)
            check_angles(cases[i].n, cases[i].half, cases[i].na, cases[i].packed);
    taken_for = ITSELF;
}

/* In f32 the core rotates B and C of each head first. */
TEST(core_of_angles_in_f32_is_close_to_f64)
{
    static const shape one = { "angles in f32", 2, 70, 1, 4, 24, 2, 20, true, true, 0.1 };
    static const shape ranks = { "angles of ranks in f32", 1, 33, 3, 4, 16, 1, 18, false, true, 0.1 };
    static const shape few = { "angles of a few tokens in f32", 3, 2, 1, 4, 64, 1, 128, true, true, 0.1 };
    if (!device_kernels()) SKIP(device_why_not());
    if (!device_is_cuda()) SKIP("this device's core takes no angles");
    precision = KR_PRECISION_EXACT;
    check_angles(one, false, 7, true);
    check_angles(ranks, true, 9, false);
    check_angles(few, false, 64, false);
    precision = KR_PRECISION_BF16;
}

/* ---- quaternions ---- */

/* B or C before and after their rotation. */
typedef struct rotated {
    buffer *x, *y, *g_y, *g_x, *g_cum;
} rotated;

static void add_to(buffer *a, const buffer *b)
{
    for (int64_t i = 0; i < a->count; i++) a->exact[i] += b->exact[i], a->single[i] += b->single[i];
}

/* The same with quaternions instead of angles, by a separate kernel. */
static void rotate_four(rotated *t, const core *k, buffer *cum, int64_t nj)
{
    const shape n = k->n;
    const kr_quaternion_rotate_args a = { .no = n.nb * n.ns, .nm = n.nm, .nh = n.nh, .nr = n.nr, .nj = nj };
    const link links[] = { IN(kr_quaternion_rotate_args, x, t->x), IN(kr_quaternion_rotate_args, cum, cum),
                           OUT(kr_quaternion_rotate_args, y, t->y) };
    RUN("quaternion_rotate", a, links);
}

static void rotate_four_bwd(rotated *t, const core *k, buffer *cum, int64_t nj)
{
    const shape n = k->n;
    const kr_quaternion_rotate_bwd_args a = { .no = n.nb * n.ns, .nm = n.nm, .nh = n.nh, .nr = n.nr, .nj = nj };
    const link links[] = { IN(kr_quaternion_rotate_bwd_args, x, t->x), IN(kr_quaternion_rotate_bwd_args, cum, cum),
                           IN(kr_quaternion_rotate_bwd_args, g_y, t->g_y),
                           OUT(kr_quaternion_rotate_bwd_args, g_x, t->g_x),
                           OUT(kr_quaternion_rotate_bwd_args, g_cum, t->g_cum) };
    RUN("quaternion_rotate_bwd", a, links);
}

static rotated four_of(const core *k, double scale, int64_t nj)
{
    const shape n = k->n;
    const int64_t tokens = n.nb * n.ns, rows = tokens * n.nm * n.nh * n.nr;
    return (rotated){ drawn_bf16(rows, scale), blank(rows), NULL, blank(rows), blank(tokens * n.nh * nj * 4) };
}

static void check_quaternions(shape n)
{
    core k = core_of(n, false);
    const int64_t nj = n.nr / 4, heads = n.nb * n.ns * n.nh;
    buffer *raw = drawn(heads * nj * 3, -1, 1), *dt = drawn(heads, 0.02, 0.5), *q = blank(heads * nj * 4);
    buffer *cum = blank(heads * nj * 4), *last = blank(k.nq * n.nh * nj * 4);
    const kr_quaternion_exp_args make = { .no = heads, .nj = nj, .range = 1 };
    const link making[] = { IN(kr_quaternion_exp_args, raw, raw), IN(kr_quaternion_exp_args, dt, dt),
                            OUT(kr_quaternion_exp_args, q, q) };
    RUN("quaternion_exp", make, making);
    const kr_quaternion_scan_args scan = {
        .nb = n.nb, .ns = n.ns, .nh = n.nh, .nj = nj, .nq = k.nq, .sequences = k.sequences
    };
    const link scanning[] = { IN(kr_quaternion_scan_args, q, q), OUT(kr_quaternion_scan_args, cum, cum),
                              OUT(kr_quaternion_scan_args, final, last) };
    RUN("quaternion_scan", scan, scanning);
    rotated b = four_of(&k, 1, nj), c = four_of(&k, 1 / sqrt((double)n.nr), nj);
    rotate_four(&b, &k, cum, nj);
    rotate_four(&c, &k, cum, nj);
    k.b = b.y, k.c = c.y;
    run_core(&k);
    check_core(&k, n.text);
    b.g_y = k.g_b, c.g_y = k.g_c;
    rotate_four_bwd(&b, &k, cum, nj);
    rotate_four_bwd(&c, &k, cum, nj);
    add_to(b.g_cum, c.g_cum);
    buffer *g_q = blank(heads * nj * 4), *g_raw = blank(heads * nj * 3), *g_dt = blank(heads);
    const kr_quaternion_scan_bwd_args back = {
        .nb = n.nb, .ns = n.ns, .nh = n.nh, .nj = nj, .nq = k.nq, .sequences = k.sequences
    };
    const link scanning_back[] = { IN(kr_quaternion_scan_bwd_args, q, q), IN(kr_quaternion_scan_bwd_args, cum, cum),
                                   IN(kr_quaternion_scan_bwd_args, g_cum, b.g_cum),
                                   OUT(kr_quaternion_scan_bwd_args, g_q, g_q) };
    RUN("quaternion_scan_bwd", back, scanning_back);
    const kr_quaternion_exp_bwd_args unmake = { .no = heads, .nj = nj, .range = 1 };
    const link unmaking[] = { IN(kr_quaternion_exp_bwd_args, raw, raw), IN(kr_quaternion_exp_bwd_args, dt, dt),
                              IN(kr_quaternion_exp_bwd_args, g_q, g_q), OUT(kr_quaternion_exp_bwd_args, g_raw, g_raw),
                              OUT(kr_quaternion_exp_bwd_args, g_dt, g_dt) };
    RUN("quaternion_exp_bwd", unmake, unmaking);
    check_error("gradient of the generators", n.text, g_raw);
    check_error("gradient of the generators' dt", n.text, g_dt);
    free_buffers();
}

TEST(gradients_of_quaternions_in_bf16_are_close_to_f64)
{
    static const shape n = { "quaternions", 1, 1000, 1, 2, 64, 2, 64, true, false, 0.2 };
    if (!device_kernels()) SKIP(device_why_not());
    check_quaternions(n);
}
