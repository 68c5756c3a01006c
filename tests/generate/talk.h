/* talk.h - small networks and recorded generations, for tests. */
#ifndef KR_TESTS_TALK_H
#define KR_TESTS_TALK_H

#include "tests/harness.h"

enum { TALK_VOCAB = 256, TALK_MOST = 64, TALK_ROWS = 4, TALK_TEXT = 16 };

/* A context on the device, whatever KR_DEVICE says; NULL: there is no such device here. */
static inline kr_ctx *talk_device(const char *name, kr_precision precision)
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
static inline kr_network *talk_network(kr_ctx *ctx, kr_family family, kr_dtype dtype, int n_latents,
                                       const kr_marker *latents)
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
    layers.block = family == KR_MAMBA1   ? kr_mamba1_block(&m1)
                   : family == KR_MAMBA2 ? kr_mamba2_block(&m2)
                                         : kr_mamba3_block(&m3);
    layers.n_layers = 2;
    layers.n_latents = n_latents;
    layers.latents = latents;
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &layers;
    config.vocab_size = TALK_VOCAB - 3; /* three rows of padding */
    config.pad_vocab_size_multiple = TALK_VOCAB;
    config.embedding_std = 0.8;
    kr_ctx_seed(ctx, 7);
    kr_network *net = kr_network_create(ctx, &config);
    CHECK_OK(ctx);
    return net;
}

static inline kr_generate_options talk_options(void)
{
    kr_generate_options o;
    kr_generate_options_init(&o);
    return o;
}

/* Only these bytes, by biases that nothing outweighs. */
static inline void talk_only(kr_generate_options *o, kr_logit_bias *biases, const char *bytes)
{
    int n = 0;
    for (int i = 0; i < TALK_VOCAB - 3; i++)
        if (!strchr(bytes, i) || i == 0) biases[n++] = (kr_logit_bias){ i, -INFINITY };
    o->sampler.n_biases = n;
    o->sampler.biases = biases;
}

/* What kr_generation_next made, call by call. */
typedef struct talk_row {
    bool is_new;
    kr_sample sample;
    char text[TALK_TEXT];
    kr_finish finish;
} talk_row;

typedef struct talk_record {
    int count;
    talk_row rows[TALK_MOST][TALK_ROWS];
} talk_record;

static inline void talk_note(talk_record *record, const kr_generation *g)
{
    talk_row *rows = record->rows[record->count++];
    const kr_generated *one;
    for (int64_t r = 0; r < TALK_ROWS && (one = kr_generation_row(g, r)); r++) {
        rows[r] = (talk_row){ .is_new = one->is_new, .sample = one->sample, .finish = one->finish };
        CHECK(one->bytes < TALK_TEXT && one->text && one->text[one->bytes] == '\0', "%zu bytes of text", one->bytes);
        if (one->bytes < TALK_TEXT) memcpy(rows[r].text, one->text, one->bytes);
    }
}

/* Calls next up to `most` times. */
static inline void talk_on(talk_record *record, kr_generation *g, int most)
{
    for (int i = 0; i < most && record->count < TALK_MOST && kr_generation_next(g); i++) talk_note(record, g);
}

static inline bool talk_same(const talk_row *a, const talk_row *b)
{
    return a->is_new == b->is_new && a->finish == b->finish && memcmp(a->text, b->text, sizeof a->text) == 0 &&
           (!a->is_new || (a->sample.id == b->sample.id && a->sample.logprob == b->sample.logprob));
}

/* got is want from call `from` on, to the bit. */
static inline bool talk_check(const char *what, const talk_record *got, const talk_record *want, int from)
{
    bool same = CHECK(got->count == want->count - from, "%s: %d calls, not %d", what, got->count, want->count - from);
    for (int i = 0; same && i < got->count; i++)
        for (int r = 0; same && r < TALK_ROWS; r++)
            same = CHECK(talk_same(&got->rows[i][r], &want->rows[from + i][r]),
                         "%s: call %d, row %d: token %d (%.17g), not %d (%.17g), text '%s', not '%s', finish %d", what,
                         from + i, r, got->rows[i][r].sample.id, got->rows[i][r].sample.logprob,
                         want->rows[from + i][r].sample.id, want->rows[from + i][r].sample.logprob,
                         got->rows[i][r].text, want->rows[from + i][r].text, (int)got->rows[i][r].finish);
    return same;
}

#endif
