/* test_rank_law.c - the number of ranks changes no bit: weights, optimizer, losses, norms, evaluations.
 *
 * Ranks are threads with their own contexts, over engine "tcp". One rank over the same micro-batches is what they are
 * compared with.
 */
#define _GNU_SOURCE
#include "tests/train/running.h"

#include "base/device_memory.h"
#include "train/optimizer_impl.h"
#include "train/trainer.h"

#include <pthread.h>

enum { RANKS_MOST = 8, STEPS = 20, KINDS = 5 };
static const char *const kind_names[KINDS] = { "m", "v", "velocity", "master", "ema" };

/* 605 bytes in documents of many lengths. */
static const char corpus[] =
    "The woods are lovely, dark and deep.|A stack of layers reads a row of tokens, and leaves behind a state of the "
    "same "
    "size, however long the row was.|no|To go on from a state is to go on from all that was read.|A checkpoint holds "
    "the "
    "weights, what the optimizer remembers of them, the place in the data, and the random stream; a run that is killed "
    "and begun again ends with the same bits as one that was not.|yes|Gradients of many rows are added in an order "
    "that "
    "depends on their numbers alone, so that the number of machines does not show in it.|x|the end|of it|all";

/* What a test varies. */
typedef struct rank_law {
    const char *name;
    kr_family family;
    kr_dtype dtype;
    kr_optimizer_kind kind;
    int64_t micro_batches;
    bool has_ema, is_recomputed, by_documents, keep_grad, carry;
    double clip_norm, dropout;
    int n_virtual;
    int pieces;       /* of each row; 0: whole rows */
    int64_t length;   /* 0: 11 */
    int64_t d_model;  /* 0: 48 */
    int64_t n_epochs; /* 0: the data repeat */
} rank_law;

/* Everything a run leaves: all weights in f64, and what the optimizer keeps of each element. */
typedef struct outcome {
    int64_t elements;
    double *weights, *kept[KINDS];
    uint64_t hash;
    int64_t step, positions;
    bool has_times;
    int64_t nbuckets, posted_early;
    size_t bytes; /* of the optimizer's state on this rank */
    double losses[STEPS], norms[STEPS], eval_loss;
    int64_t scored[STEPS], right[STEPS];
    uint64_t steps_hash;
    char failure[600];
} outcome;

typedef struct rank_run {
    const rank_law *law;
    int rank, ranks;
    int64_t until;   /* the step to train to */
    bool has_folder; /* resumes what is there, and saves at the end */
    char meet[300], run[300];
    outcome *out; /* shared: each rank writes its pieces */
    outcome own;
    pthread_t thread;
} rank_run;

static kr_model *model_of(kr_ctx *ctx, const rank_law *law)
{
    kr_model_config *config = kr_model_config_create(ctx);
    config->family = law->family;
    kr_model_config_set_d_model(config, law->d_model ? law->d_model : 48);
    config->mamba1->state_rank = 4;
    config->mamba2->state_rank = config->mamba3->state_rank = 8;
    config->mamba2->per_head_dim = config->mamba3->per_head_dim = 16;
    config->mamba1->dtype = config->mamba2->dtype = config->mamba3->dtype = law->dtype;
    config->layers->n_layers = 2;
    config->layers->n_virtual = law->n_virtual;
    if (law->is_recomputed) config->layers->recompute = KR_RECOMPUTE_ALL;
    if (law->pieces) config->mamba2->path.chunk_len = config->mamba3->path.chunk_len = 16;
    config->network->vocab_size = 256;
    kr_model *model = kr_model_create(ctx, config);
    kr_model_config_destroy(config);
    return model;
}

