/* copy_cpu.c - y = x for the memory-bound cases: rows of one type, rows between f32 and a 16-bit float, and transposes
 * of 4-byte elements. The reference kernel handles the others.
 *
 * A transpose has an axis `in` along which x is adjacent and another, `out`, along which y is. It runs in blocks of 64
 * x 64, which touch few pages on either side, in tiles of 16 x 16, a cache line on either side, and in registers 8 x 8.
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/vec.h"
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_walk.h"

enum {
    PIECE = 32768,     /* elements of a long row in one unit */
    SHORT_BYTES = 512, /* shorter rows are copied by vectors, others by memcpy */
    TILE = 16,
    BLOCK = 64
};

static size_t bytes_of(kr_dtype dtype)
{
    return dtype == KR_DTYPE_F64 || dtype == KR_DTYPE_I64 ? 8 : dtype == KR_DTYPE_BF16 || dtype == KR_DTYPE_F16 ? 2 : 4;
}

/* Rows of one type. */
static void move_row(void *y, const void *x, int64_t n, size_t size)
{
    if (size != 4 || n * 4 >= SHORT_BYTES) {
        memcpy(y, x, (size_t)n * size);
        return;
    }
    float *out = y;
    const float *in = x;
    int64_t i = 0;
    for (; i + VF <= n; i += VF) vf_store(out + i, vf_load(in + i));
    if (i < n) vf_store_n(out + i, n - i, vf_load_n(in + i, n - i));
}

static void repeat_row(float *y, float value, int64_t n)
{
    vf v = vf_set1(value);
    int64_t i = 0;
    for (; i + VF <= n; i += VF) vf_store(y + i, v);
    if (i < n) vf_store_n(y + i, n - i, v);
}

#define CONVERT(name, to, from, load, store)                                                                           \
    static void name(to *y, const from *x, int64_t n)                                                                  \
    {                                                                                                                  \
        int64_t i = 0;                                                                                                 \
        for (; i + VF <= n; i += VF) store(y + i, load(x + i));                                                        \
        if (i < n) store##_n(y + i, n - i, load##_n(x + i, n - i));                                                    \
    }
CONVERT(bf16_row, uint16_t, float, vf_load, vf_store_bf16)
CONVERT(f16_row, uint16_t, float, vf_load, vf_store_f16)
CONVERT(of_bf16_row, float, uint16_t, vf_load_bf16, vf_store)
CONVERT(of_f16_row, float, uint16_t, vf_load_f16, vf_store)

static void copy_row(const kr_copy_args *a, int64_t y_at, int64_t x_at, int64_t n)
{
    size_t y_size = bytes_of(a->y_dtype), x_size = bytes_of(a->x_dtype);
    void *y = (char *)a->y + y_at * (int64_t)y_size;
    const void *x = (const char *)a->x + x_at * (int64_t)x_size;
    bool repeated = kr_walk_step(&a->walk, 1) == 0 && a->x_dtype == KR_DTYPE_F32 && a->y_dtype == KR_DTYPE_F32;
    if (repeated) repeat_row(y, *(const float *)x, n);
    else if (a->x_dtype == a->y_dtype) move_row(y, x, n, y_size);
    else if (a->y_dtype == KR_DTYPE_BF16) bf16_row(y, x, n);
    else if (a->y_dtype == KR_DTYPE_F16) f16_row(y, x, n);
    else if (a->x_dtype == KR_DTYPE_BF16) of_bf16_row(y, x, n);
    else of_f16_row(y, x, n);
}

/* Units are pieces of rows. */
static void copy_rows(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_copy_args *a = args;
    int64_t n = kr_walk_length(&a->walk), npieces = kr_blocks(n, PIECE), x_step = kr_walk_step(&a->walk, 1);
    kr_odometer at = kr_odometer_at(&a->walk, 2, first / npieces);
    for (int64_t unit = first; unit < end; unit++) {
        int64_t i = unit % npieces * PIECE;
        if (i == 0 && unit > first) kr_odometer_next(&at);
        copy_row(a, at.offset[0] + i, at.offset[1] + i * x_step, kr_smaller(PIECE, n - i));
    }
}

static bool rows_are_ours(const kr_copy_args *a)
{
    int64_t x_step = kr_walk_step(&a->walk, 1);
    if (a->walk.rank > 0 && kr_walk_step(&a->walk, 0) != 1) return false;
    if (a->walk.rank > 0 && x_step == 0 && a->x_dtype == KR_DTYPE_F32) return a->y_dtype == KR_DTYPE_F32;
    if (a->walk.rank > 0 && x_step != 1) return false;
    bool narrow = a->x_dtype == KR_DTYPE_F32 && (a->y_dtype == KR_DTYPE_BF16 || a->y_dtype == KR_DTYPE_F16);
    bool widen = a->y_dtype == KR_DTYPE_F32 && (a->x_dtype == KR_DTYPE_BF16 || a->x_dtype == KR_DTYPE_F16);
    return a->x_dtype == a->y_dtype || narrow || widen;
}

/* y[i * y_step + j] = x[j * x_step + i] for i, j < 8. Loads of 4 with insertion leave only shuffles within 128-bit
 * lanes. */
