"""Allocations of Vulkan memory."""
