/* cmd_task.h - krait task NAME: each task is a separate command, named "task NAME", and has a row in cmd_task.c.
 *
 * A task's run gets argv[0], its name, and the options after it, as every command does:
 *
 *   static int run(int argc, char **argv)
 *   {
 *       values v = { 0 };
 *       const int status = cli_parse(&cli_task_hello, &v, argc, argv);
 *       if (status >= 0) return status;
 *       ...
 *   }
 *   const cli_command cli_task_hello = { .name = "task hello", .summary = "greets", .options = options, .run = run };
 */
#ifndef KR_LAB_CMD_TASK_H
#define KR_LAB_CMD_TASK_H

#include "cli/common/cli_options.h"

extern const cli_command cli_task_reset_majority;
extern const cli_command cli_task_reset_rotor;
extern const cli_command cli_task_reset_spinor;
extern const cli_command cli_task_state_tracking;
extern const cli_command cli_task_grokking;
extern const cli_command cli_task_mnist_class;
extern const cli_command cli_task_mnist_ae;
extern const cli_command cli_task_digits;

/* All of them; NULL ends the table. */
extern const cli_command *const cli_tasks[];

/* The task of that name, "reset-rotor"; NULL after an error message if there is none. */
const cli_command *cli_find_task(const char *name);

/* Prints the list of tasks: the help of `krait task`. */
void cli_list_tasks(void);

#endif
