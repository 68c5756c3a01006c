/* utf8.h - what is a UTF-8 character. */
#ifndef KR_IO_UTF8_H
#define KR_IO_UTF8_H

#include <stddef.h>

/* Bytes of the UTF-8 sequence at s[0..n), n >= 1, or 0 if it is none: overlong forms, surrogates and what lies above
 * U+10FFFF are not. */
static inline size_t kr_utf8_length(const unsigned char *s, size_t n)
{
    if (s[0] < 0x80) return 1;
    const size_t length = s[0] >= 0xc2 && s[0] <= 0xdf   ? 2
                          : (s[0] & 0xf0) == 0xe0        ? 3
                          : s[0] >= 0xf0 && s[0] <= 0xf4 ? 4
                                                         : 0;
    if (length == 0 || length > n) return 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if (s[0] == 0xe0 && s[1] < 0xa0) return 0;
    if (s[0] == 0xed && s[1] > 0x9f) return 0;
    if (s[0] == 0xf0 && s[1] < 0x90) return 0;
    if (s[0] == 0xf4 && s[1] > 0x8f) return 0;
    return length;
}

#endif
