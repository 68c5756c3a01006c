/* test_row_file.c - rows as files and streams: the same bytes, which continue as the row would have, to the bit; what is wrong
 * with a file, a stream or a function is refused, and then nothing has changed.
 */
#define _POSIX_C_SOURCE 200809L
#include "tests/generate/chat.h"
#include "tests/generate/forged_file.h"
#include "tests/memory.h"

#include <krait/batch.h>

enum { VOCAB = CHAT_VOCAB - 3, STREAM_MOST = 1 << 16, MOMENTS = 5, TOKENS = 9 };

/* ---- streams in memory ---- */

typedef struct stream {
    char *data; /* [STREAM_MOST] */
    size_t count, at;
    int left;         /* calls until ... */
    kr_status answer; /* ... this is returned */
} stream;

static kr_status put(void *user, const void *data, size_t bytes)
{
    stream *s = user;
    if (s->answer != KR_OK && s->left-- == 0) return s->answer;
    CHECK(bytes > 0 && bytes <= STREAM_MOST - s->count, "%zu bytes after %zu", bytes, s->count);
    memcpy(s->data + s->count, data, bytes);
    s->count += bytes;
    return KR_OK;
}

/* In pieces of any size. */
static kr_status get(void *user, void *data, size_t capacity, size_t *bytes)
{
    stream *s = user;
    const size_t left = s->count - s->at;
    if (s->answer != KR_OK && s->left-- == 0) return s->answer;
    if (left == 0) return KR_END;
    *bytes = 1 + (size_t)kr_test_below(300);
    if (*bytes > left) *bytes = left;
    if (*bytes > capacity) *bytes = capacity;
    memcpy(data, s->data + s->at, *bytes);
    s->at += *bytes;
    return KR_OK;
}

static stream open_stream(void)
{
    return (stream){ .data = malloc(STREAM_MOST) };
}

/* ---- a row at several moments ---- */

typedef struct scene {
    kr_ctx *ctx;
    kr_network *net;
    kr_tokenizer *tok;
    kr_row_batch *batch, *other;
    kr_logit_bias biases[CHAT_VOCAB];
} scene;

static scene begin_scene(kr_family family, bool has_class_tokens)
{
    static const kr_class_token latents[1] = { { .kind = KR_CLASS_TOKEN_START } };
    scene s = { .ctx = kr_test_ctx(1, NULL) };
    s.net = chat_network(s.ctx, family, KR_DTYPE_F32, has_class_tokens, latents);
    s.tok = kr_tokenizer_bytes(s.ctx);
    kr_row_batch_options o;
    kr_row_batch_options_init(&o);
    o.max_rows = 2;
    o.prefill_tokens = 1; /* a piece in a step */
    s.batch = kr_row_batch_create(s.ctx, s.net, s.tok, &o);
    s.other = kr_row_batch_create(s.ctx, s.net, s.tok, &o);
    begin_folder();
    CHECK_OK(s.ctx);
    return s;
}

static void end_scene(scene *s)
{
    CHECK_OK(s->ctx);
    end_folder();
    kr_row_batch_destroy(s->other);
    kr_row_batch_destroy(s->batch);
    kr_tokenizer_destroy(s->tok);
    kr_network_destroy(s->net);
    kr_ctx_destroy(s->ctx);
}

/* Few characters, some of two and four bytes, and stops that begin often, so that text is held. */
static kr_row_options options_of(scene *s, kr_sampler_options *sampler, int64_t most)
{
    static const char *const stops[] = { "ab\xc3", "ca", "\x98\x80" };
    kr_sampler_options_init(&chat_sampler);
    chat_only(s->biases, "abc\xc3\xa9\xf0\x9f\x98\x80");
    *sampler = chat_sampler;
    sampler->repetition_penalty = 1.2;
    sampler->frequency_penalty = 0.05;
    sampler->seed = 5;
    kr_row_options o;
    kr_row_options_init(&o);
    o.sampler = sampler;
    o.max_tokens = most;
    o.n_stops = 3;
    o.stops = stops;
    return o;
}

static void take_steps(kr_row_batch *batch, int most)
{
    const kr_row_event *events;
    int64_t count;
    for (int i = 0; i < most && kr_row_batch_step(batch, &events, &count) == KR_OK; i++) continue;
}

