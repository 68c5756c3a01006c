/* sample_cuda.cu - a token for each row of logits, and its log-probability.
 *
 *   x [b w] -> id, logprob [b]; rules: kernels/token_args.h
 *
 * A block has a row; each of its warps a part of the row, one after another in the order of ids. Thresholds of top-k
 * and top-p are found digit by digit of the keys, whole numbers in the order of the logits: how many of the tokens
 * that are left have this digit, or what they weigh, in whole units, so that sums do not depend on the order of
 * additions. Other sums are a lane's, then a warp's, then of warps by halves.
 */
#include "base/philox.h"
#include "kernels/cuda/parts.cuh"

enum { WARPS = 32, THREADS = 32 * WARPS, DIGITS = 256 }; /* a warp has a lane for each warp */

typedef unsigned long long whole;

template <typename T> struct key_of;
template <> struct key_of<float> {
    typedef uint32_t type;
};
template <> struct key_of<double> {
    typedef uint64_t type;
};

/* Left are tokens whose key is above `last`, or is `last` with an id up to last_id. */
template <typename T> struct row_job {
    const T *x;
    int64_t vocab, part, from, to; /* from .. to - 1: the warp's part, of `part` tokens */
    T max, per;                    /* weight: e^((x - max) per) */
    double units;                  /* whole units that a weight of 1 is */
    typename key_of<T>::type last;
    int64_t last_id;
    T least; /* weight */
};

/* What the threads of a block share. */
struct room {
    double sums[WARPS];
    double maxima[WARPS];
    int64_t places[WARPS];
    uint32_t counts[DIGITS];
    whole weights[DIGITS];
    whole target;
    long long found;
    int digit;
};

static __device__ __forceinline__ uint32_t key(float x)
{
    const uint32_t bits = __float_as_uint(x + 0.0f); /* the zeros are one */
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
static __device__ __forceinline__ uint64_t key(double x)
{
    const uint64_t bits = (uint64_t)__double_as_longlong(x + 0.0);
    return bits >> 63 ? ~bits : bits | (uint64_t)1 << 63;
}

static __device__ __forceinline__ void value_of(uint32_t k, float *x)
{
    *x = __uint_as_float(k >> 31 ? k ^ 0x80000000u : ~k);
}
static __device__ __forceinline__ void value_of(uint64_t k, double *x)
{
    *x = __longlong_as_double((long long)(k >> 63 ? k ^ (uint64_t)1 << 63 : ~k));
}

template <typename T> static __device__ __forceinline__ T weight(const row_job<T> &j, T x)
{
    return kr_exp((x - j.max) * j.per);
}

template <typename T> static __device__ __forceinline__ bool is_left(const row_job<T> &j, T x, int64_t i)
{
    const typename key_of<T>::type k = key(x);
    return k > j.last || (k == j.last && i <= j.last_id);
}

/* f(x[i], i) for i = from, from + step, .. below to, in this order, with AHEAD loads on their way. */
template <typename T, typename F>
static __device__ __forceinline__ void each(const T *x, int64_t from, int64_t to, int step, F f)
{
    enum { AHEAD = 8 };
    int64_t i = from;
    for (; i + (AHEAD - 1) * step < to; i += AHEAD * step) {
        T v[AHEAD];
#pragma unroll
        for (int e = 0; e < AHEAD; e++) v[e] = x[i + e * step];
#pragma unroll
        for (int e = 0; e < AHEAD; e++) f(v[e], i + e * step);
    }
    for (; i < to; i += step) f(x[i], i);
}

/* ---- sums ---- */

static __device__ double block_sum(double x, room *s)
{
    x = kr_warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) s->sums[threadIdx.x / 32] = x;
    __syncthreads();
    return kr_warp_sum(s->sums[threadIdx.x % WARPS]);
}

/* A value and where it is; of equals the first. */
template <typename T> struct peak {
    T most;
    int64_t at;
};

template <typename T> static __device__ __forceinline__ peak<T> highest_of_lanes(peak<T> own)
{
    for (int away = 16; away > 0; away /= 2) {
        const T v = __shfl_xor_sync(0xffffffffu, own.most, away);
        const int64_t there = __shfl_xor_sync(0xffffffffu, own.at, away);
        if (v > own.most || (v == own.most && there < own.at)) own = { v, there };
    }
    return own;
}

/* The largest of the row's first `count`, and the first place of it; +infinity for a NaN or an infinity. */
template <typename T> static __device__ double largest(const T *x, int64_t from, int64_t count, room *s, int64_t *place)
{
    peak<T> own = { -(T)INFINITY, INT64_MAX };
    each(x, from + threadIdx.x, count, THREADS, [&](T value, int64_t i) {
        const T v = value < (T)INFINITY ? value : (T)INFINITY;
        if (v > own.most) own = { v, i };
    });
    own = highest_of_lanes(own);
    __syncthreads();
    if (threadIdx.x % 32 == 0) s->maxima[threadIdx.x / 32] = (double)own.most, s->places[threadIdx.x / 32] = own.at;
    __syncthreads();
    const int warp = threadIdx.x % WARPS;
    own = highest_of_lanes(peak<T>{ (T)s->maxima[warp], s->places[warp] });
    *place = own.at;
    return (double)own.most;
}

