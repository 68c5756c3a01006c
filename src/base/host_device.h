/* host_device.h - functions that the processor and the kernels of a GPU both run: valid C11 and CUDA C. */
#ifndef KR_BASE_HOST_DEVICE_H
#define KR_BASE_HOST_DEVICE_H

#ifdef __CUDACC__
#define KR_EVERYWHERE static __host__ __device__ inline
#else
#define KR_EVERYWHERE static inline
#endif

#endif
