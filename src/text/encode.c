/* encode.c - a text to ids: added tokens are extracted, the text between them runs through normaliser, pre-tokenizer
 * and merges. */
#include "base/sized.h"
#include "text/tokenizer_impl.h"
#include "io/utf8.h"

KR_DEFAULTS(kr_encode_options) = { .size = sizeof(kr_encode_options), .add_special = true, .parse_special = true };

int64_t kr_tokenizer_max_ids(const kr_tokenizer *tok, size_t bytes)
{
    if (!tok) return 0;
    /* each byte makes at most one id; a space may be inserted before each piece, and NFC may lengthen a text */
    int64_t growth = tok->uses_nfc ? KR_NFC_GROWTH : 1;
    for (int i = 0; i < tok->nstages; i++)
        if (tok->stages[i].kind == KR_STAGE_SPACE) growth *= 2;
    const int64_t around = tok->nbefore + tok->nafter;
    return bytes > (size_t)((INT64_MAX - around) / growth) ? INT64_MAX : (int64_t)bytes * growth + around;
}

/* ---- characters adjacent to added tokens ---- */

static bool is_white_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* Length of the character at text[at..end), or of the one that ends at `at`; 0: none. */
static size_t char_after(const char *text, size_t at, size_t end)
{
    return at < end ? kr_utf8_length((const unsigned char *)text + at, end - at) : 0;
}

static size_t char_before(const char *text, size_t at)
{
    for (size_t length = 1; length <= 4 && length <= at; length++)
        if (kr_utf8_length((const unsigned char *)text + at - length, length) == length) return length;
    return 0;
}

static bool is_white(const char *text, size_t length)
{
    return length > 0 && is_white_space(kr_utf8_read((const unsigned char *)text, length));
}

/* 1: a word character; 0: not, or no character; -1 after an error. */
static int is_word(kr_encoder *e, const char *text, size_t length)
{
    kr_match match;
    return length == 0 ? 0 : kr_regex_find(e->tok->word, text, length, 0, &match);
}

/* ---- added tokens ---- */

typedef bool text_fn(kr_encoder *e, const char *text, size_t bytes, bool is_joined);

typedef struct section {
    const char *text;
    size_t bytes;
    bool is_joined; /* as in pretokenize.c */
} section;

/* The actual begin and end of a token that was found: -1 after an error, 0 if it does not count. */
static int adjust_bounds(kr_encoder *e, const section *s, size_t done, const kr_added_token *token, size_t *begin,
                         size_t *end)
{
    if (*begin < done || (token->is_special && !e->parse_special)) return 0;
    if (token->is_single_word) {
        const size_t before = char_before(s->text, *begin), after = char_after(s->text, *end, s->bytes);
        const int left = is_word(e, s->text + *begin - before, before), right = is_word(e, s->text + *end, after);
        if (left < 0 || right < 0) return -1;
        if (left || right) return 0;
    }
    for (size_t n; token->takes_left && (n = char_before(s->text, *begin)) <= *begin - done; *begin -= n)
        if (!is_white(s->text + *begin - n, n)) break;
    for (size_t n; token->takes_right && (n = char_after(s->text, *end, s->bytes)) > 0; *end += n)
        if (!is_white(s->text + *end, n)) break;
    return 1;
}

/* Appends the ids of the tokens, and calls `rest` for the text between them. */
static bool encode_added(kr_encoder *e, section s, const kr_matcher *matcher, kr_buffer *hits, text_fn *rest)
{
    kr_search search;
    kr_hit hit;
    size_t done = 0, from = 0;
    int found;
    kr_search_begin(&search, matcher, s.text, s.bytes, hits, &e->work);
    while ((found = kr_search_next(&search, from, &hit)) > 0) {
        const kr_added_token *token = &e->tok->added[hit.token];
        size_t begin = hit.at, end = hit.at + token->pattern_bytes;
        from = end;
        const int counts = adjust_bounds(e, &s, done, token, &begin, &end);
        if (counts < 0) return false;
        if (counts == 0) continue;
        if (begin > done && !rest(e, s.text + done, begin - done, done == 0 && s.is_joined)) return false;
        kr_encoder_put(e, token->id);
        done = end;
    }
    return found == 0 && (done == s.bytes || rest(e, s.text + done, s.bytes - done, done == 0 && s.is_joined));
}

