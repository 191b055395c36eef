/* Completion queues: one thread waits for any of many points. */
#include <stdlib.h>

#include "core/internal.h"

typedef struct node node;
struct node {
    mn_waiter waiter; /* first: a waiter is its node */
    mn_completion *owner;
    uint64_t token;
    node *next, *previous; /* pending list, then delivered list (next only) */
};

struct mn_completion {
    atomic_int refs; /* the creator's and one per pending node */
    pthread_mutex_t lock;
    pthread_cond_t delivered;
    node *pending;
    node *first, *last; /* delivered and not taken */
    bool posted; /* token 0 is to be delivered */
    bool closed;
};

mn_completion *mn_completion_create(void) {
    mn_completion *completion = calloc(1, sizeof *completion);
    if (!completion) {
        mn_error(MN_OUT_OF_MEMORY, "cannot allocate a completion queue");
        return NULL;
    }
    atomic_init(&completion->refs, 1);
    pthread_mutex_init(&completion->lock, NULL);
    mn_cond_init(&completion->delivered);
    return completion;
}

static void drop_reference(mn_completion *completion) {
    if (atomic_fetch_sub_explicit(&completion->refs, 1, memory_order_acq_rel) != 1) return;
    while (completion->first) {
        node *delivered = completion->first;
        completion->first = delivered->next;
        free(delivered);
    }
    pthread_cond_destroy(&completion->delivered);
    pthread_mutex_destroy(&completion->lock);
    free(completion);
}

static void unlink_pending(mn_completion *completion, node *item) {
    if (item->previous)
        item->previous->next = item->next;
    else
        completion->pending = item->next;
    if (item->next) item->next->previous = item->previous;
}

static void deliver(mn_waiter *waiter, mn_status *status) {
    (void)status;
    node *item = (node *)waiter;
    mn_completion *completion = item->owner;
    mn_timeline *timeline = waiter->timeline;
    pthread_mutex_lock(&completion->lock);
    unlink_pending(completion, item);
    item->next = NULL;
    if (completion->first)
        completion->last->next = item;
    else
        completion->first = item;
    completion->last = item;
    pthread_cond_signal(&completion->delivered);
    pthread_mutex_unlock(&completion->lock);
    mn_timeline_release(timeline);
    drop_reference(completion);
}

int mn_completion_add(mn_completion *completion, mn_timeline *timeline, uint64_t value, uint64_t token) {
    node *item = calloc(1, sizeof *item);
    if (!item) return mn_error(MN_OUT_OF_MEMORY, "cannot allocate a completion");
    item->waiter.run = deliver;
    item->waiter.timeline = mn_timeline_retain(timeline);
    item->owner = completion;
    item->token = token;
    atomic_fetch_add_explicit(&completion->refs, 1, memory_order_relaxed);
    pthread_mutex_lock(&completion->lock);
    item->next = completion->pending;
    if (item->next) item->next->previous = item;
    completion->pending = item;
    pthread_mutex_unlock(&completion->lock);
    mn_timeline_when(timeline, value, &item->waiter);
    return MN_OK;
}

int mn_completion_next(mn_completion *completion, uint64_t timeout_ns, uint64_t *tokens, uint32_t capacity,
                       uint32_t *count) {
    uint64_t deadline = mn_deadline(timeout_ns);
    bool in_time = timeout_ns > 0;
    node *taken = NULL;
    uint32_t taken_count = 0;
    pthread_mutex_lock(&completion->lock);
    while (!completion->first && !completion->posted && !completion->closed && in_time)
        in_time = mn_cond_wait_until(&completion->delivered, &completion->lock, deadline);
    if (completion->posted && capacity) {
        completion->posted = false;
        tokens[taken_count++] = 0;
    }
    while (completion->first && taken_count < capacity) {
        node *item = completion->first;
        completion->first = item->next;
        tokens[taken_count++] = item->token;
        item->next = taken;
        taken = item;
    }
    bool closed = completion->closed;
    pthread_mutex_unlock(&completion->lock);
    while (taken) {
        node *item = taken;
        taken = item->next;
        free(item);
    }
    *count = taken_count;
    return taken_count ? MN_OK : closed ? MN_CLOSED : MN_TIMEOUT;
}

void mn_completion_post(mn_completion *completion) {
    pthread_mutex_lock(&completion->lock);
    completion->posted = true;
    pthread_cond_signal(&completion->delivered);
    pthread_mutex_unlock(&completion->lock);
}

void mn_completion_close(mn_completion *completion) {
    pthread_mutex_lock(&completion->lock);
    completion->closed = true;
    pthread_cond_broadcast(&completion->delivered);
    pthread_mutex_unlock(&completion->lock);
}

/* Withdraw one pending node that has not begun to run; false when there is none. */
static bool withdraw_one(mn_completion *completion) {
    pthread_mutex_lock(&completion->lock);
    node *item = completion->pending;
    /* A node about to run stays until `deliver` unlinks it: cancel tells which is the case. The order
     * completion.lock -> timeline.lock is safe: no timeline takes a completion's lock while locked. */
    while (item && !mn_timeline_cancel(&item->waiter)) item = item->next;
    if (item) unlink_pending(completion, item);
    pthread_mutex_unlock(&completion->lock);
    if (!item) return false;
    mn_timeline_release(item->waiter.timeline);
    free(item);
    drop_reference(completion);
    return true;
}

void mn_completion_release(mn_completion *completion) {
    mn_completion_close(completion);
    while (withdraw_one(completion)) {}
    drop_reference(completion);
}
