/* model_type.c - Model: a network with its files and its tokenizer. Private; krait.Model is the public class. */
#include "core.h"

static void destroy_model(void *model)
{
    kr_model_destroy(model);
}

static void destroy_text_model(void *text)
{
    kr_text_model_destroy(text);
}

/* ---- life ---- */

static krpy_model *prepare(krpy_module *module, krpy_context *c)
{
    krpy_model *self = krpy_alloc(module->model);
    if (!self) return NULL;
    self->context = (krpy_context *)Py_NewRef((PyObject *)c);
    self->handle = krpy_handle_new();
    if (!self->handle) Py_CLEAR(self);
    return self;
}

/* Gives a prepared object its model, of which one is not NULL. */
static void set_model(krpy_model *self, kr_text_model *text, kr_model *model)
{
    self->text = text;
    self->model = text ? kr_text_model_model(text) : model;
    self->net = kr_model_network(self->model);
    if (text) *self->handle = (krpy_handle){ .destroy = destroy_text_model, .object = text };
    else *self->handle = (krpy_handle){ .destroy = destroy_model, .object = model };
}

static PyObject *leave_with(krpy_model *self)
{
    if (krpy_leave(self->context)) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

/* load_model(context, folder, *, tokenizer=None, dtype=None, mmap=True): tokenizer "": none. */
PyObject *krpy_load_model(PyObject *module, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    static const char *const names[] = { "context", "folder", "tokenizer", "dtype", "mmap", NULL };
    krpy_module *state = PyModule_GetState(module);
    PyObject *values[5], *keep;
    kr_load_options load;
    kr_load_options_init(&load);
    kr_text_model_options options = { .load = &load };
    bool use_mmap = true;
    const char *folder;
    if (!krpy_args("load_model", names, 2, 2, args, n_args, kwnames, values) ||
        !krpy_get_text("tokenizer", values[2], &options.tokenizer) ||
        !krpy_get_dtype("dtype", values[3], &load.dtype) || !krpy_get_bool("mmap", values[4], &use_mmap) ||
        !krpy_get_path("folder", values[1], &keep, &folder))
        return NULL;
    load.no_mmap = !use_mmap;
    options.skip_tokenizer = options.tokenizer && !options.tokenizer[0];
    if (options.skip_tokenizer) options.tokenizer = NULL;
    krpy_context *c = krpy_context_of(state, values[0]);
    krpy_model *self = c ? prepare(state, c) : NULL;
    if (self) {
        kr_text_model *text = NULL;
        krpy_enter(c);
        KRPY_COMPUTE(c, text = kr_text_model_open(c->ctx, folder, &options));
        set_model(self, text, NULL);
        self = (krpy_model *)leave_with(self);
    }
    Py_XDECREF(keep);
    return (PyObject *)self;
}

/* load_model_memory(context, config, weights): from the text of config.json and the bytes of a file of weights. */
PyObject *krpy_load_model_memory(PyObject *module, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    static const char *const names[] = { "context", "config", "weights", NULL };
    krpy_module *state = PyModule_GetState(module);
    PyObject *values[3];
    Py_buffer config, weights;
    if (!krpy_args("load_model_memory", names, 3, 3, args, n_args, kwnames, values) ||
        PyObject_GetBuffer(values[1], &config, PyBUF_SIMPLE) < 0)
        return NULL;
    if (PyObject_GetBuffer(values[2], &weights, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&config);
        return NULL;
    }
    krpy_context *c = krpy_context_of(state, values[0]);
    krpy_model *self = c ? prepare(state, c) : NULL;
    if (self) {
        kr_model *model = NULL;
        krpy_enter(c);
        KRPY_COMPUTE(c, model = kr_model_load_memory(c->ctx, config.buf, (size_t)config.len, weights.buf,
                                                     (size_t)weights.len, NULL));
        set_model(self, NULL, model);
        self = (krpy_model *)leave_with(self);
    }
    PyBuffer_Release(&weights);
    PyBuffer_Release(&config);
    return (PyObject *)self;
}

/* Begins with the config of a JSON text, or with the defaults of a family. */
static kr_model_config *config_begin(krpy_context *c, int family, const char *json, Py_ssize_t bytes)
{
    kr_model_config *config =
        json ? kr_model_config_parse(c->ctx, json, (size_t)bytes) : kr_model_config_create(c->ctx);
    if (config && family >= 0) config->family = (kr_family)family;
    return config;
}

/* create_model(context, *, family=None, json=None, fields=None, measure=False). measure: sizes, no model. */
PyObject *krpy_create_model(PyObject *module, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    static const char *const names[] = { "context", "family", "json", "fields", "measure", NULL };
    krpy_module *state = PyModule_GetState(module);
    PyObject *values[5], *result = NULL;
    int family = -1;
    const char *json;
    bool only_measure = false;
    krpy_model_parts parts = { 0 };
    if (!krpy_args("create_model", names, 1, 1, args, n_args, kwnames, values) ||
        !krpy_get_word("family", values[1], krpy_family_names, &family) || !krpy_get_text("json", values[2], &json) ||
        !krpy_get_bool("measure", values[4], &only_measure))
        return NULL;
    krpy_context *c = krpy_context_of(state, values[0]);
    krpy_model *self = c ? prepare(state, c) : NULL;
    if (!self) return NULL;
    krpy_enter(c);
    parts.model = config_begin(c, family, json, json ? (Py_ssize_t)strlen(json) : 0);
    const bool is_set = parts.model && (!values[3] || krpy_config_set_model(&parts, values[3]));
    kr_model_size size = { 0 };
    if (is_set && only_measure) kr_model_measure(c->ctx, parts.model, &size);
    else if (is_set) {
        kr_model *model = NULL;
        KRPY_COMPUTE(c, model = kr_model_create(c->ctx, parts.model));
        set_model(self, NULL, model);
    }
    kr_model_config_destroy(parts.model);
    PyMem_Free(parts.schedule);
    const bool is_ok = (is_set || !PyErr_Occurred()) ? krpy_leave(c) : (krpy_abandon(c), false);
    if (is_ok && only_measure)
        result = Py_BuildValue("{s:L,s:n,s:n,s:n}", "parameters", (long long)size.parameters, "weight_bytes",
                               (Py_ssize_t)size.weight_bytes, "state_bytes", (Py_ssize_t)size.state_bytes,
                               "prefill_bytes", (Py_ssize_t)size.prefill_bytes);
    else if (is_ok) result = Py_NewRef((PyObject *)self);
    Py_DECREF(self);
    return result;
}

static int model_traverse(PyObject *object, visitproc visit, void *arg)
{
    krpy_model *self = (krpy_model *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->context);
    return 0;
}

static void model_dealloc(PyObject *object)
{
    krpy_model *self = (krpy_model *)object;
    PyObject_GC_UnTrack(object);
    if (self->context) krpy_discard(self->context, self->handle);
    Py_CLEAR(self->context);
    krpy_free(object);
}

/* share(context): a model over the same weights. */
static PyObject *model_share(PyObject *object, PyObject *context)
{
    krpy_model *self = (krpy_model *)object;
    krpy_module *module = krpy_module_of(object);
    krpy_context *c = krpy_context_of(module, context);
    krpy_model *made = c ? prepare(module, c) : NULL;
    if (!made) return NULL;
    kr_text_model *text = NULL;
    kr_model *model = NULL;
    /* No thread may write the weights meanwhile. Two contexts are entered in the order of their addresses. */
    krpy_context *const first = self->context < c ? self->context : c, *const second = first == c ? self->context : c;
    krpy_enter(first);
    krpy_enter(second);
    KRPY_COMPUTE(c, if (self->text) text = kr_text_model_share(c->ctx, self->text);
                 else model = kr_model_share(c->ctx, self->model));
    set_model(made, text, model);
    const bool is_ok = krpy_leave(c);
    krpy_abandon(self->context); /* in a forked child it has an error, which does not concern its weights */
    if (is_ok) return (PyObject *)made;
    Py_DECREF(made);
    return NULL;
}

/* ---- calls ---- */

static const char *const kinds[] = { "forward", "step", "prime", "step_infinite", NULL };

/* Results of a call of the network: y and hidden on the tape, and a State object that was prepared for the new state. */
typedef struct call_job {
    krpy_model *model;
    krpy_tape *tape;
    krpy_state *from, *to;
    int kind;
    kr_tensor *x;
    kr_call call;
    kr_network_out out;
} call_job;

static bool read_call(krpy_module *module, PyObject *const *values, call_job *job)
{
    PyObject *tape = values[0], *self = (PyObject *)job->model;
    bool in_place = false, drop_state = false;
    if (!krpy_get_word("kind", values[1], kinds, &job->kind) ||
        !krpy_get_tensor(module, "x", values[2], tape, &job->x) ||
        !krpy_get_state(module, "state", values[3], self, &job->from) ||
        !krpy_get_bool("last", values[4], &job->call.last_logits_only) ||
        !krpy_get_bool("drop_state", values[5], &drop_state) || !krpy_get_bool("in_place", values[6], &in_place) ||
        !krpy_get_tensor(module, "mask", values[7], tape, &job->call.mask_bs) ||
        !krpy_get_tensor(module, "seq_start", values[8], tape, &job->call.seq_start_bs) ||
        !krpy_get_tensor(module, "reset", values[9], tape, &job->call.reset_bs) ||
        !krpy_get_tensor(module, "cu_seqlens", values[10], tape, &job->call.cu_seqlens))
        return false;
    if (in_place && !job->from) {
        PyErr_SetString(PyExc_ValueError, "a call in place needs a state");
        return false;
    }
    if (in_place && job->from->exports) {
        PyErr_Format(PyExc_BufferError,
                     "the state has %zd arrays over its memory, and cannot change in place until they are gone",
                     job->from->exports);
        return false;
    }
    job->call.drop_state = drop_state;
    if (in_place) job->call.advance = job->from->state;
    else if (job->from) job->call.state = job->from->state;
    return true;
}

static bool is_of(const krpy_model *model, const krpy_tape *tape)
{
    if (model->context == tape->context) return true;
    PyErr_SetString(PyExc_ValueError, "the tape belongs to another context than the model");
    return false;
}

static void run_call(call_job *job)
{
    job->out = kr_network_call(job->tape->tape, job->model->net, (kr_call_kind)job->kind, job->x,
                               job->kind == KR_CALL_STEP_INFINITE ? NULL : &job->call);
    if (job->to && job->out.state && krpy_state_fill(job->to, kr_state_batch(job->out.state)))
        kr_state_copy(job->to->state, job->out.state);
}

static PyObject *tensor_or_none(krpy_module *module, krpy_tape *tape, kr_tensor *tensor)
{
    if (!tensor) Py_RETURN_NONE;
    return krpy_array_of_tensor(module, tape->context, (PyObject *)tape, tensor, true, NULL);
}

/* call(tape, kind, x, state=None, *, ...): (y, hidden, state) */
static PyObject *model_call(PyObject *object, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    static const char *const names[] = { "tape",     "kind", "x",         "state", "last",       "drop_state",
                                         "in_place", "mask", "seq_start", "reset", "cu_seqlens", NULL };
    krpy_module *module = krpy_module_of(object);
    PyObject *values[11], *result = NULL;
    call_job job = { .model = (krpy_model *)object };
    kr_call_init(&job.call);
    if (!krpy_args("call", names, 3, 4, args, n_args, kwnames, values) ||
        !(job.tape = krpy_tape_of(module, values[0])) || !read_call(module, values, &job))
        return NULL;
    krpy_context *c = job.tape->context;
    if (!is_of(job.model, job.tape)) return NULL;
    const bool keeps = !job.call.drop_state && !job.call.advance && job.kind != KR_CALL_STEP_INFINITE;
    if (keeps && !(job.to = krpy_state_prepare(module, job.model->context, object, job.model->net, NULL))) return NULL;
    /* The tape's backward pass reads the state and the weights. */
    if ((!job.from || krpy_tape_keep(job.tape, (PyObject *)job.from)) && krpy_tape_keep(job.tape, object)) {
        krpy_enter(c);
        KRPY_COMPUTE(c, run_call(&job));
        if (krpy_leave(c)) {
            PyObject *state = job.call.advance ? (PyObject *)job.from : job.to ? (PyObject *)job.to : Py_None;
            PyObject *y = tensor_or_none(module, job.tape, job.out.y);
            PyObject *hidden = y ? tensor_or_none(module, job.tape, job.out.hidden) : NULL;
            if (hidden) result = PyTuple_Pack(3, y, hidden, state);
            Py_XDECREF(y);
            Py_XDECREF(hidden);
        }
    }
    Py_XDECREF((PyObject *)job.to);
    return result;
}

/* ---- loss ---- */

static const char *const losses[] = { "cross_entropy", "soft_cross_entropy", "bce", "mse", "l1",
                                      "huber",         "quantile",           NULL };

typedef struct loss_job {
    krpy_model *model;
    krpy_tape *tape;
    krpy_state *from;
    kr_call call;
    kr_loss_call loss;
    PyObject *out; /* list of buffers for the gradients, or NULL */
    double value;
    kr_scores scores;
} loss_job;

static bool read_loss(krpy_module *module, PyObject *const *values, loss_job *job)
{
    PyObject *tape = values[0];
    int kind = KR_LOSS_CROSS_ENTROPY;
    if (!krpy_get_word("kind", values[1], losses, &kind) ||
        !krpy_get_tensor(module, "ids", values[2], tape, &job->loss.ids_bs) ||
        !krpy_get_tensor(module, "x", values[3], tape, &job->loss.x_bsf) ||
        !krpy_get_tensor(module, "labels", values[4], tape, &job->loss.labels) ||
        !krpy_get_tensor(module, "targets", values[5], tape, &job->loss.targets) ||
        !krpy_get_tensor(module, "scored", values[6], tape, &job->loss.scored) ||
        !krpy_get_state(module, "state", values[7], (PyObject *)job->model, &job->from) ||
        !krpy_get_tensor(module, "mask", values[8], tape, &job->call.mask_bs) ||
        !krpy_get_tensor(module, "seq_start", values[9], tape, &job->call.seq_start_bs) ||
        !krpy_get_tensor(module, "reset", values[10], tape, &job->call.reset_bs) ||
        !krpy_get_tensor(module, "cu_seqlens", values[11], tape, &job->call.cu_seqlens) ||
        !krpy_get_double("dropout", values[12], &job->call.dropout) ||
        !krpy_get_double("label_smoothing", values[13], &job->loss.label_smoothing) ||
        !krpy_get_int("ignore_index", values[14], &job->loss.ignore_index))
        return false;
    job->loss.kind = (kr_loss_kind)kind;
    job->out = values[15] && values[15] != Py_None ? values[15] : NULL;
    if (job->from) job->call.state = job->from->state;
    job->call.drop_state = true;
    job->loss.call = &job->call;
    return true;
}

/* Copies the gradient of parameter i to a buffer of its size; zeros where it received none. */
static bool read_gradient(krpy_module *module, loss_job *job, int64_t i)
{
    krpy_context *c = job->model->context;
    PyObject *item = PySequence_GetItem(job->out, (Py_ssize_t)i);
    krpy_array *to = item ? (krpy_array *)krpy_array_of_buffer(module, item, NULL, true) : NULL;
    Py_XDECREF(item);
    if (!to) return false;
    const kr_tensor *gradient = kr_grad(kr_params_at(kr_network_params(job->model->net), i)->tensor);
    bool is_ok = krpy_array_is_contiguous(to) && !to->is_readonly;
    if (!is_ok) PyErr_SetString(PyExc_ValueError, "out: gradients need contiguous, writable buffers");
    else if (!(is_ok = krpy_array_check_device(to, NULL))) PyErr_SetString(PyExc_ValueError, "out: not in host memory");
    else if (gradient) KRPY_COMPUTE(c, kr_tensor_read(gradient, to->dtype, to->data, krpy_array_count(to)));
    else memset(to->data, 0, (size_t)krpy_array_count(to) * kr_dtype_bytes(to->dtype));
    Py_DECREF(to);
    return is_ok;
}

static void run_loss(loss_job *job)
{
    kr_params *params = kr_network_params(job->model->net);
    if (job->out) kr_params_zero_grad(params);
    const kr_loss_out out = kr_network_loss(job->tape->tape, job->model->net, &job->loss);
    if (out.loss) job->value = kr_item(out.loss);
    job->scores = out.scores;
    if (job->out && out.loss) kr_backward(job->tape->tape, out.loss);
}

/* loss(tape, *, kind, ids, ..., out=None): (loss, scored, right). out: buffers that receive the gradients. */
static PyObject *model_loss(PyObject *object, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    static const char *const names[] = {
        "tape",      "kind",  "ids",        "x",       "labels",          "targets",      "scored", "state", "mask",
        "seq_start", "reset", "cu_seqlens", "dropout", "label_smoothing", "ignore_index", "out",    NULL
    };
    krpy_module *module = krpy_module_of(object);
    PyObject *values[16];
    loss_job job = { .model = (krpy_model *)object };
    kr_call_init(&job.call);
    kr_loss_call_init(&job.loss);
    if (!krpy_args("loss", names, 1, 1, args, n_args, kwnames, values) ||
        !(job.tape = krpy_tape_of(module, values[0])) || !read_loss(module, values, &job))
        return NULL;
    krpy_context *c = job.model->context;
    kr_params *params = kr_network_params(job.model->net);
    if (!is_of(job.model, job.tape) || (job.from && !krpy_tape_keep(job.tape, (PyObject *)job.from)) ||
        !krpy_tape_keep(job.tape, object))
        return NULL;
    krpy_enter(c);
    KRPY_COMPUTE(c, run_loss(&job));
    bool is_ok = true;
    const int64_t count = job.out ? kr_params_count(params) : 0;
    for (int64_t i = 0; is_ok && i < count && !kr_ctx_failed(c->ctx); i++) is_ok = read_gradient(module, &job, i);
    if (job.out) KRPY_COMPUTE(c, kr_params_zero_grad(params));
    if (!is_ok) {
        krpy_abandon(c);
        return NULL;
    }
    if (!krpy_leave(c)) return NULL;
    return Py_BuildValue("(dLL)", job.value, (long long)job.scores.scored, (long long)job.scores.right);
}

/* ---- parts and files ---- */

static PyObject *model_state(PyObject *object, PyObject *batch)
{
    krpy_model *self = (krpy_model *)object;
    int64_t rows = 1;
    if (!krpy_get_int("batch", batch, &rows)) return NULL;
    krpy_state *made = krpy_state_prepare(krpy_module_of(object), self->context, object, self->net, NULL);
    if (!made) return NULL;
    krpy_enter(self->context);
    krpy_state_fill(made, rows);
    if (krpy_leave(self->context)) return (PyObject *)made;
    Py_DECREF(made);
    return NULL;
}

/* A state of the file at `path`, or with path NULL of the bytes of a file. */
static PyObject *read_state(krpy_model *self, const char *path, const Py_buffer *bytes)
{
    krpy_context *c = self->context;
    krpy_state *made = krpy_state_prepare(krpy_module_of((PyObject *)self), c, (PyObject *)self, self->net, NULL);
    if (!made) return NULL;
    kr_state *state = NULL;
    krpy_enter(c);
    KRPY_COMPUTE(c, state = path ? kr_state_load(c->ctx, self->net, path)
                                 : kr_state_load_memory(c->ctx, self->net, bytes->buf, (size_t)bytes->len));
    krpy_state_set(made, state);
    if (krpy_leave(c)) return (PyObject *)made;
    Py_DECREF(made);
    return NULL;
}

static PyObject *model_load_state(PyObject *object, PyObject *path)
{
    PyObject *keep;
    const char *text;
    if (!krpy_get_path("path", path, &keep, &text)) return NULL;
    PyObject *made = read_state((krpy_model *)object, text, NULL);
    Py_XDECREF(keep);
    return made;
}

static PyObject *model_load_state_memory(PyObject *object, PyObject *source)
{
    Py_buffer bytes;
    if (PyObject_GetBuffer(source, &bytes, PyBUF_SIMPLE) < 0) return NULL;
    PyObject *made = read_state((krpy_model *)object, NULL, &bytes);
    PyBuffer_Release(&bytes);
    return made;
}

static const char *const layouts[] = { "official", "hf", NULL };
static const char *const containers[] = { "safetensors", "torch", NULL };

/* save(folder, *, layout=None, dtype=None, container=None, max_shard_bytes=0) */
static PyObject *model_save(PyObject *object, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    static const char *const names[] = { "folder", "layout", "dtype", "container", "max_shard_bytes", NULL };
    krpy_model *self = (krpy_model *)object;
    PyObject *values[5], *keep;
    kr_save_options options;
    kr_save_options_init(&options);
    int layout = (int)options.layout, container = (int)options.container;
    int64_t shard = 0;
    const char *folder;
    if (!krpy_args("save", names, 1, 1, args, n_args, kwnames, values) ||
        !krpy_get_word("layout", values[1], layouts, &layout) || !krpy_get_dtype("dtype", values[2], &options.dtype) ||
        !krpy_get_word("container", values[3], containers, &container) ||
        !krpy_get_int("max_shard_bytes", values[4], &shard) || !krpy_get_path("folder", values[0], &keep, &folder))
        return NULL;
    options.layout = (kr_layout)layout;
    options.container = (kr_container)container;
    options.max_shard_bytes = shard > 0 ? (size_t)shard : 0;
    kr_status status = KR_OK;
    krpy_enter(self->context);
    KRPY_COMPUTE(self->context, status = kr_model_save(self->model, folder, &options));
    const bool is_ok = krpy_leave(self->context) && status == KR_OK;
    Py_XDECREF(keep);
    if (!is_ok) return NULL;
    Py_RETURN_NONE;
}

/* (config, weights): the bytes of config.json and of the file with the weights, as save writes them. */
static PyObject *model_to_bytes(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    krpy_model *self = (krpy_model *)object;
    size_t n_config = 0, n_weights = 0;
    kr_status status = KR_OK;
    krpy_enter(self->context);
    KRPY_COMPUTE(self->context,
                 status = kr_model_save_memory(self->model, NULL, NULL, 0, &n_config, NULL, 0, &n_weights));
    PyObject *config = NULL, *weights = NULL, *both = NULL;
    if (status == KR_OK && ((config = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)n_config)) == NULL ||
                            (weights = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)n_weights)) == NULL)) {
        Py_XDECREF(config);
        krpy_abandon(self->context);
        return NULL;
    }
    if (weights) {
        char *const config_out = PyBytes_AsString(config), *const weights_out = PyBytes_AsString(weights);
        KRPY_COMPUTE(self->context, status = kr_model_save_memory(self->model, NULL, config_out, n_config, &n_config,
                                                                  weights_out, n_weights, &n_weights));
    }
    if (krpy_leave(self->context) && status == KR_OK) both = PyTuple_Pack(2, config, weights);
    Py_XDECREF(config);
    Py_XDECREF(weights);
    return both;
}

