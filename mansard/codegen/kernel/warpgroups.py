"""Products of matrices in shared memory by four subgroups together: the warp-group instructions of NVIDIA's
Hopper GPUs, which SPIR-V cannot name. A kernel that uses them becomes PTX (`mansard.codegen.nvptx`).

==================  =========================================================================
warpgroup_product   [steps, right step, indices of the left factor, indices of the right factor]; attrs left,
                    right: Binding of f16 or bf16, both of one type, along: "depth" or "side", memory:
                    SharedMemory of `SHARED_BYTES`. The sums of a workgroup of `THREADS` invocations for
                    `ROWS` x `COLUMNS` results, over ``steps`` steps (at least 1) of `DEPTH` elements; f32 of
                    `SUMS` lanes.

                    Invocation ``t`` brings 16 bytes from each of its indices, which are multiples of 8. The
                    left factor has its depth contiguous: index ``i`` is that of row ``t // 8 + 32 * i``,
                    elements ``t % 8 * 8`` to the 7th after it, and a step further on `DEPTH` more. So is, of
                    a right factor along the "depth", index ``i`` that of column ``t // 8 + 32 * i``; of one
                    along the "side", whose columns are contiguous, that of depth ``t // 8 + 32 * (i % 2)``
                    and columns ``64 * (i // 2) + t % 8 * 8`` to the 7th after it. Its indices advance by
                    ``right step`` elements a step. Reached by all invocations; the memory is free again after
                    a barrier.

                    Lane ``32 * c + 4 * n + 2 * h + e`` of invocation ``t`` is the result of row
                    ``t // 32 * 16 + t % 32 // 4 + 8 * h`` and column ``64 * c + 8 * n + t % 4 * 2 + e``, as
                    the PTX ISA lays out the sums of ``wgmma`` (9.7.15.5, matrix fragments).
==================  =========================================================================
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from mansard.codegen.kernel.builder import KernelBuilder
from mansard.codegen.kernel.ir import Binding, Block, If, Inst, Kernel, KType, KValue, SharedMemory
from mansard.dtypes import DType

THREADS = 256
ROWS, COLUMNS, DEPTH = 128, 256, 64
SUMS = ROWS * COLUMNS // THREADS
CHUNK = 64
"""Columns whose sums an invocation has one after another."""
LINES = THREADS * 8 // DEPTH
"""Lines of 64 elements, at 8 to an invocation, that a workgroup brings by one of its indices."""
SHARED_BYTES = 48 * 1024
LEFT, RIGHT = ROWS * DEPTH // 8 // THREADS, COLUMNS * DEPTH // 8 // THREADS
"""Indices of an invocation."""
OPERANDS = frozenset({DType.F16, DType.BF16})
WARPGROUP_OPS = frozenset({"warpgroup_product"})


def product(
    b: KernelBuilder,
    left: tuple[Binding, Sequence[KValue]],
    right: tuple[Binding, Sequence[KValue]],
    steps: KValue,
    right_step: KValue,
    memory: SharedMemory,
    *,
    along: str = "depth",
) -> KValue:
    """The sums of this invocation, see the table."""
    args = (steps, right_step, *left[1], *right[1])
    type_ = KType(DType.F32, SUMS)
    attrs = {"left": left[0], "right": right[0], "along": along, "memory": memory}
    return b.inst("warpgroup_product", args, type_, **attrs)


def broken_rule(inst: Inst) -> str | None:
    """Which rule of the table an instruction breaks; None: it keeps them."""
    left, right, memory = (inst.attrs.get(name) for name in ("left", "right", "memory"))
    if not isinstance(left, Binding) or not isinstance(right, Binding):
        return "left and right are no buffers"
    if left.dtype is not right.dtype or left.dtype not in OPERANDS:
        return f"no product of {left.dtype.value} and {right.dtype.value}"
    if not isinstance(memory, SharedMemory) or _bytes(memory) != SHARED_BYTES:
        return f"the memory is no shared one of {SHARED_BYTES} bytes"
    if inst.attrs.get("along") not in ("depth", "side"):
        return "along is not depth or side"
    if len(inst.args) != 2 + LEFT + RIGHT:
        return f"steps, the right step, {LEFT} and {RIGHT} indices are expected"
    if any(a.type.lanes != 1 or a.type.dtype not in (DType.I32, DType.I64) for a in inst.args):
        return "steps and indices are scalar i32 or i64"
    if inst.result is None or inst.result.type != KType(DType.F32, SUMS):
        return f"the result is not f32 of {SUMS} lanes"
    return None


def _bytes(memory: SharedMemory) -> int:
    return memory.size * memory.lanes * memory.dtype.bits // 8


def without(kernel: Kernel, ops: Collection[str]) -> Kernel:
    """The kernel without those branches at its top that have any of some instructions, nor the shared memory
    used there alone: what is left for one emitter of a kernel with branches for two."""
    body = Block([n for n in kernel.body.nodes if not (isinstance(n, If) and Block([n]).uses(ops))])
    used = {
        memory.index
        for node in body.walk()
        if isinstance(node, Inst)
        for memory in node.attrs.values()
        if isinstance(memory, SharedMemory)
    }
    shared = tuple(memory for memory in kernel.shared if memory.index in used)
    return dataclasses.replace(kernel, body=body, shared=shared)
