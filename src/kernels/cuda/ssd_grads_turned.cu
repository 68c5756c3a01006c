/* ssd_grads_turned.cu - ssd_grads_wgmma.cu's gradients where every head has B and C of its own: those of its group, turned by
 * the head's angles (ssd_turn.cuh). sm_90a.
 *
 * A block is a chunk and some heads of a group. Of each head: the second and third warpgroup turn B and C, while the first writes
 * out what they made of the head before and queues the loads of the next; it makes the pairs of rows and g_v; the second makes
 * g_C, the third g_B, turned back in registers and added to the sums over the heads. On the way, with (x y) = x0 y1 - x1 y0 of a pair:
 *
 *   g_angle_t = (C_t g_C_t) + (B_t g_B_t)                 of the turned B and C as they were rounded
 *   g_bias    = sum over the chunk's tokens of what was turned back
 *
 * An angle's own increment moves all later tokens: its gradient is the sum of g_angle over these, most of which cancels. That
 * sum is (G H) of the state before the token and its gradient, since turning all later tokens turns that state back. H and G
 * are rounded here, so that neighbouring chunks disagree about (G H) between them, and what they disagree about would add up
 * over the sequence. `edges` has both views, for ssd_turned_bwd.cu to mend:
 *
 *   first   e^a_end (G H) + sum of (C_t T_t)         (G H) before the chunk: of H rounded, T its part of g_C
 *   second  e^a_end (G H) - sum of (B_t U_t)         (G H) after it: of G rounded, U its part of g_B
 */
#include "kernels/cuda/ssd_grads_wgmma.cuh"
#include "kernels/cuda/ssd_turn.cuh"

/* Sums of columns of one head, by warp. */
template <int R> struct column_sums_of {
    float x[8][R / 2];        /* (G H) */
    float state[2][4][R / 2]; /* (C T), (B U) */
    float bias[2][4][R];      /* g_C, g_B turned back */
};

/* Shared memory in bytes: B and C as they came and, from `turned` on, the head's; two stages of a head's operands, its biases
 * and angles, which become (cos, sin); the gradient of B C^T; sums. */
