/* test_state.c - states of all families: copies, rows, leaves; values and gradients; what is refused; exact memory. */
#include "nn/layers_impl.h"
#include "nn/state_impl.h"
#include "tests/harness.h"
#include "tests/memory.h"
#include "tests/nn/differences.h"

enum { FAMILIES = 3, D_MODEL = 8, LAYERS = 2, SLOTS = 3 };

/* ---- small stacks ---- */

static kr_layers *make_stack(kr_ctx *ctx, kr_family family, kr_dtype dtype, int64_t n_virtual)
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
    m1.dt_min = m2.dt_min = m3.dt_min = 0.05; /* short steps would hardly read the state */
    m1.dt_max = m2.dt_max = m3.dt_max = 0.5;
    m3.pathway = KR_MAMBA3_PATHWAY_DOUBLE; /* not the zero of its type */
    kr_layers_config config;
    kr_layers_config_init(&config);
    config.block = family == KR_FAMILY_MAMBA1   ? kr_mamba1_block(&m1)
                   : family == KR_FAMILY_MAMBA2 ? kr_mamba2_block(&m2)
                                                : kr_mamba3_block(&m3);
    config.n_layers = LAYERS;
    config.n_virtual = n_virtual;
    kr_layers *stack = kr_layers_create(ctx, &config);
    CHECK_OK(ctx);
    return stack;
}

static kr_layers_out forward(kr_tape *t, const kr_layers *stack, kr_tensor *x, const kr_state *state)
{
    kr_call call;
    kr_call_init(&call);
    call.state = state;
    return kr_layers_forward(t, stack, x, &call);
}

static kr_tensor *noise(kr_tape *t, kr_dtype dtype, int64_t batch, int64_t len)
{
    return kr_randn(t, dtype, KR_SHAPE(batch, len, D_MODEL));
}

/* A state after some tokens: on the tape. */
static kr_state *used_state(kr_tape *t, const kr_layers *stack, kr_dtype dtype, int64_t batch)
{
    return forward(t, stack, noise(t, dtype, batch, 5), NULL).state;
}

/* Marks that nothing but a copy would make equal. */
static void set_cursors(kr_state *s)
{
    s->cursors.is_on = true;
    s->cursors.full_len = 77;
    s->cursors.network = 11;
    s->cursors.stack = 12;
    for (int64_t i = 0; i < s->nslots; i++) s->cursors.layers[i] = 20 + i;
}

static bool same_cursors(const kr_state *a, const kr_state *b)
{
    bool same = a->cursors.is_on == b->cursors.is_on && a->cursors.full_len == b->cursors.full_len &&
                a->cursors.network == b->cursors.network && a->cursors.stack == b->cursors.stack &&
                a->cursors.layers != b->cursors.layers && a->nslots == b->nslots;
    for (int64_t i = 0; same && i < a->nslots; i++) same = a->cursors.layers[i] == b->cursors.layers[i];
    return same;
}

static bool cursors_are_off(const kr_state *s)
{
    bool off = !s->cursors.is_on && s->cursors.network == 0 && s->cursors.stack == 0;
    for (int64_t i = 0; i < s->nslots; i++) off = off && s->cursors.layers[i] == 0;
    return off;
}

/* All tensors, types, pathways and cursors. */
static void check_same(const char *what, const kr_state *got, const kr_state *want)
{
    if (!CHECK(got && want, "%s: a state is NULL", what)) return;
    CHECK(kr_state_same_slots(got, want) && got->batch == want->batch, "%s: %d rows", what, (int)got->batch);
    CHECK(same_cursors(got, want), "%s: cursors", what);
    for (int64_t s = 0; s < got->nslots; s++) {
        const kr_cache *a = kr_state_cache(got, s), *b = kr_state_cache(want, s);
        CHECK(a->family == b->family, "%s: family", what);
        if (a->family == KR_FAMILY_MAMBA3) CHECK(a->mamba3.pathway == b->mamba3.pathway, "%s: pathway", what);
        for (int i = 0; i < kr_slot_kind(got, s)->ncache; i++) {
            if (!b->tensors[i]) CHECK(!a->tensors[i], "%s: slot %d is not initial", what, (int)s);
            else CHECK_SAME_BITS(what, a->tensors[i], b->tensors[i]);
        }
    }
}

/* ---- the caller's states ---- */

TEST(new_states)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int f = 0; f < FAMILIES; f++) {
        kr_layers *stack = make_stack(ctx, (kr_family)f, KR_DTYPE_F32, SLOTS);
        const kr_memory_stats before = all_memory(ctx);
        kr_state *state = kr_state_create(ctx, stack, 4);
        CHECK(kr_state_batch(state) == 4 && kr_state_slots(state) == SLOTS && kr_state_is_initial(state) &&
                  kr_state_bytes(state) == 0 && cursors_are_off(state),
              "an initial one");
        for (int64_t s = 0; s < SLOTS; s++) {
            const kr_cache *cache = kr_state_cache(state, s);
            CHECK(cache->family == (kr_family)f && kr_state_slot_is_initial(state, s), "slot %d", (int)s);
            for (int i = 0; i < KR_CACHE_TENSORS; i++) CHECK(!cache->tensors[i], "a tensor");
        }
        CHECK(!kr_state_cache(state, -1) && !kr_state_cache(state, SLOTS), "slots beyond");
        CHECK(all_memory(ctx).live_blocks == before.live_blocks + 1, "one block");
        kr_state_destroy(state);
        CHECK(all_memory(ctx).live_bytes == before.live_bytes, "memory is left");
        kr_layers_destroy(stack);
    }
    kr_state_destroy(NULL);
    CHECK(kr_state_batch(NULL) == 0 && kr_state_slots(NULL) == 0 && !kr_state_cache(NULL, 0) &&
              kr_state_is_initial(NULL) && kr_state_bytes(NULL) == 0,
          "NULL reads as nothing");
    CHECK(kr_state_zero(NULL) == KR_ERR_ARG && kr_state_copy(NULL, NULL) == KR_ERR_ARG &&
              kr_state_announce(NULL, 1) == KR_ERR_ARG,
          "NULL is not changed");
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

