/* Queues: which batch may run, who runs it, and what was run. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/caller_runs.h"
#include "core/thread.h"

/* The next step of a chain of batches is often only microseconds away. */
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

static bool is_helpable(const mn_queue *queue) { return queue->options.execute_until != NULL; }

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
    if (is_helpable(queue)) mn_help_register(queue);
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
    if (is_helpable(queue)) mn_help_unregister(queue);
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

static void link_waiting(mn_queue *queue, mn_batch *batch) {
    batch->state = BATCH_WAITING;
    batch->previous = NULL;
    batch->next = queue->waiting;
    if (batch->next) batch->next->previous = batch;
    queue->waiting = batch;
    queue->stats.waiting++;
    atomic_fetch_add_explicit(&queue->waiting_count, 1, memory_order_relaxed);
}

void mn_queue_unlink_waiting(mn_queue *queue, mn_batch *batch) {
    if (batch->previous)
        batch->previous->next = batch->next;
    else
        queue->waiting = batch->next;
    if (batch->next) batch->next->previous = batch->previous;
    queue->stats.waiting--;
    atomic_fetch_sub_explicit(&queue->waiting_count, 1, memory_order_relaxed);
}

static bool is_before(const mn_batch *batch, const mn_batch *other) {
    if (batch->priority != other->priority) return batch->priority > other->priority;
    return batch->sequence < other->sequence;
}

static void push_ready(mn_queue *queue, mn_batch *batch) {
    batch->state = BATCH_READY;
    mn_batch **link = &queue->ready;
    if (queue->ready && !is_before(batch, queue->ready_last)) link = &queue->ready_last->next;
    while (*link && !is_before(batch, *link)) link = &(*link)->next;
    batch->next = *link;
    if (!batch->next) queue->ready_last = batch;
    *link = batch;
    atomic_fetch_add_explicit(&queue->ready_count, 1, memory_order_release);
    if (is_helpable(queue)) mn_help_count_ready(1);
}

mn_batch *mn_queue_take_ready_after(mn_queue *queue, mn_batch *previous) {
    mn_batch *batch = previous ? previous->next : queue->ready;
    *(previous ? &previous->next : &queue->ready) = batch->next;
    if (queue->ready_last == batch) queue->ready_last = previous;
    atomic_fetch_sub_explicit(&queue->ready_count, 1, memory_order_relaxed);
    if (is_helpable(queue)) mn_help_count_ready(-1);
    return batch;
}

static mn_batch *pop_ready(mn_queue *queue) { return mn_queue_take_ready_after(queue, NULL); }

static void note_start(mn_queue *queue, mn_batch *batch) {
    batch->state = BATCH_RUNNING;
    batch->record.start_ns = mn_now();
    if (queue->stats.running++ == 0) queue->busy_since = batch->record.start_ns;
}

/* ---- submission ------------------------------------------------------------------------------- */

/* Room to report every batch that is not yet done, so that finishing one needs no memory. */
static bool reserve_retired(mn_queue *queue, uint32_t count) {
    size_t needed = queue->retired_count + queue->live + count;
    if (needed <= queue->retired_capacity) return true;
    uint64_t *retired = realloc(queue->retired, 2 * needed * sizeof *retired);
    if (!retired) return false;
    queue->retired = retired;
    queue->retired_capacity = 2 * needed;
    return true;
}

/* The queue and the submitter both reach the batches, so the submitter keeps an array of its own. */
static int enlist(mn_queue *queue, mn_batch *batches, mn_batch **list, uint32_t count) {
    pthread_mutex_lock(&queue->lock);
    if (queue->closed) {
        pthread_mutex_unlock(&queue->lock);
        return mn_error(MN_CLOSED, "device %s is closed", queue->label);
    }
    if (!reserve_retired(queue, count)) {
        pthread_mutex_unlock(&queue->lock);
        return mn_error(MN_OUT_OF_MEMORY, "cannot queue %u batches", count);
    }
    for (uint32_t i = 0; i < count; i++) {
        mn_batch *batch = batches;
        batches = batch->next;
        list[i] = batch;
        if (queue->poison) mn_batch_note_failure(batch, queue->poison);
        batch->sequence = queue->stats.submitted + i;
        link_waiting(queue, batch);
    }
    queue->live += count;
    queue->stats.submitted += count;
    pthread_mutex_unlock(&queue->lock);
    return MN_OK;
}

