/* cmd_train.h - the parts of krait train: its options, its data, its model, and the run itself. */
#ifndef KR_CLI_COMMANDS_CMD_TRAIN_H
#define KR_CLI_COMMANDS_CMD_TRAIN_H

#include "cli/common/cli_files.h"
#include "cli/common/language.h"
#include "cli/common/live.h"
#include "cli/common/cli_machine.h"
#include "cli/common/metrics.h"
#include "cli/common/model_options.h"
#include "cli/common/options_json.h"

#include <krait/train.h>

typedef struct train_values {
    /* folders and files */
    const char *out, *resume, *config, *model_folder;
    bool force, describes, is_quiet;
    double log_seconds;

    /* data */
    const char *data, *validation, *field, *tokenizer, *separator, *document_end;
    const char *labels, *validation_labels, *patch;
    const char *features, *targets, *sequence, *delimiter;
    const char *data_budget;
    int kind;
    bool is_special, is_class, has_no_header, has_no_pack, has_no_resets, carry, score_last;
    int id_bytes, scaling, missing;
    int64_t separator_id, batch, length;
    double mean, deviation, validation_fraction;

    /* loss */
    int loss;
    double label_smoothing, huber_delta, quantile, dropout;

    /* steps */
    int64_t steps, epochs, accumulate, micro_batches, warmup, decay_steps;
    int reduce;                        /* kr_sum_order */
    int sequence_ranks, sequence_mode; /* kr_seq_mode */
    double lr, min_lr, ema;
    int schedule, decay_shape;

    /* optimizer */
    int optimizer, muon_ratio, muon_steps;
    double weight_decay, beta1, beta2, eps, momentum, dampening, muon_decay, clip_norm, clip_value;
    bool decay_all, is_cautious, is_nesterov, has_no_nesterov;
    cli_texts muon_without;

    /* evaluation, checkpoints, samples */
    int64_t eval_every, eval_batches, save_every;
    int keep_last;
    bool has_no_best;
    int64_t sample_every, sample_tokens;
    const char *sample_prompt;
    double sample_temperature;

    /* model and machine */
    cli_model_values model;
    const char *memory_budget;
    int64_t grad_horizon; /* KR_NO_HORIZON: all layers */
    uint64_t seed;
    cli_machine machine;
} train_values;

typedef enum train_kind { TRAIN_TEXT, TRAIN_JSONL, TRAIN_TOKENS, TRAIN_RAW, TRAIN_CSV, TRAIN_IDX } train_kind;

/* Model and data of a run. */
typedef struct train_setup {
    const cli_command *command;
    const train_values *values;
    const cli_given *given;
    bool *is_refused; /* there was a mistake on the line */
    kr_ctx *ctx;
    kr_launch launch; /* rank and number of ranks: 0 and 1 without a launcher */
    kr_comm *comm;    /* NULL: one rank */
    train_kind kind;
    char checkpoint[CLI_PATH_BYTES]; /* checkpoint to resume from; "": a new run */

    cli_language language; /* of the model to begin from, or of the checkpoint */
    kr_tokenizer *own_tok; /* where there is no such model */
    const kr_tokenizer *tok;
    char tokenizer_path[CLI_PATH_BYTES]; /* "": bytes, or none */

    kr_source *source, *validation_source; /* the second may be NULL */
    kr_source_info info;
    kr_loader *loader, *validation; /* the second may be NULL */
    double fraction;                /* of the data that is kept back for validation */
    int64_t steps;                  /* of the run */

    kr_model *own_model;
    kr_model *model; /* the own one, or that of `language` */
    kr_loss_kind loss;
    char remark[160]; /* note about the data, "" or "no validation: ..." */
} train_setup;

/* ---- options (train_options.c) ---- */

extern cli_option train_options[];

/* Puts the library's defaults into the table, where it has none. */
void train_take_defaults(void);

/* Does this process write the run's files and say what happens? */
static inline bool train_is_first(const train_setup *s)
{
    return s->launch.rank == 0;
}

/* Is an option set, by the line or by a file, to something else than its default? */
bool train_is_given(const train_setup *s, const char *name);

/* Prints the error "train: TEXT" and a hint, and sets *is_refused. Always false. */
bool train_refuse(const train_setup *s, const char *format, ...) KR_PRINTF(2, 3);

/* False after an error message: options that have no effect with the kind of data, the optimizer and so on. Both need
 * s->kind, the second one the source's info. */
bool train_check(const train_setup *s);
bool train_check_source(const train_setup *s);

/* A run's options, and the memory they point to. */
typedef struct run_options {
    kr_train_options run;
    kr_optimizer_options optimizer;
    kr_lr_schedule schedule;
} run_options;

/* The library's options from the command line; needs s->steps. */
void train_fill(const train_setup *s, run_options *all);

/* ---- data (train_data.c) ---- */

/* By --data-kind, the beginning of the file, or its name. False after an error message. */
bool train_find_kind(train_setup *s);

/* Sources; then, with the model known, loaders. False after an error message. */
bool train_open_source(train_setup *s);
bool train_open_loaders(train_setup *s);

/* Where the columns of a table have scales or means: computed from the rows for training, or those of the run that is
 * resumed. path becomes the file for them in the run's folder, "" where there are none. */
bool train_fit_columns(train_setup *s, char *path);

/* Writes them, and applies them to the validation data. */
bool train_keep_columns(const train_setup *s, const char *path);

/* "validation error in the units of the file (rms): temperature 1.2, wind 0.3" into text, computed anew with the last
 * weights; "" where targets are not numbers, have no scales, or there is nothing to validate on. */
bool train_errors_text(const train_setup *s, char *text, size_t bytes);

/* "notes.txt: 1.20 M tokens, ..." into text; returns text. */
const char *train_data_text(const train_setup *s, const cli_live *live, char *text, size_t bytes);

/* ---- model (train_model.c) ---- */

/* Opens the inputs other than data: the initial model or the checkpoint, and the tokenizer. */
bool train_open_language(train_setup *s);

/* Creates the model for the opened data. */
bool train_open_model(train_setup *s);

/* "mamba3 - 4 layers - 3.4 M parameters - byte tokens - cpu avx512 x2" into text; returns text. */
const char *train_model_text(const train_setup *s, const cli_live *live, char *text, size_t bytes);

/* ---- the run's folder (train_folder.c) ---- */

/* The newest checkpoint of a run, "runs/notes/checkpoints/step-400", into path ("": none); false after an error
 * message. */
bool train_newest(const char *folder, char *path);

/* The file by which a folder holds a run or a model; NULL: none. */
const char *train_run_file(const char *folder);

/* Removes all files of a run from its folder, and nothing else. */
bool train_clear(const char *folder);

/* ---- samples (train_sample.c) ---- */

/* Text that the model makes up at this step, on stdout unless quiet, and appended to samples.txt. Collective: rank 0 does
 * it, with the averaged weights of all. */
bool train_sample(const train_setup *s, cli_live *live, kr_trainer *trainer, int64_t step);

/* Truncates samples.txt after this step; *last is the step of the last sample, -1: none. */
bool train_sample_begin(const train_setup *s, int64_t step, int64_t *last);

/* ---- the run (train_run.c) ---- */

/* Trains; returns the exit status. */
int train_run(train_setup *s);

#endif
