/* cases_mamba3.c - cases of Mamba-3's kernels: coefficients, angles, rotations by angles and by quaternions. */
#include "tests/kernels/packing.h"

kr_cases_fn kr_cases_trapezoid, kr_cases_trapezoid_bwd, kr_cases_angles, kr_cases_angles_bwd, kr_cases_rotate,
    kr_cases_rotate_bwd, kr_cases_quaternion_exp, kr_cases_quaternion_exp_bwd, kr_cases_quaternion_scan,
    kr_cases_quaternion_scan_bwd, kr_cases_quaternion_rotate, kr_cases_quaternion_rotate_bwd;

/* The last added operand gets one error scale for all elements: the magnitude of the terms that they are sums of. */
static void all_of_size(kr_case *c, double size)
{
    double *scale = case_scale(c);
    for (int64_t i = 0; i < c->operands[c->noperands - 1].count; i++) scale[i] = size;
}

/* ---- coefficients ---- */

typedef struct tokens {
    int64_t no, nh;
    bool many_tasks;
} tokens;

static const tokens decode_shapes[] = { { 0, 3, false },  { 2, 0, false },    { 1, 1, false },  { 5, 7, false },
                                        { 3, 8, false },  { 4, 9, false },    { 2, 16, false }, { 3, 17, false },
                                        { 2, 24, false }, { 1, 33, false },   { 7, 5, false },  { 9, 31, false },
                                        { 4, 65, false }, { 2100, 12, true }, { 411, 30, true } };
enum { NTOKEN_SHAPES = (int)(sizeof decode_shapes / sizeof *decode_shapes) };

enum { BIAS = 1, SOFTPLUS = 2, LIMITS = 4 }; /* bits of a case's number */

static void trapezoid_first_row(void *args)
{
    kr_trapezoid_args *a = args;
    if (a->no > 0) a->no = 1;
}

static void trapezoid_case(kr_sweep *sweep, tokens n, int with, double reach)
{
    kr_trapezoid_args a = {
        .no = n.no, .nh = n.nh, .a_floor = 1e-4, .dt_max = (double)INFINITY, .softplus = with & SOFTPLUS
    };
    if (with & LIMITS) a.dt_min = 0.25, a.dt_max = 2, a.a_floor = 0.5;
    kr_case c;
    case_begin(&c, &a, sizeof a, "[%lld, %lld], with %d, reach %g", (long long)n.no, (long long)n.nh, with, reach);
    const kr_shape shape = KR_SHAPE(n.no, n.nh);
    int64_t line;
    const kr_extent rows = lay_out_tokens(n.no, n.nh, with % 3 * 5, &line);
    a.dt_raw.row = a.a_raw.row = a.lambda_raw.row = line;
    case_walk_input(&c, OPERAND(kr_trapezoid_args, dt_raw), rows, -reach, reach);
    if (with & BIAS) case_input(&c, FIELD(kr_trapezoid_args, dt_bias), KR_SHAPE(n.nh), -2, 2);
    case_walk_input(&c, OPERAND(kr_trapezoid_args, a_raw), rows, -reach, reach);
    case_walk_input(&c, OPERAND(kr_trapezoid_args, lambda_raw), rows, -reach, reach);
    case_output(&c, FIELD(kr_trapezoid_args, dt), shape);
    case_output(&c, FIELD(kr_trapezoid_args, da), shape);
    case_output(&c, FIELD(kr_trapezoid_args, gamma), shape);
    case_output(&c, FIELD(kr_trapezoid_args, carry), shape);
    case_output(&c, FIELD(kr_trapezoid_args, beta), shape);
    all_of_size(&c, reach + 3); /* e^da keeps an absolute error of |da| e^da < 1, times carry */
    c.many_tasks = n.many_tasks;
    c.first_row = trapezoid_first_row;
    case_done(sweep, &c);
}

void kr_cases_trapezoid(kr_sweep *sweep)
{
    for (int i = 0; i < NTOKEN_SHAPES; i++)
        for (int with = 0; with < 8; with++) trapezoid_case(sweep, decode_shapes[i], with, 4);
    /* large arguments, where e^x multiplies the rounding of dt_raw + dt_bias by its size: without a bias */
    for (int with = 0; with < 8; with += 2) trapezoid_case(sweep, decode_shapes[3], with, 30);
}

static void trapezoid_bwd_first_row(void *args)
{
    kr_trapezoid_bwd_args *a = args;
    if (a->no > 0) a->no = 1;
}

