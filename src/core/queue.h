/* The structures of queues and submissions, and what the files of the core do with them. */
#ifndef MANSARD_QUEUE_H
#define MANSARD_QUEUE_H

#include "core/internal.h"

typedef enum submission_state {
    SUBMISSION_WAITING,   /* on the queue's waiting list */
    SUBMISSION_READY,     /* on the queue's ready list */
    SUBMISSION_RUNNING,   /* with the executor */
    SUBMISSION_WITHDRAWN, /* failed before it could run */
    SUBMISSION_DONE,
} submission_state;

typedef struct submission_wait {
    mn_waiter waiter; /* first: a waiter is its wait */
    mn_submission *submission;
    bool native; /* ordered by the device */
} submission_wait;

/* References: one of the queue until the submission is done, one of the submitter until every wait is
 * registered, one per registered waiter. */
struct mn_submission {
    mn_queue *queue;
    atomic_int refs;
    atomic_uint pending;              /* waits not complete, plus the submitter's guard */
    _Atomic(mn_status *) failure;     /* of the first failed wait, or why it was withdrawn */
    submission_state state;           /* under queue->lock */
    mn_submission *next, *previous;   /* waiting list; ready list (next only); submission list */
    uint64_t sequence;                /* among the queue's submissions */
    int32_t priority;
    void *work;
    mn_record record;
    bool device_times;                /* the executor set start and end */
    uint32_t wait_count, native_count, signal_count, slot_count;
    submission_wait *waits;
    mn_point *native_waits;           /* those of `waits` that are left to the device; borrowed */
    mn_point *signals;
    uint64_t *slots;
};

struct mn_queue {
    atomic_int refs;
    mn_queue_options options;
    pthread_mutex_t lock;
    pthread_cond_t work;              /* ready work, or closed */
    pthread_cond_t idle;              /* live or thread_running fell */
    bool closed;
    bool thread_running;
    bool executing;                   /* thread mode: some thread runs a submission */
    mn_submission *unfinished;        /* thread mode: a submission whose thread had to leave it */
    uint64_t reserved_until;          /* until then ready submissions are left to the thread `reserved_for`; 0: not */
    const void *reserved_for;
    mn_queue *next_caller_run;        /* see caller_runs.c */
    mn_queue *next_open;              /* see queue_end.c */
    unsigned forks;                   /* mn_fork_count when made */
    mn_status *poison;
    mn_submission *waiting;
    atomic_uint waiting_count;        /* so that others may pass by without the lock */
    mn_submission *ready, *ready_last; /* the most urgent first, of equals the one submitted first */
    atomic_uint ready_count;          /* so that the queue's thread may look without the lock */
    uint64_t live;                    /* submissions whose signals are not done */
    bool feeding;                     /* a thread is in mn_queue_feed */
    uint64_t service_ns;              /* what a submission keeps the device busy for, roughly */
    uint64_t last_end;                /* when a submission ended last */
    mn_queue_stats stats;
    uint64_t busy_since;
    uint64_t device_busy_ns, device_busy_until;/* from device times, where executors give them */
    uint64_t *retired;
    size_t retired_count, retired_capacity;
    mn_record records[MN_QUEUE_RECORDS];
    uint64_t record_count;
    char label[64];
};

/* submission.c */

/* Submissions linked by `next`, not yet known to the queue; NULL when memory is exhausted. */
mn_submission *mn_submissions_create(mn_queue *queue, const mn_submission_desc *descs, uint32_t count);
void mn_submissions_discard(mn_submission *submissions);

/* Register the waits, in the order of the submissions, so that one may be ordered by the device after an
 * earlier one of the same call; the submission becomes ready (mn_queue_ready) when the last is complete. */
void mn_submission_arm(mn_submission *submission);
void mn_submission_release(mn_submission *submission);

/* Remember why a submission fails, or is to fail instead of being run: the first reason. */
void mn_submission_note_failure(mn_submission *submission, mn_status *status);

/* A submission that is to fail is ordered after work of the device: wait for the end of that work first. */
void mn_submission_await_native(mn_submission *submission);

/* Why a submission must not be run any more: the work of the device that it is ordered after has ended, and
 * some of it failed. A reference, or NULL. */
mn_status *mn_submission_failed_before(mn_submission *submission);

/* Fail a withdrawn submission and forget its waits. `status` NULL: because the queue is closed. */
void mn_submission_withdraw(mn_submission *submission, mn_status *status);

/* queue.c */

/* Every wait of the submission is complete. */
void mn_queue_ready(mn_submission *submission);

/* Lists; under queue->lock. */
void mn_queue_unlink_waiting(mn_queue *queue, mn_submission *submission);
mn_submission *mn_queue_take_ready_after(mn_queue *queue, mn_submission *previous); /* NULL: the first */

/* Whether the submission signals a point of `timeline` up to `value`. */
bool mn_submission_leads_to(const mn_submission *submission, const mn_timeline *timeline, uint64_t value);

/* Made before this process was forked off: its threads do not exist here, its locks may be held. */
bool mn_queue_is_foreign(const mn_queue *queue);

/* Whether threads that wait may run submissions of the queue; see caller_runs.h. */
static inline bool mn_queue_allows_caller_runs(const mn_queue *queue) { return queue->options.execute_until != NULL; }

/* Inline mode: start ready submissions as far as the device's depth allows. */
void mn_queue_feed(mn_queue *queue);

/* queue_accounting.c */

/* A submission starts. Under queue->lock. */
void mn_queue_note_start(mn_queue *queue, mn_submission *submission);

/* A submission ends: before its points are signalled, and after. */
void mn_queue_note_end(mn_submission *submission, bool failed);
void mn_queue_note_gone(mn_queue *queue);

/* queue_end.c */

/* Queues that submissions may be withdrawn from. */
void mn_queue_register(mn_queue *queue);
void mn_queue_unregister(mn_queue *queue);

/* Offer each open queue that has waiting submissions, with its lock held, to `accept` until it accepts one.
 * Returns whether it did. */
bool mn_queues_any_waiting(bool (*accept)(mn_queue *queue, void *context), void *context);

/* Forget every queue: they are the parent's. */
void mn_queues_after_fork(void);

#endif
