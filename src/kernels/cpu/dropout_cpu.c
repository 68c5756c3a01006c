/* dropout_cpu.c - dropout by groups of 64 elements, whose words are 16 Philox blocks: 10 rounds of integer products in
 * vectors. The words are those of base/dropout_words.h, to the bit. */
#include "base/dropout_words.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/vec.h"
#include "kernels/kernels.h"

enum { GROUP = KR_DROPOUT_GROUP, LANE = KR_DROPOUT_LANE };

typedef struct words {
    vi of[4];
} words;

/* Philox blocks first .. first + VF - 1 of a stream; they do not cross a multiple of 2^32, since `first` is a multiple of VF. */
KR_INLINE words blocks_at(uint64_t seed, uint64_t stream, uint64_t first)
{
    static const int32_t lanes[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    words c = { { vi_add(vi_set1((int32_t)(uint32_t)first), vi_load(lanes)), vi_set1((int32_t)(uint32_t)(first >> 32)),
                  vi_set1((int32_t)(uint32_t)stream), vi_set1((int32_t)(uint32_t)(stream >> 32)) } };
    const vi factor0 = vi_set1((int32_t)0xD2511F53u), factor1 = vi_set1((int32_t)0xCD9E8D57u);
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        vi high0, high1;
        const vi low0 = vi_mul_wide(factor0, c.of[0], &high0), low1 = vi_mul_wide(factor1, c.of[2], &high1);
        c = (words){ { vi_xor(vi_xor(high1, c.of[1]), vi_set1((int32_t)key0)), low1,
                       vi_xor(vi_xor(high0, c.of[3]), vi_set1((int32_t)key1)), low0 } };
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return c;
}

/* A whole group. */
KR_INLINE void drop_group(const kr_dropout_args *a, uint64_t group, const float *x, float *y)
{
    const vi threshold = vi_set1((int32_t)a->threshold);
    const vf scale = vf_set1((float)a->scale);
    for (int part = 0; part < LANE; part += VF) {
        const words w = blocks_at(a->seed, a->stream, group * LANE + (uint64_t)part);
        for (int lane = 0; lane < 4; lane++) {
            const int at = lane * LANE + part;
            vf_store(y + at, vf_keep(vi_at_least(w.of[lane], threshold), vf_mul(vf_load(x + at), scale)));
        }
    }
}

/* Groups are counted from that of the first element; the first and the last one may lie in x in part. */
static void drop_groups(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_dropout_args *a = args;
    const uint64_t start = a->first / GROUP;
    const int64_t skipped = (int64_t)(a->first % GROUP);
    for (int64_t group = first; group < end; group++) {
        const int64_t from = group * GROUP - skipped; /* the element of the group's first word */
        if (from >= 0 && from + GROUP <= a->n) {
            drop_group(a, start + (uint64_t)group, (const float *)a->x + from, (float *)a->y + from);
            continue;
        }
        float in[GROUP] = { 0 }, out[GROUP];
        const int64_t low = kr_larger(0, -from), high = kr_smaller(GROUP, a->n - from);
        memcpy(in + low, (const float *)a->x + from + low, (size_t)(high - low) * sizeof *in);
        drop_group(a, start + (uint64_t)group, in, out);
        memcpy((float *)a->y + from + low, out + low, (size_t)(high - low) * sizeof *out);
    }
}

void KR_FN(dropout)(const kr_dropout_args *a)
{
    const int64_t span = (int64_t)(a->first % GROUP) + a->n;
    if (a->n > 0) kr_ranges_run(a->exec.pool, kr_blocks(span, GROUP), GROUP, drop_groups, a);
}
