/* The worker pool: threads that share the workgroups of one dispatch after another.
 *
 * A dispatch is cut into chunks. One word holds its epoch, its number of chunks and the next chunk to
 * take, so adding one to it takes a chunk and tells at once whether there was one. The fields of a
 * dispatch are written while nothing can be taken and read only by who has taken a chunk, which keeps
 * the dispatch from ending: a worker that was held up can neither read stale fields nor do harm. The
 * dispatch is over when all its chunks are counted in `done`; workers that slept through it are not
 * waited for.
 */
#define _GNU_SOURCE /* sched_getaffinity */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "internal.h"

#define FINISH_SPIN_NS 50000u

/* epoch: 16 bits, chunks: 24 bits, next: 24 bits. `next` passes `chunks` by at most one per thread. */
#define FIELD_BITS 24
#define FIELD_MASK 0xFFFFFFu
#define MAX_THREADS 4096

static uint32_t epoch_of(uint64_t word) { return (uint32_t)(word >> (2 * FIELD_BITS)); }
static uint32_t chunks_of(uint64_t word) { return (uint32_t)(word >> FIELD_BITS) & FIELD_MASK; }
static uint32_t next_of(uint64_t word) { return (uint32_t)word & FIELD_MASK; }

/* One dispatch. Half of the grid goes out in one big chunk per thread, which keeps the takes few; the
 * rest in small ones, which evens out threads of unequal speed. */
typedef struct dispatch {
    mn_kernel kernel;
    const uint64_t *table;
    const uint32_t *grid;
    int64_t total;
    int64_t big_chunks;
    int64_t big;   /* workgroups in each of the first chunks */
    int64_t small; /* workgroups in each of the others */
} dispatch;

#define SMALL_PER_THREAD 4

struct mn_pool {
    /* Read and written by all: a cache line each. */
    _Alignas(64) _Atomic uint64_t word;
    _Alignas(64) atomic_uint done;
    _Alignas(64) dispatch current;
    /* Sleeping and waking. */
    _Alignas(64) atomic_int sleepers;
    atomic_bool caller_sleeps;
    atomic_bool stop;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_cond_t finished;
    pthread_mutex_t turn; /* one dispatch at a time */
    int threads;
    pthread_t workers[];
};

/* ---- taking part ------------------------------------------------------------------------------ */

static void count_done(mn_pool *pool, unsigned count, unsigned chunks) {
    if (atomic_fetch_add(&pool->done, count) + count != chunks || !atomic_load(&pool->caller_sleeps)) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_signal(&pool->finished);
    pthread_mutex_unlock(&pool->lock);
}

static void run_chunk(const dispatch *work, int64_t chunk) {
    int64_t bigs = work->big_chunks * work->big;
    int64_t begin = chunk < work->big_chunks ? chunk * work->big : bigs + (chunk - work->big_chunks) * work->small;
    int64_t end = begin + (chunk < work->big_chunks ? work->big : work->small);
    work->kernel(work->table, work->grid, begin, end < work->total ? end : work->total);
}

/* Take chunks until none is left. */
static void take_part(mn_pool *pool) {
    uint64_t word = atomic_load_explicit(&pool->word, memory_order_relaxed);
    if (next_of(word) >= chunks_of(word)) return;
    unsigned count = 0;
    for (;;) {
        word = atomic_fetch_add_explicit(&pool->word, 1, memory_order_acquire);
        if (next_of(word) >= chunks_of(word)) break;
        run_chunk(&pool->current, next_of(word));
        count++;
    }
    /* With chunks not yet counted the dispatch cannot have ended: `word` is still of the same one. */
    if (count) count_done(pool, count, chunks_of(word));
}

/* ---- workers ---------------------------------------------------------------------------------- */

static bool spin_for_epoch(mn_pool *pool, uint32_t seen) {
    uint64_t until = mn_now() + MN_POOL_SPIN_NS;
    do {
        for (int i = 0; i < 16; i++) {
            if (epoch_of(atomic_load_explicit(&pool->word, memory_order_acquire)) != seen) return true;
            mn_spin_pause();
        }
    } while (mn_now() < until && !atomic_load_explicit(&pool->stop, memory_order_relaxed));
    return false;
}

static void sleep_for_epoch(mn_pool *pool, uint32_t seen) {
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while (epoch_of(atomic_load(&pool->word)) == seen && !atomic_load(&pool->stop))
        pthread_cond_wait(&pool->wake, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
}

static void *worker_thread(void *argument) {
    mn_pool *pool = argument;
    prctl(PR_SET_NAME, "mn-worker");
    uint32_t seen = 0;
    while (!atomic_load(&pool->stop)) {
        if (!spin_for_epoch(pool, seen)) sleep_for_epoch(pool, seen);
        seen = epoch_of(atomic_load_explicit(&pool->word, memory_order_acquire));
        take_part(pool);
    }
    return NULL;
}

static void wake_workers(mn_pool *pool) {
    /* Sequentially consistent, as in sleep_for_epoch: either it sees the new epoch or we see the sleeper. */
    if (atomic_load(&pool->sleepers) == 0) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->wake); /* one system call, where waking a few would take a few */
    pthread_mutex_unlock(&pool->lock);
}

