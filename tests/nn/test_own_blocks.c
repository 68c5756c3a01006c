/* test_own_blocks.c - families that a program registers: the laws of blocks, stacks and states, what is refused. */
#include "nn/block_kinds.h"
#include "tests/nn/block_laws.h"
#include "tests/nn/own_kinds.h"

#include <pthread.h>

/* ---- laws ---- */

static void laws(const char *name, kr_family family, bool is_gated)
{
    own_config config = own_small(family);
    config.is_gated = is_gated;
    block_laws(&(block_case){ name, { family, &config } });
    block_laws_16bit(&(block_case){ name, { family, &config } });
    block_laws_threads(&(block_case){ name, { family, &config } });
}

TEST(own_laws_average)
{
    laws("average", own_average(), true);
}

TEST(own_laws_packed)
{
    laws("average, packed", own_packed(), true);
    laws("average, packed, without a gate", own_packed(), false);
}

TEST(own_laws_delay)
{
    laws("delay", own_delay(), false);
}

/* ---- steady state ---- */

TEST(own_steady_state)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    const own_config config = own_small(own_average());
    kr_block *block = kr_block_create(ctx, &(kr_block_config){ own_average(), &config });
    kr_tensor *x_bd = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(2, 8));
    kr_block_out out = { .y = NULL };
    for (int i = 0; i < 200; i++) out = kr_block_step(tape, block, x_bd, out.y ? &out.cache : NULL);
    CHECK_TENSORS("the limit of steps", out.y, kr_block_step_infinite(tape, block, x_bd), 1e-5, 1);
    CHECK_OK(ctx);
    kr_block_destroy(block);

    const own_config delay = own_small(own_delay());
    block = kr_block_create(ctx, &(kr_block_config){ own_delay(), &delay });
    CHECK(!kr_block_step_infinite(tape, block, x_bd), "a limit");
    CHECK_ERROR(ctx, KR_ERR_UNSUPPORTED, "own_delay.step_infinite: the family was registered without step_infinite");
    kr_block_destroy(block);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

/* ---- stacks and states ---- */

static kr_layers *make_stack(kr_ctx *ctx, kr_family family, kr_recompute recompute)
{
    const own_config config = own_small(family);
    kr_layers_config layers;
    kr_layers_config_init(&layers);
    layers.block = (kr_block_config){ family, &config };
    layers.n_layers = 2;
    layers.n_virtual = 3;
    layers.d_intermediate = 8;
    layers.recompute = recompute;
    kr_ctx_seed(ctx, 5);
    kr_layers *stack = kr_layers_create(ctx, &layers);
    CHECK_OK(ctx);
    return stack;
}

static kr_tensor *tokens(kr_tape *tape, int64_t nb, int64_t ns)
{
    kr_ctx_seed(kr_tape_ctx(tape), 11);
    return kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(nb, ns, 8));
}

/* A forward of 4 tokens and two steps are the forward of 6, whether states are on the tape or advanced in place. */
static void check_states(kr_ctx *ctx, kr_family family)
{
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_layers *stack = make_stack(ctx, family, KR_RECOMPUTE_NONE);
    kr_tensor *x = tokens(tape, 2, 6);
    const kr_layers_out whole = kr_layers_forward(tape, stack, x, NULL);
    for (int advances = 0; advances < 2; advances++) {
        kr_state *own = kr_state_create(ctx, stack, 2), *kept = kr_state_create(ctx, stack, 2);
        kr_tensor *y[3];
        for (int i = 0; i < 3; i++) {
            const int64_t from = i ? 3 + i : 0, to = i ? 4 + i : 4;
            kr_tensor *part = kr_slice(tape, x, 1, from, to);
            kr_call call;
            kr_call_init(&call);
            *(advances ? (void **)&call.advance : (void **)&call.state) = own;
            const kr_layers_out out = i ? kr_layers_step(tape, stack, kr_reshape(tape, part, KR_SHAPE(2, 8)), &call)
                                        : kr_layers_forward(tape, stack, part, &call);
            y[i] = kr_reshape(tape, out.y, KR_SHAPE(2, to - from, 8));
            if (!advances) CHECK(kr_state_copy(own, out.state) == KR_OK, "%s", kr_ctx_message(ctx));
        }
        CHECK_TENSORS("4 tokens and two steps", kr_concat(tape, 1, 3, y), whole.y, 1e-5, 1);
        CHECK(kr_state_copy(kept, whole.state) == KR_OK, "%s", kr_ctx_message(ctx));
        for (int64_t slot = 0; slot < 3; slot++)
            for (int i = 0; i < kr_cache_count(family); i++)
                CHECK_TENSORS("the state", kr_state_cache(own, slot)->tensors[i],
                              kr_state_cache(kept, slot)->tensors[i], 1e-5, 1);
        kr_state_destroy(own);
        kr_state_destroy(kept);
    }
    CHECK_OK(ctx);
    kr_layers_destroy(stack);
    kr_tape_destroy(tape);
}

