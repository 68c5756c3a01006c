/* paths.h - one state space case, run by any algorithm, with its results and gradients as f64. */
#ifndef KR_TESTS_MIXER_PATHS_H
#define KR_TESTS_MIXER_PATHS_H

#include "tests/harness.h"

#include <krait/ssd.h>

typedef enum family { MAMBA2, MAMBA3_DOUBLE, MAMBA3_SINGLE } family;

typedef struct ssd_case {
    family family;
    int64_t nb, ns, nm, nh, np, ng, nr;
    int64_t nl; /* chunk length; 0: optimal */
    bool cut;   /* operands in the seeds' chunked shapes; nl divides ns */
    bool initial, learned, skip, packed;
    double decay; /* scale of the log-decays; 0: about -0.1 */
} ssd_case;

enum { MAX_OPERANDS = 9, MAX_RESULTS = MAX_OPERANDS + 2 };

/* Operands in a fixed order, NULL if a case has none: v, b, c, da or dt, a or scale, gamma, d, initial, learned. */
typedef struct operands {
    double *values[MAX_OPERANDS];
    kr_shape shapes[MAX_OPERANDS];
    double *g_y, *g_final;
    int32_t *seq_start;
    kr_shape y_shape, final_shape, start_shape;
} operands;

typedef struct results {
    double *values[MAX_RESULTS]; /* y, final, then the gradients of the operands */
    int64_t counts[MAX_RESULTS];
    kr_shape shapes[MAX_RESULTS];
} results;

extern const char *const result_names[MAX_RESULTS];

operands make_operands(const ssd_case *c);
void free_operands(operands *o);

/* Runs forward and backward on a new context; peak, if not NULL, gets the peak of allocated bytes beyond the operands:
 * outputs, gradients, saved tensors, scratch. */
results run_case(const ssd_case *c, const operands *o, kr_dtype dtype, kr_ssd_algorithm algorithm, const char *isa,
                 int threads, size_t *peak);
void free_results(results *r);

/* All results agree: values to one tolerance, gradients to another, relative to the largest of each or to floor. */
void compare_results(const char *what, const results *got, const results *want, double values, double gradients,
                     double floor);

/* A one-line rendering. */
const char *case_text(const ssd_case *c, char *text, size_t bytes);

#endif
