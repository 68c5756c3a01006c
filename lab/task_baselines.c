/* task_baselines.c - optimal tables, and optimal states that are weaker than a task needs.
 *
 * A table predicts the most frequent class for a key: the symbol, the counts of symbols since the last reset, and so
 * on. It is fitted to the evaluation rows, and so is an upper bound for every predictor that sees the key only; tables
 * with many keys, which would memorise such rows, are fitted to the training rows of the same family.
 */
#include "lab/task_baselines.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CLASSES = 64, N_DECAYS = 10, N_GAINS = 6, N_TURNS = 24, N_OFFSETS = 6, MOST_WORD = 20 };

/* ---- rows ---- */

typedef struct rows {
    int nclass;
    int64_t nb, ns;
    int32_t *symbol_bs, *label_bs;
} rows;

static bool make_rows(rows *r, const lab_task *task, int64_t nb)
{
    const size_t bytes = (size_t)nb * (size_t)task->length * sizeof *r->symbol_bs;
    *r = (rows){ lab_task_classes(task->kind), nb, task->length, malloc(bytes), malloc(bytes) };
    return r->symbol_bs && r->label_bs && lab_task_fill(task, nb, r->symbol_bs, r->label_bs) == KR_OK;
}

static void free_rows(rows *r)
{
    free(r->symbol_bs);
    free(r->label_bs);
}

/* ---- keys ---- */

/* The information about a row up to a position. */
typedef struct seen {
    int32_t symbol;
    int64_t steps; /* since the last reset, or from 1 on without one */
    int64_t n[2];  /* of either symbol, since then */
    int64_t word;  /* the symbols since then, as binary digits */
} seen;

static void see(seen *at, int32_t symbol)
{
    if (symbol == LAB_TASK_RESET) {
        *at = (seen){ .symbol = symbol };
        return;
    }
    at->symbol = symbol;
    at->steps++;
    at->n[symbol]++;
    at->word = (at->word * 2 + symbol) & ((1 << MOST_WORD) - 1);
}

/* A key below n_keys(ns), of rows of ns symbols. */
typedef struct key_kind {
    const char *what;
    int64_t (*key)(const seen *at, int64_t ns);
    int64_t (*n_keys)(int64_t ns);
    bool uses_training_rows; /* fitted to training rows */
} key_kind;

static int64_t symbol_key(const seen *at, int64_t ns)
{
    (void)ns;
    return at->symbol;
}

static int64_t symbol_keys(int64_t ns)
{
    (void)ns;
    return LAB_TASK_SYMBOLS;
}

static int64_t steps_key(const seen *at, int64_t ns)
{
    return at->symbol * (ns + 1) + at->steps;
}

static int64_t steps_keys(int64_t ns)
{
    return LAB_TASK_SYMBOLS * (ns + 1);
}

static int64_t counts_key(const seen *at, int64_t ns)
{
    return at->n[0] * (ns + 1) + at->n[1];
}

static int64_t counts_keys(int64_t ns)
{
    return (ns + 1) * (ns + 1);
}

/* Q8 made commutative: whether i and j occurred an odd number of times. */
static int64_t parity_key(const seen *at, int64_t ns)
{
    (void)ns;
    return at->n[0] % 2 * 2 + at->n[1] % 2;
}

static int64_t parity_keys(int64_t ns)
{
    (void)ns;
    return 4;
}

/* Words of n symbols are numbered after all shorter ones. */
static int64_t word_key(const seen *at, int64_t ns)
{
    (void)ns;
    return ((int64_t)1 << at->steps) - 1 + at->word;
}

static int64_t word_keys(int64_t ns)
{
    return (int64_t)2 << ns;
}

static const key_kind by_symbol = { "lookup by symbol", symbol_key, symbol_keys, false },
                      by_steps = { "lookup by symbol and steps since R", steps_key, steps_keys, false },
                      by_counts = { "lookup by counts since R", counts_key, counts_keys, true },
                      by_parity = { "best readout of an abelian state", parity_key, parity_keys, false },
                      by_word = { "lookup by all symbols since R", word_key, word_keys, true };

