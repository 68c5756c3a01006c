/* test_seq_parallel.c - pieces of rows: a stack on several ranks computes what one rank does.
 *
 * Three runs of one stack are compared: whole rows; the pieces one after another on one rank; and on ranks, which are threads.
 * The last two give the same bits, all gradients included. The first gives the same outputs and states to the bit if the cuts
 * are multiples of the chunk length, and gradients that differ by rounding: their sums over tokens are cut, too.
 * Ranks that scan differ by rounding in everything.
 */
#define _GNU_SOURCE
#include "tests/comm/rank_threads.h"

#include <krait/experimental/testing.h>
#include <krait/krait.h>

enum { NB = 2, ND = 32, PIECES_MOST = 5, RESULTS = 4 };
enum { RESULT_Y, RESULT_STATE, RESULT_G_X, RESULT_G_WEIGHTS };
static const char *const result_names[RESULTS] = { "y", "the state", "the gradient of x", "the gradients of weights" };

typedef struct seq_case {
    const char *name;
    kr_family family;
    kr_dtype dtype;
    int64_t ns;
    int pieces;
    int64_t cuts[PIECES_MOST + 1];
    int64_t resets[4]; /* of row 1; 0: no more */
    bool is_packed;    /* the same as starts of sequences */
    bool is_recomputed, has_state, has_init, is_off_grid, has_quaternions;
    int64_t n_streams, horizon;
    kr_mamba3_pathway pathway;
    kr_seq_mode mode; /* of ranks */
} seq_case;

/* By ranks. */
static bool is_scanned(const seq_case *c)
{
    return c->mode == KR_SEQ_SCAN || (c->mode == KR_SEQ_AUTO && c->pieces > 4 && !c->has_quaternions);
}

typedef struct values {
    double *list[RESULTS];
    int64_t count[RESULTS];
} values;

static void free_values(values *v)
{
    for (int k = 0; k < RESULTS; k++) free(v->list[k]);
    *v = (values){ .count = { 0 } };
}

/* ---- one stack ---- */

static kr_layers *stack_of(kr_ctx *ctx, const seq_case *c)
{
    kr_mamba1_config mamba1;
    kr_mamba2_config mamba2;
    kr_mamba3_config mamba3;
    kr_layers_config config;
    kr_mamba1_config_init(&mamba1);
    kr_mamba2_config_init(&mamba2);
    kr_mamba3_config_init(&mamba3);
    mamba1.d_model = mamba2.d_model = mamba3.d_model = ND;
    mamba1.dtype = mamba2.dtype = mamba3.dtype = c->dtype;
    mamba1.state_rank = 4;
    mamba2.state_rank = mamba3.state_rank = 8;
    mamba2.per_head_dim = mamba3.per_head_dim = 16;
    mamba2.path.chunk_len = mamba3.path.chunk_len = 16;
    mamba1.has_learnable_init_state = mamba2.has_learnable_init_state = c->has_init;
    mamba3.has_learnable_init_state = c->has_init;
    mamba3.pathway = c->pathway;
    if (c->has_quaternions) mamba3.rotation = KR_ROTATION_QUATERNION;
    kr_layers_config_init(&config);
    config.block = c->family == KR_FAMILY_MAMBA1   ? kr_mamba1_block(&mamba1)
                   : c->family == KR_FAMILY_MAMBA2 ? kr_mamba2_block(&mamba2)
                                                   : kr_mamba3_block(&mamba3);
    config.n_layers = 3;
    if (c->n_streams) {
        config.residual.kind = KR_RESIDUAL_MULTI_GATE;
        config.residual.n_stream = c->n_streams;
    }
    if (c->horizon) config.grad_horizon = c->horizon;
    if (c->is_recomputed) config.recompute = KR_RECOMPUTE_ALL;
    kr_ctx_seed(ctx, 7);
    return kr_layers_create(ctx, &config);
}

/* The same numbers for any context: of tokens [from, to) of all rows. */
static kr_tensor *numbers(kr_tape *tape, const seq_case *c, int which, int64_t from, int64_t to)
{
    const kr_dtype dtype = c->dtype == KR_DTYPE_F64 ? KR_DTYPE_F64 : KR_DTYPE_F32;
    const int64_t n = to - from;
    float *x = calloc((size_t)(NB * n * ND), sizeof *x);
    for (int64_t b = 0; b < NB; b++)
        for (int64_t s = 0; s < n; s++)
            for (int64_t d = 0; d < ND; d++)
                x[(b * n + s) * ND + d] = sinf((float)(1 + which) * (float)(b * 131 + (from + s) * 37 + d * 11));
    kr_tensor *y = kr_cast(tape, kr_from_data(tape, KR_DTYPE_F32, KR_SHAPE(NB, n, ND), x), dtype);
    free(x);
    return y;
}

static kr_tensor *marks(kr_tape *tape, const seq_case *c, int64_t from, int64_t to)
{
    const int64_t n = to - from;
    int32_t *mark = calloc((size_t)(NB * n), sizeof *mark);
    bool is_any = false;
    for (int i = 0; i < 4; i++)
        if (c->resets[i] > from - 1 && c->resets[i] < to && c->resets[i] > 0) {
            mark[n + c->resets[i] - from] = 1;
            is_any = true;
        }
    kr_tensor *y = is_any ? kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(NB, n), mark) : NULL;
    free(mark);
    return y;
}

