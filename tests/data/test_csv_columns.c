/* test_csv_columns.c - tables with missing values and scales: what is filled in, what is scored, which rows the numbers come
 * from, and the numbers as a file. */
#define _POSIX_C_SOURCE 200809L
#include "tests/temp_folder.h"
#include "tests/data/corpus.h"

static kr_ctx *ctx;
static kr_tape *tape;
static kr_csv_options o;

static void begin(void)
{
    ctx = kr_test_ctx(1, NULL);
    tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_csv_options_init(&o);
    begin_folder();
}

static void end(void)
{
    CHECK_OK(ctx);
    end_folder();
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

static kr_source *table(const char *name, const char *text)
{
    write_image(in_folder(name), text, strlen(text));
    return kr_source_csv(ctx, in_folder(name), &o);
}

/* All features, row after row. */
static void expect_x(kr_source *source, const double *want, int64_t count)
{
    const kr_source_info info = kr_source_info_of(source);
    float x[64];
    CHECK_OK(ctx);
    if (!CHECK(source && info.count * info.n_features == count, "%lld numbers",
               (long long)(info.count * info.n_features)))
        return;
    CHECK(source->kind->read(source, 0, info.count, &(kr_positions){ .x = x }), "%s", kr_ctx_message(ctx));
    for (int64_t i = 0; i < count; i++)
        CHECK(fabs((double)x[i] - want[i]) <= 1e-6 * fabs(want[i]), "number %lld is %g, not %g", (long long)i,
              (double)x[i], want[i]);
}

static const char holes[] = "a,b\n1,10\n,20\n3,NA\n\nnan,40\n7, null \n8,60\n";

TEST(csv_missing_rows_are_dropped)
{
    begin();
    o.missing = KR_CSV_MISSING_DROP;
    kr_source *source = table("t.csv", holes);
    expect_x(source, (const double[]){ 1, 10, 8, 60 }, 4);
    CHECK(is_start(source, 0) && is_start(source, 1), "the second sequence begins with its first row that is left");
    kr_source_destroy(source);
    o.targets = "b"; /* of the columns that are read */
    o.features = "b";
    source = table("t.csv", holes);
    expect_x(source, (const double[]){ 10, 20, 40, 60 }, 4);
    kr_source_destroy(source);
    end();
}

TEST(csv_missing_is_the_mean)
{
    begin();
    o.missing = KR_CSV_MISSING_MEAN;
    kr_source *source = table("t.csv", holes);
    CHECK(kr_source_column(source, 0).n_missing == 2 && kr_source_column(source, 1).n_missing == 2, "counts");
    float x[2];
    CHECK(!source->kind->read(source, 0, 1, &(kr_positions){ .x = x }), "means before the fit");
    CHECK_ERROR_HAS(ctx, KR_ERR_STATE, "call kr_source_fit");
    CHECK(kr_source_fit(source, NULL) == KR_OK, "%s", kr_ctx_message(ctx));
    const double a = (1 + 3 + 7 + 8) / 4.0, b = (10 + 20 + 40 + 60) / 4.0;
    expect_x(source, (const double[]){ 1, 10, a, 20, 3, b, a, 40, 7, b, 8, 60 }, 12);
    CHECK(kr_source_column(source, 1).mean == b && kr_source_column(source, 1).scale == 1, "mean of b");
    kr_source_destroy(source);
    end();
}

TEST(csv_missing_is_the_last_value)
{
    begin();
    o.missing = KR_CSV_MISSING_FORWARD;
    kr_source *source = table("t.csv", holes);
    CHECK(kr_source_fit(source, NULL) == KR_OK, "%s", kr_ctx_message(ctx));
    const double a = (1 + 3 + 7 + 8) / 4.0; /* nothing before it in its sequence */
    expect_x(source, (const double[]){ 1, 10, 1, 20, 3, 20, a, 40, 7, 40, 8, 60 }, 12);
    kr_source_destroy(source);
    end();
}

/* Any row can be read first, however far its last value is. */
TEST(csv_last_values_are_found_from_anywhere)
{
    enum { ROWS = 1500 };
    static double want[ROWS];
    begin();
    FILE *f = fopen(in_folder("t.csv"), "w");
    double last = 0, sum = 0;
    int64_t n = 0;
    if (!f) exit(2);
    fprintf(f, "s,x\n");
    for (int i = 0; i < ROWS; i++) {
        const bool has = i % 700 == 0 || kr_test_below(50) == 0;
        const double value = (double)kr_test_below(1000);
        if (has) fprintf(f, "%d,%g\n", i / 700, value);
        else fprintf(f, "%d,\n", i / 700);
        if (has) last = value;
        if (has) sum += value;
        n += has;
        want[i] = last;
    }
    fclose(f);
    o.missing = KR_CSV_MISSING_FORWARD;
    o.features = "x";
    o.sequence = "s";
    kr_source *source = kr_source_csv(ctx, in_folder("t.csv"), &o);
    CHECK(kr_source_fit(source, NULL) == KR_OK, "%s", kr_ctx_message(ctx));
    CHECK(fabs(kr_source_column(source, 0).mean - sum / (double)n) < 1e-9, "mean");
    for (int i = 0; i < 300; i++) {
        const int64_t from = kr_test_below(ROWS - 3);
        float x[3];
        bool filled[3] = { false, false, false };
        CHECK(source->kind->read(source, from, 3, &(kr_positions){ .x = x, .is_filled = filled }), "read");
        for (int k = 0; k < 3; k++)
            CHECK((double)x[k] == want[from + k], "row %lld is %g, not %g", (long long)from + k, (double)x[k],
                  want[from + k]);
    }
    kr_source_destroy(source);
    o.memory_budget = 100;
    CHECK(!kr_source_csv(ctx, in_folder("t.csv"), &o), "the index has a budget");
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG, "takes more than memory_budget = 100");
    end();
}

