/* trainer_ranks.c - a step of several ranks: sums of gradients during the backward pass, results, errors.
 *
 * Rank r of R computes micro-batches r M/R to (r + 1) M/R - 1, a subtree of the step's sum if M/R is a power of two. In the
 * backward pass of the last of them, buckets of gradients are posted as soon as they are final, in their order on all ranks.
 * A rank that fails posts the buckets that it has not computed, too; they are not used, since all ranks then exchange whether
 * they have failed. So the communicator can be used after errors of a rank, and the step is undone on all of them.
 */
#define _POSIX_C_SOURCE 200809L
#include "train/trainer_ranks.h"

#include "base/hash.h"
#include "comm/comm_impl.h"
#include "nn/params_impl.h"
#include "tape/tape_impl.h"
#include "train/optimizer_impl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define OP "trainer"

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

/* ---- the same run on all ranks ---- */

enum { N_PRINTS = 4, N_SAMPLES = 64 };

typedef struct fingerprints {
    uint64_t is_made, prints[N_PRINTS];
} fingerprints;

static uint64_t hash_options(const kr_trainer *t)
{
    const kr_optimizer_options *o = &t->optimizer->options;
    const kr_loader_options *l = &t->loader->options;
    const int64_t numbers[] = { t->o.accumulate,
                                t->pieces,
                                t->o.sequence_mode,
                                t->o.loss,
                                t->o.loss_fn != NULL,
                                t->o.steps,
                                t->o.eval_every,
                                t->o.save_every,
                                t->o.validation != NULL,
                                t->o.eval_batches,
                                (int64_t)t->ctx->seed,
                                (int64_t)t->ctx->stream,
                                l->batch,
                                l->length,
                                l->carry,
                                (int64_t)l->seed,
                                l->shuffle,
                                l->pack,
                                l->n_epochs,
                                (int64_t)t->schedule.kind,
                                t->schedule.total_steps,
                                t->schedule.warmup_steps,
                                (int64_t)o->kind,
                                o->decay_all,
                                o->muon_steps,
                                o->keep_grad,
                                t->o.folder != NULL };
    const double reals[] = {
        t->schedule.max_lr, t->schedule.min_lr,  o->beta1,      o->beta2,     o->eps,       o->weight_decay,
        o->momentum,        o->clip_norm,        o->clip_value, o->ema_decay, t->o.dropout, t->o.huber_delta,
        t->o.quantile,      t->o.label_smoothing
    };
    return kr_hash_bytes(kr_hash_bytes(KR_HASH_BEGIN, numbers, sizeof numbers), reals, sizeof reals);
}

/* Sizes, and values at positions through all of the data. */
static bool hash_data(const kr_trainer *t, uint64_t *hash)
{
    const kr_source *s = t->loader->source;
    const kr_source_info *info = &s->info;
    const size_t floats = (size_t)(info->n_features + info->n_targets);
    const int64_t last = info->count - 1;
    const int64_t sizes[] = { info->count, info->n_ids, t->loader->count, t->loader->steps, t->loader->from };
    *hash = kr_hash_bytes(KR_HASH_BEGIN, sizes, sizeof sizes);
    float *x = kr_memory_alloc(&t->ctx->memory, (floats + 1) * sizeof *x);
    if (!x) return kr_fail(t->ctx, KR_ERR_NOMEM, OP ": no memory to compare the data of the ranks");
    bool ok = true;
    for (int i = 0; ok && i < N_SAMPLES; i++) {
        int32_t id = 0, label = 0;
        bool is_filled = false;
        memset(x, 0, (floats + 1) * sizeof *x);
        const kr_positions at = { .ids = info->n_ids ? &id : NULL,
                                  .x = info->n_features ? x : NULL,
                                  .labels = info->n_classes && !info->predict_next ? &label : NULL,
                                  .targets = info->n_targets && !info->predict_next ? x + info->n_features : NULL,
                                  .is_filled = info->predict_next ? &is_filled : NULL };
        ok = s->kind->read(s, last / (N_SAMPLES - 1) * i + last % (N_SAMPLES - 1) * i / (N_SAMPLES - 1), 1, &at);
        *hash = kr_hash_bytes(kr_hash_word(*hash, (uint64_t)id ^ (uint64_t)label << 32), x, floats * sizeof *x);
    }
    kr_memory_free(&t->ctx->memory, x, (floats + 1) * sizeof *x);
    return ok;
}

