"""Tuning: search of schedule parameters on the device that runs the kernels."""

from mansard.tuning.tune import TunedKernel, Tuning, tune

__all__ = ["TunedKernel", "Tuning", "tune"]
