/* batch_type.c - RowBatch: sequences that are generated together. Private; krait.Generation is built on it. */
#include "core.h"

/* A row, and the callbacks that the library calls with its address. */
typedef struct krpy_row {
    kr_row *row; /* NULL: destroyed */
    krpy_context *context;
    PyObject *process, *constrain;
} krpy_row;

typedef struct krpy_batch {
    PyObject_HEAD krpy_context *context;
    krpy_handle *handle, *tokenizer_handle;
    kr_row_batch *batch;
    kr_tokenizer *tokenizer;
    PyObject *model;
    krpy_row **rows; /* in the order of creation; a row's number is its index */
    Py_ssize_t n_rows, capacity;
} krpy_batch;

static void destroy_batch(void *batch)
{
    kr_row_batch_destroy(batch);
}

static void destroy_tokenizer(void *tokenizer)
{
    kr_tokenizer_destroy(tokenizer);
}

/* ---- life ---- */

static void create_batch(krpy_batch *self, const krpy_model *model, const kr_tokenizer *tokenizer,
                         const kr_row_batch_options *options)
{
    kr_ctx *ctx = self->context->ctx;
    if (tokenizer) self->tokenizer = kr_tokenizer_share(ctx, tokenizer);
    if (!tokenizer || self->tokenizer) self->batch = kr_row_batch_create(ctx, model->net, self->tokenizer, options);
    *self->handle = (krpy_handle){ .destroy = destroy_batch, .object = self->batch };
    *self->tokenizer_handle = (krpy_handle){ .destroy = destroy_tokenizer, .object = self->tokenizer };
}

/* RowBatch(model, tokenizer=None, *, max_rows=None, grid=None, prefill_tokens=None) */
static PyObject *batch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = { "model", "tokenizer", "max_rows", "grid", "prefill_tokens", NULL };
    krpy_module *module = PyType_GetModuleState(type);
    PyObject *model, *tokenizer = Py_None, *max_rows = NULL, *grid = NULL, *prefill = NULL;
    kr_row_batch_options options;
    kr_row_batch_options_init(&options);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O$OOO:RowBatch", names, &model, &tokenizer, &max_rows, &grid,
                                     &prefill) ||
        !krpy_get_int("max_rows", max_rows, &options.max_rows) || !krpy_get_int("grid", grid, &options.grid) ||
        !krpy_get_int("prefill_tokens", prefill, &options.prefill_tokens))
        return NULL;
    if (!Py_IS_TYPE(model, module->model) || (tokenizer != Py_None && !Py_IS_TYPE(tokenizer, module->tokenizer))) {
        PyErr_SetString(PyExc_TypeError, "RowBatch: needs a Model, and a Tokenizer or None");
        return NULL;
    }
    krpy_batch *self = krpy_alloc(type);
    if (!self) return NULL;
    self->context = (krpy_context *)Py_NewRef((PyObject *)((krpy_model *)model)->context);
    self->model = Py_NewRef(model);
    self->handle = krpy_handle_new();
    self->tokenizer_handle = self->handle ? krpy_handle_new() : NULL;
    if (self->tokenizer_handle) {
        const kr_tokenizer *tok = tokenizer == Py_None ? NULL : ((krpy_tokenizer *)tokenizer)->tokenizer;
        krpy_enter(self->context);
        KRPY_COMPUTE(self->context, create_batch(self, (krpy_model *)model, tok, &options));
        if (krpy_leave(self->context)) return (PyObject *)self;
    }
    Py_DECREF(self);
    return NULL;
}

static int batch_traverse(PyObject *object, visitproc visit, void *arg)
{
    krpy_batch *self = (krpy_batch *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->context);
    Py_VISIT(self->model);
    for (Py_ssize_t i = 0; i < self->n_rows; i++) {
        Py_VISIT(self->rows[i]->process);
        Py_VISIT(self->rows[i]->constrain);
    }
    return 0;
}

