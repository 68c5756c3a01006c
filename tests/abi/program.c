/* program.c - a user's program, built against the headers of an older version and run with the library of this one. It fills
 * in every sized struct that a public function takes, sets no last field, and prints what comes out: the same text whatever
 * headers it was built with.
 */
#include <krait/krait.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kr_ctx *ctx;
static kr_tape *tape;
static kr_tokenizer *tok;

static void check(const char *what)
{
    if (!kr_ctx_failed(ctx)) return;
    printf("%s: %s\n", what, kr_ctx_message(ctx));
    exit(1);
}

static void tell(const char *what, const kr_tensor *x)
{
    check(what);
    double sum = 0;
    double *values = calloc((size_t)kr_tensor_count(x), sizeof *values);
    kr_tensor_read(x, KR_DTYPE_F64, values, kr_tensor_count(x));
    for (int64_t i = 0; i < kr_tensor_count(x); i++) sum += fabs(values[i]);
    printf("%s %lld %.5g\n", what, (long long)kr_tensor_count(x), sum);
    free(values);
}

static kr_tensor *ids(void)
{
    static const int32_t list[] = { 1, 2, 3, 4, 5, 6 };
    return kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(2, 3), list);
}

static void run_ops(void)
{
    kr_tensor *x = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(2, 3, 8));
    kr_norm_options norm;
    kr_norm_options_init(&norm);
    norm.groups = 2;
    tell("norm", kr_rms_norm(tape, x, NULL, &norm));
    kr_trapezoid_options trapezoid;
    kr_trapezoid_options_init(&trapezoid);
    trapezoid.a_floor = 1e-3;
    const kr_trapezoid_out step = kr_trapezoid(tape, x, NULL, x, x, &trapezoid);
    tell("trapezoid", step.beta_bsh);
    kr_cross_entropy_options labelled;
    kr_cross_entropy_options_init(&labelled);
    labelled.label_smoothing = 0.1;
    tell("cross_entropy", kr_cross_entropy(tape, x, ids(), &labelled));
    kr_loss_options loss;
    kr_loss_options_init(&loss);
    loss.reduction = KR_REDUCTION_SUM;
    tell("mse", kr_mse(tape, x, step.dt_bsh, &loss));
    const kr_mamba2_ssd_input in = { .x_bshp = kr_reshape(tape, x, KR_SHAPE(2, 3, 2, 4)),
                                     .dt_bsh = kr_full(tape, KR_DTYPE_F32, KR_SHAPE(2, 3, 2), 0.5),
                                     .a_decay_h = kr_full(tape, KR_DTYPE_F32, KR_SHAPE(2), -1),
                                     .b_bsgr = kr_reshape(tape, x, KR_SHAPE(2, 3, 1, 8)),
                                     .c_bsgr = kr_reshape(tape, x, KR_SHAPE(2, 3, 1, 8)) };
    tell("ssd", kr_mamba2_ssd_run(tape, &in, kr_ssd_path_default()).final_state);
    kr_dropout_options dropout;
    kr_dropout_options_init(&dropout);
    dropout.stream = 7;
    tell("dropout", kr_dropout(tape, x, 0.5, &dropout));
}

static void squares(kr_tape *on, void *user, kr_tensor *const *in, kr_tensor **out)
{
    (void)user;
    out[0] = kr_mul(on, in[0], in[0]);
}

static void run_gradcheck(void)
{
    kr_tensor *x = kr_randn(tape, KR_DTYPE_F64, KR_SHAPE(300));
    kr_gradcheck_options options;
    kr_gradcheck_options_init(&options);
    options.max_elements = 10;
    kr_gradcheck_result result;
    if (kr_gradcheck(ctx, squares, NULL, 1, &x, 1, &options, &result) != KR_OK) check("gradcheck");
    printf("gradcheck %lld\n", (long long)result.n_compared);
}

