/* contract.h - shape contracts: one line that checks ranks and equal sizes, binds the sizes, and documents the op.
 *
 *   "x:..i z:..i gain:i"     operands in order, each a name and its axes. A letter stands for the same size wherever it
 *                            occurs; ".." (first) for the same leading axes; a digit for that very size;
 *                            "bias:i?" may be NULL.
 * A failure reads: gated_norm: axis i of gain [96] is 96, but x [2, 64, 128] says i = 128
 */
#ifndef KR_TENSOR_CONTRACT_H
#define KR_TENSOR_CONTRACT_H

#include "base/ctx_impl.h"
#include "tensor/tensor_impl.h"

/* The sizes that a contract bound: d.i is the size of axis i (0 if it does not occur), lead the axes of "..". */
typedef struct kr_dims {
    union {
        int64_t size[26];
        struct {
            int64_t a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z;
        };
    };
    kr_shape lead;
    int64_t rows; /* elements of lead */
} kr_dims;

enum { KR_CONTRACT_MAX = 12 }; /* operands of one contract */

/* How many operands the contract names. */
int kr_contract_count(const char *contract);

/* Checks operands against the contract; fills *d. False with the context's error set. */
bool kr_contract_bind(kr_ctx *ctx, const char *op, kr_dims *d, const char *contract, kr_tensor *const *operands);

/* Name of the n-th operand into text, for messages; returns text. */
const char *kr_contract_name(const char *contract, int n, char *text, size_t bytes);
bool kr_contract_is_optional(const char *contract, int n);

#endif
