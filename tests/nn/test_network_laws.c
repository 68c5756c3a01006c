/* test_network_laws.c - whole networks: against their formulas, splits, sequences, rows, threads, derivatives, limits,
 * halves. */
#include "tests/nn/differences.h"
#include "tests/nn/networks.h"
#include "tests/nn/networks_by_hand.h"

/* ---- networks of all kinds ---- */

static void untied(net_recipe *r)
{
    r->network.tie_embeddings = false;
}

static void unpadded(net_recipe *r)
{
    r->network.pad_vocab_size_multiple = 1;
    r->layers.d_intermediate = 4;
    r->layers.ignore_first_residual = true;
}

static void gated(net_recipe *r)
{
    untied(r);
    r->layers.n_virtual = 4;
    r->layers.residual = (kr_residual){ .kind = KR_RESIDUAL_MULTI_GATE,
                                        .n_stream = 2,
                                        .init_bias = -1,
                                        .init_bias_step = 0.5,
                                        .per_virtual_layer = false };
}

static void normed(net_recipe *r)
{
    r->network.has_final_norm = true;
    r->layers.d_intermediate = 4;
    r->layers.n_virtual = 3;
}

static void rotary(net_recipe *r)
{
    r->mamba3.rotation = KR_ROTATION_QUATERNION;
    r->mamba3.rope_fraction = 1;
    r->mamba2.n_groups = 2;
    r->mamba1.has_learnable_init_state = r->mamba2.has_learnable_init_state = true;
    r->mamba3.has_learnable_init_state = true;
}

static const struct {
    const char *name;
    net_ends ends;
    void (*set)(net_recipe *r);
} variants[] = { { "tied", VOCAB, NULL },
                 { "untied", VOCAB, untied },
                 { "unpadded, mlp", VOCAB, unpadded },
                 { "untied, gates", VOCAB, gated },
                 { "latent", LATENT, NULL },
                 { "latent, norm, mlp", LATENT, normed },
                 { "latent, gates", LATENT, gated },
                 { "latent, learned states", LATENT, rotary } };
enum { NVARIANTS = sizeof variants / sizeof *variants };

static net_recipe network_of(int family, int which, kr_dtype dtype)
{
    net_recipe r = net_recipe_of((kr_family)family, variants[which].ends);
    net_recipe_type(&r, dtype);
    if (variants[which].set) variants[which].set(&r);
    return r;
}

TEST(networks_are_their_formulas)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int i = 0; i < NVARIANTS; i++) {
            const net_recipe r = network_of(family, i, KR_DTYPE_F64);
            net n;
            if (!net_open(&n, variants[i].name, &r, 1)) continue;
            outcome *got = results_of(&n, 2, 5, false), *want = results_of(&n, 2, 5, true);
            net_compare(&n, &(net_problem){ .nb = 2 }, "against its formula", got, want);
            outcome_free(got);
            outcome_free(want);
            net_close(&n);
        }
}

/* ---- the laws ---- */

static const int32_t packed[] = { 1, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0 };
static const int32_t resets[] = { 0, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };

static void check_laws(net *n, bool from_state)
{
    static const net_mode ways[] = { { .name = "steps", .parts = { STEP, STEP, STEP, STEP, STEP, STEP } },
                                     { .name = "step + 2 + step + 2", .parts = { STEP, 2, STEP, 2 } },
                                     { .name = "4 + step + 1", .parts = { 4, STEP, 1 } } };
    static const net_mode alone = { .name = "alone", .alone = true };
    const net_problem plain = { .nb = 2, .ns = 6, .from_state = from_state };
    net_same(n, &plain, ways, 3);
    net_same(n, &(net_problem){ .nb = 2, .ns = 6, .from_state = from_state, .starts = packed }, &alone, 1);
    net_same(n, &(net_problem){ .nb = 3, .ns = 6, .from_state = from_state, .starts = resets, .is_reset = true },
             &alone, 1);
    net_same(n, &(net_problem){ .nb = 3, .ns = 4, .from_state = from_state }, &alone, 1);
    outcome *together = net_run(n, &plain, &(net_mode){ .name = "whole" }), *rows = net_run(n, &plain, &alone);
    compare_rows("rows alone", rows, together);
    outcome_free(together);
    outcome_free(rows);
}

