/* tolerance.c - how far each kernel may be from the f64 reference, and why. */
#include "tests/kernels/conformance.h"

static const struct {
    const char *kernel;
    kr_tolerance tolerance;
} table[] = {
    /* Elementwise: ulps are what vec_math.h states, and one more rounding where a product follows. */
    { "scale", { .ulps = 1, .plain = 2, .why = "two roundings, which count where alpha x and beta cancel" } },
    { "scale_bwd", { .exact = true, .why = "one product: a double product rounds to the same float" } },
    { "exp", { .ulps = 1, .why = "vf_exp" } },
    { "exp_bwd", { .exact = true, .why = "one product" } },
    { "log", { .ulps = 1, .why = "vf_log" } },
    { "log_bwd", { .ulps = 1, .why = "one quotient, where the reference takes g times 1 / x" } },
    { "sqrt", { .exact = true, .why = "correctly rounded by IEEE 754; double first changes nothing" } },
    { "sqrt_bwd", { .ulps = 1, .why = "one quotient, in another order than the reference" } },
    { "rsqrt", { .ulps = 1.5, .why = "a root and a quotient" } },
    { "rsqrt_bwd", { .ulps = 3, .why = "three products after an exact halving" } },
    { "sin", { .ulps = 1.5, .why = "vf_sin" } },
    { "sin_bwd", { .ulps = 2.5, .why = "vf_cos and a product" } },
    { "cos", { .ulps = 1.5, .why = "vf_cos" } },
    { "cos_bwd", { .ulps = 2.5, .why = "vf_sin and a product" } },
    { "tanh", { .ulps = 1, .far_f64 = 6, .why = "vf_tanh; in f64 two ulp of the C library's, one of CUDA's" } },
    { "tanh_bwd",
      { .ulps = 1,
        .plain = 3,
        .far_f64 = 12,
        .why = "1 - y^2 keeps the rounding of y, which is relative to 1; in f64 1 / cosh^2 has the error of cosh "
               "twice" } },
    { "sigmoid", { .ulps = 2, .far_f64 = 4, .why = "vf_sigmoid; in f64 three roundings on either side" } },
    { "sigmoid_bwd", { .ulps = 2, .plain = 3, .why = "y (1 - y) keeps the rounding of y" } },
    { "silu", { .ulps = 2, .far_f64 = 5, .why = "vf_silu; as sigmoid, and a product" } },
    { "silu_bwd",
      { .ulps = 3, .plain = 4, .why = "s (1 + x (1 - s)) crosses 0 near x = -1.28, where its terms cancel" } },
    { "softplus", { .ulps = 2, .why = "vf_softplus" } },
    { "softplus_bwd", { .ulps = 3, .far_f64 = 5, .why = "vf_sigmoid and a product" } },
    { "log_sigmoid", { .ulps = 2, .why = "vf_softplus" } },
    { "log_sigmoid_bwd", { .ulps = 3, .far_f64 = 5, .why = "vf_sigmoid and a product" } },
    { "clamp", { .exact = true, .why = "one of its operands" } },
    { "clamp_bwd", { .exact = true, .any_zero = true, .why = "g or a zero" } },
    { "add", { .exact = true, .why = "one IEEE operation; double first changes nothing" } },
    { "sub", { .exact = true, .why = "as add" } },
    { "mul", { .exact = true, .why = "as add: the double product is exact" } },
    { "div", { .exact = true, .why = "as add: a quotient of floats is never so near a tie that 53 bits hide it" } },
    { "maximum", { .exact = true, .why = "one of its operands" } },
    { "maximum_bwd", { .exact = true, .why = "g, half of it, or 0" } },
    { "where", { .exact = true, .why = "one of its operands" } },

    /* Sums: the scale is the sum of magnitudes; errors of a chain of n roundings grow like n^1/2. */
    { "sum", { .ulps = 1, .plain = 2, .root = 1, .why = "blocks in float, then in double" } },
    { "max", { .exact = true, .any_zero = true, .why = "one of its operands; of two zeros either" } },
    { "max_bwd", { .exact = true, .why = "g or 0" } },
    { "cumsum", { .ulps = 1, .plain = 1, .root = 1, .why = "a chain of additions in float" } },
    { "segsum", { .ulps = 1, .plain = 1, .root = 1, .why = "a chain of additions in float" } },
    { "segsum_bwd", { .ulps = 1, .plain = 2, .root = 1, .why = "column sums, then their sum, in float" } },
    { "matmul",
      { .far_chooses = true,
        .ulps = 1,
        .plain = 2,
        .root = 1,
        .why = "chains of fused multiply-adds, scale sum |a b|" } },
    { "panels", { .ulps = 1, .plain = 2, .root = 1, .why = "as matmul" } },
    { "conv",
      { .ulps = 2, .plain = 4, .root = 1, .why = "the sum's error passes through silu with a slope below 1.1" } },
    { "conv_bwd",
      { .ulps = 4, .plain = 24, .root = 4, .why = "u's error enters by silu'' <= 1/2, times a sum of taps" } },
    { "softmax", { .ulps = 2, .plain = 4, .root = 1, .why = "x - m has a rounding that e^ multiplies by |x - m|" } },
    { "softmax_bwd",
      { .ulps = 2, .plain = 4, .root = 1, .why = "g - <y, g> cancels; scale is the sum of magnitudes" } },
    { "cross_entropy",
      { .ulps = 3,
        .plain = 4,
        .root = 1,
        .why = "as softmax, and ln of the sum beside the largest; scales as there" } },
    { "cross_entropy_bwd",
      { .ulps = 3, .plain = 4, .why = "e^ of a difference, and a fused product less a constant" } },
    { "norm", { .ulps = 4, .plain = 4, .root = 1, .why = "a sum of squares (no cancellation), silu, four products" } },
    { "norm_bwd",
      { .ulps = 4, .plain = 16, .root = 2, .why = "two terms that cancel; scale is their magnitudes' sum" } },

    { "gate", { .ulps = 3, .far_f64 = 6, .why = "vf_silu and a product" } },
    { "gate_bwd", { .ulps = 4, .plain = 5, .why = "as gate; silu' crosses 0, where its terms cancel: scale |g_y x|" } },

    /* Moves: exact. Gradients of gathers add up in their own type, in the reference too. */
    { "gather", { .exact = true, .why = "moved" } },
    { "gather_bwd",
      { .adds_in_place = true, .ulps = 1, .plain = 1, .root = 1, .why = "a chain of additions in float" } },
    { "embedding", { .exact = true, .why = "moved" } },
    { "embedding_bwd",
      { .adds_in_place = true, .ulps = 1, .plain = 1, .root = 1, .why = "a chain of additions in float" } },
    { "copy", { .exact = true, .why = "moved, or rounded once" } },
    { "fill", { .exact = true, .why = "one value" } },
    { "random", { .exact = true, .why = "integer arithmetic and IEEE operations in a fixed order" } },
    { "finite", { .exact = true, .why = "an index" } },

    /* Mamba-3's parts: functions of a few ULP each, then products; what runs along a sequence does so in double. */
    { "trapezoid", { .ulps = 6, .plain = 4, .why = "softplus, sigmoid and exp, then up to three products" } },
    { "trapezoid_bwd", { .ulps = 6, .plain = 16, .why = "terms of both signs, each good to some ULP" } },
    { "angles", { .ulps = 1, .plain = 1, .doubles = 16, .why = "one rounding of a double; steps of up to 10" } },
    { "angles_bwd", { .ulps = 4, .plain = 4, .root = 2, .why = "a chain over tokens, then one over heads or angles" } },
    { "rotate", { .ulps = 1, .plain = 6, .why = "sine and cosine to 1.5 ULP, two products that may cancel" } },
    { "rotate_bwd", { .ulps = 1, .plain = 6, .root = 2, .why = "as rotate; the angle's gradient sums over ranks" } },
    { "quaternion_exp",
      { .ulps = 4, .plain = 8, .why = "a length, tanh and sine, each an ULP or two, of angles up to 4" } },
    { "quaternion_exp_bwd",
      { .ulps = 4, .plain = 24, .root = 2, .why = "as exp, and terms that cancel for short ones" } },
    { "quaternion_scan", { .ulps = 1, .plain = 1, .doubles = 4, .why = "one rounding of a double" } },
    { "quaternion_scan_bwd",
      { .ulps = 1, .plain = 1, .doubles = 16, .why = "one rounding of a double; sums that grow with the tokens" } },
    { "quaternion_rotate", { .ulps = 1, .plain = 4, .root = 1, .why = "four products" } },
    { "quaternion_rotate_bwd", { .ulps = 1, .plain = 4, .root = 2, .why = "four products for each rank" } },

    /* The state space core: the scale is a sum of magnitudes; an exponent's rounding grows with its size. */
    { "ssd", { .ulps = 2, .plain = 16, .root = 1, .why = "chains over r and a chunk's rows, e^a to some ULP" } },
    { "ssd_bwd",
      { .ulps = 4, .plain = 32, .root = 2, .why = "as ssd, twice; g_da is a difference of sums over a chunk" } },
    { "scan", { .ulps = 2, .plain = 8, .root = 1, .why = "a chain of products over tokens, a sum over states" } },
    { "scan_bwd", { .ulps = 4, .plain = 16, .root = 2, .why = "as scan, there and back; then sums over all tokens" } },

    /* One token: as the kernels that they join; scales are bounds of a sum of magnitudes. */
    { "token_linear",
      { .far_chooses = true, .ulps = 4, .plain = 8, .root = 1, .why = "a norm, then a chain along k, then silu" } },
    { "token_ssd",
      { .adds_in_place = true, .ulps = 2, .plain = 8, .root = 1, .why = "softplus, two exponentials, a sum over r" } },
    { "token_scan",
      { .ulps = 2,
        .plain = 8,
        .root = 1,
        .far_f64 = 4,
        .why = "a chain along x, softplus, two exponentials, a sum over r" } },
    { "token_mamba3",
      { .ulps = 2, .plain = 8, .root = 1, .far_f64 = 4, .why = "norms, turns, exponentials, sums over ranks and r" } },
    { "sample", { .ulps = 2, .plain = 4, .why = "a logit less the logarithm of a sum in double; ids are exact" } },

    /* Steps of optimizers: the scale is what the terms come to when nothing cancels. */
    { "adamw", { .ulps = 1, .plain = 12, .why = "some ten roundings, constants included, of terms that may cancel" } },
    { "sgd", { .ulps = 1, .plain = 8, .why = "some six roundings, constants included, of terms that may cancel" } },
    { "lerp", { .ulps = 1, .plain = 2, .why = "a difference, the constant, and a fused sum" } },
    { "squares", { .exact = true, .why = "squares are exact in double, and the order of their sums is fixed" } },
};

const kr_tolerance *kr_tolerance_of(const char *kernel)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i].kernel, kernel) == 0) return &table[i].tolerance;
    return NULL;
}
