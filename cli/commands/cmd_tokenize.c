/* cmd_tokenize.c - krait tokenize: the ids of a text, or the text of ids. */
#include "cli/common/commands.h"
#include "cli/common/cli_machine.h"

#include <krait/text.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct tokenize_values {
    const char *text, *tokenizer, *file;
    bool decodes, by_lines, ends_with_zero, is_bare, is_plain, shows_tokens, has_stats;
} tokenize_values;

static const cli_operand operands[] = {
    { "TEXT", offsetof(tokenize_values, text), true, "text, or ids with --decode (default: --file)" },
    { 0 },
};

static const cli_option options[] = {
    { "tokenizer", 't', "FILE", CLI_TEXT, offsetof(tokenize_values, tokenizer), NULL, 0,
      "a tokenizer.json (default: bytes)" },
    { "file", 'f', "FILE", CLI_TEXT, offsetof(tokenize_values, file), "-", 0, "input file; -: standard input" },
    { "decode", 'd', NULL, CLI_FLAG, offsetof(tokenize_values, decodes), NULL, 0, "ids to text" },
    { "lines", 'l', NULL, CLI_FLAG, offsetof(tokenize_values, by_lines), NULL, 0, "encode each line separately" },
    { "zero", '0', NULL, CLI_FLAG, offsetof(tokenize_values, ends_with_zero), NULL, 0,
      "like --lines, with texts terminated by a zero byte" },
    { "bare", 0, NULL, CLI_FLAG, offsetof(tokenize_values, is_bare), NULL, 0,
      "do not add special tokens; with --decode: omit them" },
    { "plain", 0, NULL, CLI_FLAG, offsetof(tokenize_values, is_plain), NULL, 0,
      "do not parse special tokens in the text" },
    { "show", 0, NULL, CLI_FLAG, offsetof(tokenize_values, shows_tokens), NULL, 0,
      "print a line per token: id and text" },
    { "stats", 0, NULL, CLI_FLAG, offsetof(tokenize_values, has_stats), NULL, 0,
      "print bytes, tokens and MB/s on stderr" },
    { 0 },
};

typedef struct job {
    const tokenize_values *v;
    const kr_tokenizer *tok;
    int32_t *ids; /* grows */
    int64_t capacity;
    int64_t bytes, tokens;
    double seconds;
} job;

/* ---- input ---- */

typedef struct input {
    char *data; /* to be freed; a zero behind it */
    size_t bytes;
} input;

static bool read_stream(FILE *stream, input *in)
{
    size_t capacity = 0;
    for (;;) {
        if (capacity - in->bytes < 2) {
            capacity = capacity ? 2 * capacity : 1 << 16;
            char *data = realloc(in->data, capacity);
            if (!data) return false;
            in->data = data;
        }
        const size_t n = fread(in->data + in->bytes, 1, capacity - in->bytes - 1, stream);
        if (n == 0) break;
        in->bytes += n;
    }
    in->data[in->bytes] = '\0';
    return !ferror(stream);
}

static bool read_input(const char *path, input *in)
{
    const bool is_standard = strcmp(path, "-") == 0;
    FILE *stream = is_standard ? stdin : fopen(path, "rb");
    const bool is_read = stream && read_stream(stream, in);
    if (!is_read) cli_complain(NULL, "cannot read %s: %s", is_standard ? "the standard input" : path, strerror(errno));
    if (stream && !is_standard) fclose(stream);
    return is_read;
}

static bool reserve_ids(job *j, int64_t count)
{
    if (count <= j->capacity) return true;
    int32_t *ids = realloc(j->ids, (size_t)count * sizeof *ids);
    if (!ids) {
        cli_complain(NULL, "tokenize: no memory for %lld ids", (long long)count);
        return false;
    }
    j->ids = ids;
    j->capacity = count;
    return true;
}

/* ---- one text ---- */

static void print_token(const kr_tokenizer *tok, int32_t id)
{
    size_t bytes;
    const char *text = kr_tokenizer_token(tok, id, &bytes);
    printf("%7d  ", (int)id);
    for (size_t i = 0; i < bytes; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c == '\\' || c < 0x20 || c == 0x7f) printf("\\x%02x", c);
        else putchar(c);
    }
    puts(kr_tokenizer_is_special(tok, id) ? "  (special)" : "");
}