static int batch_clear(PyObject *object)
{
    krpy_batch *self = (krpy_batch *)object;
    for (Py_ssize_t i = 0; i < self->n_rows; i++) {
        Py_CLEAR(self->rows[i]->process);
        Py_CLEAR(self->rows[i]->constrain);
    }
    return 0;
}

static void batch_dealloc(PyObject *object)
{
    krpy_batch *self = (krpy_batch *)object;
    PyObject_GC_UnTrack(object);
    if (self->context) krpy_discard(self->context, self->handle);
    if (self->context) krpy_discard(self->context, self->tokenizer_handle);
    batch_clear(object);
    for (Py_ssize_t i = 0; i < self->n_rows; i++) PyMem_Free(self->rows[i]);
    PyMem_Free(self->rows);
    Py_CLEAR(self->model);
    Py_CLEAR(self->context);
    krpy_free(object);
}

/* ---- rows ---- */

static krpy_row *row_at(const krpy_batch *self, PyObject *number)
{
    int64_t i = -1;
    if (!krpy_get_int("row", number, &i)) return NULL;
    if (i >= 0 && i < self->n_rows && self->rows[i]->row) return self->rows[i];
    PyErr_Format(PyExc_IndexError, "there is no row %lld", (long long)i);
    return NULL;
}

/* A place for one more row, so that its creation cannot fail afterwards. */
static krpy_row *prepare_row(krpy_batch *self)
{
    if (self->n_rows == self->capacity) {
        const Py_ssize_t capacity = self->capacity ? 2 * self->capacity : 8;
        krpy_row **rows = PyMem_Realloc(self->rows, (size_t)capacity * sizeof(krpy_row *));
        if (!rows) {
            PyErr_NoMemory();
            return NULL;
        }
        self->rows = rows;
        self->capacity = capacity;
    }
    krpy_row *row = PyMem_Malloc(sizeof *row);
    if (!row) PyErr_NoMemory();
    else *row = (krpy_row){ .context = self->context };
    return row;
}

static PyObject *add_row(krpy_batch *self, krpy_row *from)
{
    krpy_row *made = prepare_row(self);
    if (!made) return NULL;
    krpy_enter(self->context);
    KRPY_COMPUTE(self->context, made->row = from ? kr_row_fork(from->row) : kr_row_create(self->batch));
    const bool is_ok = krpy_leave(self->context);
    if (!is_ok || !made->row) {
        PyMem_Free(made);
        return NULL;
    }
    self->rows[self->n_rows] = made;
    return PyLong_FromSsize_t(self->n_rows++);
}

static PyObject *batch_create(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    return add_row((krpy_batch *)self, NULL);
}

static PyObject *batch_fork(PyObject *object, PyObject *number)
{
    krpy_row *row = row_at((krpy_batch *)object, number);
    return row ? add_row((krpy_batch *)object, row) : NULL;
}

