/* scan_bwd_cuda.cu - gradients of the selective scan of Mamba-1; all architectures, f32 and f64.
 *
 *   A_t = exp(dt_t a);  H_t = A_t H_{t-1} + dt_t B_t x_t;  p_t = <C_t, H_t> + D x_t;  y_t = p_t, or p_t silu(z_t)
 *   g_p = g_y silu(z);  g_z = g_y p_t silu'(z);  G += C_t g_p
 *   g_C_t += g_p H_t;  g_B_t += G dt_t x_t;  g_D += g_p x_t
 *   g_x_t = dt_t <G, B_t> + D g_p;  g_dt_t = x_t <G, B_t> + <A_t G, a H_{t-1}>;  g_a += dt_t A_t G H_{t-1};  G = A_t G
 *   x, dt, z, g_y [b s i]   a [i r]   b, c [b s g r]   d [i]   H, G [q i r]
 *
 * Two passes over every segment: forward, storing the states before every tile of tokens; backward. If sequences have
 * segments, a pass for their end states comes first (scan_walk.cuh); many states are processed in slabs. Sums over channels
 * and segments are partial sums in scratch, which are added in order at the end. Scratch, in units of x: nr / 16 for the
 * states (f32), at most 4 for the partial sums of g_B and g_C.
 */
#include "kernels/cuda/prim/column_sum.cuh"
#include "kernels/cuda/scan/scan_chain.cuh"
#include "kernels/cuda/scan/scan_walk.cuh"

/* ---- arguments, shared memory, copies ---- */

template <typename T> struct scan_bwd_args {
    scan_plan plan;
    scan_rows<T> x, dt, z, g_y, b, c;
    const T *a, *d;
    const T *tile_states; /* states before tiles [tiles i STATES] */
    const T *ends;        /* G at the ends of segments [units i r], or g_final if there is one segment; NULL: 0 */
    T *g_x, *g_dt, *g_z, *g_initial; /* NULL: not wanted */
    T *g_bc;                         /* partial sums of g_B, g_C [slots tokens g 2 STATES], or NULL */
    T *g_a, *g_d;                    /* partial sums [units i r], [units i], or NULL */
};

template <typename T, int L> struct scan_bwd_shape : scan_shape<T, L> {
    typedef scan_shape<T, L> S;
    enum {
        CHANNELS_PER_WARP = 32 / L, /* per warp */
        SWAPS = CHANNELS_PER_WARP == 1   ? 1
                : CHANNELS_PER_WARP == 2 ? 2
                                         : 4,
        TOKENS_PER_SYNC =
            L <= 4 ? (int)S::TOKENS : 4, /* tokens whose g_B and g_C are exchanged between warps at a time */
        STAGES = 2
    };
    struct stage {
        alignas(16) T x[S::TOKENS][S::ROW], dt[S::TOKENS][S::ROW];
        T z[S::TOKENS][S::ROW], g_y[S::TOKENS][S::ROW]; /* overwritten with g_y silu'(z) and g_p */
        T b[S::TOKENS][S::STATES], c[S::TOKENS][S::STATES];
    };
    struct memory {
        stage stages[STAGES];
        alignas(16) T b[S::TOKENS][SWAPS][S::STATES], c[S::TOKENS][SWAPS][S::STATES];
        alignas(16) T sums[S::WARPS][TOKENS_PER_SYNC][2][S::STATES];
    };
};

