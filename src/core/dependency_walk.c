/* The dependency walk: from a point back to the work it depends on.
 *
 * A call over several devices ends at a point whose submission waits for a submission of another device, and so on.
 * Without it, every step costs the wake-up of a thread: the one that watches a device, the one that runs a
 * queue, at last the one that called. The thread that waits has nothing else to do: it walks back from its
 * point through the submissions that wait, until it reaches one that it can run (caller_runs.c) or a device
 * that it can poll (poll.c), and when that is over walks forward again.
 */
#include "core/dependency_walk.h"

#include "core/caller_runs.h"
#include "core/internal.h"
#include "core/poll.h"
#include "core/queue.h"

/* Submissions on the path back: a model may change device many times. A cycle of waits ends the walk too. */
#define MAX_DEPTH 512

/* How long a thread with nothing to do looks for what it can do next before it sleeps, and for how long then. */
#define IDLE_NS 3000u
#define SLEEP_NS 5000000u

typedef struct walk_step {
    mn_point goal;
    mn_point before; /* pending, with a reference: what leads to the goal waits for it */
} walk_step;

static bool find_pending_wait(const mn_submission *submission, mn_point *pending) {
    for (uint32_t i = 0; i < submission->wait_count; i++) {
        const mn_waiter *waiter = &submission->waits[i].waiter;
        if (mn_timeline_query(waiter->timeline, waiter->value, NULL) != MN_PENDING) continue;
        *pending = (mn_point){mn_timeline_retain(waiter->timeline), waiter->value};
        return true;
    }
    return false;
}

/* Of the submissions that wait and lead to the goal the one submitted first: the others wait for it, if for any. */
static bool find_before(mn_queue *queue, void *context) {
    walk_step *wanted = context;
    const mn_submission *first = NULL;
    for (const mn_submission *submission = queue->waiting; submission; submission = submission->next)
        if ((!first || submission->sequence < first->sequence) &&
            mn_submission_leads_to(submission, wanted->goal.timeline, wanted->goal.value))
            first = submission;
    return first && find_pending_wait(first, &wanted->before);
}

static bool is_pending(mn_point point) {
    return mn_timeline_query(point.timeline, point.value, NULL) == MN_PENDING;
}

/* Work on the point, `depth` submissions back; false when there is nothing to do for it. */
static bool step(mn_point point, uint64_t deadline_ns, int depth) {
    if (mn_caller_run(point.timeline, point.value, deadline_ns)) return true;
    mn_caller_runs_expect(depth > 0);
    bool polled = mn_poll(point.timeline, point.value, deadline_ns);
    mn_caller_runs_expect(false);
    return polled;
}

void mn_dependency_walk(mn_timeline *timeline, uint64_t value, uint64_t deadline_ns) {
    if (mn_defer_is_active()) return; /* within a callback, which must neither run kernels nor wait */
    mn_point path[MAX_DEPTH]; /* each waits for the next; all but the first are referenced */
    int depth = 0;
    path[0] = (mn_point){timeline, value};
    uint64_t idle_since = 0;
    for (uint64_t now; is_pending(path[0]) && (now = mn_now()) < deadline_ns;) {
        if (depth && !is_pending(path[depth])) {
            mn_timeline_release(path[depth--].timeline);
        } else if (!step(path[depth], deadline_ns, depth)) {
            walk_step wanted = {.goal = path[depth]};
            if (depth + 1 < MAX_DEPTH && mn_queues_any_waiting(find_before, &wanted)) {
                path[++depth] = wanted.before;
            } else if (depth == 0 || depth + 1 == MAX_DEPTH) {
                break;
            } else if (idle_since && now - idle_since > IDLE_NS) {
                /* Another thread works on it. The goal may fail before what it waits for is complete. */
                uint64_t until = now + SLEEP_NS < deadline_ns ? now + SLEEP_NS : deadline_ns;
                mn_timeline_sleep(path[depth].timeline, path[depth].value, until);
            } else {
                if (!idle_since) idle_since = now;
                mn_spin_pause();
                continue;
            }
        }
        idle_since = 0;
    }
    while (depth) mn_timeline_release(path[depth--].timeline);
}
