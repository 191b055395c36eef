/* Included before every source of the core in one build of the tests: an allocation chosen by its number fails.
 *
 * What counts as an allocation: malloc, calloc, realloc, aligned_alloc, anonymous mmap and the start of a thread.
 * Blocks that are allocated and not freed are counted, and bytes that are mapped. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

__attribute__((weak, visibility("default"))) atomic_long allocation_number, failing_allocation;
__attribute__((weak, visibility("default"))) atomic_long live_blocks, live_bytes;

static inline int allocation_fails(void) {
    return atomic_fetch_add(&allocation_number, 1) + 1 == atomic_load(&failing_allocation);
}

static inline void *counted(void *block) {
    if (block) atomic_fetch_add(&live_blocks, 1);
    return block;
}

static inline void *failing_malloc(size_t size) { return allocation_fails() ? NULL : counted(malloc(size)); }
static inline void *failing_calloc(size_t count, size_t size) {
    return allocation_fails() ? NULL : counted(calloc(count, size));
}
static inline void *failing_realloc(void *block, size_t size) {
    if (allocation_fails()) return NULL;
    return block ? realloc(block, size) : counted(realloc(NULL, size));
}
static inline void *failing_aligned_alloc(size_t alignment, size_t size) {
    return allocation_fails() ? NULL : counted(aligned_alloc(alignment, size));
}
static inline char *failing_strdup(const char *text) { return allocation_fails() ? NULL : counted(strdup(text)); }
static inline void counted_free(void *block) {
    if (block) atomic_fetch_sub(&live_blocks, 1);
    free(block);
}
static inline void *failing_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
    if (!allocation_fails()) {
        void *memory = mmap(at, size, protection, flags, fd, offset);
        if (memory != MAP_FAILED) atomic_fetch_add(&live_bytes, (long)size);
        return memory;
    }
    errno = ENOMEM;
    return MAP_FAILED;
}
static inline int counted_munmap(void *memory, size_t size) {
    int result = munmap(memory, size);
    if (result == 0) atomic_fetch_sub(&live_bytes, (long)size);
    return result;
}
static inline int failing_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *),
                                         void *argument) {
    return allocation_fails() ? EAGAIN : pthread_create(thread, attributes, body, argument);
}

#define malloc failing_malloc
#define calloc failing_calloc
#define realloc failing_realloc
#define aligned_alloc failing_aligned_alloc
#define strdup failing_strdup
#define free counted_free
#define mmap failing_mmap
#define munmap counted_munmap
#define pthread_create failing_pthread_create
