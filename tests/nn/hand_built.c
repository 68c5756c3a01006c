/* hand_built.c - the parameters that solve the reset tasks, and the logits that they must give.
 *
 * The stack's input for a symbol is its embedding, of mean square 1, so that the layer's norm leaves it as it is, but
 * for its epsilon. A row of the block's in_proj is an affine function of it, and so can have any values at the three
 * symbols: the rows below are written as those values, and solved for.
 */
#include "tests/nn/hand_built.h"

#include "tests/harness.h"

#define NORM_EPS 8.1585e-8 /* the reference's, for f32 */
#define DT_LIMIT 65504.0
#define PI 3.14159265358979323846

enum { MAX_ROWS = 40, MAX_D = 4 };

/* ---- the networks, as they are learned ---- */

static int64_t width(task_kind task)
{
    return task == LAB_TASK_SPINOR ? 4 : 2;
}

static void init_mamba2(kr_mamba2_config *config, kr_dtype dtype)
{
    kr_mamba2_config_init(config);
    config->dtype = dtype;
    config->d_model = width(LAB_TASK_MAJORITY);
    config->state_rank = 1;
    config->conv_kernel = 1;
    config->expand = 1;
    config->per_head_dim = 1;
    config->has_proj_bias = true;
    config->norm_eps = NORM_EPS;
    config->dt_limit_max = DT_LIMIT;
}

static void init_mamba3(kr_mamba3_config *config, task_kind task, kr_dtype dtype)
{
    kr_mamba3_config_init(config);
    config->dtype = dtype;
    config->d_model = width(task);
    config->state_rank = width(task);
    config->expand = 1;
    config->per_head_dim = 1;
    config->rope_fraction = 1;
    config->rotation_range = 2;
    config->a_activation = KR_A_ACTIVATION_SOFTPLUS;
    config->has_proj_bias = true;
    config->norm_eps = NORM_EPS;
    config->dt_limit_max = DT_LIMIT;
}

kr_network *task_network(kr_ctx *ctx, task_kind task, kr_dtype dtype, kr_rotation_kind rotation,
                         kr_mamba3_pathway pathway)
{
    kr_mamba2_config mamba2;
    kr_mamba3_config mamba3;
    init_mamba2(&mamba2, dtype);
    init_mamba3(&mamba3, task, dtype);
    mamba3.rotation = rotation;
    mamba3.pathway = pathway;
    kr_layers_config layers;
    kr_layers_config_init(&layers);
    layers.block = task == LAB_TASK_MAJORITY ? kr_mamba2_block(&mamba2) : kr_mamba3_block(&mamba3);
    layers.n_layers = 1;
    layers.norm_eps = NORM_EPS;
    layers.ignore_last_residual = true;
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &layers;
    config.input_size = TASK_SYMBOLS;
    config.output_size = lab_task_classes(task);
    return kr_network_create(ctx, &config);
}

/* ---- writing parameters ---- */

static double silu(double x)
{
    return x / (1 + exp(-x));
}

/* On the branch where silu rises. */
static double inverse_silu(double y)
{
    double low = -1.2784645427610738, high = fabs(y) + 2;
    for (int i = 0; i < 200; i++) {
        const double middle = (low + high) / 2;
        if (silu(middle) < y) low = middle;
        else high = middle;
    }
    return (low + high) / 2;
}

static double inverse_softplus(double y)
{
    return y + log(-expm1(-y));
}

static void put(const kr_network *net, const char *name, const double *values, int64_t count)
{
    const kr_param_row *row = kr_params_find(kr_network_params(net), name);
    if (!CHECK(row != NULL, "there is no parameter %s", name)) return;
    CHECK(kr_param_write(row->tensor, KR_DTYPE_F64, values, count) == KR_OK, "%s cannot be written", name);
}

static void fill(const kr_network *net, const char *name, double value)
{
    const kr_param_row *row = kr_params_find(kr_network_params(net), name);
    if (CHECK(row != NULL, "there is no parameter %s", name)) kr_param_fill(row->tensor, value);
}

#define LAYER "backbone.layers.0."
#define MIXER LAYER "mixer."

