/* token_file.h - token ids and starts of documents: mapped from a file, or in memory.
 *
 *   kr_token_writer w;
 *   bool ok = kr_token_writer_begin(&w, ctx, path, 256);          // path NULL: in memory
 *   ok = ok && kr_token_writer_document(&w) && kr_token_writer_put(&w, ids, count);
 *   kr_tokens tokens;
 *   if (kr_token_writer_end(&w, ok, &tokens)) ...                 // tokens: the written ids, for reading
 *
 * The file format is described in <krait/data.h>.
 */
#ifndef KR_DATA_TOKEN_FILE_H
#define KR_DATA_TOKEN_FILE_H

#include "io/bytes.h"
#include "io/file.h"
#include "io/file_write.h"

typedef struct kr_tokens {
    kr_ctx *ctx;
    kr_bytes name; /* of the file, with a final zero, for messages */
    kr_file file;  /* or ... */
    kr_bytes id_memory, start_memory;
    const unsigned char *ids, *starts; /* little-endian: `width` bytes an id, 8 a start */
    int width;
    int64_t count, n_starts;
    int64_t n_ids;     /* every id is below it */
    int64_t separator; /* -1: `starts` lists the starts of documents; else a document begins after this id */
} kr_tokens;

/* False with the context's error set, and nothing to close. */
bool kr_tokens_open(kr_tokens *tokens, kr_ctx *ctx, const char *path);
bool kr_tokens_open_raw(kr_tokens *tokens, kr_ctx *ctx, const char *path, int width, int64_t n_ids, int64_t separator);
void kr_tokens_close(kr_tokens *tokens);

/* from and count within the tokens. An id that is not below n_ids is an error that names its byte. */
bool kr_tokens_read(const kr_tokens *tokens, int64_t from, int64_t count, int32_t *ids);

/* The first position in [from, to) where a document begins; `to` if there is none. */
int64_t kr_tokens_find_start(const kr_tokens *tokens, int64_t from, int64_t to);

typedef struct kr_token_writer {
    kr_ctx *ctx;
    const char *path; /* the caller's, until the end */
    kr_file_writer id_file, start_file;
    kr_bytes ids, starts; /* all of them, or with a path those that are not written yet */
    int width;
    int64_t count, n_starts, n_ids;
    bool begins; /* the next id begins a document */
} kr_token_writer;

/* False with the context's error set, and nothing to end. */
bool kr_token_writer_begin(kr_token_writer *w, kr_ctx *ctx, const char *path, int64_t n_ids);

/* The next id begins a document; the first one always does. Documents without ids are dropped. */
bool kr_token_writer_document(kr_token_writer *w);
bool kr_token_writer_put(kr_token_writer *w, const int32_t *ids, int64_t count);

/* Closes the writer in every case; without `commits` no file remains. tokens may be NULL. */
bool kr_token_writer_end(kr_token_writer *w, bool commits, kr_tokens *tokens);

#endif
