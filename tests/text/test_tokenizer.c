/* test_tokenizer.c - bytes, merges, vocabularies, invalid text, what is promised of every tokenizer. */
#include "tests/text/small_tokenizers.h"

#include "text/tokenizer_impl.h"
#include "io/utf8.h"

static kr_ctx *ctx;

/* ---- texts ---- */

static size_t random_bytes(char *text, size_t most)
{
    const size_t n = (size_t)kr_test_below((int64_t)most + 1);
    const int kind = (int)kr_test_below(3);
    for (size_t i = 0; i < n; i++)
        text[i] = (char)(kind == 0   ? kr_test_next()
                         : kind == 1 ? (uint64_t) "ab c\xc3\xa9\xe2\x82\xac\xf0"[kr_test_below(11)]
                                     : 'a' + (uint64_t)kr_test_below(3));
    return n;
}

/* Valid UTF-8; up to `most` bytes. */
static size_t random_unicode(char *text, size_t most)
{
    static const uint32_t ranges[][2] = { { 1, 0x7f },        { 0x80, 0x17f },     { 0x300, 0x36f },
                                          { 0x900, 0x9ff },   { 0x1100, 0x11ff },  { 0x2000, 0x206f },
                                          { 0xac00, 0xac80 }, { 0x1f600, 0x1f64f } };
    char *at = text;
    for (int64_t left = kr_test_below((int64_t)most / 4 + 1); left > 0; left--) {
        const uint32_t *range = ranges[kr_test_below(8)];
        at = kr_utf8_write(at, range[0] + (uint32_t)kr_test_below((int64_t)(range[1] - range[0] + 1)));
    }
    return (size_t)(at - text);
}

/* ---- bytes ---- */

TEST(bytes_are_their_own_ids)
{
    ctx = kr_test_ctx(1, NULL);
    kr_tokenizer *tok = kr_tokenizer_bytes(ctx);
    CHECK_IDS(tok, "A\n\xff", "65 10 255");
    CHECK(kr_tokenizer_size(tok) == 256, "size %lld", (long long)kr_tokenizer_size(tok));
    CHECK(kr_tokenizer_max_ids(tok, 7) == 7, "most %lld", (long long)kr_tokenizer_max_ids(tok, 7));
    size_t bytes = 0;
    const char *token = kr_tokenizer_token(tok, 65, &bytes);
    CHECK(token && bytes == 1 && *token == 'A', "token 65");
    CHECK(!kr_tokenizer_token(tok, 256, &bytes) && bytes == 0 && !kr_tokenizer_token(tok, -1, NULL), "no token");
    CHECK(!kr_tokenizer_is_special(tok, 0) && kr_tokenizer_find(tok, "A") == -1, "nothing is special or added");
    char text[200];
    for (int i = 0; i < 300; i++) {
        const size_t n = random_bytes(text, sizeof text);
        check_round_trip(tok, text, n, text, n);
    }
    CHECK_OK(ctx);
    kr_tokenizer_destroy(tok);
    kr_ctx_destroy(ctx);
}

TEST(encode_writes_at_most_the_capacity)
{
    ctx = kr_test_ctx(1, NULL);
    kr_tokenizer *tok = kr_tokenizer_bytes(ctx);
    int32_t ids[4] = { -7, -7, -7, -7 };
    CHECK(kr_tokenizer_encode(tok, "abc", 3, NULL, ids, 2) == 3, "the count");
    CHECK(ids[0] == 'a' && ids[1] == 'b' && ids[2] == -7, "the first two");
    CHECK(kr_tokenizer_encode(tok, "abc", 3, NULL, NULL, 0) == 3 &&
              kr_tokenizer_encode(tok, NULL, 0, NULL, ids, 4) == 0,
          "no capacity, no text");
    char text[3] = "???";
    CHECK(kr_tokenizer_decode(tok, (int32_t[]){ 'x', 'y', 'z', 999 }, 4, false, text, 2) == 3, "bytes of ids");
    CHECK(memcmp(text, "xy?", 3) == 0, "decode wrote %.3s", text);
    CHECK(kr_tokenizer_encode(tok, NULL, 1, NULL, ids, 4) == -1, "NULL text");
    CHECK_ERROR(ctx, KR_ERR_ARG, "tokenizer.encode: text is NULL, but has 1 bytes");
    CHECK(kr_tokenizer_encode(tok, "a", 1, NULL, NULL, 4) == -1, "NULL ids");
    CHECK_ERROR(ctx, KR_ERR_ARG,
                "tokenizer.encode: ids is NULL and capacity = 4; ids must have space for capacity >= 0 ids");
    CHECK(kr_tokenizer_encode(NULL, "a", 1, NULL, ids, 4) == -1 && kr_tokenizer_size(NULL) == 0 &&
              kr_tokenizer_decode(NULL, ids, 1, false, NULL, 0) == 0 && !kr_text_stream_create(NULL),
          "NULL tokenizers");
    kr_tokenizer_destroy(tok);
    kr_ctx_destroy(ctx);
}

