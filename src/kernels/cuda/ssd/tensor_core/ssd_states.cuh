/* ssd_states.cuh - the states between chunks, forwards, and their gradients, backwards, on tensor cores.
 *
 *   forwards    store H;  H = e^a_end H + sum over rows j of DECAY_OUT_W_j V_j (x) B_j    from initial + boundary, to final
 *   backwards   store G;  G = e^a_end G + sum over rows i of DECAY_IN_i g_y_i (x) C_i       from g_final, to g_initial
 *
 * states[n] is the state before chunk n, or the gradient of the state after it: bf16 [chunks][heads][64][r_line], heads
 * being (h, slice of p). A CTA runs over the chunks of one sequence for 64 rows of p and 32 or 64 columns of r, with f32
 * sums in registers: the partition changes no bits.
 */
#ifndef KR_KERNELS_CUDA_SSD_TENSOR_CORE_SSD_STATES_CUH
#define KR_KERNELS_CUDA_SSD_TENSOR_CORE_SSD_STATES_CUH

#include "kernels/cuda/ssd/ssd_plan.cuh"

#include <cuda_bf16.h>

typedef struct kr_ssd_walk {
    kr_ssd_map map;
    bool back;
    int nm, np, nr, r_line, slices;
    int64_t nh, ng;
    const __nv_bfloat16 *x, *bc; /* V, B or g_y, C */
    int64_t x_stride, bc_stride;
    bool x_aligned, bc_aligned;
    const float *factors;
    const float *start;    /* [q h p r], NULL is 0 */
    const float *boundary; /* [q h], NULL: none */
    const __nv_bfloat16 *boundary_v, *boundary_b;
    __nv_bfloat16 *states; /* not with segment_states */
    __nv_bfloat16 *low;    /* rounding errors of states, in bf16; NULL: not wanted */
    bool exact;            /* x times its factor is the sum of two bf16; implied by low */
    float *end;            /* [q h p r], NULL: not wanted */
    float *segment_states; /* states before segments [q][segments][heads][64][r_line], NULL: states and end instead */
    int segments, every;   /* of a sequence, and chunks per segment; with segment_states only */
    kr_ssd_rotate rotate;  /* of B or C, with bias bias_b */
} kr_ssd_walk;

void kr_ssd_walk_run(const kr_ssd_walk *w, const kr_ssd_dims *d, cudaStream_t stream);

/* Both in one launch; they agree in `exact`, in having `low` and in having angles. */
void kr_ssd_walk_both(const kr_ssd_walk *there, const kr_ssd_walk *back, const kr_ssd_dims *d, cudaStream_t stream);

static inline int64_t kr_ssd_states_bytes(const kr_ssd_dims *d)
{
    return d->chunks * d->heads * 64 * d->r_line * 2;
}

#endif
