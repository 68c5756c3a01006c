/* sequences.c - the list of sequences of a batch, out of the marker of their starts. */
#include "ops/sequences.h"

#include "device/device.h"

/* Does the marker, of any strides, begin a sequence at token s of row b? */
static bool is_start(const kr_tensor *marker, int64_t b, int64_t s)
{
    const int64_t at = b * marker->strides[0] + s * marker->strides[1];
    return marker->dtype == KR_DTYPE_I32 ? ((const int32_t *)(const void *)marker->data)[at] != 0
                                         : ((const int64_t *)(const void *)marker->data)[at] != 0;
}

/* Writes the sequences of all rows to list, if it is given; their number. A row without tokens is one of length 0. */
static int64_t walk_rows(const kr_tensor *marker, int64_t nb, int64_t ns, kr_sequence *list)
{
    int64_t count = 0;
    for (int64_t b = 0; b < nb; b++) {
        int64_t start = 0, end;
        do {
            end = marker ? start + 1 : ns;
            while (end < ns && !is_start(marker, b, end)) end++;
            if (list) list[count] = (kr_sequence){ b, start, end < ns ? end : ns };
            count++;
            start = end;
        } while (start < ns);
    }
    return count;
}

static bool check_marker(kr_tape *tape, const char *op, kr_tensor *marker, int64_t nb, int64_t ns)
{
    kr_dims d;
    return kr_bind(tape, op, &d, "seq_start:bs", marker) &&
           kr_require(tape->ctx, d.b == nb && d.s == ns, KR_ERR_SHAPE,
                      "%s: seq_start %s must be [%lld, %lld]: a flag for each token", op, KR_TEXT_OF(marker),
                      (long long)nb, (long long)ns) &&
           kr_require(tape->ctx, marker->dtype == KR_DTYPE_I32 || marker->dtype == KR_DTYPE_I64, KR_ERR_DTYPE,
                      "%s: seq_start %s is %s, but must be i32 or i64", op, KR_TEXT_OF(marker),
                      kr_dtype_name(marker->dtype));
}

bool kr_sequences_maybe_empty(kr_tape *tape, const char *op, kr_tensor *seq_start_bs, int64_t nb, int64_t ns,
                              kr_sequences *out)
{
    *out = (kr_sequences){ 0, NULL };
    if (!kr_tape_ready(tape, op) || (seq_start_bs && !check_marker(tape, op, seq_start_bs, nb, ns)) ||
        !kr_integers_ready(tape->ctx))
        return false;
    const int64_t count = walk_rows(seq_start_bs, nb, ns, NULL);
    kr_sequence *list = kr_tape_list(tape, (size_t)count * sizeof *list);
    if (!list)
        return kr_fail(tape->ctx, KR_ERR_NOMEM, "%s: no memory for a list of %lld sequences", op, (long long)count);
    walk_rows(seq_start_bs, nb, ns, list);
    *out = (kr_sequences){ count, list };
    return true;
}

bool kr_sequences_from(kr_tape *tape, const char *op, kr_tensor *seq_start_bs, int64_t nb, int64_t ns,
                       kr_sequences *out)
{
    return kr_sequences_maybe_empty(tape, op, seq_start_bs, nb, ns, out) &&
           kr_require(tape->ctx, ns >= 1, KR_ERR_SHAPE, "%s: s = %lld, but a sequence needs at least one token", op,
                      (long long)ns);
}