static kr_network *run_networks(void)
{
    kr_mamba1_config mamba1;
    kr_mamba2_config mamba2;
    kr_mamba3_config mamba3;
    kr_mamba1_config_init(&mamba1);
    kr_mamba2_config_init(&mamba2);
    kr_mamba3_config_init(&mamba3);
    mamba1.d_model = mamba2.d_model = mamba3.d_model = 16;
    mamba2.per_head_dim = mamba3.per_head_dim = 8;
    const kr_block_config blocks[] = { kr_mamba1_block(&mamba1), kr_mamba2_block(&mamba2), kr_mamba3_block(&mamba3) };
    kr_network *net = NULL;
    for (int i = 0; i < 3; i++) {
        kr_layers_config layers;
        kr_layers_config_init(&layers);
        layers.block = blocks[i];
        layers.n_layers = 2;
        kr_network_config config;
        kr_network_config_init(&config);
        config.layers = &layers;
        config.vocab_size = 256;
        kr_network_destroy(net);
        net = kr_network_create(ctx, &config);
        kr_call call;
        kr_call_init(&call);
        call.last_logits_only = true;
        tell(kr_family_name(blocks[i].family), kr_network_forward(tape, net, ids(), &call).y);
        kr_loss_call loss;
        kr_loss_call_init(&loss);
        loss.ids_bs = ids();
        loss.call = &call;
        call.last_logits_only = false;
        tell("loss", kr_network_loss(tape, net, &loss).loss);
    }
    kr_bidi_config both;
    kr_bidi_config_init(&both);
    both.block = blocks[0];
    both.n_layers = 2;
    kr_bidi *bidi = kr_bidi_create(ctx, &both);
    kr_bidi_call call;
    kr_bidi_call_init(&call);
    call.caches = NULL;
    tell("bidi", kr_bidi_forward(tape, bidi, kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(1, 3, 16)), &call).y);
    kr_bidi_destroy(bidi);
    return net;
}

static void *create_block(void *user, kr_ctx *of, kr_params *params, const void *config, kr_block_spec *spec)
{
    const kr_config_head *head = config;
    (void)user, (void)of;
    spec->cache_shape[0] = KR_SHAPE(head->d_model);
    return kr_params_make(params, "w", head->dtype, KR_SHAPE(head->d_model), NULL);
}

/* y = x + w + 1; the cache is the last token. */
static kr_block_out run_block(void *user, kr_tape *on, const void *block, const kr_block_args *args)
{
    const int64_t nb = kr_tensor_dim(args->x_bsd, 0), ns = kr_tensor_dim(args->x_bsd, 1);
    kr_block_out out = { .y = kr_affine(on, kr_add(on, args->x_bsd, (kr_tensor *)block), 1, 1) };
    (void)user;
    out.cache.tensors[0] = kr_reshape(on, kr_slice(on, args->x_bsd, 1, ns - 1, ns), KR_SHAPE(nb, -1));
    return out;
}

static void run_registered(void)
{
    static const char *const names[] = { "last" };
    kr_block_kind_info info;
    kr_block_kind_info_init(&info);
    info.name = "plus_one";
    info.config_bytes = sizeof(kr_config_head);
    info.n_cache = 1;
    info.cache_names = names;
    info.create = create_block;
    info.forward = run_block;
    kr_family family;
    kr_config_head config;
    kr_block_kind_register(ctx, &info, &family);
    kr_block_config_init(ctx, family, &config, sizeof config);
    config.d_model = 4;
    const kr_block_config any = { family, &config };
    kr_block *block = kr_block_create(ctx, &any);
    tell(kr_family_name(family),
         kr_block_forward(tape, block, kr_zeros(tape, KR_DTYPE_F32, KR_SHAPE(1, 3, 4)), NULL).y);
    kr_block_destroy(block);
}

/* A network of one layer, by hand. */
static kr_layer *layer;
static kr_tensor *embedding_wd;

static kr_tensor *forward(void *user, kr_tape *on, kr_tensor *x, kr_state *state, const kr_call *call)
{
    (void)user, (void)call;
    const kr_block_call how = { .cache = kr_state_cache(state, 0) };
    const kr_block_out out = kr_layer_forward(on, layer, kr_embedding(on, embedding_wd, x), &how);
    kr_state_set_cache(state, 0, &out.cache);
    return kr_linear(on, out.y, embedding_wd, NULL);
}

static void run_custom(void)
{
    kr_mamba2_config block;
    kr_mamba2_config_init(&block);
    block.d_model = 16;
    block.per_head_dim = 8;
    kr_layer_config config;
    kr_layer_config_init(&config);
    config.block = kr_mamba2_block(&block);
    config.d_intermediate = 8;
    layer = kr_layer_create(ctx, &config);
    kr_params *params = kr_params_create(ctx);
    kr_params_join(params, "layer.", kr_layer_params(layer));
    embedding_wd = kr_params_linear(params, "embedding", KR_DTYPE_F32, 10, 16, NULL);
    const kr_network_part part = { .block = kr_layer_block(layer) };
    kr_custom_network custom;
    kr_custom_network_init(&custom);
    custom.params = params;
    custom.n_parts = 1;
    custom.parts = &part;
    custom.vocab_size = 10;
    custom.forward = forward;
    kr_network *net = kr_network_custom(ctx, &custom);
    tell("custom", kr_network_forward(tape, net, ids(), NULL).y);
    kr_network_destroy(net);
    kr_params_destroy(params);
    kr_layer_destroy(layer);
}

