/* gather.c - elements and rows by index; gradients are added at the same indices.
 *
 *   gather:    y[o, j, i] = x[o, id[o, j, i], i];   g_x[o, id[o, j, i], i] += g_y[o, j, i]
 *   embedding: y[o, :] = table[id[o], :];           g_table[id[o], :] += g_y[o, :]
 *
 * Rows of a 16-bit table are copied without conversion; their gradient is accumulated in f32 and rounded once.
 */
#include "ops/ops_impl.h"

static int64_t id_at(const kr_tensor *id, int64_t i)
{
    return id->dtype == KR_DTYPE_I32 ? ((const int32_t *)(const void *)id->data)[i]
                                     : ((const int64_t *)(const void *)id->data)[i];
}

/* id contiguous, i32 or i64, every one in [0, limit); NULL otherwise. */
static kr_tensor *checked_ids(kr_tape *tape, const char *op, kr_tensor *id, int64_t limit)
{
    if (!kr_require(tape->ctx, id->dtype == KR_DTYPE_I32 || id->dtype == KR_DTYPE_I64, KR_ERR_DTYPE,
                    "%s: id %s is %s, but must be i32 or i64", op, KR_TEXT_OF(id), kr_dtype_name(id->dtype)) ||
        !(id = kr_contiguous(tape, id)) || !kr_integers_ready(tape->ctx))
        return NULL;
    const int64_t count = kr_count_of(id);
    for (int64_t i = 0; i < count; i++)
        if (!kr_require(tape->ctx, id_at(id, i) >= 0 && id_at(id, i) < limit, KR_ERR_ARG,
                        "%s: element %lld of id %s is %lld, but must be from 0 to %lld", op, (long long)i,
                        KR_TEXT_OF(id), (long long)id_at(id, i), (long long)limit - 1))
            return NULL;
    return id;
}

static kr_gather_args gather_args(const kr_tensor *x, const kr_tensor *id, int axis)
{
    const kr_around a = kr_around_axis(x, axis);
    return (kr_gather_args){
        .no = a.no, .nr = a.nr, .ni = a.ni, .nj = id->dims[axis], .id = id->data, .id_dtype = id->dtype
    };
}

static void gather_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    kr_tensor *g = kr_contiguous(tape, kr_back_grad(back, 0));
    bool is_new;
    kr_tensor *g_x = kr_back_into(back, 0, &is_new);
    if (!g || !g_x || (is_new && !kr_assign_value(tape->ctx, g_x, 0))) return;
    kr_gather_args args = gather_args(kr_back_in(back, 0), kr_back_in(back, 1), *(const int *)kr_back_attrs(back));
    args.x = g->data;
    args.y = g_x->data;
    KR_RUN(tape->ctx, gather_bwd[kr_real_of(g->dtype)], &args);
}

static const kr_rule gather_rule = { .name = "gather", .backward = gather_backward, .allow_infinity = true };

kr_tensor *kr_gather(kr_tape *tape, kr_tensor *x, int axis, kr_tensor *id)
{
    kr_dims d;
    kr_dtype result;
    if (!kr_bind(tape, "gather", &d, "x:..", x) || !kr_bind(tape, "gather", &d, "id:..", id) ||
        !KR_REALS(tape, "gather", "x", &result, &x) || !kr_axis(tape, "gather", x, &axis))
        return NULL;
    bool fits = id->rank == x->rank;
    for (int i = 0; fits && i < x->rank; i++) fits = i == axis || id->dims[i] == x->dims[i];
    if (!kr_require(tape->ctx, fits, KR_ERR_SHAPE, "gather: id %s must have the sizes of x %s but on axis %d",
                    KR_TEXT_OF(id), KR_TEXT_OF(x), axis) ||
        !(id = checked_ids(tape, "gather", id, x->dims[axis])) || !(x = kr_contiguous(tape, x)))
        return NULL;
    kr_tensor *y = kr_new(tape, x->dtype, kr_tensor_shape(id));
    if (!y) return NULL;
    kr_gather_args args = gather_args(x, id, axis);
    args.x = x->data;
    args.y = y->data;
    if (!KR_RUN(tape->ctx, gather[kr_real_of(x->dtype)], &args)) return NULL;
    return kr_store_as(tape, kr_recorded(tape, &gather_rule, y, &axis, sizeof axis, KR_LIST(x, id)), result);
}

