/* gemm_cpu.c - the matrix product in f32, B in f32 or 16-bit floats: dispatch by shape, and the split into tasks.
 *
 *   C[m, n] = (C[m, n] if accumulate) + bias[n] + sum over k of A[m, k] B[k, n],   for each index of the batch space
 *
 * Each element of C is the same sum on every code path: chains of GEMM_KC fused multiply-adds over k in order, each
 * from 0, added one after the other to the base (C + bias). Layout, tile, task and thread do not change its bits.
 *
 *   gemv    up to four rows: B is read once, in place
 *   small   a task multiplies one block of C, or many of a batch
 *   large   all threads pack a part of B together, then all multiply blocks of C with it
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/gemm_block.h"
#include "kernels/cpu/gemm_pack.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/transpose.h"
#include "kernels/kernels.h"

/* Products with up to GEMM_GEMV_ROWS rows of A where B is adjacent along k (a weight [n k]): each element
 * of B is read once, in place, at memory bandwidth.
 *
 *   A [m k] any strides      B [k n], b_k = 1      C [m n] columns adjacent
 *
 * Lanes run over n and chains over k, as in the tile kernel, so that the bits are the same. A strand is one chain of
 * eight columns; four strands run interleaved, which hides the latency of an FMA. Strands are processed in address
 * order, all chains of eight columns before the next eight: then their lines fall into different sets of the
 * first-level cache even where b_n is a power of two.
 */

#define GEMM_GEMV_ROWS 4
#define GEMM_GEMV_COLUMNS 32 /* in flight: four groups of eight */
#define GEMM_GEMV_STEP 512   /* elements of B in sixteen steps of four strands */
#define GEMM_GEMV_AHEAD 8192 /* prefetch distance: elements from the end of the columns in flight */

typedef struct gemm_strand {
    const void *b;  /* eight columns, stride b_n */
    const float *x; /* [m][GEMM_KC] */
    float *sum;     /* [m][8] */
} gemm_strand;

/* Scratch of a worker in floats: A, and the sums of all chains of GEMM_GEMV_COLUMNS columns. */
KR_INLINE int64_t gemm_gemv_scratch(const gemm_problem *g)
{
    return gemm_ceil_div(g->nk, GEMM_KC) * g->nm * (GEMM_KC + GEMM_GEMV_COLUMNS);
}

/* sum[m] += A[m, k] B[k, 0..7] for GEMM_B_STEPS(dtype) steps of k: x [m][GEMM_KC] and b at the first step. */
KR_INLINE void gemm_gemv_steps(const float *x, const void *b, int64_t b_n, g8 sum[GEMM_GEMV_ROWS], const int nm,
                               const kr_dtype dtype)
{
    const int steps = GEMM_B_STEPS(dtype);
    g8 t[8];
    gemm_b_transpose(b, b_n, t, dtype);
    GEMM_UNROLL
    for (int q = 0; q < steps; q++) {
        GEMM_UNROLL
        for (int m = 0; m < nm; m++) {
            sum[m] = g8_fma(g8_all(x[m * GEMM_KC + q]), t[q], sum[m]);
        }
    }
}

/* The last steps of a strand, fewer than sixteen. */
KR_INLINE void gemm_gemv_tail(const float *x, const void *b, int64_t b_n, int64_t nk, g8 sum[GEMM_GEMV_ROWS],
                              const int nm, const kr_dtype dtype)
{
    const int steps = GEMM_B_STEPS(dtype);
    int64_t k = 0;
    for (; k + steps <= nk; k += steps) {
        gemm_gemv_steps(x + k, gemm_b_at(b, k, dtype), b_n, sum, nm, dtype);
    }
    for (; k < nk; k++) {
        float column[8];
        for (int n = 0; n < 8; n++) {
            column[n] = gemm_b_one(b, n * b_n + k, dtype);
        }
        GEMM_UNROLL
        for (int m = 0; m < nm; m++) {
            sum[m] = g8_fma(g8_all(x[m * GEMM_KC + k]), g8_load(column), sum[m]);
        }
    }
}

