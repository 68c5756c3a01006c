/* linear.c - the linear layer.
 *
 *   x [.. i], weight [o i], bias [o]:   y = x weight^T + bias
 *   g_x = g weight,  g_weight = g^T x,  g_bias = column sums of g; the products accumulate directly into the gradients
 *
 * If products cast their operands to bf16, x and g are cast once for all readers; the bf16 x is saved.
 *
 * A 16-bit weight is read directly in both passes: no f32 copy of it is made. Its gradient is accumulated in f32 and
 * rounded once.
 */
#include "ops/ops_impl.h"

enum { X, WEIGHT, BIAS };

static void accumulate(kr_back *back, int i, kr_tensor *a, kr_tensor *b)
{
    bool is_new = true;
    kr_tensor *g = a && b ? KR_BACK_SLAB(back, i, matmul_c) : NULL;
    if (!g && a && b) g = kr_back_into(back, i, &is_new);
    if (g) kr_run_matmul(kr_back_tape(back)->ctx, g, a, b, NULL, !is_new);
}

/* a b in f32, rounded to the 16-bit type of input i. */
static void accumulate_16bit(kr_back *back, int i, kr_tensor *a, kr_tensor *b)
{
    kr_tape *tape = kr_back_tape(back);
    const kr_tensor *x = kr_back_in(back, i);
    kr_tensor *g = a && b ? kr_new(tape, KR_DTYPE_F32, kr_tensor_shape(x)) : NULL;
    if (g && kr_run_matmul(tape->ctx, g, a, b, NULL, false)) kr_back_accumulate(back, i, kr_cast(tape, g, x->dtype));
}

/* Both products; g already has the products' type. */
static void accumulate_products(kr_back *back, kr_tensor *g)
{
    kr_tape *tape = kr_back_tape(back);
    const bool is_16bit = kr_dtype_is_16bit(kr_back_in(back, WEIGHT)->dtype);
    if (kr_back_wants(back, X)) accumulate(back, X, g, kr_back_in(back, WEIGHT));
    if (kr_back_wants(back, WEIGHT))
        (is_16bit ? accumulate_16bit : accumulate)(back, WEIGHT, kr_transpose(tape, g), kr_back_saved(back, 0));
}

static void linear_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    kr_tensor *g = kr_back_grad(back, 0);
    accumulate_products(back, kr_autocast_operand(tape, g, g->dims[0]));
    if (kr_back_wants(back, BIAS)) kr_back_accumulate(back, BIAS, kr_sum(tape, g, KR_AXES(0), false));
}

static const kr_rule linear_rule = { .name = "linear", .backward = linear_backward };

/* Few rows, nothing to record, and a packed copy of the weight: the case of decoding. */
enum { FEW = 4 };

static bool takes_panels(const kr_tape *tape, const kr_tensor *x_ri, const kr_tensor *weight)
{
    const kr_storage *storage = weight->storage;
    return storage->packed && storage->owner == weight && !tape->recording && x_ri->dims[0] <= FEW &&
           x_ri->strides[1] == 1;
}

static bool run_panels(kr_ctx *ctx, kr_tensor *y_ro, const kr_tensor *x_ri, const kr_tensor *weight,
                       const kr_tensor *bias)
{
    kr_panels_args args = { .nm = x_ri->dims[0],
                            .nn = weight->dims[0],
                            .nk = weight->dims[1],
                            .x = { x_ri->data, x_ri->dtype, x_ri->strides[0] },
                            .w = { weight->storage->packed, weight->dtype, weight->dims[1] },
                            .y = { y_ro->data, y_ro->dtype, y_ro->strides[0] },
                            .bias = kr_tensor_data(bias) };
    return KR_RUN(ctx, panels[kr_real_of(y_ro->dtype)], &args);
}

/* Operands converted to their types, and the product [r o]; one part, from column `from` on, may be a separate bf16
 * tensor. */
typedef struct product {
    kr_tensor *x_ri, *weight, *bias, *operand, *y_ro, *rounded_ro;
    int64_t from, n_autocast; /* columns */
    kr_shape lead;
    kr_dtype result; /* type of y */
} product;

static bool bring_to_types(kr_tape *tape, kr_tensor **x, product *p)
{
    const unsigned kept = KR_KEEPS_ACTIVATION(tape, matmul_a, *x) << X | KR_KEEPS(tape, matmul_b, p->weight) << WEIGHT;
    return KR_REALS_KEPT(tape, "linear", "x weight bias", &p->result, kept, x, &p->weight, &p->bias);
}

