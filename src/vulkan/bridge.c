/* The Vulkan driver's part outside the interpreter: submission and completion.
 *
 * A mn_vk_queue joins a VkQueue to a mn_queue in inline mode. Whichever thread makes a batch ready
 * calls vkQueueSubmit2 with the batch's command buffer (its `work`) and a signal of the next value of
 * the queue's timeline semaphore; one watcher thread waits for those values in order and completes
 * the batches. Work on one VkQueue ends in the order of its signals, so the oldest entry is always the
 * next to complete. Queues of one device form a ring: a batch that follows work of another one is handed
 * over at once too, with a wait for that queue's semaphore.
 *
 * No Vulkan header is needed: the few structs are declared here, the commands come as pointers.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "vulkan/queue.h"

static const char *result_name(int32_t result) {
    switch (result) {
    case VK_ERROR_OUT_OF_HOST_MEMORY: return "VK_ERROR_OUT_OF_HOST_MEMORY";
    case VK_ERROR_OUT_OF_DEVICE_MEMORY: return "VK_ERROR_OUT_OF_DEVICE_MEMORY";
    case VK_ERROR_INITIALIZATION_FAILED: return "VK_ERROR_INITIALIZATION_FAILED";
    case VK_ERROR_DEVICE_LOST: return "VK_ERROR_DEVICE_LOST";
    case VK_ERROR_UNKNOWN: return "VK_ERROR_UNKNOWN";
    default: return "a failure without a name here";
    }
}

static int result_code(int32_t result) {
    switch (result) {
    case VK_ERROR_OUT_OF_HOST_MEMORY:
    case VK_ERROR_OUT_OF_DEVICE_MEMORY: return MN_OUT_OF_MEMORY;
    case VK_ERROR_DEVICE_LOST: return MN_DEVICE_LOST;
    default: return MN_EXECUTION;
    }
}

/* ---- the queue ---------------------------------------------------------------------------------- */

/* Guards every ring of queues. Taken before the lock of a queue, never while one is held. */
static pthread_mutex_t ring_lock = PTHREAD_MUTEX_INITIALIZER;
/* A device has no more queues than that. */
#define RING_MAX 4

/* How long the watcher sleeps in one call: bounds how late it notices that it should stop. */
#define WATCH_NS 100000000u
/* How much work the device is given ahead: enough not to run dry while the watcher wakes. */
#define DEPTH_NS 300000u
/* How much earlier than work is expected to end the watcher wakes up, in times of `spin_ns`: timers are late,
 * and work is sooner done than the last time. */
#define AWAKE_SPINS 3u
/* How long work may go on after the device was reported lost before its batches are failed anyway. */
#define LOSS_NS 1000000000u

/* The running submission that signals `point`, or with `or_later` one behind it. Lock held. */
const entry *mn_vk_find_entry(const mn_vk_queue *queue, const mn_point *point, bool or_later) {
    for (const entry *e = queue->oldest; e; e = e->next) {
        uint32_t count = 0;
        const mn_point *signals = mn_batch_signals(e->batch, &count);
        for (uint32_t i = 0; i < count; i++) {
            if (signals[i].timeline != point->timeline) continue;
            if (signals[i].value == point->value || (or_later && signals[i].value > point->value)) return e;
        }
    }
    return NULL;
}

/* Whether one of the device's queues runs the submission that signals `point`; `wait` is then a wait for
 * its end. No lock held. */
static bool find_signal(mn_vk_queue *queue, const mn_point *point, vk_semaphore_submit *wait) {
    *wait = (vk_semaphore_submit){.type = TYPE_SEMAPHORE_SUBMIT_INFO, .stages = STAGE_ALL_COMMANDS};
    mn_vk_queue *each = queue;
    pthread_mutex_lock(&ring_lock);
    do {
        pthread_mutex_lock(&each->lock);
        wait->semaphore = each->vk.semaphore;
        const entry *found = mn_vk_find_entry(each, point, false);
        wait->value = found ? found->value : 0;
        pthread_mutex_unlock(&each->lock);
        each = each->next;
    } while (!wait->value && each != queue);
    pthread_mutex_unlock(&ring_lock);
    return wait->value != 0;
}

