"""Short gated convolutions along the sequence (LFM2)."""

from __future__ import annotations

from mansard.dtypes import DType
from mansard.frontends.decoders.architecture import ShortConvolution
from mansard.frontends.decoders.layers.attention import Sequence
from mansard.frontends.decoders.layers.writer import Writer, add, cast, mul
from mansard.ir.scalar import Apply, Arg, Const, DimValue, Gather, Index, Scalar
from mansard.ir.types import IndexMap, Linear, Value


def short_convolution(
    writer: Writer, sequence: Sequence, x: Value, layer: ShortConvolution, place: str
) -> Value:
    """``out_proj(c * conv(b * x))`` for x (rows, hidden), whose projection by ``in_proj`` is (b, c, x).

    The last ``length - 1`` inputs of the convolution of each sequence are a state, (sequences, length - 1,
    hidden), up to the new token ``last``. Positions before the first are zeros, whatever the state holds.
    """
    return _ShortConvolution(writer, sequence, layer, place).write(x)


class _ShortConvolution:
    def __init__(self, writer: Writer, sequence: Sequence, layer: ShortConvolution, place: str) -> None:
        self.writer, self.builder, self.sequence = writer, writer.builder, sequence
        self.layer, self.place = layer, place
        self.history = layer.length - 1

    def write(self, x: Value) -> Value:
        writer, s = self.writer, self.sequence
        rows, hidden = x.type.shape
        assert isinstance(hidden, int)
        writer.at(self.place)
        projected = self._linear(x, "in_proj", 3 * hidden)
        gated = self._columns(projected, (0, 2), hidden, "convolved")
        joined = self._joined(self.builder.reshape(gated, (s.batch, s.length, hidden)))
        convolved = self._convolved(joined)
        weighed = self._weighed(projected, self.builder.reshape(convolved, (rows, hidden)))
        return self._linear(weighed, "out_proj", hidden)

    def _linear(self, x: Value, name: str, rows: int) -> Value:
        columns = x.type.shape[1]
        assert isinstance(columns, int)
        bias = self.writer.weight(f"{self.place}.{name}.bias", (rows,)) if self.layer.bias else None
        weight = self.writer.matrix(f"{self.place}.{name}.weight", (rows, columns))
        return self.writer.linear(x, weight, bias, name)

    def _columns(self, x: Value, parts: tuple[int, int], width: int, name: str) -> Value:
        """The product of two of the parts of ``width`` columns that ``x`` consists of."""
        maps = tuple(IndexMap((Linear.dim(0), Linear.dim(1, 1, part * width))) for part in parts)
        body = mul(Arg(0, x.type.dtype), Arg(1, x.type.dtype))
        return self.builder.generic((x, x), maps, (x.type.shape[0], width), body, name=name)

    def _joined(self, x: Value) -> Value:
        """The inputs before the new ones, then these: (B, length - 1 + S, hidden). Updates the state."""
        builder, s = self.builder, self.sequence
        hidden = x.type.shape[2]
        shape = (s.slots, self.history, hidden)
        state = builder.state(f"{self.place}.inputs", shape, self.writer.dtype)
        joined = builder.concat([self._before(state), x], 1)
        if s.proposals:
            s.kept.append(lambda last: self._keep(state, joined, last))
        else:
            self._keep(state, joined, s.last)
        return joined

    def _keep(self, state: Value, joined: Value, last: Value | None) -> None:
        """Update the state to the inputs up to the new token ``last``."""
        builder, s = self.builder, self.sequence
        if last is None:
            at: Scalar = add(DimValue(s.length), Index(1))
            inputs = [joined]
            maps: list[IndexMap | None] = [None]
        else:
            at = add(add(Arg(1, DType.I64), Const(1, DType.I64)), Index(1))
            inputs, maps = [joined, last], [None, IndexMap((Linear(),))]
        kept = builder.generic(
            inputs,
            maps,
            (s.batch, self.history, joined.type.shape[2]),
            Gather(0, (Index(0), at, Index(2)), self.writer.dtype),
            name="inputs",
        )
        if s.slot is not None:
            kept = builder.scatter(state, builder.reshape(s.slot, (s.batch, 1)), kept)
        builder.update_state(state, kept)

    def _before(self, state: Value) -> Value:
        """The state of the batch's sequences, (B, length - 1, hidden), zero before their beginnings."""
        s, dtype = self.sequence, self.writer.dtype
        inputs = [s.positions]
        maps: list[IndexMap | None] = [IndexMap.of_dims((0,))]
        if s.slot is None:
            element: Scalar = Arg(1, dtype)
            inputs, maps = [*inputs, state], [*maps, IndexMap.identity(3)]
        else:
            element = Gather(2, (Arg(1, DType.I64), Index(1), Index(2)), dtype)
            inputs, maps = [*inputs, s.slot, state], [*maps, IndexMap.of_dims((0,)), None]
        position = add(Arg(0, DType.I64), Index(1))
        begun = Apply("ge", (position, Const(self.history, DType.I64)), DType.BOOL)
        body = Apply("select", (begun, element, Const(0.0, dtype)), dtype)
        shape = (s.batch, self.history, state.type.shape[2])
        return self.builder.generic(inputs, maps, shape, body, name="before")

    def _convolved(self, joined: Value) -> Value:
        """Each channel's sum over the last ``length`` inputs: (B, S, hidden)."""
        s, writer = self.sequence, self.writer
        hidden = joined.type.shape[2]
        assert isinstance(hidden, int)
        weight = writer.weight(f"{self.place}.conv.weight", (hidden, 1, self.layer.length))
        window = IndexMap((Linear.dim(0), Linear(((1, 1), (3, 1))), Linear.dim(2)))
        taps = IndexMap((Linear.dim(2), Linear(), Linear.dim(3)))
        body = mul(cast(Arg(0, joined.type.dtype), DType.F32), cast(Arg(1, weight.type.dtype), DType.F32))
        sums = self.builder.generic(
            (joined, weight),
            (window, taps),
            (s.batch, s.length, hidden, self.layer.length),
            body,
            reduced=1,
            combiner="add",
            name="convolved",
        )
        if self.layer.bias:
            bias = writer.weight(f"{self.place}.conv.bias", (hidden,))
            sums = writer.map([sums, bias], lambda a, b: add(a, cast(b, DType.F32)), "convolved")
        return writer.cast(sums, writer.dtype)

    def _weighed(self, projected: Value, convolved: Value) -> Value:
        """The convolution's result times the second part of the projection."""
        rows, hidden = convolved.type.shape
        assert isinstance(hidden, int)
        second = IndexMap((Linear.dim(0), Linear.dim(1, 1, hidden)))
        dtype = self.writer.dtype
        return self.builder.generic(
            (projected, convolved),
            (second, IndexMap.identity(2)),
            (rows, hidden),
            mul(Arg(0, dtype), Arg(1, dtype)),
            name="weighed",
        )
