/* cases_ssd.c - cases of the state space core: all families, groups, ranks, chunk lengths, packed rows, hard decays. */
#include "tests/kernels/packing.h"

kr_cases_fn kr_cases_ssd, kr_cases_ssd_bwd;

typedef struct shape {
    int64_t nb, ns, nm, nh, np, ng, nr, nl;
    bool many_tasks;
} shape;

/* Vectors of 8 and 16, tiles of 6 and 12 rows by 16 and 32 columns, tasks of up to 6 heads. */
static const shape shapes[] = {
    { 0, 3, 1, 2, 3, 1, 2, 4, false },     { 2, 0, 1, 2, 3, 1, 2, 4, false },     { 1, 1, 1, 1, 1, 1, 1, 1, false },
    { 2, 7, 1, 2, 3, 1, 5, 1, false },     { 1, 9, 2, 3, 8, 3, 16, 4, false },    { 2, 13, 1, 4, 17, 2, 9, 5, false },
    { 1, 33, 3, 2, 5, 1, 7, 16, false },   { 2, 21, 1, 7, 16, 1, 15, 99, false }, { 1, 50, 5, 1, 33, 1, 4, 10, false },
    { 1, 70, 1, 13, 4, 1, 33, 64, false }, { 3, 24, 4, 2, 32, 2, 32, 8, false },  { 1, 61, 7, 2, 6, 1, 3, 90, false },
    { 2, 130, 1, 8, 40, 1, 24, 32, true }, { 3, 90, 2, 6, 33, 3, 17, 25, true },
};
enum { NSHAPES = (int)(sizeof shapes / sizeof *shapes) };

/* Optional operands: bits of a case's number. STRIDED: tokens of v, b, c are parts of wider rows. MIXED: rows of
 * MIXED_TOKENS tokens mix single tokens and longer sequences. IN_PLACE: with INITIAL, the final states overwrite the
 * initial ones. CARRY: with DIAG_WEIGHT and WEIGHT, the weight is the sum of two. */
enum {
    DIAG_WEIGHT = 1,
    WEIGHT = 2,
    SKIP = 4,
    INITIAL = 8,
    PACKED = 16,
    COMBINATIONS = 32,
    STRIDED = 32,
    MIXED = 64,
    BOUNDARY = 128,
    IN_PLACE = 256,
    CARRY = 512
};

/* Single tokens, a few, and more than any kernel set processes token by token; the last token is outside all sequences. */
static const int mixed_lengths[] = { 1, 9, 1, 2, 4 };
enum { MIXED_LENGTHS = (int)(sizeof mixed_lengths / sizeof *mixed_lengths), MIXED_TOKENS = 18 };

static int64_t cut_case(kr_sequence *sequences, shape n, int with)
{
    if (!(with & MIXED)) return cut_rows(sequences, n.nb, n.ns, with & PACKED);
    int64_t nq = 0;
    for (int64_t b = 0; b < n.nb; b++) {
        for (int64_t i = 0, t = 0; i < MIXED_LENGTHS; t += mixed_lengths[i++])
            sequences[nq++] = (kr_sequence){ b, t, t + mixed_lengths[i] };
    }
    return nq;
}

static const char *case_text(char *text, size_t bytes, shape n, int with, int kind)
{
    snprintf(text, bytes, "b %lld s %lld m %lld h %lld p %lld g %lld r %lld l %lld%s%s%s%s%s%s%s%s%s%s, decay %s",
             (long long)n.nb, (long long)n.ns, (long long)n.nm, (long long)n.nh, (long long)n.np, (long long)n.ng,
             (long long)n.nr, (long long)n.nl, with & DIAG_WEIGHT ? ", same" : "", with & WEIGHT ? ", w" : "",
             with & SKIP ? ", d" : "", with & INITIAL ? ", initial" : "", with & PACKED ? ", packed" : "",
             with & STRIDED ? ", gap" : "", with & MIXED ? ", mixed" : "", with & BOUNDARY ? ", seed" : "",
             with & IN_PLACE ? ", in place" : "", with & CARRY ? ", carry" : "", decay_names[kind]);
    return text;
}

static void first_row(void *args)
{
    kr_ssd_args *a = args;
    a->nq = of_first_row(a->sequences, a->nq);
    if (a->nb > 0) a->nb = 1;
}

