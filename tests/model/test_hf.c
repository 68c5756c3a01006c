/* test_hf.c - tiny language models as Hugging Face's transformers saves them, loaded from their folders: the same logits,
 * residual streams, loss, gradients, padded rows and greedy text.
 */
#include "tests/model/recorded.h"

static const char *const names[] = { "hf_mamba/tied", "hf_mamba2/g1_untied", "hf_mamba2/g2_untied" };

#define FOR_ALL(r)                                                                                                     \
    for (size_t i_ = 0; i_ < sizeof names / sizeof *names; i_++)                                                       \
        for (recorded r, *on_ = begin_recorded(&r, names[i_]) ? &r : NULL; on_; end_recorded(&r), on_ = NULL)

TEST(hf_logits_loss_and_gradients)
{
    FOR_ALL(r)
    {
        kr_tape *t = kr_tape_create(r.ctx, KR_TAPE_GRAD);
        kr_tensor *ids = from_file(t, &r, "input_ids");
        const int64_t ns = kr_tensor_dim(ids, 1);
        CHECK(kr_model_config_of(r.model)->layout == KR_LAYOUT_HF, "%s", r.name);
        const kr_network_out out = kr_network_forward(t, r.net, ids, NULL);
        CHECK_TENSORS("logits", out.y, from_file(t, &r, "logits"), values_bound, 0);
        CHECK_TENSORS("logits_f64", kr_cast(t, out.y, KR_DTYPE_F64), from_file(t, &r, "logits_f64"), values_bound, 0);
        /* each token is held against the one before it */
        check_loss(t, &r, kr_slice(t, out.y, 1, 0, ns - 1), kr_slice(t, ids, 1, 1, ns));
        check_gradients(t, &r);
        kr_tape_destroy(t);
    }
}

TEST(hf_residual_streams)
{
    FOR_ALL(r)
    {
        kr_tape *t = kr_tape_create(r.ctx, KR_TAPE_NO_GRAD);
        kr_tensor *streams[2] = { NULL, NULL };
        kr_call call;
        kr_call_init(&call);
        call.streams = streams;
        const kr_network_out out = kr_network_forward(t, r.net, from_file(t, &r, "input_ids"), &call);
        CHECK_TENSORS("hidden/0", streams[0], from_file(t, &r, "hidden/0"), values_bound, 0);
        CHECK_TENSORS("hidden/1", streams[1], from_file(t, &r, "hidden/1"), values_bound, 0);
        CHECK_TENSORS("hidden/2", out.hidden, from_file(t, &r, "hidden/2"), values_bound, 0);
        kr_tape_destroy(t);
    }
}

/* Pad positions too: what they are given does not matter, but it is the same. */
TEST(hf_padded_rows)
{
    FOR_ALL(r)
    {
        kr_tape *t = kr_tape_create(r.ctx, KR_TAPE_NO_GRAD);
        kr_call call;
        kr_call_init(&call);
        call.mask_bs = from_file(t, &r, "padded_mask");
        const kr_network_out out = kr_network_forward(t, r.net, from_file(t, &r, "padded_ids"), &call);
        CHECK_TENSORS("padded_logits", out.y, from_file(t, &r, "padded_logits"), values_bound, 0);
        kr_tape_destroy(t);
    }
}

/* The largest but for one. */
static int64_t best_but(const kr_tensor *y_bw, int64_t row, int64_t never)
{
    int64_t best = -1;
    double most = 0;
    for (int64_t w = 0; w < kr_tensor_dim(y_bw, 1); w++) {
        const double x = kr_tensor_at(y_bw, (int64_t[]){ row, w });
        if (w != never && (best < 0 || x > most)) {
            best = w;
            most = x;
        }
    }
    return best;
}

/* gen_ids: 12 tokens that were given, then greedy ones of which none is the end. */
TEST(hf_greedy_text)
{
    enum { GIVEN = 12, ROWS = 2 };
    FOR_ALL(r)
    {
        kr_tape *t = kr_tape_create(r.ctx, KR_TAPE_NO_GRAD);
        const kr_model_config *config = kr_model_config_of(r.model);
        kr_tensor *want = from_file(t, &r, "gen_ids"), *ids = from_file(t, &r, "input_ids");
        CHECK(config->n_eos == 1 && config->eos[0] == 2 && config->bos == 0 && config->pad == 1, "%s", r.name);
        kr_call call;
        kr_call_init(&call);
        call.last_logits_only = true;
        kr_network_out out = kr_network_forward(t, r.net, kr_slice(t, ids, 1, 0, GIVEN), &call);
        for (int64_t s = GIVEN; s < kr_tensor_dim(want, 1); s++) {
            int64_t next[ROWS];
            for (int64_t b = 0; b < ROWS; b++) {
                next[b] = best_but(out.y, b, config->eos[0]);
                const double right = kr_tensor_at(want, (int64_t[]){ b, s });
                CHECK((double)next[b] == right, "%s: row %lld, token %lld is %lld, not %.0f", r.name, (long long)b,
                      (long long)s, (long long)next[b], right);
            }
            call.state = out.state;
            out = kr_network_step(t, r.net, kr_from_data(t, KR_DTYPE_I64, KR_SHAPE(ROWS), next), &call);
        }
        kr_tape_destroy(t);
    }
}
