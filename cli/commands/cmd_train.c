/* cmd_train.c - krait train: reads options from the command line, a file and the resumed run, and opens data and
 * model. */
#include "cli/commands/cmd_train.h"

#include "cli/common/commands.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char more[] =
    "krait train --data notes.txt --out runs/notes trains a small byte-level Mamba-3.\n"
    "\n"
    "DIR contains the model (config.json, model.safetensors, tokenizer.json), train.json (all options, as --config "
    "reads\n"
    "them), metrics.csv (one line per step), checkpoints/, best (a link), samples.txt, report.html and *.svg.\n"
    "Ctrl-C and SIGTERM stop after the current step, save, and exit with status 0; --resume DIR continues to the same\n"
    "bits as an uninterrupted run. A second Ctrl-C exits at once.\n";

/* ---- options of three origins ---- */

/* If two options exclude each other, the one on the command line removes the other one of the files. */
static void exclude(const cli_command *command, cli_given *given, const char *name, const char *other)
{
    const cli_option *a = cli_find_option(command, name, strlen(name)),
                     *b = cli_find_option(command, other, strlen(other));
    unsigned char *at = &given->origin[b - command->options];
    if (given->origin[a - command->options] == CLI_LINE && *at == CLI_FALLBACK) *at = CLI_LINE;
}

static void include(const cli_command *command, cli_given *given, const char *name, bool has_value)
{
    const cli_option *option = cli_find_option(command, name, strlen(name));
    if (!has_value) given->origin[option - command->options] = CLI_FALLBACK;
}

/* A resumed run keeps its model, data and seed. */
static bool check_resume(const train_setup *s)
{
    for (const cli_option *o = s->command->options; o->name; o++)
        if (cli_has_mark(o, CLI_FIXED) && cli_origin_of(s->command, s->given, o->name) == CLI_LINE)
            return train_refuse(s, "--%s cannot be changed by --resume: it is fixed for the run", o->name);
    return true;
}

static bool read_files(const train_setup *s, train_values *v, cli_given *given, cli_json_file *file)
{
    const cli_command *command = s->command;
    char path[CLI_PATH_BYTES];
    exclude(command, given, "steps", "epochs");
    exclude(command, given, "epochs", "steps");
    if (v->config && !cli_json_read(file, command, v, given, v->config)) return false;
    if (v->resume) {
        if (!cli_join(path, v->resume, "train.json")) return false;
        if (!cli_exists(path)) {
            cli_complain("a run folder has one; start a run with krait train --data FILE --out DIR",
                         "train: cannot resume %s: %s does not exist", v->resume, path);
            return false;
        }
        if (!check_resume(s) || !cli_json_read(file, command, v, given, path)) return false;
        v->out = v->resume;
    }
    include(command, given, "steps", v->steps);
    include(command, given, "epochs", v->epochs);
    return true;
}

/* ---- data and model ---- */

static bool check_folder(const train_values *v)
{
    char remedy[2 * CLI_PATH_BYTES + 80], word[CLI_PATH_BYTES];
    if (v->resume || v->describes) return true;
    if (cli_exists(v->out) && !cli_is_folder(v->out)) {
        cli_complain(NULL, "train: %s exists and is not a directory", v->out);
        return false;
    }
    const char *name = train_run_file(v->out);
    if (!name) return true;
    if (v->model_folder && cli_is_same(v->model_folder, v->out)) {
        cli_complain("choose another folder for --out", "train: --out and --model are one folder, %s", v->out);
        return false;
    }
    if (v->force) return true;
    snprintf(remedy, sizeof remedy, "resume it: krait train --resume %s; or replace it with --force",
             cli_shell_word(v->out, word, sizeof word));
    cli_complain(remedy, "train: %s holds a run or a model already (%s)", v->out, name);
    return false;
}

/* Meets the other ranks; when it returns, rank 0 has made the folder. */
static bool open_ranks(train_setup *s)
{
    const train_values *v = s->values;
    if (s->launch.ranks > 1 && !v->describes) {
        kr_comm_options options;
        kr_comm_options_init(&options);
        options.order = (kr_sum_order)v->reduce;
        s->comm = kr_comm_create(s->ctx, &options);
        if (cli_failed(s->ctx)) return false;
    }
    if (train_is_first(s) && !v->describes && !cli_make_folder(v->out)) return false;
    if (s->comm) kr_comm_barrier(s->comm);
    return !cli_failed(s->ctx);
}

