/* generate_prompts.c - krait generate --prompts FILE: many prompts at once, JSON Lines in and out.
 *
 * Each line of the input is a prompt: a string, or an object with "prompt" (a string, or a list of ids) and members that
 * replace options of the command line: "max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "repetition_penalty",
 * "presence_penalty", "frequency_penalty", "logprobs" (true or false), or add to them: "stop" (a string or a list of strings),
 * "stop_ids" (an id or a list of ids), "logit_bias" (an object {"ID": number}, where null excludes the token). "id", a string
 * or a whole number, is copied to the output. Each prompt gives one line, in the order of the input:
 *
 *   {"index": 0, "id": "a", "text": "...", "ids": [1, 2], "logprobs": [-0.1, -2.5], "finish": "stop",
 *    "prompt_tokens": 4, "tokens": 2}
 *   {"index": 1, "error": "..."}
 *
 * Lines are read as rows of the batch become free, so that the input may be of any length.
 */
#define _POSIX_C_SOURCE 200809L
#include "cli/commands/cmd_generate.h"
#include "cli/common/cli_files.h"
#include "cli/common/cli_utf8.h"
#include "cli/common/interrupt.h"

#include <krait/batch.h>
#include <krait/experimental/json.h>

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STOPS = 32, MAX_STOP_IDS = 32, MAX_BIASES = 1024 };

/* A prompt from its line to its output. */
typedef struct job {
    struct job *next;
    int64_t index, n_prompt, n_tokens;
    char *id; /* as JSON; NULL: none */
    kr_row *row;
    printed text, ids, logprobs;
    kr_finish finish;
    char *error;
    bool is_done, shows_logprobs;
} job;

typedef struct prompts {
    generate_run *run;
    kr_row_batch *batch;
    FILE *file;
    const char *name;
    char *line; /* of getline */
    size_t capacity;
    int64_t n_jobs;    /* so far */
    job *first, *last; /* in the order of the input; the first one is not written yet */
    bool is_read, has_failed, has_errors;
} prompts;

/* ---- text ---- */

static void add(prompts *p, printed *to, const char *bytes, size_t count)
{
    if (p->has_failed) return;
    if (to->count + count + 1 > to->capacity) {
        const size_t capacity = 2 * (to->count + count) + 64;
        char *grown = realloc(to->bytes, capacity);
        p->has_failed = !grown;
        if (!grown) {
            cli_complain(NULL, "out of memory");
            return;
        }
        to->bytes = grown;
        to->capacity = capacity;
    }
    if (count) memcpy(to->bytes + to->count, bytes, count);
    to->count += count;
    to->bytes[to->count] = '\0';
}

KR_PRINTF(3, 4) static void add_format(prompts *p, printed *to, const char *format, ...)
{
    char text[64];
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    add(p, to, text, (size_t)n);
}

/* As a JSON string; bytes that are no character become U+FFFD. */
static void add_string(prompts *p, printed *to, const char *text, size_t bytes)
{
    add(p, to, "\"", 1);
    for (size_t at = 0, n; at < bytes; at += n) {
        const unsigned char c = (unsigned char)text[at];
        n = cli_utf8_bytes(text + at, bytes - at);
        if (c == '"' || c == '\\') {
            add(p, to, "\\", 1);
            add(p, to, text + at, n = 1);
        } else if (c == '\n') {
            add(p, to, "\\n", 2);
        } else if (c < 0x20 || c == 0x7f) {
            add_format(p, to, "\\u%04x", c);
        } else if (n == 0) {
            add(p, to, "\xef\xbf\xbd", 3);
        } else {
            add(p, to, text + at, n);
        }
        if (n == 0) n = 1;
    }
    add(p, to, "\"", 1);
}

/* ---- a line of the input ---- */

KR_PRINTF(2, 3) static void fail_job(job *j, const char *format, ...)
{
    va_list args;
    if (j->error) return;
    va_start(args, format);
    const int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    j->error = malloc((size_t)n + 1);
    va_start(args, format);
    if (j->error) vsnprintf(j->error, (size_t)n + 1, format, args);
    va_end(args);
    j->is_done = true;
}

/* The context's error becomes the job's. */
static void fail_job_of(prompts *p, job *j)
{
    fail_job(j, "%s", kr_ctx_message(p->run->ctx));
    kr_ctx_clear(p->run->ctx);
}

