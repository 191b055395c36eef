/* Command lists and the queue that runs them on the worker pool. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* Copies and fills are shared among threads in pieces that outweigh the handing out. */
#define PIECE_BYTES ((uint64_t)256 << 10)

struct mn_cpu_list {
    atomic_int refs;
    uint32_t command_count, word_count, reloc_count;
    atomic_bool has_run;
    mn_cpu_command *commands;
    uint64_t *words;
    mn_cpu_reloc *relocs;
    uint64_t *times; /* start and end of each command; NULL without profile */
};

/* ---- lists ------------------------------------------------------------------------------------ */

static uint64_t words_used(const mn_cpu_command *command) {
    return command->op == MN_CPU_COPY ? 2 : command->op == MN_CPU_FILL ? 1 : 0;
}

static int check_list(const mn_cpu_command *commands, uint32_t command_count, uint32_t word_count,
                      const mn_cpu_reloc *relocs, uint32_t reloc_count) {
    for (uint32_t i = 0; i < command_count; i++) {
        const mn_cpu_command *command = &commands[i];
        if (command->op > MN_CPU_BARRIER) return mn_error(MN_INVALID, "command %u has no known operation", i);
        if (command->op == MN_CPU_DISPATCH && !command->kernel)
            return mn_error(MN_INVALID, "command %u has no kernel", i);
        if (command->table + words_used(command) > word_count)
            return mn_error(MN_INVALID, "command %u reads past the %u words of its list", i, word_count);
    }
    for (uint32_t i = 0; i < reloc_count; i++)
        if (relocs[i].word >= word_count)
            return mn_error(MN_INVALID, "relocation %u writes past the %u words of its list", i, word_count);
    return MN_OK;
}

mn_cpu_list *mn_cpu_list_create(const mn_cpu_command *commands, uint32_t command_count, const uint64_t *words,
                                uint32_t word_count, const mn_cpu_reloc *relocs, uint32_t reloc_count, bool profile) {
    if (check_list(commands, command_count, word_count, relocs, reloc_count) != MN_OK) return NULL;
    size_t command_bytes = command_count * sizeof *commands, word_bytes = word_count * sizeof *words;
    size_t reloc_bytes = reloc_count * sizeof *relocs;
    size_t time_bytes = profile ? 2 * (size_t)command_count * sizeof(uint64_t) : 0;
    mn_cpu_list *list = calloc(1, sizeof *list + command_bytes + word_bytes + reloc_bytes + time_bytes);
    if (!list) {
        mn_error(MN_OUT_OF_MEMORY, "cannot allocate a list of %u commands", command_count);
        return NULL;
    }
    atomic_init(&list->refs, 1);
    list->command_count = command_count;
    list->word_count = word_count;
    list->reloc_count = reloc_count;
    /* Every part is a multiple of 8 bytes long, so each is aligned. */
    list->commands = (mn_cpu_command *)(list + 1);
    list->words = (uint64_t *)(list->commands + command_count);
    list->relocs = (mn_cpu_reloc *)(list->words + word_count);
    list->times = profile ? (uint64_t *)(list->relocs + reloc_count) : NULL;
    if (command_bytes) memcpy(list->commands, commands, command_bytes);
    if (word_bytes) memcpy(list->words, words, word_bytes);
    if (reloc_bytes) memcpy(list->relocs, relocs, reloc_bytes);
    return list;
}

void mn_cpu_list_retain(mn_cpu_list *list) { atomic_fetch_add_explicit(&list->refs, 1, memory_order_relaxed); }

void mn_cpu_list_release(mn_cpu_list *list) {
    if (list && atomic_fetch_sub_explicit(&list->refs, 1, memory_order_acq_rel) == 1) free(list);
}

size_t mn_cpu_list_times(mn_cpu_list *list, uint64_t *times, size_t capacity) {
    if (!list->times || !atomic_load_explicit(&list->has_run, memory_order_acquire)) return 0;
    size_t count = 2 * (size_t)list->command_count;
    if (count > capacity) count = capacity;
    memcpy(times, list->times, count * sizeof *times);
    return count;
}

/* ---- copies and fills: kernels of the core's own ---------------------------------------------- */

