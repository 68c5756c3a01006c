/* tasks.c - sequences and labels of the tasks over a reset and two other symbols. */
#include "lab/tasks.h"

enum { TASK_KINDS = 4, MOST_FAMILIES = 4, A5_ORDER = 60, A5_LENGTH = 13, LENGTH = 32, LEAST_LENGTH = 12 };

static const struct {
    const char *name;
    int nclass, nfamily;
    const char *families[MOST_FAMILIES];
} tasks[TASK_KINDS] = {
    [LAB_TASK_MAJORITY] = { "majority", 2, 4, { "random", "long-prefix", "long-suffix", "mixed" } },
    [LAB_TASK_ROTOR] = { "rotor", 3, 4, { "random", "drift", "balanced", "mixed" } },
    [LAB_TASK_SPINOR] = { "spinor", 8, 4, { "random", "shuffle", "runs", "mixed" } },
    [LAB_TASK_A5] = { "a5", A5_ORDER, 1, { "random" } },
};

static bool is_task(lab_task_kind kind)
{
    return (unsigned)kind < TASK_KINDS;
}

lab_task lab_task_of(lab_task_kind kind)
{
    const bool is_a5 = kind == LAB_TASK_A5;
    return (lab_task){ .kind = kind,
                       .family = is_a5 ? 0 : LAB_TASK_MIXED,
                       .length = is_a5 ? A5_LENGTH : LENGTH,
                       .seed = LAB_TASK_TRAIN_SEED };
}

const char *lab_task_name(lab_task_kind kind)
{
    return is_task(kind) ? tasks[kind].name : NULL;
}

int lab_task_families(lab_task_kind kind)
{
    return is_task(kind) ? tasks[kind].nfamily : 0;
}

const char *lab_task_family(lab_task_kind kind, int family)
{
    return family >= 0 && family < lab_task_families(kind) ? tasks[kind].families[family] : NULL;
}

int lab_task_classes(lab_task_kind kind)
{
    return is_task(kind) ? tasks[kind].nclass : 0;
}

/* ---- random numbers ---- */

