/* plain_optimizer.c - AdamW, SGD and Muon in double, one element after another. */
#include "tests/train/optimizing.h"

static double *zeros(int64_t n)
{
    double *x = calloc((size_t)(n ? n : 1), sizeof *x);
    if (!x) exit(2);
    return x;
}

plain_optimizer *plain_create(const kr_params *params, const kr_optimizer_options *options)
{
    plain_optimizer *p = calloc(1, sizeof *p);
    if (!p) exit(2);
    p->options = *options;
    p->params = params;
    p->count = kr_params_elements(params);
    p->w = optimizing_values(params);
    p->ema = optimizing_values(params);
    p->m = zeros(p->count);
    p->v = zeros(p->count);
    p->u = zeros(p->count);
    return p;
}

void plain_destroy(plain_optimizer *p)
{
    free(p->w);
    free(p->ema);
    free(p->m);
    free(p->v);
    free(p->u);
    free(p);
}

/* c [nm nn] = a [nm nk] b [nk nn] */
static double *product(const double *a, const double *b, int64_t nm, int64_t nk, int64_t nn)
{
    double *c = zeros(nm * nn);
    for (int64_t m = 0; m < nm; m++)
        for (int64_t n = 0; n < nn; n++)
            for (int64_t k = 0; k < nk; k++) c[m * nn + n] += a[m * nk + k] * b[k * nn + n];
    return c;
}

static double *transposed(const double *a, int64_t nm, int64_t nn)
{
    double *b = zeros(nm * nn);
    for (int64_t m = 0; m < nm; m++)
        for (int64_t n = 0; n < nn; n++) b[n * nm + m] = a[m * nn + n];
    return b;
}

void plain_orthogonalise(double *x, int64_t rows, int64_t cols, int steps, const double c[3])
{
    if (rows > cols) {
        double *rotated = transposed(x, rows, cols);
        plain_orthogonalise(rotated, cols, rows, steps, c);
        double *back = transposed(rotated, cols, rows);
        memcpy(x, back, (size_t)(rows * cols) * sizeof *x);
        free(rotated);
        free(back);
        return;
    }
    const int64_t n = rows * cols;
    double norm = 0;
    for (int64_t i = 0; i < n; i++) norm += x[i] * x[i];
    norm = fmax(sqrt(norm), 1e-7);
    for (int64_t i = 0; i < n; i++) x[i] /= norm;
    for (int step = 0; step < steps; step++) {
        double *x_t = transposed(x, rows, cols), *a = product(x, x_t, rows, cols, rows),
               *aa = product(a, a, rows, rows, rows);
        for (int64_t i = 0; i < rows * rows; i++) aa[i] = c[1] * a[i] + c[2] * aa[i];
        double *bx = product(aa, x, rows, rows, cols);
        for (int64_t i = 0; i < n; i++) x[i] = c[0] * x[i] + bx[i];
        free(x_t);
        free(a);
        free(aa);
        free(bx);
    }
}

static double decay_of(const plain_optimizer *p, const kr_param_row *row)
{
    return row->has_decay || p->options.decay_all ? p->options.weight_decay : 0;
}

static void adamw(plain_optimizer *p, const kr_param_row *row, const double *g, int64_t first, int64_t n, double lr)
{
    const kr_optimizer_options *o = &p->options;
    const double wd = decay_of(p, row);
    for (int64_t i = first; i < first + n; i++) {
        p->m[i] = o->beta1 * p->m[i] + (1 - o->beta1) * g[i];
        p->v[i] = o->beta2 * p->v[i] + (1 - o->beta2) * g[i] * g[i];
        const double m = p->m[i] / (1 - pow(o->beta1, (double)p->t)), v = p->v[i] / (1 - pow(o->beta2, (double)p->t));
        if (!o->is_cautious || (p->w[i] >= 0) == (p->m[i] >= 0)) p->w[i] *= 1 - lr * wd;
        p->w[i] -= lr * m / (sqrt(v) + o->eps);
    }
}

