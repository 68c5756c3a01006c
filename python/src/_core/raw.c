/* raw.c - krait._core.raw: the kernels of raw.h on memory of torch tensors and buffers, in one call.
 *
 * torch is not linked and not imported: a tensor is asked for its address, type, device, shape and strides by method names.
 * A view without the axis m of its signature has m = 1; with the flag `step` views have no axis s, which is 1. */
#include "raw_call.h"

#include <stdlib.h>
#include <string.h>

/* ---- signatures ---- */

static axes axes_of(const char *term, size_t length)
{
    axes a = { 0, -1, -1 };
    const char *at = memchr(term, ':', length), *end = term + length;
    if (!at) return a;
    for (at++; at < end && *at != '?'; at++) {
        if (*at == '.') {
            a.rank = -1;
            return a;
        }
        if (*at == 's') a.s = a.rank;
        if (*at == 'm') a.m = a.rank;
        a.rank++;
    }
    return a;
}

static void parse(op *o, const char *signature)
{
    o->signature = signature;
    const char *at = strchr(signature, ' ');
    while (at && o->n_views < MOST_VIEWS) {
        at++;
        const size_t length = strcspn(at, " ");
        if (length == 2 && at[0] == '-') {
            o->n_operands = o->n_views;
        } else {
            o->views[o->n_views++] = axes_of(at, length);
        }
        at = at[length] ? at + length : NULL;
    }
}

static bool make_names(krpy_raw *raw)
{
    raw->data_ptr = PyUnicode_InternFromString("data_ptr");
    raw->dtype = PyUnicode_InternFromString("dtype");
    raw->get_device = PyUnicode_InternFromString("get_device");
    raw->shape = PyUnicode_InternFromString("shape");
    raw->stride = PyUnicode_InternFromString("stride");
    return raw->data_ptr && raw->dtype && raw->get_device && raw->shape && raw->stride;
}

/* raw_ops: number of each op by its name. */
static bool add_table(PyObject *module, krpy_raw *raw)
{
    PyObject *table = PyDict_New();
    for (int i = 0; table && i < MOST_OPS; i++) {
        const char *signature = kr_raw_signature((kr_raw_op)i);
        if (!signature) continue;
        parse(&raw->ops[i], signature);
        PyObject *name = PyUnicode_FromStringAndSize(signature, (Py_ssize_t)strcspn(signature, " "));
        PyObject *number = PyLong_FromLong(i);
        if (!name || !number || PyDict_SetItem(table, name, number) < 0) Py_CLEAR(table);
        Py_XDECREF(name);
        Py_XDECREF(number);
    }
    const bool ok = table && PyModule_AddObjectRef(module, "raw_ops", table) == 0;
    Py_XDECREF(table);
    return ok;
}

bool krpy_raw_init(PyObject *module, krpy_module *state)
{
    state->raw = PyMem_Calloc(1, sizeof *state->raw);
    if (!state->raw) {
        PyErr_NoMemory();
        return false;
    }
    return make_names(state->raw) && add_table(module, state->raw);
}

void krpy_raw_clear(krpy_module *state)
{
    krpy_raw *raw = state->raw;
    if (!raw) return;
    Py_CLEAR(raw->data_ptr);
    Py_CLEAR(raw->dtype);
    Py_CLEAR(raw->get_device);
    Py_CLEAR(raw->shape);
    Py_CLEAR(raw->stride);
    for (int i = 0; i < NDTYPES; i++) Py_CLEAR(raw->dtypes[i]);
    for (int i = 0; i < 2; i++) Py_CLEAR(raw->tensor_types[i]);
    PyMem_Free(raw);
    state->raw = NULL;
}

PyObject *krpy_raw_signature(PyObject *module, PyObject *number)
{
    (void)module;
    int64_t value = -1;
    if (!krpy_get_int("op", number, &value)) return NULL;
    const char *signature = value >= 0 && value < MOST_OPS ? kr_raw_signature((kr_raw_op)value) : NULL;
    if (signature) return PyUnicode_FromString(signature);
    return PyErr_Format(PyExc_ValueError, "op = %lld is not a raw op", (long long)value);
}

