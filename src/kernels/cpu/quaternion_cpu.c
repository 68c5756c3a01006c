/* quaternion_cpu.c - unit quaternions from generators, and rows rotated by quaternions; gradients; in f32 vectors.
 *
 *   raw [no nj 3]    dt [no]    q [no nj 4];   x, y [no nm nh nr]    cum [no nh nj 4]
 *   exp:    q = (cos f, n sin f),  f = dt k tanh(rho),  k = range pi/2,  rho = |raw|, n = raw / rho
 *   rotate: y = conj(cum) (x) x for the first nj blocks of four of a row, the remaining entries are copied
 * backward:
 *   exp:    g_raw = n g_f dt k (1 - tanh^2(rho)) + s (g_v - n <n, g_v>),  g_dt = sum_j g_f k tanh(rho),
 *           g_f = cos f <n, g_v> - sin f g_w,  s = sin f / rho
 *   rotate: g_x = cum (x) g_y,  g_cum = sum over m of x (x) conj(g_y)
 *
 * exp processes VF blocks at a time, one per lane; rotate keeps the four entries of a block in four lanes.
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec_lanes.h"
#include "kernels/cpu/vec_math.h"
#include "kernels/cpu/vec_trig.h"

#define PI 3.14159265358979323846

enum { COST = 16 }; /* of a block's functions, relative to the elements of KR_TASK_ELEMENTS */

/* ---- exp ---- */

/* VF blocks, one per lane; lanes without a block are 0. */
typedef struct generators {
    vf x, y, z; /* direction, 0 for a zero generator */
    vf rho, u;  /* length, its tanh */
    vf reach;   /* dt k */
    vf sin_f, cos_f;
} generators;

/* n <= VF blocks from `first` on, `parts` numbers each, to one array for each part. */
KR_INLINE void spread(const float *from, int64_t first, int64_t n, int parts, float to[][VF])
{
    for (int part = 0; part < parts; part++) {
        for (int64_t i = 0; i < n; i++) to[part][i] = from[(first + i) * parts + part];
        for (int64_t i = n; i < VF; i++) to[part][i] = 0;
    }
}

KR_INLINE void gather(float *to, int64_t first, int64_t n, int parts, float from[][VF])
{
    for (int64_t i = 0; i < n; i++)
        for (int part = 0; part < parts; part++) to[(first + i) * parts + part] = from[part][i];
}

static generators generators_at(const float *raw, const float *dt, int64_t nj, double range, int64_t first, int64_t n)
{
    float part[3][VF], step[VF] = { 0 };
    spread(raw, first, n, 3, part);
    for (int64_t i = 0; i < n; i++) step[i] = dt[(first + i) / nj];
    generators g;
    vf x = vf_load(part[0]), y = vf_load(part[1]), z = vf_load(part[2]);
    /* scaled by the largest entry, squares neither overflow nor underflow; a NaN in any entry makes the length NaN */
    vf most = vf_max(vf_max(vf_abs(x), vf_abs(y)), vf_abs(z));
    vm is_zero = vf_eq(most, vf_zero());
    vf scale = vf_select(is_zero, vf_set1(1), most);
    x = vf_div(x, scale);
    y = vf_div(y, scale);
    z = vf_div(z, scale);
    vf length = vf_sqrt(vf_fma(z, z, vf_fma(y, y, vf_mul(x, x))));
    vf inverse = vf_div(vf_set1(1), vf_select(vf_eq(length, vf_zero()), vf_set1(1), length));
    g.x = vf_mul(x, inverse);
    g.y = vf_mul(y, inverse);
    g.z = vf_mul(z, inverse);
    g.rho = vf_mul(scale, length);
    g.u = vf_tanh(g.rho);
    g.reach = vf_mul(vf_load(step), vf_set1((float)(range * (PI / 2))));
    vf_sincos(vf_mul(g.reach, g.u), &g.sin_f, &g.cos_f);
    return g;
}

