/* test_loader.c - laws of loaders over a corpus whose ids tell their positions: everything is predicted once an epoch,
 * rows are what they should be, and a loader that is resumed continues to the bit. */
#include "tests/data/corpus.h"
#include "data/shuffle.h"

static const int64_t lengths[] = { 5, 1, 12, 3, 30, 2 };
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

static kr_loader_options options_of(int64_t batch, int64_t length)
{
    kr_loader_options options;
    kr_loader_options_init(&options);
    options.batch = batch;
    options.length = length;
    return options;
}

TEST(permutations_have_every_number_once)
{
    static const int64_t sizes[] = { 1, 2, 3, 5, 16, 17, 100, 255, 256, 257, 1000, 4096, 5000 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t n = sizes[i];
        int64_t *seen = calloc((size_t)n, sizeof *seen);
        int64_t moved = 0, differ = 0;
        for (int64_t j = 0; j < n; j++) {
            const int64_t to = kr_shuffled(n, 7, 3, j);
            if (CHECK(to >= 0 && to < n, "%lld goes to %lld of %lld", (long long)j, (long long)to, (long long)n))
                seen[to]++;
            moved += to != j;
            differ += to != kr_shuffled(n, 7, 4, j);
        }
        for (int64_t j = 0; j < n; j++)
            CHECK(seen[j] == 1, "%lld of %lld: %lld times", (long long)j, (long long)n, (long long)seen[j]);
        if (n >= 16)
            CHECK(moved > n / 2 && differ > n / 2, "of %lld only %lld moved, %lld differ", (long long)n,
                  (long long)moved, (long long)differ);
        free(seen);
    }
    /* neighbours are parted: the mean distance of a random order is n / 3 */
    double distance = 0;
    enum { N = 3000 };
    for (int64_t j = 0; j + 1 < N; j++)
        distance += fabs((double)(kr_shuffled(N, 1, 0, j) - kr_shuffled(N, 1, 0, j + 1)));
    distance /= N - 1;
    CHECK(distance > 0.9 * N / 3 && distance < 1.1 * N / 3, "mean distance %g", distance);
}

/* Each place but those where a document begins is predicted once in the epoch, from the place before it. */
typedef struct tally {
    int64_t count;
    int32_t *inputs, *labels;
} tally;

static tally begin_tally(int64_t count)
{
    return (tally){ count, calloc((size_t)count, 4), calloc((size_t)count, 4) };
}

static void add_batch(tally *t, const kr_batch *batch)
{
    const int64_t n = kr_tensor_count(batch->ids_bs);
    const int32_t *ids = ints(batch->ids_bs), *labels = ints(batch->labels_bs), *mask = ints(batch->mask_bs);
    int64_t scored = 0, positions = 0;
    for (int64_t i = 0; i < n; i++) {
        if (mask && !mask[i]) {
            CHECK(labels[i] == KR_NOT_SCORED && ids[i] == 0, "padding has label %d", labels[i]);
            continue;
        }
        positions++;
        if (!CHECK(ids[i] >= 0 && ids[i] < t->count, "id %d", ids[i])) continue;
        t->inputs[ids[i]]++;
        if (labels[i] == KR_NOT_SCORED) continue;
        scored++;
        CHECK(labels[i] == ids[i] + 1, "%d predicts %d", ids[i], labels[i]);
        if (labels[i] >= 0 && labels[i] < t->count) t->labels[labels[i]]++;
    }
    CHECK(scored == batch->n_scored && positions == batch->n_positions,
          "%lld scored of %lld, but the batch says %lld of %lld", (long long)scored, (long long)positions,
          (long long)batch->n_scored, (long long)batch->n_positions);
}

static void end_tally(tally *t, const kr_source *source, bool has_documents, const char *what)
{
    for (int64_t i = 0; i < t->count; i++) {
        const int want = i > 0 && !(has_documents && is_start(source, i));
        CHECK(t->labels[i] == want, "%s: %lld of %lld is predicted %d times, not %d", what, (long long)i,
              (long long)t->count, t->labels[i], want);
        CHECK(t->inputs[i] <= 1, "%s: %lld is read %d times", what, (long long)i, t->inputs[i]);
    }
    free(t->inputs);
    free(t->labels);
}

