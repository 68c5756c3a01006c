/* train_options.c - the options of krait train, what does not go together, and what the library is told. */
#include "cli/train.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define AT(field) offsetof(train_values, field)
#define HEADING(text)                                                                                                  \
    {                                                                                                                  \
        "", 0, NULL, CLI_HEADING, 0, NULL, 0, text                                                                     \
    }

const cli_option train_options[] = {
    HEADING("Files"),
    { "data", 'd', "FILE", CLI_TEXT, AT(data), NULL, 0, "what is learned; must be given" },
    { "out", 'o', "DIR", CLI_TEXT, AT(out), NULL, 0, "the run's folder; must be given" },
    { "resume", 0, "DIR", CLI_TEXT, AT(resume), NULL, 0,
      "goes on with a run; options change what its train.json says" },
    { "model", 'm', "DIR", CLI_TEXT, AT(model_folder), NULL, 0, "a model to begin from (default: fresh weights)" },
    { "config", 0, "FILE", CLI_TEXT, AT(config), NULL, 0, "options as a JSON object, as in a run's train.json" },
    { "force", 0, NULL, CLI_FLAG, AT(force), NULL, 0, "replace the run or model that --out holds" },

    HEADING("Data"),
    { "data-kind", 0, "text|jsonl|tokens|raw|csv|idx", CLI_CHOICE, AT(kind), NULL, 0, "(default: by the file's name)" },
    { "validation", 0, "FILE", CLI_TEXT, AT(validation), NULL, 0, "data of the same kind to validate on" },
    { "validation-fraction", 0, "X", CLI_REAL, AT(validation_fraction), "0.05", 0,
      "the part of --data that is kept back for that otherwise" },
    { "batch", 'b', "N", CLI_I64, AT(batch), "8", 1, "rows of a batch" },
    { "length", 's', "N", CLI_I64, AT(length), NULL, 0,
      "positions of a row; 0 with --no-pack: whole documents (default 256; idx: whole images)" },
    { "no-pack", 0, NULL, CLI_FLAG, AT(has_no_pack), NULL, 0, "rows end with their document" },
    { "no-resets", 0, NULL, CLI_FLAG, AT(has_no_resets), NULL, 0, "packed rows remember the document before" },
    { "carry", 0, NULL, CLI_FLAG, AT(carries), NULL, 0,
      "each row goes on where it stopped in the last batch, with its state" },
    { "data-budget", 0, "SIZE", CLI_TEXT, AT(data_budget), "256MiB", 0,
      "memory for the data; texts that need more are kept as DIR/data.tokens" },
    { "tokenizer", 't', "FILE", CLI_TEXT, AT(tokenizer), NULL, 0,
      "tokenizer.json, or the word bytes (default that of --model, or bytes)" },
    { "field", 0, "NAME", CLI_TEXT, AT(field), "text", 0, "jsonl: the member that is the document" },
    { "separator", 0, "TEXT", CLI_TEXT, AT(separator), NULL, 0,
      "text: what stands between documents (default one document)" },
    { "document-end", 0, "ID|TOKEN", CLI_TEXT, AT(document_end), NULL, 0,
      "text, jsonl: a token that is put behind each document" },
    { "special", 0, NULL, CLI_FLAG, AT(is_special), NULL, 0,
      "text, jsonl: special tokens in the text are what they say" },
    { "id-bytes", 0, "2|4", CLI_CHOICE, AT(id_bytes), "2", 0, "raw: bytes of an id" },
    { "separator-id", 0, "ID", CLI_I64, AT(separator_id), "-1", -1,
      "raw: documents end with this id (-1: one document)" },
    { "labels", 0, "FILE", CLI_TEXT, AT(labels), NULL, 0, "idx: the classes of the images" },
    { "validation-labels", 0, "FILE", CLI_TEXT, AT(validation_labels), NULL, 0, "idx: those of --validation" },
    { "patch", 0, "HxW", CLI_TEXT, AT(patch), "1x1", 0, "idx: what a position holds" },
    { "mean", 0, "X", CLI_REAL, AT(mean), "0", -1000, "idx: subtracted from pixels, which are from 0 to 1" },
    { "deviation", 0, "X", CLI_REAL, AT(deviation), "1", 0, "idx: what they are divided by then" },
    { "features", 0, "NAMES", CLI_TEXT, AT(features), NULL, 0, "csv: columns, with commas (default all others)" },
    { "targets", 0, "NAMES", CLI_TEXT, AT(targets), NULL, 0,
      "csv: columns to predict (default: the next row's features)" },
    { "class-target", 0, NULL, CLI_FLAG, AT(is_class), NULL, 0, "csv: the one target is a class, 0, 1, ..." },
    { "sequence-column", 0, "NAME", CLI_TEXT, AT(sequence), NULL, 0,
      "csv: a sequence ends where its value changes (default: at blank lines)" },
    { "delimiter", 0, "C", CLI_TEXT, AT(delimiter), NULL, 0,
      "csv: between fields (default ',', or a tab in .tsv files)" },
    { "no-header", 0, NULL, CLI_FLAG, AT(has_no_header), NULL, 0, "csv: columns are called 1, 2, ..." },
    { "score-last", 0, NULL, CLI_FLAG, AT(scores_last), NULL, 0, "csv: only the last row of a sequence is scored" },

    HEADING("Model"),
    { "family", 0, "mamba1|mamba2|mamba3", CLI_CHOICE, AT(model.family), NULL, 0, "of the blocks (default mamba3)" },
    { "d-model", 0, "N", CLI_I64, AT(model.d_model), NULL, 1, "model width (default 256)" },
    { "vocab", 0, "N", CLI_I64, AT(model.vocab), NULL, 1, "tokens (default as many as the data has); needed for raw" },
    CLI_MODEL_OPTIONS(train_values, model),
    { "model-config", 0, "FILE", CLI_TEXT, AT(model.config), NULL, 0, "a config.json whose shape is taken" },
    { "memory-budget", 0, "SIZE", CLI_TEXT, AT(memory_budget), NULL, 0,
      "of what a step keeps for its gradients: layers that do not fit are computed twice" },

    HEADING("Loss"),
    { "loss", 0, "cross-entropy|soft-cross-entropy|bce|mse", CLI_CHOICE, AT(loss), NULL, 0,
      "(default cross-entropy of tokens and classes, mse of numbers)" },
    { "label-smoothing", 0, "X", CLI_REAL, AT(label_smoothing), "0", 0, "cross-entropy: spread over all classes" },

    HEADING("Steps and learning rate"),
    { "steps", 'n', "N", CLI_I64, AT(steps), NULL, 1, "in all (default 2000)" },
    { "epochs", 0, "N", CLI_I64, AT(epochs), NULL, 1, "times through the data, instead of steps" },
    { "accumulate", 0, "N", CLI_I64, AT(accumulate), "1", 1, "batches to a step, as one large batch" },
    { "lr", 0, "X", CLI_REAL, AT(lr), "0.001", 0, "the largest learning rate" },
    { "lr-schedule", 0, "constant|cosine|linear|wsd", CLI_CHOICE, AT(schedule), "cosine", 0, "how it goes down" },
    { "min-lr", 0, "X", CLI_REAL, AT(min_lr), NULL, 0, "what it goes down to (default a tenth)" },
    { "warmup", 0, "N", CLI_I64, AT(warmup), NULL, 0, "steps in which it goes up (default a twentieth, at most 100)" },
    { "decay-steps", 0, "N", CLI_I64, AT(decay_steps), NULL, 0, "wsd: steps at the end (default a fifth)" },
    { "decay-shape", 0, "linear|cosine|sqrt", CLI_CHOICE, AT(decay_shape), "linear", 0, "wsd: how they go" },

    HEADING("Optimizer"),
    { "optimizer", 0, "adamw|sgd|muon", CLI_CHOICE, AT(optimizer), "adamw", 0, "what makes a step of a gradient" },
    { "weight-decay", 0, "X", CLI_REAL, AT(weight_decay), "0.1", 0, "of matrices" },
    { "decay-all", 0, NULL, CLI_FLAG, AT(decays_all), NULL, 0, "norms, biases, A_log, D and dt_bias decay too" },
    { "cautious", 0, NULL, CLI_FLAG, AT(is_cautious), NULL, 0, "adamw, muon: only what moves towards 0 decays" },
    { "beta1", 0, "X", CLI_REAL, AT(beta1), "0.9", 0, "adamw, muon" },
    { "beta2", 0, "X", CLI_REAL, AT(beta2), "0.95", 0, "adamw, muon" },
    { "eps", 0, "X", CLI_REAL, AT(eps), "1e-8", 0, "adamw, muon" },
    { "momentum", 0, "X", CLI_REAL, AT(momentum), NULL, 0, "sgd, muon (default 0.9 and 0.95)" },
    { "dampening", 0, "X", CLI_REAL, AT(dampening), "0", 0, "sgd" },
    { "nesterov", 0, NULL, CLI_FLAG, AT(is_nesterov), NULL, 0, "sgd: looks a step ahead" },
    { "no-nesterov", 0, NULL, CLI_FLAG, AT(has_no_nesterov), NULL, 0, "muon: does not" },
    { "muon-ratio", 0, "match-rms|original|original-inputs|plain", CLI_CHOICE, AT(muon_ratio), "match-rms", 0,
      "muon: how large its steps are" },
    { "muon-steps", 0, "N", CLI_INT, AT(muon_steps), "5", 1, "muon: of the orthogonalisation" },
    { "muon-decay", 0, "X", CLI_REAL, AT(muon_decay), NULL, 0, "muon: its weight decay (default --weight-decay)" },
    { "muon-without", 0, "NAME", CLI_TEXTS, AT(muon_without), NULL, 0, "muon: a segment that is AdamW's" },
    { "clip-norm", 0, "X", CLI_REAL, AT(clip_norm), "1", 0, "of all gradients together; 0: no limit" },
    { "clip-value", 0, "X", CLI_REAL, AT(clip_value), "0", 0, "of each element; 0: no limit" },
    { "ema", 0, "X", CLI_REAL, AT(ema), "0", 0, "averaged weights are kept too, with this decay; 0: none" },
    { "describe", 0, NULL, CLI_FLAG, AT(describes), NULL, 0, "shows which parameter is whose, and ends" },

    HEADING("While it runs"),
    { "eval-every", 0, "N", CLI_I64, AT(eval_every), NULL, 1,
      "steps between validations (default a twentieth, at least 25)" },
    { "eval-batches", 0, "N", CLI_I64, AT(eval_batches), "20", 0, "batches of a validation; 0: all" },
    { "save-every", 0, "N", CLI_I64, AT(save_every), NULL, 1,
      "steps between checkpoints (default a tenth, from 25 to 1000)" },
    { "keep-last", 0, "N", CLI_INT, AT(keep_last), "2", 0, "checkpoints; 0: all" },
    { "no-keep-best", 0, NULL, CLI_FLAG, AT(has_no_best), NULL, 0, "not that of the lowest validation loss besides" },
    { "sample-every", 0, "N", CLI_I64, AT(sample_every), NULL, 1, "steps between samples of text (default none)" },
    { "sample-prompt", 0, "TEXT", CLI_TEXT, AT(sample_prompt), "The ", 0, "what they go on from" },
    { "sample-tokens", 0, "N", CLI_I64, AT(sample_tokens), "160", 1, "their length" },
    { "sample-temperature", 0, "X", CLI_REAL, AT(sample_temperature), "0.8", 0, "0: the most probable token" },
    { "log-seconds", 0, "X", CLI_REAL, AT(log_seconds), "10", 0, "between lines, where there is no terminal" },
    { "quiet", 'q', NULL, CLI_FLAG, AT(is_quiet), NULL, 0, "not a word on stdout" },

    HEADING("Machine"),
    { "seed", 0, "N", CLI_U64, AT(seed), "1", 0, "of weights and order: the same seed gives the same bytes" },
    CLI_MACHINE_OPTIONS(train_values, machine),
    { 0 },
};

