/* sample_cuda.cu - samples a token from each row of logits, with its log-probability; all architectures, f32 and f64.
 *
 *   x [b w] -> id, logprob [b]; rules: kernels/args/decode_args.h
 *
 * A row is split into parts. A CTA reads a part once, into registers, and finds its maximum m and s = sum of e^(x - m); a
 * warp merges a row's: all = max m, sum = sum of s e^(m - all). The split depends on the type alone, so a row gives the
 * same bits in any batch. At temperature 0 this is all, done by the row's last CTA to arrive. Otherwise a second kernel has
 * one CTA per row, and each of its warps a consecutive stretch of ids. The thresholds of top-k and top-p are found by radix
 * selection over keys, integers in the order of the logits: per digit, the number or the weight of the remaining tokens
 * with that digit. Weights are summed in fixed point, so that sums do not depend on the order of additions. Other sums are
 * per lane, then pairwise within a warp, then over warps.
 *
 * Biases, penalties and masks: where a call has tables of them, a kernel between the two reads such rows again, stores
 * their changed logits for the last one, and replaces the maximum in the summaries of their parts; the sum stays that of the
 * model's own logits. A call without tables does not have this kernel.
 *
 * Order of accesses. Only the host writes rules, biases and masks, while nothing is queued that reads them. n_sampled and the
 * entry of `counts` of the sampled token are written once in a call, by the one thread that stores the row's result. n_sampled
 * was read by then: by a CTA of a kernel before, or behind the row's ticket. So were the counts: with tables there are always
 * three kernels, each of which waits for the one before. The next call reads them after such a wait, too.
 */
#include "base/philox.h"
#include "kernels/cuda/prim/pdl.cuh"

enum { PART_WARPS = 8, PART_THREADS = 32 * PART_WARPS, VECS = 5 }; /* per part; held per thread */
enum { WARPS = 32, THREADS = 32 * WARPS, DIGITS = 256 };           /* per row */

typedef unsigned long long fixed;

template <typename T> struct key_of;
template <> struct key_of<float> {
    typedef uint32_t type;
};
template <> struct key_of<double> {
    typedef uint64_t type;
};

/* Summary of a part, or of a row. */
typedef struct summary {
    double most;       /* maximum of the eligible logits; +infinity for a NaN */
    double all;        /* the same of all logits */
    double sum;        /* of e^(x - all); 0 where all is infinite */
    int64_t index;     /* first index of `most` */
    int64_t n_sampled; /* per row; in the summary of its first part */
} summary;

/* Tokens are kept if their key is above `last`, or equal to it with an id up to last_id. */
template <typename T> struct row_job {
    const T *x;
    int vocab, stretch, from, to; /* tokens per stretch; from .. to - 1: of the warp */
    T max, per;                   /* weight: e^((x - max) per) */
    double units;                 /* fixed-point units of a weight of 1 */
    typename key_of<T>::type last;
    int last_id;
    T least; /* minimum weight */
};

/* Shared memory of a row's CTA. */
struct row_shared {
    summary row;
    kr_sample_rules rules;
    double sums[WARPS];
    int indices[WARPS];
    uint32_t counts[DIGITS];
    fixed weights[DIGITS];
    fixed target;
    int found, digit;
};

