/* context_type.c - krait.Context: a device with its threads, memory and random stream, and the lock of all its objects. */
#include "core.h"

#include <krait/experimental/testing.h>
#include <unistd.h>

/* ---- the lock ---- */

/* A forked child has a copy of the lock that another thread of the parent may hold: it gets a new one. The old one is
 * not freed, since its state is unknown. The library itself refuses to compute with the parent's context. */
static void renew_after_fork(krpy_context *c)
{
    const long pid = (long)getpid();
    if (c->pid == pid) return;
    PyThread_type_lock lock = PyThread_allocate_lock();
    if (lock) c->lock = lock;
    c->depth = 0;
    c->callbacks = 0;
    c->pid = pid;
}

static bool is_mine(const krpy_context *c)
{
    return c->depth > 0 && c->owner == PyThread_get_thread_ident();
}

void krpy_enter(krpy_context *c)
{
    renew_after_fork(c);
    if (is_mine(c)) {
        c->depth++;
        return;
    }
    if (PyThread_acquire_lock(c->lock, NOWAIT_LOCK) != PY_LOCK_ACQUIRED) {
        PyThreadState *saved = PyEval_SaveThread();
        PyThread_acquire_lock(c->lock, WAIT_LOCK);
        PyEval_RestoreThread(saved);
    }
    c->owner = PyThread_get_thread_ident();
    c->depth = 1;
}

static void destroy_discarded(krpy_context *c)
{
    while (c->discarded) {
        krpy_handle *handle = c->discarded;
        c->discarded = handle->next;
        if (!c->discarded) c->last_discarded = &c->discarded;
        handle->destroy(handle->object);
        PyMem_Free(handle);
    }
}

/* Raises what a callback raised, or the error of the library. */
static bool raise_errors(krpy_context *c)
{
    PyObject *error = c->callback_error;
    if (error && c->callbacks == 0) {
        c->callback_error = NULL;
        kr_ctx_clear(c->ctx);
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
        return false;
    }
    if (!kr_ctx_failed(c->ctx)) return true;
    krpy_raise(krpy_module_of((PyObject *)c), kr_ctx_status(c->ctx), kr_ctx_message(c->ctx));
    kr_ctx_clear(c->ctx);
    return false;
}

bool krpy_leave(krpy_context *c)
{
    const bool is_ok = raise_errors(c);
    if (c->depth > 1) {
        c->depth--;
        return is_ok;
    }
    /* Objects of the library are destroyed without an error in the context, and may leave none in it. */
    destroy_discarded(c);
    kr_ctx_clear(c->ctx);
    c->depth = 0;
    PyThread_release_lock(c->lock);
    return is_ok;
}

void krpy_abandon(krpy_context *c)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    krpy_leave(c);
    PyErr_Restore(type, value, traceback);
}

/* ---- streams and memory of a GPU ---- */

void krpy_use_stream(krpy_context *c, void *stream)
{
    if (stream == c->stream) return;
    if (kr_ctx_use_stream(c->ctx, stream) == KR_OK) c->stream = stream;
}

/* Device memory from callables of Python. It stays until the process ends: weights that other contexts share may outlive
 * the context that allocated them. */
typedef struct python_memory {
    kr_device_allocator hooks;
    PyObject *alloc, *free;
} python_memory;

/* The result of a call as an address, NULL after an exception, which the library reports as its own. Any thread. */
static void *call_for_address(PyObject *callable, const char *format, unsigned long long a, unsigned long long b)
{
    if (!Py_IsInitialized()) return NULL;
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *result = PyObject_CallFunction(callable, format, a, b);
    void *address = result && result != Py_None ? PyLong_AsVoidPtr(result) : NULL;
    PyErr_Clear();
    Py_XDECREF(result);
    PyErr_Restore(type, value, traceback);
    PyGILState_Release(gil);
    return address;
}

static void *python_alloc(void *user, size_t bytes, void *stream)
{
    const python_memory *m = user;
    return call_for_address(m->alloc, "KK", (unsigned long long)bytes, (unsigned long long)(uintptr_t)stream);
}

static void python_free(void *user, void *p, size_t bytes, void *stream)
{
    const python_memory *m = user;
    (void)bytes;
    call_for_address(m->free, "KK", (unsigned long long)(uintptr_t)p, (unsigned long long)(uintptr_t)stream);
}

