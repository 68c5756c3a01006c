/* device_calls.h - calls whose operands are in device memory, by the device's own exchanges (device/device_comm.h). */
#ifndef KR_COMM_DEVICE_CALLS_H
#define KR_COMM_DEVICE_CALLS_H

#include "comm/comm_impl.h"

/* ---- collectives.c, of the thread ---- */

/* Makes world->moves. Breaks the world if they fail. */
kr_status kr_call_move(kr_world *world, const kr_call_header *h);

/* Breaks the world for the reason why moves have failed. */
kr_status kr_call_explain(kr_world *world, kr_moved moved, const kr_call_header *h);

/* "comm.sum: call 12 (sum of 100 f32)" into text; returns text. */
const char *kr_call_name(const kr_call_header *h, char *text, size_t bytes);

/* ---- device_calls.c, of the thread ---- */

/* Connects the devices of a communicator's ranks, collectively. */
kr_status kr_comm_device_connect(kr_comm *comm, const kr_call_header *h);

/* Queues a call whose operands are in device memory, after all ranks have agreed on it. */
kr_status kr_comm_device_call(const kr_job *job, const kr_call_header *h);

/* Ends the connections of a communicator, after its calls; of all of a broken world, at once. */
void kr_comm_device_leave(kr_comm *comm);
void kr_comm_device_abort(kr_world *world);

/* Looks after what is queued: a rank that is lost, or a time-out, breaks the world. */
void kr_comm_device_watch(kr_world *world);

/* ---- device_calls.c, of the caller ---- */

/* May this rank's device exchange data with others? NULL, or why not. *number: of the device on its machine. */
const char *kr_comm_device_find(const kr_ctx *ctx, uint64_t *number);

/* Has the context's device exchanges, if their library is there? */
bool kr_comm_device_may_exchange(const kr_ctx *ctx);

bool kr_comm_device_open(kr_world *world);
void kr_comm_device_close(kr_world *world);

/* Are the operands of the call in device memory that this context's device may exchange? Then the call begins. False after an
 * error. */
bool kr_comm_device_begin(kr_job *job, size_t from_bytes, size_t to_bytes);

/* What the context queues from now on comes after the call. */
void kr_comm_device_end(kr_job *job);

#endif
