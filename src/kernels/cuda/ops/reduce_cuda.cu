/* reduce_cuda.cu - sums along one axis; all architectures.
 *
 *   x [no nr ni]    y [no ni]    y[o, i] = alpha * sum over r of x[o, r, i], in double
 *
 * The axis is split into parts of a fixed length, so that a few long rows fill the device too: parts are summed separately,
 * then added. The order depends on nr, and on whether ni is 1, small or large, alone.
 */
#include "kernels/cuda/prim/launch.cuh"

namespace
{

enum { FEW_COLUMNS = 1024 };

/* Rows of contiguous elements are summed by a CTA, others by one thread per i. */
int64_t part_length(const kr_reduce_args *a)
{
    return a->ni == 1 ? 8192 : a->ni <= FEW_COLUMNS ? 32 : 128;
}

int64_t parts_of(const kr_reduce_args *a)
{
    const int64_t length = part_length(a);
    return a->nr > length ? (a->nr + length - 1) / length : 1;
}

/* The sum over a CTA's threads, pairwise; in thread 0. */
__device__ inline double block_sum(double sum)
{
    __shared__ double part[KR_THREADS];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = KR_THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    const double all = part[0];
    __syncthreads();
    return all;
}

/* y = alpha times the sum, or with parts the sum itself. */
template <typename real>
__global__ void sum_rows(const real *x, int64_t no, int64_t nr, int64_t nparts, int64_t length, double alpha, real *y,
                         double *parts)
{
    for (int64_t job = blockIdx.x; job < no * nparts; job += gridDim.x) {
        const int64_t o = job / nparts, from = job % nparts * length, end = from + length < nr ? from + length : nr;
        double sum = 0;
        for (int64_t r = from + threadIdx.x; r < (nparts == 1 ? nr : end); r += KR_THREADS)
            sum += (double)x[o * nr + r];
        sum = block_sum(sum);
        if (threadIdx.x != 0) continue;
        if (nparts == 1) y[o] = (real)(alpha * sum);
        else parts[job] = sum;
    }
}

/* One warp per result: lane l adds the parts l, l + 32, .. in order, then the lanes are added pairwise. */
enum { MAX_BLOCKS = 1 << 20 };
template <typename real>
__global__ void sum_parts(const double *parts, int64_t results, int64_t ni, int64_t nparts, double alpha, real *y)
{
    const int lane = threadIdx.x % 32;
    for (int64_t job = kr_thread() / 32; job < results; job += kr_threads() / 32) {
        const int64_t o = job / ni, i = job % ni;
        double sum = 0;
#pragma unroll 4
        for (int64_t part = lane; part < nparts; part += 32) sum += parts[(o * nparts + part) * ni + i];
        for (int half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, half);
        if (lane == 0) y[job] = (real)(alpha * sum);
    }
}

template <typename real> void sum(const kr_reduce_args *a)
{
    const int64_t no = a->no, nr = a->nr, ni = a->ni, nparts = parts_of(a), length = part_length(a);
    const double alpha = a->alpha;
    const real *x = (const real *)a->x;
    real *y = (real *)a->y;
    double *parts = (double *)a->exec.scratch;
    if (no * ni <= 0) return;
    if (ni == 1) {
        const int64_t most = (int64_t)((const kr_cuda *)a->exec.own)->multiprocessors * 8, want = no * nparts;
        sum_rows<real><<<(unsigned)(want < most ? want : most), KR_THREADS, 0, kr_cuda_stream(a->exec)>>>(
            x, no, nr, nparts, length, alpha, y, parts);
    } else {
        kr_cuda_each(a->exec, no * nparts * ni, [=] __device__(int64_t job) {
            const int64_t i = job % ni, part = job / ni % nparts, o = job / ni / nparts;
            const int64_t from = part * length, end = nparts == 1 || from + length > nr ? nr : from + length;
            double sum = 0;
            for (int64_t r = from; r < end; r++) sum += (double)x[(o * nr + r) * ni + i];
            if (nparts == 1) y[o * ni + i] = (real)(alpha * sum);
            else parts[job] = sum;
        });
    }
    if (nparts == 1) return;
    const int64_t warps = no * ni, blocks = (warps * 32 + KR_THREADS - 1) / KR_THREADS;
    sum_parts<real>
        <<<(unsigned)(blocks < MAX_BLOCKS ? blocks : (int64_t)MAX_BLOCKS), KR_THREADS, 0, kr_cuda_stream(a->exec)>>>(
            parts, warps, ni, nparts, alpha, y);
}

size_t scratch(const kr_reduce_args *a)
{
    const int64_t nparts = parts_of(a);
    return nparts > 1 ? (size_t)(a->no * nparts * a->ni) * sizeof(double) : 0;
}

} // namespace

size_t kr_cuda_f32_sum_scratch(const kr_reduce_args *a)
{
    return scratch(a);
}

size_t kr_cuda_f64_sum_scratch(const kr_reduce_args *a)
{
    return scratch(a);
}

void kr_cuda_f32_sum(const kr_reduce_args *a)
{
    sum<float>(a);
}

void kr_cuda_f64_sum(const kr_reduce_args *a)
{
    sum<double>(a);
}
