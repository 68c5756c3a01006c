/* options.h - the options and operands of a subcommand as tables, from which come the parser, its complaints and --help.
 *
 *   typedef struct hello_values { const char *name; int times; bool loud; } hello_values;
 *   static const cli_operand operands[] = {
 *       { "NAME", offsetof(hello_values, name), false, "whom to greet" },
 *       { 0 },
 *   };
 *   static const cli_option options[] = {
 *       { "times", 'n', "N", CLI_INT, offsetof(hello_values, times), "1", 1, "how often" },
 *       { "loud", 0, NULL, CLI_FLAG, offsetof(hello_values, loud), NULL, 0, "in capitals" },
 *       { 0 },
 *   };
 *
 * krait hello --times 3 Eve, krait hello Eve -n 3 --loud and krait hello --times=3 -- Eve are the same to it, but for
 * the noise.
 */
#ifndef KR_CLI_OPTIONS_H
#define KR_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exit statuses of the program. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* What several values of a CLI_TEXTS option are read into. */
enum { CLI_MAX_TEXTS = 64 };
typedef struct cli_texts {
    int count;
    const char *text[CLI_MAX_TEXTS];
} cli_texts;

typedef enum cli_kind {
    CLI_FLAG,   /* bool; takes no value */
    CLI_INT,    /* int */
    CLI_I64,    /* int64_t */
    CLI_U64,    /* uint64_t */
    CLI_REAL,   /* double */
    CLI_TEXT,   /* const char *, not empty */
    CLI_ANY,    /* const char *, that may be empty */
    CLI_TEXTS,  /* cli_texts: may be given several times */
    CLI_CHOICE, /* int: which of the words in arg, "f32|bf16|f16"; -1 if none is given and there is no fallback */
} cli_kind;

typedef struct cli_option {
    const char *name; /* without its dashes; NULL ends the table */
    char letter;      /* a short form, -n; 0: none */
    const char *arg;  /* what the help calls the value; NULL for a flag */
    cli_kind kind;
    size_t offset;        /* of the field in the values struct, which begins as zeros */
    const char *fallback; /* the value when the option is not given, as one would type it; NULL: 0 or NULL */
    int least;            /* numbers: the smallest value that is allowed */
    const char *help;
} cli_option;

/* What stands on the line without a dash; "-" alone is an operand too. A const char * in the values struct. */
typedef struct cli_operand {
    const char *name; /* in capitals; NULL ends the table */
    size_t offset;
    bool is_optional; /* only after those that are not */
    const char *help;
} cli_operand;

typedef struct cli_command {
    const char *name;
    const char *summary; /* one line */
    const cli_option *options;
    int (*run)(int argc, char **argv); /* argv[0] is the command's name; returns the exit status */
    const cli_operand *operands;       /* NULL: none */
    const char *more;                  /* NULL, or what the help ends with, lines of text */
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