/* `count` columns of y from `at` on are x times the weight's rows from `first` on. */
static bool run_rows(kr_tape *tape, const product *p, const kr_tensor *y, int64_t at, int64_t first, int64_t count)
{
    const kr_tensor *w = p->weight;
    kr_tensor *columns = kr_view_of(tape, y, &KR_SHAPE(y->dims[0], count), y->strides, at);
    kr_tensor *rows = kr_view_of(tape, w, &KR_SHAPE(count, w->dims[1]), w->strides, first * w->strides[0]);
    kr_tensor *bias = p->bias ? kr_view_of(tape, p->bias, &KR_SHAPE(count), NULL, first) : NULL;
    kr_tensor *weight_io = rows ? kr_transpose(tape, rows) : NULL;
    return columns && weight_io && (bias || !p->bias) &&
           kr_run_matmul(tape->ctx, columns, p->operand, weight_io, bias, false);
}

/* The bf16 part into its own tensor, and the columns before and after it next to each other. */
static bool multiply_parts(kr_tape *tape, const product *p)
{
    const int64_t end = p->from + p->n_autocast, after = p->weight->dims[0] - end;
    return (p->from == 0 || run_rows(tape, p, p->y_ro, 0, 0, p->from)) &&
           run_rows(tape, p, p->rounded_ro, 0, p->from, p->n_autocast) &&
           (after == 0 || run_rows(tape, p, p->y_ro, p->from, end, after));
}

static bool multiply(kr_tape *tape, kr_tensor *x, product *p)
{
    kr_dims d;
    if (!kr_bind(tape, "linear", &d, "x:..i weight:oi bias:o?", x, p->weight, p->bias) ||
        !bring_to_types(tape, &x, p) || (p->bias && !(p->bias = kr_contiguous(tape, p->bias))))
        return false;
    p->lead = d.lead;
    p->x_ri = kr_reshape(tape, x, KR_SHAPE(d.rows, d.i));
    p->y_ro = kr_new(tape, kr_grad_dtype(x), KR_SHAPE(d.rows, d.o - p->n_autocast));
    if (p->n_autocast) p->rounded_ro = kr_new_activation(tape, KR_DTYPE_F32, true, KR_SHAPE(d.rows, p->n_autocast));
    p->operand = kr_autocast_operand(tape, p->x_ri, d.rows);
    if (!p->y_ro || !p->operand || (p->n_autocast && !p->rounded_ro)) return false;
    if (takes_panels(tape, p->x_ri, p->weight)) return run_panels(tape->ctx, p->y_ro, p->x_ri, p->weight, p->bias);
    return p->rounded_ro ? multiply_parts(tape, p) : run_rows(tape, p, p->y_ro, 0, 0, p->y_ro->dims[1]);
}

static bool record(kr_tape *tape, const kr_rule *rule, product *p, int n_out, kr_tensor **out)
{
    const kr_record_args args = { .rule = rule,
                                  .n_in = 3,
                                  .in = (kr_tensor *[]){ p->x_ri, p->weight, p->bias },
                                  .n_out = n_out,
                                  .out = out,
                                  .n_saved = 1,
                                  .saved = &p->operand };
    return kr_record_node(tape, &args, false);
}

kr_tensor *kr_linear(kr_tape *tape, kr_tensor *x, kr_tensor *weight, kr_tensor *bias)
{
    product p = { .weight = weight, .bias = bias };
    if (!multiply(tape, x, &p) || !record(tape, &linear_rule, &p, 1, &p.y_ro)) return NULL;
    p.lead.dims[p.lead.rank++] = p.y_ro->dims[1];
    return kr_store_as(tape, kr_reshape(tape, p.y_ro, p.lead), p.result);
}

/* ---- in parts ---- */

static int64_t rows_of(const kr_tensor *x)
{
    int64_t rows = 1;
    for (int i = 0; i < x->rank - 1; i++) rows *= x->dims[i];
    return rows;
}

/* Strides of columns whose rows have the stride `line`. */
static void strides_in_rows(const kr_shape *shape, int64_t line, int64_t *strides)
{
    strides[shape->rank - 1] = 1;
    for (int i = shape->rank - 2; i >= 0; i--) {
        strides[i] = line;
        line *= shape->dims[i];
    }
}

/* Copies the gradients of all parts [.. size] into the columns of g [r o], unless they are stored there already; 0 for
 * a part without a gradient. */
