/* step.h - the step of a decoder for one number of rows and one state: its buffers, its plan, its graph. */
#ifndef KR_DECODE_STEP_H
#define KR_DECODE_STEP_H

#include "decode/decoder.h"

struct kr_decode_step {
    kr_tape *tape;      /* of this step alone, so that nothing else changes what it reads */
    kr_tape_mark mark;  /* what is allocated after it belongs to one run */
    uint64_t signature; /* of everything whose addresses it contains */
    int64_t nb;         /* rows, those not in use included */
    bool is_fused, defers;
    kr_tensor *ids;      /* i32 [nb] in host memory ... */
    int32_t *device_ids; /* ... and where kernels read them */
    kr_embedding_args lookup;
    kr_tensor *looked_up; /* [nb 1 d], of the table's type or f32 */
    kr_decode_plan plan;
    kr_decode_linear_args head;
    kr_tensor *fused_logits; /* [nb w] of a fused head; NULL: the head runs op by op */
    kr_tensor *logits;       /* [nb w] of the last run */
    kr_tensor in_use;        /* the rows of the state among them */
    kr_graph *captured;      /* NULL: none yet */
    bool was_run;
};

/* A step of nb rows; is_fused: by a plan, otherwise op by op. NULL after an error. */
kr_decode_step *kr_decode_step_create(kr_decoder *d, kr_state *state, int64_t nb, bool is_fused, bool defers);
void kr_decode_step_destroy(kr_decode_step *step, kr_ctx *ctx);

/* Runs it for ids [n], n the rows of the state: launches its graph, or queues its kernels and captures them the second time.
 * Logits [nb w]; NULL after an error. */
kr_tensor *kr_decode_step_run(kr_decoder *d, kr_decode_step *step, kr_state *state, const int32_t *ids,
                              kr_device_sampler *sampler);

#endif
