/* networks.c - recipes, nets, ways, and what comes out of them. */
#include "tests/nn/networks.h"

enum { STREAM_X = 101, STREAM_BEFORE = 102, STREAM_Y = 103, STREAM_STATE = 200, STREAM_PARAM = 1000 };

/* ---- noise ---- */

static uint64_t mix(uint64_t z)
{
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static double uniform_at(int stream, int64_t i)
{
    return (double)(mix(mix(mix(kr_test_seed()) + (uint64_t)stream) + (uint64_t)i) >> 11) * 0x1p-53;
}

double net_noise(int stream, int64_t i)
{
    return sqrt(-2 * log(1 - uniform_at(stream, 2 * i))) * cos(6.283185307179586 * uniform_at(stream, 2 * i + 1));
}

static double *new_values(int64_t count)
{
    double *values = calloc((size_t)(count ? count : 1), sizeof *values);
    if (!values) exit(2);
    return values;
}

double net_value_tolerance(kr_dtype dtype)
{
    return dtype == KR_DTYPE_F64 ? 1e-12 : 1e-5;
}

double net_gradient_tolerance(kr_dtype dtype)
{
    return dtype == KR_DTYPE_F64 ? 1e-11 : 1e-4;
}

/* ---- recipes ---- */

net_recipe net_recipe_of(kr_family family, net_ends ends)
{
    net_recipe r = { .family = family, .ends = ends };
    kr_mamba1_config_init(&r.mamba1);
    r.mamba1.d_model = NET_D;
    r.mamba1.state_rank = 4;
    kr_mamba2_config_init(&r.mamba2);
    r.mamba2.d_model = NET_D;
    r.mamba2.state_rank = 4;
    r.mamba2.per_head_dim = 4;
    r.mamba2.path.chunk_len = 4;
    kr_mamba3_config_init(&r.mamba3);
    r.mamba3.d_model = NET_D;
    r.mamba3.state_rank = 4;
    r.mamba3.per_head_dim = 4;
    r.mamba3.path.chunk_len = 4;
    kr_layers_config_init(&r.layers);
    r.layers.n_layers = 2;
    r.layers.mlp_multiple_of = 4;
    kr_network_config_init(&r.network);
    if (ends == VOCAB) r.network.vocab_size = NET_VOCAB;
    if (ends == LATENT) r.network.input_size = NET_INPUT;
    if (ends == LATENT) r.network.output_size = NET_OUTPUT;
    return r;
}

void net_recipe_type(net_recipe *r, kr_dtype dtype)
{
    r->mamba1.dtype = r->mamba2.dtype = r->mamba3.dtype = dtype;
}

const kr_layers_config *net_layers_config(net_recipe *r)
{
    switch (r->family) {
    case KR_FAMILY_MAMBA1: r->layers.block = kr_mamba1_block(&r->mamba1); break;
    case KR_FAMILY_MAMBA2: r->layers.block = kr_mamba2_block(&r->mamba2); break;
    case KR_FAMILY_MAMBA3: r->layers.block = kr_mamba3_block(&r->mamba3); break;
    default: break;
    }
    return &r->layers;
}

const kr_network_config *net_network_config(net_recipe *r)
{
    r->network.layers = net_layers_config(r);
    return &r->network;
}

/* ---- nets ---- */

static void make(net *n)
{
    if (n->recipe.ends == BARE) {
        n->stack = kr_layers_create(n->ctx, net_layers_config(&n->recipe));
        n->layers = n->stack;
        n->params = kr_layers_params(n->stack);
    } else {
        n->network = kr_network_create(n->ctx, net_network_config(&n->recipe));
        n->layers = kr_network_layers(n->network);
        n->params = kr_network_params(n->network);
    }
}

static bool is_step(const char *name)
{
    return strstr(name, "dt_bias") || strstr(name, "dt_proj.bias");
}

/* Values of an f64 twin of the same seed, and noise of a fifth on top. */
static void move_params(net *n)
{
    net twin = { .recipe = n->recipe, .ctx = kr_test_ctx(1, NULL) };
    net_recipe_type(&twin.recipe, KR_DTYPE_F64);
    make(&twin);
    for (int64_t i = 0; i < kr_params_count(twin.params); i++) {
        const kr_param_row *row = kr_params_at(twin.params, i);
        const int64_t count = kr_tensor_count(row->tensor);
        double *values = kr_test_values(row->tensor);
        for (int64_t e = 0; e < count; e++)
            values[e] += (is_step(row->name) ? 1.5 : 0) + 0.2 * net_noise(STREAM_PARAM + (int)i, e);
        kr_param_write(kr_params_at(n->params, i)->tensor, KR_DTYPE_F64, values, count);
        free(values);
    }
    net_close(&twin);
}

bool net_open(net *n, const char *name, const net_recipe *recipe, int threads)
{
    return net_open_isa(n, name, recipe, threads, NULL);
}

bool net_open_isa(net *n, const char *name, const net_recipe *recipe, int threads, const char *isa)
{
    *n = (net){ .name = name, .recipe = *recipe, .kind = kr_block_kind_of(recipe->family) };
    n->ctx = kr_test_ctx(threads, isa);
    n->tape = kr_tape_create(n->ctx, KR_TAPE_GRAD);
    make(n);
    if (n->layers) move_params(n);
    if (n->layers) n->dtype = kr_block_dtype(n->layers->layers[0].block);
    if (CHECK(!kr_ctx_failed(n->ctx), "%s: %s", name, kr_ctx_message(n->ctx))) return true;
    net_close(n);
    return false;
}

void net_close(net *n)
{
    kr_layers_destroy(n->stack);
    kr_network_destroy(n->network);
    kr_tape_destroy(n->tape);
    kr_ctx_destroy(n->ctx);
}

double net_grad_size(const net *n, const char *name)
{
    const kr_param_row *row = kr_params_find(n->params, name);
    if (!CHECK(row != NULL, "%s: no parameter %s", n->name, name)) return -1;
    if (!kr_grad(row->tensor)) return 0;
    double *values = kr_test_values(kr_grad(row->tensor)), most = 0;
    for (int64_t i = 0; i < kr_tensor_count(row->tensor); i++) most = fmax(most, fabs(values[i]));
    free(values);
    return most;
}

/* ---- inputs ---- */

static kr_tensor *ids(kr_tape *tape, int stream, int64_t nb, int64_t ns)
{
    int32_t *list = calloc((size_t)(nb * ns), sizeof *list);
    if (!list) exit(2);
    for (int64_t i = 0; i < nb * ns; i++) list[i] = (int32_t)(uniform_at(stream, i) * NET_VOCAB);
    kr_tensor *x = kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(nb, ns), list);
    free(list);
    return x;
}

