/* cases_decode.c - cases of the decode kernels: norm, product and convolution; the core of Mamba-2 in place. */
#include "tests/kernels/conformance.h"

kr_cases_fn kr_cases_decode_linear, kr_cases_decode_ssd;

/* ---- norm, product, convolution ---- */

enum {
    GATE = 1,
    NORM_FIRST = 2,
    NO_NORM = 4,
    GAIN = 8,
    BIAS = 16,
    BASE = 32,
    IN_PLACE = 64,
    STRIDED = 128,
    CONV_BIAS = 256,
    SQUARES = 512
};

typedef struct linear {
    int64_t nm, nn, nk, ng, conv_from, nc, nt;
    kr_dtype half; /* of the weights; F32: the slot's */
    bool many_tasks;
} linear;

/* Chunks of 8 along k, several of them for each lane; up to 8 rows are processed together; few and many outputs. */
static const linear linears[] = {
    { 1, 1, 1, 1, 0, 0, 0, KR_DTYPE_F32, false },         { 1, 5, 7, 1, 1, 3, 4, KR_DTYPE_F32, false },
    { 2, 9, 16, 2, 0, 9, 3, KR_DTYPE_BF16, false },       { 3, 33, 24, 3, 30, 3, 1, KR_DTYPE_F16, false },
    { 4, 40, 264, 1, 3, 20, 4, KR_DTYPE_BF16, false },    { 5, 17, 256, 4, 0, 0, 0, KR_DTYPE_F32, false },
    { 8, 67, 520, 1, 10, 41, 4, KR_DTYPE_BF16, false },   { 8, 12, 100, 1, 0, 12, 4, KR_DTYPE_BF16, false },
    { 9, 50, 72, 1, 7, 30, 4, KR_DTYPE_BF16, false },     { 13, 34, 35, 5, 0, 20, 2, KR_DTYPE_F32, false },
    { 1, 355, 768, 1, 100, 200, 4, KR_DTYPE_BF16, true }, { 3, 130, 1536, 1, 0, 0, 0, KR_DTYPE_BF16, true },
    { 2, 4400, 64, 1, 0, 0, 0, KR_DTYPE_BF16, true },     { 40, 160, 128, 2, 32, 64, 4, KR_DTYPE_BF16, true },
    { 1, 20, 3100, 1, 4, 9, 5, KR_DTYPE_F32, false },     { 64, 70, 264, 1, 3, 50, 4, KR_DTYPE_BF16, true },
    { 10, 3, 60000, 1, 0, 2, 4, KR_DTYPE_BF16, true },
};
enum { NLINEARS = (int)(sizeof linears / sizeof *linears) };

static void first_linear_row(void *args)
{
    ((kr_decode_linear_args *)args)->nm = 1;
}

static void fill(double *scale, int64_t count, double value)
{
    for (int64_t i = 0; i < count; i++) scale[i] = value;
}

static void add_weights(kr_case *c, size_t field, const char *name, int64_t count, kr_dtype half)
{
    const kr_extent extent = { count, 0 };
    if (kr_is_16bit(half)) case_walk_halves(c, field, name, extent, half);
    else case_walk_input(c, field, name, extent, -1, 1);
}

