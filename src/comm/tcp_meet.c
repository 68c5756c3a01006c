/* tcp_meet.c - how ranks of the engine "tcp" find one another.
 *
 * Rank 0 listens where they meet: "host:port", or the path of a socket. Every other rank joins there and says where it
 * listens itself. When all have joined, rank 0 sends all of them these places, or the reason why it cannot be. Then
 * each rank connects to those below it, and accepts those above. What comes in is checked: a stranger is dropped.
 */
#define _GNU_SOURCE
#include "comm/tcp_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    PROTOCOL = 1,
    PLACE = 108,
    HELLO_SECONDS = 10,
    ANSWER_SECONDS = 5,
    RETRY_MS = 20,
    JOINS = 0,
    CONTROL = 0,
    DATA = 1
};

/* The first bytes of a connection. */
typedef struct hello {
    char magic[8];
    int32_t protocol, rank, ranks, kind;
    char place[PLACE]; /* where the rank listens */
} hello;
static const char magic[8] = "KRAITTCP";

/* The answer to those that join; the places of all ranks follow, if they can meet. */
typedef struct answer {
    int32_t is_ok, ranks;
    char text[512];
} answer;

typedef struct meeting {
    kr_tcp *tcp;
    bool is_path;
    char meet[256], own[PLACE];
    int listener;
    double deadline;
    char (*places)[PLACE]; /* [ranks]; NULL: no memory yet */
    char *text;
} meeting;

static kr_moved fail(const meeting *m, const char *format, ...) KR_PRINTF(2, 3);
static kr_moved fail(const meeting *m, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(m->text, KR_ENGINE_TEXT, format, list);
    va_end(list);
    return KR_MOVED_FAILED;
}

/* ---- sockets ---- */

static bool is_temporary(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

/* Waits for a socket; false after the deadline. */
static bool await(int fd, int events, double deadline)
{
    for (;;) {
        struct pollfd one = { .fd = fd, .events = (short)events };
        const double left = deadline - kr_clock();
        if (left <= 0) return false;
        const int n = poll(&one, 1, left > 3600 ? 3600000 : (int)(1e3 * left) + 1);
        if (n > 0) return true;
        if (n < 0 && errno != EINTR) return false;
    }
}

static bool send_whole(int fd, const void *data, size_t bytes, double deadline)
{
    const char *at = data;
    while (bytes) {
        const ssize_t sent = send(fd, at, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent > 0) {
            at += sent;
            bytes -= (size_t)sent;
        } else if (!is_temporary() || !await(fd, POLLOUT, deadline)) return false;
    }
    return true;
}

static bool recv_whole(int fd, void *data, size_t bytes, double deadline)
{
    char *at = data;
    while (bytes) {
        const ssize_t got = recv(fd, at, bytes, MSG_DONTWAIT);
        if (got > 0) {
            at += got;
            bytes -= (size_t)got;
        } else if (got == 0 || !is_temporary() || !await(fd, POLLIN, deadline)) return false;
    }
    return true;
}

/* Small messages leave at once; a host that has died is noticed within a minute. Options that a system lacks cost
 * speed. */
static int tuned(int fd, bool is_path)
{
    const int yes = 1, idle = 20, interval = 10, count = 4, unanswered_ms = 60000;
    if (fd < 0 || is_path) return fd;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered_ms, sizeof unanswered_ms);
    return fd;
}

static int new_socket(int family)
{
    return socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

static struct sockaddr_un address_of(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    memcpy(address.sun_path, path, strlen(path) + 1); /* checked by kr_tcp_meet */
    return address;
}

/* "host:port", "[::1]:port", or ":port" for all interfaces. */
static struct addrinfo *resolve(const char *place, bool listens)
{
    char host[256];
    snprintf(host, sizeof host, "%s", place);
    char *colon = strrchr(host, ':'), *name = host;
    if (!colon) return NULL;
    *colon = '\0';
    if (name[0] == '[' && colon > name && colon[-1] == ']') {
        colon[-1] = '\0';
        name++;
    }
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = listens ? AI_PASSIVE : 0 };
    struct addrinfo *found = NULL;
    return getaddrinfo(listens || !*name ? NULL : name, colon + 1, &hints, &found) == 0 ? found : NULL;
}

