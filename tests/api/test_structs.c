/* test_structs.c - every sized struct, as older and newer programs give it to the function that takes it: one field fewer
 * has that field's default, unknown fields may be 0, and everything else is refused by name.
 */
#define _DEFAULT_SOURCE
#include "base/sized.h"
#include "tests/temp_folder.h"

#include <krait/experimental/check.h>
#include <krait/experimental/json.h>
#include <krait/experimental/train_plan.h>

#define KR_SIZED(id, type) KR_DECLARE_DEFAULTS(type);
#include "base/structs.def"
#undef KR_SIZED

enum { TAIL = 64, TEXT_BYTES = 1 << 14 };

static kr_ctx *ctx;
static kr_tape *tape;
static kr_tokenizer *tok;
static kr_source *source;
static kr_loader *loader;
static kr_network *net;
static kr_model *model;
static char text[TEXT_BYTES]; /* what the last call gave, as text */

/* ---- a world for the calls ---- */

static kr_tensor *some(kr_shape shape)
{
    kr_ctx_seed(ctx, 3);
    return kr_randn(tape, KR_DTYPE_F32, shape);
}

static kr_tensor *ids(void)
{
    static const int32_t list[] = { 1, 2, 3, 4, 5, 6 };
    return kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(2, 3), list);
}

static kr_network *small_network(void)
{
    kr_mamba2_config block;
    kr_mamba2_config_init(&block);
    block.d_model = 16;
    block.per_head_dim = 8;
    kr_layers_config layers;
    kr_layers_config_init(&layers);
    layers.block = kr_mamba2_block(&block);
    layers.n_layers = 1;
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &layers;
    config.vocab_size = 256;
    return kr_network_create(ctx, &config);
}

static void begin(void)
{
    begin_folder();
    ctx = kr_test_ctx(1, NULL);
    kr_ctx_seed(ctx, 1);
    tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    tok = kr_tokenizer_bytes(ctx);
    source = kr_source_string(ctx, "to be, or not to be: that is", 28, tok, NULL);
    kr_loader_options reading;
    kr_loader_options_init(&reading);
    reading.length = 8;
    reading.n_epochs = 1;
    loader = kr_loader_create(source, &reading);
    net = small_network();
    kr_model_config *config = kr_model_config_create(ctx);
    kr_model_config_set_d_model(config, 64);
    config->layers->n_layers = 1;
    config->network->vocab_size = 256;
    model = kr_model_create(ctx, config);
    kr_model_config_destroy(config);
    CHECK_OK(ctx);
}

static void end(void)
{
    CHECK_OK(ctx);
    kr_model_destroy(model);
    kr_network_destroy(net);
    kr_loader_destroy(loader);
    kr_source_destroy(source);
    kr_tokenizer_destroy(tok);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
    remove(in_folder("model/config.json"));
    remove(in_folder("model/model.safetensors"));
    remove(in_folder("model"));
    end_folder();
}

/* ---- what was made, as text ---- */

