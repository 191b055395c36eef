"""Row reductions and accumulator-to-factor conversions of attention with cooperative matrices.

Devices with VK_NV_cooperative_matrix2 do both in registers. On others, matrices pass through workgroup
memory, where the position of each element is known.
"""

from __future__ import annotations

from collections.abc import Sequence

from mansard.codegen.kernel import KernelBuilder, KValue, matrix
from mansard.codegen.kernel_target import KernelTarget, MatrixShape
from mansard.dtypes import DType

IN_REGISTERS = frozenset({"matrix_reductions", "matrix_conversions"})
_VECTOR = 4
"""Elements of f32, or 32-bit words, of a vector in workgroup memory."""
_UPPER, _LOWER = -(1 << 16), (1 << 16) - 1


def scratch_vectors(shape: MatrixShape, keys: int, subgroups: int, target: KernelTarget) -> tuple[int, int]:
    """Vectors of workgroup memory for sums in f32, and for the factors converted from a block's
    exponentials."""
    if target.features >= IN_REGISTERS:
        return 0, 0
    cells = subgroups * shape.m
    return cells * shape.n // _VECTOR, cells * keys // (2 * _VECTOR)


def can_exchange(shape: MatrixShape, target: KernelTarget) -> bool:
    """Whether a target can convert sums of a shape to factors. Through memory, f16 needs a matrix cast, and
    so matrices of sums in f16; bf16 is packed from f32."""
    if target.features >= IN_REGISTERS:
        return True
    halves = any((s.m, s.n, s.accumulator) == (shape.m, shape.n, DType.F16) for s in target.matrices)
    return shape.n % (2 * _VECTOR) == 0 and (shape.operand is DType.BF16 or halves)


class Exchange:
    """Emits reductions of rows and factors for matrices of one shape."""

    def __init__(
        self, b: KernelBuilder, target: KernelTarget, shape: MatrixShape, keys: int, subgroups: int
    ) -> None:
        self.b, self.shape, self.keys = b, shape, keys
        self.in_registers = target.features >= IN_REGISTERS
        self.left = matrix.a_type(shape.operand, shape.m, shape.k)
        if self.in_registers:
            return
        self.size = target.subgroup[0]
        sums, factors = scratch_vectors(shape, keys, subgroups, target)
        self.sums = b.shared(DType.F32, sums, _VECTOR)
        self.factors = b.shared(DType.I32, factors, _VECTOR)
        self.lane, number = b.subgroup_place("subgroup_lane"), b.subgroup_place("subgroup_id")
        self.first_sum = b.mul(number, b.idx(sums // subgroups))
        self.first_factor = b.mul(number, b.idx(factors // subgroups))

    def reduce_rows(self, combiner: str, value: KValue) -> KValue:
        """Reduce every row and broadcast the result to all of its elements; a max may drop NaN."""
        b, shape = self.b, self.shape
        if self.in_registers:
            return matrix.reduce_rows(b, combiner, value)
        vectors = shape.n // _VECTOR
        matrix.store(b, self.sums, self.first_sum, b.idx(vectors), value)
        b.barrier("subgroup")
        with b.for_(self.lane, shape.m, self.size) as loop:
            line = b.add(self.first_sum, b.mul(loop.index, b.idx(vectors)))
            total: KValue | None = None
            for v in range(vectors):
                vector = b.load(self.sums, b.add(line, b.idx(v)))
                for element in (b.extract(vector, i) for i in range(_VECTOR)):
                    if total is None:
                        total = element
                    else:
                        total = b.larger(total, element) if combiner == "max" else b.add(total, element)
            assert total is not None
            for v in range(vectors):
                b.store(self.sums, b.add(line, b.idx(v)), b.splat(total, _VECTOR))
        b.barrier("subgroup")
        result = matrix.load(b, value.type, self.sums, self.first_sum, b.idx(vectors))
        b.barrier("subgroup")
        return result

    def as_factors(self, values: Sequence[KValue]) -> list[KValue]:
        """Neighbouring matrices of f32 sums as left factors of the operands' type."""
        b, shape = self.b, self.shape
        if self.in_registers:
            return [matrix.as_factor(b, v, "a", shape.operand) for v in values]
        stride = b.idx(self.keys // (2 * _VECTOR))
        places = [b.add(self.first_factor, b.idx(n * shape.n // (2 * _VECTOR))) for n in range(len(values))]
        for value, place in zip(values, places, strict=True):
            if shape.operand is DType.F16:
                halves = b.inst("cast", (value,), matrix.c_type(DType.F16, shape.m, shape.n))
                matrix.store(b, self.factors, place, stride, halves)
            else:
                self._store_bf16(value, place)
        b.barrier("subgroup")
        factors = [matrix.load(b, self.left, self.factors, place, stride) for place in places]
        b.barrier("subgroup")
        return factors

    def _store_bf16(self, value: KValue, place: KValue) -> None:
        """Rounds and packs eight elements at a time into words."""
        b, shape = self.b, self.shape
        vectors, pieces = shape.n // _VECTOR, shape.n // (2 * _VECTOR)
        matrix.store(b, self.sums, self.first_sum, b.idx(vectors), value)
        b.barrier("subgroup")
        with b.for_(self.lane, shape.m * pieces, self.size) as loop:
            row, piece = (b.binary(op, loop.index, b.idx(pieces)) for op in ("div", "rem"))
            start = b.add(self.first_sum, b.mul(loop.index, b.idx(2)))
            words = b.const(0, DType.I32, _VECTOR)
            for half in range(2):
                vector = b.load(self.sums, b.add(start, b.idx(half)))
                bits = b.bitcast(b.cast(b.cast(vector, DType.BF16), DType.F32), DType.I32)
                for pair in range(2):
                    low = b.binary("shr", b.extract(bits, 2 * pair), b.const(16, DType.I32))
                    low = b.binary("and", low, b.const(_LOWER, DType.I32))
                    high = b.binary("and", b.extract(bits, 2 * pair + 1), b.const(_UPPER, DType.I32))
                    words = b.insert(words, b.binary("or", low, high), 2 * half + pair)
            line = b.mul(row, b.idx(self.keys // (2 * _VECTOR)))
            b.store(self.factors, b.add(b.add(place, line), piece), words)
        b.barrier("subgroup")
