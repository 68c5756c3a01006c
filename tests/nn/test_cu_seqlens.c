/* test_cu_seqlens.c - packed rows by cumulative lengths: the marker's bits, and what the sequences give one by one. */
#include "tests/error_tests.h"

enum { B = 2, S = 12 };
static const int32_t cu[] = { 0, 5, 6, 12, 15, 24 }; /* rows: 5 1 6 | 3 9 */
enum { Q = sizeof cu / sizeof *cu - 1 };

static kr_tensor *lengths(void)
{
    return kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(Q + 1), cu);
}

static kr_tensor *noise(kr_dtype dtype, kr_shape shape, double low, double high)
{
    return kr_input(t, kr_rand(t, dtype, shape, low, high));
}

TEST(the_marker_of_cumulative_lengths)
{
    begin();
    static const int32_t want[B * S] = { 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1 };
    kr_tensor *marker = kr_seq_start_from_cu_seqlens(t, lengths(), B, S);
    CHECK_SAME_BITS("i32", marker, kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(B, S), want));
    CHECK_SAME_BITS("i64", kr_seq_start_from_cu_seqlens(t, kr_cast(t, lengths(), KR_DTYPE_I64), B, S), marker);
    end();
}

/* The three cores, each with the marker and with lengths. */
TEST(cores_take_cumulative_lengths)
{
    begin();
    kr_tensor *marker = kr_seq_start_from_cu_seqlens(t, lengths(), B, S);
    kr_selective_scan_input scan = { .x_bsi = noise(KR_DTYPE_F32, KR_SHAPE(B, S, 6), -1, 1),
                                     .dt_bsi = noise(KR_DTYPE_F32, KR_SHAPE(B, S, 6), 0.1, 1),
                                     .a_ir = noise(KR_DTYPE_F32, KR_SHAPE(6, 4), -2, -0.5),
                                     .b_bsgr = noise(KR_DTYPE_F32, KR_SHAPE(B, S, 1, 4), -1, 1),
                                     .c_bsgr = noise(KR_DTYPE_F32, KR_SHAPE(B, S, 1, 4), -1, 1),
                                     .seq_start_bs = marker };
    const kr_scan_out marked = kr_selective_scan(t, &scan);
    scan.seq_start_bs = NULL;
    scan.cu_seqlens = lengths();
    const kr_scan_out counted = kr_selective_scan(t, &scan);
    CHECK_SAME_BITS("scan", counted.y_bsi, marked.y_bsi);
    CHECK_SAME_BITS("its states", counted.final_state, marked.final_state);
    kr_mamba2_ssd_input ssd = { .x_bshp = noise(KR_DTYPE_F32, KR_SHAPE(B, 3, 4, 2, 8), -1, 1),
                                .dt_bsh = noise(KR_DTYPE_F32, KR_SHAPE(B, 3, 4, 2), 0.1, 1),
                                .a_decay_h = noise(KR_DTYPE_F32, KR_SHAPE(2), -2, -0.5),
                                .b_bsgr = noise(KR_DTYPE_F32, KR_SHAPE(B, 3, 4, 1, 4), -1, 1),
                                .c_bsgr = noise(KR_DTYPE_F32, KR_SHAPE(B, 3, 4, 1, 4), -1, 1),
                                .seq_start_bs = marker };
    const kr_ssd_out first = kr_mamba2_ssd_run(t, &ssd, kr_ssd_path_default());
    ssd.seq_start_bs = NULL;
    ssd.cu_seqlens = lengths();
    const kr_ssd_out second = kr_mamba2_ssd_run(t, &ssd, kr_ssd_path_default());
    CHECK_SAME_BITS("ssd, in chunks", second.y, first.y);
    CHECK_SAME_BITS("its states", second.final_state, first.final_state);
    kr_mamba3_single_ssd_input single = { .v_bsmhp = noise(KR_DTYPE_F32, KR_SHAPE(B, S, 1, 2, 8), -1, 1),
                                          .b_bsmhr = noise(KR_DTYPE_F32, KR_SHAPE(B, S, 1, 2, 4), -1, 1),
                                          .c_bsmhr = noise(KR_DTYPE_F32, KR_SHAPE(B, S, 1, 2, 4), -1, 1),
                                          .da_bsh = noise(KR_DTYPE_F32, KR_SHAPE(B, S, 2), -1, -0.1),
                                          .gamma_bsh = noise(KR_DTYPE_F32, KR_SHAPE(B, S, 2), 0, 1),
                                          .scale_bsh = noise(KR_DTYPE_F32, KR_SHAPE(B, S, 2), 0, 1),
                                          .seq_start_bs = marker };
    const kr_ssd_out third = kr_mamba3_single_ssd_run(t, &single, kr_ssd_path_default());
    single.seq_start_bs = NULL;
    single.cu_seqlens = lengths();
    CHECK_SAME_BITS("mamba-3", kr_mamba3_single_ssd_run(t, &single, kr_ssd_path_default()).y, third.y);
    kr_mamba3_double_ssd_input pair = { .v_bsmhp = single.v_bsmhp,
                                        .b_bsmhr = single.b_bsmhr,
                                        .c_bsmhr = single.c_bsmhr,
                                        .da_bsh = single.da_bsh,
                                        .seq_start_bs = marker };
    const kr_ssd_out fourth = kr_mamba3_double_ssd_run(t, &pair, kr_ssd_path_default());
    pair.seq_start_bs = NULL;
    pair.cu_seqlens = lengths();
    CHECK_SAME_BITS("mamba-3, double", kr_mamba3_double_ssd_run(t, &pair, kr_ssd_path_default()).y, fourth.y);
    end();
}

