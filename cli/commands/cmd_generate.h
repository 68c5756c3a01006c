/* cmd_generate.h - the parts of krait generate: options, output, a single run, and the chat. */
#ifndef KR_CLI_COMMANDS_CMD_GENERATE_H
#define KR_CLI_COMMANDS_CMD_GENERATE_H

#include "cli/common/language.h"
#include "cli/common/cli_machine.h"
#include "cli/common/text_ids.h"

#include <krait/generate.h>

typedef struct generate_values {
    cli_language_values language;
    cli_machine machine;
    const char *dash; /* the operand after MODEL */
    const char *prompt, *file, *prompts;
    bool is_ids, is_plain, adds_no_bos, echoes;
    int64_t max_tokens, samples, top_k, prefill_chunk, rows;
    double temperature; /* < 0: not given */
    double top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    bool is_greedy, ignores_eos, shows_logprobs, is_low_memory, shows_stats;
    cli_texts biases, stops, stop_ids;
    uint64_t seed;
    const char *save_state, *load_state;
} generate_values;

/* Outcome of a part of the work. */
typedef enum run_status { RUN_OK, RUN_FAILED, RUN_INTERRUPTED } run_status;

/* ---- printing (generate_print.c) ---- */

typedef enum print_form {
    PRINT_TEXT,
    PRINT_IDS,     /* numbers, a line for each sample */
    PRINT_LOGPROBS /* a line for each token: sample, id, logprob, text, with tabs between them */
} print_form;

typedef struct printed {
    char *bytes;
    size_t count, capacity;
} printed;

/* One sample goes to stdout as it comes. Of several, texts and numbers are kept and printed when all are done. */
typedef struct printer {
    print_form form;
    const kr_tokenizer *tok; /* may be NULL but for PRINT_TEXT */
    int64_t samples;
    printed *kept;   /* one for each sample; NULL when everything goes to stdout at once */
    char last;       /* the last byte that went to stdout; 0: none yet */
    bool is_closed;  /* the reader of stdout has gone */
    bool has_failed; /* a write failed, or there was no memory, and it was said */
} printer;

/* False after an error message. */
bool printer_open(printer *p, const generate_values *values, const kr_tokenizer *tok);
void printer_close(printer *p);

/* Ids of the prompt, a token of a sample, the end of an answer. Stop once is_closed or
 * has_failed is set. */
void printer_prompt(printer *p, const int32_t *ids, int64_t count);
void printer_token(printer *p, int64_t sample, const kr_generated *token);
void printer_end(printer *p);

/* ---- one run (generate_run.c) ---- */

typedef struct generate_run {
    const generate_values *values;
    kr_ctx *ctx;
    cli_language language;
    kr_generate_options options;
    kr_sampler_options sampler;
    kr_logit_bias biases[CLI_MAX_TEXTS];
    int32_t stop_ids[CLI_MAX_TEXTS + KR_MAX_EOS];
    kr_generation *g;
    printer out;
    bool is_begun;        /* g has read or loaded something */
    double started, load; /* when the program began; how long the model took to load */
    /* Of the last prompt and answer: */
    double asked, first, ended; /* times of the start, the first and the last token; first 0: no token */
    int64_t n_prompt, n_new;
    kr_finish finish; /* of the first row */
} generate_run;

/* The library's options from the command line; needs run->language. False after an error message. */
bool run_options(generate_run *run);

/* Replaces the run's generation with a new one. False after an error message. */
bool run_reset(generate_run *run);

/* Reads a text, or numbers; if that is nothing and nothing was read before it, the token that begins a text. */
run_status run_read(generate_run *run, const cli_text_source *source);

/* Generates and prints an answer, and the statistics if they are wanted. */
run_status run_answer(generate_run *run);

/* Files of states. False after an error message. */
bool run_save(generate_run *run, const char *path);
bool run_load(generate_run *run, const char *path);

/* ---- interactive chat (generate_chat.c) ---- */

/* Lines from the terminal, with an answer after each. Returns the exit status. */
int generate_chat(generate_run *run);

/* ---- many prompts (generate_prompts.c) ---- */

/* Reads prompts as JSON Lines and writes their continuations. The exit status. */
int generate_prompts(generate_run *run);

#endif
