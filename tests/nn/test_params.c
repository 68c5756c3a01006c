/* test_params.c - the parameter table: rows, names, initial values, memory, fingerprints, and its text. */
#include "tests/memory.h"
#include "tests/nn/mamba2_variants.h"

#include "nn/init.h"
#include "nn/params_impl.h"
#include "tests/harness.h"

static kr_ctx *ctx;

static void begin(void)
{
    ctx = kr_test_ctx(1, NULL);
}

static void end(void)
{
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

/* Everything that a block can have. */
static kr_mamba2 *full_block(kr_dtype dtype)
{
    kr_mamba2_config c = mamba2_variant_at(16).config;
    c.dtype = dtype;
    return kr_mamba2_create(ctx, &c);
}

static kr_mamba2 *small_block(kr_dtype dtype)
{
    kr_mamba2_config c = mamba2_small();
    c.dtype = dtype;
    return kr_mamba2_create(ctx, &c);
}

/* ---- rows ---- */

typedef struct wanted_row {
    const char *name, *axes;
    kr_shape shape;
    bool has_decay;
} wanted_row;

/* d_model 32, d_inner 64, d_ssm 48 (6 heads of 8), 2 groups, state 8: in_proj has 2 * 64 + 2 * 16 + 6 rows. */
TEST(params_rows_in_order)
{
    begin();
    const wanted_row wanted[] = {
        { "dt_bias", "h", KR_SHAPE(6), false },
        { "A_log", "h", KR_SHAPE(6), false },
        { "D", "i", KR_SHAPE(48), false },
        { "in_proj.weight", "zxbcdt d", KR_SHAPE(166, 32), true },
        { "out_proj.weight", "d i", KR_SHAPE(32, 64), true },
        { "in_proj.bias", "zxbcdt", KR_SHAPE(166), false },
        { "out_proj.bias", "d", KR_SHAPE(32), false },
        { "conv1d.weight", "v 1 k", KR_SHAPE(80, 1, 4), true },
        { "conv1d.bias", "v", KR_SHAPE(80), false },
        { "norm.weight", "i", KR_SHAPE(48), false },
        { "init_states", "h p r", KR_SHAPE(6, 8, 8), false },
    };
    const int64_t count = sizeof wanted / sizeof *wanted;
    kr_mamba2 *m = full_block(KR_DTYPE_F32);
    kr_params *params = kr_mamba2_params(m);
    CHECK(kr_params_count(params) == count, "%lld rows", (long long)kr_params_count(params));
    int64_t elements = 0;
    for (int64_t i = 0; i < count; i++) {
        const kr_param_row *row = kr_params_at(params, i);
        const kr_shape shape = kr_tensor_shape(row->tensor);
        CHECK(strcmp(row->name, wanted[i].name) == 0, "row %lld is %s, not %s", (long long)i, row->name,
              wanted[i].name);
        CHECK(strcmp(row->axes, wanted[i].axes) == 0, "%s has axes %s", row->name, row->axes);
        CHECK(kr_shape_equal(&shape, &wanted[i].shape), "%s has another shape", row->name);
        CHECK(row->has_decay == wanted[i].has_decay, "%s decays: %d", row->name, row->has_decay);
        CHECK(row->init_scale == 1, "%s: scale %g", row->name, row->init_scale);
        CHECK(kr_params_find(params, row->name) == row, "%s is not found", row->name);
        CHECK(kr_requires_grad(row->tensor), "%s has no gradient", row->name);
        elements += kr_tensor_count(row->tensor);
    }
    CHECK(kr_params_elements(params) == elements, "%lld elements", (long long)kr_params_elements(params));
    CHECK(!kr_params_at(params, -1) && !kr_params_at(params, count), "rows beyond the table");
    CHECK(!kr_params_find(params, "in_proj") && !kr_params_find(params, NULL), "a name that is not there");
    kr_mamba2_destroy(m);
    end();
}

TEST(params_segments_add_up)
{
    begin();
    kr_mamba2 *blocks[2] = { small_block(KR_DTYPE_F32), full_block(KR_DTYPE_F32) };
    static const char *const names[] = { "z0", "x0", "z", "x", "b", "c", "dt" };
    static const int64_t rows[2][7] = { { 0, 0, 64, 64, 8, 8, 8 }, { 16, 16, 48, 48, 16, 16, 6 } };
    for (int k = 0; k < 2; k++) {
        kr_params *params = kr_mamba2_params(blocks[k]);
        for (int64_t i = 0; i < kr_params_count(params); i++) {
            const kr_param_row *row = kr_params_at(params, i);
            int64_t sum = 0;
            for (int s = 0; s < row->n_segments; s++) sum += row->segments[s].rows;
            CHECK(row->n_segments == 0 || sum == kr_tensor_dim(row->tensor, 0), "%s: segments of %lld rows", row->name,
                  (long long)sum);
        }
        const kr_param_row *in = kr_params_find(params, "in_proj.weight");
        const int first = k ? 0 : 2;
        CHECK(in->n_segments == 7 - first, "%d segments", in->n_segments);
        for (int s = 0; s < in->n_segments; s++) {
            const kr_segment *segment = &in->segments[s];
            CHECK(strcmp(segment->name, names[first + s]) == 0 && segment->rows == rows[k][first + s],
                  "segment %s of %lld rows", segment->name, (long long)segment->rows);
            CHECK(segment->use_muon == (first + s < 6), "segment %s: muon %d", segment->name, segment->use_muon);
        }
        kr_mamba2_destroy(blocks[k]);
    }
    end();
}

TEST(params_prefixes)
{
    begin();
    kr_params *params = kr_params_create(ctx);
    kr_params_add_vector(params, "first", "d", KR_DTYPE_F32, 2, kr_init_fill(0));
    const size_t outer = kr_params_enter(params, "layers.%d.", 3);
    kr_params_add_vector(params, "norm", "d", KR_DTYPE_F32, 2, kr_init_fill(0));
    const size_t inner = kr_params_enter(params, "mixer.");
    kr_params_add_vector(params, "D", "h", KR_DTYPE_F32, 2, kr_init_fill(0));
    kr_params_leave(params, inner);
    kr_params_add_vector(params, "norm2", "d", KR_DTYPE_F32, 2, kr_init_fill(0));
    kr_params_leave(params, outer);
    kr_params_add_vector(params, "last", "d", KR_DTYPE_F32, 2, kr_init_fill(0));
    static const char *const names[] = { "first", "layers.3.norm", "layers.3.mixer.D", "layers.3.norm2", "last" };
    for (int i = 0; i < 5; i++)
        CHECK(strcmp(kr_params_at(params, i)->name, names[i]) == 0, "%s, not %s", kr_params_at(params, i)->name,
              names[i]);
    kr_params_enter(params, "head.");
    CHECK(!kr_params_add_vector(params, "w", "d", KR_DTYPE_I32, 2, kr_init_fill(0)), "an integer parameter");
    CHECK_ERROR(ctx, KR_ERR_DTYPE, "head.w: param: type i32, but a parameter is f32, f64, bf16 or f16");
    CHECK(kr_params_count(params) == 5, "%lld rows after a refused one", (long long)kr_params_count(params));
    kr_params_destroy(params);
    end();
}

TEST(params_too_large_together)
{
    begin();
    kr_params *params = kr_params_create(ctx);
    for (int i = 0; i < 3; i++)
        kr_params_add_vector(params, "vast", "d", KR_DTYPE_F64, INT64_C(1) << 59, kr_init_fill(0));
    CHECK(!kr_params_seal(params), "more than can be addressed");
    CHECK_ERROR(ctx, KR_ERR_SHAPE,
                "params: with vast [576460752303423488] there are more bytes of f64 parameters than can be addressed");
    kr_params_destroy(params);
    end();
}

/* ---- text ---- */

TEST(params_described)
{
    begin();
    kr_mamba2_config c = mamba2_small();
    c.d_model = 4;
    c.d_ssm = 4;
    c.state_rank = 2;
    c.per_head_dim = 2;
    kr_mamba2 *m = kr_mamba2_create(ctx, &c);
    char text[4096];
    const size_t length = kr_params_describe(kr_mamba2_params(m), text, sizeof text);
    const char *want =
        "name             shape                axes          count  begins as                    decay  optimizer\n"
        "dt_bias          [2]                  h                 2  dt 0.001 .. 0.1              no     adamw\n"
        "A_log            [2]                  h                 2  log of 1 .. 16               no     adamw\n"
        "D                [2]                  h                 2  1                            no     adamw\n"
        "in_proj.weight   [22, 4]              zxbcdt d         88  uniform -0.5 .. 0.5          yes    "
        "muon[z0:4 x0:4 z:4 x:4 b:2 c:2 dt:2*]\n"
        "out_proj.weight  [4, 8]               d i              32  uniform -0.3536 .. 0.3536    yes    "
        "muon[out:4]\n"
        "conv1d.weight    [8, 1, 4]            v 1 k            32  uniform -0.5 .. 0.5          yes    adamw\n"
        "conv1d.bias      [8]                  v                 8  uniform -0.5 .. 0.5          no     adamw\n"
        "norm.weight      [4]                  i                 4  1                            no     adamw\n"
        "total 170 parameters, 112 on muon (65.9 %)\n";
    CHECK(strcmp(text, want) == 0, "described as\n%s", text);
    CHECK(length == strlen(want), "a length of %zu", length);
    CHECK(kr_params_describe(kr_mamba2_params(m), NULL, 0) == length, "another length without a buffer");
    char part[100];
    memset(part, 'x', sizeof part);
    CHECK(kr_params_describe(kr_mamba2_params(m), part, 50) == length, "another length with a small buffer");
    CHECK(strlen(part) == 49 && strncmp(part, want, 49) == 0 && part[50] == 'x', "cut to '%.60s'", part);
    kr_params_describe(NULL, text, sizeof text);
    CHECK(strcmp(text, "name  shape                axes          count  begins as                    decay  optimizer\n"
                       "total 0 parameters, 0 on muon (0.0 %)\n") == 0,
          "no table is described as\n%s", text);
    kr_mamba2_destroy(m);
    end();
}

/* ---- initial values ---- */

/* All rules in one table. */
static kr_params *rules(kr_dtype dtype)
{
    kr_params *params = kr_params_create(ctx);
    const struct {
        const char *name;
        kr_init init;
    } rows[] = { { "uniform", { KR_INIT_UNIFORM, -0.25, 0.5, 0 } }, { "dt", { KR_INIT_DT_BIAS, 1e-3, 0.1, 1e-4 } },
                 { "normal", { KR_INIT_NORMAL, 2, 0.5, 0 } },       { "floored", { KR_INIT_DT_BIAS, 1e-3, 0.1, 0.05 } },
                 { "range", { KR_INIT_LOG_RANGE, 1, 16, 0 } },      { "index", { KR_INIT_LOG_INDEX, 0, 0, 0 } },
                 { "ramp", { KR_INIT_RAMP, -1, 0.5, 0 } },          { "fill", { KR_INIT_FILL, 0.75, 0, 0 } } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        kr_params_add(params, &(kr_param_spec){ .name = rows[i].name,
                                                .axes = "h r",
                                                .dtype = dtype,
                                                .shape = KR_SHAPE(100, 20),
                                                .init = rows[i].init,
                                                .is_residual_out = true });
    return params;
}

typedef struct range {
    double least, most, mean;
} range;

/* Of f(x), over all elements. */
static range range_of(kr_params *params, const char *name, double (*f)(double))
{
    const kr_tensor *x = kr_params_find(params, name)->tensor;
    double *values = kr_test_values(x);
    range r = { INFINITY, -INFINITY, 0 };
    for (int64_t i = 0; i < kr_tensor_count(x); i++) {
        const double value = f(values[i]);
        r.least = fmin(r.least, value);
        r.most = fmax(r.most, value);
        r.mean += value / (double)kr_tensor_count(x);
    }
    free(values);
    return r;
}

static double itself(double x)
{
    return x;
}

static double softplus(double x)
{
    return log1p(exp(x));
}

/* All draws lie in the range, and some near either end of it. */
static void check_range(const char *name, range r, double low, double high, double slack)
{
    CHECK(r.least >= low && r.most <= high, "%s from %.9g to %.9g, not within %g and %g", name, r.least, r.most, low,
          high);
    CHECK(r.least <= low + slack && r.most >= high - slack, "%s from %g to %g does not fill %g to %g", name, r.least,
          r.most, low, high);
}

/* 2000 draws: within 1 % of the ends of a range but for a chance of e^-20; means within 5 standard deviations, that is
 * 5 / sqrt(12 * 2000) = 0.03 of the width of a uniform range. */
TEST(params_begin_by_their_rules)
{
    begin();
    kr_params *params = rules(KR_DTYPE_F64);
    CHECK(kr_params_seal(params), "not sealed: %s", kr_ctx_message(ctx));
    const range uniform = range_of(params, "uniform", itself), normal = range_of(params, "normal", itself);
    check_range("uniform", uniform, -0.25, 0.5, 0.0075);
    CHECK(fabs(uniform.mean - 0.125) < 0.03 * 0.75, "uniform: mean %g", uniform.mean);
    CHECK(fabs(normal.mean - 2) < 5 * 0.5 / sqrt(2000) && normal.most > 3 && normal.most < 5,
          "normal: mean %g, at most %g", normal.mean, normal.most);
    const range dt = range_of(params, "dt", softplus);
    check_range("dt", dt, 1e-3 * (1 - 1e-12), 0.1 * (1 + 1e-12), 5e-3);
    CHECK(dt.least < 1.05e-3, "dt: at least %g", dt.least);
    /* log-uniform over two decades: the mean is (0.1 - 0.001) / ln 100 = 0.0215, of a uniform draw 0.05 */
    CHECK(fabs(dt.mean - 0.0215) < 0.003, "dt: mean %g", dt.mean);
    check_range("floored", range_of(params, "floored", softplus), 0.05 * (1 - 1e-12), 0.1 * (1 + 1e-12), 1e-3);
    const range rate = range_of(params, "range", exp);
    check_range("range", rate, 1 - 1e-12, 16 + 1e-12, 0.15);
    CHECK(fabs(rate.mean - 8.5) < 0.03 * 15, "rates: mean %g", rate.mean);
    const double *index = kr_test_copy(kr_params_find(params, "index")->tensor);
    const double *ramp = kr_test_copy(kr_params_find(params, "ramp")->tensor);
    for (int64_t i = 0; i < 2000; i++) {
        CHECK(index[i] == log((double)(i % 20 + 1)), "index[%lld] = %g", (long long)i, index[i]);
        CHECK(ramp[i] == -1 + 0.5 * (double)(i % 20), "ramp[%lld] = %g", (long long)i, ramp[i]);
    }
    const range fill = range_of(params, "fill", itself);
    CHECK(fill.least == 0.75 && fill.most == 0.75, "fill: %g to %g", fill.least, fill.most);
    kr_params_destroy(params);
    end();
}

TEST(params_residual_outputs_are_scaled)
{
    begin();
    kr_params *whole = rules(KR_DTYPE_F64), *scaled = rules(KR_DTYPE_F64);
    kr_params_rescale_residual(scaled, 0.5);
    kr_ctx_seed(ctx, 7);
    kr_params_seal(whole);
    kr_ctx_seed(ctx, 7);
    kr_params_seal(scaled);
    for (int64_t i = 0; i < kr_params_count(whole); i++) {
        const kr_param_row *row = kr_params_at(whole, i);
        const double *want = kr_test_copy(row->tensor), *got = kr_test_copy(kr_params_at(scaled, i)->tensor);
        double most = 0;
        for (int64_t e = 0; e < 2000; e++) most = fmax(most, fabs(got[e] - 0.5 * want[e]));
        CHECK(most < 1e-15, "%s is not halved: by %g", row->name, most);
    }
    kr_params_destroy(whole);
    kr_params_destroy(scaled);
    end();
}

TEST(params_block_begins_as_official)
{
    begin();
    kr_mamba2_config c;
    kr_mamba2_config_init(&c);
    c.d_model = 256;
    c.has_proj_bias = c.has_learnable_init_state = true;
    kr_mamba2 *m = kr_mamba2_create(ctx, &c);
    kr_params *params = kr_mamba2_params(m);
    const double in = 1 / sqrt(256), out = 1 / sqrt(512), ulp = 1e-7;
    check_range("in_proj", range_of(params, "in_proj.weight", itself), -in, in, 0.001 * in);
    check_range("in_proj.bias", range_of(params, "in_proj.bias", itself), -in, in, 0.05 * in);
    check_range("out_proj", range_of(params, "out_proj.weight", itself), -out * (1 + ulp), out, 0.001 * out);
    check_range("out_proj.bias", range_of(params, "out_proj.bias", itself), -out * (1 + ulp), out, 0.1 * out);
    check_range("conv1d", range_of(params, "conv1d.weight", itself), -0.5, 0.5, 0.01);
    check_range("conv1d.bias", range_of(params, "conv1d.bias", itself), -0.5, 0.5, 0.05);
    check_range("dt_bias", range_of(params, "dt_bias", softplus), 1e-3 * (1 - 1e-5), 0.1 * (1 + 1e-5), 0.1);
    check_range("A_log", range_of(params, "A_log", exp), 1 - 1e-6, 16 + 1e-5, 8);
    static const char *const ones[] = { "D", "norm.weight" };
    for (int i = 0; i < 2; i++) {
        const range r = range_of(params, ones[i], itself);
        CHECK(r.least == 1 && r.most == 1, "%s from %g to %g", ones[i], r.least, r.most);
    }
    const range state = range_of(params, "init_states", itself);
    CHECK(state.least == 0 && state.most == 0, "init_states from %g to %g", state.least, state.most);
    kr_mamba2_destroy(m);

    c.conv_init = 0.125;
    m = kr_mamba2_create(ctx, &c);
    check_range("conv_init", range_of(kr_mamba2_params(m), "conv1d.weight", itself), -0.125, 0.125, 0.0025);
    kr_mamba2_destroy(m);
    end();
}

TEST(params_reset_is_reproducible)
{
    begin();
    kr_ctx_seed(ctx, 5);
    kr_mamba2 *m = full_block(KR_DTYPE_F32);
    kr_params *params = kr_mamba2_params(m);
    const uint64_t first = kr_params_values_hash(params);
    CHECK(kr_params_reset(params) == KR_OK, "%s", kr_ctx_message(ctx));
    CHECK(kr_params_values_hash(params) != first, "drawn anew, the values are the same");
    kr_ctx_seed(ctx, 5);
    kr_params_reset(params);
    CHECK(kr_params_values_hash(params) == first, "the same seed gives other values");
    kr_ctx_seed(ctx, 6);
    kr_params_reset(params);
    CHECK(kr_params_values_hash(params) != first, "another seed gives the same values");
    CHECK(kr_params_reset(NULL) == KR_ERR_ARG, "no table is reset");
    kr_mamba2_destroy(m);
    end();
}

/* f32 and f64 begin with the same numbers, rounded, where the rule is computed on the host in f64. Plain uniform and
 * normal draws differ, but take as much of the stream. */
TEST(params_types_begin_alike)
{
    begin();
    kr_params *tables[2] = { rules(KR_DTYPE_F32), rules(KR_DTYPE_F64) };
    for (int k = 0; k < 2; k++) {
        kr_ctx_seed(ctx, 11);
        kr_params_seal(tables[k]);
    }
    for (int64_t i = 0; i < kr_params_count(tables[0]); i++) {
        const kr_param_row *narrow = kr_params_at(tables[0], i);
        const double *wide = kr_test_copy(kr_params_at(tables[1], i)->tensor);
        const float *got = kr_test_copy(narrow->tensor);
        const bool is_drawn = narrow->init.kind == KR_INIT_UNIFORM || narrow->init.kind == KR_INIT_NORMAL;
        int64_t e = is_drawn ? 2000 : 0;
        while (e < 2000 && got[e] == (float)wide[e]) e++;
        CHECK(e == 2000, "%s[%lld] is %.9g in f32, %.17g in f64", narrow->name, (long long)e,
              (double)got[e < 2000 ? e : 0], wide[e < 2000 ? e : 0]);
    }
    kr_params_destroy(tables[0]);
    kr_params_destroy(tables[1]);
    end();
}

/* ---- memory ---- */

static size_t slab_bytes(kr_params *params, kr_dtype dtype)
{
    size_t bytes = 0;
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_tensor *x = kr_params_at(params, i)->tensor;
        if (kr_tensor_dtype(x) != dtype) continue;
        bytes += ((size_t)kr_tensor_count(x) * kr_dtype_bytes(dtype) + KR_ALIGN - 1) / KR_ALIGN * KR_ALIGN;
    }
    return bytes;
}

/* Blocks and bytes that a Mamba-2 block takes; and of these, the slabs of its parameters. */
typedef struct footprint {
    size_t blocks, bytes, slabs;
    int64_t rows;
} footprint;

static footprint footprint_of(kr_dtype dtype, int64_t d_model)
{
    kr_mamba2_config c = mamba2_small();
    c.dtype = dtype;
    c.d_model = d_model;
    const kr_memory_stats before = all_memory(ctx);
    kr_mamba2 *m = kr_mamba2_create(ctx, &c);
    const kr_memory_stats after = all_memory(ctx);
    footprint f = { after.live_blocks - before.live_blocks, after.live_bytes - before.live_bytes, 0,
                    kr_params_count(kr_mamba2_params(m)) };
    for (int type = KR_DTYPE_F32; type <= KR_DTYPE_F16; type++)
        f.slabs += slab_bytes(kr_mamba2_params(m), (kr_dtype)type);
    kr_mamba2_destroy(m);
    CHECK(all_memory(ctx).live_bytes == before.live_bytes, "a block leaves %zu bytes",
          all_memory(ctx).live_bytes - before.live_bytes);
    return f;
}

/* The block, the table, the table's rows, one page of names, a header for each tensor, what counts the users of the weights,
 * and one slab for each type. */
TEST(params_live_in_slabs)
{
    begin();
    footprint_of(KR_DTYPE_F32, 32); /* what a context keeps for later is there now */
    const footprint f32 = footprint_of(KR_DTYPE_F32, 32), wide = footprint_of(KR_DTYPE_F32, 320),
                    f64 = footprint_of(KR_DTYPE_F64, 32);
    const footprint half = footprint_of(KR_DTYPE_BF16, 32);
    CHECK(f32.rows == 8 && f32.blocks == 4 + 8 + 1 + 1, "%zu blocks for %lld rows", f32.blocks, (long long)f32.rows);
    CHECK(half.blocks == f32.blocks + 1, "%zu blocks with two types", half.blocks);
    CHECK(wide.bytes - wide.slabs == f32.bytes - f32.slabs, "%zu bytes outside the slabs, or %zu",
          wide.bytes - wide.slabs, f32.bytes - f32.slabs);
    CHECK(f64.bytes - f64.slabs == f32.bytes - f32.slabs && half.bytes - half.slabs == f32.bytes - f32.slabs,
          "other types: %zu and %zu bytes outside the slabs, not %zu", f64.bytes - f64.slabs, half.bytes - half.slabs,
          f32.bytes - f32.slabs);
    CHECK(f32.bytes - f32.slabs < 8192, "%zu bytes outside the slabs", f32.bytes - f32.slabs);

    kr_mamba2 *m = small_block(KR_DTYPE_F32);
    const char *at = kr_tensor_data(kr_params_at(kr_mamba2_params(m), 0)->tensor);
    for (int64_t i = 0; i < kr_params_count(kr_mamba2_params(m)); i++) {
        const kr_param_row *row = kr_params_at(kr_mamba2_params(m), i);
        CHECK((const char *)kr_tensor_data(row->tensor) == at, "%s is not behind the row before it", row->name);
        CHECK((uintptr_t)at % KR_ALIGN == 0, "%s is not aligned", row->name);
        at += ((size_t)kr_tensor_count(row->tensor) * 4 + KR_ALIGN - 1) / KR_ALIGN * KR_ALIGN;
    }
    kr_mamba2_destroy(m);
    end();
}

/* ---- gradients ---- */

static void backward(const kr_mamba2 *m)
{
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *x = kr_input(tape, kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(2, 5, 32)));
    kr_tensor *y = kr_mamba2_forward(tape, m, x, NULL, kr_mamba2_path(m)).y;
    kr_tensor *g_y = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(2, 5, 32));
    kr_backward_from(tape, 1, &y, &g_y);
    kr_tape_destroy(tape);
}

