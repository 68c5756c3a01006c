/* test_raw_states.c - states updated in place, calls cut into steps, results of 16 bits, gradients that are added. */
#include "tests/raw/raw_case.h"

static kr_ctx *ctx;
static kr_tape *t;

static void begin(const char *isa)
{
    ctx = kr_test_ctx(2, isa);
    t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
}

static void end(void)
{
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

typedef struct stepped {
    kr_raw_op op;
    const char *sizes;
    const char *state, *result; /* the operand and the result that it becomes */
    unsigned with;
    double
        tolerance; /* between one call and one for each token; 0: the same bits. Sums of a few terms in another order. */
} stepped;

static const stepped steps[] = {
    { KR_RAW_SSD, "b2 s7 m1 h4 p6 g2 r5", "initial", "final", 1 << 7 | 1 << 6 | 1 << 4, 4e-6 },
    { KR_RAW_SCAN, "b2 s7 i12 g2 r5", "initial", "final", 1 << 7 | 1 << 5, 4e-6 },
    { KR_RAW_CONV, "b2 s7 v10 k4", "window", "window_out", 1 << 3 | 1 << 2, 0 },
    { KR_RAW_ANGLES, "b2 s7 h3 a4", "initial", "final", 1 << 2, 1e-6 },
    { KR_RAW_QUATERNION_SCAN, "b2 s7 h3 j2", "initial", "final", 1 << 1, 1e-6 },
};

static raw_case case_of(const stepped *s)
{
    raw_case c = { .op = s->op, .dtype = KR_DTYPE_F32, .t = t, .with = s->with };
    for (const char *at = s->sizes; *at; at += strcspn(at, " "), at += *at == ' ') c.sizes[*at - 'a'] = atoi(at + 1);
    c.sizes['q' - 'a'] = c.sizes['b' - 'a'];
    kr_raw_options_init(&c.options);
    return c;
}

/* Runs with the state's memory as the result. */
static void run_in_place(const stepped *s, raw_case *c, kr_tensor **tensors, kr_tensor *state)
{
    const signature text = signature_of(s->op);
    kr_view views[TERMS];
    for (int n = 0; n < text.n_views; n++)
        if (strcmp(text.terms[n].name, s->state) == 0 || strcmp(text.terms[n].name, s->result) == 0) tensors[n] = state;
    views_of(&text, tensors, views);
    CHECK(run_exactly(t, s->op, text.n_views, views, c->options) == KR_OK, "%s", kr_ctx_message(ctx));
}

/* One call in place is one call; a call for each token is one call up to rounding. */
static void check_steps(const stepped *s)
{
    raw_case c = case_of(s);
    const signature text = signature_of(s->op);
    const int64_t ns = c.sizes['s' - 'a'];
    kr_tensor *whole[TERMS] = { NULL }, *again[TERMS] = { NULL };
    kr_view views[TERMS];
    kr_test_restart(kr_raw_signature(s->op));
    make_operands(&c);
    for (int n = 0; n < text.n_views; n++)
        whole[n] =
            n < text.n_operands ? get(&c.values, "", text.terms[n].name) : unwritten(&c, shape_of(&c, &text.terms[n]));
    views_of(&text, whole, views);
    CHECK(run_exactly(t, s->op, text.n_views, views, c.options) == KR_OK, "%s", kr_ctx_message(ctx));
    memcpy(again, whole, sizeof again);
    const int y = text.n_operands, final = y + 1;
    again[y] = unwritten(&c, shape_of(&c, &text.terms[y]));
    kr_tensor *state = kr_input(t, get(&c.values, "", s->state));
    run_in_place(s, &c, again, state);
    CHECK_SAME_BITS("in place", again[y], whole[y]);
    CHECK_SAME_BITS("state in place", state, whole[final]);

    state = kr_input(t, get(&c.values, "", s->state));
    kr_tensor *rows[16];
    c.sizes['s' - 'a'] = 1;
    for (int64_t i = 0; i < ns; i++) {
        kr_tensor *part[TERMS] = { NULL };
        for (int n = 0; n < text.n_operands; n++) {
            const bool has_tokens = strstr(text.terms[n].axes, "bs") == text.terms[n].axes;
            part[n] = whole[n] && has_tokens ? kr_contiguous(t, kr_slice(t, whole[n], 1, i, i + 1)) : whole[n];
        }
        rows[i] = part[y] = unwritten(&c, shape_of(&c, &text.terms[y]));
        run_in_place(s, &c, part, state);
    }
    kr_tensor *joined = kr_concat(t, 1, (int)ns, rows);
    if (s->tolerance == 0) {
        CHECK_SAME_BITS("steps", joined, whole[y]);
        CHECK_SAME_BITS("state of steps", state, whole[final]);
        return;
    }
    CHECK_TENSORS("steps", joined, whole[y], s->tolerance, 1);
    CHECK_TENSORS("state of steps", state, whole[final], s->tolerance, 1);
}

TEST(raw_states_are_updated_in_place)
{
    begin(NULL);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) check_steps(&steps[i]);
    end();
}

