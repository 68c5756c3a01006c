/* krait.h - includes all public headers except the experimental ones.
 *
 *   kr_ctx *ctx = kr_ctx_create(NULL);
 *   kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
 *   kr_tensor *x = kr_input(tape, kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(4, 8)));
 *   kr_tensor *loss = kr_mean(tape, kr_silu(tape, x), KR_ALL_AXES, false);
 *   kr_backward(tape, loss);
 *   if (kr_ctx_failed(ctx)) fprintf(stderr, "%s\n", kr_ctx_message(ctx));
 *   kr_tape_destroy(tape);
 *   kr_ctx_destroy(ctx);
 */
#ifndef KRAIT_KRAIT_H
#define KRAIT_KRAIT_H

#include <krait/backend.h>
#include <krait/base.h>
#include <krait/batch.h>
#include <krait/block.h>
#include <krait/comm.h>
#include <krait/ctx.h>
#include <krait/data.h>
#include <krait/generate.h>
#include <krait/model.h>
#include <krait/network.h>
#include <krait/ops.h>
#include <krait/params.h>
#include <krait/raw.h>
#include <krait/seq_parallel.h>
#include <krait/ssd.h>
#include <krait/tape.h>
#include <krait/tensor.h>
#include <krait/tensor_file.h>
#include <krait/text.h>
#include <krait/train.h>

#endif