/* ---- tables ---- */

/* Adds the labels of all positions to seen_kc. */
static void count_labels(const rows *r, const key_kind *kind, int64_t *seen_kc)
{
    for (int64_t b = 0; b < r->nb; b++) {
        seen at = { 0 };
        for (int64_t i = b * r->ns; i < (b + 1) * r->ns; i++) {
            see(&at, r->symbol_bs[i]);
            if (r->label_bs[i] != KR_NOT_SCORED) seen_kc[kind->key(&at, r->ns) * r->nclass + r->label_bs[i]]++;
        }
    }
}

static int64_t most_frequent(const int64_t *count_c, int nclass)
{
    int64_t best = 0;
    for (int c = 1; c < nclass; c++)
        if (count_c[c] > count_c[best]) best = c;
    return best;
}

static double percent_of(int64_t right, int64_t scored)
{
    return scored ? 100 * (double)right / (double)scored : NAN;
}

/* Percent right; NaN if out of memory. */
static double table_accuracy(const rows *fit, const rows *eval, const key_kind *kind)
{
    int64_t *seen_kc = calloc((size_t)(kind->n_keys(eval->ns) * eval->nclass), sizeof *seen_kc);
    int64_t right = 0, scored = 0;
    if (!seen_kc) return NAN;
    count_labels(fit, kind, seen_kc);
    for (int64_t b = 0; b < eval->nb; b++) {
        seen at = { 0 };
        for (int64_t i = b * eval->ns; i < (b + 1) * eval->ns; i++) {
            see(&at, eval->symbol_bs[i]);
            if (eval->label_bs[i] == KR_NOT_SCORED) continue;
            scored++;
            const int64_t *count_c = seen_kc + kind->key(&at, eval->ns) * eval->nclass;
            right += most_frequent(count_c, eval->nclass) == eval->label_bs[i];
        }
    }
    free(seen_kc);
    return percent_of(right, scored);
}

/* ---- majority: counters with a constant decay ---- */

static const double decays[N_DECAYS] = { 0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1 },
                    gains[N_GAINS] = { 0, 0.25, 0.5, 1, 2, 4 };

/* Percent right by the sign of h_t + gain x_t, h_t = decay h_{t-1} + x_t; x is -1, 1, and 0 for a reset. */
static double counter_accuracy(const rows *r, double decay, double gain)
{
    int64_t right = 0, scored = 0;
    double h = 0;
    for (int64_t i = 0; i < r->nb * r->ns; i++) {
        const double x = r->symbol_bs[i] == LAB_TASK_RESET ? 0 : 2 * r->symbol_bs[i] - 1;
        h = (i % r->ns ? decay * h : 0) + x;
        if (r->label_bs[i] == KR_NOT_SCORED) continue;
        scored++;
        right += r->label_bs[i] == (h + gain * x > 0);
    }
    return percent_of(right, scored);
}

/* The best for each family separately, and the one with the best minimum over the three. */
static void decay_baselines(const rows *eval, int nfamily, double *of_each, double *of_one)
{
    double best_worst = -1;
    for (int i = 0; i < N_DECAYS * N_GAINS; i++) {
        double percent[TASK_MOST_FAMILIES] = { 0 }, worst = 100;
        for (int f = 0; f < nfamily; f++) {
            percent[f] = counter_accuracy(&eval[f], decays[i / N_GAINS], gains[i % N_GAINS]);
            of_each[f] = i ? fmax(of_each[f], percent[f]) : percent[f];
            if (f < TASK_FIGURES) worst = fmin(worst, percent[f]);
        }
        if (worst <= best_worst) continue;
        best_worst = worst;
        memcpy(of_one, percent, sizeof percent);
    }
}

/* ---- rotor: states whose rotation does not depend on the symbol ---- */

