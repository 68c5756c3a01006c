/* cases_norm.c - cases of the RMS norm with and without a gate, in both orders, in groups, and of its gradients. */
#include "tests/kernels/packing.h"

kr_cases_fn kr_cases_norm, kr_cases_norm_bwd;

typedef enum gate { NO_GATE, GATE_FIRST, NORM_FIRST, NGATES } gate;
static const char *const gate_names[NGATES] = { "no gate", "gate first", "norm first" };

typedef struct norm {
    int64_t no, ni, ng;
    bool many_tasks;
} norm;

/* Vectors of 8 and 16, four interleaved; squares are summed in runs of 4096; backward in blocks of 16 rows or more. */
static const norm shapes[] = {
    { 0, 8, 1, false },    { 3, 0, 1, false },    { 1, 1, 1, false },    { 4, 1, 1, false },   { 2, 7, 1, false },
    { 3, 8, 1, false },    { 2, 9, 1, false },    { 3, 15, 3, false },   { 2, 16, 2, false },  { 3, 17, 1, false },
    { 5, 24, 3, false },   { 2, 31, 1, false },   { 3, 33, 1, false },   { 2, 64, 4, false },  { 3, 66, 6, false },
    { 2, 68, 4, false },   { 1, 127, 1, false },  { 17, 130, 2, false }, { 7, 12, 12, false }, { 2, 4100, 1, false },
    { 1, 8200, 2, false }, { 65, 1030, 5, true }, { 900, 33, 3, true },  { 5, 9001, 1, true }, { 3, 640, 1, false },
    { 5, 1537, 1, false }, { 9, 3072, 2, false }, { 3, 35, 35, false },
};
enum { NSHAPES = (int)(sizeof shapes / sizeof *shapes) };

/* Elements between rows of x and z: none, or some. */
static int64_t gap_of(norm n, bool strided)
{
    return !strided ? 0 : n.ni % 2 ? 3 : 8;
}

static void first_row(void *args)
{
    kr_norm_args *a = args;
    if (a->no > 0) a->no = 1;
}

static void norm_case(kr_sweep *sweep, norm n, gate g, bool gain, double size, bool special)
{
    kr_norm_args a = { .no = n.no, .ni = n.ni, .ng = n.ng, .eps = 1e-5, .norm_first = g == NORM_FIRST };
    kr_case c;
    case_begin(&c, &a, sizeof a, "[%lld, %lld] in %lld, %s%s, size %g%s", (long long)n.no, (long long)n.ni,
               (long long)n.ng, gate_names[g], gain ? ", gain" : "", size, special ? ", special rows" : "");
    int64_t line, z_line;
    const kr_extent x_rows = lay_out_tokens(n.no, n.ni, gap_of(n, gain), &line);
    const kr_extent z_rows = lay_out_tokens(n.no, n.ni, 2 * gap_of(n, gain), &z_line);
    a.x.row = line, a.z.row = z_line, a.y.row = n.ni;
    double *x = case_walk_input(&c, OPERAND(kr_norm_args, x), x_rows, -size, size);
    for (int64_t o = 0; special && o < n.no; o++) {
        static const double values[] = { NAN, INFINITY, -INFINITY, 0, 0x1p60 };
        const double tiny = g == NO_GATE ? 0x1p-140 : 0x1p-110; /* a gated denormal loses digits */
        if (o % 6 < 5) x[o * line + kr_test_below(n.ni)] = values[o % 6];
        for (int64_t i = 0; o % 6 == 3 && i < n.ni; i++) x[o * line + i] = i % 3 ? 0 : tiny;
    }
    if (g != NO_GATE) case_walk_input(&c, OPERAND(kr_norm_args, z), z_rows, -6, 6);
    if (gain) case_input(&c, FIELD(kr_norm_args, gain), KR_SHAPE(n.ni), -2, 2);
    case_output(&c, OPERAND(kr_norm_args, y), KR_SHAPE(n.no, n.ni));
    case_output(&c, FIELD(kr_norm_args, q), KR_SHAPE(n.no, n.ng));
    c.terms = n.ni / n.ng + 1;
    c.many_tasks = n.many_tasks;
    c.first_row = first_row;
    case_done(sweep, &c);
}

void kr_cases_norm(kr_sweep *sweep)
{
    for (int i = 0; i < NSHAPES; i++)
        for (int g = 0; g < NGATES; g++)
            for (int gain = 0; gain < 2; gain++) norm_case(sweep, shapes[i], (gate)g, gain, gain ? 2 : 300, false);
    for (int g = 0; g < NGATES; g++) {
        norm_case(sweep, (norm){ 12, 19, 1, false }, (gate)g, true, 1, true);
        norm_case(sweep, (norm){ 12, 6, 2, false }, (gate)g, false, 1e-6, true);
    }
}

/* ---- backward ---- */

static void first_row_bwd(void *args)
{
    kr_norm_bwd_args *a = args;
    if (a->no > 0) a->no = 1;
    a->g_gain = NULL; /* sums over all rows */
}

typedef struct values {
    const double *x, *z, *gain, *g_y;
    double *q;
    int64_t x_padding, z_padding;
} values;

static double silu(double z)
{
    return z / (1 + exp(-z));
}

/* A group's q as in the forward pass, and the magnitudes of the terms of its gradients:
 *   g_u: |q w| + q^3 |u| mean |w u|, of one channel eps q^3 |w|;  silu'(z): sigmoid(z) (1 + |z|) */
