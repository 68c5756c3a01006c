/* ssd_grads_turned.cu - ssd_grads_wgmma.cu's gradients where every head has B and C of its own: those of its group,
 * turned by the head's angles (ssd_turn.cuh). sm_90a.
 *
 * A block is a chunk and some heads of a group. Its four warpgroups have parts of a head that take about the same time:
 *
 *   first: pairs of rows          second: g_C, third: g_B             fourth: all that is no product
 *   ---------------------------------------------------------- all meet: the head's operands have come
 *   S = V g_y^T, its fades,       queue T or U; turn B and C          queues the loads of the next head, writes
 *   the gradient of B C^T                                             out the one before; <G, H>
 *   ------------------------------------------- these three meet
 *   B C^T, W^T, sums, B G^T       sums of T or U; add the pairs' part
 *   ---------------------------------------------------------- all meet: H, G and V are not needed any more
 *   g_v                           turn back, sums over the heads      scalars, edges
 *
 * On the way, with (x y) = x0 y1 - x1 y0 of a pair:
 *
 *   g_angle_t = (C_t g_C_t) + (B_t g_B_t)                 of the turned B and C as they were rounded
 *   g_bias    = sum over the chunk's tokens of what was turned back
 *
 * An angle's own increment moves all later tokens: its gradient is the sum of g_angle over these, most of which
 * cancels. That sum is (G H) of the state before the token and its gradient, since turning all later tokens turns that
 * state back. H and G are rounded here, so that neighbouring chunks disagree about (G H) between them, and what they
 * disagree about would add up over the sequence. `edges` has both views, for ssd_turned_bwd.cu to mend:
 *
 *   first   e^a_end (G H) + sum of (C_t T_t)         (G H) before the chunk: of H rounded, T its part of g_C
 *   second  e^a_end (G H) - sum of (B_t U_t)         (G H) after it: of G rounded, U its part of g_B
 */
#include "kernels/cuda/ssd_grads_turned.cuh"

enum { THREADS = 512, OTHER = 384 }; /* threads, and the first of the fourth warpgroup */

/* Of a thread, by warpgroup: each begins with 128. */
enum { REGISTERS_OF_VALUES = 128, REGISTERS_OF_MAPS = 160, REGISTERS_OF_OTHER = 64 };
static_assert(REGISTERS_OF_VALUES + 2 * REGISTERS_OF_MAPS + REGISTERS_OF_OTHER == 4 * 128, "no more than there are");

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* ---- turning: by the second and the third ---- */

static __device__ __forceinline__ uint32_t pack_turn(float2 by)
{
    const __half2 x = __floats2half2_rn(by.x, by.y);
    return *(const uint32_t *)&x;
}

/* A unit of B or C whose pairs do not turn. */
static __device__ __forceinline__ void shift_unit(uint32_t to, uint4 raw, const kr_turn_row &bias)
{
    const uint32_t word[4] = { raw.x, raw.y, raw.z, raw.w };
    uint32_t y[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 u = kr_unpack(word[i]);
        y[i] = kr_pair_of(u.x + bias.x[2 * i], u.y + bias.x[2 * i + 1]);
    }
    kr_store_shared16(to, y);
}

/* A unit of the head's B and C, and (cos, sin) in the place of its angles; place: of the unit in a tile. Pairs of panels
 * that are not `turned` have no angles. */
