/* test_cuda_precision.c - the state space core of a far device with its products in bf16, against the f64 reference.
 *
 * Errors are of whole tensors: |got - want| / |want|, in the norm that sums squares. v, b, c and g_y are numbers that
 * bf16 holds, as they are where activations are bf16; what remains are the roundings of products' operands on the way,
 * 2^-9 / 3^(1/2) = 1.1e-3 each. BOUND allows a dozen of them, and is what a training in bf16 does not notice.
 */
#include "kernels/mamba3_args.h"
#include "tests/kernels/packing.h"
#ifdef KR_HAVE_CUDA
#include "kernels/cuda/cuda.h"
#endif

static const double BOUND = 4e-3;

enum { BUFFERS = 64, LINKS = 24 };

/* A tensor, as the reference has it and as the device has it. */
typedef struct buffer {
    int64_t count;
    double *exact;
    float *single;
} buffer;

static buffer buffers[BUFFERS];
static int nbuffers;

static void free_buffers(void)
{
    while (nbuffers > 0) {
        free(buffers[--nbuffers].exact);
        free(buffers[nbuffers].single);
    }
}

/* Of NaNs. */
static buffer *blank(int64_t count)
{
    if (nbuffers == BUFFERS) exit(2);
    buffer *b = &buffers[nbuffers++];
    *b = (buffer){ count, malloc(((size_t)count + 1) * sizeof(double)), malloc(((size_t)count + 1) * sizeof(float)) };
    if (!b->exact || !b->single) exit(2);
    for (int64_t i = 0; i < count; i++) b->exact[i] = b->single[i] = (float)NAN;
    return b;
}

