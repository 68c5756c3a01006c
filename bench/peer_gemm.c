/* peer_gemm.c - oneDNN's sgemm, if CMake found it. */
#define _GNU_SOURCE
#include "bench/peer.h"

#ifdef KR_HAVE_DNNL
#include <dlfcn.h>
#include <dnnl.h>
#include <string.h>

/* OpenMP is linked by oneDNN; its header may be missing. */
typedef void set_threads_fn(int threads);

static set_threads_fn *openmp_set_threads(void)
{
    set_threads_fn *fn = NULL;
    void *symbol = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    if (symbol) memcpy(&fn, &symbol, sizeof fn);
    return fn;
}

bool peer_gemm_threads(int threads)
{
    static bool started;
    set_threads_fn *set_threads = openmp_set_threads();
    if (!set_threads) return false;
    /* If a hypervisor exposes AMX but not the tile description, oneDNN's AMX code would trap. f32 does not use it. */
    if (!started) dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16);
    started = true;
    set_threads(threads);
    return true;
}

void peer_gemm_run(const peer_gemm *g)
{
    dnnl_sgemm(g->a_transposed ? 'T' : 'N', g->b_transposed ? 'T' : 'N', g->nm, g->nn, g->nk, 1.0f, g->a,
               g->a_transposed ? g->nm : g->nk, g->b, g->b_transposed ? g->nk : g->nn, 0.0f, g->c, g->nn);
}

#else

bool peer_gemm_threads(int threads)
{
    (void)threads;
    return false;
}

void peer_gemm_run(const peer_gemm *g)
{
    (void)g;
}

#endif
