/* test_state_join.c - rows of several states side by side: joined = read together, to the bit; gradients; errors. */
#include "nn/layers_impl.h"
#include "nn/state_impl.h"
#include "tests/error_tests.h"

enum { FAMILIES = 3, D_MODEL = 8, SLOTS = 2 };

static kr_layers *make_stack(kr_family family, kr_dtype dtype, int64_t n_virtual)
{
    kr_mamba1_config m1;
    kr_mamba2_config m2;
    kr_mamba3_config m3;
    kr_mamba1_config_init(&m1);
    kr_mamba2_config_init(&m2);
    kr_mamba3_config_init(&m3);
    m1.d_model = m2.d_model = m3.d_model = D_MODEL;
    m1.state_rank = m2.state_rank = m3.state_rank = 4;
    m2.per_head_dim = m3.per_head_dim = 4;
    m1.dtype = m2.dtype = m3.dtype = dtype;
    m3.pathway = KR_MAMBA3_PATHWAY_DOUBLE; /* not the zero of its type */
    kr_layers_config config;
    kr_layers_config_init(&config);
    config.block = family == KR_FAMILY_MAMBA1   ? kr_mamba1_block(&m1)
                   : family == KR_FAMILY_MAMBA2 ? kr_mamba2_block(&m2)
                                                : kr_mamba3_block(&m3);
    config.n_layers = 2;
    config.n_virtual = n_virtual;
    kr_layers *stack = kr_layers_create(ctx, &config);
    CHECK_OK(ctx);
    return stack;
}

static kr_state *read_on(const kr_layers *stack, kr_tensor *x, const kr_state *state)
{
    kr_call call;
    kr_call_init(&call);
    call.state = state;
    return kr_layers_forward(t, stack, x, &call).state;
}

static void check_same(const char *what, const kr_state *got, const kr_state *want)
{
    if (!CHECK(got && want && got->batch == want->batch, "%s: %d rows", what, (int)kr_state_batch(got))) return;
    CHECK(got->cursors.is_on == want->cursors.is_on && got->cursors.stack == want->cursors.stack &&
              got->cursors.full_len == want->cursors.full_len &&
              got->cursors.layers[SLOTS - 1] == want->cursors.layers[SLOTS - 1],
          "%s: cursors", what);
    for (int64_t s = 0; s < SLOTS; s++) {
        if (want->slots[s].family == KR_FAMILY_MAMBA3)
            CHECK(got->slots[s].mamba3.pathway == want->slots[s].mamba3.pathway, "%s: pathway", what);
        for (int i = 0; i < kr_slot_kind(got, s)->ncache; i++)
            if (want->slots[s].tensors[i])
                CHECK_SAME(ctx, what, got->slots[s].tensors[i], want->slots[s].tensors[i], 1e-5, 1);
            else CHECK(!got->slots[s].tensors[i], "%s: not initial", what);
    }
}

TEST(joined_rows_are_read_together)
{
    begin();
    for (int f = 0; f < FAMILIES; f++) {
        kr_layers *stack = make_stack((kr_family)f, KR_DTYPE_F32, SLOTS);
        kr_tape_reset(t);
        kr_tensor *x = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(5, 6, D_MODEL));
        kr_state *all = read_on(stack, x, NULL), *own = kr_state_create(ctx, stack, 1);
        kr_state *parts[] = { read_on(stack, kr_slice(t, x, 0, 0, 2), NULL),
                              read_on(stack, kr_slice(t, x, 0, 2, 4), NULL),
                              read_on(stack, kr_slice(t, x, 0, 4, 5), NULL) };
        kr_state_copy(own, parts[2]); /* the caller's joins as well */
        parts[2] = own;
        check_same("joined", kr_state_join(t, 3, parts), all);
        check_same("one alone", kr_state_join(t, 1, &all), all);
        const int64_t rows[] = { 4, 1, 0 }, first[] = { 4 }, rest[] = { 1, 0 };
        kr_state *cut[] = { kr_state_select(t, all, 1, first), kr_state_select(t, all, 2, rest) };
        check_same("cut and joined", kr_state_join(t, 2, cut), kr_state_select(t, all, 3, rows));

        /* initial ones, and ones with cursors */
        kr_state *initial = kr_state_create(ctx, stack, 2);
        kr_state_announce(initial, 7);
        kr_state *twice[] = { initial, initial };
        kr_state *four = kr_state_join(t, 2, twice);
        CHECK(four && four->batch == 4 && kr_state_is_initial(four) && four->cursors.is_on &&
                  four->cursors.full_len == 7,
              "initial");
        CHECK_OK(ctx);
        kr_state_destroy(initial);
        kr_state_destroy(own);
        kr_layers_destroy(stack);
    }
    end();
}

