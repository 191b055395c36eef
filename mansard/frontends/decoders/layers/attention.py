"""Self-attention over a cache of keys and values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.decoders.architecture import AttentionLayer
from mansard.frontends.decoders.layers.cache_rows import cache_rows
from mansard.frontends.decoders.layers.norm import NormSettings
from mansard.frontends.decoders.layers.pages import PAGE, page_of
from mansard.frontends.decoders.layers.writer import Writer, add, cast, mul
from mansard.frontends.decoders.rotary import Rotary
from mansard.ir.scalar import Apply, Arg, Cast, Const, Gather, Index, Scalar
from mansard.ir.types import Constant, IndexMap, Linear, Location, Value


@dataclass(frozen=True)
class Sequence:
    """Where the new tokens of a call stand: ``positions`` (B) is the position of the first of ``length`` new
    tokens of each of ``batch`` sequences. The caches hold ``capacity`` positions of ``slots`` sequences;
    ``slot`` (B) says which these are, None: all, in order. ``last`` (1) is the index of the last new token
    that is not padding; None: all are tokens. With ``proposals``, only the end of the call knows ``last``:
    layers whose states cannot go back append to ``kept`` what updates them then. With a ``table`` (B,
    ceil(capacity / PAGE)) the caches are ``pages`` pages that all sequences share, and it says which of them
    are whose. With ``heads_first`` the caches have all positions of one head (of a sequence, or of a page)
    behind each other."""

    batch: int
    length: DimLike
    capacity: int
    positions: Value
    slots: int
    slot: Value | None = None
    last: Value | None = None
    proposals: bool = False
    kept: list[Callable[[Value], None]] = field(default_factory=list)
    table: Value | None = None
    pages: int | None = None
    heads_first: bool = False

    @property
    def cache_shape(self) -> tuple[int, int]:
        """The dims of the caches without those of a row: whose or which, and positions."""
        return (self.slots, self.capacity) if self.pages is None else (self.pages, PAGE)


class Attention:
    """Writes the attention layers of a decoder; rotations and masks that layers share are written once."""

    def __init__(self, writer: Writer, sequence: Sequence, cache_dtype: DType, norm: NormSettings) -> None:
        self.writer, self.sequence, self.norm = writer, sequence, norm
        self.cache_dtype = cache_dtype
        self._rotations: dict[Rotary, tuple[Value, Value]] = {}
        self._masks: dict[int | None, Value] = {}
        self._rows: dict[int | None, Value] = {}

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
        weighted = writer.builder.attention(
            query, keys, values, self._mask(layer.window), layer.scale, softcap=layer.softcap
        )
        width = layer.heads * layer.head_dim
        merged = writer.builder.reshape(self._permuted(weighted, "heads"), (x.type.shape[0], width))
        output = f"{place}.{layer.output_name}"
        bias = writer.weight(f"{output}.bias", (hidden,)) if layer.output_bias else None
        return writer.linear(
            merged, writer.matrix(f"{output}.weight", (hidden, width)), bias, layer.output_name
        )

    def _heads(self, x: Value, layer: AttentionLayer, place: str, which: str, heads: int) -> Value:
        """Queries, keys or values as (B, S, heads, head_dim): projected, normalised and rotated."""
        writer, s = self.writer, self.sequence
        hidden = x.type.shape[1]
        assert isinstance(hidden, int)
        width = heads * layer.head_dim
        name = f"{which}_proj"
        bias = writer.weight(f"{place}.{name}.bias", (width,)) if layer.bias else None
        flat = writer.linear(x, writer.matrix(f"{place}.{name}.weight", (width, hidden)), bias, name)
        result = writer.builder.reshape(flat, (s.batch, s.length, heads, layer.head_dim))
        if which == "v":
            return result
        if layer.normalised_heads:
            norm = layer.norm_names[which == "k"]
            gain = writer.weight(f"{place}.{norm}.weight", (layer.head_dim,))
            result = self.norm.write(writer, result, gain)
        return result if layer.rotary is None else self.rotated(result, layer.rotary)

    def rotated(self, x: Value, rotary: Rotary) -> Value:
        """``x`` (B, S, heads, head_dim) with pairs (x[i], x[i + dim/2]) rotated; elements from
        ``rotary.dim`` on stay as they are."""
        builder, s = self.writer.builder, self.sequence
        heads, head_dim = x.type.shape[2:]
        half = rotary.dim // 2
        assert isinstance(head_dim, int)
        cos, sin = self._rotation(rotary)
        kept = None
        if rotary.dim != head_dim:
            kept = self._elements(x, rotary.dim, head_dim - rotary.dim)
            x = self._elements(x, 0, rotary.dim)
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
        rotated = builder.reshape(rotated, x.type.shape)
        return rotated if kept is None else builder.concat([rotated, kept], 3)

    def _elements(self, x: Value, first: int, count: int) -> Value:
        """``count`` elements of each head from the ``first`` on."""
        read = IndexMap((Linear.dim(0), Linear.dim(1), Linear.dim(2), Linear.dim(3, 1, first)))
        shape = (*x.type.shape[:3], count)
        return self.writer.builder.generic((x,), (read,), shape, Arg(0, x.type.dtype), name="elements")

    def _rotation(self, rotary: Rotary) -> tuple[Value, Value]:
        """Cosines and sines (B, S, dim / 2) of the new tokens' angles."""
        if rotary not in self._rotations:
            frequencies = rotary.frequencies()
            table = self.writer.builder.constant(
                "frequencies", Constant.of(frequencies, "rotary.frequencies"), frequencies.shape, DType.F32
            )
            self._rotations[rotary] = (
                self._angles(table, "cos", rotary.magnitude),
                self._angles(table, "sin", rotary.magnitude),
            )
        return self._rotations[rotary]

    def _angles(self, frequencies: Value, function: str, magnitude: float) -> Value:
        s = self.sequence
        position = add(Arg(0, DType.I64), Index(1))
        angle = mul(cast(position, DType.F32), Arg(1, DType.F32))
        turned: Scalar = Apply(function, (angle,), DType.F32)
        if magnitude != 1.0:
            turned = mul(turned, Const(magnitude, DType.F32))
        body = cast(turned, self.writer.dtype)
        return self.writer.builder.generic(
            (s.positions, frequencies),
            (IndexMap.of_dims((0,)), IndexMap.of_dims((2,))),
            (s.batch, s.length, frequencies.type.shape[0]),
            body,
            name=function,
        )

    def _cached(self, x: Value, name: str) -> Value:
        """The caches (B, heads, C, head_dim) of the sequences, with the new rows ``x`` (B, S, heads,
        head_dim) written into them.

        A cache of i8 has a scale for each row and head: the largest magnitude over 127.
        """
        heads, head_dim = x.type.shape[2:]
        assert isinstance(heads, int) and isinstance(head_dim, int)
        if self.cache_dtype is not DType.I8:
            rows = self.writer.cast(x, self.cache_dtype)
            return self._unpacked([self._written(rows, name)], lambda element: element)
        scales, codes = self._quantised(x)
        parts = [self._written(codes, name), self._written(scales, f"{name}.scales")]
        return self._unpacked(parts, lambda code, scale: mul(cast(code, DType.F32), scale))

    def _quantised(self, x: Value) -> tuple[Value, Value]:
        """Scales (B, S, heads, 1) f32 and codes (B, S, heads, head_dim) i8 of new rows."""
        builder = self.writer.builder
        b, s, heads, _ = x.type.shape
        magnitude = Apply("abs", (cast(Arg(0, x.type.dtype), DType.F32),), DType.F32)
        largest = builder.generic(
            (x,), (IndexMap.identity(4),), x.type.shape, magnitude, reduced=1, combiner="max", name="largest"
        )
        scales = self.writer.map([largest], lambda m: mul(m, Const(1 / 127, DType.F32)), "scales")
        scales = builder.reshape(scales, (b, s, heads, 1))

        def code(element: Scalar, scale: Scalar) -> Scalar:
            least = Const(1e-30, DType.F32)  # rows of zeros
            divided = Apply(
                "div", (cast(element, DType.F32), Apply("max", (scale, least), DType.F32)), DType.F32
            )
            return Cast(Apply("round", (divided,), DType.F32), DType.I8)

        return scales, self.writer.map([x, scales], code, "codes")

    def _written(self, x: Value, name: str) -> Value:
        """The cache of a name with the new rows ``x`` (B, S, heads, D) in it: (*cache_shape, heads, D), or
        with ``heads_first`` (slots or pages, heads, positions, D)."""
        builder, s = self.writer.builder, self.sequence
        heads, depth = x.type.shape[2:]
        assert isinstance(heads, int) and isinstance(depth, int)
        slots, positions = s.cache_shape
        rows = self._cache_rows(heads if s.heads_first else None)
        shape = (slots, heads, positions, depth) if s.heads_first else (slots, positions, heads * depth)
        state = builder.state(name, shape, x.type.dtype)
        updated = builder.scatter(state, rows, builder.reshape(x, (rows.type.shape[0], shape[-1])))
        builder.update_state(state, updated)
        return updated if s.heads_first else builder.reshape(updated, (slots, positions, heads, depth))

    def _cache_rows(self, heads: int | None) -> Value:
        """Where the new tokens are written (`cache_rows`), or each of their heads: at no layer's location,
        since all layers read it, whatever devices these are placed on."""
        if heads not in self._rows:
            builder, s = self.writer.builder, self.sequence
            here, builder.location = builder.location, Location()
            self._rows[heads] = cache_rows(builder, s.length, s.positions, s.slot, s.table, heads)
            builder.location = here
        return self._rows[heads]

    def _unpacked(self, parts: list[Value], element: Callable[..., Scalar]) -> Value:
        """(B, heads, C, D) in the type of the activations: ``element`` of the elements of ``parts``, caches
        as `_written` gives them, or of one element for each head and position."""
        s = self.sequence
        axes = (0, 1, 2) if s.heads_first else (0, 2, 1)
        heads, depth = parts[0].type.shape[axes[1]], parts[0].type.shape[3]
        inputs = [*parts]
        maps: list[IndexMap | None] = []
        if s.slot is None and s.table is None:
            read = [IndexMap.of_dims((*axes, None if self._single(p, depth) else 3)) for p in parts]
            maps.extend(read)
            elements: list[Scalar] = [Arg(number, part.type.dtype) for number, part in enumerate(parts)]
        else:
            maps.extend([None] * len(parts))
            if s.table is not None:
                where = page_of(len(parts), Index(0), Index(2))
                inputs.append(s.table)
                maps.append(None)
            else:
                assert s.slot is not None
                where = (Arg(len(parts), DType.I64), Index(2))
                inputs.append(s.slot)
                maps.append(IndexMap.of_dims((0,)))
            elements = []
            for number, part in enumerate(parts):
                last = Const(0, DType.I64) if self._single(part, depth) else Index(3)
                row = (where[0], Index(1), where[1])
                elements.append(Gather(number, (*(row[axis] for axis in axes), last), part.type.dtype))
        body = cast(element(*elements), self.writer.dtype)
        shape = (s.batch, heads, s.capacity, depth)
        return self.writer.builder.generic(inputs, maps, shape, body, name="cached")

    @staticmethod
    def _single(part: Value, depth: DimLike) -> bool:
        """Whether a part has one element for each head."""
        return part.type.shape[3] == 1 and depth != 1

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