template <int R> struct layout {
    static const int map = 64 * R * 2, turned = 2 * map, stages = 4 * map;
    static const int angles = stage_at<R>::bytes, bias = angles + map, stage = bias + 1024;
    static const int pairs = stages + 2 * stage, sum = pairs + P_TILE, columns = sum + (int)sizeof(head_sums);
    static const int bytes = columns + (int)sizeof(column_sums_of<R>) + 1024;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* By the first warpgroup. */
template <int R> static __device__ __forceinline__ void load_head(const kr_ssd_grads &o, const item &t, uint32_t stage)
{
    typedef layout<R> at;
    const int64_t token = 2 * o.nh * o.turn.na;
    const int thread = (int)threadIdx.x, of_c = thread / (R / 4), col = thread % (R / 4) * 4;
    const kr_rows angle = {
        (const kr_bf16 *)(o.turn.angle + (t.c.at * o.nh + t.x.h) * o.turn.na), token, 0, 1, 2 * o.turn.na, true
    };
    load_stage<R, 128, 0>(o, 1, t, stage);
    kr_load_rows<R, 128>(stage + at::angles, angle, t.c.nt, thread);
    if (of_c > 1) return;
    const float *bias = of_c ? o.turn.bias_c : o.turn.bias_b;
    const bool some = bias && col < o.nr;
    const uint32_t to = (uint32_t)(of_c * kr_turn_bias<R>::bytes + col / 4 % 2 * kr_turn_bias<R>::other + col / 8 * 16);
    kr_copy_async16(stage + at::bias + to, some ? bias + t.x.h * o.nr + col : o.turn.angle, some ? 16 : 0);
}

static __device__ __forceinline__ uint32_t pack_turn(float2 by)
{
    const __half2 x = __floats2half2_rn(by.x, by.y);
    return *(const uint32_t *)&x;
}

/* The head's B and C, and (cos, sin) in the place of its angles. All is asked for before the first is used. */
template <int R> static __device__ __forceinline__ void turn_maps(const kr_ssd_place &c, uint32_t base, uint32_t stage)
{
    typedef layout<R> at;
    typedef kr_turn_place<R, LOADERS> mine;
    const int thread = (int)threadIdx.x - 128, unit = thread % mine::units, first = thread / mine::units;
    const uint32_t maps = base + kr_unit_at<R, true>(first, unit),
                   angles = stage + at::angles + kr_tile_at<R>(first, unit);
    const uint32_t line = mine::step * 128, angle_line = mine::step * R * 2; /* rows of a lane agree in the swizzle */
    uint4 a[mine::rows], b[mine::rows], of_c[mine::rows];
#pragma unroll
    for (int k = 0; k < mine::rows; k++) {
        a[k] = kr_load_shared16(angles + k * angle_line);
        b[k] = kr_load_shared16(maps + k * line);
        of_c[k] = kr_load_shared16(maps + at::map + k * line);
    }
    const kr_turn_row bias_b = kr_turn_bias_of<R>(stage + at::bias + unit * 16);
    const kr_turn_row bias_c = kr_turn_bias_of<R>(stage + at::bias + kr_turn_bias<R>::bytes + unit * 16);
#pragma unroll
    for (int k = 0; k < mine::rows; k++) {
        const uint32_t to = maps + at::turned + k * line;
        const float2 by[4] = { kr_turn_by(__uint_as_float(a[k].x)), kr_turn_by(__uint_as_float(a[k].y)),
                               kr_turn_by(__uint_as_float(a[k].z)), kr_turn_by(__uint_as_float(a[k].w)) };
        const uint32_t packed[4] = { pack_turn(by[0]), pack_turn(by[1]), pack_turn(by[2]), pack_turn(by[3]) };
        kr_store_shared16(angles + k * angle_line, packed);
        if (first + k * mine::step < c.nt) {
            kr_turn_unit(to, b[k], bias_b, by);
            kr_turn_unit(to + at::map, of_c[k], bias_c, by);
        } else {
            const uint32_t none[4] = { 0, 0, 0, 0 };
            kr_store_shared16(to, none);
            kr_store_shared16(to + at::map, none);
        }
    }
    kr_wg_publish();
}

/* ---- the first warpgroup ---- */

/* Of s, V g_y^T: W^T, as an operand; g_v = B G^T; the gradient of B C^T goes to its tile. */
template <int R>
static __device__ __forceinline__ void head_pairs(const kr_ssd_grads &o, const item &t, float s[8][4],
                                                  uint32_t to[4][4], float g_v[8][4], uint32_t base, uint32_t stage,
                                                  const float *f, head_sums *sum, const place &w)
{
    typedef layout<R> at;
    const uint32_t b = base + at::turned;
    float bc[8][4], g_bc[8][4];
    kr_wg_begin();
    multiply_rows<R>(bc, b, b + at::map);
    kr_wg_commit();
    kr_wg_wait<0>();
    kr_wg_hold<8>(bc);
    clear<8>(g_bc);
    all_pairs(s, bc, g_bc, f, w, 1, o.d ? o.d[t.x.h] : 0.0f, sum);
    kr_wg_begin();
    multiply_rows<R>(g_v, b, stage + stage_at<R>::g);
    kr_wg_commit();
    put_pairs(g_bc, base + at::pairs, w);
#pragma unroll
    for (int k = 0; k < 4; k++) kr_pack_a(to[k], s[2 * k], s[2 * k + 1]);
    kr_wg_wait<0>();
    kr_wg_hold<8>(g_v);
}

/* g_v = STAY g_v + W^T g_y. V's place takes it on its way out. */
template <int R>
static __device__ __forceinline__ void head_values(const kr_ssd_grads &o, const item &t, const uint32_t a[4][4],
                                                   float g_v[8][4], uint32_t stage, const float *f, const place &w)
{
    const float near = f[KR_SSD_STAY * 64 + w.row], far = f[KR_SSD_STAY * 64 + w.row + 8];
#pragma unroll
    for (int c = 0; c < 8; c++) g_v[c][0] *= near, g_v[c][1] *= near, g_v[c][2] *= far, g_v[c][3] *= far;
    kr_wg_hold<8>(g_v);
    kr_wg_begin();
#pragma unroll
    for (int k = 0; k < 4; k++) kr_wg_64_rs(g_v, a[k], kr_wg_n_last(stage + stage_at<R>::g_y, k * 16));
    kr_wg_commit();
    kr_wg_wait<0>();
    kr_wg_hold<8>(g_v);
    store_v(o, t, 1, g_v, stage, w);
}

/* Both views of (G H), by 64 threads, a pair each. */
template <int R>
static __device__ __forceinline__ void put_edges(const kr_ssd_grads &o, const item &t, const column_sums_of<R> *columns,
                                                 const float *f, int pair)
{
    if (pair >= o.turn.na) return;
    float x = 0, of_c = 0, of_b = 0;
#pragma unroll
    for (int k = 0; k < 8; k++) x += columns->x[k][pair];
#pragma unroll
    for (int k = 0; k < 4; k++) of_c += columns->state[0][k][pair], of_b += columns->state[1][k][pair];
    x *= kr_exp2(f[KR_SSD_A2 * 64 + 63]);
    float *to = o.edges + (t.n * o.nh + t.x.h) * 2 * o.turn.na + pair;
    to[0] = x + of_c;
    to[o.turn.na] = x - of_b;
}

/* ---- the others ---- */

/* <G, H> of the thread's part, and (G H) of the warp's. */
template <int R>
static __device__ __forceinline__ float multiply_states(uint32_t g, uint32_t h, column_sums_of<R> *columns)
{
    typedef kr_turn_place<R, LOADERS> mine;
    const int thread = (int)threadIdx.x - 128, unit = thread % mine::units, first = thread / mine::units;
    float dot = 0, cross[4] = { 0, 0, 0, 0 };
#pragma unroll
    for (int k = 0; k < mine::rows; k++) {
        const uint32_t at = kr_unit_at<R, true>(first + k * mine::step, unit);
        const uint4 x = kr_load_shared16(g + at), y = kr_load_shared16(h + at);
        const uint32_t a[4] = { x.x, x.y, x.z, x.w }, b[4] = { y.x, y.y, y.z, y.w };
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 p = kr_unpack(a[i]), q = kr_unpack(b[i]);
            dot += p.x * q.x + p.y * q.y;
            cross[i] += p.x * q.y - p.y * q.x;
        }
    }
    const int lane = thread & 31;
    float *to = columns->x[thread / 32] + unit * 4;
    fold<2, 16>(cross);
    if (R == 128) {
        *(float2 *)(to + (lane >> 4) * 2) = make_float2(cross[0], cross[1]);
    } else {
        fold<1, 8>(cross);
        to[(lane >> 4) * 2 + (lane >> 3 & 1)] = cross[0];
    }
    return dot;
}

