/* arrays_source.c - training data in arrays of Python, which may be memory-mapped files: a custom source that reads them in
 * place. It holds their buffers until it is destroyed. */
#include "option_rows.h"
#include "training.h"

#include <string.h>

enum { IDS, X, LABELS, TARGETS, STARTS, N_ARRAYS };

typedef struct arrays {
    Py_buffer view[N_ARRAYS]; /* obj NULL: absent */
    int64_t n_features, n_targets, n_starts;
} arrays;

static const int64_t item_bytes[N_ARRAYS] = { 4, 4, 4, 4, 8 };

static void copy_rows(void *to, const Py_buffer *view, int64_t from, int64_t count, int64_t row_bytes)
{
    if (to && view->obj) memcpy(to, (const char *)view->buf + from * row_bytes, (size_t)(count * row_bytes));
}

static kr_status read_arrays(void *user, int64_t from, int64_t count, const kr_positions *out)
{
    const arrays *a = user;
    copy_rows(out->ids, &a->view[IDS], from, count, 4);
    copy_rows(out->x, &a->view[X], from, count, 4 * a->n_features);
    copy_rows(out->labels, &a->view[LABELS], from, count, 4);
    copy_rows(out->targets, &a->view[TARGETS], from, count, 4 * a->n_targets);
    return KR_OK;
}

/* The first start in [from, to): the starts ascend. */
static int64_t find_start(void *user, int64_t from, int64_t to)
{
    const arrays *a = user;
    const int64_t *starts = a->view[STARTS].buf;
    int64_t low = 0, high = a->n_starts;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (starts[middle] < from) low = middle + 1;
        else high = middle;
    }
    return low < a->n_starts && starts[low] < to ? starts[low] : to;
}

/* Sources are destroyed with the GIL: by krpy_leave, or with the context. */
static void destroy_arrays(void *user)
{
    arrays *a = user;
    for (int i = 0; i < N_ARRAYS; i++)
        if (a->view[i].obj) PyBuffer_Release(&a->view[i]);
    PyMem_Free(a);
}

static bool take_buffers(PyObject *dict, arrays *a)
{
    static const char *const names[N_ARRAYS] = { "ids", "x", "labels", "targets", "starts" };
    for (int i = 0; i < N_ARRAYS; i++) {
        PyObject *object = PyDict_GetItemString(dict, names[i]); /* borrowed */
        if (!object || object == Py_None) continue;
        if (PyObject_GetBuffer(object, &a->view[i], PyBUF_C_CONTIGUOUS) < 0) return false;
        if (a->view[i].itemsize == item_bytes[i]) continue;
        PyErr_Format(PyExc_TypeError, "%s: elements have %zd bytes, but must have %d", names[i], a->view[i].itemsize,
                     (int)item_bytes[i]);
        return false;
    }
    return true;
}

kr_source *krpy_arrays_source(krpy_context *c, PyObject *dict, PyObject *numbers)
{
    static const krpy_option rows[] = {
        { "count", KRPY_INT64, offsetof(kr_source_info, count), NULL },
        { "n_ids", KRPY_INT64, offsetof(kr_source_info, n_ids), NULL },
        { "n_features", KRPY_INT64, offsetof(kr_source_info, n_features), NULL },
        { "n_classes", KRPY_INT64, offsetof(kr_source_info, n_classes), NULL },
        { "n_targets", KRPY_INT64, offsetof(kr_source_info, n_targets), NULL },
        { "predict_next", KRPY_BOOL, offsetof(kr_source_info, predict_next), NULL },
        { 0 },
    };
    arrays *a = PyMem_Calloc(1, sizeof *a);
    kr_source_info info = { 0 };
    if (!a) return (kr_source *)PyErr_NoMemory();
    if (!krpy_take_options(numbers, rows, &info, NULL) || !take_buffers(dict, a)) {
        destroy_arrays(a);
        return NULL;
    }
    a->n_features = info.n_features;
    a->n_targets = info.n_targets;
    a->n_starts = a->view[STARTS].obj ? a->view[STARTS].len / item_bytes[STARTS] : 0;
    const int64_t row_bytes[N_ARRAYS] = { 4, 4 * a->n_features, 4, 4 * a->n_targets, 0 };
    for (int i = 0; i < STARTS; i++) {
        if (!a->view[i].obj || a->view[i].len == info.count * row_bytes[i]) continue;
        PyErr_SetString(PyExc_ValueError, "arrays of one source must have a row for each position");
        destroy_arrays(a);
        return NULL;
    }
    const kr_source_callbacks callbacks = { .read = read_arrays,
                                            .find_start = a->view[STARTS].obj ? find_start : NULL,
                                            .destroy = destroy_arrays };
    kr_source *source = kr_source_custom(c->ctx, &info, &callbacks, a);
    if (!source) destroy_arrays(a);
    return source;
}
