/* batch.h - many sequences through one network: rows that join and leave between two steps, each with its own prompt,
 * sampler, stop texts and constraint.
 *
 *   kr_row_batch *batch = kr_row_batch_create(ctx, net, tok, NULL);
 *   kr_row_options options;
 *   kr_row_options_init(&options);
 *   options.max_tokens = 20;
 *   for (int i = 0; i < 2; i++) {
 *       kr_row *row = kr_row_create(batch);
 *       kr_row_feed_text(row, i ? "Once upon" : "To be or", i ? 9 : 8); // copied and queued; nothing is computed
 *       kr_row_generate(row, &options);                                // what follows the prompt
 *   }
 *   const kr_row_event *events;
 *   int64_t count;
 *   while (kr_row_batch_step(batch, &events, &count) == KR_OK)
 *       for (int64_t i = 0; i < count; i++)
 *           if (events[i].kind == KR_ROW_EVENT_TOKEN) fwrite(events[i].text, 1, events[i].bytes, stdout);
 *   kr_row_batch_destroy(batch);                                           // and all its rows
 *
 * A row is a text: tokens that were fed or generated, and the state after them. Fed tokens are queued; kr_row_batch_step
 * reads them in pieces and generates one token for each row that has read its prompt and wants to generate. Rows can be
 * created, fed, forked, cancelled and destroyed between any two steps. The states of the generating rows lie side by
 * side; when a row joins or leaves, at most two rows are copied. Memory for them is doubled when rows need it, up to
 * max_rows, and only then the others are copied, too.
 *
 * On the CPU the tokens of a row, and the bits of its state, depend on its own tokens, options and seed only: not on
 * other rows, on when they join and leave, or on the number of threads. A text is read in pieces of a fixed number of
 * tokens, the grid, counted from the beginning of each feed; the last token of each feed is read by itself, as a
 * generated token is. A GPU chooses its kernels by the number of rows, so that a row may differ in its last bits;
 * kr_row_batch_stats.is_exact tells which of the two holds. */
#ifndef KRAIT_BATCH_H
#define KRAIT_BATCH_H

#include <krait/generate.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kr_row_batch kr_row_batch;
typedef struct kr_row kr_row;

/* ==== Batches ==== */

typedef struct kr_row_batch_options {
    size_t size;            /* set by kr_row_batch_options_init */
    int64_t max_rows;       /* 32: rows that generate in one step; others wait */
    int64_t grid;           /* 0: chosen for network and device. Tokens that are read at once, of one row */
    int64_t prefill_tokens; /* 0: four times the grid. Prompt tokens, of all rows, that one step reads at most */
} kr_row_batch_options;
#define kr_row_batch_options_init(options) KR_STRUCT_INIT(ROW_BATCH_OPTIONS, kr_row_batch_options, options)

/* Creates a batch for a vocabulary network. The tokenizer may be NULL; then there are no texts. NULL options: all
 * defaults. NULL after an error that names field, value and rule. The caller destroys the batch, which destroys its
 * rows; network and tokenizer must outlive it. */
KR_API kr_row_batch *kr_row_batch_create(kr_ctx *ctx, const kr_network *net, const kr_tokenizer *tok,
                                         const kr_row_batch_options *options);
KR_API void kr_row_batch_destroy(kr_row_batch *batch);

typedef enum kr_row_event_kind {
    KR_ROW_EVENT_PROMPT = 0, /* tokens of the row's prompt were read */
    KR_ROW_EVENT_TOKEN = 1,  /* a token was generated; finish is not KR_FINISH_NONE if it was the last one */
    KR_ROW_EVENT_ERROR = 2   /* the row failed and takes no further part; other rows and the context are not affected */
} kr_row_event_kind;

/* What a step did for one row. Pointers are valid until the next call with the batch or one of its rows. */
typedef struct kr_row_event {
    kr_row_event_kind kind;
    kr_row *row;
    int64_t position; /* of the token in the row's text; PROMPT: of the first of n_tokens tokens */
    int64_t n_tokens; /* 1; PROMPT: tokens that were read */
    kr_sample sample; /* TOKEN: the token, and its log-probability in the model's distribution, before any rule */
    const char *text; /* TOKEN: new text, in whole characters; "" without a tokenizer. ERROR: the message */
    size_t bytes;
    kr_finish finish;
    kr_status status; /* ERROR: what failed */
    /* PROMPT with score_prompt: the tokens at position + 1 ... position + n_scores with their log-probabilities. */
    int64_t n_scores;
    const kr_sample *scores;
    /* The n_top most probable tokens, in descending order: one list for a TOKEN, one for each score of a PROMPT. */
    int64_t n_top;
    const kr_sample *top;
    uint64_t reserved[4]; /* 0; for later versions */
} kr_row_event;

