/* token_counts.h - how often each token occurred in a row: a hash table of the distinct tokens. */
#ifndef KR_GENERATE_TOKEN_COUNTS_H
#define KR_GENERATE_TOKEN_COUNTS_H

#include "base/alloc.h"

#define KR_TOKEN_COUNT_MOST INT32_MAX

typedef struct kr_token_count {
    int32_t id;         /* -1: a free entry */
    bool is_prompt;     /* it was in the prompt */
    uint32_t generated; /* times generated, up to KR_TOKEN_COUNT_MOST */
} kr_token_count;

/* Initialised with { 0 }: empty. */
typedef struct kr_token_counts {
    kr_token_count *entries; /* [capacity]: open addressing, linear probing */
    int64_t capacity, count; /* a power of two, or 0; entries in use */
} kr_token_counts;

/* Allocates capacity for `more` further distinct tokens, for which put then allocates nothing. False if the allocation fails: nothing
 * has changed. */
bool kr_token_counts_reserve(kr_token_counts *counts, kr_memory *memory, int64_t more);

/* The entry of a token, new if it has none; within the capacity. */
kr_token_count *kr_token_counts_put(kr_token_counts *counts, int32_t id);

/* Entries in use, one after another: *at is 0 before the first. NULL after the last. In no order. */
const kr_token_count *kr_token_counts_next(const kr_token_counts *counts, int64_t *at);

/* Makes `to` a copy. False if the allocation fails: nothing has changed. */
bool kr_token_counts_copy(kr_token_counts *to, const kr_token_counts *from, kr_memory *memory);

void kr_token_counts_free(kr_token_counts *counts, kr_memory *memory);

#endif
