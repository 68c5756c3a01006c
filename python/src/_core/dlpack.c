/* dlpack.c - arrays to and from other libraries by DLPack: capsules of version 1, and the unversioned ones before it. */
#include "core.h"

#include "dlpack_abi.h"

#define OLD_NAME "dltensor"
#define OLD_USED "used_dltensor"
#define NEW_NAME "dltensor_versioned"
#define NEW_USED "used_dltensor_versioned"

/* ---- export ---- */

/* What a capsule of ours points to: one block of memory, released with the array that it keeps. */
typedef struct dl_export {
    union {
        dl_managed old;
        dl_versioned versioned;
    };
    PyObject *array; /* NULL for a copy */
    void *copy;
    int64_t sizes[2 * KR_MAX_RANK];
} dl_export;

static void export_free(dl_export *e)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    Py_XDECREF(e->array);
    PyMem_Free(e->copy);
    PyMem_Free(e);
    PyGILState_Release(gil);
}

static void release_old(dl_managed *self)
{
    export_free(self->owner);
}

static void release_versioned(dl_versioned *self)
{
    export_free(self->owner);
}

static void old_capsule_free(PyObject *capsule)
{
    if (!PyCapsule_IsValid(capsule, OLD_NAME)) return; /* a consumer has taken it */
    dl_managed *managed = PyCapsule_GetPointer(capsule, OLD_NAME);
    managed->release(managed);
}

static void new_capsule_free(PyObject *capsule)
{
    if (!PyCapsule_IsValid(capsule, NEW_NAME)) return;
    dl_versioned *managed = PyCapsule_GetPointer(capsule, NEW_NAME);
    managed->release(managed);
}

static dl_dtype dl_dtype_of(kr_dtype dtype)
{
    const uint8_t code = dtype == KR_DTYPE_BF16                           ? DL_BFLOAT
                         : dtype == KR_DTYPE_I32 || dtype == KR_DTYPE_I64 ? DL_INT
                                                                          : DL_FLOAT;
    return (dl_dtype){ code, (uint8_t)(8 * kr_dtype_bytes(dtype)), 1 };
}

static dl_export *export_new(krpy_array *a, bool is_copy)
{
    dl_export *e = PyMem_Malloc(sizeof *e);
    if (!e) {
        PyErr_NoMemory();
        return NULL;
    }
    *e = (dl_export){ .array = NULL };
    const int64_t bytes = (int64_t)kr_dtype_bytes(a->dtype);
    if (is_copy) {
        e->copy = PyMem_Malloc((size_t)(krpy_array_count(a) * bytes) + 1);
        if (!e->copy) {
            PyMem_Free(e);
            PyErr_NoMemory();
            return NULL;
        }
        krpy_array_copy_out(a, e->copy);
    } else e->array = Py_NewRef((PyObject *)a);
    int64_t stride = 1;
    for (int i = a->rank - 1; i >= 0; i--) {
        e->sizes[i] = a->shape[i];
        e->sizes[KR_MAX_RANK + i] = is_copy ? stride : a->strides[i] / bytes;
        stride *= a->shape[i];
    }
    return e;
}

static dl_tensor tensor_of(krpy_array *a, dl_export *e)
{
    return (dl_tensor){ .data = e->copy ? e->copy : a->data,
                        .device = { a->device_type, a->device_number },
                        .rank = a->rank,
                        .dtype = dl_dtype_of(a->dtype),
                        .shape = e->sizes,
                        .strides = e->sizes + KR_MAX_RANK };
}

static PyObject *export_capsule(krpy_array *a, bool is_versioned, bool is_copy)
{
    dl_export *e = export_new(a, is_copy);
    if (!e) return NULL;
    PyObject *capsule;
    if (is_versioned) {
        e->versioned =
            (dl_versioned){ .major = 1, .owner = e, .release = release_versioned, .tensor = tensor_of(a, e) };
        if (is_copy) e->versioned.flags = DL_IS_COPIED;
        else if (a->is_readonly) e->versioned.flags = DL_READ_ONLY;
        capsule = PyCapsule_New(&e->versioned, NEW_NAME, new_capsule_free);
    } else {
        e->old = (dl_managed){ .tensor = tensor_of(a, e), .owner = e, .release = release_old };
        capsule = PyCapsule_New(&e->old, OLD_NAME, old_capsule_free);
    }
    if (!capsule) export_free(e);
    return capsule;
}

/* Is the requested device, None or (type, number), that of the array? */
static bool check_device(const krpy_array *a, PyObject *device)
{
    int type = 0, number = 0;
    if (!device || device == Py_None) return true;
    if (!PyArg_Parse(device, "(ii)", &type, &number)) return false;
    if (type == a->device_type && number == a->device_number) return true;
    PyErr_Format(PyExc_BufferError, "__dlpack__: dl_device is (%d, %d), but the array is on device (%d, %d)", type,
                 number, a->device_type, a->device_number);
    return false;
}

