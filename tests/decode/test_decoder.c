/* test_decoder.c - steps of a decoder: the bits of calls on a processor, plans and graphs that are made once, buckets of rows,
 * why a network is not planned. */
#include "nn/state_rows.h"
#include "tests/decode/decoding.h"

enum { STEPS = 7, MOST = 24, PROMPT = 3 };
static const char *const devices[] = { "cpu", "mock", "mock:1", "cuda" };
enum { NDEVICES = (int)(sizeof devices / sizeof *devices) };

static kr_ctx *open_device(int d)
{
    return chat_device(devices[d], KR_PRECISION_EXACT);
}

static void choose_ids(int step, int64_t rows, int32_t *ids)
{
    for (int64_t r = 0; r < rows; r++) ids[r] = (int32_t)((step * 31 + r * 7) % 250);
}

static kr_state *primed(const kr_network *net, int64_t rows)
{
    int32_t ids[MOST * PROMPT];
    for (int i = 0; i < rows * PROMPT; i++) ids[i] = i * 37 % 250;
    kr_state *state = kr_network_state(net, rows);
    kr_tape *tape = kr_tape_create(net->ctx, KR_TAPE_NO_GRAD);
    kr_call call;
    kr_call_init(&call);
    call.advance = state;
    kr_network_forward(tape, net, kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(rows, PROMPT), ids), &call);
    kr_tape_destroy(tape);
    CHECK_OK(net->ctx);
    return state;
}

static kr_tensor *call_step(kr_tape *tape, const kr_network *net, kr_state *state, const int32_t *ids)
{
    kr_call call;
    kr_call_init(&call);
    call.advance = state;
    return kr_network_step(tape, net, kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(kr_state_batch(state)), ids), &call).y;
}

/* The same op by op, on any device. */
static kr_tensor *step_of_ops(kr_tape *tape, const kr_network *net, kr_state *state, const int32_t *ids)
{
    kr_call call;
    kr_call_init(&call);
    call.advance = state;
    kr_tensor *x = kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(kr_state_batch(state)), ids);
    return kr_network_run_call(tape, net, KR_CALL_STEP, x, &call, kr_layers_run).y;
}

static void compare_states(const char *what, const kr_state *got, const kr_state *want)
{
    for (int64_t s = 0; s < want->nslots; s++)
        for (int i = 0; i < kr_slot_kind(want, s)->ncache; i++)
            CHECK_SAME_BITS(what, kr_state_cache(got, s)->tensors[i], kr_state_cache(want, s)->tensors[i]);
}

/* ---- what a network may be ---- */

typedef void change_fn(kr_layers_config *layers, kr_mamba1_config *m1, kr_mamba2_config *m2, kr_mamba3_config *m3);

static kr_network *network_of(kr_ctx *ctx, kr_family family, change_fn *change)
{
    kr_mamba1_config m1;
    kr_mamba2_config m2;
    kr_mamba3_config m3;
    kr_mamba1_config_init(&m1);
    kr_mamba2_config_init(&m2);
    kr_mamba3_config_init(&m3);
    m1.d_model = m2.d_model = m3.d_model = 8;
    m1.state_rank = m2.state_rank = m3.state_rank = 4;
    m2.per_head_dim = m3.per_head_dim = 4;
    kr_layers_config layers;
    kr_layers_config_init(&layers);
    layers.n_layers = 3;
    if (change) change(&layers, &m1, &m2, &m3);
    layers.block = family == KR_FAMILY_MAMBA1   ? kr_mamba1_block(&m1)
                   : family == KR_FAMILY_MAMBA2 ? kr_mamba2_block(&m2)
                                                : kr_mamba3_block(&m3);
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &layers;
    config.vocab_size = CHAT_VOCAB;
    config.embedding_std = 0.8;
    kr_ctx_seed(ctx, 7);
    kr_network *net = kr_network_create(ctx, &config);
    CHECK_OK(ctx);
    return net;
}

