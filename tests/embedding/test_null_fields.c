/* test_null_fields.c - fields of structs and elements of lists that are NULL though something is needed there: an error that
 * names them. */
#include "tests/harness.h"

static kr_ctx *ctx;
static kr_tape *tape;
static kr_model_config *config;
static kr_model *model;
static kr_params *params;
static kr_tokenizer *tok;
static const kr_network *net;
static const char *const no_texts[1] = { NULL };

static void begin(void)
{
    ctx = kr_test_ctx(1, NULL);
    tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    config = kr_model_config_create(ctx);
    kr_model_config_set_d_model(config, 64);
    config->layers->n_layers = 1;
    config->network->vocab_size = 256;
    model = kr_model_create(ctx, config);
    net = kr_model_network(model);
    params = kr_params_create(ctx);
    tok = kr_tokenizer_bytes(ctx);
    CHECK_OK(ctx);
}

static void end(void)
{
    CHECK_OK(ctx);
    kr_tokenizer_destroy(tok);
    kr_params_destroy(params);
    kr_model_destroy(model);
    kr_model_config_destroy(config);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

/* The result of a call, which is NULL or an error, and the error's text. */
#define NONE(text, call)                                                                                               \
    do {                                                                                                               \
        CHECK(!(call), "a result");                                                                                    \
        refused(text);                                                                                                 \
    } while (0)
#define ERROR(text, call)                                                                                              \
    do {                                                                                                               \
        CHECK((call) == KR_ERR_ARG, "no error");                                                                       \
        refused(text);                                                                                                 \
    } while (0)
static void refused(const char *text)
{
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG, text);
    kr_tape_reset(tape);
}

TEST(null_lists_of_generation)
{
    begin();
    kr_sampler_options sampler;
    kr_sampler_options_init(&sampler);
    sampler.n_biases = 2;
    NONE("n_biases = 2, but biases is NULL", kr_sampler_create(ctx, &sampler, 1, 4));
    kr_generate_options o;
    kr_generate_options_init(&o);
    o.n_stops = 1;
    NONE("n_stops = 1, but stops is NULL", kr_generation_create(ctx, net, tok, &o));
    o.stops = no_texts;
    NONE("stops[0] is NULL", kr_generation_create(ctx, net, tok, &o));
    kr_generate_options_init(&o);
    o.n_stop_ids = 1;
    NONE("n_stop_ids = 1, but stop_ids is NULL", kr_generation_create(ctx, net, tok, &o));
    kr_generation *g = kr_generation_create(ctx, net, tok, NULL);
    ERROR("count = 3, and ids is NULL", kr_generation_feed(g, NULL, 3));
    ERROR("text is NULL", kr_generation_feed_text(g, NULL, 3));
    CHECK(!kr_generation_row(g, -1) && !kr_generation_row(g, 1), "there is one row");
    kr_generation_destroy(g);
    end();
}

TEST(null_parts_of_stacks)
{
    begin();
    kr_layers_config layers;
    kr_layers_config_init(&layers);
    NONE("block.config is NULL", kr_layers_create(ctx, &layers));
    layers.block = kr_mamba2_block(config->mamba2);
    layers.n_layers = 2;
    layers.n_latents = 1;
    NONE("n_latents = 1, but latents is NULL", kr_layers_create(ctx, &layers));
    layers.n_latents = 0;
    layers.n_layer_latents = 1;
    NONE("n_layer_latents = 1, but layer_latents is NULL", kr_layers_create(ctx, &layers));
    layers.n_layer_latents = 0;
    layers.schedule = KR_SCHEDULE_CUSTOM;
    NONE("custom_schedule is NULL", kr_layers_create(ctx, &layers));
    layers.schedule = KR_SCHEDULE_CYCLIC;
    kr_network_config network;
    kr_network_config_init(&network);
    network.input_size = network.output_size = 3;
    NONE("layers is NULL", kr_network_create(ctx, &network));
    network.layers = &layers;
    network.n_class_tokens = 1;
    NONE("n_class_tokens = 1, but class_tokens is NULL", kr_network_create(ctx, &network));
    kr_bidi_config bidi;
    kr_bidi_config_init(&bidi);
    bidi.n_layers = 2;
    NONE("block.config is NULL", kr_bidi_create(ctx, &bidi));
    bidi.block = layers.block;
    bidi.n_latents = 1;
    NONE("n_latents = 1, but latents is NULL", kr_bidi_create(ctx, &bidi));
    bidi.n_latents = 0;
    bidi.schedule = KR_BIDI_SCHEDULE_CUSTOM;
    NONE("custom_schedule is NULL", kr_bidi_create(ctx, &bidi));
    kr_layer_config layer;
    kr_layer_config_init(&layer);
    NONE("block.config is NULL", kr_layer_create(ctx, &layer));
    kr_custom_network custom;
    kr_custom_network_init(&custom);
    NONE("params is NULL", kr_network_custom(ctx, &custom));
    custom.params = kr_network_params(net);
    custom.n_parts = 1;
    custom.vocab_size = 4;
    NONE("n_parts = 1, but parts is NULL", kr_network_custom(ctx, &custom));
    const kr_network_part part = { 0 };
    custom.parts = &part;
    NONE("parts[0] has neither block nor layers", kr_network_custom(ctx, &custom));
    end();
}

