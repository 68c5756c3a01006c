/* launch_ranks.h - the processes of krait launch: started together, ended together. */
#ifndef KR_CLI_COMMANDS_LAUNCH_RANKS_H
#define KR_CLI_COMMANDS_LAUNCH_RANKS_H

#include <stdbool.h>

typedef struct launch_job {
    const char *program;
    char **argv;      /* of the program, with argv[0], ended by NULL */
    int ranks, local; /* of the job, and of this host, whose first one is `first` */
    int first;
    const char *meet; /* where they meet; NULL: a socket in a folder of the job's own */
    int threads;      /* KR_THREADS of ranks whose environment has none */
} launch_job;

typedef struct launch_result {
    int status;          /* 0, or that of the first rank that failed: its exit status, or 128 and its signal */
    int rank, number;    /* that rank; its signal, or 0 */
    bool is_interrupted; /* the user stopped the job */
} launch_result;

/* Runs the ranks of this host until all have ended. If one fails the others have `LAUNCH_GRACE` seconds to end by
 * themselves, as their next call finds out, then the same after SIGTERM, then SIGKILL. SIGINT and SIGTERM are passed on to
 * all, once for each. Their stderr comes line by line with "[rank N] " in front. False, after an error message, if a process
 * cannot be started. */
enum { LAUNCH_GRACE = 4, LAUNCH_BROKEN = 75 /* status of a rank that lost another one */ };
bool launch_run(const launch_job *job, launch_result *result);

#endif
