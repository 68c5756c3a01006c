/* array_type.c - krait.Array: memory that the library lends to Python or Python to the library, without a copy. */
#include "core.h"

/* ---- element types ---- */

static const char *const dtype_names[] = { "f32", "f64", "bf16", "f16", "i32", "i64", NULL };

bool krpy_get_dtype(const char *name, PyObject *object, kr_dtype *dtype)
{
    int index = (int)*dtype;
    if (!krpy_get_word(name, object, dtype_names, &index)) return false;
    *dtype = (kr_dtype)index;
    return true;
}

/* The struct format of a type; bf16 has none and is given as the 16-bit integer that carries it. */
static const char *format_of(kr_dtype dtype)
{
    static const char *const formats[] = { "f", "d", "H", "e", "i", "q" };
    return formats[dtype];
}

static bool dtype_of_format(const char *format, Py_ssize_t itemsize, kr_dtype *dtype)
{
    if (!format) return false;
    if (*format == '@' || *format == '=' || *format == '<') format++;
    if (!format[0] || format[1]) return false;
    switch (format[0]) {
    case 'f': *dtype = KR_DTYPE_F32; break;
    case 'd': *dtype = KR_DTYPE_F64; break;
    case 'e': *dtype = KR_DTYPE_F16; break;
    case 'i':
    case 'l':
    case 'q': *dtype = itemsize == 4 ? KR_DTYPE_I32 : KR_DTYPE_I64; break;
    default: return false;
    }
    return (size_t)itemsize == kr_dtype_bytes(*dtype);
}

/* ---- memory ---- */

int64_t krpy_array_count(const krpy_array *a)
{
    int64_t count = 1;
    for (int i = 0; i < a->rank; i++) count *= a->shape[i];
    return count;
}

bool krpy_array_is_contiguous(const krpy_array *a)
{
    Py_ssize_t stride = (Py_ssize_t)kr_dtype_bytes(a->dtype);
    for (int i = a->rank - 1; i >= 0; i--) {
        if (a->shape[i] != 1 && a->strides[i] != stride) return krpy_array_count(a) == 0;
        stride *= a->shape[i];
    }
    return true;
}

void krpy_array_copy_out(const krpy_array *a, char *to)
{
    const size_t bytes = kr_dtype_bytes(a->dtype);
    const int64_t count = krpy_array_count(a);
    if (krpy_array_is_contiguous(a)) {
        if (count > 0) memcpy(to, a->data, (size_t)count * bytes);
        return;
    }
    Py_ssize_t at[KR_MAX_RANK] = { 0 };
    const char *from = a->data;
    for (int64_t i = 0; i < count; i++, to += bytes) {
        memcpy(to, from, bytes);
        for (int axis = a->rank - 1; axis >= 0; axis--) {
            from += a->strides[axis];
            if (++at[axis] < a->shape[axis]) break;
            from -= a->strides[axis] * a->shape[axis];
            at[axis] = 0;
        }
    }
}

/* ---- life ---- */

void *krpy_alloc(PyTypeObject *type)
{
    return PyType_GenericAlloc(type, 0);
}

