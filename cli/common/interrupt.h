/* interrupt.h - SIGINT (Ctrl-C) and SIGTERM as a flag that long work reads between two steps. */
#ifndef KR_CLI_COMMON_INTERRUPT_H
#define KR_CLI_COMMON_INTERRUPT_H

#include <stdbool.h>

/* From here on the first SIGINT only sets a flag, until it is cleared; a second one, at least 0.3 seconds later, ends the
 * program. If SIGINT was ignored at the start it stays ignored. SIGPIPE is ignored: a write to a closed pipe fails with
 * EPIPE instead. */
void cli_watch_interrupts(void);

/* The same for SIGTERM too, for work that saves its results. */
void cli_watch_stops(void);
bool cli_interrupted(void);
void cli_forget_interrupt(void);

/* Exit status of work that was interrupted: the shell's status of a program ended by SIGINT. */
enum { CLI_INTERRUPTED = 130 };

#endif
