/* peer_math.c - glibc's functions over arrays: libmvec's vector ones as a compiler would call them, and libm's. */
#include "bench/peer.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

typedef struct named_math {
    const char *function, *isa;
    peer_math_fn *fn;
} named_math;

#ifdef KR_HAVE_LIBMVEC
#include <immintrin.h>

/* The names are those of the vector function ABI: e is AVX-512, d is AVX2; N unmasked, v one vector operand. */
__attribute__((target("avx512f"))) __m512 _ZGVeN16v_expf(__m512 x);
__attribute__((target("avx512f"))) __m512 _ZGVeN16v_logf(__m512 x);
__attribute__((target("avx512f"))) __m512 _ZGVeN16v_log1pf(__m512 x);
__attribute__((target("avx512f"))) __m512 _ZGVeN16v_sinf(__m512 x);
__attribute__((target("avx512f"))) __m512 _ZGVeN16v_tanhf(__m512 x);
__attribute__((target("avx2"))) __m256 _ZGVdN8v_expf(__m256 x);
__attribute__((target("avx2"))) __m256 _ZGVdN8v_logf(__m256 x);
__attribute__((target("avx2"))) __m256 _ZGVdN8v_log1pf(__m256 x);
__attribute__((target("avx2"))) __m256 _ZGVdN8v_sinf(__m256 x);
__attribute__((target("avx2"))) __m256 _ZGVdN8v_tanhf(__m256 x);

/* mvec_<isa>_<name>: y = value, an expression in v, one vector of x; `one` is all ones. */
#define MVEC_AVX512(name, value)                                                                                       \
    __attribute__((target("avx512f"))) static void mvec_avx512_##name(const float *x, float *y, int64_t n)             \
    {                                                                                                                  \
        const __m512 one = _mm512_set1_ps(1.0f);                                                                       \
        (void)one;                                                                                                     \
        for (int64_t i = 0; i < n; i += 16) {                                                                          \
            const __m512 v = _mm512_loadu_ps(x + i);                                                                   \
            _mm512_storeu_ps(y + i, value);                                                                            \
        }                                                                                                              \
    }
#define MVEC_AVX2(name, value)                                                                                         \
    __attribute__((target("avx2,fma"))) static void mvec_avx2_##name(const float *x, float *y, int64_t n)              \
    {                                                                                                                  \
        const __m256 one = _mm256_set1_ps(1.0f);                                                                       \
        (void)one;                                                                                                     \
        for (int64_t i = 0; i < n; i += 8) {                                                                           \
            const __m256 v = _mm256_loadu_ps(x + i);                                                                   \
            _mm256_storeu_ps(y + i, value);                                                                            \
        }                                                                                                              \
    }

#define EXP_MINUS_512 _ZGVeN16v_expf(_mm512_sub_ps(_mm512_setzero_ps(), v))
#define EXP_MINUS_256 _ZGVdN8v_expf(_mm256_sub_ps(_mm256_setzero_ps(), v))
MVEC_AVX512(exp, _ZGVeN16v_expf(v))
MVEC_AVX512(log, _ZGVeN16v_logf(v))
MVEC_AVX512(sin, _ZGVeN16v_sinf(v))
MVEC_AVX512(tanh, _ZGVeN16v_tanhf(v))
MVEC_AVX512(sigmoid, _mm512_div_ps(one, _mm512_add_ps(one, EXP_MINUS_512)))
MVEC_AVX512(silu, _mm512_div_ps(v, _mm512_add_ps(one, EXP_MINUS_512)))
MVEC_AVX512(softplus, _ZGVeN16v_log1pf(_ZGVeN16v_expf(v)))
MVEC_AVX2(exp, _ZGVdN8v_expf(v))
MVEC_AVX2(log, _ZGVdN8v_logf(v))
MVEC_AVX2(sin, _ZGVdN8v_sinf(v))
MVEC_AVX2(tanh, _ZGVdN8v_tanhf(v))
MVEC_AVX2(sigmoid, _mm256_div_ps(one, _mm256_add_ps(one, EXP_MINUS_256)))
MVEC_AVX2(silu, _mm256_div_ps(v, _mm256_add_ps(one, EXP_MINUS_256)))
MVEC_AVX2(softplus, _ZGVdN8v_log1pf(_ZGVdN8v_expf(v)))

#define MVEC_ROWS(name)                                                                                                \
    { #name, "avx2", mvec_avx2_##name },                                                                               \
    {                                                                                                                  \
#name, "avx512", mvec_avx512_##name                                                                            \
    }
#define MVEC_ALL                                                                                                       \
    MVEC_ROWS(exp), MVEC_ROWS(log), MVEC_ROWS(sin), MVEC_ROWS(tanh), MVEC_ROWS(sigmoid), MVEC_ROWS(silu),              \
        MVEC_ROWS(softplus),
#else
#define MVEC_ALL
#endif

#define LIBM(name, value)                                                                                              \
    static void libm_##name(const float *x, float *y, int64_t n)                                                       \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            const float v = x[i];                                                                                      \
            y[i] = value;                                                                                              \
        }                                                                                                              \
    }

LIBM(exp, expf(v))
LIBM(log, logf(v))
LIBM(sin, sinf(v))
LIBM(tanh, tanhf(v))
LIBM(sigmoid, 1.0f / (1.0f + expf(-v)))
LIBM(silu, v / (1.0f + expf(-v)))
LIBM(softplus, log1pf(expf(v)))

static const named_math all[] = {
    MVEC_ALL{ "exp", "libm", libm_exp },   { "log", "libm", libm_log },         { "sin", "libm", libm_sin },
    { "tanh", "libm", libm_tanh },         { "sigmoid", "libm", libm_sigmoid }, { "silu", "libm", libm_silu },
    { "softplus", "libm", libm_softplus },
};

peer_math_fn *peer_mvec(const char *function, const char *isa)
{
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].function, function) == 0 && strcmp(all[i].isa, isa) == 0) return all[i].fn;
    return NULL;
}

peer_math_fn *peer_libm(const char *function)
{
    return peer_mvec(function, "libm");
}
