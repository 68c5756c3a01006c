/* interrupt.c - the handler of SIGINT, and the one flag that it may set. */
#define _POSIX_C_SOURCE 200809L
#include "cli/interrupt.h"

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

void cli_watch_interrupts(void)
{
    struct sigaction action, before; /* without SA_RESTART: a read from a terminal ends with EINTR */
    memset(&action, 0, sizeof action);
    action.sa_handler = remember;
    sigemptyset(&action.sa_mask);
    const bool is_ignored = !sigaction(SIGINT, NULL, &before) && before.sa_handler == SIG_IGN;
    if (!is_ignored) sigaction(SIGINT, &action, NULL);
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
}

bool cli_interrupted(void)
{
    return is_interrupted;
}

void cli_forget_interrupt(void)
{
    is_interrupted = 0;
}
