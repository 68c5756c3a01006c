/* test_generation_file.c - saved and loaded at every moment = never interrupted, to the bit; what is wrong with a file
 * is refused, and then nothing has changed. */
#define _POSIX_C_SOURCE 200809L
#include "generate/generation_impl.h"
#include "tests/generate/chat.h"
#include "tests/generate/forged_file.h"
#include "tests/memory.h"

enum { FAMILIES = 3, TURN = 14 };

/* ---- a conversation with everything in it ---- */

typedef struct scene {
    kr_ctx *ctx;
    kr_network *net;
    kr_tokenizer *tok;
    kr_generate_options o;
    kr_logit_bias biases[CHAT_VOCAB];
    int rows;
} scene;

static const char *const stops[] = { "ab\xc3", "ca", "\x98\x80" };
static const int32_t stop_ids[] = { 'q' };

/* Characters of two and four bytes, stops and beginnings of them, a stop id, all penalties. */
static void begin_scene(scene *s, kr_family family, int rows)
{
    *s = (scene){ .ctx = kr_test_ctx(1, NULL), .o = chat_options(), .rows = rows };
    s->net = chat_network(s->ctx, family, KR_DTYPE_F32, 0, NULL);
    s->tok = kr_tokenizer_bytes(s->ctx);
    chat_only(s->biases, "abcq\xc3\xa9\xf0\x9f\x98\x80");
    chat_on_host(
        s->biases); /* a token that was read ahead of a feed has other last bits than one that is read with it */
    s->o.n_samples = rows;
    s->o.max_tokens = 13;
    s->o.prefill_chunk = 4;
    s->o.n_stops = 3;
    s->o.stops = stops;
    s->o.n_stop_ids = 1;
    s->o.stop_ids = stop_ids;
    chat_sampler.temperature = 1.5;
    chat_sampler.top_p = 0.98;
    chat_sampler.repetition_penalty = 1.2;
    chat_sampler.presence_penalty = 0.1;
    chat_sampler.frequency_penalty = 0.05;
    chat_sampler.seed = 5;
}

static void end_scene(scene *s)
{
    CHECK_OK(s->ctx);
    kr_tokenizer_destroy(s->tok);
    kr_network_destroy(s->net);
    kr_ctx_destroy(s->ctx);
}

static kr_generation *make(const scene *s)
{
    kr_generation *g = kr_generation_create(s->ctx, s->net, s->tok, &s->o);
    CHECK_OK(s->ctx);
    return g;
}

/* The conversation: what is said before call number `turn`. */
static void speak(kr_generation *g, int call)
{
    if (call == 0) kr_generation_feed_text(g, "Once upon a time", 16);
    if (call == TURN) kr_generation_feed_text(g, "And then?", 9);
}

/* Calls from .. to of it; a call that makes nothing is noted as such. */
static void play(const scene *s, kr_generation *g, chat_record *record, int from, int to, bool speaks_first)
{
    for (int call = from; call < to; call++) {
        if (call > from || speaks_first) speak(g, call);
        IGNORE(kr_generation_next(g));
        chat_note(record, g);
    }
    CHECK_OK(s->ctx);
}

/* Interrupted before call `at`: before or after what is said there. */
static void interrupt(const scene *s, const chat_record *want, int at, int end, bool after_speaking)
{
    chat_record got = { 0 };
    kr_generation *g = make(s);
    play(s, g, &got, 0, at, true);
    if (after_speaking) speak(g, at);
    for (int twice = 0; twice < 2; twice++) /* after the first its tape knows how much it takes */
        CHECK(kr_generation_save(g, in_folder("chat")) == KR_OK, "%s", kr_ctx_message(s->ctx));
    const int64_t prompt_tokens = kr_generation_prompt_tokens(g), tokens = kr_generation_tokens(g);
    drop_scratch(s->ctx);
    const size_t live = kr_ctx_memory(s->ctx).live_bytes;
    CHECK(kr_generation_save(g, in_folder("chat")) == KR_OK, "%s", kr_ctx_message(s->ctx));
    drop_scratch(s->ctx);
    CHECK(kr_ctx_memory(s->ctx).live_bytes <= live, "saving leaves memory"); /* a tape may give some back */
    chat_record on = { 0 };
    play(s, g, &on, at, end, !after_speaking);
    chat_check("saving changes nothing", &on, want, at);
    kr_generation_destroy(g);

    scene other = *s; /* the seed is the file's */
    chat_sampler.seed = 77;
    g = make(&other);
    chat_sampler.seed = 5;
    kr_generation_feed_text(g, "something else", 14); /* all of which is forgotten */
    for (int i = 0; i < at % 4; i++) IGNORE(kr_generation_next(g));
    CHECK(kr_generation_load(g, in_folder("chat")) == KR_OK, "%s", kr_ctx_message(s->ctx));
    CHECK(kr_generation_prompt_tokens(g) == prompt_tokens && kr_generation_tokens(g) == tokens, "counts");
    CHECK(!kr_generation_row(g, 0)->is_new && kr_generation_row(g, 0)->bytes == 0, "nothing new yet");
    memset(&on, 0, sizeof on);
    play(s, g, &on, at, end, !after_speaking);
    char what[64];
    snprintf(what, sizeof what, "%d rows, loaded before call %d", s->rows, at);
    chat_check(what, &on, want, at);
    kr_generation_destroy(g);
}

