"""The contracts of kernels: what a dispatch reads and writes, known before its kernel is."""

from __future__ import annotations

import math

from mansard.codegen.backend import CompiledDispatch
from mansard.dims import DimLike
from mansard.ir.dispatch import Dispatch
from mansard.ir.panels import Panels
from mansard.ir.types import Value
from mansard.plan.plan import BindingContract, KernelContract


def kernel_contract(dispatch: Dispatch, kernel: CompiledDispatch) -> KernelContract:
    """What the kernel of a dispatch (or region) accesses: its operands, in the layout that it reads."""
    reads = [BindingContract(_bytes(v, kernel.packed.get(i))) for i, v in enumerate(dispatch.inputs)]
    writes = [BindingContract(value.type.bytes, writes=True) for value in dispatch.outputs]
    in_place = tuple(i for i, value in enumerate(dispatch.inputs) if value in dispatch.in_place)
    return KernelContract((*reads, *writes), kernel.params, kernel.grid, in_place)


def _bytes(value: Value, packed: Panels | None) -> DimLike:
    if packed is None:
        return value.type.bytes
    return (math.prod(packed.shape) * value.type.dtype.bits + 7) // 8
