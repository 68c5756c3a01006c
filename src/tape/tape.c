/* tape.c - a tape's life and the tensors on it. */
#include "tape/tape.h"

#include <string.h>

enum { HEADS_BLOCK = 1 << 14, DATA_BLOCK = 1 << 16, HEAP_CHUNK = 1 << 16 };

kr_tape *kr_tape_create(kr_ctx *ctx, kr_tape_mode mode)
{
    if (kr_ctx_failed(ctx)) return NULL;
    if (!kr_require(ctx, mode == KR_GRAD || mode == KR_NO_GRAD, KR_ERR_ARG,
                    "tape: mode %d is neither KR_GRAD nor KR_NO_GRAD", (int)mode))
        return NULL;
    kr_tape *tape = kr_memory_alloc_zeroed(&ctx->memory, sizeof *tape);
    if (!tape) {
        kr_fail(ctx, KR_ERR_NOMEM, "tape: no memory for a tape");
        return NULL;
    }
    tape->ctx = ctx;
    tape->mode = mode;
    tape->recording = mode == KR_GRAD;
    tape->nerrors = ctx->nerrors;
    kr_arena_init(&tape->heads, &ctx->memory, HEADS_BLOCK);
    kr_arena_init(&tape->data, &ctx->memory, DATA_BLOCK);
    kr_heap_init(&tape->heap, &ctx->memory, HEAP_CHUNK);
    return tape;
}

void kr_tape_destroy(kr_tape *tape)
{
    if (!tape) return;
    kr_arena_deinit(&tape->heads);
    kr_arena_deinit(&tape->data);
    kr_heap_deinit(&tape->heap);
    kr_memory_free(&tape->ctx->memory, tape, sizeof *tape);
}

void kr_tape_reset(kr_tape *tape)
{
    if (!tape) return;
    kr_arena_reset(&tape->heads);
    kr_arena_reset(&tape->data);
    kr_heap_reset(&tape->heap);
    tape->last = NULL;
    tape->nnodes = 0;
    tape->depth = 0;
    tape->temporaries = NULL;
    tape->in_backward = tape->done = tape->saw_grad = false;
    tape->recording = tape->mode == KR_GRAD;
    tape->nerrors = tape->ctx->nerrors;
}

kr_ctx *kr_tape_ctx(const kr_tape *tape)
{
    return tape ? tape->ctx : NULL;
}

size_t kr_tape_bytes(const kr_tape *tape)
{
    return tape ? tape->data.used + tape->heap.used : 0;
}

size_t kr_tape_peak_bytes(const kr_tape *tape)
{
    return tape ? tape->peak : 0;
}

int64_t kr_tape_nodes(const kr_tape *tape)
{
    return tape ? tape->nnodes : 0;
}

static void note_peak(kr_tape *tape)
{
    const size_t used = tape->data.used + tape->heap.used;
    if (used > tape->peak) tape->peak = used;
}

bool kr_tape_ready(kr_tape *tape, const char *op)
{
    if (!tape || tape->ctx->status != KR_OK) return false;
    return kr_require(tape->ctx, tape->nerrors == tape->ctx->nerrors, KR_ERR_STATE,
                      "%s: an earlier call failed while this tape was in use; call kr_tape_reset before using it again",
                      op);
}

/* A header, and behind it room for `bytes` of data (0: none, for views). */
static kr_tensor *place(kr_tape *tape, size_t bytes, bool with_data)
{
    enum { HEADER = (sizeof(kr_tensor) + KR_ALIGN - 1) / KR_ALIGN * KR_ALIGN };
    kr_tensor *x = NULL;
    char *data = NULL;
    if (tape->in_backward) {
        x = bytes <= SIZE_MAX - HEADER ? kr_heap_alloc(&tape->heap, HEADER + (with_data ? bytes : 0)) : NULL;
        data = x ? (char *)x + HEADER : NULL;
    } else {
        x = kr_arena_alloc(&tape->heads, sizeof *x);
        if (x && with_data) {
            data = kr_arena_alloc(&tape->data, bytes);
            if (!data) x = NULL;
        }
    }
    if (!x) {
        kr_fail(tape->ctx, KR_ERR_NOMEM, "tape: no memory for a tensor of %zu bytes", bytes);
        return NULL;
    }
    memset(x, 0, sizeof *x);
    x->ctx = tape->ctx;
    x->tape = tape;
    x->data = with_data ? data : NULL;
    if (tape->in_backward) {
        x->in_heap = true;
        x->base = x;
        x->refs = 1;
        x->next = tape->temporaries;
        tape->temporaries = x;
    }
    note_peak(tape);
    return x;
}

kr_tensor *kr_new(kr_tape *tape, kr_dtype dtype, kr_shape shape)
{
    if (!kr_tape_ready(tape, "new")) return NULL;
    kr_ctx *ctx = tape->ctx;
    if (!kr_require(ctx, kr_dtype_is_valid(dtype), KR_ERR_DTYPE, "new: %d is no kr_dtype", (int)dtype)) return NULL;
    const int64_t count = kr_shape_count(&shape);
    if (count < 0) {
        if (shape.rank < 0 || shape.rank > KR_MAX_RANK)
            kr_fail(ctx, KR_ERR_SHAPE, "new: rank %d, but tensors have from 0 to %d axes", shape.rank, KR_MAX_RANK);
        else
            kr_fail(ctx, KR_ERR_SHAPE, "new: shape %s has a negative size or more elements than can be addressed",
                    KR_TEXT_OF_SHAPE(&shape));
        return NULL;
    }
    kr_tensor *x = place(tape, (size_t)count * kr_dtype_bytes(dtype), true);
    if (x) kr_tensor_layout(x, dtype, &shape);
    return x;
}

kr_tensor *kr_view_of(kr_tape *tape, const kr_tensor *x, const kr_shape *shape, const int64_t *strides, int64_t offset)
{
    if (!x) return NULL;
    kr_tensor *y = place(tape, 0, false);
    if (!y) return NULL;
    kr_tensor_layout(y, x->dtype, shape);
    if (strides) memcpy(y->strides, strides, (size_t)shape->rank * sizeof *strides);
    y->data = x->data + offset * (int64_t)kr_dtype_bytes(x->dtype);
    if (y->in_heap && x->in_heap) {
        y->base = x->base;
        y->refs = 0;
        x->base->refs++;
    } else {
        y->borrows = y->in_heap;
    }
    return y;
}
