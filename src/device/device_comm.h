/* device_comm.h - exchanges of device memory between the devices of several ranks, as src/comm uses them: NCCL on CUDA.
 *
 * What is queued here runs on a stream of its own, behind what the context had queued when the call began. The communicator's
 * thread agrees with the other ranks on each call before it queues it, so that all of them queue the same calls in one order.
 *
 * Functions that return text return NULL, or an error that is valid until the next call of this thread.
 */
#ifndef KR_DEVICE_DEVICE_COMM_H
#define KR_DEVICE_DEVICE_COMM_H

#include "base/alloc.h"

#include <krait/tensor.h>

enum { KR_DEVICE_GROUP_ID = 128 };

typedef enum kr_group_state { KR_GROUP_READY = 0, KR_GROUP_BUSY = 1, KR_GROUP_FAILED = 2 } kr_group_state;

struct kr_device;

struct kr_device_comm_ops {
    const char *name; /* "nccl" */

    /* ---- of the context's thread ---- */

    const char *(*problem)(void);                              /* NULL: it can be used */
    uint64_t (*number)(const struct kr_device *device);        /* of the device on its machine, not 0 */
    /* A stream. scratch: device memory for it, which the caller frees after it has been closed. */
    const char *(*open)(struct kr_device *device, kr_memory *memory, void *scratch, void **stream);
    void (*close)(struct kr_device *device, void *stream);     /* after everything queued on it has run */
    /* A call of the context: what it has queued until now comes before it ... */
    const char *(*begin)(struct kr_device *device, void *stream, void **call);
    /* ... and what it queues from now on behind it. If it was not made only `call` is released. */
    const char *(*end)(struct kr_device *device, void *stream, void *call, bool was_made);

    /* ---- of the communicator's thread ---- */

    const char *(*make_id)(void *stream, char *id); /* of a new group, KR_DEVICE_GROUP_ID bytes, for all its ranks */
    /* Begins to connect a group; it is used when it is ready. *group: NULL, or to be released, also after an error. */
    const char *(*connect)(void *stream, const char *id, int rank, int ranks, void **group);
    kr_group_state (*state)(void *stream, void *group, const char **text);
    const char *(*finish)(void *stream, void *group); /* begins to end it: ready when its calls have run */
    void (*release)(void *stream, void *group, bool is_broken); /* is_broken: its calls do not run any further */

    char *(*scratch)(void *stream);
    const char *(*start)(void *stream, void *call); /* of what is queued for `call` ... */
    const char *(*note)(void *stream, void *call);  /* ... and its end */
    bool (*is_idle)(void *stream);                  /* has everything run that was noted? */

    const char *(*moves_begin)(void *stream); /* moves up to moves_end are made at once */
    const char *(*moves_end)(void *stream);
    const char *(*send)(void *stream, void *group, const void *x, size_t bytes, int rank);
    const char *(*recv)(void *stream, void *group, void *x, size_t bytes, int rank);
    const char *(*broadcast)(void *stream, void *group, void *x, size_t bytes, int root);
    const char *(*gather)(void *stream, void *group, const void *from, void *to, size_t bytes); /* to [ranks bytes] */
    const char *(*sum)(void *stream, void *group, void *x, int64_t n, kr_dtype dtype);          /* in any order */

    /* y [n] = the sum of slots [nslots] of n elements each, `stride` bytes apart, in the order of kr_sum_order. */
    const char *(*add)(void *stream, kr_dtype dtype, const void *slots, size_t stride, int nslots, int64_t n, void *y);
};
typedef struct kr_device_comm_ops kr_device_comm_ops;

#endif
