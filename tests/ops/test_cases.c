/* test_cases.c - the table of cases, how they are run, and the check that no op of the headers is missing from it. */
#include "tests/ops/cases.h"

#include <ctype.h>

/* ---- what the bodies of cases.def call ---- */

/* Ones and zeros in a fixed, irregular order. */
static kr_tensor *mask(kr_tape *t, kr_dtype dtype, kr_shape shape)
{
    int64_t data[64];
    for (int64_t i = 0; i < 64; i++) data[i] = (i * i + 3 * i) % 7 < 3 ? 1 + i : 0;
    return kr_cast(t, kr_from_data(t, KR_DTYPE_I64, shape, data), dtype);
}

/* Numbers below `limit` in a fixed order, some of them several times. */
static kr_tensor *ids(kr_tape *t, kr_dtype dtype, kr_shape shape, int64_t limit)
{
    int64_t data[64];
    for (int64_t i = 0; i < 64; i++) data[i] = (i * i + i / 3 + 1) % limit;
    return kr_cast(t, kr_from_data(t, KR_DTYPE_I64, shape, data), dtype);
}

static void middle_of_split(kr_tape *t, kr_tensor *x, kr_tensor **y)
{
    kr_tensor *parts[3];
    kr_split(t, x, 0, 3, (const int64_t[]){ 2, 4, 3 }, parts);
    y[0] = parts[1];
}

/* x is used after the split, and the first part not at all: the parts' gradients are added to one that is there. */
static void split_and_whole(kr_tape *t, kr_tensor *x, kr_tensor **y)
{
    kr_tensor *parts[3];
    kr_split(t, x, 1, 3, (const int64_t[]){ 2, 1, 2 }, parts);
    y[0] = kr_mul(t, parts[1], parts[1]);
    y[1] = parts[2];
    y[2] = kr_sin(t, x);
}

/* Both operands of the gate are parts of a row, and so is what its output is multiplied by. */
static void gated_parts(kr_tape *t, kr_tensor *x, kr_tensor **y)
{
    kr_tensor *parts[3];
    kr_split(t, x, -1, 3, (const int64_t[]){ 8, 8, 1 }, parts);
    y[0] = kr_mul(t, kr_gate(t, parts[1], parts[0]), parts[2]);
}

enum { NORM_GROUPS = 15, NORM_GAIN = 16, NORM_GATED = 32, NORM_FIRST = 64 };

static kr_tensor *normed(kr_tape *t, int flags, kr_tensor *x, kr_tensor *z, kr_tensor *gain)
{
    kr_norm_options o;
    kr_norm_options_init(&o);
    o.groups = flags & NORM_GROUPS;
    o.eps = 0.25; /* large: near 0 a small one bends the function within a step of the difference quotient */
    o.norm_before_gate = flags & NORM_FIRST;
    if (!(flags & NORM_GAIN)) gain = NULL;
    return flags & NORM_GATED ? kr_gated_norm(t, x, z, gain, &o) : kr_rms_norm(t, x, gain, &o);
}

/* flags as above: the gain's bit is for gain and bias. */
static kr_tensor *layer_normed(kr_tape *t, int flags, kr_tensor *x, kr_tensor *gain, kr_tensor *bias)
{
    kr_norm_options o;
    kr_norm_options_init(&o);
    o.groups = flags & NORM_GROUPS;
    o.eps = 0.25;
    return flags & NORM_GAIN ? kr_layer_norm(t, x, gain, bias, &o) : kr_layer_norm(t, x, NULL, NULL, &o);
}

enum {
    CONV_BIAS = 1,
    CONV_WINDOW = 2,
    CONV_SILU = 4,
    CONV_Y = 8,
    CONV_WINDOW_OUT = 16,
    CONV_PART = 32,
    CONV_PACKED = 64
};

/* Where sequences begin in two rows of seven tokens: two of 3 + 4, then four of 1 + 1 + 3 + 2. */
static kr_tensor *conv_starts(kr_tape *t)
{
    return kr_from_data(t, KR_DTYPE_I64, KR_SHAPE(2, 7),
                        (const int64_t[]){ 0, 0, 0, 1, 0, 0, 0, 1, 5, 1, 0, 0, -1, 0 });
}

