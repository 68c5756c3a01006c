/* path.c - chunk lengths. */
#include <krait/ssd.h>

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