/* Takes one step: generates a token for each row that has read its prompt, and reads pieces of the prompts of others.
 * *events points to *count events, rows in the order of their creation. Returns KR_END, with no events, when no row has
 * anything to do. An error of one row, such as a NaN in its logits, is an event of that row. An error of the whole step
 * (out of memory, a fault of the device) is returned and stays in the context; rows that were in the step have failed
 * then and must be destroyed or restored. */
KR_API KR_MUST_CHECK kr_status kr_row_batch_step(kr_row_batch *batch, const kr_row_event **events, int64_t *count);

/* Replaces prefill_tokens, from the next step on: the prompt tokens, of all rows, that one step reads at most. 0: none, and a
 * step with no row that generates returns KR_END; -1: all that are queued. A piece is never cut: one is read if it is longer
 * than a positive limit. The bits of rows do not depend on it where kr_row_batch_stats.is_exact holds. */
KR_API kr_status kr_row_batch_set_prefill(kr_row_batch *batch, int64_t prefill_tokens);

typedef struct kr_row_batch_stats {
    int64_t rows;          /* rows of the batch */
    int64_t generating;    /* rows that take part in the next step */
    int64_t waiting;       /* rows that have a prompt to read, or wait for others to finish */
    int64_t prompt_tokens; /* tokens fed and read so far */
    int64_t tokens;        /* tokens generated so far */
    int64_t grid;          /* tokens in a piece */
    size_t state_bytes;    /* memory of one row's state; 0 before the first one was read */
    /* The bits of a row depend on its own tokens, options and seed only, not on other rows. True on the CPU; false on other
     * devices, with products in bf16 (kr_ctx_info.products), and for custom networks. */
    bool is_exact;
    uint64_t reserved[7]; /* 0; for later versions */
} kr_row_batch_stats;

/* Counts so far; all 0 for NULL. */
KR_API kr_row_batch_stats kr_row_batch_stats_of(const kr_row_batch *batch);

/* ==== Rows ==== */

/* A logits processor: changes logits [vocab] in place, after biases and penalties and before the temperature; -INFINITY
 * excludes a token. ids: the n tokens generated since kr_row_generate. Runs on the thread that calls kr_row_batch_step.
 * Any status other than KR_OK is an error of the row. The function must be deterministic if results are to be. */
typedef kr_status kr_logits_fn(void *user, const int32_t *ids, int64_t n, double *logits, int64_t vocab);

/* A constraint: which tokens may come next. `allowed` has a bit for each token, bit id % 32 of allowed[id / 32], all 0
 * when the function is called. At least one token must be allowed. Otherwise as kr_logits_fn. */
typedef kr_status kr_constraint_fn(void *user, const int32_t *ids, int64_t n, uint32_t *allowed, int64_t vocab);

typedef struct kr_row_options {
    size_t size;                       /* set by kr_row_options_init */
    const kr_sampler_options *sampler; /* NULL: all defaults; copied */
    /* 0: random stream of the seed. Rows with the same prompt, options and stream generate the same text. */
    uint64_t stream;
    int64_t max_tokens;          /* 256; -1: unlimited, until a stop */
    int n_stop_ids;              /* token ids that end the row; generated, but without text */
    const int32_t *stop_ids;     /* copied */
    int n_stops;                 /* strings that end the row; the text ends before them */
    const char *const *stops;    /* copied */
    int64_t n_top;               /* 0: the most probable tokens to report with each token and score */
    bool score_prompt;           /* false; true: log-probabilities of the fed tokens that are still to be read */
    kr_logits_fn *process;       /* NULL: no logits processor */
    void *process_user;          /* its first argument */
    kr_constraint_fn *constrain; /* NULL: no constraint */
    void *constrain_user;        /* its first argument */
} kr_row_options;
#define kr_row_options_init(options) KR_STRUCT_INIT(ROW_OPTIONS, kr_row_options, options)

/* Creates an empty row. NULL after an error. The batch owns it; kr_row_destroy removes it earlier, also while it
 * generates. */
KR_API kr_row *kr_row_create(kr_row_batch *batch);
KR_API void kr_row_destroy(kr_row *row);