/* Kernels that do not update in place are never given one memory for both. */
static int ncalls, nin_place;
static kr_precision precision; /* of the last call */
#define SPY(slot, type, operand, result)                                                                               \
    static void (*slot##_of_device)(const type *);                                                                     \
    static void slot##_spy(const type *args)                                                                           \
    {                                                                                                                  \
        ncalls++;                                                                                                      \
        precision = args->exec.precision;                                                                              \
        nin_place += args->operand == args->result;                                                                    \
        slot##_of_device(args);                                                                                        \
    }
SPY(conv, kr_conv_args, window, window_out)
SPY(angles, kr_angles_args, initial, final)
SPY(quaternion_scan, kr_quaternion_scan_args, initial, final)

#define INSTALL(slot)                                                                                                  \
    slot##_of_device = ctx->device->kernels.slot[KR_REAL_F32].run;                                                     \
    ctx->device->kernels.slot[KR_REAL_F32].run = slot##_spy

TEST(raw_kernels_see_two_memories_for_a_state)
{
    begin(NULL);
    INSTALL(conv);
    INSTALL(angles);
    INSTALL(quaternion_scan);
    for (int i = 2; i < 5; i++) check_steps(&steps[i]);
    CHECK(ncalls == 3 * 9, "%d calls", ncalls);
    CHECK(nin_place == 0, "%d calls in place", nin_place);
    end();
}

/* The precision is that of the call, and then the context's again. */
TEST(raw_calls_have_a_precision)
{
    begin(NULL);
    INSTALL(conv);
    kr_tensor *x = kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(2, 5, 3)), *weight = kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(3, 4));
    kr_tensor *y = kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(2, 5, 3)), *tensors[TERMS] = { x, weight, NULL, NULL, y };
    const signature conv = signature_of(KR_RAW_CONV);
    const kr_precision own = kr_ctx_precision(ctx);
    kr_raw_options options;
    kr_view views[TERMS];
    views_of(&conv, tensors, views);
    kr_raw_options_init(&options);
    for (int i = KR_PRECISION_UNSET; i <= KR_PRECISION_BF16; i++) {
        options.precision = (kr_precision)i;
        CHECK(kr_raw_run(ctx, KR_RAW_CONV, conv.n_views, views, &options) == KR_OK, "%s", kr_ctx_message(ctx));
        CHECK(precision == (i == KR_PRECISION_UNSET ? own : options.precision), "%d runs in %d", i, (int)precision);
        CHECK(kr_ctx_precision(ctx) == own, "the context has %d", (int)kr_ctx_precision(ctx));
    }
    end();
}

