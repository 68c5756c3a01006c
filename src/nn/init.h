/* init.h - the initial values of a parameter. */
#ifndef KR_NN_INIT_H
#define KR_NN_INIT_H

#include <krait/params.h>

/* Overwrites a parameter by its rule, times `scale`, drawing from the context's stream. False after an error. */
bool kr_init_apply(kr_tensor *param, const kr_init *init, double scale);

/* The rule as text: "uniform +-0.125", "dt 0.001 .. 0.1". Returns text. */
const char *kr_init_text(const kr_init *init, double scale, char *text, size_t bytes);

#endif