/* The work of `stream` that is queued from now on runs after that of the context, whose later work runs after what the
 * stream has now. The host does not wait. */
static bool order_streams(krpy_context *c, void *stream)
{
    void *const before = c->stream;
    krpy_enter(c);
    krpy_use_stream(c, stream);
    krpy_use_stream(c, before);
    return krpy_leave(c);
}

void krpy_array_end_reading(krpy_array *a)
{
    krpy_context *c = a->reader;
    if (!c) return;
    a->reader = NULL;
    krpy_enter(c);
    KRPY_COMPUTE(c, kr_ctx_wait(c->ctx));
    krpy_abandon(c);
    Py_DECREF(c);
}

bool krpy_array_order(krpy_array *a, krpy_context *c)
{
    if (!a->managed || a->device_type == KRPY_CPU || a->reader == c) return true;
    krpy_array_end_reading(a); /* of another context */
    if (!order_streams(c, KR_STREAM_LEGACY)) return false;
    a->reader = (krpy_context *)Py_NewRef((PyObject *)c);
    return true;
}

/* The consumer's stream reads after the work that is queued for the array: 1 or None is CUDA's legacy default stream, 2 that
 * of each thread, others are a cudaStream_t. -1: the consumer does not want to wait. */
static bool order_consumer(krpy_array *a, PyObject *stream)
{
    int64_t number = 1;
    if (stream && stream != Py_None && !krpy_get_int("stream", stream, &number)) return false;
    if (a->device_type == KRPY_CPU) {
        if (!stream || stream == Py_None || number == -1) return true;
        PyErr_SetString(PyExc_BufferError, "__dlpack__: the array is on the CPU, which has no streams");
        return false;
    }
    if (number == 0 || number < -1) {
        PyErr_Format(PyExc_BufferError,
                     "__dlpack__: stream is %lld, but must be -1, 1 (legacy default), 2 (per thread) or a cudaStream_t",
                     (long long)number);
        return false;
    }
    return !a->context || number == -1 || order_streams(a->context, (void *)(intptr_t)number);
}

PyObject *krpy_array_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    static const char *const names[] = { "stream", "max_version", "dl_device", "copy", NULL };
    krpy_array *a = (krpy_array *)self;
    PyObject *values[4];
    int major = 0, minor = 0;
    bool is_copy = false;
    if (!krpy_args("__dlpack__", names, 0, 1, args, n_args, kwnames, values)) return NULL;
    if (values[1] && values[1] != Py_None && !PyArg_Parse(values[1], "(ii)", &major, &minor)) return NULL;
    if (!krpy_get_bool("copy", values[3], &is_copy) || !check_device(a, values[2]) || !order_consumer(a, values[0]))
        return NULL;
    if (is_copy && a->device_type != KRPY_CPU) {
        PyErr_SetString(PyExc_BufferError, "__dlpack__: copy=True is for arrays on the CPU; copy the result instead");
        return NULL;
    }
    if (major < 1 && a->is_readonly && !is_copy) {
        PyErr_SetString(PyExc_BufferError, "__dlpack__: the array is read-only, which a consumer before DLPack 1.0 "
                                           "cannot know; copy it first");
        return NULL;
    }
    return export_capsule(a, major >= 1, is_copy);
}

PyObject *krpy_array_dlpack_device(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    const krpy_array *a = (krpy_array *)self;
    return Py_BuildValue("(ii)", a->device_type, a->device_number);
}

/* ---- import ---- */

static bool kr_dtype_of(dl_dtype dtype, kr_dtype *result)
{
    if (dtype.lanes == 1)
        for (int i = KR_DTYPE_F32; i <= KR_DTYPE_I64; i++) {
            const dl_dtype one = dl_dtype_of((kr_dtype)i);
            if (one.code != dtype.code || one.bits != dtype.bits) continue;
            *result = (kr_dtype)i;
            return true;
        }
    PyErr_Format(PyExc_TypeError,
                 "from_dlpack: element type %d with %d bits and %d lanes is not supported; convert it to f32, f64, "
                 "bf16, f16, i32 or i64",
                 dtype.code, dtype.bits, dtype.lanes);
    return false;
}

