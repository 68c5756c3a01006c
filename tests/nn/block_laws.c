/* block_laws.c - the laws of blocks, each a comparison of two ways to run one.
 *
 * Tolerances are relative to the largest element of a tensor, or to FLOOR where all are small: sums that cancel keep
 * the absolute error of their terms, which are of the order of 1 here.
 */
#include "tests/nn/block_laws.h"

#include "tests/nn/block_run.h"

#define FLOOR 1

typedef struct tolerance {
    double values, gradients;
} tolerance;

/* Sums of some hundred terms in different orders, hence some units in the last place: 2^-24, 2^-53. In halves, results
 * of a projection that are rounded to other neighbours, 2^-8 and 2^-11 apart, and gradients that are summed in halves,
 * one by one. */
static tolerance tolerance_of(const rig *r)
{
    switch (r->dtype) {
    case KR_DTYPE_F64: return (tolerance){ 1e-13, 1e-12 };
    case KR_DTYPE_BF16: return (tolerance){ 2e-2, 4e-2 };
    case KR_DTYPE_F16: return (tolerance){ 2e-3, 4e-3 };
    default: return (tolerance){ 3e-6, 1e-4 };
    }
}

/* "base f64, random cache, 2 + 5" */
static const char *label(char *text, size_t bytes, const rig *r, const problem *p, const char *way)
{
    snprintf(text, bytes, "%s %s, %s cache, %s", r->name, kr_dtype_name(r->dtype), p->from_cache ? "random" : "initial",
             way);
    return text;
}

static void same(rig *r, const problem *p, const plan *way, const outcome *want)
{
    char text[160];
    const tolerance t = tolerance_of(r);
    outcome *got = run(r, p, way);
    compare(label(text, sizeof text, r, p, way->name), got, want, t.values, t.gradients, FLOOR);
    outcome_free(got);
}

/* ---- forward is step is every split ---- */

static void law_splits(rig *r, bool from_cache)
{
    static const kr_ssd_path short_chunks = { KR_SSD_SERIAL_RECALCULATED, 2 };
    static const plan ways[] = {
        { .name = "steps", .parts = { STEP, STEP, STEP, STEP, STEP, STEP, STEP } },
        { .name = "2 + 5", .parts = { 2, 5 } },
        { .name = "1 + 6", .parts = { 1, 6 } },
        { .name = "6 + step", .parts = { 6, STEP } },
        { .name = "step + 6", .parts = { STEP, 6 } },
        { .name = "2 + 3 + 2", .parts = { 2, 3, 2 }, .path = &short_chunks },
        { .name = "step + 3 + step + 1 + step", .parts = { STEP, 3, STEP, 1, STEP } },
        { .name = "from an initial cache", .initial_cache = true },
        { .name = "steps from an initial cache",
          .initial_cache = true,
          .parts = { STEP, STEP, STEP, STEP, STEP, STEP, STEP } },
    };
    static const plan mamba3_ways[] = {
        { .name = "the other pathway", .initial_cache = true, .other_pathway = true },
        { .name = "pathways in turns", .initial_cache = true, .changes_pathway = true, .parts = { 2, STEP, 2, 2 } },
    };
    const problem p = { .nb = 2, .ns = 7, .from_cache = from_cache };
    outcome *whole = run(r, &p, &(plan){ .name = "whole" });
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (!from_cache || !ways[i].initial_cache) same(r, &p, &ways[i], whole);
    for (size_t i = 0; r->kind->family == KR_FAMILY_MAMBA3 && i < sizeof mamba3_ways / sizeof *mamba3_ways; i++)
        same(r, &p, &mamba3_ways[i], whole);
    outcome_free(whole);
}

/* ---- every path ---- */

static void law_paths(rig *r, bool from_cache)
{
    if (r->kind->family == KR_FAMILY_MAMBA1) return;
    static const char *const algorithms[] = { "Minimal", "Serial", "SerialRecalculated" };
    static const int64_t chunks[] = { 1, 2, 4, 0 };
    const problem p = { .nb = 2, .ns = 7, .from_cache = from_cache };
    outcome *whole = run(r, &p, &(plan){ .name = "whole" });
    for (int a = 0; a < 3; a++)
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            char name[64];
            const kr_ssd_path path = { (kr_ssd_algorithm)a, chunks[i] };
            snprintf(name, sizeof name, "%s, chunks of %lld", algorithms[a], (long long)chunks[i]);
            if (!kr_test_quick() || (size_t)a == i % 3) same(r, &p, &(plan){ .name = name, .path = &path }, whole);
        }
    outcome_free(whole);
}

