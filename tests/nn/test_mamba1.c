/* test_mamba1.c - the Mamba-1 block against its recurrence, written out here in plain C and f64, token by token:
 *
 *   [x | z] = W_in u;  x = silu(conv(x));  [low | B | C] = W_x x;  dt = clamp(log(1 + exp(W_dt low + bias)))
 *   H[c,q] <- exp(dt[c] A[c,q]) H[c,q] + dt[c] B[q] x[c];  y[c] = sum_q C[q] H[c,q] + D[c] x[c]
 *   out = W_out (y silu(z))
 * low, B and C are divided by their RMS if asked; where a token is padding, u is 0 and so is x after silu.
 */
#include "nn/block_impl.h"
#include "tests/nn/mamba1_cases.h"

enum { MAX_WIDTH = 96 };

/* ---- the recurrence ---- */

/* The numbers of a block; NULL where it has no such parameter. */
typedef struct model {
    int64_t nd, ni, nr, nk, nx;
    double low, high; /* limits of dt */
    double norm_eps;  /* 0: no norm */
    double *p[NPARAMS];
} model;

static model model_of(const kr_mamba1 *block, const kr_mamba1_config *c)
{
    model m = { .nd = c->d_model,
                .ni = c->d_inner ? c->d_inner : c->expand * c->d_model,
                .nr = c->state_rank,
                .nk = c->conv_kernel,
                .nx = kr_tensor_dim(mamba1_param(block, DT_PROJ), 1),
                .low = c->dt_limit_min,
                .high = c->dt_limit_max,
                .norm_eps = c->bcdt_norm_eps };
    for (int i = 0; i < NPARAMS; i++)
        if (mamba1_param(block, i)) m.p[i] = kr_test_values(mamba1_param(block, i));
    return m;
}