/* ---- what does not go together ---- */

bool train_refuse(const train_setup *s, const char *format, ...)
{
    char text[512];
    *s->is_refused = true;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    cli_complain("see krait train --help", "train: %s", text);
    return false;
}

bool train_is_given(const train_setup *s, const char *name)
{
    return cli_is_given(s->command, s->values, s->given, name);
}

/* Refuses the first of the names "a,b,c" that is given, unless it has a meaning. */
static bool check_names(const train_setup *s, const char *names, bool has_meaning, const char *where)
{
    char name[64];
    for (const char *at = names; !has_meaning && *at; at += *at == ',') {
        const size_t length = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", (int)length, at);
        if (train_is_given(s, name)) return train_refuse(s, "--%s has no meaning %s", name, where);
        at += length;
    }
    return true;
}

static bool check_data(const train_setup *s)
{
    static const char *const names[] = { "text", "jsonl", "tokens", "raw", "csv", "idx" };
    const train_values *v = s->values;
    const train_kind kind = s->kind;
    const bool is_text = kind == TRAIN_TEXT || kind == TRAIN_JSONL, is_tokens = kind <= TRAIN_RAW;
    char where[64];
    snprintf(where, sizeof where, "for data of kind %s", names[kind]);
    return check_names(s, "field", kind == TRAIN_JSONL, where) &&
           check_names(s, "separator", kind == TRAIN_TEXT, where) &&
           check_names(s, "document-end,special", is_text, where) &&
           check_names(s, "id-bytes,separator-id", kind == TRAIN_RAW, where) &&
           check_names(s, "labels,validation-labels,patch,mean,deviation", kind == TRAIN_IDX, where) &&
           check_names(s, "features,targets,class-target,sequence-column,delimiter,no-header,score-last",
                       kind == TRAIN_CSV, where) &&
           check_names(s, "data-budget", is_text || kind == TRAIN_CSV, where) &&
           check_names(s, "tokenizer,vocab,untied,sample-every,sample-prompt,sample-tokens,sample-temperature",
                       is_tokens, where) &&
           check_names(s, "length,no-pack,carry,no-resets", kind != TRAIN_IDX, where) &&
           check_names(s, "no-resets", !v->has_no_pack, "with --no-pack") &&
           check_names(s, "carry", !v->has_no_pack, "with --no-pack") &&
           check_names(s, "validation-fraction", !v->validation, "with --validation") &&
           check_names(s, "validation-labels", v->validation, "without --validation") &&
           check_names(s, "eval-every,eval-batches,no-keep-best", v->validation || v->validation_fraction > 0,
                       "without data to validate on") &&
           check_names(s, "sample-prompt,sample-tokens,sample-temperature", v->sample_every, "without --sample-every");
}

