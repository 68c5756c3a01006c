/* token_layers_parts.cuh - what the roles of token_layers_cuda.cu share: the stack of layers, a block's shared memory, and
 * how blocks wait for one another. */
#ifndef KR_KERNELS_CUDA_TOKEN_LAYERS_PARTS_CUH
#define KR_KERNELS_CUDA_TOKEN_LAYERS_PARTS_CUH

#include "kernels/cuda/token_layers_core.cuh"
#include "kernels/cuda/token_rows.cuh"

/* Warps of products share k: step s of warp w is the 32 elements from 32 (8 s + w) on. SPAN: neighbours whose squares are one
 * sum. */
enum { WARPS = 8, THREADS = 32 * WARPS, STEP = 32 * WARPS, ALL_THREADS = THREADS + KR_CORE_THREADS + 32 };
enum { MOST_LAYERS = 32, MOST_ROWS = 255, SPAN = 16, HALVES = 2, MOST_SLOTS = 28, FLIGHT = 3 };
enum { LEAST_SLOTS = KR_CORE_WARPS + 3 + FLIGHT }; /* see walk */

typedef kr_linear_job<float> linear;

typedef struct layer {
    linear enter, leave;
    kr_ssd_job<float> core;
} layer;

/* What parts hand one another, in words (words.cuh). */
enum { PARITIES = 2 };
typedef struct handed {
    uint16_t *stream;      /* [m d]: as enter multiplies it */
    float *stream_squares; /* [m d / SPAN] */
    float *entered;        /* [m n]: z, x B C, dt */
    uint16_t *y;           /* [m di] */
    float *y_squares;      /* [m di / KR_TOKEN_TILE] */
} handed;

typedef struct stack {
    int count, nm, half;              /* layers; rows, and those of the first half */
    int places_at, desk_at, stage_at; /* bytes from the slots on */
    kr_core_plan plan;
    uint64_t *arrivals;
    float *x; /* [m d], rows x_m apart: the stream that the first layer enters with ... */
    int x_m;
    const void *table; /* ... which is to be made first: row ids[m] of this [w d]; NULL: it is there */
    kr_half table_half;
    const void *ids;
    bool wide_ids;       /* of 64 bits */
    handed to[PARITIES]; /* by layers, in turn */
    uint4 *words;        /* all of them but the first layer's stream */
    uint32_t nwords;     /* of 16 bytes */
    layer layers[MOST_LAYERS];
} stack;

/* ---- shared memory ----
 *
 * The control, the slots of states, the places of both shares, the core's desk, columns and windows, a product's stage.
 */
enum { ENTERED, CORED = ENTERED + HALVES, LEFT = CORED + HALVES, COUNTERS = LEFT + HALVES, COUNTER_APART = 16 };
static_assert(COUNTERS * COUNTER_APART <= KR_CUDA_ARRIVALS, "the device has as many counters");
enum { WINDOWS_BYTES = 32 * 32 * (int)sizeof(float4), COLUMNS_BYTES = 1024 };

typedef struct tile {
    int at, count, of_rows; /* this one; all; those of the same outputs */
    int m0, n0, end;        /* the first row and output; past the half's last row */
} tile;

typedef struct __align__(128) control
{
    uint64_t full[MOST_SLOTS], free[MOST_SLOTS], staged;
    uint64_t begun, prepared[HALVES]; /* words are blank; jobs: of leaving a layer, of the next one */
    uint64_t goals[COUNTERS];         /* that the next wait is for */
    float q[32];
    kr_core_share shares[HALVES];
    int nm, half, stage_at;
    handed to[PARITIES];
    tile entering[HALVES], leaving[HALVES]; /* the block's first */
    uint64_t *arrivals;
    int count;                               /* of layers */
    linear enter[PARITIES], leave[PARITIES]; /* jobs, by layers in turn */
    kr_ssd_job<float> cores[PARITIES];
}
control;

extern __shared__ uint4 shared_memory[];

static __device__ __forceinline__ control &ctl(void)
{
    return *(control *)(void *)shared_memory;
}
static __device__ __forceinline__ float *slots(void)
{
    return (float *)(void *)((char *)shared_memory + sizeof(control));
}
static __device__ __forceinline__ char *stage(void)
{
    return (char *)slots() + ctl().stage_at;
}

static __device__ __forceinline__ kr_core_place *places(const stack &s, int half)
{
    return (kr_core_place *)(void *)((char *)slots() + s.places_at) + half * s.plan.most;
}

