/* scan_back.cuh - the selective scan from the last token of a segment to its first.
 *
 *   A_t = exp(dt_t a);  H_t = A_t H_{t-1} + dt_t B_t x_t;  p_t = <C_t, H_t> + D x_t;  y_t = p_t, or p_t silu(z_t)
 *   g_p = g_y silu(z);  g_z = g_y p_t silu'(z);  G += C_t g_p
 *   g_C_t += g_p H_t;  g_B_t += G dt_t x_t;  g_D += g_p x_t
 *   g_x_t = dt_t <G, B_t> + D g_p;  g_dt_t = x_t <G, B_t> + <A_t G, a H_{t-1}>;  g_a += dt_t A_t G H_{t-1};  G = A_t G
 *
 * A tile of tokens is worked on twice: forward from the state that was kept before it, all H staying in registers, then
 * backward. A_t is computed again on the way back: that costs less than the registers would.
 * Sums over a warp's channels (g_B, g_C) change hands like those over lanes: slot k of a lane holds state k ^ swap, where
 * swap has the two lowest bits of its channel's number in the warp, so that a lane keeps its slots 0, 1 (then 0) and gives
 * the others away, whichever states they are. B and C lie in shared memory once for each swap. Warps' sums meet in shared
 * memory; blocks' sums go to memory, a slot for each block (or, round after round, for several), to be added up in order.
 */
#ifndef KR_KERNELS_CUDA_SCAN_BACK_CUH
#define KR_KERNELS_CUDA_SCAN_BACK_CUH

#include "kernels/cuda/scan_back_parts.cuh"

/* What four tokens from t0 of the tile on give, once the sums over states are known; left: tokens of the tile. */
template <typename T, int L>
KR_DEVICE void back_give(const scan_back_args<T> &w, const typename scan_back_shape<T, L>::stage &s, int left, int t0,
                         back_lane<T> *own, T *along_b, T *g_step, T *p)
{
    enum { M = L < 4 ? L : 4 };
    sum_lanes<L, 4>(along_b);
    sum_lanes<L, 4>(g_step);
    sum_lanes<L, 4>(p);
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
KR_DEVICE void back_tile(const scan_back_args<T> &w, const scan_place &k,
                         const typename scan_back_shape<T, L>::stage &s, typename scan_back_shape<T, L>::memory *m,
                         int64_t first, back_lane<T> *own, const T *h)
{
    typedef scan_back_shape<T, L> S;
    enum { TOKENS = S::TOKENS, AT_ONCE = S::AT_ONCE };
    const int copy = own->abreast % S::SWAPS, warp = threadIdx.x / 32;
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
        back_sum_channels<T, L>(*own, g_b, g_c, m->sums[warp][t % AT_ONCE]);
        if (t % 4 == 0) back_give<T, L>(w, s, left, t, own, along_b, g_step, p);
        if (w.g_maps && t % AT_ONCE == 0) {
            __syncthreads();
            back_give_maps<T, L>(w, k, k.token + first + t, k.count - first - t, m);
            if (t > 0) __syncthreads(); /* after the last ones the next tile's waits */
        }
    }
}

/* Four states from r on, in the slots of a swap. */
template <typename T>
KR_DEVICE void back_load(const T *from, int64_t i, int64_t nr, int64_t r, int64_t end, int swap, T *h)
{
#pragma unroll
    for (int k = 0; k < 4; k++) h[k] = from && r + (k ^ swap) < end ? from[i * nr + r + (k ^ swap)] : (T)0;
}

/* Four states that lie together, in the slots of a swap. */
template <typename T> KR_DEVICE void back_load_pack(const T *from, int swap, T *h)
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
KR_DEVICE void back_store(T *to, int64_t i, int64_t nr, int64_t r, int64_t end, int swap, const T *h)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (r + (k ^ swap) < end) to[i * nr + r + (k ^ swap)] = h[k];
}

