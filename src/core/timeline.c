/* Timelines: see the contract in mansard_core.h. */
#include <stdlib.h>
#include <string.h>

#include "core/dependency_walk.h"
#include "core/internal.h"

/* How long a host wait looks before it sleeps: about what a sleep and a wake-up cost. */
#define WAIT_SPIN_NS 3000u

/* Failures that a timeline has room for without another allocation. */
#define FIRST_FAILURES 2

typedef struct failure {
    uint64_t value;
    mn_status *status;
} failure;

struct mn_timeline {
    atomic_int refs;
    atomic_int priority;          /* of the work that signals it */
    _Atomic uint64_t current;     /* highest signalled value; written under `lock` */
    _Atomic uint64_t promised;    /* highest value that a submission taken by a queue signals */
    atomic_size_t failure_count;  /* written under `lock`, before a later `current` */
    pthread_mutex_t lock;
    pthread_cond_t changed;       /* host waits */
    int sleepers;                 /* threads in a host wait */
    mn_waiter *waiters;           /* by value, then by age */
    mn_waiter **waiters_end;      /* where the next waiter is linked */
    failure *failures;            /* by value; `first_failures` until there are more */
    size_t failure_capacity;
    failure first_failures[FIRST_FAILURES];
    uint64_t lost_from, lost_to;  /* points at or above lost_from failed, up to the highest that was signalled so */
    char label[];
};

mn_timeline *mn_timeline_create(const char *label, uint64_t initial) {
    size_t length = label ? strlen(label) : 0;
    mn_timeline *timeline = calloc(1, sizeof *timeline + length + 1);
    if (!timeline) {
        mn_error(MN_OUT_OF_MEMORY, "cannot allocate a timeline");
        return NULL;
    }
    atomic_init(&timeline->refs, 1);
    atomic_init(&timeline->current, initial);
    atomic_init(&timeline->promised, initial);
    pthread_mutex_init(&timeline->lock, NULL);
    mn_cond_init(&timeline->changed);
    timeline->waiters_end = &timeline->waiters;
    timeline->failures = timeline->first_failures;
    timeline->failure_capacity = FIRST_FAILURES;
    timeline->lost_from = UINT64_MAX;
    if (length) memcpy(timeline->label, label, length);
    return timeline;
}

mn_timeline *mn_timeline_retain(mn_timeline *timeline) {
    atomic_fetch_add_explicit(&timeline->refs, 1, memory_order_relaxed);
    return timeline;
}

void mn_timeline_release(mn_timeline *timeline) {
    if (!timeline || atomic_fetch_sub_explicit(&timeline->refs, 1, memory_order_acq_rel) != 1) return;
    size_t count = atomic_load_explicit(&timeline->failure_count, memory_order_relaxed);
    for (size_t i = 0; i < count; i++) mn_status_release(timeline->failures[i].status);
    if (timeline->failures != timeline->first_failures) free(timeline->failures);
    pthread_cond_destroy(&timeline->changed);
    pthread_mutex_destroy(&timeline->lock);
    free(timeline);
}

const char *mn_timeline_label(const mn_timeline *timeline) { return timeline->label; }

void mn_timeline_set_priority(mn_timeline *timeline, int32_t priority) {
    atomic_store_explicit(&timeline->priority, priority, memory_order_relaxed);
}

int32_t mn_timeline_priority(const mn_timeline *timeline) {
    return atomic_load_explicit(&timeline->priority, memory_order_relaxed);
}

void mn_timeline_promise(mn_timeline *timeline, uint64_t value) {
    uint64_t seen = atomic_load_explicit(&timeline->promised, memory_order_relaxed);
    while (seen < value && !atomic_compare_exchange_weak_explicit(&timeline->promised, &seen, value,
                                                                  memory_order_relaxed, memory_order_relaxed)) {}
}

uint64_t mn_timeline_promised(mn_timeline *timeline) {
    return atomic_load_explicit(&timeline->promised, memory_order_relaxed);
}

/* ---- state ------------------------------------------------------------------------------------ */

/* Index of the first failure at or above `value`. */
static size_t failure_index(const mn_timeline *timeline, uint64_t value, size_t count) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (timeline->failures[middle].value < value)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static mn_state locked_state(mn_timeline *timeline, uint64_t value, mn_status **status) {
    size_t count = atomic_load_explicit(&timeline->failure_count, memory_order_relaxed);
    size_t index = failure_index(timeline, value, count);
    if (index < count && timeline->failures[index].value == value) {
        if (status) *status = mn_status_retain(timeline->failures[index].status);
        return MN_POISONED;
    }
    if (value >= timeline->lost_from) {
        if (status) *status = mn_status_create(MN_OUT_OF_MEMORY, "the host had no memory to record a failure", 0);
        return MN_POISONED;
    }
    bool reached = value <= atomic_load_explicit(&timeline->current, memory_order_relaxed);
    return reached ? MN_REACHED : MN_PENDING;
}

