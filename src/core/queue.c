/* Queues: which submission may run next, and which thread runs it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/caller_runs.h"
#include "core/thread.h"

/* The next step of a chain of submissions is often only microseconds away. */
#define QUEUE_SPIN_NS 30000u

static void *queue_thread(void *argument);

/* ---- life ------------------------------------------------------------------------------------- */

static bool start_thread(mn_queue *queue) {
    char name[16];
    snprintf(name, sizeof name, "mn-%.12s", queue->label);
    queue->thread_running = true;
    mn_queue_retain(queue);
    int reason = mn_thread_start(NULL, name, queue->options.bind_cpu - 1, queue_thread, queue);
    if (reason == 0) return true;
    if (queue->options.bind_cpu && reason == EINVAL)
        mn_error(MN_DEVICE, "cannot bind the thread of queue %s to CPU %d: this process may not use it", queue->label,
                 queue->options.bind_cpu - 1);
    else
        mn_error(MN_DEVICE, "cannot start the thread of queue %s: %s", queue->label, strerror(reason));
    queue->options.release_context = NULL; /* the caller keeps what it handed in vain */
    queue->thread_running = false;
    mn_queue_release(queue);
    return false;
}

bool mn_queue_is_foreign(const mn_queue *queue) { return queue->forks != mn_fork_count(); }

mn_queue *mn_queue_create(const mn_queue_options *options) {
    if (options->mode < MN_QUEUE_THREAD || options->mode > MN_QUEUE_PULL ||
        (options->mode == MN_QUEUE_INLINE && !options->execute) ||
        (options->mode == MN_QUEUE_THREAD && !options->execute == !options->execute_until)) {
        mn_error(MN_INVALID, "a queue needs a known mode, and an executor unless it is pulled from");
        return NULL;
    }
    mn_queue *queue = calloc(1, sizeof *queue);
    if (!queue) {
        mn_error(MN_OUT_OF_MEMORY, "cannot allocate a queue");
        return NULL;
    }
    atomic_init(&queue->refs, 1);
    queue->options = *options;
    queue->forks = mn_fork_count();
    snprintf(queue->label, sizeof queue->label, "%s", options->label ? options->label : "");
    queue->options.label = queue->label;
    pthread_mutex_init(&queue->lock, NULL);
    mn_cond_init(&queue->work);
    mn_cond_init(&queue->idle);
    if (options->mode == MN_QUEUE_THREAD && !start_thread(queue)) {
        mn_queue_release(queue);
        return NULL;
    }
    if (mn_queue_allows_caller_runs(queue)) mn_caller_runs_register(queue);
    mn_queue_register(queue);
    return queue;
}

mn_queue *mn_queue_retain(mn_queue *queue) {
    atomic_fetch_add_explicit(&queue->refs, 1, memory_order_relaxed);
    return queue;
}

void mn_queue_release(mn_queue *queue) {
    if (!queue || mn_queue_is_foreign(queue)) return;
    if (atomic_fetch_sub_explicit(&queue->refs, 1, memory_order_acq_rel) != 1) return;
    mn_queue_unregister(queue);
    if (mn_queue_allows_caller_runs(queue)) mn_caller_runs_unregister(queue);
    /* First: it may end threads that still look at the queue. */
    if (queue->options.release_context) queue->options.release_context(queue->options.context);
    mn_status_release(queue->poison);
    free(queue->retired);
    pthread_cond_destroy(&queue->idle);
    pthread_cond_destroy(&queue->work);
    pthread_mutex_destroy(&queue->lock);
    free(queue);
}

/* ---- lists (under queue->lock) ---------------------------------------------------------------- */

static void link_waiting(mn_queue *queue, mn_submission *submission) {
    submission->state = SUBMISSION_WAITING;
    submission->previous = NULL;
    submission->next = queue->waiting;
    if (submission->next) submission->next->previous = submission;
    queue->waiting = submission;
    queue->stats.waiting++;
    atomic_fetch_add_explicit(&queue->waiting_count, 1, memory_order_relaxed);
}

