/* train_options.c - the options of krait train, their conflicts, and their translation to the library's options. */
#include "cli/commands/cmd_train.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define AT(field) offsetof(train_values, field)
#define HEADING(text)                                                                                                  \
    {                                                                                                                  \
        "", 0, NULL, CLI_HEADING, 0, NULL, 0, text                                                                     \
    }

/* Options without a default here have the library's: train_take_defaults. */
cli_option train_options[] = {
    HEADING("Files"),
    { "data", 'd', "FILE", CLI_TEXT, AT(data), NULL, 0, "training data (required)" },
    { "out", 'o', "DIR", CLI_TEXT | CLI_FIXED, AT(out), NULL, 0, "run folder (required)" },
    { "resume", 0, "DIR", CLI_TEXT, AT(resume), NULL, 0, "resume a run; options override its train.json" },
    { "model", 'm', "DIR", CLI_TEXT | CLI_FIXED, AT(model_folder), NULL, 0,
      "model to start from (default: initial weights)" },
    { "config", 0, "FILE", CLI_TEXT | CLI_FIXED, AT(config), NULL, 0,
      "read options from a JSON object, as in train.json" },
    { "force", 0, NULL, CLI_FLAG | CLI_FIXED, AT(force), NULL, 0, "replace an existing run or model in --out" },

    HEADING("Data"),
    { "data-kind", 0, "text|jsonl|tokens|raw|csv|idx", CLI_CHOICE, AT(kind), NULL, 0, "(default: by the file's name)" },
    { "validation", 0, "FILE", CLI_TEXT, AT(validation), NULL, 0, "validation data of the same kind" },
    { "validation-fraction", 0, "X", CLI_REAL, AT(validation_fraction), "0.05", 0,
      "without --validation: fraction of --data held out for validation" },
    { "batch", 'b', "N", CLI_I64, AT(batch), "8", 1, "batch size (rows)" },
    { "length", 's', "N", CLI_I64, AT(length), NULL, 0,
      "sequence length; 0 with --no-pack: whole documents (default 256; idx: whole images)" },
    { "no-pack", 0, NULL, CLI_FLAG, AT(has_no_pack), NULL, 0, "do not pack: a row ends with its document" },
    { "no-resets", 0, NULL, CLI_FLAG, AT(has_no_resets), NULL, 0, "do not reset the state at document boundaries" },
    { "carry", 0, NULL, CLI_FLAG, AT(carry), NULL, 0,
      "continue each row from its state in the previous batch (truncated BPTT)" },
    { "data-budget", 0, "SIZE", CLI_TEXT, AT(data_budget), "256MiB", 0,
      "memory for the data; larger texts are stored in DIR/data.tokens" },
    { "tokenizer", 't', "FILE", CLI_TEXT | CLI_FIXED, AT(tokenizer), NULL, 0,
      "tokenizer.json, or the word bytes (default: the model's, or bytes)" },
    { "field", 0, "NAME", CLI_TEXT, AT(field), "text", 0, "jsonl: field that holds the document" },
    { "separator", 0, "TEXT", CLI_TEXT, AT(separator), NULL, 0,
      "text: separator between documents (default: one document)" },
    { "document-end", 0, "ID|TOKEN", CLI_TEXT, AT(document_end), NULL, 0,
      "text, jsonl: token appended to each document" },
    { "special", 0, NULL, CLI_FLAG, AT(is_special), NULL, 0, "text, jsonl: parse special tokens in the text" },
    { "id-bytes", 0, "2|4", CLI_CHOICE, AT(id_bytes), "2", 0, "raw: bytes per id" },
    { "separator-id", 0, "ID", CLI_I64, AT(separator_id), "-1", -1,
      "raw: id at the end of each document (-1: one document)" },
    { "labels", 0, "FILE", CLI_TEXT, AT(labels), NULL, 0, "idx: file with the class labels" },
    { "validation-labels", 0, "FILE", CLI_TEXT, AT(validation_labels), NULL, 0, "idx: labels of --validation" },
    { "patch", 0, "HxW", CLI_TEXT, AT(patch), "1x1", 0, "idx: patch size of a position" },
    { "mean", 0, "X", CLI_REAL, AT(mean), "0", -1000, "idx: mean subtracted from pixels in [0, 1]" },
    { "deviation", 0, "X", CLI_REAL, AT(deviation), "1", 0, "idx: standard deviation to divide by" },
    { "features", 0, "NAMES", CLI_TEXT, AT(features), NULL, 0,
      "csv: input columns, comma-separated (default: all others)" },
    { "targets", 0, "NAMES", CLI_TEXT, AT(targets), NULL, 0,
      "csv: target columns (default: the features of the next row)" },
    { "class-target", 0, NULL, CLI_FLAG, AT(is_class), NULL, 0, "csv: the target is a class label: 0, 1, ..." },
    { "sequence-column", 0, "NAME", CLI_TEXT, AT(sequence), NULL, 0,
      "csv: a sequence ends where this column changes (default: at blank lines)" },
    { "delimiter", 0, "C", CLI_TEXT, AT(delimiter), NULL, 0,
      "csv: field delimiter (default ',', or a tab in .tsv files)" },
    { "no-header", 0, NULL, CLI_FLAG, AT(has_no_header), NULL, 0, "csv: no header line; columns are named 1, 2, ..." },
    { "scale", 0, "none|standard|min-max", CLI_CHOICE | CLI_FIXED, AT(scaling), "none", 0,
      "csv: scale columns by mean and deviation, or by minimum and range, of the training rows" },
    { "missing", 0, "error|drop|forward|mean", CLI_CHOICE | CLI_FIXED, AT(missing), "error", 0,
      "csv: missing values: refuse, leave out the row, repeat the last value, or use the mean" },
    { "score-last", 0, NULL, CLI_FLAG, AT(score_last), NULL, 0, "csv: score only the last row of a sequence" },

    HEADING("Model"),
    CLI_MODEL_OPTIONS(train_values, model, "block family (default mamba3)", "model width (default 256)",
                      "vocabulary size (default: from the data); required for raw"),
    { "model-config", 0, "FILE", CLI_TEXT | CLI_SHAPE, AT(model.config), NULL, 0,
      "take the architecture from this config.json" },
    { "memory-budget", 0, "SIZE", CLI_TEXT, AT(memory_budget), NULL, 0,
      "limit the activation memory of a step by recomputing layers (gradient checkpointing)" },
    { "grad-horizon", 0, "N", CLI_I64, AT(grad_horizon), "-1", -1,
      "backpropagate through the last N virtual layers only; -1: through all" },

    HEADING("Loss"),
    { "loss", 0, "cross-entropy|soft-cross-entropy|bce|mse|l1|huber|quantile", CLI_CHOICE, AT(loss), NULL, 0,
      "(default: cross-entropy for tokens and classes, mse for numbers)" },
    { "label-smoothing", 0, "X", CLI_REAL, AT(label_smoothing), "0", 0, "cross-entropy: label smoothing" },
    { "huber-delta", 0, "X", CLI_REAL, AT(huber_delta), "1", 0, "huber: the loss is linear from this distance on" },
    { "quantile", 0, "Q", CLI_REAL, AT(quantile), "0.5", 0, "quantile: the quantile to predict, in (0, 1)" },
    { "dropout", 0, "P", CLI_REAL, AT(dropout), "0", 0,
      "dropout probability of the embedding and of each block and MLP, in training only" },

    HEADING("Steps and learning rate"),
    { "steps", 'n', "N", CLI_I64, AT(steps), NULL, 1, "total number of steps (default 2000)" },
    { "epochs", 0, "N", CLI_I64, AT(epochs), NULL, 1, "number of epochs, instead of --steps" },
    { "accumulate", 0, "N", CLI_I64, AT(accumulate), NULL, 1, "gradient accumulation: micro-batches per step" },
    { "micro-batches", 0, "N", CLI_I64, AT(micro_batches), NULL, 1,
      "the same: micro-batches per step, of all ranks together" },
    { "lr", 0, "X", CLI_REAL, AT(lr), NULL, 0, "maximum learning rate" },
    { "lr-schedule", 0, "constant|cosine|linear|wsd", CLI_CHOICE, AT(schedule), NULL, 0, "learning-rate schedule" },
    { "min-lr", 0, "X", CLI_REAL, AT(min_lr), NULL, 0, "minimum learning rate (default: a tenth of --lr)" },
    { "warmup", 0, "N", CLI_I64, AT(warmup), NULL, 0, "warm-up steps (default: a twentieth of --steps, at most 100)" },
    { "decay-steps", 0, "N", CLI_I64, AT(decay_steps), NULL, 0,
      "wsd: decay steps at the end (default: a fifth of --steps)" },
    { "decay-shape", 0, "linear|cosine|sqrt", CLI_CHOICE, AT(decay_shape), NULL, 0, "wsd: shape of the decay" },

    HEADING("Optimizer"),
    { "optimizer", 0, "adamw|sgd|muon", CLI_CHOICE, AT(optimizer), NULL, 0, "optimizer" },
    { "weight-decay", 0, "X", CLI_REAL, AT(weight_decay), NULL, 0, "weight decay of matrices" },
    { "decay-all", 0, NULL, CLI_FLAG, AT(decay_all), NULL, 0, "also decay norms, biases, A_log, D and dt_bias" },
    { "cautious", 0, NULL, CLI_FLAG, AT(is_cautious), NULL, 0, "adamw, muon: cautious weight decay" },
    { "beta1", 0, "X", CLI_REAL, AT(beta1), NULL, 0, "adamw, muon" },
    { "beta2", 0, "X", CLI_REAL, AT(beta2), NULL, 0, "adamw, muon" },
    { "eps", 0, "X", CLI_REAL, AT(eps), NULL, 0, "adamw, muon" },
    { "momentum", 0, "X", CLI_REAL, AT(momentum), NULL, 0, "sgd, muon (default 0.9 and 0.95)" },
    { "dampening", 0, "X", CLI_REAL, AT(dampening), NULL, 0, "sgd" },
    { "nesterov", 0, NULL, CLI_FLAG, AT(is_nesterov), NULL, 0, "sgd: Nesterov momentum" },
    { "no-nesterov", 0, NULL, CLI_FLAG, AT(has_no_nesterov), NULL, 0, "muon: disable Nesterov momentum" },
    { "muon-ratio", 0, "match-rms|original|original-inputs|plain", CLI_CHOICE, AT(muon_ratio), NULL, 0,
      "muon: update scaling" },
    { "muon-steps", 0, "N", CLI_INT, AT(muon_steps), NULL, 1, "muon: Newton-Schulz iterations" },
    { "muon-decay", 0, "X", CLI_REAL, AT(muon_decay), NULL, 0, "muon: weight decay (default: --weight-decay)" },
    { "muon-without", 0, "NAME", CLI_TEXTS, AT(muon_without), NULL, 0,
      "muon: update this segment with AdamW; may be repeated" },
    { "clip-norm", 0, "X", CLI_REAL, AT(clip_norm), NULL, 0, "gradient norm clipping; 0: off" },
    { "clip-value", 0, "X", CLI_REAL, AT(clip_value), NULL, 0, "gradient value clipping; 0: off" },
    { "ema", 0, "X", CLI_REAL, AT(ema), NULL, 0, "decay of an exponential moving average of the weights; 0: off" },
    { "describe", 0, NULL, CLI_FLAG, AT(describes), NULL, 0,
      "print which optimizer updates each parameter, then exit" },

    HEADING("Evaluation, checkpoints and logging"),
    { "eval-every", 0, "N", CLI_I64, AT(eval_every), NULL, 1,
      "steps between validations (default: a twentieth of --steps, at least 25)" },
    { "eval-batches", 0, "N", CLI_I64, AT(eval_batches), NULL, 0, "batches per validation; 0: all" },
    { "save-every", 0, "N", CLI_I64, AT(save_every), NULL, 1,
      "steps between checkpoints (default: a tenth of --steps, from 25 to 1000)" },
    { "keep-last", 0, "N", CLI_INT, AT(keep_last), NULL, 0, "checkpoints to keep; 0: all" },
    { "no-keep-best", 0, NULL, CLI_FLAG, AT(has_no_best), NULL, 0,
      "do not keep the checkpoint with the lowest validation loss" },
    { "sample-every", 0, "N", CLI_I64, AT(sample_every), NULL, 1, "steps between text samples (default: none)" },
    { "sample-prompt", 0, "TEXT", CLI_TEXT, AT(sample_prompt), "The ", 0, "prompt of the samples" },
    { "sample-tokens", 0, "N", CLI_I64, AT(sample_tokens), "160", 1, "length of a sample in tokens" },
    { "sample-temperature", 0, "X", CLI_REAL, AT(sample_temperature), "0.8", 0, "sampling temperature; 0: greedy" },
    { "log-seconds", 0, "X", CLI_REAL, AT(log_seconds), "10", 0, "seconds between progress lines without a terminal" },
    { "quiet", 'q', NULL, CLI_FLAG, AT(is_quiet), NULL, 0, "print nothing on stdout" },

    HEADING("Ranks: krait launch, mpirun or srun"),
    { "reduce", 0, "ordered|fast", CLI_CHOICE, AT(reduce), "ordered", 0,
      "sums over ranks: in an order that makes results the same for any number of ranks, or the engine's own" },
    { "sequence-ranks", 0, "P", CLI_INT, AT(sequence_ranks), "1", 1,
      "cut each row into P pieces, for P ranks that pass states; one rank computes them in turn" },
    { "sequence-mode", 0, "auto|exact|scan", CLI_CHOICE, AT(sequence_mode), "auto", 0,
      "state before a piece: from the layer on the rank before, to the bit, or by a scan (auto: exact up to 4 "
      "pieces)" },

    HEADING("Machine"),
    { "seed", 0, "N", CLI_U64 | CLI_FIXED, AT(seed), "1", 0, "random seed of weights and data order" },
    CLI_MACHINE_OPTIONS(train_values, machine),
    { 0 },
};

