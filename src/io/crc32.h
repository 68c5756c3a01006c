/* crc32.h - the checksum of zip: CRC-32 with the reflected polynomial 0xEDB88320, eight bytes at a time. */
#ifndef KR_IO_CRC32_H
#define KR_IO_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* at[k][b]: contribution of byte b, followed by k zero bytes, to the remainder. */
typedef struct kr_crc32_table {
    uint32_t at[8][256];
} kr_crc32_table;

static inline void kr_crc32_prepare(kr_crc32_table *table)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t r = b;
        for (int bit = 0; bit < 8; bit++) r = r >> 1 ^ (r & 1 ? UINT32_C(0xEDB88320) : 0);
        table->at[0][b] = r;
    }
    for (int k = 1; k < 8; k++)
        for (int b = 0; b < 256; b++) {
            const uint32_t r = table->at[k - 1][b];
            table->at[k][b] = r >> 8 ^ table->at[0][r & 0xff];
        }
}

/* The checksum of bytes in parts: `so_far` is that of the preceding parts, 0 for the first. */
static inline uint32_t kr_crc32(const kr_crc32_table *table, uint32_t so_far, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint32_t r = ~so_far;
    for (; bytes >= 8; p += 8, bytes -= 8) {
        r ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        r = table->at[7][r & 0xff] ^ table->at[6][r >> 8 & 0xff] ^ table->at[5][r >> 16 & 0xff] ^
            table->at[4][r >> 24] ^ table->at[3][p[4]] ^ table->at[2][p[5]] ^ table->at[1][p[6]] ^ table->at[0][p[7]];
    }
    for (; bytes > 0; p++, bytes--) r = r >> 8 ^ table->at[0][(r ^ *p) & 0xff];
    return ~r;
}

#endif
