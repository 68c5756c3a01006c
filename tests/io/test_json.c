/* test_json.c - what is JSON, what is not and why, and nothing that crashes. */
#include "io/json_impl.h"
#include "tests/harness.h"

#include <locale.h>

static kr_json *read_json(kr_ctx *ctx, const char *text)
{
    return kr_json_parse(ctx, text, strlen(text), NULL);
}

TEST(values)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_json *root =
        read_json(ctx, " { \"a\" : [ 1 , -2.5e1 , true , false , null , \"x\" ] , \"\" : { } , \"n\":[]}\n");
    CHECK_OK(ctx);
    CHECK(kr_json_kind_of(root) == KR_JSON_OBJECT && kr_json_length(root) == 3, "an object of three");
    const kr_json *a = kr_json_find(root, "a"), *v = kr_json_first(a);
    CHECK(kr_json_first(root) == a && strcmp(kr_json_key(a), "a") == 0 && kr_json_offset(a) == 9, "its first member");
    CHECK(kr_json_kind_of(a) == KR_JSON_ARRAY && kr_json_length(a) == 6 && !kr_json_key(v), "an array of six");
    CHECK(kr_json_is_integer(v) && kr_json_integer(v, 9) == 1 && kr_json_number(v, 9) == 1 && kr_json_offset(v) == 11,
          "1");
    v = kr_json_next(v);
    CHECK(!kr_json_is_integer(v) && kr_json_integer(v, 9) == 9 && kr_json_number(v, 9) == -25, "-25");
    v = kr_json_next(v);
    CHECK(kr_json_kind_of(v) == KR_JSON_BOOL && kr_json_bool(v, false) && kr_json_number(v, 7) == 7, "true");
    v = kr_json_next(v);
    CHECK(!kr_json_bool(v, true) && kr_json_bool(NULL, true), "false");
    v = kr_json_next(v);
    CHECK(v && kr_json_kind_of(v) == KR_JSON_NULL && kr_json_length(v) == 0 && !kr_json_text(v), "null");
    v = kr_json_next(v);
    CHECK(strcmp(kr_json_text(v), "x") == 0 && kr_json_length(v) == 1 && !kr_json_next(v), "a string, the last");
    CHECK(kr_json_kind_of(kr_json_find(root, "")) == KR_JSON_OBJECT && !kr_json_first(kr_json_find(root, "")), "empty");
    CHECK(!kr_json_find(root, "b") && !kr_json_find(a, "a") && !kr_json_find(NULL, "a") && !kr_json_find(root, NULL),
          "none");
    CHECK(strcmp(kr_json_kind_name(KR_JSON_ARRAY), "array") == 0 &&
              strcmp(kr_json_kind_name((kr_json_kind)9), "?") == 0,
          "kinds");
    kr_json_destroy(root);
    kr_json_destroy(NULL);
    kr_ctx_destroy(ctx);
}

TEST(integers)
{
    static const struct {
        const char *text;
        bool is_integer;
        int64_t integer;
    } rows[] = { { "0", true, 0 },
                 { "-0", true, 0 },
                 { "9223372036854775807", true, INT64_MAX },
                 { "-9223372036854775808", true, INT64_MIN },
                 { "9223372036854775808", false, 0 },
                 { "-9223372036854775809", false, 0 },
                 { "99999999999999999999999", false, 0 },
                 { "1.0", false, 0 },
                 { "1e3", false, 0 },
                 { "9007199254740993", true, INT64_C(9007199254740993) } };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kr_json *v = read_json(ctx, rows[i].text);
        CHECK(kr_json_is_integer(v) == rows[i].is_integer && kr_json_integer(v, 0) == rows[i].integer &&
                  kr_json_number(v, -1) == strtod(rows[i].text, NULL),
              "%s", rows[i].text);
        kr_json_destroy(v);
    }
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

TEST(strings)
{
    static const struct {
        const char *text, *want;
        int64_t length;
    } rows[] = { { "\"\"", "", 0 },
                 { "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", 8 },
                 { "\"\\u0041\\u00e9\\u20AC\\ud83d\\ude00\"", "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 10 },
                 { "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xef\xbf\xbf\xf4\x8f\xbf\xbf\"",
                   "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xef\xbf\xbf\xf4\x8f\xbf\xbf", 16 },
                 { "\"a\\u0000b\"", "a\0b", 3 },
                 { "\"\x7f\"", "\x7f", 1 } };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kr_json *v = read_json(ctx, rows[i].text);
        CHECK_OK(ctx);
        CHECK(kr_json_length(v) == rows[i].length &&
                  memcmp(kr_json_text(v), rows[i].want, (size_t)rows[i].length + 1) == 0,
              "row %zu", i);
        kr_json_destroy(v);
    }
    kr_ctx_destroy(ctx);
}