/* Bytes of a cache by its shapes; f32. */
static size_t bytes_by_shape(const kr_layers *stack, int64_t batch)
{
    size_t elements = 0;
    for (int i = 0; i < stack->kind->ncache; i++) {
        const kr_shape shape = stack->kind->cache_shape(stack->layers[0].block, i, batch);
        elements += (size_t)kr_shape_count(&shape);
    }
    return elements * (size_t)stack->nvirtual * sizeof(float);
}

TEST(copies_outlive_the_tape)
{
    kr_ctx *ctx = kr_test_ctx(2, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    for (int f = 0; f < FAMILIES; f++) {
        kr_layers *stack = make_stack(ctx, (kr_family)f, KR_DTYPE_F32, SLOTS);
        kr_state *state = kr_state_create(ctx, stack, 1), *other = kr_state_create(ctx, stack, 9);
        kr_state *used = used_state(t, stack, KR_DTYPE_F32, 3);
        set_cursors(used);
        const kr_memory_stats before = all_memory(ctx);
        CHECK(kr_state_copy(state, used) == KR_OK, "%s", kr_ctx_message(ctx));
        check_same("copy", state, used);
        const size_t bytes = bytes_by_shape(stack, 3), ntensors = (size_t)(SLOTS * stack->kind->ncache);
        CHECK(kr_state_bytes(state) == bytes && kr_state_bytes(used) == bytes, "%zu bytes, not %zu",
              kr_state_bytes(state), bytes);
        CHECK(all_memory(ctx).live_bytes - before.live_bytes == bytes + ntensors * sizeof(kr_header),
              "%zu bytes of memory for %zu of tensors", all_memory(ctx).live_bytes - before.live_bytes, bytes);

        /* from the copy as from the original, and the copy is only read */
        kr_tensor *x = noise(t, KR_DTYPE_F32, 3, 4);
        const kr_layers_out on = forward(t, stack, x, used), again = forward(t, stack, x, state);
        CHECK_SAME_BITS("y", again.y, on.y);
        CHECK(again.state->cursors.is_on, "the cursors go on");
        check_same("the state after", again.state, on.state);
        check_same("the state that was read", state, used);

        /* the caller's from the caller's, after the tape is gone */
        CHECK(kr_state_copy(other, state) == KR_OK && kr_state_copy(state, state) == KR_OK, "%s", kr_ctx_message(ctx));
        kr_tape_reset(t);
        check_same("copy of the copy", other, state);
        kr_tape_reset(t);
        kr_state_destroy(state);
        kr_state_destroy(other);
        kr_layers_destroy(stack);
    }
    kr_tape_destroy(t);
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

TEST(copies_of_one_shape_are_in_place)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_layers *stack = make_stack(ctx, KR_FAMILY_MAMBA3, KR_DTYPE_F32, SLOTS);
    kr_state *state = kr_state_create(ctx, stack, 1);
    kr_state *first = used_state(t, stack, KR_DTYPE_F32, 2), *second = used_state(t, stack, KR_DTYPE_F32, 2);
    kr_state *wide = used_state(t, stack, KR_DTYPE_F32, 5),
             *initial = kr_state_new(t, &(kr_state_layout){ SLOTS, stack->kind->family, NULL }, 7);
    kr_state_copy(state, first);
    const kr_memory_stats before = all_memory(ctx);
    const kr_tensor *place = kr_state_cache(state, 1)->tensors[2];
    CHECK(kr_state_copy(state, second) == KR_OK && all_memory(ctx).total_blocks == before.total_blocks,
          "a copy allocates");
    CHECK(kr_state_cache(state, 1)->tensors[2] == place, "the tensor is another");
    check_same("in place", state, second);

    kr_state_copy(state, wide);
    check_same("of another batch", state, wide);
    kr_state_copy(state, first);
    check_same("and back", state, first);
    CHECK(all_memory(ctx).live_bytes == before.live_bytes, "%zu bytes, not %zu", all_memory(ctx).live_bytes,
          before.live_bytes);

    /* slots come and go one by one */
    kr_cache kept = second->slots[1];
    for (int i = 0; i < KR_CACHE_TENSORS; i++) second->slots[1].tensors[i] = NULL;
    kr_state_copy(state, second);
    check_same("without a slot", state, second);
    CHECK(!kr_state_is_initial(state) && kr_state_slot_is_initial(state, 1) && !kr_state_slot_is_initial(state, 2),
          "one slot is initial");
    second->slots[1] = kept;
    kr_state_copy(state, second);
    check_same("with it again", state, second);
    kr_state_copy(state, initial);
    check_same("initial", state, initial);
    CHECK(kr_state_is_initial(state) && kr_state_batch(state) == 7 && kr_state_bytes(state) == 0, "initial");
    kr_state_destroy(state);
    kr_layers_destroy(stack);
    kr_tape_destroy(t);
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

/* Views of any strides, and each type by itself. */
TEST(copies_keep_types)
{
    static const kr_dtype types[] = { KR_DTYPE_F32, KR_DTYPE_F64, KR_DTYPE_BF16, KR_DTYPE_F16 };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_layers *stack = make_stack(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, SLOTS);
    kr_state *state = kr_state_create(ctx, stack, 1);
    for (int a = 0; a < 4; a++) {
        kr_state *made = kr_state_new(t, &(kr_state_layout){ SLOTS, stack->kind->family, NULL }, 2);
        for (int64_t s = 0; s < SLOTS; s++) {
            made->slots[s].tensors[0] = kr_transpose(t, kr_randn(t, types[a], KR_SHAPE(2, 3, 4)));
            made->slots[s].tensors[1] = kr_flip(t, kr_randn(t, types[(a + 1) % 4], KR_SHAPE(2, 5)), 0);
        }
        CHECK(kr_state_copy(state, made) == KR_OK, "%s", kr_ctx_message(ctx));
        check_same(kr_dtype_name(types[a]), state, made);
        CHECK(kr_state_bytes(state) ==
                  SLOTS * (24 * kr_dtype_bytes(types[a]) + 10 * kr_dtype_bytes(types[(a + 1) % 4])),
              "%zu bytes", kr_state_bytes(state));
        const int64_t rows[] = { 1, 1, 0 };
        const kr_state *chosen = kr_state_select(t, made, 3, rows);
        for (int i = 0; i < 2; i++) {
            kr_tensor *x = made->slots[2].tensors[i];
            kr_tensor *parts[] = { kr_slice(t, x, 0, 1, 2), kr_slice(t, x, 0, 1, 2), kr_slice(t, x, 0, 0, 1) };
            CHECK_SAME_BITS("rows", chosen->slots[2].tensors[i], kr_concat(t, 0, 3, parts));
        }
    }
    kr_state_destroy(state);
    kr_layers_destroy(stack);
    kr_tape_destroy(t);
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

TEST(zero_and_announce)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_layers *stack = make_stack(ctx, KR_FAMILY_MAMBA1, KR_DTYPE_F32, SLOTS);
    kr_state *state = kr_state_create(ctx, stack, 2);
    kr_state *used = used_state(t, stack, KR_DTYPE_F32, 2);
    set_cursors(used);
    const size_t live = all_memory(ctx).live_bytes;
    kr_state_copy(state, used);
    CHECK(kr_state_announce(state, 9) == KR_OK && state->cursors.is_on && state->cursors.full_len == 9, "announced");
    CHECK(state->cursors.network == 0 && state->cursors.stack == 0 && state->cursors.layers[0] == 0 &&
              state->cursors.layers[SLOTS - 1] == 0,
          "from the start");
    CHECK(!kr_state_is_initial(state), "what was read stays");
    CHECK(kr_state_announce(state, KR_LENGTH_UNKNOWN) == KR_OK && state->cursors.full_len == KR_LENGTH_UNKNOWN &&
              state->cursors.is_on,
          "of unknown length");
    CHECK(kr_state_announce(state, 0) == KR_OK && state->cursors.full_len == 0, "of none");
    kr_state_copy(state, used);
    CHECK(kr_state_zero(state) == KR_OK && kr_state_is_initial(state) && cursors_are_off(state) &&
              kr_state_batch(state) == 2,
          "initial again");
    CHECK(all_memory(ctx).live_bytes == live, "memory is left");
    kr_tape_destroy(t);
    kr_state_destroy(state);
    kr_layers_destroy(stack);
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

/* ---- on a tape ---- */

/* Whatever is done to rows is done to the states: select(forward(x)) = forward of the selected rows. */
TEST(rows_of_states)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    for (int f = 0; f < FAMILIES; f++) {
        kr_layers *stack = make_stack(ctx, (kr_family)f, KR_DTYPE_F32, SLOTS);
        kr_state *own = kr_state_create(ctx, stack, 1);
        kr_tensor *x = noise(t, KR_DTYPE_F32, 4, 6);
        kr_state *all = forward(t, stack, x, NULL).state;
        const int64_t rows[] = { 3, 0, 3, 2, 1, 3 };
        kr_state *want = forward(t, stack, kr_select_rows(t, x, 6, rows), NULL).state;
        set_cursors(all);
        set_cursors(want);
        check_same("select", kr_state_select(t, all, 6, rows), want);
        kr_state_copy(own, all);
        check_same("select from the caller's", kr_state_select(t, own, 6, rows), want);
        check_same("which is only read", own, all);

        const int64_t twos[] = { 2, 2, 2 };
        want = forward(t, stack, kr_select_rows(t, x, 3, twos), NULL).state;
        set_cursors(want);
        check_same("fork", kr_state_fork(t, all, 2, 3), want);
        check_same("fork of the caller's", kr_state_fork(t, own, 2, 3), want);
        check_same("select after fork", kr_state_select(t, kr_state_fork(t, own, 2, 5), 3, (int64_t[]){ 4, 0, 1 }),
                   want);

        /* a slot that is initial stays so */
        for (int i = 0; i < KR_CACHE_TENSORS; i++) all->slots[1].tensors[i] = want->slots[1].tensors[i] = NULL;
        check_same("select with an initial slot", kr_state_select(t, all, 3, twos), want);
        kr_state_zero(own);
        kr_state_announce(own, 5);
        const kr_state *initial = kr_state_fork(t, own, 1, 4);
        CHECK(kr_state_is_initial(initial) && kr_state_batch(initial) == 4 && same_cursors(initial, own),
              "fork of an initial one");
        kr_tape_reset(t);
        kr_state_destroy(own);
        kr_layers_destroy(stack);
    }
    kr_tape_destroy(t);
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

/* The caller's tensors, unfrozen, are what differences_check takes for parameters. */
typedef struct setting {
    const kr_layers *stack;
    kr_state *state;
    kr_tensor *x;
    int way; /* 0: the state itself, 1: selected rows, 2: a fork, 3: leaves */
} setting;

static kr_tensor *weigh_all(kr_tape *t, const kr_layers_out *out)
{
    kr_tensor *sum = differences_weigh(t, out->y, 0);
    for (int64_t s = 0; s < kr_state_slots(out->state); s++)
        for (int i = 0; i < kr_slot_kind(out->state, s)->ncache; i++)
            sum = kr_add(t, sum, differences_weigh(t, out->state->slots[s].tensors[i], 1 + i));
    return sum;
}

static kr_tensor *continue_from(kr_tape *t, void *user)
{
    const setting *set = user;
    const int64_t rows[] = { 2, 0, 0 };
    const kr_state *from = set->way == 1   ? kr_state_select(t, set->state, 3, rows)
                           : set->way == 2 ? kr_state_fork(t, set->state, 1, 3)
                                           : set->state;
    const kr_layers_out out = forward(t, set->stack, set->x, from);
    return weigh_all(t, &out);
}

/* Zeros where a row was not chosen, sums where it was chosen twice: by differences, through the stack. */
TEST(gradients_through_rows)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int f = 0; f < FAMILIES; f++) {
        kr_layers *stack = make_stack(ctx, (kr_family)f, KR_DTYPE_F64, LAYERS);
        setting set = { stack, kr_state_create(ctx, stack, 1),
                        kr_param_create(ctx, KR_DTYPE_F64, KR_SHAPE(3, 4, D_MODEL)), 0 };
        kr_param_normal(set.x, 0, 1);
        kr_param_freeze(set.x, true);
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        kr_state_copy(set.state, used_state(t, stack, KR_DTYPE_F64, 3));
        kr_tape_destroy(t);
        kr_tensor *params[LAYERS * KR_CACHE_TENSORS];
        const char *names[LAYERS * KR_CACHE_TENSORS];
        int count = 0;
        for (int64_t s = 0; s < LAYERS; s++)
            for (int i = 0; i < stack->kind->ncache; i++) {
                CHECK(!kr_requires_grad(set.state->slots[s].tensors[i]), "a state is a constant");
                kr_param_freeze(set.state->slots[s].tensors[i], false);
                names[count] = stack->kind->cache_names[i];
                params[count++] = set.state->slots[s].tensors[i];
            }
        for (set.way = 0; set.way < 3; set.way++)
            differences_check(ctx, continue_from, &set, count, params, names, kr_test_quick() ? 6 : 24, 1e-8);
        kr_state_destroy(set.state);
        kr_param_destroy(set.x);
        kr_layers_destroy(stack);
    }
    kr_ctx_destroy(ctx);
}

/* Exact: a sum of rows with small whole weights. */
TEST(gradients_of_rows_are_sums)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_layers *stack = make_stack(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, LAYERS);
    kr_state *leaf = kr_state_input(t, used_state(t, stack, KR_DTYPE_F32, 3));
    const int64_t rows[] = { 2, 0, 2 };
    const kr_state *chosen = kr_state_select(t, leaf, 3, rows);
    for (int64_t s = 0; s < LAYERS; s++)
        for (int i = 0; i < 2; i++)
            CHECK(kr_requires_grad(leaf->slots[s].tensors[i]) && kr_requires_grad(chosen->slots[s].tensors[i]),
                  "a leaf and what was chosen");
    kr_tensor *ssm = chosen->slots[1].tensors[1],
              *weight = kr_contiguous(
                  t, kr_expand(t, kr_from_data(t, KR_DTYPE_F32, KR_SHAPE(3, 1, 1, 1), (float[]){ 1, 10, 100 }),
                               kr_tensor_shape(ssm)));
    kr_backward_from(t, 1, &ssm, &weight);
    CHECK_OK(ctx);
    const float sums[] = { 10, 0, 101 };
    CHECK_SAME_BITS("g_ssm", kr_grad(leaf->slots[1].tensors[1]),
                    kr_expand(t, kr_from_data(t, KR_DTYPE_F32, KR_SHAPE(3, 1, 1, 1), sums), kr_tensor_shape(ssm)));
    CHECK(!kr_grad(leaf->slots[0].tensors[1]) && !kr_grad(leaf->slots[1].tensors[0]), "of nothing else");
    kr_tape_destroy(t);
    kr_layers_destroy(stack);
    kr_ctx_destroy(ctx);
}