void krpy_free(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static void device_of(const krpy_context *c, const kr_tensor *tensor, krpy_array *a)
{
    a->device_type = KRPY_CPU;
    const char *device = kr_ctx_device(c->ctx);
    if (kr_tensor_is_host(tensor) || strncmp(device, "cuda:", 5) != 0) return;
    a->device_type = KRPY_CUDA;
    a->device_number = (int)strtol(device + 5, NULL, 10);
}

PyObject *krpy_array_of_tensor(krpy_module *module, krpy_context *c, PyObject *owner, kr_tensor *tensor,
                               bool is_readonly, Py_ssize_t *exports)
{
    if (!tensor) {
        if (!PyErr_Occurred()) krpy_raise(module, KR_ERR_INTERNAL, "array: no tensor");
        return NULL;
    }
    krpy_array *self = krpy_alloc(module->array);
    if (!self) return NULL;
    const kr_shape shape = kr_tensor_shape(tensor);
    const kr_tensor_info info = kr_tensor_info_of(tensor);
    self->tensor = tensor;
    self->dtype = kr_tensor_dtype(tensor);
    self->data = kr_tensor_data(tensor);
    self->rank = shape.rank;
    for (int i = 0; i < shape.rank; i++) {
        self->shape[i] = (Py_ssize_t)shape.dims[i];
        self->strides[i] = (Py_ssize_t)info.strides[i] * (Py_ssize_t)kr_dtype_bytes(self->dtype);
    }
    device_of(c, tensor, self);
    self->is_readonly = is_readonly;
    self->context = (krpy_context *)Py_NewRef((PyObject *)c);
    self->owner = Py_NewRef(owner);
    self->exports = exports;
    if (exports) ++*exports;
    return (PyObject *)self;
}

static bool take_buffer(krpy_array *self, const char *dtype)
{
    const Py_buffer *b = &self->buffer;
    if (b->ndim > KR_MAX_RANK) {
        PyErr_Format(PyExc_ValueError, "an array of %d axes, but at most %d are supported", b->ndim, KR_MAX_RANK);
        return false;
    }
    if (dtype) {
        int index = 0;
        while (dtype_names[index] && strcmp(dtype_names[index], dtype) != 0) index++;
        if (!dtype_names[index] || (size_t)b->itemsize != kr_dtype_bytes((kr_dtype)index)) {
            PyErr_Format(PyExc_TypeError, "elements of %zd bytes cannot be of type %s", b->itemsize, dtype);
            return false;
        }
        self->dtype = (kr_dtype)index;
    } else if (!dtype_of_format(b->format, b->itemsize, &self->dtype)) {
        PyErr_Format(PyExc_TypeError,
                     "elements of format '%s' are not supported; convert them to float32, float64, float16, int32 or "
                     "int64",
                     b->format ? b->format : "B");
        return false;
    }
    self->data = b->buf;
    self->rank = b->ndim;
    Py_ssize_t stride = b->itemsize;
    for (int i = b->ndim - 1; i >= 0; i--) {
        self->shape[i] = b->shape ? b->shape[i] : b->len / b->itemsize;
        self->strides[i] = b->strides ? b->strides[i] : stride;
        stride *= self->shape[i];
    }
    self->device_type = KRPY_CPU;
    self->is_readonly = b->readonly;
    return true;
}

PyObject *krpy_array_of_buffer(krpy_module *module, PyObject *object, const char *dtype, bool is_writable)
{
    if (Py_IS_TYPE(object, module->array)) return Py_NewRef(object);
    krpy_array *self = krpy_alloc(module->array);
    if (!self) return NULL;
    if (PyObject_GetBuffer(object, &self->buffer, is_writable ? PyBUF_RECORDS : PyBUF_RECORDS_RO) == 0 &&
        take_buffer(self, dtype))
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

bool krpy_array_check_device(const krpy_array *a, const krpy_context *c)
{
    if (a->device_type == KRPY_CPU) return true;
    const char *device = c ? kr_ctx_device(c->ctx) : "cpu";
    if (strncmp(device, "cuda:", 5) == 0) return true; /* the library checks the number */
    PyErr_Format(PyExc_ValueError, "the array is on cuda:%d, but the context is on the CPU; copy it first",
                 a->device_number);
    return false;
}

bool krpy_array_is_ids(const krpy_array *a)
{
    if (!krpy_array_check_device(a, NULL)) return false;
    if (a->dtype == KR_DTYPE_I32 && krpy_array_is_contiguous(a)) return true;
    PyErr_SetString(PyExc_ValueError, "ids must be a contiguous buffer of 32-bit integers");
    return false;
}

krpy_array *krpy_array_from(krpy_module *module, const char *name, PyObject *object)
{
    if (object && Py_IS_TYPE(object, module->array)) return (krpy_array *)object;
    PyErr_Format(PyExc_TypeError, "%s must be a krait.Array", name);
    return NULL;
}

bool krpy_get_tensor(krpy_module *module, const char *name, PyObject *object, PyObject *tape, kr_tensor **tensor)
{
    *tensor = NULL;
    if (!object || object == Py_None) return true;
    krpy_array *array = krpy_array_from(module, name, object);
    if (!array) return false;
    if (array->owner != tape || !array->tensor) {
        PyErr_Format(PyExc_ValueError, "%s is not on the tape of the call; see Tape.view", name);
        return false;
    }
    *tensor = array->tensor;
    return true;
}

/* Array(object, dtype=None) */
static PyObject *array_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = { "object", "dtype", NULL };
    PyObject *object, *dtype = NULL;
    const char *text;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:Array", names, &object, &dtype)) return NULL;
    if (!krpy_get_text("dtype", dtype, &text)) return NULL;
    return krpy_array_of_buffer(PyType_GetModuleState(type), object, text, false);
}

static int array_traverse(PyObject *object, visitproc visit, void *arg)
{
    krpy_array *self = (krpy_array *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->context);
    Py_VISIT(self->owner);
    Py_VISIT(self->buffer.obj);
    return 0;
}

static void array_dealloc(PyObject *object)
{
    krpy_array *self = (krpy_array *)object;
    PyObject_GC_UnTrack(object);
    if (self->buffer.obj) PyBuffer_Release(&self->buffer);
    krpy_array_end_reading(self);
    if (self->managed) self->release(self->managed);
    if (self->exports) --*self->exports;
    Py_CLEAR(self->owner);
    Py_CLEAR(self->context);
    krpy_free(object);
}

/* ---- the buffer protocol ---- */

static int array_getbuffer(PyObject *object, Py_buffer *view, int flags)
{
    krpy_array *self = (krpy_array *)object;
    const bool is_contiguous = krpy_array_is_contiguous(self);
    view->obj = NULL;
    if (self->device_type != KRPY_CPU) {
        PyErr_Format(PyExc_BufferError, "the array is on cuda:%d: read it with numpy()", self->device_number);
        return -1;
    }
    if (self->is_readonly && (flags & PyBUF_WRITABLE)) {
        PyErr_SetString(PyExc_BufferError, "the array is read-only");
        return -1;
    }
    if (!is_contiguous && (flags & PyBUF_STRIDES) != PyBUF_STRIDES) {
        PyErr_SetString(PyExc_BufferError, "the array is not contiguous");
        return -1;
    }
    if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && self->rank > 1) {
        PyErr_SetString(PyExc_BufferError, "the array is not in the order of Fortran");
        return -1;
    }
    if (!is_contiguous && (flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS) {
        PyErr_SetString(PyExc_BufferError, "the array is not contiguous");
        return -1;
    }
    view->buf = self->data;
    view->itemsize = (Py_ssize_t)kr_dtype_bytes(self->dtype);
    view->len = (Py_ssize_t)krpy_array_count(self) * view->itemsize;
    view->readonly = self->is_readonly;
    view->ndim = self->rank;
    view->format = (flags & PyBUF_FORMAT) ? (char *)format_of(self->dtype) : NULL;
    view->shape = (flags & PyBUF_ND) == PyBUF_ND ? self->shape : NULL;
    view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? self->strides : NULL;
    view->suboffsets = NULL;
    view->internal = NULL;
    view->obj = Py_NewRef(object);
    return 0;
}

/* ---- attributes and methods ---- */

static PyObject *sizes_tuple(const Py_ssize_t *sizes, int rank)
{
    PyObject *tuple = PyTuple_New(rank);
    for (int i = 0; tuple && i < rank; i++) {
        PyObject *size = PyLong_FromSsize_t(sizes[i]);
        if (!size || PyTuple_SetItem(tuple, i, size) < 0) Py_CLEAR(tuple);
    }
    return tuple;
}

static PyObject *get_shape(PyObject *self, void *closure)
{
    (void)closure;
    return sizes_tuple(((krpy_array *)self)->shape, ((krpy_array *)self)->rank);
}

static PyObject *get_strides(PyObject *self, void *closure)
{
    (void)closure;
    return sizes_tuple(((krpy_array *)self)->strides, ((krpy_array *)self)->rank);
}

static PyObject *get_ndim(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromLong(((krpy_array *)self)->rank);
}

static PyObject *get_dtype_name(PyObject *self, void *closure)
{
    (void)closure;
    return PyUnicode_FromString(dtype_names[((krpy_array *)self)->dtype]);
}

static PyObject *get_nbytes(PyObject *self, void *closure)
{
    (void)closure;
    const krpy_array *a = (krpy_array *)self;
    return PyLong_FromLongLong(krpy_array_count(a) * (long long)kr_dtype_bytes(a->dtype));
}

static PyObject *get_device(PyObject *self, void *closure)
{
    (void)closure;
    const krpy_array *a = (krpy_array *)self;
    if (a->device_type == KRPY_CPU) return PyUnicode_FromString("cpu");
    return PyUnicode_FromFormat("cuda:%d", a->device_number);
}

static PyObject *get_readonly(PyObject *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((krpy_array *)self)->is_readonly);
}

