/* report_page.c - the parts of report.html: its head, figures, samples, settings, and next steps. */
#include "cli/report/report_page.h"

#include "cli/report/chart_svg.h"
#include "cli/common/cli_files.h"
#include "cli/commands/cmd_report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- head ---- */

static const char page_style[] =
    ":root{color-scheme:light dark;--ink:#1c2127;--soft:#59636e;--line:#dfe3e8;--page:#f5f6f8;--card:#ffffff;"
    "--accent:#0072b2}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0;background:var(--page);color:var(--ink);font:16px/1.55 system-ui,-apple-system,'Segoe UI',Roboto,"
    "'Helvetica Neue',Arial,sans-serif;-webkit-text-size-adjust:100%}\n"
    "main{max-width:1000px;margin:0 auto;padding:40px 20px 56px}\n"
    "h1{font-size:30px;line-height:1.2;font-weight:650;letter-spacing:-.015em;margin:0;overflow-wrap:anywhere}\n"
    "h2{font-size:18px;font-weight:650;margin:40px 0 12px}\n"
    "h3{font-size:14px;font-weight:600;color:var(--soft);margin:18px 0 6px}\n"
    ".under{color:var(--soft);margin:6px 0 0;overflow-wrap:anywhere}\n"
    ".figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(122px,1fr));gap:12px;margin:28px 0 "
    "0;padding:0}\n"
    ".figures div{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px}\n"
    ".figures dt{font-size:13px;color:var(--soft)}\n"
    ".figures dd{margin:2px 0 0;font-size:20px;font-weight:600;line-height:1.3;white-space:nowrap;"
    "font-variant-numeric:tabular-nums}\n"
    ".figures dd small{display:block;white-space:normal;font-size:12px;font-weight:400;color:var(--soft)}\n"
    ".charts{display:grid;grid-template-columns:repeat(3,minmax(0,1fr));gap:16px;margin-top:28px}\n"
    "figure{margin:0;background:var(--card);border:1px solid "
    "var(--line);border-radius:10px;padding:8px;overflow-x:auto}\n"
    "figure.wide{grid-column:1/-1}\n"
    "figure svg{display:block;width:100%;height:auto}\n"
    ".box{background:var(--card);border:1px solid var(--line);border-radius:10px;overflow-x:auto}\n"
    "table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}\n"
    "th,td{padding:7px 12px;text-align:left;vertical-align:top;border-top:1px solid var(--line)}\n"
    "tr:first-child th,tr:first-child td{border-top:0}\n"
    "thead th{font-size:13px;font-weight:600;color:var(--soft);white-space:nowrap;border-bottom:1px solid "
    "var(--line)}\n"
    "tbody th{font-weight:400;color:var(--soft);white-space:nowrap}\n"
    "td{overflow-wrap:anywhere;unicode-bidi:isolate}td.num,th.num{text-align:right;white-space:nowrap}td.name{white-"
    "space:nowrap}\n"
    ".facts{margin:0;padding:10px 18px;columns:3 "
    "250px;column-gap:36px;font-size:14px;font-variant-numeric:tabular-nums}\n"
    ".facts div{display:flex;justify-content:space-between;gap:14px;padding:4px 0;break-inside:avoid}\n"
    ".facts dt{color:var(--soft);overflow-wrap:anywhere}\n"
    ".facts dd{margin:0;text-align:right;overflow-wrap:anywhere;unicode-bidi:isolate}\n"
    "pre{margin:0;padding:14px 16px;font:13.5px/1.55 ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',"
    "monospace;white-space:pre-wrap;overflow-wrap:anywhere;unicode-bidi:isolate}\n"
    ".samples pre{max-height:560px;overflow-y:auto}\n"
    ".swatch{display:inline-block;width:16px;height:10px;margin-right:8px;vertical-align:baseline}\n"
    ".swatch rect{stroke-width:0}\n"
    ".faint{color:var(--soft);font-size:14px;margin:8px 2px 0}\n"
    "footer{margin-top:44px;padding-top:14px;border-top:1px solid var(--line);color:var(--soft);font-size:13px}\n"
    "@media (max-width:720px){main{padding:24px 14px "
    "40px}h1{font-size:25px}.charts{grid-template-columns:minmax(0,1fr)}"
    "figure.wide svg{min-width:600px}figure:not(.wide) svg{max-width:420px}}\n"
    "@media (prefers-color-scheme:dark){:root{--ink:#e8ecf0;--soft:#a3adb8;--line:#2b3138;--page:#0f1215;"
    "--card:#171b20;--accent:#5ab4f5}}\n"
    "@media print{body{background:none;font-size:12px}main{max-width:none;padding:0}"
    ".box,figure,.figures div{break-inside:avoid;border-color:#c8ccd0}.box{overflow:visible}"
    ".samples pre{max-height:none}h2{break-after:avoid}}\n";