TEST(null_lists_of_training)
{
    begin();
    kr_optimizer_options optimizer;
    kr_optimizer_options_init(&optimizer);
    optimizer.kind = KR_OPTIMIZER_MUON;
    optimizer.n_without = 1;
    NONE("n_without = 1, but `without` is NULL", kr_optimizer_create(ctx, kr_network_params(net), &optimizer));
    optimizer.without = no_texts;
    NONE("without[0] is NULL", kr_optimizer_create(ctx, kr_network_params(net), &optimizer));
    kr_param_options param;
    kr_param_options_init(&param);
    param.n_segments = 1;
    NONE("n_segments = 1, but segments is NULL", kr_params_make(params, "x", KR_DTYPE_F32, KR_SHAPE(2, 2), &param));
    const kr_segment nameless = { NULL, 2, true };
    param.segments = &nameless;
    NONE("segment 0 of x needs a name", kr_params_make(params, "x", KR_DTYPE_F32, KR_SHAPE(2, 2), &param));
    kr_source *source = kr_source_string(ctx, "to be, or not to be: that is", 28, tok, NULL);
    kr_loader *loader = kr_loader_create(source, NULL);
    kr_train_options train;
    kr_train_options_init(&train);
    train.steps = 1;
    train.n_extra_files = 1;
    NONE("n_extra_files = 1, but extra_files is NULL", kr_trainer_create(ctx, model, loader, &train));
    train.extra_files = no_texts;
    NONE("extra_files[0] is NULL", kr_trainer_create(ctx, model, loader, &train));
    kr_loader_destroy(loader);
    kr_source_destroy(source);
    const kr_source_info info = { .count = 4, .n_ids = 4 };
    const kr_source_callbacks callbacks = { 0 };
    NONE("callbacks.read is NULL", kr_source_custom(ctx, &info, &callbacks, NULL));
    end();
}

TEST(null_parts_of_sources)
{
    begin();
    static const char *const texts[] = { "path is NULL", "the tokenizer is NULL", "field is NULL", "path is NULL",
                                         "n_ids = 0",    "path is NULL",          "path is NULL" };
    for (int format = KR_SOURCE_FORMAT_TEXT; format <= KR_SOURCE_FORMAT_IDX; format++) {
        kr_source_options o;
        kr_source_options_init(&o);
        o.format = (kr_source_format)format;
        NONE(texts[format], kr_source_open(ctx, &o));
    }
    end();
}

TEST(null_elements_of_lists)
{
    begin();
    static const kr_rule nameless = { .name = NULL };
    kr_tensor *none[2] = { NULL, NULL }, **const keep[1] = { NULL };
    kr_state *const states[1] = { NULL };
    NONE("operand x0 is NULL", kr_concat(tape, 0, 2, none));
    ERROR("output 0 is NULL", kr_backward_from(tape, 1, none, NULL));
    NONE("state is NULL", kr_state_join(tape, 1, states));
    ERROR("args.rule is NULL", kr_record(tape, &(kr_record_args){ .n_in = 1 }));
    ERROR("the rule's name or backward is NULL", kr_record(tape, &(kr_record_args){ .rule = &nameless }));
    kr_scope scope = kr_no_grad_begin(tape);
    ERROR("keep is NULL", kr_no_grad_end(tape, scope, 1, NULL));
    scope = kr_no_grad_begin(tape);
    ERROR("keep[0] is NULL", kr_no_grad_end(tape, scope, 1, keep));
    end();
}
