/* test_row_parts.c - operands that are parts of one wider row, as a block's projection produces them: read in place,
 * with the same bits as from copies. */
#include "tests/harness.h"

#include "tape/tape_impl.h"

#include <krait/ops.h>
#include <krait/ssd.h>

enum { NB = 2, NS = 70, MOST_PARTS = 6 };

/* A row [b s wide] and its parts, as they are or copied. */
typedef struct row {
    kr_tensor *wide;
    kr_tensor *parts[MOST_PARTS];
} row;

/* Each part in its shape [b s ..]; the first element of a row belongs to none. */
static row row_create(kr_tape *t, int64_t nb, const kr_tensor *values, int count, const kr_shape *shapes, bool copied)
{
    row r = { .wide = kr_input(t, (kr_tensor *)(uintptr_t)values) };
    int64_t from = 1;
    for (int i = 0; i < count; i++) {
        int64_t width = 1;
        kr_shape shape = shapes[i];
        for (int axis = 2; axis < shape.rank; axis++) width *= shape.dims[axis];
        shape.dims[0] = nb;
        r.parts[i] = kr_reshape(t, kr_slice(t, r.wide, 2, from, from + width), shape);
        if (copied) r.parts[i] = kr_contiguous(t, r.parts[i]);
        from += width;
    }
    return r;
}

static void check_same(const kr_ssd_out *got, const kr_ssd_out *want, const row *a, const row *b)
{
    CHECK_SAME_BITS("y", got->y, want->y);
    CHECK_SAME_BITS("final state", got->final_state, want->final_state);
    CHECK_SAME_BITS("gradient", kr_grad(a->wide), kr_grad(b->wide));
}

typedef kr_ssd_out run_fn(kr_tape *t, int64_t nb, int64_t ns, const row *r);

static kr_ssd_out run_mamba2(kr_tape *t, int64_t nb, int64_t ns, const row *r)
{
    kr_mamba2_ssd_input in = { .x_bshp = r->parts[0],
                               .b_bsgr = r->parts[1],
                               .c_bsgr = r->parts[2],
                               .dt_bsh = kr_full(t, KR_DTYPE_F32, KR_SHAPE(nb, ns, 4), 0.1),
                               .a_decay_h = kr_full(t, KR_DTYPE_F32, KR_SHAPE(4), -0.5),
                               .d_h = kr_full(t, KR_DTYPE_F32, KR_SHAPE(4), 0.7) };
    return kr_mamba2_ssd_run(t, &in, (kr_ssd_path){ KR_SSD_SERIAL_RECALCULATED, 32 });
}

static kr_ssd_out run_double(kr_tape *t, int64_t nb, int64_t ns, const row *r)
{
    kr_mamba3_double_ssd_input in = { .v_bsmhp = r->parts[0],
                                      .b_bsmhr = r->parts[1],
                                      .c_bsmhr = r->parts[2],
                                      .da_bsh = kr_full(t, KR_DTYPE_F32, KR_SHAPE(nb, ns, 4), -0.05) };
    return kr_mamba3_double_ssd_run(t, &in, (kr_ssd_path){ KR_SSD_SERIAL_RECALCULATED, 32 });
}

static kr_ssd_out run_scan(kr_tape *t, int64_t nb, int64_t ns, const row *r)
{
    (void)nb, (void)ns;
    kr_selective_scan_input in = { .x_bsi = r->parts[0],
                                   .dt_bsi = r->parts[1],
                                   .z_bsi = r->parts[2],
                                   .b_bsgr = r->parts[3],
                                   .c_bsgr = r->parts[4],
                                   .a_ir = kr_full(t, KR_DTYPE_F32, KR_SHAPE(37, 5), -0.5) };
    const kr_scan_out out = kr_selective_scan(t, &in);
    return (kr_ssd_out){ .y = out.y_bsi, .final_state = out.final_state };
}

