/* block_type.c - Block: a block, or a stack of layers, without a network. Private; krait.nn has the public classes. */
#include "core.h"

typedef struct krpy_block {
    PyObject_HEAD krpy_context *context;
    krpy_handle *handle;
    kr_block *block; /* one of the two */
    kr_layers *layers;
} krpy_block;

static void destroy_block(void *block)
{
    kr_block_destroy(block);
}

static void destroy_layers(void *layers)
{
    kr_layers_destroy(layers);
}

/* ---- life ---- */

typedef union family_config {
    kr_mamba1_config mamba1;
    kr_mamba2_config mamba2;
    kr_mamba3_config mamba3;
} family_config;

static void family_config_init(kr_family family, family_config *config)
{
    if (family == KR_FAMILY_MAMBA1) kr_mamba1_config_init(&config->mamba1);
    else if (family == KR_FAMILY_MAMBA2) kr_mamba2_config_init(&config->mamba2);
    else kr_mamba3_config_init(&config->mamba3);
}

static void create(krpy_block *self, const kr_block_config *config, kr_layers_config *stack)
{
    kr_ctx *ctx = self->context->ctx;
    if (stack) {
        stack->block = *config;
        self->layers = kr_layers_create(ctx, stack);
        *self->handle = (krpy_handle){ .destroy = destroy_layers, .object = self->layers };
    } else {
        self->block = kr_block_create(ctx, config);
        *self->handle = (krpy_handle){ .destroy = destroy_block, .object = self->block };
    }
}

static krpy_block *prepare(PyTypeObject *type, krpy_context *c)
{
    krpy_block *self = krpy_alloc(type);
    if (!self) return NULL;
    self->context = (krpy_context *)Py_NewRef((PyObject *)c);
    self->handle = krpy_handle_new();
    if (!self->handle) Py_CLEAR(self);
    return self;
}

/* Block(context, family, fields, stack=None): dicts of the fields of the family, and of a stack of such blocks. */
static PyObject *block_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = { "context", "family", "fields", "stack", NULL };
    PyObject *context, *name, *fields, *stack = Py_None;
    int family = KR_FAMILY_MAMBA2;
    family_config config;
    kr_layers_config layers;
    int64_t *schedule = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|O:Block", names, &context, &name, &fields, &stack) ||
        !krpy_get_word("family", name, krpy_family_names, &family))
        return NULL;
    krpy_context *c = krpy_context_of(PyType_GetModuleState(type), context);
    if (!c) return NULL;
    family_config_init((kr_family)family, &config);
    kr_layers_config_init(&layers);
    krpy_block *self = NULL;
    if (krpy_config_set_block((kr_family)family, &config, fields) &&
        (stack == Py_None || krpy_config_set_layers(&layers, stack, &schedule)))
        self = prepare(type, c);
    if (self) {
        const kr_block_config any = { (kr_family)family, &config };
        krpy_enter(c);
        KRPY_COMPUTE(c, create(self, &any, stack == Py_None ? NULL : &layers));
        if (!krpy_leave(c)) Py_CLEAR(self);
    }
    PyMem_Free(schedule);
    return (PyObject *)self;
}

static int block_traverse(PyObject *object, visitproc visit, void *arg)
{
    krpy_block *self = (krpy_block *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->context);
    return 0;
}

static void block_dealloc(PyObject *object)
{
    krpy_block *self = (krpy_block *)object;
    PyObject_GC_UnTrack(object);
    if (self->context) krpy_discard(self->context, self->handle);
    Py_CLEAR(self->context);
    krpy_free(object);
}

/* ---- calls ---- */

static const char *const kinds[] = { "forward", "step", "prime", "step_infinite", NULL };

typedef struct block_job {
    krpy_block *self;
    krpy_tape *tape;
    int kind;
    kr_tensor *x;
    kr_block_call call;
    kr_cache cache;
    krpy_state *from, *to; /* of a stack */
    kr_block_out out;
} block_job;

