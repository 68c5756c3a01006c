/* test_hand_built.c - networks with written-down parameters do the reset tasks without a mistake, however called.
 *
 * Their logits must also be those of the formulas that they were designed by. In f32 majority's are held loosely: x is
 * 0 at a reset, but for rounding, and there it is multiplied by dt B C = 2e7.
 */
#include "tests/harness.h"
#include "tests/nn/hand_built.h"

typedef enum way { WHOLE, STEPS, PIECES } way;

typedef struct hand {
    task_kind task;
    kr_dtype dtype;
    kr_ctx *ctx;
    kr_tape *tape;
    kr_network *net;
} hand;

static bool hand_open(hand *h, const hand_options *options)
{
    *h = (hand){ options->task, options->dtype, kr_test_ctx(1, NULL), NULL, NULL };
    h->tape = kr_tape_create(h->ctx, KR_TAPE_NO_GRAD);
    h->net = hand_network(h->ctx, options);
    return h->net && CHECK_OK(h->ctx);
}

static void hand_close(hand *h)
{
    kr_network_destroy(h->net);
    kr_tape_destroy(h->tape);
    kr_ctx_destroy(h->ctx);
}

/* Symbols [from, from + count) of all rows as one-hot features [b s 3], or [b 3] for a step. */
static kr_tensor *features(const hand *h, const task_data *data, int64_t from, int64_t count, bool is_step)
{
    double *one_hot = calloc((size_t)(data->nb * count * TASK_SYMBOLS), sizeof *one_hot);
    for (int64_t i = 0; i < data->nb * count; i++)
        one_hot[TASK_SYMBOLS * i + data->symbol_bs[i / count * data->ns + from + i % count]] = 1;
    const kr_shape shape = is_step ? KR_SHAPE(data->nb, TASK_SYMBOLS) : KR_SHAPE(data->nb, count, TASK_SYMBOLS);
    kr_tensor *x = kr_cast(h->tape, kr_from_data(h->tape, KR_DTYPE_F64, shape, one_hot), h->dtype);
    free(one_hot);
    return x;
}

/* Writes y [b count w] into its place in [b s w]. */
static void keep(const hand *h, const task_data *data, int64_t from, int64_t count, const kr_tensor *y, double *logit)
{
    const int64_t nw = lab_task_classes(h->task), ny = data->nb * count * nw;
    double *values = malloc((size_t)ny * sizeof *values);
    if (CHECK(kr_tensor_read(y, KR_DTYPE_F64, values, ny) == KR_OK, "%s", kr_ctx_message(h->ctx)))
        for (int64_t b = 0; b < data->nb; b++)
            memcpy(logit + (b * data->ns + from) * nw, values + b * count * nw, (size_t)(count * nw) * sizeof *values);
    free(values);
}

/* Steps of one token, or pieces of 1 (by a step), 7, 32, 1 and so on, up to 100. The state is the caller's own: read
 * where it lies, and replaced after each call by what the call made of it. */
static void in_parts(hand *h, const task_data *data, way by, kr_call *call, double *logit)
{
    static const int64_t pieces[] = { 1, 7, 32, 1, 1, 100, 3, 64 };
    kr_state *state = kr_state_create(h->ctx, kr_network_layers(h->net), data->nb);
    call->state = state;
    for (int64_t from = 0, count, i = 0; from < data->ns && !kr_ctx_failed(h->ctx); from += count, i++) {
        count = by == STEPS ? 1 : pieces[i % 8] < data->ns - from ? pieces[i % 8] : data->ns - from;
        kr_tensor *x = features(h, data, from, count, count == 1);
        const kr_network_out out =
            count == 1 ? kr_network_step(h->tape, h->net, x, call) : kr_network_forward(h->tape, h->net, x, call);
        keep(h, data, from, count, out.y, logit);
        kr_state_copy(state, out.state);
        kr_tape_reset(h->tape);
    }
    kr_state_destroy(state);
}