static __device__ __forceinline__ uint32_t key(float x)
{
    const uint32_t bits = __float_as_uint(x + 0.0f); /* -0 and +0 get one key */
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

/* A thread holds HELD of a part's SIZE logits, in 16-byte vectors of N. */
template <typename T> struct part_shape {
    enum { N = kr_vec16<T>::N, HELD = VECS * N, SIZE = PART_THREADS * HELD };
};

template <typename T> struct part_shared {
    T most[PART_WARPS], all[PART_WARPS];
    double sums[PART_WARPS];
    int indices[PART_WARPS];
};

/* Index in the part of a thread's logit e; increasing in e. */
template <typename T> static __device__ __forceinline__ int held_index(int e)
{
    enum { N = part_shape<T>::N };
    return (e / N * PART_THREADS + (int)threadIdx.x) * N + e % N;
}

/* Loads the thread's logits of a part of n, all in flight at once; -infinity past the row's end. */
template <typename T> static __device__ __forceinline__ void load_held(const T *x, int n, T *v)
{
    enum { N = part_shape<T>::N };
    if (n == part_shape<T>::SIZE && (uintptr_t)x % 16 == 0) {
#pragma unroll
        for (int e = 0; e < part_shape<T>::HELD; e += N) {
            const kr_vector<T, N> vec = kr_load_vector<T, N>(x + held_index<T>(e));
#pragma unroll
            for (int k = 0; k < N; k++) v[e + k] = vec.v[k];
        }
    } else {
#pragma unroll
        for (int e = 0; e < part_shape<T>::HELD; e++) {
            const int i = held_index<T>(e);
            v[e] = i < n ? x[i] : -(T)INFINITY;
        }
    }
}

/* A NaN wins: it stays NaN in f32, and becomes +infinity in f64. */
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

static __device__ __forceinline__ float warp_max(float x)
{
    value_of(__reduce_max_sync(0xffffffffu, key(x)), &x);
    return x;
}
static __device__ __forceinline__ double warp_max(double x)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        const double other = __shfl_xor_sync(0xffffffffu, x, offset);
        x = other > x ? other : x;
    }
    return x;
}

/* Maximum over a CTA of what threads found by `larger`; *own without NaN. */
template <typename T> static __device__ __forceinline__ T part_max(T *own, T *of_warps)
{
    *own = *own < (T)INFINITY ? *own : (T)INFINITY;
    const T of_warp = warp_max(*own);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = of_warp;
    __syncthreads();
    return warp_max(of_warps[threadIdx.x % PART_WARPS]);
}

/* e^x for x <= 0. In f32: 2^(x log2 e), whose product rounds like the difference x did. The float's bits are assembled to a
 * double's without a conversion, which is as slow as ex2; results below 2^-126 become some other value below it, which is
 * negligible against the 1 of the maximum. */
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

/* Summary of the part whose logits v the threads hold; its first `eligible` may be sampled. Returned to the first warp. */
template <typename T> static __device__ __forceinline__ summary summary_of(const T *v, int eligible, part_shared<T> *s)
{
    enum { HELD = part_shape<T>::HELD };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T own = -(T)INFINITY;
#pragma unroll
    for (int e = 0; e < HELD; e++) own = larger(own, v[e]);
    const T all = part_max(&own, s->all);
    T most = all;
    if (eligible < part_shape<T>::SIZE) {
        own = -(T)INFINITY;
#pragma unroll
        for (int e = 0; e < HELD; e++)
            if (held_index<T>(e) < eligible) own = larger(own, v[e]);
        most = part_max(&own, s->most);
    }
    int index = INT32_MAX;
    if (own == most) {
#pragma unroll
        for (int e = HELD - 1; e >= 0; e--)
            if (v[e] == most && held_index<T>(e) < eligible) index = held_index<T>(e);
    }
    double even = 0, odd = 0;
#pragma unroll
    for (int e = 0; e < HELD; e += 2) even += power(v[e] - all), odd += power(v[e + 1] - all);
    double sum = kr_warp_sum(even + odd);
    index = __reduce_min_sync(0xffffffffu, index);
    if (lane == 0) s->sums[warp] = sum, s->indices[warp] = index;
    __syncthreads();
    if (warp > 0) return {};
    sum = kr_warp_sum(lane < PART_WARPS ? s->sums[lane] : 0.0);
    index = __reduce_min_sync(0xffffffffu, s->indices[lane % PART_WARPS]);
    const bool is_finite = all > -(T)INFINITY && all < (T)INFINITY;
    return { (double)most, (double)all, is_finite ? sum : 0.0, index, 0 };
}

/* ---- merging parts ---- */

