/* golden_mamba3.c - Mamba-3's core and the steps around it: bias, rotation, trapezoidal rule, skip, gate, ranks.
 *
 *   Q, K       [b s g r] or [b s m g r]   C and B           Q_bias, K_bias   [h r] or [h m r]
 *   V, Z       [b s h p]                  input and gate    MIMO_V, _Z, _O   [h m p]
 *   ADT, DT, Trap  [b h s]                log-decay, step, lambda before its sigmoid
 *   Angles     [b s h a]                  theta_t = theta_{t-1} + DT_t pi tanh(Angles_t)
 *   D [h], norm_weight [h p]
 *
 * A pass computes some tokens from the state after the tokens before them; a whole sequence is one pass, and so is a
 * step. If a row holds q sequences, states are [q ..] instead of [b ..]; one pass computes all, or each has its own.
 */
#include "check/golden.h"

#include <stdio.h>

/* Single and double, by each algorithm: the variants of a kind, once or once for each manner of passes. */
enum { NPATHWAYS = 6 };

/* State between passes, for each row or sequence; members are NULL before the first token. */
typedef struct carried {
    kr_tensor *state_bhpr, *k_bmhr, *v_bmhp, *angle_bha;
} carried;

typedef struct sizes {
    int64_t nb, ns, nm, nh, np, nr, na;
    int64_t nq; /* sequences of a row, each with its own states */
} sizes;

/* The sequences of the one row, as ops want them; integers. */
typedef struct marks {
    kr_tensor *start_bs;         /* 1 where one begins */
    kr_tensor *number_s;         /* which one a token is of */
    kr_tensor *first_q, *last_q; /* its first and last token */
} marks;

typedef struct block {
    golden_run *run;
    kr_tape *tape;
    sizes n;
    bool is_mimo;
    kr_pairing pairing;
    marks packed;                 /* members are NULL where a pass computes one sequence of each row */
    kr_tensor *v_bsmhp;           /* with MIMO_V */
    kr_tensor *k_bsmhr, *q_bsmhr; /* with bias, before the rotation */
    kr_tensor *da_bsh, *dt_bsh, *gamma_bsh, *carry_bsh;
} block;

static kr_tensor *time_before_heads(golden_run *run, const char *name)
{
    return kr_permute(run->tape, golden_in(run, name), KR_AXES(0, 2, 1));
}

/* [h m ..] -> [m h ..], or [h ..] -> [1 h ..]. */
static kr_tensor *rank_first(const block *o, kr_tensor *x)
{
    if (o->is_mimo) return kr_permute(o->tape, x, KR_AXES(1, 0, 2));
    return kr_reshape(o->tape, x, KR_SHAPE(1, o->n.nh, -1));
}

/* Each group's rows to its heads, then the head's bias: [b s m h r]. */
static kr_tensor *to_heads(const block *o, const char *name, const char *bias)
{
    const sizes *n = &o->n;
    kr_tensor *x = golden_in(o->run, name);
    const int64_t ng = kr_tensor_dim(x, -2);
    if (!x || ng < 1) return NULL;
    x = kr_reshape(o->tape, x, KR_SHAPE(n->nb, n->ns, n->nm, ng, 1, n->nr));
    x = kr_expand(o->tape, x, KR_SHAPE(n->nb, n->ns, n->nm, ng, n->nh / ng, n->nr));
    x = kr_reshape(o->tape, x, KR_SHAPE(n->nb, n->ns, n->nm, n->nh, n->nr));
    return kr_add(o->tape, x, rank_first(o, golden_in(o->run, bias)));
}

