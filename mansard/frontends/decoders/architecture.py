"""What a decoder consists of, whatever family it is of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mansard.frontends.decoders.rotary import Rotary


@dataclass(frozen=True)
class AttentionLayer:
    """Grouped-query self-attention over the sequence so far.

    Queries and keys have ``heads`` and ``key_heads`` heads of ``head_dim`` elements; scores are multiplied by
    ``scale``. With ``window`` a position attends to the last ``window`` positions only, its own included;
    with ``softcap`` scores become ``softcap * tanh(scores / softcap)``. Without ``rotary`` positions are not
    encoded.
    """

    heads: int
    key_heads: int
    head_dim: int
    scale: float
    rotary: Rotary | None
    window: int | None = None
    softcap: float | None = None
    normalised_heads: bool = False
    """Whether each query and key head has an RMS norm before its rotation."""
    bias: bool = False
    """Of the query, key and value projections."""
    output_bias: bool = False


@dataclass(frozen=True)
class FeedForward:
    """``down(activation(gate(x)) * up(x))``."""

    width: int
    activation: Activation
    bias: bool = False


Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True)
class Block:
    """One layer: attention and a feed-forward network, each added to its input.

    Both read a normalised input. With ``normalised_outputs`` what is added is normalised as well.
    """

    attention: AttentionLayer
    feed_forward: FeedForward
    normalised_outputs: bool = False


@dataclass(frozen=True)
class Architecture:
    """A decoder: token embedding, blocks, a norm, and the projection to logits.

    Norms are ``x / sqrt(mean(x**2) + norm_epsilon) * (weight + norm_offset)`` (Zhang and Sennrich, 2019,
    arXiv:1910.07467). The scales multiply the embeddings, what a block adds, and the logits.
    """

    family: str
    vocabulary: int
    hidden: int
    blocks: tuple[Block, ...]
    norm_epsilon: float
    tied_embeddings: bool
    """Whether the projection to logits is the embedding's weight."""
    max_positions: int
    norm_offset: float = 0.0
    norm_in_f32: bool = False
    """Whether a norm multiplies by its weight before it rounds to the model's type, rather than after."""
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None
