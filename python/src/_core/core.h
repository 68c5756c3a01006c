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
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define KRPY_STATUSES (KR_ERR_INTERNAL + 1)

/* State of the module. */
typedef struct krpy_module {
    PyObject *errors[KRPY_STATUSES]; /* exception class of each kr_status; [KR_OK] is the base class */
    PyTypeObject *context, *array, *tape, *params, *model, *state, *tokenizer, *batch, *block;
    PyTypeObject *source, *loader, *trainer, *scorer, *op_call;
    struct krpy_raw *raw; /* of raw.c */
    bool is_testing;      /* KR_PYTHON_TESTING was set: Context._fail_allocation works */
} krpy_module;

/* The state of the module that made this object's type. Never NULL for objects of this extension. */
krpy_module *krpy_module_of(PyObject *self);

/* ---- contexts: context_type.c ---- */

/* An object of the library that waits for its destruction: see krpy_discard. */
typedef struct krpy_handle {
    struct krpy_handle *next;
    void (*destroy)(void *object);
    void *object;
} krpy_handle;

typedef struct krpy_context {
    PyObject_HEAD kr_ctx *ctx;
    PyThread_type_lock lock;
    unsigned long owner;  /* the thread in the context, if depth is not 0 */
    int depth;            /* calls of that thread within each other: a callback may call the library */
    int callbacks;        /* callbacks that run within each other */
    long pid;             /* the process that made the lock */
    PyThreadState *saved; /* while the GIL is released around a call of the library */
    krpy_handle *discarded, **last_discarded; /* destroyed when the context is left; a queue */
    PyObject *log;                            /* callable(level, text), or NULL */
    PyObject *callback_error;                 /* the first exception in a callback, raised when the context is left */
    void *stream;                             /* that the context uses, of the caller's; NULL: its own */
} krpy_context;

/* Makes this thread the user of the context. Waits, without the GIL, for another thread. Every enter has its leave. */
void krpy_enter(krpy_context *c);

/* Ends a use. If the library or a callback failed since the enter, raises that and returns false. */
bool krpy_leave(krpy_context *c);

/* Ends a use after an exception of Python, which stays; an error of the library is dropped. */
void krpy_abandon(krpy_context *c);

/* Queues later work on a stream with the number that DLPack gives it; NULL: the own one. Between enter and leave. */
void krpy_use_stream(krpy_context *c, void *stream);

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

/* ---- devices in plug-ins: device_plugin.c ---- */

/* If the device (NULL: KR_DEVICE) is "cuda", loads the plug-in that has it, if it is installed. False with an exception. */
bool krpy_load_cuda(const char *device);

PyObject *krpy_load_device(PyObject *module, PyObject *path);

/* ---- arrays: array_type.c, dlpack.c ---- */

/* Memory that is lent to Python or by Python: a tensor of the library, a buffer, or a DLPack tensor. */
typedef struct krpy_array {
    PyObject_HEAD krpy_context *context; /* of the tensor; NULL: memory that is not of the library */
    PyObject *owner;                     /* keeps the tensor: a tape, a model, a state; NULL without one */
    Py_ssize_t *exports;                 /* the owner's count of arrays over its memory, or NULL */
    kr_tensor *tensor;                   /* NULL: memory that is not of the library */
    Py_buffer buffer;                    /* obj NULL: none */
    void *managed;                       /* a DLPack tensor of another library, or NULL */
    void (*release)(void *managed);
    krpy_context *reader; /* whose work may still read memory of a GPU that is `managed`; NULL: none */
    void *data;
    kr_dtype dtype;
    int rank, device_type, device_number;                /* device as in DLPack: 1 is the CPU, 2 CUDA */
    Py_ssize_t shape[KR_MAX_RANK], strides[KR_MAX_RANK]; /* strides in bytes */
    bool is_readonly;
} krpy_array;

enum { KRPY_CPU = 1, KRPY_CUDA = 2 };

/* An array over a tensor that `owner` keeps. exports may be NULL. NULL with an exception; also for tensor NULL. */
PyObject *krpy_array_of_tensor(krpy_module *module, krpy_context *c, PyObject *owner, kr_tensor *tensor,
                               bool is_readonly, Py_ssize_t *exports);

/* An array over a buffer, whose elements are of the named type; NULL: that of its format. An Array is returned as it is. */
PyObject *krpy_array_of_buffer(krpy_module *module, PyObject *object, const char *dtype, bool is_writable);

/* May the library read and write the memory with this context (NULL: as host memory)? Raises if not. */
bool krpy_array_check_device(const krpy_array *a, const krpy_context *c);

/* Is it a row of token ids: contiguous 32-bit integers in host memory? Raises if not. */
bool krpy_array_is_ids(const krpy_array *a);

/* An Array, of any memory. NULL with an exception that names the argument. */
krpy_array *krpy_array_from(krpy_module *module, const char *name, PyObject *object);

/* The tensor of an argument, which must be an Array on this tape; *tensor is NULL where it is absent or None. */
bool krpy_get_tensor(krpy_module *module, const char *name, PyObject *object, PyObject *tape, kr_tensor **tensor);

/* A type by its name: "f32", "bf16", ... */
bool krpy_get_dtype(const char *name, PyObject *object, kr_dtype *dtype);

int64_t krpy_array_count(const krpy_array *a);
bool krpy_array_is_contiguous(const krpy_array *a);

