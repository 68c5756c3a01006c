/* test_grid.c - a text in pieces that are cut at multiples of a network's grid has the bits of the whole: outputs and final
 * states of networks of all families and variants, by every instruction set, for any number of threads. And what the grid
 * of a network is. */
#include "tests/nn/networks.h"

/* ---- networks ---- */

static int64_t one_of(const int64_t *list, int count)
{
    return list[kr_test_below(count)];
}

static void vary_mamba2(net_recipe *r, int64_t chunk_len)
{
    r->mamba2.d_model = 24;
    r->mamba2.per_head_dim = one_of((const int64_t[]){ 4, 6, 12 }, 3);
    r->mamba2.state_rank = one_of((const int64_t[]){ 5, 16, 20 }, 3);
    r->mamba2.n_groups = 1 + kr_test_below(2);
    r->mamba2.path.chunk_len = chunk_len;
}

/* Bits of `which`: double pathway, quaternions; then how much of the state is rotated, and the MIMO rank. */
enum { DOUBLE = 1, QUATERNIONS = 2, FRACTIONS = 4, NFRACTIONS = 3, RANKS = FRACTIONS * NFRACTIONS, NRANKS = 4 };
enum { MAMBA3_VARIANTS = RANKS * NRANKS };

static void vary_mamba3(net_recipe *r, int which, int64_t chunk_len)
{
    static const int64_t ranks[NRANKS] = { 0, 1, 2, 5 };
    static const double fractions[NFRACTIONS] = { 1, 0.5, 0 };
    kr_mamba3_config *c = &r->mamba3;
    c->d_model = 24;
    c->per_head_dim = one_of((const int64_t[]){ 4, 6, 12 }, 3);
    c->state_rank = one_of((const int64_t[]){ 8, 16, 20 }, which & QUATERNIONS ? 2 : 3); /* blocks of four */
    c->n_groups = 1 + kr_test_below(2);
    c->pathway = which & DOUBLE ? KR_MAMBA3_PATHWAY_DOUBLE : KR_MAMBA3_PATHWAY_SINGLE;
    c->rotation = which & QUATERNIONS ? KR_ROTATION_QUATERNION : KR_ROTATION_COMPLEX;
    c->rope_fraction = fractions[which / FRACTIONS % NFRACTIONS];
    c->rotation_range = 1.5;
    c->is_mimo = ranks[which / RANKS] > 0;
    if (c->is_mimo) c->mimo_rank = ranks[which / RANKS];
    c->has_learnable_init_state = kr_test_below(2);
    c->path.chunk_len = chunk_len;
}

static net_recipe recipe_of(kr_family family, int which, kr_dtype dtype, int64_t chunk_len)
{
    net_recipe r = net_recipe_of(family, which % 2 ? LATENT : VOCAB);
    if (family == KR_FAMILY_MAMBA1) r.mamba1.d_model = 24;
    if (family == KR_FAMILY_MAMBA2) vary_mamba2(&r, chunk_len);
    if (family == KR_FAMILY_MAMBA3) vary_mamba3(&r, which, chunk_len);
    if (which % 3 == 1) r.layers.d_intermediate = 8;
    if (which % 5 == 2)
        r.layers.residual =
            (kr_residual){ .kind = KR_RESIDUAL_MULTI_GATE, .n_stream = 2, .init_bias = -1, .init_bias_step = 0.5 };
    net_recipe_type(&r, dtype);
    return r;
}

/* ---- the law ---- */

/* Random multiples of the grid, and the rest; a rest of one token perhaps by a step. */
static net_mode cut(int64_t ns, int64_t grid)
{
    net_mode way = { .name = "pieces" };
    int64_t left = ns;
    for (int i = 0; left > 0; i++) {
        const int64_t most = left / grid;
        int64_t part = most > 0 ? grid * (1 + kr_test_below(most < 3 ? most : 3)) : left;
        if (i + 1 == NET_PARTS) part = left;
        way.parts[i] = part == 1 && left == 1 && kr_test_below(2) ? STEP : part;
        left -= part;
    }
    return way;
}

/* Devices add in another order: what is a sum over tokens, such as an angle of up to pi, may differ by a rounding of each
 * addition, of half a unit in the last place of pi (1.2e-7 in f32) in the whole and in the pieces. */
static double piece_tolerance(const net *n, const net_problem *p)
{
    const double rounding = n->dtype == KR_DTYPE_F64 ? 2.3e-16 : 1.2e-7;
    return net_value_tolerance(n->dtype) + (kr_test_on_device(n->ctx) ? 2 * rounding * (double)p->ns : 0);
}

