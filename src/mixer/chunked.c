/* chunked.c - Minimal and Serial: the chunked formulas, composed of ops and differentiated by the tape.
 *
 * Time is split into n chunks of l steps; the rank is folded into time: f = l*m rows, row i at step t(i) = i / m. With
 * a the prefix sum of da inside a chunk and a_end its last value:
 *
 *   W[i,j]  = <C_i, B_j> M[t(i), t(j)],   M[t,u] = exp(a_t - a_u) w_u for t >= u   (strict: for t > u, and gamma_t at t = u)
 *   Y_in    = W V                          contribution of the chunk's tokens
 *   S       = sum_j exp(a_end - a_t(j)) w_t(j) V_j (outer) B_j              the chunk's addition to the state
 *   H_next  = exp(a_end) H + S             from chunk to chunk
 *   Y_off_i = exp(a_t(i)) H C_i            contribution of the state before the chunk
 *
 * gamma is diag_weight. Minimal passes the states through all chunks by one product with exp(segsum([0, a_end]));
 * Serial loops over the chunks. A partial last chunk is padded with steps that change nothing: V = B = C = 0, da = 0.
 */
#include "mixer/core.h"

/* The operands of a core, in chunks. */
typedef struct chunks {
    int64_t nb, nn, nl, nm, nh, np, nr, nf;
    kr_tensor *v_bnhfp, *b_bnhfr, *c_bnhfr;
    kr_tensor *da_bnhl, *w_bnhl, *diag_weight_bnhl; /* w, diag_weight: NULL as in the core */
    kr_tensor *a_bnhl, *a_end_bnh1;
} chunks;

/* x [b s ...] padded to n*l steps and split: [b n l ...]. */
static kr_tensor *cut(kr_tape *tape, const chunks *k, kr_tensor *x, int64_t ns)
{
    if (!x) return NULL;
    const int64_t missing = k->nn * k->nl - ns;
    if (missing > 0) x = kr_pad(tape, x, 1, 0, missing, 0);
    kr_shape shape = kr_tensor_shape(x);
    for (int axis = shape.rank++; axis > 2; axis--) shape.dims[axis] = shape.dims[axis - 1];
    shape.dims[1] = k->nn;
    shape.dims[2] = k->nl;
    return kr_reshape(tape, x, shape);
}

/* [b s h] -> [b n h l] */
static kr_tensor *cut_steps(kr_tape *tape, const chunks *k, kr_tensor *x_bsh, int64_t ns)
{
    return x_bsh ? kr_permute(tape, cut(tape, k, x_bsh, ns), KR_AXES(0, 1, 3, 2)) : NULL;
}

/* [b s m g r] -> [b n h f r]: groups repeated for their heads, rank folded into time. */
static kr_tensor *cut_bc(kr_tape *tape, const chunks *k, kr_tensor *x_bsmgr, int64_t ns, int64_t ng)
{
    kr_tensor *x_bnlmgr = cut(tape, k, x_bsmgr, ns);
    kr_tensor *x_bngolmr = kr_reshape(tape, kr_permute(tape, x_bnlmgr, KR_AXES(0, 1, 4, 2, 3, 5)),
                                      KR_SHAPE(k->nb, k->nn, ng, 1, k->nf, k->nr));
    x_bngolmr = kr_expand(tape, x_bngolmr, KR_SHAPE(k->nb, k->nn, ng, k->nh / ng, k->nf, k->nr));
    return kr_reshape(tape, x_bngolmr, KR_SHAPE(k->nb, k->nn, k->nh, k->nf, k->nr));
}

static chunks cut_core(kr_tape *tape, const kr_ssd_core *core)
{
    const int64_t nl = core->nl < core->ns ? core->nl : core->ns;
    chunks k = { .nb = core->nb, .nn = (core->ns + nl - 1) / nl, .nl = nl, .nm = core->nm };
    k.nh = core->nh;
    k.np = core->np;
    k.nr = core->nr;
    k.nf = nl * core->nm;
    kr_tensor *v_bsmhp = cut(tape, &k, core->v_bsmhp, core->ns);
    k.v_bnhfp =
        kr_reshape(tape, kr_permute(tape, v_bsmhp, KR_AXES(0, 1, 4, 2, 3, 5)), KR_SHAPE(k.nb, k.nn, k.nh, k.nf, k.np));
    k.b_bnhfr = cut_bc(tape, &k, core->b_bsmgr, core->ns, core->ng);
    k.c_bnhfr = cut_bc(tape, &k, core->c_bsmgr, core->ns, core->ng);
    k.da_bnhl = cut_steps(tape, &k, core->da_bsh, core->ns);
    k.w_bnhl = cut_steps(tape, &k, core->w_bsh, core->ns);
    k.diag_weight_bnhl = cut_steps(tape, &k, core->diag_weight_bsh, core->ns);
    k.a_bnhl = kr_cumsum(tape, k.da_bnhl, -1);
    k.a_end_bnh1 = kr_slice(tape, k.a_bnhl, -1, nl - 1, nl);
    return k;
}

