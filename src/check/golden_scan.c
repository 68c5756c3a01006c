/* golden_scan.c - selective_scan: u, delta, z [b i s], A [i r], B, C [b r s] or [b g r s], D, delta_bias [i].
 *
 * In one call, and in two, of which the second continues from the first one's state. One token is not split.
 */
#include "check/golden.h"

#include <krait/ssd.h>

static kr_tensor *time_first(kr_tape *t, kr_tensor *x_bis)
{
    return kr_permute(t, x_bis, KR_AXES(0, 2, 1));
}

/* [b r s] or [b g r s] -> [b s g r]. */
static kr_tensor *groups_of(kr_tape *t, kr_tensor *b)
{
    if (kr_tensor_rank(b) == 4) return kr_permute(t, b, KR_AXES(0, 3, 1, 2));
    const int64_t nb = kr_tensor_dim(b, 0), nr = kr_tensor_dim(b, 1), ns = kr_tensor_dim(b, 2);
    return kr_reshape(t, time_first(t, b), KR_SHAPE(nb, ns, 1, nr));
}

static kr_tensor *step_of(golden_run *run)
{
    kr_tape *t = run->tape;
    kr_tensor *delta_bsi = time_first(t, golden_in(run, "delta")), *bias_i = golden_in_if(run, "delta_bias");
    if (bias_i) delta_bsi = kr_add(t, delta_bsi, bias_i);
    return kr_json_bool(golden_setting(run, "delta_softplus"), false) ? kr_softplus(t, delta_bsi) : delta_bsi;
}

/* The operands of tokens from .. to - 1. */
static kr_selective_scan_input part_of(kr_tape *t, const kr_selective_scan_input *all, int64_t from, int64_t to)
{
    kr_selective_scan_input part = *all;
    part.x_bsi = kr_slice(t, all->x_bsi, 1, from, to);
    part.dt_bsi = kr_slice(t, all->dt_bsi, 1, from, to);
    part.b_bsgr = kr_slice(t, all->b_bsgr, 1, from, to);
    part.c_bsgr = kr_slice(t, all->c_bsgr, 1, from, to);
    if (all->z_bsi) part.z_bsi = kr_slice(t, all->z_bsi, 1, from, to);
    return part;
}

static kr_scan_out in_two_calls(kr_tape *t, const kr_selective_scan_input *all)
{
    const int64_t ns = kr_tensor_dim(all->x_bsi, 1), middle = (ns + 1) / 3;
    if (ns < 2) return kr_selective_scan(t, all); /* a call needs at least one token */
    kr_selective_scan_input part = part_of(t, all, 0, middle);
    const kr_scan_out first = kr_selective_scan(t, &part);
    part = part_of(t, all, middle, ns);
    part.initial_state_bir = first.final_state;
    const kr_scan_out second = kr_selective_scan(t, &part);
    return (kr_scan_out){ .y_bsi = kr_concat(t, 1, 2, (kr_tensor *[]){ first.y_bsi, second.y_bsi }),
                          .final_state = second.final_state };
}

void golden_selective_scan(golden_run *run)
{
    kr_tape *t = run->tape;
    kr_tensor *z = golden_in_if(run, "z");
    const kr_selective_scan_input in = { .x_bsi = time_first(t, golden_in(run, "u")),
                                         .dt_bsi = step_of(run),
                                         .a_ir = golden_in(run, "A"),
                                         .b_bsgr = groups_of(t, golden_in(run, "B")),
                                         .c_bsgr = groups_of(t, golden_in(run, "C")),
                                         .d_i = golden_in_if(run, "D"),
                                         .z_bsi = z ? time_first(t, z) : NULL };
    const kr_scan_out out = run->variant == 0 ? kr_selective_scan(t, &in) : in_two_calls(t, &in);
    golden_out(run, "y", time_first(t, out.y_bsi));
    golden_out(run, "last_state", out.final_state);
}
