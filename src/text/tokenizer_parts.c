/* tokenizer_parts.c - the sections "normalizer", "pre_tokenizer", "post_processor" and "decoder" of a tokenizer.json. */
#include "text/tokenizer_read.h"

#define QUOTED(s) kr_quote_of((s), strlen(s)).text

/* Each item of a list is read by the function that reads the section. */
typedef bool read_fn(kr_reader *r, const kr_json *part, const char *path);

static bool read_sequence(kr_reader *r, const kr_json *part, const char *key, const char *path, read_fn *read)
{
    const kr_json *items = kr_json_find(part, key);
    const kr_json_path list = kr_json_path_of("%s.%s", path, key);
    if (!kr_read_kind(r, items, KR_JSON_ARRAY, list.text)) return false;
    int64_t i = 0;
    for (const kr_json *item = kr_json_first(items); item; item = kr_json_next(item), i++) {
        /* of nested lists only the innermost path is reported, so that it stays short */
        if (!read(r, item, kr_json_path_of("%.80s[%lld]", list.text, (long long)i).text)) return false;
    }
    return true;
}

static bool refuse_type(kr_reader *r, const char *path, const char *type, const char *supported)
{
    return kr_fail(r->ctx, KR_ERR_UNSUPPORTED, "tokenizer: %s is of the type \"%s\"; supported are %s", path,
                   QUOTED(type), supported);
}

/* ---- normalizer ---- */

bool kr_read_normalizer(kr_reader *r, const kr_json *part, const char *path)
{
    if (kr_json_kind_of(part) == KR_JSON_NULL) return true;
    const char *type = kr_read_type(r, part, path);
    if (!type) return false;
    if (strcmp(type, "Sequence") == 0) return read_sequence(r, part, "normalizers", path, kr_read_normalizer);
    if (strcmp(type, "NFC") != 0) return refuse_type(r, path, type, "NFC and Sequence");
    r->tok->uses_nfc = true;
    return true;
}

/* ---- pre-tokenizer ---- */

static kr_stage *add_stage(kr_reader *r, kr_stage_kind kind, const char *path)
{
    if (r->tok->nstages == KR_MAX_STAGES) {
        kr_refuse(r, path, "is one more than the %d steps that a pre_tokenizer may have", KR_MAX_STAGES);
        return NULL;
    }
    kr_stage *stage = &r->tok->stages[r->tok->nstages++];
    *stage = (kr_stage){ .kind = kind };
    return stage;
}

static bool add_regex(kr_reader *r, const char *pattern, size_t bytes, kr_split_behavior behavior, bool is_inverted,
                      const char *path)
{
    kr_stage *stage = add_stage(r, KR_STAGE_SPLIT, path);
    if (!stage) return false;
    stage->behavior = behavior;
    stage->is_inverted = is_inverted;
    stage->regex = kr_regex_create(r->ctx, pattern, bytes, path);
    return stage->regex != NULL;
}

static bool read_byte_level(kr_reader *r, const kr_json *part, const char *path)
{
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    bool adds_space, uses_regex;
    kr_warn_of_keys(r, part, "type add_prefix_space trim_offsets use_regex", path);
    if (!kr_read_flag(r, part, "add_prefix_space", true, path, &adds_space) ||
        !kr_read_flag(r, part, "use_regex", true, path, &uses_regex))
        return false;
    if (r->tok->is_spelt) return kr_refuse(r, path, "is a second ByteLevel");
    if (adds_space && !add_stage(r, KR_STAGE_SPACE, path)) return false;
    if (uses_regex && !add_regex(r, gpt2, sizeof gpt2 - 1, KR_SPLIT_ISOLATED, false, path)) return false;
    r->tok->is_spelt = true;
    return add_stage(r, KR_STAGE_SPELL, path) != NULL;
}

static bool read_behavior(kr_reader *r, const kr_json *part, kr_split_behavior fallback, const char *path,
                          kr_split_behavior *behavior)
{
    static const char *const names[] = { "Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous" };
    const kr_json *value = kr_json_find(part, "behavior");
    *behavior = fallback;
    if (!value) return true;
    for (int i = 0; i < 5 && kr_json_text(value); i++) {
        if (strcmp(names[i], kr_json_text(value)) != 0) continue;
        *behavior = (kr_split_behavior)i;
        return true;
    }
    return kr_refuse(r, kr_json_path_of("%s.behavior", path).text,
                     "is not one of Isolated, Removed, MergedWithPrevious, MergedWithNext and Contiguous");
}

