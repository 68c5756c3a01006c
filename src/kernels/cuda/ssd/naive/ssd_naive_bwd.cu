/* ssd_naive_bwd.cu - gradients of the naive SSD core for any sizes; formulas in kernels/cpu/ssd_bwd_cpu.c. */
#include "kernels/cuda/ssd/naive/ssd_naive_parts.cuh"

template <typename F> struct naive_grads {
    naive_core<F> k;
    F *g_cb;   /* per head [chunks][h][nf][nf] */
    F *x;      /* S <C_i, B_j> e^(a_i - a_j), the same shape */
    F *part_d; /* [chunks][h] */
    F *g_v, *g_b, *g_c;
    F *g_da, *g_w, *g_diag_weight, *g_d;
};

/* S and its derived products: elements (chunk, h, i, j). */
template <typename F> static __global__ void naive_pairs(const naive_grads<F> g)
{
    const naive_core<F> &k = g.k;
    const int64_t pairs = k.nf * k.nf;
    FOR_EACH(index, k.map.chunks * k.nh * pairs)
    {
        int64_t j = index % k.nf, i = index / k.nf % k.nf, h = index / pairs % k.nh, n = index / (pairs * k.nh);
        kr_ssd_chunk c = kr_ssd_chunk_of(k.map, n);
        int64_t ti = i / k.nm, tj = j / k.nm;
        if (ti < tj || i >= c.nt * k.nm) continue;
        F s = dot<F>(g_y_at(k, c.at, i, h), v_at(k, c.at, j, h), k.np);
        F cb = k.cb[((n * k.ng + h / (k.nh / k.ng)) * k.nf + i) * k.nf + j], weight = weight_of(k, c.at, h, i, j);
        F decay = ti == tj ? (F)1 : kr_exp((F)decay_of(k, c.at, tj, ti, h));
        k.weights[index] = weight * cb;
        g.g_cb[index] = weight * s;
        g.x[index] = s * cb * decay;
    }
}

/* g_v: elements (chunk, j, h, p). */
template <typename F> static __global__ void naive_g_v(const naive_grads<F> g)
{
    const naive_core<F> &k = g.k;
    FOR_EACH(index, k.map.chunks * k.nf * k.nh * k.np)
    {
        int64_t p = index % k.np, h = index / k.np % k.nh, j = index / (k.np * k.nh) % k.nf;
        int64_t n = index / (k.np * k.nh * k.nf), e = h / (k.nh / k.ng), t = j / k.nm;
        kr_ssd_chunk c = kr_ssd_chunk_of(k.map, n);
        if (j >= c.nt * k.nm) continue;
        const F *state = k.g_states + ((n * k.nh + h) * k.np + p) * k.nr, *w = k.weights + (n * k.nh + h) * k.nf * k.nf;
        const F *b_r = b_at(k, c.at, j, e);
        F sum = 0;
        for (int64_t r = 0; r < k.nr; r++) sum += state[r] * b_r[r];
        sum *= kr_exp((F)decay_of(k, c.at, t, c.nt - 1, h)) * w_at(k, c.at, t, h);
        for (int64_t i = t * k.nm; i < c.nt * k.nm; i++) sum += w[i * k.nf + j] * g_y_at(k, c.at, i, h)[p];
        if (k.d) sum += k.d[h] * g_y_at(k, c.at, j, h)[p];
        g.g_v[((c.at * k.nm + j) * k.nh + h) * k.np + p] = sum;
    }
}

/* g_c, or g_b with of_b: elements (chunk, row, e, r); heads of the group in order. */
template <typename F> static __global__ void naive_g_bc(const naive_grads<F> g, bool of_b)
{
    const naive_core<F> &k = g.k;
    const int64_t heads = k.nh / k.ng;
    FOR_EACH(index, k.map.chunks * k.nf * k.ng * k.nr)
    {
        int64_t r = index % k.nr, e = index / k.nr % k.ng, i = index / (k.nr * k.ng) % k.nf;
        int64_t n = index / (k.nr * k.ng * k.nf), t = i / k.nm;
        kr_ssd_chunk c = kr_ssd_chunk_of(k.map, n);
        int64_t nf = c.nt * k.nm;
        if (i >= nf) continue;
        F sum = 0;
        for (int64_t h = e * heads; h < (e + 1) * heads; h++) {
            const F *state = (of_b ? k.g_states : k.states) + (n * k.nh + h) * k.np * k.nr + r;
            const F *g_cb = g.g_cb + (n * k.nh + h) * k.nf * k.nf;
            const F *x = of_b ? v_at(k, c.at, i, h) : g_y_at(k, c.at, i, h);
            F part = 0;
            for (int64_t p = 0; p < k.np; p++) part += x[p] * state[p * k.nr];
            sum += part * (of_b ? kr_exp((F)decay_of(k, c.at, t, c.nt - 1, h)) * w_at(k, c.at, t, h)
                                : kr_exp((F)a_at(k, c.at, t, h)));
            if (of_b)
                for (int64_t to = t * k.nm; to < nf; to++) sum += g_cb[to * k.nf + i] * c_at(k, c.at, to, e)[r];
            else
                for (int64_t from = 0; from < (t + 1) * k.nm; from++)
                    sum += g_cb[i * k.nf + from] * b_at(k, c.at, from, e)[r];
        }
        (of_b ? g.g_b : g.g_c)[((c.at * k.nm + i) * k.ng + e) * k.nr + r] = sum;
    }
}

