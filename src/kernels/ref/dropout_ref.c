/* dropout_ref.c - elements that are kept, scaled, and zeros for the others. */
#include "base/dropout_words.h"
#include "kernels/ref/ref.h"

void KR_REF(dropout)(const kr_dropout_args *a)
{
    const real *x = a->x;
    real *y = a->y;
    for (int64_t i = 0; i < a->n; i++) {
        const bool is_kept = kr_dropout_word(a->seed, a->stream, a->first + (uint64_t)i) >= a->threshold;
        y[i] = is_kept ? (real)((double)x[i] * a->scale) : 0;
    }
}