TEST(resumed_is_uninterrupted)
{
    begin_folder();
    int finishes[4] = { 0 }, split = 0, resting = 0;
    for (int f = 0; f < FAMILIES; f++)
        for (int rows = 1; rows <= CHAT_ROWS; rows += 3) {
            const int end = 2 * TURN;
            scene s;
            begin_scene(&s, (kr_family)f, rows);
            chat_record want = { 0 };
            kr_generation *g = make(&s);
            play(&s, g, &want, 0, end, true);
            kr_generation_destroy(g);
            for (int i = 0; i < end; i++)
                for (int r = 0; r < rows; r++) {
                    finishes[want.rows[i][r].finish] += want.rows[i][r].is_new;
                    resting += !want.rows[i][r].is_new && want.rows[i][(r + 1) % rows].is_new;
                    split += want.rows[i][r].is_new && want.rows[i][r].text[0] == '\0';
                }
            for (int at = 0; at < end; at += kr_test_quick() ? 5 : 1)
                for (int after = 0; after < 2; after++) interrupt(&s, &want, at, end, after);
            end_scene(&s);
        }
    /* the record has what it is meant to have */
    CHECK(finishes[KR_FINISH_LENGTH] > 0 && finishes[KR_FINISH_STOP] > 0 && finishes[KR_FINISH_STOP_ID] > 0 &&
              split > 10 && resting > 10,
          "%d by length, %d by stop, %d by id; %d texts wait, %d rows rest", finishes[1], finishes[3], finishes[2],
          split, resting);
    end_folder();
}

/* Another process: another context, another network object of the same weights; and from one file many times. */
TEST(files_are_read_elsewhere)
{
    begin_folder();
    scene s, t;
    begin_scene(&s, KR_FAMILY_MAMBA3, 2);
    begin_scene(&t, KR_FAMILY_MAMBA3, 2);
    chat_record want = { 0 };
    kr_generation *g = make(&s), *h = make(&t);
    play(&s, g, &want, 0, 5, true);
    CHECK(kr_generation_save(g, in_folder("chat")) == KR_OK, "%s", kr_ctx_message(s.ctx));
    play(&s, g, &want, 5, 12, false);
    for (int i = 0; i < 3; i++) {
        chat_record got = { 0 };
        CHECK(kr_generation_load(h, in_folder("chat")) == KR_OK, "%s", kr_ctx_message(t.ctx));
        play(&t, h, &got, 5, 12, false);
        chat_check("elsewhere", &got, &want, 5);
    }
    /* a state of it can be read as tensors by others, not as a plain state */
    CHECK(!kr_state_load(s.ctx, s.net, in_folder("chat")), "a plain state");
    CHECK_ERROR_HAS(s.ctx, KR_ERR_FORMAT, "not a state file of Krait: metadata 'format' is not 'krait.state'");
    kr_generation_destroy(g);
    kr_generation_destroy(h);
    end_scene(&s);
    end_scene(&t);
    end_folder();
}

