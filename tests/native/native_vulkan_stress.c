/* Drives the queues of a made-up Vulkan device from many threads; meant to be built with a sanitizer.
 *
 * Each queue of the device is a thread that runs submissions in order, after the semaphores they wait for.
 * A submission that waits for others must find on the device that all of them have run, whichever queue they were
 * on; a few fail at submission, and what waits for them fails too. Some threads wait for every submission they
 * submit, which makes them look at the device, others only at the end. Then chains lead from the CPU to the
 * device and back, several times, and the threads that wait at their ends run parts of them. At last the device
 * is lost.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "vulkan/queue.h"

#define QUEUES 5
#define SUBMITTERS 4
#define SUBMISSIONS 400
#define CHAINS 60
#define LINKS 7 /* CPU, device, CPU ... */
#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);               \
            abort();                                                                      \
        }                                                                                 \
    } while (0)

/* ---- the device --------------------------------------------------------------------------------- */

typedef struct job {
    struct job *next;
    vk_semaphore_submit waits[QUEUES], signal;
    uint32_t wait_count;
    struct work *work;
} job;

typedef struct work {
    atomic_bool done;
    struct work *after[3];
    int after_count;
} work;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t counters[QUEUES + 1]; /* by semaphore, from 1 on */
    job *first[QUEUES], *last[QUEUES];
    uint32_t max_waits; /* of one submission */
    bool ending, paused;
} gpu = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static int32_t gpu_submit(void *queue, uint32_t count, const vk_submit2 *info, uint64_t fence) {
    int index = (int)(intptr_t)queue - 1;
    CHECK(count == 1 && fence == 0 && info->wait_count <= QUEUES);
    job *j = calloc(1, sizeof *j);
    j->wait_count = info->wait_count;
    memcpy(j->waits, info->waits, info->wait_count * sizeof *info->waits);
    j->signal = info->signals[0];
    j->work = info->command_buffer_count ? info->command_buffers[0].command_buffer : NULL;
    pthread_mutex_lock(&gpu.lock);
    if (info->wait_count > gpu.max_waits) gpu.max_waits = info->wait_count;
    *(gpu.first[index] ? &gpu.last[index]->next : &gpu.first[index]) = j;
    gpu.last[index] = j;
    pthread_cond_broadcast(&gpu.changed);
    pthread_mutex_unlock(&gpu.lock);
    return 0;
}

static int32_t gpu_wait(void *device, const vk_semaphore_wait *info, uint64_t timeout) {
    (void)device;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)(timeout < 5000000 ? timeout : 5000000);
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&gpu.lock);
    int failed = 0;
    while (gpu.counters[info->semaphores[0]] < info->values[0] && !failed)
        failed = pthread_cond_timedwait(&gpu.changed, &gpu.lock, &until);
    bool reached = gpu.counters[info->semaphores[0]] >= info->values[0];
    pthread_mutex_unlock(&gpu.lock);
    return reached ? VK_SUCCESS : VK_TIMEOUT;
}

static int32_t gpu_counter(void *device, uint64_t semaphore, uint64_t *value) {
    (void)device;
    pthread_mutex_lock(&gpu.lock);
    *value = gpu.counters[semaphore];
    pthread_mutex_unlock(&gpu.lock);
    return VK_SUCCESS;
}

static bool may_run(const job *j) {
    if (gpu.paused) return false;
    for (uint32_t i = 0; i < j->wait_count; i++)
        if (gpu.counters[j->waits[i].semaphore] < j->waits[i].value) return false;
    return true;
}

static void *gpu_run(void *argument) {
    int index = (int)(intptr_t)argument;
    unsigned seed = 77u + (unsigned)index;
    pthread_mutex_lock(&gpu.lock);
    for (;;) {
        job *j = gpu.first[index];
        if (!j && gpu.ending) break;
        if (!j || !may_run(j)) {
            pthread_cond_wait(&gpu.changed, &gpu.lock);
            continue;
        }
        pthread_mutex_unlock(&gpu.lock);
        for (int i = 0; j->work && i < j->work->after_count; i++) CHECK(atomic_load(&j->work->after[i]->done));
        if (rand_r(&seed) % 8 == 0) nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        if (j->work) atomic_store(&j->work->done, true);
        pthread_mutex_lock(&gpu.lock);
        gpu.first[index] = j->next;
        gpu.counters[j->signal.semaphore] = j->signal.value;
        pthread_cond_broadcast(&gpu.changed);
        free(j);
    }
    pthread_mutex_unlock(&gpu.lock);
    return NULL;
}

/* ---- the submitters ----------------------------------------------------------------------------- */

static mn_vk_queue *queues[QUEUES];
static mn_timeline *timelines[SUBMITTERS][SUBMISSIONS];
static work works[SUBMITTERS][SUBMISSIONS];

static void wait_for(mn_timeline *timeline) {
    int code;
    mn_status *status = NULL;
    while ((code = mn_timeline_wait(timeline, 1, 50000000, &status)) == MN_TIMEOUT) continue;
    mn_status_release(status);
}