/* Empty; fed; in the middle of a prompt; in the middle of a text; at its end. */
static kr_row *row_at(scene *s, int moment)
{
    int32_t ids[250];
    kr_sampler_options sampler;
    kr_row_options o = options_of(s, &sampler, moment == 3 ? 40 : 5);
    kr_row *row = kr_row_create(s->batch);
    for (int i = 0; i < 250; i++) ids[i] = (int32_t)kr_test_below(VOCAB);
    if (moment > 0) kr_row_feed(row, ids, 250);
    if (moment > 0) kr_row_feed(row, ids, 3);
    if (moment == 2) take_steps(s->batch, 1);
    if (moment > 2) kr_row_generate(row, &o);
    if (moment > 2) take_steps(s->batch, moment == 3 ? 8 : 1000);
    CHECK_OK(s->ctx);
    return row;
}

/* What the row generates next; its log-probabilities are added up. */
static double sum_of(scene *s, kr_row_batch *batch, kr_row *row, char *text)
{
    kr_sampler_options sampler;
    kr_row_options o = options_of(s, &sampler, TOKENS);
    const int32_t id = 'b';
    double sum = 0;
    kr_row_cancel(row);
    kr_row_feed(row, &id, 1);
    kr_row_generate(row, &o);
    const kr_row_event *events;
    int64_t count;
    text[0] = '\0';
    while (kr_row_batch_step(batch, &events, &count) == KR_OK)
        for (int64_t i = 0; i < count; i++) {
            if (events[i].row != row || events[i].kind != KR_ROW_EVENT_TOKEN) continue;
            sum += events[i].sample.logprob;
            strcat(text, events[i].text);
        }
    return sum;
}

static kr_snapshot *snapshot_of(kr_row *row, stream *to)
{
    kr_snapshot *s = kr_row_snapshot(row);
    to->count = to->at = 0;
    CHECK(s && kr_snapshot_write(s, put, to) == KR_OK, "a snapshot is not written");
    return s;
}

static void check_moment(kr_family family, bool has_class_tokens, int moment)
{
    scene s = begin_scene(family, has_class_tokens);
    stream bytes = open_stream();
    kr_row *row = row_at(&s, moment);
    kr_snapshot *snapshot = snapshot_of(row, &bytes);
    CHECK(kr_row_save(row, in_folder("row")) == KR_OK, "%s", kr_ctx_message(s.ctx));
    file_image file = read_image(in_folder("row"));
    CHECK(file.bytes == bytes.count && memcmp(file.data, bytes.data, file.bytes) == 0,
          "%s, moment %d: the stream has other bytes than the file", kr_family_name(family), moment);

    kr_snapshot *read = kr_snapshot_read(s.other, get, &bytes);
    const kr_snapshot_info info = kr_snapshot_info_of(read), want = kr_snapshot_info_of(snapshot);
    CHECK(info.tokens == want.tokens && info.queued == want.queued && want.tokens == kr_row_info_of(row).tokens,
          "%lld tokens, %lld queued, not %lld and %lld", (long long)info.tokens, (long long)info.queued,
          (long long)want.tokens, (long long)want.queued);
    const size_t state = kr_row_batch_stats_of(s.batch).state_bytes;
    CHECK(want.bytes >= (moment > 1 ? state : 0) && info.bytes >= state, "%zu and %zu bytes, a state has %zu",
          want.bytes, info.bytes, state);

    char text[2][200];
    kr_row *copy = kr_row_create(s.other);
    CHECK(kr_row_restore(copy, read) == KR_OK, "%s", kr_ctx_message(s.ctx));
    if (!moment) kr_row_feed(row, (int32_t[]){ 7 }, 1);
    if (!moment) kr_row_feed(copy, (int32_t[]){ 7 }, 1);
    const double one = sum_of(&s, s.batch, row, text[0]), two = sum_of(&s, s.other, copy, text[1]);
    CHECK(one == two && strcmp(text[0], text[1]) == 0, "%s, moment %d: %.17g '%s', not %.17g '%s'",
          kr_family_name(family), moment, two, text[1], one, text[0]);
    kr_snapshot_destroy(read);
    kr_snapshot_destroy(snapshot);
    free(file.data);
    free(bytes.data);
    end_scene(&s);
}

TEST(streams_of_rows_are_those_of_files_and_continue_alike)
{
    for (int family = 0; family < 3; family++)
        for (int moment = 0; moment < MOMENTS; moment++) check_moment((kr_family)family, false, moment);
    check_moment(KR_FAMILY_MAMBA2, true, 3);
}