/* <x H, y> of a token's rows, by a warp. */
template <typename F> static __device__ F bilinear(const naive_core<F> &k, const F *state, const F *x, const F *y)
{
    F sum = 0;
    for (int64_t r = threadIdx.x & 31; r < k.nr; r += 32) {
        F column = 0;
        for (int64_t p = 0; p < k.np; p++) column += x[p] * state[p * k.nr + r];
        sum += column * y[r];
    }
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    return sum;
}

/* Sums of token t: within the chunk including the incoming state, the outgoing state, for g_w, and for g_diag_weight. */
template <typename F>
static __device__ void token_sums(const naive_grads<F> &g, int64_t n, const kr_ssd_chunk &c, int64_t h, int64_t t,
                                  double out[4])
{
    const naive_core<F> &k = g.k;
    const int64_t e = h / (k.nh / k.ng), size = k.np * k.nr, nf = c.nt * k.nm, lane = threadIdx.x & 31;
    const F *x = g.x + (n * k.nh + h) * k.nf * k.nf;
    const double enter = exp(a_at(k, c.at, t, h)), leave = exp(decay_of(k, c.at, t, c.nt - 1, h));
    double row = 0, column = 0, own = 0, in = 0, u = 0;
    for (int64_t i = t * k.nm; i < (t + 1) * k.nm; i++) {
        for (int64_t j = lane; j < t * k.nm; j += 32)
            row += (double)x[i * k.nf + j] * (double)w_at(k, c.at, j / k.nm, h);
        for (int64_t j = t * k.nm + lane; j < (t + 1) * k.nm; j += 32) own += (double)x[i * k.nf + j];
        for (int64_t to = (t + 1) * k.nm + lane; to < nf; to += 32) column += (double)x[to * k.nf + i];
        in += (double)bilinear(k, k.states + (n * k.nh + h) * size, g_y_at(k, c.at, i, h), c_at(k, c.at, i, e));
        u += (double)bilinear(k, k.g_states + (n * k.nh + h) * size, v_at(k, c.at, i, h), b_at(k, c.at, i, e));
    }
    for (int step = 16; step; step /= 2) {
        row += __shfl_xor_sync(~0u, row, step);
        column += __shfl_xor_sync(~0u, column, step);
        own += __shfl_xor_sync(~0u, own, step);
    }
    const double w = (double)w_at(k, c.at, t, h);
    out[0] = in * enter + row - w * column;
    out[1] = w * u * leave;
    out[2] = u * leave + column + (k.diag_weight ? 0.0 : own);
    out[3] = k.diag_weight ? own : 0.0;
}

/* Scalars: a CTA of 256 threads per (chunk, h). */
template <typename F> static __global__ void naive_scalars(const naive_grads<F> g)
{
    __shared__ double token[64][4], part[8][2];
    const naive_core<F> &k = g.k;
    const int64_t n = blockIdx.x / k.nh, h = blockIdx.x % k.nh, size = k.np * k.nr;
    const kr_ssd_chunk c = kr_ssd_chunk_of(k.map, n);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x & 31;
    for (int64_t t = warp; t < c.nt; t += 8) {
        double out[4];
        token_sums(g, n, c, h, t, out);
        if (lane < 4) token[t][lane] = out[lane];
    }
    double gh = 0, d = 0;
    const F *x = k.states + (n * k.nh + h) * size, *y = k.g_states + (n * k.nh + h) * size;
    for (int64_t i = threadIdx.x; i < size; i += blockDim.x) gh += (double)x[i] * (double)y[i];
    for (int64_t i = threadIdx.x; i < c.nt * k.nm; i += blockDim.x)
        d += (double)dot<F>(g_y_at(k, c.at, i, h), v_at(k, c.at, i, h), k.np);
    for (int step = 16; step; step /= 2) {
        gh += __shfl_xor_sync(~0u, gh, step);
        d += __shfl_xor_sync(~0u, d, step);
    }
    if (lane == 0) part[warp][0] = gh, part[warp][1] = d;
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 1; i < 8; i++) part[0][0] += part[i][0], part[0][1] += part[i][1];
    g.part_d[blockIdx.x] = (F)part[0][1];
    double after = exp(a_at(k, c.at, c.nt - 1, h)) * part[0][0];
    for (int64_t t = 0; t < c.nt; t++) after += token[t][0];
    for (int64_t t = 0; t < c.nt; t++) {
        int64_t at = (c.at + t) * k.nh + h;
        if (g.g_da) g.g_da[at] = (F)after;
        if (g.g_w) g.g_w[at] = (F)token[t][2];
        if (g.g_diag_weight) g.g_diag_weight[at] = k.diag_weight ? (F)token[t][3] : (F)0;
        after += token[t][1] - token[t][0];
    }
}