/* What this rank owns of the optimizer's state, at the places of the whole table. */
static void keep_pieces(const kr_optimizer *opt, outcome *to)
{
    int64_t *offsets = calloc((size_t)opt->count + 1, sizeof *offsets);
    for (int64_t i = 0; i < opt->count; i++) offsets[i + 1] = offsets[i] + kr_slot_elements(&opt->slots[i]);
    kr_piece_at at = KR_BEFORE_PIECES;
    for (const kr_optimizer_piece *piece; (piece = kr_optimizer_next_piece(opt, &at));) {
        const kr_dtype dtype = opt->slots[at.slot].dtype;
        const void *const from[KINDS] = { piece->m, piece->v, piece->velocity, piece->master, piece->ema };
        for (int k = 0; k < KINDS; k++) {
            if (!from[k]) continue;
            kr_tensor x = { .ctx = opt->ctx };
            kr_tensor_layout(&x, dtype, &KR_SHAPE(piece->count));
            memcpy(&x.data, &from[k], sizeof x.data);
            double *values = kr_test_values(&x);
            memcpy(to->kept[k] + offsets[at.slot] + piece->first, values, (size_t)piece->count * sizeof *values);
            free(values);
        }
    }
    free(offsets);
}

static void keep_weights(const kr_params *params, double *to)
{
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_tensor *w = kr_params_at(params, i)->tensor;
        double *values = kr_test_values(w);
        memcpy(to, values, (size_t)kr_tensor_count(w) * sizeof *values);
        to += kr_tensor_count(w);
        free(values);
    }
}

static void train(rank_run *r, kr_trainer *trainer)
{
    outcome *o = &r->own;
    /* several buckets, though the model is small */
    trainer->sums.bucket_bytes = 20000;
    if (r->has_folder && kr_trainer_resume(trainer) != KR_OK) return;
    for (int64_t i; (i = kr_trainer_progress(trainer).step) < r->until;) {
        const kr_status status = kr_trainer_step(trainer);
        if (status == KR_END) break;
        if (status != KR_OK) return;
        const kr_train_progress p = kr_trainer_progress(trainer);
        o->losses[i] = p.loss;
        o->norms[i] = p.grad_norm;
        o->scored[i] = p.n_scored;
        o->right[i] = p.n_right;
    }
    if (r->has_folder && kr_trainer_save(trainer) != KR_OK) return;
    o->step = kr_trainer_progress(trainer).step;
    o->positions = kr_trainer_progress(trainer).n_positions;
    o->nbuckets = trainer->sums.nbuckets;
    o->bytes = kr_optimizer_bytes(trainer->optimizer);
    o->posted_early = trainer->posted_early;
    const kr_train_ranks times = kr_trainer_ranks_of(trainer);
    o->has_times = times.rank == r->rank && times.ranks == r->ranks &&
                   (r->ranks == 1 || (times.compute_seconds > 0 && times.slowest_seconds >= times.compute_seconds &&
                                      times.slowest_rank < r->ranks && times.exposed_seconds >= 0));
    o->eval_loss = kr_trainer_evaluate(trainer, trainer->o.validation, 0).loss;
    keep_weights(trainer->params, o->weights);
    keep_pieces(trainer->optimizer, r->out);
    for (int64_t i = 0; i < trainer->optimizer->count; i++)
        o->steps_hash = 31 * o->steps_hash + (uint64_t)trainer->optimizer->steps[i];
}

static kr_loader *loader_of(const kr_source *source, const rank_law *law, kr_data_part part)
{
    kr_loader_options o;
    kr_loader_options_init(&o);
    o.batch = 2;
    o.length = law->by_documents ? 0 : law->length ? law->length : 11;
    o.pack = !law->by_documents;
    o.seed = 5;
    o.carry = law->carry;
    o.n_epochs = part == KR_DATA_PART_TRAIN ? law->n_epochs : 0;
    o.part = part;
    o.validation_fraction = 0.2;
    return kr_loader_create(source, &o);
}