TEST(errors)
{
    static const struct {
        const char *text, *message;
    } rows[] = {
        { "", "json: at byte 0: expected a value, got the end of the text" },
        { "  ", "json: at byte 2: expected a value, got the end of the text" },
        { "{\"a\" 1}", "json: at byte 5: expected ':' after the key, got '1'" },
        { "{\"a\":1,}", "json: at byte 7: expected a key in quotes, got '}'" },
        { "{\"a\":1 \"b\":2}", "json: at byte 7: expected ',' or '}' after a member of an object, got '\"'" },
        { "{a:1}", "json: at byte 1: expected a key in quotes, got 'a'" },
        { "{'a':1}", "json: at byte 1: expected a key in quotes, got a quotation mark" },
        { "{\"a\":1", "json: at byte 6: expected ',' or '}' after a member of an object, got the end of the text" },
        { "{", "json: at byte 1: expected a key in quotes, got the end of the text" },
        { "[1,]", "json: at byte 3: expected a value, got ']'" },
        { "[1 2]", "json: at byte 3: expected ',' or ']' after a value of an array, got '2'" },
        { "[,1]", "json: at byte 1: expected a value, got ','" },
        { "[", "json: at byte 1: expected a value, got the end of the text" },
        { "1 2", "json: at byte 2: expected the end of the text, got '2'" },
        { "nul", "json: at byte 0: expected a value, got 'n'" },
        { "truex", "json: at byte 4: expected the end of the text, got 'x'" },
        { "// c\n1", "json: at byte 0: expected a value, got '/'" },
        { "\xef\xbb\xbf{}", "json: at byte 0: expected a value, got byte 0xef" },
        { "01", "json: at byte 0: a number may not begin with 0 and another digit" },
        { "-", "json: at byte 1: expected a digit, got the end of the text" },
        { "+1", "json: at byte 0: expected a value, got '+'" },
        { ".5", "json: at byte 0: expected a value, got '.'" },
        { "1.", "json: at byte 2: expected a digit after the decimal point, got the end of the text" },
        { "1.e5", "json: at byte 2: expected a digit after the decimal point, got 'e'" },
        { "1e", "json: at byte 2: expected a digit of the exponent, got the end of the text" },
        { "1e+-5", "json: at byte 3: expected a digit of the exponent, got '-'" },
        { "[1e999]", "json: at byte 1: the number 1e999 is too large for a double" },
        { "0x10", "json: at byte 1: expected the end of the text, got 'x'" },
        { "NaN", "json: at byte 0: NaN is not JSON number" },
        { "[Infinity]", "json: at byte 1: Infinity is not JSON number" },
        { "[-Infinity]", "json: at byte 1: -Infinity is not JSON number" },
        { "\"abc", "json: at byte 0: a string without its closing quote" },
        { "\"abc\\", "json: at byte 5: expected one of \"\\/bfnrtu after a backslash, got the end of the text" },
        { "\"\\x41\"", "json: at byte 2: expected one of \"\\/bfnrtu after a backslash, got 'x'" },
        { "\"\\u12g4\"", "json: at byte 5: expected one of the four hexadecimal digits after \\u, got 'g'" },
        { "\"\\ude00\"", "json: at byte 1: \\ude00 is the second half of a pair without the first" },
        { "\"\\ud83d x\"", "json: at byte 1: \\ud83d is the first half of a pair without the second" },
        { "\"\\ud83d\\u0041\"", "json: at byte 1: \\ud83d is the first half of a pair, but \\u0041 is not a second" },
        { "\"a\nb\"", "json: at byte 2: control character 0x0a in a string; write it as \\u000a" },
        { "\"\x80\"", "json: at byte 1: byte 0x80 does not begin a UTF-8 character" },
        { "\"\xc3(\"", "json: at byte 1: byte 0xc3 does not begin a UTF-8 character" },
        { "\"\xc0\xaf\"", "json: at byte 1: byte 0xc0 does not begin a UTF-8 character" },
        { "\"\xe0\x80\xaf\"", "json: at byte 1: byte 0xe0 does not begin a UTF-8 character" },
        { "\"\xed\xa0\x80\"", "json: at byte 1: byte 0xed does not begin a UTF-8 character" },
        { "\"\xf0\x80\x80\x80\"", "json: at byte 1: byte 0xf0 does not begin a UTF-8 character" },
        { "\"\xf4\x90\x80\x80\"", "json: at byte 1: byte 0xf4 does not begin a UTF-8 character" },
        { "\"\xf5\x80\x80\x80\"", "json: at byte 1: byte 0xf5 does not begin a UTF-8 character" },
        { "\"\xe2\x82", "json: at byte 1: byte 0xe2 does not begin a UTF-8 character" },
        { "{\"a\":1,\"b\":2,\"a\":3}", "json: at byte 13: the key \"a\" occurs twice in one object" },
        { "{\"a\\u001bb\":1,\"a\\u001Bb\":2}", "json: at byte 14: the key \"a?b\" occurs twice in one object" },
    };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kr_json *v = read_json(ctx, rows[i].text);
        CHECK(!v, "%s was taken", rows[i].text);
        CHECK_ERROR(ctx, KR_ERR_FORMAT, rows[i].message);
        kr_json_destroy(v);
    }
    CHECK(!kr_json_parse(ctx, NULL, 3, NULL), "NULL was taken");
    CHECK_ERROR(ctx, KR_ERR_ARG, "json: text is NULL");
    CHECK(!kr_json_parse(ctx, NULL, 0, NULL), "nothing was taken");
    CHECK_ERROR(ctx, KR_ERR_FORMAT, "json: at byte 0: expected a value, got the end of the text");
    CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "an error keeps memory");
    kr_ctx_destroy(ctx);
}

