/* png.c - writes PNG without a library: signature, then chunks of (big-endian length, name, bytes, CRC-32 of name and
 * bytes).
 *
 *   IHDR   width height, 8 bits, grey
 *   IDAT   zlib: 78 01, stored blocks of at most 65535 bytes (last? length ~length bytes), Adler-32
 *          of each row: filter 0, then its bytes
 *   IEND
 */
#include "lab/png.h"

#include "cli/common/cli_files.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

cli_picture cli_picture_new(int width, int height)
{
    return (cli_picture){ width, height, calloc((size_t)width, (size_t)height) };
}

void cli_picture_free(cli_picture *picture)
{
    free(picture->grey);
    picture->grey = NULL;
}

void cli_picture_put(cli_picture *picture, int x, int y, const unsigned char *grey, int width, int height)
{
    for (int i = 0; picture->grey && i < height; i++)
        for (int j = 0; j < width; j++)
            if (y + i >= 0 && y + i < picture->height && x + j >= 0 && x + j < picture->width)
                picture->grey[(y + i) * picture->width + x + j] = grey[i * width + j];
}

void cli_picture_fill(cli_picture *picture, int x, int y, int width, int height, int shade)
{
    const unsigned char grey = (unsigned char)shade;
    for (int i = 0; i < height; i++)
        for (int j = 0; j < width; j++) cli_picture_put(picture, x + j, y + i, &grey, 1, 1);
}

/* ---- bytes ---- */

typedef struct page {
    unsigned char *data;
    size_t count;
} page;

static void put_bytes(page *p, const void *data, size_t count)
{
    memcpy(p->data + p->count, data, count);
    p->count += count;
}

static void put_u32(page *p, uint32_t value)
{
    for (int shift = 24; shift >= 0; shift -= 8) p->data[p->count++] = (unsigned char)(value >> shift);
}

static uint32_t crc32_of(const unsigned char *data, size_t count)
{
    uint32_t crc = 0xFFFFFFFF;
    for (size_t i = 0; i < count; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? 0xEDB88320 : 0);
    }
    return ~crc;
}

static uint32_t adler32_of(const unsigned char *data, size_t count)
{
    uint32_t a = 1, b = 0;
    for (size_t i = 0; i < count; i++) {
        a = (a + data[i]) % 65521;
        b = (b + a) % 65521;
    }
    return b << 16 | a;
}

/* ---- chunks ---- */

/* Begins a chunk; returns the offset of its data. */
static size_t begin_chunk(page *p, const char *name)
{
    put_u32(p, 0);
    put_bytes(p, name, 4);
    return p->count;
}

static void end_chunk(page *p, size_t begin)
{
    page length = { p->data, begin - 8 };
    put_u32(&length, (uint32_t)(p->count - begin));
    put_u32(p, crc32_of(p->data + begin - 4, p->count - begin + 4));
}

static void put_header(page *p, const cli_picture *picture)
{
    static const unsigned char signature[] = { 0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n' },
                               kind[] = { 8, 0, 0, 0, 0 };
    put_bytes(p, signature, sizeof signature);
    const size_t begin = begin_chunk(p, "IHDR");
    put_u32(p, (uint32_t)picture->width);
    put_u32(p, (uint32_t)picture->height);
    put_bytes(p, kind, sizeof kind);
    end_chunk(p, begin);
}

enum { MOST_STORED = 65535 };

static void put_stored(page *p, const unsigned char *data, size_t count)
{
    const unsigned char zlib[] = { 0x78, 0x01 };
    put_bytes(p, zlib, sizeof zlib);
    for (size_t at = 0; at < count;) {
        const size_t n = count - at < MOST_STORED ? count - at : MOST_STORED;
        const unsigned char head[] = { at + n == count, (unsigned char)n, (unsigned char)(n >> 8), (unsigned char)~n,
                                       (unsigned char)(~n >> 8) };
        put_bytes(p, head, sizeof head);
        put_bytes(p, data + at, n);
        at += n;
    }
    put_u32(p, adler32_of(data, count));
}

/* The file's bytes, to be freed; data is NULL if out of memory. */
static page encode(const cli_picture *picture)
{
    const size_t width = (size_t)picture->width, height = (size_t)picture->height, count = height * (width + 1);
    unsigned char *rows = malloc(count);
    page p = { malloc(count + 5 * (count / MOST_STORED + 1) + 128), 0 };
    if (!rows || !p.data || !picture->grey) {
        free(p.data);
        free(rows);
        return (page){ NULL, 0 };
    }
    for (size_t y = 0; y < height; y++) {
        rows[y * (width + 1)] = 0;
        memcpy(rows + y * (width + 1) + 1, picture->grey + y * width, width);
    }
    put_header(&p, picture);
    size_t begin = begin_chunk(&p, "IDAT");
    put_stored(&p, rows, count);
    end_chunk(&p, begin);
    begin = begin_chunk(&p, "IEND");
    end_chunk(&p, begin);
    free(rows);
    return p;
}

bool cli_picture_write(const cli_picture *picture, const char *path)
{
    char temporary[CLI_PATH_BYTES];
    const int n = snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid());
    if (n < 0 || n >= (int)sizeof temporary) return cli_cannot("write", path, ENAMETOOLONG);
    page p = encode(picture);
    if (!p.data) return cli_cannot("write", path, ENOMEM);
    FILE *file = fopen(temporary, "wb");
    bool ok = file && fwrite(p.data, 1, p.count, file) == p.count;
    int error = ok ? 0 : errno;
    if (file && fclose(file) != 0 && ok) {
        ok = false;
        error = errno;
    }
    if (ok && rename(temporary, path) != 0) {
        ok = false;
        error = errno;
    }
    if (file && !ok) unlink(temporary);
    free(p.data);
    return ok || cli_cannot("write", path, error);
}