/* Bypasses L1, which may hold stale data. */
static __device__ __forceinline__ summary read_summary(const summary *from)
{
    return { __ldcg(&from->most), __ldcg(&from->all), __ldcg(&from->sum), __ldcg(&from->index),
             __ldcg(&from->n_sampled) };
}

/* The largest of the lanes' logits `most`, and its first index. */
static __device__ __forceinline__ void first_max(double *most, int64_t *index)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        const double v = __shfl_xor_sync(0xffffffffu, *most, offset);
        const int64_t there = __shfl_xor_sync(0xffffffffu, *index, offset);
        if (v > *most || (v == *most && there < *index)) *most = v, *index = there;
    }
}

/* A row's summary, by one warp: a lane merges every 32nd part. */
static __device__ summary merge_parts(const summary *parts, int count)
{
    summary row = { -INFINITY, -INFINITY, 0, INT64_MAX, 0 };
    for (int p = threadIdx.x % 32; p < count; p += 32) {
        const summary next = read_summary(parts + p);
        if (next.most > row.most) row.most = next.most, row.index = next.index;
        if (p == 0) row.n_sampled = next.n_sampled;
        if (next.all <= row.all) {
            if (next.sum > 0) row.sum += next.sum * exp(next.all - row.all);
        } else {
            row.sum = (row.sum > 0 ? row.sum * exp(row.all - next.all) : 0.0) + next.sum;
            row.all = next.all;
        }
    }
    const double all = warp_max(row.all);
    row.sum = kr_warp_sum(row.sum > 0 ? row.sum * exp(row.all - all) : 0.0);
    row.all = all;
    row.n_sampled = __shfl_sync(0xffffffffu, row.n_sampled, 0);
    first_max(&row.most, &row.index);
    return row;
}

static __device__ __forceinline__ bool can_choose(const summary &row)
{
    return row.all < (double)INFINITY && row.most < (double)INFINITY && row.most > -(double)INFINITY;
}

/* Counts the sampled token; no other thread accesses the row's counts any more. */
static __device__ __forceinline__ void count_token(const kr_sample_args &a, int64_t number, int64_t id)
{
    uint32_t *count = a.counts + number * a.vocab + id;
    if ((*count & KR_SAMPLE_COUNT_MOST) < KR_SAMPLE_COUNT_MOST) ++*count;
}

/* x: the model's own logit of id. By one thread. */
template <typename T>
static __device__ void store_result(const kr_sample_args &a, int64_t number, const summary &row, int64_t id, double x)
{
    if (id >= 0 && (a.rules[number].flags & KR_SAMPLE_PENALTIES)) count_token(a, number, id);
    const int64_t index = number + row.n_sampled % 2 * a.n_sampled_stride;
    a.id[index] = (int32_t)id;
    ((T *)a.logprob)[index] = id < 0 ? (T)0 : (T)(x - (row.all + log(row.sum)));
    a.next[number] = id < 0 ? 0 : (int32_t)id;
    a.n_sampled[number] = row.n_sampled + 1;
}

/* Is this the last of `count` CTAs to arrive? Writes that the others made before arriving are then visible, and the ticket
 * is reset to 0. */
static __device__ __forceinline__ bool is_last_cta(uint64_t *ticket, uint64_t count)
{
    uint64_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], 1;" : "=l"(before) : "l"(ticket) : "memory"); /* integers */
    if (before + 1 < count) return false;
    *ticket = 0;
    return true;
}

