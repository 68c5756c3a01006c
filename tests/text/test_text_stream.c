/* test_text_stream.c - whole characters out of tokens that cut them anywhere. */
#include "tests/text/small_tokenizers.h"

static kr_ctx *ctx;
static kr_tokenizer *tok;
static kr_text_stream *stream;

static void begin(void)
{
    ctx = kr_test_ctx(1, NULL);
    tok = kr_tokenizer_bytes(ctx);
    stream = kr_text_stream_create(tok);
}

static void end(void)
{
    CHECK_OK(ctx);
    kr_text_stream_destroy(stream);
    kr_tokenizer_destroy(tok);
    kr_ctx_destroy(ctx);
}

static bool check_put(int32_t id, const char *want, int line)
{
    size_t bytes = 99;
    const char *got = id < 0 ? kr_text_stream_end(stream, &bytes) : kr_text_stream_put(stream, id, &bytes);
    return kr_test_check(got && bytes == strlen(want) && memcmp(got, want, bytes + 1) == 0, __FILE__, line,
                         "%d shows %zu bytes \"%s\", want \"%s\"", (int)id, bytes, got ? got : "", want);
}
#define CHECK_PUT(id, want) check_put((id), (want), __LINE__)
#define CHECK_END(want) check_put(-1, (want), __LINE__)

TEST(characters_wait_until_they_are_whole)
{
    begin();
    CHECK_PUT('a', "a");
    CHECK_PUT(0xc3, "");
    CHECK_PUT(0xa9, "\xc3\xa9");
    CHECK_PUT(0xe2, "");
    CHECK_PUT(0x82, "");
    CHECK_PUT(0xac, "\xe2\x82\xac");
    CHECK_PUT(0xf0, "");
    CHECK_PUT(0x9f, "");
    CHECK_PUT(0x98, "");
    CHECK_PUT(0x80, "\xf0\x9f\x98\x80");
    CHECK_END("");
    end();
}

TEST(what_cannot_become_a_character_is_shown_at_once)
{
    begin();
    CHECK_PUT(0x80, "\x80"); /* no beginning */
    CHECK_PUT(0xc0, "\xc0"); /* never one */
    CHECK_PUT(0xff, "\xff");
    CHECK_PUT(0xf5, "\xf5");
    CHECK_PUT(0xe0, "");
    CHECK_PUT(0x80, "\xe0\x80"); /* overlong */
    CHECK_PUT(0xed, "");
    CHECK_PUT(0xa0, "\xed\xa0"); /* a surrogate */
    CHECK_PUT(0xf0, "");
    CHECK_PUT(0x8f, "\xf0\x8f");
    CHECK_PUT(0xf4, "");
    CHECK_PUT(0x90, "\xf4\x90"); /* above U+10FFFF */
    CHECK_PUT(0xe2, "");
    CHECK_PUT('x', "\xe2x");
    CHECK_PUT(0xe2, "");
    CHECK_PUT(0xe2, "\xe2"); /* another one begins */
    CHECK_PUT(0x82, "");
    CHECK_END("\xe2\x82");
    CHECK_END("");
    CHECK_PUT('b', "b"); /* as new */
    end();
}

TEST(special_and_unknown_ids_show_nothing)
{
    ctx = kr_test_ctx(1, NULL);
    tok = small_tokenizer(ctx, &(small_file){ .words = "\"\xc2\xac"
                                                       "abc\xc3\xa2\"", /* ac "abc" e2 */
                                              .added = "{\"id\": 300, \"content\": \"<s>\", \"special\": true}, "
                                                       "{\"id\": 301, \"content\": \"<t>\"}" });
    stream = kr_text_stream_create(tok);
    CHECK_PUT(300, "");
    CHECK_PUT(301, "<t>");
    CHECK_PUT(5000, "");
    CHECK_PUT(0xe2, "");
    CHECK_PUT(300, ""); /* pending bytes stay pending */
    CHECK_PUT(0x82, "");
    CHECK_PUT(256, "\xe2\x82\xac"
                   "abc"); /* the end of one character, the beginning of the next */
    CHECK_PUT('x', "\xe2x");
    end();
}

TEST(a_stream_of_zeros)
{
    begin();
    size_t bytes = 0;
    const char *shown = kr_text_stream_put(stream, 0, &bytes);
    CHECK(shown && bytes == 1 && shown[0] == 0, "one zero byte");
    CHECK(kr_text_stream_put(NULL, 0, &bytes) == NULL && bytes == 0 && !kr_text_stream_end(NULL, NULL), "NULL streams");
    kr_text_stream_destroy(NULL);
    end();
}

/* After every token: all that is shown together is a beginning of the text, at most three bytes short of what came. */
TEST(streams_are_never_far_behind)
{
    begin();
    for (int run = 0; run < (kr_test_quick() ? 50 : 500); run++) {
        size_t given = 0, shown = 0, bytes;
        for (int i = 0; i < 200; i++) {
            static const unsigned char some[] = {
                'a', 0x80, 0xbf, 0xc3, 0xe2, 0xed, 0x9f, 0xf0, 0x90, 0xf4, 0x8f, 0xff
            };
            kr_text_stream_put(stream, some[kr_test_below(sizeof some)], &bytes);
            given++;
            shown += bytes;
            if (!CHECK(shown <= given && given - shown <= 3, "%zu of %zu bytes are shown", shown, given)) break;
        }
        kr_text_stream_end(stream, &bytes);
        CHECK(shown + bytes == given, "%zu bytes in all, want %zu", shown + bytes, given);
    }
    end();
}
