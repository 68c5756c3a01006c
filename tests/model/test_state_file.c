/* test_state_file.c - states saved and loaded: the same to the bit and continued to the bit; everything that is wrong
 * with a file is refused with its reason, and nothing in it crashes the reader or makes it ask for memory. */
#define _POSIX_C_SOURCE 200809L
#include "base/hash.h"
#include "nn/network_impl.h"
#include "tests/temp_folder.h"
#include "tests/memory.h"

#include <krait/network.h>

#include <signal.h>
#include <sys/resource.h>

enum { FAMILIES = 3, D_MODEL = 8, LAYERS = 2, SLOTS = 3, VOCAB = 16 };

/* ---- small networks ---- */

typedef struct build {
    kr_family family;
    kr_dtype dtype;
    int64_t n_virtual, state_rank;
    const kr_class_token *latents; /* NULL: none */
    int n_latents;
    kr_schedule schedule;
} build;

static kr_network *make_network(kr_ctx *ctx, build b)
{
    kr_mamba1_config m1;
    kr_mamba2_config m2;
    kr_mamba3_config m3;
    kr_mamba1_config_init(&m1);
    kr_mamba2_config_init(&m2);
    kr_mamba3_config_init(&m3);
    m1.d_model = m2.d_model = m3.d_model = D_MODEL;
    m1.state_rank = m2.state_rank = m3.state_rank = b.state_rank ? b.state_rank : 4;
    m2.per_head_dim = m3.per_head_dim = 4;
    m1.dtype = m2.dtype = m3.dtype = b.dtype;
    m3.pathway = KR_MAMBA3_PATHWAY_DOUBLE; /* not the zero of its type */
    kr_layers_config layers;
    kr_layers_config_init(&layers);
    layers.block = b.family == KR_FAMILY_MAMBA1   ? kr_mamba1_block(&m1)
                   : b.family == KR_FAMILY_MAMBA2 ? kr_mamba2_block(&m2)
                                                  : kr_mamba3_block(&m3);
    layers.n_layers = LAYERS;
    layers.n_virtual = b.n_virtual ? b.n_virtual : SLOTS;
    layers.schedule = b.schedule;
    layers.latents = b.latents;
    layers.n_latents = b.n_latents;
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &layers;
    config.vocab_size = VOCAB;
    kr_ctx_seed(ctx, 7); /* the same weights from the same build */
    kr_network *net = kr_network_create(ctx, &config);
    CHECK_OK(ctx);
    return net;
}

static kr_network_out forward(kr_tape *t, const kr_network *net, kr_tensor *id_bs, const kr_state *state)
{
    kr_call call;
    kr_call_init(&call);
    call.state = state;
    return kr_network_forward(t, net, id_bs, &call);
}

static kr_tensor *tokens(kr_tape *t, int64_t batch, int64_t len)
{
    int32_t ids[64];
    for (int i = 0; i < 64; i++) ids[i] = (int32_t)kr_test_below(VOCAB);
    return kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(batch, len), ids);
}

/* The caller's own, of two rows, after 5 of 9 tokens. */
static kr_state *used_state(kr_ctx *ctx, const kr_network *net)
{
    kr_state *state = kr_state_create(ctx, kr_network_layers(net), 2);
    kr_state_announce(state, 9);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_state_copy(state, forward(t, net, tokens(t, 2, 5), state).state);
    kr_tape_destroy(t);
    CHECK_OK(ctx);
    return state;
}

static bool same_cursors(const kr_cursors *a, const kr_cursors *b, int64_t nslots)
{
    bool same = a->is_on == b->is_on && a->full_len == b->full_len && a->network == b->network && a->stack == b->stack;
    for (int64_t i = 0; i < nslots; i++) same = same && a->layers[i] == b->layers[i];
    return same;
}

static void check_same(const char *what, const kr_state *got, const kr_state *want)
{
    if (!CHECK(got && want, "%s: a state is NULL", what)) return;
    CHECK(kr_state_same_slots(got, want) && got->batch == want->batch, "%s: %d rows", what, (int)got->batch);
    CHECK(same_cursors(&got->cursors, &want->cursors, want->nslots), "%s: cursors", what);
    for (int64_t s = 0; s < got->nslots; s++) {
        if (want->slots[s].family == KR_FAMILY_MAMBA3)
            CHECK(got->slots[s].mamba3.pathway == want->slots[s].mamba3.pathway, "%s: pathway", what);
        for (int i = 0; i < kr_slot_kind(got, s)->ncache; i++) {
            const kr_tensor *a = got->slots[s].tensors[i], *b = want->slots[s].tensors[i];
            if (b) CHECK_SAME_BITS(what, a, b);
            else CHECK(!a, "%s: slot %d is not initial", what, (int)s);
        }
    }
}