/* Appends x, of n elements; NULL: zeros. */
static void add_values(values *v, int k, const kr_tensor *x, int64_t n)
{
    double *from = x ? kr_test_values(x) : calloc((size_t)n, sizeof *from);
    v->list[k] = realloc(v->list[k], (size_t)(v->count[k] + n) * sizeof(double));
    memcpy(v->list[k] + v->count[k], from, (size_t)n * sizeof(double));
    v->count[k] += n;
    free(from);
}

static void keep_state(values *v, const kr_state *state)
{
    for (int64_t slot = 0; slot < kr_state_slots(state); slot++) {
        const kr_cache *cache = kr_state_cache(state, slot);
        for (int i = 0; i < (cache->family == KR_FAMILY_MAMBA3 ? 4 : 2); i++)
            add_values(v, RESULT_STATE, cache->tensors[i], kr_tensor_count(cache->tensors[i]));
    }
}

typedef struct piece_run {
    kr_tape *tape;
    kr_tensor *x, *y;
    kr_state *state, *before;
} piece_run;

static void forward(const seq_case *c, kr_layers *layers, kr_seq_parallel *seq, piece_run *r, int64_t from, int64_t to)
{
    kr_call call;
    kr_call_init(&call);
    call.seq_parallel = seq;
    r->x = kr_input(r->tape, numbers(r->tape, c, 0, from, to));
    *(c->is_packed ? &call.seq_start_bs : &call.reset_bs) = marks(r->tape, c, from, to);
    if (c->has_state) { /* on all pieces; it counts on the first */
        r->before = kr_layers_forward(r->tape, layers, numbers(r->tape, c, 2, 0, 5), NULL).state;
        call.state = r->before;
    }
    const kr_layers_out out = kr_layers_forward(r->tape, layers, r->x, &call);
    r->y = out.y;
    r->state = out.state;
}

static void backward(const seq_case *c, kr_layers *layers, const piece_run *r, int64_t from, int64_t to, values *v)
{
    kr_tensor *y = r->y, *g_y = numbers(r->tape, c, 1, from, to);
    kr_params *params = kr_layers_params(layers);
    kr_params_zero_grad(params);
    if (kr_backward_from(r->tape, 1, &y, &g_y) != KR_OK) return;
    add_values(v, RESULT_Y, r->y, kr_tensor_count(r->y));
    add_values(v, RESULT_G_X, kr_grad(r->x), kr_tensor_count(r->x));
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_tensor *weight = kr_params_at(params, i)->tensor;
        add_values(v, RESULT_G_WEIGHTS, kr_grad(weight), kr_tensor_count(weight));
    }
}

/* Rows as they are. */
static void run_whole(const seq_case *c, values *v)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_layers *layers = stack_of(ctx, c);
    piece_run r = { .tape = kr_tape_create(ctx, KR_TAPE_GRAD) };
    seq_case by_resets = *c;
    by_resets.is_packed = false; /* one state for each row, as pieces have */
    forward(&by_resets, layers, NULL, &r, 0, c->ns);
    keep_state(v, r.state);
    backward(c, layers, &r, 0, c->ns, v);
    CHECK_OK(ctx);
    kr_tape_destroy(r.tape);
    kr_layers_destroy(layers);
    kr_ctx_destroy(ctx);
}

/* Pieces one after another; v: for each. */
static void run_in_turn(const seq_case *c, values *v)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_layers *layers = stack_of(ctx, c);
    kr_seq_parallel *seq = kr_seq_parallel_create(ctx, NULL, c->pieces, KR_SEQ_EXACT);
    piece_run r[PIECES_MOST];
    for (int p = 0; p < c->pieces; p++) {
        r[p] = (piece_run){ .tape = kr_tape_create(ctx, KR_TAPE_GRAD) };
        CHECK(kr_seq_parallel_begin(seq, p) == KR_OK, "%s: %s", c->name, kr_ctx_message(ctx));
        forward(c, layers, seq, &r[p], c->cuts[p], c->cuts[p + 1]);
        keep_state(&v[p], r[p].state);
    }
    for (int p = c->pieces - 1; p >= 0; p--) backward(c, layers, &r[p], c->cuts[p], c->cuts[p + 1], &v[p]);
    CHECK_OK(ctx);
    for (int p = 0; p < c->pieces; p++) kr_tape_destroy(r[p].tape);
    kr_seq_parallel_destroy(seq);
    kr_layers_destroy(layers);
    kr_ctx_destroy(ctx);
}

typedef struct ranks_run {
    const seq_case *c;
    values *v; /* for each rank */
} ranks_run;

static void run_rank(rank_thread *self)
{
    const ranks_run *all = self->user;
    const seq_case *c = all->c;
    kr_layers *layers = stack_of(self->ctx, c);
    kr_seq_parallel *seq = kr_seq_parallel_create(self->ctx, self->comm, 0, c->mode);
    piece_run r = { .tape = kr_tape_create(self->ctx, KR_TAPE_GRAD) };
    const int64_t from = c->cuts[self->rank], to = c->cuts[self->rank + 1];
    forward(c, layers, seq, &r, from, to);
    if (r.state) keep_state(&all->v[self->rank], r.state);
    if (r.y) backward(c, layers, &r, from, to, &all->v[self->rank]);
    kr_tape_destroy(r.tape);
    kr_seq_parallel_destroy(seq);
    kr_layers_destroy(layers);
}

/* ---- comparisons ---- */

