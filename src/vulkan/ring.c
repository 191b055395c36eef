/* The queues of one device form a ring: for waits across queues, and for the loss of the device. */
#include "vulkan/queue.h"

/* Guards every ring of queues. Taken before the lock of a queue, never while one is held. */
static pthread_mutex_t ring_lock = PTHREAD_MUTEX_INITIALIZER;

static int ring_size(const mn_vk_queue *queue) {
    int size = 1;
    for (const mn_vk_queue *each = queue->next; each != queue; each = each->next) size++;
    return size;
}

bool mn_vk_ring_enter(mn_vk_queue *queue, mn_vk_queue *sibling) {
    queue->next = queue;
    queue->submit_lock = &queue->local_submit_lock;
    if (!sibling) return true;
    pthread_mutex_lock(&ring_lock);
    bool has_room = ring_size(sibling) < MN_VK_MAX_QUEUES;
    if (has_room) {
        queue->next = sibling->next;
        sibling->next = queue;
        if (sibling->vk.queue == queue->vk.queue) queue->submit_lock = sibling->submit_lock;
    }
    pthread_mutex_unlock(&ring_lock);
    return has_room;
}

void mn_vk_ring_leave(mn_vk_queue *queue) {
    pthread_mutex_lock(&ring_lock);
    mn_vk_queue *before = queue;
    while (before->next != queue) before = before->next;
    before->next = queue->next;
    queue->next = queue;
    pthread_mutex_unlock(&ring_lock);
}

bool mn_vk_ring_find_signal(mn_vk_queue *queue, const mn_point *point, vk_semaphore_submit *wait) {
    *wait = (vk_semaphore_submit){.type = TYPE_SEMAPHORE_SUBMIT_INFO, .stages = STAGE_ALL_COMMANDS};
    mn_vk_queue *each = queue;
    pthread_mutex_lock(&ring_lock);
    do {
        pthread_mutex_lock(&each->lock);
        wait->semaphore = each->vk.semaphore;
        const entry *running = mn_vk_find_entry(each, point, false);
        wait->value = running ? running->value : 0;
        pthread_mutex_unlock(&each->lock);
        each = each->next;
    } while (!wait->value && each != queue);
    pthread_mutex_unlock(&ring_lock);
    return wait->value != 0;
}

void mn_vk_ring_spread_loss(mn_vk_queue *queue, int32_t loss) {
    pthread_mutex_lock(&ring_lock);
    for (mn_vk_queue *each = queue->next; each != queue; each = each->next) {
        pthread_mutex_lock(&each->lock);
        if (each->loss == VK_SUCCESS) each->loss = loss;
        pthread_cond_broadcast(&each->changed);
        pthread_mutex_unlock(&each->lock);
    }
    pthread_mutex_unlock(&ring_lock);
}
