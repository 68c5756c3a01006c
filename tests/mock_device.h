/* mock_device.h - streams and memory of the mock device (tests/mock_device.c), as a program has those of a GPU.
 *
 * A stream runs what is queued on it when somebody waits for it, as late as can be; with a context on "mock" or "mock:0" the
 * context's own work runs at once, behind all that was queued before it.
 */
#ifndef KR_TESTS_MOCK_DEVICE_H
#define KR_TESTS_MOCK_DEVICE_H

#include <stddef.h>
#include <stdint.h>

typedef struct mock_stream mock_stream;

mock_stream *mock_stream_create(void);
void mock_stream_destroy(mock_stream *stream); /* everything has run */

/* Work of the program: run(user), in the order of the stream. It may use device memory. */
void mock_stream_queue(mock_stream *stream, void (*run)(void *user), void *user);
void mock_stream_wait(mock_stream *stream);
int64_t mock_stream_waiting(const mock_stream *stream); /* pieces of work that have not run */

/* Device memory of the program, of no context. NULL: none. While a mock device is open. */
void *mock_memory_alloc(size_t bytes);
void mock_memory_free(void *p);

/* Between these two the calling thread may touch device memory, as a copy engine does. */
void mock_memory_open(void);
void mock_memory_close(void);

/* What mock devices exchange with those of other ranks; NULL: nothing, as at the start. */
struct kr_device_comm_ops;
void mock_device_offer_comm(const struct kr_device_comm_ops *ops);

#endif
