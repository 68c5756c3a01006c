/* test_custom_source.c - sources over functions of the program: what loaders get, errors of callbacks, wrong answers. */
#include "tests/harness.h"

#include <krait/data.h>

/* Position i is the token i mod 5; documents have 4 positions. */
typedef struct counting {
    kr_ctx *ctx;
    int64_t bad_id, bad_label; /* at position 6 */
    bool fails, says_why, finds_wrong;
    int n_reads, n_destroyed;
} counting;

static kr_status read_numbers(void *user, int64_t from, int64_t count, const kr_positions *out)
{
    counting *c = user;
    c->n_reads++;
    if (c->fails) return c->says_why ? kr_ctx_fail(c->ctx, KR_ERR_IO, "row %d is lost", 7) : KR_ERR_IO;
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = from + i;
        if (out->ids) out->ids[i] = at == 6 && c->bad_id ? (int32_t)c->bad_id : (int32_t)(at % 5);
        if (out->x) out->x[2 * i] = (float)at, out->x[2 * i + 1] = -1;
        if (out->labels)
            out->labels[i] = at == 6 && c->bad_label ? (int32_t)c->bad_label
                             : at % 4 == 3           ? (int32_t)(at % 3)
                                                     : KR_NOT_SCORED;
        if (out->targets) out->targets[i] = 0.5F * (float)at;
    }
    return KR_OK;
}

static int64_t find_fours(void *user, int64_t from, int64_t to)
{
    const counting *c = user;
    if (c->finds_wrong) return from - 1;
    const int64_t start = (from + 3) / 4 * 4;
    return start < to ? start : to;
}

static void count_destroyed(void *user)
{
    ((counting *)user)->n_destroyed++;
}

static const kr_source_callbacks callbacks = { .read = read_numbers,
                                               .find_start = find_fours,
                                               .destroy = count_destroyed };

static kr_loader *load(const kr_source *source, int64_t length, bool pack)
{
    kr_loader_options o;
    kr_loader_options_init(&o);
    o.batch = 3;
    o.length = length;
    o.pack = pack;
    o.shuffle = false;
    o.n_epochs = 1;
    return kr_loader_create(source, &o);
}

TEST(custom_tokens_predict_the_next)
{
    counting c = { .ctx = kr_test_ctx(1, NULL) };
    kr_tape *tape = kr_tape_create(c.ctx, KR_TAPE_NO_GRAD);
    const kr_source_info info = { .count = 12, .n_ids = 5, .predict_next = true };
    for (int has_documents = 0; has_documents < 2; has_documents++) {
        kr_source_callbacks own = callbacks;
        if (!has_documents) own.find_start = NULL;
        kr_source *source = kr_source_custom(c.ctx, &info, &own, &c);
        CHECK(kr_source_info_of(source).count == 12 && kr_source_info_of(source).n_classes == 5, "another info");
        kr_loader *loader = load(source, 4, true);
        kr_batch batch;
        CHECK(kr_loader_next(tape, loader, &batch) == KR_OK, "%s", kr_ctx_message(c.ctx));
        const int32_t *ids = kr_tensor_data(batch.ids_bs), *labels = kr_tensor_data(batch.labels_bs);
        const int64_t n = kr_tensor_count(batch.ids_bs);
        CHECK(n >= 8, "%lld positions", (long long)n);
        for (int i = 0; i < 8; i++) {
            const bool ends = has_documents && i % 4 == 3;
            CHECK(ids[i] == i % 5 && labels[i] == (ends ? KR_NOT_SCORED : (i + 1) % 5), "position %d: %d before %d", i,
                  ids[i], labels[i]);
        }
        kr_loader_destroy(loader);
        kr_source_destroy(source);
        CHECK(c.n_destroyed == has_documents + 1 && c.n_reads > 0, "destroyed %d times", c.n_destroyed);
        kr_tape_reset(tape);
    }
    CHECK_OK(c.ctx);
    kr_tape_destroy(tape);
    kr_ctx_destroy(c.ctx);
}

TEST(custom_numbers_with_labels_or_targets)
{
    counting c = { .ctx = kr_test_ctx(1, NULL) };
    kr_tape *tape = kr_tape_create(c.ctx, KR_TAPE_NO_GRAD);
    for (int is_class = 0; is_class < 2; is_class++) {
        const kr_source_info info = {
            .count = 12, .n_features = 2, .n_classes = is_class ? 3 : 0, .n_targets = !is_class
        };
        kr_source *source = kr_source_custom(c.ctx, &info, &callbacks, &c);
        kr_loader *loader = load(source, 0, false);
        kr_batch batch;
        CHECK(kr_loader_next(tape, loader, &batch) == KR_OK, "%s", kr_ctx_message(c.ctx));
        CHECK(KR_DIM(batch.x_bsf, 0) == 3 && KR_DIM(batch.x_bsf, 1) == 4 && !batch.ids_bs, "no row for each document");
        const float *x = kr_test_copy(batch.x_bsf), *targets = kr_test_copy(batch.targets_bso);
        const int32_t *labels = kr_tensor_data(batch.labels_bs);
        for (int i = 0; i < 12; i++) {
            CHECK(x[2 * i] == (float)i && x[2 * i + 1] == -1, "features of %d", i);
            if (is_class) CHECK(labels[i] == (i % 4 == 3 ? i % 3 : KR_NOT_SCORED), "label %d of %d", labels[i], i);
            else CHECK(targets[i] == 0.5F * (float)i, "target of %d", i);
        }
        kr_loader_destroy(loader);
        kr_source_destroy(source);
        kr_tape_reset(tape);
    }
    CHECK_OK(c.ctx);
    kr_tape_destroy(tape);
    kr_ctx_destroy(c.ctx);
}