static void with_mlp(kr_layers_config *layers, kr_mamba1_config *m1, kr_mamba2_config *m2, kr_mamba3_config *m3)
{
    (void)m1, (void)m2, (void)m3;
    layers->d_intermediate = 12;
    layers->mlp_multiple_of = 4;
}

static void without_residuals(kr_layers_config *layers, kr_mamba1_config *m1, kr_mamba2_config *m2,
                              kr_mamba3_config *m3)
{
    (void)m1, (void)m2, (void)m3;
    layers->ignore_first_residual = layers->ignore_last_residual = true;
}

static void of_virtual_layers(kr_layers_config *layers, kr_mamba1_config *m1, kr_mamba2_config *m2,
                              kr_mamba3_config *m3)
{
    (void)m1, (void)m2, (void)m3;
    layers->n_virtual = 5;
}

static void with_gates(kr_layers_config *layers, kr_mamba1_config *m1, kr_mamba2_config *m2, kr_mamba3_config *m3)
{
    (void)m1, (void)m2, (void)m3;
    layers->residual =
        (kr_residual){ .kind = KR_RESIDUAL_MULTI_GATE, .n_stream = 2, .init_bias = -1, .init_bias_step = 0.5 };
}

static void of_halves(kr_layers_config *layers, kr_mamba1_config *m1, kr_mamba2_config *m2, kr_mamba3_config *m3)
{
    (void)layers;
    m1->dtype = m2->dtype = m3->dtype = KR_DTYPE_BF16;
}

static void of_half_streams(kr_layers_config *layers, kr_mamba1_config *m1, kr_mamba2_config *m2, kr_mamba3_config *m3)
{
    of_halves(layers, m1, m2, m3);
    layers->residual_in_f32 = false;
}

static void of_doubles(kr_layers_config *layers, kr_mamba1_config *m1, kr_mamba2_config *m2, kr_mamba3_config *m3)
{
    (void)layers;
    m1->dtype = m2->dtype = m3->dtype = KR_DTYPE_F64;
}

static void with_quaternions(kr_layers_config *layers, kr_mamba1_config *m1, kr_mamba2_config *m2, kr_mamba3_config *m3)
{
    (void)layers, (void)m1, (void)m2;
    m3->rotation = KR_ROTATION_QUATERNION;
    m3->state_rank = 8;
}

static void of_large_heads(kr_layers_config *layers, kr_mamba1_config *m1, kr_mamba2_config *m2, kr_mamba3_config *m3)
{
    (void)layers, (void)m1, (void)m2;
    m3->state_rank = 8400;
}

static void of_small_ssm(kr_layers_config *layers, kr_mamba1_config *m1, kr_mamba2_config *m2, kr_mamba3_config *m3)
{
    (void)layers, (void)m1, (void)m3;
    m2->d_ssm = 8;
}

typedef struct kind {
    const char *name;
    change_fn *change;
    int only;           /* of this family; -1: of all */
    const char *reason; /* on a device; NULL: planned */
} kind;

static const kind kinds[] = {
    { "plain", NULL, -1, NULL },
    { "with an MLP", with_mlp, -1, NULL },
    { "without residuals", without_residuals, -1, NULL },
    { "virtual layers", of_virtual_layers, -1, NULL },
    { "bf16", of_halves, -1, NULL },
    { "multi-gate", with_gates, -1, "multi-gate residuals have no decode kernel" },
    { "bf16 stream", of_half_streams, -1, "the residual stream is 16-bit" },
    { "f64", of_doubles, -1, "its weights are f64" },
    { "quaternions", with_quaternions, KR_FAMILY_MAMBA3, "rotation by quaternions has no decode kernel" },
    { "large heads", of_large_heads, KR_FAMILY_MAMBA3, "a head is too large" },
    { "d_ssm", of_small_ssm, KR_FAMILY_MAMBA2, "d_ssm is smaller than d_inner" },
};
enum { NKINDS = (int)(sizeof kinds / sizeof *kinds) };

