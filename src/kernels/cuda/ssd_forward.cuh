/* ssd_forward.cuh - y and the final states in one walk over the chunks; a kernel of bf16 operands on the matrix units.
 * */
#ifndef KR_KERNELS_CUDA_SSD_FORWARD_CUH
#define KR_KERNELS_CUDA_SSD_FORWARD_CUH

#include "kernels/cuda/ssd_plan.cuh"

#include <cuda_bf16.h>

typedef struct kr_ssd_forward {
    kr_ssd_map map;
    int nm, np, nr, slices;
    int64_t nh, ng, nq;
    int segments, every; /* pieces that a sequence is walked in at once, and their chunks */
    const __nv_bfloat16 *v, *b, *c;
    int64_t v_stride, b_stride, c_stride;
    bool v_aligned, b_aligned, c_aligned, y_aligned; /* y: for its 16-byte steps, or pairs of f32 */
    const float *factors, *d;
    const float *start; /* [q h p r], NULL is 0 */
    const float *seed;  /* [q h], NULL: none */
    const __nv_bfloat16 *seed_v, *seed_b;
    const float *between; /* states before segments [q][segments][heads][64][r_line], NULL: one */
    void *y;              /* bf16, or f32 with wide */
    bool wide;
    float *end;       /* [q h p r], NULL: not wanted */
    kr_ssd_turn turn; /* products of warpgroups alone */
} kr_ssd_forward;

/* Can this device run it? */
bool kr_ssd_forward_fits(const kr_ssd_dims *d);

/* Blocks that the device runs at a time. */
int64_t kr_ssd_forward_slots(const kr_ssd_dims *d);

/* The same on a device with warpgroup products; false, and nothing is done, where it cannot. */
bool kr_ssd_forward_wgmma(const kr_ssd_forward *o, const kr_ssd_dims *d, cudaStream_t stream);

void kr_ssd_forward_run(const kr_ssd_forward *o, const kr_ssd_dims *d, cudaStream_t stream);

#endif
