/* optimizer_ref.c - steps of AdamW and of gradient descent with momentum, and the moving average (lerp).
 *
 *   adamw:  m += (1 - beta1) (h - m);   v += (1 - beta2) (h^2 - v);   w -= decay w + rate m / (root v^1/2 + eps)
 *   sgd:    velocity = momentum velocity + gain h;   d = velocity or h + momentum velocity;   w -= decay w + rate d
 *   lerp:   y += c (x - y)
 * Definitions: kernels/args/optimizer_args.h.
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_operand.h"

#include <math.h>

/* Element i of the gradient as the step uses it. */
static double take(const kr_taken_grad *grad, int64_t i)
{
    const double scaled = grad->scale * kr_ref_at(&grad->g, 0, i);
    if (grad->clears) kr_ref_put(&grad->g, 0, i, 0);
    return scaled > grad->clip ? grad->clip : scaled < -grad->clip ? -grad->clip : scaled;
}

void KR_REF(adamw)(const kr_adamw_args *a)
{
    real *w = a->w, *m = a->m, *v = a->v;
    for (int64_t i = 0; i < a->n; i++) {
        const double h = take(&a->grad, i), old = (double)w[i];
        const double mean = (double)m[i] + (1 - a->beta1) * (h - (double)m[i]);
        const double square = (double)v[i] + (1 - a->beta2) * (h * h - (double)v[i]);
        const bool decays = !a->cautious || (old >= 0) == (mean >= 0);
        w[i] = (real)(old - ((decays ? a->decay * old : 0) + a->rate * mean / (a->root * sqrt(square) + a->eps)));
        m[i] = (real)mean;
        v[i] = (real)square;
    }
}

void KR_REF(sgd)(const kr_sgd_args *a)
{
    real *w = a->w, *velocity = a->velocity, *direction = a->direction;
    for (int64_t i = 0; i < a->n; i++) {
        double h = take(&a->grad, i), d;
        if (a->penalty != 0) h += a->penalty * (double)w[i];
        d = h;
        if (velocity) {
            const double speed = a->is_first ? h : a->momentum * (double)velocity[i] + a->gain * h;
            d = a->nesterov ? h + a->momentum * speed : speed;
            velocity[i] = (real)speed;
        }
        if (direction) direction[i] = (real)d;
        else w[i] = (real)((double)w[i] - (a->decay * (double)w[i] + a->rate * d));
    }
}

void KR_REF(lerp)(const kr_lerp_args *a)
{
    const real *x = a->x;
    real *y = a->y;
    for (int64_t i = 0; i < a->n; i++) y[i] = (real)((double)y[i] + a->c * ((double)x[i] - (double)y[i]));
}