/* ---- several sequences in a row ---- */

/* Two rows of seven: lengths 3, 1, 3 and 1, 1, 5. The marker of a row's first token has no meaning where rows are
 * packed. */
static const int32_t packed_starts[] = { 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0 };

/* Three rows of seven: one that continues and forgets twice, one that forgets at once, one that never forgets. */
static const int32_t resets[] = { 0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0 };

static void law_sequences(rig *r, bool from_cache)
{
    const problem problems[] = {
        { .nb = 2, .ns = 7, .from_cache = from_cache, .starts = packed_starts },
        { .nb = 3, .ns = 7, .from_cache = from_cache, .starts = resets, .is_reset = true },
    };
    static const kr_ssd_path paths[] = { { KR_SSD_SERIAL_RECALCULATED, 0 },
                                         { KR_SSD_SERIAL_RECALCULATED, 2 },
                                         { KR_SSD_MINIMAL, 4 },
                                         { KR_SSD_SERIAL, 4 } };
    static const char *const names[2][4] = {
        { "packed", "packed, chunks of 2", "packed, Minimal", "packed, Serial" },
        { "reset", "reset, chunks of 2", "reset, Minimal", "reset, Serial" },
    };
    for (int k = 0; k < 2; k++) {
        outcome *alone = run(r, &problems[k], &(plan){ .name = "sequences alone", .by_sequence = true });
        for (int i = 0; i < (r->kind->family == KR_FAMILY_MAMBA1 ? 1 : 4); i++)
            same(r, &problems[k], &(plan){ .name = names[k][i], .path = &paths[i] }, alone);
        outcome_free(alone);
    }
}

/* ---- rows by themselves ---- */

static void law_rows(rig *r, bool from_cache)
{
    static const plan together[] = { { .name = "whole" }, { .name = "steps", .parts = { STEP, STEP, STEP } } };
    const problem p = { .nb = 5, .ns = 3, .from_cache = from_cache };
    for (int i = 0; i < 2; i++) {
        plan alone = together[i];
        alone.row_by_row = true;
        alone.name = "rows alone";
        char text[160];
        outcome *got = run(r, &p, &alone), *want = run(r, &p, &together[i]);
        compare_rows(label(text, sizeof text, r, &p, i ? "rows alone by steps" : "rows alone"), got, want);
        outcome_free(got);
        outcome_free(want);
    }
}

/* ---- gradients are derivatives ---- */

/* (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12 h: the next term of the series is of the order of h^4, and rounding leaves
 * 2^-53 times results of the order of 100, over h. */
static double difference(rig *r, const problem *p, const plan *way, int target, int64_t index, double h)
{
    double f[4];
    for (int i = 0; i < 4; i++)
        f[i] = weighed_results(r, p, way, (nudge){ target, index, (double[]){ -2, -1, 1, 2 }[i] * h });
    return (8 * (f[2] - f[1]) - (f[3] - f[0])) / (12 * h);
}

static void law_gradients(rig *r, bool from_cache)
{
    const problem p = { .nb = 2, .ns = 6, .from_cache = from_cache };
    const plan way = { .name = "differences", .initial_cache = !from_cache };
    const int probes = kr_test_quick() ? 6 : 40, targets = target_count(r, &p);
    outcome *o = run(r, &p, &way);
    for (int i = 0; o->count && i < probes; i++) {
        const int target = i % targets;
        const entry *g = target_gradient(o, target);
        if (g->count == 0) continue;
        const int64_t index = kr_test_below(g->count);
        double largest = 1;
        for (int64_t e = 0; e < g->count; e++) largest = fmax(largest, fabs(g->values[e]));
        double want = difference(r, &p, &way, target, index, 1e-4), allowed = 1e-8;
        if (fabs(g->values[index] - want) > allowed * largest) {
            /* a limit of the step may lie between: look closer, where rounding counts for more */
            want = difference(r, &p, &way, target, index, 5e-6);
            allowed = 1e-7;
        }
        char text[160];
        CHECK(fabs(g->values[index] - want) <= allowed * largest, "%s: %s[%lld]  got %.12g  want %.12g",
              label(text, sizeof text, r, &p, way.name), g->name, (long long)index, g->values[index], want);
    }
    CHECK(!kr_ctx_failed(r->ctx), "%s: %s", r->name, kr_ctx_message(r->ctx));
    outcome_free(o);
}

/* ---- a cache matters ---- */