static void check_pieces(net *n, int64_t grid, const char *what)
{
    const int64_t longest = 6 * grid < 100 ? 6 * grid : 100;
    const net_problem p = { .nb = 1 + kr_test_below(2),
                            .ns = 1 + kr_test_below(longest),
                            .from_state = kr_test_below(2) };
    const net_mode way = cut(p.ns, grid);
    char text[200];
    snprintf(text, sizeof text, "%s, %lld x %lld tokens, grid %lld", what, (long long)p.nb, (long long)p.ns,
             (long long)grid);
    outcome *whole = net_run(n, &p, &(net_mode){ .name = "whole" }), *pieces = net_run(n, &p, &way);
    if (!kr_test_on_device(n->ctx)) compare_bits(text, pieces, whole, false);
    /* gradients of parameters are sums over all tokens, in another order; 16-bit ones are too coarse to compare */
    if (!kr_dtype_is_16bit(n->dtype))
        compare(text, pieces, whole, piece_tolerance(n, &p), net_gradient_tolerance(n->dtype), NET_FLOOR);
    outcome_free(whole);
    outcome_free(pieces);
}

static void check_network(kr_family family, int which, kr_dtype dtype, const char *isa)
{
    static const int64_t lengths[] = { 1, 2, 3, 4, 5, 8, 13, 16 };
    const int64_t chunk_len = one_of(lengths, 8);
    const net_recipe r = recipe_of(family, which, dtype, chunk_len);
    net n;
    char what[80];
    snprintf(what, sizeof what, "%s %d, %s, %s", kr_family_name(family), which, kr_dtype_name(dtype),
             isa ? isa : "best");
    if (!net_open_isa(&n, what, &r, 1 + (int)kr_test_below(2), isa)) return;
    const int64_t grid = kr_network_grid(n.network);
    CHECK(grid == (family == KR_FAMILY_MAMBA1 ? 1 : chunk_len), "the grid is %lld", (long long)grid);
    for (int i = 0; i < 2; i++) check_pieces(&n, grid, what);
    net_close(&n);
}

static void check_family(kr_family family, int variants)
{
    char names[128];
    kr_isa_choices(names, sizeof names);
    for (char *isa = strtok(names, ", "); isa; isa = strtok(NULL, ", "))
        for (int which = 0; which < variants; which++) {
            if (kr_test_quick() && which % 5 != kr_test_below(5)) continue;
            check_network(family, which, KR_DTYPE_F32, isa);
        }
    for (int which = (int)kr_test_below(2); which < variants; which += 2)
        check_network(family, which, KR_DTYPE_F64, NULL);
    for (int which = (int)kr_test_below(4); which < variants; which += 4)
        check_network(family, which, which % 8 < 4 ? KR_DTYPE_BF16 : KR_DTYPE_F16, NULL);
}

TEST(grid_pieces_are_the_whole_mamba1_threads)
{
    check_family(KR_FAMILY_MAMBA1, 6);
}

TEST(grid_pieces_are_the_whole_mamba2_threads)
{
    check_family(KR_FAMILY_MAMBA2, 12);
}

TEST(grid_pieces_are_the_whole_mamba3_threads)
{
    check_family(KR_FAMILY_MAMBA3, MAMBA3_VARIANTS);
}

/* The default chunk lengths, for sizes at which a chunk has many tiles, and pieces that are no multiple of 32. */
TEST(grid_pieces_are_the_whole_large_threads)
{
    for (int which = 0; which < 6; which++) {
        const kr_family family = which < 2 ? KR_FAMILY_MAMBA2 : KR_FAMILY_MAMBA3;
        net_recipe r = net_recipe_of(family, VOCAB);
        r.mamba2.d_model = r.mamba3.d_model = 64;
        r.mamba2.per_head_dim = r.mamba3.per_head_dim = 64;
        r.mamba2.state_rank = r.mamba3.state_rank = 128;
        r.mamba2.path.chunk_len = r.mamba3.path.chunk_len = 0;
        r.mamba3.pathway = which % 2 ? KR_MAMBA3_PATHWAY_DOUBLE : KR_MAMBA3_PATHWAY_SINGLE;
        r.mamba3.is_mimo = which >= 4;
        if (r.mamba3.is_mimo) r.mamba3.mimo_rank = 4;
        r.layers.n_layers = 1;
        net n;
        if (!net_open(&n, "large", &r, 2)) continue;
        const int64_t grid = kr_network_grid(n.network);
        CHECK(grid == (which >= 4 ? 32 : 96), "the grid is %lld", (long long)grid);
        const net_problem p = { .nb = 1, .ns = 2 * grid + 3, .from_state = which % 2 };
        const net_mode way = { .name = "pieces", .parts = { grid, grid, 3 } };
        outcome *whole = net_run(&n, &p, &(net_mode){ .name = "whole" }), *pieces = net_run(&n, &p, &way);
        if (!kr_test_on_device(n.ctx)) compare_bits("large", pieces, whole, false);
        outcome_free(whole);
        outcome_free(pieces);
        net_close(&n);
    }
}

