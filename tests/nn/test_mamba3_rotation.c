/* test_mamba3_rotation.c - what turns in a Mamba-3 block, by what, and what does not. */
#include "tests/nn/mamba3_reference.h"

enum { NB = 2, NS = 6 };

/* A block with what it is tested by: f64, drawn parameters, the same tokens for every call of one test. */
typedef struct bench {
    kr_ctx *ctx;
    kr_tape *tape;
    kr_mamba3 *m;
    kr_mamba3_config config;
    kr_tensor *x;
} bench;

static bench open(void (*set)(kr_mamba3_config *c))
{
    bench w = { .ctx = kr_test_ctx(1, NULL), .config = variant_at(0)->config };
    w.config.has_proj_bias = true;
    if (set) set(&w.config);
    w.tape = kr_tape_create(w.ctx, KR_TAPE_GRAD);
    w.m = shaken_block(w.ctx, &w.config, KR_DTYPE_F64);
    w.x = kr_randn(w.tape, KR_DTYPE_F64, KR_SHAPE(NB, NS, w.config.d_model));
    return w;
}

static void close(bench *w)
{
    CHECK_OK(w->ctx);
    kr_tape_destroy(w->tape);
    kr_mamba3_destroy(w->m);
    kr_ctx_destroy(w->ctx);
}

static kr_tensor *param(const bench *w, const char *name)
{
    return kr_params_find(kr_mamba3_params(w->m), name)->tensor;
}

static kr_mamba3_out forward(const bench *w)
{
    return kr_mamba3_forward(w->tape, w->m, w->x, NULL, kr_mamba3_path(w->m));
}

/* The rows of in_proj before the rotation's. */
static int64_t rows_before(const bench *w)
{
    const kr_param_row *row = kr_params_find(kr_mamba3_params(w->m), "in_proj.weight");
    int64_t rows = 0;
    for (int i = 0; i + 1 < row->n_segments; i++) rows += row->segments[i].rows;
    return rows;
}

/* Channels from .. to - 1 of the rotation say `bias` for every token. */
static void fix_channels(const bench *w, int64_t from, int64_t to, double bias)
{
    const int64_t nd = w->config.d_model, first = rows_before(w);
    double *weight = kr_test_copy(param(w, "in_proj.weight")), *b = kr_test_copy(param(w, "in_proj.bias"));
    for (int64_t r = first + from; r < first + to; r++) {
        memset(weight + r * nd, 0, (size_t)nd * sizeof *weight);
        b[r] = bias;
    }
    kr_test_write(param(w, "in_proj.weight"), weight);
    kr_test_write(param(w, "in_proj.bias"), b);
}

static double difference(const kr_tensor *a, const kr_tensor *b)
{
    double *x = kr_test_values(a), *y = kr_test_values(b), most = 0;
    for (int64_t i = 0; i < kr_tensor_count(a); i++) most = fmax(most, fabs(x[i] - y[i]));
    free(x);
    free(y);
    return most;
}

static void set_still(kr_mamba3_config *c)
{
    c->rope_fraction = 0;
}
static void set_quaternion(kr_mamba3_config *c)
{
    c->rotation = KR_ROTATION_QUATERNION;
}
static void set_quaternion_still(kr_mamba3_config *c)
{
    set_quaternion(c);
    set_still(c);
}
static void set_mimo_still(kr_mamba3_config *c)
{
    c->is_mimo = true;
    set_still(c);
}

/* ---- rope_fraction 0 ---- */

TEST(mamba3_nothing_turns_without_rope)
{
    void (*const sets[])(kr_mamba3_config *) = { set_still, set_mimo_still, set_quaternion_still };
    for (int i = 0; i < 3; i++) {
        bench w = open(sets[i]);
        const kr_mamba3_out before = forward(&w);
        fix_channels(&w, 0, i == 2 ? 12 : 1, 0.7);
        const kr_mamba3_out after = forward(&w);
        CHECK_SAME_BITS("y", after.y, before.y);
        CHECK_SAME_BITS("k", after.cache.k_bmhr, before.cache.k_bmhr);
        CHECK_SAME_BITS("ssm", after.cache.ssm_bhpr, before.cache.ssm_bhpr);
        CHECK(kr_tensor_dim(after.cache.rotation, 2) == 1, "one is kept in the cache");
        close(&w);
    }
}

/* And with it, it matters. */
TEST(mamba3_channels_turn_the_state)
{
    for (int i = 0; i < 2; i++) {
        bench w = open(i ? set_quaternion : NULL);
        kr_tensor *before = forward(&w).y;
        fix_channels(&w, 0, 1, 0.7);
        CHECK(difference(forward(&w).y, before) > 1e-3, "a channel of the rotation does not matter");
        close(&w);
    }
}

/* ---- the range ---- */

