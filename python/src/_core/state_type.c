/* state_type.c - State: the recurrent state of a model or a stack. Private; krait.State is the public class. */
#include "core.h"

static void destroy_state(void *state)
{
    kr_state_destroy(state);
}

krpy_state *krpy_state_prepare(krpy_module *module, krpy_context *c, PyObject *owner, const kr_network *net,
                               const kr_layers *layers)
{
    krpy_state *self = krpy_alloc(module->state);
    if (!self) return NULL;
    self->context = (krpy_context *)Py_NewRef((PyObject *)c);
    self->owner = Py_NewRef(owner);
    self->net = net;
    self->layers = layers;
    self->handle = krpy_handle_new();
    if (!self->handle) Py_CLEAR(self);
    return self;
}

void krpy_state_set(krpy_state *self, kr_state *state)
{
    self->state = state;
    *self->handle = (krpy_handle){ .destroy = destroy_state, .object = state };
}

kr_state *krpy_state_fill(krpy_state *self, int64_t batch)
{
    krpy_state_set(self, self->net ? kr_network_state(self->net, batch)
                                   : kr_state_create(self->context->ctx, self->layers, batch));
    return self->state;
}

bool krpy_get_state(krpy_module *module, const char *name, PyObject *object, PyObject *owner, krpy_state **state)
{
    *state = NULL;
    if (!object || object == Py_None) return true;
    if (!Py_IS_TYPE(object, module->state)) {
        PyErr_Format(PyExc_TypeError, "%s must be a State", name);
        return false;
    }
    if (((krpy_state *)object)->owner != owner) {
        PyErr_Format(PyExc_ValueError, "%s is a state of another model", name);
        return false;
    }
    *state = (krpy_state *)object;
    return true;
}

static int state_traverse(PyObject *object, visitproc visit, void *arg)
{
    krpy_state *self = (krpy_state *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->context);
    Py_VISIT(self->owner);
    return 0;
}

static void state_dealloc(PyObject *object)
{
    krpy_state *self = (krpy_state *)object;
    PyObject_GC_UnTrack(object);
    if (self->context) krpy_discard(self->context, self->handle);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->context);
    krpy_free(object);
}

/* ---- new states from states ---- */

/* Rows of states, on a tape that lives for one call. */
static kr_state *rows_of(kr_tape *tape, int count, kr_state *const *states, int64_t n_rows, const int64_t *rows)
{
    if (count > 1) return kr_state_join(tape, count, states);
    return kr_state_select(tape, states[0], n_rows, rows);
}

/* A new State: the rows of one state, or several states one after another. */
static PyObject *derive(krpy_state *first, int count, kr_state *const *states, int64_t n_rows, const int64_t *rows)
{
    krpy_module *module = krpy_module_of((PyObject *)first);
    krpy_context *c = first->context;
    krpy_state *made = krpy_state_prepare(module, c, first->owner, first->net, first->layers);
    if (!made) return NULL;
    krpy_enter(c);
    KRPY_COMPUTE(c, {
        kr_tape *tape = kr_tape_create(c->ctx, KR_TAPE_NO_GRAD);
        const kr_state *from = rows_of(tape, count, states, n_rows, rows);
        if (from && krpy_state_fill(made, kr_state_batch(from))) kr_state_copy(made->state, from);
        kr_tape_destroy(tape);
    });
    if (krpy_leave(c)) return (PyObject *)made;
    Py_DECREF(made);
    return NULL;
}

static int64_t *read_rows(PyObject *list, Py_ssize_t *count)
{
    *count = PySequence_Size(list);
    if (*count < 0) return NULL;
    int64_t *rows = PyMem_Malloc((size_t)(*count + 1) * sizeof *rows);
    if (!rows) PyErr_NoMemory();
    for (Py_ssize_t i = 0; rows && i < *count; i++) {
        PyObject *item = PySequence_GetItem(list, i);
        rows[i] = -1;
        if (!item || !krpy_get_int("rows", item, &rows[i])) {
            PyMem_Free(rows);
            rows = NULL;
        }
        Py_XDECREF(item);
    }
    return rows;
}

static PyObject *state_select(PyObject *object, PyObject *list)
{
    krpy_state *self = (krpy_state *)object;
    Py_ssize_t count;
    int64_t *rows = read_rows(list, &count);
    if (!rows) return NULL;
    PyObject *made = derive(self, 1, &self->state, count, rows);
    PyMem_Free(rows);
    return made;
}

