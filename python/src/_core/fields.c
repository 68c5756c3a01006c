/* fields.c - the configs of blocks, stacks and networks by the names of their fields. */
#include "core.h"

#include <stddef.h>

typedef enum krpy_kind { KRPY_INT, KRPY_NUMBER, KRPY_BOOL, KRPY_WORD } krpy_kind;

typedef struct krpy_field {
    const char *name;
    krpy_kind kind;
    size_t offset;
    const char *const *words; /* of an enum, by value from 0 */
} krpy_field;

const char *const krpy_family_names[] = { "mamba1", "mamba2", "mamba3", NULL };
static const char *const dtypes[] = { "f32", "f64", "bf16", "f16", NULL };
static const char *const algorithms[] = { "minimal", "serial", "serial_recalculated", NULL };
static const char *const rotations[] = { "complex", "quaternion", NULL };
static const char *const activations[] = { "heavy_tail", "softplus", NULL };
static const char *const pathways[] = { "single", "double", NULL };
static const char *const residuals[] = { "standard", "multi_gate", NULL };
static const char *const recomputes[] = { "none", "all", "budget", NULL };
static const char *const schedules[] = { "cyclic", "stretched", NULL };

/* Enums have the size of an int. */
_Static_assert(sizeof(kr_dtype) == sizeof(int) && sizeof(kr_ssd_algorithm) == sizeof(int), "enums are ints");

#define INT(type, name)                                                                                                \
    {                                                                                                                  \
#name, KRPY_INT, offsetof(type, name), NULL                                                                    \
    }
#define NUMBER(type, name)                                                                                             \
    {                                                                                                                  \
#name, KRPY_NUMBER, offsetof(type, name), NULL                                                                 \
    }
#define BOOL(type, name)                                                                                               \
    {                                                                                                                  \
#name, KRPY_BOOL, offsetof(type, name), NULL                                                                   \
    }
#define WORD(type, name, words)                                                                                        \
    {                                                                                                                  \
#name, KRPY_WORD, offsetof(type, name), words                                                                  \
    }

static const krpy_field mamba1_fields[] = {
    WORD(kr_mamba1_config, dtype, dtypes),
    INT(kr_mamba1_config, d_model),
    INT(kr_mamba1_config, state_rank),
    INT(kr_mamba1_config, conv_kernel),
    INT(kr_mamba1_config, expand),
    INT(kr_mamba1_config, d_inner),
    INT(kr_mamba1_config, dt_rank),
    BOOL(kr_mamba1_config, has_conv_bias),
    BOOL(kr_mamba1_config, has_proj_bias),
    NUMBER(kr_mamba1_config, dt_min),
    NUMBER(kr_mamba1_config, dt_max),
    NUMBER(kr_mamba1_config, dt_init_floor),
    NUMBER(kr_mamba1_config, dt_scale),
    BOOL(kr_mamba1_config, has_constant_dt),
    NUMBER(kr_mamba1_config, dt_limit_min),
    NUMBER(kr_mamba1_config, dt_limit_max),
    BOOL(kr_mamba1_config, has_learnable_init_state),
    NUMBER(kr_mamba1_config, bcdt_norm_eps),
    { 0 },
};

static const krpy_field mamba2_fields[] = {
    WORD(kr_mamba2_config, dtype, dtypes),
    INT(kr_mamba2_config, d_model),
    INT(kr_mamba2_config, state_rank),
    INT(kr_mamba2_config, conv_kernel),
    NUMBER(kr_mamba2_config, conv_init),
    INT(kr_mamba2_config, expand),
    INT(kr_mamba2_config, per_head_dim),
    INT(kr_mamba2_config, d_ssm),
    INT(kr_mamba2_config, n_groups),
    NUMBER(kr_mamba2_config, a_init_min),
    NUMBER(kr_mamba2_config, a_init_max),
    BOOL(kr_mamba2_config, has_d_per_dim),
    BOOL(kr_mamba2_config, has_norm),
    BOOL(kr_mamba2_config, norm_before_gate),
    BOOL(kr_mamba2_config, norm_per_group),
    NUMBER(kr_mamba2_config, norm_eps),
    BOOL(kr_mamba2_config, has_proj_bias),
    BOOL(kr_mamba2_config, has_conv_bias),
    NUMBER(kr_mamba2_config, dt_min),
    NUMBER(kr_mamba2_config, dt_max),
    NUMBER(kr_mamba2_config, dt_init_floor),
    NUMBER(kr_mamba2_config, dt_limit_min),
    NUMBER(kr_mamba2_config, dt_limit_max),
    BOOL(kr_mamba2_config, has_learnable_init_state),
    { "algorithm", KRPY_WORD, offsetof(kr_mamba2_config, path.algorithm), algorithms },
    { "chunk_len", KRPY_INT, offsetof(kr_mamba2_config, path.chunk_len), NULL },
    { 0 },
};