static double largest_grad(const kr_param_row *row)
{
    double most = 0, *values = kr_grad(row->tensor) ? kr_test_values(kr_grad(row->tensor)) : NULL;
    for (int64_t e = 0; values && e < kr_tensor_count(row->tensor); e++) most = fmax(most, fabs(values[e]));
    free(values);
    return most;
}

TEST(params_freeze_and_zero_grad)
{
    begin();
    kr_mamba2 *m = full_block(KR_DTYPE_F32);
    kr_params *params = kr_mamba2_params(m);
    backward(m);
    for (int64_t i = 0; i < kr_params_count(params); i++)
        CHECK(largest_grad(kr_params_at(params, i)) > 1e-6, "%s has no gradient", kr_params_at(params, i)->name);
    kr_params_zero_grad(params);
    for (int64_t i = 0; i < kr_params_count(params); i++)
        CHECK(largest_grad(kr_params_at(params, i)) == 0, "%s keeps a gradient", kr_params_at(params, i)->name);
    kr_params_freeze(params, true);
    backward(m);
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_param_row *row = kr_params_at(params, i);
        CHECK(!kr_requires_grad(row->tensor) && largest_grad(row) == 0, "%s is not frozen", row->name);
    }
    kr_params_freeze(params, false);
    backward(m);
    for (int64_t i = 0; i < kr_params_count(params); i++)
        CHECK(largest_grad(kr_params_at(params, i)) > 1e-6, "%s stays frozen", kr_params_at(params, i)->name);
    kr_params_zero_grad(NULL);
    kr_params_freeze(NULL, true);
    kr_mamba2_destroy(m);
    end();
}

