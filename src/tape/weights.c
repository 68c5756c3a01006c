/* weights.c - users and writers of weights, and the memory that they share. */
#include "tape/weights.h"

#include "device/device.h"

static const uint_least64_t one_writer = (uint_least64_t)1 << 32, all_users = UINT32_MAX;

/* ---- memory ---- */

kr_weights *kr_weights_create(kr_ctx *ctx)
{
    kr_memory host;
    kr_memory_branch(&host, &ctx->memory);
    kr_weights *w = kr_memory_alloc_zeroed(&host, sizeof *w);
    if (!w) {
        kr_fail(ctx, KR_ERR_NOMEM, "params: no memory for weights");
        return NULL;
    }
    w->host = host;
    w->floats = &w->host;
    if (kr_ctx_on_device(ctx)) {
        kr_memory_branch(&w->device, kr_float_memory(ctx));
        w->floats = &w->device;
    }
    atomic_init(&w->state, 1);
    atomic_init(&w->written, 0);
    return w;
}

bool kr_weights_allocate(kr_weights *w, kr_dtype dtype, size_t bytes)
{
    kr_weights_slab *slab = &w->slabs[dtype];
    slab->data = kr_memory_alloc_zeroed(w->floats, bytes);
    slab->bytes = slab->data ? bytes : 0;
    return slab->data != NULL;
}

kr_weights_map *kr_weights_add_maps(kr_weights *w, int count)
{
    w->maps = kr_memory_alloc_zeroed(&w->host, (size_t)count * sizeof *w->maps);
    w->nmaps = w->maps ? count : 0;
    return w->maps;
}

static void free_struct(kr_weights *w)
{
    kr_memory host = w->host;
    kr_memory_free(&host, w, sizeof *w);
}

void kr_weights_free(kr_weights *w)
{
    for (int t = 0; t < KR_N_DTYPES; t++) kr_memory_free(w->floats, w->slabs[t].data, w->slabs[t].bytes);
    for (int i = 0; i < w->nmaps; i++)
        if (w->maps[i].data) w->maps[i].release(w->maps[i].data, w->maps[i].bytes);
    kr_memory_free(&w->host, w->maps, (size_t)w->nmaps * sizeof *w->maps);
    if (atomic_load_explicit(&w->state, memory_order_acquire) == 0) free_struct(w);
}

/* ---- users ---- */

uint32_t kr_weights_users(const kr_weights *w)
{
    return (uint32_t)(atomic_load_explicit(&w->state, memory_order_acquire) & all_users);
}

/* The device of another context gets to know the slabs, or forgets them. */
static bool import_slabs(const kr_weights *w, kr_device *device)
{
    const kr_device_ops *ops = device->vtable;
    int done = 0;
    if (!ops || !ops->import) return true;
    while (done < KR_N_DTYPES &&
           (!w->slabs[done].data || ops->import(device, w->slabs[done].data, w->slabs[done].bytes)))
        done++;
    if (done == KR_N_DTYPES) return true;
    while (done-- > 0)
        if (w->slabs[done].data) ops->forget(device, w->slabs[done].data);
    return false;
}

static void forget_slabs(const kr_weights *w, kr_device *device)
{
    for (int t = 0; device->vtable && device->vtable->forget && t < KR_N_DTYPES; t++)
        if (w->slabs[t].data) device->vtable->forget(device, w->slabs[t].data);
}

static bool add_user(kr_weights *w)
{
    uint_least64_t state = atomic_load_explicit(&w->state, memory_order_relaxed);
    do {
        if (state > all_users) return false;
    } while (!atomic_compare_exchange_weak_explicit(&w->state, &state, state + 1, memory_order_acquire,
                                                    memory_order_relaxed));
    atomic_store_explicit(&w->written, 0, memory_order_relaxed);
    return true;
}

bool kr_weights_share(kr_weights *w, kr_ctx *ctx)
{
    if (!kr_require(ctx, import_slabs(w, ctx->device), KR_ERR_NOMEM, "params: no memory to note shared weights"))
        return false;
    if (add_user(w)) return true;
    forget_slabs(w, ctx->device);
    return false;
}

bool kr_weights_leave(kr_weights *w, kr_ctx *ctx, bool is_counted)
{
    const bool is_shared = kr_weights_users(w) > 1;
    if (is_shared || !is_counted) {
        if (kr_ctx_on_device(ctx) && !ctx->broken) kr_wait(ctx); /* its kernels read them */
        forget_slabs(w, ctx->device);
        if (is_counted) {
            kr_memory_leave(&w->host);
            kr_memory_leave(&w->device);
            if (w->floats == &w->device) ctx->device->vtable->detach(ctx->device, &w->device);
        }
    }
    const uint_least64_t before = atomic_fetch_sub_explicit(&w->state, 1, memory_order_acq_rel);
    return (before & all_users) == 1;
}

/* ---- writers ---- */

bool kr_weights_are_held(const kr_weights *w)
{
    return atomic_load_explicit(&w->state, memory_order_relaxed) > all_users;
}

bool kr_weights_hold(kr_weights *w)
{
    if (!w) return true;
    uint_least64_t state = atomic_load_explicit(&w->state, memory_order_relaxed);
    do {
        if ((state & all_users) > 1) return false;
    } while (!atomic_compare_exchange_weak_explicit(&w->state, &state, state + one_writer, memory_order_acquire,
                                                    memory_order_relaxed));
    return true;
}

void kr_weights_release(kr_weights *w, kr_ctx *ctx)
{
    if (!w) return;
    if (ctx->device->is_busy) atomic_store_explicit(&w->written, ++ctx->nwrites, memory_order_relaxed);
    if (atomic_fetch_sub_explicit(&w->state, one_writer, memory_order_acq_rel) == one_writer) free_struct(w);
}

bool kr_weights_begin_write(const kr_tensor *param, const char *op)
{
    return kr_weights_hold(param->storage->weights) ||
           kr_fail(
               param->ctx, KR_ERR_STATE,
               "%s: the weights of %s are shared by %u models, and only weights of a single one may change; destroy "
               "the others first, or load the model again",
               op, param->storage->name ? param->storage->name : "the parameter",
               (unsigned)kr_weights_users(param->storage->weights));
}

void kr_weights_end_write(const kr_tensor *param)
{
    kr_weights_release(param->storage->weights, param->ctx);
}
