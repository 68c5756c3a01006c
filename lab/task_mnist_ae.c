/* task_mnist_ae.c - krait task mnist-ae: an image autoencoder with few latents, by bidirectional stacks. */
#include "lab/autoencoder.h"
#include "cli/common/cli_files.h"
#include "cli/common/floats.h"
#include "lab/task_mnist.h"
#include "lab/task_mnist_baselines.h"

#include <stdio.h>
#include <stdlib.h>

enum { PER_HEAD_DIM = 16, MIMO_RANK = 2 };

/* ---- the network ---- */

static void *create(mnist_run *run)
{
    const mnist_values *v = run->values;
    const mnist_data *data = &run->data;
    autoencoder_config config = {
        .n_patches = data->height / data->patch_height * (data->width / data->patch_width),
        .n_pixels = data->patch_height * data->patch_width,
        .n_latents = v->latents,
        .pool = (autoencoder_pool)v->pool,
        .modulation = (autoencoder_modulation)v->modulation,
        .block = mnist_block(v->rotation),
    };
    config.block.per_head_dim = PER_HEAD_DIM;
    config.block.is_mimo = true;
    config.block.mimo_rank = MIMO_RANK;
    autoencoder *net = malloc(sizeof *net);
    if (!net) cli_complain(NULL, "no memory");
    else if (autoencoder_create(net, run->ctx, &config)) return net;
    else autoencoder_destroy(net);
    free(net);
    return NULL;
}

static void destroy(void *net)
{
    autoencoder_destroy(net);
    free(net);
}

static bool load(mnist_run *run, const char *folder)
{
    const autoencoder *net = run->net;
    char path[CLI_PATH_BYTES];
    return cli_join(path, folder, "model.safetensors") && kr_params_load(net->params, path) == KR_OK;
}

static void describe(const mnist_run *run, char *text, size_t bytes)
{
    const autoencoder *net = run->net;
    const autoencoder_config *c = &net->config;
    snprintf(text, bytes, "two bidirectional stacks of mamba3, %lld latents (%s pool, %s), %lld parameters",
             (long long)c->n_latents, c->pool == AUTOENCODER_MEAN ? "mean" : "middle",
             c->modulation == AUTOENCODER_FILM ? "film" : "add", (long long)kr_params_elements(net->params));
}

static kr_loss_out loss_of(void *user, kr_tape *tape, const kr_batch *batch, const kr_state *state)
{
    const autoencoder *net = user;
    kr_loss_options options;
    kr_loss_out out = { 0 };
    (void)state;
    kr_loss_options_init(&options);
    options.n_scored = &out.scores.scored;
    out.y = autoencoder_decode(tape, net, autoencoder_encode(tape, net, batch->x_bsf));
    out.loss = kr_bce(tape, out.y, batch->x_bsf, &options);
    return out;
}

static void set(const mnist_run *run, kr_train_options *options, kr_model **model)
{
    const autoencoder *net = run->net;
    (void)model;
    options->params = net->params;
    options->loss_fn = loss_of;
    options->loss_user = run->net;
}

/* ---- pictures: originals, and the reconstruction below each ---- */

enum { COLUMNS = 10, SCALE = 2, GAP = 4 };

static void draw_image(const mnist_data *data, cli_picture *picture, int x, int y, const float *x_bsf, int64_t row)
{
    const int height = (int)data->height, width = (int)data->width;
    unsigned char *grey = calloc((size_t)height, (size_t)width);
    if (!grey) return;
    mnist_pixels(data, x_bsf, row, 0, 1, grey);
    for (int i = 0; i < height * width; i++)
        cli_picture_fill(picture, x + SCALE * (i % width), y + SCALE * (i / width), SCALE, SCALE, grey[i]);
    free(grey);
}

static bool draw(mnist_run *run, kr_tape *tape, const kr_batch *batch, cli_picture *picture)
{
    const mnist_data *data = &run->data;
    const int height = SCALE * (int)data->height, width = SCALE * (int)data->width;
    kr_tensor *logits_bsf = autoencoder_decode(tape, run->net, autoencoder_encode(tape, run->net, batch->x_bsf));
    kr_tensor *back_bsf = kr_contiguous(tape, kr_sigmoid(tape, logits_bsf));
    if (!back_bsf) return false;
    const int rows = (int)kr_tensor_dim(back_bsf, 0), lines = (rows + COLUMNS - 1) / COLUMNS;
    *picture = cli_picture_new(COLUMNS * (width + GAP) + GAP, lines * (2 * height + 3 * GAP) + GAP);
    float *there = cli_floats(batch->x_bsf), *back = cli_floats(back_bsf);
    for (int i = 0; there && back && i < rows; i++) {
        const int x = GAP + i % COLUMNS * (width + GAP), y = GAP + i / COLUMNS * (2 * height + 3 * GAP);
        draw_image(data, picture, x, y, there, i);
        draw_image(data, picture, x, y + height + GAP, back, i);
    }
    free(there);
    free(back);
    return true;
}

/* ---- the command ---- */

static const mnist_kind kind = {
    .command = &cli_task_mnist_ae,
    .target = "reconstruct an image from a few numbers",
    .mean = 0,
    .deviation = 1,
    .create = create,
    .load = load,
    .destroy = destroy,
    .describe = describe,
    .set = set,
    .draw = draw,
    .baselines = mnist_mean_baseline,
};

static int run_ae(int argc, char **argv)
{
    return task_mnist(&kind, argc, argv);
}

static const cli_option options[] = {
    MNIST_OPTIONS("4x4", "quaternion", "1e-3", "5e-5", "0"),
    MNIST_OPTION("latents", "N", CLI_I64, latents, "16", 1, "size of the bottleneck between encoder and decoder"),
    MNIST_OPTION("pool", "mean|middle", CLI_CHOICE, pool, "mean", 0,
                 "input of the bottleneck: the mean over all patches, or a learned row in the middle"),
    MNIST_OPTION("modulation", "film|add", CLI_CHOICE, modulation, "film", 0,
                 "effect of the latents on the decoder's queries: scale and shift, or shift only"),
    { 0 },
};

const cli_command cli_task_mnist_ae = {
    .name = "task mnist-ae",
    .summary = "image autoencoder with bidirectional encoder and decoder over patches",
    .options = options,
    .run = run_ae,
    .line_only = MNIST_LINE_ONLY,
};
