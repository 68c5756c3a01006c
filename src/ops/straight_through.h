/* straight_through.h - the straight-through estimator: one tensor's values, another's gradient. */
#ifndef KR_OPS_STRAIGHT_THROUGH_H
#define KR_OPS_STRAIGHT_THROUGH_H

#include "ops/ops_impl.h"

/* The values of `value`, as value + (carrier - carrier) would be with a gradient for carrier alone: it goes to carrier
 * unchanged, none to value. The same shape and type. No copy. */
kr_tensor *kr_straight_through(kr_tape *tape, kr_tensor *value, kr_tensor *carrier);

#endif
