/* params_type.c - Params: the parameter table of a model, a block or a stack. Private; krait.Params is the mapping. */
#include "core.h"

typedef struct krpy_params {
    PyObject_HEAD krpy_context *context;
    PyObject *owner;
    kr_params *params;
} krpy_params;

PyObject *krpy_params_new(krpy_module *module, krpy_context *c, PyObject *owner, kr_params *params)
{
    krpy_params *self = krpy_alloc(module->params);
    if (!self) return NULL;
    self->context = (krpy_context *)Py_NewRef((PyObject *)c);
    self->owner = Py_NewRef(owner);
    self->params = params;
    return (PyObject *)self;
}

static int params_traverse(PyObject *object, visitproc visit, void *arg)
{
    krpy_params *self = (krpy_params *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->context);
    Py_VISIT(self->owner);
    return 0;
}

static void params_dealloc(PyObject *object)
{
    krpy_params *self = (krpy_params *)object;
    PyObject_GC_UnTrack(object);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->context);
    krpy_free(object);
}

static const kr_param_row *row_at(const krpy_params *self, PyObject *index)
{
    int64_t i = -1;
    if (!krpy_get_int("index", index, &i)) return NULL;
    const kr_param_row *row = kr_params_at(self->params, i);
    if (!row) PyErr_Format(PyExc_IndexError, "there is no parameter %lld", (long long)i);
    return row;
}

/* [(name, axes, shape, dtype name, has weight decay), ...] */
static PyObject *params_rows(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    krpy_params *self = (krpy_params *)object;
    const int64_t count = kr_params_count(self->params);
    PyObject *rows = PyList_New(0);
    for (int64_t i = 0; rows && i < count; i++) {
        const kr_param_row *row = kr_params_at(self->params, i);
        const kr_shape shape = kr_tensor_shape(row->tensor);
        PyObject *sizes = PyTuple_New(shape.rank);
        for (int axis = 0; sizes && axis < shape.rank; axis++) {
            PyObject *size = PyLong_FromLongLong(shape.dims[axis]);
            if (!size || PyTuple_SetItem(sizes, axis, size) < 0) Py_CLEAR(sizes);
        }
        PyObject *one =
            sizes ? Py_BuildValue("(ssOsN)", row->name, row->axes, sizes, kr_dtype_name(kr_tensor_dtype(row->tensor)),
                                  PyBool_FromLong(row->has_decay))
                  : NULL;
        if (!one || PyList_Append(rows, one) < 0) Py_CLEAR(rows);
        Py_XDECREF(one);
        Py_XDECREF(sizes);
    }
    return rows;
}

static PyObject *params_array(PyObject *object, PyObject *index)
{
    krpy_params *self = (krpy_params *)object;
    const kr_param_row *row = row_at(self, index);
    if (!row) return NULL;
    return krpy_array_of_tensor(krpy_module_of(object), self->context, self->owner, row->tensor, true, NULL);
}

/* write(index, buffer, dtype=None) */
static PyObject *params_write(PyObject *object, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    static const char *const names[] = { "index", "buffer", "dtype", NULL };
    krpy_params *self = (krpy_params *)object;
    PyObject *values[3];
    const char *dtype;
    if (!krpy_args("write", names, 2, 3, args, n_args, kwnames, values) || !krpy_get_text("dtype", values[2], &dtype))
        return NULL;
    const kr_param_row *row = row_at(self, values[0]);
    if (!row) return NULL;
    krpy_array *a = (krpy_array *)krpy_array_of_buffer(krpy_module_of(object), values[1], dtype, false);
    if (!a) return NULL;
    bool is_ok = krpy_array_is_contiguous(a);
    if (!is_ok) PyErr_SetString(PyExc_ValueError, "write: the buffer must be contiguous");
    else if ((is_ok = krpy_array_check_device(a, self->context))) {
        krpy_enter(self->context);
        KRPY_COMPUTE(self->context, kr_param_write(row->tensor, a->dtype, a->data, krpy_array_count(a)));
        is_ok = krpy_leave(self->context);
    }
    Py_DECREF(a);
    if (!is_ok) return NULL;
    Py_RETURN_NONE;
}

static PyObject *params_grad(PyObject *object, PyObject *index)
{
    krpy_params *self = (krpy_params *)object;
    const kr_param_row *row = row_at(self, index);
    if (!row) return NULL;
    kr_tensor *gradient = kr_grad(row->tensor);
    if (!gradient) Py_RETURN_NONE;
    return krpy_array_of_tensor(krpy_module_of(object), self->context, self->owner, gradient, true, NULL);
}

