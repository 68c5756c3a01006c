/* name_table.c - a list with two orders: of insertion, and by name. */
#include "io/name_table.h"

#include "io/heapsort.h"
#include "io/quote.h"
#include "io/utf8.h"
#include "tensor/tensor_impl.h"

#include <string.h>

void kr_named_init(kr_named_list *list, kr_ctx *ctx, const char *who, kr_arena *arena)
{
    *list = (kr_named_list){ .ctx = ctx, .who = who, .arena = arena };
}

void kr_named_deinit(kr_named_list *list)
{
    kr_memory *memory = &list->ctx->memory;
    kr_memory_free(memory, list->in_order, (size_t)list->capacity * 2 * sizeof *list->in_order);
    kr_named_init(list, list->ctx, list->who, list->arena);
}

static bool check_text(const kr_named_list *list, const char *what, const char *text)
{
    if (!text) return kr_fail(list->ctx, KR_ERR_ARG, "%s: %s is NULL", list->who, what);
    return kr_require(list->ctx, kr_utf8_is_valid(text, strlen(text)), KR_ERR_ARG, "%s: %s '%s' is not UTF-8",
                      list->who, what, kr_quote_of(text, strlen(text)).text);
}

/* Index of the name in by_name, or its insertion point. */
static int64_t position_of(const kr_named_list *list, const char *name, bool *found)
{
    int64_t low = 0, high = list->count;
    *found = false;
    while (low < high && !*found) {
        const int64_t middle = low + (high - low) / 2;
        const int order = strcmp(name, list->by_name[middle]->name);
        if (order > 0) low = middle + 1;
        else high = middle;
        *found = order == 0;
    }
    return high;
}

