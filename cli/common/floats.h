/* floats.h - a tensor's numbers in the program's own memory, wherever the tensor lives. */
#ifndef KR_CLI_COMMON_FLOATS_H
#define KR_CLI_COMMON_FLOATS_H

#include <krait/tensor.h>

/* All elements as f32, row-major, to be freed; NULL after an error message, or an error of the context. */
float *cli_floats(const kr_tensor *x);

/* x = fn(user, x), element by element, `at` being its row-major index. False after an error message, or an error. */
typedef float cli_change_fn(const void *user, int64_t at, float value);
bool cli_change_floats(kr_tensor *param, cli_change_fn *fn, const void *user);

#endif