/* A thread's copies of a segment, the last tile first. */
template <typename T, int L, bool WIDE> struct bwd_feeds {
    typedef scan_shape<T, L> S;
    typedef typename scan_bwd_shape<T, L>::stage stage;
    scan_feed<T, L, S::CHANNELS, S::ROW, WIDE> x, dt, z, g_y;
    scan_feed<T, L, S::STATES, S::STATES, WIDE> b, c;

    KR_MEMBER void start(const scan_bwd_args<T> &w, const scan_task &k, int64_t first)
    {
        const int64_t bc = k.group * w.plan.nr + w.plan.r0, token = k.token + first;
        x.start(w.x, token, k.first, k.channels);
        dt.start(w.dt, token, k.first, k.channels);
        if (w.z.data) z.start(w.z, token, k.first, k.channels);
        g_y.start(w.g_y, token, k.first, k.channels);
        b.start(w.b, token, bc, (int)w.plan.states);
        c.start(w.c, token, bc, (int)w.plan.states);
    }

    /* The tile from token `first` of the segment on (below 0: none), to address `to`. */
    KR_MEMBER void fetch(const scan_bwd_args<T> &w, const scan_task &k, int64_t first, uint32_t to)
    {
        const int64_t left = k.count - first, token = k.token + first;
        const int rows = left < S::TOKENS ? (int)left : S::TOKENS;
        if (first >= 0) {
            x.fetch(w.x, token, rows, to + (uint32_t)offsetof(stage, x), -1);
            dt.fetch(w.dt, token, rows, to + (uint32_t)offsetof(stage, dt), -1);
            if (w.z.data) z.fetch(w.z, token, rows, to + (uint32_t)offsetof(stage, z), -1);
            g_y.fetch(w.g_y, token, rows, to + (uint32_t)offsetof(stage, g_y), -1);
            b.fetch(w.b, token, rows, to + (uint32_t)offsetof(stage, b), -1);
            c.fetch(w.c, token, rows, to + (uint32_t)offsetof(stage, c), -1);
        }
        copies_commit();
    }
};

/* The swap of a channel by its index in the warp. Adjacent channels have adjacent copies of B and C, so that the eight
 * lanes of an access have no bank conflicts. */
template <typename T, int L> KR_DEVICE int bwd_swap(int channel_in_warp)
{
    enum { SWAPS = scan_bwd_shape<T, L>::SWAPS };
    return SWAPS == 1 ? 0 : (channel_in_warp & 1) * 2 + (SWAPS == 4 ? channel_in_warp >> 1 & 1 : 0);
}

/* Four states of B or C in the order of a swap. */
template <typename T> KR_DEVICE kr_vector<T, 4> swapped(const kr_vector<T, 4> &v, int swap)
{
    kr_vector<T, 4> to;
#pragma unroll
    for (int r = 0; r < 4; r++) to.v[r] = v.v[r ^ swap];
    return to;
}

/* Applies the gate to a tile, and stores B and C for every swap, four elements at a time. */
template <typename T, int L>
KR_DEVICE void bwd_prepare(const scan_bwd_args<T> &w, typename scan_bwd_shape<T, L>::stage *s,
                           typename scan_bwd_shape<T, L>::memory *m)
{
    typedef scan_bwd_shape<T, L> S;
    enum { SWAPS = S::SWAPS, BY_TOKEN = S::CHANNELS / 4, VEC4S = S::TOKENS * S::STATES / 4 };
#pragma unroll 1
    for (int i = threadIdx.x; w.z.data && i < S::TOKENS * BY_TOKEN; i += S::THREADS) {
        T *at_z = &s->z[i / BY_TOKEN][i % BY_TOKEN * 4], *at_g = &s->g_y[i / BY_TOKEN][i % BY_TOKEN * 4];
        kr_vector<T, 4> z = kr_load_vector<T, 4>(at_z), g = kr_load_vector<T, 4>(at_g);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const T sigmoid = scan_sigmoid(z.v[e]), silu = z.v[e] * sigmoid;
            z.v[e] = g.v[e] * (sigmoid * kr_fma(z.v[e], (T)1 - sigmoid, (T)1));
            g.v[e] *= silu;
        }
        kr_store_vector<T, 4>(at_z, z);
        kr_store_vector<T, 4>(at_g, g);
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < 2 * VEC4S; i += S::THREADS) {
        const int vec4 = i % VEC4S, t = vec4 / (S::STATES / 4), r = vec4 % (S::STATES / 4) * 4;
        const bool is_b = i < VEC4S;
        const kr_vector<T, 4> v = kr_load_vector<T, 4>(is_b ? &s->b[t][r] : &s->c[t][r]);
        T *to = is_b ? &m->b[t][0][r] : &m->c[t][0][r];
#pragma unroll
        for (int n = 0; n < SWAPS; n++) kr_store_vector<T, 4>(to + n * S::STATES, swapped(v, bwd_swap<T, L>(n)));
    }
}

