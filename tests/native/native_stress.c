/* Drives the native core from many threads; meant to be built with a sanitizer.
 *
 * Three queues, one of each mode, get submissions that wait on random points of a set of timelines and
 * signal others, with priorities of all kinds; some points are failed, and some submissions are withdrawn.
 * Every submission signals a point of its own, which must complete,
 * and must be poisoned exactly if one of the submission's waits was. Meanwhile a completion queue counts
 * completions, and a CPU queue sums numbers for threads that wait in several ways. At the end a queue is
 * closed with work waiting.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mansard_core.h"

#define SUBMISSIONS 1500
#define SUBMITTERS 3
#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);               \
            abort();                                                                      \
        }                                                                                 \
    } while (0)

static mn_timeline *timelines[SUBMITTERS][SUBMISSIONS]; /* one timeline per submission */
static mn_timeline *gates[8];                           /* signalled or failed by the host */
static mn_queue *queues[3];
static mn_completion *completion;

static void execute(void *context, mn_submission *submission) {
    (void)context;
    mn_submission_complete(submission, MN_OK, "");
}

static void *pull(void *argument) {
    mn_submission *submission;
    int code;
    while ((code = mn_queue_pop(argument, MN_FOREVER, &submission)) == MN_OK) mn_submission_complete(submission, MN_OK, "");
    CHECK(code == MN_CLOSED);
    return NULL;
}

static void *submit(void *argument) {
    int me = (int)(intptr_t)argument;
    unsigned seed = 1234u + (unsigned)me;
    for (int i = 0; i < SUBMISSIONS; i++) {
        mn_point waits[3];
        uint32_t count = 0;
        for (int k = 0; k < 2 && i > 0; k++)
            waits[count++] = (mn_point){timelines[me][rand_r(&seed) % i], 1};
        if (rand_r(&seed) % 4 == 0) waits[count++] = (mn_point){gates[rand_r(&seed) % 8], 1};
        mn_point signal = {timelines[me][i], 1};
        mn_timeline_set_priority(timelines[me][i], (int32_t)(rand_r(&seed) % 5) - 2);
        mn_submission_desc one = {.waits = waits, .wait_count = count, .signals = &signal, .signal_count = 1,
                             .token = (uint64_t)i + 1};
        /* Some points are watched before their submission exists, some after. */
        if (i % 2) CHECK(mn_completion_add(completion, timelines[me][i], 1, 1) == MN_OK);
        CHECK(mn_queue_submit(queues[rand_r(&seed) % 3], &one, 1) == MN_OK);
        if (i % 2 == 0) CHECK(mn_completion_add(completion, timelines[me][i], 1, 1) == MN_OK);
    }
    return NULL;
}

static void *open_gates(void *argument) {
    (void)argument;
    for (int i = 0; i < 8; i++) {
        struct timespec pause = {.tv_nsec = 2000000};
        nanosleep(&pause, NULL);
        if (i == 5)
            mn_timeline_fail(gates[i], 1, MN_EXECUTION, "gate 5");
        else
            mn_timeline_signal(gates[i], 1);
    }
    return NULL;
}

static void *withdraw(void *argument) {
    (void)argument;
    unsigned seed = 99;
    mn_status *status = mn_status_create(MN_CANCELLED, "withdrawn", 0);
    for (int i = 0; i < SUBMISSIONS; i++) mn_withdraw(timelines[rand_r(&seed) % SUBMITTERS][rand_r(&seed) % SUBMISSIONS], status);
    mn_status_release(status);
    return NULL;
}

static void *drain(void *argument) {
    (void)argument;
    uint64_t tokens[64];
    uint32_t count, total = 0;
    while (total < SUBMITTERS * SUBMISSIONS) {
        CHECK(mn_completion_next(completion, 60000000000u, tokens, 64, &count) == MN_OK);
        total += count;
    }
    CHECK(mn_completion_next(completion, 0, tokens, 64, &count) == MN_TIMEOUT);
    return NULL;
}

/* table: where to add, one 64-bit sum per workgroup */
static void sum_kernel(const uint64_t *table, const uint32_t grid[3], int64_t begin, int64_t end) {
    (void)grid;
    for (int64_t i = begin; i < end; i++) ((uint64_t *)(uintptr_t)table[0])[i] += table[1];
}

#define SUMS 257
#define ROUNDS 750
#define TASKS 20

/* Each round adds 1 to all of the first sums, then in TASKS independent parts 2, then 3 to the first of all.
 * Rounds depend on each other, so a piece run twice, left out or run early shows. */
