/* test_official.c - tiny language models of the official implementation, loaded from their folders: the same logits,
 * hidden states, loss, gradients of every parameter, steps and final states.
 */
#include "tests/model/recorded.h"

static void check_forward(const recorded *r)
{
    kr_tape *t = kr_tape_create(r->ctx, KR_TAPE_GRAD);
    kr_tensor *ids = from_file(t, r, "input_ids"), *labels = from_file(t, r, "labels");
    const kr_network_out out = kr_network_forward(t, r->net, ids, NULL);
    CHECK_TENSORS("logits", out.y, from_file(t, r, "logits"), values_bound, 0);
    CHECK_TENSORS("hidden", out.hidden, from_file(t, r, "hidden"), values_bound, 0);
    check_loss(t, r, out.y, labels);
    check_gradients(t, r);
    kr_tape_destroy(t);
}

/* Token by token; the files of Mamba-3 have no steps, whose logits are the forward's then, and no states. */
static void check_steps(const recorded *r)
{
    kr_tape *t = kr_tape_create(r->ctx, KR_TAPE_NO_GRAD);
    kr_tensor *ids = from_file(t, r, "input_ids");
    kr_tensor *want = from_file(t, r, kr_tensor_file_find(r->io, "step_logits") ? "step_logits" : "logits");
    const int64_t nb = kr_tensor_dim(ids, 0), ns = kr_tensor_dim(ids, 1), nw = kr_tensor_dim(want, 2);
    kr_tensor *y[64];
    kr_call call;
    kr_call_init(&call);
    for (int64_t s = 0; s < ns && s < 64; s++) {
        kr_tensor *id = kr_reshape(t, kr_slice(t, ids, 1, s, s + 1), KR_SHAPE(nb));
        const kr_network_out out = kr_network_step(t, r->net, id, &call);
        y[s] = kr_reshape(t, out.y, KR_SHAPE(nb, 1, nw));
        call.state = out.state;
    }
    CHECK(ns <= 64, "%lld tokens", (long long)ns);
    CHECK_TENSORS("steps", kr_concat(t, 1, (int)ns, y), want, values_bound, 0);
    for (int64_t slot = 0; slot < 2; slot++) {
        char name[64];
        snprintf(name, sizeof name, "final_ssm_state/%lld", (long long)slot);
        if (!kr_tensor_file_find(r->io, name)) continue;
        const kr_cache *cache = kr_state_cache(call.state, slot);
        CHECK_TENSORS(name, cache->tensors[1], from_file(t, r, name), values_bound, 0);
        snprintf(name, sizeof name, "final_conv_state/%lld", (long long)slot);
        CHECK_TENSORS(name, cache->tensors[0], from_file(t, r, name), values_bound, 0);
    }
    kr_tape_destroy(t);
}

TEST(official_models)
{
    static const char *const names[] = { "official_lm/mamba1",           "official_lm/mamba2",
                                         "official_lm/mamba2_g2_untied", "official_lm/mamba3_siso",
                                         "official_lm/mamba3_mimo",      "official_lm/mamba3_siso_rope1_outnorm" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        recorded r;
        if (begin_recorded(&r, names[i])) {
            CHECK(kr_model_config_of(r.model)->layout == KR_LAYOUT_OFFICIAL, "%s", names[i]);
            check_forward(&r);
            check_steps(&r);
        }
        end_recorded(&r);
    }
}