static PyObject *batch_destroy(PyObject *object, PyObject *number)
{
    krpy_batch *self = (krpy_batch *)object;
    krpy_row *row = row_at(self, number);
    if (!row) return NULL;
    krpy_enter(self->context);
    kr_row_destroy(row->row);
    row->row = NULL;
    Py_CLEAR(row->process);
    Py_CLEAR(row->constrain);
    if (!krpy_leave(self->context)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *batch_cancel(PyObject *object, PyObject *number)
{
    krpy_batch *self = (krpy_batch *)object;
    krpy_row *row = row_at(self, number);
    if (!row) return NULL;
    krpy_enter(self->context);
    kr_row_cancel(row->row);
    if (!krpy_leave(self->context)) return NULL;
    Py_RETURN_NONE;
}

/* feed(row, ids): ids is a contiguous buffer of i32, or a text: str or bytes. */
static PyObject *batch_feed(PyObject *object, PyObject *const *args, Py_ssize_t n_args)
{
    krpy_batch *self = (krpy_batch *)object;
    krpy_row *row = n_args == 2 ? row_at(self, args[0]) : NULL;
    if (n_args != 2) PyErr_SetString(PyExc_TypeError, "feed() takes two arguments: row, ids or text");
    if (!row) return NULL;
    Py_ssize_t bytes = 0;
    char *data = NULL;
    const char *text = PyUnicode_Check(args[1]) ? PyUnicode_AsUTF8AndSize(args[1], &bytes) : NULL;
    if (PyUnicode_Check(args[1]) && !text) return NULL;
    if (PyBytes_Check(args[1]) && PyBytes_AsStringAndSize(args[1], &data, &bytes) < 0) return NULL;
    if (data) text = data;
    krpy_array *ids = NULL;
    if (!text) {
        ids = (krpy_array *)krpy_array_of_buffer(krpy_module_of(object), args[1], "i32", false);
        if (!ids) return NULL;
        if (!krpy_array_is_ids(ids)) {
            Py_DECREF((PyObject *)ids);
            return NULL;
        }
    }
    krpy_enter(self->context);
    KRPY_COMPUTE(self->context, if (text) kr_row_feed_text(row->row, text, (size_t)bytes);
                 else kr_row_feed(row->row, ids->data, krpy_array_count(ids)));
    Py_XDECREF((PyObject *)ids);
    if (!krpy_leave(self->context)) return NULL;
    Py_RETURN_NONE;
}

/* ---- callbacks ---- */

/* Calls fn(ids, memory) with two memoryviews that are released afterwards. */
static bool call_with_views(PyObject *fn, const int32_t *ids, int64_t n, void *memory, size_t bytes)
{
    PyObject *seen = PyMemoryView_FromMemory((char *)(n ? (void *)ids : memory), (Py_ssize_t)n * 4, PyBUF_READ);
    PyObject *written = PyMemoryView_FromMemory(memory, (Py_ssize_t)bytes, PyBUF_WRITE);
    PyObject *result = seen && written ? PyObject_CallFunctionObjArgs(fn, seen, written, NULL) : NULL;
    PyObject *first = result ? PyObject_CallMethod(seen, "release", NULL) : NULL;
    PyObject *second = first ? PyObject_CallMethod(written, "release", NULL) : NULL;
    const bool is_ok = second != NULL;
    Py_XDECREF(second);
    Py_XDECREF(first);
    Py_XDECREF(result);
    Py_XDECREF(written);
    Py_XDECREF(seen);
    return is_ok;
}

static kr_status call_back(krpy_row *row, PyObject *const *callable, const int32_t *ids, int64_t n, void *memory,
                           size_t bytes)
{
    krpy_callback_begin(row->context);
    PyObject *fn = Py_XNewRef(*callable);
    const bool is_ok = fn && call_with_views(fn, ids, n, memory, bytes);
    if (!is_ok && PyErr_Occurred()) krpy_callback_failed(row->context);
    Py_XDECREF(fn);
    krpy_callback_end(row->context);
    return is_ok ? KR_OK : KR_ERR_ARG;
}

static kr_status process_row(void *user, const int32_t *ids, int64_t n, double *logits, int64_t vocab)
{
    krpy_row *row = user;
    return call_back(row, &row->process, ids, n, logits, (size_t)vocab * sizeof *logits);
}

static kr_status constrain_row(void *user, const int32_t *ids, int64_t n, uint32_t *allowed, int64_t vocab)
{
    krpy_row *row = user;
    return call_back(row, &row->constrain, ids, n, allowed, (size_t)((vocab + 31) / 32) * sizeof *allowed);
}

/* ---- options ---- */

typedef struct row_options {
    kr_sampler_options sampler;
    kr_row_options row;
    kr_logit_bias *biases;
    int32_t *stop_ids;
    const char **stops;
} row_options;

static void options_free(row_options *o)
{
    PyMem_Free(o->biases);
    PyMem_Free(o->stop_ids);
    PyMem_Free((void *)o->stops);
}

static bool in_int32(const char *name, int64_t value)
{
    if (value >= INT32_MIN && value <= INT32_MAX) return true;
    PyErr_Format(PyExc_ValueError, "%s has %lld, which is no token id", name, (long long)value);
    return false;
}

/* logit_bias: a dict of id and bias. */
static bool read_biases(PyObject *dict, row_options *o)
{
    if (!dict || dict == Py_None) return true;
    if (!PyDict_Check(dict)) {
        PyErr_SetString(PyExc_TypeError, "logit_bias must be a dict of token id and bias");
        return false;
    }
    const Py_ssize_t count = PyDict_Size(dict);
    o->biases = PyMem_Malloc((size_t)(count + 1) * sizeof *o->biases);
    if (!o->biases) {
        PyErr_NoMemory();
        return false;
    }
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(dict, &at, &key, &value) && o->sampler.n_biases < count) {
        kr_logit_bias *bias = &o->biases[o->sampler.n_biases++];
        int64_t id = 0;
        bias->bias = 0;
        if (!krpy_get_int("logit_bias", key, &id) || !in_int32("logit_bias", id) ||
            !krpy_get_double("logit_bias", value, &bias->bias))
            return false;
        bias->id = (int32_t)id;
    }
    o->sampler.biases = o->biases;
    return true;
}

/* stop_ids and stops: lists, whose texts the caller keeps. */
static bool read_stops(PyObject *ids, PyObject *texts, row_options *o)
{
    const Py_ssize_t n_ids = ids && ids != Py_None ? PySequence_Size(ids) : 0;
    const Py_ssize_t n_texts = texts && texts != Py_None ? PyTuple_Size(texts) : 0;
    if (n_ids < 0 || n_texts < 0) return false;
    o->stop_ids = PyMem_Malloc((size_t)(n_ids + 1) * sizeof *o->stop_ids);
    o->stops = PyMem_Malloc((size_t)(n_texts + 1) * sizeof *o->stops);
    if (!o->stop_ids || !o->stops) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < n_ids; i++) {
        int64_t id = -1;
        PyObject *item = PySequence_GetItem(ids, i);
        const bool is_ok = item && krpy_get_int("stop_ids", item, &id) && in_int32("stop_ids", id);
        Py_XDECREF(item);
        if (!is_ok) return false;
        o->stop_ids[i] = (int32_t)id;
    }
    for (Py_ssize_t i = 0; i < n_texts; i++)
        if (!krpy_get_text("stop", PyTuple_GetItem(texts, i), &o->stops[i])) return false;
    o->row.n_stop_ids = (int)n_ids;
    o->row.stop_ids = o->stop_ids;
    o->row.n_stops = (int)n_texts;
    o->row.stops = o->stops;
    return true;
}