int mn_queue_submit(mn_queue *queue, const mn_submission *submissions, uint32_t count) {
    if (count == 0) return MN_OK;
    if (mn_queue_is_foreign(queue))
        return mn_error(MN_DEVICE, "device %s was opened before this process was forked off: open it (load the model) "
                                   "in the process that uses it", queue->label);
    mn_batch *few[16];
    mn_batch **list = count <= 16 ? few : malloc(count * sizeof *list);
    mn_batch *batches = list ? mn_batches_create(queue, submissions, count) : NULL;
    int code = batches ? enlist(queue, batches, list, count)
                       : mn_error(MN_OUT_OF_MEMORY, "cannot allocate %u batches", count);
    if (code == MN_OK) {
        for (uint32_t i = 0; i < count; i++)
            for (uint32_t s = 0; s < submissions[i].signal_count; s++)
                mn_timeline_promise(submissions[i].signals[s].timeline, submissions[i].signals[s].value);
        if (is_helpable(queue)) mn_help_submit_begin();
        bool outermost = mn_defer_enter();
        for (uint32_t i = 0; i < count; i++) mn_batch_arm(list[i]);
        mn_defer_leave(outermost);
        if (is_helpable(queue)) mn_help_submit_end();
    } else {
        mn_batches_discard(batches);
    }
    if (list != few) free(list);
    return code;
}

/* Decide who is to run a batch just put on the ready list; whether the queue's thread must be woken. */
static bool assign_ready(mn_queue *queue) {
    if (queue->executing || queue->unfinished) return false; /* who runs looks again */
    const void *thread = is_helpable(queue) && !queue->closed ? mn_help_expected() : NULL;
    bool alone = queue->ready == queue->ready_last || queue->reserved_for == thread;
    queue->reserved_until = thread && alone ? mn_now() + MN_RESERVE_NS : 0;
    queue->reserved_for = thread;
    return queue->reserved_until == 0;
}

void mn_queue_ready(mn_batch *batch) {
    mn_queue *queue = batch->queue;
    bool execute = false, feed = false, failed = false, follows = false, wake = false;
    uint64_t reserved_until = 0;
    pthread_mutex_lock(&queue->lock);
    /* Otherwise close or poison withdrew it. */
    bool waits = batch->state == BATCH_WAITING;
    failed = waits && atomic_load(&batch->failure) != NULL;
    follows = failed && batch->native_count;
    if (waits && !follows) {
        mn_queue_unlink_waiting(queue, batch);
        batch->record.ready_ns = mn_now();
        bool is_inline = !failed && queue->options.mode == MN_QUEUE_INLINE;
        execute = is_inline && !queue->options.depth_ns;
        feed = is_inline && !execute;
        if (failed) {
            batch->state = BATCH_WITHDRAWN;
        } else if (execute) {
            note_start(queue, batch);
        } else if (feed) {
            push_ready(queue, batch);
        } else {
            push_ready(queue, batch);
            wake = assign_ready(queue);
            reserved_until = wake ? 0 : queue->reserved_until;
        }
    }
    mn_queue_retain(queue); /* the batch may be gone as soon as the lock is */
    pthread_mutex_unlock(&queue->lock);
    /* The thread waits for the end of the reservation when nobody else can. */
    if (reserved_until && !queue->options.call_later(queue->options.context, reserved_until)) wake = true;
    if (wake) pthread_cond_signal(&queue->work);
    if (follows)
        mn_batch_await_native(batch);
    else if (failed)
        mn_batch_finish(batch, atomic_load(&batch->failure));
    if (execute) queue->options.execute(queue->options.context, batch);
    if (feed) mn_queue_feed(queue);
    mn_queue_release(queue);
}

