/* bench_machine.c - peak and bandwidth loops, their cases, and a description of the processor.
 *
 * The loops are compiled for their instruction set by attribute, since this file as a whole must run anywhere.
 */
#define _DEFAULT_SOURCE
#include "bench/bench_machine.h"

#include "base/cpu.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CHAINS = 12, PEAK_ROUNDS = 20000 };
#define MIB ((int64_t)1 << 20)

static volatile float sink; /* receives unused results, so that compilers keep the work */

#if defined(__x86_64__)
#include <immintrin.h>

/* Makes the values opaque to the compiler, so that it neither merges equal chains nor drops them; costs nothing. */
#define HIDE_12(kind, c)                                                                                               \
    __asm__ volatile(""                                                                                                \
                     : "+" kind(c##0), "+" kind(c##1), "+" kind(c##2), "+" kind(c##3), "+" kind(c##4), "+" kind(c##5), \
                       "+" kind(c##6), "+" kind(c##7), "+" kind(c##8), "+" kind(c##9), "+" kind(c##10),                \
                       "+" kind(c##11))

__attribute__((target("avx2,fma"))) static void peak_avx2(int64_t rounds)
{
    const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
    __m256 c0 = b, c1 = b, c2 = b, c3 = b, c4 = b, c5 = b, c6 = b, c7 = b, c8 = b, c9 = b, c10 = b, c11 = b;
    HIDE_12("x", c);
    for (int64_t i = 0; i < rounds; i++) {
        c0 = _mm256_fmadd_ps(c0, a, b), c1 = _mm256_fmadd_ps(c1, a, b), c2 = _mm256_fmadd_ps(c2, a, b);
        c3 = _mm256_fmadd_ps(c3, a, b), c4 = _mm256_fmadd_ps(c4, a, b), c5 = _mm256_fmadd_ps(c5, a, b);
        c6 = _mm256_fmadd_ps(c6, a, b), c7 = _mm256_fmadd_ps(c7, a, b), c8 = _mm256_fmadd_ps(c8, a, b);
        c9 = _mm256_fmadd_ps(c9, a, b), c10 = _mm256_fmadd_ps(c10, a, b), c11 = _mm256_fmadd_ps(c11, a, b);
    }
    HIDE_12("x", c);
}

__attribute__((target("avx512f"))) static void peak_avx512(int64_t rounds)
{
    const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
    __m512 c0 = b, c1 = b, c2 = b, c3 = b, c4 = b, c5 = b, c6 = b, c7 = b, c8 = b, c9 = b, c10 = b, c11 = b;
    HIDE_12("v", c);
    for (int64_t i = 0; i < rounds; i++) {
        c0 = _mm512_fmadd_ps(c0, a, b), c1 = _mm512_fmadd_ps(c1, a, b), c2 = _mm512_fmadd_ps(c2, a, b);
        c3 = _mm512_fmadd_ps(c3, a, b), c4 = _mm512_fmadd_ps(c4, a, b), c5 = _mm512_fmadd_ps(c5, a, b);
        c6 = _mm512_fmadd_ps(c6, a, b), c7 = _mm512_fmadd_ps(c7, a, b), c8 = _mm512_fmadd_ps(c8, a, b);
        c9 = _mm512_fmadd_ps(c9, a, b), c10 = _mm512_fmadd_ps(c10, a, b), c11 = _mm512_fmadd_ps(c11, a, b);
    }
    HIDE_12("v", c);
}

/* Four cache lines per step; the prefetch one page ahead continues across page boundaries, where hardware prefetchers
 * stop. */
__attribute__((target("avx2"))) static float sum_avx2(const float *x, int64_t n)
{
    __m256 s[8];
    for (int e = 0; e < 8; e++) s[e] = _mm256_setzero_ps();
    for (int64_t i = 0; i + 64 <= n; i += 64) {
        for (int line = 0; line < 4; line++)
            _mm_prefetch((const char *)((uintptr_t)(x + i + 16 * line) + 4096), _MM_HINT_T0);
        for (int e = 0; e < 8; e++) s[e] = _mm256_add_ps(s[e], _mm256_loadu_ps(x + i + 8 * e));
    }
    for (int e = 1; e < 8; e++) s[0] = _mm256_add_ps(s[0], s[e]);
    return _mm256_cvtss_f32(s[0]);
}
#endif

static float sum_plain(const float *x, int64_t n)
{
    float s[16] = { 0 };
    for (int64_t i = 0; i + 16 <= n; i += 16)
        for (int e = 0; e < 16; e++) s[e] += x[i + e];
    return s[0];
}

static void peak_task(void *arg, int64_t index, int worker)
{
    (void)index;
    (void)worker;
    const peak_job *job = arg;
    job->loop(PEAK_ROUNDS);
}

static void peak_call(void *arg)
{
    const peak_job *job = arg;
    kr_pool_run(job->pool, job->tasks, peak_task, arg);
}

contender *machine_enter_peak(bench_env *env, contender *line, int *n, peak_job *job, const char *isa, int threads)
{
    double lanes = 0;
    *job = (peak_job){ .pool = bench_pool(env, threads), .tasks = threads > 1 ? 4 * threads : 1 };
#if defined(__x86_64__)
    const uint64_t avx2 = KR_CPU_AVX2 | KR_CPU_FMA;
    if (strcmp(isa, "avx2") == 0 && (env->features & avx2) == avx2) job->loop = peak_avx2, lanes = 8;
    if (strcmp(isa, "avx512") == 0 && env->features & KR_CPU_AVX512F) job->loop = peak_avx512, lanes = 16;
#endif
    if (!job->loop) return NULL;
    char name[24];
    const double flop = 2 * lanes * CHAINS * PEAK_ROUNDS * (double)job->tasks;
    return bench_enter(line, n, peak_call, job, flop, bench_name(name, "peak", isa));
}

static void read_task(void *arg, int64_t index, int worker)
{
    const read_job *job = arg;
    const float *x = job->x + job->at * job->n;
    for (int64_t i = 0; i < job->repeat; i++) sink = job->sum(x + worker * job->piece, job->piece);
    if (job->repeat) return;
    const int64_t from = index * job->piece, left = job->n - from;
    sink = job->sum(x + from, left < job->piece ? left : job->piece);
}

static void read_call(void *arg)
{
    read_job *job = arg;
    job->at = (job->at + 1) % job->sets;
    kr_pool_run(job->pool, (job->n + job->piece - 1) / job->piece, read_task, job);
}

contender *machine_enter_read(bench_env *env, contender *line, int *n, read_job *job, const float *x, int64_t floats,
                              int64_t sets, int threads)
{
    const int64_t piece = threads > 1 ? 64 << 10 : floats; /* 256 KiB: some 10 us, and few page boundaries */
    *job = (read_job){ .sum = sum_plain, .pool = bench_pool(env, threads), .x = x, .n = floats, .sets = sets };
    job->piece = piece < floats ? piece : floats;
#if defined(__x86_64__)
    if (env->features & KR_CPU_AVX2) job->sum = sum_avx2;
#endif
    return bench_enter(line, n, read_call, job, 4 * (double)floats, "read");
}

static void run_peak(bench_env *env, const bench_case *self, int threads)
{
    static const char *const names[] = { "avx2", "avx512" };
    contender line[BENCH_CONTENDERS];
    peak_job jobs[2];
    int n = 0;
    for (int i = 0; i < 2; i++) machine_enter_peak(env, line, &n, &jobs[i], names[i], threads);
    if (n) bench_run(env, self, threads, "GFLOP/s", line, n);
}

/* size: bytes for each thread (0: half of a core's L2), and the number of calls that read them. */
static void run_read(bench_env *env, const bench_case *self, int threads)
{
    bench_machine machine;
    machine_describe(&machine, env->features, env->threads);
    const int64_t l2 = machine.l2_bytes > 0 ? machine.l2_bytes : MIB;
    const int64_t bytes = self->size[0] ? self->size[0] : l2 / 2;
    const int64_t sets = self->size[1], floats = bytes / 4 * threads / sets;
    contender line[BENCH_CONTENDERS];
    read_job job;
    int n = 0;
    machine_enter_read(env, line, &n, &job, bench_floats(env, sets * floats, 0, 1), floats, sets, threads);
    if (self->size[0] == 0) {
        job.repeat = 16;
        job.piece = floats / threads;
        line[0].work *= 16;
    }
    bench_run(env, self, threads, "GB/s", line, n);
}

static void case_peak(bench_env *env, const bench_case *self)
{
    bench_each_width(env, self, run_peak);
}

static void case_read(bench_env *env, const bench_case *self)
{
    bench_each_width(env, self, run_read);
}

const bench_case bench_machine_cases[] = {
    { "machine/fma", "f32 multiply-adds from registers", case_peak, { 0 }, 0 },
    { "machine/read-l2", "reads of half an L2, for each thread", case_read, { 0, 1 }, 0 },
    { "machine/read-8m", "reads of 8 MiB for each thread", case_read, { 8 << 20, 1 }, 0 },
    { "machine/read-256m", "reads of 256 MiB for each thread", case_read, { 256 << 20, 64 }, 0 },
    { 0 },
};

/* The value of a line "key : value" of /proc/cpuinfo, "unknown" without one. */
static void read_model(char *model, size_t bytes)
{
    char line[256];
    snprintf(model, bytes, "an unknown processor");
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(model, bytes, "%.90s", colon + 2);
        break;
    }
    if (file) fclose(file);
}

static long cache_bytes(int name)
{
    const long bytes = sysconf(name);
    return bytes > 0 ? bytes : 0;
}

void machine_describe(bench_machine *machine, uint64_t features, int threads)
{
    memset(machine, 0, sizeof *machine);
    read_model(machine->model, sizeof machine->model);
    machine->features = features;
    machine->cpus = kr_cpu_allowed(NULL, 0);
    machine->threads = threads;
#ifdef _SC_LEVEL1_DCACHE_SIZE
    machine->l1_bytes = cache_bytes(_SC_LEVEL1_DCACHE_SIZE);
    machine->l2_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE);
    machine->l3_bytes = cache_bytes(_SC_LEVEL3_CACHE_SIZE);
#else
    (void)cache_bytes;
#endif
}

int64_t machine_last_cache(void)
{
    bench_machine machine;
    machine_describe(&machine, 0, 1);
    return machine.l3_bytes > 0 ? machine.l3_bytes : 32 * MIB;
}