static bool print_all(const kr_trainer *t, fingerprints *f)
{
    const char *matmul = kr_ctx_kernel(t->ctx, "matmul"), *ssd = kr_ctx_kernel(t->ctx, "ssd");
    f->prints[0] = kr_params_values_hash(t->params);
    f->prints[2] = hash_options(t);
    f->prints[3] = kr_hash_text(kr_hash_text(KR_HASH_BEGIN, matmul ? matmul : ""), ssd ? ssd : "");
    return hash_data(t, &f->prints[1]);
}

static bool compare(kr_trainer *t, const fingerprints *all)
{
    static const char *const names[N_PRINTS] = { "another model or other weights", "another data set",
                                                 "other training options", "other kernels" };
    static const char *const remedies[N_PRINTS] = { "create or load the same model everywhere",
                                                    "give all ranks the same files", "start all ranks alike",
                                                    "let them use one instruction set (--isa), or the same devices" };
    for (int k = 0; k < N_PRINTS; k++)
        for (int r = 1; r < t->ranks; r++)
            if (all[r].prints[k] != all[0].prints[k])
                return kr_fail(t->ctx, KR_ERR_STATE, OP ": rank %d of %d has %s than rank 0; %s", r, t->ranks, names[k],
                               remedies[k]);
    return true;
}

bool kr_ranks_meet(kr_trainer *t, bool is_made)
{
    fingerprints own = { .is_made = is_made };
    if (is_made) own.is_made = is_made = print_all(t, &own);
    if (kr_comm_agree(t->comm) != KR_OK || !is_made) return false;
    kr_memory *memory = &t->ctx->memory;
    const size_t bytes = (size_t)t->ranks * sizeof own;
    fingerprints *all = kr_memory_alloc(memory, bytes);
    if (!all) kr_fail(t->ctx, KR_ERR_NOMEM, OP ": no memory for the fingerprints of %d ranks", t->ranks);
    const bool is_same = kr_comm_gather(t->comm, &own, all, sizeof own) == KR_OK && compare(t, all);
    kr_memory_free(memory, all, bytes);
    return is_same;
}

/* ---- memory of a step ---- */

static size_t exchange_bytes(const kr_trainer *t)
{
    const size_t n = (size_t)(t->leaves / t->ranks) * sizeof(kr_batch_result) + sizeof(double);
    return (n + (size_t)t->sums.nrows + 1 + 7) / 8 * 8;
}

void kr_ranks_free(kr_trainer *t)
{
    kr_memory *memory = &t->ctx->memory;
    if (t->tickets) kr_memory_free(memory, t->tickets, (size_t)t->ntickets * sizeof *t->tickets);
    if (t->exchange) kr_memory_free(memory, t->exchange, t->exchange_bytes);
    if (t->each_seconds) kr_memory_free(memory, t->each_seconds, 2 * (size_t)t->ranks * sizeof(double));
    t->tickets = NULL;
    t->exchange = NULL;
    t->each_seconds = NULL;
}

static bool allocate(kr_trainer *t)
{
    const size_t bytes = exchange_bytes(t) * (size_t)(t->ranks + 1);
    if (t->ntickets == t->sums.nbuckets && t->exchange_bytes == bytes && t->tickets && t->exchange) return true;
    kr_ranks_free(t);
    t->ntickets = t->sums.nbuckets;
    t->exchange_bytes = bytes;
    t->tickets = kr_memory_alloc(&t->ctx->memory, (size_t)t->ntickets * sizeof *t->tickets);
    t->exchange = kr_memory_alloc(&t->ctx->memory, bytes);
    t->each_seconds = kr_memory_alloc_zeroed(&t->ctx->memory, 2 * (size_t)t->ranks * sizeof(double));
    if (t->tickets && t->exchange && t->each_seconds) return true;
    kr_ranks_free(t);
    return kr_fail(t->ctx, KR_ERR_NOMEM, OP ": no memory for the results of %d ranks", t->ranks);
}

bool kr_ranks_begin(kr_trainer *t, bool is_ready)
{
    const kr_comm_info info = kr_comm_info_of(t->comm);
    if (is_ready && allocate(t) && t->carried) kr_carry_begin(t);
    t->posted = 0;
    t->comm_seconds = info.seconds;
    t->wait_seconds = info.wait_seconds;
    const bool is_agreed = kr_comm_agree(t->comm) == KR_OK;
    t->began = now() - (kr_comm_info_of(t->comm).wait_seconds - info.wait_seconds); /* the wait is taken off later */
    return is_agreed;
}

