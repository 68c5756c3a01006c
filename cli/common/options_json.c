/* options_json.c - reads and writes the values of an option table as a JSON object. */
#define _POSIX_C_SOURCE 200809L
#include "cli/common/options_json.h"

#include "cli/common/cli_files.h"
#include "cli/common/cli_machine.h"
#include "cli/commands/cmd_report.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_FILE_BYTES = 1 << 20 };

/* ---- reading ---- */

/* A member as the text of the option's value; NULL if it is of another kind than the option. */
static const char *text_of(const cli_option *option, const kr_json *value, char *number, size_t bytes)
{
    const kr_json_kind kind = kr_json_kind_of(value);
    switch (cli_kind_of(option)) {
    case CLI_FLAG: return kind == KR_JSON_BOOL ? (kr_json_bool(value, false) ? "true" : "false") : NULL;
    case CLI_INT:
    case CLI_I64:
    case CLI_U64:
        if (cli_kind_of(option) == CLI_U64 && kind == KR_JSON_STRING) break; /* for those from 2^63 on */
        if (!kr_json_is_integer(value)) return NULL;
        snprintf(number, bytes, "%" PRId64, kr_json_integer(value, 0));
        return number;
    case CLI_REAL:
        if (kind != KR_JSON_NUMBER) return NULL;
        snprintf(number, bytes, "%.17g", kr_json_number(value, 0));
        return number;
    default: break;
    }
    const char *text = kr_json_text(value);
    return text && strlen(text) == (size_t)kr_json_length(value) ? text : NULL;
}

static const char *kind_text(const cli_option *option)
{
    switch (cli_kind_of(option)) {
    case CLI_FLAG: return "true or false";
    case CLI_INT:
    case CLI_I64:
    case CLI_U64: return "a whole number";
    case CLI_REAL: return "a number";
    case CLI_TEXTS: return "a list of strings";
    default: return "a text";
    }
}

/* A member into the field at `values`, or where only its rule is asked, into a field that is thrown away. */
static bool take_value(const cli_option *option, const kr_json *value, void *values, const char *path)
{
    char number[64], rule[160];
    const char *text = text_of(option, value, number, sizeof number);
    if (!text) {
        cli_complain(NULL, "%s: %s is of kind %s, but must be %s", path, option->name,
                     kr_json_kind_name(kr_json_kind_of(value)), kind_text(option));
        return false;
    }
    if (cli_set(option, values, text)) return true;
    cli_complain(NULL, "%s: %s is '%.100s', but must be %s", path, option->name, text,
                 cli_rule(option, rule, sizeof rule));
    return false;
}

static bool take_member(const cli_option *option, const kr_json *member, void *values, bool is_wanted, const char *path)
{
    union {
        cli_texts texts;
        int64_t integer;
        double real;
    } unwanted = { .texts = { 0 } };
    cli_option here = *option;
    if (!is_wanted) here.offset = 0;
    void *into = is_wanted ? values : (void *)&unwanted;
    if (cli_kind_of(option) != CLI_TEXTS || kr_json_kind_of(member) != KR_JSON_ARRAY)
        return take_value(&here, member, into, path);
    for (const kr_json *one = kr_json_first(member); one; one = kr_json_next(one))
        if (!take_value(&here, one, into, path)) return false;
    return true;
}

static bool is_line_only(const cli_command *command, const cli_option *option)
{
    const size_t length = strlen(option->name);
    for (const char *at = command->line_only; at && *at; at += *at == ',') {
        const size_t n = strcspn(at, ",");
        if (n == length && !memcmp(at, option->name, n)) return true;
        at += n;
    }
    return cli_kind_of(option) == CLI_HEADING;
}

static bool take_all(const cli_json_file *file, const cli_command *command, void *values, cli_given *given,
                     const char *path)
{
    char remedy[80];
    snprintf(remedy, sizeof remedy, "see krait %s --help", command->name);
    if (kr_json_kind_of(file->root) != KR_JSON_OBJECT) {
        cli_complain(remedy, "%s: expected a JSON object with a member for each option", path);
        return false;
    }
    for (const kr_json *member = kr_json_first(file->root); member; member = kr_json_next(member)) {
        const char *name = kr_json_key(member);
        const cli_option *option = cli_find_option(command, name, strlen(name));
        if (!option || is_line_only(command, option)) {
            cli_complain(remedy, option ? "%s: %s is for the command line only" : "%s: unknown option %s", path, name);
            return false;
        }
        unsigned char *origin = &given->origin[option - command->options];
        if (!take_member(option, member, values, *origin == CLI_FALLBACK, path)) return false;
        if (*origin == CLI_FALLBACK) *origin = CLI_FILE;
    }
    return true;
}

