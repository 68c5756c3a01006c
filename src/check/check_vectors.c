/* check_vectors.c - runs the built-in cases of the check suite and compares them with recorded results. */
#include "check/check_vectors.h"

#include "check/check_cases.h"

#include "base/ctx_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { N_PROJECTIONS = 4, MOST_RESULTS = MOST_INPUTS + MOST_OUTPUTS };

/* ---- all cases ---- */

static const vector_table *const tables[] = { &vector_ops, &vector_products, &vector_packed_rows, &vector_kernels };
enum { N_TABLES = sizeof tables / sizeof *tables };

static int count_cases(void)
{
    int count = 0;
    for (int i = 0; i < N_TABLES; i++) count += tables[i]->count;
    return count;
}

/* The table of a case; its index there in *number. */
static const vector_table *table_of(int *number)
{
    int i = 0;
    for (; i < N_TABLES - 1 && *number >= tables[i]->count; i++) *number -= tables[i]->count;
    return tables[i];
}

static const vector_case *case_of(int number)
{
    const vector_table *table = table_of(&number);
    return &table->cases[number];
}

static uint64_t id_of(int number)
{
    const vector_table *table = table_of(&number);
    return table->first_id + (uint64_t)number;
}

/* ---- running and projecting ---- */

/* Sums of a tensor's elements with fixed signs, and the scale of their rounding errors: the root of the sum of squares. */
typedef struct projection {
    double sum[N_PROJECTIONS], scale;
} projection;

typedef struct vector_results {
    int n_in, n_out;
    projection of[MOST_RESULTS]; /* outputs, then gradients of the inputs */
    char error[200];             /* "": none */
} vector_results;

static bool project(kr_ctx *ctx, const kr_tensor *x, int64_t count, uint64_t key, projection *p)
{
    *p = (projection){ { 0 }, 0 };
    if (!x) return true; /* no gradient arrived: 0 */
    double *values = check_alloc(ctx, (size_t)count * sizeof *values);
    const bool ok = values && kr_tensor_read(x, KR_DTYPE_F64, values, count) == KR_OK;
    for (int64_t i = 0; ok && i < count; i++) {
        const uint64_t signs = vector_hash(key, 7, (uint64_t)i);
        for (int k = 0; k < N_PROJECTIONS; k++) p->sum[k] += (signs >> k) & 1 ? values[i] : -values[i];
        p->scale += values[i] * values[i];
    }
    p->scale = sqrt(p->scale);
    check_free(values);
    return ok;
}

/* Starts the backward pass from exact multiples of 1/16. */
static kr_tensor *output_gradient(vector_run *r, int o)
{
    const kr_shape shape = kr_tensor_shape(r->out[o]);
    const int64_t count = vector_elements(shape);
    double *values = check_alloc(kr_tape_ctx(r->tape), (size_t)count * sizeof *values);
    if (!values) return NULL;
    for (int64_t i = 0; i < count; i++)
        values[i] = (double)(vector_hash(r->id, 1000 + (uint64_t)o, (uint64_t)i) % 31) / 16 - 15.0 / 16;
    kr_tensor *g = kr_cast(r->tape, kr_from_data(r->tape, KR_DTYPE_F64, shape, values), r->dtype);
    check_free(values);
    return g;
}

static void run_case(kr_ctx *ctx, kr_dtype dtype, int number, vector_results *results)
{
    *results = (vector_results){ .error = "" };
    vector_run r = { .tape = kr_tape_create(ctx, KR_TAPE_GRAD), .dtype = dtype, .id = id_of(number) };
    case_of(number)->build(&r, r.tape);
    kr_tensor *g[MOST_OUTPUTS];
    for (int o = 0; o < r.n_out; o++) g[o] = output_gradient(&r, o);
    bool ok = !kr_ctx_failed(ctx) && kr_backward_from(r.tape, r.n_out, r.out, g) == KR_OK;
    results->n_out = r.n_out;
    results->n_in = r.n_in;
    for (int o = 0; ok && o < r.n_out; o++)
        ok = project(ctx, r.out[o], kr_tensor_count(r.out[o]), r.id * 100 + (uint64_t)o, &results->of[o]);
    for (int i = 0; ok && i < r.n_in; i++)
        ok = project(ctx, kr_grad(r.in[i]), kr_tensor_count(r.in[i]), r.id * 100 + 50 + (uint64_t)i,
                     &results->of[r.n_out + i]);
    if (!ok)
        snprintf(results->error, sizeof results->error, "%.190s",
                 kr_ctx_failed(ctx) ? kr_ctx_message(ctx) : "out of memory");
    kr_ctx_clear(ctx);
    kr_tape_destroy(r.tape);
}

bool check_vectors_at(int number, const char **name, const char **kernels)
{
    if (number < 0 || number >= count_cases()) return false;
    *name = case_of(number)->name;
    *kernels = case_of(number)->kernels;
    return true;
}

bool check_vectors_try(kr_ctx *ctx, kr_dtype dtype, int number)
{
    vector_results results;
    run_case(ctx, dtype, number, &results);
    return kr_require(ctx, !results.error[0], KR_ERR_INTERNAL, "%s: %s", case_of(number)->name, results.error);
}

/* ---- recorded results ---- */

typedef struct vector_record {
    const char *name;
    int n_out, n_in;
    projection of[MOST_RESULTS];
} vector_record;

static const vector_record records[] = {
#include "check/check_vectors.inc"
    { 0 },
};

