/* gate_ref.c - the gate y = x silu(z) and its gradients g_x = g_y silu(z), g_z = g_y x silu'(z).
 *
 *   x, z, g_y [no ni], y, g_x, g_z [no ni], rows of any stride
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_operand.h"
#include "kernels/ref/ref_silu.h"

void KR_REF(gate)(const kr_gate_args *a)
{
    for (int64_t o = 0; o < a->no; o++)
        for (int64_t i = 0; i < a->ni; i++)
            kr_ref_put(&a->y, o, i, kr_ref_at(&a->x, o, i) * silu(kr_ref_at(&a->z, o, i)));
}

void KR_REF(gate_bwd)(const kr_gate_bwd_args *a)
{
    for (int64_t o = 0; o < a->no; o++) {
        for (int64_t i = 0; a->g_x.data && i < a->ni; i++)
            kr_ref_put(&a->g_x, o, i, kr_ref_at(&a->g_y, o, i) * silu(kr_ref_at(&a->z, o, i)));
        for (int64_t i = 0; a->g_z.data && i < a->ni; i++)
            kr_ref_put(&a->g_z, o, i,
                       kr_ref_at(&a->g_y, o, i) * kr_ref_at(&a->x, o, i) * silu_slope(kr_ref_at(&a->z, o, i)));
    }
}
