/* cross_entropy.cuh - shared by the code paths of cross-entropy: sums of a row, its results, and its gradient. */
#ifndef KR_KERNELS_CUDA_OPS_CROSS_ENTROPY_CUH
#define KR_KERNELS_CUDA_OPS_CROSS_ENTROPY_CUH

#include "kernels/cuda/prim/block_reduce.cuh"

template <typename T> struct loss_job {
    int64_t no, nr, nv;
    const T *x, *stats_in, *g_y; /* the last two: backward only */
    const int64_t *label;
    T smoothing, even, alpha; /* even: smoothing / nv */
    T *loss, *stats;
    void *g_x;
    kr_storage_dtype g_dtype; /* of g_x */
    bool aligned;
};

/* Sums over classes, relative to the largest of them. */
template <typename T> struct row_sums {
    T m;
    T rest, equal; /* sum of e^(x - m) over x that are not m; how many are m */
    T away, count; /* with smoothing: sum of m - x; their number */
    int64_t at;    /* the first that is m */
};

template <typename T> struct row_result {
    T m, inverse, miss; /* 1 / S; 1 - p[label] */
};

/* Loss and stats of a row from its sums. */
template <typename T>
static __device__ __forceinline__ row_result<T> score(const loss_job<T> &k, int64_t o, int64_t label, T of_label,
                                                      const row_sums<T> &s, bool writes)
{
    const T rest_sum = s.equal - 1 + s.rest, sum = 1 + rest_sum, q = k.smoothing;
    const T others = of_label == s.m ? rest_sum : sum - kr_exp(of_label - s.m);
    const row_result<T> r = { s.m, 1 / sum, others / sum };
    if (!writes) return r;
    T loss = (T)log1p(rest_sum) + (1 - q) * (s.m - of_label);
    if (q > 0) loss += k.even * s.away;
    T *stats = k.stats + o * KR_ROW_STATS;
    const bool counts = label >= 0;
    k.loss[o] = counts ? loss : (T)0;
    stats[KR_ROW_MAX] = counts ? r.m : (T)0;
    stats[KR_ROW_INVERSE] = counts ? r.inverse : (T)0;
    stats[KR_ROW_MISS] = counts ? r.miss : (T)0;
    stats[KR_ROW_RIGHT] = counts && of_label == s.m && sum == sum && s.at == label ? (T)1 : (T)0;
    return r;
}

/* A vector of e^(x - m) of classes v and on becomes their g_x; scale: alpha, times the incoming gradient. */
template <typename T, typename I>
static __device__ __forceinline__ void gradient_of(const loss_job<T> &k, I v, I nv, I label, const row_result<T> &r,
                                                   T scale, kr_vec16<T> *p)
{
    enum { N = kr_vec16<T>::N };
    const T of_p = scale * r.inverse, less = scale * k.even;
    const I classes = label < 0 ? 0 : nv - v;
#pragma unroll
    for (int e = 0; e < N; e++) p->v[e] = p->v[e] * of_p - less;
    if (classes >= N && (label < v || label >= v + N)) return;
#pragma unroll
    for (int e = 0; e < N; e++) {
        if (v + e == label) p->v[e] = scale * (k.smoothing - k.even - r.miss);
        if (e >= classes) p->v[e] = 0;
    }
}

#endif
