/* task_sequence.c - krait task NAME of the tasks over symbols: options, and the final table. */
#include "lab/task_sequence.h"

#include "cli/common/cli_files.h"
#include "cli/common/options_json.h"
#include "cli/report/report_html.h"
#include "lab/task_baselines.h"
#include "lab/task_folder.h"
#include "lab/task_train.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- options ---- */

typedef struct request {
    const task_spec *spec;
    task_values values;
    cli_given given;
    cli_json_file file; /* of a resumed or evaluated run; owns the texts of values */
} request;

static bool refuse(const task_spec *spec, const char *format, ...) KR_PRINTF(2, 3);
static bool refuse(const task_spec *spec, const char *format, ...)
{
    char text[256], remedy[80];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(remedy, sizeof remedy, "see krait %s --help", spec->command->name);
    cli_complain(remedy, "%s: %s", spec->command->name, text);
    return false;
}

/* The options of the run in a folder, except those given on the command line. */
static bool read_options(request *r, const char *folder, bool must_be_there)
{
    char path[CLI_PATH_BYTES];
    if (!cli_is_folder(folder)) return refuse(r->spec, "%s is not a directory", folder);
    if (!cli_join(path, folder, "task.json")) return false;
    if (!must_be_there && !cli_exists(path)) return true;
    return cli_json_read(&r->file, r->spec->command, &r->values, &r->given, path);
}

static bool check(const request *r)
{
    const task_values *v = &r->values;
    const int shortest = r->spec->kind == LAB_TASK_A5 ? 1 : 12;
    if (v->rotation >= 0 && v->family != KR_FAMILY_MAMBA3)
        return refuse(r->spec, "--rotation does not apply to %s", kr_family_name((kr_family)v->family));
    if (v->length < shortest)
        return refuse(r->spec, "--length is %lld, but rows of this task have at least %d symbols", (long long)v->length,
                      shortest);
    if (!isnan(v->min_lr) && v->min_lr > v->lr)
        return refuse(r->spec, "--min-lr is %g, but must not be above --lr, %g", v->min_lr, v->lr);
    if (v->epochs == 0 && (v->out || v->resume))
        return refuse(r->spec, "--epochs is 0: nothing is trained, and nothing can be saved");
    return true;
}

static bool set_values(request *r)
{
    task_values *v = &r->values;
    if (!!v->out + !!v->resume + !!v->eval > 1) return refuse(r->spec, "--out, --resume and --eval exclude each other");
    if (v->resume && !read_options(r, v->resume, true)) return false;
    if (v->eval && !read_options(r, v->eval, false)) return false;
    if (v->machine.threads == 0) v->machine.threads = 1;
    return check(r);
}

/* ---- the table ---- */

enum { LABEL_WIDTH = 36 };

static int column_of(const char *name)
{
    return strlen(name) > 6 ? (int)strlen(name) + 2 : 8;
}

static void print_row(const task_sets *sets, const char *label, const double *percent, int count)
{
    printf("%-*s", LABEL_WIDTH, label);
    for (int f = 0; f < sets->count && f < count && !isnan(percent[f]); f++)
        printf("%*.*f", column_of(sets->set[f].family), count == TASK_FIGURES ? 1 : 2, percent[f]);
    putchar('\n');
}

static bool has_figures(const double *percent)
{
    return !isnan(percent[0]);
}

static void print_baselines(const task_sets *sets, const task_baseline *list, int count)
{
    for (int i = 0; i < count; i++) {
        print_row(sets, list[i].here.what, list[i].here.percent, sets->count);
        if (has_figures(list[i].of_reference)) print_row(sets, "  reference", list[i].of_reference, TASK_FIGURES);
        if (list[i].remark) printf("  (%s)\n", list[i].remark);
    }
}

