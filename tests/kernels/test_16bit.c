/* test_16bit.c - forms that only the f32 kernels of CUDA support: operands and results of bf16, and strided rows. They
 * have the bits of f32 and contiguous rows, a result of bf16 being the f32 one rounded; nothing is written between
 * rows. The state space core has such a test in test_cuda_precision.c. */
#include "tests/kernels/both.h"

#include "kernels/args/mamba3_args.h"

static void run_copy(const char *name, const void *args, size_t bytes, const link *links, int nlinks)
{
    char copy[1024];
    if (bytes > sizeof copy || nlinks > LINKS) exit(2);
    memcpy(copy, args, bytes);
    run_on_device(kr_kernel_named(name), copy, links, nlinks);
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
        const int64_t different = count_different(expected[i], links[i].to, links[i].half != 0);
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

#define PLACE(args, name) .half = offsetof(args, name.dtype), .padding = offsetof(args, name.padding)

static void gate_law(int64_t no, int64_t ni, int64_t gap)
{
    const kr_gate_args a = { .no = no, .ni = ni, .x_stride = ni, .z_stride = ni };
    const link forth[] = { IN(kr_gate_args, x, drawn_bf16(no * ni, 1), .half = offsetof(kr_gate_args, x_dtype),
                              .row = ni, .stride = offsetof(kr_gate_args, x_stride)),
                           IN(kr_gate_args, z, drawn(no * ni, -4, 4)),
                           OUT(kr_gate_args, y, blank(no * ni), .half = offsetof(kr_gate_args, y_dtype)) };
    LAW("gate", a, forth, gap);
    const kr_gate_bwd_args b = { .no = no, .ni = ni, .x_stride = ni, .z_stride = ni, .g_y_stride = ni };
    const link back[] = { IN(kr_gate_bwd_args, x, drawn_bf16(no * ni, 1), .half = offsetof(kr_gate_bwd_args, x_dtype)),
                          IN(kr_gate_bwd_args, z, drawn(no * ni, -4, 4)),
                          IN(kr_gate_bwd_args, g_y, drawn(no * ni, -1, 1)),
                          OUT(kr_gate_bwd_args, g_x, blank(no * ni), PLACE(kr_gate_bwd_args, g_x_rows), .row = ni),
                          OUT(kr_gate_bwd_args, g_z, blank(no * ni), PLACE(kr_gate_bwd_args, g_z_rows), .row = ni) };
    LAW("gate_bwd", b, back, gap);
}

static void norm_law(int64_t no, int64_t ni, int64_t gap, int kind)
{
    const bool gated = kind > 0;
    const kr_norm_args a = { .no = no, .ni = ni, .ng = 1, .eps = 1e-5, .norm_first = kind == 2 };
    const link forth[] = { IN(kr_norm_args, x, drawn_bf16(no * ni, 1), .half = offsetof(kr_norm_args, x_dtype),
                              .row = ni, .padding = offsetof(kr_norm_args, x_padding)),
                           IN(kr_norm_args, z, gated ? drawn_bf16(no * ni, 2) : NULL, .row = ni,
                              .padding = offsetof(kr_norm_args, z_padding)),
                           IN(kr_norm_args, gain, drawn(ni, -2, 2)),
                           OUT(kr_norm_args, y, blank(no * ni), .half = offsetof(kr_norm_args, y_dtype)),
                           OUT(kr_norm_args, q, blank(no)) };
    LAW("norm", a, forth, gap);
    const kr_norm_bwd_args b = { .no = no, .ni = ni, .ng = 1, .norm_first = kind == 2 };
    const link back[] = { IN(kr_norm_bwd_args, x, drawn_bf16(no * ni, 1), .half = offsetof(kr_norm_bwd_args, x_dtype),
                             .row = ni, .padding = offsetof(kr_norm_bwd_args, x_padding)),
                          IN(kr_norm_bwd_args, z, gated ? drawn_bf16(no * ni, 2) : NULL, .row = ni,
                             .padding = offsetof(kr_norm_bwd_args, z_padding)),
                          IN(kr_norm_bwd_args, gain, drawn(ni, -2, 2)),
                          IN(kr_norm_bwd_args, q, drawn(no, 0.5, 2)),
                          IN(kr_norm_bwd_args, g_y, drawn(no * ni, -1, 1)),
                          OUT(kr_norm_bwd_args, g_x, blank(no * ni), PLACE(kr_norm_bwd_args, g_x_rows), .row = ni),
                          OUT(kr_norm_bwd_args, g_z, gated ? blank(no * ni) : NULL, PLACE(kr_norm_bwd_args, g_z_rows),
                              .row = ni),
                          OUT(kr_norm_bwd_args, g_gain, blank(ni)) };
    LAW("norm_bwd", b, back, gap);
}

TEST(norms_and_gates_in_halves)
{
    if (!device_kernels()) SKIP(device_why_not());
    if (!device_is_cuda()) SKIP("this device takes no halves");
    for (int i = 0; i < NSHAPES; i++) {
        gate_law(shapes[i].no, shapes[i].ni, shapes[i].padding);
        for (int kind = 0; kind < 3; kind++) norm_law(shapes[i].no, shapes[i].ni, shapes[i].padding, kind);
    }
}

/* g_y in one tensor, and in three of bf16; tap counts with specialised loops, and more. */
static void conv_law(int64_t nk, int64_t nb, int64_t ns)
{
    enum { PARTS = 3, NV = 88 };
    static const int64_t from[PARTS + 1] = { 0, 64, 76, NV };
    const int64_t tokens = nb * ns;
    kr_sequence list[MOST_SEQUENCES];
    kr_conv_bwd_args a = { .nb = nb, .ns = ns, .nv = NV, .nk = nk, .x_batch = ns * NV, .x_stride = NV, .silu = true };
    a.nq = cut_rows(list, nb, ns, nb > 1);
    a.sequences = list;
    buffer *g_y = drawn_bf16(tokens * NV, 1), *g_x = blank(tokens * NV), *g_weight = blank(NV * nk);
    link links[] = { IN(kr_conv_bwd_args, x, drawn_bf16(tokens * NV, 1), .half = offsetof(kr_conv_bwd_args, x_dtype)),
                     IN(kr_conv_bwd_args, weight, drawn(NV * nk, -1, 1)),
                     IN(kr_conv_bwd_args, bias, drawn(NV, -1, 1)),
                     OUT(kr_conv_bwd_args, g_x, g_x),
                     OUT(kr_conv_bwd_args, g_weight, g_weight),
                     IN(kr_conv_bwd_args, g_y, g_y),
                     { 0 },
                     { 0 } };
    enum { WHOLE = 6, IN_PARTS = 8 };
    run_copy("conv_bwd", &a, sizeof a, links, WHOLE);
    float *expected[2] = { must_have(malloc((size_t)g_x->count * sizeof(float))),
                           must_have(malloc((size_t)g_weight->count * sizeof(float))) };
    memcpy(expected[0], g_x->single, (size_t)g_x->count * sizeof(float));
    memcpy(expected[1], g_weight->single, (size_t)g_weight->count * sizeof(float));
    a.g_y_columns.count = PARTS;
    memcpy(a.g_y_columns.from, from, sizeof from);
    for (int i = 0; i < PARTS; i++) {
        const int64_t width = from[i + 1] - from[i];
        buffer *part = blank(tokens * width);
        for (int64_t k = 0; k < part->count; k++) part->single[k] = g_y->single[k / width * NV + from[i] + k % width];
        links[WHOLE - 1 + i] =
            (link)IN(kr_conv_bwd_args, g_y_columns.x[0], part, .half = offsetof(kr_conv_bwd_args, g_y_columns.dtype));
        links[WHOLE - 1 + i].field += (size_t)i * sizeof(void *);
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
    kr_conv_args a = { .nb = nb, .ns = ns, .nv = NV, .nk = nk, .x_batch = ns * NV, .x_stride = NV, .silu = true };
    a.nq = cut_rows(list, nb, ns, nb > 1);
    a.sequences = list;
    const link links[] = {
        IN(kr_conv_args, x, drawn_bf16(tokens * NV, 1), .half = offsetof(kr_conv_args, x_dtype)),
        IN(kr_conv_args, weight, drawn(NV * nk, -1, 1)),
        IN(kr_conv_args, bias, drawn(NV, -1, 1)),
        OUT(kr_conv_args, y, blank(tokens * NV), .half = offsetof(kr_conv_args, y_dtype)),
        OUT(kr_conv_args, window_out, blank(a.nq * NV * nk)),
    };
    LAW("conv", a, links, 0);
}

TEST(convolutions_in_halves)
{
    if (!device_kernels()) SKIP(device_why_not());
    if (!device_is_cuda()) SKIP("this device takes no halves");
    conv_forth_law(4, 1, 150);
    conv_forth_law(4, 3, 50);
    conv_forth_law(2, 2, 40);
    conv_forth_law(6, 2, 30);
    conv_law(4, 1, 150);
    conv_law(4, 3, 50);
    conv_law(2, 2, 40);
    conv_law(6, 2, 30);
}

static void trapezoid_law(int64_t no, int64_t nh, int64_t gap)
{
    const kr_trapezoid_bwd_args a = { .no = no, .nh = nh, .a_floor = 1e-4, .dt_max = (double)INFINITY };
#define RAW .padding = offsetof(kr_trapezoid_bwd_args, raw_padding), .row = nh
    const int64_t n = no * nh;
    const link links[] = {
        IN(kr_trapezoid_bwd_args, dt_raw, drawn(n, -4, 4), RAW),
        IN(kr_trapezoid_bwd_args, a_raw, drawn(n, -4, 4), RAW),
        IN(kr_trapezoid_bwd_args, lambda_raw, drawn(n, -4, 4), RAW),
        IN(kr_trapezoid_bwd_args, dt_bias, drawn(nh, -1, 1)),
        IN(kr_trapezoid_bwd_args, g_dt, drawn(n, -1, 1)),
        IN(kr_trapezoid_bwd_args, g_da, drawn(n, -1, 1)),
        IN(kr_trapezoid_bwd_args, g_gamma, drawn(n, -1, 1)),
        IN(kr_trapezoid_bwd_args, g_carry, drawn(n, -1, 1)),
        OUT(kr_trapezoid_bwd_args, g_dt_raw, blank(n), PLACE(kr_trapezoid_bwd_args, g_rows), .row = nh),
        OUT(kr_trapezoid_bwd_args, g_a_raw, blank(n), PLACE(kr_trapezoid_bwd_args, g_rows), .row = nh),
        OUT(kr_trapezoid_bwd_args, g_lambda_raw, blank(n), PLACE(kr_trapezoid_bwd_args, g_rows), .row = nh),
        OUT(kr_trapezoid_bwd_args, g_dt_summed, blank(n)),
    };
#undef RAW
    LAW("trapezoid_bwd", a, links, gap);
}

static void angles_law(int64_t nb, int64_t ns, int64_t nh, int64_t na, int64_t gap)
{
    kr_sequence list[MOST_SEQUENCES];
    kr_angles_bwd_args a = { .nb = nb, .ns = ns, .nh = nh, .na = na, .sequences = list, .range = 1 };
    for (a.nq = 0; a.nq < nb; a.nq++) list[a.nq] = (kr_sequence){ a.nq, 0, ns };
    const int64_t tokens = nb * ns;
    const link links[] = {
        IN(kr_angles_bwd_args, theta, drawn(tokens * na, -2, 2), .padding = offsetof(kr_angles_bwd_args, theta_padding),
           .row = na),
        IN(kr_angles_bwd_args, dt, drawn(tokens * nh, 0, 1)),
        IN(kr_angles_bwd_args, g_angle, drawn(tokens * nh * na, -1, 1)),
        OUT(kr_angles_bwd_args, g_theta, blank(tokens * na), PLACE(kr_angles_bwd_args, g_theta_rows), .row = na),
        OUT(kr_angles_bwd_args, g_dt, blank(tokens * nh)),
    };
    LAW("angles_bwd", a, links, gap);
}

TEST(gradients_of_steps_and_angles_in_halves)
{
    if (!device_kernels()) SKIP(device_why_not());
    if (!device_is_cuda()) SKIP("this device takes no halves");
    trapezoid_law(300, 24, 8);
    trapezoid_law(41, 5, 3);
    angles_law(2, 150, 4, 32, 8);
    angles_law(1, 40, 3, 7, 5);
}
