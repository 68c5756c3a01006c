/* scan_walk.cuh - the selective scan of a segment from its first token to its last, in four modes.
 *
 *   H_t = exp(dt_t a) H_{t-1} + dt_t B_t x_t
 *   OUTPUTS: y_t = <C_t, H_t> + D x_t, times silu(z_t) with a gate, and the final state
 *   STATES:  the states before every tile of tokens, for the backward pass
 *   ENDS:    H at the segment's end from a state of 0, and the sum of dt: for all segments but a sequence's last
 *   BOTH:    also the map of a segment on the gradient of a state: G_start = exp(a sum dt) G_end + g,
 *            g = sum_t exp(a sum_{k <= t} dt_k) C_t g_y_t silu(z_t)
 */
#ifndef KR_KERNELS_CUDA_SCAN_SCAN_WALK_CUH
#define KR_KERNELS_CUDA_SCAN_SCAN_WALK_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/scan/scan_parts.cuh"

enum { SCAN_OUTPUTS, SCAN_STATES, SCAN_ENDS, SCAN_BOTH };

template <typename T> struct scan_walk_args {
    scan_plan plan;
    scan_rows<T> x, dt, z, g_y, b, c; /* data NULL: no gate */
    const T *a, *d;
    const T *starts;     /* [units i r], or the initial states if there is one segment; NULL: 0 */
    T *y, *final;        /* OUTPUTS; final NULL: not wanted */
    T *tile_states;      /* STATES: [tiles i STATES] */
    T *ends, *g, *steps; /* ENDS, BOTH: [units i r] twice, [units i] */
};

/* Index of a segment's first tile: tiles of all segments are numbered without overlap. */
template <int TOKENS> KR_DEVICE int64_t scan_first_tile(const scan_task &k)
{
    return k.token / TOKENS + k.unit;
}

/* A tile. Its arrays depend on the mode at compile time. */
template <typename T, int L, int MODE> struct scan_tile {
    typedef scan_shape<T, L> S;
    enum { HAS_C = MODE == SCAN_OUTPUTS || MODE == SCAN_BOTH, HAS_Z = HAS_C, HAS_G = MODE == SCAN_BOTH, STAGES = 3 };
    alignas(16) T x[S::TOKENS][S::ROW], dt[S::TOKENS][S::ROW];
    T z[HAS_Z ? S::TOKENS : 1][S::ROW], g_y[HAS_G ? S::TOKENS : 1][S::ROW];
    T b[S::TOKENS][S::STATES], c[HAS_C ? S::TOKENS : 1][S::STATES];
};

/* A thread's copies of a segment. */
template <typename T, int L, int MODE, bool WIDE> struct scan_feeds {
    typedef scan_tile<T, L, MODE> tile_type;
    typedef scan_shape<T, L> S;
    scan_feed<T, L, S::CHANNELS, S::ROW, WIDE> x, dt, z, g_y;
    scan_feed<T, L, S::STATES, S::STATES, WIDE> b, c;

    KR_MEMBER void start(const scan_walk_args<T> &w, const scan_task &k)
    {
        const int64_t bc = k.group * w.plan.nr + w.plan.r0;
        x.start(w.x, k.token, k.first, k.channels);
        dt.start(w.dt, k.token, k.first, k.channels);
        if (tile_type::HAS_Z && w.z.data) z.start(w.z, k.token, k.first, k.channels);
        if (tile_type::HAS_G) g_y.start(w.g_y, k.token, k.first, k.channels);
        b.start(w.b, k.token, bc, (int)w.plan.states);
        if (tile_type::HAS_C) c.start(w.c, k.token, bc, (int)w.plan.states);
    }

    /* The tile from token `done` of the segment on, to address `to`. */
    KR_MEMBER void fetch(const scan_walk_args<T> &w, const scan_task &k, int64_t done, uint32_t to)
    {
        const int64_t left = k.count - done, token = k.token + done;
        const int rows = left < S::TOKENS ? (int)left : S::TOKENS;
        if (rows > 0) {
            x.fetch(w.x, token, rows, to + (uint32_t)offsetof(tile_type, x), 1);
            dt.fetch(w.dt, token, rows, to + (uint32_t)offsetof(tile_type, dt), 1);
            if (tile_type::HAS_Z && w.z.data) z.fetch(w.z, token, rows, to + (uint32_t)offsetof(tile_type, z), 1);
            if (tile_type::HAS_G) g_y.fetch(w.g_y, token, rows, to + (uint32_t)offsetof(tile_type, g_y), 1);
            b.fetch(w.b, token, rows, to + (uint32_t)offsetof(tile_type, b), 1);
            if (tile_type::HAS_C) c.fetch(w.c, token, rows, to + (uint32_t)offsetof(tile_type, c), 1);
        }
        copies_commit();
    }
};

