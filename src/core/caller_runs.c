/* Caller runs: waiting threads execute what they wait for.
 *
 * A caller hands over a submission and waits for it. If the queue's thread ran it, each call would pay for
 * waking that thread and for being woken by it. So the thread that waits runs the submission itself, if the
 * queue is idle; and since it cannot be known at submission whether the submitter will wait, each thread
 * is predicted to do what it did the last time. When it is expected to wait, the queue's thread is not woken
 * at once but only if the submission is still there after MN_RESERVE_NS.
 */
#include "core/caller_runs.h"
#include "core/thread.h"

static struct {
    pthread_mutex_t lock; /* before any queue's lock */
    mn_queue *queues;
    atomic_int ready;
} caller_runs = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A thread that did not take what was reserved for it gets no reservation for this many submissions. */
#define DISTRUST 16

static _Thread_local struct {
    bool waited; /* since the last submission */
    int distrust;
    bool expected;
    bool walking; /* in a dependency walk: what is left to it, it did not submit, and it may not need it */
    bool running; /* a claimed submission */
} me;

void mn_caller_runs_register(mn_queue *queue) {
    pthread_mutex_lock(&caller_runs.lock);
    queue->next_caller_run = caller_runs.queues;
    caller_runs.queues = queue;
    pthread_mutex_unlock(&caller_runs.lock);
}

void mn_caller_runs_unregister(mn_queue *queue) {
    pthread_mutex_lock(&caller_runs.lock);
    mn_queue **link = &caller_runs.queues;
    while (*link && *link != queue) link = &(*link)->next_caller_run;
    if (*link) *link = queue->next_caller_run;
    pthread_mutex_unlock(&caller_runs.lock);
}

void mn_caller_runs_count_ready(int change) {
    atomic_fetch_add_explicit(&caller_runs.ready, change, memory_order_relaxed);
}

/* ---- prediction ------------------------------------------------------------------------------- */

void mn_caller_runs_submit_begin(void) {
    me.expected = me.waited && me.distrust == 0;
    if (me.distrust) me.distrust--;
    me.waited = false;
}

void mn_caller_runs_submit_end(void) { me.expected = false; }

void mn_caller_runs_expect(bool expected) {
    me.expected = expected;
    me.walking |= expected;
}

const void *mn_caller_runs_expected(void) { return me.expected ? &me : NULL; }

/* ---- claiming --------------------------------------------------------------------------------- */

/* A ready submission that signals a point of `timeline` up to `value`, taken off its list. Lock held. */
static mn_submission *take_ready(mn_queue *queue, const mn_timeline *timeline, uint64_t value) {
    mn_submission *previous = NULL, *submission = queue->ready;
    while (submission && !mn_submission_leads_to(submission, timeline, value)) {
        previous = submission;
        submission = submission->next;
    }
    /* What is more urgent goes first, and is not this thread's to run. */
    if (!submission || submission->priority < queue->ready->priority) return NULL;
    return mn_queue_take_ready_after(queue, previous);
}

static bool is_fit(const mn_queue_options *options) {
    if (mn_stack_left() < MN_STACK_NEEDED) return false;
    return !options->caller_may_run || options->caller_may_run(options->context);
}

/* Claim a submission if nothing of the queue runs and this thread is fit for it. What is reserved for this
 * thread is reserved no more; when it takes nothing, *refused is set and the queue's thread is woken. */
static mn_submission *claim_from(mn_queue *queue, mn_timeline *timeline, uint64_t value, bool *refused) {
    const mn_queue_options *options = &queue->options;
    mn_submission *submission = NULL;
    bool fit = is_fit(options);
    pthread_mutex_lock(&queue->lock);
    if (fit && !queue->executing && !queue->unfinished && !queue->closed)
        submission = take_ready(queue, timeline, value);
    if (submission) {
        mn_queue_note_start(queue, submission);
        queue->executing = true;
    }
    if (queue->reserved_until && queue->reserved_for == &me) {
        queue->reserved_until = 0;
        /* Under the lock, so that it is not the call of a later reservation that is taken back. */
        if (options->call_later) options->call_later(options->context, 0);
        *refused = !submission;
        if (!submission) pthread_cond_signal(&queue->work);
    }
    pthread_mutex_unlock(&queue->lock);
    return submission;
}

/* A submission of an idle queue that signals the point or one before it, now running; NULL when there is none. */
static mn_submission *claim(mn_timeline *timeline, uint64_t value) {
    mn_submission *submission = NULL;
    bool refused = false;
    pthread_mutex_lock(&caller_runs.lock);
    for (mn_queue *queue = caller_runs.queues; queue && !submission; queue = queue->next_caller_run)
        if (atomic_load_explicit(&queue->ready_count, memory_order_relaxed))
            submission = claim_from(queue, timeline, value, &refused);
    pthread_mutex_unlock(&caller_runs.lock);
    if (refused && !me.walking) me.distrust = DISTRUST;
    me.walking = false;
    return submission;
}

/* A claimed submission is done: claim another like it; NULL when there is none. */
static mn_submission *claim_next(mn_queue *queue, mn_timeline *timeline, uint64_t value) {
    pthread_mutex_lock(&queue->lock);
    mn_submission *submission = queue->closed ? NULL : take_ready(queue, timeline, value);
    if (submission) mn_queue_note_start(queue, submission);
    pthread_mutex_unlock(&queue->lock);
    return submission;
}

/* Stop running submissions; `unfinished` (may be NULL) is left to the queue's thread. */
static void unclaim(mn_queue *queue, mn_submission *unfinished) {
    pthread_mutex_lock(&queue->lock);
    queue->executing = false;
    queue->unfinished = unfinished;
    if (unfinished || queue->ready || queue->closed) pthread_cond_signal(&queue->work);
    pthread_mutex_unlock(&queue->lock);
}

/* ---- running ---------------------------------------------------------------------------------- */

/* Run the submission, and what then is ready and leads to the point. */
static void run_claimed(mn_submission *submission, mn_timeline *timeline, uint64_t value, uint64_t deadline_ns) {
    mn_queue *queue = mn_queue_retain(submission->queue);
    const mn_queue_options *options = &queue->options;
    me.running = true;
    uint64_t state = mn_float_enter();
    while (submission && options->execute_until(options->context, submission, deadline_ns))
        submission = claim_next(queue, timeline, value);
    mn_float_leave(state);
    me.running = false;
    unclaim(queue, submission);
    mn_queue_release(queue);
}

bool mn_caller_run(mn_timeline *timeline, uint64_t value, uint64_t deadline_ns) {
    me.waited = true;
    if (mn_defer_is_active() || me.running) return false; /* within a callback, which must not run kernels */
    if (atomic_load_explicit(&caller_runs.ready, memory_order_relaxed) <= 0) return false;
    mn_submission *submission = claim(timeline, value);
    if (submission) run_claimed(submission, timeline, value, deadline_ns);
    return submission != NULL;
}

void mn_caller_runs_after_fork(void) {
    pthread_mutex_init(&caller_runs.lock, NULL);
    caller_runs.queues = NULL;
    atomic_store(&caller_runs.ready, 0);
}
