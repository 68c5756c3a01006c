/* cli_options.c - reads, checks and explains the options and operands of a subcommand from its tables. */
#include "cli/common/cli_options.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cli_complain(const char *remedy, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("krait: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    if (remedy) fprintf(stderr, "       %s\n", remedy);
}

/* ---- values ---- */

cli_kind cli_kind_of(const cli_option *option)
{
    return (cli_kind)(option->kind & (CLI_FIXED - 1));
}

bool cli_has_mark(const cli_option *option, int mark)
{
    return (option->kind & mark) == mark;
}

/* Which of the words "a|b|c" the text is; -1: none. */
static int choice_of(const char *words, const char *text)
{
    const size_t length = strlen(text);
    for (int i = 0;; i++) {
        const size_t word = strcspn(words, "|");
        if (word == length && !memcmp(words, text, length)) return i;
        if (!words[word]) return -1;
        words += word + 1;
    }
}

static bool set_integer(const cli_option *option, void *field, const char *text)
{
    char *end = NULL;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < option->least) return false;
    if (cli_kind_of(option) == CLI_I64) *(int64_t *)field = value;
    else if (value > INT_MAX) return false;
    else *(int *)field = (int)value;
    return true;
}

static bool set_number(const cli_option *option, void *field, const char *text)
{
    char *end = NULL;
    errno = 0;
    if (cli_kind_of(option) == CLI_U64) {
        const unsigned long long value = strtoull(text, &end, 10);
        if (errno || end == text || *end || strchr(text, '-')) return false;
        *(uint64_t *)field = value;
        return true;
    }
    const double value = strtod(text, &end);
    if (errno || end == text || *end || !isfinite(value) || value < option->least) return false;
    *(double *)field = value;
    return true;
}

bool cli_set(const cli_option *option, void *values, const char *text)
{
    void *field = (char *)values + option->offset;
    switch (cli_kind_of(option)) {
    case CLI_FLAG:
        if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0) return false;
        *(bool *)field = *text == 't';
        return true;
    case CLI_INT:
    case CLI_I64: return set_integer(option, field, text);
    case CLI_U64:
    case CLI_REAL: return set_number(option, field, text);
    case CLI_TEXT:
    case CLI_ANY:
        if (cli_kind_of(option) == CLI_TEXT && !*text) return false;
        *(const char **)field = text;
        return true;
    case CLI_TEXTS: {
        cli_texts *texts = field;
        if (!*text || texts->count == CLI_MAX_TEXTS) return false;
        texts->text[texts->count++] = text;
        return true;
    }
    case CLI_CHOICE: {
        const int choice = choice_of(option->arg, text);
        if (choice >= 0) *(int *)field = choice;
        return choice >= 0;
    }
    case CLI_HEADING: break;
    }
    return false;
}

const char *cli_rule(const cli_option *option, char *text, size_t bytes)
{
    switch (cli_kind_of(option)) {
    case CLI_INT:
    case CLI_I64: snprintf(text, bytes, "a whole number of at least %d", option->least); break;
    case CLI_U64: snprintf(text, bytes, "a whole number from 0 to 2^64 - 1"); break;
    case CLI_REAL: snprintf(text, bytes, "a number of at least %d", option->least); break;
    case CLI_CHOICE: snprintf(text, bytes, "one of %s", option->arg); break;
    case CLI_TEXTS: snprintf(text, bytes, "a non-empty text, %d times at most", CLI_MAX_TEXTS); break;
    case CLI_FLAG: snprintf(text, bytes, "true or false"); break;
    default: snprintf(text, bytes, "a non-empty text"); break;
    }
    return text;
}

static void set_fallbacks(const cli_command *command, void *values)
{
    for (const cli_option *option = command->options; option->name; option++) {
        if (option->fallback) cli_set(option, values, option->fallback);
        else if (cli_kind_of(option) == CLI_CHOICE) *(int *)((char *)values + option->offset) = -1;
    }
}

/* ---- the line ---- */

const cli_option *cli_find_option(const cli_command *command, const char *name, size_t length)
{
    for (const cli_option *option = command->options; option->name; option++) {
        if (length && strlen(option->name) == length && !memcmp(option->name, name, length)) return option;
    }
    return NULL;
}

