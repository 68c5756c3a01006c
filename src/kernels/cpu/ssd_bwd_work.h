/* ssd_bwd_work.h - sizes of the backward of the state space core, and the scratch of a worker. */
#ifndef KR_KERNELS_CPU_SSD_BWD_WORK_H
#define KR_KERNELS_CPU_SSD_BWD_WORK_H

#include "kernels/cpu/ssd_parts.h"

typedef struct backward {
    const kr_ssd_bwd_args *a;
    ssd_dims d;
    int64_t state;                /* floats of a state [p][r_line] */
    int64_t r_whole;              /* nr in whole vectors */
    int64_t most_chunks;          /* of a sequence */
    int64_t panel;                /* floats of a panel [f + r][GEMM_NR] */
    int64_t bc_floats;            /* floats of g_b */
    int64_t worker_floats;        /* of a workspace */
    double *partial_d;            /* [q h] */
    float *partial_b, *partial_c; /* of the blocks of heads after the first [blocks - 1][b s m g r] */
    float *workers;
} backward;

/* A worker's scratch. */
typedef struct workspace {
    float *states;    /* before each chunk [heads][chunks][p][r_line] */
    float *g_state;   /* G [heads][p][r_line] */
    float *b, *c;     /* [f][r_line] */
    float *c_t;       /* [r][f_line] */
    float *bc, *g_cb; /* <B_j, C_i> and its gradient, rows j [f][f_line] */
    float *g_b, *g_c; /* [f][r_line] */
    ssd_decays decays;
    float *v, *g_y_decayed; /* V, e^a g_y [f][p_line] */
    float *g_y_t;           /* [p][f_line] */
    float *right;           /* g_y, then G^T [panel][f + r][GEMM_NR] */
    float *rows;            /* T or U of a tile [GEMM_MR][r_line] */
    float *s;               /* S of a tile [GEMM_MR][f_line] */
    float *left;            /* [GEMM_MR][left_line] */
    int64_t left_line;
    float *decay;                 /* e^(a_i - a_t) of one token t [f] */
    float *column;                /* sums of w_j x[i, j] over the rows j already processed [f] */
    double *crossing;             /* of each token t: sum of w_j x[i, j] over t(j) < t <= t(i) [l] */
    double *read_dot, *state_dot; /* <T_i, C_i> and w_j u_j, summed over the rows of a token [l] */
    double *g_w, *g_diag_weight;  /* [l] */
} workspace;

static int64_t take_workspace(const backward *k, workspace *w, float *base)
{
    const ssd_dims *d = &k->d;
    ssd_memory m = { base, 0 };
    w->states = ssd_take(&m, d->heads * k->most_chunks * k->state);
    w->g_state = ssd_take(&m, d->heads * k->state);
    w->b = ssd_take(&m, d->nf * d->r_line);
    w->c = ssd_take(&m, d->nf * d->r_line);
    w->c_t = ssd_take(&m, d->nr * d->f_line);
    w->bc = ssd_take(&m, d->nf * d->f_line);
    w->g_cb = ssd_take(&m, d->nf * d->f_line);
    w->g_b = ssd_take(&m, d->nf * d->r_line);
    w->g_c = ssd_take(&m, d->nf * d->r_line);
    w->decays = ssd_decays_take(&m, d->nf);
    w->v = ssd_take(&m, d->nf * d->p_line);
    w->g_y_decayed = ssd_take(&m, d->nf * d->p_line);
    w->g_y_t = ssd_take(&m, d->np * d->f_line);
    w->right = ssd_take(&m, d->panels * k->panel);
    w->rows = ssd_take(&m, GEMM_MR * d->r_line);
    w->s = ssd_take(&m, GEMM_MR * d->f_line);
    w->left_line = ssd_stride(d->nf + d->nr + SSD_LINE);
    w->left = ssd_take(&m, GEMM_MR * w->left_line);
    w->decay = ssd_take(&m, d->nf);
    w->column = ssd_take(&m, d->nf);
    w->crossing = (double *)(void *)ssd_take(&m, 2 * d->nl);
    w->read_dot = (double *)(void *)ssd_take(&m, 2 * d->nl);
    w->state_dot = (double *)(void *)ssd_take(&m, 2 * d->nl);
    w->g_w = (double *)(void *)ssd_take(&m, 2 * d->nl);
    w->g_diag_weight = (double *)(void *)ssd_take(&m, 2 * d->nl);
    return m.used;
}

static float *state_before(const backward *k, const workspace *w, int64_t i, int64_t chunk)
{
    return w->states + (i * k->most_chunks + chunk) * k->state;
}

#endif