static const char *copy_text(kr_arena *arena, const char *text)
{
    const size_t bytes = strlen(text) + 1;
    char *copy = kr_arena_alloc(arena, bytes);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

/* Both orders are in one block. */
static bool reserve(kr_named_list *list)
{
    if (list->count < list->capacity) return true;
    kr_memory *memory = &list->ctx->memory;
    const int64_t capacity = list->capacity ? 2 * list->capacity : 16;
    const kr_named **orders = kr_memory_alloc(memory, (size_t)capacity * 2 * sizeof *orders);
    if (!orders) return false;
    if (list->count) {
        memcpy(orders, list->in_order, (size_t)list->count * sizeof *orders);
        memcpy(orders + capacity, list->by_name, (size_t)list->count * sizeof *orders);
    }
    kr_memory_free(memory, list->in_order, (size_t)list->capacity * 2 * sizeof *orders);
    list->in_order = orders;
    list->by_name = orders + capacity;
    list->capacity = capacity;
    return true;
}

static bool append(kr_named_list *list, const char *what, const kr_named *given)
{
    bool found;
    const int64_t position = position_of(list, given->name, &found);
    const kr_quote quoted = kr_quote_of(given->name, strlen(given->name));
    if (found)
        return kr_fail(list->ctx, KR_ERR_ARG, "%s: %s '%s' has already been added", list->who, what, quoted.text);
    kr_named *e = kr_arena_alloc(list->arena, sizeof *e);
    const char *name = copy_text(list->arena, given->name);
    const char *value = given->value ? copy_text(list->arena, given->value) : NULL;
    if (!e || !name || (given->value && !value) || !reserve(list))
        return kr_fail(list->ctx, KR_ERR_NOMEM, "%s: no memory for %s '%s'", list->who, what, quoted.text);
    *e = *given;
    e->name = name;
    e->value = value;
    e->number = list->count;
    list->in_order[list->count] = e;
    memmove(list->by_name + position + 1, list->by_name + position,
            (size_t)(list->count - position) * sizeof *list->by_name);
    list->by_name[position] = e;
    list->count++;
    return true;
}

static bool check_tensor(const kr_named_list *list, const char *name, kr_dtype dtype, const kr_shape *shape,
                         const void *data)
{
    kr_ctx *ctx = list->ctx;
    if (!check_text(list, "tensor", name)) return false;
    const kr_quote quoted = kr_quote_of(name, strlen(name));
    const int64_t count = kr_shape_count(shape);
    return kr_require(ctx, strcmp(name, "__metadata__") != 0, KR_ERR_ARG,
                      "%s: no tensor can have the name __metadata__, which safetensors files reserve", list->who) &&
           kr_require(ctx, kr_dtype_is_valid(dtype), KR_ERR_DTYPE, "%s: tensor '%s': %d is not a kr_dtype", list->who,
                      quoted.text, (int)dtype) &&
           kr_require(
               ctx, count >= 0, KR_ERR_SHAPE,
               "%s: tensor '%s': invalid shape: rank %d must be from 0 to %d, and sizes not negative and addressable",
               list->who, quoted.text, shape->rank, KR_MAX_RANK) &&
           kr_require(ctx, data != NULL || count == 0, KR_ERR_ARG, "%s: tensor '%s': data is NULL", list->who,
                      quoted.text) &&
           kr_require(ctx, kr_dtype_span(dtype, count) <= SIZE_MAX / 2 - list->data_bytes, KR_ERR_SHAPE,
                      "%s: tensor '%s' %s makes the file too long", list->who, quoted.text, KR_TEXT_OF_SHAPE(shape));
}

bool kr_named_add_tensor(kr_named_list *list, const char *name, kr_dtype dtype, const kr_shape *shape, const void *data)
{
    if (!check_tensor(list, name, dtype, shape, data)) return false;
    const int64_t count = kr_shape_count(shape);
    const kr_named e = { .name = name,
                         .dtype = dtype,
                         .shape = *shape,
                         .count = count,
                         .data = data,
                         .bytes = kr_dtype_span(dtype, count) };
    if (!append(list, "tensor", &e)) return false;
    list->data_bytes += e.bytes;
    return true;
}

bool kr_named_add_text(kr_named_list *list, const char *key, const char *value)
{
    return check_text(list, "the metadata key", key) && check_text(list, "the metadata value", value) &&
           append(list, "the metadata key", &(kr_named){ .name = key, .value = value });
}

/* ---- tied tensors ---- */

typedef struct tied {
    const kr_named *tensor;
    int64_t number;
} tied;

/* Tied tensors come one after the other, the first of them first. */
static int compare_data(const void *left, const void *right)
{
    const tied *a = left, *b = right;
    const uintptr_t at_a = (uintptr_t)a->tensor->data, at_b = (uintptr_t)b->tensor->data;
    if (at_a != at_b) return at_a < at_b ? -1 : 1;
    if (a->tensor->dtype != b->tensor->dtype) return a->tensor->dtype < b->tensor->dtype ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

static void find_tied(const kr_named *const *tensors, int64_t count, int64_t *first, tied *all, const void **sorted)
{
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++) {
        first[i] = i;
        all[i] = (tied){ tensors[i], i };
        if (tensors[i]->count > 0) sorted[n++] = &all[i];
    }
    kr_sort_pointers(sorted, n, compare_data);
    for (int64_t i = 1; i < n; i++) {
        const tied *a = sorted[i - 1], *b = sorted[i];
        if (a->tensor->data == b->tensor->data && a->tensor->dtype == b->tensor->dtype)
            first[b->number] = first[a->number];
    }
}

bool kr_named_find_tied(kr_ctx *ctx, const kr_named *const *tensors, int64_t count, int64_t *first)
{
    const size_t all_bytes = (size_t)count * sizeof(tied), sorted_bytes = (size_t)count * sizeof(const void *);
    tied *all = kr_memory_alloc(&ctx->memory, all_bytes);
    const void **sorted = kr_memory_alloc(&ctx->memory, sorted_bytes);
    const bool done = kr_require(ctx, all && sorted, KR_ERR_NOMEM, "no memory for %lld tensors", (long long)count);
    if (done) find_tied(tensors, count, first, all, sorted);
    kr_memory_free(&ctx->memory, all, all_bytes);
    kr_memory_free(&ctx->memory, sorted, sorted_bytes);
    return done;
}