/* Four strands of nk steps each. nm and dtype are constants wherever this is inlined. */
KR_INLINE void gemm_gemv_strands(const gemm_strand *s, const void *ahead, int64_t b_n, int64_t nk, const int nm,
                                 const kr_dtype dtype)
{
    const int steps = GEMM_B_STEPS(dtype), a_line = GEMM_B_LINE(dtype), lines = GEMM_GEMV_STEP / a_line;
    g8 sum[4][GEMM_GEMV_ROWS];
    const void *b[4];
    const float *x[4];
    GEMM_UNROLL
    for (int e = 0; e < 4; e++) {
        b[e] = s[e].b;
        x[e] = s[e].x;
        GEMM_UNROLL
        for (int m = 0; m < nm; m++) {
            sum[e][m] = g8_zero();
        }
    }
    for (int64_t i = 0; i < nk / 16; i++) {
        GEMM_UNROLL
        for (int line = 0; line < lines; line++) {
            gemm_prefetch(gemm_b_at(ahead, i * GEMM_GEMV_STEP + a_line * line, dtype));
        }
        GEMM_UNROLL
        for (int q = 0; q < 16; q += steps) {
            GEMM_UNROLL
            for (int e = 0; e < 4; e++) {
                gemm_gemv_steps(x[e] + q, gemm_b_at(b[e], q, dtype), b_n, sum[e], nm, dtype);
            }
        }
        GEMM_UNROLL
        for (int e = 0; e < 4; e++) {
            b[e] = gemm_opaque(gemm_b_at(b[e], 16, dtype));
            x[e] += 16;
        }
    }
    GEMM_UNROLL
    for (int e = 0; e < 4; e++) {
        gemm_gemv_tail(x[e], b[e], b_n, nk % 16, sum[e], nm, dtype);
        GEMM_UNROLL
        for (int m = 0; m < nm; m++) {
            g8_store(s[e].sum + 8 * m, sum[e][m]);
        }
    }
}

#define GEMM_STRANDS(type, dtype, nm)                                                                                  \
    static void gemm_gemv_strands_##type##_##nm(const gemm_strand *s, const void *ahead, int64_t b_n, int64_t nk)      \
    {                                                                                                                  \
        gemm_gemv_strands(s, ahead, b_n, nk, nm, dtype);                                                               \
    }
#define GEMM_STRANDS_OF(type, dtype)                                                                                   \
    GEMM_STRANDS(type, dtype, 1)                                                                                       \
    GEMM_STRANDS(type, dtype, 2)                                                                                       \
    GEMM_STRANDS(type, dtype, 3)                                                                                       \
    GEMM_STRANDS(type, dtype, 4)
GEMM_STRANDS_OF(f32, KR_DTYPE_F32)
GEMM_STRANDS_OF(bf16, KR_DTYPE_BF16)
GEMM_STRANDS_OF(f16, KR_DTYPE_F16)
#undef GEMM_STRANDS_OF
#undef GEMM_STRANDS

typedef void gemm_gemv_fn(const gemm_strand *s, const void *ahead, int64_t b_n, int64_t nk);

/* Columns from..to-1 in work; A packed as x [chain][m][GEMM_KC], sums as [group][chain][m][8]. */
typedef struct gemm_gemv {
    const gemm_problem *g;
    gemm_gemv_fn *strands;
    const float *x;
    float *sum;
    int64_t from, to, groups, chains;
    int64_t ahead, fetch_end; /* prefetch distance in elements; index of B where prefetching stops */
} gemm_gemv;

/* Columns of a group all exist: a partial last group overlaps the one before it. */
static gemm_strand gemm_gemv_strand(const gemm_gemv *w, int64_t group, int64_t chain)
{
    const gemm_problem *g = w->g;
    const int64_t n = gemm_min(w->from + 8 * group, g->nn - 8);
    return (gemm_strand){ gemm_b_at(g->b, n * g->b_n + chain * GEMM_KC, g->b_dtype), w->x + chain * g->nm * GEMM_KC,
                          w->sum + (group * w->chains + chain) * g->nm * 8 };
}

/* All groups' chains first..first+count-1, of nk steps each. */
static void gemm_gemv_chains(const gemm_gemv *w, int64_t first, int64_t count, int64_t nk)
{
    const int64_t all = w->groups * count;
    for (int64_t i = 0; i < all; i += 4) {
        gemm_strand s[4];
        for (int64_t e = 0; e < 4; e++) {
            const int64_t at = gemm_min(i + e, all - 1); /* a partial last four repeats its last strand */
            s[e] = gemm_gemv_strand(w, at / count, first + at % count);
        }
        const int64_t ahead = w->from * w->g->b_n + i * 8 * nk + w->ahead;
        w->strands(s, ahead < w->fetch_end ? gemm_b_at(w->g->b, ahead, w->g->b_dtype) : s[0].b, w->g->b_n, nk);
    }
}

/* C = base + the chains, in order. */
static void gemm_gemv_write(const gemm_gemv *w)
{
    const gemm_out *out = &w->g->out;
    const int64_t nm = w->g->nm;
    for (int64_t group = 0; group < w->groups; group++) {
        const int64_t n0 = w->from + 8 * group, some = gemm_min(8, w->to - n0), lane = n0 - gemm_min(n0, w->g->nn - 8);
        for (int64_t m = 0; m < nm; m++) {
            const float *sum = w->sum + (group * w->chains * nm + m) * 8;
            float *c = out->c + m * out->c_m + n0, y[8];
            g8 total = g8_load(sum);
            if (out->add_c || out->bias != NULL) {
                float base[8] = { 0 };
                for (int64_t n = 0; n < some; n++) {
                    const float bias = out->bias != NULL ? out->bias[n0 + n] : 0.0f;
                    base[lane + n] = !out->add_c ? bias : out->bias != NULL ? c[n] + bias : c[n];
                }
                total = g8_add(g8_load(base), total);
            }
            for (int64_t chain = 1; chain < w->chains; chain++) {
                total = g8_add(total, g8_load(sum + chain * nm * 8));
            }
            g8_store(y, total);
            for (int64_t n = 0; n < some; n++) {
                c[n] = y[lane + n];
            }
        }
    }
}

