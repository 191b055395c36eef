"""Qualcomm's Hexagon NPUs, or their emulator on x86, as a device of Mansard that takes regions of a model."""