static void run_params(void)
{
    kr_params *params = kr_params_create(ctx);
    kr_param_options options;
    kr_param_options_init(&options);
    options.axes = "a b";
    kr_params_make(params, "x", KR_DTYPE_F32, KR_SHAPE(2, 3), &options);
    check("params");
    printf("params %lld\n", (long long)kr_params_elements(params));
    kr_params_destroy(params);
}

static void run_generation(const kr_network *net)
{
    kr_encode_options encode;
    kr_encode_options_init(&encode);
    encode.add_special = false;
    int32_t found[8];
    printf("encode %lld\n", (long long)kr_tokenizer_encode(tok, "abc", 3, &encode, found, 8));
    kr_sampler_options sampler;
    kr_sampler_options_init(&sampler);
    sampler.temperature = 0;
    kr_generate_options options;
    kr_generate_options_init(&options);
    options.sampler = &sampler;
    options.max_tokens = 5;
    kr_generation *g = kr_generation_create(ctx, net, tok, &options);
    kr_generation_feed_text(g, "abc", 3);
    printf("generated");
    while (kr_generation_next(g) == KR_OK) printf(" %d", (int)kr_generation_row(g, 0)->sample.id);
    printf("\n");
    check("generation");
    kr_generation_destroy(g);
}

static void run_batch(const kr_network *net)
{
    kr_sampler_options sampler;
    kr_sampler_options_init(&sampler);
    sampler.temperature = 0;
    kr_row_batch_options batching;
    kr_row_batch_options_init(&batching);
    batching.max_rows = 2;
    kr_row_options options;
    kr_row_options_init(&options);
    options.sampler = &sampler;
    options.max_tokens = 3;
    kr_row_batch *batch = kr_row_batch_create(ctx, net, tok, &batching);
    kr_row *row = kr_row_create(batch);
    kr_row_feed_text(row, "abc", 3);
    kr_row_generate(row, &options);
    const kr_row_event *events;
    int64_t count;
    printf("row");
    while (kr_row_batch_step(batch, &events, &count) == KR_OK)
        for (int64_t i = 0; i < count; i++) printf(" %d", (int)events[i].sample.id);
    printf("\n");
    check("batch");
    kr_row_batch_destroy(batch);
}

static void write_file(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f) != 0) exit(2);
}

static void tell_source(const char *what, kr_source *source)
{
    check(what);
    const kr_source_info info = kr_source_info_of(source);
    printf("%s %lld %lld %lld\n", what, (long long)info.count, (long long)info.n_features, (long long)info.n_ids);
    kr_source_destroy(source);
}

static void run_other_sources(void)
{
    static const char images[16 + 4] = { 0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2, 1, 2, 3, 4 };
    write_file("images", images, sizeof images);
    kr_idx_options idx;
    kr_idx_options_init(&idx);
    idx.deviation = 0.5;
    tell_source("idx", kr_source_idx(ctx, "images", NULL, &idx));
    static const char two_ids[] = { 1, 0, 2, 0 };
    write_file("ids", two_ids, sizeof two_ids);
    kr_source_options options;
    kr_source_options_init(&options);
    options.format = KR_SOURCE_FORMAT_RAW_TOKENS;
    options.path = "ids";
    options.n_ids = 3;
    tell_source("ids", kr_source_open(ctx, &options));
}

static kr_loader *run_sources(kr_source **source)
{
    static const char table[] = "a,b\n1,2\n3,4\n";
    write_file("numbers.csv", table, sizeof table - 1);
    kr_csv_options csv;
    kr_csv_options_init(&csv);
    csv.delimiter = ',';
    tell_source("csv", kr_source_csv(ctx, "numbers.csv", &csv));
    kr_text_options text;
    kr_text_options_init(&text);
    text.separator = "|";
    *source = kr_source_string(ctx, "to be, or not|to be: that is the question", 41, tok, &text);
    kr_loader_options reading;
    kr_loader_options_init(&reading);
    reading.batch = 2;
    reading.length = 8;
    kr_loader *loader = kr_loader_create(*source, &reading);
    kr_batch batch;
    if (kr_loader_next(tape, loader, &batch) != KR_OK) check("loader");
    printf("batch %lld %lld\n", (long long)batch.n_positions, (long long)batch.n_scored);
    return loader;
}