/* Tokens outside all sequences: their y is not written, and their gradients are 0. */
TEST(raw_tokens_outside_sequences_are_left_alone)
{
    begin(NULL);
    raw_case c = case_of(&steps[1]);
    const signature forward = signature_of(KR_RAW_SCAN), backward = signature_of(KR_RAW_SCAN_BACKWARD);
    kr_tensor *tensors[TERMS];
    kr_view views[TERMS];
    c.with = 1 << 5;
    make_operands(&c);
    int64_t *list = kr_tape_list(t, 6 * sizeof *list);
    if (!list) exit(2);
    memcpy(list, (int64_t[]){ 0, 1, 3, 1, 2, 7 }, 6 * sizeof *list);
    c.options.sequences = list;
    c.options.n_sequences = 2;
    for (int n = 0; n < forward.n_views; n++)
        tensors[n] = n < forward.n_operands ? get(&c.values, "", forward.terms[n].name)
                                            : unwritten(&c, shape_of(&c, &forward.terms[n]));
    views_of(&forward, tensors, views);
    CHECK(run_exactly(t, c.op, forward.n_views, views, c.options) == KR_OK, "%s", kr_ctx_message(ctx));
    double *y = kr_test_values(tensors[forward.n_operands]);
    put(&c.values, "", "g_y", noise(&c, "g", shape_of(&c, &forward.terms[forward.n_operands])));
    for (int n = 0; n < backward.n_views; n++)
        tensors[n] = n < backward.n_operands ? get(&c.values, "", backward.terms[n].name) : NULL;
    kr_tensor *g_x = tensors[backward.n_operands] = unwritten(&c, shape_of(&c, &backward.terms[backward.n_operands]));
    views_of(&backward, tensors, views);
    CHECK(run_exactly(t, KR_RAW_SCAN_BACKWARD, backward.n_views, views, c.options) == KR_OK, "%s", kr_ctx_message(ctx));
    double *g = kr_test_values(g_x);
    for (int64_t i = 0; i < 2 * 7 * 12; i++) {
        const int64_t row = i / 12 / 7, s = i / 12 % 7;
        const bool inside = row == 0 ? s >= 1 && s < 3 : s >= 2;
        CHECK(isnan(y[i]) == !inside, "y[%lld] is %g", (long long)i, y[i]);
        CHECK(inside ? !isnan(g[i]) : g[i] == 0, "g_x[%lld] is %g", (long long)i, g[i]);
    }
    free(y);
    free(g);
    end();
}

/* The reference takes 16-bit operands, as GPUs do: the bits are those of the widened operand. */
TEST(raw_operands_of_16_bits_are_widened)
{
    begin("ref");
    if (!kr_accepts(ctx, ssd_v, KR_DTYPE_BF16)) {
        end();
        SKIP("the device takes no bf16");
    }
    raw_case c = case_of(&steps[0]);
    const signature text = signature_of(KR_RAW_SSD);
    kr_tensor *tensors[TERMS] = { NULL }, *y[2];
    kr_view views[TERMS];
    make_operands(&c);
    for (int narrow = 0; narrow < 2; narrow++) {
        for (int n = 0; n < text.n_operands; n++) tensors[n] = get(&c.values, "", text.terms[n].name);
        for (int n = 0; n < 3; n++) {
            tensors[n] = kr_cast(t, tensors[n], KR_DTYPE_BF16);
            if (!narrow) tensors[n] = kr_cast(t, tensors[n], KR_DTYPE_F32);
        }
        c.dtype = narrow ? KR_DTYPE_BF16 : KR_DTYPE_F32;
        tensors[text.n_operands] = unwritten(&c, shape_of(&c, &text.terms[text.n_operands]));
        tensors[text.n_operands + 1] = NULL;
        views_of(&text, tensors, views);
        CHECK(run_exactly(t, c.op, text.n_views, views, c.options) == KR_OK, "%s", kr_ctx_message(ctx));
        y[narrow] = tensors[text.n_operands];
    }
    CHECK_SAME_BITS("bf16", y[1], kr_cast(t, y[0], KR_DTYPE_BF16));
    end();
}

