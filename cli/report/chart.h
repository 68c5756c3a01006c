/* chart.h - charts of training runs, one over the other: which curves go into which chart, and its axes. How a chart
 * looks is the business of chart_svg.h and chart_text.h. */
#ifndef KR_CLI_REPORT_CHART_H
#define KR_CLI_REPORT_CHART_H

#include "cli/report/axis.h"
#include "cli/report/curves.h"

enum { CHART_LABEL = 96, CHART_SHORT_NAME = 48, CHART_COLORS = 8 };

/* A folder's metrics.csv. */
typedef struct training_run {
    const char *folder; /* the caller's */
    char name[CHART_SHORT_NAME];
    curves curves;
} training_run;

/* Reads all, and gives them names: the last part of the folder's path, or the path where two would have one name. False
 * after an error message; there is nothing to free then. */
bool training_runs_read(training_run *runs, const char *const *folders, int count);
void training_runs_free(training_run *runs, int count);

typedef enum chart_id {
    CHART_LOSS,
    CHART_ACCURACY,
    CHART_LEARNING_RATE,
    CHART_GRADIENT_NORM,
    CHART_SPEED,
    CHARTS
} chart_id;

typedef enum series_style {
    SERIES_LINE,   /* as it is */
    SERIES_NOISY,  /* raw, faint, and smoothed above it */
    SERIES_POINTS, /* sparse: drawn with marks */
} series_style;

typedef struct chart_series {
    const curve *curve;
    series_style style;
    int run, column; /* which run; which of the chart's columns, 0: the first that any run has */
    int color;       /* by run where there are several, else by column */
    double scale;    /* the chart's unit over the file's: 100 for per cent */
    const char *run_name;
    char label[CHART_LABEL]; /* run, column or both: distinguishes the series */
    int n;                   /* of the main line, smoothed if the style says so and there is enough of it */
    double *x, *y;
    bool is_smoothed; /* else the main line is the raw one */
} chart_series;

typedef struct chart {
    chart_id id;
    const char *name, *title, *unit; /* "loss", "Loss", ""; a unit is appended to numbers */
    int n_runs;                      /* of which something is shown */
    int n_columns;                   /* likewise */
    const char *column_label[CURVES_MOST];
    axis x, y;
    bool has_columns; /* it could show several of a run: their names say something */
    const char *only; /* the one column of several runs that it does show; else NULL */
    char note[200];   /* note about values that the curves cannot show; may be empty */
    int count;
    chart_series *series;
} chart;

/* The chart of these runs; its count is 0 if none has a value for it. The runs must outlive it. False after an error message
 * (no memory). The number of ticks is chosen for `width` x `height` characters. */
bool chart_make(chart *c, chart_id id, const training_run *runs, int n_runs, int width, int height);

/* For a small chart: with several runs only one column is kept, validation if it has enough values for a curve, else
 * the first; and the axes fit the main lines. */
void chart_reduce(chart *c, int width, int height);
void chart_free(chart *c);

/* The value at the end of a series' main line, with its unit. */
const char *chart_last(const chart *c, const chart_series *s, char text[AXIS_LABEL]);

#endif
