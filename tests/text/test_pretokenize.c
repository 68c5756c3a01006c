/* test_pretokenize.c - how a text is cut into pieces: every kind of pre-tokenizer, against pieces found by hand.
 *
 * With ignore_merges a piece that is a word is one token, so that words for all the pieces in question show the cuts.
 */
#include "tests/text/small_tokenizers.h"

static kr_ctx *ctx;
static kr_tokenizer *tok;

/* A tokenizer whose words are the pieces that may occur; spaces are spelt. */
static void begin(const char *pre_tokenizer, const char *words)
{
    ctx = kr_test_ctx(1, NULL);
    tok = small_tokenizer(
        ctx, &(small_file){ .words = words, .model = "\"ignore_merges\": true,", .pre_tokenizer = pre_tokenizer });
}

static void end(void)
{
    CHECK_OK(ctx);
    kr_tokenizer_destroy(tok);
    kr_ctx_destroy(ctx);
}

/* The pieces are "a|--|b", with a bar between two; a text that is not a word shows as its bytes. */
static bool check_pieces(const char *text, const char *want, int line)
{
    int32_t ids[200];
    char got[1000];
    size_t at = 0;
    const int64_t n = kr_tokenizer_encode(tok, text, strlen(text), NULL, ids, 200);
    for (int64_t i = 0; i < n && i < 200; i++) {
        size_t bytes;
        const char *token = kr_tokenizer_token(tok, ids[i], &bytes);
        at += (size_t)snprintf(got + at, sizeof got - at, "%s%.*s", i ? "|" : "", (int)bytes, token);
    }
    got[at] = '\0';
    return kr_test_check(n >= 0 && strcmp(got, want) == 0, __FILE__, line, "\"%s\" gives %s, want %s", text, got, want);
}
#define CHECK_PIECES(text, want) check_pieces((text), (want), __LINE__)

#define DASHES "\"a-\", \"b-\", \"-b\", \"-c\", \"--\", \"--b\", \"a--b\", \"a--\", \"bc\", \"-bc\", \"a--bc-\""

typedef struct behavior_case {
    const char *behavior, *plain, *inverted;
} behavior_case;

static const behavior_case behaviors[] = {
    { "Isolated", "a|-|-|bc|-|a", "a|-|-|bc|-|a" },       { "Removed", "a|bc|a", "-|-|-" },
    { "MergedWithPrevious", "a-|-|bc-|a", "a|-|-bc|-a" }, { "MergedWithNext", "a|-|-bc|-a", "a-|-|bc-|a" },
    { "Contiguous", "a|--|bc|-|a", "a|--|bc|-|a" },
};

static void check_behaviors(const char *pattern)
{
    for (size_t i = 0; i < sizeof behaviors / sizeof *behaviors; i++) {
        for (int inverted = 0; inverted < 2; inverted++) {
            char pre[400];
            snprintf(pre, sizeof pre,
                     SEQUENCE_OF(
                         "{\"type\": \"Split\", \"pattern\": %s, \"behavior\": \"%s\", \"invert\": %s}, " PLAIN_BYTES),
                     pattern, behaviors[i].behavior, inverted ? "true" : "false");
            begin(pre, DASHES ", \"-a\", \"bc-\", \"-bc-\"");
            CHECK_PIECES("a--bc-a", inverted ? behaviors[i].inverted : behaviors[i].plain);
            end();
        }
    }
}

TEST(split_by_a_text)
{
    check_behaviors("{\"String\": \"-\"}");
    begin(SEQUENCE_OF(
              "{\"type\": \"Split\", \"pattern\": {\"String\": \"--\"}, \"behavior\": \"Isolated\"}," PLAIN_BYTES),
          DASHES);
    CHECK_PIECES("a---b", "a|--|-b");
    CHECK_PIECES("--", "--");
    CHECK_PIECES("", "");
    end();
    /* an empty text is found between any two characters */
    begin(
        SEQUENCE_OF("{\"type\": \"Split\", \"pattern\": {\"String\": \"\"}, \"behavior\": \"Isolated\"}," PLAIN_BYTES),
        DASHES ", \"\xc3\x83\xc2\xa9\"");
    CHECK_PIECES("bc\xc3\xa9--", "b|c|\xc3\xa9|-|-");
    end();
}

