/* matmul_cuda.cu - C = A B (+ bias) (+ C), for every index of a batch space: dispatch and cuBLASLt calls.
 *
 *   A [m k], B [k n], C [m n], bias [n]; A and B with any strides, C with contiguous columns
 *
 *   few rows, k contiguous in A and B:  gemv.cu, at the bandwidth of reading B
 *   up to 64 rows in bf16, sm_90:       skinny_gemm.cu, the same
 *   large:                              cuBLASLt, in f32 or f64, in tf32 or bf16 as exec.precision says
 *   everything else:                    tiled_gemm.cu
 *
 * cuBLASLt takes operands of one type with one contiguous axis. Other operands, or those of another type than the product
 * is computed in, are copied to scratch first. Batch axes are merged where possible; beyond one axis they are a loop here,
 * if it is short.
 */
#include "kernels/cuda/gemm/cublaslt.h"
#include "kernels/cuda/gemm/gemm.cuh"

enum { LARGE = 1 << 18 /* multiply-adds */, MAX_LOOPS = 64 };

typedef enum code_path { GEMV, SKINNY, LIBRARY, TILED } code_path;

/* An operand as cuBLASLt gets it. */
typedef struct entry {
    bool is_copied, transposed;
    int64_t stride, batch;         /* of what the library reads */
    int64_t rows, columns;         /* of a copy: rows with contiguous columns ... */
    int64_t from_row, from_column; /* ... and the operand's strides along them */
    int64_t copies;                /* matrices copied: 1 if the batch shares one */
    size_t at;                     /* offset of the copy in scratch */
} entry;

typedef struct plan {
    code_path code_path;
    kr_matmul_args args;  /* with batch axes merged */
    int64_t inner, loops; /* items per library call; calls */
    kr_lt_type type;      /* in which the product is computed */
    entry a, b;
    size_t bias, bytes; /* in scratch: offset of the bias in bf16; total */
} plan;

/* Merges batch axes that are contiguous in all operands; drops those of size 1. */
static void merge_batch(kr_matmul_args *p)
{
    int rank = 0;
    for (int axis = 0; axis < p->batch_rank; axis++) {
        const int64_t size = p->batch_dims[axis], a = p->batch_a[axis], b = p->batch_b[axis], c = p->batch_c[axis];
        if (size == 1) continue;
        const int last = rank - 1;
        const bool joins =
            rank > 0 && p->batch_a[last] == a * size && p->batch_b[last] == b * size && p->batch_c[last] == c * size;
        const int to = joins ? last : rank++;
        p->batch_dims[to] = joins ? p->batch_dims[last] * size : size;
        p->batch_a[to] = a, p->batch_b[to] = b, p->batch_c[to] = c;
    }
    p->batch_rank = rank;
}

/* An operand [rows columns] with these strides as the library takes it, or as a copy with elements of `element` bytes. */
static entry entry_of(int64_t rows, int64_t columns, int64_t row, int64_t column, bool is_right_type, int64_t nbatch,
                      int64_t batch, int64_t element)
{
    const bool plain = (column == 1 || columns == 1) && (row >= columns || rows == 1);
    const bool transposed = !plain && (row == 1 || rows == 1) && (column >= rows || columns == 1);
    entry e = { false, transposed, plain ? row : column, batch, 0, 0, 0, 0, 0, 0 };
    if (plain && rows == 1) e.stride = columns;
    if (transposed && columns == 1) e.stride = rows;
    if (is_right_type && (plain || transposed) && batch >= 0) return e;
    e.is_copied = true;
    e.transposed = row == 1 && column != 1;
    e.rows = e.transposed ? columns : rows;
    e.columns = e.transposed ? rows : columns;
    e.from_row = e.transposed ? column : row;
    e.from_column = e.transposed ? row : column;
    e.stride = kr_ceil_div(e.columns, 16 / element * 4) * (16 / element * 4);
    e.copies = batch == 0 ? 1 : nbatch;
    e.batch = batch == 0 ? 0 : e.rows * e.stride;
    return e;
}

static size_t add_copy(entry *e, size_t at, int64_t element)
{
    e->at = at;
    return e->is_copied ? at + kr_padded_bytes(e->copies * e->rows * e->stride * element) : at;
}