/* Options are the loader's: fewer stops, another end, greedy from here on. */
TEST(files_have_no_options)
{
    begin_folder();
    scene s;
    begin_scene(&s, KR_FAMILY_MAMBA2, 1);
    const char *long_stop[] = { "abcabcabcabcabcabcabcabcabcabcabcabcabcabcd" };
    chat_only(s.biases, "abc");
    chat_sampler.repetition_penalty = 1;
    s.o.n_stops = 1;
    s.o.stops = long_stop;
    s.o.max_tokens = -1;
    chat_sampler.presence_penalty = chat_sampler.frequency_penalty = 0;
    kr_generation *g = make(&s);
    kr_generation_feed_text(g, "x", 1);
    /* what waits is put there by hand: 42 letters that no loader without that stop has a buffer for */
    kr_held_text *text = &g->rows[0]->text;
    IGNORE(kr_generation_next(g));
    memcpy(text->held, long_stop[0], 42);
    text->nheld = 42;
    CHECK(kr_generation_save(g, in_folder("chat")) == KR_OK, "%s", kr_ctx_message(s.ctx));
    kr_generation_destroy(g);
    s.o.n_stops = 0;
    g = make(&s);
    CHECK(kr_generation_load(g, in_folder("chat")) == KR_OK && kr_generation_next(g) == KR_OK, "%s",
          kr_ctx_message(s.ctx));
    const kr_generated *one = kr_generation_row(g, 0);
    CHECK(one->bytes == 43 && memcmp(one->text, long_stop[0], 42) == 0, "'%s'", one->text);
    kr_generation_destroy(g);

    g = kr_generation_create(s.ctx, s.net, NULL, &s.o);
    IGNORE(kr_generation_load(g, in_folder("chat")));
    CHECK_ERROR_HAS(s.ctx, KR_ERR_ARG, "the file has buffered text, but this generation has no tokenizer");
    kr_generation_destroy(g);
    end_scene(&s);
    end_folder();
}

/* What waited before a feed stays out of stops, loaded or not; tokens that were generated count against another end. */
TEST(released_text_and_tokens_that_count)
{
    begin_folder();
    scene s;
    begin_scene(&s, KR_FAMILY_MAMBA2, 1);
    chat_only(s.biases, "a");
    s.o.n_stops = 1;
    s.o.stops = (const char *[]){ "aaa" };
    kr_generation *g = make(&s), *h = make(&s);
    kr_generation_feed_text(g, "x", 1);
    for (int i = 0; i < 2; i++) IGNORE(kr_generation_next(g));
    kr_generation_feed_text(g, "y", 1);
    IGNORE(kr_generation_save(g, in_folder("chat")));
    CHECK(kr_generation_load(h, in_folder("chat")) == KR_OK && kr_generation_next(h) == KR_OK, "%s",
          kr_ctx_message(s.ctx));
    CHECK(strcmp(kr_generation_row(h, 0)->text, "aa") == 0 && kr_generation_row(h, 0)->finish == KR_FINISH_NONE, "'%s'",
          kr_generation_row(h, 0)->text);
    IGNORE(kr_generation_save(h, in_folder("chat")));
    kr_generation_destroy(g);
    kr_generation_destroy(h);
    s.o.max_tokens = 1; /* less than there are already */
    g = make(&s);
    CHECK(kr_generation_load(g, in_folder("chat")) == KR_OK && kr_generation_next(g) == KR_OK &&
              kr_generation_next(g) == KR_END && kr_generation_row(g, 0)->finish == KR_FINISH_LENGTH,
          "it ends at once: %s", kr_ctx_message(s.ctx));
    kr_generation_destroy(g);
    end_scene(&s);
    end_folder();
}

/* ---- forged files ---- */

enum { EXTRAS = 4 };
static const char *const names[EXTRAS] = { "generation.totals", "generation.rows", "generation.occurred",
                                           "generation.text" };

/* Everything that a generation remembers, by what it writes of itself. */
static file_image image_of(kr_generation *g)
{
    CHECK(kr_generation_save(g, in_folder("image")) == KR_OK, "it cannot be saved");
    return read_image(in_folder("image"));
}

static bool is_unchanged(kr_generation *g, const file_image *before)
{
    file_image now = image_of(g);
    const bool same = now.bytes == before->bytes && memcmp(now.data, before->data, now.bytes) == 0;
    free(now.data);
    return same;
}