static double softplus(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

static bool is_close(double x, double limit)
{
    return fabs(x - limit) < 1e-4;
}

/* Moves operands away from points where a gradient is discontinuous: rounding decides there. */
static void keep_off_limits(const kr_trapezoid_bwd_args *a, double *dt_raw, const double *dt_bias, double *a_raw)
{
    for (int64_t k = 0; k < a->no * a->nh; k++) {
        const int64_t i = k % a->nh + k / a->nh * a->dt_raw.row;
        const double step = softplus(dt_raw[i] + (dt_bias ? dt_bias[k % a->nh] : 0)), x = a_raw[i];
        const double rate = a->softplus ? softplus(x) : x >= 0 ? 1 + x : 1 / (1 - x);
        if (is_close(step, a->dt_min) || is_close(step, a->dt_max)) dt_raw[i] = kr_to_float(dt_raw[i] + 0.01);
        if (is_close(rate, a->a_floor) || is_close(x, 0)) a_raw[i] = kr_to_float(x + 0.01);
    }
}

/* without: bits of the incoming gradients that are NULL, then of the outgoing ones. */
static void trapezoid_bwd_case(kr_sweep *sweep, tokens n, int with, int without)
{
    kr_trapezoid_bwd_args a = {
        .no = n.no, .nh = n.nh, .a_floor = 1e-4, .dt_max = (double)INFINITY, .softplus = with & SOFTPLUS
    };
    if (with & LIMITS) a.dt_min = 0.25, a.dt_max = 2, a.a_floor = 0.5;
    kr_case c;
    case_begin(&c, &a, sizeof a, "[%lld, %lld], with %d, without %d", (long long)n.no, (long long)n.nh, with, without);
    const kr_shape shape = KR_SHAPE(n.no, n.nh);
    int64_t line;
    const kr_extent rows = lay_out_tokens(n.no, n.nh, with % 3 * 5, &line);
    a.dt_raw.row = a.a_raw.row = a.lambda_raw.row = line;
    a.g_dt_raw.row = a.g_a_raw.row = a.g_lambda_raw.row = n.nh;
    double *dt_raw = case_walk_input(&c, OPERAND(kr_trapezoid_bwd_args, dt_raw), rows, -4, 4), *dt_bias = NULL;
    if (with & BIAS) dt_bias = case_input(&c, FIELD(kr_trapezoid_bwd_args, dt_bias), KR_SHAPE(n.nh), -2, 2);
    keep_off_limits(&a, dt_raw, dt_bias, case_walk_input(&c, OPERAND(kr_trapezoid_bwd_args, a_raw), rows, -4, 4));
    case_walk_input(&c, OPERAND(kr_trapezoid_bwd_args, lambda_raw), rows, -4, 4);
    if (!(without & 1)) case_input(&c, FIELD(kr_trapezoid_bwd_args, g_dt), shape, -1, 1);
    if (!(without & 2)) case_input(&c, FIELD(kr_trapezoid_bwd_args, g_da), shape, -1, 1);
    if (!(without & 4)) case_input(&c, FIELD(kr_trapezoid_bwd_args, g_gamma), shape, -1, 1);
    if (!(without & 8)) case_input(&c, FIELD(kr_trapezoid_bwd_args, g_carry), shape, -1, 1);
    if (!(without & 16)) case_input(&c, FIELD(kr_trapezoid_bwd_args, g_beta), shape, -1, 1);
    if (!(without & 32)) case_output(&c, OPERAND(kr_trapezoid_bwd_args, g_dt_raw), shape), all_of_size(&c, 16);
    if (!(without & 64)) case_output(&c, OPERAND(kr_trapezoid_bwd_args, g_a_raw), shape), all_of_size(&c, 16);
    if (!(without & 128)) case_output(&c, OPERAND(kr_trapezoid_bwd_args, g_lambda_raw), shape), all_of_size(&c, 16);
    c.many_tasks = n.many_tasks;
    c.first_row = trapezoid_bwd_first_row;
    case_done(sweep, &c);
}

void kr_cases_trapezoid_bwd(kr_sweep *sweep)
{
    for (int i = 0; i < NTOKEN_SHAPES; i++)
        for (int with = 0; with < 8; with++) trapezoid_bwd_case(sweep, decode_shapes[i], with, 0);
    for (int bit = 0; bit < 8; bit++) trapezoid_bwd_case(sweep, decode_shapes[7], BIAS, 1 << bit);
    trapezoid_bwd_case(sweep, decode_shapes[7], 0, 31 & ~2);
}

/* ---- kernels along sequences ---- */

typedef struct scan {
    int64_t nb, ns, nh, n; /* n angles, or quaternion blocks */
    bool many_tasks;
} scan;

/* Blocks of 128 tokens, 16 and 32 lanes; vectors of 8 and 16. */
static const scan scan_shapes[] = { { 1, 1, 1, 1, false },   { 2, 3, 2, 3, false },   { 1, 5, 3, 8, false },
                                    { 2, 9, 1, 16, false },  { 1, 7, 2, 17, false },  { 2, 4, 3, 32, false },
                                    { 1, 6, 2, 33, false },  { 1, 127, 2, 5, false }, { 1, 128, 1, 7, false },
                                    { 2, 129, 2, 4, false }, { 1, 300, 1, 9, false }, { 2, 2, 5, 50, false },
                                    { 2, 400, 4, 16, true }, { 3, 130, 6, 33, true } };
enum { NSCAN_SHAPES = (int)(sizeof scan_shapes / sizeof *scan_shapes) };

enum { INITIAL = 1, PACKED = 2, CHUNKED = 4, CHUNK = 5, MANY_SEQUENCES = 2048 };

/* Rows of one sequence each, or split into sequences of 1, 2, 4, 8, .. tokens. */
static int64_t sequences_of(scan n, int with, kr_sequence *list)
{
    int64_t count = 0;
    for (int64_t b = 0; b < n.nb; b++)
        for (int64_t start = 0, end, length = 1; start < n.ns; start = end, length *= 2) {
            end = with & PACKED && start + length < n.ns ? start + length : n.ns;
            list[count++] = (kr_sequence){ b, start, end };
        }
    return count;
}

/* Sequences of the first row. */
static int64_t first_sequences(const kr_sequence *list, int64_t count)
{
    int64_t n = 0;
    while (n < count && list[n].row == 0) n++;
    return n;
}

static void angles_first_row(void *args)
{
    kr_angles_args *a = args;
    a->nq = first_sequences(a->sequences, a->nq);
    a->nb = 1;
}

static void angles_case(kr_sweep *sweep, scan n, int with)
{
    kr_sequence list[MANY_SEQUENCES];
    kr_angles_args a = { .nb = n.nb, .ns = n.ns, .nh = n.nh, .na = n.n, .sequences = list, .range = 1.5 };
    a.nq = sequences_of(n, with, list);
    a.nl = with & CHUNKED ? CHUNK : 0;
    const double size = with & CHUNKED ? 4 : 1e-3; /* sums run in double, and are rounded at ends of chunks */
    kr_case c;
    case_begin(&c, &a, sizeof a, "b %lld s %lld h %lld a %lld, with %d", (long long)n.nb, (long long)n.ns,
               (long long)n.nh, (long long)n.n, with);
    int64_t line;
    const kr_extent tokens_of_theta = lay_out_tokens(n.nb * n.ns, n.n, with * 3, &line);
    a.theta.row = line;
    case_walk_input(&c, OPERAND(kr_angles_args, theta), tokens_of_theta, -3, 3);
    case_input(&c, FIELD(kr_angles_args, dt), KR_SHAPE(n.nb, n.ns, n.nh), 0, 2);
    if (with & INITIAL) case_input(&c, FIELD(kr_angles_args, initial), KR_SHAPE(a.nq, n.nh, n.n), -9, 9);
    case_output(&c, FIELD(kr_angles_args, angle), KR_SHAPE(n.nb, n.ns, n.nh, n.n));
    all_of_size(&c, size);
    case_output(&c, FIELD(kr_angles_args, final), KR_SHAPE(a.nq, n.nh, n.n));
    all_of_size(&c, size);
    c.terms = 2 * n.ns;
    c.roundings = with & CHUNKED ? (n.ns - 1) / CHUNK : 0;
    c.many_tasks = n.many_tasks;
    c.first_row = angles_first_row;
    case_done(sweep, &c);
}

void kr_cases_angles(kr_sweep *sweep)
{
    for (int i = 0; i < NSCAN_SHAPES; i++)
        for (int with = 0; with < 8; with++) angles_case(sweep, scan_shapes[i], with);
}

static void angles_bwd_first_row(void *args)
{
    kr_angles_bwd_args *a = args;
    a->nq = first_sequences(a->sequences, a->nq);
    a->nb = 1;
}

/* wanted: bits 1 g_theta, 2 g_dt, 4 g_initial */
static void angles_bwd_case(kr_sweep *sweep, scan n, int with, int wanted)
{
    kr_sequence list[MANY_SEQUENCES];
    kr_angles_bwd_args a = { .nb = n.nb, .ns = n.ns, .nh = n.nh, .na = n.n, .sequences = list, .range = 1.5 };
    a.nq = sequences_of(n, with, list);
    kr_case c;
    case_begin(&c, &a, sizeof a, "b %lld s %lld h %lld a %lld, with %d, wanted %d", (long long)n.nb, (long long)n.ns,
               (long long)n.nh, (long long)n.n, with, wanted);
    int64_t line;
    const kr_extent tokens_of_theta = lay_out_tokens(n.nb * n.ns, n.n, with * 3, &line);
    a.theta.row = line, a.g_theta.row = n.n;
    case_walk_input(&c, OPERAND(kr_angles_bwd_args, theta), tokens_of_theta, -3, 3);
    case_input(&c, FIELD(kr_angles_bwd_args, dt), KR_SHAPE(n.nb, n.ns, n.nh), 0, 2);
    case_input(&c, FIELD(kr_angles_bwd_args, g_angle), KR_SHAPE(n.nb, n.ns, n.nh, n.n), -1, 1);
    if (with & INITIAL) case_input(&c, FIELD(kr_angles_bwd_args, g_final), KR_SHAPE(a.nq, n.nh, n.n), -1, 1);
    /* totals grow with the square root of the number of tokens, and so do their sums over heads or angles */
    const double total = 5 * sqrt((double)n.ns + 1);
    if (wanted & 1)
        case_output(&c, OPERAND(kr_angles_bwd_args, g_theta), KR_SHAPE(n.nb, n.ns, n.n)),
            all_of_size(&c, 2 * total * sqrt((double)n.nh));
    if (wanted & 2)
        case_output(&c, FIELD(kr_angles_bwd_args, g_dt), KR_SHAPE(n.nb, n.ns, n.nh)),
            all_of_size(&c, total * sqrt((double)n.n));
    if (wanted & 4)
        case_output(&c, FIELD(kr_angles_bwd_args, g_initial), KR_SHAPE(a.nq, n.nh, n.n)), all_of_size(&c, total);
    c.terms = n.ns + n.nh + n.n;
    c.many_tasks = n.many_tasks;
    c.first_row = angles_bwd_first_row;
    case_done(sweep, &c);
}

void kr_cases_angles_bwd(kr_sweep *sweep)
{
    for (int i = 0; i < NSCAN_SHAPES; i++)
        for (int with = 0; with < 4; with++) angles_bwd_case(sweep, scan_shapes[i], with, 7);
    for (int wanted = 1; wanted < 7; wanted++) angles_bwd_case(sweep, scan_shapes[9], 1, wanted);
}

/* ---- rows ---- */

typedef struct rows {
    int64_t no, nm, nh, nr, n; /* n pairs, or blocks of four */
    bool many_tasks;
} rows;

static const rows pair_shapes[] = { { 0, 1, 2, 8, 2, false },   { 2, 1, 1, 2, 1, false },    { 3, 1, 2, 6, 3, false },
                                    { 2, 2, 3, 16, 8, false },  { 1, 1, 2, 32, 9, false },   { 2, 4, 1, 34, 17, false },
                                    { 2, 1, 2, 64, 16, false }, { 1, 3, 2, 64, 32, false },  { 2, 1, 3, 66, 33, false },
                                    { 3, 2, 1, 24, 5, false },  { 1, 1, 1, 130, 40, false }, { 2, 1, 1, 10, 0, false },
                                    { 90, 1, 6, 64, 16, true }, { 40, 4, 3, 50, 21, true } };
enum { NPAIR_SHAPES = (int)(sizeof pair_shapes / sizeof *pair_shapes) };

static void rotate_first_row(void *args)
{
    kr_rotate_args *a = args;
    if (a->no > 0) a->no = 1;
}

/* each: heads per group; 0: every head is one, and there is no bias */
static void rotate_case(kr_sweep *sweep, rows n, bool half, double reach, int64_t each)
{
    const int64_t ng = each ? n.nh / each : n.nh;
    kr_rotate_args a = { .no = n.no, .nm = n.nm, .nh = n.nh, .ng = ng, .nr = n.nr, .na = n.n, .split_pairs = half };
    kr_case c;
    case_begin(&c, &a, sizeof a, "o %lld m %lld h %lld g %lld r %lld a %lld%s", (long long)n.no, (long long)n.nm,
               (long long)n.nh, (long long)ng, (long long)n.nr, (long long)n.n, half ? ", half" : "");
    case_input(&c, FIELD(kr_rotate_args, x), KR_SHAPE(n.no, n.nm, ng, n.nr), -2, 2);
    if (each) case_input(&c, FIELD(kr_rotate_args, bias), KR_SHAPE(n.nh, n.nm, n.nr), -1, 1);
    case_input(&c, FIELD(kr_rotate_args, angle), KR_SHAPE(n.no, n.nh, n.n), -reach, reach);
    case_output(&c, OPERAND(kr_rotate_args, y), KR_SHAPE(n.no, n.nm, n.nh, n.nr));
    all_of_size(&c, 3);
    c.terms = 3;
    c.many_tasks = n.many_tasks;
    c.first_row = rotate_first_row;
    case_done(sweep, &c);
}

void kr_cases_rotate(kr_sweep *sweep)
{
    for (int i = 0; i < NPAIR_SHAPES; i++)
        for (int half = 0; half < 2; half++)
            for (int64_t each = 0; each <= pair_shapes[i].nh; each++)
                if (each == 0 || pair_shapes[i].nh % each == 0)
                    rotate_case(sweep, pair_shapes[i], half, i % 2 ? 1000 : 4, each);
    rotate_case(sweep, (rows){ 2, 1, 2, 17, 8, false }, false, 4, 0);
    rotate_case(sweep, (rows){ 2, 1, 2, 17, 8, false }, false, 4, 2);
}

static void rotate_bwd_first_row(void *args)
{
    kr_rotate_bwd_args *a = args;
    if (a->no > 0) a->no = 1;
    a->g_bias = NULL; /* sums over all tokens */
}

/* wanted: bits 1 g_x, 2 g_angle, 4 g_bias; each as above */
static void rotate_bwd_case(kr_sweep *sweep, rows n, bool half, int wanted, int64_t each)
{
    const int64_t ng = each ? n.nh / each : n.nh;
    kr_rotate_bwd_args a = { .no = n.no, .nm = n.nm, .nh = n.nh, .ng = ng, .nr = n.nr, .na = n.n, .split_pairs = half };
    kr_case c;
    case_begin(&c, &a, sizeof a, "o %lld m %lld h %lld g %lld r %lld a %lld%s, wanted %d", (long long)n.no,
               (long long)n.nm, (long long)n.nh, (long long)ng, (long long)n.nr, (long long)n.n, half ? ", half" : "",
               wanted);
    case_input(&c, FIELD(kr_rotate_bwd_args, x), KR_SHAPE(n.no, n.nm, ng, n.nr), -2, 2);
    if (each) case_input(&c, FIELD(kr_rotate_bwd_args, bias), KR_SHAPE(n.nh, n.nm, n.nr), -1, 1);
    case_input(&c, FIELD(kr_rotate_bwd_args, angle), KR_SHAPE(n.no, n.nh, n.n), -4, 4);
    case_input(&c, FIELD(kr_rotate_bwd_args, g_y), KR_SHAPE(n.no, n.nm, n.nh, n.nr), -1, 1);
    if (wanted & 1) case_output(&c, FIELD(kr_rotate_bwd_args, g_x), KR_SHAPE(n.no, n.nm, ng, n.nr)), all_of_size(&c, 1);
    if (wanted & 2) case_output(&c, FIELD(kr_rotate_bwd_args, g_angle), KR_SHAPE(n.no, n.nh, n.n)), all_of_size(&c, 6);
    if (wanted & 4 && each)
        case_output(&c, FIELD(kr_rotate_bwd_args, g_bias), KR_SHAPE(n.nh, n.nm, n.nr)),
            all_of_size(&c, sqrt((double)n.no));
    c.terms = 4 * n.nm + each + n.no;
    c.many_tasks = n.many_tasks;
    c.first_row = rotate_bwd_first_row;
    case_done(sweep, &c);
}

void kr_cases_rotate_bwd(kr_sweep *sweep)
{
    for (int i = 0; i < NPAIR_SHAPES; i++)
        for (int half = 0; half < 2; half++)
            for (int64_t each = 0; each <= pair_shapes[i].nh; each++)
                if (each == 0 || pair_shapes[i].nh % each == 0) rotate_bwd_case(sweep, pair_shapes[i], half, 7, each);
    for (int wanted = 1; wanted < 7; wanted++) rotate_bwd_case(sweep, pair_shapes[4], wanted % 2, wanted, 2);
    rotate_bwd_case(sweep, (rows){ 2, 2, 2, 17, 8, false }, false, 7, 0);
    rotate_bwd_case(sweep, (rows){ 2, 2, 2, 17, 8, false }, false, 7, 2);
}

/* ---- quaternions ---- */

static void exp_first_row(void *args)
{
    kr_quaternion_exp_args *a = args;
    if (a->no > 0) a->no = 1;
}

/* Generators of all lengths: zero, tiny, so large that their squares overflow. */
static void some_generators(double *raw, int64_t nblocks)
{
    static const double lengths[] = { 0, 0x1p-140, 0x1p-80, 1e-4, 1, 20, 0x1p80, 0x1p126 };
    for (int64_t n = 0; n < nblocks; n++)
        for (int i = 0; n % 3 == 1 && i < 3; i++) raw[3 * n + i] = kr_to_float(raw[3 * n + i] * lengths[n / 3 % 8]);
}

static void exp_case(kr_sweep *sweep, tokens n)
{
    kr_quaternion_exp_args a = { .no = n.no, .nj = n.nh, .range = 1.25 };
    kr_case c;
    case_begin(&c, &a, sizeof a, "o %lld j %lld", (long long)n.no, (long long)n.nh);
    some_generators(case_input(&c, FIELD(kr_quaternion_exp_args, raw), KR_SHAPE(n.no, n.nh, 3), -2, 2), n.no * n.nh);
    case_input(&c, FIELD(kr_quaternion_exp_args, dt), KR_SHAPE(n.no), 0, 2);
    case_output(&c, FIELD(kr_quaternion_exp_args, q), KR_SHAPE(n.no, n.nh, 4));
    all_of_size(&c, 1);
    c.many_tasks = n.many_tasks;
    c.first_row = exp_first_row;
    case_done(sweep, &c);
}

void kr_cases_quaternion_exp(kr_sweep *sweep)
{
    for (int i = 0; i < NTOKEN_SHAPES; i++) exp_case(sweep, decode_shapes[i]);
}

static void exp_bwd_first_row(void *args)
{
    kr_quaternion_exp_bwd_args *a = args;
    if (a->no > 0) a->no = 1;
}

static void exp_bwd_case(kr_sweep *sweep, tokens n, int wanted)
{
    kr_quaternion_exp_bwd_args a = { .no = n.no, .nj = n.nh, .range = 1.25 };
    kr_case c;
    case_begin(&c, &a, sizeof a, "o %lld j %lld, wanted %d", (long long)n.no, (long long)n.nh, wanted);
    some_generators(case_input(&c, FIELD(kr_quaternion_exp_bwd_args, raw), KR_SHAPE(n.no, n.nh, 3), -2, 2),
                    n.no * n.nh);
    case_input(&c, FIELD(kr_quaternion_exp_bwd_args, dt), KR_SHAPE(n.no), 0, 2);
    case_input(&c, FIELD(kr_quaternion_exp_bwd_args, g_q), KR_SHAPE(n.no, n.nh, 4), -1, 1);
    if (wanted & 1)
        case_output(&c, FIELD(kr_quaternion_exp_bwd_args, g_raw), KR_SHAPE(n.no, n.nh, 3)), all_of_size(&c, 4);
    if (wanted & 2) case_output(&c, FIELD(kr_quaternion_exp_bwd_args, g_dt), KR_SHAPE(n.no)), all_of_size(&c, 4);
    c.terms = n.nh;
    c.many_tasks = n.many_tasks;
    c.first_row = exp_bwd_first_row;
    case_done(sweep, &c);
}

void kr_cases_quaternion_exp_bwd(kr_sweep *sweep)
{
    for (int i = 0; i < NTOKEN_SHAPES; i++) exp_bwd_case(sweep, decode_shapes[i], 3);
    for (int wanted = 1; wanted < 3; wanted++) exp_bwd_case(sweep, decode_shapes[5], wanted);
}

/* Scales an operand's quaternions to about length 1. */
static void make_unit(double *q, int64_t count)
{
    for (int64_t n = 0; n < count; n += 4) {
        const double length = sqrt(q[n] * q[n] + q[n + 1] * q[n + 1] + q[n + 2] * q[n + 2] + q[n + 3] * q[n + 3]);
        for (int i = 0; i < 4; i++) q[n + i] = length > 0.1 ? kr_to_float(q[n + i] / length) : i == 0;
    }
}

static void scan_first_row(void *args)
{
    kr_quaternion_scan_args *a = args;
    a->nq = first_sequences(a->sequences, a->nq);
    a->nb = 1;
}

static void scan_case(kr_sweep *sweep, scan n, int with)
{
    kr_sequence list[MANY_SEQUENCES];
    kr_quaternion_scan_args a = { .nb = n.nb, .ns = n.ns, .nh = n.nh, .nj = n.n, .sequences = list };
    a.nq = sequences_of(n, with, list);
    a.nl = with & CHUNKED ? CHUNK : 0;
    const double size = with & CHUNKED ? 1 : 1e-3; /* products run in double, and are rounded at ends of chunks */
    const int64_t count = n.nb * n.ns * n.nh * n.n * 4, states = a.nq * n.nh * n.n * 4;
    kr_case c;
    case_begin(&c, &a, sizeof a, "b %lld s %lld h %lld j %lld, with %d", (long long)n.nb, (long long)n.ns,
               (long long)n.nh, (long long)n.n, with);
    make_unit(case_input(&c, FIELD(kr_quaternion_scan_args, q), KR_SHAPE(n.nb, n.ns, n.nh, n.n, 4), -1, 1), count);
    if (with & INITIAL)
        make_unit(case_input(&c, FIELD(kr_quaternion_scan_args, initial), KR_SHAPE(a.nq, n.nh, n.n, 4), -1, 1), states);
    case_output(&c, FIELD(kr_quaternion_scan_args, cum), KR_SHAPE(n.nb, n.ns, n.nh, n.n, 4));
    all_of_size(&c, size);
    case_output(&c, FIELD(kr_quaternion_scan_args, final), KR_SHAPE(a.nq, n.nh, n.n, 4));
    all_of_size(&c, size);
    c.terms = 8 * n.ns;
    c.roundings = with & CHUNKED ? (n.ns - 1) / CHUNK : 0;
    c.many_tasks = n.many_tasks;
    c.first_row = scan_first_row;
    case_done(sweep, &c);
}

void kr_cases_quaternion_scan(kr_sweep *sweep)
{
    for (int i = 0; i < NSCAN_SHAPES; i++)
        for (int with = 0; with < 8; with++) scan_case(sweep, scan_shapes[i], with);
}

static void scan_bwd_first_row(void *args)
{
    kr_quaternion_scan_bwd_args *a = args;
    a->nq = first_sequences(a->sequences, a->nq);
    a->nb = 1;
}

/* wanted: bits 1 g_q, 2 g_initial */
static void scan_bwd_case(kr_sweep *sweep, scan n, int with, int wanted)
{
    kr_sequence list[MANY_SEQUENCES];
    kr_quaternion_scan_bwd_args a = { .nb = n.nb, .ns = n.ns, .nh = n.nh, .nj = n.n, .sequences = list };
    a.nq = sequences_of(n, with, list);
    const int64_t count = n.nb * n.ns * n.nh * n.n * 4, states = a.nq * n.nh * n.n * 4;
    const kr_shape all = KR_SHAPE(n.nb, n.ns, n.nh, n.n, 4), state = KR_SHAPE(a.nq, n.nh, n.n, 4);
    kr_case c;
    case_begin(&c, &a, sizeof a, "b %lld s %lld h %lld j %lld, with %d, wanted %d", (long long)n.nb, (long long)n.ns,
               (long long)n.nh, (long long)n.n, with, wanted);
    make_unit(case_input(&c, FIELD(kr_quaternion_scan_bwd_args, q), all, -1, 1), count);
    make_unit(case_input(&c, FIELD(kr_quaternion_scan_bwd_args, cum), all, -1, 1), count);
    case_input(&c, FIELD(kr_quaternion_scan_bwd_args, g_cum), all, -1, 1);
    if (with & INITIAL) {
        make_unit(case_input(&c, FIELD(kr_quaternion_scan_bwd_args, initial), state, -1, 1), states);
        case_input(&c, FIELD(kr_quaternion_scan_bwd_args, g_final), state, -1, 1);
    }
    if (wanted & 1) case_output(&c, FIELD(kr_quaternion_scan_bwd_args, g_q), all), all_of_size(&c, 1e-3 * (double)n.ns);
    if (wanted & 2)
        case_output(&c, FIELD(kr_quaternion_scan_bwd_args, g_initial), state), all_of_size(&c, 1e-3 * (double)n.ns);
    c.terms = 16 * n.ns;
    c.many_tasks = n.many_tasks;
    c.first_row = scan_bwd_first_row;
    case_done(sweep, &c);
}

void kr_cases_quaternion_scan_bwd(kr_sweep *sweep)
{
    for (int i = 0; i < NSCAN_SHAPES; i++)
        for (int with = 0; with < 4; with++) scan_bwd_case(sweep, scan_shapes[i], with, 3);
    for (int wanted = 1; wanted < 3; wanted++) scan_bwd_case(sweep, scan_shapes[9], 1, wanted);
}

static const rows block_shapes[] = {
    { 0, 1, 2, 8, 2, false },   { 2, 1, 1, 4, 1, false },  { 3, 1, 2, 6, 1, false },   { 2, 2, 3, 16, 4, false },
    { 1, 1, 2, 32, 5, false },  { 2, 4, 1, 36, 9, false }, { 2, 1, 2, 64, 16, false }, { 1, 3, 2, 40, 10, false },
    { 2, 1, 3, 70, 17, false }, { 2, 1, 1, 7, 0, false },  { 90, 1, 6, 64, 16, true }, { 40, 4, 3, 50, 11, true }
};
enum { NBLOCK_SHAPES = (int)(sizeof block_shapes / sizeof *block_shapes) };

static void quaternion_rotate_first_row(void *args)
{
    kr_quaternion_rotate_args *a = args;
    if (a->no > 0) a->no = 1;
}

static void quaternion_rotate_case(kr_sweep *sweep, rows n)
{
    kr_quaternion_rotate_args a = { .no = n.no, .nm = n.nm, .nh = n.nh, .nr = n.nr, .nj = n.n };
    kr_case c;
    case_begin(&c, &a, sizeof a, "o %lld m %lld h %lld r %lld j %lld", (long long)n.no, (long long)n.nm,
               (long long)n.nh, (long long)n.nr, (long long)n.n);
    case_input(&c, FIELD(kr_quaternion_rotate_args, x), KR_SHAPE(n.no, n.nm, n.nh, n.nr), -2, 2);
    case_input(&c, FIELD(kr_quaternion_rotate_args, cum), KR_SHAPE(n.no, n.nh, n.n, 4), -1, 1);
    case_output(&c, FIELD(kr_quaternion_rotate_args, y), KR_SHAPE(n.no, n.nm, n.nh, n.nr));
    all_of_size(&c, 2);
    c.terms = 4;
    c.many_tasks = n.many_tasks;
    c.first_row = quaternion_rotate_first_row;
    case_done(sweep, &c);
}

void kr_cases_quaternion_rotate(kr_sweep *sweep)
{
    for (int i = 0; i < NBLOCK_SHAPES; i++) quaternion_rotate_case(sweep, block_shapes[i]);
}

static void quaternion_rotate_bwd_first_row(void *args)
{
    kr_quaternion_rotate_bwd_args *a = args;
    if (a->no > 0) a->no = 1;
}

/* wanted: bits 1 g_x, 2 g_cum */
static void quaternion_rotate_bwd_case(kr_sweep *sweep, rows n, int wanted)
{
    kr_quaternion_rotate_bwd_args a = { .no = n.no, .nm = n.nm, .nh = n.nh, .nr = n.nr, .nj = n.n };
    kr_case c;
    case_begin(&c, &a, sizeof a, "o %lld m %lld h %lld r %lld j %lld, wanted %d", (long long)n.no, (long long)n.nm,
               (long long)n.nh, (long long)n.nr, (long long)n.n, wanted);
    case_input(&c, FIELD(kr_quaternion_rotate_bwd_args, x), KR_SHAPE(n.no, n.nm, n.nh, n.nr), -2, 2);
    case_input(&c, FIELD(kr_quaternion_rotate_bwd_args, cum), KR_SHAPE(n.no, n.nh, n.n, 4), -1, 1);
    case_input(&c, FIELD(kr_quaternion_rotate_bwd_args, g_y), KR_SHAPE(n.no, n.nm, n.nh, n.nr), -1, 1);
    if (wanted & 1)
        case_output(&c, FIELD(kr_quaternion_rotate_bwd_args, g_x), KR_SHAPE(n.no, n.nm, n.nh, n.nr)),
            all_of_size(&c, 1);
    if (wanted & 2)
        case_output(&c, FIELD(kr_quaternion_rotate_bwd_args, g_cum), KR_SHAPE(n.no, n.nh, n.n, 4)), all_of_size(&c, 2);
    c.terms = 4 * n.nm;
    c.many_tasks = n.many_tasks;
    c.first_row = quaternion_rotate_bwd_first_row;
    case_done(sweep, &c);
}

void kr_cases_quaternion_rotate_bwd(kr_sweep *sweep)
{
    for (int i = 0; i < NBLOCK_SHAPES; i++) quaternion_rotate_bwd_case(sweep, block_shapes[i], 3);
    for (int wanted = 1; wanted < 3; wanted++) quaternion_rotate_bwd_case(sweep, block_shapes[4], wanted);
}