/* The reason, and steps against calls and ops: to the bit on a processor, within rounding on a device, where states of
 * steps and calls are the same. */
static void check_kind(kr_ctx *ctx, kr_family family, const kind *k)
{
    const bool on_device = kr_ctx_on_device(ctx);
    char what[160];
    snprintf(what, sizeof what, "%s, family %d, %s", kr_ctx_device(ctx), (int)family, k->name);
    kr_network *net = network_of(ctx, family, k->change);
    kr_decoder *d = kr_decoder_create(net, 3);
    const char *reason = kr_decoder_fallback(d);
    CHECK(on_device && k->reason ? reason && strncmp(reason, k->reason, strlen(k->reason)) == 0 : !reason,
          "%s: fallback: %s", what, reason ? reason : "none");
    kr_state *got = primed(net, 3), *want = primed(net, 3), *ops = primed(net, 3);
    const double bound = !on_device ? 0 : k->change == of_halves || k->change == of_half_streams ? 2e-2 : 1e-4;
    for (int i = 0; i < STEPS && !kr_ctx_failed(ctx); i++) {
        int32_t ids[3];
        choose_ids(i, 3, ids);
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        const kr_tensor *y = kr_decoder_step(d, got, ids), *logits = call_step(tape, net, want, ids);
        const kr_tensor *of_ops = step_of_ops(tape, net, ops, ids);
        if (bound == 0) CHECK_SAME_BITS(what, y, logits);
        else CHECK_TENSORS(what, y, logits, bound, 1);
        if (bound == 0) CHECK_SAME_BITS(what, y, of_ops);
        else CHECK_TENSORS(what, y, of_ops, bound, 1);
        CHECK_OK(ctx);
        kr_tape_destroy(tape);
    }
    kr_decoder_flush(d, got);
    compare_states(what, got, want);
    CHECK(d->n_planned == 1, "%s: %d plans", what, (int)d->n_planned);
    CHECK(d->n_captured == on_device, "%s: %d captures", what, (int)d->n_captured);
    kr_decoder_destroy(d);
    kr_state_destroy(got);
    kr_state_destroy(want);
    kr_state_destroy(ops);
    kr_network_destroy(net);
}

TEST(steps_are_calls)
{
    for (int n = 0; n < NDEVICES; n++)
        for (int family = KR_FAMILY_MAMBA1; family <= KR_FAMILY_MAMBA3; family++)
            for (int k = 0; k < NKINDS; k++) {
                if (kinds[k].only >= 0 && kinds[k].only != family) continue;
                kr_ctx *ctx = open_device(n);
                if (!ctx) continue;
                check_kind(ctx, (kr_family)family, &kinds[k]);
                kr_ctx_destroy(ctx);
            }
}

/* ---- calls ---- */

static void count_core(void *user, const char *slot)
{
    *(int *)user += strncmp(slot, "decode_", 7) == 0;
}

