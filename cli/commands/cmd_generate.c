/* cmd_generate.c - krait generate: text from a model, token by token. */
#define _POSIX_C_SOURCE 200809L
#include "cli/commands/cmd_generate.h"
#include "cli/common/commands.h"
#include "cli/common/cli_files.h"
#include "cli/common/interrupt.h"

#include <krait/params.h>

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#define FIELD(name) offsetof(generate_values, name)

static const cli_operand operands[] = {
    { "MODEL", FIELD(language.folder), false, "a folder with config.json and model.safetensors" },
    { "-", FIELD(dash), true, "read the prompt from standard input" },
    { 0 },
};

static const cli_option options[] = {
    { "prompt", 'p', "TEXT", CLI_ANY, FIELD(prompt), NULL, 0, "prompt; \"\": start with BOS only" },
    { "file", 'f', "FILE", CLI_TEXT, FIELD(file), NULL, 0, "read the prompt from a file of any size" },
    { "prompts", 0, "FILE", CLI_TEXT, FIELD(prompts), NULL, 0,
      "many prompts at once: JSON Lines, one for each prompt; -: standard input" },
    { "rows", 0, "N", CLI_I64, FIELD(rows), "32", 1, "with --prompts: prompts that generate at the same time" },
    { "max-tokens", 'n', "N", CLI_I64, FIELD(max_tokens), "256", -1,
      "maximum number of tokens; 0: only prefill; -1: until a stop" },
    { "temperature", 0, "T", CLI_REAL, FIELD(temperature), NULL, 0,
      "sampling temperature; 0: greedy (default 0; 1 with --top-k, --top-p, --min-p or --samples)" },
    { "greedy", 0, NULL, CLI_FLAG, FIELD(is_greedy), NULL, 0, "--temperature 0" },
    { "top-k", 0, "K", CLI_I64, FIELD(top_k), "0", 0, "sample from the K most probable tokens; 0: all" },
    { "top-p", 0, "P", CLI_REAL, FIELD(top_p), "1", 0,
      "nucleus sampling: smallest set with cumulative probability >= P" },
    { "min-p", 0, "P", CLI_REAL, FIELD(min_p), "0", 0, "sample from tokens at least P times as probable as the best" },
    { "samples", 0, "N", CLI_I64, FIELD(samples), "1", 1, "number of continuations" },
    { "seed", 0, "N", CLI_U64, FIELD(seed), "0", 0, "random seed" },
    { "repetition-penalty", 0, "X", CLI_REAL, FIELD(repetition_penalty), "1", 0,
      "repetition penalty on tokens of prompt and output" },
    { "presence-penalty", 0, "X", CLI_REAL, FIELD(presence_penalty), "0", INT_MIN,
      "subtracted from the logits of generated tokens" },
    { "frequency-penalty", 0, "X", CLI_REAL, FIELD(frequency_penalty), "0", INT_MIN, "subtracted for each occurrence" },
    { "logit-bias", 0, "ID=VALUE", CLI_TEXTS, FIELD(biases), NULL, 0,
      "added to a token's logit; -inf: exclude it; may be repeated" },
    { "stop", 0, "TEXT", CLI_TEXTS, FIELD(stops), NULL, 0, "stop before this text; may be repeated" },
    { "stop-id", 0, "ID", CLI_TEXTS, FIELD(stop_ids), NULL, 0, "stop after this token id; may be repeated" },
    { "ignore-eos", 0, NULL, CLI_FLAG, FIELD(ignores_eos), NULL, 0, "do not stop at EOS" },
    { "ids", 0, NULL, CLI_FLAG, FIELD(is_ids), NULL, 0, "prompt and output are token ids; no tokenizer needed" },
    { "no-bos", 0, NULL, CLI_FLAG, FIELD(adds_no_bos), NULL, 0, "do not prepend BOS" },
    { "plain", 0, NULL, CLI_FLAG, FIELD(is_plain), NULL, 0, "do not parse special tokens in the prompt" },
    { "echo", 0, NULL, CLI_FLAG, FIELD(echoes), NULL, 0, "print the prompt too" },
    { "logprobs", 0, NULL, CLI_FLAG, FIELD(shows_logprobs), NULL, 0,
      "print a line per token: sample, id, logprob, \"text\", tab-separated" },
    { "save-state", 0, "FILE", CLI_TEXT, FIELD(save_state), NULL, 0, "save the generation state to a file" },
    { "load-state", 0, "FILE", CLI_TEXT, FIELD(load_state), NULL, 0,
      "resume from a saved state; a prompt is appended" },
    { "stats", 0, NULL, CLI_FLAG, FIELD(shows_stats), NULL, 0, "print times, tokens/s and memory on stderr" },
    { "prefill-chunk", 0, "N", CLI_I64, FIELD(prefill_chunk), "512", 1, "prompt tokens per prefill chunk" },
    { "low-memory", 0, NULL, CLI_FLAG, FIELD(is_low_memory), NULL, 0,
      "keep one copy of the weights: half the memory, slower decoding" },
    CLI_LANGUAGE_OPTIONS(generate_values, language),
    CLI_MACHINE_OPTIONS(generate_values, machine),
    { 0 },
};

