/* trainer_pieces.c - steps whose rows are cut into pieces: on several ranks, or in turn on one.
 *
 * The leaves of a step's sum of gradients are (piece, micro-batch), numbered p M + m. So rank r of R computes piece r / D of
 * its micro-batches, D = R / P, and the ranks r, r + D, r + 2D ... have the same rows. One rank keeps a sum for each piece,
 * since it computes the pieces of a micro-batch before the next one, and adds them in the end.
 */
#include "train/trainer_ranks.h"

#include "nn/network_impl.h"

#define OP "trainer"

/* ---- life ---- */

static bool check_pieces(kr_trainer *t)
{
    kr_ctx *ctx = t->ctx;
    const int pieces = t->pieces;
    return kr_require(ctx, t->net && !t->o.loss_fn, KR_ERR_ARG, OP ": sequence_ranks = %d, but %s", pieces,
                      t->net ? "options.loss_fn computes the loss of whole rows" : "there is no model") &&
           kr_require(ctx, !t->net->has_class_tokens, KR_ERR_UNSUPPORTED,
                      OP ": sequence_ranks = %d, but class tokens cannot be combined with pieces of rows", pieces) &&
           kr_require(ctx, !t->net->is_custom, KR_ERR_UNSUPPORTED,
                      OP ": sequence_ranks = %d, but a custom network has no layers between which states pass",
                      pieces) &&
           kr_require(ctx, t->ranks == 1 || t->ranks % pieces == 0, KR_ERR_ARG,
                      OP ": sequence_ranks = %d, but there are %d ranks; make them 1, or a multiple of %d", pieces,
                      t->ranks, pieces) &&
           kr_require(ctx, !t->loader->options.carry || t->ranks == 1 || t->ranks == pieces, KR_ERR_UNSUPPORTED,
                      OP ": the loader carries states from batch to batch, and each row has %d pieces, which needs %d "
                         "ranks, or 1, but not %d",
                      pieces, pieces, t->ranks);
}

static bool make_lists(kr_trainer *t)
{
    const size_t more = (size_t)t->pieces - 1;
    if (t->ranks > 1) return true;
    t->piece_tapes = kr_arena_alloc(&t->arena, more * sizeof *t->piece_tapes);
    t->piece_sums = kr_arena_alloc(&t->arena, more * sizeof *t->piece_sums);
    t->piece_losses = kr_arena_alloc(&t->arena, (more + 1) * sizeof *t->piece_losses);
    if (!t->piece_tapes || !t->piece_sums || !t->piece_losses)
        return kr_fail(t->ctx, KR_ERR_NOMEM, OP ": no memory for %d pieces of rows", t->pieces);
    for (size_t i = 0; i < more; i++) {
        t->piece_tapes[i] = NULL;
        kr_grad_sums_init(&t->piece_sums[i], t->ctx, t->params, 0);
        for (int k = 0; k < t->sums.nlate; k++) kr_grad_sums_add_late(&t->piece_sums[i], t->sums.late[k]);
    }
    t->n_more = (int)more;
    for (size_t i = 0; i < more; i++)
        if (!(t->piece_tapes[i] = kr_tape_create(t->ctx, KR_TAPE_GRAD))) return false;
    return true;
}

bool kr_pieces_check(kr_trainer *t)
{
    return t->pieces == 1 || check_pieces(t);
}

bool kr_pieces_create(kr_trainer *t)
{
    if (t->pieces == 1) return true;
    const int n_data = t->ranks / t->pieces;
    if (t->ranks > 1) t->row_comm = kr_comm_split(t->comm, t->rank % n_data, t->rank);
    if (!kr_ctx_failed(t->ctx) && make_lists(t))
        t->seq = kr_seq_parallel_create(t->ctx, t->row_comm, t->pieces, t->o.sequence_mode);
    if (t->ranks > 1) kr_comm_agree(t->comm);
    return !kr_ctx_failed(t->ctx);
}

void kr_pieces_destroy(kr_trainer *t)
{
    for (int i = 0; i < t->n_more; i++) {
        kr_tape_destroy(t->piece_tapes[i]);
        kr_grad_sums_deinit(&t->piece_sums[i]);
    }
    kr_seq_parallel_destroy(t->seq);
    kr_comm_destroy(t->row_comm);
}

/* ---- one piece ---- */

static void slice(kr_tape *tape, kr_tensor **x, int64_t first, int64_t end)
{
    if (*x) *x = kr_slice(tape, *x, 1, first, end);
}

