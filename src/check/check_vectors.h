/* check_vectors.h - recorded results of every op family, built into the library.
 *
 * A case is a few ops with fixed inputs. Each of its outputs and gradients is recorded as a vector of N_PROJECTIONS sums with
 * fixed signs, computed in f64 by the reference kernels of a machine that passes the whole test suite. A kernel that
 * computes any element wrong by more than the tolerance changes these sums.
 */
#ifndef KR_CHECK_CHECK_VECTORS_H
#define KR_CHECK_CHECK_VECTORS_H

#include "check/check_impl.h"

/* Compares all cases on the setup with the recorded results; one line of the report, and one for each case that fails.
 * name: the instruction set or device, for the report. */
void check_vectors(check_tally *tally, const check_setup *setup, const char *name);

/* Reports the table of recorded results, computed here in f64: the contents of check_vectors.inc. False after an error. */
bool check_vectors_record(check_tally *tally);

/* Case `number`, from 0: its name, and the kernels whose results it shows, separated by ", " (NULL: none). False past
 * the last. */
bool check_vectors_at(int number, const char **name, const char **kernels);

/* Runs a case without comparing it. False after an error. */
bool check_vectors_try(kr_ctx *ctx, kr_dtype dtype, int number);

#endif
