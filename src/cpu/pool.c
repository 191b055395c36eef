/* The worker pool.
 *
 * A program is a row of groups; the tasks of a group may run at once. Each thread has a *share* of every
 * task, always the same part of the grid, so that what one dispatch leaves in a core's cache is there for
 * the next. A share is taken piece by piece: first by its own thread, then by threads that are done with
 * theirs. Whoever finishes the last piece of a group publishes the next group; nobody has to be woken or
 * waited for in between, and a worker that sleeps or is held up delays nothing but the piece it holds.
 *
 * `published` holds the number of the group (its epoch) and the pieces in a share; 0 pieces: no group. A
 * share's word holds the epoch it was last used in and the next piece; whoever comes first in an epoch
 * brings it up to date. All other fields of a group are read only by who holds a piece, which keeps the
 * group from ending: a worker that was held up can neither read stale fields nor take a stale piece.
 */
#define _GNU_SOURCE /* sched_getcpu */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/pool.h"
#include "core/thread.h"

#define MAX_THREADS 4096
#define PIECE_BITS 16
#define PIECE_MASK 0xFFFFu
#define LINE 128 /* two cache lines: neighbours are fetched in pairs */

/* Waking many threads one by one takes long: each thread woken wakes this many more. */
#define WAKE_FAN 2

/* A thread that was woken for work that did not come sleeps again after this time. */
#define WOKEN_SPIN_NS 20000u

typedef struct share {
    _Alignas(LINE) _Atomic uint64_t word;
} share;

typedef struct worker {
    mn_pool *pool;
    int number; /* of its share; the leader's is 0 */
    pthread_t thread;
} worker;

struct mn_pool {
    _Alignas(LINE) _Atomic uint64_t published;
    mn_group group; /* written with `published`, so on its line */
    mn_program *program;
    _Alignas(LINE) _Atomic uint32_t left; /* pieces of the group that are not done */
    _Alignas(LINE) _Atomic uint32_t bell; /* futexes: they change when somebody is woken */
    _Atomic uint32_t leader_bell;
    atomic_int sleepers;
    atomic_bool leader_sleeps;
    _Alignas(LINE) _Atomic uint64_t alarm_ns;
    atomic_bool stop;
    int threads;
    bool crowded; /* more threads than CPUs */
    uint64_t spin_ns;
    void (*alarm)(void *context);
    void *context;
    int *cpus;
    share *shares;
    worker *workers;
};

static uint64_t epoch_of(uint64_t word) { return word >> PIECE_BITS; }
static uint32_t pieces_of(uint64_t word) { return (uint32_t)word & PIECE_MASK; }

/* ---- pieces ----------------------------------------------------------------------------------- */

/* Where part `number` of `parts` nearly equal parts of `size` begins. */
static int64_t part_begin(int64_t size, int64_t number, int64_t parts) {
    int64_t larger = size % parts;
    return size / parts * number + (number < larger ? number : larger);
}

static void run_part(const mn_task *task, int64_t number, int64_t shares, uint32_t piece, uint32_t pieces) {
    int64_t begin = part_begin(task->total, number, shares);
    int64_t size = part_begin(task->total, number + 1, shares) - begin;
    int64_t from = begin + part_begin(size, piece, pieces), until = begin + part_begin(size, piece + 1, pieces);
    if (from < until) task->kernel(task->table, task->grid, from, until);
}

void mn_task_run(mn_task *task) {
    if (task->total > 0) task->kernel(task->table, task->grid, 0, task->total);
}

static void run_piece(mn_pool *pool, int number, uint32_t piece) {
    const mn_group *group = &pool->group;
    mn_task *task = group->tasks;
    while (piece >= task->first_piece + task->pieces) task++;
    uint64_t begin = group->measure ? mn_now() : 0;
    run_part(task, number, pool->threads, piece - task->first_piece, task->pieces);
    if (group->measure) atomic_fetch_add_explicit(&task->spent_ns, mn_now() - begin, memory_order_relaxed);
}

/* The next piece of a share in the epoch of `published`; -1 when none is left. */
static int take(share *from, uint64_t published) {
    uint64_t word = atomic_load_explicit(&from->word, memory_order_relaxed);
    for (;;) {
        if (epoch_of(word) > epoch_of(published)) return -1;
        uint64_t now = epoch_of(word) < epoch_of(published) ? published & ~(uint64_t)PIECE_MASK : word;
        if (pieces_of(now) >= pieces_of(published)) return -1;
        if (atomic_compare_exchange_weak_explicit(&from->word, &word, now + 1, memory_order_relaxed,
                                                  memory_order_relaxed))
            return (int)pieces_of(now);
    }
}

/* ---- publishing ------------------------------------------------------------------------------- */

static void wake_some(mn_pool *pool) {
    atomic_fetch_add(&pool->bell, 1);
    mn_futex_wake(&pool->bell, WAKE_FAN);
}

/* The stores to `published` and the looks at the sleepers are sequentially consistent, as in sleep_until:
 * either a thread that goes to sleep sees the new group, or we see the sleeper. */
