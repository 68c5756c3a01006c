/* state_rows.c - capacity for rows, and copies of single rows. A row is contiguous in every tensor of a caller's state. */
#include "nn/state_rows.h"

#include "tape/tape_impl.h"

/* Rows from `row` on of x as a tensor of its own, with x's memory. */
static kr_tensor rows_of(const kr_tensor *x, int64_t row, int64_t count)
{
    kr_tensor y = *x;
    y.dims[0] = count;
    y.data += kr_dtype_offset(x->dtype, row * x->strides[0]);
    return y;
}

kr_state *kr_state_rows_create(kr_ctx *ctx, const char *op, const kr_state *like, int64_t capacity)
{
    kr_state *state = kr_state_allocate_like(ctx, op, like, capacity);
    for (int64_t s = 0; state && s < state->nslots; s++) {
        const kr_block_kind *kind = kr_slot_kind(like, s);
        for (int i = 0; i < kind->ncache; i++) {
            kr_shape shape = kr_tensor_shape(like->slots[s].tensors[i]);
            shape.dims[0] = capacity;
            kr_tensor *x = kr_state_tensor(ctx, kind->cache_names[i], like->slots[s].tensors[i]->dtype, shape);
            state->slots[s].tensors[i] = x;
            if (x) continue;
            kr_blame(ctx, "%s", op);
            kr_state_destroy(state);
            return NULL;
        }
    }
    if (!state) return NULL;
    state->capacity = capacity;
    kr_state_rows_use(state, 0);
    return state;
}

void kr_state_rows_use(kr_state *state, int64_t batch)
{
    state->batch = batch;
    for (int64_t s = 0; s < state->nslots; s++)
        for (int i = 0; i < kr_slot_kind(state, s)->ncache; i++)
            if (state->slots[s].tensors[i]) state->slots[s].tensors[i]->dims[0] = batch;
}

bool kr_state_row_copy_to(kr_state *to, int64_t row, int64_t count, const kr_state *from, int64_t from_row)
{
    if (!kr_state_is_usable("state.row_copy", to) || !kr_state_is_usable("state.row_copy", from)) return false;
    for (int64_t s = 0; s < to->nslots; s++)
        for (int i = 0; i < kr_slot_kind(to, s)->ncache; i++) {
            kr_tensor *x = to->slots[s].tensors[i];
            kr_tensor a = rows_of(x, row, count), b = rows_of(from->slots[s].tensors[i], from_row, count);
            b.strides[0] = 0;
            kr_wrote(x);
            if (!kr_assign(to->ctx, &a, &b)) return false;
        }
    return true;
}

kr_state *kr_state_row_view(kr_tape *tape, const kr_state *state, int64_t row)
{
    if (!kr_state_usable(tape, "state.row_view", state)) return NULL;
    kr_state *view = kr_state_new_like(tape, state, 1);
    for (int64_t s = 0; view && s < state->nslots; s++) {
        for (int i = 0; i < kr_slot_kind(state, s)->ncache; i++) {
            kr_tensor *x = state->slots[s].tensors[i];
            if (!x) continue;
            kr_shape shape = kr_tensor_shape(x);
            shape.dims[0] = 1;
            view->slots[s].tensors[i] = kr_view_of(tape, x, &shape, x->strides, row * x->strides[0]);
            if (!view->slots[s].tensors[i]) return NULL;
        }
    }
    return view;
}

kr_state *kr_network_initial_row(kr_tape *tape, const kr_network *net)
{
    const kr_state_layout layout = kr_network_layout(net);
    kr_state *state = kr_state_new(tape, &layout, 1);
    for (int64_t s = 0; state && s < state->nslots; s++) {
        const kr_block *block = kr_network_slot(net, s);
        state->slots[s] = block->kind->initial_cache(tape, block, 1);
    }
    return state && !kr_ctx_failed(tape->ctx) ? state : NULL;
}