/* acc = T or, with of_b, U of a head, with its factors; and its sums. */
template <int R>
static __device__ __forceinline__ void head_states(float acc[R / 8][4], bool of_b, uint32_t maps, uint32_t stage,
                                                   const float *f, head_sums *to, column_sums_of<R> *columns,
                                                   const place &w)
{
    typedef stage_at<R> at;
    const float *from = f + (of_b ? KR_SSD_STAY : KR_SSD_ENTER) * 64 + w.row;
    const float *out = f + (of_b ? KR_SSD_LEAVE : KR_SSD_ENTER) * 64 + w.row;
    const float by[2] = { from[0], from[8] };
    float dots[2] = { 0, 0 };
    multiply<R>(acc, of_b ? stage : stage + at::g_y, stage + (of_b ? at::g : at::h), false);
#pragma unroll
    for (int c0 = 0; c0 < R / 8; c0 += 8) {
        float cross[8];
#pragma unroll
        for (int c = c0; c < c0 + 8; c++) {
            cross[c - c0] = 0;
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const float2 y = kr_unpack(
                    kr_load_shared4(maps + c / 8 * KR_WG_PANEL + kr_tile_at<64>(w.row + 8 * k, c % 8) + w.col * 2));
                dots[k] += acc[c][2 * k] * y.x + acc[c][2 * k + 1] * y.y;
                acc[c][2 * k] *= by[k], acc[c][2 * k + 1] *= by[k];
                cross[c - c0] += y.x * acc[c][2 * k + 1] - y.y * acc[c][2 * k];
            }
        }
        fold<4, 16>(cross);
        fold<2, 8>(cross);
        fold<1, 4>(cross);
        columns->state[of_b][w.warp][(c0 + (w.lane >> 2)) * 4 + (w.lane & 3)] = cross[0];
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const float dot = kr_quad_sum(dots[k]);
        if (w.col == 0) (of_b ? to->u : to->t)[0][w.row + 8 * k] = out[8 * k] * dot;
    }
    const float gh = kr_warp_sum(multiply_states<R>(stage + at::g, stage + at::h, columns));
    if (w.lane == 0) to->gh[threadIdx.x / 32 - 4] = gh;
}