static void model_free(model *m)
{
    for (int i = 0; i < NPARAMS; i++) free(m->p[i]);
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

/* y = weight x + bias; weight [n_out n_in]. */
static void linear(const double *weight, const double *bias, int64_t n_out, int64_t n_in, const double *x, double *y)
{
    for (int64_t o = 0; o < n_out; o++) {
        y[o] = bias ? bias[o] : 0;
        for (int64_t i = 0; i < n_in; i++) y[o] += weight[o * n_in + i] * x[i];
    }
}

static int nbelow, nabove, nfree; /* steps by where the limits find them */

static double limited(const model *m, double dt)
{
    nbelow += dt < m->low;
    nabove += dt > m->high;
    nfree += dt > m->low && dt < m->high;
    return fmin(fmax(dt, m->low), m->high);
}

static void norm(const model *m, double *x, int64_t count)
{
    double square = 0;
    for (int64_t i = 0; i < count; i++) square += x[i] * x[i];
    for (int64_t i = 0; m->norm_eps > 0 && i < count; i++) x[i] /= sqrt(square / (double)count + m->norm_eps);
}

/* One token; window [i k] and state [i r] are carried on. */
static void token(const model *m, const double *read, bool is_padding, double *window, double *state, double *out)
{
    double u[MAX_WIDTH];
    for (int64_t i = 0; i < m->nd; i++) u[i] = is_padding ? 0 : read[i];
    const int64_t ni = m->ni, nr = m->nr, nk = m->nk, nx = m->nx;
    double xz[2 * MAX_WIDTH], x[MAX_WIDTH], selected[3 * MAX_WIDTH], dt[MAX_WIDTH], y[MAX_WIDTH];
    linear(m->p[IN], m->p[IN_BIAS], 2 * ni, m->nd, u, xz);
    for (int64_t c = 0; c < ni; c++) {
        double *row = window + c * nk, sum = m->p[CONV_BIAS] ? m->p[CONV_BIAS][c] : 0;
        memmove(row, row + 1, (size_t)(nk - 1) * sizeof *row);
        row[nk - 1] = xz[c];
        for (int64_t j = 0; j < nk; j++) sum += m->p[CONV][c * nk + j] * row[j];
        x[c] = is_padding ? 0 : silu(sum);
    }
    linear(m->p[X_PROJ], NULL, nx + 2 * nr, ni, x, selected);
    const double *in_map = selected + nx, *out_map = in_map + nr;
    norm(m, selected, nx);
    norm(m, selected + nx, nr);
    norm(m, selected + nx + nr, nr);
    linear(m->p[DT_PROJ], m->p[DT_BIAS], ni, nx, selected, dt);
    for (int64_t c = 0; c < ni; c++) {
        dt[c] = limited(m, log(1 + exp(dt[c])));
        double sum = 0;
        for (int64_t q = 0; q < nr; q++) {
            double *h = state + c * nr + q;
            *h = exp(-dt[c] * exp(m->p[A_LOG][c * nr + q])) * *h + dt[c] * in_map[q] * x[c];
            sum += out_map[q] * *h;
        }
        y[c] = (sum + m->p[SKIP_D][c] * x[c]) * silu(xz[ni + c]);
    }
    linear(m->p[OUT], m->p[OUT_BIAS], m->nd, ni, y, out);
}

/* ---- a block and the recurrence, side by side ---- */

static void *must_alloc(int64_t count)
{
    double *p = calloc((size_t)count, sizeof *p);
    if (!p) exit(2);
    return p;
}

/* y, window, state as numbers, for the rows of u. */
typedef struct results {
    double *y, *window, *state;
} results;

static void results_free(results *r)
{
    free(r->y);
    free(r->window);
    free(r->state);
}

static results results_of(const kr_mamba1_out *out)
{
    return (results){ kr_test_values(out->y), kr_test_values(out->cache.conv_bik), kr_test_values(out->cache.ssm_bir) };
}

/* The recurrence over u [b s d] from a cache, or NULL. start [b s] begins sequences, each with caches of its own; NULL:
 * none but each row. mask [b s] is 0 where a token is padding; NULL: nowhere. */
static results recurrence(const model *m, const kr_tensor *u_bsd, const int32_t *start, const int32_t *mask,
                          const kr_mamba1_cache *cache)
{
    const int64_t nb = kr_tensor_dim(u_bsd, 0), ns = kr_tensor_dim(u_bsd, 1), nd = m->nd;
    const int64_t nw = m->ni * m->nk, nh = m->ni * m->nr;
    int64_t nq = 0;
    for (int64_t at = 0; at < nb * ns; at++) nq += at % ns == 0 || (start && start[at]);
    double *u = kr_test_values(u_bsd);
    results r = { must_alloc(nb * ns * nd), NULL, NULL };
    r.window = cache ? kr_test_values(cache->conv_bik) : must_alloc(nq * nw);
    r.state = cache ? kr_test_values(cache->ssm_bir) : must_alloc(nq * nh);
    for (int64_t q = 0; !cache && m->p[INIT_STATE] && q < nq; q++)
        memcpy(r.state + q * nh, m->p[INIT_STATE], (size_t)nh * sizeof *r.state);
    int64_t q = -1;
    for (int64_t at = 0; at < nb * ns; at++) {
        q += at % ns == 0 || (start && start[at]);
        token(m, u + at * nd, mask && !mask[at], r.window + q * nw, r.state + q * nh, r.y + at * nd);
    }
    free(u);
    return r;
}

static void compare(const char *what, const results *got, const results *want, const kr_mamba1_out *out,
                    double tolerance)
{
    const kr_tensor *tensors[3] = { out->y, out->cache.conv_bik, out->cache.ssm_bir };
    const double *values[3] = { got->y, got->window, got->state }, *wants[3] = { want->y, want->window, want->state };
    static const char *const parts[3] = { "y", "window", "state" };
    for (int i = 0; i < 3; i++) {
        char text[96];
        const kr_shape shape = kr_tensor_shape(tensors[i]);
        snprintf(text, sizeof text, "%s, %s", what, parts[i]);
        CHECK_CLOSE(text, values[i], wants[i], kr_tensor_count(tensors[i]), &shape, tolerance, 1e-3);
    }
}

static kr_mamba1_cache random_cache(kr_tape *tape, const kr_mamba1 *block, int64_t batch)
{
    const kr_mamba1_cache zeros = kr_mamba1_initial_cache(tape, block, batch);
    return (kr_mamba1_cache){
        kr_randn(tape, kr_tensor_dtype(zeros.conv_bik), kr_tensor_shape(zeros.conv_bik)),
        kr_randn(tape, kr_tensor_dtype(zeros.ssm_bir), kr_tensor_shape(zeros.ssm_bir)),
    };
}

/* The type of x for a block of a type: halves take f32 here, so that only the weights are rounded, which the recurrence
 * reads as they are. */
static kr_dtype input_dtype(kr_dtype block)
{
    return block == KR_DTYPE_F64 ? KR_DTYPE_F64 : KR_DTYPE_F32;
}

/* Sums of at most 64 terms through three projections and five tokens: some hundred roundings, each of 1e-16 or 6e-8, in
 * all directions, so about ten of them together; and ten times that. */
static double tolerance_of(kr_dtype block)
{
    return block == KR_DTYPE_F64 ? 1e-14 : 5e-6;
}

static void check_forward(kr_ctx *ctx, const mamba1_case *k, kr_dtype dtype, bool from_cache)
{
    const kr_mamba1_config config = mamba1_case_config(k, dtype);
    kr_mamba1 *block = mamba1_scattered(ctx, &config);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x_bsd = kr_randn(tape, input_dtype(dtype), KR_SHAPE(2, 5, config.d_model));
    const kr_mamba1_cache cache = random_cache(tape, block, 2), *given = from_cache ? &cache : NULL;
    model m = model_of(block, &config);
    nbelow = nabove = nfree = 0;
    results want = recurrence(&m, x_bsd, NULL, NULL, given);
    CHECK(!k->with_dt_limits || (nbelow && nabove && nfree), "%s: %d steps below, %d above, %d between", k->name,
          nbelow, nabove, nfree);
    char what[96];

    const kr_mamba1_out whole = kr_mamba1_forward(tape, block, x_bsd, given);
    if (went_well(ctx)) {
        results got = results_of(&whole);
        snprintf(what, sizeof what, "%s, %s, forward from %s", k->name, kr_dtype_name(dtype),
                 from_cache ? "a cache" : "zero");
        compare(what, &got, &want, &whole, tolerance_of(dtype));
        results_free(&got);
    }

    kr_mamba1_out step = { NULL, cache };
    kr_tensor *y[5];
    for (int64_t s = 0; s < 5; s++) {
        kr_tensor *x_bd = kr_reshape(tape, kr_slice(tape, x_bsd, 1, s, s + 1), KR_SHAPE(2, config.d_model));
        step = kr_mamba1_step(tape, block, x_bd, s == 0 ? given : &step.cache);
        y[s] = kr_reshape(tape, step.y, KR_SHAPE(2, 1, config.d_model));
    }
    step.y = kr_concat(tape, 1, 5, y);
    if (went_well(ctx)) {
        results got = results_of(&step);
        snprintf(what, sizeof what, "%s, %s, steps from %s", k->name, kr_dtype_name(dtype),
                 from_cache ? "a cache" : "zero");
        compare(what, &got, &want, &step, tolerance_of(dtype));
        results_free(&got);
    }
    results_free(&want);
    model_free(&m);
    kr_tape_destroy(tape);
    kr_mamba1_destroy(block);
}

TEST(mamba1_is_its_recurrence)
{
    static const kr_dtype dtypes[] = { KR_DTYPE_F64, KR_DTYPE_F32, KR_DTYPE_BF16, KR_DTYPE_F16 };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int i = 0; i < NCASES; i++)
        for (int t = 0; t < 4; t++)
            for (int c = 0; c < 2; c++) check_forward(ctx, &mamba1_cases[i], dtypes[t], c);
    kr_ctx_destroy(ctx);
}

