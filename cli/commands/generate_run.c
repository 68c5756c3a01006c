/* generate_run.c - one run of krait generate: options, reading, answering, statistics, files of states. */
#include "cli/commands/cmd_generate.h"
#include "cli/common/interrupt.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- options ---- */

static bool parse_bias(const char *text, kr_logit_bias *bias)
{
    char *end = NULL;
    const long long id = strtoll(text, &end, 10);
    if (end == text || *end != '=' || id < 0 || id > INT32_MAX) return false;
    const char *value = end + 1;
    bias->id = (int32_t)id;
    bias->bias = strtod(value, &end);
    return end != value && !*end && !isnan(bias->bias);
}

static bool parse_lists(generate_run *run)
{
    const generate_values *v = run->values;
    for (int i = 0; i < v->biases.count; i++) {
        if (parse_bias(v->biases.text[i], &run->biases[i])) continue;
        cli_complain("see krait generate --help",
                     "generate: --logit-bias is '%s', but must be ID=VALUE, as in 50=-inf or 7=1.5", v->biases.text[i]);
        return false;
    }
    int n = 0;
    for (int i = 0; i < v->stop_ids.count; i++) {
        char *end = NULL;
        const long long id = strtoll(v->stop_ids.text[i], &end, 10);
        if (*end || id < 0 || id >= run->language.vocab) {
            cli_complain("see krait generate --help",
                         "generate: --stop-id is '%s', but must be a token from 0 to %" PRId64, v->stop_ids.text[i],
                         run->language.vocab - 1);
            return false;
        }
        run->stop_ids[n++] = (int32_t)id;
    }
    for (int i = 0; i < run->language.n_eos && !v->ignores_eos; i++) run->stop_ids[n++] = run->language.eos[i];
    run->options.n_stop_ids = n;
    run->options.stop_ids = run->stop_ids;
    return true;
}

bool run_options(generate_run *run)
{
    const generate_values *v = run->values;
    kr_generate_options *o = &run->options;
    kr_sampler_options *sampler = &run->sampler;
    kr_generate_options_init(o);
    kr_sampler_options_init(sampler);
    o->sampler = sampler;
    if (!parse_lists(run)) return false;
    const bool wants_draws = v->top_k || v->top_p < 1 || v->min_p > 0 || v->samples > 1;
    sampler->temperature = v->is_greedy ? 0 : v->temperature >= 0 ? v->temperature : wants_draws;
    sampler->top_k = v->top_k;
    sampler->top_p = v->top_p;
    sampler->min_p = v->min_p;
    sampler->repetition_penalty = v->repetition_penalty;
    sampler->presence_penalty = v->presence_penalty;
    sampler->frequency_penalty = v->frequency_penalty;
    sampler->n_biases = v->biases.count;
    sampler->biases = run->biases;
    sampler->seed = v->seed;
    o->n_samples = v->samples;
    o->max_tokens = v->max_tokens;
    o->prefill_chunk = v->prefill_chunk;
    o->n_stops = v->stops.count;
    o->stops = v->stops.text;
    return true;
}

bool run_reset(generate_run *run)
{
    kr_generation_destroy(run->g);
    run->g = kr_generation_create(run->ctx, run->language.net, run->language.tok, &run->options);
    run->is_begun = false;
    return !cli_failed(run->ctx);
}

/* ---- reading ---- */

static run_status feed(generate_run *run, const int32_t *ids, int64_t count)
{
    for (int64_t at = 0, n; at < count; at += n) { /* by chunks, so that an interrupt is heard */
        if (cli_interrupted()) return RUN_INTERRUPTED;
        n = count - at < run->options.prefill_chunk ? count - at : run->options.prefill_chunk;
        if (!run->is_begun && n < count - at) n++; /* the last token is read with the next input */
        kr_generation_feed(run->g, ids + at, n);
        if (cli_failed(run->ctx)) return RUN_FAILED;
        run->is_begun = true;
    }
    run->n_prompt += count;
    return RUN_OK;
}

static run_status feed_begin(generate_run *run)
{
    const cli_language *language = &run->language;
    if (run->is_begun || run->values->is_ids || run->values->adds_no_bos) return RUN_OK;
    return feed(run, language->begin, language->n_begin);
}

