/* op_call.c - krait._core.OpCall: one call of a raw op on contiguous torch tensors, with its results allocated.
 *
 * It knows the axes of operands and results by their letters, as krait.torch.ops writes them: it binds sizes, asks torch
 * for memory and runs the kernel. Whatever is not simple (types that are converted, strides, other sizes than the letters
 * say, other devices) is not its business: the call returns None, and Python does it, or says what is wrong. */
#include "raw_call.h"

enum { NLETTERS = 128 };

/* The axes of a tensor: any leading ones, then those of the letters. */
typedef struct axis_list {
    int rank;
    bool leads, is_optional;
    char letters[MOST_AXES];
} axis_list;

typedef struct krpy_op_call {
    PyObject_HEAD int op, n_inputs, n_results;
    int order[MOST_VIEWS];      /* for each view of the raw op its input, or n_inputs plus its result; -1: absent */
    axis_list axes[MOST_VIEWS]; /* of inputs, then results */
    bool narrow[MOST_VIEWS];    /* may the kernels of a GPU read or write it as bf16? */
    int source[MOST_VIEWS];     /* of results: the input whose type they have; -1: the type of the kernel */
    PyObject *new_empty;        /* a name */
} krpy_op_call;

/* ---- construction ---- */

/* "..bshp?" */
static bool parse_axes(const char *text, axis_list *a)
{
    a->leads = strncmp(text, "..", 2) == 0;
    const char *at = text + (a->leads ? 2 : 0);
    for (; *at && *at != '?'; at++) {
        if (a->rank == MOST_AXES || (unsigned char)*at >= NLETTERS) {
            PyErr_Format(PyExc_ValueError, "OpCall: axes %s: at most %d letters of ASCII", text, MOST_AXES);
            return false;
        }
        a->letters[a->rank++] = *at;
    }
    a->is_optional = *at == '?';
    return true;
}

/* Texts of a tuple. Returns their number, -1 with an exception. */
static int parse_list(PyObject *tuple, axis_list *list, int capacity)
{
    const Py_ssize_t count = PyTuple_Size(tuple);
    if (count > capacity) PyErr_Format(PyExc_ValueError, "OpCall: %zd views, but at most %d", count, capacity);
    if (count < 0 || count > capacity) return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        const char *text = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(tuple, i), NULL);
        if (!text || !parse_axes(text, &list[i])) return -1;
    }
    return (int)count;
}

static bool parse_order(krpy_op_call *self, const krpy_raw *raw, PyObject *tuple)
{
    const int n_views = raw->ops[self->op].n_views;
    if (PyTuple_Size(tuple) != n_views) {
        if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "OpCall: order has to name %d views", n_views);
        return false;
    }
    for (int i = 0; i < n_views; i++) {
        const long at = PyLong_AsLong(PyTuple_GetItem(tuple, i));
        if (PyErr_Occurred()) return false;
        if (at < -1 || at >= self->n_inputs + self->n_results) {
            PyErr_Format(PyExc_ValueError, "OpCall: order has %ld for view %d, but there are %d inputs and results", at,
                         i, self->n_inputs + self->n_results);
            return false;
        }
        self->order[i] = (int)at;
    }
    return true;
}

static bool parse_types(krpy_op_call *self, PyObject *narrow, PyObject *source)
{
    const int n_views = self->n_inputs + self->n_results;
    if (PyTuple_Size(narrow) != n_views || PyTuple_Size(source) != self->n_results) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "OpCall: narrow has to be of %d views, source of %d results", n_views,
                         self->n_results);
        return false;
    }
    for (int i = 0; i < n_views; i++) self->narrow[i] = PyObject_IsTrue(PyTuple_GetItem(narrow, i)) == 1;
    for (int i = 0; i < self->n_results; i++) {
        const long at = PyLong_AsLong(PyTuple_GetItem(source, i));
        if (!PyErr_Occurred() && (at < -1 || at >= self->n_inputs))
            PyErr_Format(PyExc_ValueError, "OpCall: source %ld of result %d is not one of %d inputs", at, i,
                         self->n_inputs);
        self->source[i] = (int)at;
    }
    return !PyErr_Occurred();
}

