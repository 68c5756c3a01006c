/* cublaslt.c - loads cuBLASLt, and runs matrix products with it.
 *
 * cuBLASLt matrices are column-major. A row-major C [m n] is its [n m], so we ask for C^T = B^T A^T: its first operand is
 * our B, and a row-major B is the B^T that it wants. The bias, one per column of ours, is one per row there, as its
 * epilogue takes it.
 */
#define _GNU_SOURCE /* dladdr */
#include "kernels/cuda/gemm/cublaslt.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

#define ENTRY_POINTS(X)                                                                                                \
    X(cublasLtCreate)                                                                                                  \
    X(cublasLtMatmul)                                                                                                  \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                                  \
    X(cublasLtMatmulDescInit_internal)                                                                                 \
    X(cublasLtMatmulDescSetAttribute)                                                                                  \
    X(cublasLtMatrixLayoutInit_internal)                                                                               \
    X(cublasLtMatrixLayoutSetAttribute)                                                                                \
    X(cublasLtMatmulPreferenceInit_internal)                                                                           \
    X(cublasLtMatmulPreferenceSetAttribute)

enum { DEVICES = 64, CHOICES = 1024, PROBES = 8, MAX_ALIGNMENT = 256 };

/* Key of the choice of an algorithm. */
typedef struct kind {
    int64_t nm, nn, nk, nbatch;
    int64_t a_stride, a_batch, b_stride, b_batch, c_stride, c_batch;
    int32_t a_type, c_type, a_transposed, b_transposed, has_bias, accumulate, tf32, device;
    int32_t a_alignment, b_alignment, c_alignment, unused;
} kind;

typedef enum choice_state { UNKNOWN = 0, CHOSEN, REFUSED } choice_state;

typedef struct choice {
    kind of;
    choice_state state;
    cublasLtMatmulAlgo_t algo;
} choice;

static struct {
    atomic_flag busy; /* spin lock of everything below */
    bool is_opened;
    const char *problem;
#define X(name) __typeof__(&name) name;
    ENTRY_POINTS(X)
#undef X
    cublasLtHandle_t handles[DEVICES];
    choice choices[CHOICES];
} lt = { .busy = ATOMIC_FLAG_INIT };

static void lock(void)
{
    while (atomic_flag_test_and_set_explicit(&lt.busy, memory_order_acquire)) {}
}

static void unlock(void)
{
    atomic_flag_clear_explicit(&lt.busy, memory_order_release);
}

/* ---- loading ---- */

static bool find(void *library, const char *name, void *entry, size_t bytes)
{
    void *symbol = dlsym(library, name);
    memcpy(entry, &symbol, bytes);
    return symbol != NULL;
}

static void open_library(void)
{
    static const char *const names[] = { "libcublasLt.so.13", "libcublasLt.so.12" };
    void *library = NULL;
    lt.is_opened = true;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        lt.problem = "libcublasLt.so.13 and .12 are not found; products run on slower kernels";
        return;
    }
    bool ok = true;
#define X(name) ok = ok && find(library, #name, &lt.name, sizeof lt.name);
    ENTRY_POINTS(X)
#undef X
    if (!ok) lt.problem = "libcublasLt.so lacks an entry point; products run on slower kernels";
}

const char *kr_cublaslt_problem(void)
{
    lock();
    if (!lt.is_opened) open_library();
    const char *problem = lt.problem;
    unlock();
    return problem;
}

const char *kr_cublaslt_file(void)
{
    Dl_info about;
    void *entry = NULL;
    if (kr_cublaslt_problem()) return NULL;
    memcpy(&entry, &lt.cublasLtCreate, sizeof entry);
    return dladdr(entry, &about) ? about.dli_fname : "libcublasLt.so";
}

/* The current device's handle, or NULL. */
static cublasLtHandle_t handle_of(int device)
{
    if (!lt.is_opened) open_library();
    if (lt.problem || device < 0 || device >= DEVICES) return NULL;
    if (!lt.handles[device] && lt.cublasLtCreate(&lt.handles[device]) != CUBLAS_STATUS_SUCCESS)
        lt.handles[device] = NULL;
    return lt.handles[device];
}

