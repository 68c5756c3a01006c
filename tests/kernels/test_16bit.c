/* test_16bit.c - operands and results of bf16, and rows that are apart, in every set that takes them (kernels/accepts.def):
 * the reference, and that of a GPU. They have the bits of f32 and contiguous rows, a result of bf16 being the f32 one
 * rounded; nothing is written between rows. The state space core has such a test in test_cuda_precision.c. */
#include "tests/kernels/both.h"

#include "base/half.h"
#include "kernels/args/mamba3_args.h"

static void run_copy(const char *name, const void *args, size_t bytes, const link *links, int nlinks)
{
    char copy[ARGS_BYTES];
    if (bytes > sizeof copy || nlinks > LINKS) exit(2);
    memcpy(copy, args, bytes);
    run_judged(kr_kernel_named(name), copy, links, nlinks);
}

/* Copies of the results; of those that are added to only, if `adds`. */
static void copy_results(float *copies[LINKS], const link *links, int nlinks, bool adds)
{
    for (int i = 0; i < nlinks; i++) {
        if (!links[i].is_output || !links[i].to || (adds && !links[i].adds)) continue;
        const size_t size = (size_t)links[i].to->count * sizeof(float);
        copies[i] = must_have(malloc(size + 1));
        memcpy(copies[i], links[i].to->single, size);
    }
}

/* Runs it plainly, and then in bf16 and with `gap` elements between rows. */
static void check_law(const char *name, const void *args, size_t bytes, const link *links, int nlinks, int64_t gap)
{
    float *expected[LINKS] = { NULL }, *before[LINKS] = { NULL };
    copy_results(before, links, nlinks, true);
    run_copy(name, args, bytes, links, nlinks);
    copy_results(expected, links, nlinks, false);
    for (int i = 0; i < nlinks; i++) {
        if (before[i]) memcpy(links[i].to->single, before[i], (size_t)links[i].to->count * sizeof(float));
        free(before[i]);
    }
    in_halves = true, row_padding = gap;
    run_copy(name, args, bytes, links, nlinks);
    in_halves = false, row_padding = 0;
    for (int i = 0; i < nlinks; i++) {
        if (!expected[i]) continue;
        const int64_t different = count_different(expected[i], links[i].to, links[i].may_halve);
        CHECK(different == 0, "%s, row gap %lld, result %d: %lld of %lld differ", name, (long long)gap, i,
              (long long)different, (long long)links[i].to->count);
        free(expected[i]);
    }
    free_buffers();
}

#define LAW(name, args, links, gap)                                                                                    \
    check_law(name, &(args), sizeof(args), links, (int)(sizeof(links) / sizeof *(links)), gap)

/* Rows that allow 16-byte accesses, and rows that do not; short ones, and ones longer than a CTA's tile. */
static const struct {
    int64_t no, ni, padding;
} shapes[] = { { 37, 64, 8 }, { 19, 61, 3 }, { 5, 64, 1 }, { 700, 1536, 16 }, { 3, 9000, 4 }, { 1, 12, 4 } };
enum { NSHAPES = (int)(sizeof shapes / sizeof *shapes) };

/* The body, for each set that takes bf16 for that operand. */
#define FOR_SETS_THAT_TAKE(operand)                                                                                    \
    for (int n_set = 0; (judged = kr_judged_set(n_set)) != NULL; n_set++)                                              \
        if (judged->accepts.operand & KR_DTYPE_BIT(KR_DTYPE_BF16))

#define ROWS(ni) .may_halve = true, .may_part = true, .row = (ni)