/* What a line asks for, on top of the command line. */
typedef struct request {
    kr_sampler_options sampler;
    kr_row_options options;
    const char *stops[MAX_STOPS + CLI_MAX_TEXTS];
    int32_t stop_ids[MAX_STOP_IDS + CLI_MAX_TEXTS + KR_MAX_EOS];
    kr_logit_bias biases[MAX_BIASES + CLI_MAX_TEXTS];
    const kr_json *prompt;
} request;

static void add_stop(job *j, request *r, const kr_json *value)
{
    const char *text = kr_json_text(value);
    if (!text || !*text) fail_job(j, "stop must be a text that is not empty, or a list of such texts");
    else if (r->options.n_stops == MAX_STOPS + CLI_MAX_TEXTS) fail_job(j, "stop has more than %d texts", MAX_STOPS);
    else r->stops[r->options.n_stops++] = text;
}

static void take_stops(job *j, request *r, const kr_json *value)
{
    if (kr_json_kind_of(value) != KR_JSON_ARRAY) {
        add_stop(j, r, value);
        return;
    }
    for (const kr_json *one = kr_json_first(value); one; one = kr_json_next(one)) add_stop(j, r, one);
}

static void add_stop_id(const prompts *p, job *j, request *r, const kr_json *value)
{
    const int64_t id = kr_json_integer(value, -1), vocab = p->run->language.vocab;
    if (id < 0 || id >= vocab)
        fail_job(j, "stop_ids must be a token from 0 to %" PRId64 ", or a list of such", vocab - 1);
    else if (r->options.n_stop_ids == p->run->options.n_stop_ids + MAX_STOP_IDS)
        fail_job(j, "stop_ids has more than %d tokens", MAX_STOP_IDS);
    else r->stop_ids[r->options.n_stop_ids++] = (int32_t)id;
}

static void take_stop_ids(const prompts *p, job *j, request *r, const kr_json *value)
{
    if (kr_json_kind_of(value) != KR_JSON_ARRAY) {
        add_stop_id(p, j, r, value);
        return;
    }
    for (const kr_json *one = kr_json_first(value); one; one = kr_json_next(one)) add_stop_id(p, j, r, one);
}

static void add_bias(const prompts *p, job *j, request *r, const kr_json *value)
{
    const char *key = kr_json_key(value);
    char *end = NULL;
    const long long id = strtoll(key, &end, 10);
    const kr_json_kind kind = kr_json_kind_of(value);
    if (end == key || *end || id < 0 || id >= p->run->language.vocab)
        fail_job(j, "logit_bias has the member \"%s\", but must have tokens from 0 to %" PRId64, key,
                 p->run->language.vocab - 1);
    else if (kind != KR_JSON_NUMBER && kind != KR_JSON_NULL)
        fail_job(j, "logit_bias of token %s must be a number, or null to exclude the token", key);
    else if (r->sampler.n_biases == p->run->sampler.n_biases + MAX_BIASES)
        fail_job(j, "logit_bias has more than %d tokens", MAX_BIASES);
    else
        r->biases[r->sampler.n_biases++] =
            (kr_logit_bias){ (int32_t)id, kind == KR_JSON_NULL ? -(double)INFINITY : kr_json_number(value, 0) };
}

static void take_biases(const prompts *p, job *j, request *r, const kr_json *value)
{
    if (kr_json_kind_of(value) != KR_JSON_OBJECT) fail_job(j, "logit_bias must be an object: {\"ID\": number}");
    for (const kr_json *one = kr_json_first(value); one && !j->error; one = kr_json_next(one)) add_bias(p, j, r, one);
}

static void take_id(prompts *p, job *j, const kr_json *value)
{
    printed text = { NULL, 0, 0 };
    if (kr_json_kind_of(value) == KR_JSON_STRING)
        add_string(p, &text, kr_json_text(value), (size_t)kr_json_length(value));
    else if (kr_json_is_integer(value)) add_format(p, &text, "%" PRId64, kr_json_integer(value, 0));
    else fail_job(j, "id is a %s, but must be a string or a whole number", kr_json_kind_name(kr_json_kind_of(value)));
    j->id = text.bytes;
}

