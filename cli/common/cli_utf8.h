/* cli_utf8.h - characters of untrusted text. */
#ifndef KR_CLI_COMMON_CLI_UTF8_H
#define KR_CLI_COMMON_CLI_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes of the UTF-8 character that begins here, within `count` bytes; 0: there is none. */
size_t cli_utf8_bytes(const char *text, size_t count);

/* Whether that character, of so many bytes, is a control (C0, DEL or C1). */
bool cli_utf8_is_control(const char *text, size_t bytes);

/* Is the locale UTF-8, by LC_ALL, else LC_CTYPE, else LANG? */
bool cli_locale_is_utf8(void);

#endif