/* A connection; -1: none now (errno). */
static int connect_address(int family, const struct sockaddr *address, socklen_t bytes, double deadline)
{
    const int fd = new_socket(family);
    if (fd < 0) return -1;
    const int flags = fcntl(fd, F_GETFL);
    if (fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0) {
        int error = 0;
        socklen_t size = sizeof error;
        if (connect(fd, address, bytes) == 0) return fd;
        if (errno == EINPROGRESS && await(fd, POLLOUT, deadline) &&
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0)
            return fd;
        if (error) errno = error;
    }
    const int reason = errno;
    close(fd);
    errno = reason;
    return -1;
}

static int connect_once(const meeting *m, const char *place)
{
    if (m->is_path) {
        const struct sockaddr_un address = address_of(place);
        return connect_address(AF_UNIX, (const struct sockaddr *)&address, sizeof address, m->deadline);
    }
    int fd = -1;
    struct addrinfo *all = resolve(place, false);
    if (!all) errno = EADDRNOTAVAIL;
    for (const struct addrinfo *a = all; a && fd < 0; a = a->ai_next)
        fd = connect_address(a->ai_family, a->ai_addr, a->ai_addrlen, m->deadline);
    if (all) {
        const int reason = errno;
        freeaddrinfo(all);
        errno = reason;
    }
    return tuned(fd, m->is_path);
}

/* Tries until the other side listens. */
static int connect_to(const meeting *m, const char *place)
{
    for (;;) {
        const int fd = connect_once(m, place);
        if (fd >= 0 || kr_clock() > m->deadline) return fd;
        (void)poll(NULL, 0, RETRY_MS);
    }
}

/* ---- listening ---- */

/* A socket that a killed program has left is replaced. */
static int listen_path(const meeting *m, const char *path)
{
    const struct sockaddr_un address = address_of(path);
    for (int attempt = 0; attempt < 2; attempt++) {
        const int fd = new_socket(AF_UNIX);
        if (fd < 0) return -1;
        if (bind(fd, (const struct sockaddr *)&address, sizeof address) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
        const int reason = errno;
        close(fd);
        errno = reason;
        if (reason != EADDRINUSE || attempt) return -1;
        const int other = connect_once(m, path);
        if (other >= 0) close(other);
        errno = EADDRINUSE;
        if (other >= 0 || unlink(path) != 0) return -1;
    }
    return -1;
}

static int listen_port(const char *place)
{
    int fd = -1;
    const int yes = 1;
    struct addrinfo *all = resolve(place, true);
    if (!all) errno = EADDRNOTAVAIL;
    for (const struct addrinfo *a = all; a && fd < 0; a = a->ai_next) {
        fd = new_socket(a->ai_family);
        if (fd < 0) continue;
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) break;
        const int reason = errno;
        close(fd);
        errno = reason;
        fd = -1;
    }
    if (all) freeaddrinfo(all);
    return fd;
}

/* Where others reach this rank: the interface by which it reached rank 0, and the port that the system chose. */
static bool own_place(meeting *m, int joined)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    char host[64], port[16];
    if (m->is_path || m->listener < 0) return true;
    if (getsockname(joined, (struct sockaddr *)&address, &bytes) != 0 ||
        getnameinfo((struct sockaddr *)&address, bytes, host, sizeof host, NULL, 0, NI_NUMERICHOST) != 0)
        return false;
    bytes = sizeof address;
    if (getsockname(m->listener, (struct sockaddr *)&address, &bytes) != 0 ||
        getnameinfo((struct sockaddr *)&address, bytes, NULL, 0, port, sizeof port, NI_NUMERICSERV) != 0)
        return false;
    snprintf(m->own, sizeof m->own, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
    return true;
}

