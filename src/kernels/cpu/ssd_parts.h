/* ssd_parts.h - shared by both directions of the state space core: small matrix products, copies of the operands of a chunk,
 * the split of the work, and a chunk's decays.
 *
 * Ranks are folded into time: row i = t nm + m of a chunk is rank m of its token t, so that v is [f p] with f = l m
 * rows and b, c are [f r]. A task processes one sequence and a few heads of one group; the heads share C B^T.
 */
#ifndef KR_KERNELS_CPU_SSD_PARTS_H
#define KR_KERNELS_CPU_SSD_PARTS_H

#include "kernels/cpu/gemm_kernel.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/transpose.h"
#include "kernels/cpu/vec_math.h"
#include "kernels/args/ssd_args.h"

/* ---- matrix products, on the register tiles of gemm_kernel.h ----
 *
 *   C[m, n] = (C[m, n] if add) + sum over k of A[m, k] B[k, n]
 *
 * A has any strides. B and C have adjacent columns inside a panel of GEMM_NR columns; panels have any stride: GEMM_NR
 * in a plain matrix, or one panel after the other, each [row][GEMM_NR]. B is read in whole vectors, so its rows are
 * padded to a multiple of VF. Rows are split evenly into tiles by ssd_tiles and ssd_tile_begin.
 */

/* A, with its strides along rows and along k. */
typedef struct ssd_left {
    const float *x;
    int64_t row, step;
} ssd_left;

typedef struct ssd_right {
    const float *x;
    int64_t row, panel;
} ssd_right;

typedef struct ssd_out {
    float *x;
    int64_t row, panel;
    bool add;
} ssd_out;

static inline ssd_left ssd_rows(const float *x, int64_t row)
{
    return (ssd_left){ x, row, 1 };
}

/* The transpose of a matrix with row stride `row`. */
static inline ssd_left ssd_columns(const float *x, int64_t row)
{
    return (ssd_left){ x, 1, row };
}

static inline ssd_right ssd_matrix(const float *x, int64_t row)
{
    return (ssd_right){ x, row, GEMM_NR };
}

static inline ssd_right ssd_panels(const float *x, int64_t panel)
{
    return (ssd_right){ x, GEMM_NR, panel };
}

static inline ssd_out ssd_to(float *x, int64_t row)
{
    return (ssd_out){ x, row, GEMM_NR, false };
}

static inline ssd_out ssd_add_to(float *x, int64_t row)
{
    return (ssd_out){ x, row, GEMM_NR, true };
}

static inline int64_t ssd_tiles(int64_t nm)
{
    return kr_blocks(nm, GEMM_MR);
}

static inline int64_t ssd_tile_begin(int64_t nm, int64_t tile)
{
    return nm * tile / ssd_tiles(nm);
}

static void ssd_multiply(int64_t nm, int64_t nn, int64_t nk, ssd_left a, ssd_right b, ssd_out c)
{
    for (int64_t i = 0; i < ssd_tiles(nm); i++) {
        int64_t m = ssd_tile_begin(nm, i), rows = ssd_tile_begin(nm, i + 1) - m;
        gemm_tile tile = { .nk = nk, .a = a.x + m * a.row, .a_m = a.row, .a_k = a.step, .b = b.x, .b_k = b.row };
        tile.out = (gemm_out){ c.x + m * c.row, c.row, NULL, c.add };
        for (int64_t n = 0; n < nn; n += GEMM_NR) {
            tile.nn = kr_smaller(GEMM_NR, nn - n);
            gemm_tile_for(rows, tile.nn)(&tile);
            tile.b += b.panel;
            tile.out.c += c.panel;
        }
    }
}

/* ---- copies of the operands of a chunk to scratch: rows, panels of columns, transposes ---- */

enum { SSD_LINE = 16 }; /* floats of a cache line */

/* y[i] = scale[i] x[i], rows of n columns, padded with zeros to whole vectors; scale NULL is 1. */
static inline void ssd_copy_rows(const float *x, int64_t x_row, const float *scale, int64_t rows, int64_t n, float *y,
                                 int64_t y_row)
{
    for (int64_t i = 0; i < rows; i++) {
        const float *from = x + i * x_row;
        float *to = y + i * y_row;
        vf factor = vf_set1(scale ? scale[i] : 1.0f);
        int64_t k = 0;
        for (; k + VF <= n; k += VF) vf_store(to + k, vf_mul(factor, vf_load(from + k)));
        if (k < n) vf_store(to + k, vf_mul(factor, vf_load_n(from + k, n - k)));
    }
}

