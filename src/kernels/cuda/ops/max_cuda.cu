/* max_cuda.cu - maxima along one axis, their gradients and their indices; all architectures, f32 and f64.
 *
 *   x [no nr ni]    y, g_y [no ni]
 *   max:     y[o, i] = max over r of x[o, r, i]; a NaN wins
 *   max_bwd: g_x[o, r, i] = g_y[o, i] at the first r of the maximum (or of the first NaN), else 0
 *   argmax:  y[o, i] = that r
 *
 * A CTA has COLUMNS adjacent columns i (one if ni = 1) and divides r among its lanes; then the maxima of the lanes are
 * compared. Ties go to the first, independent of the lanes.
 */
#include "kernels/cuda/prim/block_reduce.cuh"

enum { THREADS = 256 };

template <typename T> struct max_job {
    int64_t no, nr, ni;
    const T *x, *g_y;
    T *y;           /* or g_x */
    int64_t *index; /* argmax's y */
};

template <typename T> struct best {
    T x;
    int64_t r; /* -1: none yet */
};

template <typename T> static __device__ __forceinline__ best<T> better(best<T> a, best<T> b)
{
    const bool a_nan = a.x != a.x, b_nan = b.x != b.x, equal = a_nan ? b_nan : a.x == b.x;
    if (a.r < 0 || b.r < 0) return a.r < 0 ? b : a;
    if (equal) return a.r < b.r ? a : b;
    if (a_nan || b_nan) return a_nan ? a : b;
    return a.x > b.x ? a : b;
}

enum { MAX, MAX_BWD, ARGMAX }; /* which of the three */

template <typename T, int COLUMNS, int KIND>
static __global__ void __launch_bounds__(THREADS) max_kernel(const max_job<T> k)
{
    enum { LANES = THREADS / COLUMNS };
    __shared__ T shared_x[LANES][COLUMNS];
    __shared__ int64_t shared_r[LANES][COLUMNS];
    const int column = threadIdx.x % COLUMNS, lane = threadIdx.x / COLUMNS;
    const int64_t blocks = kr_ceil_div(k.ni, COLUMNS), o = blockIdx.x / blocks;
    const int64_t i = blockIdx.x % blocks * COLUMNS + column, first = o * k.nr * k.ni + i;
    best<T> b = { 0, -1 };
    if (i < k.ni && lane < k.nr) b = { k.x[first + lane * k.ni], lane };
#pragma unroll 8
    for (int64_t r = lane + LANES; i < k.ni && r < k.nr; r += LANES) {
        const T x = k.x[first + r * k.ni];
        if (!(x <= b.x)) b = better(b, { x, r });
    }
    shared_x[lane][column] = b.x;
    shared_r[lane][column] = b.r;
    for (int half = LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane >= half) continue;
        b = better(b, { shared_x[lane + half][column], shared_r[lane + half][column] });
        shared_x[lane][column] = b.x;
        shared_r[lane][column] = b.r;
    }
    __syncthreads();
    if (i >= k.ni) return;
    if (KIND != MAX_BWD) {
        if (lane == 0 && KIND == MAX) k.y[o * k.ni + i] = b.x;
        if (lane == 0 && KIND == ARGMAX) k.index[o * k.ni + i] = b.r;
        return;
    }
    const int64_t index = shared_r[0][column];
    const T g = k.g_y[o * k.ni + i];
    for (int64_t r = lane; r < k.nr; r += LANES) k.y[first + r * k.ni] = r == index ? g : (T)0;
}

template <typename T, int KIND> static void launch(const max_job<T> &k, cudaStream_t stream)
{
    if (k.no * k.nr * k.ni == 0) return;
    if (k.ni == 1 && k.nr > 64) max_kernel<T, 1, KIND><<<(unsigned)k.no, THREADS, 0, stream>>>(k);
    else if (k.ni < 16) max_kernel<T, 8, KIND><<<(unsigned)(k.no * kr_ceil_div(k.ni, 8)), THREADS, 0, stream>>>(k);
    else max_kernel<T, 32, KIND><<<(unsigned)(k.no * kr_ceil_div(k.ni, 32)), THREADS, 0, stream>>>(k);
}

template <typename T> static void max_run(const kr_reduce_args *a)
{
    launch<T, MAX>({ a->no, a->nr, a->ni, (const T *)a->x, NULL, (T *)a->y, NULL }, kr_stream_of(&a->exec));
}

template <typename T> static void max_bwd_run(const kr_max_bwd_args *a)
{
    launch<T, MAX_BWD>({ a->no, a->nr, a->ni, (const T *)a->x, (const T *)a->g_y, (T *)a->g_x, NULL },
                       kr_stream_of(&a->exec));
}

template <typename T> static void argmax_run(const kr_argmax_args *a)
{
    launch<T, ARGMAX>({ a->no, a->nr, a->ni, (const T *)a->x, NULL, NULL, a->y }, kr_stream_of(&a->exec));
}

KR_CUDA_ENTRY(max, kr_reduce_args)
KR_CUDA_ENTRY(max_bwd, kr_max_bwd_args)
KR_CUDA_ENTRY(argmax, kr_argmax_args)
