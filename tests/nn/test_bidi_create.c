/* test_bidi_create.c - stacks in both directions: the config and its table, what is refused, memory. */
#include "tests/nn/bidi_cases.h"

#include "tape/tape_impl.h"

/* ---- config and table ---- */

TEST(bidi_defaults)
{
    kr_bidi_config c;
    memset(&c, 0x55, sizeof c);
    kr_bidi_config_init(&c);
    CHECK(c.size == sizeof c && c.n_layers == 0 && c.n_virtual == 0 && c.schedule == KR_BIDI_SCHEDULE_STRIDED_CYCLIC &&
              c.merge == KR_BIDI_MERGE_MEAN && c.norm_eps == 1e-5 && !c.ignore_first_residual &&
              !c.ignore_last_residual && c.residual.kind == KR_RESIDUAL_STANDARD && c.n_latents == 0 && !c.latents &&
              !c.custom_schedule,
          "the defaults");
    /* a caller with fewer fields, and one with more */
    memset(&c, 0x55, sizeof c);
    kr_struct_init(KR_STRUCT_BIDI_CONFIG, &c, offsetof(kr_bidi_config, norm_eps));
    CHECK(c.n_virtual == 0 && c.norm_eps != 1e-5, "no field beyond the size is written");
    struct {
        kr_bidi_config config;
        int64_t more[2];
    } larger = { .more = { 3, 4 } };
    kr_struct_init(KR_STRUCT_BIDI_CONFIG, &larger.config, sizeof larger);
    CHECK(larger.config.norm_eps == 1e-5 && larger.more[0] == 0 && larger.more[1] == 0, "unknown fields are 0");
}

/* The lists that the config points at are not needed once the stack is made. */
TEST(bidi_keeps_copies)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const bidi_blocks blocks = bidi_blocks_of(KR_DTYPE_F32);
    bidi_blocks gone = blocks;
    kr_class_token latents[2] = { { .kind = KR_CLASS_TOKEN_START }, { .kind = KR_CLASS_TOKEN_CUSTOM, .at = 2 } };
    int64_t list[4] = { 3, 2, 1, 0 };
    kr_bidi_config c = bidi_small(&gone, KR_FAMILY_MAMBA2);
    c.schedule = KR_BIDI_SCHEDULE_CUSTOM;
    c.custom_schedule = list;
    c.n_latents = 2;
    c.latents = latents;
    kr_bidi *bidi = kr_bidi_create(ctx, &c);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(1, 4, BIDI_ND));
    kr_tensor *y = kr_bidi_forward(tape, bidi, x, NULL).y;
    memset(latents, 0x55, sizeof latents);
    memset(list, 0x55, sizeof list);
    memset(&gone, 0x55, sizeof gone);
    CHECK_SAME_BITS("y", kr_bidi_forward(tape, bidi, x, NULL).y, y);
    CHECK(kr_tensor_dim(y, 1) == 6, "with its class tokens");
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    kr_bidi_destroy(bidi);
    kr_ctx_destroy(ctx);
}

static void check_row(const kr_params *params, const char *name, kr_shape want, bool has_decay, int n_segments)
{
    const kr_param_row *row = kr_params_find(params, name);
    if (!CHECK(row != NULL, "no parameter %s", name)) return;
    const kr_shape got = kr_tensor_shape(row->tensor);
    CHECK(got.rank == want.rank && memcmp(got.dims, want.dims, (size_t)got.rank * sizeof *got.dims) == 0 &&
              row->has_decay == has_decay && row->n_segments == n_segments,
          "%s is another", name);
    for (int i = 0; i < row->n_segments; i++)
        CHECK(row->segments[i].use_muon && row->segments[i].rows == got.dims[0], "%s is Muon's as a whole", name);
}