/* Rows of n columns into panels of GEMM_NR columns with stride `panel` in floats; the last is padded with zeros. */
static inline void ssd_copy_panels(const float *x, int64_t x_row, int64_t rows, int64_t n, float *y, int64_t panel)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t k = 0; k < n; k += GEMM_NR) {
            const float *from = x + i * x_row + k;
            float *to = y + k / GEMM_NR * panel + i * GEMM_NR;
            if (k + GEMM_NR <= n) {
                for (int q = 0; q < GEMM_NR; q += VF) vf_store(to + q, vf_load(from + q));
            } else {
                for (int q = 0; q < GEMM_NR; q += VF) vf_store(to + q, vf_load_n(from + q, n - k - q));
            }
        }
    }
}

/* Zeros for `count` columns from column `first` on. A product ignores the results there, but stale values may be slow
 * (denormals). */
static inline void ssd_clear_columns(float *y, int64_t y_row, int64_t rows, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < rows; i++) memset(y + i * y_row + first, 0, (size_t)count * sizeof(float));
}

/* A chunk's rows [f r] as [r f], readable from any column in whole vectors: f_line has one spare cache line. */
static inline void ssd_transpose_chunk(const float *x, int64_t x_row, int64_t nf, int64_t n, float *y, int64_t f_line)
{
    kr_transpose(x, x_row, nf, n, y, f_line);
    ssd_clear_columns(y, f_line, n, nf, SSD_LINE);
}

/* Source of the rows of a chunk: nm rows per token of stride `row`, tokens of stride `token`, in floats. With one row
 * per token the row stride is `token`. */
typedef struct ssd_rows_of {
    const float *x;
    int64_t row, token, nm;
} ssd_rows_of;

static inline ssd_rows_of ssd_rows_at(const float *x, int64_t row, int64_t token, int64_t nm)
{
    return (ssd_rows_of){ x, nm == 1 ? token : row, token, nm };
}

/* Number of the nf rows with one stride: all, or those of a token. */
static inline int64_t ssd_run(const ssd_rows_of *from, int64_t nf)
{
    return from->token == from->nm * from->row ? nf : from->nm;
}

/* Row i, the first of its token. */
static inline const float *ssd_row(const ssd_rows_of *from, int64_t i)
{
    return from->x + i / from->nm * from->token;
}

/* ssd_copy_rows of a chunk's nf rows. */
static inline void ssd_fetch_rows(ssd_rows_of from, const float *scale, int64_t nf, int64_t n, float *y, int64_t y_row)
{
    int64_t run = ssd_run(&from, nf);
    for (int64_t i = 0; i < nf; i += run)
        ssd_copy_rows(ssd_row(&from, i), from.row, scale ? scale + i : NULL, run, n, y + i * y_row, y_row);
}

/* ssd_copy_panels of a chunk's nf rows. */
static inline void ssd_fetch_panels(ssd_rows_of from, int64_t nf, int64_t n, float *y, int64_t panel)
{
    int64_t run = ssd_run(&from, nf);
    for (int64_t i = 0; i < nf; i += run) ssd_copy_panels(ssd_row(&from, i), from.row, run, n, y + i * GEMM_NR, panel);
}

/* ssd_transpose_chunk of a chunk's nf rows. */
static inline void ssd_fetch_transposed(ssd_rows_of from, int64_t nf, int64_t n, float *y, int64_t f_line)
{
    int64_t run = ssd_run(&from, nf);
    for (int64_t i = 0; i < nf; i += run) kr_transpose(ssd_row(&from, i), from.row, run, n, y + i, f_line);
    ssd_clear_columns(y, f_line, n, nf, SSD_LINE);
}

/* The columns of panel number `panel` of np. */
static inline int64_t ssd_panel_columns(int64_t np, int64_t panel)
{
    return kr_smaller(GEMM_NR, np - panel * GEMM_NR);
}

/* A matrix [p n] as panels of columns p, each [n][GEMM_NR], with stride `panel` in floats. */
static inline void ssd_transpose_to_panels(const float *x, int64_t x_row, int64_t np, int64_t n, float *y,
                                           int64_t panel)
{
    for (int64_t i = 0; i * GEMM_NR < np; i++) {
        int64_t columns = ssd_panel_columns(np, i);
        kr_transpose(x + i * GEMM_NR * x_row, x_row, columns, n, y + i * panel, GEMM_NR);
        if (columns < GEMM_NR) ssd_clear_columns(y + i * panel, GEMM_NR, n, columns, GEMM_NR - columns);
    }
}

