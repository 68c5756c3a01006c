/* test_laws.c - what must hold to the bit: any number of threads, any neighbours, any layout, the same seed. */
#include "tests/ops/cases.h"

#include <pthread.h>

enum { VOCAB = 50, WIDTH = 48, INNER = 96, TAPS = 4 };

/* What another order of sums of some hundred floats may change, relative to the largest of a tensor. */
#define ORDER 1e-5

/* Weights of a small block: embedding, projection, convolution, gated norm, attention-like products, reductions. */
typedef struct block {
    kr_tensor *table_wd, *in_id, *gate_id, *bias_i, *conv_ik, *conv_bias_i, *gain_i, *out_di;
} block;
enum { NWEIGHTS = sizeof(block) / sizeof(kr_tensor *) };

static kr_tensor *weight(kr_ctx *ctx, kr_shape shape)
{
    kr_tensor *w = kr_param_create(ctx, KR_DTYPE_F32, shape);
    kr_param_normal(w, 0, 0.3);
    return w;
}

static block block_create(kr_ctx *ctx)
{
    kr_ctx_seed(ctx, 7);
    block m = { .table_wd = weight(ctx, KR_SHAPE(VOCAB, WIDTH)) };
    m.in_id = weight(ctx, KR_SHAPE(INNER, WIDTH));
    m.gate_id = weight(ctx, KR_SHAPE(INNER, WIDTH));
    m.bias_i = weight(ctx, KR_SHAPE(INNER));
    m.conv_ik = weight(ctx, KR_SHAPE(INNER, TAPS));
    m.conv_bias_i = weight(ctx, KR_SHAPE(INNER));
    m.gain_i = weight(ctx, KR_SHAPE(INNER));
    m.out_di = weight(ctx, KR_SHAPE(WIDTH, INNER));
    return m;
}

static void block_destroy(block *m)
{
    kr_tensor **w = (kr_tensor **)m;
    for (int i = 0; i < NWEIGHTS; i++) kr_param_destroy(w[i]);
}

static kr_tensor *block_forward(kr_tape *t, const block *m, kr_tensor *id_bs)
{
    kr_tensor *x_bsd = kr_embedding(t, m->table_wd, id_bs);
    kr_tensor *z_bsi = kr_linear(t, x_bsd, m->gate_id, NULL);
    kr_tensor *u_bsi = kr_linear(t, x_bsd, m->in_id, m->bias_i);
    u_bsi = kr_causal_conv(t, u_bsi, m->conv_ik, m->conv_bias_i, NULL, NULL, true).y_bsv;
    kr_norm_options o;
    kr_norm_options_init(&o);
    o.groups = 2;
    u_bsi = kr_gated_norm(t, u_bsi, z_bsi, m->gain_i, &o);
    kr_tensor *a_bss = kr_softmax(t, kr_scale(t, kr_matmul(t, u_bsi, kr_transpose(t, z_bsi)), 0.1), -1);
    u_bsi = kr_add(t, u_bsi, kr_matmul(t, a_bss, u_bsi));
    kr_tensor *y_bsd = kr_linear(t, kr_mul(t, u_bsi, kr_softplus(t, z_bsi)), m->out_di, NULL);
    y_bsd = kr_add(t, kr_rms_norm(t, y_bsd, NULL, NULL), kr_tanh(t, kr_cumsum(t, y_bsd, 1)));
    kr_tensor *mean_b1d = kr_mean(t, y_bsd, KR_AXES(1), true), *max_bs1 = kr_max(t, y_bsd, KR_AXES(2), true);
    return kr_add(t, kr_sub(t, y_bsd, mean_b1d), kr_log_sigmoid(t, max_bs1));
}

static kr_tensor *tokens(kr_tape *t, int64_t nb, int64_t ns, int64_t shift)
{
    int32_t id[4096];
    for (int64_t i = 0; i < nb * ns; i++) id[i] = (int32_t)((i * i * 7 + i * 3 + shift) % VOCAB);
    return kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(nb, ns), id);
}