static bool init(krpy_op_call *self, PyObject *args)
{
    const krpy_raw *raw = krpy_module_of((PyObject *)self)->raw;
    PyObject *inputs, *results, *order, *narrow, *source;
    if (!PyArg_ParseTuple(args, "iO!O!O!O!O!:OpCall", &self->op, &PyTuple_Type, &inputs, &PyTuple_Type, &results,
                          &PyTuple_Type, &order, &PyTuple_Type, &narrow, &PyTuple_Type, &source))
        return false;
    if (self->op < 0 || self->op >= MOST_OPS || !raw->ops[self->op].signature) {
        PyErr_Format(PyExc_ValueError, "OpCall: op = %d is not a raw op", self->op);
        return false;
    }
    self->new_empty = PyUnicode_InternFromString("new_empty");
    return self->new_empty && (self->n_inputs = parse_list(inputs, self->axes, MOST_VIEWS)) >= 1 &&
           (self->n_results = parse_list(results, self->axes + self->n_inputs, MOST_VIEWS - self->n_inputs)) >= 1 &&
           parse_order(self, raw, order) && parse_types(self, narrow, source);
}

static PyObject *op_call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    krpy_op_call *self = kwargs && PyDict_Size(kwargs) ? NULL : (krpy_op_call *)alloc(type, 0);
    if (!self) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "OpCall: takes no keywords");
        return NULL;
    }
    if (init(self, args)) return (PyObject *)self;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "OpCall: no inputs or no results");
    Py_DECREF(self);
    return NULL;
}

static void op_call_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    Py_CLEAR(((krpy_op_call *)object)->new_empty);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* ---- sizes ---- */

typedef struct sizes {
    int64_t of[NLETTERS]; /* -1: unknown */
    int n_leads;          /* -1: unknown */
    int64_t leads[MOST_AXES];
    kr_dtype dtype; /* of the kernel */
} sizes;

static bool is_row_major(kr_view *view)
{
    int64_t expected = 1;
    for (int i = view->rank - 1; i >= 0; i--) {
        if (view->dims[i] == 0 || (view->dims[i] != 1 && view->strides[i] != expected)) return false;
        view->strides[i] = expected; /* an axis of size 1 has any */
        expected *= view->dims[i];
    }
    return true;
}

/* Sizes from a view. False if it contradicts those before. */
static bool bind(sizes *s, const axis_list *a, const kr_view *view)
{
    const int n_leads = view->rank - a->rank;
    if (n_leads < 0 || (n_leads > 0 && !a->leads)) return false;
    if (a->leads && s->n_leads < 0) {
        s->n_leads = n_leads;
        memcpy(s->leads, view->dims, (size_t)n_leads * sizeof *s->leads);
    }
    if (a->leads && (s->n_leads != n_leads || memcmp(s->leads, view->dims, (size_t)n_leads * sizeof *s->leads) != 0))
        return false;
    for (int i = 0; i < a->rank; i++) {
        int64_t *size = &s->of[(unsigned char)a->letters[i]];
        if (*size < 0) *size = view->dims[n_leads + i];
        if (*size != view->dims[n_leads + i]) return false;
    }
    return true;
}

/* The type in which the kernel computes. On a GPU inputs may be bf16 where it reads that, all of these or none. */
static bool take_types(const krpy_op_call *self, int device, const kr_view *views, kr_dtype *dtype)
{
    bool has_real = false, has_bf16 = false, has_wide = false;
    *dtype = KR_DTYPE_F32;
    for (int i = 0; i < self->n_inputs; i++) {
        if (!views[i].data) continue;
        const bool may_be_narrow = self->narrow[i] && device >= 0;
        if (may_be_narrow && views[i].dtype == KR_DTYPE_BF16) {
            has_bf16 = true;
            continue;
        }
        if (views[i].dtype != KR_DTYPE_F32 && views[i].dtype != KR_DTYPE_F64) return false;
        if (has_real && views[i].dtype != *dtype) return false;
        *dtype = views[i].dtype;
        has_real = true;
        has_wide = has_wide || may_be_narrow;
    }
    return !has_bf16 || (!has_wide && *dtype == KR_DTYPE_F32);
}

