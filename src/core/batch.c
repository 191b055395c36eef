/* The life of one batch: created, armed, ready, run, complete. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/queue.h"

/* ---- creation --------------------------------------------------------------------------------- */

static mn_batch *allocate_batch(const mn_submission *submission) {
    size_t waits = submission->wait_count, signals = submission->signal_count, slots = submission->slot_count;
    size_t size = sizeof(mn_batch) + waits * (sizeof(batch_wait) + sizeof(mn_point)) + signals * sizeof(mn_point) +
                  slots * sizeof(uint64_t);
    mn_batch *batch = calloc(1, size);
    if (!batch) return NULL;
    /* Every part is a multiple of 8 bytes long, so each is aligned. */
    batch->waits = (batch_wait *)(batch + 1);
    batch->native_waits = (mn_point *)(batch->waits + waits);
    batch->signals = batch->native_waits + waits;
    batch->slots = (uint64_t *)(batch->signals + signals);
    return batch;
}

static void run_wait(mn_waiter *waiter, mn_status *status);

static void take_wait(mn_batch *batch, const mn_point *point) {
    batch_wait *wait = &batch->waits[batch->wait_count++];
    wait->waiter.run = run_wait;
    wait->waiter.timeline = mn_timeline_retain(point->timeline);
    wait->waiter.value = point->value;
    wait->batch = batch;
}

static mn_batch *create_batch(mn_queue *queue, const mn_submission *submission) {
    mn_batch *batch = allocate_batch(submission);
    if (!batch) return NULL;
    batch->queue = mn_queue_retain(queue);
    for (uint32_t i = 0; i < submission->wait_count; i++) take_wait(batch, &submission->waits[i]);
    for (uint32_t i = 0; i < submission->signal_count; i++) {
        batch->signals[i] = submission->signals[i];
        mn_timeline_retain(batch->signals[i].timeline);
    }
    batch->signal_count = submission->signal_count;
    batch->slot_count = submission->slot_count;
    if (batch->slot_count) memcpy(batch->slots, submission->slots, batch->slot_count * sizeof(uint64_t));
    batch->work = submission->work;
    if (queue->options.retain_work) queue->options.retain_work(batch->work);
    batch->record.token = submission->token;
    batch->record.submit_ns = mn_now();
    for (uint32_t i = 0; i < batch->signal_count; i++) {
        int32_t priority = mn_timeline_priority(batch->signals[i].timeline);
        if (i == 0 || priority > batch->priority) batch->priority = priority;
    }
    atomic_init(&batch->refs, 2 + (int)batch->wait_count);
    atomic_init(&batch->pending, 1 + batch->wait_count);
    return batch;
}

mn_batch *mn_batches_create(mn_queue *queue, const mn_submission *submissions, uint32_t count) {
    mn_batch *first = NULL, **link = &first;
    for (uint32_t i = 0; i < count; i++) {
        *link = create_batch(queue, &submissions[i]);
        if (!*link) {
            mn_batches_discard(first);
            return NULL;
        }
        link = &(*link)->next;
    }
    return first;
}

static void release_work(mn_batch *batch) {
    if (batch->work && batch->queue->options.release_work) batch->queue->options.release_work(batch->work);
    batch->work = NULL;
}

static void free_batch(mn_batch *batch) {
    release_work(batch);
    for (uint32_t i = 0; i < batch->wait_count; i++) mn_timeline_release(batch->waits[i].waiter.timeline);
    for (uint32_t i = 0; i < batch->signal_count; i++) mn_timeline_release(batch->signals[i].timeline);
    mn_status_release(atomic_load_explicit(&batch->failure, memory_order_relaxed));
    mn_queue_release(batch->queue);
    free(batch);
}

void mn_batches_discard(mn_batch *batches) {
    while (batches) {
        mn_batch *next = batches->next;
        free_batch(batches);
        batches = next;
    }
}

void mn_batch_release(mn_batch *batch) {
    if (atomic_fetch_sub_explicit(&batch->refs, 1, memory_order_acq_rel) == 1) free_batch(batch);
}

/* ---- waiting ---------------------------------------------------------------------------------- */

/* Later failures are consequences or equals. */
void mn_batch_note_failure(mn_batch *batch, mn_status *status) {
    mn_status *none = NULL;
    mn_status_retain(status);
    if (!atomic_compare_exchange_strong(&batch->failure, &none, status)) mn_status_release(status);
}

/* A failed point that the device, not the core, waits for; NULL when there is none. */
static mn_status *native_failure(mn_batch *batch) {
    mn_status *status = NULL;
    for (uint32_t i = 0; i < batch->native_count && !status; i++)
        mn_timeline_query(batch->native_waits[i].timeline, batch->native_waits[i].value, &status);
    return status;
}

mn_status *mn_batch_failed_before(mn_batch *batch) {
    for (uint32_t i = 0; i < batch->native_count; i++)
        if (mn_timeline_query(batch->native_waits[i].timeline, batch->native_waits[i].value, NULL) == MN_PENDING)
            return NULL;
    return native_failure(batch);
}

static void arrive(mn_batch *batch) {
    if (atomic_fetch_sub_explicit(&batch->pending, 1, memory_order_acq_rel) == 1) {
        mn_status *status = native_failure(batch);
        if (status) mn_batch_note_failure(batch, status);
        mn_status_release(status);
        mn_queue_ready(batch);
    }
    mn_batch_release(batch);
}

static void run_wait(mn_waiter *waiter, mn_status *status) {
    mn_batch *batch = ((batch_wait *)waiter)->batch;
    if (status) mn_batch_note_failure(batch, status);
    arrive(batch);
}