/* Leaves have the gradient that the state's own tensors would have; a detached state stops it. */
TEST(leaves_and_detached_states)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int f = 0; f < FAMILIES; f++) {
        kr_layers *stack = make_stack(ctx, (kr_family)f, KR_DTYPE_F32, SLOTS);
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
        kr_state *own = kr_state_create(ctx, stack, 1);
        kr_state *used = used_state(t, stack, KR_DTYPE_F32, 2);
        set_cursors(used);
        kr_state_copy(own, used);
        kr_tape_reset(t);
        kr_tensor *x = kr_input(t, noise(t, KR_DTYPE_F32, 2, 3));
        for (int64_t s = 0; s < SLOTS; s++)
            for (int i = 0; i < stack->kind->ncache; i++) kr_param_freeze(own->slots[s].tensors[i], false);
        const kr_state *leaf = kr_state_input(t, own), *cut = kr_state_detach(t, own);
        check_same("input", leaf, own);
        check_same("detach", cut, own);
        const kr_layers_out by_own = forward(t, stack, x, own), by_leaf = forward(t, stack, x, leaf),
                            by_cut = forward(t, stack, x, cut);
        kr_backward(t, kr_add(t, weigh_all(t, &by_own), kr_add(t, weigh_all(t, &by_leaf), weigh_all(t, &by_cut))));
        CHECK_OK(ctx);
        for (int64_t s = 0; s < SLOTS; s++)
            for (int i = 0; i < stack->kind->ncache; i++) {
                const kr_tensor *a = own->slots[s].tensors[i], *b = leaf->slots[s].tensors[i],
                                *c = cut->slots[s].tensors[i];
                CHECK_SAME_BITS("gradient of a leaf", kr_grad(b), kr_grad(a));
                CHECK(kr_tensor_data(b) != kr_tensor_data(a) && kr_tensor_data(c) == kr_tensor_data(a),
                      "a leaf is a copy, a detached tensor is none");
                CHECK(!kr_requires_grad(c) && !kr_grad(c), "no gradient");
            }
        /* what was detached or passed on lies in the caller's own memory; copying it back changes nothing */
        kr_state *kept = kr_state_create(ctx, stack, 1);
        kr_state_copy(kept, own);
        kr_state_copy(own, cut);
        check_same("copied back", own, kept);
        kr_tape_destroy(t);
        kr_state_destroy(kept);
        kr_state_destroy(own);
        kr_layers_destroy(stack);
    }
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