/* tickets: NULL if rows get a second kernel. On an H200 all parts of 64 rows of 50288 floats are resident at once. */
template <typename T>
static __global__ void __launch_bounds__(PART_THREADS, sizeof(T) == 4 ? 5 : 3)
    parts_kernel(const __grid_constant__ kr_sample_args a, const __grid_constant__ kr_divisor parts, uint64_t *tickets)
{
    enum { SIZE = part_shape<T>::SIZE };
    __shared__ part_shared<T> s;
    const int64_t row = kr_quotient(blockIdx.x, parts), part = blockIdx.x - row * parts.d, begin = part * SIZE;
    summary *of_row = (summary *)a.exec.scratch + row * parts.d;
    const bool is_on = a.rules[row].flags & KR_SAMPLE_ON; /* not written by the preceding kernel */
    kr_pdl_wait_alone();
    if (!tickets) kr_pdl_launch_dependents();
    if (!is_on) return;
    int64_t n_sampled = 0;
    if (part == 0 && threadIdx.x == 0) n_sampled = a.n_sampled[row];
    T v[part_shape<T>::HELD];
    load_held((const T *)a.x.data + row * a.x.row + begin, (int)kr_least(a.nw - begin, SIZE), v);
    summary own = summary_of(v, (int)kr_most(0, kr_least(a.vocab - begin, SIZE)), &s);
    if (threadIdx.x >= 32) return;
    own.index += begin;
    own.n_sampled = n_sampled;
    bool is_last = false;
    if (threadIdx.x == 0) {
        of_row[part] = own;
        is_last = tickets && is_last_cta(tickets + row, parts.d);
    }
    if (!__shfl_sync(0xffffffffu, is_last, 0)) return;
    __syncwarp(); /* makes what the first lane may read visible to the others */
    const summary all = merge_parts(of_row, (int)parts.d);
    if (threadIdx.x == 0) store_result<T>(a, row, all, can_choose(all) ? all.index : -1, all.most);
}

/* ---- changed logits ---- */

/* Logit x of token i after the row's biases, penalties and mask. */
template <typename T>
static __device__ __forceinline__ T changed(const kr_sample_args &a, const kr_sample_rules &rules, int64_t row,
                                            int64_t i, T x)
{
    double y = (double)x;
    if (rules.flags & KR_SAMPLE_BIASES) y += a.biases[row * a.vocab + i];
    if (rules.flags & KR_SAMPLE_PENALTIES) {
        const uint32_t count = a.counts[row * a.vocab + i], generated = count & KR_SAMPLE_COUNT_MOST;
        if (count) y = y > 0 ? y / rules.repetition : y * rules.repetition;
        if (generated) y -= rules.presence + rules.frequency * (double)generated;
    }
    if ((rules.flags & KR_SAMPLE_MASK) && !(a.mask[row * ((a.vocab + 31) / 32) + i / 32] >> (i % 32) & 1))
        y = -(double)INFINITY;
    return (T)y;
}

/* A part of a row with changes: its changed logits to y_bv [b vocab], their maximum (+infinity for a NaN) and its first index to
 * the part's summary. */
template <typename T>
static __global__ void __launch_bounds__(PART_THREADS)
    change_kernel(const __grid_constant__ kr_sample_args a, const __grid_constant__ kr_divisor parts, T *y_bv)
{
    enum { SIZE = part_shape<T>::SIZE };
    __shared__ double largest[PART_WARPS];
    __shared__ int64_t indices[PART_WARPS];
    const int64_t row = kr_quotient(blockIdx.x, parts), part = blockIdx.x - row * parts.d, begin = part * SIZE,
                  end = kr_least(a.vocab, begin + SIZE);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const kr_sample_rules rules = a.rules[row];
    kr_pdl_wait();
    if (!(rules.flags & KR_SAMPLE_ON) || !(rules.flags & KR_SAMPLE_CHANGES)) return;
    const T *x = (const T *)a.x.data + row * a.x.row;
    double most = -(double)INFINITY;
    int64_t index = INT64_MAX;
    for (int64_t i = begin + threadIdx.x; i < end; i += PART_THREADS) {
        const T y = changed(a, rules, row, i, x[i]);
        y_bv[row * a.vocab + i] = y;
        const double v = y < (T)INFINITY ? (double)y : (double)INFINITY;
        if (v > most) most = v, index = i; /* the first of equals: i ascends */
    }
    first_max(&most, &index);
    if (lane == 0) largest[warp] = most, indices[warp] = index;
    __syncthreads();
    if (warp > 0) return;
    most = lane < PART_WARPS ? largest[lane] : -(double)INFINITY;
    index = lane < PART_WARPS ? indices[lane] : INT64_MAX;
    first_max(&most, &index);
    summary *of_part = (summary *)a.exec.scratch + row * parts.d + part;
    if (lane == 0) of_part->most = most, of_part->index = index;
}