/* The option that `word` ("--name", "--name=value" or "-n") means; *value is what follows '=', or NULL. */
static const cli_option *option_of_word(const cli_command *command, const char *word, const char **value)
{
    const char *name = word + 2;
    *value = NULL;
    if (word[1] == '-') {
        const size_t length = strcspn(name, "=");
        if (name[length]) *value = name + length + 1;
        return cli_find_option(command, name, length);
    }
    for (const cli_option *option = command->options; option->name; option++) {
        if (option->letter == word[1] && !word[2]) return option;
    }
    return NULL;
}

typedef struct parse {
    const cli_command *command;
    void *values;
    int argc, at; /* argv[at] is looked at */
    char **argv;
    const cli_operand *operand; /* the next one to be filled; NULL: the command has none */
    cli_given *given;           /* NULL: not wanted */
    char remedy[80];
} parse;

static bool takes_all(const cli_operand *operand)
{
    const size_t length = strlen(operand->name);
    return length > 3 && !strcmp(operand->name + length - 3, "...");
}

/* Both: true to continue, false after an error message. */
static bool take_operand(parse *p, const char *word)
{
    if (!p->operand || !p->operand->name) {
        cli_complain(p->remedy, "%s: unexpected argument '%s'", p->command->name, word);
        return false;
    }
    void *field = (char *)p->values + p->operand->offset;
    if (!takes_all(p->operand)) {
        *(const char **)field = word;
        p->operand++;
        return true;
    }
    cli_texts *texts = field;
    if (texts->count == CLI_MAX_TEXTS) {
        cli_complain(p->remedy, "%s: %s may be given %d times at most", p->command->name, p->operand->name,
                     CLI_MAX_TEXTS);
        return false;
    }
    texts->text[texts->count++] = word;
    return true;
}

/* Is a required operand missing? */
static bool is_missing(const parse *p)
{
    if (!p->operand || !p->operand->name || p->operand->is_optional) return false;
    return !takes_all(p->operand) || !((const cli_texts *)((char *)p->values + p->operand->offset))->count;
}

static bool take_option(parse *p)
{
    const char *word = p->argv[p->at], *value, *name = p->command->name;
    char rule[120];
    const cli_option *option = option_of_word(p->command, word, &value);
    if (!option) {
        cli_complain(p->remedy, "%s: unknown option %s", name, word);
        return false;
    }
    if (p->given) p->given->origin[option - p->command->options] = CLI_LINE;
    if (cli_kind_of(option) == CLI_FLAG) {
        if (cli_set(option, p->values, value ? value : "true")) return true;
        cli_complain(p->remedy, "%s: --%s is a switch: its value must be true or false, not '%s'", name, option->name,
                     value);
        return false;
    }
    if (!value && p->at + 1 < p->argc) value = p->argv[++p->at];
    if (!value) {
        cli_complain(p->remedy, "%s: --%s needs a value, %s", name, option->name, option->arg);
        return false;
    }
    if (!cli_set(option, p->values, value)) {
        cli_complain(p->remedy, "%s: --%s is '%s', but must be %s", name, option->name, value,
                     cli_rule(option, rule, sizeof rule));
        return false;
    }
    return true;
}

int cli_parse_given(const cli_command *command, void *values, int argc, char **argv, cli_given *given)
{
    parse p = { command, values, argc, 1, argv, command->operands, given, "" };
    snprintf(p.remedy, sizeof p.remedy, "see krait %s --help", command->name);
    set_fallbacks(command, values);
    bool only_operands = false;
    for (; p.at < argc; p.at++) {
        const char *word = argv[p.at];
        if (only_operands || word[0] != '-' || !word[1]) {
            if (!take_operand(&p, word)) return CLI_USAGE;
        } else if (!strcmp(word, "--")) {
            only_operands = true;
        } else if (!strcmp(word, "--help") || !strcmp(word, "-h")) {
            cli_help(command);
            return CLI_OK;
        } else if (!take_option(&p)) {
            return CLI_USAGE;
        }
    }
    if (is_missing(&p)) {
        cli_complain(p.remedy, "%s: %s is missing: %s", command->name, p.operand->name, p.operand->help);
        return CLI_USAGE;
    }
    return -1;
}