typedef struct summing {
    mn_queue *queue;
    uint64_t sums[SUMS];
    uint64_t timeout_ns; /* of each wait, repeated until it succeeds */
} summing;

static mn_cpu_list *summing_list(uint64_t *sums) {
    mn_cpu_command commands[TASKS + 4] = {0};
    uint64_t words[2 * (TASKS + 2)];
    uint32_t count = 0, word = 0;
    for (int i = 0; i < TASKS + 2; i++) {
        bool part = i > 0 && i <= TASKS;
        if (i == 1 || i == TASKS + 1) commands[count++].op = MN_CPU_BARRIER;
        uint32_t from = part ? (uint32_t)(i - 1) * SUMS / TASKS : 0;
        uint32_t until = part ? (uint32_t)i * SUMS / TASKS : i == 0 ? SUMS : 1;
        commands[count++] = (mn_cpu_command){.kernel = (const void *)sum_kernel, .op = MN_CPU_DISPATCH, .table = word,
                                             .grid = {until - from, 1, 1}};
        words[word++] = (uintptr_t)(sums + from);
        words[word++] = i == 0 ? 1 : part ? 2 : 3;
    }
    mn_cpu_list *list = mn_cpu_list_create(commands, count, words, word, NULL, 0, false);
    CHECK(list);
    return list;
}

static void *use_cpu(void *argument) {
    summing *job = argument;
    mn_cpu_list *list = summing_list(job->sums);
    mn_timeline *timeline = mn_timeline_create("sums", 0);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        mn_point wait = {timeline, round - 1}, signal = {timeline, round};
        mn_submission_desc one = {.waits = &wait, .wait_count = 1, .signals = &signal, .signal_count = 1, .work = list};
        CHECK(mn_queue_submit(job->queue, &one, 1) == MN_OK);
        /* A list must not be submitted again before its last run ended. */
        while (mn_timeline_wait(timeline, round, job->timeout_ns, NULL) == MN_TIMEOUT) {}
        uint64_t first = job->sums[0], last = job->sums[SUMS - 1];
        CHECK(first == 6 * round && last == 3 * round);
    }
    for (int i = 1; i < SUMS; i++) CHECK(job->sums[i] == 3 * ROUNDS);
    mn_cpu_list_release(list);
    mn_timeline_release(timeline);
    return NULL;
}

static void *start_and_stop(void *argument) {
    (void)argument;
    for (int i = 0; i < 40; i++) {
        mn_cpu_options options = {.threads = 1 + i % 5, .spin_ns = i % 2 ? 0 : 100000};
        summing job = {.queue = mn_cpu_queue_create("short", &options)};
        CHECK(job.queue);
        mn_cpu_list *list = summing_list(job.sums);
        mn_timeline *timeline = mn_timeline_create("short", 0);
        mn_point signal = {timeline, 1};
        mn_submission_desc one = {.signals = &signal, .signal_count = 1, .work = list};
        CHECK(mn_queue_submit(job.queue, &one, 1) == MN_OK);
        if (i % 3 == 0) CHECK(mn_timeline_wait(timeline, 1, MN_FOREVER, NULL) == MN_OK);
        CHECK(mn_queue_close(job.queue, MN_FOREVER) == MN_OK);
        CHECK(mn_timeline_query(timeline, 1, NULL) == MN_REACHED && job.sums[0] == 6);
        mn_queue_release(job.queue);
        mn_cpu_list_release(list);
        mn_timeline_release(timeline);
    }
    return NULL;
}

static mn_queue *make_queue(int mode) {
    mn_queue_options options = {.label = "stress", .mode = mode, .execute = execute};
    mn_queue *queue = mn_queue_create(&options);
    CHECK(queue);
    return queue;
}

static void check_results(void) {
    int failed = 0;
    for (int t = 0; t < SUBMITTERS; t++)
        for (int i = 0; i < SUBMISSIONS; i++) {
            mn_status *status = NULL;
            int code = mn_timeline_wait(timelines[t][i], 1, 60000000000u, &status);
            CHECK(code == MN_OK || code == MN_FAILED);
            if (code == MN_FAILED && strcmp(mn_status_message(status), "withdrawn"))
                CHECK(!strcmp(mn_status_message(status), "gate 5"));
            failed += code == MN_FAILED;
            mn_status_release(status);
        }
    CHECK(failed > 0);
    uint64_t counted = 0;
    for (int i = 0; i < 3; i++) {
        mn_queue_stats stats;
        mn_queue_get_stats(queues[i], &stats);
        CHECK(stats.completed == stats.submitted && stats.waiting == 0 && stats.running == 0);
        counted += stats.failed;
    }
    CHECK(counted == (uint64_t)failed);
}

