/* test_multi_gate.c - gated residual streams against plain loops, their gradients, how they begin, what is refused. */
#include "tests/harness.h"
#include "tests/nn/differences.h"

#include "nn/multi_gate.h"

enum { NB = 2, NS = 3, ND = 6, NQ = 4, ROWS = NB * NS, SIZE = ROWS * ND };

#define EPS 1e-3 /* large enough to be missed if it were left out */

typedef struct made {
    kr_params *params;
    kr_multi_gate gate;
    kr_tensor *x[NQ + 3]; /* the input and what layers add, as parameters so that their gradients are looked at too */
} made;

static made make(kr_ctx *ctx, kr_dtype dtype, int64_t n_stream)
{
    made m = { .params = kr_params_create(ctx) };
    const kr_residual residual = { .kind = KR_RESIDUAL_MULTI_GATE,
                                   .n_stream = n_stream,
                                   .init_bias = -0.5,
                                   .init_bias_step = 0.25,
                                   .per_virtual_layer = false };
    kr_multi_gate_declare(&m.gate, m.params, dtype, ND, EPS, &residual);
    kr_params_seal(m.params);
    for (int i = 0; i < NQ + 3; i++) {
        m.x[i] = kr_param_create(ctx, dtype, KR_SHAPE(NB, NS, ND));
        kr_param_normal(m.x[i], 0.1 * i, 1);
    }
    CHECK_OK(ctx);
    return m;
}

static void unmake(made *m)
{
    for (int i = 0; i < NQ + 3; i++) kr_param_destroy(m->x[i]);
    kr_params_destroy(m->params);
}

static void scatter(made *m)
{
    kr_param_normal(m->gate.w_alpha_d, 0, 2);
    kr_param_normal(m->gate.w_beta_d, 0, 2);
}

/* All of the scheme: n_stream streams are gathered, then mixed; the last pool is the result. */
static kr_tensor *run(kr_tape *tape, const made *m, int64_t n_stream)
{
    kr_tensor *streams[NQ + 3] = { m->x[0] }, *h = m->x[0];
    int64_t n = 1;
    for (int layer = 1; layer < NQ + 3; layer++) {
        if (n < n_stream) streams[n++] = m->x[layer];
        else kr_multi_gate_mix(tape, &m->gate, n, streams, m->x[layer]);
        h = kr_multi_gate_pool(tape, &m->gate, n, streams);
    }
    return h;
}

/* ---- the same in plain C ---- */

static double score(const double *s, const double *w)
{
    double dot = 0, square = 0;
    for (int i = 0; i < ND; i++) {
        dot += s[i] * w[i];
        square += s[i] * s[i];
    }
    return dot / sqrt((double)ND) / sqrt(square / ND + EPS);
}

static void pool_row(const made *m, int64_t n, double (*streams)[ND], double *h)
{
    const double *w = kr_test_copy(m->gate.w_alpha_d);
    double weight[NQ + 3], sum = 0;
    for (int64_t q = 0; q < n; q++) sum += weight[q] = exp(score(streams[q], w));
    for (int i = 0; i < ND; i++) {
        h[i] = 0;
        for (int64_t q = 0; q < n; q++) h[i] += weight[q] / sum * streams[q][i];
    }
}

static void mix_row(const made *m, int64_t n, double (*streams)[ND], const double *f)
{
    const double *w = kr_test_copy(m->gate.w_beta_d), *bias = kr_test_copy(m->gate.b_beta_q);
    for (int64_t q = 0; q < n; q++) {
        const double beta = 1 / (1 + exp(-score(streams[q], w) - bias[q]));
        for (int i = 0; i < ND; i++) streams[q][i] = (1 - beta) * streams[q][i] + beta * f[i];
    }
}

static void run_row(const made *m, int64_t n_stream, int row, double *h)
{
    double streams[NQ + 3][ND];
    memcpy(streams[0], (double *)kr_test_copy(m->x[0]) + row * ND, sizeof streams[0]);
    int64_t n = 1;
    for (int layer = 1; layer < NQ + 3; layer++) {
        const double *f = (double *)kr_test_copy(m->x[layer]) + row * ND;
        if (n < n_stream) memcpy(streams[n++], f, sizeof streams[0]);
        else mix_row(m, n, streams, f);
        pool_row(m, n, streams, h);
    }
}