static void law_cache_matters(rig *r)
{
    const problem initial = { .nb = 2, .ns = 7 }, from_cache = { .nb = 2, .ns = 7, .from_cache = true };
    outcome *a = run(r, &initial, &(plan){ .name = "whole" }), *b = run(r, &from_cache, &(plan){ .name = "whole" });
    double most = 0;
    for (int64_t e = 0; a->count && b->count && e < a->entries[0].count; e++)
        most = fmax(most, fabs(a->entries[0].values[e] - b->entries[0].values[e]));
    CHECK(most > 1e-3, "%s: outputs from a random cache differ from those of an initial one by %g only", r->name, most);
    outcome_free(a);
    outcome_free(b);
}

void block_laws(const block_case *c)
{
    rig f32, f64;
    if (!rig_open(&f32, c->name, c->config, KR_DTYPE_F32, 0)) return;
    if (!rig_open(&f64, c->name, c->config, KR_DTYPE_F64, 0)) {
        rig_close(&f32);
        return;
    }
    for (int from_cache = 0; from_cache < 2; from_cache++) {
        law_splits(&f32, from_cache);
        law_splits(&f64, from_cache);
        law_paths(&f64, from_cache);
        law_sequences(&f64, from_cache);
        if (!kr_test_quick()) {
            law_paths(&f32, from_cache);
            law_sequences(&f32, from_cache);
        }
        law_rows(&f32, from_cache);
        law_gradients(&f64, from_cache);
    }
    law_cache_matters(&f32);
    rig_close(&f32);
    rig_close(&f64);
}

/* ---- halves ---- */

/* Weights and projections are rounded by 2^-9 or 2^-12 of themselves; as a whole the results must not be much further
 * off. (A single one may: a step that rounding takes across a limit loses its gradient.) */
static void near(const rig *half, const outcome *got, const outcome *want)
{
    const double unit = half->dtype == KR_DTYPE_F16 ? 0x1p-12 : 0x1p-9;
    const double values = outcome_distance(got, want, false) / unit,
                 gradients = outcome_distance(got, want, true) / unit;
    CHECK(values <= 10 && gradients <= 40, "%s %s: against f32, results are off by %.2g roundings, gradients by %.2g",
          half->name, kr_dtype_name(half->dtype), values, gradients);
}

void block_laws_16bit(const block_case *c)
{
    const problem p = { .nb = 2, .ns = 7, .from_cache = true };
    rig f32, half;
    if (!rig_open(&f32, c->name, c->config, KR_DTYPE_F32, 0)) return;
    outcome *want = run(&f32, &p, &(plan){ .name = "whole" });
    for (int i = 0; i < 2; i++) {
        if (!rig_open(&half, c->name, c->config, i ? KR_DTYPE_F16 : KR_DTYPE_BF16, 0)) continue;
        outcome *got = run(&half, &p, &(plan){ .name = "whole" });
        near(&half, got, want);
        outcome_free(got);
        for (int from_cache = kr_test_quick() ? 1 : 0; from_cache < 2; from_cache++) {
            law_splits(&half, from_cache);
            law_sequences(&half, from_cache);
        }
        rig_close(&half);
    }
    outcome_free(want);
    rig_close(&f32);
}

/* ---- threads ---- */

void block_laws_threads(const block_case *c)
{
    /* tokens enough that kernels cut rows of 64 into several tasks of 16384 elements */
    enum { NB = 4, NS = 150 };
    static const plan whole = { .name = "whole" }, split = { .name = "split", .parts = { 80, STEP, 69 } },
                      packed = { .name = "packed" };
    static const plan *const ways[] = { &whole, &split, &packed };
    int32_t starts[NB * NS];
    for (int i = 0; i < NB * NS; i++) starts[i] = i % 41 == 0;
    outcome *want[3] = { NULL };
    for (int threads = 1; threads <= 3; threads++) {
        rig r;
        if (!rig_open(&r, c->name, c->config, KR_DTYPE_F32, threads)) break;
        for (int i = 0; i < 3; i++) {
            const problem p = { .nb = NB, .ns = NS, .from_cache = true, .starts = i == 2 ? starts : NULL };
            char text[160], name[64];
            snprintf(name, sizeof name, "%s, %d threads", ways[i]->name, threads);
            outcome *got = run(&r, &p, ways[i]);
            if (threads > 1) compare_bits(label(text, sizeof text, &r, &p, name), got, want[i], true);
            if (threads > 1) outcome_free(got);
            else want[i] = got;
        }
        rig_close(&r);
    }
    for (int i = 0; i < 3; i++)
        if (want[i]) outcome_free(want[i]);
}
