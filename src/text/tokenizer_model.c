/* tokenizer_model.c - the sections "model" and "added_tokens" of a tokenizer.json: vocabulary, merges, added tokens. */
#include "text/byte_level.h"
#include "text/tokenizer_read.h"
#include "io/utf8.h"

#define QUOTED(s, n) kr_quote_of((s), (n)).text

/* ---- ids ---- */

static bool read_id(kr_reader *r, const kr_json *value, const char *path, int32_t *id)
{
    const int64_t n = kr_json_integer(value, -1);
    *id = (int32_t)n;
    return (n >= 0 && n <= KR_MAX_TOKEN_ID) ||
           kr_refuse(r, path, "is not a whole number from 0 to %d", KR_MAX_TOKEN_ID);
}

static bool find_size(kr_reader *r, const kr_json *added)
{
    int32_t id;
    int64_t count = 0;
    for (const kr_json *member = kr_json_first(r->vocab); member; member = kr_json_next(member), count++) {
        if (!read_id(r, member,
                     kr_json_path_of("model.vocab: the id of \"%s\"", QUOTED(member->key, member->key_length)).text,
                     &id))
            return false;
        if (id >= r->tok->size) r->tok->size = id + 1;
    }
    int64_t i = 0;
    for (const kr_json *item = kr_json_first(added); item; item = kr_json_next(item), i++, count++) {
        if (!kr_read_kind(r, item, KR_JSON_OBJECT, kr_json_path_of("added_tokens[%lld]", (long long)i).text) ||
            !read_id(r, kr_json_find(item, "id"), kr_json_path_of("added_tokens[%lld].id", (long long)i).text, &id))
            return false;
        if (id >= r->tok->size) r->tok->size = id + 1;
    }
    r->tok->tokens = kr_arena_alloc(&r->tok->arena, (size_t)count * sizeof *r->tok->tokens);
    r->tok->by_id = kr_arena_alloc(&r->tok->arena, (size_t)r->tok->size * sizeof *r->tok->by_id);
    if (!r->tok->tokens || !r->tok->by_id) return kr_read_no_memory(r);
    memset(r->tok->by_id, 0, (size_t)r->tok->size * sizeof *r->tok->by_id);
    return true;
}

/* A new token at the end of the table. */
static kr_token *add_token(kr_tokenizer *tok, int32_t id, const char *text, size_t bytes)
{
    kr_token *token = &tok->tokens[tok->ntokens++];
    *token = (kr_token){ .text = text, .bytes = (uint32_t)bytes, .id = id };
    tok->by_id[id] = (uint32_t)tok->ntokens;
    if (bytes > tok->longest) tok->longest = bytes;
    return token;
}

/* ---- the vocabulary ---- */

/* The bytes that a word spells in the byte-level alphabet, at most as many as it has; false: it is not in that
 * alphabet. */
static bool read_spelt(const char *word, size_t length, char *bytes, size_t *count)
{
    *count = 0;
    for (size_t at = 0; at < length;) {
        const size_t n = kr_utf8_length((const unsigned char *)word + at, length - at);
        const int byte = kr_byte_level_byte(kr_utf8_read((const unsigned char *)word + at, n));
        if (byte < 0) return false;
        bytes[(*count)++] = (char)byte;
        at += n;
    }
    return true;
}

/* A word that is not in the alphabet is a token too, but no text encodes to it. */
static bool read_vocab(kr_reader *r)
{
    kr_tokenizer *tok = r->tok;
    size_t pool_bytes = 0;
    for (const kr_json *member = kr_json_first(r->vocab); member; member = kr_json_next(member))
        pool_bytes += member->key_length;
    char *pool = kr_arena_alloc(&tok->arena, pool_bytes);
    if (!pool || !kr_token_map_init(&tok->by_text, &tok->arena, r->seed, tok->tokens, kr_json_length(r->vocab)))
        return kr_read_no_memory(r);
    for (const kr_json *member = kr_json_first(r->vocab); member; member = kr_json_next(member)) {
        const int32_t id = (int32_t)member->integer;
        const kr_token *other = kr_token_of(tok, id);
        if (other)
            return kr_refuse(r, "model.vocab:", "\"%s\" has the id %d, which \"%s\" already has",
                             QUOTED(member->key, member->key_length), id, QUOTED(other->text, other->bytes));
        size_t bytes;
        const bool is_spelt = read_spelt(member->key, member->key_length, pool, &bytes);
        if (!is_spelt) memcpy(pool, member->key, bytes = member->key_length);
        add_token(tok, id, pool, bytes);
        pool += bytes;
        /* two words never spell the same bytes */
        if (is_spelt) kr_token_map_add(&tok->by_text, (int32_t)tok->ntokens - 1);
    }
    return true;
}

