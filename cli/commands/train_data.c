/* train_data.c - opens the training data of krait train: sources of each kind, and their loaders. */
#include "cli/commands/cmd_report.h"
#include "cli/commands/cmd_train.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the kind ---- */

static bool ends_with(const char *path, const char *ending)
{
    const size_t a = strlen(path), b = strlen(ending);
    return a >= b && !strcmp(path + a - b, ending);
}

bool train_find_kind(train_setup *s)
{
    static const struct {
        const char *ending;
        train_kind kind;
    } endings[] = { { ".jsonl", TRAIN_JSONL }, { ".ndjson", TRAIN_JSONL }, { ".tokens", TRAIN_TOKENS },
                    { ".bin", TRAIN_RAW },     { ".csv", TRAIN_CSV },      { ".tsv", TRAIN_CSV },
                    { ".idx", TRAIN_IDX },     { "ubyte", TRAIN_IDX } };
    const train_values *v = s->values;
    s->kind = v->kind >= 0 ? (train_kind)v->kind : TRAIN_TEXT;
    for (size_t i = 0; v->kind < 0 && i < sizeof endings / sizeof *endings; i++)
        if (ends_with(v->data, endings[i].ending)) s->kind = endings[i].kind;
    return true;
}

/* ---- sources ---- */

/* --document-end: a number, or the text of a token. */
static bool find_document_end(const train_setup *s, int32_t *id)
{
    const char *text = s->values->document_end;
    char *end;
    *id = -1;
    if (!text) return true;
    const long long number = strtoll(text, &end, 10);
    const bool is_number = *text && !*end;
    *id = is_number && number >= 0 && number <= INT32_MAX ? (int32_t)number
          : is_number                                     ? -1
                                                          : kr_tokenizer_find(s->tok, text);
    if (*id >= 0 && *id < kr_tokenizer_size(s->tok)) return true;
    return train_refuse(
        s, "--document-end is '%.60s', but must be a token from 0 to %" PRId64 ", or the text of a special one", text,
        kr_tokenizer_size(s->tok) - 1);
}

static kr_source *open_text(const train_setup *s, const char *path, bool is_validation)
{
    const train_values *v = s->values;
    char token_path[CLI_PATH_BYTES];
    kr_text_options o;
    kr_text_options_init(&o);
    o.separator = v->separator;
    o.parse_special = v->is_special;
    o.memory_budget = cli_size_of(v->data_budget);
    if (!find_document_end(s, &o.document_end)) return NULL;
    if (v->out && s->launch.ranks == 1) { /* one file is not written by several ranks */
        if (!cli_join(token_path, v->out, is_validation ? "validation.tokens" : "data.tokens")) return NULL;
        o.token_path = token_path;
    }
    return s->kind == TRAIN_TEXT ? kr_source_text(s->ctx, path, s->tok, &o)
                                 : kr_source_jsonl(s->ctx, path, v->field, s->tok, &o);
}

static kr_source *open_raw(const train_setup *s, const char *path)
{
    static const int id_bytes[] = { 2, 4 };
    const train_values *v = s->values;
    const int64_t vocab = v->model.vocab      ? v->model.vocab
                          : s->language.model ? s->language.vocab
                          : s->tok            ? kr_tokenizer_size(s->tok)
                                              : 0;
    if (!vocab) {
        train_refuse(s, "--vocab is missing: give the vocabulary size; all ids in %s must be below it", path);
        return NULL;
    }
    if (v->separator_id >= vocab) {
        train_refuse(s, "--separator-id is %" PRId64 ", but there are %" PRId64 " tokens", v->separator_id, vocab);
        return NULL;
    }
    return kr_source_raw_tokens(s->ctx, path, id_bytes[v->id_bytes], vocab, (int32_t)v->separator_id);
}

