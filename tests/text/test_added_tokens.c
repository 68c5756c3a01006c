/* test_added_tokens.c - added tokens in a text, what a file puts around it, and normalisation. */
#include "tests/text/small_tokenizers.h"

#include "text/added_tokens.h"

static kr_ctx *ctx;

static kr_tokenizer *with_added(const char *added)
{
    ctx = kr_test_ctx(1, NULL);
    return small_tokenizer(ctx, &(small_file){ .added = added });
}

static void end(kr_tokenizer *tok)
{
    CHECK_OK(ctx);
    kr_tokenizer_destroy(tok);
    kr_ctx_destroy(ctx);
}

TEST(the_leftmost_then_the_longest)
{
    kr_tokenizer *tok = with_added("{\"id\": 300, \"content\": \"ab\"}, {\"id\": 301, \"content\": \"abcd\"}, "
                                   "{\"id\": 302, \"content\": \"bcde\"}, {\"id\": 303, \"content\": \"  \"}");
    CHECK_IDS(tok, "xaby", "120 300 121");
    CHECK_IDS(tok, "abcde", "301 101"); /* bcde begins later */
    CHECK_IDS(tok, "abc", "300 99");
    CHECK_IDS(tok, "bcde", "302");
    CHECK_IDS(tok, "bcdab", "98 99 100 300");
    CHECK_IDS(tok, "     ", "303 303 32");
    CHECK_IDS(tok,
              "ab\xff"
              "ab",
              "300 255 300");
    end(tok);
}

TEST(single_words)
{
    if (!has_regex()) SKIP("built without PCRE2");
    kr_tokenizer *tok =
        with_added("{\"id\": 300, \"content\": \"ab\", \"single_word\": true}, {\"id\": 98, \"content\": \"b\"}");
    CHECK_IDS(tok, "ab", "300");
    CHECK_IDS(tok, "(ab)", "40 300 41");
    CHECK_IDS(tok, "xab", "120 97 98"); /* b inside what was found is not looked for */
    CHECK_IDS(tok, "ab_", "97 98 95");
    CHECK_IDS(tok, "ab1", "97 98 49");
    CHECK_IDS(tok, "ab\xc3\xa9", "97 98 195 169");
    CHECK_IDS(tok,
              "\xc3\xa9"
              "ab",
              "195 169 97 98");
    CHECK_IDS(tok, "ab\xe2\x80\x8d", "97 98 226 128 141"); /* U+200D belongs to words */
    CHECK_IDS(tok,
              "\xff"
              "ab\xff",
              "255 300 255");
    CHECK_IDS(tok, "abb", "97 98 98");
    end(tok);
}

TEST(tokens_that_take_white_space)
{
    kr_tokenizer *tok = with_added("{\"id\": 300, \"content\": \"<l>\", \"lstrip\": true}, "
                                   "{\"id\": 301, \"content\": \"<r>\", \"rstrip\": true}, "
                                   "{\"id\": 302, \"content\": \"<b>\", \"lstrip\": true, \"rstrip\": true}, "
                                   "{\"id\": 303, \"content\": \" y\"}");
    CHECK_IDS(tok, "a \t<l> b", "97 300 32 98");
    CHECK_IDS(tok, "a <r>\n\n b", "97 32 301 98");
    CHECK_IDS(tok,
              "a\xe3\x80\x80<b>\xc2\xa0"
              "b",
              "97 302 98");
    CHECK_IDS(tok, "  <b>  <b>  ", "302 302"); /* the first one takes what is between */
    CHECK_IDS(tok, "<r> <l>", "301 300");
    CHECK_IDS(tok, "<r> y", "301 121");                   /* " y" begins in what was taken */
    CHECK_IDS(tok, "\xe1\xa0\x8e<l>", "225 160 142 300"); /* U+180E is not white space any more */
    end(tok);
}

