/* added_tokens.h - finds added tokens in a text before any other processing: the leftmost first, and of those the
 * longest.
 *
 * The Aho-Corasick automaton runs from right to left over the reversed tokens: at each position it knows the longest
 * token that begins there. A second pass from left to right selects tokens without overlap. Both are linear, however
 * the tokens overlap.
 */
#ifndef KR_TEXT_ADDED_TOKENS_H
#define KR_TEXT_ADDED_TOKENS_H

#include "base/arena.h"
#include "text/buffer.h"

typedef struct kr_added_token {
    const char *text, *pattern; /* as in the file; the pattern searched for, normalised if needed */
    size_t text_bytes, pattern_bytes;
    int32_t id;
    bool is_special, is_normalized;
    bool is_single_word;          /* must not be adjacent to word characters */
    bool takes_left, takes_right; /* includes adjacent white space */
} kr_added_token;

typedef struct kr_edge {
    uint32_t from, to; /* state << 8 | byte -> state; to = 0: a free slot */
} kr_edge;

typedef struct kr_matcher {
    int64_t npatterns;
    size_t longest;      /* bytes */
    uint64_t seed, mask; /* of the edges */
    kr_edge *edges;      /* a hash table */
    uint32_t *fallback;  /* of a state: that of its longest proper suffix */
    uint32_t *found;     /* of a state: 1 + the pattern that ends there; 0: none */
    bool is_last[256];   /* may a pattern end in this byte? */
} kr_matcher;

enum { KR_MATCHER_MAX_BYTES = 1 << 23 }; /* of all patterns: a state's number has 24 bits */

/* Over the tokens with is_normalized as given. False if out of memory. */
bool kr_matcher_init(kr_matcher *m, kr_arena *arena, uint64_t seed, const kr_added_token *tokens, int64_t count,
                     bool is_normalized);

/* A search in one text: hits of a window of it, in descending order of position. */
typedef struct kr_search {
    const kr_matcher *matcher;
    const unsigned char *text;
    size_t bytes, window_begin, window_end;
    kr_buffer *hits; /* kr_hit */
    uint64_t *work;
} kr_search;

typedef struct kr_hit {
    size_t at;
    int64_t token; /* its index in the array passed to kr_matcher_init */
} kr_hit;

void kr_search_begin(kr_search *s, const kr_matcher *matcher, const char *text, size_t bytes, kr_buffer *hits,
                     uint64_t *work);

/* The first position from `from` on where a token begins, and the longest such token; `from` must not decrease. 1
 * found, 0 none, -1 after an error. */
int kr_search_next(kr_search *s, size_t from, kr_hit *hit);

#endif