static void sgd(plain_optimizer *p, const kr_param_row *row, const double *g, int64_t first, int64_t n, double lr)
{
    const kr_optimizer_options *o = &p->options;
    for (int64_t i = first; i < first + n; i++) {
        const double h = g[i] + decay_of(p, row) * p->w[i];
        p->u[i] = p->t == 1 ? h : o->momentum * p->u[i] + (1 - o->dampening) * h;
        p->w[i] -= lr * (o->use_nesterov ? h + o->momentum * p->u[i] : p->u[i]);
    }
}

static double ratio_of(kr_muon_ratio ratio, double rows, double cols)
{
    if (ratio == KR_MUON_RATIO_MATCH_RMS) return 0.2 * sqrt(fmax(rows, cols));
    if (ratio == KR_MUON_RATIO_ORIGINAL) return rows > cols ? sqrt(rows / cols) : 1;
    return ratio == KR_MUON_RATIO_ORIGINAL_INPUTS && cols > rows ? sqrt(cols / rows) : 1;
}

static void muon(plain_optimizer *p, const kr_param_row *row, const double *g, int64_t first, int64_t rows, double lr)
{
    const kr_optimizer_options *o = &p->options;
    const int64_t cols = kr_tensor_dim(row->tensor, 1), n = rows * cols;
    double *x = zeros(n), wd = o->muon_weight_decay == KR_SAME_DECAY ? decay_of(p, row) : o->muon_weight_decay;
    for (int64_t i = 0; i < n; i++) {
        double *u = &p->u[first + i];
        *u = g[first + i] + o->muon_momentum * *u;
        x[i] = o->use_muon_nesterov ? g[first + i] + o->muon_momentum * *u : *u;
    }
    plain_orthogonalise(x, rows, cols, o->muon_steps, o->muon_coefficients);
    const double ratio = ratio_of(o->muon_ratio, (double)rows, (double)cols);
    for (int64_t i = 0; i < n; i++) p->w[first + i] = p->w[first + i] * (1 - lr * wd) - lr * ratio * x[i];
    free(x);
}

static bool is_muon(const plain_optimizer *p, const kr_segment *segment)
{
    bool is = segment->use_muon;
    for (int i = 0; i < p->options.n_without; i++) is = is && strcmp(p->options.without[i], segment->name) != 0;
    return is;
}

static void step_row(plain_optimizer *p, const kr_param_row *row, const double *g, int64_t at, double lr)
{
    const int64_t n = kr_tensor_count(row->tensor);
    if (p->options.kind == KR_OPTIMIZER_SGD) sgd(p, row, g, at, n, lr);
    else if (p->options.kind == KR_OPTIMIZER_ADAMW || row->n_segments == 0) adamw(p, row, g, at, n, lr);
    else
        for (int s = 0; s < row->n_segments; s++) {
            const int64_t rows = row->segments[s].rows, count = rows * kr_tensor_dim(row->tensor, 1);
            if (is_muon(p, &row->segments[s])) muon(p, row, g, at, rows, lr);
            else adamw(p, row, g, at, count, lr);
            at += count;
        }
}

void plain_step(plain_optimizer *p, const double *given, double lr, double grad_scale)
{
    const kr_optimizer_options *o = &p->options;
    double *g = zeros(p->count), squares = 0;
    for (int64_t i = 0; i < p->count; i++) {
        g[i] = given[i] * grad_scale;
        squares += g[i] * g[i];
    }
    p->grad_norm = sqrt(squares);
    for (int64_t i = 0; i < p->count; i++) {
        if (o->clip_norm > 0 && p->grad_norm > o->clip_norm) g[i] *= o->clip_norm / p->grad_norm;
        if (o->clip_value > 0) g[i] = fmin(fmax(g[i], -o->clip_value), o->clip_value);
    }
    p->t++;
    int64_t at = 0;
    for (int64_t r = 0; r < kr_params_count(p->params); r++) {
        const kr_param_row *row = kr_params_at(p->params, r);
        step_row(p, row, g, at, lr);
        at += kr_tensor_count(row->tensor);
    }
    for (int64_t i = 0; i < p->count; i++) p->ema[i] = o->ema_decay * p->ema[i] + (1 - o->ema_decay) * p->w[i];
    free(g);
}
