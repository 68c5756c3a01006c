/* gemv.cu - C = A B (+ bias) (+ C) for few rows of A, at the bandwidth of reading B; all architectures, f32 and f64.
 *
 *   A [m k] and B [k n] with contiguous k: B is a weight [n k], of T, bf16 or f16; C [m n]
 *
 * A warp computes COLUMNS columns and ROWS rows of C, and reads its columns of B once, CHUNK elements of k per lane at a
 * time, with several loads in flight. With few columns SPLIT warps share them and take chunks round-robin. A lane's sum is
 * one chain in the order of k, lanes are added pairwise, then the warps in order: the order depends on n and k alone, not
 * on m or the type of B. Operands without 16-byte aligned chunks take a kernel with one element of C per warp, which adds
 * in the same order.
 */
#include "kernels/cuda/prim/gemv_parts.cuh"
#include "kernels/cuda/gemm/gemm.cuh"

enum { CHUNK = KR_CHUNK, WARPS = 4, NARROW_COLUMNS = 8192, MAX_ITEMS = 65535 };

/* CTA: WARPS warps, of which SPLIT share COLUMNS columns. Grid: columns, groups of ROWS rows, batch items. */
template <typename T, int KIND, int ROWS, int COLUMNS, int AHEAD, int SPLIT>
static __global__ void __launch_bounds__(32 * WARPS, sizeof(T) == 8 ? 2 : 4) gemv_kernel(const kr_matmul_args p)
{
    enum { STEP = 32 * CHUNK * SPLIT, VALUES = ROWS * COLUMNS, LANES = 32 / VALUES };
    __shared__ T shared[WARPS][VALUES];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t n0 = ((int64_t)blockIdx.x * (WARPS / SPLIT) + warp / SPLIT) * COLUMNS,
                  m0 = (int64_t)blockIdx.y * ROWS;
    const kr_gemm_item item = kr_gemm_item_at(p, blockIdx.z);
    int64_t b[COLUMNS], a[ROWS]; /* past the end, the last is repeated */
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) b[c] = item.b + kr_least(n0 + c, p.nn - 1) * p.b.column;
#pragma unroll
    for (int r = 0; r < ROWS; r++) a[r] = item.a + kr_least(m0 + r, p.nm - 1) * p.a.row;
    T sum[VALUES] = {};
    for (int64_t k0 = (warp % SPLIT * 32 + lane) * CHUNK; k0 < p.nk; k0 += AHEAD * STEP) {
        kr_raw_chunk<T, KIND> raw[AHEAD][COLUMNS];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                raw[i][c] = kr_read_chunk<T, KIND>(p.b.data, b[c] + k0 + i * STEP, k0 + i * STEP < p.nk);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (k0 + i * STEP >= p.nk) break;
            T b_c[COLUMNS][CHUNK];
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) kr_widen(raw[i][c], b_c[c]);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                T x[CHUNK];
                kr_read_a((const T *)p.a.data + a[r] + k0 + i * STEP, x);
#pragma unroll
                for (int e = 0; e < CHUNK; e++)
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++) sum[r * COLUMNS + c] += x[e] * b_c[c][e];
            }
        }
    }
    T total = kr_lanes_sum<VALUES, 16>(sum, lane);
    const int value = lane / LANES;
    if (SPLIT > 1) {
        if (lane % LANES == 0) shared[warp][value] = total;
        __syncthreads();
        if (warp % SPLIT > 0) return;
        for (int w = 1; w < SPLIT; w++) total += shared[warp + w][value];
    }
    const int64_t m = m0 + value / COLUMNS, n = n0 + value % COLUMNS;
    if (lane % LANES == 0 && m < p.nm && n < p.nn) kr_gemm_store(p, item.c, m, n, total);
}

/* Any alignment with contiguous k: one element of C per group of SPLIT warps. */
template <typename T, int SPLIT>
static __global__ void __launch_bounds__(32 * WARPS) gemv_unaligned_kernel(const kr_matmul_args p)
{
    __shared__ T shared[WARPS];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t n = (int64_t)blockIdx.x * (WARPS / SPLIT) + warp / SPLIT, m = blockIdx.y;
    const kr_gemm_item item = kr_gemm_item_at(p, blockIdx.z);
    T sum = 0;
    for (int64_t k0 = (warp % SPLIT * 32 + lane) * CHUNK; n < p.nn && k0 < p.nk; k0 += 32 * CHUNK * SPLIT)
        for (int64_t k = k0; k < k0 + CHUNK && k < p.nk; k++)
            sum += kr_element<T>(p.a.data, item.a + m * p.a.row + k, p.a.dtype) *
                   kr_element<T>(p.b.data, item.b + n * p.b.column + k, p.b.dtype);
    sum = kr_warp_sum(sum);
    if (SPLIT > 1) {
        shared[warp] = sum;
        __syncthreads();
        if (warp % SPLIT > 0) return;
        for (int w = 1; w < SPLIT; w++) sum += shared[warp + w];
    }
    if (lane == 0 && n < p.nn) kr_gemm_store(p, item.c, m, n, sum);
}