/* An unknown row is not a target. */
TEST(csv_missing_is_not_scored)
{
    begin();
    o.missing = KR_CSV_MISSING_MEAN;
    kr_source *source = table("t.csv", "x,y,c\n1,10,0\n2,,1\nNA,30,NA\n4,40,2\n5,50,1\n");
    kr_source_destroy(source);
    kr_loader_options reading;
    kr_loader_options_init(&reading);
    reading.batch = 1;
    reading.length = 5;
    reading.shuffle = false;
    static const struct {
        const char *features, *targets;
        bool is_class;
        int32_t scored[5];
        int64_t n;
    } cases[] = { { "x", "y", false, { 1, 0, 1, 1, 1 }, 4 },
                  { "x", "c", true, { 0, 1, KR_NOT_SCORED, 2, 1 }, 4 },
                  { "x", NULL, false, { 1, 0, 1, 1 }, 3 } };
    for (int i = 0; i < 3; i++) {
        o.features = cases[i].features;
        o.targets = cases[i].targets;
        o.is_class = cases[i].is_class;
        reading.length = cases[i].targets ? 5 : 4;
        source = kr_source_csv(ctx, in_folder("t.csv"), &o);
        IGNORE(kr_source_fit(source, NULL));
        kr_loader *loader = kr_loader_create(source, &reading);
        kr_batch batch;
        CHECK(kr_loader_next(tape, loader, &batch) == KR_OK, "%s", kr_ctx_message(ctx));
        const int32_t *got = ints(cases[i].is_class ? batch.labels_bs : batch.scored_bs);
        for (int k = 0; k < reading.length; k++)
            CHECK(got[k] == cases[i].scored[k], "case %d, position %d: %d", i, k, got[k]);
        CHECK(batch.n_scored == cases[i].n, "case %d: %lld scored", i, (long long)batch.n_scored);
        if (i == 0) CHECK(kr_tensor_at(batch.targets_bso, (int64_t[]){ 0, 1, 0 }) == 0, "a target that is not scored");
        kr_loader_destroy(loader);
        kr_source_destroy(source);
        kr_tape_reset(tape);
    }
    end();
}

/* ---- scales ---- */

TEST(csv_scales)
{
    begin();
    o.scaling = KR_CSV_SCALING_STANDARD;
    o.targets = "y";
    const char *text = "x,same,y\n2,5,-1\n4,5,0\n6,5,4\n";
    kr_source *source = table("t.csv", text);
    CHECK(kr_source_fit(source, NULL) == KR_OK, "%s", kr_ctx_message(ctx));
    const double d = sqrt(8.0 / 3);
    expect_x(source, (const double[]){ -2 / d, 0, 0, 0, 2 / d, 0 }, 6);
    const kr_csv_column x = kr_source_column(source, 0), same = kr_source_column(source, 1),
                        y = kr_source_column(source, 2);
    CHECK(!strcmp(x.name, "x") && !x.is_target && x.offset == 4 && fabs(x.scale - d) < 1e-12, "x");
    CHECK(same.scale == 1 && same.offset == 5 && y.is_target && !strcmp(y.name, "y"), "columns");
    float features[6], targets[3];
    CHECK(source->kind->read(source, 0, 3, &(kr_positions){ .x = features, .targets = targets }), "read");
    CHECK(fabs((double)targets[2] * y.scale + y.offset - 4) < 1e-6, "back in the units of the file");
    CHECK(!kr_source_column(source, 3).name && !kr_source_column(source, -1).name && !kr_source_column(NULL, 0).name,
          "no such column");
    kr_source_destroy(source);
    o.scaling = KR_CSV_SCALING_MIN_MAX;
    o.targets = NULL;
    source = table("t.csv", text);
    CHECK(kr_source_fit(source, NULL) == KR_OK, "%s", kr_ctx_message(ctx));
    expect_x(source, (const double[]){ 0, 0, 0, 0.5, 0, 0.2, 1, 0, 1 }, 9);
    kr_source_destroy(source);
    end();
}