static PyObject *get_address(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromVoidPtr(((krpy_array *)self)->data);
}

/* read(out, dtype=None): the elements as `dtype` into a contiguous, writable buffer. */
static PyObject *array_read(PyObject *object, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    static const char *const names[] = { "out", "dtype", NULL };
    krpy_array *self = (krpy_array *)object;
    krpy_module *module = krpy_module_of(object);
    PyObject *values[2];
    const char *dtype;
    if (!krpy_args("read", names, 1, 2, args, n_args, kwnames, values) || !krpy_get_text("dtype", values[1], &dtype))
        return NULL;
    if (!self->tensor) {
        PyErr_SetString(PyExc_ValueError, "read: the array is not one of the library; use its buffer");
        return NULL;
    }
    krpy_array *out = (krpy_array *)krpy_array_of_buffer(module, values[0], dtype, true);
    if (!out) return NULL;
    bool is_ok = !out->is_readonly && krpy_array_is_contiguous(out);
    if (!is_ok) PyErr_SetString(PyExc_ValueError, "read: out must be contiguous and writable");
    else if ((is_ok = krpy_array_check_device(out, self->context))) {
        krpy_enter(self->context);
        KRPY_COMPUTE(self->context, kr_tensor_read(self->tensor, out->dtype, out->data, krpy_array_count(out)));
        is_ok = krpy_leave(self->context);
    }
    Py_DECREF(out);
    if (!is_ok) return NULL;
    Py_RETURN_NONE;
}