/* A thread's part of a segment. */
template <typename T> struct bwd_lane {
    T a[4], g[4], g_a[4]; /* rates, scaled for scan_exp; G; sums of g_a */
    T skip, g_d;
    int64_t at; /* offset of the lane's first token of the tile in g_x */
    int channel, lane, channel_in_warp,
        swap; /* the channel in the CTA, the lane in it, the channel's index in the warp */
};

/* g_B and g_C of a token, summed over the warp's channels, to shared memory. */
template <typename T, int L> KR_DEVICE void bwd_sum_channels(const bwd_lane<T> &k, T *g_b, T *g_c, T (*to)[4 * L])
{
    typedef scan_bwd_shape<T, L> S;
    const int at = 4 * k.lane;
    if (S::CHANNELS_PER_WARP >= 2) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            g_b[r] += __shfl_xor_sync(~0u, g_b[r + 2], L);
            g_c[r] += __shfl_xor_sync(~0u, g_c[r + 2], L);
        }
    }
    if (S::CHANNELS_PER_WARP >= 4) {
        g_b[0] += __shfl_xor_sync(~0u, g_b[1], 2 * L);
        g_c[0] += __shfl_xor_sync(~0u, g_c[1], 2 * L);
    }
    if (S::CHANNELS_PER_WARP >= 8) {
        const bool upper = k.channel_in_warp & 4;
        T sum = upper ? g_c[0] : g_b[0];
        sum += __shfl_xor_sync(~0u, upper ? g_b[0] : g_c[0], 4 * L);
#pragma unroll
        for (int step = 8; step < S::CHANNELS_PER_WARP; step *= 2) sum += __shfl_xor_sync(~0u, sum, step * L);
        if (k.channel_in_warp < 8) to[upper][at + k.swap] = sum;
    } else {
#pragma unroll
        for (int r = 0; r < (S::CHANNELS_PER_WARP == 1 ? 4 : 2); r++) {
            to[0][at + (r ^ k.swap)] = g_b[r];
            to[1][at + (r ^ k.swap)] = g_c[r];
        }
    }
}

/* Sums of `count` tokens from `token` on over a CTA's warps, to the CTA's slot. */
template <typename T, int L>
KR_DEVICE void bwd_store_bc(const scan_bwd_args<T> &w, const scan_task &k, int64_t token, int64_t count,
                            const typename scan_bwd_shape<T, L>::memory *m)
{
    typedef scan_bwd_shape<T, L> S;
    enum { VEC4S = 2 * S::STATES / 4 }; /* per token */
    const int64_t tokens = w.plan.nb * w.plan.ns;
#pragma unroll 1
    for (int i = threadIdx.x; i < S::TOKENS_PER_SYNC * VEC4S; i += S::THREADS) {
        const int t = i / VEC4S, r = i % VEC4S * 4;
        if (t >= count) break;
        kr_vector<T, 4> sum = kr_load_vector<T, 4>(&m->sums[0][t][0][0] + r);
#pragma unroll
        for (int n = 1; n < S::WARPS; n++) {
            const kr_vector<T, 4> more = kr_load_vector<T, 4>(&m->sums[n][t][0][0] + r);
#pragma unroll
            for (int e = 0; e < 4; e++) sum.v[e] += more.v[e];
        }
        T *to = w.g_bc + ((k.slot * tokens + token + t) * w.plan.ng + k.group) * 2 * S::STATES + r;
        if (w.plan.round > 0) {
            const kr_vector<T, 4> before = kr_load_vector<T, 4>(to);
#pragma unroll
            for (int e = 0; e < 4; e++) sum.v[e] += before.v[e];
        }
        kr_store_vector<T, 4>(to, sum);
    }
}

/* ---- backward pass over a segment, from its last token to its first ----
 *
 * A tile of tokens is processed twice: forward from the stored state before it, with all H in registers, then backward. A_t
 * is recomputed on the way back: that costs less than the registers would. Sums over a warp's channels (g_B, g_C) are
 * exchanged like those over lanes: slot k of a lane holds state k ^ swap, where swap is the two lowest bits of its
 * channel's index in the warp, so that a lane keeps its slots 0, 1 (then 0) and sends the others, whichever states they
 * are. B and C are in shared memory once per swap. Sums of warps are added in shared memory; sums of CTAs go to global
 * memory, one slot per CTA (or for several, round after round), to be added in order.
 */

