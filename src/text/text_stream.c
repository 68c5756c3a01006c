/* text_stream.c - tokens as they come, put together to whole characters.
 *
 * What waits is at most three bytes: a proper beginning of one UTF-8 character. It goes out as soon as the character is
 * whole, or cannot become one any more.
 */
#include "text/tokenizer_impl.h"
#include "io/utf8.h"

enum { MOST_WAITING = 3 };

struct kr_text_stream {
    kr_ctx *ctx;
    const kr_tokenizer *tok;
    char *text;     /* what was given out last, then what waits */
    size_t room;    /* of text: the longest token, what waits, a final zero */
    size_t shown;   /* bytes that were given out */
    size_t waiting; /* bytes behind them */
    char hidden;    /* the byte that the final zero took the place of */
};

kr_text_stream *kr_text_stream_create(const kr_tokenizer *tok)
{
    if (!tok || kr_ctx_failed(tok->ctx)) return NULL;
    kr_memory *memory = &tok->ctx->memory;
    kr_text_stream *stream = kr_memory_alloc_zeroed(memory, sizeof *stream);
    const size_t room = tok->longest + MOST_WAITING + 1;
    char *text = stream ? kr_memory_alloc_zeroed(memory, room) : NULL;
    if (!text) {
        kr_fail(tok->ctx, KR_ERR_NOMEM, "text_stream: no memory for a stream");
        kr_memory_free(memory, stream, sizeof *stream);
        return NULL;
    }
    *stream = (kr_text_stream){ .ctx = tok->ctx, .tok = tok, .text = text, .room = room };
    return stream;
}

void kr_text_stream_destroy(kr_text_stream *stream)
{
    if (!stream) return;
    kr_memory *memory = &stream->tok->ctx->memory;
    kr_memory_free(memory, stream->text, stream->room);
    kr_memory_free(memory, stream, sizeof *stream);
}

/* text[0..total): shows all but the last `waiting` bytes, with a zero behind them. */
static const char *show(kr_text_stream *stream, size_t total, size_t waiting, size_t *bytes)
{
    stream->shown = total - waiting;
    stream->waiting = waiting;
    stream->hidden = stream->text[stream->shown];
    stream->text[stream->shown] = '\0';
    if (bytes) *bytes = stream->shown;
    return stream->text;
}

/* What waits comes to the front; how much. */
static size_t bring_forward(kr_text_stream *stream)
{
    if (stream->waiting > 0) {
        stream->text[stream->shown] = stream->hidden;
        memmove(stream->text, stream->text + stream->shown, stream->waiting);
    }
    return stream->waiting;
}

const char *kr_text_stream_put(kr_text_stream *stream, int32_t id, size_t *bytes)
{
    if (bytes) *bytes = 0;
    if (!stream) return NULL;
    size_t total = bring_forward(stream);
    const kr_token *token = kr_token_of(stream->tok, id);
    if (token && !token->is_special) {
        memcpy(stream->text + total, token->text, token->bytes);
        total += token->bytes;
    }
    return show(stream, total, kr_utf8_unfinished((const unsigned char *)stream->text, total), bytes);
}

const char *kr_text_stream_end(kr_text_stream *stream, size_t *bytes)
{
    if (bytes) *bytes = 0;
    if (!stream) return NULL;
    return show(stream, bring_forward(stream), 0, bytes);
}
