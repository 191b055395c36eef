"""A decoder's Graph: tokens and their positions in, logits out, the cache of keys and values a state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mansard import dims
from mansard.dims import Dim, DimLike
from mansard.dtypes import DType
from mansard.errors import ImportModelError
from mansard.frontends.decoders.architecture import Architecture, AttentionLayer, Block, Experts
from mansard.frontends.decoders.checkpoint import Checkpoint
from mansard.frontends.decoders.layers.attention import Attention, Sequence
from mansard.frontends.decoders.layers.cache_rows import index_rows
from mansard.frontends.decoders.layers.convolution import short_convolution
from mansard.frontends.decoders.layers.experts import experts
from mansard.frontends.decoders.layers.feed_forward import feed_forward
from mansard.frontends.decoders.layers.norm import NormSettings
from mansard.frontends.decoders.layers.pages import table_width
from mansard.frontends.decoders.layers.sampling import Sampler
from mansard.frontends.decoders.layers.scores import write_scores
from mansard.frontends.decoders.layers.verification import Verification
from mansard.frontends.decoders.layers.writer import Matrix, Writer, add, cast, mul
from mansard.ir.graph import Graph, GraphBuilder
from mansard.ir.scalar import Apply, Arg, Const, Gather, Index, Scalar
from mansard.ir.types import IndexMap, Value

Role = Literal["logits", "prefill", "decode", "verify", "routing"]


@dataclass(frozen=True)
class DecoderOptions:
    """What a decoder is compiled for.

    The cache holds ``context`` positions of each of ``sequences`` sequences, in ``cache_dtype`` (None: the
    type of the activations, ``dtype``, which by default is that of the weights). ``role`` says what a call
    does (`build_decoder`), with ``length`` new tokens of a sequence; a `Dim` lets the length vary.
    """

    context: int
    length: int | Dim = 1
    sequences: int = 1
    dtype: DType | None = None
    cache_dtype: DType | None = None
    role: Role = "logits"
    all_logits: bool = False
    """Whether the role ``logits`` gives those of every new token, rather than of one."""
    unpack: bool = False
    """Whether matrices that the checkpoint has as small integers become floating point."""
    scored: bool = False
    """Whether ``prefill`` and ``decode`` give log-probabilities beside the token."""
    restricted: bool = True
    """Whether top-k, top-p and min-p may restrict the choice; otherwise they are ignored."""
    skip_empty_groups: frozenset[str] = frozenset()
    """The `mansard.frontends.decoders.layers.expert_groups.PARTS` of experts whose kernels are to skip groups
    without rows, as those of CPUs can. Those of GPUs multiply whole groups by matrix units."""
    pages: int | None = None
    """Pages of the cache, of `mansard.frontends.decoders.layers.pages.PAGE` positions each, that all
    sequences share; None: each sequence has ``context`` positions of its own."""
    heads_first: bool = False
    """Whether caches are (sequences, heads, context, head_dim), as CPUs read them fastest: a head's keys one
    behind the other (Zen 4, two cores: 33 GB/s, where keys of eight heads between them leave 20)."""


def build_decoder(checkpoint: Checkpoint, architecture: Architecture, options: DecoderOptions) -> Graph:
    """The Graph of a decoder.

    ``logits``: inputs ``tokens`` (1, S) i64, the new tokens of a sequence; ``positions`` (1) i64, how many
    positions of it the cache holds, which is where the new tokens begin; ``slot`` (1) i64, which sequence of
    the cache it is, where there are several; ``last`` (1) i64, the index of the new token whose logits are
    wanted. Output ``logits`` f32, (1, vocabulary), or (1, S, vocabulary) without ``last``.

    ``prefill``: the same inputs, and those of a `Sampler`; output ``token`` (1) i64, the next one.

    ``decode``: one new token of all sequences, the last one that either role chose, which is read from a
    state. Inputs ``positions`` (B) and those of a `Sampler`; output ``token`` (B).

    Of the last two, ``scored`` ones have the further outputs ``score``, ``ranked`` and ``ranked_scores``
    (`Scores`).

    ``verify``: the inputs of ``prefill`` without ``last``; ``tokens`` are the last token of a text and
    proposals for those after it (`Verification`). Outputs ``choices`` (S) i64, the token after each row, and
    ``accepted`` (1) i64: so many proposals are the choices before them, and ``choices[accepted]`` is the
    token behind those.

    ``routing``: the inputs of ``logits``; outputs ``experts.N`` (S, chosen) i64, the experts that the new
    tokens choose in each layer that has some.

    Keys and values of each attention are states, (sequences, context, heads * head_dim), and so are the last
    inputs of each convolution. With ``pages`` they are (pages, PAGE, heads * head_dim), with ``heads_first``
    (sequences, heads, context, head_dim) or (pages, heads, PAGE, head_dim), and the further input
    ``pages`` (B, ceil(context / PAGE)) i64 says which page holds which positions of a sequence; pages that a
    sequence has not got yet may be any that nobody reads. New tokens behind ``last`` may be padding: the
    keys and values that they write are overwritten by the tokens that come to stand there, and no earlier
    position reads them; inputs of a convolution are kept up to ``last``.

    Raises ImportModelError for weights that do not agree with the architecture.
    """
    return _Decoder(checkpoint, architecture, options).build()


class _Decoder:
    def __init__(self, checkpoint: Checkpoint, architecture: Architecture, options: DecoderOptions) -> None:
        self.architecture, self.options = architecture, options
        self.builder = GraphBuilder(architecture.family)
        dtype = options.dtype or checkpoint.tensor_type("model.embed_tokens.weight").dtype
        if dtype not in (DType.F32, DType.F16, DType.BF16):
            raise ImportModelError(
                f"activations of type {dtype.value} are not supported; use f32, f16 or bf16"
            )
        self.writer = Writer(
            self.builder,
            checkpoint,
            dtype,
            unpack=options.unpack,
            skip_empty_groups=options.skip_empty_groups,
        )
        self.norm = NormSettings(
            architecture.norm_epsilon, architecture.norm_offset, architecture.norm_in_f32
        )

    def build(self) -> Graph:
        options, builder = self.options, self.builder
        if options.role == "decode":
            self.chosen = builder.state("last_token", (options.sequences,), DType.I64)
            tokens = builder.reshape(self.chosen, (options.sequences, 1))
        else:
            length = options.length
            tokens = builder.input(
                "tokens", (1, dims.symbol(length) if isinstance(length, Dim) else length), DType.I64
            )
            builder.assert_indices(tokens, "the embedding", 0, self.architecture.vocabulary)
        call = self._sequence(tokens)
        attention = Attention(self.writer, call, options.cache_dtype or self.writer.dtype, self.norm)
        x = self._embedded(tokens)
        for number, block in enumerate(self.architecture.blocks):
            x = self._block(x, block, attention, f"model.layers.{number}")
        if options.role == "routing":
            choices = self.writer.choices
            return builder.build(choices, [f"experts.{number}" for number in range(len(choices))])
        if options.role == "logits" and options.all_logits:
            logits = self._logits(x)
            return builder.build(
                [builder.reshape(logits, (1, call.length, self.architecture.vocabulary))], ["logits"]
            )
        if call.last is not None:
            x = self._rows(x, call.last, call)
        logits = self._logits(x)
        if options.role == "logits":
            return builder.build([logits], ["logits"])
        if options.role == "verify":
            self.writer.at("sampling")
            verification = Verification(self.writer, call, tokens, self.architecture.vocabulary)
            return builder.build(verification.choices(logits), ["choices", "accepted"])
        token = self._sampled(logits, tokens, call)
        if not options.scored:
            return builder.build([token], ["token"])
        scores = write_scores(builder, logits, token)
        return builder.build(
            [token, scores.chosen, scores.ranked, scores.ranked_scores],
            ["token", "score", "ranked", "ranked_scores"],
        )

    def _sequence(self, tokens: Value) -> Sequence:
        options, builder = self.options, self.builder
        batch, length = tokens.type.shape
        assert isinstance(batch, int)
        positions = builder.input("positions", (batch,), DType.I64)
        builder.assert_indices(positions, "the cache", 0, options.context)
        slot = None
        if options.sequences > batch:
            slot = builder.input("slot", (batch,), DType.I64)
            builder.assert_indices(slot, "the sequences", 0, options.sequences)
        table = None
        if options.pages is not None:
            table = builder.input("pages", (batch, table_width(options.context)), DType.I64)
            builder.assert_indices(table, "the cache", 0, options.pages)
        last = None
        if options.role == "prefill" or (options.role == "logits" and not options.all_logits):
            last = builder.input("last", (1,), DType.I64)
            builder.assert_indices(last, "the logits", 0, length)
        return Sequence(
            batch,
            length,
            options.context,
            positions,
            options.sequences,
            slot,
            last,
            options.role == "verify",
            table=table,
            pages=options.pages,
            heads_first=options.heads_first,
        )

    def _pairs(
        self, batch: int, length: DimLike, slot: Value | None, second: Value, read: IndexMap, body: Scalar
    ) -> Value:
        """(B * S, 2): of each new token its sequence, and ``body`` over ``second``."""
        inputs, maps = [second], [read]
        sequence: Scalar = Index(0)
        if slot is not None:
            inputs.append(slot)
            maps.append(IndexMap.of_dims((0,)))
            sequence = Arg(1, DType.I64)
        return index_rows(self.builder, inputs, maps, (batch, length), (sequence, body))

    def _sampled(self, logits: Value, tokens: Value, call: Sequence) -> Value:
        """The next tokens, which become the state that `decode` reads."""
        builder, vocabulary = self.builder, self.architecture.vocabulary
        self.writer.at("sampling")
        sampler = Sampler(self.writer, call.batch, vocabulary)
        seen = self._seen(tokens, call, sampler)
        at = add(Arg(0, DType.I64), Const(1, DType.I64))
        positions = [call.positions]
        if call.last is not None:
            positions.append(call.last)
            at = add(at, Arg(1, DType.I64))
        where = builder.generic(
            positions, [IndexMap.of_dims((0,))] * len(positions), (call.batch,), at, name="next_position"
        )
        token = sampler.token(sampler.penalised(logits, seen), where, restricted=self.options.restricted)
        if self.options.role == "decode":
            builder.update_state(self.chosen, token)
            return token
        chosen = builder.state("last_token", (self.options.sequences,), DType.I64)
        if call.slot is None:
            builder.update_state(chosen, token)
        else:
            indices = builder.reshape(call.slot, (call.batch, 1))
            builder.update_state(chosen, builder.scatter(chosen, indices, token))
        return token

    def _seen(self, tokens: Value, call: Sequence, sampler: Sampler) -> Value:
        """The rows (B, vocabulary) of the state that says in which sequence a token occurred last, with the
        new tokens noted."""
        builder, vocabulary = self.builder, self.architecture.vocabulary
        state = builder.state("tokens_seen", (self.options.sequences, vocabulary), DType.I32)
        token: Scalar = Arg(0, DType.I64)
        noted = tokens
        if call.last is not None:  # padding has index -1, which a scatter drops
            inside = Apply("le", (Index(1), Arg(1, DType.I64)), DType.BOOL)
            token = Apply("select", (inside, token, Const(-1, DType.I64)), DType.I64)
            noted = builder.generic(
                (tokens, call.last),
                (IndexMap.of_dims((0, 1)), IndexMap.of_dims((0,))),
                tokens.type.shape,
                token,
                name="noted",
            )
        rows = self._pairs(
            call.batch, call.length, call.slot, noted, IndexMap.of_dims((0, 1)), Arg(0, DType.I64)
        )
        updated = builder.scatter(state, rows, sampler.sequence_numbers(call.length))
        builder.update_state(state, updated)
        if call.slot is None:
            return updated
        body = Gather(1, (Arg(0, DType.I64), Index(1)), DType.I32)
        return builder.generic(
            (call.slot, updated),
            (IndexMap.of_dims((0,)), None),
            (call.batch, vocabulary),
            body,
            name="seen_rows",
        )

    def _embedded(self, tokens: Value) -> Value:
        """(B * S, hidden) rows of the embedding."""
        architecture, writer = self.architecture, self.writer
        writer.at("model.embed_tokens")
        rows = writer.rows_of(self._embedding(), tokens)
        flat = (dims.mul(*tokens.type.shape), architecture.hidden)
        embedded = writer.cast(self.builder.reshape(rows, flat), writer.dtype)
        return writer.scaled(embedded, architecture.embedding_scale)

    def _embedding(self) -> Matrix:
        shape = (self.architecture.vocabulary, self.architecture.hidden)
        return self.writer.matrix("model.embed_tokens.weight", shape)

    def _block(self, x: Value, block: Block, attention: Attention, place: str) -> Value:
        names, mixer, network = block.names, block.mixer, block.network
        mixer_norm, network_norm = block.output_norms or (None, None)
        entry = self._normalised(x, f"{place}.{names.mixer_norm}")
        if isinstance(mixer, AttentionLayer):
            mixed = attention.write(entry, mixer, f"{place}.{names.mixer}")
        else:
            mixed = short_convolution(self.writer, attention.sequence, entry, mixer, f"{place}.{names.mixer}")
        x = self._added(x, mixed, place, mixer_norm)
        entry = self._normalised(x, f"{place}.{names.network_norm}")
        if isinstance(network, Experts):
            branch = experts(self.writer, entry, network, place, names.network)
        else:
            branch = feed_forward(self.writer, entry, network, f"{place}.{names.network}")
        return self._added(x, branch, place, network_norm)

    def _normalised(self, x: Value, place: str) -> Value:
        self.writer.at(place)
        gain = self.writer.weight(f"{place}.weight", (self.architecture.hidden,))
        return self.norm.write(self.writer, x, gain)

    def _added(self, x: Value, branch: Value, place: str, norm: str | None) -> Value:
        """``x`` plus what a mixer or network gives, through the norm of that name where there is one."""
        if norm is not None:
            branch = self._normalised(branch, f"{place}.{norm}")
        return self.writer.map(
            [x, self.writer.scaled(branch, self.architecture.residual_scale)], add, "residual"
        )

    def _rows(self, x: Value, last: Value, call: Sequence) -> Value:
        """Row ``last`` of each sequence: (B, hidden)."""
        hidden = self.architecture.hidden
        rows = self.builder.reshape(x, (call.batch, call.length, hidden))
        body = Gather(1, (Index(0), Arg(0, DType.I64), Index(1)), x.type.dtype)
        return self.builder.generic(
            (last, rows), (IndexMap.of_dims((0,)), None), (call.batch, hidden), body, name="last_rows"
        )

    def _logits(self, x: Value) -> Value:
        """Logits (rows, vocabulary) f32 of hidden states (rows, hidden)."""
        architecture, writer = self.architecture, self.writer
        x = self._normalised(x, architecture.final_norm)
        writer.at("lm_head")
        shape = (architecture.vocabulary, architecture.hidden)
        head = self._embedding() if architecture.tied_embeddings else writer.matrix("lm_head.weight", shape)
        logits = writer.linear(x, head, name="lm_head")

        def body(x: Scalar) -> Scalar:
            x = cast(x, DType.F32)
            if architecture.logit_scale != 1.0:
                x = mul(x, Const(architecture.logit_scale, DType.F32))
            if architecture.logit_softcap is not None:
                cap = Const(architecture.logit_softcap, DType.F32)
                x = mul(Apply("tanh", (Apply("div", (x, cap), DType.F32),), DType.F32), cap)
            return x

        return writer.map([logits], body, "logits")