template <int R>
static __device__ __forceinline__ void turn_unit(const spot &s, uint32_t place, uint32_t bias, bool inside, bool turned)
{
    typedef layout<R> at;
    const uint32_t from = s.base + place, to = from + at::turned, angles = s.stage + at::angles + place;
    if (!inside) {
        const uint32_t none[4] = { 0, 0, 0, 0 };
        kr_store_shared16(angles, none);
        kr_store_shared16(to, none);
        kr_store_shared16(to + at::map, none);
    } else if (turned) {
        const uint4 a = kr_load_shared16(angles), b = kr_load_shared16(from), c = kr_load_shared16(from + at::map);
        const float2 by[4] = { kr_turn_by(__uint_as_float(a.x)), kr_turn_by(__uint_as_float(a.y)),
                               kr_turn_by(__uint_as_float(a.z)), kr_turn_by(__uint_as_float(a.w)) };
        const uint32_t packed[4] = { pack_turn(by[0]), pack_turn(by[1]), pack_turn(by[2]), pack_turn(by[3]) };
        kr_store_shared16(angles, packed);
        kr_turn_unit(to, b, kr_turn_bias_of<R>(bias), by);
        kr_turn_unit(to + at::map, c, kr_turn_bias_of<R>(bias + kr_turn_bias<R>::bytes), by);
    } else {
        const uint4 b = kr_load_shared16(from), c = kr_load_shared16(from + at::map);
        shift_unit(to, b, kr_turn_bias_of<R>(bias));
        shift_unit(to + at::map, c, kr_turn_bias_of<R>(bias + kr_turn_bias<R>::bytes));
    }
}

/* 32 rows of the head's B and C from row0 on. One loop with one copy: see ssd_grads_wgmma.cu. */
template <int R>
static __device__ __forceinline__ void turn_maps(const kr_ssd_place &c, const spot &s, int row0, int panels)
{
    const int thread = thread_now(), unit = thread % 8, first = row0 + thread / 8;
    const uint32_t place = kr_tile_at<64>(first, unit), bias = s.stage + layout<R>::bias + unit * 16;
#pragma unroll 1
    for (int i = 0; i < R / 32; i++) {
        const int panel = i / 2, down = i % 2 * 16; /* rows of a lane agree in the swizzle */
        turn_unit<R>(s, place + panel * KR_WG_PANEL + down * 128, bias + panel * 128, first + down < c.nt,
                     panel < panels);
    }
    kr_wg_publish();
}

/* ---- the second and third ---- */

/* acc, T or, with of_b, U of a head, times its factors; and its sums. maps: C or B. */
template <int R>
static __device__ __forceinline__ void sum_states(float acc[R / 8][4], bool of_b, int panels, uint32_t maps,
                                                  const spot &s, const place &w)
{
    turned_sums *to = sums_at<R>(s);
    const float *from = s.f + (of_b ? KR_SSD_STAY : KR_SSD_ENTER) * 64 + w.row;
    const float *out = s.f + (of_b ? KR_SSD_LEAVE : KR_SSD_ENTER) * 64 + w.row;
    const float by[2] = { from[0], from[8] };
    float dots[2] = { 0, 0 };
    const uint32_t mine = maps + lane_at(w);
#pragma unroll
    for (int p = 0; p < R / 64; p++) {
        float cross[8];
#pragma unroll
        for (int unit = 0; unit < 8; unit++) {
            const int c = p * 8 + unit;
            const uint32_t place = (mine ^ (uint32_t)(unit << 4)) + p * KR_WG_PANEL;
            const uint32_t pair[2] = { kr_load_shared4(place), kr_load_shared4(place + 1024) };
            cross[unit] = 0;
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const float2 y = kr_unpack(pair[k]);
                dots[k] = fmaf(acc[c][2 * k], y.x, fmaf(acc[c][2 * k + 1], y.y, dots[k]));
                acc[c][2 * k] *= by[k], acc[c][2 * k + 1] *= by[k];
                cross[unit] = fmaf(y.x, acc[c][2 * k + 1], fmaf(-y.y, acc[c][2 * k], cross[unit]));
            }
        }
        if (p > 0 && p >= panels) continue;
        fold<4, 16>(cross, w.lane);
        fold<2, 8>(cross, w.lane);
        fold<1, 4>(cross, w.lane);
        columns_at<R>(s)->state[of_b][w.warp][(p * 8 + (w.lane >> 2)) * 4 + (w.lane & 3)] = cross[0];
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const float dot = kr_quad_sum(dots[k]);
        if (w.col == 0) (of_b ? to->u : to->t)[0][w.row + 8 * k] = out[8 * k] * dot;
    }
}

/* Where the thread's sums lie that have no registers. */
template <int R> static __device__ __forceinline__ float4 *kept_at(char *shared, bool of_b, int panel)
{
    return (float4 *)(shared + layout<R>::kept) + panel * 256 + of_b * 128 + thread_now();
}

