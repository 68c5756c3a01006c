/* cmd_info.c - krait info: describes this machine, a model folder or a file. */
#include "cli/commands/cmd_info.h"

#include "cli/common/commands.h"
#include "cli/common/cli_files.h"
#include "cli/common/cli_machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const cli_operand operands[] = {
    { "PATH", offsetof(info_values, path), true, "model folder or file (default: this machine)" },
    { 0 },
};

static const cli_option options[] = {
    { "tensors", 0, NULL, CLI_FLAG, offsetof(info_values, shows_all), NULL, 0, "list every tensor instead of groups" },
    { "batch", 0, "N", CLI_I64, offsetof(info_values, batch), "1", 1, "batch size for the memory estimate" },
    { "tokens", 0, "N", CLI_I64, offsetof(info_values, tokens), "512", 1, "tokens per sequence and forward call" },
    { "devices", 0, NULL, CLI_FLAG, offsetof(info_values, shows_devices), NULL, 0,
      "list the devices, or the reason why a kind is not available" },
    { "kernels", 0, NULL, CLI_FLAG, offsetof(info_values, shows_kernels), NULL, 0,
      "kernels by device, instruction set and element type, as a Markdown table" },
    { "json", 0, NULL, CLI_FLAG, offsetof(info_values, is_json), NULL, 0, "print one JSON object" },
    { 0 },
};

/* The text that a function of the library writes as snprintf does, to be freed; NULL after an error message. */
static char *text_of(size_t (*write)(char *text, size_t bytes))
{
    const size_t bytes = write(NULL, 0) + 1;
    char *text = malloc(bytes);
    if (text) write(text, bytes);
    else cli_complain(NULL, "out of memory");
    return text;
}

/* A line for each device, as kr_devices_text has them; programs get a list of these lines. */
static int info_devices(const info_values *values)
{
    char *text = text_of(kr_devices_text);
    if (!text) return CLI_FAILED;
    cli_report r;
    cli_report_begin(&r, values->is_json);
    if (values->is_json) cli_report_open(&r, "devices", true);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        if (values->is_json) cli_report_text(&r, NULL, "%s", line);
        else cli_report_line(&r, "%s", line);
    }
    if (values->is_json) cli_report_close(&r);
    cli_report_end(&r);
    free(text);
    return CLI_OK;
}

/* Cuts a tab-separated line into at most `most` fields; returns how many. */
static int split_fields(char *line, char **fields, int most)
{
    int count = 0;
    for (char *tab = line; tab && count < most; line = tab + 1) {
        tab = strchr(line, '\t');
        if (tab) *tab = '\0';
        fields[count++] = line;
    }
    return count;
}

/* The table of kr_kernels_text: in Markdown, or an object for each kernel with the sets as its keys. */
static int info_kernels(const info_values *values)
{
    enum { MOST = 16 };
    char *text = text_of(kr_kernels_text), *heads[MOST], *cells[MOST];
    if (!text) return CLI_FAILED;
    cli_report r;
    cli_report_begin(&r, values->is_json);
    const int count = split_fields(strtok(text, "\n"), heads, MOST);
    if (r.is_json) cli_report_open(&r, "kernels", true);
    for (int i = 0; i < count && !r.is_json; i++) printf("| %s%s", heads[i], i == count - 1 ? " |\n" : " ");
    for (int i = 0; i < count && !r.is_json; i++) printf("|---%s", i == count - 1 ? "|\n" : "");
    for (char *line = strtok(NULL, "\n"); line; line = strtok(NULL, "\n")) {
        const int n = split_fields(line, cells, count);
        if (r.is_json) cli_report_open(&r, NULL, false);
        for (int i = 0; i < n; i++) {
            if (r.is_json) cli_report_text(&r, heads[i], "%s", cells[i]);
            else printf("| %s%s", cells[i], i == n - 1 ? " |\n" : " ");
        }
        if (r.is_json) cli_report_close(&r);
    }
    if (r.is_json) cli_report_close(&r);
    cli_report_end(&r);
    free(text);
    return CLI_OK;
}