/* ---- there and back ---- */

static const kr_class_token class_tokens[] = { { .kind = KR_CLASS_TOKEN_START },
                                               { .kind = KR_CLASS_TOKEN_CUSTOM, .at = 2 },
                                               { .kind = KR_CLASS_TOKEN_END } };

static void check_round_trip(kr_ctx *ctx, const kr_network *net, const kr_state *state)
{
    drop_scratch(ctx);
    const kr_memory_stats before = kr_ctx_memory(ctx);
    CHECK(kr_state_save(state, net, in_folder("state")) == KR_OK, "%s", kr_ctx_message(ctx));
    drop_scratch(ctx);
    CHECK(kr_ctx_memory(ctx).live_bytes == before.live_bytes, "saving leaves memory");
    kr_state *loaded = kr_state_load(ctx, net, in_folder("state"));
    CHECK_OK(ctx);
    check_same("loaded", loaded, state);
    CHECK(kr_state_bytes(loaded) == kr_state_bytes(state), "%zu bytes", kr_state_bytes(loaded));
    for (int64_t s = 0; s < kr_state_slots(loaded); s++)
        CHECK(!kr_requires_grad(kr_state_cache(loaded, s)->tensors[0]), "a constant");
    kr_state_destroy(loaded);
    drop_scratch(ctx);
    CHECK(kr_ctx_memory(ctx).live_bytes == before.live_bytes, "loading leaves memory");
}

TEST(saved_states_are_the_same)
{
    static const kr_dtype types[] = { KR_DTYPE_F32, KR_DTYPE_F64, KR_DTYPE_BF16 };
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int f = 0; f < FAMILIES; f++)
        for (int d = 0; d < 3; d++) {
            kr_network *net = make_network(ctx, (build){ .family = (kr_family)f, .dtype = types[d] });
            kr_state *state = used_state(ctx, net);
            check_round_trip(ctx, net, state);
            for (int64_t s = 0; s < SLOTS; s++)
                if (f == KR_FAMILY_MAMBA3)
                    state->slots[s].mamba3.pathway = s == 1 ? KR_MAMBA3_PATHWAY_DOUBLE : KR_MAMBA3_PATHWAY_SINGLE;
            state->cursors = (kr_cursors){ true, KR_LENGTH_UNKNOWN, KR_CURSOR_MAX, 3, state->cursors.layers };
            state->cursors.layers[SLOTS - 1] = 17;
            check_round_trip(ctx, net, state);

            /* a slot alone is initial, then all */
            for (int i = 0; i < kr_slot_kind(state, 0)->ncache; i++) {
                kr_param_destroy(state->slots[1].tensors[i]);
                state->slots[1].tensors[i] = NULL;
            }
            check_round_trip(ctx, net, state);
            kr_state_zero(state);
            check_round_trip(ctx, net, state);
            kr_state_destroy(state);
            kr_network_destroy(net);
        }
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
    end_folder();
}

/* From the file as if nothing had happened: outputs, state and the places of class tokens. */
TEST(loaded_states_continue)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(2, NULL);
    for (int f = 0; f < FAMILIES; f++) {
        const build b = { .family = (kr_family)f, .latents = class_tokens, .n_latents = 3 };
        kr_network *net = make_network(ctx, b);
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        kr_state *start = kr_state_create(ctx, kr_network_layers(net), 2);
        kr_state_announce(start, 9);
        kr_tensor *first = tokens(t, 2, 4), *second = tokens(t, 2, 5);
        const kr_network_out on = forward(t, net, first, start);
        CHECK(on.state->cursors.is_on && on.state->cursors.stack == 6, "two class tokens were due");
        const kr_network_out want = forward(t, net, second, on.state);
        CHECK_OK(ctx);
        CHECK(kr_state_save(on.state, net, in_folder("state")) == KR_OK, "%s", kr_ctx_message(ctx));
        file_image once = read_image(in_folder("state"));
        CHECK(kr_state_save(on.state, net, in_folder("state")) == KR_OK, "%s", kr_ctx_message(ctx));
        file_image again = read_image(in_folder("state"));
        CHECK(once.bytes == again.bytes && memcmp(once.data, again.data, once.bytes) == 0, "two saves differ");
        free(once.data);
        free(again.data);

        kr_network *same = make_network(ctx, b); /* another object, the same weights */
        kr_state *loaded = kr_state_load(ctx, same, in_folder("state"));
        CHECK_OK(ctx);
        const kr_network_out got = forward(t, same, second, loaded);
        CHECK_SAME_BITS("y", got.y, want.y);
        check_same("the state after", got.state, want.state);
        CHECK(got.state->cursors.stack == 12, "all class tokens were due");
        kr_tape_destroy(t);
        kr_state_destroy(start);
        kr_state_destroy(loaded);
        kr_network_destroy(net);
        kr_network_destroy(same);
    }
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
    end_folder();
}

