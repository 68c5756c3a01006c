/* comm_checks.h - what every engine has to do, as calls of one rank: the same for threads of a test program and for
 * processes that a launcher starts. Each rank knows what all ranks have, so that it can compute what it must get.
 */
#ifndef KR_TESTS_COMM_COMM_CHECKS_H
#define KR_TESTS_COMM_COMM_CHECKS_H

#include <krait/comm.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reports a failure of a rank: the test program counts it, another program prints it. */
typedef void comm_report_fn(const char *text);

typedef struct comm_check {
    kr_comm *comm;
    uint64_t seed;
    int64_t largest; /* elements of the largest sum */
    comm_report_fn *report;
} comm_check;

#define COMM_CHECK(c, cond, ...)                                                                                       \
    do {                                                                                                               \
        if (!(cond)) comm_failed((c), __LINE__, __VA_ARGS__);                                                          \
    } while (0)

static inline void comm_failed(const comm_check *c, int line, const char *format, ...) KR_PRINTF(3, 4);
static inline void comm_failed(const comm_check *c, int line, const char *format, ...)
{
    char what[400], text[600];
    __builtin_va_list list;
    __builtin_va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    __builtin_va_end(list);
    snprintf(text, sizeof text, "comm_checks.h:%d: seed %llu, %s: %s", line, (unsigned long long)c->seed,
             kr_comm_text(c->comm), what);
    c->report(text);
}

/* ---- data ---- */

/* Element i of a rank's operand: of all magnitudes, so that every order of additions has other bits. */
static inline double comm_value(const comm_check *c, int rank, int64_t i)
{
    uint64_t x = c->seed * UINT64_C(0x9E3779B97F4A7C15) + (uint64_t)rank * UINT64_C(0xBF58476D1CE4E5B9) +
                 (uint64_t)i * UINT64_C(0x94D049BB133111EB);
    x ^= x >> 31;
    x *= UINT64_C(0x7FB5D329728EA185);
    x ^= x >> 27;
    x *= UINT64_C(0x81DADEF4BC2DD44D);
    x ^= x >> 33;
    const double mantissa = (double)(int64_t)(x >> 12) / 9007199254740992.0 - 0.25;
    return ldexp(mantissa, (int)(x & 31) - 16);
}

static inline void comm_set(kr_dtype dtype, void *x, int64_t i, double value)
{
    if (dtype == KR_DTYPE_F64) ((double *)x)[i] = value;
    else ((float *)x)[i] = (float)value;
}

/* The sum of `count` ranks from `first` on, by the definition in comm.h. */
static inline double comm_tree_f64(const comm_check *c, int first, int count, int64_t i)
{
    int most = 1;
    if (count == 1) return comm_value(c, first, i);
    while (2 * most <= count) most *= 2;
    if (most == count) return comm_tree_f64(c, first, count / 2, i) + comm_tree_f64(c, first + count / 2, count / 2, i);
    double sum = comm_tree_f64(c, first, most, i);
    for (int at = most; at < count; at += most) {
        while (at + most > count) most /= 2;
        sum += comm_tree_f64(c, first + at, most, i);
    }
    return sum;
}
static inline float comm_tree_f32(const comm_check *c, int first, int count, int64_t i)
{
    int most = 1;
    if (count == 1) return (float)comm_value(c, first, i);
    while (2 * most <= count) most *= 2;
    if (most == count) return comm_tree_f32(c, first, count / 2, i) + comm_tree_f32(c, first + count / 2, count / 2, i);
    float sum = comm_tree_f32(c, first, most, i);
    for (int at = most; at < count; at += most) {
        while (at + most > count) most /= 2;
        sum += comm_tree_f32(c, first + at, most, i);
    }
    return sum;
}

static inline void *comm_operand(const comm_check *c, kr_dtype dtype, int64_t n, int rank)
{
    void *x = calloc((size_t)n + 1, kr_dtype_bytes(dtype));
    if (!x) exit(2);
    for (int64_t i = 0; i < n; i++) comm_set(dtype, x, i, comm_value(c, rank, i));
    return x;
}

