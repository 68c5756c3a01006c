/* networks_by_hand.c - the formulas of stacks and networks out of plain ops and blocks. */
#include "tests/nn/networks_by_hand.h"

/* For each token in turn the class tokens before it, then those after the last. */
static kr_tensor *splice_by_hand(kr_tape *t, kr_tensor *x, const kr_class_token *class_tokens, int count,
                                 kr_tensor *table)
{
    if (count == 0) return x;
    const int64_t len = kr_tensor_dim(x, 1), nb = kr_tensor_dim(x, 0), nd = kr_tensor_dim(x, 2);
    kr_tensor *pieces[64];
    int n = 0;
    for (int64_t token = 0; token <= len; token++) {
        for (int kind = KR_CLASS_TOKEN_START; kind <= KR_CLASS_TOKEN_CUSTOM; kind++)
            for (int i = 0; i < count; i++) {
                const int64_t place[] = { 0, len / 2, len, class_tokens[i].at };
                const bool lands = kind == KR_CLASS_TOKEN_END ? token == len : token < len;
                if ((int)class_tokens[i].kind == kind && place[kind] == token && lands)
                    pieces[n++] = kr_expand(t, kr_slice(t, table, 0, i, i + 1), KR_SHAPE(nb, 1, nd));
            }
        if (token < len) pieces[n++] = kr_slice(t, x, 1, token, token + 1);
    }
    return kr_concat(t, 1, n, pieces);
}

/* score(s, w) = d^-1/2 <s, w> / sqrt(mean(s^2) + eps), [.. 1] */
static kr_tensor *score(kr_tape *t, kr_tensor *s, kr_tensor *w, double eps)
{
    const double nd = (double)kr_tensor_dim(s, -1);
    kr_tensor *size = kr_sqrt(t, kr_affine(t, kr_mean(t, kr_mul(t, s, s), KR_AXES(-1), true), 1, eps));
    return kr_scale(t, kr_div(t, kr_sum(t, kr_mul(t, s, w), KR_AXES(-1), true), size), 1 / sqrt(nd));
}

/* sum_q e^score_q S_q / sum_q e^score_q */
static kr_tensor *pool(kr_tape *t, kr_tensor *const *streams, int64_t n, kr_tensor *w, double eps)
{
    kr_tensor *top = NULL, *bottom = NULL;
    for (int64_t q = 0; q < n; q++) {
        kr_tensor *e = kr_exp(t, score(t, streams[q], w, eps)), *part = kr_mul(t, streams[q], e);
        top = top ? kr_add(t, top, part) : part;
        bottom = bottom ? kr_add(t, bottom, e) : e;
    }
    return kr_div(t, top, bottom);
}

/* h1 + h2 as two residual branches would add them, less the residual. */
static kr_tensor *delta(kr_tape *t, const kr_layers *s, int64_t v, kr_tensor *x)
{
    const kr_layer_weights *l = &s->layers[s->real[v]];
    const kr_block_input input = { .op = "by hand",
                                   .x_bsd = kr_rms_norm(t, x, l->norm_d, &s->norm),
                                   .path = s->kind->path(l->block) };
    kr_tensor *after = kr_add(t, x, s->kind->forward(t, l->block, &input).y_bsd);
    if (l->norm2_d) {
        kr_tensor *u = kr_rms_norm(t, after, l->norm2_d, &s->norm), *part[2] = { NULL };
        kr_split(t, kr_linear(t, u, l->mlp.fc1, l->mlp.fc1_bias), -1, 2, (int64_t[]){ l->mlp.hidden, l->mlp.hidden },
                 part);
        kr_tensor *gated = kr_mul(t, part[0], kr_silu(t, part[1]));
        after = kr_add(t, after, kr_linear(t, gated, l->mlp.fc2, l->mlp.fc2_bias));
    }
    return kr_sub(t, after, x);
}

kr_tensor *stack_by_hand(kr_tape *t, const kr_layers *s, kr_tensor *x)
{
    kr_tensor *after[64];
    return s->nvirtual <= 64 ? streams_by_hand(t, s, x, after) : NULL;
}

