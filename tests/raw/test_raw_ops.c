/* test_raw_ops.c - every raw op against the op of a tape, to the bit: forward and backward, f32 and f64, with each optional
 * operand and without, strided operands, packed sequences, results that are not wanted. */
#include "tests/raw/raw_case.h"

typedef struct variant {
    const char *text;
    int64_t chunk_len, n_groups;
    bool silu, norm_first, split_pairs, softplus;
} variant;

typedef struct row {
    kr_raw_op op;
    const char *sizes; /* "b2 s9": of the letters, one digit or two each */
    bool has_sequences;
    unsigned together[2]; /* optional operands that come together */
    variant variants[3];
} row;

enum { BOUNDARY_OF_SSD = 7 << 9, CARRY_OF_SSD = 1 << 4 | 1 << 5 | 1 << 8 };
static const row rows[] = {
    { KR_RAW_SSD,
      "b2 s9 m1 h4 p6 g2 r5",
      true,
      { BOUNDARY_OF_SSD, CARRY_OF_SSD },
      { { "chunks of 4", 4, 1, 0, 0, 0, 0 } } },
    { KR_RAW_SSD, "b1 s5 m3 h2 p4 g1 r9", true, { BOUNDARY_OF_SSD, CARRY_OF_SSD }, { { "ranks", 0, 1, 0, 0, 0, 0 } } },
    { KR_RAW_SCAN, "b2 s11 i12 g2 r5", true, { 0 }, { { "", 0, 1, 0, 0, 0, 0 } } },
    { KR_RAW_CONV, "b2 s7 v10 k4", true, { 0 }, { { "", 0, 1, 0, 0, 0, 0 }, { "silu", 0, 1, 1, 0, 0, 0 } } },
    { KR_RAW_NORM, "s3 b5 i24 e4", false, { 0 }, { { "", 0, 4, 0, 0, 0, 0 }, { "norm first", 0, 4, 0, 1, 0, 0 } } },
    { KR_RAW_LAYER_NORM, "s3 b5 i24 e4", false, { 0 }, { { "", 0, 4, 0, 0, 0, 0 } } },
    { KR_RAW_GATE, "s3 b17", false, { 0 }, { { "", 0, 1, 0, 0, 0, 0 } } },
    { KR_RAW_TRAPEZOID, "s6 b3 h5", false, { 0 }, { { "", 0, 1, 0, 0, 0, 0 }, { "softplus", 0, 1, 0, 0, 0, 1 } } },
    { KR_RAW_ANGLES, "b2 s9 h3 a4", true, { 0 }, { { "", 0, 1, 0, 0, 0, 0 }, { "chunks", 3, 1, 0, 0, 0, 0 } } },
    { KR_RAW_ROTATE,
      "b2 s3 m2 g2 h4 r8 a3",
      false,
      { 0 },
      { { "", 0, 1, 0, 0, 0, 0 }, { "split pairs", 0, 1, 0, 0, 1, 0 } } },
    { KR_RAW_QUATERNION_EXP, "s4 b3 h2 j5", false, { 0 }, { { "", 0, 1, 0, 0, 0, 0 } } },
    { KR_RAW_QUATERNION_SCAN,
      "b2 s9 h3 j2",
      true,
      { 0 },
      { { "", 0, 1, 0, 0, 0, 0 }, { "chunks", 3, 1, 0, 0, 0, 0 } } },
    { KR_RAW_QUATERNION_ROTATE, "b2 s3 m2 h3 r10 j2", false, { 0 }, { { "", 0, 1, 0, 0, 0, 0 } } },
};
enum { NROWS = sizeof rows / sizeof *rows };

/* Of sets that rotate b and c in the core. */
static const row rotary_rows[] = {
    { KR_RAW_SSD_ROTARY,
      "b2 s9 m1 h4 p6 g2 r8 a3",
      true,
      { BOUNDARY_OF_SSD, CARRY_OF_SSD },
      { { "chunks of 4", 4, 1, 0, 0, 0, 0 } } },
    { KR_RAW_SSD_ROTARY,
      "b1 s5 m3 h2 p4 g1 r6 a2",
      true,
      { BOUNDARY_OF_SSD, CARRY_OF_SSD },
      { { "ranks, split pairs", 0, 1, 0, 0, 1, 0 } } },
};
enum { NROTARY_ROWS = sizeof rotary_rows / sizeof *rotary_rows };

static raw_case case_of(const row *r, const variant *o, kr_dtype dtype)
{
    raw_case c = { .op = r->op, .dtype = dtype };
    for (const char *at = r->sizes; *at; at += strcspn(at, " "), at += *at == ' ') c.sizes[*at - 'a'] = atoi(at + 1);
    c.sizes['q' - 'a'] = c.sizes['b' - 'a'];
    kr_raw_options_init(&c.options);
    c.options.chunk_len = o->chunk_len;
    c.options.n_groups = o->n_groups;
    c.options.silu = o->silu;
    c.options.norm_first = o->norm_first;
    c.options.split_pairs = o->split_pairs;
    c.options.softplus = o->softplus;
    return c;
}

