/* ssd_cast.cuh - casts f32 operands to bf16 for the tensor cores, or bf16 operands to f32, all in one launch; and stores
 * f32 results to bf16 or strided destinations. */
#ifndef KR_KERNELS_CUDA_SSD_SSD_CAST_CUH
#define KR_KERNELS_CUDA_SSD_SSD_CAST_CUH

#include "kernels/cuda/prim/math.cuh"
#include "kernels/cuda/ssd/ssd_plan.cuh"

enum { KR_SSD_MAX_CASTS = 5 };

/* Rows of `width` elements with row stride `stride`, to contiguous ones. */
typedef struct kr_ssd_cast {
    const void *from;
    void *to;
    int64_t width, stride, units, first; /* units of 8 elements in all rows; its first CTA */
    kr_divisor line;                     /* units per row */
    bool widens;                         /* bf16 to f32; else f32 to bf16 */
    bool aligned;
} kr_ssd_cast;

typedef struct kr_ssd_casts {
    kr_ssd_cast of[KR_SSD_MAX_CASTS];
    int count;
    int64_t blocks;
} kr_ssd_casts;

/* Adds a cast and allocates its destination, which is returned; NULL for NULL. *stride (NULL: rows are contiguous) becomes
 * that of the new rows. */
void *kr_ssd_cast_add(kr_ssd_casts *r, kr_cuda_scratch *m, bool widens, const void *x, int64_t rows, int64_t width,
                      int64_t *stride);

void kr_ssd_casts_run(const kr_ssd_casts *r, cudaStream_t stream);

/* Casts v, b and c of the arguments, kr_ssd_args or kr_ssd_bwd_args, to bf16, or with widens to f32, unless they already
 * are. */
template <typename A> static void kr_ssd_cast_operands(A *a, kr_ssd_casts *r, kr_cuda_scratch *m, bool widens)
{
    const int64_t tokens = a->nb * a->ns, values = a->nm * a->nh * a->np, bc = a->nm * a->ng * a->nr;
    if (kr_is_16bit(a->v.dtype) == widens)
        a->v.data = kr_ssd_cast_add(r, m, widens, a->v.data, tokens, values, &a->v.row);
    if (kr_is_16bit(a->b.dtype) == widens) a->b.data = kr_ssd_cast_add(r, m, widens, a->b.data, tokens, bc, &a->b.row);
    if (kr_is_16bit(a->c.dtype) == widens) a->c.data = kr_ssd_cast_add(r, m, widens, a->c.data, tokens, bc, &a->c.row);
    a->v.dtype = a->b.dtype = a->c.dtype = widens ? KR_DTYPE_F32 : KR_DTYPE_BF16;
}

/* ---- results ---- */

/* A result that is computed in f32, contiguous, and then stored to its destination: as bf16, or with a token stride. */
typedef struct kr_ssd_result {
    const float *from;
    void *to;
    int64_t width, stride;
    kr_dtype dtype;
} kr_ssd_result;

typedef struct kr_ssd_results {
    kr_ssd_result of[3];
    int count;
    kr_ssd_map map; /* of the tokens that are written */
} kr_ssd_results;

/* Adds a result and allocates the buffer in which it is computed; returns `to` itself where m only counts. */
void *kr_ssd_result_add(kr_ssd_results *r, kr_cuda_scratch *m, void *to, int64_t tokens, int64_t width, int64_t stride,
                        kr_dtype dtype);

void kr_ssd_results_store(const kr_ssd_results *r, cudaStream_t stream);

#endif
