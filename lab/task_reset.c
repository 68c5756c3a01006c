/* task_reset.c - krait task reset-majority, reset-rotor and reset-spinor: a count, a rotation or a product since the
 * last reset.
 *
 * Their networks have one layer of the smallest width that can do the task: 62, 86 and 328 parameters.
 */
#include "lab/task_sequence.h"

#include <math.h>

/* Mamba-1 and Mamba-2 without a convolution: each symbol is seen alone, and the state is the only memory. */
static void set_sizes(kr_model_config *config, int64_t d_model, int64_t state_rank)
{
    kr_model_config_set_d_model(config, d_model);
    config->layers->ignore_last_residual = true;
    config->mamba1->expand = config->mamba2->expand = config->mamba3->expand = 1;
    config->mamba1->conv_kernel = config->mamba2->conv_kernel = 1;
    config->mamba2->per_head_dim = config->mamba3->per_head_dim = 1;
    config->mamba1->state_rank = config->mamba2->state_rank = config->mamba3->state_rank = state_rank;
}

/* Rotations act on pairs of entries, or on blocks of four. */
static int64_t rotated_entries(task_rotation rotation)
{
    return rotation == TASK_ROTATION_QUATERNION ? 4 : 2;
}

static void set_majority(kr_model_config *config, task_rotation rotation)
{
    set_sizes(config, 2, 1);
    config->mamba3->state_rank = rotated_entries(rotation);
}

static void set_rotor(kr_model_config *config, task_rotation rotation)
{
    set_sizes(config, 2, 2);
    config->mamba3->state_rank = rotated_entries(rotation);
}

static void set_spinor(kr_model_config *config, task_rotation rotation)
{
    (void)rotation;
    set_sizes(config, 4, 4);
}

static const task_spec majority = {
    .kind = LAB_TASK_MAJORITY,
    .command = &cli_task_reset_majority,
    .target = "are there more + or more - since the last R?",
    .rotation = TASK_ROTATION_COMPLEX,
    .of_reference = { 100, 100, 100 },
    .set_network = set_majority,
};

static const task_spec rotor = {
    .kind = LAB_TASK_ROTOR,
    .command = &cli_task_reset_rotor,
    .target = "the number of + minus the number of - since the last R, modulo 3",
    .rotation = TASK_ROTATION_COMPLEX,
    .of_reference = { 100, 100, 100 },
    .set_network = set_rotor,
};

static const task_spec spinor = {
    .kind = LAB_TASK_SPINOR,
    .command = &cli_task_reset_spinor,
    .target = "the product of the quaternions i and j since the last R, the newest on the left",
    .rotation = TASK_ROTATION_QUATERNION,
    .of_reference = { 100, 100, 100 },
    .set_network = set_spinor,
};

static int run_majority(int argc, char **argv)
{
    return task_sequence(&majority, argc, argv);
}

static int run_rotor(int argc, char **argv)
{
    return task_sequence(&rotor, argc, argv);
}

static int run_spinor(int argc, char **argv)
{
    return task_sequence(&spinor, argc, argv);
}

#define RESET_OPTIONS(family, rotation)                                                                                \
    TASK_OPTIONS(family, rotation, "80", "3e-2", "1e-4", "100", "1e-4", "32", "4096", "512")

static const cli_option majority_options[] = { RESET_OPTIONS("mamba2", "complex"), { 0 } };
static const cli_option rotor_options[] = { RESET_OPTIONS("mamba3", "complex"), { 0 } };
static const cli_option spinor_options[] = { RESET_OPTIONS("mamba3", "quaternion"), { 0 } };

const cli_command cli_task_reset_majority = {
    .name = "task reset-majority",
    .summary = "majority sign since the last reset: needs an input-dependent decay (62 parameters)",
    .options = majority_options,
    .run = run_majority,
    .line_only = TASK_LINE_ONLY,
    .more = "Some seeds fail; --restarts 5 tries the next ones. With --fixed-decay the task cannot be solved.\n",
};

const cli_command cli_task_reset_rotor = {
    .name = "task reset-rotor",
    .summary = "count modulo 3 since the last reset: needs a rotating state (86 parameters)",
    .options = rotor_options,
    .run = run_rotor,
    .line_only = TASK_LINE_ONLY,
    .more = "With --model-family mamba2 or --rotation none the task cannot be solved.\n",
};

const cli_command cli_task_reset_spinor = {
    .name = "task reset-spinor",
    .summary = "product of quaternions since the last reset: needs non-commuting rotations (328 parameters)",
    .options = spinor_options,
    .run = run_spinor,
    .line_only = TASK_LINE_ONLY,
    .more = "With --rotation complex, whose rotations commute, the task cannot be solved.\n",
};
