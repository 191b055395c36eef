/* Recording: a list of commands in 64-bit words becomes a VkCommandBuffer in one call.
 *
 * Every command is a header word, `kind | words << 8` with the number of words that follow, and those
 * words. mansard/drivers/vulkan/submission/stream.py writes them; everything in them has been checked there.
 */
#include <stdlib.h>
#include <string.h>

#include "vulkan/bridge.h"

typedef struct state {
    const mn_vk_recording *r;
    const mn_vk_calls *calls;
    uint64_t pipeline;  /* bound now */
    uint64_t used;      /* bytes of the tables written */
    int32_t result;
} state;

/* ---- commands ----------------------------------------------------------------------------------- */

static void bind_pipeline(state *s, uint64_t pipeline) {
    if (s->pipeline == pipeline) return;
    s->calls->bind_pipeline(s->r->target, COMPUTE_POINT, pipeline);
    s->pipeline = pipeline;
}

static void push(state *s, uint64_t layout, const uint64_t *words, uint64_t count) {
    if (count) s->calls->push_constants(s->r->target, layout, COMPUTE_STAGE, 0, (uint32_t)(count * 8), words);
}

static void dispatch_grid(state *s, const uint64_t *grid) {
    s->calls->dispatch(s->r->target, (uint32_t)grid[0], (uint32_t)(grid[0] >> 32), (uint32_t)grid[1]);
}

/* pipeline, layout, x | y << 32, z, then the argument table. */
static void dispatch(state *s, const uint64_t *w, uint64_t count, bool in_memory) {
    bind_pipeline(s, w[0]);
    if (in_memory) {
        uint64_t bytes = (count - 4) * 8, address = s->r->tables_address + s->used;
        memcpy(s->r->tables + s->used, w + 4, bytes);
        s->used += (bytes + 15) & ~(uint64_t)15;
        push(s, w[1], &address, 1);
    } else {
        push(s, w[1], w + 4, count - 4);
    }
    dispatch_grid(s, w + 2);
}

/* The set of a dispatch, allocated from the pool and filled. */
static uint64_t make_set(state *s, uint64_t set_layout, vk_write_set *writes, uint32_t count) {
    uint64_t set = 0;
    vk_set_allocate_info info = {
        .type = TYPE_SET_ALLOCATE_INFO, .pool = s->r->set_pool, .count = 1, .layouts = &set_layout};
    s->result = s->calls->allocate_sets(s->r->device, &info, &set);
    if (s->result != VK_SUCCESS) return 0;
    for (uint32_t i = 0; i < count; i++) writes[i].set = set;
    s->calls->update_sets(s->r->device, count, writes, 0, NULL);
    return set;
}

/* pipeline, layout, x | y << 32, z, layout of a set from the pool (0: descriptors are pushed), number of
 * buffers, then (buffer, offset, range) of each, then the parameters. */
static void dispatch_with_set(state *s, const uint64_t *w, uint64_t count) {
    uint32_t buffers = (uint32_t)w[5];
    const vk_buffer_info *infos = (const vk_buffer_info *)(w + 6);
    bind_pipeline(s, w[0]);
    if (buffers) {
        vk_write_set *writes = calloc(buffers, sizeof *writes);
        if (!writes) {
            s->result = VK_ERROR_OUT_OF_HOST_MEMORY;
            return;
        }
        for (uint32_t i = 0; i < buffers; i++)
            writes[i] = (vk_write_set){.type = TYPE_WRITE_SET,
                                       .binding = i,
                                       .count = 1,
                                       .descriptor_type = STORAGE_BUFFER,
                                       .buffers = &infos[i]};
        if (!w[4]) {
            s->calls->push_set(s->r->target, COMPUTE_POINT, w[1], 0, buffers, writes);
        } else {
            uint64_t set = make_set(s, w[4], writes, buffers);
            if (s->result == VK_SUCCESS)
                s->calls->bind_sets(s->r->target, COMPUTE_POINT, w[1], 0, 1, &set, 0, NULL);
        }
        free(writes);
        if (s->result != VK_SUCCESS) return;
    }
    push(s, w[1], w + 6 + 3 * buffers, count - 6 - 3 * buffers);
    dispatch_grid(s, w + 2);
}