TEST(networks_obey_the_laws)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int i = 0; i < NVARIANTS; i++) {
            if (kr_test_quick() && (family + i) % 3) continue;
            const net_recipe r = network_of(family, i, (family + i) % 2 ? KR_DTYPE_F64 : KR_DTYPE_F32);
            net n;
            if (!net_open(&n, variants[i].name, &r, 1)) continue;
            check_laws(&n, false);
            check_laws(&n, true);
            net_close(&n);
        }
}

TEST(networks_with_any_number_of_threads)
{
    for (int family = 0; family < NET_FAMILIES; family++) {
        net_recipe r = network_of(family, 0, KR_DTYPE_F32);
        r.mamba1.d_model = r.mamba2.d_model = r.mamba3.d_model = 32;
        r.network.vocab_size = 64;
        outcome *want = NULL;
        for (int threads = 1; threads <= 3; threads++) {
            net n;
            if (!net_open(&n, "threads", &r, threads)) break;
            const net_problem p = { .nb = 3, .ns = 120 };
            outcome *got = net_run(&n, &p, &(net_mode){ .name = "threads", .parts = { 80, STEP, 39 } });
            if (want) compare_bits("threads", got, want, true);
            if (want) outcome_free(got);
            else want = got;
            net_close(&n);
        }
        if (want) outcome_free(want);
    }
}

/* The last row of all logits, to the bit; hidden is what the head is applied to. */
TEST(last_logits_only)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int i = 0; i < NVARIANTS; i += 2) {
            const net_recipe r = network_of(family, i, KR_DTYPE_F32);
            net n;
            if (!net_open(&n, variants[i].name, &r, 1)) continue;
            kr_call call;
            kr_call_init(&call);
            kr_tensor *x = net_input(&n, n.tape, 3, 7);
            const kr_network_out all = kr_network_forward(n.tape, n.network, x, &call);
            call.last_logits_only = true;
            const kr_network_out last = kr_network_forward(n.tape, n.network, x, &call);
            CHECK_OK(n.ctx);
            const int64_t nw = kr_network_width(n.network);
            CHECK(kr_tensor_rank(last.y) == 2 && kr_tensor_rank(last.hidden) == 2 && kr_tensor_rank(all.hidden) == 3 &&
                      kr_tensor_dim(last.hidden, 1) == NET_D && kr_tensor_dim(all.y, 2) == nw,
                  "shapes");
            kr_tensor *want = kr_reshape(n.tape, kr_slice(n.tape, all.y, 1, 6, 7), KR_SHAPE(3, nw));
            CHECK_SAME(n.ctx, variants[i].name, last.y, kr_contiguous(n.tape, want), 1e-5, 1); /* fewer rows */
            for (int64_t v = 0; v < n.layers->nvirtual; v++)
                for (int k = 0; k < n.kind->ncache; k++)
                    CHECK_SAME_BITS("state", kr_state_cache(last.state, v)->tensors[k],
                                    kr_state_cache(all.state, v)->tensors[k]);
            net_close(&n);
        }
}

/* Without a head hidden is all there is. */
TEST(the_head_may_be_skipped)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int i = 0; i < NVARIANTS; i += 2) {
            const net_recipe r = network_of(family, i, KR_DTYPE_F32);
            net n;
            if (!net_open(&n, variants[i].name, &r, 1)) continue;
            kr_tensor *x = net_input(&n, n.tape, 3, 7);
            kr_call call;
            kr_call_init(&call);
            for (int last_only = 0; last_only < 2; last_only++) {
                call.last_logits_only = last_only;
                const kr_network_out want = kr_network_forward(n.tape, n.network, x, &call);
                CHECK(want.y && want.hidden && want.state, "%s: a result is missing", variants[i].name);
                call.skip_head = true;
                const kr_network_out headless = kr_network_forward(n.tape, n.network, x, &call);
                CHECK(!headless.y, "the head is skipped");
                CHECK_SAME_BITS("hidden", headless.hidden, want.hidden);
                call.skip_head = false;
            }
            CHECK_OK(n.ctx);
            net_close(&n);
        }
}

/* ---- gradients are derivatives ---- */

/* y, each element times a fixed number of its own. */
static kr_tensor *weighed(net *n, kr_tape *tape)
{
    return differences_weigh(tape, net_call(n, tape, KR_RUN_FORWARD, net_input(n, tape, 2, 4), NULL).y, 3);
}