static block block_of(golden_run *run, bool is_mimo, kr_pairing pairing)
{
    kr_tape *t = run->tape;
    kr_tensor *v_bshp = golden_in(run, "V"), *k = golden_in(run, "K"), *angles = golden_in(run, "Angles");
    block o = { .run = run, .tape = t, .is_mimo = is_mimo, .pairing = pairing };
    o.n = (sizes){ .nb = kr_tensor_dim(v_bshp, 0),
                   .ns = kr_tensor_dim(v_bshp, 1),
                   .nm = is_mimo ? kr_tensor_dim(k, 2) : 1,
                   .nh = kr_tensor_dim(v_bshp, 2),
                   .np = kr_tensor_dim(v_bshp, 3),
                   .nr = kr_tensor_dim(k, -1),
                   .na = kr_tensor_dim(angles, -1),
                   .nq = 1 };
    o.v_bsmhp = kr_reshape(t, v_bshp, KR_SHAPE(o.n.nb, o.n.ns, 1, o.n.nh, o.n.np));
    if (is_mimo) o.v_bsmhp = kr_mul(t, o.v_bsmhp, rank_first(&o, golden_in(run, "MIMO_V")));
    o.k_bsmhr = to_heads(&o, "K", "K_bias");
    o.q_bsmhr = to_heads(&o, "Q", "Q_bias");
    o.da_bsh = time_before_heads(run, "ADT");
    o.dt_bsh = time_before_heads(run, "DT");
    o.gamma_bsh = kr_mul(t, o.dt_bsh, kr_sigmoid(t, time_before_heads(run, "Trap")));
    o.carry_bsh = kr_sub(t, o.dt_bsh, o.gamma_bsh);
    return o;
}

/* ---- a pass over tokens from .. to - 1 ---- */

static kr_tensor *tokens(const block *o, kr_tensor *x, int64_t from, int64_t to)
{
    return kr_slice(o->tape, x, 1, from, to);
}

/* x of one token of each row, or, where sequences are packed, of token number at_q[q] of each: [b ..] or [q ..]. */
static kr_tensor *token(const block *o, kr_tensor *x, int64_t at, kr_tensor *at_q)
{
    kr_shape shape = kr_tensor_shape(x);
    const int64_t ns = shape.dims[1];
    for (int axis = 1; axis + 1 < shape.rank; axis++) shape.dims[axis] = shape.dims[axis + 1];
    if (shape.rank > 0) shape.rank--;
    if (!at_q) return kr_reshape(o->tape, tokens(o, x, at, at + 1), shape);
    shape.dims[0] = o->n.nq; /* of the one row */
    return kr_reshape(o->tape, kr_embedding(o->tape, kr_reshape(o->tape, x, KR_SHAPE(ns, -1)), at_q), shape);
}

static kr_tensor *first_token(const block *o, kr_tensor *x)
{
    return token(o, x, 0, o->packed.first_q);
}

static kr_tensor *last_token(const block *o, kr_tensor *x)
{
    return token(o, x, kr_tensor_dim(x, 1) - 1, o->packed.last_q);
}

/* Angles differ from head to head here; the op's are shared by heads, so every head is a batch row to it, and a row's
 * sequences follow one another. */
static kr_rotation_out angles_of(const block *o, const carried *before, int64_t from, int64_t to)
{
    kr_tape *t = o->tape;
    const int64_t nb = o->n.nb, nh = o->n.nh, na = o->n.na, nq = o->n.nq, rows = nb * nh, ns = to - from;
    kr_tensor *theta = kr_permute(t, tokens(o, golden_in(o->run, "Angles"), from, to), KR_AXES(0, 2, 1, 3));
    kr_tensor *dt = kr_permute(t, tokens(o, o->dt_bsh, from, to), KR_AXES(0, 2, 1));
    kr_tensor *initial = before->angle_bha, *start = o->packed.start_bs;
    if (initial) initial = kr_permute(t, kr_reshape(t, initial, KR_SHAPE(nb, nq, nh, na)), KR_AXES(0, 2, 1, 3));
    if (initial) initial = kr_reshape(t, initial, KR_SHAPE(rows * nq, 1, na));
    if (start) start = kr_expand(t, start, KR_SHAPE(rows, ns));
    kr_rotation_out rotation = kr_rotation_angles(t, kr_reshape(t, theta, KR_SHAPE(rows, ns, na)),
                                                  kr_reshape(t, dt, KR_SHAPE(rows, ns, 1)), initial, 1, start);
    kr_tensor *angle_bhsa = kr_reshape(t, rotation.angle_bsha, KR_SHAPE(nb, nh, ns, na));
    kr_tensor *final = kr_permute(t, kr_reshape(t, rotation.final_bha, KR_SHAPE(nb, nh, nq, na)), KR_AXES(0, 2, 1, 3));
    return (kr_rotation_out){ .angle_bsha = kr_permute(t, angle_bhsa, KR_AXES(0, 2, 1, 3)),
                              .final_bha = kr_reshape(t, final, KR_SHAPE(nb * nq, nh, na)) };
}

