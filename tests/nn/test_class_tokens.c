/* test_class_tokens.c - class tokens: their places, plans for chunks against the plan for the whole, splicing. */
#include "tests/error_tests.h"
#include "tests/nn/differences.h"

#include "nn/class_tokens.h"

#include <krait/network.h>

#define START                                                                                                          \
    {                                                                                                                  \
        .kind = KR_CLASS_TOKEN_START                                                                                   \
    }
#define MIDDLE                                                                                                         \
    {                                                                                                                  \
        .kind = KR_CLASS_TOKEN_MIDDLE                                                                                  \
    }
#define END                                                                                                            \
    {                                                                                                                  \
        .kind = KR_CLASS_TOKEN_END                                                                                     \
    }
#define CUSTOM(k)                                                                                                      \
    {                                                                                                                  \
        .kind = KR_CLASS_TOKEN_CUSTOM, .at = (k)                                                                       \
    }

enum { MOST = 12 };

static void check_indices(const char *what, const kr_class_token *class_tokens, int count, int64_t len,
                          const int64_t *want)
{
    for (int i = 0; i < count; i++) {
        const int64_t got = kr_class_token_index(class_tokens, count, i, len);
        CHECK(got == want[i], "%s: class token %d stands at %lld, not %lld", what, i, (long long)got,
              (long long)want[i]);
    }
}

TEST(index_values)
{
    const kr_class_token sme[] = { START, MIDDLE, END }, customs[] = { CUSTOM(1), CUSTOM(3) };
    const kr_class_token four[] = { START, MIDDLE, END, CUSTOM(1) };
    check_indices("S M E of 4", sme, 3, 4, (const int64_t[]){ 0, 3, 6 });
    check_indices("1 and 3 of 5", customs, 2, 5, (const int64_t[]){ 1, 4 });
    check_indices("S M E 1 of 6", four, 4, 6, (const int64_t[]){ 0, 5, 9, 2 });
    /* class tokens of one place: by kind, then by the list */
    const kr_class_token ties[] = { CUSTOM(0), START, CUSTOM(2), MIDDLE, START, CUSTOM(0) };
    check_indices("ties", ties, 6, 4, (const int64_t[]){ 2, 0, 7, 6, 1, 3 });
    /* beyond the end: past what is emitted, after the end class token */
    const kr_class_token beyond[] = { CUSTOM(9), CUSTOM(4), END, CUSTOM(7) };
    check_indices("beyond", beyond, 4, 4, (const int64_t[]){ 7, 5, 4, 6 });
    check_indices("S M E of nothing", sme, 3, 0, (const int64_t[]){ 0, 1, 2 });
    const kr_class_token far[] = { CUSTOM(INT64_MAX), END };
    check_indices("far", far, 2, 3, (const int64_t[]){ 4, 3 });
}

TEST(index_out_of_range)
{
    const kr_class_token good[] = { START }, bad_kind[] = { START, { .kind = (kr_class_token_kind)4 } },
                         bad_at[] = { CUSTOM(-1) };
    CHECK(kr_class_token_index(NULL, 1, 0, 4) == -1 && kr_class_token_index(good, 1, 1, 4) == -1 &&
              kr_class_token_index(good, 1, -1, 4) == -1 && kr_class_token_index(good, 0, 0, 4) == -1 &&
              kr_class_token_index(good, 1, 0, -1) == -1 && kr_class_token_index(good, 1, 0, INT64_MAX) == -1 &&
              kr_class_token_index(bad_kind, 2, 0, 4) == -1 && kr_class_token_index(bad_at, 1, 0, 4) == -1,
          "-1");
}

/* ---- plans ---- */

/* A plan as text: "0:S 2:M 5:E". */
static const char *plan_text(const kr_class_token *class_tokens, const kr_splice *plan, int nplan, char *text,
                             size_t bytes)
{
    size_t length = 0;
    text[0] = '\0';
    for (int i = 0; i < nplan && length < bytes; i++)
        length += (size_t)snprintf(text + length, bytes - length, "%s%lld:%c", i ? " " : "", (long long)plan[i].at,
                                   "SMEC"[class_tokens[plan[i].token].kind]);
    return text;
}