/* In place of an empty prompt. */
static run_status feed_start(generate_run *run)
{
    if (run->is_begun) { /* finished rows continue */
        kr_generation_feed(run->g, NULL, 0);
        return cli_failed(run->ctx) ? RUN_FAILED : RUN_OK;
    }
    if (run->language.start >= 0) return feed(run, &run->language.start, 1);
    cli_complain("give a prompt, such as -p \"Once upon a time\"",
                 "generate: the prompt is empty, and neither the model nor the tokenizer has a BOS token");
    return RUN_FAILED;
}

run_status run_read(generate_run *run, const cli_text_source *source)
{
    const int32_t *ids;
    const int64_t before = run->n_prompt;
    int64_t count = 0;
    cli_text_ids *text = cli_text_ids_open(source);
    if (!text) return RUN_FAILED;
    run_status status = feed_begin(run);
    while (status == RUN_OK && (count = cli_text_ids_next(text, &ids)) > 0) {
        if (run->values->echoes) printer_prompt(&run->out, ids, count);
        status = feed(run, ids, count);
    }
    if (count < 0) status = cli_failed(run->ctx) || !cli_interrupted() ? RUN_FAILED : RUN_INTERRUPTED;
    cli_text_ids_close(text);
    return status == RUN_OK && run->n_prompt == before ? feed_start(run) : status;
}

/* ---- answering ---- */

static void print_rate(const char *name, int64_t tokens, int64_t timed, double seconds)
{
    fprintf(stderr, "%-12s %" PRId64 " tokens", name, tokens);
    if (timed > 0 && seconds > 0) fprintf(stderr, ", %.1f tokens/s", (double)timed / seconds);
    fputc('\n', stderr);
}

static void print_stats(const generate_run *run)
{
    static const char *const finishes[] = { "interrupted", "max tokens", "stop id", "stop text" };
    char text[200];
    const double first = run->first > 0 ? run->first : run->ended;
    fprintf(stderr, "%-12s %s\n", "model", cli_language_text(&run->language, text, sizeof text));
    fprintf(stderr, "%-12s %s\n", "machine", cli_machine_text(run->ctx).text);
    fprintf(stderr, "%-12s %.3f s\n", "load", run->load);
    print_rate("prompt", run->n_prompt, run->n_prompt, first - run->asked);
    if (run->first > 0)
        fprintf(stderr, "%-12s %.3f s after loading, %.3f s after the program began\n", "first token",
                run->first - run->asked, run->first - run->started);
    print_rate("generated", run->n_new, run->n_new - run->options.n_samples, run->ended - first);
    fprintf(stderr, "%-12s %s\n", "finish", finishes[run->finish]);
    fprintf(stderr, "%-12s %s at most\n", "memory", cli_memory_text(run->ctx).text);
    cli_print_fallback(run->ctx);
}

run_status run_answer(generate_run *run)
{
    printer *out = &run->out;
    run->n_new = 0;
    run->first = 0;
    run->finish = run->values->max_tokens ? KR_FINISH_NONE : KR_FINISH_LENGTH;
    while (!cli_interrupted() && !out->is_closed && !out->has_failed && kr_generation_next(run->g) == KR_OK) {
        if (!run->n_new) run->first = cli_seconds();
        for (int64_t row = 0; row < run->values->samples; row++) {
            const kr_generated *token = kr_generation_row(run->g, row);
            if (!token->is_new) continue;
            run->n_new++;
            printer_token(out, row, token);
            if (!row) run->finish = token->finish;
        }
    }
    run->ended = cli_seconds();
    printer_end(out);
    if (cli_failed(run->ctx) || out->has_failed) return RUN_FAILED;
    if (run->values->shows_stats) print_stats(run);
    return cli_interrupted() ? RUN_INTERRUPTED : RUN_OK;
}

/* ---- states ---- */

bool run_save(generate_run *run, const char *path)
{
    return kr_generation_save(run->g, path) == KR_OK || !cli_failed(run->ctx);
}

bool run_load(generate_run *run, const char *path)
{
    if (kr_generation_load(run->g, path) != KR_OK && cli_failed(run->ctx)) return false;
    run->is_begun = true;
    return true;
}
