"""Static Linux programs that run kernels, made without a compiler or linker of the target.

The program has two segments: code (a small runner and the kernels' images) and data (the list of
launches, argument tables and buffers), each at a fixed address. All addresses are thus known when the
program is written; the runner calls every kernel in turn, writes one range of the data to its output
and ends. Before each launch it writes the launch's number to its error output, so that a crash names
its kernel.
"""

from __future__ import annotations

import functools
import struct

from mansard.codegen.llvm import module, target
from mansard.codegen.llvm.link import Image, link

CODE, DATA = 0x400000, 0x10000000
PAGE = 4096
MACHINES = {"x86_64": 62, "aarch64": 183, "riscv64": 243}
_FLAGS = {"x86_64": 0, "aarch64": 0, "riscv64": 5}  # RISC-V: double-float ABI, compressed code
HEADER = struct.Struct("<4Q")
"""At the start of the data: launches, address of the first, address and size of the output."""
LAUNCH = struct.Struct("<2Q4I2q")
"""Code and table addresses, grid, padding, first and last workgroup."""

# (number of write, number of exit, code of `syscall(a, b, c, number)`)
_SYSTEM_CALLS = {
    "x86_64": (1, 60, (0x0FC88948, 0x9090C305, 0x90909090)),  # mov rax, rcx; syscall; ret
    "aarch64": (64, 93, (0xAA0303E8, 0xD4000001, 0xD65F03C0)),  # mov x8, x3; svc 0; ret
    "riscv64": (64, 93, (0x00068893, 0x00000073, 0x00008067)),  # mv a7, a3; ecall; ret
}

_RUNNER = """
target triple = "{triple}"
@code = private constant [3 x i32] [{words}], section ".text.call", align 4

define void @_start() {realign} {{
entry:
  %data = inttoptr i64 {data} to ptr
  %count = load i64, ptr %data
  %p1 = getelementptr i64, ptr %data, i64 1
  %first = load ptr, ptr %p1
  %p2 = getelementptr i64, ptr %data, i64 2
  %out = load i64, ptr %p2
  %p3 = getelementptr i64, ptr %data, i64 3
  %size = load i64, ptr %p3
  %number = alloca i64
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %work ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %work, label %write
work:
  store i64 %i, ptr %number
  %at = ptrtoint ptr %number to i64
  %said = call i64 @code(i64 2, i64 %at, i64 8, i64 {write})
  %launch = getelementptr [{launch} x i8], ptr %first, i64 %i
  %kernel = load ptr, ptr %launch
  %ptable = getelementptr i64, ptr %launch, i64 1
  %table = load ptr, ptr %ptable
  %grid = getelementptr i64, ptr %launch, i64 2
  %pbegin = getelementptr i64, ptr %launch, i64 4
  %begin = load i64, ptr %pbegin
  %pend = getelementptr i64, ptr %launch, i64 5
  %end = load i64, ptr %pend
  call void %kernel(ptr %table, ptr %grid, i64 %begin, i64 %end)
  %next = add i64 %i, 1
  br label %head
write:
  %sent = phi i64 [ 0, %head ], [ %done, %send ]
  %left = sub i64 %size, %sent
  %unfinished = icmp sgt i64 %left, 0
  br i1 %unfinished, label %send, label %exit
send:
  %from = add i64 %out, %sent
  %wrote = call i64 @code(i64 1, i64 %from, i64 %left, i64 {write})
  %done = add i64 %sent, %wrote
  br label %write
exit:
  %never = call i64 @code(i64 0, i64 0, i64 0, i64 {exit})
  unreachable
}}
"""


@functools.cache
def runner(arch: str) -> Image:
    """The code that runs the launches, ``_start`` among its functions."""
    write, leave, words = _SYSTEM_CALLS[arch]
    cpu = target.parse(f"cpu:{arch}")
    # x86-64 enters a program with the stack aligned as no caller leaves it.
    realign = '"stackrealign"' if arch == "x86_64" else ""
    text = _RUNNER.format(
        realign=realign,
        triple=cpu.triple,
        words=", ".join(f"i32 {w}" for w in words),
        data=DATA,
        launch=LAUNCH.size,
        write=write,
        exit=leave,
    )
    return link(module.compile_object(text, cpu))


def program(arch: str, code: bytes, data: bytes) -> bytes:
    """The executable file: ``code`` follows the runner, at `code_address`; ``data`` is at `DATA`."""
    image = runner(arch)
    code = image.code + code
    start = CODE + image.functions["_start"]
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, MACHINES[arch], 1, start, 64, 0,
                         _FLAGS[arch], 64, 56, 2, 64, 0, 0)  # fmt: skip
    room = -len(code) % PAGE
    segments = [
        struct.pack("<IIQQQQQQ", 1, 5, PAGE, CODE, CODE, len(code), len(code), PAGE),
        struct.pack("<IIQQQQQQ", 1, 6, PAGE + len(code) + room, DATA, DATA, len(data), len(data), PAGE),
    ]
    head = (header + b"".join(segments)).ljust(PAGE, b"\0")
    return head + code + bytes(room) + data


def code_address(arch: str) -> int:
    """Where the code given to `program` starts in memory."""
    return CODE + len(runner(arch).code)
