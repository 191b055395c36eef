/* The dependency walk: threads that wait for a point work on what it depends on. */
#ifndef MANSARD_DEPENDENCY_WALK_H
#define MANSARD_DEPENDENCY_WALK_H

#include "mansard_core.h"

/* Called by a thread that is about to sleep until `deadline_ns` for a pending point. */
void mn_dependency_walk(mn_timeline *timeline, uint64_t value, uint64_t deadline_ns);

#endif