/* acc, g_C or g_B of the head, is turned back and added to `sum`; its part of g_angle goes to H's or G's place. */
template <int R>
static __device__ __forceinline__ void turn_back(float sum[R / 8][4], float acc[R / 8][4], bool of_b, uint32_t maps,
                                                 uint32_t stage, const place &w)
{
    const uint32_t angles = stage + layout<R>::angles + (w.lane & 3) * 4;
    const uint32_t to = stage + (of_b ? stage_at<R>::g : stage_at<R>::h) + (w.lane & 3) * 4;
#pragma unroll
    for (int c0 = 0; c0 < R / 8; c0 += 2) {
        uint32_t turn[4], pair[4]; /* two columns of units, two rows: all are asked for before the first is used */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int c = c0 + i / 2, row = w.row + 8 * (i & 1);
            turn[i] = kr_load_shared4(angles + kr_tile_at<R>(row, c));
            pair[i] = kr_load_shared4(maps + c / 8 * KR_WG_PANEL + kr_tile_at<64>(row, c % 8) + w.col * 2);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int c = c0 + i / 2, k = i & 1;
            const float2 by = __half22float2(*(const __half2 *)&turn[i]), y = kr_unpack(pair[i]);
            const float g0 = acc[c][2 * k], g1 = acc[c][2 * k + 1];
            kr_store_shared4(to + kr_tile_at<R>(w.row + 8 * k, c), __float_as_uint(y.x * g1 - y.y * g0));
            acc[c][2 * k] = g0 * by.x + g1 * by.y;
            acc[c][2 * k + 1] = g1 * by.x - g0 * by.y;
            sum[c][2 * k] += acc[c][2 * k];
            sum[c][2 * k + 1] += acc[c][2 * k + 1];
        }
    }
}

/* Sums of the columns of acc over the warp's rows. */
template <int R> static __device__ __forceinline__ void put_bias(const float acc[R / 8][4], float *to, const place &w)
{
#pragma unroll
    for (int c0 = 0; c0 < R / 8; c0 += 8) {
        float x[16];
#pragma unroll
        for (int i = 0; i < 16; i++) x[i] = acc[c0 + i / 2][i & 1] + acc[c0 + i / 2][2 + (i & 1)];
        column_sums(x);
        *(float2 *)(to + (c0 + (w.lane >> 2)) * 8 + w.col) = make_float2(x[0], x[1]);
    }
}

