/* conformance.h - the matrix: every kernel x every set that this machine can run x element types x shapes, compared
 * with the f64 reference kernel on the same inputs; and laws that need no reference.
 *
 * kernels.def defines the list of kernels, and with it the list of case generators: a kernel without `kr_cases_NAME`
 * does not link, one without a row in tolerance.c fails its test. A generator builds cases and passes them to the
 * sweep:
 *
 *   kr_softmax_args a = { .no = no, .nr = nr };
 *   kr_case c;
 *   case_begin(&c, &a, sizeof a, "[%lld, %lld]", no, nr);
 *   case_input(&c, FIELD(kr_softmax_args, x), KR_SHAPE(no, nr), -3, 3);
 *   case_output(&c, FIELD(kr_softmax_args, y), KR_SHAPE(no, nr));
 *   case_done(sweep, &c);
 *
 * Values are doubles that float holds exactly, so that all element types see the same inputs. Each run has separate
 * memory: inputs end where their block ends (for AddressSanitizer), outputs are between guard bytes and hold a NaN of a
 * special pattern before the run. A set must write an element if and only if the reference writes it.
 */
#ifndef KR_TESTS_KERNELS_CONFORMANCE_H
#define KR_TESTS_KERNELS_CONFORMANCE_H

#include "kernels/kernels.h"
#include "tests/harness.h"

#include <stddef.h>

enum {
    KR_REAL = -1, /* dtype of an operand: the slot's element type */
    KR_MAX_OPERANDS = 24
};

typedef struct kr_case_operand {
    const char *name;
    size_t field, also; /* offset of the pointer in the arguments; a second one (0: none) for work in place */
    int dtype;          /* KR_REAL or a kr_dtype */
    bool is_typed;      /* the pointer is that of a kr_operand or a kr_matrix */
    bool is_output;
    int64_t count, first; /* elements of memory; the one that the pointer points at */
    kr_shape shape;       /* of a contiguous operand, for messages */
    double *value;        /* KR_REAL: contents before the run, NULL: not initialised */
    void *bytes;          /* other types: the same */
    double *scale;        /* outputs: error scale of an element; NULL: its magnitude */
} kr_case_operand;

typedef struct kr_case {
    char text[160];
    const void *args;
    size_t args_bytes;
    int noperands;
    kr_case_operand operands[KR_MAX_OPERANDS];
    int64_t terms;      /* summed in one element, 1 if none are */
    int64_t roundings;  /* of a value that the reference carries in double, to the element type, at ends of chunks */
    bool many_tasks;    /* large enough for several tasks: runs the law of threads */
    bool by_magnitudes; /* scales are the reference's results for the magnitudes of all inputs ... */
    void (*for_scale)(void *); /* ... after these changes to the arguments */
    void (*first_row)(void *); /* reduces the arguments to their first row: runs the law of rows */
} kr_case;

typedef enum kr_sweep_mode { KR_SWEEP_VALUES, KR_SWEEP_THREADS, KR_SWEEP_ROWS } kr_sweep_mode;

typedef struct kr_kernel kr_kernel;
typedef struct kr_sweep {
    const kr_kernel *kernel;
    kr_sweep_mode mode;
    int64_t ncases; /* that were run in this mode */
    int64_t nseen;  /* that the mode has */
} kr_sweep;

typedef void kr_cases_fn(kr_sweep *);

/* One entry of kernels.def. real is KR_REAL_F32 or KR_REAL_F64, and ignored if one slot serves all types. */
struct kr_kernel {
    const char *name;
    bool has_reals;
    bool (*has)(const kr_kernels *set, int real);
    void (*run)(const kr_kernels *set, int real, const void *args);
    size_t (*scratch)(const kr_kernels *set, int real, const void *args);
    kr_cases_fn *cases;
};

/* NULL for an unknown name. */
const kr_kernel *kr_kernel_named(const char *name);

/* Runs a kernel's cases in one mode; returns their number. */
int64_t kr_sweep_run(const char *kernel, kr_sweep_mode mode);

/* The n-th set that can run here, NULL past the last; 0 is the reference, the last may be a device's. */
const kr_kernels *kr_runnable_set(int n);

/* The n-th set under test, NULL past the last: all of them; or only the device's if KR_DEVICE names one, since the
 * others are tested in runs without it. */
const kr_kernels *kr_judged_set(int n);

/* The table of a device under test, last of the sets; NULL: none, device_why_not returns the reason. */
const kr_kernels *device_kernels(void);
const char *device_why_not(void);
bool device_is_requested(void);

/* Memory that arguments point into: the pointer at `field`, and one more at `also` if that is not 0. */
typedef struct kr_span {
    size_t field, also;
    void *data;
    size_t bytes;
    bool is_output;
} kr_span;

/* Runs a kernel on any set; its arguments are not changed. Spans are all the memory that it reads and writes, except
 * sequences: a device gets copies, at addresses that are multiples of 256, and outputs are copied back. Scratch holds
 * NaN. Counts a failure if the kernel wrote past its scratch. */
void kr_run_spans(const kr_kernel *kernel, const kr_kernels *set, int real, kr_pool *pool, const void *args,
                  size_t args_bytes, const kr_span *spans, int count, const char *text);

