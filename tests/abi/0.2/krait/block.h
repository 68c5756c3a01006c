/* block.h - a block of any family: one token mixer with its projections, as stacks use it and on its own.
 *
 *   kr_mamba3_config mamba;
 *   kr_mamba3_config_init(&mamba);
 *   mamba.d_model = 256;
 *   kr_block_config config = kr_mamba3_block(&mamba);
 *   kr_block *block = kr_block_create(ctx, &config);
 *   kr_block_out whole = kr_block_forward(tape, block, x_bsd, NULL);             // a sequence
 *   kr_block_out next = kr_block_step(tape, block, x_bd, &whole.cache);          // one more token
 *   kr_block_destroy(block);
 *
 * kr_layers_config and kr_bidi_config take a kr_block_config too. Calls are pure: they read a cache and return a new one
 * on the tape. Any mix of forwards and steps over a sequence gives the same outputs, final cache and gradients.
 *
 * The functions at the end of this header (kr_mamba2_forward and so on) are typed inline wrappers of kr_block_*.
 */
#ifndef KRAIT_BLOCK_H
#define KRAIT_BLOCK_H

#include <krait/mamba1.h>
#include <krait/mamba2.h>
#include <krait/mamba3.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kr_family { KR_FAMILY_MAMBA1 = 0, KR_FAMILY_MAMBA2 = 1, KR_FAMILY_MAMBA3 = 2 } kr_family;

/* "mamba1", ...; "?" for an invalid value. */
KR_API_INLINE const char *kr_family_name(kr_family family)
{
    return kr_enum_name(KR_ENUM_FAMILY, (int)family);
}

/* A family and its config. Both are copied by the constructor that takes them. */
typedef struct kr_block_config {
    kr_family family;
    const void *config; /* kr_mamba1_config, kr_mamba2_config or kr_mamba3_config */
} kr_block_config;

#define KR_CACHE_TENSORS 8

/* The cache of a block of any family. */
typedef struct kr_cache {
    kr_family family;
    union {
        kr_mamba1_cache mamba1;
        kr_mamba2_cache mamba2;
        kr_mamba3_cache mamba3;
        kr_tensor *tensors[KR_CACHE_TENSORS]; /* the tensors of the family's cache, in their order */
    };
} kr_cache;

/* Number of tensors in a family's cache, and their names: "conv", "ssm", ...; NULL beyond the last. */
KR_API int kr_cache_count(kr_family family);
KR_API const char *kr_cache_name(kr_family family, int i);

typedef struct kr_block kr_block;

typedef struct kr_block_out {
    kr_tensor *y; /* of x's shape; NULL after an error */
    kr_cache cache;
    void *reserved[4];
} kr_block_out;

/* How a forward runs. All fields may be NULL. Initialise with { 0 }; reserved must be 0. */
typedef struct kr_block_call {
    const kr_cache *cache;   /* NULL, or all its tensors NULL: the initial cache */
    kr_tensor *seq_start_bs; /* packed rows: i32 or i64, not 0 where a sequence begins; the first token of a row always
                              * begins one. Caches, in and out, are one for each sequence, in order of rows */
    kr_tensor *reset_bs;     /* state resets: where it is not 0 the state is cleared before that token. Caches are one
                              * for each row. Not together with seq_start_bs */
    kr_tensor *mask_bs;      /* i32 or i64: 0 where a token is padding; see docs/networks.md */
    const kr_ssd_path *path; /* NULL: kr_block_path(block); Mamba-1 ignores it */
    kr_tensor *cu_seqlens;   /* instead of seq_start_bs: i32 or i64 [q+1]; see kr_seq_start_from_cu_seqlens */
    void *reserved[3];
} kr_block_call;

/* Creates a block with initial weights sampled from the context's random stream. The caller destroys it before the
 * context. NULL after an error that names the field, the value and the rule. */
KR_API kr_block *kr_block_create(kr_ctx *ctx, const kr_block_config *config);

/* NULL is allowed. */
KR_API void kr_block_destroy(kr_block *block);

/* The block's parameter table, which lives as long as the block. NULL for NULL. */
KR_API kr_params *kr_block_params(const kr_block *block);

/* The family; KR_FAMILY_MAMBA1 for NULL. */
KR_API kr_family kr_block_family(const kr_block *block);

/* The SSD path of the config, with the chunk length filled in for the block's sizes; for Mamba-3 the optimal length is
 * divided by the MIMO rank, since the core sees a row for each token and rank. */
KR_API kr_ssd_path kr_block_path(const kr_block *block);

/* An algorithm with the optimal chunk length for the block's sizes, whatever the config's path says: that of
 * kr_ssd_optimal_chunk_len, for Mamba-3 divided by the MIMO rank. Mamba-1, which has no chunks, and NULL: length 0. */