/* A sum of nk products of about 1 each, at most 4 of which a convolution adds up. */
static void linear_case(kr_sweep *sweep, linear n, int with)
{
    const int64_t gap = with & STRIDED ? 3 : 0, y_m = n.nn + gap;
    kr_decode_linear_args a = { .nm = n.nm,
                                .nn = n.nn,
                                .nk = n.nk,
                                .ng = n.ng,
                                .x.row = n.nk + 8 * gap,
                                .z.row = n.nk + 2 * gap,
                                .w.row = n.nk,
                                .base.row = with & IN_PLACE ? y_m : n.nn + 1,
                                .y.row = y_m,
                                .taps.row = n.nt,
                                .has_norm = !(with & NO_NORM),
                                .norm_first = with & NORM_FIRST,
                                .eps = 1e-5,
                                .conv_from = n.conv_from,
                                .nc = n.nc,
                                .nt = n.nt,
                                .nsquares = with & SQUARES ? n.nk / 8 + 1 : 0 };
    kr_case c;
    case_begin(&c, &a, sizeof a, "m %lld n %lld k %lld in %lld, half %d, conv %lld+%lld by %lld, with %x",
               (long long)n.nm, (long long)n.nn, (long long)n.nk, (long long)n.ng, (int)n.half, (long long)n.conv_from,
               (long long)n.nc, (long long)n.nt, (unsigned)with);
    const double scale = 2 * (double)n.nk + 4;
    if (with & SQUARES) case_input(&c, FIELD(kr_decode_linear_args, squares), KR_SHAPE(n.nm, a.nsquares), 4, 12);
    case_walk_input(&c, OPERAND(kr_decode_linear_args, x), (kr_extent){ (n.nm - 1) * a.x.row + n.nk, 0 }, -2, 2);
    if (with & GATE)
        case_walk_input(&c, OPERAND(kr_decode_linear_args, z), (kr_extent){ (n.nm - 1) * a.z.row + n.nk, 0 }, -3, 3);
    if (with & GAIN) case_input(&c, FIELD(kr_decode_linear_args, gain), KR_SHAPE(n.nk), -2, 2);
    add_weights(&c, OPERAND(kr_decode_linear_args, w), n.nn * n.nk, n.half);
    if (with & BIAS) case_input(&c, FIELD(kr_decode_linear_args, bias), KR_SHAPE(n.nn), -2, 2);
    const kr_extent of_y = { (n.nm - 1) * y_m + n.nn, 0 };
    if (with & BASE && !(with & IN_PLACE))
        case_walk_input(&c, OPERAND(kr_decode_linear_args, base), (kr_extent){ (n.nm - 1) * a.base.row + n.nn, 0 }, -2,
                        2);
    if (n.nc) {
        add_weights(&c, OPERAND(kr_decode_linear_args, taps), n.nc * n.nt, n.half);
        if (with & CONV_BIAS) case_input(&c, FIELD(kr_decode_linear_args, conv_bias), KR_SHAPE(n.nc), -1, 1);
        case_in_out(&c, FIELD(kr_decode_linear_args, window), KR_SHAPE(n.nm, n.nc, n.nt), -2, 2);
        fill(case_scale(&c), n.nm * n.nc * n.nt, scale);
    }
    if (with & BASE && with & IN_PLACE) {
        case_walk_input(&c, OPERAND(kr_decode_linear_args, y), of_y, -2, 2);
        c.operands[c.noperands - 1].is_output = true;
        c.operands[c.noperands - 1].also = offsetof(kr_decode_linear_args, base.data) | KR_IS_TYPED;
    } else {
        case_walk_output(&c, OPERAND(kr_decode_linear_args, y), of_y);
    }
    fill(case_scale(&c), of_y.count, 4 * scale);
    c.terms = n.nk + 4;
    c.many_tasks = n.many_tasks;
    c.first_row = first_linear_row;
    case_done(sweep, &c);
}

void kr_cases_decode_linear(kr_sweep *sweep)
{
    static const int with[] = { 0,
                                GAIN,
                                GAIN + CONV_BIAS,
                                GATE + GAIN + BASE + IN_PLACE,
                                GATE + GAIN + BASE + IN_PLACE + NORM_FIRST + STRIDED,
                                GATE + NO_NORM + BASE + BIAS,
                                GAIN + BASE + BIAS + STRIDED + CONV_BIAS,
                                GATE + NORM_FIRST + NO_NORM,
                                SQUARES + BASE + IN_PLACE };
    for (int i = 0; i < NLINEARS; i++)
        for (size_t j = 0; j < sizeof with / sizeof *with; j++)
            if ((!linears[i].many_tasks || (j + (size_t)i) % 3 == 0) && (linears[i].ng == 1 || !(with[j] & SQUARES)))
                linear_case(sweep, linears[i], with[j]);
}

