/* Command lists: what they are made of, and how a run is divided among threads.
 *
 * How a group of commands runs depends on how long its kernels take, which the list measures itself:
 * groups too short to gain by it run on one thread, others are cut into pieces of a few microseconds. The
 * lowest of the times seen counts, forgetting slowly: what disturbs a run only makes it longer.
 */
#include <stdlib.h>
#include <string.h>

#include "cpu/list.h"

/* Copies and fills are shared among threads in pieces that outweigh the handing out. */
#define PIECE_BYTES ((uint64_t)256 << 10)

/* The cost of handing a group to threads that are awake and waiting for its end: the initial estimate and the
 * highest one. It depends on how far the cores are from each other. */
#define HANDOFF_NS 300u
#define HANDOFF_MAX_NS 1500u
/* Waking a thread takes it some 10 us to arrive and the one who wakes some 3. */
#define WAKE_NS 20000u
/* Pieces are this long where the grid allows it: a taking costs 0.01 to 0.1 us. */
#define PIECE_NS 4000u
#define MAX_PIECES 64u
/* Pieces of a share while nothing is known. */
#define FIRST_PIECES 8u
#define UNKNOWN UINT64_MAX

/* Runs that are measured: the first few, then one in this many. */
#define MEASURE_FIRST 4u
#define MEASURE_EACH 16u
/* In this one, what may be short runs on one thread: cut into pieces for many, a short kernel takes longer in
 * all, by the looks at the clock and by what each core has to fetch. */
#define ALONE_RUN 1u
#define SHORT_NS 20000u

#define GROUP_TASKS 16u

typedef struct command {
    uint64_t expected_ns; /* on one thread */
    uint64_t transfer[3]; /* the table of a copy or fill */
    uint32_t op, words, pattern;
    uint32_t number; /* among the commands the list was made from */
    uint64_t size;
    bool after_barrier;
} command;

/* Commands that may run at once. */
typedef struct command_group {
    uint32_t first, count, pieces;
    bool alone;
    uint64_t expected_ns;
} command_group;

struct mn_cpu_list {
    mn_program program; /* first: a program is its list */
    atomic_int refs;
    uint32_t command_count, word_count, reloc_count, group_count;
    uint32_t at;          /* the next group of this run */
    uint32_t runs;
    int planned_threads;
    uint64_t handoff_ns;  /* see HANDOFF_NS */
    uint64_t handed_ns;   /* when the present group was handed out */
    bool measure;         /* this run */
    bool wake;            /* this run is worth waking threads for */
    atomic_bool has_run;
    mn_task *tasks;       /* one for each command that is no barrier */
    command *commands;    /* what else is known of it */
    command_group *groups;
    uint64_t *words;
    mn_cpu_reloc *relocs;
    uint64_t *times; /* start and end of each command; NULL without profile */
    size_t time_count;
};

/* ---- copies and fills: built-in kernels ------------------------------------------------------ */

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

/* ---- making a list ---------------------------------------------------------------------------- */

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

static void set_command(mn_cpu_list *list, uint32_t index, const mn_cpu_command *from) {
    command *to = &list->commands[index];
    mn_task *task = &list->tasks[index];
    *to = (command){.expected_ns = UNKNOWN, .op = from->op, .words = from->table, .pattern = from->pattern,
                    .size = from->size};
    if (from->op == MN_CPU_DISPATCH) {
        task->kernel = (mn_kernel)from->kernel;
        task->table = list->words + from->table;
        memcpy(task->grid, from->grid, sizeof task->grid);
    } else {
        task->kernel = from->op == MN_CPU_COPY ? copy_pieces : fill_pieces;
        task->table = to->transfer;
        task->grid[0] = (uint32_t)((from->size + PIECE_BYTES - 1) / PIECE_BYTES);
        task->grid[1] = task->grid[2] = 1;
    }
    task->total = (int64_t)task->grid[0] * task->grid[1] * task->grid[2];
}

static void add_commands(mn_cpu_list *list, const mn_cpu_command *commands, uint32_t count) {
    bool barrier = true;
    for (uint32_t i = 0; i < count; i++) {
        if (commands[i].op == MN_CPU_BARRIER) {
            barrier = true;
            continue;
        }
        set_command(list, list->command_count, &commands[i]);
        list->commands[list->command_count].number = i;
        list->commands[list->command_count++].after_barrier = barrier;
        barrier = false;
    }
}

static void add_groups(mn_cpu_list *list) {
    command_group *group = NULL;
    for (uint32_t i = 0; i < list->command_count; i++) {
        /* With a profile each command has times of its own. */
        if (!group || list->commands[i].after_barrier || group->count == GROUP_TASKS || list->times) {
            group = &list->groups[list->group_count++];
            group->first = i;
        }
        group->count++;
    }
}

static bool next_group(mn_program *program, mn_group *group, uint64_t deadline_ns);