KR_API kr_ssd_path kr_block_optimal_path(const kr_block *block, kr_ssd_algorithm algorithm);

/* kr_block_optimal_path for each algorithm: Minimal, Serial, SerialRecalculated. */
static inline kr_ssd_path kr_ssd_core_optimal_from_block(const kr_block *block)
{
    return kr_block_optimal_path(block, KR_SSD_MINIMAL);
}
static inline kr_ssd_path kr_ssd_chunked_optimal_from_block(const kr_block *block)
{
    return kr_block_optimal_path(block, KR_SSD_SERIAL);
}
static inline kr_ssd_path kr_ssd_chunked_recalculated_optimal_from_block(const kr_block *block)
{
    return kr_block_optimal_path(block, KR_SSD_SERIAL_RECALCULATED);
}

/* The cache before the first token: zeros, quaternions 1, and the learned initial state if the block has one. On the tape;
 * all tensors are NULL after an error. */
KR_API kr_cache kr_block_initial_cache(kr_tape *tape, const kr_block *block, int64_t batch);

/* A sequence: x [b s d], s >= 1. call NULL: from the initial cache, by the block's path. */
KR_API kr_block_out kr_block_forward(kr_tape *tape, const kr_block *block, kr_tensor *x_bsd, const kr_block_call *call);

/* One token: x [b d]. cache NULL, or all its tensors NULL: the initial cache. */
KR_API kr_block_out kr_block_step(kr_tape *tape, const kr_block *block, kr_tensor *x_bd, const kr_cache *cache);

/* The limit of step's output for a constant input x [b d] (the steady state), in closed form. NULL after an error. */
KR_API kr_tensor *kr_block_step_infinite(kr_tape *tape, const kr_block *block, kr_tensor *x_bd);

/* ---- typed wrappers ---- */

static inline kr_block_config kr_mamba1_block(const kr_mamba1_config *config)
{
    kr_block_config any = { KR_FAMILY_MAMBA1, config };
    return any;
}
static inline kr_mamba1 *kr_mamba1_create(kr_ctx *ctx, const kr_mamba1_config *config)
{
    const kr_block_config any = kr_mamba1_block(config);
    return (kr_mamba1 *)kr_block_create(ctx, &any);
}
static inline void kr_mamba1_destroy(kr_mamba1 *block)
{
    kr_block_destroy((kr_block *)block);
}
static inline kr_params *kr_mamba1_params(const kr_mamba1 *block)
{
    return kr_block_params((const kr_block *)block);
}
static inline kr_mamba1_cache kr_mamba1_initial_cache(kr_tape *tape, const kr_mamba1 *block, int64_t batch)
{
    return kr_block_initial_cache(tape, (const kr_block *)block, batch).mamba1;
}
static inline kr_mamba1_out kr_mamba1_typed_out(const kr_block_out *any)
{
    kr_mamba1_out out;
    out.y = any->y;
    out.cache = any->cache.mamba1;
    return out;
}
static inline kr_mamba1_out kr_mamba1_forward_marked(kr_tape *tape, const kr_mamba1 *block, kr_tensor *x_bsd,
                                                     kr_tensor *seq_start_bs, kr_tensor *reset_bs,
                                                     const kr_mamba1_cache *cache)
{
    kr_cache any;
    kr_block_call call = { NULL, seq_start_bs, reset_bs, NULL, NULL, NULL, { NULL, NULL, NULL } };
    any.family = KR_FAMILY_MAMBA1;
    if (cache) any.mamba1 = *cache;
    if (cache) call.cache = &any;
    const kr_block_out out = kr_block_forward(tape, (const kr_block *)block, x_bsd, &call);
    return kr_mamba1_typed_out(&out);
}
static inline kr_mamba1_out kr_mamba1_forward(kr_tape *tape, const kr_mamba1 *block, kr_tensor *x_bsd,
                                              const kr_mamba1_cache *cache)
{
    return kr_mamba1_forward_marked(tape, block, x_bsd, NULL, NULL, cache);
}
static inline kr_mamba1_out kr_mamba1_forward_packed(kr_tape *tape, const kr_mamba1 *block, kr_tensor *x_bsd,
                                                     kr_tensor *seq_start_bs, const kr_mamba1_cache *cache)
{
    return kr_mamba1_forward_marked(tape, block, x_bsd, seq_start_bs, NULL, cache);
}
static inline kr_mamba1_out kr_mamba1_forward_reset(kr_tape *tape, const kr_mamba1 *block, kr_tensor *x_bsd,
                                                    kr_tensor *reset_bs, const kr_mamba1_cache *cache)
{
    return kr_mamba1_forward_marked(tape, block, x_bsd, NULL, reset_bs, cache);
}
static inline kr_mamba1_out kr_mamba1_step(kr_tape *tape, const kr_mamba1 *block, kr_tensor *x_bd,
                                           const kr_mamba1_cache *cache)
{
    kr_cache any;
    any.family = KR_FAMILY_MAMBA1;
    if (cache) any.mamba1 = *cache;
    const kr_block_out out = kr_block_step(tape, (const kr_block *)block, x_bd, cache ? &any : NULL);
    return kr_mamba1_typed_out(&out);
}
static inline kr_tensor *kr_mamba1_step_infinite(kr_tape *tape, const kr_mamba1 *block, kr_tensor *x_bd)
{
    return kr_block_step_infinite(tape, (const kr_block *)block, x_bd);
}