static void cancel_waits(mn_batch *batch) {
    for (uint32_t i = 0; i < batch->wait_count; i++)
        if (mn_timeline_cancel(&batch->waits[i].waiter)) mn_batch_release(batch);
}

/* Leave the point to the device when its executor orders the batch after it. */
static bool is_native(mn_batch *batch, const mn_waiter *waiter) {
    const mn_queue_options *options = &batch->queue->options;
    mn_point point = {waiter->timeline, waiter->value};
    if (!options->native_wait || !options->native_wait(options->context, &point)) return false;
    batch->native_waits[batch->native_count++] = point;
    return true;
}

/* The waits are registered: drop the guard. */
static void end_arming(mn_batch *batch) {
    /* Withdrawn while waits were being registered: the later ones were missed then. */
    pthread_mutex_lock(&batch->queue->lock);
    bool withdrawn = batch->state == BATCH_WITHDRAWN;
    pthread_mutex_unlock(&batch->queue->lock);
    if (withdrawn) cancel_waits(batch);
    arrive(batch);
}

void mn_batch_arm(mn_batch *batch) {
    for (uint32_t i = 0; i < batch->wait_count; i++) {
        batch_wait *wait = &batch->waits[i];
        wait->native = is_native(batch, &wait->waiter);
        if (wait->native)
            arrive(batch); /* not the last: the guard is pending */
        else
            mn_timeline_when(wait->waiter.timeline, wait->waiter.value, &wait->waiter);
    }
    end_arming(batch);
}

void mn_batch_await_native(mn_batch *batch) {
    atomic_fetch_add_explicit(&batch->refs, 1 + (int)batch->native_count, memory_order_relaxed);
    atomic_store(&batch->pending, 1 + batch->native_count);
    batch->native_count = 0;
    for (uint32_t i = 0; i < batch->wait_count; i++) {
        batch_wait *wait = &batch->waits[i];
        if (!wait->native) continue;
        wait->native = false;
        mn_timeline_when(wait->waiter.timeline, wait->waiter.value, &wait->waiter);
    }
    end_arming(batch);
}

/* ---- the end ---------------------------------------------------------------------------------- */

static void complete_points(mn_batch *batch, mn_status *status) {
    for (uint32_t i = 0; i < batch->signal_count; i++) {
        mn_point *point = &batch->signals[i];
        if (status)
            mn_timeline_fail_status(point->timeline, point->value, status);
        else
            mn_timeline_signal(point->timeline, point->value);
    }
}

void mn_batch_finish(mn_batch *batch, mn_status *status) {
    bool outermost = mn_defer_enter();
    mn_queue *queue = batch->queue;
    mn_status *reason = status ? mn_status_retain(status) : native_failure(batch);
    /* Who sees a point complete may free what the batch used and read the queue's counters. */
    release_work(batch);
    mn_queue_note_end(batch, reason != NULL);
    if (queue->options.depth_ns) mn_queue_feed(queue);
    complete_points(batch, reason);
    mn_status_release(reason);
    mn_queue_retain(queue);
    mn_batch_release(batch);
    mn_queue_note_gone(queue);
    mn_queue_release(queue);
    mn_defer_leave(outermost);
}

void mn_batch_complete(mn_batch *batch, int code, const char *message) {
    mn_status *status = code == MN_OK ? NULL : mn_status_create(code, message, 0);
    mn_batch_finish(batch, status);
    mn_status_release(status);
}

static mn_status *closed_status(const mn_batch *batch) {
    char message[256];
    const mn_queue *queue = batch->queue;
    for (uint32_t i = 0; i < batch->wait_count; i++) {
        const mn_waiter *waiter = &batch->waits[i].waiter;
        if (mn_timeline_query(waiter->timeline, waiter->value, NULL) != MN_PENDING) continue;
        snprintf(message, sizeof message, "device %s was closed while a batch waited for point %llu of semaphore %s (now at %llu)",
                 queue->label, (unsigned long long)waiter->value, mn_timeline_label(waiter->timeline),
                 (unsigned long long)mn_timeline_value(waiter->timeline));
        return mn_status_create(MN_EXECUTION, message, 0);
    }
    snprintf(message, sizeof message, "device %s was closed before a batch could run", queue->label);
    return mn_status_create(MN_EXECUTION, message, 0);
}

void mn_batch_withdraw(mn_batch *batch, mn_status *status) {
    mn_status *reason = status ? mn_status_retain(status) : closed_status(batch);
    cancel_waits(batch);
    mn_batch_finish(batch, reason);
    mn_status_release(reason);
}

bool mn_batch_leads_to(const mn_batch *batch, const mn_timeline *timeline, uint64_t value) {
    for (uint32_t i = 0; i < batch->signal_count; i++)
        if (batch->signals[i].timeline == timeline && batch->signals[i].value <= value) return true;
    return false;
}

/* ---- for executors ---------------------------------------------------------------------------- */

void *mn_batch_work(const mn_batch *batch) { return batch->work; }

uint64_t mn_batch_token(const mn_batch *batch) { return batch->record.token; }

const uint64_t *mn_batch_slots(const mn_batch *batch, uint32_t *count) {
    *count = batch->slot_count;
    return batch->slots;
}

const mn_point *mn_batch_native_waits(const mn_batch *batch, uint32_t *count) {
    *count = batch->native_count;
    return batch->native_waits;
}

const mn_point *mn_batch_signals(const mn_batch *batch, uint32_t *count) {
    *count = batch->signal_count;
    return batch->signals;
}

void mn_batch_set_times(mn_batch *batch, uint64_t start_ns, uint64_t end_ns) {
    batch->record.start_ns = start_ns;
    batch->record.end_ns = end_ns;
    batch->device_times = true;
}
