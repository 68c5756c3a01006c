/* nfc.h - Unicode normalisation form C: characters fully composed, marks in canonical order. */
#ifndef KR_TEXT_NFC_H
#define KR_TEXT_NFC_H

#include "text/buffer.h"

/* NFC lengthens UTF-8 at most by this factor. */
enum { KR_NFC_GROWTH = 3 };

typedef struct kr_nfc_pair {
    uint32_t composed, first, second;
} kr_nfc_pair;

typedef struct kr_nfc_class {
    uint32_t first, last, combining;
} kr_nfc_class;

extern const kr_nfc_pair kr_nfc_pairs[];
extern const uint16_t kr_nfc_composites[];
extern const kr_nfc_class kr_nfc_classes[];
extern const uint32_t kr_nfc_pages[], kr_nfc_seconds[];
extern const int kr_nfc_npairs, kr_nfc_ncomposites, kr_nfc_nclasses, kr_nfc_npages, kr_nfc_nseconds;

/* One character while a text is normalised. */
typedef struct kr_nfc_char {
    uint32_t code, combining;
} kr_nfc_char;

/* Buffers of a normalisation; initialise as { .out.ctx = ctx, .chars.ctx = ctx, .sorted.ctx = ctx }. */
typedef struct kr_nfc {
    kr_buffer out, chars, sorted;
} kr_nfc;
void kr_nfc_free(kr_nfc *nfc);

/* Replaces *text[0..*bytes), valid UTF-8, by its normalised form: the text itself if it is normalised already, else
 * nfc->out until the next call. Time and memory are proportional to the text. */
bool kr_nfc_normalize(kr_nfc *nfc, const char **text, size_t *bytes);

#endif