/* Views of the inputs and the sizes of their axes. False: not for a simple call. */
static bool take_inputs(const krpy_op_call *self, const krpy_raw *raw, PyObject *args, int device, kr_view *views,
                        sizes *s)
{
    for (int i = 0; i < self->n_inputs; i++) {
        PyObject *x = PyTuple_GetItem(args, i);
        if (x == Py_None && self->axes[i].is_optional) continue;
        if (!krpy_view_of_tensor(raw, x, device, &views[i]) || !is_row_major(&views[i]) ||
            !bind(s, &self->axes[i], &views[i]))
            return false;
    }
    return views[0].data && take_types(self, device, views, &s->dtype);
}

/* ---- results ---- */

/* A new tensor like `like` with these axes. NULL with an exception, or without one if a size is unknown. */
static PyObject *make_result(const krpy_op_call *self, const axis_list *a, const sizes *s, PyObject *like)
{
    const int n_leads = a->leads ? s->n_leads : 0;
    if (n_leads < 0) return NULL;
    for (int i = 0; i < a->rank; i++)
        if (s->of[(unsigned char)a->letters[i]] < 0) return NULL;
    PyObject *shape = PyTuple_New(n_leads + a->rank);
    for (int i = 0; shape && i < n_leads + a->rank; i++) {
        const int64_t size = i < n_leads ? s->leads[i] : s->of[(unsigned char)a->letters[i - n_leads]];
        PyObject *number = PyLong_FromLongLong(size);
        if (!number || PyTuple_SetItem(shape, i, number) < 0) Py_CLEAR(shape);
    }
    PyObject *result = shape ? PyObject_CallMethodObjArgs(like, self->new_empty, shape, NULL) : NULL;
    Py_XDECREF(shape);
    return result;
}

/* An input of the type of result r. NULL: there is none, or the kernel does not write that type. */
static PyObject *like_result(const krpy_op_call *self, const sizes *s, int r, PyObject *args, const kr_view *views)
{
    const int source = self->source[r];
    kr_dtype dtype = s->dtype;
    if (source >= 0 && views[source].data && views[source].dtype == KR_DTYPE_BF16) {
        if (!self->narrow[self->n_inputs + r]) return NULL;
        dtype = KR_DTYPE_BF16;
    }
    for (int i = 0; i < self->n_inputs; i++)
        if (views[i].data && views[i].dtype == dtype) return PyTuple_GetItem(args, i);
    return NULL;
}

/* Results whose bits are in the mask, as a list. */
static PyObject *make_results(const krpy_op_call *self, const krpy_raw *raw, const sizes *s, PyObject *args, int device,
                              unsigned long long mask, kr_view *views)
{
    PyObject *list = PyList_New(0);
    for (int r = 0; list && r < self->n_results; r++) {
        const int at = self->n_inputs + r;
        if (!(mask >> r & 1)) continue;
        PyObject *like = like_result(self, s, r, args, views);
        PyObject *result = like ? make_result(self, &self->axes[at], s, like) : NULL;
        if (!result || !krpy_view_of_tensor(raw, result, device, &views[at]) || PyList_Append(list, result) < 0)
            Py_CLEAR(list);
        Py_XDECREF(result);
    }
    return list;
}

/* ---- calls ---- */

static bool compute(const krpy_op_call *self, const krpy_raw *raw, krpy_raw_run *run, int device, const kr_view *views,
                    kr_raw_options *options, unsigned flags)
{
    const op *o = &raw->ops[self->op];
    kr_view ordered[MOST_VIEWS];
    for (int i = 0; i < o->n_views; i++) {
        if (self->order[i] < 0) ordered[i] = (kr_view){ .data = NULL };
        else ordered[i] = views[self->order[i]];
        if (ordered[i].data) krpy_raw_complete(&o->views[i], flags, &ordered[i]);
    }
    run->op = (kr_raw_op)self->op;
    run->n_views = o->n_views;
    run->views = ordered;
    run->has_stream = device >= 0;
    if (device >= 0 && raw->exchange->current_stream(DL_CUDA, device, &run->stream) != 0) return false;
    return krpy_raw_compute(run, raw, options);
}

