/* run.c - from a family's request to the core: shapes, sequences, initial states, the choice of algorithm. */
#include "mixer/core.h"

/* Rank axes in v: [b s (m) h p] has 4 or 5, in chunks one more. */
static bool is_chunked(const kr_ssd_request *q)
{
    return q->v && q->v->rank == (q->has_rank ? 6 : 5);
}

static bool bind_sizes(kr_tape *tape, const kr_ssd_request *q, kr_dims *d)
{
    const bool chunked = is_chunked(q);
    if (!kr_bind(tape, q->op, d, chunked ? q->chunked : q->whole, q->v, q->b, q->c, q->da, q->w, q->diag_weight, q->d,
                 q->learned_init, q->carry))
        return false;
    if (chunked) d->s = d->n * d->l;
    if (!q->has_rank) d->m = 1;
    return true;
}

static bool check_sizes(kr_tape *tape, const kr_ssd_request *q, const kr_dims *d, kr_ssd_path path)
{
    kr_ctx *ctx = tape->ctx;
    return kr_require(ctx, path.algorithm >= KR_SSD_MINIMAL && path.algorithm <= KR_SSD_SERIAL_RECALCULATED, KR_ERR_ARG,
                      "%s: algorithm %d is not one of Minimal, Serial, SerialRecalculated", q->op,
                      (int)path.algorithm) &&
           kr_require(ctx, path.chunk_len >= 0, KR_ERR_ARG,
                      "%s: chunk_len = %lld, but must be at least 1, or 0 for the optimal one", q->op,
                      (long long)path.chunk_len) &&
           kr_require(ctx, !is_chunked(q) || path.chunk_len == 0 || path.chunk_len == d->l, KR_ERR_ARG,
                      "%s: chunk_len = %lld, but the operands have chunks of l = %lld", q->op,
                      (long long)path.chunk_len, (long long)d->l) &&
           kr_require(ctx, d->s >= 1, KR_ERR_SHAPE, "%s: %c %s has no token; a sequence needs at least one", q->op,
                      q->names[0], KR_TEXT_OF(q->v)) &&
           kr_require(ctx, d->b >= 1 && d->m >= 1 && d->h >= 1 && d->p >= 1 && d->r >= 1, KR_ERR_SHAPE,
                      "%s: %c %s and b %s have an empty axis", q->op, q->names[0], KR_TEXT_OF(q->v),
                      KR_TEXT_OF(q->b)) &&
           kr_require(ctx, d->g >= 1 && d->h % d->g == 0, KR_ERR_SHAPE,
                      "%s: g = %lld groups of b %s do not divide h = %lld heads", q->op, (long long)d->g,
                      KR_TEXT_OF(q->b), (long long)d->h);
}

/* Only blocks request it, with whole rows. */
static bool check_rotary(kr_tape *tape, const kr_ssd_request *q, const kr_dims *d, kr_ssd_path path)
{
    const kr_ssd_rotary_args *t = &q->rotary;
    kr_dims n;
    if (!t->angle_bsha) return true;
    return kr_bind(tape, q->op, &n, "v:bsmhp b:bsmgr angle:bsha bias_b:hmr bias_c:hmr", q->v, q->b, t->angle_bsha,
                   t->bias_b_hmr, t->bias_c_hmr) &&
           kr_require(tape->ctx, kr_ssd_autocasts(tape->ctx, path, d->s, d->m, d->r), KR_ERR_ARG,
                      "%s: rotary angles given, but this path expects B and C already rotated", q->op);
}

static kr_tensor *whole(kr_tape *tape, kr_tensor *x, kr_shape shape)
{
    return x ? kr_reshape(tape, x, shape) : NULL;
}

/* initial_state + learned_init for each sequence, or NULL for zero. */
static bool initial_states(kr_tape *tape, const kr_ssd_request *q, kr_ssd_core *core)
{
    core->initial_qhpr = q->initial_state;
    const int64_t nq = core->sequences.count;
    if (q->initial_state) {
        kr_dims d;
        if (!kr_bind(tape, q->op, &d, "initial_state:qhpr", q->initial_state)) return false;
        if (!kr_require(tape->ctx, d.q == nq && d.h == core->nh && d.p == core->np && d.r == core->nr, KR_ERR_SHAPE,
                        "%s: initial_state %s must be %s: a state for each sequence", q->op,
                        KR_TEXT_OF(q->initial_state), KR_TEXT_OF_SHAPE(&KR_SHAPE(nq, core->nh, core->np, core->nr))))
            return false;
    }
    if (!q->learned_init) return true;
    kr_tensor *learned = kr_expand(tape, q->learned_init, KR_SHAPE(nq, core->nh, core->np, core->nr));
    core->initial_qhpr = q->initial_state ? kr_add(tape, q->initial_state, learned) : learned;
    return core->initial_qhpr != NULL;
}

/* The contribution of the token before the first one: the core's boundary, or for algorithms without one a part of the
 * initial state. */