/* Strides of any kind are written in order. */
TEST(views_are_saved)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_network *net = make_network(ctx, (build){ .family = KR_FAMILY_MAMBA2 });
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_state *on = forward(t, net, tokens(t, 2, 5), NULL).state;
    kr_state *own = kr_state_create(ctx, kr_network_layers(net), 1);
    kr_state_copy(own, on);
    for (int64_t s = 0; s < SLOTS; s++)
        for (int i = 0; i < 2; i++)
            on->slots[s].tensors[i] = kr_transpose(t, kr_contiguous(t, kr_transpose(t, on->slots[s].tensors[i])));
    CHECK(!kr_tensor_is_contiguous(on->slots[0].tensors[0]), "a view");
    CHECK(kr_state_save(on, net, in_folder("a")) == KR_OK && kr_state_save(own, net, in_folder("b")) == KR_OK, "%s",
          kr_ctx_message(ctx));
    file_image a = read_image(in_folder("a")), b = read_image(in_folder("b"));
    CHECK(a.bytes == b.bytes && memcmp(a.data, b.data, a.bytes) == 0, "the files differ");
    free(a.data);
    free(b.data);
    kr_tape_destroy(t);
    kr_state_destroy(own);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
    end_folder();
}

/* ---- forged files ---- */

static const char *const keys[] = { "format", "version", "family", "architecture", "weights",
                                    "slots",  "batch",   "filled", "pathways",     "cursors" };

/* One change of a file; the checksum is made to fit, unless that is the change. */
typedef struct edit {
    const char *key, *value; /* metadata; value NULL: left out */
    const char *tensor;      /* to be changed: */
    const char *renamed;     /* ... its name; "": left out */
    const kr_shape *shape;   /* ... its shape, of as many elements */
    const kr_dtype *dtype;   /* ... its type, of as many bytes */
    float value_of_7th;      /* ... not 0: an element, in f32 */
    const char *added;       /* one more tensor */
} edit;

static void rewrite(kr_ctx *ctx, const char *from, const char *to, const edit *e)
{
    kr_tensor_file *file = kr_tensor_file_open(ctx, from);
    kr_tensor_writer *w = kr_tensor_writer_create(ctx);
    uint64_t hash = KR_HASH_BEGIN;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const bool is_it = e->key && strcmp(e->key, keys[i]) == 0;
        const char *value = is_it ? e->value : kr_tensor_file_metadata(file, keys[i]);
        if (!value) continue;
        kr_tensor_writer_add_metadata(w, keys[i], value);
        hash = kr_hash_text(kr_hash_text(hash, keys[i]), value);
    }
    float changed[4096];
    for (int64_t i = 0; i < kr_tensor_file_count(file); i++) {
        const kr_tensor_file_item *item = kr_tensor_file_at(file, i);
        const bool is_it = e->tensor && strcmp(e->tensor, item->name) == 0;
        const char *name = is_it && e->renamed ? e->renamed : item->name;
        const kr_shape shape = is_it && e->shape ? *e->shape : item->shape;
        const kr_dtype dtype = is_it && e->dtype ? *e->dtype : item->dtype;
        const void *data = item->data;
        if (!*name) continue;
        if (is_it && e->value_of_7th != 0) {
            memcpy(changed, data, item->bytes);
            changed[6] = e->value_of_7th;
            data = changed;
        }
        kr_tensor_writer_add(w, name, dtype, shape, data);
        hash = kr_hash_word(kr_hash_text(hash, name), (uint64_t)dtype);
        for (int axis = 0; axis < shape.rank; axis++) hash = kr_hash_word(hash, (uint64_t)shape.dims[axis]);
        hash = kr_hash_bytes(hash, data, item->bytes);
    }
    if (e->added) kr_tensor_writer_add(w, e->added, KR_DTYPE_F32, KR_SHAPE(2), changed);
    char text[17];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    const bool is_it = e->key && strcmp(e->key, "checksum") == 0;
    if (!is_it || e->value) kr_tensor_writer_add_metadata(w, "checksum", is_it ? e->value : text);
    IGNORE(kr_tensor_writer_save(w, to, KR_CONTAINER_SAFETENSORS));
    CHECK_OK(ctx);
    kr_tensor_writer_destroy(w);
    kr_tensor_file_close(file);
}

