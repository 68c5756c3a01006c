/* check_networks.c - the claims of the check suite on small networks of all families.
 *
 * A run reads 2 rows of TOKENS ids, at once or in pieces through states, and takes the gradients of sum(logits target).
 */
#include "check/check_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 2, TOKENS = 45, VOCAB = 40, WIDTH = 64, FIRST = 18, STEPS = 5 };

static kr_network *make_network(kr_ctx *ctx, kr_family family)
{
    kr_mamba1_config mamba1;
    kr_mamba2_config mamba2;
    kr_mamba3_config mamba3;
    kr_mamba1_config_init(&mamba1);
    kr_mamba2_config_init(&mamba2);
    kr_mamba3_config_init(&mamba3);
    mamba1.d_model = mamba2.d_model = mamba3.d_model = WIDTH;
    mamba2.state_rank = mamba3.state_rank = 16;
    mamba2.per_head_dim = mamba3.per_head_dim = 32;
    kr_layers_config stack;
    kr_layers_config_init(&stack);
    stack.block = family == KR_FAMILY_MAMBA1   ? kr_mamba1_block(&mamba1)
                  : family == KR_FAMILY_MAMBA2 ? kr_mamba2_block(&mamba2)
                                               : kr_mamba3_block(&mamba3);
    stack.n_layers = 2;
    stack.d_intermediate = WIDTH;
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &stack;
    config.vocab_size = VOCAB;
    return kr_network_create(ctx, &config);
}

static kr_tensor *part(kr_tape *tape, kr_tensor *id_bs, int64_t from, int64_t to)
{
    return kr_slice(tape, id_bs, 1, from, to);
}

/* Logits [b s w] of a piece, some tokens one by one, and the rest. */
static kr_tensor *read_in_pieces(kr_tape *tape, const kr_network *net, kr_tensor *id_bs)
{
    kr_tensor *y[STEPS + 2];
    kr_call call;
    kr_call_init(&call);
    for (int i = 0; i < STEPS + 2; i++) {
        const int64_t from = i == 0 ? 0 : FIRST + i - 1, to = i == STEPS + 1 ? TOKENS : FIRST + i;
        kr_tensor *piece = part(tape, id_bs, from, to);
        const bool is_token = i > 0 && i <= STEPS;
        if (is_token) piece = kr_reshape(tape, piece, KR_SHAPE(ROWS));
        const kr_network_out out =
            is_token ? kr_network_step(tape, net, piece, &call) : kr_network_forward(tape, net, piece, &call);
        y[i] = kr_reshape(tape, out.y, KR_SHAPE(ROWS, to - from, VOCAB));
        call.state = out.state;
    }
    return kr_concat(tape, 1, STEPS + 2, y);
}

/* Logits, then the gradients of all parameters, as doubles to be freed; NULL after an error. */
static double *run(const check_setup *setup, kr_family family, bool in_pieces, int64_t *count)
{
    kr_ctx *ctx = check_open(setup);
    kr_network *net = make_network(ctx, family);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    int32_t ids[ROWS * TOKENS];
    for (int i = 0; i < ROWS * TOKENS; i++) ids[i] = (i * i + 5 * i) % VOCAB;
    kr_tensor *target = kr_randn(tape, setup->dtype, KR_SHAPE(ROWS, TOKENS, VOCAB));
    kr_tensor *id_bs = kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(ROWS, TOKENS), ids);
    kr_tensor *y = in_pieces ? read_in_pieces(tape, net, id_bs) : kr_network_forward(tape, net, id_bs, NULL).y;
    kr_backward(tape, kr_sum(tape, kr_mul(tape, y, target), KR_ALL_AXES, false));

    const kr_params *params = kr_network_params(net);
    *count = ROWS * TOKENS * VOCAB + kr_params_elements(params);
    double *results = kr_ctx_failed(ctx) ? NULL : check_alloc(setup->tally->ctx, (size_t)*count * sizeof *results);
    if (results) {
        int64_t at = ROWS * TOKENS * VOCAB;
        kr_tensor_read(y, KR_DTYPE_F64, results, at);
        for (int64_t i = 0; i < kr_params_count(params); i++) {
            const kr_tensor *x = kr_params_at(params, i)->tensor;
            kr_tensor_read(kr_grad(x), KR_DTYPE_F64, results + at, kr_tensor_count(x));
            at += kr_tensor_count(x);
        }
    }
    if (check_failed(setup->tally, ctx)) {
        check_free(results);
        results = NULL;
    }
    kr_tape_destroy(tape);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
    return results;
}

void check_networks(check_tally *tally, const check_setup *setup, const char *name)
{
    const double most = 1e-5; /* some 100 roundings of f32 for each layer; sums of gradients over all tokens */
    for (int family = KR_FAMILY_MAMBA1; family <= KR_FAMILY_MAMBA3; family++) {
        check_setup one = *setup;
        one.threads = 1;
        int64_t count = 0;
        double *whole = run(&one, (kr_family)family, false, &count);
        double *pieces = run(&one, (kr_family)family, true, &count),
               *shared = run(setup, (kr_family)family, false, &count);
        const bool ran = whole && pieces && shared;
        char what[64], text[120] = "did not run";
        const double worst = ran ? check_distance(pieces, whole, count) : NAN;
        const bool same = ran && memcmp(shared, whole, (size_t)count * sizeof *whole) == 0;
        if (ran)
            snprintf(text, sizeof text, "worst relative error %.1e (at most %.0e), %s with %d threads", worst, most,
                     same ? "the same bits" : "other bits", setup->threads);
        if (ran && setup->threads == 1)
            snprintf(text, sizeof text, "worst relative error %.1e (at most %.0e), %s again", worst, most,
                     same ? "the same bits" : "other bits");
        snprintf(what, sizeof what, "%s network, %s: chunked = full sequence", kr_family_name((kr_family)family), name);
        check_report(tally, worst <= most && same, what, text, (check_measure){ worst, most });
        check_free(whole);
        check_free(pieces);
        check_free(shared);
    }
}
