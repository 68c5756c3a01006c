/* test_into.c - final states written into existing memory: used if it fits, with the same bits, and not otherwise. */
#include "mixer/core.h"
#include "tests/harness.h"

#include <krait/ssd.h>

enum { NB = 2, NH = 3, NP = 5, NR = 7, NI = NH * NP };

static int
    stream; /* of random numbers: how many streams were used since the reset, so that runs have the same operands */

static kr_tensor *noise(kr_tape *t, kr_shape shape, double low, double high)
{
    int64_t count = 1;
    for (int i = 0; i < shape.rank; i++) count *= shape.dims[i];
    float *values = calloc((size_t)count, sizeof *values);
    if (!values) exit(2);
    stream++;
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)(low + (high - low) * (0.5 + 0.5 * sin(12.9898 * (double)i + 78.233 * stream)));
    kr_tensor *x = kr_from_data(t, KR_DTYPE_F32, shape, values);
    free(values);
    return x;
}

typedef struct both {
    kr_tensor *y, *final;
} both;

static both run(kr_tape *t, int family, int64_t ns, kr_tensor *initial, kr_tensor *into, kr_ssd_algorithm algorithm)
{
    const kr_ssd_path path = { algorithm, 4 };
    stream = 10;
    if (family == 0) {
        const kr_selective_scan_input in = { .x_bsi = noise(t, KR_SHAPE(NB, ns, NI), -1, 1),
                                             .dt_bsi = noise(t, KR_SHAPE(NB, ns, NI), 0.01, 0.5),
                                             .a_ir = noise(t, KR_SHAPE(NI, NR), -2, -0.1),
                                             .b_bsgr = noise(t, KR_SHAPE(NB, ns, 1, NR), -1, 1),
                                             .c_bsgr = noise(t, KR_SHAPE(NB, ns, 1, NR), -1, 1),
                                             .initial_state_bir = initial };
        const kr_scan_out out = kr_selective_scan_into(t, &in, into);
        return (both){ out.y_bsi, out.final_state };
    }
    if (family == 1) {
        const kr_mamba2_ssd_input in = { .x_bshp = noise(t, KR_SHAPE(NB, ns, NH, NP), -1, 1),
                                         .dt_bsh = noise(t, KR_SHAPE(NB, ns, NH), 0.01, 0.5),
                                         .a_decay_h = noise(t, KR_SHAPE(NH), -2, -0.1),
                                         .b_bsgr = noise(t, KR_SHAPE(NB, ns, 1, NR), -1, 1),
                                         .c_bsgr = noise(t, KR_SHAPE(NB, ns, 1, NR), -1, 1),
                                         .initial_state_bhpr = initial };
        const kr_ssd_out out = kr_mamba2_ssd_run_into(t, &in, path, into, false);
        return (both){ out.y, out.final_state };
    }
    const kr_mamba3_single_ssd_input in = { .v_bsmhp = noise(t, KR_SHAPE(NB, ns, 1, NH, NP), -1, 1),
                                            .b_bsmhr = noise(t, KR_SHAPE(NB, ns, 1, NH, NR), -1, 1),
                                            .c_bsmhr = noise(t, KR_SHAPE(NB, ns, 1, NH, NR), -1, 1),
                                            .da_bsh = noise(t, KR_SHAPE(NB, ns, NH), -0.5, 0),
                                            .gamma_bsh = noise(t, KR_SHAPE(NB, ns, NH), 0, 1),
                                            .scale_bsh = noise(t, KR_SHAPE(NB, ns, NH), 0, 1),
                                            .initial_state_bhpr = initial };
    const kr_ssd_out out = kr_mamba3_single_ssd_run_into(t, &in, path, into, false);
    return (both){ out.y, out.final_state };
}

static kr_shape states_of(int family)
{
    return family == 0 ? KR_SHAPE(NB, NI, NR) : KR_SHAPE(NB, NH, NP, NR);
}

static const kr_ssd_algorithm fused = KR_SSD_SERIAL_RECALCULATED;

/* One token, a few, and more than the token-by-token path takes; into other memory, and over the initial states. */
TEST(final_states_go_where_they_are_wanted)
{
    kr_ctx *ctx = kr_test_ctx(2, NULL);
    for (int family = 0; family < 3; family++)
        for (int64_t ns = 1; ns <= 9; ns += 2)
            for (int in_place = 0; in_place < 2; in_place++) {
                kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
                kr_tensor *initial = noise(t, states_of(family), -1, 1), *own = kr_input(t, initial);
                const both want = run(t, family, ns, initial, NULL, fused);
                kr_tensor *into = in_place ? own : noise(t, states_of(family), -1, 1);
                const both got = run(t, family, ns, own, into, fused);
                CHECK_OK(ctx);
                CHECK(kr_tensor_data(got.final) == kr_tensor_data(into), "family %d: they lie elsewhere", family);
                CHECK_SAME_BITS("y", got.y, want.y);
                CHECK_SAME_BITS("final", into, want.final);
                kr_tape_destroy(t);
            }
    kr_ctx_destroy(ctx);
}

/* A recorded run reads its initial states again; another shape or type does not fit; other algorithms allocate. */
TEST(final_states_are_new_where_the_memory_does_not_serve)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int family = 0; family < 3; family++)
        for (int k = 0; k < 4; k++) {
            if (k == 3 && family == 0) continue; /* the scan has one algorithm */
            kr_tape *t = kr_tape_create(ctx, k == 0 ? KR_TAPE_GRAD : KR_TAPE_NO_GRAD);
            kr_shape shape = states_of(family);
            if (k == 1) shape.dims[0]++;
            kr_tensor *into = noise(t, shape, -1, 1);
            if (k == 2) into = kr_cast(t, into, KR_DTYPE_F64);
            kr_tensor *before = kr_input(t, into);
            const both got = run(t, family, 2, NULL, into, k == 3 ? KR_SSD_SERIAL : fused);
            CHECK_OK(ctx);
            CHECK(kr_tensor_data(got.final) != kr_tensor_data(into), "family %d, case %d: written", family, k);
            CHECK_SAME_BITS("the memory", into, before);
            kr_tape_destroy(t);
        }
    kr_ctx_destroy(ctx);
}
