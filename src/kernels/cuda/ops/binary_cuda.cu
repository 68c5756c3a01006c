/* binary_cuda.cu - elementwise functions of two operands, y = f(a, b), with broadcasting by strides of 0; the gradients
 * of maximum, minimum and pow; the choice y = mask ? a : b. Powers are computed in f64.
 */
#include "kernels/cuda/prim/launch.cuh"
#include "kernels/cuda/prim/block_reduce.cuh"

namespace
{

#define VALUE(name, formula)                                                                                           \
    template <typename real> struct value_##name {                                                                     \
        __device__ real operator()(real a, real b) const { return formula; }                                           \
    };
VALUE(add, a + b)
VALUE(sub, a - b)
VALUE(mul, a *b)
VALUE(div, a / b)
VALUE(maximum, a != a || a > b ? a : b)
VALUE(minimum, a != a || a < b ? a : b)
VALUE(pow, (real)pow((double)a, (double)b))

template <typename real, typename F> void binary(const kr_binary_args *args, F f)
{
    const real *a = (const real *)args->a, *b = (const real *)args->b;
    real *y = (real *)args->y;
    kr_walk vecs = args->walk;
    const void *const data[] = { y, a, b };
    if (kr_walk_in_vec16<kr_vec16<real>::N>(&vecs, 3, data))
        kr_cuda_walk<3>(args->exec, vecs, [=] __device__(const int64_t *at) {
            const kr_vec16<real> u = kr_load_vec16(a + at[1], kr_vec16<real>::N, true);
            const kr_vec16<real> v = kr_load_vec16(b + at[2], kr_vec16<real>::N, true);
            kr_vec16<real> w;
#pragma unroll
            for (int i = 0; i < kr_vec16<real>::N; i++) w.v[i] = f(u.v[i], v.v[i]);
            kr_store_vec16(y + at[0], w, kr_vec16<real>::N, true);
        });
    else
        kr_cuda_walk<3>(args->exec, args->walk,
                        [=] __device__(const int64_t *at) { y[at[0]] = f(a[at[1]], b[at[2]]); });
}

/* g times the slope of the function, to its first operand (of_b: to its second). */
#define SLOPE(name, of_first, of_second)                                                                               \
    template <typename real> struct slope_##name {                                                                     \
        __device__ real operator()(real a, real b, real g, bool of_b) const { return of_b ? of_second : of_first; }    \
    };
SLOPE(maximum, a > b ? g : a == b ? (real)0.5 * g : (real)0, b > a ? g : a == b ? (real)0.5 * g : (real)0)
SLOPE(minimum, a < b ? g : a == b ? (real)0.5 * g : (real)0, b < a ? g : a == b ? (real)0.5 * g : (real)0)
SLOPE(pow, b == (real)0 ? (real)0 : (real)((double)g * ((double)b * pow((double)a, (double)b - 1.0))),
      a == (real)0 && b >= (real)0 ? (real)0 : (real)((double)g * (pow((double)a, (double)b) * log((double)a))))

template <typename real, typename F> void binary_bwd(const kr_binary_bwd_args *args, F slope)
{
    const real *a = (const real *)args->a, *b = (const real *)args->b, *g = (const real *)args->g;
    const bool of_b = args->of_b;
    real *y = (real *)args->y;
    kr_cuda_walk<4>(args->exec, args->walk,
                    [=] __device__(const int64_t *at) { y[at[0]] = slope(a[at[1]], b[at[2]], g[at[3]], of_b); });
}

template <typename real> void where(const kr_where_args *args)
{
    const real *a = (const real *)args->a, *b = (const real *)args->b, scalar = (real)args->scalar;
    const int32_t *mask = args->mask;
    real *y = (real *)args->y;
    kr_cuda_walk<4>(args->exec, args->walk, [=] __device__(const int64_t *at) {
        const bool first = mask[at[1]] != 0;
        const real *x = first ? a : b;
        y[at[0]] = x ? x[first ? at[2] : at[3]] : scalar;
    });
}

} // namespace

#define KR_BINARY(name)                                                                                                \
    void kr_cuda_f32_##name(const kr_binary_args *a)                                                                   \
    {                                                                                                                  \
        binary<float>(a, value_##name<float>());                                                                       \
    }                                                                                                                  \
    void kr_cuda_f64_##name(const kr_binary_args *a)                                                                   \
    {                                                                                                                  \
        binary<double>(a, value_##name<double>());                                                                     \
    }
#include "kernels/binary.def"
#undef KR_BINARY

#define BACKWARD(name)                                                                                                 \
    void kr_cuda_f32_##name##_bwd(const kr_binary_bwd_args *a)                                                         \
    {                                                                                                                  \
        binary_bwd<float>(a, slope_##name<float>());                                                                   \
    }                                                                                                                  \
    void kr_cuda_f64_##name##_bwd(const kr_binary_bwd_args *a)                                                         \
    {                                                                                                                  \
        binary_bwd<double>(a, slope_##name<double>());                                                                 \
    }
BACKWARD(maximum)
BACKWARD(minimum)
BACKWARD(pow)

void kr_cuda_f32_where(const kr_where_args *a)
{
    where<float>(a);
}

void kr_cuda_f64_where(const kr_where_args *a)
{
    where<double>(a);
}
