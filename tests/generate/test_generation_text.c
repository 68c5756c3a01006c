/* test_generation_text.c - what is shown when: characters in pieces, stops that span tokens, held back and cut. */
#include "generate/stop_text.h"
#include "io/utf8.h"
#include "tests/generate/chat.h"

enum { MOST = 400 };

/* ---- text by the letter ---- */

/* Where the first stop that is complete begins, reading byte by byte, the longest of those that end there; `bytes` if
 * there is none. */
static size_t plain_end(const char *text, size_t bytes, int n_stops, const char *const *stops)
{
    for (size_t end = 1; end <= bytes; end++) {
        size_t longest = 0;
        for (int i = 0; i < n_stops; i++) {
            const size_t n = strlen(stops[i]);
            if (n <= end && n > longest && memcmp(text + end - n, stops[i], n) == 0) longest = n;
        }
        if (longest) return end - longest;
    }
    return bytes;
}

static kr_stops stops_of(int count, const char *const *texts, size_t *bytes)
{
    kr_stops stops = { .count = count, .texts = (const char **)texts, .bytes = bytes };
    for (int i = 0; i < count; i++) {
        bytes[i] = strlen(texts[i]);
        if (bytes[i] > stops.longest) stops.longest = bytes[i];
    }
    return stops;
}

/* Is there a character, or the beginning of one, on both sides of text[at]? */
static bool is_inside_character(const char *text, size_t bytes, size_t at)
{
    const unsigned char *s = (const unsigned char *)text;
    for (size_t back = 1; back <= 3 && back <= at; back++)
        if (kr_utf8_length(s + at - back, bytes - at + back) > back) return true;
    return bytes > at && kr_utf8_unfinished(s, bytes) > bytes - at;
}

/* Puts a text in pieces of given sizes, and checks each moment. */
static void check_pieces(kr_ctx *ctx, const char *text, size_t bytes, int n_stops, const char *const *texts)
{
    size_t lengths[8];
    const kr_stops stops = stops_of(n_stops, texts, lengths);
    const size_t end = plain_end(text, bytes, n_stops, texts);
    kr_memory *memory = &((struct kr_ctx *)ctx)->memory;
    kr_held_text held = { .held = NULL };
    CHECK(kr_held_text_reserve(&held, memory, stops.longest + 3 + 5), "memory");
    char shown[MOST];
    size_t nshown = 0, at = 0;
    bool stopped = false;
    while (at < bytes && !stopped) {
        size_t n = (size_t)kr_test_below(6); /* tokens without a text, too */
        if (n > bytes - at) n = bytes - at;
        kr_held_text_hide(&held);
        stopped = kr_held_text_put(&held, &stops, text + at, n);
        at += n;
        memcpy(shown + nshown, held.shown, held.nshown);
        nshown += held.nshown;
        CHECK(held.shown[held.nshown] == '\0' && nshown <= end, "%zu shown of %zu", nshown, end);
        CHECK(stopped || held.nheld < (stops.longest ? stops.longest : 1) + 3, "%zu wait", held.nheld);
        CHECK(stopped || !is_inside_character(text, at, nshown), "half a character is shown");
        CHECK(stopped || nshown + held.nheld == at, "bytes are lost");
    }
    CHECK(stopped == (end < bytes) || plain_end(text, at, n_stops, texts) == end, "a stop is missed");
    kr_held_text_hide(&held);
    if (!stopped) kr_held_text_end(&held);
    memcpy(shown + nshown, held.shown, held.nshown);
    nshown += held.nshown;
    CHECK(nshown == end && memcmp(shown, text, end) == 0, "'%.*s' of '%.*s', not %zu", (int)nshown, shown, (int)bytes,
          text, end);
    CHECK(held.nheld == 0, "something is left");
    kr_held_text_free(&held, memory);
}

