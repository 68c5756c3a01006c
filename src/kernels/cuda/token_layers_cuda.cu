/* token_layers_cuda.cu - one token of many rows through layers of Mamba-2, by one kernel on sm_90.
 *
 * Each multiprocessor has a block, which stays. A layer is three parts:
 *
 *   enter   [z | x B C | dt] = norm(u) W_in, x B C through the convolution     tiles of 32 rows and 32 outputs
 *   core    H <- e^da H + s x (outer) B;  y = (H C + D x) silu(z)              pieces of states (token_layers_core.cuh)
 *   leave   u <- u + norm(y) W_out                                             tiles of 16 rows and 16 outputs
 *
 * and rows are two halves, each of which goes through all parts of all layers by itself: products have latency to wait for,
 * states memory. A block's first eight warps have products, of one half and the other in turn; the next seven have the core
 * of the half whose products rest; the last one brings states, one after another through a ring of slots, no more than FLIGHT
 * at a time: what waits in memory's queues is in the way of all else.
 *
 * Parts hand one another words (words.cuh), so none waits for a fence, which takes as long as all that a multiprocessor has
 * on its way. A word of a layer is taken back in the next one by the block that wrote it: what it needs for that came from all
 * who have read the word. leave rounds the stream for the next enter, times its gain, and leaves the squares of 16 neighbours
 * for its norm. What a part reads that is older is on its way while it waits.
 */
#include "kernels/cuda/token_layers_product.cuh"

/* ---- roles ---- */

/* The stream that the first layer enters with, and the word to all that no other word is there: words are read behind a
 * count of blocks that have come here. */
template <typename S> static __device__ __forceinline__ void begin_products(const stack &s)
{
    bring_job(&ctl().enter[0], s.layers[0].enter, threadIdx.x);
    for (int half = 0; half < HALVES; half++) begin_stream<S>(s, half);
    kr_shared_handed_over(); /* ids have been read */
    sync_products();
    if (threadIdx.x != 0) return;
    __threadfence();
    for (int half = 0; half < HALVES; half++) come(LEFT + half);
    kr_latch_come(kr_shared_address(&ctl().begun));
}

template <int STEPS> static __device__ __forceinline__ void run_products(const stack &s)
{
    typedef typename shapes<STEPS>::entering entering;
    typedef typename shapes<STEPS>::leaving leaving;
    uint32_t turn = 0;
    begin_products<leaving>(s);
#pragma unroll 1
    for (int part = 0; part < HALVES * (s.count + 1); part++) { /* leave a layer, enter the next, half after half */
        if (part >= HALVES) turn = leave<leaving>(part, turn);
        if (part < HALVES * s.count) turn = enter<entering>(part, turn);
    }
}

/* The half's pieces of this block, in an order for rows whose layers have had all tokens together. */
static __device__ __forceinline__ kr_core_share share_of(const stack &s, int half)
{
    kr_core_share own = kr_core_share_of(s.plan, half ? s.half : 0, half ? s.nm - s.half : s.half);
    const kr_ssd_job<float> &k = s.layers[0].core;
    kr_core_order(&own, 0);
    if (own.count)
        kr_core_order(
            &own, (uint32_t)k.owed[kr_core_place_of(s.plan, own, (uint32_t)k.parts.row, 0).records + KR_OWED_COUNT]);
    return own;
}

/* A place of the ring: slots one after another, round after round. */
typedef struct ring_place {
    uint32_t slot, round;
} ring_place;

static __device__ __forceinline__ ring_place go_on(const kr_core_plan &p, ring_place at, uint32_t by)
{
    at.slot += by;
    while (at.slot >= p.slots) at.slot -= p.slots, at.round++;
    return at;
}

/* A piece that has come. Its slot is free when two have come to its latch. */
static __device__ __forceinline__ kr_piece wait_for_piece(const kr_core_desk &d, const kr_core_place &place,
                                                          ring_place at)
{
    kr_latch_wait(kr_shared_address(&ctl().full[at.slot]), at.round);
    return kr_piece_of(d, place, slots() + at.slot * KR_SLOT);
}

