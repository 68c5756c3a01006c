/* check_cases_kernels.c - cases of kernels that ops reach on a device only, or through state: decoding, sampling, random
 * numbers, the search for numbers that are not finite. Those of decoding and sampling are run directly.
 */
#include "check/check_cases.h"

#include "base/device_memory.h"
#include "device/device.h"
#include "ops/ops_impl.h"
#include "tensor/tensor_impl.h"

#include <math.h>

/* A constant operand by its key; its data. */
#define C(key, low, high, ...) vector_constant(r, key, KR_SHAPE(__VA_ARGS__), low, high)
static void *data(kr_tensor *x)
{
    return x ? x->data : NULL;
}

/* ---- decoding ---- */

CASE(decode_linear)
{
    enum { ROWS = 3, OUT = 50, IN = 72, CHANNELS = 20, TAPS = 4 };
    kr_ctx *ctx = kr_tape_ctx(t);
    const kr_dtype dtypes[] = { r->dtype, KR_DTYPE_BF16 };
    for (int i = 0; i < 2; i++) {
        kr_tensor *w = i ? vector_16bit(r, 1, KR_SHAPE(OUT, IN), dtypes[i]) : C(0, -1, 1, OUT, IN);
        kr_tensor *window = C(2, -2, 2, ROWS, CHANNELS, TAPS), *y = C(3, 0, 0, ROWS, OUT);
        kr_decode_linear_args a = { .nm = ROWS,
                                    .nn = OUT,
                                    .nk = IN,
                                    .ng = i ? 2 : 1,
                                    .x = kr_operand_of(C(4, -2, 2, ROWS, IN)),
                                    .z = kr_operand_of(i ? C(5, -3, 3, ROWS, IN) : NULL),
                                    .w = kr_operand_of(w),
                                    .base = kr_operand_of(C(8, -2, 2, ROWS, OUT)),
                                    .y = kr_operand_of(y),
                                    .gain = data(C(6, 0.5, 2, IN)),
                                    .bias = data(C(7, -1, 1, OUT)),
                                    .has_norm = true,
                                    .eps = 1e-5,
                                    .conv_from = 7,
                                    .nc = CHANNELS,
                                    .nt = TAPS,
                                    .taps = kr_operand_of(C(9, -1, 1, CHANNELS, TAPS)),
                                    .conv_bias = data(C(10, -1, 1, CHANNELS)),
                                    .window = data(window) };
        if (kr_ctx_failed(ctx) || !KR_RUN(ctx, decode_linear[kr_real_of(r->dtype)], &a)) return;
        vector_out_times(r, 2 * i, y);
        vector_out_times(r, 2 * i + 1, window);
    }
}

