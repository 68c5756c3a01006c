/* cross_entropy_kept.cuh - cross-entropy and its gradient of long rows, each of which lies in shared memory while a
 * block works on it.
 *
 * A block goes from row to row. It finds the largest class m, then replaces x by e^(x - m) and adds these up, then
 * writes g_x. As soon as a pack has left its place, for registers or for memory, the same pack of the next row is asked for. A
 * thread copies and reads packs of its own alone, but for the label's.
 */
#ifndef KR_KERNELS_CUDA_CROSS_ENTROPY_KEPT_CUH
#define KR_KERNELS_CUDA_CROSS_ENTROPY_KEPT_CUH

#include "kernels/cuda/cross_entropy.cuh"

/* HELD: packs of a thread that are kept in registers once they have been added up. */
enum { KEPT_THREADS = 1024, KEPT_WARPS = KEPT_THREADS / 32, HELD = 6 };

/* Asks for elements v .. of a row. WHOLE: packs allow 16-byte steps. */
template <typename T, bool WHOLE>
static __device__ __forceinline__ void kept_ask(const loss_job<T> &k, const T *x, int v, T *kept)
{
    enum { N = kr_pack<T>::N };
    if (WHOLE) {
        kr_copy<16>(kr_shared_address(kept + v), x + v);
    } else {
#pragma unroll
        for (int e = 0; e < N; e++)
            if (v + e < k.nr) kr_copy<(int)sizeof(T)>(kr_shared_address(kept + v + e), x + v + e);
    }
}

/* What a block's threads find together. */
template <typename T> struct kept_room {
    T top[KEPT_WARPS], rest[KEPT_WARPS], equal[KEPT_WARPS], away[KEPT_WARPS];
    int at[KEPT_WARPS];
};

template <typename T> static __device__ __forceinline__ T kept_largest(T x)
{
#pragma unroll
    for (int away = 16; away > 0; away /= 2) {
        const T other = __shfl_xor_sync(0xffffffffu, x, away);
        x = other > x ? other : x;
    }
    return x;
}

/* The largest class, where NaN does not count, and the label's number. */
template <typename T>
static __device__ __forceinline__ T kept_top(const loss_job<T> &k, const T *kept, int64_t label, T *of_label,
                                             kept_room<T> *room)
{
    enum { N = kr_pack<T>::N, STEP = KEPT_THREADS * N };
    T top = -(T)INFINITY;
    const int nv = (int)k.nv;
    int v = (int)threadIdx.x * N;
#pragma unroll 4
    for (; v + N <= nv; v += STEP) {
        const kr_pack<T> p = kr_load_pack(kept + v, N, true);
#pragma unroll
        for (int e = 0; e < N; e++) top = p.v[e] > top ? p.v[e] : top;
    }
    for (int e = 0; v + e < nv; e++) top = kept[v + e] > top ? kept[v + e] : top;
    top = kept_largest(top);
    if (threadIdx.x % 32 == 0) room->top[threadIdx.x / 32] = top;
    __syncthreads();
    *of_label = label < 0 ? (T)0 : kept[label];
    top = kept_largest(room->top[threadIdx.x % 32]);
    __syncthreads(); /* the label's has been read by all */
    return top;
}

/* Classes v .. v+some-1 of a pack (or all of it, if some is more), which gives way to e^(x - m). */
template <typename T, bool SMOOTH>
static __device__ __forceinline__ void kept_add(row_sums<T> *s, kr_pack<T> *p, int v, int some)
{
    enum { N = kr_pack<T>::N };
    bool any = some < N;
#pragma unroll
    for (int e = 0; e < N; e++) any = any || p->v[e] == s->m;
    kr_pack<T> power;
#pragma unroll
    for (int e = 0; e < N; e++) power.v[e] = kr_exp(p->v[e] - s->m);
    if (!any) {
#pragma unroll
        for (int e = 0; e < N; e++) s->rest += power.v[e];
    } else {
#pragma unroll
        for (int e = 0; e < N; e++) {
            if (e >= some) continue;
            if (p->v[e] != s->m) s->rest += power.v[e];
            else if (s->equal == 0) s->at = v + e;
            if (p->v[e] == s->m) s->equal += 1;
        }
    }
#pragma unroll
    for (int e = 0; SMOOTH && e < N; e++)
        if (e < some) s->away += s->m - p->v[e];
    *p = power;
}

