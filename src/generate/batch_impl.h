/* batch_impl.h - structs of a batch and its rows, and the parts of a step: prompts are read, tokens are generated. */
#ifndef KR_GENERATE_BATCH_IMPL_H
#define KR_GENERATE_BATCH_IMPL_H

#include "decode/decoder.h"
#include "generate/sampler_impl.h"
#include "generate/stop_text.h"
#include "nn/network_impl.h"

#include <krait/batch.h>

/* Tokens of a row that the network has not read, and where feeds end among them. Initialised with { 0 }. */
typedef struct kr_row_queue {
    int32_t *ids; /* [capacity]; ids[from .. from + count) are unread */
    int64_t capacity, from, count;
    int64_t
        *ends; /* [end_capacity]; positions in the text: ends[end_from .. end_from + n_ends) lie behind what was read */
    int64_t end_capacity, end_from, n_ends;
} kr_row_queue;

/* One row of logits, in host memory; data NULL: none. */
typedef struct kr_row_logits {
    kr_dtype dtype;
    int64_t width;
    void *data;
} kr_row_logits;

/* Options of rows, checked. What they point to lives as long as rows use them. */
typedef struct kr_row_settings {
    kr_row_options options;
    kr_sampler_options sampler;
    kr_stops stops;
} kr_row_settings;

struct kr_row {
    kr_ctx *ctx;
    kr_row_batch *batch;
    kr_row *prev, *next; /* in the order of creation */
    uint64_t serial;     /* ascends in that order */
    uint64_t ticket;     /* rows that ask earlier are served first; 0: nothing to do */

    /* the text */
    int64_t n_tokens;   /* fed and generated */
    kr_row_queue queue; /* the last of them */
    int64_t feed_start; /* where the feed begins that is being read: pieces are counted from here */
    int64_t sampled_at; /* position of the last generated token; -1: none */
    kr_state *state;    /* its own; NULL: initial, or place is given */
    int64_t place;      /* its row of the batch's state of generating rows; -1: none */

    /* what a device computed ahead (batch_ahead.c): the state has read the last token, which is the first of the queue */
    bool is_ahead;   /* and `ahead` follows it, by the row's rules (id -1: none could be sampled); its logits are ... */
    kr_sample ahead; /* ... row ahead_at of the decoder's, until the next step of the batch; -1: they are not kept */
    int64_t ahead_at;     /* or: */
    kr_row_logits logits; /* those after it */

    /* generation */
    kr_arena arena; /* what the options point to */
    kr_row_options options;
    kr_sampler_options sampler_options;
    kr_row_sampler sampler;
    bool is_on_host; /* is it sampled there, also where a device samples? */
    kr_stops stops;
    kr_held_text text;
    int32_t *generated; /* [generated_capacity]: for callbacks only */
    int64_t n_generated, generated_capacity;
    bool is_generating;
    kr_finish finish;
    kr_status status;
    char message[1024]; /* of the status */
};

struct kr_row_batch {
    kr_ctx *ctx;
    const kr_network *net;
    const kr_tokenizer *tok; /* NULL: no texts */
    kr_row_batch_options options;
    kr_arena arena; /* arrays below, and the scratch of the sampler */
    kr_tape *tape;
    kr_sampler_work work;
    uint32_t *allowed; /* [(vocab + 31) / 32], of a constraint */
    int64_t vocab, grid;
    size_t longest; /* bytes of a token */
    /* Rows of a kr_generation: a feed is read together with the last token before it, and the options of a row never
     * change, so that a sample ahead stays valid and its logits are not kept. */
    bool is_generation;

    kr_row *first, *last;
    int64_t nrows;
    uint64_t n_serials, n_tickets, reads_after; /* the ticket of the row that read last */

    /* generating rows: row i of `live` is the state of members[i] */
    bool is_separate; /* rows keep their own states and are stepped one after another: class tokens have one position a
                       * state, and those of the rows may differ */
    kr_state *live;   /* NULL: not allocated yet. The decoder may defer its updates: kr_row_batch_flush */
    kr_decoder *decoder;
    kr_device_sampler *device; /* row i in place i; NULL: not created yet, or no device samples */
    bool host_samples;         /* from all logits: the device's sampler does not take their type */
    int64_t n_members;
    kr_row **members; /* [max_rows] */
    int32_t *ids;     /* [max_rows] */

