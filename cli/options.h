/* options.h - the options of a subcommand as one table, from which come the parser, its complaints and --help.
 *
 *   typedef struct hello_values { int times; const char *name; } hello_values;
 *   static const cli_option options[] = {
 *       { "times", "N", CLI_INT, offsetof(hello_values, times), "1", 1, "how often" },
 *       { "name", "TEXT", CLI_TEXT, offsetof(hello_values, name), NULL, 0, "whom to greet" },
 *       { 0 },
 *   };
 */
#ifndef KR_CLI_OPTIONS_H
#define KR_CLI_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

/* Exit statuses of the program. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

typedef enum cli_kind {
    CLI_INT,  /* int */
    CLI_U64,  /* uint64_t */
    CLI_TEXT, /* const char * */
} cli_kind;

typedef struct cli_option {
    const char *name; /* without its dashes; NULL ends the table */
    const char *arg;  /* what the help calls the value */
    cli_kind kind;
    size_t offset;        /* of the field in the values struct */
    const char *fallback; /* the value when the option is not given, as one would type it; NULL: 0 or NULL */
    int least;            /* CLI_INT: the smallest value that is allowed */
    const char *help;
} cli_option;

typedef struct cli_command {
    const char *name;
    const char *summary; /* one line */
    const cli_option *options;
    int (*run)(int argc, char **argv); /* argv[0] is the command's name; returns the exit status */
} cli_command;

/* Fills `values` from the defaults and from argv[1..argc). Returns -1 to go on, or the exit status to end with: after
 * --help (CLI_OK) or a complaint (CLI_USAGE). */
int cli_parse(const cli_command *command, void *values, int argc, char **argv);

/* The help of one command, on stdout. */
void cli_help(const cli_command *command);

/* "krait: TEXT" on stderr, with the remedy (may be NULL) indented on the next line. */
void cli_complain(const char *remedy, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

#endif
