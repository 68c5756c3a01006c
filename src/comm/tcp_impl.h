/* tcp_impl.h - the engine "tcp" inside: peers, their sockets and rings. */
#ifndef KR_COMM_TCP_IMPL_H
#define KR_COMM_TCP_IMPL_H

#include "comm/comm_impl.h"

#include <poll.h>

/* A ring in memory that two processes share: bytes in one direction. `head` counts bytes written, `tail` bytes read.
 * Who finds it full or empty says so and sleeps until a byte comes through the data socket. */
typedef struct tcp_ring {
    _Alignas(64) atomic_uint_least64_t head;
    atomic_int reader_waits;
    _Alignas(64) atomic_uint_least64_t tail;
    atomic_int writer_waits;
    _Alignas(64) char data[];
} tcp_ring;

typedef struct tcp_peer {
    int data, control;  /* sockets; -1: none, or closed by the peer */
    bool has_ended;     /* the data socket has been closed by the peer */
    tcp_ring *out, *in; /* NULL: bytes go through the data socket */
    void *mapped;
    int first_send, first_recv; /* moves that are not done; -1: none */
    char told[KR_ENGINE_TEXT];  /* the first `ntold` bytes of an error text from the control socket */
    size_t ntold;
} tcp_peer;

typedef struct kr_tcp {
    int rank, ranks;
    size_t ring_bytes, mapped_bytes;
    kr_engine_setup setup;
    tcp_peer *peers; /* [ranks] */
    struct pollfd *polls;
    int *polled; /* the peer of each, or -1 - peer for its control socket */
} kr_tcp;

/* tcp_meet.c: connects all ranks with one another. */
kr_moved kr_tcp_meet(kr_tcp *tcp, char *text);

/* tcp_ring.c: memory with two empty rings, as a file; -1 if the system has none. Maps it: the first ring is that of
 * the lower rank's bytes. */
int kr_tcp_ring_file(const kr_tcp *tcp);
bool kr_tcp_ring_map(kr_tcp *tcp, int rank, int file);

/* As many bytes as fit now; 0: none, and the peer will send a byte when there is a change. */
size_t kr_tcp_ring_put(const kr_tcp *tcp, tcp_peer *peer, const char *from, size_t bytes);
size_t kr_tcp_ring_get(const kr_tcp *tcp, tcp_peer *peer, char *to, size_t bytes);

#endif