void mn_queue_unlink_waiting(mn_queue *queue, mn_submission *submission) {
    if (submission->previous)
        submission->previous->next = submission->next;
    else
        queue->waiting = submission->next;
    if (submission->next) submission->next->previous = submission->previous;
    queue->stats.waiting--;
    atomic_fetch_sub_explicit(&queue->waiting_count, 1, memory_order_relaxed);
}

static bool is_before(const mn_submission *submission, const mn_submission *other) {
    if (submission->priority != other->priority) return submission->priority > other->priority;
    return submission->sequence < other->sequence;
}

static void push_ready(mn_queue *queue, mn_submission *submission) {
    submission->state = SUBMISSION_READY;
    mn_submission **link = &queue->ready;
    if (queue->ready && !is_before(submission, queue->ready_last)) link = &queue->ready_last->next;
    while (*link && !is_before(submission, *link)) link = &(*link)->next;
    submission->next = *link;
    if (!submission->next) queue->ready_last = submission;
    *link = submission;
    atomic_fetch_add_explicit(&queue->ready_count, 1, memory_order_release);
    if (mn_queue_allows_caller_runs(queue)) mn_caller_runs_count_ready(1);
}

mn_submission *mn_queue_take_ready_after(mn_queue *queue, mn_submission *previous) {
    mn_submission *submission = previous ? previous->next : queue->ready;
    *(previous ? &previous->next : &queue->ready) = submission->next;
    if (queue->ready_last == submission) queue->ready_last = previous;
    atomic_fetch_sub_explicit(&queue->ready_count, 1, memory_order_relaxed);
    if (mn_queue_allows_caller_runs(queue)) mn_caller_runs_count_ready(-1);
    return submission;
}

static mn_submission *pop_ready(mn_queue *queue) { return mn_queue_take_ready_after(queue, NULL); }

/* ---- submission ------------------------------------------------------------------------------- */

/* Room to report every submission that is not yet done, so that finishing one needs no memory. */
static bool reserve_retired(mn_queue *queue, uint32_t count) {
    size_t needed = queue->retired_count + queue->live + count;
    if (needed <= queue->retired_capacity) return true;
    uint64_t *retired = realloc(queue->retired, 2 * needed * sizeof *retired);
    if (!retired) return false;
    queue->retired = retired;
    queue->retired_capacity = 2 * needed;
    return true;
}

/* The queue and the submitter both reach the submissions, so the submitter keeps an array of its own. */
static int enlist(mn_queue *queue, mn_submission *submissions, mn_submission **list, uint32_t count) {
    pthread_mutex_lock(&queue->lock);
    if (queue->closed) {
        pthread_mutex_unlock(&queue->lock);
        return mn_error(MN_CLOSED, "device %s is closed", queue->label);
    }
    if (!reserve_retired(queue, count)) {
        pthread_mutex_unlock(&queue->lock);
        return mn_error(MN_OUT_OF_MEMORY, "cannot queue %u submissions", count);
    }
    for (uint32_t i = 0; i < count; i++) {
        mn_submission *submission = submissions;
        submissions = submission->next;
        list[i] = submission;
        if (queue->poison) mn_submission_note_failure(submission, queue->poison);
        submission->sequence = queue->stats.submitted + i;
        link_waiting(queue, submission);
    }
    queue->live += count;
    queue->stats.submitted += count;
    pthread_mutex_unlock(&queue->lock);
    return MN_OK;
}