/* A lane's states of its channel. */
template <typename T> struct scan_lane {
    T a[4];         /* rates, scaled for scan_exp */
    T h[4];         /* states */
    T all[4], g[4]; /* BOTH: exp(a sum of dt), g */
    T step;         /* sum of dt */
};

/* Token t of a tile; returns this lane's part of <C, H>. */
template <typename T, int L, int MODE>
KR_DEVICE T scan_token(const scan_tile<T, L, MODE> &tile, int t, int channel, int lane, bool gated, scan_lane<T> *k)
{
    const T dt = tile.dt[t][channel], dtx = dt * tile.x[t][channel];
    const kr_vector<T, 4> b = kr_load_vector<T, 4>(&tile.b[t][4 * lane]);
    if (MODE == SCAN_OUTPUTS) {
        const kr_vector<T, 4> c = kr_load_vector<T, 4>(&tile.c[t][4 * lane]);
#pragma unroll
        for (int r = 0; r < 4; r++) k->h[r] = kr_fma(scan_exp(dt * k->a[r]), k->h[r], dtx * b.v[r]);
        return kr_fma(c.v[0], k->h[0], c.v[1] * k->h[1]) + kr_fma(c.v[2], k->h[2], c.v[3] * k->h[3]);
    }
    T g_p = 0;
    kr_vector<T, 4> c = {};
    if (MODE == SCAN_BOTH) {
        c = kr_load_vector<T, 4>(&tile.c[t][4 * lane]);
        g_p = tile.g_y[t][channel];
        if (gated) g_p *= tile.z[t][channel] * scan_sigmoid(tile.z[t][channel]);
    }
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const T decay = scan_exp(dt * k->a[r]);
        k->h[r] = kr_fma(decay, k->h[r], dtx * b.v[r]);
        if (MODE == SCAN_BOTH) {
            k->all[r] *= decay;
            k->g[r] = kr_fma(k->all[r], c.v[r] * g_p, k->g[r]);
        }
    }
    if (MODE == SCAN_ENDS || MODE == SCAN_BOTH) k->step += dt;
    return 0;
}

/* Stores y of a tile: sums over lanes, D and gate. The lanes of a channel take different tokens; to: the lane's first. */
template <typename T, int L, int MODE>
KR_DEVICE void scan_store_y(const scan_walk_args<T> &w, const scan_tile<T, L, MODE> &tile, int64_t left, int channel,
                            int lane, T skip, T *y, T *to)
{
    enum { TOKENS = scan_shape<T, L>::TOKENS, M = L < TOKENS ? L : TOKENS };
    lanes_sum<L, TOKENS>(y);
    if (lane >= M) return;
#pragma unroll
    for (int j = 0; j < TOKENS; j += M) y[j] = kr_fma(skip, tile.x[j + lane][channel], y[j]);
    if (w.z.data) {
#pragma unroll
        for (int j = 0; j < TOKENS; j += M) {
            const T z = tile.z[j + lane][channel];
            y[j] *= z * scan_sigmoid(z);
        }
    }
    if (w.plan.r0 > 0) {
#pragma unroll
        for (int j = 0; j < TOKENS; j += M)
            if (j + lane < left) y[j] += to[j * w.plan.ni];
    }
#pragma unroll
    for (int j = 0; j < TOKENS; j += M)
        if (j + lane < left) to[j * w.plan.ni] = y[j];
}

