/* task_mnist.h - shared by the tasks over images of digits, mnist-class and mnist-ae: options, data, and training runs.
 *
 * Images come from IDX files, as MNIST's, or are drawn (lab/digits.h). They are read as rows of patches, from left to
 * right, then down. At an interval of steps some test images are evaluated and a picture of the first ones is written.
 */
#ifndef KR_LAB_TASK_MNIST_H
#define KR_LAB_TASK_MNIST_H

#include "cli/common/cli_machine.h"
#include "lab/png.h"
#include "lab/cmd_task.h"

#include <krait/train.h>

typedef enum mnist_rotation { MNIST_ROTATION_NONE, MNIST_ROTATION_COMPLEX, MNIST_ROTATION_QUATERNION } mnist_rotation;

typedef struct mnist_values {
    const char *images, *labels, *test_images, *test_labels, *patch;
    const char *out, *resume, *eval;
    int rotation, pool, modulation;
    int64_t latents, rows, eval_rows, epochs, batch, eval_every, eval_batches, stop_after;
    double lr, min_lr, warmup, weight_decay; /* the warm-up in epochs */
    uint64_t seed;
    bool has_muon, baselines, force;
    cli_machine machine;
} mnist_values;

/* Option rows of both; the differing parts are arguments, in command-line syntax. */
#define MNIST_AT(field) offsetof(mnist_values, field)
#define MNIST_OPTION(name, arg, kind, field, fallback, least, help)                                                    \
    {                                                                                                                  \
        name, 0, arg, kind, MNIST_AT(field), fallback, least, help                                                     \
    }
#define MNIST_OPTIONS(patch_, rotation_, lr_, min_lr_, warmup_)                                                        \
    MNIST_OPTION("images", "FILE", CLI_TEXT, images, NULL, 0,                                                          \
                 "IDX file of training images (default: synthetic digits)"),                                           \
        MNIST_OPTION("labels", "FILE", CLI_TEXT, labels, NULL, 0, "IDX file of their classes"),                        \
        MNIST_OPTION("test-images", "FILE", CLI_TEXT, test_images, NULL, 0,                                            \
                     "IDX file of test images (default: a tenth of --images)"),                                        \
        MNIST_OPTION("test-labels", "FILE", CLI_TEXT, test_labels, NULL, 0,                                            \
                     "IDX file of the classes of the test images"),                                                    \
        MNIST_OPTION("rows", "N", CLI_I64, rows, NULL, 1,                                                              \
                     "number of training images (default: all, or 10000 synthetic ones)"),                             \
        MNIST_OPTION("eval-rows", "N", CLI_I64, eval_rows, NULL, 1,                                                    \
                     "number of test images (default: all, or 1000 synthetic ones)"),                                  \
        MNIST_OPTION("patch", "HxW", CLI_TEXT, patch, patch_, 0, "patch size of a position, in pixels"),               \
        MNIST_OPTION("rotation", "none|complex|quaternion", CLI_CHOICE, rotation, rotation_, 0,                        \
                     "rotation of the state"),                                                                         \
        MNIST_OPTION("epochs", "N", CLI_I64, epochs, "3", 1, "number of epochs"),                                      \
        MNIST_OPTION("batch", "N", CLI_I64, batch, "16", 1, "batch size (images)"),                                    \
        MNIST_OPTION("lr", "X", CLI_REAL, lr, lr_, 0, "maximum learning rate"),                                        \
        MNIST_OPTION("min-lr", "X", CLI_REAL, min_lr, min_lr_, 0,                                                      \
                     "minimum learning rate, at the end of the cosine schedule"),                                      \
        MNIST_OPTION("warmup", "X", CLI_REAL, warmup, warmup_, 0, "warm-up epochs"),                                   \
        MNIST_OPTION("weight-decay", "X", CLI_REAL, weight_decay, "1e-4", 0, "weight decay of all parameters"),        \
        MNIST_OPTION("seed", "N", CLI_U64, seed, "0", 0,                                                               \
                     "random seed of the initial weights and the order of images"),                                    \
        MNIST_OPTION("eval-every", "N", CLI_I64, eval_every, "100", 1,                                                 \
                     "steps between evaluations, pictures and checkpoints"),                                           \
        MNIST_OPTION("eval-batches", "N", CLI_I64, eval_batches, "16", 1,                                              \
                     "batches per evaluation; the last evaluation uses all"),                                          \
        MNIST_OPTION("stop-after", "N", CLI_I64, stop_after, NULL, 1, "stop at this step, as after Ctrl-C"),           \
        MNIST_OPTION("baselines", NULL, CLI_FLAG, baselines, NULL, 0, "also print the results of simpler methods"),    \
        MNIST_OPTION("out", "DIR", CLI_TEXT, out, NULL, 0, "folder for weights, checkpoints, pictures and report"),    \
        MNIST_OPTION("force", NULL, CLI_FLAG, force, NULL, 0, "replace an existing run in the folder"),                \
        MNIST_OPTION("resume", "DIR", CLI_TEXT, resume, NULL, 0, "resume the run in this folder"),                     \
        MNIST_OPTION("eval", "DIR", CLI_TEXT, eval, NULL, 0, "evaluate the run in this folder; no training"),          \
        CLI_MACHINE_OPTIONS(mnist_values, machine)

