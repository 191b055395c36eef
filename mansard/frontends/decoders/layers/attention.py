"""Self-attention over a cache of keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.errors import ImportModelError
from mansard.frontends.decoders.architecture import AttentionLayer
from mansard.frontends.decoders.layers.norm import NormSettings
from mansard.frontends.decoders.layers.writer import Writer, add, cast, mul
from mansard.frontends.decoders.rotary import Rotary
from mansard.ir.scalar import Apply, Arg, Const, Gather, Index, Scalar
from mansard.ir.types import Constant, IndexMap, Linear, Value


@dataclass(frozen=True)
class Sequence:
    """Where the new tokens of a call stand: ``positions`` (B) is the position of the first of ``length`` new
    tokens of each of ``batch`` sequences, ``rows`` (B * S, 2) the cache row of each new token. The caches
    hold ``capacity`` positions of ``slots`` sequences; ``slot`` (B) says which these are, None: all, in
    order."""

    batch: int
    length: DimLike
    capacity: int
    positions: Value
    rows: Value
    slots: int
    slot: Value | None = None


class Attention:
    """Writes the attention layers of a decoder; rotations and masks that layers share are written once."""

    def __init__(self, writer: Writer, sequence: Sequence, cache_dtype: DType, norm: NormSettings) -> None:
        self.writer, self.sequence, self.norm = writer, sequence, norm
        self.cache_dtype = cache_dtype
        self._rotations: dict[Rotary, tuple[Value, Value]] = {}
        self._masks: dict[int | None, Value] = {}

    def write(self, x: Value, layer: AttentionLayer, place: str) -> Value:
        """The attention's output projection, (rows, hidden), for x (rows, hidden)."""
        writer = self.writer
        hidden = x.type.shape[1]
        assert isinstance(hidden, int)
        writer.at(place)
        q = self._heads(x, layer, place, "q", layer.heads)
        k = self._heads(x, layer, place, "k", layer.key_heads)
        v = self._heads(x, layer, place, "v", layer.key_heads)
        writer.at(place)
        keys = self._cached(k, f"{place}.keys")
        values = self._cached(v, f"{place}.values")
        query = self._permuted(q, "query")
        if layer.softcap is not None:
            raise ImportModelError(f"{place}: attention with a soft cap of its scores is not supported")
        weighted = writer.builder.attention(query, keys, values, self._mask(layer.window), layer.scale)
        width = layer.heads * layer.head_dim
        merged = writer.builder.reshape(self._permuted(weighted, "heads"), (x.type.shape[0], width))
        bias = writer.weight(f"{place}.o_proj.bias", (hidden,)) if layer.output_bias else None
        return writer.linear(merged, writer.weight(f"{place}.o_proj.weight", (hidden, width)), bias, "o_proj")

    def _heads(self, x: Value, layer: AttentionLayer, place: str, which: str, heads: int) -> Value:
        """Queries, keys or values as (B, S, heads, head_dim): projected, normalised and rotated."""
        writer, s = self.writer, self.sequence
        hidden = x.type.shape[1]
        assert isinstance(hidden, int)
        width = heads * layer.head_dim
        name = f"{which}_proj"
        bias = writer.weight(f"{place}.{name}.bias", (width,)) if layer.bias else None
        flat = writer.linear(x, writer.weight(f"{place}.{name}.weight", (width, hidden)), bias, name)
        result = writer.builder.reshape(flat, (s.batch, s.length, heads, layer.head_dim))
        if which == "v":
            return result
        if layer.normalised_heads:
            gain = writer.weight(f"{place}.{which}_norm.weight", (layer.head_dim,))
            result = self.norm.write(writer, result, gain)
        return result if layer.rotary is None else self._rotated(result, layer.rotary)

    def _rotated(self, x: Value, rotary: Rotary) -> Value:
        """Pairs (x[i], x[i + dim/2]) rotated; elements from ``rotary.dim`` on stay as they are."""
        builder, s = self.writer.builder, self.sequence
        heads, head_dim = x.type.shape[2:]
        half = rotary.dim // 2
        cos, sin = self._rotation(rotary)
        if rotary.dim != head_dim:
            raise ImportModelError(
                f"rotary embedding of {rotary.dim} of {head_dim} elements of a head is not supported"
            )
        pairs = builder.reshape(x, (s.batch, s.length, heads, 2, half))
        other = Linear(((3, -1),), 1)
        itself = IndexMap.identity(5)
        turned = IndexMap((Linear.dim(0), Linear.dim(1), Linear.dim(2), other, Linear.dim(4)))
        table = IndexMap((Linear.dim(0), Linear.dim(1), Linear.dim(4)))
        dtype = self.writer.dtype
        first, second = Arg(0, dtype), Arg(1, dtype)
        lower = Apply("eq", (Index(3), Const(0, DType.I64)), DType.BOOL)
        signed = Apply("select", (lower, Apply("neg", (second,), dtype), second), dtype)
        body = add(mul(first, Arg(2, dtype)), mul(signed, Arg(3, dtype)))
        rotated = builder.generic(
            (pairs, pairs, cos, sin), (itself, turned, table, table), pairs.type.shape, body, name="rotated"
        )
        return builder.reshape(rotated, x.type.shape)

    def _rotation(self, rotary: Rotary) -> tuple[Value, Value]:
        """Cosines and sines (B, S, dim / 2) of the new tokens' angles."""
        if rotary not in self._rotations:
            frequencies = rotary.frequencies()
            table = self.writer.builder.constant(
                "frequencies", Constant.of(frequencies, "rotary.frequencies"), frequencies.shape, DType.F32
            )
            self._rotations[rotary] = (self._angles(table, "cos"), self._angles(table, "sin"))
        return self._rotations[rotary]

    def _angles(self, frequencies: Value, function: str) -> Value:
        s = self.sequence
        position = add(Arg(0, DType.I64), Index(1))
        angle = mul(cast(position, DType.F32), Arg(1, DType.F32))
        body = cast(Apply(function, (angle,), DType.F32), self.writer.dtype)
        return self.writer.builder.generic(
            (s.positions, frequencies),
            (IndexMap.of_dims((0,)), IndexMap.of_dims((2,))),
            (s.batch, s.length, frequencies.type.shape[0]),
            body,
            name=function,
        )

    def _cached(self, x: Value, name: str) -> Value:
        """The caches (B, heads, C, head_dim) of the sequences, with the new rows ``x`` (B, S, heads,
        head_dim) written into them."""
        builder, s = self.writer.builder, self.sequence
        heads, head_dim = x.type.shape[2:]
        assert isinstance(heads, int) and isinstance(head_dim, int)
        width = heads * head_dim
        state = builder.state(name, (s.slots, s.capacity, width), self.cache_dtype)
        rows = builder.reshape(self.writer.cast(x, self.cache_dtype), (s.rows.type.shape[0], width))
        updated = builder.scatter(state, s.rows, rows)
        builder.update_state(state, updated)
        whole = builder.reshape(updated, (s.slots, s.capacity, heads, head_dim))
        if s.slot is None:
            return self.writer.cast(self._permuted(whole, "cached"), self.writer.dtype)
        body = cast(
            Gather(1, (Arg(0, DType.I64), Index(2), Index(1), Index(3)), self.cache_dtype), self.writer.dtype
        )
        shape = (s.batch, heads, s.capacity, head_dim)
        return builder.generic((s.slot, whole), (IndexMap.of_dims((0,)), None), shape, body, name="cached")

    def _permuted(self, x: Value, name: str) -> Value:
        """(B, S, heads, D) as (B, heads, S, D), and back."""
        a, b, c, d = x.type.shape
        swap = IndexMap.of_dims((0, 2, 1, 3))
        return self.writer.builder.generic((x,), (swap,), (a, c, b, d), Arg(0, x.type.dtype), name=name)

    def _mask(self, window: int | None) -> Value:
        """Bools (B, 1, S, C): whether a new token attends to a position of the cache."""
        if window not in self._masks:
            s = self.sequence
            position = add(Arg(0, DType.I64), Index(2))
            kept: Scalar = Apply("le", (Index(3), position), DType.BOOL)
            if window is not None:
                first = Apply("sub", (position, Const(window, DType.I64)), DType.I64)
                kept = Apply("and", (kept, Apply("gt", (Index(3), first), DType.BOOL)), DType.BOOL)
            self._masks[window] = self.writer.builder.generic(
                (s.positions,),
                (IndexMap.of_dims((0,)),),
                (s.batch, 1, s.length, s.capacity),
                kept,
                name="visible",
            )
        return self._masks[window]