/* The core asks whether the device itself orders work after a point: it does when the work that
 * signals the point was submitted to one of its queues. */
static bool native_wait(void *context, const mn_point *point) {
    vk_semaphore_submit wait;
    return find_signal(context, point, &wait);
}

/* What a batch waits for on the device: at most one value of every queue. Points that are found no more
 * were reached meanwhile. */
static uint32_t find_waits(mn_vk_queue *queue, mn_batch *batch, vk_semaphore_submit waits[RING_MAX]) {
    uint32_t points = 0, count = 0;
    const mn_point *native = mn_batch_native_waits(batch, &points);
    for (uint32_t i = 0; i < points; i++) {
        vk_semaphore_submit wait;
        if (!find_signal(queue, &native[i], &wait)) continue;
        uint32_t at = 0;
        while (at < count && waits[at].semaphore != wait.semaphore) at++;
        if (at == count || waits[at].value < wait.value) waits[at] = wait;
        if (at == count) count++;
    }
    return count;
}

static int32_t submit(mn_vk_queue *queue, mn_batch *batch, uint64_t value, const vk_semaphore_submit *waits,
                      uint32_t wait_count) {
    vk_semaphore_submit signal = {.type = TYPE_SEMAPHORE_SUBMIT_INFO,
                                  .semaphore = queue->vk.semaphore,
                                  .value = value,
                                  .stages = STAGE_ALL_COMMANDS};
    vk_command_buffer_submit work = {.type = TYPE_COMMAND_BUFFER_SUBMIT_INFO,
                                     .command_buffer = mn_batch_work(batch)};
    vk_submit2 info = {.type = TYPE_SUBMIT_INFO_2,
                       .wait_count = wait_count,
                       .waits = waits,
                       .command_buffer_count = work.command_buffer ? 1 : 0,
                       .command_buffers = &work,
                       .signal_count = 1,
                       .signals = &signal};
    pthread_mutex_lock(queue->submit_lock);
    int32_t result = queue->vk.submit(queue->vk.queue, 1, &info, 0);
    pthread_mutex_unlock(queue->submit_lock);
    return result;
}

/* Whether the injection falls due with this submission. Lock held. */
static bool injected(mn_vk_queue *queue) {
    if (!queue->inject_armed) return false;
    if (queue->inject_after > 0) {
        queue->inject_after--;
        return false;
    }
    queue->inject_armed = false;
    return true;
}

/* A device that is lost is lost for all of its queues. */
static void spread_loss(mn_vk_queue *queue, int32_t loss) {
    pthread_mutex_lock(&ring_lock);
    for (mn_vk_queue *each = queue->next; each != queue; each = each->next) {
        pthread_mutex_lock(&each->lock);
        if (each->loss == VK_SUCCESS) each->loss = loss;
        pthread_cond_broadcast(&each->changed);
        pthread_mutex_unlock(&each->lock);
    }
    pthread_mutex_unlock(&ring_lock);
}