/* ---- fingerprints ---- */

TEST(params_values_hash_sees_every_value)
{
    begin();
    kr_mamba2 *m = full_block(KR_DTYPE_F32);
    kr_params *params = kr_mamba2_params(m);
    const uint64_t before = kr_params_values_hash(params), structure = kr_params_structure_hash(params);
    CHECK(kr_params_values_hash(params) == before, "two readings differ");
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_param_row *row = kr_params_at(params, i);
        const int64_t last = kr_tensor_count(row->tensor) - 1, places[] = { 0, last / 2, last };
        for (int k = 0; k < 3; k++) {
            unsigned char *all = kr_test_copy(row->tensor), *bits = all + 4 * places[k];
            bits[k] ^= 1;
            kr_test_write(row->tensor, all);
            CHECK(kr_params_values_hash(params) != before, "%s[%lld] is not seen", row->name, (long long)places[k]);
            CHECK(kr_params_structure_hash(params) == structure, "%s: a value changes the structure", row->name);
            bits[k] ^= 1;
            kr_test_write(row->tensor, all);
        }
    }
    CHECK(kr_params_values_hash(params) == before, "the values are the same again, the hash is not");
    kr_mamba2_destroy(m);
    end();
}

static uint64_t structure_of(const char *name, kr_dtype dtype, kr_shape shape)
{
    kr_params *params = kr_params_create(ctx);
    kr_params_add(params, &(kr_param_spec){ .name = name, .axes = "d", .dtype = dtype, .shape = shape });
    kr_params_seal(params);
    const uint64_t hash = kr_params_structure_hash(params);
    kr_params_destroy(params);
    return hash;
}

