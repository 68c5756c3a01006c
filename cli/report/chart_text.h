/* chart_text.h - a chart for a terminal: braille dots in colours, or letters where the locale has no more. */
#ifndef KR_CLI_REPORT_CHART_TEXT_H
#define KR_CLI_REPORT_CHART_TEXT_H

#include "cli/report/chart.h"

#include <stdio.h>

typedef struct text_style {
    int columns, rows; /* of the whole chart; of the space for curves */
    bool is_utf8, has_color;
} text_style;

/* 80 columns and 12 rows, UTF-8 if the locale says so, colours if `out` is a terminal and NO_COLOR is not set. */
text_style text_style_of(FILE *out);

/* Prints the chart, best after chart_reduce, with the name of each curve and its last value at its right end. */
void chart_text(FILE *out, const chart *c, const text_style *style);

#endif
