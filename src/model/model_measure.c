/* model_measure.c - memory needs of a model, computed from its table of parameters and its config without creating it. */
#include "model/model_impl.h"

#include "nn/block_config.h"
#include "nn/mamba1_impl.h"
#include "nn/mamba2_impl.h"
#include "nn/mamba3_impl.h"

#define OP "model.measure"

/* ---- states ---- */

static bool count_state(kr_ctx *ctx, const kr_network *net, size_t element, size_t *bytes)
{
    const kr_layers *layers = net->layers;
    double all = 0;
    for (int i = 0; i < layers->kind->ncache; i++) {
        const kr_shape shape = layers->kind->cache_shape(layers->layers[0].block, i, 1);
        double one = (double)element;
        for (int a = 0; a < shape.rank; a++) one *= (double)shape.dims[a];
        all += one;
    }
    all *= (double)layers->nvirtual;
    *bytes = all < 0x1p53 ? (size_t)all : 0; /* exact: products of whole numbers */
    return kr_require(ctx, all < 0x1p53, KR_ERR_SHAPE, OP ": a state would have %.3g bytes, too many to address", all);
}

/* ---- a forward pass ----
 *
 * Unrecorded, a layer's tensors are freed when it is done, so that a call holds those of one layer. The number of
 * elements that a block keeps for each token until its end:
 */

static int64_t mamba1_numbers(const kr_mamba1 *m)
{
    /* in_proj's 2 i; conv, dt before and after softplus, the scan's y: i each; x_proj */
    return 6 * m->ni + m->nx + 2 * m->config.state_rank;
}

static int64_t mamba2_numbers(const kr_mamba2 *m)
{
    const int64_t ngr = m->config.n_groups * m->config.state_rank;
    /* in_proj, conv, dt three times, x separately, y, the norm's y */
    return 2 * m->ni + 2 * ngr + m->nh + m->nv + 3 * m->nh + 2 * m->nssm + m->ni;
}

static int64_t mamba3_numbers(const kr_mamba3 *m)
{
    const kr_mamba3_config *c = &m->config;
    const int64_t hmr = m->nh * m->nm * c->state_rank, mgr = m->nm * c->n_groups * c->state_rank;
    const int64_t angles = m->nh * m->nrotations * (c->rotation == KR_ROTATION_QUATERNION ? 8 : 1) + m->nchannel;
    /* in_proj; B and C by group twice, by head, and rotated; angles; step coefficients; y, and its gate */
    const int64_t common = m->n_in + 4 * mgr + 2 * hmr + (m->nrotated ? 2 * hmr : 0) + angles + 8 * m->nh + 2 * m->ni;
    /* with several ranks: V, y, z, the gate's and mimo_o's products are each as wide as all of them */
    return common + (c->is_mimo ? 5 * m->nm * m->ni - m->ni : c->has_outproj_norm ? m->ni : 0);
}

static int64_t layer_numbers(const kr_layers *layers)
{
    const void *block = layers->layers[0].block;
    const kr_layers_config *c = &layers->config;
    const int64_t nhidden = c->d_intermediate ? kr_mlp_hidden(c->d_intermediate, c->mlp_multiple_of) : 0;
    const int64_t nstreams = c->residual.kind == KR_RESIDUAL_MULTI_GATE ? c->residual.n_stream : 0;
    const int64_t mixer = layers->kind->registered                   ? kr_registered_token_elements(block)
                          : layers->kind->family == KR_FAMILY_MAMBA1 ? mamba1_numbers(block)
                          : layers->kind->family == KR_FAMILY_MAMBA2 ? mamba2_numbers(block)
                                                                     : mamba3_numbers(block);
    /* the residual stream before and after, its norm input, the norm and the branch; the MLP's norm, fc1, gate and
     * branch */
    return mixer + 5 * layers->nd + (nhidden ? 3 * nhidden + 3 * layers->nd : 0) + 4 * nstreams * layers->nd;
}

/* ---- the whole ---- */

kr_status kr_model_measure(kr_ctx *ctx, const kr_model_config *config, kr_model_size *size)
{
    kr_model_values own;
    if (kr_ctx_failed(ctx)) return kr_ctx_status(ctx);
    if (!kr_require(ctx, size != NULL, KR_ERR_ARG, OP ": size is NULL")) return ctx->status;
    *size = (kr_model_size){ .parameters = 0 };
    if (!kr_model_take_config(ctx, OP, &own, config)) return ctx->status;
    kr_network *net = kr_model_declare(ctx, &own, kr_config_dtype_of(&own));
    if (!net) {
        kr_blame(ctx, OP);
        return ctx->status;
    }
    const kr_params *params = kr_network_params(net);
    const size_t element = kr_dtype_bytes(kr_config_small_dtype(kr_config_dtype_of(&own)));
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_tensor *x = kr_params_at(params, i)->tensor;
        size->weight_bytes += kr_dtype_span(kr_tensor_dtype(x), kr_count_of(x));
    }
    size->parameters = kr_params_elements(params);
    size->prefill_bytes = (size_t)layer_numbers(net->layers) * element;
    count_state(ctx, net, element, &size->state_bytes);
    kr_network_destroy(net);
    return ctx->status;
}
