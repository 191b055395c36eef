"""What a scalar op declares about itself."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from mansard.dtypes import DType

Array = npt.NDArray[Any]
Reference = Callable[..., Array]
"""Arrays in register types (`mansard.ir.interpreter.scalar`) to an array in that of the result."""


class Domain(enum.Enum):
    """The kinds of element types that an op may be defined on, with one meaning for each."""

    FLOAT = "float"
    INT = "int"
    BOOL = "bool"


def domain_of(dtype: DType) -> Domain:
    """The domain an element type belongs to."""
    if dtype.is_float:
        return Domain.FLOAT
    return Domain.BOOL if dtype is DType.BOOL else Domain.INT


@dataclass(frozen=True)
class Infix:
    """How an op of two operands is written; the higher ``precedence`` binds first."""

    symbol: str
    precedence: int


@dataclass(frozen=True)
class ScalarOp:
    """A scalar op: its operands are of one element type, and so is its result unless ``gives_bool``.

    A ``conditional`` op takes a bool before these operands. ``reference`` is the meaning in NumPy on each
    domain the op is defined on. An op from outside states a ``revision`` and changes it with what the op
    computes: kernels that were compiled before are told from those after by it.
    """

    name: str
    arity: int
    reference: Mapping[Domain, Reference]
    gives_bool: bool = False
    conditional: bool = False
    operations: int = 1
    """Arithmetic operations that one application costs: the length of a polynomial for most functions."""
    recomputable: bool = True
    """Whether computing a value again may cost less than reading it."""
    infix: Infix | None = None
    revision: str = ""

    def accepts(self, dtype: DType) -> bool:
        """Whether the op is defined on an element type."""
        return domain_of(dtype) in self.reference

    def result_dtype(self, operand: DType) -> DType:
        """The result's type for operands of a type."""
        return DType.BOOL if self.gives_bool else operand


def on_floats(function: Reference) -> dict[Domain, Reference]:
    """A reference for floats only."""
    return {Domain.FLOAT: function}


def on_integers(function: Reference) -> dict[Domain, Reference]:
    """A reference for integers only."""
    return {Domain.INT: function}


def on_numbers(function: Reference, integers: Reference | None = None) -> dict[Domain, Reference]:
    """A reference for floats and integers."""
    return {Domain.FLOAT: function, Domain.INT: integers or function}


def on_bits(function: Reference) -> dict[Domain, Reference]:
    """A reference for integers and bool."""
    return {Domain.INT: function, Domain.BOOL: function}


def on_all(function: Reference) -> dict[Domain, Reference]:
    """A reference for every element type."""
    return dict.fromkeys(Domain, function)


FUNCTION = 12
"""Operations of one exp, erf …: the length of their polynomials."""