/* The warp's pieces of a share from n to `end`, one in KR_CORE_WARPS. first: the share's place in the ring. */
static __device__ __forceinline__ void walk_pieces(const kr_core_plan &p, const kr_core_desk &d,
                                                   const kr_core_place *each, float *state, ring_place first,
                                                   uint32_t n, uint32_t end)
{
    ring_place in_ring = go_on(p, first, n);
#pragma unroll 1
    for (; n < end; n += KR_CORE_WARPS, in_ring = go_on(p, in_ring, KR_CORE_WARPS)) {
        const kr_core_place place = each[n];
        const kr_piece at = wait_for_piece(d, place, in_ring);
        if (!at.is_due) kr_read_rows<KR_PIECE_ROWS>(d, at, 0);
        else
#pragma unroll 1
            for (int tile = 0; tile < KR_PAIR; tile++)
                kr_move_tile(d, at, tile, state + (int64_t)place.piece * KR_PIECE);
        __syncwarp();
        if (threadIdx.x % 16 == 0) kr_latch_come(kr_shared_address(&ctl().free[in_ring.slot]));
    }
}

/* The warp's tiles of pieces that are due. */
static __device__ __forceinline__ void walk_tiles(const kr_core_plan &p, const kr_core_desk &d,
                                                  const kr_core_share &own, const kr_core_place *each, float *state,
                                                  ring_place first, uint32_t warp)
{
#pragma unroll 1
    for (uint32_t i = warp; i < own.due * KR_PAIR; i += KR_CORE_WARPS) {
        const kr_core_place place = each[own.lead + i / KR_PAIR];
        const ring_place in_ring = go_on(p, first, own.lead + i / KR_PAIR);
        const kr_piece at = wait_for_piece(d, place, in_ring);
        if (at.is_due) kr_move_tile(d, at, i % KR_PAIR, state + (int64_t)place.piece * KR_PIECE);
        else kr_read_rows<KR_TOKEN_TILE>(d, at, i % KR_PAIR * KR_TOKEN_TILE);
        __syncwarp();
        if (threadIdx.x % 32 == 0) kr_latch_come(kr_shared_address(&ctl().free[in_ring.slot]));
    }
}

/* A latch tells a round from the one before it, not from the one before that: when a warp comes to wait for piece n, the one
 * that had its slot before must have come. The warp's last piece is at most KR_CORE_WARPS + 3 before n, and when that was asked
 * for, all but the FLIGHT before it had come: as many slots as that are LEAST_SLOTS. */
static __device__ __forceinline__ void walk(const kr_core_plan &p, const kr_core_desk &d, const kr_core_share &own,
                                            const kr_core_place *each, float *state, ring_place first, uint32_t thread)
{
    const uint32_t warp = thread / 32;
    walk_pieces(p, d, each, state, first, warp, own.lead);
    walk_tiles(p, d, own, each, state, first, warp);
    walk_pieces(p, d, each, state, first, own.lead + own.due + warp, own.count);
}

/* Jobs of parts to come, from the parameters, which are slow to come themselves: the core waits here in any case. Those that
 * had their places before have been done: products have announced what comes after them. */
static __device__ __forceinline__ void prepare_jobs(const stack &s, int l, int half, uint32_t thread)
{
    const int next = (l + 1) % PARITIES;
    if (half == 0) {
        bring_job(&ctl().leave[l % PARITIES], s.layers[l].leave, thread);
    } else if (l + 1 < s.count) {
        bring_job(&ctl().enter[next], s.layers[l + 1].enter, thread);
        if (thread >= 64) bring_job(&ctl().cores[next], s.layers[l + 1].core, thread - 64);
    }
}

