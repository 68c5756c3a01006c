/* tokenizer_impl.h - internals of a tokenizer, and the state of encoding one text.
 *
 *   text -> added tokens as they are written -> NFC -> added tokens of the normalised text -> pre-tokenizer's stages
 *        -> pieces -> merges -> ids
 *
 * Invalid bytes split a text into spans of valid UTF-8, before it is normalised; each of them is a separate piece.
 */
#ifndef KR_TEXT_TOKENIZER_IMPL_H
#define KR_TEXT_TOKENIZER_IMPL_H

#include "base/shared.h"
#include "base/sized.h"
#include "text/added_tokens.h"
#include "text/nfc.h"
#include "text/regex.h"
#include "text/token_maps.h"

#include <krait/text.h>

KR_DECLARE_DEFAULTS(kr_encode_options);

enum { KR_MAX_STAGES = 32, KR_MAX_TOKEN_ID = (1 << 24) - 1 };

typedef enum kr_split_behavior {
    KR_SPLIT_ISOLATED,             /* matches are pieces */
    KR_SPLIT_REMOVED,              /* matches are dropped */
    KR_SPLIT_MERGED_WITH_PREVIOUS, /* a match belongs to the piece before it */
    KR_SPLIT_MERGED_WITH_NEXT,     /* ... after it */
    KR_SPLIT_CONTIGUOUS            /* adjacent matches are one piece */
} kr_split_behavior;

typedef enum kr_stage_kind {
    KR_STAGE_SPLIT, /* by a regular expression or a literal */
    KR_STAGE_SPACE, /* inserts a space before every piece that begins with none */
    KR_STAGE_SPELL  /* bytes in the byte-level alphabet: later stages see that */
} kr_stage_kind;

typedef struct kr_stage {
    kr_stage_kind kind;
    kr_regex *regex; /* or */
    const char *literal;
    size_t literal_bytes;
    kr_split_behavior behavior;
    bool is_inverted; /* matches and the text between them are exchanged */
} kr_stage;

struct kr_tokenizer {
    kr_ctx *ctx;
    kr_tokenizer *self; /* caches properties of the tokens that encoding computes */
    kr_shared *shared;  /* counts the tokenizers over the tables, and has the memory of the arena */
    bool is_first;      /* the one that made the tables; the others have copies of this struct */
    kr_arena arena;     /* the tables: complete before they are shared, except for kr_token.is_whole */
    bool is_bytes;      /* no file: ids are bytes */

    kr_token *tokens; /* of the vocabulary, then the added ones */
    int64_t ntokens;
    uint32_t *by_id; /* 1 + index in tokens; 0: no token */
    int64_t size;    /* one past the largest id */
    size_t longest;  /* bytes of a token */

    kr_token_map by_text; /* those of the vocabulary, spelt in the byte-level alphabet */
    kr_merge_map merges;
    int32_t byte_tokens[256]; /* -1: none */
    int32_t unknown;          /* token for such bytes; -1: none */
    bool fuses_unknown, ignores_merges;

    kr_added_token *added;
    kr_token *names; /* of the added tokens, as the file has them */
    kr_token_map by_name;
    int64_t nadded;
    kr_matcher raw, normalized;
    kr_regex *word; /* one word character; NULL: no added token needs it */
    bool uses_nfc;

    kr_stage stages[KR_MAX_STAGES];
    int nstages;
    bool is_spelt; /* the stages output pieces in the byte-level alphabet */

    int32_t *before, *after; /* ids that the post-processor adds around a text */
    int64_t nbefore, nafter;

    uint64_t work; /* steps of the last encoding, for tests of its growth; the last member: not read by other threads */
};

/* ---- one text ---- */

typedef struct kr_encoder {
    kr_ctx *ctx;
    kr_tokenizer *tok;
    bool parse_special;
    int32_t *ids;
    int64_t capacity, count;
    kr_nfc nfc;
    kr_buffer raw_hits, normalized_hits;
    kr_buffer stage_texts[KR_MAX_STAGES + 1];
    kr_buffer symbols, heap;
    uint64_t work;
} kr_encoder;

static inline void kr_encoder_put(kr_encoder *e, int32_t id)
{
    if (e->count < e->capacity) e->ids[e->count] = id;
    e->count++;
}

/* Runs a span of valid UTF-8 without added tokens through the stages. is_joined: it follows an invalid byte. */
bool kr_pretokenize(kr_encoder *e, const char *text, size_t bytes, bool is_joined);

/* The ids of a piece, bytes >= 1. */
bool kr_bpe(kr_encoder *e, const char *piece, size_t bytes);

/* ---- construction ---- */

/* Without tokens; NULL after an error. */
kr_tokenizer *kr_tokenizer_new(kr_ctx *ctx);

static inline const kr_token *kr_token_of(const kr_tokenizer *tok, int64_t id)
{
    if (id < 0 || id >= tok->size || tok->by_id[id] == 0) return NULL;
    return &tok->tokens[tok->by_id[id] - 1];
}

#endif
