/* network_loss.c - the loss of a network's outputs: its forward pass, then the chosen loss.
 *
 * Cross-entropy is computed from the hidden states, fused with the head. Without labels they come from ids [b s]: the
 * next token, and a mask that is 0 where there is none.
 */
#include "base/sized.h"
#include "nn/network_impl.h"
#include "ops/autocast.h"
#include "ops/loss_impl.h"
#include "ops/sequences.h"

#include <krait/train.h>

#define OP "network.loss"

KR_DEFAULTS(kr_loss_call) = { .size = sizeof(kr_loss_call), .ignore_index = -100, .huber_delta = 1, .quantile = 0.5 };

static bool take_call(kr_ctx *ctx, const kr_network *net, kr_loss_call *own, kr_call *how, const kr_loss_call *call)
{
    if (!kr_require(ctx, call != NULL, KR_ERR_ARG, OP ": the call is NULL; it says what the input is") ||
        !KR_TAKE(ctx, OP, kr_loss_call, call, own) || !KR_TAKE(ctx, OP, kr_call, own->call, how))
        return false;
    how->skip_head = own->kind == KR_LOSS_CROSS_ENTROPY && !net->is_custom;
    own->call = how;
    return true;
}

/* ---- checks ---- */

/* Checks that the inputs and targets of this network and kind are given and the others NULL. */
static bool check_operands(kr_ctx *ctx, const kr_network *net, const kr_loss_call *c)
{
    const bool is_labelled = c->kind == KR_LOSS_CROSS_ENTROPY;
    const char *wanted = net->is_vocab ? "ids_bs" : "x_bsf", *other = net->is_vocab ? "x_bsf" : "ids_bs";
    return kr_require(ctx, c->kind >= KR_LOSS_CROSS_ENTROPY && c->kind <= KR_LOSS_QUANTILE, KR_ERR_ARG,
                      OP ": kind = %d is not a kr_loss_kind", (int)c->kind) &&
           kr_require(ctx, (net->is_vocab ? c->ids_bs : c->x_bsf) != NULL, KR_ERR_ARG,
                      OP ": %s is NULL, but is the input of a %s network", wanted,
                      net->is_vocab ? "vocabulary" : "latent") &&
           kr_require(ctx, !(net->is_vocab ? c->x_bsf : c->ids_bs), KR_ERR_ARG,
                      OP ": %s is given, but a %s network reads %s", other, net->is_vocab ? "vocabulary" : "latent",
                      wanted) &&
           kr_require(ctx, is_labelled ? !c->targets : !c->labels, KR_ERR_ARG,
                      OP ": %s, but cross-entropy has labels, "
                         "and the other kinds have targets",
                      is_labelled ? "targets are given" : "labels are given") &&
           kr_require(ctx, is_labelled || c->targets, KR_ERR_ARG,
                      OP ": targets is NULL, but this kind of loss has them") &&
           kr_require(ctx, is_labelled || c->label_smoothing == 0, KR_ERR_ARG,
                      OP ": label_smoothing = %g, but this kind of loss has no labels", c->label_smoothing);
}

/* The next token can be the label only where outputs and tokens are the same in number. */
static bool can_shift(kr_ctx *ctx, const kr_network *net, const kr_loss_call *c)
{
    return kr_require(ctx, net->is_vocab, KR_ERR_ARG, OP ": labels is NULL, but only ids have a next token") &&
           kr_require(ctx, !net->has_class_tokens, KR_ERR_ARG,
                      OP ": labels is NULL, but the network inserts class tokens; give a label for each output") &&
           kr_require(ctx, !c->call->last_logits_only, KR_ERR_ARG,
                      OP ": labels is NULL, but the last token has no next one") &&
           kr_require(ctx, !c->call->seq_parallel, KR_ERR_ARG,
                      OP ": labels is NULL, but the token after the last one of a piece is on another; give labels");
}

/* ---- next tokens ---- */

/* The tensors that say where a token has no next: [b s], contiguous, or NULL. */
typedef struct breaks {
    kr_tensor *seq_start, *reset, *padding, *scored;
} breaks;

static kr_tensor *per_token(kr_tape *tape, const char *name, kr_tensor *x, const kr_tensor *ids)
{
    const kr_shape want = kr_tensor_shape(ids), got = kr_tensor_shape(x);
    if (!kr_bind_any(tape, OP, x) ||
        !kr_require(tape->ctx, kr_shape_equal(&got, &want), KR_ERR_SHAPE,
                    OP ": %s %s must be %s: a number for each token", name, KR_TEXT_OF(x), KR_TEXT_OF(ids)))
        return NULL;
    return kr_integers(tape, OP, name, x);
}

static bool is_zero(const kr_tensor *x, int64_t i)
{
    return kr_integer_at(x, i) == 0;
}

/* Are the tokens at i and i + 1 of the same sequence? */
static bool is_same_sequence(const breaks *at, int64_t i)
{
    if (at->seq_start && !is_zero(at->seq_start, i + 1)) return false;
    if (at->reset && !is_zero(at->reset, i + 1)) return false;
    if (at->padding && (is_zero(at->padding, i) || is_zero(at->padding, i + 1))) return false;
    return !at->scored || !is_zero(at->scored, i);
}