/* A as x [chain][m][GEMM_KC]. */
static void gemm_gemv_pack(const gemm_problem *g, float *x)
{
    for (int64_t k0 = 0; k0 < g->nk; k0 += GEMM_KC) {
        const int64_t nk = gemm_min(GEMM_KC, g->nk - k0);
        for (int64_t m = 0; m < g->nm; m++, x += GEMM_KC) {
            const float *a = g->a + m * g->a_m + k0 * g->a_k;
            int64_t k = 0;
            for (; g->a_k == 1 && k + VF <= nk; k += VF) {
                vf_store(x + k, vf_load(a + k));
            }
            for (; k < nk; k++) {
                x[k] = a[k * g->a_k];
            }
        }
    }
}

/* Columns from..to-1 of C; b_k = 1; nn >= 8. scratch: gemm_gemv_scratch floats. */
static void gemm_gemv_run(const gemm_problem *g, int64_t from, int64_t to, float *scratch)
{
#define GEMM_STRANDS_OF(type)                                                                                          \
    {                                                                                                                  \
        gemm_gemv_strands_##type##_1, gemm_gemv_strands_##type##_2, gemm_gemv_strands_##type##_3,                      \
            gemm_gemv_strands_##type##_4                                                                               \
    }
    static gemm_gemv_fn *const strands[][GEMM_GEMV_ROWS] = { [KR_DTYPE_F32] = GEMM_STRANDS_OF(f32),
                                                             [KR_DTYPE_BF16] = GEMM_STRANDS_OF(bf16),
                                                             [KR_DTYPE_F16] = GEMM_STRANDS_OF(f16) };
#undef GEMM_STRANDS_OF
    gemm_gemv w = { .g = g, .x = scratch, .chains = gemm_ceil_div(g->nk, GEMM_KC) };
    w.strands = strands[g->b_dtype][g->nm - 1];
    /* Long sequential runs are faster than the order of the strands: B is prefetched in address order, if its columns
     * are contiguous. */
    w.ahead = gemm_max(4 * 8 * GEMM_KC, 8 * g->nk) + GEMM_GEMV_AHEAD;
    w.fetch_end = g->b_n == g->nk ? to * g->b_n : 0;
    for (int64_t i = from * g->b_n; i < gemm_min(from * g->b_n + w.ahead, w.fetch_end); i += GEMM_B_LINE(g->b_dtype)) {
        gemm_prefetch(gemm_b_at(g->b, i, g->b_dtype));
    }
    w.sum = scratch + w.chains * g->nm * GEMM_KC;
    gemm_gemv_pack(g, scratch);
    const int64_t whole = g->nk / GEMM_KC, rest = g->nk % GEMM_KC;
    for (w.from = from; w.from < to; w.from = w.to) {
        w.to = gemm_min(w.from + GEMM_GEMV_COLUMNS, to);
        w.groups = gemm_ceil_div(w.to - w.from, 8);
        if (whole > 0) {
            gemm_gemv_chains(&w, 0, whole, GEMM_KC);
        }
        if (rest > 0) {
            gemm_gemv_chains(&w, whole, 1, rest);
        }
        gemm_gemv_write(&w);
    }
}

/* Products with up to GEMM_GEMV_ROWS rows of A where B is adjacent along n: rows of B are read once, in
 * buffer, and added to sums that stay in the first-level cache.
 *
 *   A [m k] any strides      B [k n], b_n = 1      C [m n] columns adjacent
 */

#define GEMM_GEVM_COLUMNS 512 /* per pass: their sums and eight rows of B fit the first-level cache */
#define GEMM_GEVM_LEAST 256   /* per task: long sequential runs are faster */

/* sum[n] += a[q] b[q][n] for eight rows of B, in order of q; prefetches the next eight if `fetch`. fetch and dtype are
 * constants. */