/* The tensors of a raw op: operands by name, results unwritten, but for those that `wanted` leaves out. */
static void take_tensors(const raw_case *c, const signature *s, unsigned wanted, kr_tensor **tensors)
{
    for (int n = 0; n < s->n_views; n++) {
        const term *x = &s->terms[n];
        if (n < s->n_operands) tensors[n] = get(&c->values, "", x->name);
        else if (x->optional && !(wanted >> (n - s->n_operands) & 1)) tensors[n] = NULL;
        else tensors[n] = unwritten(c, shape_of(c, x));
    }
}

/* Is result `name` of the backward op of `op` written with strides, too? */
static bool may_be_strided(kr_raw_op op, const char *name)
{
    const bool is_gradient = strcmp(name, "g_x") == 0 || strcmp(name, "g_z") == 0;
    return is_gradient && (op == KR_RAW_NORM || op == KR_RAW_GATE || op == KR_RAW_CONV);
}

/* Rows of a result five elements apart from one another. */
static kr_tensor *apart(const raw_case *c, kr_view *view)
{
    const int64_t width = view->dims[view->rank - 1], line = width + 5;
    int64_t count = 1;
    for (int i = view->rank - 2; i >= 0; i--) {
        view->strides[i] = count * line;
        count *= view->dims[i];
    }
    kr_tensor *wide = unwritten(c, KR_SHAPE(count, line));
    view->data = kr_tensor_data(wide);
    return wide;
}

/* The result out of its wider rows, behind which nothing was written. */
static kr_tensor *joined(const raw_case *c, kr_tensor *wide, const kr_tensor *like)
{
    const int64_t line = kr_tensor_dim(wide, 1), width = line - 5;
    double *gap = kr_test_values(kr_slice(c->t, wide, 1, width, line));
    for (int64_t i = 0; i < 5 * kr_tensor_dim(wide, 0); i++)
        CHECK(isnan(gap[i]), "written behind a row of %s", kr_raw_signature(c->op));
    free(gap);
    return kr_reshape(c->t, kr_contiguous(c->t, kr_slice(c->t, wide, 1, 0, width)), kr_tensor_shape(like));
}

static void run_raw(raw_case *c, kr_raw_op op, const signature *s, kr_tensor **tensors)
{
    kr_view views[TERMS];
    kr_tensor *wide[TERMS] = { NULL };
    views_of(s, tensors, views);
    for (int n = 0; c->strided && n < s->n_operands; n++) widen(c, s->terms[n].name, &views[n]);
    for (int n = s->n_operands; c->strided && n < s->n_views; n++)
        if (tensors[n] && may_be_strided(c->op, s->terms[n].name)) wide[n] = apart(c, &views[n]);
    CHECK(run_exactly(c->t, op, s->n_views, views, c->options) == KR_OK, "%s: %s", kr_raw_signature(op),
          kr_ctx_message(kr_tape_ctx(c->t)));
    for (int n = s->n_operands; n < s->n_views; n++)
        if (wide[n]) tensors[n] = joined(c, wide[n], tensors[n]);
}

static void compare(const raw_case *c, const char *what, const char *name, const kr_tensor *got, const kr_tensor *want)
{
    char text[300];
    snprintf(text, sizeof text, "%.40s: %s%s, %s%s%s, operands %x", what, name, "", kr_dtype_name(c->dtype),
             c->strided ? ", strided" : "", c->packed ? ", packed" : "", c->with);
    CHECK_SAME_BITS(text, got, want);
}

/* Results that the tape's op does not give, such as q of a norm, are put under their names. */
static void check_forward(raw_case *c, unsigned wanted)
{
    const signature s = signature_of(c->op);
    kr_tensor *tensors[TERMS];
    take_tensors(c, &s, wanted, tensors);
    run_raw(c, c->op, &s, tensors);
    for (int n = s.n_operands; n < s.n_views; n++) {
        const char *name = s.terms[n].name;
        const kr_tensor *want = get(&c->values, "", name);
        if (tensors[n] && want) compare(c, kr_raw_signature(c->op), name, tensors[n], want);
        else put(&c->values, "", name, tensors[n]);
    }
}

/* Which gradients come in: all, or one of the forward results alone (which of them: 1, 2, ..). False: it has none. */
static bool backpropagate(raw_case *c, const signature *forward, int alone)
{
    kr_tensor *y[TERMS], *g_y[TERMS];
    int count = 0;
    for (int n = forward->n_operands; n < forward->n_views; n++) {
        const term *x = &forward->terms[n];
        kr_tensor *result = get(&c->values, "", x->name);
        if (!result || !kr_requires_grad(result) || (alone && n - forward->n_operands != alone - 1)) continue;
        y[count] = result;
        g_y[count] = noise(c, "gradient", shape_of(c, x));
        put(&c->values, "g_", x->name, g_y[count++]);
    }
    return count > 0 && CHECK(kr_backward_from(c->t, count, y, g_y) == KR_OK, "%s", kr_ctx_message(kr_tape_ctx(c->t)));
}

