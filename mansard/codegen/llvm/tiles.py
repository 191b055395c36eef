"""The ``tile_products`` instruction: by AMX, whose eight tile registers code names itself, or by vectors.

A kernel sets the registers' sizes once, before its first workgroup, and gives them back behind the last one.
"""

from __future__ import annotations

from collections.abc import Iterable

from mansard.codegen.kernel import Inst
from mansard.codegen.kernel.tile_products import DEPTH, MOST, SIDE
from mansard.codegen.llvm import text
from mansard.codegen.llvm.function import FunctionEmitter
from mansard.codegen.llvm.memory import element_address

ROW_BYTES = 64
"""Of a tile register: 32 bf16, or 16 f32."""
CONFIG = (1, 0, 0x0040004000400040, 0x0040004000400040, 0, 0, 0x1010101010101010, 0)
"""What ``ldtilecfg`` reads, as words of 64 bits: palette 1, then the bytes of a row of each register from
byte 16 on, and its rows from byte 48 on (Intel 64 and IA-32 Architectures Software Developer's Manual, volume
1, 18.2)."""
_OPERANDS = {
    "ldtilecfg": "ptr",
    "tilerelease": "",
    "tilezero": "i8",
    "tileloadd64": "i8, ptr, i64",
    "tilestored64": "i8, ptr, i64",
    "tdpbf16ps": "i8, i8, i8",
}
_SUMS, _PAIRS = f"<{SIDE} x float>", f"<{SIDE} x i32>"
_FMA = f"llvm.fmuladd.v{SIDE}f32"
_Blocks = dict[str, list[str]]


def emit_tile_products(f: FunctionEmitter, inst: Inst) -> None:
    """A call of the function of these numbers of tiles, which is inlined."""
    x, stride, weights, sums = inst.args
    rows, columns, steps, added = (inst.attrs[name] for name in ("rows", "columns", "steps", "added"))
    name = f"tiles.{rows}.{columns}{'.added' if added else ''}"
    if "amx-bf16" in f.target.features:
        blocks = _by_registers(rows, columns, added)
        f.around_workgroups("tiles", _configuration(), _calls("tilerelease", [""]))
        for intrinsic, operands in _OPERANDS.items():
            f.declare(f"llvm.x86.{intrinsic}", f"void @llvm.x86.{intrinsic}({operands})")
    else:
        blocks = _by_vectors(rows, columns, added)
        f.declare(_FMA, f"{_SUMS} @{_FMA}({_SUMS}, {_SUMS}, {_SUMS})")
    f.intrinsics[name] = _function(name, blocks)
    of_x = element_address(f, inst.attrs["x"], x)
    of_weights = element_address(f, inst.attrs["weights"], weights)
    of_sums = element_address(f, inst.attrs["sums"], sums)
    wide = f.name(stride) if stride.type.dtype.bits == 64 else f.temp(f"sext {f.typed(stride)} to i64")
    pitch = f.temp(f"shl i64 {wide}, 1")
    f.line(f"call void @{name}(ptr {of_x}, i64 {pitch}, ptr {of_weights}, ptr {of_sums}, i64 {steps})")


def _function(name: str, blocks: _Blocks) -> str:
    arguments = "ptr %x, i64 %pitch, ptr %weights, ptr %sums, i64 %steps"
    lines = [
        line for label, code in blocks.items() for line in (f"{label}:", *(f"  {each}" for each in code))
    ]
    body = "\n".join(lines)
    return f"define internal void @{name}({arguments}) alwaysinline #0 {{\n{body}\n}}"


def _calls(intrinsic: str, operands: Iterable[str]) -> list[str]:
    return [f"call void @llvm.x86.{intrinsic}({each})" for each in operands]


def _configuration() -> list[str]:
    """What makes every register 16 rows of `ROW_BYTES`."""
    code = ["%tiles = alloca [64 x i8], align 64"]
    for number, word in enumerate(CONFIG):
        code.append(f"%tiles.{number} = getelementptr i8, ptr %tiles, i64 {8 * number}")
        code.append(f"store i64 {word}, ptr %tiles.{number}, align 8")
    return code + _calls("ldtilecfg", ["ptr %tiles"])


