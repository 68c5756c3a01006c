/* gate_cuda.cu - the gate y = x silu(z) and its gradients g_x = g_y silu(z), g_z = g_y x silu'(z).
 *
 *   x, z, g_y [no ni], rows as far apart as their strides say;  y [no ni];  g_x, g_z [no ni] in their places
 *   x, y and g_y may be of halves
 *
 * A thread has one pack of a row's channels; where rows follow one another without gaps they are one long row.
 */
#include "kernels/cuda/gates.cuh"

enum { THREADS = 128, MOST_ROWS = 65535 }; /* rows of a grid: further ones follow in a loop */

template <typename T> struct gate_job {
    int64_t no, ni, x_stride, z_stride, g_stride;
    const void *x, *g_y;
    const T *z;
    void *y;
    kr_half x_half, g_y_half, y_half;
    void *g_x, *g_z;
    kr_place g_x_place, g_z_place;
    bool aligned, quick;
};

template <typename T, bool BACK> static __global__ void __launch_bounds__(THREADS) gate_kernel(const gate_job<T> k)
{
    enum { N = kr_pack<T>::N };
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N, left = k.ni - i;
    if (left <= 0) return;
    for (int64_t o = blockIdx.y; o < k.no; o += gridDim.y) {
        const kr_pack<T> x = kr_load_pack_as<T>(k.x, o * k.x_stride + i, k.x_half, left, k.aligned);
        const kr_pack<T> z = kr_load_pack(k.z + o * k.z_stride + i, left, k.aligned);
        kr_pack<T> first, second;
        if (BACK) {
            const kr_pack<T> g_y = kr_load_pack_as<T>(k.g_y, o * k.g_stride + i, k.g_y_half, left, k.aligned);
            kr_pack<T> silu, slope;
            kr_slopes_of(z, k.quick, &silu, &slope);
#pragma unroll
            for (int e = 0; e < N; e++) {
                first.v[e] = g_y.v[e] * silu.v[e];
                second.v[e] = g_y.v[e] * x.v[e] * slope.v[e];
            }
            if (k.g_x)
                kr_store_pack_as(k.g_x, o * (k.ni + k.g_x_place.gap) + i, first, k.g_x_place.half, left, k.aligned);
            if (k.g_z)
                kr_store_pack_as(k.g_z, o * (k.ni + k.g_z_place.gap) + i, second, k.g_z_place.half, left, k.aligned);
        } else {
            const kr_pack<T> silu = kr_silu_of(z, k.quick);
#pragma unroll
            for (int e = 0; e < N; e++) first.v[e] = x.v[e] * silu.v[e];
            kr_store_pack_as(k.y, o * k.ni + i, first, k.y_half, left, k.aligned);
        }
    }
}

template <typename T, bool BACK> static void launch(gate_job<T> k, cudaStream_t stream)
{
    if (k.no * k.ni == 0) return;
    if (k.x_stride == k.ni && k.z_stride == k.ni &&
        (!BACK || (k.g_stride == k.ni && k.g_x_place.gap == 0 && k.g_z_place.gap == 0)))
        k.ni *= k.no, k.no = 1;
    const int64_t n = kr_pack<T>::N;
    const bool steps = k.no == 1 || (k.x_stride % n == 0 && k.z_stride % n == 0 && k.g_stride % n == 0 &&
                                     k.ni % n == 0 && k.g_x_place.gap % n == 0 && k.g_z_place.gap % n == 0);
    k.aligned = steps && kr_allows16(k.x) && kr_allows16(k.z) && kr_allows16(k.g_y) && kr_allows16(k.y) &&
                kr_allows16(k.g_x) && kr_allows16(k.g_z);
    const dim3 grid((unsigned)kr_ceil_div(k.ni, THREADS * n), (unsigned)kr_least(k.no, MOST_ROWS));
    gate_kernel<T, BACK><<<grid, THREADS, 0, stream>>>(k);
}

template <typename T> static void gate_run(const kr_gate_args *a)
{
    gate_job<T> k = {};
    k.no = a->no, k.ni = a->ni, k.x_stride = a->x_stride, k.z_stride = a->z_stride;
    k.x = a->x, k.z = (const T *)a->z, k.y = a->y, k.quick = kr_is_quick<T>(&a->exec);
    k.x_half = a->x_half, k.y_half = a->y_half;
    launch<T, false>(k, kr_stream_of(&a->exec));
}

template <typename T> static void gate_bwd_run(const kr_gate_bwd_args *a)
{
    gate_job<T> k = {};
    k.no = a->no, k.ni = a->ni, k.x_stride = a->x_stride, k.z_stride = a->z_stride, k.g_stride = a->g_y_stride;
    k.x = a->x, k.z = (const T *)a->z, k.g_y = a->g_y, k.x_half = a->x_half, k.g_y_half = a->g_y_half;
    k.quick = kr_is_quick<T>(&a->exec);
    k.g_x = a->g_x, k.g_z = a->g_z, k.g_x_place = a->g_x_place, k.g_z_place = a->g_z_place;
    launch<T, true>(k, kr_stream_of(&a->exec));
}

KR_CUDA_ENTRY(gate, kr_gate_args)
KR_CUDA_ENTRY(gate_bwd, kr_gate_bwd_args)
