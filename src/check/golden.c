/* golden.c - runs the cases of a file, compares outputs and gradients, reports each case and type of number.
 *
 * Tensors are CASE/in/NAME, CASE/w/NAME, CASE/out/NAME, CASE/grad/NAME; the gradients are those of the sum over outputs
 * of <w, out>. The metadata `cases` is a JSON object CASE: settings; a case's kind is its name without the number.
 */
#include "check/golden.h"

#include "base/ctx_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 256 };

/* ---- functions for builders ---- */

static const kr_tensor_file_item *find_part(const golden_run *run, const char *part, const char *name)
{
    char full[NAME_BYTES];
    const int n = snprintf(full, sizeof full, "%s/%s/%s", run->name, part, name);
    return n > 0 && n < (int)sizeof full ? kr_tensor_file_find(run->file, full) : NULL;
}

static void get_into_trouble(golden_run *run, const char *what, const char *name)
{
    if (!run->trouble[0]) snprintf(run->trouble, sizeof run->trouble, "%s %.80s", what, name);
}

/* The item's values in the run's type, a constant on the tape. */
static kr_tensor *load(golden_run *run, const kr_tensor_file_item *item)
{
    double *values = check_alloc(kr_tape_ctx(run->tape), (size_t)item->count * sizeof *values + 1);
    kr_tensor *x = NULL;
    if (values && kr_tensor_file_read(run->file, item, KR_DTYPE_F64, values, item->count) == KR_OK)
        x = kr_cast(run->tape, kr_from_data(run->tape, KR_DTYPE_F64, item->shape, values), run->dtype);
    else get_into_trouble(run, "cannot read", item->name);
    check_free(values);
    return x;
}

kr_tensor *golden_in_if(golden_run *run, const char *name)
{
    for (int i = 0; i < run->n_in; i++)
        if (!strcmp(run->in[i].name, name)) return run->in[i].tensor;
    const kr_tensor_file_item *item = find_part(run, "in", name);
    if (!item || run->n_in == GOLDEN_MOST_PARTS) return NULL;
    kr_tensor *x = kr_input(run->tape, load(run, item));
    run->in[run->n_in++] = (golden_part){ .name = name, .tensor = x };
    return x;
}

kr_tensor *golden_in(golden_run *run, const char *name)
{
    kr_tensor *x = golden_in_if(run, name);
    if (!x) get_into_trouble(run, "there is no input", name);
    return x;
}

void golden_out(golden_run *run, const char *name, kr_tensor *y)
{
    if (!find_part(run, "out", name) || run->n_out == GOLDEN_MOST_PARTS) return;
    run->out[run->n_out++] = (golden_part){ .name = name, .tensor = y };
}

void golden_out_angle(golden_run *run, const char *name, kr_tensor *y)
{
    golden_out(run, name, y);
    if (run->n_out > 0 && run->out[run->n_out - 1].tensor == y) run->out[run->n_out - 1].is_angle = true;
}

const kr_json *golden_setting(const golden_run *run, const char *key)
{
    return kr_json_find(run->settings, key);
}

/* ---- comparing ---- */

/* The worst of several comparisons, each |got - want| / max|want|. */
typedef struct worst {
    double error;
    char where[NAME_BYTES]; /* "grad/B", then the variant it was computed */
} worst;

static bool is_worse(double error, const worst *w)
{
    return isnan(error) ? !isnan(w->error) : error > w->error;
}

static double distance(const double *got, const double *want, int64_t count, bool is_angle)
{
    const double two_pi = 6.283185307179586476925;
    double difference = 0, scale = 0;
    for (int64_t i = 0; i < count; i++) {
        double d = fabs(got[i] - want[i]);
        if (is_angle) d = fabs(d - two_pi * nearbyint(d / two_pi));
        if (isnan(d)) return NAN;
        difference = fmax(difference, d);
        scale = fmax(scale, fabs(want[i]));
    }
    return scale > 0 ? difference / scale : difference;
}

