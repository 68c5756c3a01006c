/* test_digits.c - drawn digits: the same bytes for the same seed, all classes, files and sources, and how hard they are. */
#define _POSIX_C_SOURCE 200809L
#include "tests/temp_folder.h"

#include "lab/digits.h"
#include "lab/tasks.h"

enum { SIDE = LAB_DIGIT_SIDE, PIXELS = SIDE * SIDE };

static kr_ctx *ctx;

typedef struct set {
    int64_t count;
    uint8_t *images, *labels;
} set;

static set new_set(uint64_t seed, int64_t first, int64_t count)
{
    set s = { count, malloc((size_t)count * PIXELS), malloc((size_t)count) };
    CHECK(lab_digits_fill(seed, first, count, s.images, s.labels) == KR_OK, "refused");
    return s;
}

static void free_set(set *s)
{
    free(s->images);
    free(s->labels);
}

static bool same(const set *a, const set *b, int64_t from_b)
{
    return !memcmp(a->images, b->images + from_b * PIXELS, (size_t)a->count * PIXELS) &&
           !memcmp(a->labels, b->labels + from_b, (size_t)a->count);
}

/* ---- bytes ---- */

TEST(digits_are_those_of_seed_and_number)
{
    set a = new_set(7, 0, 40), b = new_set(7, 0, 40), other = new_set(8, 0, 40), tail = new_set(7, 33, 7);
    CHECK(same(&a, &b, 0), "the same seed gives other bytes");
    CHECK(same(&tail, &a, 33), "an image depends on those before it");
    CHECK(!same(&a, &other, 0), "another seed gives the same bytes");
    for (int i = 0; i < 40; i++)
        for (int j = 0; j < i; j++)
            CHECK(memcmp(a.images + i * PIXELS, a.images + j * PIXELS, PIXELS) != 0, "images %d and %d are one", i, j);
    free_set(&a);
    free_set(&b);
    free_set(&other);
    free_set(&tail);
    uint8_t byte = 1;
    CHECK(lab_digits_fill(1, -1, 1, &byte, &byte) == KR_ERR_ARG &&
              lab_digits_fill(1, 0, -1, &byte, &byte) == KR_ERR_ARG &&
              lab_digits_fill(1, 0, 1, NULL, &byte) == KR_ERR_ARG &&
              lab_digits_fill(1, 0, 1, &byte, NULL) == KR_ERR_ARG && byte == 1,
          "what is not a call is not refused");
}

/* The class is the first draw of an image's own generator, whose seed is a draw of the set's. */
TEST(digits_labels_are_splitmix64)
{
    set s = new_set(LAB_DIGITS_TRAIN_SEED, 0, 100);
    uint64_t state = LAB_DIGITS_TRAIN_SEED;
    for (int i = 0; i < 100; i++) {
        uint64_t own = lab_splitmix64(&state);
        CHECK(s.labels[i] == lab_splitmix64(&own) % 10, "image %d is a %d", i, s.labels[i]);
    }
    free_set(&s);
}

/* Every class, with ink in the middle, dark corners, grey edges, and values that spread. */
TEST(digits_look_like_something)
{
    enum { N = 2000 };
    set s = new_set(LAB_DIGITS_TEST_SEED, 0, N);
    int64_t seen[10] = { 0 }, grey = 0, corners = 0;
    double total = 0;
    for (int i = 0; i < N; i++) {
        const uint8_t *image = s.images + i * PIXELS;
        int64_t ink = 0, most = 0;
        for (int p = 0; p < PIXELS; p++) {
            ink += image[p];
            most = image[p] > most ? image[p] : most;
            grey += image[p] > 60 && image[p] < 170;
        }
        CHECK(s.labels[i] < 10, "label %d", s.labels[i]);
        seen[s.labels[i] % 10]++;
        CHECK(most >= 170 && ink > 255 * 15 && ink < 255 * 250, "image %d has %g of 784 pixels of ink, at most %d", i,
              (double)ink / 255, (int)most);
        for (int corner = 0; corner < 4; corner++)
            corners += image[(corner / 2) * (SIDE - 1) * SIDE + (corner % 2) * (SIDE - 1)] > 60;
        total += (double)ink / 255;
    }
    for (int c = 0; c < 10; c++) CHECK(seen[c] > N / 10 - 70 && seen[c] < N / 10 + 70, "%d: %d", c, (int)seen[c]);
    CHECK(total / N / PIXELS > 0.10 && total / N / PIXELS < 0.15, "mean %g", total / N / PIXELS);
    CHECK(corners < N / 100, "%lld corners have ink", (long long)corners);
    CHECK(grey > N * 30, "%g grey pixels an image", (double)grey / N);
    free_set(&s);
}