static const krpy_field mamba3_fields[] = {
    WORD(kr_mamba3_config, dtype, dtypes),
    INT(kr_mamba3_config, d_model),
    INT(kr_mamba3_config, state_rank),
    INT(kr_mamba3_config, expand),
    INT(kr_mamba3_config, per_head_dim),
    INT(kr_mamba3_config, n_groups),
    BOOL(kr_mamba3_config, is_mimo),
    INT(kr_mamba3_config, mimo_rank),
    WORD(kr_mamba3_config, rotation, rotations),
    NUMBER(kr_mamba3_config, rope_fraction),
    NUMBER(kr_mamba3_config, rotation_range),
    WORD(kr_mamba3_config, a_activation, activations),
    NUMBER(kr_mamba3_config, a_floor),
    BOOL(kr_mamba3_config, has_outproj_norm),
    BOOL(kr_mamba3_config, has_shared_norm_gain),
    NUMBER(kr_mamba3_config, norm_eps),
    BOOL(kr_mamba3_config, has_proj_bias),
    NUMBER(kr_mamba3_config, dt_min),
    NUMBER(kr_mamba3_config, dt_max),
    NUMBER(kr_mamba3_config, dt_init_floor),
    NUMBER(kr_mamba3_config, dt_limit_min),
    NUMBER(kr_mamba3_config, dt_limit_max),
    BOOL(kr_mamba3_config, has_learnable_init_state),
    { "algorithm", KRPY_WORD, offsetof(kr_mamba3_config, path.algorithm), algorithms },
    { "chunk_len", KRPY_INT, offsetof(kr_mamba3_config, path.chunk_len), NULL },
    WORD(kr_mamba3_config, pathway, pathways),
    { 0 },
};

static const krpy_field layers_fields[] = {
    INT(kr_layers_config, n_layers),
    INT(kr_layers_config, n_virtual),
    WORD(kr_layers_config, schedule, schedules),
    NUMBER(kr_layers_config, norm_eps),
    INT(kr_layers_config, d_intermediate),
    INT(kr_layers_config, mlp_multiple_of),
    BOOL(kr_layers_config, has_mlp_bias),
    BOOL(kr_layers_config, ignore_first_residual),
    BOOL(kr_layers_config, ignore_last_residual),
    { "residual", KRPY_WORD, offsetof(kr_layers_config, residual.kind), residuals },
    { "n_stream", KRPY_INT, offsetof(kr_layers_config, residual.n_stream), NULL },
    { "gate_bias", KRPY_NUMBER, offsetof(kr_layers_config, residual.init_bias), NULL },
    { "gate_bias_step", KRPY_NUMBER, offsetof(kr_layers_config, residual.init_bias_step), NULL },
    { "has_gates_per_virtual_layer", KRPY_BOOL, offsetof(kr_layers_config, residual.per_virtual_layer), NULL },
    BOOL(kr_layers_config, residual_in_f32),
    INT(kr_layers_config, grad_horizon),
    WORD(kr_layers_config, recompute, recomputes),
    INT(kr_layers_config, recompute_budget),
    { 0 },
};
_Static_assert(sizeof(size_t) == sizeof(int64_t), "recompute_budget is read as an integer of 64 bits");

static const krpy_field network_fields[] = {
    INT(kr_network_config, vocab_size),
    INT(kr_network_config, pad_vocab_size_multiple),
    BOOL(kr_network_config, tie_embeddings),
    NUMBER(kr_network_config, embedding_std),
    BOOL(kr_network_config, rescale_residual),
    INT(kr_network_config, n_residuals),
    BOOL(kr_network_config, zero_proj_biases),
    INT(kr_network_config, input_size),
    INT(kr_network_config, output_size),
    BOOL(kr_network_config, has_final_norm),
    { 0 },
};

static const krpy_field *const family_fields[] = { mamba1_fields, mamba2_fields, mamba3_fields };

/* ---- set ---- */

static bool set_field(const krpy_field *field, void *config, PyObject *value)
{
    char *at = (char *)config + field->offset;
    switch (field->kind) {
    case KRPY_INT: return krpy_get_int(field->name, value, (int64_t *)at);
    case KRPY_NUMBER: return krpy_get_double(field->name, value, (double *)at);
    case KRPY_BOOL: return krpy_get_bool(field->name, value, (bool *)at);
    default: return krpy_get_word(field->name, value, field->words, (int *)at);
    }
}

static const krpy_field *find_field(const krpy_field *fields, PyObject *name)
{
    for (; fields->name; fields++)
        if (PyUnicode_CompareWithASCIIString(name, fields->name) == 0) return fields;
    return NULL;
}

static bool fail_unknown(PyObject *key)
{
    PyErr_Format(PyExc_TypeError, "unknown field %R of the config", key);
    return false;
}

