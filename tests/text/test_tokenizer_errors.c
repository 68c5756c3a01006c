/* test_tokenizer_errors.c - files that are refused, in which words; what is only warned of. */
#define _POSIX_C_SOURCE 200809L
#include "tests/temp_folder.h"
#include "tests/text/small_tokenizers.h"

typedef struct error_case {
    small_file file;
    kr_status status;
    const char *message;
} error_case;

#define TYPE(name) "{\"type\": \"" name "\"}"

static const error_case cases[] = {
    /* the model */
    { { .model = "\"dropout\": 0.1," },
      KR_ERR_FORMAT,
      "tokenizer: model.dropout is not null: it is for training, and not supported" },
    { { .model = "\"continuing_subword_prefix\": \"##\"," },
      KR_ERR_FORMAT,
      "tokenizer: model.continuing_subword_prefix is not empty, which is not supported" },
    { { .model = "\"end_of_word_suffix\": \"</w>\"," },
      KR_ERR_FORMAT,
      "tokenizer: model.end_of_word_suffix is not empty, which is not supported" },
    { { .model = "\"byte_fallback\": true," },
      KR_ERR_FORMAT,
      "tokenizer: model.byte_fallback is true, which is not supported: not a byte-level model" },
    { { .model = "\"ignore_merges\": 1," },
      KR_ERR_FORMAT,
      "tokenizer: model.ignore_merges is number, but must be of the kind bool" },
    { { .without = "q" },
      KR_ERR_FORMAT,
      "tokenizer: model.vocab has no token for the byte 0x71, and there is no unk_token" },
    { { .without = "q", .model = "\"unk_token\": \"<unk>\"," },
      KR_ERR_FORMAT,
      "tokenizer: model.unk_token is \"<unk>\", which is not in the vocabulary" },
    { { .model = "\"unk_token\": 7," },
      KR_ERR_FORMAT,
      "tokenizer: model.unk_token is number, but must be of the kind string" },
    { { .words = "\"x\"" }, KR_ERR_FORMAT, NULL }, /* JSON itself: a key twice */

    /* merges */
    { { .merges = "\"a b\"" },
      KR_ERR_FORMAT,
      "tokenizer: model.merges[0] makes \"ab\", which is not in the vocabulary" },
    { { .words = "\"ab\"", .merges = "\"a b\", \"ab cd\"" },
      KR_ERR_FORMAT,
      "tokenizer: model.merges[1] names \"cd\", which is not in the vocabulary or not spelt in bytes" },
    { { .words = "\"ab\"", .merges = "\"a b\", [\"a\", \"b\"]" },
      KR_ERR_FORMAT,
      "tokenizer: model.merges[1] is \"a b\", which occurs twice" },
    { { .words = "\"ab\"", .merges = "\"ab\"" },
      KR_ERR_FORMAT,
      "tokenizer: model.merges[0] is \"ab\", without a space" },
    { { .words = "\"ab\"", .merges = "\"a b c\"" },
      KR_ERR_FORMAT,
      "tokenizer: model.merges[0] names \"b c\", which is not in the vocabulary or not spelt in bytes" },
    { { .words = "\"ab\"", .merges = "\" ab\"" },
      KR_ERR_FORMAT,
      "tokenizer: model.merges[0] names \"\", which is not in the vocabulary or not spelt in bytes" },
    { { .merges = "[\"a\"]" }, KR_ERR_FORMAT, "tokenizer: model.merges[0] is not two strings" },
    { { .merges = "[\"a\", 1]" }, KR_ERR_FORMAT, "tokenizer: model.merges[0] is not two strings" },
    { { .merges = "17" }, KR_ERR_FORMAT, "tokenizer: model.merges[0] is number, but must be of the kind string" },

    /* added tokens */
    { { .added = "5" }, KR_ERR_FORMAT, "tokenizer: added_tokens[0] is number, but must be of the kind object" },
    { { .added = "{\"content\": \"x\"}" },
      KR_ERR_FORMAT,
      "tokenizer: added_tokens[0].id is not a whole number from 0 to 16777215" },
    { { .added = "{\"id\": 16777216, \"content\": \"x\"}" },
      KR_ERR_FORMAT,
      "tokenizer: added_tokens[0].id is not a whole number from 0 to 16777215" },
    { { .added = "{\"id\": 300}" },
      KR_ERR_FORMAT,
      "tokenizer: added_tokens[0].content is not there, but must be of the kind string" },
    { { .added = "{\"id\": 300, \"content\": \"\"}" },
      KR_ERR_FORMAT,
      "tokenizer: added_tokens[0] is an added token whose content is empty or holds a zero" },
    { { .added = "{\"id\": 300, \"content\": \"a\\u0000b\"}" },
      KR_ERR_FORMAT,
      "tokenizer: added_tokens[0] is an added token whose content is empty or holds a zero" },
    { { .added = "{\"id\": 300, \"content\": \"<a>\"}, {\"id\": 300, \"content\": \"<b>\"}" },
      KR_ERR_FORMAT,
      "tokenizer: added_tokens[1] \"<b>\" has the id 300, which \"<a>\" already has" },
    { { .added = "{\"id\": 300, \"content\": \"<a>\"}, {\"id\": 300, \"content\": \"<a>\"}" },
      KR_ERR_FORMAT,
      "tokenizer: added_tokens[1] \"<a>\" was added before, with the id 300" },
    { { .added = "{\"id\": 300, \"content\": \"<a>\"}, {\"id\": 301, \"content\": \"<a>\"}" },
      KR_ERR_FORMAT,
      "tokenizer: added_tokens[1] \"<a>\" was added before, with the id 300" },
    { { .added = "{\"id\": 97, \"content\": \"<a>\"}" },
      KR_ERR_FORMAT,
      "tokenizer: added_tokens[0] \"<a>\" has the id 97, which \"a\" already has" },
    { { .added = "{\"id\": 300, \"content\": \"b\"}" },
      KR_ERR_FORMAT,
      "tokenizer: added_tokens[0] \"b\" has the id 300, but 98 in the vocabulary" },
    { { .added = "{\"id\": 233, \"content\": \"\xc3\xa9\"}" },
      KR_ERR_FORMAT,
      "tokenizer: added_tokens[0] \"??\" is how the vocabulary spells other bytes" },
    { { .added = "{\"id\": 300, \"content\": \"<a>\", \"lstrip\": \"yes\"}" },
      KR_ERR_FORMAT,
      "tokenizer: added_tokens[0].lstrip is string, but must be of the kind bool" },

    /* normalizer */
    { { .normalizer = TYPE("NFKC") },
      KR_ERR_UNSUPPORTED,
      "tokenizer: normalizer is of the type \"NFKC\"; supported are NFC and Sequence" },
    { { .normalizer = "{\"type\": \"Sequence\", \"normalizers\": [" TYPE("NFC") ", " TYPE("Lowercase") "]}" },
      KR_ERR_UNSUPPORTED,
      "tokenizer: normalizer.normalizers[1] is of the type \"Lowercase\"; supported are NFC and Sequence" },
    { { .normalizer = "3" }, KR_ERR_FORMAT, "tokenizer: normalizer is number, but must be of the kind object" },
    { { .normalizer = "{\"type\": \"Sequence\"}" },
      KR_ERR_FORMAT,
      "tokenizer: normalizer.normalizers is not there, but must be of the kind array" },

    /* pre-tokenizer */
    { { .pre_tokenizer = "null" }, KR_ERR_FORMAT, "tokenizer: pre_tokenizer is null, but must be of the kind object" },
    { { .pre_tokenizer = TYPE("Metaspace") },
      KR_ERR_UNSUPPORTED,
      "tokenizer: pre_tokenizer is of the type \"Metaspace\"; supported are ByteLevel, Split, Digits, Punctuation and "
      "Sequence" },
    { { .pre_tokenizer = "{}" },
      KR_ERR_FORMAT,
      "tokenizer: pre_tokenizer.type is not there, but must be of the kind string" },
    { { .pre_tokenizer =
            SEQUENCE_OF("{\"type\": \"Split\", \"pattern\": {\"String\": \"-\"}, \"behavior\": \"Removed\"}") },
      KR_ERR_FORMAT,
      "tokenizer: pre_tokenizer has no ByteLevel: not a byte-level tokenizer" },
    { { .pre_tokenizer = SEQUENCE_OF(PLAIN_BYTES "," PLAIN_BYTES) },
      KR_ERR_FORMAT,
      "tokenizer: pre_tokenizer.pretokenizers[1] is a second ByteLevel" },
    { { .pre_tokenizer =
            SEQUENCE_OF("{\"type\": \"Split\", \"pattern\": {\"String\": \"-\"}, \"behavior\": \"Kept\"}") },
      KR_ERR_FORMAT,
      "tokenizer: pre_tokenizer.pretokenizers[0].behavior is not one of Isolated, Removed, MergedWithPrevious, "
      "MergedWithNext and Contiguous" },
    { { .pre_tokenizer = SEQUENCE_OF("{\"type\": \"Split\", \"pattern\": \"-\", \"behavior\": \"Removed\"}") },
      KR_ERR_FORMAT,
      "tokenizer: pre_tokenizer.pretokenizers[0].pattern is neither {\"Regex\": ...} nor {\"String\": ...}" },

    /* post-processor */
    { { .post_processor = TYPE("RobertaProcessing") },
      KR_ERR_UNSUPPORTED,
      "tokenizer: post_processor is of the type \"RobertaProcessing\"; supported are ByteLevel, TemplateProcessing and "
      "Sequence" },
    { { .post_processor = "{\"type\": \"TemplateProcessing\", \"single\": []}" },
      KR_ERR_FORMAT,
      "tokenizer: post_processor.single has no Sequence A" },
    { { .post_processor = "{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"B\"}}]}" },
      KR_ERR_FORMAT,
      "tokenizer: post_processor.single[0] is neither a SpecialToken nor the one Sequence A" },
    { { .post_processor = "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\"}}]}" },
      KR_ERR_FORMAT,
      "tokenizer: post_processor.single[0] names a special token that special_tokens has no ids of" },
    { { .post_processor = "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\"}}], "
                          "\"special_tokens\": {\"<s>\": {\"ids\": [9999]}}}" },
      KR_ERR_FORMAT,
      "tokenizer: post_processor.single[0] stands for the id 9999, which no token has" },

    /* decoder */
    { { .decoder = "null" }, KR_ERR_FORMAT, "tokenizer: decoder is null, but must be of the kind object" },
    { { .decoder = "{\"type\": \"Sequence\", \"decoders\": [" TYPE("ByteLevel") "," TYPE("Strip") "]}" },
      KR_ERR_UNSUPPORTED,
      "tokenizer: decoder.decoders[1] is of the type \"Strip\"; supported are ByteLevel, Fuse and Sequence" },
};

