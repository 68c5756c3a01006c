/* cmd_eval.c - krait eval: how well a model predicts a text of any length, in constant memory.
 *
 *   nats/token = mean over scored tokens t of -log softmax(logits(.. t-1))[t];  perplexity = exp of it;
 *   bits/byte  = sum of the same / (log 2 bytes of the scored tokens)
 *
 * The text is read in chunks with the state carried from one to the next, so that every token is predicted from all
 * tokens before it; with --reset-every N, from those before it in its window of N tokens. The first token of the text
 * (of a window) is scored only if the tokenizer adds BOS. The softmax is over the whole table, padding included, as the
 * official loss has it.
 */
#define _POSIX_C_SOURCE 200809L
#include "cli/common/commands.h"
#include "cli/common/cli_files.h"
#include "cli/common/interrupt.h"
#include "cli/common/language.h"
#include "cli/common/cli_machine.h"
#include "cli/common/text_ids.h"

#include <krait/krait.h>

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct eval_values {
    cli_language_values language;
    cli_machine machine;
    const char *text;
    int64_t chunk, reset_every, max_tokens;
    bool is_plain, adds_no_bos, shows_stats;
} eval_values;

#define FIELD(name) offsetof(eval_values, name)

static const cli_operand operands[] = {
    { "MODEL", FIELD(language.folder), false, "a folder with config.json and model.safetensors" },
    { 0 },
};

static const cli_option options[] = {
    { "text", 0, "FILE", CLI_TEXT, FIELD(text), NULL, 0, "text to evaluate on; -: standard input" },
    { "max-tokens", 'n', "N", CLI_I64, FIELD(max_tokens), NULL, 1, "evaluate only the first N tokens" },
    { "reset-every", 0, "N", CLI_I64, FIELD(reset_every), NULL, 2, "reset the state every N tokens (default: never)" },
    { "chunk", 0, "N", CLI_I64, FIELD(chunk), "512", 1, "tokens per forward call; memory is proportional to it" },
    { "no-bos", 0, NULL, CLI_FLAG, FIELD(adds_no_bos), NULL, 0, "do not prepend BOS" },
    { "plain", 0, NULL, CLI_FLAG, FIELD(is_plain), NULL, 0, "do not parse special tokens in the text" },
    { "stats", 0, NULL, CLI_FLAG, FIELD(shows_stats), NULL, 0, "print times, tokens/s and memory on stderr" },
    CLI_LANGUAGE_OPTIONS(eval_values, language),
    CLI_MACHINE_OPTIONS(eval_values, machine),
    { 0 },
};

static const char more[] =
    "Prints one line each: nats/token, perplexity, bits/byte, scored tokens and their bytes.\n"
    "Ctrl-C stops after the current chunk, prints the figures so far, and exits with status 130.\n";

typedef struct evaluation {
    const eval_values *values;
    kr_ctx *ctx;
    cli_language language;
    kr_tape *tape;
    kr_state *state;
    int32_t *ids;      /* chunk + 1: read, but the last of them not predicted from */
    float *logprobs;   /* PART */
    int64_t held;      /* ids in it */
    int64_t in_window; /* tokens of the text since the last reset */
    int64_t n_read;    /* tokens of the text */
    int64_t n_scored;
    double nats, bytes; /* of the scored tokens */
    double started, shown;
} evaluation;

/* Tokens whose log-probabilities are computed at once: a table of them is small compared to the chunk's logits. */
enum { PART = 64 };

/* ---- scoring ---- */