static void compare_bits(const seq_case *c, int piece, int k, const values *got, const values *want)
{
    int64_t worst = -1;
    CHECK(got->count[k] == want->count[k] && got->count[k] > 0, "%s, piece %d: %lld values of %s, not %lld", c->name,
          piece, (long long)got->count[k], result_names[k], (long long)want->count[k]);
    if (got->count[k] != want->count[k]) return;
    for (int64_t i = 0; i < got->count[k] && worst < 0; i++)
        if (memcmp(&got->list[k][i], &want->list[k][i], sizeof(double)) != 0) worst = i;
    CHECK(worst < 0, "%s, piece %d: %s differs at [%lld]: %.17g, not %.17g", c->name, piece, result_names[k],
          (long long)worst, worst < 0 ? 0 : got->list[k][worst], worst < 0 ? 0 : want->list[k][worst]);
}

/* got [n] against want [n], relative to the largest value of want. */
static void compare_near(const seq_case *c, int k, const double *got, const double *want, int64_t n, double tolerance)
{
    int64_t worst = 0;
    double scale = 0, most = 0;
    for (int64_t i = 0; i < n; i++) {
        if (fabs(want[i]) > scale) scale = fabs(want[i]);
        if (!(fabs(got[i] - want[i]) <= most)) {
            most = fabs(got[i] - want[i]);
            worst = i;
        }
    }
    CHECK(most <= tolerance * scale, "%s: %s differs at [%lld]: %.17g, not %.17g, of at most %g", c->name,
          result_names[k], (long long)worst, n ? got[worst] : 0, n ? want[worst] : 0, scale);
}

/* Values of all tokens out of those of the pieces. */
static double *joined(const seq_case *c, const values *pieces, int k)
{
    double *y = calloc((size_t)(NB * c->ns * ND), sizeof *y);
    for (int p = 0; p < c->pieces; p++) {
        const int64_t n = c->cuts[p + 1] - c->cuts[p];
        for (int64_t b = 0; b < NB; b++)
            memcpy(y + (b * c->ns + c->cuts[p]) * ND, pieces[p].list[k] + b * n * ND, (size_t)(n * ND) * sizeof *y);
    }
    return y;
}

static void compare_tokens(const seq_case *c, const values *pieces, const values *whole, int k, double tolerance)
{
    double *y = joined(c, pieces, k);
    compare_near(c, k, y, whole->list[k], NB * c->ns * ND, tolerance);
    free(y);
}

/* Devices do not end a chunk as a call (docs/ssd.md). */
static bool is_on_host(void)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const bool on_host = !kr_test_on_device(ctx);
    kr_ctx_destroy(ctx);
    return on_host;
}

static void compare_whole(const seq_case *c, const values *pieces, const values *whole)
{
    /* gradients: sums over tokens in another order; f64 and f32 have 52 and 23 bits, and a few thousand terms */
    const double rounding = c->dtype == KR_DTYPE_F64 ? 1e-12 : c->dtype == KR_DTYPE_BF16 ? 2e-2 : 2e-5;
    const double exact =
        c->is_off_grid || is_scanned(c) || !is_on_host() ? rounding : 0; /* other cuts are other chunks */
    const int64_t n = whole->count[RESULT_G_WEIGHTS];
    compare_tokens(c, pieces, whole, RESULT_Y, exact);
    compare_tokens(c, pieces, whole, RESULT_G_X, rounding);
    compare_near(c, RESULT_STATE, pieces[c->pieces - 1].list[RESULT_STATE], whole->list[RESULT_STATE],
                 whole->count[RESULT_STATE], exact);
    double *sum = calloc((size_t)n, sizeof *sum);
    for (int p = 0; p < c->pieces; p++)
        for (int64_t i = 0; i < n; i++) sum[i] += pieces[p].list[RESULT_G_WEIGHTS][i];
    compare_near(c, RESULT_G_WEIGHTS, sum, whole->list[RESULT_G_WEIGHTS], n, rounding);
    free(sum);
}

static void check_case(const seq_case *c)
{
    values whole = { .count = { 0 } }, turns[PIECES_MOST] = { { .count = { 0 } } };
    values ranks[PIECES_MOST] = { { .count = { 0 } } };
    run_whole(c, &whole);
    run_ranks(c->pieces, NULL, run_rank, &(ranks_run){ c, ranks });
    if (is_scanned(c)) compare_whole(c, ranks, &whole);
    else run_in_turn(c, turns);
    for (int p = 0; !is_scanned(c) && p < c->pieces; p++)
        for (int k = 0; k < RESULTS; k++) compare_bits(c, p, k, &ranks[p], &turns[p]);
    if (!is_scanned(c)) compare_whole(c, turns, &whole);
    for (int p = 0; p < c->pieces; p++) {
        free_values(&turns[p]);
        free_values(&ranks[p]);
    }
    free_values(&whole);
}

#define MAMBA1 .family = KR_FAMILY_MAMBA1
#define MAMBA2 .family = KR_FAMILY_MAMBA2
#define MAMBA3 .family = KR_FAMILY_MAMBA3

TEST(seq_parallel_mamba2)
{
    check_case(&(seq_case){ "mamba2, 1 piece", MAMBA2, .ns = 40, .pieces = 1, .cuts = { 0, 40 } });
    check_case(&(seq_case){ "mamba2, 2 pieces", MAMBA2, .ns = 70, .pieces = 2, .cuts = { 0, 32, 70 } });
    check_case(
        &(seq_case){ "mamba2, uneven", MAMBA2, .ns = 70, .pieces = 3, .cuts = { 0, 48, 64, 70 }, .has_init = true });
    check_case(&(seq_case){ "mamba2, 4 pieces, f64", MAMBA2, .dtype = KR_DTYPE_F64, .ns = 66, .pieces = 4,
                            .cuts = { 0, 16, 32, 48, 66 } });
    check_case(
        &(seq_case){ "mamba2, bf16", MAMBA2, .dtype = KR_DTYPE_BF16, .ns = 64, .pieces = 2, .cuts = { 0, 32, 64 } });
    check_case(&(seq_case){ "mamba2, pieces of a token", MAMBA2, .dtype = KR_DTYPE_F64, .ns = 20, .pieces = 4,
                            .cuts = { 0, 1, 2, 18, 20 }, .is_off_grid = true });
}

