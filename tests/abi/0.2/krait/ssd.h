/* ssd.h - the state space core: how it is computed, and its inputs for Mamba-2 and both pathways of Mamba-3.
 *
 *   kr_mamba2_ssd_input in = { .x_bnlhp = x_bshp, .dt_bnlh = dt_bsh, .a_decay_h = a_h };
 *   in.b_bnlgr = b_bsgr;
 *   in.c_bnlgr = c_bsgr;
 *   kr_ssd_out out = kr_mamba2_ssd_run(tape, &in, kr_ssd_path_default());
 *
 * Three algorithms give the same values and gradients. Minimal and Serial are the chunked formulas written out of ops;
 * SerialRecalculated, the default, is one fused node that keeps only its inputs and goes chunk by chunk.
 *
 * Sequences come as the seeds have them, cut into chunks [b n l ...] (the path's chunk length is l then), or whole,
 * [b s ...], of any length. The results have the arrangement of the inputs. docs/ssd.md derives the formulas.
 */
#ifndef KRAIT_SSD_H
#define KRAIT_SSD_H

#include <krait/ops_nn.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kr_ssd_algorithm {
    KR_SSD_MINIMAL = 0,            /* batched products; states of all chunks by one triangular product */
    KR_SSD_SERIAL = 1,             /* the same inside chunks; states by a loop over chunks */
    KR_SSD_SERIAL_RECALCULATED = 2 /* fused; recomputes in the backward pass */
} kr_ssd_algorithm;

typedef struct kr_ssd_path {
    kr_ssd_algorithm algorithm;
    int64_t chunk_len; /* 0: the optimal one */
} kr_ssd_path;

/* min(512, sqrt(state_rank per_head_dim) rounded up to a multiple of 32). */
KR_API int64_t kr_ssd_optimal_chunk_len(int64_t state_rank, int64_t per_head_dim);

/* SerialRecalculated with the optimal chunk length. */
KR_API_INLINE kr_ssd_path kr_ssd_path_default(void)
{
    const kr_ssd_path path = { KR_SSD_SERIAL_RECALCULATED, 0 };
    return path;
}

/* The path's own chunk length, 0 if it leaves it open; or the optimal one in its place. */
KR_API_INLINE int64_t kr_ssd_chunk_len(kr_ssd_path path)
{
    return path.chunk_len;
}
KR_API_INLINE int64_t kr_ssd_chunk_len_or_optimal(kr_ssd_path path, int64_t state_rank, int64_t per_head_dim)
{
    return path.chunk_len != 0 ? path.chunk_len : kr_ssd_optimal_chunk_len(state_rank, per_head_dim);
}

/* Each algorithm with its optimal chunk length: Minimal, Serial, SerialRecalculated. */
KR_API_INLINE kr_ssd_path kr_ssd_core_optimal(int64_t state_rank, int64_t per_head_dim)
{
    const kr_ssd_path path = { KR_SSD_MINIMAL, kr_ssd_optimal_chunk_len(state_rank, per_head_dim) };
    return path;
}
KR_API_INLINE kr_ssd_path kr_ssd_chunked_optimal(int64_t state_rank, int64_t per_head_dim)
{
    const kr_ssd_path path = { KR_SSD_SERIAL, kr_ssd_optimal_chunk_len(state_rank, per_head_dim) };
    return path;
}
KR_API_INLINE kr_ssd_path kr_ssd_chunked_recalculated_optimal(int64_t state_rank, int64_t per_head_dim)
{
    const kr_ssd_path path = { KR_SSD_SERIAL_RECALCULATED, kr_ssd_optimal_chunk_len(state_rank, per_head_dim) };
    return path;
}

typedef struct kr_ssd_out {
    kr_tensor *y;           /* of the shape of x or v */
    kr_tensor *final_state; /* [b h p r]; with seq_start one for each sequence, [q h p r], rows one after another */
    void *reserved[4];      /* NULL; for later versions */
} kr_ssd_out;

/* Fields that all inputs share:
 *   initial_state   [b h p r], or [q h p r] with seq_start: the state before the first token of each sequence; NULL: 0
 *   init_state_hpr  added to the initial state of every sequence (a learned one); NULL: none
 *   seq_start_bs    i32 or i64, [b s] (or [b n l]): not 0 where a new sequence begins and the state starts anew; NULL:
 *                   every row is one sequence. The first token of a row begins a sequence whatever the marker says.
 *   cu_seqlens      instead of seq_start_bs: i32 or i64 [q+1]; see kr_seq_start_from_cu_seqlens
 * B and C are given for g groups; head h uses group h / (h_total / g). All float operands have gradients, through y and
 * through the final state. A log-decay above 0 is computed as given. */

/* Mamba-2: H_t = exp(dt_t A) H_{t-1} + dt_t x_t (outer) B_t;  y_t = H_t C_t + D x_t. */
typedef struct kr_mamba2_ssd_input {
    kr_tensor *x_bnlhp;   /* or [b s h p] */
    kr_tensor *dt_bnlh;   /* after softplus */
    kr_tensor *a_decay_h; /* < 0 */
    kr_tensor *b_bnlgr, *c_bnlgr;
    kr_tensor *d_h; /* NULL: no skip */
    kr_tensor *initial_state_bhpr, *init_state_hpr, *seq_start_bs;
    kr_tensor *cu_seqlens;
    void *reserved[3]; /* must be NULL; for later versions */
} kr_mamba2_ssd_input;

