"""A simulated NPU as a device of Mansard. It is no hardware: a thread computes with NumPy what an NPU
would, and takes the time that a performance model says (npu.toml)."""