/* ---- functions ---- */

static kr_status answer_bytes(void *user, void *data, size_t capacity, size_t *bytes)
{
    (void)data;
    *bytes = *(bool *)user ? capacity + 1 : 0;
    return KR_OK;
}

TEST(functions_of_streams_that_fail)
{
    scene s = begin_scene(KR_FAMILY_MAMBA2, false);
    stream bytes = open_stream();
    kr_snapshot *snapshot = snapshot_of(row_at(&s, 4), &bytes);
    const size_t count = bytes.count;
    for (int left = 0; left < 4; left++) { /* the header, and tensors */
        stream full = { .data = bytes.data, .left = left, .answer = KR_ERR_IO };
        CHECK(kr_snapshot_write(snapshot, put, &full) == KR_ERR_IO, "a full stream");
        CHECK_ERROR(s.ctx, KR_ERR_IO, "snapshot.write: the function that writes returned io");
    }
    stream ended = { .data = bytes.data, .answer = KR_END };
    CHECK(kr_snapshot_write(snapshot, put, &ended) == KR_ERR_ARG, "an end of writing");
    CHECK_ERROR(s.ctx, KR_ERR_ARG, "snapshot.write: the function that writes returned end");

    bytes.answer = KR_ERR_IO;
    bytes.left = 2;
    CHECK(!kr_snapshot_read(s.batch, get, &bytes), "a stream that breaks");
    CHECK_ERROR(s.ctx, KR_ERR_IO, "snapshot.read: the function that reads returned io");
    CHECK(!kr_snapshot_read(s.batch, answer_bytes, &(bool){ false }), "no bytes");
    CHECK_ERROR(
        s.ctx, KR_ERR_ARG,
        "snapshot.read: the function that reads returned 0 bytes, but must return from 1 to the 65536 asked for, "
        "or KR_END");
    CHECK(!kr_snapshot_read(s.batch, answer_bytes, &(bool){ true }), "too many bytes");
    CHECK_ERROR_HAS(s.ctx, KR_ERR_ARG, "snapshot.read: the function that reads returned 65537 bytes");
    stream empty = { .data = bytes.data };
    CHECK(!kr_snapshot_read(s.batch, get, &empty), "nothing");
    CHECK_ERROR_HAS(s.ctx, KR_ERR_FORMAT, "snapshot.read: ");
    CHECK(kr_snapshot_write(snapshot, NULL, NULL) == KR_ERR_ARG, "no function");
    CHECK_ERROR(s.ctx, KR_ERR_ARG, "snapshot.write: write is NULL");
    CHECK(!kr_snapshot_read(s.batch, NULL, NULL), "no function");
    CHECK_ERROR(s.ctx, KR_ERR_ARG, "snapshot.read: read is NULL");

    kr_network *third = chat_network(s.ctx, KR_FAMILY_MAMBA3, KR_DTYPE_F32, 0, NULL);
    kr_row_batch *foreign = kr_row_batch_create(s.ctx, third, NULL, NULL);
    stream whole = { .data = bytes.data, .count = count };
    CHECK(!kr_snapshot_read(foreign, get, &whole), "another network");
    CHECK_ERROR_HAS(s.ctx, KR_ERR_FORMAT, "snapshot.read: the state belongs to another architecture");
    kr_row_batch_destroy(foreign);
    kr_network_destroy(third);
    kr_snapshot_destroy(snapshot);
    free(bytes.data);
    end_scene(&s);
}

TEST(streams_of_rows_without_memory)
{
    scene s = begin_scene(KR_FAMILY_MAMBA2, false);
    stream bytes = open_stream();
    kr_snapshot *snapshot = snapshot_of(row_at(&s, 4), &bytes), *read = NULL;
    drop_scratch(s.ctx);
    const size_t blocks = all_memory(s.ctx).live_blocks;
    for (size_t n = 1; !read && n < 500; n++) {
        kr_ctx_fail_allocation(s.ctx, n);
        bytes.count = bytes.at = 0;
        if (kr_snapshot_write(snapshot, put, &bytes) == KR_OK) read = kr_snapshot_read(s.other, get, &bytes);
        kr_ctx_fail_allocation(s.ctx, 0);
        if (read) break;
        CHECK_ERROR_HAS(s.ctx, KR_ERR_NOMEM, "snapshot.");
        drop_scratch(s.ctx);
        CHECK(all_memory(s.ctx).live_blocks == blocks, "allocation %zu leaves memory", n);
    }
    CHECK(read != NULL, "allocations did not end");
    kr_snapshot_destroy(read);
    kr_snapshot_destroy(snapshot);
    free(bytes.data);
    end_scene(&s);
}