KR_INLINE void gemm_gevm_8(const float *a, int64_t a_k, const void *b, int64_t b_k, int64_t nn, float *sum,
                           const bool fetch, const kr_dtype dtype)
{
    vf x[8];
    GEMM_UNROLL
    for (int q = 0; q < 8; q++) {
        x[q] = vf_set1(a[q * a_k]);
    }
    int64_t n = 0;
    for (; n + VF <= nn; n += VF) {
        vf y = vf_load(sum + n);
        GEMM_UNROLL
        for (int q = 0; q < 8; q++) {
            if (fetch && n % GEMM_B_LINE(dtype) == 0) {
                gemm_prefetch(gemm_b_at(b, (8 + q) * b_k + n, dtype));
            }
            y = vf_fma(x[q], gemm_b_load(b, q * b_k + n, dtype), y);
        }
        vf_store(sum + n, y);
    }
    if (n < nn) {
        vf y = vf_load_n(sum + n, nn - n);
        GEMM_UNROLL
        for (int q = 0; q < 8; q++) {
            y = vf_fma(x[q], gemm_b_load_n(b, q * b_k + n, nn - n, dtype), y);
        }
        vf_store_n(sum + n, nn - n, y);
    }
}

/* One chain for nn <= GEMM_GEVM_COLUMNS columns from n0 on, k0..k1-1, added to base. dtype is a constant. */
KR_INLINE void gemm_gevm_chain(const gemm_problem *g, int64_t n0, int64_t nn, int64_t k0, int64_t k1,
                               const kr_dtype dtype)
{
    float sum[GEMM_GEMV_ROWS][GEMM_GEVM_COLUMNS];
    for (int64_t m = 0; m < g->nm; m++) {
        for (int64_t n = 0; n < nn; n++) {
            sum[m][n] = 0.0f;
        }
    }
    int64_t k = k0;
    for (; k + 8 <= k1; k += 8) {
        const float *a = g->a + k * g->a_k;
        const void *b = gemm_b_at(g->b, k * g->b_k + n0, dtype);
        gemm_gevm_8(a, g->a_k, b, g->b_k, nn, sum[0], true, dtype);
        for (int64_t m = 1; m < g->nm; m++) {
            gemm_gevm_8(a + m * g->a_m, g->a_k, b, g->b_k, nn, sum[m], false, dtype);
        }
    }
    for (; k < k1; k++) {
        for (int64_t m = 0; m < g->nm; m++) {
            const vf x = vf_set1(g->a[m * g->a_m + k * g->a_k]);
            for (int64_t n = 0; n < nn; n += VF) {
                const vf y = gemm_b_load_n(g->b, k * g->b_k + n0 + n, nn - n, dtype);
                vf_store_n(sum[m] + n, nn - n, vf_fma(x, y, vf_load_n(sum[m] + n, nn - n)));
            }
        }
    }
    for (int64_t m = 0; m < g->nm; m++) {
        float *c = g->out.c + m * g->out.c_m + n0;
        const float *bias = k0 == 0 && g->out.bias != NULL ? g->out.bias + n0 : NULL;
        const bool add_c = k0 > 0 || g->out.add_c;
        for (int64_t n = 0; n < nn; n++) {
            const float base = !add_c ? (bias != NULL ? bias[n] : 0.0f) : (bias != NULL ? c[n] + bias[n] : c[n]);
            c[n] = add_c || bias != NULL ? base + sum[m][n] : sum[m][n];
        }
    }
}

static void gemm_gevm_chain_f32(const gemm_problem *g, int64_t n0, int64_t nn, int64_t k0, int64_t k1)
{
    gemm_gevm_chain(g, n0, nn, k0, k1, KR_DTYPE_F32);
}

static void gemm_gevm_chain_bf16(const gemm_problem *g, int64_t n0, int64_t nn, int64_t k0, int64_t k1)
{
    gemm_gevm_chain(g, n0, nn, k0, k1, KR_DTYPE_BF16);
}

static void gemm_gevm_chain_f16(const gemm_problem *g, int64_t n0, int64_t nn, int64_t k0, int64_t k1)
{
    gemm_gevm_chain(g, n0, nn, k0, k1, KR_DTYPE_F16);
}

/* Columns from..to-1 of C; b_n = 1. */
static void gemm_gevm_run(const gemm_problem *g, int64_t from, int64_t to)
{
    static void (*const chains[])(const gemm_problem *, int64_t, int64_t, int64_t,
                                  int64_t) = { [KR_DTYPE_F32] = gemm_gevm_chain_f32,
                                               [KR_DTYPE_BF16] = gemm_gevm_chain_bf16,
                                               [KR_DTYPE_F16] = gemm_gevm_chain_f16 };
    for (int64_t n = from; n < to; n += GEMM_GEVM_COLUMNS) {
        for (int64_t k = 0; k < g->nk; k += GEMM_KC) {
            chains[g->b_dtype](g, n, gemm_min(GEMM_GEVM_COLUMNS, to - n), k, gemm_min(k + GEMM_KC, g->nk));
        }
    }
}

/* One large product: all threads pack a part of B into panels, then all multiply blocks of C with it.
 *
 * A part has GEMM_LARGE_STEPS steps of k at most and as many columns as fit 8 MiB, so that it stays in a shared cache.
 * A block of C takes all chains of the part before the next block begins: it stays in the second-level cache meanwhile.
 */

