"""PTX of products by matrix units, and of floats of 12 bits as their operands.

A product is one ``mma.sync.m16n8k16``, whose fragments are (PTX ISA, 9.7.14.5.8): of the left factor rows
lane / 4 and lane / 4 + 8, of the right one column lane / 4, of both the elements of the depth that lane % 4
says. So the weights of an invocation meet its own x where row and column are the same.
"""

from __future__ import annotations

from mansard.codegen.kernel import Inst, KValue
from mansard.codegen.kernel.quad_products import SUMS, WORDS
from mansard.codegen.llvm import text
from mansard.codegen.llvm.function import FunctionEmitter
from mansard.codegen.llvm.instructions import result_type
from mansard.ir.float12 import BIAS, LOWER

_MMA = "llvm.nvvm.mma.m16n8k16.row.col.bf16"
_SPREAD = 1 | 1 << 12 | 1 << 24
"""A byte times this is the byte at its place, 12 and 24 bits up."""
_BIASED = (BIAS << 7 >> LOWER + 8) * 0x1010101
"""The difference of the exponents' biases in every byte: moved with those of numbers it is at its place."""
_HELD = f"{{ .reg .b32 z; mov.u32 z, %ctaid.z; or.b32 $0, z, {_BIASED}; }}"
"""The same in a register: as a literal it would take the place of the selection in ``prmt``, which then has
to be moved to a register for each. The coordinate is zero, which the assembler does not know."""
_NIBBLE_BITS = -0x7FF87FF9
"""The bits of a pair of bf16 that nibbles give: signs, and the last three of each mantissa."""


def emit_quad_products(f: FunctionEmitter, inst: Inst) -> None:
    """One instruction."""
    sums, *words = inst.args
    x, weights = words[:-WORDS], words[-WORDS:]
    held = [f.temp(f"extractelement {f.typed(sums)}, i64 {lane}") for lane in range(SUMS)]
    operands = [*(f.typed(word) for word in (*weights, *x)), *(f"float {name}" for name in held)]
    result = "{ float, float, float, float }"
    product = f.call(result, _MMA, operands)
    whole, type_ = "poison", text.type_name(result_type(inst))
    for lane in range(SUMS):
        element = f.temp(f"extractvalue {result} {product}, {lane}")
        whole = f.temp(f"insertelement {type_} {whole}, float {element}, i64 {lane}")
    f.bind(inst.result, whole)


def emit_float12_pairs(f: FunctionEmitter, inst: Inst) -> None:
    """Five instructions for a pair: its two bytes, between those of the bias, and the byte of its nibbles are
    moved to their places, and joined by one mask. Two are multiplications, which do not take the unit of the
    others: that is what limits a kernel (H200: one instruction more a pair, 2 % of the time)."""
    high, low = inst.args
    highs, lows = ([_word(f, arg, n) for n in range(arg.type.lanes)] for arg in (high, low))
    bias = f.temp(f'call i32 asm "{_HELD}", "=r"()')
    whole, type_ = "poison", text.type_name(result_type(inst))
    for number in range(2 * high.type.lanes):
        place = number % 2 * 2
        bytes_ = _permuted(f, highs[number // 2], bias, 0x4040 | (place + 1) << 8 | place)
        upper = f.temp(f"mul i32 {bytes_}, {1 << LOWER}")
        nibbles = _permuted(f, lows[number // 4], "0", 0x4440 | number % 4)
        spread = f.temp(f"mul i32 {nibbles}, {_SPREAD}")
        pair = f.temp(f"or i32 {upper}, {f.temp(f'and i32 {spread}, {_NIBBLE_BITS}')}")
        whole = f.temp(f"insertelement {type_} {whole}, i32 {pair}, i64 {number}")
    f.bind(inst.result, whole)


def _word(f: FunctionEmitter, arg: KValue, number: int) -> str:
    return f.name(arg) if arg.type.lanes == 1 else f.temp(f"extractelement {f.typed(arg)}, i64 {number}")


def _permuted(f: FunctionEmitter, word: str, other: str, selection: int) -> str:
    """Bytes picked by hexadecimal digits, the last for the lowest: 0 to 3 from a word, 4 from another."""
    return f.call("i32", "llvm.nvvm.prmt", [f"i32 {word}", f"i32 {other}", f"i32 {selection}"])
