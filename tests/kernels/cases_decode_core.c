/* cases_decode_core.c - cases of the decode kernels: the scan of Mamba-1 and the core of Mamba-3, in place. */
#include "tests/kernels/conformance.h"

kr_cases_fn kr_cases_decode_scan, kr_cases_decode_mamba3;

static void fill(double *scale, int64_t count, double value)
{
    for (int64_t i = 0; i < count; i++) scale[i] = value;
}

/* ---- Mamba-1 ---- */

typedef struct scan {
    int64_t nb, ni, nr, nx;
    kr_dtype half; /* of w; F32: the slot's */
    bool many_tasks;
} scan;

/* Four lanes per channel, 32 channels per CTA; 64 elements of a row of w are prefetched. */
static const scan scans[] = {
    { 1, 1, 1, 1, KR_DTYPE_F32, false },    { 2, 5, 3, 2, KR_DTYPE_BF16, false },
    { 3, 33, 16, 7, KR_DTYPE_F16, false },  { 1, 64, 16, 48, KR_DTYPE_BF16, false },
    { 2, 31, 20, 70, KR_DTYPE_F32, false }, { 4, 100, 40, 5, KR_DTYPE_BF16, false },
    { 9, 300, 16, 20, KR_DTYPE_F32, true },
};

static void first_scan_row(void *args)
{
    ((kr_decode_scan_args *)args)->nb = 1;
}

/* A step size is at most nx + 3; its addition to a state, and a state's contribution to y, are sums of that. */
static void scan_case(kr_sweep *sweep, scan n, double eps, bool limits, int64_t gap)
{
    const int64_t x_row = n.ni + gap, row = (n.nx > n.nr ? n.nx : n.nr) + gap;
    kr_decode_scan_args a = { .nb = n.nb,
                              .ni = n.ni,
                              .nr = n.nr,
                              .nx = n.nx,
                              .x.row = x_row,
                              .z.row = x_row,
                              .low.row = row,
                              .b.row = row,
                              .c.row = row,
                              .w.row = n.nx,
                              .y.row = n.ni,
                              .eps = eps,
                              .dt_min = limits ? 0.125 : 0,
                              .dt_max = limits ? 0.75 : INFINITY };
    kr_case c;
    case_begin(&c, &a, sizeof a, "b %lld i %lld r %lld x %lld, half %d, eps %g%s, gap %lld", (long long)n.nb,
               (long long)n.ni, (long long)n.nr, (long long)n.nx, (int)n.half, eps, limits ? ", limits" : "",
               (long long)gap);
    const kr_extent of_x = { (n.nb - 1) * x_row + n.ni, 0 }, of_r = { (n.nb - 1) * row + n.nr, 0 };
    case_walk_input(&c, OPERAND(kr_decode_scan_args, x), of_x, -2, 2);
    case_walk_input(&c, OPERAND(kr_decode_scan_args, z), of_x, -3, 3);
    case_walk_input(&c, OPERAND(kr_decode_scan_args, low), (kr_extent){ (n.nb - 1) * row + n.nx, 0 }, -1, 1);
    case_walk_input(&c, OPERAND(kr_decode_scan_args, b), of_r, -1, 1);
    case_walk_input(&c, OPERAND(kr_decode_scan_args, c), of_r, -1, 1);
    const kr_extent of_w = { n.ni * n.nx, 0 };
    if (kr_is_16bit(n.half)) case_walk_halves(&c, OPERAND(kr_decode_scan_args, w), of_w, n.half);
    else case_walk_input(&c, OPERAND(kr_decode_scan_args, w), of_w, -1, 1);
    case_input(&c, FIELD(kr_decode_scan_args, dt_bias), KR_SHAPE(n.ni), -2, 2);
    case_input(&c, FIELD(kr_decode_scan_args, a_log), KR_SHAPE(n.ni, n.nr), -3, 1);
    case_input(&c, FIELD(kr_decode_scan_args, d), KR_SHAPE(n.ni), -1, 1);
    const double scale = 4 * ((double)n.nx + 4);
    case_in_out(&c, FIELD(kr_decode_scan_args, state), KR_SHAPE(n.nb, n.ni, n.nr), -2, 2);
    fill(case_scale(&c), n.nb * n.ni * n.nr, scale);
    case_output(&c, OPERAND(kr_decode_scan_args, y), KR_SHAPE(n.nb, n.ni));
    fill(case_scale(&c), n.nb * n.ni, 3 * scale * ((double)n.nr + 1));
    c.terms = n.nr + n.nx + 1;
    c.many_tasks = n.many_tasks;
    c.first_row = first_scan_row;
    case_done(sweep, &c);
}

