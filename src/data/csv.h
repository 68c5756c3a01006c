/* csv.h - lines of a table in a text, and numbers in its fields.
 *
 * A line ends with \n or \r\n. Fields are separated by the delimiter; spaces around a field are ignored, and so are
 * double quotes around it, within which a delimiter is an ordinary character. A byte order mark at the beginning is
 * skipped. A line of spaces only is blank.
 */
#ifndef KR_DATA_CSV_H
#define KR_DATA_CSV_H

#include "io/file.h"

typedef struct kr_csv {
    kr_ctx *ctx;
    const char *path; /* its owner's */
    kr_file file;
    char delimiter;
} kr_csv;

typedef struct kr_csv_field {
    const char *text;
    size_t length;
} kr_csv_field;

/* Position of the reader: the next line's first byte, and the number of lines read. */
typedef struct kr_csv_position {
    size_t at;
    int64_t line;
} kr_csv_position;

/* False with the context's error set, and nothing to close. */
bool kr_csv_open(kr_csv *csv, kr_ctx *ctx, const char *path, char delimiter);
void kr_csv_close(kr_csv *csv);
kr_csv_position kr_csv_begin(const kr_csv *csv);

typedef enum kr_csv_line { KR_CSV_ROW, KR_CSV_BLANK, KR_CSV_END, KR_CSV_BAD } kr_csv_line;

/* Splits the next line into fields and counts them; fields after the first `capacity` are only counted. BAD: the
 * context's error is set, and names file and line. */
kr_csv_line kr_csv_next(const kr_csv *csv, kr_csv_position *position, kr_csv_field *fields, int64_t capacity,
                        int64_t *count);

/* Is it empty, or NA, N/A, NaN or null, in any case of letters? */
bool kr_csv_is_missing(const kr_csv_field *field);

/* -? digits [. digits] [e digits], a + allowed in front; finite in f32. False with an error that names file, line and
 * column, which counts from 0 here and from 1 there. */
bool kr_csv_number(const kr_csv *csv, const kr_csv_position *position, const kr_csv_field *field, int64_t column,
                   float *x);

#endif