static void gate_law(int64_t no, int64_t ni, int64_t gap)
{
    const kr_gate_args a = { .no = no, .ni = ni };
    const link forth[] = { IN_OPERAND(kr_gate_args, x, drawn_bf16(no * ni, 1), ROWS(ni)),
                           IN_OPERAND(kr_gate_args, z, drawn_bf16(no * ni, 4), .may_halve = true, .row = ni),
                           OUT_OPERAND(kr_gate_args, y, blank(no * ni), .may_halve = true, .row = ni) };
    LAW("gate", a, forth, gap);
    const kr_gate_bwd_args b = { .no = no, .ni = ni };
    const link back[] = { IN_OPERAND(kr_gate_bwd_args, x, drawn_bf16(no * ni, 1), .may_halve = true, .row = ni),
                          IN_OPERAND(kr_gate_bwd_args, z, drawn_bf16(no * ni, 4), .may_halve = true, .row = ni),
                          IN_OPERAND(kr_gate_bwd_args, g_y, drawn_bf16(no * ni, 1), .may_halve = true, .row = ni),
                          OUT_OPERAND(kr_gate_bwd_args, g_x, blank(no * ni), ROWS(ni)),
                          OUT_OPERAND(kr_gate_bwd_args, g_z, blank(no * ni), ROWS(ni)) };
    LAW("gate_bwd", b, back, gap);
}

static void norm_law(int64_t no, int64_t ni, int64_t gap, int kind)
{
    const bool gated = kind > 0;
    const kr_norm_args a = { .no = no, .ni = ni, .ng = 1, .eps = 1e-5, .norm_first = kind == 2 };
    const link forth[] = { IN_OPERAND(kr_norm_args, x, drawn_bf16(no * ni, 1), ROWS(ni)),
                           IN_OPERAND(kr_norm_args, z, gated ? drawn_bf16(no * ni, 2) : NULL, ROWS(ni)),
                           IN(kr_norm_args, gain, drawn(ni, -2, 2)),
                           OUT_OPERAND(kr_norm_args, y, blank(no * ni), .may_halve = true, .row = ni),
                           OUT(kr_norm_args, q, blank(no)) };
    LAW("norm", a, forth, gap);
    const kr_norm_bwd_args b = { .no = no, .ni = ni, .ng = 1, .norm_first = kind == 2 };
    const link back[] = { IN_OPERAND(kr_norm_bwd_args, x, drawn_bf16(no * ni, 1), ROWS(ni)),
                          IN_OPERAND(kr_norm_bwd_args, z, gated ? drawn_bf16(no * ni, 2) : NULL, ROWS(ni)),
                          IN(kr_norm_bwd_args, gain, drawn(ni, -2, 2)),
                          IN(kr_norm_bwd_args, q, drawn(no, 0.5, 2)),
                          IN_OPERAND(kr_norm_bwd_args, g_y, drawn_bf16(no * ni, 1), .may_halve = true, .row = ni),
                          OUT_OPERAND(kr_norm_bwd_args, g_x, blank(no * ni), ROWS(ni)),
                          OUT_OPERAND(kr_norm_bwd_args, g_z, gated ? blank(no * ni) : NULL, ROWS(ni)),
                          OUT(kr_norm_bwd_args, g_gain, blank(ni)) };
    LAW("norm_bwd", b, back, gap);
}

/* What is added to a gradient has the bits of a separate sum. */
static void accumulation_law(int64_t no, int64_t ni)
{
    kr_norm_bwd_args a = { .no = no, .ni = ni, .ng = 1 };
    buffer *g_x = blank(no * ni), *before = drawn(no * ni, -1, 1);
    float *sum = must_have(malloc((size_t)(no * ni) * sizeof(float)));
    link links[] = { IN_OPERAND(kr_norm_bwd_args, x, drawn(no * ni, -1, 1), .row = ni),
                     IN(kr_norm_bwd_args, gain, drawn(ni, -2, 2)), IN(kr_norm_bwd_args, q, drawn(no, 0.5, 2)),
                     IN_OPERAND(kr_norm_bwd_args, g_y, drawn(no * ni, -1, 1), .row = ni),
                     OUT_OPERAND(kr_norm_bwd_args, g_x, g_x, .row = ni) };
    enum { NLINKS = (int)(sizeof links / sizeof *links) };
    run_copy("norm_bwd", &a, sizeof a, links, NLINKS);
    for (int64_t i = 0; i < no * ni; i++) sum[i] = before->single[i] + g_x->single[i];
    links[NLINKS - 1].to = before;
    links[NLINKS - 1].adds = true;
    a.accumulate = true;
    run_copy("norm_bwd", &a, sizeof a, links, NLINKS);
    const int64_t different = count_different(sum, before, false);
    CHECK(different == 0, "%s, [%lld, %lld]: %lld of what is accumulated differ", judged->name, (long long)no,
          (long long)ni, (long long)different);
    free(sum);
    free_buffers();
}

