/* interrupt.h - Ctrl-C, and a polite kill, as a question that long work asks itself between two steps. */
#ifndef KR_CLI_COMMON_INTERRUPT_H
#define KR_CLI_COMMON_INTERRUPT_H

#include <stdbool.h>

/* From here on the first SIGINT is only remembered, until it is forgotten; a second one ends the program. A program
 * that was started to ignore it still does. SIGPIPE is ignored: a write to a reader that has gone fails with EPIPE
 * instead. */
void cli_watch_interrupts(void);

/* The same for SIGTERM too, for work that saves its results. */
void cli_watch_stops(void);
bool cli_interrupted(void);
void cli_forget_interrupt(void);

/* Exit status of work that was interrupted: the shell's status of a program ended by SIGINT. */
enum { CLI_INTERRUPTED = 130 };

#endif
