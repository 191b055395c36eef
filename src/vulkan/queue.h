/* A queue of the Vulkan driver, as the files of its C half share it. */
#ifndef MANSARD_VULKAN_QUEUE_H
#define MANSARD_VULKAN_QUEUE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/poll.h"
#include "vulkan/bridge.h"

/* A submission the device has and has not completed. */
typedef struct entry {
    struct entry *next;
    mn_submission *submission;
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

/* Debug facility: what to do to a coming submission to one of some queues, whichever gets it. */
typedef struct fault {
    pthread_mutex_t lock;
    unsigned queues; /* that have it; the last one frees it */
    uint64_t after;
    int32_t result; /* VK_SUCCESS: the submission is run, but not completed */
    bool armed;
} fault;

struct mn_vk_queue {
    mn_vk_options vk;
    mn_queue *core;
    pthread_t watcher;
    mn_vk_queue *next;            /* in the ring of the device's queues; guarded by ring_lock */
    mn_vk_queue *next_watched;    /* guarded by watched_lock */
    pthread_mutex_t *submit_lock; /* guards the VkQueue: local_submit_lock, or that of the first with it */
    pthread_mutex_t local_submit_lock;
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
    fault *fault; /* or NULL */
};

/* ring.c: the queues of one device form a ring. */

/* Join the ring of `sibling`, or make one. False when the ring is full. */
bool mn_vk_ring_enter(mn_vk_queue *queue, mn_vk_queue *sibling);
void mn_vk_ring_leave(mn_vk_queue *queue);
/* Whether one of the device's queues runs the submission that signals `point`; `wait` is then a wait for
 * its end. No lock held. */
bool mn_vk_ring_find_signal(mn_vk_queue *queue, const mn_point *point, vk_semaphore_submit *wait);
/* A device that is lost is lost for all of its queues. */
void mn_vk_ring_spread_loss(mn_vk_queue *queue, int32_t loss);

/* submit.c */

const char *mn_vk_result_name(int32_t result);
/* The running submission that signals `point`, or with `or_later` one behind it; NULL when there is none.
 * Lock held. */
const entry *mn_vk_find_entry(const mn_vk_queue *queue, const mn_point *point, bool or_later);
/* See mn_queue_options; the context is the mn_vk_queue. */
bool mn_vk_native_wait(void *context, const mn_point *point);
void mn_vk_execute(void *context, mn_submission *submission);

/* watcher.c */

/* The body of the watcher's thread; the argument is the mn_vk_queue. */
void *mn_vk_watch(void *context);
/* Take the entries up to `value` from the queue, stopping at one that is held. Lock held. */
entry *mn_vk_take_until(mn_vk_queue *queue, uint64_t value);
/* Complete what was taken; no lock held. */
void mn_vk_complete_all(entry *taken, int code, const char *message);

/* poll.c: let threads that wait poll the queue. */
void mn_vk_poll_init(mn_vk_queue *queue);

#endif
