"""Products with weights of a few bits, as ONNX Runtime's quantisers write them for language models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.onnx.graph import GraphImporter
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.rules.microsoft import MICROSOFT
from mansard.frontends.onnx.table import rule
from mansard.hal.small_integers import unpack_nibbles
from mansard.ir.quantised_weight import GroupFactor, QuantisedWeight, product
from mansard.ir.scalar import Arg, Cast
from mansard.ir.types import Constant, IndexMap, Linear, Value

Array = npt.NDArray[Any]
F32, U8 = DType.F32, DType.U8
_CODES = {(4, False): DType.U4, (8, False): DType.U8, (4, True): DType.I4, (8, True): DType.I8}
"""Element types by bits, and whether zero stands in the middle of their range."""


@rule("MatMulNBits", domain=MICROSOFT)
def matmul_n_bits(g: GraphImporter, node: Node) -> Tensor:
    """A (…, K) times the transpose of a matrix (N, K) of 4 or 8 bits, with a scale and perhaps a zero point
    for every ``block_size`` of K; the matrix stays as it is stored."""
    a, bits, block = node.tensor(0), node.integer("bits", 4), node.integer("block_size")
    depth, rows = node.integer("K"), node.integer("N")
    if bits not in (4, 8):
        raise node.fail(f"weights of {bits} bits; 4 and 8 are supported")
    if node.optional(4) is not None:
        raise node.fail("groups that are not consecutive (g_idx)")
    blocks = -(-depth // block)
    weight = _weight(g, node, rows, blocks, block, bits)
    rank = a.rank
    x = g.value(g.pad(a, (0,) * rank, (*(0,) * (rank - 1), blocks * block - depth), 0.0))  # whole blocks
    extents = (*a.shape[:-1], rows)
    index_map = IndexMap((*(Linear.dim(d) for d in range(rank - 1)), Linear.dim(rank)))
    read = Arg(0, a.dtype) if a.dtype is F32 else Cast(Arg(0, a.dtype), F32)
    out = g.builder.value("product", extents, F32)
    result = g.append(product(weight, ((x, index_map, 1),), read, extents, Linear.dim(rank - 1), out))
    bias = node.optional(5)
    result = result if bias is None else g.map(lambda e, b: e + b.cast(F32), result, bias)
    return g.cast(result, a.dtype)


def _weight(g: GraphImporter, node: Node, rows: int, blocks: int, block: int, bits: int) -> QuantisedWeight:
    """The constants of a matrix. Zero points are stored like the matrix, or as real numbers; without them
    zero stands in the middle."""
    zero_points = node.optional(3)
    dtype = _CODES[bits, zero_points is None]
    packed, scales = _load(node, 1), _load(node, 2)
    middle = np.uint8(1 << (bits - 1))

    def codes() -> Array:
        stored = _unpacked(packed().reshape(rows, -1), bits)
        if zero_points is not None:
            return stored.view(dtype.numpy)
        return (stored - middle).view(dtype.numpy)  # wraps: the sign is in all bits

    def constant(part: str, shape: tuple[int, ...], dtype: DType, load: Callable[[], Array]) -> Value:
        name = f"{node.proto.input[1]}.{part}"
        return g.builder.constant(name, Constant(name, load), shape, dtype)

    few = (rows, blocks)
    scale = constant("scales", few, node.tensor(2).dtype, lambda: scales().reshape(few))
    zeros = None
    if zero_points is not None:
        points = _load(node, 3)
        if zero_points.dtype is U8:
            value = constant(
                "zeros",
                few,
                U8,
                lambda: np.ascontiguousarray(_unpacked(points().reshape(rows, -1), bits)[:, :blocks]),
            )
        else:
            value = constant("zeros", few, zero_points.dtype, lambda: points().reshape(few))
        zeros = GroupFactor(value, block)
    stored = constant("codes", (rows, blocks * block), dtype, codes)
    return QuantisedWeight(stored, (GroupFactor(scale, block),), zeros)


def _load(node: Node, number: int) -> Callable[[], Array]:
    """The elements of an operand that has to be known, read when they are asked for."""
    tensor = node.tensor(number)
    if tensor.constant is not None:
        return tensor.constant.load
    content = node.numbers(number)
    return lambda: content


def _unpacked(packed: Array, bits: int) -> Array:
    """Bytes, or the halves of bytes, lower ones first."""
    return packed if bits == 8 else unpack_nibbles(packed)