/* join(states): all of the owner of the first. */
static PyObject *join_states(krpy_module *module, PyObject *tuple, Py_ssize_t count)
{
    krpy_state *first = (krpy_state *)PyTuple_GetItem(tuple, 0);
    if (count == 1) return Py_NewRef((PyObject *)first);
    kr_state **states = PyMem_Malloc((size_t)count * sizeof *states);
    if (!states) return PyErr_NoMemory();
    bool is_ok = true;
    for (Py_ssize_t i = 0; is_ok && i < count; i++) {
        krpy_state *one;
        is_ok = krpy_get_state(module, "states", PyTuple_GetItem(tuple, i), first->owner, &one);
        if (is_ok) states[i] = one->state;
    }
    PyObject *made = is_ok ? derive(first, (int)count, states, 0, NULL) : NULL;
    PyMem_Free(states);
    return made;
}

static PyObject *state_join(PyObject *object, PyObject *list)
{
    krpy_module *module = krpy_module_of(object);
    PyObject *states = PySequence_Tuple(list); /* keeps them while other threads run */
    if (!states) return NULL;
    const Py_ssize_t count = PyTuple_Size(states);
    bool is_ok = count > 0 && count <= INT_MAX;
    for (Py_ssize_t i = 0; is_ok && i < count; i++) is_ok = Py_IS_TYPE(PyTuple_GetItem(states, i), module->state);
    PyObject *made = NULL;
    if (is_ok) made = join_states(module, states, count);
    else PyErr_SetString(PyExc_TypeError, "join: states must be a list of at least one state");
    Py_DECREF(states);
    return made;
}

static PyObject *state_copy(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    krpy_state *self = (krpy_state *)object;
    krpy_context *c = self->context;
    krpy_state *made = krpy_state_prepare(krpy_module_of(object), c, self->owner, self->net, self->layers);
    if (!made) return NULL;
    krpy_enter(c);
    KRPY_COMPUTE(c, {
        if (krpy_state_fill(made, kr_state_batch(self->state))) kr_state_copy(made->state, self->state);
    });
    if (krpy_leave(c)) return (PyObject *)made;
    Py_DECREF(made);
    return NULL;
}

/* ---- files and arrays ---- */

/* Has the state a network, to which its file is bound? Raises if not. */
static bool has_network(const krpy_state *self)
{
    if (self->net) return true;
    krpy_raise(krpy_module_of((PyObject *)self), KR_ERR_UNSUPPORTED,
               "state.save: a state of a stack has no network to which its file is bound; save its arrays");
    return false;
}

static PyObject *state_save(PyObject *object, PyObject *path)
{
    krpy_state *self = (krpy_state *)object;
    PyObject *keep;
    const char *text;
    if (!has_network(self) || !krpy_get_path("path", path, &keep, &text)) return NULL;
    kr_status status = KR_OK;
    krpy_enter(self->context);
    KRPY_COMPUTE(self->context, status = kr_state_save(self->state, self->net, text));
    const bool is_ok = krpy_leave(self->context) && status == KR_OK;
    Py_XDECREF(keep);
    if (!is_ok) return NULL;
    Py_RETURN_NONE;
}

/* The bytes of the file of save. */
static PyObject *state_to_bytes(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    krpy_state *self = (krpy_state *)object;
    if (!has_network(self)) return NULL;
    PyObject *bytes = NULL;
    size_t needed = 0;
    kr_status status = KR_OK;
    krpy_enter(self->context);
    KRPY_COMPUTE(self->context, status = kr_state_save_memory(self->state, self->net, NULL, 0, &needed));
    if (status == KR_OK && !(bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)needed))) {
        krpy_abandon(self->context);
        return NULL;
    }
    char *const out = bytes ? PyBytes_AsString(bytes) : NULL;
    if (bytes) KRPY_COMPUTE(self->context, status = kr_state_save_memory(self->state, self->net, out, needed, &needed));
    if (krpy_leave(self->context) && status == KR_OK) return bytes;
    Py_XDECREF(bytes);
    return NULL;
}

/* array(slot, index): a tensor of a cache, or None while the slot is initial. */
static PyObject *state_array(PyObject *object, PyObject *const *args, Py_ssize_t n_args)
{
    krpy_state *self = (krpy_state *)object;
    int64_t slot = -1, index = -1;
    if (n_args != 2) {
        PyErr_SetString(PyExc_TypeError, "array() takes two arguments: slot, index");
        return NULL;
    }
    if (!krpy_get_int("slot", args[0], &slot) || !krpy_get_int("index", args[1], &index)) return NULL;
    krpy_enter(self->context);
    const kr_cache *cache = kr_state_cache(self->state, slot);
    kr_tensor *tensor = cache && index >= 0 && index < KR_CACHE_TENSORS ? cache->tensors[index] : NULL;
    if (cache && kr_cache_count(cache->family) <= index) tensor = NULL;
    if (!krpy_leave(self->context)) return NULL;
    if (!tensor) Py_RETURN_NONE;
    return krpy_array_of_tensor(krpy_module_of(object), self->context, object, tensor, true, &self->exports);
}