TEST(params_structure_hash_sees_names_types_and_shapes)
{
    begin();
    const uint64_t hash = structure_of("weight", KR_DTYPE_F32, KR_SHAPE(2, 3));
    CHECK(structure_of("weight", KR_DTYPE_F32, KR_SHAPE(2, 3)) == hash, "two equal tables differ");
    CHECK(structure_of("weighs", KR_DTYPE_F32, KR_SHAPE(2, 3)) != hash, "a name is not seen");
    CHECK(structure_of("weight", KR_DTYPE_F64, KR_SHAPE(2, 3)) != hash, "a type is not seen");
    CHECK(structure_of("weight", KR_DTYPE_F32, KR_SHAPE(3, 2)) != hash, "a shape is not seen");
    CHECK(structure_of("weight", KR_DTYPE_F32, KR_SHAPE(2, 3, 1)) != hash, "a rank is not seen");
    CHECK(kr_params_structure_hash(NULL) != hash, "no table is like one");
    kr_mamba2 *a = small_block(KR_DTYPE_F32), *b = small_block(KR_DTYPE_F32), *c = full_block(KR_DTYPE_F32);
    CHECK(kr_params_structure_hash(kr_mamba2_params(a)) == kr_params_structure_hash(kr_mamba2_params(b)),
          "two blocks of one config differ");
    CHECK(kr_params_structure_hash(kr_mamba2_params(a)) != kr_params_structure_hash(kr_mamba2_params(c)),
          "blocks of two configs are alike");
    kr_mamba2_destroy(a);
    kr_mamba2_destroy(b);
    kr_mamba2_destroy(c);
    end();
}