static void group_scales(norm n, gate g, const values *v, int64_t group, double *s_x, double *s_z, double *s_gain)
{
    const int64_t width = n.ni / n.ng, first = group * width, channel = group % n.ng * width;
    const double *of_x = v->x + group / n.ng * v->x_padding, *of_z = v->z ? v->z + group / n.ng * v->z_padding : NULL;
    double squares = 0, wu = 0;
    for (int64_t i = 0; i < width; i++) {
        const double gated = g == NO_GATE ? 1 : silu(of_z[first + i]),
                     u = of_x[first + i] * (g == GATE_FIRST ? gated : 1);
        squares += u * u;
        wu += fabs(u * v->g_y[first + i] * (v->gain ? v->gain[channel + i] : 1) * (g == NORM_FIRST ? gated : 1));
    }
    const double q = v->q[group] = kr_to_float(1 / sqrt(squares / (double)width + 1e-5));
    for (int64_t i = 0; i < width; i++) {
        const double z = g == NO_GATE ? 0 : of_z[first + i], gated = g == NO_GATE ? 1 : fabs(silu(z));
        const double slope = (1 + fabs(z)) / (1 + exp(-z)), x = fabs(of_x[first + i]);
        const double u = g == GATE_FIRST ? x * gated : x, g_y = fabs(v->g_y[first + i]);
        const double g_out = g_y * (v->gain ? fabs(v->gain[channel + i]) : 1);
        const double w = g_out * (g == NORM_FIRST ? gated : 1);
        const double g_u = width == 1 ? 1e-5 * q * q * q * w : q * w + q * q * q * u * wu / (double)width;
        s_x[first + i] = g == GATE_FIRST ? g_u * gated : g_u;
        if (s_z) s_z[first + i] = (g == GATE_FIRST ? g_u * x : u * q * g_out) * slope;
        if (s_gain) s_gain[channel + i] += g_y * u * q * (g == NORM_FIRST ? gated : 1);
    }
}

/* wanted: bits 1 g_x, 2 g_z, 4 g_gain */
static void norm_bwd_case(kr_sweep *sweep, norm n, gate g, bool gain, int wanted)
{
    kr_norm_bwd_args a = { .no = n.no, .ni = n.ni, .ng = n.ng, .eps = 1e-5, .norm_first = g == NORM_FIRST };
    const kr_shape rows = KR_SHAPE(n.no, n.ni);
    kr_case c;
    case_begin(&c, &a, sizeof a, "[%lld, %lld] in %lld, %s%s, wanted %d", (long long)n.no, (long long)n.ni,
               (long long)n.ng, gate_names[g], gain ? ", gain" : "", wanted);
    int64_t line, z_line;
    const kr_extent x_rows = lay_out_tokens(n.no, n.ni, gap_of(n, gain), &line);
    const kr_extent z_rows = lay_out_tokens(n.no, n.ni, 2 * gap_of(n, gain), &z_line);
    a.x.row = line, a.z.row = z_line, a.g_y.row = a.g_x.row = a.g_z.row = n.ni;
    values v = { .x_padding = line - n.ni, .z_padding = z_line - n.ni };
    v.x = case_walk_input(&c, OPERAND(kr_norm_bwd_args, x), x_rows, -2, 2);
    if (g != NO_GATE) v.z = case_walk_input(&c, OPERAND(kr_norm_bwd_args, z), z_rows, -4, 4);
    if (gain) v.gain = case_input(&c, FIELD(kr_norm_bwd_args, gain), KR_SHAPE(n.ni), -2, 2);
    v.g_y = case_input(&c, OPERAND(kr_norm_bwd_args, g_y), rows, -1, 1);
    v.q = case_input(&c, FIELD(kr_norm_bwd_args, q), KR_SHAPE(n.no, n.ng), 1, 1);
    double *s_x = calloc((size_t)(n.no * n.ni) + 1, sizeof *s_x), *s_z = NULL, *s_gain = NULL;
    if (!s_x) exit(2);
    if (wanted & 2 && g != NO_GATE) {
        case_output(&c, OPERAND(kr_norm_bwd_args, g_z), rows);
        s_z = case_scale(&c);
    }
    if (wanted & 4) {
        case_output(&c, FIELD(kr_norm_bwd_args, g_gain), KR_SHAPE(n.ni));
        s_gain = case_scale(&c);
    }
    for (int64_t group = 0; n.ni > 0 && group < n.no * n.ng; group++) group_scales(n, g, &v, group, s_x, s_z, s_gain);
    if (wanted & 1) {
        case_output(&c, OPERAND(kr_norm_bwd_args, g_x), rows);
        memcpy(case_scale(&c), s_x, (size_t)(n.no * n.ni) * sizeof *s_x);
    }
    free(s_x);
    c.terms = (n.ni / n.ng > n.no ? n.ni / n.ng : n.no) + 1;
    c.many_tasks = n.many_tasks;
    if (wanted & 3) c.first_row = first_row_bwd;
    case_done(sweep, &c);
}

void kr_cases_norm_bwd(kr_sweep *sweep)
{
    for (int i = 0; i < NSHAPES; i++)
        for (int g = 0; g < NGATES; g++)
            for (int gain = 0; gain < 2; gain++) norm_bwd_case(sweep, shapes[i], (gate)g, gain, 7);
    for (int wanted = 1; wanted < 7; wanted++)
        for (int g = 0; g < NGATES; g++) norm_bwd_case(sweep, (norm){ 5, 42, 2, false }, (gate)g, wanted % 2, wanted);
}
