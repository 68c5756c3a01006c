/* ssd_naive.cu - the naive SSD core for any sizes, forward; see ssd_naive.cuh. */
#include "kernels/cuda/ssd/naive/ssd_naive_parts.cuh"

/* W: elements (chunk, h, i, j). */
template <typename F> static __global__ void naive_weights(const naive_core<F> k)
{
    const int64_t pairs = k.nf * k.nf;
    FOR_EACH(index, k.map.chunks * k.nh * pairs)
    {
        int64_t j = index % k.nf, i = index / k.nf % k.nf, h = index / pairs % k.nh, n = index / (pairs * k.nh);
        kr_ssd_chunk c = kr_ssd_chunk_of(k.map, n);
        if (i / k.nm < j / k.nm || i >= c.nt * k.nm) continue;
        k.weights[index] = weight_of(k, c.at, h, i, j) * k.cb[((n * k.ng + h / (k.nh / k.ng)) * k.nf + i) * k.nf + j];
    }
}

/* y: elements (chunk, i, h, p). */
template <typename F> static __global__ void naive_outputs(const naive_core<F> k, F *y)
{
    FOR_EACH(index, k.map.chunks * k.nf * k.nh * k.np)
    {
        int64_t p = index % k.np, h = index / k.np % k.nh, i = index / (k.np * k.nh) % k.nf;
        int64_t n = index / (k.np * k.nh * k.nf), e = h / (k.nh / k.ng);
        kr_ssd_chunk c = kr_ssd_chunk_of(k.map, n);
        if (i >= c.nt * k.nm) continue;
        const F *state = k.states + ((n * k.nh + h) * k.np + p) * k.nr,
                *w = k.weights + ((n * k.nh + h) * k.nf + i) * k.nf;
        const F *c_r = c_at(k, c.at, i, e);
        F sum = 0;
        for (int64_t r = 0; r < k.nr; r++) sum += state[r] * c_r[r];
        sum *= kr_exp((F)a_at(k, c.at, i / k.nm, h));
        for (int64_t j = 0; j < (i / k.nm + 1) * k.nm; j++) sum += w[j] * v_at(k, c.at, j, h)[p];
        if (k.d) sum += k.d[h] * v_at(k, c.at, i, h)[p];
        y[((c.at * k.nm + i) * k.nh + h) * k.np + p] = sum;
    }
}

template <typename F> size_t kr_ssd_naive_scratch(const kr_ssd_args *a)
{
    kr_ssd_dims d = kr_ssd_dims_of(a);
    kr_cuda_scratch m = { NULL, 0 };
    naive_core_of<F>(a, &d, &m, NULL);
    return m.used;
}

template <typename F> void kr_ssd_naive(const kr_ssd_args *a)
{
    cudaStream_t stream = (cudaStream_t)a->exec.stream;
    kr_ssd_dims d = kr_ssd_dims_of(a);
    kr_cuda_scratch m = { (char *)a->exec.scratch, 0 };
    naive_core<F> k = naive_core_of<F>(a, &d, &m, stream);
    naive_walk<F> w = { (const F *)a->initial,    (const F *)a->boundary, (const F *)a->boundary_v,
                        (const F *)a->boundary_b, (F *)a->final,          a->nq };
    const int64_t pairs = d.chunks * k.nf * k.nf;
    naive_states<<<naive_ctas(a->nq * k.nh * k.np * k.nr), NAIVE_THREADS, 0, stream>>>(k, w);
    naive_sums<<<naive_ctas(d.chunks * k.nh), NAIVE_THREADS, 0, stream>>>(k);
    naive_cb<<<naive_ctas(pairs * k.ng), NAIVE_THREADS, 0, stream>>>(k);
    naive_weights<<<naive_ctas(pairs * k.nh), NAIVE_THREADS, 0, stream>>>(k);
    naive_outputs<<<naive_ctas(d.chunks * k.nf * k.nh * k.np), NAIVE_THREADS, 0, stream>>>(k, (F *)a->y.data);
}

#define INSTANCE(F)                                                                                                    \
    template size_t kr_ssd_naive_scratch<F>(const kr_ssd_args *);                                                      \
    template void kr_ssd_naive<F>(const kr_ssd_args *);
INSTANCE(float)
INSTANCE(double)