static kr_trainer *trainer_of(const rank_run *r, kr_ctx *ctx, kr_comm *comm, kr_model *model, kr_loader *loader,
                              kr_loader *validation)
{
    const rank_law *law = r->law;
    kr_train_options options;
    kr_optimizer_options optimizer;
    kr_lr_schedule schedule;
    kr_train_options_init(&options);
    kr_optimizer_options_init(&optimizer);
    kr_lr_schedule_init(&schedule);
    optimizer.kind = law->kind;
    optimizer.clip_norm = law->clip_norm;
    optimizer.ema_decay = law->has_ema ? 0.9 : 0;
    optimizer.keep_grad = law->keep_grad;
    schedule.max_lr = 1e-2;
    options.steps = STEPS;
    options.accumulate = law->micro_batches;
    options.optimizer = &optimizer;
    options.schedule = &schedule;
    options.validation = validation;
    options.dropout = law->dropout;
    options.comm = comm;
    options.sequence_ranks = law->pieces;
    options.folder = r->has_folder ? r->run : NULL;
    options.keep_last = 0;
    return kr_trainer_create(ctx, model, loader, &options);
}

static void *run_rank(void *arg)
{
    rank_run *r = arg;
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 1;
    kr_ctx *ctx = kr_ctx_create(&options);
    kr_ctx_seed(ctx, 7);
    kr_comm *comm = NULL;
    if (r->ranks > 1) {
        kr_comm_options how;
        kr_comm_options_init(&how);
        how.engine = "tcp";
        how.rank = r->rank;
        how.ranks = r->ranks;
        how.meet = r->meet;
        how.timeout = 60;
        comm = kr_comm_create(ctx, &how);
    }
    kr_text_options text;
    kr_text_options_init(&text);
    text.separator = "|";
    kr_tokenizer *tok = kr_tokenizer_bytes(ctx);
    kr_source *source = kr_source_string(ctx, corpus, sizeof corpus - 1, tok, &text);
    kr_loader *loader = loader_of(source, r->law, KR_DATA_PART_TRAIN);
    kr_loader *validation = loader_of(source, r->law, KR_DATA_PART_VALIDATION);
    kr_model *model = model_of(ctx, r->law);
    r->own.elements = kr_params_elements(kr_network_params(kr_model_network(model)));
    r->own.weights = calloc((size_t)r->own.elements, sizeof(double));
    kr_trainer *trainer = trainer_of(r, ctx, comm, model, loader, validation);
    if (trainer) train(r, trainer);
    if (kr_ctx_failed(ctx)) snprintf(r->own.failure, sizeof r->own.failure, "%s", kr_ctx_message(ctx));
    kr_trainer_destroy(trainer);
    kr_model_destroy(model);
    kr_loader_destroy(validation);
    kr_loader_destroy(loader);
    kr_source_destroy(source);
    kr_tokenizer_destroy(tok);
    kr_comm_destroy(comm);
    kr_ctx_destroy(ctx);
    return NULL;
}

static void run_part(const rank_law *law, int ranks, int64_t until, bool has_folder, rank_run *list, outcome *out)
{
    enum { ELEMENTS_MOST = 1 << 21 };
    for (int k = 0; k < KINDS; k++) out->kept[k] = calloc(ELEMENTS_MOST, sizeof(double));
    for (int i = 0; i < ranks; i++) {
        list[i] =
            (rank_run){ .law = law, .rank = i, .ranks = ranks, .out = out, .until = until, .has_folder = has_folder };
        snprintf(list[i].run, sizeof list[i].run, "%s/run", folder);
        snprintf(list[i].meet, sizeof list[i].meet, "%s/meet", folder);
        if (pthread_create(&list[i].thread, NULL, run_rank, &list[i]) != 0) exit(2);
    }
    for (int i = 0; i < ranks; i++) pthread_join(list[i].thread, NULL);
}

static void run_ranks(const rank_law *law, int ranks, rank_run *list, outcome *out)
{
    begin_folder();
    run_part(law, ranks, STEPS, false, list, out);
    end_folder();
}

static void compare_elements(const rank_law *law, int ranks, int rank, const char *what, const double *got,
                             const double *want, int64_t n)
{
    int64_t worst = -1, count = 0;
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(&got[i], &want[i], sizeof *got) == 0) continue;
        count++;
        if (worst < 0 || !(fabs(got[i] - want[i]) <= fabs(got[worst] - want[worst]))) worst = i;
    }
    CHECK(count == 0, "%s, rank %d of %d: %lld elements of %s differ, the most [%lld]: %.17g, not %.17g", law->name,
          rank, ranks, (long long)count, what, (long long)worst, worst < 0 ? 0 : got[worst],
          worst < 0 ? 0 : want[worst]);
}

