"""Runs plans: binds devices, lays out memory, records once per shape, submits, awaits."""
