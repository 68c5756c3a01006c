/* mamba3_reference.c - see mamba3_reference.h. One loop over tokens, all of a token's quantities by their definitions. */
#include "tests/nn/mamba3_reference.h"

#define PI 3.14159265358979323846

const char *const field_names[NFIELDS] = { "ssm", "k", "v", "rotation" };

/* ---- sizes ---- */

typedef struct sizes {
    int64_t nd, ni, nh, np, nr, nm, ng;
    int64_t nrotations, rotated; /* angles or quaternions; entries of a row that turn */
    bool quaternion;
} sizes;

static sizes sizes_of(const kr_mamba3_config *c)
{
    sizes n = { .nd = c->d_model, .np = c->per_head_dim, .nr = c->state_rank, .ng = c->n_groups };
    n.ni = c->expand * c->d_model;
    n.nh = n.ni / n.np;
    n.nm = c->is_mimo ? c->mimo_rank : 1;
    n.quaternion = c->rotation == KR_ROTATION_QUATERNION;
    const int64_t unit = n.quaternion ? 4 : 2;
    n.rotated = (int64_t)floor((double)c->state_rank * c->rope_fraction) / unit * unit;
    n.nrotations = n.rotated > 0 ? n.rotated / unit : 1;
    return n;
}

static int64_t count_of(const kr_shape *shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape->rank; i++) count *= shape->dims[i];
    return count;
}

/* ---- parameters ---- */

numbers_params read_params(const kr_params *params)
{
    numbers_params p = { .count = kr_params_count(params) };
    for (int64_t i = 0; i < p.count; i++) {
        const kr_param_row *row = kr_params_at(params, i);
        snprintf(p.name[i], sizeof p.name[i], "%s", row->name);
        p.values[i] = kr_test_values(row->tensor);
        p.elements[i] = kr_tensor_count(row->tensor);
    }
    return p;
}

void free_params(numbers_params *p)
{
    for (int64_t i = 0; i < p->count; i++) free(p->values[i]);
}

static const double *param(const numbers_params *p, const char *name)
{
    for (int64_t i = 0; i < p->count; i++)
        if (strcmp(p->name[i], name) == 0) return p->values[i];
    return NULL;
}

/* ---- caches ---- */

numbers_cache new_cache(const kr_mamba3_config *c, int64_t nb)
{
    const sizes n = sizes_of(c);
    numbers_cache cache = {
        .shape = { KR_SHAPE(nb, n.nh, n.np, n.nr), KR_SHAPE(nb, n.nm, n.nh, n.nr), KR_SHAPE(nb, n.nh, n.np),
                   n.quaternion ? KR_SHAPE(nb, n.nh, n.nrotations, 4) : KR_SHAPE(nb, n.nh, n.nrotations) }
    };
    for (int f = 0; f < NFIELDS; f++) cache.field[f] = calloc((size_t)count_of(&cache.shape[f]), sizeof(double));
    if (n.quaternion)
        for (int64_t i = 0; i < nb * n.nh * n.nrotations; i++) cache.field[ROTATION][4 * i] = 1;
    return cache;
}

numbers_cache random_cache(const kr_mamba3_config *c, int64_t nb)
{
    numbers_cache cache = new_cache(c, nb);
    for (int f = SSM; f <= V; f++)
        for (int64_t i = 0; i < count_of(&cache.shape[f]); i++) cache.field[f][i] = 0.6 * kr_test_normal();
    double *turn = cache.field[ROTATION];
    const int64_t count = count_of(&cache.shape[ROTATION]);
    if (c->rotation == KR_ROTATION_COMPLEX)
        for (int64_t i = 0; i < count; i++) turn[i] = kr_test_uniform(-3, 3);
    else
        for (int64_t i = 0; i < count; i += 4) {
            double size = 0;
            for (int k = 0; k < 4; k++) turn[i + k] = kr_test_normal(), size += turn[i + k] * turn[i + k];
            for (int k = 0; k < 4; k++) turn[i + k] /= sqrt(size);
        }
    return cache;
}

numbers_cache copy_cache(const numbers_cache *from)
{
    numbers_cache cache = *from;
    for (int f = 0; f < NFIELDS; f++) {
        const size_t bytes = (size_t)count_of(&from->shape[f]) * sizeof(double);
        cache.field[f] = malloc(bytes);
        memcpy(cache.field[f], from->field[f], bytes);
    }
    return cache;
}

static kr_tensor *tensor_of(const kr_mamba3_cache *cache, int f)
{
    return f == SSM ? cache->ssm_bhpr : f == K ? cache->k_bmhr : f == V ? cache->v_bhp : cache->rotation;
}

numbers_cache read_cache(const kr_mamba3_cache *cache)
{
    numbers_cache numbers;
    for (int f = 0; f < NFIELDS; f++) {
        numbers.field[f] = kr_test_values(tensor_of(cache, f));
        numbers.shape[f] = kr_tensor_shape(tensor_of(cache, f));
    }
    return numbers;
}