static bool check_training(const train_setup *s)
{
    const train_values *v = s->values;
    const bool is_sgd = v->optimizer == KR_SGD, is_muon = v->optimizer == KR_MUON;
    const bool is_constant = v->schedule == KR_LR_CONSTANT, is_wsd = v->schedule == KR_LR_STABLE_DECAY;
    char where[64];
    snprintf(where, sizeof where, "for --optimizer %s", kr_optimizer_kind_name((kr_optimizer_kind)v->optimizer));
    return check_names(s, "beta1,beta2,eps,cautious", !is_sgd, where) &&
           check_names(s, "momentum", is_sgd || is_muon, where) &&
           check_names(s, "dampening,nesterov", is_sgd, where) &&
           check_names(s, "no-nesterov,muon-ratio,muon-steps,muon-decay,muon-without", is_muon, where) &&
           check_names(s, "min-lr", !is_constant, "for --lr-schedule constant") &&
           check_names(s, "decay-steps,decay-shape", is_wsd, "but for --lr-schedule wsd") &&
           (!v->steps || !v->epochs ||
            train_refuse(s, "--steps and --epochs are given both; one of them ends the run"));
}

static bool check_model(const train_setup *s)
{
    static const char shape[] = "family,d-model,layers,d-state,head-dim,expand,groups,d-conv,mimo-rank,rotation,"
                                "rope-fraction,a-activation,outproj-norm,mlp,untied,virtual-layers,schedule,residual,"
                                "streams,gate-bias,gate-bias-step,gates-per-virtual-layer,model-config";
    const train_values *v = s->values;
    return check_names(s, shape, !v->model_folder, "with --model: the model has its shape") &&
           check_names(s, "vocab", !v->model_folder || s->kind == TRAIN_RAW,
                       "with --model: the model has its tokens") &&
           (!v->memory_budget || cli_size_of(v->memory_budget) ||
            train_refuse(s, "--memory-budget is '%.40s', but must be a size, such as 2GiB", v->memory_budget)) &&
           (cli_size_of(v->data_budget) ||
            train_refuse(s, "--data-budget is '%.40s', but must be a size, such as 256MiB", v->data_budget));
}