/* ---- inline mode with a depth ----------------------------------------------------------------- */

/* Lock held. */
static mn_batch *next_for_device(mn_queue *queue) {
    uint64_t running = queue->stats.running;
    if (!queue->ready || (running >= 2 && running * queue->service_ns >= queue->options.depth_ns)) return NULL;
    mn_batch *batch = pop_ready(queue);
    note_start(queue, batch);
    return batch;
}

void mn_queue_feed(mn_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    /* One thread at a time, which looks again: a batch that fails at once comes here from within `execute`. */
    bool mine = !queue->feeding;
    mn_batch *batch = mine ? next_for_device(queue) : NULL;
    queue->feeding = !mine || batch;
    while (batch) {
        pthread_mutex_unlock(&queue->lock);
        mn_status *failure = mn_batch_failed_before(batch);
        if (failure)
            mn_batch_finish(batch, failure);
        else
            queue->options.execute(queue->options.context, batch);
        mn_status_release(failure);
        pthread_mutex_lock(&queue->lock);
        batch = next_for_device(queue);
        queue->feeding = batch != NULL;
    }
    pthread_mutex_unlock(&queue->lock);
}

/* ---- running ---------------------------------------------------------------------------------- */

int mn_queue_pop(mn_queue *queue, uint64_t timeout_ns, mn_batch **batch) {
    uint64_t deadline = mn_deadline(timeout_ns);
    bool in_time = timeout_ns > 0;
    *batch = NULL;
    pthread_mutex_lock(&queue->lock);
    while (!queue->ready && !queue->closed && in_time)
        in_time = mn_cond_wait_until(&queue->work, &queue->lock, deadline);
    if (queue->ready) {
        *batch = pop_ready(queue);
        note_start(queue, *batch);
    }
    bool closed = queue->closed;
    pthread_mutex_unlock(&queue->lock);
    return *batch ? MN_OK : closed ? MN_CLOSED : MN_TIMEOUT;
}

static void spin_for_work(mn_queue *queue) {
    uint64_t until = mn_now() + QUEUE_SPIN_NS;
    while (atomic_load_explicit(&queue->ready_count, memory_order_acquire) == 0 && mn_now() < until)
        for (int i = 0; i < 16; i++) mn_spin_pause();
}

/* The next batch for the queue's thread to run; NULL at the end. */
static mn_batch *next_batch(mn_queue *queue) {
    mn_batch *batch = NULL;
    pthread_mutex_lock(&queue->lock);
    for (;;) {
        uint64_t until = MN_FOREVER;
        if (!queue->executing && queue->unfinished) {
            batch = queue->unfinished;
            queue->unfinished = NULL;
            break;
        }
        if (!queue->executing && queue->ready) {
            if (queue->closed || queue->reserved_until <= mn_now()) {
                batch = pop_ready(queue);
                note_start(queue, batch);
                queue->reserved_until = 0;
                break;
            }
            until = queue->reserved_until;
        }
        if (!queue->executing && !queue->ready && queue->closed) break;
        mn_cond_wait_until(&queue->work, &queue->lock, until);
    }
    queue->executing = batch != NULL;
    pthread_mutex_unlock(&queue->lock);
    return batch;
}

static void execute(mn_queue *queue, mn_batch *batch) {
    const mn_queue_options *options = &queue->options;
    if (options->execute_until)
        while (!options->execute_until(options->context, batch, MN_FOREVER)) {}
    else
        options->execute(options->context, batch);
    pthread_mutex_lock(&queue->lock);
    queue->executing = false;
    pthread_mutex_unlock(&queue->lock);
}

