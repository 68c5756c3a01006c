/* test_16bit.c - operands and results of bf16, and rows that are apart, in every set that takes them (kernels/accepts.def):
 * the reference, and that of a GPU. They have the bits of f32 and contiguous rows, a result of bf16 being the f32 one
 * rounded; nothing is written between rows. The state space core has such a test in test_cuda_precision.c. */
#include "tests/kernels/both.h"

#include "kernels/args/mamba3_args.h"

static void run_copy(const char *name, const void *args, size_t bytes, const link *links, int nlinks)
{
    char copy[ARGS_BYTES];
    if (bytes > sizeof copy || nlinks > LINKS) exit(2);
    memcpy(copy, args, bytes);
    run_judged(kr_kernel_named(name), copy, links, nlinks);
}

/* Runs it plainly, and then in bf16 and with `gap` elements between rows. */
static void check_law(const char *name, const void *args, size_t bytes, const link *links, int nlinks, int64_t gap)
{
    float *expected[LINKS] = { NULL };
    run_copy(name, args, bytes, links, nlinks);
    for (int i = 0; i < nlinks; i++) {
        if (!links[i].is_output || !links[i].to) continue;
        const size_t size = (size_t)links[i].to->count * sizeof(float);
        expected[i] = must_have(malloc(size + 1));
        memcpy(expected[i], links[i].to->single, size);
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
                           IN_OPERAND(kr_gate_args, z, drawn(no * ni, -4, 4), .row = ni),
                           OUT_OPERAND(kr_gate_args, y, blank(no * ni), .may_halve = true, .row = ni) };
    LAW("gate", a, forth, gap);
    const kr_gate_bwd_args b = { .no = no, .ni = ni };
    const link back[] = { IN_OPERAND(kr_gate_bwd_args, x, drawn_bf16(no * ni, 1), .may_halve = true, .row = ni),
                          IN_OPERAND(kr_gate_bwd_args, z, drawn(no * ni, -4, 4), .row = ni),
                          IN_OPERAND(kr_gate_bwd_args, g_y, drawn_bf16(no * ni, 1), .may_halve = true, .row = ni),
                          OUT_OPERAND(kr_gate_bwd_args, g_x, blank(no * ni), ROWS(ni)),
                          OUT_OPERAND(kr_gate_bwd_args, g_z, blank(no * ni), ROWS(ni)) };
    LAW("gate_bwd", b, back, gap);
}

static void norm_law(int64_t no, int64_t ni, int64_t gap, int kind)
{
    const bool gated = kind > 0;
    const kr_norm_args a = { .no = no, .ni = ni, .ng = 1, .eps = 1e-5, .norm_first = kind == 2 };
    const link forth[] = {
        IN_OPERAND(kr_norm_args, x, drawn_bf16(no * ni, 1), ROWS(ni)),
        IN_OPERAND(kr_norm_args, z, gated ? drawn_bf16(no * ni, 2) : NULL, .may_part = true, .row = ni),
        IN(kr_norm_args, gain, drawn(ni, -2, 2)),
        OUT_OPERAND(kr_norm_args, y, blank(no * ni), .may_halve = true, .row = ni), OUT(kr_norm_args, q, blank(no))
    };
    LAW("norm", a, forth, gap);
    const kr_norm_bwd_args b = { .no = no, .ni = ni, .ng = 1, .norm_first = kind == 2 };
    const link back[] = { IN_OPERAND(kr_norm_bwd_args, x, drawn_bf16(no * ni, 1), ROWS(ni)),
                          IN_OPERAND(kr_norm_bwd_args, z, gated ? drawn_bf16(no * ni, 2) : NULL, .may_part = true,
                                     .row = ni),
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