template <typename F> static __global__ void naive_g_d(const F *part, int64_t chunks, int64_t nh, F *g_d)
{
    FOR_EACH(h, nh)
    {
        double sum = 0;
        for (int64_t n = 0; n < chunks; n++) sum += (double)part[n * nh + h];
        g_d[h] = (F)sum;
    }
}

template <typename F>
static naive_grads<F> naive_grads_of(const kr_ssd_bwd_args *a, const kr_ssd_dims *d, kr_cuda_scratch *m,
                                     cudaStream_t stream)
{
    naive_grads<F> g = {};
    g.k = naive_core_of<F>(a, d, m, stream);
    g.k.g_y = (const F *)a->g_y.data;
    const int64_t size = (int64_t)sizeof(F), pairs = d->chunks * a->nh * g.k.nf * g.k.nf;
    g.k.g_states = (F *)kr_scratch_take(m, d->chunks * a->nh * a->np * a->nr * size);
    g.g_cb = (F *)kr_scratch_take(m, pairs * size);
    g.x = (F *)kr_scratch_take(m, pairs * size);
    g.part_d = (F *)kr_scratch_take(m, d->chunks * a->nh * size);
    g.g_v = (F *)a->g_v.data, g.g_b = (F *)a->g_b.data, g.g_c = (F *)a->g_c.data;
    g.g_da = (F *)a->g_da, g.g_w = (F *)a->g_w, g.g_diag_weight = (F *)a->g_diag_weight, g.g_d = (F *)a->g_d;
    return g;
}

template <typename F> size_t kr_ssd_naive_bwd_scratch(const kr_ssd_bwd_args *a)
{
    kr_ssd_dims d = kr_ssd_dims_of(a);
    kr_cuda_scratch m = { NULL, 0 };
    naive_grads_of<F>(a, &d, &m, NULL);
    return m.used;
}

template <typename F> void kr_ssd_naive_bwd(const kr_ssd_bwd_args *a)
{
    cudaStream_t stream = (cudaStream_t)a->exec.stream;
    kr_ssd_dims d = kr_ssd_dims_of(a);
    kr_cuda_scratch m = { (char *)a->exec.scratch, 0 };
    naive_grads<F> g = naive_grads_of<F>(a, &d, &m, stream);
    const naive_core<F> &k = g.k;
    const int64_t states = a->nq * k.nh * k.np * k.nr, pairs = d.chunks * k.nf * k.nf, rows = d.chunks * k.nf;
    naive_walk<F> forward_walk = { (const F *)a->initial, NULL, NULL, NULL, NULL, a->nq };
    naive_walk<F> backward_walk = { (const F *)a->g_final, NULL, NULL, NULL, (F *)a->g_initial, a->nq };
    if (!d.covered) kr_ssd_clear(a, sizeof(F), stream);
    naive_states<<<naive_ctas(states), NAIVE_THREADS, 0, stream>>>(k, forward_walk);
    naive_g_states<<<naive_ctas(states), NAIVE_THREADS, 0, stream>>>(k, backward_walk);
    naive_sums<<<naive_ctas(d.chunks * k.nh), NAIVE_THREADS, 0, stream>>>(k);
    naive_cb<<<naive_ctas(pairs * k.ng), NAIVE_THREADS, 0, stream>>>(k);
    naive_pairs<<<naive_ctas(pairs * k.nh), NAIVE_THREADS, 0, stream>>>(g);
    if (a->g_v.data) naive_g_v<<<naive_ctas(rows * k.nh * k.np), NAIVE_THREADS, 0, stream>>>(g);
    if (a->g_b.data) naive_g_bc<<<naive_ctas(rows * k.ng * k.nr), NAIVE_THREADS, 0, stream>>>(g, true);
    if (a->g_c.data) naive_g_bc<<<naive_ctas(rows * k.ng * k.nr), NAIVE_THREADS, 0, stream>>>(g, false);
    if (d.chunks * k.nh > 0) naive_scalars<<<(unsigned)(d.chunks * k.nh), 256, 0, stream>>>(g);
    if (a->g_d) naive_g_d<<<naive_ctas(k.nh), NAIVE_THREADS, 0, stream>>>(g.part_d, d.chunks, k.nh, g.g_d);
}

#define INSTANCE(F)                                                                                                    \
    template size_t kr_ssd_naive_bwd_scratch<F>(const kr_ssd_bwd_args *);                                              \
    template void kr_ssd_naive_bwd<F>(const kr_ssd_bwd_args *);
INSTANCE(float)
INSTANCE(double)
