"""Patterns of several named ops: padding of windows, biases, clamps, means, softmax and resized images."""