static void expect_epochs(kr_ctx *ctx, const kr_source *source, const kr_loader_options *options, const char *what)
{
    kr_loader *loader = kr_loader_create(source, options);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    const int64_t count = kr_source_info_of(source).count;
    for (int64_t epoch = 0; epoch < 2; epoch++) {
        tally t = begin_tally(count);
        for (int64_t step = 0; step < kr_loader_steps_per_epoch(loader); step++) {
            kr_batch batch;
            CHECK(kr_loader_epoch(loader) == epoch && kr_loader_step(loader) == step, "%s: wrong place", what);
            if (!CHECK(kr_loader_next(tape, loader, &batch) == KR_OK, "%s: no batch", what)) break;
            CHECK(batch.epoch == epoch && batch.step == step, "%s: step %lld", what, (long long)batch.step);
            add_batch(&t, &batch);
            kr_tape_reset(tape);
        }
        end_tally(&t, source, options->reset, what);
    }
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    kr_loader_destroy(loader);
}

TEST(loader_predicts_everything_once_an_epoch)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    static const int64_t counts[] = { 2, 3, 9, 10, 64, 65, 66, 101, 333 };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int way = 0; way < 24; way++) {
            kr_loader_options o = options_of(way % 3 + 1, way % 2 ? 8 : 13);
            const bool has_documents = way % 4 >= 2;
            o.shuffle = way / 3 % 2 == 0;
            o.reset = way / 6 % 2 == 0;
            o.pack = way / 12 == 0;
            if (!o.pack && way % 2) o.length = 0;
            if (!o.pack) o.reset = true; /* a row ends with its document */
            kr_source *source = counting_source(ctx, counts[i], lengths, has_documents ? N_LENGTHS : 0);
            char what[80];
            snprintf(what, sizeof what, "%lld positions, way %d", (long long)counts[i], way);
            expect_epochs(ctx, source, &o, what);
            kr_source_destroy(source);
        }
    kr_ctx_destroy(ctx);
}

TEST(loader_order_depends_on_seed_and_epoch_only)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_source *source = counting_source(ctx, 1000, NULL, 0);
    uint64_t first[3][2]; /* of loaders with seeds 5, 5, 6; the first batch of two epochs */
    for (int i = 0; i < 3; i++) {
        kr_loader_options o = options_of(4, 16);
        o.seed = i < 2 ? 5 : 6;
        o.n_epochs = 2;
        kr_loader *loader = kr_loader_create(source, &o);
        kr_batch batch;
        int64_t batches = 0;
        for (; kr_loader_next(tape, loader, &batch) == KR_OK; batches++) {
            const int64_t epoch = batch.epoch;
            batch.epoch = 0;
            if (batch.step == 0) first[i][epoch] = batch_hash(&batch);
            kr_tape_reset(tape);
        }
        CHECK(batches == 2 * kr_loader_steps_per_epoch(loader), "%lld batches", (long long)batches);
        CHECK_OK(ctx);
        kr_loader_destroy(loader);
    }
    CHECK(first[0][0] == first[1][0] && first[0][1] == first[1][1], "the same seed gives another order");
    CHECK(first[0][0] != first[0][1], "both epochs have the same order");
    CHECK(first[0][0] != first[2][0], "another seed gives the same order");
    kr_source_destroy(source);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

TEST(loader_marks_where_documents_begin)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_source *source = counting_source(ctx, 500, lengths, N_LENGTHS);
    for (int way = 0; way < 4; way++) {
        kr_loader_options o = options_of(3, 11);
        o.carry = way & 1;
        o.reset = !(way & 2);
        o.n_epochs = 1;
        kr_loader *loader = kr_loader_create(source, &o);
        kr_batch batch;
        int64_t marks = 0;
        for (; kr_loader_next(tape, loader, &batch) == KR_OK; kr_tape_reset(tape)) {
            const int32_t *ids = ints(batch.ids_bs), *mask = ints(batch.mask_bs), *reset = ints(batch.reset_bs);
            for (int64_t i = 0; i < kr_tensor_count(batch.ids_bs); i++) {
                const bool is_first = i % o.length == 0;
                bool want = o.reset && (!is_first || o.carry) && is_start(source, ids[i]);
                want = (want || (o.carry && batch.step == 0 && is_first)) && (!mask || mask[i]);
                CHECK((reset ? reset[i] : 0) == want, "way %d: id %d is marked %d", way, ids[i], reset ? reset[i] : 0);
                marks += want;
            }
        }
        CHECK(o.reset ? marks > 40 : marks == (o.carry ? 3 : 0), "way %d: %lld marks", way, (long long)marks);
        kr_loader_destroy(loader);
    }
    CHECK_OK(ctx);
    kr_source_destroy(source);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

