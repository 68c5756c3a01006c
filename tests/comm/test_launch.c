/* test_launch.c - what launchers say in the environment. */
#define _POSIX_C_SOURCE 200809L
#include "tests/harness.h"

#include <stdlib.h>

static const char *const variables[] = {
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "PMIX_RANK",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_LOCALID",
    "SLURM_STEP_ID",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_STEP_NODELIST",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "KR_RANK",
    "KR_RANKS",
    "KR_LOCAL_RANK",
    "KR_LOCAL_RANKS",
    "KR_MEET",
    "KR_LAUNCHER",
};

/* The environment has these of the variables: "NAME=VALUE NAME=VALUE". */
static kr_launch with(const char *text, kr_status status)
{
    char words[512], *rest = words;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) unsetenv(variables[i]);
    snprintf(words, sizeof words, "%s", text);
    for (char *word; (word = strtok_r(rest, " ", &rest));) {
        char *value = strchr(word, '=');
        *value = '\0';
        setenv(word, value + 1, 1);
    }
    kr_launch launch;
    const kr_status got = kr_launch_read(&launch);
    CHECK(got == status, "%s: status %s: %s", text, kr_status_name(got), launch.problem);
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) unsetenv(variables[i]);
    return launch;
}

static void check(const char *text, const char *launcher, const char *engine, int rank, int ranks, int local,
                  const char *meet)
{
    const kr_launch l = with(text, KR_OK);
    const char *name = l.launcher ? l.launcher : "none";
    CHECK(strcmp(name, launcher) == 0 && strcmp(l.engine, engine) == 0, "%s: %s, engine %s", text, name, l.engine);
    CHECK(l.rank == rank && l.ranks == ranks && l.local_rank == local, "%s: rank %d of %d, local %d", text, l.rank,
          l.ranks, l.local_rank);
    CHECK(strcmp(l.meet, meet) == 0, "%s: they meet at \"%s\"", text, l.meet);
    CHECK(l.cpus >= 1 && l.threads >= 1 && l.threads <= l.cpus, "%s: %d threads, %d CPUs", text, l.threads, l.cpus);
}

TEST(launchers)
{
    check("", "none", "self", 0, 1, 0, "");
    check("OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1", "Open MPI", "mpi", 3, 8, 1, "");
    check("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2", "MPICH", "mpi", 1, 2, 1, "");
    check("SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_LOCALID=1 SLURM_STEP_ID=2 SLURM_JOB_ID=1000 "
          "SLURM_JOB_NODELIST=gpu[003-007,9],x",
          "Slurm", "tcp", 5, 8, 1, "gpu003:27002");
    check("SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_JOB_NODELIST=a,b PMIX_RANK=5", "Slurm",
          "mpi", 5, 8, 0, "a:20007");
    check("RANK=2 WORLD_SIZE=4 LOCAL_RANK=0 MASTER_ADDR=node7 MASTER_PORT=29500", "torchrun", "tcp", 2, 4, 0,
          "node7:29500");
    check("KR_RANK=1 KR_RANKS=2 KR_LOCAL_RANK=1 KR_MEET=/run/x/meet", "krait launch", "tcp", 1, 2, 1, "/run/x/meet");
    /* KR_MEET counts for every launcher; a batch script of Slurm is no rank; RANK alone says nothing. */
    check("RANK=2 WORLD_SIZE=4 MASTER_ADDR=node7 MASTER_PORT=29500 KR_MEET=other:1", "torchrun", "tcp", 2, 4, 0,
          "other:1");
    check("SLURM_PROCID=0 SLURM_NTASKS=8 RANK=1", "none", "self", 0, 1, 0, "");
    /* mpirun in a job of Slurm, whose numbers are those of hosts. */
    check("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=8", "Open MPI",
          "mpi", 3, 8, 0, "");
    /* Two that agree; a choice between two that do not. */
    check("RANK=1 WORLD_SIZE=2 KR_RANK=1 KR_RANKS=2 KR_MEET=a:1", "torchrun", "tcp", 1, 2, 0, "a:1");
    check("RANK=1 WORLD_SIZE=2 KR_RANK=0 KR_RANKS=4 KR_LAUNCHER=krait", "krait launch", "tcp", 0, 4, 0, "");
    check("RANK=1 WORLD_SIZE=2 KR_LAUNCHER=none", "none", "self", 0, 1, 0, "");
}

static void refuse(const char *text, const char *problem)
{
    const kr_launch l = with(text, KR_ERR_ARG);
    CHECK(strcmp(l.problem, problem) == 0, "%s: \"%s\"", text, l.problem);
}

TEST(environments_that_are_refused)
{
    refuse("KR_RANK=x KR_RANKS=2", "the variable KR_RANK is \"x\", but must be a number of at least 0");
    refuse("KR_RANK=1 KR_RANKS=0", "the variable KR_RANKS is \"0\", but must be a number of at least 1");
    refuse("KR_RANK=2 KR_RANKS=2", "KR_RANK is 2, but KR_RANKS is 2: ranks are 0 to KR_RANKS - 1");
    refuse("KR_LAUNCHER=openmpi",
           "the variable OMPI_COMM_WORLD_SIZE is missing, which the launcher sets with the others");
    refuse("KR_LAUNCHER=rocket",
           "the variable KR_LAUNCHER is \"rocket\", but must be openmpi, mpich, slurm, torchrun, krait or none");
    refuse("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 KR_RANK=1 KR_RANKS=2",
           "Open MPI says that this is rank 1 of 4 (OMPI_COMM_WORLD_RANK), but krait launch says rank 1 of 2 "
           "(KR_RANK); set "
           "KR_LAUNCHER=openmpi or krait, or remove one's variables");
    refuse("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 RANK=3 WORLD_SIZE=8",
           "Slurm says that this is rank 0 of 2 (SLURM_PROCID), but torchrun says rank 3 of 8 (RANK); set "
           "KR_LAUNCHER=slurm or "
           "torchrun, or remove one's variables");
}

TEST(threads_of_a_rank)
{
    kr_launch l = with("KR_RANK=0 KR_RANKS=64 KR_LOCAL_RANKS=64", KR_OK);
    CHECK(l.threads == (l.cpus > 64 ? l.cpus / 64 : 1) && l.local_ranks == 64, "%d threads of %d CPUs", l.threads,
          l.cpus);
    setenv("KR_THREADS", "3", 1);
    l = with("KR_RANK=0 KR_RANKS=64 KR_LOCAL_RANKS=64", KR_OK);
    CHECK(l.threads == 3, "%d threads", l.threads);
    unsetenv("KR_THREADS");
}

/* The context tells what the environment lacks. */
TEST(creating_in_a_refused_environment)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    setenv("KR_RANK", "2", 1);
    setenv("KR_RANKS", "2", 1);
    CHECK(!kr_comm_create(ctx, NULL), "no error");
    CHECK_ERROR(ctx, KR_ERR_ARG, "comm.create: KR_RANK is 2, but KR_RANKS is 2: ranks are 0 to KR_RANKS - 1");
    setenv("KR_COMM", "self", 1);
    kr_comm *comm = kr_comm_create(ctx, NULL);
    CHECK_OK(ctx);
    kr_comm_destroy(comm);
    unsetenv("KR_COMM");
    unsetenv("KR_RANKS");
    unsetenv("KR_RANK");
    kr_ctx_destroy(ctx);
}
