/* curves.h - the metrics of a training run over its steps, from metrics.csv, in constant memory.
 *
 *   curves c;
 *   if (!curves_read(&c, "runs/notes/metrics.csv")) return CLI_FAILED;
 *   const curve *loss = curves_find(&c, "loss");
 *   if (loss) printf("%g at step %g\n", loss->last, loss->last_x);
 *   curves_free(&c);
 *
 * A column is taken by its name in the first line. x is the column "step", or the number of the line where there is
 * none. Neighbouring values share a bucket that keeps their lowest, highest and mean, so that a spike of one step among
 * ten million is still visible. The file is untrusted: a field that is not a number is no value, and values that are
 * not finite are counted.
 */
#ifndef KR_CLI_REPORT_CURVES_H
#define KR_CLI_REPORT_CURVES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CURVE_BUCKETS = 1024, /* at most, of a curve; even: a full curve is halved */
    CURVE_NAME = 48,      /* bytes of a column's name with its 0; columns of longer names are not read */
    CURVES_MOST = 32      /* columns that are read; those behind are not */
};

typedef struct curve_bucket {
    int64_t count;       /* values in it, at least 1 */
    double x_sum, sum;   /* over them */
    double low_x, low;   /* the first that is lowest */
    double high_x, high; /* and highest */
} curve_bucket;

typedef struct curve {
    char name[CURVE_NAME];
    int64_t count;                /* finite values; if there is none, the next line is 0 */
    double last_x, last, first_x; /* in the order of the file */
    double low_x, low, high_x, high;
    double least_positive; /* 0: none is above 0 */
    int64_t n_bad;         /* values that are not finite, or beyond 1e100 */
    double first_bad_x;
    int n; /* buckets, in the order of the file */
    int64_t per_bucket;
    curve_bucket *bucket;
} curve;

typedef struct curves {
    int64_t n_lines; /* behind the first */
    int count;
    curve curve[CURVES_MOST];
} curves;

/* False after an error message: the file cannot be read, is empty, or has no column that is known here. */
bool curves_read(curves *c, const char *path);
void curves_free(curves *c);

/* The column of that name if it has a value, finite or not; else NULL. */
const curve *curves_find(const curves *c, const char *name);

/* Appends any value to the curve; false: out of memory. */
bool curve_add(curve *c, double x, double value);

/* y[i] = sum_k w_ik mean_k / sum_k w_ik over the buckets, w_ik = count_k exp(-|x_k - x_i| / reach): an exponential
 * average to both sides, which does not lag behind. It weights by the distance along x, since the steps of lines may
 * get sparser. With `in_log` it is one of logarithms. y has c->n elements. False: out of memory. */
bool curve_smooth(const curve *c, bool in_log, double *y);

/* Parses a field, with spaces around it, as a number; false if it is none. NaN and infinities are numbers. */
bool curves_number(const char *text, double *value);

#endif
