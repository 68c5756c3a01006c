/* test_charts.c - axes with ticks that people like, whatever the values; and charts that stay inside their frames. */
#define _POSIX_C_SOURCE 200809L
#include "tests/temp_folder.h"

#include "cli/report/axis.h"
#include "cli/report/chart_svg.h"
#include "cli/report/chart_text.h"

/* ---- axes ---- */

static const char *labels_of(const axis *a, char *text)
{
    *text = 0;
    for (int i = 0; i < a->count; i++) sprintf(text + strlen(text), i ? " %s" : "%s", a->label[i]);
    return text;
}

TEST(axis_linear_ticks)
{
    static const struct {
        double low, high;
        int wanted;
        bool rounds;
        const char *labels;
    } axes[] = {
        { 0, 100, 5, true, "0 20 40 60 80 100" },
        { 0, 100, 4, true, "0 50 100" },
        { 0.3, 6.1, 4, true, "0 2 4 6 8" },
        { 0.3, 6.1, 4, false, "2 4 6" },
        { 1.301, 1.309, 4, false, "1.302 1.304 1.306 1.308" },
        { 0, 2000, 5, false, "0 500 1000 1500 2000" },
        { 0, 20000, 5, false, "0 5k 10k 15k 20k" },
        { 0, 2.5e6, 5, false, "0 0.5M 1.0M 1.5M 2.0M 2.5M" },
        { 0, 3e-4, 3, false, "0 1e-4 2e-4 3e-4" },
        { 2e-4, 3e-4, 2, false, "2e-4 2.5e-4 3e-4" },
        { -3, 3, 3, true, "-4 -2 0 2 4" },
        { 5, 5, 4, false, "4.5 5.0 5.5" },
        { 0, 0, 4, false, "0 0.5 1.0" },
        { 0, 3e20, 3, false, "0 1e20 2e20 3e20" },
    };
    char text[1024];
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
        axis a;
        axis_linear(&a, axes[i].low, axes[i].high, axes[i].wanted, axes[i].rounds);
        CHECK(!strcmp(labels_of(&a, text), axes[i].labels), "%g to %g: %s, expected %s", axes[i].low, axes[i].high,
              text, axes[i].labels);
    }
}

TEST(axis_whole_ticks)
{
    char text[1024];
    axis a;
    axis_whole(&a, 1, 2, 5);
    CHECK(!strcmp(labels_of(&a, text), "1 2"), "%s", text);
    axis_whole(&a, 0, 3, 9);
    CHECK(!strcmp(labels_of(&a, text), "0 1 2 3"), "%s", text);
    axis_whole(&a, 0, 40, 5);
    CHECK(!strcmp(labels_of(&a, text), "0 10 20 30 40"), "%s", text);
    axis_whole(&a, 0.25, 0.75, 3);
    CHECK(a.count >= 2, "%s", labels_of(&a, text));
}

TEST(axis_log_ticks)
{
    static const struct {
        double low, high;
        int wanted;
        const char *labels;
    } axes[] = {
        { 0.001, 10, 5, "0.001 0.01 0.1 1 10" },
        { 0.01, 1, 6, "0.01 0.02 0.05 0.1 0.2 0.5 1" },
        { 1e-9, 1e9, 4, "1e-5 1 100k" },
        { 3, 4, 5, "3 4" },
        { 2, 2, 5, "2 5 10 20" },
        { 1e-30, 1e30, 4, "1e-30 1e-15 1 1e15 1e30" },
    };
    char text[1024];
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
        axis a;
        axis_log(&a, axes[i].low, axes[i].high, axes[i].wanted);
        CHECK(a.is_log && !strcmp(labels_of(&a, text), axes[i].labels), "%g to %g: %s, expected %s", axes[i].low,
              axes[i].high, text, axes[i].labels);
    }
}

