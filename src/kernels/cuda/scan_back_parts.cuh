/* scan_back_parts.cuh - what the backward scan of a segment is made of: its arguments and shared memory, the copies of its
 * tiles, and the sums over channels (formulas: scan_back.cuh).
 */
#ifndef KR_KERNELS_CUDA_SCAN_BACK_PARTS_CUH
#define KR_KERNELS_CUDA_SCAN_BACK_PARTS_CUH

#include "kernels/cuda/scan_walk.cuh"

template <typename T> struct scan_back_args {
    scan_plan plan;
    scan_rows<T> x, dt, z, g_y, b, c;
    const T *a, *d;
    const T *kept;                   /* states before tiles [stretches i STATES] */
    const T *ends;                   /* G at ends of segments [units i r], or g_final where there is one; NULL: 0 */
    T *g_x, *g_dt, *g_z, *g_initial; /* NULL: not wanted */
    T *g_maps;                       /* parts of g_B, g_C [slots tokens g 2 STATES], or NULL */
    T *g_a, *g_d;                    /* parts [units i r], [units i], or NULL */
};

template <typename T, int L> struct scan_back_shape : scan_shape<T, L> {
    typedef scan_shape<T, L> S;
    enum {
        ABREAST = 32 / L, /* channels of a warp */
        SWAPS = ABREAST == 1   ? 1
                : ABREAST == 2 ? 2
                               : 4,
        AT_ONCE = L <= 4 ? (int)S::TOKENS : 4, /* tokens whose g_B and g_C wait for other warps */
        STAGES = 2
    };
    struct stage {
        alignas(16) T x[S::TOKENS][S::ROW], dt[S::TOKENS][S::ROW];
        T z[S::TOKENS][S::ROW], g_y[S::TOKENS][S::ROW]; /* give way to g_y silu'(z) and g_p */
        T b[S::TOKENS][S::STATES], c[S::TOKENS][S::STATES];
    };
    struct memory {
        stage stages[STAGES];
        alignas(16) T b[S::TOKENS][SWAPS][S::STATES], c[S::TOKENS][SWAPS][S::STATES];
        alignas(16) T sums[S::WARPS][AT_ONCE][2][S::STATES];
    };
};

/* A thread's copies of a segment, the last tile first. */
template <typename T, int L, bool WIDE> struct back_feeds {
    typedef scan_shape<T, L> S;
    typedef typename scan_back_shape<T, L>::stage stage;
    scan_feed<T, L, S::CHANNELS, S::ROW, WIDE> x, dt, z, g_y;
    scan_feed<T, L, S::STATES, S::STATES, WIDE> b, c;

    KR_MEMBER void start(const scan_back_args<T> &w, const scan_place &k, int64_t first)
    {
        const int64_t maps = k.group * w.plan.nr + w.plan.r0, token = k.token + first;
        x.start(w.x, token, k.first, k.channels);
        dt.start(w.dt, token, k.first, k.channels);
        if (w.z.data) z.start(w.z, token, k.first, k.channels);
        g_y.start(w.g_y, token, k.first, k.channels);
        b.start(w.b, token, maps, (int)w.plan.states);
        c.start(w.c, token, maps, (int)w.plan.states);
    }

    /* The tile from token `first` of the segment on (below 0: none), to address `to`. */
    KR_MEMBER void fetch(const scan_back_args<T> &w, const scan_place &k, int64_t first, uint32_t to)
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
        copies_end();
    }
};

/* The swap of the channel of that number in the warp. Neighbours have neighbouring copies of B and C, so that the eight
 * lanes that read at once meet on no bank. */
template <typename T, int L> KR_DEVICE int back_swap(int abreast)
{
    enum { SWAPS = scan_back_shape<T, L>::SWAPS };
    return SWAPS == 1 ? 0 : (abreast & 1) * 2 + (SWAPS == 4 ? abreast >> 1 & 1 : 0);
}

/* Four states of B or C in the order of a swap. */
template <typename T> KR_DEVICE kr_vector<T, 4> swapped(const kr_vector<T, 4> &v, int swap)
{
    kr_vector<T, 4> to;
#pragma unroll
    for (int r = 0; r < 4; r++) to.v[r] = v.v[r ^ swap];
    return to;
}