static void conv(kr_tape *t, int flags, kr_tensor *const *x, kr_tensor **y)
{
    kr_tensor *in = flags & CONV_PART ? kr_slice(t, x[0], -1, 1, -2) : x[0];
    const kr_conv_out out =
        kr_causal_conv(t, in, x[1], flags & CONV_BIAS ? x[2] : NULL, flags & CONV_WINDOW ? x[3] : NULL,
                       flags & CONV_PACKED ? conv_starts(t) : NULL, flags & CONV_SILU);
    int n = 0;
    if (flags & CONV_Y) y[n++] = out.y_bsv;
    if (flags & CONV_WINDOW_OUT) y[n++] = out.window_bvk;
}

enum {
    LABELS_I32 = 1,
    LABELS_SUM = 2,
    LABELS_IGNORED = 4,
    LABELS_MASKED = 8,
    LABELS_NONE = 16,
    LABELS_SMOOTH = 32,
    LABELS_PADDED = 64,
    LABELS_EXCLUDED = 128
};

/* Cross-entropy of logits x [.. w]; of hidden states x [.. d] where there is a weight. Every third label is ignored. */
static kr_tensor *labelled(kr_tape *t, int flags, kr_tensor *x, kr_tensor *weight, kr_tensor *bias)
{
    if (!x) return NULL;
    const int64_t nw = weight ? kr_tensor_dim(weight, 0) : kr_tensor_dim(x, -1);
    kr_cross_entropy_options o;
    kr_cross_entropy_options_init(&o);
    kr_shape rows = kr_tensor_shape(x);
    rows.rank--;
    if (flags & LABELS_SUM) o.reduction = KR_REDUCTION_SUM;
    if (flags & LABELS_SMOOTH) o.label_smoothing = 0.25;
    if (flags & (LABELS_PADDED | LABELS_EXCLUDED)) o.n_classes = nw - 2;
    o.exclude_padding = flags & LABELS_EXCLUDED;
    if (flags & LABELS_MASKED) o.mask = mask(t, KR_DTYPE_I64, rows);
    int64_t data[64];
    const int64_t limit = o.n_classes ? o.n_classes : nw;
    for (int64_t i = 0; i < 64; i++) {
        data[i] = (i * i + i / 3 + 1) % limit;
        if (flags & LABELS_NONE || (flags & LABELS_IGNORED && i % 3 == 1)) data[i] = -100;
    }
    kr_tensor *labels =
        kr_cast(t, kr_from_data(t, KR_DTYPE_I64, rows, data), flags & LABELS_I32 ? KR_DTYPE_I32 : KR_DTYPE_I64);
    return weight ? kr_head_cross_entropy(t, x, weight, bias, labels, &o) : kr_cross_entropy(t, x, labels, &o);
}

static kr_tensor *dropped(kr_tape *t, kr_tensor *x, double p, uint64_t stream, int64_t first)
{
    kr_dropout_options o;
    kr_dropout_options_init(&o);
    o.stream = stream;
    o.first = first;
    return kr_dropout(t, x, p, &o);
}

enum { TARGETS_SUM = 1, TARGETS_MASKED = 2, TARGETS_ROWS = 4, TARGETS_LOGITS = 8, TARGETS_PROBABILITIES = 16 };

typedef kr_tensor *target_loss(kr_tape *, kr_tensor *, kr_tensor *, const kr_loss_options *);

