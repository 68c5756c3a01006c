/* cmd_plan.c - krait plan: what a training step costs on many GPUs, by the formulas of docs/plan.md, and by a simulation. */
#include "cli/commands/cmd_plan.h"

#include "cli/common/cli_files.h"
#include "cli/common/commands.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(plan_values, field)

static const cli_option options[] = {
    { "model", 'm', "NAME|PATH", CLI_TEXT, AT(name), NULL, 0,
      "a published shape such as mamba2-2.7b, a model folder, or a config.json; or give --family and --d-model" },
    { "", 0, NULL, CLI_HEADING, 0, NULL, 0, "Cluster" },
    { "gpus", 'n', "N", CLI_I64, AT(gpus), "8", 1, "GPUs, one for each rank" },
    { "per-host", 0, "N", CLI_I64, AT(per_host), "8", 1, "GPUs of a host" },
    { "nic", 0, "RATE", CLI_TEXT, AT(nic), "400G", 0, "bits/s of a network interface: 400G, 25G, 800M" },
    { "nics", 0, "N", CLI_I64, AT(nics), "1", 1, "network interfaces of a host" },
    { "link", 0, "GB/S", CLI_REAL, AT(link), "370", 0, "GB/s between the GPUs of a host, each way" },
    { "latency", 0, "US", CLI_REAL, AT(latency), "15", 0, "microseconds of a message between hosts" },
    { "overhead", 0, "US", CLI_REAL, AT(overhead), "1", 0,
      "microseconds that each message of a direct exchange keeps a rank busy" },
    { "device", 0, "h200|measured", CLI_CHOICE, AT(device), "h200", 0,
      "speed of a GPU: as recorded for an H200, or of three training steps on this machine" },
    { "rate", 0, "TFLOPS", CLI_REAL, AT(rate), NULL, 0, "TFLOP/s of a GPU in training, instead of --device" },
    { "memory", 0, "SIZE", CLI_TEXT, AT(memory), NULL, 0, "memory of a GPU (default for h200: 139GiB)" },
    { "", 0, NULL, CLI_HEADING, 0, NULL, 0, "Step" },
    { "tokens", 't', "N", CLI_I64, AT(tokens), "16384", 1, "tokens of a micro-batch" },
    { "length", 's', "N", CLI_I64, AT(length), NULL, 1, "tokens of a row (default 2048, at most --tokens)" },
    { "micro-batches", 0, "M", CLI_I64, AT(micro_batches), NULL, 1,
      "micro-batches of a step, of all GPUs together (default: one for each)" },
    { "recompute", 0, NULL, CLI_FLAG, AT(recompute), NULL, 0, "recompute every layer in the backward pass" },
    { "reduce", 0, "ordered|fast", CLI_CHOICE, AT(reduce), "ordered", 0,
      "sums of gradients: in a fixed order, or as the engine likes" },
    { "", 0, NULL, CLI_HEADING, 0, NULL, 0, "What if: other trainers than krait train" },
    { "shard", 0, "none|optimizer|gradients", CLI_CHOICE, AT(shard), NULL, 0,
      "what a GPU holds a share of; ZeRO-1 is optimizer, ZeRO-2 gradients (default optimizer, and all as a table)" },
    { "direct", 0, NULL, CLI_FLAG, AT(is_direct), NULL, 0,
      "ordered sums directly between all GPUs, instead of inside a host and then between hosts" },
    { "gather-ahead", 0, NULL, CLI_FLAG, AT(gathers_ahead), NULL, 0,
      "gather new weights layer by layer while the next forward pass runs" },
    { "split-embedding", 0, NULL, CLI_FLAG, AT(splits_embedding), NULL, 0,
      "sum the head's part of a tied embedding's gradient early" },
    { "distinct", 0, "N", CLI_I64, AT(distinct), NULL, 1,
      "with --split-embedding: different tokens of a host in a step (default: as many as there may be)" },
    { "reduce-dtype", 0, "f32|bf16", CLI_CHOICE, AT(reduce_dtype), "f32", 0, "gradients on the network" },
    { "bucket", 0, "SIZE", CLI_TEXT, AT(bucket), "25MiB", 0, "gradients that are summed at once" },
    { "", 0, NULL, CLI_HEADING, 0, NULL, 0, "Simulation" },
    { "simulate", 0, NULL, CLI_FLAG, AT(simulates), NULL, 0, "run the schedule on a modelled network, rank by rank" },
    { "steps", 0, "N", CLI_I64, AT(steps), "4", 2, "simulated steps; the first is not counted" },
    { "slow", 0, "RANK:FACTOR", CLI_TEXTS, AT(slow), NULL, 0,
      "a rank that needs FACTOR times the time; may be given several times" },
    { "jitter", 0, "X", CLI_REAL, AT(jitter), "0", 0,
      "standard deviation of a rank's compute time, as a part of it: 0.02" },
    { "seed", 0, "N", CLI_U64, AT(seed), "1", 0, "random seed of the jitter, and of measured weights" },
    { "", 0, NULL, CLI_HEADING, 0, NULL, 0, "Measured steps" },
    { "on", 0, "NAME", CLI_TEXT, AT(machine.device), NULL, 0,
      "device: cpu, cuda, cuda:N (default: KR_DEVICE, else cpu; see krait info --devices)" },
    { "threads", 0, "N", CLI_INT, AT(machine.threads), NULL, 1, "number of threads (default: all CPUs)" },
    { "isa", 0, "NAME", CLI_TEXT, AT(machine.isa), NULL, 0,
      "instruction set: ref, avx2, avx512 (default: the best available)" },
    { "precision", 0, "exact|tf32|bf16", CLI_CHOICE, AT(machine.precision), NULL, 0,
      "precision of matrix products on a GPU (default: KR_PRECISION, else exact)" },
    { "json", 0, NULL, CLI_FLAG, AT(is_json), NULL, 0, "print one JSON object" },
    { "", 0, NULL, CLI_HEADING, 0, NULL, 0, "Model" },
    CLI_MODEL_OPTIONS(plan_values, model, "block family", "model width", "vocabulary size (default 256: bytes)"),
    { 0 },
};