enum { SEED = 8, STREAM, MAX_TOKENS, STOP_IDS, STOPS, N_TOP, SCORE_PROMPT, PROCESS, CONSTRAIN, LOGIT_BIAS, N_VALUES };
static const char *const option_names[] = { "row",
                                            "temperature",
                                            "top_k",
                                            "top_p",
                                            "min_p",
                                            "repetition_penalty",
                                            "presence_penalty",
                                            "frequency_penalty",
                                            "seed",
                                            "stream",
                                            "max_tokens",
                                            "stop_ids",
                                            "stops",
                                            "n_top",
                                            "score_prompt",
                                            "process",
                                            "constrain",
                                            "logit_bias",
                                            NULL };

static bool read_options(PyObject *const *values, row_options *o)
{
    kr_sampler_options *s = &o->sampler;
    kr_sampler_options_init(s);
    kr_row_options_init(&o->row);
    int64_t seed = (int64_t)s->seed, stream = 0;
    if (!krpy_get_double("temperature", values[1], &s->temperature) || !krpy_get_int("top_k", values[2], &s->top_k) ||
        !krpy_get_double("top_p", values[3], &s->top_p) || !krpy_get_double("min_p", values[4], &s->min_p) ||
        !krpy_get_double("repetition_penalty", values[5], &s->repetition_penalty) ||
        !krpy_get_double("presence_penalty", values[6], &s->presence_penalty) ||
        !krpy_get_double("frequency_penalty", values[7], &s->frequency_penalty) ||
        !krpy_get_int("seed", values[SEED], &seed) || !krpy_get_int("stream", values[STREAM], &stream) ||
        !krpy_get_int("max_tokens", values[MAX_TOKENS], &o->row.max_tokens) ||
        !read_stops(values[STOP_IDS], values[STOPS], o) || !krpy_get_int("n_top", values[N_TOP], &o->row.n_top) ||
        !krpy_get_bool("score_prompt", values[SCORE_PROMPT], &o->row.score_prompt) ||
        !read_biases(values[LOGIT_BIAS], o))
        return false;
    s->seed = (uint64_t)seed;
    o->row.stream = (uint64_t)stream;
    o->row.sampler = s;
    return true;
}