static void *submit(void *argument) {
    int me = (int)(intptr_t)argument;
    unsigned seed = 99u + (unsigned)me;
    for (int i = 0; i < SUBMISSIONS; i++) {
        mn_point waits[3];
        work *w = &works[me][i];
        for (int k = 0; k < 2 && i > 0; k++) {
            int before = i - 1 - (int)(rand_r(&seed) % (unsigned)(i < 8 ? i : 8));
            waits[w->after_count] = (mn_point){timelines[me][before], 1};
            w->after[w->after_count++] = &works[me][before];
        }
        mn_point signal = {timelines[me][i], 1};
        mn_submission_desc one = {.waits = waits, .wait_count = (uint32_t)w->after_count, .signals = &signal,
                             .signal_count = 1, .work = w};
        mn_queue *core = mn_vk_queue_core(queues[rand_r(&seed) % QUEUES]);
        CHECK(mn_queue_submit(core, &one, 1) == MN_OK);
        if (me % 2 == 0) wait_for(timelines[me][i]);
    }
    return NULL;
}

/* Every submission is complete; those that ran succeeded, the others failed. Returns how many failed. */
static int check_all(void) {
    int failed = 0;
    for (int s = 0; s < SUBMITTERS; s++)
        for (int i = 0; i < SUBMISSIONS; i++) {
            wait_for(timelines[s][i]);
            bool reached = mn_timeline_query(timelines[s][i], 1, NULL) == MN_REACHED;
            CHECK(reached == atomic_load(&works[s][i].done));
            failed += !reached;
        }
    return failed;
}

static void run_submitters(void) {
    pthread_t threads[SUBMITTERS];
    for (int s = 0; s < SUBMITTERS; s++) {
        for (int i = 0; i < SUBMISSIONS; i++) {
            timelines[s][i] = mn_timeline_create("stress", 0);
            works[s][i] = (work){0};
        }
        pthread_create(&threads[s], NULL, submit, (void *)(intptr_t)s);
    }
    for (int s = 0; s < SUBMITTERS; s++) pthread_join(threads[s], NULL);
}

static void forget(void) {
    for (int s = 0; s < SUBMITTERS; s++)
        for (int i = 0; i < SUBMISSIONS; i++) mn_timeline_release(timelines[s][i]);
}

/* ---- waits for every queue ---------------------------------------------------------------------- */

static void set_paused(bool paused) {
    pthread_mutex_lock(&gpu.lock);
    gpu.paused = paused;
    pthread_cond_broadcast(&gpu.changed);
    pthread_mutex_unlock(&gpu.lock);
}

/* The device orders a submission after running work of all its queues. */
static void check_waits_for_all(void) {
    mn_timeline *ends[QUEUES + 1];
    mn_point waits[QUEUES];
    work done[QUEUES + 1] = {0};
    set_paused(true);
    for (int q = 0; q <= QUEUES; q++) {
        ends[q] = mn_timeline_create("end", 0);
        mn_point signal = {ends[q], 1};
        mn_submission_desc one = {.signals = &signal, .signal_count = 1, .work = &done[q], .waits = waits,
                                  .wait_count = q < QUEUES ? 0 : QUEUES};
        CHECK(mn_queue_submit(mn_vk_queue_core(queues[q % QUEUES]), &one, 1) == MN_OK);
        if (q < QUEUES) waits[q] = (mn_point){ends[q], 1};
    }
    CHECK(gpu.max_waits == QUEUES);
    set_paused(false);
    wait_for(ends[QUEUES]);
    for (int q = 0; q <= QUEUES; q++) CHECK(atomic_load(&done[q].done));
    for (int q = 0; q <= QUEUES; q++) {
        wait_for(ends[q]);  // the core may learn of the last queue's end first
        CHECK(mn_timeline_query(ends[q], 1, NULL) == MN_REACHED);
        mn_timeline_release(ends[q]);
    }
}

/* A device takes no more than MN_VK_MAX_QUEUES. */
static void check_queue_limit(void) {
    mn_vk_options options = {.label = "one more", .queue = (void *)1, .semaphore = 1, .submit = gpu_submit,
                             .wait = gpu_wait, .counter = gpu_counter, .sibling = queues[0]};
    mn_vk_queue *more[MN_VK_MAX_QUEUES - QUEUES];
    for (int i = 0; i < MN_VK_MAX_QUEUES - QUEUES; i++) CHECK((more[i] = mn_vk_queue_create(&options)));
    CHECK(!mn_vk_queue_create(&options));
    CHECK(!strcmp(mn_last_message(), "a Vulkan device has at most 8 queues"));
    for (int i = 0; i < MN_VK_MAX_QUEUES - QUEUES; i++) {
        CHECK(mn_queue_close(mn_vk_queue_core(more[i]), MN_FOREVER) == MN_OK);
        mn_vk_queue_release(more[i]);
    }
}

/* ---- chains over the CPU and the device --------------------------------------------------------- */

static mn_queue *cpu;
static atomic_int behind_device; /* links of the CPU behind one of the device that waiting threads ran */
static _Thread_local bool waits_here;