static kr_network *network_of(kr_family family)
{
    kr_mamba1_config mamba1;
    kr_mamba2_config mamba2;
    kr_mamba3_config mamba3;
    kr_layers_config stack;
    kr_network_config config;
    kr_mamba1_config_init(&mamba1);
    kr_mamba2_config_init(&mamba2);
    kr_mamba3_config_init(&mamba3);
    mamba1.dtype = mamba2.dtype = mamba3.dtype = KR_DTYPE_F64;
    mamba1.d_model = mamba2.d_model = mamba3.d_model = 8;
    mamba1.state_rank = mamba2.state_rank = mamba3.state_rank = 4;
    mamba2.per_head_dim = mamba3.per_head_dim = 4;
    kr_layers_config_init(&stack);
    stack.block = family == KR_FAMILY_MAMBA1   ? kr_mamba1_block(&mamba1)
                  : family == KR_FAMILY_MAMBA2 ? kr_mamba2_block(&mamba2)
                                               : kr_mamba3_block(&mamba3);
    stack.n_layers = 2;
    kr_network_config_init(&config);
    config.layers = &stack;
    config.vocab_size = 11;
    config.embedding_std = 1;
    return kr_network_create(ctx, &config);
}

static kr_tensor *ids_of(void)
{
    int32_t ids[B * S];
    for (int i = 0; i < B * S; i++) ids[i] = (7 * i + i * i / 3) % 11;
    return kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(B, S), ids);
}

/* The gradients of all parameters, one after another. */
static double *gradients(const kr_network *net, int64_t *count)
{
    const kr_params *params = kr_network_params(net);
    double *all = NULL;
    *count = 0;
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_tensor *g = kr_grad(kr_params_at(params, i)->tensor);
        const int64_t n = kr_tensor_count(kr_params_at(params, i)->tensor);
        all = realloc(all, (size_t)(*count + n) * sizeof *all);
        if (!all) exit(2);
        if (!g || kr_tensor_read(g, KR_DTYPE_F64, all + *count, n) != KR_OK)
            for (int64_t k = 0; k < n; k++) all[*count + k] = 0;
        *count += n;
    }
    return all;
}

/* Packed: logits, loss and gradients are those of the sequences one by one. */
TEST(packed_networks_are_separate_ones)
{
    for (int family = KR_FAMILY_MAMBA1; family <= KR_FAMILY_MAMBA3; family++) {
        begin();
        kr_network *net = network_of((kr_family)family);
        kr_call call;
        kr_call_init(&call);
        call.cu_seqlens = lengths();
        kr_tensor *ids = ids_of(), *flat_ids = kr_reshape(t, ids, KR_SHAPE(1, B * S));
        kr_tensor *packed = kr_reshape(t, kr_network_forward(t, net, ids, &call).y, KR_SHAPE(1, B * S, -1));
        for (int q = 0; q < Q; q++) {
            kr_tensor *one = kr_slice(t, flat_ids, 1, cu[q], cu[q + 1]);
            /* the same numbers in f64, summed in another order: some hundred roundings */
            CHECK_TENSORS("logits", kr_slice(t, packed, 1, cu[q], cu[q + 1]), kr_network_forward(t, net, one, NULL).y,
                          1e-12, 1);
        }
        kr_tape_reset(t);

        kr_call_init(&call);
        call.cu_seqlens = lengths();
        kr_loss_call loss;
        kr_loss_call_init(&loss);
        loss.reduction = KR_REDUCTION_SUM;
        loss.call = &call;
        loss.ids_bs = ids_of();
        const kr_loss_out whole = kr_network_loss(t, net, &loss);
        kr_backward(t, whole.loss);
        CHECK_OK(ctx);
        CHECK(whole.scores.scored == B * S - Q && kr_state_batch(whole.state) == Q, "%lld scored",
              (long long)whole.scores.scored);
        int64_t count;
        const double total = kr_item(whole.loss);
        double *together = gradients(net, &count), sum = 0;
        kr_params_zero_grad(kr_network_params(net));
        for (int q = 0; q < Q; q++) {
            kr_tape_reset(t);
            loss.call = NULL;
            loss.ids_bs = kr_slice(t, kr_reshape(t, ids_of(), KR_SHAPE(1, B * S)), 1, cu[q], cu[q + 1]);
            kr_tensor *one = kr_network_loss(t, net, &loss).loss;
            sum += kr_item(one);
            kr_backward(t, one);
        }
        double *apart = gradients(net, &count);
        CHECK(fabs(total - sum) <= 1e-11 * fabs(sum), "family %d: loss %.17g, not %.17g", family, total, sum);
        CHECK_CLOSE("gradients", together, apart, count, NULL, 1e-11, 1);
        free(together);
        free(apart);
        kr_network_destroy(net);
        end();
    }
}

