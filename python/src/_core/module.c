/* module.c - the module krait._core: its state, types and functions without an object. */
#include "core.h"
#include "raw_call.h"
#include "training.h"

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
    { "load_device", krpy_load_device, METH_O,
      "load_device(path, /)\n--\n\nLoads a device from a plug-in, such as libkrait_cuda.so, for the process." },
    { "config_defaults", krpy_config_defaults, METH_O,
      "config_defaults(part, /)\n--\n\nDefaults of the fields of 'mamba1', 'mamba2', 'mamba3', 'layers', 'network'." },
    { "from_dlpack", krpy_from_dlpack, METH_O,
      "from_dlpack(object, /)\n--\n\nAn Array over the memory of an object with __dlpack__, or of a DLPack capsule." },
    { "op", (PyCFunction)(void (*)(void))krpy_op, METH_FASTCALL | METH_KEYWORDS,
      "op(tape, name, inputs, *, algorithm=None, chunk_len=None, eps=None, groups=None, norm_before_gate=None, "
      "silu=None, heads=None, scale=None, split_pairs=None, a_activation=None, a_floor=None, dt_min=None, "
      "dt_max=None)\n--\n\nRuns an op on arrays of a tape." },
    { "load_model_memory", (PyCFunction)(void (*)(void))krpy_load_model_memory, METH_FASTCALL | METH_KEYWORDS,
      "load_model_memory(context, config, weights)\n--\n\nLoads a model from the bytes of its files." },
    { "load_model", (PyCFunction)(void (*)(void))krpy_load_model, METH_FASTCALL | METH_KEYWORDS,
      "load_model(context, folder, *, tokenizer=None, dtype=None, mmap=None)\n--\n\nLoads a model folder." },
    { "create_model", (PyCFunction)(void (*)(void))krpy_create_model, METH_FASTCALL | METH_KEYWORDS,
      "create_model(context, *, family=None, json=None, fields=None, measure=None)\n--\n\nCreates a model." },
    { "check", krpy_check, METH_VARARGS,
      "check(context, kind, options, /)\n--\n\nThe self-test of the library, a tuple for each line." },
    { "raw", (PyCFunction)(void (*)(void))krpy_raw_call, METH_FASTCALL,
      "raw(context, op, views, flags=0, chunk_len=0, sequences=None, precision=-1, n_groups=1, eps=1e-5, range=1, "
      "a_floor=1e-4, dt_min=0, dt_max=None, stream=None, work=None, /)\n--\n\n"
      "Runs a kernel on memory of torch tensors or buffers: operands, then results, None where absent, in the order "
      "of\n"
      "raw_signature(op). flags: 1 silu, 2 norm_first, 4 split_pairs, 8 softplus, 16 accumulate, 32 views without s.\n"
      "stream: a cudaStream_t of the context's GPU as an integer, on which the call is queued.\n"
      "work: callable(bytes), whose result is a tensor for work memory; None: that of the context." },
    { "raw_signature", krpy_raw_signature, METH_O,
      "raw_signature(op, /)\n--\n\nThe views of a raw op by its number, which raw_ops has by name." },
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
    if (!krpy_errors_init(module, state) || !krpy_raw_init(module, state)) return -1;
    if (!add_type(module, &krpy_context_spec, &state->context) || !add_type(module, &krpy_array_spec, &state->array) ||
        !add_type(module, &krpy_tape_spec, &state->tape) || !add_type(module, &krpy_params_spec, &state->params) ||
        !add_type(module, &krpy_model_spec, &state->model) || !add_type(module, &krpy_state_spec, &state->state) ||
        !add_type(module, &krpy_tokenizer_spec, &state->tokenizer) ||
        !add_type(module, &krpy_batch_spec, &state->batch) || !add_type(module, &krpy_block_spec, &state->block))
        return -1;
    if (!add_type(module, &krpy_source_spec, &state->source) || !add_type(module, &krpy_loader_spec, &state->loader) ||
        !add_type(module, &krpy_trainer_spec, &state->trainer) ||
        !add_type(module, &krpy_scorer_spec, &state->scorer) || !add_type(module, &krpy_op_call_spec, &state->op_call))
        return -1;
    return PyModule_AddStringConstant(module, "__version__", kr_version());
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    krpy_module *state = PyModule_GetState(module);
    for (int i = 0; i < KRPY_STATUSES; i++) Py_VISIT(state->errors[i]);
    Py_VISIT(state->context);
    Py_VISIT(state->source);
    Py_VISIT(state->loader);
    Py_VISIT(state->trainer);
    Py_VISIT(state->scorer);
    Py_VISIT(state->op_call);
    Py_VISIT(state->array);
    Py_VISIT(state->tape);
    Py_VISIT(state->params);
    Py_VISIT(state->model);
    Py_VISIT(state->state);
    Py_VISIT(state->tokenizer);
    Py_VISIT(state->batch);
    Py_VISIT(state->block);
    return 0;
}

static int module_clear(PyObject *module)
{
    krpy_module *state = PyModule_GetState(module);
    for (int i = 0; i < KRPY_STATUSES; i++) Py_CLEAR(state->errors[i]);
    Py_CLEAR(state->context);
    Py_CLEAR(state->source);
    Py_CLEAR(state->loader);
    Py_CLEAR(state->trainer);
    Py_CLEAR(state->scorer);
    Py_CLEAR(state->op_call);
    Py_CLEAR(state->array);
    Py_CLEAR(state->tape);
    Py_CLEAR(state->params);
    Py_CLEAR(state->model);
    Py_CLEAR(state->state);
    Py_CLEAR(state->tokenizer);
    Py_CLEAR(state->batch);
    Py_CLEAR(state->block);
    krpy_raw_clear(state);
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