static kr_tensor *features(kr_tape *tape, int stream, kr_dtype dtype, kr_shape shape)
{
    const int64_t count = kr_shape_count(&shape);
    double *values = new_values(count);
    for (int64_t i = 0; i < count; i++) values[i] = net_noise(stream, i);
    kr_tensor *x = kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, shape, values), dtype);
    free(values);
    return kr_input(tape, x);
}

static kr_tensor *tokens(net *n, kr_tape *tape, int stream, int64_t nb, int64_t ns)
{
    if (n->recipe.ends == VOCAB) return ids(tape, stream, nb, ns);
    const int64_t width = n->recipe.ends == BARE ? kr_layers_d_model(n->layers) : n->recipe.network.input_size;
    return features(tape, stream, n->dtype, KR_SHAPE(nb, ns, width));
}

kr_tensor *net_input(net *n, kr_tape *tape, int64_t nb, int64_t ns)
{
    return tokens(n, tape, STREAM_X, nb, ns);
}

net_out net_call(net *n, kr_tape *tape, kr_run_mode mode, kr_tensor *x, const kr_call *call)
{
    if (n->network) {
        const kr_network_out out = mode == KR_RUN_PRIME  ? kr_network_prime(tape, n->network, call)
                                   : mode == KR_RUN_STEP ? kr_network_step(tape, n->network, x, call)
                                                         : kr_network_forward(tape, n->network, x, call);
        return (net_out){ out.y, out.state };
    }
    const kr_layers_out out = mode == KR_RUN_PRIME  ? kr_layers_prime(tape, n->stack, call)
                              : mode == KR_RUN_STEP ? kr_layers_step(tape, n->stack, x, call)
                                                    : kr_layers_forward(tape, n->stack, x, call);
    return (net_out){ out.y, out.state };
}

