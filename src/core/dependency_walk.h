/* Threads that wait for a point see to what leads to it. */
#ifndef MANSARD_FOLLOW_H
#define MANSARD_FOLLOW_H

#include "mansard_core.h"

/* Called by a thread that is about to sleep until `deadline_ns` for a pending point. */
void mn_follow(mn_timeline *timeline, uint64_t value, uint64_t deadline_ns);

#endif
