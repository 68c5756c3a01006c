/* test_half_types.c - bf16 and f16 against a plain computation in double: all 2^16 values, every rounding boundary between
 * neighbours, and doubles that two roundings would get wrong. */
#include "base/half.h"
#include "tests/harness.h"

typedef struct format {
    const char *name;
    int fraction_bits, bias;
    float (*widen)(uint16_t);
    uint16_t (*narrow)(float);
    uint16_t (*narrow_double)(double);
} format;

static const format formats[] = {
    { "bf16", 7, 127, kr_float_from_bf16, kr_bf16_from_float, kr_bf16_from_double },
    { "f16", 10, 15, kr_float_from_f16, kr_f16_from_float, kr_f16_from_double },
};
enum { NFORMATS = 2 };

/* sign * 2^(exponent - bias) * 1.fraction, or its denormal, by ldexp. */
static double value_of(const format *f, uint16_t h)
{
    const int fraction = h & ((1 << f->fraction_bits) - 1), exponent = (h & 0x7fff) >> f->fraction_bits;
    const int top = 0x7fff >> f->fraction_bits;
    const double sign = h & 0x8000 ? -1 : 1;
    if (exponent == top) return fraction ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0) return sign * ldexp(fraction, 1 - f->bias - f->fraction_bits);
    return sign * ldexp((1 << f->fraction_bits) + fraction, exponent - f->bias - f->fraction_bits);
}

TEST(widening_is_exact_for_all_values)
{
    for (int k = 0; k < NFORMATS; k++) {
        const format *f = &formats[k];
        for (uint32_t h = 0; h < 0x10000; h++) {
            const double got = (double)f->widen((uint16_t)h), want = value_of(f, (uint16_t)h);
            const bool same = isnan(want) ? isnan(got) : got == want && !signbit(got) == !signbit(want);
            CHECK(same, "%s %04x: got %a want %a", f->name, (unsigned)h, got, want);
        }
    }
}

TEST(all_values_survive_a_round_trip)
{
    for (int k = 0; k < NFORMATS; k++) {
        const format *f = &formats[k];
        const uint32_t quiet = 1u << (f->fraction_bits - 1);
        for (uint32_t h = 0; h < 0x10000; h++) {
            const float wide = f->widen((uint16_t)h);
            const uint32_t want = isnan(wide) ? h | quiet : h;
            const uint32_t back = f->narrow(wide), back_double = f->narrow_double((double)wide);
            CHECK(back == want, "%s %04x comes back as %04x", f->name, (unsigned)h, (unsigned)back);
            CHECK(back_double == want, "%s %04x comes back from double as %04x", f->name, (unsigned)h,
                  (unsigned)back_double);
        }
    }
}

/* What lies halfway between h and the next larger magnitude; for the largest number, where infinity begins. */
static double halfway(const format *f, uint16_t h)
{
    const double low = value_of(f, h), high = value_of(f, (uint16_t)(h + 1));
    return isinf(high) ? low + (low - value_of(f, (uint16_t)(h - 1))) / 2 : (low + high) / 2;
}

TEST(ties_go_to_even_and_neighbours_to_the_nearest)
{
    for (int k = 0; k < NFORMATS; k++) {
        const format *f = &formats[k];
        const uint16_t infinity = (uint16_t)(0x7fffu >> f->fraction_bits << f->fraction_bits);
        for (uint16_t h = 0; h < infinity; h++) {
            const double tie = halfway(f, h);
            const uint16_t even = (uint16_t)(h + (h & 1)), next = (uint16_t)(h + 1);
            CHECK(f->narrow((float)tie) == even, "%s: tie %a", f->name, tie);
            CHECK(f->narrow(nextafterf((float)tie, 0)) == h, "%s: below the tie %a", f->name, tie);
            CHECK(f->narrow(nextafterf((float)tie, INFINITY)) == next, "%s: above the tie %a", f->name, tie);
            CHECK(f->narrow(-(float)tie) == (even | 0x8000), "%s: tie %a", f->name, -tie);
        }
    }
}

/* A double next to a tie rounds to the tie as a float, and from there the wrong way. */
TEST(doubles_are_rounded_once)
{
    for (int k = 0; k < NFORMATS; k++) {
        const format *f = &formats[k];
        const uint16_t infinity = (uint16_t)(0x7fffu >> f->fraction_bits << f->fraction_bits);
        for (uint16_t h = 0; h < infinity; h++) {
            const double tie = halfway(f, h);
            const uint16_t even = (uint16_t)(h + (h & 1)), next = (uint16_t)(h + 1);
            CHECK(f->narrow_double(tie) == even, "%s: tie %a", f->name, tie);
            CHECK(f->narrow_double(nextafter(tie, 0)) == h, "%s: below the tie %a", f->name, tie);
            CHECK(f->narrow_double(nextafter(tie, INFINITY)) == next, "%s: above the tie %a", f->name, tie);
            CHECK(f->narrow_double(-nextafter(tie, 0)) == (h | 0x8000), "%s: below the tie %a", f->name, -tie);
        }
    }
}

TEST(ends_of_the_range)
{
    for (int k = 0; k < NFORMATS; k++) {
        const format *f = &formats[k];
        const uint16_t infinity = (uint16_t)(0x7fffu >> f->fraction_bits << f->fraction_bits);
        CHECK(f->narrow_double(1e300) == infinity, "%s: 1e300", f->name);
        CHECK(f->narrow_double(-1e300) == (infinity | 0x8000), "%s: -1e300", f->name);
        CHECK(f->narrow(INFINITY) == infinity, "%s: infinity", f->name);
        CHECK(f->narrow_double(1e-300) == 0, "%s: 1e-300", f->name);
        CHECK(f->narrow_double(-1e-300) == 0x8000, "%s: -1e-300", f->name);
        CHECK(f->narrow(-0.0f) == 0x8000, "%s: -0", f->name);
        CHECK((f->narrow_double(NAN) & 0x7fff) > infinity, "%s: NaN", f->name);
    }
    CHECK(kr_f16_from_float(65519.996f) == 0x7bff && kr_f16_from_float(65520) == 0x7c00, "where f16 ends");
}