/* ... and their weights. */
template <int STEPS> static __device__ __forceinline__ void fetch_next_weights(int l, int half)
{
    typedef shapes<STEPS> both;
    if (half == 0) fetch_weights<typename both::leaving>(ctl().leave[l % PARITIES], ctl().leaving[0]);
    else if (l + 1 < ctl().count)
        fetch_weights<typename both::entering>(ctl().enter[(l + 1) % PARITIES], ctl().entering[0]);
}

template <int STEPS> static __device__ __forceinline__ void run_core(const stack &s)
{
    const kr_core_plan &p = s.plan;
    const kr_core_desk d = kr_core_desk_of(p, (float *)(void *)((char *)slots() + s.desk_at));
    const uint32_t thread = threadIdx.x - THREADS;
    ring_place first = { 0, 0 };
    bring_job(&ctl().cores[0], s.layers[0].core, thread);
#pragma unroll 1
    for (int part = 0; part < HALVES * s.count; part++) {
        const int l = part / HALVES, half = part % HALVES;
        const kr_core_share &own = ctl().shares[half];
        const kr_ssd_job<float> &k = ctl().cores[l % PARITIES];
        sync_core(); /* the share before this one has been kept, and the job is there */
        const kr_head_input head = kr_lay_out_old(k, p, d, own, thread);
        const kr_two_input old = kr_fetch_two(k, p, own, thread);
        prepare_jobs(s, l, half, thread);
        wait_for_all(ENTERED + half, 0, thread == 0, sync_core);
        if (thread == 0) kr_latch_come(kr_shared_address(&ctl().prepared[half]));
        if (thread == KR_CORE_THREADS - 32) fetch_next_weights<STEPS>(l, half);
        kr_lay_out_new(k, p, d, own, head, old, thread, sync_core);
        walk(p, d, own, places(s, half), k.state, first, thread);
        first = go_on(p, first, own.count);
        sync_core();
        const handed &back = s.to[(l + 1) % PARITIES];
        kr_end_share(k, p, d, own, { back.y, back.y_squares }, thread);
        sync_core();
        if (thread == 0) come(CORED + half);
        kr_keep_share(k, p, d, own, thread);
    }
}

/* A piece to a slot: its states by one copy, its records, which are few, by a copy of each lane; the latch counts both. */
static __device__ __forceinline__ void bring_piece(float *to, uint32_t latch, const float *state, const float *records)
{
    const uint32_t lane = threadIdx.x % 32, at = 4 * lane;
    if (lane == 0) {
        kr_bulk_expect(latch, KR_PIECE * sizeof(float));
        kr_bulk_read_once(to, state, KR_PIECE * sizeof(float), latch);
    }
    __syncwarp();
    static_assert(KR_PIECE_RECORDS > 128 && KR_PIECE_RECORDS <= 256, "a lane has one or two quads of records");
    kr_copy<16>(kr_shared_address(to + KR_PIECE + at), records + at);
    if (at + 128 < KR_PIECE_RECORDS) kr_copy<16>(kr_shared_address(to + KR_PIECE + at + 128), records + at + 128);
    kr_latch_come_with_copies(latch);
}

/* A warp: all pieces of all halves and layers. */
static __device__ __forceinline__ void bring_states(const stack &s)
{
    const kr_core_plan &p = s.plan;
    ring_place at = { 0, 0 }, arrived = { 0, 0 };
    uint32_t n = 0;
    /* of this layer, and of the next: parameters are slow to come */
    const float *state = NULL, *owed = NULL, *next_state = s.layers[0].core.state, *next_owed = s.layers[0].core.owed;
    kr_latch_wait(kr_shared_address(&ctl().begun), 0); /* a fence waits for all that is on its way */
#pragma unroll 1
    for (int part = 0; part < HALVES * s.count; part++) {
        const int l = part / HALVES, half = part % HALVES;
        const kr_core_place *each = places(s, half);
        const uint32_t count = ctl().shares[half].count;
        if (half == 0) state = next_state, owed = next_owed;
        else if (l + 1 < s.count) next_state = s.layers[l + 1].core.state, next_owed = s.layers[l + 1].core.owed;
#pragma unroll 1
        for (uint32_t i = 0; i < count; i++, n++) {
            const kr_core_place place = each[i];
            if (at.round > 0) kr_latch_wait(kr_shared_address(&ctl().free[at.slot]), at.round - 1);
            if (n >= FLIGHT) {
                kr_latch_wait(kr_shared_address(&ctl().full[arrived.slot]), arrived.round);
                arrived = go_on(p, arrived, 1);
            }
            __syncwarp();
            bring_piece(slots() + at.slot * KR_SLOT, kr_shared_address(&ctl().full[at.slot]),
                        state + (int64_t)place.piece * KR_PIECE, owed + place.records);
            at = go_on(p, at, 1);
        }
    }
}