static const double embeddings_2[TASK_SYMBOLS][MAX_D] = { { 1.4142135623730951, 0 },
                                                          { 0, 1.4142135623730951 },
                                                          { -1, -1 } };
static const double embeddings_4[TASK_SYMBOLS][MAX_D] = { { 2 }, { 0, 2 }, { 0, 0, 2 } };

/* Rows of the block's in_proj in their order, as values at the symbols. */
typedef struct in_rows {
    int64_t count;
    double at[MAX_ROWS][TASK_SYMBOLS];
} in_rows;

static void add(in_rows *rows, double at_first, double at_second, double at_reset)
{
    double *row = rows->at[rows->count++];
    row[0] = at_first;
    row[1] = at_second;
    row[2] = at_reset;
}

static void add_same(in_rows *rows, int64_t count, double value)
{
    for (int64_t i = 0; i < count; i++) add(rows, value, value, value);
}

/* Gauss and Jordan, three unknowns, by the largest pivot: a [3 4] -> the solution in its last column. */
static void solve(double a[3][4])
{
    for (int k = 0; k < 3; k++) {
        int pivot = k;
        for (int i = k + 1; i < 3; i++)
            if (fabs(a[i][k]) > fabs(a[pivot][k])) pivot = i;
        for (int j = 0; j < 4; j++) {
            const double swapped = a[k][j];
            a[k][j] = a[pivot][j];
            a[pivot][j] = swapped;
        }
        for (int j = 3; j >= k; j--) a[k][j] /= a[k][k];
        for (int i = 0; i < 3; i++)
            for (int j = 3; i != k && j >= k; j--) a[i][j] -= a[i][k] * a[k][j];
    }
}

/* Three unknowns for three values: two weights and the bias, or three weights where there are as many. */
static void put_in_rows(const kr_network *net, const in_rows *rows, int64_t nd)
{
    double weight[MAX_ROWS * MAX_D] = { 0 }, bias[MAX_ROWS] = { 0 };
    for (int64_t row = 0; row < rows->count; row++) {
        double a[3][4];
        for (int symbol = 0; symbol < TASK_SYMBOLS; symbol++) {
            const double *embedding = nd == 2 ? embeddings_2[symbol] : embeddings_4[symbol];
            double square = 0;
            for (int64_t d = 0; d < nd; d++) square += embedding[d] * embedding[d];
            for (int d = 0; d < 3; d++) a[symbol][d] = d < nd ? embedding[d] / sqrt(square / (double)nd + NORM_EPS) : 1;
            a[symbol][3] = rows->at[row][symbol];
        }
        solve(a);
        for (int d = 0; d < 3; d++) *(d < nd ? &weight[row * nd + d] : &bias[row]) = a[d][3];
    }
    put(net, MIXER "in_proj.weight", weight, rows->count * nd);
    put(net, MIXER "in_proj.bias", bias, rows->count);
}

/* What is the same in all of them: embeddings, gains of 1, out_proj the identity; all else 0 until it is written. */
static void put_frame(const kr_network *net, int64_t nd)
{
    const kr_params *params = kr_network_params(net);
    for (int64_t i = 0; i < kr_params_count(params); i++) kr_param_fill(kr_params_at(params, i)->tensor, 0);
    double embedding_df[MAX_D * TASK_SYMBOLS], identity[MAX_D * MAX_D];
    for (int64_t i = 0; i < nd * TASK_SYMBOLS; i++)
        embedding_df[i] = (nd == 2 ? embeddings_2 : embeddings_4)[i % TASK_SYMBOLS][i / TASK_SYMBOLS];
    for (int64_t i = 0; i < nd * nd; i++) identity[i] = i / nd == i % nd;
    put(net, "in_proj.weight", embedding_df, nd * TASK_SYMBOLS);
    fill(net, LAYER "norm.weight", 1);
    put(net, MIXER "out_proj.weight", identity, nd * nd);
}

/* ---- majority ----
 *
 *   head 0: H = .99999 H +- 2e-3, or nearly 0 H for a reset; y = 1000 H = 2 (#+ - #-)
 *   head 1: y = 1, for the gated norm to weigh head 0 against
 */
