/* A queue of the Vulkan driver, as the files of its C half share it. */
#ifndef MANSARD_VULKAN_QUEUE_H
#define MANSARD_VULKAN_QUEUE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "mansard_core.h"
#include "core/poll.h"

/* ---- the Vulkan declarations used here (Vulkan 1.3; handles of 64-bit platforms) ---------------- */

typedef struct vk_semaphore_submit {
    int32_t type;
    const void *next;
    uint64_t semaphore;
    uint64_t value;
    uint64_t stages;
    uint32_t device_index;
} vk_semaphore_submit;

typedef struct vk_command_buffer_submit {
    int32_t type;
    const void *next;
    void *command_buffer;
    uint32_t device_mask;
} vk_command_buffer_submit;

typedef struct vk_submit2 {
    int32_t type;
    const void *next;
    uint32_t flags;
    uint32_t wait_count;
    const vk_semaphore_submit *waits;
    uint32_t command_buffer_count;
    const vk_command_buffer_submit *command_buffers;
    uint32_t signal_count;
    const vk_semaphore_submit *signals;
} vk_submit2;

typedef struct vk_semaphore_wait {
    int32_t type;
    const void *next;
    uint32_t flags;
    uint32_t count;
    const uint64_t *semaphores;
    const uint64_t *values;
} vk_semaphore_wait;

enum {
    VK_SUCCESS = 0,
    VK_TIMEOUT = 2,
    VK_ERROR_OUT_OF_HOST_MEMORY = -1,
    VK_ERROR_OUT_OF_DEVICE_MEMORY = -2,
    VK_ERROR_INITIALIZATION_FAILED = -3,
    VK_ERROR_DEVICE_LOST = -4,
    VK_ERROR_UNKNOWN = -13,
    TYPE_SEMAPHORE_WAIT_INFO = 1000207004,
    TYPE_SUBMIT_INFO_2 = 1000314004,
    TYPE_SEMAPHORE_SUBMIT_INFO = 1000314005,
    TYPE_COMMAND_BUFFER_SUBMIT_INFO = 1000314006,
};
#define STAGE_ALL_COMMANDS 0x10000u

typedef int32_t (*vk_queue_submit2)(void *queue, uint32_t count, const vk_submit2 *submits, uint64_t fence);
typedef int32_t (*vk_wait_semaphores)(void *device, const vk_semaphore_wait *info, uint64_t timeout);
typedef int32_t (*vk_get_counter)(void *device, uint64_t semaphore, uint64_t *value);

/* ---- queues ------------------------------------------------------------------------------------- */

typedef struct mn_vk_options {
    const char *label;
    void *device;       /* VkDevice */
    void *queue;        /* VkQueue, used by this device's mn_vk_queues alone */
    uint64_t semaphore; /* a timeline VkSemaphore at 0, used by nobody else */
    uint64_t spin_ns;   /* how long the watcher looks for an end that it did not expect earlier; 0: never */
    vk_queue_submit2 submit;
    vk_wait_semaphores wait;
    vk_get_counter counter;
    struct mn_vk_queue *sibling; /* another queue of the device, or NULL; it may have the same VkQueue */
} mn_vk_options;

/* A submission the device has and has not completed. */
typedef struct entry {
    struct entry *next;
    mn_batch *batch;
    uint64_t value;
    uint64_t submitted_ns;
    bool held; /* injected hang: not to be completed before it is let go */
} entry;

/* How long a recording took when it ran last. */
typedef struct run_time {
    const void *work;
    uint64_t ns;
} run_time;
#define RUN_TIMES 64

typedef struct mn_vk_queue {
    mn_vk_options vk;
    mn_queue *core;
    pthread_t watcher;
    struct mn_vk_queue *next;     /* in the ring of the device's queues; guarded by ring_lock */
    pthread_mutex_t *submit_lock; /* guards the VkQueue: own_submit_lock, or that of the first with it */
    pthread_mutex_t own_submit_lock;
    /* Guards all that follows. Never held while a callback of the core may run. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    entry *oldest, *newest;
    uint64_t value; /* last value given to a submission */
    int32_t loss;   /* the VkResult that lost the device, or VK_SUCCESS */
    bool stopping;
    bool abandoned; /* the process ends: nothing is completed any more */
    bool looked_at; /* a thread that waits looks for the end of work itself */
    uint64_t ended_ns; /* when the last completed submission was seen to end */
    run_time run_times[RUN_TIMES]; /* by recording; newer ones take the place of others */
    mn_poller poller;
    /* Debug facility: what to do to a coming submission. */
    uint64_t inject_after;
    int32_t inject_result;
    bool inject_hold, inject_armed;
} mn_vk_queue;

/* Take the entries up to `value` from the queue, stopping at one that is held. Lock held. */
entry *mn_vk_take_until(mn_vk_queue *queue, uint64_t value);
/* Complete what was taken; no lock held. */
void mn_vk_complete_all(entry *taken, int code, const char *message);
/* The running submission that signals `point`; NULL when there is none. Lock held. */
const entry *mn_vk_find_entry(const mn_vk_queue *queue, const mn_point *point, bool or_later);
/* Let threads that wait look at the queue. */
void mn_vk_poll_init(mn_vk_queue *queue);

#endif
