/* tokenizer_type.c - Tokenizer: text to ids and back. Private; krait.Tokenizer is the public class. */
#include "core.h"

static void destroy_tokenizer(void *tokenizer)
{
    kr_tokenizer_destroy(tokenizer);
}

/* An object with a context of its own, which has no worker threads. */
static krpy_tokenizer *prepare(krpy_module *module)
{
    krpy_tokenizer *self = krpy_alloc(module->tokenizer);
    if (!self) return NULL;
    PyObject *none = PyTuple_New(0);
    PyObject *named = Py_BuildValue("{s:s,s:i}", "device", "cpu", "threads", 1);
    if (none && named) self->context = (krpy_context *)PyObject_Call((PyObject *)module->context, none, named);
    Py_XDECREF(none);
    Py_XDECREF(named);
    self->handle = self->context ? krpy_handle_new() : NULL;
    if (!self->handle) Py_CLEAR(self);
    return self;
}

static void set_tokenizer(krpy_tokenizer *self, kr_tokenizer *tokenizer)
{
    self->tokenizer = tokenizer;
    *self->handle = (krpy_handle){ .destroy = destroy_tokenizer, .object = tokenizer };
}

PyObject *krpy_tokenizer_share(krpy_module *module, const kr_tokenizer *from)
{
    krpy_tokenizer *self = prepare(module);
    if (!self) return NULL;
    krpy_enter(self->context);
    set_tokenizer(self, kr_tokenizer_share(self->context->ctx, from));
    if (krpy_leave(self->context)) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

/* Tokenizer(path=None, *, json=None): a file, the text of one, or bytes. */
static PyObject *tokenizer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = { "path", "json", NULL };
    PyObject *path = NULL, *keep;
    const char *json = NULL, *text;
    Py_ssize_t bytes = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O$z#:Tokenizer", names, &path, &json, &bytes) ||
        !krpy_get_path("path", path, &keep, &text))
        return NULL;
    krpy_tokenizer *self = prepare(PyType_GetModuleState(type));
    if (self) {
        kr_tokenizer *made = NULL;
        kr_ctx *ctx = self->context->ctx;
        krpy_enter(self->context);
        KRPY_COMPUTE(self->context, made = text   ? kr_tokenizer_load(ctx, text)
                                           : json ? kr_tokenizer_parse(ctx, json, (size_t)bytes)
                                                  : kr_tokenizer_bytes(ctx));
        set_tokenizer(self, made);
        if (!krpy_leave(self->context)) Py_CLEAR(self);
    }
    Py_XDECREF(keep);
    return (PyObject *)self;
}

static int tokenizer_traverse(PyObject *object, visitproc visit, void *arg)
{
    krpy_tokenizer *self = (krpy_tokenizer *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->context);
    return 0;
}

static void tokenizer_dealloc(PyObject *object)
{
    krpy_tokenizer *self = (krpy_tokenizer *)object;
    PyObject_GC_UnTrack(object);
    if (self->context) krpy_discard(self->context, self->handle);
    Py_CLEAR(self->context);
    krpy_free(object);
}

/* ---- encode and decode ---- */

static PyObject *list_of_ids(const int32_t *ids, int64_t count)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (int64_t i = 0; list && i < count; i++) {
        PyObject *id = PyLong_FromLong(ids[i]);
        if (!id || PyList_SetItem(list, (Py_ssize_t)i, id) < 0) Py_CLEAR(list);
    }
    return list;
}

/* A text as UTF-8: str, or bytes that are taken as they are. */
static bool read_text(PyObject *object, const char **text, Py_ssize_t *bytes)
{
    char *data;
    if (PyUnicode_Check(object)) return (*text = PyUnicode_AsUTF8AndSize(object, bytes)) != NULL;
    if (!PyBytes_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "text must be str or bytes");
        return false;
    }
    if (PyBytes_AsStringAndSize(object, &data, bytes) < 0) return false;
    *text = data;
    return true;
}

/* encode(text, add_special=True, parse_special=False) */
static PyObject *tokenizer_encode(PyObject *object, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    static const char *const names[] = { "text", "add_special", "parse_special", NULL };
    krpy_tokenizer *self = (krpy_tokenizer *)object;
    PyObject *values[3];
    const char *text;
    Py_ssize_t bytes;
    kr_encode_options options;
    kr_encode_options_init(&options);
    if (!krpy_args("encode", names, 1, 3, args, n_args, kwnames, values) || !read_text(values[0], &text, &bytes) ||
        !krpy_get_bool("add_special", values[1], &options.add_special) ||
        !krpy_get_bool("parse_special", values[2], &options.parse_special))
        return NULL;
    const int64_t capacity = kr_tokenizer_max_ids(self->tokenizer, (size_t)bytes);
    int32_t *ids = PyMem_Malloc((size_t)(capacity + 1) * sizeof *ids);
    if (!ids) return PyErr_NoMemory();
    int64_t count = 0;
    krpy_enter(self->context);
    KRPY_COMPUTE(self->context,
                 count = kr_tokenizer_encode(self->tokenizer, text, (size_t)bytes, &options, ids, capacity));
    PyObject *list = krpy_leave(self->context) ? list_of_ids(ids, count < capacity ? count : capacity) : NULL;
    PyMem_Free(ids);
    return list;
}