/* ---- errors ---- */

TEST(state_errors)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL), *foreign = kr_test_ctx(1, NULL);
    kr_layers *stack = make_stack(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, SLOTS),
              *deep = make_stack(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 5);
    kr_layers *other = make_stack(ctx, KR_FAMILY_MAMBA1, KR_DTYPE_F32, SLOTS),
              *far = make_stack(foreign, KR_FAMILY_MAMBA2, KR_DTYPE_F32, SLOTS);
    kr_state *state = kr_state_create(ctx, stack, 3);
#define REFUSED(status, text, call)                                                                                    \
    do {                                                                                                               \
        CHECK((call), "%s is not refused", #call);                                                                     \
        CHECK_ERROR(ctx, (status), (text));                                                                            \
    } while (0)
    REFUSED(KR_ERR_ARG, "state.create: layers is NULL", !kr_state_create(ctx, NULL, 1));
    REFUSED(KR_ERR_STATE, "state.create: the layers belong to another context", !kr_state_create(ctx, far, 1));
    REFUSED(KR_ERR_ARG, "state.create: batch = 0, but must be at least 1", !kr_state_create(ctx, stack, 0));
    REFUSED(KR_ERR_ARG, "state.create: batch = -3, but must be at least 1", !kr_state_create(ctx, stack, -3));
    REFUSED(KR_ERR_ARG, "state.announce: full_len = -2, but must be from 0 to 9007199254740992, or KR_LENGTH_UNKNOWN",
            kr_state_announce(state, -2) == KR_ERR_ARG);
    REFUSED(KR_ERR_ARG,
            "state.announce: full_len = 9007199254740993, but must be from 0 to 9007199254740992, or KR_LENGTH_UNKNOWN",
            kr_state_announce(state, (INT64_C(1) << 53) + 1) == KR_ERR_ARG);

    kr_state *wrong = kr_state_create(ctx, other, 3), *deeper = kr_state_create(ctx, deep, 3);
    kr_state *away = kr_state_create(foreign, far, 3);
    REFUSED(KR_ERR_ARG, "state.copy: from is NULL", kr_state_copy(state, NULL) == KR_ERR_ARG);
    REFUSED(KR_ERR_STATE, "state.copy: from belongs to another context", kr_state_copy(state, away) == KR_ERR_STATE);
    REFUSED(KR_ERR_ARG,
            "state.copy: from has 3 slots of the family mamba1, but to has 3 of mamba2; create it for the stack that "
            "from is of",
            kr_state_copy(state, wrong));
    REFUSED(KR_ERR_ARG,
            "state.copy: from has 5 slots of the family mamba2, but to has 3 of mamba2; create it for the stack that "
            "from is of",
            kr_state_copy(state, deeper));

    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD), *t2 = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_state *used = used_state(t, stack, KR_DTYPE_F32, 3);
    REFUSED(KR_ERR_ARG,
            "state.copy: the state is on a tape, where states do not change; copy into one of kr_state_create",
            kr_state_copy(used, state) == KR_ERR_ARG);
    REFUSED(KR_ERR_ARG,
            "state.zero: the state is on a tape, where states do not change; call with state NULL to start from the "
            "initial state",
            kr_state_zero(used) == KR_ERR_ARG);
    REFUSED(KR_ERR_ARG,
            "state.announce: the state is on a tape, where states do not change; announce to one of kr_state_create "
            "and pass it to the first call",
            kr_state_announce(used, 5) == KR_ERR_ARG);
    REFUSED(KR_ERR_ARG, "state.destroy: the state is on a tape, which frees it by itself",
            (kr_state_destroy(used), true));
    CHECK(!kr_state_is_initial(used), "none of this changed it");

