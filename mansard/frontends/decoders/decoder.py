"""A decoder's Graph: tokens and their positions in, logits out, the cache of keys and values a state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mansard import dims
from mansard.dims import Dim, DimLike
from mansard.dtypes import DType
from mansard.errors import ImportModelError
from mansard.frontends.decoders.architecture import Architecture, Block
from mansard.frontends.decoders.checkpoint import Checkpoint
from mansard.frontends.decoders.layers.attention import Attention, Sequence
from mansard.frontends.decoders.layers.feed_forward import feed_forward
from mansard.frontends.decoders.layers.norm import NormSettings
from mansard.frontends.decoders.layers.writer import Writer, add, cast, mul
from mansard.ir.graph import Graph, GraphBuilder
from mansard.ir.scalar import Apply, Arg, Cast, Const, Gather, Index, Scalar
from mansard.ir.types import IndexMap, Value

CacheType = Literal["f32", "f16", "bf16"]


@dataclass(frozen=True)
class DecoderOptions:
    """What a decoder is compiled for.

    A call takes ``length`` new tokens of each of ``batch`` sequences; a `Dim` lets the length vary. The cache
    holds ``context`` positions of each sequence, in ``cache_dtype`` (None: the type of the activations,
    ``dtype``, which by default is that of the weights). ``logits`` are those of one token of each sequence,
    or of all.
    """

    context: int
    length: int | Dim = 1
    batch: int = 1
    dtype: DType | None = None
    cache_dtype: DType | None = None
    logits: Literal["last", "all"] = "last"


def build_decoder(checkpoint: Checkpoint, architecture: Architecture, options: DecoderOptions) -> Graph:
    """The Graph of a decoder.

    Inputs: ``tokens`` (B, S) i64; ``positions`` (B) i64, how many positions of each sequence the cache holds,
    which is the position of its first new token; with ``logits="last"`` also ``last`` (B) i64, the index of
    the new token whose logits are wanted. States: keys and values of each layer, (B, context, heads * head_dim),
    into which the new tokens' are written. Output: ``logits`` (B, vocabulary), or (B, S, vocabulary), f32.

    New tokens behind ``last`` may be padding: what they write is overwritten by the tokens that come to stand
    there, and no earlier position reads it.

    Raises ImportModelError for weights that do not agree with the architecture.
    """
    return _Decoder(checkpoint, architecture, options).build()


class _Decoder:
    def __init__(self, checkpoint: Checkpoint, architecture: Architecture, options: DecoderOptions) -> None:
        self.architecture, self.options = architecture, options
        self.builder = GraphBuilder(architecture.family)
        dtype = options.dtype or checkpoint.tensor_type("model.embed_tokens.weight").dtype
        if dtype not in (DType.F32, DType.F16, DType.BF16):
            raise ImportModelError(f"activations of type {dtype.value} are not supported; use f32, f16 or bf16")
        self.writer = Writer(self.builder, checkpoint, dtype)
        self.norm = NormSettings(
            architecture.norm_epsilon, architecture.norm_offset, architecture.norm_in_f32
        )

    def build(self) -> Graph:
        options, builder = self.options, self.builder
        length: DimLike = options.length if isinstance(options.length, int) else dims.symbol(options.length)
        tokens = builder.input("tokens", (options.batch, length), DType.I64)
        positions = builder.input("positions", (options.batch,), DType.I64)
        builder.assert_indices(tokens, "the embedding", 0, self.architecture.vocabulary)
        builder.assert_indices(positions, "the cache", 0, options.context)
        sequence = Sequence(
            options.batch, length, options.context, positions, self._cache_rows(positions, length)
        )
        attention = Attention(
            self.writer, sequence, options.cache_dtype or self.writer.dtype, self.norm
        )
        x = self._embedded(tokens)
        for number, block in enumerate(self.architecture.blocks):
            x = self._block(x, block, attention, f"model.layers.{number}")
        return builder.build([self._logits(x, length)], ["logits"])

    def _cache_rows(self, positions: Value, length: DimLike) -> Value:
        """(B * S, 2): sequence and position of each new token."""
        position = add(Arg(0, DType.I64), Index(1))
        first = Apply("eq", (Index(2), Const(0, DType.I64)), DType.BOOL)
        body = Apply("select", (first, Index(0), position), DType.I64)
        batch = self.options.batch
        rows = self.builder.generic(
            (positions,), (IndexMap.of_dims((0,)),), (batch, length, 2), body, name="cache_rows"
        )
        return self.builder.reshape(rows, (dims.mul(batch, length), 2))

    def _embedded(self, tokens: Value) -> Value:
        """(B * S, hidden) rows of the embedding."""
        architecture, writer = self.architecture, self.writer
        writer.at("model.embed_tokens")
        table = self._embedding()
        indices = (Arg(0, DType.I64), Index(2))
        body = Gather(1, indices, table.type.dtype)
        shape = (*tokens.type.shape, architecture.hidden)
        rows = self.builder.generic(
            (tokens, table), (IndexMap.of_dims((0, 1)), None), shape, body, name="embedded"
        )
        flat = (dims.mul(*tokens.type.shape), architecture.hidden)
        embedded = writer.cast(self.builder.reshape(rows, flat), writer.dtype)
        return writer.scaled(embedded, architecture.embedding_scale)

    def _embedding(self) -> Value:
        shape = (self.architecture.vocabulary, self.architecture.hidden)
        return self.writer.weight("model.embed_tokens.weight", shape)

    def _block(self, x: Value, block: Block, attention: Attention, place: str) -> Value:
        names = ("input_layernorm", "post_attention_layernorm")
        if block.normalised_outputs:
            names = ("input_layernorm", "pre_feedforward_layernorm")
        attended = attention.write(self._normalised(x, f"{place}.{names[0]}"), block.attention, f"{place}.self_attn")
        if block.normalised_outputs:
            attended = self._normalised(attended, f"{place}.post_attention_layernorm")
        x = self._added(x, attended)
        network = feed_forward(
            self.writer, self._normalised(x, f"{place}.{names[1]}"), block.feed_forward, f"{place}.mlp"
        )
        if block.normalised_outputs:
            network = self._normalised(network, f"{place}.post_feedforward_layernorm")
        return self._added(x, network)

    def _normalised(self, x: Value, place: str) -> Value:
        self.writer.at(place)
        gain = self.writer.weight(f"{place}.weight", (self.architecture.hidden,))
        return self.norm.write(self.writer, x, gain)

    def _added(self, x: Value, branch: Value) -> Value:
        return self.writer.map([x, self.writer.scaled(branch, self.architecture.residual_scale)], add, "residual")

    def _logits(self, x: Value, length: DimLike) -> Value:
        architecture, writer, builder = self.architecture, self.writer, self.builder
        batch = self.options.batch
        if self.options.logits == "last" and length != 1:
            x = self._last(x, length)
        x = self._normalised(x, "model.norm")
        writer.at("lm_head")
        shape = (architecture.vocabulary, architecture.hidden)
        head = self._embedding() if architecture.tied_embeddings else writer.weight("lm_head.weight", shape)
        logits = writer.linear(x, head, name="lm_head")

        def body(x: Scalar) -> Scalar:
            x = cast(x, DType.F32)
            if architecture.logit_scale != 1.0:
                x = mul(x, Const(architecture.logit_scale, DType.F32))
            if architecture.logit_softcap is not None:
                cap = Const(architecture.logit_softcap, DType.F32)
                x = mul(Apply("tanh", (Apply("div", (x, cap), DType.F32),), DType.F32), cap)
            return x

        logits = writer.map([logits], body, "logits")
        if self.options.logits == "last":
            return logits
        return builder.reshape(logits, (batch, length, architecture.vocabulary))

    def _last(self, x: Value, length: DimLike) -> Value:
        """Row ``last`` of each sequence: (B, hidden)."""
        batch, hidden = self.options.batch, self.architecture.hidden
        last = self.builder.input("last", (batch,), DType.I64)
        self.builder.assert_indices(last, "the logits", 0, length)
        rows = self.builder.reshape(x, (batch, length, hidden))
        body = Gather(1, (Index(0), Arg(0, DType.I64), Index(1)), x.type.dtype)
        return self.builder.generic(
            (last, rows), (IndexMap.of_dims((0,)), None), (batch, hidden), body, name="last_rows"
        )
