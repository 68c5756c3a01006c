/* stop_text.h - a row's text on its way out: bytes wait while they may become a character, or a text that ends the row.
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
    char *held; /* what waits, [room] ... */
    size_t nheld;
    size_t settled; /* ... of which so much, from before the last feed, only waits to be shown */
    char *shown;    /* what was shown last, and a final zero, [room + 1] */
    size_t nshown, room;
} kr_held_text;

/* Room for `bytes` bytes that wait and come; what waits stays. False when there is no memory: nothing has changed. */
bool kr_held_text_reserve(kr_held_text *text, kr_memory *memory, size_t bytes);
void kr_held_text_free(kr_held_text *text, kr_memory *memory);

/* More bytes, for which there is room: shows what needs not wait. True if they complete a stop, the first one that is
 * complete, and of those the longest: what is shown then ends before it, and nothing waits. */
bool kr_held_text_put(kr_held_text *text, const kr_stops *stops, const char *bytes, size_t count);

/* Shows what waits as well, behind what is shown already: no more will come. */
void kr_held_text_end(kr_held_text *text);

/* Nothing is shown. */
void kr_held_text_hide(kr_held_text *text);

#endif