template <typename T, int L, bool WIDE>
static __global__ void __launch_bounds__(scan_shape<T, L>::THREADS, sizeof(T) == 4 ? 3 : 1)
    scan_back(const scan_back_args<T> w)
{
    typedef scan_back_shape<T, L> S;
    enum { TOKENS = S::TOKENS, STATES = S::STATES };
    extern __shared__ __align__(16) char shared[];
    typename S::memory *m = (typename S::memory *)shared;
    const scan_place k = scan_place_of<S::CHANNELS>(w.plan);
    if (k.channels <= 0) return;
    back_lane<T> own = {};
    own.channel = threadIdx.x / L, own.lane = threadIdx.x % L;
    own.abreast = threadIdx.x % 32 / L;
    own.swap = back_swap<T, L>(own.abreast);
    const bool is_some = own.channel < k.channels;
    const int64_t i = k.first + (is_some ? own.channel : 0), nr = w.plan.nr;
    const int64_t r = w.plan.r0 + 4 * own.lane, end = is_some ? w.plan.r0 + w.plan.states : 0;
    back_load(w.a, i, nr, r, end, own.swap, own.a);
#pragma unroll
    for (int n = 0; n < 4; n++) own.a[n] *= scan_scale<T>();
    const bool exists = k.segment < k.segments;
    if (exists)
        back_load(w.ends ? w.ends + (w.plan.segments > 1 ? k.unit : k.q) * w.plan.ni * nr : NULL, i, nr, r, end,
                  own.swap, own.g);
    own.skip = w.d && w.plan.r0 == 0 ? w.d[i] : (T)0;
    const int64_t tiles = exists ? (k.count + TOKENS - 1) / TOKENS : 0;
    const T *kept = w.kept + ((scan_first_stretch<TOKENS>(k) + tiles - 1) * w.plan.ni + i) * STATES + 4 * own.lane;
    const uint32_t address = kr_shared_address(&m->stages[0]), apart = (uint32_t)sizeof(typename S::stage);
    back_feeds<T, L, WIDE> feeds;
    feeds.start(w, k, (tiles - 1) * TOKENS);
    feeds.fetch(w, k, (tiles - 1) * TOKENS, address);
    own.at = (k.token + (tiles - 1) * TOKENS + own.lane) * w.plan.ni + i;
    for (int64_t n = tiles - 1; n >= 0; n--, own.at -= TOKENS * w.plan.ni, kept -= w.plan.ni * STATES) {
        typename S::stage *now = &m->stages[(tiles - 1 - n) & 1];
        T h[4];
        back_load_pack(kept, own.swap, h);
        copies_wait<0>();
        __syncthreads();
        feeds.fetch(w, k, (n - 1) * TOKENS, address + (uint32_t)((tiles - n) & 1) * apart);
        back_prepare<T, L>(w, now, m);
        __syncthreads();
        back_tile<T, L>(w, k, *now, m, n * TOKENS, &own, h);
    }
    copies_wait<0>();
#pragma unroll
    for (int mask = 1; mask < L; mask *= 2) own.g_d += __shfl_xor_sync(~0u, own.g_d, mask);
    if (!is_some) return;
    if (w.g_initial && k.segment == 0) back_store(w.g_initial + k.q * w.plan.ni * nr, i, nr, r, end, own.swap, own.g);
    if (w.g_a) back_store(w.g_a + k.unit * w.plan.ni * nr, i, nr, r, end, own.swap, own.g_a);
    if (w.g_d && own.lane == 0 && w.plan.r0 == 0) w.g_d[k.unit * w.plan.ni + i] = own.g_d;
}

template <typename T, int L, bool WIDE> static void scan_back_launch(const scan_back_args<T> &w, cudaStream_t stream)
{
    const int bytes = (int)sizeof(typename scan_back_shape<T, L>::memory);
    static_assert(bytes <= KR_CUDA_LEAST_SHARED, "too much for sm_86");
    if (bytes > 48 * 1024)
        cudaFuncSetAttribute(scan_back<T, L, WIDE>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    const int64_t blocks = w.plan.nq * w.plan.segments * w.plan.ng * w.plan.slots;
    scan_back<T, L, WIDE><<<(unsigned)blocks, scan_shape<T, L>::THREADS, bytes, stream>>>(w);
}

template <typename T, int L> static void scan_back_as(const scan_back_args<T> &w, cudaStream_t stream)
{
    const bool wide =
        w.x.is_wide && w.dt.is_wide && w.g_y.is_wide && w.b.is_wide && w.c.is_wide && (!w.z.data || w.z.is_wide);
    if (wide && sizeof(T) == 4) scan_back_launch<T, L, sizeof(T) == 4>(w, stream);
    else scan_back_launch<T, L, false>(w, stream);
}

template <typename T> static void scan_back_run(const scan_back_args<T> &w, cudaStream_t stream)
{
    switch (scan_lanes(w.plan.nr)) {
    case 1: scan_back_as<T, 1>(w, stream); break;
    case 4: scan_back_as<T, 4>(w, stream); break;
    case 16: scan_back_as<T, 16>(w, stream); break;
    default: scan_back_as<T, 32>(w, stream); break;
    }
}

#endif
