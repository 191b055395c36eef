"""Quantisation after training: `mansard.quantize`."""

from mansard.quantisation.interface import quantize
from mansard.quantisation.model import QuantizedModel

__all__ = ["QuantizedModel", "quantize"]