static void publish(mn_pool *pool, uint32_t pieces, bool wake) {
    uint64_t epoch = epoch_of(atomic_load_explicit(&pool->published, memory_order_relaxed)) + 1;
    atomic_store(&pool->published, epoch << PIECE_BITS | pieces);
    if (!wake) return;
    if (pieces && atomic_load(&pool->sleepers)) wake_some(pool);
    if (atomic_load(&pool->leader_sleeps)) {
        atomic_fetch_add(&pool->leader_bell, 1);
        mn_futex_wake(&pool->leader_bell, 1);
    }
}

/* Go on to the next group. Nobody else touches the program: no piece is out. */
static void advance(mn_pool *pool, uint64_t deadline_ns) {
    mn_group group;
    bool more = pool->program->next(pool->program, &group, deadline_ns);
    if (!more) {
        pool->program = NULL;
        publish(pool, 0, true);
        return;
    }
    pool->group = group;
    atomic_store_explicit(&pool->left, group.pieces * (uint32_t)pool->threads, memory_order_relaxed);
    publish(pool, group.pieces, group.wake);
}

static bool changed(mn_pool *pool, uint64_t seen) {
    return atomic_load_explicit(&pool->published, memory_order_acquire) != seen;
}

static uint32_t take_share(mn_pool *pool, int number, uint64_t published) {
    uint32_t count = 0;
    int piece;
    while ((piece = take(&pool->shares[number], published)) >= 0) {
        run_piece(pool, number, (uint32_t)piece);
        count++;
    }
    return count;
}

/* Whether `count` pieces were the last of the group. */
static bool count_done(mn_pool *pool, uint32_t count) {
    return count && atomic_fetch_sub_explicit(&pool->left, count, memory_order_acq_rel) == count;
}

/* Take pieces until none is left; who finishes the last goes on to the next group. The thread's pieces are counted
 * before it looks at other shares, which takes these from their owners' caches. */
static void take_part(mn_pool *pool, int number, uint64_t published, uint64_t deadline_ns) {
    bool last = count_done(pool, take_share(pool, number, published));
    uint32_t others = 0;
    for (int i = 1, from = number; i < pool->threads && !last; i++) {
        if (!others && changed(pool, published)) return; /* the group has ended */
        if (++from == pool->threads) from = 0;
        others += take_share(pool, from, published);
    }
    if (last || count_done(pool, others)) advance(pool, deadline_ns);
}

/* ---- waiting ---------------------------------------------------------------------------------- */

static void check_alarm(mn_pool *pool, uint64_t now) {
    uint64_t when = atomic_load_explicit(&pool->alarm_ns, memory_order_relaxed);
    if (when && now >= when && atomic_compare_exchange_strong(&pool->alarm_ns, &when, 0)) pool->alarm(pool->context);
}

/* Look for a change for a while. */
static bool spin_until(mn_pool *pool, uint64_t seen, uint64_t spin_ns, uint64_t deadline_ns) {
    uint64_t now = mn_now(), until = now + spin_ns;
    if (until > deadline_ns) until = deadline_ns;
    do {
        for (int i = 0; i < 16; i++) {
            if (changed(pool, seen)) return true;
            mn_spin_pause();
        }
        if (pool->crowded) sched_yield();
        now = mn_now();
        check_alarm(pool, now);
    } while (now < until && !atomic_load_explicit(&pool->stop, memory_order_relaxed));
    return changed(pool, seen);
}

static void worker_sleep(mn_pool *pool, uint64_t seen) {
    uint32_t bell = atomic_load(&pool->bell);
    atomic_fetch_add(&pool->sleepers, 1);
    if (atomic_load(&pool->published) == seen && !atomic_load(&pool->stop) && !atomic_load(&pool->alarm_ns))
        mn_futex_wait(&pool->bell, bell, MN_FOREVER);
    int others = atomic_fetch_sub(&pool->sleepers, 1) - 1;
    bool work = pieces_of(atomic_load(&pool->published)) || atomic_load(&pool->alarm_ns);
    if (others && work && atomic_load(&pool->bell) != bell) wake_some(pool);
}

static void leader_sleep(mn_pool *pool, uint64_t seen, uint64_t deadline_ns) {
    uint32_t bell = atomic_load(&pool->leader_bell);
    atomic_store(&pool->leader_sleeps, true);
    if (atomic_load(&pool->published) == seen) mn_futex_wait(&pool->leader_bell, bell, deadline_ns);
    atomic_store(&pool->leader_sleeps, false);
}

/* ---- leading and working ---------------------------------------------------------------------- */

void mn_pool_begin(mn_pool *pool, mn_program *program) { pool->program = program; }

bool mn_pool_lead(mn_pool *pool, uint64_t deadline_ns) {
    uint64_t published = atomic_load_explicit(&pool->published, memory_order_acquire);
    /* A program that has not begun: nobody else can reach it. */
    if (pieces_of(published) == 0 && pool->program) advance(pool, deadline_ns);
    for (;;) {
        published = atomic_load_explicit(&pool->published, memory_order_acquire);
        if (pieces_of(published) == 0) return true;
        take_part(pool, 0, published, deadline_ns);
        if (!changed(pool, published) && !spin_until(pool, published, pool->spin_ns, deadline_ns))
            leader_sleep(pool, published, deadline_ns);
        if (deadline_ns != MN_FOREVER && mn_now() >= deadline_ns)
            return pieces_of(atomic_load_explicit(&pool->published, memory_order_acquire)) == 0;
    }
}

