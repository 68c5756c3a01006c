/* selective_scan.h - the scan of Mamba-1: a diagonal state space whose step, input and output maps change by token.
 *
 *   kr_selective_scan_input in = { .x_bsi = x_bsi, .dt_bsi = dt_bsi, .a_ir = a_ir, .b_bsgr = b_bsgr,
 *                                  .c_bsgr = c_bsgr };
 *   kr_scan_out part = kr_selective_scan(tape, &in);
 *   in.initial_state_bir = part.final_state;             // and on with the next tokens
 */
#ifndef KRAIT_SELECTIVE_SCAN_H
#define KRAIT_SELECTIVE_SCAN_H

#include <krait/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kr_selective_scan_input {
    kr_tensor *x_bsi;
    kr_tensor *dt_bsi;            /* the step, after softplus */
    kr_tensor *a_ir;              /* the rates, < 0 */
    kr_tensor *b_bsgr, *c_bsgr;   /* for g groups; channel i uses group i / (i_total / g) */
    kr_tensor *d_i;               /* NULL: no skip */
    kr_tensor *z_bsi;             /* NULL: no gate */
    kr_tensor *initial_state_bir; /* NULL: 0; with seq_start_bs a state for each sequence, [q i r] */
    kr_tensor *seq_start_bs; /* i32 or i64: not 0 where a new sequence begins and the state starts anew; NULL: every
                                   * row is one. The first token of a row begins a sequence whatever the marker says. */
    kr_tensor *cu_seqlens; /* instead of seq_start_bs: i32 or i64 [q+1]; see kr_seq_start_from_cu_seqlens (ops_nn.h) */
    void *reserved[3];     /* must be NULL; for later versions */
} kr_selective_scan_input;

typedef struct kr_scan_out {
    kr_tensor *y_bsi;
    kr_tensor *final_state; /* [b i r]; with seq_start_bs one for each sequence, [q i r], rows one after another */
    void *reserved[4];      /* NULL; for later versions */
} kr_scan_out;

/* For each channel, with its state H [r]:
 *   H_t = exp(dt_t A) H_{t-1} + dt_t B_t x_t;   y_t = <C_t, H_t> + D x_t, times silu(z_t) with a gate
 * One node that keeps only its inputs: the backward pass recomputes the states. All float operands have gradients,
 * through y and through the final state. A rate above 0 is computed as given. */
KR_API kr_scan_out kr_selective_scan(kr_tape *tape, const kr_selective_scan_input *in);

#ifdef __cplusplus
}
#endif
#endif