/* ---- places ---- */

/* What token i counts for: 1 if its key is `last`, or its weight if it is left. */
template <bool TIES, typename T> static __device__ __forceinline__ double share(const row_job<T> &j, T x, int64_t i)
{
    if (TIES) return key(x) == j.last ? 1.0 : 0.0;
    if (!is_left(j, x, i)) return 0.0;
    const T w = weight(j, x);
    return w >= j.least ? (double)w : 0.0;
}

/* Sums of the threads before this one, in order; *all: of all of them. */
static __device__ double sum_before(double own, room *s, double *all)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double upto = own;
    for (int away = 1; away < 32; away *= 2) {
        const double other = __shfl_up_sync(0xffffffffu, upto, away);
        if (lane >= away) upto += other;
    }
    __syncthreads();
    if (lane == 31) s->sums[warp] = upto;
    __syncthreads();
    double before = 0, sum = 0;
    for (int w = 0; w < WARPS; w++) {
        if (w < warp) before += s->sums[w];
        sum += s->sums[w];
    }
    *all = sum;
    const double left = __shfl_up_sync(0xffffffffu, upto, 1);
    return before + (lane ? left : 0.0);
}

/* In the order of ids, the first token with which the shares exceed `target` (times their sum, with of_sum); where
 * rounding leaves none, the last one that has a share. First the warp's part that it is in, then the place in that. */
template <bool TIES, typename T>
static __device__ int64_t place_of(const row_job<T> &j, double target, bool of_sum, room *s)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double own = 0, all;
    long long last = -1;
    each(j.x, j.from + lane, j.to, 32, [&](T x, int64_t i) {
        const double v = share<TIES>(j, x, i);
        own += v;
        if (v > 0) last = i;
    });
    own = kr_warp_sum(own);
    for (int away = 16; away > 0; away /= 2) {
        const long long other = __shfl_xor_sync(0xffffffffu, last, away);
        last = other > last ? other : last;
    }
    __syncthreads();
    if (lane == 0) s->maxima[warp] = own, s->places[warp] = last;
    if (threadIdx.x == 0) s->found = INT64_MAX;
    __syncthreads();
    double sum = 0;
    for (int w = 0; w < WARPS; w++) {
        sum += s->maxima[w];
        last = s->places[w] > last ? s->places[w] : last;
    }
    double left = of_sum ? target * sum : target;
    int part = 0;
    for (; part < WARPS - 1 && left >= s->maxima[part]; part++) left -= s->maxima[part];
    const int64_t from = kr_least(part * j.part, j.vocab), to = kr_least(from + j.part, j.vocab);
    const int64_t each_has = kr_ceil_div(to - from, THREADS), first = from + threadIdx.x * each_has;
    const int64_t end = kr_least(first + each_has, to);
    own = 0;
    for (int64_t i = first; i < end; i++) own += share<TIES>(j, j.x[i], i);
    double upto = sum_before(own, s, &all);
    long long found = INT64_MAX;
    for (int64_t i = first; i < end; i++) {
        const double v = share<TIES>(j, j.x[i], i);
        upto += v;
        if (v > 0 && left < upto && found == INT64_MAX) found = i;
    }
    if (found < INT64_MAX) atomicMin((long long *)&s->found, found);
    __syncthreads();
    return s->found < INT64_MAX ? s->found : last;
}

/* ---- thresholds ---- */

/* One digit of the key that is looked for, of the tokens left whose digits above it are `prefix`: the largest with
 * which their number, or their weights, reach *target, which becomes what that digit itself has to give. */
template <bool BY_WEIGHT, typename T>
static __device__ int next_digit(const row_job<T> &j, typename key_of<T>::type prefix, int shift, room *s)
{
    typedef typename key_of<T>::type bits;
    __syncthreads();
    if (threadIdx.x < DIGITS) s->counts[threadIdx.x] = 0, s->weights[threadIdx.x] = 0;
    __syncthreads();
    each(j.x, threadIdx.x, j.vocab, THREADS, [&](T x, int64_t i) {
        const bits k = key(x);
        const bool fits = shift + 8 == 8 * (int)sizeof(bits) || (k ^ prefix) >> (shift + 8) == 0;
        if (!fits || !is_left(j, x, i)) return;
        const int digit = (int)(k >> shift & (DIGITS - 1));
        if (BY_WEIGHT) atomicAdd(&s->weights[digit], (whole)((double)weight(j, x) * j.units));
        else atomicAdd(&s->counts[digit], 1u);
    });
    __syncthreads();
    if (threadIdx.x == 0) {
        whole left = s->target;
        int digit = DIGITS - 1;
        for (; digit > 0; digit--) {
            const whole has = BY_WEIGHT ? s->weights[digit] : s->counts[digit];
            if (has >= left) break;
            left -= has;
        }
        s->target = left;
        s->digit = digit;
    }
    __syncthreads();
    return s->digit;
}