/* A kernel: what the link follows is done; now it is too. */
static void run_link(const uint64_t *table, const uint32_t grid[3], int64_t begin, int64_t end) {
    (void)grid, (void)begin, (void)end;
    work *w = (work *)table[0];
    for (int i = 0; i < w->after_count; i++) CHECK(atomic_load(&w->after[i]->done));
    if (waits_here && w->after_count) atomic_fetch_add(&behind_device, 1);
    atomic_store(&w->done, true);
}

static void submit_link(work *chain, mn_timeline *timeline, int i) {
    mn_point wait = {timeline, (uint64_t)i}, signal = {timeline, (uint64_t)i + 1};
    mn_submission_desc one = {.waits = &wait, .wait_count = i > 0, .signals = &signal, .signal_count = 1, .work = &chain[i]};
    if (i % 2) {
        CHECK(mn_queue_submit(mn_vk_queue_core(queues[i / 2 % QUEUES]), &one, 1) == MN_OK);
        return;
    }
    uint64_t word = (uint64_t)&chain[i];
    mn_cpu_command command = {.kernel = (const void *)run_link, .op = MN_CPU_DISPATCH, .grid = {1, 1, 1}};
    mn_cpu_list *list = mn_cpu_list_create(&command, 1, &word, 1, NULL, 0, false);
    one.work = list;
    CHECK(mn_queue_submit(cpu, &one, 1) == MN_OK);
    mn_cpu_list_release(list);
}

static void *run_chains(void *argument) {
    unsigned seed = 55u + (unsigned)(intptr_t)argument;
    waits_here = true;
    for (int round = 0; round < CHAINS; round++) {
        work chain[LINKS] = {0};
        mn_timeline *timeline = mn_timeline_create("chain", 0);
        bool backwards = rand_r(&seed) % 2;
        for (int i = 1; i < LINKS; i++) chain[i].after[chain[i].after_count++] = &chain[i - 1];
        for (int i = 0; i < LINKS; i++) submit_link(chain, timeline, backwards ? LINKS - 1 - i : i);
        while (mn_timeline_wait(timeline, LINKS, 50000000, NULL) == MN_TIMEOUT) continue;
        for (int i = 0; i < LINKS; i++) CHECK(atomic_load(&chain[i].done));
        mn_timeline_release(timeline);
    }
    return NULL;
}

static void check_chains(int count) {
    pthread_t threads[SUBMITTERS];
    for (int s = 0; s < count; s++) pthread_create(&threads[s], NULL, run_chains, (void *)(intptr_t)s);
    for (int s = 0; s < count; s++) pthread_join(threads[s], NULL);
}

int main(void) {
    mn_cpu_options two = {.threads = 2, .spin_ns = 20000};
    cpu = mn_cpu_queue_create("stress cpu", &two);
    CHECK(cpu);
    pthread_t engines[QUEUES];
    for (int q = 0; q < QUEUES; q++) {
        pthread_create(&engines[q], NULL, gpu_run, (void *)(intptr_t)q);
        mn_vk_options options = {.label = "stress", .queue = (void *)(intptr_t)(q + 1), .semaphore = (uint64_t)q + 1,
                                 .spin_ns = 20000, .submit = gpu_submit, .wait = gpu_wait,
                                 .counter = gpu_counter, .sibling = q ? queues[0] : NULL};
        queues[q] = mn_vk_queue_create(&options);
        CHECK(queues[q]);
    }
    check_waits_for_all();
    check_queue_limit();
    run_submitters();
    CHECK(check_all() == 0);
    forget();
    /* The device's watcher and the queue's thread may be quicker, but not every time. */
    for (int i = 0; i < 50 && !atomic_load(&behind_device); i++) check_chains(1);
    CHECK(atomic_load(&behind_device) > 0);
    check_chains(SUBMITTERS);
    mn_vk_inject(queues, QUEUES, 600, VK_ERROR_OUT_OF_DEVICE_MEMORY);
    run_submitters();
    CHECK(check_all() > 0);
    forget();
    mn_vk_inject(queues, QUEUES, 600, VK_ERROR_DEVICE_LOST);
    run_submitters();
    for (int s = 0; s < SUBMITTERS; s++)
        for (int i = 0; i < SUBMISSIONS; i++) wait_for(timelines[s][i]); /* a lost device may have run what failed */
    for (int q = 0; q < QUEUES; q++)
        while (mn_queue_close(mn_vk_queue_core(queues[q]), 100000000) == MN_TIMEOUT) continue;
    for (int q = 0; q < QUEUES; q++) mn_vk_queue_release(queues[q]);
    while (mn_queue_close(cpu, 100000000) == MN_TIMEOUT) continue;
    mn_queue_release(cpu);
    forget();
    pthread_mutex_lock(&gpu.lock);
    gpu.ending = true;
    pthread_cond_broadcast(&gpu.changed);
    pthread_mutex_unlock(&gpu.lock);
    for (int q = 0; q < QUEUES; q++) pthread_join(engines[q], NULL);
    printf("done\n");
    return 0;
}
