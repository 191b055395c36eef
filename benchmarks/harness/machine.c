/* Two limits of this machine, on N threads: the rate of fused multiply-adds (f32) and of reads from memory.
 *
 *   cc -O3 -march=native -ffp-contract=fast -pthread -o machine machine.c && ./machine N
 *
 * Prints "FMA_GFLOPS READ_GBS" (10^9 per second, all threads together): the best of ROUNDS rounds, since
 * whatever else the machine does can only make a round slower. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
/* Latency times throughput asks for 8 to 16 sums in flight; AVX2 has 16 registers for all. */
#if defined(__AVX512F__) || defined(__aarch64__)
#define SUMS 24
#else
#define SUMS 12
#endif

typedef float floats __attribute__((vector_size(BYTES)));
typedef uint64_t words __attribute__((vector_size(BYTES)));

enum { MAX_THREADS = 256, ROUNDS = 40, FMA_STEPS = 1 << 20 };
static const size_t TOTAL = (size_t)512 << 20; /* bytes read in a round: many times any cache */

static pthread_barrier_t gate;
static size_t share;
static struct timespec begun[MAX_THREADS], ended[MAX_THREADS];
static volatile uint64_t sink;
static volatile float given[] = {0.999f, 1e-3f, 1.0f}; /* unknown to the compiler */

static void multiply_add(void)
{
    floats sums[SUMS], factor, term;
    for (int i = 0; i < SUMS; i++) /* all different, or one would do for all */
        sums[i] = (floats){0} + given[2] * (float)i;
    for (size_t i = 0; i < BYTES / sizeof(float); i++) {
        factor[i] = given[0];
        term[i] = given[1];
    }
    for (int step = 0; step < FMA_STEPS; step++) {
#pragma GCC unroll 32
        for (int i = 0; i < SUMS; i++)
            sums[i] = sums[i] * factor + term;
    }
    floats all = sums[0];
    for (int i = 1; i < SUMS; i++)
        all += sums[i];
    sink += (uint64_t)all[0];
}

static void read_through(const char *from)
{
    words sums[8];
    memset(sums, 0, sizeof sums);
    for (size_t at = 0; at + sizeof sums <= share; at += sizeof sums) {
        const words *here = (const words *)(from + at);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            sums[i] += here[i];
    }
    for (int i = 1; i < 8; i++)
        sums[0] += sums[i];
    sink += sums[0][0];
}

static void *worker(void *argument)
{
    size_t me = (size_t)argument;
    char *memory = mmap(NULL, share, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    madvise(memory, share, MADV_HUGEPAGE);
    memset(memory, 1, share);
    for (int round = 0; round < 2 * ROUNDS; round++) {
        pthread_barrier_wait(&gate);
        clock_gettime(CLOCK_MONOTONIC, &begun[me]);
        if (round < ROUNDS)
            multiply_add();
        else
            read_through(memory);
        clock_gettime(CLOCK_MONOTONIC, &ended[me]);
        pthread_barrier_wait(&gate);
    }
    return NULL;
}

static double seconds(struct timespec t) { return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec; }

int main(int count, char **arguments)
{
    int threads = count == 2 ? atoi(arguments[1]) : 0;
    if (threads < 1 || threads > MAX_THREADS) {
        fprintf(stderr, "usage: machine THREADS (1 to %d)\n", MAX_THREADS);
        return 2;
    }
    share = TOTAL / (size_t)threads / 4096 * 4096;
    pthread_barrier_init(&gate, NULL, (unsigned)threads + 1);
    pthread_t ids[MAX_THREADS];
    for (size_t i = 0; i < (size_t)threads; i++)
        if (pthread_create(&ids[i], NULL, worker, (void *)i) != 0) {
            fprintf(stderr, "machine: cannot start thread %zu\n", i);
            return 1;
        }
    double best[2] = {1e9, 1e9};
    for (int round = 0; round < 2 * ROUNDS; round++) {
        pthread_barrier_wait(&gate);
        pthread_barrier_wait(&gate);
        double first = seconds(begun[0]), last = seconds(ended[0]);
        for (int i = 1; i < threads; i++) {
            if (seconds(begun[i]) < first)
                first = seconds(begun[i]);
            if (seconds(ended[i]) > last)
                last = seconds(ended[i]);
        }
        double *kind = &best[round >= ROUNDS];
        if (last - first < *kind)
            *kind = last - first;
    }
    for (int i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    double operations = 2.0 * SUMS * (BYTES / sizeof(float)) * FMA_STEPS * threads;
    printf("%.2f %.2f\n", operations / best[0] * 1e-9, (double)share * threads / best[1] * 1e-9);
    return 0;
}