TEST(text_is_shown_as_far_as_it_is_certain)
{
    static const char *const lists[][4] = { { "ab" },
                                            { "b", "aab" },
                                            { "abab", "ba" },
                                            { "aaaa" },
                                            { "a\xc3" },
                                            { "\xa9"
                                              "b",
                                              "c" },
                                            { "abcabd", "cab" },
                                            { "\xf0\x9f\x98\x80", "aa" } };
    static const char *const alphabets[] = { "ab", "aabc", "a\xc3\xa9", "b\xe2\x82\xac", "a\xf0\x9f\x98\x80", "abcd" };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int round = 0; round < (kr_test_quick() ? 500 : 10000); round++) {
        const char *const *list = lists[kr_test_below(8)], *alphabet = alphabets[kr_test_below(6)];
        int n_stops = (int)kr_test_below(4);
        while (n_stops > 0 && !list[n_stops - 1]) n_stops--;
        char text[MOST];
        const size_t bytes = (size_t)kr_test_below(30);
        for (size_t i = 0; i < bytes; i++) text[i] = alphabet[kr_test_below((int64_t)strlen(alphabet))];
        check_pieces(ctx, text, bytes, n_stops, list);
    }
    kr_ctx_destroy(ctx);
}

/* By exhaustion: what waits is a proper beginning of some character, and nothing else is. */
TEST(unfinished_characters)
{
    unsigned char whole[4];
    static bool begins[3][1 << 16]; /* of one and of two bytes; of three, the last two after f0..f4 */
    static bool three[5][1 << 16];
    for (unsigned code = 0; code < 0x110000; code++) {
        if (code >= 0xd800 && code < 0xe000) continue;
        const int n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
        if (n == 2) whole[0] = (unsigned char)(0xc0 | code >> 6);
        if (n == 3) whole[0] = (unsigned char)(0xe0 | code >> 12);
        if (n == 4) whole[0] = (unsigned char)(0xf0 | code >> 18);
        for (int i = 1; i < n; i++) whole[i] = (unsigned char)(0x80 | (code >> (6 * (n - 1 - i)) & 0x3f));
        if (n >= 2) begins[1][whole[0]] = true;
        if (n >= 3) begins[2][whole[0] << 8 | whole[1]] = true;
        if (n == 4) three[whole[0] - 0xf0][whole[1] << 8 | whole[2]] = true;
    }
    for (unsigned a = 0; a < 256; a++)
        for (unsigned b = 0; b < 256; b++) {
            const unsigned char two[] = { 'x', (unsigned char)a, (unsigned char)b };
            const size_t want = begins[2][a << 8 | b] ? 2 : begins[1][b] ? 1 : 0;
            CHECK(kr_utf8_unfinished(two, 3) == want, "%02x %02x: %zu", a, b, kr_utf8_unfinished(two, 3));
            for (unsigned lead = 0xf0; lead <= 0xf4; lead++) {
                const unsigned char all[] = { (unsigned char)lead, (unsigned char)a, (unsigned char)b };
                CHECK(kr_utf8_unfinished(all, 3) == (three[lead - 0xf0][a << 8 | b] ? 3 : want), "%x %02x %02x", lead,
                      a, b);
            }
        }
    CHECK(kr_utf8_unfinished(whole, 0) == 0, "nothing");
}

/* ---- through a generation ---- */

/* All that a row shows, and how it ended. */
typedef struct told {
    char text[MOST];
    size_t bytes;
    int tokens;
    kr_finish finish;
} told;

static told tell(kr_ctx *ctx, const kr_network *net, const kr_tokenizer *tok, const kr_generate_options *o, int64_t row)
{
    told t = { .bytes = 0 };
    kr_generation *g = kr_generation_create(ctx, net, tok, o);
    kr_generation_feed_text(g, "Once upon", 9);
    while (kr_generation_next(g) == KR_OK) {
        const kr_generated *one = kr_generation_row(g, row);
        CHECK(one->text[one->bytes] == '\0', "no end");
        memcpy(t.text + t.bytes, one->text, one->bytes);
        t.bytes += one->bytes;
        t.tokens += one->is_new;
        t.finish = one->finish;
        CHECK(one->is_new || one->bytes == 0, "a row that rests shows something");
    }
    CHECK(kr_generation_prompt_tokens(g) == 9, "bytes of the prompt");
    CHECK_OK(ctx);
    kr_generation_destroy(g);
    return t;
}