/* pair: None, or (alloc, free). */
static bool take_device_memory(PyObject *pair, kr_ctx_options *options)
{
    PyObject *alloc, *release;
    if (!pair || pair == Py_None) return true;
    if (!PyArg_Parse(pair, "(OO)", &alloc, &release)) return false;
    if (!PyCallable_Check(alloc) || !PyCallable_Check(release)) {
        PyErr_SetString(PyExc_TypeError,
                        "device_memory must be two callables: alloc(bytes, stream), free(address, stream)");
        return false;
    }
    python_memory *m = PyMem_Calloc(1, sizeof *m);
    if (!m) {
        PyErr_NoMemory();
        return false;
    }
    m->hooks = (kr_device_allocator){ .alloc = python_alloc, .free = python_free, .user = m };
    m->alloc = Py_NewRef(alloc);
    m->free = Py_NewRef(release);
    options->device_allocator = &m->hooks;
    return true;
}

/* ---- destruction ---- */

krpy_handle *krpy_handle_new(void)
{
    krpy_handle *handle = PyMem_Malloc(sizeof *handle);
    if (!handle) {
        PyErr_NoMemory();
        return NULL;
    }
    *handle = (krpy_handle){ 0 };
    return handle;
}

/* Python frees objects on any thread and at any time, also while another thread computes in their context. */
void krpy_discard(krpy_context *c, krpy_handle *handle)
{
    if (!handle) return;
    if (!handle->object) {
        PyMem_Free(handle);
        return;
    }
    renew_after_fork(c);
    handle->next = NULL;
    *c->last_discarded = handle;
    c->last_discarded = &handle->next;
    if (is_mine(c) || PyThread_acquire_lock(c->lock, NOWAIT_LOCK) != PY_LOCK_ACQUIRED) return;
    destroy_discarded(c);
    kr_ctx_clear(c->ctx);
    PyThread_release_lock(c->lock);
}

/* ---- callbacks ---- */

void krpy_callback_begin(krpy_context *c)
{
    PyEval_RestoreThread(c->saved);
    c->saved = NULL;
    c->callbacks++;
}

void krpy_callback_end(krpy_context *c)
{
    c->callbacks--;
    c->saved = PyEval_SaveThread();
}

void krpy_callback_failed(krpy_context *c)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (value && traceback) PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    if (c->callback_error) Py_XDECREF(value);
    else c->callback_error = value;
}

static void log_line(void *user, kr_log_level level, const char *text)
{
    krpy_context *c = user;
    const bool has_gil = c->saved == NULL;
    if (!has_gil) krpy_callback_begin(c);
    PyObject *line = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    PyObject *result = line ? PyObject_CallFunction(c->log, "iO", (int)level, line) : NULL;
    if (!result) krpy_callback_failed(c);
    Py_XDECREF(result);
    Py_XDECREF(line);
    if (!has_gil) krpy_callback_end(c);
}

/* ---- the type ---- */

static const char *const precisions[] = { "exact", "tf32", "bf16", NULL };

static bool read_options(PyObject *const *values, kr_ctx_options *options)
{
    int64_t threads = 0, seed = 0;
    int precision = KR_PRECISION_UNSET;
    if (!krpy_get_text("device", values[0], &options->device) || !krpy_get_int("threads", values[1], &threads) ||
        !krpy_get_word("precision", values[2], precisions, &precision) || !krpy_get_int("seed", values[3], &seed) ||
        !krpy_get_bool("check_finite", values[4], &options->check_finite) ||
        !krpy_get_text("isa", values[5], &options->isa) || !krpy_get_text("backend", values[6], &options->backend))
        return false;
    if (threads < 0 || threads > 1 << 20) {
        PyErr_Format(PyExc_ValueError, "threads is %lld, but must be positive, or 0 for one per CPU",
                     (long long)threads);
        return false;
    }
    options->threads = (int)threads;
    options->seed = (uint64_t)seed;
    options->precision = (kr_precision)precision;
    return true;
}

static bool open_context(krpy_context *self, kr_ctx_options *options)
{
    if (self->log) {
        options->log = log_line;
        options->log_user = self;
    }
    self->lock = PyThread_allocate_lock();
    if (!self->lock) {
        PyErr_NoMemory();
        return false;
    }
    self->pid = (long)getpid();
    KRPY_COMPUTE(self, self->ctx = kr_ctx_create(options));
    if (self->ctx) return raise_errors(self);
    PyErr_NoMemory();
    return false;
}

