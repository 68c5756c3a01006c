/* optimizer_cpu.c - steps of AdamW and of gradient descent with momentum, and the moving average (lerp), in f32
 * vectors: one pass over every operand.
 *
 *   adamw:  m += (1 - beta1) (h - m);   v += (1 - beta2) (h^2 - v);   w -= decay w + rate m / (root v^1/2 + eps)
 *   sgd:    velocity = momentum velocity + gain h;   d = velocity or h + momentum velocity;   w -= decay w + rate d
 *   lerp:   y += c (x - y)
 * Definitions: kernels/args/optimizer_args.h. The whole decrement of w is formed first, so that a decay much smaller
 * than an ulp of 1 still counts together with the other terms.
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/vec_widen.h"

enum { PIECE = 4096 }; /* elements of a unit of work */

static int64_t pieces_of(int64_t n)
{
    return kr_blocks(n, PIECE);
}

/* Elements i .. i + n - 1 of the gradient as the step uses them, n <= VF. */
KR_INLINE vf take(const kr_taken_grad *grad, int64_t i, int64_t n)
{
    const vf clip = vf_set1((float)grad->clip);
    const vf scaled = vf_mul(vf_set1((float)grad->scale), load_widened(grad->g.data, i, n, grad->g.dtype));
    if (grad->clears && kr_is_16bit(grad->g.dtype))
        memset((uint16_t *)grad->g.data + i, 0, (size_t)kr_smaller(n, VF) * sizeof(uint16_t));
    else if (grad->clears) row_store((float *)grad->g.data + i, n, vf_zero());
    return vf_max(vf_neg(clip), vf_min(clip, scaled)); /* in this order a NaN propagates */
}

KR_INLINE void adamw_vector(const kr_adamw_args *a, int64_t i, int64_t n)
{
    float *w_at = (float *)a->w + i, *m_at = (float *)a->m + i, *v_at = (float *)a->v + i;
    const vf h = take(&a->grad, i, n), w = row_load(w_at, n);
    vf m = row_load(m_at, n), v = row_load(v_at, n), decay = vf_set1((float)a->decay);
    m = vf_fma(vf_set1((float)(1 - a->beta1)), vf_sub(h, m), m);
    v = vf_fma(vf_set1((float)(1 - a->beta2)), vf_sub(vf_mul(h, h), v), v);
    if (a->cautious) {
        const vf rises = vf_keep(vf_ge(w, vf_zero()), vf_set1(1)), follows = vf_keep(vf_ge(m, vf_zero()), vf_set1(1));
        decay = vf_keep(vf_eq(rises, follows), decay);
    }
    const vf below = vf_fma(vf_set1((float)a->root), vf_sqrt(v), vf_set1((float)a->eps));
    const vf step = vf_div(vf_mul(vf_set1((float)a->rate), m), below);
    row_store(w_at, n, vf_sub(w, vf_fma(decay, w, step)));
    row_store(m_at, n, m);
    row_store(v_at, n, v);
}

static void adamw_pieces(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_adamw_args a = *(const kr_adamw_args *)args;
    const int64_t stop = kr_smaller(end * PIECE, a.n);
    int64_t i = first * PIECE;
    for (; i + VF <= stop; i += VF) adamw_vector(&a, i, VF);
    if (i < stop) adamw_vector(&a, i, stop - i);
}

void KR_FN(adamw)(const kr_adamw_args *a)
{
    kr_ranges_run(a->exec.pool, pieces_of(a->n), PIECE, adamw_pieces, a);
}

KR_INLINE void sgd_vector(const kr_sgd_args *a, int64_t i, int64_t n)
{
    const vf momentum = vf_set1((float)a->momentum);
    vf h = take(&a->grad, i, n), w = vf_zero(), d;
    if (!a->direction || a->penalty != 0) w = row_load((const float *)a->w + i, n);
    if (a->penalty != 0) h = vf_fma(vf_set1((float)a->penalty), w, h);
    d = h;
    if (a->velocity) {
        float *at = (float *)a->velocity + i;
        vf speed = h;
        if (!a->is_first) speed = vf_fma(momentum, row_load(at, n), vf_mul(vf_set1((float)a->gain), h));
        d = a->nesterov ? vf_fma(momentum, speed, h) : speed;
        row_store(at, n, speed);
    }
    if (a->direction) row_store((float *)a->direction + i, n, d);
    else {
        const vf step = vf_mul(vf_set1((float)a->rate), d);
        row_store((float *)a->w + i, n, vf_sub(w, vf_fma(vf_set1((float)a->decay), w, step)));
    }
}

static void sgd_pieces(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_sgd_args a = *(const kr_sgd_args *)args;
    const int64_t stop = kr_smaller(end * PIECE, a.n);
    int64_t i = first * PIECE;
    for (; i + VF <= stop; i += VF) sgd_vector(&a, i, VF);
    if (i < stop) sgd_vector(&a, i, stop - i);
}

void KR_FN(sgd)(const kr_sgd_args *a)
{
    kr_ranges_run(a->exec.pool, pieces_of(a->n), PIECE, sgd_pieces, a);
}

KR_INLINE void lerp_vector(const float *x, float *y, int64_t n, vf c)
{
    const vf old = row_load(y, n);
    row_store(y, n, vf_fma(c, vf_sub(row_load(x, n), old), old));
}

static void lerp_pieces(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_lerp_args *a = args;
    const int64_t stop = kr_smaller(end * PIECE, a->n);
    const float *x = a->x;
    float *y = a->y;
    const vf c = vf_set1((float)a->c);
    int64_t i = first * PIECE;
    for (; i + VF <= stop; i += VF) lerp_vector(x + i, y + i, VF, c);
    if (i < stop) lerp_vector(x + i, y + i, stop - i, c);
}

void KR_FN(lerp)(const kr_lerp_args *a)
{
    kr_ranges_run(a->exec.pool, pieces_of(a->n), PIECE, lerp_pieces, a);
}