/* The gate's part of a tile, and B and C for every swap, four elements at a time. */
template <typename T, int L>
KR_DEVICE void back_prepare(const scan_back_args<T> &w, typename scan_back_shape<T, L>::stage *s,
                            typename scan_back_shape<T, L>::memory *m)
{
    typedef scan_back_shape<T, L> S;
    enum { SWAPS = S::SWAPS, BY_TOKEN = S::CHANNELS / 4, QUADS = S::TOKENS * S::STATES / 4 };
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
    for (int i = threadIdx.x; i < 2 * QUADS; i += S::THREADS) {
        const int quad = i % QUADS, t = quad / (S::STATES / 4), r = quad % (S::STATES / 4) * 4;
        const bool is_b = i < QUADS;
        const kr_vector<T, 4> v = kr_load_vector<T, 4>(is_b ? &s->b[t][r] : &s->c[t][r]);
        T *to = is_b ? &m->b[t][0][r] : &m->c[t][0][r];
#pragma unroll
        for (int n = 0; n < SWAPS; n++) kr_store_vector<T, 4>(to + n * S::STATES, swapped(v, back_swap<T, L>(n)));
    }
}

/* A thread's part of a segment. */
template <typename T> struct back_lane {
    T a[4], g[4], g_a[4]; /* rates, as scan_exp takes them; G; sums of g_a */
    T skip, g_d;
    int64_t at;                       /* of the lane's first token of the tile, in g_x */
    int channel, lane, abreast, swap; /* the channel in the block, the lane in it, the channel's number in the warp */
};

/* g_B and g_C of a token, summed over the warp's channels, to shared memory. */
template <typename T, int L> KR_DEVICE void back_sum_channels(const back_lane<T> &k, T *g_b, T *g_c, T (*to)[4 * L])
{
    typedef scan_back_shape<T, L> S;
    const int at = 4 * k.lane;
    if (S::ABREAST >= 2) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            g_b[r] += __shfl_xor_sync(~0u, g_b[r + 2], L);
            g_c[r] += __shfl_xor_sync(~0u, g_c[r + 2], L);
        }
    }
    if (S::ABREAST >= 4) {
        g_b[0] += __shfl_xor_sync(~0u, g_b[1], 2 * L);
        g_c[0] += __shfl_xor_sync(~0u, g_c[1], 2 * L);
    }
    if (S::ABREAST >= 8) {
        const bool upper = k.abreast & 4;
        T sum = upper ? g_c[0] : g_b[0];
        sum += __shfl_xor_sync(~0u, upper ? g_b[0] : g_c[0], 4 * L);
#pragma unroll
        for (int step = 8; step < S::ABREAST; step *= 2) sum += __shfl_xor_sync(~0u, sum, step * L);
        if (k.abreast < 8) to[upper][at + k.swap] = sum;
    } else {
#pragma unroll
        for (int r = 0; r < (S::ABREAST == 1 ? 4 : 2); r++) {
            to[0][at + (r ^ k.swap)] = g_b[r];
            to[1][at + (r ^ k.swap)] = g_c[r];
        }
    }
}

/* Sums over a block's warps of `count` tokens from `token` on, to the block's slot. */
template <typename T, int L>
KR_DEVICE void back_give_maps(const scan_back_args<T> &w, const scan_place &k, int64_t token, int64_t count,
                              const typename scan_back_shape<T, L>::memory *m)
{
    typedef scan_back_shape<T, L> S;
    enum { QUADS = 2 * S::STATES / 4 }; /* of a token */
    const int64_t tokens = w.plan.nb * w.plan.ns;
#pragma unroll 1
    for (int i = threadIdx.x; i < S::AT_ONCE * QUADS; i += S::THREADS) {
        const int t = i / QUADS, r = i % QUADS * 4;
        if (t >= count) break;
        kr_vector<T, 4> sum = kr_load_vector<T, 4>(&m->sums[0][t][0][0] + r);
#pragma unroll
        for (int n = 1; n < S::WARPS; n++) {
            const kr_vector<T, 4> more = kr_load_vector<T, 4>(&m->sums[n][t][0][0] + r);
#pragma unroll
            for (int e = 0; e < 4; e++) sum.v[e] += more.v[e];
        }
        T *to = w.g_maps + ((k.slot * tokens + token + t) * w.plan.ng + k.group) * 2 * S::STATES + r;
        if (w.plan.round > 0) {
            const kr_vector<T, 4> before = kr_load_vector<T, 4>(to);
#pragma unroll
            for (int e = 0; e < 4; e++) sum.v[e] += before.v[e];
        }
        kr_store_vector<T, 4>(to, sum);
    }
}

#endif
