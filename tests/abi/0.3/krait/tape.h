/* tape.h - reverse-mode autodiff: a tape owns the tensors of a step and records its ops for backpropagation.
 *
 *   kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
 *   kr_tensor *x = kr_input(tape, kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(4, 8)));
 *   kr_tensor *loss = kr_mean(tape, kr_mul(tape, x, x), KR_ALL_AXES, false);
 *   kr_backward(tape, loss);
 *   printf("%s\n", kr_shape_text(kr_grad(x), text, sizeof text));   // [4, 8]
 *   kr_tape_reset(tape);     // frees the step's tensors; parameters and their gradients stay
 *   kr_tape_destroy(tape);
 *
 * Ops run at once. Each takes the tape first and returns a tensor that is valid until the tape is reset, or NULL after
 * an error. NULL operands give NULL, so a block needs no checks; ask kr_ctx_failed once at the end.
 *
 * A failed call invalidates its tape: after kr_ctx_clear, calls on it return KR_ERR_STATE until kr_tape_reset. Other
 * tapes of the context are not affected. */
#ifndef KRAIT_TAPE_H
#define KRAIT_TAPE_H

#include <krait/ctx.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kr_tape_mode { KR_TAPE_GRAD = 0, KR_TAPE_NO_GRAD = 1 } kr_tape_mode;

/* Creates a tape that records for kr_backward, or one that only computes. The caller destroys it before its context.
 * kr_tape_reset frees all tensors on the tape and reuses the memory. NULL after an error. */
KR_API kr_tape *kr_tape_create(kr_ctx *ctx, kr_tape_mode mode);
KR_API void kr_tape_destroy(kr_tape *tape);
KR_API void kr_tape_reset(kr_tape *tape);
KR_API kr_ctx *kr_tape_ctx(const kr_tape *tape);

typedef struct kr_tape_stats {
    size_t bytes;         /* size of the tensors on the tape, including gradients */
    size_t peak_bytes;    /* the maximum since creation */
    int64_t nodes;        /* recorded nodes; 0 in no-grad mode */
    uint64_t reserved[5]; /* 0; for later versions */
} kr_tape_stats;

/* Statistics of a tape; 0 for NULL. The functions below return one field each. */
KR_API kr_tape_stats kr_tape_stats_of(const kr_tape *tape);
KR_API_INLINE size_t kr_tape_bytes(const kr_tape *tape)
{
    return kr_tape_stats_of(tape).bytes;
}
KR_API_INLINE size_t kr_tape_peak_bytes(const kr_tape *tape)
{
    return kr_tape_stats_of(tape).peak_bytes;
}
KR_API_INLINE int64_t kr_tape_nodes(const kr_tape *tape)
{
    return kr_tape_stats_of(tape).nodes;
}

/* ---- leaves and gradients ---- */

/* A leaf on the tape that receives a gradient: a copy of x, detached from the ops that computed it. */
KR_API kr_tensor *kr_input(kr_tape *tape, kr_tensor *x);

/* The same without a copy: a leaf over the caller's memory, under the conditions of kr_view_data, which is the constant
 * over it. Any strides; the address is a multiple of the element's size. The tape counts writes to its own tensors and to
 * parameters, and does not notice when borrowed memory is changed between an op and kr_backward. NULL after an error. */
KR_API kr_tensor *kr_input_view(kr_tape *tape, const kr_view *view);

/* The same memory without a gradient: backward stops here. */
KR_API kr_tensor *kr_detach(kr_tape *tape, kr_tensor *x);

/* Makes backward keep the gradient of an intermediate tensor. Leaves and parameters always keep theirs. */
KR_API kr_tensor *kr_retain_grad(kr_tensor *x);

/* Whether backward computes a gradient for x. False for NULL. */
KR_API_INLINE bool kr_requires_grad(const kr_tensor *x)
{
    return kr_tensor_info_of(x).requires_grad;
}