TEST(against_plain_loops)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int64_t n_stream = 1; n_stream <= NQ + 3; n_stream++) {
        made m = make(ctx, KR_DTYPE_F64, n_stream);
        scatter(&m);
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        double want[SIZE], *got = kr_test_values(run(tape, &m, n_stream));
        for (int row = 0; row < ROWS; row++) run_row(&m, n_stream, row, want + row * ND);
        CHECK_CLOSE("streams", got, want, SIZE, NULL, 1e-13, 1); /* some dozen roundings of f64 */
        free(got);
        CHECK_OK(ctx);
        kr_tape_destroy(tape);
        unmake(&m);
    }
    kr_ctx_destroy(ctx);
}

TEST(begins_as_the_mean)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    made m = make(ctx, KR_DTYPE_F64, NQ);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *mean = m.x[0], *streams[NQ];
    for (int q = 0; q < NQ; q++) streams[q] = m.x[q];
    for (int q = 1; q < NQ; q++) mean = kr_add(tape, mean, m.x[q]);
    CHECK_TENSORS("pool", kr_multi_gate_pool(tape, &m.gate, NQ, streams), kr_scale(tape, mean, 1.0 / NQ), 1e-15, 1);
    /* and each stream moves by its bias alone */
    kr_multi_gate_mix(tape, &m.gate, NQ, streams, m.x[NQ]);
    for (int q = 0; q < NQ; q++) {
        const double beta = 1 / (1 + exp(0.5 - 0.25 * q));
        kr_tensor *want = kr_add(tape, kr_scale(tape, m.x[q], 1 - beta), kr_scale(tape, m.x[NQ], beta));
        CHECK_TENSORS("mix", streams[q], want, 1e-15, 1);
    }
    CHECK(kr_multi_gate_pool(tape, &m.gate, 1, m.x) == m.x[0], "one stream is its own pool");
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    unmake(&m);
    kr_ctx_destroy(ctx);
}

TEST(equal_streams_are_their_pool)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    made m = make(ctx, KR_DTYPE_F32, NQ);
    scatter(&m);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *streams[NQ] = { m.x[0], m.x[0], m.x[0], m.x[0] };
    /* the weights are exactly 1/4 */
    CHECK_SAME_BITS("pool", kr_multi_gate_pool(tape, &m.gate, NQ, streams), m.x[0]);
    kr_tape_destroy(tape);
    unmake(&m);
    kr_ctx_destroy(ctx);
}

typedef struct task {
    made m;
    int64_t n_stream;
} task;

static kr_tensor *loss(kr_tape *tape, void *user)
{
    const task *k = user;
    return differences_weigh(tape, run(tape, &k->m, k->n_stream), 0);
}

/* Differences in f64 are good to some 1e-9 with weights of this size. */
TEST(gradients)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int64_t n_stream = 2; n_stream <= NQ; n_stream += 2) {
        task k = { make(ctx, KR_DTYPE_F64, n_stream), n_stream };
        const char *names[NQ + 3] = { "x", "F1", "F2", "F3", "F4", "F5", "F6" };
        scatter(&k.m);
        differences_check_table(ctx, loss, &k, k.m.params, 10, 1e-7);
        differences_check(ctx, loss, &k, NQ + 3, k.m.x, names, 8, 1e-7);
        unmake(&k.m);
    }
    kr_ctx_destroy(ctx);
}