/* ---- the walk over a block's heads ---- */

/* g_angle and g_bias of a head that the others are done with, by the first warpgroup. */
template <int R>
static __device__ __forceinline__ void put_head(const kr_ssd_grads &o, const item &t, uint32_t stage,
                                                const column_sums_of<R> *columns)
{
    typedef kr_turn_place<R, 128> mine;
    const int thread = (int)threadIdx.x, unit = thread % mine::units, first = thread / mine::units;
    float *g_angle = o.g_angle + (t.c.at * o.nh + t.x.h) * o.turn.na + unit * 4;
#pragma unroll
    for (int k = 0; k < mine::rows; k++) {
        const int row = first + k * mine::step;
        if (!o.g_angle || row >= t.c.nt || unit * 4 >= o.turn.na) continue;
        const uint32_t place = stage + kr_tile_at<R>(row, unit);
        const uint4 x = kr_load_shared16(place + stage_at<R>::h), y = kr_load_shared16(place + stage_at<R>::g);
        __stcs((float4 *)(g_angle + row * o.nh * o.turn.na),
               make_float4(__uint_as_float(x.x) + __uint_as_float(y.x), __uint_as_float(x.y) + __uint_as_float(y.y),
                           __uint_as_float(x.z) + __uint_as_float(y.z), __uint_as_float(x.w) + __uint_as_float(y.w)));
    }
    if (thread >= o.nr) return;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float(*bias)[R] = columns->bias[1 - i];
        o.part_bias[i][(t.n * o.nh + t.x.h) * o.nr + thread] =
            bias[0][thread] + bias[1][thread] + bias[2][thread] + bias[3][thread];
    }
}

/* Where a block is: head j of its share. */
static __device__ __forceinline__ item item_at(const kr_ssd_grads &o, const share &b, const kr_ssd_place &c, int j)
{
    const item t = { b.n, c, head_at(o, b.e, b.first + j) };
    return t;
}

/* The first warpgroup's part of head j. */
template <int R>
static __device__ __forceinline__ void do_values(const kr_ssd_grads &o, const share &b, const kr_ssd_place &c, int j,
                                                 char *shared, const place &w)
{
    typedef layout<R> at;
    const uint32_t base = kr_shared_address(shared);
    const int slot = at::stages + (j & 1) * at::stage, other = at::stages + (~j & 1) * at::stage;
    const uint32_t stage = base + slot;
    const float *f = (const float *)(shared + slot + stage_at<R>::factors);
    head_sums *sums = (head_sums *)(shared + at::sum);
    column_sums_of<R> *columns = (column_sums_of<R> *)(shared + at::columns);
    const item t = item_at(o, b, c, j);
    float s[8][4], g_v[8][4];
    uint32_t w_t[4][4];
    if (j > 0) put_head<R>(o, item_at(o, b, c, j - 1), base + other, columns);
    asm volatile("bar.sync 1, 128;" ::: "memory"); /* what lay in the other stage has been read */
    if (j + 1 < b.heads) load_head<R>(o, item_at(o, b, c, j + 1), base + other);
    kr_copy_commit();
    kr_wg_begin();
    multiply_rows<64>(s, stage, stage + stage_at<R>::g_y);
    kr_wg_commit();
    kr_wg_wait<0>();
    kr_wg_hold<8>(s);
    __syncthreads();
    head_pairs<R>(o, t, s, w_t, g_v, base, stage, f, sums, w);
    __syncthreads();
    if (o.g_v) head_values<R>(o, t, w_t, g_v, stage, f, w);
    if (w.warp == 0) grad_scalars(o, t.n, t.c, t.x, sums);
    if (w.warp >= 2) put_edges<R>(o, t, columns, f, (int)threadIdx.x - 64);
}