static const char remedy[] = "see krait plan --help";

/* ---- models by name ---- */

typedef struct published {
    const char *name;
    kr_family family;
    int64_t d_model, layers;
} published;

/* The shapes of the published checkpoints (state-spaces/mamba-130m and so on); all else are the families' defaults. */
static const published models[] = {
    { "mamba-130m", KR_FAMILY_MAMBA1, 768, 24 },   { "mamba-370m", KR_FAMILY_MAMBA1, 1024, 48 },
    { "mamba-790m", KR_FAMILY_MAMBA1, 1536, 48 },  { "mamba-1.4b", KR_FAMILY_MAMBA1, 2048, 48 },
    { "mamba-2.8b", KR_FAMILY_MAMBA1, 2560, 64 },  { "mamba2-130m", KR_FAMILY_MAMBA2, 768, 24 },
    { "mamba2-370m", KR_FAMILY_MAMBA2, 1024, 48 }, { "mamba2-780m", KR_FAMILY_MAMBA2, 1536, 48 },
    { "mamba2-1.3b", KR_FAMILY_MAMBA2, 2048, 48 }, { "mamba2-2.7b", KR_FAMILY_MAMBA2, 2560, 64 },
};
enum { MODELS = sizeof models / sizeof *models, PUBLISHED_VOCAB = 50277 };

