"""The host CPU: kernels of machine code on a pool of native threads."""