/* The others' part; sum: of g_C or g_B over the heads. */
template <int R>
static __device__ __forceinline__ void do_maps(const kr_ssd_grads &o, const share &b, const kr_ssd_place &c, int j,
                                               char *shared, float sum[R / 8][4], bool of_b, const place &w)
{
    typedef layout<R> at;
    const uint32_t base = kr_shared_address(shared);
    const int slot = at::stages + (j & 1) * at::stage;
    const uint32_t stage = base + slot, maps = base + at::turned + (of_b ? 0 : at::map);
    const float *f = (const float *)(shared + slot + stage_at<R>::factors);
    column_sums_of<R> *columns = (column_sums_of<R> *)(shared + at::columns);
    float acc[R / 8][4];
    turn_maps<R>(c, base, stage);
    __syncthreads();
    head_states<R>(acc, of_b, maps, stage, f, (head_sums *)(shared + at::sum), columns, w);
    __syncthreads();
    add_maps<R>(acc, of_b, base + at::turned, base + at::pairs);
    turn_back<R>(sum, acc, of_b, maps, stage, w);
    put_bias<R>(acc, columns->bias[of_b][w.warp], w);
}

template <int R> static __device__ __forceinline__ void run(const kr_ssd_grads &o, char *shared, const place &w)
{
    typedef layout<R> at;
    const int group = __shfl_sync(~0u, (int)threadIdx.x / 128, 0); /* so known to be one in a warp */
    const uint32_t base = kr_shared_address(shared);
    const share b = share_of(o);
    const kr_ssd_place c = kr_ssd_place_of(o.map, b.n);
    float sum[R / 8][4];
    clear<R / 8>(sum);
    if (group == 0) {
        load_maps<R, 128, 0>(o, 1, c, b.e, base);
        load_head<R>(o, item_at(o, b, c, 0), base + at::stages);
        kr_copy_commit();
    }
    for (int j = 0; j < b.heads; j++) {
        kr_copy_wait<0>();
        kr_wg_publish();
        __syncthreads();
        if (group == 0) do_values<R>(o, b, c, j, shared, w);
        else do_maps<R>(o, b, c, j, shared, sum, group == 2, w);
    }
    __syncthreads();
    const item last = item_at(o, b, c, b.heads - 1);
    if (group == 0) {
        put_head<R>(o, last, base + at::stages + (uint32_t)(~b.heads & 1) * at::stage,
                    (column_sums_of<R> *)(shared + at::columns));
        return;
    }
    void *to = group == 2 ? o.g_b : o.g_c;
    float *parts = group == 2 ? o.part_b : o.part_c;
    if (to) store_maps<R>(o, last, b.e, sum, w, to, parts ? parts + b.part : NULL);
}

#endif

template <int R>
static __global__ void __launch_bounds__(THREADS, 1) grads_turned(const __grid_constant__ kr_ssd_grads o)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) char unaligned[];
    const uint32_t skip = (1024 - kr_shared_address(unaligned) % 1024) % 1024;
    place w;
    w.warp = (int)(threadIdx.x / 32) & 3, w.lane = (int)threadIdx.x & 31;
    w.row = w.warp * 16 + w.lane / 4, w.col = (w.lane & 3) * 2;
    run<R>(o, unaligned + skip, w);
#endif
}

template <int R> static void launch(const kr_ssd_grads *o, const kr_ssd_dims *d, cudaStream_t stream)
{
    const int bytes = layout<R>::bytes;
    cudaFuncSetAttribute(grads_turned<R>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    dim3 grid((unsigned)d->chunks, (unsigned)(d->ng * ((o->heads_of_group + o->block - 1) / o->block)));
    grads_turned<R><<<grid, THREADS, bytes, stream>>>(*o);
}

void kr_ssd_grads_turned(const kr_ssd_grads *o, const kr_ssd_dims *d, cudaStream_t stream)
{
    if (d->chunks == 0 || d->heads == 0) return;
    if (d->r_line == 64) launch<64>(o, d, stream);
    else launch<128>(o, d, stream);
}
