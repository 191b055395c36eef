"""The table of scalar ops as kernel IR, which every code generator shares; functions enter it by `lowers`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from mansard.codegen.kernel import KValue
from mansard.dtypes import DType
from mansard.errors import CodegenError, CompileError
from mansard.ir.scalar_ops import Domain, domain_of, scalar_op

Expansion = Callable[..., KValue]
"""From a builder and the operands, of f32, f64, an integer type or bool and of any lanes, to the result."""
AnyExpansion = TypeVar("AnyExpansion", bound=Expansion)


@dataclass(frozen=True)
class ScalarLowering:
    """How an op becomes kernel IR on one domain.

    ``contractible``: the code generator may fuse its multiplications and additions with those around them;
    other expansions rely on the rounding of each step. ``instruction``: the kernel IR has an instruction of
    the op's name, which bodies of graphs use as it is; the expansion is for arguments that the instruction
    leaves undefined.
    """

    expand: Expansion
    contractible: bool = False
    instruction: bool = False


_TABLE: dict[tuple[str, Domain], ScalarLowering] = {}


def register_scalar_lowering(
    op: str, expand: Expansion, *domains: Domain, contractible: bool = False, instruction: bool = False
) -> None:
    """State how a declared op is computed on some domains, by an expansion ``expand(builder, *operands)``.

    Floats narrower than f32 are computed in f32, and integers of four bits in bytes, before an expansion
    sees them. Raises CompileError for an op that is not declared or that has a lowering there already.
    """
    scalar_op(op)
    if not domains:
        raise CompileError(f"scalar op {op!r}: a lowering states the domains it is for")
    for domain in domains:
        if (op, domain) in _TABLE:
            raise CompileError(f"scalar op {op!r} has a lowering on {domain.value} already")
        _TABLE[op, domain] = ScalarLowering(expand, contractible, instruction)


def lowers(
    op: str, *domains: Domain, contractible: bool = False, instruction: bool = False
) -> Callable[[AnyExpansion], AnyExpansion]:
    """`register_scalar_lowering` as a decorator."""

    def register(expand: AnyExpansion) -> AnyExpansion:
        register_scalar_lowering(op, expand, *domains, contractible=contractible, instruction=instruction)
        return expand

    return register


def scalar_lowering(op: str, dtype: DType) -> ScalarLowering:
    """How ``op`` is computed on an element type. Raises CodegenError for an op that is not lowered on it."""
    entry = _TABLE.get((op, domain_of(dtype)))
    if entry is None:
        known = [domain.value for domain in Domain if (op, domain) in _TABLE]
        raise CodegenError(
            f"scalar op {op!r} is not defined on {dtype.value}; it is on: {', '.join(known) or 'nothing'}"
        )
    return entry