/* Do network and rows match those of the reference's figures? */
static bool is_of_reference(const task_spec *spec, const task_values *values, const kr_model_config *config)
{
    const kr_family family = spec->kind == LAB_TASK_MAJORITY ? KR_FAMILY_MAMBA2 : KR_FAMILY_MAMBA3;
    const bool has_rotation = config->mamba3->rope_fraction > 0;
    const bool is_quaternion = config->mamba3->rotation == KR_ROTATION_QUATERNION;
    return has_figures(spec->of_reference) && config->family == family && !values->has_fixed_decay &&
           values->length == lab_task_of(spec->kind).length &&
           (family != KR_FAMILY_MAMBA3 ||
            (has_rotation && is_quaternion == (spec->rotation == TASK_ROTATION_QUATERNION)));
}

static bool print_table(const task_spec *spec, const task_values *values, const kr_model *model, const task_sets *sets)
{
    task_baseline list[TASK_MOST_BASELINES];
    const int count = values->baselines ? task_baselines(spec, values, list) : 0;
    double percent[TASK_MOST_FAMILIES];
    if (count < 0) return false;
    printf("%-*s", LABEL_WIDTH, "percent right");
    for (int f = 0; f < sets->count; f++) {
        printf("%*s", column_of(sets->set[f].family), sets->set[f].family);
        percent[f] = 100 * task_set_accuracy(&sets->set[f]);
    }
    putchar('\n');
    print_baselines(sets, list, count);
    print_row(sets, "this network", percent, sets->count);
    if (is_of_reference(spec, values, kr_model_config_of(model)))
        print_row(sets, "  reference", spec->of_reference, TASK_FIGURES);
    if (spec->reports_positions) {
        const task_set *set = &sets->set[0];
        printf("at position");
        for (int64_t s = 0; s < set->ns; s++) {
            if (s % 12 == 0) printf("\n%6lld:", (long long)s);
            printf(" %5.1f", set->scored_s[s] ? 100 * (double)set->right_s[s] / (double)set->scored_s[s] : NAN);
        }
        putchar('\n');
    }
    return true;
}

/* ---- evaluating ---- */

/* Does the model read one-hot symbols and predict the task's classes? */
static bool fits_task(const request *r, const kr_model *model)
{
    const kr_network_config *network = kr_model_config_of(model)->network;
    const int classes = lab_task_classes(r->spec->kind);
    if (network->input_size == LAB_TASK_SYMBOLS && network->output_size == classes) return true;
    return refuse(r->spec, "the model in %s has %lld inputs and %lld outputs, but this task has %d and %d",
                  r->values.eval, (long long)network->input_size, (long long)network->output_size, LAB_TASK_SYMBOLS,
                  classes);
}

static int evaluate(request *r)
{
    const task_values *v = &r->values;
    kr_ctx *ctx = cli_open_quiet(&v->machine, v->seed);
    kr_load_options loading;
    kr_load_options_init(&loading);
    loading.dtype = KR_DTYPE_F32;
    kr_model *model = cli_failed(ctx) ? NULL : kr_model_load(ctx, v->eval, &loading);
    task_sets sets = { 0 };
    bool ok = model ? fits_task(r, model) : !cli_failed(ctx);
    if (ok) {
        printf("%s: %s\n%s: %s\n", r->spec->command->name, r->spec->target, v->eval,
               task_network_words(model, v->has_fixed_decay).text);
        ok = task_sets_make(&sets, ctx, r->spec->kind, v->eval_rows, v->length) &&
             (task_sets_score(&sets, kr_model_network(model)) || !cli_failed(ctx)) &&
             print_table(r->spec, v, model, &sets);
    }
    task_sets_free(&sets);
    kr_model_destroy(model);
    kr_ctx_destroy(ctx);
    return ok ? CLI_OK : CLI_FAILED;
}

/* ---- training ---- */

static const char *epochs_of(int64_t n)
{
    return n == 1 ? "epoch" : "epochs";
}

static void print_heading(const request *r, const task_run *run)
{
    const task_values *v = &r->values;
    printf("%s: %s\n", r->spec->command->name, r->spec->target);
    printf("%s, seed %" PRIu64 "; %lld rows of %lld symbols, %lld a step, %lld %s\n",
           task_network_words(run->model, v->has_fixed_decay).text, v->seed, (long long)v->rows, (long long)v->length,
           (long long)v->batch, (long long)v->epochs, epochs_of(v->epochs));
    fflush(stdout);
}

