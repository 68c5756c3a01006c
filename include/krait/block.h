/* block.h - the three families under one name: which block a stack is made of, and the cache of any of them.
 *
 *   kr_mamba3_config mamba;
 *   kr_mamba3_config_init(&mamba);
 *   mamba.d_model = 256;
 *   kr_layers_config stack;
 *   kr_layers_config_init(&stack);
 *   stack.block = kr_mamba3_block(&mamba);      // kr_bidi_config takes one too
 */
#ifndef KRAIT_BLOCK_H
#define KRAIT_BLOCK_H

#include <krait/mamba1.h>
#include <krait/mamba2.h>
#include <krait/mamba3.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kr_family { KR_MAMBA1 = 0, KR_MAMBA2 = 1, KR_MAMBA3 = 2 } kr_family;

KR_API const char *kr_family_name(kr_family family); /* "mamba1", ...; "?" for a value that is none */

/* A family and its config, which must stay until the stack is made; the stack keeps its own copy. */
typedef struct kr_block_config {
    kr_family family;
    const void *config; /* kr_mamba1_config, kr_mamba2_config or kr_mamba3_config */
} kr_block_config;
KR_API kr_block_config kr_mamba1_block(const kr_mamba1_config *config);
KR_API kr_block_config kr_mamba2_block(const kr_mamba2_config *config);
KR_API kr_block_config kr_mamba3_block(const kr_mamba3_config *config);

#define KR_CACHE_TENSORS 4

/* The cache of a block of any family. */
typedef struct kr_cache {
    kr_family family;
    union {
        kr_mamba1_cache mamba1;
        kr_mamba2_cache mamba2;
        kr_mamba3_cache mamba3;
        kr_tensor *tensors[KR_CACHE_TENSORS]; /* the tensors of any of them, in their order */
    };
} kr_cache;

/* How many tensors a family's cache has, and their names: "conv", "ssm", ...; NULL beyond. */
KR_API int kr_cache_count(kr_family family);
KR_API const char *kr_cache_name(kr_family family, int i);

#ifdef __cplusplus
}
#endif
#endif
