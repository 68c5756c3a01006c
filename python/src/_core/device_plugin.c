/* device_plugin.c - loads the CUDA device of another distribution before the first context that asks for it. */
#include "core.h"

bool krpy_load_cuda(const char *device)
{
    if (!device) device = getenv("KR_DEVICE");
    if (!device || strncmp(device, "cuda", 4) != 0) return true;
    PyObject *plugins = PyImport_ImportModule("krait._plugins");
    PyObject *result = plugins ? PyObject_CallMethod(plugins, "load_cuda", NULL) : NULL;
    Py_XDECREF(plugins);
    Py_XDECREF(result);
    return result != NULL;
}

/* A plug-in belongs to the process; the context is for the error. */
PyObject *krpy_load_device(PyObject *module, PyObject *value)
{
    const char *path;
    kr_ctx_options options;
    if (!krpy_get_text("path", value, &path)) return NULL;
    kr_ctx_options_init(&options);
    options.threads = 1;
    options.device = "cpu";
    options.backend = "";
    kr_ctx *ctx = kr_ctx_create(&options);
    if (!ctx) return PyErr_NoMemory();
    kr_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = kr_device_load(ctx, path);
    Py_END_ALLOW_THREADS;
    if (status != KR_OK) krpy_raise(PyModule_GetState(module), status, kr_ctx_message(ctx));
    kr_ctx_destroy(ctx);
    if (status != KR_OK) return NULL;
    Py_RETURN_NONE;
}