TEST(tokenizer_files_are_refused_by_name)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const size_t live = kr_ctx_memory(ctx).live_bytes;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *json = small_json(&cases[i].file);
        CHECK(!kr_tokenizer_parse(ctx, json, strlen(json)), "case %zu: no error", i);
        if (cases[i].message) CHECK_ERROR(ctx, cases[i].status, cases[i].message);
        else CHECK_ERROR_HAS(ctx, cases[i].status, "tokenizer: json: at byte");
        CHECK(kr_ctx_memory(ctx).live_bytes == live, "case %zu leaves memory", i);
    }
    char stages[4000] = "{\"type\": \"Sequence\", \"pretokenizers\": [" PLAIN_BYTES;
    for (int i = 0; i < 32; i++)
        strcat(stages, ", {\"type\": \"Split\", \"pattern\": {\"String\": \"-\"}, \"behavior\": \"Removed\"}");
    strcat(stages, "]}");
    const char *json = small_json(&(small_file){ .pre_tokenizer = stages });
    CHECK(!kr_tokenizer_parse(ctx, json, strlen(json)), "not refused");
    CHECK_ERROR(
        ctx, KR_ERR_FORMAT,
        "tokenizer: pre_tokenizer.pretokenizers[32].pattern is one more than the 32 steps that a pre_tokenizer may "
        "have");
    kr_ctx_destroy(ctx);
}

