"""Kernel IR to SPIR-V for Vulkan 1.3, with its own binary writer."""
