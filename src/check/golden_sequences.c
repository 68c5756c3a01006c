/* golden_sequences.c - where sequences begin in a case that holds several in one row: its setting cu_seqlens, a list
 * [0, end of the first, end of the second, ..] that ends with the number of tokens.
 */
#include "check/golden.h"

#include <stdio.h>

static bool refuse(golden_run *run, const char *why, int64_t number)
{
    if (!run->trouble[0]) snprintf(run->trouble, sizeof run->trouble, "cu_seqlens: %s %lld", why, (long long)number);
    return false;
}

/* The list into from[0 .. count]. */
static bool read_ends(golden_run *run, const kr_json *list, int64_t ntokens, golden_sequences *s)
{
    int64_t i = 0;
    for (const kr_json *end = kr_json_first(list); end; end = kr_json_next(end), i++) {
        if (!kr_json_is_integer(end)) return refuse(run, "not an integer at", i);
        s->from[i] = kr_json_integer(end, 0);
        if (i == 0 && s->from[0] != 0) return refuse(run, "does not begin with 0 but with", s->from[0]);
        if (i > 0 && s->from[i] == s->from[i - 1]) return refuse(run, "there is no token in sequence", i - 1);
        if (i > 0 && s->from[i] < s->from[i - 1]) return refuse(run, "goes backwards at", i);
    }
    if (s->from[s->count] != ntokens) return refuse(run, "does not end with the number of tokens,", ntokens);
    return true;
}

bool golden_sequences_read(golden_run *run, int64_t ntokens, golden_sequences *s)
{
    const kr_json *list = golden_setting(run, "cu_seqlens");
    *s = (golden_sequences){ .count = kr_json_length(list) - 1 };
    if (kr_json_kind_of(list) != KR_JSON_ARRAY || s->count < 1)
        return refuse(run, "must be a list of integers, at least", 2);
    s->from = check_alloc(kr_tape_ctx(run->tape), ((size_t)s->count + 1) * sizeof *s->from);
    if (!s->from) return refuse(run, "no memory for sequences:", s->count);
    if (read_ends(run, list, ntokens, s)) return true;
    golden_sequences_free(s);
    return false;
}

void golden_sequences_free(golden_sequences *s)
{
    check_free(s->from);
    *s = (golden_sequences){ 0 };
}
