/* generation_create.c - the options of a generation, their checks, and its allocation. */
#include "base/sized.h"
#include "generate/generation_impl.h"
#include "text/tokenizer_impl.h"

#include <string.h>

#define OP "generation.create"

KR_DEFAULTS(kr_generate_options) = {
    .size = sizeof(kr_generate_options), .n_samples = 1, .max_tokens = 256, .prefill_chunk = 512
};

/* ---- options ---- */

static bool check_options(kr_ctx *ctx, const kr_generate_options *o, int64_t vocab, bool has_tokenizer)
{
    const int64_t most = INT64_C(1) << 20;
    if (!kr_require(ctx, o->n_samples >= 1 && o->n_samples <= most, KR_ERR_ARG,
                    OP ": n_samples = %lld, but must be from 1 to %lld", (long long)o->n_samples, (long long)most) ||
        !kr_require(ctx, o->max_tokens >= -1, KR_ERR_ARG,
                    OP ": max_tokens = %lld, but must be at least 0, or -1 for no limit", (long long)o->max_tokens) ||
        !kr_require(ctx, o->prefill_chunk >= 1 && o->prefill_chunk <= most, KR_ERR_ARG,
                    OP ": prefill_chunk = %lld, but must be from 1 to %lld", (long long)o->prefill_chunk,
                    (long long)most) ||
        !kr_require(ctx, o->n_stop_ids >= 0 && (o->n_stop_ids == 0 || o->stop_ids), KR_ERR_ARG,
                    OP ": n_stop_ids = %d, but stop_ids is %s", o->n_stop_ids, o->stop_ids ? "a list" : "NULL") ||
        !kr_require(ctx, o->n_stops >= 0 && (o->n_stops == 0 || o->stops), KR_ERR_ARG,
                    OP ": n_stops = %d, but stops is %s", o->n_stops, o->stops ? "a list" : "NULL") ||
        !kr_require(ctx, o->n_stops == 0 || has_tokenizer, KR_ERR_ARG,
                    OP ": n_stops = %d, but stop texts need a tokenizer; give one, or use stop_ids", o->n_stops))
        return false;
    for (int i = 0; i < o->n_stop_ids; i++)
        if (!kr_require(ctx, o->stop_ids[i] >= 0 && o->stop_ids[i] < vocab, KR_ERR_ARG,
                        OP ": stop_ids[%d] = %d, but the network's tokens are from 0 to %lld", i, (int)o->stop_ids[i],
                        (long long)vocab - 1))
            return false;
    for (int i = 0; i < o->n_stops; i++)
        if (!kr_require(ctx, o->stops[i] && *o->stops[i], KR_ERR_ARG, OP ": stops[%d] is %s", i,
                        o->stops[i] ? "empty, which every text begins with" : "NULL"))
            return false;
    return true;
}

/* ---- parts ---- */

static void *alloc_array(kr_generation *g, int64_t count, size_t bytes)
{
    void *at = kr_arena_alloc(&g->arena, (size_t)count * bytes);
    if (at) memset(at, 0, (size_t)count * bytes);
    else kr_fail(g->ctx, KR_ERR_NOMEM, OP ": no memory for a list of %lld", (long long)count);
    return at;
}

static bool copy_stop_ids(kr_generation *g)
{
    kr_generate_options *o = &g->options;
    int32_t *ids = alloc_array(g, o->n_stop_ids, sizeof *ids);
    if (ids && o->n_stop_ids) memcpy(ids, o->stop_ids, (size_t)o->n_stop_ids * sizeof *ids);
    o->stop_ids = ids;
    return ids != NULL;
}

static bool copy_stops(kr_generation *g)
{
    kr_stops *stops = &g->stops;
    const int n = g->options.n_stops;
    stops->texts = alloc_array(g, n, sizeof *stops->texts);
    stops->bytes = alloc_array(g, n, sizeof *stops->bytes);
    if (!stops->texts || !stops->bytes) return false;
    for (int i = 0; i < n; i++) {
        const size_t bytes = strlen(g->options.stops[i]);
        char *text = alloc_array(g, (int64_t)bytes + 1, 1);
        if (!text) return false;
        memcpy(text, g->options.stops[i], bytes);
        stops->texts[i] = text;
        stops->bytes[i] = bytes;
        if (bytes > stops->longest) stops->longest = bytes;
    }
    stops->count = n;
    g->options.stops = stops->texts;
    return true;
}