/* A span of valid UTF-8. */
static bool encode_valid(kr_encoder *e, const char *text, size_t bytes, bool is_joined)
{
    if (e->tok->uses_nfc && !kr_nfc_normalize(&e->nfc, &text, &bytes)) return false;
    const section s = { text, bytes, is_joined };
    return encode_added(e, s, &e->tok->normalized, &e->normalized_hits, kr_pretokenize);
}

static bool encode_any(kr_encoder *e, const char *text, size_t bytes, bool is_joined)
{
    for (size_t at = 0, begin = 0; at < bytes || begin < bytes;) {
        const size_t length = at < bytes ? kr_utf8_length((const unsigned char *)text + at, bytes - at) : 0;
        if (length > 0) {
            at += length;
            continue;
        }
        if (at > begin && !encode_valid(e, text + begin, at - begin, is_joined)) return false;
        if (at < bytes && !kr_bpe(e, text + at, 1)) return false;
        is_joined = true;
        begin = ++at;
    }
    return true;
}

/* ---- all ---- */

static bool encode(kr_encoder *e, const char *text, size_t bytes, bool add_special)
{
    const kr_tokenizer *tok = e->tok;
    for (int i = 0; i < tok->nstages; i++)
        if (tok->stages[i].regex) kr_regex_begin(tok->stages[i].regex, bytes);
    if (tok->word) kr_regex_begin(tok->word, bytes);
    for (int64_t i = 0; add_special && i < tok->nbefore; i++) kr_encoder_put(e, tok->before[i]);
    const section all = { text, bytes, false };
    if (!encode_added(e, all, &tok->raw, &e->raw_hits, encode_any)) return false;
    for (int64_t i = 0; add_special && i < tok->nafter; i++) kr_encoder_put(e, tok->after[i]);
    return true;
}

static void encoder_free(kr_encoder *e)
{
    kr_nfc_free(&e->nfc);
    kr_buffer_free(&e->raw_hits);
    kr_buffer_free(&e->normalized_hits);
    for (int i = 0; i <= KR_MAX_STAGES; i++) kr_buffer_free(&e->stage_texts[i]);
    kr_buffer_free(&e->symbols);
    kr_buffer_free(&e->heap);
}

static void encoder_init(kr_encoder *e, const kr_tokenizer *tok, int32_t *ids, int64_t capacity)
{
    kr_ctx *ctx = tok->ctx;
    *e = (kr_encoder){ .ctx = ctx, .ids = ids, .capacity = capacity };
    e->tok = tok->self; /* caches which tokens encode to themselves */
    e->nfc.out.ctx = e->nfc.chars.ctx = e->nfc.sorted.ctx = ctx;
    e->raw_hits.ctx = e->normalized_hits.ctx = e->symbols.ctx = e->heap.ctx = ctx;
    for (int i = 0; i <= KR_MAX_STAGES; i++) e->stage_texts[i].ctx = ctx;
}

int64_t kr_tokenizer_encode(const kr_tokenizer *tok, const char *text, size_t bytes, const kr_encode_options *options,
                            int32_t *ids, int64_t capacity)
{
    if (!tok || kr_ctx_failed(tok->ctx)) return -1;
    kr_encode_options o;
    if (!KR_TAKE(tok->ctx, "tokenizer.encode", kr_encode_options, options, &o) ||
        !kr_require(tok->ctx, text || bytes == 0, KR_ERR_ARG, "tokenizer.encode: text is NULL, but has %zu bytes",
                    bytes) ||
        !kr_require(tok->ctx, capacity >= 0 && (ids || capacity == 0), KR_ERR_ARG,
                    "tokenizer.encode: ids is %s and capacity = %lld; ids must have space for capacity >= 0 ids",
                    ids ? "given" : "NULL", (long long)capacity))
        return -1;
    kr_encoder e;
    encoder_init(&e, tok, ids, capacity);
    e.parse_special = o.parse_special;
    bool done = true;
    if (tok->is_bytes)
        for (size_t i = 0; i < bytes; i++) kr_encoder_put(&e, (unsigned char)text[i]);
    else done = encode(&e, text ? text : "", bytes, o.add_special);
    encoder_free(&e);
    e.tok->work = e.work;
    return done ? e.count : -1;
}
