/* grokking_eval.c - krait task grokking --eval: accuracy of a trained network, and measurements of its weights and
 * states. */
#include "lab/grokking.h"

#include "cli/commands/cmd_report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_EXAMPLES = 5, N_STRONGEST = 5, MAX_SHOWN_TERMS = 16 };

static bool report_part(grok *g, kr_tape *tape, cli_report *r, kr_data_part part)
{
    static const char *const names[] = { "train", "test" };
    kr_batch batch;
    if (kr_loader_next(tape, g->loaders[part], &batch) != KR_OK) return false;
    const kr_loss_out out = grok_loss(g, tape, &batch, NULL);
    if (!out.loss) return false;
    const double loss = kr_item(out.loss), accuracy = (double)out.scores.right / (double)out.scores.scored;
    cli_report_open(r, names[part], false);
    cli_report_count(r, "sums", out.scores.scored);
    cli_report_number(r, "accuracy", accuracy, "%.2f %%", 100 * accuracy);
    cli_report_number(r, "loss", loss, "%.6g", loss);
    cli_report_close(r);
    kr_tape_reset(tape);
    return true;
}

/* ---- weights and states ---- */

static void report_ratio(cli_report *r, const char *key, double ratio, int64_t most)
{
    cli_report_number(r, key, ratio, "%.2f of %lld", ratio, (long long)most);
}

static bool report_weights(const grok *g, kr_tape *tape, cli_report *r)
{
    grok_weight_ratios *ratios = calloc(1, sizeof *ratios);
    const bool is_well = ratios && grok_measure_weights(g, tape, ratios);
    int64_t layer = -1;
    cli_report_open(r, "participation_of_weights", false);
    for (int i = 0; is_well && i < g->n_matrices; i++) {
        const grok_matrix *m = &g->matrices[i];
        const int64_t rows = m->to - m->from, cols = kr_tensor_dim(m->weight, 1);
        if (m->layer != layer) {
            char key[40];
            snprintf(key, sizeof key, "layer_%d", (int)m->layer);
            if (layer >= 0) cli_report_close(r);
            cli_report_open(r, key, false);
            report_ratio(r, "b_symbols", ratios->b_symbols[m->layer], g->v->state_rank);
            layer = m->layer;
        }
        report_ratio(r, grok_matrix_name(m->kind), ratios->matrices[i], rows < cols ? rows : cols);
        if (m->kind == GROK_HEAD) report_ratio(r, "emb_frequencies", ratios->frequencies, g->v->p / 2);
    }
    if (layer >= 0) cli_report_close(r);
    cli_report_close(r);
    free(ratios);
    return is_well;
}

static bool report_states(const grok *g, kr_tape *tape, cli_report *r)
{
    grok_state_ratios ratios[GROK_MAX_LAYERS];
    if (!grok_measure_states(g, tape, ratios)) return false;
    cli_report_open(r, "participation_of_states", false);
    for (int64_t layer = 0; layer < g->v->n_layers; layer++) {
        char key[40];
        snprintf(key, sizeof key, "layer_%d", (int)layer);
        cli_report_open(r, key, false);
        report_ratio(r, "pooled", ratios[layer].pooled, g->v->state_rank);
        report_ratio(r, "pooled_centred", ratios[layer].pooled_centred, g->v->state_rank);
        report_ratio(r, "final", ratios[layer].final, g->v->state_rank);
        report_ratio(r, "final_centred", ratios[layer].final_centred, g->v->state_rank);
        cli_report_close(r);
    }
    cli_report_close(r);
    return true;
}

/* The frequencies with most of the embedding's energy. */
static bool report_frequencies(const grok *g, cli_report *r)
{
    const kr_tensor *embedding = g->matrices[0].weight;
    const int64_t nw = kr_tensor_dim(embedding, 0), nd = kr_tensor_dim(embedding, 1), nf = nw / 2;
    double *table = malloc((size_t)(nw * nd + nw) * sizeof *table), *energies = table + nw * nd, sum = 0;
    const bool is_well = table && kr_tensor_read(embedding, KR_DTYPE_F64, table, nw * nd) == KR_OK &&
                         cli_dft_energies(nw, nd, table, energies);
    for (int64_t f = 0; is_well && f < nf; f++) sum += energies[f];
    cli_report_open(r, "strongest_frequencies", true);
    for (int i = 0; is_well && i < N_STRONGEST && i < nf; i++) {
        int64_t best = 0;
        for (int64_t f = 1; f < nf; f++) best = energies[f] > energies[best] ? f : best;
        const double part = energies[best] / sum;
        cli_report_open(r, NULL, false);
        cli_report_count(r, "frequency", best + 1);
        cli_report_number(r, "energy", part, "%.1f %%", 100 * part);
        cli_report_close(r);
        energies[best] = -1;
    }
    cli_report_close(r);
    free(table);
    return is_well;
}