void page_begin(markup *m, const char *title, const report_run *runs, int count)
{
    markup_add(m, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
                  "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>");
    markup_text(m, title);
    markup_add(m, "</title>\n<style>\n");
    markup_add(m, page_style);
    chart_svg_style(m);
    markup_add(m, "</style>\n</head>\n<body>\n<main>\n<header>\n<h1>");
    markup_text(m, title);
    markup_add(m, "</h1>\n<p class=\"under\">");
    if (count > 1) markup_format(m, "%d training runs", count);
    else if (runs->model[0]) markup_text(m, runs->model);
    else markup_add(m, "Training run");
    if (count == 1) {
        markup_add(m, " &#183; ");
        markup_text(m, runs->run->folder);
    }
    markup_add(m, "</p>\n</header>\n");
}

void page_end(markup *m)
{
    markup_format(m, "<footer>Written by krait %s from metrics.csv. This page is self-contained.</footer>\n",
                  kr_version());
    markup_add(m, "</main>\n</body>\n</html>\n");
}

/* ---- figures ---- */

static double mean_of(const curve *c)
{
    double sum = 0;
    for (int i = 0; i < c->n; i++) sum += c->bucket[i].sum;
    return sum / (double)c->count;
}

/* The end of the smoothed curve: one batch says little. */
static double smoothed_end(const curve *c)
{
    double y[CURVE_BUCKETS];
    return curve_smooth(c, false, y) ? y[c->n - 1] : c->last;
}

static const curve *with_values(const curves *c, const char *name)
{
    const curve *found = curves_find(c, name);
    return found && found->count ? found : NULL;
}

run_figures run_figures_of(const curves *c)
{
    run_figures f = { NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN };
    const curve *step = with_values(c, "step"), *loss = with_values(c, "loss"), *eval = with_values(c, "eval_loss");
    const curve *right = with_values(c, "eval_accuracy"), *speed = with_values(c, "positions_per_second");
    const curve *memory = with_values(c, "memory_bytes"), *seconds = with_values(c, "seconds");
    f.steps = step ? step->high : (double)c->n_lines;
    if (loss) f.loss = smoothed_end(loss);
    if (eval) {
        f.best_loss = eval->low;
        f.best_loss_step = eval->low_x;
    }
    if (!right) right = with_values(c, "accuracy");
    if (right) {
        f.best_accuracy = right->high;
        f.best_accuracy_step = right->high_x;
    }
    if (speed) f.speed = mean_of(speed);
    if (memory) f.memory = memory->high;
    if (seconds) f.seconds = seconds->high;
    return f;
}

typedef struct figure_text {
    char text[48];
} figure_text;

static figure_text number_text(double value)
{
    figure_text f = { "-" };
    if (!isnan(value)) axis_number(value, f.text);
    return f;
}

/* Integers with thousands separated by narrow spaces. */
static figure_text count_text(double value)
{
    if (!(fabs(value) < 1e15)) return number_text(value);
    char digits[32];
    figure_text f = { "" };
    const int n = snprintf(digits, sizeof digits, "%.0f", value);
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        const bool is_border = i && digits[i - 1] != '-' && (n - i) % 3 == 0;
        at += (size_t)snprintf(f.text + at, sizeof f.text - at, "%s%c", is_border ? "\xe2\x80\xaf" : "", digits[i]);
    }
    return f;
}

static figure_text per_cent_text(double value)
{
    figure_text f = { "-" };
    if (!isnan(value))
        snprintf(f.text, sizeof f.text, value == 1 ? "%.0f %%" : "%.2f %%", fmax(-1e9, fmin(1e9, 100 * value)));
    return f;
}

static figure_text time_text(double seconds)
{
    figure_text f = { "-" };
    if (isnan(seconds) || !(fabs(seconds) < 1e12)) return f;
    const long long s = (long long)(seconds + 0.5);
    if (seconds < 10) snprintf(f.text, sizeof f.text, "%.1f s", seconds);
    else if (s < 60) snprintf(f.text, sizeof f.text, "%lld s", s);
    else if (s < 3600) snprintf(f.text, sizeof f.text, "%lld:%02lld min", s / 60, s % 60);
    else snprintf(f.text, sizeof f.text, "%lld:%02lld h", s / 3600, s / 60 % 60);
    return f;
}

static figure_text memory_text(double bytes)
{
    figure_text f = { "-" };
    if (!isnan(bytes)) snprintf(f.text, sizeof f.text, "%s", cli_bytes_text(fmin(bytes, 1e30)).text);
    return f;
}