def _by_registers(rows: int, columns: int, added: bool) -> _Blocks:
    """Registers are the sums, `MOST` for each tile of rows, then tiles of x, then tiles of the weights."""
    of_x, of_weights, line = MOST * MOST, MOST * MOST + MOST, columns * ROW_BYTES
    cells = [(row, column, MOST * row + column) for row in range(rows) for column in range(columns)]
    entry, done = [], []
    for row, column, sums in cells:
        place, at = row * SIDE * line + column * ROW_BYTES, f"i8 {sums}, ptr %s{sums}, i64 {line}"
        entry.append(f"%s{sums} = getelementptr i8, ptr %sums, i64 {place}")
        entry += _calls("tileloadd64", [at]) if added else _calls("tilezero", [f"i8 {sums}"])
        done += _calls("tilestored64", [at])
    entry += [f"%high = mul i64 %pitch, {SIDE}", f"%panel = mul i64 %steps, {SIDE * ROW_BYTES}"]
    loop = [
        "%step = phi i64 [ 0, %entry ], [ %next, %loop ]",
        f"%along = mul i64 %step, {ROW_BYTES}",
        f"%down = mul i64 %step, {SIDE * ROW_BYTES}",
        "%x0 = getelementptr i8, ptr %x, i64 %along",
        "%w0 = getelementptr i8, ptr %weights, i64 %down",
        "%x1 = getelementptr i8, ptr %x0, i64 %high",
        "%w1 = getelementptr i8, ptr %w0, i64 %panel",
        *_calls("tileloadd64", (f"i8 {of_x + row}, ptr %x{row}, i64 %pitch" for row in range(rows))),
        *_calls("tileloadd64", (f"i8 {of_weights + c}, ptr %w{c}, i64 {ROW_BYTES}" for c in range(columns))),
        *_calls("tdpbf16ps", (f"i8 {sums}, i8 {of_x + row}, i8 {of_weights + c}" for row, c, sums in cells)),
        "%next = add nuw nsw i64 %step, 1",
        "%more = icmp ult i64 %next, %steps",
        "br i1 %more, label %loop, label %done",
    ]
    return {"entry": [*entry, "br label %loop"], "loop": loop, "done": [*done, "ret void"]}


def _by_vectors(rows: int, columns: int, added: bool) -> _Blocks:
    """Row by row, a vector of sums for each panel."""
    low, high = (text.splat_literal(bits, "i32", SIDE) for bits in ("16", "-65536"))
    zero = "zeroinitializer"
    starts = [f"%b{c}" if added else zero for c in range(columns)]
    loop = [
        "%pair = phi i64 [ 0, %row ], [ %next, %loop ]",
        *(f"%t{c} = phi {_SUMS} [ {start}, %row ], [ %u{c}, %loop ]" for c, start in enumerate(starts)),
        "%along = shl i64 %pair, 2",
        "%of_x = getelementptr i8, ptr %line, i64 %along",
        "%both = load i32, ptr %of_x, align 2",
        f"%one = insertelement {_PAIRS} poison, i32 %both, i64 0",
        f"%all = shufflevector {_PAIRS} %one, {_PAIRS} poison, {_PAIRS} {zero}",
        *_halves("x", "%all", low, high),
    ]
    for c in range(columns):
        loop += [
            f"%before{c} = mul i64 %panel, {c}",
            f"%at{c} = add i64 %before{c}, %pair",
            f"%of{c} = getelementptr {_PAIRS}, ptr %weights, i64 %at{c}",
            f"%w{c} = load {_PAIRS}, ptr %of{c}, align 2",
            *_halves(f"w{c}.", f"%w{c}", low, high),
            f"%v{c} = call {_SUMS} @{_FMA}({_SUMS} %xeven, {_SUMS} %w{c}.even, {_SUMS} %t{c})",
            f"%u{c} = call {_SUMS} @{_FMA}({_SUMS} %xodd, {_SUMS} %w{c}.odd, {_SUMS} %v{c})",
        ]
    loop += [
        "%next = add nuw nsw i64 %pair, 1",
        "%more = icmp ult i64 %next, %panel",
        "br i1 %more, label %loop, label %latch",
    ]
    latch = []
    latch += [f"store {_SUMS} %u{c}, ptr %s{c}, align 4" for c in range(columns)]
    latch += [
        "%after = add nuw nsw i64 %number, 1",
        f"%rows = icmp ult i64 %after, {rows * SIDE}",
        "br i1 %rows, label %row, label %done",
    ]
    row = [
        "%number = phi i64 [ 0, %entry ], [ %after, %latch ]",
        "%down = mul i64 %number, %pitch",
        "%line = getelementptr i8, ptr %x, i64 %down",
        f"%first = mul i64 %number, {columns}",
    ]
    for c in range(columns):
        row += [
            f"%d{c} = add i64 %first, {c}",
            f"%s{c} = getelementptr {_SUMS}, ptr %sums, i64 %d{c}",
            f"%b{c} = load {_SUMS}, ptr %s{c}, align 4",
        ]
    row.append("br label %loop")
    entry = [f"%panel = mul i64 %steps, {DEPTH // 2}", "br label %row"]
    return {"entry": entry, "row": row, "loop": loop, "latch": latch, "done": ["ret void"]}


def _halves(name: str, pairs: str, low: str, high: str) -> list[str]:
    """The first and the second of pairs of bf16 as f32."""
    return [
        f"%{name}first = shl {_PAIRS} {pairs}, {low}",
        f"%{name}second = and {_PAIRS} {pairs}, {high}",
        f"%{name}even = bitcast {_PAIRS} %{name}first to {_SUMS}",
        f"%{name}odd = bitcast {_PAIRS} %{name}second to {_SUMS}",
    ]
