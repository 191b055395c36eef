/* Threads of the core, and what a thread needs to know about itself. */
#ifndef MANSARD_THREAD_H
#define MANSARD_THREAD_H

#include "core/internal.h"

/* The stack of every thread that runs kernels, thread-local variables aside: MN_KERNEL_STACK_BYTES and room to
 * spare. Only pages that are touched take memory. */
#define MN_STACK_BYTES ((size_t)1 << 20)

/* What a thread of the caller's must have left of its stack to run kernels. */
#define MN_STACK_NEEDED ((size_t)512 << 10)

/* Start a thread called `name` that handles no signals; on CPU `cpu` alone unless that is negative.
 * `thread` NULL: detached. Returns 0 or an errno value. */
int mn_thread_start(pthread_t *thread, const char *name, int cpu, void *(*body)(void *), void *argument);

/* Bytes of the calling thread's stack below the caller's frame; 0 when unknown. */
size_t mn_stack_left(void);

/* The floating-point state kernels expect (rounding to nearest, subnormals kept), for threads that come
 * from outside; returns the state to restore. */
uint64_t mn_float_enter(void);
void mn_float_leave(uint64_t state);

/* Sleep while *word is `seen`, until it is woken or mn_now() reaches `deadline_ns`. May return early. */
void mn_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t deadline_ns);
void mn_futex_wake(_Atomic uint32_t *word, int count);

/* How often this process was made by fork from one that had loaded the core: threads of objects made
 * under another number do not exist here. */
unsigned mn_fork_count(void);

#endif
