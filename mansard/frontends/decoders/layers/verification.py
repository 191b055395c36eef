"""What a call of the role ``verify`` keeps of its window: the tokens that the model would have chosen itself.

The window is the last token of a text and proposals for those after it. Each row chooses the token after its
own, with the noise of its position; proposals are accepted up to the first that differs from the choice
before it (Leviathan et al., 2023, arXiv:2211.17192). As the noise follows from seed and position, a choice is
the one that a call with a single row makes: the text does not depend on the proposals (Daliri et al., 2024,
arXiv:2408.07978).
"""

from __future__ import annotations

from mansard import dims
from mansard.dtypes import DType
from mansard.frontends.decoders.layers.attention import Sequence
from mansard.frontends.decoders.layers.sampling import Sampler
from mansard.frontends.decoders.layers.writer import Writer, add, cast
from mansard.ir.scalar import Apply, Arg, Const, Gather, Index, Scalar
from mansard.ir.types import IndexMap, Linear, Value

BOOL, I32, I64 = DType.BOOL, DType.I32, DType.I64
_FIRST = IndexMap((Linear(),))
_NEVER = (1 << 31) - 1


class Verification:
    """Chooses the token after each row of a window ``tokens`` (1, S) and accepts proposals.

    States of the sequence follow the accepted tokens only: ``tokens_seen`` and ``last_token`` as in the other
    roles, and what layers have put off until then (`Sequence.kept`).
    """

    def __init__(self, writer: Writer, call: Sequence, tokens: Value, vocabulary: int) -> None:
        self.writer, self.builder, self.call, self.tokens = writer, writer.builder, call, tokens
        self.vocabulary = vocabulary
        self.rows = dims.mul(call.batch, call.length)
        self.sampler = Sampler(writer, call.batch, vocabulary, self.rows)

    def choices(self, logits: Value) -> tuple[Value, Value]:
        """The choice of each row (S) i64 for logits (S, vocabulary), and how many proposals are accepted, (1)
        i64. Updates the states."""
        builder, call = self.builder, self.call
        seen = builder.state("tokens_seen", (call.slots, self.vocabulary), I32)
        first = self._first_rows(seen)
        position = add(add(Arg(0, I64), Index(0)), Const(1, I64))
        where = builder.generic((call.positions,), (_FIRST,), (self.rows,), position, name="next_position")
        chosen = self.sampler.token(self.sampler.penalised_rows(logits, first), where)
        accepted = self._accepted(chosen)
        self._note(seen, accepted)
        self._keep_last(chosen, accepted)
        for keep in call.kept:
            keep(accepted)
        return chosen, accepted

    def _first_rows(self, seen: Value) -> Value:
        """The first row of the window that knows a token as one of the text, (1, vocabulary) i32: -1 for
        tokens of the text before the window, a large number for those that do not occur."""
        builder, call = self.builder, self.call
        number = Arg(1, I64)
        state: Scalar = Arg(0, I32)
        inputs, maps = [seen], [IndexMap.of_dims((0, 1))]
        if call.slot is not None:
            state = Gather(0, (Arg(2, I64), Index(1)), I32)
            maps = [None]  # type: ignore[list-item]  # read by the body
        inputs.append(self.sampler.draws)
        maps.append(self.sampler.column("sequence"))
        if call.slot is not None:
            inputs.append(call.slot)
            maps.append(_FIRST)
        occurred = Apply("eq", (cast(state, I64), number), BOOL)
        body = Apply("select", (occurred, Const(-1, I32), Const(_NEVER, I32)), I32)
        before = builder.generic(inputs, maps, (1, self.vocabulary), body, name="seen_before")
        places = self._places(Arg(0, I64), [self.tokens], [IndexMap.of_dims((None, 0))])
        rows = builder.generic((), (), (self.rows,), cast(Index(0), I32), name="row")
        return builder.scatter(before, places, rows, "min")

    def _places(self, token: Scalar, inputs: list[Value], maps: list[IndexMap]) -> Value:
        """(S, 2): sequence 0 of one, and ``token`` over the inputs."""
        first = Apply("eq", (Index(1), Const(0, I64)), BOOL)
        body = Apply("select", (first, Const(0, I64), token), I64)
        return self.builder.generic(inputs, maps, (self.rows, 2), body, name="places")

    def _accepted(self, chosen: Value) -> Value:
        """The first row whose choice is not the proposal after it, which for the last row is always so."""
        following = IndexMap((Linear(), Linear.dim(1, 1, 1)), fill=-1)
        same = Apply("eq", (Arg(0, I64), Arg(1, I64)), BOOL)
        body = Apply("select", (same, Const(_NEVER, I64), Index(1)), I64)
        return self.builder.generic(
            (chosen, self.tokens),
            (IndexMap((Linear.dim(1),)), following),
            (1, self.rows),
            body,
            reduced=1,
            combiner="min",
            name="accepted",
        )

    def _note(self, seen: Value, accepted: Value) -> None:
        """Note the tokens that stand in the text now; a scatter drops the index -1 of the others."""
        builder, call = self.builder, self.call
        inside = Apply("le", (Index(0), Arg(1, I64)), BOOL)
        token = Apply("select", (inside, Arg(0, I64), Const(-1, I64)), I64)
        inputs, maps = [self.tokens, accepted], [IndexMap.of_dims((None, 0)), _FIRST]
        sequence: Scalar = Const(0, I64)
        if call.slot is not None:
            inputs.append(call.slot)
            maps.append(_FIRST)
            sequence = Arg(2, I64)
        first = Apply("eq", (Index(1), Const(0, I64)), BOOL)
        body = Apply("select", (first, sequence, token), I64)
        places = builder.generic(inputs, maps, (self.rows, 2), body, name="noted")
        numbers = self.sampler.sequence_numbers(call.length)
        builder.update_state(seen, builder.scatter(seen, places, numbers))

    def _keep_last(self, chosen: Value, accepted: Value) -> None:
        """The choice after the last accepted token becomes the state that ``decode`` reads."""
        builder, call = self.builder, self.call
        state = builder.state("last_token", (call.slots,), I64)
        body = Gather(1, (Arg(0, I64),), I64)
        last = builder.generic((accepted, chosen), (IndexMap.of_dims((0,)), None), (1,), body, name="last")
        if call.slot is not None:
            last = builder.scatter(state, builder.reshape(call.slot, (1, 1)), last)
        builder.update_state(state, last)
