/* The Vulkan driver's C functions, called from Python (mansard/drivers/vulkan/submission/bridge.py). */
#ifndef MANSARD_VULKAN_BRIDGE_H
#define MANSARD_VULKAN_BRIDGE_H

#include "mansard_core.h"
#include "vulkan/api.h"

/* ---- queues (bridge.c) --------------------------------------------------------------------------- */

/* A device has no more queues than that. */
#define MN_VK_MAX_QUEUES 8

typedef struct mn_vk_queue mn_vk_queue;

typedef struct mn_vk_options {
    const char *label;
    void *device;       /* VkDevice */
    void *queue;        /* VkQueue, used by this device's mn_vk_queues alone */
    uint64_t semaphore; /* a timeline VkSemaphore at 0, used by nobody else */
    uint64_t spin_ns;   /* how long the watcher looks for an end that it did not expect earlier; 0: never */
    vk_queue_submit2 submit;
    vk_wait_semaphores wait;
    vk_get_counter counter;
    mn_vk_queue *sibling; /* another queue of the device, or NULL; it may have the same VkQueue */
} mn_vk_options;

/* NULL on failure (see mn_last_message). A device's queues must be closed before the first is released. */
MN_API mn_vk_queue *mn_vk_queue_create(const mn_vk_options *options);

/* The queue to submit to; it lives as long as the mn_vk_queue. */
MN_API mn_queue *mn_vk_queue_core(mn_vk_queue *queue);

/* End the watcher. The core queue must be closed first, so that nothing runs. Queues that are not released end
 * with the process, after the interpreter. */
MN_API void mn_vk_queue_release(mn_vk_queue *queue);

/* Debug facility: the submission that follows `after` others to any of `count` queues fails with `result`, or with
 * VK_SUCCESS is run but not completed. Takes the place of an injection before. MN_OK or MN_OUT_OF_MEMORY. */
MN_API int mn_vk_inject(mn_vk_queue *const *queues, uint64_t count, uint64_t after, int32_t result);
/* Debug facility: let held submissions complete, and disarm what was injected. */
MN_API void mn_vk_queue_let_go(mn_vk_queue *queue);

/* ---- recording (record.c) ------------------------------------------------------------------------ */

/* What the low byte of a command's header word says. The words that follow are listed in record.c. */
typedef enum mn_vk_op {
    MN_VK_DISPATCH = 1,           /* argument table in push constants */
    MN_VK_DISPATCH_IN_MEMORY = 2, /* argument table in memory, its address in push constants */
    MN_VK_DISPATCH_WITH_SET = 3,  /* buffers as descriptors */
    MN_VK_COPY = 4,
    MN_VK_FILL = 5,
    MN_VK_BARRIER = 6,
    MN_VK_TIMESTAMP = 7,
    MN_VK_LABEL = 8,
    MN_VK_LABEL_END = 9,
    MN_VK_LAUNCH = 10, /* a PTX kernel, its argument table by value */
} mn_vk_op;

/* Device commands as function pointers. Those of extensions, the last four, may be NULL. */
typedef struct mn_vk_calls {
    int32_t (*begin)(void *, const vk_begin_info *);
    int32_t (*end)(void *);
    void (*bind_pipeline)(void *, int32_t, uint64_t);
    void (*push_constants)(void *, uint64_t, uint32_t, uint32_t, uint32_t, const void *);
    void (*dispatch)(void *, uint32_t, uint32_t, uint32_t);
    void (*copy)(void *, uint64_t, uint64_t, uint32_t, const vk_buffer_copy *);
    void (*fill)(void *, uint64_t, uint64_t, uint64_t, uint32_t);
    void (*barrier)(void *, const vk_dependency_info *);
    void (*reset_queries)(void *, uint64_t, uint32_t, uint32_t);
    void (*timestamp)(void *, uint64_t, uint64_t, uint32_t);
    int32_t (*allocate_sets)(void *, const vk_set_allocate_info *, uint64_t *);
    void (*update_sets)(void *, uint32_t, const vk_write_set *, uint32_t, const void *);
    void (*bind_sets)(void *, int32_t, uint64_t, uint32_t, uint32_t, const uint64_t *, uint32_t, const uint32_t *);
    void (*push_set)(void *, int32_t, uint64_t, uint32_t, uint32_t, const vk_write_set *);
    void (*begin_label)(void *, const vk_label *);
    void (*end_label)(void *);
    void (*launch)(void *, const vk_cu_launch_info *);
} mn_vk_calls;

typedef struct mn_vk_recording {
    const mn_vk_calls *calls;
    void *device;         /* VkDevice */
    void *target;         /* VkCommandBuffer in its initial state */
    uint64_t queries;     /* VkQueryPool, or 0 */
    uint64_t query_count; /* how many of its queries the commands write */
    uint8_t *tables;      /* where argument tables that exceed push constants go */
    uint64_t tables_address; /* the device's address of `tables` */
    uint64_t set_pool;    /* VkDescriptorPool for kernels that take descriptors, or 0 */
} mn_vk_recording;

/* Record `count` words of commands. Returns a VkResult. */
MN_API int32_t mn_vk_record(const mn_vk_recording *recording, const uint64_t *words, uint64_t count);

/* ---- messages of validation layers (messages.c) -------------------------------------------------- */

typedef struct vk_message vk_message;

/* A PFN_vkDebugUtilsMessengerCallbackEXT. */
MN_API uint32_t mn_vk_message_callback(uint32_t severity, uint32_t types, const vk_message *message, void *user);

/* Copy the messages to `out` when they fit into `capacity` bytes; returns their size. With `clear` they
 * are forgotten once copied. */
MN_API size_t mn_vk_messages(char *out, size_t capacity, bool clear);

#endif