kr_state *net_random_state(net *n, int64_t batch)
{
    kr_state *state = kr_state_create(n->ctx, n->layers, batch);
    kr_tape *tape = kr_tape_create(n->ctx, KR_TAPE_NO_GRAD);
    kr_state_copy(state, net_call(n, tape, KR_RUN_FORWARD, tokens(n, tape, STREAM_BEFORE, batch, 3), NULL).state);
    kr_tape_destroy(tape);
    CHECK(!kr_ctx_failed(n->ctx), "%s: %s", n->name, kr_ctx_message(n->ctx));
    return state;
}

/* ---- ways ---- */

/* What the calls returned: outputs [b m o] that begin at `at`; and the last state. */
typedef struct pieces {
    int count;
    kr_tensor *y[NET_PARTS];
    int64_t at[NET_PARTS];
    kr_state *state;
} pieces;

static bool starts_at(const net_problem *p, int64_t b, int64_t s)
{
    return s == 0 || (p->starts && p->starts[b * p->ns + s] != 0);
}

static int64_t count_states(const net_problem *p)
{
    int64_t count = 0;
    for (int64_t b = 0; b < p->nb; b++)
        for (int64_t s = 0; s < (p->is_reset || !p->starts ? 1 : p->ns); s++) count += starts_at(p, b, s);
    return count;
}

static void add_piece(net *n, pieces *all, kr_tensor *y, int64_t end)
{
    if (!y) return;
    if (kr_tensor_rank(y) == 2) y = kr_reshape(n->tape, y, KR_SHAPE(kr_tensor_dim(y, 0), 1, kr_tensor_dim(y, 1)));
    all->y[all->count] = y;
    all->at[all->count++] = end - kr_tensor_dim(y, 1);
}

/* x [b s] or [b s f], part by part; mask [b s], or NULL. */
static pieces run_parts(net *n, const net_problem *p, const net_mode *way, kr_tensor *x, kr_tensor *mask,
                        const kr_state *state)
{
    pieces all = { .count = 0 };
    const int64_t ns = kr_tensor_dim(x, 1);
    const bool counts = p->is_announced && n->layers->has_class_tokens;
    kr_call call;
    kr_call_init(&call);
    call.path = way->path;
    call.drop_state = way->drop_state;
    call.last_logits_only = way->last_only;
    call.state = state;
    if (p->starts && !way->alone) {
        kr_tensor *starts = kr_from_data(n->tape, KR_DTYPE_I32, KR_SHAPE(p->nb, p->ns), p->starts);
        if (p->is_reset) call.reset_bs = starts;
        else call.seq_start_bs = starts;
    }
    int64_t from = 0;
    for (int i = 0; i < NET_PARTS && !kr_ctx_failed(n->ctx); i++) {
        const int64_t part = way->parts[i];
        if (part == 0 && from == ns && i > 0) break;
        const int64_t count = part == PRIME ? 0 : part == STEP ? 1 : part > 0 ? part : ns - from;
        kr_tensor *chunk = kr_slice(n->tape, x, 1, from, from + count);
        call.mask_bs = mask ? kr_slice(n->tape, mask, 1, from, from + count) : NULL;
        if (part == STEP)
            chunk = kr_reshape(n->tape, chunk,
                               n->recipe.ends == VOCAB ? KR_SHAPE(kr_tensor_dim(x, 0))
                                                       : KR_SHAPE(kr_tensor_dim(x, 0), kr_tensor_dim(x, 2)));
        const kr_run_mode mode = part == PRIME ? KR_RUN_PRIME : part == STEP ? KR_RUN_STEP : KR_RUN_FORWARD;
        const net_out out = net_call(n, n->tape, mode, chunk, &call);
        from += count;
        const int64_t whole =
            out.y && !way->last_only && i == 0 && mode == KR_RUN_FORWARD ? kr_tensor_dim(out.y, 1) : from;
        add_piece(n, &all, out.y, counts && out.state ? out.state->cursors.layers[n->layers->nvirtual - 1] : whole);
        call.state = all.state = out.state;
    }
    return all;
}

