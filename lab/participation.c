/* participation.c - participation ratios of vectors, of spectra, and of matrices during training.
 *
 *   tr S     = sum of x^2            tr(S^2) = sum of (x^T x)^2 = sum of (x x^T)^2: the smaller of the two is computed
 */
#include "lab/participation.h"

#include <krait/krait.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double pi = 3.14159265358979323846;

bool cli_moments_open(cli_moments *m, int64_t n)
{
    *m = (cli_moments){ .n = n };
    m->sum_n = malloc((size_t)n * sizeof *m->sum_n);
    m->sum_nn = malloc((size_t)(n * n) * sizeof *m->sum_nn);
    if (m->sum_n && m->sum_nn) cli_moments_clear(m);
    return m->sum_n && m->sum_nn;
}

void cli_moments_clear(cli_moments *m)
{
    m->count = 0;
    memset(m->sum_n, 0, (size_t)m->n * sizeof *m->sum_n);
    memset(m->sum_nn, 0, (size_t)(m->n * m->n) * sizeof *m->sum_nn);
}

void cli_moments_close(cli_moments *m)
{
    free(m->sum_n);
    free(m->sum_nn);
    *m = (cli_moments){ 0 };
}

/* Elements of x, in f64, added to `to`. */
static void add_elements(kr_tensor *x, double *to)
{
    const int64_t count = kr_tensor_count(x);
    double *values = malloc((size_t)count * sizeof *values);
    if (x && values && kr_tensor_read(x, KR_DTYPE_F64, values, count) == KR_OK)
        for (int64_t i = 0; i < count; i++) to[i] += values[i];
    free(values);
}

void cli_moments_add(cli_moments *m, kr_tape *tape, kr_tensor *x)
{
    const kr_scope scope = kr_no_grad_begin(tape);
    kr_tensor *rows = kr_reshape(tape, x, KR_SHAPE(-1, m->n));
    add_elements(kr_sum(tape, rows, KR_AXES(0), false), m->sum_n);
    add_elements(kr_matmul(tape, kr_transpose(tape, rows), rows), m->sum_nn);
    m->count += kr_tensor_dim(rows, 0);
    kr_no_grad_end(tape, scope, 0, NULL);
}

double cli_moments_participation(const cli_moments *m, bool is_centred)
{
    double trace = 0, square = 0;
    for (int64_t i = 0; i < m->n; i++) {
        for (int64_t j = 0; j < m->n; j++) {
            const double mean = is_centred ? m->sum_n[i] * m->sum_n[j] / (double)m->count : 0;
            const double s = m->sum_nn[i * m->n + j] - mean;
            square += s * s;
            if (i == j) trace += s;
        }
    }
    return trace * trace / square;
}

double cli_spread(int64_t count, const double *energies)
{
    double sum = 0, square = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += energies[i];
        square += energies[i] * energies[i];
    }
    return sum * sum / square;
}

bool cli_dft_energies(int64_t n, int64_t d, const double *table, double *energy)
{
    double *wave = malloc((size_t)(2 * n) * sizeof *wave);
    if (!wave) return false;
    for (int64_t t = 0; t < n; t++) {
        wave[2 * t] = cos(2 * pi * (double)t / (double)n);
        wave[2 * t + 1] = sin(2 * pi * (double)t / (double)n);
    }
    for (int64_t f = 1; f <= n / 2; f++) {
        energy[f - 1] = 0;
        for (int64_t c = 0; c < d; c++) {
            double re = 0, im = 0;
            for (int64_t t = 0; t < n; t++) {
                const double *at = wave + 2 * (f * t % n);
                re += table[t * d + c] * at[0];
                im -= table[t * d + c] * at[1];
            }
            energy[f - 1] += re * re + im * im;
        }
    }
    free(wave);
    return true;
}

kr_tensor *cli_participation(kr_tape *tape, kr_tensor *x_nd)
{
    /* The ratio does not depend on the scale of x, so x is scaled such that its fourth powers fit f32. */
    const kr_scope scope = kr_no_grad_begin(tape);
    const double largest = kr_item(kr_max(tape, kr_maximum(tape, x_nd, kr_neg(tape, x_nd)), KR_ALL_AXES, false));
    kr_no_grad_end(tape, scope, 0, NULL);
    if (!(largest > 0)) return NULL;
    kr_tensor *x = kr_scale(tape, x_nd, 1 / largest);
    const bool is_wide = kr_tensor_dim(x, 0) < kr_tensor_dim(x, 1);
    kr_tensor *gram = is_wide ? kr_matmul(tape, x, kr_transpose(tape, x)) : kr_matmul(tape, kr_transpose(tape, x), x);
    kr_tensor *trace = kr_sum(tape, kr_mul(tape, x, x), KR_ALL_AXES, false);
    kr_tensor *square = kr_sum(tape, kr_mul(tape, gram, gram), KR_ALL_AXES, false);
    return kr_div(tape, kr_mul(tape, trace, trace), square);
}
