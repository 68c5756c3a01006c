/* conv.cuh - shared by the causal convolution and its gradients: the sequence of each token, and its inputs.
 *
 *   past(t, v) of a sequence is x at its token t, for t < 0 window[q, v, nk + t] (0 if there is no window)
 *
 * If every row is one sequence, which the host sees in the list, no lookup is needed. Otherwise a first kernel writes the
 * sequence of each token, so that the list, which is in pinned host memory, is read once.
 */
#ifndef KR_KERNELS_CUDA_OPS_CONV_CUH
#define KR_KERNELS_CUDA_OPS_CONV_CUH

#include "kernels/cuda/prim/silu.cuh"

/* Tokens processed at a time, tokens of a thread's ring (a power of two), and maximum of taps held in registers. */
enum { GROUP = 4, STAGES = 2 * GROUP, MAX_TAPS = 4 };

/* Tokens are numbered through all rows: b ns + s. */
typedef struct conv_sequences {
    int64_t nb, ns, nq;
    const int32_t *of_token;      /* [b s] its sequence, -1: none; NULL: sequence b is row b */
    const int64_t *starts, *ends; /* [q] */
} conv_sequences;

template <typename T> struct conv_input {
    conv_sequences at;
    int64_t nv, nk, x_batch, x_stride;
    const void *x;
    kr_dtype x_dtype;
    const T *weight, *bias, *window;
    bool aligned, silu, fast; /* aligned: 16-byte vectors of x's channels are allowed */
};

/* a: kr_conv_args or kr_conv_bwd_args. */
template <typename T, typename A> static conv_input<T> conv_input_of(const A *a, const conv_sequences &at)
{
    const int64_t n = kr_vec16<T>::N;
    conv_input<T> c = {};
    c.at = at, c.nv = a->nv, c.nk = a->nk;
    c.x = a->x.data, c.x_batch = a->x_batch, c.x_stride = a->x.row, c.x_dtype = a->x.dtype;
    c.weight = (const T *)a->weight, c.bias = (const T *)a->bias, c.window = (const T *)a->window;
    c.aligned = kr_is_aligned16(a->x.data) && a->x_batch % n == 0 && a->x.row % n == 0;
    c.silu = a->silu, c.fast = kr_is_fast<T>(&a->exec);
    return c;
}

static __device__ __forceinline__ int64_t conv_sequence(const conv_sequences &p, int64_t token)
{
    return p.of_token ? (int64_t)p.of_token[token] : token / p.ns;
}

static __device__ __forceinline__ int64_t conv_start(const conv_sequences &p, int64_t q)
{
    return p.of_token ? p.starts[q] : q * p.ns;
}

static __device__ __forceinline__ int64_t conv_end(const conv_sequences &p, int64_t q)
{
    return p.of_token ? p.ends[q] : (q + 1) * p.ns;
}

/* Offset of a token's channels in x. */
template <typename T> static __device__ __forceinline__ int64_t conv_token(const conv_input<T> &c, int64_t token)
{
    return token / c.at.ns * c.x_batch + token % c.at.ns * c.x_stride;
}

/* past(t, v .. ) of the sequence q that begins at token `start`; `left` channels from v on. */
template <typename T>
static __device__ __forceinline__ kr_vec16<T> conv_past(const conv_input<T> &c, int64_t q, int64_t start, int64_t t,
                                                        int64_t v, int64_t left)
{
    if (t >= 0) return kr_load_vec16_as<T>(c.x, conv_token(c, start + t) + v, c.x_dtype, left, c.aligned);
    kr_vec16<T> p;
#pragma unroll
    for (int e = 0; e < kr_vec16<T>::N; e++)
        p.v[e] = c.window && e < left ? c.window[(q * c.nv + v + e) * c.nk + c.nk + t] : (T)0;
    return p;
}

template <typename T>
static __device__ __forceinline__ T conv_past_one(const conv_input<T> &c, int64_t q, int64_t start, int64_t t,
                                                  int64_t v)
{
    if (t >= 0) return kr_element<T>(c.x, conv_token(c, start + t) + v, c.x_dtype);
    return c.window ? c.window[(q * c.nv + v) * c.nk + c.nk + t] : (T)0;
}