/* Numbers come from the rows for training, and from no others. */
TEST(csv_scales_of_the_training_part)
{
    begin();
    FILE *f = fopen(in_folder("t.csv"), "w");
    if (!f) exit(2);
    for (int i = 0; i < 40; i++) fprintf(f, "%s%d\n", i % 4 || i == 0 ? "" : "\n", i < 20 ? i : 1000 + i);
    fclose(f);
    o.has_header = false;
    o.scaling = KR_CSV_SCALING_MIN_MAX;
    kr_source *source = kr_source_csv(ctx, in_folder("t.csv"), &o);
    kr_loader_options part;
    kr_loader_options_init(&part);
    part.validation_fraction = 0.5;
    part.part = KR_DATA_PART_VALIDATION; /* does not matter */
    CHECK(kr_source_fit(source, &part) == KR_OK, "%s", kr_ctx_message(ctx));
    CHECK(kr_source_column(source, 0).offset == 0 && kr_source_column(source, 0).scale == 19, "the first half");
    part.pack = false;
    part.length = 0;
    part.validation_fraction = 0.4;
    part.split_seed = 3;
    CHECK(kr_source_fit(source, &part) == KR_OK, "%s", kr_ctx_message(ctx));
    part.part = KR_DATA_PART_TRAIN;
    part.n_epochs = 1;
    kr_loader *loader = kr_loader_create(source, &part);
    double least = 9, most = -9;
    for (kr_batch batch; kr_loader_next(tape, loader, &batch) == KR_OK; kr_tape_reset(tape)) {
        const float *x = kr_test_copy(batch.x_bsf), *y = kr_test_copy(batch.targets_bso);
        const int32_t *mask = ints(batch.mask_bs);
        for (int64_t i = 0; i < kr_tensor_count(batch.x_bsf); i++) {
            if (mask && !mask[i]) continue;
            least = fmin(least, fmin((double)x[i], (double)y[i]));
            most = fmax(most, fmax((double)x[i], (double)y[i]));
        }
    }
    CHECK(least == 0 && most == 1, "documents for training are from %g to %g", least, most);
    kr_loader_destroy(loader);
    kr_source_destroy(source);
    end();
}

TEST(csv_scales_as_a_file)
{
    begin();
    o.scaling = KR_CSV_SCALING_STANDARD;
    o.missing = KR_CSV_MISSING_MEAN;
    kr_source *source = table("t.csv", holes);
    CHECK(kr_source_save_scales(source, in_folder("s.json")) == KR_ERR_STATE, "nothing to save");
    CHECK_ERROR(ctx, KR_ERR_STATE, "source.save_scales: there are no scales yet; call kr_source_fit first");
    IGNORE(kr_source_fit(source, NULL));
    CHECK(kr_source_save_scales(source, in_folder("s.json")) == KR_OK, "%s", kr_ctx_message(ctx));
    kr_source *other = table("u.csv", "a,b\n100,NA\n");
    CHECK(kr_source_load_scales(other, in_folder("s.json")) == KR_OK, "%s", kr_ctx_message(ctx));
    for (int i = 0; i < 2; i++) {
        const kr_csv_column a = kr_source_column(source, i), b = kr_source_column(other, i);
        CHECK(a.mean == b.mean && a.offset == b.offset && a.scale == b.scale, "column %d", i);
    }
    const kr_csv_column a = kr_source_column(source, 0);
    expect_x(other, (const double[]){ (100 - a.offset) / a.scale, 0 }, 2);
    kr_source_destroy(other);
    kr_source_destroy(source);
    end();
}

