/* test_task_sources.c - the word problem of A5 against products written out, modular addition against its definition,
 * and both as loaders give them. */
#include "tests/harness.h"

#include "lab/tasks.h"

/* ---- a5 ---- */

/* The even permutations of five in lexicographic order, found by trying all. */
static int even_permutations(int all[60][5])
{
    int n = 0;
    for (int code = 0; code < 3125; code++) {
        int p[5], inversions = 0, used = 0;
        for (int i = 0, rest = code; i < 5; i++, rest /= 5) p[4 - i] = rest % 5;
        for (int i = 0; i < 5; i++) used |= 1 << p[i];
        for (int i = 0; i < 5; i++)
            for (int j = i + 1; j < 5; j++) inversions += p[i] > p[j];
        if (used == 31 && inversions % 2 == 0) memcpy(all[n++], p, sizeof p);
    }
    return n;
}

TEST(a5_labels_are_products)
{
    static const int generators[2][5] = { { 1, 2, 3, 4, 0 }, { 1, 2, 0, 3, 4 } };
    enum { NB = 200 };
    int all[60][5];
    CHECK(even_permutations(all) == 60, "not 60 of them");
    const lab_task task = lab_task_of(LAB_TASK_A5);
    CHECK(task.length == 13 && lab_task_classes(LAB_TASK_A5) == 60, "another task");
    int32_t symbols[NB * 13], labels[NB * 13];
    int64_t seen[60] = { 0 }, coins[2] = { 0, 0 };
    CHECK(lab_task_fill(&task, NB, symbols, labels) == KR_OK, "refused");
    for (int b = 0; b < NB; b++) {
        int product[5] = { 0, 1, 2, 3, 4 };
        CHECK(symbols[13 * b] == LAB_TASK_RESET, "no anchor");
        for (int s = 0; s < 13; s++) {
            const int symbol = symbols[13 * b + s], label = labels[13 * b + s];
            if (s > 0 && CHECK(symbol == 0 || symbol == 1, "symbol %d", symbol)) {
                int next[5];
                for (int i = 0; i < 5; i++) next[i] = generators[symbol][product[i]];
                memcpy(product, next, sizeof product);
                coins[symbol]++;
            }
            if (!CHECK(label >= 0 && label < 60, "label %d", label)) continue;
            CHECK(!memcmp(all[label], product, sizeof product), "row %d, %d: label %d", b, s, label);
            seen[label]++;
        }
    }
    for (int i = 0; i < 60; i++) CHECK(seen[i] > 0, "class %d is never seen", i);
    CHECK(llabs(coins[0] - coins[1]) < 200, "%lld and %lld", (long long)coins[0], (long long)coins[1]);
}

/* The draws themselves: the parity of SplitMix64's values chooses, an even one the five-cycle. */
TEST(a5_draws_are_splitmix64)
{
    const lab_task task = lab_task_of(LAB_TASK_A5);
    int32_t symbols[5 * 13], labels[5 * 13];
    uint64_t state = 0xC0FFEE;
    lab_task_fill(&task, 5, symbols, labels);
    for (int i = 0; i < 5 * 13; i++)
        if (i % 13) CHECK(symbols[i] == (int32_t)(lab_splitmix64(&state) % 2), "symbol %d", i);
}

/* ---- sources ---- */

TEST(tasks_are_loaded_by_rows)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    enum { NB = 10, NS = 32 };
    int32_t symbols[NB * NS], labels[NB * NS];
    const lab_task task = lab_task_of(LAB_TASK_MAJORITY);
    lab_task_fill(&task, NB, symbols, labels);
    for (int is_one_hot = 0; is_one_hot < 2; is_one_hot++) {
        kr_source *source = lab_source_task(ctx, &task, NB, is_one_hot);
        kr_loader_options o;
        kr_loader_options_init(&o);
        o.batch = NB;
        o.length = 0;
        o.pack = o.shuffle = false;
        kr_loader *loader = kr_loader_create(source, &o);
        kr_batch batch;
        CHECK(kr_loader_next(tape, loader, &batch) == KR_OK, "%s", kr_ctx_message(ctx));
        const int32_t *got = kr_tensor_data(batch.labels_bs), *ids = kr_tensor_data(batch.ids_bs);
        const float *x = kr_test_copy(batch.x_bsf);
        CHECK(!memcmp(got, labels, sizeof labels), "other labels");
        for (int i = 0; i < NB * NS; i++) {
            if (ids) CHECK(ids[i] == symbols[i], "symbol %d", i);
            for (int f = 0; x && f < 3; f++) CHECK(x[3 * i + f] == (f == symbols[i] ? 1.0F : 0.0F), "feature %d", i);
        }
        CHECK((x != NULL) == is_one_hot && (ids != NULL) == !is_one_hot && !batch.mask_bs && !batch.reset_bs, "shape");
        kr_loader_destroy(loader);
        kr_source_destroy(source);
        kr_tape_reset(tape);
    }
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