/* The tokens of a tile, those of the last tile by fours. */
template <typename T, int L, int MODE>
KR_DEVICE void scan_tokens(const scan_tile<T, L, MODE> &tile, int64_t left, int channel, int lane, bool gated,
                           scan_lane<T> *own, T *y)
{
    enum { TOKENS = scan_shape<T, L>::TOKENS };
    if (left >= TOKENS) {
#pragma unroll
        for (int t = 0; t < TOKENS; t++) y[t] = scan_token<T, L, MODE>(tile, t, channel, lane, gated, own);
        return;
    }
#pragma unroll
    for (int t = 0; t < TOKENS; t += 4) {
#pragma unroll
        for (int s = 0; s < 4; s++) y[t + s] = 0;
        if (t >= left) continue;
#pragma unroll
        for (int s = 0; s < 4; s++) y[t + s] = scan_token<T, L, MODE>(tile, t + s, channel, lane, gated, own);
    }
}

/* A lane's states r .. of channel i before the segment, those before `end`: the rates, and the state where it is known. */
template <typename T, int MODE>
KR_DEVICE scan_lane<T> scan_lane_at(const scan_walk_args<T> &w, const scan_task &k, int64_t i, int64_t r, int64_t end)
{
    const int64_t nr = w.plan.nr;
    scan_lane<T> own = {};
    load_states(w.a, i, nr, r, end, own.a);
#pragma unroll
    for (int s = 0; s < 4; s++) own.a[s] *= scan_scale<T>(), own.all[s] = 1;
    if (MODE == SCAN_OUTPUTS || MODE == SCAN_STATES)
        load_states(w.starts ? w.starts + (w.plan.segments > 1 ? k.unit : k.q) * w.plan.ni * nr : NULL, i, nr, r, end,
                    own.h);
    return own;
}

/* Does this mode process the segment? */
template <int MODE> KR_DEVICE bool scan_has_work(const scan_task &k, bool is_last)
{
    if (k.segment >= k.segments || k.channels <= 0) return false;
    if (MODE == SCAN_ENDS && is_last) return false;
    return !(MODE == SCAN_BOTH && k.segments == 1);
}

template <typename T, int L, int MODE, bool WIDE>
static __global__ void __launch_bounds__(scan_shape<T, L>::THREADS, sizeof(T) == 4 ? 3 : 1)
    scan_walk(const scan_walk_args<T> w)
{
    typedef scan_shape<T, L> S;
    typedef scan_tile<T, L, MODE> tile_type;
    enum { TOKENS = S::TOKENS, STAGES = tile_type::STAGES };
    extern __shared__ __align__(16) char shared[];
    const tile_type *tiles = (const tile_type *)shared;
    const uint32_t address = kr_shared_address(shared);
    const scan_task k = scan_task_of<S::CHANNELS>(w.plan);
    const bool is_last = k.segment == k.segments - 1;
    if (!scan_has_work<MODE>(k, is_last)) return;
    const int channel = threadIdx.x / L, lane = threadIdx.x % L;
    const int64_t i = k.first + (channel < k.channels ? channel : 0), nr = w.plan.nr;
    const int64_t r = w.plan.r0 + 4 * lane, end = channel < k.channels ? w.plan.r0 + w.plan.states : 0;
    scan_lane<T> own = scan_lane_at<T, MODE>(w, k, i, r, end);
    const T skip = MODE == SCAN_OUTPUTS && w.d && w.plan.r0 == 0 ? w.d[i] : (T)0;
    T *tile_states = w.tile_states + ((scan_first_tile<TOKENS>(k) * w.plan.ni + i) * S::STATES + 4 * lane);
    T *to = w.y + (k.token + lane) * w.plan.ni + i;
    scan_feeds<T, L, MODE, WIDE> feeds;
    feeds.start(w, k);
    for (int s = 0; s < STAGES - 1; s++)
        feeds.fetch(w, k, (int64_t)s * TOKENS, address + (uint32_t)(s * (int)sizeof(tile_type)));
    int now = 0;
    for (int64_t done = 0; done < k.count; done += TOKENS) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        const int next = now == 0 ? STAGES - 1 : now - 1;
        feeds.fetch(w, k, done + (STAGES - 1) * TOKENS, address + (uint32_t)(next * (int)sizeof(tile_type)));
        const tile_type &tile = tiles[now];
        const int64_t left = k.count - done;
        if (MODE == SCAN_STATES) {
            if (channel < k.channels)
                kr_store_vector<T, 4>(tile_states, kr_vector<T, 4>{ { own.h[0], own.h[1], own.h[2], own.h[3] } });
            tile_states += w.plan.ni * S::STATES;
        }
        T y[TOKENS];
        scan_tokens<T, L, MODE>(tile, left, channel, lane, w.z.data != NULL, &own, y);
        if (MODE == SCAN_OUTPUTS) {
            scan_store_y<T, L, MODE>(w, tile, channel < k.channels ? left : 0, channel, lane, skip, y, to);
            to += TOKENS * w.plan.ni;
        }
        now = now == STAGES - 1 ? 0 : now + 1;
    }
    copies_wait<0>();
    if (channel >= k.channels) return;
    if (MODE == SCAN_OUTPUTS && is_last && w.final) store_states(w.final + k.q * w.plan.ni * nr, i, nr, r, end, own.h);
    if (MODE == SCAN_ENDS || MODE == SCAN_BOTH) {
        store_states(w.ends + k.unit * w.plan.ni * nr, i, nr, r, end, own.h);
        if (MODE == SCAN_BOTH) store_states(w.g + k.unit * w.plan.ni * nr, i, nr, r, end, own.g);
        if (lane == 0) w.steps[k.unit * w.plan.ni + i] = own.step;
    }
}