/* ---- calls ---- */

typedef struct call {
    krpy_module *module;
    krpy_raw *raw;
    op *op;
    krpy_context *context;
    int device; /* -1: the CPU, else the number of the GPU */
    unsigned flags;
    kr_view views[MOST_VIEWS];
    Py_buffer buffers[MOST_VIEWS], sequences;
    int nbuffers;
} call;

/* The name of view n, for messages. */
static PyObject *name_of(const op *o, int n)
{
    const char *at = strchr(o->signature, ' ') + 1;
    for (int i = 0;; at = strchr(at, ' ') + 1) {
        if (at[0] == '-') continue;
        if (i++ == n) return PyUnicode_FromStringAndSize(at, (Py_ssize_t)strcspn(at, ":"));
    }
}

/* "ssd: v TEXT", of the class for `status`. Takes over the reference to text. */
static bool fail(const call *c, kr_status status, int n, PyObject *text)
{
    PyObject *name = name_of(c->op, n);
    PyObject *op_name = PyUnicode_FromStringAndSize(c->op->signature, (Py_ssize_t)strcspn(c->op->signature, " "));
    PyObject *message = name && op_name && text ? PyUnicode_FromFormat("%U: %U %U", op_name, name, text) : NULL;
    if (message) PyErr_SetObject(c->module->errors[status], message);
    Py_XDECREF(name);
    Py_XDECREF(op_name);
    Py_XDECREF(text);
    Py_XDECREF(message);
    return false;
}

