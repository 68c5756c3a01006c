/* test_data.c - each kind of source: what its positions hold, and that much text gives the ids of the whole. */
#define _POSIX_C_SOURCE 200809L
#include "tests/temp_folder.h"
#include "tests/data/corpus.h"

static kr_ctx *ctx;
static kr_tape *tape;
static kr_tokenizer *tok;

static void begin(void)
{
    ctx = kr_test_ctx(1, NULL);
    tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    tok = kr_tokenizer_bytes(ctx);
    begin_folder();
}

static void end(void)
{
    CHECK_OK(ctx);
    end_folder();
    kr_tokenizer_destroy(tok);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

static const char *write_text(const char *name, const char *text)
{
    write_image(in_folder(name), text, strlen(text));
    return in_folder(name);
}

/* The source's tokens as text, with '|' before each document. */
static const char *spelled(const kr_source *source)
{
    static char text[4096];
    size_t n = 0;
    const int64_t count = kr_source_info_of(source).count;
    for (int64_t i = 0; i < count && n < sizeof text - 3; i++) {
        int32_t id;
        if (!source->kind->read(source, i, 1, &(kr_positions){ .ids = &id })) break;
        if (is_start(source, i)) text[n++] = '|';
        text[n++] = (char)id;
    }
    text[n] = 0;
    return text;
}

static void expect_spelled(kr_source *source, const char *want)
{
    CHECK_OK(ctx);
    CHECK(source && strcmp(spelled(source), want) == 0, "got '%s', want '%s'", source ? spelled(source) : "", want);
    kr_source_destroy(source);
}

TEST(text_is_cut_into_documents)
{
    begin();
    kr_text_options o;
    kr_text_options_init(&o);
    expect_spelled(kr_source_text(ctx, write_text("a", "one. two."), tok, NULL), "|one. two.");
    o.separator = "--";
    expect_spelled(kr_source_text(ctx, write_text("a", "one--two-three----four--"), tok, &o), "|one|two-three|four");
    expect_spelled(kr_source_text(ctx, write_text("a", "--a---b-"), tok, &o), "|a|-b-");
    o.document_end = '.';
    expect_spelled(kr_source_string(ctx, "one----two", 10, tok, &o), "|one.|two.");
    end();
}

TEST(json_lines_are_documents)
{
    begin();
    const char *path = write_text("a.jsonl", "{\"text\": \"one\"}\n\n  {\"x\": [1], \"text\": \"t\\u0077o\\n\"}\r\n"
                                             "{\"text\": \"\"}\n{\"text\": \"three\"}");
    expect_spelled(kr_source_jsonl(ctx, path, "text", tok, NULL), "|one|two\n|three");
    end();
}

/* A text longer than several blocks, through memory and through a token file. */
TEST(long_texts_are_streamed)
{
    begin();
    enum { BYTES = 5 << 19 };
    char *text = malloc(BYTES);
    for (int i = 0; i < BYTES; i++) text[i] = (char)(i % 7 == 6 ? ' ' : 'a' + i * 31 % 26);
    write_image(in_folder("long.txt"), text, BYTES);
    kr_text_options o;
    kr_text_options_init(&o);
    kr_source *held = kr_source_text(ctx, in_folder("long.txt"), tok, &o);
    o.memory_budget = 1 << 20;
    CHECK(!kr_source_text(ctx, in_folder("long.txt"), tok, &o), "too much for the budget is taken");
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG,
                    "the ids of 2621440 bytes may take more than memory_budget = 1048576; name a token_path");
    char path[512];
    snprintf(path, sizeof path, "%s", in_folder("long.tokens"));
    o.token_path = path;
    const size_t live = kr_ctx_memory(ctx).live_bytes;
    kr_source *mapped = kr_source_text(ctx, in_folder("long.txt"), tok, &o);
    CHECK_OK(ctx);
    CHECK(kr_ctx_memory(ctx).live_bytes < live + 4096, "%zu bytes are held", kr_ctx_memory(ctx).live_bytes - live);
    CHECK(kr_source_info_of(held).count == BYTES && kr_source_info_of(mapped).count == BYTES, "other counts");
    int32_t a[512], b[512];
    for (int64_t at = 0; at < BYTES; at += 512) {
        held->kind->read(held, at, 512, &(kr_positions){ .ids = a });
        mapped->kind->read(mapped, at, 512, &(kr_positions){ .ids = b });
        if (!CHECK(!memcmp(a, b, sizeof a), "ids differ from %lld on", (long long)at)) break;
        for (int i = 0; i < 512; i++)
            if (!CHECK(a[i] == text[at + i], "id %d at %lld", a[i], (long long)(at + i))) break;
    }
    CHECK(files_in_folder(false) == 2, "temporary files are left");
    kr_source_destroy(held);
    kr_source_destroy(mapped);
    free(text);
    end();
}

