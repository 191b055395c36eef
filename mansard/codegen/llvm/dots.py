"""The ``dot`` instruction: sums of products of narrow pairs and quads, by the CPU's instruction if any.

=======================  =====================================================================
bf16 pairs               vdpbf16ps (AVX512-BF16), bfdot (AArch64 bf16)
u8 x i8 quads            vpdpbusd (AVX512-VNNI, AVX-VNNI), usdot (AArch64 i8mm)
i8 x i8 quads            vpdpbssd (AVX-VNNI-INT8), sdot (AArch64 dotprod); on other x86 vpdpbusd of the
                         operand moved up by 128, less 128 times the sum of the other
u8 x u8 quads            udot (AArch64 dotprod)
u8 x i8 pairs, to i16    pmaddubsw (SSSE3)
i16 pairs                pmaddwd (x86)
other                    shifts and ordinary arithmetic (x86: pmaddwd for quads)
=======================  =====================================================================

Sources: Intel SDM vol. 2 and Arm ARM DDI 0487, by the instructions' names. vdpbf16ps takes subnormal
inputs and results as zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mansard.codegen.kernel import Inst, KType
from mansard.codegen.llvm import text
from mansard.codegen.llvm.function import FunctionEmitter
from mansard.dtypes import DType
from mansard.errors import CodegenError

_PMADDWD = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}
_PMADDUBSW = {8: "ssse3.pmadd.ub.sw.128", 16: "avx2.pmadd.ub.sw", 32: "avx512.pmaddubs.w.512"}
"""LLVM's intrinsics of x86, by lanes of the result."""
_Emit = Callable[["_Dot", str, str, str], str]
"""(dot, a, b, c) named operands of ``dot.lanes`` results -> the result's name."""


@dataclass(frozen=True)
class _Dot:
    """A dot of ``lanes`` results with operands of types ``a`` and ``b``."""

    f: FunctionEmitter
    a: DType
    b: DType
    lanes: int
    c: DType

    @property
    def group(self) -> int:
        """Elements of a lane."""
        return self.c.bits // self.a.bits

    @property
    def result(self) -> str:
        return f"<{self.lanes} x {text.scalar_type(self.c)}>"

    @property
    def element(self) -> str:
        return text.scalar_type(self.a)

    @property
    def operand(self) -> str:
        return f"<{self.lanes * self.group} x {self.element}>"


