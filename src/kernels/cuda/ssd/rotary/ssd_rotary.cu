/* ssd_rotary.cu - the SSD core with rotary embedding for sizes without a fused kernel: B and C of each head are rotated to
 * scratch first, by rotate_cuda.cu, and their gradients rotated back last. */
#include "kernels/cuda/prim/dtype16.cuh"
#include "kernels/cuda/ssd/ssd_cast.cuh"
#include "kernels/cuda/ssd/rotary/ssd_rotary.cuh"

/* Kernels by element type. */
template <typename F> struct slot;

template <> struct slot<float> {
    static void rotate(const kr_rotate_args *a) { kr_cuda_f32_rotate(a); }
    static void rotate_bwd(const kr_rotate_bwd_args *a) { kr_cuda_f32_rotate_bwd(a); }
    static size_t rotate_bwd_scratch(const kr_rotate_bwd_args *a) { return kr_cuda_f32_rotate_bwd_scratch(a); }
    static void core(const kr_ssd_args *a) { kr_cuda_f32_ssd(a); }
    static size_t core_scratch(const kr_ssd_args *a) { return kr_cuda_f32_ssd_scratch(a); }
    static void core_bwd(const kr_ssd_bwd_args *a) { kr_cuda_f32_ssd_bwd(a); }
    static size_t core_bwd_scratch(const kr_ssd_bwd_args *a) { return kr_cuda_f32_ssd_bwd_scratch(a); }
};

template <> struct slot<double> {
    static void rotate(const kr_rotate_args *a) { kr_cuda_f64_rotate(a); }
    static void rotate_bwd(const kr_rotate_bwd_args *a) { kr_cuda_f64_rotate_bwd(a); }
    static size_t rotate_bwd_scratch(const kr_rotate_bwd_args *a) { return kr_cuda_f64_rotate_bwd_scratch(a); }
    static void core(const kr_ssd_args *a) { kr_cuda_f64_ssd(a); }
    static size_t core_scratch(const kr_ssd_args *a) { return kr_cuda_f64_ssd_scratch(a); }
    static void core_bwd(const kr_ssd_bwd_args *a) { kr_cuda_f64_ssd_bwd(a); }
    static size_t core_bwd_scratch(const kr_ssd_bwd_args *a) { return kr_cuda_f64_ssd_bwd_scratch(a); }
};

/* a: kr_ssd_args or kr_ssd_bwd_args. Does the core round B and C on every device? Then they are stored in bf16. */
template <typename F, typename A> static bool autocasts(const A *a)
{
    return sizeof(F) == sizeof(float) && a->exec.precision == KR_PRECISION_BF16 && a->ns > 4 && a->nm <= 64 &&
           a->nr <= 128;
}

/* B (which 0) or C to `to`. */
template <typename F, typename A> static void rotate_operand(const A *a, int which, void *to)
{
    kr_rotate_args r = {};
    r.exec = a->exec;
    r.no = a->nb * a->ns, r.nm = a->nm, r.nh = a->nh, r.ng = a->ng, r.nr = a->nr, r.na = a->na,
    r.split_pairs = a->split_pairs;
    r.x = which ? a->c.data : a->b.data, r.bias = which ? a->bias_c : a->bias_b, r.angle = a->angle;
    r.y = { to, autocasts<F>(a) ? KR_DTYPE_BF16 : kr_dtype_of<F>(), a->nr };
    slot<F>::rotate(&r);
}

/* The arguments of the core with one B and C per head, rotated to scratch. */
template <typename F, typename A> static A of_heads(A *a, kr_cuda_scratch *m)
{
    const int64_t row = a->nm * a->nh * a->nr, bytes = a->nb * a->ns * row * (autocasts<F>(a) ? 2 : (int64_t)sizeof(F));
    kr_ssd_casts r = {};
    const kr_dtype v_dtype = a->v.dtype;
    if (kr_is_16bit(a->b.dtype) || kr_is_16bit(a->c.dtype)) { /* of the groups, and so small */
        a->v.dtype = KR_DTYPE_F32;                            /* v is not cast */
        kr_ssd_cast_operands(a, &r, m, true);
        if (m->base) kr_ssd_casts_run(&r, (cudaStream_t)a->exec.stream);
    }
    A n = *a;
    void *b = kr_scratch_take(m, bytes), *c = kr_scratch_take(m, bytes);
    if (m->base) rotate_operand<F>(a, 0, b), rotate_operand<F>(a, 1, c);
    n.v.dtype = v_dtype;
    n.b.data = b ? b : a->b.data, n.c.data = c ? c : a->c.data; /* scratch functions only ask whether it is NULL */
    n.b.dtype = n.c.dtype = autocasts<F>(a) ? KR_DTYPE_BF16 : kr_dtype_of<F>();
    n.b.row = n.c.row = row;
    n.ng = n.nh;
    n.angle = n.bias_b = n.bias_c = NULL;
    return n;
}

