/* steps.h - steps of a generation that are recorded once and replayed, on a device that can. */
#ifndef KR_GENERATE_STEPS_H
#define KR_GENERATE_STEPS_H

#include "device/device.h"
#include "generate/sampler.h"
#include "nn/network.h"

/* The step of one network, state and batch. The first time it is run as it is, the second time recorded, then replayed,
 * for as long as the state's tensors lie where they lay. */
typedef struct kr_steps {
    kr_tape *tape;           /* of these steps alone, so that nothing else changes what they read; NULL: not made yet */
    kr_recording *recording; /* NULL: there is none yet */
    uint64_t signature;      /* of the state that the last step was made for; 0: none was made */
    kr_tensor *ids, *logits; /* of the recording, on the tape */
    bool cannot;             /* be recorded: steps are run one kernel after another */
} kr_steps;

/* Logits [b w] of one more token for each row of the state, which is moved on; ids [b]. samples: a sampler whose choice
 * for `rows` follows on the device, or NULL. They live until the next step. NULL after an error. */
kr_tensor *kr_steps_run(kr_steps *steps, const kr_network *net, kr_state *state, const int32_t *ids,
                        kr_sampler *sampler, const int64_t *rows);

/* Does this network take such steps on this device, with this state? */
bool kr_steps_are_for(const kr_steps *steps, const kr_network *net, const kr_state *state);

void kr_steps_free(kr_steps *steps, kr_ctx *ctx);

#endif
