/* binary_cuda.cu - elementwise functions of two operands, y = f(a, b), with broadcasting by strides of 0; the gradient of
 * maximum; the choice y = mask ? a : b.
 */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/parts.cuh"

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

template <typename real, typename F> void binary(const kr_binary_args *args, F f)
{
    const real *a = (const real *)args->a, *b = (const real *)args->b;
    real *y = (real *)args->y;
    kr_walk packs = args->walk;
    const void *const data[] = { y, a, b };
    if (kr_walk_in_packs<kr_pack<real>::N>(&packs, 3, data))
        kr_cuda_walk<3>(args->exec, packs, [=] __device__(const int64_t *at) {
            const kr_pack<real> u = kr_load_pack(a + at[1], kr_pack<real>::N, true);
            const kr_pack<real> v = kr_load_pack(b + at[2], kr_pack<real>::N, true);
            kr_pack<real> w;
#pragma unroll
            for (int i = 0; i < kr_pack<real>::N; i++) w.v[i] = f(u.v[i], v.v[i]);
            kr_store_pack(y + at[0], w, kr_pack<real>::N, true);
        });
    else
        kr_cuda_walk<3>(args->exec, args->walk,
                        [=] __device__(const int64_t *at) { y[at[0]] = f(a[at[1]], b[at[2]]); });
}

template <typename real> void maximum_bwd(const kr_maximum_bwd_args *args)
{
    const real *a = (const real *)args->a, *b = (const real *)args->b, *g = (const real *)args->g;
    const bool of_b = args->of_b;
    real *y = (real *)args->y;
    kr_cuda_walk<4>(args->exec, args->walk, [=] __device__(const int64_t *at) {
        const real mine = of_b ? b[at[2]] : a[at[1]], other = of_b ? a[at[1]] : b[at[2]];
        y[at[0]] = mine > other ? g[at[3]] : mine == other ? (real)0.5 * g[at[3]] : (real)0;
    });
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

void kr_cuda_f32_maximum_bwd(const kr_maximum_bwd_args *a)
{
    maximum_bwd<float>(a);
}

void kr_cuda_f64_maximum_bwd(const kr_maximum_bwd_args *a)
{
    maximum_bwd<double>(a);
}

void kr_cuda_f32_where(const kr_where_args *a)
{
    where<float>(a);
}

void kr_cuda_f64_where(const kr_where_args *a)
{
    where<double>(a);
}