/* Ticks rise, lie on the axis, and are neither none nor too many, for spans of any size. */
TEST(axis_any_values)
{
    const int rounds = kr_test_quick() ? 2000 : 20000;
    for (int i = 0; i < rounds; i++) {
        const double size = pow(10, kr_test_uniform(-99, 99)), middle = kr_test_below(3) ? kr_test_normal() * size : 0;
        const double span = size * pow(10, -kr_test_uniform(0, 14));
        const int wanted = 1 + (int)kr_test_below(15);
        const bool is_log = kr_test_below(2);
        axis a;
        if (is_log) axis_log(&a, fabs(middle), fabs(middle) + span, wanted);
        else axis_linear(&a, middle, middle + span, wanted, kr_test_below(2));
        bool is_good = a.low < a.high && a.count >= 2 && a.count <= AXIS_TICKS;
        for (int k = 0; k < a.count; k++) {
            const double at = axis_at(&a, a.tick[k]);
            is_good = is_good && at > -1e-3 && at < 1.001 && a.label[k][0] && (k == 0 || a.tick[k] > a.tick[k - 1]);
        }
        CHECK(is_good, "%s %.17g + %.17g, %d wanted: %.17g to %.17g, %d ticks", is_log ? "log" : "linear", middle, span,
              wanted, a.low, a.high, a.count);
    }
}

TEST(axis_numbers)
{
    static const struct {
        double value;
        const char *text;
    } numbers[] = { { 0, "0" },          { 1.23456, "1.235" },       { 1234.4, "1234" }, { 9999.6, "10000" },
                    { 12345, "12.35k" }, { -0.5, "-0.5" },           { 3e-5, "3e-5" },   { 1e100, "1e100" },
                    { 2.5e6, "2.5M" },   { 0.00123456, "0.001235" }, { NAN, "NaN" },     { -INFINITY, "-inf" } };
    char text[AXIS_LABEL];
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        CHECK(!strcmp(axis_number(numbers[i].value, text), numbers[i].text), "%g: %s", numbers[i].value, text);
}

/* ---- charts ---- */

/* Two runs in memory: loss over three decades, accuracy of one only, a spike, a value that is no number. */
static void make_runs(training_run *runs)
{
    memset(runs, 0, 2 * sizeof *runs);
    for (int r = 0; r < 2; r++) {
        curves *c = &runs[r].curves;
        strcpy(runs[r].name, r ? "<b>&\"two\"" : "one");
        c->count = 3;
        strcpy(c->curve[0].name, "loss");
        strcpy(c->curve[1].name, "eval_loss");
        strcpy(c->curve[2].name, "accuracy");
        for (int i = 0; i < 500; i++) {
            curve_add(&c->curve[0], i, exp(-i / 70.0) * (r + 1) + (i == 250 ? 40 : 0));
            if (i % 50 == 49) curve_add(&c->curve[1], i, exp(-i / 75.0));
            if (r) curve_add(&c->curve[2], i, i / 500.0);
        }
        if (r) curve_add(&c->curve[0], 500, NAN);
    }
}

TEST(chart_contents)
{
    training_run runs[2];
    chart c;
    make_runs(runs);
    CHECK(chart_make(&c, CHART_LOSS, runs, 2, 80, 20), "loss");
    CHECK(c.count == 4 && c.n_runs == 2 && c.n_columns == 2 && c.y.is_log, "%d series, %d runs", c.count, c.n_runs);
    CHECK(c.series[0].is_smoothed && !c.series[1].is_smoothed && c.series[3].color == 1, "styles");
    CHECK(!strcmp(c.note, "<b>&\"two\" train: 1 value is not finite, the first at step 500"), "%s", c.note);
    chart_reduce(&c, 40, 12);
    CHECK(c.count == 2 && !strcmp(c.only, "validation") && !strcmp(c.series[1].label, runs[1].name),
          "one column is left");
    CHECK(c.y.high < 2, "the spike of the other column is out of sight: %g", c.y.high);
    chart_free(&c);
    CHECK(chart_make(&c, CHART_ACCURACY, runs, 2, 80, 20) && c.count == 1 && c.n_runs == 1, "accuracy of one run");
    CHECK(c.y.low == 0 && c.y.high == 100 && c.series[0].y[250] > 40 && c.series[0].y[250] < 60, "per cent");
    chart_free(&c);
    CHECK(chart_make(&c, CHART_SPEED, runs, 2, 80, 20) && c.count == 0, "no speed");
    chart_free(&c);
    training_runs_free(runs, 2);
}