/* ---- merges ---- */

TEST(merges_of_low_rank_come_first)
{
    ctx = kr_test_ctx(1, NULL);
    small_file file = { .words = "\"ll\", \"he\", \"hell\", \"hello\", \"unreached\"",
                        .merges = "\"l l\", \"h e\", \"he ll\", \"hell o\"" };
    kr_tokenizer *tok = small_tokenizer(ctx, &file);
    CHECK_IDS(tok, "hello", "259");
    CHECK_IDS(tok, "hell", "258");
    CHECK_IDS(tok, "ello", "101 256 111");
    CHECK_IDS(tok, "helllo", "258 108 111"); /* the left pair of l first */
    CHECK_IDS(tok, "unreached", "117 110 114 101 97 99 257 100");
    kr_tokenizer_destroy(tok);
    /* by rank, not by place: bc comes before ab */
    file = (small_file){ .words = "\"bc\", \"ab\", \"aa\"", .merges = "\"b c\", \"a b\", \"a a\"" };
    tok = small_tokenizer(ctx, &file);
    CHECK_IDS(tok, "abc", "97 256");
    CHECK_IDS(tok, "abab", "257 257");
    CHECK_IDS(tok, "aaa", "258 97");
    CHECK_IDS(tok, "aaaa", "258 258");
    CHECK_IDS(tok, "aab", "97 257");
    kr_tokenizer_destroy(tok);
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

TEST(merges_are_written_in_two_ways)
{
    ctx = kr_test_ctx(1, NULL);
    small_file file = { .words = "\"ab\", \"abc\"", .merges = "\"#version: 0.2\", [\"a\", \"b\"], [\"ab\", \"c\"]" };
    kr_tokenizer *tok = small_tokenizer(ctx, &file);
    CHECK_IDS(tok, "abcab", "257 256");
    kr_tokenizer_destroy(tok);
    kr_ctx_destroy(ctx);
}

TEST(ignore_merges_takes_pieces_that_are_words)
{
    ctx = kr_test_ctx(1, NULL);
    small_file file = { .words = "\"ab\", \"abc\", \"xyz\"", .merges = "\"a b\"", .model = "\"ignore_merges\": true," };
    kr_tokenizer *tok = small_tokenizer(ctx, &file);
    CHECK_IDS(tok, "xyz", "258");
    CHECK_IDS(tok, "abc", "257");
    CHECK_IDS(tok, "abcd", "256 99 100");
    kr_tokenizer_destroy(tok);
    file.model = NULL;
    tok = small_tokenizer(ctx, &file);
    for (int twice = 0; twice < 2; twice++) { /* what was learnt the first time is used the second */
        CHECK_IDS(tok, "xyz", "120 121 122");
        CHECK_IDS(tok, "abc", "256 99");
        CHECK_IDS(tok, "ab", "256");
    }
    kr_tokenizer_destroy(tok);
    kr_ctx_destroy(ctx);
}

TEST(bytes_without_tokens_are_unknown)
{
    ctx = kr_test_ctx(1, NULL);
    small_file file = { .words = "\"?\"", .without = "?xyz", .model = "\"unk_token\": \"?\"," };
    kr_tokenizer *tok = small_tokenizer(ctx, &file);
    CHECK_IDS(tok, "axyb", "97 256 256 98");
    kr_tokenizer_destroy(tok);
    file.model = "\"unk_token\": \"?\", \"fuse_unk\": true,";
    tok = small_tokenizer(ctx, &file);
    CHECK_IDS(tok, "axybz", "97 256 98 256");
    CHECK_IDS(tok, "xyzxyzxyzxyzxyzxyzxyzxyzxyzxyzxyzxyzaxyzxyz", "256 97 256"); /* a long piece */
    kr_tokenizer_destroy(tok);
    kr_ctx_destroy(ctx);
}

/* Merges one after another, found by looking: what the heap has to agree with. */
static int64_t merge_plainly(const kr_tokenizer *tok, const char *text, size_t bytes, int32_t *ids)
{
    int32_t *tokens = malloc(bytes * sizeof *tokens);
    size_t n = bytes;
    for (size_t i = 0; i < n; i++) tokens[i] = tok->byte_tokens[(unsigned char)text[i]];
    for (;;) {
        const kr_merge *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            const kr_merge *merge = kr_merge_map_find(&tok->merges, tokens[i], tokens[i + 1]);
            if (merge->rank != KR_NO_MERGE && (!best || merge->rank < best->rank)) best = merge, at = i;
        }
        if (!best) break;
        tokens[at] = best->merged;
        memmove(tokens + at + 1, tokens + at + 2, (n - at - 2) * sizeof *tokens);
        n--;
    }
    for (size_t i = 0; i < n; i++) ids[i] = tok->tokens[tokens[i]].id;
    free(tokens);
    return (int64_t)n;
}