/* ---- the core ---- */

typedef struct core {
    int64_t nb, nh, np, ng, nr;
    bool many_tasks;
} core;

/* The last ones have enough states for the bulk-copy ring of a large GPU: heads of 1, 2, 3, 4 and 8 tile pairs of 16
 * rows p, several groups, rows of r as long as a warp. */
static const core cores[] = {
    { 1, 1, 1, 1, 1, false },   { 2, 3, 5, 1, 7, false },     { 1, 4, 8, 2, 16, false },  { 3, 4, 3, 4, 36, false },
    { 2, 2, 9, 1, 64, false },  { 1, 6, 64, 1, 128, false },  { 2, 4, 7, 2, 130, false }, { 1, 2, 4, 1, 260, false },
    { 9, 8, 16, 1, 128, true }, { 33, 8, 64, 1, 16, true },   { 46, 8, 48, 2, 20, true }, { 34, 16, 32, 4, 24, true },
    { 67, 2, 128, 1, 8, true }, { 70, 32, 16, 1, 128, true },
};
enum { NCORES = (int)(sizeof cores / sizeof *cores) };

static void first_core_row(void *args)
{
    ((kr_decode_ssd_args *)args)->nb = 1;
}

/* Pending updates of the states after `count` tokens; returns the most that they add to H: up to 7 times 0.81. */
static double add_pending(kr_case *c, core n, int64_t count)
{
    const kr_deferred_parts parts = kr_deferred_parts_of(n.nh, n.np, n.ng, n.nr);
    double *deferred = case_in_out(c, FIELD(kr_decode_ssd_args, deferred), KR_SHAPE(n.nb, parts.row), -0.9, 0.9);
    for (int64_t b = 0; b < n.nb; b++)
        for (int64_t i = 0; i < n.nh * parts.tiles; i++)
            deferred[b * parts.row + i * KR_DEFERRED_RECORD + KR_DEFERRED_COUNT] = (double)count;
    fill(case_scale(c), n.nb * parts.row, 10); /* weights: a step of up to 5, x of up to 2 */
    return 6;
}

/* limits: step sizes are clamped to 0.125 and 0.75; gap: between y's rows; gated: 1 with a gate, 2 with a gain, too;
 * count: tokens since the last flush, some of which are pending; -1: updates are not deferred. */
