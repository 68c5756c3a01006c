/* quaternion.cuh - quaternions (w, x, y, z) in registers. */
#ifndef KR_KERNELS_CUDA_OPS_QUATERNION_CUH
#define KR_KERNELS_CUDA_OPS_QUATERNION_CUH

#include "kernels/cuda/prim/math.cuh"

template <typename F> struct quaternion {
    F w, x, y, z;
};

/* Quaternion n of an array. VECTOR: it may be loaded as one vector. */
template <typename F, bool VECTOR, typename T> KR_DEVICE quaternion<F> load_quaternion(const T *from, int64_t n)
{
    const T *p = from + 4 * n;
    if (VECTOR) {
        const kr_vector<T, 4> v = kr_load_vector<T, 4>(p);
        return quaternion<F>{ (F)v.v[0], (F)v.v[1], (F)v.v[2], (F)v.v[3] };
    }
    return quaternion<F>{ (F)p[0], (F)p[1], (F)p[2], (F)p[3] };
}

template <bool VECTOR, typename F, typename T> KR_DEVICE void store_quaternion(T *to, int64_t n, const quaternion<F> &a)
{
    T *p = to + 4 * n;
    if (VECTOR) {
        const kr_vector<T, 4> v = { { (T)a.w, (T)a.x, (T)a.y, (T)a.z } };
        kr_store_vector<T, 4>(p, v);
    } else {
        p[0] = (T)a.w, p[1] = (T)a.x, p[2] = (T)a.y, p[3] = (T)a.z;
    }
}

template <typename F> KR_DEVICE quaternion<F> product(const quaternion<F> &a, const quaternion<F> &b)
{
    return quaternion<F>{ kr_fma(-a.z, b.z, kr_fma(-a.y, b.y, kr_fma(-a.x, b.x, a.w * b.w))),
                          kr_fma(-a.z, b.y, kr_fma(a.y, b.z, kr_fma(a.x, b.w, a.w * b.x))),
                          kr_fma(a.z, b.x, kr_fma(a.y, b.w, kr_fma(-a.x, b.z, a.w * b.y))),
                          kr_fma(a.z, b.w, kr_fma(-a.y, b.x, kr_fma(a.x, b.y, a.w * b.z))) };
}

template <typename F> KR_DEVICE quaternion<F> conjugate(const quaternion<F> &a)
{
    return quaternion<F>{ a.w, -a.x, -a.y, -a.z };
}

template <typename F> KR_DEVICE F dot(const quaternion<F> &a, const quaternion<F> &b)
{
    return kr_fma(a.z, b.z, kr_fma(a.y, b.y, kr_fma(a.x, b.x, a.w * b.w)));
}

/* a + factor b */
template <typename F> KR_DEVICE quaternion<F> plus(const quaternion<F> &a, F factor, const quaternion<F> &b)
{
    return quaternion<F>{ kr_fma(factor, b.w, a.w), kr_fma(factor, b.x, a.x), kr_fma(factor, b.y, a.y),
                          kr_fma(factor, b.z, a.z) };
}

template <typename F> KR_DEVICE quaternion<F> times(const quaternion<F> &a, F factor)
{
    return quaternion<F>{ a.w * factor, a.x * factor, a.y * factor, a.z * factor };
}

#endif