/* Calls of one token use the decode kernels on a device, with a state to advance or without, and agree with ops. */
TEST(calls_of_one_token_are_fused_on_devices)
{
    for (int n = 0; n < 3; n++) {
        kr_ctx *ctx = open_device(n);
        int count = 0, seen = 0;
        ctx->device->probe = count_core;
        ctx->device->probe_user = &count;
        kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 0, NULL);
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        kr_state *state = primed(net, 2);
        const int32_t ids[2] = { 3, 4 };
        kr_tensor *x_b = kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(2), ids),
                  *x_bs = kr_reshape(tape, x_b, KR_SHAPE(2, 1)), *x_bd = kr_embedding(tape, net->embedding_wd, x_b),
                  *x_bsd = kr_reshape(tape, x_bd, KR_SHAPE(2, 1, -1));
        kr_call call, ops;
        kr_call_init(&call);
        call.state = state;
        ops = call;
        const kr_network_out want = kr_network_run_call(tape, net, KR_CALL_STEP, x_b, &ops, kr_layers_run);
        CHECK(count == 0, "ops use decode kernels");
        const kr_layers *layers = kr_network_layers(net);
        const kr_tensor *of_stack = kr_layers_run_call(tape, layers, KR_CALL_STEP, x_bd, &ops, kr_layers_run).y;
        const kr_network_out step = kr_network_step(tape, net, x_b, &call),
                             forward = kr_network_forward(tape, net, x_bs, &call);
        const kr_tensor *stack = kr_layers_step(tape, layers, x_bd, &call).y,
                        *stack_forward = kr_layers_forward(tape, layers, x_bsd, &call).y;
        CHECK_TENSORS("step", step.y, want.y, 1e-5, 1);
        CHECK_TENSORS("hidden", step.hidden, want.hidden, 1e-5, 1);
        CHECK_TENSORS("forward", kr_reshape(tape, forward.y, kr_tensor_shape(want.y)), want.y, 1e-5, 1);
        CHECK_TENSORS("stack", stack, of_stack, 1e-5, 1);
        CHECK_TENSORS("forward of a stack", kr_reshape(tape, (kr_tensor *)stack_forward, kr_tensor_shape(of_stack)),
                      of_stack, 1e-5, 1);
        for (int64_t s = 0; s < 2; s++) {
            CHECK_TENSORS("state", step.state->slots[s].mamba2.ssm_bhpr, want.state->slots[s].mamba2.ssm_bhpr, 1e-5, 1);
            CHECK_SAME_BITS("the old state", step.state->slots[s].mamba2.conv_bvk,
                            forward.state->slots[s].mamba2.conv_bvk);
        }
        CHECK(count == (n ? 4 * 2 * 3 : 0), "%s: %d decode kernels", devices[n], count);
        seen = count;
        kr_call_init(&call);
        call.advance = state;
        const kr_tensor *moved = kr_network_step(tape, net, x_b, &call).y;
        CHECK_SAME_BITS("in place", moved, step.y);
        CHECK_SAME_BITS("its state", state->slots[1].mamba2.ssm_bhpr, step.state->slots[1].mamba2.ssm_bhpr);
        CHECK(count - seen == (n ? 2 * 3 : 0), "%s: %d decode kernels", devices[n], count - seen);
        CHECK_OK(ctx);
        kr_tape_destroy(tape);
        kr_state_destroy(state);
        kr_network_destroy(net);
        kr_ctx_destroy(ctx);
    }
}

/* ---- networks whose steps are calls ---- */

static kr_tensor *no_forward(void *user, kr_tape *tape, kr_tensor *ids, kr_state *state, const kr_call *call)
{
    (void)user, (void)tape, (void)ids, (void)state, (void)call;
    return NULL;
}

TEST(networks_that_are_not_planned)
{
    static const kr_class_token first[] = { { .kind = KR_CLASS_TOKEN_START } };
    for (int n = 0; n < 2; n++) {
        kr_ctx *ctx = open_device(n);
        kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 1, first);
        kr_decoder *d = kr_decoder_create(net, 2);
        CHECK(strcmp(kr_decoder_fallback(d), "the network has class tokens") == 0, "%s", kr_decoder_fallback(d));
        kr_state *got = kr_network_state(net, 2), *want = kr_network_state(net, 2);
        kr_state_announce(got, KR_LENGTH_UNKNOWN);
        kr_state_announce(want, KR_LENGTH_UNKNOWN);
        for (int i = 0; i < STEPS; i++) {
            int32_t ids[2];
            choose_ids(i, 2, ids);
            kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
            CHECK_SAME_BITS("logits", kr_decoder_step(d, got, ids), call_step(tape, net, want, ids));
            kr_tape_destroy(tape);
        }
        CHECK(d->n_planned == 0, "a step was planned");
        CHECK_OK(ctx);
        kr_decoder_destroy(d);
        kr_state_destroy(got);
        kr_state_destroy(want);
        kr_network *plain = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 0, NULL);
        const kr_network_part whole = { .layers = kr_network_layers(plain) };
        kr_custom_network custom;
        kr_custom_network_init(&custom);
        custom.params = kr_network_params(plain);
        custom.n_parts = 1;
        custom.parts = &whole;
        custom.vocab_size = custom.width = CHAT_VOCAB;
        custom.forward = no_forward;
        kr_network *hand = kr_network_custom(ctx, &custom);
        d = kr_decoder_create(hand, 2);
        CHECK(d && strcmp(kr_decoder_fallback(d), "the network is custom") == 0, "%s", kr_decoder_fallback(d));
        CHECK_OK(ctx);
        kr_decoder_destroy(d);
        kr_network_destroy(hand);
        kr_network_destroy(plain);
        kr_network_destroy(net);
        kr_ctx_destroy(ctx);
    }
}

