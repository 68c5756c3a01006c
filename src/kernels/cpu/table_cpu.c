/* table_cpu.c - the table of one instruction set: its f32 vector kernels, NULL where the reference kernel is used.
 *
 * The required processor features are read from the compiler's macros, so that flags and predicate cannot disagree.
 */
#include "base/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/kernels.h"

/* Kernels with a vector version: KR_PLAIN(name, args), KR_SCRATCHED(name, args) for those with a scratch function. */
#define KR_F32_KERNELS                                                                                                 \
    KR_PLAIN(maximum_bwd, kr_binary_bwd_args)                                                                          \
    KR_PLAIN(minimum_bwd, kr_binary_bwd_args)                                                                          \
    KR_PLAIN(pow_bwd, kr_binary_bwd_args)                                                                              \
    KR_PLAIN(where, kr_where_args)                                                                                     \
    KR_SCRATCHED(sum, kr_reduce_args)                                                                                  \
    KR_PLAIN(max, kr_reduce_args)                                                                                      \
    KR_PLAIN(max_bwd, kr_max_bwd_args)                                                                                 \
    KR_PLAIN(argmax, kr_argmax_args)                                                                                   \
    KR_PLAIN(cumsum, kr_cumsum_args)                                                                                   \
    KR_PLAIN(segsum, kr_segsum_args)                                                                                   \
    KR_SCRATCHED(segsum_bwd, kr_segsum_args)                                                                           \
    KR_PLAIN(softmax, kr_softmax_args)                                                                                 \
    KR_PLAIN(softmax_bwd, kr_softmax_bwd_args)                                                                         \
    KR_PLAIN(cross_entropy, kr_cross_entropy_args)                                                                     \
    KR_PLAIN(cross_entropy_bwd, kr_cross_entropy_bwd_args)                                                             \
    KR_PLAIN(dropout, kr_dropout_args)                                                                                 \
    KR_SCRATCHED(matmul, kr_matmul_args)                                                                               \
    KR_PLAIN(panels, kr_panels_args)                                                                                   \
    KR_PLAIN(norm, kr_norm_args)                                                                                       \
    KR_SCRATCHED(norm_bwd, kr_norm_bwd_args)                                                                           \
    KR_PLAIN(layer_norm, kr_layer_norm_args)                                                                           \
    KR_SCRATCHED(layer_norm_bwd, kr_layer_norm_bwd_args)                                                               \
    KR_PLAIN(gate, kr_gate_args)                                                                                       \
    KR_PLAIN(gate_bwd, kr_gate_bwd_args)                                                                               \
    KR_SCRATCHED(conv, kr_conv_args)                                                                                   \
    KR_SCRATCHED(conv_bwd, kr_conv_bwd_args)                                                                           \
    KR_PLAIN(trapezoid, kr_trapezoid_args)                                                                             \
    KR_PLAIN(trapezoid_bwd, kr_trapezoid_bwd_args)                                                                     \
    KR_SCRATCHED(angles, kr_angles_args)                                                                               \
    KR_SCRATCHED(angles_bwd, kr_angles_bwd_args)                                                                       \
    KR_PLAIN(rotate, kr_rotate_args)                                                                                   \
    KR_SCRATCHED(rotate_bwd, kr_rotate_bwd_args)                                                                       \
    KR_PLAIN(quaternion_exp, kr_quaternion_exp_args)                                                                   \
    KR_PLAIN(quaternion_exp_bwd, kr_quaternion_exp_bwd_args)                                                           \
    KR_PLAIN(quaternion_scan, kr_quaternion_scan_args)                                                                 \
    KR_PLAIN(quaternion_scan_bwd, kr_quaternion_scan_bwd_args)                                                         \
    KR_PLAIN(quaternion_rotate, kr_quaternion_rotate_args)                                                             \
    KR_PLAIN(quaternion_rotate_bwd, kr_quaternion_rotate_bwd_args)                                                     \
    KR_SCRATCHED(ssd, kr_ssd_args)                                                                                     \
    KR_SCRATCHED(ssd_bwd, kr_ssd_bwd_args)                                                                             \
    KR_SCRATCHED(scan, kr_scan_args)                                                                                   \
    KR_SCRATCHED(scan_bwd, kr_scan_bwd_args)                                                                           \
    KR_PLAIN(embedding, kr_embedding_args)                                                                             \
    KR_PLAIN(embedding_bwd, kr_embedding_args)                                                                         \
    KR_PLAIN(adamw, kr_adamw_args)                                                                                     \
    KR_PLAIN(sgd, kr_sgd_args)                                                                                         \
    KR_PLAIN(lerp, kr_lerp_args)

#define KR_UNARY(name) KR_PLAIN(name, kr_unary_args) KR_PLAIN(name##_bwd, kr_unary_bwd_args)
#define KR_BINARY(name) KR_PLAIN(name, kr_binary_args)

#define KR_PLAIN(name, args) void KR_FN(name)(const args *);
#define KR_SCRATCHED(name, args)                                                                                       \
    void KR_FN(name)(const args *);                                                                                    \
    size_t KR_FN(name##_scratch)(const args *);
#include "kernels/binary.def"
#include "kernels/unary.def"
KR_F32_KERNELS
#undef KR_PLAIN
#undef KR_SCRATCHED
void KR_FN(compare)(const kr_compare_args *);
void KR_FN(copy)(const kr_copy_args *);
void KR_FN(squares)(const kr_squares_args *);
size_t KR_FN(squares_scratch)(const kr_squares_args *);

enum {
    NEEDS = 0
#ifdef __AVX2__
            | KR_CPU_AVX2
#endif
#ifdef __FMA__
            | KR_CPU_FMA
#endif
#ifdef __F16C__
            | KR_CPU_F16C
#endif
#ifdef __AVX512F__
            | KR_CPU_AVX512F
#endif
#ifdef __AVX512BW__
            | KR_CPU_AVX512BW
#endif
#ifdef __AVX512VL__
            | KR_CPU_AVX512VL
#endif
#ifdef __AVX512DQ__
            | KR_CPU_AVX512DQ
#endif
};

extern const kr_kernels KR_FN(kernels);

#define KR_PLAIN(name, args) .name[KR_REAL_F32] = { KR_FN(name), NULL },
#define KR_SCRATCHED(name, args) .name[KR_REAL_F32] = { KR_FN(name), KR_FN(name##_scratch) },
const kr_kernels KR_FN(kernels) = {
    .name = KR_ISA_NAME,
    .needs = NEEDS,
#define KR_ACCEPTS(kernel, operand, cpu, cuda) .accepts.kernel##_##operand = (cpu),
#include "kernels/accepts.def"
#undef KR_ACCEPTS
#include "kernels/binary.def"
#include "kernels/unary.def"
    KR_F32_KERNELS.compare = { KR_FN(compare), NULL },
    .copy = { KR_FN(copy), NULL },
    .squares = { KR_FN(squares), KR_FN(squares_scratch) },
};
