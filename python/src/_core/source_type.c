/* source_type.c - krait._core.Source and Loader: training data of each format, and batches of it. Paths are bytes; the class
 * krait.data.Source names the options and checks which of them belong to a format. */
#include "option_rows.h"
#include "training.h"

static const char *const formats[] = { "text", "string", "jsonl", "tokens", "raw", "csv", "idx", NULL };
static const char *const missing_words[] = { "error", "drop", "forward", "mean", NULL };
static const char *const scaling_words[] = { "none", "standard", "min-max", NULL };

static const krpy_option source_rows[] = {
    { "path", KRPY_PATH, offsetof(kr_source_options, path), NULL },
    { "labels", KRPY_PATH, offsetof(kr_source_options, labels_path), NULL },
    { "field", KRPY_TEXT, offsetof(kr_source_options, field), NULL },
    { "id_bytes", KRPY_INT, offsetof(kr_source_options, id_bytes), NULL },
    { "vocab", KRPY_INT64, offsetof(kr_source_options, n_ids), NULL },
    { "separator_id", KRPY_INT, offsetof(kr_source_options, separator_id), NULL },
    { 0 },
};
static const krpy_option text_rows[] = {
    { "separator", KRPY_TEXT, offsetof(kr_text_options, separator), NULL },
    { "document_end", KRPY_INT, offsetof(kr_text_options, document_end), NULL },
    { "special", KRPY_BOOL, offsetof(kr_text_options, parse_special), NULL },
    { "memory_budget", KRPY_SIZE, offsetof(kr_text_options, memory_budget), NULL },
    { "token_path", KRPY_PATH, offsetof(kr_text_options, token_path), NULL },
    { 0 },
};
static const krpy_option csv_rows[] = {
    { "delimiter", KRPY_CHAR, offsetof(kr_csv_options, delimiter), NULL },
    { "header", KRPY_BOOL, offsetof(kr_csv_options, has_header), NULL },
    { "features", KRPY_TEXT, offsetof(kr_csv_options, features), NULL },
    { "targets", KRPY_TEXT, offsetof(kr_csv_options, targets), NULL },
    { "class_target", KRPY_BOOL, offsetof(kr_csv_options, is_class), NULL },
    { "sequence_column", KRPY_TEXT, offsetof(kr_csv_options, sequence), NULL },
    { "csv_budget", KRPY_SIZE, offsetof(kr_csv_options, memory_budget), NULL },
    { "missing", KRPY_WORD, offsetof(kr_csv_options, missing), missing_words },
    { "scale", KRPY_WORD, offsetof(kr_csv_options, scaling), scaling_words },
    { 0 },
};
static const krpy_option idx_rows[] = {
    { "patch_height", KRPY_INT64, offsetof(kr_idx_options, patch_height), NULL },
    { "patch_width", KRPY_INT64, offsetof(kr_idx_options, patch_width), NULL },
    { "mean", KRPY_DOUBLE, offsetof(kr_idx_options, mean), NULL },
    { "deviation", KRPY_DOUBLE, offsetof(kr_idx_options, deviation), NULL },
    { "count", KRPY_INT64, offsetof(kr_idx_options, count), NULL },
    { 0 },
};

/* ---- sources ---- */

static const krpy_option *const source_tables[] = { source_rows, text_rows, csv_rows, idx_rows, NULL };

/* What a source is made of: arrays, or the rest. */
typedef struct source_parts {
    int format;
    PyObject *options, *arrays;
    krpy_tokenizer *tokenizer; /* or NULL */
    Py_buffer text;            /* obj NULL: none */
} source_parts;