/* Scales are computed from magnitudes in double, but decays keep their sign. */
static void keep_decays(void *args)
{
    const kr_ssd_args *a = args;
    double *da = (double *)(uintptr_t)a->da;
    for (int64_t i = 0; i < a->nb * a->ns * a->nh; i++) da[i] = -da[i];
}

/* Multiples of 2^-12, so that sums of two are exact in every type. */
static void make_coarse(double *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) x[i] = floor(x[i] * 4096) / 4096;
}

/* w_t = diag_weight_t + carry_{t+1}, without carry at the end of a sequence: exactly, since kernels read either the sum or
 * its parts. */
static void sum_weights(const kr_ssd_args *a, double *diag_weight, double *carry, double *w)
{
    make_coarse(diag_weight, a->nb * a->ns * a->nh);
    make_coarse(carry, a->nb * a->ns * a->nh);
    for (int64_t q = 0; q < a->nq; q++) {
        const kr_sequence *s = &a->sequences[q];
        for (int64_t t = s->start; t < s->end; t++)
            for (int64_t h = 0; h < a->nh; h++) {
                const int64_t at = (s->row * a->ns + t) * a->nh + h;
                w[at] = diag_weight[at] + (t + 1 < s->end ? carry[at + a->nh] : 0);
            }
    }
}

static void add_weights(kr_case *c, const kr_ssd_args *a, int with)
{
    const kr_shape scalars = KR_SHAPE(a->nb, a->ns, a->nh);
    double *w = NULL, *diag_weight = NULL;
    if (with & WEIGHT) w = case_input(c, FIELD(kr_ssd_args, w), scalars, 0.1, 1);
    if (with & DIAG_WEIGHT) diag_weight = case_input(c, FIELD(kr_ssd_args, diag_weight), scalars, 0.1, 1);
    if (with & CARRY) sum_weights(a, diag_weight, case_input(c, FIELD(kr_ssd_args, carry), scalars, 0.1, 1), w);
}

static void ssd_case(kr_sweep *sweep, shape n, int with, int kind)
{
    kr_sequence sequences[MOST_SEQUENCES];
    kr_ssd_args a = { .nb = n.nb, .ns = n.ns, .nm = n.nm, .nh = n.nh, .np = n.np, .ng = n.ng, .nr = n.nr, .nl = n.nl };
    a.nq = cut_case(sequences, n, with);
    a.sequences = sequences;
    kr_case c;
    char text[160];
    case_begin(&c, &a, sizeof a, "%s", case_text(text, sizeof text, n, with, kind));
    const kr_shape values = KR_SHAPE(n.nb, n.ns, n.nm, n.nh, n.np);
    const kr_shape scalars = KR_SHAPE(n.nb, n.ns, n.nh), states = KR_SHAPE(a.nq, n.nh, n.np, n.nr);
    const int64_t tokens = n.nb * n.ns, of_v = n.nm * n.nh * n.np, of_b = n.nm * n.ng * n.nr,
                  gap = with & STRIDED ? 3 : 0;
    a.y.row = of_v;
    case_walk_input(&c, OPERAND(kr_ssd_args, v), lay_out_tokens(tokens, of_v, gap, &a.v.row), -2, 2);
    case_walk_input(&c, OPERAND(kr_ssd_args, b), lay_out_tokens(tokens, of_b, 4 * gap, &a.b.row), -1, 1);
    case_walk_input(&c, OPERAND(kr_ssd_args, c), lay_out_tokens(tokens, of_b, 7 * gap, &a.c.row), -1, 1);
    change_decays(case_input(&c, FIELD(kr_ssd_args, da), scalars, -0.3, 0), n.nb * n.ns * n.nh, kind, 50, -1e4);
    add_weights(&c, &a, with);
    if (with & SKIP) case_input(&c, FIELD(kr_ssd_args, d), KR_SHAPE(n.nh), -1, 1);
    if (with & IN_PLACE) {
        case_in_out(&c, FIELD(kr_ssd_args, initial), states, -1, 1);
        c.operands[c.noperands - 1].also = offsetof(kr_ssd_args, final);
    } else if (with & INITIAL) case_input(&c, FIELD(kr_ssd_args, initial), states, -1, 1);
    if (with & BOUNDARY) {
        case_input(&c, FIELD(kr_ssd_args, boundary), KR_SHAPE(a.nq, n.nh), 0.1, 1);
        case_input(&c, FIELD(kr_ssd_args, boundary_v), KR_SHAPE(a.nq, n.nm, n.nh, n.np), -2, 2);
        case_input(&c, FIELD(kr_ssd_args, boundary_b), KR_SHAPE(a.nq, n.nm, n.nh, n.nr), -1, 1);
    }
    case_output(&c, OPERAND(kr_ssd_args, y), values);
    if (with & (INITIAL | PACKED | MIXED) && !(with & IN_PLACE)) case_output(&c, FIELD(kr_ssd_args, final), states);
    c.terms = n.ns * n.nm + n.nr;
    c.roundings = (n.ns - 1) / n.nl;
    c.by_magnitudes = true;
    c.for_scale = keep_decays;
    c.many_tasks = n.many_tasks;
    c.first_row = first_row;
    case_done(sweep, &c);
}