/* Units are rows of nj blocks. */
static void exp_rows(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_quaternion_exp_args *a = args;
    for (int64_t at = first * a->nj; at < end * a->nj; at += VF) {
        int64_t n = kr_smaller(VF, end * a->nj - at);
        generators g = generators_at(a->raw, a->dt, a->nj, a->range, at, n);
        float q[4][VF];
        vf_store(q[0], g.cos_f);
        vf_store(q[1], vf_mul(g.x, g.sin_f));
        vf_store(q[2], vf_mul(g.y, g.sin_f));
        vf_store(q[3], vf_mul(g.z, g.sin_f));
        gather(a->q, at, n, 4, q);
    }
}

void KR_FN(quaternion_exp)(const kr_quaternion_exp_args *a)
{
    if (a->nj > 0) kr_ranges_run(a->exec.pool, a->no, a->nj * COST, exp_rows, a);
}

/* n blocks from `at` on: g_raw, and each block's term of g_dt. */
static void exp_gradients(const kr_quaternion_exp_bwd_args *a, int64_t at, int64_t n, float term[VF])
{
    generators g = generators_at(a->raw, a->dt, a->nj, a->range, at, n);
    float part[4][VF];
    spread(a->g_q, at, n, 4, part);
    vf g_x = vf_load(part[1]), g_y = vf_load(part[2]), g_z = vf_load(part[3]);
    vf along = vf_fma(g.z, g_z, vf_fma(g.y, g_y, vf_mul(g.x, g_x)));
    vf g_f = vf_fnma(g.sin_f, vf_load(part[0]), vf_mul(g.cos_f, along));
    /* below this length sin f / rho is dt k to the last place, and rho may have lost its precision */
    vm is_short = vf_lt(g.rho, vf_set1(1e-30f));
    vf s = vf_select(is_short, g.reach, vf_div(g.sin_f, vf_select(is_short, vf_set1(1), g.rho)));
    vf slope = vf_mul(g.reach, vf_fnma(g.u, g.u, vf_set1(1)));
    vf factor = vf_fnma(s, along, vf_mul(g_f, slope));
    if (a->g_raw) {
        vf_store(part[0], vf_fma(g.x, factor, vf_mul(s, g_x)));
        vf_store(part[1], vf_fma(g.y, factor, vf_mul(s, g_y)));
        vf_store(part[2], vf_fma(g.z, factor, vf_mul(s, g_z)));
        gather(a->g_raw, at, n, 3, part);
    }
    vf_store(term, vf_mul(g_f, vf_mul(vf_set1((float)(a->range * (PI / 2))), g.u)));
}

static void exp_bwd_rows(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_quaternion_exp_bwd_args *a = args;
    double sum = 0;
    for (int64_t at = first * a->nj; at < end * a->nj; at += VF) {
        int64_t n = kr_smaller(VF, end * a->nj - at);
        float term[VF];
        exp_gradients(a, at, n, term);
        for (int64_t i = 0; a->g_dt && i < n; i++) {
            sum += (double)term[i];
            if ((at + i + 1) % a->nj) continue;
            ((float *)a->g_dt)[(at + i) / a->nj] = (float)sum;
            sum = 0;
        }
    }
}

void KR_FN(quaternion_exp_bwd)(const kr_quaternion_exp_bwd_args *a)
{
    if (a->nj > 0) kr_ranges_run(a->exec.pool, a->no, a->nj * COST, exp_bwd_rows, a);
    else if (a->g_dt) memset(a->g_dt, 0, (size_t)a->no * sizeof(float));
}

/* ---- rotate ---- */

static const float signs_x[16] = { -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1 };
static const float signs_y[16] = { -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1 };
static const float signs_z[16] = { -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1 };
static const float signs_conjugate[16] = { 1, -1, -1, -1, 1, -1, -1, -1, 1, -1, -1, -1, 1, -1, -1, -1 };

/* A left factor, prepared: each entry broadcast to the lanes of its block, with the signs of the Hamilton product. */
typedef struct left {
    vf w, x, y, z;
} left;

KR_INLINE left left_of(vf a)
{
    return (left){ vf_quad_w(a), vf_mul(vf_load(signs_x), vf_quad_x(a)), vf_mul(vf_load(signs_y), vf_quad_y(a)),
                   vf_mul(vf_load(signs_z), vf_quad_z(a)) };
}

/* sum + a (x) b */
KR_INLINE vf add_product(left a, vf b, vf sum)
{
    sum = vf_fma(a.w, b, sum);
    sum = vf_fma(a.x, vf_swap_pairs(b), sum);
    sum = vf_fma(a.y, vf_swap_halves(b), sum);
    return vf_fma(a.z, vf_reverse_quads(b), sum);
}