static const char more[] =
    "Without -p, -f, -, --prompts or --load-state it starts an interactive chat, if standard input is a terminal;\n"
    "/help lists its commands.\n"
    "Decoding is greedy by default, as in the official implementation; --temperature, --top-k, --top-p, --min-p or\n"
    "--samples enable sampling.\n"
    "With --prompts each line of FILE is a prompt: a string, or an object with \"prompt\" (a string or a list of\n"
    "ids), \"id\", members that replace options: max_tokens, temperature, top_k, top_p, min_p, seed, logprobs and\n"
    "the penalties, and members that add to them: stop, stop_ids, logit_bias. Each prompt gives one line, in the\n"
    "same order: {\"index\": 0, \"id\": ..., \"text\": ..., \"ids\": [...], \"finish\": ...} or\n"
    "{\"index\": 0, \"error\": ...}. After an error the exit status is 1.\n"
    "Only generated text goes to stdout. Several samples are each preceded by a line '--- sample N'; with --ids each\n"
    "is one line. Ctrl-C stops after the current token, still writes --save-state, and exits with status 130.\n";

/* ---- the line ---- */

static int refuse(const char *text)
{
    cli_complain("see krait generate --help", "generate: %s", text);
    return CLI_USAGE;
}

/* The ranges of the sampler's options; -1: all are within them. */
static int check_ranges(const generate_values *v)
{
    const struct {
        const char *name, *rule;
        double value;
        bool is_valid;
    } rows[] = {
        { "top-p", "above 0 and at most 1; 1 is off", v->top_p, v->top_p > 0 && v->top_p <= 1 },
        { "min-p", "from 0 to 1; 0 is off", v->min_p, v->min_p <= 1 },
        { "repetition-penalty", "above 0; 1 is off", v->repetition_penalty, v->repetition_penalty > 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].is_valid) continue;
        cli_complain("see krait generate --help", "generate: --%s is %g, but must be %s", rows[i].name, rows[i].value,
                     rows[i].rule);
        return CLI_USAGE;
    }
    return -1;
}

static bool is_single(const generate_values *v)
{
    return v->prompt || v->file || v->dash || v->load_state || v->save_state || v->echoes || v->samples > 1;
}

/* Prompts that contradict each other; -1: none. */
static int check_prompts(const generate_values *v)
{
    if (v->prompts && is_single(v))
        return refuse("--prompts cannot be combined with -p, -f, -, --load-state, --save-state, --echo or --samples");
    if ((v->prompt != NULL) + (v->file != NULL) + (v->dash != NULL) > 1)
        return refuse("-p, -f and - are three prompts: give one");
    return -1;
}

