/* mamba2_stack.cu - one decode step of many rows through a stack of Mamba-2 layers, in one persistent cooperative kernel.
 * sm_90, bf16.
 *
 * Each multiprocessor runs one CTA. A layer has three parts:
 *
 *   in_proj    [z | x B C | dt] = norm(u) W_in, x B C through the convolution     tiles of 32 rows and 32 outputs
 *   core       H <- e^da H + s x (outer) B;  y = (H C + D x) silu(z)              tile pairs, mamba2_stack_state.cuh
 *   out_proj   u <- u + norm(y) W_out                                             tiles of 16 rows and 16 outputs
 *
 *   u [m d]   W_in [n d]   W_out [d di]   H [m h p r]; formulas: kernels/args/decode_args.h
 *
 * The batch is split in two halves, each of which runs all parts of all layers independently, so that the latency of the
 * GEMMs of one half overlaps with the state traffic of the other. The first eight warps of a CTA run the GEMMs of both
 * halves in turn; the next seven run the core of the other half; the last one loads states through a bulk-copy ring of
 * slots, with at most IN_FLIGHT copies outstanding: a longer memory queue would delay all other loads.
 *
 * Parts exchange data through mailbox words (mamba2_stack_state.cuh) instead of fences: a fence waits for all outstanding
 * accesses of a multiprocessor. The CTA that wrote a word of a layer clears it in the next layer; the data it needs for that
 * comes from all readers of the word. out_proj rounds the residual stream for the next in_proj, times its gain, and writes
 * the sums of squares of 16 adjacent elements for its norm. Loads that do not depend on the wait are issued before it.
 */
#include "kernels/cuda/decode/mamba2_stack_gemm.cuh"

/* ---- roles ---- */

/* Input of the first layer. The counter tells the other CTAs that all other mailboxes are cleared: words are polled only
 * behind it. */
template <typename S> static __device__ __forceinline__ void init_gemm(const stack &s)
{
    load_job(&ctl().in_proj[0], s.layers[0].in_proj, threadIdx.x);
    for (int half = 0; half < BATCH_HALVES; half++) init_stream<S>(s, half);
    kr_async_proxy_fence(); /* ids have been read */
    sync_gemm();
    if (threadIdx.x != 0) return;
    __threadfence();
    for (int half = 0; half < BATCH_HALVES; half++) arrive(OUT_PROJ_DONE + half);
    kr_mbarrier_arrive(kr_shared_address(&ctl().ready));
}

template <int STEPS> static __device__ __forceinline__ void run_gemm(const stack &s)
{
    typedef typename shapes<STEPS>::in_proj_tile in_proj_tile;
    typedef typename shapes<STEPS>::out_proj_tile out_proj_tile;
    uint32_t phase = 0;
    init_gemm<out_proj_tile>(s);
#pragma unroll 1
    for (int part = 0; part < BATCH_HALVES * (s.count + 1);
         part++) { /* out_proj of a layer, in_proj of the next, alternating halves */
        if (part >= BATCH_HALVES) phase = out_proj<out_proj_tile>(part, phase);
        if (part < BATCH_HALVES * s.count) phase = in_proj<in_proj_tile>(part, phase);
    }
}

/* The CTA's tile pairs of a half, scheduled for rows whose layers have all seen the same number of tokens. */
static __device__ __forceinline__ kr_core_partition partition_of(const stack &s, int half)
{
    kr_core_partition own = kr_core_partition_of(s.plan, half ? s.half : 0, half ? s.nm - s.half : s.half);
    const kr_ssd_job<float> &k = s.layers[0].core;
    kr_core_schedule(&own, 0);
    if (own.count)
        kr_core_schedule(
            &own,
            (uint32_t)k.deferred[kr_pair_index_of(s.plan, own, (uint32_t)k.parts.row, 0).records + KR_DEFERRED_COUNT]);
    return own;
}

/* A position in the ring: slot, and how often the ring has wrapped. */
typedef struct ring_pos {
    uint32_t slot, round;
} ring_pos;

static __device__ __forceinline__ ring_pos ring_advance(const kr_core_plan &p, ring_pos at, uint32_t by)
{
    at.slot += by;
    while (at.slot >= p.slots) at.slot -= p.slots, at.round++;
    return at;
}