static void execute(void *context, mn_batch *batch) {
    mn_vk_queue *queue = context;
    entry *e = calloc(1, sizeof *e);
    if (!e) {
        mn_batch_complete(batch, MN_OUT_OF_MEMORY, "no host memory for a submission");
        return;
    }
    vk_semaphore_submit waits[RING_MAX];
    uint32_t wait_count = find_waits(queue, batch, waits);
    pthread_mutex_lock(&queue->lock);
    bool due = injected(queue);
    int32_t result = queue->loss;
    bool lost = result != VK_SUCCESS;
    if (result == VK_SUCCESS && due && !queue->inject_hold) result = queue->inject_result;
    if (result == VK_SUCCESS) result = submit(queue, batch, queue->value + 1, waits, wait_count);
    if (result == VK_SUCCESS) {
        *e = (entry){.batch = batch,
                     .value = ++queue->value,
                     .submitted_ns = mn_now(),
                     .held = due && queue->inject_hold};
        *(queue->oldest ? &queue->newest->next : &queue->oldest) = e;
        queue->newest = e;
        pthread_cond_broadcast(&queue->changed);
    } else if (result == VK_ERROR_DEVICE_LOST) {
        queue->loss = result;
        pthread_cond_broadcast(&queue->changed);
    }
    pthread_mutex_unlock(&queue->lock);
    if (result == VK_SUCCESS) return;
    if (result == VK_ERROR_DEVICE_LOST) spread_loss(queue, result);
    free(e);
    char message[160];
    snprintf(message, sizeof message, "%s: vkQueueSubmit2 failed: %s (VkResult %d)", queue->vk.label,
             result_name(result), (int)result);
    mn_batch_complete(batch, lost ? MN_DEVICE_LOST : result_code(result), message);
}

/* ---- the watcher -------------------------------------------------------------------------------- */

static run_time *find_run_time(mn_vk_queue *queue, const void *work) {
    return &queue->run_times[((uintptr_t)work >> 6) * 2654435761u % RUN_TIMES];
}

/* When the device began with the oldest entry. Lock held. */
static uint64_t began_ns(const mn_vk_queue *queue) {
    return queue->oldest->submitted_ns > queue->ended_ns ? queue->oldest->submitted_ns : queue->ended_ns;
}

/* When the oldest entry will probably end: it takes what it took before; 0: not known. Lock held. */
static uint64_t expected_end(mn_vk_queue *queue) {
    const void *work = mn_batch_work(queue->oldest->batch);
    const run_time *found = find_run_time(queue, work);
    return found->work == work && found->ns ? began_ns(queue) + found->ns : 0;
}

/* Take the entries up to `value` from the queue, stopping at one that is held. Lock held. */
entry *mn_vk_take_until(mn_vk_queue *queue, uint64_t value) {
    entry *taken = NULL, **end = &taken;
    uint64_t now = mn_now(), began = queue->oldest ? began_ns(queue) : now;
    while (queue->oldest && queue->oldest->value <= value && (!queue->oldest->held || queue->stopping)) {
        *end = queue->oldest;
        queue->oldest = queue->oldest->next;
        end = &(*end)->next;
    }
    *end = NULL;
    if (!taken) return NULL;
    queue->ended_ns = now;
    const void *work = mn_batch_work(taken->batch);
    /* Of several that ended meanwhile nobody knows which took how long. */
    if (!taken->next) *find_run_time(queue, work) = (run_time){work, now - began};
    return taken;
}

void mn_vk_complete_all(entry *e, int code, const char *message) {
    while (e) {
        entry *next = e->next;
        mn_batch_complete(e->batch, code, message);
        free(e);
        e = next;
    }
}

/* Look at the counter for a while: an end is so seen sooner than by sleeping. */
static bool spin_until(mn_vk_queue *queue, uint64_t value, uint64_t until) {
    uint64_t reached = 0;
    while (mn_now() < until) {
        if (queue->vk.counter(queue->vk.device, queue->vk.semaphore, &reached) != VK_SUCCESS) return false;
        if (reached >= value) return true;
    }
    return false;
}

static int32_t wait_for(mn_vk_queue *queue, uint64_t value, uint64_t timeout) {
    vk_semaphore_wait info = {.type = TYPE_SEMAPHORE_WAIT_INFO,
                              .count = 1,
                              .semaphores = &queue->vk.semaphore,
                              .values = &value};
    return queue->vk.wait(queue->vk.device, &info, timeout);
}

/* Wait for the end of work that is `expected` at some time (0: not known): asleep but around that time, since
 * being woken takes tens of microseconds; without an expectation awake at first. */
