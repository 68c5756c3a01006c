/* grokking_measure.c - measurements in addition to loss and accuracy: participation ratios of weights and of states. */
#include "lab/grokking.h"

#include <math.h>
#include <stdlib.h>

/* Of the embedding's rows, one for each symbol, as signals over the symbols. */
static bool measure_frequencies(const grok *g, double *ratio)
{
    const kr_tensor *embedding = g->matrices[0].weight;
    const int64_t nw = kr_tensor_dim(embedding, 0), nd = kr_tensor_dim(embedding, 1);
    double *table = malloc((size_t)(nw * nd + nw) * sizeof *table), *energies = table + nw * nd;
    const bool is_well = table && kr_tensor_read(embedding, KR_DTYPE_F64, table, nw * nd) == KR_OK &&
                         cli_dft_energies(nw, nd, table, energies);
    if (is_well) *ratio = cli_spread(nw / 2, energies);
    else if (!kr_ctx_failed(g->ctx))
        cli_complain(NULL, "task grokking: no memory for %lld numbers", (long long)(nw * nd));
    free(table);
    return is_well;
}

/* Of embedding W_B^T [w r], centred over the symbols. */
static bool measure_b_symbols(const grok *g, kr_tape *tape, const grok_matrix *b, double *ratio)
{
    cli_moments moments;
    const bool is_open = cli_moments_open(&moments, b->to - b->from);
    if (is_open) {
        kr_tensor *w_rd = grok_matrix_of(tape, b);
        cli_moments_add(&moments, tape, kr_matmul(tape, g->matrices[0].weight, kr_transpose(tape, w_rd)));
        *ratio = cli_moments_participation(&moments, true);
    } else {
        cli_complain(NULL, "task grokking: no memory for moments of %lld numbers", (long long)(b->to - b->from));
    }
    cli_moments_close(&moments);
    return is_open;
}

bool grok_measure_weights(const grok *g, kr_tape *tape, grok_weight_ratios *ratios)
{
    const kr_scope scope = kr_no_grad_begin(tape);
    bool is_well = measure_frequencies(g, &ratios->frequencies);
    for (int i = 0; is_well && i < g->n_matrices; i++) {
        const grok_matrix *matrix = &g->matrices[i];
        kr_tensor *ratio = cli_participation(tape, grok_matrix_of(tape, matrix));
        ratios->matrices[i] = ratio ? kr_item(ratio) : NAN;
        if (matrix->kind == GROK_B) is_well = measure_b_symbols(g, tape, matrix, &ratios->b_symbols[matrix->layer]);
    }
    kr_no_grad_end(tape, scope, 0, NULL);
    return is_well && !kr_ctx_failed(g->ctx);
}

/* ---- states ---- */

/* Of one layer. */
typedef struct state_moments {
    cli_moments pooled, final;
} state_moments;

/* Steps through ids [b k], and adds each layer's states after each step. */
static void add_states(const grok *g, kr_tape *tape, kr_tensor *ids_bs, state_moments *moments)
{
    kr_network_out out = { 0 };
    kr_call call;
    kr_call_init(&call);
    call.skip_head = true;
    for (int64_t s = 0; s < g->v->k; s++) {
        call.state = out.state;
        out = kr_network_step(tape, g->net, grok_token(tape, ids_bs, s), &call);
        for (int64_t layer = 0; out.state && layer < g->v->n_layers; layer++) {
            kr_tensor *ssm_bhpr = kr_state_cache(out.state, layer)->mamba2.ssm_bhpr;
            cli_moments_add(&moments[layer].pooled, tape, ssm_bhpr);
            if (s == g->v->k - 1) cli_moments_add(&moments[layer].final, tape, ssm_bhpr);
        }
    }
}

bool grok_measure_states(const grok *g, kr_tape *tape, grok_state_ratios *ratios)
{
    const int64_t nr = g->v->state_rank;
    state_moments moments[GROK_MAX_LAYERS] = { 0 };
    bool is_open = true;
    for (int64_t i = 0; i < g->v->n_layers; i++)
        is_open = cli_moments_open(&moments[i].pooled, nr) && cli_moments_open(&moments[i].final, nr) && is_open;
    if (!is_open) cli_complain(NULL, "task grokking: no memory for moments of %lld numbers", (long long)nr);

    const kr_scope scope = kr_no_grad_begin(tape);
    const kr_loader_position first = kr_loader_snapshot(g->sample);
    kr_batch batch;
    if (is_open && kr_loader_next(tape, g->sample, &batch) == KR_OK) add_states(g, tape, batch.ids_bs, moments);
    if (kr_loader_restore(g->sample, &first) != KR_OK) is_open = false;
    kr_no_grad_end(tape, scope, 0, NULL);

    for (int64_t i = 0; i < g->v->n_layers; i++) {
        state_moments *m = &moments[i];
        if (is_open) {
            ratios[i] = (grok_state_ratios){ .pooled = cli_moments_participation(&m->pooled, false),
                                             .pooled_centred = cli_moments_participation(&m->pooled, true),
                                             .final = cli_moments_participation(&m->final, false),
                                             .final_centred = cli_moments_participation(&m->final, true) };
        }
        cli_moments_close(&m->pooled);
        cli_moments_close(&m->final);
    }
    return is_open && !kr_ctx_failed(g->ctx);
}
