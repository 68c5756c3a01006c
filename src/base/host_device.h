/* host_device.h - functions shared by host and CUDA code: valid C11 and CUDA C. */
#ifndef KR_BASE_HOST_DEVICE_H
#define KR_BASE_HOST_DEVICE_H

#ifdef __CUDACC__
#define KR_EVERYWHERE static __host__ __device__ inline
#else
#define KR_EVERYWHERE static inline
#endif

#endif