/* The file with this change is refused with "state.load: PATH: text". */
static void refuse(kr_ctx *ctx, const kr_network *net, kr_status status, const char *text, const edit *e)
{
    char message[700];
    const char *path = in_folder("forged");
    snprintf(message, sizeof message, "state.load: %s: %s", path, text);
    rewrite(ctx, in_folder("state"), path, e);
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    CHECK(!kr_state_load(ctx, net, path), "it is taken: %s", text);
    CHECK_ERROR(ctx, status, message);
    CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "memory is left");
}

TEST(forged_files)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_network *net = make_network(ctx, (build){ .family = KR_FAMILY_MAMBA2 });
    kr_state *state = used_state(ctx, net);
    IGNORE(kr_state_save(state, net, in_folder("state")));
    /* without a change the forger's file is a state: its errors are due to the change alone */
    rewrite(ctx, in_folder("state"), in_folder("forged"), &(edit){ .key = NULL });
    kr_state *loaded = kr_state_load(ctx, net, in_folder("forged"));
    CHECK_OK(ctx);
    check_same("rewritten", loaded, state);
    kr_state_destroy(loaded);

#define TEXT(text, ...) refuse(ctx, net, KR_ERR_FORMAT, text, &(edit){ __VA_ARGS__ })
    TEXT("not a state file of Krait: metadata 'format' is not 'krait.state'", .key = "format");
    TEXT("not a state file of Krait: metadata 'format' is not 'krait.state'", .key = "format", .value = "pt");
    TEXT("the state has version '2' of the format, but this library reads version 1", .key = "version", .value = "2");
    TEXT("the state has version '' of the format, but this library reads version 1", .key = "version");
    for (size_t i = 2; i < sizeof keys / sizeof *keys; i++) {
        char text[64];
        snprintf(text, sizeof text, "metadata '%s' is missing", keys[i]);
        refuse(ctx, net, KR_ERR_FORMAT, text, &(edit){ .key = keys[i] });
    }
    TEXT("the state belongs to another architecture: its blocks are 'mamba1', those of the network are 'mamba2'",
         .key = "family", .value = "mamba1");
    TEXT("the state belongs to another architecture: its blocks are 'a?\x5c', those of the network are 'mamba2'",
         .key = "family", .value = "a\x1b\x5c");
    TEXT("the state belongs to another architecture: it has 4 slots, but the network has 3 virtual layers",
         .key = "slots", .value = "4");
    TEXT("the state belongs to another architecture: names, types or shapes of the network's parameters, its schedule "
         "or "
         "its class tokens differ",
         .key = "architecture", .value = "0123456789abcdef");
    TEXT("the state was made with other weights of the same architecture", .key = "weights",
         .value = "0123456789abcdef");

    static const char *const no_counts[] = { "",
                                             "0",
                                             "-1",
                                             "x",
                                             "2 ",
                                             " 2",
                                             "02",
                                             "+2",
                                             "2.0",
                                             "9223372036854775807",
                                             "9007199254740993",
                                             "99999999999999999999",
                                             "-0" };
    for (size_t i = 0; i < sizeof no_counts / sizeof *no_counts; i++) {
        char text[128];
        snprintf(text, sizeof text, "metadata 'batch' is '%s', but must be a positive integer", no_counts[i]);
        refuse(ctx, net, KR_ERR_FORMAT, text, &(edit){ .key = "batch", .value = no_counts[i] });
    }
    TEXT("metadata 'slots' is 'many', but must be a positive integer", .key = "slots", .value = "many");
    static const char *const no_digits[] = { "", "11", "1111", "1 1", "112", "11/" };
    for (size_t i = 0; i < sizeof no_digits / sizeof *no_digits; i++) {
        TEXT("metadata 'filled' is not 3 digits from 0 to 1", .key = "filled", .value = no_digits[i]);
        TEXT("metadata 'pathways' is not 3 digits from 0 to 0", .key = "pathways", .value = no_digits[i]);
    }
    TEXT("metadata 'pathways' is not 3 digits from 0 to 0", .key = "pathways", .value = "010");

