/* gate_cpu.c - the gate y = x silu(z) and its gradients g_x = g_y silu(z), g_z = g_y x silu'(z), in f32 vectors.
 *
 *   x, z, g_y, g_x, g_z [no ni], rows strided;  y [no ni] contiguous
 * A unit of work is a piece of a row; if all operands are contiguous, their rows are joined into one.
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec_math.h"

enum { PIECE = 4096 }; /* channels */

static int64_t pieces_of(int64_t ni)
{
    return kr_blocks(ni, PIECE);
}

static void gate_pieces(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_gate_args *a = args;
    int64_t npieces = pieces_of(a->ni);
    for (int64_t unit = first; unit < end; unit++) {
        int64_t o = unit / npieces, from = unit % npieces * PIECE, n = kr_smaller(PIECE, a->ni - from), i = 0;
        const float *x = (const float *)a->x.data + o * a->x.row + from;
        const float *z = (const float *)a->z.data + o * a->z.row + from;
        float *y = (float *)a->y.data + o * a->ni + from;
        for (; i + VF <= n; i += VF) vf_store(y + i, vf_mul(vf_load(x + i), vf_silu(vf_load(z + i))));
        if (i < n) vf_store_n(y + i, n - i, vf_mul(vf_load_n(x + i, n - i), vf_silu(vf_load_n(z + i, n - i))));
    }
}

void KR_FN(gate)(const kr_gate_args *args)
{
    kr_gate_args a = *args;
    if (a.x.row == a.ni && a.z.row == a.ni) {
        a.ni *= a.no;
        a.no = 1;
    }
    kr_ranges_run(a.exec.pool, a.no * pieces_of(a.ni), kr_smaller(PIECE, a.ni), gate_pieces, &a);
}

/* Operands of a piece of the gradients; g_x, g_z NULL when not wanted. */
typedef struct piece {
    const float *x, *z, *g_y;
    float *g_x, *g_z;
} piece;

KR_INLINE void gradients(const piece *p, int64_t i, int64_t n)
{
    vf g = row_load(p->g_y + i, n), slope;
    vf silu = vf_silu_and_slope(row_load(p->z + i, n), &slope);
    if (p->g_x) row_store(p->g_x + i, n, vf_mul(g, silu));
    if (p->g_z) row_store(p->g_z + i, n, vf_mul(vf_mul(g, row_load(p->x + i, n)), slope));
}

static void gate_bwd_pieces(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_gate_bwd_args *a = args;
    int64_t npieces = pieces_of(a->ni);
    for (int64_t unit = first; unit < end; unit++) {
        int64_t o = unit / npieces, from = unit % npieces * PIECE, n = kr_smaller(PIECE, a->ni - from), i = 0;
        piece p = { .x = (const float *)a->x.data + o * a->x.row + from,
                    .z = (const float *)a->z.data + o * a->z.row + from,
                    .g_y = (const float *)a->g_y.data + o * a->g_y.row + from };
        if (a->g_x.data) p.g_x = (float *)a->g_x.data + o * a->g_x.row + from;
        if (a->g_z.data) p.g_z = (float *)a->g_z.data + o * a->g_z.row + from;
        for (; i + VF <= n; i += VF) gradients(&p, i, VF);
        if (i < n) gradients(&p, i, n - i);
    }
}

void KR_FN(gate_bwd)(const kr_gate_bwd_args *args)
{
    kr_gate_bwd_args a = *args;
    const bool is_dense = (!a.g_x.data || a.g_x.row == a.ni) && (!a.g_z.data || a.g_z.row == a.ni);
    if (a.x.row == a.ni && a.z.row == a.ni && a.g_y.row == a.ni && is_dense) {
        a.ni *= a.no;
        a.no = 1;
    }
    kr_ranges_run(a.exec.pool, a.no * pieces_of(a.ni), kr_smaller(PIECE, a.ni), gate_bwd_pieces, &a);
}
