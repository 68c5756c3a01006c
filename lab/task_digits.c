/* task_digits.c - krait task digits: writes drawn digits as IDX files, and a picture of some of them. */
#define _POSIX_C_SOURCE 200809L
#include "cli/common/cli_files.h"
#include "cli/common/cli_machine.h"
#include "lab/png.h"
#include "lab/cmd_task.h"
#include "lab/digits.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

typedef struct digits_values {
    const char *out;
    int64_t rows, test_rows;
    bool force;
} digits_values;

static const cli_option options[] = {
    { "out", 0, "DIR", CLI_TEXT, offsetof(digits_values, out), NULL, 0, "folder for the files" },
    { "rows", 0, "N", CLI_I64, offsetof(digits_values, rows), "10000", 1, "number of training images" },
    { "test-rows", 0, "N", CLI_I64, offsetof(digits_values, test_rows), "1000", 1, "number of test images" },
    { "force", 0, NULL, CLI_FLAG, offsetof(digits_values, force), NULL, 0, "replace existing files" },
    { 0 },
};

typedef struct digits_set {
    const char *images, *labels;
    uint64_t seed;
    int64_t rows;
} digits_set;

static bool may_write(const char *path, bool force)
{
    if (force || !cli_exists(path)) return true;
    cli_complain("choose another folder, or replace it with --force", "task digits: %s already exists", path);
    return false;
}

static bool write_set(kr_ctx *ctx, const digits_values *v, const digits_set *set)
{
    char images[CLI_PATH_BYTES], labels[CLI_PATH_BYTES];
    if (!cli_join(images, v->out, set->images) || !cli_join(labels, v->out, set->labels) ||
        !may_write(images, v->force) || !may_write(labels, v->force))
        return false;
    lab_digits_write(ctx, set->seed, set->rows, images, labels);
    return !cli_failed(ctx);
}

/* The first 240 images for training. */
static bool write_sheet(const char *folder)
{
    enum { COLUMNS = 24, LINES = 10, SIDE = LAB_DIGIT_SIDE, GAP = 2 };
    char path[CLI_PATH_BYTES];
    if (!cli_join(path, folder, "digits.png")) return false;
    cli_picture picture = cli_picture_new(COLUMNS * (SIDE + GAP) + GAP, LINES * (SIDE + GAP) + GAP);
    for (int i = 0; i < COLUMNS * LINES; i++) {
        uint8_t grey[SIDE * SIDE], label;
        lab_digits_fill(LAB_DIGITS_TRAIN_SEED, i, 1, grey, &label);
        cli_picture_put(&picture, GAP + i % COLUMNS * (SIDE + GAP), GAP + i / COLUMNS * (SIDE + GAP), grey, SIDE, SIDE);
    }
    const bool ok = cli_picture_write(&picture, path);
    cli_picture_free(&picture);
    return ok;
}

static void report(const digits_values *v)
{
    char word[CLI_PATH_BYTES];
    cli_shell_word(v->out, word, sizeof word);
    printf("%s: %lld images for training, %lld for the evaluation; digits.png shows some\n", v->out, (long long)v->rows,
           (long long)v->test_rows);
    printf("next: krait task mnist-class --patch 4x4 --images %s/train-images-idx3-ubyte --labels "
           "%s/train-labels-idx1-ubyte\n      --test-images %s/t10k-images-idx3-ubyte --test-labels "
           "%s/t10k-labels-idx1-ubyte --out RUN\n",
           word, word, word, word);
}

static int run(int argc, char **argv)
{
    digits_values v = { 0 };
    const int status = cli_parse(&cli_task_digits, &v, argc, argv);
    if (status >= 0) return status;
    if (!v.out) {
        cli_complain("see krait task digits --help", "task digits: --out is missing");
        return CLI_USAGE;
    }
    const digits_set sets[] = {
        { "train-images-idx3-ubyte", "train-labels-idx1-ubyte", LAB_DIGITS_TRAIN_SEED, v.rows },
        { "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", LAB_DIGITS_TEST_SEED, v.test_rows },
    };
    if (mkdir(v.out, 0777) != 0 && (errno != EEXIST || !cli_is_folder(v.out))) {
        cli_cannot("make", v.out, errno);
        return CLI_FAILED;
    }
    kr_ctx *ctx = cli_open(&(cli_machine){ .threads = 1, .device = "cpu" }, 0);
    const bool ok =
        !cli_failed(ctx) && write_set(ctx, &v, &sets[0]) && write_set(ctx, &v, &sets[1]) && write_sheet(v.out);
    if (ok) report(&v);
    kr_ctx_destroy(ctx);
    return ok ? CLI_OK : CLI_FAILED;
}

const cli_command cli_task_digits = {
    .name = "task digits",
    .summary = "write synthetic digit images, if MNIST is not available",
    .options = options,
    .run = run,
};
