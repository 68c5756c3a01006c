/* tape.c - a tape's life and the tensors on it. */
#include "tape/tape_impl.h"

#include "device/device.h"

#include <string.h>

enum { HEADS_BLOCK = 1 << 14, DATA_BLOCK = 1 << 16, HEAP_CHUNK = 1 << 16 };
enum { DEVICE_BLOCK = 1 << 20, SHARED_BLOCK = 1 << 16 }; /* device allocation is slow */
static const size_t most_unreleased = (size_t)16 << 20;  /* bytes of integers that may stay allocated after a scope */

kr_tape *kr_tape_create(kr_ctx *ctx, kr_tape_mode mode)
{
    if (kr_ctx_failed(ctx)) return NULL;
    if (!kr_require(ctx, mode == KR_TAPE_GRAD || mode == KR_TAPE_NO_GRAD, KR_ERR_ARG,
                    "tape: mode %d is neither KR_TAPE_GRAD nor KR_TAPE_NO_GRAD", (int)mode))
        return NULL;
    kr_tape *tape = kr_memory_alloc_zeroed(&ctx->memory, sizeof *tape);
    if (!tape) {
        kr_fail(ctx, KR_ERR_NOMEM, "tape: no memory for a tape");
        return NULL;
    }
    tape->ctx = ctx;
    tape->mode = mode;
    tape->recording = mode == KR_TAPE_GRAD;
    const bool on_device = kr_ctx_on_device(ctx);
    kr_arena_init(&tape->heads, &ctx->memory, HEADS_BLOCK);
    if (on_device) kr_arena_init_device(&tape->data, kr_float_memory(ctx), &ctx->memory, DEVICE_BLOCK);
    else kr_arena_init(&tape->data, &ctx->memory, DATA_BLOCK);
    kr_arena_init(&tape->shared, kr_shared_memory(ctx), SHARED_BLOCK);
    kr_heap_init(&tape->heap, &ctx->memory, HEAP_CHUNK);
    kr_device_heap_init(&tape->device_heap, kr_float_memory(ctx), &ctx->memory, DEVICE_BLOCK);
    return tape;
}

static void drop_nodes(kr_tape *tape)
{
    if (tape->last) tape->ctx->nrecorded--;
    tape->last = NULL;
    tape->nnodes = tape->nfences = 0;
    kr_free_destroyed(tape->ctx);
}

void kr_tape_destroy(kr_tape *tape)
{
    if (!tape) return;
    kr_wait(tape->ctx);
    if (tape->ctx->failed_tape == &tape->failed) tape->ctx->failed_tape = NULL;
    drop_nodes(tape);
    kr_memory_free(&tape->ctx->memory, tape->read, (size_t)tape->read_capacity * sizeof *tape->read);
    kr_arena_deinit(&tape->heads);
    kr_arena_deinit(&tape->data);
    kr_arena_deinit(&tape->shared);
    kr_heap_deinit(&tape->heap);
    kr_device_heap_deinit(&tape->device_heap);
    kr_memory_free(&tape->ctx->memory, tape, sizeof *tape);
}

void kr_tape_reset(kr_tape *tape)
{
    if (!tape) return;
    if (tape->shared.used) kr_wait(tape->ctx);
    kr_arena_reset(&tape->heads);
    kr_arena_reset(&tape->data);
    kr_arena_reset(&tape->shared);
    kr_heap_reset(&tape->heap);
    kr_device_heap_reset(&tape->device_heap);
    tape->list_bytes = 0;
    drop_nodes(tape);
    tape->lists_reads = false;
    tape->depth = 0;
    tape->temporaries = NULL;
    tape->replayed = NULL;
    tape->in_backward = tape->done = tape->saw_grad = false;
    tape->recording = tape->mode == KR_TAPE_GRAD;
    tape->failed = false;
}

kr_ctx *kr_tape_ctx(const kr_tape *tape)
{
    return tape ? tape->ctx : NULL;
}

