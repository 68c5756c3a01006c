/* op_table.c - ops on a tape by name, with any of their operands absent: what krait.ssd and krait.nn are made of. */
#include "core.h"

enum { MOST_INPUTS = 14, MOST_RESULTS = 5 };

typedef struct op_options {
    kr_ssd_path path;
    kr_norm_options norm;
    kr_trapezoid_options trapezoid;
    int64_t n_heads;
    double range;
    kr_pairing pairing;
    bool silu;
} op_options;

typedef void op_run(kr_tape *tape, kr_tensor *const *in, const op_options *o, kr_tensor **out);

typedef struct op_row {
    const char *name;
    int n_in, n_required, n_out; /* the first n_required inputs must be given */
    op_run *run;
} op_row;

static void run_ssd(kr_tape *tape, kr_tensor *const *in, const op_options *o, kr_tensor **out)
{
    const kr_mamba2_ssd_input input = { .x_bshp = in[0],
                                        .dt_bsh = in[1],
                                        .a_decay_h = in[2],
                                        .b_bsgr = in[3],
                                        .c_bsgr = in[4],
                                        .d_h = in[5],
                                        .initial_state_bhpr = in[6],
                                        .learned_init_hpr = in[7],
                                        .seq_start_bs = in[8],
                                        .cu_seqlens = in[9] };
    const kr_ssd_out result = kr_mamba2_ssd_run(tape, &input, o->path);
    out[0] = result.y;
    out[1] = result.final_state;
}

static void run_ssd_double(kr_tape *tape, kr_tensor *const *in, const op_options *o, kr_tensor **out)
{
    const kr_mamba3_double_ssd_input input = { .v_bsmhp = in[0],
                                               .da_bsh = in[1],
                                               .b_bsmhr = in[2],
                                               .c_bsmhr = in[3],
                                               .d_h = in[4],
                                               .initial_state_bhpr = in[5],
                                               .learned_init_hpr = in[6],
                                               .seq_start_bs = in[7],
                                               .cu_seqlens = in[8] };
    const kr_ssd_out result = kr_mamba3_double_ssd_run(tape, &input, o->path);
    out[0] = result.y;
    out[1] = result.final_state;
}

static void run_ssd_single(kr_tape *tape, kr_tensor *const *in, const op_options *o, kr_tensor **out)
{
    const kr_mamba3_single_ssd_input input = { .v_bsmhp = in[0],
                                               .da_bsh = in[1],
                                               .b_bsmhr = in[2],
                                               .c_bsmhr = in[3],
                                               .gamma_bsh = in[4],
                                               .scale_bsh = in[5],
                                               .d_h = in[6],
                                               .initial_state_bhpr = in[7],
                                               .learned_init_hpr = in[8],
                                               .seq_start_bs = in[9],
                                               .cu_seqlens = in[10],
                                               .carry0_bh = in[11],
                                               .v_before_bmhp = in[12],
                                               .k_before_bmhr = in[13] };
    const kr_ssd_out result = kr_mamba3_single_ssd_run(tape, &input, o->path);
    out[0] = result.y;
    out[1] = result.final_state;
}

static void run_scan(kr_tape *tape, kr_tensor *const *in, const op_options *o, kr_tensor **out)
{
    (void)o;
    const kr_selective_scan_input input = { .x_bsi = in[0],
                                            .dt_bsi = in[1],
                                            .a_ir = in[2],
                                            .b_bsgr = in[3],
                                            .c_bsgr = in[4],
                                            .d_i = in[5],
                                            .z_bsi = in[6],
                                            .initial_state_bir = in[7],
                                            .seq_start_bs = in[8],
                                            .cu_seqlens = in[9] };
    const kr_scan_out result = kr_selective_scan(tape, &input);
    out[0] = result.y_bsi;
    out[1] = result.final_state;
}

static void run_conv(kr_tape *tape, kr_tensor *const *in, const op_options *o, kr_tensor **out)
{
    const kr_conv_out result = kr_causal_conv(tape, in[0], in[1], in[2], in[3], in[4], o->silu);
    out[0] = result.y_bsv;
    out[1] = result.window_bvk;
}

static void run_rms_norm(kr_tape *tape, kr_tensor *const *in, const op_options *o, kr_tensor **out)
{
    out[0] = kr_rms_norm(tape, in[0], in[1], &o->norm);
}

static void run_layer_norm(kr_tape *tape, kr_tensor *const *in, const op_options *o, kr_tensor **out)
{
    out[0] = kr_layer_norm(tape, in[0], in[1], in[2], &o->norm);
}

static void run_gated_norm(kr_tape *tape, kr_tensor *const *in, const op_options *o, kr_tensor **out)
{
    out[0] = kr_gated_norm(tape, in[0], in[1], in[2], &o->norm);
}

static void run_gate(kr_tape *tape, kr_tensor *const *in, const op_options *o, kr_tensor **out)
{
    (void)o;
    out[0] = kr_gate(tape, in[0], in[1]);
}

