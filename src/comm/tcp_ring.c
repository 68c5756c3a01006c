/* tcp_ring.c - rings of shared memory between two ranks of one host. */
#define _GNU_SOURCE
#include "comm/tcp_impl.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Bytes that are copied before the other side sees them: it reads while the next ones are copied. */
enum { PORTION = 64 << 10 };

int kr_tcp_ring_file(const kr_tcp *tcp)
{
#ifdef SYS_memfd_create
    const int file = (int)syscall(SYS_memfd_create, "krait", 1u /* MFD_CLOEXEC */);
    if (file >= 0 && ftruncate(file, (off_t)tcp->mapped_bytes) == 0) return file;
    if (file >= 0) close(file);
#else
    (void)tcp;
#endif
    return -1;
}

bool kr_tcp_ring_map(kr_tcp *tcp, int rank, int file)
{
    struct stat found;
    tcp_peer *peer = &tcp->peers[rank];
    if (fstat(file, &found) != 0 || (size_t)found.st_size != tcp->mapped_bytes) return false;
    char *memory = mmap(NULL, tcp->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) return false;
    tcp_ring *lower = (tcp_ring *)memory, *higher = (tcp_ring *)(memory + tcp->mapped_bytes / 2);
    peer->mapped = memory;
    peer->out = tcp->rank < rank ? lower : higher;
    peer->in = tcp->rank < rank ? higher : lower;
    return true;
}

/* Wakes the peer. If the socket is full the peer has bytes to read already; if it is closed the next poll finds that.
 * */
static void wake(const tcp_peer *peer, atomic_int *waits)
{
    if (!atomic_exchange(waits, 0) || peer->data < 0) return;
    const ssize_t sent = send(peer->data, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)sent;
}

/* Bytes of the ring at a position up to its end. */
static size_t to_end(const kr_tcp *tcp, uint64_t at)
{
    return tcp->ring_bytes - (size_t)(at % tcp->ring_bytes);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t kr_tcp_ring_put(const kr_tcp *tcp, tcp_peer *peer, const char *from, size_t bytes)
{
    tcp_ring *ring = peer->out;
    const uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    uint64_t used = head - atomic_load(&ring->tail);
    if (used >= tcp->ring_bytes) {
        atomic_store(&ring->writer_waits, 1);
        used = head - atomic_load(&ring->tail);
        if (used >= tcp->ring_bytes) return 0;
    }
    const size_t count = least(least(bytes, PORTION), least(tcp->ring_bytes - (size_t)used, to_end(tcp, head)));
    memcpy(ring->data + head % tcp->ring_bytes, from, count);
    atomic_store(&ring->head, head + count);
    wake(peer, &ring->reader_waits);
    return count;
}

size_t kr_tcp_ring_get(const kr_tcp *tcp, tcp_peer *peer, char *to, size_t bytes)
{
    tcp_ring *ring = peer->in;
    const uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    uint64_t used = atomic_load(&ring->head) - tail;
    if (used == 0) {
        atomic_store(&ring->reader_waits, 1);
        used = atomic_load(&ring->head) - tail;
        if (used == 0) return 0;
    }
    const size_t count = least(least(bytes, PORTION), least((size_t)used, to_end(tcp, tail)));
    memcpy(to, ring->data + tail % tcp->ring_bytes, count);
    atomic_store(&ring->tail, tail + count);
    wake(peer, &ring->writer_waits);
    return count;
}
