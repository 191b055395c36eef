"""A simulated NPU whose toolchain compiles whole subgraphs, as a device of Mansard. It is no hardware: a
thread computes with NumPy what an NPU would."""