static bool refuse_name(const char *name)
{
    char list[256] = "the names are";
    for (int i = 0; i < MODELS; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s %s", i ? "," : "", models[i].name);
    cli_complain(list, "plan: --model is '%s', but must be a published name, or a folder or file that exists", name);
    return false;
}

/* Fills the shape options that are not given. */
static bool take_name(plan_values *v, const published **found)
{
    *found = NULL;
    if (!v->name || cli_exists(v->name)) {
        v->model.config = v->name;
        return true;
    }
    for (int i = 0; i < MODELS; i++)
        if (strcmp(models[i].name, v->name) == 0) *found = &models[i];
    if (!*found) return refuse_name(v->name);
    if (v->model.family >= 0 && v->model.family != (int)(*found)->family) {
        cli_complain(remedy, "plan: --family differs from that of %s, %s", v->name, kr_family_name((*found)->family));
        return false;
    }
    v->model.family = (int)(*found)->family;
    if (!v->model.d_model) v->model.d_model = (*found)->d_model;
    if (!v->model.layers) v->model.layers = (*found)->layers;
    if (!v->model.vocab) v->model.vocab = PUBLISHED_VOCAB;
    return true;
}

/* ---- values ---- */

/* "400G" -> bits/s; 0: not a rate. */
static double rate_of(const char *text)
{
    static const struct {
        char unit;
        double bits;
    } units[] = { { 'M', 1e6 }, { 'G', 1e9 }, { 'T', 1e12 } };
    char *end;
    if (*text < '0' || *text > '9') return 0;
    const double number = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (end[0] == units[i].unit && !end[1]) return number * units[i].bits;
    return 0;
}

static bool refuse(const char *option, const char *text, const char *rule)
{
    cli_complain(remedy, "plan: --%s is '%s', but must be %s", option, text, rule);
    return false;
}

static bool take_size(const char *option, const char *text, size_t *bytes)
{
    *bytes = cli_size_of(text);
    return *bytes || refuse(option, text, "a size such as 25MB or 80GiB");
}

static bool take_slow(const plan_values *v, int64_t *ranks, double *factors)
{
    for (int i = 0; i < v->slow.count; i++) {
        char *end, *last;
        const char *text = v->slow.text[i];
        ranks[i] = strtoll(text, &end, 10);
        factors[i] = *end == ':' ? strtod(end + 1, &last) : 0;
        if (*text < '0' || *text > '9' || *end != ':' || *last || last == end + 1 || !(factors[i] > 0))
            return refuse("slow", text, "a rank and a factor above 0, such as 3:1.5");
        if (ranks[i] >= v->gpus) {
            cli_complain(remedy, "plan: --slow is '%s', but ranks of --gpus %lld are from 0 to %lld", text,
                         (long long)v->gpus, (long long)v->gpus - 1);
            return false;
        }
    }
    return true;
}

/* Checks of several options together, which have names here that the library does not know. */
static bool fit_together(const plan_values *v)
{
    const int64_t micro_batches = v->micro_batches ? v->micro_batches : v->gpus;
    const char *missing = v->name || (v->model.family >= 0 && v->model.d_model) ? NULL : "--model is missing";
    if (missing)
        cli_complain("name a model, or give --family and --d-model; see krait plan --help", "plan: %s", missing);
    else if (v->gpus > v->per_host && v->gpus % v->per_host)
        cli_complain("choose whole hosts", "plan: --gpus is %lld, but must be a multiple of --per-host %lld",
                     (long long)v->gpus, (long long)v->per_host);
    else if (micro_batches % v->gpus)
        cli_complain("every GPU has as many; choose a multiple",
                     "plan: --micro-batches is %lld, but must be a multiple of --gpus %lld", (long long)micro_batches,
                     (long long)v->gpus);
    else if (v->tokens % v->length)
        cli_complain("a micro-batch has whole rows; change one of the two",
                     "plan: --tokens is %lld, but must be a multiple of --length %lld", (long long)v->tokens,
                     (long long)v->length);
    else if (!isnan(v->rate) && v->device == PLAN_MEASURED)
        cli_complain("give one of the two", "plan: --rate and --device measured are two sources of one number");
    else if (v->is_direct && v->reduce == 1)
        cli_complain("give one of the two", "plan: --direct is for ordered sums, not for --reduce fast");
    else if (!(v->link > 0) || v->rate <= 0)
        cli_complain(remedy, "plan: --%s is 0, but must be above 0", v->link > 0 ? "rate" : "link");
    else return true;
    return false;
}

/* Options that other options must accompany. */
static bool are_in_use(const plan_values *v, const cli_given *given)
{
    const struct {
        const char *name, *needs;
        bool is_used;
    } rules[] = { { "distinct", "--split-embedding", v->splits_embedding },
                  { "steps", "--simulate", v->simulates },
                  { "slow", "--simulate", v->simulates },
                  { "jitter", "--simulate", v->simulates },
                  { "on", "--device measured", v->device == PLAN_MEASURED },
                  { "threads", "--device measured", v->device == PLAN_MEASURED },
                  { "isa", "--device measured", v->device == PLAN_MEASURED },
                  { "precision", "--device measured", v->device == PLAN_MEASURED } };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        char text[80];
        if (rules[i].is_used || !cli_is_given(&cli_plan, v, given, rules[i].name)) continue;
        snprintf(text, sizeof text, "add %s", rules[i].needs);
        cli_complain(text, "plan: --%s has no effect without %s", rules[i].name, rules[i].needs);
        return false;
    }
    return true;
}