static int32_t await_end(mn_vk_queue *queue, uint64_t value, uint64_t expected) {
    uint64_t now = mn_now(), spin = queue->vk.spin_ns;
    if (!spin) return wait_for(queue, value, WATCH_NS);
    if (!expected) expected = now;
    if (expected > now + AWAKE_SPINS * spin) {
        uint64_t asleep = expected - AWAKE_SPINS * spin - now;
        if (asleep > WATCH_NS) return wait_for(queue, value, WATCH_NS); /* and look again whether to stop */
        int32_t result = wait_for(queue, value, asleep);
        if (result != VK_TIMEOUT) return result;
    }
    if (spin_until(queue, value, expected + spin)) return VK_SUCCESS;
    return wait_for(queue, value, WATCH_NS);
}

/* The device is lost: all that runs or waits fails, and so does everything submitted later. Called and
 * returns with the lock held. */
static void handle_loss(mn_vk_queue *queue) {
    char message[160];
    int32_t loss = queue->loss;
    uint64_t last = queue->oldest ? queue->newest->value : 0;
    pthread_mutex_unlock(&queue->lock);
    snprintf(message, sizeof message, "%s: the device is lost: %s (VkResult %d)", queue->vk.label,
             result_name(loss), (int)loss);
    spread_loss(queue, loss);
    /* Buffers are freed once their batches are complete, so a device that still works gets the chance
     * to end them; one that is really lost returns at once. */
    if (last) wait_for(queue, last, LOSS_NS);
    mn_status *status = mn_status_create(MN_DEVICE_LOST, message, 0);
    if (status) mn_queue_poison(queue->core, status);
    mn_status_release(status);
    pthread_mutex_lock(&queue->lock);
    entry *all = queue->oldest;
    queue->oldest = queue->newest = NULL;
    pthread_mutex_unlock(&queue->lock);
    mn_vk_complete_all(all, MN_DEVICE_LOST, message);
    pthread_mutex_lock(&queue->lock);
}

static bool blocked(const mn_vk_queue *queue) { return queue->oldest && queue->oldest->held && !queue->stopping; }

static void *watch(void *context) {
    mn_vk_queue *queue = context;
    bool poisoned = false;
    pthread_mutex_lock(&queue->lock);
    while (!queue->abandoned) {
        if (queue->loss != VK_SUCCESS && (!poisoned || queue->oldest)) {
            handle_loss(queue);
            poisoned = true;
            continue;
        }
        if (!queue->oldest || blocked(queue)) {
            if (queue->stopping && !queue->oldest) break;
            pthread_cond_wait(&queue->changed, &queue->lock);
            continue;
        }
        uint64_t value = queue->oldest->value;
        uint64_t expected = expected_end(queue);
        bool looked_at = queue->looked_at;
        pthread_mutex_unlock(&queue->lock);
        int32_t result = looked_at ? wait_for(queue, value, WATCH_NS) : await_end(queue, value, expected);
        if (result == VK_SUCCESS) result = queue->vk.counter(queue->vk.device, queue->vk.semaphore, &value);
        pthread_mutex_lock(&queue->lock);
        entry *done = result == VK_SUCCESS ? mn_vk_take_until(queue, value) : NULL;
        if (result < 0) queue->loss = result;
        pthread_mutex_unlock(&queue->lock);
        mn_vk_complete_all(done, MN_OK, NULL);
        pthread_mutex_lock(&queue->lock);
    }
    pthread_mutex_unlock(&queue->lock);
    return NULL;
}

/* ---- what Python calls -------------------------------------------------------------------------- */

/* The core's queue is gone, and with it every batch. */
static void free_queue(void *context) {
    mn_vk_queue *queue = context;
    pthread_cond_destroy(&queue->changed);
    pthread_mutex_destroy(&queue->lock);
    pthread_mutex_destroy(&queue->own_submit_lock);
    free((char *)queue->vk.label);
    free(queue);
}

