/* main.c - krait COMMAND [options]: finds the command and runs it. */
#include "cli/commands.h"

#include <krait/base.h>

#include <stdio.h>
#include <string.h>

static const cli_command *const commands[] = { &cli_new,     &cli_generate, &cli_eval, &cli_tokenize,
                                               &cli_convert, &cli_info,     &cli_check };
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
    cli_complain("the commands are:", "there is no command '%s'", name);
    list_commands(stderr, "         ");
    return CLI_USAGE;
}

static void help_all(FILE *out)
{
    fputs("usage: krait COMMAND [options]\n\n", out);
    list_commands(out, "  ");
    fputs("  help     help [COMMAND]: this list, or the options of a command\n\n"
          "krait --version prints the version.\n",
          out);
}

static int help(int argc, char **argv)
{
    if (argc < 2) {
        help_all(stdout);
        return CLI_OK;
    }
    const cli_command *command = find_command(argv[1]);
    if (!command) return unknown_command(argv[1]);
    cli_help(command);
    return CLI_OK;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        help_all(stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (!strcmp(name, "--version")) {
        printf("krait %s\n", kr_version());
        return CLI_OK;
    }
    if (!strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h")) return help(argc - 1, argv + 1);
    const cli_command *command = find_command(name);
    return command ? command->run(argc - 1, argv + 1) : unknown_command(name);
}