void kr_cases_decode_scan(kr_sweep *sweep)
{
    for (size_t i = 0; i < sizeof scans / sizeof *scans; i++) {
        scan_case(sweep, scans[i], 0, false, 0);
        scan_case(sweep, scans[i], 1e-5, false, 3);
        scan_case(sweep, scans[i], 0, true, 5);
    }
}

/* ---- Mamba-3 ---- */

typedef struct core {
    int64_t nb, nm, nh, np, ng, nr, na, nrotated;
    bool many_tasks;
} core;

/* Eight rows for each of eight warps, 128 elements of r at a time. */
static const core cores[] = {
    { 1, 1, 1, 1, 1, 2, 1, 0, false },      { 2, 1, 3, 5, 1, 6, 3, 3, false },
    { 1, 2, 4, 9, 2, 16, 4, 4, false },     { 2, 1, 2, 64, 1, 128, 32, 32, true },
    { 1, 4, 2, 64, 1, 128, 64, 64, true },  { 2, 3, 2, 70, 2, 130, 20, 20, false },
    { 1, 1, 2, 3, 1, 260, 100, 90, false },
};

enum { MIMO = 1, NORM = 2, SHARED = 4, SOFTPLUS = 8, HALF = 16, LIMITS = 32, PLAIN = 64 };

static void first_core_row(void *args)
{
    ((kr_decode_mamba3_args *)args)->nb = 1;
}

static void add_parameters(kr_case *c, const core *n, int with)
{
    const kr_shape of_r = KR_SHAPE(n->nr), hmr = KR_SHAPE(n->nh, n->nm, n->nr), hmp = KR_SHAPE(n->nh, n->nm, n->np);
    case_input(c, FIELD(kr_decode_mamba3_args, dt_bias), KR_SHAPE(n->nh), -1, 1);
    case_input(c, FIELD(kr_decode_mamba3_args, d), KR_SHAPE(n->nh), -1, 1);
    if (!(with & PLAIN)) {
        case_input(c, FIELD(kr_decode_mamba3_args, b_gain), of_r, 0.5, 1.5);
        case_input(c, FIELD(kr_decode_mamba3_args, c_gain), of_r, 0.5, 1.5);
        case_input(c, FIELD(kr_decode_mamba3_args, b_bias), hmr, -1, 1);
        case_input(c, FIELD(kr_decode_mamba3_args, c_bias), hmr, -1, 1);
    }
    if (with & MIMO) {
        case_input(c, FIELD(kr_decode_mamba3_args, mimo_x), hmp, 0.5, 1.5);
        case_input(c, FIELD(kr_decode_mamba3_args, mimo_z), hmp, 0.5, 1.5);
        case_input(c, FIELD(kr_decode_mamba3_args, mimo_o), hmp, 0.5, 1.5);
    }
    if (with & NORM) {
        const kr_shape of_gain = with & SHARED ? KR_SHAPE(n->np) : KR_SHAPE(n->nh, n->np);
        case_input(c, FIELD(kr_decode_mamba3_args, gain), of_gain, 0.5, 1.5);
    }
}

/* B and C are below 4 after norm, gain and bias, V below 3, a step below 2.2: m products of these make a state, r states
 * an output, and m outputs, times silu(z) < 4 and mimo_o, the result. */
