/* layer_norm_ref.c - layer norm over groups of the last axis.
 *
 *   x, y [no ni]    gain [ni] or none (1)    bias [ni] or none (0)    mean, q [no ng]
 *   mean = mean_group(x);  q = (mean_group((x - mean)^2) + eps)^-1/2;  y = (x - mean) q gain + bias
 * backward, u = (x - mean) q, w = gain g_y:
 *   g_x = q (w - mean_group(w) - u mean_group(w u));   g_gain = sum over rows of g_y u;   g_bias = sum over rows of g_y
 * mean and q are inputs of the backward pass.
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_operand.h"

#include <math.h>

static double or_else(const real *values, int64_t i, double fallback)
{
    return values ? (double)values[i] : fallback;
}

void KR_REF(layer_norm)(const kr_layer_norm_args *a)
{
    real *y = a->y, *mean = a->mean, *q = a->q;
    int64_t width = a->ng ? a->ni / a->ng : 0;
    for (int64_t group = 0; group < a->no * a->ng; group++) {
        int64_t channel = group % a->ng * width;
        int64_t o = group / a->ng;
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < width; i++) sum += kr_ref_at(&a->x, o, channel + i);
        double middle = sum / (double)width;
        for (int64_t i = 0; i < width; i++)
            squares += (kr_ref_at(&a->x, o, channel + i) - middle) * (kr_ref_at(&a->x, o, channel + i) - middle);
        double scale = 1.0 / sqrt(squares / (double)width + a->eps);
        mean[group] = (real)middle;
        q[group] = (real)scale;
        for (int64_t i = 0; i < width; i++) {
            double u = (kr_ref_at(&a->x, o, channel + i) - middle) * scale;
            y[group * width + i] = (real)(u * or_else(a->gain, channel + i, 1.0) + or_else(a->bias, channel + i, 0.0));
        }
    }
}

static void input_gradient(const kr_layer_norm_bwd_args *a, int64_t group)
{
    int64_t width = a->ni / a->ng, channel = group % a->ng * width;
    int64_t o = group / a->ng;
    const real *g_y = (const real *)a->g_y + group * width;
    real *g_x = (real *)a->g_x + group * width;
    double mean = (double)((const real *)a->mean)[group], q = (double)((const real *)a->q)[group], w_sum = 0,
           wu_sum = 0;
    for (int64_t i = 0; i < width; i++) {
        double w = or_else(a->gain, channel + i, 1.0) * (double)g_y[i];
        w_sum += w;
        wu_sum += w * (kr_ref_at(&a->x, o, channel + i) - mean) * q;
    }
    for (int64_t i = 0; i < width; i++) {
        double w = or_else(a->gain, channel + i, 1.0) * (double)g_y[i],
               u = (kr_ref_at(&a->x, o, channel + i) - mean) * q;
        g_x[i] = (real)(q * (w - w_sum / (double)width - u * (wu_sum / (double)width)));
    }
}

#define CHANNELS 64 /* channels per pass of the sums over rows */

static void parameter_gradients(const kr_layer_norm_bwd_args *a)
{
    const real *mean = a->mean, *q = a->q;
    real *g_gain = a->g_gain, *g_bias = a->g_bias;
    int64_t width = a->ng ? a->ni / a->ng : 0;
    for (int64_t i0 = 0; i0 < a->ni; i0 += CHANNELS) {
        double gain[CHANNELS] = { 0 }, bias[CHANNELS] = { 0 };
        int64_t end = kr_ref_min(i0 + CHANNELS, a->ni);
        for (int64_t o = 0; o < a->no; o++) {
            const real *g_y = (const real *)a->g_y + o * a->ni;
            for (int64_t i = i0; i < end; i++) {
                int64_t group = o * a->ng + i / width;
                gain[i - i0] += (double)g_y[i] * (kr_ref_at(&a->x, o, i) - (double)mean[group]) * (double)q[group];
                bias[i - i0] += (double)g_y[i];
            }
        }
        for (int64_t i = i0; g_gain && i < end; i++) g_gain[i] = (real)gain[i - i0];
        for (int64_t i = i0; g_bias && i < end; i++) g_bias[i] = (real)bias[i - i0];
    }
}

void KR_REF(layer_norm_bwd)(const kr_layer_norm_bwd_args *a)
{
    for (int64_t group = 0; a->g_x && group < a->no * a->ng; group++) input_gradient(a, group);
    if (a->g_gain || a->g_bias) parameter_gradients(a);
}
