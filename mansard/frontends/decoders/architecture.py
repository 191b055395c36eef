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
    output_name: str = "o_proj"
    norm_names: tuple[str, str] = ("q_norm", "k_norm")
    """Of queries and keys, with ``normalised_heads``."""


@dataclass(frozen=True)
class ShortConvolution:
    """``out_proj(c * conv(b * x))`` for ``b, c, x = in_proj(…)`` (LFM2), with a causal convolution of each
    channel over the last ``length`` positions."""

    length: int
    bias: bool = False
    """Of both projections and the convolution."""


Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True)
class FeedForward:
    """``down(activation(gate(x)) * up(x))``; ``names`` are the modules of the gate, the other factor and
    ``down``. Without a name for the second, the first module has the rows of both."""

    width: int
    activation: Activation
    bias: bool = False
    names: tuple[str, str | None, str] = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Experts:
    """A mixture of ``count`` feed-forward networks without biases, of which each token uses the ``chosen``
    ones that its router scores highest (Shazeer et al., 2017, arXiv:1701.06538).

    Scores are ``scores`` of the router's logits; what a network gives is weighted by its score, divided by
    the sum of those of the chosen ones if ``normalised``, times ``scale``. With ``biased``, experts are
    chosen by their score plus a bias, which does not weigh (DeepSeek-V3, arXiv:2412.19437). ``shared`` is a
    network that every token uses in addition, at the module ``shared_name`` of the layer.
    """

    count: int
    chosen: int
    width: int
    activation: Activation
    scores: Literal["softmax", "sigmoid"] = "softmax"
    normalised: bool = True
    scale: float = 1.0
    biased: bool = False
    router_name: str = "gate"
    shared: FeedForward | None = None
    shared_name: str = "shared_mlp"
    apart: tuple[int, ...] = ()
    """Experts whose weights are constants of their own, so that they can be on another device than the rest
    (`mansard.frontends.decoders.layers.expert_parts`)."""


@dataclass(frozen=True)
class BlockNames:
    """The modules of a block: its mixer, its network, and the norm before each."""

    mixer: str = "self_attn"
    network: str = "mlp"
    mixer_norm: str = "input_layernorm"
    network_norm: str = "post_attention_layernorm"


@dataclass(frozen=True)
class Block:
    """One layer: a mixer of positions and a feed-forward network, each added to its input.

    Both read a normalised input. With ``output_norms``, the modules of two more norms, what is added is
    normalised as well.
    """

    mixer: AttentionLayer | ShortConvolution
    network: FeedForward | Experts
    names: BlockNames = BlockNames()
    output_norms: tuple[str, str] | None = None


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
    final_norm: str = "model.norm"

    @property
    def rewinds(self) -> bool:
        """Whether a sequence can be continued from any earlier position, as caches of keys and values can;
        the state of a convolution only knows where the sequence stands."""
        return all(isinstance(block.mixer, AttentionLayer) for block in self.blocks)
