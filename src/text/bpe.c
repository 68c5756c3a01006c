/* bpe.c - byte pair encoding of a piece: of all adjacent pairs that merge, those of the lowest rank merge first,
 * leftmost first.
 *
 * A short piece is rescanned after each merge. A long one keeps its candidates in a heap, by rank and position, and the
 * symbols in a linked list: n bytes take O(n log n) time for any content.
 */
#include "text/tokenizer_impl.h"

#include <stdatomic.h>

enum { SHORT = 32 };

/* The token of one more byte; with fuses_unknown, adjacent unknown bytes are one. */
static bool starts_symbol(const kr_tokenizer *tok, const unsigned char *piece, size_t at, int32_t *token)
{
    *token = tok->byte_tokens[piece[at]];
    if (*token >= 0) return true;
    *token = tok->unknown;
    return !(tok->fuses_unknown && at > 0 && tok->byte_tokens[piece[at - 1]] < 0);
}

/* ---- short pieces ---- */

typedef struct short_piece {
    int n;
    int32_t token[SHORT];
    const kr_merge *merge[SHORT]; /* of token i with the next one */
} short_piece;

static void merge_short(const kr_tokenizer *tok, const unsigned char *piece, size_t bytes, short_piece *s,
                        uint64_t *work)
{
    s->n = 0;
    for (size_t i = 0; i < bytes; i++)
        if (starts_symbol(tok, piece, i, &s->token[s->n])) s->n++;
    for (int i = 0; i + 1 < s->n; i++) s->merge[i] = kr_merge_map_find(&tok->merges, s->token[i], s->token[i + 1]);
    while (s->n > 1) {
        int best = 0;
        for (int i = 1; i + 1 < s->n; i++)
            if (s->merge[i]->rank < s->merge[best]->rank) best = i;
        *work += (uint64_t)s->n;
        if (s->merge[best]->rank == KR_NO_MERGE) return;
        s->token[best] = s->merge[best]->merged;
        s->n--;
        for (int i = best + 1; i < s->n; i++) {
            s->token[i] = s->token[i + 1];
            s->merge[i - 1] = s->merge[i];
        }
        if (best > 0) s->merge[best - 1] = kr_merge_map_find(&tok->merges, s->token[best - 1], s->token[best]);
        if (best + 1 < s->n) s->merge[best] = kr_merge_map_find(&tok->merges, s->token[best], s->token[best + 1]);
    }
}

/* ---- long pieces ---- */

typedef struct symbol {
    int32_t token, merged; /* merged: with the next one, at `rank` */
    uint32_t rank;         /* KR_NO_MERGE: they do not merge */
    uint32_t next, before; /* NONE: no such symbol */
} symbol;
#define NONE UINT32_MAX

typedef struct long_piece {
    const kr_tokenizer *tok;
    symbol *symbols;
    uint64_t *heap; /* rank << 32 | position, the smallest at the root */
    size_t nheap;
    uint64_t *work;
} long_piece;

static void sift_down(long_piece *l, size_t at)
{
    const uint64_t moved = l->heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        ++*l->work;
        if (child >= l->nheap) break;
        if (child + 1 < l->nheap && l->heap[child + 1] < l->heap[child]) child++;
        if (l->heap[child] >= moved) break;
        l->heap[at] = l->heap[child];
        at = child;
    }
    l->heap[at] = moved;
}

static void heap_push(long_piece *l, uint64_t key)
{
    size_t at = l->nheap++;
    while (at > 0 && l->heap[(at - 1) / 2] > key) {
        l->heap[at] = l->heap[(at - 1) / 2];
        at = (at - 1) / 2;
        ++*l->work;
    }
    l->heap[at] = key;
}

static uint64_t heap_pop(long_piece *l)
{
    const uint64_t top = l->heap[0];
    l->heap[0] = l->heap[--l->nheap];
    if (l->nheap > 0) sift_down(l, 0);
    return top;
}

/* Looks up the merge of a symbol and its successor; true if they merge. */
static bool pair_up(long_piece *l, uint32_t path)
{
    symbol *s = &l->symbols[path];
    s->rank = KR_NO_MERGE;
    if (s->next == NONE) return false;
    const kr_merge *merge = kr_merge_map_find(&l->tok->merges, s->token, l->symbols[s->next].token);
    s->rank = merge->rank;
    s->merged = merge->merged;
    ++*l->work;
    return s->rank != KR_NO_MERGE;
}

