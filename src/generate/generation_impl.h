/* generation_impl.h - struct of a generation: rows, their text, and the states of active and finished rows. */
#ifndef KR_GENERATE_GENERATION_IMPL_H
#define KR_GENERATE_GENERATION_IMPL_H

#include "decode/decoder.h"
#include "generate/stop_text.h"
#include "generate/sampler_impl.h"
#include "nn/network_impl.h"

#include <krait/generate.h>

typedef struct kr_continuation {
    int32_t pending; /* the last token, fed or sampled: the network has not read it; -1: there is none yet */
    bool is_ready;   /* the network has read it and sampled the next token, which is not returned yet: */
    kr_sample ready;
    kr_finish finish;
    int64_t ntokens; /* since the last feed */
    kr_held_text text;
    kr_state *idle_state; /* of a row that has left the batch; else NULL */
    kr_generated made;
} kr_continuation;

struct kr_generation {
    kr_ctx *ctx;
    const kr_network *net;
    const kr_tokenizer *tok;     /* NULL: no texts */
    kr_arena arena;              /* lists below */
    kr_generate_options options; /* lists are copies */
    kr_stops stops;
    size_t longest; /* bytes of a token */
    int64_t vocab;
    kr_tape *tape;
    kr_sampler *sampler;
    kr_decoder *decoder;

    int64_t nrows;
    kr_continuation *rows;
    bool is_forked;  /* each row has its own state; before that they share one */
    kr_state *state; /* of the rows in the batch: */
    int64_t nmembers;
    int32_t *ids;       /* [nrows]: space for their pending tokens */
    int64_t *members;   /* [nrows]: their numbers, ascending; before the fork, all of them */
    int64_t *chosen;    /* [nrows]: space for a choice among them */
    kr_sample *samples; /* [nrows] */
    kr_state **joined;  /* [nrows]: space for their states */

    int64_t prompt_tokens, tokens;
    bool is_inconsistent; /* a call failed midway */
};

/* A state of all rows, or of the one that they share: g->state, or one on the tape. NULL after an error. */
kr_state *kr_generation_whole_state(const kr_generation *g);

/* Takes the results of the step that the device has run ahead, row by row. False after an error. */
bool kr_generation_catch_up(kr_generation *g);

/* From now on all rows are in the batch, with this state, which g then owns. */
void kr_generation_set_state(kr_generation *g, kr_state *state);

#endif
