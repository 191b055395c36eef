/* The life of one submission: created, armed, ready, run, complete. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/queue.h"

/* ---- creation --------------------------------------------------------------------------------- */

static mn_submission *allocate_submission(const mn_submission_desc *desc) {
    size_t waits = desc->wait_count, signals = desc->signal_count, slots = desc->slot_count;
    size_t size = sizeof(mn_submission) + waits * (sizeof(submission_wait) + sizeof(mn_point)) +
                  signals * sizeof(mn_point) + slots * sizeof(uint64_t);
    mn_submission *submission = calloc(1, size);
    if (!submission) return NULL;
    /* Every part is a multiple of 8 bytes long, so each is aligned. */
    submission->waits = (submission_wait *)(submission + 1);
    submission->native_waits = (mn_point *)(submission->waits + waits);
    submission->signals = submission->native_waits + waits;
    submission->slots = (uint64_t *)(submission->signals + signals);
    return submission;
}

static void run_wait(mn_waiter *waiter, mn_status *status);

static void take_wait(mn_submission *submission, const mn_point *point) {
    submission_wait *wait = &submission->waits[submission->wait_count++];
    wait->waiter.run = run_wait;
    wait->waiter.timeline = mn_timeline_retain(point->timeline);
    wait->waiter.value = point->value;
    wait->submission = submission;
}

static mn_submission *create_submission(mn_queue *queue, const mn_submission_desc *desc) {
    mn_submission *submission = allocate_submission(desc);
    if (!submission) return NULL;
    submission->queue = mn_queue_retain(queue);
    for (uint32_t i = 0; i < desc->wait_count; i++) take_wait(submission, &desc->waits[i]);
    for (uint32_t i = 0; i < desc->signal_count; i++) {
        submission->signals[i] = desc->signals[i];
        mn_timeline_retain(submission->signals[i].timeline);
    }
    submission->signal_count = desc->signal_count;
    submission->slot_count = desc->slot_count;
    if (submission->slot_count) memcpy(submission->slots, desc->slots, submission->slot_count * sizeof(uint64_t));
    submission->work = desc->work;
    if (queue->options.retain_work) queue->options.retain_work(submission->work);
    submission->record.token = desc->token;
    submission->record.submit_ns = mn_now();
    for (uint32_t i = 0; i < submission->signal_count; i++) {
        int32_t priority = mn_timeline_priority(submission->signals[i].timeline);
        if (i == 0 || priority > submission->priority) submission->priority = priority;
    }
    atomic_init(&submission->refs, 2 + (int)submission->wait_count);
    atomic_init(&submission->pending, 1 + submission->wait_count);
    return submission;
}

mn_submission *mn_submissions_create(mn_queue *queue, const mn_submission_desc *descs, uint32_t count) {
    mn_submission *first = NULL, **link = &first;
    for (uint32_t i = 0; i < count; i++) {
        *link = create_submission(queue, &descs[i]);
        if (!*link) {
            mn_submissions_discard(first);
            return NULL;
        }
        link = &(*link)->next;
    }
    return first;
}

static void release_work(mn_submission *submission) {
    const mn_queue_options *options = &submission->queue->options;
    if (submission->work && options->release_work) options->release_work(submission->work);
    submission->work = NULL;
}

static void free_submission(mn_submission *submission) {
    release_work(submission);
    for (uint32_t i = 0; i < submission->wait_count; i++) mn_timeline_release(submission->waits[i].waiter.timeline);
    for (uint32_t i = 0; i < submission->signal_count; i++) mn_timeline_release(submission->signals[i].timeline);
    mn_status_release(atomic_load_explicit(&submission->failure, memory_order_relaxed));
    mn_queue_release(submission->queue);
    free(submission);
}

void mn_submissions_discard(mn_submission *submissions) {
    while (submissions) {
        mn_submission *next = submissions->next;
        free_submission(submissions);
        submissions = next;
    }
}

void mn_submission_release(mn_submission *submission) {
    if (atomic_fetch_sub_explicit(&submission->refs, 1, memory_order_acq_rel) == 1) free_submission(submission);
}

/* ---- waiting ---------------------------------------------------------------------------------- */

/* Later failures are consequences or equals. */
void mn_submission_note_failure(mn_submission *submission, mn_status *status) {
    mn_status *none = NULL;
    mn_status_retain(status);
    if (!atomic_compare_exchange_strong(&submission->failure, &none, status)) mn_status_release(status);
}

/* A failed point that the device, not the core, waits for; NULL when there is none. */
static mn_status *native_failure(mn_submission *submission) {
    mn_status *status = NULL;
    for (uint32_t i = 0; i < submission->native_count && !status; i++)
        mn_timeline_query(submission->native_waits[i].timeline, submission->native_waits[i].value, &status);
    return status;
}

mn_status *mn_submission_failed_before(mn_submission *submission) {
    for (uint32_t i = 0; i < submission->native_count; i++) {
        const mn_point *point = &submission->native_waits[i];
        if (mn_timeline_query(point->timeline, point->value, NULL) == MN_PENDING) return NULL;
    }
    return native_failure(submission);
}

static void arrive(mn_submission *submission) {
    if (atomic_fetch_sub_explicit(&submission->pending, 1, memory_order_acq_rel) == 1) {
        mn_status *status = native_failure(submission);
        if (status) mn_submission_note_failure(submission, status);
        mn_status_release(status);
        mn_queue_ready(submission);
    }
    mn_submission_release(submission);
}

static void run_wait(mn_waiter *waiter, mn_status *status) {
    mn_submission *submission = ((submission_wait *)waiter)->submission;
    if (status) mn_submission_note_failure(submission, status);
    arrive(submission);
}