    kr_row_event *events;
    int64_t n_events, event_capacity;
    kr_arena lists; /* of events: scores and top tokens */
    int64_t prompt_tokens, tokens;
    size_t state_bytes;
};

/* ---- queues ---- */

/* Capacity for more tokens and ends. False if the allocation fails: what the queue holds has not changed. */
bool kr_row_queue_reserve(kr_row_queue *queue, kr_memory *memory, int64_t more_ids, int64_t more_ends);
void kr_row_queue_put(kr_row_queue *queue, int32_t id);      /* within the capacity */
void kr_row_queue_put_end(kr_row_queue *queue, int64_t end); /* likewise */
void kr_row_queue_take(kr_row_queue *queue, int64_t count);  /* the first tokens were read */
void kr_row_queue_free(kr_row_queue *queue, kr_memory *memory);
bool kr_row_queue_copy(kr_row_queue *to, const kr_row_queue *from, kr_memory *memory); /* false: nothing has changed */

/* The tokens, and the ends of feeds; NULL for a queue that never held any. */
static inline const int32_t *kr_row_queue_ids(const kr_row_queue *queue)
{
    return queue->from ? queue->ids + queue->from : queue->ids;
}
static inline const int64_t *kr_row_queue_ends(const kr_row_queue *queue)
{
    return queue->end_from ? queue->ends + queue->end_from : queue->ends;
}

/* ---- batches ---- */

/* Can a batch run the network, and does the tokenizer belong to the context? False after an error. */
bool kr_row_batch_can_run(kr_ctx *ctx, const char *op, const kr_network *net, const kr_tokenizer *tok);

/* A batch with options that are checked and complete; op names the call in messages. NULL after an error. */
kr_row_batch *kr_row_batch_make(kr_ctx *ctx, const char *op, const kr_network *net, const kr_tokenizer *tok,
                                const kr_row_batch_options *options, bool is_generation);

/* ---- rows ---- */

/* The ids of a text that is fed, in memory of the context: *capacity elements, *count in use. add_special: with the special
 * tokens of the tokenizer; creator: the call that takes one. NULL after an error. */
int32_t *kr_row_encode(const kr_row_batch *batch, const char *op, const char *creator, bool add_special,
                       const char *text, size_t bytes, int64_t *count, int64_t *capacity);

/* Are ids [count] tokens of the network? False after an error. */
bool kr_row_check_ids(const kr_row_batch *batch, const char *op, const int32_t *ids, int64_t count);

/* Checks the options, which are complete, and copies their lists into the arena. False after an error. */
bool kr_row_settings_make(kr_row_settings *settings, const kr_row_batch *batch, const char *op, const char *sampler_op,
                          const kr_row_options *options, kr_arena *arena);

/* The row's options from now on; its random stream begins. False after an error: nothing has changed. */
bool kr_row_use(kr_row *row, const char *op, const kr_row_settings *settings);

/* Begins to generate by the options that the row has: its random stream continues, max_tokens counts from here. */
void kr_row_start(kr_row *row);

/* Tokens that the row reads next, as one piece; 0: none, or only the last one, which waits for a step. */
int64_t kr_row_piece(const kr_row *row);

/* Has it read all but its last token, and does it generate? */
static inline bool kr_row_is_ready(const kr_row *row)
{
    return row->is_generating && row->queue.count == 1;
}

/* The first `count` tokens of the queue were read: they count as part of the prompt, unless sampled. The
 * counts have capacity for them. What was computed ahead is used up. */
void kr_row_was_read(kr_row *row, int64_t count);

/* The context's error becomes the row's, and the context is clean again; an event tells. False if the error stays: a fault
 * of the device, or no memory. */
bool kr_row_fail(kr_row *row);

