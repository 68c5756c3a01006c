/* errors.c - the exception classes: krait.Error and one class for each status of the library. */
#include "core.h"

typedef struct krpy_error_row {
    kr_status status;
    const char *name, *doc;
    PyObject **base; /* the built-in class that Python programs expect */
} krpy_error_row;

static PyObject *class_new(const krpy_error_row *row, PyObject *error)
{
    PyObject *bases = row->base ? PyTuple_Pack(2, error, *row->base) : NULL;
    PyObject *dict = Py_BuildValue("{s:s}", "status", kr_status_name(row->status));
    PyObject *made = NULL;
    if (dict && (bases || !row->base)) made = PyErr_NewExceptionWithDoc(row->name, row->doc, bases, dict);
    Py_XDECREF(bases);
    Py_XDECREF(dict);
    return made;
}

bool krpy_errors_init(PyObject *module, krpy_module *state)
{
    const krpy_error_row rows[] = {
        { KR_ERR_INTERNAL, "krait.Error",
          "An error of Krait: the base of all its exceptions. `status` is the name of the library's status.", NULL },
        { KR_ERR_ARG, "krait.ArgumentError", "An invalid argument.", &PyExc_ValueError },
        { KR_ERR_SHAPE, "krait.ShapeError", "Ranks or sizes do not match.", &PyExc_ValueError },
        { KR_ERR_DTYPE, "krait.DtypeError", "An element type that the op does not support.", &PyExc_TypeError },
        { KR_ERR_NOMEM, "krait.OutOfMemoryError", "Out of memory, of the host or of a GPU.", &PyExc_MemoryError },
        { KR_ERR_IO, "krait.IoError", "Reading or writing a file failed.", &PyExc_OSError },
        { KR_ERR_FORMAT, "krait.FormatError", "An invalid file or text.", &PyExc_ValueError },
        { KR_ERR_UNSUPPORTED, "krait.UnsupportedError", "Valid, but not supported by this machine, build or version.",
          &PyExc_NotImplementedError },
        { KR_ERR_DEVICE, "krait.DeviceError", "The accelerator failed.", &PyExc_RuntimeError },
        { KR_ERR_NUMERIC, "krait.NumericError", "A NaN or infinity where check_finite forbids it.",
          &PyExc_ArithmeticError },
        { KR_ERR_STATE, "krait.StateError", "A call at the wrong time.", &PyExc_RuntimeError },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        PyObject *made = class_new(&rows[i], state->errors[KR_ERR_INTERNAL]);
        if (!made) return false;
        state->errors[rows[i].status] = made;
        if (PyModule_AddObjectRef(module, strchr(rows[i].name, '.') + 1, made) < 0) return false;
    }
    state->errors[KR_OK] = Py_NewRef(state->errors[KR_ERR_INTERNAL]);
    return true;
}

void krpy_raise(krpy_module *module, kr_status status, const char *text)
{
    const bool is_known = status > KR_OK && status < KRPY_STATUSES;
    PyObject *type = module->errors[is_known ? status : KR_ERR_INTERNAL];
    PyObject *message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    if (!message) return;
    PyErr_SetObject(type, message);
    Py_DECREF(message);
}