static bool add_literal(kr_reader *r, const kr_json *text, kr_split_behavior behavior, bool is_inverted,
                        const char *path)
{
    enum { LONGEST = 1024 }; /* the search time is proportional to it */
    if (text->length > LONGEST)
        return kr_refuse(r, path, "is a pattern of %zu bytes, but may have %d at most", text->length, LONGEST);
    kr_stage *stage = add_stage(r, KR_STAGE_SPLIT, path);
    char *copy = stage ? kr_arena_alloc(&r->tok->arena, text->length) : NULL;
    if (!copy) return stage ? kr_read_no_memory(r) : false;
    memcpy(copy, text->text, text->length);
    stage->literal = copy;
    stage->literal_bytes = text->length;
    stage->behavior = behavior;
    stage->is_inverted = is_inverted;
    return true;
}

static bool read_split(kr_reader *r, const kr_json *part, const char *path)
{
    const kr_json *pattern = kr_json_find(part, "pattern");
    const kr_json *regex = kr_json_find(pattern, "Regex"), *literal = kr_json_find(pattern, "String");
    kr_split_behavior behavior;
    bool is_inverted;
    kr_warn_of_keys(r, part, "type pattern behavior invert", path);
    if (!kr_read_flag(r, part, "invert", false, path, &is_inverted) ||
        !kr_read_kind(r, kr_json_find(part, "behavior"), KR_JSON_STRING, kr_json_path_of("%s.behavior", path).text) ||
        !read_behavior(r, part, KR_SPLIT_ISOLATED, path, &behavior))
        return false;
    const kr_json_path at = kr_json_path_of("%s.pattern", path);
    if (kr_json_text(regex)) return add_regex(r, regex->text, regex->length, behavior, is_inverted, at.text);
    if (kr_json_text(literal)) return add_literal(r, literal, behavior, is_inverted, at.text);
    return kr_refuse(r, at.text, "is neither {\"Regex\": ...} nor {\"String\": ...}");
}

static bool read_digits(kr_reader *r, const kr_json *part, const char *path)
{
    bool are_single;
    kr_warn_of_keys(r, part, "type individual_digits", path);
    return kr_read_flag(r, part, "individual_digits", false, path, &are_single) &&
           add_regex(r, "\\p{N}", 5, are_single ? KR_SPLIT_ISOLATED : KR_SPLIT_CONTIGUOUS, false, path);
}

static bool read_punctuation(kr_reader *r, const kr_json *part, const char *path)
{
    static const char punctuation[] = "[!-/:-@\\[-`{-~\\p{P}]";
    kr_split_behavior behavior;
    kr_warn_of_keys(r, part, "type behavior", path);
    return read_behavior(r, part, KR_SPLIT_ISOLATED, path, &behavior) &&
           add_regex(r, punctuation, sizeof punctuation - 1, behavior, false, path);
}

static bool read_stage(kr_reader *r, const kr_json *part, const char *path)
{
    const char *type = kr_read_type(r, part, path);
    if (!type) return false;
    if (strcmp(type, "Sequence") == 0) return read_sequence(r, part, "pretokenizers", path, read_stage);
    if (strcmp(type, "ByteLevel") == 0) return read_byte_level(r, part, path);
    if (strcmp(type, "Split") == 0) return read_split(r, part, path);
    if (strcmp(type, "Digits") == 0) return read_digits(r, part, path);
    if (strcmp(type, "Punctuation") == 0) return read_punctuation(r, part, path);
    return refuse_type(r, path, type, "ByteLevel, Split, Digits, Punctuation and Sequence");
}

bool kr_read_pre_tokenizer(kr_reader *r, const kr_json *part, const char *path)
{
    kr_tokenizer *tok = r->tok;
    if (!kr_read_kind(r, part, KR_JSON_OBJECT, path) || !read_stage(r, part, path)) return false;
    if (!tok->is_spelt) return kr_refuse(r, path, "has no ByteLevel: not a byte-level tokenizer");
    /* after the last stage the spelling does not matter */
    if (tok->stages[tok->nstages - 1].kind == KR_STAGE_SPELL) {
        tok->nstages--;
        tok->is_spelt = false;
    }
    return true;
}

/* ---- post-processor ---- */