TEST(long_pieces_merge_as_short_ones_do)
{
    ctx = kr_test_ctx(1, NULL);
    small_file file = {
        .words = "\"ab\", \"ba\", \"aba\", \"aa\", \"abab\", \"aab\", \"bb\", \"bbb\", \"ababab\", \"bbbbbb\"",
        .merges = "\"a b\", \"b b\", \"ab ab\", \"b a\", \"a a\", \"ab a\", \"a ab\", \"abab ab\", "
                  "\"bb b\", \"bbb bbb\", \"aa b\""
    };
    kr_tokenizer *tok = small_tokenizer(ctx, &file);
    enum { MOST = 300 };
    char text[MOST];
    int32_t got[MOST], want[MOST];
    for (int run = 0; run < (kr_test_quick() ? 200 : 2000); run++) {
        const size_t n = 1 + (size_t)kr_test_below(MOST);
        for (size_t i = 0; i < n; i++) text[i] = "aabbc"[kr_test_below(4 + (run % 5 == 0))];
        const int64_t ngot = kr_tokenizer_encode(tok, text, n, NULL, got, MOST),
                      nwant = merge_plainly(tok, text, n, want);
        if (!CHECK(ngot == nwant && memcmp(got, want, (size_t)nwant * sizeof *got) == 0, "run %d: %.*s", run, (int)n,
                   text))
            break;
    }
    kr_tokenizer_destroy(tok);
    kr_ctx_destroy(ctx);
}

/* ---- invalid text ---- */

TEST(invalid_bytes_are_pieces_of_their_own)
{
    ctx = kr_test_ctx(1, NULL);
    /* c3 a9 is one character; a lone c3 does not merge with what follows it */
    small_file file = { .words = "\"\xc3\x83\xc2\xa9\", \"\xc3\x83x\", \"x\xc3\x83\"",
                        .merges = "\"\xc3\x83 \xc2\xa9\", \"\xc3\x83 x\", \"x \xc3\x83\"" };
    kr_tokenizer *tok = small_tokenizer(ctx, &file);
    CHECK_IDS(tok, "\xc3\xa9", "256");
    CHECK_IDS(tok, "\xc3x", "195 120");
    CHECK_IDS(tok, "x\xc3", "120 195");
    CHECK_IDS(tok, "\xc3\xc3\xa9\xa9", "195 256 169");
    CHECK_IDS(tok, "\xed\xa0\x80\xff", "237 160 128 255");
    kr_tokenizer_destroy(tok);
    kr_ctx_destroy(ctx);
}