/* The same of the angles' gradient, to which B and C add one after another. */
static void angle_law(int64_t no, int64_t nm, bool split_pairs)
{
    enum { NH = 3, NR = 40, NA = 18 };
    const int64_t n = no * nm * NH * NR, angles = no * NH * NA;
    kr_rotate_bwd_args a = { .no = no, .nm = nm, .nh = NH, .ng = NH, .nr = NR, .na = NA, .split_pairs = split_pairs };
    buffer *g_angle = blank(angles), *before = drawn(angles, -1, 1);
    float *sum = must_have(malloc((size_t)angles * sizeof(float)));
    link links[] = { IN(kr_rotate_bwd_args, x, drawn(n, -1, 1)), IN(kr_rotate_bwd_args, angle, drawn(angles, -3, 3)),
                     IN(kr_rotate_bwd_args, g_y, drawn(n, -1, 1)), OUT(kr_rotate_bwd_args, g_x, blank(n)),
                     OUT(kr_rotate_bwd_args, g_angle, g_angle) };
    enum { NLINKS = (int)(sizeof links / sizeof *links) };
    run_copy("rotate_bwd", &a, sizeof a, links, NLINKS);
    for (int64_t i = 0; i < angles; i++) sum[i] = before->single[i] + g_angle->single[i];
    links[NLINKS - 1].to = before;
    links[NLINKS - 1].adds = true;
    a.accumulate = true;
    run_copy("rotate_bwd", &a, sizeof a, links, NLINKS);
    const int64_t different = count_different(sum, before, false);
    CHECK(different == 0, "%s, %lld tokens of rank %lld, %s pairs: %lld of what is accumulated differ", judged->name,
          (long long)no, (long long)nm, split_pairs ? "split" : "adjacent", (long long)different);
    free(sum);
    free_buffers();
}

TEST(norms_and_gates_in_halves)
{
    FOR_SETS_THAT_TAKE(norm_x)
    for (int i = 0; i < NSHAPES; i++) {
        gate_law(shapes[i].no, shapes[i].ni, shapes[i].padding);
        for (int kind = 0; kind < 3; kind++) norm_law(shapes[i].no, shapes[i].ni, shapes[i].padding, kind);
    }
    judged = NULL;
}

TEST(gradients_of_norms_and_angles_accumulate)
{
    for (int n = 0; (judged = kr_judged_set(n)) != NULL; n++) {
        for (int i = 0; i < NSHAPES; i++) accumulation_law(shapes[i].no, shapes[i].ni);
        for (int i = 0; i < 4; i++) angle_law(7, 1 + 3 * (i / 2), i % 2);
    }
    judged = NULL;
}

