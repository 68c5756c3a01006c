/* mlp.h - the gated MLP of a layer: y = (v silu(g)) fc2^T, [v g] = x fc1^T. */
#ifndef KR_NN_MLP_H
#define KR_NN_MLP_H

#include "nn/params_impl.h"
#include "ops/ops_impl.h"

typedef struct kr_mlp {
    int64_t hidden;
    kr_tensor *fc1, *fc1_bias, *fc2, *fc2_bias;
} kr_mlp;

/* d_intermediate rounded up to a multiple; -1 if there is no such size. */
int64_t kr_mlp_hidden(int64_t d_intermediate, int64_t multiple_of);

/* Rows mlp.fc1.weight, ... under the table's prefix. */
void kr_mlp_declare(kr_mlp *mlp, kr_params *params, kr_dtype dtype, int64_t d_model, int64_t hidden, bool has_bias);

kr_tensor *kr_mlp_run(kr_tape *tape, const kr_mlp *mlp, kr_tensor *x);

#endif
