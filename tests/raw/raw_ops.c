/* raw_ops.c - the ops of a tape that raw ops are compared with. */
#include "mixer/core.h"
#include "mixer/rotary.h"
#include "tests/raw/raw_case.h"

#define X(name) get(&c->values, "", name)
#define PUT(name, x) put(&c->values, "", name, (x))

static void ssd(raw_case *c)
{
    const int64_t *n = c->sizes;
    kr_ssd_core core = { .v_bsmhp = X("v"),
                         .b_bsmgr = X("b"),
                         .c_bsmgr = X("c"),
                         .da_bsh = X("da"),
                         .w_bsh = X("w"),
                         .diag_weight_bsh = X("diag_weight"),
                         .d_h = X("d"),
                         .carry_bsh = X("carry"),
                         .initial_qhpr = X("initial"),
                         .boundary_qh = X("boundary"),
                         .boundary_v_qmhp = X("boundary_v"),
                         .boundary_b_qmhr = X("boundary_b"),
                         .sequences = c->sequences,
                         .rotary = { X("angle"), X("bias_b"), X("bias_c"),
                                     c->options.split_pairs ? KR_PAIRING_SPLIT : KR_PAIRING_ADJACENT },
                         .nb = n['b' - 'a'],
                         .ns = n['s' - 'a'],
                         .nm = n['m' - 'a'],
                         .nh = n['h' - 'a'],
                         .np = n['p' - 'a'],
                         .ng = n['g' - 'a'],
                         .nr = n['r' - 'a'] };
    core.nl = c->options.chunk_len ? c->options.chunk_len : kr_ssd_optimal_chunk_len(core.nr, core.np);
    const kr_ssd_out out = kr_ssd_fused(c->t, &core);
    PUT("y", out.y), PUT("final", out.final_state);
}

static void scan(raw_case *c)
{
    const kr_selective_scan_input in = { .x_bsi = X("x"),
                                         .dt_bsi = X("dt"),
                                         .a_ir = X("a"),
                                         .b_bsgr = X("b"),
                                         .c_bsgr = X("c"),
                                         .d_i = X("d"),
                                         .z_bsi = X("z"),
                                         .initial_state_bir = X("initial"),
                                         .seq_start_bs = c->seq_start };
    const kr_scan_out out = kr_selective_scan(c->t, &in);
    PUT("y", out.y_bsi), PUT("final", out.final_state);
}

static void conv(raw_case *c)
{
    const kr_conv_out out =
        kr_causal_conv(c->t, X("x"), X("weight"), X("bias"), X("window"), c->seq_start, c->options.silu);
    PUT("y", out.y_bsv), PUT("window_out", out.window_bvk);
}

static kr_norm_options norm_options(const raw_case *c)
{
    kr_norm_options o;
    kr_norm_options_init(&o);
    o.eps = c->options.eps;
    o.groups = c->options.n_groups;
    o.norm_before_gate = c->options.norm_first;
    return o;
}

static void norm(raw_case *c)
{
    const kr_norm_options o = norm_options(c);
    PUT("y", X("z") ? kr_gated_norm(c->t, X("x"), X("z"), X("gain"), &o) : kr_rms_norm(c->t, X("x"), X("gain"), &o));
}

static void layer_norm(raw_case *c)
{
    const kr_norm_options o = norm_options(c);
    PUT("y", kr_layer_norm(c->t, X("x"), X("gain"), X("bias"), &o));
}

static void trapezoid(raw_case *c)
{
    kr_trapezoid_options o;
    kr_trapezoid_options_init(&o);
    o.a_activation = c->options.softplus ? KR_A_ACTIVATION_SOFTPLUS : KR_A_ACTIVATION_HEAVY_TAIL;
    o.a_floor = c->options.a_floor;
    o.dt_min = c->options.dt_min;
    o.dt_max = c->options.dt_max;
    const kr_trapezoid_out out = kr_trapezoid(c->t, X("dt_raw"), X("dt_bias"), X("a_raw"), X("lambda_raw"), &o);
    PUT("dt", out.dt_bsh), PUT("da", out.da_bsh), PUT("gamma", out.gamma_bsh);
    PUT("carry", out.carry_bsh), PUT("beta", out.beta_bsh);
}

static void angles(raw_case *c)
{
    const kr_rotation_out out = kr_rotation_angles_chunked(c->t, X("theta"), X("dt"), X("initial"), c->options.range,
                                                           c->seq_start, c->options.chunk_len);
    PUT("angle", out.angle_bsha), PUT("final", out.final_bha);
}

static void quaternion_scan(raw_case *c)
{
    const kr_quaternion_out out =
        kr_quaternion_cumprod_chunked(c->t, X("q"), X("initial"), c->seq_start, c->options.chunk_len);
    PUT("cum", out.cum_bshj4), PUT("final", out.final_bhj4);
}

void run_on_tape(raw_case *c)
{
    switch (c->op) {
    case KR_RAW_SSD:
    case KR_RAW_SSD_ROTARY: ssd(c); break;
    case KR_RAW_SCAN: scan(c); break;
    case KR_RAW_CONV: conv(c); break;
    case KR_RAW_NORM: norm(c); break;
    case KR_RAW_LAYER_NORM: layer_norm(c); break;
    case KR_RAW_GATE: PUT("y", kr_gate(c->t, X("x"), X("z"))); break;
    case KR_RAW_TRAPEZOID: trapezoid(c); break;
    case KR_RAW_ANGLES: angles(c); break;
    case KR_RAW_ROTATE:
        PUT("y", kr_rotate_groups(c->t, X("x"), X("bias"), X("angle"),
                                  c->options.split_pairs ? KR_PAIRING_SPLIT : KR_PAIRING_ADJACENT));
        break;
    case KR_RAW_QUATERNION_EXP: PUT("q", kr_quaternion_increments(c->t, X("raw"), X("dt"), c->options.range)); break;
    case KR_RAW_QUATERNION_SCAN: quaternion_scan(c); break;
    case KR_RAW_QUATERNION_ROTATE: PUT("y", kr_quaternion_rotate(c->t, X("x"), X("cum"))); break;
    default: CHECK(false, "raw op %d has no op of a tape", (int)c->op);
    }
    CHECK_OK(kr_tape_ctx(c->t));
}
