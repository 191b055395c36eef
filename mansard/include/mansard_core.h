/* The native core of Mansard: timelines, queues, the CPU executor, executable memory.
 *
 * Everything here is plain C11 and POSIX threads. Python reaches it through ctypes, so no call holds
 * the interpreter lock; drivers written in C include this header.
 *
 * Rules that hold everywhere
 *  - Every object is reference counted: create returns one reference, retain adds one, release drops one.
 *  - Functions return an `mn_code` unless they cannot fail. `mn_last_message()` explains the last
 *    failure of the calling thread. Out-parameters are written only as documented.
 *  - Times are nanoseconds of CLOCK_MONOTONIC; a timeout of MN_FOREVER never expires, 0 only looks.
 *  - Callbacks (continuations, executors) run with no lock held, never nested: work that becomes
 *    runnable inside a callback is appended to a list of the calling thread and run when the
 *    callback has returned, so chains of any length use a bounded stack.
 *
 * Lock order (outer first; a thread never takes a lock to the left of one it holds)
 *    caller_runs.lock, queues.lock  ->  queue.lock  ->  completion.lock  ->  timeline.lock
 * Timelines and queues never hold two.
 *
 * A process made by fork has none of its parent's threads: there, submitting to a queue made before the
 * fork is an error, and closing or releasing one does nothing.
 */
#ifndef MANSARD_CORE_H
#define MANSARD_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MN_API __attribute__((visibility("default")))
#define MN_FOREVER UINT64_MAX

/* Stack that a CPU kernel may use. */
#define MN_KERNEL_STACK_BYTES (256 << 10)
/* Finished submissions of which a queue keeps a record. */
#define MN_QUEUE_RECORDS 256

/* ---- codes and statuses (status.c) ------------------------------------------------------------ */

typedef enum mn_code {
    MN_OK = 0,
    /* Answers that are not failures of a point. */
    MN_TIMEOUT = 1, /* not complete in time */
    MN_CLOSED = 2,  /* the queue or completion queue was closed */
    MN_INVALID = 3, /* an argument is wrong; a defect of the caller */
    /* Failures; each has its class in mansard/errors.py. */
    MN_FAILED = 16,         /* MansardError */
    MN_DEVICE = 17,         /* DeviceError */
    MN_UNAVAILABLE = 18,    /* DeviceUnavailableError */
    MN_OUT_OF_MEMORY = 19,  /* OutOfMemoryError */
    MN_DEVICE_LOST = 20,    /* DeviceLostError */
    MN_EXECUTION = 21,      /* ExecutionError */
    MN_INPUT = 22,          /* InputError */
    MN_WAIT_TIMEOUT = 23,   /* WaitTimeoutError */
    MN_DEADLINE = 24,       /* DeadlineExceededError */
    MN_CANCELLED = 25,      /* CallCancelledError */
} mn_code;

/* Why a point failed: immutable, shared by every point the failure spreads to. */
typedef struct mn_status mn_status;

/* A status with one reference, never NULL. `message` is copied. `token` is 0, or names an object of the
 * caller's (the Python exception); see mn_status_take_released. */
MN_API mn_status *mn_status_create(int code, const char *message, uint64_t token);
MN_API mn_status *mn_status_retain(mn_status *status); /* NULL is passed through */
MN_API void mn_status_release(mn_status *status);      /* NULL is allowed */
MN_API int mn_status_code(const mn_status *status);    /* MN_OK for NULL */
MN_API const char *mn_status_message(const mn_status *status);
MN_API uint64_t mn_status_token(const mn_status *status);

/* Tokens of statuses that no longer exist, each once, so that their owner can drop what they name.
 * Writes up to `capacity` tokens, returns how many. */
MN_API size_t mn_status_take_released(uint64_t *tokens, size_t capacity);

/* Why the last call of this thread failed; never NULL, valid until the thread's next failure. */
MN_API const char *mn_last_message(void);

