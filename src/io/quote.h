/* quote.h - text of a file quoted in a message: truncated, and with printable characters only. */
#ifndef KR_IO_QUOTE_H
#define KR_IO_QUOTE_H

#include <stddef.h>

enum { KR_QUOTE_BYTES = 72 };

typedef struct kr_quote {
    char text[KR_QUOTE_BYTES];
} kr_quote;

/* Bytes that are not printable ASCII become '?'; a text that is too long ends in "...". */
static inline kr_quote kr_quote_of(const char *text, size_t length)
{
    enum { MOST = KR_QUOTE_BYTES - 4 };
    kr_quote quote;
    size_t n = 0;
    for (; n < length && n < MOST; n++) quote.text[n] = text[n] >= ' ' && text[n] <= '~' ? text[n] : '?';
    for (int dot = 0; n < length && dot < 3; dot++) quote.text[MOST + dot] = '.';
    quote.text[n < length ? MOST + 3 : n] = '\0';
    return quote;
}

#endif