/* ---- defaults ---- */

enum { MOST_DEFAULTS = 32, DEFAULT_BYTES = 24 };

typedef struct default_texts {
    int count;
    char text[MOST_DEFAULTS][DEFAULT_BYTES];
} default_texts;

static void set_default(default_texts *all, const char *name, const char *format, ...)
{
    char *text = all->text[all->count++];
    va_list args;
    va_start(args, format);
    vsnprintf(text, DEFAULT_BYTES, format, args);
    va_end(args);
    for (cli_option *o = train_options; o->name; o++)
        if (!strcmp(o->name, name)) o->fallback = text;
}

/* The n-th word of the option's "a|b|c". */
static void set_default_word(default_texts *all, const char *name, int n)
{
    for (const cli_option *o = train_options; o->name; o++) {
        if (strcmp(o->name, name) != 0) continue;
        const char *word = o->arg;
        for (; n > 0; n--) word += strcspn(word, "|") + 1;
        set_default(all, name, "%.*s", (int)strcspn(word, "|"), word);
        return;
    }
}

void train_take_defaults(void)
{
    static default_texts all;
    kr_train_options run;
    kr_optimizer_options o;
    kr_lr_schedule schedule;
    kr_train_options_init(&run);
    kr_optimizer_options_init(&o);
    kr_lr_schedule_init(&schedule);
    all.count = 0;
    set_default(&all, "accumulate", "%lld", (long long)run.accumulate);
    set_default(&all, "eval-batches", "%lld", (long long)run.eval_batches);
    set_default(&all, "keep-last", "%d", run.keep_last);
    set_default(&all, "lr", "%g", schedule.max_lr);
    set_default_word(&all, "lr-schedule", (int)schedule.kind);
    set_default_word(&all, "decay-shape", (int)schedule.shape);
    set_default_word(&all, "optimizer", (int)o.kind);
    set_default_word(&all, "muon-ratio", (int)o.muon_ratio);
    set_default(&all, "muon-steps", "%d", o.muon_steps);
    set_default(&all, "weight-decay", "%g", o.weight_decay);
    set_default(&all, "beta1", "%g", o.beta1);
    set_default(&all, "beta2", "%g", o.beta2);
    set_default(&all, "eps", "%g", o.eps);
    set_default(&all, "dampening", "%g", o.dampening);
    set_default(&all, "clip-norm", "%g", o.clip_norm);
    set_default(&all, "clip-value", "%g", o.clip_value);
    set_default(&all, "ema", "%g", o.ema_decay);
}