static kr_embedding_args embedding_args(const kr_tensor *table, const kr_tensor *id)
{
    return (kr_embedding_args){
        .no = kr_count_of(id), .nr = table->dims[0], .ni = table->dims[1], .id = id->data, .id_dtype = id->dtype
    };
}

static bool add_rows(kr_back *back, const kr_tensor *g, kr_tensor *g_table)
{
    kr_embedding_args args = embedding_args(g_table, kr_back_in(back, 1));
    args.x = kr_operand_of(g);
    args.y = kr_operand_of(g_table);
    return KR_RUN(kr_back_tape(back)->ctx, embedding_bwd[kr_real_of(g->dtype)], &args);
}

static void embedding_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    kr_tensor *g = kr_contiguous(tape, kr_back_grad(back, 0));
    if (g && kr_dtype_is_16bit(g->dtype)) {
        const kr_dtype type = g->dtype;
        kr_tensor *sum = kr_zeros(tape, KR_DTYPE_F32, kr_tensor_shape(kr_back_in(back, 0)));
        if (sum && (g = kr_cast(tape, g, KR_DTYPE_F32)) && add_rows(back, g, sum))
            kr_back_accumulate(back, 0, kr_cast(tape, sum, type));
        return;
    }
    bool is_new;
    kr_tensor *g_table = kr_back_into(back, 0, &is_new);
    if (!g || !g_table || (is_new && !kr_assign_value(tape->ctx, g_table, 0))) return;
    add_rows(back, g, g_table);
}

static const kr_rule embedding_rule = { .name = "embedding", .backward = embedding_backward };

/* With `widens` the result of a 16-bit table is f32, and not recorded. */
static kr_tensor *look_up(kr_tape *tape, kr_tensor *table, kr_tensor *id, bool widens)
{
    kr_dims d;
    kr_dtype result;
    if (!kr_bind(tape, "embedding", &d, "id:..", id) || !kr_bind(tape, "embedding", &d, "table:wd", table) ||
        !KR_REALS_KEPT(tape, "embedding", "table", &result, KR_KEEPS(tape, embedding_x, table), &table) ||
        !(table = kr_contiguous(tape, table)) || !(id = checked_ids(tape, "embedding", id, d.w)))
        return NULL;
    kr_shape shape = kr_tensor_shape(id);
    if (!kr_require(tape->ctx, shape.rank < KR_MAX_RANK, KR_ERR_SHAPE,
                    "embedding: id %s has rank %d, and the result one more than %d", KR_TEXT_OF(id), shape.rank,
                    KR_MAX_RANK))
        return NULL;
    shape.dims[shape.rank++] = d.d;
    kr_tensor *y = kr_new(tape, widens ? KR_DTYPE_F32 : table->dtype, shape);
    if (!y) return NULL;
    kr_embedding_args args = embedding_args(table, id);
    args.x = kr_operand_of(table);
    args.y = kr_operand_of(y);
    if (!KR_RUN(tape->ctx, embedding[table->dtype == KR_DTYPE_F64 ? KR_REAL_F64 : KR_REAL_F32], &args)) return NULL;
    return widens ? y : kr_recorded(tape, &embedding_rule, y, NULL, 0, KR_LIST(table, id));
}

kr_tensor *kr_embedding(kr_tape *tape, kr_tensor *table, kr_tensor *id)
{
    return look_up(tape, table, id, false);
}

kr_tensor *kr_embedding_to_widen(kr_tape *tape, kr_tensor *table, kr_tensor *id)
{
    return look_up(tape, table, id, tape && KR_KEEPS(tape, embedding_x, table) && !tape->recording);
}
