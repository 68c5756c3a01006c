/* grid.c - where a text can be cut without changing a bit.
 *
 * The CPU kernels treat the end of a chunk as the end of a call (kernels/args/ssd_args.h), so a block gives the same bits for
 * calls that are cut at multiples of its chunk length, and all its other ops work token by token.
 */
#include "nn/network_impl.h"

int64_t kr_block_grid(const void *block)
{
    const kr_block_kind *kind = ((const kr_block *)block)->kind;
    if (!kind->optimal_chunk_len) return 1;
    const kr_ssd_path path = kind->path(block);
    return path.algorithm == KR_SSD_SERIAL_RECALCULATED ? path.chunk_len : 0;
}

/* The least common multiple; 0 if one is 0, or if it exceeds the type. */
static int64_t common(int64_t a, int64_t b)
{
    int64_t x = a, y = b;
    while (y != 0) {
        const int64_t rest = x % y;
        x = y;
        y = rest;
    }
    if (a == 0 || b == 0 || a / x > INT64_MAX / b) return 0;
    return a / x * b;
}

int64_t kr_layers_grid_of(const kr_layers *layers)
{
    if (layers->has_class_tokens) return 0;
    int64_t grid = 1;
    for (int64_t i = 0; i < layers->config.n_layers; i++) grid = common(grid, kr_block_grid(layers->layers[i].block));
    return grid;
}

int64_t kr_network_grid_of(const kr_network *net)
{
    if (net->has_class_tokens) return 0;
    if (!net->is_custom) return kr_layers_grid_of(net->layers);
    int64_t grid = 1;
    for (int64_t i = 0; i < net->nslots; i++) grid = common(grid, kr_block_grid(net->slots[i]));
    return grid;
}
