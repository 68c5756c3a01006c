/* ssd_round.cuh - operands of f32 rounded to bf16 for the matrix units, or of bf16 widened: all of them in one launch; and
 * results of f32 brought to places that are not. */
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
const void *kr_ssd_round_later(kr_ssd_roundings *r, kr_cuda_scratch *m, bool widens, const void *x, int64_t rows,
                               int64_t width, int64_t *stride);

void kr_ssd_round_now(const kr_ssd_roundings *r, cudaStream_t stream);

/* v, b and c of the arguments, kr_ssd_args or kr_ssd_bwd_args, as bf16; or, with widens, as f32. Those that are stay. */
template <typename A> static void kr_ssd_round_operands(A *a, kr_ssd_roundings *r, kr_cuda_scratch *m, bool widens)
{
    const int64_t tokens = a->nb * a->ns, values = a->nm * a->nh * a->np, maps = a->nm * a->ng * a->nr;
    if ((a->v_half != KR_NO_HALF) == widens)
        a->v = kr_ssd_round_later(r, m, widens, a->v, tokens, values, &a->v_stride);
    if ((a->b_half != KR_NO_HALF) == widens) a->b = kr_ssd_round_later(r, m, widens, a->b, tokens, maps, &a->b_stride);
    if ((a->c_half != KR_NO_HALF) == widens) a->c = kr_ssd_round_later(r, m, widens, a->c, tokens, maps, &a->c_stride);
    a->v_half = a->b_half = a->c_half = widens ? KR_NO_HALF : KR_HALF_BF16;
}

/* ---- results ---- */

/* A result that is made in f32, contiguous, and then brought to its place: rounded, or with its tokens apart. */
typedef struct kr_ssd_result {
    const float *from;
    void *to;
    int64_t width, stride;
    kr_half half;
} kr_ssd_result;

typedef struct kr_ssd_results {
    kr_ssd_result of[3];
    int count;
    kr_ssd_map map; /* of the tokens that are written */
} kr_ssd_results;

/* Takes memory for one more and says where it is to be made; `to` itself where m only counts. */
void *kr_ssd_result_later(kr_ssd_results *r, kr_cuda_scratch *m, void *to, int64_t tokens, int64_t width,
                          int64_t stride, kr_half half);

void kr_ssd_results_bring(const kr_ssd_results *r, cudaStream_t stream);

#endif
