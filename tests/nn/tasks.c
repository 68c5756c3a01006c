/* tasks.c - sequences and targets of the reset tasks. */
#include "tests/nn/tasks.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int nclass;
    const char *families[TASK_FAMILIES];
} tasks[TASK_KINDS] = {
    [TASK_MAJORITY] = { "majority", 2, { "random", "long-prefix", "long-suffix", "mixed" } },
    [TASK_ROTOR] = { "rotor", 3, { "random", "drift", "balanced", "mixed" } },
    [TASK_SPINOR] = { "spinor", 8, { "random", "shuffle", "runs", "mixed" } },
};

const char *task_name(task_kind task)
{
    return tasks[task].name;
}

const char *task_family_name(task_kind task, int family)
{
    return tasks[task].families[family];
}

int task_classes(task_kind task)
{
    return tasks[task].nclass;
}

/* ---- draws ---- */

uint64_t task_splitmix64(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static int64_t below(uint64_t *state, int64_t n)
{
    return (int64_t)(task_splitmix64(state) % (uint64_t)n);
}

/* A row that is being written. `even` is the symbol that even draws stand for. */
typedef struct row {
    uint64_t *state;
    int32_t *symbols;
    int64_t n, ns;
    int32_t even;
} row;

static int32_t other(int32_t symbol)
{
    return 1 - symbol;
}

static int32_t coin(row *r)
{
    return below(r->state, 2) == 0 ? r->even : other(r->even);
}

static void put(row *r, int64_t count, int32_t symbol)
{
    for (int64_t i = 0; i < count && r->n < r->ns; i++) r->symbols[r->n++] = symbol;
}

/* ---- families ---- */

/* A reset one time in eight, and the other symbols by the parity of the same draw. */
static void fill_random(row *r)
{
    while (r->n < r->ns) {
        const int64_t draw = below(r->state, 8);
        put(r, 1, draw == 0 ? TASK_RESET : draw % 2 == 0 ? r->even : other(r->even));
    }
}

/* A long run that a reset makes void, then a close majority of the other sign: remembering too much fails. */
static void fill_long_prefix(row *r)
{
    const int64_t quarter = r->ns / 4 > 1 ? r->ns / 4 : 1, tail = 5 + 2 * below(r->state, quarter);
    const int32_t run = coin(r);
    put(r, r->ns - 1 - tail, run);
    put(r, 1, TASK_RESET);
    put(r, tail / 2 + 1, other(run));
    put(r, tail / 2, run);
}

/* An early majority that outlives as many late ones, less one or two: remembering too little fails. */
static void fill_long_suffix(row *r)
{
    const int64_t nfirst = 1 + below(r->state, 3);
    for (int64_t i = 0; i < nfirst; i++) put(r, 1, coin(r));
    const int32_t early = coin(r);
    put(r, 1, TASK_RESET);
    const int64_t left = r->ns - r->n;
    put(r, left - (left - 1) / 2, early);
    put(r, (left - 1) / 2, other(early));
}

static void fill_reset_random(row *r)
{
    put(r, 1, TASK_RESET);
    fill_random(r);
}

/* Seven steps of eight in one direction. */
static void fill_drift(row *r)
{
    put(r, 1, TASK_RESET);
    const int32_t direction = coin(r);
    while (r->n < r->ns) put(r, 1, below(r->state, 8) == 0 ? other(direction) : direction);
}

/* As many of the one as of the other, shuffled. */
static void fill_shuffled(row *r)
{
    put(r, 1, TASK_RESET);
    int32_t *bag = r->symbols + r->n;
    const int64_t count = r->ns - r->n;
    put(r, (count + 1) / 2, r->even);
    put(r, count / 2, other(r->even));
    for (int64_t i = count - 1; i > 0; i--) {
        const int64_t j = below(r->state, i + 1);
        const int32_t symbol = bag[i];
        bag[i] = bag[j];
        bag[j] = symbol;
    }
}

/* The two by turns, three to eight times each. */
static void fill_runs(row *r)
{
    put(r, 1, TASK_RESET);
    for (int32_t symbol = coin(r); r->n < r->ns; symbol = other(symbol)) put(r, 3 + below(r->state, 6), symbol);
}

static void fill(row *r, task_kind task, int family)
{
    static void (*const fills[TASK_KINDS][TASK_MIXED])(row *) = {
        [TASK_MAJORITY] = { fill_random, fill_long_prefix, fill_long_suffix },
        [TASK_ROTOR] = { fill_reset_random, fill_drift, fill_shuffled },
        [TASK_SPINOR] = { fill_reset_random, fill_shuffled, fill_runs },
    };
    if (family == TASK_MIXED) {
        const int64_t draw = below(r->state, 4);
        family = draw == 0 ? 1 : draw == 1 ? 2 : 0;
    }
    fills[task][family](r);
}

/* ---- targets ---- */

int task_q8_product(int left, int right)
{
    static const int of_units[4][4] = { { 0, 1, 2, 3 }, { 1, 4, 3, 6 }, { 2, 7, 4, 1 }, { 3, 2, 5, 4 } };
    return of_units[left % 4][right % 4] ^ ((left ^ right) & 4);
}

void task_q8_quaternion(int q8, double quaternion[4])
{
    for (int i = 0; i < 4; i++) quaternion[i] = i != q8 % 4 ? 0 : q8 < 4 ? 1 : -1;
}

static void set_targets(task_kind task, const int32_t *symbols, int64_t ns, int32_t *targets)
{
    int32_t count = 0, product = 0;
    for (int64_t s = 0; s < ns; s++) {
        const bool resets = symbols[s] == TASK_RESET;
        count = resets ? 0 : count + (symbols[s] == 1 ? 1 : -1);
        product = resets ? 0 : task_q8_product(1 + symbols[s], product);
        switch (task) {
        case TASK_MAJORITY: targets[s] = count == 0 ? TASK_NOT_SCORED : count > 0; break;
        case TASK_ROTOR: targets[s] = (count % 3 + 3) % 3; break;
        default: targets[s] = product;
        }
    }
}

/* ---- sets ---- */

task_data task_make(task_kind task, int family, uint64_t seed, int64_t nb, int64_t ns)
{
    task_data data = { .task = task, .family = family, .nb = nb, .ns = ns };
    data.symbol_bs = malloc((size_t)(nb * ns) * sizeof *data.symbol_bs);
    data.target_bs = malloc((size_t)(nb * ns) * sizeof *data.target_bs);
    if (!data.symbol_bs || !data.target_bs) abort();
    for (int64_t b = 0; b < nb; b++) {
        row r = { .state = &seed, .symbols = data.symbol_bs + b * ns, .ns = ns, .even = task == TASK_SPINOR ? 0 : 1 };
        fill(&r, task, family);
        set_targets(task, r.symbols, ns, data.target_bs + b * ns);
    }
    return data;
}

void task_free(task_data *data)
{
    free(data->symbol_bs);
    free(data->target_bs);
    memset(data, 0, sizeof *data);
}