TEST(special_tokens_may_be_plain_text)
{
    kr_tokenizer *tok =
        with_added("{\"id\": 300, \"content\": \"<s>\", \"special\": true}, {\"id\": 301, \"content\": \"<t>\"}");
    kr_encode_options o;
    kr_encode_options_init(&o);
    CHECK(o.size == sizeof o && o.add_special && o.parse_special, "defaults");
    o.parse_special = false;
    CHECK_IDS(tok, "<s><t>", "300 301");
    const char *plain = ids_text(tok, "<s><t>", 6, &o);
    CHECK(strcmp(plain, "60 115 62 301") == 0, "plain: %s", plain);
    check_round_trip(tok, "a<s>b", 5, "ab", 2);
    end(tok);
}

TEST(raw_tokens_come_before_normalised_ones)
{
    ctx = kr_test_ctx(1, NULL);
    /* U+0065 U+0301 is U+00E9; the raw token is found before that happens, the normalised one after */
    small_file file = { .normalizer = "{\"type\": \"NFC\"}",
                        .added = "{\"id\": 300, \"content\": \"e\xcc\x81!\", \"normalized\": false}, "
                                 "{\"id\": 301, \"content\": \"e\xcc\x81?\", \"normalized\": true}, "
                                 "{\"id\": 302, \"content\": \"x\xc3\xa9!\", \"normalized\": true}" };
    kr_tokenizer *tok = small_tokenizer(ctx, &file);
    CHECK_IDS(tok, "e\xcc\x81!", "300");
    CHECK_IDS(tok, "\xc3\xa9!", "195 169 33"); /* composed already: not as it is written */
    CHECK_IDS(tok, "e\xcc\x81?", "301");
    CHECK_IDS(tok, "\xc3\xa9?", "301");
    CHECK_IDS(tok, "xe\xcc\x81!", "120 300"); /* though 302 begins earlier */
    check_round_trip(tok, "e\xcc\x81?e\xcc\x81", 7, "\xc3\xa9?\xc3\xa9", 5);
    CHECK(kr_tokenizer_find(tok, "e\xcc\x81?") == 301, "found as the file writes it");
    end(tok);
}

TEST(without_a_normaliser_raw_tokens_still_come_first)
{
    kr_tokenizer *tok = with_added("{\"id\": 300, \"content\": \"bc\", \"normalized\": false}, "
                                   "{\"id\": 301, \"content\": \"ab\", \"normalized\": true}");
    CHECK_IDS(tok, "abc", "97 300");
    CHECK_IDS(tok, "ab", "301");
    end(tok);
}

TEST(a_word_of_the_vocabulary_may_be_special)
{
    ctx = kr_test_ctx(1, NULL);
    small_file file = { .words = "\"<s>\"", .added = "{\"id\": 256, \"content\": \"<s>\", \"special\": true}" };
    kr_tokenizer *tok = small_tokenizer(ctx, &file);
    CHECK_IDS(tok, "a<s>", "97 256");
    CHECK(kr_tokenizer_is_special(tok, 256) && kr_tokenizer_size(tok) == 257, "one token");
    end(tok);
}

#define TEMPLATE(single)                                                                                               \
    "{\"type\": \"TemplateProcessing\", \"single\": [" single "], \"pair\": [], \"special_tokens\": {"                 \
    "\"<s>\": {\"id\": \"<s>\", \"ids\": [300], \"tokens\": [\"<s>\"]}, \"<ab>\": {\"id\": \"<ab>\", \"ids\": [97, "   \
    "98]}}}"
#define SPECIAL(name) "{\"SpecialToken\": {\"id\": \"" name "\", \"type_id\": 0}}"
#define TEXT_A "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}"

