/* optimizer_pieces.c - the pieces of an optimizer's parts, dealt to ranks, and the weights gathered from them.
 *
 * A part of Muon is one piece, because its update needs the whole matrix. Any other part of at least as many blocks as there
 * are ranks has a piece for each of them; smaller ones are one piece. Single pieces go to the rank with the fewest elements
 * so far, in the order of the table. So the deal is a function of the table and of the number of ranks.
 */
#include "train/optimizer_impl.h"

#include "device/device.h"

#include <string.h>

static int64_t blocks_of(int64_t count)
{
    return (count + KR_SQUARES_BLOCK - 1) / KR_SQUARES_BLOCK;
}

/* ---- dealing ---- */

static int least_loaded(const int64_t *loads, int ranks)
{
    int least = 0;
    for (int r = 1; r < ranks; r++)
        if (loads[r] < loads[least]) least = r;
    return least;
}

static bool deal_part(kr_optimizer *opt, kr_optimizer_part *part, int64_t *loads)
{
    const int64_t blocks = blocks_of(part->count);
    const bool is_split = opt->ranks > 1 && part->kind != KR_OPTIMIZER_MUON && blocks >= opt->ranks;
    part->npieces = is_split ? opt->ranks : 1;
    part->pieces = kr_arena_alloc(&opt->arena, (size_t)part->npieces * sizeof *part->pieces);
    if (!part->pieces) return kr_fail(opt->ctx, KR_ERR_NOMEM, "optimizer: no memory for a list of pieces");
    for (int p = 0; p < part->npieces; p++) {
        const int64_t first = is_split ? blocks * p / part->npieces * KR_SQUARES_BLOCK : 0;
        const int64_t end = p + 1 < part->npieces ? blocks * (p + 1) / part->npieces * KR_SQUARES_BLOCK : part->count;
        const int owner = is_split ? p : least_loaded(loads, opt->ranks);
        part->pieces[p] = (kr_optimizer_piece){
            .first = part->first + first, .count = end - first, .owner = owner, .number = opt->nnumbers
        };
        opt->nnumbers += is_split ? blocks_of(end - first) : 1;
        opt->nshares++;
        loads[owner] += end - first;
    }
    return true;
}

/* Numbers of adjacent pieces of one owner are one share. */
static void add_share(kr_optimizer *opt, const kr_optimizer_piece *piece, int64_t count)
{
    kr_comm_share *last = opt->nshares ? &opt->shares[opt->nshares - 1] : NULL;
    if (last && last->owner == piece->owner) last->count += count;
    else opt->shares[opt->nshares++] = (kr_comm_share){ piece->number, count, piece->owner, 0 };
}

static void list_shares(kr_optimizer *opt)
{
    opt->nshares = 0;
    for (int64_t i = 0; i < opt->count; i++)
        for (int p = 0; p < opt->slots[i].nparts; p++) {
            const kr_optimizer_part *part = &opt->slots[i].parts[p];
            for (int q = 0; q < part->npieces; q++)
                add_share(opt, &part->pieces[q], part->npieces > 1 ? blocks_of(part->pieces[q].count) : 1);
        }
}

bool kr_optimizer_deal(kr_optimizer *opt)
{
    int64_t *loads = kr_arena_alloc(&opt->arena, (size_t)opt->ranks * sizeof *loads);
    if (!loads) return kr_fail(opt->ctx, KR_ERR_NOMEM, "optimizer: no memory for %d ranks", opt->ranks);
    memset(loads, 0, (size_t)opt->ranks * sizeof *loads);
    for (int64_t i = 0; i < opt->count; i++)
        for (int p = 0; p < opt->slots[i].nparts; p++)
            if (!deal_part(opt, &opt->slots[i].parts[p], loads)) return false;
    opt->shares = kr_arena_alloc(&opt->arena, (size_t)opt->nshares * sizeof *opt->shares);
    opt->gathered = kr_arena_alloc(&opt->arena, (size_t)opt->nshares * sizeof *opt->gathered);
    opt->squares_of = kr_arena_alloc(&opt->arena, (size_t)opt->nnumbers * sizeof *opt->squares_of);
    if (!opt->shares || !opt->gathered || !opt->squares_of)
        return kr_fail(opt->ctx, KR_ERR_NOMEM, "optimizer: no memory for %lld sums of squares",
                       (long long)opt->nnumbers);
    list_shares(opt);
    return true;
}