bool cli_json_read(cli_json_file *file, const cli_command *command, void *values, cli_given *given, const char *path)
{
    size_t bytes = 0;
    char *text = cli_read_file(path, MAX_FILE_BYTES, &bytes);
    if (!text) return false;
    file->ctx = cli_open_for_files(NULL, NULL);
    file->root = kr_json_parse(file->ctx, text, bytes, NULL);
    free(text);
    if (kr_ctx_failed(file->ctx)) {
        cli_complain(NULL, "%s: %s", path, kr_ctx_message(file->ctx));
        return false;
    }
    return take_all(file, command, values, given, path);
}

void cli_json_close(cli_json_file *file)
{
    if (file->root) kr_json_destroy(file->root);
    if (file->ctx) kr_ctx_destroy(file->ctx);
    *file = (cli_json_file){ 0 };
}

/* ---- writing ---- */

static void write_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') fprintf(out, "\\%c", c);
        else if (c < 32) fprintf(out, "\\u%04x", c);
        else fputc(c, out);
    }
    fputc('"', out);
}

/* The word of "a|b|c" with that number. */
static void write_choice(FILE *out, const char *words, int choice)
{
    for (; choice > 0; choice--) words += strcspn(words, "|") + 1;
    fprintf(out, "\"%.*s\"", (int)strcspn(words, "|"), words);
}

/* The shortest text that is read as this number. */
static void write_real(FILE *out, double value)
{
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    fputs(text, out);
}

static void write_value(FILE *out, const cli_option *option, const void *values)
{
    const void *field = (const char *)values + option->offset;
    switch (cli_kind_of(option)) {
    case CLI_FLAG: fputs(*(const bool *)field ? "true" : "false", out); break;
    case CLI_INT: fprintf(out, "%d", *(const int *)field); break;
    case CLI_I64: fprintf(out, "%" PRId64, *(const int64_t *)field); break;
    case CLI_U64: {
        const uint64_t value = *(const uint64_t *)field;
        fprintf(out, value > INT64_MAX ? "\"%" PRIu64 "\"" : "%" PRIu64, value);
        break;
    }
    case CLI_REAL: write_real(out, *(const double *)field); break;
    case CLI_TEXT:
    case CLI_ANY: write_string(out, *(const char *const *)field); break;
    case CLI_TEXTS: {
        const cli_texts *texts = field;
        fputc('[', out);
        for (int i = 0; i < texts->count; i++) {
            if (i) fputs(", ", out);
            write_string(out, texts->text[i]);
        }
        fputc(']', out);
        break;
    }
    case CLI_CHOICE: write_choice(out, option->arg, *(const int *)field); break;
    case CLI_HEADING: break;
    }
}

/* A text of the option that is no UTF-8, which JSON cannot represent; NULL: none. */
static const char *unwritable(const cli_option *option, const void *values)
{
    const void *field = (const char *)values + option->offset;
    const char *const *text = field;
    int count = cli_kind_of(option) == CLI_TEXT || cli_kind_of(option) == CLI_ANY;
    if (cli_kind_of(option) == CLI_TEXTS) {
        text = ((const cli_texts *)field)->text;
        count = ((const cli_texts *)field)->count;
    }
    for (int i = 0; i < count; i++)
        if (text[i] && !cli_is_utf8_text(text[i])) return text[i];
    return NULL;
}

static bool write_all(FILE *out, const cli_command *command, const void *values, const cli_given *given)
{
    const char *before = "{\n";
    for (const cli_option *option = command->options; option->name; option++) {
        const bool is_given = given->origin[option - command->options] != CLI_FALLBACK;
        if (is_line_only(command, option) || (!option->fallback && !is_given && cli_kind_of(option) != CLI_FLAG))
            continue;
        fprintf(out, "%s  ", before);
        write_string(out, option->name);
        fputs(": ", out);
        write_value(out, option, values);
        before = ",\n";
    }
    fputs(before[0] == '{' ? "{}\n" : "\n}\n", out);
    return !ferror(out) && !fflush(out) && !fsync(fileno(out));
}

bool cli_json_write(const cli_command *command, const void *values, const cli_given *given, const char *path)
{
    for (const cli_option *option = command->options; option->name; option++) {
        if (is_line_only(command, option) || !unwritable(option, values)) continue;
        cli_complain("rename the file, or choose another text", "%s: --%s is not UTF-8 and cannot be stored in %s",
                     command->name, option->name, path);
        return false;
    }
    char temporary[CLI_PATH_BYTES];
    const int n = snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid());
    if (n < 0 || n >= (int)sizeof temporary) return cli_cannot("write", path, ENAMETOOLONG);
    FILE *out = fopen(temporary, "wb");
    if (!out) return cli_cannot("write", path, errno);
    bool is_written = write_all(out, command, values, given);
    int error = errno;
    if (fclose(out) != 0 && is_written) is_written = false, error = errno;
    if (is_written && rename(temporary, path) != 0) is_written = false, error = errno;
    if (is_written) return true;
    unlink(temporary);
    return cli_cannot("write", path, error);
}
