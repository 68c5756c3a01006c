/* test_curves.c - metrics.csv as it should be and as it should not: values by name, buckets that lose no spike, and no
 * file that does harm. */
#define _POSIX_C_SOURCE 200809L
#include "cli/report/curves.h"
#include "tests/temp_folder.h"

#include <fcntl.h>

/* ---- files ---- */

static bool read_text(curves *c, const char *text, size_t bytes)
{
    write_image(in_folder("metrics.csv"), text, bytes);
    return curves_read(c, in_folder("metrics.csv"));
}

/* Complaints go nowhere until loud(). */
static int quiet(void)
{
    fflush(stderr);
    const int kept = dup(STDERR_FILENO), nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDERR_FILENO);
    close(nowhere);
    return kept;
}

static void loud(int kept)
{
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
}

/* ---- what a file says ---- */

typedef struct expected {
    const char *text;
    int64_t count, n_bad;
    double first_x, last_x, last, low, high; /* of loss */
} expected;

TEST(curves_read)
{
    static const expected files[] = {
        { "step,loss\n1,2.5\n2,1.5\n", 2, 0, 1, 2, 1.5, 1.5, 2.5 },
        { "loss,step\r\n2.5,10\r\n1.5,20\r\n", 2, 0, 10, 20, 1.5, 1.5, 2.5 },
        { "\xef\xbb\xbfstep,loss\n7,3\n", 1, 0, 7, 7, 3, 3, 3 },
        { " step , loss \n 7 , 3e0 \n", 1, 0, 7, 7, 3, 3, 3 },
        { "step,other,loss\n1,x,2\n2,,\n3,9,4\n", 2, 0, 1, 3, 4, 2, 4 },
        { "loss\n5\n6\n", 2, 0, 1, 2, 6, 5, 6 },
        { "step,loss\n1,nan\n2,inf\n3,-inf\n4,1e200\n5,8\n", 1, 4, 5, 5, 8, 8, 8 },
        { "step,loss\n1,4\nx,5\n,6\nnan,7\n2,8\n", 2, 0, 1, 2, 8, 4, 8 },
        { "step,loss\n1,4\n2,5,6,7,8\n3\n\n", 2, 0, 1, 2, 5, 4, 5 },
        { "step,loss,lr\n1,4,1\n2,3,0.00", 2, 0, 1, 2, 3, 3, 4 },
        { "step,loss\n1,4\n2,3.1", 1, 0, 1, 1, 4, 4, 4 },
        { "step,loss,loss\n1,4,5\n", 1, 0, 1, 1, 4, 4, 4 },
        { "step,loss\n1,-0x1p4\n2,1e-400\n", 2, 0, 1, 2, 0, -16, 0 },
    };
    begin_folder();
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const expected *e = &files[i];
        curves c;
        if (!CHECK(read_text(&c, e->text, strlen(e->text)), "file %zu cannot be read", i)) continue;
        const curve *loss = curves_find(&c, "loss");
        if (CHECK(loss, "file %zu has no loss", i))
            CHECK(loss->count == e->count && loss->n_bad == e->n_bad && loss->first_x == e->first_x &&
                      loss->last_x == e->last_x && loss->last == e->last && loss->low == e->low &&
                      loss->high == e->high,
                  "file %zu: %lld values, %lld bad, steps %g to %g, last %g, from %g to %g", i, (long long)loss->count,
                  (long long)loss->n_bad, loss->first_x, loss->last_x, loss->last, loss->low, loss->high);
        curves_free(&c);
    }
    end_folder();
}

TEST(curves_by_name)
{
    static const char text[] = "step,eval_accuracy_random,eval_accuracy_,accuracyx,lr\n1,0.5,1,1,\n";
    curves c;
    begin_folder();
    if (CHECK(read_text(&c, text, sizeof text - 1), "cannot be read")) {
        CHECK(curves_find(&c, "eval_accuracy_random"), "columns of tasks are taken");
        CHECK(!curves_find(&c, "eval_accuracy_") && !curves_find(&c, "accuracyx"), "others are not");
        CHECK(!curves_find(&c, "lr"), "a column without a value is none");
        curves_free(&c);
    }
    end_folder();
}

