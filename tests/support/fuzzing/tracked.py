"""Values of random graphs with what is known of their numbers, so that results can be told right from wrong.

Numbers start as multiples of a quantum up to a bound. As long as all sums and products of such numbers fit
the significand, every order of evaluation gives the same bits, and devices have to agree with the interpreter
exactly. Beyond, values carry a bound of their error, and nothing discontinuous is computed from them.
"""

from __future__ import annotations

from dataclasses import dataclass

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir import Value

_SIGNIFICAND = {DType.F64: 53, DType.F32: 24, DType.F16: 11, DType.BF16: 8, DType.F8: 4}
FUNCTION_ERROR = 4e-6
"""Of an f32 function's result and its reference together, relative to the bound of its results."""


@dataclass(frozen=True)
class Tracked:
    """A value, the largest magnitude of its finite numbers, what they are multiples of, and their error."""

    value: Value
    bound: float
    quantum: float
    error: float = 0.0

    @property
    def dtype(self) -> DType:
        return self.value.type.dtype

    @property
    def shape(self) -> tuple[DimLike, ...]:
        return self.value.type.shape

    @property
    def exact(self) -> bool:
        """Whether every device has to compute the same bits."""
        return self.error == 0.0


def fits(dtype: DType, bound: float, quantum: float) -> bool:
    """Whether multiples of ``quantum`` up to ``bound`` are numbers of a type. Integers wrap exactly."""
    return not dtype.is_float or bound / quantum <= 2.0 ** _SIGNIFICAND[dtype]


def most(d: DimLike) -> int:
    """The largest value of a dim."""
    return d if isinstance(d, int) else dims.bounds(d)[1]


def most_elements(shape: tuple[DimLike, ...]) -> int:
    """The largest number of elements of a shape."""
    result = 1
    for d in shape:
        result *= most(d)
    return result
