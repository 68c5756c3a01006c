/* cases_conv.c - cases of the causal depthwise convolution with a carried window, and of its gradients. */
#include "tests/kernels/packing.h"

kr_cases_fn kr_cases_conv, kr_cases_conv_bwd;

typedef struct conv {
    int64_t nb, ns, nv, nk;
    bool many_tasks;
} conv;

/* 2 to 4 taps have specialised loops; sequences shorter than the window; blocks of 64 rows, 128 and 512 channels;
 * channels in fours, which take four tokens at a time on a device. */
static const conv shapes[] = {
    { 0, 5, 3, 4, false },    { 2, 0, 3, 4, false },    { 2, 5, 0, 4, false },   { 1, 1, 1, 1, false },
    { 2, 3, 7, 1, false },    { 2, 5, 8, 2, false },    { 1, 4, 9, 3, false },   { 3, 1, 5, 4, false },
    { 2, 2, 15, 4, false },   { 1, 3, 16, 4, false },   { 2, 4, 17, 4, false },  { 1, 5, 31, 4, false },
    { 2, 9, 33, 4, false },   { 1, 13, 7, 5, false },   { 2, 3, 19, 7, false },  { 1, 11, 1, 4, false },
    { 2, 63, 5, 4, false },   { 1, 64, 6, 4, false },   { 1, 65, 7, 3, false },  { 1, 67, 9, 2, false },
    { 2, 70, 3, 6, false },   { 1, 131, 5, 4, false },  { 1, 7, 127, 4, false }, { 2, 5, 129, 4, false },
    { 1, 6, 513, 4, false },  { 3, 130, 70, 4, true },  { 2, 67, 530, 4, true }, { 1, 600, 131, 3, true },
    { 9, 40, 130, 5, true },  { 1, 140, 3, 70, false }, { 2, 5, 9, 70, false },  { 2, 41, 16, 4, false },
    { 1, 150, 20, 4, false },
};
enum { NSHAPES = (int)(sizeof shapes / sizeof *shapes), MOST_CUTS = 96 };

/* Optional operands, and the layout of x: bits of a case's number. STRIDED: x is a part of wider rows, PACKED: rows
 * hold several sequences. */
enum { BIAS = 1, WINDOW = 2, WINDOW_OUT = 4, SILU = 8, STRIDED = 16, PACKED = 32, COMBINATIONS = 64 };

static const char *case_text(char *text, size_t bytes, conv n, int with)
{
    snprintf(text, bytes, "b %lld s %lld v %lld k %lld%s%s%s%s%s%s", (long long)n.nb, (long long)n.ns, (long long)n.nv,
             (long long)n.nk, with & BIAS ? ", bias" : "", with & WINDOW ? ", window" : "",
             with & WINDOW_OUT ? ", window out" : "", with & SILU ? ", silu" : "", with & STRIDED ? ", apart" : "",
             with & PACKED ? ", packed" : "");
    return text;
}

/* Memory of x, and its strides. */
static kr_extent lay_out(conv n, int with, int64_t *x_batch, int64_t *x_stride)
{
    *x_stride = with & STRIDED ? 2 * n.nv + 3 : n.nv;
    *x_batch = n.ns * *x_stride + (with & STRIDED ? 5 : 0);
    if (n.nb * n.ns * n.nv == 0) return (kr_extent){ 0, 0 };
    return (kr_extent){ (n.nb - 1) * *x_batch + (n.ns - 1) * *x_stride + n.nv, 0 };
}

/* Short sequences of 0, 1, 2, ... tokens, with a token outside of all between some; limited by the list's capacity. */
static int64_t cut_short(kr_sequence *sequences, int64_t most, int64_t nb, int64_t ns)
{
    int64_t nq = 0;
    for (int64_t b = 0; b < nb; b++) {
        int64_t limit = (b + 1) * (most / nb), start = 0;
        for (int64_t length = 0; start < ns || length == 0; length++) {
            int64_t end = nq + 1 == limit || start + length > ns ? ns : start + length;
            sequences[nq++] = (kr_sequence){ b, start, end };
            start = end + (length % 4 == 3);
            if (nq == limit) break;
        }
    }
    return nq;
}

static void first_row(void *args)
{
    kr_conv_args *a = args;
    a->nq = of_first_row(a->sequences, a->nq);
    if (a->nb > 0) a->nb = 1;
}

static void without_silu(void *args)
{
    ((kr_conv_args *)args)->silu = false;
}

static int64_t cut(kr_sequence *sequences, conv n, int with)
{
    if (with & PACKED && n.ns > 2) return cut_short(sequences, MOST_CUTS, n.nb, n.ns);
    return cut_rows(sequences, n.nb, n.ns, false);
}