void free_cache(numbers_cache *cache)
{
    for (int f = 0; f < NFIELDS; f++) free(cache->field[f]);
}

kr_mamba3_cache cache_on(kr_tape *tape, kr_dtype dtype, const numbers_cache *cache, kr_mamba3_pathway pathway)
{
    kr_tensor *x[NFIELDS];
    for (int f = 0; f < NFIELDS; f++)
        x[f] = kr_input(tape, kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, cache->shape[f], cache->field[f]), dtype));
    return (kr_mamba3_cache){ x[SSM], x[K], x[V], x[ROTATION], pathway };
}

/* ---- one token ---- */

static double softplus(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void hamilton(const double *a, const double *b, double *out)
{
    out[0] = a[0] * b[0] - a[1] * b[1] - a[2] * b[2] - a[3] * b[3];
    out[1] = a[0] * b[1] + a[1] * b[0] + a[2] * b[3] - a[3] * b[2];
    out[2] = a[0] * b[2] - a[1] * b[3] + a[2] * b[0] + a[3] * b[1];
    out[3] = a[0] * b[3] + a[1] * b[2] - a[2] * b[1] + a[3] * b[0];
}

/* The rotation of head h moves on by one token: raw are its angles, or its generators. */
static void advance(const kr_mamba3_config *c, const sizes *n, double delta, const double *raw, double *turn)
{
    for (int64_t j = 0; j < n->nrotations; j++) {
        if (!n->quaternion) {
            const double angle = turn[j] + delta * c->rotation_range * PI * tanh(raw[j]);
            turn[j] = angle - 2 * PI * nearbyint(angle / (2 * PI));
            continue;
        }
        const double *r = raw + 3 * j;
        const double size = sqrt(r[0] * r[0] + r[1] * r[1] + r[2] * r[2]);
        const double g = delta * c->rotation_range * PI * tanh(size);
        double q[4] = { cos(g / 2), 0, 0, 0 }, next[4], length = 0;
        for (int k = 0; k < 3; k++) q[k + 1] = r[k] / size * sin(g / 2);
        hamilton(q, turn + 4 * j, next);
        for (int k = 0; k < 4; k++) length += next[k] * next[k];
        for (int k = 0; k < 4; k++) turn[4 * j + k] = next[k] / sqrt(length);
    }
}

static void rotate_row(const kr_mamba3_config *c, const sizes *n, const double *turn, double *row)
{
    if (n->quaternion) {
        for (int64_t j = 0; j < n->rotated / 4; j++) {
            const double *q = turn + 4 * j, inverse[4] = { q[0], -q[1], -q[2], -q[3] };
            double out[4];
            hamilton(inverse, row + 4 * j, out);
            memcpy(row + 4 * j, out, sizeof out);
        }
        return;
    }
    for (int64_t a = 0; a < n->rotated / 2; a++) {
        double *x0 = c->is_mimo ? row + a : row + 2 * a, *x1 = c->is_mimo ? row + a + n->nr / 2 : x0 + 1;
        const double co = cos(turn[a]), si = sin(turn[a]), y0 = *x0 * co - *x1 * si;
        *x1 = *x0 * si + *x1 * co;
        *x0 = y0;
    }
}

/* rms_norm(raw) gain + bias of head h and rank m, rotated. */
static void map_of(const kr_mamba3_config *c, const sizes *n, const double *raw_mgr, const double *gain,
                   const double *bias_hmr, const double *turn, int64_t h, int64_t m, double *row)
{
    const double *raw = raw_mgr + (m * n->ng + h / (n->nh / n->ng)) * n->nr;
    double mean = 0;
    for (int64_t r = 0; r < n->nr; r++) mean += raw[r] * raw[r] / (double)n->nr;
    for (int64_t r = 0; r < n->nr; r++)
        row[r] = raw[r] / sqrt(mean + c->norm_eps) * gain[r] + bias_hmr[(h * n->nm + m) * n->nr + r];
    rotate_row(c, n, turn, row);
}

/* A head's share of one token: coefficients, maps, the recurrence, the gated output [p]. */
static void run_head(const kr_mamba3_config *c, const sizes *n, const numbers_params *p, const double *proj, int64_t b,
                     int64_t h, numbers_cache *cache, double *out_i)
{
    const int64_t nmgr = n->nm * n->ng * n->nr, np = n->np, nr = n->nr, nm = n->nm;
    const double *z = proj + h * np, *x = proj + n->ni + h * np, *b_raw = proj + 2 * n->ni, *c_raw = b_raw + nmgr;
    const double *dt = c_raw + nmgr, *a_raw = dt + n->nh, *l_raw = a_raw + n->nh, *rotate_raw = l_raw + n->nh;
    const double *mimo_x = param(p, "mimo_x"), *mimo_z = param(p, "mimo_z"), *mimo_o = param(p, "mimo_o");
    const double *gain = param(p, "norm.weight");

    const double delta = fmin(fmax(softplus(dt[h] + param(p, "dt_bias")[h]), c->dt_limit_min), c->dt_limit_max);
    const double heavy = a_raw[h] >= 0 ? 1 + a_raw[h] : 1 / (1 - a_raw[h]);
    const double rate = -fmax(c->a_activation == KR_A_ACTIVATION_SOFTPLUS ? softplus(a_raw[h]) : heavy, c->a_floor);
    const double alpha = exp(delta * rate), lambda = sigmoid(l_raw[h]);
    const double gamma = lambda * delta, beta = (1 - lambda) * delta * alpha;

    double *turn = cache->field[ROTATION] + (b * n->nh + h) * n->nrotations * (n->quaternion ? 4 : 1);
    advance(c, n, delta, n->quaternion ? rotate_raw + h * n->nrotations * 3 : rotate_raw, turn);
    double *state = cache->field[SSM] + (b * n->nh + h) * np * nr, *x_prev = cache->field[V] + (b * n->nh + h) * np;
    double *b_row = malloc(2 * (size_t)nr * sizeof *b_row), *c_row = b_row + nr;
    for (int64_t q = 0; q < np * nr; q++) state[q] *= alpha;
    for (int64_t m = 0; m < nm; m++) {
        double *k_prev = cache->field[K] + ((b * nm + m) * n->nh + h) * nr;
        map_of(c, n, b_raw, param(p, "B_norm.weight"), param(p, "B_bias"), turn, h, m, b_row);
        for (int64_t q = 0; q < np; q++) {
            const double in = mimo_x ? mimo_x[(h * nm + m) * np + q] : 1;
            for (int64_t r = 0; r < nr; r++)
                state[q * nr + r] += beta * x_prev[q] * in * k_prev[r] + gamma * x[q] * in * b_row[r];
        }
        memcpy(k_prev, b_row, (size_t)nr * sizeof *b_row);
    }
    memcpy(x_prev, x, (size_t)np * sizeof *x);

    double *y = calloc((size_t)np, sizeof *y);
    for (int64_t q = 0; q < np; q++) out_i[h * np + q] = 0;
    for (int64_t m = 0; m < nm; m++) {
        double mean = 0;
        map_of(c, n, c_raw, param(p, "C_norm.weight"), param(p, "C_bias"), turn, h, m, c_row);
        for (int64_t q = 0; q < np; q++) {
            y[q] = param(p, "D")[h] * x[q] * (mimo_x ? mimo_x[(h * nm + m) * np + q] : 1);
            for (int64_t r = 0; r < nr; r++) y[q] += state[q * nr + r] * c_row[r];
            mean += y[q] * y[q] / (double)np;
        }
        for (int64_t q = 0; q < np; q++) {
            const int64_t hmp = (h * nm + m) * np + q;
            const double gate = z[q] * (mimo_z ? mimo_z[hmp] : 1);
            double o = y[q];
            if (c->has_outproj_norm) o = o / sqrt(mean + c->norm_eps) * gain[c->has_shared_norm_gain ? q : h * np + q];
            out_i[h * np + q] += o * gate * sigmoid(gate) * (mimo_o ? mimo_o[hmp] : 1);
        }
    }
    free(y);
    free(b_row);
}

/* y [out] = W [out in] x + bias */
static void linear(const double *w, const double *bias, const double *x, int64_t n_out, int64_t n_in, double *y)
{
    for (int64_t o = 0; o < n_out; o++) {
        y[o] = bias ? bias[o] : 0;
        for (int64_t i = 0; i < n_in; i++) y[o] += w[o * n_in + i] * x[i];
    }
}

void reference_forward(const kr_mamba3_config *c, const numbers_params *p, int64_t nb, int64_t ns, const double *x,
                       numbers_cache *cache, double *y)
{
    const sizes n = sizes_of(c);
    const int64_t nproj =
        2 * n.ni + 2 * n.nm * n.ng * n.nr + 3 * n.nh + (n.quaternion ? n.nh * 3 * n.nrotations : n.nrotations);
    double *proj = malloc((size_t)(nproj + n.ni) * sizeof *proj), *out_i = proj + nproj;
    for (int64_t b = 0; b < nb; b++)
        for (int64_t s = 0; s < ns; s++) {
            const int64_t token = b * ns + s;
            linear(param(p, "in_proj.weight"), param(p, "in_proj.bias"), x + token * n.nd, nproj, n.nd, proj);
            for (int64_t h = 0; h < n.nh; h++) run_head(c, &n, p, proj, b, h, cache, out_i);
            linear(param(p, "out_proj.weight"), param(p, "out_proj.bias"), out_i, n.nd, n.ni, y + token * n.nd);
        }
    free(proj);
}

void nearest_turns(double *got, const double *want, int64_t count)
{
    for (int64_t i = 0; i < count; i++) got[i] -= 2 * PI * nearbyint((got[i] - want[i]) / (2 * PI));
}
