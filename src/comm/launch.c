/* launch.c - what launchers say in the environment: rank, number of ranks, ranks of this host, where to meet. */
#define _GNU_SOURCE
#include "base/cpu.h"
#include "base/pool.h"

#include <krait/comm.h>

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct launcher {
    const char *word, *name, *engine;
    const char *rank, *ranks, *local_rank, *local_ranks; /* variables; local_ranks may be NULL */
} launcher;

/* The order in which they count. */
enum { OPENMPI, MPICH, SLURM, TORCHRUN, KRAIT, LAUNCHERS };
static const launcher launchers[LAUNCHERS] = {
    [OPENMPI] = { "openmpi", "Open MPI", "mpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                  "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE" },
    [MPICH] = { "mpich", "MPICH", "mpi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS" },
    [SLURM] = { "slurm", "Slurm", "tcp", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE" },
    [TORCHRUN] = { "torchrun", "torchrun", "tcp", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE" },
    [KRAIT] = { "krait", "krait launch", "tcp", "KR_RANK", "KR_RANKS", "KR_LOCAL_RANK", "KR_LOCAL_RANKS" },
};

static kr_status refuse(kr_launch *launch, const char *format, ...) KR_PRINTF(2, 3);
static kr_status refuse(kr_launch *launch, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(launch->problem, sizeof launch->problem, format, list);
    va_end(list);
    return KR_ERR_ARG;
}

static const char *value_of(const char *variable)
{
    const char *value = variable ? getenv(variable) : NULL;
    return value && *value ? value : NULL;
}

/* srun sets a step; the script of a batch job, in which mpirun or krait launch may run, has none. */
static bool is_there(int which)
{
    if (!value_of(launchers[which].rank) || !value_of(launchers[which].ranks)) return false;
    return which != SLURM || value_of("SLURM_STEP_ID");
}

static bool read_number(kr_launch *launch, const char *variable, int least, int *number)
{
    const char *value = value_of(variable);
    char *end = NULL;
    const long found = value ? strtol(value, &end, 10) : -1;
    if (value && *end == '\0' && found >= least && found <= 1 << 24) {
        *number = (int)found;
        return true;
    }
    if (value)
        refuse(launch, "the variable %s is \"%.40s\", but must be a number of at least %d", variable, value, least);
    else refuse(launch, "the variable %s is missing, which the launcher sets with the others", variable);
    return false;
}

/* ---- meeting places ---- */

/* The first host of a list like "node[03-07,9],other": node03. */
static bool first_host(const char *list, char *host, size_t bytes)
{
    size_t length = strcspn(list, ",[");
    const char *bracket = list[length] == '[' ? list + length + 1 : NULL;
    const size_t digits = bracket ? strspn(bracket, "0123456789") : 0;
    if (length + digits == 0 || length + digits >= bytes) return false;
    memcpy(host, list, length);
    if (bracket) memcpy(host + length, bracket, digits);
    host[length + digits] = '\0';
    return true;
}

/* Ports above those of common services and below those that systems give out, from the number of the job and its step.
 * */
static void meet_by_slurm(kr_launch *launch)
{
    const char *nodes = value_of("SLURM_STEP_NODELIST"), *job = value_of("SLURM_JOB_ID"),
               *step = value_of("SLURM_STEP_ID");
    char host[200];
    if (!nodes) nodes = value_of("SLURM_JOB_NODELIST");
    if (!nodes || !job || !first_host(nodes, host, sizeof host)) return;
    const long number = strtol(job, NULL, 10) * 7 + (step ? strtol(step, NULL, 10) : 0);
    snprintf(launch->meet, sizeof launch->meet, "%s:%ld", host, 20000 + (number % 12000 + 12000) % 12000);
}

/* KR_MEET counts for every launcher. */
static kr_status find_meeting(kr_launch *launch, int which)
{
    const char *meet = value_of("KR_MEET"), *address = value_of("MASTER_ADDR"), *port = value_of("MASTER_PORT");
    if (meet && strlen(meet) >= sizeof launch->meet)
        return refuse(launch, "the variable KR_MEET has %zu bytes, but at most %zu fit", strlen(meet),
                      sizeof launch->meet - 1);
    if (meet) snprintf(launch->meet, sizeof launch->meet, "%s", meet);
    else if (which == SLURM) meet_by_slurm(launch);
    else if (which == TORCHRUN && address && port)
        snprintf(launch->meet, sizeof launch->meet, "%.200s:%.20s", address, port);
    return KR_OK;
}

/* ---- threads ---- */

/* CPUs that the process may use, for one rank: a launcher that binds ranks gives each its own or lets some share a
 * part of the machine; one that does not lets all ranks of the host share all. */
static void share_cpus(kr_launch *launch)
{
    int cpus[KR_POOL_MAX];
    const int online = (int)sysconf(_SC_NPROCESSORS_ONLN), local = launch->local_ranks > 0 ? launch->local_ranks : 1;
    launch->cpus = kr_cpu_allowed(cpus, KR_POOL_MAX);
    const int all = online > launch->cpus ? online : launch->cpus;
    const int sharing = (int)(((int64_t)local * launch->cpus + all - 1) / all);
    launch->threads = launch->cpus / (sharing > 0 ? sharing : 1);
    if (launch->threads < 1) launch->threads = 1;
    const char *given = value_of("KR_THREADS");
    char *end = NULL;
    const long threads = given ? strtol(given, &end, 10) : 0;
    if (threads > 0 && threads <= KR_POOL_MAX && *end == '\0') launch->threads = (int)threads;
}

/* ---- choice ---- */

static kr_status read_launcher(kr_launch *launch, int which)
{
    const launcher *l = &launchers[which];
    launch->launcher = l->name;
    launch->engine = l->engine;
    if (!read_number(launch, l->ranks, 1, &launch->ranks) || !read_number(launch, l->rank, 0, &launch->rank))
        return KR_ERR_ARG;
    if (launch->rank >= launch->ranks)
        return refuse(launch, "%s is %d, but %s is %d: ranks are 0 to %s - 1", l->rank, launch->rank, l->ranks,
                      launch->ranks, l->ranks);
    if (value_of(l->local_rank) && !read_number(launch, l->local_rank, 0, &launch->local_rank)) return KR_ERR_ARG;
    if (value_of(l->local_ranks) && !read_number(launch, l->local_ranks, 1, &launch->local_ranks)) return KR_ERR_ARG;
    if (which == SLURM && (value_of("PMIX_RANK") || value_of("PMI_RANK"))) launch->engine = "mpi";
    return find_meeting(launch, which);
}

/* mpirun in a job of Slurm starts its ranks by srun, whose numbers are those of hosts. */
static bool is_inside(int inner, int outer)
{
    return outer == SLURM && (inner == OPENMPI || inner == MPICH);
}

static kr_status check_conflict(kr_launch *launch, int first, int second)
{
    kr_launch other = { .ranks = 1 };
    const kr_status status = read_launcher(&other, second);
    if (status == KR_OK && other.rank == launch->rank && other.ranks == launch->ranks) return KR_OK;
    if (status != KR_OK)
        return refuse(launch, "%s and %s both set variables: %.300s; set KR_LAUNCHER=%s or %s", launchers[first].name,
                      launchers[second].name, other.problem, launchers[first].word, launchers[second].word);
    return refuse(
        launch,
        "%s says that this is rank %d of %d (%s), but %s says rank %d of %d (%s); set KR_LAUNCHER=%s or %s, or "
        "remove one's variables",
        launchers[first].name, launch->rank, launch->ranks, launchers[first].rank, launchers[second].name, other.rank,
        other.ranks, launchers[second].rank, launchers[first].word, launchers[second].word);
}

static kr_status choose(kr_launch *launch, int *which)
{
    const char *word = value_of("KR_LAUNCHER");
    *which = LAUNCHERS;
    for (int i = 0; i < LAUNCHERS; i++) {
        if (word ? strcmp(word, launchers[i].word) == 0 : is_there(i)) {
            *which = i;
            break;
        }
    }
    if (word && *which == LAUNCHERS && strcmp(word, "none") != 0)
        return refuse(
            launch, "the variable KR_LAUNCHER is \"%.40s\", but must be openmpi, mpich, slurm, torchrun, krait or none",
            word);
    return KR_OK;
}

kr_status kr_launch_read(kr_launch *launch)
{
    int which;
    if (!launch) return KR_ERR_ARG;
    *launch = (kr_launch){ .engine = "self", .ranks = 1 };
    kr_status status = choose(launch, &which);
    if (status == KR_OK && which < LAUNCHERS) status = read_launcher(launch, which);
    for (int i = which + 1; status == KR_OK && i < LAUNCHERS && !value_of("KR_LAUNCHER"); i++)
        if (is_there(i) && !is_inside(which, i)) status = check_conflict(launch, which, i);
    share_cpus(launch);
    return status;
}
