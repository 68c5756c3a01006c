/* token_layers_share.cuh - which states a block of token_layers_cuda.cu has, and in which order they come. */
#ifndef KR_KERNELS_CUDA_TOKEN_LAYERS_SHARE_CUH
#define KR_KERNELS_CUDA_TOKEN_LAYERS_SHARE_CUH

#include "kernels/cuda/quad.cuh"
#include "kernels/cuda/token_ssd.cuh"

/* A piece is 16 rows p of a head, two tiles, with all r; a slot has it and its records. */
enum {
    KR_CORE_WARPS = 7,
    KR_CORE_THREADS = 32 * KR_CORE_WARPS,
    KR_CORE_RANK = 32 * KR_QUAD,
    KR_PAIR = 2,
    KR_PIECE_ROWS = KR_PAIR * KR_TOKEN_TILE,
    KR_PIECE = KR_PIECE_ROWS * KR_CORE_RANK,
    KR_PIECE_RECORDS = KR_PAIR * KR_OWED_RECORD,
    KR_SLOT = KR_PIECE + KR_PIECE_RECORDS
};

/* Of a launch: sizes in 32 bits. */
typedef struct kr_core_plan {
    uint32_t nh, ng, per_group;           /* heads of a row, groups, heads of a group */
    uint32_t head_bits, dim_bits;         /* 2^head_bits pieces and 2^dim_bits rows p of a head */
    uint32_t most, most_heads, most_rows; /* of a block's share */
    uint32_t slots;
} kr_core_plan;

/* A block's pieces among those of rows row0 .. row0 + rows - 1: the first, counted from row 0's first, how many, and the
 * head and row of the first. Every KR_OWED_TOKENS-th piece from first_due on is due, where all rows have had as many tokens
 * as the first: it takes longer. So pieces come in this order: `lead` that are not due, one for each warp; those that are; the
 * rest, which is on its way meanwhile. */
typedef struct kr_core_share {
    uint32_t first, count, head, row, heads, rows; /* head: row nh + h; heads, rows: that they are of */
    uint32_t first_due, due, lead;
} kr_core_share;

static __device__ __forceinline__ kr_core_share kr_core_share_of(const kr_core_plan &p, uint32_t row0, uint32_t rows)
{
    const uint32_t of_row = p.nh << p.head_bits, pieces = rows * of_row;
    const uint32_t each = pieces / gridDim.x, more = pieces - each * gridDim.x;
    kr_core_share s;
    s.first = row0 * of_row + each * blockIdx.x + min(more, blockIdx.x);
    s.count = each + (blockIdx.x < more);
    s.head = s.first >> p.head_bits, s.row = s.head / p.nh;
    s.heads = s.count ? ((s.first + s.count - 1) >> p.head_bits) + 1 - s.head : 0;
    s.rows = s.count ? (s.head + s.heads - 1) / p.nh + 1 - s.row : 0;
    return s;
}

/* t: tokens that its first row has had. */
static __device__ __forceinline__ void kr_core_order(kr_core_share *s, uint32_t t)
{
    s->first_due = (KR_OWED_TOKENS - 1 - (t + KR_OWED_TURN(s->first * KR_PAIR)) % KR_OWED_TOKENS) % KR_OWED_TOKENS;
    s->due = (s->count + KR_OWED_TOKENS - 1 - s->first_due) / KR_OWED_TOKENS;
    s->lead = min(s->count - s->due, (uint32_t)KR_CORE_WARPS);
}

/* A piece of a share, as the share is laid out: `piece` of all rows, `records` of owed, in floats; on the desk its first row
 * p, head and group. Places are in the order in which pieces come. */
typedef struct __align__(16) kr_core_place
{
    uint32_t piece, records, row;
    uint16_t head, group;
}
kr_core_place;

static __device__ __forceinline__ kr_core_place kr_core_place_of(const kr_core_plan &p, const kr_core_share &own,
                                                                 uint32_t row_floats, uint32_t n)
{
    const uint32_t of_row = p.nh << p.head_bits;
    uint32_t i = n < own.lead ? n : n - own.due, row = 0; /* of those that are not due */
    if (n >= own.lead && n < own.lead + own.due) i = own.first_due + (n - own.lead) * KR_OWED_TOKENS;
    else if (i >= own.first_due) i += 1 + (i - own.first_due) / (KR_OWED_TOKENS - 1);
    uint32_t at = own.first - own.row * of_row + i; /* in its row */
    for (; at >= of_row; at -= of_row) row++;
    kr_core_place to = { own.first + i, (own.row + row) * row_floats + at * KR_PIECE_RECORDS, i * KR_PIECE_ROWS, 0, 0 };
    to.head = (uint16_t)(((own.first + i) >> p.head_bits) - own.head);
    to.group = (uint16_t)(p.ng > 1 ? row * p.ng + (at >> p.head_bits) / p.per_group : row);
    return to;
}

#endif
