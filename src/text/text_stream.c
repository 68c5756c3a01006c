/* text_stream.c - decodes a stream of tokens into whole characters.
 *
 * At most three bytes are pending: a proper prefix of one UTF-8 character. They are returned as soon as the character
 * is complete, or cannot be completed any more.
 */
#include "text/tokenizer_impl.h"
#include "io/utf8.h"

enum { MOST_PENDING = 3 };

struct kr_text_stream {
    kr_ctx *ctx;
    const kr_tokenizer *tok;
    char *text;      /* the bytes returned last, then the pending ones */
    size_t capacity; /* of text: the longest token, pending bytes, a terminating zero */
    size_t returned; /* bytes returned last */
    size_t pending;  /* pending bytes after them */
    char hidden;     /* the byte overwritten by the terminating zero */
};

kr_text_stream *kr_text_stream_create(const kr_tokenizer *tok)
{
    if (!tok || kr_ctx_failed(tok->ctx)) return NULL;
    kr_memory *memory = &tok->ctx->memory;
    kr_text_stream *stream = kr_memory_alloc_zeroed(memory, sizeof *stream);
    const size_t capacity = tok->longest + MOST_PENDING + 1;
    char *text = stream ? kr_memory_alloc_zeroed(memory, capacity) : NULL;
    if (!text) {
        kr_fail(tok->ctx, KR_ERR_NOMEM, "text_stream: no memory for a stream");
        kr_memory_free(memory, stream, sizeof *stream);
        return NULL;
    }
    *stream = (kr_text_stream){ .ctx = tok->ctx, .tok = tok, .text = text, .capacity = capacity };
    return stream;
}

void kr_text_stream_destroy(kr_text_stream *stream)
{
    if (!stream) return;
    kr_memory *memory = &stream->tok->ctx->memory;
    kr_memory_free(memory, stream->text, stream->capacity);
    kr_memory_free(memory, stream, sizeof *stream);
}

/* text[0..total): returns all but the last `pending` bytes, zero-terminated. */
static const char *return_text(kr_text_stream *stream, size_t total, size_t pending, size_t *bytes)
{
    stream->returned = total - pending;
    stream->pending = pending;
    stream->hidden = stream->text[stream->returned];
    stream->text[stream->returned] = '\0';
    if (bytes) *bytes = stream->returned;
    return stream->text;
}

/* Moves the pending bytes to the front; returns their number. */
static size_t move_pending(kr_text_stream *stream)
{
    if (stream->pending > 0) {
        stream->text[stream->returned] = stream->hidden;
        memmove(stream->text, stream->text + stream->returned, stream->pending);
    }
    return stream->pending;
}

const char *kr_text_stream_put(kr_text_stream *stream, int32_t id, size_t *bytes)
{
    if (bytes) *bytes = 0;
    if (!stream) return NULL;
    size_t total = move_pending(stream);
    const kr_token *token = kr_token_of(stream->tok, id);
    if (token && !token->is_special) {
        memcpy(stream->text + total, token->text, token->bytes);
        total += token->bytes;
    }
    return return_text(stream, total, kr_utf8_unfinished((const unsigned char *)stream->text, total), bytes);
}

const char *kr_text_stream_end(kr_text_stream *stream, size_t *bytes)
{
    if (bytes) *bytes = 0;
    if (!stream) return NULL;
    return return_text(stream, move_pending(stream), 0, bytes);
}
