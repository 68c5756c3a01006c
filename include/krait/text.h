/* text.h - text to numbers and back: byte-level BPE out of a tokenizer.json, or plain bytes.
 *
 *   kr_tokenizer *tok = kr_tokenizer_bytes(ctx);                     // or kr_tokenizer_load(ctx, "tokenizer.json")
 *   int32_t ids[64];
 *   int64_t n = kr_tokenizer_encode(tok, "Hello world", 11, NULL, ids, 64);
 *   kr_text_stream *stream = kr_text_stream_create(tok);
 *   for (int64_t i = 0; i < n; i++) {
 *       size_t bytes;
 *       const char *text = kr_text_stream_put(stream, ids[i], &bytes);         // whole characters only
 *       fwrite(text, 1, bytes, stdout);
 *   }
 *   kr_text_stream_destroy(stream);
 *   kr_tokenizer_destroy(tok);
 *
 * Any bytes can be encoded, valid UTF-8 or not, and decode to themselves unless the file asks for a normalisation. The
 * time is proportional to the text, but for a logarithm.
 */
#ifndef KRAIT_TEXT_H
#define KRAIT_TEXT_H

#include <krait/ctx.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kr_tokenizer kr_tokenizer;

/* Hugging Face's tokenizer.json with a byte-level BPE model, as GPT-NeoX's and Llama-3's. Anything in it that is not
 * supported is refused by name. NULL after an error. */
KR_API kr_tokenizer *kr_tokenizer_load(kr_ctx *ctx, const char *path);
KR_API kr_tokenizer *kr_tokenizer_parse(kr_ctx *ctx, const char *json, size_t bytes);

/* 256 tokens: the bytes. */
KR_API kr_tokenizer *kr_tokenizer_bytes(kr_ctx *ctx);
KR_API void kr_tokenizer_destroy(kr_tokenizer *tok);

typedef struct kr_encode_options {
    size_t size;        /* set by kr_encode_options_init */
    bool add_special;   /* true: what the file's post-processor puts around a text, such as <|begin_of_text|> */
    bool parse_special; /* true: special tokens are recognised in the text; false: their letters are plain text */
} kr_encode_options;
#define kr_encode_options_init(options) KR_STRUCT_INIT(ENCODE_OPTIONS, kr_encode_options, options)

/* Upper bound on the number of ids for a text of `bytes` bytes. */
KR_API int64_t kr_tokenizer_max_ids(const kr_tokenizer *tok, size_t bytes);

/* The ids of a text; returns their number, which may be more than capacity: then only the first ones are written. -1
 * after an error. NULL options: all defaults. */
KR_API int64_t kr_tokenizer_encode(const kr_tokenizer *tok, const char *text, size_t bytes,
                                   const kr_encode_options *options, int32_t *ids, int64_t capacity);

/* Where the beginning text[0..bytes) of a longer text can be cut so that the two parts have the ids of the whole: a place
 * in its second half that pre-tokenizers cut at too, and that the tokenizer agrees to. Where there is none, between two
 * characters: a token that would have reached over it becomes two. Less than KR_SPLIT_MIN_BYTES bytes are not cut. */
#define KR_SPLIT_MIN_BYTES ((size_t)1024)
KR_API size_t kr_tokenizer_split(const kr_tokenizer *tok, const char *text, size_t bytes,
                                 const kr_encode_options *options);

/* The bytes of ids, as by snprintf but with no final zero: how many there are. skip_special: special tokens have none.
 * An id that is no token has none either. */
KR_API size_t kr_tokenizer_decode(const kr_tokenizer *tok, const int32_t *ids, int64_t count, bool skip_special,
                                  char *text, size_t capacity);

/* One past the largest id. */
KR_API int64_t kr_tokenizer_size(const kr_tokenizer *tok);

typedef struct kr_token_info {
    const char *text; /* the exact bytes that the token stands for; NULL for an id that is none */
    size_t bytes;
    bool is_special;
    uint64_t reserved[4]; /* 0; for later versions */
} kr_token_info;

/* What an id stands for, and each by itself; the text lives as long as the tokenizer. */
KR_API kr_token_info kr_tokenizer_token_info(const kr_tokenizer *tok, int32_t id);
KR_API_INLINE const char *kr_tokenizer_token(const kr_tokenizer *tok, int32_t id, size_t *bytes)
{
    const kr_token_info info = kr_tokenizer_token_info(tok, id);
    if (bytes) *bytes = info.bytes;
    return info.text;
}
KR_API_INLINE bool kr_tokenizer_is_special(const kr_tokenizer *tok, int32_t id)
{
    return kr_tokenizer_token_info(tok, id).is_special;
}

/* The id of an added token by its text ("<|endoftext|>"); -1: none. */
KR_API int32_t kr_tokenizer_find(const kr_tokenizer *tok, const char *text);

/* ---- as it comes ---- */

/* Puts tokens together to text that is complete: bytes that may be the beginning of a character wait for the rest. */
typedef struct kr_text_stream kr_text_stream;
KR_API kr_text_stream *kr_text_stream_create(const kr_tokenizer *tok);
KR_API void kr_text_stream_destroy(kr_text_stream *stream);

/* What can be shown after one more token, *bytes long; lives until the next call. Special tokens show nothing. Bytes
 * that cannot be UTF-8 are shown as they are. NULL after an error. */
KR_API const char *kr_text_stream_put(kr_text_stream *stream, int32_t id, size_t *bytes);

/* What still waits, though it is no whole character; the stream is then as new. */
KR_API const char *kr_text_stream_end(kr_text_stream *stream, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
