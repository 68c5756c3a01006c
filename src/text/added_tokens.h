/* added_tokens.h - tokens that are found in a text before anything else is done to it, the leftmost first and of those
 * the longest.
 *
 * The automaton of Aho and Corasick runs from right to left over the reversed tokens: wherever it stands, it knows the
 * longest token that begins there. A second pass from left to right takes one after another. Both are linear, however
 * the tokens overlap.
 */
#ifndef KR_TEXT_ADDED_TOKENS_H
#define KR_TEXT_ADDED_TOKENS_H

#include "base/arena.h"
#include "text/buffer.h"

typedef struct kr_added_token {
    const char *text, *pattern; /* as the file has it; as it is searched: normalised, if it has to be */
    size_t text_bytes, pattern_bytes;
    int32_t id;
    bool is_special, is_normalized;
    bool is_single_word;          /* not next to letters and their like */
    bool takes_left, takes_right; /* swallows the white space there */
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
    uint32_t *found;     /* of a state: 1 + the pattern that has been read; 0: none */
    bool is_last[256];   /* may a pattern end in this byte? */
} kr_matcher;

enum { KR_MATCHER_MAX_BYTES = 1 << 23 }; /* of all patterns: a state's number has 24 bits */

/* Over the tokens with is_normalized as given. False when memory refuses. */
bool kr_matcher_init(kr_matcher *m, kr_arena *arena, uint64_t seed, const kr_added_token *tokens, int64_t count,
                     bool is_normalized);

/* A search in one text: hits of a window of it, in descending order of their places. */
typedef struct kr_search {
    const kr_matcher *matcher;
    const unsigned char *text;
    size_t bytes, window_begin, window_end;
    kr_buffer *hits; /* kr_hit */
    uint64_t *work;
} kr_search;

typedef struct kr_hit {
    size_t at;
    int64_t token; /* its number in the array that kr_matcher_init was given */
} kr_hit;

void kr_search_begin(kr_search *s, const kr_matcher *matcher, const char *text, size_t bytes, kr_buffer *hits,
                     uint64_t *work);

/* The first place from `from` on where a token begins, and the longest such token; `from` never goes back. 1 found, 0
 * none, -1 after an error. */
int kr_search_next(kr_search *s, size_t from, kr_hit *hit);

#endif