static kr_source *open_csv(const train_setup *s, const char *path)
{
    const train_values *v = s->values;
    kr_csv_options o;
    kr_csv_options_init(&o);
    if (v->delimiter && strlen(v->delimiter) != 1) {
        train_refuse(s, "--delimiter is '%.20s', but must be one character", v->delimiter);
        return NULL;
    }
    if (v->delimiter) o.delimiter = v->delimiter[0];
    else if (ends_with(path, ".tsv")) o.delimiter = '\t';
    o.has_header = !v->has_no_header;
    o.features = v->features;
    o.targets = v->targets;
    o.is_class = v->is_class;
    o.sequence = v->sequence;
    o.missing = (kr_csv_missing)v->missing;
    o.scaling = (kr_csv_scaling)v->scaling;
    o.memory_budget = cli_size_of(v->data_budget);
    return kr_source_csv(s->ctx, path, &o);
}

/* "4x28" */
static bool read_patch(const char *text, kr_idx_options *o)
{
    char *end;
    o->patch_height = strtoll(text, &end, 10);
    if (end == text || *end != 'x') return false;
    text = end + 1;
    o->patch_width = strtoll(text, &end, 10);
    return end != text && !*end && o->patch_height > 0 && o->patch_width > 0;
}

static kr_source *open_idx(const train_setup *s, const char *path, const char *labels, const char *option)
{
    const train_values *v = s->values;
    kr_idx_options o;
    kr_idx_options_init(&o);
    if (!labels) {
        train_refuse(s, "--%s is missing: the classes of the images in %s", option, path);
        return NULL;
    }
    if (!read_patch(v->patch, &o)) {
        train_refuse(s, "--patch is '%.20s', but must be height x width, such as 1x28", v->patch);
        return NULL;
    }
    o.mean = v->mean;
    o.deviation = v->deviation;
    return kr_source_idx(s->ctx, path, labels, &o);
}

static kr_source *open_source(const train_setup *s, const char *path, bool is_validation)
{
    const train_values *v = s->values;
    switch (s->kind) {
    case TRAIN_TEXT:
    case TRAIN_JSONL: return open_text(s, path, is_validation);
    case TRAIN_TOKENS: return kr_source_tokens(s->ctx, path);
    case TRAIN_RAW: return open_raw(s, path);
    case TRAIN_CSV: return open_csv(s, path);
    case TRAIN_IDX:
        return is_validation ? open_idx(s, path, v->validation_labels, "validation-labels")
                             : open_idx(s, path, v->labels, "labels");
    }
    return NULL;
}

/* Does the validation file speak of the same things as the data? */
static bool check_validation(const train_setup *s)
{
    const kr_source_info a = s->info, b = kr_source_info_of(s->validation_source);
    if (b.n_features == a.n_features && b.n_targets == a.n_targets && b.n_classes <= a.n_classes && b.n_ids <= a.n_ids)
        return true;
    return train_refuse(s, "%s has other columns, classes or tokens than %s", s->values->validation, s->values->data);
}

/* Prints the error of a file that was read; a missing value has its remedy among the options of this command. */
static bool source_failed(const train_setup *s)
{
    static const char missing[] = "is a missing value";
    const char *message = kr_ctx_message(s->ctx), *found = strstr(message, missing);
    if (s->kind != TRAIN_CSV || !found) return cli_failed(s->ctx);
    cli_complain("to accept missing values, give --missing drop, forward or mean", "train: %.*s",
                 (int)(found - message) + (int)strlen(missing), message);
    return true;
}

bool train_open_source(train_setup *s)
{
    const train_values *v = s->values;
    s->source = open_source(s, v->data, false);
    if (!s->source) return source_failed(s) && false;
    s->info = kr_source_info_of(s->source);
    if (v->validation) {
        s->validation_source = open_source(s, v->validation, true);
        if (!s->validation_source) return source_failed(s) && false;
        if (!check_validation(s)) return false;
    }
    const bool is_class = s->info.n_ids || s->info.n_classes;
    s->loss = v->loss >= 0 ? (kr_loss_kind)v->loss : is_class ? KR_LOSS_CROSS_ENTROPY : KR_LOSS_MSE;
    return train_check_source(s);
}

/* ---- loaders ---- */

