/* raw_case.c - operands, views and results of a raw op by the names of its signature. */
#include "tests/raw/raw_case.h"

/* ---- signatures ---- */

signature signature_of(kr_raw_op op)
{
    signature s;
    memset(&s, 0, sizeof s);
    const char *at = strchr(kr_raw_signature(op), ' ') + 1;
    while (*at) {
        const size_t length = strcspn(at, " ");
        if (length == 2 && memcmp(at, "->", 2) == 0) s.n_operands = s.n_views;
        else {
            term *x = &s.terms[s.n_views++];
            const char *axes = strchr(at, ':') + 1;
            memcpy(x->name, at, (size_t)(axes - 1 - at));
            x->optional = at[length - 1] == '?';
            x->has_lead = axes[0] == '.';
            axes += 2 * x->has_lead;
            memcpy(x->axes, axes, length - (size_t)(axes - at) - x->optional);
        }
        at += length + (at[length] == ' ');
    }
    return s;
}

/* ---- named tensors ---- */

void put(named *set, const char *prefix, const char *name, kr_tensor *x)
{
    if (!x) return;
    snprintf(set->names[set->count], sizeof set->names[0], "%s%s", prefix, name);
    set->x[set->count++] = x;
}

kr_tensor *get(const named *set, const char *prefix, const char *name)
{
    const size_t length = strlen(prefix);
    for (int i = 0; i < set->count; i++)
        if (strncmp(set->names[i], prefix, length) == 0 && strcmp(set->names[i] + length, name) == 0) return set->x[i];
    return NULL;
}

/* ---- operands ---- */

kr_shape shape_of(const raw_case *c, const term *x)
{
    kr_shape shape = { 0, { 0 } };
    if (x->has_lead) shape = KR_SHAPE(c->sizes['s' - 'a'], c->sizes['b' - 'a']);
    if (x->has_lead && c->op == KR_RAW_QUATERNION_EXP) shape.dims[shape.rank++] = c->sizes['h' - 'a'];
    for (const char *axis = x->axes; *axis; axis++)
        shape.dims[shape.rank++] = *axis >= '0' && *axis <= '9' ? *axis - '0' : c->sizes[*axis - 'a'];
    return shape;
}

static void range_of(const char *name, double *low, double *high)
{
    static const struct {
        const char *name;
        double low, high;
    } ranges[] = {
        { "da", -0.5, 0 }, { "a", -2, -0.1 },    { "dt", 0.01, 0.5 },     { "w", 0, 1 },
        { "carry", 0, 1 }, { "boundary", 0, 1 }, { "diag_weight", 0, 1 },
    };
    *low = -1, *high = 1;
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (strcmp(ranges[i].name, name) == 0) *low = ranges[i].low, *high = ranges[i].high;
}

kr_tensor *noise(const raw_case *c, const char *name, kr_shape shape)
{
    double low, high, *values;
    int64_t count = 1;
    for (int i = 0; i < shape.rank; i++) count *= shape.dims[i];
    range_of(name, &low, &high);
    values = malloc((size_t)(count ? count : 1) * sizeof *values);
    if (!values) exit(2);
    for (int64_t i = 0; i < count; i++) values[i] = kr_test_uniform(low, high);
    kr_tensor *x = kr_cast(c->t, kr_from_data(c->t, KR_DTYPE_F64, shape, values), c->dtype);
    free(values);
    return x;
}

void make_operands(raw_case *c)
{
    const signature s = signature_of(c->op);
    for (int n = 0; n < s.n_operands; n++) {
        const term *x = &s.terms[n];
        if (x->optional && !(c->with >> n & 1)) continue;
        put(&c->values, "", x->name, kr_input(c->t, noise(c, x->name, shape_of(c, x))));
    }
}

kr_tensor *unwritten(const raw_case *c, kr_shape shape)
{
    return kr_full(c->t, c->dtype, shape, (double)NAN);
}

