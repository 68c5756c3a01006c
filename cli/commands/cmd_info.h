/* cmd_info.h - the parts of krait info: the machine, a model folder, a file. */
#ifndef KR_CLI_COMMANDS_CMD_INFO_H
#define KR_CLI_COMMANDS_CMD_INFO_H

#include "cli/common/cli_options.h"
#include "cli/commands/cmd_report.h"

#include <krait/model.h>

typedef struct info_values {
    const char *path;
    bool is_json, shows_all, shows_devices, shows_kernels;
    int64_t batch, tokens;
} info_values;

enum { INFO_MOST_NOTES = 100 };

/* Lines to be shown later: each once, the first ones if there are many. */
typedef struct info_notes {
    int count;
    int64_t more; /* entries that did not fit */
    char *text[INFO_MOST_NOTES];
} info_notes;
void info_note(info_notes *notes, const char *text);
void info_notes_free(info_notes *notes);

typedef struct info_run {
    kr_ctx *ctx;
    const info_values *values;
    cli_report report;
    info_notes warnings; /* warnings of the library ... */
    info_notes reasons;  /* ... and why it would not load */
} info_run;

/* Takes the error of the context as a reason, if there is one: true then, and the context is well again. */
bool info_take_error(info_run *run);

/* The exit status; CLI_FAILED after an error message, or where there are reasons. */
int info_folder(info_run *run);
int info_file(info_run *run);

/* Describes a config: family, sizes, and memory needs. */
void info_config(info_run *run, const kr_model_config *config);

/* Describes a tokenizer.json, or why it cannot be used; returns the number of tokens, -1 if it cannot be used. */
int64_t info_tokenizer(info_run *run, const char *path);

/* The end of every report: warnings, and whether it would load. */
void info_verdict(info_run *run, bool is_model);

#endif
