/* raw_call.h - what raw.c and op_call.c share: the table of raw ops, and calls of torch for the views of tensors. */
#ifndef KRPY_RAW_CALL_H
#define KRPY_RAW_CALL_H

#include "core.h"

#include "dlpack_abi.h"

#include <krait/raw.h>

enum { MOST_OPS = 64, MOST_VIEWS = 32, MOST_AXES = KR_MAX_RANK, NDTYPES = 6 };

/* Flags of a call. */
enum { SILU = 1, NORM_FIRST = 2, SPLIT_PAIRS = 4, SOFTPLUS = 8, ACCUMULATE = 16, STEP = 32 };

/* A view of a signature: the places of its axes s and m, -1 without one, and how many axes it has; -1: any. */
typedef struct axes {
    int rank, s, m;
} axes;

typedef struct op {
    const char *signature;
    int n_operands, n_views;
    axes views[MOST_VIEWS];
} op;

typedef struct krpy_raw {
    op ops[MOST_OPS];
    PyObject *data_ptr, *dtype, *get_device, *shape, *stride; /* interned names */
    PyObject *dtypes[NDTYPES];                                /* of torch, by kr_dtype; NULL before its first use */
    PyObject *tensor_types[2];                                /* torch.Tensor and torch.nn.Parameter */
    const dl_exchange *exchange; /* of torch, from 2.10 on; NULL: tensors are asked by their methods */
} krpy_raw;

/* The arguments of a call after the context, the op and the views. */
enum { FLAGS, CHUNK_LEN, SEQUENCES, PRECISION, N_GROUPS, EPS, RANGE, A_FLOOR, DT_MIN, DT_MAX, STREAM, WORK, N_OPTIONS };

/* Options from the arguments [N_OPTIONS], NULL where absent, but for flags, sequences, stream and work. False with an exception. */
bool krpy_raw_numbers(PyObject *const *args, kr_raw_options *o);
void krpy_raw_flags(unsigned flags, kr_raw_options *o);

/* A kernel with its views. stream: a cudaStream_t, on which it is queued; NULL is CUDA's legacy default stream. work: a
 * callable(bytes) that returns a tensor for work memory, or NULL or None. */
typedef struct krpy_raw_run {
    krpy_context *context;
    kr_raw_op op;
    int n_views;
    const kr_view *views;
    bool has_stream;
    void *stream;
    PyObject *work;
} krpy_raw_run;

/* Checks and runs it. False with an exception. */
bool krpy_raw_compute(const krpy_raw_run *run, const krpy_raw *raw, kr_raw_options *o);

/* -1: the CPU, else the number of the context's GPU. */
int krpy_device_of(const krpy_context *c);

/* The view of a torch tensor on this device by one call of torch. False, without an exception: it has none, or is elsewhere,
 * or has a type or rank that kernels do not take. */
bool krpy_view_of_tensor(const krpy_raw *raw, PyObject *tensor, int device, kr_view *view);

/* Adds the axes s and m that a view leaves out. */
void krpy_raw_complete(const axes *a, unsigned flags, kr_view *view);

extern PyType_Spec krpy_op_call_spec;

#endif
