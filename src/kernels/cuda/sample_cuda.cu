/* sample_cuda.cu - a token for each row of logits, and its log-probability.
 *
 *   x [b w] -> id, logprob [b]; rules: kernels/token_args.h
 *
 * A row is cut into parts. A block reads a part once, into registers, and finds its largest logit m and s, the sum of
 * e^(x - m); a warp joins a row's: all = max m, sum = sum of s e^(m - all). The cut depends on the type alone, so that
 * a row has the same bits among any others. At temperature 0 that is all, and the block of a row that comes last does
 * it. Else a second launch has a block for each row, and each of its warps a stretch of it, one after another in the
 * order of ids. Thresholds of top-k and top-p are found digit by digit of the keys, whole numbers in the order of the
 * logits: how many of the tokens that are left have this digit, or what they weigh, in whole units, so that sums do not
 * depend on the order of additions. Other sums are a lane's, then a warp's by halves, then of warps.
 */
#include "base/philox.h"
#include "kernels/cuda/token.cuh"

enum { PART_WARPS = 8, PART_THREADS = 32 * PART_WARPS, PACKS = 5 }; /* of a part; that a thread of it keeps */
enum { WARPS = 32, THREADS = 32 * WARPS, DIGITS = 256 };            /* of a row */

typedef unsigned long long whole;

template <typename T> struct key_of;
template <> struct key_of<float> {
    typedef uint32_t type;
};
template <> struct key_of<double> {
    typedef uint64_t type;
};

/* What is known of a part, or of a row. */
typedef struct summary {
    double most;   /* of the logits that may be chosen; +infinity for a NaN */
    double all;    /* the same of all of them */
    double sum;    /* of e^(x - all); 0 where all is infinite */
    int64_t place; /* the first of `most` */
    int64_t drawn; /* the row's; its first part's summary has it */
} summary;

/* Left are tokens whose key is above `last`, or is `last` with an id up to last_id. */
template <typename T> struct row_job {
    const T *x;
    int vocab, stretch, from, to; /* tokens of a stretch; from .. to - 1: the warp's */
    T max, per;                   /* weight: e^((x - max) per) */
    double units;                 /* whole units that a weight of 1 is */
    typename key_of<T>::type last;
    int last_id;
    T least; /* weight */
};

/* What the threads of a row's block share. */
struct room {
    summary row;
    int64_t number; /* of the row, for its draws */
    double sums[WARPS];
    int places[WARPS];
    uint32_t counts[DIGITS];
    whole weights[DIGITS];
    whole target;
    int found, digit;
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

/* ---- a part of a row ---- */

/* A thread has HELD of a part's SIZE logits, in packs of N. */
template <typename T> struct cut {
    enum { N = kr_pack<T>::N, HELD = PACKS * N, SIZE = PART_THREADS * HELD };
};

template <typename T> struct part_room {
    T most[PART_WARPS], all[PART_WARPS];
    double sums[PART_WARPS];
    int places[PART_WARPS];
};

/* Where in its part a thread's logit e is: in the order of e. */
template <typename T> static __device__ __forceinline__ int place_of_held(int e)
{
    enum { N = cut<T>::N };
    return (e / N * PART_THREADS + (int)threadIdx.x) * N + e % N;
}

/* The thread's of a part's n logits, all on their way at once; -infinity for those past the row's end. */
template <typename T> static __device__ __forceinline__ void hold(const T *x, int n, T *v)
{
    enum { N = cut<T>::N };
    if (n == cut<T>::SIZE && (uintptr_t)x % 16 == 0) {
#pragma unroll
        for (int e = 0; e < cut<T>::HELD; e += N) {
            const kr_vector<T, N> pack = kr_load_vector<T, N>(x + place_of_held<T>(e));
#pragma unroll
            for (int k = 0; k < N; k++) v[e + k] = pack.v[k];
        }
    } else {
#pragma unroll
        for (int e = 0; e < cut<T>::HELD; e++) {
            const int i = place_of_held<T>(e);
            v[e] = i < n ? x[i] : -(T)INFINITY;
        }
    }
}

/* A NaN is larger than all: it stays one in f32, and is +infinity in f64. */
static __device__ __forceinline__ float larger(float most, float x)
{
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(most), "f"(x));
    return y;
}
static __device__ __forceinline__ double larger(double most, double x)
{
    const double v = x < (double)INFINITY ? x : (double)INFINITY;
    return v > most ? v : most;
}

