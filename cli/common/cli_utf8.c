/* cli_utf8.c - UTF-8 as RFC 3629 has it. */
#include "cli/common/cli_utf8.h"

#include <stdlib.h>

size_t cli_utf8_bytes(const char *text, size_t count)
{
    static const unsigned least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    const unsigned char *t = (const unsigned char *)text;
    if (!count) return 0;
    const unsigned char c = t[0];
    const size_t n = c < 0x80                ? 1
                     : c >= 0xc2 && c < 0xe0 ? 2
                     : c >= 0xe0 && c < 0xf0 ? 3
                     : c >= 0xf0 && c < 0xf5 ? 4
                                             : 0;
    if (n <= 1 || n > count) return n <= 1 ? n : 0;
    unsigned code = c & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((t[i] & 0xc0) != 0x80) return 0;
        code = code << 6 | (t[i] & 0x3fu);
    }
    return code >= least[n] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? n : 0;
}

bool cli_utf8_is_control(const char *text, size_t bytes)
{
    const unsigned char *t = (const unsigned char *)text;
    return bytes == 1 ? t[0] < 0x20 || t[0] == 0x7f : bytes == 2 && t[0] == 0xc2 && t[1] < 0xa0;
}

static bool begins_with_letters(const char *text, const char *lower)
{
    for (; *lower; text++, lower++)
        if ((*text >= 'A' && *text <= 'Z' ? *text - 'A' + 'a' : *text) != *lower) return false;
    return true;
}

bool cli_locale_is_utf8(void)
{
    static const char *const names[] = { "LC_ALL", "LC_CTYPE", "LANG" };
    for (int i = 0; i < 3; i++) {
        const char *locale = getenv(names[i]);
        if (!locale || !*locale) continue;
        for (; *locale; locale++)
            if (begins_with_letters(locale, "utf-8") || begins_with_letters(locale, "utf8")) return true;
        return false;
    }
    return false;
}