TEST(bidi_table)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const bidi_blocks blocks = bidi_blocks_of(KR_DTYPE_BF16);
    const kr_class_token latents[3] = { { .kind = KR_CLASS_TOKEN_START },
                                        { .kind = KR_CLASS_TOKEN_MIDDLE },
                                        { .kind = KR_CLASS_TOKEN_END } };
    for (int per_virtual = 0; per_virtual < 2; per_virtual++) {
        kr_bidi_config c = bidi_small(&blocks, KR_FAMILY_MAMBA2);
        c.n_virtual = 10;
        c.merge = KR_BIDI_MERGE_CAT_LINEAR;
        c.residual = (kr_residual){ .kind = KR_RESIDUAL_MULTI_GATE,
                                    .n_stream = 3,
                                    .init_bias = -2,
                                    .init_bias_step = 0.5,
                                    .per_virtual_layer = per_virtual != 0 };
        c.n_latents = 3;
        c.latents = latents;
        kr_bidi *bidi = kr_bidi_create(ctx, &c);
        const kr_params *params = kr_bidi_params(bidi);
        int64_t nrows = 1; /* latents */
        for (int64_t i = 0; i < 4; i++) {
            char name[64];
            snprintf(name, sizeof name, "layers.%d.norm.weight", (int)i);
            check_row(params, name, KR_SHAPE(BIDI_ND), false, 0);
            snprintf(name, sizeof name, "layers.%d.mixer.out_proj.weight", (int)i);
            CHECK(kr_params_find(params, name) != NULL, "no %s", name);
        }
        for (int64_t i = 0; i < kr_params_count(params); i++)
            nrows += strncmp(kr_params_at(params, i)->name, "layers.", 7) == 0;
        check_row(params, "merge.0.weight", KR_SHAPE(BIDI_ND, 2 * BIDI_ND), true, 1);
        check_row(params, "merge.1.weight", KR_SHAPE(BIDI_ND, 2 * BIDI_ND), true, 1);
        check_row(params, "merge.1.bias", KR_SHAPE(BIDI_ND), false, 0);
        check_row(params, "latents", KR_SHAPE(3, BIDI_ND), true, 0);
        const int ngates = per_virtual ? 5 : 2;
        for (int i = 0; i < ngates; i++) {
            char name[64];
            snprintf(name, sizeof name, "gates.%d.w_beta", i);
            check_row(params, name, KR_SHAPE(BIDI_ND), false, 0);
            snprintf(name, sizeof name, "gates.%d.w_alpha", i);
            check_row(params, name, KR_SHAPE(BIDI_ND), false, 0);
            snprintf(name, sizeof name, "gates.%d.b_beta", i);
            check_row(params, name, KR_SHAPE(3), false, 0);
        }
        CHECK(kr_params_count(params) == nrows + 4 + 3 * ngates, "%lld rows", (long long)kr_params_count(params));
        CHECK(kr_tensor_dtype(kr_params_find(params, "merge.0.weight")->tensor) == KR_DTYPE_BF16 &&
                  kr_tensor_dtype(kr_params_find(params, "gates.0.b_beta")->tensor) == KR_DTYPE_F32 &&
                  kr_tensor_dtype(kr_params_find(params, "layers.0.norm.weight")->tensor) == KR_DTYPE_F32,
              "matrices are halves, small parameters are not");
        const kr_init init = kr_params_find(params, "merge.0.weight")->init;
        CHECK(init.kind == KR_INIT_UNIFORM && init.b == 0.25 && init.a == -0.25, "+-1/sqrt(2 d)");
        CHECK_OK(ctx);
        kr_bidi_destroy(bidi);
    }
    CHECK(!kr_bidi_params(NULL), "no stack, no table");
    kr_bidi_destroy(NULL);
    kr_ctx_destroy(ctx);
}

/* ---- errors ---- */

static kr_ctx *ctx;

static void refuses(kr_bidi_config c, kr_status status, const char *text)
{
    const kr_memory_stats before = kr_ctx_memory(ctx);
    CHECK(!kr_bidi_create(ctx, &c), "not refused: %s", text);
    CHECK_ERROR(ctx, status, text);
    CHECK(kr_ctx_memory(ctx).live_bytes == before.live_bytes, "%s: memory is left", text);
}

/* Sets fields of a good config, then expects the text. */
#define REFUSES(text, ...)                                                                                             \
    do {                                                                                                               \
        kr_bidi_config c = bidi_small(&blocks, KR_FAMILY_MAMBA2);                                                      \
        __VA_ARGS__;                                                                                                   \
        refuses(c, KR_ERR_ARG, "bidi.create: " text);                                                                  \
    } while (0)