static void compare(const rank_law *law, const rank_run *got, const rank_run *want)
{
    const outcome *a = &got->own, *b = &want->own;
    CHECK(!a->failure[0], "%s, rank %d of %d: %s", law->name, got->rank, got->ranks, a->failure);
    for (int i = 0; i < STEPS; i++)
        CHECK(a->losses[i] == b->losses[i] && a->norms[i] == b->norms[i] && a->scored[i] == b->scored[i] &&
                  a->right[i] == b->right[i],
              "%s, rank %d of %d, step %d: loss %.17g, not %.17g; norm %.17g, not %.17g", law->name, got->rank,
              got->ranks, i, a->losses[i], b->losses[i], a->norms[i], b->norms[i]);
    /* all but the embedding's are posted in the backward pass, if there was one */
    CHECK(a->nbuckets >= 4 && (law->by_documents || law->n_epochs > 0 || a->posted_early == a->nbuckets - 1),
          "%s, rank %d of %d: %lld of %lld buckets were posted in the backward pass", law->name, got->rank, got->ranks,
          (long long)a->posted_early, (long long)a->nbuckets);
    CHECK(a->has_times, "%s, rank %d of %d: the times of a step make no sense", law->name, got->rank, got->ranks);
    CHECK(a->eval_loss == b->eval_loss, "%s, rank %d of %d: evaluation %.17g, not %.17g", law->name, got->rank,
          got->ranks, a->eval_loss, b->eval_loss);
    CHECK(a->step == b->step && a->positions == b->positions && a->steps_hash == b->steps_hash, "%s: step %lld",
          law->name, (long long)a->step);
    compare_elements(law, got->ranks, got->rank, "the weights", a->weights, b->weights, b->elements);
}

static void free_run(rank_run *list, int ranks, outcome *out)
{
    for (int i = 0; i < ranks; i++) free(list[i].own.weights);
    for (int k = 0; k < KINDS; k++) free(out->kept[k]);
}

static void check_law(const rank_law *law)
{
    rank_run one[1];
    outcome whole = { .elements = 0 };
    run_ranks(law, 1, one, &whole);
    CHECK(!one->own.failure[0], "%s: %s", law->name, one->own.failure);
    CHECK(one->own.step == STEPS || law->n_epochs > 0, "%s: %lld steps", law->name, (long long)one->own.step);
    CHECK(one->own.losses[one->own.step - 1] < one->own.losses[0], "%s: the loss goes from %g to %g", law->name,
          one->own.losses[0], one->own.losses[one->own.step - 1]);
    const int least = law->pieces ? law->pieces : 2;
    const int64_t leaves = law->micro_batches * (law->pieces ? law->pieces : 1);
    for (int ranks = least; ranks <= RANKS_MOST && ranks <= leaves; ranks *= 2) {
        rank_run list[RANKS_MOST];
        outcome parts = { .elements = 0 };
        run_ranks(law, ranks, list, &parts);
        for (int r = 0; r < ranks; r++) compare(law, &list[r], one);
        for (int k = 0; k < KINDS; k++)
            compare_elements(law, ranks, 0, kind_names[k], parts.kept[k], whole.kept[k], one->own.elements);
        free_run(list, ranks, &parts);
        if (kr_test_quick()) break;
    }
    free_run(one, 1, &whole);
}

TEST(ranks_of_adamw)
{
    check_law(&(rank_law){ .name = "mamba1", .family = KR_FAMILY_MAMBA1, .micro_batches = 8, .clip_norm = 1 });
    check_law(&(rank_law){ .name = "mamba2, ema", .family = KR_FAMILY_MAMBA2, .micro_batches = 8, .has_ema = true });
    check_law(&(rank_law){ .name = "mamba3, virtual layers",
                           .family = KR_FAMILY_MAMBA3,
                           .micro_batches = 4,
                           .clip_norm = 0.1,
                           .n_virtual = 5 });
}

