"""Patterns of several named ops: padding of windows, biases, clamps, means and softmax."""
