/* main.c - krait COMMAND [options]: finds the command and runs it. */
#include "cli/common/commands.h"
#include "lab/cmd_task.h"

#include <krait/base.h>

#include <stdio.h>
#include <string.h>

static const cli_command *const commands[] = {
    &cli_new,      &cli_train,   &cli_launch, &cli_task,           &cli_generate, &cli_eval,
    &cli_tokenize, &cli_convert, &cli_info,   &cli_report_command, &cli_plan,     &cli_check,
};
enum { NCOMMANDS = sizeof commands / sizeof *commands };

static const cli_command *find_command(const char *name)
{
    for (int i = 0; i < NCOMMANDS; i++) {
        if (!strcmp(commands[i]->name, name)) return commands[i];
    }
    return NULL;
}

static void list_commands(FILE *out, const char *indent)
{
    for (int i = 0; i < NCOMMANDS; i++) fprintf(out, "%s%-8s %s\n", indent, commands[i]->name, commands[i]->summary);
}

static int unknown_command(const char *name)
{
    cli_complain("the commands are:", "unknown command '%s'", name);
    list_commands(stderr, "         ");
    return CLI_USAGE;
}

static void help_all(FILE *out)
{
    fputs("usage: krait COMMAND [options]\n\n", out);
    list_commands(out, "  ");
    fputs("  help     help [--man] [COMMAND]: this list, or the options of a command; or its manual page, for man -l "
          "-\n\n"
          "krait --version prints the version.\n",
          out);
}

static bool is_help(const char *word)
{
    return !strcmp(word, "help") || !strcmp(word, "--help") || !strcmp(word, "-h");
}

/* help [--man] [COMMAND], or [task NAME]; argv[0] is help. `help help` and `help --help` are `help`. */
static int help(int argc, char **argv)
{
    const bool is_man = argc > 1 && !strcmp(argv[1], "--man");
    const char *name = argc > 1 + is_man ? argv[1 + is_man] : NULL;
    if (name && is_help(name)) name = NULL;
    const cli_command *command = name ? find_command(name) : NULL;
    if (name && !command) return unknown_command(name);
    if (command == &cli_task && argc > 2 + is_man && !(command = cli_find_task(argv[2 + is_man]))) return CLI_USAGE;
    if (is_man && command) cli_man(command);
    else if (is_man) cli_man_all(commands, NCOMMANDS);
    else if (command == &cli_task) cli_list_tasks();
    else if (command) cli_help(command);
    else help_all(stdout);
    return CLI_OK;
}

int main(int argc, char **argv)
{
    for (int i = 0; i < NCOMMANDS; i++)
        if (commands[i]->prepare) commands[i]->prepare();
    if (argc < 2) {
        help_all(stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (!strcmp(name, "--version")) {
        printf("krait %s\n", kr_version());
        return CLI_OK;
    }
    if (is_help(name)) return help(argc - 1, argv + 1);
    const cli_command *command = find_command(name);
    return command ? command->run(argc - 1, argv + 1) : unknown_command(name);
}