TEST(bidi_config_errors)
{
    ctx = kr_test_ctx(1, NULL);
    const bidi_blocks blocks = bidi_blocks_of(KR_DTYPE_F32);
    const int64_t beyond[4] = { 0, 1, 4, 0 }, negative[4] = { 0, -1, 2, 3 };
    const kr_class_token bad_kind[2] = { { .kind = KR_CLASS_TOKEN_START }, { .kind = (kr_class_token_kind)9 } };
    const kr_class_token bad_position[1] = { { .kind = KR_CLASS_TOKEN_CUSTOM, .at = -1 } };
    REFUSES("block.family = 3 is not one of mamba1, mamba2, mamba3, or registered", c.block.family = (kr_family)3);
    REFUSES("block.config is NULL; set block with kr_mamba1_block, kr_mamba2_block or kr_mamba3_block",
            c.block.config = NULL);
    REFUSES("n_layers = 0, but must be at least 2", c.n_layers = 0);
    REFUSES("n_layers = 3, but must be even: layers come in pairs", c.n_layers = 3);
    REFUSES("n_layers = -2, but must be at least 2", c.n_layers = -2);
    REFUSES("n_virtual = 5, but must be even: layers come in pairs", c.n_virtual = 5);
    REFUSES("n_virtual = -4, but must be at least 2", c.n_virtual = -4);
    REFUSES("n_virtual = 1, but must be at least 2", c.n_virtual = 1);
    REFUSES(
        "schedule = 5 is not one of strided cyclic, strided stretched, symmetric cyclic, symmetric stretched, custom",
        c.schedule = (kr_bidi_schedule)5);
    REFUSES("custom_schedule is NULL, but the schedule is custom; give n_virtual numbers",
            c.schedule = KR_BIDI_SCHEDULE_CUSTOM);
    REFUSES("custom_schedule[2] = 4, but must be from 0 to n_layers - 1 = 3", c.schedule = KR_BIDI_SCHEDULE_CUSTOM,
            c.custom_schedule = beyond);
    REFUSES("custom_schedule[1] = -1, but must be from 0 to n_layers - 1 = 3", c.schedule = KR_BIDI_SCHEDULE_CUSTOM,
            c.custom_schedule = negative);
    REFUSES("merge = 2 is neither mean nor cat-linear", c.merge = (kr_bidi_merge)2);
    REFUSES("norm_eps = 0, but must be above 0 and finite", c.norm_eps = 0);
    REFUSES("norm_eps = nan, but must be above 0 and finite", c.norm_eps = NAN);
    REFUSES("residual.kind = 2 is neither standard nor multi-gate", c.residual.kind = (kr_residual_kind)2);
    REFUSES("residual.n_stream = 0, but must be at least 1", c.residual.kind = KR_RESIDUAL_MULTI_GATE);
    REFUSES("residual.init_bias = inf, but must be finite", c.residual = ((kr_residual){ .kind = KR_RESIDUAL_MULTI_GATE,
                                                                                         .n_stream = 2,
                                                                                         .init_bias = INFINITY,
                                                                                         .init_bias_step = 0,
                                                                                         .per_virtual_layer = false }));
    REFUSES("residual.init_bias_step = nan, but must be finite",
            c.residual = ((kr_residual){ .kind = KR_RESIDUAL_MULTI_GATE,
                                         .n_stream = 2,
                                         .init_bias = 0,
                                         .init_bias_step = NAN,
                                         .per_virtual_layer = false }));
    REFUSES("n_latents = -1, but must not be negative", c.n_latents = -1);
    REFUSES("n_latents = 1, but latents is NULL", c.n_latents = 1);
    REFUSES("latents[1].kind = 9 is not one of start, middle, end, custom", c.n_latents = 2, c.latents = bad_kind);
    REFUSES("latents[0].at = -1, but a custom position must not be negative", c.n_latents = 1,
            c.latents = bad_position);
    CHECK(!kr_bidi_create(ctx, NULL), "no config");
    CHECK_ERROR(ctx, KR_ERR_ARG, "bidi.create: config is NULL");
    bidi_blocks wrong = blocks;
    wrong.mamba2.d_model = 0;
    kr_bidi_config c = bidi_small(&wrong, KR_FAMILY_MAMBA2);
    CHECK(!kr_bidi_create(ctx, &c), "the block's own config is checked");
    CHECK_ERROR(ctx, KR_ERR_ARG, "bidi.create: mamba2.create: d_model = 0, but must be at least 1");
    kr_ctx_destroy(ctx);
}

/* The call gives nothing and leaves this error; the tape begins anew. */
static void refused(kr_tape *t, kr_status status, const char *text, const kr_bidi *bidi, kr_tensor *x,
                    const kr_cache *caches)
{
    const kr_bidi_out out = bidi_forward_from(t, bidi, x, caches);
    CHECK(!out.y && !out.caches, "not refused: %s", text);
    CHECK_ERROR(ctx, status, text);
    kr_tape_reset(t);
}

