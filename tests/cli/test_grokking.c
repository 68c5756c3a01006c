/* test_grokking.c - the network that adds modulo p: its size, its two ways through a row, its loss and what is measured
 * of it. */
#include "lab/grokking.h"
#include "tests/harness.h"

static grok_values usual_values(void)
{
    return (grok_values){ .p = 97,
                          .k = 2,
                          .train_fraction = 0.5,
                          .d_model = 64,
                          .expand = 1,
                          .state_rank = 32,
                          .n_layers = 1,
                          .embedding_std = 1,
                          .steps = 100,
                          .sgd = NAN,
                          .stop_at = NAN,
                          .pr_target = GROK_ALL };
}

static grok_values small_values(void)
{
    grok_values v = usual_values();
    v.p = 7;
    v.k = 3;
    v.d_model = 8;
    v.expand = 2;
    v.state_rank = 5;
    v.n_layers = 2;
    return v;
}

TEST(grokking_has_29315_parameters)
{
    const grok_values v = usual_values();
    kr_ctx *ctx = kr_test_ctx(0, NULL);
    grok g;
    CHECK(grok_open(&g, ctx, &v, NULL), "not opened");
    const int64_t n = kr_params_elements(kr_network_params(g.net));
    CHECK(n == 29315, "%lld parameters", (long long)n);
    CHECK(kr_network_width(g.net) == 97, "%lld logits", (long long)kr_network_width(g.net));
    CHECK(g.n_matrices == 7, "%d matrices", g.n_matrices);
    int64_t rows[2];
    for (int i = 0; i < 2; i++) rows[i] = kr_source_info_of(g.sources[i]).count / 2;
    CHECK(rows[0] == 4705 && rows[1] == 4704, "%lld and %lld rows", (long long)rows[0], (long long)rows[1]);
    CHECK_OK(ctx);
    grok_close(&g);
    kr_ctx_destroy(ctx);
}

/* The rows of in_proj that the matrices claim are those that its table names. */
TEST(grokking_matrices_are_the_segments_of_the_table)
{
    static const char *const names[] = { "z", "x", "b", "c" };
    const grok_values v = small_values();
    kr_ctx *ctx = kr_test_ctx(0, NULL);
    grok g;
    CHECK(grok_open(&g, ctx, &v, NULL), "not opened");
    CHECK(g.n_matrices == 12, "%d matrices", g.n_matrices);
    for (int layer = 0; layer < 2; layer++) {
        char name[80];
        snprintf(name, sizeof name, "backbone.layers.%d.mixer.in_proj.weight", layer);
        const kr_param_row *row = kr_params_find(kr_network_params(g.net), name);
        int64_t at = 0;
        for (int i = 0; i < 4; i++) {
            const grok_matrix *m = &g.matrices[2 + 5 * layer + i];
            CHECK(m->weight == row->tensor && m->layer == layer, "%s of layer %d is another tensor", names[i], layer);
            CHECK(!strcmp(row->segments[i].name, names[i]) && !strcmp(grok_matrix_name(m->kind), names[i]),
                  "segment %d is %s, the matrix %s", i, row->segments[i].name, grok_matrix_name(m->kind));
            CHECK(m->from == at && m->to == at + row->segments[i].rows, "%s is rows %lld to %lld", names[i],
                  (long long)m->from, (long long)m->to);
            at = m->to;
        }
    }
    grok_close(&g);
    kr_ctx_destroy(ctx);
}

/* Loss and gradients of one batch, token by token or all at once. */
static double loss_of(grok *g, kr_data_part part, double *grads)
{
    kr_tape *tape = kr_tape_create(g->ctx, KR_TAPE_GRAD);
    kr_batch batch;
    IGNORE(kr_loader_next(tape, g->loaders[part], &batch));
    const kr_loss_out out = grok_loss(g, tape, &batch, NULL);
    const double loss = kr_item(out.loss);
    CHECK(out.scores.scored == kr_tensor_dim(batch.ids_bs, 0), "%lld scored", (long long)out.scores.scored);
    kr_backward(tape, out.loss);
    kr_params *params = kr_network_params(g->net);
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        kr_tensor *grad = kr_grad(kr_params_at(params, i)->tensor);
        CHECK(grad != NULL, "%s has no gradient", kr_params_at(params, i)->name);
        if (grad) kr_tensor_read(grad, KR_DTYPE_F64, grads, kr_tensor_count(grad));
        grads += kr_tensor_count(kr_params_at(params, i)->tensor);
    }
    kr_params_zero_grad(params);
    kr_tape_destroy(tape);
    return loss;
}

