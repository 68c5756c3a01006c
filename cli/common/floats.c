/* floats.c - elements read into the program's memory, and written back. */
#include "cli/common/floats.h"

#include "cli/common/cli_options.h"

#include <stdlib.h>

float *cli_floats(const kr_tensor *x)
{
    const int64_t count = kr_tensor_count(x);
    float *values = malloc((size_t)count * sizeof *values + 1);
    if (!values) cli_complain(NULL, "out of memory for %lld numbers", (long long)count);
    if (values && kr_tensor_read(x, KR_DTYPE_F32, values, count) == KR_OK) return values;
    free(values);
    return NULL;
}

bool cli_change_floats(kr_tensor *param, cli_change_fn *fn, const void *user)
{
    const int64_t count = kr_tensor_count(param);
    float *values = cli_floats(param);
    for (int64_t i = 0; values && i < count; i++) values[i] = fn(user, i, values[i]);
    const bool ok = values && kr_param_write(param, KR_DTYPE_F32, values, count) == KR_OK;
    free(values);
    return ok;
}