/* ---- files and sources ---- */

static void check_batches(kr_source *a, kr_source *b, int64_t patches)
{
    kr_loader_options o;
    kr_loader_options_init(&o);
    o.batch = 4;
    o.length = 0;
    o.pack = false;
    o.n_epochs = 1;
    kr_loader *la = kr_loader_create(a, &o), *lb = kr_loader_create(b, &o);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_batch x, y;
    int64_t rows = 0;
    for (; kr_loader_next(tape, la, &x) == KR_OK && kr_loader_next(tape, lb, &y) == KR_OK; kr_tape_reset(tape)) {
        CHECK_SAME_BITS("pixels", x.x_bsf, y.x_bsf);
        CHECK_SAME_BITS("labels", x.labels_bs, y.labels_bs);
        CHECK(kr_tensor_dim(x.x_bsf, 1) == patches && x.n_scored == kr_tensor_dim(x.x_bsf, 0), "shape of a batch");
        rows += kr_tensor_dim(x.x_bsf, 0);
    }
    CHECK(rows == 30, "%lld rows", (long long)rows);
    kr_tape_destroy(tape);
    kr_loader_destroy(la);
    kr_loader_destroy(lb);
}

TEST(digits_files_are_what_the_source_has)
{
    ctx = kr_test_ctx(1, NULL);
    begin_folder();
    CHECK(lab_digits_write(ctx, 5, 30, in_folder("images"), in_folder("labels")) == KR_OK, "%s", kr_ctx_message(ctx));
    kr_idx_options o;
    kr_idx_options_init(&o);
    o.mean = 0.1307;
    o.deviation = 0.3081;
    o.patch_height = 7;
    o.patch_width = 4;
    kr_source *file = kr_source_idx(ctx, in_folder("images"), in_folder("labels"), &o);
    kr_source *memory = lab_source_digits(ctx, 5, 30, &o);
    const kr_source_info a = kr_source_info_of(file), b = kr_source_info_of(memory);
    CHECK(a.count == 30 * 28 && b.count == a.count && b.n_features == 28 && a.n_features == 28 && b.n_classes == 10,
          "%lld positions of %lld", (long long)b.count, (long long)b.n_features);
    check_batches(memory, file, 28);
    file_image image = read_image(in_folder("images"));
    set s = new_set(5, 0, 30);
    const unsigned char head[16] = { 0, 0, 8, 3, 0, 0, 0, 30, 0, 0, 0, 28, 0, 0, 0, 28 };
    CHECK(image.bytes == 16 + 30 * PIXELS && !memcmp(image.data, head, 16) &&
              !memcmp(image.data + 16, s.images, 30 * PIXELS),
          "the file of images has other bytes");
    free_set(&s);
    free(image.data);
    kr_source_destroy(memory);
    kr_source_destroy(file);
    o.count = 7;
    file = kr_source_idx(ctx, in_folder("images"), in_folder("labels"), &o);
    CHECK(kr_source_info_of(file).count == 7 * 28, "the first 7 of 30 images");
    kr_source_destroy(file);
    CHECK(files_in_folder(false) == 2, "more files than two");
    end_folder();
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

TEST(digits_errors)
{
    ctx = kr_test_ctx(1, NULL);
    begin_folder();
    kr_idx_options o;
    kr_idx_options_init(&o);
    o.patch_width = 5;
    CHECK(!lab_source_digits(ctx, 1, 10, &o), "patches of 5");
    CHECK_ERROR(ctx, KR_ERR_ARG, "digits: images of 28 x 28 cannot be cut into patches of 1 x 5");
    o.patch_width = 4;
    o.count = 11;
    CHECK(!lab_source_digits(ctx, 1, 10, &o), "more than there are");
    CHECK_ERROR(ctx, KR_ERR_ARG, "digits: count = 11, but there are 10 images");
    CHECK(!lab_source_digits(ctx, 1, 0, NULL), "no digits");
    CHECK_ERROR(ctx, KR_ERR_ARG, "digits: count = 0 must be from 1 to 16777216");
    CHECK(lab_digits_write(ctx, 1, 1, in_folder("a"), in_folder("a")) == KR_ERR_ARG, "one path for both");
    CHECK_ERROR(ctx, KR_ERR_ARG, "digits: images and labels need a path each");
    CHECK(lab_digits_write(ctx, 1, 1, in_folder("a"), in_folder("no/b")) != KR_OK, "no such folder");
    CHECK_ERROR_HAS(ctx, KR_ERR_IO, "no/b");
    CHECK(files_in_folder(false) == 0, "half of the files is there");
    end_folder();
    kr_ctx_destroy(ctx);
}

TEST(digits_a_failed_allocation_of_the_source)
{
    ctx = kr_test_ctx(1, NULL);
    const size_t live = kr_ctx_memory(ctx).live_bytes;
    kr_ctx_fail_allocation(ctx, 1);
    CHECK(!lab_source_digits(ctx, 1, 3, NULL) && kr_ctx_status(ctx) == KR_ERR_NOMEM, "%s", kr_ctx_message(ctx));
    kr_ctx_fail_allocation(ctx, 0);
    kr_ctx_clear(ctx);
    CHECK(kr_ctx_memory(ctx).live_bytes == live, "it leaks");
    kr_ctx_destroy(ctx);
}

/* ---- how hard they are ---- */

static kr_tensor *pixels_of(kr_tape *tape, const set *s)
{
    float *x = malloc((size_t)s->count * PIXELS * sizeof *x);
    for (int64_t i = 0; i < s->count * PIXELS; i++) x[i] = (float)s->images[i] / 255;
    kr_tensor *pixels = kr_from_data(tape, KR_DTYPE_F32, KR_SHAPE(s->count, PIXELS), x);
    free(x);
    return pixels;
}

static kr_tensor *labels_of(kr_tape *tape, const set *s)
{
    int32_t *l = malloc((size_t)s->count * sizeof *l);
    for (int64_t i = 0; i < s->count; i++) l[i] = s->labels[i];
    kr_tensor *labels = kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(s->count), l);
    free(l);
    return labels;
}