static size_t used_bytes(const kr_tape *tape)
{
    return tape->data.used + tape->shared.used - tape->list_bytes + tape->heap.used + tape->device_heap.used;
}

kr_tape_stats kr_tape_stats_of(const kr_tape *tape)
{
    if (!tape) return (kr_tape_stats){ 0 };
    return (kr_tape_stats){ .bytes = used_bytes(tape), .peak_bytes = tape->peak, .nodes = tape->nnodes };
}

static void note_peak(kr_tape *tape)
{
    const size_t used = used_bytes(tape);
    if (used > tape->peak) tape->peak = used;
}

bool kr_tape_ready(kr_tape *tape, const char *op)
{
    if (!tape || tape->ctx->status != KR_OK) return false;
    tape->ctx->device->op = tape->ctx->device->last_op = op;
    tape->ctx->failed_tape = &tape->failed;
    return kr_require(tape->ctx, !tape->failed, KR_ERR_STATE,
                      "%s: an earlier call on this tape failed; call kr_tape_reset before using it again", op);
}

/* ---- marks ---- */

kr_tape_mark kr_tape_mark_now(const kr_tape *tape)
{
    return (kr_tape_mark){ kr_arena_mark_now(&tape->heads), kr_arena_mark_now(&tape->data),
                           kr_arena_mark_now(&tape->shared), tape->list_bytes };
}

bool kr_tape_is_full(const kr_tape *tape, const kr_tape_mark *mark)
{
    return tape->shared.used - mark->shared.used > most_unreleased;
}

void kr_tape_release(kr_tape *tape, const kr_tape_mark *mark, bool integers)
{
    kr_arena_release(&tape->heads, mark->heads);
    kr_arena_release(&tape->data, mark->data);
    if (!integers) return;
    kr_wait(tape->ctx);
    kr_arena_release(&tape->shared, mark->shared);
    tape->list_bytes = mark->list_bytes;
}

bool kr_tape_releases(const kr_tape *tape, const kr_tape_mark *mark, bool integers, const kr_tensor *x)
{
    return kr_arena_is_after(&tape->data, mark->data, x->data) ||
           (integers && kr_arena_is_after(&tape->shared, mark->shared, x->data));
}

void *kr_tape_list(kr_tape *tape, size_t bytes)
{
    if (!kr_ctx_on_device(tape->ctx)) return kr_arena_alloc(&tape->heads, bytes);
    const size_t before = tape->shared.used;
    void *list = kr_arena_alloc(&tape->shared, bytes);
    tape->list_bytes += tape->shared.used - before;
    return list;
}

/* ---- tensors ---- */

/* Bytes before the data that follow the header of a temporary. */
enum { TEMPORARY = (sizeof(kr_temporary) + KR_ALIGN - 1) / KR_ALIGN * KR_ALIGN };

/* A zeroed header, and `bytes` of data (SIZE_MAX: none, for a view): behind it, or in the data's arena. */
static kr_header *find_place(kr_tape *tape, size_t bytes, char **data)
{
    const size_t behind = bytes == SIZE_MAX ? 0 : bytes;
    if (tape->in_backward) {
        kr_temporary *x = behind <= SIZE_MAX - TEMPORARY ? kr_heap_alloc(&tape->heap, TEMPORARY + behind) : NULL;
        *data = x && bytes != SIZE_MAX ? (char *)x + TEMPORARY : NULL;
        if (x) memset(x, 0, sizeof *x);
        return x ? &x->header : NULL;
    }
    kr_header *x = kr_arena_alloc(&tape->heads, sizeof *x);
    if (x) memset(x, 0, sizeof *x);
    *data = x && bytes != SIZE_MAX ? kr_arena_alloc(&tape->data, bytes) : NULL;
    return *data || bytes == SIZE_MAX ? x : NULL;
}