/* x [1 s ..] one token earlier in each of several sequences; the carried value (or 0) is the first of a sequence. */
static kr_tensor *delayed_packed(const block *o, kr_tensor *x, kr_tensor *first_q)
{
    kr_tape *t = o->tape;
    const kr_shape shape = kr_tensor_shape(x);
    const int64_t ns = shape.dims[1];
    kr_tensor *shifted = kr_pad(t, tokens(o, x, 0, ns - 1), 1, 1, 0, 0);
    kr_tensor *head = kr_zeros(t, o->run->dtype, KR_SHAPE(1));
    if (first_q) {
        kr_tensor *of_tokens = kr_embedding(t, kr_reshape(t, first_q, KR_SHAPE(o->n.nq, -1)), o->packed.number_s);
        head = kr_reshape(t, of_tokens, shape);
    }
    return kr_where(t, kr_reshape(t, o->packed.start_bs, KR_SHAPE(1, ns, 1, 1, 1)), head, shifted);
}

/* One token earlier: the carried value (or 0) first, without the last one. */
static kr_tensor *delayed(const block *o, kr_tensor *x, kr_tensor *first)
{
    const kr_shape shape = kr_tensor_shape(x);
    const int64_t ns = shape.dims[1];
    if (o->packed.start_bs) return delayed_packed(o, x, first);
    if (!first) return kr_pad(o->tape, tokens(o, x, 0, ns - 1), 1, 1, 0, 0);
    kr_tensor *head =
        kr_reshape(o->tape, first, KR_SHAPE(shape.dims[0], 1, shape.dims[2], shape.dims[3], shape.dims[4]));
    return ns == 1 ? head : kr_concat(o->tape, 1, 2, (kr_tensor *[]){ head, tokens(o, x, 0, ns - 1) });
}

/* [b s h] against [b s m h p]. */
static kr_tensor *weighted(const block *o, kr_tensor *x_bsmhp, kr_tensor *w_bsh)
{
    const int64_t ns = kr_tensor_dim(w_bsh, 1);
    return kr_mul(o->tape, x_bsmhp, kr_reshape(o->tape, w_bsh, KR_SHAPE(o->n.nb, ns, 1, o->n.nh, 1)));
}

typedef struct core {
    kr_tensor *v, *k, *q, *da, *gamma, *carry; /* of a pass */
    kr_ssd_path path;
} core;

static kr_ssd_out run_single(const block *o, const core *c, const carried *before)
{
    kr_tensor *state = before->state_bhpr;
    if (before->k_bmhr)
        state = kr_boundary_state(o->tape, state, first_token(o, c->carry), before->v_bmhp, before->k_bmhr);
    const kr_mamba3_single_ssd_input in = { .v_bsmhp = c->v,
                                            .b_bsmhr = c->k,
                                            .c_bsmhr = c->q,
                                            .da_bsh = c->da,
                                            .gamma_bsh = c->gamma,
                                            .scale_bsh =
                                                kr_trapezoid_scale(o->tape, c->gamma, c->carry, o->packed.start_bs),
                                            .initial_state_bhpr = state,
                                            .seq_start_bs = o->packed.start_bs };
    return kr_mamba3_single_ssd_run(o->tape, &in, c->path);
}

