/* paths.c - builds, runs and compares state space cases. */
#include "tests/mixer/paths.h"

const char *const result_names[MAX_RESULTS] = { "y",        "final",   "g_v", "g_b",       "g_c",      "g_da",
                                                "g_weight", "g_gamma", "g_d", "g_initial", "g_learned" };

enum { V, B, C, DA, WEIGHT, GAMMA, D, INITIAL, LEARNED };

static int64_t count_of(const kr_shape *shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape->rank; i++) count *= shape->dims[i];
    return count;
}

/* [b s rest] or [b n l rest] */
static kr_shape token_shape(const ssd_case *c, int nrest, const int64_t *rest)
{
    kr_shape shape = c->cut ? KR_SHAPE(c->nb, c->ns / c->nl, c->nl) : KR_SHAPE(c->nb, c->ns);
    for (int i = 0; i < nrest; i++) shape.dims[shape.rank++] = rest[i];
    return shape;
}

/* Rounded to f32, so that f32 and f64 runs start from the same numbers. */
static double *draw(const kr_shape *shape, double mean, double std, bool uniform)
{
    const int64_t count = count_of(shape);
    double *values = malloc((size_t)(count + 1) * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)(uniform ? kr_test_uniform(mean - std, mean + std) : mean + std * kr_test_normal());
    return values;
}

static int64_t mark_starts(const ssd_case *c, operands *o)
{
    o->start_shape = token_shape(c, 0, NULL);
    o->seq_start = calloc((size_t)(c->nb * c->ns), sizeof *o->seq_start);
    int64_t nq = c->nb;
    for (int64_t b = 0; b < c->nb; b++)
        for (int64_t s = 1; s < c->ns; s++)
            if (c->packed && kr_test_below(5) == 0) {
                o->seq_start[b * c->ns + s] = 1;
                nq++;
            }
    return nq;
}

operands make_operands(const ssd_case *c)
{
    operands o = { .seq_start = NULL };
    const int64_t nq = mark_starts(c, &o);
    const bool ranked = c->family != MAMBA2;
    const int64_t v[] = { c->nm, c->nh, c->np }, bc[] = { c->nm, c->ng, c->nr };
    const double decay = c->decay != 0 ? c->decay : 0.15;
    o.shapes[V] = token_shape(c, ranked ? 3 : 2, ranked ? v : v + 1);
    o.shapes[B] = o.shapes[C] = token_shape(c, ranked ? 3 : 2, ranked ? bc : bc + 1);
    o.shapes[DA] = token_shape(c, 1, &c->nh);
    o.values[V] = draw(&o.shapes[V], 0, 1, false);
    o.values[B] = draw(&o.shapes[B], 0, 1, false);
    o.values[C] = draw(&o.shapes[C], 0, 1, false);
    if (c->family == MAMBA2) { /* dt > 0 and A < 0 */
        o.values[DA] = draw(&o.shapes[DA], 0.175, 0.125, true);
        o.shapes[WEIGHT] = KR_SHAPE(c->nh);
        o.values[WEIGHT] = draw(&o.shapes[WEIGHT], -5 * decay, 1.6 * decay, true);
    } else {
        o.values[DA] = draw(&o.shapes[DA], -decay, decay, true);
    }
    if (c->family == MAMBA3_SINGLE) {
        o.shapes[WEIGHT] = o.shapes[GAMMA] = o.shapes[DA];
        o.values[WEIGHT] = draw(&o.shapes[DA], 0.5, 0.5, true);
        o.values[GAMMA] = draw(&o.shapes[DA], 0.5, 0.5, true);
    }
    if (c->skip) {
        o.shapes[D] = KR_SHAPE(c->nh);
        o.values[D] = draw(&o.shapes[D], 0, 0.5, false);
    }
    o.y_shape = o.shapes[V];
    o.final_shape = KR_SHAPE(nq, c->nh, c->np, c->nr);
    if (c->initial) {
        o.shapes[INITIAL] = o.final_shape;
        o.values[INITIAL] = draw(&o.final_shape, 0, 0.5, false);
    }
    if (c->learned) {
        o.shapes[LEARNED] = KR_SHAPE(c->nh, c->np, c->nr);
        o.values[LEARNED] = draw(&o.shapes[LEARNED], 0, 0.5, false);
    }
    o.g_y = draw(&o.y_shape, 0, 1, false);
    o.g_final = draw(&o.final_shape, 0, 1, false);
    return o;
}

void free_operands(operands *o)
{
    for (int i = 0; i < MAX_OPERANDS; i++) free(o->values[i]);
    free(o->g_y);
    free(o->g_final);
    free(o->seq_start);
}

static kr_tensor *constant(kr_tape *tape, kr_dtype dtype, const double *values, kr_shape shape)
{
    return values ? kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, shape, values), dtype) : NULL;
}