TEST(seq_parallel_mamba1)
{
    check_case(&(seq_case){ "mamba1, 2 pieces", MAMBA1, .ns = 30, .pieces = 2, .cuts = { 0, 13, 30 } });
    check_case(&(seq_case){ "mamba1, 4 pieces, f64", MAMBA1, .dtype = KR_DTYPE_F64, .ns = 30, .pieces = 4,
                            .cuts = { 0, 1, 13, 20, 30 } });
}

TEST(seq_parallel_mamba3)
{
    check_case(&(seq_case){ "mamba3, 2 pieces", MAMBA3, .ns = 70, .pieces = 2, .cuts = { 0, 48, 70 } });
    check_case(&(seq_case){ "mamba3, double", MAMBA3, .ns = 70, .pieces = 3, .cuts = { 0, 16, 48, 70 },
                            .pathway = KR_MAMBA3_PATHWAY_DOUBLE });
    check_case(&(seq_case){ "mamba3, 4 pieces, f64", MAMBA3, .dtype = KR_DTYPE_F64, .ns = 66, .pieces = 4,
                            .cuts = { 0, 16, 32, 48, 66 } });
}

/* A reset at a cut, inside pieces, and a packed sequence that a cut divides. */
TEST(seq_parallel_resets)
{
    check_case(&(seq_case){ "mamba2, resets", MAMBA2, .ns = 80, .pieces = 3, .cuts = { 0, 32, 64, 80 },
                            .resets = { 32, 48 } });
    check_case(&(seq_case){ "mamba2, packed", MAMBA2, .ns = 80, .pieces = 2, .cuts = { 0, 32, 80 },
                            .resets = { 16, 50, 60 }, .is_packed = true });
    check_case(&(seq_case){ "mamba3, resets, f64", MAMBA3, .dtype = KR_DTYPE_F64, .ns = 80, .pieces = 3,
                            .cuts = { 0, 32, 64, 80 }, .resets = { 5, 32, 64, 70 }, .is_off_grid = true });
    check_case(
        &(seq_case){ "mamba1, resets", MAMBA1, .ns = 40, .pieces = 2, .cuts = { 0, 17, 40 }, .resets = { 17, 30 } });
}

TEST(seq_parallel_stacks)
{
    check_case(&(seq_case){ "mamba2, recomputed", MAMBA2, .ns = 64, .pieces = 2, .cuts = { 0, 32, 64 },
                            .is_recomputed = true });
    check_case(&(seq_case){ "mamba3, recomputed, state", MAMBA3, .ns = 64, .pieces = 2, .cuts = { 0, 32, 64 },
                            .is_recomputed = true, .has_state = true });
    check_case(&(seq_case){ "mamba2, state", MAMBA2, .ns = 64, .pieces = 2, .cuts = { 0, 48, 64 }, .has_state = true });
    check_case(&(seq_case){ "mamba2, streams", MAMBA2, .ns = 64, .pieces = 2, .cuts = { 0, 32, 64 }, .n_streams = 3 });
    check_case(&(seq_case){ "mamba2, horizon", MAMBA2, .ns = 64, .pieces = 2, .cuts = { 0, 32, 64 }, .horizon = 2 });
}

/* ---- scan ---- */

#define SCAN .mode = KR_SEQ_SCAN

TEST(seq_parallel_scan)
{
    check_case(&(seq_case){ "scan, 1 piece", MAMBA2, SCAN, .ns = 40, .pieces = 1, .cuts = { 0, 40 } });
    check_case(&(seq_case){ "scan, 2 pieces", MAMBA2, SCAN, .ns = 70, .pieces = 2, .cuts = { 0, 33, 70 } });
    check_case(&(seq_case){ "scan, uneven, f64", MAMBA2, SCAN, .dtype = KR_DTYPE_F64, .ns = 66, .pieces = 4,
                            .cuts = { 0, 3, 32, 60, 66 } });
    check_case(&(seq_case){ "scan, learned state, f64", MAMBA2, SCAN, .dtype = KR_DTYPE_F64, .ns = 66, .pieces = 3,
                            .cuts = { 0, 20, 40, 66 }, .has_init = true });
    check_case(&(seq_case){ "scan, bf16", MAMBA2, SCAN, .dtype = KR_DTYPE_BF16, .ns = 64, .pieces = 2,
                            .cuts = { 0, 32, 64 } });
    check_case(&(seq_case){ "scan, state, recomputed", MAMBA2, SCAN, .dtype = KR_DTYPE_F64, .ns = 64, .pieces = 3,
                            .cuts = { 0, 20, 40, 64 }, .has_state = true, .is_recomputed = true });
    check_case(
        &(seq_case){ "scan by default, 5 pieces", MAMBA2, .ns = 70, .pieces = 5, .cuts = { 0, 10, 30, 42, 60, 70 } });
    check_case(&(seq_case){ "exact, 5 pieces", MAMBA2, .mode = KR_SEQ_EXACT, .ns = 70, .pieces = 5,
                            .cuts = { 0, 16, 32, 48, 64, 70 } });
    check_case(&(seq_case){ "exact by default, 5 pieces", MAMBA3, .ns = 70, .pieces = 5,
                            .cuts = { 0, 16, 32, 48, 64, 70 }, .has_quaternions = true });
    check_case(&(seq_case){ "scan, resets", MAMBA2, SCAN, .dtype = KR_DTYPE_F64, .ns = 80, .pieces = 4,
                            .cuts = { 0, 20, 41, 64, 80 }, .resets = { 5, 41, 50, 60 } });
    check_case(&(seq_case){ "scan, packed, learned state", MAMBA2, SCAN, .ns = 80, .pieces = 2, .cuts = { 0, 37, 80 },
                            .resets = { 16, 20, 60 }, .is_packed = true, .has_init = true });
}