static bool get_numbers(PyObject *tuple, int *count, int64_t *numbers)
{
    if (!tuple) return false;
    const Py_ssize_t length = PyTuple_Size(tuple);
    for (Py_ssize_t i = 0; i < length && i < MOST_AXES; i++) {
        numbers[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
        if (numbers[i] == -1 && PyErr_Occurred()) break;
    }
    Py_DECREF(tuple);
    *count = (int)length;
    return length >= 0 && !PyErr_Occurred();
}

/* torch's functions of DLPack's exchange, if it has them. */
static bool load_exchange(krpy_raw *raw, PyObject *torch)
{
    PyObject *nn = PyObject_GetAttrString(torch, "nn");
    raw->tensor_types[0] = PyObject_GetAttrString(torch, "Tensor");
    raw->tensor_types[1] = nn ? PyObject_GetAttrString(nn, "Parameter") : NULL;
    Py_XDECREF(nn);
    if (!raw->tensor_types[0] || !raw->tensor_types[1]) return false;
    PyObject *capsule = PyObject_GetAttrString(raw->tensor_types[0], "__dlpack_c_exchange_api__");
    const dl_exchange *exchange = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
    Py_XDECREF(capsule);
    PyErr_Clear();
    while (exchange && exchange->major > 1) exchange = exchange->older;
    raw->exchange = exchange && exchange->major == 1 ? exchange : NULL;
    return true;
}

/* The types of torch, which is loaded, since there is a tensor. */
static bool load_torch(krpy_raw *raw)
{
    static const char *const names[NDTYPES] = { "float32", "float64", "bfloat16", "float16", "int32", "int64" };
    if (raw->dtypes[NDTYPES - 1]) return true;
    PyObject *torch = PyImport_ImportModule("torch");
    bool done = torch && (raw->tensor_types[1] || load_exchange(raw, torch));
    for (int i = 0; done && i < NDTYPES; i++) {
        Py_XDECREF(raw->dtypes[i]);
        raw->dtypes[i] = PyObject_GetAttrString(torch, names[i]);
        done = raw->dtypes[i] != NULL;
    }
    Py_XDECREF(torch);
    return done;
}

/* The type of DLPack as the library's; false: none. */
static bool dtype_of_dlpack(dl_dtype given, kr_dtype *dtype)
{
    static const dl_dtype types[NDTYPES] = { { DL_FLOAT, 32, 1 }, { DL_FLOAT, 64, 1 }, { DL_BFLOAT, 16, 1 },
                                             { DL_FLOAT, 16, 1 }, { DL_INT, 32, 1 },   { DL_INT, 64, 1 } };
    for (int i = 0; i < NDTYPES; i++)
        if (types[i].code == given.code && types[i].bits == given.bits && given.lanes == 1) {
            *dtype = (kr_dtype)i;
            return true;
        }
    return false;
}

bool krpy_view_of_tensor(const krpy_raw *raw, PyObject *tensor, int device, kr_view *view)
{
    PyObject *type = (PyObject *)Py_TYPE(tensor);
    dl_tensor own;
    if (!raw->exchange || (type != raw->tensor_types[0] && type != raw->tensor_types[1])) return false;
    if (raw->exchange->view(tensor, &own) != 0) {
        PyErr_Clear();
        return false;
    }
    const bool is_here =
        device < 0 ? own.device.type == DL_CPU : own.device.type == DL_CUDA && own.device.number == device;
    if (!is_here || own.rank > MOST_AXES || !own.strides || !dtype_of_dlpack(own.dtype, &view->dtype)) return false;
    view->data = (char *)own.data + own.byte_offset;
    view->rank = own.rank;
    for (int i = 0; i < own.rank; i++) {
        view->dims[i] = own.shape[i];
        view->strides[i] = own.strides[i];
    }
    return true;
}

static bool get_dtype(call *c, int n, PyObject *tensor, kr_dtype *dtype)
{
    PyObject *own = PyObject_GetAttr(tensor, c->raw->dtype);
    if (!own || !load_torch(c->raw)) {
        Py_XDECREF(own);
        return false;
    }
    int i = 0;
    while (i < NDTYPES && c->raw->dtypes[i] != own) i++;
    *dtype = (kr_dtype)i;
    if (i == NDTYPES)
        fail(c, KR_ERR_DTYPE, n, PyUnicode_FromFormat("is of type %S; use float32, float64, bfloat16 or float16", own));
    Py_DECREF(own);
    return i < NDTYPES;
}

static bool check_device(call *c, int n, PyObject *tensor)
{
    PyObject *number = PyObject_CallMethodObjArgs(tensor, c->raw->get_device, NULL);
    const long device = number ? PyLong_AsLong(number) : -2;
    Py_XDECREF(number);
    if (device == c->device) return true;
    if (PyErr_Occurred()) return false;
    const char *rule = "all operands of a call must be on the device of the first";
    return fail(c, KR_ERR_DEVICE, n,
                device < 0 ? PyUnicode_FromFormat("is on the CPU, not on GPU %d; %s", c->device, rule)
                           : PyUnicode_FromFormat("is on GPU %ld, not on %s; %s", device,
                                                  c->device < 0 ? "the CPU" : "that of the context", rule));
}

static bool take_tensor(call *c, int n, PyObject *tensor)
{
    kr_view *view = &c->views[n];
    int strides = 0;
    if (krpy_view_of_tensor(c->raw, tensor, c->device, view)) return true;
    if (!check_device(c, n, tensor) || !get_dtype(c, n, tensor, &view->dtype)) return false;
    PyObject *address = PyObject_CallMethodObjArgs(tensor, c->raw->data_ptr, NULL);
    if (!address) return false;
    view->data = PyLong_AsVoidPtr(address);
    Py_DECREF(address);
    if (PyErr_Occurred()) return false;
    return get_numbers(PyObject_GetAttr(tensor, c->raw->shape), &view->rank, view->dims) &&
           get_numbers(PyObject_CallMethodObjArgs(tensor, c->raw->stride, NULL), &strides, view->strides);
}

static bool dtype_of_format(const Py_buffer *buffer, kr_dtype *dtype)
{
    const char *format = buffer->format ? buffer->format : "B";
    if (*format == '@' || *format == '=' || *format == '<') format++;
    if (format[0] == 0 || format[1] != 0) return false;
    switch (*format) {
    case 'f': *dtype = KR_DTYPE_F32; return true;
    case 'd': *dtype = KR_DTYPE_F64; return true;
    case 'e': *dtype = KR_DTYPE_F16; return true;
    case 'i': *dtype = KR_DTYPE_I32; return true;
    case 'l':
    case 'q': *dtype = KR_DTYPE_I64; return buffer->itemsize == 8;
    default: return false;
    }
}

static bool take_buffer(call *c, int n, PyObject *object)
{
    kr_view *view = &c->views[n];
    Py_buffer *buffer = &c->buffers[c->nbuffers];
    const int access = PyBUF_FORMAT | PyBUF_STRIDES | (n >= c->op->n_operands ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, buffer, access) < 0) return false;
    c->nbuffers++;
    if (c->device >= 0)
        return fail(c, KR_ERR_DEVICE, n,
                    PyUnicode_FromString("is in host memory, but the context is on a GPU; use tensors"));
    if (!dtype_of_format(buffer, &view->dtype))
        return fail(c, KR_ERR_DTYPE, n,
                    PyUnicode_FromFormat("is a buffer of format '%s'; kernels read f32, f64 and f16",
                                         buffer->format ? buffer->format : "B"));
    view->data = buffer->buf;
    view->rank = buffer->ndim;
    for (int i = 0; i < buffer->ndim && i < MOST_AXES; i++) {
        view->dims[i] = buffer->shape[i];
        view->strides[i] = buffer->strides[i] / buffer->itemsize;
        if (buffer->strides[i] % buffer->itemsize)
            return fail(c, KR_ERR_SHAPE, n,
                        PyUnicode_FromString("has strides that are no multiples of its elements; use a copy"));
    }
    return true;
}