int mn_queue_submit(mn_queue *queue, const mn_submission_desc *descs, uint32_t count) {
    if (count == 0) return MN_OK;
    if (mn_queue_is_foreign(queue))
        return mn_error(MN_DEVICE, "device %s was opened before this process was forked off: open it (load the model) "
                                   "in the process that uses it", queue->label);
    mn_submission *on_stack[16];
    mn_submission **list = count <= 16 ? on_stack : malloc(count * sizeof *list);
    mn_submission *submissions = list ? mn_submissions_create(queue, descs, count) : NULL;
    int code = submissions ? enlist(queue, submissions, list, count)
                       : mn_error(MN_OUT_OF_MEMORY, "cannot allocate %u submissions", count);
    if (code == MN_OK) {
        for (uint32_t i = 0; i < count; i++)
            for (uint32_t s = 0; s < descs[i].signal_count; s++)
                mn_timeline_promise(descs[i].signals[s].timeline, descs[i].signals[s].value);
        if (mn_queue_allows_caller_runs(queue)) mn_caller_runs_submit_begin();
        bool outermost = mn_defer_enter();
        for (uint32_t i = 0; i < count; i++) mn_submission_arm(list[i]);
        mn_defer_leave(outermost);
        if (mn_queue_allows_caller_runs(queue)) mn_caller_runs_submit_end();
    } else {
        mn_submissions_discard(submissions);
    }
    if (list != on_stack) free(list);
    return code;
}

/* Decide who is to run a submission just put on the ready list; whether the queue's thread must be woken. */
static bool assign_ready(mn_queue *queue) {
    if (queue->executing || queue->unfinished) return false; /* who runs looks again */
    const void *thread = mn_queue_allows_caller_runs(queue) && !queue->closed ? mn_caller_runs_expected() : NULL;
    bool alone = queue->ready == queue->ready_last || queue->reserved_for == thread;
    queue->reserved_until = thread && alone ? mn_now() + MN_RESERVE_NS : 0;
    queue->reserved_for = thread;
    return queue->reserved_until == 0;
}

void mn_queue_ready(mn_submission *submission) {
    mn_queue *queue = submission->queue;
    bool execute = false, feed = false, failed = false, await_device = false, wake = false;
    uint64_t reserved_until = 0;
    pthread_mutex_lock(&queue->lock);
    /* Otherwise close or poison withdrew it. */
    bool waits = submission->state == SUBMISSION_WAITING;
    failed = waits && atomic_load(&submission->failure) != NULL;
    await_device = failed && submission->native_count;
    if (waits && !await_device) {
        mn_queue_unlink_waiting(queue, submission);
        submission->record.ready_ns = mn_now();
        bool is_inline = !failed && queue->options.mode == MN_QUEUE_INLINE;
        execute = is_inline && !queue->options.depth_ns;
        feed = is_inline && !execute;
        if (failed) {
            submission->state = SUBMISSION_WITHDRAWN;
        } else if (execute) {
            mn_queue_note_start(queue, submission);
        } else if (feed) {
            push_ready(queue, submission);
        } else {
            push_ready(queue, submission);
            wake = assign_ready(queue);
            reserved_until = wake ? 0 : queue->reserved_until;
        }
    }
    mn_queue_retain(queue); /* the submission may be gone as soon as the lock is */
    pthread_mutex_unlock(&queue->lock);
    /* The thread waits for the end of the reservation when nobody else can. */
    if (reserved_until && !queue->options.call_later(queue->options.context, reserved_until)) wake = true;
    if (wake) pthread_cond_signal(&queue->work);
    if (await_device)
        mn_submission_await_native(submission);
    else if (failed)
        mn_submission_finish(submission, atomic_load(&submission->failure));
    if (execute) queue->options.execute(queue->options.context, submission);
    if (feed) mn_queue_feed(queue);
    mn_queue_release(queue);
}

/* ---- inline mode with a depth ----------------------------------------------------------------- */

/* Lock held. */
static mn_submission *next_for_device(mn_queue *queue) {
    uint64_t running = queue->stats.running;
    if (!queue->ready || (running >= 2 && running * queue->service_ns >= queue->options.depth_ns)) return NULL;
    mn_submission *submission = pop_ready(queue);
    mn_queue_note_start(queue, submission);
    return submission;
}

