/* compare_cuda.cu - comparisons of two operands, y = 1 or 0, with broadcasting by strides of 0. */
#include "kernels/cuda/prim/launch.cuh"

namespace
{

template <typename T> void compare(const kr_compare_args *args)
{
    const T *a = (const T *)args->a, *b = (const T *)args->b;
    const int wanted = args->wanted;
    int32_t *y = args->y;
    kr_cuda_walk<3>(args->exec, args->walk, [=] __device__(const int64_t *at) {
        const T l = a[at[1]], r = b[at[2]];
        const int outcome = l < r    ? KR_OUTCOME_LESS
                            : l == r ? KR_OUTCOME_EQUAL
                            : l > r  ? KR_OUTCOME_GREATER
                                     : KR_OUTCOME_UNORDERED;
        y[at[0]] = (wanted & outcome) != 0;
    });
}

} // namespace

void kr_cuda_compare(const kr_compare_args *a)
{
    if (a->dtype == KR_DTYPE_F32) compare<float>(a);
    else if (a->dtype == KR_DTYPE_F64) compare<double>(a);
    else if (a->dtype == KR_DTYPE_I32) compare<int32_t>(a);
    else compare<int64_t>(a);
}
