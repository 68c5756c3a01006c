/* recorded.h - a model of tests/golden, loaded from its folder, and what another implementation made of it, in f32.
 *
 * Both sides round, so the bound is some 40 roundings of the largest element, and for gradients, which are sums over all
 * tokens, four times that.
 */
#ifndef KR_TESTS_MODEL_RECORDED_H
#define KR_TESTS_MODEL_RECORDED_H

#include "tests/harness.h"

static const double values_bound = 2.5e-6, gradients_bound = 1e-5;

typedef struct recorded {
    const char *name; /* of the folder */
    kr_ctx *ctx;
    kr_model *model;
    const kr_network *net;
    kr_tensor_file *io;
} recorded;

static inline const char *golden_path(const char *name, const char *file)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/%s%s%s", KR_SOURCE_DIR, name, file ? "/" : "", file ? file : "");
    return path;
}

static inline bool begin_recorded(recorded *r, const char *name)
{
    *r = (recorded){ .name = name, .ctx = kr_test_ctx(0, NULL) };
    r->model = kr_model_load(r->ctx, golden_path(name, NULL), NULL);
    r->net = kr_model_network(r->model);
    r->io = kr_tensor_file_open(r->ctx, golden_path(name, "io.safetensors"));
    return CHECK(r->model && r->io, "%s: %s", name, kr_ctx_message(r->ctx));
}

static inline void end_recorded(recorded *r)
{
    CHECK(!kr_ctx_failed(r->ctx), "%s: %s", r->name, kr_ctx_message(r->ctx));
    kr_tensor_file_close(r->io);
    kr_model_destroy(r->model);
    kr_ctx_destroy(r->ctx);
}

/* A tensor of the file on the tape; NULL if there is none. */
static inline kr_tensor *from_file(kr_tape *t, const recorded *r, const char *name)
{
    const kr_tensor_file_item *item = kr_tensor_file_find(r->io, name);
    return item ? kr_from_data(t, item->dtype, item->shape, item->data) : NULL;
}

/* Mean cross-entropy of logits [b s w] against labels [b s], of the file's `loss`, and its backward pass. */
static inline void check_loss(kr_tape *t, const recorded *r, kr_tensor *logits, kr_tensor *labels)
{
    kr_tensor *label_bs1 = kr_reshape(t, labels, KR_SHAPE(kr_tensor_dim(labels, 0), kr_tensor_dim(labels, 1), 1));
    kr_tensor *right = kr_gather(t, kr_log_softmax(t, logits, -1), 2, label_bs1);
    kr_tensor *loss = kr_neg(t, kr_mean(t, right, KR_ALL_AXES, false));
    kr_backward(t, loss);
    const double want = kr_item(from_file(t, r, "loss"));
    CHECK(fabs(kr_item(loss) - want) < values_bound * want, "%s: loss %.9g, not %.9g", r->name, kr_item(loss), want);
}

/* Every parameter's gradient; the file calls the embedding as its layout does. */
static inline void check_gradients(kr_tape *t, const recorded *r)
{
    const kr_params *params = kr_network_params(r->net);
    const bool is_hf = kr_model_config_of(r->model)->layout == KR_LAYOUT_HF;
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_param_row *row = kr_params_at(params, i);
        const bool is_embedding = strcmp(row->name, "backbone.embedding.weight") == 0;
        char name[200];
        snprintf(name, sizeof name, "grad/%s", is_hf && is_embedding ? "backbone.embeddings.weight" : row->name);
        kr_tensor *g = from_file(t, r, name);
        if (CHECK(g && kr_grad(row->tensor), "%s: no %s", r->name, name))
            CHECK_TENSORS(name, kr_grad(row->tensor), g, gradients_bound, 0);
    }
}

#endif
