/* Memory that devices can share, and memory that holds code. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/internal.h"

#define HUGE_PAGE ((uint64_t)2 << 20)

static uint64_t page_size(void) { return (uint64_t)sysconf(_SC_PAGESIZE); }

/* Whole pages that hold `size` bytes; 0 when that overflows or nothing is asked for. */
static uint64_t round_up(uint64_t size, uint64_t unit) {
    uint64_t rounded = (size + unit - 1) / unit * unit;
    return size > UINT64_MAX - unit ? 0 : rounded;
}

static void *map_anonymous(uint64_t size, int protection) {
    if (size == 0 || size > (uint64_t)PTRDIFF_MAX) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return mmap(NULL, size, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* Map more than asked and trim, so that huge pages fit from the first byte on. */
static void *map_huge(uint64_t size) {
    char *start = map_anonymous(size + HUGE_PAGE, PROT_READ | PROT_WRITE);
    if (start == MAP_FAILED) return MAP_FAILED;
    uint64_t before = (HUGE_PAGE - (uintptr_t)start % HUGE_PAGE) % HUGE_PAGE;
    if (before) munmap(start, before);
    if (before < HUGE_PAGE) munmap(start + before + size, HUGE_PAGE - before);
    /* Advice: without huge pages the memory works all the same. */
    madvise(start + before, size, MADV_HUGEPAGE);
    return start + before;
}

int mn_memory_map(uint64_t size, uint64_t *address) {
    uint64_t rounded = round_up(size, page_size());
    void *memory = rounded >= HUGE_PAGE && rounded <= (uint64_t)PTRDIFF_MAX
                       ? map_huge(rounded)
                       : map_anonymous(rounded, PROT_READ | PROT_WRITE);
    if (memory == MAP_FAILED)
        return mn_error(MN_OUT_OF_MEMORY, "cannot map %llu bytes: %s", (unsigned long long)size, strerror(errno));
    *address = (uintptr_t)memory;
    return MN_OK;
}

void mn_memory_unmap(uint64_t address, uint64_t size) {
    munmap((void *)(uintptr_t)address, round_up(size, page_size()));
}

void mn_memory_small_pages(uint64_t address, uint64_t size) {
    /* Advice, as above; where the memory is a device's, the system does not take it. */
    madvise((void *)(uintptr_t)address, size, MADV_NOHUGEPAGE);
}

int mn_code_map(const void *bytes, uint64_t size, uint64_t *address) {
    if (size == 0) return mn_error(MN_INVALID, "a code image may not be empty");
    uint64_t rounded = round_up(size, page_size());
    char *memory = map_anonymous(rounded, PROT_READ | PROT_WRITE);
    if (memory == MAP_FAILED)
        return mn_error(MN_OUT_OF_MEMORY, "cannot map %llu bytes for code: %s", (unsigned long long)size,
                        strerror(errno));
    memcpy(memory, bytes, size);
    if (mprotect(memory, rounded, PROT_READ | PROT_EXEC) != 0) {
        int reason = errno;
        munmap(memory, rounded);
        return mn_error(MN_DEVICE, "the system refuses executable memory: %s", strerror(reason));
    }
    __builtin___clear_cache(memory, memory + size);
    *address = (uintptr_t)memory;
    return MN_OK;
}

int mn_code_map_file(int fd, uint64_t offset, uint64_t size, uint64_t *address) {
    if (size == 0) return mn_error(MN_INVALID, "a code image may not be empty");
    if (offset % page_size() != 0)
        return mn_error(MN_INVALID, "file offset %llu is not a multiple of the page size %llu",
                        (unsigned long long)offset, (unsigned long long)page_size());
    void *memory = mmap(NULL, size, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, (off_t)offset);
    if (memory == MAP_FAILED)
        return mn_error(MN_DEVICE, "cannot map the file as code: %s", strerror(errno));
    *address = (uintptr_t)memory;
    return MN_OK;
}

void mn_code_unmap(uint64_t address, uint64_t size) { mn_memory_unmap(address, size); }