/* Logits [b s w], to be freed. */
static double *run(hand *h, const task_data *data, way by, const kr_ssd_path *path)
{
    double *logit = calloc((size_t)(data->nb * data->ns * lab_task_classes(h->task)), sizeof *logit);
    kr_call call;
    kr_call_init(&call);
    call.path = path;
    if (by == WHOLE) {
        kr_tensor *x = features(h, data, 0, data->ns, false);
        keep(h, data, 0, data->ns, kr_network_forward(h->tape, h->net, x, &call).y, logit);
        kr_tape_reset(h->tape);
    } else {
        in_parts(h, data, by, &call, logit);
    }
    CHECK_OK(h->ctx);
    return logit;
}

static int largest(const double *logit, int nw)
{
    int best = 0;
    for (int w = 1; w < nw; w++)
        if (logit[w] > logit[best]) best = w;
    return best;
}

static double accuracy(const task_data *data, const double *logit)
{
    const int nw = lab_task_classes(data->task);
    int64_t right = 0, scored = 0;
    for (int64_t i = 0; i < data->nb * data->ns; i++) {
        scored += data->target_bs[i] != TASK_NOT_SCORED;
        right += data->target_bs[i] == largest(logit + i * nw, nw);
    }
    return 100 * (double)right / (double)scored;
}

/* Every scored place is right, and has the logits of the design. */
static void expect_solved(const task_data *data, const char *how, const double *logit, double tolerance)
{
    const int nw = lab_task_classes(data->task);
    const char *name = lab_task_name(data->task), *family = lab_task_family(data->task, data->family);
    double *want = malloc((size_t)(data->ns * nw) * sizeof *want), worst = 0;
    for (int64_t i = 0; i < data->nb * data->ns; i++) {
        if (i % data->ns == 0) hand_logits(data->task, data->symbol_bs + i, data->ns, want);
        if (data->target_bs[i] == TASK_NOT_SCORED) continue;
        const double *got = logit + i * nw;
        CHECK(largest(got, nw) == data->target_bs[i], "%s, %s, %s: row %lld, place %lld is %d, not %d", name, family,
              how, (long long)(i / data->ns), (long long)(i % data->ns), largest(got, nw), (int)data->target_bs[i]);
        for (int w = 0; w < nw; w++) worst = fmax(worst, fabs(got[w] - want[i % data->ns * nw + w]));
    }
    CHECK(accuracy(data, logit) == 100, "%s, %s, %s: %.2f %% right", name, family, how, accuracy(data, logit));
    CHECK(worst <= tolerance, "%s, %s, %s: a logit is off by %g", name, family, how, worst);
    free(want);
}

static const kr_ssd_path paths[] = { { KR_SSD_MINIMAL, 0 }, { KR_SSD_SERIAL, 5 }, { KR_SSD_SERIAL_RECALCULATED, 0 } };

static int64_t rows(void)
{
    return kr_test_quick() ? 24 : TASK_EVAL_ROWS;
}

static void expect_way(hand *h, const task_data *data, way by, const kr_ssd_path *path, const char *how,
                       double tolerance)
{
    double *logit = run(h, data, by, path);
    expect_solved(data, how, logit, tolerance);
    free(logit);
}

static void expect_all_ways(const hand_options *options, double tolerance)
{
    hand h;
    if (hand_open(&h, options))
        for (int family = 0; family < TASK_FAMILIES; family++) {
            task_data data = task_make(h.task, family, TASK_EVAL_SEED, rows(), TASK_LENGTH);
            expect_way(&h, &data, WHOLE, &paths[0], "forward, minimal", tolerance);
            expect_way(&h, &data, WHOLE, &paths[1], "forward, serial", tolerance);
            expect_way(&h, &data, WHOLE, &paths[2], "forward, recalculated", tolerance);
            expect_way(&h, &data, STEPS, NULL, "steps", tolerance);
            task_free(&data);
            data = task_make(h.task, family, TASK_EVAL_SEED, rows() / 8, 8 * TASK_LENGTH);
            expect_way(&h, &data, PIECES, NULL, "long, in pieces", tolerance);
            task_free(&data);
        }
    hand_close(&h);
}