static void core_case(kr_sweep *sweep, core n, bool d_per_dim, bool limits, int64_t gap, int gated, int64_t count)
{
    const int64_t of_x = n.nh * n.np, of_b = n.ng * n.nr, row = (of_x > of_b ? of_x : of_b) + gap;
    kr_decode_ssd_args a = { .nb = n.nb,
                             .nh = n.nh,
                             .np = n.np,
                             .ng = n.ng,
                             .nr = n.nr,
                             .x.row = row,
                             .b.row = row,
                             .c.row = row,
                             .dt.row = row,
                             .z.row = row,
                             .y.row = of_x + gap,
                             .d_per_dim = d_per_dim,
                             .dt_min = limits ? 0.125 : 0,
                             .dt_max = limits ? 0.75 : INFINITY };
    kr_case c;
    case_begin(&c, &a, sizeof a, "b %lld h %lld p %lld g %lld r %lld%s%s, gap %lld, gated %d, count %lld",
               (long long)n.nb, (long long)n.nh, (long long)n.np, (long long)n.ng, (long long)n.nr,
               d_per_dim ? ", D per channel" : "", limits ? ", limits" : "", (long long)gap, gated, (long long)count);
    case_walk_input(&c, OPERAND(kr_decode_ssd_args, x), (kr_extent){ (n.nb - 1) * row + of_x, 0 }, -2, 2);
    case_walk_input(&c, OPERAND(kr_decode_ssd_args, b), (kr_extent){ (n.nb - 1) * row + of_b, 0 }, -1, 1);
    case_walk_input(&c, OPERAND(kr_decode_ssd_args, c), (kr_extent){ (n.nb - 1) * row + of_b, 0 }, -1, 1);
    case_walk_input(&c, OPERAND(kr_decode_ssd_args, dt), (kr_extent){ (n.nb - 1) * row + n.nh, 0 }, -3, 3);
    case_input(&c, FIELD(kr_decode_ssd_args, dt_bias), KR_SHAPE(n.nh), -2, 2);
    case_input(&c, FIELD(kr_decode_ssd_args, a_log), KR_SHAPE(n.nh), -3, 3);
    case_input(&c, FIELD(kr_decode_ssd_args, d), d_per_dim ? KR_SHAPE(n.nh, n.np) : KR_SHAPE(n.nh), -1, 1);
    case_in_out(&c, FIELD(kr_decode_ssd_args, state), KR_SHAPE(n.nb, n.nh, n.np, n.nr), -2, 2);
    fill(case_scale(&c), n.nb * n.nh * n.np * n.nr, 10); /* steps of up to 5, e^da to |da| ULP where it is not small */
    const double most = count < 0 ? 4 : 4 + add_pending(&c, n, count); /* of H */
    case_walk_output(&c, OPERAND(kr_decode_ssd_args, y), (kr_extent){ (n.nb - 1) * a.y.row + of_x, 0 });
    const double scale = (gated ? 6 : 1) * (most * (double)n.nr + 4); /* silu(z) is below 3, a gain at most 2 */
    fill(case_scale(&c), (n.nb - 1) * a.y.row + of_x, scale);
    if (gated) {
        const int64_t tiles = n.nh * ((n.np + KR_DECODE_TILE - 1) / KR_DECODE_TILE);
        case_walk_input(&c, OPERAND(kr_decode_ssd_args, z), (kr_extent){ (n.nb - 1) * row + of_x, 0 }, -3, 3);
        if (gated == 2) case_input(&c, FIELD(kr_decode_ssd_args, gain), KR_SHAPE(n.nh, n.np), -2, 2);
        case_output(&c, FIELD(kr_decode_ssd_args, squares), KR_SHAPE(n.nb, tiles));
        fill(case_scale(&c), n.nb * tiles, 2 * KR_DECODE_TILE * scale * scale);
    }
    c.terms = n.nr + 1;
    c.many_tasks = n.many_tasks;
    c.first_row = first_core_row;
    case_done(sweep, &c);
}

/* No token: all pending updates are flushed. */
static void flush_case(kr_sweep *sweep, core n, int64_t count)
{
    const kr_decode_ssd_args a = { .nb = n.nb, .nh = n.nh, .np = n.np, .ng = n.ng, .nr = n.nr };
    kr_case c;
    case_begin(&c, &a, sizeof a, "b %lld h %lld p %lld g %lld r %lld, flushed after %lld", (long long)n.nb,
               (long long)n.nh, (long long)n.np, (long long)n.ng, (long long)n.nr, (long long)count);
    case_in_out(&c, FIELD(kr_decode_ssd_args, state), KR_SHAPE(n.nb, n.nh, n.np, n.nr), -2, 2);
    fill(case_scale(&c), n.nb * n.nh * n.np * n.nr, 10);
    add_pending(&c, n, count);
    c.terms = KR_DEFERRED_TOKENS;
    c.many_tasks = n.many_tasks;
    c.first_row = first_core_row;
    case_done(sweep, &c);
}

void kr_cases_decode_ssd(kr_sweep *sweep)
{
    for (int i = 0; i < NCORES; i++) {
        core_case(sweep, cores[i], false, false, 0, i % 3, -1);
        core_case(sweep, cores[i], true, false, 3, 0, -1);
        core_case(sweep, cores[i], i % 2, true, 4, 2, -1);
        core_case(sweep, cores[i], false, true, 0, 2, i % 4);
        core_case(sweep, cores[i], false, true, 4, 0, 8 + i % 8);
        flush_case(sweep, cores[i], i % 16);
    }
}
