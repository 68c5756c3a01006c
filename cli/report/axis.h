/* axis.h - an axis of a chart: its range, and its ticks at round numbers, with labels. */
#ifndef KR_CLI_REPORT_AXIS_H
#define KR_CLI_REPORT_AXIS_H

#include <stdbool.h>

enum { AXIS_TICKS = 24, AXIS_LABEL = 24 };

typedef struct axis {
    bool is_log;
    double low, high; /* low < high; of a logarithmic axis 0 < low */
    int count;        /* at least 2 */
    double tick[AXIS_TICKS];
    char label[AXIS_TICKS][AXIS_LABEL];
} axis;

/* A linear axis with about `wanted` ticks at multiples of 1, 2 or 5 times a power of ten. It ends at `low` and `high`,
 * or with `rounds` at the ticks around them. Any finite values up to 1e100 will do, also equal ones. */
void axis_linear(axis *a, double low, double high, int wanted, bool rounds);

/* One for things that are counted: ticks at whole numbers, if there are two of them. */
void axis_whole(axis *a, double low, double high, int wanted);

/* A logarithmic one from above 0, with ticks at powers of ten, or at 1, 2 and 5 times them where they fit. */
void axis_log(axis *a, double low, double high, int wanted);

/* Labels end with this, " %" say. */
void axis_unit(axis *a, const char *unit);

/* Position of a value: 0 at low, 1 at high, outside beyond them; -1 for values that a logarithmic axis cannot show. */
double axis_at(const axis *a, double value);

/* A number as short as four digits allow: "0.0312", "12.5k", "3e-5". */
const char *axis_number(double value, char text[AXIS_LABEL]);

#endif