/* ---- the block ---- */

/* A warp each. */
enum { OF_CONTROL = 0, OF_SHARES = ALL_THREADS / 32 - HALVES };
static_assert(32 * OF_SHARES >= MOST_ROWS, "threads with ids are others");

static __device__ __forceinline__ void begin_control(const stack &s)
{
    control &c = ctl();
    const uint32_t lane = threadIdx.x % 32;
    static_assert(MOST_SLOTS <= 32, "a lane has a slot");
    if (lane < s.plan.slots) {
        kr_latch_init(kr_shared_address(&c.full[lane]), 1 + 32);
        kr_latch_init(kr_shared_address(&c.free[lane]), 2);
    }
    if (lane < HALVES) kr_latch_init(kr_shared_address(&c.prepared[lane]), 1);
    if (lane == 0) kr_latch_init(kr_shared_address(&c.staged), 1), kr_latch_init(kr_shared_address(&c.begun), 1);
    kr_latches_ready();
    if (lane != 0) return;
    c.nm = s.nm, c.half = s.half, c.stage_at = s.stage_at;
    c.arrivals = s.arrivals, c.count = s.count;
    for (int i = 0; i < PARITIES; i++) c.to[i] = s.to[i];
}

/* What the block has of a half. */
template <int STEPS> static __device__ __forceinline__ void begin_half(const stack &s, int half)
{
    typedef shapes<STEPS> both;
    const int first = half ? s.half : 0, end = half ? s.nm : s.half, at = (int)blockIdx.x;
    const tile t = tile_among<typename both::entering>(s.layers[0].enter, first, end, at);
    if (half == 0) fetch_weights<typename both::entering>(s.layers[0].enter, t);
    ctl().entering[half] = t;
    ctl().leaving[half] = tile_among<typename both::leaving>(s.layers[0].leave, first, end, at);
    ctl().shares[half] = share_of(s, half);
}

/* All that the roles share: words that are not there, too. */
template <int STEPS> static __device__ __forceinline__ void begin(const stack &s)
{
    const int warp = (int)threadIdx.x / 32, m = (int)threadIdx.x;
    begin_words(s);
    if (s.table && m < s.nm)
        ids(s)[m] = s.wide_ids ? (int32_t)((const int64_t *)s.ids)[m] : ((const int32_t *)s.ids)[m];
    open_counters(s.arrivals);
    if (warp == OF_CONTROL) begin_control(s);
    if (warp >= OF_SHARES && threadIdx.x % 32 == 0) begin_half<STEPS>(s, warp - OF_SHARES);
    __syncthreads();
    for (int half = 0; half < HALVES; half++)
        for (uint32_t n = threadIdx.x; n < ctl().shares[half].count; n += ALL_THREADS)
            places(s, half)[n] = kr_core_place_of(s.plan, ctl().shares[half], (uint32_t)s.layers[0].core.parts.row, n);
    __syncthreads();
}

