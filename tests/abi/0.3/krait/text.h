/* text.h - tokenizers: byte-level BPE from a tokenizer.json, or plain bytes.
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
 * Any bytes can be encoded, valid UTF-8 or not, and decode to themselves unless the file specifies a normaliser.
 * Encoding takes O(n log n) time. */
#ifndef KRAIT_TEXT_H
#define KRAIT_TEXT_H

#include <krait/ctx.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kr_tokenizer kr_tokenizer;

/* Loads Hugging Face's tokenizer.json with a byte-level BPE model, as for GPT-NeoX and Llama-3. An unsupported feature
 * is an error that names it. NULL after an error. */
KR_API kr_tokenizer *kr_tokenizer_load(kr_ctx *ctx, const char *path);
KR_API kr_tokenizer *kr_tokenizer_parse(kr_ctx *ctx, const char *json, size_t bytes);

/* A tokenizer of 256 tokens, one per byte. */
KR_API kr_tokenizer *kr_tokenizer_bytes(kr_ctx *ctx);
KR_API void kr_tokenizer_destroy(kr_tokenizer *tok);

/* Creates a tokenizer in `ctx` over the tables of `tok`, which belongs to any context: vocabulary, merges and compiled
 * expressions are shared, not copied.
 *
 * Ownership: the caller destroys the result before `ctx`; it may outlive `tok` and its context. The last of the tokenizers
 * frees the tables, as the last network frees shared weights (kr_network_share).
 * Thread safety: may be called while other threads use `tok`; each thread encodes with the tokenizer of its context.
 * Errors: NULL. */
KR_API kr_tokenizer *kr_tokenizer_share(kr_ctx *ctx, const kr_tokenizer *tok);

typedef struct kr_encode_options {
    size_t size;        /* set by kr_encode_options_init */
    bool add_special;   /* true: apply the post-processor of the file, which adds <|begin_of_text|>, for example */
    bool parse_special; /* true: recognise special tokens in the text; false: they are plain text */
} kr_encode_options;
#define kr_encode_options_init(options) KR_STRUCT_INIT(ENCODE_OPTIONS, kr_encode_options, options)

/* Upper bound on the number of ids for a text of `bytes` bytes. */
KR_API int64_t kr_tokenizer_max_ids(const kr_tokenizer *tok, size_t bytes);

/* Encodes a text. Returns the number of ids, which may exceed capacity; then only the first ones are written. -1 after
 * an error. NULL options: all defaults. */
KR_API int64_t kr_tokenizer_encode(const kr_tokenizer *tok, const char *text, size_t bytes,
                                   const kr_encode_options *options, int32_t *ids, int64_t capacity);

/* Returns a split point in the second half of text[0..bytes), the start of a longer text, at which both parts encode to
 * the ids of the whole. If there is none, it is a character boundary, and a token across it becomes two. Less than
 * KR_SPLIT_MIN_BYTES bytes are not split. */
#define KR_SPLIT_MIN_BYTES ((size_t)1024)
KR_API size_t kr_tokenizer_split(const kr_tokenizer *tok, const char *text, size_t bytes,
                                 const kr_encode_options *options);

/* Decodes ids as snprintf does, but without a final zero: returns the number of bytes. skip_special omits special
 * tokens. An invalid id gives no bytes. */
KR_API size_t kr_tokenizer_decode(const kr_tokenizer *tok, const int32_t *ids, int64_t count, bool skip_special,
                                  char *text, size_t capacity);

/* The largest id plus one. */
KR_API int64_t kr_tokenizer_size(const kr_tokenizer *tok);

typedef struct kr_token_info {
    const char *text; /* the exact bytes of the token; NULL for an invalid id */
    size_t bytes;
    bool is_special;
    uint64_t reserved[4]; /* 0; for later versions */
} kr_token_info;

/* Properties of a token. The text is valid as long as the tokenizer. The functions below return one field each. */
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

/* The id of an added token by its text ("<|endoftext|>"); -1 if there is none. */
KR_API int32_t kr_tokenizer_find(const kr_tokenizer *tok, const char *text);

/* ---- streaming ---- */

/* Decodes token by token into complete text: the bytes of an incomplete character are buffered. */
typedef struct kr_text_stream kr_text_stream;
KR_API kr_text_stream *kr_text_stream_create(const kr_tokenizer *tok);
KR_API void kr_text_stream_destroy(kr_text_stream *stream);

/* Adds a token and returns the text that is complete now, *bytes long; valid until the next call. Special tokens give
 * no text. Invalid UTF-8 is returned unchanged. NULL after an error. */
KR_API const char *kr_text_stream_put(kr_text_stream *stream, int32_t id, size_t *bytes);

/* Returns the buffered bytes of an incomplete character and resets the stream. */
KR_API const char *kr_text_stream_end(kr_text_stream *stream, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
