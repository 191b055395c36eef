"""What `mansard.quantize` may be asked for."""

from __future__ import annotations

from dataclasses import dataclass

from mansard.arguments import boolean, shown, texts
from mansard.dtypes import DType
from mansard.errors import CompileError
from mansard.quantisation.ranges import METHODS

SCHEMES = ("int8", "int8-products", "int16", "mixed")
WIDE = ("int16", "float")


@dataclass(frozen=True)
class StaticOptions:
    """How a float model is quantised by calibration data."""

    scheme: str = "int8"
    ranges: str = "mse"
    keep: tuple[str, ...] = ()
    attention: bool = False
    signed: bool = False
    wide: str = "int16"
    budget: float = 0.1
    target_error: float | None = None
    smoothing: float | None = None

    @property
    def everywhere(self) -> bool:
        """Whether results of layers, and what joins them, are integers too."""
        return self.scheme != "int8-products"

    def dtype(self, precision: str, *, symmetric: bool) -> DType:
        """The type of the codes of a layer's input."""
        if precision == "int16":
            return DType.I16
        return DType.I8 if symmetric or self.signed else DType.U8


def static_options(
    scheme: object, ranges: object, keep: object, attention: object, signed: object,
    wide: object, budget: object, target_error: object, smoothing: object,
) -> StaticOptions:  # fmt: skip
    """Checked options; raises CompileError for values out of range, with those that may be."""
    for name, value, allowed in (
        ("scheme", scheme, SCHEMES), ("ranges", ranges, METHODS), ("wide", wide, WIDE)
    ):  # fmt: skip
        if value not in allowed:
            raise CompileError(f"{name}={shown(value)}: it may be {' or '.join(map(repr, allowed))}")
    return StaticOptions(
        str(scheme),
        str(ranges),
        texts("keep", keep, CompileError, "*classifier*"),
        boolean("attention", attention, CompileError),
        boolean("signed", signed, CompileError),
        str(wide),
        _part("budget", budget),
        None if target_error is None else _part("target_error", target_error),
        None if smoothing is None else _part("smoothing", smoothing),
    )


def _part(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise CompileError(f"{name}={shown(value)}: it may be a number from 0 to 1")
    return float(value)
