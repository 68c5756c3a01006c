/* null_values.h - valid arguments for test_null.c: one object of each kind, made once, and tensors made for each call. */
#ifndef KR_TESTS_NULL_VALUES_H
#define KR_TESTS_NULL_VALUES_H

#include "tests/temp_folder.h"

static struct {
    kr_ctx *ctx;
    kr_tape *tape;
    kr_back *back; /* inside the rule of a custom op */
    kr_model_config *config;
    kr_model *model;
    kr_block *block;
    kr_bidi *bidi;
    kr_state *state;
    kr_params *params;
    kr_optimizer *optimizer;
    kr_tokenizer *tok;
    kr_text_stream *stream;
    kr_text_model *text_model;
    kr_source *source;
    kr_loader *loader;
    kr_trainer *trainer;
    kr_sampler *sampler;
    kr_generation *generation;
    kr_row_batch *batch;
    kr_row *row;
    kr_snapshot *snapshot;
    kr_layer *layer;
    kr_comm *comm;
    kr_seq_parallel *seq;
    kr_tensor_file *file;
    kr_tensor_writer *writer;
} made;

static inline kr_ctx *v_kr_ctx(void)
{
    return made.ctx;
}
static inline kr_tape *v_kr_tape(void)
{
    return made.tape;
}
static inline kr_back *v_kr_back(void)
{
    return made.back;
}
static inline kr_model_config *v_kr_model_config(void)
{
    return made.config;
}
static inline kr_model *v_kr_model(void)
{
    return made.model;
}
static inline kr_network *v_kr_network(void)
{
    return (kr_network *)kr_model_network(made.model);
}
static inline kr_layers *v_kr_layers(void)
{
    return (kr_layers *)kr_network_layers(v_kr_network());
}
static inline kr_family *v_kr_family(void)
{
    static kr_family family;
    return &family;
}
static inline kr_block *v_kr_block(void)
{
    return made.block;
}
static inline kr_bidi *v_kr_bidi(void)
{
    return made.bidi;
}
static inline kr_state *v_kr_state(void)
{
    return made.state;
}
static inline kr_state **v_kr_state_list(void)
{
    return &made.state;
}
static inline kr_params *v_kr_params(void)
{
    return made.params;
}
static inline kr_optimizer *v_kr_optimizer(void)
{
    return made.optimizer;
}
static inline kr_tokenizer *v_kr_tokenizer(void)
{
    return made.tok;
}
static inline kr_text_stream *v_kr_text_stream(void)
{
    return made.stream;
}
static inline kr_text_model *v_kr_text_model(void)
{
    return made.text_model;
}
static inline kr_source *v_kr_source(void)
{
    return made.source;
}
static inline kr_loader *v_kr_loader(void)
{
    return made.loader;
}
static inline kr_trainer *v_kr_trainer(void)
{
    return made.trainer;
}
static inline kr_sampler *v_kr_sampler(void)
{
    return made.sampler;
}
static inline kr_generation *v_kr_generation(void)
{
    return made.generation;
}
static inline kr_row_batch *v_kr_row_batch(void)
{
    return made.batch;
}
static inline kr_row *v_kr_row(void)
{
    return made.row;
}
static inline kr_snapshot *v_kr_snapshot(void)
{
    return made.snapshot;
}
static inline const kr_row_event **v_kr_row_event_list(void)
{
    static const kr_row_event *list[1];
    return list;
}
static inline kr_layer *v_kr_layer(void)
{
    return made.layer;
}
static inline kr_seq_parallel *v_kr_seq_parallel(void)
{
    return made.seq;
}
static inline kr_comm *v_kr_comm(void)
{
    return made.comm;
}
static inline kr_tensor_file *v_kr_tensor_file(void)
{
    return made.file;
}
static inline kr_tensor_writer *v_kr_tensor_writer(void)
{
    return made.writer;
}
static inline const kr_tensor_file_item *v_kr_tensor_file_item(void)
{
    return kr_tensor_file_at(made.file, 0);
}

/* A parameter, or a tensor on the tape of the axes that the name ends in ("dt_bsh": [2, 2, 2], "q_bshj4": [2, 2, 2, 2, 4]),
 * else [2, 2]; integers by the name. */
static inline kr_tensor *v_kr_tensor(const char *name)
{
    if (strcmp(name, "param") == 0) return kr_params_at(made.params, 0)->tensor;
    const char *axes = strrchr(name, '_');
    kr_shape shape = KR_SHAPE(2, 2);
    if (axes && strlen(axes + 1) <= KR_MAX_RANK) {
        shape.rank = (int)strlen(axes + 1);
        for (int i = 0; i < shape.rank; i++)
            shape.dims[i] = axes[1 + i] >= '0' && axes[1 + i] <= '9' ? axes[1 + i] - '0' : 2;
    }
    const bool is_integer = strcmp(name, "id") == 0 || strcmp(name, "labels") == 0 || strcmp(name, "mask") == 0 ||
                            strncmp(name, "seq_start", 9) == 0;
    return kr_zeros(made.tape, is_integer ? KR_DTYPE_I32 : KR_DTYPE_F32, shape);
}

/* One tensor of one element. */
static inline kr_tensor **v_kr_tensor_list(void)
{
    static kr_tensor *list[KR_KEEP_MAX];
    list[0] = kr_input(made.tape, kr_zeros(made.tape, KR_DTYPE_F32, KR_SHAPE(1)));
    return list;
}
static inline kr_tensor **const *v_keep(void)
{
    static kr_tensor **keep[KR_KEEP_MAX];
    keep[0] = v_kr_tensor_list();
    return keep;
}

/* Zeros, to read or to write. */
static inline void *v_memory(void)
{
    static _Alignas(64) char memory[1 << 16];
    memset(memory, 0, sizeof memory);
    return memory;
}

