/* options_man.c - manual pages out of the tables of the commands, as roff with the macros of man(7). */
#include "cli/common/cli_options.h"

#include <krait/base.h>

#include <ctype.h>
#include <stdio.h>

/* Text as roff shows it: a dash is a dash, and nothing at the beginning of a line is taken for a request. */
static void put_text(const char *text)
{
    bool begins = true;
    for (; *text; text++) {
        if (begins && (*text == '.' || *text == '\'')) fputs("\\&", stdout);
        if (*text == '-') fputs("\\-", stdout);
        else if (*text == '\\') fputs("\\e", stdout);
        else putchar(*text);
        begins = *text == '\n';
    }
}

static void put_upper(const char *text)
{
    for (; *text; text++) putchar(toupper((unsigned char)*text));
}

/* "krait-train \- SUMMARY" under NAME, which makewhatis and apropos read. */
static void put_head(const char *name, const char *summary)
{
    fputs(".TH KRAIT", stdout);
    if (name) putchar('-');
    if (name) put_upper(name);
    printf(" 1 \"\" \"krait %s\" \"Krait\"\n.SH NAME\nkrait", kr_version());
    if (name) fputs("\\-", stdout);
    if (name) put_text(name);
    fputs(" \\- ", stdout);
    put_text(summary);
    putchar('\n');
}

static void put_option(const cli_option *option)
{
    if (cli_kind_of(option) == CLI_HEADING) {
        printf(".SS %s\n", option->help);
        return;
    }
    fputs(".TP\n", stdout);
    if (option->letter) printf("\\fB\\-%c\\fR, ", option->letter);
    fputs("\\fB\\-\\-", stdout);
    put_text(option->name);
    fputs("\\fR", stdout);
    if (option->arg) {
        fputs(" \\fI", stdout);
        put_text(option->arg);
        fputs("\\fR", stdout);
    }
    putchar('\n');
    put_text(option->help);
    if (option->fallback) {
        fputs(" (default ", stdout);
        put_text(option->fallback);
        putchar(')');
    }
    putchar('\n');
}

void cli_man(const cli_command *command)
{
    put_head(command->name, command->summary);
    fputs(".SH SYNOPSIS\n.B krait ", stdout);
    put_text(command->name);
    putchar('\n');
    for (const cli_operand *o = command->operands; o && o->name; o++)
        printf(o->is_optional ? ".RI [ %s ]\n" : ".I %s\n", o->name);
    if (command->options->name) fputs(".RI [ options ]\n", stdout);
    if (command->operands && command->operands->name) fputs(".SH OPERANDS\n", stdout);
    for (const cli_operand *o = command->operands; o && o->name; o++) {
        printf(".TP\n\\fI%s\\fR\n", o->name);
        put_text(o->help);
        putchar('\n');
    }
    if (command->options->name) fputs(".SH OPTIONS\n", stdout);
    for (const cli_option *option = command->options; option->name; option++) put_option(option);
    if (command->more) {
        fputs(".SH NOTES\n.nf\n", stdout);
        put_text(command->more);
        fputs(".fi\n", stdout);
    }
    fputs(".SH EXIT STATUS\n0: success. 1: failure, with the reason on stderr. 2: usage error.\n"
          ".SH SEE ALSO\n.BR krait (1)\n",
          stdout);
}

void cli_man_all(const cli_command *const *commands, int count)
{
    put_head(NULL, "train and run Mamba state space models");
    fputs(".SH SYNOPSIS\n.B krait\n.I COMMAND\n.RI [ options ]\n.SH COMMANDS\n", stdout);
    for (int i = 0; i < count; i++) {
        fputs(".TP\n\\fB", stdout);
        put_text(commands[i]->name);
        fputs("\\fR\n", stdout);
        put_text(commands[i]->summary);
        putchar('\n');
    }
    fputs(".TP\n\\fBhelp\\fR [\\fB\\-\\-man\\fR] [\\fICOMMAND\\fR]\n"
          "the commands, or the options of one; with \\-\\-man as a manual page\n"
          ".SH OPTIONS\n.TP\n\\fB\\-\\-version\\fR\nprints the version\n"
          ".SH EXIT STATUS\n0: success. 1: failure, with the reason on stderr. 2: usage error.\n"
          ".SH SEE ALSO\n",
          stdout);
    for (int i = 0; i < count; i++) {
        fputs(".BR krait\\-", stdout);
        put_text(commands[i]->name);
        printf(" (1)%s\n", i + 1 < count ? "," : "");
    }
}
