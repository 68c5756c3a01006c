/* digits.h - images of the digits 0 to 9, drawn by strokes: a stand-in for handwriting where there are no files of it.
 *
 *   uint8_t images_nhw[4 * KR_DIGIT_SIDE * KR_DIGIT_SIDE], labels_n[4];
 *   kr_digits_fill(KR_DIGITS_TEST_SEED, 0, 4, images_nhw, labels_n);             // the first four of the test set
 *   kr_source *source = kr_source_digits(ctx, KR_DIGITS_TRAIN_SEED, 1000, NULL); // the same, for a loader
 *   kr_digits_write(ctx, KR_DIGITS_TRAIN_SEED, 1000, "images.idx", "labels.idx");
 *   kr_source_destroy(source);
 *
 * Ink is light (up to 255) on black, as in MNIST's files. Each image has a hand of its own: which form of the digit, size,
 * slant, turn, place, width and strength of the stroke, wobble, and a little noise; all by SplitMix64. Image i depends on
 * seed and i alone.
 */
#ifndef KRAIT_DIGITS_H
#define KRAIT_DIGITS_H

#include <krait/data.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { KR_DIGIT_SIDE = 28, KR_DIGIT_CLASSES = 10 };
#define KR_DIGITS_TRAIN_SEED UINT64_C(0xC0FFEE)
#define KR_DIGITS_TEST_SEED UINT64_C(0xBEEF)

/* Images `first` .. first + count - 1 of a seed, [count 28 28], and what they show, [count]. KR_ERR_ARG for numbers below
 * 0 or NULL. */
KR_API kr_status kr_digits_fill(uint64_t seed, int64_t first, int64_t count, uint8_t *images, uint8_t *labels);

/* The first `count` as two IDX files, each whole or not at all. */
KR_API kr_status kr_digits_write(kr_ctx *ctx, uint64_t seed, int64_t count, const char *images_path,
                                 const char *labels_path);

/* The first `count`, in memory, as kr_source_idx has the images of a file. */
KR_API kr_source *kr_source_digits(kr_ctx *ctx, uint64_t seed, int64_t count, const kr_idx_options *options);

#ifdef __cplusplus
}
#endif
#endif
