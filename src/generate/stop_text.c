/* stop_text.c - held bytes, the part of them that can be shown, and detection of stops. */
#include "generate/stop_text.h"

#include "io/utf8.h"

#include <string.h>

bool kr_held_text_reserve(kr_held_text *text, kr_memory *memory, size_t bytes)
{
    if (bytes <= text->capacity) return true;
    char *held = kr_memory_alloc(memory, bytes), *shown = kr_memory_alloc(memory, bytes + 1);
    if (!held || !shown) {
        if (held) kr_memory_free(memory, held, bytes);
        if (shown) kr_memory_free(memory, shown, bytes + 1);
        return false;
    }
    if (text->capacity) {
        memcpy(held, text->held, text->nheld);
        memcpy(shown, text->shown, text->nshown);
    }
    const kr_held_text wider = { held, text->nheld, text->match_from, shown, text->nshown, bytes };
    kr_held_text_free(text, memory);
    *text = wider;
    shown[text->nshown] = '\0';
    return true;
}

void kr_held_text_free(kr_held_text *text, kr_memory *memory)
{
    if (text->capacity == 0) return;
    kr_memory_free(memory, text->held, text->capacity);
    kr_memory_free(memory, text->shown, text->capacity + 1);
    *text = (kr_held_text){ .held = NULL };
}

/* Bytes of the longest stop that ends at held[end]; 0: none. */
static size_t stop_ending_at(const kr_held_text *text, const kr_stops *stops, size_t end)
{
    size_t longest = 0;
    for (int i = 0; i < stops->count; i++) {
        const size_t n = stops->bytes[i];
        if (n > longest && n <= end - text->match_from && memcmp(text->held + end - n, stops->texts[i], n) == 0)
            longest = n;
    }
    return longest;
}

/* Index of the first held byte that may start a stop; nheld if there is none. */
static size_t possible_stop_start(const kr_held_text *text, const kr_stops *stops)
{
    for (size_t from = text->match_from; from < text->nheld; from++)
        for (int i = 0; i < stops->count; i++)
            if (text->nheld - from < stops->bytes[i] &&
                memcmp(text->held + from, stops->texts[i], text->nheld - from) == 0)
                return from;
    return text->nheld;
}

/* Shows the first `count` bytes, and drops the next `skipped`. */
static void show(kr_held_text *text, size_t count, size_t skipped)
{
    memcpy(text->shown, text->held, count);
    text->shown[count] = '\0';
    text->nshown = count;
    text->nheld -= count + skipped;
    memmove(text->held, text->held + count + skipped, text->nheld);
    text->match_from = 0;
}

bool kr_held_text_put(kr_held_text *text, const kr_stops *stops, const char *bytes, size_t count)
{
    const size_t before = text->nheld;
    if (count) memcpy(text->held + before, bytes, count);
    text->nheld += count;
    for (size_t end = before + 1; end <= text->nheld; end++) {
        const size_t stop = stop_ending_at(text, stops, end);
        if (stop == 0) continue;
        show(text, end - stop, text->nheld - (end - stop));
        return true;
    }
    const size_t to = possible_stop_start(text, stops);
    show(text, to - kr_utf8_unfinished((const unsigned char *)text->held + text->match_from, to - text->match_from), 0);
    return false;
}

void kr_held_text_end(kr_held_text *text)
{
    memcpy(text->shown + text->nshown, text->held, text->nheld);
    text->nshown += text->nheld;
    text->shown[text->nshown] = '\0';
    text->nheld = text->match_from = 0;
}

void kr_held_text_hide(kr_held_text *text)
{
    text->nshown = 0;
    text->shown[0] = '\0';
}