TEST(every_tokenizer_keeps_every_byte)
{
    ctx = kr_test_ctx(1, NULL);
    const char *added = "{\"id\": 300, \"content\": \"abc\"}, {\"id\": 301, \"content\": \"<s>\", \"special\": false}, "
                        "{\"id\": 302, \"content\": \"\xc3\xa9\xe2\x82\xac\", \"normalized\": false}";
    const char *pres[] = { PLAIN_BYTES, GPT2_BYTES,
                           SEQUENCE_OF(SPLIT_BY("\\\\s+|a", "MergedWithNext", "false") "," PLAIN_BYTES),
                           SEQUENCE_OF(GPT2_BYTES "," SPLIT_BY("\\\\p{L}\\\\p{L}", "Contiguous", "true")) };
    char text[400];
    for (int pre = 0; pre < (has_regex() ? 4 : 1); pre++) {
        small_file file = { .words = "\"ab\", \"\xc3\x83\xc2\xa9\", \"\xc4\xa0\x61\"",
                            .merges = "\"a b\", \"\xc3\x83 \xc2\xa9\", \"\xc4\xa0 a\"",
                            .added = added,
                            .pre_tokenizer = pres[pre] };
        kr_tokenizer *tok = small_tokenizer(ctx, &file);
        for (int run = 0; run < (kr_test_quick() ? 60 : 500); run++) {
            const size_t n = run % 2 ? random_bytes(text, sizeof text) : random_unicode(text, sizeof text);
            if (!check_round_trip(tok, text, n, text, n)) break;
        }
        kr_tokenizer_destroy(tok);
    }
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

/* ---- the table of tokens ---- */

TEST(ids_may_have_holes)
{
    ctx = kr_test_ctx(1, NULL);
    small_file file = {
        .added = "{\"id\": 1000, \"content\": \"<x>\", \"special\": true}, {\"id\": 400, \"content\": \"y\xc3\xa9\"}"
    };
    kr_tokenizer *tok = small_tokenizer(ctx, &file);
    CHECK(kr_tokenizer_size(tok) == 1001, "size %lld", (long long)kr_tokenizer_size(tok));
    CHECK(!kr_tokenizer_token(tok, 256, NULL) && !kr_tokenizer_token(tok, 999, NULL), "holes have no text");
    CHECK(kr_tokenizer_find(tok, "<x>") == 1000 && kr_tokenizer_find(tok, "y\xc3\xa9") == 400, "found");
    CHECK(kr_tokenizer_find(tok, "<x") == -1 && kr_tokenizer_find(tok, "a") == -1, "not added");
    CHECK(kr_tokenizer_is_special(tok, 1000) && !kr_tokenizer_is_special(tok, 400), "special");
    size_t bytes;
    CHECK(strcmp(kr_tokenizer_token(tok, 400, &bytes), "y\xc3\xa9") == 0 && bytes == 3, "the text of an added token");
    const int32_t ids[] = { 'a', 1000, 999, 400, 70000, -1 };
    char text[16];
    CHECK(kr_tokenizer_decode(tok, ids, 6, false, text, sizeof text) == 7 && !memcmp(text, "a<x>y\xc3\xa9", 7), "all");
    CHECK(kr_tokenizer_decode(tok, ids, 6, true, text, sizeof text) == 4 && !memcmp(text, "ay\xc3\xa9", 4),
          "no special");
    kr_tokenizer_destroy(tok);
    kr_ctx_destroy(ctx);
}

/* ---- memory ---- */

typedef struct failing {
    small_file file;
    const char *text;
} failing;

TEST(every_refused_allocation_is_told_of)
{
    const failing cases[] = {
        { { .words = "\"ab\"",
            .merges = "\"a b\"",
            .normalizer = "{\"type\": \"NFC\"}",
            .added = "{\"id\": 300, \"content\": \"e\xcc\x81\xcc\xa3<s>\", \"normalized\": true}" },
          "ab e\xcc\x81 \xe1\xb8\xa5\xcc\x81 abababababababababababababababababababababababab" },
        { { .added = "{\"id\": 300, \"content\": \"word\", \"single_word\": true, \"lstrip\": true}",
            .pre_tokenizer =
                SEQUENCE_OF(SPLIT_BY("\\\\p{Greek}+", "MergedWithNext",
                                     "false") ", {\"type\": \"ByteLevel\"}," SPLIT_BY("ab", "Isolated", "false")),
            .post_processor = "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\"}}, "
                              "{\"Sequence\": {\"id\": \"A\"}}], \"special_tokens\": {\"<s>\": {\"ids\": [97, 98]}}}" },
          "a word, \xce\xb1\xce\xb2\xce\xb3 ab" },
    };
    for (int c = 0; c < (has_regex() ? 2 : 1); c++) {
        ctx = kr_test_ctx(1, NULL);
        const size_t live = kr_ctx_memory(ctx).live_bytes;
        const char *json = small_json(&cases[c].file);
        int refused = 0;
        for (size_t n = 1;; n++) {
            kr_ctx_fail_allocation(ctx, n);
            kr_tokenizer *tok = kr_tokenizer_parse(ctx, json, strlen(json));
            kr_text_stream *stream = tok ? kr_text_stream_create(tok) : NULL;
            const int64_t count =
                stream ? kr_tokenizer_encode(tok, cases[c].text, strlen(cases[c].text), NULL, NULL, 0) : -1;
            kr_ctx_fail_allocation(ctx, 0);
            kr_text_stream_destroy(stream);
            kr_tokenizer_destroy(tok);
            CHECK(kr_ctx_memory(ctx).live_bytes == live, "allocation %zu: %zu bytes are left", n,
                  kr_ctx_memory(ctx).live_bytes - live);
            if (count >= 0) break;
            refused++;
            if (!CHECK(kr_ctx_status(ctx) == KR_ERR_NOMEM, "allocation %zu: %s", n, kr_ctx_message(ctx))) break;
            kr_ctx_clear(ctx);
        }
        CHECK(refused > 10, "only %d allocations were refused", refused);
        kr_ctx_destroy(ctx);
    }
}

/* ---- time ---- */

/* Steps for n times the text, with `tail` behind it. */
static uint64_t work_of(const kr_tokenizer *tok, const char *unit, int64_t n, const char *tail)
{
    const size_t length = strlen(unit);
    char *text = malloc((size_t)n * length + strlen(tail) + 1);
    for (int64_t i = 0; i < n; i++) memcpy(text + (size_t)i * length, unit, length);
    strcpy(text + (size_t)n * length, tail);
    CHECK(kr_tokenizer_encode(tok, text, strlen(text), NULL, NULL, 0) >= 0, "%s", kr_ctx_message(ctx));
    free(text);
    return tok->work;
}

/* Twice the text is not much more than twice the steps: a logarithm's growth is allowed for. */
TEST(steps_grow_with_the_text_only)
{
    ctx = kr_test_ctx(1, NULL);
    small_file files[] = {
        { .words = "\"aa\", \"aaaa\", \"aaaaaaaa\", \"ab\", \"abab\"",
          .merges = "\"a a\", \"aa aa\", \"aaaa aaaa\", \"a b\", \"ab ab\"" },
        { .added = "{\"id\": 97, \"content\": \"a\"}, {\"id\": 301, \"content\": "
                   "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab\"}, "
                   "{\"id\": 302, \"content\": \" x\", \"lstrip\": true, \"rstrip\": true}" },
        { .normalizer = "{\"type\": \"NFC\"}" },
        { .pre_tokenizer = GPT2_BYTES },
    };
    const char *units[] = {
        "a", "ab", " ", "\n", "\xcc\xa3\xcc\x81", "a ", "a'", " x  ", "\xff", "\xe1\xb8\xa5\xcc\x81"
    };
    const int64_t n = kr_test_quick() ? 4000 : 40000;
    for (int f = 0; f < (has_regex() ? 4 : 3); f++) {
        kr_tokenizer *tok = small_tokenizer(ctx, &files[f]);
        for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
            const uint64_t one = work_of(tok, units[u], n, "b"), two = work_of(tok, units[u], 2 * n, "b");
            CHECK((double)two < 2.4 * (double)one, "file %d, \"%s\": %llu steps, then %llu", f, units[u],
                  (unsigned long long)one, (unsigned long long)two);
            CHECK(one < 200 * (uint64_t)n * strlen(units[u]), "file %d, \"%s\": %llu steps", f, units[u],
                  (unsigned long long)one);
        }
        kr_tokenizer_destroy(tok);
    }
    kr_ctx_destroy(ctx);
}