TEST(curves_refuse)
{
    static const char *const files[] = { "", "\n", "\n1,2\n", "a,b\n1,2\n", "\x7f\x45\x4c\x46\x02\x01", ",,,,\n" };
    curves c;
    begin_folder();
    const int kept = quiet();
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        CHECK(!read_text(&c, files[i], strlen(files[i])) && c.count == 0, "file %zu is read", i);
    CHECK(!curves_read(&c, in_folder("missing.csv")), "a missing file is read");
    CHECK(!curves_read(&c, folder), "a folder is read");
    loud(kept);
    end_folder();
}

/* More columns, longer names, lines and fields than are read; what is behind them counts as nothing. */
TEST(curves_large)
{
    enum { BYTES = 1 << 20 };
    char *text = malloc(BYTES);
    curves c;
    size_t n = (size_t)sprintf(text, "step,loss");
    for (int i = 0; i < 600; i++) n += (size_t)sprintf(text + n, ",eval_accuracy_%d", i);
    n += (size_t)sprintf(text + n, ",eval_accuracy_%0200d\n1,2", 0);
    for (int i = 0; i < 100000; i++) n += (size_t)sprintf(text + n, ",%d", i % 9);
    n += (size_t)sprintf(text + n, "\n2,");
    memset(text + n, '1', 300000);
    n += 300000;
    n += (size_t)sprintf(text + n, "\n3,4\n");
    begin_folder();
    if (CHECK(read_text(&c, text, n), "cannot be read")) {
        const curve *loss = curves_find(&c, "loss"), *other = curves_find(&c, "eval_accuracy_5");
        CHECK(c.count == CURVES_MOST, "%d columns", c.count);
        CHECK(loss && loss->count == 2 && loss->last == 4, "a number of 300000 digits is not a value");
        CHECK(other && other->last == 5, "values stand in their columns");
        curves_free(&c);
    }
    free(text);
    end_folder();
}

TEST(curves_numbers)
{
    static const char *const numbers[] = { "0",
                                           "-0",
                                           "1.5",
                                           "123456789012345",
                                           "1234567890123456789",
                                           "1e22",
                                           "1e23",
                                           "3.25e-7",
                                           "0.1",
                                           "99.999999999999999999",
                                           "1e-300",
                                           "1e+05",
                                           ".5",
                                           "5.",
                                           "  7 ",
                                           "0x10",
                                           "1e0001",
                                           "-1.25e3",
                                           "4.9e-324",
                                           "0.000000123456789" };
    static const char *const others[] = { "",      " ",   "-",   ".",   "e5", "1e", "1e+",
                                          "1.2.3", "1,5", "1 2", "abc", "1x", "--1" };
    double value;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        CHECK(curves_number(numbers[i], &value) && value == strtod(numbers[i], NULL), "%s: %.17g", numbers[i], value);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        CHECK(!curves_number(others[i], &value), "'%s' is not a number", others[i]);
    for (int i = 0; i < 20000; i++) { /* the quick way and strtod agree to the bit */
        char text[40];
        snprintf(text, sizeof text, "%.9g", kr_test_normal() * pow(10, kr_test_uniform(-30, 30)));
        CHECK(curves_number(text, &value) && value == strtod(text, NULL), "%s: %.17g", text, value);
    }
    CHECK(curves_number("nan", &value) && isnan(value) && curves_number("-inf", &value) && isinf(value),
          "NaN and -inf");
}

/* ---- buckets ---- */

TEST(curves_keep_spikes)
{
    const int64_t counts[] = { 1, 2, 1023, 1024, 1025, 2048, 2049, 100000, kr_test_quick() ? 300000 : 3000000 };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const int64_t count = counts[i], spike = count * 2 / 3, dip = count / 7;
        curve c = { .name = "loss" };
        double sum = 0, got = 0, low = INFINITY, high = -INFINITY;
        int64_t values = 0, largest = 0;
        for (int64_t k = 0; k < count; k++) {
            const double value = k == spike ? 1000 : k == dip ? -1000 : (double)(k % 10);
            sum += value;
            CHECK(curve_add(&c, (double)k, value), "memory");
        }
        for (int k = 0; k < c.n; k++) {
            const curve_bucket *b = &c.bucket[k];
            got += b->sum;
            values += b->count;
            if (b->count > largest) largest = b->count;
            low = fmin(low, b->low);
            high = fmax(high, b->high);
            if (b->high == 1000) CHECK(b->high_x == (double)spike, "the spike is at %g", b->high_x);
            if (k) CHECK(b->x_sum / (double)b->count > c.bucket[k - 1].x_sum / (double)c.bucket[k - 1].count, "order");
        }
        CHECK(c.n <= CURVE_BUCKETS && c.n >= (count < CURVE_BUCKETS / 2 ? count : CURVE_BUCKETS / 2), "%d buckets",
              c.n);
        CHECK(values == count && got == sum && largest == c.per_bucket, "%lld values of %lld", (long long)values,
              (long long)count);
        CHECK(low == c.low && high == c.high && high == 1000, "from %g to %g", low, high);
        free(c.bucket);
    }
}