static bool make_rows(kr_generation *g)
{
    enum { UNFINISHED_MOST = 3 };
    g->nrows = g->nmembers = g->options.n_samples;
    if (!(g->rows = alloc_array(g, g->nrows, sizeof *g->rows)) ||
        !(g->ids = alloc_array(g, g->nrows, sizeof *g->ids)) ||
        !(g->members = alloc_array(g, g->nrows, sizeof *g->members)) ||
        !(g->chosen = alloc_array(g, g->nrows, sizeof *g->chosen)) ||
        !(g->samples = alloc_array(g, g->nrows, sizeof *g->samples)) ||
        !(g->joined = alloc_array(g, g->nrows, sizeof *g->joined)))
        return false;
    g->longest = g->tok ? g->tok->longest : 0;
    const size_t capacity = g->stops.longest + UNFINISHED_MOST + g->longest;
    for (int64_t r = 0; r < g->nrows; r++) {
        g->members[r] = r;
        g->rows[r].pending = -1;
        if (!kr_held_text_reserve(&g->rows[r].text, &g->ctx->memory, capacity))
            return kr_fail(g->ctx, KR_ERR_NOMEM, OP ": no memory for the texts of %lld rows", (long long)g->nrows);
        kr_held_text_hide(&g->rows[r].text);
        g->rows[r].made.text = g->rows[r].text.shown;
    }
    return true;
}

static bool make_state(kr_generation *g)
{
    g->is_forked = g->nrows == 1;
    g->state = kr_network_state(g->net, 1);
    if (g->state && g->net->has_class_tokens) kr_state_announce(g->state, KR_LENGTH_UNKNOWN);
    return g->state != NULL;
}

static bool make_parts(kr_generation *g)
{
    if (!copy_stop_ids(g) || !copy_stops(g) || !make_rows(g)) return false;
    g->tape = kr_tape_create(g->ctx, KR_TAPE_NO_GRAD);
    g->sampler = kr_sampler_create(g->ctx, g->options.sampler, g->nrows, g->vocab);
    g->decoder = kr_decoder_create(g->net, g->nrows);
    return (make_state(g) && g->tape && g->sampler && g->decoder) || kr_blame(g->ctx, OP);
}

kr_generation *kr_generation_create(kr_ctx *ctx, const kr_network *net, const kr_tokenizer *tok,
                                    const kr_generate_options *options)
{
    kr_generate_options own;
    if (kr_ctx_failed(ctx) || !kr_require(ctx, net != NULL, KR_ERR_ARG, OP ": the network is NULL") ||
        !kr_require(ctx, net->ctx == ctx, KR_ERR_STATE, OP ": the network belongs to another context") ||
        !kr_require(ctx, net->is_vocab, KR_ERR_ARG, OP ": the network takes features, but must take tokens") ||
        !kr_require(ctx, !net->is_custom || net->custom.forward, KR_ERR_ARG,
                    OP ": the custom network has no forward; it is for states only") ||
        !kr_require(ctx, !net->has_length_class_tokens, KR_ERR_UNSUPPORTED,
                    OP ": the network has middle or end class tokens, which need the length of the text in advance") ||
        !kr_require(ctx, !tok || tok->ctx == ctx, KR_ERR_STATE, OP ": the tokenizer belongs to another context") ||
        !KR_TAKE(ctx, OP, kr_generate_options, options, &own) ||
        !check_options(ctx, &own, net->config.vocab_size, tok != NULL))
        return NULL;
    kr_generation *g = kr_memory_alloc_zeroed(&ctx->memory, sizeof *g);
    if (!kr_require(ctx, g != NULL, KR_ERR_NOMEM, OP ": no memory for a generation")) return NULL;
    *g = (kr_generation){ .ctx = ctx, .net = net, .tok = tok, .options = own, .vocab = net->config.vocab_size };
    kr_arena_init(&g->arena, &ctx->memory, 1024);
    if (make_parts(g)) {
        g->options.sampler = &g->sampler->options; /* its own copy */
        return g;
    }
    kr_generation_destroy(g);
    return NULL;
}

void kr_generation_destroy(kr_generation *g)
{
    if (!g) return;
    for (int64_t r = 0; g->rows && r < g->nrows; r++) {
        kr_state_destroy(g->rows[r].idle_state);
        kr_held_text_free(&g->rows[r].text, &g->ctx->memory);
    }
    kr_decoder_destroy(g->decoder);
    kr_state_destroy(g->state);
    kr_sampler_destroy(g->sampler);
    kr_tape_destroy(g->tape);
    kr_arena_deinit(&g->arena);
    kr_memory_free(&g->ctx->memory, g, sizeof *g);
}