static __device__ __forceinline__ float highest_of_lanes(float x)
{
    value_of(__reduce_max_sync(0xffffffffu, key(x)), &x);
    return x;
}
static __device__ __forceinline__ double highest_of_lanes(double x)
{
#pragma unroll
    for (int away = 16; away > 0; away /= 2) {
        const double other = __shfl_xor_sync(0xffffffffu, x, away);
        x = other > x ? other : x;
    }
    return x;
}

/* Of what threads have found by `larger`; *own without NaN. */
template <typename T> static __device__ __forceinline__ T highest_of_part(T *own, T *of_warps)
{
    *own = *own < (T)INFINITY ? *own : (T)INFINITY;
    const T of_warp = highest_of_lanes(*own);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = of_warp;
    __syncthreads();
    return highest_of_lanes(of_warps[threadIdx.x % PART_WARPS]);
}

/* e^x for x <= 0. In f32 it is 2^(x log2 e), whose product rounds as the difference x did. Its bits become a double's,
 * without the conversion, which is as slow as 2^x; of what is below 2^-126 they make something else below it, which is
 * nothing beside the 1 of the largest. */
static __device__ __forceinline__ double power(float x)
{
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * 1.4426950408889634f));
    const uint32_t bits = __float_as_uint(e);
    return __hiloint2double((int)((bits >> 3) + ((1023u - 127u) << 20)), (int)(bits << 29));
}
static __device__ __forceinline__ double power(double x)
{
    return exp(x);
}

/* Of the part whose logits v threads hold; its first `eligible` may be chosen. The first warp gets it. */
template <typename T> static __device__ __forceinline__ summary summary_of(const T *v, int eligible, part_room<T> *s)
{
    enum { HELD = cut<T>::HELD };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T own = -(T)INFINITY;
#pragma unroll
    for (int e = 0; e < HELD; e++) own = larger(own, v[e]);
    const T all = highest_of_part(&own, s->all);
    T most = all;
    if (eligible < cut<T>::SIZE) {
        own = -(T)INFINITY;
#pragma unroll
        for (int e = 0; e < HELD; e++)
            if (place_of_held<T>(e) < eligible) own = larger(own, v[e]);
        most = highest_of_part(&own, s->most);
    }
    int place = INT32_MAX;
    if (own == most) {
#pragma unroll
        for (int e = HELD - 1; e >= 0; e--)
            if (v[e] == most && place_of_held<T>(e) < eligible) place = place_of_held<T>(e);
    }
    double even = 0, odd = 0;
#pragma unroll
    for (int e = 0; e < HELD; e += 2) even += power(v[e] - all), odd += power(v[e + 1] - all);
    double sum = kr_warp_sum(even + odd);
    place = __reduce_min_sync(0xffffffffu, place);
    if (lane == 0) s->sums[warp] = sum, s->places[warp] = place;
    __syncthreads();
    if (warp > 0) return {};
    sum = kr_warp_sum(lane < PART_WARPS ? s->sums[lane] : 0.0);
    place = __reduce_min_sync(0xffffffffu, s->places[lane % PART_WARPS]);
    const bool is_finite = all > -(T)INFINITY && all < (T)INFINITY;
    return { (double)most, (double)all, is_finite ? sum : 0.0, place, 0 };
}

/* ---- parts together ---- */

/* Not from the cache of a multiprocessor, which may have what was there before. */
static __device__ __forceinline__ summary read_summary(const summary *from)
{
    return { __ldcg(&from->most), __ldcg(&from->all), __ldcg(&from->sum), __ldcg(&from->place), __ldcg(&from->drawn) };
}

