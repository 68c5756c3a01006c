/* test_mamba3_op_laws.c - laws of Mamba-3's parts for any numbers: values by hand, carried = whole, packed = separate,
 * lengths kept, no drift, the same bits for any number of threads. */
#include "tests/harness.h"

#define PI 3.14159265358979323846

static kr_tensor *of(kr_tape *t, kr_dtype dtype, kr_shape shape, const double *values)
{
    return kr_cast(t, kr_from_data(t, KR_DTYPE_F64, shape, values), dtype);
}

static void check_list(const char *what, const kr_tensor *got, const double *want, int64_t count, double tolerance)
{
    if (!CHECK(kr_tensor_count(got) == count, "%s has %lld elements", what, (long long)kr_tensor_count(got))) return;
    double *values = kr_test_values(got);
    CHECK_CLOSE(what, values, want, count, NULL, tolerance, 1e-3);
    free(values);
}
#define VALUES(what, got, tolerance, ...)                                                                              \
    check_list(what, got, (const double[]){ __VA_ARGS__ },                                                             \
               (int64_t)(sizeof((double[]){ __VA_ARGS__ }) / sizeof(double)), tolerance)

/* Runs body with f32 and f64 on every instruction set. */
static void everywhere(void (*body)(kr_tape *t, kr_dtype d))
{
    char names[128];
    kr_isa_choices(names, sizeof names);
    for (char *isa = strtok(names, ", "); isa; isa = strtok(NULL, ", ")) {
        kr_ctx *ctx = kr_test_ctx(2, isa);
        for (int d = KR_DTYPE_F32; d <= KR_DTYPE_F64; d++) {
            kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
            body(tape, (kr_dtype)d);
            CHECK(!kr_ctx_failed(ctx), "%s %s: %s", isa, kr_dtype_name((kr_dtype)d), kr_ctx_message(ctx));
            kr_tape_destroy(tape);
        }
        kr_ctx_destroy(ctx);
    }
}
#define LAW(name)                                                                                                      \
    static void body_##name(kr_tape *t, kr_dtype d);                                                                   \
    TEST(mamba3_##name)                                                                                                \
    {                                                                                                                  \
        everywhere(body_##name);                                                                                       \
    }                                                                                                                  \
    static void body_##name(kr_tape *t, kr_dtype d)

static double roundings(kr_dtype d) /* roundings */
{
    return d == KR_DTYPE_F32 ? 1e-6 : 1e-14;
}

/* ---- values by hand ---- */

LAW(coefficients_by_hand)
{
    const kr_shape shape = KR_SHAPE(1, 1, 4);
    const double ln2 = 0.69314718055994531;
    kr_trapezoid_options o;
    kr_trapezoid_options_init(&o);
    kr_tensor *dt_raw = of(t, d, shape, (const double[]){ 0, 1, 30, -30 });
    kr_tensor *bias = of(t, d, KR_SHAPE(4), (const double[]){ 0, -1, 0, 0 });
    kr_tensor *a_raw = of(t, d, shape, (const double[]){ 0, 3, -3, -1e6 }), *l_raw = kr_zeros(t, d, shape);
    kr_trapezoid_out c = kr_trapezoid(t, dt_raw, bias, a_raw, l_raw, &o);
    VALUES("dt", c.dt_bsh, roundings(d), ln2, ln2, 30, 9.3576229688392989e-14);
    VALUES("da", c.da_bsh, roundings(d), -ln2, -4 * ln2, -7.5, -9.3576229688392989e-18);
    VALUES("gamma", c.gamma_bsh, roundings(d), ln2 / 2, ln2 / 2, 15, 4.6788114844196494e-14);
    VALUES("carry", c.carry_bsh, roundings(d), ln2 / 2, ln2 / 2, 15, 4.6788114844196494e-14);
    VALUES("beta", c.beta_bsh, roundings(d), ln2 / 4, ln2 / 32, 15 * exp(-7.5), 4.6788114844196494e-14);
    o.dt_min = 0.5;
    o.dt_max = 2;
    o.a_activation = KR_A_ACTIVATION_SOFTPLUS;
    c = kr_trapezoid(t, dt_raw, bias, a_raw, l_raw, &o);
    VALUES("dt in limits", c.dt_bsh, roundings(d), ln2, ln2, 2, 0.5);
    VALUES("da with softplus", c.da_bsh, roundings(d), -ln2 * ln2, -ln2 * log1p(exp(3)), -2 * log1p(exp(-3)), -0.5e-4);
}

/* On the kink of the heavy tail and at a limit gradients pass once; beyond them, not at all. */
LAW(coefficient_gradients_at_kinks)
{
    kr_trapezoid_options o;
    kr_trapezoid_options_init(&o);
    o.dt_max = 1;
    o.a_floor = 0.5;
    kr_tensor *dt_raw = kr_input(t, of(t, d, KR_SHAPE(1, 1, 3), (const double[]){ 0, 0, 5 }));
    kr_tensor *a_raw = kr_input(t, of(t, d, KR_SHAPE(1, 1, 3), (const double[]){ 0, -1, -4 }));
    kr_tensor *da = kr_trapezoid(t, dt_raw, NULL, a_raw, kr_zeros(t, d, KR_SHAPE(1, 1, 3)), &o).da_bsh;
    kr_backward_from(t, 1, &da, NULL);
    VALUES("g_dt_raw", kr_grad(dt_raw), roundings(d), -0.5, -0.25, 0);
    VALUES("g_a_raw", kr_grad(a_raw), roundings(d), -log(2), -log(2) / 4, 0);
}

LAW(scale_by_hand)
{
    const int64_t marks[8] = { 0, 0, 1, 0, 1, 1, 0, 0 };
    kr_tensor *gamma = of(t, d, KR_SHAPE(2, 4, 1), (const double[]){ 1, 2, 3, 4, 5, 6, 7, 8 });
    kr_tensor *carry = of(t, d, KR_SHAPE(2, 4, 1), (const double[]){ 10, 20, 30, 40, 50, 60, 70, 80 });
    VALUES("scale", kr_trapezoid_scale(t, gamma, carry, NULL), 0, 21, 32, 43, 4, 65, 76, 87, 8);
    VALUES("packed", kr_trapezoid_scale(t, gamma, carry, kr_from_data(t, KR_DTYPE_I64, KR_SHAPE(2, 4), marks)), 0, 21,
           2, 43, 4, 5, 76, 87, 8);
}

LAW(pairs_by_hand)
{
    const double row[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    kr_tensor *x = of(t, d, KR_SHAPE(1, 1, 1, 1, 8), row);
    kr_tensor *angle = of(t, d, KR_SHAPE(1, 1, 1, 3), (const double[]){ PI / 2, PI, 0 });
    VALUES("adjacent", kr_rotate(t, x, angle, KR_PAIRING_ADJACENT), roundings(d), -2, 1, -3, -4, 5, 6, 7, 8);
    VALUES("half", kr_rotate(t, x, angle, KR_PAIRING_SPLIT), roundings(d), -5, -2, 3, 4, 1, -6, 7, 8);
    kr_tensor *none = kr_zeros(t, d, KR_SHAPE(1, 1, 1, 0));
    VALUES("no pair", kr_rotate(t, x, none, KR_PAIRING_SPLIT), 0, 1, 2, 3, 4, 5, 6, 7, 8);
}

LAW(quaternions_by_hand)
{
    /* a quarter rotation about z: f = pi/4 = dt range pi/2 tanh(rho), dt = 1/2, and tanh is 1 for so long a generator */
    kr_tensor *dt = kr_full(t, d, KR_SHAPE(1, 2, 1), 0.5);
    kr_tensor *raw = of(t, d, KR_SHAPE(1, 2, 1, 1, 3), (const double[]){ 0, 0, 50, 50, 0, 0 });
    const double h = sqrt(0.5);
    kr_tensor *q = kr_quaternion_increments(t, raw, dt, 1);
    VALUES("increments", q, roundings(d), h, 0, 0, h, h, h, 0, 0);
    /* rotation by i after rotation by z: (h + h i)(h + h k) = 1/2 (1 + i - j + k) */
    kr_quaternion_out out = kr_quaternion_cumprod(t, q, NULL, NULL);
    VALUES("products", out.cum_bshj4, roundings(d), h, 0, 0, h, 0.5, 0.5, -0.5, 0.5);
    VALUES("final", out.final_bhj4, roundings(d), 0.5, 0.5, -0.5, 0.5);
    /* conj(h + h k) (1 + 2 i + 3 j + 4 k) = h ((1 + 4) + (2 + 3) i + (3 - 2) j + (4 - 1) k) */
    kr_tensor *x = of(t, d, KR_SHAPE(1, 2, 1, 1, 5), (const double[]){ 1, 2, 3, 4, 9, 1, 0, 0, 0, 9 });
    VALUES("rows", kr_quaternion_rotate(t, x, out.cum_bshj4), roundings(d), 5 * h, 5 * h, h, 3 * h, 9, 0.5, -0.5, 0.5,
           -0.5, 9);
}

LAW(qk_norm_by_hand)
{
    /* two groups of one token, four heads: heads 0, 1 take the first group */
    kr_tensor *x = of(t, d, KR_SHAPE(1, 1, 1, 2, 2), (const double[]){ 3, 4, 0, 2 });
    kr_tensor *gain = of(t, d, KR_SHAPE(2), (const double[]){ 1, 10 });
    kr_tensor *bias = of(t, d, KR_SHAPE(4, 1, 2), (const double[]){ 0, 0, 1, 1, 2, 2, 3, 3 });
    const double n = sqrt(12.5), two = sqrt(2);
    VALUES("qk_norm", kr_qk_norm(t, x, gain, bias, 4, 0), roundings(d), 3 / n, 40 / n, 1 + 3 / n, 1 + 40 / n, 2,
           2 + 10 * two, 3, 3 + 10 * two);
}

/* ---- the single pathway's state is the recurrence's ---- */

/* One head of size 1 x 1: H_t = alpha H + beta k_{t-1} v_{t-1} + gamma k_t v_t against H' with scale and boundary. */
LAW(scale_and_boundary_give_the_recurrence)
{
    enum { NS = 7 };
    const kr_shape shape = KR_SHAPE(1, NS, 1);
    kr_trapezoid_out c =
        kr_trapezoid(t, kr_randn(t, d, shape), NULL, kr_randn(t, d, shape), kr_randn(t, d, shape), NULL);
    kr_tensor *scale = kr_trapezoid_scale(t, c.gamma_bsh, c.carry_bsh, NULL), *kv = kr_randn(t, d, KR_SHAPE(NS));
    kr_tensor *state = kr_randn(t, d, KR_SHAPE(1, 1, 1, 1)), *v = kr_randn(t, d, KR_SHAPE(1, 1, 1, 1)),
              *k = kr_randn(t, d, KR_SHAPE(1, 1, 1, 1));
    kr_tensor *carry0 = kr_reshape(t, kr_slice(t, c.carry_bsh, 1, 0, 1), KR_SHAPE(1, 1));
    double plain = kr_item(state), single = kr_item(kr_boundary_state(t, state, carry0, v, k));
    double before = kr_item(k) * kr_item(v);
    for (int64_t s = 0; s < NS; s++) {
        const int64_t at[3] = { 0, s, 0 };
        const double alpha = exp(kr_tensor_at(c.da_bsh, at)), now = kr_tensor_at(kv, &s);
        plain = alpha * plain + kr_tensor_at(c.beta_bsh, at) * before + kr_tensor_at(c.gamma_bsh, at) * now;
        single = alpha * single + kr_tensor_at(scale, at) * now;
        before = now;
    }
    CHECK(fabs(plain - single) <= 20 * roundings(d), "%.9g and %.9g", plain, single);
}

/* ---- carried = whole, packed = separate ---- */

/* Angles modulo 2 pi: both are brought to the same period. */
static void check_angles(const char *what, const kr_tensor *got, const kr_tensor *want, double tolerance)
{
    double *a = kr_test_values(got), *b = kr_test_values(want);
    for (int64_t i = 0; i < kr_tensor_count(want); i++) a[i] -= 2 * PI * rint((a[i] - b[i]) / (2 * PI));
    CHECK_CLOSE(what, a, b, kr_tensor_count(want), NULL, tolerance, 1);
    free(a);
    free(b);
}

static kr_tensor *joined(kr_tape *t, kr_tensor *a, kr_tensor *b)
{
    return kr_concat(t, 1, 2, (kr_tensor *[]){ a, b });
}

/* Rotates rows by theta and dt in one call, or in two with the angle carried over; the gradients through it. */
static kr_tensor *rotated_rows(kr_tape *t, kr_tensor *x, kr_tensor *theta, kr_tensor *dt, int64_t cut,
                               kr_tensor **final)
{
    const int64_t ns = kr_tensor_dim(x, 1);
    kr_rotation_out first =
        kr_rotation_angles(t, kr_slice(t, theta, 1, 0, cut), kr_slice(t, dt, 1, 0, cut), NULL, 1, NULL);
    kr_tensor *angle = first.angle_bsha;
    if (cut < ns) {
        kr_rotation_out second = kr_rotation_angles(t, kr_slice(t, theta, 1, cut, ns), kr_slice(t, dt, 1, cut, ns),
                                                    first.final_bha, 1, NULL);
        angle = joined(t, angle, second.angle_bsha);
        first = second;
    }
    *final = first.final_bha;
    return kr_rotate(t, x, angle, KR_PAIRING_ADJACENT);
}

static kr_tensor *rotated_float4(kr_tape *t, kr_tensor *x, kr_tensor *raw, kr_tensor *dt, int64_t cut,
                                 kr_tensor **final)
{
    const int64_t ns = kr_tensor_dim(x, 1);
    kr_tensor *q = kr_quaternion_increments(t, raw, dt, 1);
    kr_quaternion_out first = kr_quaternion_cumprod(t, kr_slice(t, q, 1, 0, cut), NULL, NULL);
    kr_tensor *cum = first.cum_bshj4;
    if (cut < ns) {
        kr_quaternion_out second = kr_quaternion_cumprod(t, kr_slice(t, q, 1, cut, ns), first.final_bhj4, NULL);
        cum = joined(t, cum, second.cum_bshj4);
        first = second;
    }
    *final = first.final_bhj4;
    return kr_quaternion_rotate(t, x, cum);
}

typedef kr_tensor *rotary_fn(kr_tape *t, kr_tensor *x, kr_tensor *raw, kr_tensor *dt, int64_t cut, kr_tensor **final);

static void check_split(kr_tape *t, kr_dtype d, rotary_fn *rotated, kr_shape raw_shape, bool is_angle)
{
    const int64_t ns = raw_shape.dims[1];
    kr_tensor *x0 = kr_randn(t, d, KR_SHAPE(2, ns, 2, 3, 16)), *raw0 = kr_randn(t, d, raw_shape);
    kr_tensor *dt0 = kr_rand(t, d, KR_SHAPE(2, ns, 3), 0, 1), *w = kr_randn(t, d, KR_SHAPE(2, ns, 2, 3, 16));
    kr_tensor *y[2], *final[2], *leaf[2][3], *seeds[4];
    for (int i = 0; i < 2; i++) {
        leaf[i][0] = kr_input(t, x0);
        leaf[i][1] = kr_input(t, raw0);
        leaf[i][2] = kr_input(t, dt0);
        y[i] = rotated(t, leaf[i][0], leaf[i][1], leaf[i][2], i == 0 ? ns : ns / 3, &final[i]);
    }
    kr_tensor *w_final = kr_full(t, d, kr_tensor_shape(final[0]), 0.5);
    seeds[0] = seeds[1] = w;
    seeds[2] = seeds[3] = w_final;
    CHECK_TENSORS("split, y", y[1], y[0], 4 * roundings(d), 1);
    if (is_angle) check_angles("split, final", final[1], final[0], roundings(d));
    else CHECK_TENSORS("split, final", final[1], final[0], roundings(d), 1);
    kr_backward_from(t, 4, (kr_tensor *[]){ y[0], y[1], final[0], final[1] }, seeds);
    for (int i = 0; i < 3; i++)
        CHECK_TENSORS("split, gradient", kr_grad(leaf[1][i]), kr_grad(leaf[0][i]), 10 * roundings(d), 1);
}

LAW(carried_is_whole)
{
    check_split(t, d, rotated_rows, KR_SHAPE(2, 301, 5), true);
}

LAW(carried_is_whole_with_quaternions)
{
    check_split(t, d, rotated_float4, KR_SHAPE(2, 41, 3, 3, 3), false);
}

/* A packed row against its sequences alone, bit by bit. */
LAW(packed_is_separate)
{
    enum { NS = 150, CUT = 133 };
    int32_t marks[NS] = { 0 };
    marks[CUT] = 1;
    kr_tensor *start = kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(1, NS), marks);
    kr_tensor *theta = kr_randn(t, d, KR_SHAPE(1, NS, 5)), *dt = kr_rand(t, d, KR_SHAPE(1, NS, 3), 0, 1);
    kr_tensor *q = kr_quaternion_increments(t, kr_randn(t, d, KR_SHAPE(1, NS, 3, 2, 3)), dt, 1);
    kr_tensor *phi = kr_randn(t, d, KR_SHAPE(2, 3, 5)), *initial = kr_rand(t, d, KR_SHAPE(2, 3, 2, 4), 0.1, 1);
    const kr_rotation_out both = kr_rotation_angles(t, theta, dt, phi, 1, start);
    const kr_quaternion_out both_q = kr_quaternion_cumprod(t, q, initial, start);
    for (int i = 0; i < 2; i++) {
        const int64_t from = i ? CUT : 0, to = i ? NS : CUT;
        const kr_rotation_out one = kr_rotation_angles(t, kr_slice(t, theta, 1, from, to), kr_slice(t, dt, 1, from, to),
                                                       kr_slice(t, phi, 0, i, i + 1), 1, NULL);
        CHECK_SAME_BITS("angle", kr_slice(t, both.angle_bsha, 1, from, to), one.angle_bsha);
        CHECK_SAME_BITS("final angle", kr_slice(t, both.final_bha, 0, i, i + 1), one.final_bha);
        const kr_quaternion_out one_q =
            kr_quaternion_cumprod(t, kr_slice(t, q, 1, from, to), kr_slice(t, initial, 0, i, i + 1), NULL);
        CHECK_SAME_BITS("product", kr_slice(t, both_q.cum_bshj4, 1, from, to), one_q.cum_bshj4);
        CHECK_SAME_BITS("final product", kr_slice(t, both_q.final_bhj4, 0, i, i + 1), one_q.final_bhj4);
    }
}

/* ---- lengths, wrapping, drift ---- */

static void check_lengths(kr_tape *t, const char *what, kr_tensor *y, kr_tensor *x, double tolerance)
{
    kr_tensor *a = kr_sum(t, kr_mul(t, y, y), KR_AXES(-1), false), *b = kr_sum(t, kr_mul(t, x, x), KR_AXES(-1), false);
    CHECK_TENSORS(what, a, b, tolerance, 1);
}

LAW(rotations_keep_lengths)
{
    kr_tensor *x = kr_randn(t, d, KR_SHAPE(2, 9, 2, 3, 20)), *dt = kr_rand(t, d, KR_SHAPE(2, 9, 3), 0, 5);
    kr_tensor *angle = kr_rand(t, d, KR_SHAPE(2, 9, 3, 7), -9, 9);
    check_lengths(t, "adjacent", kr_rotate(t, x, angle, KR_PAIRING_ADJACENT), x, 2 * roundings(d));
    check_lengths(t, "half", kr_rotate(t, x, angle, KR_PAIRING_SPLIT), x, 2 * roundings(d));
    kr_tensor *q = kr_quaternion_increments(t, kr_randn(t, d, KR_SHAPE(2, 9, 3, 4, 3)), dt, 2);
    check_lengths(t, "increments", q, kr_full(t, d, KR_SHAPE(2, 9, 3, 4, 1), 1), 2 * roundings(d));
    check_lengths(t, "quaternions", kr_quaternion_rotate(t, x, kr_quaternion_cumprod(t, q, NULL, NULL).cum_bshj4), x,
                  2 * roundings(d));
}

/* Many rotations in one step: the angle stays in [-pi, pi], the gradient is that of the unwrapped angle. */
LAW(wrapping_keeps_gradients)
{
    kr_tensor *theta = kr_input(t, kr_full(t, d, KR_SHAPE(1, 3, 1), 0.5)),
              *dt = kr_input(t, kr_full(t, d, KR_SHAPE(1, 3, 1), 100));
    kr_rotation_out out = kr_rotation_angles(t, theta, dt, NULL, 2, NULL);
    const double turn = 2 * PI * tanh(0.5);
    for (int64_t s = 0; s < 3; s++) {
        const double got = kr_tensor_at(out.angle_bsha, (int64_t[]){ 0, s, 0, 0 });
        const double error = remainder(got - 100 * turn * (double)(s + 1), 2 * PI);
        CHECK(fabs(got) <= (double)(float)PI && fabs(error) <= (d == KR_DTYPE_F32 ? 2e-7 : 1e-12),
              "token %lld: %.9g, error %g", (long long)s, got, error);
    }
    kr_backward_from(t, 1, &out.angle_bsha, NULL);
    const double slope = 200 * PI * (1 - tanh(0.5) * tanh(0.5));
    VALUES("g_theta", kr_grad(theta), roundings(d), 3 * slope, 2 * slope, slope);
    VALUES("g_dt", kr_grad(dt), roundings(d), 3 * turn, 2 * turn, turn);
}

enum { LONG = 100000 };

LAW(long_sequences_do_not_drift)
{
    const double theta = (double)0.3f, dt = (double)0.11f;
    kr_tensor *angle = kr_rotation_angles(t, kr_full(t, d, KR_SHAPE(1, LONG, 1), theta),
                                          kr_full(t, d, KR_SHAPE(1, LONG, 1), dt), NULL, 1, NULL)
                           .final_bha;
    const double error = remainder(kr_item(angle) - LONG * (dt * PI * tanh(theta)), 2 * PI);
    CHECK(fabs(error) <= (d == KR_DTYPE_F32 ? 2.5e-7 : 1e-9), "after %d tokens the angle is off by %g", LONG, error);
    /* n increments about one axis are one of n times the angle */
    const double w = (double)0.8f, z = (double)0.6f, f = atan2(z, w) * LONG;
    kr_tensor *one = of(t, d, KR_SHAPE(1, 1, 1, 1, 4), (const double[]){ w, 0, 0, z });
    kr_quaternion_out out = kr_quaternion_cumprod(t, kr_expand(t, one, KR_SHAPE(1, LONG, 1, 1, 4)), NULL, NULL);
    check_list("product", out.final_bhj4, (const double[]){ cos(f), 0, 0, sin(f) }, 4, d == KR_DTYPE_F32 ? 2e-7 : 1e-9);
}

/* ---- threads ---- */

static void run_all(int threads, kr_tensor **out, kr_ctx **ctx, kr_tape **tape)
{
    *ctx = kr_test_ctx(threads, NULL);
    *tape = kr_tape_create(*ctx, KR_TAPE_GRAD);
    kr_tape *t = *tape;
    kr_tensor *raw = kr_input(t, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(2, 400, 6))),
              *bias = kr_input(t, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(6)));
    kr_tensor *theta = kr_input(t, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(2, 400, 16)));
    kr_tensor *axis = kr_input(t, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(2, 400, 6, 8, 3)));
    kr_tensor *b = kr_input(t, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(2, 400, 2, 2, 64)));
    kr_trapezoid_out c = kr_trapezoid(t, raw, bias, raw, raw, NULL);
    kr_tensor *x = kr_qk_norm(t, b, NULL, NULL, 6, 1e-5);
    x = kr_rotate(t, x, kr_rotation_angles(t, theta, c.dt_bsh, NULL, 1, NULL).angle_bsha, KR_PAIRING_SPLIT);
    kr_tensor *q = kr_quaternion_increments(t, axis, c.dt_bsh, 1);
    x = kr_quaternion_rotate(t, x, kr_quaternion_cumprod(t, q, NULL, NULL).cum_bshj4);
    kr_tensor *scale = kr_trapezoid_scale(t, c.beta_bsh, c.carry_bsh, NULL);
    kr_backward_from(t, 2, (kr_tensor *[]){ x, scale }, (kr_tensor *[]){ kr_sin(t, x), scale });
    CHECK_OK(*ctx);
    kr_tensor *all[] = { x, scale, kr_grad(raw), kr_grad(bias), kr_grad(theta), kr_grad(axis), kr_grad(b) };
    memcpy(out, all, sizeof all);
}

TEST(mamba3_same_bits_for_any_number_of_threads)
{
    kr_tensor *want[7], *got[7];
    kr_ctx *one, *many;
    kr_tape *one_tape, *many_tape;
    run_all(1, want, &one, &one_tape);
    for (int threads = 2; threads <= 3; threads++) {
        run_all(threads, got, &many, &many_tape);
        for (int i = 0; i < 7; i++) CHECK_SAME_BITS("threads", got[i], want[i]);
        kr_tape_destroy(many_tape);
        kr_ctx_destroy(many);
    }
    kr_tape_destroy(one_tape);
    kr_ctx_destroy(one);
}
