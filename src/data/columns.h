/* columns.h - the columns of a table and their statistics, from the training part or from a file. */
#ifndef KR_DATA_COLUMNS_H
#define KR_DATA_COLUMNS_H

#include "base/ctx_impl.h"

#include <krait/data.h>

typedef struct kr_column {
    const char *name; /* with a final 0 */
    bool is_target;
    int64_t n_missing;
    double mean, offset, scale;
} kr_column;

/* Values of one column, one after another (Welford): mean and deviation without cancellation. */
typedef struct kr_column_sum {
    int64_t count;
    double mean, squares, min, max;
} kr_column_sum;

void kr_column_put(kr_column_sum *sum, double x);

/* Mean, offset and scale out of the values; there is one at least. */
void kr_column_fit(kr_column *column, const kr_column_sum *sum, kr_csv_scaling scaling);

/* As a JSON file:
 *   {"format": "krait.scales", "version": 1, "scaling": "standard", "columns": [{"name": "a", "role": "feature",
 *    "mean": 1.5, "offset": 1.5, "scale": 0.5}, ...]}
 * Input is untrusted: scaling, names and roles must be those of the columns, numbers finite, scales above 0. False
 * after an error; the columns are as before. */
bool kr_columns_save(kr_ctx *ctx, const kr_column *columns, int64_t count, kr_csv_scaling scaling, const char *path);
bool kr_columns_load(kr_ctx *ctx, kr_column *columns, int64_t count, kr_csv_scaling scaling, const char *path);

#endif