/* ---- sums of gradients ---- */

/* The next bucket, as it is. */
static bool post(kr_trainer *t)
{
    kr_memory *memory = &t->ctx->memory;
    const kr_grad_sums *g = &t->sums;
    const kr_grad_bucket *bucket = &g->buckets[t->posted];
    int64_t most = 0, n = 0;
    for (int64_t k = bucket->from; k < bucket->end; k++)
        most += kr_optimizer_shares_of(t->optimizer, g->order[k], 0, NULL);
    kr_comm_share *shares = kr_memory_alloc(memory, (size_t)(most + 1) * sizeof *shares);
    if (!shares) kr_fail(t->ctx, KR_ERR_NOMEM, OP ": no memory for a list of %lld pieces", (long long)most);
    for (int64_t k = bucket->from; shares && k < bucket->end; k++)
        n += kr_optimizer_shares_of(t->optimizer, g->order[k], g->rows[g->order[k]].at - bucket->first, shares + n);
    t->tickets[t->posted++] =
        kr_comm_begin_sum_shares(t->comm, kr_grad_sums_bucket(g, bucket), shares, n, bucket->dtype);
    if (shares) kr_memory_free(memory, shares, (size_t)(most + 1) * sizeof *shares);
    return !kr_ctx_failed(t->ctx);
}

static bool is_final(const kr_trainer *t, const kr_grad_bucket *bucket, int64_t fence)
{
    for (int64_t k = bucket->from; k < bucket->end; k++)
        if (!kr_grad_is_final(t->sums.rows[t->sums.order[k]].param, fence)) return false;
    return true;
}

static void post_final(void *user, int64_t fence)
{
    kr_trainer *t = user;
    while (!kr_ctx_failed(t->ctx) && t->posted < t->sums.nbuckets && is_final(t, &t->sums.buckets[t->posted], fence) &&
           kr_grad_sums_finish(&t->sums, &t->sums.buckets[t->posted]) && post(t))
        continue;
}

void kr_ranks_post_at_fences(kr_trainer *t, bool is_on)
{
    kr_tape_set_fences(t->tape, is_on ? post_final : NULL, t);
    t->posted_early = t->posted;
}

/* What is left to post, finished or not, and the end of all sums. */
static void end_sums(kr_trainer *t, kr_held_error *held)
{
    while (t->posted < t->sums.nbuckets) {
        if (held->status == KR_OK && !kr_grad_sums_finish(&t->sums, &t->sums.buckets[t->posted]))
            *held = kr_hold_error(t->ctx);
        if (!post(t)) break;
    }
    for (int64_t b = 0; b < t->posted; b++) kr_comm_end(t->comm, t->tickets[b]);
    kr_grad_sums_close(&t->sums);
}

/* ---- results ---- */

static bool exchange(kr_trainer *t, bool has_failed, bool *has_any_failed)
{
    const int64_t count = t->leaves / t->ranks, first = kr_rank_first(t, t->rank, t->leaves);
    const size_t each = exchange_bytes(t), results = (size_t)count * sizeof(kr_batch_result);
    char *own = t->exchange, *all = own + each;
    memset(own, 0, each);
    char *const reached = own + results + sizeof(double);
    memcpy(own, t->results + first, results);
    memcpy(own + results, &t->compute_seconds, sizeof(double));
    for (int64_t i = 0; i < t->sums.nrows; i++) reached[i] = t->sums.rows[i].is_reached;
    reached[t->sums.nrows] = has_failed;
    if (kr_comm_gather(t->comm, own, all, each) != KR_OK) return false;
    *has_any_failed = false;
    for (int r = 0; r < t->ranks; r++) {
        const char *from = all + (size_t)r * each, *flags = from + results + sizeof(double);
        memcpy(t->results + count * r, from, results);
        memcpy(&t->each_seconds[r], from + results, sizeof(double));
        for (int64_t i = 0; i < t->sums.nrows; i++)
            if (flags[i]) t->sums.rows[i].is_reached = true;
        if (flags[t->sums.nrows]) *has_any_failed = true;
    }
    return true;
}

bool kr_ranks_sum(kr_trainer *t)
{
    kr_held_error held = kr_hold_error(t->ctx);
    bool has_any_failed = true;
    if (t->carried) kr_carry_end(t);
    end_sums(t, &held);
    if (!kr_ctx_failed(t->ctx)) exchange(t, held.status != KR_OK, &has_any_failed);
    kr_return_error(t->ctx, &held);
    return !has_any_failed;
}

