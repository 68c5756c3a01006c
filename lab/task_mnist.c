/* task_mnist.c - krait task NAME of the tasks over images of digits: options and results. */
#include "lab/task_mnist.h"

#include "cli/common/cli_files.h"
#include "cli/common/options_json.h"
#include "cli/report/report_html.h"
#include "lab/task_folder.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

/* ---- options ---- */

typedef struct request {
    const mnist_kind *kind;
    mnist_values values;
    cli_given given;
    cli_json_file file; /* of a resumed or evaluated run; owns the texts of values */
} request;

bool mnist_refuse(const mnist_kind *kind, const char *format, ...)
{
    char text[512], remedy[80];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(remedy, sizeof remedy, "see krait %s --help", kind->command->name);
    cli_complain(remedy, "%s: %s", kind->command->name, text);
    return false;
}

static bool read_options(request *r, const char *folder)
{
    char path[CLI_PATH_BYTES];
    if (!cli_is_folder(folder)) return mnist_refuse(r->kind, "%s is not a directory", folder);
    return cli_join(path, folder, "task.json") &&
           cli_json_read(&r->file, r->kind->command, &r->values, &r->given, path);
}

static bool check_files(const request *r)
{
    const mnist_values *v = &r->values;
    const bool has_labels = r->kind->has_labels;
    if (!v->images && v->test_images && !v->eval) return mnist_refuse(r->kind, "--test-images needs --images");
    if ((v->labels && !v->images) || (v->test_labels && !v->test_images))
        return mnist_refuse(r->kind, "--labels needs --images, and --test-labels needs --test-images");
    if (has_labels && v->images && !v->labels) return mnist_refuse(r->kind, "--images needs --labels");
    if (has_labels && v->test_images && !v->test_labels)
        return mnist_refuse(r->kind, "--test-images needs --test-labels");
    if (v->eval_rows && v->images && !v->test_images)
        return mnist_refuse(r->kind, "--eval-rows needs --test-images; without them a tenth of --images is evaluated");
    return true;
}

static bool check(const request *r)
{
    const mnist_values *v = &r->values;
    int64_t height, width;
    if (!mnist_patch_of(v->patch, &height, &width))
        return mnist_refuse(r->kind, "--patch is '%.40s', but must be a height and a width: 4x7", v->patch);
    if (v->min_lr > v->lr)
        return mnist_refuse(r->kind, "--min-lr is %g, but must not be above --lr, %g", v->min_lr, v->lr);
    return check_files(r);
}

static bool set_values(request *r)
{
    const mnist_values *v = &r->values;
    if (!!v->out + !!v->resume + !!v->eval > 1)
        return mnist_refuse(r->kind, "--out, --resume and --eval exclude each other");
    if (v->resume && !read_options(r, v->resume)) return false;
    if (v->eval && !read_options(r, v->eval)) return false;
    return check(r);
}

/* ---- the network ---- */

kr_mamba3_config mnist_block(int rotation)
{
    kr_mamba3_config block;
    kr_mamba3_config_init(&block);
    block.d_model = 32;
    block.state_rank = 64;
    block.expand = 4;
    block.rotation = rotation == MNIST_ROTATION_QUATERNION ? KR_ROTATION_QUATERNION : KR_ROTATION_COMPLEX;
    block.rope_fraction = rotation == MNIST_ROTATION_NONE ? 0 : 1;
    block.rotation_range = 2;
    block.a_activation = KR_A_ACTIVATION_SOFTPLUS;
    block.has_outproj_norm = true;
    block.has_shared_norm_gain = true;
    block.norm_eps = 8.1585e-8; /* the reference's, of f32 */
    block.has_proj_bias = true;
    block.dt_limit_max = 65504;
    return block;
}

/* ---- reports ---- */