/* ---- conflicting options ---- */

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

/* Rejects the first given option of the names "a,b,c", unless it has an effect. */
static bool check_names(const train_setup *s, const char *names, bool has_meaning, const char *where)
{
    char name[64];
    for (const char *at = names; !has_meaning && *at; at += *at == ',') {
        const size_t length = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", (int)length, at);
        if (train_is_given(s, name)) return train_refuse(s, "--%s has no effect %s", name, where);
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
           check_names(s,
                       "features,targets,class-target,sequence-column,delimiter,no-header,scale,missing,"
                       "score-last",
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
    const bool is_sgd = v->optimizer == KR_OPTIMIZER_SGD, is_muon = v->optimizer == KR_OPTIMIZER_MUON;
    const bool is_constant = v->schedule == KR_LR_CONSTANT, is_wsd = v->schedule == KR_LR_STABLE_DECAY;
    char where[64];
    snprintf(where, sizeof where, "for --optimizer %s", kr_optimizer_kind_name((kr_optimizer_kind)v->optimizer));
    return check_names(s, "beta1,beta2,eps,cautious", !is_sgd, where) &&
           check_names(s, "momentum", is_sgd || is_muon, where) &&
           check_names(s, "dampening,nesterov", is_sgd, where) &&
           check_names(s, "no-nesterov,muon-ratio,muon-steps,muon-decay,muon-without", is_muon, where) &&
           check_names(s, "min-lr", !is_constant, "for --lr-schedule constant") &&
           check_names(s, "decay-steps,decay-shape", is_wsd, "without --lr-schedule wsd") &&
           check_names(s, "sequence-mode", v->sequence_ranks > 1, "without --sequence-ranks") &&
           (!v->steps || !v->epochs || train_refuse(s, "--steps and --epochs exclude each other"));
}

static bool check_model(const train_setup *s)
{
    const train_values *v = s->values;
    for (const cli_option *o = s->command->options; v->model_folder && o->name; o++)
        if (cli_has_mark(o, CLI_SHAPE) && train_is_given(s, o->name))
            return train_refuse(s, "--%s has no effect with --model, which defines the architecture", o->name);
    return check_names(s, "vocab", !v->model_folder || s->kind == TRAIN_RAW,
                       "with --model, which defines the vocabulary") &&
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
           (v->huber_delta > 0 || train_refuse(s, "--huber-delta is %g, but must be above 0", v->huber_delta)) &&
           ((v->quantile > 0 && v->quantile < 1) ||
            train_refuse(s, "--quantile is %g, but must be above 0 and below 1", v->quantile)) &&
           (v->dropout < 1 || train_refuse(s, "--dropout is %g, but must be below 1", v->dropout)) &&
           (v->ema < 1 || train_refuse(s, "--ema is %g, but must be below 1", v->ema)) &&
           (v->length || !train_is_given(s, "length") || v->has_no_pack ||
            train_refuse(s, "--length 0, a row for each document, needs --no-pack")) &&
           (v->deviation > 0 || train_refuse(s, "--deviation must be above 0"));
}

bool train_check_source(const train_setup *s)
{
    const train_values *v = s->values;
    static const char *const names[] = {
        "cross-entropy", "soft-cross-entropy", "bce", "mse", "l1", "huber", "quantile"
    };
    const bool is_class = s->info.n_ids || s->info.n_classes;
    if (v->loss >= 0 && (v->loss == KR_LOSS_CROSS_ENTROPY) != is_class)
        return train_refuse(s, "--loss %s is not for data that predicts %s", names[v->loss],
                            is_class ? "tokens or classes" : "numbers");
    return check_names(s, "label-smoothing", is_class, "where numbers are predicted") &&
           check_names(s, "huber-delta", v->loss == KR_LOSS_HUBER, "without --loss huber") &&
           check_names(s, "quantile", v->loss == KR_LOSS_QUANTILE, "without --loss quantile");
}

/* ---- the library's options ---- */

static void fill_schedule(const train_setup *s, kr_lr_schedule *schedule)
{
    const train_values *v = s->values;
    kr_lr_schedule_init(schedule);
    schedule->kind = (kr_lr_kind)v->schedule;
    schedule->max_lr = v->lr;
    if (train_is_given(s, "min-lr")) schedule->min_lr = v->min_lr;
    if (train_is_given(s, "warmup")) schedule->warmup_steps = v->warmup;
    if (train_is_given(s, "decay-steps")) schedule->decay_steps = v->decay_steps;
    schedule->total_steps = s->steps;
    schedule->shape = (kr_lr_shape)v->decay_shape;
}

static void fill_optimizer(const train_setup *s, kr_optimizer_options *o)
{
    const train_values *v = s->values;
    kr_optimizer_options_init(o);
    o->kind = (kr_optimizer_kind)v->optimizer;
    o->beta1 = v->beta1;
    o->beta2 = v->beta2;
    o->eps = v->eps;
    o->weight_decay = v->weight_decay;
    o->decay_all = v->decay_all;
    o->is_cautious = v->is_cautious;
    if (train_is_given(s, "momentum")) o->momentum = o->muon_momentum = v->momentum;
    o->dampening = v->dampening;
    o->use_nesterov = v->is_nesterov;
    o->use_muon_nesterov = !v->has_no_nesterov;
    o->muon_steps = v->muon_steps;
    o->muon_ratio = (kr_muon_ratio)v->muon_ratio;
    if (train_is_given(s, "muon-decay")) o->muon_weight_decay = v->muon_decay;
    o->n_without = v->muon_without.count;
    o->without = v->muon_without.text;
    o->clip_norm = v->clip_norm;
    o->clip_value = v->clip_value;
    o->ema_decay = v->ema;
}

void train_fill(const train_setup *s, run_options *all)
{
    const train_values *v = s->values;
    kr_train_options *o = &all->run;
    kr_train_options_init(o);
    fill_schedule(s, &all->schedule);
    fill_optimizer(s, &all->optimizer);
    o->schedule = &all->schedule;
    o->optimizer = &all->optimizer;
    o->steps = s->steps;
    o->accumulate = v->accumulate;
    o->comm = s->comm;
    o->sequence_ranks = v->sequence_ranks;
    o->sequence_mode = (kr_seq_mode)v->sequence_mode;
    o->loss = s->loss;
    o->label_smoothing = v->label_smoothing;
    o->huber_delta = v->huber_delta;
    o->quantile = v->quantile;
    o->dropout = v->dropout;
    o->validation = s->validation;
    if (v->eval_every) o->eval_every = v->eval_every;
    o->eval_batches = v->eval_batches;
    if (v->save_every) o->save_every = v->save_every;
    o->keep_last = v->keep_last;
    o->keep_best = !v->has_no_best;
}