def emit_dot(f: FunctionEmitter, inst: Inst) -> None:
    """``c`` plus, per lane, the sum of the products of the lane's pairs or quads of a and b."""
    a, b, c = inst.args
    if inst.result is None:
        raise CodegenError("dot without a result")
    x, y = a, b
    if (x.type.dtype, y.type.dtype) == (DType.I8, DType.U8):
        x, y = y, x
    whole = _Dot(f, x.type.dtype, y.type.dtype, c.type.lanes, c.type.dtype)
    emit, widths = _instruction(f, whole)
    pieces_of = {whole.lanes // w: w for w in widths if whole.lanes % w == 0}
    width = next((w for count, w in pieces_of.items() if count & (count - 1) == 0), None)
    if width is None:
        emit, width = _generic, whole.lanes
    names = (f.name(x), f.name(y), f.name(c))
    if width == 1:
        raise CodegenError(f"kernel {f.kernel.name!r}: dot of single lanes")
    if width == whole.lanes:
        f.bind(inst.result, emit(whole, *names))
        return
    part = _Dot(f, whole.a, whole.b, width, whole.c)
    group = whole.group
    operand = KType(whole.a, whole.lanes * group)
    pieces = []
    for start in range(0, whole.lanes, width):
        left, right = (_piece(f, text.type_name(operand), n, start * group, width * group) for n in names[:2])
        pieces.append(emit(part, left, right, _piece(f, whole.result, names[2], start, width)))
    f.bind(inst.result, _joined(f, part.result, pieces, width))


def _instruction(f: FunctionEmitter, dot: _Dot) -> tuple[_Emit, tuple[int, ...]]:
    """How to emit, and the numbers of lanes it takes, wider first."""
    features, arm = f.target.features, f.target.arch == "aarch64"
    zmm, ymm, quad = (16, 8, 4), (8, 4), (4,)
    kinds = (dot.a, dot.b)
    if dot.c is DType.I16 or dot.a is DType.I16:
        if f.target.arch != "x86_64" or (dot.c is DType.I16 and "ssse3" not in features):
            return _generic, ()
        wide = zmm if "avx512bw" in features else ymm if "avx2" in features else quad
        return _pairs, wide if dot.a is DType.I16 else tuple(2 * lanes for lanes in wide)
    if dot.a is DType.BF16:
        if "avx512bf16" in features:
            return _dpbf16ps, zmm
        if arm and "bf16" in features:
            return _bfdot, quad
        return _generic, ()
    if arm and "dotprod" in features and dot.a is dot.b:
        return (_sdot if dot.a is DType.I8 else _udot), quad
    if arm and "i8mm" in features and kinds == (DType.U8, DType.I8):
        return _usdot, quad
    if arm and "dotprod" in features and kinds == (DType.U8, DType.I8):
        return _sdot_of_unsigned, quad
    if kinds == (DType.I8, DType.I8) and "avxvnniint8" in features:
        return _dpbssd, ymm
    if dot.b is DType.I8 and ("avx512vnni" in features or "avxvnni" in features):
        return _dpbusd, zmm if "avx512vnni" in features else ymm
    if f.target.arch == "x86_64":
        wide = zmm if "avx512bw" in features else ymm if "avx2" in features else quad
        return _pmaddwd, wide
    return _generic, ()


def _piece(f: FunctionEmitter, vector: str, name: str, start: int, count: int) -> str:
    mask = ", ".join(f"i32 {i}" for i in range(start, start + count))
    return f.temp(f"shufflevector {vector} {name}, {vector} poison, <{count} x i32> <{mask}>")


def _joined(f: FunctionEmitter, vector: str, pieces: list[str], lanes: int) -> str:
    element = vector.split(" x ")[1][:-1]
    while len(pieces) > 1:
        mask = ", ".join(f"i32 {i}" for i in range(2 * lanes))
        pieces = [
            f.temp(f"shufflevector {vector} {a}, {vector} {b}, <{2 * lanes} x i32> <{mask}>")
            for a, b in zip(pieces[::2], pieces[1::2], strict=True)
        ]
        lanes *= 2
        vector = f"<{lanes} x {element}>"
    return pieces[0]


def _called(dot: _Dot, intrinsic: str, a: str, b: str, c: str, operand: str | None = None) -> str:
    operand = operand or dot.operand
    args = [f"{dot.result} {c}", f"{operand} {a}", f"{operand} {b}"]
    return dot.f.call(dot.result, intrinsic, args)


def _as_bfloat(dot: _Dot, name: str) -> str:
    return dot.f.temp(f"bitcast {dot.operand} {name} to <{2 * dot.lanes} x bfloat>")


def _dpbf16ps(dot: _Dot, a: str, b: str, c: str) -> str:
    name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * dot.lanes}"
    return _called(dot, name, _as_bfloat(dot, a), _as_bfloat(dot, b), c, f"<{2 * dot.lanes} x bfloat>")


def _bfdot(dot: _Dot, a: str, b: str, c: str) -> str:
    pair = f"<{2 * dot.lanes} x bfloat>"
    return _called(
        dot, "llvm.aarch64.neon.bfdot.v4f32.v8bf16", _as_bfloat(dot, a), _as_bfloat(dot, b), c, pair
    )


def _sdot(dot: _Dot, a: str, b: str, c: str) -> str:
    return _called(dot, "llvm.aarch64.neon.sdot.v4i32.v16i8", a, b, c)


def _sdot_of_unsigned(dot: _Dot, a: str, b: str, c: str) -> str:
    """a = (a ^ 0x80 as signed) + 128, where only factors of one kind have an instruction."""
    moved = dot.f.temp(f"xor {dot.operand} {a}, {text.splat_literal('-128', 'i8', 4 * dot.lanes)}")
    ones = text.splat_literal("1", "i8", 4 * dot.lanes)
    sums = _sdot(dot, ones, b, "zeroinitializer")
    high = dot.f.temp(f"shl {dot.result} {sums}, {text.splat_literal('7', 'i32', dot.lanes)}")
    return dot.f.temp(f"add {dot.result} {_sdot(dot, moved, b, c)}, {high}")


def _udot(dot: _Dot, a: str, b: str, c: str) -> str:
    return _called(dot, "llvm.aarch64.neon.udot.v4i32.v16i8", a, b, c)


def _usdot(dot: _Dot, a: str, b: str, c: str) -> str:
    return _called(dot, "llvm.aarch64.neon.usdot.v4i32.v16i8", a, b, c)