/* config(layout=None): the text of config.json. */
static PyObject *model_config(PyObject *object, PyObject *name)
{
    krpy_model *self = (krpy_model *)object;
    const kr_model_config *config = kr_model_config_of(self->model);
    int layout = KR_LAYOUT_AS_LOADED;
    size_t bytes = 0;
    if (!krpy_get_word("layout", name, layouts, &layout)) return NULL;
    krpy_enter(self->context);
    kr_ctx *ctx = self->context->ctx;
    kr_model_config_format(ctx, config, (kr_layout)layout, NULL, 0, &bytes);
    char *text = PyMem_Malloc(bytes + 1);
    if (text) kr_model_config_format(ctx, config, (kr_layout)layout, text, bytes + 1, &bytes);
    PyObject *made = NULL;
    if (krpy_leave(self->context))
        made = text ? PyUnicode_FromStringAndSize(text, (Py_ssize_t)bytes) : PyErr_NoMemory();
    PyMem_Free(text);
    return made;
}

static PyObject *list_of(const int32_t *ids, int count)
{
    PyObject *list = PyList_New(count);
    for (int i = 0; list && i < count; i++) {
        PyObject *id = PyLong_FromLong(ids[i]);
        if (!id || PyList_SetItem(list, i, id) < 0) Py_CLEAR(list);
    }
    return list;
}