#define GEMM_LARGE_FLOATS (1 << 21) /* of B in one part */
#define GEMM_LARGE_STEPS (16 * GEMM_KC)
#define GEMM_LARGE_ROWS 192   /* of a block */
#define GEMM_LARGE_TASKS 32   /* at least, if blocks of 48 x 64 allow it: enough to balance a few threads */
#define GEMM_PACK_COLUMNS 128 /* in one packing task */

/* One part: columns n0..n1-1, steps k0..k1-1. */
typedef struct gemm_large {
    const gemm_problem *p;
    int64_t n0, n1, k0, k1;
    int64_t tiles, m_blocks, n_blocks;
    float *b;      /* for every GEMM_KC steps, panels [k][GEMM_NR] */
    float *a_tile; /* one for each worker */
} gemm_large;

/* Panels of a part, and the address of those of step k and column panel i. */
static int64_t gemm_large_panels(const gemm_large *g)
{
    return gemm_ceil_div(g->n1 - g->n0, GEMM_NR);
}

static float *gemm_large_b(const gemm_large *g, int64_t k, int64_t i)
{
    return g->b + (k - g->k0) * gemm_large_panels(g) * GEMM_NR + i * gemm_min(GEMM_KC, g->k1 - k) * GEMM_NR;
}

static void gemm_large_pack(void *arg, int64_t index, int worker)
{
    const gemm_large *g = arg;
    const int64_t groups = gemm_ceil_div(g->n1 - g->n0, GEMM_PACK_COLUMNS);
    const int64_t k = g->k0 + index / groups * GEMM_KC, n = g->n0 + index % groups * GEMM_PACK_COLUMNS;
    (void)worker;
    gemm_panels_pack(g->p, k, gemm_min(GEMM_KC, g->k1 - k), n, gemm_min(n + GEMM_PACK_COLUMNS, g->n1),
                     gemm_large_b(g, k, (n - g->n0) / GEMM_NR));
}

/* Consecutive tasks have the same columns: their part of B is already cached. */
static void gemm_large_multiply(void *arg, int64_t index, int worker)
{
    const gemm_large *g = arg;
    const int64_t im = index % g->m_blocks, in = index / g->m_blocks;
    const int64_t t0 = gemm_part(g->tiles, im, g->m_blocks), t1 = gemm_part(g->tiles, im + 1, g->m_blocks);
    const int64_t i0 = gemm_part(gemm_large_panels(g), in, g->n_blocks);
    const int64_t i1 = gemm_part(gemm_large_panels(g), in + 1, g->n_blocks);
    gemm_block block = { .p = g->p,
                         .tiles = g->tiles,
                         .t0 = t0,
                         .t1 = t1,
                         .n0 = g->n0 + i0 * GEMM_NR,
                         .n1 = gemm_min(g->n0 + i1 * GEMM_NR, g->n1),
                         .scratch = g->a_tile + worker * GEMM_A_TILE };
    for (int64_t k = g->k0; k < g->k1; k += GEMM_KC) {
        block.k0 = k;
        block.nk = gemm_min(GEMM_KC, g->k1 - k);
        block.panels = (gemm_panels){ gemm_large_b(g, k, i0), GEMM_NR, block.nk * GEMM_NR };
        gemm_block_run(&block);
    }
}

/* Number of blocks of rows and columns: by shape alone. Rows are split first, since a tile of A that must be packed is
 * packed once for all columns of a block. */
static void gemm_large_cut(gemm_large *g)
{
    int64_t rows = GEMM_LARGE_ROWS, columns = GEMM_BLOCK_COLUMNS;
    for (;;) {
        g->m_blocks = gemm_ceil_div(g->tiles, rows / GEMM_MR);
        g->n_blocks = gemm_ceil_div(gemm_large_panels(g), columns / GEMM_NR);
        if (g->m_blocks * g->n_blocks >= GEMM_LARGE_TASKS || columns <= 64) {
            return;
        }
        if (rows > 48) {
            rows /= 2;
        } else {
            columns /= 2;
        }
    }
}

/* Columns of a part, whole panels. */
static int64_t gemm_large_columns(const gemm_problem *p)
{
    const int64_t most = GEMM_LARGE_FLOATS / gemm_min(p->nk, GEMM_LARGE_STEPS);
    const int64_t even = gemm_ceil_div(p->nn, gemm_ceil_div(p->nn, most));
    return gemm_ceil_div(even, GEMM_NR) * GEMM_NR;
}

/* Scratch in floats. */
static int64_t gemm_large_scratch(const gemm_problem *p, int workers)
{
    return gemm_large_columns(p) * gemm_min(p->nk, GEMM_LARGE_STEPS) + workers * GEMM_A_TILE;
}

