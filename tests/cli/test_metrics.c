/* test_metrics.c - metrics.csv: lines, thinning, and resuming after a step. */
#define _POSIX_C_SOURCE 200809L
#include "cli/common/metrics.h"
#include "tests/temp_folder.h"
#include "tests/harness.h"

#include <math.h>

#define HOLDS(...) CHECK((__VA_ARGS__), "%s", #__VA_ARGS__)

static const char head[] = "step,epoch,positions,loss,accuracy,lr,grad_norm,eval_loss,eval_accuracy,seconds,"
                           "positions_per_second,memory_bytes";

static char *text_of(const char *path)
{
    size_t bytes;
    return cli_read_file(path, 1 << 24, &bytes);
}

static int64_t lines_of(const char *text)
{
    int64_t n = 0;
    for (; *text; text++) n += *text == '\n';
    return n;
}

static void put(cli_metrics *m, int64_t step, double eval_loss)
{
    cli_metrics_row row = cli_metrics_row_init(step);
    row.loss = 0.1;
    row.positions = 10 * step;
    row.eval_loss = eval_loss;
    HOLDS(cli_metrics_put(m, &row));
}

TEST(metrics_lines)
{
    cli_metrics m;
    char want[400];
    const double extra[] = { 1e-30, (double)NAN };
    static const char *const names[] = { "eval_accuracy_a", "eval_accuracy_b" };
    begin_folder();
    HOLDS(cli_metrics_open(&m, folder, CLI_METRICS_NEW, 2, names));
    cli_metrics_row row = cli_metrics_row_init(7);
    row.epoch = 1;
    row.positions = 1000;
    row.loss = 1.0 / 3;
    row.eval_accuracy = 1;
    row.memory_bytes = 5;
    row.extra = extra;
    HOLDS(cli_metrics_put(&m, &row) && cli_metrics_close(&m) && cli_metrics_close(&m));
    char *text = text_of(in_folder("metrics.csv"));
    snprintf(want, sizeof want, "%s,eval_accuracy_a,eval_accuracy_b\n7,1,1000,0.333333333,,,,,1,", head);
    CHECK(!strncmp(text, want, strlen(want)), "%s", text);
    const char *tail = ",,5,1e-30,\n";
    CHECK(!strcmp(text + strlen(text) - strlen(tail), tail), "%s", text);
    free(text);
    end_folder();
}

TEST(metrics_are_thinned)
{
    cli_metrics m;
    begin_folder();
    HOLDS(cli_metrics_open(&m, folder, CLI_METRICS_NEW, 0, NULL));
    for (int64_t step = 9990; step < 10100; step++) put(&m, step, step == 10013 ? 0.5 : (double)NAN);
    for (int64_t step = 100000; step < 100300; step++) put(&m, step, (double)NAN);
    cli_metrics_row last = cli_metrics_row_init(100301);
    last.must_stay = true;
    HOLDS(cli_metrics_put(&m, &last) && cli_metrics_close(&m));
    char *text = text_of(in_folder("metrics.csv"));
    /* the head; 9990 .. 9999; 10000, 10010, ...; the evaluation; 100000, 100100, 100200; the last */
    CHECK(lines_of(text) == 1 + 10 + 10 + 1 + 3 + 1, "%lld lines", (long long)lines_of(text));
    HOLDS(strstr(text, "\n10013,") && strstr(text, "\n100301,") && !strstr(text, "\n10011,"));
    free(text);
    end_folder();
}

TEST(metrics_go_on_behind_a_step)
{
    cli_metrics m;
    begin_folder();
    HOLDS(cli_metrics_open(&m, folder, CLI_METRICS_NEW, 0, NULL));
    for (int64_t step = 1; step <= 20; step++) put(&m, step, (double)NAN);
    HOLDS(cli_metrics_close(&m));
    FILE *file = fopen(in_folder("metrics.csv"), "ab"); /* a line that a kill has cut off */
    fputs("9", file);
    fclose(file);
    HOLDS(cli_metrics_open(&m, folder, 12, 0, NULL) && m.last_step == 12);
    put(&m, 13, (double)NAN);
    HOLDS(cli_metrics_close(&m));
    CHECK(cli_metrics_open(&m, folder, 20, 0, NULL) && m.last_step == 13, "last %lld", (long long)m.last_step);
    HOLDS(cli_metrics_close(&m));
    char *text = text_of(in_folder("metrics.csv"));
    CHECK(lines_of(text) == 14 && text[strlen(text) - 1] == '\n', "%s", text);
    free(text);

    static const char *const names[] = { "another" };
    CHECK(!cli_metrics_open(&m, folder, 20, 1, names), "another head");
    HOLDS(cli_metrics_close(&m));
    end_folder();
}
