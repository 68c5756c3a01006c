/* test_mamba3.c - the Mamba-3 block against its recurrence: outputs, caches and gradients of every variant, by both
 * pathways and all algorithms, whole, in parts, and with the pathway changed on the way.
 */
#include "tests/nn/mamba3_reference.h"

enum { NB = 2, NS = 9, MAX_LEGS = 9, NVALUES = 1 + NFIELDS, MAX_RESULTS = 2 * NVALUES + MAX_ROWS };

/* A part of the sequence; one token goes through step. */
typedef struct leg {
    int64_t ns;
    kr_mamba3_pathway pathway;
} leg;

/* Everything about a call but how it is made. */
typedef struct task {
    kr_mamba3_config config;
    numbers_params params;
    numbers_cache cache;
    bool is_initial; /* no cache is given */
    double *x, *g_y;
    numbers_cache g_cache; /* of the loss */
} task;

static double *normals(int64_t count)
{
    double *x = malloc((size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i++) x[i] = kr_test_normal();
    return x;
}

static void add_learned(const kr_mamba3_config *c, const numbers_params *p, numbers_cache *cache)
{
    for (int64_t i = 0; c->has_learnable_init_state && i < p->count; i++)
        for (int64_t q = 0; strcmp(p->name[i], "init_states") == 0 && q < cache->shape[SSM].dims[0] * p->elements[i];
             q++)
            cache->field[SSM][q] += p->values[i][q % p->elements[i]];
}

static task new_task(const variant *v, bool is_initial, int64_t ncaches)
{
    task t = { .config = v->config, .is_initial = is_initial };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_mamba3 *block =
        shaken_block(ctx, &v->config, KR_DTYPE_F32); /* f32, so that blocks of both types have the same */
    t.params = read_params(kr_mamba3_params(block));
    kr_mamba3_destroy(block);
    kr_ctx_destroy(ctx);
    t.cache = is_initial ? new_cache(&t.config, ncaches) : random_cache(&t.config, ncaches);
    if (is_initial) add_learned(&t.config, &t.params, &t.cache);
    t.x = normals(NB * NS * t.config.d_model);
    t.g_y = normals(NB * NS * t.config.d_model);
    t.g_cache = random_cache(&t.config, ncaches);
    return t;
}

static void free_task(task *t)
{
    free_params(&t->params);
    free_cache(&t->cache);
    free_cache(&t->g_cache);
    free(t->x);
    free(t->g_y);
}

/* y, the cache, then the gradients of x, of the given cache and of the parameters; NULL where there is none. */
typedef struct outcome {
    double *values[MAX_RESULTS];
    kr_shape shape[MAX_RESULTS];
} outcome;

static const char *result_name(const task *t, int i)
{
    static char text[64];
    const char *part = i % NVALUES == 0 ? (i ? "x" : "y") : field_names[i % NVALUES - 1];
    if (i >= 2 * NVALUES) part = t->params.name[i - 2 * NVALUES];
    snprintf(text, sizeof text, "%s%s", i < NVALUES ? "" : "g_", part);
    return text;
}

static void take(outcome *o, int i, const kr_tensor *x)
{
    o->values[i] = x ? kr_test_values(x) : NULL;
    o->shape[i] = kr_tensor_shape(x);
}

static void free_outcome(outcome *o)
{
    for (int i = 0; i < MAX_RESULTS; i++) free(o->values[i]);
}

static kr_tensor *on(kr_tape *tape, kr_dtype dtype, kr_shape shape, const double *values)
{
    return kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, shape, values), dtype);
}