static void put_majority(const kr_network *net, hand_flaw flaw)
{
    const double one = inverse_silu(1), dt = inverse_softplus(1e-5);
    const double logit_wd[] = { -3, 0, 3, 0 }, skip_h[] = { 0, 1 };
    const double a_log_h[] = { log(-log(0.99999) / 1e-5), 0 };
    in_rows rows = { 0 };
    add_same(&rows, 2, 5);                                /* z */
    add(&rows, inverse_silu(-0.2), inverse_silu(0.2), 0); /* x, head 0 */
    add_same(&rows, 1, one);                              /* x, head 1 */
    add_same(&rows, 2, inverse_silu(1000));               /* B and C */
    add(&rows, dt, dt, flaw == HAND_NO_RESET ? dt : inverse_softplus(20));
    add_same(&rows, 1, inverse_softplus(1e-12));
    put_frame(net, 2);
    put_in_rows(net, &rows, 2);
    fill(net, MIXER "conv1d.weight", 1);
    put(net, MIXER "A_log", a_log_h, 2);
    put(net, MIXER "D", skip_h, 2);
    fill(net, MIXER "norm.weight", 1);
    put(net, "out_proj.weight", logit_wd, 4);
}

/* ---- rotor and spinor ----
 *
 * Only a reset writes: it clears the state and puts B there. The other symbols turn it, and each head reads one entry
 * of it, by its own C. gamma = dt = 1, and the decay is what a_floor leaves: exp(-1e-4).
 */
static void add_anchor_rows(in_rows *rows, int64_t nh, hand_flaw flaw)
{
    const double at_reset = flaw == HAND_NO_RESET ? -20 : inverse_softplus(20);
    add_same(rows, nh, 5);                                               /* z */
    for (int64_t h = 0; h < nh; h++) add(rows, 0, 0, inverse_silu(1));   /* x */
    for (int64_t i = 0; i < 2 * nh; i++) add_same(rows, 1, i % nh == 0); /* B and C: the first of r = h entries */
    add_same(rows, nh, inverse_softplus(1));                             /* dt */
    for (int64_t h = 0; h < nh; h++) add(rows, -20, -20, at_reset);      /* A */
    add_same(rows, nh, 20);                                              /* lambda */
}

/* The first entry of (1, 0, ...), of r entries, after an RMS norm: sqrt(r), but for its epsilon. */
static double normed_one(int64_t nr)
{
    return 1 / sqrt(1 / (double)nr + NORM_EPS);
}

static void put_anchor(const kr_network *net, const in_rows *rows, int64_t nh)
{
    double c_bias_hr[MAX_D * MAX_D]; /* takes what the norm leaves of C from the first entry to entry h */
    for (int64_t i = 0; i < nh * nh; i++) c_bias_hr[i] = normed_one(nh) * ((i % nh == i / nh) - (i % nh == 0));
    put_frame(net, nh);
    put_in_rows(net, rows, nh);
    fill(net, MIXER "B_norm.weight", 1);
    fill(net, MIXER "C_norm.weight", 1);
    put(net, MIXER "C_bias", c_bias_hr, nh * nh);
}

static void put_rotor(const kr_network *net, hand_flaw flaw)
{
    const double third = flaw == HAND_NO_ROTATION ? 0 : atanh(1.0 / 3);
    double logit_wd[6];
    for (int j = 0; j < 3; j++) {
        logit_wd[2 * j] = 3 * cos(2 * PI * j / 3);
        logit_wd[2 * j + 1] = -3 * sin(2 * PI * j / 3);
    }
    in_rows rows = { 0 };
    add_anchor_rows(&rows, 2, flaw);
    add(&rows, flaw == HAND_SAME_ROTATION ? third : -third, third, 0);
    put_anchor(net, &rows, 2);
    put(net, "out_proj.weight", logit_wd, 6);
}

