/* gather_cuda.cu - elements selected by index along an axis, and their gradients; all architectures.
 *
 *   gather:     y[o, j, i] = x[o, id[o, j, i], i]          x [no nr ni], id and y [no nj ni]
 *   gather_bwd: y[o, id[o, j, i], i] += x[o, j, i]         y [no nr ni], id and x [no nj ni], over j in order
 *
 * Backward, columns (o, i) are independent: a thread adds one column's elements in order. With few columns a warp has one
 * element (o, r, i): it searches its id among 32 at a time and adds the matches in order.
 */
#include "kernels/cuda/prim/block_reduce.cuh"

enum {
    THREADS = 128,
    WORTH = 45000
}; /* a warp's searches of 32 ids that take as long as adding one element after another */

static __device__ __forceinline__ int64_t id_at(const void *id, bool wide, int64_t at)
{
    return wide ? ((const int64_t *)id)[at] : (int64_t)((const int32_t *)id)[at];
}

template <typename T> struct gather_job {
    int64_t no, nr, ni, nj;
    const T *x;
    const void *id;
    bool wide; /* 64-bit ids */
    T *y;
};

template <typename T> static __global__ void __launch_bounds__(THREADS) gather_kernel(const gather_job<T> k)
{
    const int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= k.no * k.nj * k.ni) return;
    const int64_t i = at % k.ni, o = at / (k.ni * k.nj);
    k.y[at] = k.x[(o * k.nr + id_at(k.id, k.wide, at)) * k.ni + i];
}

template <typename T> static __global__ void __launch_bounds__(THREADS) gather_columns_kernel(const gather_job<T> k)
{
    const int64_t column = (int64_t)blockIdx.x * THREADS + threadIdx.x, o = column / k.ni, i = column % k.ni;
    if (o >= k.no) return;
    for (int64_t j = 0; j < k.nj; j++) {
        const int64_t at = (o * k.nj + j) * k.ni + i;
        k.y[(o * k.nr + id_at(k.id, k.wide, at)) * k.ni + i] += k.x[at];
    }
}

template <typename T> static __global__ void __launch_bounds__(THREADS) gather_elements_kernel(const gather_job<T> k)
{
    const int64_t element = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t i = element % k.ni, r = element / k.ni % k.nr, o = element / (k.ni * k.nr);
    if (o >= k.no) return;
    T sum = k.y[element];
    bool any = false;
    for (int64_t j0 = 0; j0 < k.nj; j0 += 32) {
        const int64_t at = (o * k.nj + j0 + lane) * k.ni + i;
        const bool mine = j0 + lane < k.nj && id_at(k.id, k.wide, at) == r;
        const T x = mine ? k.x[at] : (T)0;
        for (unsigned found = __ballot_sync(0xffffffffu, mine); found; found &= found - 1, any = true)
            sum += __shfl_sync(0xffffffffu, x, __ffs((int)found) - 1);
    }
    if (any && lane == 0) k.y[element] = sum;
}

template <typename T> static gather_job<T> job_of(const kr_gather_args *a)
{
    return { a->no, a->nr, a->ni, a->nj, (const T *)a->x, a->id, a->id_dtype == KR_DTYPE_I64, (T *)a->y };
}

template <typename T> static void gather_run(const kr_gather_args *a)
{
    const int64_t n = a->no * a->nj * a->ni;
    if (n > 0)
        gather_kernel<T><<<(unsigned)kr_ceil_div(n, THREADS), THREADS, 0, kr_stream_of(&a->exec)>>>(job_of<T>(a));
}

template <typename T> static void gather_bwd_run(const kr_gather_args *a)
{
    cudaStream_t stream = kr_stream_of(&a->exec);
    const int64_t columns = a->no * a->ni, elements = columns * a->nr;
    if (columns * a->nj == 0) return;
    if (a->nj > 1 && elements < WORTH * a->nj / kr_ceil_div(a->nj, 32))
        gather_elements_kernel<T><<<(unsigned)kr_ceil_div(elements, THREADS / 32), THREADS, 0, stream>>>(job_of<T>(a));
    else gather_columns_kernel<T><<<(unsigned)kr_ceil_div(columns, THREADS), THREADS, 0, stream>>>(job_of<T>(a));
}

KR_CUDA_ENTRY(gather, kr_gather_args)
KR_CUDA_ENTRY(gather_bwd, kr_gather_args)
