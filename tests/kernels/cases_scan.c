/* cases_scan.c - cases of Mamba-1's selective scan and its gradients: groups, gates, packed rows, hard decays. */
#include "tests/kernels/packing.h"

kr_cases_fn kr_cases_scan, kr_cases_scan_bwd;

typedef struct shape {
    int64_t nb, ns, ni, ng, nr;
    bool many_tasks;
} shape;

/* Vectors of 8 and 16, blocks of 64 and spans of 128 channels, four states at a time, segments of 16 tokens; groups
 * narrower than a vector. */
static const shape shapes[] = {
    { 0, 3, 4, 1, 2, false },    { 2, 0, 4, 1, 2, false },   { 1, 1, 1, 1, 1, false },     { 2, 5, 3, 3, 4, false },
    { 1, 7, 7, 1, 3, false },    { 2, 3, 8, 2, 5, false },   { 1, 9, 15, 5, 16, false },   { 2, 4, 16, 1, 7, false },
    { 1, 16, 17, 1, 8, false },  { 3, 17, 33, 3, 2, false }, { 2, 15, 40, 2, 9, false },   { 1, 33, 63, 1, 4, false },
    { 1, 50, 64, 1, 1, false },  { 2, 31, 65, 1, 6, false }, { 1, 18, 130, 2, 16, false }, { 1, 35, 127, 1, 17, false },
    { 1, 20, 129, 1, 3, false }, { 2, 300, 48, 1, 4, true }, { 3, 90, 300, 2, 16, true },  { 1, 700, 200, 1, 5, true },
};
enum { NSHAPES = (int)(sizeof shapes / sizeof *shapes) };

/* Optional operands: bits of a case's number. STRIDED: tokens of x, dt, z, b, c are parts of wider rows. IN_PLACE: with
 * INITIAL, the final states overwrite the initial ones. */
enum { SKIP = 1, GATE = 2, INITIAL = 4, PACKED = 8, COMBINATIONS = 16, STRIDED = 16, IN_PLACE = 32 };

static const char *case_text(char *text, size_t bytes, shape n, int with, int kind)
{
    snprintf(text, bytes, "b %lld s %lld i %lld g %lld r %lld%s%s%s%s%s%s, decay %s", (long long)n.nb, (long long)n.ns,
             (long long)n.ni, (long long)n.ng, (long long)n.nr, with & SKIP ? ", d" : "", with & GATE ? ", z" : "",
             with & INITIAL ? ", initial" : "", with & PACKED ? ", packed" : "", with & STRIDED ? ", gap" : "",
             with & IN_PLACE ? ", in place" : "", decay_names[kind]);
    return text;
}

static void first_row(void *args)
{
    kr_scan_args *a = args;
    a->nq = of_first_row(a->sequences, a->nq);
    if (a->nb > 0) a->nb = 1;
}

/* Scales are computed from magnitudes in double, but decays keep their sign. */
static void negate(const void *rates, int64_t count)
{
    double *a = (double *)(uintptr_t)rates;
    for (int64_t j = 0; j < count; j++) a[j] = -a[j];
}

static void keep_decays(void *args)
{
    const kr_scan_args *a = args;
    negate(a->a, a->ni * a->nr);
}