TEST(own_states)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    check_states(ctx, own_average());
    check_states(ctx, own_delay());
    check_states(ctx, own_plain());
    CHECK(own_live == 0, "%d blocks are left", own_live);
    kr_ctx_destroy(ctx);
}

TEST(own_rows_of_states)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    const kr_family family = own_delay();
    kr_layers *stack = make_stack(ctx, family, KR_RECOMPUTE_NONE);
    kr_state *after = kr_layers_forward(tape, stack, tokens(tape, 3, 4), NULL).state;
    const int64_t rows[] = { 2, 0 };
    kr_state *chosen = kr_state_select(tape, after, 2, rows), *forked = kr_state_fork(tape, after, 1, 1);
    kr_state *joined = kr_state_join(tape, 2, (kr_state *[]){ forked, chosen });
    for (int64_t slot = 0; slot < kr_state_slots(joined); slot++)
        for (int i = 0; i < kr_cache_count(family); i++) {
            kr_tensor *x = kr_state_cache(after, slot)->tensors[i], *parts[3];
            for (int r = 0; r < 3; r++) parts[r] = kr_slice(tape, x, 0, (int[]){ 1, 2, 0 }[r], (int[]){ 2, 3, 1 }[r]);
            CHECK_SAME_BITS(kr_cache_name(family, i), kr_state_cache(joined, slot)->tensors[i],
                            kr_concat(tape, 0, 3, parts));
        }
    CHECK(kr_state_info_of(joined).bytes == 3 * 3 * 2 * 8 * sizeof(float), "%zu bytes", kr_state_info_of(joined).bytes);
    CHECK_OK(ctx);
    kr_layers_destroy(stack);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

/* ---- gradients through recomputed layers ---- */

static double *gradients(kr_ctx *ctx, kr_family family, kr_recompute recompute, int64_t *count)
{
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_layers *stack = make_stack(ctx, family, recompute);
    const kr_params *params = kr_layers_params(stack);
    kr_backward(tape,
                kr_mean(tape, kr_layers_forward(tape, stack, tokens(tape, 2, 5), NULL).y, KR_AXES(0, 1, 2), false));
    *count = kr_params_elements(params);
    double *all = calloc((size_t)*count, sizeof *all);
    int64_t n = 0;
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        kr_tensor *x = kr_params_at(params, i)->tensor;
        if (kr_grad(x)) IGNORE(kr_tensor_read(kr_grad(x), KR_DTYPE_F64, all + n, kr_tensor_count(x)));
        n += kr_tensor_count(x);
    }
    CHECK_OK(ctx);
    kr_layers_destroy(stack);
    kr_tape_destroy(tape);
    return all;
}

TEST(own_layers_are_recomputed)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const kr_family families[] = { own_average(), own_delay(), own_plain() };
    for (int f = 0; f < 3; f++) {
        int64_t count, other;
        double *want = gradients(ctx, families[f], KR_RECOMPUTE_NONE, &count), sum = 0;
        double *got = gradients(ctx, families[f], KR_RECOMPUTE_ALL, &other);
        for (int64_t i = 0; i < count; i++) sum += fabs(want[i]);
        CHECK(count == other && sum > 0 && memcmp(got, want, (size_t)count * sizeof *got) == 0, "%s: other gradients",
              kr_family_name(families[f]));
        free(want);
        free(got);
    }
    kr_ctx_destroy(ctx);
}