static inline kr_block_config kr_mamba2_block(const kr_mamba2_config *config)
{
    kr_block_config any = { KR_FAMILY_MAMBA2, config };
    return any;
}
static inline kr_mamba2 *kr_mamba2_create(kr_ctx *ctx, const kr_mamba2_config *config)
{
    const kr_block_config any = kr_mamba2_block(config);
    return (kr_mamba2 *)kr_block_create(ctx, &any);
}
static inline void kr_mamba2_destroy(kr_mamba2 *block)
{
    kr_block_destroy((kr_block *)block);
}
static inline kr_params *kr_mamba2_params(const kr_mamba2 *block)
{
    return kr_block_params((const kr_block *)block);
}
static inline kr_ssd_path kr_mamba2_path(const kr_mamba2 *block)
{
    return kr_block_path((const kr_block *)block);
}
static inline kr_ssd_path kr_mamba2_core_optimal(const kr_mamba2 *block)
{
    return kr_ssd_core_optimal_from_block((const kr_block *)block);
}
static inline kr_ssd_path kr_mamba2_chunked_optimal(const kr_mamba2 *block)
{
    return kr_ssd_chunked_optimal_from_block((const kr_block *)block);
}
static inline kr_ssd_path kr_mamba2_chunked_recalculated_optimal(const kr_mamba2 *block)
{
    return kr_ssd_chunked_recalculated_optimal_from_block((const kr_block *)block);
}
static inline kr_mamba2_cache kr_mamba2_initial_cache(kr_tape *tape, const kr_mamba2 *block, int64_t batch)
{
    return kr_block_initial_cache(tape, (const kr_block *)block, batch).mamba2;
}
static inline kr_mamba2_out kr_mamba2_typed_out(const kr_block_out *any)
{
    kr_mamba2_out out;
    out.y = any->y;
    out.cache = any->cache.mamba2;
    return out;
}
static inline kr_mamba2_out kr_mamba2_forward_marked(kr_tape *tape, const kr_mamba2 *block, kr_tensor *x_bsd,
                                                     kr_tensor *seq_start_bs, kr_tensor *reset_bs,
                                                     const kr_mamba2_cache *cache, kr_ssd_path path)
{
    kr_cache any;
    kr_block_call call = { NULL, seq_start_bs, reset_bs, NULL, NULL, NULL, { NULL, NULL, NULL } };
    any.family = KR_FAMILY_MAMBA2;
    if (cache) any.mamba2 = *cache;
    if (cache) call.cache = &any;
    call.path = &path;
    const kr_block_out out = kr_block_forward(tape, (const kr_block *)block, x_bsd, &call);
    return kr_mamba2_typed_out(&out);
}
static inline kr_mamba2_out kr_mamba2_forward(kr_tape *tape, const kr_mamba2 *block, kr_tensor *x_bsd,
                                              const kr_mamba2_cache *cache, kr_ssd_path path)
{
    return kr_mamba2_forward_marked(tape, block, x_bsd, NULL, NULL, cache, path);
}
static inline kr_mamba2_out kr_mamba2_forward_packed(kr_tape *tape, const kr_mamba2 *block, kr_tensor *x_bsd,
                                                     kr_tensor *seq_start_bs, const kr_mamba2_cache *cache,
                                                     kr_ssd_path path)
{
    return kr_mamba2_forward_marked(tape, block, x_bsd, seq_start_bs, NULL, cache, path);
}
static inline kr_mamba2_out kr_mamba2_forward_reset(kr_tape *tape, const kr_mamba2 *block, kr_tensor *x_bsd,
                                                    kr_tensor *reset_bs, const kr_mamba2_cache *cache, kr_ssd_path path)
{
    return kr_mamba2_forward_marked(tape, block, x_bsd, NULL, reset_bs, cache, path);
}
static inline kr_mamba2_out kr_mamba2_step(kr_tape *tape, const kr_mamba2 *block, kr_tensor *x_bd,
                                           const kr_mamba2_cache *cache)
{
    kr_cache any;
    any.family = KR_FAMILY_MAMBA2;
    if (cache) any.mamba2 = *cache;
    const kr_block_out out = kr_block_step(tape, (const kr_block *)block, x_bd, cache ? &any : NULL);
    return kr_mamba2_typed_out(&out);
}
static inline kr_tensor *kr_mamba2_step_infinite(kr_tape *tape, const kr_mamba2 *block, kr_tensor *x_bd)
{
    return kr_block_step_infinite(tape, (const kr_block *)block, x_bd);
}

