"""Mixtures of experts: routing, and the products of the experts that tokens have chosen."""

from __future__ import annotations

from mansard.dtypes import DType
from mansard.frontends.decoders.architecture import Experts
from mansard.frontends.decoders.layers.chosen_products import product_of_chosen
from mansard.frontends.decoders.layers.expert_groups import ExpertGroups
from mansard.frontends.decoders.layers.expert_parts import ExpertParts
from mansard.frontends.decoders.layers.feed_forward import feed_forward, gated_halves
from mansard.frontends.decoders.layers.writer import Matrix, Writer, add, cast, mul
from mansard.ir.scalar import Apply, Arg, Const, Gather, Index, Scalar
from mansard.ir.types import IndexMap, Value

MAX_ROWS = 4
"""The most rows each of which reads the weights of its experts by itself; more rows are grouped by expert."""
F32, I64 = DType.F32, DType.I64


def experts(writer: Writer, x: Value, layer: Experts, place: str, module: str) -> Value:
    """What the experts give for x (rows, hidden), with what the shared network gives if there is one.

    ``place`` is the layer, ``module`` its module of experts. The stacked weights ``gate_up_proj`` (experts,
    2 * width, hidden) and ``down_proj`` (experts, hidden, width) are read where they are: of each token, or
    of each group of tokens, those of one expert.
    """
    result = _Mixture(writer, layer, f"{place}.{module}").write(x)
    if layer.shared is not None:
        shared = feed_forward(writer, x, layer.shared, f"{place}.{layer.shared_name}")
        result = writer.map([result, shared], add, "experts")
    return result