static void check_backward(raw_case *c, unsigned wanted)
{
    const kr_raw_op op = (kr_raw_op)(c->op + 1);
    const signature s = signature_of(op);
    kr_tensor *tensors[TERMS];
    take_tensors(c, &s, wanted, tensors);
    for (int n = s.n_operands; n < s.n_views; n++) {
        kr_tensor *of = get(&c->values, "", s.terms[n].name + 2);
        const bool is_known =
            of || strcmp(s.terms[n].name, "g_initial") == 0 || strcmp(s.terms[n].name, "g_window") == 0;
        if (!is_known) tensors[n] = NULL; /* the gradient of an operand that is absent */
    }
    kr_raw_options options = c->options;
    if (op == KR_RAW_LAYER_NORM_BACKWARD) c->options.eps = 1e-5;
    if (op == KR_RAW_ANGLES_BACKWARD || op == KR_RAW_QUATERNION_SCAN_BACKWARD) c->options.chunk_len = 0;
    run_raw(c, op, &s, tensors);
    c->options = options;
    for (int n = s.n_operands; n < s.n_views; n++) {
        const kr_tensor *of = get(&c->values, "", s.terms[n].name + 2);
        if (!tensors[n] || !of) continue;
        const kr_tensor *want = kr_grad(of);
        if (CHECK(want != NULL, "the tape gives no %s", s.terms[n].name))
            compare(c, kr_raw_signature(op), s.terms[n].name, tensors[n], want);
    }
}

/* One set of optional operands; forward, and backward from all results or from one. */
static void check_case(kr_ctx *ctx, const row *r, const variant *o, kr_dtype dtype, unsigned with, int shape, int alone)
{
    raw_case c = case_of(r, o, dtype);
    const signature s = signature_of(c.op);
    kr_test_restart(kr_raw_signature(c.op));
    c.t = kr_tape_create(ctx, KR_TAPE_GRAD);
    c.with = with;
    c.strided = shape == 1;
    c.packed = shape == 2 && r->has_sequences;
    if (c.packed) pack(&c, c.sizes['b' - 'a'], c.sizes['s' - 'a']);
    else if (r->has_sequences)
        kr_sequences_from(c.t, "test", NULL, c.sizes['b' - 'a'], c.sizes['s' - 'a'], &c.sequences);
    make_operands(&c);
    run_on_tape(&c);
    check_forward(&c, ~0u);
    if (alone == 0) check_forward(&c, 0);
    if (alone <= s.n_views - s.n_operands && backpropagate(&c, &s, alone)) {
        check_backward(&c, ~0u);
        for (int i = 0; i < 12 && alone == 0; i++) check_backward(&c, 1u << i);
    }
    CHECK_OK(ctx);
    kr_tape_destroy(c.t);
}

/* May these optional operands come together? */
static bool is_allowed(const row *r, unsigned with)
{
    const unsigned boundary = with & r->together[0], carry = r->together[1];
    if (boundary && boundary != r->together[0]) return false;
    if (carry && with >> 8 & 1 && (with & carry) != carry) return false;
    return true;
}

static void check_row(kr_ctx *ctx, const row *r, kr_dtype dtype)
{
    const signature s = signature_of(r->op);
    unsigned optional = 0;
    for (int n = 0; n < s.n_operands; n++) optional |= (unsigned)s.terms[n].optional << n;
    const int step = kr_test_quick() ? 31 : 1;
    int number = 0;
    for (int v = 0; v < 3 && r->variants[v].text; v++)
        for (unsigned with = 0; with <= optional; with++) {
            if ((with & ~optional) || !is_allowed(r, with)) continue;
            if (r->variants[v].norm_first && !(with & 2)) continue;
            for (int shape = 0; shape < 3; shape++)
                for (int alone = 0; alone < 3; alone++)
                    if (with == optional || with == 0 || number++ % step == 0)
                        check_case(ctx, r, &r->variants[v], dtype, with, shape, alone);
        }
}

TEST(raw_ops_have_the_bits_of_a_tape)
{
    kr_ctx *ctx = kr_test_ctx(2, NULL);
    for (int i = 0; i < NROWS; i++) check_row(ctx, &rows[i], KR_DTYPE_F32);
    kr_ctx_destroy(ctx);
}

TEST(raw_ops_in_double_have_the_bits_of_a_tape)
{
    kr_ctx *ctx = kr_test_ctx(2, NULL);
    for (int i = 0; i < NROWS; i++) check_row(ctx, &rows[i], KR_DTYPE_F64);
    kr_ctx_destroy(ctx);
}

TEST(raw_reference_kernels_have_the_bits_of_a_tape)
{
    kr_ctx *ctx = kr_test_ctx(1, "ref");
    for (int i = 0; i < NROWS; i++) check_row(ctx, &rows[i], KR_DTYPE_F32);
    kr_ctx_destroy(ctx);
}

TEST(a_rotating_core_has_the_bits_of_a_tape)
{
    kr_ctx *ctx = kr_test_ctx(1, "ref");
    for (int i = 0; i < NROTARY_ROWS; i++) check_row(ctx, &rotary_rows[i], KR_DTYPE_F32);
    kr_ctx_destroy(ctx);
}