static kr_loader_options loader_options(const train_setup *s)
{
    const train_values *v = s->values;
    const bool is_idx = s->kind == TRAIN_IDX;
    kr_loader_options o;
    kr_loader_options_init(&o);
    o.batch = v->batch;
    o.pack = !v->has_no_pack && !is_idx;
    o.length = is_idx ? 0 : train_is_given(s, "length") ? v->length : 256;
    o.seed = o.split_seed = v->seed;
    o.reset = !v->has_no_resets;
    o.carry = v->carry;
    o.score_last = v->score_last || is_idx;
    o.n_epochs = v->epochs;
    return o;
}

/* All rows end an epoch together: the windows of validation are fixed. */
static kr_loader *open_validation(const train_setup *s, const kr_source *source, double fraction)
{
    kr_loader_options o = loader_options(s);
    o.part = fraction > 0 ? KR_DATA_PART_VALIDATION : KR_DATA_PART_TRAIN;
    o.validation_fraction = fraction;
    o.shuffle = false;
    o.n_epochs = 1;
    return kr_loader_create(source, &o);
}

/* The validation part: with the default fraction none, if it would not fill a row. */
static bool split(train_setup *s, double *fraction)
{
    const train_values *v = s->values;
    const kr_loader_options o = loader_options(s);
    const bool is_asked_for = train_is_given(s, "validation-fraction");
    *fraction = v->validation ? 0 : v->validation_fraction;
    if (v->validation) s->validation = open_validation(s, s->validation_source, 0);
    if (v->validation || *fraction <= 0) return !cli_failed(s->ctx);
    const double kept = (double)s->info.count * *fraction;
    const bool is_small = o.pack && kept < (double)(o.length * (o.carry ? o.batch : 1));
    if (!is_small || is_asked_for) s->validation = open_validation(s, s->source, *fraction);
    if (s->validation) return true;
    if (is_asked_for || kr_ctx_status(s->ctx) == KR_ERR_NOMEM) return cli_failed(s->ctx) && false;
    kr_ctx_clear(s->ctx);
    snprintf(s->remark, sizeof s->remark, "no validation: %g of %s is too small; see --validation", *fraction,
             cli_count_text((double)s->info.count).text);
    *fraction = 0;
    return true;
}

bool train_open_loaders(train_setup *s)
{
    const train_values *v = s->values;
    if (!split(s, &s->fraction)) return false;
    kr_loader_options o = loader_options(s);
    o.validation_fraction = s->fraction;
    s->loader = kr_loader_create(s->source, &o);
    if (cli_failed(s->ctx)) return false;
    s->steps = v->steps ? v->steps : 2000;
    if (v->epochs) {
        const int64_t batches = kr_loader_steps_per_epoch(s->loader) * v->epochs;
        s->steps = batches / v->accumulate + (batches % v->accumulate != 0);
    }
    return true;
}

/* ---- tables ---- */

static const char scales_file[] = "scales.json";

bool train_fit_columns(train_setup *s, char *path)
{
    const train_values *v = s->values;
    const bool has_means = v->missing == KR_CSV_MISSING_FORWARD || v->missing == KR_CSV_MISSING_MEAN;
    path[0] = '\0';
    if (s->kind != TRAIN_CSV || (!v->scaling && !has_means)) return true;
    kr_loader_options o = loader_options(s);
    o.validation_fraction = s->fraction;
    if (!cli_join(path, v->out, scales_file)) return false;
    const bool is_known = v->resume;
    const kr_status status = is_known ? kr_source_load_scales(s->source, path) : kr_source_fit(s->source, &o);
    return status == KR_OK || (cli_failed(s->ctx) && false);
}

bool train_keep_columns(const train_setup *s, const char *path)
{
    if (!path[0]) return true;
    if ((!s->values->resume && kr_source_save_scales(s->source, path) != KR_OK) ||
        (s->validation_source && kr_source_load_scales(s->validation_source, path) != KR_OK))
        return cli_failed(s->ctx) && false;
    return true;
}