static double the_range;
static void set_range(kr_mamba3_config *c)
{
    c->rotation_range = the_range;
}
static void set_quaternion_range(kr_mamba3_config *c)
{
    set_quaternion(c);
    set_range(c);
}

/* A rate of 1 with dt = 1 turns by range half-turns a token, in forward and in step: found again in the cache. */
TEST(mamba3_range_is_in_half_turns)
{
    for (int i = 0; i < 4; i++) {
        the_range = i % 2 ? 1.37 : 1;
        bench w = open(i < 2 ? set_range : set_quaternion_range);
        kr_param_fill(param(&w, "dt_bias"), log(expm1(1)));
        double *weight = kr_test_copy(param(&w, "in_proj.weight")), *bias = kr_test_copy(param(&w, "in_proj.bias"));
        const int64_t nd = w.config.d_model, dt_rows = 2 * 24 + 2 * 8; /* z, x, B, C */
        memset(weight + dt_rows * nd, 0, 4 * (size_t)nd * sizeof *weight);
        memset(bias + dt_rows, 0, 4 * sizeof *bias);
        kr_test_write(param(&w, "in_proj.weight"), weight);
        kr_test_write(param(&w, "in_proj.bias"), bias);
        fix_channels(&w, 0, i < 2 ? 4 : 24, 0);
        double *channels = bias + rows_before(&w);
        for (int k = 0; k < (i < 2 ? 4 : 24); k++) channels[k] = i < 2 ? atanh(0.3) : k % 3 == 1 ? atanh(0.3) : 0;
        kr_test_write(param(&w, "in_proj.bias"), bias);
        const kr_mamba3_out whole = forward(&w);
        const kr_mamba3_out next = kr_mamba3_step(
            w.tape, w.m, kr_reshape(w.tape, kr_slice(w.tape, w.x, 1, 0, 1), KR_SHAPE(NB, nd)), &whole.cache);
        const double angle = (NS + 1) * 0.3 * the_range * 3.14159265358979323846;
        const double pair[4] = { cos(angle), sin(angle), 0, 0 }, turn[4] = { cos(angle / 2), 0, sin(angle / 2), 0 };
        double *got = kr_test_values(next.cache.rotation);
        for (int64_t k = 0; k < kr_tensor_count(next.cache.rotation); k++) {
            if (i < 2)
                CHECK(fabs(cos(got[k]) - pair[0]) < 1e-12 && fabs(sin(got[k]) - pair[1]) < 1e-12, "angle %g", got[k]);
            else CHECK(fabs(got[k] - turn[k % 4]) < 1e-12, "quaternion[%lld] is %g", (long long)k % 4, got[k]);
        }
        free(got);
        close(&w);
    }
}

/* Half a turn a unit step is the end of range 1, where nothing is left of the gradient, and the middle of range 2. */
TEST(mamba3_half_turn_has_a_gradient_in_range_2)
{
    kr_tensor *y[2];
    bench w[2];
    for (int i = 0; i < 2; i++) {
        the_range = i + 1;
        w[i] = open(set_range);
        if (i) { /* the same block and tokens */
            for (int64_t k = 0; k < kr_params_count(kr_mamba3_params(w[0].m)); k++) {
                const kr_tensor *from = kr_params_at(kr_mamba3_params(w[0].m), k)->tensor;
                kr_param_write(kr_params_at(kr_mamba3_params(w[1].m), k)->tensor, KR_DTYPE_F64, kr_test_copy(from),
                               kr_tensor_count(from));
            }
            w[1].x = kr_from_data(w[1].tape, KR_DTYPE_F64, kr_tensor_shape(w[0].x), kr_test_copy(w[0].x));
        }
        fix_channels(&w[i], 0, 4, i ? atanh(0.5) : 40); /* tanh(40) is 1 */
        y[i] = forward(&w[i]).y;
        kr_backward(w[i].tape, kr_sum(w[i].tape, kr_mul(w[i].tape, y[i], y[i]), KR_ALL_AXES, false));
        double *g = kr_test_values(kr_grad(param(&w[i], "in_proj.bias"))), most = 0;
        for (int k = 0; k < 4; k++) most = fmax(most, fabs(g[rows_before(&w[i]) + k]));
        if (i) CHECK(most > 1e-2, "at range 2 the gradient is %g", most);
        else CHECK(most == 0, "at range 1 the gradient is %g", most);
        free(g);
    }
    CHECK_TENSORS("y", y[1], y[0], 1e-9, 1);
    close(&w[0]);
    close(&w[1]);
}