/* The task by legs, or with seq_start as one packed call, forward and backward. */
static outcome run(const task *t, kr_dtype dtype, kr_ssd_algorithm algorithm, int nlegs, const leg *legs,
                   const int32_t *seq_start)
{
    kr_ctx *ctx = kr_test_ctx(2, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_mamba3_config config = t->config;
    config.dtype = dtype;
    config.pathway = legs[0].pathway;
    kr_mamba3 *block = kr_mamba3_create(ctx, &config);
    const kr_params *params = kr_mamba3_params(block);
    for (int64_t i = 0; i < t->params.count; i++)
        kr_param_write(kr_params_at(params, i)->tensor, KR_DTYPE_F64, t->params.values[i], t->params.elements[i]);

    const int64_t nd = config.d_model;
    const kr_ssd_path path = { algorithm, config.path.chunk_len };
    kr_tensor *x = kr_input(tape, on(tape, dtype, KR_SHAPE(NB, NS, nd), t->x)), *y[MAX_LEGS];
    kr_mamba3_cache given = cache_on(tape, dtype, &t->cache, legs[0].pathway), cache = given;
    int64_t done = 0;
    for (int i = 0; i < nlegs; done += legs[i++].ns) {
        const kr_mamba3_cache *from = i == 0 && t->is_initial ? NULL : &cache;
        cache.pathway = legs[i].pathway;
        kr_tensor *part = kr_slice(tape, x, 1, done, done + legs[i].ns);
        const bool is_step = nlegs > 1 && legs[i].ns == 1;
        kr_tensor *start = seq_start ? kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(NB, NS), seq_start) : NULL;
        const kr_mamba3_out out = is_step ? kr_mamba3_step(tape, block, kr_reshape(tape, part, KR_SHAPE(NB, nd)), from)
                                          : kr_mamba3_forward_packed(tape, block, part, start, from, path);
        y[i] = is_step ? kr_reshape(tape, out.y, KR_SHAPE(NB, 1, nd)) : out.y;
        CHECK(out.cache.pathway == legs[i].pathway, "leg %d leaves pathway %d", i, (int)out.cache.pathway);
        cache = out.cache;
    }
    kr_tensor *results[NVALUES] = { kr_concat(tape, 1, nlegs, y), cache.ssm_bhpr, cache.k_bmhr, cache.v_bhp,
                                    cache.rotation };
    kr_tensor *heads[NVALUES] = { on(tape, dtype, KR_SHAPE(NB, NS, nd), t->g_y) };
    for (int f = 0; f < NFIELDS; f++) heads[1 + f] = on(tape, dtype, t->g_cache.shape[f], t->g_cache.field[f]);
    kr_backward_from(tape, NVALUES, results, heads);
    CHECK_OK(ctx);
    outcome o = { .values = { NULL } };
    const kr_tensor *given_fields[NFIELDS] = { given.ssm_bhpr, given.k_bmhr, given.v_bhp, given.rotation };
    for (int i = 0; i < NVALUES; i++) take(&o, i, results[i]);
    take(&o, NVALUES, kr_grad(x));
    for (int f = 0; f < NFIELDS; f++) take(&o, NVALUES + 1 + f, t->is_initial ? NULL : kr_grad(given_fields[f]));
    for (int64_t i = 0; i < t->params.count; i++)
        take(&o, (int)(2 * NVALUES + i), kr_grad(kr_params_at(params, i)->tensor));
    kr_tape_destroy(tape);
    kr_mamba3_destroy(block);
    kr_ctx_destroy(ctx);
    return o;
}

static int64_t elements(const kr_shape *shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape->rank; i++) count *= shape->dims[i];
    return count;
}

static bool has_angles(const task *t, int i)
{
    return i == 1 + ROTATION && t->config.rotation == KR_ROTATION_COMPLEX;
}

static bool same_result(const char *what, const task *t, int i, double *got, const double *want, const kr_shape *shape,
                        double tolerance)
{
    char text[256];
    const int64_t count = elements(shape);
    if (!got || !want) return true;
    if (has_angles(t, i)) nearest_turns(got, want, count);
    snprintf(text, sizeof text, "%s: %s", what, result_name(t, i));
    return CHECK_CLOSE(text, got, want, count, shape, tolerance, 0.1);
}

/* Gradients of parameters that nothing reaches are NULL in one and zeros in another way: only what both have counts,
 * and what one lacks must be 0 in the other. */
static void same_outcome(const char *what, const task *t, outcome *got, const outcome *want, double tolerance)
{
    for (int i = 0; i < MAX_RESULTS; i++) {
        const outcome *only = got->values[i] ? want->values[i] ? NULL : got : want->values[i] ? want : NULL;
        for (int64_t k = 0; only && k < elements(&only->shape[i]); k++)
            if (!CHECK(only->values[i][k] == 0, "%s: %s is in one only", what, result_name(t, i))) break;
        same_result(what, t, i, got->values[i], want->values[i], &want->shape[i], tolerance);
    }
}