TEST(files_that_are_no_tokenizers)
{
    static const char *const files[][2] = {
        { "", "tokenizer: json: at byte 0: expected a value, got the end of the text" },
        { "[]", "tokenizer: the file is array, but must be of the kind object" },
        { "{}", "tokenizer: model is not there, but must be of the kind object" },
        { "{\"version\": \"2.0\"}", "tokenizer: version is not \"1.0\"" },
        { "{\"added_tokens\": {}}", "tokenizer: added_tokens is object, but must be of the kind array" },
        { "{\"model\": {\"type\": \"Unigram\"}}", "tokenizer: model.type is \"Unigram\", but only BPE is supported" },
        { "{\"model\": {\"type\": 3}}", "tokenizer: model.type is \"number\", but only BPE is supported" },
        { "{\"model\": {\"type\": \"BPE\", \"vocab\": []}}",
          "tokenizer: model.vocab is array, but must be of the kind object" },
        { "{\"model\": {\"vocab\": {\"a\": -1}}}",
          "tokenizer: model.vocab: the id of \"a\" is not a whole number from 0 to 16777215" },
        { "{\"model\": {\"vocab\": {\"a\": 1.5}}}",
          "tokenizer: model.vocab: the id of \"a\" is not a whole number from 0 to 16777215" },
        { "{\"model\": {\"vocab\": {\"a\": 3, \"b\": 3}}}",
          "tokenizer: model.vocab: \"b\" has the id 3, which \"a\" already has" },
        { "{\"model\": {\"unk_token\": \"a\", \"vocab\": {\"a\": 0}}}",
          "tokenizer: model.merges is not there, but must be of the kind array" },
    };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        CHECK(!kr_tokenizer_parse(ctx, files[i][0], strlen(files[i][0])), "%s is not refused", files[i][0]);
        CHECK_ERROR(ctx, KR_ERR_FORMAT, files[i][1]);
    }
    CHECK(!kr_tokenizer_load(ctx, "/no/such/tokenizer.json"), "not refused");
    CHECK_ERROR(ctx, KR_ERR_IO, "cannot open /no/such/tokenizer.json: no such file or directory");
    kr_ctx_destroy(ctx);
}