/* Single tokens, and rows that mix them with others: whole and partial blocks of ranks, rows and columns of the state. */
static void single_token_cases(kr_sweep *sweep)
{
    static const int64_t ranks[] = { 1, 2, 4, 7 }, widths[] = { 1, 3, 64 }, columns[] = { 1, 5, 16, 64, 128, 130 };
    for (int i = 0; i < 4 * 3 * 6; i++) {
        if (kr_test_quick() && i % 5 != 0) continue;
        shape n = { .nb = 1 + i % 3, .ns = 1, .nh = 4, .nl = 1 + i % 7 };
        n.nm = ranks[i % 4];
        n.np = widths[i / 4 % 3];
        n.nr = columns[i / 12];
        n.ng = i % 5 == 0 ? 1 : i % 5 < 3 ? 2 : 4;
        for (int with = i % 3; with < PACKED; with += 3)
            ssd_case(sweep, n, with + (with + i) % 2 * STRIDED + with / 3 % 2 * BOUNDARY, with / 3 % DECAYS);
        n.nb = 2;
        n.ns = MIXED_TOKENS;
        n.nh = 2;
        n.ng = 1 + i % 2;
        ssd_case(sweep, n, MIXED + i * 5 % PACKED + i % 2 * STRIDED + i / 2 % 2 * BOUNDARY, GENTLE);
    }
    const shape large = { 1, 1, 1, 24, 64, 1, 128, 96, true }, of_ranks = { 2, 1, 4, 24, 64, 24, 128, 96, true };
    ssd_case(sweep, large, INITIAL + WEIGHT + SKIP, GENTLE);
    ssd_case(sweep, of_ranks, INITIAL + WEIGHT + DIAG_WEIGHT + BOUNDARY, GENTLE);
    ssd_case(sweep, large, INITIAL + WEIGHT + SKIP + IN_PLACE, GENTLE);
    /* more rows of states than a device has warps at a time */
    const shape wide = { 16, 1, 1, 32, 64, 2, 5, 1, true };
    ssd_case(sweep, wide, INITIAL + WEIGHT + IN_PLACE, GENTLE);
    ssd_case(sweep, wide, INITIAL + DIAG_WEIGHT + BOUNDARY, GENTLE);
}

/* Rows of a state that are no multiple of a pass, few tokens and many, sequences without tokens. */
static void in_place_cases(kr_sweep *sweep)
{
    static const int64_t widths[] = { 1, 3, 4, 5, 6, 7, 13, 64 };
    for (int i = 0; i < 3 * 8; i++) {
        shape n = {
            .nb = 2, .ns = 1 + i % 3, .nm = 1 + i % 2 * 4, .nh = 4, .np = widths[i % 8], .ng = 2, .nr = 19, .nl = 8
        };
        ssd_case(sweep, n, INITIAL + IN_PLACE + i % 8 + i / 3 % 2 * BOUNDARY, GENTLE);
        n.ns = MIXED_TOKENS;
        ssd_case(sweep, n, INITIAL + IN_PLACE + i % 8 + (i % 2 ? PACKED : MIXED), GENTLE);
    }
}

