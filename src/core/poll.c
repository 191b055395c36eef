/* Waiting by looking.
 *
 * A device's watcher thread learns of the end of work by an interrupt, and then wakes the thread that
 * waits: tens of microseconds, as much as a small model takes. A thread that has nothing else to do looks
 * at the device itself instead, for as long as the device's queue finds that worth while.
 */
#include "core/poll.h"

#include <pthread.h>
#include <time.h>

#include "core/internal.h"

static struct {
    pthread_mutex_t lock; /* before any lock of a queue */
    mn_poller *first;
    atomic_int count;
} pollers = {.lock = PTHREAD_MUTEX_INITIALIZER};

void mn_poll_register(mn_poller *poller) {
    atomic_init(&poller->users, 0);
    pthread_mutex_lock(&pollers.lock);
    poller->next = pollers.first;
    pollers.first = poller;
    atomic_fetch_add(&pollers.count, 1);
    pthread_mutex_unlock(&pollers.lock);
}

void mn_poll_unregister(mn_poller *poller) {
    pthread_mutex_lock(&pollers.lock);
    mn_poller **link = &pollers.first;
    while (*link && *link != poller) link = &(*link)->next;
    if (*link) {
        *link = poller->next;
        atomic_fetch_sub(&pollers.count, 1);
    }
    pthread_mutex_unlock(&pollers.lock);
    while (atomic_load(&poller->users)) nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

/* The queue that works towards the point, with this thread as its user; NULL when there is none. */
static mn_poller *find(const mn_point *point) {
    pthread_mutex_lock(&pollers.lock);
    mn_poller *poller = pollers.first;
    while (poller && !poller->begin(poller->context, point)) poller = poller->next;
    if (poller) atomic_fetch_add(&poller->users, 1);
    pthread_mutex_unlock(&pollers.lock);
    return poller;
}

bool mn_poll(mn_timeline *timeline, uint64_t value, uint64_t deadline_ns) {
    if (atomic_load_explicit(&pollers.count, memory_order_relaxed) == 0 || mn_defer_is_active()) return false;
    mn_point point = {timeline, value};
    mn_poller *poller = find(&point);
    if (!poller) return false;
    while (poller->look(poller->context, &point)) {
        if (mn_timeline_query(timeline, value, NULL) != MN_PENDING || mn_now() >= deadline_ns) break;
        mn_spin_pause();
    }
    poller->end(poller->context);
    atomic_fetch_sub(&poller->users, 1);
    return true;
}

void mn_poll_after_fork(void) {
    pthread_mutex_init(&pollers.lock, NULL);
    pollers.first = NULL;
    atomic_store(&pollers.count, 0);
}
