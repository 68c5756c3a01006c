/* source_tokens.h - a source over tokens from a file or from memory. */
#ifndef KR_DATA_SOURCE_TOKENS_H
#define KR_DATA_SOURCE_TOKENS_H

#include "data/token_file.h"
#include "data/source.h"

/* Takes the tokens over, or closes them if there is no memory. */
kr_source *kr_source_of_tokens(kr_ctx *ctx, const kr_tokens *tokens);

#endif