static void scan_case(kr_sweep *sweep, shape n, int with, int kind)
{
    kr_sequence sequences[MOST_SEQUENCES];
    kr_scan_args a = { .nb = n.nb, .ns = n.ns, .ni = n.ni, .ng = n.ng, .nr = n.nr, .sequences = sequences };
    a.nq = cut_rows(sequences, n.nb, n.ns, with & PACKED);
    kr_case c;
    char text[160];
    case_begin(&c, &a, sizeof a, "%s", case_text(text, sizeof text, n, with, kind));
    const kr_shape values = KR_SHAPE(n.nb, n.ns, n.ni), states = KR_SHAPE(a.nq, n.ni, n.nr);
    const int64_t tokens = n.nb * n.ns, of_b = n.ng * n.nr, gap = with & STRIDED ? 3 : 0;
    case_walk_input(&c, OPERAND(kr_scan_args, x), lay_out_tokens(tokens, n.ni, gap, &a.x.row), -2, 2);
    case_walk_input(&c, OPERAND(kr_scan_args, dt), lay_out_tokens(tokens, n.ni, 2 * gap, &a.dt.row), 0.001, 0.5);
    change_decays(case_input(&c, FIELD(kr_scan_args, a), KR_SHAPE(n.ni, n.nr), -4, -0.1), n.ni * n.nr, kind, 40, -1e5);
    case_walk_input(&c, OPERAND(kr_scan_args, b), lay_out_tokens(tokens, of_b, 4 * gap, &a.b.row), -1, 1);
    case_walk_input(&c, OPERAND(kr_scan_args, c), lay_out_tokens(tokens, of_b, 5 * gap, &a.c.row), -1, 1);
    if (with & SKIP) case_input(&c, FIELD(kr_scan_args, d), KR_SHAPE(n.ni), -1, 1);
    if (with & GATE)
        case_walk_input(&c, OPERAND(kr_scan_args, z), lay_out_tokens(tokens, n.ni, 7 * gap, &a.z.row), -3, 3);
    if (with & IN_PLACE) {
        case_in_out(&c, FIELD(kr_scan_args, initial), states, -1, 1);
        c.operands[c.noperands - 1].also = offsetof(kr_scan_args, final);
    } else {
        if (with & INITIAL) case_input(&c, FIELD(kr_scan_args, initial), states, -1, 1);
        case_output(&c, FIELD(kr_scan_args, final), states);
    }
    case_output(&c, FIELD(kr_scan_args, y), values);
    c.terms = n.ns + n.nr;
    c.roundings = n.ns > 0 ? n.ns - 1 : 0;
    c.by_magnitudes = true;
    c.for_scale = keep_decays;
    c.many_tasks = n.many_tasks;
    c.first_row = first_row;
    case_done(sweep, &c);
}

void kr_cases_scan(kr_sweep *sweep)
{
    for (int i = 0; i < NSHAPES; i++) {
        for (int with = i % 2; with < COMBINATIONS; with += combination_step(shapes[i].many_tasks, 2, 5)) {
            scan_case(sweep, shapes[i], with + (with / 2 + i) % 2 * STRIDED, GENTLE);
            scan_case(sweep, shapes[i], with + (with / 2 + i + 1) % 2 * STRIDED, 1 + with / 2 % (DECAYS - 1));
        }
        scan_case(sweep, shapes[i], INITIAL + IN_PLACE + i % 4, GENTLE);
        scan_case(sweep, shapes[i], INITIAL + IN_PLACE + PACKED + (i + 1) % 4, GENTLE);
    }
}

/* ---- gradients ---- */

static void first_row_bwd(void *args)
{
    kr_scan_bwd_args *a = args;
    a->nq = of_first_row(a->sequences, a->nq);
    if (a->nb > 0) a->nb = 1;
    a->g_a = a->g_d = NULL; /* sums over all rows */
}

static void keep_decays_bwd(void *args)
{
    const kr_scan_bwd_args *a = args;
    negate(a->a, a->ni * a->nr);
}

/* Inputs of a gradient case; NULL: none. */
typedef struct inputs {
    const double *x, *dt, *a, *b, *c, *d, *z, *initial, *g_y, *g_final;
} inputs;

static double magnitude(const double *v, int64_t at)
{
    return v ? fabs(v[at]) : 0;
}

/* The scale of g_dt for state r of channel i, |x G B| + |a A G H|, added to scale. Magnitudes of all inputs would be
 * wrong, since a is both a rate, which must decay, and a factor. */
