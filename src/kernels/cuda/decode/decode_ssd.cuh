/* decode_ssd.cuh - shared by the kernels for one token of the Mamba-2 core: the job, step and decay of a head, pending
 * tokens of a state tile, the epilogue of a row. */
#ifndef KR_KERNELS_CUDA_DECODE_DECODE_SSD_CUH
#define KR_KERNELS_CUDA_DECODE_DECODE_SSD_CUH

#include "kernels/cuda/prim/gemv_parts.cuh"
#include "kernels/cuda/prim/float4.cuh"
#include "kernels/cuda/prim/pdl.cuh"

enum { KR_SSD_SPAN = 32 * KR_VEC4 }; /* elements of r that a warp covers at a time */

template <typename T> struct kr_ssd_job {
    int64_t nb, nh, np, ng, nr, stride, y_stride;
    const T *x, *b, *c, *dt, *dt_bias, *a_log, *d, *z, *gain;
    T dt_min, dt_max;
    T *state, *squares;
    void *y;
    kr_dtype y_dtype;
    bool d_per_dim;
    T *deferred;
    kr_deferred_parts parts;
    uint32_t blocks; /* CTAs per row */
};

template <typename T> static inline kr_ssd_job<T> kr_ssd_job_of(const kr_decode_ssd_args *a)
{
    return { a->nb,
             a->nh,
             a->np,
             a->ng,
             a->nr,
             a->x.row,
             a->y.row,
             (const T *)a->x.data,
             (const T *)a->b.data,
             (const T *)a->c.data,
             (const T *)a->dt.data,
             (const T *)a->dt_bias,
             (const T *)a->a_log,
             (const T *)a->d,
             (const T *)a->z.data,
             (const T *)a->gain,
             (T)a->dt_min,
             (T)a->dt_max,
             (T *)a->state,
             (T *)a->squares,
             a->y.data,
             a->y.dtype,
             a->d_per_dim,
             (T *)a->deferred,
             kr_deferred_parts_of(a->nh, a->np, a->ng, a->nr),
             0 };
}

/* Are float4 loads and stores allowed? */
template <typename T> static inline bool kr_ssd_is_aligned(const kr_ssd_job<T> &k)
{
    return sizeof(T) == 4 && k.nr % KR_VEC4 == 0 && k.stride % KR_VEC4 == 0 && kr_is_aligned16(k.b) &&
           kr_is_aligned16(k.c) && kr_is_aligned16(k.state) && kr_is_aligned16(k.deferred);
}

/* One token on an element of H. Explicit rounding, the same in every kernel, so that an update gives the same bits whether
 * it is applied at once or deferred. */
static __device__ __forceinline__ float kr_ssd_update(float decay, float h, float weight, float b)
{
    return __fmaf_rn(decay, h, __fmul_rn(weight, b));
}
static __device__ __forceinline__ double kr_ssd_update(double decay, double h, double weight, double b)
{
    return __fma_rn(decay, h, __dmul_rn(weight, b));
}

/* s <- decay s + weight b on four elements of a row. */
static __device__ __forceinline__ void kr_ssd_update_row(kr_vec4<float> *s, float decay, float weight,
                                                         const kr_vec4<float> &b)
{
#pragma unroll
    for (int e = 0; e < KR_VEC4; e++) s->v[e] = kr_ssd_update(decay, s->v[e], weight, b.v[e]);
}

/* Pending tokens of a state tile: the last `count` of t. Without a record there are none, and H is written at every token.
 */
typedef struct kr_ssd_pending {
    uint32_t t, count;
    bool is_flushed;
} kr_ssd_pending;

template <typename T> static __device__ __forceinline__ kr_ssd_pending kr_ssd_pending_of(const T *record, uint32_t tile)
{
    kr_ssd_pending pending = { 0, 0, true };
    if (!record) return pending;
    pending.t = (uint32_t)record[KR_DEFERRED_COUNT];
    const uint32_t due = (pending.t + KR_DEFERRED_PHASE(tile)) % KR_DEFERRED_TOKENS;
    pending.count = min(pending.t, due);
    pending.is_flushed = due == KR_DEFERRED_TOKENS - 1;
    return pending;
}

/* The count after one more token. */
static __device__ __forceinline__ uint32_t kr_ssd_next_count(uint32_t t)
{
    return t + 1 < 2 * KR_DEFERRED_TOKENS ? t + 1 : KR_DEFERRED_TOKENS;
}

/* Step s and decay exp(-s exp(a_log)) of a head's token. */
template <typename T> struct kr_ssd_token_scale {
    T step, decay;
};

/* sum: dt + dt_bias. */
template <typename T> static __device__ __forceinline__ T kr_ssd_step_size(const kr_ssd_job<T> &k, T sum)
{
    T step = kr_softplus(sum);
    step = step < k.dt_min ? k.dt_min : step;
    return step > k.dt_max ? k.dt_max : step;
}

template <typename T>
static __device__ __forceinline__ kr_ssd_token_scale<T> kr_ssd_token_scale_of(const kr_ssd_job<T> &k, int64_t from,
                                                                              uint32_t h, T bias, T rate)
{
    const T step = kr_ssd_step_size(k, k.dt[from + h] + bias);
    return { step, kr_exp(step * -rate) };
}

/* Operands of the epilogue of row p of head h, loaded before its sum is known. */
template <typename T> struct kr_ssd_extras {
    T x, d, gate, gain; /* gate: silu(z) */
};

/* y = (sum + D x), gated with z. Returns the square of the gated value. */
template <typename T>
static __device__ __forceinline__ T kr_ssd_store(const kr_ssd_job<T> &k, int64_t row, uint32_t h, int64_t p, T sum,
                                                 const kr_ssd_extras<T> &own)
{
    T y = kr_fma(own.d, own.x, sum), square = 0;
    if (k.z) {
        y *= own.gate;
        square = y * y;
        y *= own.gain;
    }
    kr_store_as(k.y, row * k.y_stride + h * k.np + p, y, k.y_dtype);
    return square;
}

/* Many states on sm_90, float4-aligned. False: sizes not supported. */
bool kr_decode_ssd_tma(const kr_decode_ssd_args *a, const kr_ssd_job<float> &k);

#endif
