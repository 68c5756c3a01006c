/* task_mnist_data.c - images for the tasks over digits: from files, or drawn. */
#include "cli/common/cli_files.h"
#include "lab/digits.h"
#include "lab/task_mnist.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DRAWN_ROWS = 10000, DRAWN_TEST_ROWS = 1000 };
#define TEST_FRACTION 0.1 /* of images without test images */

bool mnist_patch_of(const char *text, int64_t *height, int64_t *width)
{
    char *end;
    if (*text < '1' || *text > '9') return false;
    *height = strtoll(text, &end, 10);
    if (*end != 'x' || end[1] < '1' || end[1] > '9') return false;
    *width = strtoll(end + 1, &end, 10);
    return !*end && *height < 65536 && *width < 65536;
}

/* Height and width from an IDX file's header; the library checks the other fields. */
static bool read_size(const char *path, int64_t *height, int64_t *width)
{
    unsigned char head[16] = { 0 };
    FILE *file = fopen(path, "rb");
    if (!file) return cli_cannot("open", path, errno);
    const size_t n = fread(head, 1, sizeof head, file);
    fclose(file);
    if (n < sizeof head || head[2] != 8 || head[3] != 3) {
        cli_complain(NULL, "%s: not an uncompressed IDX file of images: bytes [count height width], as MNIST's", path);
        return false;
    }
    *height = (int64_t)head[8] << 24 | head[9] << 16 | head[10] << 8 | head[11];
    *width = (int64_t)head[12] << 24 | head[13] << 16 | head[14] << 8 | head[15];
    return true;
}

typedef struct set_files {
    const char *images, *labels;
    uint64_t seed; /* of drawn ones */
    int64_t rows;  /* 0: all */
    int64_t drawn_rows;
} set_files;

static kr_source *open_set(mnist_data *data, kr_ctx *ctx, const set_files *files, kr_idx_options options,
                           int64_t *count)
{
    kr_source *source;
    if (files->images) {
        options.count = files->rows;
        source = kr_source_idx(ctx, files->images, files->labels, &options);
    } else {
        source = lab_source_digits(ctx, files->seed, files->rows ? files->rows : files->drawn_rows, &options);
    }
    const int64_t per_image = data->height / data->patch_height * (data->width / data->patch_width);
    *count = source && per_image > 0 ? kr_source_info_of(source).count / per_image : 0;
    return source;
}

static kr_loader *open_loader(const mnist_data *data, const mnist_values *values, bool is_train)
{
    kr_loader_options reading;
    kr_loader_options_init(&reading);
    reading.batch = values->batch;
    reading.length = 0;
    reading.pack = false;
    reading.seed = values->seed;
    reading.shuffle = is_train;
    reading.n_epochs = is_train ? 0 : 1;
    if (!data->test) {
        reading.part = is_train ? KR_DATA_PART_TRAIN : KR_DATA_PART_VALIDATION;
        reading.validation_fraction = TEST_FRACTION;
    }
    return kr_loader_create(is_train || !data->test ? data->train : data->test, &reading);
}

bool mnist_open(mnist_data *data, kr_ctx *ctx, const mnist_values *v, double mean, double deviation, bool has_labels)
{
    *data =
        (mnist_data){ .is_drawn = !v->images && !v->test_images, .height = LAB_DIGIT_SIDE, .width = LAB_DIGIT_SIDE };
    const char *sized_by = v->images ? v->images : v->test_images;
    if (sized_by && !read_size(sized_by, &data->height, &data->width)) return false;
    mnist_patch_of(v->patch, &data->patch_height, &data->patch_width);
    kr_idx_options options;
    kr_idx_options_init(&options);
    options.patch_height = data->patch_height;
    options.patch_width = data->patch_width;
    options.mean = mean;
    options.deviation = deviation;
    const set_files train = { v->images, has_labels ? v->labels : NULL, LAB_DIGITS_TRAIN_SEED, v->rows, DRAWN_ROWS };
    const set_files test = { v->test_images, has_labels ? v->test_labels : NULL, LAB_DIGITS_TEST_SEED, v->eval_rows,
                             DRAWN_TEST_ROWS };
    if (data->is_drawn || v->images) data->train = open_set(data, ctx, &train, options, &data->n_train);
    if (data->is_drawn || v->test_images) data->test = open_set(data, ctx, &test, options, &data->n_test);
    if (kr_ctx_failed(ctx)) return false;
    if (data->train) data->loader = open_loader(data, v, true);
    data->check = open_loader(data, v, false);
    if (!data->test && data->check) { /* as loaders split them */
        data->n_test = (int64_t)llround(TEST_FRACTION * (double)data->n_train);
        data->n_train -= data->n_test;
    }
    return !kr_ctx_failed(ctx);
}

void mnist_close(mnist_data *data)
{
    kr_loader_destroy(data->loader);
    kr_loader_destroy(data->check);
    kr_source_destroy(data->train);
    kr_source_destroy(data->test);
    *data = (mnist_data){ 0 };
}

void mnist_pixels(const mnist_data *data, const float *x_bsf, int64_t row, double mean, double deviation,
                  unsigned char *grey)
{
    const int64_t ph = data->patch_height, pw = data->patch_width, across = data->width / pw;
    const float *x = x_bsf + row * data->height * data->width;
    for (int64_t i = 0; i < data->height * data->width; i++) {
        const int64_t patch = i / (ph * pw), in_patch = i % (ph * pw);
        const int64_t y = patch / across * ph + in_patch / pw,
                      at = y * data->width + patch % across * pw + in_patch % pw;
        const double value = 255 * ((double)x[i] * deviation + mean) + 0.5;
        grey[at] = (unsigned char)(value < 0 ? 0 : value > 255 ? 255 : value);
    }
}