static const vector_record *record_of(const char *name)
{
    for (const vector_record *r = records; r->name; r++)
        if (!strcmp(r->name, name)) return r;
    return NULL;
}

/* A case's results as a row of check_vectors.inc; false: it does not fit. */
static bool write_record(const char *name, const vector_results *v, char *text, size_t bytes)
{
    int n = snprintf(text, bytes, "{ \"%s\",\n  %d,\n  %d,\n  {\n", name, v->n_out, v->n_in);
    for (int i = 0; i < v->n_out + v->n_in; i++) {
        const projection *p = &v->of[i];
        if (n < 0 || (size_t)n >= bytes) return false;
        n += snprintf(text + n, bytes - (size_t)n, "      { { %.14g, %.14g, %.14g, %.14g }, %.8g },\n", p->sum[0],
                      p->sum[1], p->sum[2], p->sum[3], p->scale);
    }
    if (n < 0 || (size_t)n >= bytes) return false;
    n += snprintf(text + n, bytes - (size_t)n, "  } },");
    return n > 0 && (size_t)n < bytes;
}

bool check_vectors_record(check_tally *t)
{
    char text[200 * (MOST_RESULTS + 1)];
    kr_ctx *ctx = check_open(&(check_setup){ .isa = "ref", .threads = 1, .device = "cpu", .tally = t });
    bool ok = !kr_ctx_failed(ctx) || check_give_up(t, ctx);
    if (ok) check_print(t, KR_CHECK_HEADING, NULL, "/* check_vectors.inc - written by krait check --record. */");
    for (int n = 0; ok && n < count_cases(); n++) {
        vector_results v;
        run_case(ctx, KR_DTYPE_F64, n, &v);
        ok = kr_require(t->ctx, !v.error[0] && write_record(case_of(n)->name, &v, text, sizeof text), KR_ERR_INTERNAL,
                        "%s: %s", case_of(n)->name, v.error);
        if (ok) check_print(t, KR_CHECK_HEADING, NULL, text);
    }
    kr_ctx_destroy(ctx);
    return ok;
}

/* ---- comparing ---- */

typedef struct vector_worst {
    double error;
    char where[96];
} vector_worst;

/* The worst difference of a case's projections, relative to the norm of the recorded tensor. */
static void compare_case(int number, const vector_results *got, vector_worst *worst)
{
    const vector_record *want = record_of(case_of(number)->name);
    *worst = (vector_worst){ 0, "" };
    if (!want || want->n_out != got->n_out || want->n_in != got->n_in) {
        *worst = (vector_worst){ NAN, "the recorded results are of another version" };
        return;
    }
    for (int i = 0; i < got->n_out + got->n_in; i++) {
        double difference = 0;
        for (int k = 0; k < N_PROJECTIONS; k++) {
            const double d = fabs(got->of[i].sum[k] - want->of[i].sum[k]);
            difference = d > difference || isnan(d) ? d : difference;
        }
        const double error = want->of[i].scale > 0 ? difference / want->of[i].scale : difference;
        if (!(error > worst->error || isnan(error))) continue;
        worst->error = error;
        if (i < got->n_out) snprintf(worst->where, sizeof worst->where, "output %d", i);
        else snprintf(worst->where, sizeof worst->where, "the gradient of input %d", i - got->n_out);
        if (isnan(error)) return;
    }
}

void check_vectors(check_tally *tally, const check_setup *setup, const char *name)
{
    const bool is_f64 = setup->dtype == KR_DTYPE_F64;
    /* f32: rounding errors of a tensor's elements add up like a random walk, so that they stay within some units in the
     * last place of its norm; long sums before that add a few times as much. Devices sum in other orders and have their
     * own math functions. f64: 14 printed digits. */
    const double most = is_f64 ? 1e-11 : strcmp(name, setup->isa ? setup->isa : "") == 0 ? 5e-6 : 2e-5;
    char what[96], text[320];
    kr_ctx *ctx = check_open(setup);
    vector_worst worst = { 0, "" };
    int nfailed = 0;
    if (check_failed(tally, ctx)) nfailed = count_cases();
    for (int n = 0; n < count_cases() && !kr_ctx_failed(ctx); n++) {
        const char *kernels = case_of(n)->kernels;
        vector_results got;
        vector_worst here;
        run_case(ctx, setup->dtype, n, &got);
        compare_case(n, &got, &here);
        if (!got.error[0] && here.error <= most) {
            if (here.error > worst.error) {
                worst.error = here.error;
                snprintf(worst.where, sizeof worst.where, "%.30s, %.50s", case_of(n)->name, here.where);
            }
            continue;
        }
        nfailed++;
        snprintf(what, sizeof what, "recorded %s, %s", case_of(n)->name, name);
        if (got.error[0]) snprintf(text, sizeof text, "%s", got.error);
        else
            snprintf(text, sizeof text, "relative error %.1e in %.60s (at most %.0e): %s%.130s of %s is wrong",
                     here.error, here.where, most, kernels ? "kernel " : "", kernels ? kernels : "code", name);
        check_report_kernel(tally, what, text, kernels, (check_measure){ got.error[0] ? NAN : here.error, most });
    }
    snprintf(what, sizeof what, "recorded results, %s: %d cases", name, count_cases());
    if (nfailed) snprintf(text, sizeof text, "%d of them differ", nfailed);
    else snprintf(text, sizeof text, "worst relative error %.1e in %s (at most %.0e)", worst.error, worst.where, most);
    check_report(tally, nfailed == 0, what, text, (check_measure){ nfailed ? NAN : worst.error, most });
    kr_ctx_destroy(ctx);
}
