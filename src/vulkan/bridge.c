/* The Vulkan driver's part outside the interpreter: submission and completion.
 *
 * A mn_vk_queue joins a VkQueue to a mn_queue in inline mode. Whichever thread makes a submission ready
 * calls vkQueueSubmit2 with the submission's command buffer (its `work`) and a signal of the next value of
 * the queue's timeline semaphore; one watcher thread waits for those values in order and completes
 * the submissions. Work on one VkQueue ends in the order of its signals, so the oldest entry is always the
 * next to complete. Queues of one device form a ring: a submission that waits for work of another one is
 * handed over at once too, with a wait for that queue's semaphore.
 */
#include <stdlib.h>
#include <string.h>

#include "core/queue.h"
#include "vulkan/queue.h"

/* How much work the device is given ahead: enough not to run dry while the watcher wakes. */
#define DEPTH_NS 300000u

/* ---- the end of the process ------------------------------------------------------------------- */

static pthread_mutex_t watched_lock = PTHREAD_MUTEX_INITIALIZER;
static mn_vk_queue *watched; /* those with a watcher */

static void end_watcher(mn_vk_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    queue->abandoned = true;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
    pthread_join(queue->watcher, NULL);
    if (queue->vk.spin_ns) mn_poll_unregister(&queue->poller);
}

/* Leave no thread inside a driver that is about to be torn down: devices need not be closed. What runs is never
 * completed. After all that the interpreter does at its end, which may still call models; before the driver's own
 * handlers, which were registered when it was loaded. */
static void end_watchers(void) {
    pthread_mutex_lock(&watched_lock);
    for (mn_vk_queue *queue = watched; queue; queue = queue->next_watched)
        if (!mn_queue_is_foreign(queue->core)) end_watcher(queue);
    watched = NULL;
    pthread_mutex_unlock(&watched_lock);
}

static void register_end(void) { atexit(end_watchers); }

static void watch_until_end(mn_vk_queue *queue) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_end);
    pthread_mutex_lock(&watched_lock);
    queue->next_watched = watched;
    watched = queue;
    pthread_mutex_unlock(&watched_lock);
}

/* False when the watcher has ended. */
static bool unwatch(mn_vk_queue *queue) {
    pthread_mutex_lock(&watched_lock);
    mn_vk_queue **link = &watched;
    while (*link && *link != queue) link = &(*link)->next_watched;
    bool listed = *link != NULL;
    if (listed) *link = queue->next_watched;
    pthread_mutex_unlock(&watched_lock);
    return listed;
}

static fault *hold_fault(fault *f) {
    pthread_mutex_lock(&f->lock);
    f->queues++;
    pthread_mutex_unlock(&f->lock);
    return f;
}

static void release_fault(fault *f) {
    if (!f) return;
    pthread_mutex_lock(&f->lock);
    bool last = --f->queues == 0;
    pthread_mutex_unlock(&f->lock);
    if (!last) return;
    pthread_mutex_destroy(&f->lock);
    free(f);
}

/* The core's queue is gone, and with it every submission. */
static void free_queue(void *context) {
    mn_vk_queue *queue = context;
    release_fault(queue->fault);
    pthread_cond_destroy(&queue->changed);
    pthread_mutex_destroy(&queue->lock);
    pthread_mutex_destroy(&queue->local_submit_lock);
    free((char *)queue->vk.label);
    free(queue);
}

mn_vk_queue *mn_vk_queue_create(const mn_vk_options *options) {
    mn_vk_queue *queue = calloc(1, sizeof *queue);
    char *label = strdup(options->label);
    if (!queue || !label) {
        free(queue);
        free(label);
        mn_error(MN_OUT_OF_MEMORY, "no host memory for a Vulkan queue");
        return NULL;
    }
    queue->vk = *options;
    queue->vk.label = label;
    pthread_mutex_init(&queue->lock, NULL);
    pthread_mutex_init(&queue->local_submit_lock, NULL);
    pthread_cond_init(&queue->changed, NULL);
    if (!mn_vk_ring_enter(queue, options->sibling)) {
        mn_error(MN_INVALID, "a Vulkan device has at most %d queues", MN_VK_MAX_QUEUES);
        free_queue(queue);
        return NULL;
    }
    mn_queue_options core = {.label = label,
                             .mode = MN_QUEUE_INLINE,
                             .depth_ns = DEPTH_NS,
                             .execute = mn_vk_execute,
                             .native_wait = mn_vk_native_wait,
                             .release_context = free_queue,
                             .context = queue};
    queue->core = mn_queue_create(&core);
    if (!queue->core) {
        mn_vk_ring_leave(queue);
        free_queue(queue);
        return NULL;
    }
    if (pthread_create(&queue->watcher, NULL, mn_vk_watch, queue) != 0) {
        mn_error(MN_DEVICE, "the watcher thread of %s could not be started", label);
        mn_vk_ring_leave(queue);
        mn_queue_release(queue->core);
        return NULL;
    }
    if (queue->vk.spin_ns) mn_vk_poll_init(queue);
    watch_until_end(queue);
    return queue;
}

mn_queue *mn_vk_queue_core(mn_vk_queue *queue) { return queue->core; }

void mn_vk_queue_release(mn_vk_queue *queue) {
    if (!unwatch(queue)) return; /* the process ends */
    pthread_mutex_lock(&queue->lock);
    queue->stopping = true;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
    pthread_join(queue->watcher, NULL);
    if (queue->vk.spin_ns) mn_poll_unregister(&queue->poller);
    mn_vk_ring_leave(queue);
    mn_queue_release(queue->core);
}

int mn_vk_inject(mn_vk_queue *const *queues, uint64_t count, uint64_t after, int32_t result) {
    fault *shared = calloc(1, sizeof *shared);
    if (!shared) return mn_error(MN_OUT_OF_MEMORY, "no host memory for an injection");
    *shared = (fault){.queues = 1, .after = after, .result = result, .armed = true};
    pthread_mutex_init(&shared->lock, NULL);
    for (uint64_t i = 0; i < count; i++) {
        pthread_mutex_lock(&queues[i]->lock);
        fault *before = queues[i]->fault;
        queues[i]->fault = hold_fault(shared);
        pthread_mutex_unlock(&queues[i]->lock);
        release_fault(before);
    }
    release_fault(shared);
    return MN_OK;
}

void mn_vk_queue_let_go(mn_vk_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    if (queue->fault) {
        pthread_mutex_lock(&queue->fault->lock);
        queue->fault->armed = false;
        pthread_mutex_unlock(&queue->fault->lock);
    }
    for (entry *e = queue->oldest; e; e = e->next) e->held = false;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}
