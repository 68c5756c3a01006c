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
    int64_t queued, taken;   /* steps with a choice; those whose choice was taken: KR_MARKS less at most */
} kr_steps;

/* Logits [b w] of one more token for each row of the state, which is moved on; ids [b]. sampler: its choice
 * for `rows` follows on the device, where it reads such logits; or NULL. They live until the next step. NULL after an
 * error. */
kr_tensor *kr_steps_run(kr_steps *steps, const kr_network *net, kr_state *state, const int32_t *ids,
                        kr_sampler *sampler, const int64_t *rows);

/* One more step that reads what the one before it chooses, which was not taken yet, so that the device goes on while the
 * host is told. False where it cannot be: the step is not recorded, or an error. */
bool kr_steps_go_ahead(kr_steps *steps, const kr_network *net, kr_state *state, kr_sampler *sampler);
static inline bool kr_steps_are_ahead(const kr_steps *steps)
{
    return steps->queued > steps->taken;
}

/* Waits for the choice of the first step whose choice was not taken; false where a row has none, or after an error. */
bool kr_steps_take(kr_steps *steps, const kr_sampler *sampler, int64_t count, const int64_t *rows, kr_sample *samples);

/* What was chosen and not taken is of no use any more. */
void kr_steps_forget(kr_steps *steps, kr_ctx *ctx);

/* Does this network take such steps on this device, with this state? */
bool kr_steps_are_for(const kr_steps *steps, const kr_network *net, const kr_state *state);

void kr_steps_free(kr_steps *steps, kr_ctx *ctx);

#endif