template <typename T, int L, int MODE, bool WIDE>
static void scan_walk_launch(const scan_walk_args<T> &w, cudaStream_t stream)
{
    typedef scan_tile<T, L, MODE> tile_type;
    const int bytes = (int)sizeof(tile_type) * tile_type::STAGES;
    static_assert(bytes <= KR_CUDA_LEAST_SHARED, "too much for sm_86");
    if (bytes > 48 * 1024)
        cudaFuncSetAttribute(scan_walk<T, L, MODE, WIDE>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    const int64_t blocks = w.plan.nq * w.plan.segments * w.plan.ng * w.plan.slots;
    scan_walk<T, L, MODE, WIDE><<<(unsigned)blocks, scan_shape<T, L>::THREADS, bytes, stream>>>(w);
}

template <typename T, int L, int MODE> static void scan_walk_as(const scan_walk_args<T> &w, cudaStream_t stream)
{
    const bool wide = w.x.is_wide && w.dt.is_wide && w.b.is_wide && (!w.z.data || w.z.is_wide) &&
                      (!w.c.data || w.c.is_wide) && (!w.g_y.data || w.g_y.is_wide);
    if (wide && sizeof(T) == 4) scan_walk_launch<T, L, MODE, sizeof(T) == 4>(w, stream);
    else scan_walk_launch<T, L, MODE, false>(w, stream);
}

/* One slab; modes whose results are not added in memory process one slab at a time, chosen by the caller. */
template <typename T, int MODE> static void scan_walk_slab(const scan_walk_args<T> &w, cudaStream_t stream)
{
    switch (scan_lanes(w.plan.nr)) {
    case 1: scan_walk_as<T, 1, MODE>(w, stream); break;
    case 4: scan_walk_as<T, 4, MODE>(w, stream); break;
    case 16: scan_walk_as<T, 16, MODE>(w, stream); break;
    default: scan_walk_as<T, 32, MODE>(w, stream); break;
    }
}

template <typename T, int MODE> static void scan_walk_run(scan_walk_args<T> w, cudaStream_t stream)
{
    const int64_t slab = 4 * scan_lanes(w.plan.nr);
    for (w.plan.r0 = 0; w.plan.r0 < w.plan.nr; w.plan.r0 += slab) {
        w.plan.states = kr_least(slab, w.plan.nr - w.plan.r0);
        scan_walk_slab<T, MODE>(w, stream);
    }
}

#endif