/* Sequences that are packed into a row have the bits of each alone: chunks are counted from their starts. */
TEST(packed_sequences_are_those_alone_threads)
{
    enum { NS = 40 };
    for (int which = 0; which < MAMBA3_VARIANTS; which += 3) {
        int32_t starts[NS] = { 1 };
        for (int s = 1; s < NS; s++) starts[s] = kr_test_below(9) == 0;
        const net_recipe r = recipe_of(which % 4 ? KR_FAMILY_MAMBA3 : KR_FAMILY_MAMBA2, which, KR_DTYPE_F32, 5);
        net n;
        if (!net_open(&n, "packed", &r, 1 + which % 2)) continue;
        const net_problem p = { .nb = 1, .ns = NS, .from_state = which % 2, .starts = starts };
        outcome *together = net_run(&n, &p, &(net_mode){ .name = "packed" });
        outcome *alone = net_run(&n, &p, &(net_mode){ .name = "alone", .alone = true });
        if (!kr_test_on_device(n.ctx)) compare_bits("packed", alone, together, false);
        net_compare(&n, &p, "alone", alone, together);
        outcome_free(together);
        outcome_free(alone);
        net_close(&n);
    }
}

/* ---- what the grid is ---- */

static int64_t grid_of(const net_recipe *r)
{
    net n;
    if (!net_open(&n, "grid", r, 1)) return -1;
    const int64_t grid = n.network ? kr_network_grid(n.network) : kr_layers_grid(n.stack);
    if (n.network && n.layers) CHECK(kr_layers_grid(n.layers) == grid || grid == 0, "the stack's");
    net_close(&n);
    return grid;
}

TEST(grids)
{
    CHECK(kr_network_grid(NULL) == 0 && kr_layers_grid(NULL) == 0, "of nothing");
    for (int ends = BARE; ends <= LATENT; ends++) {
        net_recipe r = net_recipe_of(KR_FAMILY_MAMBA1, (net_ends)ends);
        CHECK(grid_of(&r) == 1, "Mamba-1");
        r = net_recipe_of(KR_FAMILY_MAMBA2, (net_ends)ends);
        CHECK(grid_of(&r) == 4, "Mamba-2");
        r.mamba2.path.algorithm = KR_SSD_MINIMAL;
        CHECK(grid_of(&r) == 0, "Minimal");
        r = net_recipe_of(KR_FAMILY_MAMBA3, (net_ends)ends);
        CHECK(grid_of(&r) == 4, "Mamba-3");
        r.mamba3.path.algorithm = KR_SSD_SERIAL;
        CHECK(grid_of(&r) == 0, "Serial");
        r.mamba3.path = (kr_ssd_path){ KR_SSD_SERIAL_RECALCULATED, INT64_MAX };
        CHECK(grid_of(&r) == INT64_MAX, "the longest chunk");
    }
    const kr_class_token start = { .kind = KR_CLASS_TOKEN_START };
    net_recipe r = net_recipe_of(KR_FAMILY_MAMBA2, LATENT);
    r.network.n_class_tokens = 1;
    r.network.class_tokens = &start;
    CHECK(grid_of(&r) == 0, "class tokens of the network");
    r = net_recipe_of(KR_FAMILY_MAMBA2, LATENT);
    r.layers.n_latents = 1;
    r.layers.latents = &start;
    CHECK(grid_of(&r) == 0, "class tokens of the stack");
}

/* Parts of all kinds: the least common multiple of 6, 4 and 1, and that of numbers whose product exceeds the type. */
static void check_custom(const int64_t chunk_lens[2], int64_t want)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    net_recipe r[3];
    kr_layers *stacks[3];
    kr_custom_network custom;
    kr_custom_network_init(&custom);
    kr_network_part parts[3] = { { .layers = NULL } };
    for (int i = 0; i < 3; i++) {
        r[i] = net_recipe_of(i < 2 ? KR_FAMILY_MAMBA2 : KR_FAMILY_MAMBA1, BARE);
        if (i < 2) r[i].mamba2.path.chunk_len = chunk_lens[i];
        parts[i].layers = stacks[i] = kr_layers_create(ctx, net_layers_config(&r[i]));
    }
    custom.params = kr_layers_params(stacks[0]);
    custom.n_parts = 3;
    custom.parts = parts;
    custom.vocab_size = 5;
    kr_network *network = kr_network_custom(ctx, &custom);
    CHECK_OK(ctx);
    CHECK(kr_network_grid(network) == want, "the grid is %lld, not %lld", (long long)kr_network_grid(network),
          (long long)want);
    kr_network_destroy(network);
    for (int i = 0; i < 3; i++) kr_layers_destroy(stacks[i]);
    kr_ctx_destroy(ctx);
}

TEST(grids_of_custom_networks)
{
    check_custom((const int64_t[]){ 6, 4 }, 12);
    check_custom((const int64_t[]){ 96, 96 }, 96);
    check_custom((const int64_t[]){ INT64_MAX, INT64_MAX - 1 }, 0);
}