/* ---- dispatching ------------------------------------------------------------------------------ */

static void wait_for_chunks(mn_pool *pool, unsigned chunks) {
    uint64_t until = 0;
    while (atomic_load_explicit(&pool->done, memory_order_acquire) != chunks) {
        for (int i = 0; i < 16; i++) mn_spin_pause();
        uint64_t now = mn_now();
        if (until == 0) until = now + FINISH_SPIN_NS;
        if (now < until) continue;
        atomic_store(&pool->caller_sleeps, true);
        pthread_mutex_lock(&pool->lock);
        while (atomic_load(&pool->done) != chunks) pthread_cond_wait(&pool->finished, &pool->lock);
        pthread_mutex_unlock(&pool->lock);
        atomic_store(&pool->caller_sleeps, false);
    }
}

/* Describe the dispatch in pool->current and return its number of chunks. */
static unsigned describe(mn_pool *pool, mn_kernel kernel, const uint64_t *table, const uint32_t *grid, int64_t total) {
    int64_t threads = pool->threads;
    dispatch *work = &pool->current;
    *work = (dispatch){.kernel = kernel, .table = table, .grid = grid, .total = total};
    work->big = total / (2 * threads);
    work->big_chunks = work->big ? threads : 0;
    int64_t rest = total - work->big_chunks * work->big;
    work->small = (rest + SMALL_PER_THREAD * threads - 1) / (SMALL_PER_THREAD * threads);
    return (unsigned)(work->big_chunks + (rest + work->small - 1) / work->small);
}

void mn_pool_run(mn_pool *pool, mn_kernel kernel, const uint64_t *table, const uint32_t grid[3]) {
    int64_t total = (int64_t)grid[0] * grid[1] * grid[2];
    if (total <= 0) return;
    if (total == 1 || pool->threads == 1) {
        kernel(table, grid, 0, total);
        return;
    }
    pthread_mutex_lock(&pool->turn);
    unsigned chunks = describe(pool, kernel, table, grid, total);
    uint64_t epoch = epoch_of(atomic_load_explicit(&pool->word, memory_order_relaxed)) + 1;
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    atomic_store(&pool->word, epoch << (2 * FIELD_BITS) | (uint64_t)chunks << FIELD_BITS);
    wake_workers(pool);
    take_part(pool);
    wait_for_chunks(pool, chunks);
    pthread_mutex_unlock(&pool->turn);
}

/* ---- life ------------------------------------------------------------------------------------- */

int mn_default_threads(void) {
    const char *text = getenv("MANSARD_NUM_THREADS");
    if (text && *text) {
        char *end;
        errno = 0;
        long threads = strtol(text, &end, 10);
        if (*end == 0 && errno == 0 && threads >= 1 && threads <= MAX_THREADS) return (int)threads;
        mn_error(MN_INPUT, "MANSARD_NUM_THREADS is %.40s; it must be a number from 1 to %d", text, MAX_THREADS);
        return 0;
    }
    cpu_set_t usable;
    int count = sched_getaffinity(0, sizeof usable, &usable) == 0 ? CPU_COUNT(&usable) : 1;
    return count > 0 ? count : 1;
}

static void stop_workers(mn_pool *pool, int started) {
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->stop, true);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < started; i++) pthread_join(pool->workers[i], NULL);
}

mn_pool *mn_pool_create(int threads) {
    if (threads < 1 || threads > MAX_THREADS) {
        mn_error(MN_INVALID, "a pool has 1 to %d threads, not %d", MAX_THREADS, threads);
        return NULL;
    }
    size_t size = sizeof(mn_pool) + (size_t)(threads - 1) * sizeof(pthread_t);
    mn_pool *pool = aligned_alloc(64, (size + 63) / 64 * 64);
    if (!pool) {
        mn_error(MN_OUT_OF_MEMORY, "cannot allocate a pool");
        return NULL;
    }
    memset(pool, 0, size);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_mutex_init(&pool->turn, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->finished, NULL);
    pool->threads = threads;
    for (int i = 0; i < threads - 1; i++) {
        int reason = pthread_create(&pool->workers[i], NULL, worker_thread, pool);
        if (reason == 0) continue;
        stop_workers(pool, i);
        free(pool);
        mn_error(MN_DEVICE, "cannot start worker %d of %d: %s", i + 1, threads - 1, strerror(reason));
        return NULL;
    }
    return pool;
}

void mn_pool_release(mn_pool *pool) {
    if (!pool) return;
    stop_workers(pool, pool->threads - 1);
    pthread_cond_destroy(&pool->finished);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->turn);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

int mn_pool_threads(const mn_pool *pool) { return pool->threads; }