static void *queue_thread(void *argument) {
    mn_queue *queue = argument;
    mn_batch *batch;
    while ((batch = next_batch(queue))) {
        execute(queue, batch);
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

/* ---- waiting threads that run batches --------------------------------------------------------- */

static mn_batch *find_ready(mn_queue *queue, const mn_timeline *timeline, uint64_t value) {
    mn_batch *previous = NULL, *batch = queue->ready;
    while (batch && !mn_batch_leads_to(batch, timeline, value)) previous = batch, batch = batch->next;
    /* What is more urgent goes first, and is not this thread's to run. */
    return batch && batch->priority >= queue->ready->priority ? mn_queue_take_ready_after(queue, previous) : NULL;
}

mn_batch *mn_queue_claim(mn_queue *queue, mn_timeline *timeline, uint64_t value, const void *thread, bool *refused) {
    const mn_queue_options *options = &queue->options;
    mn_batch *batch = NULL;
    bool fit = mn_stack_left() >= MN_STACK_NEEDED && (!options->may_help || options->may_help(options->context));
    pthread_mutex_lock(&queue->lock);
    if (fit && !queue->executing && !queue->unfinished && !queue->closed) batch = find_ready(queue, timeline, value);
    if (batch) {
        note_start(queue, batch);
        queue->executing = true;
    }
    if (queue->reserved_until && queue->reserved_for == thread) {
        queue->reserved_until = 0;
        /* Under the lock, so that it is not the call of a later reservation that is taken back. */
        if (options->call_later) options->call_later(options->context, 0);
        *refused = !batch;
        if (!batch) pthread_cond_signal(&queue->work);
    }
    pthread_mutex_unlock(&queue->lock);
    return batch;
}

mn_batch *mn_queue_claim_next(mn_queue *queue, mn_timeline *timeline, uint64_t value) {
    pthread_mutex_lock(&queue->lock);
    mn_batch *batch = queue->closed ? NULL : find_ready(queue, timeline, value);
    if (batch) note_start(queue, batch);
    pthread_mutex_unlock(&queue->lock);
    return batch;
}

void mn_queue_unclaim(mn_queue *queue, mn_batch *unfinished) {
    pthread_mutex_lock(&queue->lock);
    queue->executing = false;
    queue->unfinished = unfinished;
    if (unfinished || queue->ready || queue->closed) pthread_cond_signal(&queue->work);
    pthread_mutex_unlock(&queue->lock);
}

/* ---- accounting ------------------------------------------------------------------------------- */

static void note_service(mn_queue *queue, const mn_batch *batch, uint64_t now) {
    uint64_t from = batch->record.start_ns > queue->last_end ? batch->record.start_ns : queue->last_end;
    uint64_t took = now > from ? now - from : 0;
    queue->service_ns = queue->service_ns - queue->service_ns / 4 + took / 4;
    queue->last_end = now;
}

static void note_busy(mn_queue *queue, const mn_batch *batch, uint64_t now) {
    if (--queue->stats.running == 0) queue->stats.busy_ns += now - queue->busy_since;
    if (!batch->device_times) return;
    uint64_t from = batch->record.start_ns, until = batch->record.end_ns;
    if (from < queue->device_busy_until) from = queue->device_busy_until;
    if (until > from) queue->device_busy_ns += until - from;
    if (until > queue->device_busy_until) queue->device_busy_until = until;
}

void mn_queue_note_end(mn_batch *batch, bool failed) {
    mn_queue *queue = batch->queue;
    pthread_mutex_lock(&queue->lock);
    if (batch->state == BATCH_RUNNING) {
        uint64_t now = mn_now();
        if (queue->options.depth_ns) note_service(queue, batch, now);
        note_busy(queue, batch, now);
        if (!batch->device_times) batch->record.end_ns = now;
    }
    batch->state = BATCH_DONE;
    queue->stats.completed++;
    queue->stats.failed += failed;
    queue->records[queue->record_count++ % MN_RECORDS] = batch->record;
    if (batch->record.token) queue->retired[queue->retired_count++] = batch->record.token;
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
    uint64_t kept = end < MN_RECORDS ? end : MN_RECORDS;
    size_t count = kept < capacity ? kept : capacity;
    for (size_t i = 0; i < count; i++) records[i] = queue->records[(end - count + i) % MN_RECORDS];
    pthread_mutex_unlock(&queue->lock);
    return count;
}
