/* families.c - the inputs of Mamba-2 and of Mamba-3's two pathways, as requests to the one core. */
#include "mixer/core.h"

#include "base/sized.h"

/* The reserved words of an input. NULL: there is no input. */
static bool check_input(kr_tape *tape, const char *op, void *const *reserved, size_t bytes)
{
    return kr_tape_ready(tape, op) && kr_require(tape->ctx, reserved, KR_ERR_ARG, "%s: the input is NULL", op) &&
           (kr_words_are_zero(reserved, bytes) || kr_reserved_fail(tape->ctx, op, "the input"));
}

/* da = dt A, head by head. */
kr_ssd_out kr_mamba2_ssd_run_into(kr_tape *tape, const kr_mamba2_ssd_input *in, kr_ssd_path path, kr_tensor *final,
                                  bool rounds_y)
{
    kr_dims d;
    if (!kr_bind(tape, "mamba2_ssd", &d, "dt:..h a_decay:h", in->dt_bsh, in->a_decay_h))
        return (kr_ssd_out){ .y = NULL };
    const kr_ssd_request request = {
        .op = "mamba2_ssd",
        .whole = "x:bshp b:bsgr c:bsgr da:bsh dt:bsh diag_weight:bsh? d:h? learned_init:hpr? carry:bsh?",
        .chunked = "x:bnlhp b:bnlgr c:bnlgr da:bnlh dt:bnlh diag_weight:bnlh? d:h? learned_init:hpr? carry:bnlh?",
        .names = "x b c da dt diag_weight d initial_state learned_init",
        .v = in->x_bshp,
        .b = in->b_bsgr,
        .c = in->c_bsgr,
        .da = kr_mul(tape, in->dt_bsh, in->a_decay_h),
        .w = in->dt_bsh,
        .d = in->d_h,
        .initial_state = in->initial_state_bhpr,
        .learned_init = in->learned_init_hpr,
        .seq_start = in->seq_start_bs,
        .cu_seqlens = in->cu_seqlens,
        .final = final,
        .rounds_y = rounds_y
    };
    return kr_ssd_run(tape, &request, path);
}

static kr_ssd_out run_mamba2(kr_tape *tape, const kr_mamba2_ssd_input *in, kr_ssd_path path)
{
    if (!check_input(tape, "mamba2_ssd", in ? in->reserved : NULL, sizeof in->reserved))
        return (kr_ssd_out){ .y = NULL };
    return kr_mamba2_ssd_run_into(tape, in, path, NULL, false);
}

static kr_ssd_request double_request(const kr_mamba3_double_ssd_input *in)
{
    return (kr_ssd_request){
        .op = "mamba3_double_ssd",
        .whole = "v:bsmhp b:bsmgr c:bsmgr da:bsh w:bsh? diag_weight:bsh? d:h? learned_init:hpr? carry:bsh?",
        .chunked = "v:bnlmhp b:bnlmgr c:bnlmgr da:bnlh w:bnlh? diag_weight:bnlh? d:h? learned_init:hpr? carry:bnlh?",
        .names = "v b c da w diag_weight d initial_state learned_init",
        .v = in->v_bsmhp,
        .b = in->b_bsmhr,
        .c = in->c_bsmhr,
        .da = in->da_bsh,
        .d = in->d_h,
        .initial_state = in->initial_state_bhpr,
        .learned_init = in->learned_init_hpr,
        .seq_start = in->seq_start_bs,
        .cu_seqlens = in->cu_seqlens,
        .has_rank = true
    };
}

static kr_ssd_out run_mamba3_double(kr_tape *tape, const kr_mamba3_double_ssd_input *in, kr_ssd_path path)
{
    if (!check_input(tape, "mamba3_double_ssd", in ? in->reserved : NULL, sizeof in->reserved))
        return (kr_ssd_out){ .y = NULL };
    const kr_ssd_request request = double_request(in);
    return kr_ssd_run(tape, &request, path);
}

kr_ssd_out kr_mamba3_double_ssd_run_pair(kr_tape *tape, const kr_mamba3_double_ssd_input *now,
                                         const kr_mamba3_double_ssd_input *then, kr_ssd_path path)
{
    const kr_ssd_request first = double_request(now), second = double_request(then);
    return kr_ssd_run_pair(tape, &first, &second, path);
}

kr_ssd_out kr_mamba3_single_ssd_run_rotary(kr_tape *tape, const kr_mamba3_single_ssd_input *in,
                                           const kr_ssd_rotary_args *rotary, kr_ssd_path path, kr_tensor *final,
                                           bool rounds_y)
{
    const kr_ssd_request request = {
        .op = "mamba3_single_ssd",
        .whole = "v:bsmhp b:bsmgr c:bsmgr da:bsh scale:bsh gamma:bsh d:h? learned_init:hpr? carry:bsh?",
        .chunked = "v:bnlmhp b:bnlmgr c:bnlmgr da:bnlh scale:bnlh gamma:bnlh d:h? learned_init:hpr? carry:bnlh?",
        .names = "v b c da scale gamma d initial_state learned_init carry0 v_before k_before angle bias_b bias_c carry",
        .v = in->v_bsmhp,
        .b = in->b_bsmhr,
        .c = in->c_bsmhr,
        .da = in->da_bsh,
        .w = in->scale_bsh,
        .diag_weight = in->gamma_bsh,
        .d = in->d_h,
        .initial_state = in->initial_state_bhpr,
        .learned_init = in->learned_init_hpr,
        .seq_start = in->seq_start_bs,
        .cu_seqlens = in->cu_seqlens,
        .carry = in->carry_bsh,
        .carry0 = in->carry0_bh,
        .v_before = in->v_before_bmhp,
        .k_before = in->k_before_bmhr,
        .rotary = *rotary,
        .has_rank = true,
        .final = final,
        .rounds_y = rounds_y
    };
    return kr_ssd_run(tape, &request, path);
}

kr_ssd_out kr_mamba3_single_ssd_run_into(kr_tape *tape, const kr_mamba3_single_ssd_input *in, kr_ssd_path path,
                                         kr_tensor *final, bool rounds_y)
{
    const kr_ssd_rotary_args none = { .angle_bsha = NULL };
    return kr_mamba3_single_ssd_run_rotary(tape, in, &none, path, final, rounds_y);
}

static kr_ssd_out run_mamba3_single(kr_tape *tape, const kr_mamba3_single_ssd_input *in, kr_ssd_path path)
{
    if (!check_input(tape, "mamba3_single_ssd", in ? in->reserved : NULL, sizeof in->reserved))
        return (kr_ssd_out){ .y = NULL };
    return kr_mamba3_single_ssd_run_into(tape, in, path, NULL, false);
}

kr_ssd_out kr_ssd_core_run(kr_tape *tape, kr_ssd_kind kind, const void *in, kr_ssd_path path)
{
    const kr_ssd_out none = { .y = NULL };
    if (!tape || !kr_require(tape->ctx, in != NULL, KR_ERR_ARG, "ssd_core_run: in is NULL")) return none;
    switch (kind) {
    case KR_SSD_MAMBA2: return run_mamba2(tape, in, path);
    case KR_SSD_MAMBA3_DOUBLE: return run_mamba3_double(tape, in, path);
    case KR_SSD_MAMBA3_SINGLE: return run_mamba3_single(tape, in, path);
    }
    kr_fail(tape->ctx, KR_ERR_ARG, "ssd_core_run: %d is not a kr_ssd_kind", (int)kind);
    return none;
}
