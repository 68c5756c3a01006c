/* jsonl.h - JSON Lines: one string field of the object on each line. */
#ifndef KR_DATA_JSONL_H
#define KR_DATA_JSONL_H

#include "io/file.h"

typedef struct kr_jsonl {
    kr_ctx *ctx;
    const char *path, *field; /* the caller's, until the end */
    kr_file file;
    kr_arena arena; /* of the present line */
    size_t at;
    int64_t line; /* from 1 */
} kr_jsonl;

/* False with the context's error set, and nothing to close. */
bool kr_jsonl_open(kr_jsonl *lines, kr_ctx *ctx, const char *path, const char *field);
void kr_jsonl_close(kr_jsonl *lines);

/* The field of the next line that is not blank, until the next call; NULL at the end or with the context's error set,
 * which names file and line. */
const char *kr_jsonl_next(kr_jsonl *lines, size_t *bytes);

#endif
