/* chart_svg.h - a chart as SVG: well-formed, without scripts, fonts or links, light or dark as its reader has it. */
#ifndef KR_CLI_REPORT_CHART_SVG_H
#define KR_CLI_REPORT_CHART_SVG_H

#include "cli/report/chart.h"
#include "cli/report/markup.h"

/* The style sheet that charts of a page share; each chart in its own file contains it. */
void chart_svg_style(markup *m);

/* An element <svg>, of so many pixels; ids in it begin with the chart's name. With `is_file` it is a complete file: it
 * has its name space and its style. In a page a narrow one of several runs has no legend: the others have it. */
void chart_svg(markup *m, const chart *c, int width, int height, bool is_file);

#endif