/* Waits for a tile pair. Its slot is free after two arrivals at its mbarrier. */
static __device__ __forceinline__ kr_tile_pair wait_for_pair(const kr_core_workspace &d, const kr_pair_index &index,
                                                             ring_pos at)
{
    kr_mbarrier_wait(kr_shared_address(&ctl().full[at.slot]), at.round);
    return kr_tile_pair_of(d, index, slots() + at.slot * KR_SLOT_FLOATS);
}

/* The warp's tile pairs from n to `end`, one in KR_CORE_WARPS. first: ring position of the partition. */
static __device__ __forceinline__ void run_pairs(const kr_core_plan &p, const kr_core_workspace &d,
                                                 const kr_pair_index *each, float *state, ring_pos first, uint32_t n,
                                                 uint32_t end)
{
    ring_pos in_ring = ring_advance(p, first, n);
#pragma unroll 1
    for (; n < end; n += KR_CORE_WARPS, in_ring = ring_advance(p, in_ring, KR_CORE_WARPS)) {
        const kr_pair_index index = each[n];
        const kr_tile_pair at = wait_for_pair(d, index, in_ring);
        if (!at.is_flushed) kr_dot_rows<KR_PAIR_ROWS>(d, at, 0);
        else
#pragma unroll 1
            for (int tile = 0; tile < KR_PAIR_TILES; tile++)
                kr_flush_tile(d, at, tile, state + (int64_t)index.pair * KR_PAIR_FLOATS);
        __syncwarp();
        if (threadIdx.x % 16 == 0) kr_mbarrier_arrive(kr_shared_address(&ctl().free[in_ring.slot]));
    }
}

/* The warp's tiles of the flushed tile pairs. */
static __device__ __forceinline__ void run_tiles(const kr_core_plan &p, const kr_core_workspace &d,
                                                 const kr_core_partition &own, const kr_pair_index *each, float *state,
                                                 ring_pos first, uint32_t warp)
{
#pragma unroll 1
    for (uint32_t i = warp; i < own.n_flushed * KR_PAIR_TILES; i += KR_CORE_WARPS) {
        const kr_pair_index index = each[own.lead + i / KR_PAIR_TILES];
        const ring_pos in_ring = ring_advance(p, first, own.lead + i / KR_PAIR_TILES);
        const kr_tile_pair at = wait_for_pair(d, index, in_ring);
        if (at.is_flushed) kr_flush_tile(d, at, i % KR_PAIR_TILES, state + (int64_t)index.pair * KR_PAIR_FLOATS);
        else kr_dot_rows<KR_DECODE_TILE>(d, at, i % KR_PAIR_TILES * KR_DECODE_TILE);
        __syncwarp();
        if (threadIdx.x % 32 == 0) kr_mbarrier_arrive(kr_shared_address(&ctl().free[in_ring.slot]));
    }
}

/* An mbarrier distinguishes a phase from the previous one, not from the one before that: when a warp waits for pair n, the
 * previous pair of its slot must have arrived. The warp's last pair is at most KR_CORE_WARPS + 3 before n, and when that
 * one was requested, all but the IN_FLIGHT before it had arrived. MIN_SLOTS is the sum. */
static __device__ __forceinline__ void run_partition(const kr_core_plan &p, const kr_core_workspace &d,
                                                     const kr_core_partition &own, const kr_pair_index *each,
                                                     float *state, ring_pos first, uint32_t thread)
{
    const uint32_t warp = thread / 32;
    run_pairs(p, d, each, state, first, warp, own.lead);
    run_tiles(p, d, own, each, state, first, warp);
    run_pairs(p, d, each, state, first, own.lead + own.n_flushed + warp, own.count);
}

/* Copies the jobs of the next parts from the kernel parameters, which are slow to read; the core waits here anyway. The
 * jobs that they replace are finished: the GEMM warps have announced their successors. */
static __device__ __forceinline__ void load_next_jobs(const stack &s, int l, int half, uint32_t thread)
{
    const int next = (l + 1) % PARITIES;
    if (half == 0) {
        load_job(&ctl().out_proj[l % PARITIES], s.layers[l].out_proj, thread);
    } else if (l + 1 < s.count) {
        load_job(&ctl().in_proj[next], s.layers[l + 1].in_proj, thread);
        if (thread >= 64) load_job(&ctl().cores[next], s.layers[l + 1].core, thread - 64);
    }
}