mn_state mn_timeline_query(mn_timeline *timeline, uint64_t value, mn_status **status) {
    /* `current` first: a failure below it was counted before it was stored. */
    uint64_t current = atomic_load_explicit(&timeline->current, memory_order_acquire);
    if (atomic_load_explicit(&timeline->failure_count, memory_order_acquire) == 0)
        return value <= current ? MN_REACHED : MN_PENDING;
    pthread_mutex_lock(&timeline->lock);
    mn_state state = locked_state(timeline, value, status);
    pthread_mutex_unlock(&timeline->lock);
    return state;
}

mn_status *mn_timeline_failure(mn_timeline *timeline, uint64_t value) {
    mn_status *status = NULL;
    return mn_timeline_query(timeline, value, &status) == MN_POISONED ? status : NULL;
}

uint64_t mn_timeline_value(mn_timeline *timeline) {
    uint64_t value = atomic_load_explicit(&timeline->current, memory_order_acquire);
    if (atomic_load_explicit(&timeline->failure_count, memory_order_acquire) == 0) return value;
    pthread_mutex_lock(&timeline->lock);
    value = atomic_load_explicit(&timeline->current, memory_order_relaxed);
    size_t count = atomic_load_explicit(&timeline->failure_count, memory_order_relaxed);
    uint64_t failed = timeline->failures[count - 1].value;
    if (timeline->lost_to > failed) failed = timeline->lost_to;
    pthread_mutex_unlock(&timeline->lock);
    return failed > value ? failed : value;
}

/* ---- waiters ---------------------------------------------------------------------------------- */

static void link_waiter(mn_timeline *timeline, mn_waiter *waiter) {
    mn_waiter **link = timeline->waiters_end;
    bool in_order = link == &timeline->waiters;
    if (!in_order) {
        mn_waiter *last = (mn_waiter *)((char *)link - offsetof(mn_waiter, next));
        in_order = last->value <= waiter->value;
    }
    if (!in_order)
        for (link = &timeline->waiters; (*link)->value <= waiter->value; link = &(*link)->next) {}
    waiter->next = *link;
    waiter->link = link;
    *link = waiter;
    if (waiter->next)
        waiter->next->link = &waiter->next;
    else
        timeline->waiters_end = &waiter->next;
}

static void unlink_waiter(mn_timeline *timeline, mn_waiter *waiter) {
    *waiter->link = waiter->next;
    if (waiter->next)
        waiter->next->link = waiter->link;
    else
        timeline->waiters_end = waiter->link;
    waiter->link = NULL;
}

/* Defer the waiters in [first, last]; the state of each is known to be complete. */
static void release_waiters(mn_timeline *timeline, uint64_t first, uint64_t last) {
    mn_waiter *waiter = timeline->waiters;
    while (waiter && waiter->value < first) waiter = waiter->next;
    while (waiter && waiter->value <= last) {
        mn_waiter *next = waiter->next;
        unlink_waiter(timeline, waiter);
        waiter->status = NULL;
        locked_state(timeline, waiter->value, &waiter->status);
        mn_defer(waiter);
        waiter = next;
    }
    if (timeline->sleepers) pthread_cond_broadcast(&timeline->changed);
}

void mn_timeline_when(mn_timeline *timeline, uint64_t value, mn_waiter *waiter) {
    bool outermost = mn_defer_enter();
    /* A submission names the point beforehand, and may be looked at or cancelled by another thread meanwhile. */
    if (waiter->timeline != timeline) waiter->timeline = timeline;
    pthread_mutex_lock(&timeline->lock);
    if (waiter->value != value) waiter->value = value;
    waiter->status = NULL;
    waiter->link = NULL;
    if (locked_state(timeline, value, &waiter->status) == MN_PENDING)
        link_waiter(timeline, waiter);
    else
        mn_defer(waiter);
    pthread_mutex_unlock(&timeline->lock);
    mn_defer_leave(outermost);
}

bool mn_timeline_cancel(mn_waiter *waiter) {
    mn_timeline *timeline = waiter->timeline;
    pthread_mutex_lock(&timeline->lock);
    bool linked = waiter->link != NULL;
    if (linked) unlink_waiter(timeline, waiter);
    pthread_mutex_unlock(&timeline->lock);
    return linked;
}