static void report_heading(const mnist_run *run)
{
    const mnist_values *v = run->values;
    const mnist_data *d = &run->data;
    char words[200];
    run->kind->describe(run, words, sizeof words);
    printf("%s: %s\n%s, seed %" PRIu64 "\n", run->kind->command->name, run->kind->target, words, v->seed);
    if (d->is_drawn) printf("no --images: using synthetic digits\n");
    if (!v->eval) printf("%lld images for training, ", (long long)d->n_train);
    printf("%lld for the evaluation, each %lld patches of %lldx%lld", (long long)d->n_test,
           (long long)(d->height / d->patch_height * (d->width / d->patch_width)), (long long)d->patch_height,
           (long long)d->patch_width);
    if (!v->eval)
        printf("; %lld a step, %lld epoch%s", (long long)v->batch, (long long)v->epochs, v->epochs == 1 ? "" : "s");
    putchar('\n');
    fflush(stdout);
}

static bool report_evaluation(mnist_run *run)
{
    kr_evaluation e;
    if (!mnist_evaluate(run, &e)) return false;
    if (run->kind->has_labels)
        printf("%lld of %lld test images right (%.2f %%), loss %.4f\n", (long long)e.n_right, (long long)e.n_scored,
               e.n_scored ? 100 * (double)e.n_right / (double)e.n_scored : 0.0, e.loss);
    else printf("test images: loss %.4f per pixel\n", e.loss);
    fflush(stdout);
    return !run->values->baselines || run->kind->baselines(run);
}

static void report_folder(const request *r, const char *folder, bool is_stopped)
{
    char word[CLI_PATH_BYTES];
    const char *name = r->kind->command->name;
    if (!folder) return;
    cli_shell_word(folder, word, sizeof word);
    if (is_stopped) printf("continue with krait %s --resume %s\n", name, word);
    else printf("curves: %s/report.html; pictures: %s/pictures; next: krait %s --eval %s\n", word, word, name, word);
}

/* ---- runs ---- */

static bool write_options(void *user, const char *folder)
{
    const request *r = user;
    char path[CLI_PATH_BYTES];
    return cli_join(path, folder, "task.json") && cli_json_write(r->kind->command, &r->values, &r->given, path);
}

static bool begin(mnist_run *run)
{
    const mnist_kind *kind = run->kind;
    run->ctx = cli_open_quiet(&run->values->machine, run->values->seed);
    if (cli_failed(run->ctx)) return false;
    if (!mnist_open(&run->data, run->ctx, run->values, kind->mean, kind->deviation, kind->has_labels) ||
        !(run->net = kind->create(run))) {
        cli_failed(run->ctx);
        return false;
    }
    report_heading(run);
    return true;
}

static void end(mnist_run *run)
{
    if (run->net) run->kind->destroy(run->net);
    mnist_close(&run->data);
    kr_ctx_destroy(run->ctx);
}

static int evaluate(request *r)
{
    mnist_run run = { .kind = r->kind, .values = &r->values };
    bool ok = begin(&run);
    if (ok && !r->kind->load(&run, r->values.eval)) {
        cli_failed(run.ctx);
        ok = false;
    }
    ok = ok && report_evaluation(&run);
    end(&run);
    return ok ? CLI_OK : CLI_FAILED;
}

static int train(request *r)
{
    const mnist_values *v = &r->values;
    const char *folder = v->resume ? v->resume : v->out;
    mnist_run run = { .kind = r->kind, .values = v, .write_options = write_options, .user = r };
    bool is_stopped = false;
    if (v->out && !task_folder_begin(r->kind->command->name, v->out, v->force)) return CLI_FAILED;
    bool ok = begin(&run) && mnist_train(&run, folder, v->resume != NULL, &is_stopped);
    if (ok && is_stopped) printf("stopped before the end\n");
    ok = ok && (is_stopped || report_evaluation(&run)) && (!folder || cli_write_report(folder));
    if (ok) report_folder(r, folder, is_stopped);
    end(&run);
    return ok ? CLI_OK : CLI_FAILED;
}

int task_mnist(const mnist_kind *kind, int argc, char **argv)
{
    request r = { .kind = kind };
    int status = cli_parse_given(kind->command, &r.values, argc, argv, &r.given);
    if (status < 0) status = !set_values(&r) ? CLI_USAGE : r.values.eval ? evaluate(&r) : train(&r);
    cli_json_close(&r.file);
    return status;
}