/* ---- examples ---- */

static int largest_of(const float *x, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++) best = x[i] > x[best] ? i : best;
    return (int)best;
}

/* "31 + 88 = 22" */
static void report_example(const grok *g, cli_report *r, const int32_t *ids, int sum)
{
    char text[400];
    int n = 0, right = 0;
    for (int64_t s = 0; s < g->v->k; s++) {
        right = (int)((right + ids[s]) % g->v->p);
        if (s < MAX_SHOWN_TERMS) n += snprintf(text + n, sizeof text - (size_t)n, "%s%d", s ? " + " : "", (int)ids[s]);
    }
    snprintf(text + n, sizeof text - (size_t)n, "%s = %d, %s", g->v->k > MAX_SHOWN_TERMS ? " + ..." : "", sum,
             sum == right ? "right" : "wrong");
    cli_report_string(r, NULL, text);
}

static bool report_examples(const grok *g, kr_tape *tape, cli_report *r)
{
    kr_batch batch;
    if (kr_loader_next(tape, g->sample, &batch) != KR_OK) return false;
    const int64_t nb = kr_tensor_dim(batch.ids_bs, 0), n = nb < N_EXAMPLES ? nb : N_EXAMPLES, ns = g->v->k,
                  nw = g->v->p;
    kr_tensor *hidden_bd = grok_hidden(tape, g, kr_slice(tape, batch.ids_bs, 0, 0, n));
    kr_tensor *logits_bw = kr_linear(tape, hidden_bd, g->matrices[1].weight, NULL);
    int32_t *ids = malloc((size_t)(n * ns) * sizeof *ids);
    float *logits = malloc((size_t)(n * nw) * sizeof *logits);
    const bool is_well = ids && logits &&
                         kr_tensor_read(kr_slice(tape, batch.ids_bs, 0, 0, n), KR_DTYPE_I32, ids, n * ns) == KR_OK &&
                         kr_tensor_read(logits_bw, KR_DTYPE_F32, logits, n * nw) == KR_OK;
    cli_report_open(r, "test_examples", true);
    for (int64_t i = 0; is_well && i < n; i++) report_example(g, r, ids + i * ns, largest_of(logits + i * nw, nw));
    cli_report_close(r);
    free(ids);
    free(logits);
    kr_tape_reset(tape);
    return is_well;
}

int grok_evaluate(const grok_values *v, const char *folder)
{
    grok g;
    kr_ctx *ctx = cli_open(&v->machine, v->seed);
    bool is_well = grok_open(&g, ctx, v, folder);
    kr_tape *tape = is_well ? kr_tape_create(ctx, KR_TAPE_NO_GRAD) : NULL;
    if (is_well) {
        cli_report r;
        cli_report_begin(&r, v->is_json);
        cli_report_count(&r, "parameters", kr_params_elements(kr_network_params(g.net)));
        is_well =
            tape && report_part(&g, tape, &r, KR_DATA_PART_TRAIN) && report_part(&g, tape, &r, KR_DATA_PART_VALIDATION);
        if (is_well && !v->has_no_diagnostics) is_well = report_weights(&g, tape, &r) && report_frequencies(&g, &r);
        if (is_well && !v->has_no_diagnostics && !v->has_no_state_pr) is_well = report_states(&g, tape, &r);
        is_well = is_well && report_examples(&g, tape, &r);
        cli_report_end(&r);
        if (cli_failed(ctx)) is_well = false;
        else if (!is_well) cli_complain(NULL, "task grokking: out of memory");
    }
    kr_tape_destroy(tape);
    grok_close(&g);
    kr_ctx_destroy(ctx);
    return is_well ? CLI_OK : CLI_FAILED;
}