template <int R>
static __device__ __forceinline__ void take_kept(float sum[R / 8][4], char *shared, bool of_b, int panel)
{
    const float4 x = *kept_at<R>(shared, of_b, panel);
    float *to = sum[panel * 8 + 7];
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}

template <int R>
static __device__ __forceinline__ void put_kept(const float sum[R / 8][4], char *shared, bool of_b, int panel)
{
    const float *x = sum[panel * 8 + 7];
    *kept_at<R>(shared, of_b, panel) = make_float4(x[0], x[1], x[2], x[3]);
}

/* x, two neighbours of row k of the lane's two, joins the sums: over the heads, and over the rows in acc[0 1]. */
static __device__ __forceinline__ void add_back(float sum[4], float acc[4], int k, float x0, float x1)
{
    sum[2 * k] += x0, sum[2 * k + 1] += x1;
    acc[0] = k ? acc[0] + x0 : x0, acc[1] = k ? acc[1] + x1 : x1;
}

/* Two units of a panel of acc, g_C or g_B of the head, are turned back. Their part of g_angle goes to H's or G's place,
 * `to` bytes on. place: of the first of the lane's rows of each. */
static __device__ __forceinline__ void turn_units_back(float sum[2][4], float acc[2][4], const uint32_t place[2],
                                                       uint32_t angles, uint32_t to)
{
    uint32_t turn[4], pair[4]; /* all are asked for before the first is used */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        pair[i] = kr_load_shared4(place[i / 2] + i % 2 * 1024);
        turn[i] = kr_load_shared4(place[i / 2] + i % 2 * 1024 + angles);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int c = i / 2, k = i % 2;
        const float2 by = __half22float2(*(const __half2 *)&turn[i]), y = kr_unpack(pair[i]);
        const float g0 = acc[c][2 * k], g1 = acc[c][2 * k + 1];
        kr_store_shared4(place[c] + k * 1024 + to, __float_as_uint(y.x * g1 - y.y * g0));
        add_back(sum[c], acc[c], k, g0 * by.x + g1 * by.y, g1 * by.x - g0 * by.y);
    }
}

/* All of acc is turned back and added to `sum`; acc[..][0 1]: the sums of the lane's two rows. */
template <int R>
static __device__ __forceinline__ void turn_back(float sum[R / 8][4], float acc[R / 8][4], bool of_b, int panels,
                                                 uint32_t maps, const spot &s, const place &w)
{
    const uint32_t mine = maps + lane_at(w), angles = s.stage + layout<R>::angles - maps;
    const uint32_t to = s.stage + (of_b ? stage_at<R>::g : stage_at<R>::h) - maps;
#pragma unroll
    for (int p = 0; p < R / 64; p++) {
        const bool turned = p == 0 || p < panels;
#pragma unroll
        for (int unit = 0; unit < 8; unit += 2) {
            const int c = p * 8 + unit;
            const uint32_t place[2] = { (mine ^ (uint32_t)(unit << 4)) + p * KR_WG_PANEL,
                                        (mine ^ (uint32_t)(unit + 1 << 4)) + p * KR_WG_PANEL };
            if (unit == 6) take_kept<R>(sum, s.shared, of_b, p);
            if (turned) {
                turn_units_back(sum + c, acc + c, place, angles, to);
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    add_back(sum[c + i / 2], acc[c + i / 2], i % 2, acc[c + i / 2][i % 2 * 2],
                             acc[c + i / 2][i % 2 * 2 + 1]);
            }
            if (unit == 6) put_kept<R>(sum, s.shared, of_b, p);
        }
    }
}

/* Sums of columns over the warp's rows, out of turn_back's. */
template <int R> static __device__ __forceinline__ void put_bias(const float acc[R / 8][4], float *to, const place &w)
{
#pragma unroll
    for (int c0 = 0; c0 < R / 8; c0 += 8) {
        float x[16];
#pragma unroll
        for (int i = 0; i < 16; i++) x[i] = acc[c0 + i / 2][i & 1];
        column_sums(x, w.lane);
        *(float2 *)(to + (c0 + (w.lane >> 2)) * 8 + w.col) = make_float2(x[0], x[1]);
    }
}