/* Blocks end where no token does: the ids are those of the whole. */
TEST(blocks_of_text_cut_no_token)
{
    begin();
    static const char json[] =
        "{\"added_tokens\": [], \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
        "\"add_prefix_space\": false, \"use_regex\": false}, \"post_processor\": null, "
        "\"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, "
        "\"b\": 1, \"\\u0120\": 2, \"ab\": 3, \"?\": 4}, \"unk_token\": \"?\", \"merges\": [\"a b\"]}}";
    enum { WORDS = 400000 };
    kr_tokenizer *bpe = kr_tokenizer_parse(ctx, json, strlen(json));
    char *text = malloc(7 * WORDS + 1);
    for (int i = 0; i < WORDS; i++) memcpy(text + 7 * i, "ababab ", 8);
    kr_source *source = kr_source_string(ctx, text, 7 * WORDS, bpe, NULL);
    CHECK_OK(ctx);
    CHECK(kr_source_info_of(source).count == 4 * WORDS, "%lld ids, not %d", (long long)kr_source_info_of(source).count,
          4 * WORDS);
    kr_source_destroy(source);
    kr_tokenizer_destroy(bpe);
    free(text);
    end();
}

TEST(token_files_hold_what_was_saved)
{
    begin();
    static const int64_t lengths[] = { 3, 1, 40, 5000 };
    for (int64_t count = 1; count < 20000; count = 3 * count + 1) {
        kr_source *source = counting_source(ctx, count, lengths, count > 1000 ? 4 : 3);
        CHECK(kr_source_save(source, in_folder("a.tokens")) == KR_OK, "%s", kr_ctx_message(ctx));
        kr_source *loaded = kr_source_tokens(ctx, in_folder("a.tokens"));
        CHECK(kr_source_info_of(loaded).count == count && kr_source_info_of(loaded).n_ids == 70000, "other sizes");
        for (int64_t i = 0; loaded && i < count; i++) {
            int32_t id = -1;
            loaded->kind->read(loaded, i, 1, &(kr_positions){ .ids = &id });
            CHECK(id == i && is_start(loaded, i) == is_start(source, i), "%lld: %d", (long long)i, id);
        }
        kr_source_destroy(loaded);
        kr_source_destroy(source);
    }
    end();
}

TEST(bare_ids_are_read)
{
    begin();
    static const unsigned char two[] = { 1, 0, 0, 1, 7, 0, 2, 0, 7, 0 }, four[] = { 1, 0, 0, 0, 0, 0, 1, 0 };
    int32_t ids[5];
    write_image(in_folder("a.bin"), two, sizeof two);
    kr_source *source = kr_source_raw_tokens(ctx, in_folder("a.bin"), 2, 300, 7);
    CHECK(kr_source_info_of(source).count == 5, "another count");
    source->kind->read(source, 0, 5, &(kr_positions){ .ids = ids });
    CHECK(ids[0] == 1 && ids[1] == 256 && ids[2] == 7 && ids[3] == 2 && ids[4] == 7, "other ids");
    for (int i = 0; i < 5; i++) CHECK(is_start(source, i) == (i == 0 || i == 3), "id %d begins a document", i);
    CHECK(source->kind->find_start(source, 4, 5) == 5, "a document begins behind the end");
    kr_source_destroy(source);
    write_image(in_folder("a.bin"), four, sizeof four);
    source = kr_source_raw_tokens(ctx, in_folder("a.bin"), 4, 70000, -1);
    source->kind->read(source, 0, 2, &(kr_positions){ .ids = ids });
    CHECK(ids[0] == 1 && ids[1] == 65536 && !is_start(source, 1), "other ids of four bytes");
    kr_source_destroy(source);
    end();
}

/* ---- numbers ---- */

static void expect_floats(const char *what, const kr_tensor *x, const float *want, int64_t count)
{
    if (!CHECK(kr_tensor_count(x) == count, "%s: %lld numbers", what, (long long)kr_tensor_count(x))) return;
    const float *got = kr_test_copy(x);
    for (int64_t i = 0; i < count; i++)
        CHECK(got[i] == want[i], "%s[%lld] = %g, not %g", what, (long long)i, (double)got[i], (double)want[i]);
}

static void expect_ints(const char *what, const kr_tensor *x, const int32_t *want, int64_t count)
{
    if (!CHECK(kr_tensor_count(x) == count, "%s: %lld numbers", what, (long long)kr_tensor_count(x))) return;
    for (int64_t i = 0; i < count; i++)
        CHECK(ints(x)[i] == want[i], "%s[%lld] = %d, not %d", what, (long long)i, ints(x)[i], want[i]);
}