TEST(modular_parts_make_all_sums)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    enum { P = 7, ROWS = P * P * P };
    int seen[ROWS] = { 0 }, in_order = 0;
    for (int part = 0; part < 2; part++) {
        lab_modular_task task = lab_modular_task_default();
        task.p = P;
        task.n_terms = 3;
        task.train_fraction = 0.3;
        task.part = (kr_data_part)part;
        kr_source *source = lab_source_modular(ctx, &task);
        kr_loader_options o;
        kr_loader_options_init(&o);
        o.batch = ROWS;
        o.length = 3;
        o.pack = o.shuffle = false;
        kr_loader *loader = kr_loader_create(source, &o);
        kr_batch batch;
        CHECK(kr_loader_next(tape, loader, &batch) == KR_OK, "%s", kr_ctx_message(ctx));
        CHECK(KR_DIM(batch.ids_bs, 0) == (part ? ROWS - 103 : 103) && batch.n_scored == KR_DIM(batch.ids_bs, 0),
              "part %d has %lld rows", part, KR_DIM(batch.ids_bs, 0));
        const int32_t *ids = kr_tensor_data(batch.ids_bs), *labels = kr_tensor_data(batch.labels_bs);
        for (int64_t b = 0; b < KR_DIM(batch.ids_bs, 0); b++) {
            const int32_t *row = ids + 3 * b, *label = labels + 3 * b;
            const int number = (row[0] * P + row[1]) * P + row[2];
            CHECK(label[0] == KR_NOT_SCORED && label[1] == KR_NOT_SCORED && label[2] == (row[0] + row[1] + row[2]) % P,
                  "%d + %d + %d is %d", row[0], row[1], row[2], label[2]);
            seen[number]++;
            in_order += number == b;
        }
        kr_loader_destroy(loader);
        kr_source_destroy(source);
        kr_tape_reset(tape);
    }
    for (int i = 0; i < ROWS; i++) CHECK(seen[i] == 1, "row %d is there %d times", i, seen[i]);
    CHECK(in_order < 20, "%d rows are where they were", in_order);
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

TEST(task_errors)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    lab_task task = lab_task_of(LAB_TASK_ROTOR);
    int32_t one[64], other[64];
    task.family = 4;
    CHECK(lab_task_fill(&task, 1, one, other) == KR_ERR_ARG, "a family that is none");
    CHECK(!lab_source_task(ctx, &task, 1, true), "not refused");
    CHECK_ERROR(ctx, KR_ERR_ARG, "task rotor: family = 4, but it has 4");
    task.family = 0;
    task.length = 11;
    CHECK(lab_task_fill(&task, 1, one, other) == KR_ERR_ARG, "a length that is none");
    CHECK(!lab_source_task(ctx, &task, 1, true), "not refused");
    CHECK_ERROR(ctx, KR_ERR_ARG, "task rotor: length = 11 must be from 12 to 16777216");
    task.length = 12;
    CHECK(!lab_source_task(ctx, &task, 0, true), "not refused");
    CHECK_ERROR(ctx, KR_ERR_ARG, "task rotor: n_rows = 0 must be from 1 to 16777216");
    task.kind = (lab_task_kind)4;
    CHECK(!lab_source_task(ctx, &task, 1, true), "not refused");
    CHECK_ERROR(ctx, KR_ERR_ARG, "task: kind = 4 is not a task");
    CHECK(!lab_task_name(task.kind) && !lab_task_family(task.kind, 0) && !lab_task_classes(task.kind), "task 4");
    lab_modular_task modular = lab_modular_task_default();
    modular.n_terms = 4;
    CHECK(!lab_source_modular(ctx, &modular), "not refused");
    CHECK_ERROR(ctx, KR_ERR_ARG,
                "modular: p = 97 must be at least 2, n_terms = 4 at least 1, and p^n_terms at most 2000000");
    modular.n_terms = 2;
    modular.train_fraction = 1;
    modular.part = KR_DATA_PART_VALIDATION;
    CHECK(!lab_source_modular(ctx, &modular), "not refused");
    CHECK_ERROR(ctx, KR_ERR_ARG, "modular: train_fraction = 1 of 9409 rows leaves this part none");
    kr_ctx_destroy(ctx);
}
