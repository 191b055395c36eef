/* How submissions end without being run: their device is lost or closed, or their call is withdrawn. */
#include "core/queue.h"

/* ---- queues that are open --------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock; /* before any queue's lock */
    mn_queue *first;
} queues = {.lock = PTHREAD_MUTEX_INITIALIZER};

void mn_queue_register(mn_queue *queue) {
    pthread_mutex_lock(&queues.lock);
    queue->next_open = queues.first;
    queues.first = queue;
    pthread_mutex_unlock(&queues.lock);
}

void mn_queue_unregister(mn_queue *queue) {
    pthread_mutex_lock(&queues.lock);
    mn_queue **link = &queues.first;
    while (*link && *link != queue) link = &(*link)->next_open;
    if (*link) *link = queue->next_open;
    pthread_mutex_unlock(&queues.lock);
}

bool mn_queues_any_waiting(bool (*accept)(mn_queue *queue, void *context), void *context) {
    bool accepted = false;
    pthread_mutex_lock(&queues.lock);
    for (mn_queue *queue = queues.first; queue && !accepted; queue = queue->next_open) {
        /* A lock that the queue's thread is about to take would cost it a sleep. */
        if (atomic_load_explicit(&queue->waiting_count, memory_order_relaxed) == 0) continue;
        pthread_mutex_lock(&queue->lock);
        accepted = accept(queue, context);
        pthread_mutex_unlock(&queue->lock);
    }
    pthread_mutex_unlock(&queues.lock);
    return accepted;
}

void mn_queues_after_fork(void) {
    pthread_mutex_init(&queues.lock, NULL);
    queues.first = NULL;
}

/* ---- withdrawal ------------------------------------------------------------------------------- */

/* Take the ready submissions that signal the timeline off the queue's list, linked by `next` behind `taken`;
 * those that wait will fail when they become ready. Lock held. */
static mn_submission *take_signalling(mn_queue *queue, const mn_timeline *timeline, mn_status *status,
                                      mn_submission *taken) {
    for (mn_submission *submission = queue->waiting; submission; submission = submission->next)
        if (mn_submission_leads_to(submission, timeline, UINT64_MAX)) mn_submission_note_failure(submission, status);
    mn_submission *previous = NULL, *submission = queue->ready;
    while (submission) {
        mn_submission *next = submission->next;
        if (mn_submission_leads_to(submission, timeline, UINT64_MAX)) {
            mn_queue_take_ready_after(queue, previous);
            submission->state = SUBMISSION_WITHDRAWN;
            submission->next = taken;
            taken = submission;
        } else {
            previous = submission;
        }
        submission = next;
    }
    return taken;
}

void mn_withdraw(mn_timeline *timeline, mn_status *status) {
    mn_submission *taken = NULL;
    bool outermost = mn_defer_enter();
    /* A queue that is being freed has no submissions, and leaves the list before it goes. */
    pthread_mutex_lock(&queues.lock);
    for (mn_queue *queue = queues.first; queue; queue = queue->next_open) {
        pthread_mutex_lock(&queue->lock);
        taken = take_signalling(queue, timeline, status, taken);
        pthread_mutex_unlock(&queue->lock);
    }
    pthread_mutex_unlock(&queues.lock);
    while (taken) {
        mn_submission *submission = taken;
        taken = submission->next;
        mn_submission_finish(submission, status);
    }
    mn_defer_leave(outermost);
}

/* ---- loss and closing ------------------------------------------------------------------------- */

static mn_submission *take_waiting(mn_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    mn_submission *submission = queue->waiting;
    if (submission) {
        mn_queue_unlink_waiting(queue, submission);
        submission->state = SUBMISSION_WITHDRAWN;
    }
    pthread_mutex_unlock(&queue->lock);
    return submission;
}

static mn_submission *take_ready(mn_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    mn_submission *submission = queue->ready ? mn_queue_take_ready_after(queue, NULL) : NULL;
    if (submission) submission->state = SUBMISSION_WITHDRAWN;
    pthread_mutex_unlock(&queue->lock);
    return submission;
}

static void withdraw_waiting(mn_queue *queue, mn_status *status) {
    mn_submission *submission;
    while ((submission = take_waiting(queue))) mn_submission_withdraw(submission, status);
}

void mn_queue_poison(mn_queue *queue, mn_status *status) {
    mn_submission *submission;
    bool outermost = mn_defer_enter();
    pthread_mutex_lock(&queue->lock);
    if (!queue->poison) queue->poison = mn_status_retain(status);
    pthread_mutex_unlock(&queue->lock);
    withdraw_waiting(queue, status);
    while ((submission = take_ready(queue))) mn_submission_withdraw(submission, status);
    mn_defer_leave(outermost);
}

int mn_queue_close(mn_queue *queue, uint64_t timeout_ns) {
    if (mn_queue_is_foreign(queue)) return MN_OK;
    uint64_t deadline = mn_deadline(timeout_ns);
    pthread_mutex_lock(&queue->lock);
    queue->closed = true;
    pthread_cond_broadcast(&queue->work);
    pthread_mutex_unlock(&queue->lock);
    bool outermost = mn_defer_enter();
    withdraw_waiting(queue, NULL);
    mn_defer_leave(outermost);
    bool in_time = true;
    pthread_mutex_lock(&queue->lock);
    while ((queue->live || queue->thread_running) && in_time)
        in_time = mn_cond_wait_until(&queue->idle, &queue->lock, deadline);
    uint64_t live = queue->live;
    bool done = live == 0 && !queue->thread_running;
    pthread_mutex_unlock(&queue->lock);
    if (done) return MN_OK;
    return mn_error(MN_TIMEOUT, "device %s still runs %llu submissions", queue->label, (unsigned long long)live);
}
