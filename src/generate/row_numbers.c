/* row_numbers.c - token counts and numbers of rows, to files and from them. */
#include "generate/row_numbers.h"

#include <stdlib.h>

static int by_id(const void *a, const void *b)
{
    const int64_t x = ((const int64_t *)a)[KR_COUNT_ID], y = ((const int64_t *)b)[KR_COUNT_ID];
    return (x > y) - (x < y);
}

void kr_counts_list(const kr_token_counts *counts, int64_t *list)
{
    int64_t *to = list, at = 0;
    for (const kr_token_count *count; (count = kr_token_counts_next(counts, &at)); to += KR_COUNT_FIELDS) {
        to[KR_COUNT_ID] = count->id;
        to[KR_COUNT_IN_PROMPT] = count->is_prompt;
        to[KR_COUNT_GENERATED] = count->generated;
    }
    qsort(list, (size_t)counts->count, KR_COUNT_FIELDS * sizeof *list, by_id);
}

int64_t kr_counts_find_wrong(const int64_t *list, int64_t n, int64_t vocab)
{
    int64_t before = -1;
    for (int64_t i = 0; i < n; i++, list += KR_COUNT_FIELDS) {
        if (!kr_is_within(list[KR_COUNT_ID], before + 1, vocab - 1) || !kr_is_within(list[KR_COUNT_IN_PROMPT], 0, 1) ||
            !kr_is_within(list[KR_COUNT_GENERATED], 0, KR_TOKEN_COUNT_MOST) ||
            list[KR_COUNT_IN_PROMPT] + list[KR_COUNT_GENERATED] == 0)
            return i;
        before = list[KR_COUNT_ID];
    }
    return -1;
}

void kr_counts_put_list(kr_token_counts *counts, const int64_t *list, int64_t n)
{
    for (int64_t i = 0; i < n; i++, list += KR_COUNT_FIELDS) {
        kr_token_count *count = kr_token_counts_put(counts, (int32_t)list[KR_COUNT_ID]);
        count->is_prompt = list[KR_COUNT_IN_PROMPT] != 0;
        count->generated = (uint32_t)list[KR_COUNT_GENERATED];
    }
}

bool kr_bytes_check(kr_ctx *ctx, const char *name, const int64_t *list, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!kr_require(ctx, kr_is_within(list[i], 0, 255), KR_ERR_FORMAT,
                        "tensor '%s' holds %lld, which is not a byte", name, (long long)list[i]))
            return false;
    return true;
}

int64_t *kr_numbers_read(kr_ctx *ctx, kr_arena *arena, const kr_tensor_file *file, const kr_tensor_file_item *item,
                         kr_dtype dtype, int64_t *count, int64_t columns)
{
    const kr_shape *shape = &item->shape;
    const bool fits = shape->rank == 1 + (columns > 0) && (*count < 0 || shape->dims[0] == *count) &&
                      (columns == 0 || shape->dims[1] == columns);
    if (!kr_require(ctx, fits && item->dtype == dtype, KR_ERR_FORMAT, "tensor '%s' is %s %s, which is not valid",
                    item->name, item->type, KR_TEXT_OF_SHAPE(shape)))
        return NULL;
    *count = shape->dims[0];
    int64_t *numbers = kr_arena_alloc(arena, (size_t)item->count * sizeof *numbers);
    if (!kr_require(ctx, numbers != NULL, KR_ERR_NOMEM, "no memory for tensor '%s' %s", item->name,
                    KR_TEXT_OF_SHAPE(shape)))
        return NULL;
    return kr_tensor_file_read(file, item, KR_DTYPE_I64, numbers, item->count) == KR_OK ? numbers : NULL;
}