static void run_softplus(kr_tape *tape, kr_tensor *const *in, const op_options *o, kr_tensor **out)
{
    (void)o;
    out[0] = kr_softplus(tape, in[1] ? kr_add(tape, in[0], in[1]) : in[0]);
}

static void run_linear(kr_tape *tape, kr_tensor *const *in, const op_options *o, kr_tensor **out)
{
    (void)o;
    out[0] = kr_linear(tape, in[0], in[1], in[2]);
}

static void run_trapezoid(kr_tape *tape, kr_tensor *const *in, const op_options *o, kr_tensor **out)
{
    const kr_trapezoid_out result = kr_trapezoid(tape, in[0], in[3], in[1], in[2], &o->trapezoid);
    out[0] = result.dt_bsh;
    out[1] = result.da_bsh;
    out[2] = result.gamma_bsh;
    out[3] = result.carry_bsh;
    out[4] = result.beta_bsh;
}

static void run_trapezoid_scale(kr_tape *tape, kr_tensor *const *in, const op_options *o, kr_tensor **out)
{
    (void)o;
    out[0] = kr_trapezoid_scale(tape, in[0], in[1], in[2]);
}

static void run_qk_norm(kr_tape *tape, kr_tensor *const *in, const op_options *o, kr_tensor **out)
{
    out[0] = kr_qk_norm(tape, in[0], in[1], in[2], o->n_heads, o->norm.eps);
}

static void run_angles(kr_tape *tape, kr_tensor *const *in, const op_options *o, kr_tensor **out)
{
    const kr_rotation_out result = kr_rotation_angles(tape, in[0], in[1], in[2], o->range, in[3]);
    out[0] = result.angle_bsha;
    out[1] = result.final_bha;
}

static void run_rotate(kr_tape *tape, kr_tensor *const *in, const op_options *o, kr_tensor **out)
{
    out[0] = kr_rotate(tape, in[0], in[1], o->pairing);
}

static void run_increments(kr_tape *tape, kr_tensor *const *in, const op_options *o, kr_tensor **out)
{
    out[0] = kr_quaternion_increments(tape, in[0], in[1], o->range);
}

static void run_cumprod(kr_tape *tape, kr_tensor *const *in, const op_options *o, kr_tensor **out)
{
    (void)o;
    const kr_quaternion_out result = kr_quaternion_cumprod(tape, in[0], in[1], in[2]);
    out[0] = result.cum_bshj4;
    out[1] = result.final_bhj4;
}

static void run_quaternion_rotate(kr_tape *tape, kr_tensor *const *in, const op_options *o, kr_tensor **out)
{
    (void)o;
    out[0] = kr_quaternion_rotate(tape, in[0], in[1]);
}

/* Inputs in the order of the functions of krait.ssd. */
static const op_row ops[] = {
    { "ssd", 10, 5, 2, run_ssd },
    { "ssd3_double", 9, 4, 2, run_ssd_double },
    { "ssd3_single", 14, 6, 2, run_ssd_single },
    { "selective_scan", 10, 5, 2, run_scan },
    { "causal_conv", 5, 2, 2, run_conv },
    { "rms_norm", 2, 1, 1, run_rms_norm },
    { "layer_norm", 3, 1, 1, run_layer_norm },
    { "gated_norm", 3, 2, 1, run_gated_norm },
    { "gate", 2, 2, 1, run_gate },
    { "softplus", 2, 1, 1, run_softplus },
    { "linear", 3, 2, 1, run_linear },
    { "trapezoid", 4, 3, 5, run_trapezoid },
    { "trapezoid_scale", 3, 2, 1, run_trapezoid_scale },
    { "qk_norm", 3, 1, 1, run_qk_norm },
    { "rotation_angles", 4, 2, 2, run_angles },
    { "rotate", 2, 2, 1, run_rotate },
    { "quaternion_increments", 2, 2, 1, run_increments },
    { "quaternion_cumprod", 3, 1, 2, run_cumprod },
    { "quaternion_rotate", 2, 2, 1, run_quaternion_rotate },
};

static const op_row *find_op(PyObject *name)
{
    if (PyUnicode_Check(name))
        for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
            if (PyUnicode_CompareWithASCIIString(name, ops[i].name) == 0) return &ops[i];
    PyErr_Format(PyExc_ValueError, "there is no op %R", name);
    return NULL;
}

static bool read_inputs(krpy_module *module, const op_row *row, PyObject *tape, PyObject *inputs, kr_tensor **in)
{
    if (!PyTuple_Check(inputs) || PyTuple_Size(inputs) != row->n_in) {
        PyErr_Format(PyExc_TypeError, "%s: inputs must be a tuple of %d", row->name, row->n_in);
        return false;
    }
    for (int i = 0; i < row->n_in; i++) {
        if (!krpy_get_tensor(module, row->name, PyTuple_GetItem(inputs, i), tape, &in[i])) return false;
        if (in[i] || i >= row->n_required) continue;
        PyErr_Format(PyExc_TypeError, "%s: input %d is missing", row->name, i);
        return false;
    }
    return true;
}