static kr_tensor *targeted(kr_tape *t, target_loss *op, int flags, kr_tensor *x, kr_tensor *target)
{
    if (!x) return NULL;
    kr_loss_options o;
    kr_loss_options_init(&o);
    kr_shape shape = kr_tensor_shape(x);
    if (flags & TARGETS_ROWS) shape.rank--;
    if (flags & TARGETS_SUM) o.reduction = KR_REDUCTION_SUM;
    if (flags & TARGETS_MASKED) o.mask = mask(t, KR_DTYPE_I32, shape);
    o.has_target_logits = flags & TARGETS_LOGITS;
    o.huber_delta = 0.83; /* inputs are multiples of fractions: none is at the end of the parabola */
    o.quantile = 0.8;
    o.has_probabilities = flags & TARGETS_PROBABILITIES;
    /* halves are widened first: each probability rounded to one would move the sum by as much as the test allows */
    const kr_dtype dtype = kr_tensor_dtype(x) == KR_DTYPE_F64 ? KR_DTYPE_F64 : KR_DTYPE_F32;
    if (flags & TARGETS_PROBABILITIES) o.eps = 1e-3, x = kr_affine(t, kr_cast(t, x, dtype), 0.2, 0.5);
    return op(t, x, target, &o);
}

#define KR_CASE(id, op, inputs, flags, ...)                                                                            \
    static void build_##id(kr_tape *t, int arg, kr_tensor *const *x, kr_tensor **y)                                    \
    {                                                                                                                  \
        (void)arg;                                                                                                     \
        __VA_ARGS__;                                                                                                   \
    }
#include "tests/ops/cases.def"
#undef KR_CASE

const kr_case kr_cases[] = {
#define KR_CASE(id, op, inputs, flags, ...) { #id, #op, inputs, (int)(flags), build_##id },
#include "tests/ops/cases.def"
#undef KR_CASE
};
const int kr_ncases = sizeof kr_cases / sizeof *kr_cases;

/* ---- inputs ---- */

static const char *read_input(const char *text, case_input *in)
{
    *in = (case_input){ .low = -2, .high = 2, .count = 1 };
    while (*text == ' ') text++;
    if (*text == '+') in->low = 0.5, in->high = 2.5, text++;
    else if (*text == 'w') in->low = -9, in->high = 9, text++;
    else if (*text == 't') in->low = 15, in->high = 25, text++;
    while (*text && *text != '|') {
        if (!isdigit((unsigned char)*text)) {
            text++;
            continue;
        }
        char *end;
        in->shape.dims[in->shape.rank] = strtoll(text, &end, 10);
        in->count *= in->shape.dims[in->shape.rank++];
        text = end;
    }
    return *text == '|' ? text + 1 : NULL;
}

int case_inputs_make(const kr_case *c, case_input *in)
{
    int count = 0;
    int64_t total = 0, place = 0;
    kr_test_restart(c->name);
    for (const char *text = c->inputs; text; total += in[count++].count) text = read_input(text, &in[count]);
    int64_t *order = malloc((size_t)total * sizeof *order);
    if (!order) exit(2);
    for (int64_t i = 0; i < total; i++) order[i] = i;
    for (int64_t i = total - 1; i > 0; i--) {
        const int64_t other = kr_test_below(i + 1), kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    for (int n = 0; n < count; n++) {
        in[n].values = malloc((size_t)in[n].count * sizeof(double));
        if (!in[n].values) exit(2);
        for (int64_t i = 0; i < in[n].count; i++)
            in[n].values[i] = in[n].low + (in[n].high - in[n].low) * ((double)order[place++] + 0.5) / (double)total;
    }
    free(order);
    return count;
}

void case_inputs_round(kr_ctx *ctx, kr_dtype dtype, int count, case_input *in)
{
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    for (int n = 0; n < count; n++)
        kr_tensor_read(kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, in[n].shape, in[n].values), dtype), KR_DTYPE_F64,
                       in[n].values, in[n].count);
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
}

void case_inputs_free(int count, case_input *in)
{
    for (int n = 0; n < count; n++) free(in[n].values);
}

/* ---- running ---- */

double case_seed(int out, int64_t i)
{
    const int64_t turn = (i * 7 + out * 5 + i * i / 3) % 31;
    return (double)(turn - 15) / 16;
}

void case_leaves(kr_tape *tape, kr_dtype dtype, int n_in, const case_input *in, kr_tensor **x)
{
    for (int n = 0; n < n_in; n++)
        x[n] = kr_input(tape, kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, in[n].shape, in[n].values), dtype));
}

