/* core.h - the extension krait._core: what its files share.
 *
 * One file for each type. Every object of the library belongs to a krpy_context, which has a lock: a method enters the
 * context, releases the GIL around calls that compute, and leaves it, which turns an error of the library into a Python
 * exception. All types are heap types without subclasses, so that the state of the module is found from any object. */
#ifndef KRPY_CORE_H
#define KRPY_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <krait/krait.h>

#define KRPY_STATUSES (KR_ERR_INTERNAL + 1)

/* State of the module. */
typedef struct krpy_module {
    PyObject *errors[KRPY_STATUSES]; /* exception class of each kr_status; [KR_OK] is the base class */
    PyTypeObject *context;
    bool is_testing; /* KR_PYTHON_TESTING was set: Context._fail_allocation works */
} krpy_module;

/* The state of the module that made this object's type. Never NULL for objects of this extension. */
krpy_module *krpy_module_of(PyObject *self);

/* ---- contexts: context.c ---- */

/* An object of the library that waits for its destruction: see krpy_discard. */
typedef struct krpy_handle {
    struct krpy_handle *next;
    void (*destroy)(void *object);
    void *object;
} krpy_handle;

typedef struct krpy_context {
    PyObject_HEAD
    kr_ctx *ctx;
    PyThread_type_lock lock;
    unsigned long owner;  /* the thread in the context, if depth is not 0 */
    int depth;            /* calls of that thread within each other: a callback may call the library */
    long pid;             /* the process that made the lock */
    PyThreadState *saved; /* while the GIL is released around a call of the library */
    krpy_handle *discarded, **last_discarded; /* destroyed when the context is left; a queue */
    PyObject *log;        /* callable(level, text), or NULL */
    PyObject *callback_error; /* the first exception in a callback, raised when the context is left */
} krpy_context;

/* Makes this thread the user of the context. Waits, without the GIL, for another thread. Every enter has its leave. */
void krpy_enter(krpy_context *c);

/* Ends a use. If the library or a callback failed since the enter, raises that and returns false. */
bool krpy_leave(krpy_context *c);

/* Runs statements without the GIL, between enter and leave. */
#define KRPY_COMPUTE(c, ...)                                                                                           \
    do {                                                                                                               \
        PyThreadState *const krpy_outer = (c)->saved;                                                                  \
        (c)->saved = PyEval_SaveThread();                                                                              \
        __VA_ARGS__;                                                                                                   \
        PyEval_RestoreThread((c)->saved);                                                                              \
        (c)->saved = krpy_outer;                                                                                       \
    } while (0)

/* In a callback, which the library calls without the GIL: takes it; and releases it. */
void krpy_callback_begin(krpy_context *c);
void krpy_callback_end(krpy_context *c);

/* Keeps the current exception until the context is left. */
void krpy_callback_failed(krpy_context *c);

/* A handle with no object, so that destruction later needs no memory. NULL with an exception. */
krpy_handle *krpy_handle_new(void);

/* Destroys the object of a handle now, or when the thread that uses the context leaves it. NULL is allowed. */
void krpy_discard(krpy_context *c, krpy_handle *handle);

/* The context of an argument, which must be a Context. NULL with an exception. */
krpy_context *krpy_context_of(krpy_module *module, PyObject *object);

extern PyType_Spec krpy_context_spec;

/* ---- errors: errors.c ---- */

/* Adds the exception classes to the module. */
bool krpy_errors_init(PyObject *module, krpy_module *state);

/* Raises the error of a status with a text. */
void krpy_raise(krpy_module *module, kr_status status, const char *text);

/* ---- arguments: args.c ---- */

/* Arguments of a METH_FASTCALL | METH_KEYWORDS method by name. `names` ends with NULL; the first `required` must be given;
 * those from `keyword_only` on are given by keyword. values[i] is NULL where none was given. */
bool krpy_args(const char *function, const char *const *names, int required, int keyword_only, PyObject *const *args,
               Py_ssize_t n_args, PyObject *kwnames, PyObject **values);

/* Values of arguments; absent ones (NULL or None) leave *value as it is. The exception names the argument. */
bool krpy_get_int(const char *name, PyObject *object, int64_t *value);
bool krpy_get_double(const char *name, PyObject *object, double *value);
bool krpy_get_bool(const char *name, PyObject *object, bool *value);

/* The UTF-8 text of a str, valid as long as the object; *value is NULL without one. */
bool krpy_get_text(const char *name, PyObject *object, const char **value);

/* A path: str, bytes or os.PathLike. *keep is a new reference that holds the text. */
bool krpy_get_path(const char *name, PyObject *object, PyObject **keep, const char **value);

/* One of the words, by its index. */
bool krpy_get_word(const char *name, PyObject *object, const char *const *words, int *index);

#endif