bool train_check(const train_setup *s)
{
    const train_values *v = s->values;
    return check_data(s) && check_training(s) && check_model(s) &&
           (v->validation_fraction < 1 ||
            train_refuse(s, "--validation-fraction is %g, but must be below 1", v->validation_fraction)) &&
           (v->label_smoothing <= 1 ||
            train_refuse(s, "--label-smoothing is %g, but must be at most 1", v->label_smoothing)) &&
           (v->ema < 1 || train_refuse(s, "--ema is %g, but must be below 1", v->ema)) &&
           (v->length || !train_is_given(s, "length") || v->has_no_pack ||
            train_refuse(s, "--length 0, a row for each document, needs --no-pack")) &&
           (v->deviation > 0 || train_refuse(s, "--deviation must be above 0"));
}

bool train_check_source(const train_setup *s)
{
    const train_values *v = s->values;
    static const char *const names[] = { "cross-entropy", "soft-cross-entropy", "bce", "mse" };
    const bool is_class = s->info.n_ids || s->info.n_classes;
    if (v->loss >= 0 && (v->loss == KR_LOSS_CROSS_ENTROPY) != is_class)
        return train_refuse(s, "--loss %s is not for data that predicts %s", names[v->loss],
                            is_class ? "tokens or classes" : "numbers");
    return check_names(s, "label-smoothing", is_class, "where numbers are predicted");
}