#define ROWS(...) (int64_t[]){ __VA_ARGS__ }
#define REFUSED_ON_TAPE(status, text, call)                                                                            \
    do {                                                                                                               \
        kr_tape_reset(t2);                                                                                             \
        REFUSED(status, text, !(call));                                                                                \
    } while (0)
    REFUSED_ON_TAPE(KR_ERR_ARG, "state.select: state is NULL", kr_state_select(t2, NULL, 1, ROWS(0)));
    REFUSED_ON_TAPE(KR_ERR_ARG, "state.fork: state is NULL", kr_state_fork(t2, NULL, 0, 1));
    REFUSED_ON_TAPE(KR_ERR_ARG, "state.input: state is NULL", kr_state_input(t2, NULL));
    REFUSED_ON_TAPE(KR_ERR_ARG, "state.detach: state is NULL", kr_state_detach(t2, NULL));
    REFUSED_ON_TAPE(KR_ERR_STATE, "state.select: the state belongs to another context",
                    kr_state_select(t2, away, 1, ROWS(0)));
    REFUSED_ON_TAPE(KR_ERR_STATE,
                    "state.detach: the state is on another tape; carry it over with kr_state_copy into one of "
                    "kr_state_create",
                    kr_state_detach(t2, used));
    REFUSED_ON_TAPE(KR_ERR_ARG, "state.select: count = 0, but must be at least 1",
                    kr_state_select(t2, state, 0, ROWS(0)));
    REFUSED_ON_TAPE(KR_ERR_ARG, "state.fork: count = -1, but must be at least 1", kr_state_fork(t2, state, 0, -1));
    REFUSED_ON_TAPE(KR_ERR_ARG, "state.select: rows is NULL", kr_state_select(t2, state, 1, NULL));
    REFUSED_ON_TAPE(KR_ERR_ARG, "state.select: rows[1] = 3, but the state has rows from 0 to 2",
                    kr_state_select(t2, state, 2, ROWS(0, 3)));
    REFUSED_ON_TAPE(KR_ERR_ARG, "state.select: rows[0] = -1, but the state has rows from 0 to 2",
                    kr_state_select(t2, state, 1, ROWS(-1)));
    REFUSED_ON_TAPE(KR_ERR_ARG, "state.fork: row = 3, but the state has rows from 0 to 2",
                    kr_state_fork(t2, state, 3, 1));
    REFUSED_ON_TAPE(KR_ERR_NOMEM, "state.fork: no memory for 9223372036854775807 rows",
                    kr_state_fork(t2, state, 0, INT64_MAX));
    CHECK(!kr_state_select(NULL, state, 1, ROWS(0)) && !kr_state_detach(NULL, state), "no tape");
    CHECK_OK(ctx);

    kr_tape_destroy(t);
    kr_tape_destroy(t2);
    kr_state_destroy(state);
    kr_state_destroy(wrong);
    kr_state_destroy(deeper);
    kr_state_destroy(away);
    kr_layers_destroy(stack);
    kr_layers_destroy(deep);
    kr_layers_destroy(other);
    kr_layers_destroy(far);
    kr_ctx_destroy(ctx);
    kr_ctx_destroy(foreign);
}