/* Prefetches the weights of those jobs. */
template <int STEPS> static __device__ __forceinline__ void prefetch_next_weights(int l, int half)
{
    typedef shapes<STEPS> both;
    if (half == 0) prefetch_weights<typename both::out_proj_tile>(ctl().out_proj[l % PARITIES], ctl().out_proj_tile[0]);
    else if (l + 1 < ctl().count)
        prefetch_weights<typename both::in_proj_tile>(ctl().in_proj[(l + 1) % PARITIES], ctl().in_proj_tile[0]);
}

template <int STEPS> static __device__ __forceinline__ void run_core(const stack &s)
{
    const kr_core_plan &p = s.plan;
    const kr_core_workspace d = kr_core_workspace_of(p, (float *)(void *)((char *)slots() + s.workspace_at));
    const uint32_t thread = threadIdx.x - THREADS;
    ring_pos first = { 0, 0 };
    load_job(&ctl().cores[0], s.layers[0].core, thread);
#pragma unroll 1
    for (int part = 0; part < BATCH_HALVES * s.count; part++) {
        const int l = part / BATCH_HALVES, half = part % BATCH_HALVES;
        const kr_core_partition &own = ctl().partitions[half];
        const kr_ssd_job<float> &k = ctl().cores[l % PARITIES];
        sync_core(); /* the previous partition's records are stored, and the job is in shared memory */
        const kr_head_input head = kr_load_history(k, p, d, own, thread);
        const kr_two_params old = kr_load_two_params(k, p, own, thread);
        load_next_jobs(s, l, half, thread);
        wait_for_ctas(IN_PROJ_DONE + half, 0, thread == 0, sync_core);
        if (thread == 0) kr_mbarrier_arrive(kr_shared_address(&ctl().jobs_ready[half]));
        if (thread == KR_CORE_THREADS - 32) prefetch_next_weights<STEPS>(l, half);
        kr_load_token(k, p, d, own, head, old, thread, sync_core);
        run_partition(p, d, own, pair_indices(s, half), k.state, first, thread);
        first = ring_advance(p, first, own.count);
        sync_core();
        const mailboxes &clear = s.to[(l + 1) % PARITIES];
        kr_store_y(k, p, d, own, { clear.y, clear.y_squares }, thread);
        sync_core();
        if (thread == 0) arrive(CORE_DONE + half);
        kr_store_records(k, p, d, own, thread);
    }
}

/* Loads a tile pair into a slot: states by one bulk copy, the small records by cp.async of each lane; the mbarrier counts
 * both. */
static __device__ __forceinline__ void load_pair(float *to, uint32_t mbarrier, const float *state, const float *records)
{
    const uint32_t lane = threadIdx.x % 32, at = 4 * lane;
    if (lane == 0) {
        kr_bulk_expect(mbarrier, KR_PAIR_FLOATS * sizeof(float));
        kr_bulk_copy_evict_first(to, state, KR_PAIR_FLOATS * sizeof(float), mbarrier);
    }
    __syncwarp();
    static_assert(KR_PAIR_RECORDS > 128 && KR_PAIR_RECORDS <= 256, "a lane has one or two quads of records");
    kr_copy<16>(kr_shared_address(to + KR_PAIR_FLOATS + at), records + at);
    if (at + 128 < KR_PAIR_RECORDS) kr_copy<16>(kr_shared_address(to + KR_PAIR_FLOATS + at + 128), records + at + 128);
    kr_mbarrier_arrive_with_copies(mbarrier);
}