/* (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12 h, in one element of a parameter. */
static double difference(net *n, kr_tape *tape, kr_tensor *param, int64_t at)
{
    const double h = 1e-4, kept = ((double *)kr_test_copy(param))[at];
    double f[4];
    for (int i = 0; i < 4; i++) {
        kr_test_put(param, at, kept + (double[]){ -2, -1, 1, 2 }[i] * h);
        kr_tape_reset(tape);
        f[i] = kr_item(weighed(n, tape));
    }
    kr_test_put(param, at, kept);
    return (8 * (f[2] - f[1]) - (f[3] - f[0])) / (12 * h);
}

/* What the series leaves out is of the order of h^4 times fifth derivatives, which norms of rows of 0.2 bring to some
 * 1e6; rounding leaves 2^-53 times results of the order of 10, over h: together some 1e-10 to 1e-9. */
TEST(gradients_of_networks_are_derivatives)
{
    const int probes = kr_test_quick() ? 20 : 60;
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int i = 0; i < NVARIANTS; i++) {
            if (kr_test_quick() && (family + i) % 3) continue;
            const net_recipe r = network_of(family, i, KR_DTYPE_F64);
            net n;
            if (!net_open(&n, variants[i].name, &r, 1)) continue;
            kr_backward(n.tape, weighed(&n, n.tape));
            kr_tape *tape = kr_tape_create(n.ctx, KR_TAPE_NO_GRAD);
            for (int k = 0; k < probes; k++) {
                const kr_param_row *row = kr_params_at(n.params, k % kr_params_count(n.params));
                const int64_t at = kr_test_below(kr_tensor_count(row->tensor));
                if (!CHECK(kr_grad(row->tensor) != NULL, "%s: no gradient", row->name)) continue;
                const double got = ((double *)kr_test_copy(kr_grad(row->tensor)))[at];
                const double want = difference(&n, tape, row->tensor, at);
                CHECK(fabs(got - want) <= 1e-8 * fmax(1, net_grad_size(&n, row->name)),
                      "%s %s, %s[%lld]: got %.10g want %.10g", kr_family_name((kr_family)family), n.name, row->name,
                      (long long)at, got, want);
            }
            CHECK_OK(n.ctx);
            kr_tape_destroy(tape);
            net_close(&n);
        }
}

/* ---- forever ---- */

/* Rates of 1 at least and steps of 0.05 at least: of the beginning e^-15 = 3e-7 is left after 300 steps, in the layer
 * above up to 300 times that; after 600 steps e^-30 = 1e-13, and in the fourth layer up to 600^3 / 6 times that. */
static void fast(net_recipe *r)
{
    r->mamba1.dt_limit_min = r->mamba2.dt_limit_min = r->mamba3.dt_limit_min = 0.05;
    r->mamba1.dt_limit_max = r->mamba2.dt_limit_max = r->mamba3.dt_limit_max = 5;
    r->mamba3.a_floor = 1;
    r->layers.d_intermediate = 4;
}

TEST(networks_for_ever_are_many_steps)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int which = 0; which < 4; which++) {
            net_recipe r = net_recipe_of((kr_family)family, which % 2 ? VOCAB : LATENT);
            net_recipe_type(&r, KR_DTYPE_F64);
            fast(&r);
            if (which >= 2) gated(&r);
            net n;
            if (!net_open(&n, "forever", &r, 1)) continue;
            for (int64_t i = 0; i < kr_params_count(n.params);
                 i++) { /* a_floor is Mamba-3's; A_log >= 0 is a rate of 1 */
                const kr_param_row *row = kr_params_at(n.params, i);
                double *values = kr_test_copy(row->tensor);
                for (int64_t e = 0; strstr(row->name, "A_log") && e < kr_tensor_count(row->tensor); e++)
                    values[e] = fabs(values[e]);
                kr_test_write(row->tensor, values);
            }
            kr_tape *tape = kr_tape_create(n.ctx, KR_TAPE_NO_GRAD);
            kr_state *state = kr_state_create(n.ctx, n.layers, 2);
            for (int s = 1; s <= 600; s++) {
                kr_tape_reset(tape);
                kr_call call;
                kr_call_init(&call);
                call.state = state;
                kr_tensor *x = net_input(&n, tape, 2, 1);
                x = kr_reshape(tape, x, r.ends == VOCAB ? KR_SHAPE(2) : KR_SHAPE(2, NET_INPUT));
                const net_out out = net_call(&n, tape, KR_RUN_STEP, x, &call);
                kr_state_copy(state, out.state);
                if (s != 600 && (s != 300 || which >= 2)) continue;
                CHECK_TENSORS(kr_family_name((kr_family)family), out.y, kr_network_step_infinite(tape, n.network, x),
                              s == 300 ? 1e-3 : 1e-6, 1);
            }
            CHECK_OK(n.ctx);
            kr_state_destroy(state);
            kr_tape_destroy(tape);
            net_close(&n);
        }
}