/* Appends the ids of a template's special token to `ids`. */
static bool read_special_ids(kr_reader *r, const kr_json *part, const kr_json *name, const char *path, kr_buffer *ids)
{
    const kr_json *special = kr_json_text(name) ? kr_json_find(kr_json_find(part, "special_tokens"), name->text) : NULL;
    const kr_json *list = kr_json_find(special, "ids");
    if (!list || list->kind != KR_JSON_ARRAY)
        return kr_refuse(r, path, "names a special token that special_tokens has no ids of");
    for (const kr_json *item = kr_json_first(list); item; item = kr_json_next(item)) {
        const int64_t value = kr_json_integer(item, -1);
        const int32_t id = kr_token_of(r->tok, value) ? (int32_t)value : -1;
        if (id < 0) return kr_refuse(r, path, "stands for the id %lld, which no token has", (long long)value);
        if (!kr_buffer_put(ids, &id, sizeof id)) return false;
    }
    return true;
}

/* The ids of one side go outside of those added by previous templates. */
static bool wrap(kr_reader *r, const kr_buffer *ids, bool is_before)
{
    kr_tokenizer *tok = r->tok;
    int32_t **old = is_before ? &tok->before : &tok->after;
    int64_t *count = is_before ? &tok->nbefore : &tok->nafter;
    const int64_t more = (int64_t)(ids->bytes / sizeof **old);
    if (more == 0) return true;
    int32_t *all = kr_arena_alloc(&tok->arena, (size_t)(*count + more) * sizeof *all);
    if (!all) return kr_read_no_memory(r);
    if (*count) memcpy(all + (is_before ? more : 0), *old, (size_t)*count * sizeof *all);
    memcpy(all + (is_before ? 0 : *count), ids->data, ids->bytes);
    *old = all;
    *count += more;
    return true;
}

static bool read_single(kr_reader *r, const kr_json *part, const char *path, kr_buffer *before, kr_buffer *after)
{
    const kr_json *single = kr_json_find(part, "single");
    bool has_text = false;
    if (!kr_read_kind(r, single, KR_JSON_ARRAY, kr_json_path_of("%s.single", path).text)) return false;
    int64_t i = 0;
    for (const kr_json *item = kr_json_first(single); item; item = kr_json_next(item), i++) {
        const kr_json_path at = kr_json_path_of("%s.single[%lld]", path, (long long)i);
        const kr_json *special = kr_json_find(item, "SpecialToken"), *text = kr_json_find(item, "Sequence");
        const char *name = kr_json_text(kr_json_find(text, "id"));
        if (special) {
            if (!read_special_ids(r, part, kr_json_find(special, "id"), at.text, has_text ? after : before))
                return false;
        } else if (!name || strcmp(name, "A") != 0 || has_text) {
            return kr_refuse(r, at.text, "is neither a SpecialToken nor the one Sequence A");
        } else {
            has_text = true;
        }
    }
    return has_text || kr_refuse(r, kr_json_path_of("%s.single", path).text, "has no Sequence A");
}

static bool read_template(kr_reader *r, const kr_json *part, const char *path)
{
    kr_buffer before = { .ctx = r->ctx }, after = { .ctx = r->ctx };
    kr_warn_of_keys(r, part, "type single pair special_tokens", path);
    const bool is_good =
        read_single(r, part, path, &before, &after) && wrap(r, &before, true) && wrap(r, &after, false);
    kr_buffer_free(&before);
    kr_buffer_free(&after);
    return is_good;
}

bool kr_read_post_processor(kr_reader *r, const kr_json *part, const char *path)
{
    if (kr_json_kind_of(part) == KR_JSON_NULL) return true;
    const char *type = kr_read_type(r, part, path);
    if (!type) return false;
    if (strcmp(type, "Sequence") == 0) return read_sequence(r, part, "processors", path, kr_read_post_processor);
    if (strcmp(type, "TemplateProcessing") == 0) return read_template(r, part, path);
    if (strcmp(type, "ByteLevel") == 0) return true; /* it concerns offsets into the text, which are not computed */
    return refuse_type(r, path, type, "ByteLevel, TemplateProcessing and Sequence");
}

/* ---- decoder ---- */

/* Tokens are stored as the bytes that ByteLevel decodes; Fuse only joins texts. */
static bool read_decoder(kr_reader *r, const kr_json *part, const char *path)
{
    const char *type = kr_read_type(r, part, path);
    if (!type) return false;
    if (strcmp(type, "Sequence") == 0) return read_sequence(r, part, "decoders", path, read_decoder);
    return strcmp(type, "ByteLevel") == 0 || strcmp(type, "Fuse") == 0 ||
           refuse_type(r, path, type, "ByteLevel, Fuse and Sequence");
}

bool kr_read_decoder(kr_reader *r, const kr_json *part, const char *path)
{
    return kr_read_kind(r, part, KR_JSON_OBJECT, path) && read_decoder(r, part, path);
}