static void check_plan(kr_ctx *c, const kr_class_token *class_tokens, int count, int64_t full_len, bool primes,
                       int64_t tokens, int64_t *offset, const char *want, int64_t want_offset, int line)
{
    kr_splice plan[MOST];
    int nplan = 0;
    char text[100];
    CHECK(kr_class_tokens_plan(c, "op", class_tokens, count, full_len, primes, tokens, offset, plan, &nplan),
          "line %d: %s", line, kr_ctx_message(c));
    plan_text(class_tokens, plan, nplan, text, sizeof text);
    CHECK(strcmp(text, want) == 0 && *offset == want_offset, "line %d: \"%s\" to %lld, not \"%s\" to %lld", line, text,
          (long long)*offset, want, (long long)want_offset);
}
#define PLAN(primes, tokens, want, to)                                                                                 \
    check_plan(ctx, class_tokens, count, full_len, primes, tokens, &offset, want, to, __LINE__)

TEST(chunks_and_primes)
{
    begin();
    const kr_class_token class_tokens[] = { START, MIDDLE, END, CUSTOM(3) };
    const int count = 4;
    int64_t full_len = 6, offset = 0; /* outputs S 0 1 2 M C 3 4 5 E */
    PLAN(false, 6, "0:S 3:M 3:C 6:E", 10);
    offset = 0;
    PLAN(true, 0, "0:S", 1);
    PLAN(true, 0, "", 1);
    PLAN(false, 3, "", 4); /* what stands before the fourth token waits for it */
    PLAN(true, 0, "0:M 0:C", 6);
    PLAN(false, 2, "", 8);
    PLAN(true, 0, "", 8); /* the end is never primed */
    PLAN(false, 1, "1:E", 10);
    PLAN(true, 0, "", 10); /* nor is anything at the announced end */
    PLAN(false, 2, "", 12);
    /* a level above one that primed: two tokens came with it */
    offset = 0;
    PLAN(true, 2, "0:S", 3);
    offset = 0;
    PLAN(true, 3, "0:S 3:M 3:C", 6);
    end();
}

TEST(custom_beyond_the_length)
{
    begin();
    const kr_class_token class_tokens[] = { CUSTOM(9), END };
    const int count = 2;
    int64_t full_len = 3, offset = 0;
    PLAN(false, 3, "3:E", 4);
    PLAN(true, 0, "", 4);     /* nothing waits at the announced end ... */
    PLAN(false, 1, "0:C", 6); /* ... but it lands before a token that comes all the same, whatever its place was */
    offset = 0;
    PLAN(false, 5, "3:E 3:C", 7);
    end();
}

TEST(unknown_lengths)
{
    begin();
    const kr_class_token class_tokens[] = { CUSTOM(2), START, CUSTOM(INT64_MAX) };
    const int count = 3;
    int64_t full_len = KR_LENGTH_UNKNOWN, offset = 0;
    PLAN(false, 2, "0:S", 3);
    PLAN(true, 0, "0:C", 4);
    PLAN(false, 1000, "", 1004);
    const kr_class_token middle[] = { START, MIDDLE }, last[] = { END };
    kr_splice plan[2];
    int nplan;
    const char *text =
        "layers.step: a middle or end class token needs the sequence's length; announce it with kr_state_announce";
    REFUSED(KR_ERR_STATE, text,
            kr_class_tokens_plan(ctx, "layers.step", middle, 2, -1, false, 1, &offset, plan, &nplan));
    REFUSED(KR_ERR_STATE, text, kr_class_tokens_plan(ctx, "layers.step", last, 1, -1, true, 0, &offset, plan, &nplan));
    REFUSED(KR_ERR_ARG, "op: the sequence's length = -2, but must be from 0 to 2^62",
            kr_class_tokens_plan(ctx, "op", last, 1, -2, true, 0, &offset, plan, &nplan));
    CHECK(offset == 1004, "a refused plan moves nothing");
    CHECK(kr_class_tokens_plan(ctx, "op", NULL, 0, -1, false, 7, &offset, plan, &nplan) && nplan == 0 && offset == 1011,
          "no class tokens, no length needed");
    CHECK(kr_class_tokens_outputs(class_tokens, count, -1) == -1, "no length, no number of outputs");
    end();
}

/* ---- the law: cut anywhere, primed anywhere, the class tokens stand where they would in the whole ---- */

static int random_class_tokens(kr_class_token *class_tokens, int64_t len)
{
    const int count = (int)kr_test_below(MOST) + 1;
    for (int i = 0; i < count; i++) {
        class_tokens[i].kind = (kr_class_token_kind)kr_test_below(4);
        class_tokens[i].at = kr_test_below(len + 4);
    }
    return count;
}

