/* tensors.h - the table of a checkpoint's tensors. */
#ifndef KR_CLI_COMMON_TENSORS_H
#define KR_CLI_COMMON_TENSORS_H

#include "cli/commands/cmd_report.h"

#include <krait/tensor_file.h>

typedef struct cli_tensors {
    int64_t count;
    double elements, bytes;
    char dtypes[80]; /* those that occur, by their share of the bytes: "bf16, f32" */
} cli_tensors;

/* The sums of a checkpoint. */
cli_tensors cli_tensors_of(const kr_tensor_file *weights);

/* Krait's name of a tensor's type, or the file's if Krait has no such type. */
const char *cli_tensor_type(const kr_tensor_file_item *item);

/* The sums and a line for each tensor; or, with is_all false, for those that differ in a number of their name only:
 * "backbone.layers.{0..23}.norm.weight x24". JSON lists all. False: no memory. */
bool cli_report_tensors(cli_report *r, const kr_tensor_file *weights, bool is_all);

#endif