mn_cpu_list *mn_cpu_list_create(const mn_cpu_command *commands, uint32_t command_count, const uint64_t *words,
                                uint32_t word_count, const mn_cpu_reloc *relocs, uint32_t reloc_count, bool profile) {
    if (check_list(commands, command_count, word_count, relocs, reloc_count) != MN_OK) return NULL;
    size_t word_bytes = word_count * sizeof *words, reloc_bytes = reloc_count * sizeof *relocs;
    size_t time_bytes = profile ? 2 * (size_t)command_count * sizeof(uint64_t) : 0;
    size_t each = sizeof(mn_task) + sizeof(command) + sizeof(command_group);
    mn_cpu_list *list = calloc(1, sizeof *list + command_count * each + word_bytes + reloc_bytes + time_bytes);
    if (!list) {
        mn_error(MN_OUT_OF_MEMORY, "cannot allocate a list of %u commands", command_count);
        return NULL;
    }
    atomic_init(&list->refs, 1);
    list->program.next = next_group;
    list->handoff_ns = HANDOFF_NS;
    list->word_count = word_count;
    list->reloc_count = reloc_count;
    /* Every part is a multiple of 8 bytes long, so each is aligned. */
    list->tasks = (mn_task *)(list + 1);
    list->commands = (command *)(list->tasks + command_count);
    list->groups = (command_group *)(list->commands + command_count);
    list->words = (uint64_t *)(list->groups + command_count);
    list->relocs = (mn_cpu_reloc *)(list->words + word_count);
    list->times = profile ? (uint64_t *)(list->relocs + reloc_count) : NULL;
    list->time_count = profile ? 2 * (size_t)command_count : 0;
    if (word_bytes) memcpy(list->words, words, word_bytes);
    if (reloc_bytes) memcpy(list->relocs, relocs, reloc_bytes);
    add_commands(list, commands, command_count);
    add_groups(list);
    return list;
}

void mn_cpu_list_retain(mn_cpu_list *list) { atomic_fetch_add_explicit(&list->refs, 1, memory_order_relaxed); }

void mn_cpu_list_release(mn_cpu_list *list) {
    if (list && atomic_fetch_sub_explicit(&list->refs, 1, memory_order_acq_rel) == 1) free(list);
}

size_t mn_cpu_list_times(mn_cpu_list *list, uint64_t *times, size_t capacity) {
    if (!list->times || !atomic_load_explicit(&list->has_run, memory_order_acquire)) return 0;
    size_t count = list->time_count < capacity ? list->time_count : capacity;
    memcpy(times, list->times, count * sizeof *times);
    return count;
}

/* ---- planning --------------------------------------------------------------------------------- */

/* Pieces of each thread's share of a command. */
static uint32_t pieces_for(int64_t workgroups, uint64_t expected_ns, int threads) {
    int64_t share = (workgroups + threads - 1) / threads;
    uint64_t pieces = FIRST_PIECES;
    if (expected_ns != UNKNOWN) pieces = expected_ns / ((uint64_t)threads * PIECE_NS);
    if (pieces > MAX_PIECES) pieces = MAX_PIECES;
    if (pieces > (uint64_t)share) pieces = (uint64_t)share;
    return pieces ? (uint32_t)pieces : 1;
}

static void plan_group(mn_cpu_list *list, command_group *group, int threads) {
    int64_t workgroups = 0;
    group->pieces = 0;
    group->expected_ns = 0;
    for (uint32_t i = group->first; i < group->first + group->count; i++) {
        mn_task *task = &list->tasks[i];
        uint64_t expected_ns = list->commands[i].expected_ns;
        task->first_piece = group->pieces;
        task->pieces = pieces_for(task->total, expected_ns, threads);
        group->pieces += task->pieces;
        workgroups += task->total > 1 ? 2 : task->total; /* more than one is all that matters */
        group->expected_ns = expected_ns > UNKNOWN - group->expected_ns ? UNKNOWN : group->expected_ns + expected_ns;
    }
    /* Alone when expected < expected / threads + handoff. */
    uint64_t others = (uint64_t)threads - 1;
    group->alone = threads == 1 || workgroups < 2 || group->expected_ns / (uint64_t)threads * others < list->handoff_ns;
    if (list->runs == ALONE_RUN && group->expected_ns < SHORT_NS) group->alone = true;
}

static void plan(mn_cpu_list *list, int threads) {
    uint64_t shared_ns = 0;
    for (uint32_t i = 0; i < list->group_count; i++) {
        command_group *group = &list->groups[i];
        plan_group(list, group, threads);
        if (group->alone) continue;
        shared_ns = group->expected_ns > UNKNOWN - shared_ns ? UNKNOWN : shared_ns + group->expected_ns;
    }
    list->wake = shared_ns > WAKE_NS;
    list->planned_threads = threads;
}

