/* compare_ref.c - comparisons of two operands, y = 1 or 0, with broadcasting by strides of 0. */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_walk.h"

/* A row of n elements. */
#define ROW(name, type)                                                                                                \
    static void row_##name(const kr_compare_args *args, int32_t *y, const void *of_a, const void *of_b, int64_t n)     \
    {                                                                                                                  \
        const type *a = of_a, *b = of_b;                                                                               \
        const int64_t y_step = kr_walk_step(&args->walk, 0), a_step = kr_walk_step(&args->walk, 1),                    \
                      b_step = kr_walk_step(&args->walk, 2);                                                           \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            const type l = a[i * a_step], r = b[i * b_step];                                                           \
            const int outcome = l < r    ? KR_OUTCOME_LESS                                                             \
                                : l == r ? KR_OUTCOME_EQUAL                                                            \
                                : l > r  ? KR_OUTCOME_GREATER                                                          \
                                         : KR_OUTCOME_UNORDERED;                                                        \
            y[i * y_step] = (args->wanted & outcome) != 0;                                                             \
        }                                                                                                              \
    }
ROW(f32, float)
ROW(f64, double)
ROW(i32, int32_t)
ROW(i64, int64_t)

static void compare_task(void *arg, int64_t task, int worker)
{
    (void)worker;
    const kr_compare_args *a = *(const kr_compare_args **)arg;
    const kr_walk *w = &a->walk;
    int64_t per_task = kr_walk_rows_per_task(w), first = task * per_task;
    int64_t end = kr_ref_min(first + per_task, kr_walk_nrows(w)), n = kr_walk_length(w);
    const int64_t size = a->dtype == KR_DTYPE_F64 || a->dtype == KR_DTYPE_I64 ? 8 : 4;
    kr_odometer at = kr_odometer_at(w, 3, first);
    for (int64_t row = first; row < end; row++, kr_odometer_next(&at)) {
        int32_t *y = a->y + at.offset[0];
        const char *l = (const char *)a->a + at.offset[1] * size, *r = (const char *)a->b + at.offset[2] * size;
        if (a->dtype == KR_DTYPE_F32) row_f32(a, y, l, r, n);
        else if (a->dtype == KR_DTYPE_F64) row_f64(a, y, l, r, n);
        else if (a->dtype == KR_DTYPE_I32) row_i32(a, y, l, r, n);
        else row_i64(a, y, l, r, n);
    }
}

void kr_ref_compare(const kr_compare_args *a)
{
    kr_walk_run(a->exec.pool, &a->walk, compare_task, &a);
}
