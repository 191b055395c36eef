"""Schedules for GPUs: lanes are invocations of a workgroup, memory they share is explicit."""