/* table: source, target, bytes */
static void copy_pieces(const uint64_t *table, const uint32_t grid[3], int64_t begin, int64_t end) {
    (void)grid;
    uint64_t from = (uint64_t)begin * PIECE_BYTES, until = (uint64_t)end * PIECE_BYTES;
    if (until > table[2]) until = table[2];
    memcpy((char *)(uintptr_t)table[1] + from, (const char *)(uintptr_t)table[0] + from, until - from);
}

/* table: target, bytes, pattern */
static void fill_pieces(const uint64_t *table, const uint32_t grid[3], int64_t begin, int64_t end) {
    (void)grid;
    uint64_t from = (uint64_t)begin * PIECE_BYTES, until = (uint64_t)end * PIECE_BYTES;
    if (until > table[1]) until = table[1];
    uint32_t *target = (uint32_t *)(uintptr_t)table[0], pattern = (uint32_t)table[2];
    if (pattern == 0) {
        memset((char *)target + from, 0, until - from);
        return;
    }
    for (uint64_t i = from / 4; i < until / 4; i++) target[i] = pattern;
}

static void run_pieces(mn_pool *pool, mn_kernel kernel, const uint64_t *table, uint64_t size) {
    uint32_t grid[3] = {(uint32_t)((size + PIECE_BYTES - 1) / PIECE_BYTES), 1, 1};
    mn_pool_run(pool, kernel, table, grid);
}

/* ---- running ---------------------------------------------------------------------------------- */

static int relocate(mn_cpu_list *list, const uint64_t *slots, uint32_t slot_count) {
    for (uint32_t i = 0; i < list->reloc_count; i++) {
        const mn_cpu_reloc *reloc = &list->relocs[i];
        if (reloc->slot >= slot_count || slots[reloc->slot] == 0)
            return mn_error(MN_EXECUTION, "binding slot %u is not bound", reloc->slot);
        list->words[reloc->word] = slots[reloc->slot] + reloc->offset;
    }
    return MN_OK;
}

static void run_command(mn_pool *pool, const mn_cpu_list *list, const mn_cpu_command *command) {
    const uint64_t *table = list->words + command->table;
    switch ((mn_cpu_op)command->op) {
    case MN_CPU_DISPATCH: mn_pool_run(pool, (mn_kernel)command->kernel, table, command->grid); break;
    case MN_CPU_COPY: run_pieces(pool, copy_pieces, (uint64_t[]){table[0], table[1], command->size}, command->size); break;
    case MN_CPU_FILL: run_pieces(pool, fill_pieces, (uint64_t[]){table[0], command->size, command->pattern}, command->size); break;
    case MN_CPU_BARRIER: break;
    }
}

static void run_list(mn_pool *pool, mn_cpu_list *list) {
    if (!list->times) {
        for (uint32_t i = 0; i < list->command_count; i++) run_command(pool, list, &list->commands[i]);
        return;
    }
    for (uint32_t i = 0; i < list->command_count; i++) {
        list->times[2 * i] = mn_now();
        run_command(pool, list, &list->commands[i]);
        list->times[2 * i + 1] = mn_now();
    }
    atomic_store_explicit(&list->has_run, true, memory_order_release);
}

static void execute(void *context, mn_batch *batch) {
    mn_cpu_list *list = mn_batch_work(batch);
    uint32_t slot_count;
    const uint64_t *slots = mn_batch_slots(batch, &slot_count);
    int code = relocate(list, slots, slot_count);
    if (code == MN_OK) run_list(context, list);
    mn_batch_complete(batch, code, code == MN_OK ? "" : mn_last_message());
}

static void retain_list(void *list) { mn_cpu_list_retain(list); }
static void release_list(void *list) { mn_cpu_list_release(list); }
static void release_pool(void *pool) { mn_pool_release(pool); }

mn_queue *mn_cpu_queue_create(const char *label, int threads) {
    if (threads == 0) threads = mn_default_threads();
    mn_pool *pool = threads ? mn_pool_create(threads) : NULL;
    if (!pool) return NULL;
    mn_queue_options options = {.label = label, .mode = MN_QUEUE_THREAD, .execute = execute, .context = pool,
                                .retain_work = retain_list, .release_work = release_list,
                                .release_context = release_pool};
    mn_queue *queue = mn_queue_create(&options);
    if (!queue) mn_pool_release(pool);
    return queue;
}
