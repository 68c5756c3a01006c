/* module.c - the module krait._core: its state, types and functions without an object. */
#include "core.h"

#include <stdlib.h>

krpy_module *krpy_module_of(PyObject *self)
{
    return PyType_GetModuleState(Py_TYPE(self));
}

static PyObject *info_text(kr_info info)
{
    const size_t bytes = kr_info_text(info, NULL, 0);
    char *text = PyMem_Malloc(bytes + 1);
    if (!text) return PyErr_NoMemory();
    kr_info_text(info, text, bytes + 1);
    PyObject *made = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    PyMem_Free(text);
    return made;
}

static PyObject *module_info(PyObject *module, PyObject *name)
{
    (void)module;
    static const char *const names[] = { "cpu_features", "isas", "devices", "kernels", NULL };
    int which = 0;
    if (!krpy_get_word("name", name, names, &which)) return NULL;
    return info_text((kr_info)which);
}

static PyMethodDef module_methods[] = {
    { "info", module_info, METH_O,
      "info(name, /)\n--\n\nA text about machine and library: 'cpu_features', 'isas', 'devices' or 'kernels'." },
    { 0 },
};

static bool add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type)
{
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type && PyModule_AddType(module, *type) == 0;
}

static int module_exec(PyObject *module)
{
    krpy_module *state = PyModule_GetState(module);
    const char *testing = getenv("KR_PYTHON_TESTING");
    state->is_testing = testing && *testing;
    if (!krpy_errors_init(module, state)) return -1;
    if (!add_type(module, &krpy_context_spec, &state->context)) return -1;
    return PyModule_AddStringConstant(module, "__version__", kr_version());
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    krpy_module *state = PyModule_GetState(module);
    for (int i = 0; i < KRPY_STATUSES; i++) Py_VISIT(state->errors[i]);
    Py_VISIT(state->context);
    return 0;
}

static int module_clear(PyObject *module)
{
    krpy_module *state = PyModule_GetState(module);
    for (int i = 0; i < KRPY_STATUSES; i++) Py_CLEAR(state->errors[i]);
    Py_CLEAR(state->context);
    return 0;
}

static void module_free(void *module)
{
    module_clear(module);
}

static PyModuleDef_Slot module_slots[] = {
    { Py_mod_exec, module_exec },
    { 0, NULL },
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "krait._core",
    .m_doc = "The C library of Krait. Programs use the package krait.",
    .m_size = sizeof(krpy_module),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&module_def);
}