/* sum: of g_C or g_B over the heads; panels: those with turned pairs. */
template <int R>
static __device__ __forceinline__ void do_maps(const kr_ssd_place &c, const spot &s, float sum[R / 8][4], bool of_b,
                                               int panels, const place &w)
{
    typedef layout<R> at;
    const uint32_t maps = s.base + at::turned + (of_b ? 0 : at::map);
    const uint32_t x = of_b ? s.stage : s.stage + stage_at<R>::g_y;
    const uint32_t m = s.stage + (of_b ? stage_at<R>::g : stage_at<R>::h);
    float acc[R / 8][4];
    kr_wg_begin();
#pragma unroll
    for (int k = 0; k < 64; k += 16) kr_wg_product<R, 0, 1>::run(acc, kr_wg_k_last(x, k), kr_wg_n_last(m, k), k > 0);
    kr_wg_commit();
    turn_maps<R>(c, s, of_b ? 32 : 0, panels);
    kr_wg_wait<0>();
    kr_wg_hold<R / 8>(acc);
    meet_to_add();
    sum_states<R>(acc, of_b, panels, maps, s, w);
    add_maps<R>(acc, of_b, s.base + at::turned, s.base + at::pairs);
    __syncthreads();
    turn_back<R>(sum, acc, of_b, panels, maps, s, w);
    put_bias<R>(acc, columns_at<R>(s)->bias[of_b][w.warp], w);
}

/* ---- the fourth ---- */

/* A head's angles; zeros past them. */
template <int R> static __device__ __forceinline__ void load_angles(const kr_ssd_grads &o, const item &t, uint32_t to)
{
    typedef kr_turn_place<R, 128> mine;
    const int thread = thread_now(), unit = thread % mine::units, first = thread / mine::units;
    const int bytes = unit * 4 < o.turn.na ? 16 : 0;
    const int64_t token = o.nh * o.turn.na, step = mine::step * token;
    const float *from = o.turn.angle + (t.c.at * o.nh + t.x.h) * o.turn.na;
    to += kr_unit_at<R, true>(first, unit);
    if (__builtin_expect(t.c.nt == 64, 1)) {
        from += bytes ? first * token + unit * 4 : 0;
#pragma unroll
        for (int k = 0; k < mine::rows; k++, from += step) kr_copy_async16(to + k * mine::step * 128, from, bytes);
        return;
    }
#pragma unroll 1
    for (int k = 0; k < mine::rows; k++) {
        const bool some = bytes && first + k * mine::step < t.c.nt;
        kr_copy_async16(to + (uint32_t)k * mine::step * 128, some ? from + first * token + unit * 4 + k * step : from,
                        some ? 16 : 0);
    }
}

/* What of a head's operands lies where nothing waits to be written out. */
template <int R> static __device__ __forceinline__ void load_head(const kr_ssd_grads &o, const item &t, uint32_t stage)
{
    typedef layout<R> at;
    const int thread = thread_now(), of_c = thread / (R / 4), col = thread % (R / 4) * 4;
    load_values<R, 128, OTHER>(o, 1, t, stage);
    load_angles<R>(o, t, stage + at::angles);
    if (of_c > 1) return;
    const float *bias = of_c ? o.turn.bias_c : o.turn.bias_b;
    const bool some = bias && col < o.nr;
    const uint32_t to = (uint32_t)(of_c * kr_turn_bias<R>::bytes + col / 4 % 2 * kr_turn_bias<R>::other + col / 8 * 16);
    kr_copy_async16(stage + at::bias + to, some ? bias + t.x.h * o.nr + col : o.turn.angle, some ? 16 : 0);
}