/* An H200 training the 130m shape of each family with bf16 products, 8 rows of 2048 tokens: docs/perf.md, "Training on a
 * GPU". */
typedef struct recorded {
    double flops, bytes;
} recorded;

static recorded record_of(kr_family family)
{
    return family == KR_FAMILY_MAMBA1   ? (recorded){ 176e12, 23.14 * 0x1p30 }
           : family == KR_FAMILY_MAMBA2 ? (recorded){ 299e12, 14.24 * 0x1p30 }
                                        : (recorded){ 276e12, 14.97 * 0x1p30 };
}

/* Its rate; and its activations, as a part of those that the plan of that shape has. */
static bool take_record(kr_ctx *ctx, kr_family family, kr_plan_options *o)
{
    const recorded record = record_of(family);
    kr_plan_options alone;
    kr_plan plan;
    kr_model_config *config = kr_model_config_create(ctx);
    if (!config) return false;
    config->family = family;
    kr_model_config_set_d_model(config, 768);
    config->layers->n_layers = 24;
    config->network->vocab_size = 50288;
    kr_plan_options_init(&alone);
    alone.ranks = 1;
    const bool ok = kr_plan_make(ctx, config, &alone, &plan) == KR_OK;
    kr_model_config_destroy(config);
    if (!ok) return false;
    o->flops = record.flops;
    o->activation_scale = (record.bytes - (plan.memory_bytes - plan.activation_bytes)) / plan.activation_bytes;
    return true;
}

/* Of the bits of a network interface, those that are data; the rest are headers, and pauses between messages. */
static const double nic_efficiency = 0.9;

static bool take_options(const plan_values *v, kr_plan_options *o)
{
    const double nic = rate_of(v->nic);
    size_t bucket;
    if (!(nic > 0) || !isfinite(nic)) return refuse("nic", v->nic, "bits/s with a unit, such as 400G or 800M");
    if (!take_size("bucket", v->bucket, &bucket)) return false;
    kr_plan_options_init(o);
    o->ranks = v->gpus;
    o->ranks_per_host = v->per_host;
    if (!isnan(v->rate)) o->flops = v->rate * 1e12;
    o->link_bytes = v->link * 1e9;
    o->nic_bytes = (double)v->nics * nic * nic_efficiency / 8;
    o->latency = v->latency * 1e-6;
    o->overhead = v->overhead * 1e-6;
    o->tokens = v->tokens;
    o->length = v->length;
    o->micro_batches = v->micro_batches;
    o->bucket_bytes = (int64_t)bucket;
    o->reduce_dtype = v->reduce_dtype ? KR_DTYPE_BF16 : KR_DTYPE_F32;
    /* communicators sum in two levels if the ranks of a host are a power of two */
    const bool has_levels = !v->is_direct && (v->per_host & (v->per_host - 1)) == 0;
    o->exchange = v->reduce == 1 ? KR_PLAN_EXCHANGE_RINGS
                  : has_levels   ? KR_PLAN_EXCHANGE_HOSTS
                                 : KR_PLAN_EXCHANGE_DIRECT;
    o->split_embedding = v->splits_embedding;
    o->gather_ahead = v->gathers_ahead;
    o->lookup_rows = v->distinct;
    o->steps = v->steps;
    o->jitter = v->jitter;
    o->seed = v->seed;
    return true;
}

