/* axis.c - positions and labels of an axis's ticks. */
#include "cli/report/axis.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- labels ---- */

/* "1.50e-05" without redundant digits: "1.5e-5". */
static void shorten_exponent(char *text)
{
    char *e = strchr(text, 'e');
    if (!e) return;
    char *end = e;
    if (memchr(text, '.', (size_t)(e - text))) {
        while (end[-1] == '0') end--;
        if (end[-1] == '.') end--;
    }
    const int exponent = (int)strtol(e + 1, NULL, 10);
    snprintf(end, 8, "e%d", exponent);
}

/* The largest of 1, k, M, G, T that leaves a number of 1e4 or more at least 1. */
static double unit_of(double size, const char **name)
{
    static const struct {
        double size;
        const char *name;
    } units[] = { { 1e12, "T" }, { 1e9, "G" }, { 1e6, "M" }, { 1e3, "k" } };
    *name = "";
    for (int i = 0; size >= 1e4 && i < 4; i++) {
        if (size < units[i].size) continue;
        *name = units[i].name;
        return units[i].size;
    }
    return 1;
}

static bool is_plain(double size)
{
    return size < 1e15 && size >= 1e-3;
}

const char *axis_number(double value, char text[AXIS_LABEL])
{
    const double size = fabs(value);
    const char *unit;
    if (value == 0) return strcpy(text, "0");
    if (!isfinite(value)) return strcpy(text, isnan(value) ? "NaN" : value > 0 ? "inf" : "-inf");
    if (!is_plain(size)) {
        snprintf(text, AXIS_LABEL, "%.2e", value);
        shorten_exponent(text);
        return text;
    }
    const double scaled = value / unit_of(size, &unit);
    snprintf(text, AXIS_LABEL, "%.4g%s", scaled, unit);
    if (strchr(text, 'e')) snprintf(text, AXIS_LABEL, "%.0f%s", scaled, unit);
    return text;
}

/* Ticks of one axis have one unit and as many decimals as their distance asks for. */
static void label_linear(axis *a, double step)
{
    const double size = fmax(fabs(a->tick[0]), fabs(a->tick[a->count - 1]));
    const char *name;
    const double unit = unit_of(size, &name);
    const int decimals = (int)fmax(0, -floor(log10(step / unit) + 1e-9));
    const bool fits = size < 1e15 && size >= 1e-2 && decimals < 8;
    for (int i = 0; i < a->count; i++) {
        const double t = a->tick[i];
        if (t == 0) snprintf(a->label[i], AXIS_LABEL, "0");
        else if (fits) snprintf(a->label[i], AXIS_LABEL, "%.*f%s", decimals, t / unit, name);
        else {
            const double digits = floor(log10(fabs(t)) + 1e-9) - floor(log10(step) + 1e-9);
            snprintf(a->label[i], AXIS_LABEL, "%.*e", (int)fmin(9, fmax(0, digits)), t);
            shorten_exponent(a->label[i]);
        }
    }
}

void axis_unit(axis *a, const char *unit)
{
    for (int i = 0; i < a->count; i++) {
        const size_t n = strlen(a->label[i]);
        snprintf(a->label[i] + n, AXIS_LABEL - n, "%s", unit);
    }
}

/* ---- ticks ---- */

/* Smaller values count as 0; quotients of larger ones are still normal numbers. */
#define TINY 1e-280

/* 1, 2 or 5 times a power of ten, such that about `wanted` of them fill the span. */
static double nice_step(double span, int wanted)
{
    const double least = span / (wanted > 1 ? wanted : 2), power = pow(10, floor(log10(least)));
    const double times = least / power;
    return power * (times <= 1.0000001 ? 1 : times <= 2.0000001 ? 2 : times <= 5.0000001 ? 5 : 10);
}

static int within_reason(int wanted)
{
    return wanted < 2 ? 2 : wanted > AXIS_TICKS / 2 ? AXIS_TICKS / 2 : wanted;
}

static void put_ticks(axis *a, double step)
{
    const double first = ceil(a->low / step - 1e-9), last = floor(a->high / step + 1e-9);
    a->count = 0;
    for (double i = first; i <= last && a->count < AXIS_TICKS; i++) a->tick[a->count++] = i == 0 ? 0 : i * step;
}

void axis_linear(axis *a, double low, double high, int wanted, bool rounds)
{
    const double size = fmax(fabs(low), fabs(high));
    wanted = within_reason(wanted);
    if (high < low || high - low <= fmax(1e-9 * size, TINY)) { /* no span to speak of: a margin around it */
        const double middle = low / 2 + high / 2, margin = size > TINY ? 0.1 * size : 1;
        low = middle - (middle == 0 ? 0 : margin);
        high = middle + margin;
    }
    double step = nice_step(high - low, wanted);
    if (rounds) {
        low = floor(low / step + 1e-9) * step;
        high = ceil(high / step - 1e-9) * step;
    }
    *a = (axis){ .low = low, .high = high };
    put_ticks(a, step);
    for (; a->count < 2; put_ticks(a, step)) step = nice_step(high - low, ++wanted); /* five steps have two ticks */
    label_linear(a, step);
}

void axis_whole(axis *a, double low, double high, int wanted)
{
    axis_linear(a, low, high, wanted, false);
    if (a->tick[1] - a->tick[0] > 0.999 || floor(a->high) - ceil(a->low) < 1) return;
    put_ticks(a, 1);
    label_linear(a, 1);
}

/* At these multiples of each power of ten whose exponent the stride divides. */
static void log_ticks(axis *a, int stride, const char *multiples)
{
    const double from = floor(log10(a->low) + 1e-9), to = ceil(log10(a->high) - 1e-9);
    a->count = 0;
    for (double e = from; e <= to; e += 1) {
        if (fmod(e, stride) != 0) continue;
        for (const char *m = multiples; *m && a->count < AXIS_TICKS; m++) {
            const double t = (*m - '0') * pow(10, e);
            if (t < a->low * (1 - 1e-9) || t > a->high * (1 + 1e-9)) continue;
            a->tick[a->count++] = t;
        }
    }
}

void axis_log(axis *a, double low, double high, int wanted)
{
    wanted = within_reason(wanted);
    if (!(low > 1e-100)) low = 1e-100;
    if (!(high > low * 1.000001)) high = low * 10;
    *a = (axis){ .is_log = true, .low = low, .high = high };
    const double decades = log10(high / low);
    int stride = 1;
    while (decades / stride > wanted) stride++;
    log_ticks(a, stride, decades * 9 <= wanted ? "123456789" : decades * 3 <= wanted * 2 ? "125" : "1");
    while (a->count < 2 && stride > 1) log_ticks(a, --stride, "1");
    if (a->count < 2) {
        axis_linear(a, low, high, wanted, false);
        a->is_log = true;
        a->low = low;
        a->high = high;
        return;
    }
    for (int i = 0; i < a->count; i++) axis_number(a->tick[i], a->label[i]);
}

double axis_at(const axis *a, double value)
{
    if (!a->is_log) return (value - a->low) / (a->high - a->low);
    return value > 0 ? (log(value) - log(a->low)) / (log(a->high) - log(a->low)) : -1;
}