/* By hand: for each token in turn, the class tokens before it, then those after the last. */
static int plan_by_hand(const kr_class_token *class_tokens, int count, int64_t len, kr_splice *plan)
{
    int n = 0;
    for (int64_t token = 0; token <= len; token++)
        for (int kind = KR_CLASS_TOKEN_START; kind <= KR_CLASS_TOKEN_CUSTOM; kind++)
            for (int i = 0; i < count; i++) {
                const int64_t place[] = { 0, len / 2, len, class_tokens[i].at };
                const bool lands = kind == KR_CLASS_TOKEN_END ? token == len : token < len;
                if ((int)class_tokens[i].kind == kind && place[kind] == token && lands)
                    plan[n++] = (kr_splice){ token, i };
            }
    return n;
}

static bool same_plan(const kr_splice *a, int na, const kr_splice *b, int nb)
{
    bool same = na == nb;
    for (int i = 0; same && i < na; i++) same = a[i].at == b[i].at && a[i].token == b[i].token;
    return same;
}

/* One level on its way through a sequence: what it has had and what it has planned, places counted from the start. */
typedef struct level {
    const kr_class_token *class_tokens;
    int count;
    int64_t len, offset, done;
    kr_splice plan[2 * MOST];
    int nplan;
} level;

/* c more tokens; how many the level hands on, -1 after an error. */
static int64_t feed(level *l, bool primes, int64_t c)
{
    kr_splice part[MOST];
    int n;
    const int64_t before = l->offset;
    if (!kr_class_tokens_plan(ctx, "op", l->class_tokens, l->count, l->len, primes, c, &l->offset, part, &n)) return -1;
    for (int i = 0; i < n && l->nplan < 2 * MOST; i++)
        l->plan[l->nplan++] = (kr_splice){ l->done + part[i].at, part[i].token };
    l->done += c;
    CHECK(l->offset == before + c + n, "the offset counts what was emitted");
    return c + n;
}

/* The whole sequence in random chunks, primed at random, through one level and the one inside it. */
static void feed_in_chunks(level *outer, level *inner)
{
    while (true) {
        for (int64_t primes = kr_test_below(3); primes > 0; primes--) feed(inner, true, feed(outer, true, 0));
        if (outer->done == outer->len || kr_ctx_failed(ctx)) return;
        feed(inner, false, feed(outer, false, 1 + kr_test_below(outer->len - outer->done)));
    }
}

static bool check_level(int round, const level *l)
{
    kr_splice whole[MOST], hand[MOST];
    int nwhole = 0;
    int64_t emitted = 0;
    char a[200], b[200], c[200];
    CHECK(kr_class_tokens_plan(ctx, "op", l->class_tokens, l->count, l->len, false, l->len, &emitted, whole, &nwhole),
          "plan");
    const int nhand = plan_by_hand(l->class_tokens, l->count, l->len, hand);
    plan_text(l->class_tokens, hand, nhand, a, sizeof a);
    plan_text(l->class_tokens, whole, nwhole, b, sizeof b);
    plan_text(l->class_tokens, l->plan, l->nplan, c, sizeof c);
    /* the indices tell where the outputs are */
    for (int i = 0; i < nwhole; i++)
        CHECK(kr_class_token_index(l->class_tokens, l->count, whole[i].token, l->len) == whole[i].at + i,
              "round %d: index", round);
    return CHECK(emitted == kr_class_tokens_outputs(l->class_tokens, l->count, l->len) && emitted == l->len + nwhole &&
                     l->offset == emitted,
                 "round %d: offset", round) &&
           CHECK(same_plan(whole, nwhole, hand, nhand), "round %d: whole %s, by hand %s", round, b, a) &&
           CHECK(same_plan(l->plan, l->nplan, whole, nwhole), "round %d: parts %s, whole %s of %lld", round, c, b,
                 (long long)l->len);
}

TEST(chunks_make_the_whole)
{
    begin();
    const int rounds = kr_test_quick() ? 2000 : 50000;
    for (int round = 0; round < rounds; round++) {
        kr_class_token around[MOST], within[MOST];
        const int64_t len = 1 + kr_test_below(12);
        level outer = { .class_tokens = around, .count = random_class_tokens(around, len), .len = len };
        level inner = { .class_tokens = within, .len = kr_class_tokens_outputs(around, outer.count, len) };
        inner.count = random_class_tokens(within, inner.len);
        feed_in_chunks(&outer, &inner);
        if (!check_level(round, &outer) || !check_level(round, &inner)) break;
    }
    end();
}

/* ---- splicing ---- */