/* ---- the plans ---- */

static bool add_choice(kr_ctx *ctx, plan_job *job, kr_plan_shards shards, int64_t recompute)
{
    plan_choice *c = &job->choices[job->count];
    *c = (plan_choice){ .shards = shards, .recompute = recompute };
    job->options.shards = shards;
    job->options.recompute = recompute;
    if (kr_plan_make(ctx, job->config, &job->options, &c->plan) != KR_OK) return false;
    if (recompute == KR_PLAN_ALL) c->recompute = c->plan.layers;
    c->fits = job->memory > 0 && c->plan.memory_bytes <= job->memory;
    job->count++;
    return true;
}

static bool fits_with(kr_ctx *ctx, plan_job *job, kr_plan_shards shards, int64_t recompute, int64_t *layers)
{
    kr_plan plan;
    job->options.shards = shards;
    job->options.recompute = recompute;
    if (kr_plan_make(ctx, job->config, &job->options, &plan) != KR_OK) return false;
    *layers = plan.layers;
    return plan.memory_bytes <= job->memory;
}

/* As few recomputed layers as fit, where neither none nor all do it. */
static bool add_fitting(kr_ctx *ctx, plan_job *job, kr_plan_shards shards)
{
    int64_t too_few = 0, enough;
    if (!fits_with(ctx, job, shards, KR_PLAN_ALL, &enough)) return !kr_ctx_failed(ctx);
    for (int64_t layers; enough - too_few > 1;) {
        const int64_t middle = too_few + (enough - too_few) / 2;
        *(fits_with(ctx, job, shards, middle, &layers) ? &enough : &too_few) = middle;
    }
    return !kr_ctx_failed(ctx) && add_choice(ctx, job, shards, enough);
}

/* Recomputation of no layer, of some, of all. */
static bool add_choices(kr_ctx *ctx, plan_job *job, kr_plan_shards shards)
{
    if (job->values->recompute) return add_choice(ctx, job, shards, KR_PLAN_ALL);
    if (!add_choice(ctx, job, shards, 0)) return false;
    const plan_choice *none = &job->choices[job->count - 1];
    if (job->memory > 0 && !none->fits && !add_fitting(ctx, job, shards)) return false;
    return job->choices[job->count - 1].recompute == none->plan.layers || add_choice(ctx, job, shards, KR_PLAN_ALL);
}

/* Those that fit come before those that do not; among the first the fastest is better, among the others the smallest. */
static bool is_better(const plan_job *job, const plan_choice *a, const plan_choice *b)
{
    if (a->fits != b->fits) return a->fits;
    return a->fits || job->memory <= 0 ? a->plan.step < b->plan.step : a->plan.memory_bytes < b->plan.memory_bytes;
}

static bool make_plans(kr_ctx *ctx, plan_job *job)
{
    const plan_values *v = job->values;
    for (int s = KR_PLAN_SHARDS_NONE; s <= KR_PLAN_SHARDS_GRADIENTS; s++) {
        const bool is_wanted = v->shard >= 0 ? v->shard == s : s == KR_PLAN_SHARDS_NONE || v->gpus > 1;
        if (is_wanted && !add_choices(ctx, job, (kr_plan_shards)s)) return false;
    }
    /* of those that krait train has: it holds the optimizer's state in shares */
    const kr_plan_shards shards = v->shard >= 0 ? (kr_plan_shards)v->shard
                                  : v->gpus > 1 ? KR_PLAN_SHARDS_OPTIMIZER
                                                : KR_PLAN_SHARDS_NONE;
    job->best = -1;
    for (int i = 0; i < job->count; i++)
        if (job->choices[i].shards == shards &&
            (job->best < 0 || is_better(job, &job->choices[i], &job->choices[job->best])))
            job->best = i;
    job->options.shards = job->choices[job->best].shards;
    job->options.recompute = job->choices[job->best].recompute;
    return true;
}

