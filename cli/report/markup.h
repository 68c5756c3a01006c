/* markup.h - a growing XML text: markup is added verbatim, text from files escaped.
 *
 *   markup m = { 0 };
 *   markup_add(&m, "<td>");
 *   markup_text(&m, name);
 *   markup_add(&m, "</td>");
 *   const bool ok = markup_write(&m, "page.html");     // the one check
 *   markup_free(&m);
 */
#ifndef KR_CLI_REPORT_MARKUP_H
#define KR_CLI_REPORT_MARKUP_H

#include <krait/base.h>

typedef struct markup {
    char *text; /* with a 0 behind it; NULL: empty */
    size_t count, capacity;
    bool has_failed; /* there was no memory; nothing is added any longer */
} markup;

/* As it is: markup, or numbers. */
void markup_add(markup *m, const char *text);
void markup_format(markup *m, const char *format, ...) KR_PRINTF(2, 3);

/* Escaped, for text and for quoted values: <, >, & and quotes; characters that XML does not allow (control characters,
 * invalid bytes) become U+FFFD. Line ends are \n. */
void markup_text(markup *m, const char *text);
void markup_bytes(markup *m, const char *bytes, size_t count);

/* Writes m to a file, atomically; false after an error message. */
bool markup_write(const markup *m, const char *path);

void markup_free(markup *m);

#endif
