/* engine_tcp.c - the engine of one host, and of tests: sockets between all ranks, and rings of shared memory.
 *
 * Two ranks have a data socket and a control socket. With rings the data socket only wakes; without them, between
 * hosts, it carries the bytes. The control socket carries one error text at most. A rank that ends closes both, which
 * the system does for one that is killed.
 */
#define _GNU_SOURCE
#include "comm/tcp_impl.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* Sleeps are cut, to look at `cancel`; an ended rank's text may come after its end. */
enum { SLEEP_MS = 100, LAST_TEXT_MS = 200 };

/* ---- error texts ---- */

/* Reads what the control socket has. Is the text whole? */
static bool read_text(tcp_peer *peer)
{
    while (peer->control >= 0 && peer->ntold < sizeof peer->told) {
        const ssize_t got =
            recv(peer->control, peer->told + peer->ntold, sizeof peer->told - peer->ntold, MSG_DONTWAIT);
        if (got > 0) {
            peer->ntold += (size_t)got;
        } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
            break;
        } else {
            close(peer->control);
            peer->control = -1;
        }
    }
    return peer->ntold == sizeof peer->told;
}

static kr_moved take_text(const tcp_peer *peer, kr_moves *moves)
{
    memcpy(moves->text, peer->told, sizeof moves->text);
    moves->text[sizeof moves->text - 1] = '\0';
    return KR_MOVED_TOLD;
}

/* A rank has ended. If it, or one that saw that, has told why, the text is the reason. */
static kr_moved take_end(kr_tcp *tcp, int rank, kr_moves *moves)
{
    const double start = kr_clock();
    moves->lost = rank;
    for (;;) {
        int n = 0;
        for (int i = 0; i < tcp->ranks; i++) {
            if (i == tcp->rank) continue;
            if (read_text(&tcp->peers[i])) return take_text(&tcp->peers[i], moves);
            if (tcp->peers[i].control >= 0)
                tcp->polls[n++] = (struct pollfd){ .fd = tcp->peers[i].control, .events = POLLIN };
        }
        const int left = LAST_TEXT_MS - (int)(1e3 * (kr_clock() - start));
        if (n == 0 || left <= 0) return KR_MOVED_LOST;
        (void)poll(tcp->polls, (nfds_t)n, left);
    }
}

static void tell(void *self, const char *text)
{
    kr_tcp *tcp = self;
    char record[KR_ENGINE_TEXT] = "";
    strncpy(record, text, sizeof record - 1);
    for (int i = 0; i < tcp->ranks; i++) {
        if (i == tcp->rank || tcp->peers[i].control < 0) continue;
        const ssize_t sent = send(tcp->peers[i].control, record, sizeof record, MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)sent; /* a rank that has ended needs no text */
    }
}

/* ---- bytes ---- */

/* Some bytes of a move, in its direction. -1: the rank has ended. */
static ssize_t pass(kr_tcp *tcp, tcp_peer *peer, const kr_move *move, bool sends)
{
    char *at = move->data + move->done;
    const size_t left = move->bytes - move->done;
    if (peer->out) {
        const size_t count = sends ? kr_tcp_ring_put(tcp, peer, at, left) : kr_tcp_ring_get(tcp, peer, at, left);
        return count == 0 && peer->has_ended ? -1 : (ssize_t)count;
    }
    const ssize_t count =
        sends ? send(peer->data, at, left, MSG_DONTWAIT | MSG_NOSIGNAL) : recv(peer->data, at, left, MSG_DONTWAIT);
    if (count > 0) return count;
    return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) ? 0 : -1;
}

/* Continues the moves of a peer in one direction. 1: bytes moved; 0: none; -1: the rank has ended. */
static int advance(kr_tcp *tcp, tcp_peer *peer, kr_move *list, bool sends)
{
    int *first = sends ? &peer->first_send : &peer->first_recv, result = 0;
    while (*first >= 0) {
        kr_move *move = &list[*first];
        const ssize_t count = pass(tcp, peer, move, sends);
        if (count <= 0) return count < 0 ? -1 : result;
        move->done += (size_t)count;
        result = 1;
        if (move->done == move->bytes) *first = move->next;
    }
    return result;
}