TEST(seq_parallel_scan_mamba1)
{
    check_case(&(seq_case){ "mamba1, scan, 2 pieces", MAMBA1, SCAN, .ns = 40, .pieces = 2, .cuts = { 0, 17, 40 } });
    check_case(&(seq_case){ "mamba1, scan, bf16", MAMBA1, SCAN, .dtype = KR_DTYPE_BF16, .ns = 40, .pieces = 2,
                            .cuts = { 0, 17, 40 } });
    check_case(&(seq_case){ "mamba1, scan, learned state", MAMBA1, SCAN, .dtype = KR_DTYPE_F64, .ns = 40, .pieces = 4,
                            .cuts = { 0, 3, 17, 30, 40 }, .has_init = true });
    check_case(&(seq_case){ "mamba1, scan, state, recomputed", MAMBA1, SCAN, .dtype = KR_DTYPE_F64, .ns = 40,
                            .pieces = 3, .cuts = { 0, 11, 30, 40 }, .has_state = true, .is_recomputed = true });
    check_case(&(seq_case){ "mamba1, scan, resets", MAMBA1, SCAN, .dtype = KR_DTYPE_F64, .ns = 40, .pieces = 4,
                            .cuts = { 0, 8, 17, 30, 40 }, .resets = { 5, 17, 20, 35 }, .has_init = true });
}

TEST(seq_parallel_scan_mamba3)
{
    check_case(&(seq_case){ "mamba3, scan, 2 pieces", MAMBA3, SCAN, .ns = 70, .pieces = 2, .cuts = { 0, 33, 70 } });
    check_case(&(seq_case){ "mamba3, scan, bf16", MAMBA3, SCAN, .dtype = KR_DTYPE_BF16, .ns = 64, .pieces = 2,
                            .cuts = { 0, 32, 64 } });
    check_case(&(seq_case){ "mamba3, scan, double, learned state", MAMBA3, SCAN, .dtype = KR_DTYPE_F64, .ns = 60,
                            .pieces = 4, .cuts = { 0, 1, 17, 40, 60 }, .has_init = true,
                            .pathway = KR_MAMBA3_PATHWAY_DOUBLE });
    check_case(&(seq_case){ "mamba3, scan, state, recomputed", MAMBA3, SCAN, .dtype = KR_DTYPE_F64, .ns = 60,
                            .pieces = 3, .cuts = { 0, 21, 40, 60 }, .has_state = true, .is_recomputed = true });
    check_case(&(seq_case){ "mamba3, scan, resets", MAMBA3, SCAN, .dtype = KR_DTYPE_F64, .ns = 60, .pieces = 4,
                            .cuts = { 0, 12, 27, 45, 60 }, .resets = { 5, 27, 30, 52 }, .has_init = true });
    check_case(&(seq_case){ "mamba3, exact, quaternions", MAMBA3, .ns = 64, .pieces = 2, .cuts = { 0, 32, 64 },
                            .has_quaternions = true });
}

/* Element i, row-major; 0 of NULL. */
static double element(const kr_tensor *x, int64_t i)
{
    if (!x) return 0;
    double *list = kr_test_values(x);
    const double value = list[i];
    free(list);
    return value;
}

/* ---- differences ---- */

/* The loss of all ranks, with one element of x on one rank moved; *g: the gradient of that element, on its rank. */
static double total_loss(rank_thread *self, kr_layers *layers, int rank, int64_t at, double by, double *g)
{
    const seq_case *c = self->user;
    kr_seq_parallel *seq = kr_seq_parallel_create(self->ctx, self->comm, 0, c->mode);
    kr_tape *tape = kr_tape_create(self->ctx, KR_TAPE_GRAD);
    kr_call call;
    kr_call_init(&call);
    call.seq_parallel = seq;
    const int64_t from = c->cuts[self->rank], to = c->cuts[self->rank + 1];
    kr_tensor *x = numbers(tape, c, 0, from, to), *move = kr_zeros(tape, KR_DTYPE_F64, kr_tensor_shape(x));
    if (self->rank == rank) kr_test_put(move, at, by);
    x = kr_input(tape, kr_add(tape, x, move));
    kr_tensor *y = kr_layers_forward(tape, layers, x, &call).y;
    kr_tensor *loss = kr_sum(tape, kr_mul(tape, y, numbers(tape, c, 1, from, to)), KR_ALL_AXES, false);
    double sum = kr_item(loss);
    if (g && kr_backward(tape, loss) == KR_OK && self->rank == rank) *g = element(kr_grad(x), at);
    (void)(kr_comm_sum(self->comm, &sum, 1, KR_DTYPE_F64) == KR_OK);
    kr_tape_destroy(tape);
    kr_seq_parallel_destroy(seq);
    return sum;
}