/* The lowest value seen, forgetting slowly. */
static void note_low(uint64_t *lowest, uint64_t ns) { *lowest = ns < *lowest ? ns : *lowest + (ns - *lowest) / 8; }

static void note_times(mn_cpu_list *list) {
    for (uint32_t i = 0; i < list->command_count; i++) {
        note_low(&list->commands[i].expected_ns, atomic_load_explicit(&list->tasks[i].spent_ns, memory_order_relaxed));
        atomic_store_explicit(&list->tasks[i].spent_ns, 0, memory_order_relaxed);
    }
    list->planned_threads = 0;
}

/* A group that was handed out is done: what it took beyond its even share of the work. */
static void note_handoff(mn_cpu_list *list, const command_group *group, int threads) {
    uint64_t taken = mn_now() - list->handed_ns, spent = 0;
    for (uint32_t i = group->first; i < group->first + group->count; i++)
        spent += atomic_load_explicit(&list->tasks[i].spent_ns, memory_order_relaxed);
    uint64_t even = spent / (uint64_t)threads;
    /* Of long groups it would tell how evenly their work happened to fall. */
    if (even > 20 * HANDOFF_NS || taken < even) return;
    note_low(&list->handoff_ns, taken - even < HANDOFF_MAX_NS ? taken - even : HANDOFF_MAX_NS);
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

static void set_transfers(mn_cpu_list *list) {
    for (uint32_t i = 0; i < list->command_count; i++) {
        command *command = &list->commands[i];
        const uint64_t *words = list->words + command->words;
        if (command->op == MN_CPU_COPY)
            memcpy(command->transfer, (uint64_t[]){words[0], words[1], command->size}, sizeof command->transfer);
        else if (command->op == MN_CPU_FILL)
            memcpy(command->transfer, (uint64_t[]){words[0], command->size, command->pattern},
                   sizeof command->transfer);
    }
}

int mn_cpu_list_prepare(mn_cpu_list *list, const uint64_t *slots, uint32_t slot_count, int threads) {
    int code = relocate(list, slots, slot_count);
    if (code != MN_OK) return code;
    if (list->runs == 0 || list->reloc_count) set_transfers(list);
    if (list->planned_threads != threads) plan(list, threads);
    list->at = 0;
    list->measure = threads > 1 && (list->runs < MEASURE_FIRST || list->runs % MEASURE_EACH == 0);
    list->runs++;
    return MN_OK;
}

mn_program *mn_cpu_list_program(mn_cpu_list *list) { return &list->program; }

/* With a profile a group is one command. */
static void stamp(mn_cpu_list *list, uint32_t group, int which) {
    if (list->times) list->times[2 * list->commands[list->groups[group].first].number + which] = mn_now();
}

static void run_alone(mn_cpu_list *list, const command_group *group) {
    uint64_t before = list->measure ? mn_now() : 0;
    for (uint32_t i = group->first; i < group->first + group->count; i++) {
        mn_task *task = &list->tasks[i];
        mn_task_run(task);
        if (!list->measure) continue;
        uint64_t now = mn_now();
        atomic_store_explicit(&task->spent_ns, now - before, memory_order_relaxed);
        before = now;
    }
}

/* Looking at the clock costs as much as a small kernel: only now and then. */
static bool is_late(const command_group *group, uint64_t *unseen_ns, uint64_t deadline_ns) {
    *unseen_ns = group->expected_ns > 50000 - *unseen_ns ? 50000 : *unseen_ns + group->expected_ns;
    if (deadline_ns == MN_FOREVER || *unseen_ns < 50000) return false;
    *unseen_ns = 0;
    return mn_now() >= deadline_ns;
}

static void end_run(mn_cpu_list *list) {
    if (list->measure) note_times(list);
    if (list->times) atomic_store_explicit(&list->has_run, true, memory_order_release);
}

static bool next_group(mn_program *program, mn_group *next, uint64_t deadline_ns) {
    mn_cpu_list *list = (mn_cpu_list *)program;
    uint64_t unseen_ns = 0;
    if (list->measure && list->handed_ns) note_handoff(list, &list->groups[list->at - 1], list->planned_threads);
    list->handed_ns = 0;
    for (;;) {
        if (list->at) stamp(list, list->at - 1, 1);
        if (list->at == list->group_count) break;
        stamp(list, list->at, 0);
        const command_group *group = &list->groups[list->at++];
        if (group->alone && !is_late(group, &unseen_ns, deadline_ns)) {
            run_alone(list, group);
            continue;
        }
        if (list->measure) list->handed_ns = mn_now();
        *next = (mn_group){.tasks = &list->tasks[group->first], .task_count = group->count,
                           .pieces = group->pieces, .measure = list->measure, .wake = list->wake};
        return true;
    }
    end_run(list);
    return false;
}