static void gemm_large_run(const gemm_problem *p, kr_pool *pool, float *scratch)
{
    const int64_t columns = gemm_large_columns(p);
    gemm_large g = { .p = p, .tiles = gemm_ceil_div(p->nm, GEMM_MR), .b = scratch };
    g.a_tile = scratch + columns * gemm_min(p->nk, GEMM_LARGE_STEPS);
    for (g.n0 = 0; g.n0 < p->nn; g.n0 = g.n1) {
        g.n1 = gemm_min(g.n0 + columns, p->nn);
        gemm_large_cut(&g);
        for (g.k0 = 0; g.k0 < p->nk; g.k0 = g.k1) {
            g.k1 = gemm_min(g.k0 + GEMM_LARGE_STEPS, p->nk);
            kr_pool_run(pool, gemm_ceil_div(g.n1 - g.n0, GEMM_PACK_COLUMNS) * gemm_ceil_div(g.k1 - g.k0, GEMM_KC),
                        gemm_large_pack, &g);
            kr_pool_run(pool, g.m_blocks * g.n_blocks, gemm_large_multiply, &g);
        }
    }
}

/* A part of C by one task: B is read in place, or packed into the worker's scratch. */

/* Columns per pass, and scratch of a worker in floats: these columns of B and one tile of A. */
#define GEMM_SMALL_COLUMNS 128
#define GEMM_SMALL_SCRATCH (GEMM_KC * GEMM_SMALL_COLUMNS + GEMM_A_TILE)

/* B's rows can be read in place if they are floats with a small stride and vectors are whole. */
static bool gemm_b_in_place(const gemm_problem *p, int64_t n0, int64_t n1)
{
    return p->b_dtype == KR_DTYPE_F32 && p->b_n == 1 && p->b_k <= 256 && p->b_k >= -256 && (n1 - n0) % VF == 0;
}

/* Rows from m0 to m1-1 and columns n0..n1-1 of C. */
static void gemm_small(const gemm_problem *whole, int64_t m0, int64_t m1, int64_t n0, int64_t n1, float *scratch)
{
    gemm_problem p = *whole;
    p.nm = m1 - m0;
    p.a += m0 * p.a_m;
    p.out.c += m0 * p.out.c_m;
    p.first_row += m0;
    n1 = gemm_columns_end(&p, p.nm, n1);
    const int64_t tiles = gemm_ceil_div(p.nm, GEMM_MR);
    for (int64_t n = n0; n < n1; n += GEMM_SMALL_COLUMNS) {
        const int64_t end = gemm_min(n + GEMM_SMALL_COLUMNS, n1);
        const bool in_place = gemm_b_in_place(&p, n, end);
        for (int64_t k0 = 0; k0 < p.nk; k0 += GEMM_KC) {
            const int64_t nk = gemm_min(GEMM_KC, p.nk - k0);
            gemm_block block = { .p = &p,
                                 .tiles = tiles,
                                 .t0 = 0,
                                 .t1 = tiles,
                                 .n0 = n,
                                 .n1 = end,
                                 .k0 = k0,
                                 .nk = nk,
                                 .scratch = scratch };
            if (in_place) {
                block.panels = (gemm_panels){ (const float *)p.b + k0 * p.b_k + n, p.b_k, GEMM_NR };
            } else {
                block.panels = gemm_panels_pack(&p, k0, nk, n, end, scratch + GEMM_A_TILE);
            }
            gemm_block_run(&block);
        }
    }
}

/* Multiply-adds from which a product takes the large path, and the least number per task. */
#define GEMM_LARGE_FROM (1 << 23)
#define GEMM_TASK_WORK (1 << 19)
/* Rows and columns of a unit of an item that is split. */
#define GEMM_UNIT_ROWS 192
#define GEMM_UNIT_COLUMNS 64
/* Elements of B that a task of the gemv path reads, and the least number where there would be fewer than four tasks. */
#define GEMM_GEMV_WORK (1 << 18)
#define GEMM_GEMV_LEAST (1 << 15)
/* Rows of a symmetric product copied per unit. */
#define GEMM_MIRROR_ROWS 64

typedef enum gemm_path { GEMM_NOTHING, GEMM_BASE, GEMM_GEMV, GEMM_SMALL, GEMM_LARGE } gemm_path;

/* The plan of a call: `items` problems of one shape, each split into m_cuts x n_cuts units, and the units per task. */
typedef struct gemm_plan {
    const kr_matmul_args *args;
    gemm_path path;
    bool swapped; /* p is C^T = B^T A^T */
    gemm_problem p;
    int64_t items;
    int64_t m_cuts, n_cuts, units_a_task;
} gemm_plan;