static void run_differences(rank_thread *self)
{
    const seq_case *c = self->user;
    const double step = 1e-5;
    kr_layers *layers = stack_of(self->ctx, c);
    for (int rank = 0; rank < self->ranks; rank++)
        for (int64_t i = 0; i < 6; i++) {
            const int64_t n = (c->cuts[rank + 1] - c->cuts[rank]) * ND, at = i < 3 ? n - 1 - 7 * i : 11 * i;
            double g = 0;
            total_loss(self, layers, rank, at, 0, &g);
            const double above = total_loss(self, layers, rank, at, step, NULL);
            const double below = total_loss(self, layers, rank, at, -step, NULL);
            const double want = (above - below) / (2 * step);
            /* the third derivative times step^2, and the rounding of a loss of about 100, divided by the step */
            if (self->rank == rank)
                RANK_CHECK(fabs(g - want) <= 1e-6 * (1 + fabs(want)),
                           "%s, rank %d, element %lld: gradient %.12g, not %.12g", c->name, rank, (long long)at, g,
                           want);
        }
    kr_layers_destroy(layers);
}

/* Of elements near the cuts, whose effect on the next rank passes through states, windows and halos. */
TEST(seq_parallel_differences)
{
    static const seq_case cases[] = {
        { "differences, mamba1", MAMBA1, .dtype = KR_DTYPE_F64, .pieces = 2, .cuts = { 0, 9, 20 } },
        { "differences, mamba2", MAMBA2, .dtype = KR_DTYPE_F64, .pieces = 2, .cuts = { 0, 16, 28 } },
        { "differences, mamba3", MAMBA3, .dtype = KR_DTYPE_F64, .pieces = 2, .cuts = { 0, 16, 28 } },
        { "differences, scan", MAMBA2, SCAN, .dtype = KR_DTYPE_F64, .pieces = 3, .cuts = { 0, 10, 17, 28 } },
        { "differences, mamba3, scan", MAMBA3, SCAN, .dtype = KR_DTYPE_F64, .pieces = 2, .cuts = { 0, 9, 20 } },
        { "differences, mamba1, scan", MAMBA1, SCAN, .dtype = KR_DTYPE_F64, .pieces = 2, .cuts = { 0, 9, 20 } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run_ranks(cases[i].pieces, NULL, run_differences, (void *)(uintptr_t)&cases[i]);
}

/* ---- the ops ---- */

/* Decays and states of a rank, [3] and [3 2]. */
static double decay_of(int rank, int h)
{
    return 0.5 + 0.125 * (h + rank);
}

static double state_of(int rank, int i)
{
    return 1 + rank + i;
}

typedef struct op_tensors {
    kr_tensor *x, *d, *h, *halo, *scan;
} op_tensors;

/* The backward pass of sum_i (rank + i / 4) halo_i + sum_i scan_i, x [1 4 2]. */
static op_tensors run_both(rank_thread *self, kr_seq_parallel *seq, kr_tape *tape)
{
    double x[8], d[3], h[6], g_y[6];
    for (int i = 0; i < 8; i++) x[i] = self->rank * 10 + i;
    for (int i = 0; i < 3; i++) d[i] = decay_of(self->rank, i);
    for (int i = 0; i < 6; i++) {
        h[i] = state_of(self->rank, i);
        g_y[i] = self->rank + 0.25 * i;
    }
    op_tensors t = { .x = kr_input(tape, kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(1, 4, 2), x)),
                     .d = kr_input(tape, kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(3), d)),
                     .h = kr_input(tape, kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(3, 2), h)) };
    t.halo = kr_halo(tape, seq, t.x, 3);
    t.scan = kr_state_scan(tape, seq, t.d, t.h);
    kr_tensor *g = kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(1, 3, 2), g_y);
    kr_tensor *loss = kr_add(tape, kr_sum(tape, kr_mul(tape, t.halo, g), KR_ALL_AXES, false),
                             kr_sum(tape, t.scan, KR_ALL_AXES, false));
    /* the results of the first rank are constants, but its operands have gradients from the others */
    loss = kr_add(tape, loss, kr_scale(tape, kr_sum(tape, t.x, KR_ALL_AXES, false), 0));
    RANK_CHECK(kr_backward(tape, loss) == KR_OK, "rank %d: %s", self->rank, kr_ctx_message(self->ctx));
    return t;
}

/* All numbers are multiples of small powers of two, so that sums and products are exact. */
static void check_element(const rank_thread *self, const char *what, const kr_tensor *x, int i, double want)
{
    RANK_CHECK(element(x, i) == want, "rank %d of %d: %s [%d] is %.17g, not %.17g", self->rank, self->ranks, what, i,
               element(x, i), want);
}