/* got NULL: no gradient reached the input, which is a gradient of 0. */
static double compare(golden_run *run, const kr_tensor_file_item *item, const kr_tensor *got, bool is_angle)
{
    const kr_shape shape = kr_tensor_shape(got);
    if (got && (shape.rank != item->shape.rank ||
                memcmp(shape.dims, item->shape.dims, (size_t)shape.rank * sizeof *shape.dims) != 0)) {
        get_into_trouble(run, "another shape than that of", item->name);
        return NAN;
    }
    double *values = check_alloc(kr_tape_ctx(run->tape), (2 * (size_t)item->count + 1) * sizeof *values), error = NAN;
    if (values && kr_tensor_file_read(run->file, item, KR_DTYPE_F64, values, item->count) == KR_OK &&
        (!got || kr_tensor_read(got, KR_DTYPE_F64, values + item->count, item->count) == KR_OK))
        error = distance(values + item->count, values, item->count, is_angle);
    else get_into_trouble(run, "cannot read", item->name);
    check_free(values);
    return error;
}

/* CASE/part/NAME -> NAME, or NULL if the item is another's. */
static const char *name_in(const golden_run *run, const char *part, const kr_tensor_file_item *item)
{
    const size_t ncase = strlen(run->name), npart = strlen(part);
    const char *name = item->name;
    if (strncmp(name, run->name, ncase) != 0 || name[ncase] != '/') return NULL;
    name += ncase + 1;
    if (strncmp(name, part, npart) != 0 || name[npart] != '/') return NULL;
    return name + npart + 1;
}

static const golden_part *find_named(const golden_part *parts, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(parts[i].name, name)) return &parts[i];
    return NULL;
}

/* Everything of the file's `part` ("in", "out", "grad") against the run's; "in" only has to be known. */
static void compare_part(golden_run *run, const char *part, const char *variant, worst *w)
{
    const bool is_out = !strcmp(part, "out");
    for (int64_t i = 0; i < kr_tensor_file_count(run->file); i++) {
        const kr_tensor_file_item *item = kr_tensor_file_at(run->file, i);
        const char *name = name_in(run, part, item);
        if (!name) continue;
        const golden_part *mine =
            is_out ? find_named(run->out, run->n_out, name) : find_named(run->in, run->n_in, name);
        if (!mine) {
            get_into_trouble(run, is_out ? "this kind does not compute" : "this kind does not know", item->name);
            continue;
        }
        if (!w || run->trouble[0]) continue;
        const double error =
            compare(run, item, is_out ? mine->tensor : kr_grad(mine->tensor), mine->is_angle && is_out);
        if (!is_worse(error, w)) continue;
        w->error = error;
        snprintf(w->where, sizeof w->where, "%s/%s, %s", part, name, variant);
    }
}

static bool run_backward(golden_run *run)
{
    kr_tensor *y[GOLDEN_MOST_PARTS], *w[GOLDEN_MOST_PARTS];
    int count = 0;
    for (int i = 0; i < run->n_out; i++) {
        const kr_tensor_file_item *item = find_part(run, "w", run->out[i].name);
        if (!item) continue;
        y[count] = run->out[i].tensor;
        w[count++] = load(run, item);
    }
    return kr_backward_from(run->tape, count, y, w) == KR_OK;
}

/* ---- running ---- */

/* The results of all variants of one case in one type of number. */
typedef struct result {
    worst out, grad;
    char trouble[NAME_BYTES + 128];
} result;

static void run_way(const golden_kind *kind, golden_run *run, kr_ctx *ctx, result *r)
{
    char variant[64];
    snprintf(variant, sizeof variant, "%s%s%s", kr_ctx_isa(ctx), kind->variants[run->variant][0] ? " " : "",
             kind->variants[run->variant]);
    run->tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kind->build(run);
    if (!run->trouble[0] && !kr_ctx_failed(ctx) && run_backward(run)) {
        compare_part(run, "in", variant, NULL);
        compare_part(run, "out", variant, &r->out);
        compare_part(run, "grad", variant, &r->grad);
    }
    if (!r->trouble[0] && (run->trouble[0] || kr_ctx_failed(ctx)))
        snprintf(r->trouble, sizeof r->trouble, "%s: %.300s", variant,
                 run->trouble[0] ? run->trouble : kr_ctx_message(ctx));
    kr_ctx_clear(ctx);
    kr_tape_destroy(run->tape);
}

/* A name of the file as a terminal may have it. */
typedef struct shown_name {
    char text[64];
} shown_name;