/* Calls a function of krait._arrays, which knows NumPy. */
static PyObject *call_arrays(const char *function, PyObject *args, PyObject *kwargs)
{
    PyObject *module = PyImport_ImportModule("krait._arrays");
    PyObject *callable = module ? PyObject_GetAttrString(module, function) : NULL;
    PyObject *result = callable ? PyObject_Call(callable, args, kwargs) : NULL;
    Py_XDECREF(callable);
    Py_XDECREF(module);
    return result;
}

static PyObject *array_numpy(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    PyObject *args = PyTuple_Pack(1, self);
    PyObject *result = args ? call_arrays("to_numpy", args, NULL) : NULL;
    Py_XDECREF(args);
    return result;
}

static PyObject *array_array(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = { "dtype", "copy", NULL };
    PyObject *dtype = Py_None, *copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OO:__array__", names, &dtype, &copy)) return NULL;
    PyObject *all = PyTuple_Pack(3, self, dtype, copy);
    PyObject *result = all ? call_arrays("array_protocol", all, NULL) : NULL;
    Py_XDECREF(all);
    return result;
}

static PyObject *array_repr(PyObject *self)
{
    const krpy_array *a = (krpy_array *)self;
    PyObject *shape = get_shape(self, NULL);
    PyObject *device = get_device(self, NULL);
    PyObject *text = NULL;
    if (shape && device) text = PyUnicode_FromFormat("<krait.Array %R %s, %U>", shape, dtype_names[a->dtype], device);
    Py_XDECREF(shape);
    Py_XDECREF(device);
    return text;
}