static void insert_axis(kr_view *view, int at, int64_t stride)
{
    for (int i = view->rank; i > at; i--) {
        view->dims[i] = view->dims[i - 1];
        view->strides[i] = view->strides[i - 1];
    }
    view->dims[at] = 1;
    view->strides[at] = stride;
    view->rank++;
}

void krpy_raw_complete(const axes *a, unsigned flags, kr_view *view)
{
    if (a->rank < 0 || view->rank >= a->rank || view->rank < 1) return;
    if (a->s > 0 && (flags & STEP)) insert_axis(view, a->s, view->strides[a->s - 1]);
    if (a->m >= 0 && a->m < a->rank - 1 && view->rank == a->rank - 1)
        insert_axis(view, a->m, view->strides[a->m] * view->dims[a->m]);
}

static bool take_view(call *c, int n, PyObject *object)
{
    kr_view *view = &c->views[n];
    view->data = NULL;
    view->rank = 0;
    view->dtype = KR_DTYPE_F32;
    if (object == Py_None) return true;
    if (!(PyObject_CheckBuffer(object) ? take_buffer(c, n, object) : take_tensor(c, n, object))) return false;
    if (view->rank > MOST_AXES)
        return fail(c, KR_ERR_SHAPE, n, PyUnicode_FromFormat("has %d axes; at most %d", view->rank, MOST_AXES));
    krpy_raw_complete(&c->op->views[n], c->flags, view);
    return true;
}

static bool take_views(call *c, PyObject *tuple)
{
    const Py_ssize_t count = PyTuple_Size(tuple);
    if (count != c->op->n_views) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError, "raw: %zd views, but there are %d: %s", count, c->op->n_views,
                         c->op->signature);
        return false;
    }
    for (int n = 0; n < c->op->n_views; n++)
        if (!take_view(c, n, PyTuple_GetItem(tuple, n))) return false;
    return true;
}

/* ---- options ---- */