static void check_reference(const char *what, const task *t, outcome *o, const double *y, numbers_cache *cache,
                            double tolerance)
{
    same_result(what, t, 0, o->values[0], y, &o->shape[0], tolerance);
    for (int f = 0; f < NFIELDS; f++)
        same_result(what, t, 1 + f, o->values[1 + f], cache->field[f], &cache->shape[f], tolerance);
}

static const kr_ssd_algorithm algorithms[] = { KR_SSD_MINIMAL, KR_SSD_SERIAL, KR_SSD_SERIAL_RECALCULATED };

/* Calls body for every variant with and without a cache. */
static void each_task(void (*body)(const char *what, task *t))
{
    for (int i = 0; variant_at(i); i++)
        for (int initial = 0; initial < 2; initial++) {
            const variant v = *variant_at(i);
            char what[96];
            snprintf(what, sizeof what, "%s, %s", v.name, initial ? "initial" : "cache");
            task t = new_task(&v, initial != 0, NB);
            body(what, &t);
            free_task(&t);
            if (kr_test_quick() && i % 2) break;
        }
}

/* ---- values ---- */

static void check_values(const char *what, task *t)
{
    double *y = malloc(NB * NS * (size_t)t->config.d_model * sizeof *y);
    numbers_cache cache = copy_cache(&t->cache);
    reference_forward(&t->config, &t->params, NB, NS, t->x, &cache, y);
    for (int pathway = 0; pathway < 2; pathway++)
        for (int a = 0; a < 4; a++) {
            const leg whole = { NS, (kr_mamba3_pathway)pathway };
            const kr_dtype dtype = a == 3 ? KR_DTYPE_F32 : KR_DTYPE_F64;
            char text[160];
            snprintf(text, sizeof text, "%s, %s, %s, algorithm %d", what, pathway ? "double" : "single",
                     kr_dtype_name(dtype), a % 3);
            outcome o = run(t, dtype, algorithms[a % 3], 1, &whole, NULL);
            /* f32: some hundred roundings, which angles of several turns make larger */
            check_reference(text, t, &o, y, &cache, dtype == KR_DTYPE_F64 ? 1e-11 : 1e-4);
            free_outcome(&o);
            if (kr_test_quick() && a == 0) a = 2;
        }
    free_cache(&cache);
    free(y);
}

TEST(mamba3_values_are_the_recurrence)
{
    each_task(check_values);
}

/* ---- gradients: along a random direction of each operand, against differences of the recurrence ---- */

