"""Vulkan 1.3: any GPU with a conformant driver, and lavapipe where there is none."""
