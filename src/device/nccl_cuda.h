/* nccl_cuda.h - the exchanges of a CUDA device with those of other ranks, by NCCL, and what is known of the library. */
#ifndef KR_DEVICE_NCCL_CUDA_H
#define KR_DEVICE_NCCL_CUDA_H

#include "device/device_comm.h"

extern const kr_device_comm_ops kr_nccl_ops;

/* "NCCL 2.28.9", or NULL and what is wrong, for the user. */
const char *kr_nccl_name(void);
const char *kr_nccl_problem(void);

#endif
