/* Large copies by the host, divided among several threads.
 *
 * One core does not saturate the memory's bandwidth, much less while a GPU reads from it too. So the caller
 * and helpers, which sleep between jobs, take pieces of the copies in order. Helpers go from job to job; each
 * caller works on its own.
 *
 * Only the caller signals, between its pieces: whatever a signal makes ready is handed to its device by the
 * caller, while the helpers go on.
 */
#define _GNU_SOURCE /* sched_getaffinity */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "core/copy.h"
#include "core/thread.h"

#define MAX_HELPERS 15
/* Helpers pay off from here on: waking them takes 30 us and more, in which one thread copies 300 KB. */
#define SHARED_BYTES ((uint64_t)1 << 20)
/* Beyond what a cache would keep for whoever reads the copy: write past the caches, which saves reading what
 * is about to be overwritten. Many threads that write to memory which is in use are faster without (a Xeon with
 * 8 threads: 66 GB/s instead of 47; with 1: 8 instead of 16). */
#define STREAMED_BYTES ((uint64_t)4 << 20)
#define MANY_THREADS 4
#define MIN_PIECE ((uint64_t)128 << 10)
/* Where somebody waits for each copy, all threads work on the one that comes next. */
#define AWAITED_PIECE ((uint64_t)512 << 10)
/* A huge page: two threads in one would clear it twice when it is new. */
#define MAX_PIECE ((uint64_t)2 << 20)

/* A caller that meets that many jobs in progress copies alone. */
#define MAX_JOBS 8

typedef struct job {
    pthread_mutex_t lock; /* held by the caller whose job it is; what follows is the caller's until it is open */
    const mn_copy *copies;
    uint32_t count;
    uint32_t pieces; /* of all copies together */
    uint64_t piece;  /* bytes; pieces end at multiples of it in the target */
    bool streamed;
    atomic_bool open;        /* helpers may take pieces */
    _Atomic uint32_t inside; /* helpers that may look at it */
    _Atomic uint32_t next;
    _Atomic uint32_t *left; /* pieces of each copy that are not done */
} job;

static struct {
    job jobs[MAX_JOBS];
    _Atomic uint32_t bell;
    pthread_mutex_t starting;
    uint32_t started;
} helpers;

/* ---- pieces ----------------------------------------------------------------------------------- */

/* Where the pieces of a copy are counted from: in front of a target that begins within a piece. */
static uint64_t lead(const job *job, const mn_copy *copy) { return (uintptr_t)copy->target % job->piece; }

static uint32_t pieces_of(const job *job, const mn_copy *copy) {
    return copy->size ? (uint32_t)((lead(job, copy) + copy->size + job->piece - 1) / job->piece) : 0;
}

#if defined(__x86_64__)
static void stream_line(__m128i *target, const __m128i *source) {
    __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
}
#endif

static void copy_bytes(char *target, const char *source, uint64_t size, bool streamed) {
#if defined(__x86_64__)
    uint64_t head = -(uintptr_t)target % 64;
    if (streamed && size > head + 64) {
        memcpy(target, source, head);
        uint64_t end = head + (size - head) / 64 * 64;
        for (uint64_t i = head; i < end; i += 64)
            stream_line((__m128i *)(target + i), (const __m128i *)(source + i));
        _mm_sfence(); /* before anybody is told */
        target += end, source += end, size -= end;
    }
#else
    (void)streamed;
#endif
    memcpy(target, source, size);
}

static void run_piece(job *job, uint32_t piece) {
    uint32_t number = 0;
    for (uint32_t pieces; piece >= (pieces = pieces_of(job, &job->copies[number])); number++) piece -= pieces;
    const mn_copy *copy = &job->copies[number];
    uint64_t before = lead(job, copy), from = piece * job->piece, until = from + job->piece - before;
    from = from > before ? from - before : 0;
    if (until > copy->size) until = copy->size;
    copy_bytes((char *)copy->target + from, (const char *)copy->source + from, until - from, job->streamed);
    atomic_fetch_sub_explicit(&job->left[number], 1, memory_order_release);
}

static bool take_piece(job *job) {
    uint32_t piece = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
    if (piece >= job->pieces) return false;
    run_piece(job, piece);
    return true;
}

/* Signal for the copies from number `done` on that are complete, in order; returns how many are. */
static uint32_t signal_complete(job *job, uint32_t done) {
    while (done < job->count && atomic_load_explicit(&job->left[done], memory_order_acquire) == 0) {
        const mn_copy *copy = &job->copies[done++];
        if (copy->timeline) mn_timeline_signal(copy->timeline, copy->value);
    }
    return done;
}

static void run_job(job *job) {
    uint32_t done = signal_complete(job, 0);
    while (take_piece(job)) done = signal_complete(job, done);
    while ((done = signal_complete(job, done)) < job->count) mn_spin_pause();
}

