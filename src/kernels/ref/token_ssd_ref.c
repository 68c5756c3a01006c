/* token_ssd_ref.c - one token of Mamba-2's state space core, in place; tokens that a state owes.
 *
 *   H <- e^da H + s x (outer) B,  y = H C + D x
 * Formulas: kernels/token_args.h.
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_silu.h"

#include <math.h>
#include <string.h>

static double softplus(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

/* A token on an element of H, rounded as it is stored. */
static real stepped(real h, real decay, real weight, real b)
{
    return (real)((double)decay * (double)h + (double)weight * (double)b);
}

/* What KR_TOKEN_TILE rows p of a head owe. */
typedef struct debt {
    real *record;     /* NULL: nothing is owed here */
    real *b;          /* of the group */
    int64_t t, count; /* tokens that came; of which the last `count` are owed */
    bool is_due;      /* H is written */
} debt;

static debt debt_of(const kr_token_ssd_args *a, int64_t head, int64_t p)
{
    if (!a->owed) return (debt){ .is_due = true };
    const kr_owed_parts parts = kr_owed_parts_of(a->nh, a->np, a->ng, a->nr);
    const int64_t h = head % a->nh;
    real *row = (real *)a->owed + head / a->nh * parts.row;
    debt owes = { row + (h * parts.tiles + p / KR_TOKEN_TILE) * KR_OWED_RECORD,
                  row + parts.b + h / (a->nh / a->ng) * KR_OWED_TOKENS * a->nr, 0, 0, false };
    owes.t = (int64_t)owes.record[KR_OWED_COUNT];
    const int64_t tile = head * parts.tiles + p / KR_TOKEN_TILE, due = (owes.t + KR_OWED_TURN(tile)) % KR_OWED_TOKENS;
    owes.count = owes.t < due ? owes.t : due;
    owes.is_due = !a->x || due == KR_OWED_TOKENS - 1;
    return owes;
}

/* An element of H with the tokens that it was owed. */
static real without_debt(real h, const debt *owes, int64_t p, int64_t r, int64_t nr)
{
    for (int64_t i = owes->t - owes->count; i < owes->t; i++) {
        const int64_t place = i % KR_OWED_TOKENS;
        h = stepped(h, owes->record[KR_OWED_DECAY + place], owes->record[place * KR_TOKEN_TILE + p % KR_TOKEN_TILE],
                    owes->b[place * nr + r]);
    }
    return h;
}

static void settle_task(void *arg, int64_t head, int worker)
{
    (void)worker;
    const kr_token_ssd_args *a = arg;
    for (int64_t p = 0; p < a->np; p++) {
        const debt owes = debt_of(a, head, p);
        real *state = (real *)a->state + (head * a->np + p) * a->nr;
        for (int64_t r = 0; r < a->nr; r++) state[r] = without_debt(state[r], &owes, p, r, a->nr);
        if (p % KR_TOKEN_TILE == KR_TOKEN_TILE - 1 || p == a->np - 1) owes.record[KR_OWED_COUNT] = 0;
    }
}

/* The token that comes is kept: the weight of row p, with the last one of a tile its decay and the count, and with the
 * first row of the group its B. */
static void keep(const kr_token_ssd_args *a, int64_t head, int64_t p, const debt *owes, real decay, real weight,
                 const real *b)
{
    if (!owes->record) return;
    const int64_t place = owes->t % KR_OWED_TOKENS;
    owes->record[place * KR_TOKEN_TILE + p % KR_TOKEN_TILE] = weight;
    if (head % a->nh % (a->nh / a->ng) == 0 && p == 0) memcpy(owes->b + place * a->nr, b, (size_t)a->nr * sizeof *b);
    if (p % KR_TOKEN_TILE != KR_TOKEN_TILE - 1 && p != a->np - 1) return;
    owes->record[KR_OWED_DECAY + place] = decay;
    owes->record[KR_OWED_COUNT] = (real)(owes->t + 1 < 2 * KR_OWED_TOKENS ? owes->t + 1 : KR_OWED_TOKENS);
}

/* The sum over r of H C, of row p, with the token that comes. */
static double advance_row(const kr_token_ssd_args *a, int64_t head, int64_t p, const debt *owes, real decay,
                          real weight, const real *b, const real *c)
{
    real *state = (real *)a->state + (head * a->np + p) * a->nr;
    double sum = 0;
    for (int64_t r = 0; r < a->nr; r++) {
        const real now = stepped(without_debt(state[r], owes, p, r, a->nr), decay, weight, b[r]);
        if (owes->is_due) state[r] = now;
        sum += (double)now * (double)c[r];
    }
    return sum;
}

static void ssd_task(void *arg, int64_t head, int worker)
{
    (void)worker;
    const kr_token_ssd_args *a = arg;
    const int64_t row = head / a->nh, h = head % a->nh, from = row * a->stride, e = h / (a->nh / a->ng);
    const real *x = (const real *)a->x + from + h * a->np, *b = (const real *)a->b + from + e * a->nr,
               *c = (const real *)a->c + from + e * a->nr, *d = a->d;
    const double raw = (double)((const real *)a->dt)[from + h] + (double)((const real *)a->dt_bias)[h];
    const double dt = fmin(fmax(softplus(raw), (double)(real)a->dt_min), (double)(real)a->dt_max);
    const real decay = (real)exp(-dt * exp((double)((const real *)a->a_log)[h]));
    const int64_t tiles = (a->np + KR_TOKEN_TILE - 1) / KR_TOKEN_TILE;
    double squares = 0;
    for (int64_t p = 0; p < a->np; p++) {
        const real weight = (real)(dt * (double)x[p]);
        const debt owes = debt_of(a, head, p);
        double y = (double)x[p] * (!d ? 0 : (double)d[a->d_per_dim ? h * a->np + p : h]);
        y += advance_row(a, head, p, &owes, decay, weight, b, c);
        keep(a, head, p, &owes, decay, weight, b);
        if (a->z) {
            y *= silu((double)((const real *)a->z)[from + h * a->np + p]);
            squares = (p % KR_TOKEN_TILE ? squares : 0) + y * y;
            if (a->squares) ((real *)a->squares)[head * tiles + p / KR_TOKEN_TILE] = (real)squares;
            if (a->gain) y *= (double)((const real *)a->gain)[h * a->np + p];
        }
        ((real *)a->y)[row * a->y_stride + h * a->np + p] = (real)y;
    }
}

void KR_REF(token_ssd)(const kr_token_ssd_args *a)
{
    kr_token_ssd_args own = *a;
    kr_pool_run(a->exec.pool, a->nb * a->nh, a->x ? ssd_task : settle_task, &own);
}