/* A generator that is as long as can be still has an axis, and a gradient across it. */
TEST(mamba3_saturated_generator_keeps_its_axis)
{
    bench w = open(set_quaternion);
    fix_channels(&w, 0, 24, 0);
    for (int k = 0; k < 24; k += 3) kr_test_put(param(&w, "in_proj.bias"), rows_before(&w) + k, 40);
    kr_tensor *y = forward(&w).y;
    kr_backward(w.tape, kr_sum(w.tape, kr_mul(w.tape, y, y), KR_ALL_AXES, false));
    double *g = kr_test_values(kr_grad(param(&w, "in_proj.bias")));
    for (int k = 0; k < 24; k++) {
        const double along = fabs(g[rows_before(&w) + k]);
        if (k % 3 == 0) CHECK(along == 0, "channel %d, along the axis: %g", k, along);
        else CHECK(along > 1e-6, "channel %d, across the axis: %g", k, along);
    }
    free(g);
    close(&w);
}

/* ---- whose channels they are ---- */

/* The state of one head, or of all others. */
static double head_difference(const kr_tensor *a_bhpr, const kr_tensor *b_bhpr, bool first)
{
    double *x = kr_test_values(a_bhpr), *y = kr_test_values(b_bhpr), most = 0;
    const int64_t each = kr_tensor_dim(a_bhpr, 2) * kr_tensor_dim(a_bhpr, 3), nh = kr_tensor_dim(a_bhpr, 1);
    for (int64_t i = 0; i < kr_tensor_count(a_bhpr); i++)
        if ((i / each % nh == 0) == first) most = fmax(most, fabs(x[i] - y[i]));
    free(x);
    free(y);
    return most;
}

TEST(mamba3_generators_are_each_head_s_angles_all_heads)
{
    for (int i = 0; i < 2; i++) {
        bench w = open(i ? set_quaternion : NULL);
        kr_tensor *before = forward(&w).cache.ssm_bhpr;
        fix_channels(&w, 0, i ? 6 : 1, 0.7); /* those of the first head; an angle */
        kr_tensor *after = forward(&w).cache.ssm_bhpr;
        CHECK(head_difference(after, before, true) > 1e-3, "the first head does not turn");
        const double others = head_difference(after, before, false);
        if (i) CHECK(others == 0, "other heads change by %g", others);
        else CHECK(others > 1e-3, "angles are not shared");
        close(&w);
    }
}

/* ---- pairs ---- */

static double the_fraction;
static void set_fraction(kr_mamba3_config *c)
{
    c->rope_fraction = the_fraction;
}
static void set_mimo_of_one(kr_mamba3_config *c)
{
    set_fraction(c);
    c->is_mimo = true;
    c->mimo_rank = 1;
}

/* Entry r of a state row in the other pairing: (2q, 2q + 1) against (q, q + 4). */
static int64_t partner_place(int64_t r)
{
    return r / 2 + r % 2 * 4;
}

/* is_mimo with rank 1 and unit maps is the block without it, but for the order of its state: halves, not neighbours. */
TEST(mamba3_is_mimo_decides_the_pairing)
{
    for (int i = 0; i < 2; i++) {
        the_fraction = i ? 1 : 0.5;
        bench siso = open(set_fraction), mimo = open(set_mimo_of_one);
        mimo.x = kr_from_data(mimo.tape, KR_DTYPE_F64, kr_tensor_shape(siso.x), kr_test_copy(siso.x));
        const kr_params *params = kr_mamba3_params(siso.m);
        for (int pass = 0; pass < 2; pass++) { /* first as they are, then in the other order */
            for (int64_t k = 0; k < kr_params_count(params); k++) {
                const kr_param_row *row = kr_params_at(params, k);
                const int64_t count = kr_tensor_count(row->tensor), nd = mimo.config.d_model;
                const bool maps = strncmp(row->name, "B_", 2) == 0 || strncmp(row->name, "C_", 2) == 0;
                const bool proj = strncmp(row->name, "in_proj", 7) == 0;
                const int64_t width = strcmp(row->name, "in_proj.weight") == 0 ? nd : 1;
                double *from = kr_test_values(row->tensor), *to = kr_test_values(row->tensor);
                for (int64_t e = 0; pass && (maps || proj) && e < count; e++) {
                    const int64_t at = e / width, base = proj ? at - (at - 48) % 8 : at - at % 8;
                    if (proj && (at < 48 || at >= 64)) continue; /* neither B nor C */
                    to[(base + partner_place(at - base)) * width + e % width] = from[e];
                }
                kr_param_write(param(&mimo, row->name), KR_DTYPE_F64, to, count);
                free(from);
                free(to);
            }
            kr_param_fill(param(&mimo, "mimo_x"), 1);
            kr_param_fill(param(&mimo, "mimo_z"), 1);
            kr_param_fill(param(&mimo, "mimo_o"), 1);
            const double far = difference(forward(&mimo).y, forward(&siso).y);
            if (pass) CHECK(far < 1e-12, "in the other order: %g", far);
            else CHECK(far > 1e-3, "both pair alike: %g", far);
        }
        close(&siso);
        close(&mimo);
    }
}