/* logits [1 n w] and the tokens that follow -> adds their negative log-probabilities. */
static bool score(evaluation *e, kr_tensor *logits_bsw, const int32_t *came, int64_t count)
{
    for (int64_t at = 0; at < count; at += PART) {
        const int64_t n = count - at < PART ? count - at : PART;
        const kr_scope scope = kr_no_grad_begin(e->tape);
        kr_tensor *part_bsw = kr_cast(e->tape, kr_slice(e->tape, logits_bsw, 1, at, at + n), KR_DTYPE_F32);
        kr_tensor *id_bsw = kr_from_data(e->tape, KR_DTYPE_I32, KR_SHAPE(1, n, 1), came + at);
        kr_tensor *logprob_bsw = kr_gather(e->tape, kr_log_softmax(e->tape, part_bsw, -1), -1, id_bsw);
        if (logprob_bsw) kr_tensor_read(logprob_bsw, KR_DTYPE_F32, e->logprobs, n);
        kr_no_grad_end(e->tape, scope, 0, NULL);
        if (kr_ctx_failed(e->ctx)) return false;
        for (int64_t i = 0; i < n; i++) {
            size_t bytes = 0;
            kr_tokenizer_token(e->language.tok, came[at + i], &bytes);
            e->nats -= (double)e->logprobs[i];
            e->bytes += (double)bytes;
        }
    }
    e->n_scored += count;
    return true;
}

/* Reads ids with the state, and keeps the new one. The logits live until the tape is reset. */
static kr_tensor *read_ids(evaluation *e, const int32_t *ids, int64_t count, bool last_only)
{
    kr_call call;
    kr_call_init(&call);
    call.state = e->state;
    call.last_logits_only = last_only;
    kr_tensor *id_bs = kr_view_data(e->tape, KR_DTYPE_I32, KR_SHAPE(1, count), NULL, ids);
    const kr_network_out out = kr_network_forward(e->tape, e->language.net, id_bs, &call);
    return out.y && kr_state_copy(e->state, out.state) == KR_OK ? out.y : NULL;
}

/* Reads all ids but the last, each of which predicts the next; the last one is kept for the next call. */
static bool flush(evaluation *e)
{
    const int64_t count = e->held - 1;
    if (count < 1) return true;
    kr_tensor *logits_bsw = read_ids(e, e->ids, count, false);
    const bool is_scored = logits_bsw && score(e, logits_bsw, e->ids + 1, count);
    kr_tape_reset(e->tape);
    e->ids[0] = e->ids[count];
    e->held = 1;
    return is_scored;
}

static bool put(evaluation *e, int32_t id)
{
    e->ids[e->held++] = id;
    return e->held <= e->values->chunk || flush(e);
}

/* Resets the state and reads the tokens that begin a text: the last of them predicts the first token of the text. */
static bool begin_window(evaluation *e)
{
    const int n = e->values->adds_no_bos ? 0 : e->language.n_begin;
    e->held = 0;
    e->in_window = 0;
    bool is_well = kr_state_zero(e->state) == KR_OK;
    if (n > 1) is_well = is_well && read_ids(e, e->language.begin, n - 1, true);
    kr_tape_reset(e->tape);
    return is_well && (!n || put(e, e->language.begin[n - 1]));
}

static bool put_token(evaluation *e, int32_t id)
{
    const int64_t window = e->values->reset_every;
    if (window && e->in_window == window && !(flush(e) && begin_window(e))) return false;
    e->in_window++;
    e->n_read++;
    return put(e, id);
}

/* ---- the text ---- */

static void show_progress(evaluation *e)
{
    const double now = cli_seconds();
    if (now - e->shown < 1 || !e->n_scored || !isatty(STDERR_FILENO)) return;
    e->shown = now;
    fprintf(stderr, "\r%" PRId64 " tokens, %.4f nats/token, %.0f tokens/s ", e->n_read, e->nats / (double)e->n_scored,
            (double)e->n_read / (now - e->started));
}

/* Scores a text until it ends, is long enough, or is interrupted. */
static bool score_text(evaluation *e, cli_text_ids *text)
{
    const int32_t *ids;
    const int64_t most = e->values->max_tokens ? e->values->max_tokens : INT64_MAX;
    int64_t count;
    bool is_well = begin_window(e);
    while (is_well && e->n_read < most && !cli_interrupted() && (count = cli_text_ids_next(text, &ids)) != 0) {
        is_well = count > 0 || cli_interrupted();
        for (int64_t i = 0; is_well && i < count && e->n_read < most && !cli_interrupted(); i++) {
            is_well = put_token(e, ids[i]);
            if (e->held == 1) show_progress(e);
        }
    }
    is_well = is_well && flush(e);
    if (e->shown > e->started) fputc('\n', stderr);
    return is_well;
}

