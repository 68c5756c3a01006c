/* optimizer_ema.c - additional weights of an optimizer: f32 master copies of 16-bit parameters, and averages (EMA). */
#include "train/optimizer_impl.h"

#include "device/device.h"

void kr_optimizer_convert(kr_ctx *ctx, kr_dtype y_dtype, void *y, kr_dtype x_dtype, const void *x, int64_t n)
{
    kr_copy_args args = { .walk = { .rank = 1, .dims = { n }, .strides = { { 1 }, { 1 } } },
                          .x_dtype = x_dtype,
                          .y_dtype = y_dtype,
                          .x = x,
                          .y = y };
    KR_RUN(ctx, copy, &args);
}

kr_status kr_optimizer_reread(kr_optimizer *opt)
{
    if (!opt) return KR_ERR_ARG;
    if (!kr_optimizer_ready(opt) || !kr_require(opt->ctx, !opt->ema_is_in, KR_ERR_STATE,
                                                "optimizer.reread: the parameters hold the averaged weights; call "
                                                "kr_optimizer_use_ema(optimizer, false) first"))
        return opt->ctx->status;
    kr_piece_at at = KR_BEFORE_PIECES;
    for (const kr_optimizer_piece *piece; (piece = kr_optimizer_next_piece(opt, &at));) {
        const kr_optimizer_slot *slot = &opt->slots[at.slot];
        const kr_tensor *w = slot->row->tensor;
        const void *from = kr_kept_at(w->data, w->dtype, piece->first);
        if (piece->master) kr_optimizer_convert(opt->ctx, slot->dtype, piece->master, w->dtype, from, piece->count);
        if (piece->ema) kr_optimizer_convert(opt->ctx, slot->dtype, piece->ema, w->dtype, from, piece->count);
    }
    return opt->ctx->status;
}

kr_status kr_optimizer_use_ema(kr_optimizer *opt, bool is_on)
{
    if (!opt) return KR_ERR_ARG;
    if (!kr_optimizer_ready(opt) ||
        !kr_require(opt->ctx, opt->options.ema_decay > 0, KR_ERR_STATE,
                    "optimizer.use_ema: there are no averaged weights; set options.ema_decay, 0.999 say") ||
        opt->ema_is_in == is_on)
        return opt->ctx->status;
    for (int64_t i = 0; i < opt->count; i++)
        if (opt->slots[i].nparts > 0) kr_wrote(opt->slots[i].row->tensor);
    kr_piece_at at = KR_BEFORE_PIECES;
    for (const kr_optimizer_piece *piece; (piece = kr_optimizer_next_piece(opt, &at));) {
        const kr_optimizer_slot *slot = &opt->slots[at.slot];
        const kr_tensor *w = slot->row->tensor;
        void *to = kr_kept_at(w->data, w->dtype, piece->first);
        if (piece->master)
            kr_optimizer_convert(opt->ctx, w->dtype, to, slot->dtype, is_on ? piece->ema : piece->master, piece->count);
        else kr_swap_floats(opt->ctx, to, piece->ema, kr_dtype_span(w->dtype, piece->count));
    }
    opt->ema_is_in = is_on;
    kr_optimizer_gather(opt);
    return opt->ctx->status;
}