/* Queues tokens after those that the row has. Nothing is computed. A text is encoded with the special tokens of the
 * tokenizer if the row is empty, and without them later. A row that has finished stays finished until kr_row_generate.
 * KR_ERR_STATE while the row generates: cancel it first. */
KR_API kr_status kr_row_feed(kr_row *row, const int32_t *ids, int64_t count);
KR_API kr_status kr_row_feed_text(kr_row *row, const char *text, size_t bytes);

/* Lets the row generate once its queue has been read; it needs at least one token. Replaces earlier options; counts for
 * penalties continue. NULL options: all defaults. */
KR_API kr_status kr_row_generate(kr_row *row, const kr_row_options *options);

/* Stops generating, and drops fed tokens that were not read. The row keeps what it has read and generated, and can be fed
 * again. */
KR_API kr_status kr_row_cancel(kr_row *row);

/* Creates a row of the same batch with the same text, queue, state and counts. It does not generate until
 * kr_row_generate. NULL after an error. */
KR_API kr_row *kr_row_fork(kr_row *row);

typedef struct kr_row_info {
    int64_t tokens;       /* tokens of its text: fed and generated */
    int64_t queued;       /* of them, not read yet */
    int64_t generated;    /* generated since kr_row_generate */
    bool is_generating;   /* it generates, or will when its queue has been read */
    kr_finish finish;     /* why it last finished */
    kr_status status;     /* KR_OK, or its error */
    uint64_t reserved[6]; /* 0; for later versions */
} kr_row_info;

/* What a row is doing; for NULL all 0 and KR_ERR_ARG. */
KR_API kr_row_info kr_row_info_of(const kr_row *row);

/* The root mean square of each head of the row's state in layer `slot`, into norms [capacity]: heads of Mamba-2 and
 * Mamba-3, 1 for Mamba-1. *count is their number. A row without a state has norms of 0. `norms` may be NULL if capacity is
 * 0. */
KR_API kr_status kr_row_state_norms(kr_row *row, int64_t slot, double *norms, int64_t capacity, int64_t *count);

/* ==== Snapshots ====
 *
 * What a row was at one moment, in memory, in a file or as a stream of bytes. */

typedef struct kr_snapshot kr_snapshot;

/* Copies text position, state, queue and counts of a row to memory. NULL after an error. The caller destroys it; it
 * may be restored into any row of any batch of the same network and context. */
KR_API kr_snapshot *kr_row_snapshot(kr_row *row);
KR_API void kr_snapshot_destroy(kr_snapshot *snapshot);

/* Makes the row what the snapshot holds. The row does not generate afterwards. After an error it has not changed. */
KR_API kr_status kr_row_restore(kr_row *row, const kr_snapshot *snapshot);

typedef struct kr_snapshot_info {
    int64_t tokens;       /* tokens of the text: fed and generated */
    int64_t queued;       /* of them, not read yet */
    size_t bytes;         /* memory of the snapshot; on a GPU most of it is the GPU's */
    uint64_t reserved[5]; /* 0; for later versions */
} kr_snapshot_info;

/* What a snapshot holds; all 0 for NULL. */
KR_API kr_snapshot_info kr_snapshot_info_of(const kr_snapshot *snapshot);

/* Snapshot and restore with a file, which is bound to the network's weights as those of kr_state_save are. Loading
 * untrusted files is safe. After an error the row has not changed. */
KR_API KR_MUST_CHECK kr_status kr_row_save(kr_row *row, const char *path);
KR_API KR_MUST_CHECK kr_status kr_row_load(kr_row *row, const char *path);

/* Takes the next `bytes` bytes. Any status other than KR_OK is the error of the call. */
typedef kr_status kr_write_fn(void *user, const void *data, size_t bytes);

/* Puts the next bytes, from 1 to `capacity`, at data, and their number into *bytes. KR_END at the end; any other status is
 * the error of the call. */
typedef kr_status kr_read_fn(void *user, void *data, size_t capacity, size_t *bytes);

/* The bytes of such a file to and from functions of the program: for a socket, an archive, or memory. Reading takes all
 * bytes up to KR_END; a program that does not trust their source limits their number in its function. kr_snapshot_read
 * returns NULL after an error; the caller destroys the snapshot. */
KR_API KR_MUST_CHECK kr_status kr_snapshot_write(const kr_snapshot *snapshot, kr_write_fn *write, void *user);
KR_API kr_snapshot *kr_snapshot_read(kr_row_batch *batch, kr_read_fn *read, void *user);

#ifdef __cplusplus
}
#endif
#endif
