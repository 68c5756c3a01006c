/* test_text_ids.c - a text read in blocks has the ids of the whole, for the pre-tokenizers that models use; and where
 * no cut can promise that, its bytes. */
#include "cli/common/text_ids.h"
#include "tests/harness.h"

#include <stdarg.h>

/* ---- tokenizers ---- */

typedef struct text {
    char *bytes;
    size_t count, capacity;
} text;

static void append(text *t, const char *format, ...)
{
    va_list args;
    char piece[512];
    va_start(args, format);
    const size_t n = (size_t)vsnprintf(piece, sizeof piece, format, args);
    va_end(args);
    if (t->count + n + 1 > t->capacity) t->bytes = realloc(t->bytes, t->capacity = 2 * (t->count + n + 1));
    memcpy(t->bytes + t->count, piece, n + 1);
    t->count += n;
}

/* The letter that stands for a byte in a byte-level vocabulary. */
static int letter_of(int byte)
{
    int others = 0;
    for (int b = 0; b < 256; b++) {
        const bool is_itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte) return is_itself ? b : 256 + others;
        others += !is_itself;
    }
    return 0;
}

static const char *spell(const char *bytes, char *spelled)
{
    size_t n = 0;
    for (; *bytes; bytes++) {
        const int c = letter_of((unsigned char)*bytes);
        if (c < 0x80) spelled[n++] = (char)c;
        else {
            spelled[n++] = (char)(0xc0 | c >> 6);
            spelled[n++] = (char)(0x80 | (c & 63));
        }
    }
    spelled[n] = 0;
    return spelled;
}

/* Pairs whose tokens would tell a wrong cut: runs of white space above all. */
static const char *const merges[][2] = { { " ", " " },    { "  ", "  " }, { "\n", "\n" }, { "\r", "\n" },
                                         { "\n", " " },   { " ", "t" },   { "t", "h" },   { "th", "e" },
                                         { ".", "\n" },   { "\t", "\t" }, { "a", "b" },   { "ab", "ab" },
                                         { "\n", "ab" },  { "h", "e" },   { " t", "he" }, { ".\n", "\n" },
                                         { "\n", "\n\n" } };
enum { N_MERGES = sizeof merges / sizeof *merges };

#define LLAMA_SPLIT                                                                                                    \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|" \
    "'d)|"                                                                                                             \
    "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| "                                                          \
    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|"                                                     \
    "\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","                   \
    "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}]}"
#define GPT_SPLIT "{\"type\":\"ByteLevel\",\"add_prefix_space\":%s,\"trim_offsets\":true,\"use_regex\":true}"

static kr_tokenizer *make_tokenizer(kr_ctx *ctx, const char *pre_tokenizer, const char *added)
{
    text json = { 0 };
    char a[64], b[64];
    append(&json,
           "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[%s],\"normalizer\":null,",
           added);
    append(&json, "\"pre_tokenizer\":%s,\"post_processor\":null,", pre_tokenizer);
    append(&json,
           "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},");
    append(&json, "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"vocab\":{");
    for (int byte = 0; byte < 256; byte++) {
        const char one[] = { (char)byte, 0 };
        spell(one, a);
        if (!byte) spell("", a), append(&json, "\"\\u0100\":0");
        else append(&json, byte == '"' || byte == '\\' ? ",\"\\%s\":%d" : ",\"%s\":%d", a, byte);
    }
    for (int i = 0; i < N_MERGES; i++)
        append(&json, ",\"%s%s\":%d", spell(merges[i][0], a), spell(merges[i][1], b), 256 + i);
    append(&json, "},\"merges\":[");
    for (int i = 0; i < N_MERGES; i++)
        append(&json, "%s\"%s %s\"", i ? "," : "", spell(merges[i][0], a), spell(merges[i][1], b));
    append(&json, "]}}");
    kr_tokenizer *tok = kr_tokenizer_parse(ctx, json.bytes, json.count);
    free(json.bytes);
    return tok;
}