/* Brings a job of the parameters to its place: a word each by the first threads of a role. */
template <typename Job> static __device__ __forceinline__ void bring_job(Job *to, const Job &from, uint32_t thread)
{
    if (thread < sizeof(Job) / 4) ((uint32_t *)(void *)to)[thread] = ((const uint32_t *)(const void *)&from)[thread];
}

/* Threads of products, and of the core. */
static __device__ __forceinline__ void sync_products(void)
{
    asm volatile("bar.sync 1, %0;" ::"n"((int)THREADS) : "memory");
}
static __device__ __forceinline__ void sync_core(void)
{
    asm volatile("bar.sync 2, %0;" ::"n"((int)KR_CORE_THREADS) : "memory");
}

/* ---- blocks wait for one another ----
 *
 * A count says that it is worth looking, not that what was written is there: words do. */

static __device__ __forceinline__ uint64_t count_at(const uint64_t *counter)
{
    uint64_t now;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(now) : "l"(counter) : "memory");
    return now;
}

static __device__ __forceinline__ void come(int counter)
{
    uint64_t *to = ctl().arrivals + counter * COUNTER_APART;
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], 1;" ::"l"(to) : "memory"); /* integers */
}

/* A counter grows by the number of blocks whenever all have come: it is a multiple of that when the kernel begins and ends.
 * Others may have come before this is called, but not all. */
static __device__ __forceinline__ void open_counters(uint64_t *arrivals)
{
    for (int i = threadIdx.x; i < COUNTERS; i += ALL_THREADS)
        ctl().goals[i] = count_at(arrivals + i * COUNTER_APART) / gridDim.x * gridDim.x + gridDim.x;
}

/* seen: the count, if it was looked at before. */
template <typename Sync>
static __device__ __forceinline__ void wait_for_all(int counter, uint64_t seen, bool is_first, Sync sync)
{
    if (is_first) {
        const uint64_t *from = ctl().arrivals + counter * COUNTER_APART, goal = ctl().goals[counter];
        while (seen < goal) seen = count_at(from);
        ctl().goals[counter] = goal + gridDim.x;
    }
    sync();
}

/* The count, on its way before what is asked for next. */
static __device__ __forceinline__ uint64_t look_at(int counter, bool is_first)
{
    return is_first ? count_at(ctl().arrivals + counter * COUNTER_APART) : 0;
}

/* ---- the stream, rounded ---- */

/* A row's neighbours n .. n + SPAN - 1 are in as many lanes; at: m d + n. */
static __device__ __forceinline__ void round_stream(const handed &to, int at, bool is_there, float v, float gain)
{
    float square = v * v;
    const float own = v * gain, next = __shfl_xor_sync(0xffffffffu, own, 1);
#pragma unroll
    for (int away = SPAN / 2; away > 0; away /= 2) square += __shfl_xor_sync(0xffffffffu, square, away);
    if (is_there && at % 2 == 0) kr_put_word(to.stream + at, kr_word_of_two(own, next));
    if (is_there && at % SPAN == 0) kr_put_word(to.stream_squares + at / SPAN, kr_word_of(square));
}

static __device__ __forceinline__ void take_back_stream(const handed &back, int at, bool is_there)
{
    if (is_there && at % 2 == 0) kr_take_back(back.stream + at);
    if (is_there && at % SPAN == 0) kr_take_back(back.stream_squares + at / SPAN);
}

/* Of rows that are looked up, where the first stage will be. */
static __device__ __forceinline__ int32_t *ids(const stack &s)
{
    return (int32_t *)(void *)((char *)slots() + s.stage_at);
}

/* An element of the stream that the first layer enters with. */
static __device__ __forceinline__ float first_stream(const stack &s, int m, int n, int nk)
{
    float *x = s.x + (int64_t)m * s.x_m + n;
    if (s.table) *x = kr_element<float>(s.table, (int64_t)ids(s)[m] * nk + n, s.table_half);
    return *x;
}

/* No word is there but those of the stream that the first layer enters with. */
static __device__ __forceinline__ void begin_words(const stack &s)
{
    for (uint32_t i = blockIdx.x * ALL_THREADS + threadIdx.x; i < s.nwords; i += gridDim.x * ALL_THREADS)
        s.words[i] = make_uint4(KR_ABSENT, KR_ABSENT, KR_ABSENT, KR_ABSENT);
}

#endif
