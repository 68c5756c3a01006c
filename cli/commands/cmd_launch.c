/* cmd_launch.c - krait launch: runs a command as several ranks on this host, alone or as a part of a larger job. */
#define _GNU_SOURCE
#include "cli/commands/launch_ranks.h"
#include "cli/common/cli_files.h"
#include "cli/common/cli_options.h"
#include "cli/common/commands.h"

#include <krait/comm.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct launch_values {
    int ranks, restarts, hosts, host;
    const char *meet, *program;
    cli_texts command;
} launch_values;

static const cli_operand operands[] = {
    { "-- COMMAND...", offsetof(launch_values, command), false, "the command of krait, with its options, after --" },
    { 0 },
};

#define AT(field) offsetof(launch_values, field)
static const cli_option options[] = {
    { "ranks", 'n', "N", CLI_INT, AT(ranks), NULL, 1, "ranks on this host (required)" },
    { "restarts", 0, "K", CLI_INT, AT(restarts), "0", 0,
      "start the job again, at most K times, after a rank failed; train then resumes its run" },
    { "hosts", 0, "H", CLI_INT, AT(hosts), "1", 1, "hosts of the job: each runs krait launch, with the same N" },
    { "host", 0, "I", CLI_INT, AT(host), "0", 0, "number of this host, from 0" },
    { "meet", 0, "HOST:PORT", CLI_TEXT, AT(meet), NULL, 0,
      "where ranks meet: an address of host 0 and a free port (default: a socket in a temporary folder)" },
    { "program", 0, "FILE", CLI_TEXT, AT(program), NULL, 0, "start this program instead of krait" },
    { 0 },
};

/* ---- the command of a restart ---- */

/* The value of an option in a command: "--out DIR" or "--out=DIR"; NULL: it has none. */
static const char *option_of(char **argv, const char *name)
{
    const size_t length = strlen(name);
    for (int i = 1; argv[i]; i++) {
        if (strcmp(argv[i], "--") == 0) break;
        if (strncmp(argv[i], name, length) != 0) continue;
        if (argv[i][length] == '=') return argv[i] + length + 1;
        if (argv[i][length] == '\0') return argv[i + 1];
    }
    return NULL;
}

/* train that has written its folder resumes it; every other command runs again as it is. `resumed` has place for 5. */
static char **command_again(char **argv, char **resumed)
{
    static char train[] = "train", resume[] = "--resume";
    char path[CLI_PATH_BYTES];
    const char *out = argv[1] && strcmp(argv[1], train) == 0 ? option_of(argv, "--out") : NULL;
    if (!out || !cli_join(path, out, "train.json") || !cli_exists(path)) return argv;
    resumed[0] = argv[0];
    resumed[1] = train;
    resumed[2] = resume;
    resumed[3] = (char *)out;
    resumed[4] = NULL;
    return resumed;
}

/* ---- the job ---- */

static void complain_of(const launch_job *job, const launch_result *result, int left)
{
    char again[64] = "";
    if (left > 0) snprintf(again, sizeof again, "; the job starts again, %d more time%s", left, left == 1 ? "" : "s");
    if (result->number)
        cli_complain(NULL, "launch: rank %d of %d was ended by signal %d (%s)%s", result->rank, job->ranks,
                     result->number, strsignal(result->number), again);
    else
        cli_complain(NULL, "launch: rank %d of %d failed with status %d%s", result->rank, job->ranks, result->status,
                     again);
}

static int run_job(launch_job *job, int restarts)
{
    char *resumed[5];
    launch_result result;
    for (int left = restarts;; left--) {
        if (!launch_run(job, &result)) return CLI_FAILED;
        if (result.status == 0) return CLI_OK;
        const bool is_over = left == 0 || result.is_interrupted || result.status == CLI_USAGE || result.status == 127;
        complain_of(job, &result, is_over ? 0 : left);
        if (is_over) return result.status;
        job->argv = command_again(job->argv, resumed);
    }
}

/* Threads of a rank: its share of the CPUs that this process may use. */
static int share_of(int ranks)
{
    kr_launch launch;
    (void)kr_launch_read(&launch);
    return launch.cpus > ranks ? launch.cpus / ranks : 1;
}

static bool is_sensible(const launch_values *v)
{
    if (v->host >= v->hosts) {
        cli_complain("hosts are numbered from 0", "launch: --host %d, but --hosts %d", v->host, v->hosts);
        return false;
    }
    if (v->hosts > 1 && !v->meet) {
        cli_complain("such as --meet node0:29400, with the name of host 0", "launch: --hosts %d needs --meet",
                     v->hosts);
        return false;
    }
    if (v->hosts > 1 && v->restarts) {
        cli_complain("let the system that starts the hosts start them again", "launch: --restarts is for one host");
        return false;
    }
    return true;
}

static int launch(const launch_values *v, int argc, char **argv)
{
    char self[CLI_PATH_BYTES];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (!v->program && length <= 0) {
        cli_complain("give it by --program", "launch: the system does not tell where krait is");
        return CLI_FAILED;
    }
    self[length > 0 ? length : 0] = '\0';
    char **command = calloc((size_t)argc + 2, sizeof *command);
    if (!command) {
        cli_complain(NULL, "launch: out of memory");
        return CLI_FAILED;
    }
    launch_job job = { .program = v->program ? v->program : self, .argv = command, .local = v->ranks, .meet = v->meet };
    command[0] = (char *)job.program;
    for (int i = 0; i < argc; i++) command[1 + i] = argv[i];
    job.ranks = v->ranks * v->hosts;
    job.first = v->ranks * v->host;
    job.threads = share_of(v->ranks);
    const int status = run_job(&job, v->restarts);
    free(command);
    return status;
}

static int run(int argc, char **argv)
{
    launch_values v = { .ranks = 0 };
    int end = 1;
    while (end < argc && strcmp(argv[end], "--") != 0) end++;
    const bool has_command = end + 1 < argc;
    /* What comes after the first word is the command's own. */
    int status = cli_parse(&cli_launch, &v, has_command ? end + 2 : end, argv);
    if (status >= 0) return status;
    const char *missing = !v.ranks ? "--ranks N is missing: the number of ranks on this host"
                          : !has_command || v.command.count > 1 ? "the command comes after --"
                                                                : NULL;
    if (missing) {
        cli_complain("such as: krait launch -n 4 -- train --data notes.txt --out runs/notes", "launch: %s", missing);
        return CLI_USAGE;
    }
    if (!is_sensible(&v)) return CLI_USAGE;
    return launch(&v, argc - end - 1, argv + end + 1);
}

const cli_command cli_launch = {
    .name = "launch",
    .summary = "run a command as several ranks on this host, such as train",
    .options = options,
    .run = run,
    .operands = operands,
    .more =
        "krait launch -n 4 -- train --data notes.txt --out runs/notes\n"
        "\n"
        "Each rank is a process with KR_RANK, KR_RANKS, KR_LOCAL_RANK, KR_LOCAL_RANKS, KR_MEET and, if it is not set,\n"
        "KR_THREADS: its share of the CPUs. stderr of a rank comes with [rank N] in front. When a rank fails, all "
        "end;\n"
        "the exit status is that of the first that failed, or 128 and its signal. SIGINT and SIGTERM reach all "
        "ranks.\n",
};
