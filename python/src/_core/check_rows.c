/* check_rows.c - krait._core.check: the self-test of the library, its results as a list. */
#include "option_rows.h"
#include "training.h"

#include <krait/experimental/check.h>

typedef struct checking {
    krpy_context *context;
    PyObject *list;
    bool has_failed; /* with an exception, which the context keeps */
} checking;

/* ("passed", name, isa, kernel, error, limit, text): a text that is absent is None. */
static PyObject *row_of(const kr_check_result *r)
{
    static const char *const outcomes[] = { "passed", "failed", "skipped", "note", "heading" };
    return Py_BuildValue("szzzddz", outcomes[r->outcome], r->name, r->isa, r->kernel, r->error, r->limit, r->text);
}

static void take_result(void *user, const kr_check_result *r)
{
    checking *c = user;
    if (c->has_failed) return;
    krpy_callback_begin(c->context);
    PyObject *row = row_of(r);
    if (!row || PyList_Append(c->list, row) < 0) {
        krpy_callback_failed(c->context);
        c->has_failed = true;
    }
    Py_XDECREF(row);
    krpy_callback_end(c->context);
}

/* Raises if the checks could not run. */
PyObject *krpy_check(PyObject *module, PyObject *args)
{
    static const char *const kinds[] = { "machine", "ops", "model", NULL };
    static const char *const dtypes[] = { "f32", "f64", "bf16", "f16", NULL };
    static const krpy_option rows[] = {
        { "device", KRPY_TEXT, offsetof(kr_check_options, device), NULL },
        { "isa", KRPY_TEXT, offsetof(kr_check_options, isa), NULL },
        { "threads", KRPY_INT, offsetof(kr_check_options, threads), NULL },
        { "seed", KRPY_UINT64, offsetof(kr_check_options, seed), NULL },
        { "ops", KRPY_PATH, offsetof(kr_check_options, ops), NULL },
        { "model", KRPY_PATH, offsetof(kr_check_options, model), NULL },
        { "against", KRPY_PATH, offsetof(kr_check_options, against), NULL },
        { "dtype", KRPY_WORD, offsetof(kr_check_options, dtype), dtypes },
        { "tolerance", KRPY_DOUBLE, offsetof(kr_check_options, tolerance), NULL },
        { "grad_tolerance", KRPY_DOUBLE, offsetof(kr_check_options, grad_tolerance), NULL },
        { "tokens", KRPY_INT64, offsetof(kr_check_options, tokens), NULL },
        { 0 },
    };
    static const krpy_option *const tables[] = { rows, NULL };
    PyObject *context, *kind, *dict;
    int which = 0;
    Py_ssize_t taken = 0;
    kr_check_options o;
    kr_check_options_init(&o);
    if (!PyArg_ParseTuple(args, "OOO!:check", &context, &kind, &PyDict_Type, &dict)) return NULL;
    krpy_context *c = krpy_context_of(PyModule_GetState(module), context);
    if (!c || !krpy_get_word("kind", kind, kinds, &which) || !krpy_take_options(dict, rows, &o, &taken) ||
        !krpy_all_taken("check", dict, taken, tables))
        return NULL;
    checking work = { .context = c, .list = PyList_New(0) };
    if (!work.list) return NULL;
    o.kind = (kr_check_kind)which;
    o.report = take_result;
    o.user = &work;
    krpy_enter(c);
    KRPY_COMPUTE(c, kr_check_run(c->ctx, &o, NULL));
    if (krpy_leave(c)) return work.list;
    Py_DECREF(work.list);
    return NULL;
}