/* Ends of chunks: of one to four tokens, of more, short last ones; more rows than a chunk of the kernels has. */
static void carry_cases(kr_sweep *sweep)
{
    static const int64_t lengths[] = { 1, 2, 3, 4, 5, 7, 8, 16 };
    const int all = DIAG_WEIGHT + WEIGHT + CARRY;
    for (int i = 0; i < 4 * 8; i++) {
        if (kr_test_quick() && i % 5 != 0) continue;
        shape n = { .nb = 1 + i % 2, .ns = 17 + i % 7, .nm = 1 + i / 8 * 2, .nh = 4, .np = 5 + i, .nr = 19 };
        n.nl = lengths[i % 8];
        n.ng = 1 + i % 3 % 2;
        ssd_case(sweep, n, all + i % 3 / 2 * PACKED + i % 2 * (INITIAL + BOUNDARY), i % DECAYS);
        ssd_case(sweep, n, all + SKIP + STRIDED + INITIAL + i % 2 * IN_PLACE, GENTLE);
        n.ns = MIXED_TOKENS;
        ssd_case(sweep, n, all + MIXED + i % 2 * BOUNDARY, GENTLE);
    }
    const shape ranks = { 1, 60, 100, 2, 5, 1, 7, 17, false }, large = { 1, 130, 4, 24, 64, 24, 64, 32, true };
    ssd_case(sweep, ranks, all + INITIAL, GENTLE);
    ssd_case(sweep, ranks, INITIAL + WEIGHT, GENTLE);
    ssd_case(sweep, large, all + INITIAL + BOUNDARY, GENTLE);
}

void kr_cases_ssd(kr_sweep *sweep)
{
    single_token_cases(sweep);
    in_place_cases(sweep);
    carry_cases(sweep);
    for (int i = 0; i < NSHAPES; i++) {
        /* over time all combinations are used */
        for (int with = i % 3; with < COMBINATIONS; with += combination_step(shapes[i].many_tasks, 3, 9)) {
            ssd_case(sweep, shapes[i], with + (with + i) % 2 * STRIDED, GENTLE);
            ssd_case(sweep, shapes[i], with + (with + i + 1) % 2 * STRIDED + (with / 3 + i) % 2 * BOUNDARY,
                     1 + with / 3 % (DECAYS - 1));
        }
    }
}

/* ---- gradients ---- */

enum { GRADIENTS = 8 };
static const struct gradient {
    size_t field;
    const char *name;
    int input; /* the axes are those of: 0 v, 1 b, 2 da, 3 d, 4 a state */
} gradients[GRADIENTS] = {
    { OPERAND(kr_ssd_bwd_args, g_v), 0 }, { OPERAND(kr_ssd_bwd_args, g_b), 1 },
    { OPERAND(kr_ssd_bwd_args, g_c), 1 }, { FIELD(kr_ssd_bwd_args, g_da), 2 },
    { FIELD(kr_ssd_bwd_args, g_w), 2 },   { FIELD(kr_ssd_bwd_args, g_diag_weight), 2 },
    { FIELD(kr_ssd_bwd_args, g_d), 3 },   { FIELD(kr_ssd_bwd_args, g_initial), 4 },
};

static void first_row_bwd(void *args)
{
    kr_ssd_bwd_args *a = args;
    a->nq = of_first_row(a->sequences, a->nq);
    if (a->nb > 0) a->nb = 1;
    a->g_d = NULL; /* a sum over all sequences */
}

static void *zeros(int64_t count)
{
    void *p = calloc((size_t)count + 1, sizeof(double));
    if (!p) exit(2);
    return p;
}

/* The scale of all elements of a gradient is the largest that the reference computes from magnitudes: g_da of CUDA is a
 * difference of prefix sums, which has the errors of all their terms. */
static void fill_scales(const kr_case *c)
{
    kr_ssd_bwd_args a = *(const kr_ssd_bwd_args *)c->args;
    double *memory[KR_MAX_OPERANDS];
    for (int k = 0; k < c->noperands; k++) {
        const kr_case_operand *o = &c->operands[k];
        const bool is_decay = o->field == offsetof(kr_ssd_bwd_args, da);
        memory[k] = zeros(o->count);
        for (int64_t i = 0; o->value && i < o->count; i++) memory[k][i] = is_decay ? o->value[i] : fabs(o->value[i]);
        memcpy((char *)&a + o->field, &memory[k], sizeof memory[k]);
    }
    const kr_kernels *ref = kr_runnable_set(0);
    a.exec.scratch = zeros((int64_t)(ref->ssd_bwd[KR_REAL_F64].scratch(&a) / sizeof(double)));
    ref->ssd_bwd[KR_REAL_F64].run(&a);
    free(a.exec.scratch);
    for (int k = 0; k < c->noperands; k++) {
        const kr_case_operand *o = &c->operands[k];
        double largest = 1e-30; /* e^da below 1e-38 counts as 0 */
        for (int64_t i = 0; o->is_output && i < o->count; i++) largest = fmax(largest, fabs(memory[k][i]));
        for (int64_t i = 0; o->is_output && i < o->count; i++) o->scale[i] = largest;
        free(memory[k]);
    }
}