/* The same on the device, which changes the arguments; false if it wrote past its scratch. */
bool device_run_count(const kr_kernel *kernel, int real, char *args, const kr_span *spans, int count, const char *text);

/* Changes the device's execution resources in later runs there; NULL: nothing. */
void device_change_exec(void (*change)(kr_exec *exec));

/* A pool of `nthreads` threads, kept until the program ends. */
kr_pool *kr_test_pool(int nthreads);

/* |got - want| <= ulps * ulp(want) + (plain + root * terms^1/2) * unit * scale + doubles * terms^1/2 * 2^-53 *
 * max(1, |want|), with ulp and unit (half an ulp of 1) of the element type; doubles: of values held in double in every
 * slot. The reference sums in double and rounds once, so its f32 slots must stay within half an ulp plus the rounding of
 * double, unless adds_in_place. What is carried in double from chunk to chunk is rounded at the ends of chunks: half an ulp
 * of the scale each time. exact: bit by bit, except for the payload of a NaN.
 * A device has other functions in f64, where the roundings of the reference count as much as the device's: device_f64 more
 * units of |want|. And there sizes, strides and addresses may select the kernel (selects_kernel): bits are the same from
 * run to run, but a row computed alone is only as close to the reference as any. */
typedef struct kr_tolerance {
    bool exact;
    bool any_zero;      /* exact, except the sign of a zero */
    bool adds_in_place; /* elements accumulate in their type, in the reference too */
    bool selects_kernel;
    double ulps, plain, root, doubles, device_f64;
    const char *why;
} kr_tolerance;

/* NULL if the table has no row for the kernel. */
const kr_tolerance *kr_tolerance_of(const char *kernel);

/* ---- building cases ---- */

#define FIELD(args, name) offsetof(args, name), #name

/* The same for a kr_operand or kr_matrix: a run sets its dtype to that of the operand's memory, too. */
#define OPERAND(args, name) (offsetof(args, name.data) | KR_IS_TYPED), #name
enum { KR_IS_TYPED = 1 << 20 };

void case_begin(kr_case *c, const void *args, size_t args_bytes, const char *format, ...) KR_PRINTF(4, 5);

/* Operands; contents are uniform in [low, high), and may be changed until case_done. */
double *case_input(kr_case *c, size_t field, const char *name, kr_shape shape, double low, double high);
void case_output(kr_case *c, size_t field, const char *name, kr_shape shape);
double *case_in_out(kr_case *c, size_t field, const char *name, kr_shape shape, double low, double high);

/* An operand of one fixed type; the bytes are zero, and must be filled for an input. */
void *case_raw(kr_case *c, size_t field, const char *name, kr_dtype dtype, int64_t count, bool is_output);

/* The scales of the last added operand, to be filled. */
double *case_scale(kr_case *c);

/* Runs and frees the case. */
void case_done(kr_sweep *sweep, kr_case *c);

double kr_to_float(double x); /* rounded to float */

/* ---- walks ---- */

typedef enum kr_case_layout {
    KR_PLAIN,      /* row-major */
    KR_TRANSPOSED, /* the first axis is the fastest */
    KR_BACKWARDS,  /* row-major with all strides negative */
    KR_GAPPED,     /* inner stride 2, three more between rows */
    KR_PADDED,     /* inner stride 1, three elements between rows */
    KR_OUTPUT_LAYOUTS,
    KR_REPEATED = KR_OUTPUT_LAYOUTS, /* inner stride 0 */
    KR_REPEATED_ROWS,                /* all strides but the inner are 0 */
    KR_REPEATED_ALL,                 /* one element */
    KR_INPUT_LAYOUTS
} kr_case_layout;

typedef struct kr_extent {
    int64_t count, first; /* elements of memory; the one at index 0 */
} kr_extent;

/* Fills operand o's strides of a walk whose rank and dims are set. */
kr_extent kr_walk_lay_out(kr_walk *walk, int o, kr_case_layout layout);

void kr_walk_shape(kr_walk *walk, kr_shape shape);

/* Like case_input and case_output for an operand in the layout of a walk. */
double *case_walk_input(kr_case *c, size_t field, const char *name, kr_extent extent, double low, double high);
void case_walk_output(kr_case *c, size_t field, const char *name, kr_extent extent);

/* An input of bf16 or f16, whose values are uniform in [-1, 1). */
void case_walk_halves(kr_case *c, size_t field, const char *name, kr_extent extent, kr_dtype dtype);

/* Memory index of element number `flat` of the walk, for operand o. */
int64_t kr_walk_at(const kr_walk *walk, int o, int64_t flat);
int64_t kr_walk_count(const kr_walk *walk);

/* Shapes of walks: around vector lengths, primes, empty, a single element, many axes; large ones that cross the
 * kernels' tasks and buffers. n counts up until rank is -1. */
kr_shape kr_walk_shapes(int n);
bool kr_walk_shape_is_large(kr_shape shape);

/* A random one. */
kr_case_layout kr_pick_layout(bool is_output);

const char *kr_case_layout_name(kr_case_layout layout);

/* NaN, infinities, zeros, denormals, the largest, and points where functions change; kr_nspecials of them. */
extern const double kr_specials[];
extern const int kr_nspecials;

#endif
