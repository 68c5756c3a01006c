/* tape_type.c - Tape: the tensors of a computation, and their gradients. Private to the package; arrays keep it. */
#include "core.h"

static void destroy_tape(void *tape)
{
    kr_tape_destroy(tape);
}

bool krpy_tape_keep(krpy_tape *tape, PyObject *object)
{
    return PyList_Append(tape->keep, object) == 0;
}

krpy_tape *krpy_tape_of(krpy_module *module, PyObject *object)
{
    if (object && Py_IS_TYPE(object, module->tape)) return (krpy_tape *)object;
    PyErr_SetString(PyExc_TypeError, "tape must be a Tape");
    return NULL;
}

/* Tape(context, grad=False) */
static PyObject *tape_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = { "context", "grad", NULL };
    PyObject *context;
    int grad = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|p:Tape", names, &context, &grad)) return NULL;
    krpy_context *c = krpy_context_of(PyType_GetModuleState(type), context);
    krpy_tape *self = c ? krpy_alloc(type) : NULL;
    if (!self) return NULL;
    self->context = (krpy_context *)Py_NewRef((PyObject *)c);
    self->is_grad = grad != 0;
    self->keep = PyList_New(0);
    self->handle = self->keep ? krpy_handle_new() : NULL;
    if (self->handle) {
        krpy_enter(c);
        self->tape = kr_tape_create(c->ctx, grad ? KR_TAPE_GRAD : KR_TAPE_NO_GRAD);
        *self->handle = (krpy_handle){ .destroy = destroy_tape, .object = self->tape };
        if (krpy_leave(c)) return (PyObject *)self;
    }
    Py_DECREF(self);
    return NULL;
}

static int tape_traverse(PyObject *object, visitproc visit, void *arg)
{
    krpy_tape *self = (krpy_tape *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->context);
    Py_VISIT(self->keep);
    return 0;
}

static int tape_clear(PyObject *object)
{
    krpy_tape *self = (krpy_tape *)object;
    Py_CLEAR(self->keep);
    return 0;
}

static void tape_dealloc(PyObject *object)
{
    krpy_tape *self = (krpy_tape *)object;
    PyObject_GC_UnTrack(object);
    if (self->context) krpy_discard(self->context, self->handle);
    Py_CLEAR(self->keep);
    Py_CLEAR(self->context);
    krpy_free(object);
}

/* ---- tensors ---- */

static kr_shape shape_of(const krpy_array *a)
{
    kr_shape shape = { .rank = a->rank };
    for (int i = 0; i < a->rank; i++) shape.dims[i] = a->shape[i];
    return shape;
}

/* A tensor on the tape over the memory of an array. */
static kr_tensor *tensor_over(krpy_tape *self, const krpy_array *a)
{
    const int64_t bytes = (int64_t)kr_dtype_bytes(a->dtype);
    int64_t strides[KR_MAX_RANK];
    for (int i = 0; i < a->rank; i++) strides[i] = a->strides[i] / bytes;
    return kr_view_data(self->tape, a->dtype, shape_of(a), strides, a->data);
}

static PyObject *put(PyObject *object, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames, bool is_leaf)
{
    static const char *const names[] = { "object", "dtype", NULL };
    krpy_tape *self = (krpy_tape *)object;
    krpy_module *module = krpy_module_of(object);
    PyObject *values[2];
    const char *dtype;
    if (!krpy_args(is_leaf ? "leaf" : "view", names, 1, 2, args, n_args, kwnames, values) ||
        !krpy_get_text("dtype", values[1], &dtype))
        return NULL;
    krpy_array *a = (krpy_array *)krpy_array_of_buffer(module, values[0], dtype, false);
    if (!a) return NULL;
    if (a->owner == object && !is_leaf) return (PyObject *)a;
    kr_tensor *tensor = NULL;
    PyObject *result = NULL;
    if (krpy_array_check_device(a, self->context) && krpy_array_order(a, self->context) &&
        (is_leaf || krpy_tape_keep(self, (PyObject *)a))) {
        krpy_enter(self->context);
        KRPY_COMPUTE(self->context, tensor = tensor_over(self, a); if (is_leaf) tensor = kr_input(self->tape, tensor));
        if (krpy_leave(self->context)) result = krpy_array_of_tensor(module, self->context, object, tensor, true, NULL);
    }
    /* A leaf is a copy, but on a GPU it may still be queued. */
    if (result && is_leaf && ((krpy_array *)result)->device_type != KRPY_CPU && !krpy_tape_keep(self, (PyObject *)a))
        Py_CLEAR(result);
    Py_DECREF(a);
    return result;
}

static PyObject *tape_view(PyObject *self, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    return put(self, args, n_args, kwnames, false);
}

static PyObject *tape_leaf(PyObject *self, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    return put(self, args, n_args, kwnames, true);
}