/* Each reset sets an anchor, which every other symbol rotates by the same angle; predicts the nearest third of a
 * rotation. */
static double rotary_accuracy(const rows *r, double rotation, double offset)
{
    int64_t right = 0, steps = 0;
    for (int64_t i = 0; i < r->nb * r->ns; i++) {
        steps = r->symbol_bs[i] == LAB_TASK_RESET ? 0 : steps + 1;
        const int64_t third = (int64_t)floor(3 * (rotation * (double)steps + offset) + 0.5);
        right += r->label_bs[i] == (third % 3 + 3) % 3;
    }
    return percent_of(right, r->nb * r->ns);
}

static double best_rotary(const rows *r)
{
    double best = 0;
    for (int i = 0; i < N_TURNS * N_OFFSETS; i++)
        best = fmax(best,
                    rotary_accuracy(r, (double)(i / N_OFFSETS) / N_TURNS, (double)(i % N_OFFSETS) / (3 * N_OFFSETS)));
    return best;
}

typedef struct reading {
    double h;
    int32_t label;
} reading;

static int by_h(const void *a, const void *b)
{
    const double x = ((const reading *)a)->h, y = ((const reading *)b)->h;
    return (x > y) - (x < y);
}

/* The most right predictions when the line is split into three intervals, one for each class in the order given; never
 * between two readings that are equal up to rounding. */
static int64_t right_of_intervals(const reading *sorted, int64_t count, const int *order)
{
    int64_t right[3] = { 0, 0, 0 }; /* up to here, with the end in the first, second, third interval */
    for (int64_t i = 0; i < count; i++) {
        if (i == 0 || sorted[i].h - sorted[i - 1].h > 1e-9)
            for (int q = 1; q < 3; q++)
                if (right[q - 1] > right[q]) right[q] = right[q - 1];
        for (int q = 0; q < 3; q++) right[q] += sorted[i].label == order[q];
    }
    const int64_t most = right[0] > right[1] ? right[0] : right[1];
    return most > right[2] ? most : right[2];
}

/* A counter with decay, cleared by a reset, with the best split into three intervals; NaN if out of memory. */
static double counter_without_rotation(const rows *r, double decay)
{
    static const int orders[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 }, { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };
    const int64_t count = r->nb * r->ns;
    reading *readings = malloc((size_t)count * sizeof *readings);
    int64_t best = 0;
    double h = 0;
    if (!readings) return NAN;
    for (int64_t i = 0; i < count; i++) {
        h = r->symbol_bs[i] == LAB_TASK_RESET ? 0 : decay * h + 2 * r->symbol_bs[i] - 1;
        readings[i] = (reading){ h, r->label_bs[i] };
    }
    qsort(readings, (size_t)count, sizeof *readings, by_h);
    for (int i = 0; i < 6; i++) {
        const int64_t right = right_of_intervals(readings, count, orders[i]);
        if (right > best) best = right;
    }
    free(readings);
    return percent_of(best, count);
}

/* The decay with the best minimum over the three families. */
static void rotation_free_baseline(const rows *eval, int nfamily, double *of_one)
{
    double best_worst = -1;
    for (int i = 0; i < N_DECAYS; i++) {
        double percent[TASK_MOST_FAMILIES] = { 0 }, worst = 100;
        for (int f = 0; f < nfamily; f++) {
            percent[f] = counter_without_rotation(&eval[f], decays[i]);
            if (f < TASK_FIGURES) worst = fmin(worst, percent[f]);
        }
        if (worst <= best_worst) continue;
        best_worst = worst;
        memcpy(of_one, percent, sizeof percent);
    }
}

/* ---- by task ---- */

typedef struct listing {
    int count, nfamily;
    const rows *eval, *train;
    task_baseline *list;
} listing;

static task_baseline *add(listing *l, const char *what, double a, double b, double c, const char *remark)
{
    task_baseline *baseline = &l->list[l->count++];
    *baseline = (task_baseline){ .here = { .what = what }, .of_reference = { a, b, c }, .remark = remark };
    return baseline;
}

