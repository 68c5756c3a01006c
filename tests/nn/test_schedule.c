/* test_schedule.c - which weights a virtual layer uses: the tables of the reference, and what holds for any sizes. */
#include "tests/harness.h"

#include <krait/network.h>

static void check_row(const char *what, const int64_t *got, const int64_t *want, int count)
{
    for (int v = 0; v < count; v++)
        CHECK(got[v] == want[v], "%s: virtual layer %d uses %lld, not %lld", what, v, (long long)got[v],
              (long long)want[v]);
}

TEST(tables_of_8_over_3)
{
    const int64_t want[2][8] = { { 0, 1, 2, 0, 1, 2, 0, 1 }, { 0, 0, 0, 1, 1, 1, 2, 2 } };
    for (int s = 0; s < 2; s++) {
        int64_t got[8];
        for (int v = 0; v < 8; v++) got[v] = kr_schedule_at((kr_schedule)s, NULL, v, 8, 3);
        check_row(s ? "stretched" : "cyclic", got, want[s], 8);
    }
}

TEST(tables_of_10_over_4)
{
    const int64_t want[4][10] = { { 0, 1, 2, 3, 0, 1, 2, 3, 0, 1 },
                                  { 0, 1, 0, 1, 0, 1, 2, 3, 2, 3 },
                                  { 0, 0, 1, 1, 2, 2, 3, 3, 0, 0 },
                                  { 0, 0, 0, 0, 1, 1, 2, 2, 3, 3 } };
    const char *names[4] = { "strided cyclic", "strided stretched", "symmetric cyclic", "symmetric stretched" };
    for (int s = 0; s < 4; s++) {
        int64_t got[10];
        for (int v = 0; v < 10; v++) got[v] = kr_bidi_schedule_at((kr_bidi_schedule)s, NULL, v, 10, 4);
        check_row(names[s], got, want[s], 10);
    }
}

/* An odd number of weights: one more of them goes right than left. */
TEST(odd_numbers_of_weights)
{
    const int64_t cyclic[10] = { 0, 1, 2, 3, 4, 1, 0, 3, 2, 1 }, stretched[10] = { 0, 1, 0, 1, 2, 1, 2, 3, 4, 3 };
    int64_t got[2][10];
    for (int v = 0; v < 10; v++) {
        got[0][v] = kr_bidi_schedule_at(KR_BIDI_SCHEDULE_STRIDED_CYCLIC, NULL, v, 10, 5);
        got[1][v] = kr_bidi_schedule_at(KR_BIDI_SCHEDULE_STRIDED_STRETCHED, NULL, v, 10, 5);
    }
    check_row("strided cyclic, 5", got[0], cyclic, 10);
    check_row("strided stretched, 5", got[1], stretched, 10);
    CHECK(kr_bidi_schedule_at(KR_BIDI_SCHEDULE_STRIDED_CYCLIC, NULL, 1, 2, 1) == -1 &&
              kr_bidi_schedule_at(KR_BIDI_SCHEDULE_STRIDED_STRETCHED, NULL, 1, 2, 1) == -1,
          "of one set of weights none goes left");
    CHECK(kr_bidi_schedule_at(KR_BIDI_SCHEDULE_SYMMETRIC_CYCLIC, NULL, 1, 2, 1) == 0,
          "one set may serve both directions");
}

TEST(custom_lists)
{
    const int64_t list[4] = { 2, 0, 2, 1 }, wrong[4] = { 2, 3, -1, 1 };
    for (int v = 0; v < 4; v++)
        CHECK(kr_schedule_at(KR_SCHEDULE_CUSTOM, list, v, 4, 3) == list[v] &&
                  kr_bidi_schedule_at(KR_BIDI_SCHEDULE_CUSTOM, list, v, 4, 3) == list[v],
              "entry %d", v);
    for (int v = 1; v < 3; v++)
        CHECK(kr_schedule_at(KR_SCHEDULE_CUSTOM, wrong, v, 4, 3) == -1 &&
                  kr_bidi_schedule_at(KR_BIDI_SCHEDULE_CUSTOM, wrong, v, 4, 3) == -1,
              "entry %d is out of range", v);
    CHECK(kr_schedule_at(KR_SCHEDULE_CUSTOM, NULL, 0, 4, 3) == -1, "no list");
}

TEST(arguments_out_of_range)
{
    CHECK(kr_schedule_at(KR_SCHEDULE_CYCLIC, NULL, -1, 4, 2) == -1 &&
              kr_schedule_at(KR_SCHEDULE_CYCLIC, NULL, 4, 4, 2) == -1 &&
              kr_schedule_at(KR_SCHEDULE_CYCLIC, NULL, 0, 4, 0) == -1 &&
              kr_schedule_at((kr_schedule)7, NULL, 0, 4, 2) == -1,
          "in one direction");
    CHECK(kr_bidi_schedule_at(KR_BIDI_SCHEDULE_SYMMETRIC_CYCLIC, NULL, -1, 4, 2) == -1 &&
              kr_bidi_schedule_at(KR_BIDI_SCHEDULE_SYMMETRIC_CYCLIC, NULL, 4, 4, 2) == -1 &&
              kr_bidi_schedule_at(KR_BIDI_SCHEDULE_SYMMETRIC_CYCLIC, NULL, 0, 4, 0) == -1 &&
              kr_bidi_schedule_at(KR_BIDI_SCHEDULE_SYMMETRIC_CYCLIC, NULL, 0, 3, 2) == -1 &&
              kr_bidi_schedule_at((kr_bidi_schedule)9, NULL, 0, 4, 2) == -1,
          "in both");
    const int64_t many = INT64_MAX - 1;
    CHECK(kr_schedule_at(KR_SCHEDULE_STRETCHED, NULL, many - 1, many, 3) == -1, "a product beyond 64 bits");
    CHECK(kr_schedule_at(KR_SCHEDULE_STRETCHED, NULL, 0, many, many) == 0, "the first is the first");
}

/* Stretched: in order, each used as often as the others up to one. Both ways, every set of weights is reached as soon
 * as there are as many virtual layers. */
TEST(all_weights_are_used)
{
    for (int64_t r = 1; r <= 12; r++)
        for (int64_t nv = r; nv <= 40; nv++) {
            int64_t uses[12] = { 0 }, last = 0;
            for (int64_t v = 0; v < nv; v++) {
                const int64_t at = kr_schedule_at(KR_SCHEDULE_STRETCHED, NULL, v, nv, r);
                if (!CHECK(at >= last && at < r, "stretched %lld over %lld", (long long)nv, (long long)r)) return;
                uses[at]++;
                last = at;
            }
            for (int64_t i = 0; i < r; i++)
                CHECK(uses[i] >= nv / r && uses[i] <= nv / r + 1, "%lld of %lld uses of weights %lld of %lld",
                      (long long)uses[i], (long long)nv, (long long)i, (long long)r);
        }
    for (int s = 0; s < 4; s++)
        for (int64_t r = 2; r <= 12; r += 2)
            for (int64_t nv = 2 * r; nv <= 40; nv += 2) {
                int64_t uses[12] = { 0 };
                for (int64_t v = 0; v < nv; v++) {
                    const int64_t at = kr_bidi_schedule_at((kr_bidi_schedule)s, NULL, v, nv, r);
                    if (!CHECK(at >= 0 && at < r, "schedule %d", s)) return;
                    if (s < 2) CHECK(at % 2 == v % 2, "strided weights keep their direction");
                    uses[at]++;
                }
                for (int64_t i = 0; i < r; i++) CHECK(uses[i] > 0, "schedule %d leaves out %lld", s, (long long)i);
            }
}