/* [q 3] of int64: a tensor of the CPU, or a buffer. */
static bool take_sequences(call *c, PyObject *object, kr_raw_options *o)
{
    kr_view view = { .rank = 0 };
    int strides = 0;
    if (!object || object == Py_None) return true;
    if (PyObject_CheckBuffer(object)) {
        if (PyObject_GetBuffer(object, &c->sequences, PyBUF_FORMAT | PyBUF_ND | PyBUF_C_CONTIGUOUS) < 0) return false;
        const bool is_list = dtype_of_format(&c->sequences, &view.dtype) && view.dtype == KR_DTYPE_I64 &&
                             c->sequences.ndim == 2 && c->sequences.shape[1] == 3;
        if (!is_list) PyErr_SetString(c->module->errors[KR_ERR_SHAPE], "raw: sequences must be int64 [q 3]");
        o->sequences = c->sequences.buf;
        o->n_sequences = is_list ? c->sequences.shape[0] : 0;
        return is_list;
    }
    PyObject *address = PyObject_CallMethodObjArgs(object, c->raw->data_ptr, NULL);
    o->sequences = address ? PyLong_AsVoidPtr(address) : NULL;
    Py_XDECREF(address);
    PyObject *own = address ? PyObject_GetAttr(object, c->raw->dtype) : NULL;
    Py_XDECREF(own);
    if (!own || !load_torch(c->raw) || !get_numbers(PyObject_GetAttr(object, c->raw->shape), &view.rank, view.dims) ||
        !get_numbers(PyObject_CallMethodObjArgs(object, c->raw->stride, NULL), &strides, view.strides))
        return false;
    if (own != c->raw->dtypes[KR_DTYPE_I64] || view.rank != 2 || view.dims[1] != 3 || view.strides[0] != 3 ||
        view.strides[1] != 1) {
        PyErr_SetString(c->module->errors[KR_ERR_SHAPE], "raw: sequences must be int64 [q 3] without gaps");
        return false;
    }
    o->n_sequences = view.dims[0];
    return true;
}

enum { CONTEXT, OP, VIEWS, OPTIONS, NARGS = OPTIONS + N_OPTIONS };

void krpy_raw_flags(unsigned flags, kr_raw_options *o)
{
    o->silu = flags & SILU;
    o->norm_first = flags & NORM_FIRST;
    o->split_pairs = flags & SPLIT_PAIRS;
    o->softplus = flags & SOFTPLUS;
    o->accumulate = flags & ACCUMULATE;
}

bool krpy_raw_numbers(PyObject *const *args, kr_raw_options *o)
{
    int64_t precision = KR_PRECISION_UNSET;
    if (!krpy_get_int("chunk_len", args[CHUNK_LEN], &o->chunk_len) ||
        !krpy_get_int("precision", args[PRECISION], &precision) ||
        !krpy_get_int("n_groups", args[N_GROUPS], &o->n_groups) || !krpy_get_double("eps", args[EPS], &o->eps) ||
        !krpy_get_double("range", args[RANGE], &o->range) || !krpy_get_double("a_floor", args[A_FLOOR], &o->a_floor) ||
        !krpy_get_double("dt_min", args[DT_MIN], &o->dt_min) || !krpy_get_double("dt_max", args[DT_MAX], &o->dt_max))
        return false;
    o->precision = (kr_precision)precision;
    return true;
}

static bool take_options(call *c, PyObject *const *args, kr_raw_options *o)
{
    krpy_raw_flags(c->flags, o);
    return take_sequences(c, args[SEQUENCES], o) && krpy_raw_numbers(args, o);
}

