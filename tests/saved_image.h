/* saved_image.h - what is saved to memory, against what is saved to a file. */
#ifndef KR_TESTS_SAVED_IMAGE_H
#define KR_TESTS_SAVED_IMAGE_H

#include "tests/temp_folder.h"

/* Fills `image` by `call`, a call with the arguments out, bytes and &needed: it measures, refuses memory of one byte
 * less, and fills memory of the exact size. The context of that error is cleared. */
#define SAVE_IMAGE(ctx, image, call)                                                                                   \
    do {                                                                                                               \
        size_t needed = 7, bytes = 0;                                                                                  \
        void *out = NULL;                                                                                              \
        CHECK((call) == KR_OK, "%s: %s", #call, kr_ctx_message(ctx));                                                  \
        (image) = (file_image){ malloc(needed ? needed : 1), needed };                                                 \
        out = (image).data;                                                                                            \
        bytes = needed - 1;                                                                                            \
        CHECK((call) == KR_ERR_ARG && needed == (image).bytes, "%zu of %zu bytes are not refused", bytes, needed);     \
        CHECK_ERROR_HAS((ctx), KR_ERR_ARG, "bytes of memory are too few: ");                                           \
        bytes = (image).bytes;                                                                                         \
        CHECK((call) == KR_OK && needed == bytes, "%s: %s", #call, kr_ctx_message(ctx));                               \
    } while (0)

/* The image is the file, byte by byte. */
static inline void check_image(const char *what, const file_image *image, const char *path)
{
    const file_image file = read_image(path);
    CHECK(file.bytes == image->bytes && memcmp(file.data, image->data, file.bytes) == 0,
          "%s: %zu bytes in memory are not the %zu of the file", what, image->bytes, file.bytes);
    free(file.data);
}

#endif