static void set_callable(PyObject **to, PyObject *callable)
{
    PyObject *old = *to;
    *to = callable && callable != Py_None ? Py_NewRef(callable) : NULL;
    Py_XDECREF(old);
}

static PyObject *batch_generate(PyObject *object, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    krpy_batch *self = (krpy_batch *)object;
    PyObject *values[N_VALUES];
    row_options o = { 0 };
    if (!krpy_args("generate", option_names, 1, 1, args, n_args, kwnames, values)) return NULL;
    krpy_row *row = row_at(self, values[0]);
    bool is_ok = row && read_options(values, &o);
    if (is_ok) {
        set_callable(&row->process, values[PROCESS]);
        set_callable(&row->constrain, values[CONSTRAIN]);
        if (row->process) o.row.process = process_row;
        if (row->constrain) o.row.constrain = constrain_row;
        o.row.process_user = o.row.constrain_user = row;
        krpy_enter(self->context);
        kr_row_generate(row->row, &o.row);
        is_ok = krpy_leave(self->context);
    }
    options_free(&o);
    if (!is_ok) return NULL;
    Py_RETURN_NONE;
}

/* ---- steps ---- */

static PyObject *list_of_samples(const kr_sample *samples, int64_t count)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (int64_t i = 0; list && i < count; i++) {
        PyObject *one = Py_BuildValue("(id)", (int)samples[i].id, samples[i].logprob);
        if (!one || PyList_SetItem(list, (Py_ssize_t)i, one) < 0) Py_CLEAR(list);
    }
    return list;
}

/* Number of a row; events come in the order of the rows, so that the search begins after the last one found. */
static Py_ssize_t number_of(const krpy_batch *self, const kr_row *row, Py_ssize_t from)
{
    for (Py_ssize_t k = 0; k < self->n_rows; k++) {
        const Py_ssize_t i = (from + k) % self->n_rows;
        if (self->rows[i]->row == row) return i;
    }
    return -1;
}

/* (kind, row, position, n_tokens, id, logprob, text, finish, status, scores, top) */
static PyObject *event_tuple(const kr_row_event *e, Py_ssize_t number)
{
    const int64_t lists = e->kind == KR_ROW_EVENT_PROMPT ? e->n_scores : 1;
    return Py_BuildValue("(inLLidy#isNN)", (int)e->kind, number, (long long)e->position, (long long)e->n_tokens,
                         (int)e->sample.id, e->sample.logprob, e->text ? e->text : "", (Py_ssize_t)e->bytes,
                         (int)e->finish, kr_status_name(e->status), list_of_samples(e->scores, e->n_scores),
                         list_of_samples(e->top, e->top ? lists * e->n_top : 0));
}