/* g_angle and g_bias of a head that the others are done with. */
template <int R> static __device__ __forceinline__ void put_head(const kr_ssd_grads &o, const item &t, const spot &s)
{
    typedef kr_turn_place<R, 128> mine;
    const int thread = thread_now(), unit = thread % mine::units, first = thread / mine::units;
    const int64_t step = mine::step * o.nh * o.turn.na;
    const uint32_t from = s.stage + kr_unit_at<R, true>(first, unit);
    if (thread < o.nr)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float(*bias)[R] = columns_at<R>(s)->bias[1 - i];
            o.part_bias[i][(t.n * o.nh + t.x.h) * o.nr + thread] =
                bias[0][thread] + bias[1][thread] + bias[2][thread] + bias[3][thread];
        }
    if (!o.g_angle || unit * 4 >= o.turn.na) return;
    float *g_angle = o.g_angle + ((t.c.at + first) * o.nh + t.x.h) * o.turn.na + unit * 4;
#pragma unroll 1
    for (int k0 = 0; k0 < mine::rows; k0 += 4) {
        uint4 x[4], y[4]; /* all are asked for before the first is used */
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t place = from + (uint32_t)(k0 + k) * mine::step * 128;
            x[k] = kr_load_shared16(place + stage_at<R>::h), y[k] = kr_load_shared16(place + stage_at<R>::g);
        }
#pragma unroll
        for (int k = 0; k < 4; k++, g_angle += step) {
            const float4 sum = { __uint_as_float(x[k].x) + __uint_as_float(y[k].x),
                                 __uint_as_float(x[k].y) + __uint_as_float(y[k].y),
                                 __uint_as_float(x[k].z) + __uint_as_float(y[k].z),
                                 __uint_as_float(x[k].w) + __uint_as_float(y[k].w) };
            if (first + (k0 + k) * mine::step < t.c.nt) __stcs((float4 *)g_angle, sum);
        }
    }
}

/* <G, H>, and (G H) by warp. */
template <int R> static __device__ __forceinline__ void multiply_states(const spot &s, const place &w)
{
    typedef kr_turn_place<R, 128> mine;
    const int thread = thread_now(), unit = thread % mine::units;
    const uint32_t from = s.stage + kr_unit_at<R, true>(thread / mine::units, unit);
    float dots[4] = { 0, 0, 0, 0 }, cross[4] = { 0, 0, 0, 0 };
#pragma unroll 1
    for (int k0 = 0; k0 < mine::rows; k0 += 4) {
        uint4 g[4], h[4]; /* all are asked for before the first is used */
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t place = from + (uint32_t)(k0 + k) * mine::step * 128;
            g[k] = kr_load_shared16(place + stage_at<R>::g), h[k] = kr_load_shared16(place + stage_at<R>::h);
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t a[4] = { g[k].x, g[k].y, g[k].z, g[k].w }, b[4] = { h[k].x, h[k].y, h[k].z, h[k].w };
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 p = kr_unpack(a[i]), q = kr_unpack(b[i]);
                dots[i] = fmaf(p.x, q.x, fmaf(p.y, q.y, dots[i]));
                cross[i] = fmaf(p.x, q.y, fmaf(-p.y, q.x, cross[i]));
            }
        }
    }
    float *to = columns_at<R>(s)->x[w.warp] + unit * 4;
    fold<2, 16>(cross, w.lane);
    if (R == 128) {
        *(float2 *)(to + (w.lane >> 4) * 2) = make_float2(cross[0], cross[1]);
    } else {
        fold<1, 8>(cross, w.lane);
        to[(w.lane >> 4) * 2 + (w.lane >> 3 & 1)] = cross[0];
    }
    const float dot = kr_warp_sum((dots[0] + dots[1]) + (dots[2] + dots[3]));
    if (w.lane == 0) sums_at<R>(s)->gh[w.warp] = dot;
}

/* Both views of (G H), by 64 threads, a pair each. */
template <int R>
static __device__ __forceinline__ void put_edges(const kr_ssd_grads &o, const item &t, const spot &s, int pair)
{
    if (pair >= o.turn.na) return;
    const column_sums_of<R> *columns = columns_at<R>(s);
    float x = 0, of_c = 0, of_b = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        x += columns->x[k][pair];
        of_c += columns->state[0][k][pair], of_b += columns->state[1][k][pair];
    }
    x *= kr_exp2(s.f[KR_SSD_A2 * 64 + 63]);
    float *to = o.edges + (t.n * o.nh + t.x.h) * 2 * o.turn.na + pair;
    to[0] = x + of_c;
    to[o.turn.na] = x - of_b;
}