static bool encode_text(job *j, const char *text, size_t bytes)
{
    kr_encode_options o;
    kr_encode_options_init(&o);
    o.add_special = !j->v->is_bare;
    o.parse_special = !j->v->is_plain;
    struct timespec begin, end;
    if (!reserve_ids(j, (int64_t)(bytes / 2) + 16)) return false; /* mostly enough */
    timespec_get(&begin, TIME_UTC);
    int64_t count = kr_tokenizer_encode(j->tok, text, bytes, &o, j->ids, j->capacity);
    if (count > j->capacity) {
        if (!reserve_ids(j, count)) return false;
        count = kr_tokenizer_encode(j->tok, text, bytes, &o, j->ids, j->capacity);
    }
    timespec_get(&end, TIME_UTC);
    j->seconds += (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    if (count < 0) return false;
    j->bytes += (int64_t)bytes;
    j->tokens += count;
    for (int64_t i = 0; i < count; i++) {
        if (j->v->shows_tokens) print_token(j->tok, j->ids[i]);
        else printf(i ? " %d" : "%d", (int)j->ids[i]);
    }
    if (!j->v->shows_tokens) putchar('\n');
    return true;
}

/* Numbers with white space or commas between them, up to the end of text, where there is a zero. */
static bool read_ids(job *j, const char *text, int64_t *count)
{
    *count = 0;
    for (;;) {
        text += strspn(text, " \t\r\n,[]");
        if (!*text) return true;
        char *end;
        errno = 0;
        const long id = strtol(text, &end, 10);
        if (end == text || errno || id < 0 || id > INT32_MAX) {
            cli_complain(NULL, "tokenize: '%.*s' is not a token id", (int)strcspn(text, " \t\r\n,[]"), text);
            return false;
        }
        if (*count == j->capacity && !reserve_ids(j, *count ? 2 * *count : 1024)) return false;
        j->ids[(*count)++] = (int32_t)id;
        text = end;
    }
}

static bool decode_text(job *j, const char *text)
{
    int64_t count;
    if (!read_ids(j, text, &count)) return false;
    for (int64_t i = 0; i < count; i++) {
        size_t bytes;
        const char *token = kr_tokenizer_token(j->tok, j->ids[i], &bytes);
        if (!token || (j->v->is_bare && kr_tokenizer_is_special(j->tok, j->ids[i]))) continue;
        fwrite(token, 1, bytes, stdout);
        j->bytes += (int64_t)bytes;
    }
    j->tokens += count;
    return true;
}

/* ---- all of them ---- */

static bool run_record(job *j, char *text, size_t bytes)
{
    if (!j->v->decodes) return encode_text(j, text, bytes);
    if (!decode_text(j, text)) return false;
    if (j->v->ends_with_zero || j->v->by_lines) putchar(j->v->ends_with_zero ? '\0' : '\n');
    return true;
}

static bool run_all(job *j, input *in)
{
    if (!j->v->by_lines && !j->v->ends_with_zero) return run_record(j, in->data, in->bytes);
    /* ids are always printed as lines */
    const char separator = j->v->ends_with_zero && !j->v->decodes ? '\0' : '\n';
    for (size_t at = 0; at < in->bytes;) {
        char *end = memchr(in->data + at, separator, in->bytes - at);
        const size_t bytes = end ? (size_t)(end - in->data) - at : in->bytes - at;
        in->data[at + bytes] = '\0';
        if (!run_record(j, in->data + at, bytes)) return false;
        at += bytes + 1;
    }
    return true;
}

static bool tokenize(kr_ctx *ctx, const tokenize_values *v, input *in)
{
    kr_tokenizer *tok = v->tokenizer ? kr_tokenizer_load(ctx, v->tokenizer) : kr_tokenizer_bytes(ctx);
    job j = { .v = v, .tok = tok };
    const bool is_done = tok && run_all(&j, in);
    if (is_done && v->has_stats) {
        fprintf(stderr, "%lld bytes, %lld tokens", (long long)j.bytes, (long long)j.tokens);
        if (!v->decodes) fprintf(stderr, ", %.3f s, %.1f MB/s", j.seconds, 1e-6 * (double)j.bytes / j.seconds);
        fputc('\n', stderr);
    }
    free(j.ids);
    kr_tokenizer_destroy(tok);
    return is_done;
}

static int run(int argc, char **argv)
{
    tokenize_values v = { 0 };
    const int status = cli_parse(&cli_tokenize, &v, argc, argv);
    if (status >= 0) return status;
    input in = { 0 };
    if (v.text) {
        in.bytes = strlen(v.text);
        in.data = malloc(in.bytes + 1);
        if (!in.data) return CLI_FAILED;
        memcpy(in.data, v.text, in.bytes + 1);
    } else if (!read_input(v.file, &in)) {
        free(in.data);
        return CLI_FAILED;
    }
    kr_ctx *ctx = cli_open(&(cli_machine){ .threads = 1, .device = "cpu" }, 0);
    const bool is_done = tokenize(ctx, &v, &in);
    const bool failed = cli_failed(ctx) || !is_done;
    kr_ctx_destroy(ctx);
    free(in.data);
    return failed ? CLI_FAILED : CLI_OK;
}

const cli_command cli_tokenize = {
    .name = "tokenize",
    .summary = "convert text to token ids, or ids to text",
    .options = options,
    .run = run,
    .operands = operands,
    .more = "krait tokenize -t tokenizer.json \"Hello world\"\n"
            "krait tokenize -t tokenizer.json -f notes.txt --show\n"
            "krait tokenize -t tokenizer.json --decode \"12092 1533\"\n",
};
