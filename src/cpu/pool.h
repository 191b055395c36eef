/* The worker pool: threads that run one program after another. See pool.c for how. */
#ifndef MANSARD_POOL_H
#define MANSARD_POOL_H

#include "core/internal.h"

/* One dispatch. Its grid is cut into one share per thread, and each share into `pieces`. */
typedef struct mn_task {
    mn_kernel kernel;
    const uint64_t *table;
    uint32_t grid[3];
    uint32_t first_piece; /* of a share: the pieces of the group's tasks before this one */
    uint32_t pieces;
    int64_t total; /* workgroups */
    /* Nanoseconds threads spent on the task, summed up where the group says so. */
    _Atomic uint64_t spent_ns;
} mn_task;

/* Tasks that may run at once. */
typedef struct mn_group {
    mn_task *tasks;
    uint32_t task_count;
    uint32_t pieces; /* of a share, over all tasks; 1 to 65535 */
    bool measure;
    bool wake; /* worth waking threads that sleep */
} mn_group;

/* Groups that run one after another. */
typedef struct mn_program mn_program;
struct mn_program {
    /* The next group, when the one before is done; false at the end. Called by one thread at a time, on
     * whichever thread is done last. It may run tasks itself instead of handing them out, and should
     * hand one out when `deadline_ns` has passed. */
    bool (*next)(mn_program *program, mn_group *group, uint64_t deadline_ns);
};

typedef struct mn_pool mn_pool;

typedef struct mn_pool_options {
    int threads;      /* those that compute, the one that leads a program among them */
    const int *cpus;  /* NULL, or the CPU of each thread; the first is the leader's, which is not the pool's */
    uint64_t spin_ns; /* how long a thread without work looks for some before it sleeps */
    /* Optional: called on a worker when the time given to mn_pool_set_alarm has come. */
    void (*alarm)(void *context);
    void *context;
} mn_pool_options;

/* NULL on failure (see mn_last_message). */
mn_pool *mn_pool_create(const mn_pool_options *options);
void mn_pool_release(mn_pool *pool); /* ends the threads; no program may be running */
int mn_pool_threads(const mn_pool *pool);

/* Begin a program; one at a time, the caller sees to that. Nothing of it runs before mn_pool_lead. */
void mn_pool_begin(mn_pool *pool, mn_program *program);

/* Take part as the leader until the program is over (true) or the deadline has passed (false): another
 * thread must then lead it. Returns late by at most one piece. */
bool mn_pool_lead(mn_pool *pool, uint64_t deadline_ns);

/* Run the pieces of a task on this thread. */
void mn_task_run(mn_task *task);

/* Make workers look for work, and the alarm ring at `when_ns` (0: no more). No worker sleeps while an
 * alarm is set. False when there is no worker. */
bool mn_pool_set_alarm(mn_pool *pool, uint64_t when_ns);

/* Whether a worker is bound to the CPU the caller runs on. */
bool mn_pool_is_bound_here(const mn_pool *pool);

#endif