int cli_parse(const cli_command *command, void *values, int argc, char **argv)
{
    return cli_parse_given(command, values, argc, argv, NULL);
}

cli_origin cli_origin_of(const cli_command *command, const cli_given *given, const char *name)
{
    const cli_option *option = cli_find_option(command, name, strlen(name));
    return option ? (cli_origin)given->origin[option - command->options] : CLI_FALLBACK;
}

/* Has the option's field the value that `text` stands for? */
static bool has_value(const cli_option *option, const void *values, const char *text)
{
    const void *field = (const char *)values + option->offset;
    union {
        bool flag;
        int whole;
        int64_t integer;
        uint64_t natural;
        double real;
        const char *text;
        cli_texts texts;
    } other = { .integer = 0 };
    cli_option here = *option;
    here.offset = 0;
    if (cli_kind_of(option) == CLI_TEXTS || !cli_set(&here, &other, text)) return false;
    switch (cli_kind_of(option)) {
    case CLI_FLAG: return *(const bool *)field == other.flag;
    case CLI_INT:
    case CLI_CHOICE: return *(const int *)field == other.whole;
    case CLI_I64: return *(const int64_t *)field == other.integer;
    case CLI_U64: return *(const uint64_t *)field == other.natural;
    case CLI_REAL: return *(const double *)field == other.real;
    default: return *(const char *const *)field && !strcmp(*(const char *const *)field, other.text);
    }
}

bool cli_is_given(const cli_command *command, const void *values, const cli_given *given, const char *name)
{
    const cli_option *option = cli_find_option(command, name, strlen(name));
    const cli_origin origin = cli_origin_of(command, given, name);
    if (!option || origin == CLI_FALLBACK) return false;
    const char *unset = cli_kind_of(option) == CLI_FLAG ? "false" : option->fallback;
    if (cli_kind_of(option) == CLI_FLAG) return !has_value(option, values, unset);
    return origin == CLI_LINE || !unset || !has_value(option, values, unset);
}

/* ---- help ---- */

const char *cli_label(const cli_option *option, char *text, size_t bytes)
{
    int n = 0;
    if (option->letter) n = snprintf(text, bytes, "-%c, ", option->letter);
    snprintf(text + n, bytes - (size_t)n, "--%s%s%s", option->name, option->arg ? " " : "",
             option->arg ? option->arg : "");
    return text;
}

/* A longer label has its own line. */
enum { MAX_LABEL = 44 };

static void help_option(const cli_command *command, const cli_option *option, int width)
{
    char label[120];
    if (cli_kind_of(option) == CLI_HEADING) {
        printf("%s%s:\n", option == command->options ? "" : "\n", option->help);
        return;
    }
    cli_label(option, label, sizeof label);
    if ((int)strlen(label) > width) printf("  %s\n  %*s  %s", label, width, "", option->help);
    else printf("  %-*s  %s", width, label, option->help);
    if (option->fallback) printf(" (default %s)", option->fallback);
    putchar('\n');
}

void cli_help(const cli_command *command)
{
    char label[120];
    int width = 0;
    printf("usage: krait %s", command->name);
    for (const cli_operand *o = command->operands; o && o->name; o++) {
        printf(o->is_optional ? " [%s]" : " %s", o->name);
        if ((int)strlen(o->name) > width) width = (int)strlen(o->name);
    }
    for (const cli_option *option = command->options; option->name; option++) {
        const int length = (int)strlen(cli_label(option, label, sizeof label));
        if (length > width && length <= MAX_LABEL) width = length;
    }
    printf("%s\n\n%s\n", command->options->name ? " [options]" : "", command->summary);
    if (command->operands) putchar('\n');
    for (const cli_operand *o = command->operands; o && o->name; o++) printf("  %-*s  %s\n", width, o->name, o->help);
    if (command->options->name) putchar('\n');
    for (const cli_option *option = command->options; option->name; option++) help_option(command, option, width);
    if (command->more) printf("\n%s", command->more);
}
