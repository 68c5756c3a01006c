/* task_tracking.c - krait task state-tracking: the word problem of A5, the even permutations of five elements.
 *
 * A5 is the smallest group that is not solvable: no fixed number of commutative steps composes its elements.
 */
#include "lab/task_sequence.h"

#include <math.h>

static void set_network(kr_model_config *config, task_rotation rotation)
{
    (void)rotation;
    kr_model_config_set_d_model(config, 32);
    config->mamba1->expand = config->mamba2->expand = config->mamba3->expand = 2;
    config->mamba2->per_head_dim = config->mamba3->per_head_dim = 8;
    config->mamba1->state_rank = config->mamba2->state_rank = config->mamba3->state_rank = 16;
}

static const task_spec tracking = {
    .kind = LAB_TASK_A5,
    .command = &cli_task_state_tracking,
    .target = "product of all permutations so far: one of the 60 even permutations of five elements",
    .rotation = TASK_ROTATION_COMPLEX,
    .reports_positions = true,
    .of_reference = { NAN, NAN, NAN },
    .set_network = set_network,
};

static int run(int argc, char **argv)
{
    return task_sequence(&tracking, argc, argv);
}

static const cli_option options[] = {
    TASK_OPTIONS("mamba3", "complex", "120", "1e-3", NULL, "0", "0.1", "13", "512", "128"),
    { 0 },
};

const cli_command cli_task_state_tracking = {
    .name = "task state-tracking",
    .summary = "word problem of A5: the product of the permutations so far, one of 60",
    .options = options,
    .run = run,
    .line_only = TASK_LINE_ONLY,
};
