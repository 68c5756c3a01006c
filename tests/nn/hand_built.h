/* hand_built.h - networks for the reset tasks whose parameters are written down, not learned.
 *
 *   majority   Mamba-2, 62 parameters: a counter that a reset clears by a long step
 *   rotor      Mamba-3, 86 parameters: an anchor, set by a reset, that + and - turn by a third of a circle
 *   spinor     Mamba-3, 328 parameters: the same with quaternions; i and j turn it by half a circle about x and y
 *
 * One layer each, without its residual, between two linear maps: 3 symbols as one-hot rows in, logits out.
 */
#ifndef KR_TESTS_NN_HAND_BUILT_H
#define KR_TESTS_NN_HAND_BUILT_H

#include "tests/nn/task_sets.h"

#include <krait/krait.h>

/* What can be taken away from a network, so that it fails. */
typedef enum hand_flaw {
    HAND_FLAWLESS,
    HAND_NO_RESET,      /* a reset decays no more than the other symbols */
    HAND_SAME_ROTATION, /* both other symbols turn the same way */
    HAND_NO_ROTATION    /* nothing turns */
} hand_flaw;

typedef struct hand_options {
    task_kind task;
    kr_dtype dtype;
    hand_flaw flaw;
    kr_mamba3_pathway pathway; /* rotor and spinor */
} hand_options;

/* The network that the task is learned with, its parameters as they are drawn. rotation: of rotor and spinor. */
kr_network *task_network(kr_ctx *ctx, task_kind task, kr_dtype dtype, kr_rotation_kind rotation,
                         kr_mamba3_pathway pathway);

/* The network with the parameters written down. NULL after a failed check. */
kr_network *hand_network(kr_ctx *ctx, const hand_options *options);

/* What the flawless network computes for a row, by the formulas it was designed by: logits [s classes]. */
void hand_logits(task_kind task, const int32_t *symbols, int64_t ns, double *logit_sw);

#endif