TEST(own_layers_within_a_budget)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const own_config config = own_small(own_average());
    kr_layers_config layers;
    kr_layers_config_init(&layers);
    layers.block = (kr_block_config){ own_average(), &config };
    layers.n_layers = 4;
    layers.recompute = KR_RECOMPUTE_BUDGET;
    layers.recompute_budget = 100 << 10;
    kr_layers *stack = kr_layers_create(ctx, &layers);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    own_calls = 0;
    kr_tensor *y = kr_layers_forward(tape, stack, tokens(tape, 2, 32), NULL).y;
    kr_backward(tape, kr_mean(tape, y, KR_AXES(0, 1, 2), false));
    CHECK_OK(ctx);
    CHECK(own_calls > 4 + 2 && kr_tape_peak_bytes(tape) <= layers.recompute_budget, "%d calls, %zu bytes", own_calls,
          kr_tape_peak_bytes(tape));
    kr_tape_destroy(tape);
    kr_layers_destroy(stack);
    kr_ctx_destroy(ctx);
}

/* ---- other places of blocks ---- */

TEST(own_blocks_in_both_directions)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    const own_config config = own_small(own_average());
    kr_bidi_config both;
    kr_bidi_config_init(&both);
    both.block = (kr_block_config){ own_average(), &config };
    both.n_layers = 2;
    kr_bidi *bidi = kr_bidi_create(ctx, &both);
    const kr_bidi_out out = kr_bidi_forward(tape, bidi, tokens(tape, 2, 5), NULL);
    kr_backward(tape, kr_mean(tape, out.y, KR_AXES(0, 1, 2), false));
    CHECK(out.caches && out.caches[1].family == own_average(), "caches");
    CHECK_OK(ctx);
    kr_bidi_destroy(bidi);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

static kr_tensor *run_plain(void *user, kr_tape *tape, kr_tensor *x, kr_state *state, const kr_call *call)
{
    const kr_block_call how = { .cache = kr_state_cache(state, 0), .reset_bs = call->reset_bs };
    const kr_block_out out = kr_block_forward(tape, user, x, &how);
    kr_state_set_cache(state, 0, &out.cache);
    return out.y;
}

TEST(own_blocks_in_custom_networks)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const kr_family families[] = { own_average(), own_plain() };
    for (int f = 0; f < 2; f++) {
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        const own_config config = own_small(families[f]);
        kr_block *block = kr_block_create(ctx, &(kr_block_config){ families[f], &config });
        const kr_network_part part = { .block = block };
        kr_custom_network custom;
        kr_custom_network_init(&custom);
        custom.params = kr_block_params(block);
        custom.n_parts = 1;
        custom.parts = &part;
        custom.input_size = custom.width = 8;
        custom.forward = run_plain;
        custom.user = block;
        kr_network *net = kr_network_custom(ctx, &custom);
        kr_state *state = kr_network_state(net, 2);
        kr_call call;
        kr_call_init(&call);
        call.advance = state;
        kr_tensor *x = tokens(tape, 2, 3);
        kr_tensor *y = kr_network_forward(tape, net, x, &call).y;
        CHECK_SAME_BITS("y", y, kr_block_forward(tape, block, x, NULL).y);
        CHECK_OK(ctx);
        kr_state_destroy(state);
        kr_network_destroy(net);
        kr_block_destroy(block);
        kr_tape_destroy(tape);
    }
    kr_ctx_destroy(ctx);
}

TEST(own_masks_and_prefixes)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_layers *stack = make_stack(ctx, own_plain(), KR_RECOMPUTE_NONE);
    const kr_param_row *row = kr_params_find(kr_layers_params(stack), "layers.1.mixer.in_proj.weight");
    if (CHECK(row != NULL, "no such parameter")) {
        CHECK(row->has_decay && strcmp(row->axes, "o i") == 0, "%s", row->axes);
        CHECK(kr_tensor_at(row->tensor, (int64_t[]){ 1, 1 }) != 0, "not initialised");
    }
    kr_layers_destroy(stack);

    const own_config config = own_small(own_delay());
    kr_block *block = kr_block_create(ctx, &(kr_block_config){ own_delay(), &config });
    const int32_t padding[] = { 0, 0, 1, 1, 1, 1, 1, 1, 1, 1 };
    kr_tensor *mask = kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(2, 5), padding), *x = tokens(tape, 2, 5);
    kr_tensor *zeroed = kr_mul(tape, x, kr_reshape(tape, kr_cast(tape, mask, KR_DTYPE_F32), KR_SHAPE(2, 5, 1)));
    const kr_block_call masked = { .mask_bs = mask };
    CHECK_SAME_BITS("padding", kr_block_forward(tape, block, x, &masked).y,
                    kr_block_forward(tape, block, zeroed, NULL).y);
    CHECK_OK(ctx);
    kr_block_destroy(block);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

