/* generate_print.c - output of krait generate on stdout. */
#define _POSIX_C_SOURCE 200809L
#include "cli/commands/cmd_generate.h"
#include "cli/common/cli_files.h"
#include "cli/common/cli_utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool printer_open(printer *p, const generate_values *values, const kr_tokenizer *tok)
{
    *p = (printer){ .form = values->shows_logprobs ? PRINT_LOGPROBS
                            : values->is_ids       ? PRINT_IDS
                                                   : PRINT_TEXT,
                    .tok = tok,
                    .samples = values->samples };
    if (p->samples == 1 || p->form == PRINT_LOGPROBS) return true;
    p->kept = calloc((size_t)p->samples, sizeof *p->kept);
    if (!p->kept) cli_complain(NULL, "out of memory for %" PRId64 " samples", p->samples);
    return p->kept;
}

void printer_close(printer *p)
{
    for (int64_t i = 0; p->kept && i < p->samples; i++) free(p->kept[i].bytes);
    free(p->kept);
    p->kept = NULL;
}

/* ---- bytes ---- */

static void write_out(printer *p, const char *bytes, size_t count)
{
    if (!count || p->is_closed || p->has_failed) return;
    errno = 0;
    if (fwrite(bytes, 1, count, stdout) == count && !fflush(stdout)) {
        p->last = bytes[count - 1];
        return;
    }
    p->is_closed = errno == EPIPE;
    p->has_failed = !p->is_closed;
    if (p->has_failed) cli_cannot("write to", "stdout", errno);
}

static void keep(printer *p, printed *to, const char *bytes, size_t count)
{
    if (!count || p->has_failed) return;
    if (to->count + count > to->capacity) {
        const size_t capacity = 2 * (to->count + count);
        char *grown = realloc(to->bytes, capacity);
        p->has_failed = !grown;
        if (!grown) {
            cli_complain(NULL, "out of memory");
            return;
        }
        to->bytes = grown;
        to->capacity = capacity;
    }
    memcpy(to->bytes + to->count, bytes, count);
    to->count += count;
}

static void put(printer *p, int64_t sample, const char *bytes, size_t count)
{
    if (p->kept) keep(p, &p->kept[sample], bytes, count);
    else write_out(p, bytes, count);
}

/* ---- one token ---- */

static void put_id(printer *p, int64_t sample, int32_t id)
{
    char text[16];
    const bool is_first = p->kept ? !p->kept[sample].count : !p->last || p->last == '\n';
    put(p, sample, text, (size_t)snprintf(text, sizeof text, "%s%" PRId32, is_first ? "" : " ", id));
}

/* The letter after a backslash; 0: there is none. */
static char escape_letter(char c)
{
    switch (c) {
    case '\n': return 'n';
    case '\t': return 't';
    case '\r': return 'r';
    case '\\':
    case '"': return c;
    default: return 0;
    }
}

/* Between quotes: \n \t \r \\ \" as in C, other controls and bytes that are no character as \xNN. */
static void put_quoted(printer *p, int64_t sample, const char *text, size_t bytes)
{
    char escape[8];
    put(p, sample, "\"", 1);
    for (size_t at = 0, n; at < bytes; at += n) {
        const unsigned char c = (unsigned char)text[at];
        const char letter = escape_letter(text[at]);
        n = cli_utf8_bytes(text + at, bytes - at);
        if (n && !letter && c >= 0x20 && c != 0x7f) {
            put(p, sample, text + at, n);
            continue;
        }
        const int length =
            letter ? snprintf(escape, sizeof escape, "\\%c", letter) : snprintf(escape, sizeof escape, "\\x%02x", c);
        put(p, sample, escape, (size_t)length);
        n = 1;
    }
    put(p, sample, "\"\n", 2);
}

static void put_logprob(printer *p, int64_t sample, const kr_sample *token)
{
    char text[80];
    size_t bytes = 0;
    const int n =
        snprintf(text, sizeof text, "%" PRId64 "\t%" PRId32 "\t%.6f\t", sample + 1, token->id, token->logprob);
    put(p, sample, text, (size_t)n);
    const char *spelled = p->tok ? kr_tokenizer_token(p->tok, token->id, &bytes) : NULL;
    put_quoted(p, sample, spelled ? spelled : "", spelled ? bytes : 0);
}

/* ---- statistics of a run ---- */

void printer_prompt(printer *p, const int32_t *ids, int64_t count)
{
    size_t bytes = 0;
    char *text = NULL;
    if (p->form == PRINT_TEXT) {
        bytes = kr_tokenizer_decode(p->tok, ids, count, false, NULL, 0);
        text = malloc(bytes ? bytes : 1);
        if (!text) {
            cli_complain(NULL, "out of memory for %zu bytes of the prompt", bytes);
            p->has_failed = true;
            return;
        }
        kr_tokenizer_decode(p->tok, ids, count, false, text, bytes);
    }
    for (int64_t sample = 0; sample < (p->kept ? p->samples : 1); sample++) {
        put(p, sample, text, bytes);
        for (int64_t i = 0; !text && i < count; i++) put_id(p, sample, ids[i]);
    }
    free(text);
}

void printer_token(printer *p, int64_t sample, const kr_generated *token)
{
    switch (p->form) {
    case PRINT_TEXT: put(p, sample, token->text, token->bytes); break;
    case PRINT_IDS: put_id(p, sample, token->sample.id); break;
    case PRINT_LOGPROBS: put_logprob(p, sample, &token->sample); break;
    }
}

/* A line break after output that does not end with one. */
static void end_line(printer *p)
{
    if (p->last && p->last != '\n') write_out(p, "\n", 1);
}

void printer_end(printer *p)
{
    char head[64];
    for (int64_t sample = 0; p->kept && sample < p->samples; sample++) {
        if (p->form == PRINT_TEXT)
            write_out(p, head, (size_t)snprintf(head, sizeof head, "--- sample %" PRId64 "\n", sample + 1));
        write_out(p, p->kept[sample].bytes, p->kept[sample].count);
        end_line(p);
        p->kept[sample].count = 0;
    }
    if (p->form != PRINT_TEXT || isatty(STDOUT_FILENO)) end_line(p);
}