template <int R>
static __device__ __forceinline__ void do_other(const kr_ssd_grads &o, const share &b, const kr_ssd_place &c, int j,
                                                const spot &s, const spot &other, const place &w)
{
    const item t = item_at(o, b, c, j), next = item_at(o, b, c, j + 1);
    const bool more = j + 1 < b.heads;
    if (more) load_head<R>(o, next, other.stage);
    if (j > 0) put_head<R>(o, item_at(o, b, c, j - 1), other);
    asm volatile("bar.sync 1, 128;" ::: "memory"); /* what lay in the other stage has been read */
    if (more) load_states<R, 128, OTHER>(o, next, other.stage);
    kr_copy_commit();
    multiply_states<R>(s, w);
    __syncthreads();
    if (w.warp == 0) grad_scalars(o, 1, t.n, t.c, t.x, sums_at<R>(s), s.f);
    if (w.warp >= 2) put_edges<R>(o, t, s, w.lane + (w.warp - 2) * 32);
    kr_copy_wait<0>();
    kr_wg_publish();
}

/* ---- the walk over a block's heads ---- */

template <int R>
static __device__ __forceinline__ void run_values(const kr_ssd_grads &o, const share &b, const kr_ssd_place &c,
                                                  char *shared)
{
    for (int j = 0; j < b.heads; j++) {
        __syncthreads();
        do_values<R>(o, item_at(o, b, c, j), spot_of<R>(shared, j), place_now());
    }
    __syncthreads();
}

template <int R>
static __device__ __forceinline__ void run_maps(const kr_ssd_grads &o, const share &b, const kr_ssd_place &c,
                                                char *shared, bool of_b)
{
    float sum[R / 8][4];
    clear<R / 8>(sum);
#pragma unroll
    for (int i = 0; i < R / 64; i++) put_kept<R>(sum, shared, of_b, i);
    const int panels = (o.turn.na + 31) / 32;
    for (int j = 0; j < b.heads; j++) {
        __syncthreads();
        do_maps<R>(c, spot_of<R>(shared, j), sum, of_b, panels, place_now());
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < R / 64; i++) take_kept<R>(sum, shared, of_b, i);
    store_maps<R>(o, item_at(o, b, c, 0), b.e, b.part, of_b, sum, place_now());
}

template <int R>
static __device__ __forceinline__ void run_other(const kr_ssd_grads &o, const share &b, const kr_ssd_place &c,
                                                 char *shared)
{
    const item first = item_at(o, b, c, 0);
    const spot s = spot_of<R>(shared, 0);
    load_maps<R, 128, OTHER>(o, 1, c, b.e, s.base);
    load_head<R>(o, first, s.stage);
    load_states<R, 128, OTHER>(o, first, s.stage);
    kr_copy_commit();
    kr_copy_wait<0>();
    kr_wg_publish();
    for (int j = 0; j < b.heads; j++) {
        __syncthreads();
        do_other<R>(o, b, c, j, spot_of<R>(shared, j), spot_of<R>(shared, j + 1), place_now());
    }
    __syncthreads();
    put_head<R>(o, item_at(o, b, c, b.heads - 1), spot_of<R>(shared, b.heads - 1));
}

#endif

template <int R>
static __global__ void __launch_bounds__(THREADS, 1) grads_turned(const __grid_constant__ kr_ssd_grads o)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) char unaligned[];
    char *shared = unaligned + (1024 - kr_shared_address(unaligned) % 1024) % 1024;
    const int group = __shfl_sync(~0u, (int)threadIdx.x / 128, 0); /* so known to be one in a warp */
    const share b = share_of(o);
    const kr_ssd_place c = kr_ssd_place_of(o.map, b.n);
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)REGISTERS_OF_VALUES));
        run_values<R>(o, b, c, shared);
    } else if (group == 3) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)REGISTERS_OF_OTHER));
        run_other<R>(o, b, c, shared);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)REGISTERS_OF_MAPS));
        run_maps<R>(o, b, c, shared, group == 2);
    }
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