static double to_bf16(double x)
{
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

/* Uniform in [low, high), numbers of f32. */
static buffer *drawn(int64_t count, double low, double high)
{
    buffer *b = blank(count);
    for (int64_t i = 0; i < count; i++) b->exact[i] = b->single[i] = (float)kr_test_uniform(low, high);
    return b;
}

/* Normal, numbers of bf16. */
static buffer *drawn_bf16(int64_t count, double scale)
{
    buffer *b = blank(count);
    for (int64_t i = 0; i < count; i++) {
        b->exact[i] = to_bf16(kr_test_normal() * scale);
        b->single[i] = (float)b->exact[i];
    }
    return b;
}

/* ---- running ---- */

/* What a kernel's argument at `field` points to. */
typedef struct link {
    size_t field;
    buffer *to;
    bool is_output;
    bool is_half; /* brought to the device as bf16, where halves are wanted */
} link;

/* What the device is taken for: its own figures, or less. */
typedef enum limits { ITSELF, NO_WARPGROUPS, LITTLE_MEMORY, LIMITS } limits;
static const char *const limit_names[LIMITS] = { "", ", without products of warpgroups",
                                                 ", with 99 KiB of shared memory" };

static limits taken_for = ITSELF;

/* After the last: other devices are themselves alone. */
static limits last_limits(void)
{
    return strcmp(far_set()->name, "cuda") == 0 ? LIMITS : NO_WARPGROUPS;
}

static kr_precision precision = KR_PRECISION_BF16;
static bool in_halves = false;

static void change_exec(kr_exec *exec)
{
    exec->precision = precision;
#ifdef KR_HAVE_CUDA
    static kr_cuda less;
    if (taken_for == ITSELF || strcmp(far_set()->name, "cuda") != 0) return;
    less = *(const kr_cuda *)exec->own;
    less.arch = 80;
    if (taken_for == LITTLE_MEMORY) less.shared_bytes = 99 * 1024;
    exec->own = &less;
#endif
}

static void point(char *args, const link *at, void *to)
{
    memcpy(args + at->field, &to, sizeof to);
}

static void run_exact(const kr_kernel *kernel, char *args, const link *links, int nlinks)
{
    const kr_kernels *ref = kr_runnable_set(0);
    for (int i = 0; i < nlinks; i++) point(args, &links[i], links[i].to ? links[i].to->exact : NULL);
    kr_exec *exec = (kr_exec *)(void *)args;
    *exec = (kr_exec){ 0 };
    void *scratch = malloc(kernel->scratch(ref, KR_REAL_F64, args) + 1);
    if (!scratch) exit(2);
    exec->scratch = scratch;
    kernel->run(ref, KR_REAL_F64, args);
    free(scratch);
}

/* The same numbers as bf16, which they are. */
static uint16_t *halves_of(const buffer *b)
{
    uint16_t *halves = malloc(((size_t)b->count + 1) * sizeof *halves);
    if (!halves) exit(2);
    for (int64_t i = 0; i < b->count; i++) {
        uint32_t bits;
        memcpy(&bits, &b->single[i], sizeof bits);
        halves[i] = (uint16_t)(bits >> 16);
    }
    return halves;
}

static void take_halves(const char *kernel, char *args)
{
    if (strcmp(kernel, "ssd") == 0) {
        kr_ssd_args *a = (kr_ssd_args *)(void *)args;
        a->v_half = a->b_half = a->c_half = KR_HALF_BF16;
    } else {
        kr_ssd_bwd_args *a = (kr_ssd_bwd_args *)(void *)args;
        a->v_half = a->b_half = a->c_half = KR_HALF_BF16;
    }
}

static void run_far(const kr_kernel *kernel, char *args, const link *links, int nlinks)
{
    kr_span spans[LINKS];
    void *halves[LINKS] = { NULL };
    int count = 0;
    for (int i = 0; i < nlinks; i++) {
        buffer *b = links[i].to;
        point(args, &links[i], NULL);
        if (!b) continue;
        const bool narrow = in_halves && links[i].is_half;
        if (narrow) halves[i] = halves_of(b);
        kr_span *span = &spans[count++];
        *span = (kr_span){ links[i].field, 0, b->single, (size_t)b->count * sizeof(float), links[i].is_output };
        if (narrow) span->data = halves[i], span->bytes /= 2;
        point(args, &links[i], span->data);
    }
    if (in_halves) take_halves(kernel->name, args);
    far_change_exec(change_exec);
    CHECK(far_run(kernel, KR_REAL_F32, args, spans, count, "in bf16"), "%s wrote past its scratch", kernel->name);
    far_change_exec(NULL);
    for (int i = 0; i < nlinks; i++) free(halves[i]);
}

/* The kernel with both, each on its own operands. */
static void run_both(const char *name, const void *args, size_t bytes, const link *links, int nlinks)
{
    char copy[1024];
    const kr_kernel *kernel = kr_kernel_named(name);
    if (!kernel || bytes > sizeof copy || nlinks > LINKS) exit(2);
    memcpy(copy, args, bytes);
    run_exact(kernel, copy, links, nlinks);
    memcpy(copy, args, bytes);
    run_far(kernel, copy, links, nlinks);
}

#define RUN(name, args, links) run_both(name, &(args), sizeof(args), links, (int)(sizeof(links) / sizeof *(links)))
#define LINK(args, name, buffer)                                                                                       \
    {                                                                                                                  \
        offsetof(args, name), buffer, false, false                                                                     \
    }
#define HALF(args, name, buffer)                                                                                       \
    {                                                                                                                  \
        offsetof(args, name), buffer, false, true                                                                      \
    }
#define OUT(args, name, buffer)                                                                                        \
    {                                                                                                                  \
        offsetof(args, name), buffer, true, false                                                                      \
    }

static void check_error(const char *what, const char *text, const buffer *b)
{
    double error = 0, norm = 0;
    for (int64_t i = 0; i < b->count; i++) {
        const double e = (double)b->single[i] - b->exact[i];
        error += e * e;
        norm += b->exact[i] * b->exact[i];
    }
    const double relative = sqrt(error / (norm > 0 ? norm : 1));
    if (getenv("KR_TEST_ERRORS")) printf("  %s%s, %s: %.2e\n", text, limit_names[taken_for], what, relative);
    CHECK(relative <= BOUND, "%s%s, %s: relative error %.3g", text, limit_names[taken_for], what, relative);
}

/* ---- the core ---- */

typedef struct shape {
    const char *text;
    int64_t nb, ns, nm, nh, np, ng, nr;
    bool strict, with_states;
    double decay; /* da is in -[0, decay) */
} shape;

/* Operands of the core and what comes of them. */
typedef struct core {
    shape n;
    kr_sequence sequences[MOST_SEQUENCES];
    int64_t nq;
    buffer *v, *b, *c, *da, *w, *same, *d, *initial, *y, *final;
    buffer *g_y, *g_final, *g_v, *g_b, *g_c, *g_da, *g_w, *g_same, *g_d, *g_initial;
} core;

static core core_of(shape n, bool packed)
{
    core k = { .n = n };
    k.nq = cut_rows(k.sequences, n.nb, n.ns, packed);
    const int64_t tokens = n.nb * n.ns, values = tokens * n.nm * n.nh * n.np, states = k.nq * n.nh * n.np * n.nr;
    k.v = drawn_bf16(values, 1);
    k.da = drawn(tokens * n.nh, -n.decay, 0);
    k.w = drawn(tokens * n.nh, 0.1, 1.1);
    if (n.strict) k.same = drawn(tokens * n.nh, 0.1, 1.1);
    k.d = drawn(n.nh, -1, 1);
    if (n.with_states) k.initial = drawn(states, -1, 1), k.g_final = drawn(states, -1, 1);
    k.g_y = drawn_bf16(values, 1);
    k.y = blank(values), k.g_v = blank(values);
    k.final = blank(states), k.g_initial = blank(states);
    k.g_b = blank(tokens * n.nm * n.ng * n.nr), k.g_c = blank(tokens * n.nm * n.ng * n.nr);
    k.g_da = blank(tokens * n.nh), k.g_w = blank(tokens * n.nh), k.g_d = blank(n.nh);
    if (n.strict) k.g_same = blank(tokens * n.nh);
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
                            .v_stride = values,
                            .b_stride = maps,
                            .c_stride = maps,
                            .sequences = k->sequences };
    const link forward[] = { HALF(kr_ssd_args, v, k->v), HALF(kr_ssd_args, b, k->b),
                             HALF(kr_ssd_args, c, k->c), LINK(kr_ssd_args, da, k->da),
                             LINK(kr_ssd_args, w, k->w), LINK(kr_ssd_args, same, k->same),
                             LINK(kr_ssd_args, d, k->d), LINK(kr_ssd_args, initial, k->initial),
                             OUT(kr_ssd_args, y, k->y),  OUT(kr_ssd_args, final, k->final) };
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
                                   .v_stride = values,
                                   .b_stride = maps,
                                   .c_stride = maps,
                                   .sequences = k->sequences };
    const link backward[] = { HALF(kr_ssd_bwd_args, v, k->v),     HALF(kr_ssd_bwd_args, b, k->b),
                              HALF(kr_ssd_bwd_args, c, k->c),     LINK(kr_ssd_bwd_args, da, k->da),
                              LINK(kr_ssd_bwd_args, w, k->w),     LINK(kr_ssd_bwd_args, same, k->same),
                              LINK(kr_ssd_bwd_args, d, k->d),     LINK(kr_ssd_bwd_args, initial, k->initial),
                              LINK(kr_ssd_bwd_args, g_y, k->g_y), LINK(kr_ssd_bwd_args, g_final, k->g_final),
                              OUT(kr_ssd_bwd_args, g_v, k->g_v),  OUT(kr_ssd_bwd_args, g_b, k->g_b),
                              OUT(kr_ssd_bwd_args, g_c, k->g_c),  OUT(kr_ssd_bwd_args, g_da, k->g_da),
                              OUT(kr_ssd_bwd_args, g_w, k->g_w),  OUT(kr_ssd_bwd_args, g_same, k->g_same),
                              OUT(kr_ssd_bwd_args, g_d, k->g_d),  OUT(kr_ssd_bwd_args, g_initial, k->g_initial) };
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
    if (k->g_same) check_error("g_same", text, k->g_same);
    check_error("g_d", text, k->g_d);
    check_error("g_initial", text, k->g_initial);
}