/* bf16 with an f32 weight and few rows uses tf32: rounding the weight first would take longer than the product. */
template <typename T> static kr_lt_type type_of(const kr_matmul_args *p)
{
    if (sizeof(T) == 8) return KR_LT_F64;
    const bool autocasts =
        kr_is_16bit(p->a.dtype) || kr_is_16bit(p->b.dtype) || p->nm > KR_GEMV_AUTOCAST || kr_is_16bit(p->c.dtype);
    return p->exec.precision == KR_PRECISION_BF16 && autocasts ? KR_LT_BF16 : KR_LT_F32;
}

/* Plans the product for the library; false if it does not apply. */
template <typename T> static bool plan_library(plan *pl)
{
    const kr_matmul_args *p = &pl->args;
    const int last = p->batch_rank - 1;
    pl->type = type_of<T>(p);
    pl->inner = last >= 0 ? p->batch_dims[last] : 1;
    pl->loops = kr_gemm_items(p) / pl->inner;
    const bool to_bf16 = pl->type == KR_LT_BF16;
    const int64_t element = to_bf16 ? 2 : (int64_t)sizeof(T);
    const kr_dtype wanted = to_bf16 ? KR_DTYPE_BF16 : kr_dtype_of<T>();
    if (kr_is_16bit(p->c.dtype) && !(to_bf16 && p->c.dtype == KR_DTYPE_BF16)) return false;
    if ((p->c.row < p->nn && p->nm > 1) || kr_cublaslt_problem()) return false;
    pl->a = entry_of(p->nm, p->nk, p->a.row, p->a.column, p->a.dtype == wanted, pl->inner,
                     last >= 0 ? p->batch_a[last] : 0, element);
    pl->b = entry_of(p->nk, p->nn, p->b.row, p->b.column, p->b.dtype == wanted, pl->inner,
                     last >= 0 ? p->batch_b[last] : 0, element);
    if (pl->loops > MAX_LOOPS || (pl->loops > 1 && (pl->a.is_copied || pl->b.is_copied)) ||
        (last >= 0 && p->batch_c[last] < 0))
        return false;
    pl->bytes = add_copy(&pl->a, KR_LT_WORKSPACE, element);
    pl->bytes = add_copy(&pl->b, pl->bytes, element);
    pl->bias = pl->bytes;
    if (p->bias && kr_is_16bit(p->c.dtype)) pl->bytes += kr_padded_bytes(p->nn * 2 + 16);
    return true;
}

template <typename T> static plan plan_of(const kr_matmul_args *args)
{
    plan pl = {};
    pl.args = *args;
    merge_batch(&pl.args);
    const kr_matmul_args *p = &pl.args;
    const int64_t items = kr_gemm_items(p);
    pl.code_path = TILED;
    const bool is_gemv =
        p->nm <= KR_GEMV_ROWS || (p->nm <= KR_WIDENING_ROWS && kr_is_16bit(p->b.dtype) && type_of<T>(p) != KR_LT_BF16);
    if (kr_gemv_can(p) && is_gemv) {
        pl.code_path = GEMV;
        return pl;
    }
    if (type_of<T>(p) == KR_LT_BF16 && kr_skinny_gemm_can(p)) {
        pl.code_path = SKINNY;
        return pl;
    }
    const bool is_large = p->nm * p->nn > 0 && (double)items * (double)p->nm * (double)p->nn * (double)p->nk >= LARGE;
    if (is_large && plan_library<T>(&pl)) pl.code_path = LIBRARY;
    else if (kr_gemv_can(p) && p->nn * p->nk >= LARGE / 8) pl.code_path = GEMV;
    return pl;
}

template <typename T> static size_t matmul_scratch(const kr_matmul_args *a)
{
    return plan_of<T>(a).bytes;
}

template <typename T>
static void copy_operand(const plan *pl, const entry *e, const void *x, kr_dtype dtype, int64_t batch)
{
    if (!e->is_copied) return;
    const kr_gemm_copy c = { e->copies,
                             e->rows,
                             e->columns,
                             x,
                             batch,
                             e->from_row,
                             e->from_column,
                             dtype,
                             (char *)pl->args.exec.scratch + e->at,
                             e->batch,
                             e->stride };
    cudaStream_t stream = kr_stream_of(&pl->args.exec);
    if (sizeof(T) == 8) kr_gemm_copy_run<double, double>(c, stream);
    else if (pl->type == KR_LT_BF16) kr_gemm_copy_run<float, __nv_bfloat16>(c, stream);
    else kr_gemm_copy_run<float, float>(c, stream);
}

