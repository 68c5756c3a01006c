/* block_flops.c - one count for each family, t = b s tokens. */
#include "plan/block_flops.h"

/* u W for t rows: 2 t k n. */
static double product(int64_t nt, int64_t nk, int64_t nn)
{
    return 2 * (double)nt * (double)nk * (double)nn;
}

/* The chunked core over one row of s tokens, m ranks per token, chunks of l tokens:
 *   4 s m h p r              the state's contribution to each output, each value's contribution to the state
 *   l (l + 1) m^2 (g r + h p)   for each chunk: scores <C, B> for each group and the weighted sums of values for each
 *                            head, of the pairs (t, t') with t' <= t only */
static double core(int64_t ns, int64_t nl, int64_t nm, int64_t nh, int64_t np, int64_t ng, int64_t nr)
{
    const double pair = (double)(nm * nm) * (double)(ng * nr + nh * np);
    double flops = 4 * (double)(ns * nm) * (double)(nh * np * nr);
    for (int64_t s = 0; s < ns; s += nl) {
        const int64_t n = ns - s < nl ? ns - s : nl;
        flops += (double)(n * (n + 1)) * pair;
    }
    return flops;
}

/*   in_proj 2 t d 2i,  conv 2 t k i,  x_proj 2 t i (x + 2r),  dt_proj 2 t x i,  out_proj 2 t i d
 *   scan    6 t i r: decay times state, plus dt x times B (two products), plus C times state into the sum */
double kr_mamba1_flops(const kr_mamba1_config *c, int64_t nb, int64_t ns)
{
    const int64_t nt = nb * ns, nd = c->d_model, nr = c->state_rank;
    const int64_t ni = c->d_inner ? c->d_inner : c->expand * nd;
    const int64_t nx = c->dt_rank ? c->dt_rank : (nd + 15) / 16;
    return product(nt, nd, 2 * ni) + product(nt, c->conv_kernel, ni) + product(nt, ni, nx + 2 * nr) +
           product(nt, nx, ni) + 6 * (double)(nt * ni * nr) + product(nt, ni, nd);
}

/*   in_proj 2 t d (2i + 2 g r + h),  conv 2 t k (d_ssm + 2 g r),  core with scores for each group,  out_proj 2 t i d */
double kr_mamba2_flops(const kr_mamba2_config *c, int64_t nb, int64_t ns)
{
    const int64_t nt = nb * ns, nd = c->d_model, ni = c->expand * nd, np = c->per_head_dim;
    const int64_t nssm = c->d_ssm ? c->d_ssm : ni, nh = nssm / np, ngr = c->n_groups * c->state_rank;
    const int64_t nl = kr_ssd_chunk_len_or_optimal(c->path, c->state_rank, np);
    return product(nt, nd, 2 * ni + 2 * ngr + nh) + product(nt, c->conv_kernel, nssm + 2 * ngr) +
           (double)nb * core(ns, nl, 1, nh, np, c->n_groups, c->state_rank) + product(nt, ni, nd);
}

/* Channels of the projection for the rotation. */
static int64_t rotate_channels(const kr_mamba3_config *c, int64_t nh)
{
    const int64_t rotated = (int64_t)((double)c->state_rank * c->rope_fraction);
    const bool in_blocks = c->rotation == KR_ROTATION_QUATERNION;
    const int64_t rotations = rotated / (in_blocks ? 4 : 2);
    return (rotations ? rotations : 1) * (in_blocks ? 3 * nh : 1);
}

/* in_proj 2 t d (2i + 2 m g r + 3h + rotation),  out_proj 2 t i d
 *   core with scores for each head, since bias and rotation are per head; twice with the double pathway */
double kr_mamba3_flops(const kr_mamba3_config *c, int64_t nb, int64_t ns)
{
    const int64_t nt = nb * ns, nd = c->d_model, ni = c->expand * nd, np = c->per_head_dim, nh = ni / np;
    const int64_t nm = c->is_mimo ? c->mimo_rank : 1, nr = c->state_rank;
    const int64_t n_in = 2 * ni + 2 * nm * c->n_groups * nr + 3 * nh + rotate_channels(c, nh);
    const int64_t nl = kr_ssd_chunk_len_or_optimal(c->path, nr, np);
    const double runs = c->pathway == KR_MAMBA3_PATHWAY_DOUBLE ? 2 : 1;
    return product(nt, nd, n_in) + runs * (double)nb * core(ns, nl, nm, nh, np, nh, nr) + product(nt, ni, nd);
}
