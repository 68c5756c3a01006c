/* plan.h - a step of a stack, decided in advance: which kernels run, with which arguments, in which order.
 *
 * Fused kernels (kernels/args/decode_args.h) run a layer's norm, block and residual; MLPs, and layers whose residual is
 * ignored, run op by op on the plan's tape. A plan holds addresses of the weights, of the state's tensors and of buffers on
 * the tape, and is valid as long as they stay where they are.
 */
#ifndef KR_DECODE_PLAN_H
#define KR_DECODE_PLAN_H

#include "decode/decode_family.h"
#include "nn/network_impl.h"

typedef struct kr_decode_plan {
    const kr_layers *layers;
    const kr_cache *slots; /* of the state */
    int64_t nb;
    kr_ssd_path path;          /* of layers that run op by op */
    const kr_tensor *x_bsd;    /* input of the first layer, f32 [b 1 d] */
    kr_tensor *stream_bsd;     /* after each layer; may be x */
    kr_tensor **records;       /* [nvirtual]: deferred updates; NULL: updates are applied at once */
    kr_embedding_args *lookup; /* writes x first, which is the stream; NULL: x is written */
    bool may_join;             /* layers may run as one kernel; x is the stream */
    kr_decode_layer *each;     /* [nvirtual] */
    kr_decode_stack stack;
    size_t stack_scratch; /* > 0: the device runs all layers in one kernel, with so much scratch */
} kr_decode_plan;

/* Why no plan of the context can run the stack in one token of each row, and it runs op by op; NULL: a plan can. What a call
 * may ask for is not part of it. The second is for any stack. */
const char *kr_decode_stack_fallback(const kr_ctx *ctx, const kr_layers *layers);
const char *kr_decode_device_fallback(const kr_ctx *ctx);

/* Can decode kernels read and write the state's tensors? */
bool kr_decode_state_fits(const kr_layers *layers, const kr_state *state);

/* Completes a plan whose fields up to `may_join` are set. False after an error. */
bool kr_decode_plan_make(kr_tape *tape, kr_decode_plan *plan);

/* Queues the kernels. x is then overwritten if it is the stream. False after an error. */
bool kr_decode_plan_run(kr_tape *tape, kr_decode_plan *plan);

/* ---- the head ---- */

/* Does a fused kernel run final norm and head on an f32 stream? And its arguments. */
bool kr_decode_head_is_fused(const kr_network *net);
kr_decode_linear_args kr_decode_head_args(const kr_network *net, const kr_tensor *x_bsd, const kr_tensor *y_bw);

#endif