TEST(chart_svg_text)
{
    training_run runs[2];
    chart c;
    markup m = { 0 }, again = { 0 };
    make_runs(runs);
    CHECK(chart_make(&c, CHART_LOSS, runs, 2, 80, 20), "loss");
    chart_svg(&m, &c, 800, 300, true);
    chart_svg(&again, &c, 800, 300, true);
    CHECK(m.count == again.count && !memcmp(m.text, again.text, m.count), "the same bytes twice");
    CHECK(strstr(m.text, "&lt;b&gt;&amp;&quot;two&quot;") && !strstr(m.text, "<b>"), "names are escaped");
    CHECK(strstr(m.text, "<title") && strstr(m.text, "<desc") && !strstr(m.text, "nan") && !strstr(m.text, "inf"),
          "words");
    markup_free(&m);
    markup_free(&again);
    chart_free(&c);
    training_runs_free(runs, 2);
}

/* The spike of one step is in the raw line, also where many steps share a pixel. */
TEST(chart_svg_spike)
{
    training_run runs[2];
    chart c;
    make_runs(runs);
    CHECK(chart_make(&c, CHART_LOSS, runs, 2, 80, 20), "loss");
    for (int width = 120; width <= 1000; width += 10) {
        markup m = { 0 };
        chart_svg(&m, &c, width, 300, false);
        const char *at = strstr(m.text, "class=\"raw k0\"");
        double least = 1e9, x, y;
        int read = 0;
        if (CHECK(at, "no raw line"))
            for (at = strstr(at, "d=\"M") + 3; sscanf(at + 1, "%lf %lf%n", &x, &y, &read) == 2; at += 1 + read)
                least = fmin(least, y);
        const char *frame = strstr(m.text, "<clipPath");
        const double top = strtod(strstr(frame, " y=\"") + 4, NULL);
        CHECK(least > top && least < top + 25, "%d wide: the spike reaches up to %g, the frame to %g", width, least,
              top);
        markup_free(&m);
    }
    chart_free(&c);
    training_runs_free(runs, 2);
}

/* Every line has at most 80 columns, in either alphabet. */
TEST(chart_text_width)
{
    training_run runs[2];
    chart c;
    begin_folder();
    make_runs(runs);
    CHECK(chart_make(&c, CHART_LOSS, runs, 2, 45, 12), "loss");
    for (int form = 0; form < 4; form++) {
        const text_style style = { 80, 12, form & 1, form & 2 };
        FILE *f = fopen(in_folder("text"), "wb");
        chart_text(f, &c, &style);
        fclose(f);
        file_image text = read_image(in_folder("text"));
        int columns = 0, most = 0, lines = 0;
        for (size_t i = 0; i < text.bytes; i++) {
            const unsigned char b = text.data[i];
            if (b == '\033')
                while (text.data[i] != 'm') i++;
            else if (b == '\n') columns = 0, lines++;
            else if ((b & 0xc0) != 0x80) columns++;
            if (columns > most) most = columns;
            CHECK(form & 1 || b < 0x80, "byte %#x in ASCII", b);
        }
        CHECK(most <= 80 && most > 60 && lines == 16, "form %d: %d columns, %d lines", form, most, lines);
        free(text.data);
    }
    chart_free(&c);
    training_runs_free(runs, 2);
    end_folder();
}

TEST(markup_escapes)
{
    static const struct {
        const char *text, *escaped;
    } texts[] = { { "a<b>&'\"", "a&lt;b&gt;&amp;&apos;&quot;" },
                  { "\x01\x1b[31m\x7f", "\xef\xbf\xbd\xef\xbf\xbd[31m\xef\xbf\xbd" },
                  { "\xc3\xa4\xff\xc0\x80", "\xc3\xa4\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
                  { "a\r\nb\rc\td", "a\nb\nc\td" },
                  { "\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
                  { "\xef\xbf\xbf|\xf0\x9f\x90\x8d", "\xef\xbf\xbd|\xf0\x9f\x90\x8d" } };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        markup m = { 0 };
        markup_text(&m, texts[i].text);
        CHECK(m.text && !strcmp(m.text, texts[i].escaped), "text %zu: %s", i, m.text ? m.text : "none");
        markup_free(&m);
    }
}
