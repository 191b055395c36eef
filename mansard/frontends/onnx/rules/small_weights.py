"""Products with weights of a few bits: those of ONNX Runtime's quantisers for language models, and those that
DequantizeLinear makes floats of."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.onnx.graph import GraphImporter
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.rules.microsoft import MICROSOFT
from mansard.frontends.onnx.rules.quantisation import as_bytes
from mansard.frontends.onnx.table import rule
from mansard.hal.small_integers import unpack_nibbles
from mansard.ir.quantised_weight import CODES, GroupFactor, QuantisedWeight, product
from mansard.ir.scalar import Arg, Cast
from mansard.ir.types import Constant, IndexMap, Linear, Value

Array = npt.NDArray[Any]
MIN_ELEMENTS = 1 << 14
"""Smaller matrices become floats, as where a model is quantised (`mansard.quantize`)."""
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
    rank = a.rank
    whole = g.pad(a, (0,) * rank, (*(0,) * (rank - 1), blocks * block - depth), 0.0)
    result = product_with(g, whole, _weight(g, node, rows, blocks, block, bits))
    bias = node.optional(5)
    result = result if bias is None else g.map(lambda e, b: e + b.cast(F32), result, bias)
    return g.cast(result, a.dtype)


def product_with(g: GraphImporter, a: Tensor, weight: QuantisedWeight) -> Tensor:
    """A (…, K) times the transpose of a matrix (N, K) of small integers, in f32."""
    rank, rows = a.rank, weight.codes.type.shape[0]
    extents = (*a.shape[:-1], rows)
    index_map = IndexMap((*(Linear.dim(d) for d in range(rank - 1)), Linear.dim(rank)))
    read = Arg(0, a.dtype) if a.dtype is F32 else Cast(Arg(0, a.dtype), F32)
    out = g.builder.value("product", extents, F32)
    operands = ((g.value(a), index_map, 1),)
    return g.append(product(weight, operands, read, extents, Linear.dim(rank - 1), out))


def stored_weight(g: GraphImporter, node: Node, *, transposed: bool) -> QuantisedWeight | None:
    """The second operand of a product as small integers (N, K) with scales for groups of K, if it is
    dequantised from a stored matrix (K, N), or (N, K) where ``transposed``; None for any other, for small
    ones, and where the first operand is dequantised too: products of integers are better then."""
    a, found = node.tensor(0), g.dequantised.get(node.tensor(1))
    if found is None or a in g.dequantised or a.rank < 1 or not a.dtype.is_float:
        return None
    codes, scale, zero = found.codes, found.scale, found.zero
    parts = [codes, scale, *((zero,) if zero is not None else ())]
    if codes.rank != 2 or codes.dtype not in CODES or not all(map(_is_stored, parts)):
        return None
    rows, depth = codes.shape if transposed else codes.shape[::-1]
    if not isinstance(rows, int) or not isinstance(depth, int) or rows * depth < MIN_ELEMENTS:
        return None
    along_depth = found.axis == (1 if transposed else 0)
    block = found.block if found.block and along_depth else depth
    if (found.block and not along_depth) or (scale.rank == 1 and along_depth) or depth % block:
        return None
    few = (rows, depth // block)

    def oriented(tensor: Tensor, shape: tuple[int, int]) -> Array:
        array = _elements(tensor)
        if array.ndim < 2:
            array = array.reshape(-1, 1)
        elif not transposed:
            array = array.T
        return np.ascontiguousarray(np.broadcast_to(array, shape)).astype(tensor.dtype.numpy, copy=False)

    def constant(part: str, tensor: Tensor, shape: tuple[int, int]) -> Value:
        load = functools.partial(oriented, tensor, shape)
        name = f"{codes.name}.{part}"
        return g.builder.constant(name, Constant(name, load), shape, tensor.dtype)

    zeros = None
    if zero is not None:
        zeros = GroupFactor(constant("zeros", as_bytes(zero), few), block)
    stored = constant("codes", codes, (rows, depth))
    return QuantisedWeight(stored, (GroupFactor(constant("scales", scale, few), block),), zeros)


def _is_stored(tensor: Tensor) -> bool:
    return tensor.constant is not None or (tensor.content is not None and not tensor.symbolic)


def _elements(tensor: Tensor) -> Array:
    return tensor.constant.load() if tensor.constant is not None else np.asarray(tensor.content)


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
