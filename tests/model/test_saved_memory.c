/* test_saved_memory.c - states, models and tensors saved to memory and loaded from it: the bytes of the files, the same
 * objects, the same errors. */
#define _DEFAULT_SOURCE
#include "tests/saved_image.h"
#include "tests/memory.h"
#include "tests/model/folders.h"

enum { VOCAB = 32 };

static kr_ctx *ctx;

static void begin(void)
{
    begin_folder();
    ctx = kr_test_ctx(1, NULL);
}

static void end(void)
{
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
    end_folder();
}

static kr_model *make_model(kr_family family, kr_dtype dtype)
{
    kr_model_config *config = kr_model_config_create(ctx);
    config->family = family;
    kr_model_config_set_d_model(config, 8);
    config->layers->n_layers = 2;
    config->mamba1->state_rank = config->mamba2->state_rank = config->mamba3->state_rank = 4;
    config->mamba2->per_head_dim = config->mamba3->per_head_dim = 4;
    config->mamba1->dtype = config->mamba2->dtype = config->mamba3->dtype = dtype;
    config->network->vocab_size = VOCAB;
    kr_model *model = kr_model_create(ctx, config);
    kr_model_config_destroy(config);
    CHECK_OK(ctx);
    return model;
}

/* The logits of a short text. */
static double *logits_of(const kr_model *model, int64_t *count)
{
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    const int32_t ids[4] = { 1, 9, 3, 7 };
    kr_tensor *y =
        kr_network_forward(t, kr_model_network(model), kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(1, 4), ids), NULL).y;
    CHECK_OK(ctx);
    double *values = kr_test_values(y);
    *count = kr_tensor_count(y);
    kr_tape_destroy(t);
    return values;
}

/* ---- states ---- */

static kr_state *used_state(const kr_network *net)
{
    const int32_t ids[6] = { 1, 2, 3, 4, 5, 6 };
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_state *state = kr_network_state(net, 2);
    kr_call call;
    kr_call_init(&call);
    call.state = state;
    kr_state_copy(state, kr_network_forward(t, net, kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(2, 3), ids), &call).state);
    kr_tape_destroy(t);
    CHECK_OK(ctx);
    return state;
}

TEST(states_are_saved_to_memory_as_to_a_file)
{
    begin();
    for (int f = 0; f < 3; f++)
        for (int is_used = 0; is_used < 2; is_used++) {
            kr_model *model = make_model((kr_family)f, f == 1 ? KR_DTYPE_BF16 : KR_DTYPE_F32);
            const kr_network *net = kr_model_network(model);
            kr_state *state = is_used ? used_state(net) : kr_network_state(net, 1), *again;
            file_image image, second;
            CHECK(kr_state_save(state, net, in_folder("s")) == KR_OK, "%s", kr_ctx_message(ctx));
            SAVE_IMAGE(ctx, image, kr_state_save_memory(state, net, out, bytes, &needed));
            check_image("state", &image, in_folder("s"));
            again = kr_state_load_memory(ctx, net, image.data, image.bytes);
            CHECK_OK(ctx);
            SAVE_IMAGE(ctx, second, kr_state_save_memory(again, net, out, bytes, &needed));
            check_image("loaded state", &second, in_folder("s"));
            kr_state_destroy(again);
            kr_state_destroy(state);
            kr_model_destroy(model);
            free(image.data);
            free(second.data);
        }
    end();
}

TEST(broken_states_in_memory_are_refused)
{
    begin();
    kr_model *model = make_model(KR_FAMILY_MAMBA2, KR_DTYPE_F32);
    const kr_network *net = kr_model_network(model);
    kr_state *state = used_state(net);
    file_image image;
    SAVE_IMAGE(ctx, image, kr_state_save_memory(state, net, out, bytes, &needed));
    for (size_t cut = 1; cut < image.bytes; cut = cut * 3 + 1) {
        unsigned char *part = malloc(image.bytes - cut); /* of its size, for sanitizers to guard */
        memcpy(part, image.data, image.bytes - cut);
        CHECK(!kr_state_load_memory(ctx, net, part, image.bytes - cut), "%zu bytes fewer", cut);
        CHECK_ERROR_HAS(ctx, KR_ERR_FORMAT, "state.load: tensor_file: ");
        free(part);
    }
    image.data[image.bytes - 1] ^= 1;
    CHECK(!kr_state_load_memory(ctx, net, image.data, image.bytes), "a changed byte");
    CHECK_ERROR(ctx, KR_ERR_FORMAT, "state.load: the checksum does not match: the file was changed or damaged");
    CHECK(!kr_state_load_memory(ctx, net, NULL, 8), "NULL");
    CHECK_ERROR(ctx, KR_ERR_ARG, "state.load: tensor_file: data is NULL");
    CHECK(kr_state_save_memory(state, net, NULL, 0, NULL) == KR_ERR_ARG, "needed");
    CHECK_ERROR(ctx, KR_ERR_ARG, "state.save: needed is NULL");
    free(image.data);
    kr_state_destroy(state);
    kr_model_destroy(model);
    end();
}

