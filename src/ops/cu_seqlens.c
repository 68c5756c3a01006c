/* cu_seqlens.c - packed rows given by cumulative sequence lengths.
 *
 *   cu [q+1]: 0 = cu[0] < cu[1] < .. < cu[q] = b s;   sequence i is tokens cu[i] .. cu[i+1]-1 of all rows, one after another
 *   a row's first token begins a sequence: each multiple of s below b s is one of the cu[i]
 */
#include "ops/loss_impl.h"
#include "ops/sequences.h"

/* Number i of them against its predecessor and the rows. */
static bool check_entry(kr_tape *tape, const char *op, const kr_tensor *cu, int64_t i, int64_t ns)
{
    const int64_t before = kr_integer_at(cu, i - 1), at = kr_integer_at(cu, i);
    const int64_t row_end = (before / ns + 1) * ns; /* of the sequence's first token */
    return kr_require(tape->ctx, at > before, KR_ERR_ARG,
                      "%s: cu_seqlens[%lld] is %lld after %lld, but must be larger: a sequence has at least one token",
                      op, (long long)i, (long long)at, (long long)before) &&
           kr_require(
               tape->ctx, at <= row_end, KR_ERR_ARG,
               "%s: cu_seqlens[%lld] is %lld, but the sequence from %lld on ends with its row at %lld; rows of %lld "
               "tokens are counted one after another, and no sequence crosses from one to the next",
               op, (long long)i, (long long)at, (long long)before, (long long)row_end, (long long)ns);
}

static bool check(kr_tape *tape, const char *op, const kr_tensor *cu, int64_t nb, int64_t ns)
{
    kr_ctx *ctx = tape->ctx;
    const int64_t last = kr_count_of(cu) - 1;
    if (!kr_require(ctx, kr_tensor_rank(cu) == 1 && last >= 1, KR_ERR_SHAPE,
                    "%s: cu_seqlens %s must be [q+1], a number for each of q >= 1 sequences and one more", op,
                    KR_TEXT_OF(cu)) ||
        !kr_require(ctx, nb >= 1 && ns >= 1, KR_ERR_SHAPE, "%s: cu_seqlens is given, but [%lld, %lld] has no token", op,
                    (long long)nb, (long long)ns) ||
        !kr_require(ctx, kr_integer_at(cu, 0) == 0, KR_ERR_ARG, "%s: cu_seqlens[0] is %lld, but must be 0", op,
                    (long long)kr_integer_at(cu, 0)))
        return false;
    for (int64_t i = 1; i <= last; i++)
        if (!check_entry(tape, op, cu, i, ns)) return false;
    return kr_require(ctx, kr_integer_at(cu, last) == nb * ns, KR_ERR_ARG,
                      "%s: cu_seqlens[%lld], the last, is %lld, but there are %lld tokens", op, (long long)last,
                      (long long)kr_integer_at(cu, last), (long long)(nb * ns));
}

static kr_tensor *marker_of(kr_tape *tape, const char *op, kr_tensor *cu, int64_t nb, int64_t ns)
{
    if (!kr_bind_any(tape, op, cu) || !(cu = kr_integers(tape, op, "cu_seqlens", cu)) || !check(tape, op, cu, nb, ns))
        return NULL;
    kr_tensor *marker = kr_zeros(tape, KR_DTYPE_I32, KR_SHAPE(nb, ns));
    if (!marker || !kr_integers_ready(tape->ctx)) return NULL;
    int32_t *is_start = (int32_t *)(void *)marker->data;
    for (int64_t i = 0; i < kr_count_of(cu) - 1; i++) is_start[kr_integer_at(cu, i)] = 1;
    return marker;
}

kr_tensor *kr_seq_start_from_cu_seqlens(kr_tape *tape, kr_tensor *cu_seqlens, int64_t batch, int64_t length)
{
    return marker_of(tape, "seq_start_from_cu_seqlens", cu_seqlens, batch, length);
}

bool kr_cu_seqlens_take(kr_tape *tape, const char *op, kr_tensor *cu_seqlens, int64_t nb, int64_t ns,
                        kr_tensor **seq_start_bs)
{
    if (!cu_seqlens) return true;
    if (!kr_require(tape->ctx, !*seq_start_bs, KR_ERR_ARG, "%s: cu_seqlens and seq_start are both given; choose one",
                    op))
        return false;
    *seq_start_bs = marker_of(tape, op, cu_seqlens, nb, ns);
    return *seq_start_bs != NULL;
}