static shown_name shown(const char *name)
{
    shown_name s;
    size_t n = 0;
    for (; name[n] && n + 1 < sizeof s.text; n++) s.text[n] = name[n] > ' ' && name[n] <= '~' ? name[n] : '?';
    s.text[n] = '\0';
    return s;
}

/* One line of the report: the errors are to be within `most`. */
static void report(check_tally *t, const char *name, const char *type, const result *r, double most)
{
    const bool out_is_ok = r->out.error <= most, grad_is_ok = r->grad.error <= most;
    const char *nl = "\n      worst: ";
    char text[2 * NAME_BYTES + 256];
    if (r->trouble[0]) snprintf(text, sizeof text, "%s  %s", type, r->trouble);
    else
        snprintf(text, sizeof text, "%s  outputs %.1e  gradients %.1e  at most %.1e%s%s%s%s", type, r->out.error,
                 r->grad.error, most, out_is_ok ? "" : nl, out_is_ok ? "" : r->out.where, grad_is_ok ? "" : nl,
                 grad_is_ok ? "" : r->grad.where);
    const bool of_out = r->out.error > r->grad.error || isnan(r->out.error);
    const double error = of_out ? r->out.error : r->grad.error;
    check_report(t, !r->trouble[0] && out_is_ok && grad_is_ok, shown(name).text, text,
                 (check_measure){ r->trouble[0] ? NAN : error, most });
}

static const golden_kind *find_kind(const char *name)
{
    size_t n = strlen(name);
    while (n > 0 && name[n - 1] >= '0' && name[n - 1] <= '9') n--;
    if (n > 0 && name[n - 1] == '_') n--;
    for (const golden_kind *kind = golden_kinds; kind->name; kind++)
        if (strlen(kind->name) == n && !memcmp(kind->name, name, n)) return kind;
    return NULL;
}

static void check_case(const kr_tensor_file *file, const kr_json *settings, int ncontexts, kr_ctx *const *contexts,
                       check_tally *t)
{
    const double most_f64 = 1e-11, least_f32 = 1e-6;
    const char *name = kr_json_key(settings);
    const golden_kind *kind = find_kind(name);
    if (!kind) {
        check_print(t, KR_CHECK_SKIPPED, shown(name).text, "unknown kind");
        return;
    }
    /* four times the reference's own f32 error: another order of sums may have an error of the opposite sign */
    const double most_f32 = fmax(least_f32, 4 * kr_json_number(kr_json_find(settings, "max_rel_f32_vs_f64"), 0));
    for (int type = 0; type < 2; type++) {
        result r = { .trouble = "" };
        const bool is_f64 = type == 0;
        for (int c = 0; c < (is_f64 ? 1 : ncontexts); c++) {
            for (int variant = 0; kind->variants[variant]; variant++) {
                golden_run run = { .file = file, .name = name, .settings = settings, .variant = variant };
                run.dtype = is_f64 ? KR_DTYPE_F64 : KR_DTYPE_F32;
                run_way(kind, &run, contexts[c], &r);
            }
        }
        report(t, name, is_f64 ? "f64" : "f32", &r, is_f64 ? most_f64 : most_f32);
    }
}

bool golden_check(check_tally *t, int ncontexts, kr_ctx *const *contexts)
{
    const char *path = t->options->ops;
    kr_tensor_file *file = kr_tensor_file_open(t->ctx, path); /* an error of a case does not touch this context */
    const char *text = kr_tensor_file_metadata(file, "cases");
    kr_json *cases = text ? kr_json_parse(t->ctx, text, strlen(text), NULL) : NULL;
    const bool ok =
        file &&
        kr_require(t->ctx, text != NULL, KR_ERR_FORMAT,
                   "%s has no metadata 'cases'; tests/golden/README.md describes such files", path) &&
        cases &&
        kr_require(t->ctx, kr_json_kind_of(cases) == KR_JSON_OBJECT, KR_ERR_FORMAT,
                   "%s: the metadata 'cases' is %s, but must be an object: the name and settings of each case", path,
                   kr_json_kind_name(kr_json_kind_of(cases)));
    t->name_width = 22;
    if (ok)
        for (const kr_json *settings = kr_json_first(cases); settings; settings = kr_json_next(settings))
            check_case(file, settings, ncontexts, contexts, t);
    kr_json_destroy(cases);
    kr_tensor_file_close(file);
    return ok;
}