/* Opens the source that the options describe. NULL with an exception, or with an error of the context. */
static kr_source *open_source(krpy_context *c, source_parts *parts)
{
    kr_source_options o;
    kr_text_options text;
    kr_csv_options csv;
    kr_idx_options idx;
    kr_source_options_init(&o);
    kr_text_options_init(&text);
    kr_csv_options_init(&csv);
    kr_idx_options_init(&idx);
    Py_ssize_t taken = 0;
    PyObject *dict = parts->options;
    if (!krpy_take_options(dict, source_rows, &o, &taken) || !krpy_take_options(dict, text_rows, &text, &taken) ||
        !krpy_take_options(dict, csv_rows, &csv, &taken) || !krpy_take_options(dict, idx_rows, &idx, &taken) ||
        !krpy_all_taken("Source", dict, taken, source_tables))
        return NULL;
    o.format = (kr_source_format)parts->format;
    o.text = parts->text.obj ? parts->text.buf : NULL;
    o.bytes = parts->text.obj ? (size_t)parts->text.len : 0;
    o.text_options = &text;
    o.csv = &csv;
    o.idx = &idx;
    /* A Tokenizer has a context of its own; the source encodes in this one. */
    kr_tokenizer *tok = parts->tokenizer ? kr_tokenizer_share(c->ctx, parts->tokenizer->tokenizer) : NULL;
    kr_source *source = NULL;
    o.tok = tok;
    if (tok || !parts->tokenizer) KRPY_COMPUTE(c, source = kr_source_open(c->ctx, &o));
    kr_tokenizer_destroy(tok);
    return source;
}

static void destroy_source(void *source)
{
    kr_source_destroy(source);
}

static krpy_source *make_source(krpy_module *module, krpy_context *c, source_parts *parts)
{
    krpy_source *self = krpy_alloc(module->source);
    if (!self) return NULL;
    self->context = (krpy_context *)Py_NewRef((PyObject *)c);
    self->handle = krpy_handle_new();
    if (!self->handle) {
        Py_DECREF(self);
        return NULL;
    }
    krpy_enter(c);
    self->source = parts->arrays ? krpy_arrays_source(c, parts->arrays, parts->options) : open_source(c, parts);
    *self->handle = (krpy_handle){ .destroy = destroy_source, .object = self->source };
    if (!self->source && PyErr_Occurred()) krpy_abandon(c);
    else if (krpy_leave(c)) return self;
    Py_DECREF(self);
    return NULL;
}

/* Source(context, format, options, tokenizer, text, arrays) */
static PyObject *source_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = { "", "", "", "", "", "", NULL };
    PyObject *context, *format, *tokenizer, *text;
    source_parts parts = { 0 };
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO!OOO:Source", names, &context, &format, &PyDict_Type,
                                     &parts.options, &tokenizer, &text, &parts.arrays))
        return NULL;
    krpy_module *module = PyType_GetModuleState(type);
    krpy_context *c = krpy_context_of(module, context);
    if (!c || !krpy_get_word("format", format, formats, &parts.format)) return NULL;
    if (parts.arrays == Py_None) parts.arrays = NULL;
    if (tokenizer != Py_None && !Py_IS_TYPE(tokenizer, module->tokenizer)) {
        PyErr_SetString(PyExc_TypeError, "tokenizer must be a Tokenizer");
        return NULL;
    }
    parts.tokenizer = tokenizer != Py_None ? (krpy_tokenizer *)tokenizer : NULL;
    if (text != Py_None && PyObject_GetBuffer(text, &parts.text, PyBUF_C_CONTIGUOUS) < 0) return NULL;
    krpy_source *self = make_source(module, c, &parts);
    if (parts.text.obj) PyBuffer_Release(&parts.text);
    return (PyObject *)self;
}

static int source_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((krpy_source *)object)->context);
    return 0;
}

static void source_dealloc(PyObject *object)
{
    krpy_source *self = (krpy_source *)object;
    PyObject_GC_UnTrack(object);
    if (self->context) krpy_discard(self->context, self->handle);
    Py_CLEAR(self->context);
    krpy_free(object);
}

static PyObject *source_info(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    const kr_source_info info = kr_source_info_of(((krpy_source *)object)->source);
    return Py_BuildValue("{s:L,s:L,s:L,s:L,s:L,s:O}", "count", (long long)info.count, "n_ids", (long long)info.n_ids,
                         "n_features", (long long)info.n_features, "n_classes", (long long)info.n_classes, "n_targets",
                         (long long)info.n_targets, "predict_next", info.predict_next ? Py_True : Py_False);
}