TEST(ranks_of_muon)
{
    check_law(&(rank_law){ .name = "mamba2, muon, ema",
                           .family = KR_FAMILY_MAMBA2,
                           .kind = KR_OPTIMIZER_MUON,
                           .micro_batches = 8,
                           .clip_norm = 0.5,
                           .has_ema = true });
    check_law(&(rank_law){ .name = "mamba3, muon, bf16",
                           .family = KR_FAMILY_MAMBA3,
                           .kind = KR_OPTIMIZER_MUON,
                           .dtype = KR_DTYPE_BF16,
                           .micro_batches = 4 });
    check_law(&(rank_law){ .name = "mamba1, muon",
                           .family = KR_FAMILY_MAMBA1,
                           .kind = KR_OPTIMIZER_MUON,
                           .micro_batches = 4,
                           .clip_norm = 1 });
}

TEST(ranks_of_bf16)
{
    check_law(&(rank_law){ .name = "mamba1, bf16, ema",
                           .family = KR_FAMILY_MAMBA1,
                           .dtype = KR_DTYPE_BF16,
                           .micro_batches = 4,
                           .clip_norm = 1,
                           .has_ema = true });
    check_law(&(rank_law){ .name = "mamba2, bf16, recomputed",
                           .family = KR_FAMILY_MAMBA2,
                           .dtype = KR_DTYPE_BF16,
                           .micro_batches = 8,
                           .clip_norm = 1,
                           .is_recomputed = true });
}

TEST(ranks_of_recomputed_layers_and_dropout)
{
    check_law(&(rank_law){ .name = "mamba3, recomputed, dropout",
                           .family = KR_FAMILY_MAMBA3,
                           .micro_batches = 4,
                           .clip_norm = 1,
                           .dropout = 0.1,
                           .is_recomputed = true,
                           .n_virtual = 4 });
    check_law(&(rank_law){ .name = "mamba2, f64, sgd, gradients kept",
                           .family = KR_FAMILY_MAMBA2,
                           .dtype = KR_DTYPE_F64,
                           .kind = KR_OPTIMIZER_SGD,
                           .micro_batches = 4,
                           .keep_grad = true });
}

/* Micro-batches score different numbers of positions. */
TEST(ranks_of_documents)
{
    check_law(&(rank_law){ .name = "mamba2, documents",
                           .family = KR_FAMILY_MAMBA2,
                           .micro_batches = 8,
                           .clip_norm = 1,
                           .by_documents = true });
}

/* The last step has fewer micro-batches than ranks. */
TEST(ranks_at_the_end_of_the_data)
{
    check_law(&(rank_law){
        .name = "mamba2, 3 epochs", .family = KR_FAMILY_MAMBA2, .micro_batches = 8, .clip_norm = 1, .n_epochs = 3 });
    check_law(&(rank_law){ .name = "mamba3, carried, 2 epochs",
                           .family = KR_FAMILY_MAMBA3,
                           .micro_batches = 8,
                           .carry = true,
                           .n_epochs = 2 });
}

/* Each rank keeps its share of the state, and not much more: pieces are blocks, and the smallest rows are whole. */
TEST(ranks_share_the_optimizer)
{
    const rank_law law = { .name = "large", .family = KR_FAMILY_MAMBA2, .micro_batches = 4, .d_model = 256 };
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        rank_run list[RANKS_MOST];
        outcome parts = { .elements = 0 };
        begin_folder();
        run_part(&law, ranks, 0, false, list, &parts);
        end_folder();
        for (int r = 0; r < ranks; r++) {
            const double share = 8.0 * (double)list[r].own.elements / ranks;
            CHECK(fabs((double)list[r].own.bytes - share) < 0.05 * share, "rank %d of %d keeps %zu bytes, not %.0f", r,
                  ranks, list[r].own.bytes, share);
        }
        free_run(list, ranks, &parts);
    }
}