/* ---- hellos ---- */

static bool say_hello(const meeting *m, int fd, int kind)
{
    hello h = { .protocol = PROTOCOL, .rank = m->tcp->rank, .ranks = m->tcp->ranks, .kind = kind };
    memcpy(h.magic, magic, sizeof magic);
    memcpy(h.place, m->own, sizeof h.place);
    return send_whole(fd, &h, sizeof h, m->deadline);
}

/* The next connection of a rank, with its hello. -1 after the deadline. */
static int accept_hello(const meeting *m, hello *h)
{
    while (await(m->listener, POLLIN, m->deadline)) {
        const int fd = tuned(accept4(m->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), m->is_path);
        if (fd < 0) continue;
        const double soon = kr_clock() + HELLO_SECONDS;
        const bool ok = recv_whole(fd, h, sizeof *h, soon < m->deadline ? soon : m->deadline) &&
                        memcmp(h->magic, magic, sizeof magic) == 0 && h->protocol == PROTOCOL &&
                        (h->kind == CONTROL || h->kind == DATA) && memchr(h->place, 0, sizeof h->place);
        if (ok) return fd;
        close(fd);
    }
    return -1;
}

/* Shared memory of the two ranks, which the one that connects sends through the data socket; without it bytes take the
 * socket. */
static bool send_ring(const meeting *m, int rank, int fd)
{
    if (!m->is_path) return true;
    const int file = kr_tcp_ring_file(m->tcp);
    const bool maps = file >= 0 && kr_tcp_ring_map(m->tcp, rank, file);
    char byte = maps ? 'm' : 's';
    struct iovec part = { .iov_base = &byte, .iov_len = 1 };
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = { 0 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    if (maps) {
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(head), &file, sizeof file);
    }
    const bool ok = sendmsg(fd, &message, MSG_NOSIGNAL) == 1;
    if (file >= 0) close(file);
    return ok;
}

static bool recv_ring(const meeting *m, int rank, int fd)
{
    if (!m->is_path) return true;
    char byte = 0;
    struct iovec part = { .iov_base = &byte, .iov_len = 1 };
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = { 0 };
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control
    };
    if (!await(fd, POLLIN, m->deadline) || recvmsg(fd, &message, MSG_CMSG_CLOEXEC) != 1) return false;
    const struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    int file = -1;
    if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS &&
        head->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(&file, CMSG_DATA(head), sizeof file);
    const bool ok = byte == 's' || (byte == 'm' && file >= 0 && kr_tcp_ring_map(m->tcp, rank, file));
    if (file >= 0) close(file);
    return ok;
}

/* ---- meeting ---- */

static bool store(const meeting *m, int rank, int kind, int fd)
{
    tcp_peer *peer = &m->tcp->peers[rank];
    int *at = kind == DATA ? &peer->data : &peer->control;
    if (*at >= 0) return false;
    *at = fd;
    return true;
}

/* Rank 0 answers all that have joined. */
static void answer_all(const meeting *m, bool is_ok)
{
    const kr_tcp *tcp = m->tcp;
    answer a = { .is_ok = is_ok, .ranks = tcp->ranks };
    if (!is_ok) snprintf(a.text, sizeof a.text, "%.500s", m->text);
    for (int i = 1; i < tcp->ranks; i++) {
        const int fd = tcp->peers[i].control;
        if (fd >= 0 && send_whole(fd, &a, sizeof a, m->deadline) && is_ok)
            (void)send_whole(fd, m->places, (size_t)tcp->ranks * PLACE, m->deadline);
    }
}

