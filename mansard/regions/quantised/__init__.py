"""Quantised models: integers with encodings in place of the arithmetic that a canonical Graph spells out.

A canonical Graph multiplies integers as integers: sums in i32, corrections for zero points, scales in f32,
then rounding and clamps. Vendor toolchains want to be told which numbers the integers stand for instead.
"""

from mansard.regions.quantised.encode import encode_values

__all__ = ["encode_values"]