/* ---- descriptions ---- */

typedef struct description {
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t a, b, c; /* ours; the library's first operand is b */
} description;

static cudaDataType_t data_type(kr_lt_type type)
{
    switch (type) {
    case KR_LT_F64: return CUDA_R_64F;
    case KR_LT_BF16: return CUDA_R_16BF;
    case KR_LT_F16: return CUDA_R_16F;
    default: return CUDA_R_32F;
    }
}

/* rows x columns as we see them; the library sees the transpose of a row-major matrix. */
static bool describe_matrix(cublasLtMatrixLayoutOpaque_t *layout, const kr_lt_matrix *m, int64_t rows, int64_t columns,
                            int64_t nbatch)
{
    const uint64_t high = (uint64_t)(m->transposed ? rows : columns), wide = (uint64_t)(m->transposed ? columns : rows);
    const int32_t count = (int32_t)nbatch;
    if (lt.cublasLtMatrixLayoutInit_internal(layout, sizeof *layout, data_type(m->type), high, wide, m->stride) !=
        CUBLAS_STATUS_SUCCESS)
        return false;
    if (nbatch == 1) return true;
    return lt.cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count) ==
               CUBLAS_STATUS_SUCCESS &&
           lt.cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &m->batch,
                                               sizeof m->batch) == CUBLAS_STATUS_SUCCESS;
}

static bool set(description *d, cublasLtMatmulDescAttributes_t what, const void *value, size_t bytes)
{
    return lt.cublasLtMatmulDescSetAttribute(&d->product, what, value, bytes) == CUBLAS_STATUS_SUCCESS;
}

static bool describe(description *d, const kr_lt_product *p)
{
    const bool is_double = p->c.type == KR_LT_F64;
    const cublasComputeType_t compute = is_double ? CUBLAS_COMPUTE_64F
                                        : p->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                  : CUBLAS_COMPUTE_32F;
    const int32_t first = p->b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t second = p->a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint32_t epilogue = p->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    memset(d, 0, sizeof *d);
    if (lt.cublasLtMatmulDescInit_internal(&d->product, sizeof d->product, compute,
                                           is_double ? CUDA_R_64F : CUDA_R_32F) != CUBLAS_STATUS_SUCCESS ||
        !set(d, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first) ||
        !set(d, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second) ||
        !set(d, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue) ||
        (p->bias && !set(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof p->bias)))
        return false;
    return describe_matrix(&d->a, &p->a, p->nm, p->nk, p->nbatch) &&
           describe_matrix(&d->b, &p->b, p->nk, p->nn, p->nbatch) &&
           describe_matrix(&d->c, &p->c, p->nm, p->nn, p->nbatch);
}

/* ---- algorithm cache ---- */

static int32_t alignment_of(const void *p)
{
    const uintptr_t lowest = (uintptr_t)p & (~(uintptr_t)p + 1);
    return lowest == 0 || lowest > MAX_ALIGNMENT ? MAX_ALIGNMENT : (int32_t)lowest;
}

static kind kind_of(const kr_lt_product *p, int device)
{
    kind k;
    memset(&k, 0, sizeof k); /* kinds are compared as bytes */
    k.nm = p->nm, k.nn = p->nn, k.nk = p->nk, k.nbatch = p->nbatch;
    k.a_stride = p->a.stride, k.b_stride = p->b.stride, k.c_stride = p->c.stride;
    k.a_batch = p->a.batch, k.b_batch = p->b.batch, k.c_batch = p->c.batch;
    k.a_type = (int32_t)p->a.type, k.c_type = (int32_t)p->c.type;
    k.a_transposed = p->a.transposed, k.b_transposed = p->b.transposed;
    k.has_bias = p->bias != NULL, k.accumulate = p->accumulate, k.tf32 = p->tf32;
    k.device = device;
    k.a_alignment = alignment_of(p->a.data), k.b_alignment = alignment_of(p->b.data);
    k.c_alignment = alignment_of(p->c.data);
    return k;
}

