/* Caller runs: threads that wait for a point run the submission that signals it, where a queue allows it. */
#ifndef MANSARD_CALLER_RUNS_H
#define MANSARD_CALLER_RUNS_H

#include "core/queue.h"

/* How long a queue's thread leaves a submission to the thread that handed it over and is expected to wait. */
#define MN_RESERVE_NS 100000u

/* Queues whose submissions waiting threads may run. */
void mn_caller_runs_register(mn_queue *queue);
void mn_caller_runs_unregister(mn_queue *queue);
void mn_caller_runs_count_ready(int change); /* of their ready submissions */

/* Around a mn_queue_submit of this thread. */
void mn_caller_runs_submit_begin(void);
void mn_caller_runs_submit_end(void);

/* The identity of this thread when it is within mn_queue_submit and, as it did the last time, will probably
 * wait for what it hands over; else NULL. */
const void *mn_caller_runs_expected(void);

/* Forget every queue: their threads are the parent's. */
void mn_caller_runs_after_fork(void);

/* What becomes ready on this thread is left to it for a while: it will call mn_caller_run next. */
void mn_caller_runs_expect(bool expected);

/* Called by a thread that waits until `deadline_ns` for a pending point: run what is ready and signals it.
 * Returns whether there was anything to run. */
bool mn_caller_run(mn_timeline *timeline, uint64_t value, uint64_t deadline_ns);

#endif
