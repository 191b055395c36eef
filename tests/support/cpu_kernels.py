"""CPU kernels for tests, from LLVM IR text: what `mansard.testing.KERNELS` asks for."""

from __future__ import annotations

import functools
import platform

import numpy as np

from mansard.codegen.llvm.link import link
from mansard.drivers.cpu.device import CpuDevice
from mansard.hal import (
    BarrierCommand,
    Buffer,
    BufferRef,
    Command,
    DispatchCommand,
    EntryPoint,
    ExecutableSpec,
)

CHUNK = 16
"""Elements one workgroup works on."""


def _word(index: int) -> str:
    return f"""
  %p{index} = getelementptr i64, ptr %table, i64 {index}
  %w{index} = load i64, ptr %p{index}"""


def _kernel(name: str, words: int, body: str) -> str:
    """``body`` sees %table's words as %w0, %w1 ..., and %begin, %end."""
    loads = "".join(_word(i) for i in range(words))
    return f"""
define void @{name}(ptr %table, ptr %grid, i64 %begin, i64 %end) {{
entry:{loads}
{body}
}}
"""


def _elementwise(count: str, body: str) -> str:
    """``body`` for each element %i of the workgroups' chunks below ``count``."""
    return f"""
  %first = mul i64 %begin, {CHUNK}
  %bound = mul i64 %end, {CHUNK}
  %past = icmp sgt i64 %bound, {count}
  %last = select i1 %past, i64 {count}, i64 %bound
  br label %head
head:
  %i = phi i64 [ %first, %entry ], [ %next, %work ]
  %more = icmp slt i64 %i, %last
  br i1 %more, label %work, label %done
work:
{body}
  %next = add i64 %i, 1
  br label %head
done:
  ret void"""


_FILL_INDEX = _elementwise(
    "%w1",
    """
  %scaled = mul i64 %i, %w2
  %value = add i64 %scaled, %w3
  %short = trunc i64 %value to i32
  %out = inttoptr i64 %w0 to ptr
  %at = getelementptr i32, ptr %out, i64 %i
  store i32 %short, ptr %at""",
)

_ADD = _elementwise(
    "%w3",
    """
  %pa = inttoptr i64 %w0 to ptr
  %pb = inttoptr i64 %w1 to ptr
  %pc = inttoptr i64 %w2 to ptr
  %aa = getelementptr float, ptr %pa, i64 %i
  %ab = getelementptr float, ptr %pb, i64 %i
  %ac = getelementptr float, ptr %pc, i64 %i
  %a = load float, ptr %aa
  %b = load float, ptr %ab
  %sum = fadd float %a, %b
  store float %sum, ptr %ac""",
)

_SPIN = """
  br label %groups
groups:
  %g = phi i64 [ %begin, %entry ], [ %g_next, %store ]
  %g_more = icmp slt i64 %g, %end
  br i1 %g_more, label %head, label %done
head:
  %i = phi i64 [ 0, %groups ], [ %next, %turn ]
  %state = phi i32 [ 0, %groups ], [ %state_next, %turn ]
  %more = icmp slt i64 %i, %w1
  br i1 %more, label %turn, label %store
turn:
  %product = mul i32 %state, 1664525
  %state_next = add i32 %product, 1013904223
  %next = add i64 %i, 1
  br label %head
store:
  %out = inttoptr i64 %w0 to ptr
  store atomic i32 %state, ptr %out monotonic, align 4
  %g_next = add i64 %g, 1
  br label %groups
done:
  ret void"""

_WIDE = (
    "\n".join(f"  %s{i} = add i64 %{'w1' if i == 2 else f's{i - 1}'}, %w{i}" for i in range(2, 21))
    + """
  %out = inttoptr i64 %w0 to ptr
  store i64 %s20, ptr %out
  ret void"""
)

# out[i] = 1 + the workgroup's own x, y and z as bytes: each workgroup writes one i32.
_WHERE = """
  %py = getelementptr i32, ptr %grid, i64 1
  %gx32 = load i32, ptr %grid
  %gy32 = load i32, ptr %py
  %gx = zext i32 %gx32 to i64
  %gy = zext i32 %gy32 to i64
  %out = inttoptr i64 %w0 to ptr
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %next, %work ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %work, label %done
work:
  %x = urem i64 %i, %gx
  %rest = udiv i64 %i, %gx
  %y = urem i64 %rest, %gy
  %z = udiv i64 %rest, %gy
  %y8 = shl i64 %y, 8
  %z16 = shl i64 %z, 16
  %xy = or i64 %x, %y8
  %xyz = or i64 %xy, %z16
  %value = add i64 %xyz, 1
  %short = trunc i64 %value to i32
  %at = getelementptr i32, ptr %out, i64 %i
  %old = load i32, ptr %at
  %sum = add i32 %old, %short
  store i32 %sum, ptr %at
  %next = add i64 %i, 1
  br label %head
done:
  ret void"""

# name: (bindings, params, body)
_KERNELS = {
    "fill_index": (1, 3, _FILL_INDEX),
    "add": (3, 1, _ADD),
    "spin": (1, 1, _SPIN),
    "wide": (1, 20, _WIDE),
    "where": (1, 0, _WHERE),
}


@functools.cache
def spec(name: str) -> ExecutableSpec:
    """One of the kernels, compiled for this machine's baseline."""
    import llvmlite.binding as llvm

    bindings, params, body = _KERNELS[name]
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(_kernel(name, bindings + params, body))
    module.verify()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    machine = target.create_target_machine(opt=2, reloc="pic", codemodel="small")
    image = link(machine.emit_object(module))
    entry = EntryPoint(name, bindings, params, offset=image.functions[name])
    return ExecutableSpec("cpu-image", f"cpu:{platform.machine()}", image.code, (entry,))


def groups(name: str, count: int) -> tuple[int, int, int]:
    """The grid for ``count`` elements (workgroups, for ``spin`` and ``where``)."""
    per_group = CHUNK if name in ("fill_index", "add") else 1
    return (-(-count // per_group), 1, 1)


def chain(device: CpuDevice, length: int, size: int = 1000) -> tuple[list[Command], Buffer]:
    """Commands that add 1 to every element of a buffer ``length`` times, one after another."""
    total, one = device.allocate(4 * size), device.allocate(4 * size)
    one.view().view(np.float32)[:] = 1
    add = device.load(spec("add"))
    grid = (-(-size // CHUNK), 1, 1)
    refs = (BufferRef(total), BufferRef(one), BufferRef(total))
    return [DispatchCommand(add, "add", refs, (size,), grid), BarrierCommand()] * length, total
