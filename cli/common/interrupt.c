/* interrupt.c - the handler of SIGINT and SIGTERM, and the one flag that it may set. */
#define _POSIX_C_SOURCE 200809L
#include "cli/common/interrupt.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

/* One request to stop may arrive as several signals: GNU timeout signals its child, then the process group of the child.
 * Those within this time are one request. */
#define ONE_REQUEST_SECONDS 0.3

static volatile sig_atomic_t is_interrupted;
static struct timespec first_signal; /* read and written by the handler only */

static double seconds_between(const struct timespec *a, const struct timespec *b)
{
    return (double)(b->tv_sec - a->tv_sec) + 1e-9 * (double)(b->tv_nsec - a->tv_nsec);
}

/* The first request sets the flag, the second one ends the program. */
static void remember(int number)
{
    const int error = errno;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!is_interrupted) first_signal = now;
    else if (seconds_between(&first_signal, &now) >= ONE_REQUEST_SECONDS) {
        signal(number, SIG_DFL);
        raise(number);
    }
    is_interrupted = 1;
    errno = error;
}

static void watch(int number)
{
    struct sigaction action, before; /* without SA_RESTART: a read from a terminal ends with EINTR */
    memset(&action, 0, sizeof action);
    action.sa_handler = remember;
    sigemptyset(&action.sa_mask); /* either handler blocks both signals: they share a flag */
    sigaddset(&action.sa_mask, SIGINT);
    sigaddset(&action.sa_mask, SIGTERM);
    const bool is_ignored = !sigaction(number, NULL, &before) && before.sa_handler == SIG_IGN;
    if (!is_ignored) sigaction(number, &action, NULL);
}

void cli_watch_interrupts(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    sigemptyset(&action.sa_mask);
    action.sa_handler = SIG_IGN;
    watch(SIGINT);
    sigaction(SIGPIPE, &action, NULL);
}

void cli_watch_stops(void)
{
    cli_watch_interrupts();
    watch(SIGTERM);
}

bool cli_interrupted(void)
{
    return is_interrupted;
}

void cli_forget_interrupt(void)
{
    is_interrupted = 0;
}