/* Facts about the model, as a dict. */
static PyObject *model_info(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    krpy_model *self = (krpy_model *)object;
    const kr_model_config *config = kr_model_config_of(self->model);
    const kr_text_model_info text = kr_text_model_info_of(self->text);
    const kr_layers_info layers = kr_layers_info_of(kr_network_layers(self->net));
    return Py_BuildValue("{s:s,s:s,s:L,s:L,s:L,s:L,s:L,s:L,s:L,s:L,s:L,s:N,s:N,s:i}", "family",
                         kr_family_name(config->family), "layout", kr_layout_name(config->layout), "n_layers",
                         (long long)config->layers->n_layers, "n_virtual", (long long)layers.n_virtual, "d_model",
                         (long long)layers.d_model, "vocab_size", (long long)config->network->vocab_size, "width",
                         (long long)kr_network_width(self->net), "input_size", (long long)config->network->input_size,
                         "output_size", (long long)config->network->output_size, "grid",
                         (long long)kr_network_grid(self->net), "parameters",
                         (long long)kr_params_elements(kr_network_params(self->net)), "eos",
                         list_of(text.eos, text.n_eos), "bos", list_of(text.bos, text.n_bos), "start", (int)text.start);
}

static PyObject *model_tokenizer(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    const kr_tokenizer *tokenizer = kr_text_model_tokenizer(((krpy_model *)object)->text);
    if (!tokenizer) Py_RETURN_NONE;
    return krpy_tokenizer_share(krpy_module_of(object), tokenizer);
}

