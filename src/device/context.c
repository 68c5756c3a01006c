/* context.c - creates a context: its base parts, then the device of the options or the environment.
 *
 * An option that is set overrides the environment, the environment the default.
 */
#include "base/cpu.h"
#include "base/fork.h"
#include "base/sized.h"
#include "device/backend_impl.h"
#include "kernels/select.h"

#include <krait/experimental/testing.h>

#include <stdlib.h>
#include <string.h>

enum { SCRATCH_BLOCK = 1 << 16 };

KR_DEFAULTS(kr_ctx_options) = { .size = sizeof(kr_ctx_options), .seed = 0x5eed, .precision = KR_PRECISION_UNSET };

static bool pick_threads(kr_ctx *ctx, int asked, int *threads)
{
    if (asked != 0) {
        *threads = asked;
        return kr_require(ctx, asked >= 1 && asked <= KR_POOL_MAX, KR_ERR_ARG,
                          "ctx: threads = %d, but must be from 1 to %d, or 0 for one per CPU", asked, KR_POOL_MAX);
    }
    const char *text = getenv("KR_THREADS");
    if (!text || !*text) {
        const int allowed = kr_cpu_allowed(NULL, 0);
        *threads = allowed < KR_POOL_MAX ? allowed : KR_POOL_MAX;
        return true;
    }
    char *end;
    const long value = strtol(text, &end, 10);
    *threads = (int)value;
    return kr_require(ctx, *end == '\0' && value >= 1 && value <= KR_POOL_MAX, KR_ERR_ARG,
                      "ctx: KR_THREADS=%.40s is not a number from 1 to %d; unset it for one thread per CPU", text,
                      KR_POOL_MAX);
}

static bool pick_pinning(kr_ctx *ctx, bool asked, bool *pins)
{
    const char *text = getenv("KR_PIN_THREADS");
    *pins = asked || (text && strcmp(text, "1") == 0);
    return kr_require(ctx, asked || !text || !*text || *pins || strcmp(text, "0") == 0, KR_ERR_ARG,
                      "ctx: KR_PIN_THREADS=%.40s is neither 0 nor 1; unset it to let the system place threads", text);
}

static const kr_kernels *best_runnable(uint64_t features)
{
    const kr_kernels *best = NULL, *set;
    for (int n = 0; (set = kr_kernels_nth(n)); n++)
        if (kr_kernels_runnable(set, features)) best = set;
    return best;
}

static const kr_kernels *pick_isa(kr_ctx *ctx, const char *asked, uint64_t features)
{
    const char *source = "isa = ";
    if (!asked) {
        asked = getenv("KR_ISA");
        source = "KR_ISA=";
        if (!asked || !*asked) return best_runnable(features);
    }
    char choices[128];
    const kr_kernels *set = kr_kernels_named(asked);
    if (!set)
        kr_fail(ctx, KR_ERR_ARG, "ctx: %s%.40s is not an instruction set of this build; choose one of: %s", source,
                asked, kr_isa_choices(choices, sizeof choices));
    else if (!kr_kernels_runnable(set, features)) {
        kr_fail(ctx, KR_ERR_UNSUPPORTED, "ctx: %s%s, but this processor cannot run it; choose one of: %s", source,
                asked, kr_isa_choices(choices, sizeof choices));
        set = NULL;
    }
    return set;
}

static bool pick_precision(kr_ctx *ctx, kr_precision asked, kr_precision *precision)
{
    static const char *const names[] = { "exact", "tf32", "bf16" };
    enum { NAMES = sizeof names / sizeof *names };
    *precision = asked;
    if (asked != KR_PRECISION_UNSET)
        return kr_require(ctx, asked >= KR_PRECISION_EXACT && asked <= KR_PRECISION_BF16, KR_ERR_ARG,
                          "ctx: precision = %d is not a kr_precision", (int)asked);
    const char *text = getenv("KR_PRECISION");
    int i = 0;
    while (text && *text && i < NAMES && strcmp(text, names[i]) != 0) i++;
    *precision = (kr_precision)i;
    return kr_require(ctx, i < NAMES, KR_ERR_ARG,
                      "ctx: KR_PRECISION=%.40s is not a precision; choose one of: exact, tf32, bf16", text);
}