/* Output, then the gradient of every weight. */
static void run_block(int threads, const char *isa, int64_t nb, int64_t ns, double **values, int64_t *counts)
{
    kr_ctx *ctx = kr_test_ctx(threads, isa);
    CHECK(kr_ctx_threads(ctx) == threads, "%d threads, not %d", kr_ctx_threads(ctx), threads);
    block m = block_create(ctx);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *y = block_forward(t, &m, tokens(t, nb, ns, 0));
    kr_backward_from(t, 1, &y, (kr_tensor *[]){ kr_randn(t, KR_DTYPE_F32, kr_tensor_shape(y)) });
    CHECK_OK(ctx);
    values[0] = kr_test_values(y);
    counts[0] = kr_tensor_count(y);
    for (int i = 0; i < NWEIGHTS; i++) {
        const kr_tensor *g = kr_grad(((kr_tensor **)&m)[i]);
        CHECK(g != NULL, "weight %d has no gradient", i);
        values[1 + i] = kr_test_values(g);
        counts[1 + i] = kr_tensor_count(g);
    }
    kr_tape_destroy(t);
    block_destroy(&m);
    kr_ctx_destroy(ctx);
}

TEST(threads_change_no_bit)
{
    const char *isas[8];
    const int nisas = case_isas(isas);
    for (int n = 0; n < nisas; n++) {
        double *one[1 + NWEIGHTS], *many[1 + NWEIGHTS];
        int64_t counts[1 + NWEIGHTS];
        const int64_t nb = kr_test_quick() ? 2 : 5, ns = 67;
        run_block(1, isas[n], nb, ns, one, counts);
        for (int threads = 2; threads <= 3; threads++) {
            run_block(threads, isas[n], nb, ns, many, counts);
            for (int i = 0; i <= NWEIGHTS; i++) {
                CHECK(memcmp(one[i], many[i], (size_t)counts[i] * sizeof(double)) == 0,
                      "%s: %d threads change result %d (0 is the output, then the weights)", isas[n], threads, i);
                free(many[i]);
            }
        }
        for (int i = 0; i <= NWEIGHTS; i++) free(one[i]);
    }
}

/* Contexts share nothing: two of them at once, each on a thread of its own, give what one gives alone. */
typedef struct solo {
    double *values[1 + NWEIGHTS];
    int64_t counts[1 + NWEIGHTS];
} solo;

static void *run_solo(void *arg)
{
    solo *s = arg;
    run_block(2, NULL, 2, 33, s->values, s->counts);
    return NULL;
}

TEST(contexts_share_nothing)
{
    solo runs[3];
    pthread_t threads[2];
    run_solo(&runs[2]);
    for (int i = 0; i < 2; i++)
        if (!CHECK(pthread_create(&threads[i], NULL, run_solo, &runs[i]) == 0, "no thread")) return;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k <= NWEIGHTS; k++)
            CHECK(memcmp(runs[i].values[k], runs[2].values[k], (size_t)runs[2].counts[k] * sizeof(double)) == 0,
                  "run %d, result %d", i, k);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k <= NWEIGHTS; k++) free(runs[i].values[k]);
}

/* The row of sequence 1 alone, among others, and among other others. */
TEST(neighbours_change_no_bit)
{
    const char *isas[8];
    const int nisas = case_isas(isas);
    for (int n = 0; n < nisas; n++) {
        kr_ctx *ctx = kr_test_ctx(2, isas[n]);
        block m = block_create(ctx);
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        for (int64_t ns = 1; ns <= 40; ns += 13) {
            kr_tensor *id = tokens(t, 7, ns, 0), *row = kr_slice(t, id, 0, 1, 2);
            kr_tensor *alone = block_forward(t, &m, row);
            for (int64_t nb = 2; nb <= 7; nb++) {
                kr_tensor *among = block_forward(t, &m, kr_slice(t, id, 0, 0, nb));
                CHECK_SAME(ctx, "a row among its neighbours", kr_slice(t, among, 0, 1, 2), alone, ORDER, 1);
            }
            kr_tensor *others = kr_concat(t, 0, 2, (kr_tensor *[]){ tokens(t, 3, ns, 11), row });
            CHECK_SAME(ctx, "a row among others", kr_slice(t, block_forward(t, &m, others), 0, 3, 4), alone, ORDER, 1);
            /* as many rows as before, so that the same kernels run */
            kr_tensor *among = block_forward(t, &m, kr_slice(t, id, 0, 0, 4));
            others = kr_concat(t, 0, 2, (kr_tensor *[]){ tokens(t, 1, ns, 5), kr_slice(t, id, 0, 1, 2) });
            others = kr_concat(t, 0, 2, (kr_tensor *[]){ others, tokens(t, 2, ns, 17) });
            CHECK_SAME_BITS("a row among as many others", kr_slice(t, block_forward(t, &m, others), 0, 1, 2),
                            kr_slice(t, among, 0, 1, 2));
        }
        CHECK_OK(ctx);
        kr_tape_destroy(t);
        block_destroy(&m);
        kr_ctx_destroy(ctx);
    }
}