TEST(blocks_take_cumulative_lengths)
{
    begin();
    kr_mamba2_config mamba;
    kr_mamba2_config_init(&mamba);
    mamba.d_model = 8;
    mamba.state_rank = mamba.per_head_dim = 4;
    kr_block_config config = kr_mamba2_block(&mamba);
    kr_block *block = kr_block_create(ctx, &config);
    kr_tensor *x = noise(KR_DTYPE_F32, KR_SHAPE(B, S, 8), -1, 1);
    kr_block_call call = { .seq_start_bs = kr_seq_start_from_cu_seqlens(t, lengths(), B, S) };
    const kr_block_out marked = kr_block_forward(t, block, x, &call);
    call = (kr_block_call){ .cu_seqlens = lengths() };
    const kr_block_out counted = kr_block_forward(t, block, x, &call);
    CHECK_SAME_BITS("block", counted.y, marked.y);
    CHECK_SAME_BITS("its cache", counted.cache.mamba2.ssm_bhpr, marked.cache.mamba2.ssm_bhpr);
    CHECK_OK(ctx);
    REFUSED(KR_ERR_ARG, "mamba2.forward_reset: cu_seqlens and reset are both given; choose one",
            (call = (kr_block_call){ .cu_seqlens = lengths(), .reset_bs = I(B, S) },
             kr_block_forward(t, block, F(B, S, 8), &call).y));
    REFUSED(KR_ERR_ARG, "mamba2.forward_packed: cu_seqlens and seq_start are both given; choose one",
            (call = (kr_block_call){ .cu_seqlens = lengths(), .seq_start_bs = I(B, S) },
             kr_block_forward(t, block, F(B, S, 8), &call).y));
    kr_block_destroy(block);
    end();
}

static kr_tensor *of(int count, const int32_t *list)
{
    return kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(count), list);
}

#define FROM(...)                                                                                                      \
    kr_seq_start_from_cu_seqlens(                                                                                      \
        t, of((int)(sizeof((int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t)), (const int32_t[]){ __VA_ARGS__ }), 2, 4)

TEST(cumulative_lengths_are_checked)
{
    begin();
#define NAME "seq_start_from_cu_seqlens: "
    REFUSED(KR_ERR_ARG, NAME "cu_seqlens[0] is 1, but must be 0", FROM(1, 4, 8));
    REFUSED(KR_ERR_ARG, NAME "cu_seqlens[2] is 3 after 3, but must be larger: a sequence has at least one token",
            FROM(0, 3, 3, 4, 8));
    REFUSED(KR_ERR_ARG, NAME "cu_seqlens[2], the last, is 4, but there are 8 tokens", FROM(0, 2, 4));
    REFUSED(KR_ERR_ARG,
            NAME
            "cu_seqlens[2] is 5, but the sequence from 2 on ends with its row at 4; rows of 4 tokens are counted one "
            "after another, and no sequence crosses from one to the next",
            FROM(0, 2, 5, 8));
    REFUSED(KR_ERR_SHAPE, NAME "cu_seqlens [1] must be [q+1], a number for each of q >= 1 sequences and one more",
            FROM(0));
    REFUSED(KR_ERR_DTYPE, NAME "cu_seqlens [3] is f32, but must be i32 or i64",
            kr_seq_start_from_cu_seqlens(t, F(3), 1, 4));
    REFUSED(KR_ERR_ARG, NAME "operand x is NULL", kr_seq_start_from_cu_seqlens(t, NULL, 1, 4));
    kr_network *net = network_of(KR_FAMILY_MAMBA2);
    kr_call call;
    kr_call_init(&call);
#define CALL(run, ...) (kr_call_init(&call), (__VA_ARGS__), (run).y)
    REFUSED(KR_ERR_ARG, "network.forward: cu_seqlens and reset are both given; choose one",
            CALL(kr_network_forward(t, net, I(B, S), &call), call.cu_seqlens = lengths(), call.reset_bs = I(B, S)));
    REFUSED(KR_ERR_ARG, "network.step: cu_seqlens is for forward",
            CALL(kr_network_step(t, net, I(B), &call), call.cu_seqlens = lengths()));
    REFUSED(KR_ERR_ARG, "network.forward: dropout = 1, but must be from 0 to below 1",
            CALL(kr_network_forward(t, net, I(B, S), &call), call.dropout = 1));
    REFUSED(KR_ERR_ARG, "network.step: dropout = 0.5, but dropout is for forward",
            CALL(kr_network_step(t, net, I(B), &call), call.dropout = 0.5));
    kr_network_destroy(net);
    end();
}
