/* test_json_write.c - JSON that is written is read back as the same values, in any locale and with any capacity. */
#include "io/json_write.h"

#include "io/folder.h"
#include "tests/harness.h"

#include <krait/experimental/json.h>

#include <locale.h>

static size_t compose(char *text, size_t bytes)
{
    kr_json_writer w;
    kr_json_write_begin(&w, text, bytes);
    kr_json_write_open(&w, NULL, '{');
    kr_json_write_integer(&w, "least", INT64_MIN);
    kr_json_write_bool(&w, "yes", true);
    kr_json_write_string(&w, "odd \"key\"", "a\\b\n\x01\xc3\xa9");
    kr_json_write_open(&w, "list", '[');
    kr_json_write_number(&w, NULL, 0.1);
    kr_json_write_open(&w, NULL, '{');
    kr_json_write_integer(&w, "n", 1);
    kr_json_write_bool(&w, "no", false);
    kr_json_write_close(&w, '}');
    kr_json_write_number(&w, NULL, INFINITY);
    w.has_bare_infinity = true;
    kr_json_write_number(&w, NULL, -INFINITY);
    kr_json_write_close(&w, ']');
    kr_json_write_open(&w, "inner", '{');
    kr_json_write_number(&w, "x", 2);
    kr_json_write_close(&w, '}');
    kr_json_write_open(&w, "empty", '{');
    kr_json_write_close(&w, '}');
    kr_json_write_open(&w, "none", '[');
    kr_json_write_close(&w, ']');
    kr_json_write_close(&w, '}');
    kr_json_write_end(&w);
    return w.length;
}

TEST(a_document)
{
    static const char want[] =
        "{\n"
        "  \"least\": -9223372036854775808,\n"
        "  \"yes\": true,\n"
        "  \"odd \\\"key\\\"\": \"a\\\\b\\u000a\\u0001\xc3\xa9\",\n"
        "  \"list\": [0.1, {\"n\": 1, \"no\": false}, {\"__float__\": \"Infinity\"}, -Infinity],\n"
        "  \"inner\": {\n"
        "    \"x\": 2.0\n"
        "  },\n"
        "  \"empty\": {},\n"
        "  \"none\": []\n"
        "}\n";
    char text[sizeof want];
    CHECK(compose(text, sizeof text) == strlen(want) && strcmp(text, want) == 0, "%s", text);
    CHECK(compose(NULL, 0) == strlen(want), "counting only");
    for (size_t capacity = 1; capacity < sizeof want; capacity++) {
        char *part = malloc(capacity);
        CHECK(compose(part, capacity) == strlen(want) && strlen(part) == capacity - 1 &&
                  memcmp(part, want, capacity - 1) == 0,
              "%zu bytes", capacity);
        free(part);
    }
}

/* Read back by our own reader; the fewest digits. */
static void check_number(kr_ctx *ctx, double x)
{
    char text[64];
    kr_json_writer w;
    kr_json_write_begin(&w, text, sizeof text);
    kr_json_write_number(&w, NULL, x);
    kr_json_write_end(&w);
    kr_json *root = kr_json_parse(ctx, text, strlen(text), NULL);
    const double back = kr_json_number(root, NAN);
    CHECK(root && memcmp(&back, &x, sizeof x) == 0 && !kr_json_is_integer(root), "%a is written as %s", x, text);
    kr_json_destroy(root);
}

TEST(numbers_come_back)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const double few[] = {
        0, -0.0, 1, 1e-5, 0.1, 1.0 / 3, 1e300, 5e-324, 1.7976931348623157e308, 123456789, 1e22, 1e23
    };
    for (size_t i = 0; i < sizeof few / sizeof *few; i++) check_number(ctx, few[i]);
    for (int i = 0; i < (kr_test_quick() ? 500 : 20000); i++) {
        const uint64_t bits = kr_test_next();
        double x;
        memcpy(&x, &bits, sizeof x);
        if (isfinite(x)) check_number(ctx, x);
    }
    /* a decimal comma is not JSON's */
    static const char *const commas[] = { "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE" };
    for (size_t i = 0; i < sizeof commas / sizeof *commas; i++)
        if (setlocale(LC_NUMERIC, commas[i])) {
            check_number(ctx, 0.125);
            break;
        }
    setlocale(LC_NUMERIC, "C");
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

TEST(folders_are_made_once)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    CHECK(kr_folder_make(ctx, "/"), "it is there");
    CHECK(!kr_folder_make(ctx, "/dev/null"), "a device");
    CHECK_ERROR(ctx, KR_ERR_IO, "cannot make /dev/null: file exists");
    CHECK(!kr_folder_make(ctx, "no/such/folder"), "in none");
    CHECK_ERROR(ctx, KR_ERR_IO, "cannot make no/such/folder: no such file or directory");
    CHECK(!kr_folder_make(ctx, NULL), "NULL");
    CHECK_ERROR(ctx, KR_ERR_ARG, "cannot create a folder: path is NULL");
    kr_ctx_destroy(ctx);
}