/* The speed of a GPU, and what its activations need. */
static bool take_device(kr_ctx *ctx, plan_job *job, plan_measured *measured)
{
    const plan_values *v = job->values;
    if (v->device == PLAN_MEASURED) {
        if (!plan_measure(v, job->config, &job->options, measured)) return false;
        job->options.flops = measured->flops;
        job->measured = measured;
        return true;
    }
    return !isnan(v->rate) || take_record(ctx, job->config->family, &job->options);
}

static int report(kr_ctx *ctx, const plan_values *v, const kr_model_config *config)
{
    int64_t slow_ranks[CLI_MAX_TEXTS];
    double slow_factors[CLI_MAX_TEXTS];
    plan_measured measured;
    kr_plan_simulation simulation;
    size_t memory = v->device == PLAN_H200 && isnan(v->rate) ? (size_t)139 << 30 : 0;
    plan_job job = { .values = v, .config = config };
    if (v->memory && !take_size("memory", v->memory, &memory)) return CLI_USAGE;
    if (!take_options(v, &job.options) || !take_slow(v, slow_ranks, slow_factors)) return CLI_USAGE;
    job.memory = (double)memory;
    job.options.recompute = v->recompute ? KR_PLAN_ALL : 0;
    if (!take_device(ctx, &job, &measured)) return CLI_FAILED;
    if (!make_plans(ctx, &job)) return CLI_FAILED;
    if (v->simulates) {
        job.options.n_slow = v->slow.count;
        job.options.slow_ranks = slow_ranks;
        job.options.slow_factors = slow_factors;
        if (kr_plan_simulate(ctx, config, &job.options, &simulation) != KR_OK) return CLI_FAILED;
        job.simulation = &simulation;
    }
    plan_print(&job);
    return CLI_OK;
}

static int run_with(kr_ctx *ctx, const plan_values *v, const published *named)
{
    cli_model_shape shape;
    int status = CLI_FAILED;
    if (cli_model_begin(ctx, &v->model, &shape)) {
        if (named && named->family == KR_FAMILY_MAMBA2) shape.config->network->pad_vocab_size_multiple = 16;
        status = cli_model_shape_set("plan", &v->model, &shape) ? report(ctx, v, shape.config) : CLI_USAGE;
    }
    const char *ranks = kr_ctx_failed(ctx) ? strstr(kr_ctx_message(ctx), ": ranks") : NULL;
    if (ranks) { /* a name of the library's */
        cli_complain("ranks is --gpus, ranks_per_host is --per-host", "plan%s", ranks);
        status = CLI_FAILED;
    } else if (cli_model_failed(ctx, "plan")) {
        status = CLI_FAILED;
    }
    cli_model_shape_free(&shape);
    return status;
}

static int run(int argc, char **argv)
{
    plan_values v = { .model = CLI_MODEL_VALUES, .rate = NAN };
    cli_given given = { { 0 } };
    int status = cli_parse_given(&cli_plan, &v, argc, argv, &given);
    const published *named;
    if (status >= 0) return status;
    if (!v.length) v.length = v.tokens < 2048 ? v.tokens : 2048;
    if (!are_in_use(&v, &given) || !fit_together(&v) || !take_name(&v, &named)) return CLI_USAGE;
    kr_ctx *ctx = cli_open(&(cli_machine){ .device = "cpu", .threads = 1, .precision = KR_PRECISION_UNSET }, v.seed);
    status = cli_model_failed(ctx, "plan") ? CLI_FAILED : run_with(ctx, &v, named);
    kr_ctx_destroy(ctx);
    return status;
}

const cli_command cli_plan = {
    .name = "plan",
    .summary = "estimate time, memory and traffic of training on many GPUs",
    .options = options,
    .run = run,
    .more =
        "krait plan --model mamba2-2.7b --gpus 64 --nic 400G --nics 8 prints a table of what may be held in shares\n"
        "and recomputed. docs/plan.md has the formulas and what they leave out.\n",
};
