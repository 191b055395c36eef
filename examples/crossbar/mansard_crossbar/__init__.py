"""Simulated computing in memory as a device of Mansard: tiles hold weights and multiply one vector at a time.

It is no hardware: a thread computes with NumPy what converters of the stated precision would give."""