template <int STEPS>
static __global__ void __launch_bounds__(ALL_THREADS, 1) layers_kernel(const __grid_constant__ stack s)
{
    begin<STEPS>(s);
    kr_token_let_next(); /* whose blocks take the place of these as they end */
    if (threadIdx.x < THREADS) run_products<STEPS>(s);
    else if (threadIdx.x < THREADS + KR_CORE_THREADS) run_core<STEPS>(s);
    else bring_states(s);
}

/* ---- choosing ---- */

static bool is_whole(const kr_token_linear_args *a, int outputs)
{
    return kr_token_rows_can(a) && a->nk % STEP == 0 && a->nn % outputs == 0;
}

/* Does layer i go on from the one before it, with its sizes? */
static bool follows(const kr_token_layer *each, int64_t i)
{
    const kr_token_layer *a = &each[i - 1], *b = &each[i];
    return b->enter.x == a->leave.y && b->enter.x_m == a->leave.y_m && b->enter.nm == a->enter.nm &&
           b->enter.nn == a->enter.nn && b->enter.nk == a->enter.nk && b->leave.nn == a->leave.nn &&
           b->leave.nk == a->leave.nk && b->core.nb == a->core.nb && b->core.nh == a->core.nh &&
           b->core.np == a->core.np && b->core.nr == a->core.nr && b->core.ng == a->core.ng &&
           b->leave.y == a->leave.y; /* halves are at different layers */
}

/* Is what the core reads out of the row that enter makes? */
static bool is_entered(const kr_token_layer *l, const void *x)
{
    const float *y = (const float *)l->enter.y;
    return (const float *)x >= y && (const float *)x < y + l->enter.y_m;
}

static bool fits(const kr_token_layer *l)
{
    const kr_token_linear_args *in = &l->enter, *out = &l->leave;
    const kr_ssd_job<float> core = kr_ssd_job_of<float>(&l->core);
    return is_whole(in, 1) && is_whole(out, 16) && !in->x_half && !in->base && in->nt == KR_MOST_TAPS && in->nc > 0 &&
           kr_allows16(in->window) && kr_allows16(in->taps) && in->nk == out->nn && out->x_half && out->squares &&
           out->base && out->nc == 0 && out->nsquares % 2 == 0 && core.x && core.z && core.squares && core.owed &&
           kr_ssd_is_aligned(core) && core.stride == in->y_m && is_entered(l, core.x) && is_entered(l, core.z) &&
           is_entered(l, core.b) && is_entered(l, core.c) && is_entered(l, core.dt) && out->x == l->core.y &&
           out->squares == l->core.squares && out->nsquares * KR_TOKEN_TILE == out->nk;
}

/* The most steps of a stage, of which a product is a multiple. */
static int steps_of(const kr_token_layer *l)
{
    const int64_t in = l->enter.nk / STEP, out = l->leave.nk / STEP;
    for (int steps = 3; steps > 1; steps--)
        if (in % steps == 0 && out % (2 * steps) == 0) return steps;
    return out % 2 == 0 ? 1 : 0;
}

static size_t stage_bytes(int steps)
{
    return (size_t)(steps == 3 ? (int)shapes<3>::STAGE : steps == 2 ? (int)shapes<2>::STAGE : (int)shapes<1>::STAGE);
}

typedef struct choice {
    int steps, places_at, desk_at, stage_at;
    size_t shared;
    kr_core_plan plan;
} choice;

static uint32_t bits_of(int64_t n)
{
    uint32_t bits = 0;
    while ((int64_t)1 << bits < n) bits++;
    return bits;
}

