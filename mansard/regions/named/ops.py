"""The named ops.

One meaning for all: inputs that have an encoding (`mansard.regions.named.graph.Encoding`) are decoded, the
op computes in real numbers, its result is clamped to ``clamp`` and, where the output has an encoding, encoded
as the nearest integer (ties to even) that its type has. Integers without an encoding are computed with as
they are.
This is how TFLite, QNN and ONNX's QDQ form see quantised ops; a writer for integer instructions (TOSA) makes
``scale(x) * scale(w) / scale(y)`` of the encodings.

Images are channels-last unless ``channels_first``: ``(N, spatial…, C)`` with weights
``(O, window…, C / groups)``, else ``(N, C, spatial…)`` with ``(O, C / groups, window…)``.
Raising gives channels-last ops, and `mansard.regions.named.layout` the other form.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mansard.ir.ops import Op
from mansard.ir.types import Value


@dataclass(frozen=True, eq=False)
class NamedOp:
    """An op of a NamedGraph, with one result."""

    inputs: tuple[Value, ...]
    output: Value
    sources: frozenset[Op] = field(default=frozenset(), kw_only=True)
    """The ops of the Graph that it computes, or computes a part of."""
    clamp: tuple[float, float] | None = field(default=None, kw_only=True)
    """Bounds that the result is clamped to, as real numbers; either may be infinite."""

    @property
    def name(self) -> str:
        """What the op is called in reasons and listings."""
        return type(self).__name__


@dataclass(frozen=True, eq=False)
class Conv(NamedOp):
    """Convolution (cross-correlation) of ``inputs = (x, weights[, bias])`` over one or two spatial dims.

    Padding is with real zeros. ``groups`` equal to the channels of x is a depthwise convolution. The bias
    has one element for each output channel: f32, or i32 encoded with ``scale(x) * scale(weights)``. Without
    encodings 8-bit factors give i32 sums.
    """

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    """Elements before and behind each spatial dim."""
    groups: int = 1
    channels_first: bool = False


@dataclass(frozen=True, eq=False)
class MatMul(NamedOp):
    """``(B, M, K) @ (B, K, N)``, or without B, of ``inputs = (a, b[, bias])``; the bias is as that of `Conv`,
    with N elements. Without encodings 8-bit factors give i32 sums."""


@dataclass(frozen=True, eq=False)
class Pool(NamedOp):
    """The largest element (``max``) or the mean (``average``) of windows of x's spatial dims.

    Padding never is the largest element. The mean divides by all elements of the window, and
    counts padding as zeros.
    """

    kind: str
    window: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    channels_first: bool = False


@dataclass(frozen=True, eq=False)
class Reduce(NamedOp):
    """Elements along ``axes`` combined, and these dims kept with extent 1.

    ``kind`` is ``mean`` or a combiner (`mansard.ir.combiners.COMBINERS`): ``argmin`` and ``argmax`` have one
    axis and give i64 indices.
    """

    kind: str
    axes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Softmax(NamedOp):
    """``exp(x - max) / sum(exp(x - max))`` along one axis."""

    axis: int


@dataclass(frozen=True, eq=False)
class Elementwise(NamedOp):
    """A scalar op (`mansard.ir.scalar_ops`), or ``cast`` or ``bitcast`` to the output's type, on tensors of
    the output's rank, of which extents of 1 are broadcast.

    Functions that a graph spells out have names of their own: ``sigmoid``, ``hardsigmoid``, ``hardswish``,
    ``silu`` and ``gelu`` (`mansard.regions.named.functions`).
    """

    op: str

    @property
    def name(self) -> str:
        """The scalar op's name."""
        return self.op


@dataclass(frozen=True, eq=False)
class Recode(NamedOp):
    """The same real numbers in another encoding: quantisation (from f32), dequantisation (to f32) or both."""


@dataclass(frozen=True, eq=False)
class Transpose(NamedOp):
    """Dim i of the result is dim ``permutation[i]`` of x."""

    permutation: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Reshape(NamedOp):
    """The same elements in row-major order, in the output's shape."""


@dataclass(frozen=True, eq=False)
class Broadcast(NamedOp):
    """Dims of extent 1 repeated to the output's shape, which has the same rank."""


@dataclass(frozen=True, eq=False)
class Slice(NamedOp):
    """Every ``strides[i]``-th element along dim i from ``starts[i]`` on, as many as the output has. Strides
    are positive."""

    starts: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Pad(NamedOp):
    """``value`` put before and behind each dim: a real number, or an integer where x has no encoding."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    value: float | int | bool


@dataclass(frozen=True, eq=False)
class Concat(NamedOp):
    """Inputs one after another along ``axis``."""

    axis: int


@dataclass(frozen=True, eq=False)
class Gather(NamedOp):
    """Of ``inputs = (x, indices)`` the slices of x along ``axis`` at integer ``indices``, whose dims take the
    place of that axis. Indices are in range."""

    axis: int


@dataclass(frozen=True, eq=False)
class Resize(NamedOp):
    """Spatial dims of an image scaled to the output's.

    ``mode`` is ``nearest`` or ``linear``; ``coordinates`` says which point of x an output index stands
    for: ``half_pixel`` ``(i + 0.5) * in / out - 0.5``, ``align_corners`` ``i * (in - 1) / (out - 1)``,
    ``asymmetric`` ``i * in / out``. ``nearest`` takes the floor of it, with ``half_pixel``
    the nearest index, ties down.
    """

    mode: str
    coordinates: str
    channels_first: bool = False
