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
        T sums[S::WARPS][AT_ONCE][2][S::STATES];
    };
};

/* A thread's copies of a segment, the last tile first. */
template <typename T, int L> struct back_feeds {
    typedef scan_shape<T, L> S;
    scan_feed<T, L, S::CHANNELS, S::ROW> x, dt, z, g_y;
    scan_feed<T, L, S::STATES, S::STATES> b, c;

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

    /* The tile from token `first` of the segment on; below 0: none. */
    KR_MEMBER void fetch(const scan_back_args<T> &w, const scan_place &k, int64_t first,
                         typename scan_back_shape<T, L>::stage *to)
    {
        const int64_t left = k.count - first, token = k.token + first;
        const int rows = left < S::TOKENS ? (int)left : S::TOKENS;
        if (first >= 0) {
            x.fetch(w.x, token, rows, &to->x[0][0], -1);
            dt.fetch(w.dt, token, rows, &to->dt[0][0], -1);
            if (w.z.data) z.fetch(w.z, token, rows, &to->z[0][0], -1);
            g_y.fetch(w.g_y, token, rows, &to->g_y[0][0], -1);
            b.fetch(w.b, token, rows, &to->b[0][0], -1);
            c.fetch(w.c, token, rows, &to->c[0][0], -1);
        }
        copies_end();
    }
};

/* The gate's part of a tile, and B and C for every swap. */
template <typename T, int L>
KR_DEVICE void back_prepare(const scan_back_args<T> &w, typename scan_back_shape<T, L>::stage *s,
                            typename scan_back_shape<T, L>::memory *m)
{
    typedef scan_back_shape<T, L> S;
    enum { SWAPS = S::SWAPS };
    for (int i = threadIdx.x; w.z.data && i < S::TOKENS * S::CHANNELS; i += S::THREADS) {
        const int t = i / S::CHANNELS, c = i % S::CHANNELS;
        const T z = s->z[t][c], g = s->g_y[t][c], sigmoid = scan_sigmoid(z);
        s->z[t][c] = g * (sigmoid * fma_of(z, (T)1 - sigmoid, (T)1));
        s->g_y[t][c] = g * (z * sigmoid);
    }
    for (int i = threadIdx.x; i < S::TOKENS * S::STATES; i += S::THREADS) {
        const int t = i / S::STATES, r = i % S::STATES;
        const T b = s->b[t][r], c = s->c[t][r];
#pragma unroll
        for (int n = 0; n < SWAPS; n++) {
            const int swap = SWAPS == 2 ? 2 * n : n;
            m->b[t][n][r ^ swap] = b;
            m->c[t][n][r ^ swap] = c;
        }
    }
}

/* A thread's part of a segment. */
template <typename T> struct back_lane {
    T a[4], g[4], g_a[4]; /* rates, as scan_exp takes them; G; sums of g_a */
    T skip, g_d;
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
    const int64_t tokens = w.plan.nb * w.plan.ns;
    for (int i = threadIdx.x; i < S::AT_ONCE * 2 * S::STATES; i += S::THREADS) {
        const int t = i / (2 * S::STATES), r = i % (2 * S::STATES);
        if (t >= count) break;
        T sum = (&m->sums[0][t][0][0])[r];
#pragma unroll
        for (int n = 1; n < S::WARPS; n++) sum += (&m->sums[n][t][0][0])[r];
        T *to = w.g_maps + ((k.slot * tokens + token + t) * w.plan.ng + k.group) * 2 * S::STATES + r;
        *to = w.plan.round > 0 ? *to + sum : sum;
    }
}

#endif