/* Join the ring of `sibling`, or make one. */
static void enter_ring(mn_vk_queue *queue, mn_vk_queue *sibling) {
    queue->next = queue;
    queue->submit_lock = &queue->own_submit_lock;
    if (!sibling) return;
    pthread_mutex_lock(&ring_lock);
    queue->next = sibling->next;
    sibling->next = queue;
    if (sibling->vk.queue == queue->vk.queue) queue->submit_lock = sibling->submit_lock;
    pthread_mutex_unlock(&ring_lock);
}

static void leave_ring(mn_vk_queue *queue) {
    pthread_mutex_lock(&ring_lock);
    mn_vk_queue *before = queue;
    while (before->next != queue) before = before->next;
    before->next = queue->next;
    queue->next = queue;
    pthread_mutex_unlock(&ring_lock);
}

/* NULL on failure (see mn_last_message). A device's queues must be closed before the first is released. */
MN_API mn_vk_queue *mn_vk_queue_create(const mn_vk_options *options) {
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
    pthread_mutex_init(&queue->own_submit_lock, NULL);
    pthread_cond_init(&queue->changed, NULL);
    enter_ring(queue, options->sibling);
    mn_queue_options core = {.label = label,
                             .mode = MN_QUEUE_INLINE,
                             .depth_ns = DEPTH_NS,
                             .execute = execute,
                             .native_wait = native_wait,
                             .release_context = free_queue,
                             .context = queue};
    queue->core = mn_queue_create(&core);
    if (!queue->core) {
        leave_ring(queue);
        free_queue(queue);
        return NULL;
    }
    if (pthread_create(&queue->watcher, NULL, watch, queue) != 0) {
        mn_error(MN_DEVICE, "the watcher thread of %s could not be started", label);
        leave_ring(queue);
        mn_queue_release(queue->core);
        return NULL;
    }
    if (queue->vk.spin_ns) mn_vk_poll_init(queue);
    return queue;
}

/* The queue to submit to; it lives as long as the mn_vk_queue. */
MN_API mn_queue *mn_vk_queue_core(mn_vk_queue *queue) { return queue->core; }

/* End the watcher. The core queue must be closed first, so that nothing runs. */
MN_API void mn_vk_queue_release(mn_vk_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    queue->stopping = true;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
    pthread_join(queue->watcher, NULL);
    if (queue->vk.spin_ns) mn_poll_unregister(&queue->poller);
    leave_ring(queue);
    mn_queue_release(queue->core);
}

/* The process ends while work may still run: end the watcher, so that no thread of ours is inside the
 * driver when its library is torn down. What runs is never completed. */
MN_API void mn_vk_queue_abandon(mn_vk_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    queue->abandoned = true;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
    pthread_join(queue->watcher, NULL);
    if (queue->vk.spin_ns) mn_poll_unregister(&queue->poller);
}

/* Debug facility: after `after` more submissions one fails with `result` without reaching the device. */
MN_API void mn_vk_queue_inject_failure(mn_vk_queue *queue, uint64_t after, int32_t result) {
    pthread_mutex_lock(&queue->lock);
    queue->inject_after = after;
    queue->inject_result = result;
    queue->inject_hold = false;
    queue->inject_armed = true;
    pthread_mutex_unlock(&queue->lock);
}

/* Debug facility: after `after` more submissions one runs, but is not completed until let go. */
MN_API void mn_vk_queue_inject_hang(mn_vk_queue *queue, uint64_t after) {
    pthread_mutex_lock(&queue->lock);
    queue->inject_after = after;
    queue->inject_hold = true;
    queue->inject_armed = true;
    pthread_mutex_unlock(&queue->lock);
}

/* Debug facility: let held submissions complete, and disarm what was injected. */
MN_API void mn_vk_queue_let_go(mn_vk_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    queue->inject_armed = false;
    for (entry *e = queue->oldest; e; e = e->next) e->held = false;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}
