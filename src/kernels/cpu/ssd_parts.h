/* ssd_parts.h - shared by both directions of the state space core: the split of the work, and a chunk's decays.
 *
 * Ranks are folded into time: row i = t nm + m of a chunk is rank m of its token t, so that v is [f p] with f = l m
 * rows and b, c are [f r]. A task processes one sequence and a few heads of one group; the heads share C B^T.
 */
#ifndef KR_KERNELS_CPU_SSD_PARTS_H
#define KR_KERNELS_CPU_SSD_PARTS_H

#include "kernels/cpu/ssd_copies.h"
#include "kernels/cpu/vec_math.h"
#include "kernels/args/ssd_args.h"

enum {
    SSD_HEADS = 6, /* of a task at most; fewer share C B^T less, more to_end fewer tasks */
    SSD_ROWS = 512 /* of a chunk at most: longer ones cost more than they save */
};

typedef struct ssd_dims {
    int64_t nb, ns, nm, nh, np, ng, nr, nq;
    int64_t nl, nf;                 /* tokens and rows of a whole chunk */
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

/* Computes the sizes that depend on nm .. nr; nl is the caller's chunk length. */
static inline void ssd_cut(ssd_dims *d, int64_t nl)
{
    int64_t of_group = d->nh / d->ng;
    d->nl = kr_larger(1, kr_smaller(kr_smaller(nl, d->ns), SSD_ROWS / d->nm));
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
    int64_t t = s->start + n * d->nl, nt = kr_smaller(d->nl, s->end - t);
    return (ssd_chunk){ s->row * d->ns + t, nt, nt * d->nm };
}

static inline int64_t ssd_chunks(const ssd_dims *d, const kr_sequence *s)
{
    return kr_blocks(s->end - s->start, d->nl);
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
