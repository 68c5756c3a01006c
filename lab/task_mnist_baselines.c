/* task_mnist_baselines.c - a linear classifier of images, and the mean image.
 *
 *   linear   softmax(x W + b) on the pixels of an image, 10 epochs of AdamW
 *   mean     of pixel q over the training images, m_q; loss of the test images: the mean of BCE(m_q, x_q)
 *   least    the loss of a perfect reconstruction: grey pixels have an entropy
 */
#include "lab/task_mnist_baselines.h"

#include "cli/common/floats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- a linear classifier ---- */

enum { LINEAR_EPOCHS = 10, LINEAR_BATCH = 50 };

typedef struct linear {
    kr_params *params;
    kr_tensor *weight, *bias;
} linear;

static kr_loss_out linear_loss(void *user, kr_tape *tape, const kr_batch *batch, const kr_state *state)
{
    const linear *net = user;
    kr_loss_out out = { 0 };
    kr_cross_entropy_options options;
    (void)state;
    kr_cross_entropy_options_init(&options);
    options.scores = &out.scores;
    out.loss = kr_head_cross_entropy(tape, batch->x_bsf, net->weight, net->bias, batch->labels_bs, &options);
    return out;
}

/* The same images, each as one position. */
static bool open_whole(mnist_run *run, mnist_data *data)
{
    char patch[64];
    mnist_values values = *run->values;
    snprintf(patch, sizeof patch, "%lldx%lld", (long long)run->data.height, (long long)run->data.width);
    values.patch = patch;
    values.batch = LINEAR_BATCH;
    if (mnist_open(data, run->ctx, &values, run->kind->mean, run->kind->deviation, run->kind->has_labels) &&
        data->loader)
        return true;
    if (!cli_failed(run->ctx)) mnist_refuse(run->kind, "--baselines needs the training images");
    return false;
}

static void fit(mnist_run *run, const mnist_data *data, linear *net, kr_evaluation *e)
{
    const int64_t pixels = data->height * data->width;
    const kr_source_info info = kr_source_info_of(data->train);
    net->params = kr_params_create(run->ctx);
    net->weight = kr_params_linear(net->params, "linear", KR_DTYPE_F32, info.n_classes > 10 ? info.n_classes : 10,
                                   pixels, &net->bias);
    kr_optimizer_options optimizer;
    kr_lr_schedule schedule;
    kr_train_options options;
    kr_optimizer_options_init(&optimizer);
    kr_lr_schedule_init(&schedule);
    kr_train_options_init(&options);
    options.steps = LINEAR_EPOCHS * kr_loader_steps_per_epoch(data->loader);
    schedule.kind = KR_LR_COSINE;
    optimizer.beta2 = 0.999;
    optimizer.weight_decay = 0.01;
    schedule.max_lr = 2e-3;
    schedule.min_lr = 0;
    schedule.warmup_steps = 0;
    options.optimizer = &optimizer;
    options.schedule = &schedule;
    options.params = net->params;
    options.loss_fn = linear_loss;
    options.loss_user = net;
    kr_trainer *trainer = kr_trainer_create(run->ctx, NULL, data->loader, &options);
    if (kr_trainer_run(trainer) == KR_OK) *e = kr_trainer_evaluate(trainer, data->check, 0);
    kr_trainer_destroy(trainer);
}

bool mnist_linear_baseline(mnist_run *run)
{
    mnist_data data = { 0 };
    linear net = { 0 };
    kr_evaluation e = { 0 };
    bool ok = open_whole(run, &data);
    if (ok) {
        fit(run, &data, &net, &e);
        ok = !cli_failed(run->ctx);
    }
    if (ok)
        printf("a linear classifier on pixels: %lld of %lld right (%.2f %%), loss %.4f\n", (long long)e.n_right,
               (long long)e.n_scored, 100 * (double)e.n_right / (double)e.n_scored, e.loss);
    kr_params_destroy(net.params);
    mnist_close(&data);
    return ok;
}

/* ---- the mean image ---- */

typedef struct sums {
    int64_t pixels, images;
    double *mean; /* [pixels] */
    double of_mean, least;
    int64_t count;
} sums;

typedef void batch_fn(sums *s, const float *x, int64_t rows);

static void add_mean(sums *s, const float *x, int64_t rows)
{
    for (int64_t i = 0; i < rows * s->pixels; i++) s->mean[i % s->pixels] += (double)x[i];
    s->images += rows;
}

/* -t log p - (1 - t) log(1 - p). */
static double bce(double p, double t)
{
    return (t > 0 ? -t * log(p) : 0) + (t < 1 ? -(1 - t) * log1p(-p) : 0);
}

static void add_loss(sums *s, const float *x, int64_t rows)
{
    const double edge = 1.0 / 512; /* a pixel without ink in training may have some in a test image */
    for (int64_t i = 0; i < rows * s->pixels; i++) {
        const double mean = s->mean[i % s->pixels];
        s->of_mean += bce(mean < edge ? edge : mean > 1 - edge ? 1 - edge : mean, (double)x[i]);
        s->least += bce((double)x[i], (double)x[i]);
    }
    s->count += rows * s->pixels;
}

static void for_batches(kr_ctx *ctx, kr_loader *loader, sums *s, batch_fn *fn)
{
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    const int64_t steps = kr_loader_steps_per_epoch(loader);
    kr_batch batch;
    for (int64_t i = 0; i < steps && kr_loader_next(tape, loader, &batch) == KR_OK; i++, kr_tape_reset(tape)) {
        float *x = cli_floats(batch.x_bsf);
        if (x) fn(s, x, kr_tensor_dim(batch.x_bsf, 0));
        free(x);
    }
    kr_tape_destroy(tape);
}

bool mnist_mean_baseline(mnist_run *run)
{
    mnist_data data = { 0 };
    bool ok = open_whole(run, &data);
    sums s = { .pixels = data.height * data.width };
    s.mean = ok ? calloc((size_t)s.pixels, sizeof *s.mean) : NULL;
    if (ok && s.mean) {
        for_batches(run->ctx, data.loader, &s, add_mean);
        for (int64_t i = 0; i < s.pixels; i++) s.mean[i] /= (double)s.images;
        for_batches(run->ctx, data.check, &s, add_loss);
        ok = !cli_failed(run->ctx);
        if (ok)
            printf("the mean image for every input: loss %.4f per pixel; lower bound (the image itself): %.4f\n",
                   s.of_mean / (double)s.count, s.least / (double)s.count);
    }
    free(s.mean);
    mnist_close(&data);
    return ok;
}