/* Sizes of the core, and as many slots as there is room for. */
static bool plan_core(const kr_cuda *device, const kr_ssd_job<float> &k, choice *c)
{
    const int64_t blocks = device->multiprocessors, per_head = k.np / KR_PIECE_ROWS;
    const int64_t rows = kr_ceil_div(k.nb, HALVES), pieces = rows * k.nh * per_head, most = kr_ceil_div(pieces, blocks);
    kr_core_plan *p = &c->plan;
    p->head_bits = bits_of(per_head), p->dim_bits = bits_of(k.np);
    if (k.nr != KR_CORE_RANK || per_head < 1 || k.np != (int64_t)1 << p->dim_bits || pieces < KR_CORE_WARPS * blocks ||
        k.nb * k.stride > INT32_MAX || k.nb * k.parts.row > INT32_MAX)
        return false;
    p->nh = (uint32_t)k.nh, p->ng = (uint32_t)k.ng, p->per_group = (uint32_t)(k.nh / k.ng);
    p->most = (uint32_t)most;
    p->most_heads = (uint32_t)kr_least((most + per_head - 2) / per_head + 1, rows * k.nh);
    p->most_rows = (uint32_t)kr_least((p->most_heads + k.nh - 2) / k.nh + 1, rows);
    const size_t desk = kr_padded_bytes(kr_core_desk_floats(*p) * (int64_t)sizeof(float));
    const size_t all_places = kr_padded_bytes(HALVES * most * (int64_t)sizeof(kr_core_place)),
                 slot = KR_SLOT * sizeof(float);
    const size_t rest = sizeof(control) + all_places + desk + stage_bytes(c->steps) + COLUMNS_BYTES + WINDOWS_BYTES;
    if (rest > device->shared_bytes || p->most_heads > KR_CORE_THREADS) return false;
    p->slots = (uint32_t)kr_least((int64_t)((device->shared_bytes - rest) / slot), MOST_SLOTS);
    c->places_at = (int)(p->slots * slot), c->desk_at = c->places_at + (int)all_places;
    c->stage_at = c->desk_at + (int)(desk + COLUMNS_BYTES + WINDOWS_BYTES);
    c->shared = rest + p->slots * slot;
    return p->slots >= LEAST_SLOTS;
}

/* By measurement on an H200: of fewer rows, or wider ones, layers by themselves are as fast, or faster. */
static bool pays(const kr_token_layer *l, int steps)
{
    const int64_t stages = l->enter.nk / (steps * STEP);
    return l->enter.nm >= (stages == 1 ? 32 : 64) && l->enter.nm <= MOST_ROWS && stages <= 2;
}

static bool choose(const kr_exec *exec, int64_t count, const kr_token_layer *each, choice *c)
{
    const kr_cuda *device = (const kr_cuda *)exec->own;
    if (device->arch != 90 || count < 1) return false;
    for (int64_t i = 0; i < count; i++) {
        kr_token_layer l = each[i];
        l.enter.exec = l.leave.exec = *exec;
        if (!fits(&l) || (i > 0 && !follows(each, i))) return false;
    }
    c->steps = steps_of(each);
    return c->steps > 0 && pays(each, c->steps) && plan_core(device, kr_ssd_job_of<float>(&each[0].core), c);
}

/* Lays words out from `at` on; NULL: says how many bytes they take. Those of the first layer's stream come first. */
static size_t lay_out_words(const kr_token_layer *l, char *at, stack *s)
{
    const int64_t nm = l->enter.nm, nd = l->enter.nk, ni = l->leave.nk;
    size_t bytes = 0, first = 0;
    for (int i = 0; i < PARITIES; i++) {
        handed *to = &s->to[i];
        void **each[] = { (void **)&to->stream, (void **)&to->stream_squares, (void **)&to->entered, (void **)&to->y,
                          (void **)&to->y_squares };
        const int64_t sizes[] = { nm * nd * 2, nm * nd / SPAN * 4, nm * l->enter.y_m * 4, nm * ni * 2,
                                  nm * ni / KR_TOKEN_TILE * 4 };
        for (int j = 0; j < 5; j++) {
            if (i == 0 && j == 2) first = bytes;
            if (at) *each[j] = at + bytes;
            bytes += kr_padded_bytes(sizes[j]);
        }
    }
    if (at) s->words = (uint4 *)(void *)(at + first), s->nwords = (uint32_t)((bytes - first) / sizeof(uint4));
    return bytes;
}

