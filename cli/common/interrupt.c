/* interrupt.c - the handler of SIGINT and SIGTERM, and the one flag that it may set. */
#define _POSIX_C_SOURCE 200809L
#include "cli/common/interrupt.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>

static volatile sig_atomic_t is_interrupted;

static void remember(int number)
{
    if (is_interrupted) {
        signal(number, SIG_DFL);
        raise(number);
    }
    is_interrupted = 1;
}

static void watch(int number)
{
    struct sigaction action, before; /* without SA_RESTART: a read from a terminal ends with EINTR */
    memset(&action, 0, sizeof action);
    action.sa_handler = remember;
    sigemptyset(&action.sa_mask);
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
