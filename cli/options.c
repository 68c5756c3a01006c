/* options.c - reads, checks and explains the options of a subcommand from its table. */
#include "cli/options.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
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

/* Writes `text` into the option's field; false if it is not a value of the option's kind. */
static bool set_value(const cli_option *option, void *values, const char *text)
{
    void *field = (char *)values + option->offset;
    char *end = NULL;
    errno = 0;
    switch (option->kind) {
    case CLI_INT: {
        long value = strtol(text, &end, 10);
        if (errno || end == text || *end || value < option->least || value > INT_MAX) return false;
        *(int *)field = (int)value;
        return true;
    }
    case CLI_U64: {
        unsigned long long value = strtoull(text, &end, 10);
        if (errno || end == text || *end || strchr(text, '-')) return false;
        *(uint64_t *)field = value;
        return true;
    }
    case CLI_TEXT:
        if (!*text) return false;
        *(const char **)field = text;
        return true;
    }
    return false;
}

static const char *rule_text(const cli_option *option, char *text, size_t bytes)
{
    if (option->kind == CLI_INT) snprintf(text, bytes, "a whole number of at least %d", option->least);
    else if (option->kind == CLI_U64) snprintf(text, bytes, "a whole number from 0 to 2^64 - 1");
    else snprintf(text, bytes, "a text that is not empty");
    return text;
}

/* The option that `word` ("--name" or "--name=value") means; *value is what follows '=', or NULL. */
static const cli_option *find_option(const cli_command *command, const char *word, const char **value)
{
    const char *name = word + 2;
    size_t length = strcspn(name, "=");
    *value = name[length] ? name + length + 1 : NULL;
    for (const cli_option *option = command->options; option->name; option++) {
        if (strlen(option->name) == length && !memcmp(option->name, name, length)) return option;
    }
    return NULL;
}

int cli_parse(const cli_command *command, void *values, int argc, char **argv)
{
    char remedy[80], rule[80];
    snprintf(remedy, sizeof remedy, "see krait %s --help", command->name);
    for (const cli_option *option = command->options; option->name; option++) {
        if (option->fallback) set_value(option, values, option->fallback);
    }
    for (int i = 1; i < argc; i++) {
        const char *value;
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            cli_help(command);
            return CLI_OK;
        }
        if (strncmp(argv[i], "--", 2) != 0) {
            cli_complain(remedy, "%s: does not know what to do with '%s'", command->name, argv[i]);
            return CLI_USAGE;
        }
        const cli_option *option = find_option(command, argv[i], &value);
        if (!option) {
            cli_complain(remedy, "%s: there is no option %s", command->name, argv[i]);
            return CLI_USAGE;
        }
        if (!value && i + 1 < argc) value = argv[++i];
        if (!value) {
            cli_complain(remedy, "%s: --%s wants a value, %s", command->name, option->name, option->arg);
            return CLI_USAGE;
        }
        if (!set_value(option, values, value)) {
            cli_complain(remedy, "%s: --%s is '%s', but must be %s", command->name, option->name, value,
                         rule_text(option, rule, sizeof rule));
            return CLI_USAGE;
        }
    }
    return -1;
}

static int label_width(const cli_option *option)
{
    return (int)(strlen(option->name) + 1 + strlen(option->arg));
}

void cli_help(const cli_command *command)
{
    int width = 0;
    for (const cli_option *option = command->options; option->name; option++) {
        if (label_width(option) > width) width = label_width(option);
    }
    printf("usage: krait %s%s\n\n%s\n", command->name, command->options->name ? " [options]" : "", command->summary);
    if (command->options->name) putchar('\n');
    for (const cli_option *option = command->options; option->name; option++) {
        printf("  --%s %s%*s  %s", option->name, option->arg, width - label_width(option), "", option->help);
        if (option->fallback) printf(" (default %s)", option->fallback);
        putchar('\n');
    }
}