TEST(check_finite_is_not_planned_on_devices)
{
    for (int n = 0; n < 2; n++) {
        kr_ctx_options options;
        kr_ctx_options_init(&options);
        options.device = devices[n];
        options.check_finite = true;
        kr_ctx *ctx = kr_ctx_create(&options);
        kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA1, KR_DTYPE_F32, 0, NULL);
        kr_decoder *d = kr_decoder_create(net, 2);
        const char *reason = kr_decoder_fallback(d);
        CHECK((reason != NULL) == (n == 1), "%s", reason ? reason : "none");
        CHECK(!reason || strcmp(reason, "check_finite looks at the result of every op") == 0, "%s", reason);
        kr_state *state = primed(net, 2);
        const int32_t ids[2] = { 3, 4 };
        kr_test_put(net->norm_f_d, 3, NAN);
        CHECK(!kr_decoder_step(d, state, ids), "a NaN passes");
        CHECK(kr_ctx_failed(ctx), "%s", kr_ctx_message(ctx));
        kr_decoder_destroy(d);
        kr_state_destroy(state);
        kr_network_destroy(net);
        kr_ctx_destroy(ctx);
    }
}

/* Kernels that do not take bf16 weights, or taps, are not given any: steps and calls run op by op. */
TEST(weights_that_kernels_do_not_take_are_not_planned)
{
    static const struct {
        kr_family family;
        size_t operand; /* in kr_accepts */
    } rows[] = { { KR_FAMILY_MAMBA1, offsetof(kr_accepts, decode_linear_w) },
                 { KR_FAMILY_MAMBA1, offsetof(kr_accepts, decode_linear_taps) },
                 { KR_FAMILY_MAMBA1, offsetof(kr_accepts, decode_scan_w) },
                 { KR_FAMILY_MAMBA2, offsetof(kr_accepts, decode_linear_w) },
                 { KR_FAMILY_MAMBA2, offsetof(kr_accepts, decode_linear_taps) },
                 { KR_FAMILY_MAMBA3, offsetof(kr_accepts, decode_linear_w) } };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        kr_ctx *ctx = open_device(1);
        int count = 0;
        uint32_t *accepts = (uint32_t *)(void *)((char *)&ctx->device->kernels.accepts + rows[r].operand);
        kr_network *net = network_of(ctx, rows[r].family, of_halves);
        const uint32_t before = *accepts;
        *accepts = 0;
        kr_decoder *d = kr_decoder_create(net, 2);
        const char *reason = kr_decoder_fallback(d);
        CHECK(reason && strcmp(reason, "its decode kernels do not take the type of its weights") == 0,
              "case %zu: fallback: %s", r, reason ? reason : "none");
        kr_state *got = primed(net, 2), *want = primed(net, 2), *ops = primed(net, 2);
        const int32_t ids[2] = { 3, 4 };
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        ctx->device->probe = count_core;
        ctx->device->probe_user = &count;
        const kr_tensor *y = kr_decoder_step(d, got, ids), *logits = call_step(tape, net, want, ids);
        const int of_head = 1; /* its weight is taken, unless it is that of decode_linear */
        CHECK(count <= of_head, "case %zu: %d decode kernels", r, count);
        const kr_tensor *of_ops = step_of_ops(tape, net, ops, ids);
        CHECK_TENSORS("step", y, of_ops, 1e-3, 1);
        CHECK_SAME_BITS("call", logits, of_ops);
        compare_states("state", got, ops);
        *accepts = before;
        count = 0;
        call_step(tape, net, want, ids);
        CHECK(count > of_head, "case %zu: %d decode kernels with weights that are taken", r, count);
        CHECK_OK(ctx);
        kr_tape_destroy(tape);
        kr_decoder_destroy(d);
        kr_state_destroy(got);
        kr_state_destroy(want);
        kr_state_destroy(ops);
        kr_network_destroy(net);
        kr_ctx_destroy(ctx);
    }
}