/* ---- shared ---- */

/* A second context's tokenizer gives the same ids, in every order of destruction, and takes little memory. */
TEST(shared_tokenizers_encode_alike)
{
    if (!has_regex()) SKIP("regular expressions need PCRE2");
    static const char text[] = "They're  here: 12 caf\xc3\xa9s <b>";
    const small_file file = { .words = "\"he\", \"re\"",
                              .merges = "\"h e\", \"r e\"",
                              .added = "{\"id\": 300, \"content\": \"<b>\", \"single_word\": true, \"lstrip\": false, "
                                       "\"rstrip\": false, \"normalized\": false, \"special\": false}",
                              .pre_tokenizer = GPT2_BYTES };
    for (int order = 0; order < 2; order++) {
        kr_ctx *other = kr_test_ctx(1, NULL);
        ctx = kr_test_ctx(1, NULL);
        const size_t idle[2] = { kr_ctx_memory(ctx).live_bytes, kr_ctx_memory(other).live_bytes };
        kr_tokenizer *tok = small_tokenizer(ctx, &file);
        char want[1024];
        snprintf(want, sizeof want, "%s", ids_text(tok, text, sizeof text - 1, NULL));
        const size_t whole = kr_ctx_memory(ctx).live_bytes;
        kr_tokenizer *shared = kr_tokenizer_share(other, tok);
        CHECK(shared != NULL, "%s", kr_ctx_message(other));
        CHECK(kr_ctx_memory(ctx).live_bytes == whole, "sharing takes nothing from the first");
        CHECK(kr_ctx_memory(other).live_bytes - idle[1] < 65536, "%zu bytes",
              kr_ctx_memory(other).live_bytes - idle[1]);
        kr_tokenizer *pair[2] = { tok, shared };
        kr_ctx *of[2] = { ctx, other };
        for (int i = 0; i < 2; i++) {
            const int which = i ^ order;
            CHECK_IDS(pair[1 - which], text, want);
            CHECK_IDS(pair[which], text, want);
            kr_tokenizer_destroy(pair[which]);
            CHECK(kr_ctx_memory(of[which]).live_bytes == idle[which], "%zu bytes are left",
                  kr_ctx_memory(of[which]).live_bytes - idle[which]);
            kr_ctx_destroy(of[which]);
            if (i == 0) {
                CHECK_IDS(pair[1 - which], text, want);
                pair[which] = pair[1 - which];
            }
        }
    }
}

