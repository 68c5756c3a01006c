/* decode_ssd_ref.c - reference decode kernel: one token of the Mamba-2 SSD core, in place, with deferred state updates.
 *
 *   H <- e^da H + s x (outer) B,  y = H C + D x
 * Formulas: kernels/args/decode_args.h.
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_operand.h"
#include "kernels/ref/ref_silu.h"

#include <math.h>

static double softplus(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

/* One token on an element of H, rounded as it is stored. */
static real updated(real h, real decay, real weight, real b)
{
    return (real)((double)decay * (double)h + (double)weight * (double)b);
}

/* Pending tokens of a tile, KR_DECODE_TILE rows p of a head. */
typedef struct pending_tokens {
    real *record;     /* NULL: updates are not deferred */
    real *b;          /* of the group */
    int64_t t, count; /* tokens since the last flush; the last `count` are pending */
    bool is_flushed;  /* H is written */
} pending_tokens;

static pending_tokens pending_of(const kr_decode_ssd_args *a, int64_t head, int64_t p)
{
    if (!a->deferred) return (pending_tokens){ .is_flushed = true };
    const kr_deferred_parts parts = kr_deferred_parts_of(a->nh, a->np, a->ng, a->nr);
    const int64_t h = head % a->nh;
    real *row = (real *)a->deferred + head / a->nh * parts.row;
    pending_tokens pending = { row + (h * parts.tiles + p / KR_DECODE_TILE) * KR_DEFERRED_RECORD,
                               row + parts.b + h / (a->nh / a->ng) * KR_DEFERRED_TOKENS * a->nr, 0, 0, false };
    pending.t = (int64_t)pending.record[KR_DEFERRED_COUNT];
    const int64_t tile = head * parts.tiles + p / KR_DECODE_TILE,
                  phase = (pending.t + KR_DEFERRED_PHASE(tile)) % KR_DEFERRED_TOKENS;
    pending.count = pending.t < phase ? pending.t : phase;
    pending.is_flushed = !a->x.data || phase == KR_DEFERRED_TOKENS - 1;
    return pending;
}

/* An element of H with its pending tokens applied. */
static real with_pending(real h, const pending_tokens *pending, int64_t p, int64_t r, int64_t nr)
{
    for (int64_t i = pending->t - pending->count; i < pending->t; i++) {
        const int64_t index = i % KR_DEFERRED_TOKENS;
        h = updated(h, pending->record[KR_DEFERRED_DECAY + index],
                    pending->record[index * KR_DECODE_TILE + p % KR_DECODE_TILE], pending->b[index * nr + r]);
    }
    return h;
}

static void flush_task(void *arg, int64_t head, int worker)
{
    (void)worker;
    const kr_decode_ssd_args *a = arg;
    for (int64_t p = 0; p < a->np; p++) {
        const pending_tokens pending = pending_of(a, head, p);
        real *state = (real *)a->state + (head * a->np + p) * a->nr;
        for (int64_t r = 0; r < a->nr; r++) state[r] = with_pending(state[r], &pending, p, r, a->nr);
        if (p % KR_DECODE_TILE == KR_DECODE_TILE - 1 || p == a->np - 1) pending.record[KR_DEFERRED_COUNT] = 0;
    }
}

/* B of the current token, as it is stored. */
static real b_of(const kr_decode_ssd_args *a, int64_t head, int64_t r)
{
    return (real)kr_ref_at(&a->b, head / a->nh, head % a->nh / (a->nh / a->ng) * a->nr + r);
}

/* Appends the current token to the record: the weight of row p, with the last row of a tile its decay and the count, and
 * with the first row of the group its B. */
static void store_record(const kr_decode_ssd_args *a, int64_t head, int64_t p, const pending_tokens *pending,
                         real decay, real weight)
{
    if (!pending->record) return;
    const int64_t index = pending->t % KR_DEFERRED_TOKENS;
    pending->record[index * KR_DECODE_TILE + p % KR_DECODE_TILE] = weight;
    if (head % a->nh % (a->nh / a->ng) == 0 && p == 0)
        for (int64_t r = 0; r < a->nr; r++) pending->b[index * a->nr + r] = b_of(a, head, r);
    if (p % KR_DECODE_TILE != KR_DECODE_TILE - 1 && p != a->np - 1) return;
    pending->record[KR_DEFERRED_DECAY + index] = decay;
    pending->record[KR_DEFERRED_COUNT] =
        (real)(pending->t + 1 < 2 * KR_DEFERRED_TOKENS ? pending->t + 1 : KR_DEFERRED_TOKENS);
}

/* Applies the current token to row p of H; returns the sum over r of H C. */
static double update_row(const kr_decode_ssd_args *a, int64_t head, int64_t p, const pending_tokens *pending,
                         real decay, real weight)
{
    const int64_t row = head / a->nh, group = head % a->nh / (a->nh / a->ng) * a->nr;
    real *state = (real *)a->state + (head * a->np + p) * a->nr;
    double sum = 0;
    for (int64_t r = 0; r < a->nr; r++) {
        const real now = updated(with_pending(state[r], pending, p, r, a->nr), decay, weight, b_of(a, head, r));
        if (pending->is_flushed) state[r] = now;
        sum += (double)now * kr_ref_at(&a->c, row, group + r);
    }
    return sum;
}

static void ssd_task(void *arg, int64_t head, int worker)
{
    (void)worker;
    const kr_decode_ssd_args *a = arg;
    const int64_t row = head / a->nh, h = head % a->nh;
    const real *d = a->d;
    const double raw = kr_ref_at(&a->dt, row, h) + (double)((const real *)a->dt_bias)[h];
    const double dt = fmin(fmax(softplus(raw), (double)(real)a->dt_min), (double)(real)a->dt_max);
    const real decay = (real)exp(-dt * exp((double)((const real *)a->a_log)[h]));
    const int64_t tiles = (a->np + KR_DECODE_TILE - 1) / KR_DECODE_TILE;
    double squares = 0;
    for (int64_t p = 0; p < a->np; p++) {
        const double x = kr_ref_at(&a->x, row, h * a->np + p);
        const real weight = (real)(dt * x);
        const pending_tokens pending = pending_of(a, head, p);
        double y = x * (!d ? 0 : (double)d[a->d_per_dim ? h * a->np + p : h]);
        y += update_row(a, head, p, &pending, decay, weight);
        store_record(a, head, p, &pending, decay, weight);
        if (a->z.data) {
            y *= silu(kr_ref_at(&a->z, row, h * a->np + p));
            squares = (p % KR_DECODE_TILE ? squares : 0) + y * y;
            if (a->squares) ((real *)a->squares)[head * tiles + p / KR_DECODE_TILE] = (real)squares;
            if (a->gain) y *= (double)((const real *)a->gain)[h * a->np + p];
        }
        kr_ref_put(&a->y, row, h * a->np + p, y);
    }
}

void KR_REF(decode_ssd)(const kr_decode_ssd_args *a)
{
    kr_decode_ssd_args args = *a;
    kr_pool_run(a->exec.pool, a->nb * a->nh, a->x.data ? ssd_task : flush_task, &args);
}