/* Mamba-3, double: H_t = exp(da_t) H_{t-1} + sum_m v_t[m] (outer) B_t[m];  y_t[m] = H_t C_t[m]. Run once on gamma V and
 * once on beta V_prev, the sum is the block's. */
typedef struct kr_mamba3_double_ssd_input {
    kr_tensor *v_bnlmhp; /* or [b s m h p] */
    kr_tensor *da_bnlh;
    kr_tensor *b_bnlmhr, *c_bnlmhr; /* for g groups: [b n l m g r] */
    kr_tensor *initial_state_bhpr, *init_state_hpr, *seq_start_bs;
    kr_tensor *d_h; /* y_t[m] += D v_t[m]; NULL: no skip */
    kr_tensor *cu_seqlens;
    void *reserved[3]; /* must be NULL; for later versions */
} kr_mamba3_double_ssd_input;

/* Mamba-3, single: H_t = exp(da_t) H_{t-1} + scale_t sum_m v_t[m] (outer) B_t[m];
 * y_t[m] = exp(da_t) H_{t-1} C_t[m] + gamma_t sum_m' <C_t[m], B_t[m']> v_t[m']. What the token before the first one
 * left over, carry0 sum_m v_before[m] (outer) k_before[m], joins the initial state: kr_boundary_state without a pass of
 * its own over the state. All three or none; with seq_start one for each sequence. */
typedef struct kr_mamba3_single_ssd_input {
    kr_tensor *v_bnlmhp; /* or [b s m h p] */
    kr_tensor *b_bnlmhr, *c_bnlmhr;
    kr_tensor *da_bnlh, *gamma_bnlh, *scale_bnlh;
    kr_tensor *initial_state_bhpr, *init_state_hpr, *seq_start_bs;
    kr_tensor *d_h; /* y_t[m] += D v_t[m]; NULL: no skip */
    kr_tensor *carry0_bh, *v_before_bmhp, *k_before_bmhr;
    kr_tensor *cu_seqlens;
    void *reserved[3]; /* must be NULL; for later versions */
} kr_mamba3_single_ssd_input;

/* Which input. Values are fixed; new ones are appended. */
typedef enum kr_ssd_kind {
    KR_SSD_MAMBA2 = 0,        /* kr_mamba2_ssd_input */
    KR_SSD_MAMBA3_DOUBLE = 1, /* kr_mamba3_double_ssd_input */
    KR_SSD_MAMBA3_SINGLE = 2  /* kr_mamba3_single_ssd_input */
} kr_ssd_kind;

/* Runs the SSD core by the path; `in` is the input struct of the kind. The results are on the tape; both are NULL after an
 * error that names the operand and its sizes. */
KR_API kr_ssd_out kr_ssd_core_run(kr_tape *tape, kr_ssd_kind kind, const void *in, kr_ssd_path path);
KR_API_INLINE kr_ssd_out kr_mamba2_ssd_run(kr_tape *tape, const kr_mamba2_ssd_input *in, kr_ssd_path path)
{
    return kr_ssd_core_run(tape, KR_SSD_MAMBA2, in, path);
}
KR_API_INLINE kr_ssd_out kr_mamba3_double_ssd_run(kr_tape *tape, const kr_mamba3_double_ssd_input *in, kr_ssd_path path)
{
    return kr_ssd_core_run(tape, KR_SSD_MAMBA3_DOUBLE, in, path);
}
KR_API_INLINE kr_ssd_out kr_mamba3_single_ssd_run(kr_tape *tape, const kr_mamba3_single_ssd_input *in, kr_ssd_path path)
{
    return kr_ssd_core_run(tape, KR_SSD_MAMBA3_SINGLE, in, path);
}

/* Looks for a NaN or an infinity in any operand, and for a log-decay above 0: KR_ERR_NUMERIC with operand and index. */
KR_API kr_status kr_ssd_core_sanity(kr_tape *tape, kr_ssd_kind kind, const void *in);
KR_API_INLINE kr_status kr_mamba2_ssd_sanity(kr_tape *tape, const kr_mamba2_ssd_input *in)
{
    return kr_ssd_core_sanity(tape, KR_SSD_MAMBA2, in);
}
KR_API_INLINE kr_status kr_mamba3_double_ssd_sanity(kr_tape *tape, const kr_mamba3_double_ssd_input *in)
{
    return kr_ssd_core_sanity(tape, KR_SSD_MAMBA3_DOUBLE, in);
}
KR_API_INLINE kr_status kr_mamba3_single_ssd_sanity(kr_tape *tape, const kr_mamba3_single_ssd_input *in)
{
    return kr_ssd_core_sanity(tape, KR_SSD_MAMBA3_SINGLE, in);
}

#ifdef __cplusplus
}
#endif
#endif