/* A convolution with all gradients, of x [b s v] as part of wider rows or not. */
typedef struct convolved {
    kr_tensor *x, *w, *bias, *window; /* leaves */
    kr_conv_out out;
} convolved;

static convolved convolve(kr_tape *t, kr_tensor *x, kr_tensor *w, kr_tensor *bias, kr_tensor *window,
                          kr_tensor *seq_start, bool apart)
{
    convolved c = {
        .x = kr_input(t, x), .w = kr_input(t, w), .bias = kr_input(t, bias), .window = kr_input(t, window)
    };
    kr_tensor *in = apart ? kr_slice(t, kr_pad(t, c.x, -1, 3, 5, 7), -1, 3, -5) : c.x;
    c.out = kr_causal_conv(t, in, c.w, c.bias, c.window, seq_start, true);
    return c;
}

enum { PACKED_ROW = 90, PACKED_CHANNELS = 70 };

/* Sequences of these lengths in one row, and each alone: the same bits of outputs, windows and gradients, but for those
 * of weight and bias, which are sums over all. */
static void check_packed(kr_ctx *ctx, const int64_t *lengths, int count, int64_t taps, bool apart)
{
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *x = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(1, PACKED_ROW, PACKED_CHANNELS));
    kr_tensor *g = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(1, PACKED_ROW, PACKED_CHANNELS));
    kr_tensor *windows = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(count, PACKED_CHANNELS, taps));
    kr_tensor *g_windows = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(count, PACKED_CHANNELS, taps));
    kr_tensor *w = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(PACKED_CHANNELS, taps)),
              *bias = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(PACKED_CHANNELS));
    int32_t starts[PACKED_ROW] = { 0 };
    for (int64_t q = 0, at = 0; q < count; at += lengths[q++]) starts[at] = 1;
    const convolved packed =
        convolve(t, x, w, bias, windows, kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(1, PACKED_ROW), starts), apart);
    kr_tensor *y[2 * (PACKED_ROW + 1)] = { packed.out.y_bsv, packed.out.window_bvk },
                                   *g_y[2 * (PACKED_ROW + 1)] = { g, g_windows };
    convolved alone[PACKED_ROW];
    for (int64_t q = 0, at = 0; q < count; at += lengths[q++]) {
        alone[q] = convolve(t, kr_slice(t, x, 1, at, at + lengths[q]), w, bias, kr_slice(t, windows, 0, q, q + 1), NULL,
                            false);
        y[2 * q + 2] = alone[q].out.y_bsv;
        g_y[2 * q + 2] = kr_slice(t, g, 1, at, at + lengths[q]);
        y[2 * q + 3] = alone[q].out.window_bvk;
        g_y[2 * q + 3] = kr_slice(t, g_windows, 0, q, q + 1);
    }
    kr_backward_from(t, 2 * count + 2, y, g_y);
    CHECK_OK(ctx);
    for (int64_t q = 0, at = 0; q < count; at += lengths[q++]) {
        const int64_t end = at + lengths[q];
        CHECK_SAME_BITS("y", kr_slice(t, packed.out.y_bsv, 1, at, end), alone[q].out.y_bsv);
        CHECK_SAME_BITS("window", kr_slice(t, packed.out.window_bvk, 0, q, q + 1), alone[q].out.window_bvk);
        CHECK_SAME_BITS("g_x", kr_slice(t, kr_grad(packed.x), 1, at, end), kr_grad(alone[q].x));
        CHECK_SAME_BITS("g_window", kr_slice(t, kr_grad(packed.window), 0, q, q + 1), kr_grad(alone[q].window));
    }
    kr_tape_destroy(t);
}

TEST(packed_convolution_is_the_sequences_alone)
{
    static const int64_t some[] = { 1, 2, 64, 3, 1, 1, 18 }, two[] = { 65, 25 }, most[] = { 89, 1 };
    int64_t ones[PACKED_ROW];
    for (int i = 0; i < PACKED_ROW; i++) ones[i] = 1;
    const char *isas[8];
    for (int n = case_isas(isas) - 1; n >= 0; n--) {
        kr_ctx *ctx = kr_test_ctx(2, isas[n]);
        for (int64_t taps = 1; taps <= 6; taps++) {
            check_packed(ctx, some, 7, taps, taps % 2);
            check_packed(ctx, two, 2, taps, taps % 2 == 0);
            check_packed(ctx, most, 2, taps, false);
            check_packed(ctx, ones, PACKED_ROW, taps, true);
        }
        kr_ctx_destroy(ctx);
    }
}