PyDoc_STRVAR(array_doc,
             "Array(object, dtype=None)\n--\n\n"
             "Memory without a copy: of a tensor of Krait, of an object with the buffer protocol, or by DLPack.\n\n"
             "numpy.asarray(array), numpy.from_dlpack(array) and torch.from_dlpack(array) share the memory, and keep\n"
             "its owner. bf16 has no buffer format: numpy() gives ml_dtypes.bfloat16, or uint16 without ml_dtypes.\n\n"
             ">>> import krait, numpy as np\n"
             ">>> krait.Array(np.zeros((2, 3), np.float32))\n"
             "<krait.Array (2, 3) f32, cpu>\n");

static PyMethodDef array_methods[] = {
    { "read", (PyCFunction)(void (*)(void))array_read, METH_FASTCALL | METH_KEYWORDS,
      "read($self, out, dtype=None)\n--\n\nCopies the elements to a contiguous buffer, converted to its type." },
    { "numpy", array_numpy, METH_NOARGS,
      "numpy($self, /)\n--\n\nA NumPy array: of the same memory on the CPU, a copy from a GPU." },
    { "__array__", (PyCFunction)(void (*)(void))array_array, METH_VARARGS | METH_KEYWORDS,
      "__array__($self, dtype=None, copy=None)\n--\n\nThe protocol of numpy.asarray." },
    { "__dlpack__", (PyCFunction)(void (*)(void))krpy_array_dlpack, METH_FASTCALL | METH_KEYWORDS,
      "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\nA DLPack capsule." },
    { "__dlpack_device__", krpy_array_dlpack_device, METH_NOARGS,
      "__dlpack_device__($self, /)\n--\n\nDevice type and number of DLPack: (1, 0) is the CPU, (2, n) CUDA." },
    { 0 },
};

static PyGetSetDef array_attributes[] = {
    { "shape", get_shape, NULL, "Sizes of the axes.", NULL },
    { "strides", get_strides, NULL, "Bytes from one element of an axis to the next.", NULL },
    { "ndim", get_ndim, NULL, "Number of axes.", NULL },
    { "dtype_name", get_dtype_name, NULL, "Element type: 'f32', 'f64', 'bf16', 'f16', 'i32' or 'i64'.", NULL },
    { "nbytes", get_nbytes, NULL, "Bytes of all elements.", NULL },
    { "device", get_device, NULL, "'cpu' or 'cuda:0'.", NULL },
    { "readonly", get_readonly, NULL, "Whether the memory must not be written.", NULL },
    { "address", get_address, NULL, "Address of the first element.", NULL },
    { 0 },
};

static PyType_Slot array_slots[] = {
    { Py_tp_doc, (void *)array_doc },
    { Py_tp_new, array_new },
    { Py_tp_dealloc, array_dealloc },
    { Py_tp_traverse, array_traverse },
    { Py_tp_repr, array_repr },
    { Py_tp_methods, array_methods },
    { Py_tp_getset, array_attributes },
    { Py_bf_getbuffer, array_getbuffer },
    { 0, NULL },
};

PyType_Spec krpy_array_spec = {
    .name = "krait.Array",
    .basicsize = sizeof(krpy_array),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = array_slots,
};
