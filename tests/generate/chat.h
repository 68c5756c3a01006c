/* chat.h - small networks and recorded generations, for tests. */
#ifndef KR_TESTS_GENERATE_CHAT_H
#define KR_TESTS_GENERATE_CHAT_H

#include "tests/harness.h"

enum { CHAT_VOCAB = 256, CHAT_MOST = 64, CHAT_ROWS = 4, CHAT_TEXT = 16 };

/* A context on the device, whatever KR_DEVICE says; NULL: there is no such device here. */
static inline kr_ctx *chat_device(const char *name, kr_precision precision)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.device = name;
    options.precision = precision;
    options.threads = 1;
    kr_ctx *ctx = kr_ctx_create(&options);
    if (!kr_ctx_failed(ctx)) return ctx;
    kr_ctx_destroy(ctx);
    return NULL;
}

/* The same weights from the same arguments. Embeddings are large, so that tokens matter. */
static inline kr_network *chat_network(kr_ctx *ctx, kr_family family, kr_dtype dtype, int n_latents,
                                       const kr_class_token *latents)
{
    kr_mamba1_config m1;
    kr_mamba2_config m2;
    kr_mamba3_config m3;
    kr_mamba1_config_init(&m1);
    kr_mamba2_config_init(&m2);
    kr_mamba3_config_init(&m3);
    m1.d_model = m2.d_model = m3.d_model = 8;
    m1.state_rank = m2.state_rank = m3.state_rank = 4;
    m2.per_head_dim = m3.per_head_dim = 4;
    m1.dtype = m2.dtype = m3.dtype = dtype;
    kr_layers_config layers;
    kr_layers_config_init(&layers);
    layers.block = family == KR_FAMILY_MAMBA1   ? kr_mamba1_block(&m1)
                   : family == KR_FAMILY_MAMBA2 ? kr_mamba2_block(&m2)
                                                : kr_mamba3_block(&m3);
    layers.n_layers = 2;
    layers.n_latents = n_latents;
    layers.latents = latents;
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &layers;
    config.vocab_size = CHAT_VOCAB - 3; /* three rows of padding */
    config.pad_vocab_size_multiple = CHAT_VOCAB;
    config.embedding_std = 0.8;
    kr_ctx_seed(ctx, 7);
    kr_network *net = kr_network_create(ctx, &config);
    CHECK_OK(ctx);
    return net;
}

/* The sampler of the last options that were made: generations copy it. */
static kr_sampler_options chat_sampler;

static inline kr_generate_options chat_options(void)
{
    kr_generate_options o;
    kr_generate_options_init(&o);
    kr_sampler_options_init(&chat_sampler);
    o.sampler = &chat_sampler;
    return o;
}

/* Only these bytes, by biases that nothing outweighs. */
static inline void chat_only(kr_logit_bias *biases, const char *bytes)
{
    int n = 0;
    for (int i = 0; i < CHAT_VOCAB - 3; i++)
        if (!strchr(bytes, i) || i == 0) biases[n++] = (kr_logit_bias){ i, -INFINITY };
    chat_sampler.n_biases = n;
    chat_sampler.biases = biases;
}

/* A bias that devices leave to the host, as it is too large for their floats: nothing is sampled ahead of the calls. Token 0 is
 * excluded, or nearly so. */
static inline void chat_on_host(kr_logit_bias *biases)
{
    biases[chat_sampler.n_biases++] = (kr_logit_bias){ 0, -2e9 };
    chat_sampler.biases = biases;
}

/* What kr_generation_next made, call by call. */
typedef struct chat_row {
    bool is_new;
    kr_sample sample;
    char text[CHAT_TEXT];
    kr_finish finish;
} chat_row;

typedef struct chat_record {
    int count;
    chat_row rows[CHAT_MOST][CHAT_ROWS];
} chat_record;

static inline void chat_note(chat_record *record, const kr_generation *g)
{
    chat_row *rows = record->rows[record->count++];
    const kr_generated *one;
    for (int64_t r = 0; r < CHAT_ROWS && (one = kr_generation_row(g, r)); r++) {
        rows[r] = (chat_row){ .is_new = one->is_new, .sample = one->sample, .finish = one->finish };
        CHECK(one->bytes < CHAT_TEXT && one->text && one->text[one->bytes] == '\0', "%zu bytes of text", one->bytes);
        if (one->bytes < CHAT_TEXT) memcpy(rows[r].text, one->text, one->bytes);
    }
}

/* Calls next up to `most` times. */
static inline void chat_on(chat_record *record, kr_generation *g, int most)
{
    for (int i = 0; i < most && record->count < CHAT_MOST && kr_generation_next(g) == KR_OK; i++) chat_note(record, g);
}

static inline bool chat_same(const chat_row *a, const chat_row *b)
{
    return a->is_new == b->is_new && a->finish == b->finish && memcmp(a->text, b->text, sizeof a->text) == 0 &&
           (!a->is_new || (a->sample.id == b->sample.id && a->sample.logprob == b->sample.logprob));
}

/* got is want from call `from` on, to the bit. */
static inline bool chat_check(const char *what, const chat_record *got, const chat_record *want, int from)
{
    bool same = CHECK(got->count == want->count - from, "%s: %d calls, not %d", what, got->count, want->count - from);
    for (int i = 0; same && i < got->count; i++)
        for (int r = 0; same && r < CHAT_ROWS; r++)
            same = CHECK(chat_same(&got->rows[i][r], &want->rows[from + i][r]),
                         "%s: call %d, row %d: token %d (%.17g), not %d (%.17g), text '%s', not '%s', finish %d", what,
                         from + i, r, got->rows[i][r].sample.id, got->rows[i][r].sample.logprob,
                         want->rows[from + i][r].sample.id, want->rows[from + i][r].sample.logprob,
                         got->rows[i][r].text, want->rows[from + i][r].text, (int)got->rows[i][r].finish);
    return same;
}

#endif
