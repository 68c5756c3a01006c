/* ssd_round.cuh - operands of f32 rounded to bf16 for the matrix units, or of bf16 widened: all of them in one launch. */
#ifndef KR_KERNELS_CUDA_SSD_ROUND_CUH
#define KR_KERNELS_CUDA_SSD_ROUND_CUH

#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ssd_plan.cuh"

enum { KR_SSD_ROUNDINGS = 5 };

/* Rows of `width` elements, `stride` apart, to contiguous ones. */
typedef struct kr_ssd_rounding {
    const void *from;
    void *to;
    int64_t width, stride, units, first; /* units of 8 elements in all rows; its first block */
    kr_divisor line;                     /* units of a row */
    bool widens;                         /* bf16 to f32; else f32 to bf16 */
    bool aligned;
} kr_ssd_rounding;

typedef struct kr_ssd_roundings {
    kr_ssd_rounding of[KR_SSD_ROUNDINGS];
    int count;
    int64_t blocks;
} kr_ssd_roundings;

/* Takes memory for one more and says where it will be; NULL for NULL. *stride (NULL: rows are contiguous) becomes that
 * of the new rows. */
const void *kr_ssd_round_later(kr_ssd_roundings *r, kr_ssd_memory *m, bool widens, const void *x, int64_t rows,
                               int64_t width, int64_t *stride);

void kr_ssd_round_now(const kr_ssd_roundings *r, cudaStream_t stream);

/* v, b and c of the arguments, kr_ssd_args or kr_ssd_bwd_args, as bf16; or, with widens, as f32. Those that are stay. */
template <typename A> static void kr_ssd_round_operands(A *a, kr_ssd_roundings *r, kr_ssd_memory *m, bool widens)
{
    const int64_t tokens = a->nb * a->ns, values = a->nm * a->nh * a->np, maps = a->nm * a->ng * a->nr;
    if ((a->v_half != KR_NO_HALF) == widens)
        a->v = kr_ssd_round_later(r, m, widens, a->v, tokens, values, &a->v_stride);
    if ((a->b_half != KR_NO_HALF) == widens) a->b = kr_ssd_round_later(r, m, widens, a->b, tokens, maps, &a->b_stride);
    if ((a->c_half != KR_NO_HALF) == widens) a->c = kr_ssd_round_later(r, m, widens, a->c, tokens, maps, &a->c_stride);
    a->v_half = a->b_half = a->c_half = widens ? KR_NO_HALF : KR_HALF_BF16;
}

/* The arguments in f32; their scratch is what is left of m's. */
template <typename A> static A kr_ssd_widened(const A *a, kr_ssd_memory *m)
{
    kr_ssd_roundings r = {};
    A n = *a;
    kr_ssd_round_operands(&n, &r, m, true);
    if (m->base) kr_ssd_round_now(&r, (cudaStream_t)a->exec.stream);
    n.exec.scratch = m->base + m->used;
    return n;
}

#endif
