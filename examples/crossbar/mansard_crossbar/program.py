"""Programs: a product as bytes, with the codes of its weight, and how vectors are read for it.

::

    "XBAR"  u32 bytes of the header  header (JSON)  codes (K, N) i8  scales (N) f32

The header names the device's function, and for ``product`` has the op, as `mansard.ir.serialise` codes it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mansard import dims
from mansard.dims import evaluate, representative
from mansard.ir.graph import Graph
from mansard.ir.interpreter.graph import load
from mansard.ir.ops import Generic
from mansard.ir.region import symbols
from mansard.ir.serialise import Reader, Writer
from mansard.ir.types import IndexMap
from mansard_crossbar.model import Model
from mansard_crossbar.tiles import Array, Weight, write_cells

FORMAT = "crossbar-program"
_HEAD = struct.Struct("<4sI")


@dataclass(frozen=True)
class Product:
    """A product of a value with a constant: ``weight`` is the operand that is one."""

    op: Generic
    weight: int

    @property
    def outputs(self) -> list[int]:
        """The parallel dims that walk the weight alone: its columns."""
        mine = self.walked(self.weight) - self.walked(1 - self.weight)
        return [d for d in range(self.op.rank) if d in mine]

    def walked(self, operand: int) -> set[int]:
        """The dims that an operand is read along."""
        index_map = self.op.maps[operand] or IndexMap()
        return {d for r in index_map.results for d, _ in r.terms}

    @property
    def vectors(self) -> list[int]:
        """The other parallel dims: one vector for each of their points."""
        return [d for d in range(self.op.rank) if d not in self.outputs]

    def size(self, axes: Sequence[int]) -> int:
        """The product of extents, of typical size where they vary."""
        return representative(dims.product(self.op.extents[d] for d in axes))

    def elements(self, data: Array, operand: int, order: Sequence[int], sizes: Mapping[str, int]) -> Array:
        """An operand at all points of dims in an order."""
        index_map, extents = self.op.maps[operand], self.op.extents
        assert index_map is not None
        shape = [evaluate(extents[d], sizes) for d in order]
        grid = dict(zip(order, np.ix_(*map(range, shape)), strict=True))
        places, inside = [], np.ones((1,) * len(order), bool)
        for result, size in zip(index_map.results, data.shape, strict=True):
            place = np.full((1,) * len(order), evaluate(result.offset, sizes))
            for d, c in result.terms:
                place = place + grid[d] * evaluate(c, sizes)
            inside = inside & (place >= 0) & (place < size)
            places.append(np.clip(place, 0, size - 1))
        return np.asarray(np.broadcast_to(np.where(inside, data[tuple(places)], 0), shape))


def product_of(graph: Graph) -> Product:
    """The product that a region is."""
    (op,) = (op for op in graph.ops if isinstance(op, Generic))
    return Product(op, [v in graph.constants for v in op.inputs].index(True))


def write_program(graph: Graph, chip: Model) -> bytes:
    """A region with one product as a program."""
    product, writer = product_of(graph), Writer()
    value = product.op.inputs[product.weight]
    order = (*product.op.reduced, *product.outputs)
    data = product.elements(load(value, graph.constants[value]), product.weight, order, {})
    depth = int(np.prod(data.shape[: len(product.op.reduced)]))
    cells = write_cells(data.reshape(depth, -1), chip)
    header = {
        "function": "product", "op": writer.op(product.op), "weight": product.weight,
        "parameters": list(symbols(graph)), "shape": list(cells.codes.shape),
    }  # fmt: skip
    header |= {"values": writer.values(), "dims": writer.contracts()}
    return encode(header) + cells.codes.tobytes() + cells.scales.tobytes()


def encode(header: Mapping[str, Any]) -> bytes:
    """A program without cells."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return _HEAD.pack(b"XBAR", len(text)) + text


def decode(code: bytes | memoryview) -> tuple[Mapping[str, Any], Product | None, Weight | None]:
    """Header, product and cells of a program; raises ValueError for other bytes."""
    data = bytes(code)
    if len(data) < _HEAD.size or data[:4] != b"XBAR":
        raise ValueError("it does not begin as one")
    end = _HEAD.size + _HEAD.unpack_from(data)[1]
    header = json.loads(data[_HEAD.size : end])
    if header["function"] != "product":
        return header, None, None
    op = Reader(header["dims"], header["values"]).op(header["op"])
    assert isinstance(op, Generic)
    depth, outputs = header["shape"]
    codes = np.frombuffer(data, np.int8, depth * outputs, end).reshape(depth, outputs)
    scales = np.frombuffer(data, np.float32, outputs, end + codes.size)
    return header, Product(op, header["weight"]), Weight(codes, scales)
