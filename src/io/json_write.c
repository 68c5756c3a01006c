/* json_write.c - JSON out of values, one after another. */
#include "io/json_write.h"

#include "io/decimal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void put(kr_json_writer *w, const char *bytes, size_t length)
{
    if (w->length < w->capacity) {
        const size_t left = w->capacity - w->length;
        memcpy(w->text + w->length, bytes, length < left ? length : left);
    }
    w->length += length;
}

static void put_text(kr_json_writer *w, const char *text)
{
    put(w, text, strlen(text));
}

/* Quoted, with the escapes that JSON asks for; everything else is UTF-8 and stands for itself. */
static void put_string(kr_json_writer *w, const char *text)
{
    put_text(w, "\"");
    for (; *text; text++) {
        char escape[8];
        if (*text == '"' || *text == '\\') put(w, (const char[]){ '\\', *text }, 2);
        else if ((unsigned char)*text >= 0x20) put(w, text, 1);
        else put(w, escape, (size_t)snprintf(escape, sizeof escape, "\\u%04x", (unsigned)(unsigned char)*text));
    }
    put_text(w, "\"");
}

static void put_line(kr_json_writer *w)
{
    put_text(w, "\n");
    for (int i = 0; i < w->depth; i++) put_text(w, "  ");
}

/* What stands before a value: the comma behind the last one, a new line, the key. */
static void lead(kr_json_writer *w, const char *key)
{
    if (w->has_value) put_text(w, w->ninline ? ", " : ",");
    if (w->depth && !w->ninline) put_line(w);
    if (key) {
        put_string(w, key);
        put_text(w, ": ");
    }
    w->has_value = true;
}

void kr_json_write_begin(kr_json_writer *w, char *text, size_t bytes)
{
    *w = (kr_json_writer){ .text = text, .capacity = text ? bytes : 0 };
}

void kr_json_write_end(kr_json_writer *w)
{
    put_text(w, "\n");
    if (w->capacity) w->text[w->length < w->capacity ? w->length : w->capacity - 1] = '\0';
}

void kr_json_write_open(kr_json_writer *w, const char *key, char bracket)
{
    lead(w, key);
    put(w, &bracket, 1);
    w->depth++;
    if (w->ninline || bracket == '[') w->ninline++;
    w->has_value = false;
}

void kr_json_write_close(kr_json_writer *w, char bracket)
{
    w->depth--;
    if (w->has_value && !w->ninline) put_line(w);
    if (w->ninline) w->ninline--;
    put(w, &bracket, 1);
    w->has_value = true;
}

void kr_json_write_integer(kr_json_writer *w, const char *key, int64_t value)
{
    char digits[24];
    lead(w, key);
    put(w, digits, (size_t)snprintf(digits, sizeof digits, "%" PRId64, value));
}

void kr_json_write_bool(kr_json_writer *w, const char *key, bool value)
{
    lead(w, key);
    put_text(w, value ? "true" : "false");
}

void kr_json_write_string(kr_json_writer *w, const char *key, const char *value)
{
    lead(w, key);
    put_string(w, value);
}

/* Digits that come back as the same value. The locale's decimal point, whatever bytes it has, becomes a point. */
static void shortest(double value, char *text, size_t bytes)
{
    for (int precision = 1; precision <= 17; precision++) {
        char raw[64];
        snprintf(raw, sizeof raw, "%.*g", precision, value);
        size_t n = 0;
        for (const char *at = raw; *at && n + 1 < bytes; at++) {
            if (strchr("0123456789+-e", *at)) text[n++] = *at;
            else if (n == 0 || text[n - 1] != '.') text[n++] = '.';
        }
        text[n] = '\0';
        double back;
        if (kr_decimal_read(text, n, &back) && back == value) return;
    }
}

void kr_json_write_number(kr_json_writer *w, const char *key, double value)
{
    lead(w, key);
    if (isinf(value)) {
        const char *word = value > 0 ? "Infinity" : "-Infinity";
        put_text(w, w->has_bare_infinity ? "" : "{\"__float__\": \"");
        put_text(w, word);
        put_text(w, w->has_bare_infinity ? "" : "\"}");
        return;
    }
    char digits[64];
    shortest(value, digits, sizeof digits);
    put_text(w, digits);
    if (!strpbrk(digits, ".e")) put_text(w, ".0"); /* for readers to whom 1 and 1.0 are of two kinds */
}