static void scale_of_state(const kr_scan_bwd_args *s, const inputs *in, int64_t q, int64_t i, int64_t r, double *scale)
{
    const kr_sequence tokens = s->sequences[q];
    const int64_t length = tokens.end - tokens.start, first = tokens.row * s->ns + tokens.start;
    const int64_t bc_offset = i / (s->ni / s->ng) * s->nr + r, state = (q * s->ni + i) * s->nr + r;
    const double rate = in->a[i * s->nr + r];
    double *h = malloc((size_t)(length + 1) * sizeof *h), g = magnitude(in->g_final, state);
    if (!h) exit(2);
    h[0] = magnitude(in->initial, state);
    for (int64_t t = 0; t < length; t++) {
        const double dt = in->dt[(first + t) * s->dt.row + i], x = in->x[(first + t) * s->x.row + i];
        h[t + 1] = exp(dt * rate) * h[t] + dt * fabs(in->b[(first + t) * s->b.row + bc_offset] * x);
    }
    for (int64_t t = length - 1; t >= 0; t--) {
        const int64_t at = (first + t) * s->ni + i;
        const double dt = in->dt[(first + t) * s->dt.row + i], x = in->x[(first + t) * s->x.row + i];
        const double z = magnitude(in->z, (first + t) * s->z.row + i), gate = in->z ? z / (1 + exp(-z)) : 1;
        g += fabs(in->c[(first + t) * s->c.row + bc_offset] * in->g_y[at]) * gate;
        scale[at] += fabs(x * in->b[(first + t) * s->b.row + bc_offset]) * g;
        g *= exp(dt * rate);
        scale[at] += fabs(rate) * g * h[t];
    }
    free(h);
}

static void fill_step_scale(const kr_scan_bwd_args *s, const inputs *in, double *scale)
{
    for (int64_t q = 0; q < s->nq; q++)
        for (int64_t i = 0; i < s->ni; i++)
            for (int64_t r = 0; r < s->nr; r++) scale_of_state(s, in, q, i, r, scale);
}

/* A gradient that remains after steep decays has the rounding errors of their exponents: up to 88, before it is 0. Its
 * scale is its value without decay. */
static void measure_by_one(kr_case *c, int64_t count)
{
    double *scale = case_scale(c);
    for (int64_t j = 0; j < count; j++) scale[j] = 1;
}