/* u at token s of the sequence. */
template <typename T>
static __device__ __forceinline__ T conv_sum_one(const conv_input<T> &c, int64_t q, int64_t start, int64_t s, int64_t v)
{
    T u = c.bias ? c.bias[v] : (T)0;
    for (int64_t j = 0; j < c.nk; j++) u += c.weight[v * c.nk + j] * conv_past_one(c, q, start, s - (c.nk - 1) + j, v);
    return u;
}

/* weight[v .., j] as vectors, one per tap. */
template <typename T, int NK>
static __device__ __forceinline__ void conv_weights(const conv_input<T> &c, int64_t v, int64_t left, kr_vec16<T> w[NK])
{
#pragma unroll
    for (int e = 0; e < kr_vec16<T>::N; e++)
#pragma unroll
        for (int j = 0; j < NK; j++) w[j].v[e] = e < left ? c.weight[(v + e) * NK + j] : (T)0;
}

/* ---- token to sequence map of packed rows ---- */

enum { MAP_THREADS = 128, MAP_WARPS = MAP_THREADS / 32 };

/* One warp per sequence: it labels its tokens, and those of no sequence after it (the first also before it) with -1. */
static __global__ void __launch_bounds__(MAP_THREADS)
    conv_map_kernel(const kr_sequence *sequences, conv_sequences p, int32_t *of_token, int64_t *starts, int64_t *ends)
{
    const int64_t q = (int64_t)blockIdx.x * MAP_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (q >= p.nq) return;
    const kr_sequence own = sequences[q];
    const int64_t start = own.row * p.ns + own.start, end = own.row * p.ns + own.end;
    int64_t next = p.nb * p.ns;
    if (q + 1 < p.nq) next = sequences[q + 1].row * p.ns + sequences[q + 1].start;
    if (lane == 0) starts[q] = start, ends[q] = end;
    for (int64_t t = lane; q == 0 && t < start; t += 32) of_token[t] = -1;
    for (int64_t t = start + lane; t < end; t += 32) of_token[t] = (int32_t)q;
    for (int64_t t = end + lane; t < next; t += 32) of_token[t] = -1;
}

static inline bool conv_rows_are_whole(const kr_sequence *sequences, int64_t nq, int64_t nb, int64_t ns)
{
    if (nq != nb) return false;
    for (int64_t q = 0; q < nq; q++)
        if (sequences[q].row != q || sequences[q].start != 0 || sequences[q].end != ns) return false;
    return true;
}

/* Bytes of the map, 0 if none is needed. */
static inline size_t conv_map_bytes(const kr_sequence *sequences, int64_t nq, int64_t nb, int64_t ns)
{
    if (conv_rows_are_whole(sequences, nq, nb, ns)) return 0;
    return 2 * kr_padded_bytes(nq * (int64_t)sizeof(int64_t)) + kr_padded_bytes(nb * ns * (int64_t)sizeof(int32_t));
}

/* Launches the kernel that writes the map; `memory` has conv_map_bytes. */
static inline conv_sequences conv_sequences_make(cudaStream_t stream, char *memory, const kr_sequence *sequences,
                                                 int64_t nq, int64_t nb, int64_t ns)
{
    conv_sequences p = { nb, ns, nq, NULL, NULL, NULL };
    if (conv_rows_are_whole(sequences, nq, nb, ns)) return p;
    const size_t list = kr_padded_bytes(nq * (int64_t)sizeof(int64_t));
    int64_t *starts = (int64_t *)(void *)memory, *ends = (int64_t *)(void *)(memory + list);
    int32_t *of_token = (int32_t *)(void *)(memory + 2 * list);
    p.of_token = of_token, p.starts = starts, p.ends = ends;
    if (nq == 0) cudaMemsetAsync(of_token, 0xff, (size_t)(nb * ns) * sizeof(int32_t), stream);
    else
        conv_map_kernel<<<(unsigned)kr_ceil_div(nq, MAP_WARPS), MAP_THREADS, 0, stream>>>(sequences, p, of_token,
                                                                                          starts, ends);
    return p;
}

#endif
