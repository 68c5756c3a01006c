/* sanity.c - names the first NaN, infinity or growing decay among the operands of an input. */
#include "device/device.h"
#include "mixer/core.h"

#include <math.h>

typedef struct operand {
    const char *name;
    kr_tensor *x;
    bool is_decay; /* must not be above 0 */
} operand;

static void name_element(kr_tape *tape, const char *op, const operand *o, int64_t flat, double value)
{
    char index[KR_SHAPE_TEXT_BYTES];
    kr_fail(tape->ctx, KR_ERR_NUMERIC, "%s: %s %s holds %g at %s%s", op, o->name, KR_TEXT_OF(o->x), value,
            kr_index_text(o->x, flat, index, sizeof index),
            isfinite(value) ? ", a log-decay above 0: the state grows" : "");
}

typedef struct looking {
    kr_tape *tape;
    const char *op;
    const operand *o;
} looking;

static bool look(void *user, int64_t first, const double *values, int64_t count)
{
    const looking *l = user;
    for (int64_t i = 0; i < count; i++) {
        if (isfinite(values[i]) && !(l->o->is_decay && values[i] > 0)) continue;
        name_element(l->tape, l->op, l->o, first + i, values[i]);
        return false;
    }
    return true;
}

static bool operand_is_sane(kr_tape *tape, const char *op, const operand *o)
{
    return !o->x || (kr_bind_any(tape, op, o->x) && kr_each_value(o->x, look, &(looking){ tape, op, o }));
}

static kr_status sanity(kr_tape *tape, const char *op, int count, const operand *operands)
{
    if (!tape) return KR_ERR_ARG;
    if (!kr_tape_ready(tape, op)) return tape->ctx->status;
    kr_scope scope = kr_no_grad_begin(tape);
    for (int i = 0; i < count; i++)
        if (!operand_is_sane(tape, op, &operands[i])) break;
    kr_no_grad_end(tape, scope, 0, NULL);
    return tape->ctx->status;
}

static kr_status no_input(kr_tape *tape, const char *op)
{
    if (!tape) return KR_ERR_ARG;
    if (kr_tape_ready(tape, op)) kr_fail(tape->ctx, KR_ERR_ARG, "%s: the input is NULL", op);
    return tape->ctx->status;
}

#define SANITY(tape, op, ...)                                                                                          \
    sanity((tape), (op), (int)(sizeof((operand[]){ __VA_ARGS__ }) / sizeof(operand)), (operand[]){ __VA_ARGS__ })

static kr_status mamba2_sanity(kr_tape *tape, const kr_mamba2_ssd_input *in)
{
    if (!in) return no_input(tape, "mamba2_ssd_sanity");
    return SANITY(tape, "mamba2_ssd_sanity", { "x", in->x_bshp, false }, { "dt", in->dt_bsh, false },
                  { "a_decay", in->a_decay_h, true }, { "b", in->b_bsgr, false }, { "c", in->c_bsgr, false },
                  { "d", in->d_h, false }, { "initial_state", in->initial_state_bhpr, false },
                  { "learned_init", in->learned_init_hpr, false });
}

static kr_status mamba3_double_sanity(kr_tape *tape, const kr_mamba3_double_ssd_input *in)
{
    if (!in) return no_input(tape, "mamba3_double_ssd_sanity");
    return SANITY(tape, "mamba3_double_ssd_sanity", { "v", in->v_bsmhp, false }, { "da", in->da_bsh, true },
                  { "b", in->b_bsmhr, false }, { "c", in->c_bsmhr, false }, { "d", in->d_h, false },
                  { "initial_state", in->initial_state_bhpr, false }, { "learned_init", in->learned_init_hpr, false });
}

static kr_status mamba3_single_sanity(kr_tape *tape, const kr_mamba3_single_ssd_input *in)
{
    if (!in) return no_input(tape, "mamba3_single_ssd_sanity");
    return SANITY(tape, "mamba3_single_ssd_sanity", { "v", in->v_bsmhp, false }, { "b", in->b_bsmhr, false },
                  { "c", in->c_bsmhr, false }, { "da", in->da_bsh, true }, { "gamma", in->gamma_bsh, false },
                  { "scale", in->scale_bsh, false }, { "d", in->d_h, false },
                  { "initial_state", in->initial_state_bhpr, false }, { "learned_init", in->learned_init_hpr, false },
                  { "carry0", in->carry0_bh, false }, { "v_before", in->v_before_bmhp, false },
                  { "k_before", in->k_before_bmhr, false }, { "carry", in->carry_bsh, false });
}

kr_status kr_ssd_core_sanity(kr_tape *tape, kr_ssd_kind kind, const void *in)
{
    if (!tape) return KR_ERR_ARG;
    if (!kr_require(tape->ctx, in != NULL, KR_ERR_ARG, "ssd_core_sanity: in is NULL")) return tape->ctx->status;
    switch (kind) {
    case KR_SSD_MAMBA2: return mamba2_sanity(tape, in);
    case KR_SSD_MAMBA3_DOUBLE: return mamba3_double_sanity(tape, in);
    case KR_SSD_MAMBA3_SINGLE: return mamba3_single_sanity(tape, in);
    }
    kr_fail(tape->ctx, KR_ERR_ARG, "ssd_core_sanity: %d is not a kr_ssd_kind", (int)kind);
    return tape->ctx->status;
}
