/* decimal.c - decimal to binary by exact arithmetic on decimal digits.
 *
 * A number is 0.d0 d1 d2 .. * 10^point. It is multiplied and divided by powers of two, digit by digit, until it is in
 * [1/2, 1); the powers are the binary exponent, and 53 more doublings make the fraction an integer, which is rounded
 * once. The halfway point between two doubles has at most 767 digits, so of longer numbers it only matters whether
 * nonzero digits follow. Short numbers take a fast path of one multiplication or division of exact doubles.
 */
#include "io/decimal.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

enum {
    MOST_DIGITS = 800,
    MOST_SHIFT = 59,       /* 9 * 2^59 and a carry fit 64 bits */
    GROWTH = 20,           /* digits that a shift by MOST_SHIFT may add: 2^59 < 10^18 */
    BIGGEST_POINT = 310,   /* 0.1 * 10^310 is above the largest double */
    SMALLEST_POINT = -330, /* 10^-330 is less than half the smallest denormal */
    FRACTION_BITS = 52,
    LEAST_EXPONENT = -1022,
    MOST_EXPONENT = 1023
};

typedef struct decimal {
    int64_t point;
    int count;
    bool more; /* nonzero digits after the last were dropped */
    unsigned char digit[MOST_DIGITS];
} decimal;

static void trim(decimal *d)
{
    while (d->count > 0 && d->digit[d->count - 1] == 0) d->count--;
    if (d->count == 0) d->point = 0;
}

static void append(decimal *d, unsigned digit)
{
    if (d->count < MOST_DIGITS) d->digit[d->count++] = (unsigned char)digit;
    else if (digit) d->more = true;
}

static int64_t read_exponent(const char *text, const char *end)
{
    const int64_t most = INT64_C(1) << 40; /* exceeds the length of any fraction */
    bool negative = *text == '-';
    if (*text == '-' || *text == '+') text++;
    int64_t exponent = 0;
    for (; text < end; text++)
        if (exponent < most) exponent = exponent * 10 + (*text - '0');
    return negative ? -exponent : exponent;
}

static void read_digits(const char *text, const char *end, decimal *d)
{
    bool fraction = false;
    d->point = 0;
    d->count = 0;
    d->more = false;
    for (; text < end; text++) {
        if (*text == '.') {
            fraction = true;
        } else if (*text == 'e' || *text == 'E') {
            d->point += read_exponent(text + 1, end);
            break;
        } else if (d->count == 0 && *text == '0') {
            if (fraction) d->point--;
        } else {
            append(d, (unsigned)(*text - '0'));
            if (!fraction) d->point++;
        }
    }
    trim(d);
}

/* d * 2^shift */
static void shift_left(decimal *d, int shift)
{
    unsigned char out[MOST_DIGITS + GROWTH];
    const int end = d->count + GROWTH;
    int at = end;
    uint64_t carry = 0;
    for (int i = d->count - 1; i >= 0; i--) {
        carry += (uint64_t)d->digit[i] << shift;
        out[--at] = (unsigned char)(carry % 10);
        carry /= 10;
    }
    for (; carry > 0; carry /= 10) out[--at] = (unsigned char)(carry % 10);
    d->point += end - at - d->count;
    d->count = 0;
    for (; at < end; at++) append(d, out[at]);
    trim(d);
}

/* d / 2^shift */
static void shift_right(decimal *d, int shift)
{
    const int given = d->count;
    const uint64_t mask = (UINT64_C(1) << shift) - 1;
    int at = 0;
    uint64_t rest = 0;
    for (; rest >> shift == 0 && (at < given || rest); at++) rest = rest * 10 + (at < given ? d->digit[at] : 0);
    d->point -= at - 1;
    d->count = 0;
    /* digits are written behind the read position: at least one is read before the first is written */
    for (; at < given; at++) {
        unsigned next = d->digit[at];
        append(d, (unsigned)(rest >> shift));
        rest = (rest & mask) * 10 + next;
    }
    for (; rest > 0; rest = (rest & mask) * 10) append(d, (unsigned)(rest >> shift));
    trim(d);
}

/* The integer part, rounded to nearest, ties to even; the number is below 2^54. */
static uint64_t rounded(const decimal *d)
{
    uint64_t n = 0;
    int at = 0;
    if (d->point < 0) return 0;
    for (; at < d->point; at++) n = n * 10 + (at < d->count ? d->digit[at] : 0u);
    if (at >= d->count) return n;
    bool tie = d->digit[at] == 5 && at + 1 == d->count && !d->more;
    return n + (tie ? n & 1 : d->digit[at] >= 5);
}

/* Powers of two just below powers of ten, so that a shift moves point towards 0 and not past it. */
static int shift_for(int64_t digits)
{
    static const unsigned char shift[] = { 1, 3, 6, 9, 13, 16, 19, 23, 26 };
    return digits < (int64_t)sizeof shift ? shift[digits] : 27;
}

/* The magnitude of a decimal that is not 0; infinity if it is too large. */
static double exact(decimal *d)
{
    if (d->point > BIGGEST_POINT) return INFINITY;
    if (d->point < SMALLEST_POINT) return 0;
    int exponent = -1; /* the number is in [1, 2) * 2^exponent when the decimal is in [1/2, 1) */
    while (d->point > 0) {
        const int shift = shift_for(d->point);
        shift_right(d, shift);
        exponent += shift;
    }
    while (d->point < 0 || d->digit[0] < 5) {
        const int shift = shift_for(-d->point);
        shift_left(d, shift);
        exponent -= shift;
    }
    while (exponent < LEAST_EXPONENT) { /* denormal: fewer bits of fraction */
        int shift = LEAST_EXPONENT - exponent;
        if (shift > MOST_SHIFT) shift = MOST_SHIFT;
        shift_right(d, shift);
        exponent += shift;
    }
    shift_left(d, FRACTION_BITS + 1);
    uint64_t fraction = rounded(d);
    if (exponent > MOST_EXPONENT) return INFINITY;
    return ldexp((double)fraction, exponent - FRACTION_BITS);
}

/* Up to 15 digits and powers of ten up to 10^22 are exact doubles, so that one operation rounds once. */
static bool quick(const decimal *d, double *value)
{
#if FLT_EVAL_METHOD == 0
    static const double ten[] = { 1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                  1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22 };
    const int64_t power = d->point - d->count;
    if (d->count > 15 || power < -22 || power > 22) return false;
    uint64_t n = 0;
    for (int i = 0; i < d->count; i++) n = n * 10 + d->digit[i];
    *value = power < 0 ? (double)n / ten[-power] : (double)n * ten[power];
    return true;
#else
    (void)d, (void)value;
    return false;
#endif
}

bool kr_decimal_read(const char *text, size_t length, double *value)
{
    decimal d;
    const char *end = text + length;
    const bool negative = *text == '-';
    read_digits(text + negative, end, &d);
    double magnitude = 0;
    if (d.count > 0 && !quick(&d, &magnitude)) magnitude = exact(&d);
    *value = negative ? -magnitude : magnitude;
    return isfinite(magnitude);
}