/* [b n h l] -> [b n h f 1]: the value of a step for each of its ranks, as a column. */
static kr_tensor *as_column(kr_tape *tape, const chunks *k, kr_tensor *x_bnhl)
{
    kr_tensor *x = kr_reshape(tape, x_bnhl, KR_SHAPE(k->nb, k->nn, k->nh, k->nl, 1));
    x = kr_expand(tape, x, KR_SHAPE(k->nb, k->nn, k->nh, k->nl, k->nm));
    return kr_reshape(tape, x, KR_SHAPE(k->nb, k->nn, k->nh, k->nf, 1));
}

/* 1 on the diagonal, as a mask. */
static kr_tensor *diagonal(kr_tape *tape, int64_t n)
{
    kr_tensor *one = kr_full(tape, KR_DTYPE_I32, KR_SHAPE(n, 1), 1);
    kr_tensor *padded = kr_pad(tape, one, 1, 0, n, 0); /* 1 0 0 .. 0, n rows of n + 1 */
    kr_tensor *flat = kr_reshape(tape, padded, KR_SHAPE(n * (n + 1)));
    return kr_reshape(tape, kr_slice(tape, flat, 0, 0, n * n), KR_SHAPE(n, n)); /* read in rows of n */
}

/* M of the formulas, [b n h f f]. */
static kr_tensor *decay_matrix(kr_tape *tape, const chunks *k)
{
    kr_tensor *m_bnhll = kr_exp(tape, kr_segsum(tape, k->da_bnhl));
    if (k->w_bnhl)
        m_bnhll = kr_mul(tape, m_bnhll, kr_reshape(tape, k->w_bnhl, KR_SHAPE(k->nb, k->nn, k->nh, 1, k->nl)));
    if (k->diag_weight_bnhl) {
        kr_tensor *gamma = kr_reshape(tape, k->diag_weight_bnhl, KR_SHAPE(k->nb, k->nn, k->nh, k->nl, 1));
        m_bnhll = kr_where(tape, diagonal(tape, k->nl), gamma, m_bnhll);
    }
    if (k->nm == 1) return m_bnhll;
    /* each step is repeated for its m ranks, in rows and in columns */
    const int64_t rows = k->nb * k->nn * k->nh;
    kr_tensor *m = kr_reshape(tape, m_bnhll, KR_SHAPE(rows, k->nl, 1, k->nl, 1));
    m = kr_expand(tape, m, KR_SHAPE(rows, k->nl, k->nm, k->nl, k->nm));
    return kr_reshape(tape, m, KR_SHAPE(k->nb, k->nn, k->nh, k->nf, k->nf));
}

static kr_tensor *inside(kr_tape *tape, const chunks *k)
{
    kr_tensor *cb_bnhff = kr_matmul(tape, k->c_bnhfr, kr_transpose(tape, k->b_bnhfr));
    return kr_matmul(tape, kr_mul(tape, cb_bnhff, decay_matrix(tape, k)), k->v_bnhfp);
}

/* a_end - a [b n h l], as the sum of da over the later steps of the chunk. The gradient of a subtraction would be a
 * difference of sums over the whole chunk, whose rounding errors exceed a g_da that is smaller than the others. */
static kr_tensor *decay_to_end(kr_tape *tape, const chunks *k)
{
    kr_tensor *later = kr_slice(tape, k->da_bnhl, -1, 1, k->nl);
    return kr_cumsum_reverse(tape, kr_pad(tape, later, -1, 0, 1, 0), -1);
}

/* S, [b n h p r]. */
static kr_tensor *added_states(kr_tape *tape, const chunks *k)
{
    kr_tensor *weight_bnhl = kr_exp(tape, decay_to_end(tape, k));
    if (k->w_bnhl) weight_bnhl = kr_mul(tape, weight_bnhl, k->w_bnhl);
    kr_tensor *v_bnhfp = kr_mul(tape, k->v_bnhfp, as_column(tape, k, weight_bnhl));
    return kr_matmul(tape, kr_transpose(tape, v_bnhfp), k->b_bnhfr);
}

/* States before each chunk [b n h p r] and after the last [b h p r]. */
typedef struct passed {
    kr_tensor *before_bnhpr, *final_bhpr;
} passed;

