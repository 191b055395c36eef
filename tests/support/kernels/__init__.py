"""Kernels run by themselves: on a device, and by an emulator of kernel IR."""
