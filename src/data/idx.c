/* idx.c - reading IDX files: magic, rank and sizes are held against the file. */
#include "data/idx.h"

void kr_idx_close(kr_idx *idx)
{
    kr_file_close(&idx->file);
}

static bool read_header(kr_idx *idx, kr_ctx *ctx, const char *path, int rank)
{
    const unsigned char *data = idx->file.data;
    const size_t bytes = idx->file.bytes, header = 4 + 4 * (size_t)rank;
    if (!kr_require(ctx, bytes < 2 || data[0] != 0x1f || data[1] != 0x8b, KR_ERR_FORMAT,
                    "%s: is compressed; unpack it first (gunzip)", path) ||
        !kr_require(ctx, bytes >= 4 && data[0] == 0 && data[1] == 0, KR_ERR_FORMAT,
                    "%s: not an IDX file: it does not begin with two zero bytes, a type and a rank", path) ||
        !kr_require(ctx, data[2] == 8, KR_ERR_FORMAT, "%s: IDX of type 0x%02x, but it must be bytes (0x08)", path,
                    (unsigned)data[2]) ||
        !kr_require(ctx, data[3] == rank, KR_ERR_FORMAT, "%s: IDX of rank %d, but %d is wanted", path, (int)data[3],
                    rank) ||
        !kr_require(ctx, bytes >= header, KR_ERR_FORMAT, "%s: ends in its header, after %zu of %zu bytes", path, bytes,
                    header))
        return false;
    uint64_t count = 1;
    bool fits = true;
    for (int i = 0; i < rank; i++) {
        const unsigned char *at = data + 4 + 4 * i;
        const uint64_t n = (uint64_t)at[0] << 24 | (uint64_t)at[1] << 16 | (uint64_t)at[2] << 8 | at[3];
        if (!kr_require(ctx, n > 0, KR_ERR_FORMAT, "%s: at byte %d: axis %d has size 0", path, 4 + 4 * i, i))
            return false;
        idx->dims[i] = (int64_t)n;
        fits = fits && count <= bytes / n;
        count = fits ? count * n : count;
    }
    if (!kr_require(ctx, fits && count == bytes - header, KR_ERR_FORMAT,
                    "%s: %zu bytes follow the header, which does not match its sizes", path, bytes - header))
        return false;
    idx->rank = rank;
    idx->data = data + header;
    return true;
}

bool kr_idx_open(kr_idx *idx, kr_ctx *ctx, const char *path, int rank)
{
    *idx = (kr_idx){ .rank = rank };
    if (!kr_file_open(&idx->file, ctx, path, true)) return false;
    const bool ok = read_header(idx, ctx, path, rank);
    if (!ok) kr_idx_close(idx);
    return ok;
}
