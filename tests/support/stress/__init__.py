"""Interrupts and faults for tests of what a call leaves behind."""