bool kr_ranks_gather_results(kr_trainer *t, kr_batch_result *results, int64_t count)
{
    enum { WORDS = sizeof(kr_batch_result) / 8 };
    _Static_assert(sizeof(kr_batch_result) % 8 == 0, "results are moved as words");
    kr_memory *memory = &t->ctx->memory;
    kr_comm_share *shares = kr_memory_alloc(memory, (size_t)t->ranks * sizeof *shares);
    if (!shares) kr_fail(t->ctx, KR_ERR_NOMEM, OP ": no memory for the results of %d ranks", t->ranks);
    for (int r = 0; shares && r < t->ranks; r++) {
        const int64_t first = kr_rank_first(t, r, count), end = kr_rank_first(t, r + 1, count);
        shares[r] = (kr_comm_share){ WORDS * first, WORDS * (end - first), r, 0 };
    }
    kr_comm_gather_shares(t->comm, results, shares, shares ? t->ranks : 0, KR_DTYPE_I64);
    if (shares) kr_memory_free(memory, shares, (size_t)t->ranks * sizeof *shares);
    return !kr_ctx_failed(t->ctx);
}

/* ---- errors and wishes ---- */

bool kr_ranks_any(kr_trainer *t, bool is_wanted)
{
    double count = is_wanted;
    return kr_comm_sum(t->comm, &count, 1, KR_DTYPE_F64) == KR_OK && count > 0;
}

void kr_ranks_tell(kr_trainer *t, bool has_found)
{
    const kr_held_error held = kr_hold_error(t->ctx);
    const bool is_found = kr_ranks_any(t, has_found);
    if (kr_ctx_failed(t->ctx)) { /* a rank has gone, or the connection to it */
        if (has_found) kr_return_error(t->ctx, &held);
        return;
    }
    if (has_found || !is_found) kr_return_error(t->ctx, &held);
    kr_comm_agree(t->comm);
}

/* ---- times ---- */

void kr_ranks_note_computed(kr_trainer *t)
{
    const double waited = kr_comm_info_of(t->comm).wait_seconds - t->wait_seconds;
    t->compute_seconds = now() - t->began - waited;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A rank that is slow for so long is named once by itself: its log knows its host. */
static void name_slow_rank(const kr_trainer *t, double median)
{
    enum { STEPS = 20 };
    const kr_train_ranks *s = &t->stats;
    if (s->slow_steps == STEPS && s->slowest_rank == t->rank)
        kr_note(t->ctx, KR_LOG_WARNING,
                "%s: this rank has been the slowest for %d steps, with %.3g s of computing a step, "
                "but half of the ranks need %.3g s or less",
                kr_comm_text(t->comm), STEPS, s->slowest_seconds, median);
}

void kr_ranks_note_step(kr_trainer *t)
{
    const double most_over_median = 1.3;
    const kr_comm_info info = kr_comm_info_of(t->comm);
    kr_train_ranks s = { .rank = t->rank,
                         .ranks = t->ranks,
                         .compute_seconds = t->compute_seconds,
                         .comm_seconds = info.seconds - t->comm_seconds,
                         .exposed_seconds = info.wait_seconds - t->wait_seconds };
    for (int r = 1; r < t->ranks; r++)
        if (t->each_seconds[r] > t->each_seconds[s.slowest_rank]) s.slowest_rank = r;
    s.slowest_seconds = t->each_seconds[s.slowest_rank];
    double *sorted = t->each_seconds + t->ranks;
    memcpy(sorted, t->each_seconds, (size_t)t->ranks * sizeof *sorted);
    qsort(sorted, (size_t)t->ranks, sizeof *sorted, by_value);
    const double median = sorted[(t->ranks - 1) / 2];
    const bool is_slow = s.slowest_seconds > most_over_median * median;
    if (is_slow) s.slow_steps = s.slowest_rank == t->stats.slowest_rank ? t->stats.slow_steps + 1 : 1;
    t->stats = s;
    name_slow_rank(t, median);
}

kr_train_ranks kr_trainer_ranks_of(const kr_trainer *t)
{
    if (!t || t->ranks == 1) return (kr_train_ranks){ .ranks = 1 };
    kr_train_ranks s = t->stats;
    s.rank = t->rank;
    s.ranks = t->ranks;
    return s;
}
