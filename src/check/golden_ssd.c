/* golden_ssd.c - the state space core of Mamba-2: whole sequences by each algorithm, and one token.
 *
 *   ssd_minimal   X [b s h p] (x dt), A [b s h] (log-decay), B, C [b s h r]
 *   ssd_combined  x [b s h p], dt [b s h], A [h], B, C [b s g r], D [h] or [h p], z [b s h p]
 *   state_update  state [b h p r], x [b h p], dt [b h] or [b h p], A [h] or [h p r], B, C [b g r], D, dt_bias [h] or
 *                 [h p]; or without heads: state [b i r], x, dt [b i], A [i r], B, C [b r], D, dt_bias [i]
 */
#include "check/golden.h"

/* The file's chunk length; without one, a length with a ragged last chunk. */
static kr_ssd_path path_of(const golden_run *run, int algorithm)
{
    const kr_json *length = golden_setting(run, "block_len");
    if (!length) length = golden_setting(run, "chunk_size");
    return (kr_ssd_path){ (kr_ssd_algorithm)algorithm, kr_json_integer(length, 7) };
}

/* The core alone takes a log-decay as it is in the form that Mamba-3 uses, with one rank. */
void golden_ssd_minimal(golden_run *run)
{
    kr_tape *t = run->tape;
    kr_tensor *x_bshp = golden_in(run, "X"), *b_bshr = golden_in(run, "B"), *c_bshr = golden_in(run, "C");
    const int64_t nb = kr_tensor_dim(x_bshp, 0), ns = kr_tensor_dim(x_bshp, 1), nh = kr_tensor_dim(x_bshp, 2);
    const kr_mamba3_double_ssd_input in = { .v_bsmhp = kr_reshape(t, x_bshp, KR_SHAPE(nb, ns, 1, nh, -1)),
                                            .da_bsh = golden_in(run, "A"),
                                            .b_bsmhr = kr_reshape(t, b_bshr, KR_SHAPE(nb, ns, 1, nh, -1)),
                                            .c_bsmhr = kr_reshape(t, c_bshr, KR_SHAPE(nb, ns, 1, nh, -1)),
                                            .initial_state_bhpr = golden_in_if(run, "initial_states") };
    const kr_ssd_out out = kr_mamba3_double_ssd_run(t, &in, path_of(run, run->variant));
    golden_out(run, "Y", kr_reshape(t, out.y, KR_SHAPE(nb, ns, nh, -1)));
    golden_out(run, "final_state", out.final_state);
}

/* x with axes of size 1 behind its own, up to `rank`. */
static kr_tensor *widened(kr_tape *t, kr_tensor *x, int rank)
{
    kr_shape shape = kr_tensor_shape(x);
    while (shape.rank < rank) shape.dims[shape.rank++] = 1;
    return kr_reshape(t, x, shape);
}

/* `of_channels`: dt is [b h p], and its bias [h] or [h p]. */
static kr_tensor *step_of(golden_run *run, bool of_channels)
{
    kr_tensor *dt = golden_in(run, "dt"), *bias = golden_in_if(run, "dt_bias");
    if (bias) dt = kr_add(run->tape, dt, of_channels ? widened(run->tape, bias, 2) : bias);
    return kr_json_bool(golden_setting(run, "dt_softplus"), false) ? kr_softplus(run->tape, dt) : dt;
}

static kr_tensor *gated(golden_run *run, kr_tensor *y)
{
    kr_tensor *z = golden_in_if(run, "z");
    return z ? kr_mul(run->tape, y, kr_silu(run->tape, z)) : y;
}

/* y + D x where D has a weight for every channel of a head. */
static kr_tensor *with_skip(kr_tape *t, kr_tensor *y, kr_tensor *d_hp, kr_tensor *x)
{
    return kr_add(t, y, kr_mul(t, d_hp, x));
}

void golden_ssd_combined(golden_run *run)
{
    kr_tensor *x_bshp = golden_in(run, "x"), *d = golden_in_if(run, "D");
    const bool d_of_head = d && kr_tensor_rank(d) == 1;
    const kr_mamba2_ssd_input in = { .x_bshp = x_bshp,
                                     .dt_bsh = step_of(run, false),
                                     .a_decay_h = golden_in(run, "A"),
                                     .b_bsgr = golden_in(run, "B"),
                                     .c_bsgr = golden_in(run, "C"),
                                     .d_h = d_of_head ? d : NULL,
                                     .initial_state_bhpr = golden_in_if(run, "initial_states") };
    const kr_ssd_out out = kr_mamba2_ssd_run(run->tape, &in, path_of(run, run->variant));
    golden_out(run, "y", gated(run, d && !d_of_head ? with_skip(run->tape, out.y, d, x_bshp) : out.y));
    golden_out(run, "final_state", out.final_state);
}

