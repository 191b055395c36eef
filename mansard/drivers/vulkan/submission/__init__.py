"""Command buffers recorded and submitted to Vulkan queues."""