/* Of the lanes' logits `most` the largest, and the first place of it. */
static __device__ __forceinline__ void find_first_highest(double *most, int64_t *place)
{
#pragma unroll
    for (int away = 16; away > 0; away /= 2) {
        const double v = __shfl_xor_sync(0xffffffffu, *most, away);
        const int64_t there = __shfl_xor_sync(0xffffffffu, *place, away);
        if (v > *most || (v == *most && there < *place)) *most = v, *place = there;
    }
}

/* A row's, by a warp: a lane has every 32nd part. */
static __device__ summary join(const summary *parts, int count)
{
    summary row = { -INFINITY, -INFINITY, 0, INT64_MAX, 0 };
    for (int p = threadIdx.x % 32; p < count; p += 32) {
        const summary next = read_summary(parts + p);
        if (next.most > row.most) row.most = next.most, row.place = next.place;
        if (p == 0) row.drawn = next.drawn;
        if (next.all <= row.all) {
            if (next.sum > 0) row.sum += next.sum * exp(next.all - row.all);
        } else {
            row.sum = (row.sum > 0 ? row.sum * exp(row.all - next.all) : 0.0) + next.sum;
            row.all = next.all;
        }
    }
    const double all = highest_of_lanes(row.all);
    row.sum = kr_warp_sum(row.sum > 0 ? row.sum * exp(row.all - all) : 0.0);
    row.all = all;
    row.drawn = __shfl_sync(0xffffffffu, row.drawn, 0);
    find_first_highest(&row.most, &row.place);
    return row;
}

static __device__ __forceinline__ bool can_choose(const summary &row)
{
    return row.all < (double)INFINITY && row.most > -(double)INFINITY;
}

/* x: the logit of id. */
template <typename T>
static __device__ void leave(const kr_sample_args &a, int64_t number, const summary &row, int64_t id, double x)
{
    const int64_t place = number + row.drawn % 2 * a.apart;
    a.id[place] = (int32_t)id;
    ((T *)a.logprob)[place] = id < 0 ? (T)0 : (T)(x - (row.all + log(row.sum)));
    a.next[number] = id < 0 ? 0 : (int32_t)id;
    a.drawn[number] = row.drawn + 1;
}

/* Is this the last of `count` to come? What others wrote before they came is there for it, and the turn is 0 again. */
static __device__ __forceinline__ bool comes_last(uint64_t *turn, uint64_t count)
{
    uint64_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], 1;" : "=l"(before) : "l"(turn) : "memory"); /* integers */
    if (before + 1 < count) return false;
    *turn = 0;
    return true;
}

/* turns: NULL if rows have a launch of their own. Of 64 rows of 50288 floats all parts find room on an H200 at once. */
template <typename T>
static __global__ void __launch_bounds__(PART_THREADS, sizeof(T) == 4 ? 5 : 3)
    parts_kernel(const __grid_constant__ kr_sample_args a, const __grid_constant__ kr_divisor parts, uint64_t *turns)
{
    enum { SIZE = cut<T>::SIZE };
    __shared__ part_room<T> s;
    const int64_t row = kr_quotient(blockIdx.x, parts), part = blockIdx.x - row * parts.d, begin = part * SIZE;
    summary *of_row = (summary *)a.exec.scratch + row * parts.d;
    kr_token_wait_alone();
    if (!turns) kr_token_let_next();
    int64_t drawn = 0;
    if (part == 0 && threadIdx.x == 0) drawn = a.drawn[row];
    T v[cut<T>::HELD];
    hold((const T *)a.x + row * a.stride + begin, (int)kr_least(a.nw - begin, SIZE), v);
    summary own = summary_of(v, (int)kr_most(0, kr_least(a.vocab - begin, SIZE)), &s);
    if (threadIdx.x >= 32) return;
    own.place += begin;
    own.drawn = drawn;
    bool is_last = false;
    if (threadIdx.x == 0) {
        of_row[part] = own;
        is_last = turns && comes_last(turns + row, parts.d);
    }
    if (!__shfl_sync(0xffffffffu, is_last, 0)) return;
    __syncwarp(); /* what the first lane may read the others may */
    const summary all = join(of_row, (int)parts.d);
    if (threadIdx.x == 0) leave<T>(a, row, all, can_choose(all) ? all.place : -1, all.most);
}