/* ---- bytes from elsewhere ---- */

/* Is the stream refused, and no memory lost? */
static void refuse_stream(scene *s, stream *bytes, const char *what, size_t at)
{
    bytes->at = 0;
    drop_scratch(s->ctx);
    const size_t blocks = all_memory(s->ctx).live_blocks;
    kr_snapshot *read = kr_snapshot_read(s->other, get, bytes);
    CHECK(!read, "%s %zu", what, at);
    kr_snapshot_destroy(read);
    kr_ctx_clear(s->ctx);
    drop_scratch(s->ctx);
    CHECK(all_memory(s->ctx).live_blocks == blocks, "%s %zu: memory is left", what, at);
}

/* Every byte matters, but for the header's padding. */
TEST(damaged_rows)
{
    scene s = begin_scene(KR_FAMILY_MAMBA2, false);
    stream bytes = open_stream();
    kr_snapshot_destroy(snapshot_of(row_at(&s, 3), &bytes));
    uint64_t header;
    memcpy(&header, bytes.data, 8);
    const size_t head = 8 + (size_t)header, count = bytes.count;
    size_t text = head;
    while (bytes.data[text - 1] == ' ') text--;
    for (size_t at = 0; at < count; at += at < head ? (kr_test_quick() ? 17 : 3) : (kr_test_quick() ? 61 : 7)) {
        if (at >= text && at < head) continue;
        const char change = (char)(1 + kr_test_below(255));
        bytes.data[at] ^= change;
        refuse_stream(&s, &bytes, "byte", at);
        bytes.data[at] ^= change;
    }
    for (size_t n = 0; n < count; n += 1 + count / 20) {
        bytes.count = n;
        refuse_stream(&s, &bytes, "bytes of it:", n);
    }
    bytes.count = count;
    bytes.data[bytes.count++] = 0;
    refuse_stream(&s, &bytes, "bytes, one too many:", bytes.count);
    free(bytes.data);
    end_scene(&s);
}

enum { EXTRAS = 6 };
static const char *const names[EXTRAS] = { "row.numbers", "row.queue", "row.ends",
                                           "row.counts",  "row.text",  "row.logits" };

static void refuse(scene *s, kr_row *row, const stream *before, kr_status status, const char *text, const forgery *e)
{
    char message[700];
    const char *path = in_folder("forged");
    snprintf(message, sizeof message, "row.load: %s: %s", path, text);
    forge(s->ctx, in_folder("row"), path, EXTRAS, names, e);
    drop_scratch(s->ctx);
    const size_t blocks = all_memory(s->ctx).live_blocks;
    CHECK(kr_row_load(row, path) == status, "it is taken: %s, %lld at %d", text, (long long)e->value, e->at);
    CHECK_ERROR(s->ctx, status, message);
    drop_scratch(s->ctx);
    CHECK(all_memory(s->ctx).live_blocks == blocks, "%s: memory is left", text);
    stream now = open_stream();
    kr_snapshot_destroy(snapshot_of(row, &now));
    CHECK(now.count == before->count && memcmp(now.data, before->data, now.count) == 0, "%s: the row has changed",
          text);
    free(now.data);
}