TEST(split_by_a_regular_expression)
{
    if (!has_regex()) SKIP("built without PCRE2");
    check_behaviors("{\"Regex\": \"-\"}");
    begin(SEQUENCE_OF(SPLIT_BY("-*", "Isolated", "false") "," PLAIN_BYTES), DASHES);
    CHECK_PIECES("bc--bc", "b|c|--|b|c"); /* the empty match cuts too */
    end();
    begin(SEQUENCE_OF(
              SPLIT_BY("-+", "Isolated", "false") "," SPLIT_BY("-", "MergedWithPrevious", "false") "," PLAIN_BYTES),
          DASHES);
    CHECK_PIECES("a---", "a|-|-|-"); /* the second sees the pieces of the first */
    end();
}

/* U+0120 spells a space, U+010A a newline. */
#define S "\xc4\xa0"
#define N "\xc4\x8a"

TEST(gpt2_pieces)
{
    if (!has_regex()) SKIP("built without PCRE2");
    begin(GPT2_BYTES, "\"'m\", \"'ll\", \"" S "here\", \"here\", \"" S S "\", \"" S S S "\", \"" S "42\", \"42\", \"" S
                      "!?\", \"!?\", \"you\", \"YOU\", \"LL\", \"" N N "\", \"" S "x\", \"" S N
                      "\", \"\xc3\x83\xc2\xa9t\xc3\x83\xc2\xa9\"");
    CHECK_PIECES("I'm here", "I|'m| here");
    CHECK_PIECES("you'll 42here", "you|'ll| 42|here");
    CHECK_PIECES("YOU'LL", "YOU|'|LL"); /* small letters only */
    CHECK_PIECES("x   x", "x|  | x");   /* the last space goes with the word */
    CHECK_PIECES("x   ", "x|   ");
    CHECK_PIECES("x\n\n\nx", "x|\n\n|\n|x");
    CHECK_PIECES("42 !?here", "42| !?|here");
    CHECK_PIECES("\xc3\xa9t\xc3\xa9'", "\xc3\xa9t\xc3\xa9|'");
    /* what ends at an invalid byte ends there for the expression too */
    CHECK_PIECES("x  \xffx", "x|  |\xff|x");
    end();
}

#define LLAMA3                                                                                                         \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| "                             \
    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|"                                                                         \
    "\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

TEST(llama3_pieces)
{
    if (!has_regex()) SKIP("built without PCRE2");
    begin(SEQUENCE_OF(SPLIT_BY(LLAMA3, "Isolated", "false") "," PLAIN_BYTES),
          "\"YOU\", \"'LL\", \"123\", \"4567\", \"45\", \"" S "x\", \"#x\", \"" S S N N "\", \"" S S "\", \"!" N
          "\", \"'\xc3\x85\xc2\xbf\"");
    CHECK_PIECES("YOU'LL", "YOU|'LL");
    CHECK_PIECES("12345", "123|45");
    CHECK_PIECES(" x#x", " x|#x");
    CHECK_PIECES("  \n\nx", "  \n\n|x");
    CHECK_PIECES("   x", "  | x");
    CHECK_PIECES("!\nx", "!\n|x");
    CHECK_PIECES("'\xc5\xbf", "'\xc5\xbf"); /* a long s is an s that is not told from others */
    end();
}

TEST(digits_and_punctuation)
{
    if (!has_regex()) SKIP("built without PCRE2");
    const char words[] =
        "\"12\", \"ab\", \"!?\", \"\xc3\x82\xc2\xbd\", \"\xc3\x83\xc2\xa9\", \"\xc3\x82\xc2\xa1\xc3\x82\xc2\xbf\", "
        "\"\xc3\x82\xc2\xa1\", \"\xc3\x82\xc2\xbf\", \"" S "ab\"";
    begin(SEQUENCE_OF("{\"type\": \"Digits\", \"individual_digits\": true}, " PLAIN_BYTES), words);
    CHECK_PIECES("ab12ab\xc2\xbd", "ab|1|2|ab|\xc2\xbd");
    end();
    begin(SEQUENCE_OF("{\"type\": \"Digits\", \"individual_digits\": false}, " PLAIN_BYTES), words);
    CHECK_PIECES("ab12ab\xc2\xbd", "ab|12|ab|\xc2\xbd");
    end();
    begin(SEQUENCE_OF("{\"type\": \"Punctuation\"}, " PLAIN_BYTES), words);
    CHECK_PIECES("ab!?ab\xc2\xa1\xc2\xbf", "ab|!|?|ab|\xc2\xa1|\xc2\xbf");
    end();
    begin(SEQUENCE_OF("{\"type\": \"Punctuation\", \"behavior\": \"Contiguous\"}, " PLAIN_BYTES), words);
    CHECK_PIECES("ab!?ab\xc2\xa1\xc2\xbf", "ab|!?|ab|\xc2\xa1\xc2\xbf");
    end();
}

