/* ssd_grads.cuh - gradients of all chunks out of the states before them and the gradients of the states after them. */
#ifndef KR_KERNELS_CUDA_SSD_GRADS_CUH
#define KR_KERNELS_CUDA_SSD_GRADS_CUH

#include "kernels/cuda/ssd_plan.cuh"

#include <cuda_bf16.h>

typedef struct kr_ssd_grads {
    kr_ssd_map map;
    int nm, np, nr, slices;
    int64_t nh, ng;
    int heads_of_group, block; /* heads (h, slice) of a group, and of a block of them */
    int chunks;                /* of a block */
    const __nv_bfloat16 *v, *b, *c, *g_y;
    int64_t v_stride, b_stride, c_stride;
    bool v_aligned, b_aligned, c_aligned, y_aligned;
    bool g_v_aligned, r_aligned; /* for 16-byte steps and pairs of bf16, or for pairs of f32 */
    bool strict;
    const float *factors, *d;
    const __nv_bfloat16 *states, *g_states;
    const __nv_bfloat16 *low, *g_low; /* what rounding took from them, for g_b and g_c; NULL: left out */
    void *g_v, *g_b, *g_c;            /* bf16, or f32 with wide; NULL: not wanted */
    bool wide;
    float *part_b, *part_c;     /* [blocks][b s m g r] when there are several blocks, else NULL */
    float *g_da, *g_w, *g_same; /* [slices][b s h], NULL: not wanted */
    int64_t slice;              /* nb ns nh */
    float *part_d;              /* [chunks][heads] */
} kr_ssd_grads;

/* Can this device run it? */
bool kr_ssd_grads_fits(const kr_ssd_dims *d);

/* The same on a device with warpgroup products; false, and nothing is done, where it cannot. */
bool kr_ssd_grads_wgmma(const kr_ssd_grads *o, const kr_ssd_dims *d, cudaStream_t stream);

void kr_ssd_grads_run(const kr_ssd_grads *o, const kr_ssd_dims *d, cudaStream_t stream);

#endif
