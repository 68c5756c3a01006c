/* schedule.c - which weights a virtual layer uses. */
#include <krait/network.h>

/* v n / nv, rounded down; -1 where the product is too large to compute. */
static int64_t stretched(int64_t v, int64_t nv, int64_t n)
{
    return v == 0 || n <= INT64_MAX / v ? v * n / nv : -1;
}

static int64_t listed(const int64_t *custom, int64_t v, int64_t n_layers)
{
    return custom && custom[v] >= 0 && custom[v] < n_layers ? custom[v] : -1;
}

static bool is_in_range(int64_t v, int64_t n_virtual, int64_t n_layers)
{
    return v >= 0 && v < n_virtual && n_layers >= 1;
}

int64_t kr_schedule_at(kr_schedule schedule, const int64_t *custom, int64_t v, int64_t n_virtual, int64_t n_layers)
{
    if (!is_in_range(v, n_virtual, n_layers)) return -1;
    switch (schedule) {
    case KR_SCHEDULE_CYCLIC: return v % n_layers;
    case KR_SCHEDULE_STRETCHED: return stretched(v, n_virtual, n_layers);
    case KR_SCHEDULE_CUSTOM: return listed(custom, v, n_layers);
    }
    return -1;
}

int64_t kr_bidi_schedule_at(kr_bidi_schedule schedule, const int64_t *custom, int64_t v, int64_t n_virtual,
                            int64_t n_layers)
{
    if (!is_in_range(v, n_virtual, n_layers) || n_virtual % 2) return -1;
    const int64_t pair = v / 2, npairs = n_virtual / 2, direction = v % 2;
    const int64_t ndirection = direction ? n_layers / 2 : n_layers - n_layers / 2; /* weight sets of this direction */
    switch (schedule) {
    case KR_BIDI_SCHEDULE_STRIDED_CYCLIC: return ndirection ? pair % ndirection * 2 + direction : -1;
    case KR_BIDI_SCHEDULE_STRIDED_STRETCHED: {
        const int64_t at = stretched(pair, npairs, ndirection);
        return ndirection && at >= 0 ? at * 2 + direction : -1;
    }
    case KR_BIDI_SCHEDULE_SYMMETRIC_CYCLIC: return pair % n_layers;
    case KR_BIDI_SCHEDULE_SYMMETRIC_STRETCHED: return stretched(pair, npairs, n_layers);
    case KR_BIDI_SCHEDULE_CUSTOM: return listed(custom, v, n_layers);
    }
    return -1;
}