/* ---- gradients ---- */

enum { MOST_OUTPUTS = 16 };

/* Reads a list of arrays, with None for NULL, into tensors; returns their number, -1 with an exception. */
static int read_list(krpy_module *module, PyObject *tape, const char *name, PyObject *list, kr_tensor **tensors)
{
    const Py_ssize_t count = PySequence_Size(list);
    if (count < 0) return -1;
    if (count > MOST_OUTPUTS) {
        PyErr_Format(PyExc_ValueError, "%s has %zd arrays, at most %d", name, count, MOST_OUTPUTS);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(list, i);
        const bool is_ok = item && krpy_get_tensor(module, name, item, tape, &tensors[i]);
        Py_XDECREF(item); /* the list keeps it */
        if (!is_ok) return -1;
    }
    return (int)count;
}

static PyObject *tape_backward(PyObject *object, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    static const char *const names[] = { "outputs", "gradients", NULL };
    krpy_tape *self = (krpy_tape *)object;
    krpy_module *module = krpy_module_of(object);
    PyObject *values[2];
    kr_tensor *y[MOST_OUTPUTS], *g_y[MOST_OUTPUTS] = { 0 };
    if (!krpy_args("backward", names, 2, 2, args, n_args, kwnames, values)) return NULL;
    const int count = read_list(module, object, "outputs", values[0], y);
    if (count < 0) return NULL;
    const int n_gradients = read_list(module, object, "gradients", values[1], g_y);
    if (n_gradients < 0) return NULL;
    if (n_gradients != count) {
        PyErr_Format(PyExc_ValueError, "backward: %d outputs, but %d gradients", count, n_gradients);
        return NULL;
    }
    krpy_enter(self->context);
    KRPY_COMPUTE(self->context, kr_backward_from(self->tape, count, y, g_y));
    if (!krpy_leave(self->context)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *tape_grad(PyObject *object, PyObject *array)
{
    krpy_tape *self = (krpy_tape *)object;
    krpy_module *module = krpy_module_of(object);
    kr_tensor *tensor;
    if (!krpy_get_tensor(module, "array", array, object, &tensor)) return NULL;
    krpy_enter(self->context);
    kr_tensor *gradient = tensor ? kr_grad(tensor) : NULL;
    if (!krpy_leave(self->context)) return NULL;
    if (!gradient) Py_RETURN_NONE;
    return krpy_array_of_tensor(module, self->context, object, gradient, true, NULL);
}

static PyObject *tape_stats(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    const kr_tape_stats stats = kr_tape_stats_of(((krpy_tape *)object)->tape);
    return Py_BuildValue("{s:n,s:n,s:L}", "bytes", (Py_ssize_t)stats.bytes, "peak_bytes", (Py_ssize_t)stats.peak_bytes,
                         "nodes", (long long)stats.nodes);
}

static PyObject *get_context(PyObject *object, void *closure)
{
    (void)closure;
    return Py_NewRef((PyObject *)((krpy_tape *)object)->context);
}

static PyMethodDef tape_methods[] = {
    { "view", (PyCFunction)(void (*)(void))tape_view, METH_FASTCALL | METH_KEYWORDS,
      "view($self, object, dtype=None)\n--\n\nA constant over the memory of an array or buffer." },
    { "leaf", (PyCFunction)(void (*)(void))tape_leaf, METH_FASTCALL | METH_KEYWORDS,
      "leaf($self, object, dtype=None)\n--\n\nA copy that receives a gradient." },
    { "backward", (PyCFunction)(void (*)(void))tape_backward, METH_FASTCALL | METH_KEYWORDS,
      "backward($self, outputs, gradients)\n--\n\nBackpropagates from outputs with their gradients; None: ones." },
    { "grad", tape_grad, METH_O, "grad($self, array, /)\n--\n\nThe gradient of an array on the tape, or None." },
    { "stats", tape_stats, METH_NOARGS, "stats($self, /)\n--\n\nBytes and nodes of the tape." },
    { 0 },
};

static PyGetSetDef tape_attributes[] = {
    { "context", get_context, NULL, "The context.", NULL },
    { 0 },
};

static PyType_Slot tape_slots[] = {
    { Py_tp_doc, (void *)"Tape(context, grad=False)\n--\n\nThe tensors of a computation and their gradients." },
    { Py_tp_new, tape_new },
    { Py_tp_dealloc, tape_dealloc },
    { Py_tp_traverse, tape_traverse },
    { Py_tp_clear, tape_clear },
    { Py_tp_methods, tape_methods },
    { Py_tp_getset, tape_attributes },
    { 0, NULL },
};

PyType_Spec krpy_tape_spec = {
    .name = "krait._core.Tape",
    .basicsize = sizeof(krpy_tape),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = tape_slots,
};
