/* Waiting threads that work.
 *
 * A call submits a batch and waits for it. Were the batch run by the queue's thread, each call would pay
 * for waking that thread and for being woken by it. So the thread that waits runs the batch itself, if the
 * queue is idle; and since it cannot be known at submission whether the submitter will wait, each thread
 * is taken to do what it did the last time. When it is expected to wait, the queue's thread is not woken
 * but called only if the batch still lies there after MN_RESERVE_NS.
 */
#include "core/caller_runs.h"
#include "core/thread.h"

static struct {
    pthread_mutex_t lock; /* before any queue's lock */
    mn_queue *queues;
    atomic_int ready;
} helpable = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A thread that did not take what was reserved for it is not trusted for this many submissions. */
#define DISTRUST 16

static _Thread_local struct {
    bool waited; /* since the last submission */
    int distrust;
    bool expected;
    bool following; /* it did not submit what was left to it, and may find that it leads elsewhere */
    bool helping;
} me;

void mn_help_register(mn_queue *queue) {
    pthread_mutex_lock(&helpable.lock);
    queue->next_helpable = helpable.queues;
    helpable.queues = queue;
    pthread_mutex_unlock(&helpable.lock);
}

void mn_help_unregister(mn_queue *queue) {
    pthread_mutex_lock(&helpable.lock);
    mn_queue **link = &helpable.queues;
    while (*link && *link != queue) link = &(*link)->next_helpable;
    if (*link) *link = queue->next_helpable;
    pthread_mutex_unlock(&helpable.lock);
}

void mn_help_count_ready(int change) { atomic_fetch_add_explicit(&helpable.ready, change, memory_order_relaxed); }

void mn_help_submit_begin(void) {
    me.expected = me.waited && me.distrust == 0;
    if (me.distrust) me.distrust--;
    me.waited = false;
}

void mn_help_submit_end(void) { me.expected = false; }

void mn_help_expect(bool expected) {
    me.expected = expected;
    me.following |= expected;
}

const void *mn_help_expected(void) { return me.expected ? &me : NULL; }

/* A batch of an idle queue that signals the point or one before it, now running; NULL when there is none. */
static mn_batch *claim(mn_timeline *timeline, uint64_t value) {
    mn_batch *batch = NULL;
    bool refused = false;
    pthread_mutex_lock(&helpable.lock);
    for (mn_queue *queue = helpable.queues; queue && !batch; queue = queue->next_helpable)
        if (atomic_load_explicit(&queue->ready_count, memory_order_relaxed))
            batch = mn_queue_claim(queue, timeline, value, &me, &refused);
    pthread_mutex_unlock(&helpable.lock);
    if (refused && !me.following) me.distrust = DISTRUST;
    me.following = false;
    return batch;
}

/* Run the batch, and what then is ready and leads to the point. */
static void run_claimed(mn_batch *batch, mn_timeline *timeline, uint64_t value, uint64_t deadline_ns) {
    mn_queue *queue = mn_queue_retain(batch->queue);
    const mn_queue_options *options = &queue->options;
    me.helping = true;
    uint64_t state = mn_float_enter();
    while (batch && options->execute_until(options->context, batch, deadline_ns))
        batch = mn_queue_claim_next(queue, timeline, value);
    mn_float_leave(state);
    me.helping = false;
    mn_queue_unclaim(queue, batch);
    mn_queue_release(queue);
}

bool mn_help(mn_timeline *timeline, uint64_t value, uint64_t deadline_ns) {
    me.waited = true;
    if (mn_defer_is_active() || me.helping) return false; /* within a callback, which must not run kernels */
    if (atomic_load_explicit(&helpable.ready, memory_order_relaxed) <= 0) return false;
    mn_batch *batch = claim(timeline, value);
    if (batch) run_claimed(batch, timeline, value, deadline_ns);
    return batch != NULL;
}

void mn_help_after_fork(void) {
    pthread_mutex_init(&helpable.lock, NULL);
    helpable.queues = NULL;
    atomic_store(&helpable.ready, 0);
}