/* cache: a tuple of arrays, or None for the initial one. */
static bool read_cache(krpy_module *module, PyObject *tape, PyObject *tuple, block_job *job)
{
    if (!tuple || tuple == Py_None) return true;
    const kr_family family = kr_block_family(job->self->block);
    const int count = kr_cache_count(family);
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != count) {
        PyErr_Format(PyExc_TypeError, "cache must be a tuple of %d arrays", count);
        return false;
    }
    job->cache.family = family;
    for (int i = 0; i < count; i++)
        if (!krpy_get_tensor(module, "cache", PyTuple_GetItem(tuple, i), tape, &job->cache.tensors[i])) return false;
    job->call.cache = &job->cache;
    return true;
}

static bool read_call(krpy_module *module, PyObject *const *values, block_job *job)
{
    PyObject *tape = values[0];
    if (!krpy_get_word("kind", values[1], kinds, &job->kind) ||
        !krpy_get_tensor(module, "x", values[2], tape, &job->x) ||
        !krpy_get_tensor(module, "mask", values[4], tape, &job->call.mask_bs) ||
        !krpy_get_tensor(module, "seq_start", values[5], tape, &job->call.seq_start_bs) ||
        !krpy_get_tensor(module, "reset", values[6], tape, &job->call.reset_bs) ||
        !krpy_get_tensor(module, "cu_seqlens", values[7], tape, &job->call.cu_seqlens))
        return false;
    if (job->self->layers) return krpy_get_state(module, "state", values[3], (PyObject *)job->self, &job->from);
    return read_cache(module, tape, values[3], job);
}

static void run_block(block_job *job)
{
    const bool has_options = job->kind != KR_CALL_STEP_INFINITE;
    job->out = kr_block_run(job->tape->tape, job->self->block, (kr_call_kind)job->kind, job->x,
                            has_options ? &job->call : NULL);
}

static void run_layers(block_job *job)
{
    kr_call call;
    kr_call_init(&call);
    call.mask_bs = job->call.mask_bs;
    call.seq_start_bs = job->call.seq_start_bs;
    call.reset_bs = job->call.reset_bs;
    call.cu_seqlens = job->call.cu_seqlens;
    if (job->from) call.state = job->from->state;
    const bool has_options = job->kind != KR_CALL_STEP_INFINITE;
    const kr_layers_out out =
        kr_layers_call(job->tape->tape, job->self->layers, (kr_call_kind)job->kind, job->x, has_options ? &call : NULL);
    job->out.y = out.y;
    if (job->to && out.state && krpy_state_fill(job->to, kr_state_batch(out.state)))
        kr_state_copy(job->to->state, out.state);
}

/* The new cache as a tuple of arrays, or the new state of a stack. */
static PyObject *cache_of(krpy_module *module, block_job *job)
{
    if (job->to) return Py_NewRef((PyObject *)job->to);
    if (job->self->layers || job->kind == KR_CALL_STEP_INFINITE) Py_RETURN_NONE;
    const int count = kr_cache_count(job->out.cache.family);
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        PyObject *array = krpy_array_of_tensor(module, job->tape->context, (PyObject *)job->tape,
                                               job->out.cache.tensors[i], true, NULL);
        if (!array || PyTuple_SetItem(tuple, i, array) < 0) Py_CLEAR(tuple);
    }
    return tuple;
}