/* The one batch of whole documents, in order. */
static kr_batch whole_documents(kr_source *source)
{
    kr_loader_options o;
    kr_loader_options_init(&o);
    o.pack = o.shuffle = false;
    o.length = 0;
    kr_loader *loader = kr_loader_create(source, &o);
    kr_batch batch;
    CHECK(kr_loader_next(tape, loader, &batch) == KR_OK, "no batch: %s", kr_ctx_message(ctx));
    CHECK(kr_loader_steps_per_epoch(loader) == 1, "several batches");
    kr_loader_destroy(loader);
    return batch;
}

TEST(tables_with_targets)
{
    begin();
    kr_csv_options o;
    kr_csv_options_init(&o);
    o.features = "a";
    o.targets = "out,b";
    const char *path = write_text("a.csv", "\xef\xbb\xbf"
                                           "a, \"b\" ,out\n1,2,3\n 4.5 ,\"-5e-1\",+6\r\n\n\n7,8,9\n");
    kr_source *source = kr_source_csv(ctx, path, &o);
    const kr_source_info info = kr_source_info_of(source);
    CHECK(info.count == 3 && info.n_features == 1 && info.n_targets == 2 && !info.predict_next, "another table");
    const kr_batch batch = whole_documents(source);
    expect_floats("x", batch.x_bsf, (float[]){ 1, 4.5F, 7, 0 }, 4);
    expect_floats("targets", batch.targets_bso, (float[]){ 3, 2, 6, -0.5F, 9, 8, 0, 0 }, 8);
    expect_ints("scored", batch.scored_bs, (int32_t[]){ 1, 1, 1, 0 }, 4);
    expect_ints("mask", batch.mask_bs, (int32_t[]){ 1, 1, 1, 0 }, 4);
    CHECK(!batch.labels_bs && !batch.ids_bs && batch.n_scored == 3, "labels");
    kr_source_destroy(source);
    end();
}

TEST(tables_with_classes_and_a_column_of_sequences)
{
    begin();
    kr_csv_options o;
    kr_csv_options_init(&o);
    o.has_header = false;
    o.delimiter = ';';
    o.targets = "3";
    o.is_class = true;
    o.sequence = "1";
    kr_source *source = kr_source_csv(ctx, write_text("a.csv", "u;1;0\nu;2;4\nv;3;1\n\nv;4;1\nu;5;2"), &o);
    CHECK(kr_source_info_of(source).n_classes == 5, "%lld classes", (long long)kr_source_info_of(source).n_classes);
    const kr_batch batch = whole_documents(source);
    expect_floats("x", batch.x_bsf, (float[]){ 1, 2, 3, 4, 5, 0 }, 6);
    expect_ints("labels", batch.labels_bs, (int32_t[]){ 0, 4, 1, 1, 2, KR_NOT_SCORED }, 6);
    kr_source_destroy(source);
    end();
}

TEST(tables_that_predict_their_next_row)
{
    begin();
    FILE *f = fopen(in_folder("a.csv"), "w");
    enum { ROWS = 1000 };
    fprintf(f, "t,square\n");
    for (int i = 0; i < ROWS; i++) fprintf(f, "%s%d,%d\n", i == 300 ? "\n" : "", i, i * i % 97);
    fclose(f);
    kr_source *source = kr_source_csv(ctx, in_folder("a.csv"), NULL);
    kr_loader_options o;
    kr_loader_options_init(&o);
    o.batch = 3;
    o.length = 50;
    o.n_epochs = 1;
    kr_loader *loader = kr_loader_create(source, &o);
    int64_t seen[ROWS] = { 0 };
    kr_batch batch;
    for (; kr_loader_next(tape, loader, &batch) == KR_OK; kr_tape_reset(tape)) {
        const float *x = kr_test_copy(batch.x_bsf), *target = kr_test_copy(batch.targets_bso);
        for (int64_t i = 0; i < kr_tensor_count(batch.scored_bs); i++) {
            const int t = (int)x[2 * i];
            if (t == 300 && i % 50) CHECK(batch.reset_bs && ints(batch.reset_bs)[i], "row 300 is not marked");
            if (!ints(batch.scored_bs)[i]) continue;
            seen[t + 1]++;
            CHECK((int)x[2 * i + 1] == t * t % 97, "row %d has %g", t, (double)x[2 * i + 1]);
            CHECK((int)target[2 * i] == t + 1 && (int)target[2 * i + 1] == (t + 1) * (t + 1) % 97,
                  "behind row %d is %g", t, (double)target[2 * i]);
        }
    }
    for (int i = 0; i < ROWS; i++)
        CHECK(seen[i] == (i > 0 && i != 300), "row %d is predicted %lld times", i, (long long)seen[i]);
    kr_loader_destroy(loader);
    kr_source_destroy(source);
    end();
}