TEST(bidi_forward_errors)
{
    ctx = kr_test_ctx(1, NULL);
    const bidi_blocks blocks = bidi_blocks_of(KR_DTYPE_F32);
    kr_bidi_config c = bidi_small(&blocks, KR_FAMILY_MAMBA2);
    kr_bidi *bidi = kr_bidi_create(ctx, &c);
    for (int mode = KR_TAPE_GRAD; mode <= KR_TAPE_NO_GRAD; mode++) {
        kr_tape *t = kr_tape_create(ctx, (kr_tape_mode)mode);
        refused(t, KR_ERR_ARG, "bidi.forward: the stack is NULL", NULL,
                kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(1, 2, BIDI_ND)), NULL);
        refused(t, KR_ERR_ARG, "bidi.forward: operand x is NULL", bidi, NULL, NULL);
        refused(t, KR_ERR_SHAPE, "bidi.forward: axis d of x [1, 2, 9] is 9, but the block has d_model = 8", bidi,
                kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(1, 2, 9)), NULL);
        refused(t, KR_ERR_DTYPE,
                "bidi.forward: x is f64, but the block is f32; cast x, or create the block with that dtype", bidi,
                kr_zeros(t, KR_DTYPE_F64, KR_SHAPE(1, 2, BIDI_ND)), NULL);
        refused(t, KR_ERR_SHAPE, "bidi.forward: x [1, 0, 8] is empty; at least one row and one token are needed", bidi,
                kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(1, 0, BIDI_ND)), NULL);
        kr_cache caches[4];
        kr_tensor *x = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(1, 2, BIDI_ND));
        const kr_bidi_out good = kr_bidi_forward(t, bidi, x, NULL);
        for (int v = 0; v < 4; v++) caches[v] = good.caches[v];
        caches[3].family = KR_FAMILY_MAMBA1;
        refused(t, KR_ERR_ARG,
                "bidi.forward: virtual layer 3: the cache is of the family mamba1, but the block is mamba2", bidi, x,
                caches);
        x = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(2, 2, BIDI_ND));
        const kr_bidi_out two = kr_bidi_forward(t, bidi, kr_slice(t, x, 0, 0, 1), NULL);
        refused(t, KR_ERR_SHAPE,
                "bidi.forward: virtual layer 0: cache.conv [1, 24, 4] must be [2, 24, 4]: one for each row of x", bidi,
                x, two.caches);
        x = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(1, 2, BIDI_ND));
        const kr_bidi_out last = kr_bidi_forward(t, bidi, x, NULL);
        for (int v = 0; v < 4; v++) caches[v] = last.caches[v];
        caches[1].mamba2.ssm_bhpr = NULL;
        refused(t, KR_ERR_ARG,
                "bidi.forward: virtual layer 1: cache.ssm is NULL; a cache has all its tensors, or pass NULL for the "
                "initial one",
                bidi, x, caches);
        kr_tape_destroy(t);
    }
    CHECK(!kr_bidi_forward(NULL, bidi, NULL, NULL).y, "no tape");
    CHECK_OK(ctx);
    kr_bidi_destroy(bidi);
    kr_ctx_destroy(ctx);
}

/* ---- memory ---- */

static size_t rounded(const kr_tensor *x)
{
    const size_t bytes = (size_t)kr_tensor_count(x) * kr_dtype_bytes(kr_tensor_dtype(x));
    return (bytes + 63) / 64 * 64; /* as the tape counts it */
}