/* Stores the results of four tokens from t0 of the tile on, once the sums over states are known; left: tokens of the tile.
 */
template <typename T, int L>
KR_DEVICE void bwd_store(const scan_bwd_args<T> &w, const typename scan_bwd_shape<T, L>::stage &s, int left, int t0,
                         bwd_lane<T> *own, T *along_b, T *g_step, T *p)
{
    enum { M = L < 4 ? L : 4 };
    lanes_sum<L, 4>(along_b);
    lanes_sum<L, 4>(g_step);
    lanes_sum<L, 4>(p);
    if (own->lane >= M) return;
    const int c = own->channel;
#pragma unroll
    for (int j = 0; j < 4; j += M) {
        const int t = t0 + j + own->lane;
        const T x = s.x[t][c], dt = s.dt[t][c], g_p = s.g_y[t][c];
        const int64_t at = own->at + (t0 + j) * w.plan.ni;
        T g_x = kr_fma(dt, along_b[j], own->skip * g_p), g_dt = kr_fma(x, along_b[j], g_step[j]);
        T g_z = s.z[t][c] * kr_fma(own->skip, x, p[j]);
        own->g_d = kr_fma(g_p, x, own->g_d);
        if (t >= left) continue;
        if (w.plan.r0 > 0) {
            if (w.g_x) g_x += w.g_x[at];
            if (w.g_dt) g_dt += w.g_dt[at];
            if (w.g_z) g_z += w.g_z[at];
        }
        if (w.g_x) w.g_x[at] = g_x;
        if (w.g_dt) w.g_dt[at] = g_dt;
        if (w.g_z) w.g_z[at] = g_z;
    }
}

/* One tile, from token `first` of the segment on; h: the states before it. */
template <typename T, int L>
KR_DEVICE void bwd_tile(const scan_bwd_args<T> &w, const scan_task &k, const typename scan_bwd_shape<T, L>::stage &s,
                        typename scan_bwd_shape<T, L>::memory *m, int64_t first, bwd_lane<T> *own, const T *h)
{
    typedef scan_bwd_shape<T, L> S;
    enum { TOKENS = S::TOKENS, TOKENS_PER_SYNC = S::TOKENS_PER_SYNC };
    const int copy = own->channel_in_warp % S::SWAPS, warp = threadIdx.x / 32;
    const int left = own->channel < k.channels ? (int)(k.count - first < TOKENS ? k.count - first : TOKENS) : 0;
    T states[TOKENS][4];
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        const T dt = s.dt[t][own->channel], dtx = dt * s.x[t][own->channel];
        const kr_vector<T, 4> b = kr_load_vector<T, 4>(&m->b[t][copy][4 * own->lane]);
#pragma unroll
        for (int r = 0; r < 4; r++)
            states[t][r] = kr_fma(scan_exp(dt * own->a[r]), t > 0 ? states[t > 0 ? t - 1 : 0][r] : h[r], dtx * b.v[r]);
    }
    T along_b[4], g_step[4], p[4];
#pragma unroll
    for (int t = TOKENS - 1; t >= 0; t--) {
        const T dt = s.dt[t][own->channel], dtx = dt * s.x[t][own->channel], g_p = s.g_y[t][own->channel];
        const kr_vector<T, 4> b = kr_load_vector<T, 4>(&m->b[t][copy][4 * own->lane]);
        const kr_vector<T, 4> c = kr_load_vector<T, 4>(&m->c[t][copy][4 * own->lane]);
        T g_b[4], g_c[4], of_b = 0, of_step = 0, of_p = 0;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const T g = kr_fma(c.v[r], g_p, own->g[r]);
            g_c[r] = g_p * states[t][r];
            g_b[r] = g * dtx;
            of_p = kr_fma(c.v[r], states[t][r], of_p);
            of_b = kr_fma(g, b.v[r], of_b);
            own->g[r] = g * scan_exp(dt * own->a[r]);
            const T back = own->g[r] * (t > 0 ? states[t > 0 ? t - 1 : 0][r] : h[r]);
            of_step = kr_fma(back, own->a[r], of_step);
            own->g_a[r] = kr_fma(back, dt, own->g_a[r]);
        }
        along_b[t % 4] = of_b, g_step[t % 4] = of_step * ((T)1 / scan_scale<T>()), p[t % 4] = of_p;
        bwd_sum_channels<T, L>(*own, g_b, g_c, m->sums[warp][t % TOKENS_PER_SYNC]);
        if (t % 4 == 0) bwd_store<T, L>(w, s, left, t, own, along_b, g_step, p);
        if (w.g_bc && t % TOKENS_PER_SYNC == 0) {
            __syncthreads();
            bwd_store_bc<T, L>(w, k, k.token + first + t, k.count - first - t, m);
            if (t > 0) __syncthreads(); /* after the last ones, the next tile's barrier suffices */
        }
    }
}