/* Logits of 16 bits are sampled on the device if its kernel takes them, and else on the host. */
TEST(samplers_read_logits_that_their_kernel_takes)
{
    kr_ctx *ctx = open_device(1);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    const kr_tensor *f32 = kr_zeros(tape, KR_DTYPE_F32, KR_SHAPE(2, 9)),
                    *bf16 = kr_zeros(tape, KR_DTYPE_BF16, KR_SHAPE(2, 9)),
                    *columns = kr_transpose(tape, kr_zeros(tape, KR_DTYPE_F32, KR_SHAPE(9, 2)));
    CHECK_OK(ctx);
    CHECK(kr_device_sampler_reads(f32) && kr_device_sampler_reads(bf16) && !kr_device_sampler_reads(columns),
          "a kernel that takes bf16");
    ctx->device->kernels.accepts.sample_x = KR_DTYPE_BIT(KR_DTYPE_F16);
    CHECK(kr_device_sampler_reads(f32) && !kr_device_sampler_reads(bf16), "a kernel that takes f16 only");
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

/* ---- buckets ---- */

static kr_state *first_rows(const kr_network *net, const kr_state *all, int64_t count)
{
    int64_t first[MOST];
    for (int64_t r = 0; r < count; r++) first[r] = r;
    kr_tape *tape = kr_tape_create(net->ctx, KR_TAPE_NO_GRAD);
    kr_state *few = kr_network_state(net, count);
    kr_state_copy(few, kr_state_select(tape, all, count, first));
    kr_tape_destroy(tape);
    CHECK_OK(net->ctx);
    return few;
}

/* Some steps of `rows` rows in a state with memory for MOST, and in one with memory for these alone. */
static void visit(kr_decoder *d, kr_decoder *exact, kr_state *spacious, const kr_state *begin, int64_t rows)
{
    const kr_network *net = d->net;
    kr_decoder_flush(d, spacious);
    kr_state_rows_use(spacious, MOST);
    CHECK(kr_state_copy(spacious, begin) == KR_OK, "%s", kr_ctx_message(net->ctx));
    kr_state_rows_use(spacious, rows);
    kr_state *few = first_rows(net, begin, rows);
    for (int i = 0; i < 3 && !kr_ctx_failed(net->ctx); i++) {
        int32_t ids[MOST];
        choose_ids(i, rows, ids);
        CHECK_TENSORS("logits", kr_decoder_step(d, spacious, ids), kr_decoder_step(exact, few, ids), 1e-5, 1);
    }
    kr_decoder_flush(d, spacious);
    kr_decoder_flush(exact, few);
    for (int64_t s = 0; s < few->nslots; s++)
        for (int i = 0; i < kr_slot_kind(few, s)->ncache; i++)
            CHECK_TENSORS("state", kr_state_cache(spacious, s)->tensors[i], kr_state_cache(few, s)->tensors[i], 1e-5,
                          1);
    kr_decoder_forget(exact, few);
    kr_state_destroy(few);
}

/* Rows that come back to a bucket find its plan and its graph. */
static void walk_buckets(kr_ctx *ctx, kr_family family)
{
    static const int64_t rows[] = { 24, 9, 10, 12, 1, 2, 3, 5, 6, 17, 24, 9, 11, 5, 2, 21, 12, 1 };
    static const int64_t buckets[MOST + 1] = { 0,  1,  2,  3,  4,  6,  6,  8,  8,  12, 12, 12, 12,
                                               16, 16, 16, 16, 24, 24, 24, 24, 24, 24, 24, 24 };
    enum { N = sizeof rows / sizeof *rows, BUCKETS = 6, DIFFERENT = 12 }; /* 1 2 3 6 12 24 */
    const bool on_device = kr_ctx_on_device(ctx);
    kr_network *net = chat_network(ctx, family, KR_DTYPE_F32, 0, NULL);
    kr_decoder *d = kr_decoder_create(net, MOST), *exact = kr_decoder_create(net, MOST);
    kr_state *begin = primed(net, MOST), *spacious = kr_state_rows_create(ctx, "test", begin, MOST);
    int64_t captured = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N && !kr_ctx_failed(ctx); i++) {
            visit(d, exact, spacious, begin, rows[i]);
            const int64_t nb = d->kept[0]->nb, want = on_device ? buckets[rows[i]] : rows[i];
            CHECK(nb == want, "%s: a step of %d rows for %d rows", kr_ctx_device(ctx), (int)nb, (int)rows[i]);
        }
        if (round == 1) captured = d->n_captured;
    }
    CHECK_OK(ctx);
    CHECK(on_device ? d->n_planned == BUCKETS : d->n_planned >= DIFFERENT, "%s, family %d: %d plans",
          kr_ctx_device(ctx), (int)family, (int)d->n_planned);
    CHECK(d->n_captured == captured, "%s, family %d: %d captures, but %d after two rounds", kr_ctx_device(ctx),
          (int)family, (int)d->n_captured, (int)captured);
    CHECK(!on_device || captured >= BUCKETS, "%d captures", (int)captured);
    kr_decoder_destroy(d);
    kr_decoder_destroy(exact);
    kr_state_destroy(spacious);
    kr_state_destroy(begin);
    kr_network_destroy(net);
}

