/* digits.h - images of the digits 0 to 9, drawn by strokes: a substitute for handwriting when no files are available.
 *
 *   uint8_t images_nhw[4 * LAB_DIGIT_SIDE * LAB_DIGIT_SIDE], labels_n[4];
 *   lab_digits_fill(LAB_DIGITS_TEST_SEED, 0, 4, images_nhw, labels_n);             // the first four of the test set
 *   kr_source *source = lab_source_digits(ctx, LAB_DIGITS_TRAIN_SEED, 1000, NULL); // the same, for a loader
 *   lab_digits_write(ctx, LAB_DIGITS_TRAIN_SEED, 1000, "images.idx", "labels.idx");
 *   kr_source_destroy(source);
 *
 * Ink is light (up to 255) on black, as in MNIST's files. Each image has random parameters: the form of the digit,
 * size, slant, rotation, position, width and strength of the stroke, wobble, and a little noise; all by SplitMix64.
 * Image i depends on seed and i alone.
 */
#ifndef KR_LAB_DIGITS_H
#define KR_LAB_DIGITS_H

#include <krait/data.h>

enum { LAB_DIGIT_SIDE = 28, LAB_DIGIT_CLASSES = 10 };
#define LAB_DIGITS_TRAIN_SEED UINT64_C(0xC0FFEE)
#define LAB_DIGITS_TEST_SEED UINT64_C(0xBEEF)

/* Images `first` .. first + count - 1 of a seed, [count 28 28], and their labels, [count]. KR_ERR_ARG for numbers below
 * 0 or NULL. */
kr_status lab_digits_fill(uint64_t seed, int64_t first, int64_t count, uint8_t *images, uint8_t *labels);

/* Writes the first `count` as two IDX files, each atomically. */
kr_status lab_digits_write(kr_ctx *ctx, uint64_t seed, int64_t count, const char *images_path, const char *labels_path);

/* The first `count`, in memory, with the same positions as kr_source_idx over the files. options NULL: the defaults. NULL
 * with the context's error set. */
kr_source *lab_source_digits(kr_ctx *ctx, uint64_t seed, int64_t count, const kr_idx_options *options);

#endif