static int info_machine(const info_values *values)
{
    char text[512];
    cli_report r;
    kr_ctx *ctx = kr_ctx_create(NULL);
    const bool has_failed = kr_ctx_failed(ctx);
    cli_report_begin(&r, values->is_json);
    cli_report_text(&r, "version", "%s", kr_version());
    cli_report_text(&r, "cpu_features", "%s", kr_cpu_features_text(text, sizeof text));
    cli_report_text(&r, "instruction_sets", "%s", kr_isa_choices(text, sizeof text));
    static const char *const precisions[] = { "exact", "tf32", "bf16" };
    const kr_ctx_info info = kr_ctx_info_of(ctx);
    if (!has_failed)
        cli_report_text(&r, "precision", "%s%s", precisions[info.precision],
                        info.products == info.precision ? ""
                                                        : " requested; the kernels of matrix products here are exact");
    if (!has_failed && values->is_json) {
        cli_report_text(&r, "device", "%s", kr_ctx_device(ctx));
        cli_report_text(&r, "isa", "%s", kr_ctx_isa(ctx));
        cli_report_count(&r, "threads", kr_ctx_threads(ctx));
    } else if (!has_failed) {
        cli_report_text(&r, "in_use", "%s", cli_machine_text(ctx).text);
    }
    cli_report_end(&r);
    if (has_failed) cli_complain(NULL, "%s", kr_ctx_message(ctx));
    kr_ctx_destroy(ctx);
    return has_failed ? CLI_FAILED : CLI_OK;
}

/* ---- notes ---- */

void info_note(info_notes *notes, const char *text)
{
    for (int i = 0; i < notes->count; i++)
        if (!strcmp(notes->text[i], text)) return;
    char *copy = notes->count < INFO_MOST_NOTES ? malloc(strlen(text) + 1) : NULL;
    if (!copy) {
        notes->more++;
        return;
    }
    strcpy(copy, text);
    notes->text[notes->count++] = copy;
}

void info_notes_free(info_notes *notes)
{
    for (int i = 0; i < notes->count; i++) free(notes->text[i]);
    notes->count = 0;
}

static void note_warning(void *user, kr_log_level level, const char *text)
{
    info_run *run = user;
    if (level == KR_LOG_WARNING) info_note(&run->warnings, text);
}

bool info_take_error(info_run *run)
{
    if (!kr_ctx_failed(run->ctx)) return false;
    info_note(&run->reasons, kr_ctx_message(run->ctx));
    kr_ctx_clear(run->ctx);
    return true;
}

static void list_notes(cli_report *r, const char *key, const char *label, const info_notes *notes)
{
    if (r->is_json) cli_report_open(r, key, true);
    for (int i = 0; i < notes->count; i++) cli_report_text(r, r->is_json ? NULL : label, "%s", notes->text[i]);
    if (notes->more) cli_report_text(r, r->is_json ? NULL : label, "%lld more", (long long)notes->more);
    if (r->is_json) cli_report_close(r);
}

void info_verdict(info_run *run, bool is_model)
{
    cli_report *r = &run->report;
    list_notes(r, "warnings", "warning", &run->warnings);
    if (is_model && !run->reasons.count) cli_report_truth(r, "loads", true, "yes");
    else if (r->is_json && is_model) cli_report_truth(r, "loads", false, "no");
    list_notes(r, "reasons", is_model ? "would not load" : "broken", &run->reasons);
}

/* ---- the command ---- */

static int info_path(const info_values *values)
{
    info_run run = { .values = values };
    run.ctx = cli_open_for_files(note_warning, &run);
    int status = CLI_FAILED;
    if (kr_ctx_failed(run.ctx)) cli_complain(NULL, "%s", kr_ctx_message(run.ctx));
    else status = cli_is_folder(values->path) ? info_folder(&run) : info_file(&run);
    kr_ctx_destroy(run.ctx);
    info_notes_free(&run.warnings);
    info_notes_free(&run.reasons);
    return status;
}

static int run_info(int argc, char **argv)
{
    info_values values = { 0 };
    const int status = cli_parse(&cli_info, &values, argc, argv);
    if (status >= 0) return status;
    if ((values.shows_devices || values.shows_kernels) && values.path) {
        cli_complain("see krait info --help", "info: --%s is about this machine, not about %s",
                     values.shows_devices ? "devices" : "kernels", values.path);
        return CLI_USAGE;
    }
    if (values.shows_devices && values.shows_kernels) {
        cli_complain("see krait info --help", "info: --devices and --kernels are two reports; choose one");
        return CLI_USAGE;
    }
    if (values.shows_devices) return info_devices(&values);
    if (values.shows_kernels) return info_kernels(&values);
    return values.path ? info_path(&values) : info_machine(&values);
}

const cli_command cli_info = {
    .name = "info",
    .summary = "describe this machine, a model folder or a file",
    .options = options,
    .run = run_info,
    .operands = operands,
    .more = "Files: .safetensors, pytorch_model.bin, an index of shards (*.index.json), config.json, tokenizer.json,\n"
            "saved states. If a model cannot be loaded, every reason is printed, and the exit status is 1.\n",
};
