/* gemm_gemv.h - products with up to GEMM_GEMV_ROWS rows of A where B is adjacent along k (a weight [n k]): each element
 * of B is read once, in place, at memory bandwidth.
 *
 *   A [m k] any strides      B [k n], b_k = 1      C [m n] columns adjacent
 *
 * Lanes run over n and chains over k, as in the tile kernel, so that the bits are the same. A strand is one chain of
 * eight columns; four strands run interleaved, which hides the latency of an FMA. Strands are processed in address
 * order, all chains of eight columns before the next eight: then their lines fall into different sets of the
 * first-level cache even where b_n is a power of two.
 */
#ifndef KR_KERNELS_CPU_GEMM_GEMV_H
#define KR_KERNELS_CPU_GEMM_GEMV_H

#include "kernels/cpu/gemm_pack.h"

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
                               const kr_storage_dtype dtype)
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
                              const int nm, const kr_storage_dtype dtype)
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
                                 const kr_storage_dtype dtype)
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
GEMM_STRANDS_OF(f32, KR_STORAGE_NATIVE)
GEMM_STRANDS_OF(bf16, KR_STORAGE_BF16)
GEMM_STRANDS_OF(f16, KR_STORAGE_F16)
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
    static gemm_gemv_fn *const strands[][GEMM_GEMV_ROWS] = { [KR_STORAGE_NATIVE] = GEMM_STRANDS_OF(f32),
                                                             [KR_STORAGE_BF16] = GEMM_STRANDS_OF(bf16),
                                                             [KR_STORAGE_F16] = GEMM_STRANDS_OF(f16) };
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

#endif