/* Chains the moves of each peer, in order. */
static void chain(kr_tcp *tcp, kr_moves *moves)
{
    for (int i = 0; i < tcp->ranks; i++) tcp->peers[i].first_send = tcp->peers[i].first_recv = -1;
    for (int i = moves->nsends; i-- > 0;) {
        moves->sends[i].next = tcp->peers[moves->sends[i].rank].first_send;
        tcp->peers[moves->sends[i].rank].first_send = i;
    }
    for (int i = moves->nrecvs; i-- > 0;) {
        moves->recvs[i].next = tcp->peers[moves->recvs[i].rank].first_recv;
        tcp->peers[moves->recvs[i].rank].first_recv = i;
    }
}

/* With rings the data socket has a byte for each waking, and the end. */
static void drain(tcp_peer *peer)
{
    char bytes[256];
    ssize_t got;
    while ((got = recv(peer->data, bytes, sizeof bytes, MSG_DONTWAIT)) > 0) continue;
    if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) peer->has_ended = true;
}

static void add_poll(kr_tcp *tcp, int *n, int fd, int events, int peer)
{
    tcp->polls[*n] = (struct pollfd){ .fd = fd, .events = (short)events };
    tcp->polled[(*n)++] = peer;
}

/* Sleeps until something happens. KR_MOVED_TOLD if a rank has told an error. */
static kr_moved sleep_for(kr_tcp *tcp, kr_moves *moves, int milliseconds)
{
    int n = 0;
    for (int i = 0; i < tcp->ranks; i++) {
        const tcp_peer *peer = &tcp->peers[i];
        if (i == tcp->rank) continue;
        const int events = (peer->first_recv >= 0 ? POLLIN : 0) | (peer->first_send >= 0 ? POLLOUT : 0);
        if (events && !peer->has_ended) add_poll(tcp, &n, peer->data, peer->out ? POLLIN : events, i);
        if (peer->control >= 0) add_poll(tcp, &n, peer->control, POLLIN, -1 - i);
    }
    if (poll(tcp->polls, (nfds_t)n, milliseconds) <= 0) return KR_MOVED_ALL;
    for (int i = 0; i < n; i++) {
        if (!tcp->polls[i].revents) continue;
        const bool is_control = tcp->polled[i] < 0;
        tcp_peer *peer = &tcp->peers[is_control ? -1 - tcp->polled[i] : tcp->polled[i]];
        if (is_control && read_text(peer)) return take_text(peer, moves);
        if (!is_control && peer->out) drain(peer);
    }
    return KR_MOVED_ALL;
}

/* Has a rank told an error? What it has sent before does not hide it. */
static bool find_text(kr_tcp *tcp, kr_moves *moves)
{
    int n = 0;
    for (int i = 0; i < tcp->ranks; i++)
        if (tcp->peers[i].control >= 0) add_poll(tcp, &n, tcp->peers[i].control, POLLIN, i);
    if (poll(tcp->polls, (nfds_t)n, 0) <= 0) return false;
    for (int i = 0; i < n; i++) {
        tcp_peer *peer = &tcp->peers[tcp->polled[i]];
        if (!tcp->polls[i].revents || !read_text(peer)) continue;
        take_text(peer, moves);
        return true;
    }
    return false;
}

static kr_moved make_moves(void *self, kr_moves *moves)
{
    kr_tcp *tcp = self;
    double last = kr_clock();
    if (find_text(tcp, moves)) return KR_MOVED_TOLD;
    chain(tcp, moves);
    for (;;) {
        bool has_moved = false, is_done = true;
        for (int i = 0; i < tcp->ranks; i++) {
            tcp_peer *peer = &tcp->peers[i];
            const int sent = advance(tcp, peer, moves->sends, true), got = advance(tcp, peer, moves->recvs, false);
            if (sent < 0 || got < 0) return take_end(tcp, i, moves);
            has_moved = has_moved || sent > 0 || got > 0;
            is_done = is_done && peer->first_send < 0 && peer->first_recv < 0;
        }
        if (is_done) return KR_MOVED_ALL;
        const double now = kr_clock();
        if (has_moved) {
            last = now;
            continue;
        }
        if (atomic_load(tcp->setup.cancel)) return KR_MOVED_CANCELLED;
        if (now - last > moves->timeout) return KR_MOVED_TIMEOUT;
        const double left = 1e3 * (last + moves->timeout - now) + 1;
        const kr_moved moved = sleep_for(tcp, moves, left < SLEEP_MS ? (int)left : SLEEP_MS);
        if (moved != KR_MOVED_ALL) return moved;
    }
}

