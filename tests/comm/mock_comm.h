/* mock_comm.h - exchanges between mock devices of threads, in place of NCCL: the same table, and messages in memory. */
#ifndef KR_TESTS_COMM_MOCK_COMM_H
#define KR_TESTS_COMM_MOCK_COMM_H

#include "device/device_comm.h"

#include <stdatomic.h>

extern const kr_device_comm_ops mock_comm_ops;

/* What goes wrong. */
typedef struct mock_comm_faults {
    atomic_bool is_missing;    /* the library */
    atomic_bool is_one_device; /* all ranks are on one device */
    atomic_int stuck;          /* bit r: what rank r of the first group has queued does not end */
    atomic_int failing_call;   /* the n-th call of `add` from now on is an error; 0: none */
    atomic_int naborted;       /* groups, so far */
    atomic_int ngroups;        /* that are open */
} mock_comm_faults;
extern mock_comm_faults mock_comm;

#endif