static void *work(void *argument) {
    worker *me = argument;
    mn_pool *pool = me->pool;
    uint64_t spin_ns = pool->spin_ns;
    while (!atomic_load_explicit(&pool->stop, memory_order_relaxed)) {
        uint64_t published = atomic_load_explicit(&pool->published, memory_order_acquire);
        if (pieces_of(published)) {
            take_part(pool, me->number, published, MN_FOREVER);
            spin_ns = pool->spin_ns;
        }
        if (changed(pool, published) || spin_until(pool, published, spin_ns, MN_FOREVER)) continue;
        worker_sleep(pool, published);
        if (spin_ns > WOKEN_SPIN_NS) spin_ns = WOKEN_SPIN_NS;
    }
    return NULL;
}

bool mn_pool_set_alarm(mn_pool *pool, uint64_t when_ns) {
    if (pool->threads == 1) return false;
    atomic_store(&pool->alarm_ns, when_ns);
    if (when_ns && atomic_load(&pool->sleepers)) wake_some(pool);
    return true;
}

bool mn_pool_is_bound_here(const mn_pool *pool) {
    int here = pool->cpus ? sched_getcpu() : -1;
    for (int i = 1; here >= 0 && i < pool->threads; i++)
        if (pool->cpus[i] == here) return true;
    return false;
}

/* ---- life ------------------------------------------------------------------------------------- */

static int usable_cpus(void) {
    /* Big enough for any kernel: CPU_SETSIZE is not. */
    enum { SETS = 16 };
    cpu_set_t sets[SETS];
    int count = sched_getaffinity(0, sizeof sets, sets) == 0 ? CPU_COUNT_S(sizeof sets, sets) : 0;
    return count > 0 ? count : 1;
}

static void free_pool(mn_pool *pool) {
    free(pool->workers);
    free(pool->shares);
    free(pool->cpus);
    free(pool);
}

static bool allocate_parts(mn_pool *pool, const int *cpus) {
    size_t threads = (size_t)pool->threads;
    pool->shares = aligned_alloc(LINE, threads * sizeof(share));
    pool->workers = calloc(threads, sizeof(worker));
    pool->cpus = cpus ? malloc(threads * sizeof(int)) : NULL;
    if (!pool->shares || !pool->workers || (cpus && !pool->cpus)) return false;
    memset(pool->shares, 0, threads * sizeof(share));
    if (cpus) memcpy(pool->cpus, cpus, threads * sizeof(int));
    return true;
}

static void stop_workers(mn_pool *pool, int started) {
    atomic_store(&pool->stop, true);
    atomic_fetch_add(&pool->bell, 1);
    mn_futex_wake(&pool->bell, MAX_THREADS);
    for (int i = 1; i < started; i++) pthread_join(pool->workers[i].thread, NULL);
}

static int start_workers(mn_pool *pool) {
    for (int i = 1; i < pool->threads; i++) {
        worker *me = &pool->workers[i];
        me->pool = pool;
        me->number = i;
        int cpu = pool->cpus ? pool->cpus[i] : -1;
        int reason = mn_thread_start(&me->thread, "mn-worker", cpu, work, me);
        if (reason == 0) continue;
        stop_workers(pool, i);
        if (cpu >= 0 && reason == EINVAL)
            return mn_error(MN_DEVICE, "cannot bind worker %d to CPU %d: this process may not use it", i, cpu);
        return mn_error(MN_DEVICE, "cannot start worker %d of %d: %s", i, pool->threads - 1, strerror(reason));
    }
    return MN_OK;
}

mn_pool *mn_pool_create(const mn_pool_options *options) {
    int threads = options->threads;
    if (threads < 1 || threads > MAX_THREADS) {
        mn_error(MN_INVALID, "a pool has 1 to %d threads, not %d", MAX_THREADS, threads);
        return NULL;
    }
    mn_pool *pool = aligned_alloc(LINE, (sizeof *pool + LINE - 1) / LINE * LINE);
    if (pool) {
        memset(pool, 0, sizeof *pool);
        pool->threads = threads;
        pool->crowded = threads > usable_cpus();
        pool->spin_ns = options->spin_ns;
        pool->alarm = options->alarm;
        pool->context = options->context;
        atomic_init(&pool->published, (uint64_t)1 << PIECE_BITS);
    }
    if (!pool || !allocate_parts(pool, options->cpus)) {
        if (pool) free_pool(pool);
        mn_error(MN_OUT_OF_MEMORY, "cannot allocate a pool of %d threads", threads);
        return NULL;
    }
    if (start_workers(pool) == MN_OK) return pool;
    free_pool(pool);
    return NULL;
}

void mn_pool_release(mn_pool *pool) {
    if (!pool) return;
    stop_workers(pool, pool->threads);
    free_pool(pool);
}

int mn_pool_threads(const mn_pool *pool) { return pool->threads; }