TEST(stages_behind_byte_level_see_the_spelling)
{
    if (!has_regex()) SKIP("built without PCRE2");
    /* in the byte-level alphabet a space is a letter, and so is each half of an accented one */
    begin(SEQUENCE_OF(PLAIN_BYTES "," SPLIT_BY("\\\\p{L}+", "Isolated", "false")), "\"a" S "b\", \"12\"");
    CHECK_PIECES("a b12", "a b|12");
    CHECK_PIECES("\xc3\xa9", "\xc3|\xa9"); /* U+00C3 is a letter, U+00A9 is not */
    end();
    begin(SEQUENCE_OF(GPT2_BYTES "," SPLIT_BY("[0-9][0-9][0-9]", "Isolated", "false")), "\"123\", \"45\"");
    CHECK_PIECES("12345", "123|45");
    end();
}

TEST(a_space_comes_before_pieces)
{
    const char spaced[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"use_regex\": false}";
    ctx = kr_test_ctx(1, NULL);
    small_file file = { .words = "\"" S "a\", \"" S "b\"",
                        .merges = "\"" S " a\", \"" S " b\"",
                        .pre_tokenizer = spaced,
                        .added = "{\"id\": 300, \"content\": \"<s>\", \"special\": true}" };
    tok = small_tokenizer(ctx, &file);
    CHECK_IDS(tok, "a", "256");
    CHECK_IDS(tok, " a", "256");
    CHECK_IDS(tok, "", "");
    CHECK_IDS(tok, "<s>", "300");
    CHECK_IDS(tok, "a<s>b<s> a", "256 300 257 300 256"); /* each text between tokens is one */
    CHECK_IDS(tok,
              "a\xff"
              "b",
              "256 255 98"); /* but none is put behind an invalid byte */
    CHECK_IDS(tok,
              "\xff"
              "a",
              "255 97");
    CHECK(kr_tokenizer_max_ids(tok, 3) == 6, "most %lld", (long long)kr_tokenizer_max_ids(tok, 3));
    kr_tokenizer_destroy(tok);
    file.pre_tokenizer =
        SEQUENCE_OF("{\"type\": \"Split\", \"pattern\": {\"String\": \"-\"}, \"behavior\": \"Removed\"},"
                    "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"use_regex\": false}");
    tok = small_tokenizer(ctx, &file);
    CHECK_IDS(tok, "a-b", "256 257");
    end();
}

TEST(hostile_expressions_end)
{
    if (!has_regex()) SKIP("built without PCRE2");
    ctx = kr_test_ctx(1, NULL);
    tok = small_tokenizer(ctx, &(small_file){ .pre_tokenizer = SEQUENCE_OF(SPLIT_BY("(?:(?:a|a)+)+[bc]", "Isolated",
                                                                                    "false") "," PLAIN_BYTES) });
    char text[64];
    memset(text, 'a', sizeof text);
    CHECK(kr_tokenizer_encode(tok, text, sizeof text, NULL, NULL, 0) == -1, "it has an end");
    CHECK_ERROR_HAS(ctx, KR_ERR_FORMAT,
                    "tokenizer.encode: the regular expression \"(?:(?:a|a)+)+[bc]\" takes too much time or memory");
    CHECK(kr_tokenizer_encode(tok, "aab", 3, NULL, NULL, 0) == 3, "and can be used again");
    end();
}

/* More than the first try of an expression may take, without being hostile. */
TEST(long_runs_match)
{
    if (!has_regex()) SKIP("built without PCRE2");
    begin(SEQUENCE_OF(SPLIT_BY("(?:ab|ba|aa)+", "Removed", "false") "," PLAIN_BYTES), NULL);
    enum { N_BYTES = 60000 };
    char *text = malloc(N_BYTES + 1);
    for (int i = 0; i < N_BYTES; i++) text[i] = "aabbab"[i % 6];
    text[N_BYTES] = 'x';
    const char *ids = ids_text(tok, text, N_BYTES + 1, NULL);
    CHECK(!kr_ctx_failed(ctx) && strlen(ids) > 0, "%s", kr_ctx_message(ctx));
    free(text);
    end();
}