TEST(tokenizers_are_loaded_from_files)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    begin_folder();
    const char *json = small_json(&(small_file){ .words = "\"ab\"", .merges = "\"a b\"" });
    write_image(in_folder("good.json"), json, strlen(json));
    write_image(in_folder("bad.json"), "{}", 2);
    kr_tokenizer *tok = kr_tokenizer_load(ctx, in_folder("good.json"));
    if (CHECK(tok != NULL, "%s", kr_ctx_message(ctx))) CHECK_IDS(tok, "abc", "256 99");
    kr_tokenizer_destroy(tok);
    char message[700];
    snprintf(message, sizeof message, "%s: tokenizer: model is not there, but must be of the kind object",
             in_folder("bad.json"));
    CHECK(!kr_tokenizer_load(ctx, in_folder("bad.json")), "not refused");
    CHECK_ERROR(ctx, KR_ERR_FORMAT, message);
    end_folder();
    kr_ctx_destroy(ctx);
}

/* ---- regular expressions ---- */

typedef struct bad_regex {
    const char *regex; /* as in JSON */
    const char *message;
} bad_regex;

#define HAS(regex, what, at)                                                                                           \
    "tokenizer: pre_tokenizer.pretokenizers[0].pattern: the regular expression \"" regex "\" has " what " at byte " at \
    ", which is not supported"
#define PCRE(regex, reason)                                                                                            \
    "tokenizer: pre_tokenizer.pretokenizers[0].pattern: PCRE2 refuses the regular expression \"" regex "\": " reason

