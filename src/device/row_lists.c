/* row_lists.c - lists of sequences that are whole rows, by the length of the rows. */
#include "device/row_lists.h"

#include "device/device.h"

enum { ROWS_LEAST = 16 };

/* Longer lists of one length of rows come first. The header is in host memory: a forked child reads it. */
struct kr_row_list {
    struct kr_row_list *next;
    int64_t ns, capacity; /* rows */
    kr_sequence *rows;
};

static struct kr_row_list **chain_of(kr_ctx *ctx, int64_t ns)
{
    return &ctx->device->row_lists[(uint64_t)ns % KR_ROW_LIST_CHAINS];
}

static struct kr_row_list *create(kr_ctx *ctx, int64_t nb, int64_t ns)
{
    int64_t capacity = ROWS_LEAST;
    while (capacity < nb && capacity <= INT64_MAX / 2 / (int64_t)sizeof(kr_sequence)) capacity *= 2;
    struct kr_row_list *list = capacity < nb ? NULL : kr_memory_alloc(&ctx->memory, sizeof *list);
    kr_sequence *rows = list ? kr_memory_alloc(kr_shared_memory(ctx), (size_t)capacity * sizeof *rows) : NULL;
    if (!rows) {
        kr_memory_free(&ctx->memory, list, sizeof *list);
        return NULL;
    }
    for (int64_t i = 0; i < capacity; i++) rows[i] = (kr_sequence){ i, 0, ns };
    *list = (struct kr_row_list){ *chain_of(ctx, ns), ns, capacity, rows };
    *chain_of(ctx, ns) = list;
    return list;
}

const kr_sequence *kr_row_list(kr_ctx *ctx, const char *op, int64_t nb, int64_t ns)
{
    struct kr_row_list *list = *chain_of(ctx, ns);
    while (list && !(list->ns == ns && list->capacity >= nb)) list = list->next;
    if (!list) list = create(ctx, nb, ns);
    if (!list) kr_fail(ctx, KR_ERR_NOMEM, "%s: no memory for a list of %lld sequences", op, (long long)nb);
    return list ? list->rows : NULL;
}

void kr_row_lists_free(kr_ctx *ctx)
{
    for (int i = 0; i < KR_ROW_LIST_CHAINS; i++)
        for (struct kr_row_list *list = ctx->device->row_lists[i], *next; list; list = next) {
            next = list->next;
            kr_memory_free(kr_shared_memory(ctx), list->rows, (size_t)list->capacity * sizeof *list->rows);
            kr_memory_free(&ctx->memory, list, sizeof *list);
        }
}