/* Packed rows against the recurrence over each sequence. */
static void check_packed(kr_ctx *ctx, const mamba1_case *k, bool from_cache)
{
    enum { NB = 2, NS = 9, NQ = 6 };
    static const int32_t start[NB * NS] = { 0, 0, 0, 5, 0, -1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1 };
    const kr_mamba1_config config = mamba1_case_config(k, KR_DTYPE_F64);
    kr_mamba1 *block = mamba1_scattered(ctx, &config);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x_bsd = kr_randn(tape, KR_DTYPE_F64, KR_SHAPE(NB, NS, config.d_model));
    kr_tensor *start_bs = kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(NB, NS), start);
    const kr_mamba1_cache cache = random_cache(tape, block, NQ), *given = from_cache ? &cache : NULL;
    model m = model_of(block, &config);
    results want = recurrence(&m, x_bsd, start, NULL, given);
    const kr_mamba1_out out = kr_mamba1_forward_packed(tape, block, x_bsd, start_bs, given);
    if (went_well(ctx)) {
        char what[96];
        results got = results_of(&out);
        snprintf(what, sizeof what, "%s, packed, from %s", k->name, from_cache ? "caches" : "zero");
        compare(what, &got, &want, &out, tolerance_of(KR_DTYPE_F64));
        results_free(&got);
    }
    results_free(&want);
    model_free(&m);
    kr_tape_destroy(tape);
    kr_mamba1_destroy(block);
}