/* Tokens of no sequence are not written: both are made 0 there. */
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
        { "wide heads and states", 1, 150, 1, 2, 256, 1, 256, true, true, 0.1 },
        { "odd sizes", 2, 150, 3, 3, 37, 3, 53, true, true, 0.1 },
        { "small states", 2, 150, 1, 4, 32, 2, 16, false, true, 0.1 },
    };
    if (!far_set()) SKIP(far_why_not());
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

/* Numbers of `got` that are not those of `want`. */
static int64_t count_different(const float *want, const buffer *got)
{
    int64_t count = 0;
    for (int64_t i = 0; i < got->count; i++) count += memcmp(&want[i], &got->single[i], sizeof *want) != 0;
    return count;
}

static void check_halves(shape n)
{
    enum { RESULTS = 6 };
    core k = core_of(n, false);
    const int64_t maps = n.nb * n.ns * n.nm * n.ng * n.nr;
    float *kept[RESULTS];
    k.b = drawn_bf16(maps, 1), k.c = drawn_bf16(maps, 1);
    run_core(&k);
    const buffer *results[RESULTS] = { k.y, k.final, k.g_v, k.g_b, k.g_c, k.g_da };
    for (int i = 0; i < RESULTS; i++) {
        kept[i] = malloc(((size_t)results[i]->count + 1) * sizeof(float));
        if (!kept[i]) exit(2);
        memcpy(kept[i], results[i]->single, (size_t)results[i]->count * sizeof(float));
    }
    in_halves = true;
    run_core(&k);
    in_halves = false;
    for (int i = 0; i < RESULTS; i++) {
        const int64_t different = count_different(kept[i], results[i]);
        CHECK(different == 0, "%s, precision %d, result %d: %lld of %lld differ", n.text, (int)precision, i,
              (long long)different, (long long)results[i]->count);
        free(kept[i]);
    }
    free_buffers();
}