static void write_images(void)
{
    unsigned char images[16 + 2 * 4 * 6] = { 0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 6 };
    static const unsigned char labels[] = { 0, 0, 8, 1, 0, 0, 0, 2, 7, 3 };
    for (int i = 0; i < 48; i++) images[16 + i] = (unsigned char)(5 * i);
    write_image(in_folder("images"), images, sizeof images);
    write_image(in_folder("labels"), labels, sizeof labels);
}

TEST(images_are_cut_into_patches)
{
    begin();
    write_images();
    kr_idx_options o;
    kr_idx_options_init(&o);
    o.patch_height = 2;
    o.patch_width = 3;
    o.mean = 0.25;
    o.deviation = 0.5;
    kr_source *source = kr_source_idx(ctx, in_folder("images"), in_folder("labels"), &o);
    const kr_source_info info = kr_source_info_of(source);
    CHECK(info.count == 8 && info.n_features == 6 && info.n_classes == 8, "other sizes");
    const kr_batch batch = whole_documents(source);
    float want[48];
    for (int n = 0, i = 0; n < 2; n++)
        for (int patch = 0; patch < 4; patch++)
            for (int pixel = 0; pixel < 6; pixel++) {
                const int row = patch / 2 * 2 + pixel / 3, column = patch % 2 * 3 + pixel % 3;
                want[i++] = (float)((5 * (24 * n + 6 * row + column) / 255.0 - 0.25) / 0.5);
            }
    expect_floats("patches", batch.x_bsf, want, 48);
    expect_ints("labels", batch.labels_bs, (int32_t[]){ -100, -100, -100, 7, -100, -100, -100, 3 }, 8);
    CHECK(batch.n_scored == 2 && !batch.mask_bs && !batch.reset_bs, "marks");
    kr_source_destroy(source);
    source = kr_source_idx(ctx, in_folder("images"), NULL, NULL);
    CHECK(!whole_documents(source).labels_bs && kr_source_info_of(source).count == 48, "labels out of nothing");
    kr_source_destroy(source);
    end();
}

/* ---- memory ---- */

typedef kr_source *make_fn(void);

static kr_source *make_text(void)
{
    kr_text_options o;
    kr_text_options_init(&o);
    o.separator = "\n";
    return kr_source_text(ctx, in_folder("text"), tok, &o);
}
static kr_source *make_spilled(void)
{
    char path[512];
    kr_text_options o;
    kr_text_options_init(&o);
    o.memory_budget = 4;
    snprintf(path, sizeof path, "%s", in_folder("spilled"));
    o.token_path = path;
    return kr_source_jsonl(ctx, in_folder("jsonl"), "t", tok, &o);
}
static kr_source *make_csv(void)
{
    return kr_source_csv(ctx, in_folder("csv"), NULL);
}
static kr_source *make_idx(void)
{
    return kr_source_idx(ctx, in_folder("images"), in_folder("labels"), NULL);
}
static kr_status read_nothing(void *user, int64_t from, int64_t count, const kr_positions *out)
{
    (void)user, (void)from, (void)count, (void)out;
    return KR_OK;
}
static kr_source *make_custom(void)
{
    const kr_source_info info = { .count = 4, .n_ids = 2, .predict_next = true };
    return kr_source_custom(ctx, &info, &(kr_source_callbacks){ .read = read_nothing }, NULL);
}

TEST(sources_survive_every_failed_allocation)
{
    begin();
    write_text("text", "one\ntwo\nthree");
    write_text("jsonl", "{\"t\": \"one two three\"}\n{\"t\": \"four\"}\n");
    write_text("csv", "a,b\n1,2\n3,4\n");
    write_images();
    static make_fn *const makes[] = { make_text, make_spilled, make_csv, make_idx, make_custom };
    for (size_t i = 0; i < sizeof makes / sizeof *makes; i++) {
        const size_t live = kr_ctx_memory(ctx).live_bytes;
        bool done = false;
        size_t n = 1;
        for (; !done && n < 100; n++) {
            kr_ctx_fail_allocation(ctx, n);
            kr_source *source = makes[i]();
            kr_ctx_fail_allocation(ctx, 0);
            done = source != NULL;
            CHECK(done != kr_ctx_failed(ctx), "kind %zu, allocation %zu: both or neither", i, n);
            if (!done) CHECK(kr_ctx_status(ctx) == KR_ERR_NOMEM, "%s", kr_ctx_message(ctx));
            kr_ctx_clear(ctx);
            kr_source_destroy(source);
            CHECK(kr_ctx_memory(ctx).live_bytes == live, "kind %zu, allocation %zu: %zu bytes are left", i, n,
                  kr_ctx_memory(ctx).live_bytes - live);
        }
        CHECK(done && n > 1, "kind %zu: %zu allocations", i, n);
    }
    CHECK(files_in_folder(false) == 6, "%d files", files_in_folder(false));
    end();
}