static PyObject *params_zero_grad(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    krpy_params *self = (krpy_params *)object;
    krpy_enter(self->context);
    KRPY_COMPUTE(self->context, kr_params_zero_grad(self->params));
    if (!krpy_leave(self->context)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *params_reset(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    krpy_params *self = (krpy_params *)object;
    krpy_enter(self->context);
    KRPY_COMPUTE(self->context, kr_params_reset(self->params));
    if (!krpy_leave(self->context)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *params_pack(PyObject *object, PyObject *pack)
{
    krpy_params *self = (krpy_params *)object;
    bool is_packed = true;
    if (!krpy_get_bool("pack", pack, &is_packed)) return NULL;
    krpy_enter(self->context);
    KRPY_COMPUTE(self->context, if (is_packed) kr_params_pack(self->params); else kr_params_unpack(self->params));
    if (!krpy_leave(self->context)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *params_describe(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    krpy_params *self = (krpy_params *)object;
    const size_t bytes = kr_params_describe(self->params, NULL, 0);
    char *text = PyMem_Malloc(bytes + 1);
    if (!text) return PyErr_NoMemory();
    kr_params_describe(self->params, text, bytes + 1);
    PyObject *made = PyUnicode_FromString(text);
    PyMem_Free(text);
    return made;
}

/* load(path) and save(path): a safetensors file. */
static PyObject *file_call(PyObject *object, PyObject *path, bool is_load)
{
    krpy_params *self = (krpy_params *)object;
    PyObject *keep;
    const char *text;
    if (!krpy_get_path("path", path, &keep, &text)) return NULL;
    kr_status status = KR_OK;
    krpy_enter(self->context);
    KRPY_COMPUTE(self->context,
                 status = is_load ? kr_params_load(self->params, text) : kr_params_save(self->params, text));
    const bool is_ok = krpy_leave(self->context) && status == KR_OK;
    Py_XDECREF(keep);
    if (!is_ok) return NULL;
    Py_RETURN_NONE;
}

static PyObject *params_load(PyObject *self, PyObject *path)
{
    return file_call(self, path, true);
}

static PyObject *params_save(PyObject *self, PyObject *path)
{
    return file_call(self, path, false);
}

static PyObject *get_elements(PyObject *object, void *closure)
{
    (void)closure;
    return PyLong_FromLongLong(kr_params_elements(((krpy_params *)object)->params));
}

static PyMethodDef params_methods[] = {
    { "rows", params_rows, METH_NOARGS,
      "rows($self, /)\n--\n\nName, axes, shape, type and weight decay of each parameter." },
    { "array", params_array, METH_O, "array($self, index, /)\n--\n\nThe memory of a parameter, read-only." },
    { "write", (PyCFunction)(void (*)(void))params_write, METH_FASTCALL | METH_KEYWORDS,
      "write($self, index, buffer, dtype=None)\n--\n\nOverwrites a parameter, converted to its type." },
    { "grad", params_grad, METH_O, "grad($self, index, /)\n--\n\nThe gradient of a parameter, or None." },
    { "zero_grad", params_zero_grad, METH_NOARGS, "zero_grad($self, /)\n--\n\nZeroes all gradients." },
    { "reset", params_reset, METH_NOARGS, "reset($self, /)\n--\n\nInitialises all parameters again." },
    { "pack", params_pack, METH_O, "pack($self, pack, /)\n--\n\nPacks the projections for decoding, or unpacks them." },
    { "describe", params_describe, METH_NOARGS, "describe($self, /)\n--\n\nThe table as text." },
    { "load", params_load, METH_O, "load($self, path, /)\n--\n\nLoads all parameters from a safetensors file." },
    { "save", params_save, METH_O, "save($self, path, /)\n--\n\nSaves all parameters to a safetensors file." },
    { 0 },
};

static PyGetSetDef params_attributes[] = {
    { "elements", get_elements, NULL, "Number of elements of all parameters.", NULL },
    { 0 },
};

static PyType_Slot params_slots[] = {
    { Py_tp_doc, (void *)"The parameter table of a model, a block or a stack." },
    { Py_tp_dealloc, params_dealloc },
    { Py_tp_traverse, params_traverse },
    { Py_tp_methods, params_methods },
    { Py_tp_getset, params_attributes },
    { 0, NULL },
};

PyType_Spec krpy_params_spec = {
    .name = "krait._core.Params",
    .basicsize = sizeof(krpy_params),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = params_slots,
};
