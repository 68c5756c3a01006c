/* test_half_networks.c - networks whose matrices are bf16 or f16: the bits of the f32 network that has those weights widened,
 * and none of its memory.
 *
 * Widening is exact and activations are f32 (residual_in_f32), so nothing may differ: logits, states, gradients of x
 * and of what is small. Gradients of the matrices themselves are those of f32, rounded once.
 */
#include "tests/nn/networks.h"

/* Wide enough for products of more than one chain and of more than one panel. */
static void widen_recipe(net_recipe *r)
{
    r->mamba1.d_model = r->mamba2.d_model = r->mamba3.d_model = 40;
    r->mamba1.state_rank = 5;
    r->mamba2.per_head_dim = 16;
    r->mamba2.state_rank = 9;
    r->mamba3.per_head_dim = 16;
    r->mamba3.state_rank = 16;
    r->layers.d_intermediate = 300;
}

static void plain(net_recipe *r)
{
    (void)r;
}

static void everything(net_recipe *r)
{
    r->mamba1.has_proj_bias = r->mamba2.has_proj_bias = r->mamba3.has_proj_bias = true;
    r->mamba2.has_d_per_dim = true;
    r->mamba2.d_ssm = 48;
    r->mamba3.is_mimo = r->mamba3.has_outproj_norm = true;
    r->mamba3.mimo_rank = 2;
    r->mamba1.has_learnable_init_state = r->mamba2.has_learnable_init_state = r->mamba3.has_learnable_init_state = true;
    r->layers.has_mlp_bias = true;
    r->layers.residual = (kr_residual){ .kind = KR_RESIDUAL_MULTI_GATE,
                                        .n_stream = 2,
                                        .init_bias = -1,
                                        .init_bias_step = 0.5,
                                        .per_virtual_layer = false };
    r->network.tie_embeddings = false;
}

static void rotated(net_recipe *r)
{
    r->mamba3.rotation = KR_ROTATION_QUATERNION;
    r->mamba3.pathway = KR_MAMBA3_PATHWAY_DOUBLE;
    r->layers.recompute = KR_RECOMPUTE_ALL;
}

static void (*const changes[])(net_recipe *) = { plain, everything, rotated };
enum { CHANGES = sizeof changes / sizeof *changes };

typedef struct twins {
    net half, wide; /* the matrices of the second are the first's, widened */
} twins;

static bool open_twins(twins *t, int family, net_ends ends, int change, kr_dtype dtype, int threads)
{
    net_recipe r = net_recipe_of((kr_family)family, ends);
    widen_recipe(&r);
    changes[change](&r);
    if (!net_open(&t->wide, "widened", &r, threads)) return false;
    net_recipe_type(&r, dtype);
    if (!net_open(&t->half, "halves", &r, threads)) return false;
    for (int64_t i = 0; i < kr_params_count(t->wide.params); i++) {
        const kr_tensor *from = kr_params_at(t->half.params, i)->tensor;
        double *values = kr_test_values(from);
        kr_param_write(kr_params_at(t->wide.params, i)->tensor, KR_DTYPE_F64, values, kr_tensor_count(from));
        free(values);
    }
    return true;
}

static void close_twins(twins *t)
{
    net_close(&t->half);
    net_close(&t->wide);
}

/* Ids, or features in f32: the same for both. */
static kr_tensor *tokens(net *n, kr_tape *tape, int64_t nb, int64_t ns)
{
    if (n->recipe.ends == VOCAB) return net_input(n, tape, nb, ns);
    const int64_t count = nb * ns * NET_INPUT;
    float *values = calloc((size_t)count, sizeof *values);
    if (!values) exit(2);
    for (int64_t i = 0; i < count; i++) values[i] = (float)net_noise(7, i);
    kr_tensor *x = kr_from_data(tape, KR_DTYPE_F32, KR_SHAPE(nb, ns, NET_INPUT), values);
    free(values);
    return kr_input(tape, x);
}

/* A device that chooses the kernel of a product by its operands' types adds in another order: some roundings. */
#define ORDER 1e-5

static void same_states(const char *what, const kr_state *a, const kr_state *b)
{
    for (int64_t v = 0; v < kr_state_slots(a); v++)
        for (int i = 0; i < kr_slot_kind(a, v)->ncache; i++)
            CHECK_SAME(a->ctx, what, kr_state_cache(a, v)->tensors[i], kr_state_cache(b, v)->tensors[i], ORDER, 1);
}

/* Gradients of parameters: to the bit where both are f32; of halves, f32's rounded. What reaches looked-up rows of
 * halves is rounded before it is added up, and a tied table's two parts are added in halves: some roundings of 2^-8. */