static bool set_boundary(kr_tape *tape, const kr_ssd_request *q, kr_ssd_core *core, bool fused)
{
    if (!q->carry0 && !q->v_before && !q->k_before) return true;
    const int64_t nq = core->sequences.count;
    kr_dims d;
    if (!kr_bind(tape, q->op, &d, "carry0:qh v_before:qmhp k_before:qmhr", q->carry0, q->v_before, q->k_before) ||
        !kr_require(tape->ctx, d.q == nq && d.h == core->nh, KR_ERR_SHAPE,
                    "%s: carry0 %s must be %s: one for each sequence and head", q->op, KR_TEXT_OF(q->carry0),
                    KR_TEXT_OF_SHAPE(&KR_SHAPE(nq, core->nh))) ||
        !kr_require(tape->ctx, d.m == core->nm && d.p == core->np, KR_ERR_SHAPE,
                    "%s: v_before %s must be %s: a token of %c for each sequence", q->op, KR_TEXT_OF(q->v_before),
                    KR_TEXT_OF_SHAPE(&KR_SHAPE(nq, core->nm, core->nh, core->np)), q->names[0]) ||
        !kr_require(tape->ctx, d.r == core->nr, KR_ERR_SHAPE, "%s: k_before %s must be %s: a token for each sequence",
                    q->op, KR_TEXT_OF(q->k_before), KR_TEXT_OF_SHAPE(&KR_SHAPE(nq, core->nm, core->nh, core->nr))))
        return false;
    if (!fused) {
        core->initial_qhpr = kr_boundary_state(tape, core->initial_qhpr, q->carry0, q->v_before, q->k_before);
        return core->initial_qhpr != NULL;
    }
    core->boundary_qh = q->carry0;
    core->boundary_v_qmhp = q->v_before;
    core->boundary_b_qmhr = q->k_before;
    return true;
}

/* The tokens of one sequence as a separate core. */
static kr_ssd_core part_of(kr_tape *tape, const kr_ssd_core *core, int64_t q)
{
    const kr_sequence *s = &core->sequences.list[q];
    kr_ssd_core part = *core;
    kr_tensor **const operands[] = { &part.v_bsmhp, &part.b_bsmgr, &part.c_bsmgr,
                                     &part.da_bsh,  &part.w_bsh,   &part.diag_weight_bsh };
    for (size_t i = 0; i < sizeof operands / sizeof *operands; i++)
        if (*operands[i])
            *operands[i] = kr_slice(tape, kr_slice(tape, *operands[i], 0, s->row, s->row + 1), 1, s->start, s->end);
    if (core->initial_qhpr) part.initial_qhpr = kr_slice(tape, core->initial_qhpr, 0, q, q + 1);
    part.nb = 1;
    part.ns = s->end - s->start;
    return part;
}

/* Packed rows for the algorithms that support whole rows only: one sequence after another. */
static kr_ssd_out run_packed(kr_tape *tape, const kr_ssd_core *core, bool serial)
{
    const kr_ssd_out none = { .y = NULL };
    const int64_t nq = core->sequences.count;
    kr_tensor **lists = kr_arena_alloc(&tape->heads, (size_t)(2 * nq + core->nb) * sizeof *lists);
    if (!lists) {
        kr_fail(tape->ctx, KR_ERR_NOMEM, "ssd: no memory for a list of %lld sequences", (long long)nq);
        return none;
    }
    kr_tensor **y = lists, ** final = lists + nq, **rows = final + nq;
    for (int64_t q = 0; q < nq; q++) {
        const kr_ssd_core part = part_of(tape, core, q);
        if (kr_ctx_failed(tape->ctx)) return none;
        const kr_ssd_out out = kr_ssd_chunked(tape, &part, serial);
        y[q] = out.y;
        final[q] = out.final_state;
    }
    for (int64_t b = 0, q = 0; b < core->nb; b++) {
        const int64_t first = q;
        while (q < nq && core->sequences.list[q].row == b) q++;
        rows[b] = kr_concat(tape, 1, (int)(q - first), y + first);
    }
    return (kr_ssd_out){ .y = kr_concat(tape, 0, (int)core->nb, rows),
                         .final_state = kr_concat(tape, 0, (int)nq, final) };
}

static kr_ssd_out run_core(kr_tape *tape, const kr_ssd_core *core, kr_ssd_algorithm algorithm)
{
    if (algorithm == KR_SSD_SERIAL_RECALCULATED) return kr_ssd_fused(tape, core);
    const bool serial = algorithm == KR_SSD_SERIAL;
    return core->sequences.count == core->nb ? kr_ssd_chunked(tape, core, serial) : run_packed(tape, core, serial);
}