TEST(splicing)
{
    begin();
    kr_tensor *x = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(2, 3, 4)), *table = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(3, 4));
    const kr_splice plan[] = { { 0, 2 }, { 2, 0 }, { 2, 2 }, { 3, 1 } };
    kr_tensor *y = kr_class_tokens_splice(t, x, 2, table, plan, 4);
    const int64_t from[7] = { -3, 0, 1, -1, -3, 2, -2 }; /* token, or -1 - row of the table */
    if (CHECK(kr_tensor_dim(y, 1) == 7, "7 outputs"))
        for (int64_t b = 0; b < 2; b++)
            for (int64_t s = 0; s < 7; s++)
                for (int64_t d = 0; d < 4; d++) {
                    const double want = from[s] >= 0 ? kr_tensor_at(x, (const int64_t[]){ b, from[s], d })
                                                     : kr_tensor_at(table, (const int64_t[]){ -1 - from[s], d });
                    CHECK(kr_tensor_at(y, (const int64_t[]){ b, s, d }) == want, "[%d, %d, %d]", (int)b, (int)s,
                          (int)d);
                }
    kr_tensor *alone = kr_class_tokens_splice(t, NULL, 2, table, (const kr_splice[]){ { 0, 1 }, { 0, 0 } }, 2);
    CHECK(kr_tensor_dim(alone, 0) == 2 && kr_tensor_dim(alone, 1) == 2 &&
              kr_tensor_at(alone, (const int64_t[]){ 1, 0, 3 }) == kr_tensor_at(table, (const int64_t[]){ 1, 3 }) &&
              kr_tensor_at(alone, (const int64_t[]){ 1, 1, 3 }) == kr_tensor_at(table, (const int64_t[]){ 0, 3 }),
          "without tokens");
    CHECK(kr_class_tokens_splice(t, x, 2, table, NULL, 0) == x && !kr_class_tokens_splice(t, NULL, 2, table, NULL, 0),
          "nothing to splice");
    kr_tensor *half = kr_class_tokens_splice(t, kr_cast(t, x, KR_DTYPE_BF16), 2, table, plan, 1);
    CHECK(kr_tensor_dtype(half) == KR_DTYPE_BF16, "rows take the tokens' type");
    end();
}

static kr_tensor *spliced_loss(kr_tape *tape, void *user)
{
    kr_tensor *const *p = user;
    const kr_splice plan[] = { { 0, 2 }, { 2, 0 }, { 2, 2 }, { 3, 1 } };
    kr_tensor *y = kr_class_tokens_splice(tape, p[0], 2, p[1], plan, 4);
    return differences_weigh(tape, kr_mul(tape, y, y), 0);
}

TEST(splicing_gradients)
{
    begin();
    kr_tensor *p[2] = { kr_param_create(ctx, KR_DTYPE_F64, KR_SHAPE(2, 3, 4)),
                        kr_param_create(ctx, KR_DTYPE_F64, KR_SHAPE(3, 4)) };
    for (int i = 0; i < 2; i++) kr_param_normal(p[i], 0, 1);
    /* a square's differences are exact but for rounding */
    differences_check(ctx, spliced_loss, p, 2, p, (const char *[]){ "x", "table" }, 100, 1e-8);
    for (int i = 0; i < 2; i++) kr_param_destroy(p[i]);
    end();
}

TEST(class_token_errors)
{
    begin();
    const kr_class_token good[] = { START, CUSTOM(0), CUSTOM(INT64_MAX) },
                         kind[] = { START, { .kind = (kr_class_token_kind)4 } };
    const kr_class_token place[] = { START, END, CUSTOM(-3) };
    REFUSED(KR_ERR_ARG, "op: n_latents = -1, but must not be negative",
            kr_class_tokens_check(ctx, "op", "latents", good, -1));
    REFUSED(KR_ERR_ARG, "op: n_latents = 2, but latents is NULL", kr_class_tokens_check(ctx, "op", "latents", NULL, 2));
    REFUSED(KR_ERR_ARG, "op: latents[1].kind = 4 is not one of start, middle, end, custom",
            kr_class_tokens_check(ctx, "op", "latents", kind, 2));
    REFUSED(KR_ERR_ARG, "op: latents[2].at = -3, but a custom position must not be negative",
            kr_class_tokens_check(ctx, "op", "latents", place, 3));
    CHECK(kr_class_tokens_check(ctx, "op", "latents", good, 3) && kr_class_tokens_check(ctx, "op", "latents", NULL, 0),
          "good");
    kr_tape_reset(t);
    end();
}
