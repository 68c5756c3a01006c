/* decoding.h - what tests of decoders share. */
#ifndef KR_TESTS_DECODE_DECODING_H
#define KR_TESTS_DECODE_DECODING_H

#include "decode/step.h"
#include "tests/generate/chat.h"

#endif
