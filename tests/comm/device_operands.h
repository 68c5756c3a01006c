/* device_operands.h - the calls of comm_checks.h with operands in device memory: to be included before any other header of
 * tests/comm. kr_comm_begin copies host operands to the device, and kr_comm_end what has changed back.
 */
#ifndef KR_TESTS_COMM_DEVICE_OPERANDS_H
#define KR_TESTS_COMM_DEVICE_OPERANDS_H

/* The functions of these headers call these two. */
#define kr_comm_begin begin_on_device
#define kr_comm_end end_on_device
#include "tests/comm/comm_checks.h"
#undef kr_comm_begin
#undef kr_comm_end
KR_API kr_ticket kr_comm_begin(kr_comm *comm, const kr_comm_call *call);
KR_API kr_status kr_comm_end(kr_comm *comm, kr_ticket ticket);

#include "comm/comm_impl.h"
#include "device/device.h"

#include <stdlib.h>

typedef struct device_operands {
    kr_ticket ticket; /* 0: not used */
    void *from, *to;  /* on the device */
    void *host;
    size_t from_bytes, to_bytes;
} device_operands;

enum { OPERANDS_MOST = 16 };
static _Thread_local device_operands operands[OPERANDS_MOST];
static _Thread_local int64_t kept_on_device; /* calls whose operands stayed there */

static inline void measure_operands(const kr_comm *comm, const kr_comm_call *c, size_t *from, size_t *to)
{
    const size_t n = (size_t)c->n * kr_dtype_bytes(c->dtype), ranks = (size_t)comm->ranks;
    *from = *to = 0;
    if (c->op == KR_COMM_SUM || c->op == KR_COMM_SUM_SCATTER) *to = n;
    if (c->op == KR_COMM_SUM_SCATTER) *from = n * ranks;
    if (c->op == KR_COMM_SUM_SHARES || c->op == KR_COMM_GATHER_SHARES)
        for (int64_t i = 0; i < c->n_shares; i++) {
            const size_t end = (size_t)(c->shares[i].first + c->shares[i].count) * kr_dtype_bytes(c->dtype);
            if (end > *to) *to = end;
        }
    if (c->op == KR_COMM_BROADCAST) *to = c->bytes;
    if (c->op == KR_COMM_GATHER || c->op == KR_COMM_ALL_TO_ALL) *to = c->bytes * ranks;
    if (c->op == KR_COMM_GATHER) *from = c->bytes;
    if (c->op == KR_COMM_ALL_TO_ALL) *from = *to;
    if (c->op == KR_COMM_EXCHANGE && c->peer >= 0) *from = c->bytes;
    if (c->op == KR_COMM_EXCHANGE && c->source >= 0) *to = c->source_bytes;
}

static inline void *to_device(kr_ctx *ctx, const void *host, size_t bytes)
{
    if (bytes == 0 || kr_on_device(ctx, host)) return NULL;
    void *p = kr_memory_alloc(kr_float_memory(ctx), bytes);
    if (!p || !kr_store(ctx, p, host, bytes)) exit(2);
    return p;
}

static inline void release_operands(const kr_comm *comm, device_operands *o)
{
    if (o->from) kr_memory_free(kr_float_memory(comm->ctx), o->from, o->from_bytes);
    if (o->to) kr_memory_free(kr_float_memory(comm->ctx), o->to, o->to_bytes);
    *o = (device_operands){ 0 };
}

kr_ticket begin_on_device(kr_comm *comm, const kr_comm_call *call)
{
    kr_comm_call moved = *call;
    device_operands *o = operands;
    while (o < operands + OPERANDS_MOST && o->ticket) o++;
    if (o == operands + OPERANDS_MOST) exit(2);
    measure_operands(comm, call, &o->from_bytes, &o->to_bytes);
    o->host = call->to;
    if ((o->from = to_device(comm->ctx, call->from, o->from_bytes))) moved.from = o->from;
    if ((o->to = to_device(comm->ctx, call->to, o->to_bytes))) moved.to = o->to;
    o->ticket = kr_comm_begin(comm, &moved);
    for (const kr_job *job = comm->jobs; job; job = job->next)
        kept_on_device += job->ticket == o->ticket && job->device_call != NULL;
    if (!o->ticket) release_operands(comm, o);
    return o->ticket;
}

kr_status end_on_device(kr_comm *comm, kr_ticket ticket)
{
    device_operands *o = operands;
    const kr_status status = kr_comm_end(comm, ticket);
    while (o < operands + OPERANDS_MOST && (o->ticket != ticket || ticket == 0)) o++;
    if (o == operands + OPERANDS_MOST) return status;
    if (o->to && status == KR_OK) kr_fetch(comm->ctx, o->host, o->to, o->to_bytes);
    release_operands(comm, o);
    return status;
}

#endif
