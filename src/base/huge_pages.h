/* huge_pages.h - text that grows by pieces into memory of a fixed size: snprintf that goes on where the last one stopped, and
 * counts what did not fit.
 *
 *   kr_page page = kr_page_of(text, bytes);
 *   kr_page_write(&page, "%d", 1);
 *   return page.length;                      // without the final zero, as by snprintf
 */
#ifndef KR_BASE_HUGE_PAGES_H
#define KR_BASE_HUGE_PAGES_H

#include <krait/base.h>

#include <stdarg.h>
#include <stdio.h>

typedef struct kr_page {
    char *text;
    size_t room, length;
} kr_page;

static inline kr_page kr_page_of(char *text, size_t bytes)
{
    if (text && bytes) text[0] = '\0';
    return (kr_page){ text, text ? bytes : 0, 0 };
}

static inline void kr_page_write(kr_page *page, const char *format, ...) KR_PRINTF(2, 3);
static inline void kr_page_write(kr_page *page, const char *format, ...)
{
    const bool fits = page->length < page->room;
    va_list list;
    va_start(list, format);
    const int length =
        vsnprintf(fits ? page->text + page->length : NULL, fits ? page->room - page->length : 0, format, list);
    va_end(list);
    if (length > 0) page->length += (size_t)length;
}

#endif
