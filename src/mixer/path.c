/* path.c - the choice of algorithm and chunk length. */
#include <krait/ssd.h>

kr_ssd_path kr_ssd_path_default(void)
{
    return (kr_ssd_path){ KR_SSD_SERIAL_RECALCULATED, 0 };
}

static int64_t integer_sqrt(int64_t x)
{
    int64_t root = 0;
    for (int64_t bit = (int64_t)1 << 31; bit > 0; bit >>= 1)
        if ((root + bit) <= x / (root + bit)) root += bit;
    return root;
}

int64_t kr_ssd_optimal_chunk_len(int64_t state_rank, int64_t per_head_dim)
{
    enum { PLANE = 32, MOST = 512 }; /* a common vector width, and the length beyond which [l, l] exceeds the caches */
    if (state_rank < 1 || per_head_dim < 1) return PLANE;
    const int64_t product = state_rank > INT64_MAX / per_head_dim ? INT64_MAX : state_rank * per_head_dim;
    const int64_t root = integer_sqrt(product);
    if (root >= MOST) return MOST;
    return (root + PLANE - 1) / PLANE * PLANE;
}

int64_t kr_ssd_chunk_len(kr_ssd_path path)
{
    return path.chunk_len;
}

int64_t kr_ssd_chunk_len_or_optimal(kr_ssd_path path, int64_t state_rank, int64_t per_head_dim)
{
    return path.chunk_len != 0 ? path.chunk_len : kr_ssd_optimal_chunk_len(state_rank, per_head_dim);
}

kr_ssd_path kr_ssd_core_optimal(int64_t state_rank, int64_t per_head_dim)
{
    return (kr_ssd_path){ KR_SSD_MINIMAL, kr_ssd_optimal_chunk_len(state_rank, per_head_dim) };
}

kr_ssd_path kr_ssd_chunked_optimal(int64_t state_rank, int64_t per_head_dim)
{
    return (kr_ssd_path){ KR_SSD_SERIAL, kr_ssd_optimal_chunk_len(state_rank, per_head_dim) };
}

kr_ssd_path kr_ssd_chunked_recalculated_optimal(int64_t state_rank, int64_t per_head_dim)
{
    return (kr_ssd_path){ KR_SSD_SERIAL_RECALCULATED, kr_ssd_optimal_chunk_len(state_rank, per_head_dim) };
}