static void refuse(kr_generation *g, const file_image *before, kr_status status, const char *text, const forgery *e)
{
    char message[700];
    const char *path = in_folder("forged");
    snprintf(message, sizeof message, "generation.load: %s: %s", path, text);
    forge(g->ctx, in_folder("chat"), path, EXTRAS, names, e);
    drop_scratch(g->ctx);
    const size_t blocks = kr_ctx_memory(g->ctx).live_blocks;
    CHECK(kr_generation_load(g, path) == status, "it is taken: %s", text);
    CHECK_ERROR(g->ctx, status, message);
    drop_scratch(g->ctx);
    CHECK(kr_ctx_memory(g->ctx).live_blocks == blocks && is_unchanged(g, before), "%s: something has changed", text);
}

TEST(forged_generations)
{
    begin_folder();
    scene s;
    begin_scene(&s, KR_FAMILY_MAMBA2, 2);
    kr_generation *source = make(&s), *g = make(&s);
    kr_generation_feed_text(source, "abc", 3);
    for (int i = 0; i < 12 && source->rows[0]->text.nheld + kr_generation_row_of(source, 1)->text.nheld == 0; i++)
        IGNORE(kr_generation_next(source)); /* until there is text that waits */
    CHECK(kr_generation_save(source, in_folder("chat")) == KR_OK, "%s", kr_ctx_message(s.ctx));
    const int total = (int)(source->rows[0]->text.nheld + source->rows[1]->text.nheld);
    int distinct = 0, last = 0;
    for (int r = 0; r < 2; r++) distinct += (int)source->rows[r]->sampler.counts.count;
    last += (int)source->rows[1]->sampler.counts.count;
    kr_generation_feed_text(g, "else", 4);
    IGNORE(kr_generation_next(g));
    file_image before = image_of(g);
    forge(s.ctx, in_folder("chat"), in_folder("forged"), EXTRAS, names, &(forgery){ .key = NULL });
    CHECK(kr_generation_load(source, in_folder("forged")) == KR_OK, "the forger's file without a change: %s",
          kr_ctx_message(s.ctx));

#define REFUSE(status, text, ...) refuse(g, &before, status, text, &(forgery){ __VA_ARGS__ })
    REFUSE(KR_ERR_FORMAT, "not a generation file of Krait: metadata 'format' is not 'krait.generation'",
           .key = "format", .text = "krait.state");
    REFUSE(KR_ERR_FORMAT, "the generation has version '3' of the format, but this library reads version 2",
           .key = "version", .text = "3");
    for (int i = 0; i < EXTRAS; i++) {
        char missing[64];
        snprintf(missing, sizeof missing, "tensor '%s' is missing", names[i]);
        REFUSE(KR_ERR_FORMAT, missing, .tensor = names[i], .is_missing = true);
    }
    const kr_dtype f64 = KR_DTYPE_F64;
    const kr_shape column = KR_SHAPE(18), rotated = KR_SHAPE(9, 2), row = KR_SHAPE(1, 3), flat = KR_SHAPE(1, 1, 3);
    REFUSE(KR_ERR_FORMAT, "tensor 'generation.totals' is F64 [3], which is not valid", .tensor = names[0],
           .dtype = &f64);
    REFUSE(KR_ERR_FORMAT, "tensor 'generation.totals' is I64 [1, 3], which is not valid", .tensor = names[0],
           .shape = &row);
    REFUSE(KR_ERR_FORMAT, "tensor 'generation.totals' is I64 [1, 1, 3], which is not valid", .tensor = names[0],
           .shape = &flat);
    REFUSE(KR_ERR_ARG, "the file has 18 rows, but this generation has n_samples = 2", .tensor = names[1],
           .shape = &column);
    REFUSE(KR_ERR_ARG, "the file has 9 rows, but this generation has n_samples = 2", .tensor = names[1],
           .shape = &rotated);
    for (int r = 0; r < 2; r++) {
        char range[100];
        snprintf(range, sizeof range, "row %d of tensor 'generation.rows' has a number out of range", r);
        const struct {
            int field;
            int64_t values[3];
        } wrong[] = { { 0, { -2, CHAT_VOCAB - 3, INT64_MAX } },
                      { 1, { -1, 4, INT64_MIN } },
                      { 2, { -1, -1, -1 } },
                      { 3, { -1, -5, INT64_MIN } },
                      { 4, { -1, 100, INT64_MAX } },
                      { 5, { -1, 100, INT64_MAX } },
                      { 6, { -1, 1000, INT64_MAX } },
                      { 7, { -2, CHAT_VOCAB - 3, INT64_MAX } },
                      { 8, { 1, -1, INT64_MIN } } }; /* of a log-probability that is not there */
        for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++)
            for (int v = 0; v < 3; v++)
                REFUSE(KR_ERR_FORMAT, range, .tensor = names[1], .at = 9 * r + wrong[w].field,
                       .value = wrong[w].values[v]);
    }
    for (int at = 0; at <= 9; at += 9) /* pending in one row, and not in the other */
        REFUSE(KR_ERR_FORMAT, "row 1 of tensor 'generation.rows' has a number out of range", .tensor = names[1],
               .at = at, .value = -1);
    char text[128];
    snprintf(text, sizeof text, "'generation.rows' counts %d tokens and %d bytes, but there are %d and %d",
             distinct - 1, total, distinct, total);
    REFUSE(KR_ERR_FORMAT, text, .tensor = names[1], .at = 15, .value = last - 1);
    REFUSE(KR_ERR_FORMAT, "row 0 of tensor 'generation.occurred' has a number out of range", .tensor = names[2],
           .at = 0, .value = -1);
    REFUSE(KR_ERR_FORMAT, "row 1 of tensor 'generation.occurred' has a number out of range", .tensor = names[2],
           .at = 0, .value = 'b'); /* ids must ascend */
    REFUSE(KR_ERR_FORMAT, "row 0 of tensor 'generation.occurred' has a number out of range", .tensor = names[2],
           .at = 1, .value = 2);
    REFUSE(KR_ERR_FORMAT, "row 0 of tensor 'generation.occurred' has a number out of range", .tensor = names[2],
           .at = 2, .value = INT64_C(1) << 31);
    REFUSE(KR_ERR_FORMAT, "tensor 'generation.text' holds 256, which is not a byte", .tensor = names[3], .at = 0,
           .value = 256);
    REFUSE(KR_ERR_FORMAT, "tensor 'generation.totals' has a negative count", .tensor = names[0], .at = 1, .value = -1);
    REFUSE(KR_ERR_FORMAT, "tensor 'generation.totals' has a negative count", .tensor = names[0], .at = 2, .value = -1);
    free(before.data);
    kr_generation_destroy(source);
    kr_generation_destroy(g);
    end_scene(&s);
    end_folder();
}