/* The error of the next batch. */
static void check_next(counting *c, kr_source_info info, bool pack, kr_status status, const char *message)
{
    kr_tape *tape = kr_tape_create(c->ctx, KR_TAPE_NO_GRAD);
    kr_source *source = kr_source_custom(c->ctx, &info, &callbacks, c);
    kr_loader *loader = load(source, pack ? 8 : 0, pack);
    kr_batch batch;
    CHECK(kr_loader_next(tape, loader, &batch) != KR_OK, "no error: %s", message);
    CHECK_ERROR_HAS(c->ctx, status, message);
    kr_loader_destroy(loader);
    kr_source_destroy(source);
    kr_tape_destroy(tape);
}

TEST(custom_callbacks_that_fail_or_answer_wrong)
{
    const kr_source_info tokens = { .count = 40, .n_ids = 5, .predict_next = true };
    const kr_source_info classes = { .count = 40, .n_features = 2, .n_classes = 3 };
    counting c = { .ctx = kr_test_ctx(1, NULL), .fails = true };
    check_next(&c, tokens, true, KR_ERR_IO, "custom source: read of positions 0 to 8 failed: ");
    c.says_why = true;
    check_next(&c, tokens, true, KR_ERR_IO, "row 7 is lost");
    c.fails = false;
    c.bad_id = 5;
    check_next(&c, tokens, true, KR_ERR_FORMAT, "custom source: id 5 at position 6 must be from 0 to 4");
    c.bad_id = -100; /* no id may be left out */
    check_next(&c, tokens, true, KR_ERR_FORMAT, "custom source: id -100 at position 6 must be from 0 to 4");
    c.bad_id = 0;
    c.bad_label = 3;
    check_next(&c, classes, true, KR_ERR_FORMAT, "custom source: label 3 at position 6 must be from 0 to 2");
    c.bad_label = 0;
    c.finds_wrong = true;
    check_next(&c, classes, false, KR_ERR_STATE,
               "custom source: find_start(1, 40) returned 0, which is not between them");
    kr_ctx_destroy(c.ctx);
}

TEST(custom_source_errors)
{
    counting c = { .ctx = kr_test_ctx(1, NULL) };
    const kr_source_info good = { .count = 4, .n_ids = 5, .predict_next = true };
    kr_source_info info = good;
#define REFUSED_INFO(message, ...)                                                                                     \
    do {                                                                                                               \
        info = good;                                                                                                   \
        __VA_ARGS__;                                                                                                   \
        CHECK(!kr_source_custom(c.ctx, &info, &callbacks, &c), "not refused");                                         \
        CHECK_ERROR(c.ctx, KR_ERR_ARG, message);                                                                       \
    } while (0)
    REFUSED_INFO("custom source: info.count = 0 must be at least 1", info.count = 0);
    REFUSED_INFO("custom source: info.n_ids = 5, n_features = 2: one must be 0 and the other positive",
                 info.n_features = 2);
    REFUSED_INFO("custom source: info.n_ids = -5, n_features = 0: one must be 0 and the other positive",
                 info.n_ids = -5);
    REFUSED_INFO("custom source: info.predict_next = 1, n_classes = 2, n_targets = 0: only one may be set",
                 info.n_classes = 2);
    REFUSED_INFO("custom source: info.predict_next = 0, n_classes = 2, n_targets = 1: only one may be set",
                 info.predict_next = false, info.n_classes = 2, info.n_targets = 1);
    kr_source_callbacks own = callbacks;
    own.reserved[4] = &c;
    CHECK(!kr_source_custom(c.ctx, &good, &own, &c), "not refused");
    CHECK_ERROR(c.ctx, KR_ERR_ARG, "custom source: callbacks.reserved must be NULL; begin with { 0 }");
    CHECK(!kr_source_custom(c.ctx, &good, &(kr_source_callbacks){ 0 }, &c), "not refused");
    CHECK_ERROR(c.ctx, KR_ERR_ARG, "custom source: callbacks.read is NULL");
    CHECK(!kr_source_custom(c.ctx, NULL, &callbacks, &c), "not refused");
    CHECK_ERROR(c.ctx, KR_ERR_ARG, "custom source: info is NULL");
    CHECK(!kr_source_custom(c.ctx, &good, NULL, &c), "not refused");
    CHECK_ERROR(c.ctx, KR_ERR_ARG, "custom source: callbacks is NULL");
    CHECK(c.n_destroyed == 0, "destroy was called for a source that was refused");
    CHECK(kr_ctx_fail(c.ctx, KR_END, "no %s", "error") == KR_ERR_ARG, "KR_END as an error");
    CHECK_ERROR(c.ctx, KR_ERR_ARG, "no error");
    CHECK(kr_ctx_fail(NULL, KR_ERR_IO, "x") == KR_ERR_IO, "another status");
    kr_ctx_destroy(c.ctx);
}
