/* byte_level.h - the alphabet of byte-level vocabularies: a printable character for each byte.
 *
 * Bytes that are printable in Latin-1 map to the character of that number; the others, in ascending order, map to
 * U+0100, U+0101, ... up to U+0143. A space is U+0120.
 */
#ifndef KR_TEXT_BYTE_LEVEL_H
#define KR_TEXT_BYTE_LEVEL_H

#include <stdint.h>

enum { KR_BYTE_LEVEL_FIRST = 0x100, KR_BYTE_LEVEL_LAST = 0x143 };

static inline uint32_t kr_byte_level_char(unsigned char byte)
{
    if (byte <= 0x20) return KR_BYTE_LEVEL_FIRST + byte;
    if (byte >= 0x7f && byte <= 0xa0) return KR_BYTE_LEVEL_FIRST + 0x21 + (byte - 0x7fu);
    return byte == 0xad ? KR_BYTE_LEVEL_LAST : byte;
}

/* -1: no character of the alphabet. */
static inline int kr_byte_level_byte(uint32_t c)
{
    if (c > KR_BYTE_LEVEL_LAST) return -1;
    if (c == KR_BYTE_LEVEL_LAST) return 0xad;
    if (c >= KR_BYTE_LEVEL_FIRST + 0x21) return (int)(c - KR_BYTE_LEVEL_FIRST - 0x21 + 0x7f);
    if (c >= KR_BYTE_LEVEL_FIRST) return (int)(c - KR_BYTE_LEVEL_FIRST);
    return kr_byte_level_char((unsigned char)c) == c ? (int)c : -1;
}

#endif