TEST(options)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_json_options o;
    kr_json_options_init(&o);
    o.allow_nonfinite = true;
    kr_json *v = kr_json_parse(ctx, "[NaN,Infinity,-Infinity,-1]", 27, &o);
    const kr_json *item = kr_json_first(v);
    CHECK(isnan(kr_json_number(item, 0)) && !kr_json_is_integer(item), "NaN");
    item = kr_json_next(item);
    CHECK(kr_json_number(item, 0) == INFINITY && kr_json_number(kr_json_next(item), 0) == -INFINITY, "infinities");
    CHECK(kr_json_length(v) == 4, "four values");
    kr_json_destroy(v);
    o.max_depth = 3;
    v = kr_json_parse(ctx, "[[{}]]", 6, &o);
    CHECK_OK(ctx);
    kr_json_destroy(v);
    CHECK(!kr_json_parse(ctx, "[[[[]]]]", 8, &o), "too deep");
    CHECK_ERROR(ctx, KR_ERR_FORMAT, "json: at byte 3: arrays and objects deeper than 3 levels");
    o.max_values = 3;
    CHECK(!kr_json_parse(ctx, "[1,2,3]", 7, &o), "too many");
    CHECK_ERROR(ctx, KR_ERR_FORMAT, "json: at byte 5: more than 3 values");
    o.max_bytes = 6;
    CHECK(!kr_json_parse(ctx, "[1,2,3]", 7, &o), "too long");
    CHECK_ERROR(ctx, KR_ERR_FORMAT, "json: 7 bytes, but at most 6 are read");
    o.max_depth = 1000;
    CHECK(!kr_json_parse(ctx, "1", 1, &o), "a depth beyond the stack");
    CHECK_ERROR(ctx, KR_ERR_ARG, "json: max_depth = 1000, but must be from 0 to 512");
    static char deep[1 << 20];
    memset(deep, '[', sizeof deep);
    CHECK(!kr_json_parse(ctx, deep, sizeof deep, NULL), "a million brackets");
    CHECK_ERROR(ctx, KR_ERR_FORMAT, "json: at byte 64: arrays and objects deeper than 64 levels");
    kr_ctx_destroy(ctx);
}

/* Members by the ten thousand: found again, in order, and a duplicate among them is seen. */
TEST(large_objects)
{
    enum { COUNT = 20000 };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    char *text = malloc(COUNT * 24 + 64);
    size_t at = 0;
    text[at++] = '{';
    for (int i = 0; i < COUNT; i++)
        at += (size_t)sprintf(text + at, "%s\"k%d\":%d", i ? "," : "", (int)((int64_t)i * 7919 % COUNT), i);
    text[at] = '}';
    kr_json *v = kr_json_parse(ctx, text, at + 1, NULL);
    CHECK_OK(ctx);
    int64_t i = 0;
    for (const kr_json *m = kr_json_first(v); m; m = kr_json_next(m), i++)
        if (!CHECK(kr_json_integer(m, -1) == i && kr_json_find(v, kr_json_key(m)) == m, "member %lld", (long long)i))
            break;
    CHECK(i == COUNT && kr_json_length(v) == COUNT && !kr_json_find(v, "k20000") && !kr_json_find(v, "k"),
          "%lld members", (long long)i);
    kr_json_destroy(v);
    const size_t again = at;
    sprintf(text + at, ",\"k777\":0}");
    v = kr_json_parse(ctx, text, strlen(text), NULL);
    char want[80];
    snprintf(want, sizeof want, "json: at byte %zu: the key \"k777\" occurs twice in one object", again + 1);
    CHECK(!v, "a duplicate was taken");
    CHECK_ERROR(ctx, KR_ERR_FORMAT, want);
    free(text);
    kr_ctx_destroy(ctx);
}