/* After an error nothing changes until it is cleared. */
TEST(states_after_an_error)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_layers *stack = make_stack(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, SLOTS);
    kr_state *state = kr_state_create(ctx, stack, 1), *more = kr_state_create(ctx, stack, 2);
    kr_state_announce(state, -7);
    CHECK(!kr_state_create(ctx, stack, 1) && kr_state_zero(state) == KR_ERR_ARG &&
              kr_state_copy(state, more) == KR_ERR_ARG && kr_state_batch(state) == 1 &&
              kr_state_announce(state, 3) == KR_ERR_ARG && !state->cursors.is_on,
          "echoes");
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG, "full_len = -7");
    CHECK(kr_state_copy(state, more) == KR_OK && kr_state_batch(state) == 2, "cleared");
    kr_state_destroy(state);
    kr_state_destroy(more);
    kr_layers_destroy(stack);
    kr_ctx_destroy(ctx);
}

/* ---- memory that is refused ---- */

TEST(state_allocations_may_fail)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_layers *stack = make_stack(ctx, KR_FAMILY_MAMBA3, KR_DTYPE_F32, SLOTS);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_state *wide = kr_state_create(ctx, stack, 1), *before = kr_state_create(ctx, stack, 1);
    kr_state *used = used_state(t, stack, KR_DTYPE_F32, 2);
    kr_state_copy(before, used);
    kr_state_copy(wide, kr_state_fork(t, used, 1, 4));
    kr_tape_destroy(t);
    const size_t blocks = all_memory(ctx).live_blocks;
    size_t n = 1;
    for (; n < 100; n++) { /* create, copy into an initial one, copy into one of another shape */
        kr_ctx_fail_allocation(ctx, n);
        kr_state *state = kr_state_create(ctx, stack, 2);
        const bool first = kr_state_copy(state, before) == KR_OK, second = first && kr_state_copy(state, wide) == KR_OK;
        kr_ctx_fail_allocation(ctx, 0);
        if (!second) {
            CHECK(kr_ctx_status(ctx) == KR_ERR_NOMEM, "%s", kr_ctx_message(ctx));
            if (state && !first) CHECK(kr_state_is_initial(state) && kr_state_batch(state) == 2, "as it was: initial");
            if (state && first) check_same("as it was", state, before);
        } else {
            check_same("wide", state, wide);
        }
        kr_ctx_clear(ctx);
        kr_state_destroy(state);
        CHECK(all_memory(ctx).live_blocks == blocks, "allocation %zu: memory is left", n);
        if (second) break;
    }
    CHECK(n == 2 + 2 * (1 + 2 * SLOTS * 4), "%zu allocations", n - 1);
    for (n = 1; n < 100; n++) {
        kr_ctx_fail_allocation(ctx, n);
        t = kr_tape_create(ctx, KR_TAPE_GRAD);
        const int64_t rows[] = { 3, 3 };
        const kr_state *state = kr_state_select(t, kr_state_input(t, wide), 2, rows);
        const kr_state *forked = kr_state_fork(t, state, 0, 20000); /* more than a block of the tape */
        kr_ctx_fail_allocation(ctx, 0);
        const bool done = forked != NULL;
        CHECK(done == !kr_ctx_failed(ctx) && (done || kr_ctx_status(ctx) == KR_ERR_NOMEM), "%s", kr_ctx_message(ctx));
        kr_ctx_clear(ctx);
        kr_tape_destroy(t);
        CHECK(all_memory(ctx).live_blocks == blocks, "allocation %zu: memory is left", n);
        if (done) break;
    }
    CHECK(n > 4 && n < 100, "%zu allocations", n - 1);
    kr_state_destroy(wide);
    kr_state_destroy(before);
    kr_layers_destroy(stack);
    kr_ctx_destroy(ctx);
}