/* "1, 2 and 5" of those that have not joined. */
static kr_moved fail_missing(const meeting *m)
{
    char list[256] = "";
    size_t at = 0;
    int count = 0;
    for (int i = 1; i < m->tcp->ranks && at + 16 < sizeof list; i++)
        if (m->tcp->peers[i].control < 0)
            at += (size_t)snprintf(list + at, sizeof list - at, count++ ? ", %d" : "%d", i);
    return fail(m, "%s %s of %d did not come to %s within %g s", count == 1 ? "rank" : "ranks", list, m->tcp->ranks,
                m->meet, m->tcp->setup.timeout);
}

/* Rank 0: all others join. */
static kr_moved gather_ranks(meeting *m)
{
    kr_tcp *tcp = m->tcp;
    for (int joined = 1; joined < tcp->ranks;) {
        hello h;
        const int fd = accept_hello(m, &h);
        if (fd < 0) return fail_missing(m);
        const bool is_rank = h.ranks == tcp->ranks && h.rank > 0 && h.rank < tcp->ranks && h.kind == JOINS;
        if (is_rank && store(m, h.rank, CONTROL, fd)) {
            memcpy(m->places[h.rank], h.place, PLACE);
            joined++;
            continue;
        }
        fail(
            m,
            is_rank
                ? "two processes say that they are rank %d of %d at %s; give each job a meeting place that no other has"
                : "a process says that it is rank %d of %d at %s, where the number of ranks differs; give each job a "
                  "meeting place that no other has",
            h.rank, h.ranks, m->meet);
        const answer a = { .is_ok = 0 };
        answer own = a;
        snprintf(own.text, sizeof own.text, "%.500s", m->text);
        (void)send_whole(fd, &own, sizeof own, m->deadline);
        close(fd);
        return KR_MOVED_FAILED;
    }
    return KR_MOVED_ALL;
}

/* The others: join, and read where all listen. */
static kr_moved join(meeting *m)
{
    kr_tcp *tcp = m->tcp;
    const int fd = connect_to(m, m->meet);
    if (fd < 0)
        return fail(m, "rank %d of %d finds no rank 0 at %s within %g s: %s", tcp->rank, tcp->ranks, m->meet,
                    tcp->setup.timeout, strerror(errno));
    store(m, 0, CONTROL, fd);
    answer a;
    if (!own_place(m, fd) || !say_hello(m, fd, JOINS) || !recv_whole(fd, &a, sizeof a, m->deadline + ANSWER_SECONDS))
        return fail(
            m, "rank %d of %d: rank 0 at %s did not answer, or has ended; not all ranks came, or its error says more",
            tcp->rank, tcp->ranks, m->meet);
    a.text[sizeof a.text - 1] = '\0';
    if (!a.is_ok) return fail(m, "%s", a.text);
    if (a.ranks != tcp->ranks || !recv_whole(fd, m->places, (size_t)tcp->ranks * PLACE, m->deadline))
        return fail(m, "rank %d of %d: the answer of rank 0 at %s is cut off", tcp->rank, tcp->ranks, m->meet);
    for (int i = 0; i < tcp->ranks; i++) m->places[i][PLACE - 1] = '\0';
    return KR_MOVED_ALL;
}

static kr_moved connect_lower(const meeting *m)
{
    const kr_tcp *tcp = m->tcp;
    for (int i = 0; i < tcp->rank; i++) {
        for (int kind = i ? CONTROL : DATA; kind <= DATA; kind++) {
            const int fd = connect_to(m, i ? m->places[i] : m->meet);
            if (fd < 0 || !say_hello(m, fd, kind) || (kind == DATA && !send_ring(m, i, fd))) {
                if (fd >= 0) close(fd);
                return fail(m, "rank %d of %d cannot connect to rank %d at %s: %s", tcp->rank, tcp->ranks, i,
                            i ? m->places[i] : m->meet, strerror(errno));
            }
            store(m, i, kind, fd);
        }
    }
    return KR_MOVED_ALL;
}