/* ---- what the library is told ---- */

static int64_t between(int64_t n, int64_t least, int64_t most)
{
    return n < least ? least : n > most ? most : n;
}

static void fill_schedule(const train_setup *s, kr_lr_schedule *schedule)
{
    const train_values *v = s->values;
    schedule->kind = (kr_lr_kind)v->schedule;
    schedule->max_lr = v->lr;
    schedule->min_lr = train_is_given(s, "min-lr") ? v->min_lr : v->lr / 10;
    schedule->warmup_steps = train_is_given(s, "warmup") ? v->warmup : between(s->steps / 20, 0, 100);
    schedule->total_steps = s->steps;
    schedule->decay_steps = v->schedule != KR_LR_STABLE_DECAY  ? 0
                            : train_is_given(s, "decay-steps") ? v->decay_steps
                                                               : s->steps / 5;
    schedule->shape = (kr_lr_shape)v->decay_shape;
}

static void fill_optimizer(const train_setup *s, kr_optimizer_options *o)
{
    const train_values *v = s->values;
    o->kind = (kr_optimizer_kind)v->optimizer;
    o->beta1 = v->beta1;
    o->beta2 = v->beta2;
    o->eps = v->eps;
    o->weight_decay = v->weight_decay;
    o->decays_all = v->decays_all;
    o->is_cautious = v->is_cautious;
    if (train_is_given(s, "momentum")) o->momentum = o->muon_momentum = v->momentum;
    o->dampening = v->dampening;
    o->nesterov = v->is_nesterov;
    o->muon_nesterov = !v->has_no_nesterov;
    o->muon_steps = v->muon_steps;
    o->muon_ratio = (kr_muon_ratio)v->muon_ratio;
    if (train_is_given(s, "muon-decay")) o->muon_weight_decay = v->muon_decay;
    o->n_without = v->muon_without.count;
    o->without = v->muon_without.text;
    o->clip_norm = v->clip_norm;
    o->clip_value = v->clip_value;
    o->ema_decay = v->ema;
}

void train_fill(const train_setup *s, kr_train_options *o)
{
    const train_values *v = s->values;
    kr_train_options_init(o);
    fill_schedule(s, &o->schedule);
    fill_optimizer(s, &o->optimizer);
    o->steps = s->steps;
    o->accumulate = v->accumulate;
    o->loss = s->loss;
    o->label_smoothing = v->label_smoothing;
    o->validation = s->validation;
    o->eval_every = v->eval_every ? v->eval_every : between(s->steps / 20, 25, INT64_MAX);
    o->eval_batches = v->eval_batches;
    o->save_every = v->save_every ? v->save_every : between(s->steps / 10, 25, 1000);
    o->keep_last = v->keep_last;
    o->keep_best = !v->has_no_best;
}
