/* ssd_grads.cuh - gradients of all chunks from the states before them and the gradients of the states after them, on tensor
 * cores. */
#ifndef KR_KERNELS_CUDA_SSD_TENSOR_CORE_SSD_GRADS_CUH
#define KR_KERNELS_CUDA_SSD_TENSOR_CORE_SSD_GRADS_CUH

#include "kernels/cuda/ssd/ssd_plan.cuh"

#include <cuda_bf16.h>

typedef struct kr_ssd_grads {
    kr_ssd_map map;
    int nm, np, nr, slices;
    int64_t nh, ng;
    int heads_of_group, block; /* heads (h, slice) of a group, and of a block of them */
    int chunks;                /* per CTA */
    const __nv_bfloat16 *v, *b, *c, *g_y;
    int64_t v_stride, b_stride, c_stride;
    bool v_aligned, b_aligned, c_aligned, y_aligned;
    bool g_v_aligned, r_aligned; /* for 16-byte accesses and pairs of bf16, or for pairs of f32 */
    bool strict;
    const float *factors, *d;
    const __nv_bfloat16 *states, *g_states;
    const __nv_bfloat16 *low, *g_low; /* their rounding errors, for g_b and g_c; NULL: ignored */
    void *g_v, *g_b, *g_c;            /* bf16, or f32 if wide; NULL: not wanted */
    int64_t g_v_line;                 /* elements from a rank of g_v to the next one, or to the next token */
    bool wide_v, wide_bc;
    float *part_b, *part_c;            /* [blocks][b s m g r] if there are several blocks of heads, else NULL */
    float *g_da, *g_w, *g_diag_weight; /* [slices][b s h], NULL: not wanted */
    int64_t slice;                     /* nb ns nh */
    float *part_d;                     /* [chunks][heads] */
    kr_ssd_rotate rotate;              /* this and the following: ssd_grads_rotary.cu only */
    float *g_angle;                    /* [b s h a] */
    float *edges;                      /* [chunks][h][2][a] */
    float *part_bias[2];               /* of b and c [chunks][h][r] */
} kr_ssd_grads;

/* The fields that follow from the arguments alone: sizes, operands and results; not the scratch and the partition. */
static inline kr_ssd_grads kr_ssd_grads_of(const kr_ssd_bwd_args *a)
{
    const bool wide_v = !kr_is_16bit(a->g_v.dtype), wide_bc = !kr_is_16bit(a->g_b.dtype);
    const uintptr_t pair = wide_bc ? 8 : 4; /* bytes */
    kr_ssd_grads o = {};
    o.nm = (int)a->nm, o.np = (int)a->np, o.nr = (int)a->nr;
    o.nh = a->nh, o.ng = a->ng;
    o.v = (const __nv_bfloat16 *)a->v.data, o.g_y = (const __nv_bfloat16 *)a->g_y.data;
    o.b = (const __nv_bfloat16 *)a->b.data, o.c = (const __nv_bfloat16 *)a->c.data;
    o.v_stride = a->v.row, o.b_stride = a->b.row, o.c_stride = a->c.row;
    o.v_aligned = kr_ssd_aligned(a->v.data, a->v.row, a->np);
    o.b_aligned = kr_ssd_aligned(a->b.data, a->b.row, a->nr);
    o.c_aligned = kr_ssd_aligned(a->c.data, a->c.row, a->nr);
    o.y_aligned = kr_ssd_aligned(a->g_y.data, 0, a->np);
    o.g_v_line = a->g_v.data && a->nm == 1 ? a->g_v.row : a->nh * a->np; /* of several ranks it is contiguous */
    o.g_v_aligned = wide_v ? kr_ssd_paired(a->g_v.data, a->np) && o.g_v_line % 2 == 0
                           : kr_ssd_aligned(a->g_v.data, o.g_v_line, a->np);
    o.r_aligned = a->nr % 2 == 0 && (uintptr_t)a->g_b.data % pair == 0 && (uintptr_t)a->g_c.data % pair == 0;
    o.strict = a->diag_weight != NULL;
    o.d = (const float *)a->d;
    o.g_v = a->g_v.data, o.g_b = a->g_b.data, o.g_c = a->g_c.data, o.wide_v = wide_v, o.wide_bc = wide_bc;
    o.g_da = (float *)a->g_da, o.g_w = (float *)a->g_w, o.g_diag_weight = (float *)a->g_diag_weight;
    o.slice = a->nb * a->ns * a->nh;
    return o;
}

/* Does this device support it? */
bool kr_ssd_grads_fits(const kr_ssd_dims *d);

/* The wgmma kernel; false, and nothing is done, where it does not apply. */
bool kr_ssd_grads_wgmma(const kr_ssd_grads *o, const kr_ssd_dims *d, cudaStream_t stream);

/* With rotary embedding of B and C, for sizes of kr_ssd_rotate_fits. */
void kr_ssd_grads_rotary(const kr_ssd_grads *o, const kr_ssd_dims *d, cudaStream_t stream);

void kr_ssd_grads_run(const kr_ssd_grads *o, const kr_ssd_dims *d, cudaStream_t stream);

#endif