uint64_t lab_splitmix64(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static int64_t below(uint64_t *state, int64_t n)
{
    return (int64_t)(lab_splitmix64(state) % (uint64_t)n);
}

/* A row being written. `even` is the symbol for even random numbers. */
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

/* A reset with probability 1/8, and the other symbols by the parity of the same random number. */
static void fill_random(row *r)
{
    while (r->n < r->ns) {
        const int64_t draw = below(r->state, 8);
        put(r, 1, draw == 0 ? LAB_TASK_RESET : draw % 2 == 0 ? r->even : other(r->even));
    }
}

/* A long run that a reset invalidates, then a close majority of the other sign: remembering too much fails. */
static void fill_long_prefix(row *r)
{
    const int64_t quarter = r->ns / 4 > 1 ? r->ns / 4 : 1, tail = 5 + 2 * below(r->state, quarter);
    const int32_t run = coin(r);
    put(r, r->ns - 1 - tail, run);
    put(r, 1, LAB_TASK_RESET);
    put(r, tail / 2 + 1, other(run));
    put(r, tail / 2, run);
}

/* An early majority that outweighs almost as many late ones: remembering too little fails. */
static void fill_long_suffix(row *r)
{
    const int64_t nfirst = 1 + below(r->state, 3);
    for (int64_t i = 0; i < nfirst; i++) put(r, 1, coin(r));
    const int32_t early = coin(r);
    put(r, 1, LAB_TASK_RESET);
    const int64_t left = r->ns - r->n;
    put(r, left - (left - 1) / 2, early);
    put(r, (left - 1) / 2, other(early));
}

static void fill_reset_random(row *r)
{
    put(r, 1, LAB_TASK_RESET);
    fill_random(r);
}

/* Seven of eight steps in one direction. */
static void fill_drift(row *r)
{
    put(r, 1, LAB_TASK_RESET);
    const int32_t direction = coin(r);
    while (r->n < r->ns) put(r, 1, below(r->state, 8) == 0 ? other(direction) : direction);
}

/* Equal numbers of both, shuffled. */
static void fill_shuffled(row *r)
{
    put(r, 1, LAB_TASK_RESET);
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

/* Alternating runs of three to eight. */
static void fill_runs(row *r)
{
    put(r, 1, LAB_TASK_RESET);
    for (int32_t symbol = coin(r); r->n < r->ns; symbol = other(symbol)) put(r, 3 + below(r->state, 6), symbol);
}

/* The anchor, then a random sequence of the two. */
static void fill_word(row *r)
{
    put(r, 1, LAB_TASK_RESET);
    while (r->n < r->ns) put(r, 1, coin(r));
}

static void fill(row *r, lab_task_kind kind, int family)
{
    static void (*const fills[TASK_KINDS][LAB_TASK_MIXED])(row *) = {
        [LAB_TASK_MAJORITY] = { fill_random, fill_long_prefix, fill_long_suffix },
        [LAB_TASK_ROTOR] = { fill_reset_random, fill_drift, fill_shuffled },
        [LAB_TASK_SPINOR] = { fill_reset_random, fill_shuffled, fill_runs },
        [LAB_TASK_A5] = { fill_word },
    };
    if (family == LAB_TASK_MIXED) {
        const int64_t draw = below(r->state, 4);
        family = draw == 0 ? 1 : draw == 1 ? 2 : 0;
    }
    fills[kind][family](r);
}

/* ---- labels ---- */

int lab_q8_product(int left, int right)
{
    static const int of_units[4][4] = { { 0, 1, 2, 3 }, { 1, 4, 3, 6 }, { 2, 7, 4, 1 }, { 3, 2, 5, 4 } };
    return of_units[left % 4][right % 4] ^ ((left ^ right) & 4);
}

void lab_q8_quaternion(int q8, double quaternion[4])
{
    for (int i = 0; i < 4; i++) quaternion[i] = i != q8 % 4 ? 0 : q8 < 4 ? 1 : -1;
}

/* A permutation of five: the image of each position. */
typedef struct permutation {
    int32_t to[5];
} permutation;

static permutation after(const permutation *newest, const permutation *p)
{
    permutation product;
    for (int i = 0; i < 5; i++) product.to[i] = newest->to[p->to[i]];
    return product;
}

/* Ranks in lexicographic order among all 120 come in pairs that differ by a swap of the last two: one of each pair is
 * even. */
static int32_t place_among_even(const permutation *p)
{
    int32_t place = 0;
    for (int i = 0; i < 5; i++) {
        int32_t smaller_after = 0;
        for (int j = i + 1; j < 5; j++) smaller_after += p->to[j] < p->to[i];
        place = place * (5 - i) + smaller_after;
    }
    return place / 2;
}

static void label_a5(const int32_t *symbols, int64_t ns, int32_t *labels)
{
    static const permutation generators[2] = { { { 1, 2, 3, 4, 0 } }, { { 1, 2, 0, 3, 4 } } };
    static const permutation identity = { { 0, 1, 2, 3, 4 } };
    permutation product = identity;
    for (int64_t s = 0; s < ns; s++) {
        product = symbols[s] == LAB_TASK_RESET ? identity : after(&generators[symbols[s]], &product);
        labels[s] = place_among_even(&product);
    }
}

static void label(lab_task_kind kind, const int32_t *symbols, int64_t ns, int32_t *labels)
{
    int32_t count = 0, product = 0;
    if (kind == LAB_TASK_A5) label_a5(symbols, ns, labels);
    for (int64_t s = 0; s < ns && kind != LAB_TASK_A5; s++) {
        const bool reset = symbols[s] == LAB_TASK_RESET;
        count = reset ? 0 : count + (symbols[s] == 1 ? 1 : -1);
        product = reset ? 0 : lab_q8_product(1 + symbols[s], product);
        switch (kind) {
        case LAB_TASK_MAJORITY: labels[s] = count == 0 ? KR_NOT_SCORED : count > 0; break;
        case LAB_TASK_ROTOR: labels[s] = (count % 3 + 3) % 3; break;
        default: labels[s] = product;
        }
    }
}

/* ---- sets ---- */

kr_status lab_task_fill(const lab_task *task, int64_t n_rows, int32_t *symbols, int32_t *labels)
{
    if (!task || n_rows < 0 || !symbols || !labels || !lab_task_family(task->kind, task->family) ||
        task->length < (task->kind == LAB_TASK_A5 ? 1 : LEAST_LENGTH))
        return KR_ERR_ARG;
    uint64_t state = task->seed;
    const int64_t ns = task->length;
    const bool is_even_first = task->kind == LAB_TASK_SPINOR || task->kind == LAB_TASK_A5;
    for (int64_t b = 0; b < n_rows; b++) {
        row r = { .state = &state, .symbols = symbols + b * ns, .ns = ns, .even = is_even_first ? 0 : 1 };
        fill(&r, task->kind, task->family);
        label(task->kind, r.symbols, ns, labels + b * ns);
    }
    return KR_OK;
}