/* Three tokens: with the state written at each, and with deferred updates that are flushed at the end. */
CASE(decode_ssd)
{
    enum { ROWS = 2, HEADS = 4, DIM = 16, GROUPS = 2, RANK = 24, WIDTH = HEADS * DIM, TOKENS = 3 };
    kr_ctx *ctx = kr_tape_ctx(t);
    const int real = kr_real_of(r->dtype);
    const kr_deferred_parts parts = kr_deferred_parts_of(HEADS, DIM, GROUPS, RANK);
    for (int i = 0; i < 2; i++) {
        kr_tensor *state = C(0, -2, 2, ROWS, HEADS, DIM, RANK), *y = C(1, 0, 0, ROWS, HEADS, DIM);
        kr_decode_ssd_args a = { .nb = ROWS,
                                 .nh = HEADS,
                                 .np = DIM,
                                 .ng = GROUPS,
                                 .nr = RANK,
                                 .y = kr_operand_of(kr_reshape(t, y, KR_SHAPE(ROWS, WIDTH))),
                                 .dt_bias = data(C(2, -2, 2, HEADS)),
                                 .a_log = data(C(3, -2, 1, HEADS)),
                                 .d = data(C(4, -1, 1, HEADS)),
                                 .gain = data(C(5, 0.5, 2, HEADS, DIM)),
                                 .dt_max = INFINITY,
                                 .state = data(state),
                                 .squares = data(C(6, 0, 0, ROWS, HEADS, DIM / KR_DECODE_TILE)),
                                 .deferred = i ? data(C(7, 0, 0, ROWS, parts.row)) : NULL };
        for (int token = 0; token < TOKENS; token++) {
            const int key = 10 * (1 + token);
            a.x = kr_operand_of(C(key, -2, 2, ROWS, WIDTH));
            a.b = kr_operand_of(C(key + 1, -1, 1, ROWS, WIDTH)); /* the first GROUPS RANK of a row */
            a.c = kr_operand_of(C(key + 2, -1, 1, ROWS, WIDTH));
            a.dt = kr_operand_of(C(key + 3, -3, 1, ROWS, WIDTH));
            a.z = kr_operand_of(C(key + 4, -3, 3, ROWS, WIDTH));
            if (kr_ctx_failed(ctx) || !KR_RUN(ctx, decode_ssd[real], &a)) return;
        }
        a.x.data = NULL;
        if (a.deferred && !KR_RUN(ctx, decode_ssd[real], &a)) return;
        vector_out_times(r, 2 * i, y);
        vector_out_times(r, 2 * i + 1, state);
    }
}

CASE(decode_scan)
{
    enum { ROWS = 3, CHANNELS = 33, RANK = 16, LOW = 7 };
    kr_ctx *ctx = kr_tape_ctx(t);
    kr_tensor *state = C(0, -2, 2, ROWS, CHANNELS, RANK), *y = C(1, 0, 0, ROWS, CHANNELS),
              *w = vector_16bit(r, 2, KR_SHAPE(CHANNELS, LOW), KR_DTYPE_BF16);
    kr_decode_scan_args a = { .nb = ROWS,
                              .ni = CHANNELS,
                              .nr = RANK,
                              .nx = LOW,
                              .x = kr_operand_of(C(3, -2, 2, ROWS, CHANNELS)),
                              .z = kr_operand_of(C(4, -3, 3, ROWS, CHANNELS)),
                              .low = kr_operand_of(C(5, -1, 1, ROWS, RANK)), /* the first LOW of a row */
                              .b = kr_operand_of(C(6, -1, 1, ROWS, RANK)),
                              .c = kr_operand_of(C(7, -1, 1, ROWS, RANK)),
                              .w = kr_operand_of(w),
                              .y = kr_operand_of(y),
                              .dt_bias = data(C(8, -2, 2, CHANNELS)),
                              .a_log = data(C(9, -3, 1, CHANNELS, RANK)),
                              .d = data(C(10, -1, 1, CHANNELS)),
                              .eps = 1e-5,
                              .dt_max = 0.75,
                              .state = data(state) };
    if (kr_ctx_failed(ctx) || !KR_RUN(ctx, decode_scan[kr_real_of(r->dtype)], &a)) return;
    vector_out_times(r, 0, y);
    vector_out_times(r, 1, state);
}