static uint64_t hash_of(const kind *k)
{
    uint64_t hash = 1469598103934665603u;
    const unsigned char *bytes = (const unsigned char *)k;
    for (size_t i = 0; i < sizeof *k; i++) hash = (hash ^ bytes[i]) * 1099511628211u;
    return hash ^ hash >> 32;
}

/* The slot of this kind: its own, else an unused one, else the first of its probe sequence. */
static choice *choice_of(const kind *k)
{
    const uint64_t hash = hash_of(k);
    choice *slot = NULL;
    for (uint64_t i = 0; i < PROBES; i++) {
        choice *c = &lt.choices[(hash + i) % CHOICES];
        if (c->state != UNKNOWN && memcmp(&c->of, k, sizeof *k) == 0) return c;
        if (c->state == UNKNOWN && !slot) slot = c;
    }
    if (!slot) slot = &lt.choices[hash % CHOICES];
    slot->of = *k;
    slot->state = UNKNOWN;
    return slot;
}

static bool prefer(cublasLtMatmulPreferenceOpaque_t *pref, cublasLtMatmulPreferenceAttributes_t what, uint32_t value)
{
    return lt.cublasLtMatmulPreferenceSetAttribute(pref, what, &value, sizeof value) == CUBLAS_STATUS_SUCCESS;
}

/* Split-k sums are reduced in order, in f32 or f64. */
static choice_state query_heuristic(cublasLtHandle_t handle, description *d, const kind *k, cublasLtMatmulAlgo_t *algo)
{
    cublasLtMatmulPreferenceOpaque_t pref;
    cublasLtMatmulHeuristicResult_t found;
    const uint64_t bytes = KR_LT_WORKSPACE;
    int count = 0;
    memset(&pref, 0, sizeof pref);
    memset(&found, 0, sizeof found);
    if (lt.cublasLtMatmulPreferenceInit_internal(&pref, sizeof pref) != CUBLAS_STATUS_SUCCESS ||
        lt.cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                                sizeof bytes) != CUBLAS_STATUS_SUCCESS ||
        !prefer(&pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) ||
        !prefer(&pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)k->b_alignment) ||
        !prefer(&pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)k->a_alignment) ||
        !prefer(&pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)k->c_alignment) ||
        !prefer(&pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)k->c_alignment) ||
        lt.cublasLtMatmulAlgoGetHeuristic(handle, &d->product, &d->b, &d->a, &d->c, &d->c, &pref, 1, &found, &count) !=
            CUBLAS_STATUS_SUCCESS ||
        count < 1 || found.state != CUBLAS_STATUS_SUCCESS)
        return REFUSED;
    *algo = found.algo;
    return CHOSEN;
}

bool kr_cublaslt_run(const kr_lt_product *p, void *workspace, void *stream)
{
    static const double one = 1, zero = 0;
    static const float one_f = 1, zero_f = 0;
    description d;
    cublasLtMatmulAlgo_t algo;
    int device = -1;
    if (cudaGetDevice(&device) != cudaSuccess || p->nbatch > INT32_MAX) return false;
    lock();
    const cublasLtHandle_t handle = handle_of(device);
    if (!handle || !describe(&d, p)) {
        unlock();
        return false;
    }
    const kind k = kind_of(p, device);
    choice *c = choice_of(&k);
    if (c->state == UNKNOWN) c->state = query_heuristic(handle, &d, &k, &c->algo);
    const bool ok = c->state == CHOSEN;
    algo = c->algo;
    unlock();
    const bool is_double = p->c.type == KR_LT_F64;
    const void *alpha = is_double ? (const void *)&one : (const void *)&one_f;
    const void *beta = p->accumulate ? alpha : is_double ? (const void *)&zero : (const void *)&zero_f;
    void *out = (void *)(uintptr_t)p->c.data;
    return ok &&
           lt.cublasLtMatmul(handle, &d.product, alpha, p->b.data, &d.b, p->a.data, &d.a, beta, out, &d.c, out, &d.c,
                             &algo, workspace, KR_LT_WORKSPACE, (cudaStream_t)stream) == CUBLAS_STATUS_SUCCESS;
}
