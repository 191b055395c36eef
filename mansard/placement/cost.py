"""The cost model of a dispatch on a device, a roofline: max(bytes / bandwidth, operations / rate) + launch.

Where dispatches of its kind (`mansard.placement.kinds`) or element type were measured, interpolated
measurements replace operations / rate + launch.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeGuard

from mansard import dims
from mansard.dims import DimLike
from mansard.ir.dispatch import Dispatch, is_contraction
from mansard.ir.ops import Generic, Op, Scatter
from mansard.ir.scalar import Gather, walk
from mansard.ir.types import Value
from mansard.placement.kinds import kind_of
from mansard.targets.profile import DeviceProfile


@dataclass(frozen=True)
class WorkEstimate:
    """Bytes and operations of a dispatch, symbolic in the model's dims, for the cost model."""

    bytes: DimLike
    operations: DimLike
    dtype: str
    """The element type whose rate counts."""
    written: DimLike = 0
    """The part of ``bytes`` that is written."""
    other_operations: DimLike = 0
    """The part of ``operations`` outside contractions (an epilogue, say); 0 without a contraction."""
    depth: DimLike = 0
    """Length of the deepest contraction's reduction; 0 without a contraction."""
    kind: str = ""
    """The kind of work, one of `mansard.targets.profile.KINDS` or empty (`kind_of`)."""


_ESTIMATES: weakref.WeakKeyDictionary[Dispatch, WorkEstimate] = weakref.WeakKeyDictionary()
"""Of dispatches that were estimated: a model is placed several times."""


def estimate_work(dispatch: Dispatch) -> WorkEstimate:
    """The work of a dispatch that reads and writes each of its operands once."""
    if dispatch not in _ESTIMATES:
        _ESTIMATES[dispatch] = _estimate(dispatch)
    return _ESTIMATES[dispatch]


def _estimate(dispatch: Dispatch) -> WorkEstimate:
    read: DimLike = 0
    gathered = _gathered(dispatch)
    for value in dispatch.inputs:
        if value in dispatch.in_place:
            continue
        # A gathered table is read where it is indexed, not as a whole.
        size = dims.product(dispatch.domain) if value in gathered else value.type.elements
        read = dims.add(read, dims.mul(size, max(1, value.type.dtype.bits // 8)))
    scattered = {op.output: op.inputs[2] for op in dispatch.ops if _is_in_place(op, dispatch)}
    written = dims.add(0, *(scattered.get(value, value).type.bytes for value in dispatch.outputs))
    products = dims.add(0, *(op.operations() for op in dispatch.ops if is_contraction(op)))
    others = dims.add(0, *(op.operations() for op in dispatch.ops if not is_contraction(op)))
    return WorkEstimate(
        bytes=dims.add(read, written),
        operations=dims.add(products, others),
        dtype=_computed(dispatch),
        written=written,
        other_operations=0 if products == 0 else others,
        depth=_depth(dispatch.ops),
        kind="" if dispatch.is_region else kind_of(dispatch.ops),
    )


def _is_in_place(op: Op, dispatch: Dispatch) -> TypeGuard[Scatter]:
    """Whether an op writes its rows alone, and leaves the rest of what it updates as it is."""
    return isinstance(op, Scatter) and op.inputs[0] in dispatch.in_place


def _depth(ops: Iterable[Op]) -> DimLike:
    depths = [
        dims.product(op.extents[dim] for dim in op.reduced)
        for op in ops
        if isinstance(op, Generic) and is_contraction(op)
    ]
    return max(depths, key=dims.representative, default=0)


def _computed(dispatch: Dispatch) -> str:
    """The element type whose rate bounds a dispatch: the factors' of its contraction, else its results'."""
    for op in dispatch.ops:
        if is_contraction(op):
            return max((v.type.dtype for v in op.inputs), key=lambda dtype: dtype.bits).value
    floats = [v.type.dtype.value for v in dispatch.outputs if v.type.dtype.is_float]
    return floats[0] if floats else dispatch.outputs[0].type.dtype.value


def _gathered(dispatch: Dispatch) -> set[Value]:
    tables = set()
    for op in dispatch.ops:
        if isinstance(op, Generic):
            tables |= {op.inputs[n.operand] for n in walk(op.body) if isinstance(n, Gather)}
    return tables


def seconds(work: WorkEstimate, profile: DeviceProfile) -> float:
    """Predicted time of a dispatch on a device."""
    memory = _memory_seconds(work, profile)
    operations, depth = dims.representative(work.operations), dims.representative(work.depth)
    launch = profile.launch_of(operations)
    if whole := profile.whole_seconds(operations, work.dtype, depth, work.kind):
        return max(memory + launch, whole)
    others = dims.representative(work.other_operations)
    if profile.vector and others:
        arithmetic = profile.seconds(operations - others, work.dtype, depth) + others / profile.vector
    else:
        arithmetic = profile.seconds(operations, work.dtype, depth)
    return max(memory, arithmetic) + launch


def load_seconds(work: WorkEstimate, profile: DeviceProfile, alone: float) -> float:
    """Predicted device time that a dispatch occupies with many calls in flight; ``alone`` are its `seconds`.

    Where dispatches of several calls run concurrently (``DeviceProfile.concurrency``), small ones share the
    device; a large one still takes what its bytes and operations need at full rates.
    """
    if profile.concurrency <= 1:
        return alone
    full = dims.representative(work.operations) / profile.rate(work.dtype)
    return min(alone, max(alone / profile.concurrency, _memory_seconds(work, profile), full))


def _memory_seconds(work: WorkEstimate, profile: DeviceProfile) -> float:
    moved = dims.representative(work.bytes)
    if moved <= profile.cache_bytes:
        return moved / profile.cache_bandwidth
    written = dims.representative(work.written)
    to_memory = profile.write_bandwidth or profile.bandwidth
    return (moved - written) / profile.bandwidth + written / to_memory


def transfer(size: int, source: DeviceProfile, target: DeviceProfile) -> tuple[float, float]:
    """Predicted seconds of the handoff to another device, and of copying ``size`` bytes to it: by the direct
    link where the source's profile has one, else through the host."""
    pair = source.links.get(target.name)
    if pair is not None:
        shared = source.unified and target.unified
        return pair.handoff_seconds, 0.0 if shared else pair.copy_seconds + size / pair.bytes_per_second
    links = [p.link for p in (source, target) if not p.unified]
    copies = sum(link.copy_seconds + size / link.bytes_per_second for link in links)
    return source.link.handoff_seconds, copies


def transfer_seconds(size: int, source: DeviceProfile, target: DeviceProfile) -> float:
    """Predicted time to move ``size`` bytes from one device to another, handoff included."""
    return sum(transfer(size, source, target))