TEST(curves_smooth)
{
    enum { N = 1000 };
    double y[CURVE_BUCKETS];
    curve flat = { .name = "a" }, ramp = flat, one = flat, noisy = flat, fall = flat;
    for (int i = 0; i < N; i++) {
        curve_add(&flat, i, 3);
        curve_add(&ramp, i, i);
        curve_add(&fall, i, exp(-i / 10.0));
        curve_add(&noisy, i, i % 2 ? 1 : -1);
    }
    curve_add(&one, 5, 7);
    CHECK(curve_smooth(&flat, false, y) && fabs(y[0] - 3) < 1e-12 && fabs(y[N - 1] - 3) < 1e-12, "flat %g", y[N - 1]);
    CHECK(curve_smooth(&ramp, false, y) && fabs(y[N / 2] - N / 2.0) < 1e-6, "a ramp does not lag: %g", y[N / 2]);
    CHECK(curve_smooth(&noisy, false, y) && fabs(y[N / 2]) < 0.01, "noise goes: %g", y[N / 2]);
    CHECK(curve_smooth(&one, false, y) && y[0] == 7, "one value %g", y[0]);
    CHECK(curve_smooth(&fall, true, y) && fabs(log(y[N / 2]) + N / 20.0) < 1e-6, "a fall on a logarithmic axis: %g",
          y[N / 2]);
    CHECK(curve_smooth(&noisy, true, y) && isfinite(y[N / 2]), "values without a logarithm: %g", y[N / 2]);
    free(fall.bucket);
    free(flat.bucket);
    free(ramp.bucket);
    free(one.bucket);
    free(noisy.bucket);
}

/* ---- anything ---- */

static void change(char *text, size_t bytes)
{
    static const char pieces[][8] = { ",",     "\n", "\r\n", "nan", "-inf", "1e99",
                                      "1e400", "\"", "step", "",    "-",    "9999999" };
    const size_t at = (size_t)kr_test_below((int64_t)bytes);
    const char *piece = pieces[kr_test_below(sizeof pieces / sizeof *pieces)];
    if (kr_test_below(3)) memcpy(text + at, piece, strlen(piece) < bytes - at ? strlen(piece) : bytes - at);
    else text[at] = (char)kr_test_below(256);
}

TEST(curves_survive_anything)
{
    const int rounds = kr_test_quick() ? 400 : 4000;
    begin_folder();
    const int kept = quiet();
    for (int i = 0; i < rounds; i++) {
        char text[1024] = "step,epoch,positions,loss,accuracy,lr,grad_norm,eval_loss,eval_accuracy\n";
        size_t n = strlen(text);
        for (int k = 0; k < 12; k++)
            n += (size_t)sprintf(text + n, "%d,0,%d,%g,%g,1e-4,,%d,\n", k, 8 * k, 9.0 / (k + 1), k / 12.0, k);
        for (int64_t changes = kr_test_below(12); changes > 0; changes--) change(text, n);
        curves c;
        if (!read_text(&c, text, n - (size_t)kr_test_below(20))) continue;
        for (int k = 0; k < c.count; k++) {
            const curve *v = &c.curve[k];
            int64_t values = 0;
            for (int b = 0; b < v->n; b++) values += v->bucket[b].count;
            CHECK(values == v->count && v->low <= v->high && fabs(v->low) <= 1e100 && fabs(v->high) <= 1e100,
                  "%s: %lld of %lld, from %g to %g", v->name, (long long)values, (long long)v->count, v->low, v->high);
        }
        curves_free(&c);
    }
    loud(kept);
    end_folder();
}
