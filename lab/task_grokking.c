/* task_grokking.c - krait task grokking: a small Mamba-2 learns addition modulo p from a part of all sums; it memorises
 * first and generalises later. */
#include "lab/grokking.h"

#include "cli/common/cli_files.h"
#include "cli/common/interrupt.h"
#include "cli/common/options_json.h"
#include "lab/cmd_task.h"
#include "lab/task_folder.h"

#include <math.h>
#include <string.h>

#define AT(field) offsetof(grok_values, field)
enum { ANY = -1000000000 }; /* lower bound of numbers that may be negative */

static const cli_option options[] = {
    { "p", 0, "N", CLI_I64, AT(p), "97", 2, "the modulus, which is the number of symbols" },
    { "k", 0, "N", CLI_I64, AT(k), "2", 1, "number of symbols to add; there are p^k rows, at most 2000000" },
    { "train-fraction", 0, "X", CLI_REAL, AT(train_fraction), "0.5", 0,
      "fraction of the rows for training; the rest is the test set" },
    { "split-seed", 0, "N", CLI_U64, AT(split_seed), "0", 0, "random seed of the split" },
    { "seed", 0, "N", CLI_U64, AT(seed), "0", 0, "random seed of the initial weights and the noise" },
    { "d-model", 0, "N", CLI_I64, AT(d_model), "64", 1, "model width" },
    { "expand", 0, "N", CLI_I64, AT(expand), "1", 1, "inner width / model width; all channels form one head" },
    { "state-rank", 0, "N", CLI_I64, AT(state_rank), "32", 1, "state rank" },
    { "n-layers", 0, "N", CLI_I64, AT(n_layers), "1", 1, "number of layers, at most 64; --k 4 needs 2" },
    { "embedding-std", 0, "X", CLI_REAL, AT(embedding_std), "1", 0, "standard deviation of the initial embedding" },
    { "steps", 0, "N", CLI_I64, AT(steps), "20000", 1, "number of steps, each with all rows" },
    { "lr", 0, "X", CLI_REAL, AT(lr), "1e-3", 0, "learning rate" },
    { "wd", 0, "X", CLI_REAL, AT(wd), "0", 0,
      "weight decay of all parameters: decoupled, or with --sgd part of the gradient" },
    { "sgd", 0, "X", CLI_REAL, AT(sgd), NULL, 0, "SGD with this momentum instead of AdamW" },
    { "pr-lambda", 0, "X", CLI_REAL, AT(pr_lambda), "0", ANY,
      "add X times the participation ratios of the target matrices to the loss; X < 0 rewards a high ratio" },
    { "pr-target", 0, GROK_TARGETS, CLI_CHOICE, AT(pr_target), "all", 0,
      "target matrices of the three terms added to the loss" },
    { "pr-sine-period", 0, "N", CLI_I64, AT(sine_period), "0", 0,
      "multiply --pr-lambda by a sine with a period of N steps; 0: do not" },
    { "pr-start-step", 0, "N", CLI_I64, AT(start_step), "0", 0, "treat --pr-lambda as 0 before this step" },
    { "l2-lambda", 0, "X", CLI_REAL, AT(l2_lambda), "0", ANY,
      "add X times the sum of squares of the target matrices to the loss" },
    { "noise-lambda", 0, "X", CLI_REAL, AT(noise_lambda), "0", ANY,
      "add X times the products of the target matrices with noise, sampled in each step, to the loss" },
    { "chunked", 0, NULL, CLI_FLAG, AT(is_chunked), NULL, 0, "process all tokens of a row at once (the default)" },
    { "stepwise", 0, NULL, CLI_FLAG, AT(is_stepwise), NULL, 0,
      "process token by token: the same up to rounding, but slower" },
    { "eval-every", 0, "N", CLI_I64, AT(eval_every), "250", 1, "steps between tests; also after 1, 2, 4, 8, ..." },
    { "save-every", 0, "N", CLI_I64, AT(save_every), "2000", 1, "steps between checkpoints" },
    { "stop-at", 0, "X", CLI_REAL, AT(stop_at), NULL, 0, "stop at this test accuracy, such as 0.99" },
    { "no-diag", 0, NULL, CLI_FLAG, AT(has_no_diagnostics), NULL, 0, "do not measure participation ratios" },
    { "no-state-pr", 0, NULL, CLI_FLAG, AT(has_no_state_pr), NULL, 0,
      "do not measure the participation ratios of states" },
    { "step-offset", 0, "N", CLI_I64, AT(step_offset), "0", 0, "added to the step numbers in output and files" },
    { "out", 0, "DIR", CLI_TEXT, AT(out), NULL, 0, "folder for the model, checkpoints, figures and report" },
    { "force", 0, NULL, CLI_FLAG, AT(force), NULL, 0, "replace an existing run in the folder" },
    { "resume", 0, "DIR", CLI_TEXT, AT(resume), NULL, 0, "resume the run in this folder" },
    { "from", 0, "DIR", CLI_TEXT, AT(from), NULL, 0, "start from the weights in this folder" },
    { "eval", 0, "DIR", CLI_TEXT, AT(eval), NULL, 0, "evaluate the run in this folder; no training" },
    { "json", 0, NULL, CLI_FLAG, AT(is_json), NULL, 0, "with --eval: print the result as one JSON object" },
    { "quiet", 'q', NULL, CLI_FLAG, AT(is_quiet), NULL, 0, "print only the result" },
    CLI_MACHINE_OPTIONS(grok_values, machine),
    { 0 },
};

