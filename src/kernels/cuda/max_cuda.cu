/* max_cuda.cu - maxima along one axis, and their gradients.
 *
 *   x [no nr ni]    y, g_y [no ni]
 *   max:     y[o, i] = max over r of x[o, r, i]; a NaN wins
 *   max_bwd: g_x[o, r, i] = g_y[o, i] at the first r of the maximum (or of the first NaN), else 0
 *
 * A block has COLUMNS adjacent columns i (one where ni = 1) and divides r among its lanes; then the lanes' best are
 * compared. Which of two equal ones is taken does not depend on the lanes: it is the first.
 */
#include "kernels/cuda/parts.cuh"

enum { THREADS = 256 };

template <typename T> struct max_job {
    int64_t no, nr, ni;
    const T *x, *g_y;
    T *y; /* or g_x */
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

template <typename T, int COLUMNS, bool BACK>
static __global__ void __launch_bounds__(THREADS) max_kernel(const max_job<T> k)
{
    enum { LANES = THREADS / COLUMNS };
    __shared__ T room_x[LANES][COLUMNS];
    __shared__ int64_t room_r[LANES][COLUMNS];
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
    room_x[lane][column] = b.x;
    room_r[lane][column] = b.r;
    for (int half = LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane >= half) continue;
        b = better(b, { room_x[lane + half][column], room_r[lane + half][column] });
        room_x[lane][column] = b.x;
        room_r[lane][column] = b.r;
    }
    __syncthreads();
    if (i >= k.ni) return;
    if (!BACK) {
        if (lane == 0) k.y[o * k.ni + i] = b.x;
        return;
    }
    const int64_t place = room_r[0][column];
    const T g = k.g_y[o * k.ni + i];
    for (int64_t r = lane; r < k.nr; r += LANES) k.y[first + r * k.ni] = r == place ? g : (T)0;
}

template <typename T, bool BACK> static void launch(const max_job<T> &k, cudaStream_t stream)
{
    if (k.no * k.nr * k.ni == 0) return;
    if (k.ni == 1 && k.nr > 64) max_kernel<T, 1, BACK><<<(unsigned)k.no, THREADS, 0, stream>>>(k);
    else if (k.ni < 16) max_kernel<T, 8, BACK><<<(unsigned)(k.no * kr_ceil_div(k.ni, 8)), THREADS, 0, stream>>>(k);
    else max_kernel<T, 32, BACK><<<(unsigned)(k.no * kr_ceil_div(k.ni, 32)), THREADS, 0, stream>>>(k);
}

template <typename T> static void max_run(const kr_reduce_args *a)
{
    launch<T, false>({ a->no, a->nr, a->ni, (const T *)a->x, NULL, (T *)a->y }, kr_stream_of(&a->exec));
}

template <typename T> static void max_bwd_run(const kr_max_bwd_args *a)
{
    launch<T, true>({ a->no, a->nr, a->ni, (const T *)a->x, (const T *)a->g_y, (T *)a->g_x }, kr_stream_of(&a->exec));
}

KR_CUDA_ENTRY(max, kr_reduce_args)
KR_CUDA_ENTRY(max_bwd, kr_max_bwd_args)
