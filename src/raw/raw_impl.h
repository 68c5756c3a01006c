/* raw_impl.h - one call of a raw op: its views as tensors, its work memory, and the descriptions of the ops.
 *
 * An op's function runs twice. First it measures: what it takes from the work memory and what its kernels need as scratch are
 * added up, and nothing is computed. Then it computes, with the same steps in the same order.
 */
#ifndef KR_RAW_RAW_IMPL_H
#define KR_RAW_RAW_IMPL_H

#include "ops/ops_impl.h"

#include <krait/raw.h>

KR_DECLARE_DEFAULTS(kr_raw_options); /* of raw.c */

enum { RAW_MOST_VIEWS = 32 };

/* How the kernel reads an operand or writes a result. */
typedef enum raw_layout {
    RAW_PLAIN,    /* row-major */
    RAW_ROWS,     /* adjacent elements along the last axis, rows of one stride (kr_row_stride) */
    RAW_TOKENS,   /* [b s ..]: row-major tokens of one stride (kr_token_stride) */
    RAW_CHANNELS, /* [b s v]: adjacent channels, any strides of b and s */
    RAW_STRIDED   /* any strides */
} raw_layout;

/* accepts: 1 + the offset of the view's member in kr_accepts, 0 for a view of the slot's type alone. What an op does not
 * list is row-major and of that type. */
typedef struct raw_rule {
    raw_layout layout;
    size_t accepts;
} raw_rule;
#define RAW_RULE(layout, operand)                                                                                      \
    {                                                                                                                  \
        layout, offsetof(kr_accepts, operand) + 1                                                                      \
    }

/* Options beyond work, work_bytes and precision, which all ops have. */
enum {
    RAW_CHUNK_LEN = 1,
    RAW_SEQUENCES = 2,
    RAW_N_GROUPS = 4,
    RAW_EPS = 8,
    RAW_RANGE = 16,
    RAW_LIMITS = 32, /* a_floor, dt_min, dt_max */
    RAW_SILU = 64,
    RAW_NORM_FIRST = 128,
    RAW_SPLIT_PAIRS = 256,
    RAW_SOFTPLUS = 512,
    RAW_ACCUMULATE = 1024
};

struct raw_call;

typedef struct raw_about {
    const char *signature; /* "gate x:.. z:.. -> y:.." */
    const char *contract;  /* "x:.. z:.. y:.." */
    const char *op;        /* "raw gate", for messages */
    int n_operands, n_views;
    unsigned options;
    bool covers;                     /* the sequences hold all tokens */
    int state_operand, state_result; /* views that may be one memory; both 0: none */
    const raw_rule *rules;
    bool (*check)(const struct raw_call *call); /* sizes and options of this op; NULL: none */
    bool (*run)(struct raw_call *call);
} raw_about;
#define RAW_TEXTS(name, operands, results)                                                                             \
    .signature = name " " operands " -> " results, .contract = operands " " results, .op = "raw " name

typedef struct raw_call {
    kr_ctx *ctx;
    const raw_about *about;
    const char *op;
    kr_raw_options o;
    kr_dims d;
    kr_dtype dtype; /* of the slot */
    int real;
    int64_t nq;
    const kr_sequence *sequences;
    kr_tensor *x[RAW_MOST_VIEWS]; /* NULL: absent */
    kr_tensor tensors[RAW_MOST_VIEWS];

    /* work memory: the scratch of one kernel, then what is taken */
    bool measures;
    size_t scratch_bytes, taken; /* rounded to KR_ALIGN */
    char *work;
} raw_call;

/* Memory from the work memory, of `bytes` bytes, aligned. While measuring an address that nothing is read from. */
void *raw_take(raw_call *call, size_t bytes);

/* A row-major tensor of the slot's type in work memory. */
void raw_take_tensor(raw_call *call, kr_tensor *x, kr_shape shape);

/* The address of view i, or memory for a result that is absent but that the kernel writes. */
void *raw_result(raw_call *call, int i, int64_t count);

/* The address of view i, or zeros for a gradient that is absent but that the kernel reads. */
void *raw_gradient(raw_call *call, int i, int64_t count);

/* A state that may be updated in place, but not by the kernel: memory to write to, which raw_store copies to view `result`
 * where that is view `operand` itself; or memory for a result that is absent. */
void *raw_state(raw_call *call, int result, int operand, int64_t count);
bool raw_store(raw_call *call, int result, int operand, const void *state);

/* Runs a kernel of the slot `slot`, or adds up what it needs. False after an error. */
#define RAW_RUN(call, slot, args)                                                                                      \
    ((call)->measures ? raw_measure((call), KR_SCRATCH_OF((call)->ctx, slot, args))                                    \
                      : KR_RUN_WITH((call)->ctx, slot, args, (call)->work))
bool raw_measure(raw_call *call, size_t scratch_bytes);

/* The address of view i; NULL if it is absent. */
static inline void *raw_data(const raw_call *call, int i)
{
    return call->x[i] ? call->x[i]->data : NULL;
}

/* ---- checks (raw_check.c) ---- */

/* Fills the call from the caller's views and options: tensors, sizes, type, sequences. False after an error. */
bool raw_bind(raw_call *call, const kr_view *views, const kr_raw_options *given);

/* What depends on addresses: alignment, overlap, memory of the device. */
bool raw_check_memory(const raw_call *call);

/* The n-th view's name, for messages. */
const char *raw_name(const raw_call *call, int n, char *text, size_t bytes);
#define RAW_NAME(call, n) raw_name((call), (n), (char[32]){ 0 }, 32)

/* ---- the ops ---- */

extern const raw_about raw_ssd, raw_ssd_backward, raw_ssd_rotary, raw_ssd_rotary_backward, raw_scan, raw_scan_backward,
    raw_conv, raw_conv_backward, raw_norm, raw_norm_backward, raw_layer_norm, raw_layer_norm_backward, raw_gate,
    raw_gate_backward, raw_trapezoid, raw_trapezoid_backward, raw_angles, raw_angles_backward, raw_rotate,
    raw_rotate_backward, raw_quaternion_exp, raw_quaternion_exp_backward, raw_quaternion_scan,
    raw_quaternion_scan_backward, raw_quaternion_rotate, raw_quaternion_rotate_backward, raw_matmul;

#endif
