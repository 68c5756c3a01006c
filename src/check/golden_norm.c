/* golden_norm.c - rmsnorm_gated: x, z [b s i], weight [i]; settings eps, group_size (null: all of i), norm_before_gate.
 * */
#include "check/golden.h"

void golden_rmsnorm_gated(golden_run *run)
{
    kr_tensor *x = golden_in(run, "x");
    const int64_t ni = kr_tensor_dim(x, -1);
    const int64_t group = kr_json_integer(golden_setting(run, "group_size"), ni);
    kr_norm_options options;
    kr_norm_options_init(&options);
    options.eps = kr_json_number(golden_setting(run, "eps"), options.eps);
    options.groups = group > 0 ? ni / group : 0;
    options.norm_before_gate = kr_json_bool(golden_setting(run, "norm_before_gate"), false);
    kr_tensor *z = golden_in_if(run, "z"), *gain = golden_in(run, "weight");
    golden_out(run, "y",
               z ? kr_gated_norm(run->tape, x, z, gain, &options) : kr_rms_norm(run->tape, x, gain, &options));
}