TEST(mamba1_packed_is_its_recurrence)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int i = 0; i < NCASES; i++)
        for (int c = 0; c < 2; c++) check_packed(ctx, &mamba1_cases[i], c);
    kr_ctx_destroy(ctx);
}

/* Padding on the left, on the right, between, and all of a row; with packed rows in every other case. */
static void check_masked(kr_ctx *ctx, const mamba1_case *k, bool is_packed)
{
    enum { NB = 4, NS = 6 };
    static const int32_t mask[NB * NS] = { 0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 0, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0 };
    static const int32_t start[NB * NS] = { 1, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1 };
    const kr_mamba1_config config = mamba1_case_config(k, KR_DTYPE_F64);
    kr_mamba1 *block = mamba1_scattered(ctx, &config);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *mask_bs = kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(NB, NS), mask);
    const kr_block_input input = {
        .op = "masked",
        .x_bsd = kr_randn(tape, KR_DTYPE_F64, KR_SHAPE(NB, NS, config.d_model)),
        .mask_bs1 = kr_reshape(tape, kr_cast(tape, mask_bs, KR_DTYPE_F64), KR_SHAPE(NB, NS, 1)),
        .seq_start_bs = is_packed ? kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(NB, NS), start) : NULL,
    };
    model m = model_of(block, &config);
    results want = recurrence(&m, input.x_bsd, is_packed ? start : NULL, mask, NULL);
    const kr_block_result boxed = kr_mamba1_kind.forward(tape, block, &input);
    const kr_mamba1_out out = { boxed.y_bsd, boxed.cache.mamba1 };
    if (went_well(ctx)) {
        char what[96];
        results got = results_of(&out);
        snprintf(what, sizeof what, "%s, masked%s", k->name, is_packed ? ", packed" : "");
        compare(what, &got, &want, &out, tolerance_of(KR_DTYPE_F64));
        results_free(&got);
    }
    results_free(&want);
    model_free(&m);
    kr_tape_destroy(tape);
    kr_mamba1_destroy(block);
}

TEST(mamba1_masked_is_its_recurrence)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int i = 0; i < NCASES; i++) check_masked(ctx, &mamba1_cases[i], i % 2);
    kr_ctx_destroy(ctx);
}

/* ---- what a cache is for ---- */