static void add_table(listing *l, const key_kind *kind, double a, double b, double c, const char *remark)
{
    task_baseline *baseline = add(l, kind->what, a, b, c, remark);
    for (int f = 0; f < l->nfamily; f++)
        baseline->here.percent[f] =
            table_accuracy(kind->uses_training_rows ? &l->train[f] : &l->eval[f], &l->eval[f], kind);
}

static void list_majority(listing *l)
{
    add_table(l, &by_symbol, 77.3, 82.3, 55.2, NULL);
    task_baseline *each = add(l, "best fixed decay, of each family", 85.9, 82.6, 98.8,
                              "the reference does not state its 10 decays and 6 gains");
    task_baseline *one =
        add(l, "one fixed decay for all three", NAN, NAN, NAN, "the reference: less than 71 in the worst family");
    decay_baselines(l->eval, l->nfamily, each->here.percent, one->here.percent);
}

static void list_rotor(listing *l)
{
    add_table(l, &by_symbol, 49.1, 36.5, 37.4, NULL);
    add_table(l, &by_steps, 59.0, 46.5, 46.0, NULL);
    task_baseline *rotary =
        add(l, "the same rotation for every symbol", 51.8, 40.7, 42.1, "the reference does not state its angles");
    for (int f = 0; f < l->nfamily; f++) rotary->here.percent[f] = best_rotary(&l->eval[f]);
    task_baseline *still = add(l, "a counter without rotation", 59.5, 37.4, 41.9,
                               "the reference states neither its decays nor its readout");
    rotation_free_baseline(l->eval, l->nfamily, still->here.percent);
}

static void list_spinor(listing *l)
{
    add_table(l, &by_symbol, 34.2, 17.4, 18.7, NULL);
    add_table(l, &by_parity, 59.8, 51.8, 52.7, "the reference does not state its readout");
    add_table(l, &by_counts, 71.4, 55.8, 77.1, NULL);
}

static void list_tracking(listing *l)
{
    task_baseline *chance = add(l, "chance", NAN, NAN, NAN, NULL);
    for (int f = 0; f < l->nfamily; f++) chance->here.percent[f] = 100.0 / l->eval[f].nclass;
    chance->of_reference[0] = 1.7;
    add_table(l, &by_symbol, NAN, NAN, NAN, NULL);
    add_table(l, &by_counts, NAN, NAN, NAN, NULL);
    if (l->eval->ns < MOST_WORD)
        add_table(l, &by_word, NAN, NAN, NAN, "memorised training rows; class 0 for all others");
}

int task_baselines(const task_spec *spec, const task_values *values, task_baseline list[TASK_MOST_BASELINES])
{
    rows eval[TASK_MOST_FAMILIES] = { { 0 } }, train[TASK_MOST_FAMILIES] = { { 0 } };
    listing l = { .nfamily = lab_task_families(spec->kind), .eval = eval, .train = train, .list = list };
    bool ok = true;
    for (int f = 0; f < l.nfamily; f++) {
        const lab_task of_eval = { spec->kind, f, values->length, LAB_TASK_EVAL_SEED },
                       of_train = { spec->kind, f, values->length, LAB_TASK_TRAIN_SEED };
        ok = ok && make_rows(&eval[f], &of_eval, values->eval_rows) && make_rows(&train[f], &of_train, values->rows);
    }
    if (ok) {
        switch (spec->kind) {
        case LAB_TASK_MAJORITY: list_majority(&l); break;
        case LAB_TASK_ROTOR: list_rotor(&l); break;
        case LAB_TASK_SPINOR: list_spinor(&l); break;
        default: list_tracking(&l);
        }
    } else {
        cli_complain(NULL, "%s: out of memory for %lld rows", spec->command->name, (long long)values->rows);
    }
    for (int f = 0; f < l.nfamily; f++) {
        free_rows(&eval[f]);
        free_rows(&train[f]);
    }
    return ok ? l.count : -1;
}
