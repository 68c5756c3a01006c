/* task_score.c - evaluates a network on rows of each family. */
#include "lab/task_score.h"

#include "cli/common/floats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_AT_ONCE = 512 };

static bool make_set(task_set *set, kr_ctx *ctx, const lab_task *task, int64_t n_rows)
{
    kr_loader_options reading;
    kr_loader_options_init(&reading);
    reading.batch = n_rows < ROWS_AT_ONCE ? n_rows : ROWS_AT_ONCE;
    reading.length = task->length;
    reading.pack = false;
    reading.shuffle = false;
    set->family = lab_task_family(task->kind, task->family);
    set->ns = task->length;
    set->source = lab_source_task(ctx, task, n_rows, true);
    set->loader = kr_loader_create(set->source, &reading);
    set->scored_s = calloc((size_t)set->ns * 2, sizeof *set->scored_s);
    set->right_s = set->scored_s + set->ns;
    if (!set->scored_s) cli_complain(NULL, "out of memory for %lld positions", (long long)set->ns);
    return set->scored_s != NULL;
}

bool task_sets_make(task_sets *sets, kr_ctx *ctx, lab_task_kind kind, int64_t n_rows, int64_t length)
{
    *sets = (task_sets){ .ctx = ctx, .tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD), .count = lab_task_families(kind) };
    bool ok = true;
    for (int f = 0; f < sets->count; f++) {
        const lab_task task = { .kind = kind, .family = f, .length = length, .seed = LAB_TASK_EVAL_SEED };
        ok = make_set(&sets->set[f], ctx, &task, n_rows) && ok;
    }
    return ok && !cli_failed(ctx);
}

void task_sets_free(task_sets *sets)
{
    for (int f = 0; f < sets->count; f++) {
        kr_loader_destroy(sets->set[f].loader);
        kr_source_destroy(sets->set[f].source);
        free(sets->set[f].scored_s);
    }
    kr_tape_destroy(sets->tape);
    memset(sets, 0, sizeof *sets);
}

/* -log softmax(logits)[label]; *is_right: no preceding logit is as large, and no later one is larger. */
static double loss_of(const float *logit_w, int64_t nw, int32_t label, bool *is_right)
{
    int64_t best = 0;
    double sum = 0;
    for (int64_t w = 1; w < nw; w++)
        if (logit_w[w] > logit_w[best]) best = w;
    for (int64_t w = 0; w < nw; w++) sum += exp((double)logit_w[w] - (double)logit_w[best]);
    *is_right = best == label;
    return log(sum) + (double)logit_w[best] - (double)logit_w[label];
}

static void count(task_set *set, const kr_tensor *logit_bsw, const kr_tensor *label_bs)
{
    float *logits = cli_floats(logit_bsw);
    const int32_t *labels = kr_tensor_data(label_bs);
    const int64_t nw = kr_tensor_dim(logit_bsw, 2), n = logits ? kr_tensor_count(label_bs) : 0;
    for (int64_t i = 0; i < n; i++) {
        if (labels[i] == KR_NOT_SCORED) continue;
        bool is_right;
        set->loss += loss_of(logits + i * nw, nw, labels[i], &is_right);
        set->scored++;
        set->right += is_right;
        set->scored_s[i % set->ns]++;
        set->right_s[i % set->ns] += is_right;
    }
    free(logits);
}

static bool score_set(task_sets *sets, task_set *set, const kr_network *net)
{
    kr_call call;
    kr_call_init(&call);
    call.drop_state = true;
    set->scored = set->right = 0;
    set->loss = 0;
    memset(set->scored_s, 0, 2 * (size_t)set->ns * sizeof *set->scored_s);
    for (int64_t i = kr_loader_steps_per_epoch(set->loader); i > 0; i--) {
        kr_batch batch;
        kr_tape_reset(sets->tape);
        if (kr_loader_next(sets->tape, set->loader, &batch) != KR_OK) break;
        const kr_tensor *logit_bsw = kr_network_forward(sets->tape, net, batch.x_bsf, &call).y;
        if (!logit_bsw) break;
        count(set, logit_bsw, batch.labels_bs);
    }
    kr_tape_reset(sets->tape);
    set->loss = set->scored ? set->loss / (double)set->scored : NAN;
    return !kr_ctx_failed(sets->ctx);
}

bool task_sets_score(task_sets *sets, const kr_network *net)
{
    for (int f = 0; f < sets->count; f++)
        if (!score_set(sets, &sets->set[f], net)) return false;
    return true;
}

bool task_sets_all_right(const task_sets *sets)
{
    for (int f = 0; f < sets->count; f++)
        if (sets->set[f].right != sets->set[f].scored) return false;
    return true;
}

double task_set_accuracy(const task_set *set)
{
    return set->scored ? (double)set->right / (double)set->scored : NAN;
}