TEST(forged_rows)
{
    scene s = begin_scene(KR_FAMILY_MAMBA2, false);
    kr_row *row = row_at(&s, 4), *source = row_at(&s, 1); /* steps of the first would read the second's prompt */
    stream before = open_stream();
    kr_snapshot_destroy(snapshot_of(row, &before));
    CHECK(kr_row_save(source, in_folder("row")) == KR_OK, "%s", kr_ctx_message(s.ctx));
    forge(s.ctx, in_folder("row"), in_folder("forged"), EXTRAS, names, &(forgery){ .key = NULL });
    CHECK(kr_row_load(source, in_folder("forged")) == KR_OK, "the forger's file without a change: %s",
          kr_ctx_message(s.ctx));

#define REFUSE(status, text, ...) refuse(&s, row, &before, status, text, &(forgery){ __VA_ARGS__ })
    REFUSE(KR_ERR_FORMAT, "not a row file of Krait: metadata 'format' is not 'krait.row'", .key = "format",
           .text = "krait.state");
    REFUSE(KR_ERR_FORMAT, "the row has version '2' of the format, but this library reads version 1", .key = "version",
           .text = "2");
    for (int i = 0; i < EXTRAS; i++) {
        char missing[64];
        snprintf(missing, sizeof missing, "tensor '%s' is missing", names[i]);
        REFUSE(KR_ERR_FORMAT, missing, .tensor = names[i], .is_missing = true);
    }
    const kr_dtype f64 = KR_DTYPE_F64;
    const kr_shape flat = KR_SHAPE(1, 6);
    REFUSE(KR_ERR_FORMAT, "tensor 'row.numbers' is F64 [6], which is not valid", .tensor = names[0], .dtype = &f64);
    REFUSE(KR_ERR_FORMAT, "tensor 'row.numbers' is I64 [1, 6], which is not valid", .tensor = names[0], .shape = &flat);
    static const int64_t wrong[6][3] = { { 252, -1, INT64_MAX },  /* 253 tokens, all in the queue */
                                         { -1, 1, INT64_MAX },    /* nothing was read */
                                         { -2, 253, INT64_MAX },  /* the last generated token */
                                         { -1, 1, INT64_MAX },    /* no text is held */
                                         { -1, 1, INT64_MAX },    /* nor matched */
                                         { -1, -2, INT64_MIN } }; /* sampled tokens */
    for (int field = 0; field < 6; field++)
        for (int v = 0; v < 3; v++)
            REFUSE(KR_ERR_FORMAT, "tensor 'row.numbers' has a number out of range", .tensor = names[0], .at = field,
                   .value = wrong[field][v]);
    static const int64_t ids[] = { -1, VOCAB, INT32_MAX };
    for (int v = 0; v < 3; v++)
        REFUSE(KR_ERR_FORMAT, "tensor 'row.queue' or 'row.ends' has a number out of range", .tensor = names[1],
               .at = 250, .value = ids[v]);
    static const int64_t ends[2][4] = { { 0, -1, 253, INT64_MAX }, { 250, 252, 254, INT64_MIN } };
    for (int end = 0; end < 2; end++)
        for (int v = 0; v < 4; v++)
            REFUSE(KR_ERR_FORMAT, "tensor 'row.queue' or 'row.ends' has a number out of range", .tensor = names[2],
                   .at = end, .value = ends[end][v]);
    free(before.data);
    end_scene(&s);
}

/* Of a row that has generated: its tokens are counted. */
TEST(forged_counts_of_rows)
{
    scene s = begin_scene(KR_FAMILY_MAMBA2, false);
    kr_row *source = row_at(&s, 3), *row = kr_row_create(s.batch);
    stream before = open_stream();
    kr_snapshot_destroy(snapshot_of(row, &before));
    CHECK(kr_row_save(source, in_folder("row")) == KR_OK, "%s", kr_ctx_message(s.ctx));
    for (int v = 0; v < 2; v++)
        REFUSE(KR_ERR_FORMAT, "row 0 of tensor 'row.counts' has a number out of range", .tensor = names[3], .at = 0,
               .value = v ? VOCAB : -1);
    REFUSE(KR_ERR_FORMAT, "row 1 of tensor 'row.counts' has a number out of range", .tensor = names[3], .at = 0,
           .value = VOCAB - 1); /* ids must ascend */
    for (int v = 0; v < 2; v++)
        REFUSE(KR_ERR_FORMAT, "row 0 of tensor 'row.counts' has a number out of range", .tensor = names[3], .at = 1,
               .value = v ? 2 : -1);
    for (int v = 0; v < 2; v++)
        REFUSE(KR_ERR_FORMAT, "row 1 of tensor 'row.counts' has a number out of range", .tensor = names[3], .at = 5,
               .value = v ? INT64_C(1) << 31 : -1);

    source = row_at(&s, 2);
    const int64_t queued = kr_row_info_of(source).queued;
    CHECK(kr_row_save(source, in_folder("row")) == KR_OK, "%s", kr_ctx_message(s.ctx));
    REFUSE(KR_ERR_FORMAT, "the state has read something, but the row has read nothing", .tensor = names[0], .at = 0,
           .value = queued);
    free(before.data);
    end_scene(&s);
}
