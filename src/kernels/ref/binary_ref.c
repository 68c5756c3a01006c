/* binary_ref.c - elementwise functions of two operands, y = f(a, b), with broadcasting by strides of 0;
 * the gradients of maximum, minimum and pow; the choice y = mask ? a : b.
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_walk.h"

#include <math.h>

#define VALUE(name, formula)                                                                                           \
    static inline double value_##name(double a, double b)                                                              \
    {                                                                                                                  \
        return formula;                                                                                                \
    }
VALUE(add, a + b)
VALUE(sub, a - b)
VALUE(mul, a *b)
VALUE(div, a / b)
VALUE(maximum, isnan(a) || a > b ? a : b)
VALUE(minimum, isnan(a) || a < b ? a : b)
VALUE(pow, pow(a, b))

static inline void binary_rows(const kr_binary_args *a, int64_t task, double (*value)(double, double))
{
    const kr_walk *w = &a->walk;
    int64_t per_task = kr_walk_rows_per_task(w), first = task * per_task;
    int64_t end = kr_ref_min(first + per_task, kr_walk_nrows(w)), n = kr_walk_length(w);
    int64_t y_step = kr_walk_step(w, 0), a_step = kr_walk_step(w, 1), b_step = kr_walk_step(w, 2);
    kr_odometer at = kr_odometer_at(w, 3, first);
    for (int64_t row = first; row < end; row++, kr_odometer_next(&at)) {
        real *y = (real *)a->y + at.offset[0];
        const real *l = (const real *)a->a + at.offset[1], *r = (const real *)a->b + at.offset[2];
        for (int64_t i = 0; i < n; i++) y[i * y_step] = (real)value((double)l[i * a_step], (double)r[i * b_step]);
    }
}

#define KR_BINARY(name)                                                                                                \
    static void name##_task(void *arg, int64_t task, int worker)                                                       \
    {                                                                                                                  \
        (void)worker;                                                                                                  \
        binary_rows(*(const kr_binary_args **)arg, task, value_##name);                                                \
    }                                                                                                                  \
    void KR_REF(name)(const kr_binary_args *a)                                                                         \
    {                                                                                                                  \
        kr_walk_run(a->exec.pool, &a->walk, name##_task, &a);                                                          \
    }
#include "kernels/binary.def"
#undef KR_BINARY

/* The factor of g; a factor of 0 gives 0 for any g. */
static inline double share(bool wins, bool is_equal)
{
    return wins ? 1.0 : is_equal ? 0.5 : 0.0;
}

#define SLOPE(name, of_first, of_second)                                                                               \
    static inline double slope_##name(double a, double b, bool of_b)                                                   \
    {                                                                                                                  \
        return of_b ? of_second : of_first;                                                                            \
    }
SLOPE(maximum, share(a > b, a == b), share(b > a, a == b))
SLOPE(minimum, share(a < b, a == b), share(b < a, a == b))
SLOPE(pow, b == 0.0 ? 0.0 : b * pow(a, b - 1.0), a == 0.0 && b >= 0.0 ? 0.0 : pow(a, b) * log(a))

static inline void binary_bwd_rows(const kr_binary_bwd_args *a, int64_t task, double (*slope)(double, double, bool))
{
    const kr_walk *w = &a->walk;
    int64_t per_task = kr_walk_rows_per_task(w), first = task * per_task;
    int64_t end = kr_ref_min(first + per_task, kr_walk_nrows(w)), n = kr_walk_length(w);
    int64_t y_step = kr_walk_step(w, 0), a_step = kr_walk_step(w, 1);
    int64_t b_step = kr_walk_step(w, 2), g_step = kr_walk_step(w, 3);
    kr_odometer at = kr_odometer_at(w, 4, first);
    for (int64_t row = first; row < end; row++, kr_odometer_next(&at)) {
        real *y = (real *)a->y + at.offset[0];
        const real *l = (const real *)a->a + at.offset[1], *r = (const real *)a->b + at.offset[2];
        const real *g = (const real *)a->g + at.offset[3];
        for (int64_t i = 0; i < n; i++) {
            double factor = slope((double)l[i * a_step], (double)r[i * b_step], a->of_b);
            y[i * y_step] = factor == 0.0 ? (real)0 : (real)(factor * (double)g[i * g_step]);
        }
    }
}

#define BACKWARD(name)                                                                                                 \
    static void name##_bwd_task(void *arg, int64_t task, int worker)                                                   \
    {                                                                                                                  \
        (void)worker;                                                                                                  \
        binary_bwd_rows(*(const kr_binary_bwd_args **)arg, task, slope_##name);                                        \
    }                                                                                                                  \
    void KR_REF(name##_bwd)(const kr_binary_bwd_args *a)                                                               \
    {                                                                                                                  \
        kr_walk_run(a->exec.pool, &a->walk, name##_bwd_task, &a);                                                      \
    }
BACKWARD(maximum)
BACKWARD(minimum)
BACKWARD(pow)

static void where_task(void *arg, int64_t task, int worker)
{
    (void)worker;
    const kr_where_args *a = *(const kr_where_args **)arg;
    const kr_walk *w = &a->walk;
    int64_t per_task = kr_walk_rows_per_task(w), first = task * per_task;
    int64_t end = kr_ref_min(first + per_task, kr_walk_nrows(w)), n = kr_walk_length(w);
    int64_t y_step = kr_walk_step(w, 0), mask_step = kr_walk_step(w, 1);
    int64_t a_step = kr_walk_step(w, 2), b_step = kr_walk_step(w, 3);
    kr_odometer at = kr_odometer_at(w, 4, first);
    for (int64_t row = first; row < end; row++, kr_odometer_next(&at)) {
        real *y = (real *)a->y + at.offset[0];
        const int32_t *mask = a->mask + at.offset[1];
        const real *l = a->a ? (const real *)a->a + at.offset[2] : NULL;
        const real *r = a->b ? (const real *)a->b + at.offset[3] : NULL;
        for (int64_t i = 0; i < n; i++) {
            if (mask[i * mask_step]) y[i * y_step] = l ? l[i * a_step] : (real)a->scalar;
            else y[i * y_step] = r ? r[i * b_step] : (real)a->scalar;
        }
    }
}

void KR_REF(where)(const kr_where_args *a)
{
    kr_walk_run(a->exec.pool, &a->walk, where_task, &a);
}