/* g_y in one tensor, and in three of bf16; tap counts with specialised loops, and more. */
static void conv_law(int64_t nk, int64_t nb, int64_t ns)
{
    enum { PARTS = 3, NV = 88 };
    static const int64_t from[PARTS + 1] = { 0, 64, 76, NV };
    const int64_t tokens = nb * ns;
    kr_sequence list[MOST_SEQUENCES];
    kr_conv_bwd_args a = { .nb = nb, .ns = ns, .nv = NV, .nk = nk, .x_batch = ns * NV, .silu = true };
    a.nq = cut_rows(list, nb, ns, nb > 1);
    a.sequences = list;
    a.ng_y = 1, a.from[1] = NV;
    buffer *g_y = drawn_bf16(tokens * NV, 1), *g_x = blank(tokens * NV), *g_weight = blank(NV * nk);
    link links[] = { IN_OPERAND(kr_conv_bwd_args, x, drawn_bf16(tokens * NV, 1), .may_halve = true, .row = NV),
                     IN(kr_conv_bwd_args, weight, drawn(NV * nk, -1, 1)),
                     IN(kr_conv_bwd_args, bias, drawn(NV, -1, 1)),
                     OUT_OPERAND(kr_conv_bwd_args, g_x, g_x, .row = NV),
                     OUT(kr_conv_bwd_args, g_weight, g_weight),
                     IN_OPERAND(kr_conv_bwd_args, g_y[0], g_y, .row = NV),
                     { 0 },
                     { 0 } };
    enum { WHOLE = 6, IN_PARTS = 8 };
    run_copy("conv_bwd", &a, sizeof a, links, WHOLE);
    float *expected[2] = { must_have(malloc((size_t)g_x->count * sizeof(float))),
                           must_have(malloc((size_t)g_weight->count * sizeof(float))) };
    memcpy(expected[0], g_x->single, (size_t)g_x->count * sizeof(float));
    memcpy(expected[1], g_weight->single, (size_t)g_weight->count * sizeof(float));
    a.ng_y = PARTS;
    memcpy(a.from, from, sizeof from);
    for (int i = 0; i < PARTS; i++) {
        const int64_t width = from[i + 1] - from[i];
        buffer *part = blank(tokens * width);
        for (int64_t k = 0; k < part->count; k++) part->single[k] = g_y->single[k / width * NV + from[i] + k % width];
        links[WHOLE - 1 + i] = (link)IN_OPERAND(kr_conv_bwd_args, g_y[0], part, .may_halve = true, .row = width);
        links[WHOLE - 1 + i].field += (size_t)i * sizeof(kr_operand);
    }
    in_halves = true;
    run_copy("conv_bwd", &a, sizeof a, links, IN_PARTS);
    in_halves = false;
    CHECK(count_different(expected[0], g_x, false) == 0, "%lld taps, %lld rows: g_x differs", (long long)nk,
          (long long)nb);
    CHECK(count_different(expected[1], g_weight, false) == 0, "%lld taps: g_weight differs", (long long)nk);
    free(expected[0]);
    free(expected[1]);
    free_buffers();
}

static void conv_forth_law(int64_t nk, int64_t nb, int64_t ns)
{
    enum { NV = 88 };
    const int64_t tokens = nb * ns;
    kr_sequence list[MOST_SEQUENCES];
    kr_conv_args a = { .nb = nb, .ns = ns, .nv = NV, .nk = nk, .x_batch = ns * NV, .silu = true };
    a.nq = cut_rows(list, nb, ns, nb > 1);
    a.sequences = list;
    const link links[] = {
        IN_OPERAND(kr_conv_args, x, drawn_bf16(tokens * NV, 1), .may_halve = true, .row = NV),
        IN(kr_conv_args, weight, drawn(NV * nk, -1, 1)),
        IN(kr_conv_args, bias, drawn(NV, -1, 1)),
        OUT_OPERAND(kr_conv_args, y, blank(tokens * NV), .may_halve = true, .row = NV),
        OUT(kr_conv_args, window_out, blank(a.nq * NV * nk)),
    };
    LAW("conv", a, links, 0);
}

TEST(convolutions_in_halves)
{
    FOR_SETS_THAT_TAKE(conv_x)
    {
        conv_forth_law(4, 1, 150);
        conv_forth_law(4, 3, 50);
        conv_forth_law(2, 2, 40);
        conv_forth_law(6, 2, 30);
        conv_law(4, 1, 150);
        conv_law(4, 3, 50);
        conv_law(2, 2, 40);
        conv_law(6, 2, 30);
    }
    judged = NULL;
}