/* The same on a device: data never follow the header there. */
static kr_header *find_device_place(kr_tape *tape, kr_dtype dtype, size_t bytes, char **data, kr_device_span **span)
{
    kr_header *x = find_place(tape, SIZE_MAX, data);
    if (!x || bytes == SIZE_MAX) return x;
    if (!kr_dtype_is_float(dtype)) *data = kr_arena_alloc(&tape->shared, bytes);
    else if (!tape->in_backward) *data = kr_arena_alloc(&tape->data, bytes);
    else if ((*span = kr_device_heap_alloc(&tape->device_heap, bytes))) *data = (*span)->data;
    if (*data) return x;
    if (tape->in_backward) kr_heap_free(&tape->heap, x);
    return NULL;
}

/* bytes SIZE_MAX: a view, without its own data. */
static kr_tensor *place(kr_tape *tape, kr_dtype dtype, const kr_shape *shape, size_t bytes)
{
    char *data = NULL;
    kr_device_span *span = NULL;
    kr_header *header = kr_ctx_on_device(tape->ctx) ? find_device_place(tape, dtype, bytes, &data, &span)
                                                    : find_place(tape, bytes, &data);
    if (!header) {
        kr_fail(tape->ctx, KR_ERR_NOMEM, "%s: no memory for %s %s, %zu bytes", tape->ctx->device->op,
                kr_dtype_name(dtype), KR_TEXT_OF_SHAPE(shape), bytes == SIZE_MAX ? 0 : bytes);
        return NULL;
    }
    tape->ctx->device->made = *shape;
    kr_tensor *x = kr_header_init(header);
    x->ctx = tape->ctx;
    x->tape = tape;
    x->data = data;
    if (tape->in_backward) {
        kr_temporary *temporary = kr_temporary_of(x);
        x->flags.in_heap = true;
        temporary->refs = 1;
        temporary->span = span;
        temporary->next = tape->temporaries;
        tape->temporaries = temporary;
    }
    note_peak(tape);
    return x;
}

kr_tensor *kr_new(kr_tape *tape, kr_dtype dtype, kr_shape shape)
{
    if (!tape) return NULL;
    kr_ctx *ctx = tape->ctx;
    const char *op = ctx->device ? ctx->device->op : NULL;
    if (!kr_tape_ready(tape, "new")) return NULL;
    if (op) ctx->device->op = ctx->device->last_op = op; /* which makes it */
    if (!kr_require(ctx, kr_dtype_is_valid(dtype), KR_ERR_DTYPE, "new: %d is not a kr_dtype", (int)dtype)) return NULL;
    const int64_t count = kr_shape_count(&shape);
    if (count < 0) {
        if (shape.rank < 0 || shape.rank > KR_MAX_RANK)
            kr_fail(ctx, KR_ERR_SHAPE, "new: rank %d, but tensors have from 0 to %d axes", shape.rank, KR_MAX_RANK);
        else
            kr_fail(ctx, KR_ERR_SHAPE, "new: shape %s has a negative size or more elements than can be addressed",
                    KR_TEXT_OF_SHAPE(&shape));
        return NULL;
    }
    kr_tensor *x = place(tape, dtype, &shape, kr_dtype_span(dtype, count));
    if (x) kr_tensor_layout(x, dtype, &shape);
    return x;
}

kr_tensor *kr_view_of(kr_tape *tape, const kr_tensor *x, const kr_shape *shape, const int64_t *strides, int64_t offset)
{
    if (!x) return NULL;
    kr_tensor *y = place(tape, x->dtype, shape, SIZE_MAX);
    if (!y) return NULL;
    kr_tensor_layout(y, x->dtype, shape);
    if (strides) memcpy(y->strides, strides, (size_t)shape->rank * sizeof *strides);
    y->data = x->data + kr_dtype_offset(x->dtype, offset);
    y->flags.grad_f32 = x->flags.grad_f32;
    y->flags.lasts = x->flags.lasts;
    if (x->storage) y->storage = x->storage;
    else y->flags.is_borrowed = true;
    if (y->flags.in_heap && y->storage == x->storage && kr_is_counted(x)) kr_temporary_of(x->storage->owner)->refs++;
    return y;
}
