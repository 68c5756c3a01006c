/* bench_main.c - krait-bench CASE... [options]: measures kernels, their peers and the machine's limits. */
#include "bench/bench.h"
#include "bench/bench_machine.h"

#include "base/cpu.h"
#include "kernels/select.h"

#include <krait/ctx.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { USAGE = 2 };

static const bench_case *const groups[] = { bench_gemm_cases,  bench_gemv_cases,   bench_math_cases, bench_norm_cases,
                                            bench_conv_cases,  bench_reduce_cases, bench_ssd_cases,  bench_scan_cases,
                                            bench_paths_cases, bench_block_cases,  bench_step_cases, bench_model_cases,
                                            bench_loss_cases,  bench_train_cases };
enum { NGROUPS = sizeof groups / sizeof *groups };

/* With --device: cases of that device only. */
static const bench_case *const device_groups[] = { bench_gpu_bandwidth_cases, bench_gpu_gemm_cases,
                                                   bench_gpu_ssd_cases,       bench_gpu_block_cases,
                                                   bench_gpu_train_cases,     bench_gpu_model_cases };
enum { NDEVICE_GROUPS = sizeof device_groups / sizeof *device_groups };

typedef struct options {
    const char *json, *isa, *device;
    int threads;
    double seconds, patience;
    bool list;
    int nwanted;
    char **wanted;
} options;

static void help(FILE *out)
{
    fputs("usage: krait-bench [CASE...] [--json FILE] [--threads N] [--isa NAME] [--seconds S]\n"
          "                   [--patience S] [--device NAME] [--list]\n\n"
          "  CASE         a case, or how its name begins (gemm, norm/gated); all if none is given\n"
          "  --json FILE  writes all figures there\n"
          "  --threads N  threads in addition to 1 (the CPUs this process may use)\n"
          "  --isa NAME   only our kernels of this set (all that run here, without ref)\n"
          "  --seconds S  time for one contender of a case (0.3)\n"
          "  --patience S waits up to S seconds in all for a machine that others leave alone, and repeats what they\n"
          "               disturbed (0)\n"
          "  --device D   the cases of a GPU on device D (cuda, cuda:N), and no others; needs a build with CUDA\n"
          "  --list       names the cases and does nothing\n",
          out);
}

KR_PRINTF(1, 2) static int complain(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("krait-bench: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return USAGE;
}

/* -1 to continue, or the exit status. */
static int parse_option(options *o, const char *name, const char *value)
{
    char *end;
    if (!value) return complain("%s needs a value", name);
    if (strcmp(name, "--json") == 0) {
        o->json = value;
    } else if (strcmp(name, "--isa") == 0) {
        o->isa = value;
    } else if (strcmp(name, "--device") == 0) {
        o->device = strcmp(value, "cpu") == 0 ? NULL : value;
    } else if (strcmp(name, "--threads") == 0) {
        const long threads = strtol(value, &end, 10);
        if (*end || end == value || threads < 1 || threads > 1024) {
            return complain("--threads is %s, but must be from 1 to 1024", value);
        }
        o->threads = (int)threads;
    } else if (strcmp(name, "--patience") == 0) {
        o->patience = strtod(value, &end);
        if (*end || end == value || !(o->patience >= 0))
            return complain("--patience is %s, but must be 0 or more", value);
    } else {
        o->seconds = strtod(value, &end);
        if (*end || end == value || !(o->seconds > 0) || o->seconds > 60) {
            return complain("--seconds is %s, but must be above 0 and at most 60", value);
        }
    }
    return -1;
}

static int parse(options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
            help(stdout);
            return 0;
        }
        if (strcmp(arg, "--list") == 0) {
            o->list = true;
        } else if (strcmp(arg, "--json") == 0 || strcmp(arg, "--threads") == 0 || strcmp(arg, "--isa") == 0 ||
                   strcmp(arg, "--seconds") == 0 || strcmp(arg, "--patience") == 0 || strcmp(arg, "--device") == 0) {
            const int status = parse_option(o, arg, argv[i + 1]);
            if (status >= 0) return status;
            i++;
        } else if (arg[0] == '-') {
            return complain("unknown option %s; see --help", arg);
        } else {
            o->wanted[o->nwanted++] = argv[i];
        }
    }
    return -1;
}