/* ---- a row ---- */

template <typename T> static __device__ __forceinline__ T weight(const row_job<T> &j, T x)
{
    return kr_exp((x - j.max) * j.per);
}

template <typename T> static __device__ __forceinline__ bool is_kept(const row_job<T> &j, T x, int i)
{
    const typename key_of<T>::type k = key(x);
    return k > j.last || (k == j.last && i <= j.last_id);
}

/* f(x[i], i) for i = from, from + step, .. below to, in order, with AHEAD loads in flight. */
template <typename T, typename F>
static __device__ __forceinline__ void for_each(const T *x, int from, int to, int step, F f)
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

/* ---- index of a cumulative mass ---- */

/* Mass of token i: 1 if its key is `last` (TIES), or its weight if it is kept. */
template <bool TIES, typename T> static __device__ __forceinline__ double mass_of(const row_job<T> &j, T x, int i)
{
    if (TIES) return key(x) == j.last ? 1.0 : 0.0;
    if (!is_kept(j, x, i)) return 0.0;
    const T w = weight(j, x);
    return w >= j.least ? (double)w : 0.0;
}

/* Exclusive prefix sum over the threads, in order; *all: the total. */
static __device__ double sum_before(double own, row_shared *s, double *all)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double upto = own;
    for (int offset = 1; offset < 32; offset *= 2) {
        const double other = __shfl_up_sync(0xffffffffu, upto, offset);
        if (lane >= offset) upto += other;
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

/* In the order of ids, the first token at which the cumulative mass exceeds `target` (times the total, with of_sum); where
 * rounding leaves none, the last one with a mass. First its stretch is found, then its index in that. */
template <bool TIES, typename T>
static __device__ int index_of_mass(const row_job<T> &j, double target, bool of_sum, row_shared *s)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double own = 0, all;
    int last = -1;
    for_each(j.x, j.from + lane, j.to, 32, [&](T x, int i) {
        const double v = mass_of<TIES>(j, x, i);
        own += v;
        if (v > 0) last = i;
    });
    own = kr_warp_sum(own);
    last = __reduce_max_sync(0xffffffffu, last);
    __syncthreads();
    if (lane == 0) s->sums[warp] = own, s->indices[warp] = last;
    if (threadIdx.x == 0) s->found = INT32_MAX;
    __syncthreads();
    double sum = 0;
#pragma unroll 4
    for (int w = 0; w < WARPS; w++) {
        sum += s->sums[w];
        last = max(last, s->indices[w]);
    }
    double left = of_sum ? target * sum : target;
    int which = 0;
#pragma unroll 4
    for (; which < WARPS - 1 && left >= s->sums[which]; which++) left -= s->sums[which];
    const int from = min(which * j.stretch, j.vocab), to = min(from + j.stretch, j.vocab);
    const int each_has = (to - from + THREADS - 1) / THREADS, first = from + (int)threadIdx.x * each_has;
    const int end = min(first + each_has, to);
    own = 0;
    for (int i = first; i < end; i++) own += mass_of<TIES>(j, j.x[i], i);
    double upto = sum_before(own, s, &all);
    int found = INT32_MAX;
    for (int i = first; i < end; i++) {
        const double v = mass_of<TIES>(j, j.x[i], i);
        upto += v;
        if (v > 0 && left < upto && found == INT32_MAX) found = i;
    }
    if (found < INT32_MAX) atomicMin(&s->found, found); /* integers */
    __syncthreads();
    return s->found < INT32_MAX ? s->found : last;
}