def _dpbssd(dot: _Dot, a: str, b: str, c: str) -> str:
    return _called(dot, f"llvm.x86.avx2.vpdpbssd.{32 * dot.lanes}", a, b, c)


def _dpbusd(dot: _Dot, a: str, b: str, c: str) -> str:
    name = f"llvm.x86.avx512.vpdpbusd.{32 * dot.lanes}"
    if dot.a is DType.U8:
        return _called(dot, name, a, b, c)
    # a = (a ^ 0x80 as unsigned) - 128. The second sum depends on b alone, so LLVM moves it out of
    # loops over a and shares it between the rows of a tile.
    moved = dot.f.temp(f"xor {dot.operand} {a}, {text.splat_literal('-128', 'i8', 4 * dot.lanes)}")
    half = text.splat_literal("-128", "i8", 4 * dot.lanes)
    high = _called(dot, name, half, b, "zeroinitializer")
    return dot.f.temp(f"sub {dot.result} {_called(dot, name, moved, b, c)}, {high}")


def _pmaddwd(dot: _Dot, a: str, b: str, c: str) -> str:
    """Odd and even bytes as 16-bit numbers, multiplied and added in pairs."""
    f, words = dot.f, f"<{2 * dot.lanes} x i16>"
    name = _PMADDWD[dot.lanes]
    total = c
    eight = text.splat_literal("8", "i16", 2 * dot.lanes)
    sides = [
        (f.temp(f"bitcast {dot.operand} {n} to {words}"), d.is_signed) for n, d in ((a, dot.a), (b, dot.b))
    ]
    for even in (True, False):
        halves = []
        for bits, signed in sides:
            moved = f.temp(f"shl {words} {bits}, {eight}") if even else bits
            halves.append(f.temp(f"{'ashr' if signed else 'lshr'} {words} {moved}, {eight}"))
        sums = f.call(dot.result, f"llvm.x86.{name}", [f"{words} {h}" for h in halves])
        total = f.temp(f"add {dot.result} {total}, {sums}")
    return total


def _pairs(dot: _Dot, a: str, b: str, c: str) -> str:
    """By the instruction that adds the products of two neighbours."""
    names = _PMADDWD if dot.a is DType.I16 else _PMADDUBSW
    sums = dot.f.call(dot.result, f"llvm.x86.{names[dot.lanes]}", [f"{dot.operand} {n}" for n in (a, b)])
    return dot.f.temp(f"add {dot.result} {c}, {sums}")


def _generic(dot: _Dot, a: str, b: str, c: str) -> str:
    """The elements of each lane one by one, moved to its top and from there to its bottom."""
    f, words = dot.f, f"<{dot.lanes} x i{dot.c.bits}>" if dot.lanes > 1 else f"i{dot.c.bits}"
    sides = [(f.temp(f"bitcast {dot.operand} {n} to {words}"), d) for n, d in ((a, dot.a), (b, dot.b))]
    total = c
    for place in range(dot.group):
        parts = [_element(dot, words, name, dtype, place) for name, dtype in sides]
        if dot.a.is_float:
            suffix = "f32" if dot.lanes == 1 else f"v{dot.lanes}f32"
            name = "fma" if f.target.has_fma else "fmuladd"
            args = [f"{dot.result} {n}" for n in (*parts, total)]
            total = f.call(dot.result, f"llvm.{name}.{suffix}", args)
        else:
            product = f.temp(f"mul {words} {parts[0]}, {parts[1]}")
            total = f.temp(f"add {words} {total}, {product}")
    return total


def _element(dot: _Dot, words: str, name: str, dtype: DType, place: int) -> str:
    """Element ``place`` of every lane: an f32 for bf16, otherwise an integer as wide as the lane."""
    f, lanes, wide, bits = dot.f, dot.lanes, dot.c.bits, dtype.bits
    integer = f"i{wide}"
    up = wide - bits * (place + 1)
    if up:
        name = f.temp(f"shl {words} {name}, {text.splat_literal(str(up), integer, lanes)}")
    if dtype is DType.BF16:
        if not up:  # the low half belongs to the other element
            name = f.temp(f"and {words} {name}, {text.splat_literal('-65536', integer, lanes)}")
        return f.temp(f"bitcast {words} {name} to <{lanes} x float>")
    code = "ashr" if dtype.is_signed else "lshr"
    return f.temp(f"{code} {words} {name}, {text.splat_literal(str(wide - bits), integer, lanes)}")
