/* Included before every source of the core in one build of the tests: an allocation chosen by its number fails.
 *
 * What counts as an allocation: malloc, calloc, realloc, aligned_alloc, anonymous mmap and the start of a thread. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

__attribute__((weak, visibility("default"))) atomic_long allocation_number, failing_allocation;

static inline int allocation_fails(void) {
    return atomic_fetch_add(&allocation_number, 1) + 1 == atomic_load(&failing_allocation);
}

static inline void *failing_malloc(size_t size) { return allocation_fails() ? NULL : malloc(size); }
static inline void *failing_calloc(size_t count, size_t size) {
    return allocation_fails() ? NULL : calloc(count, size);
}
static inline void *failing_realloc(void *block, size_t size) {
    return allocation_fails() ? NULL : realloc(block, size);
}
static inline void *failing_aligned_alloc(size_t alignment, size_t size) {
    return allocation_fails() ? NULL : aligned_alloc(alignment, size);
}
static inline void *failing_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
    if (!allocation_fails()) return mmap(at, size, protection, flags, fd, offset);
    errno = ENOMEM;
    return MAP_FAILED;
}
static inline int failing_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *),
                                         void *argument) {
    return allocation_fails() ? EAGAIN : pthread_create(thread, attributes, body, argument);
}

#define malloc failing_malloc
#define calloc failing_calloc
#define realloc failing_realloc
#define aligned_alloc failing_aligned_alloc
#define mmap failing_mmap
#define pthread_create failing_pthread_create