static bool read_bytes(kr_reader *r, const kr_json *model)
{
    kr_tokenizer *tok = r->tok;
    const kr_json *unknown = kr_json_find(model, "unk_token");
    if (kr_json_kind_of(unknown) != KR_JSON_NULL && !kr_read_kind(r, unknown, KR_JSON_STRING, "model.unk_token"))
        return false;
    for (int i = 0; i < 256; i++) {
        const char byte = (char)i;
        tok->byte_tokens[i] = kr_token_map_find(&tok->by_text, &byte, 1);
        if (tok->byte_tokens[i] >= 0 || tok->unknown >= 0) continue;
        if (!unknown || !unknown->text)
            return kr_refuse(r, "model.vocab", "has no token for the byte 0x%02x, and there is no unk_token",
                             (unsigned)i);
        const kr_json *token = kr_json_find(r->vocab, unknown->text);
        if (!token)
            return kr_refuse(r, "model.unk_token", "is \"%s\", which is not in the vocabulary",
                             QUOTED(unknown->text, unknown->length));
        tok->unknown = (int32_t)tok->by_id[token->integer] - 1;
    }
    return true;
}

/* ---- merges ---- */

/* Both forms: "a b" and ["a", "b"]. */
static bool read_pair(kr_reader *r, const kr_json *item, const char *path, const char *word[2], size_t length[2])
{
    if (kr_json_kind_of(item) == KR_JSON_ARRAY) {
        const kr_json *left = kr_json_first(item), *right = kr_json_next(left);
        if (kr_json_length(item) != 2 || !kr_json_text(left) || !kr_json_text(right))
            return kr_refuse(r, path, "is not two strings");
        word[0] = left->text, word[1] = right->text;
        length[0] = left->length, length[1] = right->length;
        return true;
    }
    if (!kr_read_kind(r, item, KR_JSON_STRING, path)) return false;
    const char *space = memchr(item->text, ' ', item->length);
    if (!space) return kr_refuse(r, path, "is \"%s\", without a space", QUOTED(item->text, item->length));
    word[0] = item->text, word[1] = space + 1;
    length[0] = (size_t)(space - item->text), length[1] = item->length - length[0] - 1;
    return true;
}

static bool read_merge(kr_reader *r, const kr_json *item, uint32_t rank, kr_buffer *spelt)
{
    const kr_json_path path = kr_json_path_of("model.merges[%u]", rank);
    const char *word[2];
    size_t length[2], bytes[2];
    int32_t token[2];
    if (!read_pair(r, item, path.text, word, length)) return false;
    spelt->bytes = 0;
    if (!kr_buffer_reserve(spelt, length[0] + length[1])) return false;
    for (int i = 0; i < 2; i++) {
        char *text = spelt->data + spelt->bytes;
        token[i] = -1;
        if (read_spelt(word[i], length[i], text, &bytes[i]))
            token[i] = kr_token_map_find(&r->tok->by_text, text, bytes[i]);
        if (token[i] < 0 || bytes[i] == 0)
            return kr_refuse(r, path.text, "names \"%s\", which is not in the vocabulary or not spelt in bytes",
                             QUOTED(word[i], length[i]));
        spelt->bytes += bytes[i];
    }
    const int32_t merged = kr_token_map_find(&r->tok->by_text, spelt->data, spelt->bytes);
    if (merged < 0)
        return kr_refuse(r, path.text, "makes \"%s%s\", which is not in the vocabulary", QUOTED(word[0], length[0]),
                         QUOTED(word[1], length[1]));
    return kr_merge_map_add(&r->tok->merges, token[0], token[1], rank, merged) ||
           kr_refuse(r, path.text, "is \"%s %s\", which occurs twice", QUOTED(word[0], length[0]),
                     QUOTED(word[1], length[1]));
}

static bool read_merges(kr_reader *r, const kr_json *merges)
{
    if (!kr_read_kind(r, merges, KR_JSON_ARRAY, "model.merges")) return false;
    if (!kr_merge_map_init(&r->tok->merges, &r->tok->arena, r->seed, kr_json_length(merges)))
        return kr_read_no_memory(r);
    kr_buffer spelt = { .ctx = r->ctx };
    uint32_t rank = 0;
    bool is_good = true;
    for (const kr_json *item = kr_json_first(merges); item && is_good; item = kr_json_next(item), rank++) {
        const char *text = kr_json_text(item);
        if (text && strncmp(text, "#version", 8) == 0) continue; /* a line of the older merges.txt */
        is_good = read_merge(r, item, rank, &spelt);
    }
    kr_buffer_free(&spelt);
    return is_good;
}

