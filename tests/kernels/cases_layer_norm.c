/* cases_layer_norm.c - cases of the layer norm in groups, with and without gain and bias, and of its gradients. */
#include "tests/kernels/packing.h"

kr_cases_fn kr_cases_layer_norm, kr_cases_layer_norm_bwd;

typedef struct norm {
    int64_t no, ni, ng;
    bool many_tasks;
} norm;

/* Vectors of 8 and 16, four interleaved; sums in runs of 4096; backward in blocks of 16 rows or more; on a GPU groups
 * of 512 channels are one CTA's. */
static const norm shapes[] = {
    { 0, 80, 1, false },   { 3, 0, 1, false },    { 1, 1, 1, false },    { 4, 2, 1, false },   { 2, 7, 1, false },
    { 3, 8, 1, false },    { 2, 9, 1, false },    { 3, 15, 3, false },   { 2, 16, 2, false },  { 3, 17, 1, false },
    { 5, 24, 3, false },   { 2, 31, 1, false },   { 3, 33, 1, false },   { 2, 64, 4, false },  { 3, 66, 6, false },
    { 1, 127, 1, false },  { 17, 130, 2, false }, { 7, 12, 12, false },  { 2, 511, 1, false }, { 2, 512, 1, false },
    { 2, 4100, 1, false }, { 1, 8200, 2, false }, { 65, 1030, 5, true }, { 900, 33, 3, true }, { 5, 9001, 1, true },
};
enum { NSHAPES = (int)(sizeof shapes / sizeof *shapes), GAIN = 1, BIAS = 2 };
static const double eps = 1e-5;

static int64_t width_of(norm n)
{
    return n.ni / n.ng;
}

/* Elements between rows of x: none, or some. */
static int64_t gap_of(norm n, bool strided)
{
    return !strided ? 0 : n.ni % 2 ? 3 : 8;
}

/* Mean and q of a group of x, in double. */
static void statistics(const double *x, int64_t width, double *mean, double *q)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < width; i++) sum += x[i];
    *mean = sum / (double)width;
    for (int64_t i = 0; i < width; i++) squares += (x[i] - *mean) * (x[i] - *mean);
    *q = 1 / sqrt(squares / (double)width + eps);
}

static double most_of(const double *x, int64_t width)
{
    double most = 0;
    for (int64_t i = 0; i < width; i++) most = fmax(most, fabs(x[i]));
    return most;
}

static void first_row(void *args)
{
    kr_layer_norm_args *a = args;
    if (a->no > 0) a->no = 1;
}

/* middle: the mean of x. The rounding error of x - mean is relative to the largest x. */
static void forward_case(kr_sweep *sweep, norm n, int with, double middle, bool special)
{
    kr_layer_norm_args a = { .no = n.no, .ni = n.ni, .ng = n.ng, .eps = eps };
    kr_case c;
    case_begin(&c, &a, sizeof a, "[%lld, %lld] in %lld, with %d, around %g%s", (long long)n.no, (long long)n.ni,
               (long long)n.ng, with, middle, special ? ", special rows" : "");
    int64_t line;
    const kr_extent rows = lay_out_tokens(n.no, n.ni, gap_of(n, with & GAIN), &line);
    a.x.row = line;
    double *x = case_walk_input(&c, OPERAND(kr_layer_norm_args, x), rows, middle - 2, middle + 2);
    for (int64_t o = 0; special && o < n.no; o++) {
        static const double values[] = { NAN, INFINITY, -INFINITY };
        if (o % 4 < 3) x[o * line + kr_test_below(n.ni)] = values[o % 4];
        for (int64_t i = 0; o % 4 == 3 && i < n.ni; i++) x[o * line + i] = 0.5; /* all equal */
    }
    const double *gain = with & GAIN ? case_input(&c, FIELD(kr_layer_norm_args, gain), KR_SHAPE(n.ni), -2, 2) : NULL;
    const double *bias = with & BIAS ? case_input(&c, FIELD(kr_layer_norm_args, bias), KR_SHAPE(n.ni), -2, 2) : NULL;
    double *scale[3];
    case_output(&c, FIELD(kr_layer_norm_args, y), KR_SHAPE(n.no, n.ni));
    scale[0] = case_scale(&c);
    case_output(&c, FIELD(kr_layer_norm_args, mean), KR_SHAPE(n.no, n.ng));
    scale[1] = case_scale(&c);
    case_output(&c, FIELD(kr_layer_norm_args, q), KR_SHAPE(n.no, n.ng));
    scale[2] = case_scale(&c);
    for (int64_t group = 0; n.ni > 0 && group < n.no * n.ng; group++) {
        const int64_t width = width_of(n), channel = group % n.ng * width;
        const double *of_x = x + group / n.ng * line + channel, most = most_of(of_x, width);
        double mean, q;
        statistics(of_x, width, &mean, &q);
        scale[1][group] = most;
        scale[2][group] = q * (1 + q * most); /* the squares have the rounding error of x - mean */
        for (int64_t i = 0; i < width; i++)
            scale[0][group * width + i] =
                q * most * (1 + q * fabs(of_x[i] - mean)) * (gain ? fabs(gain[channel + i]) : 1) +
                (bias ? fabs(bias[channel + i]) : 0);
    }
    c.terms = width_of(n) + 1;
    c.many_tasks = n.many_tasks;
    c.first_row = first_row;
    case_done(sweep, &c);
}

