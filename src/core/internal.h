/* What the files of the core share and no driver needs. */
#ifndef MANSARD_INTERNAL_H
#define MANSARD_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "mansard_core.h"

/* See mn_timeline_set_priority. */
int32_t mn_timeline_priority(const mn_timeline *timeline);

/* Sleep until the point is complete or mn_now() reaches `deadline_ns`, and do nothing for it. */
void mn_timeline_sleep(mn_timeline *timeline, uint64_t value, uint64_t deadline_ns);

/* A queue has taken a submission that signals the point. */
void mn_timeline_promise(mn_timeline *timeline, uint64_t value);

/* Run `waiter->run` on this thread as soon as no other callback is running on it. */
void mn_defer(mn_waiter *waiter);

/* Callbacks deferred between enter and leave run in the outermost leave. */
bool mn_defer_enter(void);
void mn_defer_leave(bool outermost);
bool mn_defer_is_active(void);

/* A condition variable that measures time with CLOCK_MONOTONIC. */
void mn_cond_init(pthread_cond_t *cond);

/* Wait until mn_now() reaches `deadline_ns` (MN_FOREVER: without end). False when it has passed. */
bool mn_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns);

/* The deadline of a timeout that starts now. */
uint64_t mn_deadline(uint64_t timeout_ns);

static inline void mn_spin_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#elif defined(__riscv)
    __asm__ volatile(".insn i 0x0F, 0, x0, x0, 0x010"); /* pause, a hint to those that know it */
#endif
}

#endif