TEST(sharing_a_tokenizer_may_fail)
{
    if (!has_regex()) SKIP("regular expressions need PCRE2");
    kr_ctx *other = kr_test_ctx(1, NULL);
    ctx = kr_test_ctx(1, NULL);
    kr_tokenizer *tok = small_tokenizer(ctx, &(small_file){ .pre_tokenizer = GPT2_BYTES }), *shared = NULL;
    const size_t idle = kr_ctx_memory(other).live_bytes;
    int failures = 0;
    for (;; failures++) {
        kr_ctx_fail_allocation(other, (size_t)failures + 1);
        if ((shared = kr_tokenizer_share(other, tok))) break;
        CHECK_ERROR_HAS(other, KR_ERR_NOMEM, "tokenizer");
        CHECK(kr_ctx_memory(other).live_bytes == idle, "failure %d leaves memory", failures);
    }
    kr_ctx_fail_allocation(other, 0);
    CHECK(failures >= 4, "%d allocations", failures);
    kr_tokenizer_destroy(tok);
    CHECK(kr_tokenizer_encode(shared, "abc", 3, NULL, NULL, 0) == 3, "%s", kr_ctx_message(other));
    kr_tokenizer_destroy(shared);
    CHECK(!kr_tokenizer_share(other, NULL), "NULL");
    CHECK_ERROR(other, KR_ERR_ARG, "tokenizer.share: tok is NULL");
    kr_ctx_destroy(other);
    kr_ctx_destroy(ctx);
}