static kr_moved check(void *self, kr_moves *moves)
{
    kr_tcp *tcp = self;
    char byte;
    if (find_text(tcp, moves)) return KR_MOVED_TOLD;
    for (int i = 0; i < tcp->ranks; i++) {
        tcp_peer *peer = &tcp->peers[i];
        if (i == tcp->rank) continue;
        if (peer->out) drain(peer);
        else if (recv(peer->data, &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT) == 0) peer->has_ended = true;
        if (!peer->has_ended) continue;
        moves->lost = i;
        return KR_MOVED_LOST;
    }
    return KR_MOVED_ALL;
}

/* ---- life ---- */

static size_t peers_bytes(const kr_tcp *tcp)
{
    return (size_t)tcp->ranks * (sizeof(tcp_peer) + 2 * (sizeof(struct pollfd) + sizeof(int)));
}

static void close_tcp(void *self, bool is_broken)
{
    kr_tcp *tcp = self;
    const kr_engine_setup setup = tcp->setup;
    (void)is_broken;
    for (int i = 0; tcp->peers && i < tcp->ranks; i++) {
        tcp_peer *peer = &tcp->peers[i];
        if (peer->data >= 0) close(peer->data);
        if (peer->control >= 0) close(peer->control);
        if (peer->mapped) munmap(peer->mapped, tcp->mapped_bytes);
    }
    if (tcp->peers) setup.free(setup.user, tcp->peers, peers_bytes(tcp));
    setup.free(setup.user, tcp, sizeof *tcp);
}

/* Rings of all ranks of a host together stay within some hundred MiB. */
static size_t ring_bytes(int ranks)
{
    return ranks <= 8 ? 512 << 10 : ranks <= 32 ? 256 << 10 : 64 << 10;
}

static kr_moved open_tcp(const kr_engine_setup *setup, void **self, int *rank, int *ranks, char *text)
{
    kr_tcp *tcp = setup->alloc(setup->user, sizeof *tcp);
    if (!tcp) return KR_MOVED_NO_MEMORY;
    *tcp = (kr_tcp){ .rank = setup->rank, .ranks = setup->ranks, .setup = *setup };
    tcp->ring_bytes = ring_bytes(tcp->ranks);
    tcp->mapped_bytes = 2 * (sizeof(tcp_ring) + tcp->ring_bytes);
    char *memory = setup->alloc(setup->user, peers_bytes(tcp));
    kr_moved moved = KR_MOVED_NO_MEMORY;
    if (memory) {
        tcp->peers = (tcp_peer *)memory;
        tcp->polls = (struct pollfd *)(tcp->peers + tcp->ranks);
        tcp->polled = (int *)(tcp->polls + 2 * tcp->ranks);
        for (int i = 0; i < tcp->ranks; i++) tcp->peers[i].data = tcp->peers[i].control = -1;
        moved = tcp->ranks == 1 ? KR_MOVED_ALL : kr_tcp_meet(tcp, text);
    }
    if (moved != KR_MOVED_ALL) {
        close_tcp(tcp, true);
        return moved;
    }
    *self = tcp;
    *rank = tcp->rank;
    *ranks = tcp->ranks;
    return KR_MOVED_ALL;
}

const kr_engine *kr_engine_tcp(void)
{
    static const kr_engine engine = { .version = KR_ENGINE_VERSION,
                                      .name = "tcp",
                                      .open = open_tcp,
                                      .move = make_moves,
                                      .tell = tell,
                                      .close = close_tcp,
                                      .check = check };
    return &engine;
}