TEST(grokking_stepwise_is_chunked)
{
    grok_values v = small_values();
    kr_ctx *ctx = kr_test_ctx(0, NULL);
    grok g;
    CHECK(grok_open(&g, ctx, &v, NULL), "not opened");
    const int64_t n = kr_params_elements(kr_network_params(g.net));
    double *a = calloc((size_t)n, sizeof *a), *b = calloc((size_t)n, sizeof *b);
    const double chunked = loss_of(&g, KR_DATA_PART_TRAIN, a);
    v.is_stepwise = true;
    const double stepwise = loss_of(&g, KR_DATA_PART_TRAIN, b);
    CHECK_CLOSE("loss", &stepwise, &chunked, 1, NULL, 1e-6, 1);
    CHECK_CLOSE("gradients", b, a, n, NULL, 1e-5, 1e-3);
    CHECK(chunked > 1 && chunked < 6, "loss %g", chunked); /* log 7 = 1.9 */
    CHECK(g.ce == stepwise && isnan(g.auxiliary), "ce %g, auxiliary %g", g.ce, g.auxiliary);
    free(a);
    free(b);
    CHECK_OK(ctx);
    grok_close(&g);
    kr_ctx_destroy(ctx);
}

TEST(grokking_lambda_over_steps)
{
    grok_values v = usual_values();
    v.pr_lambda = -0.5;
    CHECK(grok_pr_lambda(&v, 1) == -0.5, "constant: %g", grok_pr_lambda(&v, 1));
    v.start_step = 10;
    CHECK(grok_pr_lambda(&v, 9) == 0 && grok_pr_lambda(&v, 10) == -0.5, "start");
    v.sine_period = 8;
    static const double sines[] = { 0, 0.70710678118654752, 1, 0.70710678118654752, 0, -0.70710678118654752, -1 };
    for (int i = 0; i < 7; i++) {
        const double got = grok_pr_lambda(&v, 10 + i + 8 * (i % 3)), want = -0.5 * sines[i];
        CHECK(fabs(got - want) < 1e-12, "phase %d: %g, want %g", i, got, want);
    }
    CHECK(grok_pr_lambda(&v, 3) == 0, "before the start: %g", grok_pr_lambda(&v, 3));
}

/* ---- the auxiliary terms ---- */

static double auxiliary_of(grok *g, uint64_t seed, kr_tape *tape)
{
    kr_ctx_seed(g->ctx, seed);
    kr_tensor *term = grok_auxiliary(tape, g, 5);
    return term ? kr_item(term) : NAN;
}

/* Differences of the sum of terms at some elements of each parameter, against its gradient. */
static void check_gradients(grok *g, const char *what)
{
    kr_params *params = kr_network_params(g->net);
    kr_tape *tape = kr_tape_create(g->ctx, KR_TAPE_GRAD);
    kr_params_zero_grad(params);
    kr_ctx_seed(g->ctx, 3);
    kr_backward(tape, grok_auxiliary(tape, g, 5));
    CHECK_OK(g->ctx);
    kr_tape_reset(tape);
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        kr_tensor *x = kr_params_at(params, i)->tensor, *grad = kr_grad(x);
        float *data = kr_tensor_data(x);
        for (int sample = 0; sample < 4; sample++) {
            const int64_t at = kr_test_below(kr_tensor_count(x));
            const float kept = data[at], h = 0.01F;
            double y[2];
            for (int side = 0; side < 2; side++) {
                data[at] = kept + (side ? h : -h);
                y[side] = auxiliary_of(g, 3, tape);
                kr_tape_reset(tape);
            }
            data[at] = kept;
            const double want = (y[1] - y[0]) / (2 * (double)h);
            const double got = grad ? (double)((float *)kr_tensor_data(grad))[at] : 0;
            /* f32: a sum of some twenty is known to 1e-6 of that, over 2 h; and h^2 of a curved ratio. */
            CHECK(fabs(got - want) < 3e-3 + 5e-3 * fabs(want), "%s: %s element %lld: %g, differences %g", what,
                  kr_params_at(params, i)->name, (long long)at, got, want);
        }
    }
    kr_params_zero_grad(params);
    kr_tape_destroy(tape);
}

