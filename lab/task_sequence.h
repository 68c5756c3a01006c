/* task_sequence.h - shared by the tasks over symbols, reset-majority, reset-rotor, reset-spinor and state-tracking:
 * their options, their training run, and the final table.
 *
 * A run generates rows for training and, with another seed, for evaluation, trains a network of one layer on the class
 * at each position, and is judged by its accuracy in each family of sequences separately.
 */
#ifndef KR_LAB_TASK_SEQUENCE_H
#define KR_LAB_TASK_SEQUENCE_H

#include "cli/common/cli_machine.h"
#include "lab/cmd_task.h"

#include <krait/model.h>
#include "lab/tasks.h"

/* Evaluated families, including the mixed one; the reference's figures are of all others. */
enum { TASK_MOST_FAMILIES = 4, TASK_FIGURES = 3 };

typedef enum task_rotation { TASK_ROTATION_NONE, TASK_ROTATION_COMPLEX, TASK_ROTATION_QUATERNION } task_rotation;

typedef struct task_values {
    const char *out, *eval, *resume;
    int family, rotation; /* kr_family and task_rotation; rotation -1: not given */
    int64_t epochs, batch, length, rows, eval_rows, warmup;
    int restarts;
    double lr, min_lr, weight_decay; /* min_lr NaN: as lr */
    uint64_t seed;
    bool has_fixed_decay, all_epochs, baselines, force;
    cli_machine machine;
} task_values;

/* Values before they are parsed. */
#define TASK_VALUES_INIT                                                                                               \
    {                                                                                                                  \
        .min_lr = NAN                                                                                                  \
    }

/* Option rows; the parts that differ between tasks are arguments, in command-line syntax. */
#define TASK_AT(field) offsetof(task_values, field)
#define TASK_OPTIONS(family_, rotations_, epochs_, lr_, min_lr_, warmup_, decay_, length_, rows_, eval_rows_)           \
    {                                                                                                                   \
        "model-family", 0, "mamba1|mamba2|mamba3", CLI_CHOICE, TASK_AT(family), family_, 0, "block family of the layer" \
    },                                                                                                                  \
        { "rotation",                                                                                                   \
          0,                                                                                                            \
          "none|complex|quaternion",                                                                                    \
          CLI_CHOICE,                                                                                                   \
          TASK_AT(rotation),                                                                                            \
          NULL,                                                                                                         \
          0,                                                                                                            \
          "mamba3: rotation of the state (default " rotations_ ")" },                                                   \
        { "fixed-decay",                                                                                                \
          0,                                                                                                            \
          NULL,                                                                                                         \
          CLI_FLAG,                                                                                                     \
          TASK_AT(has_fixed_decay),                                                                                     \
          NULL,                                                                                                         \
          0,                                                                                                            \
          "make the decay of the state independent of the input" },                                                     \
        { "epochs", 0, "N", CLI_I64, TASK_AT(epochs), epochs_, 0, "number of epochs; 0: no training" },                 \
        { "batch", 0, "N", CLI_I64, TASK_AT(batch), "64", 1, "batch size (rows)" },                                     \
        { "lr", 0, "X", CLI_REAL, TASK_AT(lr), lr_, 0, "maximum learning rate" },                                       \
        { "min-lr",        0,       "X", CLI_REAL,                                                                      \
          TASK_AT(min_lr), min_lr_, 0,   "minimum learning rate, at the end of the cosine schedule" },                  \
        { "warmup", 0, "N", CLI_I64, TASK_AT(warmup), warmup_, 0, "warm-up steps" },                                    \
        { "weight-decay", 0, "X", CLI_REAL, TASK_AT(weight_decay), decay_, 0, "weight decay of all parameters" },       \
        { "seed", 0, "N", CLI_U64, TASK_AT(seed), "0", 0, "random seed of the initial weights and the order of rows" }, \
        { "restarts",        0,   "N", CLI_INT,                                                                         \
          TASK_AT(restarts), "0", 0,   "if a run ends below 100 %, train again with the next seed, at most N times" },  \
        { "all-epochs",        0,    NULL, CLI_FLAG,                                                                    \
          TASK_AT(all_epochs), NULL, 0,    "do not stop early after two evaluations without an error" },                \
        { "length", 0, "N", CLI_I64, TASK_AT(length), length_, 1, "symbols per row" },                                  \
        { "rows", 0, "N", CLI_I64, TASK_AT(rows), rows_, 1, "rows for training" },                                      \
        { "eval-rows", 0, "N", CLI_I64, TASK_AT(eval_rows), eval_rows_, 1, "rows for the evaluation, of each family" }, \
        { "baselines",        0,    NULL, CLI_FLAG,                                                                     \
          TASK_AT(baselines), NULL, 0,    "also print baselines that lack what the task needs" },                       \
        { "out", 0, "DIR", CLI_TEXT, TASK_AT(out), NULL, 0, "folder for the model, checkpoints, metrics and report" },  \
        { "force", 0, NULL, CLI_FLAG, TASK_AT(force), NULL, 0, "replace an existing run in the folder" },               \
        { "resume", 0, "DIR", CLI_TEXT, TASK_AT(resume), NULL, 0, "resume the run in this folder" },                    \
        { "eval", 0, "DIR", CLI_TEXT, TASK_AT(eval), NULL, 0, "evaluate the run in this folder; no training" },         \
        { "threads",                                                                                                    \
          0,                                                                                                            \
          "N",                                                                                                          \
          CLI_INT,                                                                                                      \
          TASK_AT(machine.threads),                                                                                     \
          NULL,                                                                                                         \
          1,                                                                                                            \
          "number of threads (default 1: the tensors are small)" },                                                     \
        { "isa",                                                                                                        \
          0,                                                                                                            \
          "NAME",                                                                                                       \
          CLI_TEXT,                                                                                                     \
          TASK_AT(machine.isa),                                                                                         \
          NULL,                                                                                                         \
          0,                                                                                                            \
          "instruction set: ref, avx2, avx512 (default: the best available)" },                                         \
        CLI_DEVICE_OPTION(TASK_AT(machine.device))

/* Options that are not written to task.json. */
#define TASK_LINE_ONLY "out,force,resume,eval,baselines,threads,isa,device"

/* Percentages, or NaN where there is none. */
typedef struct task_figures {
    const char *what;
    double percent[TASK_MOST_FAMILIES];
} task_figures;

typedef struct task_spec {
    lab_task_kind kind;
    const cli_command *command;
    const char *target;                /* the training target, in words */
    task_rotation rotation;            /* of mamba3, if none is given */
    bool reports_positions;            /* report accuracy per position */
    double of_reference[TASK_FIGURES]; /* percent, with default training; NaN: none published */
    /* Sizes of the reference's network, for all three families. */
    void (*set_network)(kr_model_config *config, task_rotation rotation);
} task_spec;

/* Parses, trains or evaluates, and reports; returns the exit status. */
int task_sequence(const task_spec *spec, int argc, char **argv);

#endif