template <typename F> size_t kr_ssd_rotate_separate_scratch(const kr_ssd_args *a)
{
    kr_cuda_scratch m = { NULL, 0 };
    kr_ssd_args groups = *a;
    const kr_ssd_args n = of_heads<F>(&groups, &m);
    return m.used + slot<F>::core_scratch(&n);
}

template <typename F> void kr_ssd_rotate_separate(const kr_ssd_args *a)
{
    kr_cuda_scratch m = { (char *)a->exec.scratch, 0 };
    kr_ssd_args groups = *a, n = of_heads<F>(&groups, &m);
    n.exec.scratch = m.base + m.used;
    slot<F>::core(&n);
}

/* From the gradients of B (which 0) or C of each head; C adds its angle gradients to those of B. */
static kr_rotate_bwd_args rotate_bwd_of(const kr_ssd_bwd_args *groups, const kr_ssd_bwd_args *heads, int which,
                                        void *g_angle)
{
    kr_rotate_bwd_args r = {};
    r.exec = groups->exec;
    r.no = groups->nb * groups->ns, r.nm = groups->nm, r.nh = groups->nh, r.ng = groups->ng, r.nr = groups->nr;
    r.na = groups->na, r.split_pairs = groups->split_pairs;
    r.x = which ? groups->c.data : groups->b.data, r.bias = which ? groups->bias_c : groups->bias_b,
    r.angle = groups->angle;
    r.g_y = which ? heads->g_c.data : heads->g_b.data;
    r.g_x = which ? groups->g_c.data : groups->g_b.data, r.g_bias = which ? groups->g_bias_c : groups->g_bias_b;
    r.g_angle = g_angle;
    r.accumulate = which && g_angle;
    return r;
}

/* Allocates scratch and, unless only counting, launches; the core's and the rotations' scratch comes last and is counted in
 * `more`. */
template <typename F> static void bwd(const kr_ssd_bwd_args *a, kr_cuda_scratch *m, size_t *more)
{
    kr_ssd_bwd_args groups = *a, n = of_heads<F>(&groups, m);
    const int64_t bytes = a->nb * a->ns * a->nm * a->nh * a->nr * (int64_t)sizeof(F);
    void *g_b = kr_scratch_take(m, bytes), *g_c = kr_scratch_take(m, bytes);
    void *some = (void *)(uintptr_t)a->v.data;
    n.g_b.data = g_b ? g_b : some, n.g_c.data = g_c ? g_c : some;
    n.g_b.dtype = n.g_c.dtype = kr_dtype_of<F>();
    n.exec.scratch = groups.exec.scratch = m->base ? m->base + m->used : NULL;
    *more = slot<F>::core_bwd_scratch(&n);
    if (m->base) slot<F>::core_bwd(&n);
    for (int i = 0; i < 2; i++) {
        kr_rotate_bwd_args r = rotate_bwd_of(&groups, &n, i, a->g_angle);
        const size_t bytes_of = slot<F>::rotate_bwd_scratch(&r);
        *more = bytes_of > *more ? bytes_of : *more;
        if (m->base) slot<F>::rotate_bwd(&r);
    }
}

template <typename F> size_t kr_ssd_rotate_separate_bwd_scratch(const kr_ssd_bwd_args *a)
{
    kr_cuda_scratch m = { NULL, 0 };
    size_t more = 0;
    bwd<F>(a, &m, &more);
    return m.used + more;
}

template <typename F> void kr_ssd_rotate_separate_bwd(const kr_ssd_bwd_args *a)
{
    kr_cuda_scratch m = { (char *)a->exec.scratch, 0 };
    size_t more = 0;
    bwd<F>(a, &m, &more);
}

#define SLOT(F)                                                                                                        \
    template size_t kr_ssd_rotate_separate_scratch<F>(const kr_ssd_args *);                                            \
    template void kr_ssd_rotate_separate<F>(const kr_ssd_args *);                                                      \
    template size_t kr_ssd_rotate_separate_bwd_scratch<F>(const kr_ssd_bwd_args *);                                    \
    template void kr_ssd_rotate_separate_bwd<F>(const kr_ssd_bwd_args *);
SLOT(float)
SLOT(double)