static PyObject *source_columns(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    krpy_source *self = (krpy_source *)object;
    PyObject *list = PyList_New(0);
    for (int64_t i = 0; list; i++) {
        const kr_csv_column column = kr_source_column(self->source, i);
        if (!column.name) break;
        PyObject *row = Py_BuildValue("{s:s,s:O,s:L,s:d,s:d,s:d}", "name", column.name, "is_target",
                                      column.is_target ? Py_True : Py_False, "missing", (long long)column.n_missing,
                                      "mean", column.mean, "offset", column.offset, "scale", column.scale);
        if (!row || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

/* The calls that read or write a file at a path. */
typedef kr_status path_call(krpy_source *self, const char *path);
static kr_status save(krpy_source *self, const char *path)
{
    return kr_source_save(self->source, path);
}
static kr_status save_scales(krpy_source *self, const char *path)
{
    return kr_source_save_scales(self->source, path);
}
static kr_status load_scales(krpy_source *self, const char *path)
{
    return kr_source_load_scales(self->source, path);
}

static PyObject *call_with_path(PyObject *object, PyObject *path, path_call *call)
{
    krpy_source *self = (krpy_source *)object;
    PyObject *keep = NULL;
    const char *text = NULL;
    if (!krpy_get_path("path", path, &keep, &text)) return NULL;
    kr_status status = KR_OK;
    krpy_enter(self->context);
    KRPY_COMPUTE(self->context, status = call(self, text));
    const bool is_done = krpy_leave(self->context) && status == KR_OK;
    Py_XDECREF(keep);
    return is_done ? Py_NewRef(Py_None) : NULL;
}

static PyObject *source_save(PyObject *object, PyObject *path)
{
    return call_with_path(object, path, save);
}
static PyObject *source_save_scales(PyObject *object, PyObject *path)
{
    return call_with_path(object, path, save_scales);
}
static PyObject *source_load_scales(PyObject *object, PyObject *path)
{
    return call_with_path(object, path, load_scales);
}

/* ---- loaders ---- */

static const char *const parts[] = { "train", "validation", NULL };

static const krpy_option loader_rows[] = {
    { "batch", KRPY_INT64, offsetof(kr_loader_options, batch), NULL },
    { "length", KRPY_INT64, offsetof(kr_loader_options, length), NULL },
    { "seed", KRPY_UINT64, offsetof(kr_loader_options, seed), NULL },
    { "shuffle", KRPY_BOOL, offsetof(kr_loader_options, shuffle), NULL },
    { "epochs", KRPY_INT64, offsetof(kr_loader_options, n_epochs), NULL },
    { "pack", KRPY_BOOL, offsetof(kr_loader_options, pack), NULL },
    { "resets", KRPY_BOOL, offsetof(kr_loader_options, reset), NULL },
    { "carry", KRPY_BOOL, offsetof(kr_loader_options, carry), NULL },
    { "drop_last", KRPY_BOOL, offsetof(kr_loader_options, drop_last), NULL },
    { "score_last", KRPY_BOOL, offsetof(kr_loader_options, score_last), NULL },
    { "part", KRPY_WORD, offsetof(kr_loader_options, part), parts },
    { "validation_fraction", KRPY_DOUBLE, offsetof(kr_loader_options, validation_fraction), NULL },
    { "split_seed", KRPY_UINT64, offsetof(kr_loader_options, split_seed), NULL },
    { 0 },
};

static bool take_loader_options(PyObject *dict, kr_loader_options *o)
{
    static const krpy_option *const tables[] = { loader_rows, NULL };
    Py_ssize_t taken = 0;
    kr_loader_options_init(o);
    return krpy_take_options(dict, loader_rows, o, &taken) && krpy_all_taken("Loader", dict, taken, tables);
}

static PyObject *source_fit(PyObject *object, PyObject *dict)
{
    krpy_source *self = (krpy_source *)object;
    kr_loader_options o;
    kr_status status = KR_OK;
    if (!PyDict_Check(dict)) {
        PyErr_SetString(PyExc_TypeError, "fit() takes a dict of options");
        return NULL;
    }
    if (!take_loader_options(dict, &o)) return NULL;
    krpy_enter(self->context);
    KRPY_COMPUTE(self->context, status = kr_source_fit(self->source, &o));
    return krpy_leave(self->context) && status == KR_OK ? Py_NewRef(Py_None) : NULL;
}

static void destroy_loader(void *loader)
{
    kr_loader_destroy(loader);
}

/* Loader(source, options) */
static PyObject *loader_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = { "", "", NULL };
    krpy_module *module = PyType_GetModuleState(type);
    PyObject *source, *dict;
    kr_loader_options o;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!:Loader", names, module->source, &source, &PyDict_Type,
                                     &dict) ||
        !take_loader_options(dict, &o))
        return NULL;
    krpy_loader *self = krpy_alloc(type);
    if (!self) return NULL;
    self->source = (krpy_source *)Py_NewRef(source);
    self->handle = krpy_handle_new();
    krpy_context *c = self->source->context;
    if (self->handle) {
        krpy_enter(c);
        KRPY_COMPUTE(c, self->loader = kr_loader_create(self->source->source, &o));
        *self->handle = (krpy_handle){ .destroy = destroy_loader, .object = self->loader };
        if (krpy_leave(c)) return (PyObject *)self;
    }
    Py_DECREF(self);
    return NULL;
}

