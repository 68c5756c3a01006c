/* select.h - which kernel sets this CPU can run, and their overlay on the reference. */
#ifndef KR_KERNELS_SELECT_H
#define KR_KERNELS_SELECT_H

#include "kernels/kernels.h"

/* The n-th set in rising order of preference, 0 being the reference; NULL past the last. All that were built. */
const kr_kernels *kr_kernels_nth(int n);

/* The instruction sets that this machine runs, and the table of kernels, as kr_info_text has them. */
size_t kr_isas_write(char *text, size_t bytes);
size_t kr_kernels_write(char *text, size_t bytes);

/* The set of that name, NULL if none was built. */
const kr_kernels *kr_kernels_named(const char *name);

/* Can a CPU with these features run the set? */
bool kr_kernels_runnable(const kr_kernels *set, uint64_t features);

/* Replaces the slots of the table that the set has; how many it has. */
int kr_kernels_overlay(kr_kernels *table, const kr_kernels *set);

/* The function that runs a kernel in f32, to compare tables; NULL: the table has none, or there is no such kernel. */
typedef void kr_any_fn(void);
kr_any_fn *kr_kernels_function(const kr_kernels *table, const char *kernel);

/* table = the reference, overlaid by every runnable set up to and including `last`; each slot gets the best that has it.
 * The table is named after `last`. */
void kr_kernels_merge(kr_kernels *table, const kr_kernels *last, uint64_t features);

#endif
