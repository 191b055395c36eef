/* The Vulkan declarations used here (Vulkan 1.3; handles of 64-bit platforms): no Vulkan header is needed. */
#ifndef MANSARD_VULKAN_API_H
#define MANSARD_VULKAN_API_H

#include <stddef.h>
#include <stdint.h>

enum {
    VK_SUCCESS = 0,
    VK_TIMEOUT = 2,
    VK_ERROR_OUT_OF_HOST_MEMORY = -1,
    VK_ERROR_OUT_OF_DEVICE_MEMORY = -2,
    VK_ERROR_INITIALIZATION_FAILED = -3,
    VK_ERROR_DEVICE_LOST = -4,
    VK_ERROR_UNKNOWN = -13,
};

/* VkStructureType */
enum {
    TYPE_SET_ALLOCATE_INFO = 34,
    TYPE_WRITE_SET = 35,
    TYPE_BEGIN_INFO = 42,
    TYPE_CU_LAUNCH_INFO = 1000029002,
    TYPE_LABEL = 1000128002,
    TYPE_SEMAPHORE_WAIT_INFO = 1000207004,
    TYPE_MEMORY_BARRIER_2 = 1000314000,
    TYPE_DEPENDENCY_INFO = 1000314003,
    TYPE_SUBMIT_INFO_2 = 1000314004,
    TYPE_SEMAPHORE_SUBMIT_INFO = 1000314005,
    TYPE_COMMAND_BUFFER_SUBMIT_INFO = 1000314006,
};

enum {
    COMPUTE_STAGE = 0x20,
    COMPUTE_POINT = 1,
    STORAGE_BUFFER = 7,
};
#define STAGE_ALL_COMMANDS 0x10000u

/* ---- submission and timeline semaphores ---------------------------------------------------------- */

typedef struct vk_semaphore_submit {
    int32_t type;
    const void *next;
    uint64_t semaphore;
    uint64_t value;
    uint64_t stages;
    uint32_t device_index;
} vk_semaphore_submit;

typedef struct vk_command_buffer_submit {
    int32_t type;
    const void *next;
    void *command_buffer;
    uint32_t device_mask;
} vk_command_buffer_submit;

typedef struct vk_submit2 {
    int32_t type;
    const void *next;
    uint32_t flags;
    uint32_t wait_count;
    const vk_semaphore_submit *waits;
    uint32_t command_buffer_count;
    const vk_command_buffer_submit *command_buffers;
    uint32_t signal_count;
    const vk_semaphore_submit *signals;
} vk_submit2;

typedef struct vk_semaphore_wait {
    int32_t type;
    const void *next;
    uint32_t flags;
    uint32_t count;
    const uint64_t *semaphores;
    const uint64_t *values;
} vk_semaphore_wait;

typedef int32_t (*vk_queue_submit2)(void *queue, uint32_t count, const vk_submit2 *submits, uint64_t fence);
typedef int32_t (*vk_wait_semaphores)(void *device, const vk_semaphore_wait *info, uint64_t timeout);
typedef int32_t (*vk_get_counter)(void *device, uint64_t semaphore, uint64_t *value);

/* ---- recording ---------------------------------------------------------------------------------- */

typedef struct vk_begin_info {
    int32_t type;
    const void *next;
    uint32_t flags;
    const void *inheritance;
} vk_begin_info;

typedef struct vk_memory_barrier2 {
    int32_t type;
    const void *next;
    uint64_t source_stages, source_access, target_stages, target_access;
} vk_memory_barrier2;

typedef struct vk_dependency_info {
    int32_t type;
    const void *next;
    uint32_t flags;
    uint32_t memory_count;
    const vk_memory_barrier2 *memory;
    uint32_t buffer_count;
    const void *buffers;
    uint32_t image_count;
    const void *images;
} vk_dependency_info;

typedef struct vk_buffer_copy {
    uint64_t source, target, size;
} vk_buffer_copy;

typedef struct vk_label {
    int32_t type;
    const void *next;
    const char *name;
    float color[4];
} vk_label;

typedef struct vk_buffer_info {
    uint64_t buffer, offset, range;
} vk_buffer_info;

typedef struct vk_write_set {
    int32_t type;
    const void *next;
    uint64_t set;
    uint32_t binding, element, count;
    int32_t descriptor_type;
    const void *images;
    const vk_buffer_info *buffers;
    const void *views;
} vk_write_set;

typedef struct vk_set_allocate_info {
    int32_t type;
    const void *next;
    uint64_t pool;
    uint32_t count;
    const uint64_t *layouts;
} vk_set_allocate_info;

typedef struct vk_cu_launch_info {
    int32_t type;
    const void *next;
    uint64_t function;
    uint32_t grid_x, grid_y, grid_z;
    uint32_t block_x, block_y, block_z;
    uint32_t shared_bytes;
    size_t param_count;
    const void *const *params;
    size_t extra_count;
    const void *const *extras;
} vk_cu_launch_info;

#endif