#define CURSORS(n, text)                                                                                               \
    TEXT("metadata 'cursors': number " n " is missing or out of range", .key = "cursors", .value = text)
    CURSORS("0", "");
    CURSORS("0", "2 9 0 0 0 0 0");
    CURSORS("0", "-1 9 0 0 0 0 0");
    CURSORS("1", "1");
    CURSORS("1", "1 -2 0 0 0 0 0");
    CURSORS("1", "1  9 0 0 0 0 0");
    CURSORS("2", "1 9 -1 0 0 0 0");
    CURSORS("3", "1 9 0 9007199254740993 0 0 0");
    CURSORS("4", "1 9 0 0");
    CURSORS("6", "1 9 0 0 0 0");
    CURSORS("6", "1 9 0 0 0 0 ");
    TEXT("metadata 'cursors' has more than 7 numbers", .key = "cursors", .value = "1 9 0 0 0 0 0 0");
    TEXT("metadata 'cursors' has more than 7 numbers", .key = "cursors", .value = "1 9 0 0 0 0 0 ");

    const kr_shape flat = KR_SHAPE(192), swapped = KR_SHAPE(2, 4, 24);
    refuse(ctx, net, KR_ERR_SHAPE, "tensor 'slot.1.conv' is [192], but must be [2, 24, 4]",
           &(edit){ .tensor = "slot.1.conv", .shape = &flat });
    refuse(ctx, net, KR_ERR_SHAPE, "tensor 'slot.1.conv' is [2, 4, 24], but must be [2, 24, 4]",
           &(edit){ .tensor = "slot.1.conv", .shape = &swapped });
    refuse(ctx, net, KR_ERR_SHAPE, "tensor 'slot.0.conv' is [2, 24, 4], but must be [9007199254740992, 24, 4]",
           &(edit){ .key = "batch", .value = "9007199254740992" });
    const kr_dtype i32 = KR_DTYPE_I32;
    refuse(ctx, net, KR_ERR_DTYPE, "tensor 'slot.2.ssm' is of the type I32, which a network of f32 does not have",
           &(edit){ .tensor = "slot.2.ssm", .dtype = &i32 });
    TEXT("tensor 'slot.0.ssm' is missing", .tensor = "slot.0.ssm", .renamed = "");
    TEXT("tensor 'slot.2.conv' is missing", .tensor = "slot.2.conv", .renamed = "slot.02.conv");
    TEXT("tensor 'slot.1.conv' is in the file, but no slot of this state has it", .key = "filled", .value = "101");
    static const char *const strange[] = { "x",           "slot.",
                                           "slot.3.conv", "slot.-1.conv",
                                           "slot.0.v",    "slot.0.convx",
                                           "slot.0",      "slot.99999999999999999999.conv",
                                           "slot.00.conv" };
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
        char text[128];
        snprintf(text, sizeof text, "tensor '%s' is in the file, but no slot of this state has it", strange[i]);
        refuse(ctx, net, KR_ERR_FORMAT, text, &(edit){ .added = strange[i] });
    }
    TEXT("the checksum does not match: the file was changed or damaged", .key = "checksum");
    TEXT("the checksum does not match: the file was changed or damaged", .key = "checksum",
         .value = "0123456789abcdef");
    refuse(ctx, net, KR_ERR_NUMERIC, "tensor 'slot.1.conv' [2, 24, 4] holds nan at [0, 1, 2]",
           &(edit){ .tensor = "slot.1.conv", .value_of_7th = NAN });
    refuse(ctx, net, KR_ERR_NUMERIC, "tensor 'slot.2.ssm' [2, 4, 4, 4] holds -inf at [0, 0, 1, 2]",
           &(edit){ .tensor = "slot.2.ssm", .value_of_7th = -INFINITY });
    kr_state_destroy(state);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
    end_folder();
}

/* ---- other networks, other files, other paths ---- */

static void refuse_whole(kr_ctx *ctx, const kr_network *net, const char *path, kr_status status, const char *format)
{
    char message[700];
    snprintf(message, sizeof message, format, path);
    CHECK(!kr_state_load(ctx, net, path), "it is taken");
    CHECK_ERROR(ctx, status, message);
}