void kr_cases_layer_norm(kr_sweep *sweep)
{
    for (int i = 0; i < NSHAPES; i++)
        for (int with = 0; with < 4; with++) forward_case(sweep, shapes[i], with, with % 2 ? 0 : 30, false);
    forward_case(sweep, (norm){ 12, 19, 1, false }, GAIN | BIAS, 0, true);
    forward_case(sweep, (norm){ 12, 6, 2, false }, 0, 0, true);
}

/* ---- backward ---- */

static void first_row_bwd(void *args)
{
    kr_layer_norm_bwd_args *a = args;
    if (a->no > 0) a->no = 1;
    a->g_gain = a->g_bias = NULL; /* sums over all rows */
}

typedef struct values {
    const double *x, *gain, *g_y;
    double *mean, *q;
    int64_t line;
} values;

/* A group's mean and q as in the forward pass, and the magnitudes of the terms of its gradients:
 *   g_x: q (|w| + mean |w| + |u| mean |w u|);  u has the rounding error of x - mean */
static void group_scales(norm n, const values *v, int64_t group, double *s_x, double *s_gain, double *s_bias)
{
    const int64_t width = width_of(n), channel = group % n.ng * width, first = group * width;
    const double *x = v->x + group / n.ng * v->line + channel;
    double mean, q, w_sum = 0, wu_sum = 0;
    statistics(x, width, &mean, &q);
    v->mean[group] = mean = kr_to_float(mean);
    v->q[group] = q = kr_to_float(q);
    for (int64_t i = 0; i < width; i++) {
        const double w = fabs(v->g_y[first + i] * (v->gain ? v->gain[channel + i] : 1));
        w_sum += w / (double)width;
        wu_sum += w * (fabs(x[i]) + fabs(mean)) * q / (double)width;
    }
    for (int64_t i = 0; i < width; i++) {
        const double g_y = fabs(v->g_y[first + i]), u = (fabs(x[i]) + fabs(mean)) * q;
        s_x[first + i] = q * (g_y * (v->gain ? fabs(v->gain[channel + i]) : 1) + w_sum + u * wu_sum);
        s_gain[channel + i] += g_y * u;
        s_bias[channel + i] += g_y;
    }
}

/* wanted: bits 1 g_x, 2 g_gain, 4 g_bias */
static void backward_case(kr_sweep *sweep, norm n, bool gain, int wanted)
{
    kr_layer_norm_bwd_args a = { .no = n.no, .ni = n.ni, .ng = n.ng };
    const kr_shape rows = KR_SHAPE(n.no, n.ni);
    kr_case c;
    case_begin(&c, &a, sizeof a, "[%lld, %lld] in %lld%s, wanted %d", (long long)n.no, (long long)n.ni, (long long)n.ng,
               gain ? ", gain" : "", wanted);
    values v = { .x = NULL };
    const kr_extent of_x = lay_out_tokens(n.no, n.ni, gap_of(n, gain), &v.line);
    a.x.row = v.line;
    v.x = case_walk_input(&c, OPERAND(kr_layer_norm_bwd_args, x), of_x, -1, 3);
    if (gain) v.gain = case_input(&c, FIELD(kr_layer_norm_bwd_args, gain), KR_SHAPE(n.ni), -2, 2);
    v.g_y = case_input(&c, FIELD(kr_layer_norm_bwd_args, g_y), rows, -1, 1);
    v.mean = case_input(&c, FIELD(kr_layer_norm_bwd_args, mean), KR_SHAPE(n.no, n.ng), 1, 1);
    v.q = case_input(&c, FIELD(kr_layer_norm_bwd_args, q), KR_SHAPE(n.no, n.ng), 1, 1);
    double *scale = calloc((size_t)(n.no * n.ni + 2 * n.ni) + 1, sizeof *scale);
    if (!scale) exit(2);
    double *s_x = scale, *s_gain = scale + n.no * n.ni, *s_bias = s_gain + n.ni;
    for (int64_t group = 0; n.ni > 0 && group < n.no * n.ng; group++) group_scales(n, &v, group, s_x, s_gain, s_bias);
    if (wanted & 1) {
        case_output(&c, FIELD(kr_layer_norm_bwd_args, g_x), rows);
        memcpy(case_scale(&c), s_x, (size_t)(n.no * n.ni) * sizeof *s_x);
    }
    if (wanted & 2) {
        case_output(&c, FIELD(kr_layer_norm_bwd_args, g_gain), KR_SHAPE(n.ni));
        memcpy(case_scale(&c), s_gain, (size_t)n.ni * sizeof *s_gain);
    }
    if (wanted & 4) {
        case_output(&c, FIELD(kr_layer_norm_bwd_args, g_bias), KR_SHAPE(n.ni));
        memcpy(case_scale(&c), s_bias, (size_t)n.ni * sizeof *s_bias);
    }
    free(scale);
    c.terms = (width_of(n) > n.no ? width_of(n) : n.no) + 1;
    c.many_tasks = n.many_tasks;
    if (wanted & 1) c.first_row = first_row_bwd;
    case_done(sweep, &c);
}

void kr_cases_layer_norm_bwd(kr_sweep *sweep)
{
    for (int i = 0; i < NSHAPES; i++)
        for (int gain = 0; gain < 2; gain++) backward_case(sweep, shapes[i], gain, 7);
    for (int wanted = 1; wanted < 7; wanted++) backward_case(sweep, (norm){ 5, 42, 2, false }, wanted % 2, wanted);
}
