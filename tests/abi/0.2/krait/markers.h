/* markers.h - class markers: learned rows that are spliced into a sequence at a place of their own.
 *
 *   const kr_class_token markers[] = { { .kind = KR_CLASS_TOKEN_START }, { .kind = KR_CLASS_TOKEN_END } };
 *   int64_t at = kr_marker_index(markers, 2, 1, 4);      // 5: where the end marker's output is, of 4 tokens
 */
#ifndef KRAIT_MARKERS_H
#define KRAIT_MARKERS_H

#include <krait/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kr_class_token_kind {
    KR_CLASS_TOKEN_START = 0,  /* before the first token */
    KR_CLASS_TOKEN_MIDDLE = 1, /* before token len / 2 */
    KR_CLASS_TOKEN_END = 2,    /* after the last token */
    KR_CLASS_TOKEN_CUSTOM = 3  /* before token `at`; past the end it waits for a token that may never come */
} kr_class_token_kind;

typedef struct kr_class_token {
    kr_class_token_kind kind;
    int64_t at;           /* KR_CLASS_TOKEN_CUSTOM */
    uint64_t reserved[2]; /* must be 0; for later versions */
} kr_class_token;

/* Where marker `which` of `count` stands in the output for `len` tokens. Markers of one place are in the order start,
 * middle, end, custom, then in that of the list. -1 for arguments out of range. */
KR_API int64_t kr_marker_index(const kr_class_token *markers, int count, int which, int64_t len);

#ifdef __cplusplus
}
#endif
#endif