/* Without recording, what a pair computes is released when it is done: only caches add up. */
TEST(bidi_peak_does_not_grow_with_depth)
{
    ctx = kr_test_ctx(1, NULL);
    const bidi_blocks blocks = bidi_blocks_of(KR_DTYPE_F32);
    for (int family = 0; family < BIDI_FAMILIES; family++)
        for (int multi = 0; multi < 2; multi++) {
            size_t peak[2], caches[2] = { 0, 0 }, after[2];
            for (int deep = 0; deep < 2; deep++) {
                kr_bidi_config c = bidi_small(&blocks, family);
                c.n_virtual = deep ? 40 : 8;
                c.merge = KR_BIDI_MERGE_CAT_LINEAR;
                if (multi)
                    c.residual = (kr_residual){ .kind = KR_RESIDUAL_MULTI_GATE,
                                                .n_stream = 3,
                                                .init_bias = 0,
                                                .init_bias_step = 0,
                                                .per_virtual_layer = false };
                kr_bidi *bidi = kr_bidi_create(ctx, &c);
                kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
                kr_tensor *x = kr_zeros(tape, KR_DTYPE_F32, KR_SHAPE(2, 64, BIDI_ND));
                const kr_bidi_out out = kr_bidi_forward(tape, bidi, x, NULL);
                for (int64_t v = 0; out.caches && v < c.n_virtual; v++)
                    for (int i = 0; i < kr_cache_count(c.block.family); i++)
                        caches[deep] += rounded(out.caches[v].tensors[i]);
                peak[deep] = kr_tape_peak_bytes(tape);
                after[deep] = kr_tape_bytes(tape) - rounded(x) - (multi ? 4 : 1) * rounded(out.y);
                CHECK(out.y != x, "x itself is left alone");
                CHECK_OK(ctx);
                kr_tape_destroy(tape);
                kr_bidi_destroy(bidi);
            }
            CHECK(peak[1] - peak[0] == caches[1] - caches[0], "family %d: peak %zu and %zu, caches %zu and %zu", family,
                  peak[0], peak[1], caches[0], caches[1]);
            CHECK(after[0] == caches[0] && after[1] == caches[1], "family %d: %zu and %zu bytes are left", family,
                  after[0], after[1]);
        }
    kr_ctx_destroy(ctx);
}

/* Streams that no pair will fill take no memory. */
TEST(bidi_more_streams_than_pairs)
{
    ctx = kr_test_ctx(1, NULL);
    const bidi_blocks blocks = bidi_blocks_of(KR_DTYPE_F32);
    size_t bytes[2];
    for (int many = 0; many < 2; many++) {
        kr_bidi_config c = bidi_small(&blocks, KR_FAMILY_MAMBA2);
        c.residual = (kr_residual){ .kind = KR_RESIDUAL_MULTI_GATE,
                                    .n_stream = many ? 1000 : 3,
                                    .init_bias = 0,
                                    .init_bias_step = 0,
                                    .per_virtual_layer = false };
        kr_bidi *bidi = kr_bidi_create(ctx, &c);
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        kr_bidi_forward(tape, bidi, kr_zeros(tape, KR_DTYPE_F32, KR_SHAPE(2, 64, BIDI_ND)), NULL);
        bytes[many] = kr_tape_bytes(tape);
        CHECK_OK(ctx);
        kr_tape_destroy(tape);
        kr_bidi_destroy(bidi);
    }
    CHECK(bytes[0] == bytes[1], "%zu and %zu bytes", bytes[0], bytes[1]);
    kr_ctx_destroy(ctx);
}

/* x is the caller's: an unrecorded call does not write into it, nor into caches. */
TEST(bidi_calls_are_pure)
{
    ctx = kr_test_ctx(1, NULL);
    const bidi_blocks blocks = bidi_blocks_of(KR_DTYPE_F32);
    kr_bidi_config c = bidi_small(&blocks, KR_FAMILY_MAMBA3);
    c.residual = (kr_residual){
        .kind = KR_RESIDUAL_MULTI_GATE, .n_stream = 1, .init_bias = 0, .init_bias_step = 0, .per_virtual_layer = false
    };
    kr_bidi *bidi = kr_bidi_create(ctx, &c);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(2, 6, BIDI_ND)), *kept = kr_input(tape, x);
    const kr_bidi_out first = kr_bidi_forward(tape, bidi, x, NULL);
    CHECK_SAME_BITS("x", x, kept);
    kr_tensor *cache = kr_input(tape, first.caches[0].tensors[0]), *y = kr_input(tape, first.y);
    const kr_bidi_out second = bidi_forward_from(tape, bidi, x, first.caches);
    CHECK_SAME_BITS("cache", first.caches[0].tensors[0], cache);
    CHECK_SAME_BITS("y", first.y, y);
    CHECK_SAME_BITS("again", bidi_forward_from(tape, bidi, x, first.caches).y, second.y);
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    kr_bidi_destroy(bidi);
    kr_ctx_destroy(ctx);
}

static kr_bidi_config starved_config(const bidi_blocks *blocks, int family)
{
    static const kr_class_token latents[2] = { { .kind = KR_CLASS_TOKEN_START }, { .kind = KR_CLASS_TOKEN_END } };
    kr_bidi_config c = bidi_small(blocks, family);
    c.n_layers = 2;
    c.n_virtual = 4;
    c.merge = KR_BIDI_MERGE_CAT_LINEAR;
    c.residual = (kr_residual){
        .kind = KR_RESIDUAL_MULTI_GATE, .n_stream = 2, .init_bias = 0, .init_bias_step = 1, .per_virtual_layer = true
    };
    c.n_latents = 2;
    c.latents = latents;
    return c;
}

