/* markup.c - XML text in memory, and from there on the disk. */
#define _POSIX_C_SOURCE 200809L
#include "cli/report/markup.h"

#include "cli/common/cli_files.h"
#include "cli/common/cli_utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void append(markup *m, const char *bytes, size_t count)
{
    if (m->has_failed || !count) return;
    if (m->count + count + 1 > m->capacity) {
        const size_t capacity = 2 * (m->count + count + 1);
        char *grown = realloc(m->text, capacity);
        m->has_failed = !grown;
        if (!grown) return;
        m->text = grown;
        m->capacity = capacity;
    }
    memcpy(m->text + m->count, bytes, count);
    m->count += count;
    m->text[m->count] = 0;
}

void markup_add(markup *m, const char *text)
{
    append(m, text, strlen(text));
}

void markup_format(markup *m, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n > 0) append(m, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

static const char *entity(char c)
{
    switch (c) {
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '&': return "&amp;";
    case '"': return "&quot;";
    case '\'': return "&apos;";
    default: return NULL;
    }
}

/* Characters, but not the controls and the two that Unicode says are none. */
static bool may_stand_in_xml(const char *text, size_t n)
{
    if (n == 1 && (*text == '\t' || *text == '\n')) return true;
    if (n == 3 && (!memcmp(text, "\xef\xbf\xbe", 3) || !memcmp(text, "\xef\xbf\xbf", 3))) return false;
    return n && !cli_utf8_is_control(text, n);
}

void markup_bytes(markup *m, const char *bytes, size_t count)
{
    size_t plain = 0; /* where what needs no change began */
    for (size_t at = 0, n; at < count; at += n) {
        n = cli_utf8_bytes(bytes + at, count - at);
        const char *instead = entity(bytes[at]);
        if (bytes[at] == '\r') instead = at + 1 < count && bytes[at + 1] == '\n' ? "" : "\n";
        else if (!may_stand_in_xml(bytes + at, n)) instead = "\xef\xbf\xbd";
        if (!n) n = 1;
        if (!instead) continue;
        append(m, bytes + plain, at - plain);
        markup_add(m, instead);
        plain = at + n;
    }
    append(m, bytes + plain, count - plain);
}

void markup_text(markup *m, const char *text)
{
    markup_bytes(m, text, strlen(text));
}

bool markup_write(const markup *m, const char *path)
{
    char temporary[CLI_PATH_BYTES];
    if (m->has_failed) return cli_cannot("write", path, ENOMEM);
    const int n = snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid());
    if (n < 0 || n >= (int)sizeof temporary) return cli_cannot("write", path, ENAMETOOLONG);
    FILE *out = fopen(temporary, "wb");
    if (!out) return cli_cannot("write", path, errno);
    bool ok = fwrite(m->text, 1, m->count, out) == m->count && fflush(out) == 0 && fsync(fileno(out)) == 0;
    int error = errno;
    if (fclose(out) != 0 && ok) {
        ok = false;
        error = errno;
    }
    if (ok && rename(temporary, path) != 0) {
        ok = false;
        error = errno;
    }
    if (!ok) unlink(temporary);
    return ok || cli_cannot("write", path, error);
}

void markup_free(markup *m)
{
    free(m->text);
    *m = (markup){ 0 };
}
