/* option_rows.h - option structs of the library from a dictionary: a table names the fields that Python may set. */
#ifndef KRPY_OPTION_ROWS_H
#define KRPY_OPTION_ROWS_H

#include "core.h"

#include <stddef.h>

typedef enum krpy_option_kind {
    KRPY_INT,    /* int, int32_t */
    KRPY_INT64,  /* int64_t */
    KRPY_UINT64, /* uint64_t */
    KRPY_SIZE,   /* size_t */
    KRPY_DOUBLE, /* double */
    KRPY_BOOL,   /* bool */
    KRPY_WORD,   /* an enum, by the index of its word */
    KRPY_TEXT,   /* const char *: a str, which the dictionary keeps */
    KRPY_PATH,   /* const char *: bytes as of os.fsencode, which the dictionary keeps */
    KRPY_CHAR    /* char: a str of one ASCII character */
} krpy_option_kind;

typedef struct krpy_option {
    const char *name;
    krpy_option_kind kind;
    size_t offset;
    const char *const *words; /* KRPY_WORD: ends with NULL */
} krpy_option;

/* Sets the fields whose names are in the dictionary. `rows` ends with a NULL name. *taken (may be NULL) grows by the
 * number of members found. False with an exception. */
bool krpy_take_options(PyObject *dict, const krpy_option *rows, void *options, Py_ssize_t *taken);

/* False with an exception that names a member which no table has; call it with the sum of what was taken. */
bool krpy_all_taken(const char *function, PyObject *dict, Py_ssize_t taken, const krpy_option *const *tables);

#endif