/* ---- thresholds: radix selection ---- */

/* One digit of the threshold key, among the kept tokens whose higher digits are `prefix`: the largest digit at which their
 * count, or weight, reaches the target, which is reduced to what that digit itself must provide. */
template <bool BY_WEIGHT, typename T>
static __device__ int next_digit(const row_job<T> &j, typename key_of<T>::type prefix, int shift, row_shared *s)
{
    typedef typename key_of<T>::type bits;
    __syncthreads();
    if (threadIdx.x < DIGITS) s->counts[threadIdx.x] = 0, s->weights[threadIdx.x] = 0;
    __syncthreads();
    for_each(j.x, threadIdx.x, j.vocab, THREADS, [&](T x, int i) {
        const bits k = key(x);
        const bool fits = shift + 8 == 8 * (int)sizeof(bits) || (k ^ prefix) >> (shift + 8) == 0;
        if (!fits || !is_kept(j, x, i)) return;
        const int digit = (int)(k >> shift & (DIGITS - 1));
        if (BY_WEIGHT) atomicAdd(&s->weights[digit], (fixed)((double)weight(j, x) * j.units));
        else atomicAdd(&s->counts[digit], 1u);
    });
    __syncthreads();
    if (threadIdx.x == 0) {
        fixed left = s->target;
        int digit = DIGITS - 1;
        for (; digit > 0; digit--) {
            const fixed has = BY_WEIGHT ? s->weights[digit] : s->counts[digit];
            if (has >= left) break;
            left -= has;
        }
        s->target = left;
        s->digit = digit;
    }
    __syncthreads();
    return s->digit;
}

/* Keeps the fewest largest tokens whose count, or weight, is at least `target`. */
template <bool BY_WEIGHT, typename T> static __device__ void keep_top(row_job<T> &j, fixed target, row_shared *s)
{
    typedef typename key_of<T>::type bits;
    bits prefix = 0;
    __syncthreads();
    if (threadIdx.x == 0) s->target = target;
    for (int shift = 8 * (int)sizeof(bits) - 8; shift >= 0; shift -= 8)
        prefix |= (bits)next_digit<BY_WEIGHT>(j, prefix, shift, s) << shift;
    fixed ties = s->target; /* number of tokens with the last key, or their weight */
    if (BY_WEIGHT) {
        T x;
        value_of(prefix, &x);
        const fixed one = (fixed)((double)weight(j, x) * j.units);
        ties = one ? (ties + one - 1) / one : 1;
    }
    j.last = prefix;
    j.last_id = index_of_mass<true>(j, (double)ties - 1, false, s);
}

/* ---- sampling ---- */

template <typename T> static __device__ fixed total_weight(const row_job<T> &j, row_shared *s)
{
    __syncthreads();
    if (threadIdx.x == 0) s->weights[0] = 0;
    __syncthreads();
    fixed own = 0;
    for_each(j.x, threadIdx.x, j.vocab, THREADS, [&](T x, int i) {
        if (is_kept(j, x, i)) own += (fixed)((double)weight(j, x) * j.units);
    });
    atomicAdd(&s->weights[0], own); /* integers */
    __syncthreads();
    return s->weights[0];
}

template <typename T> static __device__ int choose(row_job<T> &j, row_shared *s)
{
    const kr_sample_rules &rules = s->rules;
    if (rules.top_k > 0 && rules.top_k < j.vocab) keep_top<false>(j, (fixed)rules.top_k, s);
    if (rules.top_p < 1) {
        const fixed target = (fixed)ceil(rules.top_p * (double)total_weight(j, s));
        keep_top<true>(j, target ? target : 1, s);
    }
    j.least = (T)rules.min_p;
    const kr_philox_block block = kr_philox_at(rules.seed, rules.stream, (uint64_t)s->row.n_sampled);
    const double u = (double)((((uint64_t)block.word[1] << 32) | block.word[0]) >> 11) * 0x1p-53;
    return index_of_mass<false>(j, u, true, s);
}