static int loader_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((krpy_loader *)object)->source);
    return 0;
}

/* The loader is destroyed before its source: what is discarded is destroyed in that order. */
static void loader_dealloc(PyObject *object)
{
    krpy_loader *self = (krpy_loader *)object;
    PyObject_GC_UnTrack(object);
    if (self->source) krpy_discard(self->source->context, self->handle);
    Py_CLEAR(self->source);
    krpy_free(object);
}

/* A tensor of a batch as (bytearray, shape), i32 or f32; None for NULL. */
static PyObject *array_of(kr_tensor *tensor, kr_dtype dtype)
{
    if (!tensor) return Py_NewRef(Py_None);
    const int64_t count = kr_tensor_count(tensor);
    const int rank = kr_tensor_rank(tensor);
    PyObject *bytes = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(4 * count));
    PyObject *shape = PyTuple_New(rank), *pair = NULL;
    bool is_made = bytes && shape;
    for (int axis = 0; is_made && axis < rank; axis++) {
        PyObject *dim = PyLong_FromLongLong(kr_tensor_dim(tensor, axis));
        is_made = dim && PyTuple_SetItem(shape, axis, dim) == 0;
    }
    if (is_made && kr_tensor_read(tensor, dtype, PyByteArray_AsString(bytes), count) == KR_OK)
        pair = PyTuple_Pack(2, bytes, shape);
    Py_XDECREF(bytes);
    Py_XDECREF(shape);
    return pair;
}

static PyObject *dict_of(const kr_batch *batch)
{
    const struct {
        const char *name;
        kr_tensor *tensor;
        kr_dtype dtype;
    } rows[] = { { "ids", batch->ids_bs, KR_DTYPE_I32 },       { "x", batch->x_bsf, KR_DTYPE_F32 },
                 { "labels", batch->labels_bs, KR_DTYPE_I32 }, { "targets", batch->targets_bso, KR_DTYPE_F32 },
                 { "scored", batch->scored_bs, KR_DTYPE_I32 }, { "reset", batch->reset_bs, KR_DTYPE_I32 },
                 { "mask", batch->mask_bs, KR_DTYPE_I32 } };
    PyObject *dict =
        Py_BuildValue("{s:L,s:L,s:L,s:L}", "n_positions", (long long)batch->n_positions, "n_scored",
                      (long long)batch->n_scored, "epoch", (long long)batch->epoch, "step", (long long)batch->step);
    for (size_t i = 0; dict && i < sizeof rows / sizeof *rows; i++) {
        PyObject *array = array_of(rows[i].tensor, rows[i].dtype);
        if (!array || PyDict_SetItemString(dict, rows[i].name, array) < 0) Py_CLEAR(dict);
        Py_XDECREF(array);
    }
    return dict;
}