/* Rows that share a state share what is pending. */
TEST(forged_before_the_fork)
{
    begin_folder();
    scene s;
    begin_scene(&s, KR_FAMILY_MAMBA1, 3);
    kr_generation *g = make(&s);
    kr_generation_feed_text(g, "abc", 3);
    IGNORE(kr_generation_save(g, in_folder("chat")));
    file_image before = image_of(g);
    REFUSE(KR_ERR_FORMAT, "row 2 of tensor 'generation.rows' has a number out of range", .tensor = "generation.rows",
           .at = 18, .value = 'a');
    REFUSE(KR_ERR_FORMAT, "row 1 of tensor 'generation.rows' has a number out of range", .tensor = "generation.rows",
           .at = 10, .value = 1);
    free(before.data);
    kr_generation_destroy(g);

    kr_generation *initial = make(&s), *other = make(&s);
    CHECK(kr_generation_save(initial, in_folder("initial")) == KR_OK, "%s", kr_ctx_message(s.ctx));
    kr_generation_feed_text(other, "abc", 3);
    CHECK(kr_generation_load(other, in_folder("initial")) == KR_OK && kr_generation_next(other) != KR_OK, "as new");
    CHECK_ERROR(s.ctx, KR_ERR_STATE, "generation.next: no prompt was fed; feed at least one token, such as BOS");
    kr_generation_destroy(initial);
    kr_generation_destroy(other);
    end_scene(&s);
    end_folder();
}