bool kr_pieces_cut(const kr_trainer *t, kr_tape *tape, kr_batch *batch, int piece)
{
    const kr_tensor *rows = batch->ids_bs ? batch->ids_bs : batch->x_bsf;
    const int64_t length = kr_dim_of(rows, 1), grid = kr_network_grid_of(t->net);
    const int64_t first = kr_seq_parallel_cut(length, grid, t->pieces, piece);
    if (!kr_require(t->ctx, first >= 0, KR_ERR_SHAPE,
                    OP ".step: rows of %lld tokens cannot be cut into %d pieces at multiples of %lld tokens, the chunk "
                       "length; they need more than %lld tokens",
                    (long long)length, t->pieces, (long long)(grid > 0 ? grid : 1),
                    (long long)((grid > 0 ? grid : 1) * (t->pieces - 1))))
        return false;
    const int64_t end = kr_seq_parallel_cut(length, grid, t->pieces, piece + 1);
    kr_tensor **all[] = { &batch->ids_bs,    &batch->x_bsf,    &batch->labels_bs, &batch->targets_bso,
                          &batch->scored_bs, &batch->reset_bs, &batch->mask_bs };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) slice(tape, all[i], first, end);
    if (piece > 0) batch->n_positions = 0; /* counted once */
    return !kr_ctx_failed(t->ctx);
}

/* ---- one rank ---- */

static kr_tape *tape_of(const kr_trainer *t, int piece)
{
    return piece == 0 ? t->tape : t->piece_tapes[piece - 1];
}

static kr_grad_sums *sums_of(kr_trainer *t, int piece)
{
    return piece == 0 ? &t->sums : &t->piece_sums[piece - 1];
}

/* Forward passes of the pieces of micro-batch m. */
static bool run_forward(kr_trainer *t, const kr_step_start *start, int64_t m, const kr_state *state)
{
    for (int p = 0; p < t->pieces; p++) {
        kr_batch batch;
        const int64_t leaf = p * t->o.accumulate + m;
        kr_trainer_place(t, start, leaf);
        if (kr_loader_next(tape_of(t, p), t->loader, &batch) != KR_OK || !kr_pieces_cut(t, tape_of(t, p), &batch, p) ||
            kr_seq_parallel_begin(t->seq, p) != KR_OK)
            return false;
        t->piece_losses[p] = kr_trainer_loss(t, tape_of(t, p), &batch, state, t->seq, NULL);
        if (!kr_trainer_keep(t, leaf, &t->piece_losses[p], &batch)) return false;
    }
    const kr_state *after = t->piece_losses[t->pieces - 1].state;
    return !t->moving || kr_state_copy(t->moving, after) == KR_OK;
}

static bool run_backward(kr_trainer *t)
{
    for (int p = t->pieces - 1; p >= 0; p--) {
        const kr_loss_out *out = &t->piece_losses[p];
        if (!kr_grad_sums_open(sums_of(t, p)) ||
            !kr_trainer_back_propagate(t, tape_of(t, p), out->loss, out->scores.scored) ||
            !kr_grad_sums_finish_all(sums_of(t, p)))
            return false;
    }
    return true;
}

bool kr_pieces_run_batch(kr_trainer *t, const kr_step_start *start, int64_t m)
{
    const bool is_in = kr_trainer_place(t, start, m);
    for (int p = 0; p < t->pieces; p++) {
        kr_tape_reset(tape_of(t, p));
        t->results[p * t->o.accumulate + m] = (kr_batch_result){ 0 };
    }
    if (is_in) return run_forward(t, start, m, m == 0 ? t->carried : t->moving) && run_backward(t);
    for (int p = 0; p < t->pieces; p++)
        if (!kr_grad_sums_open(sums_of(t, p)) || !kr_grad_sums_finish_all(sums_of(t, p))) return false;
    return true;
}

bool kr_pieces_begin(kr_trainer *t)
{
    for (int i = 0; i < t->n_more; i++)
        if (!kr_grad_sums_begin(&t->piece_sums[i], t->o.accumulate)) return false;
    return true;
}

/* The sum of 2^k pieces. */
static bool add_halves(kr_trainer *t, int first, int count)
{
    const int half = count / 2;
    return count == 1 || (add_halves(t, first, half) && add_halves(t, first + half, half) &&
                          kr_grad_sums_add(sums_of(t, first), sums_of(t, first + half)));
}

bool kr_pieces_add(kr_trainer *t)
{
    for (int first = 0; first < t->pieces;) { /* as ranks add (comm.h): the largest powers of two first */
        int count = 1;
        while (2 * count <= t->pieces - first) count *= 2;
        if (!add_halves(t, first, count)) return false;
        if (first > 0 && !kr_grad_sums_add(sums_of(t, 0), sums_of(t, first))) return false;
        first += count;
    }
    return true;
}

void kr_pieces_reset(kr_trainer *t)
{
    for (int i = 0; i < t->n_more; i++) kr_tape_reset(t->piece_tapes[i]);
}