/* Each part has the gradient of its own rows. */
TEST(gradients_of_joined_states)
{
    begin();
    kr_layers *stack = make_stack(KR_FAMILY_MAMBA2, KR_DTYPE_F32, SLOTS);
    kr_state *parts[] = { kr_state_input(t, read_on(stack, F(1, 3, D_MODEL), NULL)),
                          kr_state_input(t, read_on(stack, F(2, 3, D_MODEL), NULL)) };
    kr_tensor *ssm = kr_state_join(t, 2, parts)->slots[1].tensors[1];
    kr_tensor *weight =
        kr_contiguous(t, kr_expand(t, kr_from_data(t, KR_DTYPE_F32, KR_SHAPE(3, 1, 1, 1), (float[]){ 1, 2, 3 }),
                                   kr_tensor_shape(ssm)));
    kr_backward_from(t, 1, &ssm, &weight);
    CHECK_OK(ctx);
    CHECK_SAME_BITS("first", kr_grad(parts[0]->slots[1].tensors[1]), kr_slice(t, weight, 0, 0, 1));
    CHECK_SAME_BITS("second", kr_grad(parts[1]->slots[1].tensors[1]), kr_slice(t, weight, 0, 1, 3));
    CHECK(!kr_grad(parts[0]->slots[0].tensors[1]), "of nothing else");
    kr_layers_destroy(stack);
    end();
}

