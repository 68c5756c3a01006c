/* generation_create.c - the options of a generation, its batch and its rows. */
#include "base/sized.h"
#include "generate/generation_impl.h"

#include <string.h>

#define OP "generation.create"

KR_DEFAULTS(kr_generate_options) = {
    .size = sizeof(kr_generate_options), .n_samples = 1, .max_tokens = 256, .prefill_chunk = 512
};

static bool check_options(kr_ctx *ctx, const kr_generate_options *o)
{
    const int64_t most = INT64_C(1) << 20;
    return kr_require(ctx, o->n_samples >= 1 && o->n_samples <= most, KR_ERR_ARG,
                      OP ": n_samples = %lld, but must be from 1 to %lld", (long long)o->n_samples, (long long)most) &&
           kr_require(ctx, o->prefill_chunk >= 1 && o->prefill_chunk <= most, KR_ERR_ARG,
                      OP ": prefill_chunk = %lld, but must be from 1 to %lld", (long long)o->prefill_chunk,
                      (long long)most);
}

/* ---- rows ---- */

kr_row *kr_generation_add_row(kr_generation *g, const char *op, int64_t r, kr_row *from)
{
    enum { DISTINCT = 4096 }; /* tokens of a long text, so that steps rarely allocate */
    const int64_t vocab = g->batch->vocab, distinct = vocab < DISTINCT ? vocab : DISTINCT;
    kr_row_settings settings = g->settings;
    settings.options.stream = (uint64_t)r;
    kr_row *row = from ? kr_row_fork_text(from, op) : kr_row_create(g->batch);
    if (row && kr_row_use(row, op, &settings) && kr_row_sampler_reserve(&row->sampler, g->ctx, op, distinct))
        return row;
    kr_row_destroy(row);
    return NULL;
}

void kr_generation_clear_made(kr_generation *g, int64_t r)
{
    const kr_row *row = kr_generation_row_of(g, r);
    g->made[r] = (kr_generated){ .sample = g->made[r].sample, .text = "", .finish = row->finish };
}

/* ---- making one ---- */

static bool make_settings(kr_generation *g, const kr_generate_options *o)
{
    kr_row_options options;
    kr_row_options_init(&options);
    options.sampler = o->sampler;
    options.max_tokens = o->max_tokens;
    options.n_stop_ids = o->n_stop_ids;
    options.stop_ids = o->stop_ids;
    options.n_stops = o->n_stops;
    options.stops = o->stops;
    return kr_row_settings_make(&g->settings, g->batch, OP, OP ": sampler.create", &options, &g->arena);
}

static bool make_rows(kr_generation *g)
{
    const size_t n = (size_t)g->nrows;
    g->rows = kr_arena_alloc(&g->arena, n * sizeof(kr_row *));
    g->made = kr_arena_alloc(&g->arena, n * sizeof *g->made);
    if (!kr_require(g->ctx, g->rows && g->made, KR_ERR_NOMEM, OP ": no memory for %zu rows", n)) return false;
    memset(g->rows, 0, n * sizeof(kr_row *));
    memset(g->made, 0, n * sizeof *g->made);
    if (!(g->rows[0] = kr_generation_add_row(g, OP, 0, NULL))) return false;
    for (int64_t r = 0; r < g->nrows; r++) kr_generation_clear_made(g, r);
    return true;
}

kr_generation *kr_generation_create(kr_ctx *ctx, const kr_network *net, const kr_tokenizer *tok,
                                    const kr_generate_options *options)
{
    kr_generate_options own;
    if (!kr_row_batch_can_run(ctx, OP, net, tok) || !KR_TAKE(ctx, OP, kr_generate_options, options, &own) ||
        !check_options(ctx, &own))
        return NULL;
    kr_generation *g = kr_memory_alloc_zeroed(&ctx->memory, sizeof *g);
    if (!kr_require(ctx, g != NULL, KR_ERR_NOMEM, OP ": no memory for a generation")) return NULL;
    *g = (kr_generation){ .ctx = ctx, .nrows = own.n_samples };
    kr_arena_init(&g->arena, &ctx->memory, 1024);
    kr_row_batch_options o;
    kr_row_batch_options_init(&o);
    o.max_rows = own.n_samples;
    o.grid = own.prefill_chunk;
    o.prefill_tokens = INT64_MAX; /* a feed is read at once */
    g->batch = kr_row_batch_make(ctx, OP, net, tok, &o, true);
    if (g->batch && make_settings(g, &own) && make_rows(g)) return g;
    kr_generation_destroy(g);
    return NULL;
}

void kr_generation_destroy(kr_generation *g)
{
    if (!g) return;
    kr_row_batch_destroy(g->batch);
    kr_arena_deinit(&g->arena);
    kr_memory_free(&g->ctx->memory, g, sizeof *g);
}