static void run_ops(rank_thread *self)
{
    kr_seq_parallel *seq = kr_seq_parallel_create(self->ctx, self->comm, 0, KR_SEQ_AUTO);
    kr_tape *tape = kr_tape_create(self->ctx, KR_TAPE_GRAD);
    const op_tensors t = run_both(self, seq, tape);
    const int rank = self->rank, last = self->ranks - 1;
    double before[6] = { 0 }, after[6] = { 0 }; /* S of this piece; A of the next */
    for (int p = 0; p < rank; p++)
        for (int i = 0; i < 6; i++) before[i] = decay_of(p, i / 2) * before[i] + state_of(p, i);
    for (int p = last; p > rank; p--)
        for (int i = 0; i < 6; i++) after[i] = 1 + (p == last ? 0 : decay_of(p, i / 2) * after[i]);
    for (int i = 0; i < 6; i++) {
        check_element(self, "halo", t.halo, i, rank ? (rank - 1) * 10 + 2 + i : 0);
        check_element(self, "scan", t.scan, i, before[i]);
        check_element(self, "the gradient of state", kr_grad(t.h), i, after[i]);
    }
    for (int i = 0; i < 3; i++)
        check_element(self, "the gradient of decay", kr_grad(t.d), i,
                      before[2 * i] * after[2 * i] + before[2 * i + 1] * after[2 * i + 1]);
    for (int i = 0; i < 8; i++)
        check_element(self, "the gradient of x", kr_grad(t.x), i,
                      rank == last || i < 2 ? 0 : rank + 1 + 0.25 * (i - 2));
    kr_tape_destroy(tape);
    kr_seq_parallel_destroy(seq);
}

TEST(seq_parallel_ops)
{
    for (int ranks = 1; ranks <= 4; ranks++) run_ranks(ranks, NULL, run_ops, NULL);
}

TEST(seq_parallel_cuts)
{
    CHECK(kr_seq_parallel_cut(100, 16, 3, 0) == 0 && kr_seq_parallel_cut(100, 16, 3, 1) == 32 &&
              kr_seq_parallel_cut(100, 16, 3, 2) == 64 && kr_seq_parallel_cut(100, 16, 3, 3) == 100,
          "100 tokens: %lld, %lld", (long long)kr_seq_parallel_cut(100, 16, 3, 1),
          (long long)kr_seq_parallel_cut(100, 16, 3, 2));
    CHECK(kr_seq_parallel_cut(32, 16, 3, 0) == -1, "a piece would be empty");
    CHECK(kr_seq_parallel_cut(33, 16, 3, 2) == 32, "33 tokens");
    CHECK(kr_seq_parallel_cut(5, 0, 5, 4) == 4, "grid 0: anywhere");
    CHECK(kr_seq_parallel_cut(0, 1, 1, 0) == -1 && kr_seq_parallel_cut(9, 1, 2, 3) == -1 &&
              kr_seq_parallel_cut(9, 1, 2, -1) == -1,
          "no piece");
    for (int64_t n = 1; n < 60; n++)
        for (int pieces = 1; pieces <= 7; pieces++)
            for (int p = 0; p < pieces && kr_seq_parallel_cut(n, 4, pieces, 0) >= 0; p++)
                CHECK(kr_seq_parallel_cut(n, 4, pieces, p) < kr_seq_parallel_cut(n, 4, pieces, p + 1),
                      "%lld tokens, piece %d of %d is empty", (long long)n, p, pieces);
}

/* ---- errors ---- */

typedef struct wrong {
    seq_case c;
    const char *rank0, *others; /* parts of the messages */
} wrong;

/* The ranks that wait for one that fails get its error. */
static void run_wrong(rank_thread *self)
{
    const wrong *w = self->user;
    const seq_case *c = &w->c;
    kr_layers *layers = stack_of(self->ctx, c);
    kr_seq_parallel *seq = kr_seq_parallel_create(self->ctx, self->comm, 0, c->mode);
    piece_run r = { .tape = kr_tape_create(self->ctx, KR_TAPE_GRAD) };
    forward(c, layers, seq, &r, c->cuts[self->rank], c->cuts[self->rank + 1]);
    if (self->rank == 0) rank_error(self, w->rank0, "");
    else if (*w->others) rank_error(self, "rank 0 of 2", w->others);
    else kr_ctx_clear(self->ctx);
    kr_tape_destroy(r.tape);
    kr_seq_parallel_destroy(seq);
    kr_ctx_clear(self->ctx); /* that the communicator is lost */
    kr_layers_destroy(layers);
}

TEST(seq_parallel_errors_of_ranks)
{
    static const wrong all[] = {
        { { "short piece", MAMBA2, SCAN, .ns = 20, .pieces = 2, .cuts = { 0, 2, 20 } },
          "halo: x [2, 2, 80] has 2 tokens, but the next piece needs the last 3; make piece 0 longer",
          "halo: x" },
        { { "family", MAMBA3, SCAN, .ns = 32, .pieces = 2, .cuts = { 0, 16, 32 }, .has_quaternions = true },
          "layers.forward: seq_parallel has the mode scan, which these mamba3 blocks do not have; use KR_SEQ_EXACT",
          "" },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) run_ranks(2, NULL, run_wrong, (void *)(uintptr_t)&all[i]);
}

#define FORWARD_ERROR(status, text)                                                                                    \
    do {                                                                                                               \
        (void)kr_layers_forward(tape, layers, x, &call);                                                               \
        CHECK_ERROR(ctx, status, text);                                                                                \
        kr_ctx_clear(ctx);                                                                                             \
        kr_tape_reset(tape);                                                                                           \
        x = kr_zeros(tape, KR_DTYPE_F32, KR_SHAPE(NB, 20, ND));                                                        \
        kr_call_init(&call);                                                                                           \
        call.seq_parallel = seq;                                                                                       \
    } while (0)

