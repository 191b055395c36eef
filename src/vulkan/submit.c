/* Submission to a VkQueue, and which waits are left to the device. */
#include <stdio.h>
#include <stdlib.h>

#include "vulkan/queue.h"

const char *mn_vk_result_name(int32_t result) {
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

const entry *mn_vk_find_entry(const mn_vk_queue *queue, const mn_point *point, bool or_later) {
    for (const entry *e = queue->oldest; e; e = e->next) {
        uint32_t count = 0;
        const mn_point *signals = mn_submission_signals(e->submission, &count);
        for (uint32_t i = 0; i < count; i++) {
            if (signals[i].timeline != point->timeline) continue;
            if (signals[i].value == point->value || (or_later && signals[i].value > point->value)) return e;
        }
    }
    return NULL;
}

/* The core asks whether the device itself orders work after a point: it does when the work that
 * signals the point was submitted to one of its queues. */
bool mn_vk_native_wait(void *context, const mn_point *point) {
    vk_semaphore_submit wait;
    return mn_vk_ring_find_signal(context, point, &wait);
}

/* What a submission waits for on the device: at most one value of every queue. Points that are found no more
 * were reached meanwhile. */
static uint32_t find_waits(mn_vk_queue *queue, mn_submission *submission, vk_semaphore_submit waits[MN_VK_MAX_QUEUES]) {
    uint32_t points = 0, count = 0;
    const mn_point *native = mn_submission_native_waits(submission, &points);
    for (uint32_t i = 0; i < points; i++) {
        vk_semaphore_submit wait;
        if (!mn_vk_ring_find_signal(queue, &native[i], &wait)) continue;
        uint32_t at = 0;
        while (at < count && waits[at].semaphore != wait.semaphore) at++;
        if (at == count || waits[at].value < wait.value) waits[at] = wait;
        if (at == count) count++;
    }
    return count;
}

static int32_t submit(mn_vk_queue *queue, mn_submission *submission, uint64_t value, const vk_semaphore_submit *waits,
                      uint32_t wait_count) {
    vk_semaphore_submit signal = {.type = TYPE_SEMAPHORE_SUBMIT_INFO,
                                  .semaphore = queue->vk.semaphore,
                                  .value = value,
                                  .stages = STAGE_ALL_COMMANDS};
    vk_command_buffer_submit work = {.type = TYPE_COMMAND_BUFFER_SUBMIT_INFO,
                                     .command_buffer = mn_submission_work(submission)};
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

/* Whether the injection falls due with this submission; one without commands does not count, since it is the
 * device's, not a caller's. Lock held. */
static bool injected(mn_vk_queue *queue, const mn_submission *submission) {
    fault *f = queue->fault;
    if (!f || !mn_submission_work(submission)) return false;
    pthread_mutex_lock(&f->lock);
    bool due = f->armed && f->after == 0;
    if (due) f->armed = false;
    else if (f->armed) f->after--;
    pthread_mutex_unlock(&f->lock);
    return due;
}

void mn_vk_execute(void *context, mn_submission *submission) {
    mn_vk_queue *queue = context;
    entry *e = calloc(1, sizeof *e);
    if (!e) {
        mn_submission_complete(submission, MN_OUT_OF_MEMORY, "no host memory for a submission");
        return;
    }
    vk_semaphore_submit waits[MN_VK_MAX_QUEUES];
    uint32_t wait_count = find_waits(queue, submission, waits);
    pthread_mutex_lock(&queue->lock);
    bool due = injected(queue, submission);
    int32_t result = queue->loss;
    bool lost = result != VK_SUCCESS;
    if (result == VK_SUCCESS && due) result = queue->fault->result;
    if (result == VK_SUCCESS) result = submit(queue, submission, queue->value + 1, waits, wait_count);
    if (result == VK_SUCCESS) {
        *e = (entry){.submission = submission,
                     .value = ++queue->value,
                     .submitted_ns = mn_now(),
                     .held = due};
        *(queue->oldest ? &queue->newest->next : &queue->oldest) = e;
        queue->newest = e;
        pthread_cond_broadcast(&queue->changed);
    } else if (result == VK_ERROR_DEVICE_LOST) {
        queue->loss = result;
        pthread_cond_broadcast(&queue->changed);
    }
    pthread_mutex_unlock(&queue->lock);
    if (result == VK_SUCCESS) return;
    if (result == VK_ERROR_DEVICE_LOST) mn_vk_ring_spread_loss(queue, result);
    free(e);
    char message[160];
    snprintf(message, sizeof message, "%s: vkQueueSubmit2 failed: %s (VkResult %d)", queue->vk.label,
             mn_vk_result_name(result), (int)result);
    mn_submission_complete(submission, lost ? MN_DEVICE_LOST : result_code(result), message);
}
