/* Threads that wait for work of a Vulkan queue poll its timeline semaphore themselves. */
#include "vulkan/queue.h"

/* How long after its submission work is looked for: a thread that waits longer sleeps, and the watcher
 * wakes it. */
#define LOOK_NS 5000000u

/* The work that leads to the point, if it is worth while to look for its end. Lock held. */
static const entry *find_work(const mn_vk_queue *queue, const mn_point *point) {
    const entry *running = mn_vk_find_entry(queue, point, true);
    if (!running || running->held || queue->loss != VK_SUCCESS || queue->abandoned) return NULL;
    return mn_now() - running->submitted_ns < LOOK_NS ? running : NULL;
}

/* One thread looks: it completes what others wait for too. */
static bool begin(void *context, const mn_point *point) {
    mn_vk_queue *queue = context;
    pthread_mutex_lock(&queue->lock);
    bool useful = !queue->looked_at && find_work(queue, point);
    if (useful) queue->looked_at = true;
    pthread_mutex_unlock(&queue->lock);
    return useful;
}

static bool look(void *context, const mn_point *point) {
    mn_vk_queue *queue = context;
    uint64_t value = 0;
    if (queue->vk.counter(queue->vk.device, queue->vk.semaphore, &value) != VK_SUCCESS) return false;
    pthread_mutex_lock(&queue->lock);
    entry *done = queue->loss == VK_SUCCESS ? mn_vk_take_until(queue, value) : NULL;
    bool useful = find_work(queue, point) != NULL;
    pthread_mutex_unlock(&queue->lock);
    mn_vk_complete_all(done, MN_OK, NULL);
    return useful;
}

static void end(void *context) {
    mn_vk_queue *queue = context;
    pthread_mutex_lock(&queue->lock);
    queue->looked_at = false;
    pthread_mutex_unlock(&queue->lock);
}

void mn_vk_poll_init(mn_vk_queue *queue) {
    queue->poller = (mn_poller){.begin = begin, .look = look, .end = end, .context = queue};
    mn_poll_register(&queue->poller);
}