static kr_moved accept_higher(const meeting *m)
{
    const kr_tcp *tcp = m->tcp;
    int left = (tcp->ranks - 1 - tcp->rank) * (tcp->rank ? 2 : 1);
    while (left > 0) {
        hello h;
        const int fd = accept_hello(m, &h);
        if (fd < 0)
            return fail(m, "rank %d of %d: not all higher ranks connected within %g s", tcp->rank, tcp->ranks,
                        tcp->setup.timeout);
        const bool ok =
            h.ranks == tcp->ranks && h.rank > tcp->rank && h.rank < tcp->ranks && store(m, h.rank, h.kind, fd);
        if (!ok) close(fd);
        else if (h.kind == DATA && !recv_ring(m, h.rank, fd))
            return fail(m, "rank %d of %d: rank %d broke off while connecting", tcp->rank, tcp->ranks, h.rank);
        left -= ok;
    }
    return KR_MOVED_ALL;
}

static kr_moved start_listening(meeting *m)
{
    const kr_tcp *tcp = m->tcp;
    const char *port = tcp->rank == 0 ? m->meet : "0.0.0.0:0";
    if (tcp->rank == tcp->ranks - 1) return KR_MOVED_ALL; /* none connects to the last one */
    m->listener = m->is_path ? listen_path(m, m->own) : listen_port(port);
    if (m->listener < 0)
        return fail(m, "rank %d of %d cannot listen at %s: %s", tcp->rank, tcp->ranks, m->is_path ? m->own : port,
                    strerror(errno));
    (void)fcntl(m->listener, F_SETFL, fcntl(m->listener, F_GETFL) | O_NONBLOCK);
    return KR_MOVED_ALL;
}

static kr_moved meet_all(meeting *m)
{
    const kr_tcp *tcp = m->tcp;
    /* A path is known before it is listened at: only ranks that belong to the job listen. */
    const bool joins_first = m->is_path && tcp->rank > 0;
    kr_moved moved = joins_first ? KR_MOVED_ALL : start_listening(m);
    if (moved == KR_MOVED_ALL) moved = tcp->rank == 0 ? gather_ranks(m) : join(m);
    if (tcp->rank == 0) answer_all(m, moved == KR_MOVED_ALL);
    if (moved == KR_MOVED_ALL && joins_first) moved = start_listening(m);
    if (moved == KR_MOVED_ALL) moved = connect_lower(m);
    if (moved == KR_MOVED_ALL) moved = accept_higher(m);
    return moved;
}

kr_moved kr_tcp_meet(kr_tcp *tcp, char *text)
{
    const kr_engine_setup *setup = &tcp->setup;
    const size_t bytes = (size_t)tcp->ranks * PLACE;
    meeting m = { .tcp = tcp, .listener = -1, .deadline = kr_clock() + setup->timeout, .text = text };
    m.is_path = strchr(setup->meet, '/') != NULL;
    snprintf(m.meet, sizeof m.meet, "%s", setup->meet);
    if (m.is_path) {
        const int length = tcp->rank ? snprintf(m.own, sizeof m.own, "%.255s.%d", m.meet, tcp->rank)
                                     : snprintf(m.own, sizeof m.own, "%s", m.meet);
        if (length >= PLACE || strlen(m.meet) >= PLACE)
            return fail(&m, "the path of the socket, %s, is longer than %d bytes; choose a shorter one", m.meet,
                        PLACE - 9);
    } else if (!strchr(m.meet, ':')) {
        return fail(&m, "ranks meet at \"%s\", which is neither host:port nor the path of a socket, with a '/'",
                    m.meet);
    }
    m.places = setup->alloc(setup->user, bytes);
    if (!m.places) return KR_MOVED_NO_MEMORY;
    const kr_moved moved = meet_all(&m);
    if (m.listener >= 0) {
        close(m.listener);
        if (m.is_path) (void)unlink(m.own);
    }
    setup->free(setup->user, m.places, bytes);
    return moved;
}
