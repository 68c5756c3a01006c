/* mamba3_infinite.c - steady state of a Mamba-3 block: the limit of its outputs for a constant input.
 *
 * With the token fixed, each step multiplies the state by alpha and rotates it by a fixed th. In the rotating frame
 *   y[m] = sum_m' <c[m], M b[m']> V[m'] + D V[m],   M = (gamma + beta e^-i th) / (1 - alpha e^-i th)
 * b and c before the rotation. With u = alpha e^-i th, beta = alpha carry and (1 + u) / (1 - u) = coth(-log(u) / 2):
 *   M = (gamma - carry) / 2 + dt / 2 coth((-da + i th) / 2)
 *   coth((-da + i th) / 2) = (1/t) (1 - i (1 - t^2) c r) / (c^2 + r^2),   t = tanh(-da / 2), c = cos(th/2), r = sin(th/2) / t
 * which stays accurate as alpha goes to 1 and th to 0. Entries without rotation have r = 0, c = 1. A quaternion e^(n f)
 * rotates by -f, with its axis n instead of i.
 */
#include "nn/mamba3_impl.h"

/* Parts of M without rotation, for each row and head [b h 1]. */
typedef struct limit {
    kr_tensor *t;
    kr_tensor *offset; /* (gamma - carry) / 2 */
    kr_tensor *mean;   /* dt / 2t */
} limit;

static limit limit_of(kr_tape *tape, const kr_mamba3 *m, const kr_mamba3_tokens *tokens)
{
    const kr_trapezoid_out *step = &tokens->step;
    const kr_shape shape = KR_SHAPE(tokens->nb, m->nh, 1);
    kr_tensor *offset = kr_scale(tape, kr_sub(tape, step->gamma_bsh, step->carry_bsh), 0.5);
    /* the floor avoids 0 / 0 for a step of 0 and keeps quotients finite; all other t are much larger */
    kr_tensor *t = kr_clamp(tape, kr_tanh(tape, kr_scale(tape, step->da_bsh, -0.5)), 1e-30, 1);
    kr_tensor *mean = kr_div(tape, kr_scale(tape, step->dt_bsh, 0.5), t);
    return (limit){ kr_reshape(tape, t, shape), kr_reshape(tape, offset, shape), kr_reshape(tape, mean, shape) };
}

static kr_tensor *square(kr_tape *tape, kr_tensor *x)
{
    return kr_mul(tape, x, x);
}

/* M of rotated entries: its real part, and (1 - t^2) c r / (..) without a sign. c [.. 1], r [.. k]: k imaginary
 * axes. */
static void rotated_parts(kr_tape *tape, const limit *l, kr_tensor *c, kr_tensor *r, kr_tensor **real, kr_tensor **imag)
{
    kr_tensor *size = kr_add(tape, square(tape, c), kr_sum(tape, square(tape, r), KR_AXES(-1), true));
    kr_tensor *share = kr_div(tape, l->mean, size);
    kr_tensor *rest = kr_affine(tape, square(tape, l->t), -1, 1);
    *real = kr_add(tape, share, l->offset);
    *imag = kr_mul(tape, kr_mul(tape, kr_mul(tape, share, c), rest), r);
}

/* [b h 1] with one more axis, to broadcast over the entries of a head. */
static limit for_each_rotation(kr_tape *tape, const kr_mamba3 *m, limit l, int64_t nb)
{
    const kr_shape shape = KR_SHAPE(nb, m->nh, 1, 1);
    return (limit){ kr_reshape(tape, l.t, shape), kr_reshape(tape, l.offset, shape), kr_reshape(tape, l.mean, shape) };
}

/* value [b h 1] for `count` pairs or blocks. */
static kr_tensor *repeated(kr_tape *tape, const kr_mamba3 *m, kr_tensor *value, int64_t nb, int64_t count)
{
    return kr_expand(tape, value, KR_SHAPE(nb, m->nh, count));
}

/* M b in pairs; [b m h 2 r/2] has the entries of a pair r/2 elements apart. */
static kr_tensor *weigh_pairs(kr_tape *tape, const kr_mamba3 *m, const kr_mamba3_tokens *tokens, const limit *l)
{
    const int64_t nb = tokens->nb, nh = m->nh, na = m->nrotated, npairs = m->config.state_rank / 2;
    const kr_rotation_out rotation =
        kr_rotation_angles(tape, tokens->rotation, tokens->step.dt_bsh, NULL, m->config.rotation_range / 2, NULL);
    kr_tensor *half = kr_reshape(tape, rotation.angle_bsha, KR_SHAPE(nb, nh, na, 1)), *real, *imag;
    const limit each = for_each_rotation(tape, m, *l, nb);
    rotated_parts(tape, &each, kr_cos(tape, half), kr_div(tape, kr_sin(tape, half), each.t), &real, &imag);
    real = kr_reshape(tape, real, KR_SHAPE(nb, nh, na));
    imag = kr_reshape(tape, imag, KR_SHAPE(nb, nh, na));
    kr_tensor *still = repeated(tape, m, kr_add(tape, l->mean, l->offset), nb, npairs - na);
    real = kr_concat(tape, 2, 2, (kr_tensor *[]){ real, still });
    imag = kr_pad(tape, kr_neg(tape, imag), 2, 0, npairs - na, 0);
    real = kr_reshape(tape, real, KR_SHAPE(nb, 1, nh, 1, npairs));
    imag = kr_reshape(tape, imag, KR_SHAPE(nb, 1, nh, 1, npairs));

    const bool halves = m->config.is_mimo;
    const kr_axes separated = KR_AXES(0, 1, 2, 4, 3);
    kr_tensor *b = kr_reshape(tape, tokens->b_bsmhr,
                              halves ? KR_SHAPE(nb, m->nm, nh, 2, npairs) : KR_SHAPE(nb, m->nm, nh, npairs, 2));
    if (!halves) b = kr_permute(tape, b, separated);
    kr_tensor *b0 = kr_slice(tape, b, 3, 0, 1), *b1 = kr_slice(tape, b, 3, 1, 2);
    kr_tensor *both[2] = { kr_sub(tape, kr_mul(tape, real, b0), kr_mul(tape, imag, b1)),
                           kr_add(tape, kr_mul(tape, imag, b0), kr_mul(tape, real, b1)) };
    kr_tensor *y = kr_concat(tape, 3, 2, both);
    return halves ? y : kr_permute(tape, y, separated);
}