/* One warp: all tile pairs of all halves and layers. */
static __device__ __forceinline__ void load_states(const stack &s)
{
    const kr_core_plan &p = s.plan;
    ring_pos at = { 0, 0 }, arrived = { 0, 0 };
    uint32_t n = 0;
    /* this layer's and the next one's: parameters are slow to read */
    const float *state = NULL, *deferred = NULL, *next_state = s.layers[0].core.state,
                *next_deferred = s.layers[0].core.deferred;
    kr_mbarrier_wait(kr_shared_address(&ctl().ready), 0); /* a fence would wait for all outstanding copies */
#pragma unroll 1
    for (int part = 0; part < BATCH_HALVES * s.count; part++) {
        const int l = part / BATCH_HALVES, half = part % BATCH_HALVES;
        const kr_pair_index *each = pair_indices(s, half);
        const uint32_t count = ctl().partitions[half].count;
        if (half == 0) state = next_state, deferred = next_deferred;
        else if (l + 1 < s.count)
            next_state = s.layers[l + 1].core.state, next_deferred = s.layers[l + 1].core.deferred;
#pragma unroll 1
        for (uint32_t i = 0; i < count; i++, n++) {
            const kr_pair_index index = each[i];
            if (at.round > 0) kr_mbarrier_wait(kr_shared_address(&ctl().free[at.slot]), at.round - 1);
            if (n >= IN_FLIGHT) {
                kr_mbarrier_wait(kr_shared_address(&ctl().full[arrived.slot]), arrived.round);
                arrived = ring_advance(p, arrived, 1);
            }
            __syncwarp();
            load_pair(slots() + at.slot * KR_SLOT_FLOATS, kr_shared_address(&ctl().full[at.slot]),
                      state + (int64_t)index.pair * KR_PAIR_FLOATS, deferred + index.records);
            at = ring_advance(p, at, 1);
        }
    }
}

/* ---- CTA ---- */

/* One warp each. */
enum { CONTROL_WARP = 0, PARTITION_WARP = ALL_THREADS / 32 - BATCH_HALVES };
static_assert(32 * PARTITION_WARP >= MAX_ROWS, "threads with ids are others");

static __device__ __forceinline__ void init_control(const stack &s)
{
    control &c = ctl();
    const uint32_t lane = threadIdx.x % 32;
    static_assert(MAX_SLOTS <= 32, "a lane has a slot");
    if (lane < s.plan.slots) {
        kr_mbarrier_init(kr_shared_address(&c.full[lane]), 1 + 32);
        kr_mbarrier_init(kr_shared_address(&c.free[lane]), 2);
    }
    if (lane < BATCH_HALVES) kr_mbarrier_init(kr_shared_address(&c.jobs_ready[lane]), 1);
    if (lane == 0) kr_mbarrier_init(kr_shared_address(&c.staged), 1), kr_mbarrier_init(kr_shared_address(&c.ready), 1);
    kr_mbarrier_init_fence();
    if (lane != 0) return;
    c.nm = s.nm, c.half = s.half, c.stage_at = s.stage_at;
    c.arrivals = s.arrivals, c.count = s.count;
    for (int i = 0; i < PARITIES; i++) c.to[i] = s.to[i];
}

/* What the CTA owns of a half. */
template <int STEPS> static __device__ __forceinline__ void init_half(const stack &s, int half)
{
    typedef shapes<STEPS> both;
    const int first = half ? s.half : 0, end = half ? s.nm : s.half, at = (int)blockIdx.x;
    const tile t = tile_among<typename both::in_proj_tile>(s.layers[0].in_proj, first, end, at);
    if (half == 0) prefetch_weights<typename both::in_proj_tile>(s.layers[0].in_proj, t);
    ctl().in_proj_tile[half] = t;
    ctl().out_proj_tile[half] = tile_among<typename both::out_proj_tile>(s.layers[0].out_proj, first, end, at);
    ctl().partitions[half] = partition_of(s, half);
}

/* Initialises what all roles share, and clears the mailboxes. */
template <int STEPS> static __device__ __forceinline__ void init(const stack &s)
{
    const int warp = (int)threadIdx.x / 32, m = (int)threadIdx.x;
    clear_mailboxes(s);
    if (s.table && m < s.nm)
        ids(s)[m] = s.wide_ids ? (int32_t)((const int64_t *)s.ids)[m] : ((const int32_t *)s.ids)[m];
    init_counters(s.arrivals);
    if (warp == CONTROL_WARP) init_control(s);
    if (warp >= PARTITION_WARP && threadIdx.x % 32 == 0) init_half<STEPS>(s, warp - PARTITION_WARP);
    __syncthreads();
    for (int half = 0; half < BATCH_HALVES; half++)
        for (uint32_t n = threadIdx.x; n < ctl().partitions[half].count; n += ALL_THREADS)
            pair_indices(s, half)[n] =
                kr_pair_index_of(s.plan, ctl().partitions[half], (uint32_t)s.layers[0].core.parts.row, n);
    __syncthreads();
}

