/* What a queue has run: statistics, records, and the tokens of submissions that are done. */
#include <string.h>

#include "core/queue.h"

void mn_queue_note_start(mn_queue *queue, mn_submission *submission) {
    submission->state = SUBMISSION_RUNNING;
    submission->record.start_ns = mn_now();
    if (queue->stats.running++ == 0) queue->busy_since = submission->record.start_ns;
}

static void note_service(mn_queue *queue, const mn_submission *submission, uint64_t now) {
    uint64_t from = submission->record.start_ns > queue->last_end ? submission->record.start_ns : queue->last_end;
    uint64_t took = now > from ? now - from : 0;
    queue->service_ns = queue->service_ns - queue->service_ns / 4 + took / 4;
    queue->last_end = now;
}

static void note_busy(mn_queue *queue, const mn_submission *submission, uint64_t now) {
    if (--queue->stats.running == 0) queue->stats.busy_ns += now - queue->busy_since;
    if (!submission->device_times) return;
    uint64_t from = submission->record.start_ns, until = submission->record.end_ns;
    if (from < queue->device_busy_until) from = queue->device_busy_until;
    if (until > from) queue->device_busy_ns += until - from;
    if (until > queue->device_busy_until) queue->device_busy_until = until;
}

void mn_queue_note_end(mn_submission *submission, bool failed) {
    mn_queue *queue = submission->queue;
    pthread_mutex_lock(&queue->lock);
    if (submission->state == SUBMISSION_RUNNING) {
        uint64_t now = mn_now();
        if (queue->options.depth_ns) note_service(queue, submission, now);
        note_busy(queue, submission, now);
        if (!submission->device_times) submission->record.end_ns = now;
    }
    submission->state = SUBMISSION_DONE;
    queue->stats.completed++;
    queue->stats.failed += failed;
    queue->records[queue->record_count++ % MN_QUEUE_RECORDS] = submission->record;
    if (submission->record.token) queue->retired[queue->retired_count++] = submission->record.token;
    pthread_mutex_unlock(&queue->lock);
}

void mn_queue_note_gone(mn_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    if (--queue->live == 0) pthread_cond_broadcast(&queue->idle);
    pthread_mutex_unlock(&queue->lock);
}

void mn_queue_get_stats(mn_queue *queue, mn_queue_stats *stats) {
    pthread_mutex_lock(&queue->lock);
    *stats = queue->stats;
    if (queue->device_busy_ns)
        stats->busy_ns = queue->device_busy_ns;
    else if (queue->stats.running)
        stats->busy_ns += mn_now() - queue->busy_since;
    pthread_mutex_unlock(&queue->lock);
}

size_t mn_queue_retired(mn_queue *queue, uint64_t *tokens, size_t capacity) {
    pthread_mutex_lock(&queue->lock);
    size_t count = queue->retired_count < capacity ? queue->retired_count : capacity;
    if (count) {
        queue->retired_count -= count;
        memcpy(tokens, queue->retired, count * sizeof *tokens);
        memmove(queue->retired, queue->retired + count, queue->retired_count * sizeof *tokens);
    }
    pthread_mutex_unlock(&queue->lock);
    return count;
}

size_t mn_queue_records(mn_queue *queue, mn_record *records, size_t capacity) {
    pthread_mutex_lock(&queue->lock);
    uint64_t end = queue->record_count;
    uint64_t kept = end < MN_QUEUE_RECORDS ? end : MN_QUEUE_RECORDS;
    size_t count = kept < capacity ? kept : capacity;
    for (size_t i = 0; i < count; i++) records[i] = queue->records[(end - count + i) % MN_QUEUE_RECORDS];
    pthread_mutex_unlock(&queue->lock);
    return count;
}