/* ---- blocks against the whole ---- */

static int32_t *whole_ids(const kr_tokenizer *tok, const text *t, int64_t *count)
{
    kr_encode_options options;
    kr_encode_options_init(&options);
    options.add_special = false;
    const int64_t most = kr_tokenizer_max_ids(tok, t->count);
    int32_t *ids = malloc((size_t)most * sizeof *ids);
    *count = kr_tokenizer_encode(tok, t->bytes, t->count, &options, ids, most);
    return ids;
}

/* All ids of a source, to be freed; *blocks: how many times there were some. */
static int32_t *blocked_ids(const cli_text_source *source, int64_t *count, int *blocks)
{
    const int32_t *ids;
    int32_t *all = NULL;
    cli_text_ids *t = cli_text_ids_open(source);
    *count = 0;
    *blocks = 0;
    for (int64_t n; (n = cli_text_ids_next(t, &ids)) > 0; *count += n, ++*blocks) {
        all = realloc(all, (size_t)(*count + n) * sizeof *all);
        memcpy(all + *count, ids, (size_t)n * sizeof *all);
    }
    cli_text_ids_close(t);
    return all;
}

static void check_equal(const char *what, const kr_tokenizer *tok, const text *t)
{
    int64_t n_want, n_got;
    int blocks;
    int32_t *want = whole_ids(tok, t, &n_want);
    const cli_text_source source = {
        .tok = tok, .name = what, .text = t->bytes, .bytes = t->count, .block_bytes = 1024
    };
    int32_t *got = blocked_ids(&source, &n_got, &blocks);
    CHECK(blocks > 5, "%s: %d blocks", what, blocks);
    int64_t at = 0;
    while (at < n_got && at < n_want && got[at] == want[at]) at++;
    CHECK(at == n_want && at == n_got, "%s: %lld ids, want %lld; the first other one is at %lld", what,
          (long long)n_got, (long long)n_want, (long long)at);
    free(want);
    free(got);
}

/* Words, numbers, punctuation, letters of other scripts, and every kind of white space in runs. */
static text random_text(int pieces)
{
    static const char *const words[] = { "the",
                                         "ab",
                                         "abab",
                                         "thethe",
                                         "3141",
                                         ".",
                                         "...",
                                         "?!",
                                         "\xc3\xa9t\xc3\xa9",
                                         "\xe4\xbd\xa0\xe5\xa5\xbd",
                                         "'s",
                                         "don't",
                                         "\xe3\x80\x82",
                                         "\xff" };
    static const char *const spaces[] = {
        " ",   " ",   " ",  "  ",   "   ",          "\n",       "\n\n",         "\n\n\n", "\r\n",
        " \n", "\n ", "\t", "\t\t", "\xe3\x80\x80", "\xc2\xa0", "\xe2\x80\xa8", ""
    };
    text t = { 0 };
    for (int i = 0; i < pieces; i++) {
        append(&t, "%s", words[kr_test_below(sizeof words / sizeof *words)]);
        append(&t, "%s", spaces[kr_test_below(sizeof spaces / sizeof *spaces)]);
    }
    return t;
}

static void check_tokenizer(const char *what, const char *pre_tokenizer, const char *added)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tokenizer *tok = make_tokenizer(ctx, pre_tokenizer, added);
    CHECK_OK(ctx);
    for (int run = 0; run < (kr_test_quick() ? 2 : 20) && tok; run++) {
        text t = random_text(3000);
        check_equal(what, tok, &t);
        free(t.bytes);
    }
    kr_tokenizer_destroy(tok);
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

TEST(blocks_have_the_ids_of_the_whole)
{
    char gpt[200], prefix[200];
    snprintf(gpt, sizeof gpt, GPT_SPLIT, "false");
    snprintf(prefix, sizeof prefix, GPT_SPLIT, "true");
    check_tokenizer("gpt", gpt, "");
    check_tokenizer("llama", LLAMA_SPLIT, "");
    check_tokenizer("a space before the text", prefix, "");
}