static void put_spinor(const kr_network *net, hand_flaw flaw)
{
    const double half = flaw == HAND_NO_ROTATION ? 0 : atanh(0.5), same = flaw == HAND_SAME_ROTATION ? half : 0;
    double logit_wd[8 * 4];
    for (int class = 0; class < 8; class ++) {
        lab_q8_quaternion(class, logit_wd + 4 * class);
        for (int r = 0; r < 4; r++) logit_wd[4 * class + r] *= 3;
    }
    in_rows rows = { 0 };
    add_anchor_rows(&rows, 4, flaw);
    for (int h = 0; h < 4; h++) {
        add(&rows, half, same, 0);
        add(&rows, 0, half - same, 0);
        add_same(&rows, 1, 0);
    }
    put_anchor(net, &rows, 4);
    put(net, "out_proj.weight", logit_wd, 8 * 4);
}

kr_network *hand_network(kr_ctx *ctx, const hand_options *o)
{
    const kr_rotation_kind rotation = o->task == LAB_TASK_SPINOR ? KR_ROTATION_QUATERNION : KR_ROTATION_COMPLEX;
    kr_network *net = task_network(ctx, o->task, o->dtype, rotation, o->pathway);
    if (!CHECK(net != NULL, "no network: %s", kr_ctx_message(ctx))) return NULL;
    switch (o->task) {
    case LAB_TASK_MAJORITY: put_majority(net, o->flaw); break;
    case LAB_TASK_ROTOR: put_rotor(net, o->flaw); break;
    default: put_spinor(net, o->flaw);
    }
    return net;
}

/* ---- the logits ---- */

/* The leaky count c, y = (2 c, 1 and what head 1 adds to its state), gated and normed. */
static void majority_logits(const int32_t *symbols, int64_t ns, double *logit_sw)
{
    const double kept = pow(0.99999, 2e6); /* by a reset, with its dt of 20 instead of 1e-5 */
    double count = 0;
    for (int64_t s = 0; s < ns; s++) {
        count *= symbols[s] == TASK_RESET ? kept : 0.99999;
        count += symbols[s] == TASK_RESET ? 0 : symbols[s] == 1 ? 1 : -1;
        const double u0 = silu(5) * 2 * count, u1 = silu(5) * (1 + 1e-6 * (double)(s + 1));
        const double normed = u0 / sqrt((u0 * u0 + u1 * u1) / 2 + NORM_EPS);
        logit_sw[2 * s] = -3 * normed;
        logit_sw[2 * s + 1] = 3 * normed;
    }
}

/* What a reset leaves is C.B x times a unit vector, which is rotated, gated and read by the head. */
static double anchor(int64_t nr)
{
    return 3 * silu(5) * normed_one(nr) * normed_one(nr) * inverse_silu(1);
}

static void rotor_logits(const int32_t *symbols, int64_t ns, double *logit_sw)
{
    double size = 0;
    int64_t count = 0;
    for (int64_t s = 0; s < ns; s++) {
        size = symbols[s] == TASK_RESET ? anchor(2) : size * exp(-1e-4);
        count = symbols[s] == TASK_RESET ? 0 : count + (symbols[s] == 1 ? 1 : -1);
        for (int j = 0; j < 3; j++) logit_sw[3 * s + j] = size * cos(2 * PI / 3 * (double)(count - j));
    }
}

static void spinor_logits(const int32_t *symbols, int64_t ns, double *logit_sw)
{
    double size = 0;
    int product = 0;
    for (int64_t s = 0; s < ns; s++) {
        size = symbols[s] == TASK_RESET ? anchor(4) : size * exp(-1e-4);
        product = symbols[s] == TASK_RESET ? 0 : lab_q8_product(1 + symbols[s], product);
        for (int class = 0; class < 8; class ++)
            logit_sw[8 * s + class] = class == product ? size : class == (product ^ 4) ? -size : 0;
    }
}

void hand_logits(task_kind task, const int32_t *symbols, int64_t ns, double *logit_sw)
{
    switch (task) {
    case LAB_TASK_MAJORITY: majority_logits(symbols, ns, logit_sw); break;
    case LAB_TASK_ROTOR: rotor_logits(symbols, ns, logit_sw); break;
    default: spinor_logits(symbols, ns, logit_sw);
    }
}