/* Each micro-batch begins from the state after the one before it, on another rank. */
TEST(ranks_of_carried_states)
{
    check_law(&(rank_law){
        .name = "mamba1, carried", .family = KR_FAMILY_MAMBA1, .micro_batches = 8, .clip_norm = 1, .carry = true });
    check_law(&(rank_law){ .name = "mamba2, carried, recomputed",
                           .family = KR_FAMILY_MAMBA2,
                           .micro_batches = 4,
                           .clip_norm = 1,
                           .is_recomputed = true,
                           .carry = true });
    check_law(&(rank_law){ .name = "mamba3, carried, muon, ema",
                           .family = KR_FAMILY_MAMBA3,
                           .kind = KR_OPTIMIZER_MUON,
                           .micro_batches = 4,
                           .has_ema = true,
                           .carry = true });
}

/* Rows in pieces, on a grid of ranks by pieces and micro-batches; one rank computes the pieces in turn. */
TEST(ranks_of_rows_in_pieces)
{
    check_law(&(rank_law){ .name = "mamba2, 2 pieces, ema",
                           .family = KR_FAMILY_MAMBA2,
                           .micro_batches = 4,
                           .clip_norm = 1,
                           .has_ema = true,
                           .pieces = 2,
                           .length = 45 });
    check_law(&(rank_law){ .name = "mamba3, 4 pieces, one micro-batch, muon",
                           .family = KR_FAMILY_MAMBA3,
                           .kind = KR_OPTIMIZER_MUON,
                           .micro_batches = 1,
                           .pieces = 4,
                           .length = 61 });
    check_law(&(rank_law){ .name = "mamba1, 3 pieces",
                           .family = KR_FAMILY_MAMBA1,
                           .micro_batches = 2,
                           .clip_norm = 1,
                           .pieces = 3,
                           .length = 20 });
    check_law(&(rank_law){ .name = "mamba2, 2 pieces, bf16, recomputed, dropout",
                           .family = KR_FAMILY_MAMBA2,
                           .dtype = KR_DTYPE_BF16,
                           .micro_batches = 2,
                           .clip_norm = 1,
                           .is_recomputed = true,
                           .dropout = 0.1,
                           .pieces = 2,
                           .length = 32 });
    check_law(&(rank_law){ .name = "mamba1, 2 pieces, documents",
                           .family = KR_FAMILY_MAMBA1,
                           .micro_batches = 2,
                           .by_documents = true,
                           .pieces = 2 });
}

TEST(ranks_of_carried_rows_in_pieces)
{
    const rank_law law = { .name = "mamba3, 2 pieces, carried",
                           .family = KR_FAMILY_MAMBA3,
                           .micro_batches = 1,
                           .clip_norm = 1,
                           .carry = true,
                           .pieces = 2,
                           .length = 32 };
    check_law(&law);
}

/* ---- checkpoints ---- */

static void check_same_state(const rank_law *law, const rank_run *got, const outcome *got_parts, const outcome *want,
                             const outcome *want_parts)
{
    for (int r = 0; r < got->ranks; r++) {
        CHECK(!got[r].own.failure[0], "%s, rank %d of %d: %s", law->name, r, got->ranks, got[r].own.failure);
        CHECK(got[r].own.step == want->step && got[r].own.positions == want->positions, "%s: step %lld, not %lld",
              law->name, (long long)got[r].own.step, (long long)want->step);
        compare_elements(law, got->ranks, r, "the weights", got[r].own.weights, want->weights, want->elements);
    }
    for (int k = 0; k < KINDS; k++)
        compare_elements(law, got->ranks, 0, kind_names[k], got_parts->kept[k], want_parts->kept[k], want->elements);
}