/* Work memory from a callable(bytes), which returns a tensor: *held, until the kernels are queued. */
static bool take_work(const krpy_raw_run *run, const krpy_raw *raw, kr_raw_options *o, PyObject **held)
{
    size_t bytes = 0;
    if (!run->work || run->work == Py_None) return true;
    KRPY_COMPUTE(run->context, bytes = kr_raw_work(run->context->ctx, run->op, run->n_views, run->views, o));
    if (bytes == 0) return true;
    *held = PyObject_CallFunction(run->work, "n", (Py_ssize_t)bytes);
    PyObject *address = *held ? PyObject_CallMethodObjArgs(*held, raw->data_ptr, NULL) : NULL;
    if (!address) return false;
    o->work = PyLong_AsVoidPtr(address);
    o->work_bytes = bytes;
    Py_DECREF(address);
    return !PyErr_Occurred();
}

bool krpy_raw_compute(const krpy_raw_run *run, const krpy_raw *raw, kr_raw_options *o)
{
    PyObject *work = NULL;
    krpy_enter(run->context);
    if (run->has_stream) krpy_use_stream(run->context, run->stream ? run->stream : KR_STREAM_LEGACY);
    if (!take_work(run, raw, o, &work)) {
        krpy_abandon(run->context);
        Py_XDECREF(work);
        return false;
    }
    KRPY_COMPUTE(run->context, kr_raw_run(run->context->ctx, run->op, run->n_views, run->views, o));
    Py_XDECREF(work);
    return krpy_leave(run->context);
}

/* Runs the kernel. False with an exception. */
static bool compute(const call *c, PyObject *const *given, kr_raw_options *o)
{
    PyObject *stream = given[STREAM];
    krpy_raw_run run = { .context = c->context,
                         .op = (kr_raw_op)(c->op - c->raw->ops),
                         .n_views = c->op->n_views,
                         .views = c->views,
                         .has_stream = stream && stream != Py_None,
                         .work = given[WORK] };
    if (run.has_stream) run.stream = PyLong_AsVoidPtr(stream);
    return !PyErr_Occurred() && krpy_raw_compute(&run, c->raw, o);
}

int krpy_device_of(const krpy_context *context)
{
    const char *name = kr_ctx_device(context->ctx), *number = strchr(name, ':');
    return number ? (int)strtol(number + 1, NULL, 10) : -1;
}

static bool begin(call *c, PyObject *module, PyObject *const *args)
{
    int64_t number = -1, flags = 0;
    c->module = PyModule_GetState(module);
    c->raw = c->module->raw;
    c->nbuffers = 0;
    c->sequences.obj = NULL;
    c->context = krpy_context_of(c->module, args[CONTEXT]);
    if (!c->context || !krpy_get_int("op", args[OP], &number) || !krpy_get_int("flags", args[OPTIONS + FLAGS], &flags))
        return false;
    if (number < 0 || number >= MOST_OPS || !c->raw->ops[number].signature) {
        PyErr_Format(PyExc_ValueError, "raw: op = %lld is not a raw op", (long long)number);
        return false;
    }
    c->op = &c->raw->ops[number];
    c->flags = (unsigned)flags;
    c->device = krpy_device_of(c->context);
    return true;
}

static void end(call *c)
{
    for (int i = 0; i < c->nbuffers; i++) PyBuffer_Release(&c->buffers[i]);
    if (c->sequences.obj) PyBuffer_Release(&c->sequences);
}

PyObject *krpy_raw_call(PyObject *module, PyObject *const *args, Py_ssize_t n_args)
{
    PyObject *given[NARGS] = { NULL };
    call c;
    kr_raw_options options;
    if (n_args < VIEWS + 1 || n_args > NARGS)
        return PyErr_Format(PyExc_TypeError, "raw: %zd arguments, but it takes from %d to %d", n_args, VIEWS + 1,
                            NARGS);
    for (Py_ssize_t i = 0; i < n_args; i++) given[i] = args[i];
    if (!begin(&c, module, given)) return NULL;
    kr_raw_options_init(&options);
    const bool ok = take_views(&c, given[VIEWS]) && take_options(&c, given + OPTIONS, &options) &&
                    compute(&c, given + OPTIONS, &options);
    end(&c);
    return ok ? Py_NewRef(Py_None) : NULL;
}