static kr_lt_matrix matrix_of(const plan *pl, const entry *e, const void *x, int64_t offset, int64_t element)
{
    const char *data = e->is_copied ? (const char *)pl->args.exec.scratch + e->at : (const char *)x + offset * element;
    return { data, pl->type, e->transposed, e->stride, e->batch };
}

/* The bias for the library's epilogue; if it cannot take it, C is set to it first and the product is added. */
template <typename T> static const void *bias_for_library(plan *pl)
{
    kr_matmul_args *p = &pl->args;
    if (!p->bias) return NULL;
    if (kr_is_16bit(p->c.dtype)) {
        void *bias = (char *)p->exec.scratch + pl->bias;
        const kr_gemm_copy c = { 1, 1, p->nn, p->bias, 0, 0, 1, kr_dtype_of<T>(), bias, 0, 0 };
        kr_gemm_copy_run<float, __nv_bfloat16>(c, kr_stream_of(&p->exec));
        return bias;
    }
    if (sizeof(T) == 4 && kr_is_aligned16(p->bias)) return p->bias;
    kr_gemm_add_bias<T>(p);
    p->bias = NULL;
    p->accumulate = true;
    return NULL;
}

/* The items of one call without the library. */
template <typename T> static void run_tiles(const kr_matmul_args *p, kr_gemm_item first)
{
    kr_matmul_args slice = *p;
    const int last = p->batch_rank - 1;
    slice.a.data = (char *)p->a.data + first.a * (int64_t)(kr_is_16bit(p->a.dtype) ? 2 : sizeof(T));
    slice.b.data = (char *)p->b.data + first.b * (int64_t)(kr_is_16bit(p->b.dtype) ? 2 : sizeof(T));
    slice.c.data = (char *)p->c.data + first.c * (int64_t)(kr_is_16bit(p->c.dtype) ? 2 : sizeof(T));
    slice.batch_rank = last >= 0 ? 1 : 0;
    if (last > 0) {
        slice.batch_dims[0] = p->batch_dims[last];
        slice.batch_a[0] = p->batch_a[last], slice.batch_b[0] = p->batch_b[last], slice.batch_c[0] = p->batch_c[last];
    }
    kr_tiled_gemm<T>(&slice);
}

template <typename T> static void run_library(plan *pl)
{
    kr_matmul_args *p = &pl->args;
    const int last = p->batch_rank - 1;
    const int64_t element = pl->type == KR_LT_BF16 ? 2 : (int64_t)sizeof(T);
    copy_operand<T>(pl, &pl->a, p->a.data, p->a.dtype, last >= 0 ? p->batch_a[last] : 0);
    copy_operand<T>(pl, &pl->b, p->b.data, p->b.dtype, last >= 0 ? p->batch_b[last] : 0);
    const void *bias = bias_for_library<T>(pl);
    const kr_lt_type of_c = kr_is_16bit(p->c.dtype) ? KR_LT_BF16 : sizeof(T) == 8 ? KR_LT_F64 : KR_LT_F32;
    for (int64_t loop = 0; loop < pl->loops; loop++) {
        const kr_gemm_item item = kr_gemm_item_at(*p, loop * pl->inner);
        const kr_lt_product product = {
            p->nm,
            p->nn,
            p->nk,
            pl->inner,
            matrix_of(pl, &pl->a, p->a.data, item.a, element),
            matrix_of(pl, &pl->b, p->b.data, item.b, element),
            { (char *)p->c.data + item.c * (int64_t)(kr_is_16bit(p->c.dtype) ? 2 : sizeof(T)), of_c, false,
              p->nm == 1 ? p->nn : p->c.row, last >= 0 ? p->batch_c[last] : 0 },
            bias,
            p->accumulate,
            p->exec.precision != KR_PRECISION_EXACT && pl->type == KR_LT_F32
        };
        if (!kr_cublaslt_run(&product, p->exec.scratch, p->exec.stream)) run_tiles<T>(p, item);
    }
}

template <typename T> static void matmul_run(const kr_matmul_args *args)
{
    plan pl = plan_of<T>(args);
    if (pl.code_path == GEMV) kr_gemv<T>(&pl.args);
    else if (pl.code_path == SKINNY) kr_skinny_gemm(&pl.args, NULL, 0);
    else if (pl.code_path == LIBRARY) run_library<T>(&pl);
    else kr_tiled_gemm<T>(&pl.args);
}

KR_CUDA_ENTRY_SCRATCH(matmul, kr_matmul_args)