TEST(csv_scales_errors)
{
    static const struct {
        const char *json, *text;
    } files[] = {
        { "{", "json: at byte" },
        { "[1]", "'format' is not 'krait.scales'" },
        { "{\"format\": \"krait.scales\", \"version\": 2}", "'version' is not 1" },
        { "{\"format\": \"krait.scales\", \"version\": 1, \"scaling\": \"none\"}", "another kind than 'standard'" },
        { "{\"format\": \"krait.scales\", \"version\": 1, \"scaling\": \"standard\", \"columns\": []}",
          "the file has 0 columns, but the table reads 1" },
        { "{\"format\": \"krait.scales\", \"version\": 1, \"scaling\": \"standard\", \"columns\": [{\"name\": \"b\"}]}",
          "column 1 of the table is 'a', but that of the file has another name" },
        { "{\"format\": \"krait.scales\", \"version\": 1, \"scaling\": \"standard\", \"columns\": [{\"name\": \"a\","
          "\"role\": \"target\"}]}",
          "column 'a' is a feature of the table, but not of the file" },
        { "{\"format\": \"krait.scales\", \"version\": 1, \"scaling\": \"standard\", \"columns\": [{\"name\": \"a\","
          "\"role\": \"feature\", \"mean\": \"x\"}]}",
          "column 'a': mean is not a finite number" },
        { "{\"format\": \"krait.scales\", \"version\": 1, \"scaling\": \"standard\", \"columns\": [{\"name\": \"a\","
          "\"role\": \"feature\", \"mean\": 1, \"offset\": 1, \"scale\": 0}]}",
          "column 'a': scale = 0, but must be above 0" },
    };
    begin();
    o.scaling = KR_CSV_SCALING_STANDARD;
    kr_source *source = table("t.csv", "a\n1\n3\n");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        write_image(in_folder("s.json"), files[i].json, strlen(files[i].json));
        CHECK(kr_source_load_scales(source, in_folder("s.json")) != KR_OK, "file %zu is taken", i);
        CHECK_ERROR_HAS(ctx, KR_ERR_FORMAT, files[i].text);
        CHECK(kr_source_column(source, 0).scale == 1 && kr_source_column(source, 0).offset == 0, "has changed");
    }
    CHECK(kr_source_load_scales(source, in_folder("none")) == KR_ERR_IO, "no file");
    kr_ctx_clear(ctx);
    kr_source *words = kr_source_string(ctx, "ab", 2, NULL, NULL);
    kr_ctx_clear(ctx);
    kr_source_destroy(words);
    CHECK(kr_source_fit(NULL, NULL) == KR_ERR_ARG && kr_source_load_scales(NULL, "") == KR_ERR_ARG &&
              kr_source_save_scales(NULL, "") == KR_ERR_ARG,
          "NULL");
    kr_source_destroy(source);
    o.missing = KR_CSV_MISSING_MEAN;
    source = table("t.csv", "a,b\n1,NA\n3,\n");
    CHECK(kr_source_fit(source, NULL) == KR_ERR_FORMAT, "no values");
    CHECK_ERROR_HAS(ctx, KR_ERR_FORMAT, "column 'b' has no value in the training rows");
    kr_source_destroy(source);
    o.missing = (kr_csv_missing)9;
    CHECK(!table("t.csv", "a\n1\n"), "missing");
    CHECK_ERROR(ctx, KR_ERR_ARG, "csv: missing = 9 is not a kr_csv_missing");
    o.missing = KR_CSV_MISSING_ERROR;
    o.scaling = (kr_csv_scaling)7;
    CHECK(!table("t.csv", "a\n1\n"), "scaling");
    CHECK_ERROR(ctx, KR_ERR_ARG, "csv: scaling = 7 is not a kr_csv_scaling");
    end();
}

TEST(csv_columns_allocation_may_fail)
{
    begin();
    o.missing = KR_CSV_MISSING_FORWARD;
    o.scaling = KR_CSV_SCALING_STANDARD;
    write_image(in_folder("t.csv"), holes, sizeof holes - 1);
    const size_t before = kr_ctx_memory(ctx).live_bytes;
    bool passed = false;
    size_t n = 0;
    while (!passed && n < 500) {
        kr_ctx_fail_allocation(ctx, ++n);
        kr_source *source = kr_source_csv(ctx, in_folder("t.csv"), &o);
        passed = source && kr_source_fit(source, NULL) == KR_OK &&
                 kr_source_save_scales(source, in_folder("s.json")) == KR_OK &&
                 kr_source_load_scales(source, in_folder("s.json")) == KR_OK;
        kr_ctx_fail_allocation(ctx, 0);
        kr_source_destroy(source);
        if (!passed) CHECK_ERROR_HAS(ctx, KR_ERR_NOMEM, "no memory");
        CHECK(kr_ctx_memory(ctx).live_bytes == before, "allocation %zu: memory is left", n);
    }
    CHECK(passed && n > 8, "after %zu refused allocations", n);
    end();
}