/* decode(ids, skip_special=True): bytes. ids: a contiguous buffer of i32. */
static PyObject *tokenizer_decode(PyObject *object, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    static const char *const names[] = { "ids", "skip_special", NULL };
    krpy_tokenizer *self = (krpy_tokenizer *)object;
    PyObject *values[2];
    bool skip_special = true;
    if (!krpy_args("decode", names, 1, 2, args, n_args, kwnames, values) ||
        !krpy_get_bool("skip_special", values[1], &skip_special))
        return NULL;
    krpy_array *ids = (krpy_array *)krpy_array_of_buffer(krpy_module_of(object), values[0], "i32", false);
    if (!ids) return NULL;
    PyObject *made = NULL;
    if (krpy_array_is_ids(ids)) {
        const int64_t count = krpy_array_count(ids);
        krpy_enter(self->context);
        const size_t bytes = kr_tokenizer_decode(self->tokenizer, ids->data, count, skip_special, NULL, 0);
        made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
        if (made) kr_tokenizer_decode(self->tokenizer, ids->data, count, skip_special, PyBytes_AsString(made), bytes);
        if (!krpy_leave(self->context)) Py_CLEAR(made);
    }
    Py_DECREF(ids);
    return made;
}

/* token(id): (bytes, is special), or None for an id without a token. */
static PyObject *tokenizer_token(PyObject *object, PyObject *id)
{
    int64_t number = -1;
    if (!krpy_get_int("id", id, &number)) return NULL;
    if (number < 0 || number > INT32_MAX) Py_RETURN_NONE;
    const kr_token_info info = kr_tokenizer_token_info(((krpy_tokenizer *)object)->tokenizer, (int32_t)number);
    if (!info.text) Py_RETURN_NONE;
    return Py_BuildValue("(y#N)", info.text, (Py_ssize_t)info.bytes, PyBool_FromLong(info.is_special));
}

static PyObject *tokenizer_find(PyObject *object, PyObject *value)
{
    const char *text;
    if (!krpy_get_text("text", value, &text)) return NULL;
    const int32_t id = text ? kr_tokenizer_find(((krpy_tokenizer *)object)->tokenizer, text) : -1;
    if (id < 0) Py_RETURN_NONE;
    return PyLong_FromLong(id);
}

static PyObject *get_size(PyObject *object, void *closure)
{
    (void)closure;
    return PyLong_FromLongLong(kr_tokenizer_size(((krpy_tokenizer *)object)->tokenizer));
}

static PyMethodDef tokenizer_methods[] = {
    { "encode", (PyCFunction)(void (*)(void))tokenizer_encode, METH_FASTCALL | METH_KEYWORDS,
      "encode($self, text, add_special=True, parse_special=False)\n--\n\nThe ids of a str or of bytes." },
    { "decode", (PyCFunction)(void (*)(void))tokenizer_decode, METH_FASTCALL | METH_KEYWORDS,
      "decode($self, ids, skip_special=True)\n--\n\nThe bytes of ids, a buffer of 32-bit integers." },
    { "token", tokenizer_token, METH_O,
      "token($self, id, /)\n--\n\nBytes of a token and whether it is special; None if there is none." },
    { "find", tokenizer_find, METH_O, "find($self, text, /)\n--\n\nThe id of an added token by its text, or None." },
    { 0 },
};

static PyGetSetDef tokenizer_attributes[] = {
    { "size", get_size, NULL, "The largest id plus one.", NULL },
    { 0 },
};

static PyType_Slot tokenizer_slots[] = {
    { Py_tp_doc, (void *)"Tokenizer(path=None, *, json=None)\n--\n\nText to ids and back." },
    { Py_tp_new, tokenizer_new },
    { Py_tp_dealloc, tokenizer_dealloc },
    { Py_tp_traverse, tokenizer_traverse },
    { Py_tp_methods, tokenizer_methods },
    { Py_tp_getset, tokenizer_attributes },
    { 0, NULL },
};

PyType_Spec krpy_tokenizer_spec = {
    .name = "krait._core.Tokenizer",
    .basicsize = sizeof(krpy_tokenizer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = tokenizer_slots,
};