TEST(carried_rows_go_on_and_leave_no_gap)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    static const int64_t counts[] = { 5, 6, 64, 97, 100, 401 };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int64_t nb = 1; nb <= 4; nb++) {
            kr_source *source = counting_source(ctx, counts[i], NULL, 0);
            kr_loader_options o = options_of(nb, 7);
            o.carry = true;
            expect_epochs(ctx, source, &o, "carried");
            kr_loader *loader = kr_loader_create(source, &o);
            int32_t next[4] = { -1, -1, -1, -1 };
            kr_batch batch;
            for (int64_t step = 0; step < kr_loader_steps_per_epoch(loader); step++) {
                if (!CHECK(kr_loader_next(tape, loader, &batch) == KR_OK, "no batch")) break;
                CHECK(KR_DIM(batch.ids_bs, 0) == nb && KR_DIM(batch.ids_bs, 1) == 7, "another shape");
                for (int64_t b = 0; b < nb; b++) {
                    const int32_t *row = ints(batch.ids_bs) + 7 * b;
                    const bool is_padding = batch.mask_bs && !ints(batch.mask_bs)[7 * b];
                    CHECK(step == 0 || is_padding || row[0] == next[b], "row %lld continues with %d, not %d",
                          (long long)b, row[0], next[b]);
                    next[b] = row[6] + 1;
                }
                kr_tape_reset(tape);
            }
            kr_loader_destroy(loader);
            kr_source_destroy(source);
        }
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

static void expect_resumed(kr_ctx *ctx, const kr_source *source, const kr_loader_options *options, int way)
{
    enum { MOST = 256 };
    uint64_t hashes[MOST];
    kr_loader_position positions[MOST];
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_loader *loader = kr_loader_create(source, options);
    kr_batch batch;
    int n = 0;
    for (positions[0] = kr_loader_snapshot(loader); n < MOST - 1 && kr_loader_next(tape, loader, &batch) == KR_OK;) {
        hashes[n++] = batch_hash(&batch);
        positions[n] = kr_loader_snapshot(loader);
        kr_tape_reset(tape);
    }
    CHECK(n == 3 * kr_loader_steps_per_epoch(loader), "way %d: %d batches", way, n);
    kr_loader_destroy(loader);
    for (int from = 0; from <= n; from++) {
        kr_loader_options other = *options;
        other.seed = 999; /* the position brings its own */
        loader = kr_loader_create(source, &other);
        CHECK(kr_loader_restore(loader, &positions[from]) == KR_OK, "%s", kr_ctx_message(ctx));
        for (int i = from; i < n; i++) {
            if (!CHECK(kr_loader_next(tape, loader, &batch) == KR_OK, "way %d: no batch %d", way, i)) break;
            CHECK(batch_hash(&batch) == hashes[i], "way %d, resumed at %d: batch %d differs", way, from, i);
            kr_tape_reset(tape);
        }
        CHECK(kr_loader_next(tape, loader, &batch) == KR_END, "way %d: a batch behind the end", way);
        kr_loader_destroy(loader);
    }
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
}

TEST(loader_resumes_at_every_step)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_source *source = counting_source(ctx, 150, lengths, N_LENGTHS);
    for (int way = 0; way < 16; way++) {
        kr_loader_options o = options_of(3, 9);
        o.seed = 5;
        o.n_epochs = 3;
        o.shuffle = way & 1;
        o.pack = !(way & 2);
        o.carry = (way & 6) == 4;
        o.drop_last = way & 8;
        expect_resumed(ctx, source, &o, way);
    }
    kr_source_destroy(source);
    kr_ctx_destroy(ctx);
}