/* run(context, args, mask, precision, work, flags, chunk_len, n_groups, eps, range, a_floor, dt_min, dt_max): args begins
 * with the inputs. A list of the results in the mask; None: not for a simple call. */
enum { CONTEXT, ARGS, MASK, CALL_PRECISION, CALL_WORK, NUMBERS, MOST_ARGS = NUMBERS + 8 };

static bool take_options(PyObject *const *args, Py_ssize_t n_args, kr_raw_options *o, unsigned *flags)
{
    static const int places[] = { FLAGS, CHUNK_LEN, N_GROUPS, EPS, RANGE, A_FLOOR, DT_MIN, DT_MAX };
    PyObject *given[N_OPTIONS] = { NULL };
    int64_t bits = 0;
    for (Py_ssize_t i = NUMBERS; i < n_args; i++) given[places[i - NUMBERS]] = args[i];
    given[PRECISION] = args[CALL_PRECISION];
    kr_raw_options_init(o);
    if (!krpy_get_int("flags", given[FLAGS], &bits) || !krpy_raw_numbers(given, o)) return false;
    *flags = (unsigned)bits;
    krpy_raw_flags(*flags, o);
    return true;
}

static PyObject *op_call_run(PyObject *object, PyObject *const *args, Py_ssize_t n_args)
{
    const krpy_op_call *self = (krpy_op_call *)object;
    krpy_module *module = krpy_module_of(object);
    kr_view views[MOST_VIEWS] = { { .data = NULL } };
    kr_raw_options options;
    unsigned flags = 0;
    sizes s = { .n_leads = -1 };
    if (n_args < NUMBERS || n_args > MOST_ARGS)
        return PyErr_Format(PyExc_TypeError, "OpCall.run: %zd arguments, but it takes from %d to %d", n_args, NUMBERS,
                            MOST_ARGS);
    krpy_context *context = krpy_context_of(module, args[CONTEXT]);
    if (!context || !take_options(args, n_args, &options, &flags)) return NULL;
    const unsigned long long mask = PyLong_AsUnsignedLongLongMask(args[MASK]);
    const Py_ssize_t count = PyTuple_Size(args[ARGS]);
    if (PyErr_Occurred()) return NULL;
    if (count < self->n_inputs)
        return PyErr_Format(PyExc_TypeError, "OpCall.run: %zd inputs, but there are %d", count, self->n_inputs);
    memset(s.of, -1, sizeof s.of);
    s.of['3'] = 3;
    s.of['4'] = 4;
    const int device = krpy_device_of(context);
    if (!take_inputs(self, module->raw, args[ARGS], device, views, &s)) return Py_NewRef(Py_None);
    if (s.of['q'] < 0) s.of['q'] = s.of['b'];
    if (s.of['e'] < 0) s.of['e'] = options.n_groups;
    PyObject *list = make_results(self, module->raw, &s, args[ARGS], device, mask, views);
    if (!list) return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    krpy_raw_run run = { .context = context, .work = args[CALL_WORK] };
    if (compute(self, module->raw, &run, device, views, &options, flags)) return list;
    Py_DECREF(list);
    return NULL;
}

static PyMethodDef op_call_methods[] = {
    { "run", (PyCFunction)(void (*)(void))op_call_run, METH_FASTCALL,
      "run($self, context, args, mask, precision, work, flags=0, chunk_len=0, n_groups=1, eps=1e-5, range=1, "
      "a_floor=1e-4, "
      "dt_min=0, dt_max=None, /)\n--\n\n"
      "Computes the results in the mask; args begins with the inputs. None: the call is not a simple one." },
    { NULL, NULL, 0, NULL },
};

static PyType_Slot op_call_slots[] = {
    { Py_tp_doc, "OpCall(op, inputs, results, order, narrow, source): calls of a raw op on contiguous torch tensors." },
    { Py_tp_new, op_call_new },
    { Py_tp_dealloc, op_call_dealloc },
    { Py_tp_methods, op_call_methods },
    { 0, NULL },
};

PyType_Spec krpy_op_call_spec = { .name = "krait._core.OpCall",
                                  .basicsize = sizeof(krpy_op_call),
                                  .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
                                  .slots = op_call_slots };