static const char *const algorithms[] = { "minimal", "serial", "serial_recalculated", NULL };
static const char *const activations[] = { "heavy_tail", "softplus", NULL };

static bool read_options(PyObject *const *values, op_options *o)
{
    int algorithm = KR_SSD_SERIAL_RECALCULATED, activation = KR_A_ACTIVATION_HEAVY_TAIL;
    bool split = false;
    if (!krpy_get_word("algorithm", values[3], algorithms, &algorithm) ||
        !krpy_get_int("chunk_len", values[4], &o->path.chunk_len) || !krpy_get_double("eps", values[5], &o->norm.eps) ||
        !krpy_get_int("groups", values[6], &o->norm.groups) ||
        !krpy_get_bool("norm_before_gate", values[7], &o->norm.norm_before_gate) ||
        !krpy_get_bool("silu", values[8], &o->silu) || !krpy_get_int("heads", values[9], &o->n_heads) ||
        !krpy_get_double("scale", values[10], &o->range) || !krpy_get_bool("split_pairs", values[11], &split) ||
        !krpy_get_word("a_activation", values[12], activations, &activation) ||
        !krpy_get_double("a_floor", values[13], &o->trapezoid.a_floor) ||
        !krpy_get_double("dt_min", values[14], &o->trapezoid.dt_min) ||
        !krpy_get_double("dt_max", values[15], &o->trapezoid.dt_max))
        return false;
    o->path.algorithm = (kr_ssd_algorithm)algorithm;
    o->trapezoid.a_activation = (kr_a_activation)activation;
    o->pairing = split ? KR_PAIRING_SPLIT : KR_PAIRING_ADJACENT;
    return true;
}

/* Do two tensors share memory? Strides are not negative here, or the answer is yes. */
static bool overlap(const kr_tensor *a, const kr_tensor *b)
{
    uintptr_t first[2], end[2];
    const kr_tensor *const both[] = { a, b };
    for (int k = 0; k < 2; k++) {
        const kr_shape shape = kr_tensor_shape(both[k]);
        const kr_tensor_info info = kr_tensor_info_of(both[k]);
        int64_t span = 1;
        for (int i = 0; i < shape.rank; i++) {
            if (info.strides[i] < 0) return true;
            span += (shape.dims[i] - 1) * info.strides[i];
        }
        first[k] = (uintptr_t)kr_tensor_data(both[k]);
        end[k] = first[k] + (uintptr_t)span * kr_dtype_bytes(kr_tensor_dtype(both[k]));
    }
    return first[0] < end[1] && first[1] < end[0];
}

/* May Python write a result? Not if a backward pass reads it, or if it is a view of an operand. */
static bool is_writable(const krpy_tape *tape, const op_row *row, kr_tensor *const *in, const kr_tensor *out)
{
    for (int i = 0; i < row->n_in; i++)
        if (in[i] && out && overlap(in[i], out)) return false;
    return !tape->is_grad;
}

PyObject *krpy_op(PyObject *module, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    static const char *const names[] = { "tape",   "name",        "inputs",           "algorithm", "chunk_len",
                                         "eps",    "groups",      "norm_before_gate", "silu",      "heads",
                                         "scale",  "split_pairs", "a_activation",     "a_floor",   "dt_min",
                                         "dt_max", NULL };
    krpy_module *state = PyModule_GetState(module);
    PyObject *values[16];
    op_options o = { .range = 1 };
    kr_norm_options_init(&o.norm);
    kr_trapezoid_options_init(&o.trapezoid);
    kr_tensor *in[MOST_INPUTS] = { 0 }, *out[MOST_RESULTS] = { 0 };
    if (!krpy_args("op", names, 3, 3, args, n_args, kwnames, values)) return NULL;
    krpy_tape *tape = krpy_tape_of(state, values[0]);
    const op_row *row = tape ? find_op(values[1]) : NULL;
    if (!row || !read_inputs(state, row, values[0], values[2], in) || !read_options(values, &o)) return NULL;
    krpy_context *c = tape->context;
    krpy_enter(c);
    KRPY_COMPUTE(c, row->run(tape->tape, in, &o, out));
    if (!krpy_leave(c)) return NULL;
    PyObject *result = PyTuple_New(row->n_out);
    for (int i = 0; result && i < row->n_out; i++) {
        const bool is_readonly = !is_writable(tape, row, in, out[i]);
        PyObject *array = krpy_array_of_tensor(state, c, values[0], out[i], is_readonly, NULL);
        if (!array || PyTuple_SetItem(result, i, array) < 0) Py_CLEAR(result);
    }
    return result;
}