TEST(loader_parts_share_nothing)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    for (int way = 0; way < 6; way++) {
        kr_source *source = counting_source(ctx, 2000, lengths, way % 2 ? N_LENGTHS : 0);
        int32_t *owner = calloc(2000, sizeof *owner);
        int64_t counts[2] = { 0, 0 };
        if (way >= 4 && way % 2 == 0) {
            free(owner);
            kr_source_destroy(source);
            continue; /* one document cannot be parted without cutting it */
        }
        for (int part = 0; part < 2; part++) {
            kr_loader_options o = options_of(4, 16);
            o.part = (kr_data_part)part;
            o.validation_fraction = 0.11;
            o.pack = way < 4;
            o.carry = way == 2 || way == 3;
            o.n_epochs = 1;
            o.seed = (uint64_t)part; /* the order's, not the split's */
            kr_loader *loader = kr_loader_create(source, &o);
            kr_batch batch;
            for (; kr_loader_next(tape, loader, &batch) == KR_OK; kr_tape_reset(tape))
                for (int64_t i = 0; i < kr_tensor_count(batch.ids_bs); i++) {
                    if (batch.mask_bs && !ints(batch.mask_bs)[i]) continue;
                    counts[part]++;
                    owner[ints(batch.ids_bs)[i]] |= 1 << part;
                    if (ints(batch.labels_bs)[i] >= 0) owner[ints(batch.labels_bs)[i]] |= 1 << part;
                }
            kr_loader_destroy(loader);
        }
        for (int i = 0; i < 2000; i++) CHECK(owner[i] != 3, "way %d: %d is in both parts", way, i);
        int first = 0;
        while (first < 2000 && owner[first] != 2) first++;
        CHECK(way % 2 == 0 || is_start(source, first), "way %d: validation begins at %d", way, first);
        /* documents of 1 to 30 are drawn whole: a ninth of their number, not of their length */
        CHECK(counts[1] > 50 && counts[1] < 400 && counts[0] > 1200, "way %d: %lld and %lld", way, (long long)counts[0],
              (long long)counts[1]);
        free(owner);
        kr_source_destroy(source);
    }
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

TEST(loader_scores_the_last_of_each_document)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_source *source = counting_source(ctx, 300, lengths, N_LENGTHS);
    for (int packs = 0; packs < 2; packs++) {
        int64_t scored = 0, want = 0;
        for (int64_t i = 0; i < 300; i++) want += !is_start(source, i) && (i == 299 || is_start(source, i + 1));
        kr_loader_options o = options_of(3, 7);
        o.pack = packs;
        o.score_last = true;
        o.n_epochs = 1;
        kr_loader *loader = kr_loader_create(source, &o);
        kr_batch batch;
        for (; kr_loader_next(tape, loader, &batch) == KR_OK; kr_tape_reset(tape))
            for (int64_t i = 0; i < kr_tensor_count(batch.ids_bs); i++) {
                const int32_t label = ints(batch.labels_bs)[i];
                if (label == KR_NOT_SCORED) continue;
                scored++;
                CHECK(label == 299 || is_start(source, label + 1), "%d is scored", label);
            }
        CHECK(scored == want, "%lld of %lld documents are scored", (long long)scored, (long long)want);
        kr_loader_destroy(loader);
    }
    kr_source_destroy(source);
    kr_tape_destroy(tape);
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

TEST(loader_survives_every_failed_allocation)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_source *source = counting_source(ctx, 300, lengths, N_LENGTHS);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_batch batch;
    for (int packs = 0; packs < 2; packs++) {
        kr_loader_options o = options_of(3, 7);
        o.pack = packs;
        bool done = false;
        for (size_t n = 1; !done && n < 100; n++) {
            const size_t live = kr_ctx_memory(ctx).live_blocks;
            kr_ctx_fail_allocation(ctx, n);
            kr_loader *loader = kr_loader_create(source, &o);
            if (loader) CHECK(kr_loader_next(tape, loader, &batch) == KR_OK || kr_loader_step(loader) == 0, "moved on");
            done = !kr_ctx_failed(ctx);
            if (!done) CHECK(kr_ctx_status(ctx) == KR_ERR_NOMEM, "%s", kr_ctx_message(ctx));
            kr_ctx_fail_allocation(ctx, 0);
            kr_ctx_clear(ctx);
            kr_tape_reset(tape);
            kr_loader_destroy(loader);
            const size_t now = kr_ctx_memory(ctx).live_blocks;
            CHECK(now <= live + 4, "%zu blocks are left", now - live); /* of the tape and the scratch, which are kept */
        }
        CHECK(done, "it never succeeds");
    }
    kr_tape_destroy(tape);
    kr_source_destroy(source);
    kr_ctx_destroy(ctx);
}