/* Runs of spaces as tokens of their own, as GPT-NeoX has them, and one with a space inside it. */
TEST(blocks_respect_added_tokens)
{
    char gpt[200];
    snprintf(gpt, sizeof gpt, GPT_SPLIT, "false");
    check_tokenizer("added", gpt,
                    "{\"id\":300,\"content\":\"  \",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                    "\"normalized\":true,\"special\":false},"
                    "{\"id\":301,\"content\":\"the ab\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                    "\"normalized\":false,\"special\":true}");
}

/* No white space at all: the bytes are those of the text, and no character is cut. */
TEST(blocks_without_a_place_to_cut_keep_the_bytes)
{
    char gpt[200];
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    snprintf(gpt, sizeof gpt, GPT_SPLIT, "false");
    kr_tokenizer *tok = make_tokenizer(ctx, gpt, "");
    text t = { 0 };
    int64_t count;
    int blocks;
    for (int i = 0; i < 2000; i++) append(&t, "%s", i % 7 ? "\xe4\xbd\xa0" : "x");
    const cli_text_source source = { .tok = tok, .name = "t", .text = t.bytes, .bytes = t.count, .block_bytes = 1024 };
    cli_text_ids *blocked = cli_text_ids_open(&source);
    char *decoded = malloc(t.count + 1);
    size_t at = 0;
    const int32_t *ids;
    for (int64_t n; (n = cli_text_ids_next(blocked, &ids)) > 0;) {
        CHECK(at == t.count || ((unsigned char)t.bytes[at] & 0xc0) != 0x80, "a character is cut at %zu", at);
        at += kr_tokenizer_decode(tok, ids, n, false, decoded + at, t.count - at);
    }
    CHECK(at == t.count && !memcmp(decoded, t.bytes, at), "%zu bytes of %zu", at, t.count);
    cli_text_ids_close(blocked);
    free(blocked_ids(&source, &count, &blocks));
    CHECK(blocks > 5, "%d blocks", blocks);
    free(decoded);
    free(t.bytes);
    kr_tokenizer_destroy(tok);
    kr_ctx_destroy(ctx);
}

/* ---- sources ---- */

TEST(files_are_read_as_texts_are)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tokenizer *tok = kr_tokenizer_bytes(ctx);
    text t = random_text(1000);
    int64_t n_text, n_file;
    int blocks;
    FILE *file = tmpfile();
    fwrite(t.bytes, 1, t.count, file);
    rewind(file);
    cli_text_source source = { .tok = tok, .name = "t", .text = t.bytes, .bytes = t.count, .block_bytes = 1500 };
    int32_t *of_text = blocked_ids(&source, &n_text, &blocks);
    source.file = file;
    int32_t *of_file = blocked_ids(&source, &n_file, &blocks);
    CHECK(n_text == (int64_t)t.count && n_file == n_text, "%lld and %lld ids", (long long)n_text, (long long)n_file);
    CHECK(n_file == n_text && !memcmp(of_text, of_file, (size_t)n_text * sizeof *of_text), "other ids");
    free(of_text);
    free(of_file);
    fclose(file);
    free(t.bytes);
    kr_tokenizer_destroy(tok);
    kr_ctx_destroy(ctx);
}

TEST(numbers_are_read_in_blocks)
{
    text t = { 0 };
    int64_t count;
    int blocks;
    for (int i = 0; i < 1000; i++) append(&t, "%s%d", i % 3 ? " " : ",\n\t", i * 77777 % 100000);
    const cli_text_source source = { .name = "t", .text = t.bytes, .bytes = t.count, .block_bytes = 1024 };
    int32_t *ids = blocked_ids(&source, &count, &blocks);
    CHECK(count == 1000 && blocks > 3, "%lld ids in %d blocks", (long long)count, blocks);
    for (int i = 0; i < count; i++) CHECK(ids[i] == i * 77777 % 100000, "id %d is %d", i, (int)ids[i]);
    free(ids);
    free(t.bytes);
}