/* ---- models ---- */

static void check_model(kr_family family, kr_dtype dtype, kr_container container, kr_layout layout)
{
    kr_model *model = make_model(family, dtype);
    kr_save_options o;
    kr_save_options_init(&o);
    o.container = container;
    o.layout = layout;
    const bool is_torch = container == KR_CONTAINER_TORCH;
    const char *name = is_torch ? "m/pytorch_model.bin" : "m/model.safetensors";
    CHECK(kr_model_save(model, in_folder("m"), &o) == KR_OK, "%s", kr_ctx_message(ctx));
    file_image config, weights;
    size_t other;
    SAVE_IMAGE(ctx, weights, kr_model_save_memory(model, &o, NULL, 0, &other, out, bytes, &needed));
    SAVE_IMAGE(ctx, config, kr_model_save_memory(model, &o, out, bytes, &needed, NULL, 0, &other));
    CHECK(other == weights.bytes, "the sizes of both are given");
    check_image("weights", &weights, in_folder(name));
    check_image("config", &config, in_folder("m/config.json"));
    kr_model *again = kr_model_load_memory(ctx, (char *)config.data, config.bytes, weights.data, weights.bytes, NULL);
    CHECK(again != NULL, "%s", kr_ctx_message(ctx));
    memset(weights.data, 0xff, weights.bytes); /* it was copied */
    int64_t count, count_again;
    double *want = logits_of(model, &count), *got = logits_of(again, &count_again);
    CHECK_CLOSE("logits", got, want, count, NULL, 0, 0);
    free(want);
    free(got);
    free(config.data);
    free(weights.data);
    kr_model_destroy(again);
    kr_model_destroy(model);
    drop_folder("m");
}

TEST(models_are_saved_to_memory_as_to_a_folder)
{
    begin();
    check_model(KR_FAMILY_MAMBA1, KR_DTYPE_F32, KR_CONTAINER_SAFETENSORS, KR_LAYOUT_HF);
    check_model(KR_FAMILY_MAMBA2, KR_DTYPE_BF16, KR_CONTAINER_SAFETENSORS, KR_LAYOUT_OFFICIAL);
    check_model(KR_FAMILY_MAMBA2, KR_DTYPE_F32, KR_CONTAINER_TORCH, KR_LAYOUT_HF);
    check_model(KR_FAMILY_MAMBA3, KR_DTYPE_F32, KR_CONTAINER_SAFETENSORS, KR_LAYOUT_OFFICIAL);
    end();
}

TEST(models_of_another_type_are_saved_to_memory)
{
    begin();
    kr_model *model = make_model(KR_FAMILY_MAMBA2, KR_DTYPE_F32);
    kr_save_options o;
    kr_save_options_init(&o);
    o.dtype = KR_DTYPE_BF16;
    CHECK(kr_model_save(model, in_folder("m"), &o) == KR_OK, "%s", kr_ctx_message(ctx));
    file_image weights;
    size_t other;
    SAVE_IMAGE(ctx, weights, kr_model_save_memory(model, &o, NULL, 0, &other, out, bytes, &needed));
    check_image("weights", &weights, in_folder("m/model.safetensors"));
    free(weights.data);
    kr_model_destroy(model);
    drop_folder("m");
    end();
}

