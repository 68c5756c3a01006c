/* cli_options.h - the options and operands of a subcommand as tables, which define the parser, its error messages,
 * --help, the manual page (options_man.c) and the members of a JSON file (options_json.h).
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
 * krait hello --times 3 Eve, krait hello Eve -n 3 --loud and krait hello --times=3 -- Eve are the same, except for
 * --loud. --loud=false overrides a file.
 */
#ifndef KR_CLI_COMMON_CLI_OPTIONS_H
#define KR_CLI_COMMON_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exit statuses of the program. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* The values of a CLI_TEXTS option. */
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
    CLI_HEADING /* not an option: `help` is the heading of those that follow. The name is "" */
} cli_kind;

/* Added to the kind of an option, CLI_I64 | CLI_FIXED. */
enum {
    CLI_FIXED = 1 << 8,             /* belongs to a run from its first step: --resume refuses another value */
    CLI_SHAPE = 1 << 9 | CLI_FIXED, /* part of the architecture: a model that is loaded has its own */
};

typedef struct cli_option {
    const char *name;     /* without its dashes; NULL ends the table */
    char letter;          /* a short form, -n; 0: none */
    const char *arg;      /* name of the value in the help; NULL for a flag */
    int kind;             /* a cli_kind, with marks */
    size_t offset;        /* of the field in the values struct, which begins as zeros */
    const char *fallback; /* the value when the option is not given, as one would type it; NULL: 0 or NULL */
    int least;            /* numbers: the smallest value that is allowed */
    const char *help;
} cli_option;

/* An argument without a dash; "-" alone is an operand too. A const char * in the values struct; one whose name ends
 * with "..." is the last and takes all remaining arguments, into a cli_texts. */
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
    const char *more;                  /* NULL, or the last lines of the help */
    const char *line_only;             /* NULL, or names of options that have no place in a JSON file: "config,force" */
    void (*prepare)(void);             /* NULL, or a function that completes the table before it is read */
} cli_command;

/* Where the values of a command come from, by the index of the option in its table; initially zeros. */
enum { CLI_MAX_OPTIONS = 160 };
typedef enum cli_origin { CLI_FALLBACK = 0, CLI_LINE = 1, CLI_FILE = 2 } cli_origin;
typedef struct cli_given {
    unsigned char origin[CLI_MAX_OPTIONS];
} cli_given;

/* Fills `values` from the defaults and from argv[1..argc), and *given, which may be NULL. Returns -1 to continue, or
 * the exit status: after --help (CLI_OK) or an error message (CLI_USAGE). */
int cli_parse(const cli_command *command, void *values, int argc, char **argv);
int cli_parse_given(const cli_command *command, void *values, int argc, char **argv, cli_given *given);

/* An option without its marks: how its value is read. Does it have all bits of a mark? */
cli_kind cli_kind_of(const cli_option *option);
bool cli_has_mark(const cli_option *option, int mark);

/* The option of a name; NULL: there is none. Where its value comes from. */
const cli_option *cli_find_option(const cli_command *command, const char *name, size_t length);
cli_origin cli_origin_of(const cli_command *command, const cli_given *given, const char *name);

/* Was it asked for: on the line, or by a file that says something else than the fallback? Files hold all values. */
bool cli_is_given(const cli_command *command, const void *values, const cli_given *given, const char *name);

/* The help of one command, on stdout. */
void cli_help(const cli_command *command);

/* The manual page of one command, or of the program, as roff on stdout. */
void cli_man(const cli_command *command);
void cli_man_all(const cli_command *const *commands, int count);

/* Writes `text` into the option's field; false if it is no value of the option's kind. Texts must outlive `values`. The
 * text of a flag is "true" or "false". */
bool cli_set(const cli_option *option, void *values, const char *text);

/* The rule of a value, "one of a|b", into text; returns text. */
const char *cli_rule(const cli_option *option, char *text, size_t bytes);

/* "-n, --name ARG" into text; returns text. */
const char *cli_label(const cli_option *option, char *text, size_t bytes);

/* "krait: TEXT" on stderr, with the remedy (may be NULL) indented on the next line. */
void cli_complain(const char *remedy, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

#endif