TEST(other_networks)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_network *net = make_network(ctx, (build){ .family = KR_FAMILY_MAMBA2, .latents = class_tokens, .n_latents = 2 });
    kr_state *state = used_state(ctx, net);
    IGNORE(kr_state_save(state, net, in_folder("state")));
    const kr_class_token moved[] = { { .kind = KR_CLASS_TOKEN_START }, { .kind = KR_CLASS_TOKEN_CUSTOM, .at = 3 } };
    const struct {
        build b;
        const char *format;
    } rows[] = {
        { { .family = KR_FAMILY_MAMBA1, .latents = class_tokens, .n_latents = 2 },
          "state.load: %s: the state belongs to another architecture: its blocks are 'mamba2', those of the network "
          "are "
          "'mamba1'" },
        { { .family = KR_FAMILY_MAMBA2, .latents = class_tokens, .n_latents = 2, .n_virtual = 5 },
          "state.load: %s: the state belongs to another architecture: it has 3 slots, but the network has 5 virtual "
          "layers" },
#define DIFFERS                                                                                                        \
    "state.load: %s: the state belongs to another architecture: names, types or shapes of the network's parameters, "  \
    "its "                                                                                                             \
    "schedule or its class tokens differ"
        { { .family = KR_FAMILY_MAMBA2, .latents = class_tokens, .n_latents = 2, .state_rank = 8 }, DIFFERS },
        { { .family = KR_FAMILY_MAMBA2, .latents = class_tokens, .n_latents = 2, .dtype = KR_DTYPE_F64 }, DIFFERS },
        { { .family = KR_FAMILY_MAMBA2, .latents = class_tokens, .n_latents = 2, .schedule = KR_SCHEDULE_STRETCHED },
          DIFFERS },
        { { .family = KR_FAMILY_MAMBA2, .latents = class_tokens, .n_latents = 3 }, DIFFERS },
        { { .family = KR_FAMILY_MAMBA2, .latents = moved, .n_latents = 2 }, DIFFERS },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kr_network *other = make_network(ctx, rows[i].b);
        refuse_whole(ctx, other, in_folder("state"), KR_ERR_FORMAT, rows[i].format);
        kr_network_destroy(other);
    }
    /* the least change of a weight is another network; undone, it is the same again */
    kr_tensor *weight = kr_params_at(kr_network_params(net), kr_params_count(kr_network_params(net)) - 1)->tensor;
    uint32_t *bits = kr_test_copy(weight), *last = bits + kr_tensor_count(weight) - 1;
    *last ^= 1;
    kr_test_write(weight, bits);
    refuse_whole(ctx, net, in_folder("state"), KR_ERR_FORMAT,
                 "state.load: %s: the state was made with other weights of the same architecture");
    *last ^= 1;
    kr_test_write(weight, bits);
    kr_state *loaded = kr_state_load(ctx, net, in_folder("state"));
    check_same("the same weights", loaded, state);
    kr_state_destroy(loaded);
    kr_state_destroy(state);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
    end_folder();
}