static passed pass_minimal(kr_tape *tape, const chunks *k, kr_tensor *h0_bhpr, kr_tensor *s_bnhpr)
{
    const int64_t n1 = k->nn + 1, pr = k->np * k->nr;
    kr_tensor *first = kr_reshape(tape, h0_bhpr, KR_SHAPE(k->nb, 1, k->nh, pr));
    kr_tensor *rest = kr_reshape(tape, s_bnhpr, KR_SHAPE(k->nb, k->nn, k->nh, pr));
    kr_tensor *all = kr_concat(tape, 1, 2, (kr_tensor *[]){ first, rest });
    kr_tensor *all_bhnx = kr_permute(tape, all, KR_AXES(0, 2, 1, 3));
    kr_tensor *a_end_bhn =
        kr_permute(tape, kr_reshape(tape, k->a_end_bnh1, KR_SHAPE(k->nb, k->nn, k->nh)), KR_AXES(0, 2, 1));
    kr_tensor *decay_bhnn = kr_exp(tape, kr_segsum(tape, kr_pad(tape, a_end_bhn, 2, 1, 0, 0)));
    kr_tensor *states_bhnx = kr_matmul(tape, decay_bhnn, all_bhnx);
    kr_tensor *before_bhnx = kr_slice(tape, states_bhnx, 2, 0, k->nn);
    return (
        passed){ kr_reshape(tape, kr_permute(tape, before_bhnx, KR_AXES(0, 2, 1, 3)),
                            KR_SHAPE(k->nb, k->nn, k->nh, k->np, k->nr)),
                 kr_reshape(tape, kr_slice(tape, states_bhnx, 2, k->nn, n1), KR_SHAPE(k->nb, k->nh, k->np, k->nr)) };
}

/* Chunk `n` of x [b n ...], without the chunk axis; `shape` is what remains. */
static kr_tensor *chunk_of(kr_tape *tape, kr_tensor *x, int64_t n, kr_shape shape)
{
    return kr_reshape(tape, kr_slice(tape, x, 1, n, n + 1), shape);
}

static passed pass_serial(kr_tape *tape, const chunks *k, kr_tensor *h_bhpr, kr_tensor *s_bnhpr)
{
    const passed none = { NULL, NULL };
    kr_tensor **before = kr_arena_alloc(&tape->heads, (size_t)k->nn * sizeof *before);
    if (!before) {
        kr_fail(tape->ctx, KR_ERR_NOMEM, "ssd: no memory for the states of %lld chunks", (long long)k->nn);
        return none;
    }
    kr_tensor *decay_bnh1 = kr_exp(tape, k->a_end_bnh1);
    for (int64_t n = 0; n < k->nn; n++) {
        before[n] = kr_reshape(tape, h_bhpr, KR_SHAPE(k->nb, 1, k->nh, k->np, k->nr));
        kr_tensor *decay = chunk_of(tape, decay_bnh1, n, KR_SHAPE(k->nb, k->nh, 1, 1));
        kr_tensor *added = chunk_of(tape, s_bnhpr, n, KR_SHAPE(k->nb, k->nh, k->np, k->nr));
        h_bhpr = kr_add(tape, kr_mul(tape, h_bhpr, decay), added);
    }
    return (passed){ kr_concat(tape, 1, (int)k->nn, before), h_bhpr };
}

/* [b n h f p] -> [b s m h p], without the padding of the last chunk. */
static kr_tensor *join(kr_tape *tape, const chunks *k, kr_tensor *y_bnhfp, int64_t ns)
{
    kr_tensor *y = kr_reshape(tape, y_bnhfp, KR_SHAPE(k->nb, k->nn, k->nh, k->nl, k->nm, k->np));
    y = kr_reshape(tape, kr_permute(tape, y, KR_AXES(0, 1, 3, 4, 2, 5)),
                   KR_SHAPE(k->nb, k->nn * k->nl, k->nm, k->nh, k->np));
    return k->nn * k->nl == ns ? y : kr_slice(tape, y, 1, 0, ns);
}

kr_ssd_out kr_ssd_chunked(kr_tape *tape, const kr_ssd_core *core, bool serial)
{
    const chunks k = cut_core(tape, core);
    kr_tensor *h0_bhpr = core->initial_qhpr;
    if (!h0_bhpr) h0_bhpr = kr_zeros(tape, core->v_bsmhp->dtype, KR_SHAPE(k.nb, k.nh, k.np, k.nr));
    kr_tensor *s_bnhpr = added_states(tape, &k);
    const passed states = serial ? pass_serial(tape, &k, h0_bhpr, s_bnhpr) : pass_minimal(tape, &k, h0_bhpr, s_bnhpr);

    kr_tensor *ch_bnhfp = kr_matmul(tape, k.c_bnhfr, kr_transpose(tape, states.before_bnhpr));
    kr_tensor *off_bnhfp = kr_mul(tape, ch_bnhfp, as_column(tape, &k, kr_exp(tape, k.a_bnhl)));
    kr_tensor *y_bsmhp = join(tape, &k, kr_add(tape, inside(tape, &k), off_bnhfp), core->ns);
    if (core->d_h)
        y_bsmhp = kr_add(tape, y_bsmhp, kr_mul(tape, core->v_bsmhp, kr_reshape(tape, core->d_h, KR_SHAPE(k.nh, 1))));
    return (kr_ssd_out){ .y = y_bsmhp, .final_state = states.final_bhpr };
}