static bool gather_parts(kr_back *back, kr_tensor *g_ro)
{
    kr_tape *tape = kr_back_tape(back);
    const int64_t no = g_ro->dims[1];
    for (int64_t i = 0, from = 0; from < no; i++) {
        const kr_tensor *y = kr_back_out(back, (int)i);
        const kr_shape shape = kr_tensor_shape(y);
        kr_tensor *g = kr_back_grad(back, (int)i);
        const bool is_there = g && g->storage == g_ro->storage;
        int64_t strides[KR_MAX_RANK];
        strides_in_rows(&shape, no, strides);
        kr_tensor *part = is_there ? g : kr_view_of(tape, g_ro, &shape, strides, from);
        if (!part) return false;
        if (!is_there && !(g ? kr_assign(tape->ctx, part, g) : kr_assign_value(tape->ctx, part, 0))) return false;
        from += shape.dims[shape.rank - 1];
    }
    return true;
}

static void parts_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    kr_grad_slab *slab = kr_slab_of(kr_back_out(back, 0));
    const kr_shape shape = KR_SHAPE(kr_back_saved(back, 0)->dims[0], kr_back_in(back, WEIGHT)->dims[0]);
    kr_tensor *g = slab && slab->whole ? slab->whole : kr_new(tape, slab ? KR_DTYPE_BF16 : KR_DTYPE_F32, shape);
    if (g && gather_parts(back, g)) {
        accumulate_products(back, kr_autocast_operand(tape, g, g->dims[0]));
        if (kr_back_wants(back, BIAS)) kr_back_accumulate(back, BIAS, kr_sum(tape, g, KR_AXES(0), false));
    }
    kr_slab_release(tape, slab);
}

static const kr_rule parts_rule = { .name = "linear_parts", .backward = parts_backward };

/* Views of y [r o] along its columns, in the shape of x but for the last axis. */
static bool cut(kr_tape *tape, const product *p, int count, const int64_t *sizes, kr_tensor **parts)
{
    const bool has_slab = !(p->bias && p->bias->flags.requires_grad);
    kr_grad_slab *slab = has_slab ? kr_slab_create(tape, p->y_ro->dims[0], p->n_autocast + p->y_ro->dims[1]) : NULL;
    if (kr_ctx_failed(tape->ctx)) return false;
    kr_shape shape = p->lead;
    const int last = shape.rank++;
    for (int64_t i = 0, from = 0; i < count; from += sizes[i++]) {
        const bool is_autocast = p->rounded_ro && from == p->from && sizes[i] == p->n_autocast;
        const int64_t at = is_autocast ? 0 : from < p->from ? from : from - p->n_autocast;
        const kr_tensor *y = is_autocast ? p->rounded_ro : p->y_ro;
        int64_t strides[KR_MAX_RANK];
        shape.dims[last] = sizes[i];
        strides_in_rows(&shape, y->dims[1], strides);
        parts[i] = kr_view_of(tape, y, &shape, strides, at);
        if (!parts[i] || !kr_slab_assign(tape, slab, parts[i], from, y->dims[1])) return false;
    }
    return true;
}

bool kr_linear_parts(kr_tape *tape, kr_tensor *x, kr_tensor *weight, kr_tensor *bias, int count, const int64_t *sizes,
                     int autocast_part, kr_tensor **parts)
{
    for (int i = 0; i < count; i++) parts[i] = NULL;
    const bool is_autocast = x && weight && x->rank > 0 && tape && kr_grad_dtype(x) == KR_DTYPE_F32 &&
                             weight->dtype == KR_DTYPE_F32 && kr_autocasts_product(tape->ctx, KR_DTYPE_F32, rows_of(x));
    if (!is_autocast) return kr_split(tape, kr_linear(tape, x, weight, bias), -1, count, sizes, parts) == KR_OK;
    product p = { .weight = weight, .bias = bias, .n_autocast = autocast_part < 0 ? 0 : sizes[autocast_part] };
    int64_t all = 0;
    for (int i = 0; i < count; all += sizes[i++])
        if (i == autocast_part) p.from = all;
    if (!kr_require(tape->ctx, weight->rank != 2 || all == weight->dims[0], KR_ERR_SHAPE,
                    "linear: the parts have %lld columns, but weight %s", (long long)all, KR_TEXT_OF(weight)) ||
        !multiply(tape, x, &p))
        return false;
    const bool ok = cut(tape, &p, count, sizes, parts) && record(tape, &parts_rule, &p, count, parts);
    for (int i = 0; !ok && i < count; i++) parts[i] = NULL;
    return ok;
}