TEST(states_that_do_not_join)
{
    begin();
    kr_ctx *foreign = kr_test_ctx(1, NULL);
    kr_tape *far = kr_tape_create(foreign, KR_TAPE_GRAD), *other_tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_layers *stack = make_stack(KR_FAMILY_MAMBA3, KR_DTYPE_F32, SLOTS),
              *deep = make_stack(KR_FAMILY_MAMBA3, KR_DTYPE_F32, 3),
              *other = make_stack(KR_FAMILY_MAMBA2, KR_DTYPE_F32, SLOTS),
              *wide = make_stack(KR_FAMILY_MAMBA3, KR_DTYPE_F64, SLOTS);
    kr_state *initial = kr_state_create(ctx, stack, 1), *deeper = kr_state_create(ctx, deep, 1),
             *second = kr_state_create(ctx, other, 1), *told = kr_state_create(ctx, stack, 1),
             *used = kr_state_create(ctx, stack, 1), *doubles = kr_state_create(ctx, wide, 1);
    kr_state_announce(told, 5);
    kr_state_copy(used, read_on(stack, F(1, 2, D_MODEL), NULL));
    kr_state_copy(doubles, read_on(wide, D(1, 2, D_MODEL), NULL));
    REFUSED(KR_ERR_ARG, "state.join: count = 0, but must be at least 1", kr_state_join(t, 0, &initial));
    REFUSED(KR_ERR_ARG, "state.join: states is NULL", kr_state_join(t, 1, NULL));
    REFUSED(KR_ERR_ARG, "state.join: state is NULL", kr_state_join(t, 2, (kr_state *[]){ initial, NULL }));
    REFUSED(KR_ERR_ARG, "state.join: state is NULL", kr_state_join(t, 1, (kr_state *[]){ NULL }));
    REFUSED(KR_ERR_ARG, "state.join: states[1] has 3 slots of the family mamba3, but states[0] has 2 of mamba3",
            kr_state_join(t, 2, (kr_state *[]){ initial, deeper }));
    REFUSED(KR_ERR_ARG, "state.join: states[2] has 2 slots of the family mamba2, but states[0] has 2 of mamba3",
            kr_state_join(t, 3, (kr_state *[]){ initial, initial, second }));
    REFUSED(
        KR_ERR_ARG,
        "state.join: states[1] and states[0] differ in what was announced, or in the class tokens still to be inserted",
        kr_state_join(t, 2, (kr_state *[]){ initial, told }));
    REFUSED(KR_ERR_ARG, "state.join: slot 0 of states[1] is in use, but that of states[0] is initial",
            kr_state_join(t, 2, (kr_state *[]){ initial, used }));
    REFUSED(KR_ERR_ARG, "state.join: slot 0 of states[1] is initial, but that of states[0] is in use",
            kr_state_join(t, 2, (kr_state *[]){ used, initial }));
    kr_state *single = kr_state_create(ctx, stack, 1);
    kr_state_copy(single, used);
    single->slots[1].mamba3.pathway = KR_MAMBA3_PATHWAY_SINGLE;
    REFUSED(KR_ERR_ARG, "state.join: slot 1 of states[1] is of another pathway than that of states[0]",
            kr_state_join(t, 2, (kr_state *[]){ used, single }));
    REFUSED(KR_ERR_DTYPE, "state.join: concat: x1 is f64, but x0 is f32",
            kr_state_join(t, 2, (kr_state *[]){ used, doubles }));
    kr_tape_reset(other_tape);
    kr_state *elsewhere = kr_state_detach(other_tape, used);
    REFUSED(KR_ERR_STATE,
            "state.join: the state is on another tape; carry it over with kr_state_copy into one of kr_state_create",
            kr_state_join(t, 2, (kr_state *[]){ used, elsewhere }));
    CHECK(!kr_state_join(far, 1, &used), "another context");
    CHECK_ERROR(foreign, KR_ERR_STATE, "state.join: the state belongs to another context");
    CHECK(!kr_state_join(NULL, 1, &used), "no tape");
    kr_tape_reset(t);
    kr_state *const made[] = { initial, deeper, second, told, used, doubles, single };
    for (int i = 0; i < 7; i++) kr_state_destroy(made[i]);
    kr_layers_destroy(stack);
    kr_layers_destroy(deep);
    kr_layers_destroy(other);
    kr_layers_destroy(wide);
    kr_tape_destroy(far);
    kr_tape_destroy(other_tape);
    kr_ctx_destroy(foreign);
    end();
}

TEST(joining_may_run_out_of_memory)
{
    begin();
    kr_layers *stack = make_stack(KR_FAMILY_MAMBA1, KR_DTYPE_F32, SLOTS);
    kr_state *own = kr_state_create(ctx, stack, 1);
    kr_state_copy(own, read_on(stack, F(2000, 2, D_MODEL), NULL));
    kr_state *twice[] = { own, own };
    kr_tape_destroy(t);
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    size_t n = 1;
    for (bool done = false; !done && n < 50; n++) {
        kr_ctx_fail_allocation(ctx, n);
        t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        done = kr_state_join(t, 2, twice) != NULL;
        kr_ctx_fail_allocation(ctx, 0);
        CHECK(done == !kr_ctx_failed(ctx) && (done || kr_ctx_status(ctx) == KR_ERR_NOMEM), "%s", kr_ctx_message(ctx));
        kr_ctx_clear(ctx);
        kr_tape_destroy(t);
        CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "allocation %zu: memory is left", n);
    }
    CHECK(n > 3 && n < 50, "%zu allocations", n);
    t = NULL;
    kr_state_destroy(own);
    kr_layers_destroy(stack);
    end();
}