template <int STEPS>
static __global__ void __launch_bounds__(ALL_THREADS, 1) mamba2_stack_kernel(const __grid_constant__ stack s)
{
    init<STEPS>(s);
    kr_pdl_launch_dependents(); /* its CTAs start as these end */
    if (threadIdx.x < THREADS) run_gemm<STEPS>(s);
    else if (threadIdx.x < THREADS + KR_CORE_THREADS) run_core<STEPS>(s);
    else load_states(s);
}

/* ---- dispatch ---- */

static bool is_divisible(const kr_decode_linear_args *a, int outputs)
{
    return kr_decode_skinny_can(a) && a->nk % STEP == 0 && a->nn % outputs == 0;
}

/* Do two layers have equal sizes? */
static bool same_size(const kr_decode_layer *a, const kr_decode_layer *b)
{
    const kr_decode_ssd_args *p = &a->mamba2.core, *q = &b->mamba2.core;
    return a->kind == b->kind && a->in_proj.nm == b->in_proj.nm && a->in_proj.nn == b->in_proj.nn &&
           a->in_proj.nk == b->in_proj.nk && a->in_proj.x.row == b->in_proj.x.row && a->out_proj.nn == b->out_proj.nn &&
           a->out_proj.nk == b->out_proj.nk && p->nb == q->nb && p->nh == q->nh && p->np == q->np && p->nr == q->nr &&
           p->ng == q->ng;
}

static bool are_gemms_supported(const kr_decode_linear_args *in, const kr_decode_linear_args *out)
{
    return is_divisible(in, 1) && is_divisible(out, 16) && in->x.dtype == KR_DTYPE_F32 && !in->base.data &&
           in->nt == KR_MOST_TAPS && in->nc > 0 && kr_is_aligned16(in->window) && kr_is_aligned16(in->taps.data) &&
           in->nk == out->nn && out->x.dtype == KR_DTYPE_BF16 && out->squares && out->base.data && out->nc == 0 &&
           out->nsquares % 2 == 0 && out->nsquares * KR_DECODE_TILE == out->nk;
}

/* The core applies the gate, stores squares and defers its update. */
static bool is_supported(const kr_decode_layer *l)
{
    if (l->kind != KR_DECODE_MAMBA2) return false;
    const kr_ssd_job<float> core = kr_ssd_job_of<float>(&l->mamba2.core);
    return are_gemms_supported(&l->in_proj, &l->out_proj) && core.x && core.z && core.squares && core.deferred &&
           kr_ssd_is_aligned(core) && core.stride == l->in_proj.y.row;
}

/* The most steps per stage that divide both GEMMs; 0: none. */
static int stage_steps(const kr_decode_layer *l)
{
    const int64_t in = l->in_proj.nk / STEP, out = l->out_proj.nk / STEP;
    for (int steps = 3; steps > 1; steps--)
        if (in % steps == 0 && out % (2 * steps) == 0) return steps;
    return out % 2 == 0 ? 1 : 0;
}

static size_t stage_bytes(int steps)
{
    return (size_t)(steps == 3 ? (int)shapes<3>::STAGE : steps == 2 ? (int)shapes<2>::STAGE : (int)shapes<1>::STAGE);
}

typedef struct choice {
    int steps, indices_at, workspace_at, stage_at;
    size_t shared;
    kr_core_plan plan;
} choice;

static uint32_t bits_of(int64_t n)
{
    uint32_t bits = 0;
    while ((int64_t)1 << bits < n) bits++;
    return bits;
}