/* M b in blocks of four. kr_quaternion_rotate multiplies by the conjugate, so it is given that of M. */
static kr_tensor *weigh_blocks(kr_tape *tape, const kr_mamba3 *m, const kr_mamba3_tokens *tokens, const limit *l)
{
    const int64_t nb = tokens->nb, nh = m->nh, nj = m->nrotated, nblocks = m->config.state_rank / 4;
    kr_tensor *half =
        kr_quaternion_increments(tape, tokens->rotation, tokens->step.dt_bsh, m->config.rotation_range / 2);
    kr_tensor *part[2], *real, *imag;
    kr_split(tape, kr_reshape(tape, half, KR_SHAPE(nb, nh, nj, 4)), -1, 2, (int64_t[]){ 1, 3 }, part);
    const limit each = for_each_rotation(tape, m, *l, nb);
    rotated_parts(tape, &each, part[0], kr_div(tape, part[1], each.t), &real, &imag);
    kr_tensor *rotary = kr_concat(tape, 3, 2, (kr_tensor *[]){ real, kr_neg(tape, imag) });
    kr_tensor *still = repeated(tape, m, kr_add(tape, l->mean, l->offset), nb, nblocks - nj);
    still = kr_pad(tape, kr_reshape(tape, still, KR_SHAPE(nb, nh, nblocks - nj, 1)), 3, 0, 3, 0);
    kr_tensor *all = kr_concat(tape, 2, 2, (kr_tensor *[]){ rotary, still });
    return kr_quaternion_rotate(tape, tokens->b_bsmhr, kr_reshape(tape, all, KR_SHAPE(nb, 1, nh, nblocks, 4)));
}

static kr_tensor *weigh(kr_tape *tape, const kr_mamba3 *m, const kr_mamba3_tokens *tokens, const limit *l)
{
    if (m->nrotated == 0) {
        kr_tensor *still = kr_reshape(tape, kr_add(tape, l->mean, l->offset), KR_SHAPE(tokens->nb, 1, 1, m->nh, 1));
        return kr_mul(tape, tokens->b_bsmhr, still);
    }
    return m->config.rotation == KR_ROTATION_QUATERNION ? weigh_blocks(tape, m, tokens, l)
                                                        : weigh_pairs(tape, m, tokens, l);
}

kr_tensor *kr_mamba3_infinite(kr_tape *tape, const void *block, kr_tensor *x_bd)
{
    const kr_mamba3 *m = block;
    kr_dims d;
    if (!kr_block_begin_token(tape, "mamba3.step_infinite", m, x_bd, &d)) return NULL;
    const int64_t nb = d.b, nm = m->nm, nh = m->nh, nr = m->config.state_rank, np = m->config.per_head_dim;
    const kr_shape bc_shape = KR_SHAPE(nb, nm, nh, nr);
    kr_mamba3_tokens tokens = kr_mamba3_project(tape, m, kr_reshape(tape, x_bd, KR_SHAPE(nb, 1, d.d)), nb, 1, false);
    tokens.b_bsmhr = kr_mamba3_maps(tape, m, tokens.b_bsmgr, m->b_gain_r, m->b_bias_hmr);
    tokens.c_bsmhr = kr_mamba3_maps(tape, m, tokens.c_bsmgr, m->c_gain_r, m->c_bias_hmr);
    const limit l = limit_of(tape, m, &tokens);
    kr_tensor *b_bmhr = kr_reshape(tape, weigh(tape, m, &tokens, &l), bc_shape),
              *c_bmhr = kr_reshape(tape, tokens.c_bsmhr, bc_shape);
    kr_tensor *v_bmhp = kr_reshape(tape, tokens.v_bsmhp, KR_SHAPE(nb, nm, nh, np));
    kr_tensor *cb_bhmm =
        kr_matmul(tape, kr_permute(tape, c_bmhr, KR_AXES(0, 2, 1, 3)), kr_permute(tape, b_bmhr, KR_AXES(0, 2, 3, 1)));
    kr_tensor *y_bhmp = kr_matmul(tape, cb_bhmm, kr_permute(tape, v_bmhp, KR_AXES(0, 2, 1, 3)));
    kr_tensor *y_bsmhp = kr_reshape(tape, kr_permute(tape, y_bhmp, KR_AXES(0, 2, 1, 3)), KR_SHAPE(nb, 1, nm, nh, np));
    y_bsmhp = kr_mamba3_add_skip(tape, m, y_bsmhp, tokens.v_bsmhp);
    return kr_reshape(tape, kr_mamba3_finish(tape, m, y_bsmhp, &tokens), KR_SHAPE(nb, d.d));
}