static bool begins(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

static bool is_wanted(const options *o, const char *name)
{
    for (int i = 0; i < o->nwanted; i++)
        if (begins(name, o->wanted[i])) return true;
    return o->nwanted == 0;
}

/* The g-th group that these options choose from; NULL past the last. */
static const bench_case *group_of(const options *o, int g)
{
    if (o->device) return g < NDEVICE_GROUPS ? device_groups[g] : NULL;
    return g == 0 ? bench_machine_cases : g <= NGROUPS ? groups[g - 1] : NULL;
}

static int check_wanted(const options *o)
{
    for (int i = 0; i < o->nwanted; i++) {
        bool found = false;
        for (int g = 0; group_of(o, g); g++)
            for (const bench_case *c = group_of(o, g); c->name; c++) found |= begins(c->name, o->wanted[i]);
        if (!found) return complain("no case begins with '%s'; see --list", o->wanted[i]);
    }
    return -1;
}

static void list(const bench_case *cases)
{
    for (const bench_case *c = cases; c->name; c++) printf("%-36s %s\n", c->name, c->what);
}

/* Our kernel sets to measure: the requested one, or all but the reference (which is used if there is no other). */
static int choose_sets(bench_env *env, const char *isa)
{
    for (int i = 0; kr_kernels_nth(i); i++) {
        const kr_kernels *set = kr_kernels_nth(i);
        const bool is_ref = i == 0, only_ref = !kr_kernels_nth(1);
        if (!kr_kernels_runnable(set, env->features) || env->nsets == BENCH_SETS) continue;
        if (isa ? strcmp(set->name, isa) == 0 : !is_ref || only_ref)
            kr_kernels_merge(&env->sets[env->nsets++], set, env->features);
    }
    if (env->nsets == 0 && !isa) kr_kernels_merge(&env->sets[env->nsets++], kr_kernels_nth(0), env->features);
    if (env->nsets > 0) return -1;
    char text[128];
    return complain("--isa is %s, but this machine has %s", isa, kr_isa_choices(text, sizeof text));
}

static void run_case(bench_env *env, const bench_case *c)
{
    c->run(env, c);
    while (env->nblocks > 0) free(env->blocks[--env->nblocks]);
}

/* False after an error message if it cannot be opened. */
static bool name_device(bench_machine *machine, const char *device)
{
    kr_ctx_options o;
    kr_ctx_options_init(&o);
    o.threads = 1;
    o.device = device ? device : "cpu";
    kr_ctx *ctx = kr_ctx_create(&o);
    const bool ok = !kr_ctx_failed(ctx);
    if (!ok) complain("%s", kr_ctx_message(ctx));
    snprintf(machine->device, sizeof machine->device, "%s", kr_ctx_device(ctx));
    kr_ctx_destroy(ctx);
    return ok;
}

static int run(const options *o)
{
    static bench_env env;
    kr_memory_init(&env.memory, NULL);
    env.features = kr_cpu_features();
    env.seconds = o->seconds;
    env.patience = o->patience;
    env.threads = o->threads ? o->threads : kr_cpu_allowed(NULL, 0);
    const int status = choose_sets(&env, o->isa);
    if (status >= 0) return status;
    env.pool = kr_pool_create(&env.memory, env.threads, false);
    if (!env.pool) bench_fail("cannot start %d threads", env.threads);
    bench_machine machine;
    machine_describe(&machine, env.features, env.threads);
    if (!name_device(&machine, o->device)) return 1;
    env.device = o->device;
    env.report = report_begin(&machine, env.seconds);
    if (!env.report) bench_fail("no memory for the report");
    for (int g = 0; group_of(o, g); g++)
        for (const bench_case *c = group_of(o, g); c->name; c++)
            if (is_wanted(o, c->name) || begins(c->name, "machine/")) run_case(&env, c);
    kr_pool_destroy(env.pool);
    if (!report_end(env.report, o->json)) bench_fail("cannot write %s", o->json);
    return 0;
}

int main(int argc, char **argv)
{
    options o = { .seconds = 0.3 };
    o.wanted = calloc((size_t)argc, sizeof *o.wanted);
    if (!o.wanted) return 1;
    int status = parse(&o, argc, argv);
    if (status < 0) status = check_wanted(&o);
    if (status < 0 && o.list) {
        for (int g = 0; group_of(&o, g); g++) list(group_of(&o, g));
        status = 0;
    }
    if (status < 0) status = run(&o);
    free(o.wanted);
    return status;
}
