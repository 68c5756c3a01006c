/* finite_cuda.cu - index of the first NaN or infinity: the smallest that any thread finds. */
#include "kernels/cuda/prim/launch.cuh"

namespace
{

__device__ inline bool is_finite(kr_dtype dtype, const void *x, int64_t i)
{
    switch (dtype) { /* non-finite values have all exponent bits set */
    case KR_DTYPE_F32: return (((const uint32_t *)x)[i] & 0x7f800000u) != 0x7f800000u;
    case KR_DTYPE_F64: return (((const uint64_t *)x)[i] & 0x7ff0000000000000u) != 0x7ff0000000000000u;
    case KR_DTYPE_BF16: return (((const uint16_t *)x)[i] & 0x7f80u) != 0x7f80u;
    case KR_DTYPE_F16: return (((const uint16_t *)x)[i] & 0x7c00u) != 0x7c00u;
    default: return true;
    }
}

__global__ void find(kr_dtype dtype, const void *x, int64_t n, unsigned long long *first)
{
    for (int64_t i = kr_thread(); i < n; i += kr_threads()) {
        if (is_finite(dtype, x, i)) continue;
        atomicMin(first, (unsigned long long)i); /* integers: the order does not matter */
        return;
    }
}

__global__ void store_first(const unsigned long long *first, int64_t *out)
{
    *out = (int64_t)*first; /* -1: none */
}

} // namespace

size_t kr_cuda_finite_scratch(const kr_finite_args *a)
{
    (void)a;
    return sizeof(unsigned long long);
}

void kr_cuda_finite(const kr_finite_args *a)
{
    unsigned long long *first = (unsigned long long *)a->exec.scratch;
    const cudaStream_t stream = kr_cuda_stream(a->exec);
    cudaMemsetAsync(first, 0xff, sizeof *first, stream);
    if (a->n > 0) find<<<kr_cuda_blocks(a->exec, a->n), KR_THREADS, 0, stream>>>(a->dtype, a->x, a->n, first);
    store_first<<<1, 1, 0, stream>>>(first, a->first);
}
