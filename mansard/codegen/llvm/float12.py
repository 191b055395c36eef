"""The ``float12`` instruction: floats of 12 bits (`mansard.ir.float12`) unpacked to bf16, in order.

A bf16 has the bits ``s 0111eeee mmmmmmm``, the byte ``eeee mmmm`` and the nibble ``s mmm``. All of it is
arithmetic on lanes of 16 bits.
"""

from __future__ import annotations

from mansard.codegen.kernel import Inst
from mansard.codegen.llvm import text
from mansard.codegen.llvm.function import FunctionEmitter
from mansard.errors import CodegenError
from mansard.ir.float12 import BIAS, LOWER

BIASED = BIAS << 7
"""The difference of the exponents' biases, where a bf16 has its exponent."""
NIBBLE_BITS = 0x8007
"""The bits of a bf16 that the nibble gives."""


def emit_float12(f: FunctionEmitter, inst: Inst) -> None:
    """Numbers of whole vectors: the bytes, and half as many bytes of nibbles, the first in the low half."""
    if inst.result is None:
        raise CodegenError("float12 without a result")
    high, low = inst.args
    lanes = high.type.lanes
    halves, words = f"<{lanes} x i16>", f"<{lanes // 2} x i32>"

    def splat(value: int) -> str:
        return text.splat_literal(str(value), "i16", lanes)

    wide = f.temp(f"zext <{lanes} x i8> {f.name(high)} to {halves}")
    upper = f.temp(f"shl {halves} {wide}, {splat(LOWER)}")
    # The byte of two nibbles three times in a word: each has its mantissa at the end of its half, and its
    # sign at the beginning.
    pairs = f.temp(f"zext <{lanes // 2} x i8> {f.name(low)} to {words}")
    both = pairs
    for places in (12, 24):
        moved = f.temp(f"shl {words} {pairs}, {text.splat_literal(str(places), 'i32', lanes // 2)}")
        both = f.temp(f"or {words} {both}, {moved}")
    spread = f.temp(f"bitcast {words} {both} to {halves}")
    bits = f.temp(f"or {halves} {upper}, {f.temp(f'and {halves} {spread}, {splat(NIBBLE_BITS)}')}")
    number = f.temp(f"or {halves} {bits}, {splat(BIASED)}")
    f.bind(inst.result, number)