/* run(tape, kind, x, cache=None, *, ...): (y, cache); of a stack (y, State). */
static PyObject *block_run(PyObject *object, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    static const char *const names[] = {
        "tape", "kind", "x", "cache", "mask", "seq_start", "reset", "cu_seqlens", NULL
    };
    krpy_module *module = krpy_module_of(object);
    PyObject *values[8], *result = NULL;
    block_job job = { .self = (krpy_block *)object };
    if (!krpy_args("run", names, 3, 4, args, n_args, kwnames, values) ||
        !(job.tape = krpy_tape_of(module, values[0])) || !read_call(module, values, &job))
        return NULL;
    krpy_context *c = job.self->context;
    if (job.tape->context != c) {
        PyErr_SetString(PyExc_ValueError, "the tape belongs to another context than the block");
        return NULL;
    }
    if (job.self->layers && job.kind != KR_CALL_STEP_INFINITE &&
        !(job.to = krpy_state_prepare(module, c, object, NULL, job.self->layers)))
        return NULL;
    if (krpy_tape_keep(job.tape, object) && (!job.from || krpy_tape_keep(job.tape, (PyObject *)job.from))) {
        krpy_enter(c);
        KRPY_COMPUTE(c, if (job.self->layers) run_layers(&job); else run_block(&job));
        if (krpy_leave(c)) {
            PyObject *y = krpy_array_of_tensor(module, c, (PyObject *)job.tape, job.out.y, true, NULL);
            PyObject *cache = y ? cache_of(module, &job) : NULL;
            if (cache) result = PyTuple_Pack(2, y, cache);
            Py_XDECREF(y);
            Py_XDECREF(cache);
        }
    }
    Py_XDECREF((PyObject *)job.to);
    return result;
}

static PyObject *block_state(PyObject *object, PyObject *batch)
{
    krpy_block *self = (krpy_block *)object;
    int64_t rows = 1;
    if (!krpy_get_int("batch", batch, &rows)) return NULL;
    if (!self->layers) {
        PyErr_SetString(PyExc_TypeError, "a block has a cache, not a state");
        return NULL;
    }
    krpy_state *made = krpy_state_prepare(krpy_module_of(object), self->context, object, NULL, self->layers);
    if (!made) return NULL;
    krpy_enter(self->context);
    krpy_state_fill(made, rows);
    if (krpy_leave(self->context)) return (PyObject *)made;
    Py_DECREF(made);
    return NULL;
}

static PyObject *block_params(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    krpy_block *self = (krpy_block *)object;
    kr_params *params = self->layers ? kr_layers_params(self->layers) : kr_block_params(self->block);
    return krpy_params_new(krpy_module_of(object), self->context, object, params);
}

/* Names of the tensors of a block's cache. */
static PyObject *block_cache_names(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    const kr_family family = kr_block_family(((krpy_block *)object)->block);
    const int count = kr_cache_count(family);
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        PyObject *name = PyUnicode_FromString(kr_cache_name(family, i));
        if (!name || PyTuple_SetItem(tuple, i, name) < 0) Py_CLEAR(tuple);
    }
    return tuple;
}

static PyObject *get_context(PyObject *object, void *closure)
{
    (void)closure;
    return Py_NewRef((PyObject *)((krpy_block *)object)->context);
}

static PyMethodDef block_methods[] = {
    { "run", (PyCFunction)(void (*)(void))block_run, METH_FASTCALL | METH_KEYWORDS,
      "run($self, tape, kind, x, cache=None, *, mask=None, seq_start=None, reset=None, cu_seqlens=None)\n--\n\n"
      "Runs the block: outputs and cache; or the stack: outputs and state." },
    { "state", block_state, METH_O, "state($self, batch, /)\n--\n\nAn initial state of a stack." },
    { "params", block_params, METH_NOARGS, "params($self, /)\n--\n\nThe parameter table." },
    { "cache_names", block_cache_names, METH_NOARGS, "cache_names($self, /)\n--\n\nNames of the tensors of a cache." },
    { 0 },
};

static PyGetSetDef block_attributes[] = {
    { "context", get_context, NULL, "The context.", NULL },
    { 0 },
};

static PyType_Slot block_slots[] = {
    { Py_tp_doc, (void *)"Block(context, family, fields, stack=None)\n--\n\nA block, or a stack of layers." },
    { Py_tp_new, block_new },
    { Py_tp_dealloc, block_dealloc },
    { Py_tp_traverse, block_traverse },
    { Py_tp_methods, block_methods },
    { Py_tp_getset, block_attributes },
    { 0, NULL },
};

PyType_Spec krpy_block_spec = {
    .name = "krait._core.Block",
    .basicsize = sizeof(krpy_block),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = block_slots,
};