/* without: bits of gradients that are not wanted. */
static void ssd_bwd_case(kr_sweep *sweep, shape n, int with, int kind, unsigned without)
{
    kr_sequence sequences[MOST_SEQUENCES];
    kr_ssd_bwd_args a = {
        .nb = n.nb, .ns = n.ns, .nm = n.nm, .nh = n.nh, .np = n.np, .ng = n.ng, .nr = n.nr, .nl = n.nl
    };
    a.nq = cut_case(sequences, n, with);
    a.sequences = sequences;
    kr_case c;
    char text[160];
    case_begin(&c, &a, sizeof a, "%s, without %x", case_text(text, sizeof text, n, with, kind), without);
    const kr_shape bc_shape = KR_SHAPE(n.nb, n.ns, n.nm, n.ng, n.nr), values = KR_SHAPE(n.nb, n.ns, n.nm, n.nh, n.np);
    const kr_shape scalars = KR_SHAPE(n.nb, n.ns, n.nh), states = KR_SHAPE(a.nq, n.nh, n.np, n.nr);
    const int64_t tokens = n.nb * n.ns, of_v = n.nm * n.nh * n.np, of_b = n.nm * n.ng * n.nr,
                  gap = with & STRIDED ? 3 : 0;
    a.g_y.row = a.g_v.row = of_v, a.g_b.row = a.g_c.row = of_b;
    case_walk_input(&c, OPERAND(kr_ssd_bwd_args, v), lay_out_tokens(tokens, of_v, gap, &a.v.row), -2, 2);
    case_walk_input(&c, OPERAND(kr_ssd_bwd_args, b), lay_out_tokens(tokens, of_b, 4 * gap, &a.b.row), -1, 1);
    case_walk_input(&c, OPERAND(kr_ssd_bwd_args, c), lay_out_tokens(tokens, of_b, 7 * gap, &a.c.row), -1, 1);
    change_decays(case_input(&c, FIELD(kr_ssd_bwd_args, da), scalars, -0.3, 0), n.nb * n.ns * n.nh, kind, 50, -1e4);
    case_input(&c, OPERAND(kr_ssd_bwd_args, g_y), values, -1, 1);
    if (with & WEIGHT) case_input(&c, FIELD(kr_ssd_bwd_args, w), scalars, 0.1, 1);
    if (with & DIAG_WEIGHT) case_input(&c, FIELD(kr_ssd_bwd_args, diag_weight), scalars, 0.1, 1);
    if (with & SKIP) case_input(&c, FIELD(kr_ssd_bwd_args, d), KR_SHAPE(n.nh), -1, 1);
    if (with & INITIAL) case_input(&c, FIELD(kr_ssd_bwd_args, initial), states, -1, 1);
    if (with & INITIAL) case_input(&c, FIELD(kr_ssd_bwd_args, g_final), states, -1, 1);
    const kr_shape axes[] = { values, bc_shape, scalars, KR_SHAPE(n.nh), states };
    for (int i = 0; i < GRADIENTS; i++) {
        if (without >> i & 1) continue;
        case_output(&c, gradients[i].field, gradients[i].name, axes[gradients[i].input]);
        case_scale(&c);
    }
    fill_scales(&c);
    c.terms = n.ns * n.nm + n.nr + n.np + n.nh;
    c.many_tasks = n.many_tasks;
    c.first_row = first_row_bwd;
    case_done(sweep, &c);
}

void kr_cases_ssd_bwd(kr_sweep *sweep)
{
    for (int i = 0; i < NSHAPES; i++) {
        for (int with = i % 5; with < COMBINATIONS; with += combination_step(shapes[i].many_tasks, 5, 13)) {
            ssd_bwd_case(sweep, shapes[i], with + (with + i) % 2 * STRIDED, GENTLE, 0);
            ssd_bwd_case(sweep, shapes[i], with + (with + i + 1) % 2 * STRIDED, 1 + with / 5 % (DECAYS - 1), 0);
        }
    }
    for (int i = 0; i < GRADIENTS; i++) {
        ssd_bwd_case(sweep, shapes[7], COMBINATIONS - 1, GENTLE, 1u << i);
        ssd_bwd_case(sweep, shapes[9], i, GENTLE, 0xffu ^ 1u << i);
    }
}