static int work(train_setup *s)
{
    const train_values *v = s->values;
    if (cli_failed(s->ctx) || !open_ranks(s)) return CLI_FAILED;
    if (v->resume && !train_newest(v->out, s->checkpoint)) return CLI_FAILED;
    if (!train_open_language(s) || !train_open_source(s) || !train_open_model(s) || !train_open_loaders(s))
        return CLI_FAILED;
    return train_run(s);
}

static void close_all(train_setup *s)
{
    kr_loader_destroy(s->validation);
    kr_loader_destroy(s->loader);
    kr_source_destroy(s->validation_source);
    kr_source_destroy(s->source);
    kr_model_destroy(s->own_model);
    kr_tokenizer_destroy(s->own_tok);
    cli_language_close(&s->language);
    kr_comm_destroy(s->comm);
    kr_ctx_destroy(s->ctx);
}

static int open_and_work(train_setup *s)
{
    if (train_is_first(s) && !check_folder(s->values)) return CLI_FAILED;
    s->ctx = cli_open(&s->values->machine, s->values->seed);
    const int status = work(s);
    close_all(s);
    return status;
}

/* What the launcher says: this process's rank, and its share of the machine where no option says otherwise. */
static bool take_launch(train_setup *s, train_values *v)
{
    static char device[24];
    if (kr_launch_read(&s->launch) != KR_OK) return train_refuse(s, "%s", s->launch.problem);
    if (v->micro_batches && v->accumulate != v->micro_batches && train_is_given(s, "accumulate"))
        return train_refuse(s, "--accumulate %" PRId64 " and --micro-batches %" PRId64 " are the same option",
                            v->accumulate, v->micro_batches);
    if (v->micro_batches) v->accumulate = v->micro_batches;
    if (s->launch.ranks == 1) return true;
    if (s->launch.ranks % v->sequence_ranks != 0)
        return train_refuse(s, "--sequence-ranks %d, but there are %d ranks; start a multiple of %d, or one",
                            v->sequence_ranks, s->launch.ranks, v->sequence_ranks);
    const int n = s->launch.ranks / v->sequence_ranks;
    if (v->accumulate % n != 0)
        return train_refuse(s, "--micro-batches %" PRId64 " cannot be dealt to %d ranks; make it a multiple of %d",
                            v->accumulate, n, n);
    if (!v->machine.threads) v->machine.threads = s->launch.threads;
    if (v->machine.device && !strcmp(v->machine.device, "cuda")) {
        snprintf(device, sizeof device, "cuda:%d", s->launch.local_rank);
        v->machine.device = device;
    }
    if (s->launch.rank > 0) v->is_quiet = true;
    return true;
}

static int run(int argc, char **argv)
{
    train_values v = { .model = CLI_MODEL_VALUES };
    cli_given given = { { 0 } };
    cli_json_file file = { 0 };
    bool is_refused = false;
    train_setup s = { .command = &cli_train, .values = &v, .given = &given, .is_refused = &is_refused };
    int status = cli_parse_given(&cli_train, &v, argc, argv, &given);
    if (status >= 0) return status;
    status = CLI_USAGE;
    if (read_files(&s, &v, &given, &file)) {
        if (!v.data) train_refuse(&s, "--data FILE is missing: the training data");
        else if (!v.out && !v.describes) train_refuse(&s, "--out DIR is missing: the run's folder");
        else if (take_launch(&s, &v) && train_find_kind(&s) && train_check(&s)) status = open_and_work(&s);
    }
    cli_json_close(&file);
    return is_refused ? CLI_USAGE : status;
}

const cli_command cli_train = {
    .name = "train",
    .summary = "train a model on text, tokens, tables or images, with checkpoints to resume from",
    .options = train_options,
    .run = run,
    .more = more,
    .line_only = "config,resume,force,describe",
    .prepare = train_take_defaults,
};