/* ---- a state that is changed before backward ---- */

static void move_on(kr_ctx *ctx, const kr_layers *stack, kr_state *state, const kr_state *other, bool in_place)
{
    if (!in_place) {
        kr_state_copy(state, other);
        return;
    }
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_call call;
    kr_call_init(&call);
    call.advance = state;
    kr_layers_step(t, stack, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(2, D_MODEL)), &call);
    kr_tape_destroy(t);
}

/* Backward reads the caller's state where it lies. */
TEST(states_changed_before_backward)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int family = 0; family < FAMILIES; family++) {
        kr_layers *stack = make_stack(ctx, (kr_family)family, KR_DTYPE_F32, SLOTS);
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
        kr_state *state = kr_state_create(ctx, stack, 2);
        for (int how = 0; how < 2; how++)
            for (int is_late = 0; is_late < 2; is_late++) {
                kr_state_copy(state, used_state(t, stack, KR_DTYPE_F32, 2));
                kr_tape_reset(t);
                const kr_layers_out out = forward(t, stack, kr_input(t, noise(t, KR_DTYPE_F32, 2, 4)), state);
                kr_tensor *loss = kr_sum(t, out.y, KR_ALL_AXES, false);
                if (!is_late) move_on(ctx, stack, state, out.state, how == 1);
                const kr_status status = kr_backward(t, loss);
                CHECK(status == (is_late ? KR_OK : KR_ERR_STATE), "%s, %d: %s", kr_family_name((kr_family)family), how,
                      kr_ctx_message(ctx));
                CHECK(is_late || strstr(kr_ctx_message(ctx), "was written after "), "%s", kr_ctx_message(ctx));
                kr_ctx_clear(ctx);
                if (is_late) move_on(ctx, stack, state, out.state, how == 1);
                CHECK_OK(ctx);
                kr_tape_reset(t);
            }
        kr_state_destroy(state);
        kr_tape_destroy(t);
        kr_layers_destroy(stack);
    }
    kr_ctx_destroy(ctx);
}

/* Its tensors are no longer there. In a recomputed stack the state's part in the second run would be another. */
static void lose_state(kr_tape *t, const kr_layers *stack, kr_state **state, int how)
{
    switch (how) {
    case 0: kr_state_zero(*state); break;
    case 1: kr_state_destroy(*state); break;
    case 2: kr_state_copy(*state, used_state(t, stack, KR_DTYPE_F32, 3)); break; /* of other shapes */
    default:
        kr_state_zero(*state);
        kr_state_copy(*state, used_state(t, stack, KR_DTYPE_F32, 2));
        break;
    }
    if (how == 1) *state = kr_state_create(kr_tape_ctx(t), stack, 2);
}