static void trapezoid_law(int64_t no, int64_t nh, int64_t gap)
{
    const kr_trapezoid_bwd_args a = { .no = no, .nh = nh, .a_floor = 1e-4, .dt_max = (double)INFINITY };
    const int64_t n = no * nh;
    const link links[] = {
        IN_OPERAND(kr_trapezoid_bwd_args, dt_raw, drawn(n, -4, 4), .may_part = true, .row = nh),
        IN_OPERAND(kr_trapezoid_bwd_args, a_raw, drawn(n, -4, 4), .may_part = true, .row = nh),
        IN_OPERAND(kr_trapezoid_bwd_args, lambda_raw, drawn(n, -4, 4), .may_part = true, .row = nh),
        IN(kr_trapezoid_bwd_args, dt_bias, drawn(nh, -1, 1)),
        IN(kr_trapezoid_bwd_args, g_dt, drawn(n, -1, 1)),
        IN(kr_trapezoid_bwd_args, g_da, drawn(n, -1, 1)),
        IN(kr_trapezoid_bwd_args, g_gamma, drawn(n, -1, 1)),
        IN(kr_trapezoid_bwd_args, g_carry, drawn(n, -1, 1)),
        OUT_OPERAND(kr_trapezoid_bwd_args, g_dt_raw, blank(n), ROWS(nh)),
        OUT_OPERAND(kr_trapezoid_bwd_args, g_a_raw, blank(n), ROWS(nh)),
        OUT_OPERAND(kr_trapezoid_bwd_args, g_lambda_raw, blank(n), ROWS(nh)),
        OUT(kr_trapezoid_bwd_args, g_dt_summed, blank(n)),
    };
    LAW("trapezoid_bwd", a, links, gap);
}

static void angles_law(int64_t nb, int64_t ns, int64_t nh, int64_t na, int64_t gap)
{
    kr_sequence list[MOST_SEQUENCES];
    kr_angles_bwd_args a = { .nb = nb, .ns = ns, .nh = nh, .na = na, .sequences = list, .range = 1 };
    for (a.nq = 0; a.nq < nb; a.nq++) list[a.nq] = (kr_sequence){ a.nq, 0, ns };
    const int64_t tokens = nb * ns;
    const link links[] = {
        IN_OPERAND(kr_angles_bwd_args, theta, drawn(tokens * na, -2, 2), .may_part = true, .row = na),
        IN(kr_angles_bwd_args, dt, drawn(tokens * nh, 0, 1)),
        IN(kr_angles_bwd_args, g_angle, drawn(tokens * nh * na, -1, 1)),
        OUT_OPERAND(kr_angles_bwd_args, g_theta, blank(tokens * na), ROWS(na)),
        OUT(kr_angles_bwd_args, g_dt, blank(tokens * nh)),
    };
    LAW("angles_bwd", a, links, gap);
}

TEST(gradients_of_steps_and_angles_in_halves)
{
    FOR_SETS_THAT_TAKE(trapezoid_bwd_g_raw)
    {
        trapezoid_law(300, 24, 8);
        trapezoid_law(41, 5, 3);
        angles_law(2, 150, 4, 32, 8);
        angles_law(1, 40, 3, 7, 5);
    }
    judged = NULL;
}

/* ---- decoding: what the reference takes, and what other sets take of it ---- */

#define HALF_ROWS .may_halve = true
#define STATE(args, name, count) OUT(args, name, drawn(count, -1, 1), .adds = true)

