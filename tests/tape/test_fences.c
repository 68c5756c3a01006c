/* test_fences.c - fences: called in the reverse order of recording, and the gradients that are final at each. */
#include "tests/harness.h"

#include "tape/tape_impl.h"

enum { N = 4, WEIGHTS = 4, FENCES = 8 };

typedef struct seen {
    kr_tensor *w[WEIGHTS];
    int count;
    int64_t fences[FENCES];
    bool is_final[FENCES][WEIGHTS];
    double gradient[FENCES][WEIGHTS]; /* the first element at the fence; NaN: none */
} seen;

static double first_of(const kr_tensor *grad)
{
    return grad ? kr_tensor_at(grad, (int64_t[]){ 0, 0 }) : (double)NAN;
}

static void look(void *user, int64_t fence)
{
    seen *s = user;
    if (s->count == FENCES) return;
    s->fences[s->count] = fence;
    for (int i = 0; i < WEIGHTS; i++) {
        s->is_final[s->count][i] = kr_grad_is_final(s->w[i], fence);
        s->gradient[s->count][i] = first_of(kr_grad(s->w[i]));
    }
    s->count++;
}

static void apply(kr_tape *t, void *user, kr_tensor *const *in, kr_tensor **out)
{
    out[0] = kr_silu(t, kr_linear(t, in[0], user, NULL));
}

/* Weights 0, 1, 2 in turn, each behind a fence; then 1 again, and the loss. Weight 3 is not used. */
static kr_tensor *forward(kr_tape *t, seen *s, bool is_recomputed)
{
    kr_tensor *x = kr_full(t, KR_DTYPE_F32, KR_SHAPE(2, N), 0.5);
    static const int order[] = { 0, 1, 2, 1 };
    for (int i = 0; i < 4; i++) {
        kr_fence(t);
        if (is_recomputed) kr_checkpoint(t, apply, s->w[order[i]], 1, (kr_tensor *[]){ x }, 1, &x);
        else apply(t, s->w[order[i]], (kr_tensor *[]){ x }, &x);
    }
    return kr_mean(t, x, KR_ALL_AXES, false);
}

static void check_fences(bool is_recomputed)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_ctx_seed(ctx, kr_test_seed());
    seen s = { .count = 0 };
    for (int i = 0; i < WEIGHTS; i++) {
        s.w[i] = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(N, N));
        kr_param_normal(s.w[i], 0, 1);
    }
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_backward(t, forward(t, &s, is_recomputed));
    CHECK(s.count == 0, "%d fences, though none was asked for", s.count);
    const int64_t nodes = kr_tape_nodes(t);
    double want[WEIGHTS];
    for (int i = 0; i < WEIGHTS; i++) {
        want[i] = first_of(kr_grad(s.w[i]));
        kr_zero_grad(s.w[i]);
    }

    kr_tape_reset(t);
    kr_tape_set_fences(t, look, &s);
    kr_backward(t, forward(t, &s, is_recomputed));
    CHECK_OK(ctx);
    CHECK(s.count == 4 && kr_tape_nodes(t) == nodes + 4, "%d fences of 4", s.count);
    /* at fence 4 only what comes after it has run: the second use of weight 1, whose first use is behind fence 2 */
    static const bool is_final[4][WEIGHTS] = { { false, false, false, false },
                                               { false, false, true, false },
                                               { false, true, true, false },
                                               { true, true, true, false } };
    for (int i = 0; i < s.count; i++) {
        CHECK(s.fences[i] == 4 - i, "fence %lld as number %d", (long long)s.fences[i], i);
        for (int k = 0; k < WEIGHTS; k++) {
            CHECK(s.is_final[i][k] == is_final[i][k], "fence %d: weight %d is %sfinal", 4 - i, k,
                  s.is_final[i][k] ? "" : "not ");
            if (s.is_final[i][k])
                CHECK(s.gradient[i][k] == want[k], "fence %d: weight %d has %g, not %g", 4 - i, k, s.gradient[i][k],
                      want[k]);
        }
    }
    kr_tape_destroy(t);
    for (int i = 0; i < WEIGHTS; i++) kr_param_destroy(s.w[i]);
    kr_ctx_destroy(ctx);
}

TEST(fences_of_a_recorded_pass)
{
    check_fences(false);
}

TEST(fences_of_a_recomputed_pass)
{
    check_fences(true);
}

/* A network has a fence before each virtual layer and on both sides of the stack. */
static void count_fence(void *user, int64_t fence)
{
    *(int64_t *)user = fence;
}

TEST(fences_of_a_network)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_model_config *config = kr_model_config_create(ctx);
    config->family = KR_FAMILY_MAMBA2;
    kr_model_config_set_d_model(config, 16);
    config->mamba2->state_rank = config->mamba2->per_head_dim = 8;
    config->layers->n_layers = 2;
    config->layers->n_virtual = 5;
    config->network->vocab_size = 16;
    kr_model *model = kr_model_create(ctx, config);
    kr_model_config_destroy(config);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    int64_t last = 0;
    kr_tape_set_fences(t, count_fence, &last);
    kr_loss_call call;
    kr_loss_call_init(&call);
    call.ids_bs = kr_zeros(t, KR_DTYPE_I32, KR_SHAPE(1, 6));
    kr_backward(t, kr_network_loss(t, kr_model_network(model), &call).loss);
    CHECK_OK(ctx);
    CHECK(last == 1 && t->nfences == 7, "the last fence is %lld of %lld", (long long)last, (long long)t->nfences);
    kr_tape_destroy(t);
    kr_model_destroy(model);
    kr_ctx_destroy(ctx);
}
