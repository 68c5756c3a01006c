/* compose.h - composes bytes in two passes of the same code: one to count them, one to write them.
 *
 *   kr_composer measure = { .text = NULL };
 *   compose(&measure);
 *   compose(&(kr_composer){ .text = memory_of(measure.length) });
 */
#ifndef KR_IO_COMPOSE_H
#define KR_IO_COMPOSE_H

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct kr_composer {
    char *text; /* NULL: count only */
    size_t length;
} kr_composer;

static inline void kr_put(kr_composer *c, const void *bytes, size_t length)
{
    if (c->text) memcpy(c->text + c->length, bytes, length);
    c->length += length;
}

static inline void kr_put_text(kr_composer *c, const char *text)
{
    kr_put(c, text, strlen(text));
}

/* In decimal. */
static inline void kr_put_number(kr_composer *c, uint64_t n)
{
    char digits[24];
    kr_put(c, digits, (size_t)snprintf(digits, sizeof digits, "%" PRIu64, n));
}

/* The lower n bytes, little-endian. */
static inline void kr_put_bytes(kr_composer *c, uint64_t value, int n)
{
    unsigned char bytes[8];
    for (int i = 0; i < n; i++) bytes[i] = (unsigned char)(value >> (8 * i));
    kr_put(c, bytes, (size_t)n);
}

/* A JSON string from UTF-8, with the escapes that JSON requires; other characters are copied. */
static inline void kr_put_json_string(kr_composer *c, const char *text)
{
    kr_put_text(c, "\"");
    for (; *text; text++) {
        char escape[8];
        if (*text == '"' || *text == '\\') kr_put(c, (const char[]){ '\\', *text }, 2);
        else if ((unsigned char)*text >= 0x20) kr_put(c, text, 1);
        else kr_put(c, escape, (size_t)snprintf(escape, sizeof escape, "\\u%04x", (unsigned)(unsigned char)*text));
    }
    kr_put_text(c, "\"");
}

#endif