/* Four states from r on, in the slots of a swap. */
template <typename T>
KR_DEVICE void bwd_load(const T *from, int64_t i, int64_t nr, int64_t r, int64_t end, int swap, T *h)
{
#pragma unroll
    for (int k = 0; k < 4; k++) h[k] = from && r + (k ^ swap) < end ? from[i * nr + r + (k ^ swap)] : (T)0;
}

/* Four adjacent states, in the slots of a swap. */
template <typename T> KR_DEVICE void bwd_load_vec4(const T *from, int swap, T *h)
{
    const kr_vector<T, 4> v = kr_load_vector<T, 4>(from);
#pragma unroll
    for (int k = 0; k < 4; k++) h[k] = swap & 1 ? v.v[k ^ 1] : v.v[k];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const T low = h[k], high = h[k + 2];
        h[k] = swap & 2 ? high : low;
        h[k + 2] = swap & 2 ? low : high;
    }
}

template <typename T>
KR_DEVICE void bwd_store_states(T *to, int64_t i, int64_t nr, int64_t r, int64_t end, int swap, const T *h)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (r + (k ^ swap) < end) to[i * nr + r + (k ^ swap)] = h[k];
}

template <typename T, int L, bool WIDE>
static __global__ void __launch_bounds__(scan_shape<T, L>::THREADS, sizeof(T) == 4 ? 3 : 1)
    scan_bwd_kernel(const scan_bwd_args<T> w)
{
    typedef scan_bwd_shape<T, L> S;
    enum { TOKENS = S::TOKENS, STATES = S::STATES };
    extern __shared__ __align__(16) char shared[];
    typename S::memory *m = (typename S::memory *)shared;
    const scan_task k = scan_task_of<S::CHANNELS>(w.plan);
    if (k.channels <= 0) return;
    bwd_lane<T> own = {};
    own.channel = threadIdx.x / L, own.lane = threadIdx.x % L;
    own.channel_in_warp = threadIdx.x % 32 / L;
    own.swap = bwd_swap<T, L>(own.channel_in_warp);
    const bool in_range = own.channel < k.channels;
    const int64_t i = k.first + (in_range ? own.channel : 0), nr = w.plan.nr;
    const int64_t r = w.plan.r0 + 4 * own.lane, end = in_range ? w.plan.r0 + w.plan.states : 0;
    bwd_load(w.a, i, nr, r, end, own.swap, own.a);
#pragma unroll
    for (int n = 0; n < 4; n++) own.a[n] *= scan_scale<T>();
    const bool exists = k.segment < k.segments;
    if (exists)
        bwd_load(w.ends ? w.ends + (w.plan.segments > 1 ? k.unit : k.q) * w.plan.ni * nr : NULL, i, nr, r, end,
                 own.swap, own.g);
    own.skip = w.d && w.plan.r0 == 0 ? w.d[i] : (T)0;
    const int64_t tiles = exists ? (k.count + TOKENS - 1) / TOKENS : 0;
    const T *tile_states =
        w.tile_states + ((scan_first_tile<TOKENS>(k) + tiles - 1) * w.plan.ni + i) * STATES + 4 * own.lane;
    const uint32_t address = kr_shared_address(&m->stages[0]), stage_stride = (uint32_t)sizeof(typename S::stage);
    bwd_feeds<T, L, WIDE> feeds;
    feeds.start(w, k, (tiles - 1) * TOKENS);
    feeds.fetch(w, k, (tiles - 1) * TOKENS, address);
    own.at = (k.token + (tiles - 1) * TOKENS + own.lane) * w.plan.ni + i;
    for (int64_t n = tiles - 1; n >= 0; n--, own.at -= TOKENS * w.plan.ni, tile_states -= w.plan.ni * STATES) {
        typename S::stage *now = &m->stages[(tiles - 1 - n) & 1];
        T h[4];
        bwd_load_vec4(tile_states, own.swap, h);
        copies_wait<0>();
        __syncthreads();
        feeds.fetch(w, k, (n - 1) * TOKENS, address + (uint32_t)((tiles - n) & 1) * stage_stride);
        bwd_prepare<T, L>(w, now, m);
        __syncthreads();
        bwd_tile<T, L>(w, k, *now, m, n * TOKENS, &own, h);
    }
    copies_wait<0>();
#pragma unroll
    for (int mask = 1; mask < L; mask *= 2) own.g_d += __shfl_xor_sync(~0u, own.g_d, mask);
    if (!in_range) return;
    if (w.g_initial && k.segment == 0)
        bwd_store_states(w.g_initial + k.q * w.plan.ni * nr, i, nr, r, end, own.swap, own.g);
    if (w.g_a) bwd_store_states(w.g_a + k.unit * w.plan.ni * nr, i, nr, r, end, own.swap, own.g_a);
    if (w.g_d && own.lane == 0 && w.plan.r0 == 0) w.g_d[k.unit * w.plan.ni + i] = own.g_d;
}