/* Options that are not written to task.json. */
#define MNIST_LINE_ONLY "out,force,resume,eval,baselines,stop-after,threads,isa,device"

/* ---- data ---- */

typedef struct mnist_data {
    bool is_drawn;
    int64_t height, width, patch_height, patch_width;
    int64_t n_train, n_test;   /* images */
    kr_source *train, *test;   /* test NULL: a part of train */
    kr_loader *loader, *check; /* of the images for training, reshuffled each epoch; of the others, in order */
} mnist_data;

/* A feature is (byte / 255 - mean) / deviation. False after an error message or an error of the context; close in any
 * case. */
bool mnist_open(mnist_data *data, kr_ctx *ctx, const mnist_values *values, double mean, double deviation,
                bool has_labels);
void mnist_close(mnist_data *data);

/* "4x7"; false: invalid. */
bool mnist_patch_of(const char *text, int64_t *height, int64_t *width);

/* Image `row` of features [b s f] as bytes [height width], by value = (feature deviation + mean) 255. */
void mnist_pixels(const mnist_data *data, const float *x_bsf, int64_t row, double mean, double deviation,
                  unsigned char *grey);

/* ---- a run ---- */

typedef struct mnist_run mnist_run;

typedef struct mnist_kind {
    const cli_command *command;
    const char *target; /* the training target, in words */
    double mean, deviation;
    bool has_labels;
    void *(*create)(mnist_run *run);                  /* NULL after an error of the context */
    bool (*load)(mnist_run *run, const char *folder); /* its weights; false likewise */
    void (*destroy)(void *net);
    void (*describe)(const mnist_run *run, char *text, size_t bytes); /* the network, in words */
    void (*set)(const mnist_run *run, kr_train_options *options, kr_model **model);
    bool (*draw)(mnist_run *run, kr_tape *tape, const kr_batch *batch, cli_picture *picture); /* a new picture */
    bool (*baselines)(mnist_run *run); /* false after an error message */
} mnist_kind;

struct mnist_run {
    const mnist_kind *kind;
    const mnist_values *values;
    kr_ctx *ctx;
    mnist_data data;
    void *net;
    bool (*write_options)(void *user, const char *folder); /* after checking that they match the folder */
    void *user;
};

/* Parses, trains or evaluates, and reports; returns the exit status. */
int task_mnist(const mnist_kind *kind, int argc, char **argv);

/* "task NAME: TEXT"; always false. */
bool mnist_refuse(const mnist_kind *kind, const char *format, ...) KR_PRINTF(2, 3);

/* The block of both: the common part of the reference's networks. */
kr_mamba3_config mnist_block(int rotation);

/* Trains into the folder (NULL: nothing is saved), or resumes there. *is_stopped: before its end. False after an error
 * message. */
bool mnist_train(mnist_run *run, const char *folder, bool is_resumed, bool *is_stopped);

/* Over all test images; false after an error message. */
bool mnist_evaluate(mnist_run *run, kr_evaluation *evaluation);

#endif
