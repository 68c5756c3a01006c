/* row_lists.h - the sequences of rows that are one sequence each, in memory that host and kernels read.
 *
 * A list is made once for a length of rows and kept until the context ends: kernels that are queued, and graphs that have
 * captured them, may read it at any time. A list for more rows begins with that for fewer.
 */
#ifndef KR_DEVICE_ROW_LISTS_H
#define KR_DEVICE_ROW_LISTS_H

#include "base/ctx_impl.h"
#include "kernels/sequence.h"

/* Sequences 0 .. nb-1, row i being tokens 0 .. ns-1 of row i. NULL after an error: no memory. */
const kr_sequence *kr_row_list(kr_ctx *ctx, const char *op, int64_t nb, int64_t ns);

/* Frees all lists of the context, whose device is still open. */
void kr_row_lists_free(kr_ctx *ctx);

#endif