template <typename T, int L, bool WIDE> static void scan_bwd_launch(const scan_bwd_args<T> &w, cudaStream_t stream)
{
    const int bytes = (int)sizeof(typename scan_bwd_shape<T, L>::memory);
    static_assert(bytes <= KR_CUDA_LEAST_SHARED, "too much for sm_86");
    if (bytes > 48 * 1024)
        cudaFuncSetAttribute(scan_bwd_kernel<T, L, WIDE>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    const int64_t blocks = w.plan.nq * w.plan.segments * w.plan.ng * w.plan.slots;
    scan_bwd_kernel<T, L, WIDE><<<(unsigned)blocks, scan_shape<T, L>::THREADS, bytes, stream>>>(w);
}

template <typename T, int L> static void scan_bwd_as(const scan_bwd_args<T> &w, cudaStream_t stream)
{
    const bool wide =
        w.x.is_wide && w.dt.is_wide && w.g_y.is_wide && w.b.is_wide && w.c.is_wide && (!w.z.data || w.z.is_wide);
    if (wide && sizeof(T) == 4) scan_bwd_launch<T, L, sizeof(T) == 4>(w, stream);
    else scan_bwd_launch<T, L, false>(w, stream);
}

template <typename T> static void scan_bwd_run(const scan_bwd_args<T> &w, cudaStream_t stream)
{
    switch (scan_lanes(w.plan.nr)) {
    case 1: scan_bwd_as<T, 1>(w, stream); break;
    case 4: scan_bwd_as<T, 4>(w, stream); break;
    case 16: scan_bwd_as<T, 16>(w, stream); break;
    default: scan_bwd_as<T, 32>(w, stream); break;
    }
}

/* g_b and g_c of a slab: [tokens g] rows of 2 STATES elements, summed over slots. */
template <typename T> struct bc_sum {
    const T *parts;
    int64_t slots, rows, states, valid, nr, r0; /* states: row length of a partial sum; valid: states of the slab */
    T *g_b, *g_c;                               /* NULL: not wanted */
};

template <typename T> static __global__ void __launch_bounds__(256) sum_bc(const bc_sum<T> k)
{
    const int64_t at = ((int64_t)blockIdx.x * 256 + threadIdx.x) * 4, all = k.rows * 2 * k.states;
    if (at >= all) return;
    const int64_t row = at / (2 * k.states), j = at - row * 2 * k.states, r = j < k.states ? j : j - k.states;
    T *to = j < k.states ? k.g_b : k.g_c;
    if (!to || r >= k.valid) return;
    kr_vector<T, 4> sum = kr_load_vector<T, 4>(k.parts + at);
#pragma unroll 8
    for (int64_t n = 1; n < k.slots; n++) {
        const kr_vector<T, 4> more = kr_load_vector<T, 4>(k.parts + n * all + at);
#pragma unroll
        for (int e = 0; e < 4; e++) sum.v[e] += more.v[e];
    }
#pragma unroll
    for (int e = 0; e < 4; e++)
        if (r + e < k.valid) to[row * k.nr + k.r0 + r + e] = sum.v[e];
}

template <typename T> struct memory {
    T *tile_states, *bc, *g_a, *g_d, *ends, *g, *steps;
};

static int64_t slots_of(const scan_plan &p)
{
    return kr_least(p.blocks, kr_most(16, 2 * p.ni / p.nr));
}

template <typename T> static memory<T> take_scratch(const kr_scan_bwd_args *a, const scan_plan &p, kr_cuda_scratch *m)
{
    const int64_t lanes = scan_lanes(p.nr), units = p.nq * p.segments, real = (int64_t)sizeof(T);
    const int64_t tokens = p.nb * p.ns, n_tiles = tokens / (sizeof(T) == 4 ? 16 : 8) + units + 1;
    memory<T> k = {};
    k.tile_states = (T *)kr_scratch_take(m, n_tiles * p.ni * 4 * lanes * real);
    if (a->g_b || a->g_c) k.bc = (T *)kr_scratch_take(m, slots_of(p) * tokens * p.ng * 8 * lanes * real);
    if (a->g_a) k.g_a = (T *)kr_scratch_take(m, units * p.ni * p.nr * real);
    if (a->g_d) k.g_d = (T *)kr_scratch_take(m, units * p.ni * real);
    if (p.segments == 1) return k;
    k.ends = (T *)kr_scratch_take(m, units * p.ni * p.nr * real);
    k.g = (T *)kr_scratch_take(m, units * p.ni * p.nr * real);
    k.steps = (T *)kr_scratch_take(m, units * p.ni * real);
    return k;
}

template <typename T> static size_t scratch(const kr_scan_bwd_args *a)
{
    kr_cuda_scratch m = { NULL, 0 };
    if (a->ni > 0) take_scratch<T>(a, scan_plan_of(a), &m);
    return m.used;
}

static void clear(void *g, int64_t bytes, cudaStream_t stream)
{
    if (g && bytes > 0) cudaMemsetAsync(g, 0, (size_t)bytes, stream);
}

/* Tokens outside all sequences get 0. */
template <typename T> static void clear_unused(const kr_scan_bwd_args *a, const scan_plan &p, const memory<T> &k)
{
    const cudaStream_t stream = (cudaStream_t)a->exec.stream;
    const int64_t values = a->nb * a->ns * a->ni * (int64_t)sizeof(T), lanes = scan_lanes(p.nr);
    clear(a->g_x, values, stream);
    clear(a->g_dt, values, stream);
    clear(a->g_z, values, stream);
    clear(k.bc, slots_of(p) * a->nb * a->ns * a->ng * 8 * lanes * (int64_t)sizeof(T), stream);
}

template <typename T> static void fill_rows(const kr_scan_bwd_args *a, scan_walk_args<T> *w, scan_bwd_args<T> *k)
{
    const int64_t step = a->ng == 1 ? 0 : w->plan.width, bc = a->ng == 1 ? 0 : a->nr;
    w->x = k->x = scan_rows_of<T>(a->x.data, a->x.row, step);
    w->dt = k->dt = scan_rows_of<T>(a->dt.data, a->dt.row, step);
    w->z = k->z = scan_rows_of<T>(a->z.data, a->z.row, step);
    w->g_y = k->g_y = scan_rows_of<T>(a->g_y, a->ni, step);
    w->b = k->b = scan_rows_of<T>(a->b.data, a->b.row, bc);
    w->c = k->c = scan_rows_of<T>(a->c.data, a->c.row, bc);
    w->a = k->a = (const T *)a->a;
    w->d = k->d = (const T *)a->d;
}

/* The backward pass of a slab, as many CTAs of channels at a time as there are slots, and its g_b and g_c. */
template <typename T> static void run_slab(const kr_scan_bwd_args *a, scan_bwd_args<T> k, cudaStream_t stream)
{
    scan_plan_slots(&k.plan, slots_of(k.plan));
    for (k.plan.round = 0; k.plan.round * k.plan.slots < k.plan.blocks; k.plan.round++) scan_bwd_run<T>(k, stream);
    if (!k.g_bc) return;
    const int64_t states = 4 * scan_lanes(k.plan.nr), rows = a->nb * a->ns * a->ng;
    const bc_sum<T> s = { k.g_bc,    k.plan.slots, rows,        states,     k.plan.states,
                          k.plan.nr, k.plan.r0,    (T *)a->g_b, (T *)a->g_c };
    if (rows > 0) sum_bc<T><<<(unsigned)kr_ceil_div(rows * 2 * states, 4 * 256), 256, 0, stream>>>(s);
}

template <typename T> static void run(const kr_scan_bwd_args *a)
{
    if (a->ni == 0) return;
    const cudaStream_t stream = (cudaStream_t)a->exec.stream;
    kr_cuda_scratch m = { (char *)a->exec.scratch, 0 };
    scan_walk_args<T> w = {};
    scan_bwd_args<T> k = {};
    w.plan = k.plan = scan_plan_of(a);
    const memory<T> memory = take_scratch<T>(a, w.plan, &m);
    fill_rows<T>(a, &w, &k);
    if (!scan_is_covered(a)) clear_unused<T>(a, w.plan, memory);
    if (!a->z.data) clear(a->g_z, a->nb * a->ns * a->ni * (int64_t)sizeof(T), stream);
    w.starts = (const T *)a->initial;
    w.tile_states = memory.tile_states, w.ends = memory.ends, w.g = memory.g, w.steps = memory.steps;
    k.tile_states = memory.tile_states, k.ends = (const T *)a->g_final;
    k.g_x = (T *)a->g_x, k.g_dt = (T *)a->g_dt, k.g_z = a->z.data ? (T *)a->g_z : NULL, k.g_initial = (T *)a->g_initial;
    k.g_bc = memory.bc, k.g_a = memory.g_a, k.g_d = memory.g_d;
    if (w.plan.segments > 1 && a->nq > 0) {
        scan_walk_run<T, SCAN_BOTH>(w, stream);
        const scan_chain<T> c = { w.plan, w.a, w.starts, k.ends, w.steps, w.ends, w.g };
        scan_chain_run<T>(c, stream);
        w.starts = w.ends, k.ends = w.g;
    }
    const int64_t slab = 4 * scan_lanes(a->nr);
    for (int64_t r0 = 0; a->nq > 0 && r0 < a->nr; r0 += slab) {
        w.plan.r0 = k.plan.r0 = r0;
        w.plan.states = k.plan.states = kr_least(slab, a->nr - r0);
        scan_walk_slab<T, SCAN_STATES>(w, stream);
        run_slab<T>(a, k, stream);
    }
    if (a->nq == 0) { /* no token, or none in a sequence */
        const int64_t bc = a->nb * a->ns * a->ng * a->nr * (int64_t)sizeof(T);
        clear(a->g_b, bc, stream);
        clear(a->g_c, bc, stream);
    }
    const int64_t units = a->nq * w.plan.segments;
    if (a->g_a) kr_column_sum_run<T>(memory.g_a, units, a->ni * a->nr, (T *)a->g_a, stream);
    if (a->g_d) kr_column_sum_run<T>(memory.g_d, units, a->ni, (T *)a->g_d, stream);
}

extern "C" void kr_cuda_f32_scan_bwd(const kr_scan_bwd_args *a)
{
    run<float>(a);
}
extern "C" void kr_cuda_f64_scan_bwd(const kr_scan_bwd_args *a)
{
    run<double>(a);
}
extern "C" size_t kr_cuda_f32_scan_bwd_scratch(const kr_scan_bwd_args *a)
{
    return scratch<float>(a);
}
extern "C" size_t kr_cuda_f64_scan_bwd_scratch(const kr_scan_bwd_args *a)
{
    return scratch<double>(a);
}