/* ---- the model ---- */

static bool is_nothing(const kr_json *value)
{
    return kr_json_kind_of(value) == KR_JSON_NULL || (kr_json_text(value) && kr_json_length(value) == 0);
}

bool kr_read_model(kr_reader *r, const kr_json *model, const kr_json *added)
{
    bool has_fallback;
    if (!kr_read_kind(r, model, KR_JSON_OBJECT, "model")) return false;
    const kr_json *type = kr_json_find(model, "type");
    if (type && (!kr_json_text(type) || strcmp(type->text, "BPE") != 0))
        return kr_refuse(r, "model.type", "is \"%s\", but only BPE is supported",
                         kr_json_text(type) ? QUOTED(type->text, type->length) : kr_json_kind_name(type->kind));
    kr_warn_of_keys(r, model,
                    "type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk byte_fallback "
                    "ignore_merges vocab merges",
                    "model");
    const kr_json *dropout = kr_json_find(model, "dropout");
    if (kr_json_kind_of(dropout) != KR_JSON_NULL && kr_json_number(dropout, 1) != 0)
        return kr_refuse(r, "model.dropout", "is not null: it is for training, and not supported");
    if (!is_nothing(kr_json_find(model, "continuing_subword_prefix")))
        return kr_refuse(r, "model.continuing_subword_prefix", "is not empty, which is not supported");
    if (!is_nothing(kr_json_find(model, "end_of_word_suffix")))
        return kr_refuse(r, "model.end_of_word_suffix", "is not empty, which is not supported");
    if (!kr_read_flag(r, model, "byte_fallback", false, "model", &has_fallback) ||
        !kr_read_flag(r, model, "fuse_unk", false, "model", &r->tok->fuses_unknown) ||
        !kr_read_flag(r, model, "ignore_merges", false, "model", &r->tok->ignores_merges))
        return false;
    if (has_fallback)
        return kr_refuse(r, "model.byte_fallback", "is true, which is not supported: not a byte-level model");
    r->vocab = kr_json_find(model, "vocab");
    return kr_read_kind(r, r->vocab, KR_JSON_OBJECT, "model.vocab") && find_size(r, added) && read_vocab(r) &&
           read_bytes(r, model) && read_merges(r, kr_json_find(model, "merges"));
}

/* ---- added tokens ---- */

/* Gets an index in the table: that of a word of the vocabulary, or a new one. */
static bool enter_added(kr_reader *r, kr_added_token *a, const char *path)
{
    kr_tokenizer *tok = r->tok;
    const kr_json *word = kr_json_find(r->vocab, a->text);
    kr_token *token = (kr_token *)kr_token_of(tok, a->id);
    if (word && word->integer != a->id)
        return kr_refuse(r, path, "\"%s\" has the id %d, but %lld in the vocabulary", QUOTED(a->text, a->text_bytes),
                         a->id, (long long)word->integer);
    tok->names[tok->nadded] = (kr_token){ .text = a->text, .bytes = (uint32_t)a->text_bytes, .id = a->id };
    if (!kr_token_map_add(&tok->by_name, (int32_t)tok->nadded))
        return kr_refuse(r, path, "\"%s\" was added before, with the id %d", QUOTED(a->text, a->text_bytes),
                         kr_tokenizer_find(tok, a->text));
    if (token && (!word || token->is_added))
        return kr_refuse(r, path, "\"%s\" has the id %d, which \"%s\" already has", QUOTED(a->text, a->text_bytes),
                         a->id, QUOTED(token->text, token->bytes));
    if (token && (token->bytes != a->text_bytes || memcmp(token->text, a->text, token->bytes) != 0))
        return kr_refuse(r, path, "\"%s\" is how the vocabulary spells other bytes", QUOTED(a->text, a->text_bytes));
    if (!token) token = add_token(tok, a->id, a->text, a->text_bytes);
    token->is_added = true;
    token->is_special = a->is_special;
    return true;
}