/* Set mn_last_message (printf style) and return `code`; for drivers in C. */
MN_API int mn_error(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

MN_API uint64_t mn_now(void); /* CLOCK_MONOTONIC in nanoseconds */

/* ---- timelines (timeline.c) ------------------------------------------------------------------- */

/* A 64-bit counter that only rises. A point is a value on it.
 *
 *    signal(v)  every point <= v that has not failed is reached.
 *    fail(v)    the point v, and only v, is failed. Lower points that are pending stay pending: the
 *               work that signals them may still be running. A failure recorded for a point that a
 *               higher signal already completed is kept too, so that it is seen. The first failure
 *               of a point wins.
 *
 * Because signal(v) completes everything below v, work that may finish out of order needs a timeline
 * of its own.
 */
typedef struct mn_timeline mn_timeline;

typedef enum mn_state { MN_PENDING = 0, MN_REACHED = 1, MN_POISONED = 2 } mn_state;

typedef struct mn_point {
    mn_timeline *timeline;
    uint64_t value;
} mn_point;

/* `label` is copied and names the timeline in messages. */
MN_API mn_timeline *mn_timeline_create(const char *label, uint64_t initial);
MN_API mn_timeline *mn_timeline_retain(mn_timeline *timeline);
MN_API void mn_timeline_release(mn_timeline *timeline);
MN_API const char *mn_timeline_label(const mn_timeline *timeline);

/* The highest value completed, failed points included. */
MN_API uint64_t mn_timeline_value(mn_timeline *timeline);

/* The highest value that any submission signals which a queue has taken so far, whether it has run or not. */
MN_API uint64_t mn_timeline_promised(mn_timeline *timeline);

/* Complete every point up to `value`; no effect when it is not above the current one. */
MN_API void mn_timeline_signal(mn_timeline *timeline, uint64_t value);

/* Fail the point; the timeline takes its own reference to `status`. */
MN_API void mn_timeline_fail_status(mn_timeline *timeline, uint64_t value, mn_status *status);
MN_API void mn_timeline_fail(mn_timeline *timeline, uint64_t value, int code, const char *message);

/* How urgent the work is that signals points of the timeline (0 at first): of the submissions that are ready, a
 * queue runs the one with the highest priority next, and of equals the one submitted first. Submissions take
 * over the priority when they are submitted; of several timelines the highest. */
MN_API void mn_timeline_set_priority(mn_timeline *timeline, int32_t priority);

/* The state of a point. When it is poisoned and `status` is not NULL, *status receives a reference. */
MN_API mn_state mn_timeline_query(mn_timeline *timeline, uint64_t value, mn_status **status);

/* A reference to the reason why a point failed; NULL when it has not. */
MN_API mn_status *mn_timeline_failure(mn_timeline *timeline, uint64_t value);

/* Block until the point is complete; meanwhile the thread may run what signals it (see execute_until; it
 * needs 512 KiB of stack for that, else it only waits). MN_OK: reached. MN_TIMEOUT: still pending. MN_FAILED: the point
 * failed, and *status (when not NULL) receives a reference to the reason. */
MN_API int mn_timeline_wait(mn_timeline *timeline, uint64_t value, uint64_t timeout_ns, mn_status **status);

/* A continuation: `run` is called once when the point completes, with the reason when it failed
 * (borrowed) or NULL. The caller owns the memory, sets `run`, and keeps it valid until `run` was
 * called or the waiter was cancelled; the other fields belong to the core. */
typedef struct mn_waiter mn_waiter;
struct mn_waiter {
    void (*run)(mn_waiter *waiter, mn_status *status);
    mn_timeline *timeline;
    uint64_t value;
    mn_status *status;
    mn_waiter *next;
    mn_waiter **link; /* non-NULL while registered with the timeline */
};

/* Call `waiter->run` when the point completes; at once (see the header's rules) when it is complete. */
MN_API void mn_timeline_when(mn_timeline *timeline, uint64_t value, mn_waiter *waiter);

/* Withdraw a waiter. True: it will not run. False: it has run or is about to. */
MN_API bool mn_timeline_cancel(mn_waiter *waiter);

/* ---- queues (queue.c) ------------------------------------------------------------------------- */

/* A queue turns submissions into work that is ready to run. A submission becomes ready when all its waits
 * are complete; a submission that waits does not hold back others. When one of the waits failed, the
 * submission is not run and all its signals fail with the same status. It fails only when *all* its waits are
 * complete, so that a completed point always means: nothing that led to it is still running.
 */
typedef struct mn_queue mn_queue;
typedef struct mn_submission mn_submission;

typedef enum mn_queue_mode {
    MN_QUEUE_THREAD = 0, /* `execute` is called on a thread of the queue, one submission at a time */
    MN_QUEUE_INLINE = 1, /* `execute` is called by whichever thread made the submission ready, or with `depth_ns`
                            perhaps by one that ends another; it must not block, and submissions may overlap */
    MN_QUEUE_PULL = 2,   /* somebody calls mn_queue_pop */
} mn_queue_mode;

typedef struct mn_queue_options {
    const char *label; /* copied; names the device in messages */
    int mode;          /* mn_queue_mode */
    int bind_cpu;      /* 1 + the CPU the queue's thread is bound to; 0: any */
    /* Inline mode, for a device with a queue of its own. 0: ready submissions are started at once. Else only as many
     * as keep the device busy for about that long, and two; the others stay here, where they are ordered by
     * urgency and can be withdrawn. */
    uint64_t depth_ns;
    /* Start the submission's work. Exactly one mn_submission_complete (or mn_submission_finish) must follow, during
     * the call or later, from any thread. Unused in pull mode. */
    void (*execute)(void *context, mn_submission *submission);
    /* Optional, instead of `execute` in thread mode: complete the submission and return true, or return false
     * when the deadline has passed; it is then called again with the same submission, perhaps by another
     * thread. With it, a thread that waits for a point (mn_timeline_wait) may run a ready submission that
     * signals the point, while nothing else of the queue runs. */
    bool (*execute_until)(void *context, mn_submission *submission, uint64_t deadline_ns);
    /* Optional. Whether the calling thread may run submissions (see execute_until). */
    bool (*caller_may_run)(void *context);
    /* Optional. Call mn_queue_kick at about `when_ns` (0: no more), for less than it costs to wake the
     * queue's thread. False when it cannot be done. */
    bool (*call_later)(void *context, uint64_t when_ns);
    /* Optional. Whether the executor itself orders the submission after `point` on the device (a timeline
     * semaphore of the same API whose signalling work was already submitted). Such points are not
     * waited for by the core; the executor reads them with mn_submission_native_waits. When one of them
     * has failed by the time the submission completes, the submission's signals fail with its status.
     * Called by the submitting thread with no lock held, after the earlier submissions of the same
     * submission were handed to `execute` where they could be. */
    bool (*native_wait)(void *context, const mn_point *point);
    /* Optional. Called when a submission takes hold of its work and when it is done with it. */
    void (*retain_work)(void *work);
    void (*release_work)(void *work);
    /* Optional. Called with `context` when the last reference to the queue is gone. */
    void (*release_context)(void *context);
    void *context;
} mn_queue_options;

typedef struct mn_submission_desc {
    const mn_point *waits;
    const mn_point *signals;
    const uint64_t *slots; /* addresses of the binding slots, by index; copied */
    void *work;            /* what to run: opaque to the queue */
    uint64_t token;        /* the caller's name for the submission; see mn_queue_retired */
    uint32_t wait_count;
    uint32_t signal_count;
    uint32_t slot_count;
    uint32_t reserved;
} mn_submission_desc;

/* One finished submission; all times on CLOCK_MONOTONIC. A submission that was never run has start = end = 0. */
typedef struct mn_record {
    uint64_t token;
    uint64_t submit_ns;
    uint64_t ready_ns;
    uint64_t start_ns;
    uint64_t end_ns;
} mn_record;

typedef struct mn_queue_stats {
    uint64_t submitted; /* submissions */
    uint64_t completed; /* submissions that are done, failed ones included */
    uint64_t failed;
    uint64_t waiting;   /* submissions with pending waits */
    uint64_t running;   /* submissions started and not complete */
    uint64_t busy_ns;   /* time during which at least one submission ran, up to now */
} mn_queue_stats;

/* NULL on failure (see mn_last_message). Close a queue before releasing the last reference to it: an
 * open queue of mode MN_QUEUE_THREAD is held by its thread. */
MN_API mn_queue *mn_queue_create(const mn_queue_options *options);
MN_API mn_queue *mn_queue_retain(mn_queue *queue);
MN_API void mn_queue_release(mn_queue *queue);

/* Hand over submissions; never blocks on a point or on the device. All or nothing: on MN_CLOSED or
 * MN_OUT_OF_MEMORY no submission was taken. In inline mode without `depth_ns` ready submissions are executed before it
 * returns. */
MN_API int mn_queue_submit(mn_queue *queue, const mn_submission_desc *descs, uint32_t count);

/* Pull mode: the next ready submission: the most urgent, of equals the one submitted first. MN_TIMEOUT, or
 * MN_CLOSED when the queue was closed and nothing is left. The submission stays valid until it is completed. */
MN_API int mn_queue_pop(mn_queue *queue, uint64_t timeout_ns, mn_submission **submission);

/* Stop taking submissions, fail those that still wait (the message names the queue and the point), run
 * those that are ready, and wait up to `timeout_ns` for what runs. MN_TIMEOUT when something still
 * runs; may be called again. Not to be called from `execute` or a continuation. */
MN_API int mn_queue_close(mn_queue *queue, uint64_t timeout_ns);

/* Let the queue's thread take submissions that were left to the threads that wait for them. */
MN_API void mn_queue_kick(mn_queue *queue);

/* Fail with `status` what waits and what is ready but not started, now and in future submissions: the
 * device is lost. Submissions that run must still be completed by the executor. */
MN_API void mn_queue_poison(mn_queue *queue, mn_status *status);

/* Fail with `status` every submission, in whatever queue, that signals a point of `timeline` and has not begun.
 * Submissions that are ready fail at once; those that wait fail, as after a failed wait, when all their waits
 * are complete. What was begun (handed to `execute`, or taken by mn_queue_pop) ends by itself. */
MN_API void mn_withdraw(mn_timeline *timeline, mn_status *status);

MN_API void mn_queue_get_stats(mn_queue *queue, mn_queue_stats *stats);

/* Tokens of submissions completed since the last call, in order of completion, up to `capacity`: the
 * moment to drop what those submissions used. Returns how many were written. Token 0 is not reported. */
MN_API size_t mn_queue_retired(mn_queue *queue, uint64_t *tokens, size_t capacity);

/* The most recent finished submissions, oldest first, up to `capacity` (the queue keeps the last MN_QUEUE_RECORDS). */
MN_API size_t mn_queue_records(mn_queue *queue, mn_record *records, size_t capacity);

/* For executors; valid until the submission is completed. */
MN_API void *mn_submission_work(const mn_submission *submission);
MN_API uint64_t mn_submission_token(const mn_submission *submission);
MN_API const uint64_t *mn_submission_slots(const mn_submission *submission, uint32_t *count);
MN_API const mn_point *mn_submission_native_waits(const mn_submission *submission, uint32_t *count);
MN_API const mn_point *mn_submission_signals(const mn_submission *submission, uint32_t *count);
/* Replace the times of the record with the device's own (already on CLOCK_MONOTONIC). */
MN_API void mn_submission_set_times(mn_submission *submission, uint64_t start_ns, uint64_t end_ns);

/* The submission is done: signal its points (MN_OK) or fail them. The submission is gone afterwards. */
MN_API void mn_submission_complete(mn_submission *submission, int code, const char *message);
MN_API void mn_submission_finish(mn_submission *submission, mn_status *status); /* NULL: success; borrowed */

/* ---- completion queues (completion.c) --------------------------------------------------------- */

/* Lets one thread wait for any of many points. */
typedef struct mn_completion mn_completion;

MN_API mn_completion *mn_completion_create(void);
MN_API void mn_completion_release(mn_completion *completion); /* withdraws what is still pending */

/* Deliver `token` once the point is complete (reached or failed). */
MN_API int mn_completion_add(mn_completion *completion, mn_timeline *timeline, uint64_t value, uint64_t token);

/* Wait for tokens: writes 1..capacity of them to `tokens` and how many to *count. MN_TIMEOUT when there
 * were none in time; MN_CLOSED when closed and all delivered tokens were taken. */
MN_API int mn_completion_next(mn_completion *completion, uint64_t timeout_ns, uint64_t *tokens, uint32_t capacity,
                              uint32_t *count);

/* Deliver token 0, once however often it is posted before it is taken. Allocates nothing and cannot fail. */
MN_API void mn_completion_post(mn_completion *completion);
/* Wake every mn_completion_next for good. */
MN_API void mn_completion_close(mn_completion *completion);

/* ---- CPU command lists (cpu/list.c, cpu/execute.c) ----------------------------------------------- */

/* A CPU kernel: runs the workgroups begin <= i < end of the linear grid (x fastest). It may use
 * MN_KERNEL_STACK_BYTES of stack. */
typedef void (*mn_kernel)(const uint64_t *table, const uint32_t grid[3], int64_t begin, int64_t end);

typedef struct mn_cpu_list mn_cpu_list;

typedef enum mn_cpu_op { MN_CPU_DISPATCH = 0, MN_CPU_COPY = 1, MN_CPU_FILL = 2, MN_CPU_BARRIER = 3 } mn_cpu_op;

/* A command. All addresses live in the list's words, so that relocations treat them alike:
 *    dispatch  words[table ...] is the kernel's argument table
 *    copy      words[table] is the source, words[table + 1] the target, `size` bytes
 *    fill      words[table] is the target, `size` bytes of the 32-bit `pattern`
 *    barrier   commands after it start when those before it are done; between two barriers they run
 *              in any order and at once */
typedef struct mn_cpu_command {
    const void *kernel; /* mn_kernel */
    uint64_t size;
    uint32_t op; /* mn_cpu_op */
    uint32_t table;
    uint32_t grid[3];
    uint32_t pattern;
} mn_cpu_command;

/* words[word] = address of the slot + offset, when the submission starts. */
typedef struct mn_cpu_reloc {
    uint32_t word;
    uint32_t slot;
    uint64_t offset;
} mn_cpu_reloc;

/* A list with its own copy of everything. With `profile`, every run notes each command's times. */
MN_API mn_cpu_list *mn_cpu_list_create(const mn_cpu_command *commands, uint32_t command_count,
                                       const uint64_t *words, uint32_t word_count, const mn_cpu_reloc *relocs,
                                       uint32_t reloc_count, bool profile);
MN_API void mn_cpu_list_retain(mn_cpu_list *list);
MN_API void mn_cpu_list_release(mn_cpu_list *list);

/* Times of the last completed run: start and end of each command, 2 * command_count numbers; zeros for
 * barriers. With `profile` commands run one after another.
 * Returns how many numbers were written; 0 before the first run or without `profile`. */
MN_API size_t mn_cpu_list_times(mn_cpu_list *list, uint64_t *times, size_t capacity);

typedef struct mn_cpu_options {
    int threads;      /* threads that compute, the one that leads a list among them */
    int reserved;
    const int *cpus;  /* NULL, or the CPU each of them is bound to; copied */
    uint64_t spin_ns; /* how long an idle worker looks for work before it sleeps */
} mn_cpu_options;

/* A queue of mode MN_QUEUE_THREAD whose work is mn_cpu_list, with threads of its own. NULL on failure.
 *
 * A list is led by the queue's thread, or by a thread that waits for a point the submission signals
 * (mn_timeline_wait) while the queue is idle; `threads` - 1 workers take part. */
MN_API mn_queue *mn_cpu_queue_create(const char *label, const mn_cpu_options *options);

/* Debug facility: the list behind `after` others fails with `failure`, or, when that is NULL, does not
 * begin until it is let go. Takes the place of a fault that has not struck, and ends a hang. */
MN_API void mn_cpu_queue_inject(mn_queue *queue, uint64_t after, mn_status *failure);
MN_API void mn_cpu_queue_let_go(mn_queue *queue);

/* ---- memory (memory.c) ------------------------------------------------------------------------ */

/* Zeroed, page-aligned memory (2 MiB aligned and in huge pages where large). */
MN_API int mn_memory_map(uint64_t size, uint64_t *address);
MN_API void mn_memory_unmap(uint64_t address, uint64_t size);

/* Take memory in pages of the least size from now on, for what fills up bit by bit. */
MN_API void mn_memory_small_pages(uint64_t address, uint64_t size);

/* Read-execute memory holding a copy of `bytes`: written first, then sealed; never both. */
MN_API int mn_code_map(const void *bytes, uint64_t size, uint64_t *address);
/* The same straight from a file; `offset` must be a multiple of the page size. */
MN_API int mn_code_map_file(int fd, uint64_t offset, uint64_t size, uint64_t *address);
MN_API void mn_code_unmap(uint64_t address, uint64_t size);

/* ---- copies by the host (copy.c) -------------------------------------------------------------- */

typedef struct mn_copy {
    const void *source;
    void *target;
    uint64_t size;
    mn_timeline *timeline; /* NULL, or signalled with `value` when this copy and all before it are complete */
    uint64_t value;
} mn_copy;

/* Copy everything, in order, on up to `threads` threads (0: as many as pay); returns when all is done. Where
 * targets and sources overlap is undefined. */
MN_API void mn_copy_all(const mn_copy *copies, uint32_t count, uint32_t threads);

#endif
