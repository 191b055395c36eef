"""Schedules for CPUs: a workgroup is one invocation, vectors are the SIMD."""