static PyObject *model_params(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    krpy_model *self = (krpy_model *)object;
    return krpy_params_new(krpy_module_of(object), self->context, object, kr_network_params(self->net));
}

static PyObject *get_context(PyObject *object, void *closure)
{
    (void)closure;
    return Py_NewRef((PyObject *)((krpy_model *)object)->context);
}

static PyMethodDef model_methods[] = {
    { "share", model_share, METH_O,
      "share($self, context, /)\n--\n\nA model of another context over the same weights." },
    { "call", (PyCFunction)(void (*)(void))model_call, METH_FASTCALL | METH_KEYWORDS,
      "call($self, tape, kind, x, state=None, *, last=False, drop_state=False, in_place=False, mask=None, "
      "seq_start=None, reset=None, cu_seqlens=None)\n--\n\nRuns the network: outputs, hidden, state." },
    { "loss", (PyCFunction)(void (*)(void))model_loss, METH_FASTCALL | METH_KEYWORDS,
      "loss($self, tape, *, kind=None, ids=None, x=None, labels=None, targets=None, scored=None, state=None, "
      "mask=None, seq_start=None, reset=None, cu_seqlens=None, dropout=None, label_smoothing=None, ignore_index=None, "
      "out=None)\n--\n\nLoss, scored and right labels; gradients go to the buffers of out." },
    { "state", model_state, METH_O, "state($self, batch, /)\n--\n\nAn initial state." },
    { "load_state", model_load_state, METH_O, "load_state($self, path, /)\n--\n\nA state from a file." },
    { "load_state_memory", model_load_state_memory, METH_O,
      "load_state_memory($self, data, /)\n--\n\nA state from the bytes of a file." },
    { "to_bytes", model_to_bytes, METH_NOARGS,
      "to_bytes($self, /)\n--\n\nThe bytes of config.json and of the file with the weights." },
    { "save", (PyCFunction)(void (*)(void))model_save, METH_FASTCALL | METH_KEYWORDS,
      "save($self, folder, *, layout=None, dtype=None, container=None, max_shard_bytes=None)\n--\n\nSaves the model." },
    { "config", model_config, METH_O, "config($self, layout, /)\n--\n\nThe text of config.json." },
    { "info", model_info, METH_NOARGS, "info($self, /)\n--\n\nFacts about the model." },
    { "tokenizer", model_tokenizer, METH_NOARGS, "tokenizer($self, /)\n--\n\nA handle of its tokenizer, or None." },
    { "params", model_params, METH_NOARGS, "params($self, /)\n--\n\nThe parameter table." },
    { 0 },
};

static PyGetSetDef model_attributes[] = {
    { "context", get_context, NULL, "The context.", NULL },
    { 0 },
};

static PyType_Slot model_slots[] = {
    { Py_tp_doc, (void *)"A network with its files and its tokenizer." },
    { Py_tp_dealloc, model_dealloc },
    { Py_tp_traverse, model_traverse },
    { Py_tp_methods, model_methods },
    { Py_tp_getset, model_attributes },
    { 0, NULL },
};

PyType_Spec krpy_model_spec = {
    .name = "krait._core.Model",
    .basicsize = sizeof(krpy_model),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = model_slots,
};
