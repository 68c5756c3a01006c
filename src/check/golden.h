/* golden.h - cases of an operation with known results, out of a safetensors file (tests/golden/README.md has the
 * layout).
 *
 * A kind of case is one row of golden_kinds: how its inputs become its outputs, written with the public ops, in one variant
 * or several that must all agree with the file. golden.c does the rest: leaves, gradients, comparison, report.
 */
#ifndef KR_CHECK_GOLDEN_H
#define KR_CHECK_GOLDEN_H

#include "check/check_impl.h"

#include <krait/experimental/json.h>
#include <krait/tensor_file.h>
#include <krait/ssd.h>

enum { GOLDEN_MOST_PARTS = 32 };

typedef struct golden_part {
    const char *name;
    kr_tensor *tensor;
    bool is_angle; /* compared modulo whole turns */
} golden_part;

/* One case, in one type of number, on one instruction set, in one variant. */
typedef struct golden_run {
    kr_tape *tape;
    kr_dtype dtype;
    const kr_tensor_file *file;
    const char *name; /* of the case */
    const kr_json *settings;
    int variant;
    int n_in, n_out;
    golden_part in[GOLDEN_MOST_PARTS], out[GOLDEN_MOST_PARTS];
    char trouble[160]; /* why it could not be run; "" if it could */
} golden_run;

typedef struct golden_kind {
    const char *name;
    const char *const *variants; /* names, NULL behind the last */
    void (*build)(golden_run *run);
} golden_kind;

extern const golden_kind golden_kinds[]; /* ends with a NULL name */

/* An input as a leaf; the same leaf each time. Without it the run is in trouble, or, with _if, it is NULL. */
kr_tensor *golden_in(golden_run *run, const char *name);
kr_tensor *golden_in_if(golden_run *run, const char *name);

/* An output; those that the file does not have are ignored. */
void golden_out(golden_run *run, const char *name, kr_tensor *y);
void golden_out_angle(golden_run *run, const char *name, kr_tensor *y);

const kr_json *golden_setting(const golden_run *run, const char *key); /* NULL: not given */

/* Several sequences in one row; sequence i has tokens from[i] .. from[i + 1] - 1, at least one. */
typedef struct golden_sequences {
    int64_t count;
    int64_t *from; /* [count + 1] */
} golden_sequences;

/* The sequences of a row of ntokens by the setting cu_seqlens; false: the run has an error, and there is nothing to
 * free. */
bool golden_sequences_read(golden_run *run, int64_t ntokens, golden_sequences *s);
void golden_sequences_free(golden_sequences *s);

/* Runs every case of the file `ops` of the options: f64 on the first of the contexts, f32 on each. False after an error. */
bool golden_check(check_tally *tally, int ncontexts, kr_ctx *const *contexts);

void golden_rmsnorm_gated(golden_run *run);
void golden_selective_scan(golden_run *run);
void golden_state_update(golden_run *run);
void golden_ssd_minimal(golden_run *run);
void golden_ssd_combined(golden_run *run);
void golden_mamba3_siso(golden_run *run);
void golden_mamba3_siso_step(golden_run *run);
void golden_mamba3_siso_varlen(golden_run *run);
void golden_mamba3_mimo(golden_run *run);
void golden_mamba3_mimo_step(golden_run *run);

#endif