/* ---- what functions may do wrong ---- */

static const struct {
    own_fault fault;
    kr_status status;
    const char *text;
} faults[] = {
    { OWN_NULL_BLOCK, KR_ERR_STATE,
      "own_average.create: the function returned NULL without an error; report one with kr_ctx_fail" },
    { OWN_ERROR_IN_CREATE, KR_ERR_ARG, "own: no such average" },
    { OWN_NO_CACHE_SIZE, KR_ERR_SHAPE, "own_average.create: spec of the cache tensor mean is out of range: " },
    { OWN_TWICE_THE_NAME, KR_ERR_ARG, "params.make: the table already has a parameter rate" },
    { OWN_WRITES_A_PARAMETER, KR_ERR_STATE, "param_fill: the parameter [16] has no values yet: its network is being" },
    { OWN_READS_A_PARAMETER, KR_ERR_STATE, "tensor_at: the parameter [16] has no values yet: its network is being" },
    { OWN_SHARES_A_PARAMETER, KR_ERR_STATE, "params.share: the create function of a block adds parameters with" },
    { OWN_JOINS_A_TABLE, KR_ERR_STATE, "params.join: the create function of a block adds parameters with" },
    { OWN_NULL_Y, KR_ERR_STATE, "own_average.forward: the function left y NULL without an error; report one with" },
    { OWN_SHORT_Y, KR_ERR_SHAPE, "own_average.forward: the function returned y [2, 1, 8], but must return [2, 3, 8]" },
    { OWN_NULL_CACHE, KR_ERR_STATE, "own_average.forward: the function left cache.mean NULL without an error" },
    { OWN_WRONG_CACHE, KR_ERR_SHAPE,
      "own_average.forward: the function returned cache.mean [2, 16], but must return [2, 16, 1]" },
    { OWN_WRONG_TYPE, KR_ERR_DTYPE,
      "own_average.forward: the function returned cache.mean in bf16, but must return f32; use kr_cast" },
    { OWN_RESERVED, KR_ERR_UNSUPPORTED, "own_average.forward: a reserved word of kr_block_out is not 0" },
    { OWN_ERROR_IN_FORWARD, KR_ERR_ARG, "own: no such token" },
};

TEST(own_functions_that_go_wrong)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const own_config config = own_small(own_average());
    const kr_block_config any = { own_average(), &config };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
        if (faults[i].fault < OWN_NULL_Y) own_wrong = faults[i].fault;
        kr_block *block = kr_block_create(ctx, &any);
        own_wrong = faults[i].fault;
        if (block) CHECK(!kr_block_forward(tape, block, tokens(tape, 2, 3), NULL).y, "fault %zu gives y", i);
        else CHECK(faults[i].fault < OWN_NULL_Y, "fault %zu: %s", i, kr_ctx_message(ctx));
        own_wrong = OWN_RIGHT;
        CHECK_ERROR_HAS(ctx, faults[i].status, faults[i].text);
        kr_block_destroy(block);
        kr_tape_destroy(tape);
        CHECK(own_live == 0, "fault %zu: %d blocks are left", i, own_live);
    }
    kr_ctx_destroy(ctx);
}

TEST(own_allocation_failures)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const own_config config = own_small(own_average());
    int failures = 0;
    for (size_t n = 1;; n++) {
        kr_ctx_fail_allocation(ctx, n);
        kr_block *block = kr_block_create(ctx, &(kr_block_config){ own_average(), &config });
        kr_tape *tape = block ? kr_tape_create(ctx, KR_TAPE_GRAD) : NULL;
        static const int32_t starts[] = { 1, 0, 1, 1, 1, 0 };
        kr_tensor *marks = tape ? kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(2, 3), starts) : NULL;
        const kr_block_call call = { .seq_start_bs = marks };
        kr_tensor *y = marks ? kr_block_forward(tape, block, tokens(tape, 2, 3), &call).y : NULL;
        kr_ctx_fail_allocation(ctx, 0);
        const bool failed = kr_ctx_failed(ctx);
        CHECK(failed == (y == NULL) && (!failed || kr_ctx_status(ctx) == KR_ERR_NOMEM), "allocation %zu: %s", n,
              kr_ctx_message(ctx));
        kr_ctx_clear(ctx);
        kr_tape_destroy(tape);
        kr_block_destroy(block);
        CHECK(own_live == 0, "%d blocks are left", own_live);
        failures += failed;
        if (!failed) break;
    }
    CHECK(failures > 10, "%d allocations", failures);
    kr_ctx_destroy(ctx);
}