static const bad_regex bad_regexes[] = {
    { "(a", PCRE("(a", "missing closing parenthesis, before \"\"") },
    { "*a", PCRE("*a", "quantifier does not follow a repeatable item, before \"*a\"") },
    { "\\\\p{Nonsense}", PCRE("\\p{Nonsense}", "unknown property after \\P or \\p, before \"\"") },
    { "a[[:alpha:]]", HAS("a[[:alpha:]]", "a POSIX bracket", "2") },
    { "[a[b]]", HAS("[a[b]]", "a class in a class", "2") },
    { "[a-z&&b]", HAS("[a-z&&b]", "an intersection of classes", "4") },
    { "[\\\\W]", HAS("[\\W]", "\\W", "1") },
    { "[\\\\s-z]", HAS("[\\s-z]", "\\s", "1") },
    { "[a-\\\\s]", HAS("[a-\\s]", "a range to a set of characters", "2") },
    { "[abc", HAS("[abc", "a class without its closing bracket", "0") },
    { "a{1,3}+", HAS("a{1,3}+", "a repetition of a repetition", "1") },
    { "a{2}?", HAS("a{2}?", "a repetition of a repetition", "1") },
    { "(?x: a)", HAS("(?x: a)", "another group option than i and m", "2") },
    { "(*COMMIT)a", HAS("(*COMMIT)a", "(*", "0") },
    { "\\\\Qa\\\\E", HAS("\\Qa\\E", "\\Q", "0") },
    { "\\\\C", HAS("\\C", "\\C", "0") },
    { "\\\\pL", HAS("\\pL", "a property without braces", "0") },
    { "\\\\p{L", HAS("\\p{L", "a property without its closing brace", "0") },
    { "\\\\xff", HAS("\\xff", "\\x that is not ASCII", "0") },
    { "\\\\u12", HAS("\\u12", "\\u without four digits", "0") },
    { "a\\\\", HAS("a\\", "a backslash at its end", "1") },
};

TEST(regular_expressions_are_refused_by_name)
{
    if (!has_regex()) SKIP("built without PCRE2");
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (size_t i = 0; i < sizeof bad_regexes / sizeof *bad_regexes; i++) {
        char pre[400];
        snprintf(pre, sizeof pre, SEQUENCE_OF(SPLIT_BY("%s", "Isolated", "false") "," PLAIN_BYTES),
                 bad_regexes[i].regex);
        const char *json = small_json(&(small_file){ .pre_tokenizer = pre });
        CHECK(!kr_tokenizer_parse(ctx, json, strlen(json)), "%s is not refused", bad_regexes[i].regex);
        const kr_status status = strstr(bad_regexes[i].message, "PCRE2") ? KR_ERR_FORMAT : KR_ERR_UNSUPPORTED;
        CHECK_ERROR(ctx, status, bad_regexes[i].message);
    }
    kr_ctx_destroy(ctx);
}

TEST(without_pcre2_expressions_are_refused)
{
    if (has_regex()) return;
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const char *json =
        small_json(&(small_file){ .pre_tokenizer = SEQUENCE_OF(SPLIT_BY("a+", "Isolated", "false") "," PLAIN_BYTES) });
    CHECK(!kr_tokenizer_parse(ctx, json, strlen(json)), "not refused");
    CHECK_ERROR(
        ctx, KR_ERR_UNSUPPORTED,
        "tokenizer: pre_tokenizer.pretokenizers[0].pattern: the regular expression \"a+\" needs PCRE2, which this "
        "build lacks; install it (Debian: libpcre2-dev) and rebuild");
    kr_ctx_destroy(ctx);
}

/* What is read otherwise than PCRE2 would: the text, and what of it is left when matches are removed. */
typedef struct reading {
    const char *regex, *text, *left;
} reading;