static void core_case(kr_sweep *sweep, core n, int with, int64_t gap)
{
    const int64_t of_x = n.nh * n.np, of_b = n.nm * n.ng * n.nr, widest = of_x > of_b ? of_x : of_b,
                  row = (widest > n.na ? widest : n.na) + gap;
    kr_decode_mamba3_args a = { .nb = n.nb,
                                .nm = n.nm,
                                .nh = n.nh,
                                .np = n.np,
                                .ng = n.ng,
                                .nr = n.nr,
                                .na = n.na,
                                .nrotated = n.nrotated,
                                .z.row = row,
                                .x.row = row,
                                .b.row = row,
                                .c.row = row,
                                .dt.row = row,
                                .a.row = row,
                                .lambda.row = row,
                                .theta.row = row,
                                .y.row = of_x,
                                .softplus = with & SOFTPLUS,
                                .split_pairs = with & HALF,
                                .has_norm = with & NORM,
                                .shared_gain = with & SHARED,
                                .eps = 1e-5,
                                .a_floor = 1e-4,
                                .dt_min = with & LIMITS ? 0.125 : 0,
                                .dt_max = with & LIMITS ? 0.75 : INFINITY,
                                .range = 1 };
    kr_case c;
    case_begin(&c, &a, sizeof a, "b %lld m %lld h %lld p %lld g %lld r %lld a %lld, with %x, gap %lld", (long long)n.nb,
               (long long)n.nm, (long long)n.nh, (long long)n.np, (long long)n.ng, (long long)n.nr, (long long)n.na,
               (unsigned)with, (long long)gap);
#define ROWS_OF(width) (kr_extent){ (n.nb - 1) * row + (width), 0 }
    case_walk_input(&c, OPERAND(kr_decode_mamba3_args, z), ROWS_OF(of_x), -2, 2);
    case_walk_input(&c, OPERAND(kr_decode_mamba3_args, x), ROWS_OF(of_x), -2, 2);
    case_walk_input(&c, OPERAND(kr_decode_mamba3_args, b), ROWS_OF(of_b), -1, 1);
    case_walk_input(&c, OPERAND(kr_decode_mamba3_args, c), ROWS_OF(of_b), -1, 1);
    case_walk_input(&c, OPERAND(kr_decode_mamba3_args, dt), ROWS_OF(n.nh), -3, 1);
    case_walk_input(&c, OPERAND(kr_decode_mamba3_args, a), ROWS_OF(n.nh), -3, 3);
    case_walk_input(&c, OPERAND(kr_decode_mamba3_args, lambda), ROWS_OF(n.nh), -2, 2);
    case_walk_input(&c, OPERAND(kr_decode_mamba3_args, theta), ROWS_OF(n.na), -2, 2);
#undef ROWS_OF
    add_parameters(&c, &n, with);
    const double scale = 40 * (double)n.nm;
    case_in_out(&c, FIELD(kr_decode_mamba3_args, state), KR_SHAPE(n.nb, n.nh, n.np, n.nr), -2, 2);
    fill(case_scale(&c), n.nb * n.nh * n.np * n.nr, scale);
    case_in_out(&c, FIELD(kr_decode_mamba3_args, k), KR_SHAPE(n.nb, n.nm, n.nh, n.nr), -2, 2);
    fill(case_scale(&c), n.nb * n.nm * n.nh * n.nr, 8);
    case_in_out(&c, FIELD(kr_decode_mamba3_args, v), KR_SHAPE(n.nb, n.nh, n.np), -2, 2);
    fill(case_scale(&c), n.nb * n.nh * n.np, 1);
    case_in_out(&c, FIELD(kr_decode_mamba3_args, angle), KR_SHAPE(n.nb, n.nh, n.na), -3, 3);
    fill(case_scale(&c), n.nb * n.nh * n.na, 8);
    case_output(&c, OPERAND(kr_decode_mamba3_args, y), KR_SHAPE(n.nb, n.nh, n.np));
    fill(case_scale(&c), n.nb * n.nh * n.np, scale * 4 * (double)(n.nr * n.nm));
    c.terms = n.nr * n.nm + 1;
    c.many_tasks = n.many_tasks;
    c.first_row = first_core_row;
    case_done(sweep, &c);
}

void kr_cases_decode_mamba3(kr_sweep *sweep)
{
    for (size_t i = 0; i < sizeof cores / sizeof *cores; i++) {
        const int mimo = cores[i].nm > 1 ? MIMO + HALF : 0;
        core_case(sweep, cores[i], mimo, 0);
        core_case(sweep, cores[i], mimo + NORM + (i % 2 ? SHARED : 0) + SOFTPLUS, 3);
        core_case(sweep, cores[i], (mimo ^ HALF) + LIMITS + PLAIN, 4);
    }
}