/* A member of the line's object. */
static void take_member(prompts *p, job *j, request *r, const kr_json *value)
{
    const char *key = kr_json_key(value);
    const struct {
        const char *name;
        double *real;
        int64_t *whole;
    } numbers[] = {
        { "temperature", &r->sampler.temperature, NULL },
        { "top_p", &r->sampler.top_p, NULL },
        { "min_p", &r->sampler.min_p, NULL },
        { "repetition_penalty", &r->sampler.repetition_penalty, NULL },
        { "presence_penalty", &r->sampler.presence_penalty, NULL },
        { "frequency_penalty", &r->sampler.frequency_penalty, NULL },
        { "top_k", NULL, &r->sampler.top_k },
        { "max_tokens", NULL, &r->options.max_tokens },
        { "seed", NULL, (int64_t *)&r->sampler.seed },
    };
    if (strcmp(key, "prompt") == 0) {
        r->prompt = value;
    } else if (strcmp(key, "stop") == 0) {
        take_stops(j, r, value);
    } else if (strcmp(key, "stop_ids") == 0) {
        take_stop_ids(p, j, r, value);
    } else if (strcmp(key, "logit_bias") == 0) {
        take_biases(p, j, r, value);
    } else if (strcmp(key, "logprobs") == 0) {
        j->shows_logprobs = kr_json_bool(value, false);
        if (kr_json_kind_of(value) != KR_JSON_BOOL) fail_job(j, "logprobs must be true or false");
    } else if (strcmp(key, "id") == 0) {
        take_id(p, j, value);
    } else {
        size_t i = 0;
        while (i < sizeof numbers / sizeof *numbers && strcmp(numbers[i].name, key) != 0) i++;
        if (i == sizeof numbers / sizeof *numbers) fail_job(j, "unknown member \"%s\"", key);
        else if (numbers[i].whole && !kr_json_is_integer(value)) fail_job(j, "%s must be a whole number", key);
        else if (kr_json_kind_of(value) != KR_JSON_NUMBER) fail_job(j, "%s must be a number", key);
        else if (numbers[i].whole) *numbers[i].whole = kr_json_integer(value, 0);
        else *numbers[i].real = kr_json_number(value, 0);
    }
}

static void begin_request(const prompts *p, request *r)
{
    const kr_generate_options *o = &p->run->options;
    *r = (request){ .sampler = p->run->sampler };
    kr_row_options_init(&r->options);
    r->options.sampler = &r->sampler;
    r->options.max_tokens = o->max_tokens;
    r->options.n_stop_ids = o->n_stop_ids;
    r->options.stop_ids = r->stop_ids;
    if (o->n_stop_ids) memcpy(r->stop_ids, o->stop_ids, (size_t)o->n_stop_ids * sizeof *r->stop_ids);
    r->sampler.biases = r->biases;
    memcpy(r->biases, p->run->biases, (size_t)r->sampler.n_biases * sizeof *r->biases);
    r->options.stops = r->stops;
    for (int i = 0; i < o->n_stops; i++) r->stops[r->options.n_stops++] = o->stops[i];
}

/* ---- the prompt ---- */

static void feed_ids(prompts *p, job *j, const kr_json *list)
{
    int64_t n = 0;
    const int64_t count = kr_json_length(list);
    int32_t *ids = malloc((size_t)(count ? count : 1) * sizeof *ids);
    if (!ids) {
        fail_job(j, "out of memory for %" PRId64 " ids", count);
        return;
    }
    for (const kr_json *one = kr_json_first(list); one; one = kr_json_next(one)) {
        const int64_t id = kr_json_integer(one, -1);
        if (id < 0 || id >= p->run->language.vocab) {
            fail_job(j, "prompt[%" PRId64 "] must be a token from 0 to %" PRId64, n, p->run->language.vocab - 1);
            break;
        }
        ids[n++] = (int32_t)id;
    }
    if (!j->error) kr_row_feed(j->row, ids, n);
    free(ids);
}