static const char more[] =
    "Two runs to start with; the first memorises, the second also generalises:\n"
    "  krait task grokking --steps 2000 --out by-heart\n"
    "  krait task grokking --steps 2000 --wd 1 --pr-lambda 0.01 --out grokked\n"
    "DIR then has metrics.csv, pr.csv (states), weights.csv and report.html. See docs/tasks/grokking.md.\n";

static int refuse(const char *remedy, const char *text)
{
    cli_complain(remedy, "task grokking: %s", text);
    return CLI_USAGE;
}

/* Checks that the option table cannot express; CLI_OK if the values are consistent. */
static int check_values(const grok_values *v)
{
    if (!!v->out + !!v->resume + !!v->eval > 1) return refuse(NULL, "--out, --resume and --eval exclude each other");
    if (v->from && (v->resume || v->eval)) return refuse(NULL, "--from needs --out");
    if (v->force && !v->out) return refuse(NULL, "--force needs --out");
    if (v->is_json && !v->eval) return refuse(NULL, "--json needs --eval");
    if (v->is_chunked && v->is_stepwise) return refuse(NULL, "--chunked and --stepwise exclude each other");
    if (v->n_layers > GROK_MAX_LAYERS) return refuse(NULL, "--n-layers must be at most 64");
    if (v->train_fraction > 1) return refuse(NULL, "--train-fraction must be at most 1");
    if (!isnan(v->sgd) && v->sgd >= 1) return refuse(NULL, "--sgd, a momentum, must be below 1");
    return CLI_OK;
}

/* The options of the run in a folder, unless given on the command line. task.json is in the run's folder, two levels
 * above its checkpoints. */
static int read_options(const char *folder, grok_values *v, cli_given *given, cli_json_file *file)
{
    char path[CLI_PATH_BYTES];
    if (!cli_is_folder(folder)) {
        cli_complain(NULL, "task grokking: folder %s does not exist", folder);
        return CLI_FAILED;
    }
    if (!cli_join(path, folder, "task.json")) return CLI_FAILED;
    if (!cli_exists(path) && !cli_join(path, folder, "../../task.json")) return CLI_FAILED;
    if (!cli_exists(path)) {
        cli_complain("krait task grokking --out writes one", "task grokking: %s has no task.json", folder);
        return CLI_FAILED;
    }
    return cli_json_read(file, &cli_task_grokking, v, given, path) ? CLI_OK : CLI_USAGE;
}

static int run(int argc, char **argv)
{
    grok_values v = { .sgd = NAN, .stop_at = NAN };
    cli_given given = { 0 };
    cli_json_file file = { 0 };
    int status = cli_parse_given(&cli_task_grokking, &v, argc, argv, &given);
    if (status >= 0) return status;
    const char *folder = v.resume ? v.resume : v.eval;
    status = folder ? read_options(folder, &v, &given, &file) : CLI_OK;
    if (status == CLI_OK) status = check_values(&v);
    if (status == CLI_OK && v.out && !task_folder_begin("task grokking", v.out, v.force)) status = CLI_FAILED;
    if (status == CLI_OK) {
        cli_watch_interrupts();
        status =
            v.eval ? grok_evaluate(&v, v.eval) : grok_train(&cli_task_grokking, &v, &given, v.out ? v.out : v.resume);
    }
    cli_json_close(&file);
    return status;
}

const cli_command cli_task_grokking = {
    .name = "task grokking",
    .summary = "modular addition from a subset of sums: memorisation first, generalisation later",
    .options = options,
    .run = run,
    .more = more,
    .line_only = "out,force,resume,from,eval,json,quiet,threads,isa,device",
};
