/* token_ssd.cuh - what the kernels for a token of Mamba-2's core share: the job, a head's pace, what a tile owes, the end of
 * a row. */
#ifndef KR_KERNELS_CUDA_TOKEN_SSD_CUH
#define KR_KERNELS_CUDA_TOKEN_SSD_CUH

#include "kernels/cuda/few.cuh"
#include "kernels/cuda/quad.cuh"
#include "kernels/cuda/token.cuh"

enum { KR_SSD_SPAN = 32 * KR_QUAD }; /* elements of r that a warp has at a time */

template <typename T> struct kr_ssd_job {
    int64_t nb, nh, np, ng, nr, stride, y_stride;
    const T *x, *b, *c, *dt, *dt_bias, *a_log, *d, *z, *gain;
    T dt_min, dt_max;
    T *state, *squares;
    void *y;
    kr_half y_half;
    bool d_per_dim;
    T *owed;
    kr_owed_parts parts;
    uint32_t blocks; /* of a row */
};

template <typename T> static inline kr_ssd_job<T> kr_ssd_job_of(const kr_token_ssd_args *a)
{
    return { a->nb,
             a->nh,
             a->np,
             a->ng,
             a->nr,
             a->stride,
             a->y_stride,
             (const T *)a->x,
             (const T *)a->b,
             (const T *)a->c,
             (const T *)a->dt,
             (const T *)a->dt_bias,
             (const T *)a->a_log,
             (const T *)a->d,
             (const T *)a->z,
             (const T *)a->gain,
             (T)a->dt_min,
             (T)a->dt_max,
             (T *)a->state,
             (T *)a->squares,
             a->y,
             a->y_half,
             a->d_per_dim,
             (T *)a->owed,
             kr_owed_parts_of(a->nh, a->np, a->ng, a->nr),
             0 };
}

/* May quads be read and written as such? */
template <typename T> static inline bool kr_ssd_is_aligned(const kr_ssd_job<T> &k)
{
    return sizeof(T) == 4 && k.nr % KR_QUAD == 0 && k.stride % KR_QUAD == 0 && kr_allows16(k.b) && kr_allows16(k.c) &&
           kr_allows16(k.state) && kr_allows16(k.owed);
}

/* A token on an element of H: products by name, with the same roundings in every kernel, so that tokens may come at once
 * or later. */
static __device__ __forceinline__ float kr_ssd_moved(float decay, float h, float weight, float b)
{
    return __fmaf_rn(decay, h, __fmul_rn(weight, b));
}
static __device__ __forceinline__ double kr_ssd_moved(double decay, double h, double weight, double b)
{
    return __fma_rn(decay, h, __dmul_rn(weight, b));
}

/* s <- decay s + weight b on four elements of a row. */
static __device__ __forceinline__ void kr_ssd_move_row(kr_quad<float> *s, float decay, float weight,
                                                       const kr_quad<float> &b)
{
#pragma unroll
    for (int e = 0; e < KR_QUAD; e++) s->v[e] = kr_ssd_moved(decay, s->v[e], weight, b.v[e]);
}

/* What a tile owes: the last `count` of t tokens; without a record nothing, and H is due at every token. */
typedef struct kr_ssd_debt {
    uint32_t t, count;
    bool is_due;
} kr_ssd_debt;

template <typename T> static __device__ __forceinline__ kr_ssd_debt kr_ssd_debt_of(const T *record, uint32_t tile)
{
    kr_ssd_debt owes = { 0, 0, true };
    if (!record) return owes;
    owes.t = (uint32_t)record[KR_OWED_COUNT];
    const uint32_t due = (owes.t + KR_OWED_TURN(tile)) % KR_OWED_TOKENS;
    owes.count = min(owes.t, due);
    owes.is_due = due == KR_OWED_TOKENS - 1;
    return owes;
}

/* The count after one more token. */
static __device__ __forceinline__ uint32_t kr_ssd_counted(uint32_t t)
{
    return t + 1 < 2 * KR_OWED_TOKENS ? t + 1 : KR_OWED_TOKENS;
}

/* What a head does with a token: its step and decay. */
template <typename T> struct kr_ssd_pace {
    T step, decay;
};

/* sum: of dt and its bias. */
template <typename T> static __device__ __forceinline__ T kr_ssd_step_of(const kr_ssd_job<T> &k, T sum)
{
    T step = kr_softplus(sum);
    step = step < k.dt_min ? k.dt_min : step;
    return step > k.dt_max ? k.dt_max : step;
}

template <typename T>
static __device__ __forceinline__ kr_ssd_pace<T> kr_ssd_pace_of(const kr_ssd_job<T> &k, int64_t from, uint32_t h,
                                                                T bias, T rate)
{
    const T step = kr_ssd_step_of(k, k.dt[from + h] + bias);
    return { step, kr_exp(step * -rate) };
}

/* What row p of head h needs besides its sum; fetched before that is known. */
template <typename T> struct kr_ssd_extras {
    T x, d, gate, gain; /* gate: silu(z) */
};

/* y from its sum: D x added, gated. The square of what was gated. */
template <typename T>
static __device__ __forceinline__ T kr_ssd_put(const kr_ssd_job<T> &k, int64_t row, uint32_t h, int64_t p, T sum,
                                               const kr_ssd_extras<T> &own)
{
    T y = kr_fma(own.d, own.x, sum), square = 0;
    if (k.z) {
        y *= own.gate;
        square = y * y;
        y *= own.gain;
    }
    kr_put_as(k.y, row * k.y_stride + h * k.np + p, y, k.y_half);
    return square;
}

/* Many states on sm_90, whose quads are aligned. False: not these sizes. */
bool kr_token_ssd_ring(const kr_token_ssd_args *a, const kr_ssd_job<float> &k);

#endif