static void run_raw(void)
{
    static float x[6] = { 1, 2, 3, 4, 5, 6 }, y[6];
    kr_view views[5];
    kr_raw_options options;
    memset(views, 0, sizeof views);
    views[0] = kr_view_contiguous(KR_DTYPE_F32, KR_SHAPE(2, 3), x);
    views[3] = kr_view_contiguous(KR_DTYPE_F32, KR_SHAPE(2, 3), y);
    kr_raw_options_init(&options);
    options.n_groups = 3;
    if (kr_raw_run(ctx, KR_RAW_NORM, 5, views, &options) != KR_OK) check("raw");
    printf("raw %.4f %zu\n", (double)y[4], kr_raw_work(ctx, KR_RAW_NORM, 5, views, &options));
}

static void run_comm(void)
{
    double x[3] = { 1, 2, 3 };
    kr_comm_options options;
    kr_comm_call call;
    kr_comm_options_init(&options);
    options.engine = "self";
    kr_comm *comm = kr_comm_create(ctx, &options);
    check("comm");
    kr_comm_call_init(&call);
    call.op = KR_COMM_SUM;
    call.dtype = KR_DTYPE_F64;
    call.to = x;
    call.n = 3;
    if (kr_comm_end(comm, kr_comm_begin(comm, &call)) != KR_OK) check("comm.sum");
    printf("comm %d %d %.4f\n", kr_comm_rank(comm), kr_comm_size(comm), x[2]);
    kr_comm_destroy(comm);
}

static void run_training(kr_loader *loader)
{
    kr_model_config *config = kr_model_config_create(ctx);
    check("config");
    kr_model_config_set_d_model(config, 64);
    config->layers->n_layers = 1;
    config->network->vocab_size = 256;
    kr_model *model = kr_model_create(ctx, config);
    kr_model_config_destroy(config);
    kr_optimizer_options optimizer;
    kr_optimizer_options_init(&optimizer);
    optimizer.weight_decay = 0;
    kr_lr_schedule schedule;
    kr_lr_schedule_init(&schedule);
    schedule.max_lr = 1e-3;
    kr_train_options options;
    kr_train_options_init(&options);
    options.steps = 2;
    options.optimizer = &optimizer;
    options.schedule = &schedule;
    kr_trainer *trainer = kr_trainer_create(ctx, model, loader, &options);
    if (kr_trainer_run(trainer) != KR_OK) check("trainer");
    const kr_train_progress p = kr_trainer_progress(trainer);
    printf("trained %lld %.4f\n", (long long)p.step, p.loss);
    kr_trainer_destroy(trainer);

    kr_save_options save;
    kr_save_options_init(&save);
    save.dtype = KR_DTYPE_BF16;
    if (kr_model_save(model, "model", &save) != KR_OK) check("save");
    kr_load_options load;
    kr_load_options_init(&load);
    load.dtype = KR_DTYPE_F32;
    kr_model *loaded = kr_model_load(ctx, "model", &load);
    check("load");
    kr_model_size size;
    kr_model_config own = *kr_model_config_of(loaded);
    kr_model_config mine;
    kr_model_config_init(&mine);
    mine.family = own.family;
    mine.mamba2 = own.mamba2;
    mine.layers = own.layers;
    mine.network = own.network;
    if (kr_model_measure(ctx, &mine, &size) != KR_OK) check("measure");
    printf("model %lld %zu\n", (long long)size.parameters, size.state_bytes);
    kr_model_destroy(loaded);
    kr_model_destroy(model);
}

int main(void)
{
    if (kr_version_number() < KR_VERSION_NUMBER) return 2;
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 1;
    options.isa = "ref";
    options.seed = 5;
    ctx = kr_ctx_create(&options);
    tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    tok = kr_tokenizer_bytes(ctx);
    check("context");
    run_ops();
    run_raw();
    run_comm();
    run_gradcheck();
    run_params();
    run_registered();
    run_custom();
    kr_network *net = run_networks();
    run_generation(net);
    run_batch(net);
    run_other_sources();
    kr_source *source;
    kr_loader *loader = run_sources(&source);
    run_training(loader);
    kr_loader_destroy(loader);
    kr_source_destroy(source);
    kr_network_destroy(net);
    kr_tokenizer_destroy(tok);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
    return 0;
}