/* Streams of halves stay halves under gates in f32. */
TEST(types)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    made m = make(ctx, KR_DTYPE_F32, 2);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *streams[2] = { kr_cast(tape, m.x[0], KR_DTYPE_BF16), kr_cast(tape, m.x[1], KR_DTYPE_BF16) };
    kr_multi_gate_mix(tape, &m.gate, 2, streams, kr_cast(tape, m.x[2], KR_DTYPE_BF16));
    kr_tensor *h = kr_multi_gate_pool(tape, &m.gate, 2, streams);
    CHECK(kr_tensor_dtype(streams[0]) == KR_DTYPE_BF16 && kr_tensor_dtype(streams[1]) == KR_DTYPE_BF16,
          "streams keep their type");
    CHECK(kr_tensor_dtype(h) == KR_DTYPE_BF16, "so does the pool");
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    unmake(&m);
    kr_ctx_destroy(ctx);
}

TEST(rows_of_the_table)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    made m = make(ctx, KR_DTYPE_F64, NQ);
    double *bias = kr_test_values(m.gate.b_beta_q);
    for (int q = 0; q < NQ; q++) CHECK(bias[q] == -0.5 + 0.25 * q, "b_beta[%d] = %g", q, bias[q]);
    free(bias);
    const char *names[3] = { "w_beta", "w_alpha", "b_beta" };
    for (int i = 0; i < 3; i++) {
        const kr_param_row *row = kr_params_at(m.params, i);
        CHECK(strcmp(row->name, names[i]) == 0 && !row->has_decay && row->n_segments == 0, "row %d is %s", i,
              row->name);
    }
    unmake(&m);
    kr_ctx_destroy(ctx);
}

TEST(depth_bias)
{
    CHECK(fabs(kr_multi_gate_depth_bias(13, 4) + 2.5329) < 5e-5, "(13, 4) gives %g", kr_multi_gate_depth_bias(13, 4));
    CHECK(fabs(kr_multi_gate_depth_bias(21, 1) + 3) < 1e-14, "(21, 1) gives %g", kr_multi_gate_depth_bias(21, 1));
    CHECK(isnan(kr_multi_gate_depth_bias(1, 5)) && isnan(kr_multi_gate_depth_bias(0, 1)) &&
              isnan(kr_multi_gate_depth_bias(-3, 1)) && isnan(kr_multi_gate_depth_bias(21, 0)),
          "too few layers");
    CHECK(!isnan(kr_multi_gate_depth_bias(1, 4)), "just enough");
}

TEST(residual_errors)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const struct {
        kr_residual residual;
        const char *text;
    } cases[] = {
        { { .kind = (kr_residual_kind)2,
            .n_stream = 2,
            .init_bias = 0,
            .init_bias_step = 0,
            .per_virtual_layer = false },
          "op: residual.kind = 2 is neither standard nor multi-gate" },
        { { .kind = KR_RESIDUAL_MULTI_GATE,
            .n_stream = 0,
            .init_bias = 0,
            .init_bias_step = 0,
            .per_virtual_layer = false },
          "op: residual.n_stream = 0, but must be at least 1" },
        { { .kind = KR_RESIDUAL_MULTI_GATE,
            .n_stream = 2,
            .init_bias = NAN,
            .init_bias_step = 0,
            .per_virtual_layer = false },
          "op: residual.init_bias = nan, but must be finite" },
        { { .kind = KR_RESIDUAL_MULTI_GATE,
            .n_stream = 2,
            .init_bias = 0,
            .init_bias_step = INFINITY,
            .per_virtual_layer = false },
          "op: residual.init_bias_step = inf, but must be finite" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(!kr_residual_check(ctx, "op", &cases[i].residual), "case %zu", i);
        CHECK_ERROR(ctx, KR_ERR_ARG, cases[i].text);
    }
    const kr_residual good[] = { { .kind = KR_RESIDUAL_STANDARD,
                                   .n_stream = 0,
                                   .init_bias = 0,
                                   .init_bias_step = 0,
                                   .per_virtual_layer = false },
                                 { .kind = KR_RESIDUAL_MULTI_GATE,
                                   .n_stream = 1,
                                   .init_bias = -3,
                                   .init_bias_step = 0,
                                   .per_virtual_layer = true } };
    for (int i = 0; i < 2; i++) CHECK(kr_residual_check(ctx, "op", &good[i]), "good %d", i);
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}