/* Copies the elements, row by row, to contiguous memory of the same type. Host memory only. */
void krpy_array_copy_out(const krpy_array *a, char *to);

PyObject *krpy_array_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames);
PyObject *krpy_array_dlpack_device(PyObject *self, PyObject *ignored);
PyObject *krpy_from_dlpack(PyObject *module, PyObject *object);

/* Before the context reads the array: its later work runs after that of CUDA's legacy default stream, with which
 * krpy_from_dlpack orders the memory of other libraries. Their memory is released when the context has run. */
bool krpy_array_order(krpy_array *a, krpy_context *c);
void krpy_array_end_reading(krpy_array *a);

extern PyType_Spec krpy_array_spec;

/* ---- tapes: tape_type.c ---- */

typedef struct krpy_tape {
    PyObject_HEAD krpy_context *context;
    krpy_handle *handle;
    kr_tape *tape;
    bool is_grad;
    PyObject *keep; /* list of what the tensors of the tape read: arrays, states, models */
} krpy_tape;

/* Keeps an object as long as the tape. */
bool krpy_tape_keep(krpy_tape *tape, PyObject *object);

/* A Tape, or NULL with an exception. */
krpy_tape *krpy_tape_of(krpy_module *module, PyObject *object);

extern PyType_Spec krpy_tape_spec;

/* ---- parameters, models and states ---- */

/* A Params over a table that `owner` keeps. */
PyObject *krpy_params_new(krpy_module *module, krpy_context *c, PyObject *owner, kr_params *params);

extern PyType_Spec krpy_params_spec;

typedef struct krpy_tokenizer {
    PyObject_HEAD krpy_context *context;
    krpy_handle *handle;
    kr_tokenizer *tokenizer;
} krpy_tokenizer;

/* A Tokenizer over the tables of `from`, with a context of its own: it encodes while a model computes. */
PyObject *krpy_tokenizer_share(krpy_module *module, const kr_tokenizer *from);

extern PyType_Spec krpy_tokenizer_spec;

typedef struct krpy_model {
    PyObject_HEAD krpy_context *context;
    krpy_handle *handle;
    kr_text_model *text; /* NULL for a model that was created, or loaded without a tokenizer */
    kr_model *model;
    const kr_network *net;
} krpy_model;

extern PyType_Spec krpy_model_spec;
PyObject *krpy_load_model(PyObject *module, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames);
PyObject *krpy_load_model_memory(PyObject *module, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames);
PyObject *krpy_create_model(PyObject *module, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames);

/* A state of a network or of a stack. */
typedef struct krpy_state {
    PyObject_HEAD krpy_context *context;
    krpy_handle *handle;
    kr_state *state;
    PyObject *owner;       /* the model or the stack */
    const kr_network *net; /* one of the two */
    const kr_layers *layers;
    Py_ssize_t exports; /* arrays over its memory, while which it does not change in place */
} krpy_state;

/* A State object without a state yet, for the network or the stack of `owner`. */
krpy_state *krpy_state_prepare(krpy_module *module, krpy_context *c, PyObject *owner, const kr_network *net,
                               const kr_layers *layers);

/* Gives a prepared object its state, an initial one of `batch` rows. Within the context; NULL after an error. */
kr_state *krpy_state_fill(krpy_state *self, int64_t batch);

/* Gives a prepared object a state that exists, or NULL. */
void krpy_state_set(krpy_state *self, kr_state *state);

/* The State of an argument, whose owner must be this one. *state is NULL where it is absent or None. */
bool krpy_get_state(krpy_module *module, const char *name, PyObject *object, PyObject *owner, krpy_state **state);

extern PyType_Spec krpy_state_spec;

extern PyType_Spec krpy_batch_spec;

/* A block or a stack without a network. */
extern PyType_Spec krpy_block_spec;

/* ---- ops: op_table.c ---- */

/* op(tape, name, inputs, *, ...): the results of an op, a tuple of arrays on the tape. */
PyObject *krpy_op(PyObject *module, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames);

/* ---- configs: fields.c ---- */

typedef struct krpy_model_parts {
    kr_model_config *model; /* of kr_model_config_create, _parse or _load */
    int64_t *schedule;      /* memory of a custom schedule */
} krpy_model_parts;

/* Sets fields of a config by the keys of a dict; an unknown key is a TypeError that names it. */
bool krpy_config_set_block(kr_family family, void *config, PyObject *fields);
bool krpy_config_set_layers(kr_layers_config *config, PyObject *fields, int64_t **schedule);

/* Sets the parts of a model's config; every key must belong to one of them. */
bool krpy_config_set_model(krpy_model_parts *parts, PyObject *fields);

/* The defaults of all fields of a family, and those of a stack and of a network, as dicts. */
PyObject *krpy_config_defaults(PyObject *module, PyObject *part);

extern const char *const krpy_family_names[];

/* Frees an object whose members have been released, and its reference to its type. */
void krpy_free(PyObject *object);

/* A new object of a type without a constructor; all members are 0. */
void *krpy_alloc(PyTypeObject *type);

/* ---- kernels: raw.c ---- */

/* Adds the table of raw ops to the module; frees what it holds. */
bool krpy_raw_init(PyObject *module, krpy_module *state);
void krpy_raw_clear(krpy_module *state);

PyObject *krpy_raw_call(PyObject *module, PyObject *const *args, Py_ssize_t n_args);
PyObject *krpy_raw_signature(PyObject *module, PyObject *number);

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
