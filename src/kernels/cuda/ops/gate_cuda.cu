/* gate_cuda.cu - the gate y = x silu(z) and its gradients g_x = g_y silu(z), g_z = g_y x silu'(z); all architectures, f32
 * and f64.
 *
 *   x, z, g_y [no ni], with row strides;  y [no ni];  g_x, g_z [no ni], strided;  all may be 16-bit
 *
 * A thread has one 16-byte vector of a row's channels; contiguous rows are processed as one long row.
 */
#include "kernels/cuda/prim/silu.cuh"

enum { THREADS = 128, MAX_ROWS = 65535 }; /* rows per grid: further ones follow in a loop */

template <typename T> struct gate_job {
    int64_t no, ni, x_stride, z_stride, g_stride;
    const void *x, *z, *g_y;
    void *y;
    kr_dtype x_dtype, z_dtype, g_y_dtype, y_dtype;
    kr_operand g_x, g_z;
    bool aligned, fast;
};

template <typename T, bool BWD> static __global__ void __launch_bounds__(THREADS) gate_kernel(const gate_job<T> k)
{
    enum { N = kr_vec16<T>::N };
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N, left = k.ni - i;
    if (left <= 0) return;
    for (int64_t o = blockIdx.y; o < k.no; o += gridDim.y) {
        const kr_vec16<T> x = kr_load_vec16_as<T>(k.x, o * k.x_stride + i, k.x_dtype, left, k.aligned);
        const kr_vec16<T> z = kr_load_vec16_as<T>(k.z, o * k.z_stride + i, k.z_dtype, left, k.aligned);
        kr_vec16<T> first, second;
        if (BWD) {
            const kr_vec16<T> g_y = kr_load_vec16_as<T>(k.g_y, o * k.g_stride + i, k.g_y_dtype, left, k.aligned);
            kr_vec16<T> silu, slope;
            kr_slopes_of(z, k.fast, &silu, &slope);
#pragma unroll
            for (int e = 0; e < N; e++) {
                first.v[e] = g_y.v[e] * silu.v[e];
                second.v[e] = g_y.v[e] * x.v[e] * slope.v[e];
            }
            if (k.g_x.data) kr_store_vec16_as(k.g_x.data, o * k.g_x.row + i, first, k.g_x.dtype, left, k.aligned);
            if (k.g_z.data) kr_store_vec16_as(k.g_z.data, o * k.g_z.row + i, second, k.g_z.dtype, left, k.aligned);
        } else {
            const kr_vec16<T> silu = kr_silu_of(z, k.fast);
#pragma unroll
            for (int e = 0; e < N; e++) first.v[e] = x.v[e] * silu.v[e];
            kr_store_vec16_as(k.y, o * k.ni + i, first, k.y_dtype, left, k.aligned);
        }
    }
}

template <typename T, bool BWD> static void launch(gate_job<T> k, cudaStream_t stream)
{
    if (k.no * k.ni == 0) return;
    if (k.x_stride == k.ni && k.z_stride == k.ni &&
        (!BWD || (k.g_stride == k.ni && (!k.g_x.data || k.g_x.row == k.ni) && (!k.g_z.data || k.g_z.row == k.ni))))
        k.ni *= k.no, k.no = 1;
    const int64_t n = kr_vec16<T>::N;
    const bool steps = k.no == 1 || (k.x_stride % n == 0 && k.z_stride % n == 0 && k.g_stride % n == 0 &&
                                     k.ni % n == 0 && k.g_x.row % n == 0 && k.g_z.row % n == 0);
    k.aligned = steps && kr_is_aligned16(k.x) && kr_is_aligned16(k.z) && kr_is_aligned16(k.g_y) &&
                kr_is_aligned16(k.y) && kr_is_aligned16(k.g_x.data) && kr_is_aligned16(k.g_z.data);
    const dim3 grid((unsigned)kr_ceil_div(k.ni, THREADS * n), (unsigned)kr_least(k.no, MAX_ROWS));
    gate_kernel<T, BWD><<<grid, THREADS, 0, stream>>>(k);
}

template <typename T> static void gate_run(const kr_gate_args *a)
{
    gate_job<T> k = {};
    k.no = a->no, k.ni = a->ni, k.x_stride = a->x.row, k.z_stride = a->z.row;
    k.x = a->x.data, k.z = a->z.data, k.y = a->y.data, k.fast = kr_is_fast<T>(&a->exec);
    k.x_dtype = a->x.dtype, k.z_dtype = a->z.dtype, k.y_dtype = a->y.dtype;
    launch<T, false>(k, kr_stream_of(&a->exec));
}

template <typename T> static void gate_bwd_run(const kr_gate_bwd_args *a)
{
    gate_job<T> k = {};
    k.no = a->no, k.ni = a->ni, k.x_stride = a->x.row, k.z_stride = a->z.row, k.g_stride = a->g_y.row;
    k.x = a->x.data, k.z = a->z.data, k.g_y = a->g_y.data;
    k.x_dtype = a->x.dtype, k.z_dtype = a->z.dtype, k.g_y_dtype = a->g_y.dtype;
    k.fast = kr_is_fast<T>(&a->exec);
    k.g_x = a->g_x, k.g_z = a->g_z;
    launch<T, true>(k, kr_stream_of(&a->exec));
}

KR_CUDA_ENTRY(gate, kr_gate_args)
KR_CUDA_ENTRY(gate_bwd, kr_gate_bwd_args)