/* function, x | y << 32, z | threads << 32, then the argument table. The kernel's one parameter is the table. */
static void launch(state *s, const uint64_t *w, uint64_t count) {
    const void *table = w + 3;
    vk_cu_launch_info info = {.type = TYPE_CU_LAUNCH_INFO,
                              .function = w[0],
                              .grid_x = (uint32_t)w[1],
                              .grid_y = (uint32_t)(w[1] >> 32),
                              .grid_z = (uint32_t)w[2],
                              .block_x = (uint32_t)(w[2] >> 32),
                              .block_y = 1,
                              .block_z = 1,
                              .param_count = count > 3,
                              .params = &table};
    s->calls->launch(s->r->target, &info);
    s->pipeline = 0; /* what is bound after a launch, the extension does not say */
}

/* source buffer, target buffer, source offset, target offset, bytes */
static void copy(state *s, const uint64_t *w) {
    vk_buffer_copy region = {.source = w[2], .target = w[3], .size = w[4]};
    s->calls->copy(s->r->target, w[0], w[1], 1, &region);
}

/* buffer, offset, bytes, pattern */
static void fill(state *s, const uint64_t *w) { s->calls->fill(s->r->target, w[0], w[1], w[2], (uint32_t)w[3]); }

/* stages and accesses before, stages and accesses after */
static void barrier(state *s, const uint64_t *w) {
    vk_memory_barrier2 memory = {.type = TYPE_MEMORY_BARRIER_2,
                                 .source_stages = w[0],
                                 .source_access = w[1],
                                 .target_stages = w[2],
                                 .target_access = w[3]};
    vk_dependency_info info = {.type = TYPE_DEPENDENCY_INFO, .memory_count = 1, .memory = &memory};
    s->calls->barrier(s->r->target, &info);
}

/* stage, query */
static void timestamp(state *s, const uint64_t *w) {
    s->calls->timestamp(s->r->target, w[0], s->r->queries, (uint32_t)w[1]);
}

/* the name, ended by a zero byte */
static void begin_label(state *s, const uint64_t *w) {
    vk_label label = {.type = TYPE_LABEL, .name = (const char *)w};
    s->calls->begin_label(s->r->target, &label);
}

static void command(state *s, uint64_t kind, const uint64_t *w, uint64_t count) {
    switch (kind) {
    case MN_VK_DISPATCH:
    case MN_VK_DISPATCH_IN_MEMORY: dispatch(s, w, count, kind == MN_VK_DISPATCH_IN_MEMORY); break;
    case MN_VK_DISPATCH_WITH_SET: dispatch_with_set(s, w, count); break;
    case MN_VK_COPY: copy(s, w); break;
    case MN_VK_FILL: fill(s, w); break;
    case MN_VK_BARRIER: barrier(s, w); break;
    case MN_VK_TIMESTAMP: timestamp(s, w); break;
    case MN_VK_LABEL: begin_label(s, w); break;
    case MN_VK_LABEL_END: s->calls->end_label(s->r->target); break;
    case MN_VK_LAUNCH: launch(s, w, count); break;
    default: s->result = VK_ERROR_UNKNOWN;
    }
}

int32_t mn_vk_record(const mn_vk_recording *recording, const uint64_t *words, uint64_t count) {
    state s = {.r = recording, .calls = recording->calls};
    vk_begin_info info = {.type = TYPE_BEGIN_INFO};
    s.result = s.calls->begin(recording->target, &info);
    if (s.result != VK_SUCCESS) return s.result;
    if (recording->queries)
        s.calls->reset_queries(recording->target, recording->queries, 0, (uint32_t)recording->query_count);
    for (uint64_t at = 0; at < count && s.result == VK_SUCCESS;) {
        uint64_t length = words[at] >> 8;
        command(&s, words[at] & 0xFF, words + at + 1, length);
        at += 1 + length;
    }
    int32_t ended = s.calls->end(recording->target);
    return s.result != VK_SUCCESS ? s.result : ended;
}