TEST(rows_come_back_to_their_bucket)
{
    for (int n = 0; n < NDEVICES; n++)
        for (int family = KR_FAMILY_MAMBA1; family <= KR_FAMILY_MAMBA3; family++) {
            kr_ctx *ctx = open_device(n);
            if (!ctx) continue;
            walk_buckets(ctx, (kr_family)family);
            kr_ctx_destroy(ctx);
        }
}

/* The plan that was used longest ago goes first. */
TEST(plans_of_many_states)
{
    enum { MORE = 3 };
    for (int n = 0; n < 2; n++) {
        kr_ctx *ctx = open_device(n);
        kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 0, NULL);
        kr_decoder *d = kr_decoder_create(net, 2);
        kr_state *states[KR_DECODER_STEPS + MORE];
        const int count = d->most_kept + MORE;
        const int32_t ids[2] = { 3, 4 };
        CHECK(d->most_kept == (n ? KR_DECODER_STEPS : KR_DECODER_STEPS_ON_CPU), "%d plans are kept", d->most_kept);
        for (int i = 0; i < count; i++) states[i] = primed(net, 2);
        for (int i = 0; i < count; i++) kr_decoder_step(d, states[i], ids);
        CHECK(d->n_planned == count, "%d plans", (int)d->n_planned);
        kr_decoder_step(d, states[count - 1], ids);
        kr_decoder_step(d, states[MORE], ids);
        CHECK(d->n_planned == count, "a plan that was kept is made again");
        kr_decoder_step(d, states[MORE - 1], ids);
        CHECK(d->n_planned == count + 1, "the oldest plan was kept");
        CHECK_OK(ctx);
        kr_decoder_destroy(d);
        for (int i = 0; i < count; i++) kr_state_destroy(states[i]);
        kr_network_destroy(net);
        kr_ctx_destroy(ctx);
    }
}