CASE(decode_mamba3)
{
    enum { ROWS = 2, RANKS = 2, HEADS = 4, DIM = 9, GROUPS = 2, RANK = 16, ANGLES = 5, WIDTH = RANKS * GROUPS * RANK };
    kr_ctx *ctx = kr_tape_ctx(t);
    kr_tensor *state = C(0, -2, 2, ROWS, HEADS, DIM, RANK), *k = C(1, -2, 2, ROWS, RANKS, HEADS, RANK),
              *v = C(2, -2, 2, ROWS * HEADS * DIM), *angle = C(3, -3, 3, ROWS * HEADS * ANGLES),
              *y = C(4, 0, 0, ROWS, HEADS, DIM);
    kr_decode_mamba3_args a = { .nb = ROWS,
                                .nm = RANKS,
                                .nh = HEADS,
                                .np = DIM,
                                .ng = GROUPS,
                                .nr = RANK,
                                .na = ANGLES,
                                .nrotated = ANGLES,
                                .z = kr_operand_of(C(5, -2, 2, ROWS, WIDTH)), /* and the first elements of these rows */
                                .x = kr_operand_of(C(6, -2, 2, ROWS, WIDTH)),
                                .b = kr_operand_of(C(7, -1, 1, ROWS, WIDTH)),
                                .c = kr_operand_of(C(8, -1, 1, ROWS, WIDTH)),
                                .dt = kr_operand_of(C(9, -3, 1, ROWS, WIDTH)),
                                .a = kr_operand_of(C(10, -3, 3, ROWS, WIDTH)),
                                .lambda = kr_operand_of(C(11, -2, 2, ROWS, WIDTH)),
                                .theta = kr_operand_of(C(12, -2, 2, ROWS, WIDTH)),
                                .y = kr_operand_of(kr_reshape(t, y, KR_SHAPE(ROWS, HEADS * DIM))),
                                .dt_bias = data(C(13, -1, 1, HEADS)),
                                .b_gain = data(C(14, 0.5, 1.5, RANK)),
                                .c_gain = data(C(15, 0.5, 1.5, RANK)),
                                .b_bias = data(C(16, -1, 1, HEADS, RANKS, RANK)),
                                .c_bias = data(C(17, -1, 1, HEADS, RANKS, RANK)),
                                .mimo_x = data(C(18, 0.5, 1.5, HEADS, RANKS, DIM)),
                                .mimo_z = data(C(19, 0.5, 1.5, HEADS, RANKS, DIM)),
                                .mimo_o = data(C(20, 0.5, 1.5, HEADS, RANKS, DIM)),
                                .d = data(C(21, -1, 1, HEADS)),
                                .gain = data(C(22, 0.5, 1.5, HEADS, DIM)),
                                .has_norm = true,
                                .eps = 1e-5,
                                .a_floor = 1e-4,
                                .dt_max = INFINITY,
                                .range = 1,
                                .state = data(state),
                                .k = data(k),
                                .v = data(v),
                                .angle = data(angle) };
    if (kr_ctx_failed(ctx) || !KR_RUN(ctx, decode_mamba3[kr_real_of(r->dtype)], &a)) return;
    vector_out_times(r, 0, y);
    vector_out_times(r, 1, state);
    vector_out_times(r, 2, k);
    vector_out_times(r, 3, kr_concat(t, 0, 2, (kr_tensor *[]){ v, kr_sin(t, angle) }));
}

/* ---- sampling ---- */

enum { SAMPLE_ROWS = 4, SAMPLE_TOKENS = 101, SAMPLE_VOCAB = SAMPLE_TOKENS - 4, SAMPLE_STEPS = 2 };
enum { SAMPLE_MASK_WORDS = (SAMPLE_VOCAB + 31) / 32 };
typedef struct sample_state {
    kr_sample_rules rules[SAMPLE_ROWS];
    int64_t n_sampled[SAMPLE_ROWS];
    double biases[SAMPLE_ROWS * SAMPLE_VOCAB];
    uint32_t counts[SAMPLE_ROWS * SAMPLE_VOCAB], mask[SAMPLE_ROWS * SAMPLE_MASK_WORDS];
    int32_t next[SAMPLE_ROWS];
} sample_state;
typedef struct sample_results {
    double logprob[SAMPLE_STEPS * SAMPLE_ROWS]; /* or as many floats */
    int32_t id[SAMPLE_STEPS * SAMPLE_ROWS];
} sample_results;

static sample_state sample_begin(kr_sample_rules rules)
{
    static const uint64_t streams[SAMPLE_ROWS] = { 5, 0, 3, 1 };
    sample_state state = { .n_sampled = { 6, 6, 6, 6 } };
    rules.seed = 17;
    rules.flags |= KR_SAMPLE_ON;
    for (int b = 0; b < SAMPLE_ROWS; b++) {
        state.rules[b] = rules;
        state.rules[b].stream = streams[b];
    }
    return state;
}

