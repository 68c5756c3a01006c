/* json_write.h - composes a JSON text, indented for people, into memory that may be too short: as snprintf does.
 *
 *   kr_json_writer w;
 *   kr_json_write_begin(&w, text, bytes);
 *   kr_json_write_open(&w, NULL, '{');
 *   kr_json_write_integer(&w, "d_model", 256);
 *   kr_json_write_close(&w, '}');
 *   kr_json_write_end(&w);                  // w.length is what it needs, without the final zero
 *
 * Keys are NULL for the root and for what is in an array. What is in an array stands on one line.
 */
#ifndef KR_IO_JSON_WRITE_H
#define KR_IO_JSON_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct kr_json_writer {
    char *text;
    size_t capacity, length;
    int depth, ninline;     /* objects and arrays that are open; those from the outermost array on */
    bool has_value;         /* the innermost one has one already */
    bool has_bare_infinity; /* infinities as the word Infinity, which Python reads; else as {"__float__": "Infinity"} */
} kr_json_writer;

void kr_json_write_begin(kr_json_writer *w, char *text, size_t bytes);

/* Ends the last line and the text. */
void kr_json_write_end(kr_json_writer *w);

/* bracket: '{' or '[', and its other half. */
void kr_json_write_open(kr_json_writer *w, const char *key, char bracket);
void kr_json_write_close(kr_json_writer *w, char bracket);

void kr_json_write_integer(kr_json_writer *w, const char *key, int64_t value);
void kr_json_write_bool(kr_json_writer *w, const char *key, bool value);
void kr_json_write_string(kr_json_writer *w, const char *key, const char *value); /* UTF-8 */

/* With the fewest digits that are read back as the same double; not NaN. */
void kr_json_write_number(kr_json_writer *w, const char *key, double value);

#endif
