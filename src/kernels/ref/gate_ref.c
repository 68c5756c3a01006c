/* gate_ref.c - the gate y = x silu(z) and its gradients g_x = g_y silu(z), g_z = g_y x silu'(z).
 *
 *   x, z, g_y [no ni], rows strided;  y, g_x, g_z [no ni] contiguous
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_silu.h"

void KR_REF(gate)(const kr_gate_args *a)
{
    for (int64_t o = 0; o < a->no; o++) {
        const real *x = (const real *)a->x + o * a->x_stride, *z = (const real *)a->z + o * a->z_stride;
        real *y = (real *)a->y + o * a->ni;
        for (int64_t i = 0; i < a->ni; i++) y[i] = (real)((double)x[i] * silu((double)z[i]));
    }
}

void KR_REF(gate_bwd)(const kr_gate_bwd_args *a)
{
    for (int64_t o = 0; o < a->no; o++) {
        const real *x = (const real *)a->x + o * a->x_stride, *z = (const real *)a->z + o * a->z_stride;
        const real *g_y = (const real *)a->g_y + o * a->g_y_stride;
        real *g_x = a->g_x ? (real *)a->g_x + o * a->ni : NULL, *g_z = a->g_z ? (real *)a->g_z + o * a->ni : NULL;
        for (int64_t i = 0; g_x && i < a->ni; i++) g_x[i] = (real)((double)g_y[i] * silu((double)z[i]));
        for (int64_t i = 0; g_z && i < a->ni; i++)
            g_z[i] = (real)((double)g_y[i] * (double)x[i] * silu_slope((double)z[i]));
    }
}