/* Both on every instruction set. No part is copied: the op adds as many nodes to views as to copies. */
static void check_parts(run_fn *run, int count, const kr_shape *shapes, int64_t wide)
{
    char isas[128];
    kr_isa_choices(isas, sizeof isas);
    for (char *isa = strtok(isas, ", "); isa; isa = strtok(NULL, ", ")) {
        for (int variant = 0; variant < 3; variant++) {
            const int64_t nb = variant == 0 ? 1 : NB, ns = variant == 2 ? 1 : NS; /* one row; rows; rows of one token */
            kr_ctx *ctx = kr_test_ctx(2, isa);
            kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
            kr_shape sized[MOST_PARTS];
            for (int i = 0; i < count; i++) {
                sized[i] = shapes[i];
                sized[i].dims[1] = ns;
            }
            kr_tensor *values = kr_rand(t, KR_DTYPE_F32, KR_SHAPE(nb, ns, wide), 0.1, 1);
            const row views = row_create(t, nb, values, count, sized, false);
            const row copies = row_create(t, nb, values, count, sized, true);
            const int64_t before = t->nnodes;
            const kr_ssd_out got = run(t, nb, ns, &views);
            const int64_t between = t->nnodes;
            const kr_ssd_out want = run(t, nb, ns, &copies);
            CHECK(between - before == t->nnodes - between, "%lld nodes for views, %lld for copies",
                  (long long)(between - before), (long long)(t->nnodes - between));
            kr_tensor *g[2] = { kr_randn(t, KR_DTYPE_F32, kr_tensor_shape(got.y)),
                                kr_randn(t, KR_DTYPE_F32, kr_tensor_shape(got.final_state)) };
            kr_backward_from(t, 4, (kr_tensor *[]){ got.y, got.final_state, want.y, want.final_state },
                             (kr_tensor *[]){ g[0], g[1], g[0], g[1] });
            if (CHECK_OK(ctx)) check_same(&got, &want, &views, &copies);
            kr_tape_destroy(t);
            kr_ctx_destroy(ctx);
        }
    }
}

TEST(mamba2_reads_parts_of_a_row)
{
    const kr_shape shapes[] = { KR_SHAPE(NB, NS, 4, 9), KR_SHAPE(NB, NS, 2, 7), KR_SHAPE(NB, NS, 2, 7) };
    check_parts(run_mamba2, 3, shapes, 1 + 36 + 14 + 14 + 3);
}

TEST(mamba3_reads_parts_of_a_row)
{
    const kr_shape shapes[] = { KR_SHAPE(NB, NS, 3, 4, 9), KR_SHAPE(NB, NS, 3, 2, 7), KR_SHAPE(NB, NS, 3, 2, 7) };
    check_parts(run_double, 3, shapes, 1 + 108 + 42 + 42 + 3);
}

TEST(selective_scan_reads_parts_of_a_row)
{
    const kr_shape shapes[] = { KR_SHAPE(NB, NS, 37), KR_SHAPE(NB, NS, 37), KR_SHAPE(NB, NS, 37),
                                KR_SHAPE(NB, NS, 1, 5), KR_SHAPE(NB, NS, 1, 5) };
    check_parts(run_scan, 5, shapes, 1 + 3 * 37 + 2 * 5 + 3);
}

/* Layouts without a token stride are copied: rows that are slices of longer ones, tokens in another order of axes. */
TEST(other_layouts_are_copied)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    const kr_shape shapes[] = { KR_SHAPE(NB, NS, 4, 9), KR_SHAPE(NB, NS, 2, 7), KR_SHAPE(NB, NS, 2, 7) };
    const kr_tensor *values = kr_rand(t, KR_DTYPE_F32, KR_SHAPE(NB, NS, 68), -1, 1);
    const row whole = row_create(t, NB, values, 3, shapes, false);
    row cut = whole, moved = whole;
    for (int i = 0; i < 3; i++) {
        cut.parts[i] = kr_slice(t, whole.parts[i], 1, 3, NS);
        kr_tensor *x = kr_contiguous(t, kr_transpose(t, cut.parts[i]));
        moved.parts[i] = kr_transpose(t, x);
    }
    const kr_ssd_out got = run_mamba2(t, NB, NS - 3, &cut), want = run_mamba2(t, NB, NS - 3, &moved);
    CHECK_OK(ctx);
    CHECK_SAME_BITS("y", got.y, want.y);
    for (int64_t b = 0; b < NB; b++) {
        row one = cut;
        for (int i = 0; i < 3; i++) one.parts[i] = kr_slice(t, cut.parts[i], 0, b, b + 1);
        CHECK_SAME_BITS("a row of it", kr_slice(t, got.y, 0, b, b + 1), run_mamba2(t, 1, NS - 3, &one).y);
    }
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}