/* Completes `live` for readers and writers other than the decoder. False after an error. */
static inline bool kr_row_batch_flush(kr_row_batch *batch)
{
    return !batch->live || kr_decoder_flush(batch->decoder, batch->live);
}

/* A view on the row's state, on the batch's tape, or of an initial one; NULL after an error. */
kr_state *kr_row_state_view(kr_row *row);

/* The row gets a state of its own; false after an error. */
bool kr_row_own_state(kr_row *row);

/* Calls the row's constraint: batch->allowed are the tokens that may come next. False after an error of the row. */
bool kr_row_allow(kr_row *row);

/* Stops generating. */
void kr_row_end(kr_row *row, kr_finish finish);

/* A row of the same batch with the same text and queue, and logits if the row has them ahead, but no state yet. NULL after an
 * error. */
kr_row *kr_row_fork_text(kr_row *row, const char *op);

/* It gets a copy of the state; false after an error. */
bool kr_row_copy_state(kr_row *to, kr_row *from);

/* Its options' change of the logits, for kr_row_sampler; user is the row. */
bool kr_row_change_logits(void *user, kr_ctx *ctx, double *logits, int64_t vocab);

/* ---- results ahead of the calls ---- */

/* Takes the samples of a step that a device runs ahead: they become `ahead` of its rows. Before rows join or leave. False
 * after an error. */
bool kr_row_batch_settle(kr_row_batch *batch);

/* Rows that a device is not ahead of, while it is of others, read their last token and have its logits: so all of them
 * generate in the next step. False after an error. */
bool kr_row_batch_catch_up(kr_row_batch *batch);

/* Has the state read the row's last token? */
static inline bool kr_row_has_result(const kr_row *row)
{
    return row->is_ahead || row->logits.data;
}

/* Before the row leaves, or gets other options: instead of a sample ahead it has the logits, unless it is a
 * generation's. False after an error: nothing has changed. */
bool kr_row_keep_logits(kr_row *row);

/* A copy of the logits after its last token, for a copy of the row; none if it is yet to be read. False after an error. */
bool kr_row_copy_logits(kr_row *row, kr_row_logits *copy);

bool kr_row_logits_create(kr_row_logits *logits, kr_ctx *ctx, kr_dtype dtype, int64_t width); /* false after an error */
bool kr_row_logits_copy(kr_row_logits *to, const kr_row_logits *from, kr_ctx *ctx);           /* likewise */
void kr_row_logits_free(kr_row_logits *logits, kr_memory *memory);
kr_tensor *kr_row_logits_tensor(const kr_row_logits *logits, kr_tape *tape); /* [1 w]; NULL after an error */

/* ---- steps ---- */

/* A zeroed event of the row; NULL after an error. */
kr_row_event *kr_row_batch_event(kr_row_batch *batch, kr_row *row, kr_row_event_kind kind);

/* The n_top most probable tokens of row `index` of logits [b w], in memory of the events; NULL after an error. */
const kr_sample *kr_row_batch_top(kr_row_batch *batch, const kr_tensor *logits_bw, int64_t index, int64_t n_top);

/* Reads pieces of prompts, `most` tokens at most but one piece at least. False after an error of the batch. */
bool kr_row_batch_read(kr_row_batch *batch, int64_t most);

/* Takes the row out of the generating ones. Its state, which it keeps if `keep`, is copied, and that of the last one into
 * its place. False after an error. */
bool kr_row_batch_leave(kr_row *row, bool keep);

/* Puts `row` in place, and behind it n rows without a state, which get copies of its state; there is memory for them, or none
 * yet. Rows that have their own states only get the copies. False after an error. */
bool kr_row_batch_join_copies(kr_row *row, int64_t n, kr_row *const *copies);

/* No row is in place any longer; their states are lost, and memory for them is freed. What was computed ahead is dropped. */
void kr_row_batch_clear(kr_row_batch *batch);

/* Takes in ready rows while there are places, and lets rows leave that have finished. False after an error. */
bool kr_row_batch_assemble(kr_row_batch *batch);

/* One token for each generating row. False after an error of the batch. */
bool kr_row_batch_decode(kr_row_batch *batch);

#endif