static void feed_text(prompts *p, job *j, const char *text, size_t bytes)
{
    const generate_run *run = p->run;
    const cli_text_source source = {
        .tok = run->language.tok, .is_plain = run->values->is_plain, .name = "the prompt", .text = text, .bytes = bytes
    };
    const int32_t *ids;
    int64_t count = 0;
    cli_text_ids *blocks = cli_text_ids_open(&source);
    if (!blocks) {
        fail_job(j, "out of memory");
        return;
    }
    if (!run->values->adds_no_bos) kr_row_feed(j->row, run->language.begin, run->language.n_begin);
    while (!kr_ctx_failed(run->ctx) && (count = cli_text_ids_next(blocks, &ids)) > 0) kr_row_feed(j->row, ids, count);
    cli_text_ids_close(blocks);
}

static void feed(prompts *p, job *j, const kr_json *prompt)
{
    const cli_language *language = &p->run->language;
    const kr_json_kind kind = kr_json_kind_of(prompt);
    if (kind == KR_JSON_ARRAY) feed_ids(p, j, prompt);
    else if (kind != KR_JSON_STRING) fail_job(j, "prompt must be a string, or a list of token ids");
    else if (p->run->values->is_ids) fail_job(j, "prompt is a text, but with --ids it must be a list of token ids");
    else feed_text(p, j, kr_json_text(prompt), (size_t)kr_json_length(prompt));
    if (j->error || kr_ctx_failed(p->run->ctx)) return;
    if (kr_row_info_of(j->row).tokens == 0) {
        if (language->start >= 0) kr_row_feed(j->row, &language->start, 1);
        else fail_job(j, "the prompt is empty, and neither the model nor the tokenizer has a BOS token");
    }
    j->n_prompt = kr_row_info_of(j->row).tokens;
}

static void start(prompts *p, job *j, const kr_json *root)
{
    request r;
    begin_request(p, &r);
    if (kr_json_kind_of(root) == KR_JSON_OBJECT) {
        for (const kr_json *one = kr_json_first(root); one; one = kr_json_next(one)) take_member(p, j, &r, one);
        if (!r.prompt) fail_job(j, "the line has no \"prompt\"");
    } else {
        r.prompt = root;
    }
    if (j->error) return;
    j->row = kr_row_create(p->batch);
    if (j->row) feed(p, j, r.prompt);
    if (!j->error && !kr_ctx_failed(p->run->ctx)) kr_row_generate(j->row, &r.options);
    if (kr_ctx_failed(p->run->ctx)) fail_job_of(p, j);
}

/* The next line becomes a job. False at the end of the input, or after an error message. */
static bool read_line(prompts *p)
{
    ssize_t bytes;
    errno = 0;
    do {
        bytes = getline(&p->line, &p->capacity, p->file);
    } while (bytes >= 0 && strspn(p->line, " \t\r\n") == (size_t)bytes); /* an empty line */
    if (bytes < 0) {
        p->is_read = true;
        if (ferror(p->file) && !cli_interrupted()) {
            cli_cannot("read", p->name, errno);
            p->has_failed = true;
        }
        return false;
    }
    job *j = calloc(1, sizeof *j);
    if (!j) {
        cli_complain(NULL, "out of memory");
        p->has_failed = true;
        return false;
    }
    j->index = p->n_jobs++;
    j->shows_logprobs = p->run->values->shows_logprobs;
    if (p->last) p->last->next = j;
    else p->first = j;
    p->last = j;
    kr_json *root = kr_json_parse(p->run->ctx, p->line, (size_t)bytes, NULL);
    if (root) start(p, j, root);
    else fail_job_of(p, j);
    kr_json_destroy(root);
    return true;
}

/* ---- output ---- */

static void write_job(prompts *p, const job *j)
{
    static const char *const finishes[] = { "none", "length", "stop", "stop" };
    printed line = { NULL, 0, 0 };
    add_format(p, &line, "{\"index\": %" PRId64, j->index);
    if (j->id) {
        add(p, &line, ", \"id\": ", 8);
        add(p, &line, j->id, strlen(j->id));
    }
    if (j->error) {
        add(p, &line, ", \"error\": ", 11);
        add_string(p, &line, j->error, strlen(j->error));
    } else {
        if (!p->run->values->is_ids) {
            add(p, &line, ", \"text\": ", 10);
            add_string(p, &line, j->text.bytes ? j->text.bytes : "", j->text.count);
        }
        add(p, &line, ", \"ids\": [", 10);
        add(p, &line, j->ids.bytes, j->ids.count);
        add(p, &line, "]", 1);
        if (j->shows_logprobs) {
            add(p, &line, ", \"logprobs\": [", 15);
            add(p, &line, j->logprobs.bytes, j->logprobs.count);
            add(p, &line, "]", 1);
        }
        add_format(p, &line, ", \"finish\": \"%s\"", finishes[j->finish]);
        add_format(p, &line, ", \"prompt_tokens\": %" PRId64, j->n_prompt);
        add_format(p, &line, ", \"tokens\": %" PRId64, j->n_tokens);
    }
    add(p, &line, "}\n", 2);
    printer *out = &p->run->out;
    errno = 0;
    if (!p->has_failed && (fwrite(line.bytes, 1, line.count, stdout) != line.count || fflush(stdout))) {
        out->is_closed = errno == EPIPE;
        p->has_failed = !out->is_closed;
        if (p->has_failed) cli_cannot("write to", "stdout", errno);
    }
    free(line.bytes);
}

