/* Statuses, the last message of a thread, clocks, and deferred callbacks. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/internal.h"

struct mn_status {
    atomic_int refs;
    int code;
    uint64_t token;
    char *message; /* in the same allocation */
};

/* Stands in when a status cannot be allocated; never freed. */
static mn_status exhausted = {.refs = 1, .code = MN_OUT_OF_MEMORY, .message = "the host is out of memory"};

static struct {
    pthread_mutex_t lock;
    uint64_t *tokens;
    size_t count, capacity;
} released = {.lock = PTHREAD_MUTEX_INITIALIZER};

mn_status *mn_status_create(int code, const char *message, uint64_t token) {
    size_t length = message ? strlen(message) : 0;
    mn_status *status = malloc(sizeof *status + length + 1);
    if (!status) return mn_status_retain(&exhausted);
    atomic_init(&status->refs, 1);
    status->code = code;
    status->token = token;
    status->message = (char *)(status + 1);
    if (length) memcpy(status->message, message, length);
    status->message[length] = 0;
    return status;
}

mn_status *mn_status_retain(mn_status *status) {
    if (status) atomic_fetch_add_explicit(&status->refs, 1, memory_order_relaxed);
    return status;
}

static void note_released(uint64_t token) {
    pthread_mutex_lock(&released.lock);
    if (released.count == released.capacity) {
        size_t capacity = released.capacity ? 2 * released.capacity : 64;
        uint64_t *tokens = realloc(released.tokens, capacity * sizeof *tokens);
        if (tokens) released.tokens = tokens, released.capacity = capacity;
    }
    /* Out of memory: the owner keeps one object too long, nothing worse. */
    if (released.count < released.capacity) released.tokens[released.count++] = token;
    pthread_mutex_unlock(&released.lock);
}

void mn_status_release(mn_status *status) {
    if (!status || status == &exhausted) return;
    if (atomic_fetch_sub_explicit(&status->refs, 1, memory_order_acq_rel) != 1) return;
    if (status->token) note_released(status->token);
    free(status);
}

int mn_status_code(const mn_status *status) { return status ? status->code : MN_OK; }

const char *mn_status_message(const mn_status *status) { return status ? status->message : ""; }

uint64_t mn_status_token(const mn_status *status) { return status ? status->token : 0; }

size_t mn_status_take_released(uint64_t *tokens, size_t capacity) {
    pthread_mutex_lock(&released.lock);
    size_t count = released.count < capacity ? released.count : capacity;
    released.count -= count;
    if (count) memcpy(tokens, released.tokens + released.count, count * sizeof *tokens);
    pthread_mutex_unlock(&released.lock);
    return count;
}

/* ---- messages --------------------------------------------------------------------------------- */

static _Thread_local char last_message[512];

const char *mn_last_message(void) { return last_message; }

int mn_error(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_message, sizeof last_message, format, arguments);
    va_end(arguments);
    return code;
}

/* ---- time ------------------------------------------------------------------------------------- */

uint64_t mn_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t mn_deadline(uint64_t timeout_ns) {
    uint64_t now = mn_now();
    return timeout_ns > MN_FOREVER - now ? MN_FOREVER : now + timeout_ns;
}

void mn_cond_init(pthread_cond_t *cond) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

bool mn_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns) {
    if (deadline_ns == MN_FOREVER) {
        pthread_cond_wait(cond, lock);
        return true;
    }
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                             .tv_nsec = (long)(deadline_ns % 1000000000u)};
    return pthread_cond_timedwait(cond, lock, &until) != ETIMEDOUT;
}

/* ---- deferred callbacks ----------------------------------------------------------------------- */

/* A completed point may make a submission ready whose completion completes the next point, and so on. The
 * list turns that recursion into a loop: only the outermost frame of a thread runs callbacks. */
static _Thread_local struct {
    mn_waiter *head, *tail;
    bool active;
} deferred;

void mn_defer(mn_waiter *waiter) {
    waiter->next = NULL;
    if (deferred.head)
        deferred.tail->next = waiter;
    else
        deferred.head = waiter;
    deferred.tail = waiter;
}

bool mn_defer_enter(void) {
    bool outermost = !deferred.active;
    deferred.active = true;
    return outermost;
}

bool mn_defer_is_active(void) { return deferred.active; }

void mn_defer_leave(bool outermost) {
    if (!outermost) return;
    while (deferred.head) {
        mn_waiter *waiter = deferred.head;
        deferred.head = waiter->next;
        /* `run` may free the waiter. */
        mn_status *status = waiter->status;
        waiter->run(waiter, status);
        mn_status_release(status);
    }
    deferred.active = false;
}