/* Each row, or each sequence of each row, as a batch of one; the pieces as one, the states below one another. */
static pieces run_alone(net *n, const net_problem *p, const net_mode *way, kr_tensor *x, kr_tensor *mask,
                        const kr_state *state)
{
    kr_tensor *rows[16], *joined[32 * KR_CACHE_TENSORS][32];
    kr_state *ends[32] = { NULL };
    int nq = 0;
    for (int64_t b = 0; b < p->nb; b++) {
        kr_tensor *row = kr_slice(n->tape, x, 0, b, b + 1), *parts[32];
        kr_tensor *mask_row = mask ? kr_slice(n->tape, mask, 0, b, b + 1) : NULL;
        int nparts = 0;
        for (int64_t from = 0, to; from < p->ns; from = to) {
            for (to = from + 1; to < p->ns && !starts_at(p, b, to);) to++;
            const bool forgets = p->is_reset && p->starts[b * p->ns + from] != 0;
            const int64_t mine = p->is_reset ? b : nq;
            const kr_state *begin = state && !forgets ? kr_state_select(n->tape, state, 1, &mine) : NULL;
            const pieces one = run_parts(n, p, way, kr_slice(n->tape, row, 1, from, to),
                                         mask ? kr_slice(n->tape, mask_row, 1, from, to) : NULL, begin);
            for (int i = 0; i < one.count; i++) parts[nparts++] = one.y[i];
            if (p->is_reset && from > 0) nq--; /* a row's state is its last sequence's */
            ends[nq++] = one.state;
        }
        rows[b] = kr_concat(n->tape, 1, nparts, parts);
    }
    pieces all = { .count = 1, .y = { kr_concat(n->tape, 0, (int)p->nb, rows) } };
    const kr_state_layout layout = kr_layers_layout(n->layers);
    all.state = kr_ctx_failed(n->ctx) ? NULL : kr_state_new(n->tape, &layout, nq);
    for (int64_t v = 0; all.state && v < n->layers->nvirtual; v++)
        for (int i = 0; i < n->kind->ncache; i++) {
            kr_tensor **list = joined[v * KR_CACHE_TENSORS + i];
            for (int q = 0; q < nq; q++) list[q] = ends[q]->slots[v].tensors[i];
            all.state->slots[v].tensors[i] = kr_concat(n->tape, 0, nq, list);
        }
    return all;
}

/* ---- results ---- */

enum { MAX_RESULTS = 256 };

typedef struct results {
    int count;
    kr_tensor *tensors[MAX_RESULTS], *heads[MAX_RESULTS];
} results;

static kr_tensor *head_of(net *n, kr_tensor *x, double *values)
{
    kr_tensor *wide = kr_from_data(n->tape, KR_DTYPE_F64, kr_tensor_shape(x), values);
    free(values);
    return kr_cast(n->tape, wide, kr_tensor_dtype(x));
}

static void weigh(net *n, results *r, kr_tensor *x, double *values)
{
    kr_tensor *head = head_of(n, x, values);
    if (!kr_requires_grad(x)) return;
    r->tensors[r->count] = x;
    r->heads[r->count++] = head;
}

