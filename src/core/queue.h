/* The insides of queues and batches, shared by queue.c and batch.c. */
#ifndef MANSARD_QUEUE_H
#define MANSARD_QUEUE_H

#include "core/internal.h"

#define MN_RECORDS 256

typedef enum batch_state {
    BATCH_WAITING,   /* on the queue's waiting list */
    BATCH_READY,     /* on the queue's ready list */
    BATCH_RUNNING,   /* with the executor */
    BATCH_WITHDRAWN, /* failed before it could run */
    BATCH_DONE,
} batch_state;

typedef struct batch_wait {
    mn_waiter waiter; /* first: a waiter is its wait */
    mn_batch *batch;
    bool native; /* left to the device */
} batch_wait;

/* References: one of the queue until the batch is done, one of the submitter until every wait is
 * registered, one per registered waiter. */
struct mn_batch {
    mn_queue *queue;
    atomic_int refs;
    atomic_uint pending;          /* waits not complete, plus the submitter's guard */
    _Atomic(mn_status *) failure; /* of the first failed wait, or why it was withdrawn */
    batch_state state;            /* under queue->lock */
    mn_batch *next, *previous;    /* waiting list; ready list (next only); submission list */
    uint64_t sequence;            /* among the queue's batches */
    int32_t priority;
    void *work;
    mn_record record;
    bool device_times; /* the executor set start and end */
    uint32_t wait_count, native_count, signal_count, slot_count;
    batch_wait *waits;
    mn_point *native_waits; /* those of `waits` that are left to the device; borrowed */
    mn_point *signals;
    uint64_t *slots;
};

struct mn_queue {
    atomic_int refs;
    mn_queue_options options;
    pthread_mutex_t lock;
    pthread_cond_t work;        /* ready work, or closed */
    pthread_cond_t idle;        /* live or thread_running fell */
    bool closed;
    bool thread_running;
    bool executing;             /* thread mode: some thread runs a batch */
    mn_batch *unfinished;       /* thread mode: a batch whose thread had to leave it */
    uint64_t reserved_until;    /* until then ready batches are left to the thread `reserved_for`; 0: not */
    const void *reserved_for;
    mn_queue *next_helpable;    /* see help.h */
    mn_queue *next_open;        /* see queue_end.c */
    unsigned forks;             /* mn_fork_count when made */
    mn_status *poison;
    mn_batch *waiting;
    atomic_uint waiting_count;  /* so that others may pass by without the lock */
    mn_batch *ready, *ready_last; /* the most urgent first, of equals the one submitted first */
    atomic_uint ready_count;    /* so that the queue's thread may look without the lock */
    uint64_t live;              /* batches whose signals are not done */
    bool feeding;               /* a thread is in mn_queue_feed */
    uint64_t service_ns;        /* what a batch keeps the device busy for, roughly */
    uint64_t last_end;          /* when a batch ended last */
    mn_queue_stats stats;
    uint64_t busy_since;
    uint64_t device_busy_ns, device_busy_until; /* from device times, where executors give them */
    uint64_t *retired;
    size_t retired_count, retired_capacity;
    mn_record records[MN_RECORDS];
    uint64_t record_count;
    char label[64];
};

/* batch.c */

/* Batches linked by `next`, not yet known to the queue; NULL when memory is exhausted. */
mn_batch *mn_batches_create(mn_queue *queue, const mn_submission *submissions, uint32_t count);
void mn_batches_discard(mn_batch *batches);

/* Register the waits, in the order of submission, so that a batch may be left to follow an earlier one
 * of the same call; the batch becomes ready (mn_queue_ready) when the last is complete. */
void mn_batch_arm(mn_batch *batch);
void mn_batch_release(mn_batch *batch);

/* Remember why a batch fails, or is to fail instead of being run: the first reason. */
void mn_batch_note_failure(mn_batch *batch, mn_status *status);

/* A batch that is to fail follows work of the device: wait for its end first. */
void mn_batch_await_native(mn_batch *batch);

/* Why a batch must not be run any more: work of the device that it follows has ended, and some of it failed.
 * A reference, or NULL. */
mn_status *mn_batch_failed_before(mn_batch *batch);

/* Fail a withdrawn batch and forget its waits. `status` NULL: because the queue is closed. */
void mn_batch_withdraw(mn_batch *batch, mn_status *status);

/* queue.c */

/* Every wait of the batch is complete. */
void mn_queue_ready(mn_batch *batch);

/* Lists; under queue->lock. */
void mn_queue_unlink_waiting(mn_queue *queue, mn_batch *batch);
mn_batch *mn_queue_take_ready_after(mn_queue *queue, mn_batch *previous); /* NULL: the first */

/* Whether the batch signals a point of `timeline` up to `value`. */
bool mn_batch_leads_to(const mn_batch *batch, const mn_timeline *timeline, uint64_t value);

/* Made before this process was forked off: its threads do not exist here, its locks may be held. */
bool mn_queue_is_foreign(const mn_queue *queue);

/* For help.c. Claim a ready batch that signals a point of `timeline` up to `value`, if nothing of the
 * queue runs and this thread is fit for it. Batches reserved for `thread` are reserved no more; when it
 * takes none, *refused is set and they go to the queue's thread. */
mn_batch *mn_queue_claim(mn_queue *queue, mn_timeline *timeline, uint64_t value, const void *thread, bool *refused);

/* A claimed batch is over: claim another like it; NULL when there is none. */
mn_batch *mn_queue_claim_next(mn_queue *queue, mn_timeline *timeline, uint64_t value);

/* Stop running batches; `unfinished` (may be NULL) is left to the queue's thread. */
void mn_queue_unclaim(mn_queue *queue, mn_batch *unfinished);

/* Inline mode: start ready batches as far as the device's depth allows. */
void mn_queue_feed(mn_queue *queue);

/* Account for a batch that ends, before its points are signalled, and after. */
void mn_queue_note_end(mn_batch *batch, bool failed);
void mn_queue_note_gone(mn_queue *queue);

/* queue_end.c */

/* Queues that batches may be withdrawn from. */
void mn_queue_register(mn_queue *queue);
void mn_queue_unregister(mn_queue *queue);

/* Show the open queues on which batches wait, each with its lock held, until one is accepted; whether one was. */
bool mn_queues_any_waiting(bool (*accept)(mn_queue *queue, void *context), void *context);

/* Forget every queue: they are the parent's. */
void mn_queues_after_fork(void);

#endif