/* ---- registering ---- */

typedef void change_fn(kr_block_kind_info *info);
#define CHANGE(name, what)                                                                                             \
    static void change_##name(kr_block_kind_info *info)                                                                \
    {                                                                                                                  \
        static kr_config_field field;                                                                                  \
        static const char *names[KR_CACHE_TENSORS + 1];                                                                \
        field = own_fields[0];                                                                                         \
        for (int i = 0; i <= KR_CACHE_TENSORS; i++) names[i] = "same";                                                 \
        info->n_fields = 1;                                                                                            \
        info->fields = &field;                                                                                         \
        info->cache_names = names;                                                                                     \
        what;                                                                                                          \
    }
CHANGE(version, info->version = 2)
CHANGE(no_name, info->name = NULL)
CHANGE(capital, info->name = "Average")
CHANGE(long_name, info->name = "a23456789_123456789_123456789_12")
CHANGE(taken, info->name = "mamba2")
CHANGE(small_config, info->config_bytes = 8)
CHANGE(large_config, info->config_bytes = 513)
CHANGE(many_fields, info->n_fields = 33)
CHANGE(no_fields, info->fields = NULL)
CHANGE(field_without_a_name, field.name = "")
CHANGE(field_layer, field.name = "layer")
CHANGE(field_kind, field.kind = (kr_field_kind)7)
CHANGE(field_offset, field.offset = sizeof(own_config))
CHANGE(field_in_the_head, field.offset = 8)
CHANGE(field_range, field.least = 20)
CHANGE(field_reserved, field.reserved[1] = &field)
CHANGE(many_caches, info->n_cache = KR_CACHE_TENSORS + 1)
CHANGE(no_cache_names, info->cache_names = NULL)
CHANGE(cache_name, names[0] = "a.b")
CHANGE(same_cache_names, info->n_cache = 2)
CHANGE(no_create, info->create = NULL)
CHANGE(no_forward, info->forward = NULL)

static const struct {
    change_fn *change;
    kr_status status;
    const char *text;
} changes[] = {
    { change_version, KR_ERR_UNSUPPORTED, "version = 2, but this library knows version 1; build the family with the" },
    { change_no_name, KR_ERR_ARG, "name is NULL, but must be from 1 to 31 of the characters a-z, 0-9 and _" },
    { change_capital, KR_ERR_ARG, "name is Average, but must be from 1 to 31 of the characters a-z, 0-9 and _" },
    { change_long_name, KR_ERR_ARG, "name is a23456789_123456789_123456789_12, but must be from 1 to 31" },
    { change_taken, KR_ERR_ARG, "the name mamba2 belongs to a family of the library; choose another" },
    { change_small_config, KR_ERR_ARG, "refused: config_bytes = 8, but must be from 24 to 512: a struct that begins" },
    { change_large_config, KR_ERR_ARG, "refused: config_bytes = 513, but must be from 24 to 512" },
    { change_many_fields, KR_ERR_ARG, "refused: n_fields = 33, but must be from 0 to 32" },
    { change_no_fields, KR_ERR_ARG, "refused: n_fields = 1, but fields is NULL" },
    { change_field_without_a_name, KR_ERR_ARG, "refused: fields[0].name is , but must be from 1 to 31" },
    { change_field_layer, KR_ERR_ARG, "refused: fields[0].name is layer, but must be from 1 to 31" },
    { change_field_kind, KR_ERR_ARG, "refused: field expand has kind = 7, which is not a kr_field_kind" },
    { change_field_offset, KR_ERR_ARG, "refused: field expand has offset = 56, but must be within the config of 56" },
    { change_field_in_the_head, KR_ERR_ARG, "refused: field expand has offset = 8, but must be within the config" },
    { change_field_range, KR_ERR_ARG, "refused: field expand has value = 2, least = 20 and most = 16, which is not" },
    { change_field_reserved, KR_ERR_UNSUPPORTED, "a reserved word of kr_config_field is not 0" },
    { change_many_caches, KR_ERR_ARG, "refused: n_cache = 9, but must be from 0 to 8" },
    { change_no_cache_names, KR_ERR_ARG, "refused: n_cache = 1, but cache_names is NULL" },
    { change_cache_name, KR_ERR_ARG, "refused: cache_names[0] is a.b, but must be from 1 to 15" },
    { change_same_cache_names, KR_ERR_ARG, "refused: two cache tensors are called same" },
    { change_no_create, KR_ERR_ARG, "refused: create is NULL" },
    { change_no_forward, KR_ERR_ARG, "refused: forward is NULL" },
};

