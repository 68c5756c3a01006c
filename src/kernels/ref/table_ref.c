/* table_ref.c - the table of the reference kernels. Every slot of kernels.def is filled; a kernel that is missing
 * fails to link. */
#include "kernels/ref/ref.h"

/* Those with a scratch function. */
#define KR_SCRATCHED_KERNELS                                                                                           \
    KR_SCRATCHED(ssd, kr_ssd_args)                                                                                     \
    KR_SCRATCHED(ssd_bwd, kr_ssd_bwd_args)                                                                             \
    KR_SCRATCHED(scan, kr_scan_args)                                                                                   \
    KR_SCRATCHED(scan_bwd, kr_scan_bwd_args)                                                                           \
    KR_SCRATCHED(decode_mamba3, kr_decode_mamba3_args)

#define KR_SCRATCHED(name, args)                                                                                       \
    size_t kr_ref_f32_##name##_scratch(const args *);                                                                  \
    size_t kr_ref_f64_##name##_scratch(const args *);
KR_SCRATCHED_KERNELS
#undef KR_SCRATCHED

#define KR_KERNEL(name, args) .name[KR_REAL_F32].run = kr_ref_f32_##name, .name[KR_REAL_F64].run = kr_ref_f64_##name,
#define KR_KERNEL_ANY(name, args) .name.run = kr_ref_##name,
#define KR_SCRATCHED(name, args)                                                                                       \
    .name[KR_REAL_F32].scratch = kr_ref_f32_##name##_scratch, .name[KR_REAL_F64].scratch = kr_ref_f64_##name##_scratch,
const kr_kernels kr_ref_kernels = {
    KR_SCRATCHED_KERNELS.name = "ref",
    .needs = 0,
#define KR_ACCEPTS(kernel, operand, cpu, cuda) .accepts.kernel##_##operand = KR_DTYPES_FLOAT,
#include "kernels/accepts.def"
#undef KR_ACCEPTS
#include "kernels/kernels.def"
};
#undef KR_KERNEL
#undef KR_KERNEL_ANY
#undef KR_SCRATCHED
