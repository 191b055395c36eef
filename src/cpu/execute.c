/* The queue that runs command lists on a worker pool. */
#include <stdlib.h>

#include "cpu/list.h"
#include "core/queue.h"
#include "core/thread.h"

typedef struct executor {
    mn_pool *pool;
    mn_queue *queue;
    mn_submission *running; /* begun and not over; the queue starts no other */
    /* Debug facility: what to do to a coming submission. */
    struct {
        atomic_bool armed; /* read without the lock: submissions that nobody waits for with a fault pass by */
        pthread_mutex_t lock;
        pthread_cond_t changed;
        uint64_t after;
        mn_status *failure; /* NULL: it hangs */
        mn_submission *held;
    } fault;
} executor;

/* The failure injected into this submission, with a reference, or NULL; whether it hangs until the deadline. */
static bool strike(executor *self, mn_submission *submission, uint64_t deadline_ns, mn_status **failure) {
    bool in_time = true;
    pthread_mutex_lock(&self->fault.lock);
    if (!self->fault.held && self->fault.armed && self->fault.after-- == 0) {
        *failure = self->fault.failure;
        self->fault.failure = NULL;
        if (*failure)
            self->fault.armed = false;
        else
            self->fault.held = submission;
    }
    while (self->fault.held == submission && in_time)
        in_time = mn_cond_wait_until(&self->fault.changed, &self->fault.lock, deadline_ns);
    pthread_mutex_unlock(&self->fault.lock);
    return !in_time;
}

/* Run the submission, or go on with it, until it is over (true) or the deadline has passed (false). */
static bool execute_until(void *context, mn_submission *submission, uint64_t deadline_ns) {
    executor *self = context;
    if (self->running != submission) {
        mn_status *failure = NULL;
        if (atomic_load_explicit(&self->fault.armed, memory_order_relaxed) &&
            strike(self, submission, deadline_ns, &failure))
            return false;
        if (failure) {
            mn_submission_finish(submission, failure);
            mn_status_release(failure);
            return true;
        }
        uint32_t slot_count;
        const uint64_t *slots = mn_submission_slots(submission, &slot_count);
        mn_cpu_list *list = mn_submission_work(submission);
        int code = mn_cpu_list_prepare(list, slots, slot_count, mn_pool_threads(self->pool));
        if (code != MN_OK) {
            mn_submission_complete(submission, code, mn_last_message());
            return true;
        }
        self->running = submission;
        mn_pool_begin(self->pool, mn_cpu_list_program(list));
    }
    if (!mn_pool_lead(self->pool, deadline_ns)) return false;
    self->running = NULL;
    mn_submission_complete(submission, MN_OK, "");
    return true;
}

static bool caller_may_run(void *context) { return !mn_pool_is_bound_here(((executor *)context)->pool); }

static bool call_later(void *context, uint64_t when_ns) {
    return mn_pool_set_alarm(((executor *)context)->pool, when_ns);
}

static void on_alarm(void *context) { mn_queue_kick(((executor *)context)->queue); }

static void retain_list(void *list) { mn_cpu_list_retain(list); }
static void release_list(void *list) { mn_cpu_list_release(list); }

static void free_executor(void *context) {
    executor *self = context;
    mn_pool_release(self->pool);
    mn_status_release(self->fault.failure);
    pthread_cond_destroy(&self->fault.changed);
    pthread_mutex_destroy(&self->fault.lock);
    free(self);
}

mn_queue *mn_cpu_queue_create(const char *label, const mn_cpu_options *options) {
    executor *self = calloc(1, sizeof *self);
    if (!self) {
        mn_error(MN_OUT_OF_MEMORY, "cannot allocate an executor");
        return NULL;
    }
    pthread_mutex_init(&self->fault.lock, NULL);
    mn_cond_init(&self->fault.changed);
    mn_pool_options pool = {.threads = options->threads, .cpus = options->cpus, .spin_ns = options->spin_ns,
                            .alarm = on_alarm, .context = self};
    self->pool = mn_pool_create(&pool);
    mn_queue_options queue = {.label = label, .mode = MN_QUEUE_THREAD, .context = self,
                              .bind_cpu = options->cpus ? options->cpus[0] + 1 : 0, .execute_until = execute_until,
                              .caller_may_run = caller_may_run, .call_later = call_later, .retain_work = retain_list,
                              .release_work = release_list, .release_context = free_executor};
    /* Workers reach the queue only through an alarm, which only a submission sets. */
    self->queue = self->pool ? mn_queue_create(&queue) : NULL;
    if (self->queue) return self->queue;
    free_executor(self);
    return NULL;
}

static void set_fault(executor *self, bool armed, uint64_t after, mn_status *failure) {
    pthread_mutex_lock(&self->fault.lock);
    mn_status_release(self->fault.failure);
    self->fault.failure = mn_status_retain(failure);
    self->fault.after = after;
    self->fault.held = NULL;
    self->fault.armed = armed;
    pthread_cond_broadcast(&self->fault.changed);
    pthread_mutex_unlock(&self->fault.lock);
}

void mn_cpu_queue_inject(mn_queue *queue, uint64_t after, mn_status *failure) {
    set_fault(queue->options.context, true, after, failure);
}

void mn_cpu_queue_let_go(mn_queue *queue) { set_fault(queue->options.context, false, 0, NULL); }