static void close_job(job *j)
{
    kr_row_destroy(j->row);
    free(j->id);
    free(j->error);
    free(j->text.bytes);
    free(j->ids.bytes);
    free(j->logprobs.bytes);
    free(j);
}

/* Writes the jobs that are done, as far as they are the first ones. */
static void write_done(prompts *p)
{
    while (p->first && p->first->is_done && !p->run->out.is_closed) {
        job *j = p->first;
        write_job(p, j);
        p->has_errors = p->has_errors || j->error;
        p->first = j->next;
        if (!p->first) p->last = NULL;
        close_job(j);
    }
}

/* ---- steps ---- */

static job *job_of(const prompts *p, const kr_row *row)
{
    job *j = p->first;
    while (j && j->row != row) j = j->next;
    return j;
}

static void take_event(prompts *p, const kr_row_event *e)
{
    job *j = job_of(p, e->row);
    if (!j) return;
    if (e->kind == KR_ROW_EVENT_ERROR) fail_job(j, "%s", e->text);
    if (e->kind == KR_ROW_EVENT_TOKEN) {
        const char *comma = j->n_tokens++ ? ", " : "";
        add(p, &j->text, e->text, e->bytes);
        add_format(p, &j->ids, "%s%" PRId32, comma, e->sample.id);
        add_format(p, &j->logprobs, "%s%.6g", comma, e->sample.logprob);
    }
    if (e->finish == KR_FINISH_NONE) return;
    j->finish = e->finish;
    j->is_done = true;
}

static int64_t count_jobs(const prompts *p)
{
    int64_t n = 0;
    for (const job *j = p->first; j; j = j->next) n += !j->is_done;
    return n;
}

/* Until all prompts are done. Twice as many as there are rows wait, so that places do not stay empty. */
static void run_all(prompts *p)
{
    const kr_row_event *events;
    int64_t count;
    const int64_t most = 2 * p->run->values->rows;
    while (!cli_interrupted() && !p->has_failed && !p->run->out.is_closed && !kr_ctx_failed(p->run->ctx)) {
        while (!p->is_read && !p->has_failed && count_jobs(p) < most && read_line(p)) write_done(p);
        const kr_status status = kr_row_batch_step(p->batch, &events, &count);
        for (int64_t i = 0; i < count; i++) take_event(p, &events[i]);
        write_done(p);
        if (status == KR_END && p->is_read) break;
    }
}

int generate_prompts(generate_run *run)
{
    const char *path = run->values->prompts;
    prompts p = { .run = run, .name = path };
    kr_row_batch_options options;
    kr_row_batch_options_init(&options);
    options.max_rows = run->values->rows;
    const bool is_stdin = strcmp(path, "-") == 0;
    p.file = is_stdin ? stdin : fopen(path, "rb");
    if (!p.file) {
        cli_cannot("open", path, errno);
        return CLI_FAILED;
    }
    p.batch = kr_row_batch_create(run->ctx, run->language.net, run->language.tok, &options);
    if (p.batch) run_all(&p);
    while (p.first) {
        job *j = p.first;
        p.first = j->next;
        close_job(j);
    }
    kr_row_batch_destroy(p.batch);
    free(p.line);
    if (!is_stdin) fclose(p.file);
    if (cli_failed(run->ctx) || p.has_failed) return CLI_FAILED;
    if (cli_interrupted()) return CLI_INTERRUPTED;
    return p.has_errors ? CLI_FAILED : CLI_OK;
}