/* ---- helpers ---------------------------------------------------------------------------------- */

/* `inside` and `open` are sequentially consistent: either a helper sees that the job is closed, or its owner
 * sees the helper. */
static bool help_with(job *job) {
    bool helped = false;
    atomic_fetch_add(&job->inside, 1);
    while (atomic_load(&job->open) && take_piece(job)) helped = true;
    atomic_fetch_sub(&job->inside, 1);
    return helped;
}

static void *helper_main(void *argument) {
    (void)argument;
    for (;;) {
        uint32_t bell = atomic_load(&helpers.bell);
        bool helped = false;
        for (int i = 0; i < MAX_JOBS; i++) helped |= help_with(&helpers.jobs[i]);
        if (!helped) mn_futex_wait(&helpers.bell, bell, MN_FOREVER);
    }
    return NULL;
}

static uint32_t default_threads(void) {
    enum { SETS = 16, MAX_THREADS = 8 };
    cpu_set_t sets[SETS];
    int cpus = sched_getaffinity(0, sizeof sets, sets) == 0 ? CPU_COUNT_S(sizeof sets, sets) : 1;
    return cpus < 4 ? 1 : cpus / 2 < MAX_THREADS ? (uint32_t)cpus / 2 : MAX_THREADS;
}

/* As many helpers as asked for, or as the system gives. */
static uint32_t start_helpers(uint32_t wanted) {
    if (wanted > MAX_HELPERS) wanted = MAX_HELPERS;
    pthread_mutex_lock(&helpers.starting);
    while (helpers.started < wanted && mn_thread_start(NULL, "mn-copy", -1, helper_main, NULL) == 0) helpers.started++;
    uint32_t count = wanted < helpers.started ? wanted : helpers.started;
    pthread_mutex_unlock(&helpers.starting);
    return count;
}

static void run_with_helpers(job *job, uint32_t wanted) {
    uint32_t count = start_helpers(wanted);
    atomic_store(&job->next, 0);
    atomic_store(&job->open, true);
    atomic_fetch_add(&helpers.bell, 1);
    if (count) mn_futex_wake(&helpers.bell, (int)count);
    run_job(job);
    atomic_store(&job->open, false);
    while (atomic_load(&job->inside)) mn_spin_pause();
}

void mn_copy_after_fork(void) {
    for (int i = 0; i < MAX_JOBS; i++) {
        pthread_mutex_init(&helpers.jobs[i].lock, NULL);
        atomic_store(&helpers.jobs[i].open, false);
        atomic_store(&helpers.jobs[i].inside, 0);
    }
    pthread_mutex_init(&helpers.starting, NULL);
    helpers.started = 0;
}

__attribute__((constructor)) static void prepare(void) { mn_copy_after_fork(); }

/* ---- copying ---------------------------------------------------------------------------------- */

static void copy_alone(const mn_copy *copies, uint32_t count, bool streamed) {
    for (uint32_t i = 0; i < count; i++) {
        copy_bytes(copies[i].target, copies[i].source, copies[i].size, streamed);
        if (copies[i].timeline) mn_timeline_signal(copies[i].timeline, copies[i].value);
    }
}

/* A job that is nobody's, now the caller's; NULL when there is none. */
static job *take_job(void) {
    for (int i = 0; i < MAX_JOBS; i++)
        if (pthread_mutex_trylock(&helpers.jobs[i].lock) == 0) return &helpers.jobs[i];
    return NULL;
}

static void divide_into_pieces(job *job, uint64_t total, uint32_t threads, bool awaited) {
    job->pieces = 0;
    job->piece = awaited ? AWAITED_PIECE : MAX_PIECE;
    while (job->piece > MIN_PIECE && total / job->piece < 4 * (uint64_t)threads) job->piece /= 2;
    for (uint32_t i = 0; i < job->count; i++) {
        uint32_t pieces = pieces_of(job, &job->copies[i]);
        atomic_init(&job->left[i], pieces);
        job->pieces += pieces;
    }
}

void mn_copy_all(const mn_copy *copies, uint32_t count, uint32_t threads) {
    uint64_t total = 0;
    bool awaited = false;
    for (uint32_t i = 0; i < count; i++) total += copies[i].size, awaited |= copies[i].timeline != NULL;
    if (threads == 0) threads = default_threads();
    bool streamed = total >= STREAMED_BYTES;
    _Atomic uint32_t *left = threads > 1 && total >= SHARED_BYTES ? malloc(count * sizeof *left) : NULL;
    job *job = left ? take_job() : NULL;
    if (job) {
        job->copies = copies, job->count = count, job->left = left;
        job->streamed = streamed && (threads < MANY_THREADS || !awaited);
        divide_into_pieces(job, total, threads, awaited);
        run_with_helpers(job, threads - 1);
        pthread_mutex_unlock(&job->lock);
    } else {
        copy_alone(copies, count, streamed);
    }
    free(left);
}