TEST(other_files)
{
    begin_folder();
    scene s;
    begin_scene(&s, KR_FAMILY_MAMBA2, 1);
    kr_generation *g = make(&s);
    kr_generation_feed_text(g, "abc", 3);
    IGNORE(kr_generation_next(g));
    IGNORE(kr_state_save(g->batch->live, s.net, in_folder("state")));
    IGNORE(kr_generation_save(g, in_folder("chat")));
    file_image before = image_of(g);
    char message[700];
    snprintf(message, sizeof message,
             "generation.load: %s: not a generation file of Krait: metadata 'format' is not 'krait.generation'",
             in_folder("state"));
    IGNORE(kr_generation_load(g, in_folder("state")));
    CHECK_ERROR(s.ctx, KR_ERR_FORMAT, message);
    snprintf(message, sizeof message, "generation.load: tensor_file: cannot open %s: no such file or directory",
             in_folder("none"));
    IGNORE(kr_generation_load(g, in_folder("none")));
    CHECK_ERROR(s.ctx, KR_ERR_IO, message);
    forge(s.ctx, in_folder("chat"), in_folder("forged"), EXTRAS, names,
          &(forgery){ .tensor = "generation.rows", .value = -1 });
    snprintf(message, sizeof message, "generation.load: %s: the state is not initial, but no token is pending",
             in_folder("forged"));
    IGNORE(kr_generation_load(g, in_folder("forged")));
    CHECK_ERROR(s.ctx, KR_ERR_FORMAT, message);
    IGNORE(kr_generation_load(g, NULL));
    CHECK_ERROR(s.ctx, KR_ERR_ARG, "generation.load: tensor_file: path is NULL");
    IGNORE(kr_generation_save(g, NULL));
    CHECK_ERROR(s.ctx, KR_ERR_ARG, "generation.save: tensor_file: cannot write a file: path is NULL");
    s.o.n_samples = 2;
    kr_generation *two = make(&s);
    IGNORE(kr_generation_load(two, in_folder("chat")));
    snprintf(message, sizeof message, "generation.load: %s: the file has 1 rows, but this generation has n_samples = 2",
             in_folder("chat"));
    CHECK_ERROR(s.ctx, KR_ERR_ARG, message);
    kr_network *third = chat_network(s.ctx, KR_FAMILY_MAMBA3, KR_DTYPE_F32, 0, NULL);
    kr_generation *wrong = kr_generation_create(s.ctx, third, s.tok, &s.o);
    IGNORE(kr_generation_load(wrong, in_folder("chat")));
    CHECK_ERROR_HAS(s.ctx, KR_ERR_FORMAT, "the state belongs to another architecture");
    CHECK(is_unchanged(g, &before), "none of this changed anything");
    free(before.data);
    kr_generation_destroy(wrong);
    kr_network_destroy(third);
    kr_generation_destroy(two);
    kr_generation_destroy(g);
    end_scene(&s);
    end_folder();
}

/* Every byte of the file matters, but for the header's padding. */
TEST(damaged_generations)
{
    begin_folder();
    scene s;
    begin_scene(&s, KR_FAMILY_MAMBA2, 2);
    kr_generation *g = make(&s), *into = make(&s);
    kr_generation_feed_text(g, "abc", 3);
    for (int i = 0; i < 3; i++) IGNORE(kr_generation_next(g));
    kr_generation_feed_text(into, "x", 1);
    file_image image = image_of(g), before = image_of(into);
    uint64_t header;
    memcpy(&header, image.data, 8);
    const size_t head = 8 + (size_t)header;
    size_t text = head;
    while (image.data[text - 1] == ' ') text--;
    for (size_t at = 0; at < image.bytes; at += at < head ? (kr_test_quick() ? 17 : 3) : (kr_test_quick() ? 61 : 7)) {
        if (at >= text && at < head) continue;
        image.data[at] ^= (unsigned char)(1 + kr_test_below(255));
        file_image damaged = { malloc(image.bytes), image.bytes };
        memcpy(damaged.data, image.data, image.bytes);
        write_image(in_folder("damaged"), damaged.data, damaged.bytes);
        CHECK(kr_generation_load(into, in_folder("damaged")) != KR_OK, "byte %zu", at);
        kr_ctx_clear(s.ctx);
        free(damaged.data);
        free(image.data);
        image = image_of(g);
    }
    for (size_t n = 0; n < image.bytes; n += 1 + image.bytes / 20) {
        write_image(in_folder("damaged"), image.data, n);
        CHECK(kr_generation_load(into, in_folder("damaged")) != KR_OK, "%zu bytes of it", n);
        kr_ctx_clear(s.ctx);
    }
    CHECK(is_unchanged(into, &before), "a refused file changed something");
    free(before.data);
    free(image.data);
    kr_generation_destroy(g);
    kr_generation_destroy(into);
    end_scene(&s);
    end_folder();
}