TEST(own_registrations_that_are_refused)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        kr_block_kind_info info = own_info();
        kr_family family = KR_FAMILY_MAMBA1;
        info.name = "refused";
        changes[i].change(&info);
        CHECK(kr_block_kind_register(ctx, &info, &family) == changes[i].status, "change %zu", i);
        CHECK(family == KR_FAMILY_NONE, "change %zu: family %d", i, (int)family);
        CHECK_ERROR_HAS(ctx, changes[i].status, changes[i].text);
    }
    CHECK(kr_family_find("refused") == KR_FAMILY_NONE, "it is registered");
    kr_family family;
    const kr_block_kind_info info = own_info();
    CHECK(kr_block_kind_register(ctx, NULL, &family) == KR_ERR_ARG, "NULL");
    CHECK_ERROR(ctx, KR_ERR_ARG, "block_kind.register: info is NULL");
    CHECK(kr_block_kind_register(ctx, &info, NULL) == KR_ERR_ARG, "NULL");
    CHECK_ERROR(ctx, KR_ERR_ARG, "block_kind.register: family is NULL");
    CHECK(kr_block_kind_register(NULL, &info, &family) != KR_OK, "without a context");
    kr_ctx_destroy(ctx);
}

TEST(own_families_by_name_and_value)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const kr_family family = own_average();
    CHECK(family >= KR_FAMILY_REGISTERED && own_average() == family, "registered again: %d", (int)family);
    CHECK(kr_family_find("own_average") == family && kr_family_find("mamba3") == KR_FAMILY_MAMBA3, "by name");
    CHECK(kr_family_find("mamba4") == KR_FAMILY_NONE && kr_family_find(NULL) == KR_FAMILY_NONE, "no such family");
    CHECK(strcmp(kr_family_name(family), "own_average") == 0 && kr_cache_count(family) == 1 &&
              strcmp(kr_cache_name(family, 0), "mean") == 0 && !kr_cache_name(family, 1),
          "its names");
    CHECK(strcmp(kr_family_name(KR_FAMILY_LAST), "?") == 0 && kr_cache_count(KR_FAMILY_LAST) == 0, "no family");
    CHECK(strcmp(kr_family_name(KR_FAMILY_NONE), "?") == 0, "none");

    kr_block_kind_info other = own_info();
    kr_family got;
    other.has_fixed_steps = true;
    CHECK(kr_block_kind_register(ctx, &other, &got) == KR_ERR_ARG && got == KR_FAMILY_NONE, "another of that name");
    CHECK_ERROR(ctx, KR_ERR_ARG,
                "block_kind.register: the name own_average belongs to a family that was registered with other values; "
                "choose another");
    own_config config;
    CHECK(kr_block_config_init(ctx, family, &config, 8) == KR_ERR_ARG, "a size");
    CHECK_ERROR(ctx, KR_ERR_ARG, "block_config.init: size = 8, but the config of own_average has 56 bytes");
    CHECK(kr_block_config_init(ctx, KR_FAMILY_LAST, &config, 8) == KR_ERR_ARG, "no family");
    CHECK_ERROR(ctx, KR_ERR_ARG, "block_config.init: family = 2047 is not a kr_family");
    kr_mamba2_config mamba2, same;
    kr_mamba2_config_init(&same);
    CHECK(kr_block_config_init(ctx, KR_FAMILY_MAMBA2, &mamba2, sizeof mamba2) == KR_OK && mamba2.size == same.size &&
              mamba2.state_rank == same.state_rank && mamba2.norm_eps == same.norm_eps,
          "a family of the library");
    kr_ctx_destroy(ctx);
}