static void conv_case(kr_sweep *sweep, conv n, int with)
{
    kr_conv_args a = { .nb = n.nb, .ns = n.ns, .nv = n.nv, .nk = n.nk, .silu = with & SILU };
    kr_sequence sequences[MOST_CUTS];
    a.nq = cut(sequences, n, with);
    a.sequences = sequences;
    const kr_shape windows = KR_SHAPE(a.nq, n.nv, n.nk);
    kr_case c;
    char text[160];
    case_begin(&c, &a, sizeof a, "%s", case_text(text, sizeof text, n, with));
    a.y.row = n.nv;
    case_walk_input(&c, OPERAND(kr_conv_args, x), lay_out(n, with, &a.x_batch, &a.x.row), -2, 2);
    case_input(&c, FIELD(kr_conv_args, weight), KR_SHAPE(n.nv, n.nk), -1, 1);
    if (with & BIAS) case_input(&c, FIELD(kr_conv_args, bias), KR_SHAPE(n.nv), -1, 1);
    if (with & WINDOW) case_input(&c, FIELD(kr_conv_args, window), windows, -2, 2);
    case_output(&c, OPERAND(kr_conv_args, y), KR_SHAPE(n.nb, n.ns, n.nv));
    if (with & WINDOW_OUT) case_output(&c, FIELD(kr_conv_args, window_out), windows);
    c.terms = n.nk + 1;
    c.by_magnitudes = true;
    c.for_scale = without_silu;
    c.many_tasks = n.many_tasks;
    c.first_row = first_row;
    case_done(sweep, &c);
}

/* Large cases have most operands. */
static int first_of(conv n)
{
    return n.many_tasks ? STRIDED - 2 : 0;
}

/* One of the layouts for each set of operands; over time all combinations are used. */
static int laid_out(int with, int i)
{
    return with + (with + i) % (COMBINATIONS / STRIDED) * STRIDED;
}

void kr_cases_conv(kr_sweep *sweep)
{
    for (int i = 0; i < NSHAPES; i++)
        for (int with = first_of(shapes[i]); with < STRIDED; with++) conv_case(sweep, shapes[i], laid_out(with, i));
    /* the second block of rows reads the window too, after other channels have used the buffer */
    conv_case(sweep, (conv){ 1, 66, 514, 67, false }, BIAS | WINDOW | WINDOW_OUT);
}

static void first_row_bwd(void *args)
{
    kr_conv_bwd_args *a = args;
    a->nq = of_first_row(a->sequences, a->nq);
    if (a->nb > 0) a->nb = 1;
    a->g_weight = a->g_bias = NULL; /* sums over all sequences */
}

static void without_silu_bwd(void *args)
{
    ((kr_conv_bwd_args *)args)->silu = false;
}

/* wanted: bits 1 g_x, 2 g_weight, 4 g_bias, 8 g_window */
static void conv_bwd_case(kr_sweep *sweep, conv n, int with, int wanted)
{
    kr_conv_bwd_args a = { .nb = n.nb, .ns = n.ns, .nv = n.nv, .nk = n.nk, .silu = with & SILU };
    kr_sequence sequences[MOST_CUTS];
    a.nq = cut(sequences, n, with);
    a.sequences = sequences;
    const kr_shape windows = KR_SHAPE(a.nq, n.nv, n.nk);
    kr_case c;
    char text[160];
    case_begin(&c, &a, sizeof a, "%s, wanted %d", case_text(text, sizeof text, n, with), wanted);
    a.ng_y = 1, a.from[1] = a.g_y[0].row = a.g_x.row = n.nv;
    case_walk_input(&c, OPERAND(kr_conv_bwd_args, x), lay_out(n, with, &a.x_batch, &a.x.row), -2, 2);
    case_input(&c, FIELD(kr_conv_bwd_args, weight), KR_SHAPE(n.nv, n.nk), -1, 1);
    case_input(&c, OPERAND(kr_conv_bwd_args, g_y[0]), KR_SHAPE(n.nb, n.ns, n.nv), -1, 1);
    if (with & BIAS) case_input(&c, FIELD(kr_conv_bwd_args, bias), KR_SHAPE(n.nv), -1, 1);
    if (with & WINDOW) case_input(&c, FIELD(kr_conv_bwd_args, window), windows, -2, 2);
    if (with & WINDOW_OUT) case_input(&c, FIELD(kr_conv_bwd_args, g_window_out), windows, -1, 1);
    if (wanted & 1) case_output(&c, OPERAND(kr_conv_bwd_args, g_x), KR_SHAPE(n.nb, n.ns, n.nv));
    if (wanted & 2) case_output(&c, FIELD(kr_conv_bwd_args, g_weight), KR_SHAPE(n.nv, n.nk));
    if (wanted & 4) case_output(&c, FIELD(kr_conv_bwd_args, g_bias), KR_SHAPE(n.nv));
    if (wanted & 8) case_output(&c, FIELD(kr_conv_bwd_args, g_window), windows);
    c.terms = n.nb * n.ns + n.nk + 1;
    c.by_magnitudes = true;
    c.for_scale = without_silu_bwd;
    c.many_tasks = n.many_tasks;
    if (wanted & 9) c.first_row = first_row_bwd;
    case_done(sweep, &c);
}

void kr_cases_conv_bwd(kr_sweep *sweep)
{
    for (int i = 0; i < NSHAPES; i++)
        for (int with = first_of(shapes[i]); with < STRIDED; with++)
            conv_bwd_case(sweep, shapes[i], laid_out(with, i), with & WINDOW ? 15 : 7);
    for (int wanted = 1; wanted < 15; wanted++) {
        conv_bwd_case(sweep, (conv){ 2, 69, 21, 4, false }, 15, wanted);
        conv_bwd_case(sweep, (conv){ 2, 69, 21, 4, false }, COMBINATIONS - 1, wanted);
    }
}
