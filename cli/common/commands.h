/* commands.h - the subcommands, one file each; main.c lists them in this order. */
#ifndef KR_CLI_COMMON_COMMANDS_H
#define KR_CLI_COMMON_COMMANDS_H

#include "cli/common/cli_options.h"

extern const cli_command cli_new;
extern const cli_command cli_train;
extern const cli_command cli_launch;
extern const cli_command cli_task;
extern const cli_command cli_generate;
extern const cli_command cli_eval;
extern const cli_command cli_tokenize;
extern const cli_command cli_convert;
extern const cli_command cli_info;
extern const cli_command cli_report_command;
extern const cli_command cli_plan;
extern const cli_command cli_check;

#endif