/* step(): a list of events, or None when no row has anything to do. */
static PyObject *batch_step(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    krpy_batch *self = (krpy_batch *)object;
    const kr_row_event *events = NULL;
    int64_t count = 0;
    kr_status status = KR_OK;
    krpy_enter(self->context);
    KRPY_COMPUTE(self->context, status = kr_row_batch_step(self->batch, &events, &count));
    PyObject *list = status == KR_OK ? PyList_New(0) : NULL;
    Py_ssize_t number = 0;
    for (int64_t i = 0; list && i < count; i++) {
        number = number_of(self, events[i].row, number);
        PyObject *one = event_tuple(&events[i], number);
        if (!one || PyList_Append(list, one) < 0) Py_CLEAR(list);
        Py_XDECREF(one);
        if (number < 0) number = 0;
    }
    if (!list && PyErr_Occurred()) {
        krpy_abandon(self->context);
        return NULL;
    }
    if (!krpy_leave(self->context)) {
        Py_XDECREF(list);
        return NULL;
    }
    if (list) return list;
    Py_RETURN_NONE;
}

static PyObject *batch_stats(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    const kr_row_batch_stats s = kr_row_batch_stats_of(((krpy_batch *)object)->batch);
    return Py_BuildValue("{s:L,s:L,s:L,s:L,s:L,s:L,s:n,s:N}", "rows", (long long)s.rows, "generating",
                         (long long)s.generating, "waiting", (long long)s.waiting, "prompt_tokens",
                         (long long)s.prompt_tokens, "tokens", (long long)s.tokens, "grid", (long long)s.grid,
                         "state_bytes", (Py_ssize_t)s.state_bytes, "is_exact", PyBool_FromLong(s.is_exact));
}

static PyMethodDef batch_methods[] = {
    { "create", batch_create, METH_NOARGS, "create($self, /)\n--\n\nThe number of a new, empty row." },
    { "fork", batch_fork, METH_O, "fork($self, row, /)\n--\n\nThe number of a new row with the same text." },
    { "destroy", batch_destroy, METH_O, "destroy($self, row, /)\n--\n\nRemoves a row." },
    { "cancel", batch_cancel, METH_O, "cancel($self, row, /)\n--\n\nStops a row." },
    { "feed", (PyCFunction)(void (*)(void))batch_feed, METH_FASTCALL,
      "feed($self, row, text, /)\n--\n\nQueues a text or a buffer of ids." },
    { "generate", (PyCFunction)(void (*)(void))batch_generate, METH_FASTCALL | METH_KEYWORDS,
      "generate($self, row, *, temperature=None, top_k=None, top_p=None, min_p=None, repetition_penalty=None, "
      "presence_penalty=None, frequency_penalty=None, seed=None, stream=None, max_tokens=None, stop_ids=None, "
      "stops=None, n_top=None, score_prompt=None, process=None, constrain=None, logit_bias=None)\n--\n\n"
      "Lets a row generate once its queue has been read." },
    { "step", batch_step, METH_NOARGS, "step($self, /)\n--\n\nThe events of one step; None at the end." },
    { "stats", batch_stats, METH_NOARGS, "stats($self, /)\n--\n\nCounts so far." },
    { 0 },
};

static PyType_Slot batch_slots[] = {
    { Py_tp_doc, (void *)"RowBatch(model, tokenizer=None, *, max_rows=None, grid=None, prefill_tokens=None)\n--\n\n"
                         "Sequences that are generated together." },
    { Py_tp_new, batch_new },
    { Py_tp_dealloc, batch_dealloc },
    { Py_tp_traverse, batch_traverse },
    { Py_tp_clear, batch_clear },
    { Py_tp_methods, batch_methods },
    { 0, NULL },
};

PyType_Spec krpy_batch_spec = {
    .name = "krait._core.RowBatch",
    .basicsize = sizeof(krpy_batch),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = batch_slots,
};