/* Parts of a run by other numbers of ranks end where one rank ends. */
static void check_resumes(const rank_law *law)
{
    static const int ranks[] = { 8, 2, 1, 4 };
    rank_run one[1], list[RANKS_MOST];
    outcome whole = { .elements = 0 };
    run_ranks(law, 1, one, &whole);
    begin_folder();
    for (int part = 0; part < 4; part++) {
        outcome parts = { .elements = 0 };
        run_part(law, ranks[part], STEPS / 4 * (part + 1), true, list, &parts);
        for (int r = 0; r < ranks[part]; r++)
            CHECK(!list[r].own.failure[0], "%s, rank %d of %d: %s", law->name, r, ranks[part], list[r].own.failure);
        if (part == 3) check_same_state(law, list, &parts, &one->own, &whole);
        free_run(list, ranks[part], &parts);
    }
    remove_tree(folder);
    free_run(one, 1, &whole);
}

TEST(ranks_resume_with_other_numbers)
{
    check_resumes(&(rank_law){
        .name = "mamba2", .family = KR_FAMILY_MAMBA2, .micro_batches = 8, .clip_norm = 1, .has_ema = true });
    check_resumes(&(rank_law){
        .name = "mamba3, carried", .family = KR_FAMILY_MAMBA3, .micro_batches = 8, .clip_norm = 1, .carry = true });
    check_resumes(&(rank_law){ .name = "mamba3, muon, bf16, ema",
                               .family = KR_FAMILY_MAMBA3,
                               .kind = KR_OPTIMIZER_MUON,
                               .dtype = KR_DTYPE_BF16,
                               .micro_batches = 8,
                               .has_ema = true,
                               .dropout = 0.1 });
}

/* 3 of 8 are no subtrees, so that steps differ; but what is read is what was written. */
TEST(ranks_resume_what_any_number_has_saved)
{
    static const int ranks[] = { 8, 3, 1, 4 };
    const rank_law law = { .name = "mamba1, bf16",
                           .family = KR_FAMILY_MAMBA1,
                           .dtype = KR_DTYPE_BF16,
                           .micro_batches = 24,
                           .clip_norm = 1,
                           .has_ema = true };
    begin_folder();
    for (int part = 0; part < 3; part++) {
        rank_run saved[RANKS_MOST], read[RANKS_MOST];
        outcome saved_parts = { .elements = 0 }, read_parts = { .elements = 0 };
        run_part(&law, ranks[part], part + 1, true, saved, &saved_parts);
        run_part(&law, ranks[part + 1], part + 1, true, read, &read_parts);
        CHECK(!saved->own.failure[0], "%d ranks: %s", ranks[part], saved->own.failure);
        check_same_state(&law, read, &read_parts, &saved->own, &saved_parts);
        free_run(read, ranks[part + 1], &read_parts);
        free_run(saved, ranks[part], &saved_parts);
    }
    remove_tree(folder);
}

/* A share that was changed, or is missing, is an error of all ranks that names the file. */
static void check_damaged(const rank_law *law, int ranks, bool is_missing)
{
    rank_run list[RANKS_MOST];
    outcome parts = { .elements = 0 };
    char path[512];
    run_part(law, 4, 2, true, list, &parts);
    free_run(list, 4, &parts);
    snprintf(path, sizeof path, "%s/checkpoints/step-00000002/training-00002-of-00004.safetensors", the_run());
    FILE *file = fopen(path, "r+b");
    CHECK(file != NULL, "%s is missing", path);
    if (!file) return;
    fseek(file, -1, SEEK_END);
    fputc(0x5a, file);
    fclose(file);
    if (is_missing) remove(path);
    parts = (outcome){ .elements = 0 };
    run_part(law, ranks, 3, true, list, &parts);
    for (int r = 0; r < ranks; r++)
        CHECK(strstr(list[r].own.failure, "training-00002-of-00004.safetensors"), "rank %d of %d: \"%s\"", r, ranks,
              list[r].own.failure);
    free_run(list, ranks, &parts);
}

TEST(ranks_refuse_damaged_shares)
{
    const rank_law law = { .name = "mamba2", .family = KR_FAMILY_MAMBA2, .micro_batches = 8 };
    for (int ranks = 1; ranks <= 4; ranks *= 2)
        for (int is_missing = 0; is_missing < 2; is_missing++) {
            begin_folder();
            check_damaged(&law, ranks, is_missing);
            remove_tree(folder);
        }
}