static kr_ssd_out run_double(const block *o, const core *c, const carried *before)
{
    kr_tape *t = o->tape;
    kr_tensor *beta = kr_mul(t, c->carry, kr_exp(t, c->da));
    const kr_mamba3_double_ssd_input now = { .v_bsmhp = weighted(o, c->v, c->gamma),
                                             .da_bsh = c->da,
                                             .b_bsmhr = c->k,
                                             .c_bsmhr = c->q,
                                             .initial_state_bhpr = before->state_bhpr,
                                             .seq_start_bs = o->packed.start_bs };
    const kr_mamba3_double_ssd_input last = { .v_bsmhp = weighted(o, delayed(o, c->v, before->v_bmhp), beta),
                                              .da_bsh = c->da,
                                              .b_bsmhr = delayed(o, c->k, before->k_bmhr),
                                              .c_bsmhr = c->q,
                                              .seq_start_bs = o->packed.start_bs };
    const kr_ssd_out a = kr_mamba3_double_ssd_run(t, &now, c->path), b = kr_mamba3_double_ssd_run(t, &last, c->path);
    return (kr_ssd_out){ .y = kr_add(t, a.y, b.y), .final_state = kr_add(t, a.final_state, b.final_state) };
}

/* y [b s m h p] of the tokens, the skip included; the carried state is replaced. */
static kr_tensor *pass(const block *o, carried *state, int64_t from, int64_t to)
{
    enum { NALGORITHMS = 3 };
    kr_tape *t = o->tape;
    const int pathway = o->run->variant % NPATHWAYS;
    const kr_rotation_out rotation = angles_of(o, state, from, to);
    const core c = { .v = tokens(o, o->v_bsmhp, from, to),
                     .k = kr_rotate(t, tokens(o, o->k_bsmhr, from, to), rotation.angle_bsha, o->pairing),
                     .q = kr_rotate(t, tokens(o, o->q_bsmhr, from, to), rotation.angle_bsha, o->pairing),
                     .da = tokens(o, o->da_bsh, from, to),
                     .gamma = tokens(o, o->gamma_bsh, from, to),
                     .carry = tokens(o, o->carry_bsh, from, to),
                     .path = { (kr_ssd_algorithm)(pathway % NALGORITHMS),
                               kr_json_integer(golden_setting(o->run, "chunk_size"), 7) } };
    const kr_ssd_out out = pathway < NALGORITHMS ? run_single(o, &c, state) : run_double(o, &c, state);
    *state = (carried){ .state_bhpr = out.final_state,
                        .k_bmhr = last_token(o, c.k),
                        .v_bmhp = last_token(o, c.v),
                        .angle_bha = rotation.final_bha };
    kr_tensor *d = golden_in_if(o->run, "D");
    return d ? kr_add(t, out.y, kr_mul(t, c.v, kr_reshape(t, d, KR_SHAPE(o->n.nh, 1)))) : out.y;
}

/* Token by token. */
static kr_tensor *all_steps(const block *o, carried *state)
{
    kr_tensor **y = check_alloc(kr_tape_ctx(o->tape), ((size_t)o->n.ns + 1) * sizeof *y);
    if (!y) return NULL;
    for (int64_t s = 0; s < o->n.ns; s++) y[s] = pass(o, state, s, s + 1);
    kr_tensor *joined = kr_concat(o->tape, 1, (int)o->n.ns, y);
    check_free(y);
    return joined;
}

/* ---- kinds ---- */

