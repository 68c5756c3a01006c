/* decode_graph.h - decode steps that are captured once as a device graph and launched again, on devices that support it. */
#ifndef KR_GENERATE_DECODE_GRAPH_H
#define KR_GENERATE_DECODE_GRAPH_H

#include "device/device.h"
#include "generate/sampler_impl.h"
#include "nn/network_impl.h"

/* The step of one network, state and batch. It is run directly the first time, captured the second time, then launched, as
 * long as the state's tensors keep their addresses. */
typedef struct kr_decode_graph {
    kr_tape *tape;      /* for these steps only, so that nothing else changes what they read; NULL: not created yet */
    kr_graph *captured; /* NULL: none yet */
    uint64_t signature; /* of the state of the last step; 0: none */
    kr_tensor *ids, *logits; /* of the captured step, on the tape */
    bool cannot;             /* capture failed: steps run one kernel after another */
    int64_t queued, taken;   /* steps with a sample; steps whose sample was taken: at most KR_EVENTS fewer */
} kr_decode_graph;

/* Logits [b w] of one more token for each row of the state, which is updated; ids [b]. sampler: samples for `rows` on the
 * device, if it supports such logits; or NULL. The logits live until the next step. NULL after an error. */
kr_tensor *kr_decode_graph_run(kr_decode_graph *graph, const kr_network *net, kr_state *state, const int32_t *ids,
                               kr_sampler *sampler, const int64_t *rows);

/* Queues one more step that reads the sample of the previous one, which was not taken yet, so that the device continues
 * while the host processes it. False if the step is not captured, or after an error. */
bool kr_decode_graph_run_ahead(kr_decode_graph *graph, const kr_network *net, kr_state *state, kr_sampler *sampler);
static inline bool kr_decode_graph_is_ahead(const kr_decode_graph *graph)
{
    return graph->queued > graph->taken;
}

/* Waits for the oldest sample that was not taken; false if a row has none, or after an error. */
bool kr_decode_graph_take(kr_decode_graph *graph, const kr_sampler *sampler, int64_t count, const int64_t *rows,
                          kr_sample *samples);

/* Drops samples that were queued and not taken. */
void kr_decode_graph_forget(kr_decode_graph *graph, kr_ctx *ctx);

/* Can this network run captured steps on this device, with this state? */
bool kr_decode_graph_applies(const kr_decode_graph *graph, const kr_network *net, const kr_state *state);

void kr_decode_graph_free(kr_decode_graph *graph, kr_ctx *ctx);

#endif