static gemm_problem gemm_problem_of(const kr_matmul_args *args, bool swapped)
{
    if (swapped) {
        return (gemm_problem){ .nm = args->nn,
                               .nn = args->nm,
                               .nk = args->nk,
                               .a = args->b.data,
                               .a_m = args->b.column,
                               .a_k = args->b.row,
                               .b = args->a.data,
                               .b_k = args->a.column,
                               .b_n = args->a.row,
                               .out = { args->c.data, 1, NULL, args->accumulate } };
    }
    return (gemm_problem){ .nm = args->nm,
                           .nn = args->nn,
                           .nk = args->nk,
                           .a = args->a.data,
                           .a_m = args->a.row,
                           .a_k = args->a.column,
                           .b = args->b.data,
                           .b_k = args->b.row,
                           .b_n = args->b.column,
                           .b_dtype = args->b.dtype,
                           .out = { args->c.data, args->c.row, args->bias, args->accumulate },
                           .symmetric = args->symmetric };
}

static gemm_path gemm_path_of(const gemm_problem *p, int64_t items)
{
    if (items == 0 || p->nm == 0 || p->nn == 0) {
        return GEMM_NOTHING;
    }
    if (p->nk == 0) {
        return GEMM_BASE;
    }
    if (p->nm <= GEMM_GEMV_ROWS && (p->b_n == 1 || (p->b_k == 1 && p->nn >= 8))) {
        return GEMM_GEMV;
    }
    /* Few rows: every element of B is packed once and by one task; packing together would save nothing. */
    const double work = (double)p->nm * (double)p->nn * (double)p->nk;
    return p->nm <= GEMM_UNIT_ROWS || work < GEMM_LARGE_FROM ? GEMM_SMALL : GEMM_LARGE;
}

/* Splits an item so that a unit has enough work for a task, and joins units where even whole items have less. */
static void gemm_cut(gemm_plan *plan)
{
    const gemm_problem *p = &plan->p;
    if (plan->path == GEMM_GEMV) {
        /* A power of two of equal parts suits most numbers of threads. */
        const int64_t most = gemm_ceil_div(p->nn, p->b_k == 1 ? GEMM_GEMV_COLUMNS : GEMM_GEVM_LEAST);
        for (int64_t part = p->nn * p->nk; 2 * plan->n_cuts <= most; part /= 2, plan->n_cuts *= 2) {
            if (part < (plan->n_cuts < 4 ? 2 * GEMM_GEMV_LEAST : GEMM_GEMV_WORK)) {
                break;
            }
        }
        plan->units_a_task = gemm_max(1, GEMM_GEMV_LEAST / (p->nk * gemm_ceil_div(p->nn, plan->n_cuts)));
        return;
    }
    const double work = (double)p->nm * (double)p->nn * (double)p->nk;
    plan->m_cuts = gemm_ceil_div(p->nm, GEMM_UNIT_ROWS);
    plan->n_cuts = work < 2 * GEMM_TASK_WORK ? 1 : gemm_ceil_div(p->nn, GEMM_UNIT_COLUMNS);
    const double unit = work / (double)(plan->m_cuts * plan->n_cuts);
    plan->units_a_task = gemm_max(1, (int64_t)(GEMM_TASK_WORK / unit));
}

static gemm_plan gemm_plan_of(const kr_matmul_args *args)
{
    gemm_plan plan = { .args = args, .items = 1, .m_cuts = 1, .n_cuts = 1, .units_a_task = 1 };
    for (int i = 0; i < args->batch_rank; i++) {
        plan.items *= args->batch_dims[i];
    }
    /* A single column of C without gaps is a row of C^T = B^T A^T, whose sums are the same; lanes run along rows. A is
     * always floats. */
    plan.swapped =
        args->nn == 1 && args->nm > 1 && args->c.row == 1 && args->bias == NULL && args->b.dtype == KR_DTYPE_F32;
    plan.p = gemm_problem_of(args, plan.swapped);
    plan.path = gemm_path_of(&plan.p, plan.items);
    if (plan.path == GEMM_GEMV || plan.path == GEMM_SMALL) {
        gemm_cut(&plan);
    }
    return plan;
}

static gemm_problem gemm_item(const gemm_plan *plan, int64_t item)
{
    const kr_matmul_args *args = plan->args;
    gemm_problem p = plan->p;
    for (int i = args->batch_rank - 1; i >= 0; i--) {
        const int64_t at = item % args->batch_dims[i];
        item /= args->batch_dims[i];
        p.a += at * (plan->swapped ? args->batch_b[i] : args->batch_a[i]);
        p.b = gemm_b_at(p.b, at * (plan->swapped ? args->batch_a[i] : args->batch_b[i]), p.b_dtype);
        p.out.c += at * args->batch_c[i];
    }
    return p;
}