static double dot(const double *a, const double *b, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

static double reference_loss(const task *t, const double *near_turns)
{
    double *y = malloc(NB * NS * (size_t)t->config.d_model * sizeof *y);
    numbers_cache cache = t->is_initial ? new_cache(&t->config, NB) : copy_cache(&t->cache);
    if (t->is_initial) add_learned(&t->config, &t->params, &cache);
    reference_forward(&t->config, &t->params, NB, NS, t->x, &cache, y);
    if (t->config.rotation == KR_ROTATION_COMPLEX)
        nearest_turns(cache.field[ROTATION], near_turns, elements(&cache.shape[ROTATION]));
    double loss = dot(y, t->g_y, NB * NS * t->config.d_model);
    for (int f = 0; f < NFIELDS; f++) loss += dot(cache.field[f], t->g_cache.field[f], elements(&cache.shape[f]));
    free_cache(&cache);
    free(y);
    return loss;
}

/* One operand, values that the task holds, against its gradient. */
static void check_direction(const char *what, const task *t, int i, double *values, const outcome *o)
{
    const int64_t count = elements(&o->shape[i]);
    const double step = 1e-4 / sqrt((double)count); /* so far from the point, however many elements */
    static const double places[4] = { 1, -1, 2, -2 };
    double *direction = normals(count), *centre = malloc((size_t)count * sizeof *centre), loss[4];
    memcpy(centre, values, (size_t)count * sizeof *centre);
    for (int i_place = 0; i_place < 4; i_place++) {
        for (int64_t k = 0; k < count; k++) values[k] = centre[k] + places[i_place] * step * direction[k];
        loss[i_place] = reference_loss(t, o->values[1 + ROTATION]);
    }
    memcpy(values, centre, (size_t)count * sizeof *centre);
    const double got = dot(o->values[i], direction, count);
    const double want = (8 * (loss[0] - loss[1]) - (loss[2] - loss[3])) / (12 * step);
    /* the fifth derivative times step^4, and the loss's own roundings by step */
    CHECK(fabs(got - want) <= 1e-6 * (fabs(want) + sqrt((double)count)), "%s: %s along a direction: got %.9g want %.9g",
          what, result_name(t, i), got, want);
    free(centre);
    free(direction);
}

static void check_gradients(const char *what, task *t)
{
    for (int pathway = 0; pathway < 2; pathway++) {
        const leg whole = { NS, (kr_mamba3_pathway)pathway };
        char text[160];
        snprintf(text, sizeof text, "%s, %s", what, pathway ? "double" : "single");
        outcome o = run(t, KR_DTYPE_F64, KR_SSD_SERIAL_RECALCULATED, 1, &whole, NULL);
        check_direction(text, t, NVALUES, t->x, &o);
        for (int f = 0; f < NFIELDS && !t->is_initial; f++)
            check_direction(text, t, NVALUES + 1 + f, t->cache.field[f], &o);
        for (int64_t k = 0; k < t->params.count; k++) {
            const int i = (int)(2 * NVALUES + k);
            if (o.values[i]) check_direction(text, t, i, t->params.values[k], &o);
            else
                CHECK(!t->is_initial && strcmp(t->params.name[k], "init_states") == 0, "%s: no g_%s", text,
                      t->params.name[k]);
        }
        free_outcome(&o);
    }
}

TEST(mamba3_gradients_are_those_of_the_recurrence)
{
    each_task(check_gradients);
}

/* ---- parts, and changes of the pathway between them ---- */

static void check_parts(const char *what, task *t)
{
    const kr_mamba3_pathway S = KR_MAMBA3_PATHWAY_SINGLE, D = KR_MAMBA3_PATHWAY_DOUBLE;
    const struct {
        const char *name;
        int count;
        leg legs[MAX_LEGS];
    } plans[] = {
        { "double", 1, { { NS, D } } },
        { "single then double", 2, { { 4, S }, { NS - 4, D } } },
        { "double then single", 2, { { 5, D }, { NS - 5, S } } },
        { "mixed with steps", 5, { { 3, S }, { 1, D }, { 1, S }, { 1, S }, { NS - 6, D } } },
        { "steps", NS, { { 1, S }, { 1, S }, { 1, S }, { 1, D }, { 1, D }, { 1, D }, { 1, S }, { 1, D }, { 1, S } } }
    };
    const leg whole = { NS, KR_MAMBA3_PATHWAY_SINGLE };
    outcome want = run(t, KR_DTYPE_F64, KR_SSD_SERIAL_RECALCULATED, 1, &whole, NULL);
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        char text[160];
        snprintf(text, sizeof text, "%s, %s", what, plans[i].name);
        outcome got = run(t, KR_DTYPE_F64, algorithms[i % 3], plans[i].count, plans[i].legs, NULL);
        same_outcome(text, t, &got, &want, 1e-10);
        free_outcome(&got);
    }
    free_outcome(&want);
}

TEST(mamba3_pathways_may_change_on_the_way)
{
    each_task(check_parts);
}

/* ---- packed rows ---- */

/* Two rows, of 3 and 2 sequences. */
static const int32_t marks[NB * NS] = { 1, 0, 0, 1, 1, 0, 0, 0, 0, /**/ 0, 0, 0, 0, 0, 0, 7, 0, 0 };
static const struct {
    int64_t row, start, end;
} packed[] = { { 0, 0, 3 }, { 0, 3, 4 }, { 0, 4, 9 }, { 1, 0, 6 }, { 1, 6, 9 } };
enum { NPACKED = 5 };

