/* lazy_state.c - allocates, flushes and drops the records of deferred state updates. */
#include "decode/lazy_state.h"

#include "decode/decode_family.h"

void kr_lazy_init(kr_lazy_state *lazy, const kr_layers *layers)
{
    *lazy = (kr_lazy_state){ .layers = layers };
}

/* With few rows, state traffic does not matter. */
bool kr_lazy_defers(const kr_layers *layers, int64_t rows)
{
    const kr_decode_family *family = kr_decode_family_of(layers->kind);
    return rows > KR_GEMV_ROWS && family && family->record_elements;
}

static const void *block_of(const kr_layers *layers, int64_t slot)
{
    return layers->layers[layers->real[slot]].block;
}

void kr_lazy_forget(kr_lazy_state *lazy)
{
    const kr_layers *layers = lazy->layers;
    const int64_t n = lazy->records ? layers->nvirtual : 0;
    for (int64_t s = 0; s < n; s++) kr_param_destroy(lazy->records[s]);
    if (lazy->records) kr_memory_free(&layers->ctx->memory, lazy->records, (size_t)n * sizeof *lazy->records);
    kr_lazy_init(lazy, layers);
}

void kr_lazy_free(kr_lazy_state *lazy)
{
    kr_lazy_forget(lazy);
}

/* Records begin as zeros: no token. */
static bool allocate(kr_lazy_state *lazy)
{
    const kr_layers *layers = lazy->layers;
    const kr_decode_family *family = kr_decode_family_of(layers->kind);
    lazy->records = kr_memory_alloc_zeroed(&layers->ctx->memory, (size_t)layers->nvirtual * sizeof *lazy->records);
    if (!kr_require(layers->ctx, lazy->records != NULL, KR_ERR_NOMEM,
                    "decode: no memory for the deferred updates of %lld layers", (long long)layers->nvirtual))
        return false;
    for (int64_t s = 0; s < layers->nvirtual; s++) {
        const int64_t elements = lazy->capacity * family->record_elements(block_of(layers, s));
        lazy->records[s] = kr_state_tensor(layers->ctx, "deferred updates", KR_DTYPE_F32, KR_SHAPE(elements));
        if (!lazy->records[s]) return false;
    }
    return true;
}

bool kr_lazy_open(kr_lazy_state *lazy, kr_state *state)
{
    const int64_t capacity = kr_state_capacity(state);
    if (lazy->records && lazy->capacity >= capacity) {
        lazy->state = state; /* nothing is pending, so the records hold no token */
        return true;
    }
    kr_lazy_forget(lazy);
    lazy->state = state;
    lazy->capacity = capacity;
    if (allocate(lazy)) return true;
    kr_lazy_forget(lazy);
    return false;
}

void kr_lazy_append(kr_lazy_state *lazy, int64_t rows)
{
    if (lazy->rows < rows) lazy->rows = rows;
}

bool kr_lazy_flush(kr_lazy_state *lazy)
{
    const kr_layers *layers = lazy->layers;
    const int64_t rows = lazy->rows;
    if (rows == 0) return true;
    const kr_decode_family *family = kr_decode_family_of(layers->kind);
    for (int64_t s = 0; s < layers->nvirtual; s++)
        if (!family->flush(layers->ctx, block_of(layers, s), &lazy->state->slots[s], rows, lazy->records[s]))
            return false;
    lazy->rows = 0;
    return true;
}