static bool set_all(const krpy_field *fields, void *config, PyObject *dict)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(dict, &at, &key, &value)) {
        const krpy_field *field = PyUnicode_Check(key) ? find_field(fields, key) : NULL;
        if (!field) return fail_unknown(key);
        if (!set_field(field, config, value)) return false;
    }
    return true;
}

bool krpy_config_set_block(kr_family family, void *config, PyObject *fields)
{
    return set_all(family_fields[family], config, fields);
}

/* schedule = [0, 1, 1, 0]: a custom one, with as many virtual layers. */
static bool set_custom_schedule(kr_layers_config *config, PyObject *list, int64_t **schedule)
{
    const Py_ssize_t count = PySequence_Size(list);
    if (count < 0) return false;
    *schedule = PyMem_Malloc((size_t)(count + 1) * sizeof **schedule);
    if (!*schedule) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(list, i);
        const bool is_ok = item && krpy_get_int("schedule", item, &(*schedule)[i]);
        Py_XDECREF(item);
        if (!is_ok) return false;
    }
    config->schedule = KR_SCHEDULE_CUSTOM;
    config->custom_schedule = *schedule;
    if (config->n_virtual == 0) config->n_virtual = count;
    return true;
}

static bool set_layers_field(kr_layers_config *config, const krpy_field *field, PyObject *value, int64_t **schedule)
{
    if (strcmp(field->name, "schedule") == 0 && (PyList_Check(value) || PyTuple_Check(value)))
        return set_custom_schedule(config, value, schedule);
    return set_field(field, config, value);
}

bool krpy_config_set_layers(kr_layers_config *config, PyObject *fields, int64_t **schedule)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(fields, &at, &key, &value)) {
        const krpy_field *field = PyUnicode_Check(key) ? find_field(layers_fields, key) : NULL;
        if (!field) return fail_unknown(key);
        if (!set_layers_field(config, field, value, schedule)) return false;
    }
    return true;
}

static void *family_config(kr_model_config *model)
{
    return model->family == KR_FAMILY_MAMBA1   ? (void *)model->mamba1
           : model->family == KR_FAMILY_MAMBA3 ? (void *)model->mamba3
                                               : (void *)model->mamba2;
}

bool krpy_config_set_model(krpy_model_parts *parts, PyObject *fields)
{
    kr_model_config *model = parts->model;
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(fields, &at, &key, &value)) {
        const krpy_field *field;
        bool is_set;
        if (!PyUnicode_Check(key)) return fail_unknown(key);
        if ((field = find_field(family_fields[model->family], key)))
            is_set = set_field(field, family_config(model), value);
        else if ((field = find_field(layers_fields, key)))
            is_set = set_layers_field(model->layers, field, value, &parts->schedule);
        else if ((field = find_field(network_fields, key))) is_set = set_field(field, model->network, value);
        else return fail_unknown(key);
        if (!is_set) return false;
        /* Block and stack both have an eps; a model has one. */
        if (strcmp(field->name, "norm_eps") == 0 && !krpy_get_double("norm_eps", value, &model->layers->norm_eps))
            return false;
    }
    return true;
}

/* ---- defaults ---- */

static PyObject *value_of(const krpy_field *field, const void *config)
{
    const char *at = (const char *)config + field->offset;
    switch (field->kind) {
    case KRPY_INT: return PyLong_FromLongLong(*(const int64_t *)at);
    case KRPY_NUMBER: return PyFloat_FromDouble(*(const double *)at);
    case KRPY_BOOL: return PyBool_FromLong(*(const bool *)at);
    default: return PyUnicode_FromString(field->words[*(const int *)at]);
    }
}

static PyObject *dict_of(const krpy_field *fields, const void *config)
{
    PyObject *dict = PyDict_New();
    for (; dict && fields->name; fields++) {
        PyObject *value = value_of(fields, config);
        if (!value || PyDict_SetItemString(dict, fields->name, value) < 0) Py_CLEAR(dict);
        Py_XDECREF(value);
    }
    return dict;
}

PyObject *krpy_config_defaults(PyObject *module, PyObject *part)
{
    (void)module;
    static const char *const parts[] = { "mamba1", "mamba2", "mamba3", "layers", "network", NULL };
    int which = 0;
    if (!krpy_get_word("part", part, parts, &which)) return NULL;
    kr_mamba1_config mamba1;
    kr_mamba2_config mamba2;
    kr_mamba3_config mamba3;
    kr_layers_config layers;
    kr_network_config network;
    kr_mamba1_config_init(&mamba1);
    kr_mamba2_config_init(&mamba2);
    kr_mamba3_config_init(&mamba3);
    kr_layers_config_init(&layers);
    kr_network_config_init(&network);
    switch (which) {
    case 0: return dict_of(mamba1_fields, &mamba1);
    case 1: return dict_of(mamba2_fields, &mamba2);
    case 2: return dict_of(mamba3_fields, &mamba3);
    case 3: return dict_of(layers_fields, &layers);
    default: return dict_of(network_fields, &network);
    }
}