/* Reads the rules before waiting for the preceding kernel, which does not write them. y_bv [b vocab]: changed logits. */
template <typename T>
static __global__ void __launch_bounds__(THREADS, 1)
    rows_kernel(const __grid_constant__ kr_sample_args a, int parts, double units, const T *y_bv)
{
    __shared__ row_shared s;
    const int64_t row = blockIdx.x;
    const bool is_on = a.rules[row].flags & KR_SAMPLE_ON;
    if (threadIdx.x == 0) s.rules = a.rules[row];
    kr_pdl_wait_alone();
    if (!is_on) return;
    if (threadIdx.x < 32) {
        const summary all = merge_parts((const summary *)a.exec.scratch + row * parts, parts);
        if (threadIdx.x == 0) s.row = all;
    }
    __syncthreads();
    int id = can_choose(s.row) ? (int)s.row.index : -1;
    const T *x = (const T *)a.x.data + row * a.x.row;
    if (id >= 0 && s.rules.temperature > 0) {
        row_job<T> j;
        j.x = s.rules.flags & KR_SAMPLE_CHANGES ? y_bv + row * a.vocab : x;
        j.vocab = (int)a.vocab;
        j.stretch = (int)kr_ceil_div(a.vocab, 32 * WARPS) * 32;
        j.from = min((int)threadIdx.x / 32 * j.stretch, j.vocab);
        j.to = min(j.from + j.stretch, j.vocab);
        j.max = (T)s.row.most;
        j.per = (T)(1 / s.rules.temperature);
        j.units = units;
        j.last = 0;
        j.last_id = INT32_MAX;
        j.least = 0;
        id = choose(j, &s);
    }
    if (threadIdx.x == 0) store_result<T>(a, row, s.row, id, id >= 0 ? (double)x[id] : 0.0);
}

/* ---- entry points ---- */

template <typename T> static int64_t parts_of(const kr_sample_args *a)
{
    return kr_most(1, kr_ceil_div(a->nw, part_shape<T>::SIZE));
}

/* Bytes of the summaries, before the changed logits. */
template <typename T> static size_t summary_bytes(const kr_sample_args *a)
{
    return kr_padded_bytes((size_t)(a->nb * parts_of<T>(a)) * sizeof(summary));
}

static bool has_tables(const kr_sample_args *a)
{
    return a->biases || a->counts || a->mask;
}

template <typename T> static size_t sample_scratch(const kr_sample_args *a)
{
    return summary_bytes<T>(a) + (has_tables(a) ? (size_t)(a->nb * a->vocab) * sizeof(T) : 0);
}

template <typename T> static void sample_run(const kr_sample_args *a)
{
    const int64_t parts = parts_of<T>(a);
    const bool at_once = a->is_greedy && !has_tables(a) && a->nb <= KR_CUDA_TICKETS;
    uint64_t *tickets = at_once ? kr_cuda_tickets((const kr_cuda *)a->exec.own) : NULL;
    const dim3 grid((unsigned)(a->nb * parts));
    if (a->nb == 0) return;
    kr_pdl_launch(&a->exec, parts_kernel<T>, grid, PART_THREADS, 0, *a, kr_divisor_of(parts), tickets);
    if (at_once) return;
    T *y_bv = has_tables(a) ? (T *)((char *)a->exec.scratch + summary_bytes<T>(a)) : NULL;
    if (y_bv) kr_pdl_launch(&a->exec, change_kernel<T>, grid, PART_THREADS, 0, *a, kr_divisor_of(parts), y_bv);
    int log2 = 0;
    while ((int64_t)1 << log2 < a->vocab) log2++;
    kr_pdl_launch(&a->exec, rows_kernel<T>, dim3((unsigned)a->nb), THREADS, 0, *a, (int)parts, ldexp(1.0, 62 - log2),
                  (const T *)y_bv);
}

KR_CUDA_ENTRY_SCRATCH(sample, kr_sample_args)