static bool write_options(const request *r, const char *folder)
{
    char path[CLI_PATH_BYTES];
    return !folder ||
           (cli_join(path, folder, "task.json") && cli_json_write(r->spec->command, &r->values, &r->given, path));
}

static void print_end(const request *r, const task_run *run)
{
    char word[CLI_PATH_BYTES];
    const char *folder = run->folder ? cli_shell_word(run->folder, word, sizeof word) : NULL;
    if (run->is_interrupted) {
        printf("stopped in epoch %lld", (long long)run->epochs + 1);
        if (folder) printf("; continue with krait %s --resume %s", r->spec->command->name, folder);
        putchar('\n');
        return;
    }
    if (r->values.epochs > 0)
        printf("%s %lld %s, %.1f s\n", run->is_solved ? "solved after" : "not solved in", (long long)run->epochs,
               epochs_of(run->epochs), run->seconds);
    if (folder) printf("curves: %s/report.html; next: krait %s --eval %s\n", folder, r->spec->command->name, folder);
}

/* One run with the current values; false after an error message. */
static bool train_once(request *r, task_run *run)
{
    const task_values *v = &r->values;
    run->ctx = cli_open_quiet(&v->machine, v->seed);
    if (cli_failed(run->ctx)) return false;
    kr_model_config *config = kr_model_config_create(run->ctx);
    if (config) task_set_config(r->spec, v, config);
    run->model = config ? kr_model_create(run->ctx, config) : NULL;
    kr_model_config_destroy(config);
    if (!run->model) return !cli_failed(run->ctx);
    print_heading(r, run);
    return task_sets_make(&run->sets, run->ctx, r->spec->kind, v->eval_rows, v->length) &&
           write_options(r, run->folder) && task_train(run);
}

static void free_run(task_run *run)
{
    task_sets_free(&run->sets);
    kr_model_destroy(run->model);
    kr_ctx_destroy(run->ctx);
}

static bool may_restart(const request *r, const task_run *run)
{
    return r->values.restarts > 0 && !run->is_solved && !run->is_interrupted && r->values.epochs > 0;
}

/* Moves an unsolved run aside, and continues with the next seed. */
static bool restart(request *r, task_run *run)
{
    task_values *v = &r->values;
    printf("not solved in %lld %s, %.1f s; starting again with seed %" PRIu64 "\n", (long long)run->epochs,
           epochs_of(run->epochs), run->seconds, v->seed + 1);
    if (run->folder && !task_folder_set_aside(run->folder, v->seed)) return false;
    v->seed++;
    v->restarts--;
    return true;
}

static int train(request *r)
{
    const char *folder = r->values.resume ? r->values.resume : r->values.out;
    bool is_resumed = r->values.resume != NULL, ok = true;
    if (folder && !is_resumed && !task_folder_begin(r->spec->command->name, folder, r->values.force)) return CLI_FAILED;
    for (bool is_again = true; ok && is_again; is_resumed = false) {
        task_run run = { .spec = r->spec, .values = &r->values, .folder = folder, .is_resumed = is_resumed };
        ok = train_once(r, &run);
        is_again = ok && may_restart(r, &run);
        if (is_again) ok = restart(r, &run);
        else if (ok) {
            ok = print_table(r->spec, &r->values, run.model, &run.sets) && (!folder || cli_write_report(folder));
            if (ok) print_end(r, &run);
        }
        free_run(&run);
    }
    return ok ? CLI_OK : CLI_FAILED;
}

int task_sequence(const task_spec *spec, int argc, char **argv)
{
    request r = { .spec = spec, .values = TASK_VALUES_INIT };
    int status = cli_parse_given(spec->command, &r.values, argc, argv, &r.given);
    if (status < 0) status = !set_values(&r) ? CLI_USAGE : r.values.eval ? evaluate(&r) : train(&r);
    cli_json_close(&r.file);
    return status;
}