/* ---- dispatch ---- */

template <typename T, int KIND, int ROWS, int COLUMNS, int AHEAD> static void launch_rows(const kr_matmul_args *p)
{
    const unsigned groups = (unsigned)kr_ceil_div(p->nm, ROWS), items = (unsigned)kr_gemm_items(p);
    cudaStream_t stream = kr_stream_of(&p->exec);
    if (p->nn < NARROW_COLUMNS) {
        const dim3 grid((unsigned)kr_ceil_div(p->nn, COLUMNS), groups, items);
        gemv_kernel<T, KIND, ROWS, COLUMNS, AHEAD, WARPS><<<grid, 32 * WARPS, 0, stream>>>(*p);
    } else {
        const dim3 grid((unsigned)kr_ceil_div(p->nn, COLUMNS * WARPS), groups, items);
        gemv_kernel<T, KIND, ROWS, COLUMNS, AHEAD, 1><<<grid, 32 * WARPS, 0, stream>>>(*p);
    }
}

template <typename T, int KIND> static void launch(const kr_matmul_args *p)
{
    enum { UNITS = kr_raw_chunk<T, KIND>::UNITS }; /* about eight loads in flight */
    if (p->nm == 1) launch_rows<T, KIND, 1, 2, UNITS >= 4 ? 1 : 4 / UNITS>(p);
    else if (p->nm == 2) launch_rows<T, KIND, 2, 4, UNITS >= 2 ? 1 : 2>(p);
    else if (p->nm <= 4) launch_rows<T, KIND, 4, 4, UNITS >= 2 ? 1 : 2>(p);
    else launch_rows<T, KIND, 8, 4, UNITS >= 2 ? 1 : 2>(p);
}

template <typename T> static void launch_unaligned(const kr_matmul_args *p)
{
    const unsigned items = (unsigned)kr_gemm_items(p);
    cudaStream_t stream = kr_stream_of(&p->exec);
    if (p->nn < NARROW_COLUMNS)
        gemv_unaligned_kernel<T, WARPS><<<dim3((unsigned)p->nn, (unsigned)p->nm, items), 32 * WARPS, 0, stream>>>(*p);
    else
        gemv_unaligned_kernel<T, 1>
            <<<dim3((unsigned)kr_ceil_div(p->nn, WARPS), (unsigned)p->nm, items), 32 * WARPS, 0, stream>>>(*p);
}

static bool allows_vec16(const void *x, int64_t element, int64_t row, int64_t batch_rank, const int64_t *batch)
{
    bool ok = kr_is_aligned16(x) && row * element % 16 == 0;
    for (int64_t axis = 0; axis < batch_rank; axis++) ok = ok && batch[axis] * element % 16 == 0;
    return ok;
}

bool kr_gemv_can(const kr_matmul_args *p)
{
    return p->nm <= KR_WIDENING_ROWS && (p->b.row == 1 || p->nk <= 1) && (p->a.column == 1 || p->nk <= 1) &&
           kr_gemm_items(p) <= MAX_ITEMS;
}

template <typename T> void kr_gemv(const kr_matmul_args *p)
{
    const int64_t b_element = kr_is_16bit(p->b.dtype) ? 2 : (int64_t)sizeof(T);
    if (kr_gemm_items(p) * p->nm * p->nn == 0) return;
    if (kr_is_16bit(p->a.dtype) || p->nk % CHUNK != 0 ||
        !allows_vec16(p->a.data, sizeof(T), p->nm == 1 ? 0 : p->a.row, p->batch_rank, p->batch_a) ||
        !allows_vec16(p->b.data, b_element, p->b.column, p->batch_rank, p->batch_b))
        launch_unaligned<T>(p);
    else if (p->b.dtype == KR_DTYPE_BF16) launch<T, KR_DTYPE_BF16>(p);
    else if (p->b.dtype == KR_DTYPE_F16) launch<T, KR_DTYPE_F16>(p);
    else launch<T, KR_KIND_OWN>(p);
}

template void kr_gemv<float>(const kr_matmul_args *);
template void kr_gemv<double>(const kr_matmul_args *);
