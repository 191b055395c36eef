"""Fuzzing of plans: structure-aware mutations of the plans of artifacts whose kernels stay as they are."""