TEST(model_memory_errors)
{
    begin();
    kr_model *model = make_model(KR_FAMILY_MAMBA2, KR_DTYPE_F32);
    kr_save_options o;
    kr_save_options_init(&o);
    size_t a, b;
    o.max_shard_bytes = 100;
    CHECK(kr_model_save_memory(model, &o, NULL, 0, &a, NULL, 0, &b) == KR_ERR_ARG, "shards");
    CHECK_ERROR(ctx, KR_ERR_ARG, "model.save: max_shard_bytes = 100, but memory takes one file");
    CHECK(kr_model_save_memory(model, NULL, NULL, 0, NULL, NULL, 0, &b) == KR_ERR_ARG, "NULL");
    CHECK_ERROR(ctx, KR_ERR_ARG, "model.save: needed is NULL");
    CHECK(!kr_model_load_memory(ctx, NULL, 0, "x", 1, NULL), "no config");
    CHECK_ERROR(ctx, KR_ERR_ARG, "model.load_memory: config.json: the text is NULL");
    CHECK(!kr_model_load_memory(ctx, "[]", 2, "x", 1, NULL), "no config");
    CHECK_ERROR_HAS(ctx, KR_ERR_FORMAT, "model.load_memory: config.json: ");
    file_image config, weights;
    SAVE_IMAGE(ctx, config, kr_model_save_memory(model, NULL, out, bytes, &needed, NULL, 0, &b));
    SAVE_IMAGE(ctx, weights, kr_model_save_memory(model, NULL, NULL, 0, &a, out, bytes, &needed));
    CHECK(!kr_model_load_memory(ctx, (char *)config.data, config.bytes, NULL, 0, NULL), "no weights");
    CHECK_ERROR(ctx, KR_ERR_ARG, "model.load_memory: tensor_file: data is NULL");
    CHECK(!kr_model_load_memory(ctx, (char *)config.data, config.bytes, weights.data, weights.bytes - 4, NULL), "cut");
    CHECK_ERROR_HAS(ctx, KR_ERR_FORMAT, "model.load_memory: tensor_file: ");
    kr_load_options load;
    kr_load_options_init(&load);
    load.dtype = KR_DTYPE_I32;
    CHECK(!kr_model_load_memory(ctx, (char *)config.data, config.bytes, weights.data, weights.bytes, &load), "i32");
    CHECK_ERROR(ctx, KR_ERR_DTYPE, "model.load_memory: dtype = i32, but must be f32, f64, bf16 or f16");
    free(config.data);
    free(weights.data);
    kr_model_destroy(model);
    end();
}

/* ---- out of memory ---- */

/* Each allocation of a save and a load fails once: an error, and nothing is left. */
TEST(each_allocation_of_saving_and_loading_in_memory_may_fail)
{
    begin();
    kr_model *model = make_model(KR_FAMILY_MAMBA3, KR_DTYPE_F32);
    const kr_network *net = kr_model_network(model);
    kr_state *state = used_state(net);
    static char config[1 << 14], weights[1 << 16], saved[1 << 16];
    size_t n = 1, n_config, n_weights, n_saved;
    for (; n < 2000; n++) {
        drop_scratch(ctx);
        const size_t live = all_memory(ctx).live_bytes;
        kr_ctx_fail_allocation(ctx, n);
        kr_state *again = NULL;
        kr_model *copy = NULL;
        if (kr_state_save_memory(state, net, saved, sizeof saved, &n_saved) == KR_OK &&
            (again = kr_state_load_memory(ctx, net, saved, n_saved)) &&
            kr_model_save_memory(model, NULL, config, sizeof config, &n_config, weights, sizeof weights, &n_weights) ==
                KR_OK)
            copy = kr_model_load_memory(ctx, config, n_config, weights, n_weights, NULL);
        kr_ctx_fail_allocation(ctx, 0);
        const bool done = copy != NULL;
        CHECK(done || kr_ctx_status(ctx) == KR_ERR_NOMEM, "allocation %zu: %s", n, kr_ctx_message(ctx));
        kr_ctx_clear(ctx);
        kr_model_destroy(copy);
        kr_state_destroy(again);
        drop_scratch(ctx);
        CHECK(all_memory(ctx).live_bytes == live, "allocation %zu: %zu bytes are left", n,
              all_memory(ctx).live_bytes - live);
        if (done) break;
    }
    CHECK(n > 50 && n < 2000, "%zu allocations", n);
    kr_state_destroy(state);
    kr_model_destroy(model);
    end();
}

/* ---- tensors ---- */

TEST(tensors_are_saved_to_memory_as_to_a_file)
{
    begin();
    const float floats[6] = { 1, 2, 3, 4, 5, 6 };
    const int64_t integers[2] = { -1, 1 };
    for (int container = KR_CONTAINER_SAFETENSORS; container <= KR_CONTAINER_TORCH; container++) {
        kr_tensor_writer *writer = kr_tensor_writer_create(ctx);
        kr_tensor_writer_add(writer, "a", KR_DTYPE_F32, KR_SHAPE(2, 3), floats);
        kr_tensor_writer_add(writer, "b", KR_DTYPE_I64, KR_SHAPE(2), integers);
        file_image image;
        CHECK(kr_tensor_writer_save(writer, in_folder("x"), (kr_container)container) == KR_OK, "%s",
              kr_ctx_message(ctx));
        SAVE_IMAGE(ctx, image, kr_tensor_writer_save_memory(writer, (kr_container)container, out, bytes, &needed));
        check_image("tensors", &image, in_folder("x"));
        CHECK(kr_tensor_writer_save_memory(writer, (kr_container)container, NULL, 0, NULL) == KR_ERR_ARG, "NULL");
        CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_file: needed is NULL");
        free(image.data);
        kr_tensor_writer_destroy(writer);
    }
    end();
}