/* Options that contradict each other; -1: none. */
static int check(const generate_values *v)
{
    const bool has_dash = v->dash;
    if (has_dash && strcmp(v->dash, "-")) {
        cli_complain("give a prompt with -p, a file with -f", "generate: unexpected argument '%s'", v->dash);
        return CLI_USAGE;
    }
    if (check_prompts(v) >= 0) return CLI_USAGE;
    if (v->is_greedy && v->temperature > 0) return refuse("--greedy and --temperature contradict each other");
    if (v->echoes && v->shows_logprobs) return refuse("--echo and --logprobs cannot be combined");
    if (v->is_ids && v->stops.count && !v->language.tokenizer)
        return refuse("--stop with --ids needs --tokenizer; --stop-id does not");
    if (v->is_ids && (v->adds_no_bos || v->is_plain))
        return refuse("with --ids there is no text for --no-bos or --plain");
    const bool has_prompt = v->prompt || v->file || has_dash || v->load_state || v->prompts;
    if (!has_prompt && !isatty(STDIN_FILENO))
        return refuse("there is no prompt: give -p TEXT, -f FILE, or - for standard input");
    if (!has_prompt && v->samples > 1) return refuse("a chat has one sample: give a prompt, or omit --samples");
    return -1;
}

/* ---- the work ---- */

static run_status read_prompt(generate_run *run)
{
    const generate_values *v = run->values;
    cli_text_source source = { .tok = v->is_ids ? NULL : run->language.tok,
                               .is_plain = v->is_plain,
                               .name = "the prompt" };
    if (v->prompt || !(v->file || v->dash)) {
        source.text = v->prompt ? v->prompt : "";
        source.bytes = strlen(source.text);
        return run_read(run, &source);
    }
    source.name = v->file ? v->file : "standard input";
    source.file = v->file ? fopen(v->file, "rb") : stdin;
    if (!source.file) {
        cli_cannot("open", v->file, errno);
        return RUN_FAILED;
    }
    const run_status status = run_read(run, &source);
    if (v->file) fclose(source.file);
    return status;
}

static int answer_prompt(generate_run *run)
{
    static const int statuses[] = { [RUN_OK] = CLI_OK, [RUN_FAILED] = CLI_FAILED, [RUN_INTERRUPTED] = CLI_INTERRUPTED };
    const char *save = run->values->save_state;
    run_status status = read_prompt(run);
    if (status == RUN_INTERRUPTED && save)
        cli_complain(NULL, "interrupted before the prompt was read: %s was not written", save);
    if (status != RUN_OK) return statuses[status];
    status = run_answer(run);
    if (status != RUN_FAILED && save && !run_save(run, save)) return CLI_FAILED;
    return statuses[status];
}

static int work(generate_run *run)
{
    const generate_values *v = run->values;
    const bool is_chat = !(v->prompt || v->file || v->dash || v->load_state);
    if (cli_failed(run->ctx) || !cli_language_open(run->ctx, &v->language, !v->is_ids, &run->language))
        return CLI_FAILED;
    if (!run_options(run)) return CLI_USAGE;
    if (!v->is_low_memory && v->max_tokens) kr_params_pack(kr_network_params(run->language.net));
    if (v->prompts) return cli_failed(run->ctx) ? CLI_FAILED : generate_prompts(run);
    if (cli_failed(run->ctx) || !printer_open(&run->out, v, run->language.tok) || !run_reset(run)) return CLI_FAILED;
    if (v->load_state && !run_load(run, v->load_state)) return CLI_FAILED;
    run->asked = cli_seconds();
    run->load = run->asked - run->started;
    if (!is_chat) return answer_prompt(run);
    const int status = generate_chat(run);
    return status == CLI_OK && v->save_state && !run_save(run, v->save_state) ? CLI_FAILED : status;
}

static int run_generate(int argc, char **argv)
{
    generate_values values = { .temperature = -1 };
    int status = cli_parse(&cli_generate, &values, argc, argv);
    if (status < 0) status = check(&values);
    if (status < 0) status = check_ranges(&values);
    if (status >= 0) return status;

    generate_run run = { .values = &values, .started = cli_seconds() };
    cli_watch_interrupts();
    run.ctx = cli_open(&values.machine, values.seed);
    status = work(&run);
    printer_close(&run.out);
    kr_generation_destroy(run.g);
    cli_language_close(&run.language);
    kr_ctx_destroy(run.ctx);
    return status;
}

const cli_command cli_generate = { .name = "generate",
                                   .summary = "generate text with a model",
                                   .options = options,
                                   .run = run_generate,
                                   .operands = operands,
                                   .more = more };