static inline void ssd_scale(float *x, int64_t n, float factor)
{
    vf f = vf_set1(factor);
    int64_t i = 0;
    for (; i + VF <= n; i += VF) vf_store(x + i, vf_mul(f, vf_load(x + i)));
    if (i < n) vf_store_n(x + i, n - i, vf_mul(f, vf_load_n(x + i, n - i)));
}

/* ---- the split of the work ---- */

enum {
    SSD_HEADS = 6, /* of a task at most; fewer share C B^T less, more to_end fewer tasks */
    SSD_ROWS = 512 /* of a chunk at most: longer ones cost more than they save */
};

typedef struct ssd_dims {
    int64_t nb, ns, nm, nh, np, ng, nr, nq;
    int64_t period, parts;          /* the caller's chunk length, and the chunks that it is processed in */
    int64_t nl, nf;                 /* tokens and rows of such a chunk; the last of a period may be shorter */
    int64_t heads, blocks;          /* heads of a task, tasks of a group and sequence */
    int64_t p_line, r_line, f_line; /* row strides of matrices with np, nr, nf columns */
    int64_t panels;                 /* of np columns */
} ssd_dims;

static inline int64_t ssd_round_up(int64_t n, int64_t to)
{
    return kr_blocks(n, to) * to;
}

/* A row stride for n columns: an odd number of lines, so that rows spread over all sets of a cache. */
static inline int64_t ssd_stride(int64_t n)
{
    return (kr_blocks(n, SSD_LINE) | 1) * SSD_LINE;
}

/* Computes the sizes that depend on nm .. nr; nl is the caller's chunk length. A period begins at each multiple of it, however
 * many rows a token has: a sequence that is cut there has the chunks of its parts. */
static inline void ssd_cut(ssd_dims *d, int64_t nl)
{
    const int64_t longest = (int64_t)1 << 40; /* longer than any sequence */
    int64_t of_group = d->nh / d->ng;
    d->period = kr_smaller(kr_larger(1, nl), longest);
    d->parts = kr_blocks(d->period, kr_larger(1, SSD_ROWS / d->nm));
    d->nl = kr_larger(1, kr_smaller(kr_blocks(d->period, d->parts), d->ns));
    d->nf = d->nl * d->nm;
    d->blocks = kr_blocks(of_group, SSD_HEADS);
    if (d->ng == 1 && d->blocks % 2 == 1) d->blocks++; /* an even number of tasks keeps two threads busy */
    d->heads = kr_blocks(of_group, d->blocks);
    d->blocks = kr_blocks(of_group, d->heads);
    d->p_line = ssd_stride(d->np);
    d->r_line = ssd_stride(d->nr);
    d->f_line = ssd_stride(d->nf + SSD_LINE);
    d->panels = kr_blocks(d->np, GEMM_NR);
}

/* Units of kr_ranges_run are tasks (q, group, block). Their size in its elements, some 30 multiply-adds each: of the
 * state, whose sides are whole vectors, and of the pairs in a chunk; at least the cost of reading and writing the
 * states. */
static inline int64_t ssd_units(const ssd_dims *d)
{
    return d->nq * d->ng * d->blocks;
}

static inline int64_t ssd_unit_elements(const ssd_dims *d)
{
    double tokens = (double)d->nb * (double)d->ns / (double)kr_larger(1, d->nq);
    double rows = tokens * (double)d->nm;
    double p = (double)ssd_round_up(d->np, VF), r = (double)ssd_round_up(d->nr, VF),
           pairs = rows < (double)d->nf ? rows : (double)d->nf;
    double work = (rows > 2 ? rows : 2) * (double)d->heads * (p * r + pairs * (p + r) / 2) / 16;
    return work < KR_TASK_ELEMENTS ? (int64_t)work : KR_TASK_ELEMENTS;
}

typedef struct ssd_unit {
    int64_t q, e, block; /* sequence, group, block of heads in the group */
    int64_t h0, nheads;
} ssd_unit;

static inline ssd_unit ssd_unit_at(const ssd_dims *d, int64_t index)
{
    ssd_unit u = { .q = index / d->blocks / d->ng, .e = index / d->blocks % d->ng, .block = index % d->blocks };
    int64_t of_group = d->nh / d->ng;
    u.h0 = u.e * of_group + u.block * d->heads;
    u.nheads = kr_smaller(d->heads, (u.e + 1) * of_group - u.h0);
    return u;
}