/* Sizes of the core, and as many slots as shared memory holds. */
static bool plan_core(const kr_cuda *device, const kr_ssd_job<float> &k, choice *c)
{
    const int64_t blocks = device->multiprocessors, per_head = k.np / KR_PAIR_ROWS;
    const int64_t rows = kr_ceil_div(k.nb, BATCH_HALVES), pairs = rows * k.nh * per_head,
                  max_pairs = kr_ceil_div(pairs, blocks);
    kr_core_plan *p = &c->plan;
    p->head_bits = bits_of(per_head), p->dim_bits = bits_of(k.np);
    if (k.nr != KR_CORE_RANK || per_head < 1 || k.np != (int64_t)1 << p->dim_bits || pairs < KR_CORE_WARPS * blocks ||
        k.nb * k.stride > INT32_MAX || k.nb * k.parts.row > INT32_MAX)
        return false;
    p->nh = (uint32_t)k.nh, p->ng = (uint32_t)k.ng, p->per_group = (uint32_t)(k.nh / k.ng);
    p->max_pairs = (uint32_t)max_pairs;
    p->max_heads = (uint32_t)kr_least((max_pairs + per_head - 2) / per_head + 1, rows * k.nh);
    p->max_rows = (uint32_t)kr_least((p->max_heads + k.nh - 2) / k.nh + 1, rows);
    const size_t workspace = kr_padded_bytes(kr_core_workspace_floats(*p) * (int64_t)sizeof(float));
    const size_t index_bytes = kr_padded_bytes(BATCH_HALVES * max_pairs * (int64_t)sizeof(kr_pair_index)),
                 slot = KR_SLOT_FLOATS * sizeof(float);
    const size_t rest =
        sizeof(control) + index_bytes + workspace + stage_bytes(c->steps) + COLUMNS_BYTES + WINDOWS_BYTES;
    if (rest > device->shared_bytes || p->max_heads > KR_CORE_THREADS) return false;
    p->slots = (uint32_t)kr_least((int64_t)((device->shared_bytes - rest) / slot), MAX_SLOTS);
    c->indices_at = (int)(p->slots * slot), c->workspace_at = c->indices_at + (int)index_bytes;
    c->stage_at = c->workspace_at + (int)(workspace + COLUMNS_BYTES + WINDOWS_BYTES);
    c->shared = rest + p->slots * slot;
    return p->slots >= MIN_SLOTS;
}

/* Measured on an H200: with fewer rows or a wider model, separate kernels per layer are as fast or faster. */
static bool is_profitable(const kr_decode_layer *l, int steps)
{
    const int64_t stages = l->in_proj.nk / (steps * STEP);
    return l->in_proj.nm >= (stages == 1 ? 32 : 64) && l->in_proj.nm <= MAX_ROWS && stages <= 2;
}

static bool choose(const kr_exec *exec, const kr_decode_stack *from, choice *c)
{
    const kr_cuda *device = (const kr_cuda *)exec->own;
    const kr_decode_layer *each = from->layers;
    if (device->arch != 90 || from->count < 1) return false;
    for (int64_t i = 0; i < from->count; i++) {
        kr_decode_layer l = each[i];
        l.in_proj.exec = l.out_proj.exec = *exec;
        if (!is_supported(&l) || !same_size(&each[0], &each[i])) return false;
    }
    c->steps = stage_steps(each);
    return c->steps > 0 && is_profitable(each, c->steps) &&
           plan_core(device, kr_ssd_job_of<float>(&each[0].mamba2.core), c);
}

/* Assigns mailboxes from `at` on; NULL: only counts bytes. The first layer's input comes first. */
static size_t layout_mailboxes(const kr_decode_layer *l, char *at, stack *s)
{
    const int64_t nm = l->in_proj.nm, nd = l->in_proj.nk, ni = l->out_proj.nk;
    size_t bytes = 0, first = 0;
    for (int i = 0; i < PARITIES; i++) {
        mailboxes *to = &s->to[i];
        void **each[] = { (void **)&to->stream, (void **)&to->stream_squares, (void **)&to->projected, (void **)&to->y,
                          (void **)&to->y_squares };
        const int64_t sizes[] = { nm * nd * 2, nm * nd / SPAN * 4, nm * l->in_proj.y.row * 4, nm * ni * 2,
                                  nm * ni / KR_DECODE_TILE * 4 };
        for (int j = 0; j < 5; j++) {
            if (i == 0 && j == 2) first = bytes;
            if (at) *each[j] = at + bytes;
            bytes += kr_padded_bytes(sizes[j]);
        }
    }
    if (at)
        s->mailbox_units = (uint4 *)(void *)(at + first),
        s->n_mailbox_units = (uint32_t)((bytes - first) / sizeof(uint4));
    return bytes;
}

