/* cmd_report.c - lines for people, or JSON. */
#include "cli/commands/cmd_report.h"

#include "cli/common/cli_utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { LABEL = 18, TEXT_BYTES = 1024, PEOPLE_COLUMNS = 100 };

/* ---- untrusted texts ---- */

bool cli_is_utf8_text(const char *text)
{
    for (size_t left = strlen(text), n; left; text += n, left -= n) {
        n = cli_utf8_bytes(text, left);
        if (!n) return false;
    }
    return true;
}

/* At most `most` columns of the text; "..." marks an omitted rest. */
static int print_clean(const char *text, int most)
{
    int columns = 0;
    for (size_t left = strlen(text); left && columns < most; columns++) {
        const size_t n = cli_utf8_bytes(text, left);
        if (n && !cli_utf8_is_control(text, n)) fwrite(text, 1, n, stdout);
        else putchar('?');
        text += n ? n : 1;
        left -= n ? n : 1;
    }
    if (*text) fputs(" ...", stdout);
    return columns;
}

int cli_print_clean(const char *text)
{
    return print_clean(text, 1 << 20);
}

void cli_put_clean(FILE *out, const char *text, size_t bytes)
{
    for (size_t n; bytes; text += n, bytes -= n) {
        n = cli_utf8_bytes(text, bytes);
        const bool is_space = *text == '\n' || *text == '\t';
        if (n && (is_space || !cli_utf8_is_control(text, n))) fwrite(text, 1, n, out);
        else fputc('?', out);
        if (!n) n = 1;
    }
}

static void print_json_string(const char *text)
{
    putchar('"');
    for (size_t left = strlen(text), n; left; text += n, left -= n) {
        n = cli_utf8_bytes(text, left);
        if (!n) fputs("\\ufffd", stdout);
        else if (*text == '"' || *text == '\\') printf("\\%c", *text);
        else if (n == 1 && cli_utf8_is_control(text, n)) printf("\\u%04x", (unsigned char)*text);
        else fwrite(text, 1, n, stdout);
        if (!n) n = 1;
    }
    putchar('"');
}

/* ---- structure ---- */

static void new_line(int indent)
{
    printf("\n%*s", indent, "");
}

/* What stands before a value: comma, place and key. */
static void begin_value(cli_report *r, const char *key)
{
    const int level = r->depth - 1;
    if (r->is_json) {
        if (r->has_any[level]) putchar(',');
        new_line(2 * r->depth);
        if (key) {
            print_json_string(key);
            fputs(": ", stdout);
        }
    } else {
        printf("%*s", 2 * level, "");
        if (key) {
            int column = 2 * level;
            for (const char *c = key; *c; c++, column++) putchar(*c == '_' ? ' ' : *c);
            printf("%*s", column < LABEL ? LABEL - column + 1 : 1, "");
        }
    }
    r->has_any[level] = true;
}

static void push(cli_report *r, bool is_list)
{
    r->is_list[r->depth] = is_list;
    r->has_any[r->depth++] = false;
}

void cli_report_begin(cli_report *r, bool is_json)
{
    *r = (cli_report){ .is_json = is_json };
    push(r, false);
    if (is_json) putchar('{');
}

void cli_report_end(cli_report *r)
{
    if (r->is_json) fputs("\n}\n", stdout);
    r->depth = 0;
}

void cli_report_open(cli_report *r, const char *key, bool is_list)
{
    if (r->is_json) {
        begin_value(r, key);
        putchar(is_list ? '[' : '{');
    } else if (key) {
        cli_report_line(r, "%s", key);
    }
    push(r, is_list);
}

void cli_report_close(cli_report *r)
{
    r->depth--;
    if (!r->is_json) return;
    if (r->has_any[r->depth]) new_line(2 * r->depth);
    putchar(r->is_list[r->depth] ? ']' : '}');
}

/* ---- values ---- */

static void print_people(const char *format, va_list args)
{
    char text[TEXT_BYTES];
    vsnprintf(text, sizeof text, format, args);
    cli_print_clean(text);
    putchar('\n');
}

void cli_report_text(cli_report *r, const char *key, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    begin_value(r, key);
    if (r->is_json) {
        char text[TEXT_BYTES];
        vsnprintf(text, sizeof text, format, args);
        print_json_string(text);
    } else {
        print_people(format, args);
    }
    va_end(args);
}

void cli_report_string(cli_report *r, const char *key, const char *text)
{
    begin_value(r, key);
    if (r->is_json) {
        print_json_string(text);
    } else {
        print_clean(text, PEOPLE_COLUMNS);
        putchar('\n');
    }
}

void cli_report_number(cli_report *r, const char *key, double value, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    begin_value(r, key);
    if (!r->is_json) print_people(format, args);
    else if (!isfinite(value)) fputs("null", stdout);
    else printf(value == floor(value) && fabs(value) < 0x1p63 ? "%.0f" : "%.17g", value);
    va_end(args);
}

void cli_report_truth(cli_report *r, const char *key, bool value, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    begin_value(r, key);
    if (r->is_json) fputs(value ? "true" : "false", stdout);
    else print_people(format, args);
    va_end(args);
}

void cli_report_count(cli_report *r, const char *key, int64_t value)
{
    begin_value(r, key);
    printf("%lld%s", (long long)value, r->is_json ? "" : "\n");
}

void cli_report_counts(cli_report *r, const char *key, int count, const int64_t *values)
{
    begin_value(r, key);
    if (r->is_json) putchar('[');
    for (int i = 0; i < count; i++) printf("%s%lld", i ? ", " : "", (long long)values[i]);
    putchar(r->is_json ? ']' : '\n');
}

void cli_report_line(cli_report *r, const char *format, ...)
{
    if (r->is_json) return;
    va_list args;
    va_start(args, format);
    printf("%*s", 2 * (r->depth - 1), "");
    print_people(format, args);
    va_end(args);
}

/* ---- short texts ---- */

/* value over the largest power of `base` that leaves at least 1, with three digits or more. */
static cli_short scaled(double value, double base, int count, const char *const *units)
{
    cli_short s;
    int unit = 0;
    for (; unit + 1 < count && value >= base; unit++) value /= base;
    const int decimals = unit == 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
    snprintf(s.text, sizeof s.text, "%.*f%s", decimals, value, units[unit]);
    return s;
}

cli_short cli_bytes_text(double bytes)
{
    static const char *const units[] = { " B", " KiB", " MiB", " GiB", " TiB", " PiB" };
    return scaled(bytes, 1024, sizeof units / sizeof *units, units);
}

cli_short cli_count_text(double count)
{
    static const char *const units[] = { "", " k", " M", " G", " T" };
    return scaled(count, 1000, sizeof units / sizeof *units, units);
}