void mn_queue_feed(mn_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    /* One thread at a time, which looks again: a submission that fails at once gets here from within `execute`. */
    bool first = !queue->feeding;
    mn_submission *submission = first ? next_for_device(queue) : NULL;
    queue->feeding = !first || submission;
    while (submission) {
        pthread_mutex_unlock(&queue->lock);
        mn_status *failure = mn_submission_failed_before(submission);
        if (failure)
            mn_submission_finish(submission, failure);
        else
            queue->options.execute(queue->options.context, submission);
        mn_status_release(failure);
        pthread_mutex_lock(&queue->lock);
        submission = next_for_device(queue);
        queue->feeding = submission != NULL;
    }
    pthread_mutex_unlock(&queue->lock);
}

/* ---- running ---------------------------------------------------------------------------------- */

int mn_queue_pop(mn_queue *queue, uint64_t timeout_ns, mn_submission **submission) {
    uint64_t deadline = mn_deadline(timeout_ns);
    bool in_time = timeout_ns > 0;
    *submission = NULL;
    pthread_mutex_lock(&queue->lock);
    while (!queue->ready && !queue->closed && in_time)
        in_time = mn_cond_wait_until(&queue->work, &queue->lock, deadline);
    if (queue->ready) {
        *submission = pop_ready(queue);
        mn_queue_note_start(queue, *submission);
    }
    bool closed = queue->closed;
    pthread_mutex_unlock(&queue->lock);
    return *submission ? MN_OK : closed ? MN_CLOSED : MN_TIMEOUT;
}

static void spin_for_work(mn_queue *queue) {
    uint64_t until = mn_now() + QUEUE_SPIN_NS;
    while (atomic_load_explicit(&queue->ready_count, memory_order_acquire) == 0 && mn_now() < until)
        for (int i = 0; i < 16; i++) mn_spin_pause();
}

/* The next submission for the queue's thread to run; NULL at the end. */
static mn_submission *next_submission(mn_queue *queue) {
    mn_submission *submission = NULL;
    pthread_mutex_lock(&queue->lock);
    for (;;) {
        uint64_t until = MN_FOREVER;
        if (!queue->executing && queue->unfinished) {
            submission = queue->unfinished;
            queue->unfinished = NULL;
            break;
        }
        if (!queue->executing && queue->ready) {
            if (queue->closed || queue->reserved_until <= mn_now()) {
                submission = pop_ready(queue);
                mn_queue_note_start(queue, submission);
                queue->reserved_until = 0;
                break;
            }
            until = queue->reserved_until;
        }
        if (!queue->executing && !queue->ready && queue->closed) break;
        mn_cond_wait_until(&queue->work, &queue->lock, until);
    }
    queue->executing = submission != NULL;
    pthread_mutex_unlock(&queue->lock);
    return submission;
}

static void execute(mn_queue *queue, mn_submission *submission) {
    const mn_queue_options *options = &queue->options;
    if (options->execute_until)
        while (!options->execute_until(options->context, submission, MN_FOREVER)) {}
    else
        options->execute(options->context, submission);
    pthread_mutex_lock(&queue->lock);
    queue->executing = false;
    pthread_mutex_unlock(&queue->lock);
}

static void *queue_thread(void *argument) {
    mn_queue *queue = argument;
    mn_submission *submission;
    while ((submission = next_submission(queue))) {
        execute(queue, submission);
        spin_for_work(queue);
    }
    pthread_mutex_lock(&queue->lock);
    queue->thread_running = false;
    pthread_cond_broadcast(&queue->idle);
    pthread_mutex_unlock(&queue->lock);
    mn_queue_release(queue);
    return NULL;
}

void mn_queue_kick(mn_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    queue->reserved_until = 0;
    pthread_cond_signal(&queue->work);
    pthread_mutex_unlock(&queue->lock);
}
