/* gate_cuda.cu - the gate y = x silu(z) and its gradients g_x = g_y silu(z), g_z = g_y x silu'(z).
 *
 *   x, z, g_y [no ni], rows as far apart as their strides say;  y, g_x, g_z [no ni] contiguous
 *
 * A thread has one pack of a row's channels; where rows follow one another without gaps they are one long row.
 */
#include "kernels/cuda/parts.cuh"

enum { THREADS = 128, MOST_ROWS = 65535 }; /* rows of a grid: further ones follow in a loop */

template <typename T> struct gate_job {
    int64_t no, ni, x_stride, z_stride, g_stride;
    const T *x, *z, *g_y;
    void *y;
    kr_half y_half;
    T *g_x;
    void *g_z;
    kr_place g_z_place;
    bool aligned;
};

template <typename T, bool BACK> static __global__ void __launch_bounds__(THREADS) gate_kernel(const gate_job<T> k)
{
    enum { N = kr_pack<T>::N };
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N, left = k.ni - i;
    if (left <= 0) return;
    for (int64_t o = blockIdx.y; o < k.no; o += gridDim.y) {
        const kr_pack<T> x = kr_load_pack(k.x + o * k.x_stride + i, left, k.aligned);
        const kr_pack<T> z = kr_load_pack(k.z + o * k.z_stride + i, left, k.aligned);
        kr_pack<T> first, second;
        if (BACK) {
            const kr_pack<T> g_y = kr_load_pack(k.g_y + o * k.g_stride + i, left, k.aligned);
#pragma unroll
            for (int e = 0; e < N; e++) {
                T silu, slope;
                kr_silu_slope(z.v[e], &silu, &slope);
                first.v[e] = g_y.v[e] * silu;
                second.v[e] = g_y.v[e] * x.v[e] * slope;
            }
            if (k.g_x) kr_store_pack(k.g_x + o * k.ni + i, first, left, k.aligned);
            if (k.g_z)
                kr_store_pack_as(k.g_z, o * (k.ni + k.g_z_place.gap) + i, second, k.g_z_place.half, left, k.aligned);
        } else {
#pragma unroll
            for (int e = 0; e < N; e++) first.v[e] = x.v[e] * kr_silu(z.v[e]);
            kr_store_pack_as(k.y, o * k.ni + i, first, k.y_half, left, k.aligned);
        }
    }
}

template <typename T, bool BACK> static void launch(gate_job<T> k, cudaStream_t stream)
{
    if (k.no * k.ni == 0) return;
    if (k.x_stride == k.ni && k.z_stride == k.ni && (!BACK || (k.g_stride == k.ni && k.g_z_place.gap == 0)))
        k.ni *= k.no, k.no = 1;
    const int64_t n = kr_pack<T>::N;
    const bool steps = k.no == 1 || (k.x_stride % n == 0 && k.z_stride % n == 0 && k.g_stride % n == 0 &&
                                     k.ni % n == 0 && k.g_z_place.gap % n == 0);
    k.aligned = steps && kr_allows16(k.x) && kr_allows16(k.z) && kr_allows16(k.g_y) && kr_allows16(k.y) &&
                kr_allows16(k.g_x) && kr_allows16(k.g_z);
    const dim3 grid((unsigned)kr_ceil_div(k.ni, THREADS * n), (unsigned)kr_least(k.no, MOST_ROWS));
    gate_kernel<T, BACK><<<grid, THREADS, 0, stream>>>(k);
}

template <typename T> static void gate_run(const kr_gate_args *a)
{
    launch<T, false>({ a->no,
                       a->ni,
                       a->x_stride,
                       a->z_stride,
                       0,
                       (const T *)a->x,
                       (const T *)a->z,
                       NULL,
                       a->y,
                       a->y_half,
                       NULL,
                       NULL,
                       {},
                       false },
                     kr_stream_of(&a->exec));
}

template <typename T> static void gate_bwd_run(const kr_gate_bwd_args *a)
{
    launch<T, true>({ a->no, a->ni, a->x_stride, a->z_stride, a->g_y_stride, (const T *)a->x, (const T *)a->z,
                      (const T *)a->g_y, NULL, KR_NO_HALF, (T *)a->g_x, a->g_z, a->g_z_place, false },
                    kr_stream_of(&a->exec));
}

KR_CUDA_ENTRY(gate, kr_gate_args)
KR_CUDA_ENTRY(gate_bwd, kr_gate_bwd_args)
