/* block_run.c - rigs, plans, and what comes out of them. */
#include "tests/nn/block_run.h"

/* ---- noise ---- */

enum { STREAM_X = 1, STREAM_CACHE = 10, STREAM_RESULT = 20, STREAM_PARAM = 40 };

static uint64_t mix(uint64_t z)
{
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static double uniform_at(int stream, int64_t i)
{
    const uint64_t z = mix(mix(mix(kr_test_seed()) + (uint64_t)stream) + (uint64_t)i);
    return (double)(z >> 11) * 0x1p-53;
}

static double normal_at(int stream, int64_t i)
{
    const double u = 1 - uniform_at(stream, 2 * i), v = uniform_at(stream, 2 * i + 1);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

static double *new_values(int64_t count)
{
    double *values = malloc((size_t)(count ? count : 1) * sizeof *values);
    if (!values) exit(2);
    return values;
}

/* ---- rigs ---- */

typedef union any_config {
    kr_config_head head;
    kr_mamba1_config mamba1;
    kr_mamba2_config mamba2;
    kr_mamba3_config mamba3;
    unsigned char bytes[KR_BLOCK_CONFIG_BYTES];
} any_config;

static any_config with_dtype(kr_block_config config, kr_dtype dtype)
{
    any_config copy;
    size_t size;
    memset(&copy, 0, sizeof copy);
    memcpy(&size, config.config, sizeof size);
    memcpy(copy.bytes, config.config, size);
    copy.head.dtype = dtype;
    return copy;
}

/* Values of an f64 block of the same config and seed, and noise of a fifth on top. */
static void move_params(rig *r, kr_block_config config)
{
    const any_config wide = with_dtype(config, KR_DTYPE_F64);
    kr_ctx_seed(r->ctx, kr_test_seed());
    kr_block *block = kr_block_create(r->ctx, &(kr_block_config){ r->kind->family, &wide });
    const kr_params *begin = block ? block->params : NULL;
    for (int64_t i = 0; i < kr_params_count(begin); i++) {
        const kr_param_row *row = kr_params_at(begin, i);
        const bool is_step = strcmp(row->name, "dt_bias") == 0 || strcmp(row->name, "dt_proj.bias") == 0;
        double *values = kr_test_values(row->tensor);
        const int64_t count = kr_tensor_count(row->tensor);
        for (int64_t e = 0; e < count; e++)
            values[e] += (is_step ? 1.5 : 0) + 0.2 * normal_at(STREAM_PARAM + (int)i, e);
        kr_param_write(kr_params_at(r->params, i)->tensor, KR_DTYPE_F64, values, count);
        free(values);
    }
    kr_block_destroy(block);
}

bool rig_open(rig *r, const char *name, kr_block_config config, kr_dtype dtype, int threads)
{
    const any_config own = with_dtype(config, dtype);
    *r = (rig){ .name = name, .kind = kr_block_kind_of(config.family), .dtype = dtype };
    r->ctx = kr_test_ctx(threads, NULL);
    r->tape = kr_tape_create(r->ctx, KR_TAPE_GRAD);
    r->block = kr_block_create(r->ctx, &(kr_block_config){ r->kind->family, &own });
    if (r->block) r->params = ((kr_block *)r->block)->params;
    if (config.family == KR_FAMILY_MAMBA3) {
        r->has_quaternions = own.mamba3.rotation == KR_ROTATION_QUATERNION;
        r->has_angles = !r->has_quaternions;
    }
    if (r->block) move_params(r, config);
    if (CHECK(!kr_ctx_failed(r->ctx), "%s: %s", name, kr_ctx_message(r->ctx))) return true;
    rig_close(r);
    return false;
}

void rig_close(rig *r)
{
    kr_block_destroy(r->block);
    kr_tape_destroy(r->tape);
    kr_ctx_destroy(r->ctx);
}

/* ---- inputs ---- */

static bool starts_at(const problem *p, int64_t b, int64_t s)
{
    return s == 0 || (p->starts && p->starts[b * p->ns + s] != 0);
}

int64_t problem_sequences(const problem *p)
{
    if (!p->starts || p->is_reset) return p->nb;
    int64_t count = 0;
    for (int64_t b = 0; b < p->nb; b++)
        for (int64_t s = 0; s < p->ns; s++) count += starts_at(p, b, s);
    return count;
}

/* A leaf of noise, with a gradient. */
static kr_tensor *leaf(const rig *r, kr_dtype dtype, kr_shape shape, double *values)
{
    kr_tensor *wide = kr_from_data(r->tape, KR_DTYPE_F64, shape, values);
    free(values);
    return kr_input(r->tape, kr_cast(r->tape, wide, dtype));
}

static double *noise(int stream, int64_t count, double scale)
{
    double *values = new_values(count);
    for (int64_t i = 0; i < count; i++) values[i] = scale * normal_at(stream, i);
    return values;
}

static int64_t count_of(kr_shape shape)
{
    int64_t count = 1;
    for (int a = 0; a < shape.rank; a++) count *= shape.dims[a];
    return count;
}

/* Angles within half a turn, quaternions of length 1, anything else normal. */
static double *cache_noise(const rig *r, int i, int64_t count)
{
    const bool is_rotation = i == r->kind->ncache - 1;
    double *values = noise(STREAM_CACHE + i, count, 0.5);
    for (int64_t e = 0; is_rotation && r->has_angles && e < count; e++)
        values[e] = 3.141592653589793 * (2 * uniform_at(STREAM_CACHE + i, e) - 1);
    for (int64_t e = 0; is_rotation && r->has_quaternions && e < count; e += 4) {
        double square = 0;
        for (int k = 0; k < 4; k++) square += values[e + k] * values[e + k];
        for (int k = 0; k < 4; k++) values[e + k] /= sqrt(square);
    }
    return values;
}

static kr_mamba3_pathway other_pathway(kr_mamba3_pathway pathway)
{
    return pathway == KR_MAMBA3_PATHWAY_SINGLE ? KR_MAMBA3_PATHWAY_DOUBLE : KR_MAMBA3_PATHWAY_SINGLE;
}

/* x, then the caches if there are any, each with its nudge. */
typedef struct inputs {
    kr_tensor *x;
    kr_cache cache;
    bool has_cache;
} inputs;

static inputs make_inputs(const rig *r, const problem *p, const plan *way, nudge by)
{
    inputs in = { .has_cache = p->from_cache || way->initial_cache };
    const int64_t nd = kr_block_d_model(r->block), nq = problem_sequences(p);
    double *x = noise(STREAM_X, p->nb * p->ns * nd, 1);
    if (by.target == 0) x[by.index] += by.delta;
    in.x = leaf(r, r->dtype, KR_SHAPE(p->nb, p->ns, nd), x);
    if (!in.has_cache) return in;
    in.cache = r->kind->initial_cache(r->tape, r->block, nq);
    if (r->kind->family == KR_FAMILY_MAMBA3 && way->other_pathway)
        in.cache.mamba3.pathway = other_pathway(in.cache.mamba3.pathway);
    for (int i = 0; p->from_cache && i < r->kind->ncache; i++) {
        const kr_shape shape = r->kind->cache_shape(r->block, i, nq);
        double *values = cache_noise(r, i, count_of(shape));
        if (by.target == 1 + i) values[by.index] += by.delta;
        in.cache.tensors[i] = leaf(r, kr_tensor_dtype(in.cache.tensors[i]), shape, values);
    }
    return in;
}

/* ---- plans ---- */

static kr_ssd_path path_of(const rig *r, const plan *way)
{
    return way->path ? *way->path : r->kind->path ? r->kind->path(r->block) : kr_ssd_path_default();
}

/* The parts one after another, each from the cache that the one before it left. */
static kr_block_result run_parts(const rig *r, const plan *way, kr_tensor *x, const kr_cache *cache)
{
    const int64_t nb = kr_tensor_dim(x, 0), ns = kr_tensor_dim(x, 1), nd = kr_tensor_dim(x, 2);
    kr_tensor *y[MAX_PARTS];
    kr_block_result out = { .y_bsd = NULL };
    int n = 0;
    for (int64_t from = 0; from < ns && n < MAX_PARTS; n++) {
        const int64_t part = way->parts[n], count = part == STEP ? 1 : part > 0 ? part : ns - from;
        const kr_cache before = n ? out.cache : cache ? *cache : (kr_cache){ .family = r->kind->family };
        const kr_cache *begin = n || cache ? &before : NULL;
        kr_tensor *tokens = kr_slice(r->tape, x, 1, from, from + count);
        if (part == STEP) {
            tokens = kr_reshape(r->tape, tokens, KR_SHAPE(nb, nd));
            out = kr_block_run_step(r->tape, r->kind, r->block, "law.step", tokens, begin);
        } else {
            const kr_block_input input = {
                .op = "law.forward", .x_bsd = tokens, .cache = begin, .path = path_of(r, way)
            };
            out = r->kind->forward(r->tape, r->block, &input);
        }
        if (r->kind->family == KR_FAMILY_MAMBA3 && way->changes_pathway)
            out.cache.mamba3.pathway = other_pathway(out.cache.mamba3.pathway);
        y[n] = kr_reshape(r->tape, out.y_bsd, KR_SHAPE(nb, count, nd));
        from += count;
    }
    out.y_bsd = kr_concat(r->tape, 1, n, y);
    return out;
}

static kr_cache cache_row(const rig *r, const kr_cache *cache, int64_t row)
{
    kr_cache one = *cache;
    for (int i = 0; i < r->kind->ncache; i++) one.tensors[i] = kr_slice(r->tape, cache->tensors[i], 0, row, row + 1);
    return one;
}

/* Caches below one another. */
static kr_cache join_caches(const rig *r, const kr_cache *caches, int count)
{
    kr_cache all = caches[0];
    for (int i = 0; i < r->kind->ncache; i++) {
        kr_tensor *rows[64];
        for (int q = 0; q < count; q++) rows[q] = caches[q].tensors[i];
        all.tensors[i] = kr_concat(r->tape, 0, count, rows);
    }
    return all;
}

/* Each row, or each sequence of each row, as a batch of one. A sequence that begins by a reset has no cache; one that
 * continues its row has the row's. */
static kr_block_result run_alone(const rig *r, const problem *p, const plan *way, const inputs *in)
{
    kr_tensor *rows[64];
    kr_cache ends[64];
    int nq = 0;
    for (int64_t b = 0; b < p->nb; b++) {
        kr_tensor *x = kr_slice(r->tape, in->x, 0, b, b + 1), *pieces[64];
        int n = 0;
        for (int64_t from = 0, to; from < p->ns; from = to, n++) {
            for (to = from + 1; to < p->ns && !starts_at(p, b, to);) to++;
            const bool forgets = p->is_reset && p->starts[b * p->ns + from] != 0;
            kr_cache begin = { .family = r->kind->family };
            if (in->has_cache && !forgets) begin = cache_row(r, &in->cache, p->is_reset ? b : nq);
            const kr_block_result out =
                run_parts(r, way, kr_slice(r->tape, x, 1, from, to), in->has_cache && !forgets ? &begin : NULL);
            pieces[n] = out.y_bsd;
            if (p->is_reset && n > 0) nq--; /* the row's cache is its last sequence's */
            ends[nq++] = out.cache;
        }
        rows[b] = kr_concat(r->tape, 1, n, pieces);
    }
    if (kr_ctx_failed(r->ctx)) return (kr_block_result){ .y_bsd = NULL };
    return (kr_block_result){ kr_concat(r->tape, 0, (int)p->nb, rows), join_caches(r, ends, nq) };
}

static kr_block_result run_plan(const rig *r, const problem *p, const plan *way, const inputs *in)
{
    const kr_cache *cache = in->has_cache ? &in->cache : NULL;
    if (way->row_by_row || way->by_sequence) return run_alone(r, p, way, in);
    if (!p->starts) return run_parts(r, way, in->x, cache);
    kr_tensor *starts = kr_from_data(r->tape, KR_DTYPE_I32, KR_SHAPE(p->nb, p->ns), p->starts);
    kr_block_input input = { .op = "law.packed", .x_bsd = in->x, .cache = cache, .path = path_of(r, way) };
    if (p->is_reset) return kr_block_run_reset(r->tape, r->kind, r->block, &input, starts);
    input.seq_start_bs = starts;
    return r->kind->forward(r->tape, r->block, &input);
}

/* ---- results ---- */

typedef struct seen {
    int count;
    kr_tensor *tensors[KR_CACHE_TENSORS + 2];
    char names[KR_CACHE_TENSORS + 2][64];
} seen;

static void see(seen *s, kr_tensor *x, const char *format, const char *name)
{
    s->tensors[s->count] = x;
    snprintf(s->names[s->count++], sizeof s->names[0], format, name);
}

static seen look(const rig *r, const kr_block_result *out)
{
    seen s = { .count = 0 };
    see(&s, out->y_bsd, "%s", "y");
    for (int i = 0; i < r->kind->ncache; i++) {
        kr_tensor *x = out->cache.tensors[i];
        const char *name = r->kind->cache_names[i];
        if (kr_tensor_count(x) == 0) continue; /* a state that does not turn has no angles */
        if (r->has_angles && i == r->kind->ncache - 1) {
            see(&s, kr_cos(r->tape, x), "cos cache.%s", name);
            see(&s, kr_sin(r->tape, x), "sin cache.%s", name);
        } else {
            see(&s, x, "cache.%s", name);
        }
    }
    return s;
}

/* Angles and quaternions that are kept are proper ones: within half a turn, of length 1. */
static void check_rotation(const rig *r, const kr_block_result *out)
{
    if (!r->has_angles && !r->has_quaternions) return;
    const kr_tensor *rotation = out->cache.tensors[r->kind->ncache - 1];
    double *values = kr_test_values(rotation);
    const int64_t count = kr_tensor_count(rotation);
    for (int64_t e = 0; r->has_angles && e < count; e++)
        CHECK(fabs(values[e]) <= 3.1415928, "%s: a cached angle of %.9g is not within half a turn", r->name, values[e]);
    for (int64_t e = 0; r->has_quaternions && e + 3 < count; e += 4) {
        double square = 0;
        for (int k = 0; k < 4; k++) square += values[e + k] * values[e + k];
        CHECK(fabs(square - 1) < 1e-5, "%s: a cached quaternion has length^2 %.9g", r->name, square);
    }
    free(values);
}

/* Caches have the shapes and types of initial ones, whatever the types of x. */
static void check_cache(const rig *r, const problem *p, const kr_block_result *out)
{
    const kr_cache initial = r->kind->initial_cache(r->tape, r->block, problem_sequences(p));
    CHECK(out->cache.family == r->kind->family, "%s: a cache of the family %d", r->name, (int)out->cache.family);
    for (int i = 0; i < r->kind->ncache; i++) {
        const kr_tensor *got = out->cache.tensors[i], *want = initial.tensors[i];
        char a[128], b[128];
        CHECK(kr_tensor_dtype(got) == kr_tensor_dtype(want) &&
                  strcmp(kr_shape_text(got, a, sizeof a), kr_shape_text(want, b, sizeof b)) == 0,
              "%s: cache.%s is %s %s, but an initial one is %s %s", r->name, r->kind->cache_names[i],
              kr_dtype_name(kr_tensor_dtype(got)), kr_shape_text(got, a, sizeof a),
              kr_dtype_name(kr_tensor_dtype(want)), kr_shape_text(want, b, sizeof b));
    }
}

static void take(outcome *o, bool is_gradient, const char *name, const kr_tensor *x, const kr_tensor *of)
{
    if (o->count == MAX_ENTRIES) exit(2);
    entry *e = &o->entries[o->count++];
    snprintf(e->name, sizeof e->name, "%s%s", is_gradient ? "g_" : "", name);
    e->is_gradient = is_gradient;
    e->shape = kr_tensor_shape(of);
    e->count = kr_tensor_count(of);
    e->values = x ? kr_test_values(x) : new_values(e->count);
    for (int64_t i = 0; !x && i < e->count; i++) e->values[i] = 0; /* no gradient reached it */
}

outcome *run(rig *r, const problem *p, const plan *way)
{
    outcome *o = calloc(1, sizeof *o);
    if (!o) exit(2);
    kr_tape_reset(r->tape);
    kr_params_zero_grad(r->params);
    const inputs in = make_inputs(r, p, way, (nudge){ .target = -1 });
    const kr_block_result out = run_plan(r, p, way, &in);
    const seen s = look(r, &out);
    kr_tensor *heads[KR_CACHE_TENSORS + 2];
    for (int i = 0; i < s.count; i++)
        heads[i] = leaf(r, kr_tensor_dtype(s.tensors[i]), kr_tensor_shape(s.tensors[i]),
                        noise(STREAM_RESULT + i, kr_tensor_count(s.tensors[i]), 1));
    if (!kr_ctx_failed(r->ctx)) check_cache(r, p, &out);
    kr_backward_from(r->tape, s.count, s.tensors, heads);
    if (!CHECK(!kr_ctx_failed(r->ctx), "%s, %s: %s", r->name, way->name, kr_ctx_message(r->ctx))) {
        kr_ctx_clear(r->ctx);
        kr_tape_reset(r->tape);
        return o;
    }
    check_rotation(r, &out);
    for (int i = 0; i < s.count; i++) take(o, false, s.names[i], s.tensors[i], s.tensors[i]);
    take(o, true, "x", kr_grad(in.x), in.x);
    for (int i = 0; p->from_cache && i < r->kind->ncache; i++)
        take(o, true, r->kind->cache_names[i], kr_grad(in.cache.tensors[i]), in.cache.tensors[i]);
    for (int64_t i = 0; i < kr_params_count(r->params); i++) {
        const kr_param_row *row = kr_params_at(r->params, i);
        take(o, true, row->name, kr_grad(row->tensor), row->tensor);
    }
    return o;
}

void outcome_free(outcome *o)
{
    for (int i = 0; i < o->count; i++) free(o->entries[i].values);
    free(o);
}

/* ---- comparisons ---- */

static bool alike(const char *what, const outcome *got, const outcome *want)
{
    if (!got->count || !want->count) return false; /* said already */
    if (!CHECK(got->count == want->count, "%s: %d results, but expected %d", what, got->count, want->count))
        return false;
    for (int i = 0; i < got->count; i++)
        if (!CHECK(got->entries[i].count == want->entries[i].count, "%s: %s has %lld elements, but expected %lld", what,
                   got->entries[i].name, (long long)got->entries[i].count, (long long)want->entries[i].count))
            return false;
    return true;
}

void compare(const char *what, const outcome *got, const outcome *want, double values, double gradients, double floor)
{
    if (!alike(what, got, want)) return;
    for (int i = 0; i < got->count; i++) {
        const entry *g = &got->entries[i], *w = &want->entries[i];
        char text[256];
        snprintf(text, sizeof text, "%s: %s", what, w->name);
        CHECK_CLOSE(text, g->values, w->values, w->count, &w->shape, w->is_gradient ? gradients : values, floor);
    }
}

void compare_bits(const char *what, const outcome *got, const outcome *want, bool with_gradients)
{
    if (!alike(what, got, want)) return;
    for (int i = 0; i < got->count; i++) {
        const entry *g = &got->entries[i], *w = &want->entries[i];
        if (w->is_gradient && !with_gradients) continue;
        int64_t e = 0;
        while (e < w->count && memcmp(&g->values[e], &w->values[e], sizeof *w->values) == 0) e++;
        CHECK(e == w->count, "%s: %s: bits differ first at [%lld]  got %.17g  want %.17g", what, w->name, (long long)e,
              g->values[e < w->count ? e : 0], w->values[e < w->count ? e : 0]);
    }
}

void compare_rows(const char *what, const outcome *got, const outcome *want)
{
    if (kr_test_chooses(NULL)) compare(what, got, want, 1e-5, (double)INFINITY, 1);
    else compare_bits(what, got, want, false);
}

double outcome_distance(const outcome *got, const outcome *want, bool gradients)
{
    if (!alike("distance", got, want)) return INFINITY;
    double error = 0, size = 0;
    for (int i = 0; i < want->count; i++) {
        const entry *g = &got->entries[i], *w = &want->entries[i];
        for (int64_t e = 0; w->is_gradient == gradients && e < w->count; e++) {
            error += (g->values[e] - w->values[e]) * (g->values[e] - w->values[e]);
            size += w->values[e] * w->values[e];
        }
    }
    return sqrt(error / size);
}

/* ---- differences ---- */

int target_count(const rig *r, const problem *p)
{
    return 1 + (p->from_cache ? r->kind->ncache : 0) + (int)kr_params_count(r->params);
}

const entry *target_gradient(const outcome *o, int target)
{
    int gradients = -1;
    for (int i = 0; i < o->count; i++) {
        gradients += o->entries[i].is_gradient;
        if (gradients == target) return &o->entries[i];
    }
    return NULL;
}

double weighed_results(rig *r, const problem *p, const plan *way, nudge by)
{
    kr_tape_reset(r->tape);
    const int row = by.target - 1 - (p->from_cache ? r->kind->ncache : 0);
    kr_tensor *param = NULL;
    double before = 0;
    if (row >= 0) {
        param = kr_params_at(r->params, row)->tensor;
        double *values = kr_test_values(param);
        before = values[by.index];
        free(values);
        kr_test_put(param, by.index, before + by.delta);
        by.target = -1;
    }
    const inputs in = make_inputs(r, p, way, by);
    const kr_block_result out = run_plan(r, p, way, &in);
    const seen s = look(r, &out);
    double sum = 0;
    for (int i = 0; i < s.count; i++) {
        double *values = kr_test_values(s.tensors[i]);
        for (int64_t e = 0; e < kr_tensor_count(s.tensors[i]); e++) sum += values[e] * normal_at(STREAM_RESULT + i, e);
        free(values);
    }
    if (param) kr_test_put(param, by.index, before);
    return sum;
}