/* ---- walking ---- */

kr_optimizer_piece *kr_optimizer_next_piece(const kr_optimizer *opt, kr_piece_at *at)
{
    at->piece++;
    for (; at->slot < opt->count; at->slot++, at->part = 0) {
        const kr_optimizer_slot *slot = &opt->slots[at->slot];
        for (; at->part < slot->nparts; at->part++, at->piece = 0) {
            const kr_optimizer_part *part = &slot->parts[at->part];
            for (; at->piece < part->npieces; at->piece++)
                if (part->pieces[at->piece].owner == opt->rank) return &part->pieces[at->piece];
        }
    }
    return NULL;
}

int64_t kr_optimizer_shares_of(const kr_optimizer *opt, int64_t row, int64_t at, kr_comm_share *shares)
{
    const kr_optimizer_slot *slot = &opt->slots[row];
    int64_t n = 0;
    for (int p = 0; p < slot->nparts; p++)
        for (int q = 0; q < slot->parts[p].npieces; q++, n++) {
            const kr_optimizer_piece *piece = &slot->parts[p].pieces[q];
            if (shares) shares[n] = (kr_comm_share){ at + piece->first, piece->count, piece->owner, 0 };
        }
    return n;
}

/* ---- gathering ---- */

/* The slab that has a parameter's weights; NULL: they have memory of their own. */
static const char *slab_of(const kr_tensor *w)
{
    const kr_weights_slab *slab = w->storage->weights ? &w->storage->weights->slabs[w->dtype] : NULL;
    const char *from = slab ? slab->data : NULL;
    return from && w->data >= from && w->data < from + slab->bytes ? from : NULL;
}

/* Weights that no rank changes need not be gathered. */
static bool is_gathered(const kr_optimizer *opt, int64_t i, kr_dtype dtype)
{
    const kr_tensor *w = opt->slots[i].row->tensor;
    return w->dtype == dtype && opt->slots[i].nparts > 0 && (w->flags.requires_grad || opt->options.ema_decay > 0);
}

/* Row `from`, and those after it whose weights are in the same slab, as one call. *end: the row after them. */
static bool gather_run(kr_optimizer *opt, kr_dtype dtype, int64_t from, int64_t *end)
{
    const char *slab = slab_of(opt->slots[from].row->tensor), *base = slab ? slab : opt->slots[from].row->tensor->data;
    int64_t n = 0, i = from;
    for (; i < opt->count; i++) {
        const kr_tensor *w = opt->slots[i].row->tensor;
        if (!is_gathered(opt, i, dtype)) continue;
        if (i > from && (!slab || slab_of(w) != slab)) break;
        n += kr_optimizer_shares_of(opt, i, (w->data - base) / (int64_t)kr_dtype_bytes(dtype), opt->gathered + n);
    }
    *end = i;
    return kr_comm_gather_shares(opt->comm, (char *)(uintptr_t)base, opt->gathered, n, dtype) == KR_OK;
}

bool kr_optimizer_gather(kr_optimizer *opt)
{
    if (opt->ranks == 1) return true;
    bool is_done = true;
    for (int dtype = 0; is_done && dtype < KR_N_DTYPES; dtype++)
        for (int64_t i = 0; is_done && i < opt->count;) {
            if (!is_gathered(opt, i, (kr_dtype)dtype)) i++;
            else is_done = gather_run(opt, (kr_dtype)dtype, i, &i);
        }
    return is_done;
}