/* Operands of bf16 give the bits that the same numbers in f32 give. */
TEST(halves_give_the_bits_of_floats)
{
    static const shape shapes[] = {
        { "mamba-3", 1, 150, 1, 2, 64, 2, 128, true, true, 0.2 },
        { "odd sizes", 2, 70, 3, 3, 37, 1, 53, false, true, 0.1 },
        { "a step", 3, 1, 1, 4, 64, 1, 128, false, true, 0.1 },
    };
    if (!far_set()) SKIP(far_why_not());
    if (strcmp(far_set()->name, "cuda") != 0) SKIP("this device takes no halves");
    for (int i = 0; i < 3; i++) {
        precision = KR_PRECISION_EXACT;
        check_halves(shapes[i]);
        precision = KR_PRECISION_BF16;
        check_halves(shapes[i]);
    }
}

/* ---- angles ---- */

/* Angles that add up turn B and C: a token's turn moves all later tokens against all earlier ones, and its gradient is
 * the sum of nearly all of g_b and g_c, most of which cancels. */
typedef struct turned {
    buffer *x, *y, *g_y, *g_x, *g_angle;
} turned;

static void turn(turned *t, const core *k, buffer *angle, int64_t na, bool half)
{
    const shape n = k->n;
    const kr_rotate_args a = { .no = n.nb * n.ns, .nm = n.nm, .nh = n.nh, .ng = 1, .nr = n.nr, .na = na, .half = half };
    const link links[] = { LINK(kr_rotate_args, x, t->x), LINK(kr_rotate_args, angle, angle),
                           OUT(kr_rotate_args, y, t->y) };
    RUN("rotate", a, links);
}

static void turn_back(turned *t, const core *k, buffer *angle, int64_t na, bool half)
{
    const shape n = k->n;
    const kr_rotate_bwd_args a = {
        .no = n.nb * n.ns, .nm = n.nm, .nh = n.nh, .ng = 1, .nr = n.nr, .na = na, .half = half
    };
    const link links[] = { LINK(kr_rotate_bwd_args, x, t->x), LINK(kr_rotate_bwd_args, angle, angle),
                           LINK(kr_rotate_bwd_args, g_y, t->g_y), OUT(kr_rotate_bwd_args, g_x, t->g_x),
                           OUT(kr_rotate_bwd_args, g_angle, t->g_angle) };
    RUN("rotate_bwd", a, links);
}

static turned turned_of(const core *k, double scale, int64_t na)
{
    const shape n = k->n;
    const int64_t tokens = n.nb * n.ns, from = tokens * n.nm * n.nr, to = from * n.nh;
    return (turned){ drawn_bf16(from, scale), blank(to), NULL, blank(from), blank(tokens * n.nh * na) };
}