static entry *new_entry(outcome *o, const char *name, int slot, const char *of, kr_shape shape)
{
    if (o->count == MAX_ENTRIES) exit(2);
    entry *e = &o->entries[o->count++];
    if (slot < 0) snprintf(e->name, sizeof e->name, "%s%s", of, name);
    else snprintf(e->name, sizeof e->name, "%s%s of slot %d", of, name, slot);
    e->is_gradient = of[0] == 'g';
    e->shape = shape;
    e->count = kr_shape_count(&shape);
    e->values = new_values(e->count);
    return e;
}

static void take(outcome *o, const char *name, int slot, const char *of, const kr_tensor *values, const kr_tensor *like)
{
    entry *e = new_entry(o, name, slot, of, kr_tensor_shape(like));
    if (!values) return; /* no gradient reached it */
    free(e->values);
    e->values = kr_test_values(values);
}

/* y of all outputs, 0 where none was returned or wanted. */
static void take_outputs(net *n, const net_mode *way, const pieces *all, outcome *o, results *r)
{
    const int64_t nb = kr_tensor_dim(all->y[0], 0), no = kr_tensor_dim(all->y[0], 2);
    n->noutputs = 0;
    memset(n->seen, 0, sizeof n->seen);
    for (int i = 0; i < all->count; i++)
        n->noutputs = all->at[i] + kr_tensor_dim(all->y[i], 1) > n->noutputs ? all->at[i] + kr_tensor_dim(all->y[i], 1)
                                                                             : n->noutputs;
    if (n->noutputs > NET_OUTPUTS) exit(2);
    entry *e = new_entry(o, "y", -1, "", KR_SHAPE(nb, n->noutputs, no));
    for (int i = 0; i < all->count; i++) {
        const int64_t m = kr_tensor_dim(all->y[i], 1);
        double *y = kr_test_values(all->y[i]), *head = new_values(nb * m * no);
        for (int64_t b = 0; b < nb; b++)
            for (int64_t k = 0; k < m; k++) {
                const int64_t at = all->at[i] + k;
                n->seen[at] = true;
                for (int64_t c = 0; c < no && (!way->only || way->only[at]); c++) {
                    e->values[(b * n->noutputs + at) * no + c] = y[(b * m + k) * no + c];
                    head[(b * m + k) * no + c] = net_noise(STREAM_Y, (b * NET_OUTPUTS + at) * no + c);
                }
            }
        free(y);
        weigh(n, r, all->y[i], head);
    }
}

static double *state_head(int stream, int64_t count)
{
    double *values = new_values(count);
    for (int64_t i = 0; i < count; i++) values[i] = net_noise(stream, i);
    return values;
}

/* Angles as cosine and sine: they are the same modulo whole turns. */
static void take_states(net *n, const kr_state *state, outcome *o, results *r)
{
    const bool has_angles = n->recipe.family == KR_FAMILY_MAMBA3 && n->recipe.mamba3.rotation == KR_ROTATION_COMPLEX;
    for (int64_t v = 0; v < n->layers->nvirtual; v++)
        for (int i = 0; i < n->kind->ncache; i++) {
            kr_tensor *x = state->slots[v].tensors[i];
            if (!x || kr_tensor_count(x) == 0) continue;
            const bool is_angle = has_angles && i == n->kind->ncache - 1;
            kr_tensor *list[2] = { is_angle ? kr_cos(n->tape, x) : x, is_angle ? kr_sin(n->tape, x) : NULL };
            for (int k = 0; k < 2 && list[k]; k++) {
                take(o, n->kind->cache_names[i], (int)v, k ? "sin " : "", list[k], list[k]);
                weigh(n, r, list[k], state_head(STREAM_STATE + 8 * (int)v + 2 * i + k, kr_tensor_count(list[k])));
            }
        }
}

