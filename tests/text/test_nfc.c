/* test_nfc.c - normalisation form C: vectors by hand, and Python's unicodedata over all of Unicode where there is one. */
#define _POSIX_C_SOURCE 200809L
#include "tests/harness.h"

#include "text/nfc.h"
#include "io/utf8.h"

static kr_ctx *ctx;
static kr_nfc nfc;

static void begin(void)
{
    ctx = kr_test_ctx(1, NULL);
    nfc = (kr_nfc){ .out.ctx = ctx, .chars.ctx = ctx, .sorted.ctx = ctx };
}

static void end(void)
{
    CHECK_OK(ctx);
    kr_nfc_free(&nfc);
    kr_ctx_destroy(ctx);
}

static bool gives(const char *text, size_t bytes, const char *want, size_t want_bytes)
{
    return kr_nfc_normalize(&nfc, &text, &bytes) && bytes == want_bytes && memcmp(text, want, bytes) == 0;
}

TEST(nfc_by_hand)
{
    static const char *const pairs[][2] = {
        { "", "" },
        { "plain", "plain" },
        { "e\xcc\x81", "\xc3\xa9" }, /* e acute */
        { "xe\xcc\x81y", "x\xc3\xa9y" },
        { "e\xcc\x81\xcc\xa3", "\xe1\xba\xb9\xcc\x81" }, /* the dot below comes first */
        { "\xc3\xa9\xcc\xa3", "\xe1\xba\xb9\xcc\x81" },
        { "e\xcc\x81\xcc\x81", "\xc3\xa9\xcc\x81" },                /* the second acute is blocked */
        { "\xe2\x84\xab", "\xc3\x85" },                             /* angstrom sign */
        { "\xe2\x84\xa6", "\xce\xa9" },                             /* ohm sign */
        { "\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc" },             /* excluded from composition */
        { "\xcd\x84", "\xcc\x88\xcc\x81" },                         /* U+0344 */
        { "\xe1\x84\x80\xe1\x85\xa1", "\xea\xb0\x80" },             /* Hangul L V */
        { "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81" }, /* L V T */
        { "\xea\xb0\x80\xe1\x86\xa8", "\xea\xb0\x81" },             /* LV T */
        { "\xea\xb0\x81\xe1\x86\xa8", "\xea\xb0\x81\xe1\x86\xa8" }, /* LVT T */
        { "\xe0\xa7\x87\xe0\xa6\xbe", "\xe0\xa7\x8b" },             /* two starters */
        { "\xf0\x9d\x85\x9e", "\xf0\x9d\x85\x97\xf0\x9d\x85\xa5" }, /* a musical symbol */
        { "\xcc\x81"
          "a",
          "\xcc\x81"
          "a" }, /* a mark without a base */
    };
    begin();
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        CHECK(gives(pairs[i][0], strlen(pairs[i][0]), pairs[i][1], strlen(pairs[i][1])), "pair %zu: %s", i,
              pairs[i][0]);
    const char *text = "quiet \xe4\xb8\xad\xc3\xa9", *same = text;
    size_t bytes = strlen(text);
    CHECK(kr_nfc_normalize(&nfc, &text, &bytes) && text == same, "what is normal already is not copied");
    end();
}

/* The version of Unicode that a line of nfc_tables.c names. */
static void table_version(char *version, size_t capacity)
{
    char line[200] = "";
    FILE *f = fopen(KR_SOURCE_DIR "/src/generate/nfc_tables.c", "r");
    if (f && !fgets(line, sizeof line, f)) line[0] = 0;
    if (f) fclose(f);
    const char *at = strstr(line, "Unicode ");
    const size_t n = at ? strcspn(at + 8, " ") : 0;
    snprintf(version, capacity, "%.*s", (int)n, at ? at + 8 : "");
}

static size_t from_hex(const char *hex, size_t digits, char *out)
{
    for (size_t i = 0; i < digits / 2; i++) {
        unsigned byte = 0;
        sscanf(hex + 2 * i, "%2x", &byte);
        out[i] = (char)byte;
    }
    return digits / 2;
}

/* One line of nfc_vectors.py; the character, if it is one. */
static uint32_t check_line(const char *line, const char *what)
{
    static char text[1 << 16], want[1 << 16];
    const size_t digits = strcspn(line, " "), more = line[digits] ? strcspn(line + digits + 1, "\n") : 0;
    const size_t bytes = from_hex(line, digits, text), want_bytes = from_hex(line + digits + 1, more, want);
    CHECK(gives(text, bytes, want, want_bytes), "%s: %.80s", what, line);
    return kr_utf8_read((const unsigned char *)text, kr_utf8_length((const unsigned char *)text, bytes));
}

/* All characters that Python changes are changed alike, and no others are. */
static void compare(FILE *python, bool takes_all)
{
    static char line[1 << 18];
    static bool changes[0x110000];
    memset(changes, 0, sizeof changes);
    while (fgets(line, sizeof line, python) && line[0] != '-') changes[check_line(line, "one character")] = true;
    while (fgets(line, sizeof line, python)) check_line(line, "a string");
    for (uint32_t c = 1; takes_all && c < 0x110000; c++) {
        char text[4];
        if ((c >= 0xd800 && c < 0xe000) || changes[c]) continue;
        const size_t bytes = (size_t)(kr_utf8_write(text, c) - text);
        if (!CHECK(gives(text, bytes, text, bytes), "U+%04X changes", (unsigned)c)) break;
    }
}

TEST(nfc_of_python)
{
    char version[40], line[80] = "", ours[60];
    table_version(ours, sizeof ours);
    FILE *python = popen("python3 -c 'import unicodedata; print(unicodedata.unidata_version)' 2>/dev/null", "r");
    if (python && fgets(line, sizeof line, python)) line[strcspn(line, "\n")] = 0;
    if (python) pclose(python);
    if (!line[0]) SKIP("there is no python3");
    snprintf(version, sizeof version, "%.39s", line);
    const bool takes_all = strcmp(version, ours) == 0;
    begin();
    python = popen(takes_all ? "python3 " KR_SOURCE_DIR "/tests/text/nfc_vectors.py all"
                             : "python3 " KR_SOURCE_DIR "/tests/text/nfc_vectors.py",
                   "r");
    if (CHECK(python && fgets(line, sizeof line, python), "nfc_vectors.py prints nothing")) compare(python, takes_all);
    if (python) CHECK(pclose(python) == 0, "nfc_vectors.py fails");
    end();
}