TEST(mamba1_reads_its_cache)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_mamba1_config config = mamba1_case_config(&mamba1_cases[0], KR_DTYPE_F32);
    kr_mamba1 *block = kr_mamba1_create(ctx, &config);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x_bsd = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(2, 5, config.d_model));
    const kr_mamba1_cache initial = kr_mamba1_initial_cache(tape, block, 2), random = random_cache(tape, block, 2);
    const kr_mamba1_cache of_window = { random.conv_bik, initial.ssm_bir },
                          of_state = { initial.conv_bik, random.ssm_bir };
    const kr_mamba1_cache *const caches[3] = { &random, &of_window, &of_state };
    static const char *const what[3] = { "cache", "window", "state" };
    const kr_mamba1_out zero = kr_mamba1_forward(tape, block, x_bsd, NULL);
    for (int i = 0; i < 3; i++) {
        const kr_mamba1_out out = kr_mamba1_forward(tape, block, x_bsd, caches[i]);
        kr_tensor *apart = kr_sub(tape, out.y, zero.y);
        apart = kr_max(tape, kr_maximum(tape, apart, kr_neg(tape, apart)), KR_ALL_AXES, false);
        CHECK(kr_item(apart) > 1e-3, "a random %s moves the outputs by %g only", what[i], kr_item(apart));
    }
    went_well(ctx);
    kr_tape_destroy(tape);
    kr_mamba1_destroy(block);
    kr_ctx_destroy(ctx);
}

/* NULL is kr_mamba1_initial_cache, to the bit, for every type of block and of x; the learned state is added once. */
static void check_initial_cache(kr_ctx *ctx, const mamba1_case *k, kr_dtype dtype, kr_dtype x_dtype)
{
    const kr_mamba1_config config = mamba1_case_config(k, dtype);
    kr_mamba1 *block = mamba1_scattered(ctx, &config);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x_bsd = kr_randn(tape, x_dtype, KR_SHAPE(2, 6, config.d_model));
    const kr_mamba1_cache initial = kr_mamba1_initial_cache(tape, block, 2);
    const kr_mamba1_out got = kr_mamba1_forward(tape, block, x_bsd, NULL);
    const kr_mamba1_out want = kr_mamba1_forward(tape, block, x_bsd, &initial);
    char what[96];
    snprintf(what, sizeof what, "%s, %s block, %s x: NULL and an initial cache", k->name, kr_dtype_name(dtype),
             kr_dtype_name(x_dtype));
    CHECK_SAME_BITS(what, got.y, want.y);
    CHECK_SAME_BITS(what, got.cache.conv_bik, want.cache.conv_bik);
    CHECK_SAME_BITS(what, got.cache.ssm_bir, want.cache.ssm_bir);
    const kr_dtype small = dtype == KR_DTYPE_F64 ? KR_DTYPE_F64 : KR_DTYPE_F32;
    CHECK(kr_tensor_dtype(got.cache.conv_bik) == small && kr_tensor_dtype(got.cache.ssm_bir) == small &&
              kr_tensor_dtype(initial.conv_bik) == small && kr_tensor_dtype(initial.ssm_bir) == small,
          "%s: a cache is of another type than %s", what, kr_dtype_name(small));
    went_well(ctx);
    kr_tape_destroy(tape);
    kr_mamba1_destroy(block);
}

TEST(mamba1_without_a_cache_is_initial)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int i = 0; i < NCASES; i++) {
        check_initial_cache(ctx, &mamba1_cases[i], KR_DTYPE_F64, KR_DTYPE_F64);
        check_initial_cache(ctx, &mamba1_cases[i], KR_DTYPE_F32, KR_DTYPE_F32);
        check_initial_cache(ctx, &mamba1_cases[i], KR_DTYPE_BF16, KR_DTYPE_BF16);
        check_initial_cache(ctx, &mamba1_cases[i], KR_DTYPE_BF16, KR_DTYPE_F32);
        check_initial_cache(ctx, &mamba1_cases[i], KR_DTYPE_F16, KR_DTYPE_F16);
    }
    kr_ctx_destroy(ctx);
}
