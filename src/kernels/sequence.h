/* sequence.h - the tokens of a sequence. */
#ifndef KR_KERNELS_SEQUENCE_H
#define KR_KERNELS_SEQUENCE_H

#include <stdint.h>

/* A sequence: tokens start .. end-1 of batch row `row`. A row without resets is one sequence, a packed row several, one
 * after another. Lists are ordered by row and start, and are in memory that both the host and the kernels read. */
typedef struct kr_sequence {
    int64_t row, start, end;
} kr_sequence;

#endif