static void take_gradients(net *n, const kr_tensor *x, const kr_state *begin, outcome *o)
{
    if (n->recipe.ends != VOCAB) take(o, "x", -1, "g_", kr_grad(x), x);
    for (int64_t v = 0; begin && v < n->layers->nvirtual; v++)
        for (int i = 0; i < n->kind->ncache; i++) {
            const kr_tensor *s = begin->slots[v].tensors[i];
            if (s && kr_tensor_count(s)) take(o, n->kind->cache_names[i], (int)v, "g_", kr_grad(s), s);
        }
    for (int64_t i = 0; i < kr_params_count(n->params); i++) {
        const kr_param_row *row = kr_params_at(n->params, i);
        take(o, row->name, -1, "g_", kr_grad(row->tensor), row->tensor);
    }
}

static kr_state *begin_state(net *n, const net_problem *p)
{
    if (!p->from_state && !p->is_announced) return NULL;
    const int64_t batch = count_states(p);
    kr_state *state = p->from_state ? net_random_state(n, batch) : kr_state_create(n->ctx, n->layers, batch);
    if (p->is_announced) kr_state_announce(state, p->full_len ? p->full_len : p->ns);
    return state;
}

outcome *net_run(net *n, const net_problem *p, const net_mode *way)
{
    outcome *o = calloc(1, sizeof *o);
    results r = { .count = 0 };
    if (!o) exit(2);
    kr_state *own = begin_state(n, p);
    kr_tape_reset(n->tape);
    kr_params_zero_grad(n->params);
    kr_tensor *x = net_input(n, n->tape, p->nb, p->ns);
    const kr_state *begin = own ? kr_state_input(n->tape, own) : NULL;
    kr_tensor *mask = p->mask ? kr_from_data(n->tape, KR_DTYPE_I32, KR_SHAPE(p->nb, p->ns), p->mask) : NULL;
    const pieces all = way->alone ? run_alone(n, p, way, x, mask, begin) : run_parts(n, p, way, x, mask, begin);
    if (!kr_ctx_failed(n->ctx) && all.count) take_outputs(n, way, &all, o, &r);
    if (!kr_ctx_failed(n->ctx) && !way->without_states) take_states(n, all.state, o, &r);
    kr_backward_from(n->tape, r.count, r.tensors, r.heads);
    if (!kr_ctx_failed(n->ctx)) take_gradients(n, x, begin, o);
    if (!CHECK(!kr_ctx_failed(n->ctx), "%s, %s: %s", n->name, way->name, kr_ctx_message(n->ctx))) {
        for (int i = 0; i < o->count; i++) free(o->entries[i].values);
        o->count = 0;
        kr_ctx_clear(n->ctx);
    }
    kr_tape_reset(n->tape);
    kr_state_destroy(own);
    return o;
}

void net_compare(const net *n, const net_problem *p, const char *way, const outcome *got, const outcome *want)
{
    char text[160];
    snprintf(text, sizeof text, "%s %s %s, %s state, %s", kr_family_name(n->recipe.family), n->name,
             kr_dtype_name(n->dtype), p->from_state ? "random" : "initial", way);
    compare(text, got, want, net_value_tolerance(n->dtype), net_gradient_tolerance(n->dtype), NET_FLOOR);
}

void net_same(net *n, const net_problem *p, const net_mode *ways, int count)
{
    bool seen[NET_OUTPUTS], has_whole = false;
    outcome *want = NULL;
    for (int i = 0; i < count; i++) {
        outcome *got = net_run(n, p, &ways[i]);
        if (!has_whole || memcmp(seen, n->seen, sizeof seen) != 0) {
            if (want) outcome_free(want);
            memcpy(seen, n->seen, sizeof seen);
            want = net_run(n, p, &(net_mode){ .name = "whole", .only = seen });
            has_whole = true;
        }
        net_compare(n, p, ways[i].name, got, want);
        outcome_free(got);
    }
    if (want) outcome_free(want);
}