/* labels and scored <- the next tokens, and where there are any. */
static bool shift(kr_tape *tape, const kr_loss_call *c, kr_tensor **labels, kr_tensor **mask)
{
    kr_dims d;
    if (!kr_bind(tape, OP, &d, "ids:bs", c->ids_bs)) return false;
    const kr_tensor *ids = kr_integers(tape, OP, "ids", c->ids_bs);
    breaks at = { NULL, NULL, NULL, NULL };
    if (!ids || (c->call->seq_start_bs && !(at.seq_start = per_token(tape, "seq_start", c->call->seq_start_bs, ids))) ||
        (c->call->reset_bs && !(at.reset = per_token(tape, "reset", c->call->reset_bs, ids))) ||
        (c->call->mask_bs && !(at.padding = per_token(tape, "mask", c->call->mask_bs, ids))) ||
        (c->scored && !(at.scored = per_token(tape, "scored", c->scored, ids))))
        return false;
    *labels = kr_new(tape, KR_DTYPE_I64, KR_SHAPE(d.b, d.s));
    *mask = kr_new(tape, KR_DTYPE_I32, KR_SHAPE(d.b, d.s));
    if (!*labels || !*mask) return false;
    int64_t *next = (int64_t *)(void *)(*labels)->data;
    int32_t *has_next = (int32_t *)(void *)(*mask)->data;
    for (int64_t i = 0; i < d.b * d.s; i++) {
        const bool is_last = i % d.s == d.s - 1;
        next[i] = is_last ? 0 : kr_integer_at(ids, i + 1);
        has_next[i] = !is_last && is_same_sequence(&at, i);
    }
    return true;
}

/* ---- losses ---- */

static kr_tensor *labelled(kr_tape *tape, const kr_network *net, const kr_loss_call *c, const kr_network_out *out,
                           kr_tensor *labels, kr_tensor *mask, kr_scores *scores)
{
    kr_cross_entropy_options o;
    kr_cross_entropy_options_init(&o);
    o.mask = mask;
    o.ignore_index = c->ignore_index;
    o.label_smoothing = c->label_smoothing;
    o.reduction = c->reduction;
    o.n_classes = net->config.vocab_size;
    o.exclude_padding = c->exclude_padding;
    o.scores = scores;
    if (net->is_custom) return kr_cross_entropy(tape, out->y, labels, &o);
    const kr_head head = kr_network_head(net);
    return kr_head_cross_entropy(tape, out->hidden, head.weight_wd, head.bias_w, labels, &o);
}

static kr_tensor *targeted(kr_tape *tape, const kr_loss_call *c, kr_tensor *y, kr_scores *scores)
{
    kr_loss_options o;
    kr_loss_options_init(&o);
    o.mask = c->scored;
    o.reduction = c->reduction;
    o.has_probabilities = c->has_probabilities;
    o.has_target_logits = c->has_target_logits;
    o.eps = c->eps;
    o.huber_delta = c->huber_delta;
    o.quantile = c->quantile;
    o.n_scored = &scores->scored;
    return kr_target_loss(tape, c->kind, y, c->targets, &o);
}

/* The forward pass and the loss of its outputs. */
static kr_loss_out run(kr_tape *tape, const kr_network *net, const kr_loss_call *c, kr_tensor *x, kr_tensor *labels,
                       kr_tensor *mask)
{
    const kr_network_out out = kr_network_forward(tape, net, x, c->call);
    if (kr_ctx_failed(tape->ctx)) return (kr_loss_out){ .loss = NULL };
    kr_loss_out result = { .y = out.y, .state = out.state };
    result.loss = c->kind == KR_LOSS_CROSS_ENTROPY ? labelled(tape, net, c, &out, labels, mask, &result.scores)
                                                   : targeted(tape, c, out.y, &result.scores);
    if (result.loss) return result;
    kr_blame(tape->ctx, OP);
    return (kr_loss_out){ .loss = NULL };
}

kr_loss_out kr_network_loss(kr_tape *tape, const kr_network *net, const kr_loss_call *call)
{
    const kr_loss_out none = { .loss = NULL };
    kr_loss_call c;
    kr_call how;
    if (!kr_tape_ready(tape, OP) || !kr_require(tape->ctx, net != NULL, KR_ERR_ARG, OP ": the network is NULL") ||
        !take_call(tape->ctx, net, &c, &how, call) || !check_operands(tape->ctx, net, &c))
        return none;
    const bool is_labelled = c.kind == KR_LOSS_CROSS_ENTROPY;
    kr_tensor *labels = c.labels, *mask = c.scored, *x = net->is_vocab ? c.ids_bs : c.x_bsf;
    if (!kr_require(tape->ctx, !how.seq_parallel || !how.cu_seqlens, KR_ERR_ARG,
                    OP ": seq_parallel and cu_seqlens are both given; mark the sequences that begin in this piece in "
                       "seq_start"))
        return none;
    if (kr_tensor_rank(x) >= 2) { /* else the forward pass reports the error */
        if (!kr_cu_seqlens_take(tape, OP, how.cu_seqlens, x->dims[0], x->dims[1], &how.seq_start_bs)) return none;
        how.cu_seqlens = NULL;
    }
    if (is_labelled && !labels && (!can_shift(tape->ctx, net, &c) || !shift(tape, &c, &labels, &mask))) return none;
    const kr_precision before = kr_precision_begin(tape->ctx, how.precision);
    const kr_loss_out out = run(tape, net, &c, x, labels, mask);
    kr_precision_end(tape->ctx, before);
    return out;
}