/* Squared errors of the targets over the validation data, in the scaled units. */
static int64_t sum_errors(const train_setup *s, kr_tape *tape, kr_loader *loader, int64_t no, double *sums)
{
    int64_t count = 0;
    kr_batch batch;
    for (; kr_loader_next(tape, loader, &batch) == KR_OK; kr_tape_reset(tape)) {
        kr_call call;
        kr_call_init(&call);
        call.reset_bs = batch.reset_bs;
        call.mask_bs = batch.mask_bs;
        call.drop_state = true;
        const kr_tensor *y = kr_network_forward(tape, kr_model_network(s->model), batch.x_bsf, &call).y;
        const int64_t n = kr_tensor_count(batch.scored_bs);
        float *got = malloc((size_t)(n * no) * sizeof *got), *want = malloc((size_t)(n * no) * sizeof *want);
        const int32_t *scored = kr_tensor_data(batch.scored_bs);
        const bool is_read = got && want && kr_tensor_read(y, KR_DTYPE_F32, got, n * no) == KR_OK &&
                             kr_tensor_read(batch.targets_bso, KR_DTYPE_F32, want, n * no) == KR_OK;
        for (int64_t i = 0; is_read && i < n; i++) {
            for (int64_t k = 0; scored[i] && k < no; k++) {
                const double miss = (double)got[i * no + k] - (double)want[i * no + k];
                sums[k] += miss * miss;
            }
            count += scored[i] != 0;
        }
        free(got);
        free(want);
        if (!is_read) return 0;
    }
    return count;
}

bool train_errors_text(const train_setup *s, char *text, size_t bytes)
{
    enum { MOST_TARGETS = 8 };
    const train_values *v = s->values;
    const int64_t no = s->info.n_targets, first = s->info.predict_next ? 0 : s->info.n_features;
    double sums[MOST_TARGETS] = { 0 };
    text[0] = '\0';
    if (s->kind != TRAIN_CSV || !v->scaling || !no || no > MOST_TARGETS || s->loss != KR_LOSS_MSE || !s->validation ||
        v->carry)
        return true;
    kr_loader *loader = open_validation(s, v->validation ? s->validation_source : s->source, s->fraction);
    kr_tape *tape = kr_tape_create(s->ctx, KR_TAPE_NO_GRAD);
    const int64_t count = sum_errors(s, tape, loader, no, sums);
    kr_tape_destroy(tape);
    kr_loader_destroy(loader);
    if (cli_failed(s->ctx)) return false;
    size_t n = count ? (size_t)snprintf(text, bytes, "validation error (rms) in the units of the file:") : 0;
    for (int64_t k = 0; count && k < no && n < bytes; k++) {
        const kr_csv_column column = kr_source_column(s->source, first + k);
        n += (size_t)snprintf(text + n, bytes - n, "%s %s %.4g", k ? "," : "", column.name,
                              sqrt(sums[k] / (double)count) * column.scale);
    }
    return true;
}

const char *train_data_text(const train_setup *s, const cli_live *live, char *text, size_t bytes)
{
    const train_values *v = s->values;
    const kr_loader_options o = loader_options(s);
    const char *unit = s->info.n_ids ? "tokens" : s->kind == TRAIN_IDX ? "patches" : "rows";
    size_t n = (size_t)snprintf(text, bytes, "%s %s %s %s", v->data, cli_dot(live),
                                cli_count_text((double)s->info.count).text, unit);
    if (n < bytes && v->validation) n += (size_t)snprintf(text + n, bytes - n, ", validated on %s", v->validation);
    else if (n < bytes && s->validation)
        n += (size_t)snprintf(text + n, bytes - n, ", %g %% of them for validation", 100 * v->validation_fraction);
    if (n < bytes)
        n += (size_t)snprintf(text + n, bytes - n, " %s %" PRId64 " steps of %" PRId64 " %s ", cli_dot(live), s->steps,
                              v->batch * v->accumulate, cli_times(live));
    if (n < bytes && o.length) snprintf(text + n, bytes - n, "%" PRId64, o.length);
    else if (n < bytes) snprintf(text + n, bytes - n, "%s", s->kind == TRAIN_IDX ? "an image" : "a document");
    return text;
}
