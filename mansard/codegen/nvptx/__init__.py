"""Kernel IR to PTX, the assembly of NVIDIA's GPUs, for kernels that use what SPIR-V has no words for."""
