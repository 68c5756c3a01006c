/* dropout_words.h - the random words of dropout: one of 32 bits for each element of a tensor.
 *
 * Word w of a stream is lane w / 16 % 4 of Philox block w / 64 * 16 + w % 16: sixteen neighbouring words are the same
 * lane of sixteen neighbouring blocks, so that vectors of 8 or 16 blocks give words in the order of the elements. A
 * word depends only on seed, stream and its index. Plain integer arithmetic, valid C11 and CUDA C.
 */
#ifndef KR_BASE_DROPOUT_WORDS_H
#define KR_BASE_DROPOUT_WORDS_H

#include "base/philox.h"

enum {
    KR_DROPOUT_LANE = 16,                  /* neighbouring words of one lane */
    KR_DROPOUT_GROUP = 4 * KR_DROPOUT_LANE /* words of 16 blocks */
};

KR_EVERYWHERE uint64_t kr_dropout_block(uint64_t word)
{
    return word / KR_DROPOUT_GROUP * KR_DROPOUT_LANE + word % KR_DROPOUT_LANE;
}

KR_EVERYWHERE uint32_t kr_dropout_word(uint64_t seed, uint64_t stream, uint64_t word)
{
    return kr_philox_at(seed, stream, kr_dropout_block(word)).word[word / KR_DROPOUT_LANE % 4];
}

#endif
