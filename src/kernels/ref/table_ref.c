/* table_ref.c - the table of the reference kernels. Every slot of kernels.def is filled; a kernel that is missing
 * fails to link. */
#include "kernels/ref/ref.h"

#define KR_KERNEL(name, args) .name = { { kr_ref_f32_##name, NULL }, { kr_ref_f64_##name, NULL } },
#define KR_KERNEL_ANY(name, args) .name = { kr_ref_##name, NULL },
const kr_kernels kr_ref_kernels = {
    .name = "ref",
    .needs = 0,
#include "kernels/kernels.def"
};
#undef KR_KERNEL
#undef KR_KERNEL_ANY