/* The gradient of x after backward: the shape and type of x, row-major; NULL if x received none. The gradient of a
 * parameter is valid as long as the parameter, any other until the tape is reset. */
KR_API kr_tensor *kr_grad(const kr_tensor *x);

/* Zeroes a parameter's gradient; freezes or unfreezes a parameter (frozen parameters receive no gradient). */
KR_API void kr_zero_grad(kr_tensor *param);
KR_API void kr_param_freeze(kr_tensor *param, bool frozen);

/* Backpropagates from a scalar with gradient 1, or from `count` tensors at once, each with its gradient g_y[i] of the
 * same shape and type (NULL: ones). Allowed once per reset of the tape. A parameter or other tensor used by an op must
 * not be written between the op and backward (kr_param_write, kr_tensor_write, an optimizer step, kr_params_load and so
 * on): the gradient would be wrong, and KR_ERR_STATE is returned instead. Writes through kr_tensor_data are not
 * detected. */
KR_API kr_status kr_backward(kr_tape *tape, kr_tensor *loss);
KR_API kr_status kr_backward_from(kr_tape *tape, int count, kr_tensor *const *y, kr_tensor *const *g_y);

/* kr_backward_from that writes the gradients of `n_leaves` leaves (parameters, kr_input, kr_input_view) to the caller's
 * memory: g_leaves[i] has the shape and type of leaves[i] and any strides other than 0. Row-major memory is written
 * without a copy. accumulate: gradients are added to the memory; otherwise they replace it, and are 0 for a leaf that
 * received none. kr_grad of these leaves does not change; all other leaves have their gradients there, as usual.
 *
 * The views must not overlap each other or an operand. With a GPU their memory is device memory of the context's GPU,
 * and is written when the queued kernels have run. After an error its contents are undefined. Errors as for
 * kr_backward_from; KR_ERR_ARG also for a leaf that is listed twice or is the result of an op. */
KR_API kr_status kr_backward_into(kr_tape *tape, int count, kr_tensor *const *y, kr_tensor *const *g_y, int n_leaves,
                                  kr_tensor *const *leaves, const kr_view *g_leaves, bool accumulate);

/* ---- scopes ---- */

/* Until the matching end nothing is recorded, and at the end all tensors created in between are released, except those
 * in keep (at most KR_KEEP_MAX): pointers to the caller's pointers, which are updated because the tensors move. Scopes
 * nest.
 *
 *   kr_scope scope = kr_no_grad_begin(tape);
 *   kr_tensor *y = ...;
 *   kr_no_grad_end(tape, scope, KR_KEEP(&y));
 */
#define KR_KEEP_MAX 64
typedef struct kr_scope {
    uint64_t opaque[12];
} kr_scope;
KR_API kr_scope kr_no_grad_begin(kr_tape *tape);
KR_API kr_status kr_no_grad_end(kr_tape *tape, kr_scope scope, int count, kr_tensor **const *keep);
#ifdef __cplusplus
} /* extern "C" */
template <int N> struct kr_keep_list {
    kr_tensor **items[N];
};
template <typename... T> inline kr_keep_list<(int)sizeof...(T)> kr_keep_of(T... t)
{
    return kr_keep_list<(int)sizeof...(T)>{ { t... } };
}
extern "C" {
#define KR_KEEP(...) (int)(sizeof(kr_keep_of(__VA_ARGS__)) / sizeof(kr_tensor **)), kr_keep_of(__VA_ARGS__).items
#else
#define KR_KEEP(...)                                                                                                   \
    (int)(sizeof((kr_tensor **[]){ __VA_ARGS__ }) / sizeof(kr_tensor **)), (kr_tensor * *[])                           \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }
#endif

/* Gradient checkpointing: runs fn(tape, user, in, out) without storing activations; the backward pass runs it again,
 * recorded, for its gradients. fn must compute the same values both times. It computes out[0..n_out) from in[0..n_in)
 * and from any parameters or earlier tensors that it reaches through user, which must stay valid until the backward
 * pass. If a parameter or state that fn has read is written or destroyed before, kr_backward fails. After an error out
 * must not be used. */