TEST(states_lost_before_backward)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int family = 0; family < FAMILIES; family++)
        for (int is_recomputed = 0; is_recomputed < 2; is_recomputed++) {
            kr_layers *stack = make_stack(ctx, (kr_family)family, KR_DTYPE_F32, SLOTS);
            stack->config.recompute = is_recomputed ? KR_RECOMPUTE_ALL : KR_RECOMPUTE_NONE;
            kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD), *other = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
            kr_state *state = kr_state_create(ctx, stack, 2);
            for (int how = 0; how < 4; how++) {
                kr_state_copy(state, used_state(other, stack, KR_DTYPE_F32, 2));
                kr_tensor *x = kr_input(t, noise(t, KR_DTYPE_F32, 2, 4));
                kr_tensor *loss = kr_sum(t, forward(t, stack, x, state).y, KR_ALL_AXES, false);
                lose_state(other, stack, &state, how);
                CHECK_OK(ctx);
                CHECK(kr_backward(t, loss) == KR_ERR_STATE, "%s, %d", kr_family_name((kr_family)family), how);
                CHECK(strstr(kr_ctx_message(ctx), "the state's ") &&
                          strstr(kr_ctx_message(ctx), " was reset, resized or destroyed after ") &&
                          strstr(kr_ctx_message(ctx), "; change it after kr_backward, or call kr_tape_reset"),
                      "%s", kr_ctx_message(ctx));
                kr_ctx_clear(ctx);
                kr_tape_reset(t);
                kr_tape_reset(other);
            }
            kr_state_destroy(state);
            kr_tape_destroy(t);
            kr_tape_destroy(other);
            kr_layers_destroy(stack);
        }
    kr_ctx_destroy(ctx);
}

typedef struct stateful {
    const kr_layers *stack;
    kr_state *state;
} stateful;

static void run_stateful(kr_tape *t, void *user, kr_tensor *const *in, kr_tensor **out)
{
    const stateful *s = user;
    out[0] = forward(t, s->stack, in[0], s->state).y;
}

/* The function reaches the state by itself; at first it may be initial. */
TEST(states_of_a_checkpoint_changed_before_backward)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_layers *stack = make_stack(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, SLOTS);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD), *other = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    for (int how = -1; how < 6; how++) { /* -1: no change; 4, 5: a new value of a used and of an initial state */
        stateful s = { stack, kr_state_create(ctx, stack, 2) };
        if (how != 5) kr_state_copy(s.state, used_state(other, stack, KR_DTYPE_F32, 2));
        kr_tensor *y = NULL, *x = kr_input(t, noise(t, KR_DTYPE_F32, 2, 4));
        kr_checkpoint(t, run_stateful, &s, 1, &x, 1, &y);
        kr_tensor *loss = kr_sum(t, y, KR_ALL_AXES, false);
        if (how >= 4) kr_state_copy(s.state, used_state(other, stack, KR_DTYPE_F32, 2));
        else if (how >= 0) lose_state(other, stack, &s.state, how);
        CHECK_OK(ctx);
        CHECK(kr_backward(t, loss) == (how < 0 ? KR_OK : KR_ERR_STATE), "%d: %s", how, kr_ctx_message(ctx));
        const char *text =
            how < 4 ? " was reset, resized or destroyed after checkpoint had used it" : " was written after ";
        CHECK(how < 0 || strstr(kr_ctx_message(ctx), text), "%d: %s", how, kr_ctx_message(ctx));
        kr_ctx_clear(ctx);
        kr_tape_reset(t);
        kr_tape_reset(other);
        kr_state_destroy(s.state);
    }
    kr_tape_destroy(t);
    kr_tape_destroy(other);
    kr_layers_destroy(stack);
    kr_ctx_destroy(ctx);
}

/* Weights, and in a recomputed stack the layers themselves. */
TEST(a_stack_destroyed_before_backward)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int family = 0; family < FAMILIES; family++)
        for (int is_recomputed = 0; is_recomputed < 2; is_recomputed++) {
            kr_layers *stack = make_stack(ctx, (kr_family)family, KR_DTYPE_F32, SLOTS);
            stack->config.recompute = is_recomputed ? KR_RECOMPUTE_ALL : KR_RECOMPUTE_NONE;
            kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
            kr_tensor *x = kr_input(t, noise(t, KR_DTYPE_F32, 2, 4));
            kr_tensor *loss = kr_sum(t, forward(t, stack, x, NULL).y, KR_ALL_AXES, false);
            kr_layers_destroy(stack);
            CHECK(kr_backward(t, loss) == KR_ERR_STATE, "%s", kr_family_name((kr_family)family));
            CHECK(strstr(kr_ctx_message(ctx), "the parameter layers.0.") && /* with its name */
                      strstr(kr_ctx_message(ctx), " was destroyed after "),
                  "%s", kr_ctx_message(ctx));
            kr_ctx_clear(ctx);
            kr_tape_destroy(t);
        }
    kr_ctx_destroy(ctx);
}