/* The decimal point is a point whatever the locale says. */
TEST(locale)
{
    static const char *const names[] = { "de_DE.UTF-8", "de_DE", "fr_FR.UTF-8", "C.UTF-8" };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (size_t i = 0; i < sizeof names / sizeof *names && !setlocale(LC_NUMERIC, names[i]); i++) continue;
    kr_json *v = read_json(ctx, "1234567890.12345678901234567890e-5");
    setlocale(LC_NUMERIC, "C");
    CHECK(kr_json_number(v, 0) == 12345.6789012345678901234567890, "%.17g", kr_json_number(v, 0));
    kr_json_destroy(v);
    kr_ctx_destroy(ctx);
}

static const char rich[] = "{\"config\":{\"d_model\":256,\"eps\":1e-5,\"ssm_cfg\":{\"layer\":\"Mamba2\",\"limits\":[0."
                           "0,Infinity,-Infinity,NaN]},"
                           "\"names\":[\"a\\u00e9\\ud83d\\ude00\",\"\\\\\\\"\xc3\xa9\"],\"deep\":[[[[{\"x\":[]}]]]],"
                           "\"tie\":true,\"no\":false,\"nothing\":null,"
                           "\"big\":123456789012345678901234567890.5e-3,\"neg\":-9223372036854775808}}";

TEST(mutations)
{
    const int rounds = kr_test_quick() ? 5000 : 60000;
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_json_options o;
    kr_json_options_init(&o);
    o.allow_nonfinite = true;
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    int taken = 0;
    for (int i = 0; i < rounds; i++) {
        size_t n = sizeof rich - 1;
        char *text = malloc(2 * sizeof rich); /* exact bounds for the sanitizer: the text ends where the block does */
        char *start = text + 2 * sizeof rich - n;
        memcpy(start, rich, n);
        for (int64_t edits = kr_test_below(4); edits >= 0 && n > 2; edits--) {
            const size_t at = (size_t)kr_test_below((int64_t)n);
            static const char likely[] = "{}[]\":,\\u0e+-.1 \x80\xc3\xf0";
            if (kr_test_below(3) == 0) {
                memmove(start + 1, start, at); /* one byte less */
                start++;
                n--;
            } else if (kr_test_below(2)) {
                start[at] = likely[kr_test_below(sizeof likely - 1)];
            } else {
                start[at] = (char)kr_test_next();
            }
        }
        kr_json *v = kr_json_parse(ctx, start, n, &o);
        CHECK((v != NULL) == !kr_ctx_failed(ctx), "a result and an error");
        if (!v) CHECK(strncmp(kr_ctx_message(ctx), "json: at byte ", 14) == 0, "%s", kr_ctx_message(ctx));
        taken += v != NULL;
        kr_ctx_clear(ctx);
        kr_json_destroy(v);
        free(text);
    }
    CHECK(taken > 0 && taken < rounds, "%d of %d mutations were taken", taken, rounds);
    CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "memory is left");
    kr_ctx_destroy(ctx);
}

TEST(every_allocation_may_fail)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_json_options o;
    kr_json_options_init(&o);
    o.allow_nonfinite = true;
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    size_t n = 1;
    for (; n < 100; n++) {
        kr_ctx_fail_allocation(ctx, n);
        kr_json *v = kr_json_parse(ctx, rich, sizeof rich - 1, &o);
        if (v) {
            kr_json_destroy(v);
            break;
        }
        CHECK(kr_ctx_status(ctx) == KR_ERR_NOMEM, "%s", kr_ctx_message(ctx));
        kr_ctx_clear(ctx);
        CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "allocation %zu: memory is left", n);
    }
    kr_ctx_fail_allocation(ctx, 0);
    CHECK(n > 2 && n < 100, "%zu allocations", n);
    kr_ctx_destroy(ctx);
}
