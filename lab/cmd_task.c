/* cmd_task.c - krait task [NAME]: lists the tasks, or runs one. */
#include "lab/cmd_task.h"

#include "cli/common/commands.h"

#include <stdio.h>
#include <string.h>

/* One row per task, in the order of the list. */
const cli_command *const cli_tasks[] = {
    &cli_task_reset_majority, &cli_task_reset_rotor, &cli_task_reset_spinor,
    &cli_task_state_tracking, &cli_task_grokking,    &cli_task_mnist_class,
    &cli_task_mnist_ae,       &cli_task_digits,      NULL,
};

/* Commands are named "task NAME". */
static const char *name_of(const cli_command *task)
{
    return task->name + strlen("task ");
}

static void list_names(FILE *out, const char *indent)
{
    for (int i = 0; cli_tasks[i]; i++)
        fprintf(out, "%s%-15s %s\n", indent, name_of(cli_tasks[i]), cli_tasks[i]->summary);
}

const cli_command *cli_find_task(const char *name)
{
    for (int i = 0; cli_tasks[i]; i++)
        if (!strcmp(name_of(cli_tasks[i]), name)) return cli_tasks[i];
    cli_complain("the tasks are:", "task: unknown task '%s'", name);
    list_names(stderr, "         ");
    return NULL;
}

void cli_list_tasks(void)
{
    printf("usage: krait task NAME [options]\n\n%s\n\n", cli_task.summary);
    list_names(stdout, "  ");
    printf("\nkrait task NAME --help lists the options of a task.\n");
}

static int run(int argc, char **argv)
{
    if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        cli_list_tasks();
        return CLI_OK;
    }
    const cli_command *task = cli_find_task(argv[1]);
    return task ? task->run(argc - 1, argv + 1) : CLI_USAGE;
}

static const cli_option options[] = { { 0 } };
static const cli_operand operands[] = {
    { "NAME", 0, true, "the task; without it all are listed" },
    { 0 },
};

const cli_command cli_task = {
    .name = "task",
    .summary = "train a small network on a synthetic task that probes the state",
    .options = options,
    .run = run,
    .operands = operands,
    .more = "krait task lists the tasks, krait task NAME --help lists the options of a task.\n",
};