static bool open_and_score(evaluation *e)
{
    const char *name = e->values->text;
    const bool is_stdin = !strcmp(name, "-");
    cli_text_source source = { .tok = e->language.tok,
                               .is_plain = e->values->is_plain,
                               .name = is_stdin ? "standard input" : name,
                               .file = is_stdin ? stdin : fopen(name, "rb") };
    if (!source.file) return cli_cannot("open", name, errno);
    cli_text_ids *text = cli_text_ids_open(&source);
    const bool is_well = text && score_text(e, text);
    cli_text_ids_close(text);
    if (!is_stdin) fclose(source.file);
    return is_well && !cli_failed(e->ctx);
}

/* ---- the command ---- */

static void print_stats(const evaluation *e, double load)
{
    char text[200];
    const double seconds = cli_seconds() - e->started;
    fprintf(stderr, "%-12s %s\n", "model", cli_language_text(&e->language, text, sizeof text));
    fprintf(stderr, "%-12s %s\n", "machine", cli_machine_text(e->ctx).text);
    fprintf(stderr, "%-12s %.3f s\n", "load", load);
    fprintf(stderr, "%-12s %.3f s, %.1f tokens/s\n", "eval", seconds, (double)e->n_read / seconds);
    fprintf(stderr, "%-12s %s at most\n", "memory", cli_memory_text(e->ctx).text);
}

static bool print_figures(const evaluation *e)
{
    if (!e->n_scored) {
        cli_complain("a token is scored if another one precedes it",
                     "eval: nothing to score: %s has %" PRId64 " tokens", e->values->text, e->n_read);
        return false;
    }
    const double nats = e->nats / (double)e->n_scored;
    printf("nats/token %.9g\n", nats);
    printf("perplexity %.9g\n", exp(nats));
    printf("bits/byte  %.9g\n", e->nats / (log(2) * e->bytes));
    printf("tokens     %" PRId64 "\n", e->n_scored);
    printf("bytes      %.0f\n", e->bytes);
    return !fflush(stdout) || cli_cannot("write to", "stdout", errno);
}

static int work(evaluation *e)
{
    const double began = cli_seconds();
    const int64_t chunk = e->values->chunk;
    if (cli_failed(e->ctx) || !cli_language_open(e->ctx, &e->values->language, true, &e->language)) return CLI_FAILED;
    e->started = e->shown = cli_seconds();
    e->ids = malloc(((size_t)chunk + 1) * sizeof *e->ids);
    e->logprobs = malloc(PART * sizeof *e->logprobs);
    if (!e->ids || !e->logprobs) {
        cli_complain("a smaller --chunk needs less", "eval: out of memory for %" PRId64 " ids", chunk);
        return CLI_FAILED;
    }
    e->state = kr_state_create(e->ctx, kr_network_layers(e->language.net), 1);
    e->tape = kr_tape_create(e->ctx, KR_TAPE_NO_GRAD);
    if (cli_failed(e->ctx) || !open_and_score(e) || !print_figures(e)) return CLI_FAILED;
    if (e->values->shows_stats) print_stats(e, e->started - began);
    cli_print_fallback(e->ctx);
    return cli_interrupted() ? CLI_INTERRUPTED : CLI_OK;
}

static int run(int argc, char **argv)
{
    eval_values values = { 0 };
    int status = cli_parse(&cli_eval, &values, argc, argv);
    if (status >= 0) return status;
    if (!values.text) {
        cli_complain("see krait eval --help", "eval: --text FILE is missing: the text to evaluate on");
        return CLI_USAGE;
    }
    evaluation e = { .values = &values };
    cli_watch_interrupts();
    e.ctx = cli_open(&values.machine, 0);
    status = work(&e);
    free(e.ids);
    free(e.logprobs);
    kr_tape_destroy(e.tape);
    kr_state_destroy(e.state);
    cli_language_close(&e.language);
    kr_ctx_destroy(e.ctx);
    return status;
}

const cli_command cli_eval = { .name = "eval",
                               .summary = "evaluate a model on a text: nats, perplexity, bits per byte",
                               .options = options,
                               .run = run,
                               .operands = operands,
                               .more = more };