void pack(raw_case *c, int64_t nb, int64_t ns)
{
    kr_sequence *list = kr_tape_list(c->t, (size_t)(3 * nb) * sizeof *list);
    int32_t *marker = calloc((size_t)(nb * ns), sizeof *marker);
    if (!list || !marker) exit(2);
    int64_t count = 0;
    for (int64_t b = 0; b < nb; b++) {
        const int64_t cut = 1 + (3 * b + ns / 3) % (ns - 1);
        list[count++] = (kr_sequence){ b, 0, cut };
        list[count++] = (kr_sequence){ b, cut, ns };
        marker[b * ns + cut] = 1;
    }
    c->seq_start = kr_from_data(c->t, KR_DTYPE_I32, KR_SHAPE(nb, ns), marker);
    c->sequences = (kr_sequences){ count, list };
    c->sizes['q' - 'a'] = count;
    c->options.n_sequences = count;
    c->options.sequences = &list->row;
    free(marker);
}

/* ---- views ---- */

void views_of(const signature *s, kr_tensor *const *tensors, kr_view *views)
{
    for (int n = 0; n < s->n_views; n++) {
        kr_view *v = &views[n];
        *v = (kr_view){ .data = NULL };
        if (!tensors[n]) continue;
        *v = kr_view_contiguous(kr_tensor_dtype(tensors[n]), kr_tensor_shape(tensors[n]), kr_tensor_data(tensors[n]));
        for (int i = 0; i < v->rank; i++) v->strides[i] = kr_tensor_stride(tensors[n], i);
    }
}

/* The first axis of a row's elements; -1: the operand is read row-major. */
static int row_axis(const raw_case *c, const char *name, const kr_view *view)
{
    static const struct {
        kr_raw_op op;
        const char *names;
        int from; /* 0: the last axis */
    } rows[] = {
        { KR_RAW_SSD, " v b c ", 2 },       { KR_RAW_SSD_ROTARY, " v ", 2 },
        { KR_RAW_SCAN, " x dt b c z ", 2 }, { KR_RAW_CONV, " x ", 2 },
        { KR_RAW_NORM, " x z ", 0 },        { KR_RAW_LAYER_NORM, " x ", 0 },
        { KR_RAW_GATE, " x z g_y ", 0 },    { KR_RAW_TRAPEZOID, " dt_raw a_raw lambda_raw ", 0 },
        { KR_RAW_ANGLES, " theta ", 0 },
    };
    char word[32];
    snprintf(word, sizeof word, " %s ", name);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].op == c->op && strstr(rows[i].names, word)) return rows[i].from ? rows[i].from : view->rank - 1;
    return -1;
}

void widen(raw_case *c, const char *name, kr_view *view)
{
    const int axis = row_axis(c, name, view);
    int64_t rows = 1, width = 1, pad = 3;
    if (axis < 0 || !view->data) return;
    for (int i = 0; i < view->rank; i++) *(i < axis ? &rows : &width) *= view->dims[i];
    kr_tensor *x = kr_view_of(c->t, get(&c->values, "", name), &KR_SHAPE(rows, width), (int64_t[]){ width, 1 }, 0);
    kr_tensor *wide =
        kr_concat(c->t, 1, 2, (kr_tensor *[]){ x, kr_full(c->t, c->dtype, KR_SHAPE(rows, pad), (double)NAN) });
    wide = kr_contiguous(c->t, wide);
    CHECK_OK(kr_tape_ctx(c->t));
    view->data = kr_tensor_data(wide);
    for (int i = axis - 1, stride = (int)(width + pad); i >= 0; i--) {
        view->strides[i] = stride;
        stride *= (int)view->dims[i];
    }
}

/* ---- runs ---- */

kr_status run_exactly(kr_tape *t, kr_raw_op op, int count, const kr_view *views, kr_raw_options options)
{
    kr_ctx *ctx = kr_tape_ctx(t);
    const size_t bytes = kr_raw_work(ctx, op, count, views, &options);
    char expected[200];
    if (!CHECK_OK(ctx)) return kr_ctx_status(ctx);
    kr_tensor *work = kr_full(t, KR_DTYPE_F32, KR_SHAPE((int64_t)(bytes / sizeof(float)) + 16), (double)NAN);
    options.work = kr_tensor_data(work);
    if (bytes > 0) {
        options.work_bytes = bytes - 1;
        CHECK(kr_raw_run(ctx, op, count, views, &options) == KR_ERR_ARG, "one byte less than %zu suffices", bytes);
        snprintf(expected, sizeof expected, "work has %zu bytes, but the call needs %zu; kr_raw_work tells how many",
                 bytes - 1, bytes);
        CHECK_ERROR_HAS(ctx, KR_ERR_ARG, expected);
    }
    options.work_bytes = bytes;
    return kr_raw_run(ctx, op, count, views, &options);
}