/* A step that is launched writes the state, too: what was recorded before it cannot be run backwards. */
TEST(steps_write_the_state)
{
    for (int n = 0; n < NDEVICES; n++)
        for (int before = 0; before < 4; before++) {
            kr_ctx *ctx = open_device(n);
            if (!ctx) continue;
            kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 0, NULL);
            kr_decoder *d = kr_decoder_create(net, 2);
            kr_state *state = primed(net, 2);
            const int32_t ids[2] = { 3, 4 };
            for (int i = 0; i < before; i++) kr_decoder_step(d, state, ids);
            kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
            kr_tensor *cache = kr_state_cache(state, 0)->mamba2.ssm_bhpr;
            kr_tensor *x = kr_input(tape, kr_zeros(tape, KR_DTYPE_F32, kr_tensor_shape(cache)));
            kr_tensor *y = kr_sum(tape, kr_mul(tape, x, cache), KR_ALL_AXES, false);
            CHECK(kr_decoder_step(d, state, ids), "%s", kr_ctx_message(ctx));
            CHECK(kr_backward(tape, y) != KR_OK, "%s, step %d: the state's old bits are gone", devices[n], before);
            CHECK_ERROR_HAS(ctx, KR_ERR_STATE, "written");
            kr_tape_destroy(tape);
            kr_decoder_destroy(d);
            kr_state_destroy(state);
            kr_network_destroy(net);
            kr_ctx_destroy(ctx);
        }
}

/* ---- errors ---- */

TEST(decoder_errors)
{
    for (int n = 0; n < 2; n++) {
        kr_ctx *ctx = open_device(n);
        kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 0, NULL);
        kr_network *other = chat_network(ctx, KR_FAMILY_MAMBA1, KR_DTYPE_F32, 0, NULL);
        const int32_t ids[3] = { 3, 4, 5 }, wrong[3] = { 3, 256, 5 };
        kr_state *state = primed(net, 3), *foreign = primed(other, 3), *initial = kr_network_state(net, 3);
        CHECK(!kr_decoder_create(NULL, 1) && !kr_decoder_create(net, 0), "a decoder of nothing");
        CHECK_ERROR(ctx, KR_ERR_ARG, "decode: max_rows = 0, but must be at least 1");
        kr_decoder *d = kr_decoder_create(net, 3), *small = kr_decoder_create(net, 2);
        CHECK(!kr_decoder_step(NULL, state, ids) && !kr_decoder_step(d, NULL, ids), "a step of nothing");
        CHECK_ERROR(ctx, KR_ERR_ARG, "decode: state is NULL");
        CHECK(!kr_decoder_step(d, state, NULL), "a step without ids");
        CHECK_ERROR(ctx, KR_ERR_ARG, "decode: ids is NULL");
        CHECK(!kr_decoder_step(small, state, ids), "too many rows");
        CHECK_ERROR(ctx, KR_ERR_ARG, "decode: the state has 3 rows, but the decoder was made for at most 2");
        CHECK(!kr_decoder_step(d, foreign, ids), "a state of another network");
        CHECK_ERROR(ctx, KR_ERR_ARG, "decode: the state is of another network");
        CHECK(!kr_decoder_step(d, state, wrong), "an id that is no token");
        CHECK_ERROR(ctx, KR_ERR_ARG, "decode: ids[1] = 256, but the network's tokens are from 0 to 255");
        CHECK(kr_decoder_step(d, initial, ids) && kr_decoder_step(d, state, ids), "%s", kr_ctx_message(ctx));
        CHECK_OK(ctx);
        kr_decoder_destroy(d);
        kr_decoder_destroy(small);
        kr_decoder_destroy(NULL);
        kr_state_destroy(state);
        kr_state_destroy(foreign);
        kr_state_destroy(initial);
        kr_network_destroy(net);
        kr_network_destroy(other);
        kr_ctx_destroy(ctx);
    }
}
