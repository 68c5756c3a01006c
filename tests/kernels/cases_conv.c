/* cases_conv.c - cases of the causal depthwise convolution with a carried window, and of its gradients. */
#include "tests/kernels/conformance.h"

kr_cases_fn kr_cases_conv, kr_cases_conv_bwd;

typedef struct conv {
    int64_t nb, ns, nv, nk;
    bool many_tasks;
} conv;

/* 2 to 4 taps have loops of their own; sequences shorter than the window; blocks of 64 rows, 128 and 512 channels. */
static const conv shapes[] = {
    { 0, 5, 3, 4, false },   { 2, 0, 3, 4, false },   { 2, 5, 0, 4, false },   { 1, 1, 1, 1, false },
    { 2, 3, 7, 1, false },   { 2, 5, 8, 2, false },   { 1, 4, 9, 3, false },   { 3, 1, 5, 4, false },
    { 2, 2, 15, 4, false },  { 1, 3, 16, 4, false },  { 2, 4, 17, 4, false },  { 1, 5, 31, 4, false },
    { 2, 9, 33, 4, false },  { 1, 13, 7, 5, false },  { 2, 3, 19, 7, false },  { 1, 11, 1, 4, false },
    { 2, 63, 5, 4, false },  { 1, 64, 6, 4, false },  { 1, 65, 7, 3, false },  { 1, 67, 9, 2, false },
    { 2, 70, 3, 6, false },  { 1, 131, 5, 4, false }, { 1, 7, 127, 4, false }, { 2, 5, 129, 4, false },
    { 1, 6, 513, 4, false }, { 3, 130, 70, 4, true }, { 2, 67, 530, 4, true }, { 1, 600, 131, 3, true },
    { 9, 40, 130, 5, true },
};
enum { NSHAPES = (int)(sizeof shapes / sizeof *shapes) };

/* Which of the optional operands there are: bits of a case's number. */
enum { BIAS = 1, WINDOW = 2, WINDOW_OUT = 4, SILU = 8 };

static void first_row(void *args)
{
    kr_conv_args *a = args;
    if (a->nb > 0) a->nb = 1;
}

static void without_silu(void *args)
{
    ((kr_conv_args *)args)->silu = false;
}

static void conv_case(kr_sweep *sweep, conv n, int with)
{
    kr_conv_args a = { .nb = n.nb, .ns = n.ns, .nv = n.nv, .nk = n.nk, .silu = with & SILU };
    kr_case c;
    case_begin(&c, &a, sizeof a, "b %lld s %lld v %lld k %lld%s%s%s%s", (long long)n.nb, (long long)n.ns,
               (long long)n.nv, (long long)n.nk, with & BIAS ? ", bias" : "", with & WINDOW ? ", window" : "",
               with & WINDOW_OUT ? ", window out" : "", with & SILU ? ", silu" : "");
    case_input(&c, FIELD(kr_conv_args, x), KR_SHAPE(n.nb, n.ns, n.nv), -2, 2);
    case_input(&c, FIELD(kr_conv_args, weight), KR_SHAPE(n.nv, n.nk), -1, 1);
    if (with & BIAS) case_input(&c, FIELD(kr_conv_args, bias), KR_SHAPE(n.nv), -1, 1);
    if (with & WINDOW) case_input(&c, FIELD(kr_conv_args, window), KR_SHAPE(n.nb, n.nv, n.nk), -2, 2);
    case_output(&c, FIELD(kr_conv_args, y), KR_SHAPE(n.nb, n.ns, n.nv));
    if (with & WINDOW_OUT) case_output(&c, FIELD(kr_conv_args, window_out), KR_SHAPE(n.nb, n.nv, n.nk));
    c.terms = n.nk + 1;
    c.by_magnitudes = true;
    c.for_scale = without_silu;
    c.many_tasks = n.many_tasks;
    c.first_row = first_row;
    case_done(sweep, &c);
}

void kr_cases_conv(kr_sweep *sweep)
{
    for (int i = 0; i < NSHAPES; i++)
        for (int with = shapes[i].many_tasks ? 14 : 0; with < 16; with++) conv_case(sweep, shapes[i], with);
}

static void first_row_bwd(void *args)
{
    kr_conv_bwd_args *a = args;
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
    kr_case c;
    case_begin(&c, &a, sizeof a, "b %lld s %lld v %lld k %lld%s%s%s%s, wanted %d", (long long)n.nb, (long long)n.ns,
               (long long)n.nv, (long long)n.nk, with & BIAS ? ", bias" : "", with & WINDOW ? ", window" : "",
               with & WINDOW_OUT ? ", window out" : "", with & SILU ? ", silu" : "", wanted);
    case_input(&c, FIELD(kr_conv_bwd_args, x), KR_SHAPE(n.nb, n.ns, n.nv), -2, 2);
    case_input(&c, FIELD(kr_conv_bwd_args, weight), KR_SHAPE(n.nv, n.nk), -1, 1);
    case_input(&c, FIELD(kr_conv_bwd_args, g_y), KR_SHAPE(n.nb, n.ns, n.nv), -1, 1);
    if (with & BIAS) case_input(&c, FIELD(kr_conv_bwd_args, bias), KR_SHAPE(n.nv), -1, 1);
    if (with & WINDOW) case_input(&c, FIELD(kr_conv_bwd_args, window), KR_SHAPE(n.nb, n.nv, n.nk), -2, 2);
    if (with & WINDOW_OUT) case_input(&c, FIELD(kr_conv_bwd_args, g_window_out), KR_SHAPE(n.nb, n.nv, n.nk), -1, 1);
    if (wanted & 1) case_output(&c, FIELD(kr_conv_bwd_args, g_x), KR_SHAPE(n.nb, n.ns, n.nv));
    if (wanted & 2) case_output(&c, FIELD(kr_conv_bwd_args, g_weight), KR_SHAPE(n.nv, n.nk));
    if (wanted & 4) case_output(&c, FIELD(kr_conv_bwd_args, g_bias), KR_SHAPE(n.nv));
    if (wanted & 8) case_output(&c, FIELD(kr_conv_bwd_args, g_window), KR_SHAPE(n.nb, n.nv, n.nk));
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
        for (int with = shapes[i].many_tasks ? 14 : 0; with < 16; with++)
            conv_bwd_case(sweep, shapes[i], with, with & WINDOW ? 15 : 7);
    for (int wanted = 1; wanted < 15; wanted++) conv_bwd_case(sweep, (conv){ 2, 69, 21, 4, false }, 15, wanted);
}
