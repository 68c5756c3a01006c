/* token_file.c - token files: a header, ids, and the positions where documents begin. */
#include "data/token_file.h"

#include <string.h>

enum { HEADER_BYTES = 64, START_BYTES = 8, VERSION = 1, WRITE_BYTES = 1 << 16 };

static const char magic[] = "KRTOKENS";

static uint64_t padded(uint64_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

/* ---- reading ---- */

void kr_tokens_close(kr_tokens *tokens)
{
    kr_file_close(&tokens->file);
    kr_bytes_free(tokens->ctx, &tokens->name);
    kr_bytes_free(tokens->ctx, &tokens->id_memory);
    kr_bytes_free(tokens->ctx, &tokens->start_memory);
}

static bool open_mapped(kr_tokens *tokens, kr_ctx *ctx, const char *path)
{
    *tokens = (kr_tokens){ .ctx = ctx, .separator = -1 };
    if (!kr_file_open(&tokens->file, ctx, path, true)) return false;
    char *name = kr_bytes_more(ctx, &tokens->name, strlen(path) + 1, "tokens");
    if (name) memcpy(name, path, strlen(path) + 1);
    return name;
}

/* Sizes first, so that nothing behind the header is looked at before they are known to fit. */
static bool read_header(kr_tokens *tokens, const char *path)
{
    kr_ctx *ctx = tokens->ctx;
    const unsigned char *data = tokens->file.data;
    const uint64_t bytes = tokens->file.bytes;
    if (!kr_require(ctx, bytes >= HEADER_BYTES && !memcmp(data, magic, 8), KR_ERR_FORMAT,
                    "%s: not a token file: it does not begin with %s and a header of %d bytes", path, magic,
                    HEADER_BYTES))
        return false;
    const uint64_t version = kr_little_get(data + 8, 4), width = kr_little_get(data + 12, 4);
    const uint64_t count = kr_little_get(data + 16, 8), documents = kr_little_get(data + 24, 8);
    const uint64_t n_ids = kr_little_get(data + 32, 8);
    if (!kr_require(ctx, version == VERSION, KR_ERR_FORMAT, "%s: token file of version %llu, but %d is known", path,
                    (unsigned long long)version, VERSION) ||
        !kr_require(ctx, width == 2 || width == 4, KR_ERR_FORMAT, "%s: ids of %llu bytes, but they have 2 or 4", path,
                    (unsigned long long)width) ||
        !kr_require(ctx, n_ids > 0 && n_ids <= (width == 2 ? 65536 : (uint64_t)INT32_MAX), KR_ERR_FORMAT,
                    "%s: ids below %llu do not fit %llu bytes", path, (unsigned long long)n_ids,
                    (unsigned long long)width) ||
        !kr_require(ctx, count > 0 && documents > 0 && documents <= count, KR_ERR_FORMAT,
                    "%s: %llu documents in %llu ids: both must be at least 1, and documents no more than ids", path,
                    (unsigned long long)documents, (unsigned long long)count))
        return false;
    const bool fits = count <= bytes / width && documents <= bytes / START_BYTES;
    if (!kr_require(ctx, fits && HEADER_BYTES + padded(count * width) + documents * START_BYTES == bytes, KR_ERR_FORMAT,
                    "%s: has %llu bytes, which %llu ids of %llu bytes and %llu documents do not add up to", path,
                    (unsigned long long)bytes, (unsigned long long)count, (unsigned long long)width,
                    (unsigned long long)documents))
        return false;
    tokens->width = (int)width;
    tokens->count = (int64_t)count;
    tokens->n_starts = (int64_t)documents;
    tokens->n_ids = (int64_t)n_ids;
    tokens->ids = data + HEADER_BYTES;
    tokens->starts = data + HEADER_BYTES + padded(count * width);
    return true;
}

static int64_t start_at(const kr_tokens *tokens, int64_t i)
{
    return (int64_t)kr_little_get(tokens->starts + i * START_BYTES, START_BYTES);
}

static bool check_starts(const kr_tokens *tokens, const char *path)
{
    int64_t last = -1;
    for (int64_t i = 0; i < tokens->n_starts; i++) {
        const int64_t start = start_at(tokens, i);
        if (!kr_require(
                tokens->ctx, i == 0 ? start == 0 : start > last && start < tokens->count, KR_ERR_FORMAT,
                "%s: at byte %llu: document %lld begins at id %lld, but starts must ascend from 0 and be below %lld",
                path, (unsigned long long)(tokens->starts - tokens->file.data + i * START_BYTES), (long long)i,
                (long long)start, (long long)tokens->count))
            return false;
        last = start;
    }
    return true;
}

bool kr_tokens_open(kr_tokens *tokens, kr_ctx *ctx, const char *path)
{
    const bool ok = open_mapped(tokens, ctx, path) && read_header(tokens, path) && check_starts(tokens, path);
    if (!ok) kr_tokens_close(tokens);
    return ok;
}

bool kr_tokens_open_raw(kr_tokens *tokens, kr_ctx *ctx, const char *path, int width, int64_t n_ids, int64_t separator)
{
    bool ok = open_mapped(tokens, ctx, path);
    if (ok) {
        const size_t bytes = tokens->file.bytes;
        ok = kr_require(ctx, bytes > 0 && bytes % (size_t)width == 0, KR_ERR_FORMAT,
                        "%s: has %zu bytes, which is not a number of ids of %d bytes", path, bytes, width);
        tokens->ids = tokens->file.data;
        tokens->width = width;
        tokens->count = (int64_t)(bytes / (size_t)width);
        tokens->n_ids = n_ids;
        tokens->separator = separator;
    }
    if (!ok) kr_tokens_close(tokens);
    return ok;
}

bool kr_tokens_read(const kr_tokens *tokens, int64_t from, int64_t count, int32_t *ids)
{
    const unsigned char *at = tokens->ids + from * tokens->width;
    for (int64_t i = 0; i < count; i++, at += tokens->width) {
        const uint64_t id = tokens->width == 2 ? (uint64_t)at[0] | (uint64_t)at[1] << 8 : kr_little_get(at, 4);
        if (id >= (uint64_t)tokens->n_ids)
            return kr_fail(tokens->ctx, KR_ERR_FORMAT, "%s: at byte %llu: id %llu, but ids are below %lld",
                           tokens->name.data ? (const char *)tokens->name.data : "tokens",
                           (unsigned long long)(tokens->file.data ? at - tokens->file.data : at - tokens->ids),
                           (unsigned long long)id, (long long)tokens->n_ids);
        ids[i] = (int32_t)id;
    }
    return true;
}

int64_t kr_tokens_find_start(const kr_tokens *tokens, int64_t from, int64_t to)
{
    if (from >= to || from <= 0) return from < to ? from : to;
    if (tokens->starts) {
        int64_t low = 0, high = tokens->n_starts; /* the first start >= from is in [low, high] */
        while (low < high) {
            const int64_t middle = low + (high - low) / 2;
            if (start_at(tokens, middle) < from) low = middle + 1;
            else high = middle;
        }
        const int64_t start = low < tokens->n_starts ? start_at(tokens, low) : to;
        return start < to ? start : to;
    }
    if (tokens->separator < 0) return to;
    for (int64_t i = from; i < to; i++) {
        const unsigned char *before = tokens->ids + (i - 1) * tokens->width;
        if (kr_little_get(before, tokens->width) == (uint64_t)tokens->separator) return i;
    }
    return to;
}

/* ---- writing ---- */

static void release(kr_token_writer *w)
{
    kr_file_discard(&w->id_file);
    kr_file_discard(&w->start_file);
    kr_bytes_free(w->ctx, &w->ids);
    kr_bytes_free(w->ctx, &w->starts);
}

bool kr_token_writer_begin(kr_token_writer *w, kr_ctx *ctx, const char *path, int64_t n_ids)
{
    static const unsigned char empty[HEADER_BYTES];
    *w = (kr_token_writer){ .ctx = ctx, .path = path, .width = n_ids <= 65536 ? 2 : 4, .n_ids = n_ids, .begins = true };
    w->id_file.ctx = w->start_file.ctx = ctx;
    const bool ok = !path || (kr_file_create(&w->id_file, ctx, path) && kr_file_create(&w->start_file, ctx, path) &&
                              kr_file_write(&w->id_file, empty, HEADER_BYTES));
    if (!ok) release(w);
    return ok;
}

bool kr_token_writer_document(kr_token_writer *w)
{
    w->begins = true;
    return true;
}

/* Flushes the buffered ids, if there are many or with `all`. */
static bool flush(kr_token_writer *w, kr_file_writer *file, kr_bytes *bytes, bool all)
{
    if (!w->path || (!all && bytes->used < WRITE_BYTES)) return true;
    const bool ok = kr_file_write(file, bytes->data, bytes->used);
    bytes->used = 0;
    return ok;
}

bool kr_token_writer_put(kr_token_writer *w, const int32_t *ids, int64_t count)
{
    enum { AT_ONCE = 4096 };
    if (count > 0 && w->begins) {
        unsigned char *start = kr_bytes_more(w->ctx, &w->starts, START_BYTES, "tokens");
        if (!start) return false;
        kr_little_put(start, (uint64_t)w->count, START_BYTES);
        w->n_starts++;
        w->begins = false;
        if (!flush(w, &w->start_file, &w->starts, false)) return false;
    }
    for (int64_t done = 0; done < count;) {
        const int64_t n = count - done < AT_ONCE ? count - done : AT_ONCE;
        unsigned char *at = kr_bytes_more(w->ctx, &w->ids, (size_t)(n * w->width), "tokens");
        if (!at) return false;
        for (int64_t i = 0; i < n; i++, at += w->width) {
            const int32_t id = ids[done + i];
            if (!kr_require(w->ctx, id >= 0 && id < w->n_ids, KR_ERR_ARG, "tokens: id %d, but ids are below %lld",
                            (int)id, (long long)w->n_ids))
                return false;
            kr_little_put(at, (uint64_t)id, w->width);
        }
        done += n;
        w->count += n;
        if (!flush(w, &w->id_file, &w->ids, false)) return false;
    }
    return true;
}

/* The starts were gathered in a file of their own: they are put behind the ids. */
static bool append_starts(kr_token_writer *w)
{
    static const unsigned char zeros[8];
    const uint64_t bytes = (uint64_t)w->count * (uint64_t)w->width;
    kr_file starts;
    if (!flush(w, &w->id_file, &w->ids, true) || !flush(w, &w->start_file, &w->starts, true) ||
        !kr_file_write(&w->id_file, zeros, padded(bytes) - bytes) || !kr_file_finish(&w->start_file) ||
        !kr_file_open(&starts, w->ctx, w->start_file.temporary, true))
        return false;
    const bool ok = kr_file_write(&w->id_file, starts.data, starts.bytes);
    kr_file_close(&starts);
    return ok;
}

static bool commit_file(kr_token_writer *w)
{
    unsigned char header[HEADER_BYTES] = { 0 };
    memcpy(header, magic, 8);
    kr_little_put(header + 8, VERSION, 4);
    kr_little_put(header + 12, (uint64_t)w->width, 4);
    kr_little_put(header + 16, (uint64_t)w->count, 8);
    kr_little_put(header + 24, (uint64_t)w->n_starts, 8);
    kr_little_put(header + 32, (uint64_t)w->n_ids, 8);
    return append_starts(w) && kr_file_write_first(&w->id_file, header, HEADER_BYTES) && kr_file_commit(&w->id_file);
}

bool kr_token_writer_end(kr_token_writer *w, bool commits, kr_tokens *tokens)
{
    bool ok = commits && kr_require(w->ctx, w->count > 0, KR_ERR_FORMAT,
                                    "tokens: the file would be empty; write at least one token");
    if (ok && w->path) ok = commit_file(w) && (!tokens || kr_tokens_open(tokens, w->ctx, w->path));
    else if (ok && tokens) {
        *tokens = (kr_tokens){ .ctx = w->ctx, .separator = -1, .id_memory = w->ids, .start_memory = w->starts };
        tokens->file.ctx = w->ctx;
        tokens->ids = w->ids.data;
        tokens->starts = w->starts.data;
        tokens->width = w->width;
        tokens->count = w->count;
        tokens->n_starts = w->n_starts;
        tokens->n_ids = w->n_ids;
        w->ids = w->starts = (kr_bytes){ NULL, 0, 0 };
    }
    release(w);
    return ok;
}