static inline kr_block_config kr_mamba3_block(const kr_mamba3_config *config)
{
    kr_block_config any = { KR_FAMILY_MAMBA3, config };
    return any;
}
static inline kr_mamba3 *kr_mamba3_create(kr_ctx *ctx, const kr_mamba3_config *config)
{
    const kr_block_config any = kr_mamba3_block(config);
    return (kr_mamba3 *)kr_block_create(ctx, &any);
}
static inline void kr_mamba3_destroy(kr_mamba3 *block)
{
    kr_block_destroy((kr_block *)block);
}
static inline kr_params *kr_mamba3_params(const kr_mamba3 *block)
{
    return kr_block_params((const kr_block *)block);
}
static inline kr_ssd_path kr_mamba3_path(const kr_mamba3 *block)
{
    return kr_block_path((const kr_block *)block);
}
static inline kr_ssd_path kr_mamba3_core_optimal(const kr_mamba3 *block)
{
    return kr_ssd_core_optimal_from_block((const kr_block *)block);
}
static inline kr_ssd_path kr_mamba3_chunked_optimal(const kr_mamba3 *block)
{
    return kr_ssd_chunked_optimal_from_block((const kr_block *)block);
}
static inline kr_ssd_path kr_mamba3_chunked_recalculated_optimal(const kr_mamba3 *block)
{
    return kr_ssd_chunked_recalculated_optimal_from_block((const kr_block *)block);
}
static inline kr_mamba3_cache kr_mamba3_initial_cache(kr_tape *tape, const kr_mamba3 *block, int64_t batch)
{
    return kr_block_initial_cache(tape, (const kr_block *)block, batch).mamba3;
}
static inline kr_mamba3_out kr_mamba3_typed_out(const kr_block_out *any)
{
    kr_mamba3_out out;
    out.y = any->y;
    out.cache = any->cache.mamba3;
    return out;
}
static inline kr_mamba3_out kr_mamba3_forward_marked(kr_tape *tape, const kr_mamba3 *block, kr_tensor *x_bsd,
                                                     kr_tensor *seq_start_bs, kr_tensor *reset_bs,
                                                     const kr_mamba3_cache *cache, kr_ssd_path path)
{
    kr_cache any;
    kr_block_call call = { NULL, seq_start_bs, reset_bs, NULL, NULL, NULL, { NULL, NULL, NULL } };
    any.family = KR_FAMILY_MAMBA3;
    if (cache) any.mamba3 = *cache;
    if (cache) call.cache = &any;
    call.path = &path;
    const kr_block_out out = kr_block_forward(tape, (const kr_block *)block, x_bsd, &call);
    return kr_mamba3_typed_out(&out);
}
static inline kr_mamba3_out kr_mamba3_forward(kr_tape *tape, const kr_mamba3 *block, kr_tensor *x_bsd,
                                              const kr_mamba3_cache *cache, kr_ssd_path path)
{
    return kr_mamba3_forward_marked(tape, block, x_bsd, NULL, NULL, cache, path);
}
static inline kr_mamba3_out kr_mamba3_forward_packed(kr_tape *tape, const kr_mamba3 *block, kr_tensor *x_bsd,
                                                     kr_tensor *seq_start_bs, const kr_mamba3_cache *cache,
                                                     kr_ssd_path path)
{
    return kr_mamba3_forward_marked(tape, block, x_bsd, seq_start_bs, NULL, cache, path);
}
static inline kr_mamba3_out kr_mamba3_forward_reset(kr_tape *tape, const kr_mamba3 *block, kr_tensor *x_bsd,
                                                    kr_tensor *reset_bs, const kr_mamba3_cache *cache, kr_ssd_path path)
{
    return kr_mamba3_forward_marked(tape, block, x_bsd, NULL, reset_bs, cache, path);
}
static inline kr_mamba3_out kr_mamba3_step(kr_tape *tape, const kr_mamba3 *block, kr_tensor *x_bd,
                                           const kr_mamba3_cache *cache)
{
    kr_cache any;
    any.family = KR_FAMILY_MAMBA3;
    if (cache) any.mamba3 = *cache;
    const kr_block_out out = kr_block_step(tape, (const kr_block *)block, x_bd, cache ? &any : NULL);
    return kr_mamba3_typed_out(&out);
}
static inline kr_tensor *kr_mamba3_step_infinite(kr_tape *tape, const kr_mamba3 *block, kr_tensor *x_bd)
{
    return kr_block_step_infinite(tape, (const kr_block *)block, x_bd);
}

#ifdef __cplusplus
}
#endif
#endif