kr_tensor *streams_by_hand(kr_tape *t, const kr_layers *s, kr_tensor *x, kr_tensor **after)
{
    const kr_residual *g = &s->config.residual;
    x = splice_by_hand(t, x, s->config.latents, s->config.n_latents, s->latents_nd);
    kr_tensor *streams[8] = { x }, *h = x;
    int64_t n = 1;
    for (int64_t v = 0; v < s->nvirtual; v++) {
        const kr_layer_weights *l = &s->layers[s->real[v]];
        h = splice_by_hand(t, h, l->latents, l->nlatents, l->latents_nd);
        for (int64_t q = 0; q < n; q++)
            streams[q] = splice_by_hand(t, streams[q], l->latents, l->nlatents, l->latents_nd);
        kr_tensor *f = delta(t, s, v, h);
        const bool first = v == 0 && s->config.ignore_first_residual;
        const bool last = v == s->nvirtual - 1 && s->config.ignore_last_residual;
        if (g->kind == KR_RESIDUAL_STANDARD) {
            after[v] = h = first || last ? f : kr_add(t, h, f);
            continue;
        }
        const kr_multi_gate *m = &s->gates[g->per_virtual_layer ? v : s->real[v]];
        if (last) {
            h = f;
        } else if (first) {
            streams[0] = h = f;
        } else {
            if (n < g->n_stream) streams[n++] = f;
            else
                for (int64_t q = 0; q < n; q++) {
                    kr_tensor *bias = kr_slice(t, m->b_beta_q, 0, q, q + 1);
                    kr_tensor *beta = kr_sigmoid(t, kr_add(t, score(t, streams[q], m->w_beta_d, m->eps), bias));
                    streams[q] = kr_add(t, kr_mul(t, kr_affine(t, beta, -1, 1), streams[q]), kr_mul(t, beta, f));
                }
            h = pool(t, streams, n, m->w_alpha_d, m->eps);
        }
        after[v] = h;
    }
    return h;
}

kr_tensor *network_by_hand(kr_tape *t, const kr_network *w, kr_tensor *x)
{
    const kr_network_config *c = &w->config;
    if (w->is_vocab) {
        kr_tensor *y = stack_by_hand(t, w->layers, kr_embedding(t, w->embedding_wd, x));
        y = kr_rms_norm(t, y, w->norm_f_d, &w->layers->norm);
        return kr_matmul(t, y, kr_transpose(t, c->tie_embeddings ? w->embedding_wd : w->head_wd));
    }
    x = splice_by_hand(t, x, c->class_tokens, c->n_class_tokens, w->class_tokens_nf);
    x = kr_add(t, kr_matmul(t, x, kr_transpose(t, w->in_proj)), w->in_proj_bias);
    kr_tensor *y = stack_by_hand(t, w->layers, x);
    if (c->has_final_norm) y = kr_rms_norm(t, y, w->norm_f_d, &w->layers->norm);
    return kr_add(t, kr_matmul(t, y, kr_transpose(t, w->out_proj)), w->out_proj_bias);
}

enum { STREAM_HEAD = 700 };

static kr_tensor *head_of(net *n, kr_tensor *y)
{
    const int64_t count = kr_tensor_count(y);
    double *values = calloc((size_t)count + 1, sizeof *values);
    if (!values) exit(2);
    for (int64_t i = 0; i < count; i++) values[i] = net_noise(STREAM_HEAD, i);
    kr_tensor *head = kr_from_data(n->tape, KR_DTYPE_F64, kr_tensor_shape(y), values);
    free(values);
    return kr_cast(n->tape, head, kr_tensor_dtype(y));
}

outcome *results_of(net *n, int64_t nb, int64_t ns, bool by_hand)
{
    outcome *o = calloc(1, sizeof *o);
    if (!o) exit(2);
    kr_tape_reset(n->tape);
    kr_params_zero_grad(n->params);
    kr_tensor *x = net_input(n, n->tape, nb, ns);
    kr_tensor *y = !by_hand     ? net_call(n, n->tape, KR_RUN_FORWARD, x, NULL).y
                   : n->network ? network_by_hand(n->tape, n->network, x)
                                : stack_by_hand(n->tape, n->layers, x);
    kr_tensor *head = y ? head_of(n, y) : NULL;
    kr_backward_from(n->tape, 1, &y, &head);
    CHECK(!kr_ctx_failed(n->ctx), "%s: %s", n->name, kr_ctx_message(n->ctx));
    const int64_t count = kr_params_count(n->params);
    for (int64_t i = -2; i < count && !kr_ctx_failed(n->ctx); i++) {
        if (i == -1 && n->recipe.ends == VOCAB) continue;
        entry *e = &o->entries[o->count++];
        const kr_tensor *of = i < 0 ? (i == -2 ? y : x) : kr_params_at(n->params, i)->tensor;
        const kr_tensor *from = i == -2 ? y : kr_grad(of);
        snprintf(e->name, sizeof e->name, "%s", i < 0 ? (i == -2 ? "y" : "g_x") : kr_params_at(n->params, i)->name);
        e->is_gradient = i > -2;
        e->shape = kr_tensor_shape(of);
        e->count = kr_tensor_count(of);
        e->values = from ? kr_test_values(from) : calloc((size_t)e->count, sizeof *e->values);
        if (!e->values) exit(2);
    }
    kr_tape_reset(n->tape);
    return o;
}
