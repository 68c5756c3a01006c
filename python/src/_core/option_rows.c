/* option_rows.c - option structs of the library from a dictionary. */
#include "option_rows.h"

static bool get_unsigned(const char *name, PyObject *object, uint64_t *value)
{
    const unsigned long long got = PyLong_Check(object) ? PyLong_AsUnsignedLongLong(object) : 0;
    if (PyLong_Check(object) && !PyErr_Occurred()) {
        *value = got;
        return true;
    }
    PyErr_Clear();
    PyErr_Format(PyExc_ValueError, "%s is %R, but must be an integer from 0 to 2^64 - 1", name, object);
    return false;
}

static bool get_char(const char *name, PyObject *object, char *value)
{
    const char *text = NULL;
    if (!krpy_get_text(name, object, &text)) return false;
    if (text && text[0] && !text[1]) {
        *value = text[0];
        return true;
    }
    PyErr_Format(PyExc_ValueError, "%s is %R, but must be one ASCII character", name, object);
    return false;
}

static bool get_path(const char *name, PyObject *object, const char **value)
{
    if (!PyBytes_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s must be bytes, as of os.fsencode", name);
        return false;
    }
    *value = PyBytes_AsString(object);
    return *value != NULL;
}

static bool take(const krpy_option *row, PyObject *object, void *field)
{
    int64_t integer = 0;
    uint64_t natural = 0;
    switch (row->kind) {
    case KRPY_INT:
        integer = *(int *)field;
        if (!krpy_get_int(row->name, object, &integer)) return false;
        if (integer < INT32_MIN || integer > INT32_MAX) {
            PyErr_Format(PyExc_OverflowError, "%s does not fit into 32 bits", row->name);
            return false;
        }
        *(int *)field = (int)integer;
        return true;
    case KRPY_INT64: return krpy_get_int(row->name, object, field);
    case KRPY_UINT64: return get_unsigned(row->name, object, field);
    case KRPY_SIZE:
        if (!get_unsigned(row->name, object, &natural)) return false;
        *(size_t *)field = (size_t)natural;
        return true;
    case KRPY_DOUBLE: return krpy_get_double(row->name, object, field);
    case KRPY_BOOL: return krpy_get_bool(row->name, object, field);
    case KRPY_WORD: return krpy_get_word(row->name, object, row->words, field); /* enums have the size of an int */
    case KRPY_TEXT: return krpy_get_text(row->name, object, field);
    case KRPY_PATH: return get_path(row->name, object, field);
    case KRPY_CHAR: return get_char(row->name, object, field);
    }
    return false;
}

bool krpy_take_options(PyObject *dict, const krpy_option *rows, void *options, Py_ssize_t *taken)
{
    for (const krpy_option *row = rows; row->name; row++) {
        PyObject *key = PyUnicode_FromString(row->name);
        PyObject *object = key ? PyDict_GetItemWithError(dict, key) : NULL; /* borrowed */
        Py_XDECREF(key);
        if (!object && PyErr_Occurred()) return false;
        if (object && taken) ++*taken;
        if (object && object != Py_None && !take(row, object, (char *)options + row->offset)) return false;
    }
    return true;
}

static bool is_known(PyObject *key, const krpy_option *const *tables)
{
    for (; *tables; tables++)
        for (const krpy_option *row = *tables; row->name; row++)
            if (PyUnicode_CompareWithASCIIString(key, row->name) == 0) return true;
    return false;
}

bool krpy_all_taken(const char *function, PyObject *dict, Py_ssize_t taken, const krpy_option *const *tables)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    if (taken >= PyDict_Size(dict)) return true;
    while (PyDict_Next(dict, &at, &key, &value)) {
        if (PyUnicode_Check(key) && is_known(key, tables)) continue;
        PyErr_Format(PyExc_TypeError, "%s: unknown option %R", function, key);
        return false;
    }
    return true;
}