/* Norm, product and convolution. with: 0 a norm, 1 a gate and a base, 2 squares. */
static void decode_linear_law(int64_t nm, int64_t nn, int64_t nk, int with, int64_t gap)
{
    enum { NC = 3, NT = 4 };
    const bool gates = with == 1, squares = with == 2;
    const kr_decode_linear_args a = { .nm = nm,
                                      .nn = nn,
                                      .nk = nk,
                                      .ng = 1,
                                      .nsquares = squares ? 2 : 0,
                                      .has_norm = true,
                                      .norm_first = gates,
                                      .eps = 1e-5,
                                      .conv_from = 1,
                                      .nc = gates ? 0 : NC,
                                      .nt = NT };
    const link links[] = {
        IN_OPERAND(kr_decode_linear_args, x, drawn_bf16(nm * nk, 1), ROWS(nk)),
        IN_OPERAND(kr_decode_linear_args, z, gates ? drawn_bf16(nm * nk, 1) : NULL, ROWS(nk)),
        IN_OPERAND(kr_decode_linear_args, w, drawn_bf16(nn * nk, 1), HALF_ROWS, .row = nk),
        IN_OPERAND(kr_decode_linear_args, base, gates ? drawn_bf16(nm * nn, 1) : NULL, ROWS(nn)),
        IN_OPERAND(kr_decode_linear_args, taps, gates ? NULL : drawn_bf16(NC * NT, 1), HALF_ROWS, .row = NT),
        IN(kr_decode_linear_args, gain, squares ? NULL : drawn(nk, -2, 2)),
        IN(kr_decode_linear_args, bias, drawn(nn, -2, 2)),
        IN(kr_decode_linear_args, squares, squares ? drawn(2 * nm, 4, 12) : NULL),
        STATE(kr_decode_linear_args, window, nm * NC * NT),
        OUT_OPERAND(kr_decode_linear_args, y, blank(nm * nn), ROWS(nn)),
    };
    LAW("decode_linear", a, links, gap);
}

/* inputs: x, z, b, c and dt in halves, too. count: tokens that are pending; -1: updates are not deferred. */
static void decode_ssd_law(bool inputs, int64_t count, int64_t gap)
{
    enum { NB = 3, NH = 4, NP = 20, NG = 2, NR = 12, ROW = NH * NP };
    const kr_decode_ssd_args a = { .nb = NB, .nh = NH, .np = NP, .ng = NG, .nr = NR, .dt_max = (double)INFINITY };
    const kr_deferred_parts parts = kr_deferred_parts_of(NH, NP, NG, NR);
    const int64_t n = NB * ROW;
    buffer *deferred = count < 0 ? NULL : drawn(NB * parts.row, -0.9, 0.9);
    for (int64_t i = 0; deferred && i < NB * NH * parts.tiles; i++)
        deferred->single[i / (NH * parts.tiles) * parts.row + i % (NH * parts.tiles) * KR_DEFERRED_RECORD +
                         KR_DEFERRED_COUNT] = (float)count;
    const link links[] = { IN_OPERAND(kr_decode_ssd_args, x, drawn_bf16(n, 1), .may_halve = inputs, .row = ROW),
                           IN_OPERAND(kr_decode_ssd_args, b, drawn_bf16(n, 1), .may_halve = inputs, .row = ROW),
                           IN_OPERAND(kr_decode_ssd_args, c, drawn_bf16(n, 1), .may_halve = inputs, .row = ROW),
                           IN_OPERAND(kr_decode_ssd_args, dt, drawn_bf16(n, 1), .may_halve = inputs, .row = ROW),
                           IN_OPERAND(kr_decode_ssd_args, z, drawn_bf16(n, 1), .may_halve = inputs, .row = ROW),
                           IN(kr_decode_ssd_args, dt_bias, drawn(NH, -2, 1)),
                           IN(kr_decode_ssd_args, a_log, drawn(NH, -2, 1)),
                           IN(kr_decode_ssd_args, d, drawn(NH, -1, 1)),
                           IN(kr_decode_ssd_args, gain, drawn(ROW, 0.5, 2)),
                           STATE(kr_decode_ssd_args, state, n * NR),
                           OUT(kr_decode_ssd_args, deferred, deferred, .adds = true),
                           OUT(kr_decode_ssd_args, squares, blank(NB * NH * parts.tiles)),
                           OUT_OPERAND(kr_decode_ssd_args, y, blank(n), ROWS(ROW)) };
    LAW("decode_ssd", a, links, gap);
}