TEST(other_files_and_arguments)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL), *foreign = kr_test_ctx(1, NULL);
    kr_network *net = make_network(ctx, (build){ .family = KR_FAMILY_MAMBA2 }),
               *far = make_network(foreign, (build){ .family = KR_FAMILY_MAMBA2 });
    kr_network *other = make_network(ctx, (build){ .family = KR_FAMILY_MAMBA1 });
    kr_state *state = used_state(ctx, net);

    refuse_whole(ctx, net, in_folder("none"), KR_ERR_IO,
                 "state.load: tensor_file: cannot open %s: no such file or directory");
    write_image(in_folder("text"), "hello, world", 12);
    refuse_whole(ctx, net, in_folder("text"), KR_ERR_FORMAT,
                 "state.load: tensor_file: %s: neither safetensors nor a torch file");
    kr_tensor_writer *w = kr_tensor_writer_create(ctx);
    kr_tensor_writer_add(w, "slot.0.conv", KR_DTYPE_F32, KR_SHAPE(2), (float[]){ 1, 2 });
    IGNORE(kr_tensor_writer_save(w, in_folder("other"), KR_CONTAINER_SAFETENSORS));
    kr_tensor_writer_destroy(w);
    refuse_whole(ctx, net, in_folder("other"), KR_ERR_FORMAT,
                 "state.load: %s: not a state file of Krait: metadata 'format' is not 'krait.state'");
    CHECK(!kr_state_load(ctx, net, NULL), "NULL");
    CHECK_ERROR(ctx, KR_ERR_ARG, "state.load: tensor_file: path is NULL");
    CHECK(!kr_state_load(ctx, NULL, in_folder("other")), "NULL");
    CHECK_ERROR(ctx, KR_ERR_ARG, "state.load: the network is NULL");
    CHECK(!kr_state_load(ctx, far, in_folder("other")), "another context");
    CHECK_ERROR(ctx, KR_ERR_STATE, "state.load: the network belongs to another context");

    CHECK(kr_state_save(NULL, net, in_folder("x")) == KR_ERR_ARG, "NULL");
    CHECK(kr_state_save(state, NULL, in_folder("x")) == KR_ERR_ARG, "NULL");
    CHECK_ERROR(ctx, KR_ERR_ARG, "state.save: the network is NULL");
    IGNORE(kr_state_save(state, far, in_folder("x")));
    CHECK_ERROR(ctx, KR_ERR_STATE, "state.save: the network belongs to another context");
    IGNORE(kr_state_save(state, other, in_folder("x")));
    CHECK_ERROR(ctx, KR_ERR_ARG,
                "state.save: the state has 3 slots of the family mamba2, but the network has 3 of mamba1");
    kr_network *large = make_network(ctx, (build){ .family = KR_FAMILY_MAMBA2, .state_rank = 8 });
    IGNORE(kr_state_save(state, large, in_folder("x")));
    CHECK_ERROR(ctx, KR_ERR_SHAPE, "state.save: tensor 'slot.0.conv' is [2, 24, 4], but must be [2, 32, 4]");
    kr_network_destroy(large);
    kr_network *wide = make_network(ctx, (build){ .family = KR_FAMILY_MAMBA2, .dtype = KR_DTYPE_F64 });
    IGNORE(kr_state_save(state, wide, in_folder("x")));
    CHECK_ERROR(ctx, KR_ERR_DTYPE,
                "state.save: tensor 'slot.0.conv' is of the type f32, which a network of f64 does not have");
    kr_network_destroy(wide);
    IGNORE(kr_state_save(state, net, NULL));
    CHECK_ERROR(ctx, KR_ERR_ARG, "state.save: tensor_file: cannot write a file: path is NULL");
    char message[700];
    snprintf(message, sizeof message, "state.save: tensor_file: cannot write %s: no such file or directory",
             in_folder("no/x"));
    IGNORE(kr_state_save(state, net, in_folder("no/x")));
    CHECK_ERROR(ctx, KR_ERR_IO, message);
    kr_test_put(kr_state_cache(state, 1)->tensors[1], 5, NAN);
    IGNORE(kr_state_save(state, net, in_folder("x")));
    CHECK_ERROR(ctx, KR_ERR_NUMERIC, "state.save: tensor 'slot.1.ssm' [2, 4, 4, 4] holds nan at [0, 0, 1, 1]");
    CHECK(files_in_folder(false) == 2, "none of these left a file");

    kr_state_destroy(state);
    kr_network_destroy(net);
    kr_network_destroy(other);
    kr_network_destroy(far);
    kr_ctx_destroy(ctx);
    kr_ctx_destroy(foreign);
    end_folder();
}

/* ---- damage ---- */

/* The file is refused, or it is the state that was saved; which of them. */
static bool is_refused(kr_ctx *ctx, const kr_network *net, const kr_state *want, const unsigned char *data,
                       size_t bytes)
{
    write_image(in_folder("damaged"), data, bytes);
    drop_scratch(ctx);
    const size_t blocks = kr_ctx_memory(ctx).live_blocks, live = kr_ctx_memory(ctx).live_bytes;
    kr_state *loaded = kr_state_load(ctx, net, in_folder("damaged"));
    CHECK((loaded != NULL) == !kr_ctx_failed(ctx), "a result and an error");
    if (loaded) check_same("taken", loaded, want);
    const bool refused = !loaded;
    kr_ctx_clear(ctx);
    kr_state_destroy(loaded);
    drop_scratch(ctx);
    CHECK(kr_ctx_memory(ctx).live_blocks == blocks && kr_ctx_memory(ctx).live_bytes == live, "memory is left");
    return refused;
}

