/* row_numbers.h - what a row has, as numbers in files: token counts and held text. Those read are untrusted. */
#ifndef KR_GENERATE_ROW_NUMBERS_H
#define KR_GENERATE_ROW_NUMBERS_H

#include "base/ctx_impl.h"
#include "generate/token_counts.h"
#include "tensor/tensor_impl.h"

#include <krait/tensor_file.h>

/* Token counts as a list [n 3], in the order of their ids. */
enum {
    KR_COUNT_ID,
    KR_COUNT_IN_PROMPT, /* 0 or 1 */
    KR_COUNT_GENERATED,
    KR_COUNT_FIELDS
};

void kr_counts_list(const kr_token_counts *counts, int64_t *list);

/* Index of the first entry of a list [n 3] that cannot be; -1: there is none. */
int64_t kr_counts_find_wrong(const int64_t *list, int64_t n, int64_t vocab);

/* Puts the entries of a list into counts that have capacity for them. */
void kr_counts_put_list(kr_token_counts *counts, const int64_t *list, int64_t n);

/* Are all numbers bytes? name: of the tensor. False after an error. */
bool kr_bytes_check(kr_ctx *ctx, const char *name, const int64_t *list, int64_t n);

/* A tensor of `columns` columns (0: no such axis) and *count rows (-1: any), as i64 in the arena. NULL after an error. */
int64_t *kr_numbers_read(kr_ctx *ctx, kr_arena *arena, const kr_tensor_file *file, const kr_tensor_file_item *item,
                         kr_dtype dtype, int64_t *count, int64_t columns);

static inline bool kr_is_within(int64_t n, int64_t least, int64_t most)
{
    return n >= least && n <= most;
}

#endif