static double share_right(kr_tape *tape, const set *s, kr_tensor *weight, kr_tensor *bias)
{
    kr_tape_reset(tape);
    const kr_scores scores =
        kr_accuracy(tape, kr_linear(tape, pixels_of(tape, s), weight, bias), labels_of(tape, s), NULL);
    return (double)scores.right / (double)scores.scored;
}

/* Logistic regression on pixels: far from chance, and far from all. */
TEST(digits_are_beyond_a_linear_classifier)
{
    ctx = kr_test_ctx(0, NULL);
    set train = new_set(LAB_DIGITS_TRAIN_SEED, 0, 3000), test = new_set(LAB_DIGITS_TEST_SEED, 0, 1000);
    kr_params *params = kr_params_create(ctx);
    kr_tensor *bias, *weight = kr_params_linear(params, "linear", KR_DTYPE_F32, 10, PIXELS, &bias);
    kr_optimizer *opt = kr_optimizer_create(ctx, params, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    for (int step = 0; step < (kr_test_quick() ? 60 : 150); step++, kr_tape_reset(tape)) {
        kr_tensor *logits = kr_linear(tape, pixels_of(tape, &train), weight, bias);
        kr_backward(tape, kr_cross_entropy(tape, logits, labels_of(tape, &train), NULL));
        kr_optimizer_step(opt, 1e-2, 1);
    }
    const double own = share_right(tape, &train, weight, bias), others = share_right(tape, &test, weight, bias);
    CHECK(others > 0.75 && others < 0.93, "%g of the test images, %g of its own", others, own);
    CHECK(own > others, "%g of its own images, %g of others", own, others);
    kr_tape_destroy(tape);
    kr_optimizer_destroy(opt);
    kr_params_destroy(params);
    free_set(&train);
    free_set(&test);
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}
