"""Fourier transforms of real numbers, as products with tables of cosines and sines."""

from __future__ import annotations

import math

import numpy as np

from mansard.dims import DimLike
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.tflite.entries import Complex, Entry
from mansard.frontends.tflite.graph import GraphImporter
from mansard.frontends.tflite.node import Node
from mansard.frontends.tflite.table import rule
from mansard.ir.types import Linear

MAX_LENGTH = 4096


@rule("RFFT2D")
def rfft_2d(g: GraphImporter, node: Node) -> Complex:
    """The transform of the last two axes, of which the last keeps the first half of its bins."""
    x, (rows, columns) = node.tensor(0), node.ints(1)
    if not 0 < max(rows, columns) <= MAX_LENGTH:
        raise node.fail(f"a transform of {rows} by {columns} numbers; up to {MAX_LENGTH} are supported")
    x = _fitted(g, _fitted(g, x, x.rank - 2, rows), x.rank - 1, columns)
    last = x.rank - 1
    cosines, sines = _tables(columns, columns // 2 + 1)
    real, imaginary = _along(g, x, cosines, last), _along(g, x, -sines, last)
    if rows == 1:
        return Complex(real, imaginary)
    cosines, sines = _tables(rows, rows)
    axis = x.rank - 2
    rc, rs = _along(g, real, cosines, axis), _along(g, real, sines, axis)
    ic, is_ = _along(g, imaginary, cosines, axis), _along(g, imaginary, sines, axis)
    return Complex(g.map(lambda a, b: a + b, rc, is_), g.map(lambda a, b: a - b, ic, rs))


def _tables(length: int, bins: int) -> tuple[np.ndarray, np.ndarray]:
    angles = 2 * math.pi * (np.outer(np.arange(bins), np.arange(length)) % length) / length
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _fitted(g: GraphImporter, x: Tensor, axis: int, length: int) -> Tensor:
    """An axis cut off or filled with zeros."""
    extent = x.shape[axis]
    if isinstance(extent, int) and extent < length:
        high: list[DimLike] = [0] * x.rank
        high[axis] = length - extent
        return g.pad(x, [0] * x.rank, high)
    return g.part(x, axis, 0, length)


def _along(g: GraphImporter, x: Tensor, table: np.ndarray, axis: int) -> Tensor:
    """A product with a table (bins, length) along one axis."""
    bins = g.literal(table)
    body = g.body((*x.shape[:axis], table.shape[0], *x.shape[axis + 1 :], x.shape[axis]))
    linear = [Linear.dim(i) for i in range(x.rank)]
    linear[axis] = Linear.dim(x.rank)
    a, b = g.read(body, x, linear), g.read(body, bins, [Linear.dim(axis), Linear.dim(x.rank)])
    return g.finish(body, a * b, 1, "add")


def _complex(node: Node) -> Complex:
    entry: Entry | None = node.inputs[0]
    if not isinstance(entry, Complex):
        raise node.fail("complex numbers that no transform computes")
    return entry


@rule("COMPLEX_ABS")
def complex_abs(g: GraphImporter, node: Node) -> Tensor:
    """The magnitude of complex numbers."""
    z = _complex(node)
    return g.map(lambda a, b: (a * a + b * b).sqrt(), z.real, z.imaginary)


@rule("REAL")
def real_part(g: GraphImporter, node: Node) -> Tensor:
    """The real part of complex numbers."""
    return _complex(node).real


@rule("IMAG")
def imaginary_part(g: GraphImporter, node: Node) -> Tensor:
    """The imaginary part of complex numbers."""
    return _complex(node).imaginary
