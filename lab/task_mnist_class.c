/* task_mnist_class.c - krait task mnist-class: classifies digits, read pixel by pixel. */
#include "lab/task_mnist.h"
#include "cli/common/floats.h"
#include "lab/task_mnist_baselines.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_LAYERS = 2, N_VIRTUAL = 16, GRAD_HORIZON = 4, PER_HEAD_DIM = 32 };

/* ---- the network ---- */

static void *create(mnist_run *run)
{
    kr_model_config *config = kr_model_config_create(run->ctx);
    if (!config) return NULL;
    const kr_source_info info = kr_source_info_of(run->data.train ? run->data.train : run->data.test);
    config->family = KR_FAMILY_MAMBA3;
    *config->mamba3 = mnist_block(run->values->rotation);
    config->mamba3->per_head_dim = PER_HEAD_DIM;
    config->layers->n_layers = N_LAYERS;
    config->layers->n_virtual = N_VIRTUAL;
    config->layers->grad_horizon = GRAD_HORIZON;
    config->layers->norm_eps = config->mamba3->norm_eps;
    config->network->input_size = info.n_features;
    config->network->output_size = info.n_classes > 10 ? info.n_classes : 10;
    config->network->rescale_residual = false;
    config->network->zero_proj_biases = false;
    kr_model *model = kr_model_create(run->ctx, config);
    kr_model_config_destroy(config);
    return model;
}

static void destroy(void *net)
{
    kr_model_destroy(net);
}

/* A model of another shape is detected by its config, which may differ from the options'. */
static bool load(mnist_run *run, const char *folder)
{
    const kr_network_config *wanted = kr_model_config_of(run->net)->network;
    kr_model *model = kr_model_load(run->ctx, folder, NULL);
    if (!model) return false;
    const kr_network_config *got = kr_model_config_of(model)->network;
    if (got->input_size != wanted->input_size || got->output_size < wanted->output_size) {
        mnist_refuse(run->kind,
                     "the model in %.200s has %lld inputs and %lld outputs, but the images need %lld and %lld", folder,
                     (long long)got->input_size, (long long)got->output_size, (long long)wanted->input_size,
                     (long long)wanted->output_size);
        kr_model_destroy(model);
        return false;
    }
    kr_model_destroy(run->net);
    run->net = model;
    return true;
}

static const char *rotation_words(int rotation)
{
    return rotation == MNIST_ROTATION_NONE         ? "without rotation"
           : rotation == MNIST_ROTATION_QUATERNION ? "with quaternion rotation"
                                                   : "with complex rotation";
}

static void describe(const mnist_run *run, char *text, size_t bytes)
{
    snprintf(text, bytes, "mamba3 %s, %d layers run %d times in all, %lld parameters%s",
             rotation_words(run->values->rotation), N_LAYERS, N_VIRTUAL,
             (long long)kr_params_elements(kr_network_params(kr_model_network(run->net))),
             run->values->has_muon ? ", muon" : "");
}

static void set(const mnist_run *run, kr_train_options *options, kr_model **model)
{
    options->loss = KR_LOSS_CROSS_ENTROPY;
    *model = run->net;
}

/* ---- pictures: each digit with a bar for each class ---- */

enum { COLUMNS = 5, SCALE = 2, BAR = 3, GAP = 4, MOST_CLASSES = 32 };

static void draw_digit(const mnist_run *run, cli_picture *picture, int cell, const unsigned char *grey,
                       const float *probability, int classes, int label)
{
    const int height = (int)run->data.height, width = (int)run->data.width;
    const int x = cell % COLUMNS * (SCALE * width + BAR * SCALE * classes + 2 * GAP) + GAP;
    const int y = cell / COLUMNS * (SCALE * height + GAP) + GAP, bars = x + SCALE * width + GAP;
    for (int i = 0; i < height * width; i++)
        cli_picture_fill(picture, x + SCALE * (i % width), y + SCALE * (i / width), SCALE, SCALE, grey[i]);
    const int bar_height = SCALE * height - 4;
    for (int c = 0; c < classes; c++) {
        const int length = (int)lround((double)probability[c] * bar_height), at = bars + c * BAR * SCALE;
        cli_picture_fill(picture, at, y, BAR * SCALE - 1, bar_height, 40);
        cli_picture_fill(picture, at, y + bar_height - length, BAR * SCALE - 1, length, c == label ? 255 : 140);
        if (c == label) cli_picture_fill(picture, at, y + bar_height + 2, BAR * SCALE - 1, 2, 255); /* the label */
    }
}

static bool draw(mnist_run *run, kr_tape *tape, const kr_batch *batch, cli_picture *picture)
{
    const mnist_data *data = &run->data;
    kr_call call;
    kr_call_init(&call);
    call.drop_state = call.last_logits_only = true;
    kr_tensor *logits = kr_network_forward(tape, kr_model_network(run->net), batch->x_bsf, &call).y;
    kr_tensor *p_bw = kr_contiguous(tape, kr_softmax(tape, logits, -1));
    if (!p_bw) return false;
    const int64_t rows = kr_tensor_dim(p_bw, 0), all = kr_tensor_dim(p_bw, 1), ns = kr_tensor_dim(batch->x_bsf, 1);
    const int classes = (int)(all < MOST_CLASSES ? all : MOST_CLASSES), lines = (int)(rows + COLUMNS - 1) / COLUMNS;
    float *x = cli_floats(batch->x_bsf), *p = cli_floats(p_bw);
    const int32_t *labels = kr_tensor_data(batch->labels_bs);
    unsigned char *grey = calloc((size_t)data->height, (size_t)data->width);
    *picture = cli_picture_new(COLUMNS * (SCALE * (int)data->width + BAR * SCALE * classes + 2 * GAP) + GAP,
                               lines * (SCALE * (int)data->height + GAP) + GAP);
    for (int64_t i = 0; grey && x && p && i < rows; i++) {
        mnist_pixels(data, x, i, run->kind->mean, run->kind->deviation, grey);
        draw_digit(run, picture, (int)i, grey, p + i * all, classes, labels[i * ns + ns - 1]);
    }
    free(grey);
    free(x);
    free(p);
    return true;
}

/* ---- the command ---- */

static const mnist_kind kind = {
    .command = &cli_task_mnist_class,
    .target = "the digit in an image, predicted after its last patch",
    .mean = 0.1307,
    .deviation = 0.3081,
    .has_labels = true,
    .create = create,
    .load = load,
    .destroy = destroy,
    .describe = describe,
    .set = set,
    .draw = draw,
    .baselines = mnist_linear_baseline,
};

static int run_class(int argc, char **argv)
{
    return task_mnist(&kind, argc, argv);
}

static const cli_option options[] = {
    MNIST_OPTIONS("1x1", "complex", "8e-4", "4e-4", "0.05"),
    { "muon", 0, NULL, CLI_FLAG, MNIST_AT(has_muon), NULL, 0, "update projections with Muon and the rest with AdamW" },
    { 0 },
};

const cli_command cli_task_mnist_class = {
    .name = "task mnist-class",
    .summary = "classify digit images pixel by pixel: 784 steps of memory (38322 parameters)",
    .options = options,
    .run = run_class,
    .line_only = MNIST_LINE_ONLY,
    .more = "With --patch 4x4 or 1x28 an image has 49 or 28 positions, and training is much faster.\n",
};