/* Elements [first, first + n) of x are the sums of all ranks, to the bit. */
static inline void comm_check_sum(const comm_check *c, const char *what, kr_dtype dtype, const void *x, int64_t first,
                                  int64_t n)
{
    const int ranks = kr_comm_size(c->comm);
    for (int64_t i = 0; i < n; i++) {
        const float f = dtype == KR_DTYPE_F64 ? 0 : comm_tree_f32(c, 0, ranks, first + i);
        const double d = dtype == KR_DTYPE_F64 ? comm_tree_f64(c, 0, ranks, first + i) : (double)f;
        const double got = dtype == KR_DTYPE_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
        if (memcmp(&got, &d, sizeof d) == 0) continue;
        COMM_CHECK(c, false, "%s of %lld %s: element %lld is %.17g, not %.17g", what, (long long)n,
                   kr_dtype_name(dtype), (long long)(first + i), got, d);
        return;
    }
}

/* ---- sums ---- */

static inline void comm_sums(const comm_check *c, kr_dtype dtype, int64_t n)
{
    const int rank = kr_comm_rank(c->comm), ranks = kr_comm_size(c->comm);
    const size_t element = kr_dtype_bytes(dtype);
    char *x = comm_operand(c, dtype, n, rank), *y = comm_operand(c, dtype, n, rank);
    COMM_CHECK(c, kr_comm_sum(c->comm, x, n, dtype) == KR_OK, "sum of %lld fails", (long long)n);
    comm_check_sum(c, "sum", dtype, x, 0, n);
    /* Pieces have the bits of the whole. */
    kr_ticket tickets[5];
    for (int i = 0; i < 5; i++) {
        const int64_t from = n * i / 5, to = n * (i + 1) / 5;
        tickets[i] = kr_comm_begin_sum(c->comm, y + (size_t)from * element, to - from, dtype);
    }
    for (int i = 5; i-- > 0;)
        COMM_CHECK(c, kr_comm_end(c->comm, tickets[i]) == KR_OK, "piece %d of %lld fails", i, (long long)n);
    COMM_CHECK(c, memcmp(x, y, (size_t)n * element) == 0, "pieces of %lld %s differ from the whole", (long long)n,
               kr_dtype_name(dtype));
    free(y);
    /* Scattered, also in place. */
    const int64_t part = n / ranks;
    y = comm_operand(c, dtype, part * ranks, rank);
    char *mine = comm_operand(c, dtype, part, rank);
    COMM_CHECK(c, kr_comm_sum_scatter(c->comm, y, mine, part, dtype) == KR_OK, "sum_scatter of %lld fails",
               (long long)part);
    comm_check_sum(c, "sum_scatter", dtype, mine, rank * part, part);
    COMM_CHECK(c, kr_comm_sum_scatter(c->comm, y, y + (size_t)(rank * part) * element, part, dtype) == KR_OK,
               "in place");
    COMM_CHECK(c, memcmp(y + (size_t)(rank * part) * element, mine, (size_t)part * element) == 0,
               "sum_scatter in place differs");
    free(mine);
    free(y);
    free(x);
}

/* Shares of random sizes and owners over n elements, with gaps; their number. */
static inline int64_t comm_shares(const comm_check *c, int64_t n, kr_comm_share *shares, int64_t most)
{
    int64_t count = 0, at = 0;
    const int ranks = kr_comm_size(c->comm);
    while (at < n && count < most) {
        const uint64_t draw = (uint64_t)(int64_t)(1e9 * fabs(comm_value(c, 1000, count)));
        int64_t length = (int64_t)(draw % (uint64_t)(n / 4 + 2));
        if (length > n - at) length = n - at;
        shares[count] = (kr_comm_share){ .first = at, .count = length, .owner = (int)(draw / 7 % (uint64_t)ranks) };
        at += length + (int64_t)(draw % 3);
        count++;
    }
    return count;
}

