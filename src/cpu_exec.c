/* The queue that runs command lists on a worker pool. */
#include <stdlib.h>

#include "cpu_list.h"
#include "queue.h"
#include "thread.h"

typedef struct executor {
    mn_pool *pool;
    mn_queue *queue;
    mn_batch *running; /* begun and not over; the queue starts no other */
} executor;

/* Run the batch, or go on with it, until it is over (true) or the deadline has passed (false). */
static bool execute_until(void *context, mn_batch *batch, uint64_t deadline_ns) {
    executor *self = context;
    if (self->running != batch) {
        uint32_t slot_count;
        const uint64_t *slots = mn_batch_slots(batch, &slot_count);
        mn_cpu_list *list = mn_batch_work(batch);
        int code = mn_cpu_list_prepare(list, slots, slot_count, mn_pool_threads(self->pool));
        if (code != MN_OK) {
            mn_batch_complete(batch, code, mn_last_message());
            return true;
        }
        self->running = batch;
        mn_pool_begin(self->pool, mn_cpu_list_program(list));
    }
    if (!mn_pool_lead(self->pool, deadline_ns)) return false;
    self->running = NULL;
    mn_batch_complete(batch, MN_OK, "");
    return true;
}

static bool may_help(void *context) { return !mn_pool_is_bound_here(((executor *)context)->pool); }

static bool call_later(void *context, uint64_t when_ns) {
    return mn_pool_set_alarm(((executor *)context)->pool, when_ns);
}

static void on_alarm(void *context) { mn_queue_kick(((executor *)context)->queue); }

static void retain_list(void *list) { mn_cpu_list_retain(list); }
static void release_list(void *list) { mn_cpu_list_release(list); }

static void free_executor(void *context) {
    executor *self = context;
    mn_pool_release(self->pool);
    free(self);
}

mn_queue *mn_cpu_queue_create(const char *label, const mn_cpu_options *options) {
    executor *self = calloc(1, sizeof *self);
    if (!self) {
        mn_error(MN_OUT_OF_MEMORY, "cannot allocate an executor");
        return NULL;
    }
    mn_pool_options pool = {.threads = options->threads, .cpus = options->cpus, .spin_ns = options->spin_ns,
                            .alarm = on_alarm, .context = self};
    self->pool = mn_pool_create(&pool);
    mn_queue_options queue = {.label = label, .mode = MN_QUEUE_THREAD, .context = self,
                              .bind_cpu = options->cpus ? options->cpus[0] + 1 : 0, .execute_until = execute_until,
                              .may_help = may_help, .call_later = call_later, .retain_work = retain_list,
                              .release_work = release_list, .release_context = free_executor};
    /* Workers reach the queue only through an alarm, which only a batch sets. */
    self->queue = self->pool ? mn_queue_create(&queue) : NULL;
    if (self->queue) return self->queue;
    free_executor(self);
    return NULL;
}