static void add_to(buffer *a, const buffer *b)
{
    for (int64_t i = 0; i < a->count; i++) a->exact[i] += b->exact[i], a->single[i] += b->single[i];
}

static void check_angles(shape n, bool half, int64_t na)
{
    core k = core_of(n, false);
    const int64_t tokens = n.nb * n.ns;
    const kr_angles_args angles = {
        .nb = n.nb, .ns = n.ns, .nh = n.nh, .na = na, .nq = k.nq, .sequences = k.sequences, .range = 1
    };
    buffer *theta = drawn(tokens * na, -1, 1), *dt = drawn(tokens * n.nh, 0.02, 0.5);
    buffer *angle = blank(tokens * n.nh * na), *last = blank(k.nq * n.nh * na);
    const link forward[] = { LINK(kr_angles_args, theta, theta), LINK(kr_angles_args, dt, dt),
                             OUT(kr_angles_args, angle, angle), OUT(kr_angles_args, final, last) };
    RUN("angles", angles, forward);
    turned b = turned_of(&k, 1, na), c = turned_of(&k, 1 / sqrt((double)n.nr), na);
    turn(&b, &k, angle, na, half);
    turn(&c, &k, angle, na, half);
    k.b = b.y, k.c = c.y;
    run_core(&k);
    check_core(&k, n.text);
    b.g_y = k.g_b, c.g_y = k.g_c;
    turn_back(&b, &k, angle, na, half);
    turn_back(&c, &k, angle, na, half);
    add_to(b.g_angle, c.g_angle);
    const kr_angles_bwd_args back = {
        .nb = n.nb, .ns = n.ns, .nh = n.nh, .na = na, .nq = k.nq, .sequences = k.sequences, .range = 1
    };
    buffer *g_theta = blank(tokens * na), *g_dt = blank(tokens * n.nh);
    const link backward[] = { LINK(kr_angles_bwd_args, theta, theta), LINK(kr_angles_bwd_args, dt, dt),
                              LINK(kr_angles_bwd_args, g_angle, b.g_angle), OUT(kr_angles_bwd_args, g_theta, g_theta),
                              OUT(kr_angles_bwd_args, g_dt, g_dt) };
    RUN("angles_bwd", back, backward);
    check_error("gradient of B before its turn", n.text, b.g_x);
    check_error("gradient of C before its turn", n.text, c.g_x);
    check_error("gradient of the angles' theta", n.text, g_theta);
    check_error("gradient of the angles' dt", n.text, g_dt);
    free_buffers();
}

TEST(gradients_of_angles_in_bf16_are_close_to_f64)
{
    static const shape shapes[] = {
        { "angles", 1, 1500, 1, 2, 64, 2, 128, true, false, 0.2 },
        { "angles, slow decay", 1, 1500, 1, 2, 64, 2, 128, true, false, 0.01 },
        { "angles of ranks", 1, 300, 4, 2, 64, 2, 64, true, true, 0.2 },
    };
    if (!far_set()) SKIP(far_why_not());
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++)
        for (taken_for = ITSELF; taken_for < last_limits(); taken_for++)
            check_angles(shapes[i], i % 2, i == 1 ? shapes[i].nr / 4 : shapes[i].nr / 2);
    taken_for = ITSELF;
}

/* ---- quaternions ---- */

/* The same with quaternions in the place of angles. */
static void turn_four(turned *t, const core *k, buffer *cum, int64_t nj)
{
    const shape n = k->n;
    const kr_quaternion_rotate_args a = { .no = n.nb * n.ns, .nm = n.nm, .nh = n.nh, .nr = n.nr, .nj = nj };
    const link links[] = { LINK(kr_quaternion_rotate_args, x, t->x), LINK(kr_quaternion_rotate_args, cum, cum),
                           OUT(kr_quaternion_rotate_args, y, t->y) };
    RUN("quaternion_rotate", a, links);
}

static void turn_four_back(turned *t, const core *k, buffer *cum, int64_t nj)
{
    const shape n = k->n;
    const kr_quaternion_rotate_bwd_args a = { .no = n.nb * n.ns, .nm = n.nm, .nh = n.nh, .nr = n.nr, .nj = nj };
    const link links[] = { LINK(kr_quaternion_rotate_bwd_args, x, t->x), LINK(kr_quaternion_rotate_bwd_args, cum, cum),
                           LINK(kr_quaternion_rotate_bwd_args, g_y, t->g_y),
                           OUT(kr_quaternion_rotate_bwd_args, g_x, t->g_x),
                           OUT(kr_quaternion_rotate_bwd_args, g_cum, t->g_angle) };
    RUN("quaternion_rotate_bwd", a, links);
}

