/* fork.h - detects a forked child. Only the thread that called fork exists in the child: worker threads are gone, their
 * locks may stay locked, and the GPU belongs to the parent. */
#ifndef KR_BASE_FORK_H
#define KR_BASE_FORK_H

/* Forks between the first kr_fork_watch of the program and this process. */
unsigned kr_fork_count(void);

/* Counts forks from now on. Any thread may call it, any number of times. */
void kr_fork_watch(void);

#endif