/* ---- completing ------------------------------------------------------------------------------- */

void mn_timeline_signal(mn_timeline *timeline, uint64_t value) {
    bool outermost = mn_defer_enter();
    pthread_mutex_lock(&timeline->lock);
    if (value > atomic_load_explicit(&timeline->current, memory_order_relaxed)) {
        atomic_store_explicit(&timeline->current, value, memory_order_release);
        release_waiters(timeline, 0, value);
    }
    pthread_mutex_unlock(&timeline->lock);
    mn_defer_leave(outermost);
}

static bool reserve_failure(mn_timeline *timeline, size_t count) {
    if (count < timeline->failure_capacity) return true;
    size_t capacity = 2 * count;
    failure *failures = malloc(capacity * sizeof *failures);
    if (!failures) return false;
    memcpy(failures, timeline->failures, count * sizeof *failures);
    if (timeline->failures != timeline->first_failures) free(timeline->failures);
    timeline->failures = failures;
    timeline->failure_capacity = capacity;
    return true;
}

static void record_failure(mn_timeline *timeline, uint64_t value, mn_status *status) {
    size_t count = atomic_load_explicit(&timeline->failure_count, memory_order_relaxed);
    size_t index = failure_index(timeline, value, count);
    if (index < count && timeline->failures[index].value == value) return;
    if (value >= timeline->lost_from || !reserve_failure(timeline, count)) {
        /* No point may be taken for reached that failed: this one and all above it fail from now on. */
        if (value < timeline->lost_from) timeline->lost_from = value;
        if (value > timeline->lost_to) timeline->lost_to = value;
        release_waiters(timeline, timeline->lost_from, UINT64_MAX);
        return;
    }
    memmove(timeline->failures + index + 1, timeline->failures + index, (count - index) * sizeof *timeline->failures);
    timeline->failures[index] = (failure){value, mn_status_retain(status)};
    atomic_store_explicit(&timeline->failure_count, count + 1, memory_order_release);
    release_waiters(timeline, value, value);
}

void mn_timeline_fail_status(mn_timeline *timeline, uint64_t value, mn_status *status) {
    bool outermost = mn_defer_enter();
    pthread_mutex_lock(&timeline->lock);
    record_failure(timeline, value, status);
    pthread_mutex_unlock(&timeline->lock);
    mn_defer_leave(outermost);
}

void mn_timeline_fail(mn_timeline *timeline, uint64_t value, int code, const char *message) {
    mn_status *status = mn_status_create(code, message, 0);
    mn_timeline_fail_status(timeline, value, status);
    mn_status_release(status);
}

/* ---- host waits ------------------------------------------------------------------------------- */

static mn_state spin_wait(mn_timeline *timeline, uint64_t value, mn_status **status) {
    mn_state state = mn_timeline_query(timeline, value, status);
    uint64_t until = state == MN_PENDING ? mn_now() + WAIT_SPIN_NS : 0;
    while (state == MN_PENDING && mn_now() < until) {
        for (int i = 0; i < 16; i++) mn_spin_pause();
        state = mn_timeline_query(timeline, value, status);
    }
    return state;
}

static mn_state sleep_wait(mn_timeline *timeline, uint64_t value, uint64_t deadline_ns, mn_status **status) {
    pthread_mutex_lock(&timeline->lock);
    timeline->sleepers++;
    mn_state state = locked_state(timeline, value, status);
    bool in_time = true;
    while (state == MN_PENDING && in_time) {
        in_time = mn_cond_wait_until(&timeline->changed, &timeline->lock, deadline_ns);
        state = locked_state(timeline, value, status);
    }
    timeline->sleepers--;
    pthread_mutex_unlock(&timeline->lock);
    return state;
}

void mn_timeline_sleep(mn_timeline *timeline, uint64_t value, uint64_t deadline_ns) {
    sleep_wait(timeline, value, deadline_ns, NULL);
}

int mn_timeline_wait(mn_timeline *timeline, uint64_t value, uint64_t timeout_ns, mn_status **status) {
    mn_state state = mn_timeline_query(timeline, value, status);
    if (state == MN_PENDING && timeout_ns > 0) {
        uint64_t deadline = mn_deadline(timeout_ns);
        mn_dependency_walk(timeline, value, deadline);
        state = spin_wait(timeline, value, status);
        if (state == MN_PENDING) state = sleep_wait(timeline, value, deadline, status);
    }
    if (state == MN_PENDING) return mn_error(MN_TIMEOUT, "point not complete in time");
    return state == MN_REACHED ? MN_OK : MN_FAILED;
}
