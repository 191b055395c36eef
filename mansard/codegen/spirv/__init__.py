"""Kernel IR to SPIR-V for Vulkan 1.3, with a binary writer of our own."""