/* The same tokens as without stops, up to where the first stop is complete. */
TEST(stops_cut_the_text)
{
    static const char *const lists[][3] = { { "ab" },        { "ba", "cc" },  { "aab", "cab", "bbb" },
                                            { "abcabcabc" }, { "b\xc3\xa9" }, { "\xa9" } };
    static const char *const alphabets[] = { "abc", "ab\xc3\xa9" };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 0, NULL);
    kr_tokenizer *tok = kr_tokenizer_bytes(ctx);
    int ends[4] = { 0 };
    for (int round = 0; round < (kr_test_quick() ? 24 : 120); round++) {
        kr_logit_bias biases[CHAT_VOCAB];
        kr_generate_options o = chat_options();
        chat_only(biases, alphabets[round % 2]);
        o.n_samples = 2;
        o.max_tokens = 5 + round % 30;
        chat_sampler.seed = (uint64_t)round;
        chat_sampler.temperature = 2;
        told whole[2], cut[2];
        for (int64_t r = 0; r < 2; r++) {
            whole[r] = tell(ctx, net, tok, &o, r);
            CHECK(whole[r].finish == KR_FINISH_LENGTH && whole[r].tokens == o.max_tokens &&
                      whole[r].bytes == (size_t)o.max_tokens,
                  "%zu bytes", whole[r].bytes);
        }
        const int list = round / 2 % 6;
        while (o.n_stops < 3 && lists[list][o.n_stops]) o.n_stops++;
        o.stops = lists[list];
        for (int64_t r = 0; r < 2; r++) {
            cut[r] = tell(ctx, net, tok, &o, r);
            const size_t end = plain_end(whole[r].text, whole[r].bytes, o.n_stops, o.stops);
            const bool stops = cut[r].finish == KR_FINISH_STOP;
            CHECK(cut[r].bytes == end && memcmp(cut[r].text, whole[r].text, end) == 0, "'%.*s' of '%.*s'",
                  (int)cut[r].bytes, cut[r].text, (int)whole[r].bytes, whole[r].text);
            CHECK(stops || (cut[r].finish == KR_FINISH_LENGTH && end == whole[r].bytes), "finish %d", cut[r].finish);
            ends[cut[r].finish]++;
        }
    }
    CHECK(ends[KR_FINISH_STOP] > 10 && ends[KR_FINISH_LENGTH] > 3, "%d stops and %d not", ends[KR_FINISH_STOP],
          ends[KR_FINISH_LENGTH]);
    kr_tokenizer_destroy(tok);
    kr_network_destroy(net);
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

/* What waited when more was fed is shown with the next token, and is no part of a stop any more. */
TEST(feeds_settle_what_waits)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 0, NULL);
    kr_tokenizer *tok = kr_tokenizer_bytes(ctx);
    kr_logit_bias biases[CHAT_VOCAB];
    kr_generate_options o = chat_options();
    chat_only(biases, "a");
    o.n_stops = 1;
    o.stops = (const char *[]){ "aaa" };
    kr_generation *g = kr_generation_create(ctx, net, tok, &o);
    kr_generation_feed_text(g, "x", 1);
    for (int i = 0; i < 2; i++) {
        IGNORE(kr_generation_next(g));
        CHECK(kr_generation_row(g, 0)->bytes == 0, "it waits");
    }
    kr_generation_feed_text(g, "y", 1);
    IGNORE(kr_generation_next(g));
    CHECK(strcmp(kr_generation_row(g, 0)->text, "aa") == 0 && kr_generation_row(g, 0)->finish == KR_FINISH_NONE, "'%s'",
          kr_generation_row(g, 0)->text);
    IGNORE(kr_generation_next(g));
    CHECK(kr_generation_row(g, 0)->bytes == 0 && kr_generation_next(g) == KR_OK &&
              kr_generation_row(g, 0)->finish == KR_FINISH_STOP && kr_generation_row(g, 0)->bytes == 0,
          "three in a row stop it");
    CHECK(kr_generation_next(g) == KR_END, "the end");
    kr_generation_destroy(g);

    /* a stop id shows what waits, but not itself */
    const int32_t stop_ids[] = { 'b' };
    chat_only(biases, "ab");
    o.n_stop_ids = 1;
    o.stop_ids = stop_ids;
    o.stops = (const char *[]){ "aaaaaaaab" };
    chat_sampler.temperature = 3;
    for (chat_sampler.seed = 0; chat_sampler.seed < 20; chat_sampler.seed++) {
        const told t = tell(ctx, net, tok, &o, 0);
        if (t.finish != KR_FINISH_STOP_ID) continue;
        CHECK(t.bytes == (size_t)t.tokens - 1 && !memchr(t.text, 'b', t.bytes), "'%.*s'", (int)t.bytes, t.text);
    }
    kr_tokenizer_destroy(tok);
    kr_network_destroy(net);
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}