int case_build(const kr_case *c, kr_tape *tape, kr_tensor *const *x, kr_tensor **y)
{
    for (int n = 0; n < CASE_MAX_OUT; n++) y[n] = NULL;
    c->build(tape, c->arg, x, y);
    int n_out = 0;
    while (n_out < CASE_MAX_OUT && y[n_out]) n_out++;
    return n_out;
}

void case_seeds(kr_tape *tape, int n_out, kr_tensor *const *y, kr_tensor **g_y)
{
    for (int n = 0; n < n_out; n++) {
        double values[4096];
        const int64_t count = kr_tensor_count(y[n]);
        for (int64_t i = 0; i < count && i < 4096; i++) values[i] = case_seed(n, i);
        g_y[n] = kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, kr_tensor_shape(y[n]), values), kr_tensor_dtype(y[n]));
    }
}

/* A leaf in another layout, and the view of it that shows x. */
static kr_tensor *laid_out(kr_tape *tape, kr_tensor *x, case_layout layout, bool wants)
{
    kr_axes reversed = { kr_tensor_rank(x), { 0 } };
    for (int i = 0; i < reversed.count; i++) reversed.axis[i] = reversed.count - 1 - i;
    if (kr_tensor_rank(x) == 0) layout = LAYOUT_PLAIN;
    kr_tensor *leaf = x;
    if (layout == LAYOUT_REVERSED) leaf = kr_permute(tape, x, reversed);
    else if (layout == LAYOUT_SLICED) leaf = kr_pad(tape, x, -1, 1, 2, 99);
    else if (layout == LAYOUT_FLIPPED) leaf = kr_flip(tape, x, 0);
    if (wants) leaf = kr_input(tape, leaf);
    if (layout == LAYOUT_REVERSED) return kr_retain_grad(kr_permute(tape, leaf, reversed));
    if (layout == LAYOUT_SLICED) return kr_retain_grad(kr_slice(tape, leaf, -1, 1, -2));
    return layout == LAYOUT_FLIPPED ? kr_retain_grad(kr_flip(tape, leaf, 0)) : leaf;
}

static kr_tensor *make_input(kr_ctx *ctx, kr_tape *tape, const case_input *in, case_run run, int n, kr_tensor **param)
{
    const bool wants = run.backward && (run.only < 0 || run.only == n);
    if (run.layout != LAYOUT_PARAMS)
        return laid_out(tape, kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, in->shape, in->values), run.dtype),
                        run.layout, wants);
    if (!*param) {
        *param = kr_param_create(ctx, run.dtype, in->shape);
        kr_param_write(*param, KR_DTYPE_F64, in->values, in->count);
        kr_param_freeze(*param, !wants);
    }
    return *param;
}

static void collect(case_result *r, int n_in, kr_tensor *const *x, const case_input *in, int n_out, kr_tensor *const *y)
{
    *r = (case_result){ .n_in = n_in, .n_out = n_out };
    for (int n = 0; n < n_out; n++) {
        r->y[n] = kr_test_values(y[n]);
        r->y_count[n] = kr_tensor_count(y[n]);
        r->y_shape[n] = kr_tensor_shape(y[n]);
    }
    for (int n = 0; n < n_in; n++) {
        r->g_count[n] = in[n].count;
        r->g_shape[n] = in[n].shape;
        if (kr_grad(x[n])) r->g[n] = kr_test_values(kr_grad(x[n]));
        else r->g[n] = calloc((size_t)in[n].count, sizeof(double));
        CHECK(!kr_grad(x[n]) || kr_tensor_count(kr_grad(x[n])) == in[n].count,
              "the gradient of input %d has %lld elements", n, (long long)kr_tensor_count(kr_grad(x[n])));
    }
}