static void pack_task(const variant *v, bool is_initial)
{
    task t = new_task(v, is_initial, NPACKED);
    const int64_t nd = t.config.d_model;
    double *y = malloc(NB * NS * (size_t)nd * sizeof *y);
    numbers_cache cache = copy_cache(&t.cache);
    for (int q = 0; q < NPACKED; q++) {
        numbers_cache one = cache; /* the fields of sequence q alone */
        for (int f = 0; f < NFIELDS; f++) one.field[f] += q * elements(&cache.shape[f]) / NPACKED;
        const int64_t at = (packed[q].row * NS + packed[q].start) * nd;
        reference_forward(&t.config, &t.params, 1, packed[q].end - packed[q].start, t.x + at, &one, y + at);
    }
    outcome first = { .values = { NULL } };
    for (int way = 0; way < 4; way++) { /* both pathways, then the other algorithms */
        const leg whole = { NS, way % 2 ? KR_MAMBA3_PATHWAY_DOUBLE : KR_MAMBA3_PATHWAY_SINGLE };
        char text[160];
        snprintf(text, sizeof text, "%s, packed, %s, way %d", v->name, is_initial ? "initial" : "caches", way);
        outcome o = run(&t, KR_DTYPE_F64, algorithms[way < 2 ? 2 : way - 2], 1, &whole, marks);
        check_reference(text, &t, &o, y, &cache, 1e-11);
        if (way == 0) {
            first = o;
            continue;
        }
        same_outcome(text, &t, &o, &first, 1e-10);
        free_outcome(&o);
    }
    free_outcome(&first);
    free_cache(&cache);
    free(y);
    free_task(&t);
}

TEST(mamba3_packed_rows_are_separate_sequences)
{
    for (int i = 0; variant_at(i); i++)
        for (int initial = 0; initial < 2; initial++) {
            const variant v = *variant_at(i);
            if (kr_test_quick() && i % 3) continue;
            pack_task(&v, initial != 0);
        }
}

/* ---- the pathway is the cache's ---- */

TEST(mamba3_pathway_is_carried)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    for (int i = 0; i < 4; i++) {
        const kr_mamba3_pathway own = i % 2 ? KR_MAMBA3_PATHWAY_DOUBLE : KR_MAMBA3_PATHWAY_SINGLE;
        const kr_mamba3_pathway given = i / 2 ? KR_MAMBA3_PATHWAY_DOUBLE : KR_MAMBA3_PATHWAY_SINGLE;
        kr_mamba3_config c = variant_at(0)->config;
        c.pathway = own;
        kr_mamba3 *m = shaken_block(ctx, &c, KR_DTYPE_F32);
        const kr_ssd_path path = kr_mamba3_path(m);
        kr_tensor *x = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(NB, NS, c.d_model)), *x_bd = kr_slice(tape, x, 1, 0, 1);
        kr_tensor *start = kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(NB, NS), marks);
        x_bd = kr_reshape(tape, x_bd, KR_SHAPE(NB, c.d_model));
        kr_mamba3_cache rows = kr_mamba3_initial_cache(tape, m, NB),
                        sequences = kr_mamba3_initial_cache(tape, m, NPACKED);
        CHECK(rows.pathway == own, "an initial cache has pathway %d", (int)rows.pathway);
        CHECK(kr_mamba3_forward(tape, m, x, NULL, path).cache.pathway == own, "no cache");
        CHECK(kr_mamba3_forward_reset(tape, m, x, start, NULL, path).cache.pathway == own, "no cache, with resets");
        rows.pathway = sequences.pathway = given;
        CHECK(kr_mamba3_forward(tape, m, x, &rows, path).cache.pathway == given, "forward");
        CHECK(kr_mamba3_forward_packed(tape, m, x, start, &sequences, path).cache.pathway == given, "packed");
        CHECK(kr_mamba3_forward_reset(tape, m, x, start, &rows, path).cache.pathway == given, "reset");
        CHECK(kr_mamba3_step(tape, m, x_bd, &rows).cache.pathway == given, "step");
        CHECK_OK(ctx);
        kr_mamba3_destroy(m);
    }
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}