/* wanted: bits 1 g_x, 2 g_dt, 4 g_a, 8 g_b, 16 g_c, 32 g_d, 64 g_z, 128 g_initial */
static void scan_bwd_case(kr_sweep *sweep, shape n, int with, int kind, int wanted)
{
    kr_sequence sequences[MOST_SEQUENCES];
    kr_scan_bwd_args a = { .nb = n.nb, .ns = n.ns, .ni = n.ni, .ng = n.ng, .nr = n.nr, .sequences = sequences };
    a.nq = cut_rows(sequences, n.nb, n.ns, with & PACKED);
    kr_case c;
    char text[160];
    case_begin(&c, &a, sizeof a, "%s, wanted %d", case_text(text, sizeof text, n, with, kind), wanted);
    const kr_shape values = KR_SHAPE(n.nb, n.ns, n.ni), bc_shape = KR_SHAPE(n.nb, n.ns, n.ng, n.nr);
    const kr_shape states = KR_SHAPE(a.nq, n.ni, n.nr), rates = KR_SHAPE(n.ni, n.nr);
    const int64_t tokens = n.nb * n.ns, of_b = n.ng * n.nr, gap = with & STRIDED ? 3 : 0;
    const kr_extent at_x = lay_out_tokens(tokens, n.ni, gap, &a.x.row),
                    at_dt = lay_out_tokens(tokens, n.ni, 2 * gap, &a.dt.row),
                    at_z = lay_out_tokens(tokens, n.ni, 7 * gap, &a.z.row),
                    at_b = lay_out_tokens(tokens, of_b, 4 * gap, &a.b.row),
                    at_c = lay_out_tokens(tokens, of_b, 5 * gap, &a.c.row);
    inputs in = { .x = case_walk_input(&c, OPERAND(kr_scan_bwd_args, x), at_x, -2, 2),
                  .dt = case_walk_input(&c, OPERAND(kr_scan_bwd_args, dt), at_dt, 0.001, 0.5) };
    double *a_values = case_input(&c, FIELD(kr_scan_bwd_args, a), rates, -4, -0.1);
    change_decays(a_values, n.ni * n.nr, kind, 40, -1e5);
    in.a = a_values;
    in.b = case_walk_input(&c, OPERAND(kr_scan_bwd_args, b), at_b, -1, 1);
    in.c = case_walk_input(&c, OPERAND(kr_scan_bwd_args, c), at_c, -1, 1);
    in.g_y = case_input(&c, FIELD(kr_scan_bwd_args, g_y), values, -1, 1);
    if (with & SKIP) in.d = case_input(&c, FIELD(kr_scan_bwd_args, d), KR_SHAPE(n.ni), -1, 1);
    if (with & GATE) in.z = case_walk_input(&c, OPERAND(kr_scan_bwd_args, z), at_z, -3, 3);
    if (with & INITIAL) in.initial = case_input(&c, FIELD(kr_scan_bwd_args, initial), states, -1, 1);
    if (with & INITIAL) in.g_final = case_input(&c, FIELD(kr_scan_bwd_args, g_final), states, -1, 1);
    if (wanted & 1) case_output(&c, FIELD(kr_scan_bwd_args, g_x), values);
    if (wanted & 2) case_output(&c, FIELD(kr_scan_bwd_args, g_dt), values);
    if (wanted & 2 && sweep->mode == KR_SWEEP_VALUES) fill_step_scale(&a, &in, case_scale(&c));
    if (wanted & 4) case_output(&c, FIELD(kr_scan_bwd_args, g_a), rates);
    if (wanted & 4 && kind == STEEP) measure_by_one(&c, n.ni * n.nr);
    if (wanted & 8) case_output(&c, FIELD(kr_scan_bwd_args, g_b), bc_shape);
    if (wanted & 16) case_output(&c, FIELD(kr_scan_bwd_args, g_c), bc_shape);
    if (wanted & 32 && with & SKIP) case_output(&c, FIELD(kr_scan_bwd_args, g_d), KR_SHAPE(n.ni));
    if (wanted & 64 && with & GATE) case_output(&c, FIELD(kr_scan_bwd_args, g_z), values);
    if (wanted & 128) case_output(&c, FIELD(kr_scan_bwd_args, g_initial), states);
    if (wanted & 128 && kind == STEEP) measure_by_one(&c, a.nq * n.ni * n.nr);
    c.terms = n.nb * n.ns + n.ni + n.nr;
    c.by_magnitudes = true;
    c.for_scale = keep_decays_bwd;
    c.many_tasks = n.many_tasks;
    if (wanted & ~36) c.first_row = first_row_bwd;
    case_done(sweep, &c);
}

void kr_cases_scan_bwd(kr_sweep *sweep)
{
    for (int i = 0; i < NSHAPES; i++) {
        for (int with = i % 2; with < COMBINATIONS; with += combination_step(shapes[i].many_tasks, 2, 5)) {
            scan_bwd_case(sweep, shapes[i], with + (with / 2 + i) % 2 * STRIDED, GENTLE, 255);
            scan_bwd_case(sweep, shapes[i], with + (with / 2 + i + 1) % 2 * STRIDED, 1 + with / 2 % (DECAYS - 1), 255);
        }
    }
    for (int bit = 1; bit < 256; bit *= 2) {
        scan_bwd_case(sweep, (shape){ 2, 19, 21, 3, 5, false }, COMBINATIONS - 1, GENTLE, bit);
        scan_bwd_case(sweep, (shape){ 2, 19, 141, 1, 5, false }, COMBINATIONS - 1, GENTLE, 255 - bit);
    }
}