size_t kr_cuda_decode_layers_scratch(const kr_exec *exec, const kr_decode_stack *from)
{
    choice c;
    stack s;
    return choose(exec, from, &c) ? layout_mailboxes(from->layers, NULL, &s) : 0;
}

static layer layer_of(const kr_decode_layer *from, const mailboxes &to)
{
    layer l = { kr_linear_job_of<float>(&from->in_proj), kr_linear_job_of<float>(&from->out_proj),
                kr_ssd_job_of<float>(&from->mamba2.core) };
    l.in_proj.x = to.stream, l.in_proj.x_m = l.in_proj.nk, l.in_proj.x_dtype = KR_DTYPE_BF16;
    l.in_proj.squares = to.stream_squares, l.in_proj.nsquares = l.in_proj.nk / SPAN;
    const kr_decode_mamba2 *at = &from->mamba2;
    l.core.x = to.projected + at->x_at, l.core.z = to.projected + at->z_at, l.core.b = to.projected + at->b_at;
    l.core.c = to.projected + at->c_at, l.core.dt = to.projected + at->dt_at;
    l.core.y = to.y, l.core.squares = to.y_squares;
    l.out_proj.x = to.y, l.out_proj.x_m = l.out_proj.nk, l.out_proj.squares = to.y_squares;
    return l;
}

/* A cooperative launch: all CTAs are resident at once. */
template <int STEPS> static void launch(const kr_exec *exec, const stack &s, size_t shared)
{
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)kr_multiprocessors(exec));
    config.blockDim = dim3(ALL_THREADS);
    config.dynamicSmemBytes = shared;
    config.stream = kr_stream_of(exec);
    config.attrs = &attribute;
    config.numAttrs = 1;
    cudaFuncSetAttribute(mamba2_stack_kernel<STEPS>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    cudaLaunchKernelEx(&config, mamba2_stack_kernel<STEPS>, s);
}

/* The first layer's input is looked up by this kernel if possible, otherwise by an embedding kernel before it. */
static void init_lookup(const kr_exec *exec, const kr_decode_stack *from, stack *s)
{
    const kr_decode_linear_args *first = &from->layers[0].in_proj;
    kr_embedding_args *lookup = from->lookup;
    s->table = NULL;
    if (!lookup) return;
    if (lookup->ni == first->nk && first->x.row == lookup->ni) {
        s->table = lookup->x.data, s->table_dtype = lookup->x.dtype;
        s->ids = lookup->id, s->wide_ids = lookup->id_dtype == KR_DTYPE_I64;
    } else {
        lookup->exec = *exec;
        kr_cuda_f32_embedding(lookup);
    }
}

void kr_cuda_decode_layers(const kr_exec *exec, const kr_decode_stack *from)
{
    const kr_decode_layer *each = from->layers;
    choice c;
    stack s;
    if (!choose(exec, from, &c)) return;
    s.plan = c.plan, s.indices_at = c.indices_at, s.workspace_at = c.workspace_at, s.stage_at = c.stage_at;
    s.nm = (int)each->in_proj.nm, s.half = (s.nm + 1) / BATCH_HALVES;
    s.arrivals = ((const kr_cuda *)exec->own)->arrivals;
    layout_mailboxes(each, (char *)exec->scratch, &s);
    init_lookup(exec, from, &s);
    s.x = (float *)from->stream.data, s.x_m = (int)from->stream.row;
    for (int64_t first = 0; first < from->count; first += MAX_LAYERS) {
        s.count = (int)kr_least(MAX_LAYERS, from->count - first);
        for (int i = 0; i < s.count; i++) s.layers[i] = layer_of(&each[first + i], s.to[i % PARITIES]);
        for (int i = 0; i + 1 < s.count; i++) s.layers[i].out_proj.gain = s.layers[i + 1].in_proj.gain;
        if (c.steps == 3) launch<3>(exec, s, c.shared);
        else if (c.steps == 2) launch<2>(exec, s, c.shared);
        else launch<1>(exec, s, c.shared);
        s.table = NULL;
    }
}