static bool take_tensor(krpy_array *self, const dl_tensor *t)
{
    if (!kr_dtype_of(t->dtype, &self->dtype)) return false;
    if (t->rank < 0 || t->rank > KR_MAX_RANK) {
        PyErr_Format(PyExc_ValueError, "from_dlpack: %d axes, but at most %d are supported", (int)t->rank, KR_MAX_RANK);
        return false;
    }
    if (t->device.type != KRPY_CPU && t->device.type != KRPY_CUDA && t->device.type != 3) {
        PyErr_Format(PyExc_BufferError, "from_dlpack: device type %d is neither the CPU nor CUDA", (int)t->device.type);
        return false;
    }
    self->device_type = t->device.type == KRPY_CUDA ? KRPY_CUDA : KRPY_CPU; /* 3: pinned host memory */
    self->device_number = t->device.type == KRPY_CUDA ? t->device.number : 0;
    self->data = (char *)t->data + t->byte_offset;
    self->rank = t->rank;
    const int64_t bytes = (int64_t)kr_dtype_bytes(self->dtype);
    int64_t stride = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        self->shape[i] = (Py_ssize_t)t->shape[i];
        self->strides[i] = (Py_ssize_t)((t->strides ? t->strides[i] : stride) * bytes);
        stride *= t->shape[i];
    }
    return true;
}

static void release_managed_old(void *managed)
{
    dl_managed *m = managed;
    if (m->release) m->release(m);
}

static void release_managed_new(void *managed)
{
    dl_versioned *m = managed;
    if (m->release) m->release(m);
}

/* Takes over the tensor of a capsule. */
static bool take_capsule(krpy_array *self, PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, NEW_NAME)) {
        dl_versioned *m = PyCapsule_GetPointer(capsule, NEW_NAME);
        if (m->major > 1) {
            PyErr_Format(PyExc_BufferError, "from_dlpack: version %d.%d is newer than 1", (int)m->major, (int)m->minor);
            return false;
        }
        if (!take_tensor(self, &m->tensor) || PyCapsule_SetName(capsule, NEW_USED) < 0) return false;
        self->is_readonly = (m->flags & DL_READ_ONLY) != 0;
        self->managed = m;
        self->release = release_managed_new;
        return true;
    }
    if (PyCapsule_IsValid(capsule, OLD_NAME)) {
        dl_managed *m = PyCapsule_GetPointer(capsule, OLD_NAME);
        if (!take_tensor(self, &m->tensor) || PyCapsule_SetName(capsule, OLD_USED) < 0) return false;
        self->managed = m;
        self->release = release_managed_old;
        return true;
    }
    PyErr_SetString(PyExc_TypeError, "from_dlpack: __dlpack__ gave no capsule with a tensor, or a used one");
    return false;
}

/* The type of the device, that of the CPU if the object does not say. -1 with an exception. */
static int device_type_of(PyObject *object)
{
    int type = KRPY_CPU, number = 0;
    PyObject *device = PyObject_CallMethod(object, "__dlpack_device__", NULL);
    if (device && !PyArg_Parse(device, "(ii)", &type, &number)) type = -1;
    if (!device && !PyErr_ExceptionMatches(PyExc_AttributeError)) return -1;
    if (!device) PyErr_Clear();
    Py_XDECREF(device);
    return type;
}

/* Version 1, and memory of a GPU ready in the order of the legacy default stream; then less, for objects that know less. */
static PyObject *keywords_of(int device_type, int attempt)
{
    const int legacy = 1;
    if (attempt == 2) return PyDict_New();
    if (device_type == KRPY_CUDA)
        return attempt == 0 ? Py_BuildValue("{s:(ii),s:i}", "max_version", 1, 0, "stream", legacy)
                            : Py_BuildValue("{s:i}", "stream", legacy);
    return attempt == 0 ? Py_BuildValue("{s:(ii)}", "max_version", 1, 0) : PyDict_New();
}

/* The capsule of an object; a capsule is taken as it is. */
static PyObject *capsule_of(PyObject *object)
{
    if (PyCapsule_CheckExact(object)) return Py_NewRef(object);
    PyObject *method = PyObject_GetAttrString(object, "__dlpack__"), *capsule = NULL;
    const int type = method ? device_type_of(object) : -1;
    PyObject *none = type >= 0 ? PyTuple_New(0) : NULL;
    for (int attempt = 0; none && !capsule && attempt < 3; attempt++) {
        if (attempt > 0 && !PyErr_ExceptionMatches(PyExc_TypeError)) break;
        PyErr_Clear();
        PyObject *keywords = keywords_of(type, attempt);
        capsule = keywords ? PyObject_Call(method, none, keywords) : NULL;
        Py_XDECREF(keywords);
    }
    Py_XDECREF(none);
    Py_XDECREF(method);
    return capsule;
}

PyObject *krpy_from_dlpack(PyObject *module, PyObject *object)
{
    krpy_module *state = PyModule_GetState(module);
    PyObject *capsule = capsule_of(object);
    if (!capsule) return NULL;
    krpy_array *self = krpy_alloc(state->array);
    if (self && !take_capsule(self, capsule)) Py_CLEAR(self);
    Py_DECREF(capsule);
    return (PyObject *)self;
}
