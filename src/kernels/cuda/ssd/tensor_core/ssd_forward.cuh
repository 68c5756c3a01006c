/* ssd_forward.cuh - y and the final states in one pass over the chunks, on tensor cores with bf16 operands. */
#ifndef KR_KERNELS_CUDA_SSD_TENSOR_CORE_SSD_FORWARD_CUH
#define KR_KERNELS_CUDA_SSD_TENSOR_CORE_SSD_FORWARD_CUH

#include "kernels/cuda/ssd/ssd_plan.cuh"

#include <cuda_bf16.h>

typedef struct kr_ssd_forward {
    kr_ssd_map map;
    int nm, np, nr, slices;
    int64_t nh, ng, nq;
    int segments, every; /* segments of a sequence that run in parallel, and chunks per segment */
    const __nv_bfloat16 *v, *b, *c;
    int64_t v_stride, b_stride, c_stride;
    bool v_aligned, b_aligned, c_aligned, y_aligned; /* y: for 16-byte stores, or pairs of f32 */
    const float *factors, *d;
    const float *start;    /* [q h p r], NULL is 0 */
    const float *boundary; /* [q h], NULL: none */
    const __nv_bfloat16 *boundary_v, *boundary_b;
    const float *segment_states; /* states before segments [q][segments][heads][64][r_line], NULL: one segment */
    void *y;                     /* bf16, or f32 with wide */
    bool wide;
    float *end;           /* [q h p r], NULL: not wanted */
    kr_ssd_rotate rotate; /* wgmma kernel only */
} kr_ssd_forward;

/* Does this device support it? */
bool kr_ssd_forward_fits(const kr_ssd_dims *d);

/* CTAs that the device runs at a time. */
int64_t kr_ssd_forward_slots(const kr_ssd_dims *d);

/* The wgmma kernel; false, and nothing is done, where it does not apply. */
bool kr_ssd_forward_wgmma(const kr_ssd_forward *o, const kr_ssd_dims *d, cudaStream_t stream);

void kr_ssd_forward_run(const kr_ssd_forward *o, const kr_ssd_dims *d, cudaStream_t stream);

#endif
