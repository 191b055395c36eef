/* The watcher: one thread per queue that waits for the end of work, completes it, and handles a lost device. */
#include <stdio.h>
#include <stdlib.h>

#include "vulkan/queue.h"

/* How long the watcher sleeps in one call: bounds how late it notices that it should stop. */
#define WATCH_NS 100000000u
/* How much earlier than work is expected to end the watcher wakes up, in times of `spin_ns`: timers are late,
 * and work is sooner done than the last time. */
#define AWAKE_SPINS 3u
/* How long work may go on after the device was reported lost before its submissions are failed anyway. */
#define LOSS_NS 1000000000u

static run_time *find_run_time(mn_vk_queue *queue, const void *work) {
    return &queue->run_times[((uintptr_t)work >> 6) * 2654435761u % RUN_TIMES];
}

/* When the device began with the oldest entry. Lock held. */
static uint64_t began_ns(const mn_vk_queue *queue) {
    return queue->oldest->submitted_ns > queue->ended_ns ? queue->oldest->submitted_ns : queue->ended_ns;
}

/* When the oldest entry will probably end: it takes what it took before; 0: not known. Lock held. */
static uint64_t expected_end(mn_vk_queue *queue) {
    const void *work = mn_submission_work(queue->oldest->submission);
    const run_time *last = find_run_time(queue, work);
    return last->work == work && last->ns ? began_ns(queue) + last->ns : 0;
}

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
    const void *work = mn_submission_work(taken->submission);
    /* Of several that ended meanwhile nobody knows which took how long. */
    if (!taken->next) *find_run_time(queue, work) = (run_time){work, now - began};
    return taken;
}

void mn_vk_complete_all(entry *e, int code, const char *message) {
    while (e) {
        entry *next = e->next;
        mn_submission_complete(e->submission, code, message);
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
             mn_vk_result_name(loss), (int)loss);
    mn_vk_ring_spread_loss(queue, loss);
    /* Buffers are freed once their submissions are complete, so a device that still works gets the chance
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

void *mn_vk_watch(void *context) {
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
