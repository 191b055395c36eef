/* Threads that wait for a point look themselves whether a device has reached it. */
#ifndef MANSARD_POLL_H
#define MANSARD_POLL_H

#include <stdatomic.h>

#include "mansard_core.h"

/* A device's queue that can be looked at. */
typedef struct mn_poller {
    /* Whether looking is worth while: work that signals the point is under way, and nobody looks yet. The
     * caller then does. */
    bool (*begin)(void *context, const mn_point *point);
    /* Complete what has ended. Whether to go on looking. */
    bool (*look)(void *context, const mn_point *point);
    void (*end)(void *context);
    void *context;
    /* Set by mn_poll_register. */
    struct mn_poller *next;
    atomic_int users;
} mn_poller;

void mn_poll_register(mn_poller *poller);
/* Returns when no thread looks at it any more. */
void mn_poll_unregister(mn_poller *poller);

/* Forget every queue: their devices are the parent's. */
void mn_poll_after_fork(void);

/* Called by a thread that is about to sleep until `deadline_ns` for a pending point. Whether it has looked. */
bool mn_poll(mn_timeline *timeline, uint64_t value, uint64_t deadline_ns);

#endif
