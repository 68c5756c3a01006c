/* train_sample.c - text that a model makes up while it is trained; samples.txt keeps it, under lines "--- step N". */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "cli/commands/cmd_report.h"
#include "cli/commands/cmd_train.h"

#include <krait/generate.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char head[] = "--- step ";

typedef struct sample_text {
    char *bytes;
    size_t count, capacity;
} sample_text;

static bool append(sample_text *text, const char *bytes, size_t count)
{
    if (text->count + count > text->capacity) {
        const size_t capacity = 2 * (text->count + count) + 256;
        char *larger = realloc(text->bytes, capacity);
        if (!larger) {
            cli_complain(NULL, "out of memory for a sample of %zu bytes", text->count + count);
            return false;
        }
        text->bytes = larger;
        text->capacity = capacity;
    }
    if (count) memcpy(text->bytes + text->count, bytes, count);
    text->count += count;
    return true;
}

/* The prompt and its continuation by the model. */
static bool make_up(const train_setup *s, sample_text *text)
{
    const train_values *v = s->values;
    kr_generate_options o;
    kr_sampler_options sampler;
    kr_generate_options_init(&o);
    kr_sampler_options_init(&sampler);
    o.max_tokens = v->sample_tokens;
    sampler.temperature = v->sample_temperature;
    sampler.seed = v->seed;
    o.sampler = &sampler;
    kr_generation *g = kr_generation_create(s->ctx, kr_model_network(s->model), s->tok, &o);
    bool is_well = g && append(text, v->sample_prompt, strlen(v->sample_prompt));
    if (is_well) kr_generation_feed_text(g, v->sample_prompt, strlen(v->sample_prompt));
    while (is_well && kr_generation_next(g) == KR_OK) {
        const kr_generated *one = kr_generation_row(g, 0);
        is_well = append(text, one->text, one->bytes);
    }
    kr_generation_destroy(g);
    return is_well && !kr_ctx_failed(s->ctx);
}

static bool keep(const train_setup *s, const sample_text *text, int64_t step)
{
    char path[CLI_PATH_BYTES];
    if (!cli_join(path, s->values->out, "samples.txt")) return false;
    FILE *file = fopen(path, "ab");
    if (!file) return cli_cannot("write", path, errno);
    fprintf(file, "%s%" PRId64 "\n", head, step);
    cli_put_clean(file, text->bytes, text->count);
    const bool is_bad = fputc('\n', file) == EOF || ferror(file);
    return (!fclose(file) && !is_bad) || cli_cannot("write", path, errno);
}

bool train_sample(const train_setup *s, cli_live *live, kr_trainer *trainer, int64_t step)
{
    sample_text text = { 0 };
    const bool has_ema = s->values->ema > 0;
    if (has_ema) kr_optimizer_use_ema(kr_trainer_optimizer(trainer), true);
    bool is_well = !train_is_first(s) || make_up(s, &text);
    if (has_ema) kr_optimizer_use_ema(kr_trainer_optimizer(trainer), false);
    if (!train_is_first(s)) return true;
    if (is_well && !s->values->is_quiet) {
        cli_live_say(live, "%s%" PRId64, head, step);
        cli_put_clean(stdout, text.bytes, text.count);
        puts("\n---");
        fflush(stdout);
    }
    is_well = is_well && keep(s, &text, step);
    free(text.bytes);
    cli_live_pause(live);
    return is_well;
}

/* Where samples behind the step begin in the file; *last is the step of the last one before. */
static long long bytes_to_keep(FILE *file, int64_t step, int64_t *last)
{
    char line[4096];
    long long kept = 0;
    bool is_line = true; /* the piece begins a line */
    while (fgets(line, sizeof line, file)) {
        const size_t length = strlen(line);
        if (is_line && !strncmp(line, head, sizeof head - 1)) {
            char *end;
            const long long of = strtoll(line + sizeof head - 1, &end, 10);
            if (*end == '\n' && of > step) break;
            if (*end == '\n') *last = of;
        }
        is_line = length && line[length - 1] == '\n';
        kept += (long long)length;
    }
    return kept;
}

bool train_sample_begin(const train_setup *s, int64_t step, int64_t *last)
{
    char path[CLI_PATH_BYTES];
    *last = -1;
    if (!cli_join(path, s->values->out, "samples.txt")) return false;
    FILE *file = fopen(path, step > 0 && cli_exists(path) ? "r+b" : "wb");
    if (!file) return cli_cannot("open", path, errno);
    const long long kept = step > 0 ? bytes_to_keep(file, step, last) : 0;
    const bool is_cut = !step || !ftruncate(fileno(file), (off_t)kept);
    return (!fclose(file) && is_cut) || cli_cannot("write", path, errno);
}