static void transpose_8(float *y, int64_t y_step, const float *x, int64_t x_step)
{
    __m256 r[8], t[8];
    for (int half = 0; half < 2; half++) {
        for (int j = 0; j < 4; j++) {
            const float *lower = x + j * x_step + 4 * half;
            __m256 both = _mm256_castps128_ps256(_mm_loadu_ps(lower));
            r[4 * half + j] = _mm256_insertf128_ps(both, _mm_loadu_ps(lower + 4 * x_step), 1);
        }
    }
    for (int half = 0; half < 8; half += 4) {
        t[half + 0] = _mm256_unpacklo_ps(r[half + 0], r[half + 1]);
        t[half + 1] = _mm256_unpackhi_ps(r[half + 0], r[half + 1]);
        t[half + 2] = _mm256_unpacklo_ps(r[half + 2], r[half + 3]);
        t[half + 3] = _mm256_unpackhi_ps(r[half + 2], r[half + 3]);
        float *out = y + half * y_step;
        _mm256_storeu_ps(out, _mm256_shuffle_ps(t[half + 0], t[half + 2], 0x44));
        _mm256_storeu_ps(out + y_step, _mm256_shuffle_ps(t[half + 0], t[half + 2], 0xee));
        _mm256_storeu_ps(out + 2 * y_step, _mm256_shuffle_ps(t[half + 1], t[half + 3], 0x44));
        _mm256_storeu_ps(out + 3 * y_step, _mm256_shuffle_ps(t[half + 1], t[half + 3], 0xee));
    }
}

/* y[i * y_step + j] = x[j * x_step + i] for i < ni <= TILE, j < nj <= TILE. */
static void transpose_tile(float *y, int64_t y_step, const float *x, int64_t x_step, int64_t ni, int64_t nj)
{
    int64_t whole_i = ni / 8 * 8, whole_j = nj / 8 * 8;
    for (int64_t i = 0; i < whole_i; i += 8)
        for (int64_t j = 0; j < whole_j; j += 8) transpose_8(y + i * y_step + j, y_step, x + j * x_step + i, x_step);
    for (int64_t i = 0; i < ni; i++)
        for (int64_t j = i < whole_i ? whole_j : 0; j < nj; j++)
            memcpy(y + i * y_step + j, x + j * x_step + i, sizeof(float)); /* bits: they may be integers */
}

/* The same for i < ni, j < nj of any size. */
static void transpose_block(float *y, int64_t y_step, const float *x, int64_t x_step, int64_t ni, int64_t nj)
{
    for (int64_t i = 0; i < ni; i += TILE)
        for (int64_t j = 0; j < nj; j += TILE)
            transpose_tile(y + i * y_step + j, y_step, x + j * x_step + i, x_step, kr_smaller(TILE, ni - i),
                           kr_smaller(TILE, nj - j));
}

typedef struct transpose {
    const kr_copy_args *a;
    int in, out;  /* axes of the walk */
    kr_walk rest; /* the other axes, then one of length 1 */
} transpose;

/* Units are BLOCK positions along `in`, for every position of the other axes. */
static void transpose_strips(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const transpose *p = args;
    const kr_walk *w = &p->a->walk;
    int64_t n_in = w->dims[p->in], n_out = w->dims[p->out], nstrips = kr_blocks(n_in, BLOCK);
    int64_t y_step = w->strides[0][p->in], x_step = w->strides[1][p->out];
    kr_odometer at = kr_odometer_at(&p->rest, 2, first / nstrips);
    for (int64_t unit = first; unit < end; unit++) {
        int64_t i = unit % nstrips * BLOCK;
        if (i == 0 && unit > first) kr_odometer_next(&at);
        float *y = (float *)p->a->y + at.offset[0] + i * y_step;
        const float *x = (const float *)p->a->x + at.offset[1] + i;
        for (int64_t j = 0; j < n_out; j += BLOCK)
            transpose_block(y + j, y_step, x + j * x_step, x_step, kr_smaller(BLOCK, n_in - i),
                            kr_smaller(BLOCK, n_out - j));
    }
}

static bool find_transpose(const kr_copy_args *a, transpose *p)
{
    const kr_walk *w = &a->walk;
    *p = (transpose){ .a = a, .in = -1, .out = -1 };
    if (a->x_dtype != a->y_dtype || bytes_of(a->x_dtype) != 4) return false;
    for (int axis = 0; axis < w->rank; axis++) {
        if (w->strides[1][axis] == 1 && w->dims[axis] >= 4) p->in = axis;
        if (w->strides[0][axis] == 1 && w->dims[axis] >= 4) p->out = axis;
    }
    if (p->in < 0 || p->out < 0 || p->in == p->out) return false;
    for (int axis = 0; axis < w->rank; axis++) {
        if (axis == p->in || axis == p->out) continue;
        p->rest.dims[p->rest.rank] = w->dims[axis];
        for (int o = 0; o < 2; o++) p->rest.strides[o][p->rest.rank] = w->strides[o][axis];
        p->rest.rank++;
    }
    p->rest.dims[p->rest.rank++] = 1;
    return true;
}

void KR_FN(copy)(const kr_copy_args *a)
{
    transpose p;
    int64_t nrows = kr_walk_nrows(&a->walk), n = kr_walk_length(&a->walk);
    if (nrows * n == 0) return;
    if (rows_are_ours(a)) {
        kr_ranges_run(a->exec.pool, nrows * kr_blocks(n, PIECE), kr_smaller(PIECE, n), copy_rows, a);
    } else if (find_transpose(a, &p)) {
        int64_t nunits = kr_walk_nrows(&p.rest) * kr_blocks(a->walk.dims[p.in], BLOCK);
        int64_t size = kr_smaller(BLOCK, a->walk.dims[p.in]) * a->walk.dims[p.out];
        kr_ranges_run(a->exec.pool, nunits, size, transpose_strips, &p);
    } else {
        kr_ref_copy(a);
    }
}