/* A chunk of a sequence: tokens at .. at+nt-1 of [b s], nf rows. */
typedef struct ssd_chunk {
    int64_t at, nt, nf;
} ssd_chunk;

static inline ssd_chunk ssd_chunk_at(const ssd_dims *d, const kr_sequence *s, int64_t n)
{
    int64_t t = n / d->parts * d->period + n % d->parts * d->nl; /* from the start of the sequence */
    int64_t end = kr_smaller((n / d->parts + 1) * d->period, s->end - s->start), nt = kr_smaller(d->nl, end - t);
    return (ssd_chunk){ s->row * d->ns + s->start + t, nt, nt * d->nm };
}

/* Chunks of that many tokens. */
static inline int64_t ssd_chunks_of(const ssd_dims *d, int64_t count)
{
    return count / d->period * d->parts + kr_blocks(count % d->period, d->nl);
}

static inline int64_t ssd_chunks(const ssd_dims *d, const kr_sequence *s)
{
    return ssd_chunks_of(d, s->end - s->start);
}

/* ---- memory ---- */

/* Allocates parts of scratch in whole cache lines; without memory it only counts. */
typedef struct ssd_memory {
    float *base;
    int64_t used;
} ssd_memory;

static inline float *ssd_take(ssd_memory *m, int64_t floats)
{
    float *part = m->base ? m->base + m->used : NULL;
    m->used += ssd_round_up(floats, SSD_LINE);
    return part;
}

/* ---- decays ---- */

/* Of one head and chunk, for each row: a is the sum of da over the chunk's tokens up to and including the row's token. */
typedef struct ssd_decays {
    float *high, *low;    /* a = high + low: differences of nearby sums keep their accuracy */
    float *from_start;    /* e^a: decay from the chunk's start to the row */
    float *to_end;        /* e^(a_end - a): decay from the row to the chunk's end */
    float *weight;        /* w */
    float *weight_to_end; /* to_end w */
    float chunk;          /* e^a_end */
} ssd_decays;

static inline ssd_decays ssd_decays_take(ssd_memory *m, int64_t nf)
{
    return (ssd_decays){
        ssd_take(m, nf), ssd_take(m, nf), ssd_take(m, nf), ssd_take(m, nf), ssd_take(m, nf), ssd_take(m, nf), 1
    };
}

/* e^x, with 0 for denormal results: such lanes are slow and contribute nothing. */
KR_INLINE vf ssd_exp(vf x)
{
    vf y = vf_exp(x);
    return vf_select(vf_lt(x, vf_set1(-87)), vf_zero(), y);
}

/* e^(a_t - a_i) with a_t given in two parts. */
KR_INLINE vf ssd_exp_difference(vf high_t, vf low_t, vf high_i, vf low_i)
{
    return ssd_exp(vf_add(vf_sub(high_t, high_i), vf_sub(low_t, low_i)));
}

/* da, w point at the chunk's first token and the head; token stride nh. */
static inline void ssd_decays_fill(ssd_decays *d, const float *da, const float *w, int64_t nh, int64_t nt, int64_t nm)
{
    double sum = 0;
    for (int64_t t = 0; t < nt; t++) {
        float step = da[t * nh];
        /* below it e^da is 0 anyway, and the sum keeps its digits */
        sum += (double)(step < -1e6f ? -1e6f : step);
        float high = (float)sum, low = (float)(sum - (double)high), weight = w ? w[t * nh] : 1.0f;
        for (int64_t i = t * nm; i < (t + 1) * nm; i++) {
            d->high[i] = high;
            d->low[i] = low;
            d->weight[i] = weight;
        }
    }
    int64_t nf = nt * nm;
    float high_end = d->high[nf - 1], low_end = d->low[nf - 1];
    vf high = vf_set1(high_end), low = vf_set1(low_end);
    for (int64_t i = 0; i < nf; i += VF) {
        vf high_i = vf_load_n(d->high + i, nf - i), low_i = vf_load_n(d->low + i, nf - i);
        vf to_end = ssd_exp_difference(high, low, high_i, low_i);
        vf_store_n(d->from_start + i, nf - i, ssd_exp(vf_add(high_i, low_i)));
        vf_store_n(d->to_end + i, nf - i, to_end);
        vf_store_n(d->weight_to_end + i, nf - i, vf_mul(to_end, vf_load_n(d->weight + i, nf - i)));
    }
    d->chunk = d->from_start[nf - 1];
}

#endif