static inline void comm_share_sums(const comm_check *c, kr_dtype dtype, int64_t n)
{
    enum { MOST = 100 };
    kr_comm_share shares[MOST];
    const int rank = kr_comm_rank(c->comm);
    const size_t element = kr_dtype_bytes(dtype);
    const int64_t count = comm_shares(c, n, shares, MOST);
    char *x = comm_operand(c, dtype, n, rank), *before = comm_operand(c, dtype, n, rank);
    COMM_CHECK(c, kr_comm_sum_shares(c->comm, x, shares, count, dtype) == KR_OK, "sum_shares fails");
    for (int64_t i = 0; i < count; i++) {
        const size_t at = (size_t)shares[i].first * element, bytes = (size_t)shares[i].count * element;
        if (shares[i].owner == rank) {
            comm_check_sum(c, "sum_shares", dtype, x + at, shares[i].first, shares[i].count);
            memcpy(before + at, x + at, bytes);
        }
    }
    COMM_CHECK(c, memcmp(x, before, (size_t)n * element) == 0, "sum_shares changes elements that are not this rank's");
    COMM_CHECK(c, kr_comm_gather_shares(c->comm, x, shares, count, dtype) == KR_OK, "gather_shares fails");
    for (int64_t i = 0; i < count; i++) {
        comm_check_sum(c, "gather_shares", dtype, x + (size_t)shares[i].first * element, shares[i].first,
                       shares[i].count);
        memcpy(before + (size_t)shares[i].first * element, x + (size_t)shares[i].first * element,
               (size_t)shares[i].count * element);
    }
    COMM_CHECK(c, memcmp(x, before, (size_t)n * element) == 0, "gather_shares changes elements of no share");
    free(before);
    free(x);
}

/* ---- moves ---- */

/* Byte i that rank `from` has for rank `to`. */
static inline unsigned char comm_byte(int from, int to, size_t i)
{
    return (unsigned char)(i * 7 + (size_t)from * 31 + (size_t)to * 101 + (i >> 8));
}

static inline void comm_moves(const comm_check *c, size_t bytes)
{
    kr_comm *comm = c->comm;
    const int rank = kr_comm_rank(comm), ranks = kr_comm_size(comm);
    const size_t all = bytes * (size_t)ranks;
    unsigned char *from = malloc(all + 1), *to = malloc(all + 1);
    if (!from || !to) exit(2);
    for (int r = 0; r < ranks; r++)
        for (size_t i = 0; i < bytes; i++) from[(size_t)r * bytes + i] = comm_byte(rank, r, i);
    COMM_CHECK(c, kr_comm_all_to_all(comm, from, to, bytes) == KR_OK, "all_to_all of %zu fails", bytes);
    bool same = true;
    for (int r = 0; r < ranks; r++)
        for (size_t i = 0; i < bytes; i++) same = same && to[(size_t)r * bytes + i] == comm_byte(r, rank, i);
    COMM_CHECK(c, same, "all_to_all of %zu bytes", bytes);
    memset(to, 0, all);
    COMM_CHECK(c, kr_comm_gather(comm, from, to, bytes) == KR_OK, "gather of %zu fails", bytes);
    same = true;
    for (int r = 0; r < ranks; r++)
        for (size_t i = 0; i < bytes; i++) same = same && to[(size_t)r * bytes + i] == comm_byte(r, 0, i);
    COMM_CHECK(c, same, "gather of %zu bytes", bytes);
    for (int root = 0; root < ranks; root++) {
        for (size_t i = 0; i < bytes; i++) to[i] = rank == root ? comm_byte(root, 5, i) : 0;
        COMM_CHECK(c, kr_comm_broadcast(comm, root, to, bytes) == KR_OK, "broadcast of %zu fails", bytes);
        same = true;
        for (size_t i = 0; i < bytes; i++) same = same && to[i] == comm_byte(root, 5, i);
        COMM_CHECK(c, same, "broadcast of %zu bytes from rank %d", bytes, root);
    }
    /* To the right neighbour of a line, then around a ring, then back. */
    memset(to, 0, all);
    COMM_CHECK(c, kr_comm_exchange(comm, rank + 1 < ranks ? rank + 1 : -1, from, bytes, rank - 1, to, bytes) == KR_OK,
               "line");
    same = true;
    for (size_t i = 0; i < bytes; i++) same = same && to[i] == (rank ? comm_byte(rank - 1, 0, i) : 0);
    COMM_CHECK(c, same, "exchange of %zu bytes in a line", bytes);
    if (ranks > 1) {
        const int left = (rank + ranks - 1) % ranks;
        COMM_CHECK(c, kr_comm_exchange(comm, (rank + 1) % ranks, from, bytes, left, to, bytes) == KR_OK, "ring");
        same = true;
        for (size_t i = 0; i < bytes; i++) same = same && to[i] == comm_byte(left, 0, i);
        COMM_CHECK(c, same, "exchange of %zu bytes in a ring", bytes);
        if (rank == 1) COMM_CHECK(c, kr_comm_send(comm, 0, from, bytes) == KR_OK, "send");
        if (rank == 0) {
            COMM_CHECK(c, kr_comm_recv(comm, 1, to, bytes) == KR_OK, "recv");
            same = true;
            for (size_t i = 0; i < bytes; i++) same = same && to[i] == comm_byte(1, 0, i);
            COMM_CHECK(c, same, "send of %zu bytes", bytes);
        }
    }
    free(to);
    free(from);
}