TEST(damaged_files)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int f = 0; f < FAMILIES; f++) {
        kr_network *net = make_network(ctx, (build){ .family = (kr_family)f });
        kr_state *state = used_state(ctx, net);
        IGNORE(kr_state_save(state, net, in_folder("state")));
        file_image image = read_image(in_folder("state"));
        uint64_t header;
        memcpy(&header, image.data, 8);
        const size_t head = 8 + (size_t)header;
        size_t text = head; /* without its padding */
        while (image.data[text - 1] == ' ') text--;
        CHECK(text < head, "no padding to damage");

        CHECK(!is_refused(ctx, net, state, image.data, image.bytes), "the whole file");
        for (size_t n = 0; n < 16; n++)
            CHECK(is_refused(ctx, net, state, image.data, n * image.bytes / 16), "%zu sixteenths", n);
        CHECK(is_refused(ctx, net, state, image.data, image.bytes - 1) && is_refused(ctx, net, state, image.data, head),
              "truncated");

        const int rounds = kr_test_quick() ? 1 : 3;
        for (size_t at = 0; at < image.bytes; at += at < head ? 1 : 13)
            for (int round = 0; round < rounds; round++) {
                const unsigned char kept = image.data[at];
                image.data[at] = (unsigned char)(kept ^ (1 + kr_test_below(255)));
                const unsigned char now = image.data[at];
                const bool is_space = now == '\t' || now == '\n' || now == '\r';
                const bool is_padding = at >= text && at < head && is_space;
                CHECK(is_refused(ctx, net, state, image.data, image.bytes) == !is_padding,
                      "byte %zu from 0x%02x to 0x%02x %s", at, kept, now, is_padding ? "is refused" : "is taken");
                image.data[at] = kept;
            }
        for (size_t at = text; at < head; at++) { /* JSON's other spaces are as good */
            image.data[at] = (unsigned char)"\t\n\r"[at % 3];
            CHECK(!is_refused(ctx, net, state, image.data, image.bytes), "another padding");
        }
        free(image.data);
        kr_state_destroy(state);
        kr_network_destroy(net);
    }
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
    end_folder();
}

TEST(full_disk_leaves_the_old_state)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_network *net = make_network(ctx, (build){ .family = KR_FAMILY_MAMBA3 });
    kr_state *state = used_state(ctx, net), *next = used_state(ctx, net);
    const char *path = in_folder("state");
    IGNORE(kr_state_save(state, net, path));
    struct rlimit before, limit;
    getrlimit(RLIMIT_FSIZE, &before);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (int i = 0; i < 4; i++) {
        limit = before;
        limit.rlim_cur = (rlim_t)(600 * i);
        setrlimit(RLIMIT_FSIZE, &limit);
        const kr_status status = kr_state_save(next, net, path);
        setrlimit(RLIMIT_FSIZE, &before);
        char message[700];
        snprintf(message, sizeof message, "state.save: tensor_file: cannot write %s: file too large", path);
        CHECK(status == KR_ERR_IO, "a limit of %d bytes", 600 * i);
        CHECK_ERROR(ctx, KR_ERR_IO, message);
        kr_state *loaded = kr_state_load(ctx, net, path);
        check_same("the old state", loaded, state);
        kr_state_destroy(loaded);
        CHECK(files_in_folder(false) == 1, "a file is left");
    }
    signal(SIGXFSZ, handler);
    CHECK(kr_state_save(next, net, path) == KR_OK, "%s", kr_ctx_message(ctx));
    kr_state *loaded = kr_state_load(ctx, net, path);
    check_same("the new state", loaded, next);
    kr_state_destroy(loaded);
    kr_state_destroy(state);
    kr_state_destroy(next);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
    end_folder();
}

TEST(every_allocation_may_fail)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_network *net = make_network(ctx, (build){ .family = KR_FAMILY_MAMBA3 });
    kr_state *state = used_state(ctx, net);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_state *view = kr_state_detach(t, state); /* whose first tensor has to be copied to be written */
    view->slots[0].tensors[0] = kr_transpose(t, kr_contiguous(t, kr_transpose(t, view->slots[0].tensors[0])));
    const char *path = in_folder("state");
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    size_t n = 1;
    for (; n < 200; n++) {
        kr_ctx_fail_allocation(ctx, n);
        const kr_status status = kr_state_save(view, net, path);
        kr_ctx_fail_allocation(ctx, 0);
        CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "saving, allocation %zu: memory is left", n);
        if (status == KR_OK) break;
        CHECK(status == KR_ERR_NOMEM && files_in_folder(false) == 0, "%s", kr_ctx_message(ctx));
        CHECK_ERROR_HAS(ctx, KR_ERR_NOMEM, "state.save: ");
    }
    CHECK(n > 5 && n < 200, "%zu allocations", n - 1);
    for (n = 1; n < 200; n++) {
        kr_ctx_fail_allocation(ctx, n);
        kr_state *loaded = kr_state_load(ctx, net, path);
        kr_ctx_fail_allocation(ctx, 0);
        const bool done = loaded != NULL;
        if (done) check_same("loaded", loaded, state);
        else CHECK_ERROR_HAS(ctx, KR_ERR_NOMEM, "state.load: ");
        kr_state_destroy(loaded);
        CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "loading, allocation %zu: memory is left", n);
        if (done) break;
    }
    CHECK(n > 2 * SLOTS * 4 && n < 200, "%zu allocations", n - 1);
    kr_tape_destroy(t);
    kr_state_destroy(state);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
    end_folder();
}
