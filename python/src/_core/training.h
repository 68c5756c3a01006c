/* training.h - training data, training runs, scores and checks: what their files share. */
#ifndef KRPY_TRAINING_H
#define KRPY_TRAINING_H

#include "core.h"

typedef struct krpy_source {
    PyObject_HEAD krpy_context *context;
    krpy_handle *handle;
    kr_source *source;
} krpy_source;

typedef struct krpy_loader {
    PyObject_HEAD krpy_source *source; /* keeps the context, too */
    krpy_handle *handle;
    kr_loader *loader;
} krpy_loader;

/* A source over arrays of Python (arrays_source.c). `arrays` has buffers of contiguous elements: "ids" or "x", "labels",
 * "targets", "starts" (i32, f32, i32, f32, i64); `numbers` the fields of kr_source_info. NULL with an exception or an error
 * of the context. */
kr_source *krpy_arrays_source(krpy_context *c, PyObject *arrays, PyObject *numbers);

extern PyType_Spec krpy_source_spec, krpy_loader_spec, krpy_trainer_spec, krpy_scorer_spec;

/* check(context, kind, options) -> [row, ...]: check_rows.c. */
PyObject *krpy_check(PyObject *module, PyObject *args);

#endif