static uint64_t key_of(const long_piece *l, uint32_t path)
{
    return (uint64_t)l->symbols[path].rank << 32 | path;
}

/* Every merge removes a symbol and adds at most two candidates: the heap never holds more than twice the number of
 * bytes and merges. */
static void merge_long(long_piece *l, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (pair_up(l, i)) l->heap[l->nheap++] = key_of(l, i);
    for (size_t i = l->nheap / 2; i-- > 0;) sift_down(l, i);
    while (l->nheap > 0) {
        const uint64_t key = heap_pop(l);
        const uint32_t path = (uint32_t)key;
        symbol *s = &l->symbols[path];
        if (s->rank != key >> 32) continue; /* stale: one of the two has been merged with another since */
        symbol *gone = &l->symbols[s->next];
        s->token = s->merged;
        s->next = gone->next;
        if (gone->next != NONE) l->symbols[gone->next].before = path;
        gone->rank = KR_NO_MERGE;
        if (pair_up(l, path)) heap_push(l, key_of(l, path));
        if (s->before != NONE && pair_up(l, s->before)) heap_push(l, key_of(l, s->before));
    }
}

static bool encode_long(kr_encoder *e, const unsigned char *piece, size_t bytes)
{
    if (!kr_require(e->ctx, bytes < UINT32_MAX / 4, KR_ERR_ARG,
                    "tokenizer.encode: a piece of %zu bytes without a split point; at most %u are supported", bytes,
                    UINT32_MAX / 4))
        return false;
    e->symbols.bytes = e->heap.bytes = 0;
    if (!kr_buffer_reserve(&e->symbols, bytes * sizeof(symbol)) ||
        !kr_buffer_reserve(&e->heap, 3 * bytes * sizeof(uint64_t)))
        return false;
    long_piece l = { e->tok, (symbol *)(void *)e->symbols.data, (uint64_t *)(void *)e->heap.data, 0, &e->work };
    uint32_t count = 0;
    for (size_t i = 0; i < bytes; i++) {
        int32_t token;
        if (!starts_symbol(e->tok, piece, i, &token)) continue;
        l.symbols[count] = (symbol){ .token = token, .next = count + 1, .before = count == 0 ? NONE : count - 1 };
        count++;
    }
    l.symbols[count - 1].next = NONE;
    merge_long(&l, count);
    for (uint32_t i = 0; i != NONE; i = l.symbols[i].next) kr_encoder_put(e, e->tok->tokens[l.symbols[i].token].id);
    return true;
}

/* ---- any ---- */

bool kr_bpe(kr_encoder *e, const char *piece, size_t bytes)
{
    kr_tokenizer *tok = e->tok;
    const int64_t before = e->count;
    kr_token *whole = NULL;
    if (bytes <= tok->longest) {
        const int32_t path = kr_token_map_find(&tok->by_text, piece, bytes);
        whole = path < 0 ? NULL : &tok->tokens[path];
    }
    e->work++;
    if (whole &&
        (tok->ignores_merges || atomic_load_explicit(&whole->is_whole, memory_order_relaxed) == KR_WHOLE_YES)) {
        kr_encoder_put(e, whole->id);
        return true;
    }
    int32_t first = -1; /* of the ids */
    if (bytes <= SHORT) {
        short_piece s;
        merge_short(tok, (const unsigned char *)piece, bytes, &s, &e->work);
        for (int i = 0; i < s.n; i++) kr_encoder_put(e, tok->tokens[s.token[i]].id);
        first = s.token[0];
    } else {
        if (!encode_long(e, (const unsigned char *)piece, bytes)) return false;
        first = ((const symbol *)(void *)e->symbols.data)[0].token;
    }
    if (whole) {
        const bool is_one = e->count == before + 1 && &tok->tokens[first] == whole;
        atomic_store_explicit(&whole->is_whole, is_one ? KR_WHOLE_YES : KR_WHOLE_NO, memory_order_relaxed);
    }
    return true;
}