/* [b s m h p] -> [b s h p]: norm, gate, and the sum over ranks. */
static kr_tensor *merged(const block *o, kr_tensor *y)
{
    kr_tape *t = o->tape;
    const sizes *n = &o->n;
    kr_tensor *z = golden_in_if(o->run, "Z"), *gain_hp = golden_in_if(o->run, "norm_weight");
    if (gain_hp && kr_json_bool(golden_setting(o->run, "fused_norm"), false)) {
        kr_norm_options options;
        kr_norm_options_init(&options);
        options.eps = kr_json_number(golden_setting(o->run, "outproj_norm_eps"), options.eps);
        y = kr_mul(t, kr_rms_norm(t, y, NULL, &options), gain_hp);
    }
    if (z) {
        z = kr_reshape(t, z, KR_SHAPE(n->nb, n->ns, 1, n->nh, n->np));
        if (o->is_mimo) z = kr_mul(t, z, rank_first(o, golden_in(o->run, "MIMO_Z")));
        y = kr_mul(t, y, kr_silu(t, z));
    }
    if (o->is_mimo) y = kr_mul(t, y, rank_first(o, golden_in(o->run, "MIMO_O")));
    return kr_sum(t, y, KR_AXES(2), false);
}

/* States of one rank, [b h ..], or of several with the head first, [b h m ..], as [b m h ..]. */
static carried states_of(const block *o)
{
    kr_tensor *k = golden_in_if(o->run, "K_State"), *v = golden_in_if(o->run, "V_State");
    const sizes *n = &o->n;
    const kr_axes order = KR_AXES(0, 2, 1, 3);
    return (carried){
        .state_bhpr = golden_in_if(o->run, "SSM_State"),
        .k_bmhr = k ? kr_permute(o->tape, kr_reshape(o->tape, k, KR_SHAPE(-1, n->nh, n->nm, n->nr)), order) : NULL,
        .v_bmhp = v ? kr_permute(o->tape, kr_reshape(o->tape, v, KR_SHAPE(-1, n->nh, n->nm, n->np)), order) : NULL,
        .angle_bha = golden_in_if(o->run, "Angle_State"),
    };
}

/* Final states with the head first; [b h ..] where there is one rank. */
static void output_states(const block *o, const carried *state)
{
    const sizes *n = &o->n;
    kr_tensor *k = kr_permute(o->tape, state->k_bmhr, KR_AXES(0, 2, 1, 3));
    kr_tensor *v = kr_permute(o->tape, state->v_bmhp, KR_AXES(0, 2, 1, 3));
    golden_out_angle(o->run, "final_angle", state->angle_bha);
    golden_out(o->run, "final_ssm", state->state_bhpr);
    golden_out(o->run, "final_k", o->is_mimo ? k : kr_reshape(o->tape, k, KR_SHAPE(-1, n->nh, n->nr)));
    golden_out(o->run, "final_v", o->is_mimo ? v : kr_reshape(o->tape, v, KR_SHAPE(-1, n->nh, n->np)));
}

static void siso(golden_run *run, bool by_steps)
{
    const block o = block_of(run, false, KR_PAIRING_ADJACENT);
    carried state = states_of(&o);
    golden_out(run, "y", merged(&o, by_steps ? all_steps(&o, &state) : pass(&o, &state, 0, o.n.ns)));
    output_states(&o, &state);
}

void golden_mamba3_siso(golden_run *run)
{
    siso(run, false);
}

void golden_mamba3_siso_step(golden_run *run)
{
    siso(run, true);
}

/* ---- several sequences in one row ---- */

static marks marks_of(kr_tape *t, const golden_sequences *s)
{
    const int64_t ns = s->from[s->count], nq = s->count;
    int64_t *numbers = check_alloc(kr_tape_ctx(t), ((size_t)(2 * ns + 2 * nq)) * sizeof *numbers);
    if (!numbers) return (marks){ 0 };
    int64_t *start = numbers, *number = start + ns, *first = number + ns, *last = first + nq;
    for (int64_t q = 0; q < nq; q++) {
        first[q] = s->from[q];
        last[q] = s->from[q + 1] - 1;
        start[first[q]] = 1;
        for (int64_t i = first[q]; i <= last[q]; i++) number[i] = q;
    }
    const marks m = { .start_bs = kr_from_data(t, KR_DTYPE_I64, KR_SHAPE(1, ns), start),
                      .number_s = kr_from_data(t, KR_DTYPE_I64, KR_SHAPE(ns), number),
                      .first_q = kr_from_data(t, KR_DTYPE_I64, KR_SHAPE(nq), first),
                      .last_q = kr_from_data(t, KR_DTYPE_I64, KR_SHAPE(nq), last) };
    check_free(numbers);
    return m;
}

