/* check_cases.c - inputs and outputs of the built-in cases: the same numbers on every machine, exact in f32. */
#include "check/check_cases.h"

#include <math.h>

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

uint64_t vector_hash(uint64_t a, uint64_t b, uint64_t c)
{
    return mix(mix(mix(a + UINT64_C(0x9E3779B97F4A7C15)) + b) + c);
}

int64_t vector_elements(kr_shape shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape.rank; i++) count *= shape.dims[i];
    return count;
}

/* Multiples of 1/steps in [low, high). */
static kr_tensor *sample_tensor(vector_run *r, int key, kr_shape shape, kr_dtype dtype, double low, double high,
                                double steps)
{
    const int64_t count = vector_elements(shape);
    double *values = check_alloc(kr_tape_ctx(r->tape), (size_t)count * sizeof *values);
    if (!values) return NULL;
    const double most = floor((high - low) * steps);
    for (int64_t i = 0; i < count; i++)
        values[i] =
            low + floor(most * (double)(vector_hash(r->id, (uint64_t)key, (uint64_t)i) >> 11) * 0x1p-53) / steps;
    kr_tensor *x = kr_cast(r->tape, kr_from_data(r->tape, KR_DTYPE_F64, shape, values), dtype);
    check_free(values);
    return x;
}

kr_tensor *vector_in(vector_run *r, int index, kr_shape shape, double low, double high)
{
    if (index >= MOST_INPUTS) return NULL;
    kr_tensor *x = sample_tensor(r, index, shape, r->dtype, low, high, 1024);
    if (!x) return NULL;
    if (r->n_in <= index) r->n_in = index + 1;
    return r->in[index] = kr_input(r->tape, x);
}

kr_tensor *vector_constant(vector_run *r, int key, kr_shape shape, double low, double high)
{
    return sample_tensor(r, MOST_INPUTS + key, shape, r->dtype, low, high, 1024);
}

kr_tensor *vector_16bit(vector_run *r, int key, kr_shape shape, kr_dtype dtype)
{
    kr_tensor *x = sample_tensor(r, MOST_INPUTS + key, shape, dtype, -1, 1, 64);
    return r->dtype == KR_DTYPE_F64 ? kr_cast(r->tape, x, KR_DTYPE_F64) : x;
}

kr_tensor *vector_ids(vector_run *r, kr_shape shape, int64_t below)
{
    int32_t values[512];
    const int64_t count = vector_elements(shape);
    if (count > 512) return NULL;
    for (int64_t i = 0; i < count; i++) values[i] = (int32_t)(vector_hash(r->id, 99, (uint64_t)i) % (uint64_t)below);
    return kr_from_data(r->tape, KR_DTYPE_I32, shape, values);
}

void vector_out(vector_run *r, kr_tensor *y)
{
    if (r->n_out < MOST_OUTPUTS) r->out[r->n_out++] = y;
}

void vector_out_times(vector_run *r, int index, kr_tensor *y)
{
    if (!y) return;
    vector_out(r, kr_mul(r->tape, vector_in(r, index, kr_tensor_shape(y), 0.5, 2), kr_cast(r->tape, y, r->dtype)));
}

void vector_out_values(vector_run *r, int index, kr_shape shape, const double *values)
{
    vector_out_times(r, index, kr_from_data(r->tape, KR_DTYPE_F64, shape, values));
}