/* The next batch as a dict; None after the last epoch. */
static PyObject *loader_next(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    krpy_loader *self = (krpy_loader *)object;
    krpy_context *c = self->source->context;
    kr_batch batch = { 0 };
    kr_status status = KR_OK;
    PyObject *made = NULL;
    krpy_enter(c);
    kr_tape *tape = kr_tape_create(c->ctx, KR_TAPE_NO_GRAD);
    if (tape) KRPY_COMPUTE(c, status = kr_loader_next(tape, self->loader, &batch));
    if (tape && status == KR_OK) made = dict_of(&batch);
    if (tape && status == KR_END) made = Py_NewRef(Py_None);
    kr_tape_destroy(tape);
    if (krpy_leave(c)) return made;
    Py_XDECREF(made);
    return NULL;
}

static PyObject *loader_position(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    const kr_loader_position p = kr_loader_snapshot(((krpy_loader *)object)->loader);
    return Py_BuildValue("KLLLL", (unsigned long long)p.seed, (long long)p.epoch, (long long)p.step, (long long)p.count,
                         (long long)p.steps_per_epoch);
}

static PyObject *loader_restore(PyObject *object, PyObject *tuple)
{
    krpy_loader *self = (krpy_loader *)object;
    unsigned long long seed;
    long long epoch, step, count, steps_per_epoch;
    if (!PyArg_ParseTuple(tuple, "KLLLL:restore", &seed, &epoch, &step, &count, &steps_per_epoch)) return NULL;
    const kr_loader_position p = {
        .seed = seed, .epoch = epoch, .step = step, .count = count, .steps_per_epoch = steps_per_epoch
    };
    krpy_enter(self->source->context);
    const kr_status status = kr_loader_restore(self->loader, &p);
    return krpy_leave(self->source->context) && status == KR_OK ? Py_NewRef(Py_None) : NULL;
}

/* ---- types ---- */

static PyMethodDef source_methods[] = {
    { "info", source_info, METH_NOARGS, "info($self, /)\n--\n\nSizes of the source, as a dict." },
    { "columns", source_columns, METH_NOARGS, "columns($self, /)\n--\n\nColumns of a table, as dicts." },
    { "save", source_save, METH_O, "save($self, path, /)\n--\n\nWrites a token file." },
    { "fit", source_fit, METH_O, "fit($self, options, /)\n--\n\nComputes means and scales of a table." },
    { "save_scales", source_save_scales, METH_O, "save_scales($self, path, /)\n--\n\nWrites them to a JSON file." },
    { "load_scales", source_load_scales, METH_O, "load_scales($self, path, /)\n--\n\nReads them." },
    { 0 },
};

static PyType_Slot source_slots[] = {
    { Py_tp_doc, "Source(context, format, options, tokenizer, text, arrays, /)\n--\n\nTraining data; see krait.data." },
    { Py_tp_new, source_new },
    { Py_tp_dealloc, source_dealloc },
    { Py_tp_traverse, source_traverse },
    { Py_tp_methods, source_methods },
    { 0, NULL },
};

PyType_Spec krpy_source_spec = {
    .name = "krait._core.Source",
    .basicsize = sizeof(krpy_source),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = source_slots,
};

static PyMethodDef loader_methods[] = {
    { "next", loader_next, METH_NOARGS, "next($self, /)\n--\n\nThe next batch as a dict; None after the last." },
    { "position", loader_position, METH_NOARGS, "position($self, /)\n--\n\nThe position in the data, to restore." },
    { "restore", loader_restore, METH_O, "restore($self, position, /)\n--\n\nReturns to a position." },
    { 0 },
};

static PyType_Slot loader_slots[] = {
    { Py_tp_doc, "Loader(source, options, /)\n--\n\nBatches of training data; see krait.data." },
    { Py_tp_new, loader_new },
    { Py_tp_dealloc, loader_dealloc },
    { Py_tp_traverse, loader_traverse },
    { Py_tp_methods, loader_methods },
    { 0, NULL },
};

PyType_Spec krpy_loader_spec = {
    .name = "krait._core.Loader",
    .basicsize = sizeof(krpy_loader),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = loader_slots,
};