/* Rows of one length, one after another in a single row: every gradient has the same bits, those of the parameters too. */
TEST(packed_convolution_is_the_batch)
{
    kr_ctx *ctx = kr_test_ctx(2, NULL);
    for (int64_t ns = 1; ns < 150; ns += ns < 10 ? 1 : 23) {
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
        kr_tensor *x = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(5, ns, 33)), *w = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(33, 4));
        kr_tensor *bias = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(33)),
                  *window = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(5, 33, 4));
        int32_t starts[5 * 150] = { 0 };
        for (int64_t b = 0; b < 5; b++) starts[b * ns] = 1;
        const convolved rows = convolve(t, x, w, bias, window, NULL, false);
        const convolved row = convolve(t, kr_reshape(t, x, KR_SHAPE(1, 5 * ns, 33)), w, bias, window,
                                       kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(1, 5 * ns), starts), true);
        kr_tensor *g = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(5, ns, 33)),
                  *g_window = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(5, 33, 4));
        kr_backward_from(t, 4,
                         (kr_tensor *[]){ rows.out.y_bsv, rows.out.window_bvk, row.out.y_bsv, row.out.window_bvk },
                         (kr_tensor *[]){ g, g_window, kr_reshape(t, g, KR_SHAPE(1, 5 * ns, 33)), g_window });
        CHECK_OK(ctx);
        CHECK_SAME_BITS("y", kr_reshape(t, row.out.y_bsv, KR_SHAPE(5, ns, 33)), rows.out.y_bsv);
        CHECK_SAME_BITS("window", row.out.window_bvk, rows.out.window_bvk);
        CHECK_SAME_BITS("g_x", kr_reshape(t, kr_grad(row.x), KR_SHAPE(5, ns, 33)), kr_grad(rows.x));
        CHECK_SAME(ctx, "g_weight", kr_grad(row.w), kr_grad(rows.w), ORDER, 1);
        CHECK_SAME(ctx, "g_bias", kr_grad(row.bias), kr_grad(rows.bias), ORDER, 1);
        CHECK_SAME_BITS("g_window", kr_grad(row.window), kr_grad(rows.window));
        kr_tape_destroy(t);
    }
    kr_ctx_destroy(ctx);
}

/* A sequence in two parts, the second continued from the window of the first, is the sequence in one. */
TEST(convolution_in_parts)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(2, 11, 5)), *w = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(5, 4));
    kr_tensor *bias = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(5));
    kr_conv_out whole = kr_causal_conv(t, x, w, bias, NULL, NULL, true);
    for (int64_t at = 0; at <= 11; at++) {
        kr_conv_out first = kr_causal_conv(t, kr_slice(t, x, 1, 0, at), w, bias, NULL, NULL, true);
        kr_conv_out second = kr_causal_conv(t, kr_slice(t, x, 1, at, 11), w, bias, first.window_bvk, NULL, true);
        CHECK_SAME_BITS("outputs", kr_concat(t, 1, 2, (kr_tensor *[]){ first.y_bsv, second.y_bsv }), whole.y_bsv);
        CHECK_SAME_BITS("window", second.window_bvk, whole.window_bvk);
    }
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

/* Draws depend on the seed and on the order of the calls, not on threads, and streams do not overlap. */
TEST(same_seed_same_numbers)
{
    const kr_dtype types[] = { KR_DTYPE_F32, KR_DTYPE_F64, KR_DTYPE_BF16, KR_DTYPE_F16 };
    kr_ctx *one = kr_test_ctx(1, "ref"), *three = kr_test_ctx(3, NULL);
    for (int d = 0; d < 4; d++) {
        kr_tape *a = kr_tape_create(one, KR_TAPE_NO_GRAD), *b = kr_tape_create(three, KR_TAPE_NO_GRAD);
        kr_ctx_seed(one, 42);
        kr_ctx_seed(three, 42);
        kr_tensor *first = NULL;
        for (int call = 0; call < 3; call++) {
            const kr_shape shape = KR_SHAPE(3, 1 + 3333 * call);
            kr_tensor *x = kr_randn(a, types[d], shape), *y = kr_randn(b, types[d], shape);
            CHECK_SAME_BITS("normal draws", y, x);
            CHECK_SAME_BITS("uniform draws", kr_rand(b, types[d], shape, -1, 3), kr_rand(a, types[d], shape, -1, 3));
            if (call == 1) first = x;
        }
        kr_tensor *next = kr_randn(a, types[d], kr_tensor_shape(first));
        CHECK(kr_item(kr_max(a, kr_sub(a, next, first), KR_ALL_AXES, false)) > 0.5, "two calls draw different numbers");
        kr_ctx_seed(one, 43);
        kr_tensor *other = kr_randn(a, types[d], kr_tensor_shape(first));
        CHECK(kr_item(kr_max(a, kr_sub(a, other, first), KR_ALL_AXES, false)) > 0.5,
              "two seeds draw different numbers");
        kr_tensor *param = kr_param_create(one, types[d], KR_SHAPE(5));
        kr_ctx_seed(one, 9);
        kr_param_normal(param, 0, 1);
        kr_ctx_seed(one, 9);
        CHECK_SAME_BITS("a parameter's draws", param, kr_randn(a, types[d], KR_SHAPE(5)));
        kr_param_destroy(param);
        CHECK_OK(one);
        CHECK_OK(three);
        kr_tape_destroy(a);
        kr_tape_destroy(b);
    }
    kr_ctx_destroy(one);
    kr_ctx_destroy(three);
}