/* ---- a row ---- */

template <typename T> static __device__ __forceinline__ T weight(const row_job<T> &j, T x)
{
    return kr_exp((x - j.max) * j.per);
}

template <typename T> static __device__ __forceinline__ bool is_left(const row_job<T> &j, T x, int i)
{
    const typename key_of<T>::type k = key(x);
    return k > j.last || (k == j.last && i <= j.last_id);
}

/* f(x[i], i) for i = from, from + step, .. below to, in this order, with AHEAD loads on their way. */
template <typename T, typename F>
static __device__ __forceinline__ void each(const T *x, int from, int to, int step, F f)
{
    enum { AHEAD = 8 };
    int i = from;
    for (; i < to - (AHEAD - 1) * step; i += AHEAD * step) {
        T v[AHEAD];
#pragma unroll
        for (int e = 0; e < AHEAD; e++) v[e] = x[i + e * step];
#pragma unroll
        for (int e = 0; e < AHEAD; e++) f(v[e], i + e * step);
    }
    for (; i < to; i += step) f(x[i], i);
}

/* ---- places ---- */

/* What token i counts for: 1 if its key is `last`, or its weight if it is left. */
template <bool TIES, typename T> static __device__ __forceinline__ double share(const row_job<T> &j, T x, int i)
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
#pragma unroll 4
    for (int w = 0; w < WARPS; w++) {
        if (w < warp) before += s->sums[w];
        sum += s->sums[w];
    }
    *all = sum;
    const double left = __shfl_up_sync(0xffffffffu, upto, 1);
    return before + (lane ? left : 0.0);
}

/* In the order of ids, the first token with which the shares exceed `target` (times their sum, with of_sum); where
 * rounding leaves none, the last one that has a share. First the stretch that it is in, then the place in that. */
template <bool TIES, typename T>
static __device__ int place_of(const row_job<T> &j, double target, bool of_sum, room *s)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double own = 0, all;
    int last = -1;
    each(j.x, j.from + lane, j.to, 32, [&](T x, int i) {
        const double v = share<TIES>(j, x, i);
        own += v;
        if (v > 0) last = i;
    });
    own = kr_warp_sum(own);
    last = __reduce_max_sync(0xffffffffu, last);
    __syncthreads();
    if (lane == 0) s->sums[warp] = own, s->places[warp] = last;
    if (threadIdx.x == 0) s->found = INT32_MAX;
    __syncthreads();
    double sum = 0;
#pragma unroll 4
    for (int w = 0; w < WARPS; w++) {
        sum += s->sums[w];
        last = max(last, s->places[w]);
    }
    double left = of_sum ? target * sum : target;
    int which = 0;
