/* participation.h - effective ranks: the participation ratio PR(S) = (tr S)^2 / tr(S^2) of a second moment S.
 *
 *   double table[97 * 64], energy[48];
 *   cli_dft_energies(97, 64, table, energy);
 *   double lines = cli_spread(48, energy);            effective number of frequencies in the table
 *
 * With eigenvalues e of S it is (sum e)^2 / sum e^2: 1 for a single direction, n for n directions of equal weight. It
 * is invariant under scaling and rotation, and NaN for zeros.
 */
#ifndef KR_LAB_PARTICIPATION_H
#define KR_LAB_PARTICIPATION_H

#include <krait/tape.h>

/* The second moment of vectors of n numbers, accumulated in f64 over any number of batches. */
typedef struct cli_moments {
    int64_t n, count;
    double *sum_n, *sum_nn;
} cli_moments;

/* False: out of memory. */
bool cli_moments_open(cli_moments *m, int64_t n);
void cli_moments_clear(cli_moments *m);
void cli_moments_close(cli_moments *m);

/* Adds the rows of x [.. n]. The tape is used for ops only, and records nothing. */
void cli_moments_add(cli_moments *m, kr_tape *tape, kr_tensor *x);

/* Of S = sum x x^T, or centred: of S less count mean mean^T. */
double cli_moments_participation(const cli_moments *m, bool is_centred);

/* (sum e)^2 / sum e^2 of energies that are not negative. */
double cli_spread(int64_t count, const double *energies);

/* table [n d] -> energy[f - 1] for f from 1 to n / 2: the energy of frequency f of the n-point discrete Fourier
 * transform over the rows, summed over columns, |sum over t of table[t] e^(-2 pi i f t / n)|^2. Frequency 0, the mean,
 * is omitted; n - f has the energy of f. False: out of memory. */
bool cli_dft_energies(int64_t n, int64_t d, const double *table, double *energy);

/* PR(x^T x) of a matrix [n d] as a differentiable tensor of one element; NULL if x is all zeros, or after an error of
 * the context. */
kr_tensor *cli_participation(kr_tape *tape, kr_tensor *x_nd);

#endif