TEST(draws_have_their_moments)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    const int64_t n = 40000;
    kr_tensor *z = kr_cast(t, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(n)), KR_DTYPE_F64),
              *u = kr_rand(t, KR_DTYPE_F64, KR_SHAPE(n), 2, 4);
    /* five standard errors of the mean (1/200) and of the variance (1.4/200) */
    CHECK(fabs(kr_item(kr_mean(t, z, KR_ALL_AXES, false))) < 0.025, "mean of the normal draws");
    CHECK(fabs(kr_item(kr_mean(t, kr_mul(t, z, z), KR_ALL_AXES, false)) - 1) < 0.035, "variance of the normal draws");
    CHECK(fabs(kr_item(kr_mean(t, u, KR_ALL_AXES, false)) - 3) < 0.015, "mean of the uniform draws");
    CHECK(kr_item(kr_max(t, u, KR_ALL_AXES, false)) < 4 && kr_item(kr_max(t, kr_neg(t, u), KR_ALL_AXES, false)) <= -2,
          "uniform draws lie in [2, 4)");
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

/* Products are the one thing whose kernel a device chooses by the layout. */
static bool same_values(const kr_ctx *ctx, const kr_case *c, const double *x, const double *y, int64_t count)
{
    const bool is_product = strncmp(c->name, "matmul", 6) == 0 || strncmp(c->name, "linear", 6) == 0;
    if (!is_product || !kr_test_chooses(ctx)) return memcmp(x, y, (size_t)count * sizeof(double)) == 0;
    double worst = 0, largest = 1;
    for (int64_t i = 0; i < count; i++) {
        worst = fmax(worst, fabs(x[i] - y[i]));
        largest = fmax(largest, fabs(x[i]));
    }
    return worst <= ORDER * largest;
}

/* Every case: a view of some memory gives the bits of its row-major copy, values and gradients, on one instruction set. */
TEST(layouts_change_no_bit)
{
    const char *isas[8];
    const int nisas = case_isas(isas);
    for (int n = 0; n < nisas; n++) {
        kr_ctx *ctx = kr_test_ctx(1, isas[n]);
        for (int i = 0; i < kr_ncases; i++) {
            const kr_case *c = &kr_cases[i];
            case_input in[CASE_MAX_IN];
            case_result plain, other;
            const int n_in = case_inputs_make(c, in);
            case_execute(ctx, c, n_in, in, (case_run){ KR_DTYPE_F32, LAYOUT_PLAIN, -1, true }, &plain);
            for (int layout = LAYOUT_REVERSED; layout <= LAYOUT_FLIPPED; layout++) {
                if (!case_execute(ctx, c, n_in, in, (case_run){ KR_DTYPE_F32, (case_layout)layout, -1, true }, &other))
                    continue;
                for (int k = 0; k < plain.n_out; k++)
                    CHECK(same_values(ctx, c, plain.y[k], other.y[k], plain.y_count[k]),
                          "%s on %s: layout %d changes output %d", c->name, isas[n], layout, k);
                /* where an input has several uses, a copy on the way to one of them changes the order of the sum */
                const bool is_sum = strstr(c->name, "_tied") != NULL;
                for (int k = 0; k < plain.n_in && !is_sum; k++)
                    CHECK(same_values(ctx, c, plain.g[k], other.g[k], plain.g_count[k]),
                          "%s on %s: layout %d changes the gradient of input %d", c->name, isas[n], layout, k);
                case_result_free(&other);
            }
            case_result_free(&plain);
            case_inputs_free(n_in, in);
        }
        kr_ctx_destroy(ctx);
    }
}