static const reading readings[] = {
    { "\\\\s",
      "a \t\xc2\xa0\xe3\x80\x80\xe1\xa0\x8e"
      "b",
      "a\xe1\xa0\x8e"
      "b" }, /* U+180E stays */
    { "[\\\\s]",
      "a \xe1\xa0\x8e"
      "b",
      "a\xe1\xa0\x8e"
      "b" },
    { "[^\\\\S]",
      "a \xe1\xa0\x8e"
      "b",
      "a\xe1\xa0\x8e"
      "b" },
    { "\\\\S", "a \xe1\xa0\x8e\t", " \t" },
    { "\\\\w", "a_1\xcc\x81\xc2\xbd-\xe2\x81\xb4", "-\xe2\x81\xb4" }, /* marks, and digits of Latin-1 */
    { "\\\\h", "abcxyz", "xyz" },
    { "[\\\\h]", "abcxyz", "xyz" },
    { "\\\\v", "\n\x0b", "\n" },
    { "^.", "ab\ncd", "b\nd" },
    { ".$", "ab\ncd", "a\nc" },
    { "a{,2}b", "aab", "" },
    { "(?m:a.)", "a\nb", "b" },
    { "(?-i)A|(?i)B", "aAbB", "a" },
    { "\\\\u0041", "AB", "B" },
    { "\\\\x{41}", "AB", "B" },
    { "(?#c)a", "ab", "b" },
    { "[]a]", "]ab", "b" },
    { "{", "a{b", "ab" },
    { "\\\\ba", "a ba", " ba" },
    { "a\\\\B", "ab a", "b a" },
    { "\\\\p{Greek}", "\xce\xb1\xcd\x82x", "\xcd\x82x" }, /* the script, not its extensions: U+0342 stays */
    { "\\\\p{^L}", "a1", "a" },
    { "\\\\O", "a\n", "" },
    { "(?<x>a)\\\\k<x>", "aab", "b" },
    { "a\\\\Kb", "ab", "a" },
};

TEST(regular_expressions_are_read_as_oniguruma_does)
{
    if (!has_regex()) SKIP("built without PCRE2");
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (size_t i = 0; i < sizeof readings / sizeof *readings; i++) {
        char pre[400];
        snprintf(pre, sizeof pre, SEQUENCE_OF(SPLIT_BY("%s", "Removed", "false") "," PLAIN_BYTES), readings[i].regex);
        kr_tokenizer *tok = small_tokenizer(ctx, &(small_file){ .pre_tokenizer = pre });
        if (!CHECK(check_round_trip(tok, readings[i].text, strlen(readings[i].text), readings[i].left,
                                    strlen(readings[i].left)),
                   "%s in \"%s\"", readings[i].regex, readings[i].text))
            kr_ctx_clear(ctx);
        kr_tokenizer_destroy(tok);
    }
    kr_ctx_destroy(ctx);
}

/* ---- warnings ---- */

static char warnings[1000];

static void hear(void *user, kr_log_level level, const char *text)
{
    (void)user;
    const size_t at = strlen(warnings);
    if (level == KR_LOG_WARNING) snprintf(warnings + at, sizeof warnings - at, "%s\n", text);
}

TEST(what_has_no_effect_is_warned_of)
{
    kr_ctx_options o;
    kr_ctx_options_init(&o);
    o.threads = 1;
    o.log = hear;
    kr_ctx *ctx = kr_ctx_create(&o);
    warnings[0] = '\0';
    kr_tokenizer_destroy(small_tokenizer(ctx, &(small_file){ .more = "\"novelty\": 1,", .model = "\"speed\": 2," }));
    static const char json[] = "{\"padding\": {}, \"truncation\": {}, \"model\": 1}";
    CHECK(!kr_tokenizer_parse(ctx, json, strlen(json)), "no model");
    const char *want = "tokenizer: the file.novelty is unknown and has no effect\n"
                       "tokenizer: model.speed is unknown and has no effect\n"
                       "tokenizer: truncation is set in the file, but has no effect here\n"
                       "tokenizer: padding is set in the file, but has no effect here\n";
    CHECK(strcmp(warnings, want) == 0, "%s", warnings);
    kr_ctx_destroy(ctx);
}