bool case_execute(kr_ctx *ctx, const kr_case *c, int n_in, const case_input *in, case_run run, case_result *result)
{
    *result = (case_result){ .n_in = 0 };
    kr_tensor *params[CASE_MAX_IN] = { NULL }, *x[CASE_MAX_IN], *y[CASE_MAX_OUT], *g_y[CASE_MAX_OUT];
    const int times = run.layout == LAYOUT_PARAMS && run.backward ? 2 : 1;
    for (int time = 0; time < times; time++) {
        kr_tape *tape = kr_tape_create(ctx, run.backward ? KR_TAPE_GRAD : KR_TAPE_NO_GRAD);
        for (int n = 0; n < n_in; n++) x[n] = make_input(ctx, tape, &in[n], run, n, &params[n]);
        const int n_out = case_build(c, tape, x, y);
        /* outputs that no wanted input reaches have nothing to go back to */
        bool reaches = false;
        for (int n = 0; n < n_out; n++) reaches = reaches || kr_requires_grad(y[n]);
        if (run.backward && reaches && !kr_ctx_failed(ctx)) {
            case_seeds(tape, n_out, y, g_y);
            kr_backward_from(tape, n_out, y, g_y);
        }
        const bool ok = CHECK(n_out > 0 && !kr_ctx_failed(ctx), "%s: %s", c->name, kr_ctx_message(ctx));
        if (ok && time == times - 1) collect(result, n_in, x, in, n_out, y);
        kr_tape_destroy(tape);
        if (!ok) break;
    }
    for (int n = 0; n < n_in; n++) kr_param_destroy(params[n]);
    if (result->n_in == n_in) return true;
    kr_ctx_clear(ctx);
    return false;
}

void case_result_free(case_result *r)
{
    for (int n = 0; n < r->n_out; n++) free(r->y[n]);
    for (int n = 0; n < r->n_in; n++) free(r->g[n]);
}

int case_isas(const char *names[8])
{
    static char text[128];
    kr_isa_choices(text, sizeof text);
    int count = 0;
    for (char *at = strtok(text, ", "); at && count < 8; at = strtok(NULL, ", ")) names[count++] = at;
    if (kr_test_chooses(NULL))
        names[0] = names[count - 1], count = 1; /* a GPU has kernels of its own, whichever is chosen */
    return count;
}

/* ---- completeness ---- */

/* Not differentiable, or not an op: nothing to compare with difference quotients. */
static const char *const exempt[] = {
    "kr_unary",
    "kr_binary",
    "kr_compare",
    "kr_reduce",
    "kr_cumulative_sum",
    "kr_softmax_along",
    "kr_target_loss", /* by their inline names */
    "kr_eq",
    "kr_ne",
    "kr_lt",
    "kr_le",
    "kr_gt",
    "kr_ge",
    "kr_argmax",
    "kr_accuracy",
    "kr_gradcheck",
    "kr_seq_start_from_cu_seqlens",
};

static bool is_known(const char *name)
{
    for (int i = 0; i < kr_ncases; i++)
        if (strcmp(kr_cases[i].op, name) == 0) return true;
    for (size_t i = 0; i < sizeof exempt / sizeof *exempt; i++)
        if (strcmp(exempt[i], name) == 0) return true;
    return false;
}

/* Every name that stands before the "(" of a line with KR_API or KR_API_INLINE. Returns how many there are. */
static int check_header(const char *file)
{
    char path[512], line[512];
    snprintf(path, sizeof path, "%s/include/krait/%s", KR_SOURCE_DIR, file);
    FILE *in = fopen(path, "r");
    if (!CHECK(in != NULL, "cannot open %s", path)) return 0;
    int found = 0;
    while (fgets(line, sizeof line, in)) {
        if (strncmp(line, "KR_API ", 7) != 0 && strncmp(line, "KR_API_INLINE ", 14) != 0) continue;
        char *end = strchr(line, '('), *name = end;
        if (!end) continue;
        *end = '\0';
        while (name > line && (isalnum((unsigned char)name[-1]) || name[-1] == '_')) name--;
        CHECK(is_known(name), "%s: %s is in no case of tests/ops/cases.def", file, name);
        found++;
    }
    fclose(in);
    return found;
}

TEST(no_op_is_missing)
{
    const int found = check_header("ops.h");
    CHECK(found >= 55, "only %d functions found in the headers", found);
}