size_t kr_cuda_token_layers_scratch(const kr_exec *exec, int64_t count, const kr_token_layer *each)
{
    choice c;
    stack s;
    return choose(exec, count, each, &c) ? lay_out_words(each, NULL, &s) : 0;
}

/* The same place in another row of words. */
static const float *moved(const void *from, const kr_token_layer *l, const handed &to)
{
    return to.entered + ((const float *)from - (const float *)l->enter.y);
}

static layer layer_of(const kr_token_layer *from, const handed &to)
{
    layer l = { kr_linear_job_of<float>(&from->enter), kr_linear_job_of<float>(&from->leave),
                kr_ssd_job_of<float>(&from->core) };
    l.enter.x = to.stream, l.enter.x_m = l.enter.nk, l.enter.x_half = KR_HALF_BF16;
    l.enter.squares = to.stream_squares, l.enter.nsquares = l.enter.nk / SPAN;
    l.core.x = moved(l.core.x, from, to), l.core.z = moved(l.core.z, from, to), l.core.b = moved(l.core.b, from, to);
    l.core.c = moved(l.core.c, from, to), l.core.dt = moved(l.core.dt, from, to);
    l.core.y = to.y, l.core.squares = to.y_squares;
    l.leave.x = to.y, l.leave.x_m = l.leave.nk, l.leave.squares = to.y_squares;
    return l;
}

/* All blocks run at once, or none does. */
template <int STEPS> static void launch(const kr_exec *exec, const stack &s, size_t shared)
{
    cudaLaunchAttribute together;
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)kr_multiprocessors(exec));
    config.blockDim = dim3(ALL_THREADS);
    config.dynamicSmemBytes = shared;
    config.stream = kr_stream_of(exec);
    config.attrs = &together;
    config.numAttrs = 1;
    cudaFuncSetAttribute(layers_kernel<STEPS>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    cudaLaunchKernelEx(&config, layers_kernel<STEPS>, s);
}

/* The first layer's stream is looked up by the kernel, or by one before it. */
static void take_lookup(const kr_exec *exec, const kr_token_layer *first, stack *s)
{
    kr_embedding_args *lookup = first->lookup;
    s->table = NULL;
    if (!lookup) return;
    if (lookup->y == first->enter.x && lookup->ni == first->enter.nk && first->enter.x_m == lookup->ni) {
        s->table = lookup->x, s->table_half = lookup->half;
        s->ids = lookup->id, s->wide_ids = lookup->id_dtype == KR_I64;
    } else {
        lookup->exec = *exec;
        kr_cuda_f32_embedding(lookup);
    }
}

void kr_cuda_token_layers(const kr_exec *exec, int64_t count, const kr_token_layer *each)
{
    choice c;
    stack s;
    if (!choose(exec, count, each, &c)) return;
    s.plan = c.plan, s.places_at = c.places_at, s.desk_at = c.desk_at, s.stage_at = c.stage_at;
    s.nm = (int)each->enter.nm, s.half = (s.nm + 1) / HALVES;
    s.arrivals = ((const kr_cuda *)exec->own)->arrivals;
    lay_out_words(each, (char *)exec->scratch, &s);
    take_lookup(exec, each, &s);
    for (int64_t first = 0; first < count; first += MOST_LAYERS) {
        s.count = (int)kr_least(MOST_LAYERS, count - first);
        s.x = (float *)each[first].enter.x, s.x_m = (int)each[first].enter.x_m;
        for (int i = 0; i < s.count; i++) s.layers[i] = layer_of(&each[first + i], s.to[i % PARITIES]);
        for (int i = 0; i + 1 < s.count; i++) s.layers[i].leave.gain = s.layers[i + 1].enter.gain;
        if (c.steps == 3) launch<3>(exec, s, c.shared);
        else if (c.steps == 2) launch<2>(exec, s, c.shared);
        else launch<1>(exec, s, c.shared);
        s.table = NULL;
    }
}
