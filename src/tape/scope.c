/* scope.c - no-grad scopes: tensors created between begin and end are released, except for the kept ones. */
#include "device/device.h"
#include "tape/tape_impl.h"

#include <string.h>

/* State saved by begin, stored in the caller's kr_scope. */
typedef struct scope {
    kr_tape_mark mark;
    uint32_t depth;
    bool recording, in_backward;
} scope;
_Static_assert(sizeof(scope) <= sizeof(kr_scope), "a scope fits its public box");

kr_scope kr_no_grad_begin(kr_tape *tape)
{
    kr_scope box = { { 0 } };
    if (!tape) return box;
    const scope s = { .mark = kr_tape_mark_now(tape),
                      .depth = (uint32_t)tape->depth++,
                      .recording = tape->recording,
                      .in_backward = tape->in_backward };
    memcpy(&box, &s, sizeof s);
    tape->recording = false;
    return box;
}

/* A kept tensor while the arena below it is released. */
typedef struct parcel {
    kr_tensor head;
    kr_storage storage;   /* of a header in the scope; head has none then */
    void *stash;          /* its elements, row-major, in the heap; NULL: they are outside the scope and are not moved */
    kr_device_span *span; /* the same in the device heap */
    bool is_inside;       /* the header was allocated in the scope */
} parcel;

static void *stash(kr_tape *tape, kr_dtype dtype, size_t bytes, parcel *p)
{
    if (!kr_ctx_on_device(tape->ctx) || !kr_dtype_is_float(dtype)) return p->stash = kr_heap_alloc(&tape->heap, bytes);
    p->span = kr_device_heap_alloc(&tape->device_heap, bytes);
    return p->span ? p->span->data : NULL;
}

static bool take_out(kr_tape *tape, const scope *s, bool integers, kr_tensor *x, parcel *p)
{
    *p = (parcel){ .head = *x, .is_inside = kr_arena_is_after(&tape->heads, s->mark.heads, x) };
    if (kr_arena_is_after(&tape->heads, s->mark.heads, x->storage)) {
        p->storage = *x->storage;
        p->head.storage = NULL;
    }
    if (!p->is_inside || !kr_tape_releases(tape, &s->mark, integers, x)) return true;
    const size_t bytes = kr_dtype_span(x->dtype, kr_count_of(x));
    void *place = stash(tape, x->dtype, bytes, p);
    if (!place) return kr_fail(tape->ctx, KR_ERR_NOMEM, "no_grad_end: no memory to keep a tensor %s", KR_TEXT_OF(x));
    const kr_shape shape = kr_tensor_shape(x);
    kr_tensor_layout(&p->head, x->dtype, &shape);
    p->head.data = place;
    return kr_assign(tape->ctx, &p->head, x);
}

static kr_tensor *put_back(kr_tape *tape, const parcel *p)
{
    const kr_shape shape = kr_tensor_shape(&p->head);
    if (!p->stash && !p->span) {
        kr_tensor *view = kr_view_of(tape, &p->head, &shape, p->head.strides, 0);
        if (!view || p->head.storage) return view;
        *view->storage = p->storage;
        view->storage->owner = view;
        return view;
    }
    kr_tensor *y = kr_new(tape, p->head.dtype, shape);
    return y && kr_assign(tape->ctx, y, &p->head) ? y : NULL;
}

static void keep_and_release(kr_tape *tape, const scope *s, int count, kr_tensor **const *keep)
{
    parcel parcels[KR_KEEP_MAX];
    const bool integers = kr_tape_is_full(tape, &s->mark);
    bool ok = !kr_ctx_failed(tape->ctx);
    for (int i = 0; i < count; i++) {
        parcels[i] = (parcel){ .stash = NULL };
        if (ok && *keep[i]) ok = take_out(tape, s, integers, *keep[i], &parcels[i]);
    }
    kr_tape_release(tape, &s->mark, integers);
    for (int i = 0; i < count; i++) {
        if (!ok) *keep[i] = NULL;
        else if (parcels[i].is_inside) *keep[i] = put_back(tape, &parcels[i]);
        kr_heap_free(&tape->heap, parcels[i].stash);
        kr_device_heap_free(&tape->device_heap, parcels[i].span);
    }
}

static bool check_keep(kr_ctx *ctx, int count, kr_tensor **const *keep)
{
    if (!kr_require(ctx, count >= 0 && count <= KR_KEEP_MAX, KR_ERR_ARG,
                    "no_grad_end: %d tensors to keep, but at most %d fit", count, KR_KEEP_MAX) ||
        !kr_require(ctx, keep || count == 0, KR_ERR_ARG, "no_grad_end: keep is NULL"))
        return false;
    for (int i = 0; i < count; i++)
        if (!kr_require(ctx, keep[i], KR_ERR_ARG, "no_grad_end: keep[%d] is NULL", i)) return false;
    return true;
}

kr_status kr_no_grad_end(kr_tape *tape, kr_scope box, int count, kr_tensor **const *keep)
{
    if (!tape) return KR_ERR_ARG;
    scope s;
    memcpy(&s, &box, sizeof s);
    kr_ctx *ctx = tape->ctx;
    const bool matches = (int)s.depth == tape->depth - 1 && s.in_backward == tape->in_backward;
    if (!kr_require(ctx, matches, KR_ERR_STATE, "no_grad_end: scopes must end in the reverse order of their begin") ||
        !check_keep(ctx, count, keep))
        return ctx->status;
    tape->depth--;
    tape->recording = s.recording;
    /* In a backward rule tensors live in the heap and go when the rule returns. */
    if (!tape->in_backward) keep_and_release(tape, &s, count, keep);
    return ctx->status;
}