TEST(grokking_auxiliary_gradients)
{
    static const int counts[] = { 1, 2, 4, 12 }; /* matrices of each target, of two layers */
    grok_values v = small_values();
    kr_ctx *ctx = kr_test_ctx(0, NULL);
    grok g;
    CHECK(grok_open(&g, ctx, &v, NULL), "not opened");
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    CHECK(isnan(auxiliary_of(&g, 3, tape)), "a term without a factor");
    for (v.pr_target = GROK_EMB; v.pr_target <= GROK_ALL; v.pr_target++) {
        double sum = 0;
        v.pr_lambda = 1;
        check_gradients(&g, "ratios");
        grok_weight_ratios ratios;
        CHECK(grok_measure_weights(&g, tape, &ratios), "not measured");
        int n = 0;
        for (int i = 0; i < g.n_matrices; i++) {
            const grok_matrix_kind kind = g.matrices[i].kind;
            const bool is_in[] = { kind == GROK_EMBEDDING, kind == GROK_EMBEDDING || kind == GROK_HEAD,
                                   kind == GROK_B || kind == GROK_C, true };
            if (is_in[v.pr_target]) sum += ratios.matrices[i];
            n += is_in[v.pr_target];
        }
        CHECK(n == counts[v.pr_target], "target %d has %d matrices", v.pr_target, n);
        const double got = auxiliary_of(&g, 3, tape);
        CHECK_CLOSE("what is measured is what is added", &got, &sum, 1, NULL, 1e-5, 1);
        v.pr_lambda = 0;
        v.l2_lambda = 0.1;
        check_gradients(&g, "squares");
        v.l2_lambda = 0;
        v.noise_lambda = 0.1;
        check_gradients(&g, "noise");
        v.noise_lambda = 0;
    }
    v.pr_target = GROK_ALL;
    v.noise_lambda = 1;
    const double first = auxiliary_of(&g, 3, tape);
    CHECK(first == auxiliary_of(&g, 3, tape) && first != auxiliary_of(&g, 4, tape), "noise is not the seed's");
    kr_tape_destroy(tape);
    grok_close(&g);
    kr_ctx_destroy(ctx);
}

/* ---- what is measured ---- */

/* An embedding of one frequency, and a state that is written in one direction only. */
TEST(grokking_measures_what_was_put_in)
{
    grok_values v = small_values();
    v.n_layers = 1;
    v.p = 11;
    v.k = 2;
    kr_ctx *ctx = kr_test_ctx(0, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    grok g;
    CHECK(grok_open(&g, ctx, &v, NULL), "not opened");
    float embedding[11 * 8];
    for (int t = 0; t < 11; t++)
        for (int c = 0; c < 8; c++)
            embedding[t * 8 + c] = (float)(5 + cos(2 * 3.14159265358979323846 * (3 * t + c) / 11.0));
    kr_param_write(g.matrices[0].weight, KR_DTYPE_F32, embedding, 11 * 8);
    /* Rows of B: all but one are 0, so B has one direction, and so has the state. The convolution must add none. */
    kr_tensor *in_proj = g.matrices[4].weight;
    float *rows = kr_tensor_data(in_proj);
    for (int64_t r = g.matrices[4].from + 1; r < g.matrices[4].to; r++)
        for (int c = 0; c < 8; c++) rows[r * 8 + c] = 0;
    CHECK(g.matrices[4].kind == GROK_B, "matrix 4 is not B");
    kr_param_fill(kr_params_find(kr_network_params(g.net), "backbone.layers.0.mixer.conv1d.bias")->tensor, 0);

    grok_weight_ratios weights;
    grok_state_ratios states;
    CHECK(grok_measure_weights(&g, tape, &weights) && grok_measure_states(&g, tape, &states), "not measured");
    const double got[] = { weights.frequencies,   weights.matrices[4], weights.b_symbols[0], states.pooled,
                           states.pooled_centred, states.final,        states.final_centred };
    const double want[] = { 1, 1, 1, 1, 1, 1, 1 };
    CHECK_CLOSE("ratios", got, want, 7, NULL, 1e-4, 1);
    CHECK(weights.matrices[1] > 3, "the head's ratio is %g", weights.matrices[1]);

    /* With all rows of B there are more directions. */
    kr_params_reset(kr_network_params(g.net));
    CHECK(grok_measure_weights(&g, tape, &weights) && grok_measure_states(&g, tape, &states), "not measured");
    CHECK(weights.frequencies > 3 && weights.matrices[4] > 2 && states.pooled_centred > 1.02,
          "frequencies %g, B %g, states %g", weights.frequencies, weights.matrices[4], states.pooled_centred);
    /* Measuring twice gives the same: the sample does not move on. */
    grok_state_ratios again;
    CHECK(grok_measure_states(&g, tape, &again) && !memcmp(&again, &states, sizeof again), "another sample");
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    grok_close(&g);
    kr_ctx_destroy(ctx);
}