static void same_grads(twins *t, const char *what)
{
    kr_tape *tape = t->wide.tape;
    for (int64_t i = 0; i < kr_params_count(t->wide.params); i++) {
        const kr_param_row *row = kr_params_at(t->wide.params, i);
        const kr_tensor *half = kr_grad(kr_params_at(t->half.params, i)->tensor), *wide = kr_grad(row->tensor);
        if (!CHECK(!half == !wide, "%s: one of %s has no gradient", what, row->name) || !wide) continue;
        kr_tensor *got = kr_view_data(tape, half->dtype, kr_tensor_shape(half), NULL, kr_test_copy(half));
        kr_tensor *want = kr_view_data(tape, KR_DTYPE_F32, kr_tensor_shape(wide), NULL, kr_test_copy(wide));
        if (strstr(row->name, "embedding"))
            CHECK_TENSORS(row->name, kr_cast(tape, got, KR_DTYPE_F32), want, 0x1p-6, 0.1);
        else
            CHECK_SAME(t->wide.ctx, row->name, got, kr_cast(tape, want, half->dtype),
                       half->dtype == KR_DTYPE_F32 ? 10 * ORDER : 0x1p-6, 0.1);
    }
}

typedef struct recorded {
    kr_tensor *x, *y;
    kr_state *state;
} recorded;

static recorded run_recorded(net *n)
{
    recorded r = { .x = tokens(n, n->tape, 2, 7) };
    const net_out out = net_call(n, n->tape, KR_RUN_FORWARD, r.x, NULL);
    r.y = out.y;
    r.state = out.state;
    kr_backward(n->tape, kr_sum(n->tape, kr_mul(n->tape, out.y, out.y), KR_ALL_AXES, false));
    CHECK_OK(n->ctx);
    return r;
}

static const kr_dtype halves[] = { KR_DTYPE_BF16, KR_DTYPE_F16 };

TEST(halves_give_the_bits_of_their_widened_weights)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int change = 0; change < CHANGES; change++)
            for (int k = 0; k < 4; k++) {
                const net_ends ends = k < 2 ? VOCAB : LATENT;
                if (kr_test_quick() && (family + change + k) % 3) continue;
                twins t;
                if (!open_twins(&t, family, ends, change, halves[k % 2], 1)) exit(2);
                const recorded a = run_recorded(&t.half), b = run_recorded(&t.wide);
                CHECK(kr_tensor_dtype(a.y) == KR_DTYPE_F32, "outputs are %s", kr_dtype_name(kr_tensor_dtype(a.y)));
                CHECK_SAME(t.wide.ctx, "y", a.y, b.y, ORDER, 1);
                same_states("state", a.state, b.state);
                if (ends == LATENT) CHECK_SAME(t.wide.ctx, "g_x", kr_grad(a.x), kr_grad(b.x), 10 * ORDER, 1);
                same_grads(&t, kr_family_name((kr_family)family));
                close_twins(&t);
            }
}

/* Prefill, then a few steps; every y, and the last state. */
static kr_state *run_all(net *n, kr_tensor **y, bool packed)
{
    kr_tape *tape = n->tape;
    kr_state *state = kr_state_create(n->ctx, n->layers, 2);
    kr_scope scope = kr_no_grad_begin(tape);
    kr_call call;
    kr_call_init(&call);
    call.state = state;
    if (packed) kr_params_pack(n->params);
    else kr_params_unpack(n->params);
    kr_tensor *x = tokens(n, tape, 2, 9);
    net_out out = net_call(n, tape, KR_RUN_FORWARD, kr_slice(tape, x, 1, 0, 6), &call);
    y[0] = out.y;
    for (int64_t s = 6; s < 9; s++) {
        kr_tensor *one = kr_slice(tape, x, 1, s, s + 1);
        one = kr_reshape(tape, one, n->recipe.ends == VOCAB ? KR_SHAPE(2) : KR_SHAPE(2, NET_INPUT));
        kr_state_copy(state, out.state);
        out = net_call(n, tape, KR_RUN_STEP, one, &call);
        y[s - 5] = out.y;
    }
    kr_state_copy(state, out.state);
    kr_tensor **const keep[] = { &y[0], &y[1], &y[2], &y[3] };
    kr_no_grad_end(tape, scope, 4, keep);
    CHECK_OK(n->ctx);
    return state;
}

