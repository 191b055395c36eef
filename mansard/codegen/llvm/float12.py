"""The ``float12`` instruction: floats of 12 bits (`mansard.ir.float12`) unpacked to bf16, in order.

A bf16 has the bits ``s 0111eeee mmmmmmm``, the byte ``s eeee mmm`` and the nibble the other four bits of the
mantissa. All of it is arithmetic on lanes of 16 bits; zero is the only number that needs a comparison.
"""

from __future__ import annotations

from mansard.codegen.kernel import Inst
from mansard.codegen.llvm import text
from mansard.codegen.llvm.function import FunctionEmitter
from mansard.errors import CodegenError

BIAS = 112 << 7
"""The difference of the exponents' biases, where a bf16 has its exponent."""
BYTE_BITS = 0x87F0
"""The bits of a bf16 that the byte gives."""


def emit_float12(f: FunctionEmitter, inst: Inst) -> None:
    """Numbers of whole vectors: the bytes, and half as many bytes of nibbles, the first in the low half."""
    if inst.result is None:
        raise CodegenError("float12 without a result")
    high, low = inst.args
    lanes = high.type.lanes
    halves, words = f"<{lanes} x i16>", f"<{lanes // 2} x i32>"

    def splat(value: int) -> str:
        return text.splat_literal(str(value), "i16", lanes)

    wide = f.temp(f"sext <{lanes} x i8> {f.name(high)} to {halves}")
    upper = f.temp(f"and {halves} {f.temp(f'shl {halves} {wide}, {splat(4)}')}, {splat(BYTE_BITS)}")
    # The byte of two nibbles in both halves of a word, shifted so that each has its own below.
    pairs = f.temp(f"zext <{lanes // 2} x i8> {f.name(low)} to {words}")
    moved = f.temp(f"shl {words} {pairs}, {text.splat_literal('12', 'i32', lanes // 2)}")
    both = f.temp(f"bitcast {words} {f.temp(f'or {words} {pairs}, {moved}')} to {halves}")
    bits = f.temp(f"or {halves} {upper}, {f.temp(f'and {halves} {both}, {splat(15)}')}")
    zero = f.temp(f"icmp eq {halves} {bits}, zeroinitializer")
    biased = f.temp(f"or {halves} {bits}, {splat(BIAS)}")
    number = f.temp(f"select <{lanes} x i1> {zero}, {halves} zeroinitializer, {halves} {biased}")
    f.bind(inst.result, number)