static figure_text step_text(const char *of, double step)
{
    figure_text f = { "" };
    if (!isnan(step)) snprintf(f.text, sizeof f.text, "%s, step %.20s", of, count_text(step).text);
    return f;
}

static void card(markup *m, const char *name, figure_text value, const char *under)
{
    if (!strcmp(value.text, "-")) return;
    markup_format(m, "<div><dt>%s</dt><dd>%s", name, value.text);
    if (*under) markup_format(m, "<small>%s</small>", under);
    markup_add(m, "</dd></div>\n");
}

static void cards(markup *m, const report_run *run)
{
    const curves *c = &run->run->curves;
    const run_figures f = run_figures_of(c);
    const curve *loss = with_values(c, "loss");
    char first[48] = "";
    if (loss && loss->n)
        snprintf(first, sizeof first, "from %.36s",
                 number_text(loss->bucket[0].sum / (double)loss->bucket[0].count).text);
    markup_add(m, "<dl class=\"figures\">\n");
    card(m, "Steps", count_text(f.steps), "");
    card(m, "Final loss", number_text(f.loss), first);
    card(m, "Best loss", number_text(f.best_loss), step_text("validation", f.best_loss_step).text);
    card(m, "Best accuracy", per_cent_text(f.best_accuracy),
         step_text(with_values(c, "eval_accuracy") ? "validation" : "train", f.best_accuracy_step).text);
    card(m, "Positions/s", count_text(f.speed), "");
    card(m, "Memory", memory_text(f.memory), "");
    card(m, "Time", time_text(f.seconds), "");
    markup_add(m, "</dl>\n");
}

/* A run's colour, as in the charts. */
static void swatch(markup *m, int run)
{
    markup_format(m,
                  "<svg class=\"swatch\" viewBox=\"0 0 16 10\" aria-hidden=\"true\">"
                  "<rect class=\"p%d\" width=\"16\" height=\"4\" y=\"3\" rx=\"2\"/></svg>",
                  run % CHART_COLORS);
}

static void figures_row(markup *m, const report_run *run, int i)
{
    const run_figures f = run_figures_of(&run->run->curves);
    markup_add(m, "<tr><td class=\"name\">");
    swatch(m, i);
    markup_text(m, run->run->name);
    markup_add(m, "</td><td class=\"name\">");
    markup_text(m, run->model[0] ? run->model : "-");
    const figure_text cells[] = { count_text(f.steps),      number_text(f.loss),
                                  number_text(f.best_loss), per_cent_text(f.best_accuracy),
                                  count_text(f.speed),      memory_text(f.memory),
                                  time_text(f.seconds) };
    for (size_t k = 0; k < sizeof cells / sizeof *cells; k++)
        markup_format(m, "</td><td class=\"num\">%s", cells[k].text);
    markup_add(m, "</td></tr>\n");
}

void page_figures(markup *m, const report_run *runs, int count)
{
    static const char *const heads[] = {
        "steps", "loss", "best loss", "best accuracy", "positions/s", "memory", "time"
    };
    if (count == 1) {
        cards(m, runs);
        return;
    }
    markup_add(m, "<h2>Runs</h2>\n<div class=\"box\"><table>\n<thead><tr><th>run</th><th>model</th>");
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) markup_format(m, "<th class=\"num\">%s</th>", heads[i]);
    markup_add(m, "</tr></thead>\n<tbody>\n");
    for (int i = 0; i < count; i++) figures_row(m, &runs[i], i);
    markup_add(m, "</tbody>\n</table></div>\n");
}

/* ---- samples ---- */

void page_samples(markup *m, const report_run *runs, int count)
{
    bool has_any = false;
    for (int i = 0; i < count; i++) {
        if (!runs[i].samples) continue;
        if (!has_any) markup_add(m, "<section class=\"samples\">\n<h2>Samples</h2>\n");
        has_any = true;
        if (count > 1) {
            markup_add(m, "<h3>");
            markup_text(m, runs[i].run->name);
            markup_add(m, "</h3>\n");
        }
        /* a line break first: readers of HTML drop the first one of a pre */
        markup_add(m, "<div class=\"box\"><pre>\n");
        markup_bytes(m, runs[i].samples, runs[i].samples_bytes);
        markup_add(m, "</pre></div>\n");
    }
    if (has_any) markup_add(m, "</section>\n");
}

/* ---- settings ---- */