/* No terms: the base alone. */
static void gemm_base(const gemm_problem *p)
{
    for (int64_t m = 0; m < p->nm; m++) {
        float *c = p->out.c + m * p->out.c_m;
        for (int64_t n = 0; n < p->nn; n++) {
            const float bias = p->out.bias != NULL ? p->out.bias[n] : 0.0f;
            if (!p->out.add_c) {
                c[n] = bias;
            } else if (p->out.bias != NULL) {
                c[n] += bias;
            }
        }
    }
}

static void gemm_task(void *arg, int64_t index, int worker)
{
    const gemm_plan *plan = arg;
    const int64_t item_units = plan->m_cuts * plan->n_cuts;
    const int64_t end = gemm_min((index + 1) * plan->units_a_task, plan->items * item_units);
    float *scratch = (float *)plan->args->exec.scratch;
    for (int64_t unit = index * plan->units_a_task; unit < end; unit++) {
        const gemm_problem p = gemm_item(plan, unit / item_units);
        const int64_t im = unit % item_units / plan->n_cuts, in = unit % plan->n_cuts;
        /* Columns are split at multiples of 32, which are whole panels for both tile widths. */
        const int64_t n_parts = gemm_ceil_div(p.nn, 32);
        const int64_t n0 = 32 * gemm_part(n_parts, in, plan->n_cuts);
        const int64_t n1 = gemm_min(p.nn, 32 * gemm_part(n_parts, in + 1, plan->n_cuts));
        if (plan->path == GEMM_SMALL) {
            gemm_small(&p, gemm_part(p.nm, im, plan->m_cuts), gemm_part(p.nm, im + 1, plan->m_cuts), n0, n1,
                       scratch + worker * GEMM_SMALL_SCRATCH);
        } else if (p.b_k == 1 && p.nn >= 8) {
            gemm_gemv_run(&p, n0, n1, scratch + worker * gemm_gemv_scratch(&p));
        } else {
            gemm_gevm_run(&p, n0, n1);
        }
    }
}

/* Blocks of rows of a symmetric C: copies the part below the diagonal above it. */
static void gemm_mirror(const void *arg, int64_t first, int64_t end, int worker)
{
    const kr_matmul_args *args = arg;
    float *c = args->c.data;
    const int64_t row = args->c.row, nm = args->nm;
    (void)worker;
    for (int64_t block = first; block < end; block++) {
        const int64_t m0 = block * GEMM_MIRROR_ROWS, m1 = gemm_min(m0 + GEMM_MIRROR_ROWS, nm);
        for (int64_t n = 0; n < m0; n += GEMM_MIRROR_ROWS) {
            kr_transpose(c + m0 * row + n, row, m1 - m0, gemm_min(GEMM_MIRROR_ROWS, m0 - n), c + n * row + m0, row);
        }
        for (int64_t m = m0; m < m1; m++) {
            for (int64_t n = m0; n < m; n++) {
                c[n * row + m] = c[m * row + n];
            }
        }
    }
}

static void gemm_complete(const gemm_plan *plan)
{
    const kr_matmul_args *args = plan->args;
    if (args->symmetric && (plan->path == GEMM_SMALL || plan->path == GEMM_LARGE)) {
        kr_ranges_run(args->exec.pool, gemm_ceil_div(args->nm, GEMM_MIRROR_ROWS), args->nm * GEMM_MIRROR_ROWS / 2,
                      gemm_mirror, args);
    }
}

void KR_FN(matmul)(const kr_matmul_args *args)
{
    gemm_plan plan = gemm_plan_of(args);
    switch (plan.path) {
    case GEMM_NOTHING: return;
    case GEMM_GEMV:
    case GEMM_SMALL:
        kr_pool_run(args->exec.pool, gemm_ceil_div(plan.items * plan.m_cuts * plan.n_cuts, plan.units_a_task),
                    gemm_task, &plan);
        gemm_complete(&plan);
        return;
    case GEMM_BASE:
    case GEMM_LARGE: break;
    }
    for (int64_t item = 0; item < plan.items; item++) {
        const gemm_problem p = gemm_item(&plan, item);
        if (plan.path == GEMM_LARGE) {
            gemm_large_run(&p, args->exec.pool, (float *)args->exec.scratch);
        } else {
            gemm_base(&p);
        }
    }
    gemm_complete(&plan);
}

size_t KR_FN(matmul_scratch)(const kr_matmul_args *args)
{
    const gemm_plan plan = gemm_plan_of(args);
    const int workers = kr_pool_size(args->exec.pool);
    int64_t floats = 0;
    if (plan.path == GEMM_SMALL) {
        floats = workers * (int64_t)GEMM_SMALL_SCRATCH;
    } else if (plan.path == GEMM_GEMV) {
        floats = workers * gemm_gemv_scratch(&plan.p);
    } else if (plan.path == GEMM_LARGE) {
        floats = gemm_large_scratch(&plan.p, workers);
    }
    return (size_t)floats * sizeof(float);
}