KR_INLINE vf conjugate(vf a)
{
    return vf_mul(vf_load(signs_conjugate), a);
}

/* Rows of one token and head: rank m's is m * m_stride after the first. */
typedef struct rows {
    int64_t nm, m_stride, nr, n4; /* n4 = 4 nj entries are rotated */
    const float *cum, *x, *g_y;
    float *y, *g_x, *g_cum; /* NULL where not wanted */
} rows;

KR_INLINE void pass(const rows *k, const float *from, float *to)
{
    for (int64_t m = 0; m < k->nm; m++) {
        int64_t at = m * k->m_stride + k->n4;
        row_copy(to + at, from + at, k->nr - k->n4);
    }
}

KR_INLINE void rotate_lanes(const rows *k, int64_t i, int64_t n)
{
    left by = left_of(conjugate(row_load(k->cum + i, n)));
    for (int64_t m = 0; m < k->nm; m++) {
        int64_t at = m * k->m_stride + i;
        row_store(k->y + at, n, add_product(by, row_load(k->x + at, n), vf_zero()));
    }
}

KR_INLINE void rotate_lanes_bwd(const rows *k, int64_t i, int64_t n)
{
    left by = left_of(row_load(k->cum + i, n));
    vf sum = vf_zero();
    for (int64_t m = 0; m < k->nm; m++) {
        int64_t at = m * k->m_stride + i;
        vf x = row_load_ahead(k->x + at, n, k->nr), g_y = row_load_ahead(k->g_y + at, n, k->nr);
        if (k->g_x) row_store(k->g_x + at, n, add_product(by, g_y, vf_zero()));
        sum = add_product(left_of(x), conjugate(g_y), sum);
    }
    if (k->g_cum) row_store(k->g_cum + i, n, sum);
}

static void rotate_tokens(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_quaternion_rotate_args *a = args;
    for (int64_t oh = first * a->nh; oh < end * a->nh; oh++) {
        int64_t at = (oh / a->nh * a->nm * a->nh + oh % a->nh) * a->nr, i = 0;
        rows k = { .nm = a->nm, .m_stride = a->nh * a->nr, .nr = a->nr, .n4 = 4 * a->nj };
        k.cum = (const float *)a->cum + oh * k.n4;
        k.x = (const float *)a->x + at;
        k.y = (float *)a->y + at;
        for (; i + VF <= k.n4; i += VF) rotate_lanes(&k, i, VF);
        if (i < k.n4) rotate_lanes(&k, i, k.n4 - i);
        pass(&k, k.x, k.y);
    }
}

void KR_FN(quaternion_rotate)(const kr_quaternion_rotate_args *a)
{
    if (a->nr > 0) kr_ranges_run(a->exec.pool, a->no, a->nm * a->nh * a->nr, rotate_tokens, a);
}

static void rotate_bwd_tokens(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_quaternion_rotate_bwd_args *a = args;
    for (int64_t oh = first * a->nh; oh < end * a->nh; oh++) {
        int64_t at = (oh / a->nh * a->nm * a->nh + oh % a->nh) * a->nr, i = 0;
        rows k = { .nm = a->nm, .m_stride = a->nh * a->nr, .nr = a->nr, .n4 = 4 * a->nj };
        k.cum = (const float *)a->cum + oh * k.n4;
        k.x = (const float *)a->x + at;
        k.g_y = (const float *)a->g_y + at;
        if (a->g_x) k.g_x = (float *)a->g_x + at;
        if (a->g_cum) k.g_cum = (float *)a->g_cum + oh * k.n4;
        for (; i + VF <= k.n4; i += VF) rotate_lanes_bwd(&k, i, VF);
        if (i < k.n4) rotate_lanes_bwd(&k, i, k.n4 - i);
        if (k.g_x) pass(&k, k.g_y, k.g_x);
    }
}

void KR_FN(quaternion_rotate_bwd)(const kr_quaternion_rotate_bwd_args *a)
{
    if (a->nr > 0) kr_ranges_run(a->exec.pool, a->no, 2 * a->nm * a->nh * a->nr, rotate_bwd_tokens, a);
}
