/* test_decimal.c - decimal numbers to doubles: against the C library in the "C" locale, to the bit. */
#include "io/decimal.h"
#include "tests/harness.h"

static void check(const char *text)
{
    double got = -1;
    const double want = strtod(text, NULL);
    const bool finite = kr_decimal_read(text, strlen(text), &got);
    CHECK(finite == !isinf(want) && memcmp(&got, &want, sizeof got) == 0, "%.60s: got %a, want %a", text, got, want);
}

TEST(known_numbers)
{
    static const char *const texts[] = {
        "0",
        "-0",
        "0.0",
        "0e999999999999999999999",
        "1",
        "-1",
        "10",
        "123456789012345678",
        "0.1",
        "0.3",
        "1e22",
        "1e23",
        "1e-22",
        "9007199254740993",
        "9007199254740992.9999999999",
        "9007199254740993.0000000000000000000000000001",
        "1.7976931348623157e308",
        "1.7976931348623158e308",
        "1.7976931348623159e308",
        "17976931348623158079372897140530e277",
        "1.797693134862315807e308",
        "2.2250738585072014e-308",
        "2.2250738585072011e-308",
        "4.9406564584124654e-324",
        "2.4703282292062327e-324",
        "2.4703282292062328e-324",
        "2.4e-324",
        "1e-400",
        "1e400",
        "1e-99999999999999999999",
        "1E+99999999999999999999",
        "0.000000000000000000000000000000000000000000001e45",
        "100000000000000000000000000000000000000000000000000000000000000000000000000000e-77",
        "6.02214076e23",
        "5e-324",
        "8.5e-324",
        "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) check(texts[i]);
}

TEST(random_numbers)
{
    const int count = kr_test_quick() ? 20000 : 200000;
    for (int i = 0; i < count; i++) {
        char text[64];
        uint64_t bits = kr_test_next();
        double x;
        memcpy(&x, &bits, sizeof x);
        if (!isfinite(x)) continue;
        snprintf(text, sizeof text, "%.*e", (int)kr_test_below(25), x);
        check(text);
    }
}

/* Exactly between two doubles, and a little to either side: up to 767 digits decide. */
TEST(halfway_numbers)
{
    char text[1200];
    for (int i = 0; i < (kr_test_quick() ? 200 : 2000); i++) {
        const uint64_t bits = i % 4 == 0 ? (uint64_t)kr_test_below(1 << 20) : kr_test_next() & 0x7fffffffffffffffu;
        double low, high;
        const uint64_t next = bits + 1;
        memcpy(&low, &bits, sizeof low);
        memcpy(&high, &next, sizeof high);
        if (!isfinite(high)) continue;
        const long double half = ((long double)low + (long double)high) / 2; /* exact where long double is wider */
        if (half <= (long double)low || half >= (long double)high) SKIP("long double is a double here");
        const int n = snprintf(text, 1100, "%.800Le", half);
        char *e = strchr(text, 'e');
        check(text);
        for (int digit = '1'; digit <= '9'; digit += 8) { /* the last digit before the exponent */
            const char kept = e[-1];
            e[-1] = (char)digit;
            check(text);
            e[-1] = kept;
        }
        CHECK(n > 800, "%d characters", n);
    }
}

TEST(long_numbers)
{
    static char text[5000];
    for (int i = 0; i < (kr_test_quick() ? 100 : 1000); i++) {
        const int ndigits = 1 + (int)kr_test_below(2000), nzeros = (int)kr_test_below(1000);
        const int point = (int)kr_test_below(ndigits + nzeros);
        int at = 0;
        for (int d = 0; d < ndigits + nzeros; d++) {
            if (d == point) {
                if (d == 0) text[at++] = '0';
                text[at++] = '.';
            }
            const char digit = (char)('0' + (d < ndigits ? kr_test_below(10) : 0));
            if (d == 0 && point > 1 && digit == '0') text[at++] = '7';
            else text[at++] = digit;
        }
        snprintf(text + at, sizeof text - (size_t)at, "e%d", (int)kr_test_below(4000) - 2000);
        check(text);
    }
}