static void facts_list(markup *m, const char *head, const char *file, const facts *f)
{
    if (!f->count && !f->complaint[0]) return;
    markup_format(m, "<h2>%s</h2>\n", head);
    if (f->count) {
        markup_add(m, "<div class=\"box\"><dl class=\"facts\">\n");
        for (int i = 0; i < f->count; i++) {
            markup_add(m, "<div><dt>");
            markup_text(m, f->fact[i].key);
            markup_add(m, "</dt><dd>");
            markup_text(m, f->fact[i].value);
            markup_add(m, "</dd></div>\n");
        }
        markup_add(m, "</dl></div>\n");
    }
    markup_add(m, "<p class=\"faint\">");
    if (f->complaint[0]) markup_text(m, f->complaint);
    else markup_text(m, file);
    if (f->more) markup_format(m, ", and %lld more", (long long)f->more);
    markup_add(m, "</p>\n");
}

static const facts *facts_of(const report_run *run, bool is_config)
{
    return is_config ? &run->config : &run->settings;
}

static bool is_same_everywhere(const report_run *runs, int count, bool is_config, const char *key)
{
    const char *first = facts_find(facts_of(&runs[0], is_config), key);
    for (int i = 1; i < count; i++) {
        const char *other = facts_find(facts_of(&runs[i], is_config), key);
        if (!first != !other || (first && strcmp(first, other) != 0)) return false;
    }
    return true;
}

static void difference_row(markup *m, const report_run *runs, int count, bool is_config, const char *key)
{
    markup_add(m, "<tr><th scope=\"row\">");
    markup_text(m, key);
    for (int i = 0; i < count; i++) {
        const char *value = facts_find(facts_of(&runs[i], is_config), key);
        markup_add(m, i ? "</td><td>" : "</th><td>");
        markup_text(m, value ? value : "-");
    }
    markup_add(m, "</td></tr>\n");
}

/* The keys of all runs whose values are not the same in all of them, each once, in the order of the files. */
static int difference_rows(markup *m, const report_run *runs, int count, bool is_config)
{
    int same = 0;
    for (int i = 0; i < count; i++) {
        const facts *f = facts_of(&runs[i], is_config);
        for (int k = 0; k < f->count; k++) {
            const char *key = f->fact[k].key;
            bool is_first = true;
            for (int before = 0; before < i && is_first; before++)
                is_first = !facts_find(facts_of(&runs[before], is_config), key);
            if (!is_first) continue;
            if (is_same_everywhere(runs, count, is_config, key)) same++;
            else difference_row(m, runs, count, is_config, key);
        }
    }
    return same;
}

static void differences(markup *m, const report_run *runs, int count)
{
    int all = 0;
    for (int i = 0; i < count; i++) all += runs[i].settings.count + runs[i].config.count;
    if (!all) return;
    markup_add(m, "<h2>What differs</h2>\n<div class=\"box\"><table>\n<thead><tr><th>setting</th>");
    for (int i = 0; i < count; i++) {
        markup_add(m, "<th>");
        swatch(m, i);
        markup_text(m, runs[i].run->name);
        markup_add(m, "</th>");
    }
    markup_add(m, "</tr></thead>\n<tbody>\n");
    const int same = difference_rows(m, runs, count, false) + difference_rows(m, runs, count, true);
    markup_format(m, "</tbody>\n</table></div>\n<p class=\"faint\">%d other settings are the same in all runs.</p>\n",
                  same);
}

void page_settings(markup *m, const report_run *runs, int count)
{
    if (count > 1) {
        differences(m, runs, count);
        return;
    }
    facts_list(m, "Settings", runs->settings_name, &runs->settings);
    facts_list(m, "Model", "config.json", &runs->config);
}

/* ---- next steps ---- */

static void command(markup *m, const char *before, const char *folder, const char *behind)
{
    char word[CLI_PATH_BYTES];
    markup_add(m, before);
    markup_text(m, cli_shell_word(folder, word, sizeof word));
    markup_text(m, behind);
    markup_add(m, "\n");
}

void page_next(markup *m, const report_run *runs, int count)
{
    markup_add(m, "<h2>Next</h2>\n<div class=\"box\"><pre>\n");
    for (int i = 0; i < count; i++) {
        const char *folder = runs[i].run->folder;
        const bool is_language = runs[i].has_weights && !strcmp(runs[i].settings_name, "train.json");
        if (is_language) command(m, "krait generate ", folder, " -p \"Once upon a time\" -n 200 --temperature 0.8");
        if (is_language && count == 1 && runs[i].settings.count) command(m, "krait train --resume ", folder, "");
        if (runs[i].has_weights && count == 1) command(m, "krait info ", folder, "");
    }
    markup_add(m, "krait report");
    for (int i = 0; i < count; i++) command(m, " ", runs[i].run->folder, i + 1 < count ? " \\" : " --terminal");
    markup_add(m, "</pre></div>\n");
}
