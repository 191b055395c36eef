/* Messages of validation layers about the Vulkan driver's calls, kept until Python reads them. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vulkan/bridge.h"

struct vk_message {
    int32_t type;
    const void *next;
    uint32_t flags;
    const char *id_name;
    int32_t id;
    const char *text;
    /* more follows */
};

/* Messages of the validation layer, each ended by a zero byte. Collected here because the layer may
 * speak on any thread, also on one that holds a lock another thread wants under the interpreter lock. */
static struct {
    pthread_mutex_t lock;
    char *text;
    size_t size, capacity;
} messages = {.lock = PTHREAD_MUTEX_INITIALIZER};

#define MESSAGES_MAX (1u << 20)

static void append_message(const char *name, const char *text) {
    size_t needed = strlen(name) + strlen(text) + 3;
    if (messages.size + needed > MESSAGES_MAX) return;
    if (messages.size + needed > messages.capacity) {
        size_t capacity = 2 * (messages.size + needed);
        char *grown = realloc(messages.text, capacity);
        if (!grown) return;
        messages.text = grown;
        messages.capacity = capacity;
    }
    messages.size += (size_t)sprintf(messages.text + messages.size, "%s: %s", name, text) + 1;
}

uint32_t mn_vk_message_callback(uint32_t severity, uint32_t types, const vk_message *message, void *user) {
    (void)severity, (void)types, (void)user;
    pthread_mutex_lock(&messages.lock);
    append_message(message->id_name ? message->id_name : "", message->text ? message->text : "");
    pthread_mutex_unlock(&messages.lock);
    return 0;
}

size_t mn_vk_messages(char *out, size_t capacity, bool clear) {
    pthread_mutex_lock(&messages.lock);
    size_t size = messages.size;
    if (size <= capacity && size > 0) {
        memcpy(out, messages.text, size);
        if (clear) messages.size = 0;
    }
    pthread_mutex_unlock(&messages.lock);
    return size;
}