static bool read_added(kr_reader *r, const kr_json *item, const char *path, kr_added_token *a)
{
    const kr_json *content = kr_json_find(item, "content");
    kr_warn_of_keys(r, item, "id content special single_word lstrip rstrip normalized", path);
    if (!kr_read_kind(r, content, KR_JSON_STRING, kr_json_path_of("%s.content", path).text) ||
        !kr_read_flag(r, item, "special", false, path, &a->is_special) ||
        !kr_read_flag(r, item, "single_word", false, path, &a->is_single_word) ||
        !kr_read_flag(r, item, "lstrip", false, path, &a->takes_left) ||
        !kr_read_flag(r, item, "rstrip", false, path, &a->takes_right) ||
        !kr_read_flag(r, item, "normalized", !a->is_special, path, &a->is_normalized))
        return false;
    if (content->length == 0 || memchr(content->text, 0, content->length))
        return kr_refuse(r, path, "is an added token whose content is empty or holds a zero");
    a->id = (int32_t)kr_json_find(item, "id")->integer;
    char *text = kr_arena_alloc(&r->tok->arena, content->length + 1);
    if (!text) return kr_read_no_memory(r);
    memcpy(text, content->text, content->length + 1);
    a->text = a->pattern = text;
    a->text_bytes = a->pattern_bytes = content->length;
    return enter_added(r, a, path);
}

/* In a normalised text the token occurs normalised; that form is searched for. */
static bool normalize_pattern(kr_reader *r, kr_nfc *nfc, kr_added_token *a)
{
    const char *pattern = a->text;
    size_t bytes = a->text_bytes;
    if (!kr_nfc_normalize(nfc, &pattern, &bytes)) return false;
    if (pattern == a->text) return true;
    char *copy = kr_arena_alloc(&r->tok->arena, bytes);
    if (!copy) return kr_read_no_memory(r);
    memcpy(copy, pattern, bytes);
    a->pattern = copy;
    a->pattern_bytes = bytes;
    kr_token *token = &r->tok->tokens[r->tok->by_id[a->id] - 1];
    token->text = copy;
    token->bytes = (uint32_t)bytes;
    if (bytes > r->tok->longest) r->tok->longest = bytes;
    return true;
}

static bool read_all_added(kr_reader *r, const kr_json *added, kr_nfc *nfc)
{
    kr_tokenizer *tok = r->tok;
    size_t total = 0;
    for (const kr_json *item = kr_json_first(added); item; item = kr_json_next(item)) {
        const kr_json_path path = kr_json_path_of("added_tokens[%lld]", (long long)tok->nadded);
        kr_added_token *a = &tok->added[tok->nadded];
        *a = (kr_added_token){ 0 };
        if (!read_added(r, item, path.text, a)) return false;
        if (a->is_normalized && tok->uses_nfc && !normalize_pattern(r, nfc, a)) return false;
        tok->nadded++;
        total += a->pattern_bytes;
        if (total > KR_MATCHER_MAX_BYTES)
            return kr_refuse(r, "added_tokens", "have more than %d bytes together", KR_MATCHER_MAX_BYTES);
    }
    return true;
}

bool kr_read_added_tokens(kr_reader *r, const kr_json *added)
{
    static const char word[] = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}]";
    kr_tokenizer *tok = r->tok;
    kr_nfc nfc = { .out.ctx = r->ctx, .chars.ctx = r->ctx, .sorted.ctx = r->ctx };
    const int64_t count = kr_json_length(added);
    tok->added = kr_arena_alloc(&tok->arena, (size_t)count * sizeof *tok->added);
    tok->names = kr_arena_alloc(&tok->arena, (size_t)count * sizeof *tok->names);
    if (!tok->added || !tok->names || !kr_token_map_init(&tok->by_name, &tok->arena, r->seed, tok->names, count))
        return kr_read_no_memory(r);
    const bool is_good = read_all_added(r, added, &nfc);
    kr_nfc_free(&nfc);
    if (!is_good) return false;
    for (int64_t i = 0; i < tok->nadded && !tok->word; i++) {
        if (!tok->added[i].is_single_word) continue;
        const kr_json_path path = kr_json_path_of("added_tokens[%lld].single_word", (long long)i);
        tok->word = kr_regex_create(r->ctx, word, sizeof word - 1, path.text);
        if (!tok->word) return false;
    }
    return (kr_matcher_init(&tok->raw, &tok->arena, r->seed, tok->added, tok->nadded, false) &&
            kr_matcher_init(&tok->normalized, &tok->arena, r->seed, tok->added, tok->nadded, true)) ||
           kr_read_no_memory(r);
}