/* Two samples: ids, log-probabilities, and the ids of the second as the next step reads them. */
static bool draw_samples(vector_run *r, sample_state *host, const kr_tensor *logits, sample_state *state,
                         sample_results *results, double *values)
{
    kr_ctx *ctx = kr_tape_ctx(r->tape);
    bool ok = kr_store(ctx, state, host, sizeof *host);
    const bool changes = host->rules[0].flags & KR_SAMPLE_CHANGES;
    kr_sample_args a = { .nb = SAMPLE_ROWS,
                         .nw = SAMPLE_TOKENS,
                         .vocab = SAMPLE_VOCAB,
                         .x = kr_operand_of(logits),
                         .rules = state->rules,
                         .is_greedy = host->rules[0].temperature <= 0,
                         .biases = changes ? state->biases : NULL,
                         .counts = changes ? state->counts : NULL,
                         .mask = changes ? state->mask : NULL,
                         .n_sampled = state->n_sampled,
                         .n_sampled_stride = SAMPLE_ROWS,
                         .id = results->id,
                         .next = state->next,
                         .logprob = results->logprob };
    for (int step = 0; ok && step < SAMPLE_STEPS; step++) ok = KR_RUN(ctx, sample[kr_real_of(r->dtype)], &a);
    ok = ok && kr_wait(ctx) && kr_fetch(ctx, host, state, sizeof *host);
    for (int i = 0; ok && i < SAMPLE_STEPS * SAMPLE_ROWS; i++) {
        *values++ = results->id[i];
        *values++ = r->dtype == KR_DTYPE_F64 ? results->logprob[i] : (double)((const float *)results->logprob)[i];
    }
    for (int i = 0; ok && i < SAMPLE_ROWS; i++) *values++ = host->next[i];
    return ok;
}

typedef void sample_change_fn(sample_state *state);

static void sample_case(vector_run *r, kr_tape *t, int count, const kr_sample_rules *rules, sample_change_fn *change)
{
    enum { VALUES = 2 * SAMPLE_STEPS * SAMPLE_ROWS + SAMPLE_ROWS };
    kr_ctx *ctx = kr_tape_ctx(t);
    double values[VALUES];
    kr_tensor *logits = C(0, -8, 8, SAMPLE_ROWS, SAMPLE_TOKENS);
    sample_state *state = kr_memory_alloc(kr_float_memory(ctx), sizeof *state);
    sample_results *results = kr_memory_alloc(kr_shared_memory(ctx), sizeof *results);
    for (int i = 0; logits && state && results && i < count; i++) {
        sample_state host = sample_begin(rules[i]);
        if (change) change(&host);
        if (!draw_samples(r, &host, logits, state, results, values)) break;
        vector_out_values(r, i, KR_SHAPE(VALUES), values);
    }
    kr_memory_free(kr_shared_memory(ctx), results, sizeof *results);
    kr_memory_free(kr_float_memory(ctx), state, sizeof *state);
}

CASE(sample)
{
    static const kr_sample_rules rules[] = { { .temperature = 0, .top_p = 1 },
                                             { .temperature = 2, .top_p = 1, .top_k = 11 },
                                             { .temperature = 1.5, .top_p = 0.8125 },
                                             { .temperature = 4, .top_p = 1, .min_p = 0.125 } };
    sample_case(r, t, 4, rules, NULL);
}