static turned four_of(const core *k, double scale, int64_t nj)
{
    const shape n = k->n;
    const int64_t tokens = n.nb * n.ns, rows = tokens * n.nm * n.nh * n.nr;
    return (turned){ drawn_bf16(rows, scale), blank(rows), NULL, blank(rows), blank(tokens * n.nh * nj * 4) };
}

static void check_quaternions(shape n)
{
    core k = core_of(n, false);
    const int64_t nj = n.nr / 4, heads = n.nb * n.ns * n.nh;
    buffer *raw = drawn(heads * nj * 3, -1, 1), *dt = drawn(heads, 0.02, 0.5), *q = blank(heads * nj * 4);
    buffer *cum = blank(heads * nj * 4), *last = blank(k.nq * n.nh * nj * 4);
    const kr_quaternion_exp_args make = { .no = heads, .nj = nj, .range = 1 };
    const link making[] = { LINK(kr_quaternion_exp_args, raw, raw), LINK(kr_quaternion_exp_args, dt, dt),
                            OUT(kr_quaternion_exp_args, q, q) };
    RUN("quaternion_exp", make, making);
    const kr_quaternion_scan_args scan = {
        .nb = n.nb, .ns = n.ns, .nh = n.nh, .nj = nj, .nq = k.nq, .sequences = k.sequences
    };
    const link scanning[] = { LINK(kr_quaternion_scan_args, q, q), OUT(kr_quaternion_scan_args, cum, cum),
                              OUT(kr_quaternion_scan_args, final, last) };
    RUN("quaternion_scan", scan, scanning);
    turned b = four_of(&k, 1, nj), c = four_of(&k, 1 / sqrt((double)n.nr), nj);
    turn_four(&b, &k, cum, nj);
    turn_four(&c, &k, cum, nj);
    k.b = b.y, k.c = c.y;
    run_core(&k);
    check_core(&k, n.text);
    b.g_y = k.g_b, c.g_y = k.g_c;
    turn_four_back(&b, &k, cum, nj);
    turn_four_back(&c, &k, cum, nj);
    add_to(b.g_angle, c.g_angle);
    buffer *g_q = blank(heads * nj * 4), *g_raw = blank(heads * nj * 3), *g_dt = blank(heads);
    const kr_quaternion_scan_bwd_args back = {
        .nb = n.nb, .ns = n.ns, .nh = n.nh, .nj = nj, .nq = k.nq, .sequences = k.sequences
    };
    const link scanning_back[] = { LINK(kr_quaternion_scan_bwd_args, q, q), LINK(kr_quaternion_scan_bwd_args, cum, cum),
                                   LINK(kr_quaternion_scan_bwd_args, g_cum, b.g_angle),
                                   OUT(kr_quaternion_scan_bwd_args, g_q, g_q) };
    RUN("quaternion_scan_bwd", back, scanning_back);
    const kr_quaternion_exp_bwd_args unmake = { .no = heads, .nj = nj, .range = 1 };
    const link unmaking[] = { LINK(kr_quaternion_exp_bwd_args, raw, raw), LINK(kr_quaternion_exp_bwd_args, dt, dt),
                              LINK(kr_quaternion_exp_bwd_args, g_q, g_q), OUT(kr_quaternion_exp_bwd_args, g_raw, g_raw),
                              OUT(kr_quaternion_exp_bwd_args, g_dt, g_dt) };
    RUN("quaternion_exp_bwd", unmake, unmaking);
    check_error("gradient of the generators", n.text, g_raw);
    check_error("gradient of the generators' dt", n.text, g_dt);
    free_buffers();
}

TEST(gradients_of_quaternions_in_bf16_are_close_to_f64)
{
    static const shape n = { "quaternions", 1, 1000, 1, 2, 64, 2, 64, true, false, 0.2 };
    if (!far_set()) SKIP(far_why_not());
    check_quaternions(n);
}