/* The row's sums, for all threads; s: the thread's own. */
template <typename T, bool SMOOTH>
static __device__ __forceinline__ void kept_together(row_sums<T> *s, kept_room<T> *room)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const T rest = kr_warp_sum(s->rest), equal = kr_warp_sum(s->equal), away = SMOOTH ? kr_warp_sum(s->away) : (T)0;
    const int at = __reduce_min_sync(0xffffffffu, (int)s->at);
    if (lane == 0) room->rest[warp] = rest, room->equal[warp] = equal, room->away[warp] = away, room->at[warp] = at;
    __syncthreads();
    s->rest = kr_warp_sum(room->rest[lane]), s->equal = kr_warp_sum(room->equal[lane]);
    if (SMOOTH) s->away = kr_warp_sum(room->away[lane]);
    s->at = __reduce_min_sync(0xffffffffu, room->at[lane]);
}

template <typename T, bool SMOOTH, bool WHOLE>
static __global__ void __launch_bounds__(KEPT_THREADS) cross_entropy_kept_kernel(const loss_job<T> k)
{
    enum { N = kr_pack<T>::N, STEP = KEPT_THREADS * N };
    extern __shared__ __align__(16) char row[];
    __shared__ kept_room<T> room;
    T *kept = (T *)(void *)row;
    const int first = (int)threadIdx.x * N, nr = (int)k.nr, nv = (int)k.nv;
    const int64_t next = gridDim.x;
    int64_t label = k.label[blockIdx.x];
    for (int v = first; v < nr; v += STEP) kept_ask<T, WHOLE>(k, k.x + blockIdx.x * k.nr, v, kept);
    for (int64_t o = blockIdx.x; o < k.no; o += next) {
        const bool goes_on = o + next < k.no;
        const int64_t next_label = goes_on ? k.label[o + next] : -1;
        const T *ahead = k.x + (o + next) * k.nr;
        char *g_x = (char *)k.g_x + o * k.nr * kr_bytes_of<T>(k.g_half);
        asm volatile("cp.async.wait_all;" ::: "memory");
        T of_label;
        row_sums<T> s = { kept_top(k, kept, label, &of_label, &room), 0, 0, 0, 0, INT32_MAX };
        kr_pack<T> held[HELD];
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            const int v = first + h * STEP;
            if (v < nv) {
                held[h] = kr_load_pack(kept + v, N, true);
                kept_add<T, SMOOTH>(&s, &held[h], v, nv - v);
            }
            if (goes_on && v < nr) kept_ask<T, WHOLE>(k, ahead, v, kept);
        }
        for (int v = first + HELD * STEP; v < nv; v += STEP) {
            kr_pack<T> p = kr_load_pack(kept + v, N, true);
            kept_add<T, SMOOTH>(&s, &p, v, nv - v);
            kr_store_pack(kept + v, p, N, true);
        }
        kept_together<T, SMOOTH>(&s, &room);
        const row_result<T> r = score(k, o, label, of_label, s, threadIdx.x == 0);
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            const int v = first + h * STEP;
            gradient_of(k, v, nv, (int)label, r, k.alpha, &held[h]);
            kr_give<T, WHOLE>(g_x + v * kr_bytes_of<T>(k.g_half), held[h], k.g_half, nr - v);
        }
        for (int v = first + HELD * STEP; v < nr; v += STEP) {
            kr_pack<T> p = kr_load_pack(kept + v, N, true);
            gradient_of(k, v, nv, (int)label, r, k.alpha, &p);
            kr_give<T, WHOLE>(g_x + v * kr_bytes_of<T>(k.g_half), p, k.g_half, nr - v);
            if (goes_on) kept_ask<T, WHOLE>(k, ahead, v, kept);
        }
        label = next_label;
    }
}

template <typename T, bool SMOOTH, bool WHOLE>
static void kept_launch(const loss_job<T> &k, size_t bytes, const kr_exec *exec)
{
    const unsigned blocks = (unsigned)kr_least(k.no, kr_multiprocessors(exec));
    cudaFuncSetAttribute(cross_entropy_kept_kernel<T, SMOOTH, WHOLE>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)bytes);
    cross_entropy_kept_kernel<T, SMOOTH, WHOLE><<<blocks, KEPT_THREADS, bytes, kr_stream_of(exec)>>>(k);
}

/* false: a row does not fit. */
template <typename T, bool SMOOTH> static bool kept_run(const loss_job<T> &k, const kr_exec *exec)
{
    const size_t bytes = (size_t)kr_ceil_div(k.nr, kr_pack<T>::N) * 16;
    if (bytes + sizeof(kept_room<T>) + 1024 > ((const kr_cuda *)exec->own)->shared_bytes) return false;
    if (k.aligned) kept_launch<T, SMOOTH, true>(k, bytes, exec);
    else kept_launch<T, SMOOTH, false>(k, bytes, exec);
    return true;
}

#endif