/* Rows with biases, penalties, a mask, and all of them. */
static void change_samples(sample_state *state)
{
    static const uint64_t flags[SAMPLE_ROWS] = { KR_SAMPLE_BIASES, KR_SAMPLE_PENALTIES, KR_SAMPLE_MASK,
                                                 KR_SAMPLE_CHANGES };
    for (int b = 0; b < SAMPLE_ROWS; b++) {
        state->rules[b].flags = KR_SAMPLE_ON | flags[b];
        for (int i = 0; i < SAMPLE_VOCAB; i++) {
            const int at = b * SAMPLE_VOCAB + i;
            state->biases[at] = i % 9 == 0 ? -(double)INFINITY : (double)((i * 5 + b) % 7 - 3) / 2;
            state->counts[at] = (uint32_t)(i % 5 == 0 ? i % 4 : 0) | (i % 3 == 0 ? KR_SAMPLE_IN_PROMPT : 0);
            if ((i * 3 + b) % 8 < 3) state->mask[b * SAMPLE_MASK_WORDS + i / 32] |= UINT32_C(1) << (i % 32);
        }
    }
}
CASE(sample_changes)
{
    static const kr_sample_rules rules[] = {
        { .temperature = 0, .top_p = 1, .repetition = 2, .presence = 0.5, .frequency = 0.25 },
        { .temperature = 2, .top_p = 0.9375, .top_k = 31, .repetition = 0.5, .presence = -1.5, .frequency = 0.125 },
        { .temperature = 3, .top_p = 1, .min_p = 0.0625, .repetition = 1, .presence = 1, .frequency = -0.25 }
    };
    sample_case(r, t, 3, rules, change_samples);
}

/* ---- random numbers: the same in every run, whatever its type ---- */

static void random_case(vector_run *r, kr_tape *t, kr_random_kind kind, double a, double b)
{
    static const kr_dtype dtypes[] = { KR_DTYPE_F32, KR_DTYPE_F64, KR_DTYPE_BF16, KR_DTYPE_F16 };
    kr_ctx_seed(kr_tape_ctx(t), 11);
    for (int i = 0; i < 4; i++) vector_out_times(r, i, kr_random(t, dtypes[i], KR_SHAPE(9, 37), kind, a, b));
}
CASE(random_uniform)
{
    random_case(r, t, KR_RANDOM_UNIFORM, -0.5, 2);
}
CASE(random_normal)
{
    random_case(r, t, KR_RANDOM_NORMAL, 0.25, 1.5);
}

/* ---- numbers that are not finite ---- */

CASE(finite)
{
    static const kr_dtype dtypes[] = { KR_DTYPE_F32, KR_DTYPE_F64, KR_DTYPE_BF16, KR_DTYPE_F16 };
    enum { N = 1291, TRIALS = 4 };
    double values[N], found[TRIALS][4];
    kr_ctx *ctx = kr_tape_ctx(t);
    for (int i = 0; i < N; i++) values[i] = (double)(i % 64 - 32) / 16;
    for (int trial = 0; trial < TRIALS; trial++) { /* none; the last; one before it; the first */
        if (trial == 1) values[N - 1] = INFINITY;
        if (trial == 2) values[611] = NAN;
        if (trial == 3) values[0] = -INFINITY;
        for (int d = 0; d < 4; d++) {
            int64_t first = -2;
            const kr_tensor *x = kr_cast(t, kr_from_data(t, KR_DTYPE_F64, KR_SHAPE(N), values), dtypes[d]);
            if (!x || !kr_find_not_finite(ctx, dtypes[d], x->data, N, &first)) return;
            found[trial][d] = (double)first;
        }
    }
    vector_out_values(r, 0, KR_SHAPE(TRIALS, 4), found[0]);
}

static const vector_case cases[] = {
    ROW(decode_linear, "decode_linear"), ROW(decode_ssd, "decode_ssd"), ROW(decode_scan, "decode_scan"),
    ROW(decode_mamba3, "decode_mamba3"), ROW(sample, "sample"),         ROW(random_uniform, "random"),
    ROW(random_normal, "random"),        ROW(finite, "finite"),         ROW(sample_changes, "sample"),
};
const vector_table vector_kernels = { cases, sizeof cases / sizeof *cases, 3001 };