class _Mixture:
    def __init__(self, writer: Writer, layer: Experts, place: str) -> None:
        self.writer, self.builder, self.layer, self.place = writer, writer.builder, layer, place

    def write(self, x: Value) -> Value:
        rows, hidden = x.type.shape
        assert isinstance(hidden, int)
        self.writer.at(self.place)
        layer, stack = self.layer, f"{self.place}.experts"
        chosen, weights = self._routed(x, hidden)
        self.writer.choices.append(chosen)
        by_row = isinstance(rows, int) and rows <= MAX_ROWS
        if layer.apart:
            return ExpertParts(self.writer, layer, self.place).write(x, chosen, weights, by_row)
        up = self.writer.matrix(f"{stack}.gate_up_proj", (layer.count, 2 * layer.width, hidden))
        down = self.writer.matrix(f"{stack}.down_proj", (layer.count, hidden, layer.width))
        if by_row:
            return self._by_row(x, chosen, weights, up, down)
        groups = ExpertGroups(self.writer, chosen, layer.count, 2 * layer.width * hidden)
        both = groups.product(groups.gathered(x), up, "gate_up")
        result = groups.product(gated_halves(self.writer, both, layer.activation), down, "down")
        return self._combined(groups.slots, result, weights)

    # Routing ------------------------------------------------------------------------------------
    def _routed(self, x: Value, hidden: int) -> tuple[Value, Value]:
        """The experts of each row (rows, chosen) i64 in the order of their scores, and their weights, f32."""
        layer, writer = self.layer, self.writer
        router = f"{self.place}.{layer.router_name}.weight"
        logits = writer.linear(x, writer.matrix(router, (layer.count, hidden)), name="router")
        logits = writer.cast(logits, F32)
        if layer.scores == "softmax":
            best, chosen = self.builder.sort(logits, 1, descending=True, limit=layer.chosen)
            return chosen, self._softmax(logits, best)
        scores = writer.map([logits], _sigmoid, "scores")
        ranked = scores
        if layer.biased:
            bias = writer.weight(f"{self.place}.expert_bias", (layer.count,))
            ranked = writer.map([scores, bias], lambda a, b: add(a, cast(b, F32)), "ranked")
        best, chosen = self.builder.sort(ranked, 1, descending=True, limit=layer.chosen)
        if layer.biased:
            best = self.builder.generic(
                (chosen, scores),
                (IndexMap.identity(2), None),
                chosen.type.shape,
                Gather(1, (Index(0), Arg(0, I64)), F32),
                name="chosen_scores",
            )
        return chosen, self._scaled(best, self._sum(best) if layer.normalised else None, 1e-6)

    def _softmax(self, logits: Value, best: Value) -> Value:
        """The softmax of the logits, or of the best ones alone, which is the same normalised."""
        first = IndexMap.of_dims((0, None))
        body = Apply("exp", (Apply("sub", (Arg(0, F32), Arg(1, F32)), F32),), F32)

        def exponentials(of: Value) -> Value:
            return self.builder.generic(
                (of, best), (IndexMap.identity(2), first), of.type.shape, body, name="exponentials"
            )

        shares = exponentials(best)
        total = self._sum(shares if self.layer.normalised else exponentials(logits))
        return self._scaled(shares, total, 0.0)

    def _sum(self, values: Value) -> Value:
        return self.builder.generic(
            (values,),
            (IndexMap.identity(2),),
            values.type.shape,
            Arg(0, F32),
            reduced=1,
            combiner="add",
            name="score_sum",
        )

    def _scaled(self, scores: Value, total: Value | None, epsilon: float) -> Value:
        """``scores / (total + epsilon) * scale``."""
        inputs, maps, body = [scores], [IndexMap.identity(2)], self._share(total is not None, epsilon)
        if total is not None:
            inputs.append(total)
            maps.append(IndexMap.of_dims((0,)))
        return self.builder.generic(inputs, maps, scores.type.shape, body, name="weights")

    def _share(self, divided: bool, epsilon: float) -> Scalar:
        result: Scalar = Arg(0, F32)
        if divided:
            divisor: Scalar = Arg(1, F32)
            if epsilon:
                divisor = add(divisor, Const(epsilon, F32))
            result = Apply("div", (result, divisor), F32)
        return result if self.layer.scale == 1.0 else mul(result, Const(self.layer.scale, F32))

    # Products -----------------------------------------------------------------------------------
    def _by_row(self, x: Value, chosen: Value, weights: Value, up: Matrix, down: Matrix) -> Value:
        """Each row with each of its experts."""
        rows, hidden = x.type.shape
        layer, writer = self.layer, self.writer
        extents = (rows, layer.chosen, 2 * layer.width)
        both = product_of_chosen(writer, (x, (0,)), (chosen, (0, 1)), up, extents, 2, name="gate_up")
        gated = gated_halves(writer, writer.cast(both, writer.dtype), layer.activation)
        dtype = writer.dtype
        weighted = self.builder.generic(
            (gated, weights),
            (IndexMap.identity(3), IndexMap.of_dims((0, 1))),
            gated.type.shape,
            cast(mul(cast(Arg(0, dtype), F32), Arg(1, F32)), dtype),
            name="weighted",
        )
        factors = (weighted, (0, 2)), (chosen, (0, 2))
        result = product_of_chosen(writer, *factors, down, (rows, hidden), 1, (layer.chosen,), name="down")
        return writer.cast(result, dtype)

    def _combined(self, slots: Value, result: Value, weights: Value) -> Value:
        """The weighted sum of what the experts of each row gave; ``result`` is (slots, hidden)."""
        rows, chosen = weights.type.shape
        hidden = result.type.shape[1]
        places = (Arg(0, I64), Index(1))
        body = mul(Arg(1, F32), cast(Gather(2, places, result.type.dtype), F32))
        sums = self.builder.generic(
            (self.builder.reshape(slots, (rows, chosen)), weights, result),
            (IndexMap.of_dims((0, 2)), IndexMap.of_dims((0, 2)), None),
            (rows, hidden, chosen),
            body,
            reduced=1,
            combiner="add",
            name="combined",
        )
        return self.writer.cast(sums, self.writer.dtype)


def _sigmoid(x: Scalar) -> Scalar:
    one = Const(1.0, F32)
    return Apply("div", (one, add(one, Apply("exp", (Apply("neg", (x,), F32),), F32))), F32)