static PyObject *context_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = { "device", "threads", "precision", "seed",          "check_finite",
                             "isa",    "backend", "log",       "device_memory", NULL };
    PyObject *values[9] = { 0 };
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOOOOOOO:Context", names, &values[0], &values[1], &values[2],
                                     &values[3], &values[4], &values[5], &values[6], &values[7], &values[8]) ||
        !read_options(values, &options) || !krpy_load_cuda(options.device) || !take_device_memory(values[8], &options))
        return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    krpy_context *self = (krpy_context *)alloc(type, 0);
    if (!self) return NULL;
    self->last_discarded = &self->discarded;
    if (values[7] && values[7] != Py_None) self->log = Py_NewRef(values[7]);
    if (open_context(self, &options)) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static int context_traverse(PyObject *object, visitproc visit, void *arg)
{
    krpy_context *self = (krpy_context *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->log);
    Py_VISIT(self->callback_error);
    return 0;
}

static int context_clear(PyObject *object)
{
    krpy_context *self = (krpy_context *)object;
    Py_CLEAR(self->callback_error);
    return 0;
}

static void context_dealloc(PyObject *object)
{
    krpy_context *self = (krpy_context *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    destroy_discarded(self);
    kr_ctx_destroy(self->ctx);
    if (self->lock) PyThread_free_lock(self->lock);
    Py_CLEAR(self->log);
    Py_CLEAR(self->callback_error);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyObject *context_repr(PyObject *object)
{
    const kr_ctx_info info = kr_ctx_info_of(((krpy_context *)object)->ctx);
    return PyUnicode_FromFormat("<krait.Context %s, %s, %d thread%s, %s>", info.device, info.isa, info.threads,
                                info.threads == 1 ? "" : "s", precisions[info.precision]);
}

/* ---- attributes and methods ---- */

static PyObject *get_device(PyObject *self, void *closure)
{
    (void)closure;
    return PyUnicode_FromString(kr_ctx_device(((krpy_context *)self)->ctx));
}

static PyObject *get_isa(PyObject *self, void *closure)
{
    (void)closure;
    return PyUnicode_FromString(kr_ctx_isa(((krpy_context *)self)->ctx));
}

static PyObject *get_threads(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromLong(kr_ctx_threads(((krpy_context *)self)->ctx));
}

static PyObject *get_precision(PyObject *self, void *closure)
{
    (void)closure;
    return PyUnicode_FromString(precisions[kr_ctx_precision(((krpy_context *)self)->ctx)]);
}

static PyObject *context_memory(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    static const char *const names[] = { "host", "device", "pinned" };
    krpy_context *self = (krpy_context *)object;
    PyObject *all = PyDict_New();
    krpy_enter(self);
    for (int kind = 0; all && kind < 3; kind++) {
        const kr_memory_stats stats = kr_ctx_memory_stats(self->ctx, (kr_memory_kind)kind);
        PyObject *one = Py_BuildValue("{s:n,s:n,s:n,s:n}", "live_bytes", (Py_ssize_t)stats.live_bytes, "peak_bytes",
                                      (Py_ssize_t)stats.peak_bytes, "live_blocks", (Py_ssize_t)stats.live_blocks,
                                      "total_blocks", (Py_ssize_t)stats.total_blocks);
        if (!one || PyDict_SetItemString(all, names[kind], one) < 0) Py_CLEAR(all);
        Py_XDECREF(one);
    }
    if (krpy_leave(self)) return all;
    Py_XDECREF(all);
    return NULL;
}

static PyObject *context_seed(PyObject *object, PyObject *value)
{
    krpy_context *self = (krpy_context *)object;
    int64_t seed = 0;
    if (!krpy_get_int("seed", value, &seed)) return NULL;
    krpy_enter(self);
    kr_ctx_seed(self->ctx, (uint64_t)seed);
    if (!krpy_leave(self)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *context_wait(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    krpy_context *self = (krpy_context *)object;
    krpy_enter(self);
    KRPY_COMPUTE(self, kr_ctx_wait(self->ctx));
    if (!krpy_leave(self)) return NULL;
    Py_RETURN_NONE;
}

/* with context: several calls in a row, without those of other threads in between. */
static PyObject *context_hold(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    krpy_enter((krpy_context *)object);
    return Py_NewRef(object);
}

static PyObject *context_release(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    krpy_context *self = (krpy_context *)object;
    if (self->depth == 0 || self->owner != PyThread_get_thread_ident()) {
        PyErr_SetString(PyExc_RuntimeError, "this thread does not hold the context");
        return NULL;
    }
    if (!krpy_leave(self)) return NULL;
    Py_RETURN_FALSE;
}

static PyObject *context_kernel(PyObject *object, PyObject *value)
{
    const char *name;
    if (!krpy_get_text("name", value, &name)) return NULL;
    const char *set = name ? kr_ctx_kernel(((krpy_context *)object)->ctx, name) : NULL;
    if (set) return PyUnicode_FromString(set);
    Py_RETURN_NONE;
}

static PyObject *context_fail_allocation(PyObject *object, PyObject *value)
{
    krpy_context *self = (krpy_context *)object;
    krpy_module *module = krpy_module_of(object);
    int64_t n = 0;
    if (!krpy_get_int("n", value, &n)) return NULL;
    if (!module->is_testing) {
        krpy_raise(module, KR_ERR_UNSUPPORTED,
                   "context: allocations fail on demand only if KR_PYTHON_TESTING was set before krait was imported");
        return NULL;
    }
    krpy_enter(self);
    kr_ctx_fail_allocation(self->ctx, (size_t)(n > 0 ? n : 0));
    if (!krpy_leave(self)) return NULL;
    Py_RETURN_NONE;
}

krpy_context *krpy_context_of(krpy_module *module, PyObject *object)
{
    if (object && Py_IS_TYPE(object, module->context)) return (krpy_context *)object;
    PyErr_SetString(PyExc_TypeError, "context must be a krait.Context");
    return NULL;
}

PyDoc_STRVAR(
    context_doc,
    "Context(*, device=None, threads=0, precision=None, seed=0, check_finite=False, isa=None, backend=None, "
    "log=None, device_memory=None)\n--\n\n"
    "A device with its threads, memory and random stream. Models, states and arrays belong to one context.\n\n"
    "device: 'cpu', 'cuda' or 'cuda:1'; None: KR_DEVICE, or the CPU. threads: 0 is one per CPU.\n"
    "precision: 'exact', 'tf32' or 'bf16', of matrix products on a GPU. log: called with (level, text).\n"
    "device_memory: (alloc, free) for the memory of a GPU: alloc(bytes, stream) returns an address, aligned to\n"
    "256, or raises; free(address, stream). They are kept until the process ends.\n\n"
    "Threads may share a context: each call waits until the one before has finished. For calls at the same\n"
    "time, each thread has its own context (see Model.share).\n\n"
    ">>> import krait\n"
    ">>> krait.Context(threads=2).threads\n"
    "2\n");

static PyMethodDef context_methods[] = {
    { "memory", context_memory, METH_NOARGS,
      "memory($self, /)\n--\n\nMemory of the context in bytes and blocks: 'host', 'device' and 'pinned'." },
    { "seed", context_seed, METH_O, "seed($self, seed, /)\n--\n\nRestarts the random stream." },
    { "wait", context_wait, METH_NOARGS, "wait($self, /)\n--\n\nWaits until all queued ops of a GPU have run." },
    { "kernel", context_kernel, METH_O,
      "kernel($self, name, /)\n--\n\nThe kernel set that runs a kernel: 'avx512', 'cuda', ...; None if unknown." },
    { "__enter__", context_hold, METH_NOARGS,
      "__enter__($self, /)\n--\n\nKeeps other threads out of the context until __exit__." },
    { "__exit__", context_release, METH_VARARGS, "__exit__($self, /, *error)\n--\n\nLets other threads in." },
    { "_fail_allocation", context_fail_allocation, METH_O,
      "_fail_allocation($self, n, /)\n--\n\nFor tests: the n-th allocation from now fails; 0: none." },
    { 0 },
};

static PyGetSetDef context_attributes[] = {
    { "device", get_device, NULL, "The device: 'cpu', or 'cuda:0' and the name of the GPU.", NULL },
    { "isa", get_isa, NULL, "The instruction set of the CPU kernels.", NULL },
    { "threads", get_threads, NULL, "The number of threads, including the caller's.", NULL },
    { "precision", get_precision, NULL, "The precision of matrix products that was asked for.", NULL },
    { 0 },
};

static PyType_Slot context_slots[] = {
    { Py_tp_doc, (void *)context_doc },   { Py_tp_new, context_new },           { Py_tp_dealloc, context_dealloc },
    { Py_tp_traverse, context_traverse }, { Py_tp_clear, context_clear },       { Py_tp_repr, context_repr },
    { Py_tp_methods, context_methods },   { Py_tp_getset, context_attributes }, { 0, NULL },
};

PyType_Spec krpy_context_spec = {
    .name = "krait.Context",
    .basicsize = sizeof(krpy_context),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = context_slots,
};