static kr_ssd_out run_family(kr_tape *tape, const ssd_case *c, kr_tensor *const *in, kr_tensor *starts,
                             kr_ssd_path path)
{
    if (c->family == MAMBA2)
        return kr_mamba2_ssd_run(tape,
                                 &(kr_mamba2_ssd_input){ .x_bshp = in[V],
                                                         .dt_bsh = in[DA],
                                                         .a_decay_h = in[WEIGHT],
                                                         .b_bsgr = in[B],
                                                         .c_bsgr = in[C],
                                                         .d_h = in[D],
                                                         .initial_state_bhpr = in[INITIAL],
                                                         .learned_init_hpr = in[LEARNED],
                                                         .seq_start_bs = starts },
                                 path);
    if (c->family == MAMBA3_DOUBLE)
        return kr_mamba3_double_ssd_run(tape,
                                        &(kr_mamba3_double_ssd_input){ .v_bsmhp = in[V],
                                                                       .da_bsh = in[DA],
                                                                       .b_bsmhr = in[B],
                                                                       .c_bsmhr = in[C],
                                                                       .initial_state_bhpr = in[INITIAL],
                                                                       .learned_init_hpr = in[LEARNED],
                                                                       .seq_start_bs = starts,
                                                                       .d_h = in[D] },
                                        path);
    return kr_mamba3_single_ssd_run(tape,
                                    &(kr_mamba3_single_ssd_input){ .v_bsmhp = in[V],
                                                                   .b_bsmhr = in[B],
                                                                   .c_bsmhr = in[C],
                                                                   .da_bsh = in[DA],
                                                                   .gamma_bsh = in[GAMMA],
                                                                   .scale_bsh = in[WEIGHT],
                                                                   .initial_state_bhpr = in[INITIAL],
                                                                   .learned_init_hpr = in[LEARNED],
                                                                   .seq_start_bs = starts,
                                                                   .d_h = in[D] },
                                    path);
}

static void store(results *r, int i, const kr_tensor *x)
{
    if (!x) return;
    r->values[i] = kr_test_values(x);
    r->counts[i] = kr_tensor_count(x);
    r->shapes[i] = kr_tensor_shape(x);
}

results run_case(const ssd_case *c, const operands *o, kr_dtype dtype, kr_ssd_algorithm algorithm, const char *isa,
                 int threads, size_t *peak)
{
    results r = { .counts = { 0 } };
    kr_ctx *ctx = kr_test_ctx(threads, isa);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *in[MAX_OPERANDS] = { NULL };
    for (int i = 0; i < MAX_OPERANDS; i++)
        if (o->values[i]) in[i] = kr_input(tape, constant(tape, dtype, o->values[i], o->shapes[i]));
    kr_tensor *starts = c->packed ? kr_from_data(tape, KR_DTYPE_I32, o->start_shape, o->seq_start) : NULL;
    kr_tensor *g[2] = { constant(tape, dtype, o->g_y, o->y_shape), constant(tape, dtype, o->g_final, o->final_shape) };
    const size_t before = kr_ctx_memory(ctx).live_bytes;
    const kr_ssd_out out = run_family(tape, c, in, starts, (kr_ssd_path){ algorithm, c->cut ? 0 : c->nl });
    if (CHECK_OK(ctx)) {
        kr_backward_from(tape, 2, (kr_tensor *[]){ out.y, out.final_state }, g);
        CHECK_OK(ctx);
    }
    store(&r, 0, out.y);
    store(&r, 1, out.final_state);
    for (int i = 0; i < MAX_OPERANDS; i++) store(&r, i + 2, kr_grad(in[i]));
    if (peak) *peak = kr_ctx_memory(ctx).peak_bytes - before;
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
    return r;
}

void free_results(results *r)
{
    for (int i = 0; i < MAX_RESULTS; i++) free(r->values[i]);
}

void compare_results(const char *what, const results *got, const results *want, double values, double gradients,
                     double floor)
{
    for (int i = 0; i < MAX_RESULTS; i++) {
        char name[512];
        snprintf(name, sizeof name, "%s: %s", what, result_names[i]);
        if (!CHECK(got->counts[i] == want->counts[i], "%s has %lld elements, but expected %lld", name,
                   (long long)got->counts[i], (long long)want->counts[i]))
            continue;
        CHECK_CLOSE(name, got->values[i], want->values[i], want->counts[i], &want->shapes[i],
                    i < 2 ? values : gradients, floor);
    }
}

const char *case_text(const ssd_case *c, char *text, size_t bytes)
{
    static const char *const names[] = { "mamba2", "mamba3 double", "mamba3 single" };
    snprintf(text, bytes, "%s b %lld s %lld m %lld h %lld p %lld g %lld r %lld l %lld%s%s%s%s%s", names[c->family],
             (long long)c->nb, (long long)c->ns, (long long)c->nm, (long long)c->nh, (long long)c->np, (long long)c->ng,
             (long long)c->nr, (long long)c->nl, c->cut ? " cut" : "", c->initial ? " initial" : "",
             c->learned ? " learned" : "", c->skip ? " skip" : "", c->packed ? " packed" : "");
    return text;
}