static void cancel_waits(mn_submission *submission) {
    for (uint32_t i = 0; i < submission->wait_count; i++)
        if (mn_timeline_cancel(&submission->waits[i].waiter)) mn_submission_release(submission);
}

/* Leave the wait to the device when its executor orders the submission after the point. */
static bool is_native(mn_submission *submission, const mn_waiter *waiter) {
    const mn_queue_options *options = &submission->queue->options;
    mn_point point = {waiter->timeline, waiter->value};
    if (!options->native_wait || !options->native_wait(options->context, &point)) return false;
    submission->native_waits[submission->native_count++] = point;
    return true;
}

/* The waits are registered: drop the guard. */
static void end_arming(mn_submission *submission) {
    /* Withdrawn while waits were being registered: the later ones were missed then. */
    pthread_mutex_lock(&submission->queue->lock);
    bool withdrawn = submission->state == SUBMISSION_WITHDRAWN;
    pthread_mutex_unlock(&submission->queue->lock);
    if (withdrawn) cancel_waits(submission);
    arrive(submission);
}

void mn_submission_arm(mn_submission *submission) {
    for (uint32_t i = 0; i < submission->wait_count; i++) {
        submission_wait *wait = &submission->waits[i];
        wait->native = is_native(submission, &wait->waiter);
        if (wait->native)
            arrive(submission); /* not the last: the guard is pending */
        else
            mn_timeline_when(wait->waiter.timeline, wait->waiter.value, &wait->waiter);
    }
    end_arming(submission);
}

void mn_submission_await_native(mn_submission *submission) {
    atomic_fetch_add_explicit(&submission->refs, 1 + (int)submission->native_count, memory_order_relaxed);
    atomic_store(&submission->pending, 1 + submission->native_count);
    submission->native_count = 0;
    for (uint32_t i = 0; i < submission->wait_count; i++) {
        submission_wait *wait = &submission->waits[i];
        if (!wait->native) continue;
        wait->native = false;
        mn_timeline_when(wait->waiter.timeline, wait->waiter.value, &wait->waiter);
    }
    end_arming(submission);
}

/* ---- the end ---------------------------------------------------------------------------------- */

static void complete_points(mn_submission *submission, mn_status *status) {
    for (uint32_t i = 0; i < submission->signal_count; i++) {
        mn_point *point = &submission->signals[i];
        if (status)
            mn_timeline_fail_status(point->timeline, point->value, status);
        else
            mn_timeline_signal(point->timeline, point->value);
    }
}

void mn_submission_finish(mn_submission *submission, mn_status *status) {
    bool outermost = mn_defer_enter();
    mn_queue *queue = submission->queue;
    mn_status *reason = status ? mn_status_retain(status) : native_failure(submission);
    /* Who sees a point complete may free what the submission used and read the queue's counters. */
    release_work(submission);
    mn_queue_note_end(submission, reason != NULL);
    if (queue->options.depth_ns) mn_queue_feed(queue);
    complete_points(submission, reason);
    mn_status_release(reason);
    mn_queue_retain(queue);
    mn_submission_release(submission);
    mn_queue_note_gone(queue);
    mn_queue_release(queue);
    mn_defer_leave(outermost);
}

void mn_submission_complete(mn_submission *submission, int code, const char *message) {
    mn_status *status = code == MN_OK ? NULL : mn_status_create(code, message, 0);
    mn_submission_finish(submission, status);
    mn_status_release(status);
}

static mn_status *closed_status(const mn_submission *submission) {
    char message[256];
    const mn_queue *queue = submission->queue;
    for (uint32_t i = 0; i < submission->wait_count; i++) {
        const mn_waiter *waiter = &submission->waits[i].waiter;
        if (mn_timeline_query(waiter->timeline, waiter->value, NULL) != MN_PENDING) continue;
        snprintf(message, sizeof message,
                 "device %s was closed while a submission waited for point %llu of semaphore %s (now at %llu)",
                 queue->label, (unsigned long long)waiter->value, mn_timeline_label(waiter->timeline),
                 (unsigned long long)mn_timeline_value(waiter->timeline));
        return mn_status_create(MN_EXECUTION, message, 0);
    }
    snprintf(message, sizeof message, "device %s was closed before a submission could run", queue->label);
    return mn_status_create(MN_EXECUTION, message, 0);
}

void mn_submission_withdraw(mn_submission *submission, mn_status *status) {
    mn_status *reason = status ? mn_status_retain(status) : closed_status(submission);
    cancel_waits(submission);
    mn_submission_finish(submission, reason);
    mn_status_release(reason);
}

bool mn_submission_leads_to(const mn_submission *submission, const mn_timeline *timeline, uint64_t value) {
    for (uint32_t i = 0; i < submission->signal_count; i++)
        if (submission->signals[i].timeline == timeline && submission->signals[i].value <= value) return true;
    return false;
}

/* ---- for executors ---------------------------------------------------------------------------- */

void *mn_submission_work(const mn_submission *submission) { return submission->work; }

uint64_t mn_submission_token(const mn_submission *submission) { return submission->record.token; }

const uint64_t *mn_submission_slots(const mn_submission *submission, uint32_t *count) {
    *count = submission->slot_count;
    return submission->slots;
}

const mn_point *mn_submission_native_waits(const mn_submission *submission, uint32_t *count) {
    *count = submission->native_count;
    return submission->native_waits;
}

const mn_point *mn_submission_signals(const mn_submission *submission, uint32_t *count) {
    *count = submission->signal_count;
    return submission->signals;
}

void mn_submission_set_times(mn_submission *submission, uint64_t start_ns, uint64_t end_ns) {
    submission->record.start_ns = start_ns;
    submission->record.end_ns = end_ns;
    submission->device_times = true;
}