typedef void kr_checkpoint_fn(kr_tape *tape, void *user, kr_tensor *const *in, kr_tensor **out);
KR_API kr_status kr_checkpoint(kr_tape *tape, kr_checkpoint_fn *fn, void *user, int n_in, kr_tensor *const *in,
                               int n_out, kr_tensor **out);

/* ---- custom ops ---- */

typedef struct kr_back kr_back;

/* The backward rule of an op. It reads the gradients of the outputs and accumulates one for each input that needs it.
 * It may call any op on kr_back_tape(back): nothing is recorded, and temporaries are freed when it returns, except
 * accumulated gradients. */
typedef struct kr_rule {
    const char *name;
    void (*backward)(kr_back *back);
    bool allow_infinity; /* infinite results are valid: check_finite reports only NaN */
    void *reserved[4];   /* must be NULL; for later versions */
} kr_rule;

/* Records that `rule` computed out[0..n_out) from in[0..n_in), and saves the tensors that the backward pass needs.
 * Optional inputs may be NULL. Does nothing in no-grad mode or when no input requires a gradient. The outputs must be
 * new tensors (kr_new, or views of inputs). attrs_bytes bytes at attrs are copied. The rule must be valid until the
 * tape is reset. */
typedef struct kr_record_args {
    const kr_rule *rule;
    int n_in, n_out, n_saved;
    kr_tensor *const *in;
    kr_tensor *const *out;
    kr_tensor *const *saved;
    const void *attrs;
    size_t attrs_bytes;
    void *reserved[4]; /* must be NULL; for later versions */
} kr_record_args;
KR_API kr_status kr_record(kr_tape *tape, const kr_record_args *args);

/* A new contiguous tensor, not initialised. */
KR_API kr_tensor *kr_new(kr_tape *tape, kr_dtype dtype, kr_shape shape);

/* Tensors of the op whose rule is called. */
typedef enum kr_back_kind {
    KR_BACK_IN = 0,
    KR_BACK_OUT = 1,
    KR_BACK_SAVED = 2,
    KR_BACK_GRAD = 3 /* gradient of an output; NULL if it received none */
} kr_back_kind;

/* Access for rules. An index out of range is an error; the result is NULL or false. */
KR_API kr_tape *kr_back_tape(kr_back *back);
KR_API kr_tensor *kr_back_tensor(kr_back *back, kr_back_kind kind, int index);
KR_API_INLINE kr_tensor *kr_back_grad(kr_back *back, int out)
{
    return kr_back_tensor(back, KR_BACK_GRAD, out);
}
KR_API_INLINE kr_tensor *kr_back_in(kr_back *back, int in)
{
    return kr_back_tensor(back, KR_BACK_IN, in);
}
KR_API_INLINE kr_tensor *kr_back_out(kr_back *back, int out)
{
    return kr_back_tensor(back, KR_BACK_OUT, out);
}
KR_API_INLINE kr_tensor *kr_back_saved(kr_back *back, int saved)
{
    return kr_back_tensor(back, KR_BACK_SAVED, saved);
}
KR_API const void *kr_back_attrs(kr_back *back);
KR_API bool kr_back_wants(kr_back *back, int in); /* whether this input needs a gradient */

/* Adds g, with the shape and type of the input, to the gradient of the input. NULL is ignored. */
KR_API void kr_back_accumulate(kr_back *back, int in, kr_tensor *g);

/* The gradient buffer of an input, contiguous, for rules that add to a part of it or write it without a copy. *is_new:
 * it is uninitialised and the rule must write all of it; otherwise the rule must add to it. NULL on failure. */
KR_API kr_tensor *kr_back_into(kr_back *back, int in, bool *is_new);

#ifdef __cplusplus
}
#endif
#endif
