/* From a point back to what can be done for it.
 *
 * A call over several devices ends at a point whose batch waits for a batch of another device, and so on.
 * Left alone, every step costs a thread that wakes up: the one that watches a device, the one that runs a
 * queue, at last the one that called. The thread that waits has nothing else to do: it goes back from its
 * point through the batches that wait, until it finds one that it can run (help.c) or a device that it can
 * look at (poll.c), and begins anew when that is over.
 */
#include "follow.h"

#include "help.h"
#include "internal.h"
#include "poll.h"
#include "queue.h"

/* Batches on the way back, each a call deeper: a model may change device many times. A circle of waits ends
 * the search too. */
#define DEPTH_MAX 1024

typedef struct search {
    mn_point goal;
    mn_point before; /* pending, with a reference: what leads to the goal waits for it */
} search;

static bool find_pending_wait(const mn_batch *batch, mn_point *found) {
    for (uint32_t i = 0; i < batch->wait_count; i++) {
        const mn_waiter *waiter = &batch->waits[i].waiter;
        if (mn_timeline_query(waiter->timeline, waiter->value, NULL) != MN_PENDING) continue;
        *found = (mn_point){mn_timeline_retain(waiter->timeline), waiter->value};
        return true;
    }
    return false;
}

/* Of the batches that wait and lead to the goal the one submitted first: the others wait for it, if for any. */
static bool find_before(mn_queue *queue, void *context) {
    search *wanted = context;
    const mn_batch *first = NULL;
    for (const mn_batch *batch = queue->waiting; batch; batch = batch->next)
        if ((!first || batch->sequence < first->sequence) &&
            mn_batch_leads_to(batch, wanted->goal.timeline, wanted->goal.value))
            first = batch;
    return first && find_pending_wait(first, &wanted->before);
}

static bool is_pending(mn_point point) {
    return mn_timeline_query(point.timeline, point.value, NULL) == MN_PENDING;
}

static bool step(mn_point goal, uint64_t deadline_ns, int depth);

/* Do what leads to the point until it is complete; false when it is not, and there is nothing to do or the
 * time is up. So the way back is searched once, not anew from its end for every batch. */
static bool reach(mn_point point, uint64_t deadline_ns, int depth) {
    while (is_pending(point))
        if (mn_now() >= deadline_ns || !step(point, deadline_ns, depth)) return !is_pending(point);
    return true;
}

/* Do something that leads to the point; false when there is nothing to do for it. */
static bool step(mn_point goal, uint64_t deadline_ns, int depth) {
    if (mn_help(goal.timeline, goal.value, deadline_ns)) return true;
    mn_help_expect(depth > 0);
    bool looked = mn_poll(goal.timeline, goal.value, deadline_ns);
    mn_help_expect(false);
    if (looked) return true;
    search wanted = {.goal = goal};
    if (depth == DEPTH_MAX || !mn_queues_any_waiting(find_before, &wanted)) return false;
    mn_point before = wanted.before;
    bool done = reach(before, deadline_ns, depth + 1);
    mn_timeline_release(before.timeline);
    return done;
}

void mn_follow(mn_timeline *timeline, uint64_t value, uint64_t deadline_ns) {
    mn_point goal = {timeline, value};
    if (mn_defer_is_active()) return; /* within a callback, which must neither run kernels nor wait */
    reach(goal, deadline_ns, 0);
}
