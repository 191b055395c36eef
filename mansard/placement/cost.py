"""The cost of a dispatch on a device: max(bytes / bandwidth, operations / rate) + launch.

Where dispatches of its kind (`mansard.placement.kinds`) or element type were measured, their time takes the
place of operations / rate + launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from mansard import dims
from mansard.dims import DimLike
from mansard.ir.dispatch import Dispatch, is_contraction
from mansard.ir.ops import Generic, Op, Reshape, Sort
from mansard.ir.scalar import Apply, Cast, Gather, walk
from mansard.ir.types import Value
from mansard.passes.fusion.groups import HEAVY
from mansard.placement.kinds import kind_of
from mansard.targets.profile import DeviceProfile

HEAVY_OPERATIONS = 12
"""Operations of one exp, erf …: the length of their polynomials."""

STEP_OPERATIONS = 100
"""Operations of products in the time of one step that waits for the one before and uses no vectors: about 200
on a core with AVX-512 (Xeon), 25 in a GPU's sorting network (H200)."""


@dataclass(frozen=True)
class Work:
    """What a dispatch does, symbolic in the model's dims."""

    bytes: DimLike
    operations: DimLike
    dtype: str
    """The element type whose rate counts."""
    written: DimLike = 0
    """The part of ``bytes`` that is written."""
    beside: DimLike = 0
    """The part of ``operations`` that is not of products, where there are products."""
    depth: DimLike = 0
    """How many products each sum has, of the deepest sums; 0 where there are no products."""
    kind: str = ""
    """What it is besides a product of matrices, one of `mansard.targets.profile.KINDS` (`kind_of`)."""


def work_of(dispatch: Dispatch) -> Work:
    """Bytes to read and write once, and arithmetic operations."""
    moved: DimLike = 0
    gathered = _gathered(dispatch)
    for value in dispatch.inputs:
        # A table that is only indexed is read where it is indexed, not as a whole.
        size = dims.product(dispatch.domain) if value in gathered else value.type.elements
        moved = dims.add(moved, dims.mul(size, max(1, value.type.dtype.bits // 8)))
    written = dims.add(0, *(value.type.bytes for value in dispatch.outputs))
    products = dims.add(0, *(_operations(op) for op in dispatch.ops if is_contraction(op)))
    beside = dims.add(0, *(_operations(op) for op in dispatch.ops if not is_contraction(op)))
    operations = dims.add(products, beside)
    fused = 0 if products == 0 else beside
    return Work(
        dims.add(moved, written),
        operations,
        _computed(dispatch),
        written,
        fused,
        _depth(dispatch.ops),
        kind_of(dispatch.ops),
    )


def _depth(ops: Iterable[Op]) -> DimLike:
    depths = [
        dims.product(op.extents[dim] for dim in op.reduced)
        for op in ops
        if isinstance(op, Generic) and is_contraction(op)
    ]
    return max(depths, key=dims.representative, default=0)


def _computed(dispatch: Dispatch) -> str:
    """The element type whose rate bounds a dispatch: what its products multiply, else what it writes."""
    for op in dispatch.ops:
        if is_contraction(op):
            return max((v.type.dtype for v in op.inputs), key=lambda dtype: dtype.bits).value
    floats = [v.type.dtype.value for v in dispatch.outputs if v.type.dtype.is_float]
    return floats[0] if floats else dispatch.outputs[0].type.dtype.value


def _gathered(dispatch: Dispatch) -> set[Value]:
    found = set()
    for op in dispatch.ops:
        if isinstance(op, Generic):
            found |= {op.inputs[n.operand] for n in walk(op.body) if isinstance(n, Gather)}
    return found


def _operations(op: Op) -> DimLike:
    if isinstance(op, Reshape):
        return 0
    if isinstance(op, Generic):
        # Products take narrow factors as they are.
        counted = (Apply,) if is_contraction(op) else (Apply, Cast)
        each = sum(
            HEAVY_OPERATIONS if isinstance(n, Apply) and n.op in HEAVY else 1
            for n in walk(op.body)
            if isinstance(n, counted)
        )
        return dims.mul(dims.product(op.extents), each + (op.combiner is not None))
    if isinstance(op, Sort):
        return _sorting(op)
    return dims.mul(sum_elements(op), 2)


def _sorting(op: Sort) -> DimLike:
    """Every element is compared with every other of its line; where few are kept, with the last of those,
    and the about k * log(n / k) that are better are put in their places among k, one step after another."""
    elements, length = op.inputs[0].type.elements, op.inputs[0].type.shape[op.axis]
    kept, most = dims.representative(op.outputs[0].type.shape[op.axis]), dims.representative(length)
    if 4 * kept > most:
        return dims.mul(dims.mul(elements, length), 4)
    lines = dims.representative(elements) // max(1, most)
    steps = lines * kept * kept * math.log(most / max(1, kept))
    return dims.add(dims.mul(elements, 4), round(steps * STEP_OPERATIONS))


def sum_elements(op: Op) -> DimLike:
    """Elements of all operands of an op."""
    return dims.add(0, *(v.type.elements for v in op.inputs))


def seconds(work: Work, profile: DeviceProfile) -> float:
    """Predicted time of a dispatch on a device."""
    memory = _memory_seconds(work, profile)
    operations, depth = dims.representative(work.operations), dims.representative(work.depth)
    launch = profile.launch_of(operations)
    if whole := profile.whole_seconds(operations, work.dtype, depth, work.kind):
        return max(memory + launch, whole)
    beside = dims.representative(work.beside)
    if profile.vector and beside:
        arithmetic = profile.seconds(operations - beside, work.dtype, depth) + beside / profile.vector
    else:
        arithmetic = profile.seconds(operations, work.dtype, depth)
    return max(memory, arithmetic) + launch


def load_seconds(work: Work, profile: DeviceProfile, took: float) -> float:
    """Predicted seconds that a dispatch of ``took`` `seconds` takes from what a device gets done with many
    calls in flight.

    Where dispatches of several calls run side by side (``DeviceProfile.concurrency``), small ones share the
    device; a large one still takes what its bytes and operations need at full rates.
    """
    if profile.concurrency <= 1:
        return took
    full = dims.representative(work.operations) / profile.rate(work.dtype)
    return min(took, max(took / profile.concurrency, _memory_seconds(work, profile), full))


def _memory_seconds(work: Work, profile: DeviceProfile) -> float:
    moved = dims.representative(work.bytes)
    if moved <= profile.cache_bytes:
        return moved / profile.cache_bandwidth
    written = dims.representative(work.written)
    to_memory = profile.write_bandwidth or profile.bandwidth
    return (moved - written) / profile.bandwidth + written / to_memory


def transfer(size: int, source: DeviceProfile, target: DeviceProfile) -> tuple[float, float]:
    """Predicted seconds of handing over to another device, and of copying ``size`` bytes to it: by the link
    of the two where the source's profile has one, else by way of the host."""
    pair = source.links.get(target.name)
    if pair is not None:
        shared = source.unified and target.unified
        return pair.handoff_seconds, 0.0 if shared else pair.copy_seconds + size / pair.bytes_per_second
    links = [p.link for p in (source, target) if not p.unified]
    copies = sum(link.copy_seconds + size / link.bytes_per_second for link in links)
    return source.link.handoff_seconds, copies


def transfer_seconds(size: int, source: DeviceProfile, target: DeviceProfile) -> float:
    """Predicted time to hand ``size`` bytes from one device to another, copies included."""
    return sum(transfer(size, source, target))
