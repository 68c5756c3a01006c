/* hash.h - a 64-bit hash of bytes, for checksums and model fingerprints. Not cryptographic. */
#ifndef KR_BASE_HASH_H
#define KR_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define KR_HASH_BEGIN UINT64_C(0x6B72616974)

/* Multiply and fold: every bit of word and state reaches every bit of the result after two rounds. */
static inline uint64_t kr_hash_word(uint64_t state, uint64_t word)
{
    state = (state ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return state ^ (state >> 29);
}

/* Continues a hash with a part of some bytes, a multiple of 8 long; and with the last part, of any length, of `bytes` in
 * all. */
static inline uint64_t kr_hash_part(uint64_t state, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (; bytes >= 8; at += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        state = kr_hash_word(state, word);
    }
    return state;
}

static inline uint64_t kr_hash_last(uint64_t state, const void *data, size_t part, size_t bytes)
{
    const unsigned char *at = data;
    const size_t words = part / 8 * 8;
    uint64_t word = 0;
    for (size_t i = words; i < part; i++) word |= (uint64_t)at[i] << (8 * (i - words));
    return kr_hash_word(kr_hash_word(kr_hash_part(state, data, part), word), (uint64_t)bytes);
}

/* Continues a hash with `bytes` bytes, taken as little-endian words; the length is part of it. */
static inline uint64_t kr_hash_bytes(uint64_t state, const void *data, size_t bytes)
{
    return kr_hash_last(state, data, bytes, bytes);
}

static inline uint64_t kr_hash_text(uint64_t state, const char *text)
{
    return kr_hash_bytes(state, text, strlen(text));
}

#endif
