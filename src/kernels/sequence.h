/* sequence.h - which tokens a state or a window runs through. */
#ifndef KR_KERNELS_SEQUENCE_H
#define KR_KERNELS_SEQUENCE_H

#include <stdint.h>

/* A sequence: tokens start .. end-1 of batch row `row`. A row without resets is one sequence, a packed row several, one
 * after another. Lists are in order of row and start, and lie where both the host and the kernels read them. */
typedef struct kr_sequence {
    int64_t row, start, end;
} kr_sequence;

#endif