TEST(bidi_create_starved)
{
    ctx = kr_test_ctx(1, NULL);
    const bidi_blocks blocks = bidi_blocks_of(KR_DTYPE_F32);
    for (int family = 0; family < BIDI_FAMILIES; family++) {
        const kr_bidi_config c = starved_config(&blocks, family);
        const kr_memory_stats idle = kr_ctx_memory(ctx);
        kr_bidi *bidi = NULL;
        size_t n = 0;
        while (!bidi && n < 1000) {
            kr_ctx_fail_allocation(ctx, ++n);
            bidi = kr_bidi_create(ctx, &c);
            kr_ctx_fail_allocation(ctx, 0);
            if (bidi) break;
            CHECK(kr_ctx_status(ctx) == KR_ERR_NOMEM, "allocation %zu: %s", n, kr_ctx_message(ctx));
            CHECK(kr_ctx_memory(ctx).live_bytes == idle.live_bytes &&
                      kr_ctx_memory(ctx).live_blocks == idle.live_blocks,
                  "allocation %zu: memory is left", n);
            kr_ctx_clear(ctx);
        }
        CHECK(bidi && n > 20, "created after %zu failures", n);
        CHECK_OK(ctx);
        kr_bidi_destroy(bidi);
        CHECK(kr_ctx_memory(ctx).live_bytes == idle.live_bytes, "destroy leaves nothing");
    }
    kr_ctx_destroy(ctx);
}

/* The tape's arenas ask for each piece by itself, so that each can be refused. */
static kr_tape *starved_tape(kr_tape_mode mode)
{
    kr_tape *tape = kr_tape_create(ctx, mode);
    tape->heads.block_bytes = tape->data.block_bytes = tape->heap.chunk_bytes = KR_ALIGN;
    tape->shared.block_bytes = tape->device_heap.chunk_bytes = 4 * KR_ALIGN;
    ctx->scratch.block_bytes = KR_ALIGN;
    return tape;
}

static bool forward_and_back(kr_tape *tape, const kr_bidi *bidi)
{
    kr_tensor *x = kr_zeros(tape, KR_DTYPE_F32, KR_SHAPE(1, 3, BIDI_ND));
    const kr_bidi_out out = kr_bidi_forward(tape, bidi, x, NULL);
    if (out.y && tape->mode == KR_TAPE_GRAD) kr_backward(tape, kr_sum(tape, out.y, KR_ALL_AXES, false));
    CHECK(!out.y == !out.caches, "both or none");
    return out.y && !kr_ctx_failed(ctx);
}

TEST(bidi_forward_starved)
{
    const bidi_blocks blocks = bidi_blocks_of(KR_DTYPE_F32);
    for (int family = 0; family < BIDI_FAMILIES; family++)
        for (int mode = KR_TAPE_GRAD; mode <= KR_TAPE_NO_GRAD; mode++) {
            ctx = kr_test_ctx(1, NULL);
            const kr_bidi_config c = starved_config(&blocks, family);
            kr_bidi *bidi = kr_bidi_create(ctx, &c);
            const size_t by = mode == KR_TAPE_GRAD || kr_test_quick() ? 7 : 1;
            size_t n = 1;
            for (bool passed = false; !passed && n < 20000; n += by) {
                kr_tape *tape = starved_tape((kr_tape_mode)mode);
                kr_ctx_fail_allocation(ctx, n);
                passed = forward_and_back(tape, bidi);
                kr_ctx_fail_allocation(ctx, 0);
                if (!passed) {
                    CHECK(kr_ctx_status(ctx) == KR_ERR_NOMEM, "allocation %zu: %s", n, kr_ctx_message(ctx));
                    kr_ctx_clear(ctx);
                    kr_tape_reset(tape);
                    if (n % 5 == 0)
                        CHECK(forward_and_back(tape, bidi), "the tape is good again: %s", kr_ctx_message(ctx));
                }
                kr_tape_destroy(tape);
            }
            CHECK(n > 100 && n < 20000, "passed after %zu", n);
            CHECK_OK(ctx);
            kr_bidi_destroy(bidi);
            kr_ctx_destroy(ctx);
        }
}
