/* Faults on purpose: tools/sanitize.py calls one before it trusts a sanitiser's silence. */
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>

__attribute__((visibility("default"))) int probe_address(void) {
    int *volatile block = malloc(16);
    free((void *)block);
    return block[1];
}

__attribute__((visibility("default"))) int probe_undefined(void) {
    volatile int largest = INT_MAX;
    return largest + 1;
}

static int shared;

static void *increment(void *unused) {
    for (int i = 0; i < 100000; i++) shared++;
    return unused;
}

__attribute__((visibility("default"))) int probe_thread(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, increment, NULL);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    return shared;
}
