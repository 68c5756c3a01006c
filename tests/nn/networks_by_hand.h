/* networks_by_hand.h - whole sequences through stacks and networks, straight from the formulas: the oracle of their tests.
 *
 * Blocks are taken as they are; norms, MLPs, residual schemes, schedules and class tokens are written out.
 */
#ifndef KR_TESTS_NN_NETWORKS_BY_HAND_H
#define KR_TESTS_NN_NETWORKS_BY_HAND_H

#include "tests/nn/networks.h"

/* x [b s d] from an initial state, class tokens inserted. */
kr_tensor *stack_by_hand(kr_tape *tape, const kr_layers *layers, kr_tensor *x_bsd);

/* The same, and what stands after each virtual layer. */
kr_tensor *streams_by_hand(kr_tape *tape, const kr_layers *layers, kr_tensor *x_bsd, kr_tensor **after);

/* ids [b s] or features [b s f]. */
kr_tensor *network_by_hand(kr_tape *tape, const kr_network *network, kr_tensor *x);

/* y and the gradients of x and of all parameters, from a gradient of noise: by the library, or by hand. */
outcome *results_of(net *n, int64_t nb, int64_t ns, bool by_hand);

#endif