/* ---- splitting ---- */

/* Odd and even ranks, the latter in reverse order; the last rank belongs to none. Sums within, and over all meanwhile.
 * */
static inline void comm_splits(const comm_check *c)
{
    kr_comm *comm = c->comm;
    const int rank = kr_comm_rank(comm), ranks = kr_comm_size(comm);
    const bool is_out = ranks > 2 && rank == ranks - 1;
    kr_comm *part = kr_comm_split(comm, is_out ? -1 : rank % 2, rank % 2 ? rank : -rank);
    COMM_CHECK(c, (part == NULL) == is_out, "split gives %p", (void *)part);
    const int members = ranks > 2 ? ranks - 1 : ranks;
    if (part) {
        const int size = (members + 1 - rank % 2) / 2, at = rank % 2 ? rank / 2 : size - 1 - rank / 2;
        COMM_CHECK(c, kr_comm_size(part) == size && kr_comm_rank(part) == at, "rank %d of %d in its part, not %d of %d",
                   kr_comm_rank(part), kr_comm_size(part), at, size);
        double x = rank + 1, want = 0;
        COMM_CHECK(c, kr_comm_sum(part, &x, 1, KR_DTYPE_F64) == KR_OK, "sum of a part");
        for (int i = rank % 2; i < members; i += 2) want += i + 1;
        COMM_CHECK(c, x == want, "sum of a part is %g, not %g", x, want);
    }
    double all = rank;
    COMM_CHECK(c, kr_comm_sum(comm, &all, 1, KR_DTYPE_F64) == KR_OK && all == ranks * (ranks - 1) / 2,
               "sum of all is %g", all);
    kr_comm_destroy(part);
}

/* All of it. */
static inline void comm_conformance(const comm_check *c)
{
    const int64_t sizes[] = { 0, 1, 2, 3, 5, 7, 97, 1021, 4099, 65537, c->largest };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i] > c->largest) continue;
        comm_sums(c, KR_DTYPE_F32, sizes[i]);
        comm_sums(c, KR_DTYPE_F64, sizes[i]);
        comm_share_sums(c, KR_DTYPE_F32, sizes[i]);
        comm_share_sums(c, KR_DTYPE_F64, sizes[i]);
    }
    for (size_t bytes = 0; bytes < 2000000 && (int64_t)bytes <= 4 * c->largest; bytes = bytes * 13 + 1)
        comm_moves(c, bytes);
    COMM_CHECK(c, kr_comm_barrier(c->comm) == KR_OK, "barrier");
    comm_splits(c);
    COMM_CHECK(c, kr_comm_agree(c->comm) == KR_OK, "agree");
}

#endif
