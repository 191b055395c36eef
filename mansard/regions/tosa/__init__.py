"""TOSA 1.0 programs of integers, written from named ops."""

from mansard.regions.tosa.program import NoTosaError, TosaOp, TosaProgram
from mansard.regions.tosa.write import write_tosa

__all__ = ["NoTosaError", "TosaOp", "TosaProgram", "write_tosa"]
