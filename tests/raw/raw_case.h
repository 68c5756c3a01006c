/* raw_case.h - a raw op and the op of a tape that it is compared with, operands and results by their names.
 *
 * The signature says everything else: the shapes from the sizes of the letters, the operands of a backward op from the
 * names (those of the forward op, its results, and "g_" with a result), and its results ("g_" with an operand).
 */
#ifndef KR_TESTS_RAW_RAW_CASE_H
#define KR_TESTS_RAW_RAW_CASE_H

#include "device/device.h"
#include "ops/ops_impl.h"
#include "ops/sequences.h"
#include "tests/harness.h"

#include <krait/raw.h>

enum { TERMS = 32, NAMES = 96 };

typedef struct term {
    char name[24], axes[16];
    bool has_lead, optional;
} term;

typedef struct signature {
    int n_operands, n_views;
    term terms[TERMS];
} signature;

signature signature_of(kr_raw_op op);

/* Tensors by name. */
typedef struct named {
    int count;
    char names[NAMES][24];
    kr_tensor *x[NAMES];
} named;

void put(named *set, const char *prefix, const char *name, kr_tensor *x);
kr_tensor *get(const named *set, const char *prefix, const char *name);

/* What is compared: the sizes of the letters, ".." being [s b] or [s b h], and the options. */
typedef struct raw_case {
    kr_raw_op op; /* the forward op */
    int64_t sizes[26];
    kr_raw_options options;
    bool packed;   /* sequences within the rows */
    bool strided;  /* operands that may be are parts of wider rows */
    unsigned with; /* bit n: optional operand number n is there */
    kr_dtype dtype;

    /* filled in while it runs */
    kr_tape *t;
    named values;
    kr_tensor *seq_start; /* NULL: whole rows */
    kr_sequences sequences;
} raw_case;

/* Runs the op of the tape on values, and puts its results under their names. */
void run_on_tape(raw_case *c);

/* A raw op's views: `tensors` in the order of the signature, NULL absent. */
void views_of(const signature *s, kr_tensor *const *tensors, kr_view *views);

/* The same elements as parts of wider rows, if the signature's operand may be: another tensor's memory. */
void widen(raw_case *c, const char *name, kr_view *view);

/* Runs with exactly the work memory that kr_raw_work asks for, and checks that one byte less is refused. */
kr_status run_exactly(kr_tape *t, kr_raw_op op, int count, const kr_view *views, kr_raw_options options);

/* Sequences of rows of ns tokens, cut into two or three, and the marker of their starts. */
void pack(raw_case *c, int64_t nb, int64_t ns);

/* Random operands of the forward op, as leaves. */
void make_operands(raw_case *c);

/* The shape of a term. */
kr_shape shape_of(const raw_case *c, const term *x);

/* Noise of a range that suits the name. */
kr_tensor *noise(const raw_case *c, const char *name, kr_shape shape);

/* Memory for a result, full of NaN. */
kr_tensor *unwritten(const raw_case *c, kr_shape shape);

#endif