static bool tell_tensor(const kr_tensor *x)
{
    if (!x) return false;
    size_t at = 0;
    double *values = calloc((size_t)kr_tensor_count(x), sizeof *values);
    kr_tensor_read(x, KR_DTYPE_F64, values, kr_tensor_count(x));
    for (int64_t i = 0; i < kr_tensor_count(x) && at + 32 < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%a ", values[i]);
    free(values);
    return true;
}

static bool tell_params(const kr_params *params)
{
    if (!params) return false;
    kr_params_describe(params, text, sizeof text);
    return true;
}

static bool tell_source(kr_source *s)
{
    if (!s) return false;
    const kr_source_info info = kr_source_info_of(s);
    snprintf(text, sizeof text, "%lld %lld %lld", (long long)info.count, (long long)info.n_features,
             (long long)info.n_ids);
    kr_source_destroy(s);
    return true;
}

static const char *file_with(const char *content, size_t bytes)
{
    FILE *f = fopen(in_folder("file"), "wb");
    CHECK(f && fwrite(content, 1, bytes, f) == bytes && fclose(f) == 0, "no file");
    return in_folder("file");
}

/* ---- the functions that take them ---- */

static bool take_ctx_options(void *o)
{
    kr_ctx *made = kr_ctx_create(o);
    const bool ok = made && !kr_ctx_failed(made);
    snprintf(text, sizeof text, "%s %d", kr_ctx_isa(made), kr_ctx_threads(made));
    if (!ok) kr_fail(ctx, kr_ctx_status(made), "%s", kr_ctx_message(made));
    kr_ctx_destroy(made);
    return ok;
}

static bool take_norm_options(void *o)
{
    return tell_tensor(kr_rms_norm(tape, some(KR_SHAPE(2, 8)), NULL, o));
}

static bool take_trapezoid_options(void *o)
{
    kr_tensor *x = some(KR_SHAPE(1, 2, 3));
    return tell_tensor(kr_trapezoid(tape, x, NULL, x, x, o).da_bsh);
}

static bool take_cross_entropy_options(void *o)
{
    return tell_tensor(kr_cross_entropy(tape, some(KR_SHAPE(2, 3, 9)), ids(), o));
}

static bool take_loss_options(void *o)
{
    return tell_tensor(kr_bce(tape, some(KR_SHAPE(2, 3)), some(KR_SHAPE(2, 3)), o));
}

static bool take_loss_call(void *o)
{
    kr_loss_call *call = o;
    if (call->size > sizeof call->size) call->ids_bs = ids();
    return tell_tensor(kr_network_loss(tape, net, call).loss);
}

#define BLOCK(family)                                                                                                  \
    static bool take_##family##_config(void *o)                                                                        \
    {                                                                                                                  \
        kr_##family##_config *config = o;                                                                              \
        config->d_model = 64;                                                                                          \
        kr_##family *block = kr_##family##_create(ctx, config);                                                        \
        const bool ok = block && tell_params(kr_##family##_params(block));                                             \
        kr_##family##_destroy(block);                                                                                  \
        return ok;                                                                                                     \
    }
BLOCK(mamba1)
BLOCK(mamba2)
BLOCK(mamba3)

static kr_mamba1_config plain_block(void)
{
    kr_mamba1_config block;
    kr_mamba1_config_init(&block);
    block.d_model = 16;
    return block;
}

static bool take_layers_config(void *o)
{
    const kr_mamba1_config block = plain_block();
    kr_layers_config *config = o;
    config->block = kr_mamba1_block(&block);
    config->n_layers = 2;
    kr_layers *layers = kr_layers_create(ctx, config);
    const bool ok = layers && tell_params(kr_layers_params(layers));
    kr_layers_destroy(layers);
    return ok;
}

static bool take_bidi_config(void *o)
{
    const kr_mamba1_config block = plain_block();
    kr_bidi_config *config = o;
    config->block = kr_mamba1_block(&block);
    config->n_layers = 2;
    kr_bidi *bidi = kr_bidi_create(ctx, config);
    const bool ok = bidi && tell_params(kr_bidi_params(bidi));
    kr_bidi_destroy(bidi);
    return ok;
}

static bool take_network_config(void *o)
{
    const kr_mamba1_config block = plain_block();
    kr_layers_config layers;
    kr_layers_config_init(&layers);
    layers.block = kr_mamba1_block(&block);
    layers.n_layers = 1;
    kr_network_config *config = o;
    config->layers = &layers;
    config->vocab_size = 10;
    kr_network *made = kr_network_create(ctx, config);
    const bool ok = made && tell_params(kr_network_params(made));
    kr_network_destroy(made);
    return ok;
}

static bool take_call(void *o)
{
    return tell_tensor(kr_network_forward(tape, net, ids(), o).y);
}

static bool take_param_options(void *o)
{
    kr_params *params = kr_params_create(ctx);
    const bool ok = kr_params_make(params, "x", KR_DTYPE_F32, KR_SHAPE(2, 3), o) && tell_params(params);
    kr_params_destroy(params);
    return ok;
}

static bool take_json_options(void *o)
{
    kr_json *json = kr_json_parse(ctx, "[1, 2]", 6, o);
    snprintf(text, sizeof text, "%d", json ? (int)kr_json_kind_of(json) : -1);
    kr_json_destroy(json);
    return json != NULL;
}

static bool take_model_config(void *o)
{
    kr_mamba2_config block;
    kr_mamba2_config_init(&block);
    block.d_model = 64;
    kr_layers_config layers;
    kr_layers_config_init(&layers);
    layers.n_layers = 1;
    kr_network_config network;
    kr_network_config_init(&network);
    network.vocab_size = 10;
    kr_model_config *config = o;
    config->mamba2 = &block;
    config->layers = &layers;
    config->network = &network;
    return kr_model_config_format(ctx, config, KR_LAYOUT_HF, text, sizeof text, NULL) == KR_OK;
}

static bool take_load_options(void *o)
{
    CHECK(kr_model_save(model, in_folder("model"), NULL) == KR_OK, "%s", kr_ctx_message(ctx));
    kr_model *loaded = kr_model_load(ctx, in_folder("model"), o);
    const bool ok = loaded && tell_params(kr_network_params(kr_model_network(loaded)));
    kr_model_destroy(loaded);
    return ok;
}

static bool take_save_options(void *o)
{
    text[0] = '\0';
    return kr_model_save(model, in_folder("model"), o) == KR_OK;
}

static bool take_encode_options(void *o)
{
    int32_t found[8];
    const int64_t n = kr_tokenizer_encode(tok, "abc", 3, o, found, 8);
    snprintf(text, sizeof text, "%lld", (long long)n);
    return n >= 0;
}

static bool take_text_options(void *o)
{
    return tell_source(kr_source_string(ctx, "some text", 9, tok, o));
}

static bool take_csv_options(void *o)
{
    return tell_source(kr_source_csv(ctx, file_with("a,b\n1,2\n3,4\n", 12), o));
}

static bool take_idx_options(void *o)
{
    static const char images[16 + 4] = { 0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2, 1, 2, 3, 4 };
    return tell_source(kr_source_idx(ctx, file_with(images, sizeof images), NULL, o));
}

static bool take_source_options(void *o)
{
    kr_source_options *options = o;
    static const char ids_of_2_bytes[] = { 1, 0, 2, 0 };
    if (options->size > offsetof(kr_source_options, n_ids)) {
        options->format = KR_SOURCE_FORMAT_RAW_TOKENS;
        options->path = file_with(ids_of_2_bytes, sizeof ids_of_2_bytes);
        options->n_ids = 3;
    }
    return tell_source(kr_source_open(ctx, options));
}

static bool take_loader_options(void *o)
{
    kr_loader_options *options = o;
    options->batch = 1;
    options->length = 4;
    kr_loader *made = kr_loader_create(source, options);
    snprintf(text, sizeof text, "%lld", (long long)(made ? kr_loader_steps_per_epoch(made) : -1));
    kr_loader_destroy(made);
    return made != NULL;
}

static bool take_optimizer_options(void *o)
{
    kr_optimizer *made = kr_optimizer_create(ctx, kr_network_params(net), o);
    if (made) kr_optimizer_describe(made, text, sizeof text);
    kr_optimizer_destroy(made);
    return made != NULL;
}

static bool take_lr_schedule(void *o)
{
    ((kr_lr_schedule *)o)->total_steps = 100;
    snprintf(text, sizeof text, "%g", kr_lr_at(o, 10));
    return kr_lr_check(ctx, o) == KR_OK;
}

static bool take_train_options(void *o)
{
    text[0] = '\0';
    kr_trainer *made = kr_trainer_create(ctx, model, loader, o);
    kr_trainer_destroy(made);
    return made != NULL;
}

static bool take_sampler_options(void *o)
{
    kr_sample samples[2] = { { 0 } };
    kr_sampler *made = kr_sampler_create(ctx, o, 2, 9);
    if (made) CHECK(kr_sampler_next(made, some(KR_SHAPE(2, 9)), samples) == KR_OK, "%s", kr_ctx_message(ctx));
    snprintf(text, sizeof text, "%d %d", (int)samples[0].id, (int)samples[1].id);
    kr_sampler_destroy(made);
    return made != NULL;
}

static bool take_generate_options(void *o)
{
    kr_generation *made = kr_generation_create(ctx, net, tok, o);
    int64_t n = 0;
    if (made) CHECK(kr_generation_feed_text(made, "a", 1) == KR_OK, "%s", kr_ctx_message(ctx));
    while (made && n < 300 && kr_generation_next(made) == KR_OK) n++;
    snprintf(text, sizeof text, "%lld", (long long)n);
    kr_generation_destroy(made);
    return made != NULL;
}

static bool take_check_options(void *o)
{
    kr_check_options *options = o;
    options->kind = KR_CHECK_RECORD;
    text[0] = '\0';
    return kr_check_run(ctx, options, NULL) == KR_OK;
}

static bool take_plan_options(void *o)
{
    kr_plan plan;
    if (kr_plan_make(ctx, kr_model_config_of(model), o, &plan) != KR_OK) return false;
    snprintf(text, sizeof text, "%a %a", plan.step, plan.memory_bytes);
    return true;
}

static bool take_layer_config(void *o)
{
    const kr_mamba1_config block = plain_block();
    kr_layer_config *config = o;
    config->block = kr_mamba1_block(&block);
    kr_layer *layer = kr_layer_create(ctx, config);
    const bool ok = layer && tell_params(kr_layer_params(layer));
    kr_layer_destroy(layer);
    return ok;
}

static bool take_custom_network(void *o)
{
    kr_custom_network *custom = o;
    const kr_network_part part = { .layers = kr_network_layers(net) };
    custom->params = kr_network_params(net);
    custom->n_parts = 1;
    custom->parts = &part;
    custom->vocab_size = 10;
    kr_network *made = kr_network_custom(ctx, custom);
    const bool ok = made && tell_params(kr_network_params(made));
    kr_network_destroy(made);
    return ok;
}

static bool take_dropout_options(void *o)
{
    return tell_tensor(kr_dropout(tape, some(KR_SHAPE(2, 9)), 0.5, o));
}

static void squares(kr_tape *t, void *user, kr_tensor *const *in, kr_tensor **out)
{
    (void)user;
    out[0] = kr_mul(t, in[0], in[0]);
}

static bool take_gradcheck_options(void *o)
{
    kr_tensor *x = some(KR_SHAPE(3));
    kr_gradcheck_result r;
    if (kr_gradcheck(ctx, squares, NULL, 1, &x, 1, o, &r) != KR_OK) return false;
    snprintf(text, sizeof text, "%lld %a", (long long)r.n_compared, r.error);
    return true;
}

static bool take_bidi_call(void *o)
{
    const kr_mamba1_config block = plain_block();
    kr_bidi_config config;
    kr_bidi_config_init(&config);
    config.block = kr_mamba1_block(&block);
    config.n_layers = 2;
    kr_bidi *bidi = kr_bidi_create(ctx, &config);
    const bool ok = tell_tensor(kr_bidi_forward(tape, bidi, some(KR_SHAPE(1, 3, block.d_model)), o).y);
    kr_bidi_destroy(bidi);
    return ok;
}

/* Events of two rows of two tokens, with these options. */
static bool tell_batch(const kr_row_batch_options *options, const kr_row_options *row_options)
{
    const kr_row_event *events;
    int64_t count;
    size_t at = 0;
    kr_row_batch *batch = kr_row_batch_create(ctx, net, NULL, options);
    for (int i = 0; batch && i < 2; i++) {
        kr_row *row = kr_row_create(batch);
        kr_row_feed(row, (const int32_t[]){ 1, 2 }, 2);
        if (kr_row_generate(row, row_options) != KR_OK) break;
    }
    for (int steps = 0; batch && steps < 5 && kr_row_batch_step(batch, &events, &count) == KR_OK; steps++)
        for (int64_t i = 0; i < count; i++)
            at += (size_t)snprintf(text + at, sizeof text - at, "%d %d ", (int)events[i].kind, events[i].sample.id);
    const bool ok = batch && !kr_ctx_failed(ctx);
    kr_row_batch_destroy(batch);
    return ok;
}

static bool take_row_batch_options(void *o)
{
    return tell_batch(o, NULL);
}

static bool take_row_options(void *o)
{
    return tell_batch(NULL, o);
}

static void *no_block(void *user, kr_ctx *of, kr_params *params, const void *config, kr_block_spec *spec)
{
    (void)user, (void)of, (void)params, (void)config, (void)spec;
    return NULL;
}

static kr_block_out no_forward(void *user, kr_tape *t, const void *block, const kr_block_args *args)
{
    (void)user, (void)t, (void)block, (void)args;
    return (kr_block_out){ .y = NULL };
}

static bool take_block_kind_info(void *o)
{
    kr_block_kind_info *info = o;
    kr_family family = KR_FAMILY_NONE;
    info->name = "of_another_size";
    info->config_bytes = sizeof(kr_config_head);
    info->create = no_block;
    info->forward = no_forward;
    const bool ok = kr_block_kind_register(ctx, info, &family) == KR_OK;
    snprintf(text, sizeof text, "%d", (int)family);
    return ok;
}

static bool take_raw_options(void *o)
{
    const kr_shape shape = KR_SHAPE(2, 2);
    kr_tape_reset(tape);
    kr_tensor *x = kr_full(tape, KR_DTYPE_F32, shape, 3), *y = kr_zeros(tape, KR_DTYPE_F32, shape);
    kr_view views[5] = { { 0 } };
    views[0] = kr_view_contiguous(KR_DTYPE_F32, shape, kr_tensor_data(x));
    views[3] = kr_view_contiguous(KR_DTYPE_F32, shape, kr_tensor_data(y));
    if (kr_raw_run(ctx, KR_RAW_NORM, 5, views, o) != KR_OK) return false;
    snprintf(text, sizeof text, "%.9g", kr_tensor_at(y, (int64_t[]){ 1, 1 }));
    return true;
}

static bool take_comm_options(void *o)
{
    kr_comm *comm = kr_comm_create(ctx, o);
    if (!comm) return false;
    snprintf(text, sizeof text, "%s", kr_comm_text(comm));
    kr_comm_destroy(comm);
    return true;
}

static bool take_comm_call(void *o)
{
    kr_comm *comm = kr_comm_create(ctx, NULL);
    const bool ok = kr_comm_end(comm, kr_comm_begin(comm, o)) == KR_OK;
    snprintf(text, sizeof text, "%lld", (long long)kr_comm_info_of(comm).calls);
    kr_comm_destroy(comm);
    return ok;
}

/* ---- all of them ---- */

typedef struct sized {
    const char *name;
    kr_struct_id id;
    size_t bytes;
    const void *defaults;
    bool (*take)(void *object);
    size_t last; /* where the last field begins: all that a program has that was compiled without it */
} sized;

#define ROW(ID, name, field)                                                                                           \
    {                                                                                                                  \
        "kr_" #name, KR_STRUCT_##ID, sizeof(kr_##name), &kr_##name##_defaults, take_##name, offsetof(kr_##name, field) \
    }
static const sized structs[] = {
    ROW(CTX_OPTIONS, ctx_options, backend),
    ROW(NORM_OPTIONS, norm_options, norm_before_gate),
    ROW(TRAPEZOID_OPTIONS, trapezoid_options, dt_max),
    ROW(CROSS_ENTROPY_OPTIONS, cross_entropy_options, scores),
    ROW(LOSS_OPTIONS, loss_options, quantile),
    ROW(LOSS_CALL, loss_call, quantile),
    ROW(MAMBA1_CONFIG, mamba1_config, bcdt_norm_eps),
    ROW(MAMBA2_CONFIG, mamba2_config, path),
    ROW(MAMBA3_CONFIG, mamba3_config, pathway),
    ROW(LAYERS_CONFIG, layers_config, layer_latents),
    ROW(BIDI_CONFIG, bidi_config, latents),
    ROW(NETWORK_CONFIG, network_config, class_tokens),
    ROW(CALL, call, dropout),
    ROW(PARAM_OPTIONS, param_options, is_residual_out),
    ROW(JSON_OPTIONS, json_options, allow_nonfinite),
    ROW(MODEL_CONFIG, model_config, pad),
    ROW(LOAD_OPTIONS, load_options, recompute_budget),
    ROW(SAVE_OPTIONS, save_options, max_shard_bytes),
    ROW(ENCODE_OPTIONS, encode_options, parse_special),
    ROW(TEXT_OPTIONS, text_options, token_path),
    ROW(CSV_OPTIONS, csv_options, scaling),
    ROW(IDX_OPTIONS, idx_options, count),
    ROW(LOADER_OPTIONS, loader_options, split_seed),
    ROW(OPTIMIZER_OPTIONS, optimizer_options, keep_grad),
    ROW(LR_SCHEDULE, lr_schedule, shape),
    ROW(TRAIN_OPTIONS, train_options, dropout),
    ROW(SAMPLER_OPTIONS, sampler_options, seed),
    ROW(GENERATE_OPTIONS, generate_options, stops),
    ROW(CHECK_OPTIONS, check_options, tokens),
    ROW(LAYER_CONFIG, layer_config, residual_in_f32),
    ROW(CUSTOM_NETWORK, custom_network, user),
    ROW(DROPOUT_OPTIONS, dropout_options, first),
    ROW(GRADCHECK_OPTIONS, gradcheck_options, seed),
    ROW(SOURCE_OPTIONS, source_options, separator_id),
    ROW(BIDI_CALL, bidi_call, dropout),
    ROW(ROW_BATCH_OPTIONS, row_batch_options, prefill_tokens),
    ROW(ROW_OPTIONS, row_options, constrain_user),
    ROW(BLOCK_KIND_INFO, block_kind_info, user),
    ROW(RAW_OPTIONS, raw_options, precision),
    ROW(COMM_OPTIONS, comm_options, meet),
    ROW(COMM_CALL, comm_call, source_bytes),
    ROW(PLAN_OPTIONS, plan_options, slow_factors),
};
enum { STRUCTS = sizeof structs / sizeof *structs };

/* Memory of a program whose struct has `size` bytes, of any content behind that. */
static void *given(const sized *s, size_t size)
{
    unsigned char *object = malloc(s->bytes + TAIL);
    memset(object, 0x55, s->bytes + TAIL);
    kr_struct_init(s->id, object, size);
    return object;
}

static size_t size_of(const void *object)
{
    size_t size;
    memcpy(&size, object, sizeof size);
    return size;
}

TEST(every_struct_is_in_the_table)
{
    int n = 0;
#define KR_SIZED(id, type) n++;
#include "base/structs.def"
#undef KR_SIZED
    CHECK(n == STRUCTS, "%d structs, %d tested", n, STRUCTS);
    for (int i = 0; i < STRUCTS; i++) CHECK((int)structs[i].id == i, "%s: id %d", structs[i].name, (int)structs[i].id);
}

TEST(init_writes_the_callers_bytes)
{
    for (int i = 0; i < STRUCTS; i++) {
        const sized *s = &structs[i];
        CHECK(size_of(s->defaults) == s->bytes, "%s: the defaults have size %zu", s->name, size_of(s->defaults));
        unsigned char *object = given(s, s->last);
        CHECK(size_of(object) == s->last && memcmp(object + sizeof(size_t), (const char *)s->defaults + sizeof(size_t),
                                                   s->last - sizeof(size_t)) == 0,
              "%s: one field fewer", s->name);
        for (size_t k = s->last; k < s->bytes + TAIL; k++)
            if (!CHECK(object[k] == 0x55, "%s: byte %zu is written, of %zu", s->name, k, s->last)) break;
        free(object);
        object = given(s, s->bytes + 16);
        for (size_t k = s->bytes; k < s->bytes + 16; k++)
            if (!CHECK(object[k] == 0, "%s: unknown byte %zu is not 0", s->name, k)) break;
        CHECK(object[s->bytes + 16] == 0x55, "%s: a byte behind the end is written", s->name);
        free(object);
    }
    struct {
        size_t size;
        int64_t field;
    } unknown = { 7, 7 };
    kr_struct_init((kr_struct_id)10000, &unknown, sizeof unknown);
    CHECK(unknown.size == sizeof unknown && unknown.field == 0, "a struct that the library does not know");
    kr_struct_init(KR_STRUCT_CALL, NULL, 100);
}

static void refused(const sized *s, void *object, kr_status status, const char *part)
{
    kr_tape_reset(tape);
    CHECK(!s->take(object), "%s of size %zu is taken", s->name, size_of(object));
    CHECK(strstr(kr_ctx_message(ctx), s->name) != NULL, "%s: %s", s->name, kr_ctx_message(ctx));
    CHECK_ERROR_HAS(ctx, status, part);
    free(object);
}

static void *with_size(const sized *s, size_t size)
{
    void *object = given(s, s->bytes);
    memcpy(object, &size, sizeof size);
    return object;
}

TEST(sizes_that_no_struct_has)
{
    begin();
    for (int i = 0; i < STRUCTS; i++) {
        const sized *s = &structs[i];
        char part[160];
        snprintf(part, sizeof part, "%s.size is 0, but the struct has %zu bytes; call %s_init before setting fields",
                 s->name, s->bytes, s->name);
        refused(s, with_size(s, 0), KR_ERR_ARG, part);
        refused(s, with_size(s, 7), KR_ERR_ARG, ".size is 7, but");
        refused(s, with_size(s, 4097), KR_ERR_ARG, ".size is 4097, but");
        refused(s, with_size(s, (size_t)-1), KR_ERR_ARG, "_init before setting fields");
    }
    end();
}

TEST(newer_programs)
{
    begin();
    for (int i = 0; i < STRUCTS; i++) {
        const sized *s = &structs[i];
        unsigned char *object = given(s, s->bytes + 16);
        kr_tape_reset(tape);
        CHECK(s->take(object), "%s: unknown fields that are 0: %s", s->name, kr_ctx_message(ctx));
        object[s->bytes + 3] = 1;
        refused(s, object, KR_ERR_UNSUPPORTED, "the program was built with a newer header");
    }
    end();
}

/* The same as with all fields, whatever is behind the end. */
TEST(one_field_fewer)
{
    begin();
    static char whole[TEXT_BYTES];
    for (int i = 0; i < STRUCTS; i++) {
        const sized *s = &structs[i];
        void *object = given(s, s->bytes);
        kr_tape_reset(tape);
        CHECK(s->take(object), "%s: %s", s->name, kr_ctx_message(ctx));
        memcpy(whole, text, sizeof whole);
        free(object);
        object = given(s, s->last);
        kr_tape_reset(tape);
        CHECK(s->take(object), "%s without its last field: %s", s->name, kr_ctx_message(ctx));
        CHECK(strcmp(whole, text) == 0, "%s without its last field gives\n%s\nnot\n%s", s->name, text, whole);
        free(object);
        CHECK_OK(ctx);
        kr_ctx_clear(ctx);
    }
    end();
}

/* ---- structs without a size ---- */

static void reserved_refused(const char *part)
{
    CHECK(strstr(kr_ctx_message(ctx), "a reserved word of") != NULL, "%s: %s", part, kr_ctx_message(ctx));
    CHECK_ERROR_HAS(ctx, KR_ERR_UNSUPPORTED, part);
    kr_tape_reset(tape);
}

static void no_backward(kr_back *back)
{
    (void)back;
}

TEST(reserved_words_are_checked)
{
    begin();
    kr_mamba2_ssd_input mamba2 = { .x_bshp = some(KR_SHAPE(1, 2, 2, 2)), .reserved = { &ctx } };
    CHECK(!kr_mamba2_ssd_run(tape, &mamba2, kr_ssd_path_default()).y, "taken");
    reserved_refused("mamba2_ssd: ");
    kr_mamba3_double_ssd_input twice = { .reserved = { NULL, NULL, &ctx } };
    CHECK(!kr_mamba3_double_ssd_run(tape, &twice, kr_ssd_path_default()).y, "taken");
    reserved_refused("mamba3_double_ssd: ");
    kr_mamba3_single_ssd_input once = { .reserved = { NULL, &ctx } };
    CHECK(!kr_mamba3_single_ssd_run(tape, &once, kr_ssd_path_default()).y, "taken");
    reserved_refused("mamba3_single_ssd: ");
    kr_selective_scan_input scan = { .reserved = { &ctx } };
    CHECK(!kr_selective_scan(tape, &scan).y_bsi, "taken");
    reserved_refused("selective_scan: ");

    kr_rule rule = { .name = "mine", .backward = no_backward };
    kr_record_args args = { .rule = &rule, .reserved = { &ctx } };
    CHECK(kr_record(tape, &args) == KR_ERR_UNSUPPORTED, "taken");
    reserved_refused("mine: a reserved word of kr_record_args");
    args.reserved[0] = NULL;
    rule.reserved[3] = &ctx;
    CHECK(kr_record(tape, &args) == KR_ERR_UNSUPPORTED, "taken");
    reserved_refused("mine: a reserved word of kr_rule");

    kr_layers_config config;
    kr_layers_config_init(&config);
    config.residual.reserved[1] = 1;
    CHECK(!take_layers_config(&config), "taken");
    reserved_refused("a reserved word of residual is not 0");
    kr_class_token class_token = { .kind = KR_CLASS_TOKEN_START, .reserved = { 1, 0 } };
    kr_layers_config_init(&config);
    config.latents = &class_token;
    config.n_latents = 1;
    CHECK(!take_layers_config(&config), "taken");
    reserved_refused("a reserved word of latents[0] is not 0");
    end();
}