/* [[name, ...] of each slot] */
static PyObject *state_names(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    krpy_state *self = (krpy_state *)object;
    PyObject *slots = PyList_New(0);
    const int64_t count = kr_state_slots(self->state);
    for (int64_t slot = 0; slots && slot < count; slot++) {
        const kr_cache *cache = kr_state_cache(self->state, slot);
        PyObject *names = PyList_New(0);
        const int n = cache ? kr_cache_count(cache->family) : 0;
        for (int i = 0; names && i < n; i++) {
            PyObject *name = PyUnicode_FromString(kr_cache_name(cache->family, i));
            if (!name || PyList_Append(names, name) < 0) Py_CLEAR(names);
            Py_XDECREF(name);
        }
        if (!names || PyList_Append(slots, names) < 0) Py_CLEAR(slots);
        Py_XDECREF(names);
    }
    return slots;
}

static PyObject *state_announce(PyObject *object, PyObject *length)
{
    krpy_state *self = (krpy_state *)object;
    int64_t full_len = KR_LENGTH_UNKNOWN;
    if (!krpy_get_int("length", length, &full_len)) return NULL;
    krpy_enter(self->context);
    kr_state_announce(self->state, full_len);
    if (!krpy_leave(self->context)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *get_batch(PyObject *object, void *closure)
{
    (void)closure;
    return PyLong_FromLongLong(kr_state_batch(((krpy_state *)object)->state));
}

static PyObject *get_slots(PyObject *object, void *closure)
{
    (void)closure;
    return PyLong_FromLongLong(kr_state_slots(((krpy_state *)object)->state));
}

static PyObject *get_nbytes(PyObject *object, void *closure)
{
    (void)closure;
    return PyLong_FromSize_t(kr_state_bytes(((krpy_state *)object)->state));
}

static PyObject *get_is_initial(PyObject *object, void *closure)
{
    (void)closure;
    return PyBool_FromLong(kr_state_is_initial(((krpy_state *)object)->state));
}

static PyObject *get_owner(PyObject *object, void *closure)
{
    (void)closure;
    return Py_NewRef(((krpy_state *)object)->owner);
}

static PyMethodDef state_methods[] = {
    { "select", state_select, METH_O, "select($self, rows, /)\n--\n\nA new state of these rows." },
    { "join", state_join, METH_O, "join($self, states, /)\n--\n\nA new state with the rows of all states of a list." },
    { "copy", state_copy, METH_NOARGS, "copy($self, /)\n--\n\nA copy." },
    { "save", state_save, METH_O, "save($self, path, /)\n--\n\nSaves the state to a file." },
    { "to_bytes", state_to_bytes, METH_NOARGS, "to_bytes($self, /)\n--\n\nThe bytes of the file of save." },
    { "array", (PyCFunction)(void (*)(void))state_array, METH_FASTCALL,
      "array($self, slot, index, /)\n--\n\nA tensor of a slot; None while it is initial." },
    { "names", state_names, METH_NOARGS, "names($self, /)\n--\n\nNames of the tensors of each slot." },
    { "announce", state_announce, METH_O, "announce($self, length, /)\n--\n\nAnnounces the length of the sequence." },
    { 0 },
};

static PyGetSetDef state_attributes[] = {
    { "batch", get_batch, NULL, "Number of rows.", NULL },
    { "slots", get_slots, NULL, "Number of caches, one for each virtual layer.", NULL },
    { "nbytes", get_nbytes, NULL, "Bytes of all tensors.", NULL },
    { "is_initial", get_is_initial, NULL, "Whether no token has been processed.", NULL },
    { "owner", get_owner, NULL, "The model or stack.", NULL },
    { 0 },
};

static PyType_Slot state_type_slots[] = {
    { Py_tp_doc, (void *)"The recurrent state of a model or a stack." },
    { Py_tp_dealloc, state_dealloc },
    { Py_tp_traverse, state_traverse },
    { Py_tp_methods, state_methods },
    { Py_tp_getset, state_attributes },
    { 0, NULL },
};

PyType_Spec krpy_state_spec = {
    .name = "krait._core.State",
    .basicsize = sizeof(krpy_state),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = state_type_slots,
};
