/* stop_text.h - output text of a row: bytes are held back while they may be part of a character or of a stop text.
 */
#ifndef KR_GENERATE_STOP_TEXT_H
#define KR_GENERATE_STOP_TEXT_H

#include "base/ctx_impl.h"

/* Texts that end a row; none is empty. */
typedef struct kr_stops {
    int count;
    const char **texts;
    size_t *bytes, longest;
} kr_stops;

typedef struct kr_held_text {
    char *held; /* bytes that are held back, [capacity] ... */
    size_t nheld;
    size_t match_from; /* ... stops match from here on: the bytes before it are older than the last feed */
    char *shown;       /* bytes that were shown last, and a final zero, [capacity + 1] */
    size_t nshown, capacity;
} kr_held_text;

/* Capacity for `bytes` bytes, held and new; held bytes are kept. False if the allocation fails: nothing has changed. */
bool kr_held_text_reserve(kr_held_text *text, kr_memory *memory, size_t bytes);
void kr_held_text_free(kr_held_text *text, kr_memory *memory);

/* Appends bytes, for which there must be capacity, and shows those that need not be held. True if they complete a stop,
 * the first complete one, and of those the longest: the shown text then ends before it, and no bytes are held. */
bool kr_held_text_put(kr_held_text *text, const kr_stops *stops, const char *bytes, size_t count);

/* Shows the held bytes too, after the shown ones: the end of the text. */
void kr_held_text_end(kr_held_text *text);

/* Nothing is shown. */
void kr_held_text_hide(kr_held_text *text);

#endif
