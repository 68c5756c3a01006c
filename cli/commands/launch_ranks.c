/* launch_ranks.c - starts ranks as processes, passes their stderr on, waits for them, and ends all when one fails. */
#define _GNU_SOURCE
#include "cli/commands/launch_ranks.h"

#include "cli/common/cli_machine.h"
#include "cli/common/cli_options.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

enum { LINE_BYTES = 4096, LAST_LINES_SECONDS = 1 };

typedef struct rank_process {
    pid_t pid;       /* 0: it has ended */
    int rank, lines; /* lines: its stderr, -1: closed */
    char line[LINE_BYTES];
    size_t length;
} rank_process;

typedef struct running {
    const launch_job *job;
    launch_result *result;
    rank_process *list;
    int nalive;
    double ends_at; /* seconds of the next step of ending, 0: none has failed */
    int ending;     /* steps taken: 1 SIGTERM, 2 SIGKILL */
    char folder[256], meet[300];
} running;

/* ---- signals ---- */

/* Signals arrive as bytes in a pipe, so that one poll waits for everything. */
static int signal_pipe[2] = { -1, -1 };

static void on_signal(int number)
{
    const int error = errno;
    const char byte = (char)number;
    const ssize_t written = write(signal_pipe[1], &byte, 1);
    (void)written;
    errno = error;
}

static const int watched[] = { SIGCHLD, SIGINT, SIGTERM };
enum { NWATCHED = sizeof watched / sizeof *watched };

static bool watch_signals(struct sigaction *before)
{
    struct sigaction action;
    if (pipe2(signal_pipe, O_CLOEXEC | O_NONBLOCK) != 0) return false;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < NWATCHED; i++) sigaction(watched[i], &action, &before[i]);
    return true;
}

static void forget_signals(const struct sigaction *before)
{
    for (int i = 0; i < NWATCHED; i++) sigaction(watched[i], &before[i], NULL);
    for (int i = 0; i < 2; i++) close(signal_pipe[i]);
}

/* Each rank leads a process group, with what it has started itself. */
static void signal_all(const running *r, int number)
{
    for (int i = 0; i < r->job->local; i++)
        if (r->list[i].pid) kill(-r->list[i].pid, number);
}

/* ---- starting ---- */

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* In the child: becomes the rank. Its parent's end is its own. */
static void become(const running *r, const struct sigaction *before, int rank, int local, int lines)
{
    const launch_job *job = r->job;
    const pid_t parent = getppid();
    setpgid(0, 0);
#if defined(__linux__)
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
#else
    (void)parent;
#endif
    for (int i = 0; i < NWATCHED; i++) sigaction(watched[i], &before[i], NULL);
    const int null = open("/dev/null", O_RDONLY);
    if (null >= 0) dup2(null, STDIN_FILENO);
    dup2(lines, STDERR_FILENO);
    set_number("KR_RANK", rank);
    set_number("KR_RANKS", job->ranks);
    set_number("KR_LOCAL_RANK", local);
    set_number("KR_LOCAL_RANKS", job->local);
    setenv("KR_LAUNCHER", "krait", 1);
    setenv("KR_MEET", r->meet, 1);
    if (!getenv("KR_THREADS")) set_number("KR_THREADS", job->threads);
    execv(job->program, job->argv);
    fprintf(stderr, "krait: launch: cannot start %s: %s\n", job->program, strerror(errno));
    _exit(127);
}

static bool start(running *r, const struct sigaction *before, int local)
{
    int lines[2];
    rank_process *p = &r->list[local];
    if (pipe2(lines, O_CLOEXEC) != 0) return false;
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) become(r, before, r->job->first + local, local, lines[1]);
    const int error = errno;
    close(lines[1]);
    if (pid < 0) {
        close(lines[0]);
        errno = error;
        return false;
    }
    setpgid(pid, pid); /* in both processes: whoever comes first */
    (void)fcntl(lines[0], F_SETFL, O_NONBLOCK);
    *p = (rank_process){ .pid = pid, .rank = r->job->first + local, .lines = lines[0] };
    r->nalive++;
    return true;
}

static bool make_meeting(running *r)
{
    const char *parent = getenv("TMPDIR");
    if (r->job->meet) {
        snprintf(r->meet, sizeof r->meet, "%s", r->job->meet);
        return true;
    }
    if (!parent || strlen(parent) > 40) parent = "/tmp"; /* the path of a socket is short */
    int error = EEXIST;
    for (int i = 0; i < 1000 && error == EEXIST; i++) { /* what other jobs have left is not used */
        snprintf(r->folder, sizeof r->folder, "%s/krait-launch-%d-%d", parent, (int)getpid(), i);
        error = mkdir(r->folder, 0700) == 0 ? 0 : errno;
    }
    if (error) {
        cli_complain("set TMPDIR to another folder", "launch: cannot make a folder in %s: %s", parent, strerror(error));
        r->folder[0] = '\0';
        return false;
    }
    snprintf(r->meet, sizeof r->meet, "%s/meet", r->folder);
    return true;
}

