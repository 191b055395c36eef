"""The ``tile_products`` instruction: by AMX, whose eight tile registers code names itself, or by vectors.

A kernel sets the registers' sizes once, before its first workgroup, and gives them back behind the last one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mansard.codegen.kernel import Inst
from mansard.codegen.kernel.tile_products import BYTES, MOST, SIDE, row_bytes
from mansard.codegen.llvm import text
from mansard.codegen.llvm.function import FunctionEmitter
from mansard.codegen.llvm.memory import element_address
from mansard.dtypes import DType

REGISTERS = 2 * MOST + MOST * MOST
OF_X, OF_WEIGHTS = MOST * MOST, MOST * MOST + MOST
"""The first registers of either factor, behind those of the sums."""
LINE_BYTES = 64
"""Of a row of sums, or of `SIDE` columns of weights."""
_OPERANDS = {
    "ldtilecfg": "ptr",
    "tilerelease": "",
    "tilezero": "i8",
    "tileloadd64": "i8, ptr, i64",
    "tilestored64": "i8, ptr, i64",
}
_SIGNS = {DType.I8: "s", DType.U8: "u"}
_WORDS = f"<{SIDE} x i32>"
_FLOATS = f"<{SIDE} x float>"
_FMA = f"llvm.fmuladd.v{SIDE}f32"
_Blocks = dict[str, list[str]]


@dataclass(frozen=True)
class _Tiles:
    """Tiles of an instruction, and what they hold."""

    rows: int
    columns: int
    row_bytes: int
    x: DType
    weights: DType
    added: bool

    @staticmethod
    def of(inst: Inst) -> _Tiles:
        x, weights = inst.attrs["x"].dtype, inst.attrs["weights"].dtype
        size = row_bytes(x, inst.attrs["depth"])
        return _Tiles(inst.attrs["rows"], inst.attrs["columns"], size, x, weights, inst.attrs["added"])

    @property
    def name(self) -> str:
        """Of the function that multiplies them."""
        parts = ["tiles", self.rows, self.columns, self.row_bytes, self.x.value, self.weights.value]
        return ".".join(str(part) for part in [*parts, *(["added"] if self.added else [])])

    @property
    def of_bytes(self) -> bool:
        return self.x in BYTES

    @property
    def intrinsic(self) -> str:
        """The instruction for dot products."""
        return f"tdpb{_SIGNS[self.x]}{_SIGNS[self.weights]}d" if self.of_bytes else "tdpbf16ps"

    @property
    def feature(self) -> str:
        """What a CPU has that has it."""
        return "amx-int8" if self.of_bytes else "amx-bf16"

    @property
    def panel_bytes(self) -> int:
        """Of a tile of weights."""
        return self.row_bytes // 4 * LINE_BYTES


def emit_tile_products(f: FunctionEmitter, inst: Inst) -> None:
    """A call of the function of these tiles, which is inlined."""
    x, stride, weights, sums = inst.args
    tiles = _Tiles.of(inst)
    if tiles.feature in f.target.features:
        blocks = _by_registers(tiles)
        f.around_workgroups("tiles", _configuration(tiles.row_bytes), _calls("tilerelease", [""]))
        for intrinsic, operands in (_OPERANDS | {tiles.intrinsic: "i8, i8, i8"}).items():
            f.declare(f"llvm.x86.{intrinsic}", f"void @llvm.x86.{intrinsic}({operands})")
    else:
        blocks = _by_vectors(tiles)
        f.declare(_FMA, f"{_FLOATS} @{_FMA}({_FLOATS}, {_FLOATS}, {_FLOATS})")
    f.intrinsics[tiles.name] = _function(tiles.name, blocks)
    of_x = element_address(f, inst.attrs["x"], x)
    of_weights = element_address(f, inst.attrs["weights"], weights)
    of_sums = element_address(f, inst.attrs["sums"], sums)
    wide = f.name(stride) if stride.type.dtype.bits == 64 else f.temp(f"sext {f.typed(stride)} to i64")
    pitch = f.temp(f"mul i64 {wide}, {tiles.x.itemsize}")
    steps = inst.attrs["depth"] * tiles.x.itemsize // tiles.row_bytes
    f.line(f"call void @{tiles.name}(ptr {of_x}, i64 {pitch}, ptr {of_weights}, ptr {of_sums}, i64 {steps})")


def _function(name: str, blocks: _Blocks) -> str:
    arguments = "ptr %x, i64 %pitch, ptr %weights, ptr %sums, i64 %steps"
    lines = [
        line for label, code in blocks.items() for line in (f"{label}:", *(f"  {each}" for each in code))
    ]
    body = "\n".join(lines)
    return f"define internal void @{name}({arguments}) alwaysinline #0 {{\n{body}\n}}"


def _calls(intrinsic: str, operands: Iterable[str]) -> list[str]:
    return [f"call void @llvm.x86.{intrinsic}({each})" for each in operands]


def _configuration(size: int) -> list[str]:
    """What makes registers 16 rows of 64 bytes, but those of x rows of ``size`` bytes, and those of the
    weights as many rows as these have words.

    ``ldtilecfg`` reads palette 1 in the first byte, the bytes of each register's rows from byte 16 on, and
    its rows from byte 48 on (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, 18.2).
    """
    data = bytearray(64)
    data[0] = 1
    for register in range(REGISTERS):
        data[16 + 2 * register] = size if OF_X <= register < OF_WEIGHTS else LINE_BYTES
        data[48 + register] = size // 4 if register >= OF_WEIGHTS else SIDE
    code = ["%tiles = alloca [64 x i8], align 64"]
    for place in range(0, len(data), 8):
        word = int.from_bytes(data[place : place + 8], "little")
        code.append(f"%tiles.{place} = getelementptr i8, ptr %tiles, i64 {place}")
        code.append(f"store i64 {word}, ptr %tiles.{place}, align 8")
    return code + _calls("ldtilecfg", ["ptr %tiles"])


def _by_registers(tiles: _Tiles) -> _Blocks:
    """Registers are the sums, `MOST` for each tile of rows, then tiles of x, then tiles of the weights."""
    rows, columns, line = range(tiles.rows), range(tiles.columns), tiles.columns * LINE_BYTES
    cells = [(row, column, MOST * row + column) for row in rows for column in columns]
    entry, done = [], []
    for row, column, sums in cells:
        place, at = row * SIDE * line + column * LINE_BYTES, f"i8 {sums}, ptr %s{sums}, i64 {line}"
        entry.append(f"%s{sums} = getelementptr i8, ptr %sums, i64 {place}")
        entry += _calls("tileloadd64", [at]) if tiles.added else _calls("tilezero", [f"i8 {sums}"])
        done += _calls("tilestored64", [at])
    entry += [f"%high = mul i64 %pitch, {SIDE}", f"%panel = mul i64 %steps, {tiles.panel_bytes}"]
    loop = [
        "%step = phi i64 [ 0, %entry ], [ %next, %loop ]",
        f"%along = mul i64 %step, {tiles.row_bytes}",
        f"%down = mul i64 %step, {tiles.panel_bytes}",
        "%x0 = getelementptr i8, ptr %x, i64 %along",
        "%w0 = getelementptr i8, ptr %weights, i64 %down",
        "%x1 = getelementptr i8, ptr %x0, i64 %high",
        "%w1 = getelementptr i8, ptr %w0, i64 %panel",
        *_calls("tileloadd64", (f"i8 {OF_X + row}, ptr %x{row}, i64 %pitch" for row in rows)),
        *_calls("tileloadd64", (f"i8 {OF_WEIGHTS + c}, ptr %w{c}, i64 {LINE_BYTES}" for c in columns)),
        *_calls(tiles.intrinsic, (f"i8 {s}, i8 {OF_X + row}, i8 {OF_WEIGHTS + c}" for row, c, s in cells)),
        "%next = add nuw nsw i64 %step, 1",
        "%more = icmp ult i64 %next, %steps",
        "br i1 %more, label %loop, label %done",
    ]
    return {"entry": [*entry, "br label %loop"], "loop": loop, "done": [*done, "ret void"]}


def _by_vectors(tiles: _Tiles) -> _Blocks:
    """Row by row, a vector of sums for each panel."""
    columns, zero = tiles.columns, "zeroinitializer"
    sums = _WORDS if tiles.of_bytes else _FLOATS
    starts = [f"%b{c}" if tiles.added else zero for c in range(columns)]
    of_x, names = _numbers("x", "%all", tiles.x)
    loop = [
        "%word = phi i64 [ 0, %row ], [ %next, %loop ]",
        *(f"%t{c} = phi {sums} [ {start}, %row ], [ %u{c}, %loop ]" for c, start in enumerate(starts)),
        "%along = shl i64 %word, 2",
        "%of_x = getelementptr i8, ptr %line, i64 %along",
        "%together = load i32, ptr %of_x, align 1",
        f"%one = insertelement {_WORDS} poison, i32 %together, i64 0",
        f"%all = shufflevector {_WORDS} %one, {_WORDS} poison, {_WORDS} {zero}",
        *of_x,
    ]
    for c in range(columns):
        of_weights, factors = _numbers(f"w{c}.", f"%w{c}", tiles.weights)
        loop += [
            f"%before{c} = mul i64 %panel, {c}",
            f"%at{c} = add i64 %before{c}, %word",
            f"%of{c} = getelementptr {_WORDS}, ptr %weights, i64 %at{c}",
            f"%w{c} = load {_WORDS}, ptr %of{c}, align 1",
            *of_weights,
        ]
        total = f"%t{c}"
        for number, pair in enumerate(zip(names, factors, strict=True)):
            result = f"%u{c}" if number == len(names) - 1 else f"%v{c}.{number}"
            loop += _added(f"{c}.{number}", result, *pair, total, of_bytes=tiles.of_bytes)
            total = result
    loop += [
        "%next = add nuw nsw i64 %word, 1",
        "%more = icmp ult i64 %next, %panel",
        "br i1 %more, label %loop, label %latch",
    ]
    latch = [f"store {sums} %u{c}, ptr %s{c}, align 4" for c in range(columns)]
    latch += [
        "%after = add nuw nsw i64 %number, 1",
        f"%rows = icmp ult i64 %after, {tiles.rows * SIDE}",
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
            f"%s{c} = getelementptr {sums}, ptr %sums, i64 %d{c}",
            f"%b{c} = load {sums}, ptr %s{c}, align 4",
        ]
    row.append("br label %loop")
    entry = [f"%panel = mul i64 %steps, {tiles.row_bytes // 4}", "br label %row"]
    return {"entry": entry, "row": row, "loop": loop, "latch": latch, "done": ["ret void"]}


def _numbers(name: str, words: str, dtype: DType) -> tuple[list[str], list[str]]:
    """Code that takes the numbers of words apart, as f32 or i32, and the names of their vectors."""
    code, names = [], []
    if dtype is DType.BF16:
        for half, line in (
            ("even", f"shl {_WORDS} {words}, {_splat(16)}"),
            ("odd", f"and {_WORDS} {words}, {_splat(-65536)}"),
        ):
            code += [
                f"%{name}{half}.bits = {line}",
                f"%{name}{half} = bitcast {_WORDS} %{name}{half}.bits to {_FLOATS}",
            ]
            names.append(f"%{name}{half}")
        return code, names
    shift = "ashr" if dtype.is_signed else "lshr"
    for byte in range(4):
        code.append(f"%{name}up{byte} = shl {_WORDS} {words}, {_splat(24 - 8 * byte)}")
        code.append(f"%{name}{byte} = {shift} {_WORDS} %{name}up{byte}, {_splat(24)}")
        names.append(f"%{name}{byte}")
    return code, names


def _added(place: str, result: str, x: str, weights: str, total: str, *, of_bytes: bool) -> list[str]:
    """The sum of ``total`` and a product."""
    if not of_bytes:
        return [f"{result} = call {_FLOATS} @{_FMA}({_FLOATS} {x}, {_FLOATS} {weights}, {_FLOATS} {total})"]
    return [f"%p{place} = mul {_WORDS} {x}, {weights}", f"{result} = add {_WORDS} {total}, %p{place}"]


def _splat(number: int) -> str:
    return text.splat_literal(str(number), "i32", SIDE)