/* Converts all operands to one type; bf16 v, b and c stay bf16 if the core takes them. */
static bool convert_operands(kr_tape *tape, kr_ssd_request *q, bool autocasts, kr_dtype *result)
{
    unsigned kept = 0;
    if (autocasts)
        kept = KR_KEEPS_ACTIVATION(tape, ssd_v, q->v) | KR_KEEPS_ACTIVATION(tape, ssd_b, q->b) << 1 |
               KR_KEEPS_ACTIVATION(tape, ssd_c, q->c) << 2;
    return KR_REALS_KEPT(tape, q->op, q->names, result, kept, &q->v, &q->b, &q->c, &q->da, &q->w, &q->diag_weight,
                         &q->d, &q->initial_state, &q->learned_init, &q->carry0, &q->v_before, &q->k_before,
                         &q->rotary.angle_bsha, &q->rotary.bias_b_hmr, &q->rotary.bias_c_hmr, &q->carry);
}

/* A request as it is run. */
typedef struct prepared {
    kr_ssd_core core;
    kr_shape y_shape;
    kr_dtype result;
} prepared;

static bool prepare(kr_tape *tape, const kr_ssd_request *request, kr_ssd_path path, prepared *run)
{
    kr_ssd_request q = *request;
    kr_dims d;
    if (!bind_sizes(tape, &q, &d) || !check_sizes(tape, &q, &d, path) || !check_rotary(tape, &q, &d, path))
        return false;
    const bool autocasts = kr_ssd_autocasts(tape->ctx, path, d.s, d.m, d.r);
    if (!convert_operands(tape, &q, autocasts, &run->result)) return false;
    kr_ssd_core core = { .nb = d.b, .ns = d.s, .nm = d.m, .nh = d.h, .np = d.p, .ng = d.g, .nr = d.r };
    core.nl = is_chunked(&q) ? d.l : kr_ssd_chunk_len_or_optimal(path, d.r, d.p);
    const kr_shape steps = KR_SHAPE(d.b, d.s, d.h), bc = KR_SHAPE(d.b, d.s, d.m, d.g, d.r);
    if (q.seq_start && is_chunked(&q) && q.seq_start->rank == 3)
        q.seq_start = kr_reshape(tape, q.seq_start, KR_SHAPE(d.b, d.s));
    if (!kr_cu_seqlens_take(tape, q.op, q.cu_seqlens, d.b, d.s, &q.seq_start) ||
        !kr_sequences_from(tape, q.op, q.seq_start, d.b, d.s, &core.sequences) || !initial_states(tape, &q, &core) ||
        !set_boundary(tape, &q, &core, path.algorithm == KR_SSD_SERIAL_RECALCULATED))
        return false;
    core.v_bsmhp = whole(tape, q.v, KR_SHAPE(d.b, d.s, d.m, d.h, d.p));
    core.b_bsmgr = whole(tape, q.b, bc);
    core.c_bsmgr = whole(tape, q.c, bc);
    core.da_bsh = whole(tape, q.da, steps);
    core.w_bsh = whole(tape, q.w, steps);
    core.diag_weight_bsh = whole(tape, q.diag_weight, steps);
    core.carry_bsh = whole(tape, q.carry, steps);
    core.d_h = q.d;
    core.rotary = q.rotary;
    core.final_qhpr = q.final;
    core.rounds_y =
        q.rounds_y && autocasts && run->result == KR_DTYPE_F32 && kr_accepts(tape->ctx, ssd_y, KR_DTYPE_BF16);
    run->core = core;
    run->y_shape = kr_tensor_shape(q.v);
    return !kr_ctx_failed(tape->ctx);
}

static kr_ssd_out finish(kr_tape *tape, const prepared *run, kr_ssd_out out)
{
    if (!out.y || !out.final_state) return (kr_ssd_out){ .y = NULL };
    kr_tensor *y = kr_reshape(tape, out.y, run->y_shape);
    return (kr_ssd_out){ .y = run->core.rounds_y ? y : kr_store_as(tape, y, run->result),
                         .final_state = kr_store_as(tape, out.final_state, run->result) };
}

kr_ssd_out kr_ssd_run(kr_tape *tape, const kr_ssd_request *request, kr_ssd_path path)
{
    prepared run;
    if (!prepare(tape, request, path, &run)) return (kr_ssd_out){ .y = NULL };
    return finish(tape, &run, run_core(tape, &run.core, path.algorithm));
}

kr_ssd_out kr_ssd_run_pair(kr_tape *tape, const kr_ssd_request *now, const kr_ssd_request *then, kr_ssd_path path)
{
    prepared a, b;
    if (path.algorithm != KR_SSD_SERIAL_RECALCULATED || kr_ctx_on_device(tape->ctx)) {
        const kr_ssd_out x = kr_ssd_run(tape, now, path), y = kr_ssd_run(tape, then, path);
        return (kr_ssd_out){ .y = kr_add(tape, x.y, y.y), .final_state = kr_add(tape, x.final_state, y.final_state) };
    }
    if (!prepare(tape, now, path, &a) || !prepare(tape, then, path, &b)) return (kr_ssd_out){ .y = NULL };
    return finish(tape, &a, kr_ssd_fused_pair(tape, &a.core, &b.core));
}
