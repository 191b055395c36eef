/* Threads, futexes and floating-point state: what the executor needs of Linux. */
#define _GNU_SOURCE /* affinity, pthread_getattr_np */
#include <errno.h>
#include <link.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/copy.h"
#include "core/caller_runs.h"
#include "core/poll.h"
#include "core/thread.h"

/* ---- starting --------------------------------------------------------------------------------- */

typedef struct start {
    void *(*body)(void *);
    void *argument;
    char name[16];
} start;

static void *begin(void *argument) {
    start given = *(start *)argument;
    free(argument);
    prctl(PR_SET_NAME, given.name);
    return given.body(given.argument);
}

static int add_thread_locals(struct dl_phdr_info *module, size_t size, void *bytes) {
    (void)size;
    for (int i = 0; i < module->dlpi_phnum; i++)
        if (module->dlpi_phdr[i].p_type == PT_TLS)
            *(size_t *)bytes += module->dlpi_phdr[i].p_memsz + module->dlpi_phdr[i].p_align;
    return 0;
}

/* What the C library may take from a thread's stack for the thread-local variables of the program and of
 * every library: glibc does for those present at the program's start. */
static size_t thread_local_bytes(void) {
    size_t bytes = 0;
    dl_iterate_phdr(add_thread_locals, &bytes);
    return bytes;
}

static int set_attributes(pthread_attr_t *attributes, bool detached, int cpu) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t stack = MN_STACK_BYTES + thread_local_bytes();
    pthread_attr_setstacksize(attributes, (stack + page - 1) / page * page);
    if (detached) pthread_attr_setdetachstate(attributes, PTHREAD_CREATE_DETACHED);
    if (cpu < 0) return 0;
    size_t size = CPU_ALLOC_SIZE(cpu + 1);
    cpu_set_t *set = CPU_ALLOC(cpu + 1);
    if (!set) return ENOMEM;
    CPU_ZERO_S(size, set);
    CPU_SET_S(cpu, size, set);
    int reason = pthread_attr_setaffinity_np(attributes, size, set);
    CPU_FREE(set);
    return reason;
}

int mn_thread_start(pthread_t *thread, const char *name, int cpu, void *(*body)(void *), void *argument) {
    start *given = malloc(sizeof *given);
    if (!given) return ENOMEM;
    *given = (start){.body = body, .argument = argument};
    strncpy(given->name, name, sizeof given->name - 1);
    pthread_attr_t attributes;
    pthread_t unused;
    sigset_t all, before;
    pthread_attr_init(&attributes);
    int reason = set_attributes(&attributes, thread == NULL, cpu);
    /* Handlers of the program belong on its own threads; the new one inherits the mask. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (reason == 0) reason = pthread_create(thread ? thread : &unused, &attributes, begin, given);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (reason) free(given);
    return reason;
}

/* ---- stacks ----------------------------------------------------------------------------------- */

static uintptr_t stack_end(void) {
    pthread_attr_t attributes;
    void *low = NULL;
    size_t size = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) return UINTPTR_MAX;
    if (pthread_attr_getstack(&attributes, &low, &size) != 0) low = (void *)UINTPTR_MAX;
    pthread_attr_destroy(&attributes);
    return (uintptr_t)low;
}

size_t mn_stack_left(void) {
    static _Thread_local uintptr_t end; /* asked once: for the first thread Linux answers slowly */
    if (end == 0) end = stack_end();
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    return here > end ? here - end : 0;
}

/* ---- floating point --------------------------------------------------------------------------- */

uint64_t mn_float_enter(void) {
#if defined(__x86_64__)
    uint32_t state = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(0x1F80); /* the default: all exceptions masked, no flush to zero */
    return state;
#elif defined(__aarch64__)
    uint64_t state;
    __asm__ volatile("mrs %0, fpcr" : "=r"(state));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    return state;
#elif defined(__riscv)
    uint64_t state;
    __asm__ volatile("frcsr %0" : "=r"(state));
    __asm__ volatile("fscsr zero");
    return state;
#else
    return 0;
#endif
}

void mn_float_leave(uint64_t state) {
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr((uint32_t)state);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(state));
#elif defined(__riscv)
    __asm__ volatile("fscsr %0" : : "r"(state));
#else
    (void)state;
#endif
}

/* ---- sleeping --------------------------------------------------------------------------------- */

void mn_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t deadline_ns) {
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                             .tv_nsec = (long)(deadline_ns % 1000000000u)};
    /* The bitset form takes a time of CLOCK_MONOTONIC, not a duration. */
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, seen, deadline_ns == MN_FOREVER ? NULL : &until, NULL,
            FUTEX_BITSET_MATCH_ANY);
}

void mn_futex_wake(_Atomic uint32_t *word, int count) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

/* ---- fork ------------------------------------------------------------------------------------- */

static atomic_uint forks;

static void note_fork(void) {
    atomic_fetch_add(&forks, 1);
    mn_caller_runs_after_fork();
    mn_queues_after_fork();
    mn_poll_after_fork();
    mn_copy_after_fork();
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, note_fork); }

unsigned mn_fork_count(void) { return atomic_load_explicit(&forks, memory_order_relaxed); }