TEST(seq_parallel_errors)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const seq_case c = { "errors", MAMBA2, .pieces = 2 };
    kr_layers *layers = stack_of(ctx, &c);
    CHECK(!kr_seq_parallel_create(ctx, NULL, 0, KR_SEQ_AUTO), "no error");
    CHECK_ERROR(ctx, KR_ERR_ARG, "seq_parallel.create: pieces = 0, but must be at least 1");
    kr_ctx_clear(ctx);
    CHECK(!kr_seq_parallel_create(ctx, NULL, 2, (kr_seq_mode)7), "no error");
    CHECK_ERROR(ctx, KR_ERR_ARG, "seq_parallel.create: mode = 7 is not a kr_seq_mode");
    kr_ctx_clear(ctx);
    kr_seq_parallel *seq = kr_seq_parallel_create(ctx, NULL, 2, KR_SEQ_AUTO);
    CHECK(kr_seq_parallel_begin(seq, 2) == KR_ERR_ARG, "no error");
    CHECK_ERROR(ctx, KR_ERR_ARG, "seq_parallel.begin: piece = 2, but must be from 0 to 1");
    kr_ctx_clear(ctx);

    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *x = kr_zeros(tape, KR_DTYPE_F32, KR_SHAPE(NB, 20, ND));
    kr_call call;
    kr_call_init(&call);
    call.seq_parallel = seq;
    CHECK(kr_seq_parallel_begin(seq, 1) == KR_OK, "%s", kr_ctx_message(ctx));
    FORWARD_ERROR(KR_ERR_STATE, "layers.forward, layer 0: piece 1 of 2: seq_parallel: piece 1 has begun, but "
                                "piece 0 has not");
    call.cu_seqlens = kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(2), (int32_t[]){ 0, 20 });
    FORWARD_ERROR(KR_ERR_ARG,
                  "layers.forward: seq_parallel and cu_seqlens are both given; mark the sequences that begin in "
                  "this piece in seq_start");
    kr_state *state = kr_state_create(ctx, layers, NB);
    call.advance = state;
    FORWARD_ERROR(KR_ERR_ARG,
                  "layers.forward: seq_parallel is given, but a state to advance cannot be combined with pieces "
                  "of rows; give state");
    CHECK(kr_seq_parallel_begin(seq, 0) == KR_OK, "%s", kr_ctx_message(ctx));
    (void)kr_layers_step(tape, layers, kr_zeros(tape, KR_DTYPE_F32, KR_SHAPE(NB, ND)), &call);
    CHECK_ERROR(ctx, KR_ERR_ARG, "layers.step: seq_parallel is for forward");
    kr_ctx_clear(ctx);
    kr_tape_reset(tape);
    /* another number of rows in the next piece */
    (void)kr_layers_forward(tape, layers, kr_zeros(tape, KR_DTYPE_F32, KR_SHAPE(NB, 20, ND)), &call);
    CHECK(kr_seq_parallel_begin(seq, 1) == KR_OK, "%s", kr_ctx_message(ctx));
    (void)kr_layers_forward(tape, layers, kr_zeros(tape, KR_DTYPE_F32, KR_SHAPE(1, 20, ND)), &call);
    CHECK(kr_ctx_failed(ctx) && strstr(kr_ctx_message(ctx), "all pieces have the same rows"), "%s",
          kr_ctx_message(ctx));
    kr_ctx_clear(ctx);
    kr_state_destroy(state);
    kr_tape_destroy(tape);
    kr_seq_parallel_destroy(seq);
    kr_layers_destroy(layers);
    kr_ctx_destroy(ctx);
}

/* Both pieces on one rank, forward and back. */
static void run_pair(kr_ctx *ctx, kr_layers *layers)
{
    const seq_case c = { "memory", MAMBA2, .pieces = 2 };
    kr_seq_parallel *seq = kr_seq_parallel_create(ctx, NULL, 2, KR_SEQ_EXACT);
    kr_tape *tape[2];
    kr_tensor *loss[2] = { NULL };
    for (int p = 0; p < 2; p++) {
        kr_call call;
        kr_call_init(&call);
        call.seq_parallel = seq;
        tape[p] = kr_tape_create(ctx, KR_TAPE_GRAD);
        if (kr_seq_parallel_begin(seq, p) != KR_OK || kr_ctx_failed(ctx)) continue;
        kr_tensor *x = kr_input(tape[p], numbers(tape[p], &c, 0, 16 * p, 16 * (p + 1)));
        loss[p] = kr_sum(tape[p], kr_layers_forward(tape[p], layers, x, &call).y, KR_ALL_AXES, false);
    }
    for (int p = 1; p >= 0; p--)
        if (!kr_ctx_failed(ctx)) (void)(kr_backward(tape[p], loss[p]) == KR_OK);
    kr_tape_destroy(tape[0]);
    kr_tape_destroy(tape[1]);
    kr_seq_parallel_destroy(seq);
}

/* Each allocation fails once: an error, and nothing is lost or used twice. */
TEST(seq_parallel_without_memory)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const seq_case c = { "memory", MAMBA2, .pieces = 2 };
    kr_layers *layers = stack_of(ctx, &c);
    int64_t failures = 0;
    for (bool has_failed = true; has_failed; failures += has_failed) {
        kr_ctx_fail_allocation(ctx, (size_t)failures + 1);
        run_pair(ctx, layers);
        has_failed = kr_ctx_failed(ctx);
        CHECK(!has_failed || kr_ctx_status(ctx) == KR_ERR_NOMEM, "allocation %lld: %s", (long long)failures + 1,
              kr_ctx_message(ctx));
        kr_ctx_fail_allocation(ctx, 0);
        kr_ctx_clear(ctx);
    }
    CHECK(failures > 10, "only %lld allocations failed", (long long)failures);
    kr_layers_destroy(layers);
    kr_ctx_destroy(ctx);
}