/* accumulate: the sum of what was there and of the gradient. */
TEST(raw_gradients_are_added)
{
    begin(NULL);
    raw_case c = { .op = KR_RAW_NORM, .dtype = KR_DTYPE_F32, .t = t };
    kr_tensor *x = noise(&c, "x", KR_SHAPE(5, 24)), *g_y = noise(&c, "g", KR_SHAPE(5, 24));
    kr_tensor *q = kr_full(t, KR_DTYPE_F32, KR_SHAPE(5, 1), 0.7), *before = noise(&c, "g", KR_SHAPE(5, 24));
    kr_tensor *sum = kr_input(t, before), *g_x = unwritten(&c, KR_SHAPE(5, 24));
    const signature norm = signature_of(KR_RAW_NORM_BACKWARD), rotate = signature_of(KR_RAW_ROTATE_BACKWARD);
    kr_view views[TERMS];
    for (int adds = 0; adds < 2; adds++) {
        kr_tensor *tensors[TERMS] = { x, NULL, NULL, q, g_y, adds ? sum : g_x, NULL, NULL };
        kr_raw_options_init(&c.options);
        c.options.accumulate = adds;
        views_of(&norm, tensors, views);
        CHECK(run_exactly(t, KR_RAW_NORM_BACKWARD, norm.n_views, views, c.options) == KR_OK, "%s", kr_ctx_message(ctx));
    }
    CHECK_SAME_BITS("g_x", sum, kr_add(t, before, g_x));
    kr_tensor *rows = noise(&c, "x", KR_SHAPE(2, 3, 1, 2, 8)), *angle = noise(&c, "x", KR_SHAPE(2, 3, 2, 4));
    kr_tensor *g_rows = noise(&c, "g", KR_SHAPE(2, 3, 1, 2, 8)), *angles = noise(&c, "g", KR_SHAPE(2, 3, 2, 4));
    sum = kr_input(t, angles);
    kr_tensor *g_angle = unwritten(&c, KR_SHAPE(2, 3, 2, 4));
    for (int adds = 0; adds < 2; adds++) {
        kr_tensor *tensors[TERMS] = { rows, NULL, angle, g_rows, NULL, NULL, adds ? sum : g_angle };
        c.options.accumulate = adds;
        views_of(&rotate, tensors, views);
        CHECK(run_exactly(t, KR_RAW_ROTATE_BACKWARD, rotate.n_views, views, c.options) == KR_OK, "%s",
              kr_ctx_message(ctx));
    }
    CHECK_SAME_BITS("g_angle", sum, kr_add(t, angles, g_angle));
    end();
}

/* Views without elements, whose data may be NULL. */
TEST(raw_empty_views_are_nothing_to_do)
{
    begin(NULL);
    const kr_shape none = KR_SHAPE(0, 8);
    kr_view views[5] = { kr_view_contiguous(KR_DTYPE_F32, none, NULL),
                         { .data = NULL },
                         { .data = NULL },
                         kr_view_contiguous(KR_DTYPE_F32, none, NULL) };
    CHECK(kr_raw_run(ctx, KR_RAW_NORM, 5, views, NULL) == KR_OK, "%s", kr_ctx_message(ctx));
    kr_tensor *weight = kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(3, 4)),
              *window = kr_full(t, KR_DTYPE_F32, KR_SHAPE(2, 3, 4), 5);
    kr_tensor *out = kr_full(t, KR_DTYPE_F32, KR_SHAPE(2, 3, 4), (double)NAN);
    const kr_shape no_tokens = KR_SHAPE(2, 0, 3);
    kr_view conv[6] = { kr_view_contiguous(KR_DTYPE_F32, no_tokens, NULL),
                        kr_view_contiguous(KR_DTYPE_F32, KR_SHAPE(3, 4), kr_tensor_data(weight)),
                        { .data = NULL },
                        kr_view_contiguous(KR_DTYPE_F32, KR_SHAPE(2, 3, 4), kr_tensor_data(window)),
                        kr_view_contiguous(KR_DTYPE_F32, no_tokens, NULL),
                        kr_view_contiguous(KR_DTYPE_F32, KR_SHAPE(2, 3, 4), kr_tensor_data(out)) };
    CHECK(kr_raw_run(ctx, KR_RAW_CONV, 6, conv, NULL) == KR_OK, "%s", kr_ctx_message(ctx));
    CHECK_SAME_BITS("a window that nothing enters", out, window);
    end();
}