static bool set_up(kr_ctx *ctx, const kr_ctx_options *options)
{
    const uint64_t features = kr_cpu_features();
    int threads;
    bool pins;
    if (!pick_threads(ctx, options->threads, &threads) || !pick_pinning(ctx, options->pin_threads, &pins)) return false;
    const kr_kernels *last = pick_isa(ctx, options->isa, features);
    if (!last) return false;
    if (!kr_device_open(ctx, options, last, features) ||
        !pick_precision(ctx, options->precision, &ctx->device->precision))
        return false;
    ctx->pool = kr_pool_create(&ctx->memory, threads, pins);
    if (!kr_require(ctx, ctx->pool != NULL, KR_ERR_NOMEM, "ctx: the system refused a pool of %d threads; ask for fewer",
                    threads))
        return false;
    if (kr_ctx_on_device(ctx))
        kr_note(ctx, KR_LOG_INFO, "krait %s: %s, %s kernels, threads %d", kr_version(), kr_ctx_device(ctx), last->name,
                threads);
    else kr_note(ctx, KR_LOG_INFO, "krait %s: %s kernels, threads %d", kr_version(), last->name, threads);
    return true;
}

kr_ctx *kr_ctx_create(const kr_ctx_options *given)
{
    kr_ctx_options options;
    KR_TAKE(NULL, "ctx", kr_ctx_options, given, &options); /* its allocator; there is no context for an error yet */
    kr_memory memory;
    kr_memory_init(&memory, &options.allocator);
    kr_ctx *ctx = kr_memory_alloc_zeroed(&memory, sizeof *ctx);
    if (!ctx) return NULL;
    ctx->memory = memory;
    kr_fork_watch();
    ctx->nforks = kr_fork_count();
    ctx->log = options.log;
    ctx->log_user = options.log_user;
    ctx->check_finite = options.check_finite;
    kr_ctx_seed(ctx, options.seed);
    kr_arena_init(&ctx->scratch, &ctx->memory, SCRATCH_BLOCK);
    ctx->broken = !KR_TAKE(ctx, "ctx", kr_ctx_options, given, &options) || !set_up(ctx, &options);
    return ctx;
}

void kr_ctx_destroy(kr_ctx *ctx)
{
    if (!ctx) return;
    kr_device_close(ctx);
    kr_pool_destroy(ctx->pool);
    kr_arena_deinit(&ctx->scratch);
    kr_memory memory = ctx->memory;
    kr_memory_free(&memory, ctx, sizeof *ctx);
}

/* bf16 is where products have kernels for its operands, tf32 inside the kernels of a GPU. */
static kr_precision products_of(const kr_device *device)
{
    const bool has_bf16 = device->kernels.accepts.matmul_a & KR_DTYPE_BIT(KR_DTYPE_BF16);
    if (device->precision == KR_PRECISION_BF16 && has_bf16) return KR_PRECISION_BF16;
    return device->precision == KR_PRECISION_TF32 && device->vtable ? KR_PRECISION_TF32 : KR_PRECISION_EXACT;
}

kr_ctx_info kr_ctx_info_of(const kr_ctx *ctx)
{
    const kr_device *device = ctx ? ctx->device : NULL;
    return (kr_ctx_info){ .threads = ctx ? kr_pool_size(ctx->pool) : 0,
                          .isa = device ? device->host->name : "none",
                          .device = device ? device->name : "none",
                          .precision = device ? device->precision : KR_PRECISION_EXACT,
                          .products = device ? products_of(device) : KR_PRECISION_EXACT };
}

/* The name of the backend or set whose function runs a kernel on the CPU; sets are searched from the best to the
 * reference. */
static const char *origin_on_cpu(const char *name, kr_any_fn *run)
{
    int n = 0;
    while (kr_kernels_nth(n + 1)) n++;
    for (; n >= 0; n--)
        if (kr_kernels_function(kr_kernels_nth(n), name) == run) return kr_kernels_nth(n)->name;
    return NULL;
}

const char *kr_ctx_kernel(const kr_ctx *ctx, const char *name)
{
    if (!ctx || !ctx->device || !name) return NULL;
    const kr_device *device = ctx->device;
    kr_any_fn *run = kr_kernels_function(&device->kernels, name);
    const bool falls_back = run && kr_ctx_on_device(ctx) && kr_fallback_is(name, run);
    if (falls_back) run = kr_kernels_function(device->host, name);
    if (!run) return NULL;
    for (int i = device->nbackends - 1; i >= 0; i--) {
        const kr_kernels *set = device->backends[i].info->kernels;
        if (set && kr_kernels_function(set, name) == run) return device->backends[i].info->name;
    }
    return kr_ctx_on_device(ctx) && !falls_back ? device->kernels.name : origin_on_cpu(name, run);
}

void kr_ctx_fail_allocation(kr_ctx *ctx, size_t n)
{
    if (ctx) ctx->memory.fail_in = n;
}

void kr_ctx_seed(kr_ctx *ctx, uint64_t seed)
{
    if (!ctx) return;
    ctx->seed = seed;
    ctx->stream = 0;
}
