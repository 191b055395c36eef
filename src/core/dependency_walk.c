/* From a point back to what can be done for it.
 *
 * A call over several devices ends at a point whose batch waits for a batch of another device, and so on.
 * Left alone, every step costs a thread that wakes up: the one that watches a device, the one that runs a
 * queue, at last the one that called. The thread that waits has nothing else to do: it goes back from its
 * point through the batches that wait, until it finds one that it can run (help.c) or a device that it can
 * look at (poll.c), and when that is over goes the same way forward.
 */
#include "core/dependency_walk.h"

#include "core/caller_runs.h"
#include "core/internal.h"
#include "core/poll.h"
#include "core/queue.h"

/* Batches on the way back: a model may change device many times. A circle of waits ends the search too. */
#define DEPTH_MAX 512

/* How long a thread with nothing to do looks for what it can do next before it sleeps, and for how long then. */
#define IDLE_NS 3000u
#define SLEEP_NS 5000000u

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

/* Do something that leads to the point, `depth` batches back; false when there is nothing to do for it. */
static bool step(mn_point point, uint64_t deadline_ns, int depth) {
    if (mn_help(point.timeline, point.value, deadline_ns)) return true;
    mn_help_expect(depth > 0);
    bool looked = mn_poll(point.timeline, point.value, deadline_ns);
    mn_help_expect(false);
    return looked;
}

void mn_follow(mn_timeline *timeline, uint64_t value, uint64_t deadline_ns) {
    if (mn_defer_is_active()) return; /* within a callback, which must neither run kernels nor wait */
    mn_point way[DEPTH_MAX]; /* each waits for the next; all but the first are held */
    int depth = 0;
    way[0] = (mn_point){timeline, value};
    uint64_t idle_since = 0;
    for (uint64_t now; is_pending(way[0]) && (now = mn_now()) < deadline_ns;) {
        if (depth && !is_pending(way[depth])) {
            mn_timeline_release(way[depth--].timeline);
        } else if (!step(way[depth], deadline_ns, depth)) {
            search wanted = {.goal = way[depth]};
            if (depth + 1 < DEPTH_MAX && mn_queues_any_waiting(find_before, &wanted)) {
                way[++depth] = wanted.before;
            } else if (depth == 0 || depth + 1 == DEPTH_MAX) {
                break;
            } else if (idle_since && now - idle_since > IDLE_NS) {
                /* Others are at it. The goal may fail before what it waits for is over. */
                uint64_t until = now + SLEEP_NS < deadline_ns ? now + SLEEP_NS : deadline_ns;
                mn_timeline_sleep(way[depth].timeline, way[depth].value, until);
            } else {
                if (!idle_since) idle_since = now;
                mn_spin_pause();
                continue;
            }
        }
        idle_since = 0;
    }
    while (depth) mn_timeline_release(way[depth--].timeline);
}