/* Sockets that ranks have left when they were killed. */
static void remove_meeting(const running *r)
{
    char path[320];
    if (!r->folder[0]) return;
    unlink(r->meet);
    for (int i = 0; i < r->job->ranks; i++) {
        snprintf(path, sizeof path, "%s.%d", r->meet, i);
        unlink(path);
    }
    rmdir(r->folder);
}

/* ---- stderr of the ranks ---- */

static void print_line(rank_process *p)
{
    if (p->length) fprintf(stderr, "[rank %d] %.*s\n", p->rank, (int)p->length, p->line);
    p->length = 0;
}

/* Passes on what a rank has written, by lines; a longer one in parts. False at the end. */
static bool pass_lines(rank_process *p)
{
    char text[LINE_BYTES];
    ssize_t got;
    while ((got = read(p->lines, text, sizeof text)) > 0) {
        for (ssize_t i = 0; i < got; i++) {
            if (text[i] != '\n') p->line[p->length++] = text[i];
            if (text[i] == '\n' || p->length == sizeof p->line) print_line(p);
        }
    }
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    print_line(p);
    close(p->lines);
    p->lines = -1;
    return false;
}

static int count_open(const running *r)
{
    int count = 0;
    for (int i = 0; i < r->job->local; i++) count += r->list[i].lines >= 0;
    return count;
}

/* ---- waiting ---- */

/* A rank has ended. The first one that failed is the cause; of several at once, one that did not fail because of another. */
static void note_end(running *r, rank_process *p, int status)
{
    p->pid = 0;
    r->nalive--;
    const int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    const int code = number ? 128 + number : WEXITSTATUS(status);
    const bool is_better = r->result->status == LAUNCH_BROKEN && code != LAUNCH_BROKEN && r->ending == 0;
    if (code == 0 || (r->result->status != 0 && !is_better)) return;
    *r->result = (launch_result){
        .status = code, .rank = p->rank, .number = number, .is_interrupted = r->result->is_interrupted
    };
    r->ends_at = cli_seconds() + LAUNCH_GRACE;
}

static void reap(running *r)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (int i = 0; i < r->job->local; i++)
            if (r->list[i].pid == pid) note_end(r, &r->list[i], status);
}

static void read_signals(running *r)
{
    char bytes[64];
    ssize_t got;
    while ((got = read(signal_pipe[0], bytes, sizeof bytes)) > 0) {
        for (ssize_t i = 0; i < got; i++) {
            if (bytes[i] == SIGCHLD) continue;
            r->result->is_interrupted = true;
            signal_all(r, bytes[i]);
        }
    }
    reap(r);
}

static void end_others(running *r)
{
    if (r->ends_at == 0 || cli_seconds() < r->ends_at || r->ending == 2) return;
    signal_all(r, r->ending++ ? SIGKILL : SIGTERM);
    r->ends_at = cli_seconds() + LAUNCH_GRACE;
}

static void wait_for_all(running *r, struct pollfd *polls)
{
    double last = 0; /* when the last process ended: what it has started may still hold its stderr */
    while (r->nalive > 0 || (count_open(r) > 0 && cli_seconds() < last + LAST_LINES_SECONDS)) {
        int n = 0;
        polls[n++] = (struct pollfd){ .fd = signal_pipe[0], .events = POLLIN };
        for (int i = 0; i < r->job->local; i++)
            polls[n++] = (struct pollfd){ .fd = r->list[i].lines, .events = POLLIN }; /* -1 is skipped */
        (void)poll(polls, (nfds_t)n, 200);
        for (int i = 0; i < r->job->local; i++)
            if (r->list[i].lines >= 0 && polls[1 + i].revents) pass_lines(&r->list[i]);
        read_signals(r);
        end_others(r);
        if (r->nalive > 0) last = cli_seconds();
    }
    for (int i = 0; i < r->job->local; i++) {
        if (r->list[i].lines < 0 || !pass_lines(&r->list[i])) continue;
        print_line(&r->list[i]);
        close(r->list[i].lines);
    }
}

bool launch_run(const launch_job *job, launch_result *result)
{
    struct sigaction before[NWATCHED];
    *result = (launch_result){ 0 };
    running r = { .job = job, .result = result, .list = calloc((size_t)job->local, sizeof *r.list) };
    struct pollfd *polls = calloc((size_t)job->local + 1, sizeof *polls);
    bool ok = r.list && polls;
    if (!ok) cli_complain(NULL, "launch: out of memory for %d ranks", job->local);
    else if ((ok = make_meeting(&r))) {
        ok = watch_signals(before);
        for (int i = 0; i < job->local; i++) r.list[i].lines = -1;
        for (int i = 0; ok && i < job->local; i++) ok = start(&r, before, i);
        if (!ok) {
            cli_complain(NULL, "launch: a process cannot be started: %s", strerror(errno));
            signal_all(&r, SIGKILL);
        }
        wait_for_all(&r, polls);
        forget_signals(before);
        remove_meeting(&r);
    }
    free(polls);
    free(r.list);
    return ok;
}