/* A stream that every GPU has; a CPU has none. */
static inline void *v_stream(void)
{
    return KR_STREAM_LEGACY;
}

static inline const char *v_text(const char *name)
{
    return strstr(name, "path") || strcmp(name, "folder") == 0 ? in_folder("x") : "x";
}

static inline void v_kr_checkpoint_fn(kr_tape *tape, void *user, kr_tensor *const *in, kr_tensor **out)
{
    (void)user;
    out[0] = kr_neg(tape, in ? in[0] : NULL);
}
static inline void v_kr_reason_fn(void *user, const char *text)
{
    (void)user;
    (void)text;
}
static inline kr_status v_kr_write_fn(void *user, const void *data, size_t bytes)
{
    (void)user;
    (void)data;
    (void)bytes;
    return KR_OK;
}
static inline kr_status v_kr_read_fn(void *user, void *data, size_t capacity, size_t *bytes)
{
    (void)user;
    (void)data;
    (void)capacity;
    (void)bytes;
    return KR_END;
}

/* ---- all of them ---- */

static inline void make_model(void)
{
    kr_ctx *ctx = made.ctx;
    made.config = kr_model_config_create(ctx);
    kr_model_config_set_d_model(made.config, 8);
    made.config->layers->n_layers = 1;
    made.config->mamba2->state_rank = made.config->mamba2->per_head_dim = 4;
    made.config->network->vocab_size = 256;
    made.model = kr_model_create(ctx, made.config);
    made.block = kr_block_create(ctx, &(kr_block_config){ KR_FAMILY_MAMBA2, made.config->mamba2 });
    kr_bidi_config bidi;
    kr_bidi_config_init(&bidi);
    bidi.block = (kr_block_config){ KR_FAMILY_MAMBA2, made.config->mamba2 };
    bidi.n_layers = 2;
    made.bidi = kr_bidi_create(ctx, &bidi);
    kr_layer_config layer;
    kr_layer_config_init(&layer);
    layer.block = (kr_block_config){ KR_FAMILY_MAMBA2, made.config->mamba2 };
    made.layer = kr_layer_create(ctx, &layer);
    made.state = kr_state_create(ctx, v_kr_layers(), 1);
    made.params = kr_params_create(ctx);
    kr_params_make(made.params, "w", KR_DTYPE_F32, KR_SHAPE(2, 2), NULL);
    made.optimizer = kr_optimizer_create(ctx, made.params, NULL);
}

static inline void make_text(void)
{
    kr_ctx *ctx = made.ctx;
    IGNORE(kr_model_save(made.model, in_folder("model"), NULL));
    made.text_model = kr_text_model_open(ctx, in_folder("model"), NULL);
    made.tok = kr_tokenizer_bytes(ctx);
    made.stream = kr_text_stream_create(made.tok);
    made.source = kr_source_string(ctx, "a text of some bytes, twice: a text of some bytes", 49, made.tok, NULL);
    kr_loader_options loading;
    kr_loader_options_init(&loading);
    loading.batch = 2;
    loading.length = 4;
    made.loader = kr_loader_create(made.source, &loading);
    kr_train_options training;
    kr_train_options_init(&training);
    training.steps = 1;
    made.trainer = kr_trainer_create(ctx, made.model, made.loader, &training);
    made.sampler = kr_sampler_create(ctx, NULL, 2, 2);
    made.generation = kr_generation_create(ctx, v_kr_network(), made.tok, NULL);
    made.batch = kr_row_batch_create(ctx, v_kr_network(), made.tok, NULL);
    made.row = kr_row_create(made.batch);
    made.snapshot = kr_row_snapshot(made.row);
    made.writer = kr_tensor_writer_create(ctx);
    kr_tensor_writer_add(made.writer, "x", KR_DTYPE_F32, KR_SHAPE(2, 2), v_memory());
    IGNORE(kr_tensor_writer_save(made.writer, in_folder("x.safetensors"), KR_CONTAINER_SAFETENSORS));
    made.file = kr_tensor_file_open(ctx, in_folder("x.safetensors"));
}

static inline void make_values(void)
{
    begin_folder();
    made.ctx = kr_test_ctx(1, NULL);
    made.tape = kr_tape_create(made.ctx, KR_TAPE_GRAD);
    make_model();
    make_text();
    made.comm = kr_comm_create(made.ctx, NULL);
    made.seq = kr_seq_parallel_create(made.ctx, NULL, 1, KR_SEQ_AUTO);
    CHECK_OK(made.ctx);
}

static inline void destroy_values(void)
{
    kr_seq_parallel_destroy(made.seq);
    kr_comm_destroy(made.comm);
    kr_snapshot_destroy(made.snapshot);
    kr_row_batch_destroy(made.batch);
    kr_generation_destroy(made.generation);
    kr_sampler_destroy(made.sampler);
    kr_trainer_destroy(made.trainer);
    kr_loader_destroy(made.loader);
    kr_source_destroy(made.source);
    kr_text_stream_destroy(made.stream);
    kr_tokenizer_destroy(made.tok);
    kr_text_model_destroy(made.text_model);
    kr_tensor_file_close(made.file);
    kr_tensor_writer_destroy(made.writer);
    kr_layer_destroy(made.layer);
    kr_optimizer_destroy(made.optimizer);
    kr_params_destroy(made.params);
    kr_state_destroy(made.state);
    kr_bidi_destroy(made.bidi);
    kr_block_destroy(made.block);
    kr_model_destroy(made.model);
    kr_model_config_destroy(made.config);
    kr_tape_destroy(made.tape);
    kr_ctx_destroy(made.ctx);
}

#endif