/* Leaves the fewest largest that measure `target` at least. */
template <bool BY_WEIGHT, typename T> static __device__ void keep_first(row_job<T> &j, whole target, room *s)
{
    typedef typename key_of<T>::type bits;
    bits prefix = 0;
    __syncthreads();
    if (threadIdx.x == 0) s->target = target;
    for (int shift = 8 * (int)sizeof(bits) - 8; shift >= 0; shift -= 8)
        prefix |= (bits)next_digit<BY_WEIGHT>(j, prefix, shift, s) << shift;
    whole ties = s->target; /* of tokens of the last key, or of their weight */
    if (BY_WEIGHT) {
        T x;
        value_of(prefix, &x);
        const whole one = (whole)((double)weight(j, x) * j.units);
        ties = one ? (ties + one - 1) / one : 1;
    }
    j.last = prefix;
    j.last_id = place_of<true>(j, (double)ties - 1, false, s);
}

/* ---- the row ---- */

template <typename T> static __device__ whole weigh_all(const row_job<T> &j, room *s)
{
    __syncthreads();
    if (threadIdx.x == 0) s->weights[0] = 0;
    __syncthreads();
    whole own = 0;
    each(j.x, threadIdx.x, j.vocab, THREADS, [&](T x, int64_t i) {
        if (is_left(j, x, i)) own += (whole)((double)weight(j, x) * j.units);
    });
    atomicAdd(&s->weights[0], own); /* integers */
    __syncthreads();
    return s->weights[0];
}

template <typename T> static __device__ int64_t choose(const kr_sample_args &a, row_job<T> &j, int64_t row, room *s)
{
    if (a.top_k > 0 && a.top_k < a.vocab) keep_first<false>(j, (whole)a.top_k, s);
    if (a.top_p < 1) {
        const whole target = (whole)ceil(a.top_p * (double)weigh_all(j, s));
        keep_first<true>(j, target ? target : 1, s);
    }
    j.least = (T)a.min_p;
    const kr_philox_block block = kr_philox_at(a.seed, (uint64_t)a.row[row], (uint64_t)a.drawn[row]);
    const double u = (double)((((uint64_t)block.word[1] << 32) | block.word[0]) >> 11) * 0x1p-53;
    return place_of<false>(j, u, true, s);
}

template <typename T> static __device__ void leave(const kr_sample_args &a, int64_t row, int64_t id, double logprob)
{
    const int64_t drawn = a.drawn[row], place = row + drawn % 2 * a.apart;
    a.id[place] = (int32_t)id;
    ((T *)a.logprob)[place] = (T)logprob;
    a.next[row] = id < 0 ? 0 : (int32_t)id;
    a.drawn[row] = drawn + 1;
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) sample_kernel(const __grid_constant__ kr_sample_args a, double units)
{
    __shared__ room s;
    const int64_t row = blockIdx.x;
    row_job<T> j;
    j.x = (const T *)a.x + row * a.stride;
    j.vocab = a.vocab;
    j.part = kr_ceil_div(kr_ceil_div(a.vocab, WARPS), 32) * 32;
    j.from = kr_least(threadIdx.x / 32 * j.part, a.vocab);
    j.to = kr_least(j.from + j.part, a.vocab);
    int64_t place, behind;
    const double max = largest(j.x, 0, a.vocab, &s, &place);
    const double rest = a.nw > a.vocab ? largest(j.x, a.vocab, a.nw, &s, &behind) : -INFINITY;
    const double all = rest > max ? rest : max;
    if (!(all < INFINITY) || !(max > -INFINITY)) {
        if (threadIdx.x == 0) leave<T>(a, row, -1, 0);
        return;
    }
    double sum = 0;
    each(j.x, threadIdx.x, a.nw, THREADS, [&](T x, int64_t) { sum += (double)kr_exp(x - (T)all); });
    sum = block_sum(sum, &s);
    j.max = (T)max;
    j.per = a.temperature > 0 ? (T)(1 / a.temperature) : (T)1;
    j.units = units;
    j.last = 0;
    j.last_id = INT64_MAX;
    j.least = 0;
    const int64_t id = a.temperature > 0 ? choose(a, j, row, &s) : place;
    if (threadIdx.x == 0) leave<T>(a, row, id, (double)j.x[id] - (all + log(sum)));
}

template <typename T> static void sample_run(const kr_sample_args *a)
{
    int log2 = 0;
    while ((int64_t)1 << log2 < a->vocab) log2++;
    if (a->nb > 0) sample_kernel<T><<<(unsigned)a->nb, THREADS, 0, kr_stream_of(&a->exec)>>>(*a, ldexp(1.0, 62 - log2));
}

KR_CUDA_ENTRY(sample, kr_sample_args)
