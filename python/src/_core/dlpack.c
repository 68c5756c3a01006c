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

/* Other libraries read after the work that is queued for the array. -1: the consumer does not want to wait. */
static bool wait_for_consumer(krpy_array *a, PyObject *stream)
{
    int64_t number = 0;
    if (!krpy_get_int("stream", stream, &number)) return false;
    if (a->device_type == KRPY_CPU && stream && stream != Py_None && number != -1) {
        PyErr_SetString(PyExc_BufferError, "__dlpack__: the array is on the CPU, which has no streams");
        return false;
    }
    if (!a->context || number == -1) return true;
    krpy_enter(a->context);
    KRPY_COMPUTE(a->context, kr_ctx_wait(a->context->ctx));
    return krpy_leave(a->context);
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
    if (!krpy_get_bool("copy", values[3], &is_copy) || !check_device(a, values[2]) || !wait_for_consumer(a, values[0]))
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

/* Asks for version 1, and, of objects that know no versions, for the old capsule. */
static PyObject *capsule_of(PyObject *object)
{
    PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
    if (!method) return NULL;
    PyObject *none = PyTuple_New(0);
    PyObject *named = Py_BuildValue("{s:(ii)}", "max_version", 1, 0);
    PyObject *capsule = none && named ? PyObject_Call(method, none, named) : NULL;
    if (!capsule && none && named && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        capsule = PyObject_Call(method, none, NULL);
    }
    Py_XDECREF(none);
    Py_XDECREF(named);
    Py_DECREF(method);
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