TEST(steps_of_halves_keep_their_bits_packed_or_not_and_with_threads)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int k = 0; k < 4; k++) {
            const int change = k % 2;
            twins t, threaded;
            kr_tensor *want[4], *y[4];
            if (!open_twins(&t, family, VOCAB, change, halves[k / 2], 1)) exit(2);
            if (!open_twins(&threaded, family, VOCAB, change, halves[k / 2], 3)) exit(2);
            kr_state *end = run_all(&t.wide, want, false);
            net *const others[] = { &t.half, &t.half, &threaded.half, &threaded.half };
            for (int i = 0; i < 4; i++) {
                kr_state *own = run_all(others[i], y, i % 2);
                for (int s = 0; s < 4; s++) CHECK_SAME(t.wide.ctx, i % 2 ? "packed" : "plain", y[s], want[s], ORDER, 1);
                same_states("end", own, end);
                kr_state_destroy(own);
            }
            kr_state_destroy(end);
            close_twins(&t);
            close_twins(&threaded);
        }
}

/* ---- memory ---- */

typedef struct peaks {
    size_t tape, ctx;
} peaks;

static peaks measure(net *n, bool by_step, int64_t ns)
{
    const size_t before = kr_ctx_memory(n->ctx).live_bytes;
    kr_tape *tape = kr_tape_create(n->ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x = tokens(n, tape, 2, by_step ? 1 : ns);
    if (by_step) x = kr_reshape(tape, x, n->recipe.ends == VOCAB ? KR_SHAPE(2) : KR_SHAPE(2, NET_INPUT));
    net_call(n, tape, by_step ? KR_RUN_STEP : KR_RUN_FORWARD, x, NULL);
    CHECK_OK(n->ctx);
    const peaks p = { kr_tape_peak_bytes(tape), kr_ctx_memory(n->ctx).peak_bytes - before };
    kr_tape_destroy(tape);
    return p;
}

static size_t rounded(size_t bytes)
{
    return (bytes + KR_ALIGN - 1) / KR_ALIGN * KR_ALIGN;
}

/* What halves may cost more: the taps of one layer in f32, and the looked-up rows before they are widened. */
static size_t small_copies(const net *n, int64_t ntokens, size_t *least_matrix)
{
    size_t bytes = n->recipe.ends == VOCAB ? rounded((size_t)(ntokens * kr_layers_d_model(n->layers)) * 2) : 0;
    size_t taps = 0;
    *least_matrix = SIZE_MAX;
    for (int64_t i = 0; i < kr_params_count(n->params); i++) {
        const kr_param_row *row = kr_params_at(n->params, i);
        const size_t wide = (size_t)kr_tensor_count(row->tensor) * sizeof(float);
        if (!kr_dtype_is_16bit(kr_tensor_dtype(row->tensor))) continue;
        if (strstr(row->name, "conv1d.weight")) taps = rounded(wide);
        else if (wide < *least_matrix) *least_matrix = wide;
    }
    return bytes + taps;
}

/* The least matrix is larger than all that may come on top, so that a widened copy of any of them would show. The tape
 * asks the context for blocks of 16 KiB at least. */
TEST(no_widened_copy_of_a_matrix_is_made)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int k = 0; k < 4; k++) {
            const bool by_step = k % 2;
            const kr_dtype dtype = halves[k / 2];
            net_recipe r = net_recipe_of((kr_family)family, VOCAB);
            r.mamba1.d_model = r.mamba2.d_model = r.mamba3.d_model = 64;
            r.mamba1.dt_rank = 32;
            r.network.vocab_size = 200;
            r.layers.d_intermediate = 128;
            net wide, half;
            if (!net_open(&wide, "f32", &r, 1)) exit(2);
            net_recipe_type(&r, dtype);
            if (!net_open(&half, "halves", &r, 1)) exit(2);
            size_t least;
            const size_t more = small_copies(&half, by_step ? 2 : 6, &least);
            const peaks a = measure(&half, by_step, 3), b = measure(&wide, by_step, 3);
            CHECK(more < least, "%zu bytes of small copies hide a matrix of %zu", more, least);
            CHECK(a.tape <= b.tape + more, "%s %s, %s: the tape's peak is %zu, in f32 %zu, and %zu may be added",
                  kr_family_name((kr_family)family), kr_dtype_name(dtype), by_step ? "step" : "forward", a.tape, b.tape,
                  more);
            CHECK(a.ctx <= b.ctx + more + (1 << 14),
                  "%s %s, %s: the context's peak is %zu, in f32 %zu, and %zu may be added",
                  kr_family_name((kr_family)family), kr_dtype_name(dtype), by_step ? "step" : "forward", a.ctx, b.ctx,
                  more);
            net_close(&half);
            net_close(&wide);
        }
}
