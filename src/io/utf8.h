/* utf8.h - validation, decoding and encoding of UTF-8. */
#ifndef KR_IO_UTF8_H
#define KR_IO_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length of the UTF-8 sequence at s[0..n), n >= 1, or 0 if it is invalid: overlong forms, surrogates and code points
 * above U+10FFFF are. */
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

static inline bool kr_utf8_is_valid(const char *text, size_t length)
{
    while (length > 0) {
        const size_t n = kr_utf8_length((const unsigned char *)text, length);
        if (n == 0) return false;
        text += n;
        length -= n;
    }
    return true;
}

/* The character of a sequence that kr_utf8_length accepted. */
static inline uint32_t kr_utf8_read(const unsigned char *s, size_t length)
{
    if (length == 1) return s[0];
    uint32_t c = s[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) c = c << 6 | (s[i] & 0x3fu);
    return c;
}

/* Writes a character, up to 4 bytes; returns the position after it. */
static inline char *kr_utf8_write(char *out, uint32_t c)
{
    if (c < 0x80) {
        *out++ = (char)c;
        return out;
    }
    if (c < 0x800) {
        *out++ = (char)(0xc0 | c >> 6);
    } else {
        if (c < 0x10000) {
            *out++ = (char)(0xe0 | c >> 12);
        } else {
            *out++ = (char)(0xf0 | c >> 18);
            *out++ = (char)(0x80 | (c >> 12 & 0x3f));
        }
        *out++ = (char)(0x80 | (c >> 6 & 0x3f));
    }
    *out++ = (char)(0x80 | (c & 0x3f));
    return out;
}

/* Length of an incomplete sequence at the end of s[0..n): at most 3. */
static inline size_t kr_utf8_unfinished(const unsigned char *s, size_t n)
{
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        const unsigned char *lead = s + n - back;
        if ((*lead & 0xc0) == 0x80) continue;
        unsigned char whole[4] = { *lead, *lead == 0xe0 ? 0xa0 : *lead == 0xf0 ? 0x90 : 0x80, 0x80, 0x80 };
        for (size_t i = 1; i < back; i++) whole[i] = lead[i];
        return kr_utf8_length(whole, 4) > back ? back : 0;
    }
    return 0;
}

#endif
