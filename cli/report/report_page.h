/* report_page.h - the parts of report.html, from top to bottom. */
#ifndef KR_CLI_REPORT_REPORT_PAGE_H
#define KR_CLI_REPORT_REPORT_PAGE_H

#include "cli/report/chart.h"
#include "cli/report/facts.h"
#include "cli/report/markup.h"

/* A run with the other files of its folder. */
typedef struct report_run {
    const training_run *run;
    const char *settings_name; /* "train.json" or "task.json" */
    facts settings, config;
    char model[96]; /* "Mamba-3, 585 k parameters"; may be empty */
    char *samples;  /* NULL: none */
    size_t samples_bytes;
    bool has_weights;
} report_run;

/* The final metrics of a run; NaN if unknown. */
typedef struct run_figures {
    double steps, loss, best_loss, best_loss_step, best_accuracy, best_accuracy_step, speed, memory, seconds;
} run_figures;
run_figures run_figures_of(const curves *c);

void page_begin(markup *m, const char *title, const report_run *runs, int count);
void page_figures(markup *m, const report_run *runs, int count);
void page_samples(markup *m, const report_run *runs, int count);
void page_settings(markup *m, const report_run *runs, int count);
void page_next(markup *m, const report_run *runs, int count);
void page_end(markup *m);

#endif
