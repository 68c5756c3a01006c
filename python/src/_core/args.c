/* args.c - arguments of methods: names, and values of C types. */
#include "core.h"

static int index_of(const char *const *names, int count, PyObject *name)
{
    for (int i = 0; i < count; i++)
        if (PyUnicode_CompareWithASCIIString(name, names[i]) == 0) return i;
    return -1;
}

bool krpy_args(const char *function, const char *const *names, int required, int keyword_only, PyObject *const *args,
               Py_ssize_t n_args, PyObject *kwnames, PyObject **values)
{
    int count = 0;
    while (names[count]) values[count++] = NULL;
    const int positional = keyword_only < count ? keyword_only : count;
    if (n_args > positional) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %d positional arguments, but %zd were given", function,
                     positional, n_args);
        return false;
    }
    for (Py_ssize_t i = 0; i < n_args; i++) values[i] = args[i];
    const Py_ssize_t n_named = kwnames ? PyTuple_Size(kwnames) : 0;
    for (Py_ssize_t i = 0; i < n_named; i++) {
        PyObject *name = PyTuple_GetItem(kwnames, i);
        const int at = index_of(names, count, name);
        if (at < 0) {
            PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", function, name);
            return false;
        }
        if (values[at]) {
            PyErr_Format(PyExc_TypeError, "%s() got two values for the argument '%U'", function, name);
            return false;
        }
        values[at] = args[n_args + i];
    }
    for (int i = 0; i < required; i++) {
        if (values[i]) continue;
        PyErr_Format(PyExc_TypeError, "%s() needs the argument '%s'", function, names[i]);
        return false;
    }
    return true;
}

/* Replaces the current exception by one of the same class that names the argument. */
static bool fail_type(const char *name, const char *expected, PyObject *object)
{
    PyObject *type = PyType_GetName(Py_TYPE(object));
    if (type) PyErr_Format(PyExc_TypeError, "%s is of type %U, but must be %s", name, type, expected);
    Py_XDECREF(type);
    return false;
}

bool krpy_get_int(const char *name, PyObject *object, int64_t *value)
{
    if (!object || object == Py_None) return true;
    PyObject *number = PyNumber_Index(object);
    if (!number) {
        PyErr_Clear();
        return fail_type(name, "an integer", object);
    }
    int overflow = 0;
    const long long got = PyLong_AsLongLongAndOverflow(number, &overflow);
    Py_DECREF(number);
    if (overflow) {
        PyErr_Format(PyExc_OverflowError, "%s does not fit into 64 bits", name);
        return false;
    }
    if (got == -1 && PyErr_Occurred()) return false;
    *value = got;
    return true;
}

bool krpy_get_double(const char *name, PyObject *object, double *value)
{
    if (!object || object == Py_None) return true;
    const double got = PyFloat_AsDouble(object);
    if (got == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return fail_type(name, "a number", object);
    }
    *value = got;
    return true;
}

bool krpy_get_bool(const char *name, PyObject *object, bool *value)
{
    if (!object || object == Py_None) return true;
    const int got = PyObject_IsTrue(object);
    if (got < 0) {
        PyErr_Clear();
        return fail_type(name, "a bool", object);
    }
    *value = got != 0;
    return true;
}

bool krpy_get_text(const char *name, PyObject *object, const char **value)
{
    *value = NULL;
    if (!object || object == Py_None) return true;
    if (!PyUnicode_Check(object)) return fail_type(name, "a str", object);
    Py_ssize_t length = 0;
    const char *text = PyUnicode_AsUTF8AndSize(object, &length);
    if (!text) return false;
    if (strlen(text) != (size_t)length) {
        PyErr_Format(PyExc_ValueError, "%s contains a null character", name);
        return false;
    }
    *value = text;
    return true;
}

bool krpy_get_path(const char *name, PyObject *object, PyObject **keep, const char **value)
{
    *keep = NULL;
    *value = NULL;
    if (!object || object == Py_None) return true;
    PyObject *bytes = NULL;
    if (!PyUnicode_FSConverter(object, &bytes)) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError)) return false;
        PyErr_Clear();
        return fail_type(name, "a path: str, bytes or os.PathLike", object);
    }
    *keep = bytes;
    *value = PyBytes_AsString(bytes);
    return *value != NULL;
}

static bool fail_word(const char *name, PyObject *object, const char *const *words)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list && words[i]; i++) {
        PyObject *word = PyUnicode_FromString(words[i]);
        if (!word || PyList_Append(list, word) < 0) Py_CLEAR(list);
        Py_XDECREF(word);
    }
    PyObject *comma = list ? PyUnicode_FromString(", ") : NULL;
    PyObject *joined = comma ? PyUnicode_Join(comma, list) : NULL;
    if (joined) PyErr_Format(PyExc_ValueError, "%s is %R, but must be one of: %U", name, object, joined);
    Py_XDECREF(joined);
    Py_XDECREF(comma);
    Py_XDECREF(list);
    return false;
}

bool krpy_get_word(const char *name, PyObject *object, const char *const *words, int *index)
{
    if (!object || object == Py_None) return true;
    if (!PyUnicode_Check(object)) return fail_type(name, "a str", object);
    for (int i = 0; words[i]; i++)
        if (PyUnicode_CompareWithASCIIString(object, words[i]) == 0) {
            *index = i;
            return true;
        }
    return fail_word(name, object, words);
}