TEST(what_a_file_puts_around_a_text)
{
    ctx = kr_test_ctx(1, NULL);
    small_file file = { .added = "{\"id\": 300, \"content\": \"<s>\", \"special\": true}",
                        .post_processor = TEMPLATE(SPECIAL("<s>") "," TEXT_A "," SPECIAL("<ab>")) };
    kr_tokenizer *tok = small_tokenizer(ctx, &file);
    CHECK_IDS(tok, "x", "300 120 97 98");
    CHECK_IDS(tok, "", "300 97 98");
    CHECK(kr_tokenizer_max_ids(tok, 1) == 4, "most");
    kr_encode_options o;
    kr_encode_options_init(&o);
    o.add_special = false;
    CHECK(strcmp(ids_text(tok, "x", 1, &o), "120") == 0, "bare");
    kr_tokenizer_destroy(tok);
    file.post_processor =
        "{\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\", \"trim_offsets\": true}, " TEMPLATE(
            SPECIAL("<s>") "," TEXT_A) "," TEMPLATE(SPECIAL("<ab>") "," TEXT_A "," SPECIAL("<s>")) "]}";
    tok = small_tokenizer(ctx, &file);
    CHECK_IDS(tok, "x", "97 98 300 120 300"); /* the second goes around the first */
    end(tok);
}

/* ---- the search, against a plain one ---- */

TEST(searches_find_what_looking_everywhere_finds)
{
    enum { MOST_TOKENS = 12, MOST_BYTES = 400 };
    ctx = kr_test_ctx(1, NULL);
    for (int run = 0; run < (kr_test_quick() ? 100 : 1000); run++) {
        kr_added_token tokens[MOST_TOKENS] = { { 0 } };
        char patterns[MOST_TOKENS][8], text[MOST_BYTES];
        const int64_t count = 1 + kr_test_below(MOST_TOKENS);
        for (int64_t i = 0; i < count; i++) {
            tokens[i].pattern_bytes = 1 + (size_t)kr_test_below(7);
            for (size_t j = 0; j < tokens[i].pattern_bytes; j++) patterns[i][j] = "abc"[kr_test_below(2 + run % 2)];
            tokens[i].pattern = patterns[i];
        }
        const size_t bytes = (size_t)kr_test_below(MOST_BYTES);
        for (size_t j = 0; j < bytes; j++) text[j] = "abc"[kr_test_below(2 + run % 2)];
        kr_arena arena;
        kr_arena_init(&arena, &ctx->memory, 4096);
        kr_matcher matcher;
        kr_buffer hits = { .ctx = ctx };
        uint64_t work = 0;
        CHECK(kr_matcher_init(&matcher, &arena, kr_test_next(), tokens, count, false), "memory");
        kr_search search;
        kr_search_begin(&search, &matcher, text, bytes, &hits, &work);
        size_t from = 0;
        for (;;) {
            size_t at = from, longest = 0;
            for (; at < bytes && longest == 0; at += longest == 0)
                for (int64_t i = 0; i < count; i++)
                    if (tokens[i].pattern_bytes <= bytes - at && tokens[i].pattern_bytes > longest &&
                        memcmp(text + at, patterns[i], tokens[i].pattern_bytes) == 0)
                        longest = tokens[i].pattern_bytes;
            kr_hit hit;
            const int found = kr_search_next(&search, from, &hit);
            if (!CHECK(found == (longest > 0), "run %d from %zu: found %d", run, from, found) || !found) break;
            if (!CHECK(hit.at == at && tokens[hit.token].pattern_bytes == longest, "run %d from %zu: at %zu, want %zu",
                       run, from, hit.at, at))
                break;
            from = at + longest;
        }
        kr_buffer_free(&hits);
        kr_arena_deinit(&arena);
    }
    kr_ctx_destroy(ctx);
}

/* Tokens across the borders of the windows in which a long text is searched. */
TEST(long_texts_are_searched_window_by_window)
{
    kr_tokenizer *tok = with_added("{\"id\": 300, \"content\": \"abcdefg\"}");
    enum { N = 100000 };
    char *text = malloc(7 * N + 3);
    memset(text, '-', 3);
    for (int i = 0; i < N; i++) memcpy(text + 3 + 7 * i, "abcdefg", 7);
    const int64_t n = kr_tokenizer_encode(tok, text, 7 * N + 3, NULL, NULL, 0);
    CHECK(n == N + 3, "%lld ids, want %d", (long long)n, N + 3);
    free(text);
    end(tok);
}