/* ---- one token ---- */

/* B or C of the groups, [b g r], for each head: [b h 1 r]. */
static kr_tensor *for_heads(kr_tape *t, kr_tensor *b_bgr, int64_t nh)
{
    const int64_t nb = kr_tensor_dim(b_bgr, 0), ng = kr_tensor_dim(b_bgr, 1), nr = kr_tensor_dim(b_bgr, 2);
    if (ng < 1) return NULL;
    kr_tensor *wide = kr_expand(t, kr_reshape(t, b_bgr, KR_SHAPE(nb, ng, 1, nr)), KR_SHAPE(nb, ng, nh / ng, nr));
    return kr_reshape(t, wide, KR_SHAPE(nb, nh, 1, nr));
}

/* The recurrence as it is written: state' = exp(dt A) state + dt x B;  y = sum_r state' C + D x. */
static void update_by_ops(golden_run *run)
{
    kr_tape *t = run->tape;
    kr_tensor *state = golden_in(run, "state"), *x = golden_in(run, "x"), *d = golden_in_if(run, "D");
    kr_tensor *b = golden_in(run, "B"), *c = golden_in(run, "C"), *a = golden_in(run, "A");
    const int rank = kr_tensor_rank(state);
    const bool has_heads = rank == 4;
    kr_tensor *dt = step_of(run, has_heads && kr_tensor_rank(golden_in(run, "dt")) == 3);
    const int64_t nb = kr_tensor_dim(state, 0), nh = kr_tensor_dim(state, 1), nr = kr_tensor_dim(state, -1);
    b = has_heads ? for_heads(t, b, nh) : kr_reshape(t, b, KR_SHAPE(nb, 1, nr));
    c = has_heads ? for_heads(t, c, nh) : kr_reshape(t, c, KR_SHAPE(nb, 1, nr));
    dt = widened(t, dt, rank);
    kr_tensor *decay = kr_exp(t, kr_mul(t, dt, widened(t, a, rank - 1)));
    kr_tensor *entered = kr_mul(t, kr_mul(t, dt, widened(t, x, rank)), b);
    state = kr_add(t, kr_mul(t, decay, state), entered);
    kr_tensor *y = kr_sum(t, kr_mul(t, state, c), KR_AXES(-1), false);
    if (d) y = with_skip(t, y, widened(t, d, rank - 2), x);
    golden_out(run, "y", gated(run, y));
    golden_out(run, "new_state", state);
}

/* The same as a sequence of one token, where step, decay and skip are those of a head. */
static void update_by_core(golden_run *run)
{
    kr_tape *t = run->tape;
    kr_tensor *x = golden_in(run, "x"), *state = golden_in(run, "state"), *dt = step_of(run, false);
    kr_tensor *b = golden_in(run, "B"), *c = golden_in(run, "C");
    const int64_t nb = kr_tensor_dim(x, 0), nh = kr_tensor_dim(x, 1), ng = kr_tensor_dim(b, 1);
    const kr_mamba2_ssd_input in = { .x_bshp = kr_reshape(t, x, KR_SHAPE(nb, 1, nh, -1)),
                                     .dt_bsh = kr_reshape(t, dt, KR_SHAPE(nb, 1, nh)),
                                     .a_decay_h = golden_in(run, "A"),
                                     .b_bsgr = kr_reshape(t, b, KR_SHAPE(nb, 1, ng, -1)),
                                     .c_bsgr = kr_reshape(t, c, KR_SHAPE(nb, 1, ng, -1)),
                                     .d_h = golden_in_if(run, "D"),
                                     .initial_state_bhpr = state };
    const kr_ssd_out out = kr_mamba2_ssd_run(t, &in, path_of(run, run->variant - 1));
    golden_out(run, "y", gated(run, kr_reshape(t, out.y, KR_SHAPE(nb, nh, -1))));
    golden_out(run, "new_state", out.final_state);
}

void golden_state_update(golden_run *run)
{
    const kr_tensor *dt = golden_in(run, "dt"), *a = golden_in(run, "A"), *d = golden_in_if(run, "D");
    const bool of_heads = kr_tensor_rank(golden_in(run, "state")) == 4 && kr_tensor_rank(dt) == 2 &&
                          kr_tensor_rank(a) == 1 && kr_tensor_rank(d) <= 1;
    if (run->variant == 0 || !of_heads) update_by_ops(run);
    else update_by_core(run);
}