#pragma unroll 4
    for (; which < WARPS - 1 && left >= s->sums[which]; which++) left -= s->sums[which];
    const int from = min(which * j.stretch, j.vocab), to = min(from + j.stretch, j.vocab);
    const int each_has = (to - from + THREADS - 1) / THREADS, first = from + (int)threadIdx.x * each_has;
    const int end = min(first + each_has, to);
    own = 0;
    for (int i = first; i < end; i++) own += share<TIES>(j, j.x[i], i);
    double upto = sum_before(own, s, &all);
    int found = INT32_MAX;
    for (int i = first; i < end; i++) {
        const double v = share<TIES>(j, j.x[i], i);
        upto += v;
        if (v > 0 && left < upto && found == INT32_MAX) found = i;
    }
    if (found < INT32_MAX) atomicMin(&s->found, found); /* integers */
    __syncthreads();
    return s->found < INT32_MAX ? s->found : last;
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
    each(j.x, threadIdx.x, j.vocab, THREADS, [&](T x, int i) {
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

/* ---- the choice ---- */

template <typename T> static __device__ whole weigh_all(const row_job<T> &j, room *s)
{
    __syncthreads();
    if (threadIdx.x == 0) s->weights[0] = 0;
    __syncthreads();
    whole own = 0;
    each(j.x, threadIdx.x, j.vocab, THREADS, [&](T x, int i) {
        if (is_left(j, x, i)) own += (whole)((double)weight(j, x) * j.units);
    });
    atomicAdd(&s->weights[0], own); /* integers */
    __syncthreads();
    return s->weights[0];
}

template <typename T> static __device__ int choose(const kr_sample_args &a, row_job<T> &j, room *s)
{
    if (a.top_k > 0 && a.top_k < a.vocab) keep_first<false>(j, (whole)a.top_k, s);
    if (a.top_p < 1) {
        const whole target = (whole)ceil(a.top_p * (double)weigh_all(j, s));
        keep_first<true>(j, target ? target : 1, s);
    }
    j.least = (T)a.min_p;
    const kr_philox_block block = kr_philox_at(a.seed, (uint64_t)s->number, (uint64_t)s->row.drawn);
    const double u = (double)((((uint64_t)block.word[1] << 32) | block.word[0]) >> 11) * 0x1p-53;
    return place_of<false>(j, u, true, s);
}

/* Before it waits for the launch of the parts it reads what that does not write. */
template <typename T>
static __global__ void __launch_bounds__(THREADS, 1)
    rows_kernel(const __grid_constant__ kr_sample_args a, int parts, double units)
{
    __shared__ room s;
    const int64_t row = blockIdx.x;
    if (threadIdx.x == 0 && a.temperature > 0) s.number = a.row[row];
    kr_token_wait_alone();
    if (threadIdx.x < 32) {
        const summary all = join((const summary *)a.exec.scratch + row * parts, parts);
        if (threadIdx.x == 0) s.row = all;
    }
    __syncthreads();
    int id = can_choose(s.row) ? (int)s.row.place : -1;
    const T *x = (const T *)a.x + row * a.stride;
    if (id >= 0 && a.temperature > 0) {
        row_job<T> j;
        j.x = x;
        j.vocab = (int)a.vocab;
        j.stretch = (int)kr_ceil_div(a.vocab, 32 * WARPS) * 32;
        j.from = min((int)threadIdx.x / 32 * j.stretch, j.vocab);
        j.to = min(j.from + j.stretch, j.vocab);
        j.max = (T)s.row.most;
        j.per = (T)(1 / a.temperature);
        j.units = units;
        j.last = 0;
        j.last_id = INT32_MAX;
        j.least = 0;
        id = choose(a, j, &s);
    }
    if (threadIdx.x == 0) leave<T>(a, row, s.row, id, a.temperature > 0 && id >= 0 ? (double)x[id] : s.row.most);
}

/* ---- entry ---- */

template <typename T> static int64_t parts_of(const kr_sample_args *a)
{
    return kr_most(1, kr_ceil_div(a->nw, cut<T>::SIZE));
}

template <typename T> static size_t sample_scratch(const kr_sample_args *a)
{
    return (size_t)(a->nb * parts_of<T>(a)) * sizeof(summary);
}

template <typename T> static void sample_run(const kr_sample_args *a)
{
    const int64_t parts = parts_of<T>(a);
    const bool at_once = !(a->temperature > 0) && a->nb <= KR_CUDA_TURNS;
    uint64_t *turns = at_once ? kr_cuda_turns((const kr_cuda *)a->exec.own) : NULL;
    if (a->nb == 0) return;
    kr_token_launch(&a->exec, parts_kernel<T>, dim3((unsigned)(a->nb * parts)), PART_THREADS, 0, *a,
                    kr_divisor_of(parts), turns);
    if (at_once) return;
    int log2 = 0;
    while ((int64_t)1 << log2 < a->vocab) log2++;
    kr_token_launch(&a->exec, rows_kernel<T>, dim3((unsigned)a->nb), THREADS, 0, *a, (int)parts, ldexp(1.0, 62 - log2));
}

KR_CUDA_ENTRY_SCRATCH(sample, kr_sample_args)
