/* Threads that wait for a point run the batch that signals it, where a queue allows it. */
#ifndef MANSARD_HELP_H
#define MANSARD_HELP_H

#include "core/queue.h"

/* How long a queue's thread leaves a batch to the thread that submitted it and is expected to wait. */
#define MN_RESERVE_NS 100000u

/* Queues whose batches waiting threads may run. */
void mn_help_register(mn_queue *queue);
void mn_help_unregister(mn_queue *queue);
void mn_help_count_ready(int change); /* of their ready batches */

/* Around a submission of this thread. */
void mn_help_submit_begin(void);
void mn_help_submit_end(void);

/* The name of this thread when it is in a submission and, as it did the last time, will probably wait
 * for what it submits; else NULL. */
const void *mn_help_expected(void);

/* Forget every queue: their threads are the parent's. */
void mn_help_after_fork(void);

/* What becomes ready on this thread is left to it for a while: it will call mn_help next. */
void mn_help_expect(bool expected);

/* Called by a thread that waits until `deadline_ns` for a pending point: run what is ready and signals it.
 * Whether there was something. */
bool mn_help(mn_timeline *timeline, uint64_t value, uint64_t deadline_ns);

#endif