/* Copies with helpers, from several threads at once; a thread without helpers copies alone. */
static void *copy_much(void *argument) {
    enum { PARTS = 5, BYTES = 300001 };
    mn_timeline *done = mn_timeline_create("copies", 0);
    char *source = malloc(PARTS * BYTES), *target = malloc(PARTS * BYTES);
    mn_copy parts[PARTS];
    for (int run = 0; run < 60; run++) {
        memset(source, run + (int)(intptr_t)argument, PARTS * BYTES);
        for (int i = 0; i < PARTS; i++)
            parts[i] = (mn_copy){source + i * BYTES, target + i * BYTES, BYTES, done, (uint64_t)(run * PARTS + i + 1)};
        mn_copy_all(parts, PARTS, 3);
        CHECK(memcmp(source, target, PARTS * BYTES) == 0);
        CHECK(mn_timeline_value(done) == (uint64_t)(run + 1) * PARTS);
    }
    free(source);
    free(target);
    mn_timeline_release(done);
    return NULL;
}

static void close_with_waiting_work(void) {
    mn_timeline *never = mn_timeline_create("never", 0), *result = mn_timeline_create("result", 0);
    mn_queue *queue = make_queue(MN_QUEUE_THREAD);
    for (uint64_t i = 1; i <= 50; i++) {
        mn_point wait = {never, 1}, signal = {result, i};
        mn_submission_desc one = {.waits = &wait, .wait_count = 1, .signals = &signal, .signal_count = 1};
        CHECK(mn_queue_submit(queue, &one, 1) == MN_OK);
    }
    CHECK(mn_queue_close(queue, MN_FOREVER) == MN_OK);
    for (uint64_t i = 1; i <= 50; i++) CHECK(mn_timeline_query(result, i, NULL) == MN_POISONED);
    mn_queue_release(queue);
    mn_timeline_signal(never, 1);
    mn_timeline_release(never);
    mn_timeline_release(result);
}

int main(void) {
    pthread_t threads[SUBMITTERS + 10];
    int count = 0;
    mn_cpu_options options = {.threads = 3, .spin_ns = 20000};
    mn_queue *cpu = mn_cpu_queue_create("cpu", &options);
    CHECK(cpu);
    /* One waits as long as it takes, one gives up at once again and again, one in the middle of a run. */
    static summing jobs[3];
    for (int i = 0; i < 3; i++) jobs[i] = (summing){.queue = cpu, .timeout_ns = (uint64_t[]){MN_FOREVER, 100, 30000}[i]};
    for (int i = 0; i < 3; i++) queues[i] = make_queue(i);
    for (int i = 0; i < 8; i++) gates[i] = mn_timeline_create("gate", 0);
    for (int t = 0; t < SUBMITTERS; t++)
        for (int i = 0; i < SUBMISSIONS; i++) timelines[t][i] = mn_timeline_create("submission", 0);
    completion = mn_completion_create();
    for (int t = 0; t < SUBMITTERS; t++) pthread_create(&threads[count++], NULL, submit, (void *)(intptr_t)t);
    pthread_create(&threads[count++], NULL, open_gates, NULL);
    pthread_create(&threads[count++], NULL, drain, NULL);
    pthread_create(&threads[count++], NULL, withdraw, NULL);
    for (int i = 0; i < 3; i++) pthread_create(&threads[count++], NULL, use_cpu, &jobs[i]);
    pthread_create(&threads[count++], NULL, start_and_stop, NULL);
    for (int i = 0; i < 3; i++) pthread_create(&threads[count++], NULL, copy_much, (void *)(intptr_t)i);
    pthread_t puller;
    pthread_create(&puller, NULL, pull, queues[MN_QUEUE_PULL]);
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    check_results();
    for (int i = 0; i < 3; i++) {
        CHECK(mn_queue_close(queues[i], MN_FOREVER) == MN_OK);
        if (i == MN_QUEUE_PULL) pthread_join(puller, NULL);
        mn_queue_release(queues[i]);
    }
    close_with_waiting_work();
    mn_completion_release(completion);
    for (int i = 0; i < 8; i++) mn_timeline_release(gates[i]);
    for (int t = 0; t < SUBMITTERS; t++)
        for (int i = 0; i < SUBMISSIONS; i++) mn_timeline_release(timelines[t][i]);
    CHECK(mn_queue_close(cpu, MN_FOREVER) == MN_OK);
    mn_queue_release(cpu);
    puts("done");
    return 0;
}