TEST(own_configs_that_are_refused)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const kr_family family = own_average();
    static const char *const texts[] = { "own_average.create: expand = 17, but must be from 1 to 16",
                                         "own_average.create: rate = nan, but must be finite",
                                         "own_average.create: label is NULL; call kr_block_config_init before setting "
                                         "fields",
                                         "own_average.create: d_model = 0, but must be at least 1",
                                         "own_average.create: config.size is 0, but the config of own_average has 56 "
                                         "bytes; call kr_block_config_init before setting fields",
                                         "own_average.create: config is NULL" };
    for (int i = 0; i < 6; i++) {
        own_config config = own_small(family);
        if (i == 0) config.expand = 17;
        if (i == 1) config.rate = (double)NAN;
        if (i == 2) config.label = NULL;
        if (i == 3) config.head.d_model = 0;
        if (i == 4) config.head.size = 0;
        CHECK(!kr_block_create(ctx, &(kr_block_config){ family, i == 5 ? NULL : (void *)&config }), "a block");
        CHECK_ERROR(ctx, KR_ERR_ARG, texts[i]);
    }
    own_config config = own_small(family);
    config.head.dtype = KR_DTYPE_I32;
    CHECK(!kr_block_create(ctx, &(kr_block_config){ family, &config }), "a block");
    CHECK_ERROR(ctx, KR_ERR_DTYPE, "own_average.create: dtype = i32, but must be f32, f64, bf16 or f16");
    kr_ctx_destroy(ctx);
}

static void *registers(void *user)
{
    kr_ctx *ctx = kr_ctx_create(NULL);
    kr_block_kind_info info = own_info();
    for (int i = 0; i < 20; i++) {
        char name[32];
        kr_family family;
        snprintf(name, sizeof name, "own_thread_%d", i);
        info.name = name;
        if (kr_block_kind_register(ctx, &info, &family) != KR_OK || kr_family_find(name) != family)
            *(bool *)user = false;
    }
    kr_ctx_destroy(ctx);
    return NULL;
}

TEST(own_threads_register)
{
    pthread_t threads[4];
    bool ok[4] = { true, true, true, true };
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, registers, &ok[i]);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 4; i++) CHECK(ok[i], "thread %d", i);
}

/* ---- one network in several contexts ---- */

enum { OWN_VOCAB = 11, OWN_TOKENS = 6 };

typedef struct own_user {
    pthread_t thread;
    kr_ctx *ctx;
    kr_network *net;
    const double *want;
    int wrong;
} own_user;

static double *own_logits(kr_ctx *ctx, const kr_network *net)
{
    static const int32_t ids[OWN_TOKENS] = { 3, 1, 4, 1, 5, 9 };
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x = kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(1, OWN_TOKENS), ids);
    double *y = kr_test_values(kr_network_forward(tape, net, x, NULL).y);
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    return y;
}

static void *own_uses(void *arg)
{
    own_user *u = arg;
    for (int i = 0; i < 4; i++) {
        double *y = own_logits(u->ctx, u->net);
        u->wrong += memcmp(y, u->want, OWN_TOKENS * OWN_VOCAB * sizeof *y) != 0;
        free(y);
    }
    kr_network_destroy(u->net);
    kr_ctx_destroy(u->ctx);
    return NULL;
}

/* Its functions run in several threads at once. */
TEST(own_networks_are_shared_by_threads)
{
    own_user users[4];
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const own_config own = own_small(own_average());
    kr_layers_config layers;
    kr_layers_config_init(&layers);
    layers.block = (kr_block_config){ own_average(), &own };
    layers.n_layers = 2;
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &layers;
    config.vocab_size = config.pad_vocab_size_multiple = OWN_VOCAB;
    kr_network *net = kr_network_create(ctx, &config);
    CHECK(kr_ctx_wait(ctx) == KR_OK, "%s", kr_ctx_message(ctx));
    double *want = own_logits(ctx, net);
    for (int i = 0; i < 4; i++) {
        users[i] = (own_user){ .ctx = kr_test_ctx(1, NULL), .want = want };
        users[i].net = kr_network_share(users[i].ctx, net);
        CHECK_OK(users[i].ctx);
    }
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
    for (int i = 0; i < 4; i++)
        if (pthread_create(&users[i].thread, NULL, own_uses, &users[i]) != 0) exit(2);
    for (int i = 0; i < 4; i++) {
        pthread_join(users[i].thread, NULL);
        CHECK(users[i].wrong == 0, "thread %d: %d results are wrong", i, users[i].wrong);
    }
    CHECK(own_live == 0, "%d blocks are left", own_live);
    free(want);
}
