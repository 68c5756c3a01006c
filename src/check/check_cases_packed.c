/* check_cases_packed.c - cases of packed rows: sequences that begin inside a row, one of them of a single token. */
#include "check/check_cases.h"

enum { ROWS = 2, TOKENS = 45 };

/* Does a sequence begin at token s of row b? The first token of a row begins one, whatever its marker says. Lengths: 1, 1,
 * 3, 35 and 5; 20, 1 and 24. */
static bool begins(int64_t b, int64_t s)
{
    return b == 0 ? s == 1 || s == 2 || s == 5 || s == 40 : s == 20 || s == 21;
}

static kr_tensor *starts(kr_tape *t)
{
    int32_t marker[ROWS * TOKENS];
    for (int i = 0; i < ROWS * TOKENS; i++) marker[i] = begins(i / TOKENS, i % TOKENS) ? 1 + i % 3 : 0;
    return kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(ROWS, TOKENS), marker);
}

static int64_t count_sequences(void)
{
    int64_t count = 0;
    for (int i = 0; i < ROWS * TOKENS; i++) count += i % TOKENS == 0 || begins(i / TOKENS, i % TOKENS);
    return count;
}

CASE(conv_packed)
{
    kr_tensor *x = X(0, -2, 2, ROWS, TOKENS, 37), *taps = X(1, -1, 1, 37, 4), *bias = X(2, -1, 1, 37);
    const kr_conv_out first = kr_causal_conv(t, x, taps, bias, NULL, starts(t), true);
    const kr_conv_out next = kr_causal_conv(t, x, taps, bias, X(3, -2, 2, count_sequences(), 37, 4), starts(t), false);
    vector_out(r, first.y_bsv);
    vector_out(r, next.y_bsv);
    vector_out(r, next.window_bvk);
}
CASE(trapezoid_packed)
{
    vector_out(r, kr_trapezoid_scale(t, X(0, 0, 1, ROWS, TOKENS, 5), X(1, 0, 1, ROWS, TOKENS, 5), starts(t)));
}
CASE(angles_packed)
{
    const kr_rotation_out o = kr_rotation_angles(t, X(0, -2, 2, ROWS, TOKENS, 7), X(1, 0, 0.125, ROWS, TOKENS, 3),
                                                 X(2, -3, 3, count_sequences(), 3, 7), 1, starts(t));
    vector_out(r, kr_sin(t, o.angle_bsha)); /* a wrapped angle is defined up to 2 pi */
    vector_out(r, kr_cos(t, o.final_bha));
}
CASE(quaternion_packed)
{
    kr_tensor *q = kr_quaternion_increments(t, X(0, -2, 2, ROWS, TOKENS, 3, 4, 3), X(1, 0.0625, 1, ROWS, TOKENS, 3), 1);
    const kr_quaternion_out cum = kr_quaternion_cumprod(t, q, NULL, starts(t));
    vector_out(r, cum.cum_bshj4);
    vector_out(r, cum.final_bhj4);
}
CASE(ssd_mamba2_packed)
{
    const kr_mamba2_ssd_input i = { .x_bshp = X(0, -2, 2, ROWS, TOKENS, 4, 16),
                                    .dt_bsh = X(1, 0.0078125, 0.25, ROWS, TOKENS, 4),
                                    .a_decay_h = X(2, -4, -0.5, 4),
                                    .b_bsgr = X(3, -1, 1, ROWS, TOKENS, 2, 24),
                                    .c_bsgr = X(4, -1, 1, ROWS, TOKENS, 2, 24),
                                    .initial_state_bhpr = X(5, -1, 1, count_sequences(), 4, 16, 24),
                                    .seq_start_bs = starts(t) };
    const kr_ssd_out o = kr_mamba2_ssd_run(t, &i, (kr_ssd_path){ KR_SSD_SERIAL_RECALCULATED, 16 });
    vector_out(r, o.y);
    vector_out(r, o.final_state);
}
CASE(ssd_mamba3_packed)
{
    const kr_mamba3_single_ssd_input i = { .v_bsmhp = X(0, -2, 2, ROWS, TOKENS, 2, 3, 16),
                                           .b_bsmhr = X(1, -1, 1, ROWS, TOKENS, 2, 3, 24),
                                           .c_bsmhr = X(2, -1, 1, ROWS, TOKENS, 2, 3, 24),
                                           .da_bsh = X(3, -1, 0, ROWS, TOKENS, 3),
                                           .gamma_bsh = X(4, 0, 0.25, ROWS, TOKENS, 3),
                                           .scale_bsh = X(5, 0, 0.5, ROWS, TOKENS, 3),
                                           .seq_start_bs = starts(t) };
    const kr_ssd_out o = kr_mamba3_single_ssd_run(t, &i, (kr_ssd_path){ KR_SSD_SERIAL_RECALCULATED, 16 });
    vector_out(r, o.y);
    vector_out(r, o.final_state);
}
CASE(selective_scan_packed)
{
    const kr_selective_scan_input i = { .x_bsi = X(0, -2, 2, ROWS, TOKENS, 37),
                                        .dt_bsi = X(1, 0.0078125, 0.25, ROWS, TOKENS, 37),
                                        .a_ir = X(2, -4, -0.5, 37, 16),
                                        .b_bsgr = X(3, -1, 1, ROWS, TOKENS, 1, 16),
                                        .c_bsgr = X(4, -1, 1, ROWS, TOKENS, 1, 16),
                                        .d_i = X(5, -1, 1, 37),
                                        .z_bsi = X(6, -4, 4, ROWS, TOKENS, 37),
                                        .initial_state_bir = X(7, -1, 1, count_sequences(), 37, 16),
                                        .seq_start_bs = starts(t) };
    const kr_scan_out o = kr_selective_scan(t, &i);
    vector_out(r, o.y_bsi);
    vector_out(r, o.final_state);
}

static const vector_case cases[] = {
    ROW(conv_packed, "conv, conv_bwd"),
    ROW(trapezoid_packed, "where, add"),
    ROW(angles_packed, "angles, angles_bwd"),
    ROW(quaternion_packed, "quaternion_exp, quaternion_exp_bwd, quaternion_scan, quaternion_scan_bwd"),
    ROW(ssd_mamba2_packed, "ssd, ssd_bwd"),
    ROW(ssd_mamba3_packed, "ssd, ssd_bwd"),
    ROW(selective_scan_packed, "scan, scan_bwd"),
};
const vector_table vector_packed_rows = { cases, sizeof cases / sizeof *cases, 2001 };