/* Tolerances. f64: a reset leaves exp(-20) of the state behind, and logits are at most 4.2, 38 and 77. f32: the errors
 * of 256 turns add up; and see above. Lambda is 1 in f32, where the pathways are then the same. */
TEST(hand_built_majority)
{
    expect_all_ways(&(hand_options){ .task = LAB_TASK_MAJORITY, .dtype = KR_DTYPE_F64 }, 1e-9);
    expect_all_ways(&(hand_options){ .task = LAB_TASK_MAJORITY, .dtype = KR_DTYPE_F32 }, 0.2);
}

TEST(hand_built_rotor)
{
    expect_all_ways(
        &(hand_options){ .task = LAB_TASK_ROTOR, .dtype = KR_DTYPE_F64, .pathway = KR_MAMBA3_PATHWAY_DOUBLE }, 4e-7);
    expect_all_ways(&(hand_options){ .task = LAB_TASK_ROTOR, .dtype = KR_DTYPE_F32 }, 1e-3);
}

TEST(hand_built_spinor)
{
    expect_all_ways(
        &(hand_options){ .task = LAB_TASK_SPINOR, .dtype = KR_DTYPE_F64, .pathway = KR_MAMBA3_PATHWAY_DOUBLE }, 1e-6);
    expect_all_ways(&(hand_options){ .task = LAB_TASK_SPINOR, .dtype = KR_DTYPE_F32 }, 4e-3);
}

TEST(hand_built_parameter_counts)
{
    static const struct {
        task_kind task;
        kr_rotation_kind rotation;
        int64_t parameters;
    } want[] = { { LAB_TASK_MAJORITY, KR_ROTATION_COMPLEX, 62 },
                 { LAB_TASK_ROTOR, KR_ROTATION_COMPLEX, 86 },
                 { LAB_TASK_SPINOR, KR_ROTATION_QUATERNION, 328 },
                 { LAB_TASK_SPINOR, KR_ROTATION_COMPLEX, 278 } };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int i = 0; i < 4; i++) {
        kr_network *net = task_network(ctx, want[i].task, KR_DTYPE_F32, want[i].rotation, KR_MAMBA3_PATHWAY_SINGLE);
        const int64_t got = kr_params_elements(kr_network_params(net));
        CHECK(got == want[i].parameters, "%s: %lld parameters", lab_task_name(want[i].task), (long long)got);
        kr_network_destroy(net);
    }
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

/* Without what the task asks for, the same parameters fail. */
TEST(hand_built_with_a_flaw)
{
    static const struct {
        task_kind task;
        hand_flaw flaw;
        double below; /* percent, in the worst family: what no such state can do, by the reference's controls */
    } flaws[] = { { LAB_TASK_MAJORITY, HAND_NO_RESET, 90 },   { LAB_TASK_ROTOR, HAND_NO_RESET, 90 },
                  { LAB_TASK_ROTOR, HAND_SAME_ROTATION, 60 }, { LAB_TASK_ROTOR, HAND_NO_ROTATION, 60 },
                  { LAB_TASK_SPINOR, HAND_NO_RESET, 90 },     { LAB_TASK_SPINOR, HAND_SAME_ROTATION, 75 },
                  { LAB_TASK_SPINOR, HAND_NO_ROTATION, 75 } };
    for (size_t i = 0; i < sizeof flaws / sizeof *flaws; i++) {
        hand h;
        double worst = 100;
        if (hand_open(&h, &(hand_options){ .task = flaws[i].task, .flaw = flaws[i].flaw }))
            for (int family = 0; family < TASK_MIXED; family++) {
                task_data data = task_make(h.task, family, TASK_EVAL_SEED, rows(), TASK_LENGTH);
                double *logit = run(&h, &data, WHOLE, NULL);
                worst = fmin(worst, accuracy(&data, logit));
                free(logit);
                task_free(&data);
            }
        CHECK(worst < flaws[i].below, "%s, flaw %d: %.2f %% right", lab_task_name(h.task), (int)flaws[i].flaw, worst);
        hand_close(&h);
    }
}