static void decode_scan_law(bool all, int64_t gap)
{
    enum { NB = 3, NI = 37, NR = 12, NX = 9 };
    const kr_decode_scan_args a = { .nb = NB, .ni = NI, .nr = NR, .nx = NX, .eps = 1e-5, .dt_max = 0.75 };
    const int64_t n = NB * NI, gaps = all ? gap : 0;
    const link links[] = { IN_OPERAND(kr_decode_scan_args, x, drawn_bf16(n, 1), .may_halve = all, .row = NI),
                           IN_OPERAND(kr_decode_scan_args, z, drawn_bf16(n, 1), .may_halve = all, .row = NI),
                           IN_OPERAND(kr_decode_scan_args, low, drawn_bf16(NB * NR, 1), .may_halve = all, .row = NR),
                           IN_OPERAND(kr_decode_scan_args, b, drawn_bf16(NB * NR, 1), .may_halve = all, .row = NR),
                           IN_OPERAND(kr_decode_scan_args, c, drawn_bf16(NB * NR, 1), .may_halve = all, .row = NR),
                           IN_OPERAND(kr_decode_scan_args, w, drawn_bf16(NI * NX, 1), HALF_ROWS, .row = NX),
                           IN(kr_decode_scan_args, dt_bias, drawn(NI, -2, 2)),
                           IN(kr_decode_scan_args, a_log, drawn(NI * NR, -3, 1)),
                           IN(kr_decode_scan_args, d, drawn(NI, -1, 1)),
                           STATE(kr_decode_scan_args, state, n * NR),
                           OUT_OPERAND(kr_decode_scan_args, y, blank(n), .may_halve = all, .may_part = all,
                                       .row = NI) };
    LAW("decode_scan", a, links, gaps);
}

static void decode_mamba3_law(int64_t gap)
{
    enum { NB = 2, NM = 2, NH = 4, NP = 9, NG = 2, NR = 16, NA = 5, BC = NM * NG * NR, HP = NH * NP };
    const kr_decode_mamba3_args a = { .nb = NB,
                                      .nm = NM,
                                      .nh = NH,
                                      .np = NP,
                                      .ng = NG,
                                      .nr = NR,
                                      .na = NA,
                                      .nrotated = NA,
                                      .has_norm = true,
                                      .eps = 1e-5,
                                      .a_floor = 1e-4,
                                      .dt_max = (double)INFINITY,
                                      .range = 1 };
    const link links[] = { IN_OPERAND(kr_decode_mamba3_args, z, drawn_bf16(NB * HP, 1), ROWS(HP)),
                           IN_OPERAND(kr_decode_mamba3_args, x, drawn_bf16(NB * HP, 1), ROWS(HP)),
                           IN_OPERAND(kr_decode_mamba3_args, b, drawn_bf16(NB * BC, 1), ROWS(BC)),
                           IN_OPERAND(kr_decode_mamba3_args, c, drawn_bf16(NB * BC, 1), ROWS(BC)),
                           IN_OPERAND(kr_decode_mamba3_args, dt, drawn_bf16(NB * NH, 1), ROWS(NH)),
                           IN_OPERAND(kr_decode_mamba3_args, a, drawn_bf16(NB * NH, 1), ROWS(NH)),
                           IN_OPERAND(kr_decode_mamba3_args, lambda, drawn_bf16(NB * NH, 1), ROWS(NH)),
                           IN_OPERAND(kr_decode_mamba3_args, theta, drawn_bf16(NB * NA, 1), ROWS(NA)),
                           IN(kr_decode_mamba3_args, dt_bias, drawn(NH, -1, 1)),
                           IN(kr_decode_mamba3_args, b_gain, drawn(NR, 0.5, 1.5)),
                           IN(kr_decode_mamba3_args, c_bias, drawn(NH * NM * NR, -1, 1)),
                           IN(kr_decode_mamba3_args, d, drawn(NH, -1, 1)),
                           STATE(kr_decode_mamba3_args, state, NB * HP * NR),
                           STATE(kr_decode_mamba3_args, k, NB * NM * NH * NR),
                           STATE(kr_decode_mamba3_args, v, NB * HP),
                           STATE(kr_decode_mamba3_args, angle, NB * NH * NA),
                           OUT_OPERAND(kr_decode_mamba3_args, y, blank(NB * HP), ROWS(HP)) };
    LAW("decode_mamba3", a, links, gap);
}