static kr_tensor *state_at(const block *o, kr_tensor *x, int64_t q)
{
    return x ? kr_slice(o->tape, x, 0, q, q + 1) : NULL;
}

/* A pass for each sequence; their tokens and states one after another. */
static kr_tensor *one_by_one(const block *all, const golden_sequences *s, carried *state)
{
    enum { Y, STATE, K, V, ANGLE, NPARTS };
    kr_tape *t = all->tape;
    const int64_t nq = s->count;
    kr_tensor **parts = check_alloc(kr_tape_ctx(t), ((size_t)(NPARTS * nq)) * sizeof *parts), *joined[NPARTS];
    if (!parts) return NULL;
    block o = *all;
    o.n.nq = 1;
    for (int64_t q = 0; q < nq; q++) {
        carried one = { state_at(&o, state->state_bhpr, q), state_at(&o, state->k_bmhr, q),
                        state_at(&o, state->v_bmhp, q), state_at(&o, state->angle_bha, q) };
        parts[Y * nq + q] = pass(&o, &one, s->from[q], s->from[q + 1]);
        parts[STATE * nq + q] = one.state_bhpr;
        parts[K * nq + q] = one.k_bmhr;
        parts[V * nq + q] = one.v_bmhp;
        parts[ANGLE * nq + q] = one.angle_bha;
    }
    for (int i = 0; i < NPARTS; i++) joined[i] = kr_concat(t, i == Y ? 1 : 0, (int)nq, parts + i * nq);
    check_free(parts);
    *state = (carried){ joined[STATE], joined[K], joined[V], joined[ANGLE] };
    return joined[Y];
}

void golden_mamba3_siso_varlen(golden_run *run)
{
    block o = block_of(run, false, KR_PAIRING_ADJACENT);
    golden_sequences s;
    if (o.n.nb != 1) {
        if (!run->trouble[0]) snprintf(run->trouble, sizeof run->trouble, "cu_seqlens: all sequences are in one row");
        return;
    }
    if (!golden_sequences_read(run, o.n.ns, &s)) return;
    o.n.nq = s.count;
    carried state = states_of(&o);
    const bool is_packed = run->variant < NPATHWAYS;
    if (is_packed) o.packed = marks_of(o.tape, &s);
    golden_out(run, "y", merged(&o, is_packed ? pass(&o, &state, 0, o.n.ns) : one_by_one(&o, &s, &state)));
    output_states(&o, &state);
    golden_sequences_free(&s);
}

void golden_mamba3_mimo(golden_run *run)
{
    const bool adjacent = kr_json_bool(golden_setting(run, "rotate_pairwise"), false);
    const block o = block_of(run, true, adjacent ? KR_PAIRING_ADJACENT : KR_PAIRING_SPLIT);
    carried state = { 0 };
    golden_out(run, "y", merged(&o, pass(&o, &state, 0, o.n.ns)));
    golden_out(run, "final_k", state.k_bmhr);
    golden_out(run, "final_ssm_kp", kr_transpose(run->tape, state.state_bhpr));
}

void golden_mamba3_mimo_step(golden_run *run)
{
    const block o = block_of(run, true, KR_PAIRING_ADJACENT);
    carried state = states_of(&o);
    golden_out(run, "y", merged(&o, all_steps(&o, &state)));
    output_states(&o, &state);
}