/* ---- halves ---- */

static double distance(const kr_tensor *x, const kr_tensor *y)
{
    double *a = kr_test_values(x), *b = kr_test_values(y), most = 0, size = 0;
    for (int64_t i = 0; i < kr_tensor_count(x); i++) most = fmax(most, fabs(a[i] - b[i]));
    for (int64_t i = 0; i < kr_tensor_count(x); i++) size = fmax(size, fabs(b[i]));
    free(a);
    free(b);
    return most / size;
}

static kr_tensor *carried_over(kr_tape *tape, const kr_tensor *x)
{
    double *values = kr_test_values(x);
    kr_tensor *y = kr_from_data(tape, KR_DTYPE_F64, kr_tensor_shape(x), values);
    free(values);
    return y;
}

/* The same weights in f32, after rounding to bf16. */
static void round_params(net *to, const net *halves)
{
    for (int64_t i = 0; i < kr_params_count(to->params); i++) {
        double *values = kr_test_values(kr_params_at(halves->params, i)->tensor);
        kr_tensor *x = kr_params_at(to->params, i)->tensor;
        kr_param_write(x, KR_DTYPE_F64, values, kr_tensor_count(x));
        free(values);
    }
}

/* bf16 keeps 8 bits: weights are off by 2^-9 of themselves at most. With the stream in f32 all else is as in f32, to
 * rounding. A stream of bf16 is rounded after each of some layers, by 2^-9 of its largest. */
TEST(networks_of_16bit)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int is_gated = 0; is_gated < 2; is_gated++) {
            net_recipe r = net_recipe_of((kr_family)family, VOCAB);
            r.layers.n_virtual = 3;
            r.layers.d_intermediate = 4;
            if (is_gated)
                r.layers.residual = (kr_residual){ .kind = KR_RESIDUAL_MULTI_GATE,
                                                   .n_stream = 2,
                                                   .init_bias = -1,
                                                   .init_bias_step = 0.5,
                                                   .per_virtual_layer = false };
            net nets[4]; /* f32; bf16; f32 with the weights of bf16; bf16 all along */
            for (int i = 0; i < 4; i++) {
                net_recipe_type(&r, i % 2 ? KR_DTYPE_BF16 : KR_DTYPE_F32);
                r.layers.residual_in_f32 = i < 3;
                if (!net_open(&nets[i], "halves", &r, 1)) exit(2);
            }
            round_params(&nets[2], &nets[1]);
            kr_tape *tape = kr_tape_create(nets[0].ctx, KR_TAPE_NO_GRAD);
            kr_tensor *y[4], *limit[4];
            for (int i = 0; i < 4; i++) {
                net *n = &nets[i];
                const kr_network_out out = kr_network_forward(n->tape, n->network, net_input(n, n->tape, 2, 6), NULL);
                kr_backward(n->tape, kr_sum(n->tape, kr_mul(n->tape, out.y, out.y), KR_ALL_AXES, false));
                CHECK_OK(n->ctx);
                CHECK(net_grad_size(n, "backbone.layers.0.mixer.in_proj.weight") > 0, "no gradient");
                y[i] = carried_over(tape, out.y);
                kr_tape_reset(n->tape);
                kr_tensor *one = kr_reshape(n->tape, net_input(n, n->tape, 2, 1), KR_SHAPE(2));
                limit[i] = carried_over(tape, kr_network_step_infinite(n->tape, n->network, one));
                CHECK_OK(n->ctx);
            }
            const double weights = distance(y[1], y[0]), same = distance(y[1], y[2]), stream = distance(y[3], y[1]);
            const char *name = kr_family_name((kr_family)family);
            CHECK(weights > 1e-4 && weights < 0.1, "%s: bf16 weights change logits by %g", name, weights);
            CHECK(same < 1e-5, "%s: bf16 weights and the same in f32 differ by %g", name, same);
            CHECK(distance(limit[1], limit[2]) < 1e-5 && distance(limit[3], limit[1]) > 1e-3, "%s: limits of %g, %g",
                  name, distance(limit[1], limit[2]), distance(limit[3], limit[1]));
            CHECK(stream > 1e-3 && stream < 0.1, "%s: a stream of bf16 changes logits by %g", name, stream);
            kr_tape_destroy(tape);
            for (int i = 0; i < 4; i++) net_close(&nets[i]);
        }
}