/* The reference takes all operands in all types, and each with a row stride. */
TEST(decoding_in_halves)
{
    judged = kr_runnable_set(0);
    for (int with = 0; with < 3; with++) {
        decode_linear_law(3, 20, 16, with, 8);
        decode_linear_law(9, 7, 33, with, 3);
    }
    for (int64_t count = -1; count < 10; count += 3) decode_ssd_law(true, count, 4);
    decode_scan_law(true, 5);
    decode_mamba3_law(3);
    FOR_SETS_THAT_TAKE(decode_ssd_y)
    for (int64_t count = -1; count < 10; count += 3) decode_ssd_law(false, count, 4);
    FOR_SETS_THAT_TAKE(decode_scan_w)
    decode_scan_law(false, 0);
    judged = NULL;
}

static void store_logit(void *to, int64_t i, kr_dtype dtype, float x)
{
    const uint16_t bf16 = half_of(x), f16 = kr_f16_from_double((double)x);
    if (dtype == KR_DTYPE_F64) ((double *)to)[i] = (double)x;
    else if (dtype == KR_DTYPE_F32) ((float *)to)[i] = x;
    else ((uint16_t *)to)[i] = dtype == KR_DTYPE_BF16 ? bf16 : f16;
}

/* Samples of logits that every type holds exactly. */
TEST(samples_of_logits_of_all_types)
{
    enum { NB = 5, NW = 60, STRIDE = NW + 3, NDTYPES = 4 };
    static const kr_dtype dtypes[NDTYPES] = { KR_DTYPE_F32, KR_DTYPE_F64, KR_DTYPE_BF16, KR_DTYPE_F16 };
    double logits[NB * STRIDE];
    float x[NB * STRIDE], logprobs[NDTYPES][2 * NB];
    int32_t ids[NDTYPES][2 * NB], next[NB];
    kr_sample_rules rules[NB];
    for (int i = 0; i < NB * STRIDE; i++) x[i] = (float)(kr_test_below(65) - 32) / 8;
    for (int b = 0; b < NB; b++)
        rules[b] = (kr_sample_rules){ .temperature = b ? 1.5 : 0,
                                      .top_p = 0.9,
                                      .repetition = 1,
                                      .top_k = 20,
                                      .seed = kr_test_next(),
                                      .flags = KR_SAMPLE_ON };
    for (int d = 0; d < NDTYPES; d++) {
        int64_t n_sampled[NB] = { 0 };
        for (int64_t i = 0; i < NB * STRIDE; i++) store_logit(logits, i, dtypes[d], x[i]);
        kr_sample_args a = { .nb = NB,
                             .nw = NW,
                             .vocab = NW - 2,
                             .x = { logits, dtypes[d], STRIDE },
                             .rules = rules,
                             .n_sampled = n_sampled,
                             .n_sampled_stride = NB,
                             .id = ids[d],
                             .next = next,
                             .logprob = logprobs[d] };
        kr_runnable_set(0)->sample[KR_REAL_F32].run(&a);
        for (int b = 0; b < NB; b++)
            CHECK(ids[d][b] >= 0 && ids[d][b] == ids[0][b] && memcmp(&logprobs[d][b], &logprobs[0][b], 4) == 0,
                  "row %d, %s: token %d, log-probability %g, but %d, %g of f32", b, kr_dtype_name(dtypes[d]),
                  (int)ids[d][b], (double)logprobs[d][b], (int)ids[0][b], (double)logprobs[0][b]);
    }
}
